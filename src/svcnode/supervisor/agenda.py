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

TIMER_GRAIN_S = 0.001  # uvloop's
# What is due within the same grain is done together, when the first of it is due. The more is done together, the less
# each costs, since the processor's caches know it still; but whoever asks the node meanwhile has to wait.
GRAIN_S = 0.002
GRAINS_PER_S = round(1 / GRAIN_S)

log = logging.getLogger("svcnode.supervisor")


class Agenda:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._actions: dict[int, list[Action]] = {}  # by the grain
        self._times_s: list[float] = []  # a heap: when the first of each grain is due
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at_s = math.inf

    def add(self, at_s: float, action: Action) -> None:
        grain = int(at_s * GRAINS_PER_S)
        actions = self._actions.get(grain)
        if actions is not None:
            actions.append(action)
            return
        self._actions[grain] = [action]
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
            for action in self._actions.pop(int(heapq.heappop(self._times_s) * GRAINS_PER_S)):
                try:
                    action()
                except Exception:
                    log.exception("something that was due failed; the rest goes on")
        self._set_timer(self._times_s[0] if self._times_s else math.inf)
