"""A limit on concurrent checks.

Services whose last check was slow share a quarter of the slots, so that hung services do not delay the others. Among
the slow ones, those whose check completed go before those that timed out. A service that starts to hang occupies an
ordinary slot once, until its deadline.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from svcnode.node.scheduler.runner import SpeedClass

if TYPE_CHECKING:
    from svcnode.node.scheduler.runner import ProbeRunner

SLOW_SHARE = 4


class ConcurrencyLimiter:
    def __init__(self, count: int) -> None:
        self._free = count
        self._free_for_slow = max(1, count // SLOW_SHARE)
        self._waiting: tuple[deque[ProbeRunner], ...] = tuple(deque() for _ in SpeedClass)

    def acquire(self, runner: ProbeRunner) -> None:
        """Start a check of this runner when a slot is free, usually at once."""
        if self._free and runner.speed_class is SpeedClass.QUICK:  # the common case
            self._free -= runner.start()
            return
        self._waiting[runner.speed_class].append(runner)
        self._grant_waiting()

    def release(self, speed_class: SpeedClass) -> None:
        self._free += 1
        self._free_for_slow += speed_class is not SpeedClass.QUICK
        if any(self._waiting):
            self._grant_waiting()

    def _grant_waiting(self) -> None:
        quick, slow, hung = self._waiting
        while quick and self._free:
            self._free -= quick.popleft().start()
        while (slow or hung) and self._free and self._free_for_slow:
            is_used = (slow or hung).popleft().start()
            self._free -= is_used
            self._free_for_slow -= is_used
