"""Parses requests with httptools and enforces the limits."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httptools

from svcnode.api.app import RETAINED_HEADERS, OperatorRequest
from svcnode.api.spec import INTERNAL_ERROR, METHOD_NOT_ALLOWED, Response, error_response

if TYPE_CHECKING:
    from svcnode.api.app import Mount
    from svcnode.server.response_cache import ResolvedRequest, ResponseCache
    from svcnode.server.state import ServerLimits

log = logging.getLogger("svcnode.server")

BAD_REQUEST = error_response(400, "Bad request: not well-formed HTTP/1.1")
HOST_REQUIRED = error_response(400, "Bad request: HTTP/1.1 requires exactly one Host header")
INVALID_HOST = error_response(400, "Bad request: invalid Host header")
BODY_TOO_LARGE = error_response(413, "Content too large: no endpoint accepts a body")
URI_TOO_LONG = error_response(414, "URI too long")
HEADERS_TOO_LARGE = error_response(431, "Request header fields too large")
VERSION_NOT_SUPPORTED = error_response(505, "HTTP version not supported; use HTTP/1.1 or HTTP/1.0")

_MAX_RAW_BYTES_PER_BODY_BYTE = 8  # enough for chunks of one byte; a client that sends more only fills memory
# RFC 3986, 3.2.2 and 3.2.3; empty if the target has no authority.
_HOST = re.compile(rb"(\[[0-9A-Za-z:.%]*\]|[0-9A-Za-z._~%!$&'()*+,;=-]*)(:[0-9]*)?")
_AUTHORITY_END = re.compile(rb"[/?#]")
METHOD_CHAR = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]")  # RFC 9110, 5.6.2
_REQUEST_LINE = re.compile(METHOD_CHAR.pattern.join((b"(", b"+)")) + rb" (\S+) HTTP/([0-9]\.[0-9])\r?\n")
_SUPPORTED_VERSIONS = (b"1.1", b"1.0")


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A complete request."""

    target: ResolvedRequest | OperatorRequest
    keep_alive: bool
    is_http_1_0: bool
    has_body: bool


class _RequestError(Exception):
    """Raised in a parser callback to stop parsing."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.code)
        self.response = response


class _RequestHead:
    """The request that is being received."""

    __slots__ = (
        "body_bytes",
        "byte_count",
        "has_body",
        "header_count",
        "headers",
        "host_count",
        "is_chunked",
        "is_complete",
        "is_head_method",
        "url",
        "wants_continue",
    )

    def __init__(self) -> None:
        self.url = b""
        self.headers: dict[bytes, bytes] = {}
        self.byte_count = 0
        self.header_count = 0
        self.host_count = 0
        self.has_body = False
        self.body_bytes = 0  # as Content-Length says
        self.is_chunked = False
        self.wants_continue = False
        self.is_head_method = False  # the method is HEAD
        self.is_complete = False


class RequestParser:
    """Turns the bytes of one connection into requests. httptools calls the `on_…` methods."""

    __slots__ = (
        "_body_bytes",
        "_cache",
        "_completed",
        "_head",
        "_limits",
        "_mount",
        "_parser",
        "_received_bytes",
        "error_response",
        "is_between_requests",
        "is_done",
    )

    def __init__(self, limits: ServerLimits, cache: ResponseCache, mount: Mount) -> None:
        self._limits = limits
        self._cache = cache
        self._mount = mount
        self._parser = httptools.HttpRequestParser(self)
        self._head = _RequestHead()
        self._body_bytes = 0
        self._received_bytes = 0  # of the request that is being received
        self._completed: list[ParsedRequest] = []
        self.is_between_requests = True
        self.is_done = False  # no further request is parsed
        self.error_response: Response | None = None  # set if a request is rejected

    def feed(self, data: bytes) -> list[ParsedRequest]:
        """The requests that these bytes complete.

        Between requests, the data must begin with a whole request line. It must end with the head, or with a line of
        the head: in the middle of a line, httptools calls `on_header` at different times.
        """
        self._completed = []
        if self.is_between_requests and (error := self._request_line_error(data)) is not None:
            self.reject(error)
            return []
        # The bytes beyond the limit are not parsed: the response must not depend on how the bytes arrive.
        allowed_bytes = self.allowed_bytes
        self._received_bytes += len(data)
        self._feed_parser(data if len(data) <= allowed_bytes else data[:allowed_bytes])
        if len(data) > allowed_bytes and self.is_mid_request:
            self.reject(BODY_TOO_LARGE if self._head.is_complete else HEADERS_TOO_LARGE)
        return self._completed

    def _feed_parser(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.is_done = True  # answer the request, ignore the upgrade
        except httptools.HttpParserCallbackError as exc:
            self.reject(_error_response_from(exc))
        except httptools.HttpParserInvalidMethodError:
            self.reject(self._response_to_unknown_method(data))
        except httptools.HttpParserError:
            if not self.is_done:  # bytes after "Connection: close" are ignored
                self.reject(BAD_REQUEST)

    def _request_line_error(self, data: bytes) -> Response | None:
        line, limit = _REQUEST_LINE.match(data), self._limits.request_line_bytes
        self._head = _RequestHead()
        self._head.is_head_method = data.startswith(b"HEAD ")
        self._received_bytes = 0
        if line is None:
            is_too_long = b"\n" not in data[: limit + len("\r\n")] and len(data) > limit
            return URI_TOO_LONG if is_too_long and METHOD_CHAR.match(data) else BAD_REQUEST
        if len(line[0].rstrip()) > limit:
            return URI_TOO_LONG
        return None if line[3] in _SUPPORTED_VERSIONS else VERSION_NOT_SUPPORTED

    @property
    def allowed_bytes(self) -> int:
        """How many more bytes the request that is being received may have, whatever they are."""
        limits = self._limits
        body_bytes = _MAX_RAW_BYTES_PER_BODY_BYTE * limits.body_bytes if self._head.is_complete else 0
        return limits.head_bytes + body_bytes - self._received_bytes

    @property
    def is_mid_request(self) -> bool:
        return not (self.is_between_requests or self.is_done)

    @property
    def is_head_request(self) -> bool:
        """True if the method is HEAD, so that an error response has no body."""
        return self._head.is_head_method

    @property
    def is_receiving_head(self) -> bool:
        return self.is_mid_request and not self._head.is_complete

    @property
    def missing_body_bytes(self) -> int | None:
        """Of the request that is being received; None if they are not known."""
        return None if self._head.is_chunked else self._head.body_bytes - self._body_bytes

    def take_continue(self) -> bool:
        """True once per request, if the client waits for `100 Continue` before it sends the body."""
        is_waiting = self._head.is_complete and self._head.wants_continue and self.is_mid_request
        if is_waiting:
            self._head.wants_continue = False
        return is_waiting

    def reject(self, response: Response) -> None:
        self.is_done = True
        self.error_response = response

    def _response_to_unknown_method(self, data: bytes) -> Response:
        """By the request line alone: the headers may not be here yet."""
        line = _REQUEST_LINE.match(data)
        if line is None:
            return BAD_REQUEST
        target = self._resolve(line[1].decode("ascii"), line[2])
        return METHOD_NOT_ALLOWED if isinstance(target, OperatorRequest) else self._cache.current_response(target)

    def _resolve(self, method: str, raw_target: bytes) -> ResolvedRequest | OperatorRequest:
        authority, origin_form = _split_target(raw_target)
        path, _, query = origin_form.partition(b"?")
        if self._mount.app is not None and self._mount.app.matches(path):
            headers = self._head.headers if authority is None else {**self._head.headers, b"host": authority}
            return OperatorRequest(method, path, query, headers)
        return self._cache.resolve(method, path, query, self._head.headers.get(b"origin", b""))

    # ---- called by httptools

    def on_message_begin(self) -> None:
        self.is_between_requests = False
        self._head = _RequestHead()
        self._body_bytes = 0

    def on_url(self, part: bytes) -> None:
        head, method = self._head, self._parser.get_method()
        head.url += part
        head.is_head_method = method == b"HEAD"
        line_bytes = len(method) + len(head.url) + len("  HTTP/1.1")
        if line_bytes > self._limits.request_line_bytes:
            raise _RequestError(URI_TOO_LONG)
        head.byte_count = line_bytes + len("\r\n\r\n")  # the ends of the line and of the head

    def on_header(self, name: bytes, value: bytes) -> None:
        head, limits = self._head, self._limits
        head.header_count += 1
        head.byte_count += len(name) + len(value) + len(": \r\n")
        if head.header_count > limits.headers or head.byte_count > limits.head_bytes:
            raise _RequestError(HEADERS_TOO_LARGE)
        if head.is_complete:
            return  # a trailer
        name = name.lower()
        if name in RETAINED_HEADERS:
            head.headers[name] = b"%s, %s" % (head.headers[name], value) if name in head.headers else value
        match name:
            case b"host":
                head.host_count += 1
                if _HOST.fullmatch(value) is None:
                    raise _RequestError(INVALID_HOST)
            case b"content-length":  # httptools accepts only digits, and spaces after them
                length = head.body_bytes = int(value.rstrip().lstrip(b"0") or b"0")
                head.has_body = length > 0
                if length > limits.body_bytes:
                    raise _RequestError(BODY_TOO_LARGE)
            case b"transfer-encoding":
                head.has_body = head.is_chunked = True
            case b"expect":
                head.wants_continue = value.lower() == b"100-continue"
            case _:
                pass

    def on_headers_complete(self) -> None:
        self._head.is_complete = True
        version = self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise _RequestError(VERSION_NOT_SUPPORTED)
        if version == "1.0":
            self._head.wants_continue = False  # HTTP/1.0 has no interim responses
        elif self._head.host_count != 1:
            raise _RequestError(HOST_REQUIRED)

    def on_body(self, part: bytes) -> None:
        self._body_bytes += len(part)
        if self._body_bytes > self._limits.body_bytes:
            raise _RequestError(BODY_TOO_LARGE)

    def on_message_complete(self) -> None:
        parser = self._parser
        # After chunks the connection closes: where they end is the most frequent disagreement between proxy and server.
        keep_alive = parser.should_keep_alive() and not parser.should_upgrade() and not self._head.is_chunked
        target = self._resolve(parser.get_method().decode("ascii"), self._head.url)
        self._completed.append(
            ParsedRequest(target, keep_alive, parser.get_http_version() == "1.0", self._head.has_body)
        )
        self.is_between_requests = True
        self.is_done = not keep_alive


def _error_response_from(exc: BaseException) -> Response:
    cause = exc.__context__
    if isinstance(cause, _RequestError):
        return cause.response
    log.error("internal error while parsing a request", exc_info=cause, extra={"event": "internal_error"})
    return INTERNAL_ERROR


def _split_target(raw_target: bytes) -> tuple[bytes | None, bytes]:
    """Split a target in absolute form into authority, and path with query. Any other form is returned unchanged.

    The authority of the target takes precedence over the Host header: RFC 9112, 3.2.2.
    """
    if raw_target.startswith(b"/") or b"://" not in raw_target:
        return None, raw_target
    try:
        url = httptools.parse_url(raw_target)
    except httptools.HttpParserInvalidURLError:
        return None, raw_target
    authority = _AUTHORITY_END.split(raw_target.partition(b"://")[2], maxsplit=1)[0]
    return authority, (url.path or b"/") + (b"?" + url.query if url.query else b"")
