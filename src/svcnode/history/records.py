"""What history is made of. Times are seconds of the wall clock here: history outlives the process and its clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

# What adding up many floating-point numbers may be off by, and more.
ROUNDING_TOLERANCE_S = 0.001


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


class Bucket(NamedTuple):
    """What became of a service in one minute, hour or day: for how long it had which status, and its checks.

    What is missing from the length of the span is time in which nobody was there to know.
    """

    begin_s: int
    up_s: float = 0.0
    initializing_s: float = 0.0
    down_s: float = 0.0
    checks: int = 0
    failures: int = 0
    latency_sum_s: float = 0.0  # of all checks
    latency_max_s: float = 0.0

    @property
    def known_s(self) -> float:
        return self.up_s + self.initializing_s + self.down_s


class ClosedMinute(NamedTuple):
    """A minute that is over, or a part of one: a bar for each service, or for some of them.

    The number grows as the ids of transitions do, so whoever writes minutes down can tell which they have.
    """

    sequence: int
    begin_s: int
    buckets: dict[str, Bucket]


class RetentionLimits(NamedTuple):
    """How much is kept: bars and transitions up to an age, and no more than fits."""

    max_age_s: float
    max_bytes: int

    @property
    def wal_bytes(self) -> int:
        """How far SQLite's write-ahead log may grow before it is brought into the file."""
        return min(4 * 1024**2, self.max_bytes // 8)

    @property
    def data_bytes(self) -> int:
        """What is left for the file: the log is longer for a moment, by what was written last."""
        return self.max_bytes - 2 * self.wal_bytes


@dataclass(frozen=True, slots=True)
class Resolution:
    """A kind of bar: how long each is, how many of them are shown, and for how long they are kept at most."""

    name: str
    length_s: int
    bucket_count: int
    retention_s: float = math.inf

    def begin_s(self, at_s: float) -> int:
        """When the bar that this moment falls into begins. Hours and days are those of UTC."""
        return int(at_s // self.length_s) * self.length_s


# Minutes and hours outlast what is shown, for those who come late to ask what happened just before.
MINUTES = Resolution("minutes", 60, 90, retention_s=6 * 3600.0)
HOURS = Resolution("hours", 3600, 24, retention_s=8 * 86_400.0)
DAYS = Resolution("days", 86_400, 90)
RESOLUTIONS = (MINUTES, HOURS, DAYS)


def merge_buckets(bar: Bucket, more: Bucket, length_s: int) -> Bucket:
    """Both together. No bar holds more time than it is long: where the clock was set back, what came first stands."""
    if bar.known_s + more.known_s > length_s + ROUNDING_TOLERANCE_S:
        return bar
    return Bucket(
        bar.begin_s,
        bar.up_s + more.up_s,
        bar.initializing_s + more.initializing_s,
        bar.down_s + more.down_s,
        bar.checks + more.checks,
        bar.failures + more.failures,
        bar.latency_sum_s + more.latency_sum_s,
        max(bar.latency_max_s, more.latency_max_s),
    )
