"""What keeps history from being written, when that is tried again, and what is said of it meanwhile."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING

from svcnode.history.faults import FaultError

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
# A disk that is full takes a little now and then. So what fails again soon after it was well must work for longer than
# this to be well once more: long enough that a minute is written meanwhile.
PROVEN_AFTER_S = 90.0
NOTICE_S = 86_400.0  # a file that was set aside is told of for so long

log = logging.getLogger("svcnode.history")


class Trouble:
    """Only the thread that writes may change it; any may read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._fault: str | None = None
        self._logged: set[str] = set()  # of this trouble, so that each is told once and not at every try
        self._over_at_s = -math.inf  # the one before
        self._works_since_s: float | None = None
        self._is_relapse = False
        self._pause_s = 0.0
        self._retry_at_s = 0.0
        self._notice: str | None = None
        self._notice_ends_s = 0.0

    @property
    def is_there(self) -> bool:
        return self._fault is not None

    @property
    def said(self) -> str | None:
        """For the page; None when there is nothing to say."""
        notice = self._notice if self._clock() < self._notice_ends_s else None
        return self._fault or notice

    @property
    def wait_s(self) -> float:
        """How long until it is worth another try."""
        is_failing = self.is_there and self._works_since_s is None
        return max(0.0, self._retry_at_s - self._clock()) if is_failing else 0.0

    def rise(self, fault: FaultError, cause: Exception) -> None:
        if not self.is_there:
            self._is_relapse = self._clock() - self._over_at_s < PROVEN_AFTER_S
        if str(fault) not in self._logged:
            is_strange = not (isinstance(cause, OSError | FaultError) or hasattr(cause, "sqlite_errorcode"))
            log.error("history: %s", fault, exc_info=cause if is_strange else None)
        self._fault, self._works_since_s = str(fault), None
        self._logged.add(self._fault)
        self._pause_s = min(MAX_PAUSE_S, 2 * self._pause_s or FIRST_PAUSE_S)
        self._retry_at_s = self._clock() + self._pause_s

    def pass_over(self) -> None:
        """It works; whether that is the end of the trouble is seen here."""
        if not self.is_there:
            return
        now_s = self._clock()
        if self._works_since_s is None:
            self._works_since_s = now_s
        if self._is_relapse and now_s - self._works_since_s < PROVEN_AFTER_S:
            return
        log.info("history is written again")
        self._fault, self._pause_s, self._over_at_s = None, 0.0, now_s
        self._logged.clear()

    def notify(self, notice: str) -> None:
        log.error("history: %s", notice)
        self._notice, self._notice_ends_s = notice, self._clock() + NOTICE_S
