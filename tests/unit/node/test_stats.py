"""Check statistics: the last results, counters and durations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.maintenance import PlannedMaintenance
from svcnode.core.model import (
    ANNOUNCEMENTS,
    Acknowledgement,
    ChangeKind,
    Evidence,
    Health,
    Maintenance,
    Outcome,
    Status,
    Verdict,
)
from svcnode.node.definition import define
from svcnode.node.stats import (
    DURATION_BUCKETS_S,
    FIXED_KIND,
    MAX_CUSTOM_CODES,
    MAX_RECENT_RESULTS,
    REPORTED_KIND,
    CheckStats,
    DurationHistogram,
    ServiceStats,
    probe_kind,
)
from svcnode.probes import make_probe
from svcnode.probes.function import FunctionProbe
from tests.support.nodes import beat, make_node, record
from tests.support.virtual_time import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.node.node_state import NodeState

READY = Verdict.ready("fine")
FAILED = Verdict.failed("refused", code=ReasonCode.CONNECTION_REFUSED)
TCP = "tcp://127.0.0.1:1"


@dataclass
class RecordedNode:
    node: NodeState
    clock: VirtualClock
    check_stats: CheckStats

    def stats(self, service_id: str = "db") -> ServiceStats:
        stats = self.check_stats.get(service_id)
        assert stats is not None
        return stats

    def statuses(self, service_id: str = "db") -> list[Status]:
        return [result.status for result in self.stats(service_id).recent_results]


@pytest.fixture
def recorded() -> RecordedNode:
    clock = VirtualClock(100.0)
    node = make_node("validator-7", version="v1", clock=clock)
    node.register("db", probe=TCP, start_period="0s")
    return RecordedNode(node, clock, CheckStats(node))


# ---- results


def test_a_result_is_the_evidence_and_the_status_after_it(recorded: RecordedNode) -> None:
    recorded.clock.advance(5)
    record(recorded.node, "db", READY, duration_s=0.25)
    (result,) = recorded.stats().recent_results
    assert result == (Evidence(READY, 105.0, 0.25), Status.UP)
    for verdict in (FAILED, FAILED, FAILED, READY, READY):
        record(recorded.node, "db", verdict)
    up, down = Status.UP, Status.DOWN
    assert recorded.statuses() == [up, up, up, down, down, up]
    assert recorded.stats().checks_by_outcome == dict.fromkeys(Outcome, 0) | {Outcome.READY: 3, Outcome.FAILED: 3}


def test_the_last_twenty_results_are_stored_the_newest_last(recorded: RecordedNode) -> None:
    for number in range(MAX_RECENT_RESULTS + 5):
        record(recorded.node, "db", Verdict.ready(str(number)))
    reasons = [result.evidence.verdict.reason for result in recorded.stats().recent_results]
    assert MAX_RECENT_RESULTS == 20
    assert reasons == [str(number) for number in range(5, 25)]


# ---- counters


def test_transitions_are_changes_of_status_only(recorded: RecordedNode) -> None:
    for verdict in (READY, READY, FAILED, FAILED, FAILED, FAILED):
        record(recorded.node, "db", verdict)
    recorded.node.replace(define("db", name="Ledger", probe=make_probe(TCP), start_period="0s"))
    assert recorded.stats().transitions == 2
    for verdict in (READY, READY):
        record(recorded.node, "db", verdict)
    recorded.clock.advance(1000)
    assert recorded.node.status("db") is Status.INITIALIZING, "expired, without a result"
    assert (recorded.stats().transitions, len(recorded.stats().recent_results)) == (4, 8)


def test_changes_of_the_health_of_the_node_are_counted(recorded: RecordedNode) -> None:
    record(recorded.node, "db", READY)
    assert recorded.check_stats.node_transitions == 1
    record(recorded.node, "db", READY)
    recorded.node.overrides.set_issue("disk full")
    recorded.node.overrides.set_issue("and more")
    recorded.node.overrides.clear_issue()
    assert recorded.check_stats.node_transitions == 3


def test_failures_are_counted_by_code(recorded: RecordedNode) -> None:
    recorded.node.register("own")
    syncing = Verdict.not_ready("syncing", code=ReasonCode.SYNCING)
    for verdict in (READY, FAILED, FAILED, syncing, Verdict.unknown("dns", code="x_dns"), Verdict.failed("?")):
        record(recorded.node, "db", verdict)
    record(recorded.node, "own", FAILED)
    assert recorded.check_stats.failures_by_code == {
        ReasonCode.CONNECTION_REFUSED: 3,
        ReasonCode.SYNCING: 1,
        "x_dns": 1,
        ReasonCode.OTHER: 1,
    }


def test_the_number_of_failure_codes_is_bounded(recorded: RecordedNode) -> None:
    for number in range(MAX_CUSTOM_CODES + 5):
        record(recorded.node, "db", Verdict.failed("failed", code=f"x_{number}"))
    record(recorded.node, "db", Verdict.failed("failed", code="Not A Code"))
    for code in ReasonCode:
        record(recorded.node, "db", Verdict.failed("failed", code=code))
    failures = recorded.check_stats.failures_by_code
    assert len(failures) == len(ReasonCode) + MAX_CUSTOM_CODES
    assert failures[ReasonCode.OTHER] == 5 + 1 + 1
    assert failures[ReasonCode.TIMEOUT] == failures["x_0"] == 1


# ---- durations


def test_durations_are_recorded_per_kind_of_probe(recorded: RecordedNode) -> None:
    recorded.node.register("other", probe="tcp://127.0.0.1:2")
    recorded.node.register("api", probe="http://127.0.0.1/")
    recorded.node.register("own").up()
    for service_id in ("db", "other", "api"):
        record(recorded.node, service_id, READY, duration_s=0.002)
    assert {kind: sum(histogram.counts) for kind, histogram in recorded.check_stats.durations.items()} == {
        "tcp": 2,
        "http": 1,
        REPORTED_KIND: 0,
    }
    assert recorded.stats("db").durations is recorded.stats("other").durations


@pytest.mark.parametrize(("duration_s", "bucket"), [(0.0, 0), (0.0005, 0), (0.00051, 1), (10.0, 13), (10.1, 14)])
def test_a_duration_is_counted_in_the_first_bucket_that_contains_it(duration_s: float, bucket: int) -> None:
    durations = DurationHistogram()
    durations.add(duration_s)
    assert [number for number, count in enumerate(durations.counts) if count] == [bucket]
    assert durations.sum_s == duration_s
    assert len(durations.counts) == len(DURATION_BUCKETS_S) + 1


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"probe": TCP}, "tcp"),
        ({"probe": "ethereum+http://127.0.0.1"}, "ethereum+http"),
        ({"probe": FunctionProbe(lambda: None)}, "function"),
        ({"ttl": "5s"}, REPORTED_KIND),
        ({}, REPORTED_KIND),
    ],
)
def test_the_kind_of_a_service_is_the_kind_of_its_probe(options: dict[str, object], kind: str) -> None:
    assert probe_kind(define("x", **options).probe_config) == kind  # type: ignore[arg-type]


# ---- fixed statuses

REASON = "set in the configuration"


def test_a_fixed_status_is_not_a_result_and_from_the_start_not_a_transition(recorded: RecordedNode) -> None:
    recorded.node.register("own").report(Verdict.ready(REASON, code=ReasonCode.FIXED))
    stats = recorded.stats("own")
    assert stats.kind == FIXED_KIND
    assert (len(stats.recent_results), sum(stats.checks_by_outcome.values()), stats.transitions) == (0, 0, 0)
    record(recorded.node, "own", Verdict.failed(REASON, code=ReasonCode.FIXED))
    assert recorded.stats("own") is stats
    assert (len(stats.recent_results), stats.transitions) == (0, 1)


def test_a_probe_cannot_hide_its_checks_with_the_code_fixed(recorded: RecordedNode) -> None:
    record(recorded.node, "db", Verdict.failed("down", code=ReasonCode.FIXED))
    assert (recorded.stats().kind, len(recorded.stats().recent_results)) == ("tcp", 1)


def test_a_fixed_status_drops_the_results_of_earlier_reports(recorded: RecordedNode) -> None:
    recorded.node.register("own", ttl="5s").up()
    recorded.node.replace(define("own"))
    record(recorded.node, "own", Verdict.failed(REASON, code=ReasonCode.FIXED))
    assert (recorded.stats("own").kind, recorded.statuses("own"), recorded.stats("own").transitions) == (
        FIXED_KIND,
        [],
        0,
    )


def test_a_service_whose_status_was_fixed_can_be_reported(recorded: RecordedNode) -> None:
    recorded.node.register("own").report(Verdict.ready(REASON, code=ReasonCode.FIXED))
    recorded.node.replace(define("own", ttl="5s"))
    assert recorded.stats("own").kind == REPORTED_KIND
    beat(recorded.node, "own")
    assert recorded.statuses("own") == [Status.UP]


# ---- services that are registered, redefined and removed


@pytest.mark.parametrize(
    ("change", "kind", "results"),
    [
        (lambda node: node.replace(define("db", name="Ledger", probe=make_probe(TCP), fall=9)), "tcp", 1),
        (lambda node: node.replace(define("db", probe=make_probe("http://127.0.0.1/"))), "http", 0),
        (lambda node: node.replace(define("db"), keeps_state=True), REPORTED_KIND, 0),
        (lambda node: (node.deregister("db"), node.register("db", probe="http://127.0.0.1/")), "http", 0),
    ],
    ids=["another name", "another probe", "checked elsewhere", "registered again"],
)
def test_only_another_source_of_evidence_has_new_statistics(
    recorded: RecordedNode, change: Callable[[NodeState], object], kind: str, results: int
) -> None:
    record(recorded.node, "db", READY)
    change(recorded.node)
    assert (recorded.stats().kind, len(recorded.stats().recent_results)) == (kind, results)
    recorded.node.deregister("db")
    assert recorded.check_stats.get("db") is None


def test_a_report_of_a_service_that_is_removed_by_another_thread_is_ignored() -> None:
    node = make_node("validator-7", version="v1")
    node.register("db")
    node.subscribe(on_evidence=lambda service_id, *_: node.deregister(service_id))
    check_stats = CheckStats(node)
    record(node, "db", READY)
    assert check_stats.get("db") is None


def test_every_kind_of_change_is_handled(recorded: RecordedNode, caplog: pytest.LogCaptureFixture) -> None:
    kinds: list[ChangeKind] = []
    recorded.node.subscribe(lambda change: kinds.append(change.kind))
    recorded.node.register("own").up()
    recorded.node.set_identity(name="validator-8", version="v2")
    recorded.node.overrides.drain()
    recorded.node.replace(define("own", name="Own"))
    recorded.node.maintenance.set(Maintenance("control", math.inf), "own")
    recorded.node.maintenance.end("own", source="control")
    recorded.node.maintenance.plan(
        PlannedMaintenance(service_ids=("own",), from_s=4e9, until_s=4.1e9), "own", source="planned"
    )
    recorded.node.maintenance.plan(None, "own", source="planned")
    recorded.node.report("own", Verdict.failed("refused"))
    recorded.node.acknowledgements.make(Acknowledgement(Health.UNHEALTHY, 0.0), "own")
    recorded.node.deregister("own")
    for kind in ANNOUNCEMENTS:
        recorded.node.announce(kind, "what has happened")
    assert set(kinds) == set(ChangeKind)
    assert caplog.records == []
