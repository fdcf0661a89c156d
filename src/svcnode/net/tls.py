"""TLS over a plain connection, in a few callbacks of our own.

The loops can do it themselves, but looks end in the middle of a handshake all the time, at their deadline, and uvloop
then keeps what it had begun: a little more memory with every look that was cut off.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any, TypeVar, cast

from svcnode.net.trace import step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Connect = Callable[[Callable[[], "TlsProtocol"]], Awaitable[tuple[asyncio.Transport, "TlsProtocol"]]]

P = TypeVar("P", bound=asyncio.Protocol)

_READ_BYTES = 64 * 1024


class TlsProtocol(asyncio.Protocol):
    """Stands between a connection and the protocol that is to see what was sent under TLS."""

    def __init__(self, inner: asyncio.Protocol, context: ssl.SSLContext, server_name: str) -> None:
        self._inner = inner
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._received, self._to_send, server_hostname=server_name)
        self.handshake: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.handshake.add_done_callback(_retrieve_exception)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def start_handshake(self) -> None:
        """Not with the connection: the handshake is a step of its own."""
        self._advance()

    def data_received(self, data: bytes) -> None:
        self._received.write(data)
        self._advance()

    def eof_received(self) -> None:
        self._received.write_eof()
        self._advance()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.handshake.done():
            self.handshake.set_exception(exc or ConnectionResetError("it closed the connection in the handshake"))
        elif self._is_open:
            self._inner.connection_lost(exc)

    @property
    def _is_open(self) -> bool:
        """Whether anybody has begun to speak under TLS, and would want to know of its end."""
        return self.handshake.done() and not self.handshake.cancelled() and self.handshake.exception() is None

    def write(self, data: bytes) -> None:
        self.tls.write(data)
        self._send()

    def _advance(self) -> None:
        """As far as what was received allows."""
        if self.handshake.done() and not self._is_open:
            return
        try:
            if not self.handshake.done():
                self.tls.do_handshake()
                self.handshake.set_result(None)
            while data := self.tls.read(_READ_BYTES):
                self._inner.data_received(data)
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError) as exc:
            self._fail(exc, inner_exc=None)
        except ssl.SSLError as exc:
            self._fail(exc, inner_exc=exc)
        self._send()

    def _send(self) -> None:
        if data := self._to_send.read():
            self._transport.write(data)

    def _fail(self, exc: ssl.SSLError, inner_exc: Exception | None) -> None:
        if not self.handshake.done():
            self.handshake.set_exception(exc)
        elif self._is_open:
            self._inner.connection_lost(inner_exc)


def _retrieve_exception(handshake: asyncio.Future[None]) -> None:
    """A look that was cut off waits for it no more, and nobody else need be told."""
    if not handshake.cancelled():
        handshake.exception()


class TlsTransport(asyncio.Transport):
    """What whoever speaks under TLS needs of a transport."""

    def __init__(self, plain: asyncio.Transport, layer: TlsProtocol) -> None:
        super().__init__()
        self._plain = plain
        self._layer = layer

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self._layer.write(bytes(data))

    def abort(self) -> None:
        self._plain.abort()

    def close(self) -> None:
        """Without a farewell: a look that is over waits for nobody."""
        self._plain.abort()

    def is_closing(self) -> bool:
        return self._plain.is_closing()

    def pause_reading(self) -> None:
        if not self.is_closing():
            self._plain.pause_reading()

    def resume_reading(self) -> None:
        if not self.is_closing():  # what had come before the end is read after it
            self._plain.resume_reading()

    def can_write_eof(self) -> bool:
        return False

    def get_extra_info(self, name: str, default: object = None) -> Any:  # noqa: ANN401  as asyncio has it
        return self._layer.tls.getpeercert() if name == "peercert" else self._plain.get_extra_info(name, default)


async def connect_tls(
    connect: Connect, protocol: Callable[[], P], context: ssl.SSLContext, server_name: str
) -> tuple[asyncio.Transport, P]:
    """A connection made by `connect`, with TLS on it; whoever asked for it aborts it."""
    inner = protocol()
    plain, layer = await connect(lambda: TlsProtocol(inner, context, server_name))
    return await _handshake(plain, layer, server_name), inner


async def upgrade_transport(
    plain: asyncio.Transport, inner: asyncio.Protocol, context: ssl.SSLContext, server_name: str
) -> TlsTransport:
    """TLS on a connection that has been spoken on already."""
    layer = TlsProtocol(inner, context, server_name)
    layer.connection_made(plain)
    plain.set_protocol(layer)
    return await _handshake(plain, layer, server_name)


async def _handshake(plain: asyncio.Transport, layer: TlsProtocol, server_name: str) -> TlsTransport:
    try:
        with step("handshake", server_name):
            layer.start_handshake()
            await layer.handshake
    except BaseException:  # also when cancelled: nobody else knows the connection yet
        plain.abort()
        raise
    return TlsTransport(plain, layer)
