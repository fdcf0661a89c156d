"""The JSON of `/details/{id}` as values. JSON of another shape raises KeyError, TypeError or ValueError."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.core.codes import known_code
from svcnode.core.model import Impact, Outcome, Status, Tolerance

if TYPE_CHECKING:
    from collections.abc import Mapping


class ObservedStatus(NamedTuple):
    """The state of a service as one replica sees it, or as one client reports it."""

    observer: str
    status: Status
    code: str
    reason: str
    age_s: float | None  # None: unknown, so it does not count


class RecentCheck(NamedTuple):
    """One check or report, and the status after it."""

    outcome: Outcome
    reason: str
    code: str
    at_s: float  # wall clock
    duration_ms: float
    status: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedDetails:
    id: str
    name: str
    description: str
    runbook: str | None
    impact: Impact
    kind: str  # the scheme of the probe's URL, "function", "reported", "fixed" or "restricted"
    probe: str | None
    options: Mapping[str, Any] | None  # of the probe, other than the defaults; None: not known
    config_file: str | None  # with the probe; None: another source, or not known
    status: Status
    code: str
    reason: str
    since_at_s: float  # wall clock
    since_s: float
    was_down: bool  # before the restart, and nothing has been known since then
    first_failure_at_s: float | None
    ready_in_a_row: int
    failures_in_a_row: int
    rise: int
    fall: int
    tolerance: Tolerance  # of failures that are not in a row
    window_s: float
    outage_failures: int  # an outage that ended in Down counts as this many repeated failures
    recent_failures: int
    repeated_failures: int
    is_unreliable: bool
    start_period_s: float
    stale_after_s: float | None
    ttl_s: float | None
    grace_s: float | None
    run_schedule: str | None
    interval_s: float | None  # None: the service has no probe
    timeout_s: float | None
    max_latency_s: float | None
    expires_in_s: float | None
    next_check_in_s: float | None
    registered_s: float
    was_ready: bool  # since its registration
    recent_checks: tuple[RecentCheck, ...]  # the newest first
    checked_by: tuple[str, ...] | None  # the replicas that check it, or receive its reports; None: the node has none
    observed: tuple[ObservedStatus, ...]

    @property
    def now_s(self) -> float:
        """By the clock of the node, which may differ from the local clock."""
        return self.since_at_s + self.since_s

    @property
    def is_probed(self) -> bool:
        """Whether this node, or this replica of it, checks the service."""
        return self.interval_s is not None

    @property
    def is_from_registry(self) -> bool:
        """Whether its evidence comes from other replicas."""
        return self.checked_by is not None and not self.is_probed and self.stale_after_s is not None

    @property
    def is_decided_by_replicas(self) -> bool:
        """Whether the state is not that of the checks of this replica alone."""
        return self.is_from_registry or (self.is_probed and len(self.checked_by or ()) > 1)

    @property
    def is_fixed(self) -> bool:
        return self.kind == "fixed"

    @property
    def last_outcome(self) -> Outcome | None:
        return self.recent_checks[0].outcome if self.recent_checks else None

    @property
    def previous_status(self) -> Status | None:
        """The status before the current one, if the recent checks go back far enough."""
        return next((check.status for check in self.recent_checks if check.status is not self.status), None)

    @property
    def start_period_left_s(self) -> float:
        return 0.0 if self.was_ready else max(0.0, self.start_period_s - self.registered_s)

    @property
    def ended_start_period(self) -> bool:
        """Whether the status changed at the end of the start period, within one interval."""
        return (
            0 < self.start_period_s <= self.registered_s - self.since_s <= self.start_period_s + (self.interval_s or 0)
        )


def parse_details(document: Mapping[str, Any]) -> ParsedDetails:
    policy, counters = document["policy"], document["counters"]
    schedule = document["schedule"] or {}
    return ParsedDetails(
        id=document["id"],
        name=document["name"],
        description=document["description"],
        runbook=document.get("runbook"),  # an older node does not have it
        impact=Impact(document["impact"]),
        kind=document["kind"],
        probe=document["probe"],
        options=document.get("options"),  # an older node does not have it
        config_file=document.get("config_file"),
        status=Status(document["status"]),
        code=known_code(document["code"]),
        reason=document["reason"],
        since_at_s=_wall_s(document["since"]),
        since_s=document["since_s"],
        was_down=(document.get("before_restart") or {}).get("status") == Status.DOWN.value,
        first_failure_at_s=_first_failure_s(document.get("first_failure")),  # an older node does not have it
        ready_in_a_row=counters["ready_in_a_row"],
        failures_in_a_row=counters["failures_in_a_row"],
        rise=policy["rise"],
        fall=policy["fall"],
        tolerance=Tolerance.parse(policy.get("tolerance", "off")),  # an older node does not have this rule
        window_s=policy.get("window_s", 0.0),
        outage_failures=policy.get("outage_failures", 0),
        recent_failures=counters.get("recent_failures", 0),
        repeated_failures=counters.get("repeated_failures", 0),
        is_unreliable=document.get("unreliable", False),
        start_period_s=policy["start_period_s"],
        stale_after_s=policy["stale_after_s"],
        ttl_s=policy["ttl_s"],
        grace_s=policy.get("grace_s"),  # an older node does not have jobs
        run_schedule=policy.get("run_schedule"),
        interval_s=schedule.get("interval_s"),
        timeout_s=schedule.get("timeout_s"),
        max_latency_s=schedule.get("max_latency_s"),
        expires_in_s=document["expires_in_s"],
        next_check_in_s=document["next_check_in_s"],
        registered_s=document["registered_s"],
        was_ready=document["last_ready"] is not None,
        recent_checks=tuple(map(_parse_recent_check, document["recent_checks"])),
        checked_by=None if document.get("checked_by") is None else tuple(document["checked_by"]),  # nor this
        observed=tuple(map(_parse_observation, document.get("observed") or ())),
    )


def _first_failure_s(document: Mapping[str, Any] | None) -> float | None:
    return None if document is None else _wall_s(document["at"])


def _wall_s(iso: str) -> float:
    return datetime.fromisoformat(iso).timestamp()


def _parse_observation(document: Mapping[str, Any]) -> ObservedStatus:
    return ObservedStatus(
        observer=document["observer"],
        status=Status(document["status"]),
        code=known_code(document["code"]),
        reason=document["reason"],
        age_s=document["age_s"],
    )


def _parse_recent_check(document: Mapping[str, Any]) -> RecentCheck:
    return RecentCheck(
        outcome=Outcome(document["outcome"]),
        reason=document["reason"],
        code=known_code(document["code"]),
        at_s=_wall_s(document["at"]),
        duration_ms=document["duration_ms"],
        status=Status(document["status"]),
    )
