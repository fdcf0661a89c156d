"""What is to be done when. One timer serves it, however much there is to do."""

from __future__ import annotations

import heapq
import logging
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    Action = Callable[[], None]

# The grain of uvloop's timers. What is due within the same millisecond is done at once, when the first of it is due.
TIMER_GRAIN_S = 0.001

log = logging.getLogger("svcnode.supervisor")


class Agenda:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._actions: dict[int, list[Action]] = {}  # by the millisecond
        self._times_s: list[float] = []  # a heap: when the first of each millisecond is due
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = math.inf

    def add(self, at_s: float, action: Action) -> None:
        millisecond = int(at_s * 1000)
        actions = self._actions.get(millisecond)
        if actions is not None:
            actions.append(action)
            return
        self._actions[millisecond] = [action]
        heapq.heappush(self._times_s, at_s)
        if at_s < self._timer_at_s:
            self._set_timer(at_s)

    def close(self) -> None:
        self._actions.clear()
        self._times_s.clear()
        self._set_timer(math.inf)

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_s = at_s
        self._timer = None if at_s == math.inf else self._loop.call_at(at_s, self._serve)

    def _serve(self) -> None:
        self._timer_at_s = -math.inf  # what is added meanwhile sets no timer
        # Timers come up to half a grain early: what is due within one is due now, or they would be set for nothing.
        while self._times_s and self._times_s[0] <= self._loop.time() + TIMER_GRAIN_S:
            for action in self._actions.pop(int(heapq.heappop(self._times_s) * 1000)):
                try:
                    action()
                except Exception:
                    log.exception("something that was due failed; the rest goes on")
        self._set_timer(self._times_s[0] if self._times_s else math.inf)
