"""What changes too often is told once as flapping, and once when it has kept still for a while.

Changes are counted, not weighed: each was decided by several looks in a row already, and a count is what a person can
check.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

FLAPPING_AFTER = 6  # moments of change, within
FLAPPING_WITHIN_S = 600.0
MOMENT_S = 5.0  # a node that falls or rises in steps, with one service after the other, changes once
SETTLED_AFTER_S = 300.0  # without a change


class Flap(Enum):
    NO = 0
    BEGUN = 1
    TOLD = 2


class Flapping:
    """How often one thing changes, and what was told of that."""

    def __init__(self, now_s: float) -> None:
        self.flap = Flap.NO
        self._changed_at_s = now_s
        self._moments_s: deque[float] = deque(maxlen=FLAPPING_AFTER)

    @property
    def moments(self) -> int:
        """Of change, and no more than it takes."""
        return len(self._moments_s)

    @property
    def since_s(self) -> float:
        return self._moments_s[0]

    @property
    def settles_at_s(self) -> float:
        """Unless it changes before."""
        return self._changed_at_s + SETTLED_AFTER_S

    def note_change(self, now_s: float) -> None:
        self._changed_at_s = now_s
        if not self._moments_s or now_s - self._moments_s[-1] >= MOMENT_S:
            self._moments_s.append(now_s)

    def judge(self, now_s: float) -> Flap:
        """What has begun is to be told, however long that takes."""
        if self.flap is Flap.NO and self.moments == FLAPPING_AFTER and now_s - self.since_s < FLAPPING_WITHIN_S:
            self.flap = Flap.BEGUN
        return self.flap

    def note_told(self) -> None:
        if self.flap is Flap.TOLD:
            self._moments_s.clear()
        self.flap = Flap.TOLD if self.flap is Flap.BEGUN else Flap.NO

    def end(self) -> None:
        self.flap = Flap.NO
