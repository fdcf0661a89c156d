"""When the node stood still: its process was stopped, or its machine slept.

On waking, two things follow. Evidence that expired meanwhile is missing because of this machine. And a request that is
read now may have been sent at any time since: a report of Up among them is old, and may be older than a report of Down
that is read before it.
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
    """The latest standstill. From `start` on, call `tick` at least every `TICK_S` while the event loop runs."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last_tick_s = math.inf  # until `start`
        self.ended_at_s = self.began_at_s = -math.inf

    def start(self) -> None:
        self._last_tick_s = self.ended_at_s = self._clock()  # the node did not listen before
        self.began_at_s = -math.inf

    def stop(self) -> None:
        """Nothing ticks any more."""
        self._last_tick_s = math.inf

    def tick(self) -> float:
        """Returns the time."""
        now_s = self._clock()
        if self._is_late(now_s):
            self.began_at_s, self.ended_at_s = self._last_tick_s, now_s
        if self._last_tick_s < math.inf:
            self._last_tick_s = now_s
        return now_s

    def _is_late(self, now_s: float) -> bool:
        return now_s - self._last_tick_s > TICK_S + MAX_LATE_S

    def duration_s(self, at_s: float, now_s: float) -> float:
        """How long the standstill was that `at_s` is in; 0 if there was none. The last tick may be to come."""
        began_s, ended_s = (self._last_tick_s, now_s) if self._is_late(now_s) else (self.began_at_s, self.ended_at_s)
        return ended_s - began_s if began_s <= at_s <= ended_s and began_s > -math.inf else 0.0

    def sent_at_s(self) -> float:
        """Of a request that has just been read."""
        now_s = self.tick()
        is_catching_up = now_s - self.ended_at_s < CATCH_UP_S and self.began_at_s > -math.inf
        return self.began_at_s if is_catching_up else now_s
