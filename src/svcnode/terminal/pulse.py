"""Whether we keep up ourselves: a node must not be blamed for the time in which its answer waited for us."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Collection

BEAT_S = 0.02
LATE_S = 0.1  # by so much later than it should, a beat says that the loop was held up; drawing a screen takes less
GRACE_S = 0.2  # from then on, for what waits to be read, and for what follows from it
MAX_LATE_S = 60.0  # by so much, a deadline is put off at most


class Pulse:
    """Beats for as long as the `with` block runs; one serves any number of deadlines."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._held_up_s = -math.inf  # when that was noticed last

    def __enter__(self) -> Self:
        self._beat()
        return self

    def __exit__(self, *_: object) -> None:
        self._next.cancel()

    def _beat(self) -> None:
        self._next = self._loop.call_later(BEAT_S, self._hear)

    def _hear(self) -> None:
        self._note()
        self._beat()

    def _note(self) -> None:
        now_s = self._loop.time()
        if now_s - self._next.when() > LATE_S:
            self._held_up_s = now_s

    def fair_s(self, due_s: float) -> float:
        """When a deadline is over that was due then: later while we do not keep up, but not for ever."""
        self._note()  # whoever asks may have come before a beat that is late
        return min(max(due_s, self._held_up_s + GRACE_S), due_s + MAX_LATE_S)

    async def wait(self, tasks: Collection[asyncio.Task[Any]], due_s: float) -> None:
        """Until all are done, or their time is over. Cancels nothing."""
        pending = {task for task in tasks if not task.done()}
        while pending and (left_s := self.fair_s(due_s) - self._loop.time()) > 0:
            _, pending = await asyncio.wait(pending, timeout=left_s)
