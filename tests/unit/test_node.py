"""The meeting place: what goes in, what is believed of it at the moment somebody asks, and who is told."""

from __future__ import annotations

import gc
import itertools
import math
import sys
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from svcnode.api.spec import Request, respond
from svcnode.core import state_machine
from svcnode.core.errors import DuplicateServiceError, InvalidValueError, UnknownServiceError
from svcnode.core.model import (
    Change,
    ChangeKind,
    Condition,
    Evidence,
    Health,
    Impact,
    Policy,
    Service,
    ServiceState,
    Status,
    Verdict,
)
from svcnode.definition import Definition, define
from svcnode.node import Node
from svcnode.probes.function import FunctionProbe
from tests.support.virtual_time import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

READY = Verdict.ready()
FAILED = Verdict.failed("refused")


@dataclass(frozen=True)
class SomeProbe:
    """Stands where a probe stands; nobody looks through it here."""

    target: str = "somewhere"

    async def check(self) -> Verdict:
        raise AssertionError("nobody looks in these tests")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(100.0)


@pytest.fixture
def node(clock: VirtualClock) -> Node:
    return Node("validator-7", version="v1.4.2", clock=clock)


def ids_of(node: Node) -> list[str]:
    return [service.id for service, _ in node]


# ---- who the node is


def test_a_node_says_who_it_is(node: Node) -> None:
    who = node.identity
    assert (who.node_name, who.spec_version, who.node_version) == ("validator-7", "v0.0.1", "v1.4.2")


def test_a_node_needs_a_name_and_a_version_in_the_form_of_the_interface() -> None:
    with pytest.raises(InvalidValueError, match="node name"):
        Node("", version="v1")
    with pytest.raises(InvalidValueError, match='did you mean "v1"'):
        Node("validator-7", version="1")


def test_a_node_can_take_another_name_and_version(node: Node) -> None:
    revision = node.revision
    node.set_identity(name="validator-8", version="v2")
    assert (node.identity.node_name, node.identity.node_version) == ("validator-8", "v2")
    assert node.revision > revision


def test_a_name_that_cannot_be_taken_leaves_the_old_one(node: Node) -> None:
    with pytest.raises(InvalidValueError):
        node.set_identity(name="validator-8", version="two")
    assert node.identity.node_name == "validator-7"


def test_a_node_without_services_is_still_a_node(node: Node) -> None:
    assert node
    assert len(node) == 0


# ---- registration


def test_services_are_listed_in_the_order_of_registration(node: Node) -> None:
    for service_id in ("zeta", "alpha", "mu"):
        node.register(service_id)
    assert ids_of(node) == ["zeta", "alpha", "mu"]
    assert len(node) == 3


def test_a_service_is_known_by_its_id(node: Node) -> None:
    node.register("db-1")
    assert "db-1" in node
    assert "db-2" not in node


def test_registering_an_id_twice_is_refused_and_changes_nothing(node: Node) -> None:
    node.register("db-1", name="first").up()
    with pytest.raises(DuplicateServiceError, match="'db-1'"):
        node.register("db-1", name="second")
    [(service, state)] = node
    assert (service.name, state.status) == ("first", Status.UP)


@pytest.mark.parametrize("service_id", ["", "x" * 257, "a\nb", "\ud800"])
def test_an_invalid_id_is_refused_and_registers_nothing(node: Node, service_id: str) -> None:
    with pytest.raises(InvalidValueError):
        node.register(service_id)
    assert len(node) == 0


def test_a_service_is_initializing_from_the_moment_it_is_registered(node: Node) -> None:
    handle = node.register("db-1")
    assert handle.state == state_machine.initial_state(100.0)
    assert node.status("db-1") is Status.INITIALIZING


def test_a_removed_service_is_gone_and_its_place_is_free(node: Node) -> None:
    handle = node.register("db-1")
    node.register("cache")
    handle.deregister()
    assert ids_of(node) == ["cache"]
    assert node.status("db-1") is None
    node.register("db-1")
    assert ids_of(node) == ["cache", "db-1"]


def test_a_removed_service_counts_no_more(node: Node) -> None:
    node.register("cache").up()
    node.register("db-1", impact="critical").down()
    assert node.health == 503
    node.deregister("db-1")
    assert node.health == 200


def test_a_service_that_comes_back_starts_anew(node: Node) -> None:
    node.register("db-1").up()
    node.deregister("db-1")
    assert node.register("db-1").state.status is Status.INITIALIZING


def test_what_is_not_registered_can_neither_be_read_nor_reported_nor_removed(node: Node) -> None:
    handle = node.register("db-1")
    handle.deregister()
    for attempt in (handle.up, handle.deregister, lambda: handle.state, lambda: node.replace(define("db-1"))):
        with pytest.raises(UnknownServiceError, match="'db-1'"):
            attempt()


def test_a_function_becomes_the_probe_of_a_service_and_stays_a_function(node: Node) -> None:
    @node.check("cache", name="Cache", interval="5s", impact="critical")
    def is_warm() -> bool:
        return True

    assert is_warm() is True
    watch = node.probe_config("cache")
    assert watch is not None
    assert watch.probe == FunctionProbe(is_warm)
    assert watch.schedule.interval_s == 5.0
    [(service, _)] = node
    assert (service.name, service.impact) == ("Cache", Impact.CRITICAL)


def test_a_function_that_yields_is_refused_as_a_check_and_nothing_is_registered(node: Node) -> None:
    def get_db() -> Iterator[None]:
        1 / 0  # noqa: B018  which nobody would ever hear of
        yield

    with pytest.raises(InvalidValueError, match="get_db cannot be a check: it yields"):
        node.check("db", impact="critical")(get_db)
    assert "db" not in node


def test_a_service_that_is_reported_has_no_watch(node: Node) -> None:
    node.register("db-1")
    assert node.probe_config("db-1") is None
    assert node.probe_config("nobody") is None


def test_whoever_did_not_keep_a_handle_can_have_another(node: Node) -> None:
    node.register("db-1")
    node.handle("db-1").up()
    assert node.status("db-1") is Status.UP
    with pytest.raises(UnknownServiceError, match="'nobody'"):
        node.handle("nobody")


def test_a_handle_can_be_read_by_people(node: Node) -> None:
    assert repr(node.register("db-1")) == "<Handle 'db-1'>"


# ---- replacing


def probed(service_id: str = "db-1", **words: Any) -> Definition:
    return define(service_id, probe=SomeProbe(), **words)


def test_new_words_keep_the_place_and_the_belief(node: Node) -> None:
    node.add(probed(name="old"))
    node.register("cache")
    node.record("db-1", READY)
    before = node.state("db-1")
    node.replace(probed(name="new", description="described", impact="none"))
    (service, state), _ = node
    assert (service.id, service.name, service.description) == ("db-1", "new", "described")
    assert state == before


@pytest.mark.parametrize(
    "changed",
    [define("db-1", probe=SomeProbe("elsewhere")), define("db-1")],
    ids=["target", "no probe"],
)
def test_another_probe_starts_the_belief_anew(node: Node, clock: VirtualClock, changed: Definition) -> None:
    node.add(probed())
    node.record("db-1", READY)
    clock.advance(5.0)
    node.replace(changed)
    assert node.state("db-1") == state_machine.initial_state(105.0)


@pytest.mark.parametrize("changed", [probed(interval="7s"), probed(fall=9)], ids=["interval", "fall"])
def test_another_measure_keeps_the_belief(node: Node, clock: VirtualClock, changed: Definition) -> None:
    node.add(probed())
    node.record("db-1", READY)
    clock.advance(5.0)
    node.replace(changed)
    assert node.status("db-1") is Status.UP


def test_a_belief_that_was_kept_is_judged_by_the_new_measure_at_once(node: Node, clock: VirtualClock) -> None:
    node.add(probed(stale_after="20s"))
    node.record("db-1", READY)
    clock.advance(12.0)
    node.replace(probed(stale_after="11s"))
    assert node.status("db-1") is Status.INITIALIZING


def test_a_belief_that_had_lapsed_is_not_revived_by_a_more_patient_measure(node: Node, clock: VirtualClock) -> None:
    node.add(probed(stale_after="11s"))
    node.record("db-1", READY)
    clock.advance(12.0)
    node.replace(probed(stale_after="20s"))
    assert node.status("db-1") is Status.INITIALIZING


def test_a_new_weight_counts_at_once(node: Node) -> None:
    node.register("db-1").down()
    node.register("cache").up()
    assert node.health == 206
    node.replace(define("db-1", impact="critical"))
    assert node.health == 503
    node.replace(define("db-1", impact="none"))
    assert node.health == 200


def test_a_belief_that_was_kept_still_lapses(node: Node, clock: VirtualClock) -> None:
    node.add(probed(stale_after="20s"))
    node.record("db-1", READY)
    node.replace(probed(stale_after="20s", name="another name"))
    clock.advance(20.0)
    assert node.status("db-1") is Status.INITIALIZING


# ---- evidence


def test_what_the_program_says_holds_at_once(node: Node) -> None:
    handle = node.register("indexer")
    handle.up()
    assert handle.state.status is Status.UP
    handle.initializing("replaying blocks")
    assert (handle.state.status, handle.state.reason) == (Status.INITIALIZING, "replaying blocks")
    handle.down("out of disk")
    assert (handle.state.status, handle.state.reason) == (Status.DOWN, "out of disk")
    handle.up()
    assert handle.state.status is Status.UP


def test_what_the_program_says_stands_until_it_says_otherwise(node: Node, clock: VirtualClock) -> None:
    node.register("indexer").up()
    clock.advance(1e9)
    assert node.status("indexer") is Status.UP


def test_evidence_goes_stale_by_the_clock_alone(node: Node, clock: VirtualClock) -> None:
    node.add(probed(stale_after="20s"))
    node.record("db-1", READY)
    clock.advance(19.9)
    assert node.health == 200
    clock.advance(0.1)
    assert node.health == 206
    assert node.status("db-1") is Status.INITIALIZING
    assert node.state("db-1").reason == "no fresh success for 20 s"


@pytest.mark.parametrize(
    "read",
    [
        lambda node: node.health is Health.PARTIAL,
        lambda node: node.status("db-1") is Status.INITIALIZING,
        lambda node: node.state("db-1").status is Status.INITIALIZING,
        lambda node: [state.status for _, state in node] == [Status.INITIALIZING],
    ],
    ids=["health", "status", "state", "list"],
)
def test_every_way_to_read_judges_the_silence(node: Node, clock: VirtualClock, read: Callable[[Node], bool]) -> None:
    node.add(probed(stale_after="20s"))
    node.record("db-1", READY)
    clock.advance(20.0)
    assert read(node)


def test_fresh_evidence_keeps_a_service_up_past_the_first_lapse(node: Node, clock: VirtualClock) -> None:
    node.add(probed(stale_after="20s"))
    for _ in range(10):
        node.record("db-1", READY)
        clock.advance(15.0)
        assert node.status("db-1") is Status.UP
    clock.advance(5.0)
    assert node.status("db-1") is Status.INITIALIZING


def test_a_heartbeat_service_is_down_when_it_falls_silent_and_up_with_the_next_beat(
    node: Node, clock: VirtualClock
) -> None:
    node.register("worker", ttl="10s")
    node.beat("worker")
    clock.advance(9.9)
    assert node.status("worker") is Status.UP
    clock.advance(0.1)
    assert node.status("worker") is Status.DOWN
    node.beat("worker")
    assert node.status("worker") is Status.UP


def test_a_heartbeat_service_that_never_beats_is_down_after_its_ttl(node: Node, clock: VirtualClock) -> None:
    node.register("worker", ttl="10s")
    clock.advance(9.9)
    assert node.status("worker") is Status.INITIALIZING
    clock.advance(0.1)
    assert node.status("worker") is Status.DOWN


def test_evidence_may_be_older_than_its_report(node: Node, clock: VirtualClock) -> None:
    node.add(probed(stale_after="20s"))
    clock.advance(15.0)
    node.record("db-1", READY, at_s=110.0)
    assert node.status("db-1") is Status.UP
    clock.advance(15.0)
    assert node.state("db-1").status is Status.INITIALIZING


def test_evidence_that_is_stale_when_it_comes_turns_nothing_green(node: Node, clock: VirtualClock) -> None:
    node.add(probed(stale_after="20s"))
    told: list[Change] = []
    node.subscribe(told.append)
    clock.advance(25.0)
    node.record("db-1", READY, at_s=105.0)
    assert node.status("db-1") is Status.INITIALIZING
    assert told == []


def test_evidence_from_before_the_registration_is_about_something_else(node: Node) -> None:
    node.register("worker", ttl="10s")
    node.record("worker", READY, at_s=99.0)
    assert node.state("worker") == state_machine.initial_state(100.0)


def test_evidence_from_the_future_counts_as_reached_now(node: Node, clock: VirtualClock) -> None:
    node.add(probed(stale_after="20s"))
    node.record("db-1", READY, at_s=1e9)
    clock.advance(20.0)
    assert node.status("db-1") is Status.INITIALIZING


def test_whether_somebody_read_makes_no_difference_to_late_evidence() -> None:
    def down_then_late_ready(*, is_read_between: bool) -> ServiceState:
        clock = VirtualClock(0.0)
        node = Node("validator-7", version="v1", clock=clock)
        node.add(probed(stale_after="20s", start_period=0.0, fall=1))
        node.record("db-1", FAILED)
        clock.advance(30.0)
        if is_read_between:
            node.expire_stale()
        node.record("db-1", READY, at_s=15.0)
        return node.state("db-1")

    assert down_then_late_ready(is_read_between=True) == down_then_late_ready(is_read_between=False)


def test_unknown_verdicts_change_no_revision(node: Node) -> None:
    node.add(probed())
    node.record("db-1", READY)
    revision = node.revision
    node.record("db-1", Verdict.unknown("no file descriptors"))
    node.record("db-1", READY)
    assert node.revision == revision


# ---- the node as a whole


def test_a_starting_node_is_partially_healthy_until_it_has_started(clock: VirtualClock) -> None:
    node = Node("validator-7", version="v1", starting=True, clock=clock)
    assert node.health == 206
    node.started()
    assert node.health == 200
    assert node.condition == Condition()


def test_an_issue_makes_the_node_unhealthy_until_it_is_cleared(node: Node) -> None:
    node.set_issue("clock skew")
    node.set_issue("disk almost full")
    assert node.health == 503
    assert node.condition.issues == ("clock skew", "disk almost full")
    node.clear_issue("clock skew")
    assert node.health == 503
    node.clear_issue("disk almost full")
    assert node.health == 200


def test_all_issues_can_be_cleared_at_once(node: Node) -> None:
    node.set_issue("clock skew")
    node.set_issue("disk almost full")
    node.clear_issue()
    assert node.health == 200


def test_saying_the_same_of_the_node_twice_is_one_change(node: Node) -> None:
    node.set_issue("clock skew")
    revision = node.revision
    node.set_issue("clock skew")
    node.clear_issue("something else")
    assert node.revision == revision


def test_a_draining_node_is_unhealthy_whatever_its_services_are(node: Node) -> None:
    node.register("db-1").up()
    node.drain()
    assert node.health == 503
    assert node.status("db-1") is Status.UP


# ---- the feed of changes


@pytest.fixture
def heard(node: Node) -> list[Change]:
    changes: list[Change] = []
    node.subscribe(changes.append)
    return changes


@pytest.mark.parametrize(("before", "after"), [(None, "1d"), ("1d", None)])
def test_what_somebody_said_for_a_service_is_no_sign_of_life_of_its_own(
    node: Node, before: str | None, after: str | None
) -> None:
    node.add(define("db-1", ttl=before)).up()
    node.replace(define("db-1", ttl=after))
    assert node.status("db-1") is Status.INITIALIZING


def test_signs_of_life_count_on_when_they_may_be_further_apart(node: Node) -> None:
    node.register("db-1", ttl="10s").up()
    node.replace(define("db-1", ttl="20s"))
    assert node.status("db-1") is Status.UP


def test_a_check_without_the_id_of_its_service_is_refused(node: Node) -> None:
    check = cast("Any", node.check)
    with pytest.raises(InvalidValueError, match="a check needs the id of its service"):
        check(lambda: None)
    assert len(node) == 0


@pytest.mark.parametrize(
    "claim",
    [
        lambda node: node.handle("db-1").up(),
        lambda node: node.handle("db-1").report(READY),
        lambda node: node.report("db-1", READY),
        lambda node: node.beat("db-1"),
    ],
)
def test_that_a_service_works_which_is_looked_at_is_not_the_programs_to_say(
    node: Node, claim: Callable[[Node], object]
) -> None:
    node.add(probed())
    with pytest.raises(InvalidValueError, match="service 'db-1' has a probe, and only its looks can say that it is up"):
        claim(node)
    assert (node.status("db-1"), node.health) == (Status.INITIALIZING, Health.PARTIAL)


def test_that_a_service_does_not_work_the_program_may_say_of_any(node: Node) -> None:
    handle = node.add(probed(start_period=0.0, fall=1))
    handle.down("out of disk")
    assert node.state("db-1").reason == "out of disk"


def test_every_change_is_told_once_and_in_order(node: Node, heard: list[Change]) -> None:
    handle = node.register("db-1")
    handle.up()
    handle.up()
    handle.down("refused")
    node.replace(define("db-1", name="another"))
    node.set_issue("clock skew")
    handle.deregister()
    assert [(change.kind, change.service_id) for change in heard] == [
        (ChangeKind.REGISTERED, "db-1"),
        (ChangeKind.STATUS, "db-1"),
        (ChangeKind.STATUS, "db-1"),
        (ChangeKind.REPLACED, "db-1"),
        (ChangeKind.NODE, None),
        (ChangeKind.DEREGISTERED, "db-1"),
    ]


def test_a_change_says_what_was_believed_before_and_after(node: Node, clock: VirtualClock, heard: list[Change]) -> None:
    handle = node.register("db-1")
    clock.advance(3.0)
    handle.up("warm")
    _, up = heard
    assert up == Change(
        kind=ChangeKind.STATUS,
        at_s=103.0,
        service_id="db-1",
        before=state_machine.initial_state(100.0),
        after=handle.state,
        health_before=Health.PARTIAL,
        health=Health.HEALTHY,
    )


def test_a_service_that_comes_has_no_before_and_one_that_goes_no_after(node: Node, heard: list[Change]) -> None:
    node.register("db-1").deregister()
    came, went = heard
    assert came.before is None
    assert came.after == went.before == state_machine.initial_state(100.0)
    assert went.after is None


def test_silence_is_told_when_it_is_noticed(node: Node, clock: VirtualClock, heard: list[Change]) -> None:
    node.add(probed(stale_after="20s"))
    node.record("db-1", READY)
    heard.clear()
    clock.advance(25.0)
    assert heard == []
    node.expire_stale()
    [change] = heard
    assert change.after is not None
    assert (change.at_s, change.after.status, change.after.since_s) == (125.0, Status.INITIALIZING, 120.0)


def test_the_silence_of_a_service_that_is_gone_is_told_to_nobody(
    node: Node, clock: VirtualClock, heard: list[Change]
) -> None:
    node.register("worker", ttl="10s").up()
    node.deregister("worker")
    heard.clear()
    clock.advance(10.0)
    node.expire_stale()
    assert heard == []
    assert node.health == 200


def test_a_listener_that_raises_keeps_nobody_from_hearing(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    def fails(change: Change) -> None:
        raise ValueError("not today")

    heard: list[Change] = []
    node.subscribe(fails)
    node.subscribe(heard.append)
    node.register("db-1").up()
    assert len(heard) == 2
    assert [record.name for record in caplog.records] == ["svcnode.feed"] * 2


def test_a_listener_may_report_and_everybody_hears_both_in_order(node: Node) -> None:
    node.register("db-1")
    node.register("mirror")

    def mirrors(change: Change) -> None:
        if change.service_id == "db-1":
            node.record("mirror", READY)

    heard: list[str | None] = []
    node.subscribe(mirrors)
    node.subscribe(lambda change: heard.append(change.service_id))
    node.record("db-1", READY)
    assert heard == ["db-1", "mirror"]


def test_a_listener_may_read_and_change_the_node(node: Node) -> None:
    def removes_what_is_down(change: Change) -> None:
        if change.after is not None and node.status("db-1") is Status.DOWN:
            node.deregister("db-1")

    node.subscribe(removes_what_is_down)
    node.register("db-1").down()
    assert "db-1" not in node


def test_who_unsubscribes_hears_nothing_more(node: Node) -> None:
    heard: list[Change] = []
    unsubscribe = node.subscribe(heard.append)
    node.register("db-1")
    unsubscribe()
    node.register("db-2")
    assert len(heard) == 1


def test_who_subscribes_hears_nothing_of_before(node: Node) -> None:
    node.register("db-1").up()
    heard: list[Change] = []
    node.subscribe(heard.append)
    assert heard == []


# ---- many threads


def at_once(*jobs: Callable[[], None]) -> None:
    """Run all of them at the same time, and fail if one does."""
    together = threading.Barrier(len(jobs))
    failures: list[Exception] = []

    def run(job: Callable[[], None]) -> None:
        together.wait()
        try:
            job()
        except Exception as exc:  # noqa: BLE001  it is raised again below
            failures.append(exc)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30.0)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []


@pytest.fixture
def _threads_take_turns_often() -> Iterator[None]:
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual_s)


@pytest.mark.usefixtures("_threads_take_turns_often")
def test_the_order_of_the_feed_is_the_order_of_the_changes_whoever_makes_them() -> None:
    ticks = itertools.count()
    # Every look at this clock is a different moment, and the node looks at it under its lock.
    node = Node("validator-7", version="v1", clock=lambda: float(next(ticks)))
    handles = [node.register(f"svc-{place}") for place in range(4)]
    heard: list[Change] = []
    node.subscribe(heard.append)
    revision = node.revision

    def flap(place: int) -> Callable[[], None]:
        def job() -> None:
            for _ in range(150):
                handles[place].up()
                handles[place].down()

        return job

    at_once(*map(flap, range(4)))
    assert len(heard) == node.revision - revision == 4 * 300
    assert [change.at_s for change in heard] == sorted({change.at_s for change in heard})
    assert all(one.health is other.health_before for one, other in itertools.pairwise(heard))


@pytest.mark.usefixtures("_threads_take_turns_often")
def test_threads_that_do_everything_at_once_leave_a_node_that_adds_up() -> None:
    clock = VirtualClock(0.0)
    node = Node("validator-7", version="v1", clock=clock)
    shared = node.register("shared", impact="critical")

    def comes_and_goes(name: str) -> Callable[[], None]:
        def job() -> None:
            for turn in range(60):
                handle = node.register(f"{name}-{turn}", ttl="1h")
                handle.up()
                node.replace(define(f"{name}-{turn}", ttl="1h", impact="none"))
                handle.down()
                if turn % 2:
                    handle.deregister()

        return job

    def reports() -> None:
        for _ in range(200):
            shared.down()
            shared.up()

    def reads() -> None:
        for _ in range(200):
            assert node.health in Health
            assert all(state.status in Status for _, state in node)
            assert node.state("shared").registered_at_s == 0.0

    at_once(comes_and_goes("a"), comes_and_goes("b"), reports, reads)
    assert sorted(ids_of(node)) == sorted(["shared", *(f"{name}-{turn}" for name in "ab" for turn in range(0, 60, 2))])
    assert {state.status for service, state in node if service.id != "shared"} == {Status.DOWN}
    assert node.status("shared") is Status.UP
    assert node.health == 200


@pytest.mark.usefixtures("_threads_take_turns_often")
def test_one_silence_is_told_once_however_many_notice_it() -> None:
    clock = VirtualClock(0.0)
    node = Node("validator-7", version="v1", clock=clock)
    for place in range(50):
        node.register(f"svc-{place}", ttl="10s").up()
    heard: list[Change] = []
    node.subscribe(heard.append)
    clock.advance(10.0)

    def reads() -> None:
        for _ in range(20):
            assert node.health == 503

    at_once(reads, reads, reads, reads)
    assert sorted(str(change.service_id) for change in heard) == sorted(f"svc-{place}" for place in range(50))


# ---- work and memory


def steps_of(work: Callable[[], object]) -> int:
    """How many instructions of Python, in every function it comes through, a piece of work takes."""
    steps = 0

    def trace(frame: Any, event: str, arg: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return trace

    usual = sys.gettrace()
    gc.disable()  # a collection may call back into Python, and when it comes is not the work's doing
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(usual)
        gc.enable()
    return steps


def node_with(service_count: int) -> Node:
    node = Node("validator-7", version="v1", clock=VirtualClock(0.0))
    node.subscribe(lambda change: None)
    for place in range(service_count):
        node.add(probed(f"svc-{place}", fall=1, start_period=0.0))
        node.record(f"svc-{place}", READY)
    return node


@pytest.fixture(scope="module")
def small() -> Node:
    return node_with(10)


@pytest.fixture(scope="module")
def large() -> Node:
    return node_with(10_000)


@pytest.mark.parametrize(
    "work",
    [
        lambda node: node.record("svc-5", READY),
        lambda node: (
            node.record("svc-5", FAILED),
            node.record("svc-5", Verdict.not_ready("")),
            node.record("svc-5", READY),
        ),
        lambda node: (node.set_issue("skew"), node.clear_issue("skew")),
        lambda node: node.health,
        lambda node: node.status("svc-5"),
        lambda node: (node.register("one-more", ttl=9.0), node.deregister("one-more")),
        lambda node: node.replace(probed("svc-5", fall=1, start_period=0.0, name="new")),
    ],
    ids=["report", "change of status", "issue", "health", "status", "registration", "replacement"],
)
def test_everything_but_the_list_costs_the_same_with_ten_services_and_with_ten_thousand(
    small: Node, large: Node, work: Callable[[Node], object]
) -> None:
    assert 0 < steps_of(lambda: work(small)) == steps_of(lambda: work(large))


def test_the_measure_would_notice_a_walk_over_the_services(small: Node, large: Node) -> None:
    assert steps_of(lambda: list(large)) > 100 * steps_of(lambda: list(small))


def test_reports_do_not_grow_the_memory_of_lapses(node: Node, clock: VirtualClock) -> None:
    node.add(probed())
    for _ in range(1000):
        node.record("db-1", READY)
        clock.advance(10.0)
        node.expire_stale()
    assert len(node._expiry_heap) == 1


def test_services_that_come_and_go_do_not_grow_the_memory_of_lapses(node: Node) -> None:
    for turn in range(2000):
        node.register(f"svc-{turn}", ttl="7d").up()
        node.deregister(f"svc-{turn}")
    assert len(node._expiry_heap) <= 64


def test_services_that_are_redefined_do_not_grow_the_memory_of_lapses(node: Node, clock: VirtualClock) -> None:
    node.register("db-1", ttl="7d").up()
    for turn in range(2000):
        node.replace(define("db-1", ttl="7d", name=f"name {turn}"))
    assert len(node._expiry_heap) <= 2 + 64 + 1
    clock.advance(7 * 86400.0)
    assert node.status("db-1") is Status.DOWN


def test_services_lapse_in_time_after_many_others_have_gone(node: Node, clock: VirtualClock) -> None:
    ttls_s = [7 * place % 199 + 1 for place in range(199)]  # every number from 1 to 199, well mixed
    for ttl_s in ttls_s:
        node.register(f"ttl-{ttl_s}", ttl=ttl_s)
    left = [ttl_s for place, ttl_s in enumerate(ttls_s) if place % 4 == 3]
    for ttl_s in set(ttls_s) - set(left):
        node.deregister(f"ttl-{ttl_s}")
    for passed_s in range(200):
        statuses = {service.id: state.status for service, state in node}
        down = {f"ttl-{ttl_s}" for ttl_s in left if ttl_s <= passed_s}
        assert {service_id for service_id, status in statuses.items() if status is Status.DOWN} == down
        clock.advance(1.0)


def test_a_lapse_that_is_over_is_not_waited_for(node: Node, clock: VirtualClock) -> None:
    node.register("worker", ttl="10s").up()
    assert node.next_expiry_at_s == 110.0
    clock.advance(10.0)
    node.expire_stale()
    assert node.next_expiry_at_s == math.inf


def test_nothing_lapses_while_nothing_can(node: Node) -> None:
    node.register("db-1").up()
    assert node.next_expiry_at_s == math.inf


# ---- against a model that remembers everything and works it all out anew


@dataclass
class Remembered:
    definition: Definition
    registered_at_s: float
    policy: Policy
    happened: list[tuple[float, Evidence | Policy]] = field(default_factory=list)

    def state_at(self, now_s: float) -> ServiceState:
        policy = self.policy
        state = state_machine.initial_state(self.registered_at_s)
        for at_s, what in self.happened:
            state = state_machine.as_of(state, at_s, policy)
            if isinstance(what, Policy):
                policy = what
            else:
                state = state_machine.next_state(state, what, policy)
            state = state_machine.as_of(state, at_s, policy)
        return state_machine.as_of(state, now_s, policy)


services = st.sampled_from(["a", "b", "c/d", "é"])
impacts = st.sampled_from([impact.value for impact in Impact])
verdicts = st.sampled_from([READY, Verdict.not_ready("loading"), FAILED, Verdict.unknown("no driver")])
seconds = st.integers(min_value=0, max_value=80).map(lambda halves: halves / 2)


@st.composite
def definitions(draw: st.DrawFn) -> Definition:
    service_id, name, impact = draw(services), draw(st.sampled_from(["", "Name"])), draw(impacts)
    match draw(st.sampled_from(["reported", "heartbeat", "probed"])):
        case "reported":
            return define(service_id, name=name, impact=impact)
        case "heartbeat":
            return define(service_id, name=name, impact=impact, ttl=draw(st.sampled_from([5, 20])))
        case _:
            return probed(service_id, name=name, impact=impact, fall=draw(st.integers(1, 3)), stale_after=20)


def _source(definition: Definition) -> str:
    """Who gives evidence of a service; there is only one probe in this model."""
    if definition.probe_config is not None:
        return "the probe"
    return "the program" if definition.service.policy.ttl_s is None else "the service itself"


class NodeAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock(0.0)
        self.node = Node("validator-7", version="v1", starting=True, clock=self.clock)
        self.model: dict[str, Remembered] = {}
        self.condition = Condition(starting=True)
        self.heard: list[Change] = []
        self.node.subscribe(self.heard.append)
        self.observed: object = None
        self.seen_at_revision = -1

    @rule(definition=definitions())
    def register(self, definition: Definition) -> None:
        service_id = definition.service.id
        if service_id in self.model:
            with pytest.raises(DuplicateServiceError):
                self.node.add(definition)
        else:
            self.node.add(definition)
            self.model[service_id] = Remembered(definition, self.clock(), definition.service.policy)

    @rule(definition=definitions())
    def redefine(self, definition: Definition) -> None:
        service_id = definition.service.id
        if service_id not in self.model:
            with pytest.raises(UnknownServiceError):
                self.node.replace(definition)
            return
        self.node.replace(definition)
        old = self.model[service_id]
        if _source(old.definition) == _source(definition):
            old.definition = definition
            old.happened.append((self.clock(), definition.service.policy))
        else:
            self.model[service_id] = Remembered(definition, self.clock(), definition.service.policy)

    @rule(service_id=services)
    def deregister(self, service_id: str) -> None:
        if self.model.pop(service_id, None) is None:
            with pytest.raises(UnknownServiceError):
                self.node.deregister(service_id)
        else:
            self.node.deregister(service_id)

    @rule(service_id=services, verdict=verdicts, age_s=st.just(0.0) | seconds)
    def report(self, service_id: str, verdict: Verdict, age_s: float) -> None:
        now_s = self.clock()
        if service_id not in self.model:
            with pytest.raises(UnknownServiceError):
                self.node.record(service_id, verdict)
            return
        self.node.record(service_id, verdict, at_s=now_s - age_s)
        self.model[service_id].happened.append((now_s, Evidence(verdict=verdict, at_s=now_s - age_s)))

    @rule(by_s=seconds)
    def time_passes(self, by_s: float) -> None:
        self.clock.advance(by_s)

    @rule(issue=st.sampled_from(["skew", "disk"]), is_set=st.booleans())
    def issue(self, issue: str, is_set: bool) -> None:
        others = tuple(one for one in self.condition.issues if one != issue)
        if not is_set:
            self.node.clear_issue(issue)
            self.condition = replace(self.condition, issues=others)
        elif issue not in self.condition.issues:
            self.node.set_issue(issue)
            self.condition = replace(self.condition, issues=(*others, issue))

    @precondition(lambda self: self.condition.starting)
    @rule()
    def started(self) -> None:
        self.node.started()
        self.condition = replace(self.condition, starting=False)

    # Half of the time nobody reads, so that what was read never is what makes it true.
    @rule()
    def somebody_reads(self) -> None:
        now_s = self.clock()
        expected = [(one.definition.service, one.state_at(now_s)) for one in self.model.values()]
        assert list(self.node) == expected
        total = state_machine.tally((service.impact, state.status) for service, state in expected)
        assert self.node._tally == total
        assert self.node.health is state_machine.node_health(total, self.condition)
        assert len(self.node) == len(self.model)
        assert self.node.condition == self.condition
        self.check_what_clients_see(expected)
        self.check_what_was_told(expected)

    def check_what_clients_see(self, listed: list[tuple[Service, ServiceState]]) -> None:
        """The list and the health of each service come to the same, and a revision never shows two faces."""
        codes = {"Up": 200, "Initializing": 206, "Down": 503}
        body = respond(self.node, Request("GET", b"/svc/node/services")).body
        for service, state in listed:
            encoded = service.id.replace("/", "%2F").replace("é", "%C3%A9")
            path = f"/svc/node/services/{encoded}/health".encode()
            assert respond(self.node, Request("GET", path)).code == codes[state.status.value]
        seen = (body, self.node.health)
        if self.node.revision == self.seen_at_revision:
            assert seen == self.observed
        self.observed, self.seen_at_revision = seen, self.node.revision

    def check_what_was_told(self, listed: list[tuple[Service, ServiceState]]) -> None:
        """Whoever only listened believes the same as whoever reads."""
        told: dict[str, Status] = {}
        health = Health.PARTIAL
        for change in self.heard:
            assert change.health_before is health
            health = change.health
            if change.service_id is not None:
                before = None if change.before is None else change.before.status
                assert told.pop(change.service_id, None) is before
                if change.after is not None:
                    told[change.service_id] = change.after.status
        assert told == {service.id: state.status for service, state in listed}
        assert health is self.node.health
        assert len(self.heard) == self.node.revision

    @invariant()
    def the_next_lapse_is_never_later_than_it_should_be(self) -> None:
        lapses = [
            state_machine.expires_at_s(entry.state, entry.service.policy) for entry in self.node._entries.values()
        ]
        assert self.node.next_expiry_at_s <= min(lapses, default=math.inf)


TestNodeAgainstModel = NodeAgainstModel.TestCase
TestNodeAgainstModel.settings = settings(deadline=None, max_examples=60, stateful_step_count=40)


def test_a_service_is_found_with_what_is_believed_of_it_now() -> None:
    clock = VirtualClock()
    node = Node("n", version="v1", clock=clock)
    node.register("db", ttl=5.0).up()
    clock.advance(6)
    found = node.find("db")
    assert found is not None
    assert (found[0].id, found[1].status) == ("db", Status.DOWN)
    assert node.find("nothing") is None
