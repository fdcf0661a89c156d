"""A limit on concurrent checks.

A slot is usually free: there are as many as the descriptors of the process allow, so a thousand services that hang at
once do not wait for each other. A quarter of the slots is kept for services whose last check was quick, so that hung
services do not delay the others even if there are more of them than slots. Among the slow ones, those whose check
completed go before those that timed out. A service that starts to hang occupies any slot once, until its deadline.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from svcnode.node.scheduler.runner import SpeedClass

if TYPE_CHECKING:
    from svcnode.node.scheduler.runner import ProbeRunner

QUICK_SHARE = 4


def slots_for_slow(count: int) -> int:
    """How many of the slots are for services whose last check was slow, too."""
    return max(1, count - max(1, count // QUICK_SHARE))


class ConcurrencyLimiter:
    def __init__(self, count: int) -> None:
        self._free = count
        self._free_for_slow = slots_for_slow(count)
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
