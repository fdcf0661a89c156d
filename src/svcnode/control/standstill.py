"""When a request was sent, at the earliest: not when it is read, if the node stood still in between.

A process that is stopped, or whose machine sleeps, reads on waking what was sent meanwhile, in any order. A report of
Up among that is old, and may be older than a report of Down that is read before it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

TICK_S = 1.0
MAX_LATE_S = 1.0  # a tick that is later says that the node stood still
CATCH_UP_S = 2.0  # after that, what was sent before has been read


class Standstill:
    """The last one. Call `tick` at least every `TICK_S` while the event loop runs."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_tick_s = self.ended_at_s = clock()  # the node did not listen before its start
        self._began_at_s = -math.inf

    def tick(self) -> float:
        """Returns the time."""
        now_s = self._clock()
        if now_s - self._last_tick_s > TICK_S + MAX_LATE_S:
            self._began_at_s, self.ended_at_s = self._last_tick_s, now_s
        self._last_tick_s = now_s
        return now_s

    def sent_at_s(self) -> float:
        """Of a request that has just been read."""
        now_s = self.tick()
        is_catching_up = now_s - self.ended_at_s < CATCH_UP_S and self._began_at_s > -math.inf
        return self._began_at_s if is_catching_up else now_s
