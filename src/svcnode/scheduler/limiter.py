"""A limit on concurrent checks.

Services whose last check was slow share a quarter of the slots, so that hung services do not delay the others. Among
the slow ones, those whose check completed go before those that timed out. A service that starts to hang occupies an
ordinary slot once, until its deadline.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SLOW_SHARE = 4


class SpeedClass(IntEnum):
    """How long the last check of a service took."""

    QUICK = 0
    SLOW = 1
    HUNG = 2


class ConcurrencyLimiter:
    def __init__(self, count: int) -> None:
        self._free = count
        self._free_for_slow = max(1, count // SLOW_SHARE)
        self._waiting: tuple[deque[Callable[[], bool]], ...] = tuple(deque() for _ in SpeedClass)

    def acquire(self, start: Callable[[], bool], speed_class: SpeedClass) -> None:
        """Call `start` when a slot is free, usually at once. `start` returns whether it uses the slot."""
        if self._free and speed_class is SpeedClass.QUICK:  # the common case
            self._free -= start()
            return
        self._waiting[speed_class].append(start)
        self._grant_waiting()

    def release(self, speed_class: SpeedClass) -> None:
        self._free += 1
        self._free_for_slow += speed_class is not SpeedClass.QUICK
        if any(self._waiting):
            self._grant_waiting()

    def _grant_waiting(self) -> None:
        quick, slow, hung = self._waiting
        while quick and self._free:
            self._free -= quick.popleft()()
        while (slow or hung) and self._free and self._free_for_slow:
            is_used = (slow or hung).popleft()()
            self._free -= is_used
            self._free_for_slow -= is_used
