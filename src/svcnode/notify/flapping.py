"""Detects flapping: too many changes are notified once as flapping, and once after a time without changes.

Changes are counted, not weighted: a change of status already takes several checks in a row, and an operator can verify
a count.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

FLAP_THRESHOLD = 6  # changes within the window
FLAP_WINDOW_S = 600.0
COALESCE_S = 5.0  # changes within this time count as one: a node that goes down service by service changes once
SETTLED_AFTER_S = 300.0  # without a change


class FlapState(Enum):
    STABLE = 0
    STARTED = 1  # flapping, not notified yet
    NOTIFIED = 2


class FlapDetector:
    def __init__(self, now_s: float) -> None:
        self.state = FlapState.STABLE
        self._changed_at_s = now_s
        self._change_times_s: deque[float] = deque(maxlen=FLAP_THRESHOLD)

    @property
    def change_count(self) -> int:
        """The number of recent changes, at most FLAP_THRESHOLD."""
        return len(self._change_times_s)

    @property
    def since_s(self) -> float:
        return self._change_times_s[0]

    @property
    def settles_at_s(self) -> float:
        """When flapping ends, unless there is another change."""
        return self._changed_at_s + SETTLED_AFTER_S

    def record_change(self, now_s: float) -> None:
        self._changed_at_s = now_s
        if not self._change_times_s or now_s - self._change_times_s[-1] >= COALESCE_S:
            self._change_times_s.append(now_s)

    def evaluate(self, now_s: float) -> FlapState:
        """Update and return the state. STARTED lasts until it is notified."""
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
