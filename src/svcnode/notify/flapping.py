"""What changes too often is told once as flapping, and once when it has kept still for a while.

Changes are counted, not weighed: each was decided by several looks in a row already, and a count is what a person can
check.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

FLAP_THRESHOLD = 6  # moments of change, within
FLAP_WINDOW_S = 600.0
COALESCE_S = 5.0  # a node that falls or rises in steps, with one service after the other, changes once
SETTLED_AFTER_S = 300.0  # without a change


class FlapState(Enum):
    STABLE = 0
    STARTED = 1
    NOTIFIED = 2


class FlapDetector:
    """How often one thing changes, and what was told of that."""

    def __init__(self, now_s: float) -> None:
        self.state = FlapState.STABLE
        self._changed_at_s = now_s
        self._change_times_s: deque[float] = deque(maxlen=FLAP_THRESHOLD)

    @property
    def change_count(self) -> int:
        """Of change, and no more than it takes."""
        return len(self._change_times_s)

    @property
    def since_s(self) -> float:
        return self._change_times_s[0]

    @property
    def settles_at_s(self) -> float:
        """Unless it changes before."""
        return self._changed_at_s + SETTLED_AFTER_S

    def record_change(self, now_s: float) -> None:
        self._changed_at_s = now_s
        if not self._change_times_s or now_s - self._change_times_s[-1] >= COALESCE_S:
            self._change_times_s.append(now_s)

    def evaluate(self, now_s: float) -> FlapState:
        """What has begun is to be told, however long that takes."""
        if (
            self.state is FlapState.STABLE
            and self.change_count == FLAP_THRESHOLD
            and now_s - self.since_s < FLAP_WINDOW_S
        ):
            self.state = FlapState.STARTED
        return self.state

    def mark_notified(self) -> None:
        if self.state is FlapState.NOTIFIED:
            self._change_times_s.clear()
        self.state = FlapState.NOTIFIED if self.state is FlapState.STARTED else FlapState.STABLE

    def reset(self) -> None:
        self.state = FlapState.STABLE
