"""The agent's HTTP/1.1 server: listeners, limits, and the rooms its connections wait in.

Reading and answering is `connection`'s, the ready answers are `answers`'. The loop is uvloop's where it is installed.
"""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from svcnode.api.app import Mount
from svcnode.clock import monotonic_s
from svcnode.core.text import os_error_text
from svcnode.server.connection import Connection
from svcnode.server.response_cache import ResponseCache
from svcnode.server.timeouts import TimeoutList

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Coroutine

    from svcnode.node import Node

log = logging.getLogger("svcnode.server")

TICK_S = 0.25
BACKLOG = 1024
ACCEPT_RETRY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    receive_s: float = 10.0  # for a whole request; a byte now and then does not extend it
    idle_s: float = 75.0
    send_s: float = 30.0  # for a client that has stopped reading its answers
    linger_s: float = 2.0  # for a refused client to read why, while what it still sends is thrown away
    request_line_bytes: int = 8 * 1024
    head_bytes: int = 32 * 1024
    headers: int = 100
    body_bytes: int = 64 * 1024
    connections: int = 4096


class HttpServer:
    """Serves one node on any number of listeners. It lives on the thread of the running event loop."""

    def __init__(self, node: Node, prefixes: tuple[str, ...], limits: ServerLimits | None = None) -> None:
        self.node = node
        self.limits = limits or ServerLimits()
        self.cache = ResponseCache(node, prefixes)
        self.loop = asyncio.get_running_loop()
        self.is_closing = False
        self.receiving = TimeoutList(self.limits.receive_s)
        self.idle = TimeoutList(self.limits.idle_s)
        self.sending = TimeoutList(self.limits.send_s)
        self.lingering = TimeoutList(self.limits.linger_s)
        self.handling = TimeoutList(
            math.inf
        )  # an answer that is being made has a deadline of its own, and a stream has none
        # In the order in which they are asked to make place for a newcomer.
        self._timeout_lists = (self.idle, self.lingering, self.receiving, self.sending, self.handling)
        self._handler_tasks: set[asyncio.Task[None]] = set()
        self._listeners: dict[socket.socket, asyncio.Server | _TlsListener] = {}
        self._all_closed = asyncio.Event()
        self._next_tick = self.loop.call_later(TICK_S, self._tick)

    def set_prefixes(self, prefixes: tuple[str, ...]) -> None:
        self.cache = ResponseCache(self.node, prefixes)

    async def listen(self, sock: socket.socket, tls: ssl.SSLContext | None = None, mount: Mount | None = None) -> None:
        """Accept connections on a bound socket, which is the server's from here on."""
        mount = mount or Mount()
        if tls is None:
            self._listeners[sock] = await self.loop.create_server(
                lambda: Connection(self, mount), sock=sock, backlog=BACKLOG
            )
        else:
            self._listeners[sock] = _TlsListener(self, sock, tls, mount)

    def stop_listening(self, sock: socket.socket) -> None:
        """Accept no more there; who is connected stays."""
        self._listeners.pop(sock).close()

    async def close(self, grace_s: float = 5.0) -> None:
        """Stop accepting, let requests in flight finish, and close every connection."""
        for sock in list(self._listeners):
            self.stop_listening(sock)
        self.is_closing = True
        for connection in self._connections():
            connection.shutdown()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._wait_all_closed()
        if self.connection_count:
            log.warning("%d connections did not finish in %g s and were cut", self.connection_count, grace_s)
            for connection in self._connections():
                connection.abort()
            await self._wait_all_closed()
        await asyncio.gather(*self._handler_tasks, return_exceptions=True)
        self._next_tick.cancel()

    async def _wait_all_closed(self) -> None:
        while self.connection_count:
            self._all_closed.clear()
            await self._all_closed.wait()

    def _connections(self) -> list[Connection]:
        return [connection for room in self._timeout_lists for connection in room.connections()]

    @property
    def connection_count(self) -> int:
        return sum(map(len, self._timeout_lists))

    def add_connection(self, connection: Connection) -> None:
        if self.connection_count >= self.limits.connections:
            longest_idle = next(room for room in self._timeout_lists if room).least_recently_active()
            self.remove_connection(longest_idle)
            longest_idle.abort()  # not closed: it could take its time to read what is left
        self.receiving.add(connection, connection.active_at_s)
        if self.is_closing:  # it was being accepted just then
            connection.abort()

    def start_handler(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Begin an answer that takes a while; whoever asked for it ends it."""
        task = self.loop.create_task(coroutine)
        self._handler_tasks.add(task)
        task.add_done_callback(self._handler_tasks.discard)
        return task

    def remove_connection(self, connection: Connection) -> None:
        connection.timeout_list.remove(connection)
        if not self.connection_count:
            self._all_closed.set()

    def _tick(self) -> None:
        self._next_tick = self.loop.call_later(TICK_S, self._tick)
        now_s = monotonic_s()
        for connection in self.idle.inactive(now_s):  # answering does not touch the room, so that it costs nothing
            connection.close()
        for connection in self.receiving.expired(now_s):
            connection.handle_timeout()
        for connection in (*self.sending.expired(now_s), *self.lingering.expired(now_s)):
            connection.abort()


class _TlsListener:
    """Accepts connections that begin with a handshake.

    The loop's own listener would tell us of them when that has ended, and of those that never end it not at all.
    """

    def __init__(self, server: HttpServer, sock: socket.socket, tls: ssl.SSLContext, mount: Mount) -> None:
        self._server = server
        self._mount = mount
        self._sock = sock
        self._tls = tls
        self._retry_timer: asyncio.TimerHandle | None = None
        sock.listen(BACKLOG)
        sock.setblocking(False)
        self._start_accepting()

    def close(self) -> None:
        if self._retry_timer is not None:
            self._retry_timer.cancel()
        self._server.loop.remove_reader(self._sock)
        self._sock.close()

    def _start_accepting(self) -> None:
        self._server.loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # whoever it was has left
        except OSError as exc:  # no file descriptor is left, most likely: it would be so again at once
            log.error("cannot accept a connection, trying again in %g s: %s", ACCEPT_RETRY_S, os_error_text(exc))  # noqa: TRY400  no fault in the code
            self._server.loop.remove_reader(self._sock)
            self._retry_timer = self._server.loop.call_later(ACCEPT_RETRY_S, self._start_accepting)
            return
        sock.setblocking(False)
        Connection(self._server, self._mount).start_tls(sock, self._tls)
