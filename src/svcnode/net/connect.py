"""Opening a connection: resolve, connect, handshake, each a step of its own.

The deadline is the supervisor's. When a look is cancelled, whatever was opened so far is closed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NoReturn, TypeVar

from svcnode.net.dns import is_ip_address, resolve_host
from svcnode.net.trace import step

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")
C = TypeVar("C")
P = TypeVar("P", bound=asyncio.Protocol)

REUSE_STEP_DETAIL = "connection of an earlier check"


@dataclass(frozen=True, slots=True)
class TcpEndpoint:
    host: str
    port: int
    is_ip_address: bool  # nothing to resolve

    @classmethod
    def of(cls, host: str, port: int) -> TcpEndpoint:
        return cls(host, port, is_ip_address(host))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def connect(self, protocol: Callable[[], P]) -> tuple[asyncio.Transport, P]:
        """A fresh connection and its protocol. Whoever asked for it aborts it."""
        if self.is_ip_address:
            return await self._connect(self.host, protocol)
        return await self.try_addresses(lambda address: self._connect(address, protocol))

    async def _connect(self, address: str, protocol: Callable[[], P]) -> tuple[asyncio.Transport, P]:
        with step("connect", address):
            connection = await asyncio.get_running_loop().create_connection(protocol, address, self.port)
            reject_self_connect(connection[0], (address, self.port))
            return connection

    async def open_socket(self) -> socket.socket:
        """A connected socket, for those who have something to say before the protocol begins."""
        return await self.try_addresses(self._open_socket)

    async def _open_socket(self, address: str) -> socket.socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with step("connect", address):
                await asyncio.get_running_loop().sock_connect(sock, (address, self.port))
                if sock.getsockname()[:2] == (address, self.port):
                    _raise_refused(sock)
        except BaseException:  # also when cancelled: nobody else knows the socket yet
            sock.close()
            raise
        return sock

    async def try_addresses(self, attempt: Callable[[str], Awaitable[T]]) -> T:
        """A host is there when one of its addresses answers."""
        *others, last = [self.host] if self.is_ip_address else await resolve_host(self.host)
        for address in others:
            try:
                return await attempt(address)
            except OSError:
                continue
        return await attempt(last)


def reject_self_connect(transport: asyncio.Transport, remote: tuple[str, int]) -> None:
    """Nobody listens, but the port that we were given to call from is the very one we call.

    TCP connects such a socket with itself, so a dead service on this machine would look alive now and then.
    """
    ours = transport.get_extra_info("sockname")
    if ours is not None and ours[:2] == remote:  # one that was reset meanwhile may have no name left
        try:
            _raise_refused(transport.get_extra_info("socket"))
        finally:
            transport.abort()


def _raise_refused(sock: socket.socket) -> NoReturn:
    # Ended by a reset, or the port would be taken for a minute, and the service could not come back to it.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


async def transport_from_socket(sock: socket.socket, protocol: Callable[[], P]) -> tuple[asyncio.Transport, P]:
    """A connected socket, which is ours to close, as a connection."""
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_connection(protocol, sock=sock)
    except BaseException:  # as above
        # uvloop closes the descriptor itself, but may leave its number in the socket, whose own end would then close
        # whatever has been opened under that number since.
        if isinstance(loop, asyncio.BaseEventLoop):
            sock.close()
        else:
            sock.detach()
        raise


class ConnectionSlot(Generic[C]):
    """Holds at most one open connection between two uses."""

    __slots__ = ("_connection", "_loop")

    def __init__(self) -> None:
        self._connection: C | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def put(self, connection: C) -> None:
        self._connection, self._loop = connection, asyncio.get_running_loop()

    def take(self) -> C | None:
        """None if empty, or if the connection belongs to another event loop, as after a fork."""
        connection = self._connection if self._loop is asyncio.get_running_loop() else None
        self._connection = self._loop = None
        return connection

    def close(self, abort: Callable[[C], None]) -> None:
        connection = self.take()
        if connection is not None:
            abort(connection)
