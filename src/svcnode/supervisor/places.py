"""Places for looks in flight, of which there are only so many.

Looks that took long last time share a quarter of them, so that services that hang leave the others their places. One
that begins to hang holds an ordinary place once, until its deadline.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SLOW_SHARE = 4


class Places:
    def __init__(self, count: int) -> None:
        self._free = count
        self._free_for_slow = max(1, count // SLOW_SHARE)
        self._waiting: deque[Callable[[], bool]] = deque()
        self._slow_waiting: deque[Callable[[], bool]] = deque()

    def ask(self, begin: Callable[[], bool], *, is_slow: bool) -> None:
        """Calls `begin` as soon as there is a place, which is at once as a rule; it says whether it takes it."""
        if self._free and not is_slow:  # the rule
            self._free -= begin()
            return
        (self._slow_waiting if is_slow else self._waiting).append(begin)
        self._hand_out()

    def give_back(self, *, is_slow: bool) -> None:
        self._free += 1
        self._free_for_slow += is_slow
        if self._waiting or self._slow_waiting:
            self._hand_out()

    def _hand_out(self) -> None:
        while self._free and self._waiting:
            self._free -= self._waiting.popleft()()
        while self._free and self._free_for_slow and self._slow_waiting:
            is_taken = self._slow_waiting.popleft()()
            self._free -= is_taken
            self._free_for_slow -= is_taken
