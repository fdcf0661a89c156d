"""Timers: one timer of the event loop serves any number of callbacks, and the deadlines of checks."""

from __future__ import annotations

import heapq
import logging
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    Callback = Callable[[], object]

TIMER_RESOLUTION_S = 0.001  # uvloop's
# Callbacks within one tick run together, when the first of them is due. Larger batches are cheaper per callback, since
# code and data stay in the processor's caches; but requests to the node wait for the whole batch.
TICK_S = 0.005
TICKS_PER_S = round(1 / TICK_S)
MAX_RUN_S = 0.02  # what is due after that waits for one iteration of the loop, in which requests are answered

LATE_AFTER_S = 0.1
GRACE_S = 0.02
# A cancelled check usually ends at once. But asyncio and drivers sometimes lose a cancellation, and the check would
# never end, so it is cancelled again at this interval. The interval leaves time to clean up.
RECANCEL_AFTER_S = 0.5

log = logging.getLogger("svcnode.scheduler")


class TimerQueue:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.time = loop.time
        self._callbacks: dict[int, dict[Callback, None]] = {}  # by tick, in the order of `add`
        self._times_s: list[float] = []  # a heap: the first time of each tick
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = math.inf

    def add(self, at_s: float, callback: Callback) -> None:
        tick = int(at_s * TICKS_PER_S)
        callbacks = self._callbacks.get(tick)
        if callbacks is not None:
            callbacks[callback] = None
            return
        self._callbacks[tick] = {callback: None}
        heapq.heappush(self._times_s, at_s)
        if at_s < self._timer_at_s:
            self._set_timer(at_s)

    def cancel(self, at_s: float, callback: Callback) -> None:
        """Remove a callback that was added for this time, if it has not run. Without others, nothing wakes up then."""
        tick = int(at_s * TICKS_PER_S)
        callbacks = self._callbacks.get(tick)
        if callbacks is None:
            return
        callbacks.pop(callback, None)
        if not callbacks:
            del self._callbacks[tick]
            if abs(at_s - self._timer_at_s) <= TICK_S:  # the timer may be set for this tick
                self._set_next_timer()

    def close(self) -> None:
        self._callbacks.clear()
        self._times_s.clear()
        self._set_timer(math.inf)

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = at_s
        self._timer = None if at_s == math.inf else self._loop.call_at(at_s, self._run_due)

    def _run_due(self) -> None:
        self._timer_at_s = -math.inf  # `add` sets no timer while callbacks run
        end_s = self.time() + MAX_RUN_S
        # Timers may fire early by their resolution; a callback due within it runs now, or the timer would be set twice.
        while self._times_s and self._times_s[0] <= (now_s := self.time()) + TIMER_RESOLUTION_S and now_s < end_s:
            for callback in self._callbacks.pop(int(heapq.heappop(self._times_s) * TICKS_PER_S), ()):
                try:
                    callback()
                except Exception:
                    log.exception("scheduled callback failed", extra={"event": "callback_failed"})
        self._set_next_timer()

    def _set_next_timer(self) -> None:
        times_s = self._times_s
        while times_s and int(times_s[0] * TICKS_PER_S) not in self._callbacks:  # cancelled
            heapq.heappop(times_s)
        self._set_timer(times_s[0] if times_s else math.inf)


class Deadline:
    """The deadline of a check: calls `on_expired` when it has passed, and then every 0.5 s until it is cleared.

    It refers to the callback only until it is cleared.
    """

    __slots__ = ("_at_s", "_on_expired", "_timers", "expirations")

    def __init__(self, timers: TimerQueue) -> None:
        self._timers = timers
        self._on_expired: Callback | None = None
        self._at_s = math.inf
        self.expirations = 0  # the number of calls; the caller resets it

    @property
    def is_set(self) -> bool:
        return self._at_s < math.inf

    def set(self, at_s: float, on_expired: Callback) -> None:
        self._on_expired = on_expired
        self._set_timer(at_s)

    def _set_timer(self, at_s: float) -> None:
        self._at_s = at_s
        self._timers.add(at_s, self._enforce)

    def clear(self) -> None:
        if self.is_set:
            self._timers.cancel(self._at_s, self._enforce)
            self._at_s = math.inf
            self._on_expired = None

    def _enforce(self) -> None:
        assert self._on_expired is not None
        now_s = self._timers.time()
        late_s = now_s - self._at_s
        if late_s < -TIMER_RESOLUTION_S:  # callbacks are early by a tick at most
            self._set_timer(self._at_s)
        elif late_s > LATE_AFTER_S and not self.expirations:
            # The loop was blocked: a response may have arrived and is read first.
            self._set_timer(now_s + GRACE_S)
        else:
            self.expirations += 1
            self._set_timer(now_s + RECANCEL_AFTER_S)
            self._on_expired()
