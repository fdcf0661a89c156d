"""Detects lag of our own event loop, so that a timeout does not count the time in which a response waited for us."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Collection

TICK_S = 0.02
LAG_THRESHOLD_S = 0.1  # a tick that is later by this much means lag; drawing a screen takes less
GRACE_S = 0.2  # after lag, time to read the data that arrived in between
MAX_EXTENSION_S = 60.0


class LoopLagMonitor:
    """Runs for the duration of the `with` block. One monitor serves any number of deadlines."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._last_lag_at_s = -math.inf

    def __enter__(self) -> Self:
        self._schedule_tick()
        return self

    def __exit__(self, *_: object) -> None:
        self._next_tick.cancel()

    def _schedule_tick(self) -> None:
        self._next_tick = self._loop.call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._record_lag()
        self._schedule_tick()

    def _record_lag(self) -> None:
        now_s = self._loop.time()
        if now_s - self._next_tick.when() > LAG_THRESHOLD_S:
            self._last_lag_at_s = now_s

    def extended_deadline_s(self, due_s: float) -> float:
        """The deadline, later by up to MAX_EXTENSION_S if the loop lags."""
        self._record_lag()  # the caller may run before a tick that is late
        return min(max(due_s, self._last_lag_at_s + GRACE_S), due_s + MAX_EXTENSION_S)

    async def wait(self, tasks: Collection[asyncio.Task[Any]], due_s: float) -> None:
        """Return when all tasks are done or the deadline has passed. Cancels nothing."""
        pending = {task for task in tasks if not task.done()}
        while pending and (left_s := self.extended_deadline_s(due_s) - self._loop.time()) > 0:
            _, pending = await asyncio.wait(pending, timeout=left_s)
