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

KEPT_S = 1.0
MAX_KEPT = 64
MAX_AT_ONCE = 512  # as many as may follow the events: all of them may ask for something else


class CrowdedError(Exception):
    """As much is being made as may be."""


class _Making(NamedTuple):
    began_s: float
    version: object
    result: asyncio.Task[Any]


class Shared:
    """It lives on the thread of the event loop."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, _Making] = {}
        self._under_way: set[asyncio.Task[Any]] = set()  # also those that are not kept

    async def get(self, key: Hashable, make: Callable[[], T], *, version: object = None) -> T:
        """What `make` returns on a thread, or returned a moment ago for the same version, or is about to."""
        return await self.get_awaited(key, lambda: asyncio.to_thread(make), version=version)

    async def get_awaited(
        self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]], *, version: object = None
    ) -> T:
        """The same, of what is awaited on the loop."""
        now_s = asyncio.get_running_loop().time()
        for old in [key for key, making in self._kept.items() if _is_over(making, now_s)]:
            del self._kept[old]
        making = self._kept.get(key)
        if making is None or making.version != version:
            making = _Making(now_s, version, self._begin(make))
            if key in self._kept or len(self._kept) < MAX_KEPT:
                self._kept[key] = making
        result: T = await asyncio.shield(making.result)  # one who leaves does not end it for the others
        return result

    def _begin(self, make: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        if len(self._under_way) >= MAX_AT_ONCE:
            raise CrowdedError
        task = asyncio.create_task(make())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task


def _is_over(making: _Making, now_s: float) -> bool:
    if not making.result.done():
        return False
    return making.result.cancelled() or making.result.exception() is not None or now_s - making.began_s >= KEPT_S
