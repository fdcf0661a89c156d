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

from svcnode.clock import steady_s
from svcnode.core.wording import system_words
from svcnode.web.answers import AnswerTable
from svcnode.web.connection import Connection
from svcnode.web.rooms import Room
from svcnode.web.visits import Door

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Coroutine

    from svcnode.node import Node

log = logging.getLogger("svcnode.web")

TICK_S = 0.25
BACKLOG = 1024
ACCEPT_AGAIN_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    receive_s: float = 10.0  # for a whole request; a byte now and then does not extend it
    idle_s: float = 75.0
    send_s: float = 30.0  # for a client that has stopped reading its answers
    linger_s: float = 2.0  # for a refused client to read why, while what it still sends is thrown away
    request_line_bytes: int = 8 * 1024
    head_bytes: int = 32 * 1024
    headers: int = 100
    body_bytes: int = 64 * 1024
    connections: int = 4096


class WireServer:
    """Serves one node on any number of listeners. It lives on the thread of the running event loop."""

    def __init__(self, node: Node, prefixes: tuple[str, ...], limits: Limits | None = None) -> None:
        self.node = node
        self.limits = limits or Limits()
        self.answers = AnswerTable(node, prefixes)
        self.loop = asyncio.get_running_loop()
        self.is_closing = False
        self.receiving = Room(self.limits.receive_s)
        self.idle = Room(self.limits.idle_s)
        self.sending = Room(self.limits.send_s)
        self.lingering = Room(self.limits.linger_s)
        self.visiting = Room(math.inf)  # an answer that is being made has a deadline of its own, and a stream has none
        # In the order in which they are asked to make place for a newcomer.
        self._rooms = (self.idle, self.lingering, self.receiving, self.sending, self.visiting)
        self._visits: set[asyncio.Task[None]] = set()
        self._listeners: dict[socket.socket, asyncio.Server | _TlsListener] = {}
        self._everyone_left = asyncio.Event()
        self._next_tick = self.loop.call_later(TICK_S, self._tick)

    def set_prefixes(self, prefixes: tuple[str, ...]) -> None:
        self.answers = AnswerTable(self.node, prefixes)

    async def listen(self, sock: socket.socket, tls: ssl.SSLContext | None = None, door: Door | None = None) -> None:
        """Accept connections on a bound socket, which is the server's from here on."""
        door = door or Door()
        if tls is None:
            self._listeners[sock] = await self.loop.create_server(
                lambda: Connection(self, door), sock=sock, backlog=BACKLOG
            )
        else:
            self._listeners[sock] = _TlsListener(self, sock, tls, door)

    def stop_listening(self, sock: socket.socket) -> None:
        """Accept no more there; who is connected stays."""
        self._listeners.pop(sock).close()

    async def close(self, grace_s: float = 5.0) -> None:
        """Stop accepting, let requests in flight finish, and close every connection."""
        for sock in list(self._listeners):
            self.stop_listening(sock)
        self.is_closing = True
        for connection in self._everyone():
            connection.finish()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._until_everyone_left()
        if self.connection_count:
            log.warning("%d connections did not finish in %g s and were cut", self.connection_count, grace_s)
            for connection in self._everyone():
                connection.abort()
            await self._until_everyone_left()
        await asyncio.gather(*self._visits, return_exceptions=True)
        self._next_tick.cancel()

    async def _until_everyone_left(self) -> None:
        while self.connection_count:
            self._everyone_left.clear()
            await self._everyone_left.wait()

    def _everyone(self) -> list[Connection]:
        return [connection for room in self._rooms for connection in room.all()]

    @property
    def connection_count(self) -> int:
        return sum(map(len, self._rooms))

    def admit(self, connection: Connection) -> None:
        if self.connection_count >= self.limits.connections:
            longest_idle = next(room for room in self._rooms if room).longest_idle()
            self.leave(longest_idle)
            longest_idle.abort()  # not closed: it could take its time to read what is left
        self.receiving.enter(connection, connection.active_at_s)
        if self.is_closing:  # it was being accepted just then
            connection.abort()

    def attend(self, visit: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Begin an answer that takes a while; whoever asked for it ends it."""
        task = self.loop.create_task(visit)
        self._visits.add(task)
        task.add_done_callback(self._visits.discard)
        return task

    def leave(self, connection: Connection) -> None:
        connection.room.leave(connection)
        if not self.connection_count:
            self._everyone_left.set()

    def _tick(self) -> None:
        self._next_tick = self.loop.call_later(TICK_S, self._tick)
        now_s = steady_s()
        for connection in self.idle.silent(now_s):  # answering does not touch the room, so that it costs nothing
            connection.close()
        for connection in self.receiving.overdue(now_s):
            connection.time_out()
        for connection in (*self.sending.overdue(now_s), *self.lingering.overdue(now_s)):
            connection.abort()


class _TlsListener:
    """Accepts connections that begin with a handshake.

    The loop's own listener would tell us of them when that has ended, and of those that never end it not at all.
    """

    def __init__(self, server: WireServer, sock: socket.socket, tls: ssl.SSLContext, door: Door) -> None:
        self._server = server
        self._door = door
        self._sock = sock
        self._tls = tls
        self._again: asyncio.TimerHandle | None = None
        sock.listen(BACKLOG)
        sock.setblocking(False)
        self._listen()

    def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
        self._server.loop.remove_reader(self._sock)
        self._sock.close()

    def _listen(self) -> None:
        self._server.loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # whoever it was has left
        except OSError as exc:  # no file descriptor is left, most likely: it would be so again at once
            log.error("cannot accept a connection, trying again in %g s: %s", ACCEPT_AGAIN_S, system_words(exc))  # noqa: TRY400  no fault in the code
            self._server.loop.remove_reader(self._sock)
            self._again = self._server.loop.call_later(ACCEPT_AGAIN_S, self._listen)
            return
        sock.setblocking(False)
        Connection(self._server, self._door).shake_hands(sock, self._tls)
