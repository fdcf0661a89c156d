"""Opens TCP connections, with the steps "resolve" and "connect", and connections to Unix sockets.

The addresses of a name are tried as RFC 8305 (happy eyeballs) says: the next attempt starts when the previous one fails
or has taken 250 ms, and the first connection is used. A single address takes no task and no timer.

The scheduler sets the deadline. When a check is cancelled, everything that it opened is closed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import struct
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, NoReturn, TypeVar

from svcnode.core.codes import ReasonCode
from svcnode.core.text import one_line, os_error_text, truncate
from svcnode.core.url import join_host_port
from svcnode.net.dns import is_ip_address, pending_lookup, resolve_host
from svcnode.net.os_errors import InconclusiveError, code_for_os_error
from svcnode.net.trace import attach_detail, interrupts, step

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

T = TypeVar("T")
C = TypeVar("C")
P = TypeVar("P", bound=asyncio.Protocol)

REUSE_STEP_DETAIL = "connection of an earlier check"
ATTEMPT_DELAY_S = 0.25  # "Connection Attempt Delay" of RFC 8305
BACKLOG_POLL_S = 0.05
RESOLVE_INTERVAL_S = 60.0  # how often the name of a reused connection is resolved again
_MAX_SHOWN_FAILURES, _MAX_SHOWN_CHARS = 3, 100
_NO_ROUTE_ERRNOS = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL}  # of this machine, or of a router
_OWN_NETWORK_ERRNOS = {errno.ENETDOWN, errno.EAFNOSUPPORT}


class TcpEndpoint(NamedTuple):
    host: str
    port: int
    is_ip_address: bool  # then there is no name to resolve

    @classmethod
    def of(cls, host: str, port: int) -> TcpEndpoint:
        return cls(host, port, is_ip_address(host))

    def __str__(self) -> str:
        return join_host_port(self.host, self.port)

    async def connect(self, protocol: Callable[[], P]) -> tuple[asyncio.Transport, P]:
        """A new connection and its protocol. The caller aborts it."""
        if self.is_ip_address:
            return await self._connect(self.host, protocol)
        addresses = await resolve_host(self.host)
        if len(addresses) == 1:
            return await self._connect(addresses[0], protocol)
        sock = await race_addresses(addresses, self._open_socket, socket.socket.close)
        return await transport_from_socket(sock, protocol)

    async def _connect(self, address: str, protocol: Callable[[], P]) -> tuple[asyncio.Transport, P]:
        with step("connect", address):
            try:
                connection = await asyncio.get_running_loop().create_connection(protocol, address, self.port)
            except OSError as exc:
                raise_if_own_network(exc, address)
                raise
            reject_self_connect(connection[0], (address, self.port))
            return connection

    async def open_socket(self) -> socket.socket:
        """A connected socket, for an exchange that comes before the protocol."""
        addresses = [self.host] if self.is_ip_address else await resolve_host(self.host)
        return await race_addresses(addresses, self._open_socket, socket.socket.close)

    async def _open_socket(self, address: str) -> socket.socket:
        sock: socket.socket | None = None
        try:
            with step("connect", address):
                sock = socket.socket(address_family(address), socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                await asyncio.get_running_loop().sock_connect(sock, (address, self.port))
                reject_self_connected_socket(sock, (address, self.port))
        except BaseException as exc:  # also on cancellation: the caller does not have the socket yet
            if sock is not None:
                sock.close()
            if isinstance(exc, OSError):
                raise_if_own_network(exc, address)
            raise
        return sock


@dataclass(frozen=True, slots=True)
class UnixEndpoint:
    """A Unix socket, with the members of a `TcpEndpoint` that an HTTP client uses."""

    path: str

    host: ClassVar[str] = "localhost"
    is_ip_address: ClassVar[bool] = False

    def __str__(self) -> str:
        return self.path

    async def connect(self, protocol: Callable[[], P]) -> tuple[asyncio.Transport, P]:
        """A new connection and its protocol. The caller aborts it.

        A socket whose queue is full refuses at once with EAGAIN, where TCP would wait. So this waits.
        """
        with step("connect", self.path):
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            try:
                while True:
                    try:
                        sock.connect(self.path)
                        break
                    except BlockingIOError:
                        await asyncio.sleep(BACKLOG_POLL_S)
            except BaseException:  # also on cancellation
                sock.close()
                raise
            return await transport_from_socket(sock, protocol)


Endpoint = TcpEndpoint | UnixEndpoint


async def race_addresses(
    addresses: Sequence[str], attempt: Callable[[str], Coroutine[Any, Any, T]], discard: Callable[[T], object]
) -> T:
    """The result of the first attempt that succeeds; the other attempts are cancelled, their results discarded.

    If all attempts fail, the last error is raised, but not one of this machine's network if there is another one.
    """
    if len(addresses) == 1:
        return await attempt(addresses[0])
    race = _Race(addresses, attempt, discard)
    with interrupts("connect"), attach_detail(lambda: "; ".join(race.failures)):
        try:
            result = await race.first_result()
        except BaseException:  # also on cancellation
            await race.close()
            raise
        try:
            await race.close()
        except BaseException:
            discard(result)
            raise
        return result


class _Race(Generic[T]):
    def __init__(
        self, addresses: Sequence[str], attempt: Callable[[str], Coroutine[Any, Any, T]], discard: Callable[[T], object]
    ) -> None:
        self._waiting = deque(addresses)
        self._attempt = attempt
        self._discard = discard
        self._running: dict[asyncio.Task[T], str] = {}  # the addresses
        self.failures: list[str] = []  # the first ones
        self._error: BaseException | None = None

    async def first_result(self) -> T:
        while self._waiting or self._running:
            if self._waiting:
                address = self._waiting.popleft()
                self._running[asyncio.get_running_loop().create_task(self._attempt(address))] = address
            delay_s = ATTEMPT_DELAY_S if self._waiting else None
            done, _ = await asyncio.wait(self._running, timeout=delay_s, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                address = self._running.pop(task)
                if (error := task.exception()) is None:
                    return task.result()
                self._keep_error(error, address)
        assert self._error is not None
        raise self._error

    def _keep_error(self, error: BaseException, address: str) -> None:
        if len(self.failures) < _MAX_SHOWN_FAILURES:
            text = os_error_text(error) if isinstance(error, OSError) else str(error).partition("\n")[0]
            self.failures.append(f"{address}: {truncate(one_line(text), _MAX_SHOWN_CHARS)}")
        if self._error is None or not isinstance(error, InconclusiveError):
            self._error = error

    async def close(self) -> None:
        """Cancelled attempts end in the next iteration of the loop, and close what they opened."""
        cancelled = [task for task in self._running if task.cancel()]
        for task in self._running.keys() - set(cancelled):
            if task.exception() is None:  # connected at the same time as the first
                self._discard(task.result())
        if cancelled:
            await asyncio.wait(cancelled)


def raise_if_own_network(exc: OSError, address: str) -> None:
    """Raise `InconclusiveError` if the error is one of this machine's network: no route, or an interface that is down.

    A router on the way may report an unreachable network too, and a host that does not answer ARP is unreachable. To
    tell them apart, the routing table of this machine is asked.
    """
    if exc.errno in _OWN_NETWORK_ERRNOS or (exc.errno in _NO_ROUTE_ERRNOS and not _has_route(address)):
        text = f"no route from this machine ({os_error_text(exc)})"
        raise InconclusiveError(text, ReasonCode.NETWORK_UNREACHABLE) from exc


def _has_route(address: str) -> bool:
    try:
        with socket.socket(address_family(address), socket.SOCK_DGRAM) as sock:
            sock.connect((address, 9))  # looks up the route; sends no packet
    except OSError as exc:
        return exc.errno not in _NO_ROUTE_ERRNOS
    return True


def address_family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def send(transport: asyncio.WriteTransport, data: bytes | bytearray | memoryview[Any]) -> None:
    """Send nothing on a lost connection, whose protocol already has the error. uvloop would raise a RuntimeError."""
    if not transport.is_closing():
        transport.write(data)


def peer_address(transport: asyncio.BaseTransport) -> str:
    """The IP address of the other end; "" if the connection is lost or is no TCP connection."""
    peer = transport.get_extra_info("peername")
    return str(peer[0]) if isinstance(peer, tuple) else ""


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


def reject_self_connected_socket(sock: socket.SocketType, remote: tuple[str, int]) -> None:
    """As `reject_self_connect`, for a socket. The caller closes it."""
    if sock.getsockname()[:2] == remote:
        _raise_refused(sock)


def _raise_refused(sock: socket.SocketType) -> NoReturn:
    # Close with a reset. Otherwise the port stays in TIME_WAIT for a minute, and the service cannot bind to it.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


async def transport_from_socket(sock: socket.socket, protocol: Callable[[], P]) -> tuple[asyncio.Transport, P]:
    """A transport for a connected socket. The socket belongs to the transport, also if this fails."""
    loop = asyncio.get_running_loop()
    try:
        if sock.family == socket.AF_UNIX:
            return await loop.create_unix_connection(protocol, sock=sock)
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
    """Holds at most one open connection between two uses, and notices that its name has moved to other addresses."""

    __slots__ = ("_connection", "_lookup", "_loop", "_resolved_s")

    def __init__(self) -> None:
        self._connection: C | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lookup: asyncio.Task[list[str]] | None = None
        self._resolved_s: float | None = None  # None until a connection is reused for the first time

    def put(self, connection: C) -> None:
        self._connection, self._loop = connection, asyncio.get_running_loop()

    def take(self) -> C | None:
        """None if empty, or if the connection belongs to another event loop, as after a fork."""
        connection = self._connection if self._loop is asyncio.get_running_loop() else None
        self._connection = self._loop = None
        return connection

    def has_moved(self, host: str, address: str) -> bool:
        """Whether the host of the connection that was taken no longer has the address it is connected to.

        The name is resolved every `RESOLVE_INTERVAL_S`, and the check does not wait: the next one uses the result. A
        resolver that fails changes nothing. "" is an address that is not known.
        """
        if not address or is_ip_address(host):
            return False
        loop = asyncio.get_running_loop()
        lookup = self._lookup
        if lookup is not None and (lookup.done() or lookup.get_loop() is not loop):
            self._lookup = None
            if lookup.done() and not _includes(lookup, address):
                self._resolved_s = loop.time()
                return True
        if self._resolved_s is None:
            self._resolved_s = loop.time()
        elif self._lookup is None and loop.time() - self._resolved_s >= RESOLVE_INTERVAL_S:
            self._resolved_s = loop.time()
            self._lookup = pending_lookup(host)
        return False

    def close(self, abort: Callable[[C], None]) -> None:
        connection = self.take()
        if connection is not None:
            abort(connection)


def _includes(lookup: asyncio.Task[list[str]], address: str) -> bool:
    """Also True if the resolver failed; False if it says that the name does not exist."""
    if lookup.cancelled():
        return True
    if (error := lookup.exception()) is not None:
        return not (isinstance(error, socket.gaierror) and code_for_os_error(error) is ReasonCode.HOST_NOT_FOUND)
    return address.partition("%")[0] in {found.partition("%")[0] for found in lookup.result()}
