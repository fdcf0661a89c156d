"""The state that all connections of a server share: limits, response cache, open connections and handler tasks."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from svcnode.net.clock import monotonic_s, next_tick_s
from svcnode.server.timeouts import TimeoutList

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from svcnode.server.response_cache import ResponseCache
    from svcnode.server.timeouts import ServerConnection


TICK_S = 1.0  # between two checks of the time limits
SILENT_GRACE_S = 1.0
NEW_CONNECTION_POLL_S = 0.02
BACKLOG_BUDGET_S = 0.002  # for pipelined requests, per turn of the event loop
BACKLOG_SLICE_S = 0.0002  # of it, per connection


class ServerLimits(NamedTuple):
    receive_s: float = 10.0  # to receive a complete request; received bytes do not extend it
    idle_s: float = 75.0
    send_s: float = 30.0  # for a client that does not read its responses
    linger_s: float = 2.0  # for a client to read an error response; further input is discarded
    request_line_bytes: int = 8 * 1024
    head_bytes: int = 32 * 1024
    headers: int = 100
    body_bytes: int = 64 * 1024
    connections: int = 4096
    unread_bytes: int = 64 * 1024 * 1024  # of all clients that do not read their responses


class ServerState:
    def __init__(self, cache: ResponseCache, limits: ServerLimits) -> None:
        self.cache = cache
        self.limits = limits
        self.loop = asyncio.get_running_loop()
        self.is_closing = False
        self.silent = TimeoutList(limits.receive_s)  # connections that have sent nothing yet
        self.receiving = TimeoutList(limits.receive_s)
        self.idle = TimeoutList(limits.idle_s)
        self.sending = TimeoutList(limits.send_s)
        self.lingering = TimeoutList(limits.linger_s)
        self.handling = TimeoutList(math.inf)  # a handler has its own timeout, a stream has none
        # A full server closes a connection of the first list that is not empty.
        self._timeout_lists = (
            self.silent,
            self.idle,
            self.lingering,
            self.receiving,
            self.sending,
            self.handling,
        )
        self._backlog: deque[ServerConnection] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._all_closed = asyncio.Event()
        self._next_tick: asyncio.TimerHandle | None = None  # None without connections

    @property
    def connection_count(self) -> int:
        return sum(map(len, self._timeout_lists))

    def connections(self) -> list[ServerConnection]:
        return [connection for timeout_list in self._timeout_lists for connection in timeout_list.connections()]

    def add_connection(self, connection: ServerConnection) -> None:
        if self.connection_count >= self.limits.connections:
            evicted = self._connection_to_evict(connection.active_at_s)
            self.remove_connection(evicted)
            evicted.abort()  # close() would wait until its buffer is sent
        self.silent.add(connection, connection.active_at_s)
        if self._next_tick is None:
            self._schedule_tick()
        if self.is_closing:  # accepted just before the listener closed
            connection.abort()

    def _connection_to_evict(self, now_s: float) -> ServerConnection:
        """A new client has a moment to send its request, unless most connections are silent."""
        lists = [each for each in self._timeout_lists if each]
        if lists[0] is self.silent and len(lists) > 1 and 2 * len(self.silent) < self.limits.connections:
            oldest = self.silent.least_recently_active()
            if now_s - oldest.active_at_s < SILENT_GRACE_S:
                lists.pop(0)
        return lists[0].least_recently_active()

    def remove_connection(self, connection: ServerConnection) -> None:
        connection.timeout_list.remove(connection)
        if not self.connection_count:
            self._all_closed.set()

    # ---- time limits

    def _schedule_tick(self) -> None:
        self._next_tick = self.loop.call_at(next_tick_s(self.loop.time(), TICK_S), self._tick)

    def cancel_tick(self) -> None:
        if self._next_tick is not None:
            self._next_tick.cancel()
            self._next_tick = None

    def _tick(self) -> None:
        self._next_tick = None
        if self.connection_count:
            self._schedule_tick()
            self._enforce_time_limits(monotonic_s())
            self.enforce_unread_limit()

    def _enforce_time_limits(self, now_s: float) -> None:
        # `inactive`, not `expired`: a cached response updates the time of the connection, but not the list.
        for connection in self.idle.inactive(now_s):
            connection.close()
        for connection in (*self.silent.expired(now_s), *self.receiving.expired(now_s)):
            connection.handle_timeout()
        for connection in self.sending.expired(now_s):
            if connection.is_reading_slowly():
                self.sending.add(connection, now_s)
            else:
                connection.abort()
        for connection in self.lingering.expired(now_s):
            if connection.buffered_bytes:  # the client has not read the error response yet
                connection.is_reading_slowly()
                self.sending.add(connection, now_s)
            else:
                connection.abort()

    # ---- pipelined requests

    def enqueue(self, connection: ServerConnection) -> None:
        """Answer more requests of this connection later, in turn with others."""
        if not self._backlog:
            self.loop.call_soon(self._run_backlog)
        self._backlog.append(connection)

    def _run_backlog(self) -> None:
        """Runs once per turn of the event loop for a bounded time: new connections and single requests go first."""
        deadline_s = monotonic_s() + BACKLOG_BUDGET_S
        for _ in range(len(self._backlog)):
            connection = self._backlog.popleft()
            if connection.answer_queued(min(deadline_s, monotonic_s() + BACKLOG_SLICE_S)):
                self._backlog.append(connection)
            if monotonic_s() >= deadline_s:
                break
        if self._backlog:
            self.loop.call_soon(self._run_backlog)

    # ---- clients that do not read

    def enforce_unread_limit(self) -> None:
        """Abort the connections with the most unread bytes until the total is within the limit."""
        debts = {connection: connection.buffered_bytes for connection in self.sending.connections()}
        total_bytes = sum(debts.values())
        for connection in sorted(debts, key=debts.__getitem__, reverse=True):
            if total_bytes <= self.limits.unread_bytes:
                break
            total_bytes -= debts[connection]
            connection.abort()

    def start_task(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start a task of a connection, which also cancels it."""
        task = self.loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def wait_new_connections(self) -> None:
        """Wait until each client that has just connected has sent its request."""
        deadline_s = monotonic_s() + SILENT_GRACE_S
        await asyncio.sleep(0)  # connections that the listener has accepted, but not reported
        while monotonic_s() < deadline_s and self._has_new_connection():  # noqa: ASYNC110  no event costs less
            await asyncio.sleep(NEW_CONNECTION_POLL_S)

    def _has_new_connection(self) -> bool:
        new_since_s = monotonic_s() - SILENT_GRACE_S
        return any(connection.active_at_s > new_since_s for connection in self.silent.connections())

    async def wait_all_closed(self) -> None:
        while self.connection_count:
            self._all_closed.clear()
            await self._all_closed.wait()

    async def wait_tasks_done(self) -> None:
        await asyncio.gather(*self._tasks, return_exceptions=True)
