"""What history is made of. Times are seconds of the wall clock here: history outlives the process and its clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


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


@dataclass(frozen=True, slots=True)
class Span:
    """A kind of bar: how long each is, and how many of them are shown."""

    name: str
    length_s: int
    shown: int


MINUTES = Span("minutes", 60, 90)
HOURS = Span("hours", 3600, 24)
DAYS = Span("days", 86_400, 90)
SPANS = (MINUTES, HOURS, DAYS)
