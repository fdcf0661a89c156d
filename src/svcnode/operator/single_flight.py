"""SingleFlight: concurrent requests for the same response share one computation, and its result for one second.

Health is answered on the same event loop, so work over thousands of services runs in a thread.

A computation continues when its clients disconnect. The number of computations is therefore bounded: while a disk
hangs, the computations that read it do not end and would accumulate.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from svcnode.net.threads import call_in_pool

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable

T = TypeVar("T")

RESULT_TTL_S = 1.0
MAX_RESULTS = 64
MAX_IN_FLIGHT = 512  # as many as there may be event streams: every open page may request something different


class OverloadedError(Exception):
    """MAX_IN_FLIGHT computations are in progress."""


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
        result: T = await asyncio.shield(flight.task)  # cancelling one caller must not cancel the others
        return result

    def _start(self, make: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        if len(self._in_flight) >= MAX_IN_FLIGHT:
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
