"""The records of the history. Times are seconds of the wall clock, because the history outlives the process."""

from __future__ import annotations

import math
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcnode.history.latencies import Histogram

# An upper bound for the error of adding many floating-point numbers.
ROUNDING_TOLERANCE_S = 0.001


class Transition(NamedTuple):
    """One change of the node or of one service.

    The id is the time of recording in microseconds, or the previous id plus 1 if that is greater. Ids increase
    strictly, also across restarts, so a client continues after the last id that it received.
    """

    id: int
    at_s: float  # the time of the change; for expired evidence this is before the time of recording
    kind: str  # a value of core.model.ChangeKind, or "started" and "stopped" for the process
    service_id: str | None
    before: str | None  # the published status
    after: str | None
    reason: str
    code: str | None  # the reason code of the new state; None if the change has no new state of a service
    health_before: int
    health: int


class LastStatus(NamedTuple):
    """What the newest transition of a service says."""

    service_id: str
    status: str
    since_s: float
    reason: str
    code: str | None


class OpenMaintenance(NamedTuple):
    """Maintenance that had not ended when the file was last written."""

    service_id: str | None  # None: of the node
    since_s: float
    text: str


class Bucket(NamedTuple):
    """One service in one minute, hour or day: the time per status and its checks.

    Time in maintenance counts for no status. If the times add up to less than the length of the bucket, the status was
    not known for the rest.
    """

    begin_s: int
    up_s: float = 0.0
    initializing_s: float = 0.0
    down_s: float = 0.0
    checks: int = 0
    failures: int = 0
    latency_sum_s: float = 0.0  # of all checks
    latency_max_s: float = 0.0
    maintenance_s: float = 0.0

    @property
    def known_s(self) -> float:
        return self.up_s + self.initializing_s + self.down_s

    @property
    def observed_s(self) -> float:
        """The time in which the node ran."""
        return self.known_s + self.maintenance_s


NO_LATENCIES: Mapping[str, Histogram] = MappingProxyType({})


class Stretch(NamedTuple):
    """A time in which the node ran without a break: the clock was not set, and the machine did not sleep."""

    begin_s: float
    end_s: float


class ClosedMinute(NamedTuple):
    """The buckets of a finished minute, or a part of them.

    The sequence number increases like the ids of transitions, so the writer knows which parts are written.
    """

    sequence: int
    begin_s: int
    buckets: dict[str, Bucket]
    observed: Stretch | None = None  # the part of the minute in which the node ran
    latencies: Mapping[str, Histogram] = (
        NO_LATENCIES  # of these services, by id: of the whole hour in its last minute, otherwise none
    )


class RetentionLimits(NamedTuple):
    max_age_s: float
    max_bytes: int

    @property
    def wal_bytes(self) -> int:
        """The size of SQLite's write-ahead log that triggers a checkpoint."""
        return min(4 * 1024**2, self.max_bytes // 8)

    @property
    def data_bytes(self) -> int:
        """The limit for the database file. The write-ahead log may exceed its own limit briefly, so it counts twice."""
        return self.max_bytes - 2 * self.wal_bytes


class Resolution(NamedTuple):
    """The length of a bucket, the number of buckets per query, and how long buckets are stored at most."""

    name: str  # also the name of the SQL table
    length_s: int
    bucket_count: int
    retention_s: float = math.inf

    def begin_s(self, at_s: float) -> int:
        """The start of the bucket that contains this time. Hours and days are in UTC."""
        return int(at_s // self.length_s) * self.length_s


# Minutes and hours are stored for longer than a query returns, for later analysis with SQL.
MINUTES = Resolution("minutes", 60, 90, retention_s=6 * 3600.0)
HOURS = Resolution("hours", 3600, 24, retention_s=8 * 86_400.0)
DAYS = Resolution("days", 86_400, 90)
RESOLUTIONS = (MINUTES, HOURS, DAYS)
# Latencies are some forty rows per service and bucket, so those of hours are kept for a short time only.
LATENCY_HOURS = HOURS._replace(name="hour_latencies", retention_s=26 * 3600.0)
LATENCY_DAYS = DAYS._replace(name="day_latencies")
LATENCY_RESOLUTIONS = (LATENCY_HOURS, LATENCY_DAYS)


def merge_buckets(bucket: Bucket, other: Bucket, length_s: int) -> Bucket:
    """The sum of two buckets, or the first one if the sum is longer than `length_s`: then the clock was set back."""
    if bucket.observed_s + other.observed_s > length_s + ROUNDING_TOLERANCE_S:
        return bucket
    return Bucket(
        bucket.begin_s,
        bucket.up_s + other.up_s,
        bucket.initializing_s + other.initializing_s,
        bucket.down_s + other.down_s,
        bucket.checks + other.checks,
        bucket.failures + other.failures,
        bucket.latency_sum_s + other.latency_sum_s,
        max(bucket.latency_max_s, other.latency_max_s),
        bucket.maintenance_s + other.maintenance_s,
    )
