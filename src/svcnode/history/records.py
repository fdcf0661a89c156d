"""What history is made of. Times are seconds of the wall clock here: history outlives the process and its clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

# What adding up many floating-point numbers may be off by, and more.
SLACK_S = 0.001


class Transition(NamedTuple):
    """One change of the node or of one of its services.

    The id is the time in microseconds at which the change was taken down, or one more than the id before it: it grows
    strictly, also over restarts, so whoever knows the last one that they saw can ask for what came after it.
    """

    id: int
    at_s: float  # when it came to pass, which for silence is before it was noticed
    kind: str  # of core.model.ChangeKind, or "started" and "stopped" for the process itself
    service_id: str | None
    before: str | None  # the published status
    after: str | None
    reason: str
    health_before: int
    health: int


class Bar(NamedTuple):
    """What became of a service in one minute, hour or day: for how long it had which status, and its looks.

    What is missing from the length of the span is time in which nobody was there to know.
    """

    begin_s: int
    up_s: float = 0.0
    initializing_s: float = 0.0
    down_s: float = 0.0
    looks: int = 0
    failures: int = 0
    latency_sum_s: float = 0.0  # of all looks
    latency_max_s: float = 0.0

    @property
    def known_s(self) -> float:
        return self.up_s + self.initializing_s + self.down_s


class Minute(NamedTuple):
    """A minute that is over, or a part of one: a bar for each service, or for some of them.

    The number grows as the ids of transitions do, so whoever writes minutes down can tell which they have.
    """

    number: int
    begin_s: int
    bars: dict[str, Bar]


class Limits(NamedTuple):
    """How much is kept: bars and transitions up to an age, and no more than fits."""

    max_age_s: float
    max_bytes: int

    @property
    def log_bytes(self) -> int:
        """How far SQLite's write-ahead log may grow before it is brought into the file."""
        return min(4 * 1024**2, self.max_bytes // 8)

    @property
    def data_bytes(self) -> int:
        """What is left for the file: the log is longer for a moment, by what was written last."""
        return self.max_bytes - 2 * self.log_bytes


@dataclass(frozen=True, slots=True)
class Span:
    """A kind of bar: how long each is, how many of them are shown, and for how long they are kept at most."""

    name: str
    length_s: int
    shown: int
    kept_s: float = math.inf

    def begin_s(self, at_s: float) -> int:
        """When the bar that this moment falls into begins. Hours and days are those of UTC."""
        return int(at_s // self.length_s) * self.length_s


# Minutes and hours outlast what is shown, for those who come late to ask what happened just before.
MINUTES = Span("minutes", 60, 90, kept_s=6 * 3600.0)
HOURS = Span("hours", 3600, 24, kept_s=8 * 86_400.0)
DAYS = Span("days", 86_400, 90)
SPANS = (MINUTES, HOURS, DAYS)


def added(bar: Bar, more: Bar, length_s: int) -> Bar:
    """Both together. No bar holds more time than it is long: where the clock was set back, what came first stands."""
    if bar.known_s + more.known_s > length_s + SLACK_S:
        return bar
    return Bar(
        bar.begin_s,
        bar.up_s + more.up_s,
        bar.initializing_s + more.initializing_s,
        bar.down_s + more.down_s,
        bar.looks + more.looks,
        bar.failures + more.failures,
        bar.latency_sum_s + more.latency_sum_s,
        max(bar.latency_max_s, more.latency_max_s),
    )
