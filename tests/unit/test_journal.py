"""What was seen lately: the last attempts, counts, and how long looks took."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass

import pytest

from svcnode.core.model import ChangeKind, Outcome, Status, Verdict
from svcnode.definition import define
from svcnode.journal import BUCKETS_S, FIXED, KEPT_ATTEMPTS, NOT_LOOKED_AT, Durations, Journal, Record, Setting, kind_of
from svcnode.node import Node
from svcnode.probes import make_probe
from svcnode.probes.function import FunctionProbe
from tests.support.virtual_time import VirtualClock

READY = Verdict.ready("fine")
FAILED = Verdict.failed("refused")
TCP = "tcp://127.0.0.1:1"


@dataclass
class World:
    node: Node
    clock: VirtualClock
    journal: Journal

    def record(self, service_id: str = "db") -> Record:
        record = self.journal.of(service_id)
        assert record is not None
        return record

    def statuses(self, service_id: str = "db") -> list[Status]:
        return [attempt.status for attempt in self.record(service_id).attempts]


@pytest.fixture
def world() -> World:
    clock = VirtualClock(100.0)
    node = Node("validator-7", version="v1", clock=clock)
    node.register("db", probe=TCP, start_period="0s")
    return World(node, clock, Journal(node))


# ---- attempts


def test_an_attempt_is_the_evidence_and_the_status_that_came_of_it(world: World) -> None:
    world.clock.advance(5)
    world.node.saw("db", READY, duration_s=0.25)
    (attempt,) = world.record().attempts
    assert (attempt.evidence.verdict, attempt.evidence.at_s, attempt.evidence.duration_s) == (READY, 105.0, 0.25)
    assert attempt.status is Status.UP


def test_attempts_show_how_a_status_came_about(world: World) -> None:
    for verdict in (READY, FAILED, FAILED, FAILED, READY, READY):
        world.node.saw("db", verdict)
    up, down = Status.UP, Status.DOWN
    assert world.statuses() == [up, up, up, down, down, up]


def test_the_last_twenty_attempts_are_kept_the_newest_last(world: World) -> None:
    for number in range(KEPT_ATTEMPTS + 5):
        world.node.saw("db", Verdict.ready(str(number)))
    reasons = [attempt.evidence.verdict.reason for attempt in world.record().attempts]
    assert KEPT_ATTEMPTS == 20
    assert reasons == [str(number) for number in range(5, 25)]


def test_a_service_that_nobody_has_looked_at_has_a_record_without_attempts(world: World) -> None:
    assert not world.record().attempts
    assert world.journal.of("other") is None


def test_services_that_were_there_before_are_followed_like_those_that_come(world: World) -> None:
    world.node.register("late").up()
    world.node.saw("db", READY)
    assert world.statuses("late") == world.statuses("db") == [Status.UP]


# ---- counts


def test_looks_are_counted_by_what_they_saw(world: World) -> None:
    for verdict in (READY, READY, FAILED, Verdict.not_ready("loading"), Verdict.unknown("no files left")):
        world.node.saw("db", verdict)
    assert world.record().looks == {
        Outcome.READY: 2,
        Outcome.FAILED: 1,
        Outcome.NOT_READY: 1,
        Outcome.UNKNOWN: 1,
    }


def test_transitions_are_changes_of_status_and_no_others(world: World) -> None:
    for verdict in (READY, READY, FAILED, FAILED, FAILED, FAILED):
        world.node.saw("db", verdict)
    world.node.replace(define("db", name="Ledger", probe=make_probe(TCP), start_period="0s"))
    assert world.record().transitions == 2


def test_silence_that_changes_a_status_is_a_transition_without_an_attempt(world: World) -> None:
    world.node.saw("db", READY)
    world.clock.advance(1000)
    assert world.node.status("db") is Status.INITIALIZING
    assert (world.record().transitions, len(world.record().attempts)) == (2, 1)


def test_changes_of_the_nodes_health_are_counted(world: World) -> None:
    world.node.saw("db", READY)
    assert world.journal.node_transitions == 1
    world.node.saw("db", READY)
    world.node.set_issue("disk full")
    world.node.set_issue("and more")
    world.node.clear_issue()
    assert world.journal.node_transitions == 3


# ---- durations


def test_durations_are_those_of_a_kind_and_not_of_each_service(world: World) -> None:
    world.node.register("other", probe="tcp://127.0.0.1:2")
    world.node.register("api", probe="http://127.0.0.1/")
    for service_id in ("db", "other", "api"):
        world.node.saw(service_id, READY, duration_s=0.002)
    assert {kind: sum(found.counts) for kind, found in world.journal.durations.items()} == {"tcp": 2, "http": 1}
    assert world.record("db").durations is world.record("other").durations


def test_what_is_reported_and_not_looked_at_has_taken_no_time(world: World) -> None:
    world.node.register("own").up()
    assert sum(world.journal.durations[NOT_LOOKED_AT].counts) == 0


@pytest.mark.parametrize(("duration_s", "bucket"), [(0.0, 0), (0.0005, 0), (0.00051, 1), (10.0, 13), (10.1, 14)])
def test_a_duration_falls_into_the_first_bucket_that_holds_it(duration_s: float, bucket: int) -> None:
    durations = Durations()
    durations.add(duration_s)
    assert [place for place, count in enumerate(durations.counts) if count] == [bucket]
    assert durations.sum_s == duration_s
    assert len(durations.counts) == len(BUCKETS_S) + 1


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ({"probe": TCP}, "tcp"),
        ({"probe": "ethereum+http://127.0.0.1"}, "ethereum+http"),
        ({"probe": FunctionProbe(lambda: None)}, "function"),
        ({"ttl": "5s"}, NOT_LOOKED_AT),
        ({}, NOT_LOOKED_AT),
    ],
)
def test_the_kind_of_a_service_is_the_scheme_that_it_is_looked_at_by(words: dict[str, object], kind: str) -> None:
    assert kind_of(define("x", **words).watch) == kind  # type: ignore[arg-type]


# ---- what the configuration says

WORDS = "set in the configuration"


def test_a_fixed_status_is_no_attempt_and_from_the_start_no_change(world: World) -> None:
    world.node.register("own").report(Setting.ready(WORDS))
    record = world.record("own")
    assert record.kind == FIXED
    assert (len(record.attempts), sum(record.looks.values()), record.transitions) == (0, 0, 0)
    world.node.saw("own", Setting.failed(WORDS))
    assert world.record("own") is record
    assert (len(record.attempts), record.transitions) == (0, 1)


def test_a_program_that_reports_in_the_same_words_is_heard(world: World) -> None:
    world.node.register("own").up(WORDS)
    assert world.record("own").kind == NOT_LOOKED_AT
    assert (world.statuses("own"), world.record("own").transitions) == ([Status.UP], 1)


def test_where_a_status_is_fixed_what_was_reported_before_is_another_story(world: World) -> None:
    world.node.register("own", ttl="5s").up()
    world.node.replace(define("own"))
    world.node.saw("own", Setting.failed(WORDS))
    assert (world.record("own").kind, world.statuses("own"), world.record("own").transitions) == (FIXED, [], 0)


def test_what_comes_in_the_place_of_a_fixed_status_is_reported(world: World) -> None:
    world.node.register("own").report(Setting.ready(WORDS))
    world.node.replace(define("own", ttl="5s"))
    assert world.record("own").kind == NOT_LOOKED_AT
    world.node.beat("own")
    assert world.statuses("own") == [Status.UP]


# ---- services that come, change and go


def test_of_a_service_that_has_left_nothing_is_kept(world: World) -> None:
    world.node.saw("db", READY)
    world.node.deregister("db")
    assert world.journal.of("db") is None


def test_a_service_that_comes_back_begins_anew(world: World) -> None:
    world.node.saw("db", READY)
    world.node.deregister("db")
    world.node.register("db", probe="http://127.0.0.1/")
    assert (world.record().kind, len(world.record().attempts), world.record().transitions) == ("http", 0, 0)


def test_another_probe_is_another_story(world: World) -> None:
    world.node.saw("db", READY)
    world.node.replace(define("db", probe=make_probe("http://127.0.0.1/")))
    assert (world.record().kind, len(world.record().attempts)) == ("http", 0)


def test_another_name_or_policy_is_the_same_story(world: World) -> None:
    world.node.saw("db", READY)
    world.node.replace(define("db", name="Ledger", probe=make_probe(TCP), fall=9))
    assert len(world.record().attempts) == 1


def test_what_is_reported_of_a_service_that_is_just_leaving_is_not_kept() -> None:
    """The report is under way on one thread while another takes the service away."""
    node = Node("validator-7", version="v1")
    node.register("db")
    node.observe(lambda service_id, *_: node.deregister(service_id))
    journal = Journal(node)
    node.saw("db", READY)
    assert journal.of("db") is None


def test_threads_that_report_at_once_lose_nothing() -> None:
    node = Node("validator-7", version="v1")
    journal = Journal(node)
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
        record = journal.of(handle.id)
        assert record is not None
        assert (record.looks[Outcome.READY], record.transitions) == (500, 1)


def test_it_knows_every_kind_of_change(world: World) -> None:
    """None of them may break the feed, on which history and the log hang as well."""
    seen: list[ChangeKind] = []
    world.node.subscribe(lambda change: seen.append(change.kind))
    world.node.register("own").up()
    world.node.identify(name="validator-8", version="v2")
    world.node.drain()
    world.node.replace(define("own", name="Own"))
    world.node.deregister("own")
    assert set(seen) == set(ChangeKind)
