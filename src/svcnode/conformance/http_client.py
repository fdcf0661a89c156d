"""A minimal HTTP/1.1 client: one request, one complete response, bounded in time and size.

Written by hand because general clients silently repair defects that a checker must see: a body after HEAD, a
connection that ends early, bytes after the end.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from svcnode.conformance.response import RawResponse, safe_text
from svcnode.core.text import os_error_text
from svcnode.version import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from svcnode.conformance.target import NodeUnderTestUrl

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 8 * 1024 * 1024
CONNECTION_CLOSED = "connection closed without a response"
CONNECTION_RESET = "connection reset"
TLS_HINT = "; if it speaks TLS, use https://"
_UNDELIMITED_TEXT = "a response with neither Content-Length nor Transfer-Encoding on a connection that stays open"
_TOO_LARGE_TEXT = f"the response body is larger than {MAX_BODY_BYTES // 1024 // 1024} MiB"
EXCESS_WAIT_S = 0.25  # for bytes that must not arrive, if the server does not close the connection
UNDELIMITED_WAIT_S = 1.0  # for the end of a response without a length

# OpenSSL's X509_V_ERR_… codes for an untrusted issuer or signature.
_UNTRUSTED_ISSUER_CODES = {2, 18, 19, 20, 21}
_STATUS_LINE = re.compile(rb"HTTP/([0-9]\.[0-9]) ([1-9][0-9]{2})(?: [^\r\n]*)?\r?\n")
_HEADER_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n]*?)[ \t]*\r?\n")


@dataclass(frozen=True, slots=True)
class RequestLine:
    method: str
    target: str

    def __str__(self) -> str:
        return f"{self.method} {safe_text(self.target)}"


class NoResponseError(Exception):
    """There was no complete HTTP response; the text says why."""

    def __init__(
        self, request: RequestLine, reason: str, *, is_timeout: bool = False, is_connected: bool = True
    ) -> None:
        super().__init__(reason)
        self.request = request
        self.is_timeout = is_timeout
        self.is_connected = is_connected  # whether there was a connection at all

    @property
    def is_undelimited(self) -> bool:
        return isinstance(self.__cause__, _UndelimitedError)


class HttpClient:
    """Sends requests to one target. Every request ends within the timeout."""

    def __init__(self, target: NodeUnderTestUrl, timeout_s: float) -> None:
        self._target = target
        self._timeout_s = timeout_s

    async def send(self, request: RequestLine) -> RawResponse:
        """On a new connection; raises `NoResponseError`."""
        async with self.connect(request) as connection:
            return await connection.send(request, is_last=True)

    @asynccontextmanager
    async def connect(self, request: RequestLine) -> AsyncIterator[RawConnection]:
        """A connection for this request and for others after it, while the server keeps it open."""
        target = self._target
        with _translate_errors(request, self._timeout_s, target):
            async with asyncio.timeout(self._timeout_s):
                reader, writer = await asyncio.open_connection(
                    target.host, target.port, limit=MAX_HEAD_BYTES, ssl=target.tls, **_race_options()
                )
        try:
            yield RawConnection(reader, writer, target, self._timeout_s)
        finally:
            writer.transport.abort()
            await asyncio.sleep(0)  # lets the transport close its socket


def _race_options() -> dict[str, float]:
    """Happy eyeballs (RFC 8305). uvloop does not have it."""
    is_asyncio = isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop)
    return {"happy_eyeballs_delay": 0.25} if is_asyncio else {}


class RawConnection:
    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: NodeUnderTestUrl, timeout_s: float
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._target = target
        self._timeout_s = timeout_s

    async def send(self, request: RequestLine, *, is_last: bool) -> RawResponse:
        started_s = asyncio.get_running_loop().time()
        with _translate_errors(request, self._timeout_s):
            async with asyncio.timeout(self._timeout_s):
                self._writer.write(self._encode_head(request, is_last=is_last))
                await self._writer.drain()
                response = await _ResponseReader(self._reader, request.method, is_last=is_last).read()
        duration_s = asyncio.get_running_loop().time() - started_s
        excess = await self._read_excess() if request.method == "HEAD" and is_last else b""
        return replace(response, excess=excess, duration_s=duration_s)

    def _encode_head(self, request: RequestLine, *, is_last: bool) -> bytes:
        lines = [f"{request.method} {request.target} HTTP/1.1", f"Host: {self._target.netloc}"]
        lines += [f"User-Agent: svcnode-conform/{__version__}", "Accept: */*"]
        if self._target.authorization:
            lines.append(f"Authorization: {self._target.authorization}")
        if request.method in ("POST", "PUT", "PATCH"):
            lines.append("Content-Length: 0")
        if is_last:
            lines.append("Connection: close")
        return "\r\n".join([*lines, "", ""]).encode("ascii")

    async def _read_excess(self) -> bytes:
        """Bytes after a response without a body, until the connection ends or EXCESS_WAIT_S is over."""
        excess = b""
        with suppress(OSError):
            async with asyncio.timeout(EXCESS_WAIT_S):
                while len(excess) < MAX_HEAD_BYTES and (data := await self._reader.read(4096)):
                    excess += data
        return excess


class _ProtocolError(Exception):
    pass


class _UndelimitedError(_ProtocolError):
    pass


@contextmanager
def _translate_errors(
    request: RequestLine, timeout_s: float, connecting_to: NodeUnderTestUrl | None = None
) -> Iterator[None]:
    """OS, TLS and protocol errors become a `NoResponseError`."""
    try:
        yield
    except (OSError, _ProtocolError) as exc:  # TimeoutError and ssl.SSLError are OSErrors
        is_refused = connecting_to is not None or isinstance(exc, ConnectionResetError | BrokenPipeError)
        raise NoResponseError(
            request,
            _error_text(exc, timeout_s, connecting_to),
            is_timeout=isinstance(exc, TimeoutError),
            is_connected=not is_refused,
        ) from exc


def _error_text(exc: OSError | _ProtocolError, timeout_s: float, connecting_to: NodeUnderTestUrl | None) -> str:
    hint = "; if it does not speak TLS, use http://" if connecting_to is not None and connecting_to.tls else ""
    match exc:
        case TimeoutError():
            return f"timeout: no complete response within {timeout_s:g} s"
        case ssl.SSLCertVerificationError():
            return f"untrusted certificate: {exc.verify_message.rstrip('.')}{_ca_hint(exc, connecting_to)}"
        case ssl.SSLError():
            return f"TLS error: {exc.reason}{hint}"
        case ConnectionResetError() | BrokenPipeError():
            return f"{CONNECTION_RESET}{hint}"
        case OSError():
            return os_error_text(exc)
        case _:
            return str(exc)


def _ca_hint(exc: ssl.SSLCertVerificationError, connecting_to: NodeUnderTestUrl | None) -> str:
    if exc.verify_code not in _UNTRUSTED_ISSUER_CODES:
        return ""
    has_custom_ca = connecting_to is not None and connecting_to.has_custom_ca
    return "; the file in --ca did not issue it" if has_custom_ca else "; name the issuing CA with --ca"


def _not_http_text(line: bytes) -> str:
    hint = TLS_HINT if line.startswith(b"\x15\x03") else ""
    return f"not an HTTP/1.1 response: {safe_text(line)}{hint}"


class _ResponseReader:
    """Reads one response."""

    def __init__(self, reader: asyncio.StreamReader, method: str, *, is_last: bool) -> None:
        self._reader = reader
        self._method = method
        self._is_last = is_last
        self._head_bytes = 0

    async def read(self) -> RawResponse:
        version, head = await self._read_head()
        while head.code < 200:  # interim responses
            version, head = await self._read_head()
        body, is_length_known = await self._read_body(head)
        tokens = head.tokens("connection")
        allows_reuse = "close" not in tokens and (version == "1.1" or "keep-alive" in tokens)
        return replace(head, body=body, is_keep_alive=allows_reuse and is_length_known)

    async def _read_head(self) -> tuple[str, RawResponse]:
        """The HTTP version, and the response without its body."""
        version, code = await self._read_status_line()
        return version, RawResponse(code, await self._read_headers())

    async def _read_status_line(self) -> tuple[str, int]:
        line = await self._read_line()
        match = _STATUS_LINE.fullmatch(line)
        if match is None:
            raise _ProtocolError(_not_http_text(line))
        return match[1].decode(), int(match[2])

    async def _read_headers(self) -> tuple[tuple[str, str], ...]:
        headers = []
        while (line := await self._read_line()).strip():
            match = _HEADER_LINE.fullmatch(line)
            if match is None:
                raise _ProtocolError(f"invalid header line: {safe_text(line)}")
            headers.append((match[1].decode("latin-1").lower(), match[2].decode("latin-1")))
        return tuple(headers)

    async def _read_line(self) -> bytes:
        try:
            line = await self._reader.readline()
        except ValueError:  # a line longer than the reader's limit
            line = b"\n" * (MAX_HEAD_BYTES + 1)
        self._head_bytes += len(line)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise _ProtocolError(f"the response head is larger than {MAX_HEAD_BYTES // 1024} KiB")
        if not line.endswith(b"\n"):
            raise _ProtocolError(self._truncation_text(line))
        return line

    def _truncation_text(self, line: bytes) -> str:
        if not self._head_bytes:
            return CONNECTION_CLOSED
        if self._head_bytes == len(line) and not line.startswith(b"HTTP/"):
            return _not_http_text(line)
        return "connection closed before the response was complete"

    async def _read_body(self, head: RawResponse) -> tuple[bytes, bool]:
        """The body, and whether its length is known without the end of the connection."""
        if self._method == "HEAD" or head.code in (204, 304):
            return b"", True
        if "chunked" in head.tokens("transfer-encoding"):
            return await self._read_chunks(), True
        lengths = set(head.values("content-length"))
        if not lengths:
            return await self._read_to_end(), False
        if len(lengths) > 1 or not re.fullmatch("[0-9]{1,18}", length := lengths.pop(), re.ASCII):
            raise _ProtocolError(f"invalid Content-Length: {safe_text(', '.join(head.values('content-length')))}")
        return await self._read_exactly(int(length), 0), True

    async def _read_chunks(self) -> bytes:
        body = bytearray()
        while size := await self._read_chunk_size():
            body += await self._read_exactly(size, len(body))
            if (await self._read_line()).strip():
                raise _ProtocolError("a body chunk is longer than its size")
        while (await self._read_line()).strip():  # trailers
            pass
        return bytes(body)

    async def _read_chunk_size(self) -> int:
        self._head_bytes = 0
        line = await self._read_line()
        match = re.match(rb"([0-9A-Fa-f]{1,8})[ \t]*(;.*)?\r?\n", line)
        if match is None:
            raise _ProtocolError(f"invalid chunk size: {safe_text(line)}")
        return int(match[1], 16)

    async def _read_exactly(self, count: int, body_bytes: int) -> bytes:
        if body_bytes + count > MAX_BODY_BYTES:
            raise _ProtocolError(_TOO_LARGE_TEXT)
        try:
            return await self._reader.readexactly(count)
        except asyncio.IncompleteReadError as exc:
            received, expected = body_bytes + len(exc.partial), body_bytes + count
            raise _ProtocolError(f"connection closed after {received} of at least {expected} body bytes") from exc

    async def _read_to_end(self) -> bytes:
        body = bytearray()
        while data := await self._read_some():
            body += data
            if len(body) > MAX_BODY_BYTES:
                raise _ProtocolError(_TOO_LARGE_TEXT)
        return bytes(body)

    async def _read_some(self) -> bytes:
        if self._is_last:  # the request asked the server to close the connection
            return await self._reader.read(65536)
        try:
            async with asyncio.timeout(UNDELIMITED_WAIT_S):
                return await self._reader.read(65536)
        except TimeoutError:
            raise _UndelimitedError(_UNDELIMITED_TEXT) from None
