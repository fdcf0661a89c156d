"""Opens TCP connections, with the steps "resolve" and "connect".

The scheduler sets the deadline. When a check is cancelled, everything that it opened is closed.
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
    is_ip_address: bool  # then there is no name to resolve

    @classmethod
    def of(cls, host: str, port: int) -> TcpEndpoint:
        return cls(host, port, is_ip_address(host))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    async def connect(self, protocol: Callable[[], P]) -> tuple[asyncio.Transport, P]:
        """A new connection and its protocol. The caller aborts it."""
        if self.is_ip_address:
            return await self._connect(self.host, protocol)
        return await self.try_addresses(lambda address: self._connect(address, protocol))

    async def _connect(self, address: str, protocol: Callable[[], P]) -> tuple[asyncio.Transport, P]:
        with step("connect", address):
            connection = await asyncio.get_running_loop().create_connection(protocol, address, self.port)
            reject_self_connect(connection[0], (address, self.port))
            return connection

    async def open_socket(self) -> socket.socket:
        """A connected socket, for an exchange that comes before the protocol."""
        return await self.try_addresses(self._open_socket)

    async def _open_socket(self, address: str) -> socket.socket:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with step("connect", address):
                await asyncio.get_running_loop().sock_connect(sock, (address, self.port))
                if sock.getsockname()[:2] == (address, self.port):
                    _raise_refused(sock)
        except BaseException:  # also on cancellation: the caller does not have the socket yet
            sock.close()
            raise
        return sock

    async def try_addresses(self, attempt: Callable[[str], Awaitable[T]]) -> T:
        """The result of the first address that works; the error of the last one if none does."""
        *others, last = [self.host] if self.is_ip_address else await resolve_host(self.host)
        for address in others:
            try:
                return await attempt(address)
            except OSError:
                continue
        return await attempt(last)


def reject_self_connect(transport: asyncio.Transport, remote: tuple[str, int]) -> None:
    """Raise ConnectionRefusedError if the socket is connected to itself.

    No process listens on the port, but the kernel chose that port as the local port of this connection. TCP then
    connects the socket to itself, and a stopped service on this machine would sometimes seem to run.
    """
    local = transport.get_extra_info("sockname")  # None if the connection was reset since
    if local is not None and local[:2] == remote:
        try:
            _raise_refused(transport.get_extra_info("socket"))
        finally:
            transport.abort()


def _raise_refused(sock: socket.socket) -> NoReturn:
    # Close with a reset. Otherwise the port stays in TIME_WAIT for a minute, and the service cannot bind to it.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


async def transport_from_socket(sock: socket.socket, protocol: Callable[[], P]) -> tuple[asyncio.Transport, P]:
    """A transport for a connected socket. The socket belongs to the transport, also if this fails."""
    loop = asyncio.get_running_loop()
    try:
        return await loop.create_connection(protocol, sock=sock)
    except BaseException:  # also on cancellation
        # uvloop closes the descriptor itself but may leave its number in the socket object, which would later close
        # an unrelated descriptor with the same number.
        if isinstance(loop, asyncio.BaseEventLoop):
            sock.close()
        else:
            sock.detach()
        raise


class ConnectionCache(Generic[C]):
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
