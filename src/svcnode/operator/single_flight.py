"""SingleFlight: concurrent requests for the same response share one computation, and its result for one second.

Health is answered on the same event loop, so work over thousands of services runs in a thread.

A computation continues when its clients disconnect, until `close`. The number of computations is therefore bounded:
while a disk hangs, the computations that read it do not end and would accumulate.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from svcnode.net.threads import call_in_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable

T = TypeVar("T")

RESULT_TTL_S = 1.0
CLOSE_TIMEOUT_S = 1.0
MAX_RESULTS = 64
MAX_IN_FLIGHT = 512  # as many as there may be event streams: every open page may request something different


class OverloadedError(Exception):
    """MAX_IN_FLIGHT computations are in progress, or the node stops."""


class _Flight(NamedTuple):
    started_s: float
    version: object
    task: asyncio.Task[Any]


class SingleFlight:
    """Used on the thread of the event loop only."""

    def __init__(self, *, lasts: bool = False) -> None:
        """`lasts`: a result is shared until it is asked for with another version."""
        self._lasts = lasts
        self._flights: dict[Hashable, _Flight] = {}
        self._in_flight: set[asyncio.Task[Any]] = set()  # including those whose result is not cached
        self._is_closed = False

    async def close(self) -> None:
        """Let the computations end, which may have begun others, and begin no more; cancel what hangs."""
        self._is_closed = True
        if self._in_flight:
            _, hanging = await asyncio.wait(self._in_flight, timeout=CLOSE_TIMEOUT_S)
            for task in hanging:
                task.cancel()
            await asyncio.sleep(0)

    async def get(self, key: Hashable, make: Callable[[], T], *, version: object = None) -> T:
        """The result of `make()`, run in a thread; shared with other calls for the same key and version."""
        return await self.get_async(key, lambda: call_in_pool(make), version=version)

    async def get_async(
        self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]], *, version: object = None
    ) -> T:
        """As `get`, for a coroutine function, which runs on the event loop."""
        now_s = asyncio.get_running_loop().time()
        for expired in [key for key, flight in self._flights.items() if self._is_expired(flight, now_s)]:
            del self._flights[expired]
        flight = self._flights.get(key)
        if flight is None or flight.version != version:
            flight = _Flight(now_s, version, self._start(make))
            if key in self._flights or len(self._flights) < MAX_RESULTS:
                self._flights[key] = flight
        try:
            result: T = await asyncio.shield(flight.task)  # cancelling one caller must not cancel the others
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._is_closed and caller is not None and not caller.cancelling():
                raise OverloadedError from None
            raise
        return result

    def _start(self, make: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        if self._is_closed or len(self._in_flight) >= MAX_IN_FLIGHT:
            raise OverloadedError
        task = asyncio.create_task(make())
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)
        return task

    def _is_expired(self, flight: _Flight, now_s: float) -> bool:
        task = flight.task
        if not task.done():
            return False
        if task.cancelled() or task.exception() is not None:
            return True
        return not self._lasts and now_s - flight.started_s >= RESULT_TTL_S
