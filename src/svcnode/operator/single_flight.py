"""What takes its time is made once for all who ask for it within a second, and apart from the loop where it can be.

Health is answered by the loop that visitors are attended on, and must not wait for thousands of services to be walked.

Whoever leaves does not end what they asked for. So there is a bound to what is made at once: while a disk hangs,
nothing that waits for it is done, and all that is asked for would pile up.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable

T = TypeVar("T")

RESULT_TTL_S = 1.0
MAX_RESULTS = 64
MAX_IN_FLIGHT = 512  # as many as may follow the events: all of them may ask for something else


class OverloadedError(Exception):
    """As much is being made as may be."""


class _Flight(NamedTuple):
    started_s: float
    version: object
    task: asyncio.Task[Any]


class SingleFlight:
    """It lives on the thread of the event loop."""

    def __init__(self) -> None:
        self._flights: dict[Hashable, _Flight] = {}
        self._in_flight: set[asyncio.Task[Any]] = set()  # also those that are not kept

    async def get(self, key: Hashable, make: Callable[[], T], *, version: object = None) -> T:
        """What `make` returns on a thread, or returned a moment ago for the same version, or is about to."""
        return await self.get_async(key, lambda: asyncio.to_thread(make), version=version)

    async def get_async(
        self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]], *, version: object = None
    ) -> T:
        """The same, of what is awaited on the loop."""
        now_s = asyncio.get_running_loop().time()
        for old in [key for key, making in self._flights.items() if _is_expired(making, now_s)]:
            del self._flights[old]
        making = self._flights.get(key)
        if making is None or making.version != version:
            making = _Flight(now_s, version, self._start(make))
            if key in self._flights or len(self._flights) < MAX_RESULTS:
                self._flights[key] = making
        result: T = await asyncio.shield(making.task)  # one who leaves does not end it for the others
        return result

    def _start(self, make: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        if len(self._in_flight) >= MAX_IN_FLIGHT:
            raise OverloadedError
        task = asyncio.create_task(make())
        self._in_flight.add(task)
        task.add_done_callback(self._in_flight.discard)
        return task


def _is_expired(flight: _Flight, now_s: float) -> bool:
    if not flight.task.done():
        return False
    return flight.task.cancelled() or flight.task.exception() is not None or now_s - flight.started_s >= RESULT_TTL_S
