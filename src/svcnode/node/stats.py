"""Check statistics in memory: the last results of each service, and counters since the start.

Every check is recorded here, so recording costs a few additions and one append. Totals are computed on read.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.codes import ReasonCode, known_code
from svcnode.core.model import Change, ChangeKind, Evidence, Outcome, ServiceState, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcnode.node.definition import ProbeConfig
    from svcnode.node.node_state import NodeState

MAX_RECENT_RESULTS = 20
# From a Unix socket on this machine (below 1 ms) to the longest useful timeout.
DURATION_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
MAX_CUSTOM_CODES = 32  # codes of other packages (x_…) that are counted separately
REPORTED_KIND = "reported"  # the kind of a service without a probe: the program reports its status
FIXED_KIND = "fixed"  # the kind of a service whose status the configuration sets


class CheckResult(NamedTuple):
    """The evidence of one check or report, and the status after it."""

    evidence: Evidence
    status: Status


class DurationHistogram:
    """Durations of the checks of one kind of probe: a count per bucket (the last is unbounded) and the sum."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(DURATION_BUCKETS_S) + 1)
        self.sum_s = 0.0

    def add(self, duration_s: float) -> None:
        self.counts[bisect_left(DURATION_BUCKETS_S, duration_s)] += 1
        self.sum_s += duration_s


class ServiceStats:
    """The last results and the counters of one service."""

    __slots__ = ("checks_by_outcome", "durations", "kind", "recent_results", "transitions")

    def __init__(self, kind: str, durations: DurationHistogram) -> None:
        self.kind = kind
        self.durations = durations  # shared by all services of this kind
        self.recent_results: deque[CheckResult] = deque(maxlen=MAX_RECENT_RESULTS)  # the newest last
        self.checks_by_outcome = dict.fromkeys(Outcome, 0)
        self.transitions = 0


class CheckStats:
    """Records the checks and reports of a node from now on."""

    def __init__(self, node: NodeState) -> None:
        self._node = node
        self._services: dict[str, ServiceStats] = {}
        self._durations: dict[str, DurationHistogram] = {}
        self._custom_codes = 0
        self.node_transitions = 0
        self.failures_by_code: dict[str, int] = {}  # checks and reports with an outcome other than `ready`
        for service, _ in node:
            self._reset(service.id)
        node.subscribe(self._on_change, on_evidence=self._on_evidence)

    def get(self, service_id: str) -> ServiceStats | None:
        return self._services.get(service_id)

    @property
    def durations(self) -> Mapping[str, DurationHistogram]:
        """By kind of probe, so their number does not grow with the services."""
        return self._durations

    def _on_evidence(self, service_id: str, evidence: Evidence, state: ServiceState) -> None:
        stats = self._services.get(service_id)
        if stats is None:
            if service_id not in self._node:  # deregistered in the meantime
                return
            stats = self._reset(service_id)
        if evidence.verdict.code == ReasonCode.FIXED and stats.kind in {REPORTED_KIND, FIXED_KIND}:
            if stats.kind != FIXED_KIND:  # results of earlier reports do not belong to a fixed status
                self._reset(service_id).kind = FIXED_KIND
            return
        stats.recent_results.append(CheckResult(evidence, state.status))
        stats.checks_by_outcome[evidence.verdict.outcome] += 1
        if evidence.verdict.outcome is not Outcome.READY:
            self._count_failure(evidence.verdict.code)
        if stats.kind != REPORTED_KIND:
            stats.durations.add(evidence.duration_s)

    def _count_failure(self, code: str) -> None:
        """Codes of other packages beyond the limit are counted as `other`."""
        code = known_code(code)
        if code not in self.failures_by_code and not isinstance(code, ReasonCode):
            if self._custom_codes >= MAX_CUSTOM_CODES:
                code = ReasonCode.OTHER
            else:
                self._custom_codes += 1
        self.failures_by_code[code] = self.failures_by_code.get(code, 0) + 1

    def _reset(self, service_id: str) -> ServiceStats:
        kind = probe_kind(self._node.probe_config(service_id))
        durations = self._durations.setdefault(kind, DurationHistogram())
        stats = self._services[service_id] = ServiceStats(kind, durations)
        return stats

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
            case ChangeKind.REPLACED if self._is_evidence_source_replaced(change, change.service_id):
                self._reset(change.service_id)
            case ChangeKind.STATUS if stats := self._services.get(change.service_id):
                stats.transitions += not _is_initial_fixed_status(change, stats)
            case _:
                pass

    def _is_evidence_source_replaced(self, change: Change, service_id: str) -> bool:
        """Whether another probe checks the service now, or its status was fixed before."""
        is_new = change.after is not None and change.after.last_evidence_at_s is None
        stats = self._services.get(service_id)
        return is_new or (stats is not None and stats.kind != probe_kind(self._node.probe_config(service_id)))


def _is_initial_fixed_status(change: Change, stats: ServiceStats) -> bool:
    """A status that the configuration sets from the start is not a transition."""
    return stats.kind == FIXED_KIND and change.before is not None and change.before.last_evidence_at_s is None


def probe_kind(probe_config: ProbeConfig | None) -> str:
    return REPORTED_KIND if probe_config is None else probe_config.probe.kind
