"""What `/details/{id}` tells of a service, as values; in another shape, it is a KeyError, TypeError or ValueError."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.core.model import Impact, Outcome, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

_NO_EVIDENCE, _STALE, _EXPIRED = "no evidence yet", "no fresh ", "no report within "  # how the rules of the core begin


class Attempt(NamedTuple):
    outcome: Outcome
    reason: str
    at: datetime
    duration_ms: float
    status: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedDetails:
    id: str
    name: str
    description: str
    impact: Impact
    kind: str  # the scheme of the probe's URL, "function", "reported", or "fixed" in the configuration
    probe: str | None
    status: Status
    reason: str
    since: datetime
    since_s: float
    ready_in_a_row: int
    failures_in_a_row: int
    rise: int
    fall: int
    start_period_s: float
    stale_after_s: float | None
    ttl_s: float | None
    interval_s: float | None  # None: nobody looks
    timeout_s: float | None
    max_latency_s: float | None
    expires_in_s: float | None
    next_check_in_s: float | None
    registered_s: float
    attempts: tuple[Attempt, ...]  # the newest first

    @property
    def now(self) -> datetime:
        """By the clock of the node, which may not be ours."""
        return self.since + timedelta(seconds=self.since_s)

    @property
    def is_probed(self) -> bool:
        return self.interval_s is not None

    @property
    def is_fixed(self) -> bool:
        return self.kind == "fixed"

    @property
    def last_outcome(self) -> Outcome | None:
        return self.attempts[0].outcome if self.attempts else None

    @property
    def counted_attempts(self) -> tuple[Attempt, ...]:
        """Those that were about the service at all."""
        return tuple(one for one in self.attempts if one.outcome is not Outcome.UNKNOWN)

    @property
    def has_no_evidence(self) -> bool:
        return self.reason == _NO_EVIDENCE and not self.counted_attempts

    @property
    def is_stale(self) -> bool:
        return self.status is Status.INITIALIZING and self.reason.startswith(_STALE) and not self._is_reported_reason

    @property
    def is_expired(self) -> bool:
        return self.status is Status.DOWN and self.reason.startswith(_EXPIRED) and not self._is_reported_reason

    @property
    def _is_reported_reason(self) -> bool:
        """Whether the reason was told, and not found by the rules."""
        return any(one.reason == self.reason for one in self.attempts)

    @property
    def previous_status(self) -> Status | None:
        """The one before this, where the attempts reach back to it."""
        return next((one.status for one in self.attempts if one.status is not self.status), None)

    @property
    def start_period_left_s(self) -> float:
        return max(0.0, self.start_period_s - self.registered_s)

    @property
    def ended_start_period(self) -> bool:
        """Whether it came to be what it is when its time to start was over, give or take a look."""
        return (
            0 < self.start_period_s <= self.registered_s - self.since_s <= self.start_period_s + (self.interval_s or 0)
        )


def parse_details(details: Mapping[str, Any]) -> ParsedDetails:
    policy, counters = details["policy"], details["counters"]
    schedule = details["schedule"] or {}
    return ParsedDetails(
        id=details["id"],
        name=details["name"],
        description=details["description"],
        impact=Impact(details["impact"]),
        kind=details["kind"],
        probe=details["probe"],
        status=Status(details["status"]),
        reason=details["reason"],
        since=datetime.fromisoformat(details["since"]),
        since_s=details["since_s"],
        ready_in_a_row=counters["ready_in_a_row"],
        failures_in_a_row=counters["failures_in_a_row"],
        rise=policy["rise"],
        fall=policy["fall"],
        start_period_s=policy["start_period_s"],
        stale_after_s=policy["stale_after_s"],
        ttl_s=policy["ttl_s"],
        interval_s=schedule.get("interval_s"),
        timeout_s=schedule.get("timeout_s"),
        max_latency_s=schedule.get("max_latency_s"),
        expires_in_s=details["expires_in_s"],
        next_check_in_s=details["next_check_in_s"],
        registered_s=details["registered_s"],
        attempts=tuple(map(_parse_attempt, details["attempts"])),
    )


def _parse_attempt(told: Mapping[str, Any]) -> Attempt:
    return Attempt(
        outcome=Outcome(told["verdict"]),
        reason=told["reason"],
        at=datetime.fromisoformat(told["at"]),
        duration_ms=told["duration_ms"],
        status=Status(told["status"]),
    )
