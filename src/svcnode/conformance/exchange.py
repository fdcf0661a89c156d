"""HTTP/1.1 as it comes over the wire: one request, one whole answer, in a bounded time and of a bounded size.

By hand, because a judge has to see what clients mend in silence: a body after HEAD, a connection that ends without
notice, bytes beyond the end.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from svcnode.conformance.wording import shown
from svcnode.core.wording import system_words
from svcnode.version import __version__

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from svcnode.conformance.target import Target

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 8 * 1024 * 1024
CLOSED = "it closed the connection without an answer"
BROKEN_OFF = "it broke the connection off"
TLS_HINT = "; does it speak TLS? then write https://"
_UNENDED = "an answer with neither Content-Length nor Transfer-Encoding on a connection that stays open"
_TOO_LARGE = f"the body of its answer is larger than {MAX_BODY_BYTES // 1024 // 1024} MiB"
# How long bytes are waited for that must not come, where the server does not close the connection.
EXCESS_S = 0.25
UNENDED_S = 1.0  # how long the end of an answer is waited for that does not say where it is

# Of OpenSSL, for a certificate that nobody who is trusted has signed: X509_V_ERR_… of an issuer or a signature.
_NO_AUTHORITY = {2, 18, 19, 20, 21}
_STATUS_LINE = re.compile(rb"HTTP/([0-9]\.[0-9]) ([1-9][0-9]{2})(?: [^\r\n]*)?\r?\n")
_HEADER_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\r\n]*?)[ \t]*\r?\n")


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str

    def __str__(self) -> str:
        return f"{self.method} {shown(self.target)}"


class NoAnswerError(Exception):
    """No whole HTTP answer came; the text says what came instead."""

    def __init__(self, request: Request, reason: str, *, is_silence: bool = False, is_accepted: bool = True) -> None:
        super().__init__(reason)
        self.request = request
        self.is_silence = is_silence
        self.is_accepted = is_accepted  # whether there was a connection at all

    @property
    def is_unended(self) -> bool:
        return isinstance(self.__cause__, _UnendedError)


@dataclass(frozen=True, slots=True)
class Answer:
    code: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    is_kept: bool = False  # whether the connection was promised to stay open
    excess: bytes = b""  # what came after the head of an answer to HEAD
    took_s: float = field(default=0.0, compare=False)

    def values(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key == name]

    def tokens(self, name: str) -> set[str]:
        return {token.strip().lower() for value in self.values(name) for token in value.split(",")} - {""}

    @property
    def media_type(self) -> str:
        """Without its parameters; empty where it is missing or stands twice."""
        values = self.values("content-type")
        return values[0].partition(";")[0].strip().lower() if len(values) == 1 else ""


class Wire:
    """Asks one target; whatever happens, every request ends within the timeout."""

    def __init__(self, target: Target, timeout_s: float) -> None:
        self._target = target
        self._timeout_s = timeout_s

    async def ask(self, request: Request) -> Answer:
        """On a connection of its own; raises `NoAnswerError`."""
        async with self.connected(request) as connection:
            return await connection.ask(request, is_last=True)

    @asynccontextmanager
    async def connected(self, request: Request) -> AsyncIterator[Connection]:
        """A connection for this request and, as far as the server lets it, for others after it."""
        target = self._target
        with _blamed(request, self._timeout_s, target):
            async with asyncio.timeout(self._timeout_s):
                reader, writer = await asyncio.open_connection(
                    target.host, target.port, limit=MAX_HEAD_BYTES, ssl=target.tls
                )
        try:
            yield Connection(reader, writer, target, self._timeout_s)
        finally:
            writer.transport.abort()
            await asyncio.sleep(0)  # for it to let go of its socket


class Connection:
    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: Target, timeout_s: float
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._target = target
        self._timeout_s = timeout_s

    async def ask(self, request: Request, *, is_last: bool) -> Answer:
        began_s = asyncio.get_running_loop().time()
        with _blamed(request, self._timeout_s):
            async with asyncio.timeout(self._timeout_s):
                self._writer.write(self._head(request, is_last=is_last))
                await self._writer.drain()
                answer = await _Reading(self._reader, request.method, is_last=is_last).answer()
        took_s = asyncio.get_running_loop().time() - began_s
        excess = await self._excess() if request.method == "HEAD" and is_last else b""
        return replace(answer, excess=excess, took_s=took_s)

    def _head(self, request: Request, *, is_last: bool) -> bytes:
        lines = [f"{request.method} {request.target} HTTP/1.1", f"Host: {self._target.place}"]
        lines += [f"User-Agent: svcnode-conform/{__version__}", "Accept: */*"]
        if self._target.authorization:
            lines.append(f"Authorization: {self._target.authorization}")
        if request.method in ("POST", "PUT", "PATCH"):
            lines.append("Content-Length: 0")
        if is_last:
            lines.append("Connection: close")
        return "\r\n".join([*lines, "", ""]).encode("ascii")

    async def _excess(self) -> bytes:
        """What comes after an answer that has no body, up to the end of the connection or of our patience."""
        found = b""
        with suppress(OSError):
            async with asyncio.timeout(EXCESS_S):
                while len(found) < MAX_HEAD_BYTES and (data := await self._reader.read(4096)):
                    found += data
        return found


class _blamed:  # noqa: N801  reads as a sentence
    """Translates whatever goes wrong on the way into what a person can act on."""

    def __init__(self, request: Request, timeout_s: float, connecting_to: Target | None = None) -> None:
        self._request = request
        self._timeout_s = timeout_s
        is_handshake = connecting_to is not None and connecting_to.tls is not None
        self._hint = "; is it http:// rather than https://?" if is_handshake else ""
        self._is_connecting = connecting_to is not None
        self._has_own_ca = connecting_to is not None and connecting_to.has_own_ca

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, traceback: object) -> None:
        if isinstance(exc, OSError | _BrokenError):  # TimeoutError and ssl.SSLError are OSErrors
            raise NoAnswerError(
                self._request,
                self._words_for(exc),
                is_silence=isinstance(exc, TimeoutError),
                is_accepted=not (self._is_connecting or isinstance(exc, ConnectionResetError | BrokenPipeError)),
            ) from exc

    def _words_for(self, exc: OSError | _BrokenError) -> str:
        match exc:
            case TimeoutError():
                return f"no whole answer within {self._timeout_s:g} s"
            case ssl.SSLCertVerificationError():
                return f"its certificate is not trusted: {exc.verify_message.rstrip('.')}{self._hint_for(exc)}"
            case ssl.SSLError():
                return f"it does not speak TLS as we do: {exc.reason}{self._hint}"
            case ConnectionResetError() | BrokenPipeError():
                return f"{BROKEN_OFF}{self._hint}"
            case OSError():
                return system_words(exc)
            case _:
                return str(exc)

    def _hint_for(self, exc: ssl.SSLCertVerificationError) -> str:
        if exc.verify_code not in _NO_AUTHORITY:
            return ""
        return "; what --ca names is not its authority" if self._has_own_ca else "; name its authority with --ca"


class _BrokenError(Exception):
    pass


class _UnendedError(_BrokenError):
    pass


def _not_http(line: bytes) -> str:
    hint = TLS_HINT if line.startswith(b"\x15\x03") else ""
    return f"what came back is not HTTP/1.1: {shown(line)}{hint}"


class _Reading:
    """One answer, read from its first byte to its last."""

    def __init__(self, reader: asyncio.StreamReader, method: str, *, is_last: bool) -> None:
        self._reader = reader
        self._method = method
        self._is_last = is_last
        self._head_bytes = 0

    async def answer(self) -> Answer:
        version, head = await self._head()
        while head.code < 200:  # an interim answer: the one that counts is still to come
            version, head = await self._head()
        body, is_length_known = await self._body(head)
        tokens = head.tokens("connection")
        wants_to_keep = "close" not in tokens and (version == "1.1" or "keep-alive" in tokens)
        return replace(head, body=body, is_kept=wants_to_keep and is_length_known)

    async def _head(self) -> tuple[str, Answer]:
        """The version of HTTP, and the answer as far as it is known before its body."""
        version, code = await self._status()
        return version, Answer(code, await self._headers())

    async def _status(self) -> tuple[str, int]:
        line = await self._line()
        found = _STATUS_LINE.fullmatch(line)
        if found is None:
            raise _BrokenError(_not_http(line))
        return found[1].decode(), int(found[2])

    async def _headers(self) -> tuple[tuple[str, str], ...]:
        headers = []
        while (line := await self._line()).strip():
            found = _HEADER_LINE.fullmatch(line)
            if found is None:
                raise _BrokenError(f"a line of its head is no header: {shown(line)}")
            headers.append((found[1].decode("latin-1").lower(), found[2].decode("latin-1")))
        return tuple(headers)

    async def _line(self) -> bytes:
        try:
            line = await self._reader.readline()
        except ValueError:  # a line longer than the reader's limit
            line = b"\n" * (MAX_HEAD_BYTES + 1)
        self._head_bytes += len(line)
        if self._head_bytes > MAX_HEAD_BYTES:
            raise _BrokenError(f"the head of its answer is larger than {MAX_HEAD_BYTES // 1024} KiB")
        if not line.endswith(b"\n"):
            raise _BrokenError(self._cut_off(line))
        return line

    def _cut_off(self, line: bytes) -> str:
        if not self._head_bytes:
            return CLOSED
        if self._head_bytes == len(line) and not line.startswith(b"HTTP/"):
            return _not_http(line)
        return "it closed the connection before its answer was whole"

    async def _body(self, head: Answer) -> tuple[bytes, bool]:
        """The body, and whether its end is known by other means than the end of the connection."""
        if self._method == "HEAD" or head.code in (204, 304):
            return b"", True
        if "chunked" in head.tokens("transfer-encoding"):
            return await self._chunks(), True
        lengths = set(head.values("content-length"))
        if not lengths:
            return await self._rest(), False
        if len(lengths) > 1 or not re.fullmatch("[0-9]{1,18}", length := lengths.pop(), re.ASCII):
            raise _BrokenError(
                f"its Content-Length is not one number: {shown(', '.join(head.values('content-length')))}"
            )
        return await self._exactly(int(length), 0), True

    async def _chunks(self) -> bytes:
        body = bytearray()
        while size := await self._chunk_size():
            body += await self._exactly(size, len(body))
            if (await self._line()).strip():
                raise _BrokenError("a chunk of its body is longer than it says")
        while (await self._line()).strip():  # trailers
            pass
        return bytes(body)

    async def _chunk_size(self) -> int:
        self._head_bytes = 0
        line = await self._line()
        found = re.match(rb"([0-9A-Fa-f]{1,8})[ \t]*(;.*)?\r?\n", line)
        if found is None:
            raise _BrokenError(f"a chunk of its body does not begin with its length: {shown(line)}")
        return int(found[1], 16)

    async def _exactly(self, count: int, already: int) -> bytes:
        if already + count > MAX_BODY_BYTES:
            raise _BrokenError(_TOO_LARGE)
        try:
            return await self._reader.readexactly(count)
        except asyncio.IncompleteReadError as exc:
            came = f"{already + len(exc.partial)} of at least {already + count} bytes of its body"
            raise _BrokenError(f"it closed the connection after {came}") from exc

    async def _rest(self) -> bytes:
        body = bytearray()
        while data := await self._more():
            body += data
            if len(body) > MAX_BODY_BYTES:
                raise _BrokenError(_TOO_LARGE)
        return bytes(body)

    async def _more(self) -> bytes:
        if self._is_last:  # it was asked to close the connection after it
            return await self._reader.read(65536)
        try:
            async with asyncio.timeout(UNENDED_S):
                return await self._reader.read(65536)
        except TimeoutError:
            raise _UnendedError(_UNENDED) from None
