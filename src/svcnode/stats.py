"""What was seen lately, in memory: the last recent_results at each service, and counts since the start.

Every report comes by here, so a report costs a few additions and one append. Nothing is summed up before somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Change, ChangeKind, Evidence, Outcome, ServiceState, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcnode.definition import ProbeConfig
    from svcnode.node import Node

MAX_RECENT_RESULTS = 20
# Looks take from a fraction of a millisecond (a socket on this machine) to the longest timeout that makes sense.
DURATION_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
MAX_FAILURE_CODES = len(ReasonCode) + 32  # ours, and some of other packages
REPORTED_KIND = "reported"  # the kind of a service that somebody reports for
FIXED_KIND = "fixed"  # the kind of a service of which nobody learns anything: the configuration says what it is


class CheckResult(NamedTuple):
    """One piece of evidence, and the status that was published after it."""

    evidence: Evidence
    status: Status


class DurationHistogram:
    """How long the checks_by_outcome of one kind took: how many fell into each bucket (the last has no end), and all together."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(DURATION_BUCKETS_S) + 1)
        self.sum_s = 0.0

    def add(self, duration_s: float) -> None:
        self.counts[bisect_left(DURATION_BUCKETS_S, duration_s)] += 1
        self.sum_s += duration_s


class ServiceStats:
    """What the journal holds of one service."""

    __slots__ = ("checks_by_outcome", "durations", "kind", "recent_results", "transitions")

    def __init__(self, kind: str, durations: DurationHistogram) -> None:
        self.kind = kind
        self.durations = durations  # shared by all of its kind
        self.recent_results: deque[CheckResult] = deque(maxlen=MAX_RECENT_RESULTS)  # the newest last
        self.checks_by_outcome = dict.fromkeys(Outcome, 0)
        self.transitions = 0


class CheckStats:
    """Follows a node from the moment it is made."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._services: dict[str, ServiceStats] = {}
        self._durations: dict[str, DurationHistogram] = {}
        self.node_transitions = 0
        self.failures_by_code: dict[str, int] = {}  # checks and reports whose outcome was not `ready`
        for service, _ in node:
            self._reset(service.id)
        node.subscribe(self._on_change, on_evidence=self._on_evidence)

    def get(self, service_id: str) -> ServiceStats | None:
        return self._services.get(service_id)

    @property
    def durations(self) -> Mapping[str, DurationHistogram]:
        """By kind of probe, of which there are few, however many services there are."""
        return self._durations

    def _on_evidence(self, service_id: str, evidence: Evidence, state: ServiceState) -> None:
        record = self._services.get(service_id)
        if record is None:
            if service_id not in self._node:  # it left while this was under way
                return
            record = self._reset(service_id)
        if evidence.verdict.code == ReasonCode.FIXED:
            if record.kind != FIXED_KIND:  # what was reported before is another story
                self._reset(service_id).kind = FIXED_KIND
            return
        record.recent_results.append(CheckResult(evidence, state.status))
        record.checks_by_outcome[evidence.verdict.outcome] += 1
        if evidence.verdict.outcome is not Outcome.READY:
            self._count_failure(evidence.verdict.code)
        if record.kind != REPORTED_KIND:
            record.durations.add(evidence.duration_s)

    def _count_failure(self, code: str) -> None:
        """By code. Codes of other packages are bounded in number; what is beyond the bound counts as `other`."""
        if code not in self.failures_by_code and len(self.failures_by_code) >= MAX_FAILURE_CODES:
            code = ReasonCode.OTHER
        self.failures_by_code[code] = self.failures_by_code.get(code, 0) + 1

    def _reset(self, service_id: str) -> ServiceStats:
        kind = probe_kind(self._node.probe_config(service_id))
        durations = self._durations.setdefault(kind, DurationHistogram())
        record = self._services[service_id] = ServiceStats(kind, durations)
        return record

    def _on_change(self, change: Change) -> None:
        if change.health is not change.health_before:
            self.node_transitions += 1
        if change.service_id is None:
            return
        match change.kind:
            case ChangeKind.DEREGISTERED:
                self._services.pop(change.service_id, None)
            case ChangeKind.REGISTERED:
                self._reset(change.service_id)
            case ChangeKind.REPLACED if _is_evidence_source_replaced(change, self._services.get(change.service_id)):
                self._reset(change.service_id)
            case ChangeKind.STATUS if record := self._services.get(change.service_id):
                record.transitions += not _is_initial_fixed_status(change, record)
            case _:
                pass


def _is_evidence_source_replaced(change: Change, record: ServiceStats | None) -> bool:
    """Whether another probe checks_by_outcome at it now, or anything may have come in the place of a fixed status."""
    is_new = change.after is not None and change.after.last_evidence_at_s is None
    return is_new or (record is not None and record.kind == FIXED_KIND)


def _is_initial_fixed_status(change: Change, record: ServiceStats) -> bool:
    """What the configuration said from the start is no change."""
    return record.kind == FIXED_KIND and change.before is not None and change.before.last_evidence_at_s is None


def probe_kind(probe_config: ProbeConfig | None) -> str:
    return REPORTED_KIND if probe_config is None else probe_config.probe.kind
