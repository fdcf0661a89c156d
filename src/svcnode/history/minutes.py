"""For how long each service has had which status in the minute that is running, and what its looks were like.

The time is told by the caller. Whatever happens adds to an account; nothing walks over all of them but the turn of a
minute, and that may be taken a few hundred at a time: an account that is touched meanwhile is closed first, so each
change counts in its own minute, however long the walk takes.

Time counts only while somebody is there. `tick` says so about once a second. After a longer silence (this process was
stopped, or the machine slept), or when the clock was set, what lies between is nobody's.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from svcnode.core.model import Status
from svcnode.history.records import MINUTES, Bar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MAX_SILENCE_S = 5.0
MAX_SLEW_S = 1.0  # a clock that is being adjusted may go back by so much; it is waited for

_PLACES = {Status.UP: 0, Status.INITIALIZING: 1, Status.DOWN: 2}  # as in a bar


class _Stretch:
    """Time without a break within one minute."""

    __slots__ = ("bars", "begin_s", "end_s", "minute_s")

    def __init__(self, begin_s: float) -> None:
        self.begin_s = begin_s
        self.minute_s = MINUTES.begin_s(begin_s)
        self.end_s: float = self.minute_s + MINUTES.length_s
        self.bars: dict[str, Bar] = {}  # of the accounts that are closed


class _Account:
    __slots__ = (
        "failures",
        "latency_max_s",
        "latency_sum_s",
        "looks",
        "seconds",
        "since_s",
        "status",
        "stretch",
    )

    def __init__(self, stretch: _Stretch) -> None:
        self.status: Status | None = None  # None: nobody knows of the service (any more)
        self.begin(stretch)

    def begin(self, stretch: _Stretch) -> None:
        self.stretch = stretch
        self.since_s = stretch.begin_s  # up to here, the seconds are counted
        self.seconds = [0.0, 0.0, 0.0]
        self.looks = self.failures = 0
        self.latency_sum_s = self.latency_max_s = 0.0

    def count_to(self, moment_s: float) -> None:
        if self.status is not None:
            self.seconds[_PLACES[self.status]] += moment_s - self.since_s
        self.since_s = moment_s

    @property
    def bar(self) -> Bar:
        return Bar(
            self.stretch.minute_s,
            self.seconds[0],
            self.seconds[1],
            self.seconds[2],
            self.looks,
            self.failures,
            self.latency_sum_s,
            self.latency_max_s,
        )


class Minutes:
    """Not safe for several threads at once."""

    def __init__(self, now_s: float, when_over: Callable[[int, dict[str, Bar]], None]) -> None:
        """`when_over` gets the beginning of each minute that is over, and its bars."""
        self.now_s = now_s  # the last time that somebody was there
        self._when_over = when_over
        self._accounts: dict[str, _Account] = {}
        self._stretch = _Stretch(now_s)
        self._closing: _Stretch | None = None  # the one before, while some accounts are still in it
        self._behind: Iterator[str] = iter(())  # those that may be

    def tick(self, now_s: float) -> None:
        """Somebody is there."""
        ahead_s = now_s - self.now_s
        if -MAX_SLEW_S < ahead_s < 0:
            return
        if not 0 <= ahead_s <= MAX_SILENCE_S:
            self._turn(end_s=self.now_s, begin_s=now_s)
        elif now_s >= self._stretch.end_s:
            self._turn(end_s=self._stretch.end_s, begin_s=self._stretch.end_s)
        self.now_s = now_s

    def set_status(self, service_id: str, status: Status | None, since_s: float, now_s: float) -> None:
        """`since_s` may be in the past; what is closed by then stays as it is."""
        self.tick(now_s)
        account = self._account(service_id)
        if account is None:
            if status is None:
                return
            account = self._accounts[service_id] = _Account(self._stretch)
        account.count_to(min(max(since_s, account.since_s), self.now_s))
        account.status = status

    def add_look(self, service_id: str, duration_s: float, *, is_failure: bool) -> None:
        account = self._account(service_id)
        if account is None:
            return
        account.looks += 1
        account.failures += is_failure
        account.latency_sum_s += duration_s
        account.latency_max_s = max(account.latency_max_s, duration_s)

    def close_some(self, count: int) -> bool:
        """Close some more accounts of the minute that is over; returns whether there may be more to do."""
        if self._closing is None:
            return False
        some = list(islice(self._behind, count))
        for service_id in some:
            self._account(service_id)
        if some:
            return True
        over, self._closing = self._closing, None
        if over.bars:
            self._when_over(over.minute_s, over.bars)
        return False

    def finish(self, now_s: float) -> None:
        """Nobody will be there any more."""
        self.tick(now_s)
        self._turn(end_s=self.now_s, begin_s=self.now_s)
        self._close_all()

    def running(self, service_id: str) -> list[Bar]:
        """What has not been handed over of a service, up to now."""
        account = self._account(service_id)
        bars = []
        if self._closing is not None and service_id in self._closing.bars:
            bars.append(self._closing.bars[service_id])
        if account is not None:
            account.count_to(max(self.now_s, account.since_s))
            bars.append(account.bar)
        return bars

    def _turn(self, end_s: float, begin_s: float) -> None:
        self._close_all()
        self._stretch.end_s = end_s
        self._closing, self._stretch = self._stretch, _Stretch(begin_s)
        self._behind = iter(list(self._accounts))

    def _close_all(self) -> None:
        while self.close_some(len(self._accounts) + 1):
            pass

    def _account(self, service_id: str) -> _Account | None:
        """In the stretch that is running; first it is closed in the one before, where it still was."""
        account = self._accounts.get(service_id)
        if account is None or account.stretch is self._stretch:
            return account
        over = account.stretch
        account.count_to(over.end_s)
        if (bar := account.bar).known_s or bar.looks:
            over.bars[service_id] = bar
        if account.status is None:
            del self._accounts[service_id]
            return None
        account.begin(self._stretch)
        return account
