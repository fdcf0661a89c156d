"""An HTTP server on its own thread and event loop, and a client that sends raw bytes."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self, TypeVar

import uvloop

from svcnode import Node
from svcnode.agent.embed.node import internals_of
from svcnode.net.clock import monotonic_s
from svcnode.server.server import HttpServer
from svcnode.server.state import ServerLimits, ServerState

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator

    from svcnode.api.app import Mount
    from svcnode.node.node_state import NodeState

T = TypeVar("T")

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "uvloop": uvloop.new_event_loop,
    "asyncio": asyncio.new_event_loop,
}
WAIT_TIMEOUT_S = 30.0  # for events that a busy machine may delay
LONG_S = 300.0  # a limit that no test reaches
LONG_LIMITS = ServerLimits(receive_s=LONG_S, idle_s=LONG_S, send_s=LONG_S, linger_s=LONG_S)


@dataclass(frozen=True, slots=True)
class RawResponse:
    code: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    version: str = "HTTP/1.1"

    def get_all(self, name: str) -> list[str]:
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def header(self, name: str) -> str | None:
        """The value of a header, which must not be repeated."""
        values = self.get_all(name)
        assert len(values) < 2, f"{name} occurs {len(values)} times"
        return values[0] if values else None

    @property
    def without_date(self) -> RawResponse:
        """The response without the header that changes every second."""
        headers = tuple(pair for pair in self.headers if pair[0] != "Date")
        return RawResponse(self.code, headers, self.body, self.version)


def request(
    target: str | bytes,
    *headers: str,
    method: str = "GET",
    version: str = "HTTP/1.1",
    body: bytes = b"",
    host: str = "node.example",
) -> bytes:
    """A request with a Host header, and with a Content-Length if it has a body and no other framing."""
    raw_target = target.encode() if isinstance(target, str) else target
    lines = [f"Host: {host}", *headers]
    if body and not any(line.lower().startswith(("content-length:", "transfer-encoding:")) for line in lines):
        lines.append(f"Content-Length: {len(body)}")
    head = "".join(f"{line}\r\n" for line in lines).encode("latin-1")
    return b"%s %s %s\r\n%s\r\n%s" % (method.encode(), raw_target, version.encode(), head, body)


class RawClient:
    """One connection. Every wait has a timeout."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.sock.settimeout(WAIT_TIMEOUT_S)
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def request(self, data: bytes, *, is_head: bool = False) -> RawResponse:
        self.send(data)
        return self.read(is_head=is_head)

    def read(self, *, is_head: bool = False) -> RawResponse:
        """The next complete response."""
        while b"\r\n\r\n" not in self._received:
            self._receive()
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        status_line, *lines = head.decode("latin-1").split("\r\n")
        version, code, _ = status_line.split(" ", 2)
        headers = tuple((name, value.strip()) for name, _, value in (line.partition(":") for line in lines))
        response = RawResponse(int(code), headers, b"", version)
        if is_head or response.code in (100, 204, 304):
            return response
        length = response.header("Content-Length")
        assert length is not None, f"no Content-Length in {head!r}"
        while len(self._received) < int(length):
            self._receive()
        body, self._received = self._received[: int(length)], self._received[int(length) :]
        return RawResponse(response.code, headers, body, version)

    @property
    def unread(self) -> bytes:
        """Bytes received after the last response."""
        return self._received

    def read_to_end(self) -> bytes:
        """All bytes until the server closes or resets the connection."""
        try:
            while True:
                self._receive()
        except (EOFError, ConnectionResetError):
            unread, self._received = self._received, b""
            return unread

    def is_closed(self) -> bool:
        """True if the server closes without sending anything."""
        return self.read_to_end() == b""

    def receives_nothing(self, for_s: float = 0.05) -> bool:
        """True if the server neither sends nor closes."""
        self.sock.settimeout(for_s)
        try:
            self._receive()
        except TimeoutError:
            return self._received == b""
        except (EOFError, ConnectionResetError):
            return False
        finally:
            self.sock.settimeout(WAIT_TIMEOUT_S)
        return False

    def _receive(self) -> None:
        data = self.sock.recv(256 * 1024)
        if not data:
            raise EOFError(f"the server closed the connection; unread: {self._received!r}")
        self._received += data


@dataclass
class RunningServer:
    """An HTTP server on its own thread; `call` runs a function on that thread."""

    server: HttpServer
    loop: asyncio.AbstractEventLoop
    listener: socket.socket
    address: Any
    loop_errors: list[dict[str, Any]] = field(default_factory=list)  # contexts of the loop's exception handler

    @property
    def state(self) -> ServerState:
        return self.server.state

    def connect(self, *, receive_buffer: int | None = None, send_buffer: int | None = None) -> RawClient:
        sock = socket.socket(self.listener.family, socket.SOCK_STREAM)
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        if send_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        sock.settimeout(WAIT_TIMEOUT_S)
        try:
            sock.connect(self.address)
        except OSError:
            sock.close()
            raise
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return RawClient(sock)

    def request(self, data: bytes, *, is_head: bool = False) -> RawResponse:
        """Send one request on a new connection."""
        with self.connect() as client:
            return client.request(data, is_head=is_head)

    def call(self, function: Callable[[], T]) -> T:
        async def run() -> T:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(WAIT_TIMEOUT_S)

    def close(self, grace_s: float = 0.0) -> None:
        asyncio.run_coroutine_threadsafe(self.server.close(grace_s), self.loop).result(grace_s + WAIT_TIMEOUT_S)

    def wait_for_reads(self) -> None:
        """Give the server time to read the bytes sent so far. If the time is too short, the test only proves less."""
        for _ in range(3):
            self.call(lambda: None)
            time.sleep(0.002)

    def tasks(self) -> set[asyncio.Task[Any]]:
        """The tasks on the server's loop."""
        return self.call(lambda: {task for task in asyncio.all_tasks() if task is not asyncio.current_task()})

    def enforce_time_limits(self, passed_s: float) -> None:
        """As if this much time had passed since now."""
        self.call(lambda: self.state._enforce_time_limits(monotonic_s() + passed_s))

    def count(self) -> int:
        return self.call(lambda: self.state.connection_count)


@contextmanager
def running_server(
    node: Node | NodeState,
    loop_name: str = "uvloop",
    *,
    prefixes: tuple[str, ...] = ("/svc",),
    limits: ServerLimits | None = None,
    tls: ssl.SSLContext | None = None,
    listener: socket.socket | None = None,
    mount: Mount | None = None,
) -> Iterator[RunningServer]:
    """Serve the node inside the block. Afterwards no task and no loop error may be left."""
    listener = listener or loopback_socket()
    loop = LOOPS[loop_name]()
    thread = threading.Thread(target=loop.run_forever, name="server under test", daemon=True)
    thread.start()
    loop_errors: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: loop_errors.append(context))

    async def start() -> HttpServer:
        state = internals_of(node).state if isinstance(node, Node) else node
        server = HttpServer(state, prefixes, limits)
        await server.listen(listener, tls, mount)
        return server

    try:
        server = asyncio.run_coroutine_threadsafe(start(), loop).result(WAIT_TIMEOUT_S)
        running = RunningServer(server, loop, listener, listener.getsockname(), loop_errors)
        try:
            yield running
        finally:
            running.close()
        assert not running.tasks()
        assert not loop_errors
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(WAIT_TIMEOUT_S)
        loop.close()
        listener.close()


def loopback_socket(family: socket.AddressFamily = socket.AF_INET) -> socket.socket:
    """A socket bound to a free port."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
    return sock


def small_send_buffers() -> socket.socket:
    """A listener whose connections have small send buffers."""
    listener = loopback_socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    return listener


def becomes_true(condition: Callable[[], bool], within_s: float = WAIT_TIMEOUT_S) -> bool:
    """Polls the condition."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.005)
    return True
