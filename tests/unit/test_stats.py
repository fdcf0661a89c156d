"""What was seen lately: the last attempts, counts, and how long looks took."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import ChangeKind, Outcome, Status, Verdict
from svcnode.definition import define
from svcnode.node import Node
from svcnode.probes import make_probe
from svcnode.probes.function import FunctionProbe
from svcnode.stats import (
    DURATION_BUCKETS_S,
    FIXED_KIND,
    MAX_RECENT_RESULTS,
    REPORTED_KIND,
    CheckStats,
    DurationHistogram,
    ServiceStats,
    probe_kind,
)
from tests.support.virtual_time import VirtualClock

READY = Verdict.ready("fine")
FAILED = Verdict.failed("refused")
TCP = "tcp://127.0.0.1:1"


@dataclass
class World:
    node: Node
    clock: VirtualClock
    check_stats: CheckStats

    def stats(self, service_id: str = "db") -> ServiceStats:
        record = self.check_stats.get(service_id)
        assert record is not None
        return record

    def statuses(self, service_id: str = "db") -> list[Status]:
        return [attempt.status for attempt in self.stats(service_id).recent_results]


@pytest.fixture
def world() -> World:
    clock = VirtualClock(100.0)
    node = Node("validator-7", version="v1", clock=clock)
    node.register("db", probe=TCP, start_period="0s")
    return World(node, clock, CheckStats(node))


# ---- attempts


def test_an_attempt_is_the_evidence_and_the_status_that_came_of_it(world: World) -> None:
    world.clock.advance(5)
    world.node.record("db", READY, duration_s=0.25)
    (attempt,) = world.stats().recent_results
    assert (attempt.evidence.verdict, attempt.evidence.at_s, attempt.evidence.duration_s) == (READY, 105.0, 0.25)
    assert attempt.status is Status.UP


def test_attempts_show_how_a_status_came_about(world: World) -> None:
    for verdict in (READY, FAILED, FAILED, FAILED, READY, READY):
        world.node.record("db", verdict)
    up, down = Status.UP, Status.DOWN
    assert world.statuses() == [up, up, up, down, down, up]


def test_the_last_twenty_attempts_are_kept_the_newest_last(world: World) -> None:
    for number in range(MAX_RECENT_RESULTS + 5):
        world.node.record("db", Verdict.ready(str(number)))
    reasons = [attempt.evidence.verdict.reason for attempt in world.stats().recent_results]
    assert MAX_RECENT_RESULTS == 20
    assert reasons == [str(number) for number in range(5, 25)]


def test_a_service_that_nobody_has_looked_at_has_a_record_without_attempts(world: World) -> None:
    assert not world.stats().recent_results
    assert world.check_stats.get("other") is None


def test_services_that_were_there_before_are_followed_like_those_that_come(world: World) -> None:
    world.node.register("late").up()
    world.node.record("db", READY)
    assert world.statuses("late") == world.statuses("db") == [Status.UP]


# ---- counts


def test_looks_are_counted_by_what_they_saw(world: World) -> None:
    for verdict in (READY, READY, FAILED, Verdict.not_ready("loading"), Verdict.unknown("no files left")):
        world.node.record("db", verdict)
    assert world.stats().checks_by_outcome == {
        Outcome.READY: 2,
        Outcome.FAILED: 1,
        Outcome.NOT_READY: 1,
        Outcome.UNKNOWN: 1,
    }


def test_transitions_are_changes_of_status_and_no_others(world: World) -> None:
    for verdict in (READY, READY, FAILED, FAILED, FAILED, FAILED):
        world.node.record("db", verdict)
    world.node.replace(define("db", name="Ledger", probe=make_probe(TCP), start_period="0s"))
    assert world.stats().transitions == 2


def test_silence_that_changes_a_status_is_a_transition_without_an_attempt(world: World) -> None:
    world.node.record("db", READY)
    world.clock.advance(1000)
    assert world.node.status("db") is Status.INITIALIZING
    assert (world.stats().transitions, len(world.stats().recent_results)) == (2, 1)


def test_changes_of_the_nodes_health_are_counted(world: World) -> None:
    world.node.record("db", READY)
    assert world.check_stats.node_transitions == 1
    world.node.record("db", READY)
    world.node.set_issue("disk full")
    world.node.set_issue("and more")
    world.node.clear_issue()
    assert world.check_stats.node_transitions == 3


# ---- durations


def test_durations_are_those_of_a_kind_and_not_of_each_service(world: World) -> None:
    world.node.register("other", probe="tcp://127.0.0.1:2")
    world.node.register("api", probe="http://127.0.0.1/")
    for service_id in ("db", "other", "api"):
        world.node.record(service_id, READY, duration_s=0.002)
    assert {kind: sum(found.counts) for kind, found in world.check_stats.durations.items()} == {"tcp": 2, "http": 1}
    assert world.stats("db").durations is world.stats("other").durations


def test_what_is_reported_and_not_looked_at_has_taken_no_time(world: World) -> None:
    world.node.register("own").up()
    assert sum(world.check_stats.durations[REPORTED_KIND].counts) == 0


@pytest.mark.parametrize(("duration_s", "bucket"), [(0.0, 0), (0.0005, 0), (0.00051, 1), (10.0, 13), (10.1, 14)])
def test_a_duration_falls_into_the_first_bucket_that_holds_it(duration_s: float, bucket: int) -> None:
    durations = DurationHistogram()
    durations.add(duration_s)
    assert [place for place, count in enumerate(durations.counts) if count] == [bucket]
    assert durations.sum_s == duration_s
    assert len(durations.counts) == len(DURATION_BUCKETS_S) + 1


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ({"probe": TCP}, "tcp"),
        ({"probe": "ethereum+http://127.0.0.1"}, "ethereum+http"),
        ({"probe": FunctionProbe(lambda: None)}, "function"),
        ({"ttl": "5s"}, REPORTED_KIND),
        ({}, REPORTED_KIND),
    ],
)
def test_the_kind_of_a_service_is_the_scheme_that_it_is_looked_at_by(words: dict[str, object], kind: str) -> None:
    assert probe_kind(define("x", **words).probe_config) == kind  # type: ignore[arg-type]


# ---- what the configuration says

WORDS = "set in the configuration"


def test_a_fixed_status_is_no_attempt_and_from_the_start_no_change(world: World) -> None:
    world.node.register("own").report(Verdict.ready(WORDS, code=ReasonCode.FIXED))
    record = world.stats("own")
    assert record.kind == FIXED_KIND
    assert (len(record.recent_results), sum(record.checks_by_outcome.values()), record.transitions) == (0, 0, 0)
    world.node.record("own", Verdict.failed(WORDS, code=ReasonCode.FIXED))
    assert world.stats("own") is record
    assert (len(record.recent_results), record.transitions) == (0, 1)


def test_a_program_that_reports_in_the_same_words_is_heard(world: World) -> None:
    world.node.register("own").up(WORDS)
    assert world.stats("own").kind == REPORTED_KIND
    assert (world.statuses("own"), world.stats("own").transitions) == ([Status.UP], 1)


def test_where_a_status_is_fixed_what_was_reported_before_is_another_story(world: World) -> None:
    world.node.register("own", ttl="5s").up()
    world.node.replace(define("own"))
    world.node.record("own", Verdict.failed(WORDS, code=ReasonCode.FIXED))
    assert (world.stats("own").kind, world.statuses("own"), world.stats("own").transitions) == (FIXED_KIND, [], 0)


def test_what_comes_in_the_place_of_a_fixed_status_is_reported(world: World) -> None:
    world.node.register("own").report(Verdict.ready(WORDS, code=ReasonCode.FIXED))
    world.node.replace(define("own", ttl="5s"))
    assert world.stats("own").kind == REPORTED_KIND
    world.node.beat("own")
    assert world.statuses("own") == [Status.UP]


# ---- services that come, change and go


def test_of_a_service_that_has_left_nothing_is_kept(world: World) -> None:
    world.node.record("db", READY)
    world.node.deregister("db")
    assert world.check_stats.get("db") is None


def test_a_service_that_comes_back_begins_anew(world: World) -> None:
    world.node.record("db", READY)
    world.node.deregister("db")
    world.node.register("db", probe="http://127.0.0.1/")
    assert (world.stats().kind, len(world.stats().recent_results), world.stats().transitions) == ("http", 0, 0)


def test_another_probe_is_another_story(world: World) -> None:
    world.node.record("db", READY)
    world.node.replace(define("db", probe=make_probe("http://127.0.0.1/")))
    assert (world.stats().kind, len(world.stats().recent_results)) == ("http", 0)


def test_another_name_or_policy_is_the_same_story(world: World) -> None:
    world.node.record("db", READY)
    world.node.replace(define("db", name="Ledger", probe=make_probe(TCP), fall=9))
    assert len(world.stats().recent_results) == 1


def test_what_is_reported_of_a_service_that_is_just_leaving_is_not_kept() -> None:
    """The report is under way on one thread while another takes the service away."""
    node = Node("validator-7", version="v1")
    node.register("db")
    node.subscribe(on_evidence=lambda service_id, *_: node.deregister(service_id))
    journal = CheckStats(node)
    node.record("db", READY)
    assert journal.get("db") is None


def test_threads_that_report_at_once_lose_nothing() -> None:
    node = Node("validator-7", version="v1")
    journal = CheckStats(node)
    handles = [node.register(str(number)) for number in range(8)]
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=lambda one=handle: [one.up() for _ in range(500)]) for handle in handles]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval_s)
    for handle in handles:
        record = journal.get(handle.id)
        assert record is not None
        assert (record.checks_by_outcome[Outcome.READY], record.transitions) == (500, 1)


def test_it_knows_every_kind_of_change(world: World) -> None:
    """None of them may break the feed, on which history and the log hang as well."""
    seen: list[ChangeKind] = []
    world.node.subscribe(lambda change: seen.append(change.kind))
    world.node.register("own").up()
    world.node.set_identity(name="validator-8", version="v2")
    world.node.drain()
    world.node.replace(define("own", name="Own"))
    world.node.deregister("own")
    assert set(seen) == set(ChangeKind)
