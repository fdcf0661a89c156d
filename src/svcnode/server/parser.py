"""Parses requests with httptools and enforces the limits.

The parser buffers the received bytes and passes them on in pieces that do not depend on how they were divided into
segments: whole lines of one head, or bytes of one body. So neither does the response.
"""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, NamedTuple

import httptools

from svcnode.api.app import RETAINED_HEADERS
from svcnode.api.spec import INTERNAL_ERROR, Request, Response, error_response

if TYPE_CHECKING:
    from svcnode.server.state import ServerLimits

log = logging.getLogger("svcnode.server")

BAD_REQUEST = error_response(400, "Bad request: not well-formed HTTP/1.1")
HOST_REQUIRED = error_response(400, "Bad request: HTTP/1.1 requires exactly one Host header")
INVALID_HOST = error_response(400, "Bad request: invalid Host header")
BODY_TOO_LARGE = error_response(413, "Content too large")
URI_TOO_LONG = error_response(414, "URI too long")
HEADERS_TOO_LARGE = error_response(431, "Request header fields too large")
VERSION_NOT_SUPPORTED = error_response(505, "HTTP version not supported; use HTTP/1.1 or HTTP/1.0")

END_OF_HEAD = b"\r\n\r\n"
_END_OF_LINES = re.compile(rb"\n\r?\n")
_EMPTY_LINE = re.compile(rb"\r?\n")
_EMPTY_LINES = re.compile(rb"(?:\r?\n)*")
_MAX_RAW_BYTES_PER_BODY_BYTE = 8  # enough for chunks of one byte; a client that sends more only fills memory
# RFC 3986, 3.2.2 and 3.2.3; empty if the target has no authority.
_HOST = re.compile(rb"(\[[0-9A-Za-z:.%]*\]|[0-9A-Za-z._~%!$&'()*+,;=-]*)(:[0-9]*)?")
_AUTHORITY_END = re.compile(rb"[/?#]")
_METHOD_CHAR = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]")  # RFC 9110, 5.6.2
_REQUEST_LINE = re.compile(_METHOD_CHAR.pattern.join((b"(", b"+)")) + rb" (\S+) HTTP/([0-9]\.[0-9])\r?\n")
_SUPPORTED_VERSIONS = (b"1.1", b"1.0")


class ParsedRequest(NamedTuple):
    """A complete request, or the line of a request with an unknown method, whose headers are not parsed."""

    request: Request
    connection: str  # the Connection header of the response; empty for keep-alive in HTTP/1.1, where it is the default
    has_known_method: bool = True
    cacheable_bytes: bytes | None = None  # the same bytes, between two requests, are always this request


class _RequestError(Exception):
    """Raised in a callback of httptools to stop parsing."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.code)
        self.response = response


class _IncomingRequest:
    """The request that is being received."""

    header_count = 0
    host_count = 0
    is_head_complete = False
    content_length = 0
    is_chunked = False
    wants_continue = False
    body_bytes = 0  # without the sizes of chunks
    body = b""  # what is kept of it
    received_bytes = 0  # in all
    piece_count = 0

    def __init__(self, method: bytes, target: bytes, version: bytes, *, head_bytes: int = 0) -> None:
        self.method = method
        self.target = target
        self.version = version
        self.headers: dict[bytes, bytes] = {}
        self.head_bytes = head_bytes


_NO_REQUEST = _IncomingRequest(b"", b"", b"")


class RequestParser:
    """Turns the bytes of one connection into requests. httptools calls the `on_…` methods."""

    __slots__ = (
        "_complete",
        "_data",
        "_incoming",
        "_kept_body_bytes",
        "_limits",
        "_parsed_to",
        "_parser",
        "is_between_requests",
    )

    def __init__(self, limits: ServerLimits, kept_body_bytes: int = 0) -> None:
        self._limits = limits
        self._kept_body_bytes = kept_body_bytes
        self._parser: httptools.HttpRequestParser | None = None  # many connections only send requests that are cached
        self._data = b""  # received; from `_parsed_to` on not yet parsed
        self._parsed_to = 0
        self.is_between_requests = True
        self._incoming = _NO_REQUEST
        self._complete: ParsedRequest | None = None

    def add(self, data: bytes) -> None:
        self._data = self._data[self._parsed_to :] + data if self._data else data
        self._parsed_to = 0

    @property
    def unparsed_bytes(self) -> int:
        return len(self._data) - self._parsed_to

    @property
    def is_mid_request(self) -> bool:
        return self.unparsed_bytes > 0 or not self.is_between_requests

    @property
    def is_head_method(self) -> bool:
        """True if the method is HEAD, so that an error response has no body."""
        return self._incoming.method == b"HEAD"

    def next_head(self) -> bytes | None:
        """The bytes of the next head, if it is here and no other request is being received."""
        end = self._data.find(END_OF_HEAD, self._parsed_to)
        return self._data[self._parsed_to : end + len(END_OF_HEAD)] if self.is_between_requests and end >= 0 else None

    def skip(self, byte_count: int) -> None:
        self._parsed_to += byte_count
        if not self.unparsed_bytes:
            self._data, self._parsed_to = b"", 0

    def next_request(self) -> ParsedRequest | Response | None:
        """The next request; the error response if it is invalid; None if more bytes must arrive first."""
        result = None
        while result is None and (end := self._end_of_next_piece()) is not None:
            piece = self._data[self._parsed_to : end]
            self.skip(len(piece))
            result = self._feed(piece)
        return result

    def take_continue(self) -> bool:
        """True once per request, if the client waits for `100 Continue` before it sends the body."""
        is_waiting = self._incoming.wants_continue and self._incoming.is_head_complete and not self.unparsed_bytes
        if is_waiting:
            self._incoming.wants_continue = False
        return is_waiting

    # ---- pieces

    def _end_of_next_piece(self) -> int | None:
        if self.is_between_requests:
            return self._end_of_new_head()
        data, start, incoming = self._data, self._parsed_to, self._incoming
        if not self.unparsed_bytes:
            return None
        if not incoming.is_head_complete:
            empty_line = _EMPTY_LINE.match(data, start)
            return self._end_of_lines() if empty_line is None else empty_line.end()
        missing_bytes = len(data) if incoming.is_chunked else incoming.content_length - incoming.body_bytes
        return min(len(data), start + missing_bytes)

    def _end_of_new_head(self) -> int | None:
        self.skip(len(_EMPTY_LINES.match(self._data, self._parsed_to)[0]))  # type: ignore[index]  # always matches
        data, start = self._data, self._parsed_to
        if data.find(b"\n", start) >= 0:
            return self._end_of_lines()
        is_too_long = len(data) - start > self._limits.request_line_bytes + len("\r")
        can_be_valid = data[start:] in (b"", b"\r") or _METHOD_CHAR.match(data, start)
        return len(data) if is_too_long or not can_be_valid else None

    def _end_of_lines(self) -> int | None:
        """The end of the head, or of its last whole line; the end of the data if the line is longer than allowed."""
        data, start = self._data, self._parsed_to
        if (found := _END_OF_LINES.search(data, start)) is not None:
            return found.end()
        if (end := data.rfind(b"\n", start) + 1) > 0:
            return end
        return len(data) if len(data) - start > self._allowed_bytes else None

    @property
    def _allowed_bytes(self) -> int:
        """How many more bytes the request that is being received may have, whatever they are."""
        limits, incoming = self._limits, self._incoming
        body_bytes = _MAX_RAW_BYTES_PER_BODY_BYTE * limits.body_bytes if incoming.is_head_complete else 0
        return limits.head_bytes + body_bytes - incoming.received_bytes

    def _start(self, data: bytes) -> Response | None:
        """Check the request line, which begins the data."""
        self._complete = None
        line, limit = _REQUEST_LINE.match(data), self._limits.request_line_bytes
        if line is None:
            self._incoming = _IncomingRequest(data.split(b" ", 1)[0], b"", b"")
            is_too_long = b"\n" not in data[: limit + len("\r\n")] and len(data) > limit
            return URI_TOO_LONG if is_too_long and _METHOD_CHAR.match(data) else BAD_REQUEST
        line_bytes = len(line[0].rstrip())
        self._incoming = _IncomingRequest(line[1], line[2], line[3], head_bytes=line_bytes + len("\r\n\r\n"))
        self.is_between_requests = False
        if line_bytes > limit:
            return URI_TOO_LONG
        return None if line[3] in _SUPPORTED_VERSIONS else VERSION_NOT_SUPPORTED

    def _feed(self, data: bytes) -> ParsedRequest | Response | None:
        if self.is_between_requests and (line_error := self._start(data)) is not None:
            return line_error
        # The bytes beyond the limit are not parsed: the response must not depend on how the bytes arrive.
        allowed_bytes = self._allowed_bytes
        self._incoming.received_bytes += len(data)
        self._incoming.piece_count += 1
        error = self._feed_httptools(data[:allowed_bytes])
        if self._complete is not None:
            # What follows in the data is ignored: it is after chunks or an upgrade, where the connection closes.
            complete = self._complete
            return complete._replace(cacheable_bytes=data) if self._is_cacheable(complete) else complete
        if error is None and len(data) > allowed_bytes:
            return BODY_TOO_LARGE if self._incoming.is_head_complete else HEADERS_TOO_LARGE
        return error

    def _is_cacheable(self, parsed: ParsedRequest) -> bool:
        has_body = self._incoming.is_chunked or self._incoming.content_length > 0
        return self._incoming.piece_count == 1 and not has_body and not parsed.connection

    def _feed_httptools(self, data: bytes) -> ParsedRequest | Response | None:
        """The error response, or a request with an unknown method."""
        if self._parser is None:
            self._parser = httptools.HttpRequestParser(self)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as exc:
            return _error_response_from(exc)
        except httptools.HttpParserInvalidMethodError:
            return ParsedRequest(self._request(), "close", has_known_method=False)
        except (httptools.HttpParserUpgrade, httptools.HttpParserError):
            return BAD_REQUEST  # an upgrade is ignored: its request is complete
        return None

    def _request(self) -> Request:
        incoming = self._incoming
        authority, origin_form = _split_target(incoming.target)
        path, _, query = origin_form.partition(b"?")
        headers = incoming.headers if authority is None else {**incoming.headers, b"host": authority}
        return Request(incoming.method.decode("ascii"), path, query, headers, incoming.body)

    # ---- called by httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        incoming, limits = self._incoming, self._limits
        incoming.header_count += 1
        incoming.head_bytes += len(name) + len(value) + len(": \r\n")
        if incoming.header_count > limits.headers or incoming.head_bytes > limits.head_bytes:
            raise _RequestError(HEADERS_TOO_LARGE)
        if incoming.is_head_complete:
            return  # a trailer
        name, headers = name.lower(), incoming.headers
        if name in RETAINED_HEADERS:
            headers[name] = b"%s, %s" % (headers[name], value) if name in headers else value
        match name:
            case b"host":
                incoming.host_count += 1
                if _HOST.fullmatch(value) is None:
                    raise _RequestError(INVALID_HOST)
            case b"content-length":  # httptools accepts only digits, and spaces after them
                incoming.content_length = int(value.rstrip().lstrip(b"0") or b"0")
                if incoming.content_length > limits.body_bytes:
                    raise _RequestError(BODY_TOO_LARGE)
            case b"transfer-encoding":
                incoming.is_chunked = True
            case b"expect":
                # HTTP/1.0 has no interim responses.
                incoming.wants_continue = value.lower() == b"100-continue" and incoming.version == b"1.1"
            case _:
                pass

    def on_headers_complete(self) -> None:
        self._incoming.is_head_complete = True
        if self._incoming.version == b"1.1" and self._incoming.host_count != 1:
            raise _RequestError(HOST_REQUIRED)

    def on_body(self, part: bytes) -> None:
        self._incoming.body_bytes += len(part)
        if self._incoming.body_bytes > self._limits.body_bytes:
            raise _RequestError(BODY_TOO_LARGE)
        if len(self._incoming.body) < self._kept_body_bytes:
            self._incoming.body = (self._incoming.body + part)[: self._kept_body_bytes]

    def on_message_complete(self) -> None:
        parser, incoming = self._parser, self._incoming
        if self._complete is not None or parser is None:
            return
        # After chunks the connection closes: where they end is the most frequent disagreement between proxy and server.
        keep_alive = parser.should_keep_alive() and not parser.should_upgrade() and not incoming.is_chunked
        connection = "close" if not keep_alive else "" if incoming.version == b"1.1" else "keep-alive"
        self._complete = ParsedRequest(self._request(), connection)
        self.is_between_requests = True


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
