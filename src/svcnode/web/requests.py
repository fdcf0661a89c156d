"""Reads requests through httptools, and holds them to the limits."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import httptools

from svcnode.spec import INTERNAL_ERROR, METHOD_NOT_ALLOWED, Answer, error_answer
from svcnode.web.visits import KEPT_HEADERS, Visit

if TYPE_CHECKING:
    from svcnode.web.answers import Target
    from svcnode.web.visits import Door
    from svcnode.web.wire import WireServer

log = logging.getLogger("svcnode.web")

BAD_REQUEST = error_answer(400, "Bad request: not well-formed HTTP/1.1")
BAD_HOST = error_answer(400, "Bad request: HTTP/1.1 asks for exactly one Host header")
STRANGE_HOST = error_answer(400, "Bad request: what stands in the Host header is not a host")
BODY_TOO_LARGE = error_answer(413, "Content too large: no endpoint takes a body")
LINE_TOO_LONG = error_answer(414, "URI too long")
HEAD_TOO_LARGE = error_answer(431, "Request header fields too large")
VERSION_NOT_SUPPORTED = error_answer(505, "HTTP version not supported; use HTTP/1.1 or HTTP/1.0")

_WIRE_BYTES_PER_BODY_BYTE = 8  # more than the smallest chunks need; the rest is padding, to fill our memory
# RFC 3986, 3.2.2 and 3.2.3; it may be empty, where the target has no authority.
_HOST = re.compile(rb"(\[[0-9A-Za-z:.%]*\]|[0-9A-Za-z._~%!$&'()*+,;=-]*)(:[0-9]*)?")
_AFTER_AUTHORITY = re.compile(rb"[/?#]")
# Request lines that are well-formed, but for a version or a method that the parser has never heard of.
_OTHER_VERSION = re.compile(rb"[A-Z]{1,32} \S{1,4096} HTTP/(?!1\.[01]\r?\n)[0-9]\.[0-9]\r?\n")
_REQUEST_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) (\S{1,4096}) HTTP/1\.[01]\r?\n")


@dataclass(frozen=True, slots=True)
class Asked:
    """A whole request that waits for its answer."""

    target: Target | Visit
    stays_open: bool
    is_http_1_0: bool
    has_body: bool


class _RefusedError(Exception):
    """Raised in a callback of the parser to end the reading."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.code)
        self.answer = answer


class _Head:
    """What is kept of a request while it arrives."""

    __slots__ = (
        "byte_count",
        "has_body",
        "header_count",
        "host_count",
        "is_complete",
        "is_head",
        "kept",
        "url",
        "wants_continue",
    )

    def __init__(self) -> None:
        self.url = b""
        self.kept: dict[bytes, bytes] = {}
        self.byte_count = 0
        self.header_count = 0
        self.host_count = 0
        self.has_body = False
        self.wants_continue = False
        self.is_head = False  # in the other sense: the method
        self.is_complete = False


class RequestReader:
    """Bytes in, whole requests out, for one connection. Its `on_…` methods are for the parser to call."""

    __slots__ = (
        "_arrived_bytes",
        "_body_bytes",
        "_completed",
        "_door",
        "_head",
        "_parser",
        "_server",
        "is_between_requests",
        "is_done",
        "refusal",
    )

    def __init__(self, server: WireServer, door: Door) -> None:
        self._server = server
        self._door = door
        self._parser = httptools.HttpRequestParser(self)
        self._head = _Head()
        self._body_bytes = 0
        self._arrived_bytes = 0  # of the request that is arriving
        self._completed: list[Asked] = []
        self.is_between_requests = True
        self.is_done = False  # nothing more is read as a request
        self.refusal: Answer | None = None  # why, where the client is to be told

    def read(self, data: bytes) -> list[Asked]:
        """The requests that are whole with these bytes."""
        was_between_requests = self.is_between_requests
        self._completed = []
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self.is_done = True  # the request stands; the other protocol is not spoken here
        except httptools.HttpParserCallbackError as exc:
            self.refuse(_refusal_behind(exc))
        except httptools.HttpParserInvalidMethodError:
            is_first_in_data = was_between_requests and not self._completed
            self.refuse(self._answer_to_strange_method(data) if is_first_in_data else BAD_REQUEST)
        except httptools.HttpParserError:
            if not self.is_done:  # what follows a "Connection: close" is of no concern
                is_other_version = was_between_requests and not self._completed and _OTHER_VERSION.match(data)
                self.refuse(VERSION_NOT_SUPPORTED if is_other_version else BAD_REQUEST)
        if self.is_in_the_middle:
            self._limit_what_arrives(len(data))
        return self._completed

    @property
    def is_in_the_middle(self) -> bool:
        return not (self.is_between_requests or self.is_done)

    @property
    def wants_no_body(self) -> bool:
        """Whether what is arriving asks for a head alone, so that a refusal has no body either."""
        return self._head.is_head

    def takes_invitation(self) -> bool:
        """Whether the client waits to be told to go on with its body; once for each request."""
        is_waiting = self._head.is_complete and self._head.wants_continue and self.is_in_the_middle
        if is_waiting:
            self._head.wants_continue = False
        return is_waiting

    def refuse(self, answer: Answer) -> None:
        self.is_done = True
        self.refusal = answer

    def _limit_what_arrives(self, byte_count: int) -> None:
        """No more of a request than its limits could ever need."""
        if not self._completed:  # otherwise it is not known how many of these bytes are its own
            self._arrived_bytes += byte_count
        head, limits = self._head, self._server.limits
        body_bytes = _WIRE_BYTES_PER_BODY_BYTE * limits.body_bytes if head.is_complete else 0
        if self._arrived_bytes > limits.head_bytes + body_bytes:
            self.refuse(BODY_TOO_LARGE if head.is_complete else HEAD_TOO_LARGE)

    def _answer_to_strange_method(self, data: bytes) -> Answer:
        found = _REQUEST_LINE.match(data)
        if found is None:
            return BAD_REQUEST
        method, raw_target = found.groups()
        target = self._target(method.decode("ascii"), raw_target)
        if not isinstance(target, Visit):
            return self._server.answers.answer(target)
        refusal = self._door.surface and self._door.surface.refusal(self._with_its_headers(target, data))
        return refusal or METHOD_NOT_ALLOWED

    def _with_its_headers(self, visit: Visit, data: bytes) -> Visit:
        """They say who asks; the parser reads them once the method is one that it knows."""
        known = RequestReader(self._server, self._door).read(b"GET" + data[len(visit.method) :])
        first = known[0].target if known else None
        return replace(first, method=visit.method) if isinstance(first, Visit) else visit

    def _target(self, method: str, raw_target: bytes) -> Target | Visit:
        authority, origin_form = _split(raw_target)
        path, _, query = origin_form.partition(b"?")
        if self._door.surface is not None and self._door.surface.takes(path):
            headers = self._head.kept if authority is None else {**self._head.kept, b"host": authority}
            return Visit(method, path, query, headers)
        return self._server.answers.target(method, path, query)

    # ---- called by the parser

    def on_message_begin(self) -> None:
        self.is_between_requests = False
        self._head = _Head()
        self._body_bytes = 0
        self._arrived_bytes = 0

    def on_url(self, part: bytes) -> None:
        head, method = self._head, self._parser.get_method()
        head.url += part
        head.is_head = method == b"HEAD"
        line_bytes = len(method) + len(head.url) + len("  HTTP/1.1")
        if line_bytes > self._server.limits.request_line_bytes:
            raise _RefusedError(LINE_TOO_LONG)
        head.byte_count = line_bytes + len("\r\n\r\n")  # its own end and that of the head

    def on_header(self, name: bytes, value: bytes) -> None:
        head, limits = self._head, self._server.limits
        head.header_count += 1
        head.byte_count += len(name) + len(value) + len(": \r\n")
        if head.header_count > limits.headers or head.byte_count > limits.head_bytes:
            raise _RefusedError(HEAD_TOO_LARGE)
        if head.is_complete:
            return  # a trailer
        name = name.lower()
        if name in KEPT_HEADERS:
            head.kept[name] = b"%s, %s" % (head.kept[name], value) if name in head.kept else value
        match name:
            case b"host":
                head.host_count += 1
                if _HOST.fullmatch(value) is None:
                    raise _RefusedError(STRANGE_HOST)
            case b"content-length":  # the parser lets only digits through
                length = int(value.lstrip(b"0") or b"0")
                head.has_body = length > 0
                if length > limits.body_bytes:
                    raise _RefusedError(BODY_TOO_LARGE)
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
            raise _RefusedError(VERSION_NOT_SUPPORTED)
        if version == "1.0":
            self._head.wants_continue = False  # it has no such thing
        elif self._head.host_count != 1:
            raise _RefusedError(BAD_HOST)

    def on_body(self, part: bytes) -> None:
        self._body_bytes += len(part)
        if self._body_bytes > self._server.limits.body_bytes:
            raise _RefusedError(BODY_TOO_LARGE)

    def on_message_complete(self) -> None:
        parser = self._parser
        stays_open = parser.should_keep_alive() and not parser.should_upgrade()
        target = self._target(parser.get_method().decode("ascii"), self._head.url)
        self._completed.append(Asked(target, stays_open, parser.get_http_version() == "1.0", self._head.has_body))
        self.is_between_requests = True
        self.is_done = not stays_open


def _refusal_behind(exc: BaseException) -> Answer:
    cause = exc.__context__
    if isinstance(cause, _RefusedError):
        return cause.answer
    log.error("reading a request failed", exc_info=cause)
    return INTERNAL_ERROR


def _split(raw_target: bytes) -> tuple[bytes | None, bytes]:
    """The authority of a target in absolute form, and its path and query; any other form has none, and stays as it is.

    Whoever names an authority there means that one, whatever stands in Host: RFC 9112, 3.2.2.
    """
    if raw_target.startswith(b"/") or b"://" not in raw_target:
        return None, raw_target
    try:
        url = httptools.parse_url(raw_target)
    except httptools.HttpParserInvalidURLError:
        return None, raw_target
    authority = _AFTER_AUTHORITY.split(raw_target.partition(b"://")[2], maxsplit=1)[0]
    return authority, (url.path or b"/") + (b"?" + url.query if url.query else b"")
