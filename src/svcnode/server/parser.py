"""Reads requests through httptools, and holds them to the limits."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import httptools

from svcnode.api.app import RETAINED_HEADERS, OperatorRequest
from svcnode.api.spec import INTERNAL_ERROR, METHOD_NOT_ALLOWED, Response, error_response

if TYPE_CHECKING:
    from svcnode.api.app import Mount
    from svcnode.server.response_cache import ResolvedRequest
    from svcnode.server.server import HttpServer

log = logging.getLogger("svcnode.server")

BAD_REQUEST = error_response(400, "Bad request: not well-formed HTTP/1.1")
HOST_REQUIRED = error_response(400, "Bad request: HTTP/1.1 asks for exactly one Host header")
INVALID_HOST = error_response(400, "Bad request: what stands in the Host header is not a host")
BODY_TOO_LARGE = error_response(413, "Content too large: no endpoint takes a body")
URI_TOO_LONG = error_response(414, "URI too long")
HEADERS_TOO_LARGE = error_response(431, "Request header fields too large")
VERSION_NOT_SUPPORTED = error_response(505, "HTTP version not supported; use HTTP/1.1 or HTTP/1.0")

_MAX_RAW_BYTES_PER_BODY_BYTE = 8  # more than the smallest chunks need; the rest is padding, to fill our memory
# RFC 3986, 3.2.2 and 3.2.3; it may be empty, where the target has no authority.
_HOST = re.compile(rb"(\[[0-9A-Za-z:.%]*\]|[0-9A-Za-z._~%!$&'()*+,;=-]*)(:[0-9]*)?")
_AUTHORITY_END = re.compile(rb"[/?#]")
# Request lines that are well-formed, but for a version or a method that the parser has never heard of.
_OTHER_VERSION = re.compile(rb"[A-Z]{1,32} \S{1,4096} HTTP/(?!1\.[01]\r?\n)[0-9]\.[0-9]\r?\n")
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) (\S{1,4096}) HTTP/1\.[01]\r?\n")


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A whole request that waits for its answer."""

    target: ResolvedRequest | OperatorRequest
    keep_alive: bool
    is_http_1_0: bool
    has_body: bool


class _RequestError(Exception):
    """Raised in a callback of the parser to end the reading."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.code)
        self.response = response


class _RequestHead:
    """What is kept of a request while it arrives."""

    __slots__ = (
        "byte_count",
        "has_body",
        "header_count",
        "headers",
        "host_count",
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
        self.wants_continue = False
        self.is_head_method = False  # in the other sense: the method
        self.is_complete = False


class RequestParser:
    """Bytes in, whole requests out, for one connection. Its `on_…` methods are for the parser to call."""

    __slots__ = (
        "_body_bytes",
        "_completed",
        "_head",
        "_mount",
        "_parser",
        "_received_bytes",
        "_server",
        "error_response",
        "is_between_requests",
        "is_done",
    )

    def __init__(self, server: HttpServer, mount: Mount) -> None:
        self._server = server
        self._mount = mount
        self._parser = httptools.HttpRequestParser(self)
        self._head = _RequestHead()
        self._body_bytes = 0
        self._received_bytes = 0  # of the request that is arriving
        self._completed: list[ParsedRequest] = []
        self.is_between_requests = True
        self.is_done = False  # nothing more is read as a request
        self.error_response: Response | None = None  # why, where the client is to be told

    def feed(self, data: bytes) -> list[ParsedRequest]:
        """The requests that are whole with these bytes."""
        was_between_requests = self.is_between_requests
        self._completed = []
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.is_done = True  # the request stands; the other protocol is not spoken here
        except httptools.HttpParserCallbackError as exc:
            self.reject(_error_response_from(exc))
        except httptools.HttpParserInvalidMethodError:
            is_first_in_data = was_between_requests and not self._completed
            self.reject(self._response_to_unknown_method(data) if is_first_in_data else BAD_REQUEST)
        except httptools.HttpParserError:
            if not self.is_done:  # what follows a "Connection: close" is of no concern
                is_other_version = was_between_requests and not self._completed and _OTHER_VERSION.match(data)
                self.reject(VERSION_NOT_SUPPORTED if is_other_version else BAD_REQUEST)
        if self.is_mid_request:
            self._enforce_size_limits(len(data))
        return self._completed

    @property
    def is_mid_request(self) -> bool:
        return not (self.is_between_requests or self.is_done)

    @property
    def is_head_request(self) -> bool:
        """Whether what is arriving asks for a head alone, so that a refusal has no body either."""
        return self._head.is_head_method

    def take_continue(self) -> bool:
        """Whether the client waits to be told to go on with its body; once for each request."""
        is_waiting = self._head.is_complete and self._head.wants_continue and self.is_mid_request
        if is_waiting:
            self._head.wants_continue = False
        return is_waiting

    def reject(self, response: Response) -> None:
        self.is_done = True
        self.error_response = response

    def _enforce_size_limits(self, byte_count: int) -> None:
        """No more of a request than its limits could ever need."""
        if not self._completed:  # otherwise it is not known how many of these bytes are its own
            self._received_bytes += byte_count
        head, limits = self._head, self._server.limits
        body_bytes = _MAX_RAW_BYTES_PER_BODY_BYTE * limits.body_bytes if head.is_complete else 0
        if self._received_bytes > limits.head_bytes + body_bytes:
            self.reject(BODY_TOO_LARGE if head.is_complete else HEADERS_TOO_LARGE)

    def _response_to_unknown_method(self, data: bytes) -> Response:
        found = _REQUEST_LINE.match(data)
        if found is None:
            return BAD_REQUEST
        method, raw_target = found.groups()
        target = self._target(method.decode("ascii"), raw_target)
        if not isinstance(target, OperatorRequest):
            return self._server.cache.current_response(target)
        refusal = self._mount.app and self._mount.app.rejection(self._with_headers(target, data))
        return refusal or METHOD_NOT_ALLOWED

    def _with_headers(self, request: OperatorRequest, data: bytes) -> OperatorRequest:
        """They say who asks; the parser reads them once the method is one that it knows."""
        known = RequestParser(self._server, self._mount).feed(b"GET" + data[len(request.method) :])
        first = known[0].target if known else None
        return replace(first, method=request.method) if isinstance(first, OperatorRequest) else request

    def _target(self, method: str, raw_target: bytes) -> ResolvedRequest | OperatorRequest:
        authority, origin_form = _split_target(raw_target)
        path, _, query = origin_form.partition(b"?")
        if self._mount.app is not None and self._mount.app.matches(path):
            headers = self._head.headers if authority is None else {**self._head.headers, b"host": authority}
            return OperatorRequest(method, path, query, headers)
        return self._server.cache.resolve(method, path, query)

    # ---- called by the parser

    def on_message_begin(self) -> None:
        self.is_between_requests = False
        self._head = _RequestHead()
        self._body_bytes = 0
        self._received_bytes = 0

    def on_url(self, part: bytes) -> None:
        head, method = self._head, self._parser.get_method()
        head.url += part
        head.is_head_method = method == b"HEAD"
        line_bytes = len(method) + len(head.url) + len("  HTTP/1.1")
        if line_bytes > self._server.limits.request_line_bytes:
            raise _RequestError(URI_TOO_LONG)
        head.byte_count = line_bytes + len("\r\n\r\n")  # its own end and that of the head

    def on_header(self, name: bytes, value: bytes) -> None:
        head, limits = self._head, self._server.limits
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
            case b"content-length":  # the parser lets only digits through
                length = int(value.lstrip(b"0") or b"0")
                head.has_body = length > 0
                if length > limits.body_bytes:
                    raise _RequestError(BODY_TOO_LARGE)
            case b"transfer-encoding":
                head.has_body = True
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
            self._head.wants_continue = False  # it has no such thing
        elif self._head.host_count != 1:
            raise _RequestError(HOST_REQUIRED)

    def on_body(self, part: bytes) -> None:
        self._body_bytes += len(part)
        if self._body_bytes > self._server.limits.body_bytes:
            raise _RequestError(BODY_TOO_LARGE)

    def on_message_complete(self) -> None:
        parser = self._parser
        stays_open = parser.should_keep_alive() and not parser.should_upgrade()
        target = self._target(parser.get_method().decode("ascii"), self._head.url)
        self._completed.append(
            ParsedRequest(target, stays_open, parser.get_http_version() == "1.0", self._head.has_body)
        )
        self.is_between_requests = True
        self.is_done = not stays_open


def _error_response_from(exc: BaseException) -> Response:
    cause = exc.__context__
    if isinstance(cause, _RequestError):
        return cause.response
    log.error("reading a request failed", exc_info=cause)
    return INTERNAL_ERROR


def _split_target(raw_target: bytes) -> tuple[bytes | None, bytes]:
    """The authority of a target in absolute form, and its path and query; any other form has none, and stays as it is.

    Whoever names an authority there means that one, whatever stands in Host: RFC 9112, 3.2.2.
    """
    if raw_target.startswith(b"/") or b"://" not in raw_target:
        return None, raw_target
    try:
        url = httptools.parse_url(raw_target)
    except httptools.HttpParserInvalidURLError:
        return None, raw_target
    authority = _AUTHORITY_END.split(raw_target.partition(b"://")[2], maxsplit=1)[0]
    return authority, (url.path or b"/") + (b"?" + url.query if url.query else b"")
