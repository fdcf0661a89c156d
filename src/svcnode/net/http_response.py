"""One HTTP answer, gathered as it comes: a small protocol over httptools that waits for no more than is needed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import httptools

from svcnode.core.strict_json import json_error_detail, parse_strict_json

if TYPE_CHECKING:
    from svcnode.core.model import Verdict

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 1024 * 1024
# Head, body, and what holds the pieces of a body together. Read in parts, so that others get their turn.
MAX_RESPONSE_BYTES = MAX_HEAD_BYTES + 2 * MAX_BODY_BYTES
MAX_TRAILERS = 100
_CHUNK_BYTES = 64 * 1024
# How much of an answer is waited for. Without the body, the head is the whole answer.
Needs = Literal["status", "head", "body"]


@dataclass(frozen=True, slots=True)
class InvalidJson:
    reason: str = ""  # in words, where it looks like JSON and others may take it for some

    @property
    def suffix(self) -> str:
        """Of a sentence that says that it is none."""
        return f": {self.reason}" if self.reason else ""


INVALID_JSON = InvalidJson()


class HttpProtocolError(OSError):
    """What came back is not an HTTP answer that can be used; the text says why."""


class HttpResponse(NamedTuple):  # made for every look, and a frozen dataclass takes three times as long to make
    status: int
    headers: dict[str, str]  # by lower-case name
    body: bytes
    certificate_verdict: Verdict | None = None  # what the server's certificate gives to say

    def document(self) -> Any:  # noqa: ANN401  whatever JSON can hold
        """The body as JSON, or a InvalidJson."""
        try:
            return parse_strict_json(self.body)
        except ValueError as exc:
            return InvalidJson(json_error_detail(self.body, exc))


class StatusProtocol(asyncio.Protocol):
    """Gathers the status of one answer; httptools calls back, while it parses, what a client has a method for."""

    __slots__ = (
        "__weakref__",
        "_headers",
        "_is_head_complete",
        "_parser",
        "_received_bytes",
        "collects_body",
        "is_idle",
        "response",
    )

    def __init__(self) -> None:
        self.collects_body = False
        self.is_idle = False  # ready for a next request
        self._reset()

    def _reset(self) -> None:
        self.response: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._received_bytes = 0
        self._is_head_complete = False

    @property
    def has_received(self) -> bool:
        """Whether anything has come back since the last request."""
        return self._received_bytes > 0

    def begin_next_request(self) -> bool:
        """Returns whether the connection can carry another request."""
        is_usable, self.is_idle = self.is_idle, False
        if is_usable:
            self._reset()
        return is_usable

    def data_received(self, data: bytes) -> None:
        self.is_idle = False
        while data and not self.response.done():
            room = _CHUNK_BYTES if self._is_head_complete else MAX_HEAD_BYTES - self._received_bytes
            part, data = data[:room], data[room:]
            self._received_bytes += len(part)
            self._feed(part)
            if not room:
                self._fail(f"the head of its answer is larger than {MAX_HEAD_BYTES // 1024} KiB")
            if self._received_bytes > MAX_RESPONSE_BYTES:
                self._on_too_large()

    def _on_too_large(self) -> None:
        self.is_idle = False
        self._fail(f"it said more than {MAX_RESPONSE_BYTES // 1024} KiB in one look")

    def _feed(self, data: bytes) -> None:
        if self.response.done():
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._complete()
        except httptools.HttpParserError:
            self.is_idle = False
            self._fail("what came back is not HTTP")

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_idle = False
        if self.response.done():
            return
        if self._is_head_complete and exc is None and not self._headers.keys() & _FRAMING_HEADERS:
            self._complete()  # a body that ends with the connection
        elif isinstance(exc, OSError):
            self._set_error(exc)
        else:
            self._fail("it closed the connection before its answer was whole")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # 100 Continue and its like: the answer is still to come
            self._headers.clear()
        elif not self.response.done():
            self._is_head_complete = True
            self._on_head(status)

    def _on_head(self, status: int) -> None:
        self.response.set_result(HttpResponse(status, self._headers, b""))

    def _complete(self) -> None:
        if not self.response.done():
            self._on_head(self._parser.get_status_code())

    def _fail(self, why: str) -> None:
        if not self.response.done():
            self._set_error(HttpProtocolError(why))

    def _set_error(self, exc: OSError) -> None:
        self.response.set_exception(exc)
        self.response.exception()  # taken note of: a look that was cut off waits for it no more


_FRAMING_HEADERS = {"content-length", "transfer-encoding"}


class HeadersProtocol(StatusProtocol):
    """Gathers the headers as well, which costs a call for each of them."""

    __slots__ = ()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")


class BodyProtocol(HeadersProtocol):
    """Reads to the end of the body, and gathers it where it is needed."""

    __slots__ = ("_body", "_trailers")

    def _reset(self) -> None:
        super()._reset()
        self._body = bytearray()
        self._trailers = 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_head_complete:
            super().on_header(name, value)
            return
        self._trailers += 1
        if self._trailers > MAX_TRAILERS:
            self._fail("what follows the body of its answer has no end")

    def _on_too_large(self) -> None:
        if self.collects_body or not self._is_head_complete:
            super()._on_too_large()
        else:  # all that was needed is known, but the connection cannot be used again
            self.is_idle = False
            self._complete()

    def _on_head(self, status: int) -> None:
        pass

    def on_body(self, part: bytes) -> None:
        if not self.collects_body:
            return
        self._body += part
        if len(self._body) > MAX_BODY_BYTES:
            self._fail(f"the body of its answer is larger than {MAX_BODY_BYTES // 1024} KiB")

    def on_message_begin(self) -> None:
        if self.response.done():
            self.is_idle = False  # it says more than it was asked, so what comes next could be the answer to anything

    def on_message_complete(self) -> None:
        if self._is_head_complete and not self.response.done():
            self.is_idle = self._parser.should_keep_alive()
            self._complete()

    def _complete(self) -> None:
        if not self.response.done():
            self.response.set_result(HttpResponse(self._parser.get_status_code(), self._headers, bytes(self._body)))


PROTOCOLS: dict[Needs, type[StatusProtocol]] = {"status": StatusProtocol, "head": HeadersProtocol, "body": BodyProtocol}
