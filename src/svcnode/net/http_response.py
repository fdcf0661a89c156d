"""Receives one HTTP/1.1 response with httptools. It waits only for the parts that the caller needs.

A few deviations that common clients accept are accepted: lines that end with LF only, a repeated `Content-Length` with
one value, and a compressed body although none was asked for.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from dataclasses import dataclass
from json import detect_encoding
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import httptools

from svcnode.core.codes import ReasonCode
from svcnode.core.strict_json import json_error_detail, parse_strict_json
from svcnode.net.os_errors import CodedOSError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcnode.core.model import Verdict

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 1024 * 1024  # unless a request allows more; of a compressed body always
ENOUGH_BODY_BYTES = 64 * 1024  # of a body that is not kept: a server that sends so much does not hang
MAX_TRAILERS = 100
_CHUNK_BYTES = 64 * 1024  # parsed at once
_MAX_GZIP_MEMBERS = 100
_MAX_REPAIRS = 100  # parts in which an irregular head may arrive
# The part of a response to wait for.
Needs = Literal["status", "head", "end", "body"]


@dataclass(frozen=True, slots=True)
class InvalidJson:
    """The body is not JSON."""

    reason: str = ""  # set if the body looks like JSON

    @property
    def suffix(self) -> str:
        """The reason as the end of a message."""
        return f": {self.reason}" if self.reason else ""


INVALID_JSON = InvalidJson()


class HttpProtocolError(CodedOSError):
    """The response is not HTTP, not complete or too large."""


class Http2ResponseError(HttpProtocolError):
    """The server speaks HTTP/2 only."""


class HttpResponse(NamedTuple):  # created in every check; creating a frozen dataclass takes three times as long
    status: int
    headers: dict[str, str]  # by lower-case name
    body: bytes
    certificate_verdict: Verdict | None = None  # replaces `ready`; see TlsOptions.certificate_verdict

    def document(self) -> Any:  # noqa: ANN401  any JSON value
        """The body as JSON, or an `InvalidJson`. JSON is UTF-8 (RFC 8259); most clients read no other encoding."""
        encoding = detect_encoding(self.body)
        if not encoding.startswith("utf-8"):
            return InvalidJson(f"encoded as {encoding[: len('utf-16')].upper()}, not UTF-8")
        try:
            return parse_strict_json(self.body)
        except ValueError as exc:
            return InvalidJson(json_error_detail(self.body, exc))


class ResponseProtocol(asyncio.Protocol):
    """Receives one response after the other. The parser is in the subclasses."""

    __slots__ = ("__weakref__", "_headers", "_received_bytes", "collects_body", "is_idle", "max_body_bytes", "response")

    def __init__(self) -> None:
        self.collects_body = False
        self.max_body_bytes = MAX_BODY_BYTES
        self.is_idle = False  # the connection can carry another request
        self._reset()

    def _reset(self) -> None:
        self.response: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()
        self._headers: dict[str, str] = {}
        self._received_bytes = 0

    @property
    def has_received(self) -> bool:
        """Whether any byte was received since the last request."""
        return self._received_bytes > 0

    def begin_next_request(self) -> bool:
        """Return False if the connection cannot carry another request."""
        is_usable, self.is_idle = self.is_idle, False
        if is_usable:
            self._reset()
        return is_usable

    def send_request(self, transport: asyncio.Transport, headers: Sequence[tuple[str, str]], body: bytes) -> None:
        """For HTTP/2, whose requests are more than bytes."""
        raise NotImplementedError  # HTTP/1.1 sends the bytes of the request itself

    def _set_response(self, status: int, body: bytes) -> None:
        if body and (encoding := self._headers.get("content-encoding")):
            try:
                body = decode_body(encoding, body)
            except HttpProtocolError as exc:
                if 200 <= status < 300:  # the status of others says enough
                    self._set_error(exc)
                    return
        self.response.set_result(HttpResponse(status, self._headers, body))

    def _fail(self, text: str, code: ReasonCode = ReasonCode.UNEXPECTED_RESPONSE) -> None:
        if not self.response.done():
            self._set_error(HttpProtocolError(text, code))

    def _set_error(self, exc: OSError) -> None:
        self.response.set_exception(exc)
        self.response.exception()  # marks it as retrieved: a cancelled check no longer waits for it


class StatusProtocol(ResponseProtocol):
    """Receives the status of a response. httptools calls the `on_…` methods that a subclass has."""

    __slots__ = ("_head", "_is_head_complete", "_is_repaired", "_parser", "_repairs")

    def _reset(self) -> None:
        super()._reset()
        self._parser: Any = httptools.HttpResponseParser(self)  # None after the end
        self._is_head_complete = False
        self._head = b""  # as received
        self._repairs = 0  # how often a head that the parser rejects was not complete yet
        self._is_repaired = False

    def data_received(self, data: bytes) -> None:
        self.is_idle = False
        at = 0
        while at < len(data) and not self.response.done():
            limit = _CHUNK_BYTES if self._is_head_complete else MAX_HEAD_BYTES - self._received_bytes
            part = data[at : at + limit]
            at += limit
            self._received_bytes += len(part)
            self._feed(part)
            if not limit:
                self._fail(f"response headers larger than {MAX_HEAD_BYTES // 1024} KiB")
            if self._received_bytes > self._max_response_bytes:
                self._on_too_large()

    @property
    def _max_response_bytes(self) -> int:
        """Head, body, and the framing of a chunked body."""
        return MAX_HEAD_BYTES + 2 * self.max_body_bytes

    def _on_too_large(self) -> None:
        self.is_idle = False
        self._fail(f"response larger than {self._max_response_bytes // 1024} KiB")

    def _feed(self, data: bytes) -> None:
        if self.response.done():
            return
        if not self._is_head_complete:
            self._head += data
        if self._repairs:
            self._repair()
        else:
            self._parse(data)

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._complete()
        except httptools.HttpParserError:
            self.is_idle = False
            if _HTTP2_FRAME.match(self._head) and not self.response.done():
                self._set_error(Http2ResponseError("the response is HTTP/2", ReasonCode.PROTOCOL_ERROR))
            elif self._is_head_complete or self._is_repaired or not _is_repairable(self._head):
                self._fail("not an HTTP response", ReasonCode.PROTOCOL_ERROR)
            else:
                self._repair()

    def _repair(self) -> None:
        """Parse the head again, with regular lines, as soon as it is complete."""
        repaired = repair_head(self._head)
        self._repairs += 1
        if repaired is None and self._repairs > _MAX_REPAIRS:
            self._fail("not an HTTP response", ReasonCode.PROTOCOL_ERROR)
        if repaired is not None:
            self._repairs = 0
            self._is_repaired = True  # the connection is not reused: its framing is not certain
            self._headers.clear()
            self._parser = httptools.HttpResponseParser(self)
            self._parse(repaired)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_idle = False
        if not self.response.done():
            self._on_incomplete(exc)
        self.close()

    def close(self) -> None:
        """Free the parser. It refers to this object, and otherwise only the garbage collector frees the two."""
        self._parser = None

    def _on_incomplete(self, exc: Exception | None) -> None:
        if self._is_head_complete and exc is None and not self._headers.keys() & _FRAMING_HEADERS:
            self._complete()  # the body ends with the connection
        elif isinstance(exc, OSError):
            self._set_error(exc)
        else:
            self._fail("connection closed before the response was complete", ReasonCode.CONNECTION_CLOSED)

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # informational, such as 100 Continue; the final response follows
            self._headers.clear()
        elif not self.response.done():
            self._is_head_complete = True
            self._on_head(status)

    def with_headers(self) -> HttpResponse:
        """The response with its headers: the head is parsed again. Headers of most responses are not needed."""
        protocol = HeadersProtocol()
        protocol.data_received(self._head)
        return protocol.response.result()

    def _on_head(self, status: int) -> None:
        self.response.set_result(HttpResponse(status, self._headers, b""))

    def _complete(self) -> None:
        if not self.response.done():
            self._on_head(self._parser.get_status_code())


_FRAMING_HEADERS = {"content-length", "transfer-encoding"}
# The first frame of a server: SETTINGS, or GOAWAY.
_HTTP2_FRAME = re.compile(rb"\0..[\x04\x07]\0\0{4}", re.DOTALL)


class HeadersProtocol(StatusProtocol):
    """Receives the headers too, which costs one callback per header."""

    __slots__ = ()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")


class EndProtocol(StatusProtocol):
    """Receives the status, and waits for the end of a response with a good one: a server may hang after the head.

    For an endless body, `ENOUGH_BODY_BYTES` are enough. For an event stream, which may be silent, the head is enough.
    """

    __slots__ = ()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_head_complete and self._received_bytes > MAX_HEAD_BYTES + ENOUGH_BODY_BYTES:
            self._complete()

    def on_message_complete(self) -> None:
        if self._is_head_complete:  # of the final response
            self._complete()

    def _on_head(self, status: int) -> None:
        if not 200 <= status < 300 or _EVENT_STREAM.search(self._head):
            self._complete()

    def _on_incomplete(self, exc: Exception | None) -> None:
        if self._is_head_complete:
            self._headers = self.with_headers().headers
        super()._on_incomplete(exc)

    def _complete(self) -> None:
        if not self.response.done():
            super()._on_head(self._parser.get_status_code())


_EVENT_STREAM = re.compile(rb"\ncontent-type:[ \t]*text/event-stream", re.IGNORECASE)


class EndHeadersProtocol(EndProtocol):
    """Receives the headers too."""

    __slots__ = ()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_head_complete:  # otherwise it is a trailer
            self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")


class BodyProtocol(HeadersProtocol):
    """Reads to the end of the body, and keeps it if `collects_body` is set."""

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
            self._fail(f"more than {MAX_TRAILERS} trailers")

    def _on_too_large(self) -> None:
        if self.collects_body or not self._is_head_complete:
            super()._on_too_large()
        else:  # status and headers are enough, but the connection cannot be reused
            self.is_idle = False
            self._complete()

    def _on_head(self, status: int) -> None:
        pass

    def on_body(self, part: bytes) -> None:
        if not self.collects_body:
            return
        self._body += part
        if len(self._body) > self.max_body_bytes:
            self._fail(f"response body larger than {self.max_body_bytes // 1024} KiB")

    def on_message_begin(self) -> None:
        if self.response.done():
            self.is_idle = False  # a second response without a request: the next response could belong to any request

    def on_message_complete(self) -> None:
        if self._is_head_complete and not self.response.done():
            self.is_idle = self._parser.should_keep_alive() and not self._is_repaired
            self._complete()

    def _complete(self) -> None:
        if not self.response.done():
            self._set_response(self._parser.get_status_code(), bytes(self._body))


PROTOCOLS: dict[Needs, type[StatusProtocol]] = {
    "status": StatusProtocol,
    "head": HeadersProtocol,
    "end": EndHeadersProtocol,
    "body": BodyProtocol,
}


# ---- deviations


_BARE_LF = re.compile(rb"(?<!\r)\n")
_CONTENT_LENGTH = re.compile(rb"\ncontent-length:([^\r\n]*)", re.IGNORECASE)
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_INFORMATIONAL = re.compile(rb"HTTP/1\.[01] 1[0-9][0-9]\b")


def _is_repairable(received: bytes) -> bool:
    if not received.startswith(b"HTTP/1."):
        return False
    lengths = b",".join(_CONTENT_LENGTH.findall(received))
    return b"," in lengths or _BARE_LF.search(received) is not None


def repair_head(received: bytes) -> bytes | None:
    """The received bytes with CRLF at the end of each line of the head, and with one of several equal lengths.

    None if the head is not complete.
    """
    lines: list[bytes] = []
    while (end := _END_OF_HEAD.search(received)) is not None:
        head, received = received[: end.start()], received[end.end() :]
        lines += [*_regular_lines(head), b""]
        if not _INFORMATIONAL.match(head):  # otherwise the head of the final response follows
            return b"\r\n".join([*lines, received])
    return None


def _regular_lines(head: bytes) -> list[bytes]:
    lines = [line.removesuffix(b"\r") for line in head.split(b"\n")]
    lengths = [line for line in lines if line[:15].lower() == b"content-length:"]
    values = {value.strip() for line in lengths for value in line[15:].split(b",")}
    if len(values) != 1:
        return lines  # the parser rejects different values
    return [*(line for line in lines if line not in lengths), b"Content-Length: " + values.pop()]


def decode_body(encoding: str, body: bytes) -> bytes:
    """Raises `HttpProtocolError` for an encoding that is not supported, and a body that is damaged or too large."""
    name = encoding.strip().lower()
    try:
        match name:
            case "gzip" | "x-gzip":
                return _inflate_members(body)
            case "deflate":
                return (
                    _inflate(zlib.decompressobj(), body) if _is_zlib(body) else _inflate(zlib.decompressobj(-15), body)
                )
            case "identity" | "":
                return body
            case _:
                raise HttpProtocolError(
                    f'the body is compressed with "{name[:40]}", which is not supported', ReasonCode.UNEXPECTED_RESPONSE
                )
    except zlib.error as exc:
        raise _damaged(name) from exc


def _is_zlib(body: bytes) -> bool:
    """Servers send "deflate" with and without the header of zlib."""
    return len(body) > 1 and body[0] & 0x0F == 8 and int.from_bytes(body[:2]) % 31 == 0


def _inflate_members(body: bytes) -> bytes:
    """A gzip body may have several members."""
    decoded = b""
    for _ in range(_MAX_GZIP_MEMBERS):
        member = zlib.decompressobj(31)
        decoded += _inflate(member, body, limit_bytes=MAX_BODY_BYTES - len(decoded))
        body = member.unused_data
        if not body.startswith(b"\x1f\x8b"):  # other data after the end is ignored, as gzip does
            return decoded
    raise _damaged("gzip")


def _inflate(decoder: zlib._Decompress, body: bytes, limit_bytes: int = MAX_BODY_BYTES) -> bytes:
    decoded = decoder.decompress(body, limit_bytes + 1)
    if len(decoded) > limit_bytes:
        raise HttpProtocolError(
            f"decompressed response body larger than {MAX_BODY_BYTES // 1024} KiB", ReasonCode.UNEXPECTED_RESPONSE
        )
    if not decoder.eof:
        raise _damaged("deflate")
    return decoded


def _damaged(encoding: str) -> HttpProtocolError:
    return HttpProtocolError(f"the {encoding} body is damaged or incomplete", ReasonCode.UNEXPECTED_RESPONSE)
