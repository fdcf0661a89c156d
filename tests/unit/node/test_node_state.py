"""The node: registration, evidence, health, the change feed, threads and cost."""

from __future__ import annotations

import gc
import itertools
import math
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from svcnode.api.spec import Request, respond
from svcnode.core import state_machine
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import DuplicateServiceError, InvalidValueError, UnknownServiceError
from svcnode.core.model import (
    Change,
    ChangeKind,
    Condition,
    Evidence,
    Health,
    Impact,
    ImpactName,
    KnownBefore,
    LoweredImpactName,
    Maintenance,
    Policy,
    Service,
    ServiceState,
    Status,
    Verdict,
)
from svcnode.core.text import MAX_REASON_CHARS
from svcnode.node.definition import Definition, define
from svcnode.node.feed import changes_by
from svcnode.node.node_state import Handle
from svcnode.probes.base import Probe
from tests.support.nodes import beat, make_node, record
from tests.support.virtual_time import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from svcnode.node.node_state import NodeState


READY = Verdict.ready()
FAILED = Verdict.failed("refused", code=ReasonCode.CONNECTION_REFUSED)


@dataclass(frozen=True)
class UnusedProbe(Probe):
    target: str = "somewhere"

    async def check(self) -> Verdict:
        raise AssertionError("these tests run no checks")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(100.0)


@pytest.fixture
def node(clock: VirtualClock) -> NodeState:
    return make_node("validator-7", version="v1.4.2", clock=clock)


def ids_of(node: NodeState) -> list[str]:
    return [service.id for service, _ in node]


# ---- identity


def test_the_identity_can_be_changed(node: NodeState) -> None:
    assert node, "also without services"
    revision = node.revision
    node.set_identity(name="validator-8", version="v2")
    assert (node.identity.node_name, node.identity.node_version) == ("validator-8", "v2")
    assert node.revision > revision
    with pytest.raises(InvalidValueError):
        node.set_identity(name="validator-9", version="two")
    assert node.identity.node_name == "validator-8"


# ---- registration


def test_a_service_that_exists_for_longer_than_the_process_expires_accordingly(
    node: NodeState, clock: VirtualClock
) -> None:
    node.add(define("old", ttl=10), registered_at_s=95.0)
    node.add(define("future", ttl=10), registered_at_s=900.0)  # of a clock that was ahead
    clock.advance(6)
    assert [state.status for _, state in node] == [Status.DOWN, Status.INITIALIZING]
    clock.advance(4)
    assert [state.status for _, state in node] == [Status.DOWN, Status.DOWN]


def test_evidence_from_before_the_process_counts_since_the_registration_and_not_longer(
    node: NodeState, clock: VirtualClock
) -> None:
    node.register("job", ttl=10)
    record(node, "job", READY, at_s=95.0)
    assert node.state("job").status is Status.INITIALIZING
    node.set_registered_at("job", 95.0)
    node.set_registered_at("job", 99.0)  # not later
    record(node, "job", READY, at_s=95.0)
    assert node.state("job").status is Status.UP
    clock.advance(5.1)
    assert node.state("job").status is Status.DOWN


def test_a_node_drains_until_every_source_has_ended_its_drain(node: NodeState) -> None:
    node.overrides.drain("update")
    node.overrides.drain("all", source="other")
    assert node.condition.drain_reason == "update; all"
    node.overrides.undrain()
    assert (node.health, node.condition.drain_reason) == (Health.UNHEALTHY, "all")
    node.overrides.undrain(source="other")
    assert node.condition.draining is False


def test_a_drained_node_is_healthy_again_after_undrain(node: NodeState) -> None:
    node.overrides.drain(b"update\n")
    assert (node.health, node.condition.draining) == (Health.UNHEALTHY, True)
    assert node.condition.drain_reason == "update\\n"
    node.overrides.undrain()
    node.overrides.undrain()
    assert (node.health, node.condition) == (Health.HEALTHY, Condition())


def test_an_unknown_service_cannot_be_read_reported_or_removed(node: NodeState) -> None:
    handle = node.register("db-1")
    handle.deregister()
    for call in (handle.up, handle.deregister, lambda: handle.state, lambda: node.replace(define("db-1"))):
        with pytest.raises(UnknownServiceError, match="'db-1'"):
            call()


def test_the_handle_of_a_registered_service_can_be_requested(node: NodeState) -> None:
    node.register("db-1")
    Handle(node, "db-1").up()
    assert node.status("db-1") is Status.UP
    assert ("db-1" in node, "unknown" in node) == (True, False)
    assert repr(Handle(node, "db-1")) == "<Handle 'db-1'>"
    assert (node.status("unknown"), node.find("unknown")) == (None, None)
    assert node.probe_config("db-1") is node.probe_config("unknown") is None
    with pytest.raises(UnknownServiceError, match="'unknown'"):
        Handle(node, "unknown").down()


# ---- replacing


def probed(service_id: str = "db-1", **options: Any) -> Definition:
    return define(service_id, probe=UnusedProbe(), **options)


@pytest.mark.parametrize(
    "changed",
    [define("db-1", probe=UnusedProbe("elsewhere")), define("db-1")],
    ids=["target", "no probe"],
)
def test_another_probe_starts_without_evidence(node: NodeState, clock: VirtualClock, changed: Definition) -> None:
    node.add(probed())
    record(node, "db-1", READY)
    clock.advance(5.0)
    node.replace(changed)
    assert node.state("db-1") == state_machine.initial_state(105.0)


@pytest.mark.parametrize(("before", "after"), [("20s", "11s"), ("11s", "20s")])
def test_a_kept_state_has_expired_if_it_has_by_the_old_or_the_new_policy(
    node: NodeState, clock: VirtualClock, before: str, after: str
) -> None:
    node.add(probed(stale_after=before))
    record(node, "db-1", READY)
    clock.advance(12.0)
    node.replace(probed(stale_after=after))
    assert node.status("db-1") is Status.INITIALIZING


@pytest.mark.parametrize("changed", [define("db-1"), probed(name="new")], ids=["no probe", "probe"])
def test_a_service_that_is_checked_elsewhere_keeps_its_state(node: NodeState, changed: Definition) -> None:
    node.add(define("db-1", probe=UnusedProbe("elsewhere")))
    record(node, "db-1", READY)
    before = node.state("db-1")
    node.replace(changed, keeps_state=True)
    assert node.state("db-1") == before


@pytest.mark.parametrize("is_renewed", [True, False])
def test_evidence_that_has_expired_is_published_at_the_next_read_unless_there_is_newer_evidence(
    node: NodeState, clock: VirtualClock, is_renewed: bool
) -> None:
    """A replica looks at a state, takes over the checks, and gets newer evidence, all in the same moment."""
    node.add(probed(stale_after="20s"))
    record(node, "db-1", READY)
    before, statuses = node.state("db-1"), list[Status]()
    node.subscribe(lambda change: statuses.append(change.after.status) if change.after else None)
    clock.advance(22.0)
    found = node.peek("db-1")
    assert found is not None
    assert found[1].code == ReasonCode.STALE
    node.replace(probed(stale_after="20s", name="new"), keeps_state=True)
    if is_renewed:
        node.set_decided_states({"db-1": before._replace(last_ready_at_s=clock.now_s, last_evidence_at_s=clock.now_s)})
    assert node.health is (Health.HEALTHY if is_renewed else Health.PARTIAL)
    assert statuses == [Status.UP] if is_renewed else [Status.UP, Status.INITIALIZING]
    assert node.peek("unknown") is None


def test_a_service_without_any_heartbeat_stays_down_and_is_stale_at_once(node: NodeState, clock: VirtualClock) -> None:
    node.add(define("db-1", ttl=10))
    clock.advance(60.0)
    node.replace(probed(stale_after="20s"), keeps_state=True)
    assert (node.status("db-1"), node.state("db-1").code) == (Status.DOWN, ReasonCode.STALE)


def test_the_list_has_the_order_that_is_set_and_unnamed_services_follow(node: NodeState) -> None:
    for service_id in ("a", "b", "c", "d"):
        node.register(service_id)
    revision = node.revision
    node.reorder(["d", "unknown", "b", "d"])
    assert node.ids == ("d", "b", "a", "c")
    assert ids_of(node) == ["d", "b", "a", "c"]
    node.reorder(["d", "b"])  # no change
    assert (ids_of(node), node.revision) == (["d", "b", "a", "c"], revision + 1)


# ---- states that are decided elsewhere


def mirrored(node: NodeState, status: Status, at_s: float) -> ServiceState:
    return node.state("db-1")._replace(
        status=status, reason="decided elsewhere", since_s=at_s, last_ready_at_s=at_s, last_evidence_at_s=at_s
    )


def test_a_mirrored_state_is_published_as_any_other(node: NodeState, changes: list[Change]) -> None:
    node.add(probed(impact="critical"))
    state = mirrored(node, Status.DOWN, 99.0)
    node.set_decided_states({"db-1": state, "unknown": state})
    assert (node.state("db-1"), node.health, len(node)) == (state, 503, 1)
    assert [(change.kind, change.service_id) for change in changes] == [
        (ChangeKind.REGISTERED, "db-1"),
        (ChangeKind.STATUS, "db-1"),
    ]


def test_a_mirrored_state_whose_evidence_is_too_old_is_never_up(node: NodeState, changes: list[Change]) -> None:
    node.add(probed(stale_after="20s"))
    node.set_decided_states({"db-1": mirrored(node, Status.UP, 80.0)})
    assert (node.state("db-1").code, node.health) == (ReasonCode.STALE, 206)
    assert [change.kind for change in changes] == [ChangeKind.REGISTERED]


def test_a_mirrored_state_with_older_evidence_expires_earlier(node: NodeState, clock: VirtualClock) -> None:
    node.add(probed(stale_after="20s"))
    for at_s in (100.0, 95.0, 85.0):
        node.set_decided_states({"db-1": mirrored(node, Status.UP, at_s)})
    clock.advance(4.5)
    assert node.health == 200
    clock.advance(0.5)
    assert node.health == 206


def test_mirrored_states_do_not_grow_the_expiry_heap(node: NodeState, clock: VirtualClock) -> None:
    node.add(probed(stale_after="20s"))
    for step in range(200):
        node.set_decided_states({"db-1": mirrored(node, Status.UP, 100.0 - step / 1000)})
    assert len(node._states._expiry._heap) <= 2 + 64
    clock.advance(20.0)
    node.set_decided_states({"db-1": mirrored(node, Status.UP, 120.0)})
    assert node.health == 200
    assert len(node._states._expiry._heap) == 1


def test_evidence_of_a_mirrored_state_reaches_the_evidence_listeners(node: NodeState) -> None:
    node.add(probed())
    received: list[tuple[str, Evidence, ServiceState]] = []
    node.subscribe(on_evidence=lambda *arguments: received.append(arguments))
    evidence, state = Evidence(READY, 99.0), mirrored(node, Status.UP, 99.0)
    node.feed.publish_evidence("db-1", evidence, state)
    assert received == [("db-1", evidence, state)]
    assert node.status("db-1") is Status.INITIALIZING


# ---- evidence


def test_a_report_has_the_code_reported_unless_one_is_given(node: NodeState) -> None:
    handle = node.register("indexer")
    reports = {Status.UP: handle.up, Status.INITIALIZING: handle.initializing, Status.DOWN: handle.down}
    for status, report in reports.items():
        report("because")
        assert (handle.state.status, handle.state.reason) == (status, "because"), "at once"
        assert handle.state.code == ReasonCode.REPORTED
        report("because", code=ReasonCode.DISK_LOW)
        assert handle.state.code == ReasonCode.DISK_LOW
    handle.down("because", code="x_indexer")
    assert handle.state.code == "x_indexer"
    handle.down("because", code="Disk full!")
    assert (handle.state.reason, handle.state.code) == ("because", ReasonCode.OTHER)


def test_many_checks_are_recorded_as_one_by_one(node: NodeState, clock: VirtualClock) -> None:
    other = make_node("validator-7", version="v1.4.2", clock=clock)
    for each in (node, other):
        for service_id in ("db-1", "db-2", "db-3"):
            each.add(probed(service_id, fall=1, start_period=0))
    clock.advance(100)
    checks = {
        "db-1": Evidence(Verdict.ready(), clock() - 1, 0.25),
        "db-2": Evidence(Verdict.failed("refused"), clock(), 0.5),
        "db-3": Evidence(Verdict.not_ready("loading"), clock() - 0.5, 0.5),
    }
    states = node.record(checks)
    for service_id, (verdict, at_s, duration_s) in checks.items():
        assert states[service_id] == record(other, service_id, verdict, duration_s=duration_s, at_s=at_s)
        assert states[service_id] == node.state(service_id)
    assert node.health == other.health


def test_listeners_receive_all_evidence_of_many_checks_before_their_changes(node: NodeState) -> None:
    node.add(probed("db-1"))
    node.add(probed("db-2"))
    received: list[str] = []
    node.subscribe(
        lambda change: received.append(f"change of {change.service_id}"),
        on_evidence=lambda service_id, *_: received.append(f"evidence of {service_id}"),
    )
    states = node.record(dict.fromkeys(("gone", "db-1", "db-2"), Evidence(READY, 100.0)))
    assert [*states] == ["db-1", "db-2"], "not that of a service that was removed"
    assert received == ["evidence of db-1", "evidence of db-2", "change of db-1", "change of db-2"]


@pytest.mark.parametrize(
    "read",
    [
        lambda node: node.health is Health.PARTIAL,
        lambda node: node.status("db-1") is Status.INITIALIZING,
        lambda node: node.state("db-1").status is Status.INITIALIZING,
        lambda node: node.find("db-1")[1].status is Status.INITIALIZING,
        lambda node: [state.status for _, state in node] == [Status.INITIALIZING],
    ],
    ids=["health", "status", "state", "find", "list"],
)
def test_every_read_expires_stale_evidence(
    node: NodeState, clock: VirtualClock, read: Callable[[NodeState], bool]
) -> None:
    node.add(probed(stale_after="20s"))
    record(node, "db-1", READY)
    clock.advance(20.0)
    assert read(node)


def test_evidence_that_is_stale_when_recorded_brings_no_service_up(node: NodeState, clock: VirtualClock) -> None:
    node.add(probed(stale_after="20s"))
    changes: list[Change] = []
    node.subscribe(changes.append)
    clock.advance(25.0)
    record(node, "db-1", READY, at_s=105.0)
    assert node.status("db-1") is Status.INITIALIZING
    assert changes == []


def test_a_report_that_waits_is_not_older_than_one_that_was_recorded_meanwhile(node: NodeState) -> None:
    """As while it reads what other workers have recorded."""

    class Waiting:
        is_first = True

        def sync(self) -> None:
            if self.is_first:
                self.is_first = False
                node.report("db-1", READY)

        def publish(self, *_: object) -> None: ...

        def set_issue(self, issue: str, *, is_set: bool) -> None: ...

    node.register("db-1")
    node.share_with(Waiting())
    node.report("db-1", FAILED)
    assert node.status("db-1") is Status.DOWN


def test_evidence_from_the_future_is_dated_now(node: NodeState, clock: VirtualClock) -> None:
    node.add(probed(stale_after="20s"))
    record(node, "db-1", READY, at_s=1e9)
    clock.advance(20.0)
    assert node.status("db-1") is Status.INITIALIZING


def test_unknown_verdicts_change_no_revision(node: NodeState) -> None:
    node.add(probed())
    record(node, "db-1", READY)
    revision = node.revision
    record(node, "db-1", Verdict.unknown("no file descriptors"))
    record(node, "db-1", READY)
    assert node.revision == revision


# ---- the node as a whole


def test_a_caveat_keeps_the_node_at_206_at_best_until_it_ends(node: NodeState) -> None:
    node.overrides.set_caveat("registry", "the registry is unreachable")
    node.overrides.set_caveat("lost", "1 service is lost")
    node.overrides.set_caveat("lost", "2 services are lost")
    assert (node.health, node.condition.caveats) == (206, ("the registry is unreachable", "2 services are lost"))
    node.overrides.set_caveat("registry", "")
    assert node.health == 206
    node.overrides.set_caveat("lost", "")
    node.overrides.set_caveat("lost", "")
    assert node.health == 200


def test_an_issue_makes_the_node_unhealthy_until_it_is_cleared(node: NodeState) -> None:
    node.overrides.set_issue("clock skew")
    node.overrides.set_issue("disk almost full")
    assert node.health == 503
    assert node.condition.issues == ("clock skew", "disk almost full")
    node.overrides.clear_issue("clock skew")
    assert node.health == 503
    node.overrides.clear_issue("disk almost full")
    assert node.health == 200
    node.overrides.set_issue("clock skew")
    node.overrides.set_issue("disk almost full")
    node.overrides.clear_issue()
    assert node.health == 200


@pytest.mark.parametrize("issue", [None, b"\xff", "a\ud800\n", "x" * MAX_REASON_CHARS, "x" * (MAX_REASON_CHARS + 1)])
def test_any_object_can_be_an_issue_and_is_cleared_by_itself(node: NodeState, issue: object) -> None:
    node.overrides.set_issue(issue)
    (text,) = node.condition.issues
    assert text
    assert text.isprintable()
    assert len(text) <= MAX_REASON_CHARS
    assert node.health == 503
    node.overrides.clear_issue(issue if issue is not None else text)
    assert node.health == 200


def test_an_issue_counts_once_and_long_ones_that_begin_alike_stay_apart(node: NodeState) -> None:
    node.overrides.set_issue("x" * 5000 + "1")
    node.overrides.set_issue("x" * 5000 + "2")
    revision = node.revision
    node.overrides.set_issue("x" * 5000 + "1")
    node.overrides.clear_issue("something else")
    assert node.revision == revision
    node.overrides.clear_issue("x" * 5000 + "1")
    assert node.health == 503


# ---- the change feed


@pytest.fixture
def changes(node: NodeState) -> list[Change]:
    received: list[Change] = []
    node.subscribe(received.append)
    return received


@pytest.mark.parametrize(
    "report",
    [
        lambda node: Handle(node, "db-1").up(),
        lambda node: Handle(node, "db-1").report(READY),
        lambda node: node.report("db-1", READY),
        lambda node: beat(node, "db-1"),
    ],
)
def test_the_program_cannot_report_a_service_with_a_probe_as_up(
    node: NodeState, report: Callable[[NodeState], object]
) -> None:
    node.add(probed())
    with pytest.raises(InvalidValueError, match="'db-1'"):
        report(node)
    assert (node.status("db-1"), node.health) == (Status.INITIALIZING, Health.PARTIAL)


def test_the_program_may_report_a_service_with_a_probe_as_down(node: NodeState) -> None:
    node.add(probed(start_period=0.0, fall=1))
    Handle(node, "db-1").down("full")
    assert (node.state("db-1").status, node.state("db-1").reason) == (Status.DOWN, "full")


def test_every_change_is_delivered_once_and_in_order(node: NodeState, changes: list[Change]) -> None:
    handle = node.register("db-1")
    handle.up()
    handle.up()
    handle.down("refused")
    node.replace(define("db-1", name="another"))
    node.overrides.set_issue("clock skew")
    handle.deregister()
    assert [(change.kind, change.service_id) for change in changes] == [
        (ChangeKind.REGISTERED, "db-1"),
        (ChangeKind.STATUS, "db-1"),
        (ChangeKind.STATUS, "db-1"),
        (ChangeKind.REPLACED, "db-1"),
        (ChangeKind.NODE, None),
        (ChangeKind.DEREGISTERED, "db-1"),
    ]


def test_a_change_has_the_state_before_and_after(node: NodeState, clock: VirtualClock, changes: list[Change]) -> None:
    handle = node.register("db-1")
    clock.advance(3.0)
    handle.up("warm")
    _, up = changes
    assert up == Change(
        kind=ChangeKind.STATUS,
        at_s=103.0,
        service_id="db-1",
        before=state_machine.initial_state(100.0),
        after=handle.state,
        health_before=Health.PARTIAL,
        health=Health.HEALTHY,
    )


def test_an_expired_state_is_delivered_when_it_is_detected(
    node: NodeState, clock: VirtualClock, changes: list[Change]
) -> None:
    node.add(probed(stale_after="20s"))
    record(node, "db-1", READY)
    changes.clear()
    clock.advance(25.0)
    assert changes == []
    node.expire_stale()
    [change] = changes
    assert change.after is not None
    assert (change.at_s, change.after.status, change.after.since_s) == (125.0, Status.INITIALIZING, 120.0)


def test_evidence_is_delivered_before_the_change_that_it_causes(node: NodeState) -> None:
    order: list[object] = []
    node.register("db-1")
    node.subscribe(lambda change: order.append("change"), on_evidence=lambda _, evidence, __: order.append(evidence))
    record(node, "db-1", READY, duration_s=0.5)
    record(node, "db-1", FAILED, at_s=100.0)
    assert order == [Evidence(READY, 100.0, 0.5), "change", Evidence(FAILED, 100.0), "change"]


def test_a_listener_may_read_and_change_the_node(node: NodeState) -> None:
    def remove_if_down(change: Change) -> None:
        if change.after is not None and node.status("db-1") is Status.DOWN:
            node.deregister("db-1")

    node.subscribe(remove_if_down)
    node.register("db-1").down()
    assert "db-1" not in node


# ---- threads


@pytest.fixture
def _frequent_thread_switches() -> Iterator[None]:
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval_s)


@pytest.mark.usefixtures("_frequent_thread_switches")
def test_changes_of_several_threads_are_delivered_in_their_order() -> None:
    ticks = itertools.count()
    # Every reading of this clock is different, and the node reads it under its lock.
    node = make_node("validator-7", version="v1", clock=lambda: float(next(ticks)))
    handles = [node.register(f"svc-{number}") for number in range(4)]
    changes: list[Change] = []
    node.subscribe(changes.append)
    revision = node.revision

    def flap(handle: Handle) -> None:
        for _ in range(50):
            handle.up()
            handle.down()

    with ThreadPoolExecutor(len(handles)) as pool:
        list(pool.map(flap, handles))
    assert len(changes) == node.revision - revision == 4 * 100
    assert [change.at_s for change in changes] == sorted({change.at_s for change in changes})
    assert all(one.health is other.health_before for one, other in itertools.pairwise(changes))


# ---- cost and memory


def count_opcodes(work: Callable[[], object]) -> int:
    """The number of Python instructions, including called functions."""
    steps = 0

    def trace(frame: Any, event: str, arg: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return trace

    previous_trace = sys.gettrace()
    gc.disable()  # a collection may run Python code
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(previous_trace)
        gc.enable()
    return steps


def node_with(service_count: int) -> NodeState:
    node = make_node("validator-7", version="v1", clock=VirtualClock(0.0))
    node.subscribe(lambda change: None)
    for number in range(service_count):
        node.add(probed(f"svc-{number}", fall=1, start_period=0.0))
        record(node, f"svc-{number}", READY)
    return node


@pytest.mark.parametrize(
    "work",
    [
        lambda node: record(node, "svc-5", READY),
        lambda node: (
            record(node, "svc-5", FAILED),
            record(node, "svc-5", Verdict.not_ready("")),
            record(node, "svc-5", READY),
        ),
        lambda node: (node.overrides.set_issue("skew"), node.overrides.clear_issue("skew")),
        lambda node: node.health,
        lambda node: node.status("svc-5"),
        lambda node: (node.register("one-more", ttl=9.0), node.deregister("one-more")),
        lambda node: node.replace(probed("svc-5", fall=1, start_period=0.0, name="new")),
    ],
    ids=["report", "change of status", "issue", "health", "status", "registration", "replacement"],
)
def test_everything_but_the_list_costs_the_same_with_any_number_of_services(
    work: Callable[[NodeState], object],
) -> None:
    small, large = node_with(10), node_with(100)
    assert count_opcodes(lambda: list(large)) > 5 * count_opcodes(lambda: list(small)), "the list is measured"
    assert 0 < count_opcodes(lambda: work(small)) == count_opcodes(lambda: work(large))


def test_neither_reports_nor_removed_nor_redefined_services_grow_the_expiry_heap(
    node: NodeState, clock: VirtualClock
) -> None:
    node.register("db-1", ttl="7d")
    for _ in range(100):
        beat(node, "db-1")
        clock.advance(10.0)
        node.expire_stale()
    assert len(node._states._expiry._heap) == 1
    for number in range(200):
        node.register(f"svc-{number}", ttl="7d").up()
        node.deregister(f"svc-{number}")
    assert len(node._states._expiry._heap) <= 2 + 64
    for number in range(200):
        node.replace(define("db-1", ttl="7d", name=f"name {number}"))
    assert len(node._states._expiry._heap) <= 2 + 64 + 1
    clock.advance(7 * 86400.0)
    assert node.status("db-1") is Status.DOWN


def test_a_job_that_starts_and_ends_again_and_again_expires_in_time_and_does_not_grow_the_expiry_heap(
    node: NodeState, clock: VirtualClock
) -> None:
    node.register("job", probe={"url": "heartbeat:", "period": "7d", "grace": "1s"})
    for _ in range(200):
        beat(node, "job")
        revision, next_expiry_at_s = node.revision, node.next_expiry_at_s
        node.record_start("job", at_s=clock())
        assert node.revision > revision or next_expiry_at_s <= clock() + 1.0, "readers look in time"
        assert node.next_expiry_at_s <= clock() + 1.0
        clock.advance(0.9)
        assert node.status("job") is Status.UP
    assert len(node._states._expiry._heap) <= 2 + 64 + 1
    clock.advance(0.1)
    assert node.status("job") is Status.DOWN


def test_services_expire_in_time_after_many_others_were_removed(node: NodeState, clock: VirtualClock) -> None:
    ttls_s = [7 * number % 199 + 1 for number in range(199)]  # every number from 1 to 199, shuffled
    for ttl_s in ttls_s:
        node.register(f"ttl-{ttl_s}", ttl=ttl_s)
    remaining = [ttl_s for number, ttl_s in enumerate(ttls_s) if number % 4 == 3]
    for ttl_s in set(ttls_s) - set(remaining):
        node.deregister(f"ttl-{ttl_s}")
    for passed_s in range(200):
        statuses = {service.id: state.status for service, state in node}
        down = {f"ttl-{ttl_s}" for ttl_s in remaining if ttl_s <= passed_s}
        assert {service_id for service_id, status in statuses.items() if status is Status.DOWN} == down
        clock.advance(1.0)


def test_an_expired_state_has_no_next_expiry(node: NodeState, clock: VirtualClock) -> None:
    node.register("worker", ttl="10s").up()
    assert node.next_expiry_at_s == 110.0
    clock.advance(10.0)
    node.expire_stale()
    assert node.next_expiry_at_s == math.inf


def test_a_status_is_dated_when_the_verdict_is_recorded(node: NodeState, clock: VirtualClock) -> None:
    node.add(probed("db-1"))
    clock.advance(10.0)
    state = record(node, "db-1", READY, at_s=clock.now_s - 3.0, duration_s=3.0)
    assert (state.since_s, state.last_ready_at_s) == (clock.now_s, clock.now_s - 3.0)
    node.add(probed("db-2"))
    assert record(node, "db-2", READY, duration_s=3.0).since_s == clock.now_s, "never in the future"


# ---- against a model that computes every state from the whole history


@dataclass
class ModelService:
    definition: Definition
    registered_at_s: float
    policy: Policy
    events: list[tuple[float, Evidence | Policy]] = field(default_factory=list)

    def state_at(self, now_s: float) -> ServiceState:
        policy = self.policy
        state = state_machine.initial_state(self.registered_at_s)
        for at_s, event in self.events:
            state = state_machine.as_of(state, at_s, policy)
            if isinstance(event, Policy):
                policy = event
            else:
                state = state_machine.apply_evidence(state, event, policy, at_s)
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
    """The source of the evidence; there is only one probe in this model."""
    if definition.probe_config is not None:
        return "probe"
    return "reports" if definition.service.policy.ttl_s is None else "heartbeats"


class NodeAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock(0.0)
        self.node = make_node("validator-7", version="v1", starting=True, clock=self.clock)
        self.model: dict[str, ModelService] = {}
        self.condition = Condition(starting=True)
        self.changes: list[Change] = []
        self.node.subscribe(self.changes.append)
        self.last_read: object = None
        self.last_read_revision = -1

    @rule(definition=definitions())
    def register(self, definition: Definition) -> None:
        service_id = definition.service.id
        if service_id in self.model:
            with pytest.raises(DuplicateServiceError):
                self.node.add(definition)
        else:
            self.node.add(definition)
            self.model[service_id] = ModelService(definition, self.clock(), definition.service.policy)

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
            old.events.append((self.clock(), definition.service.policy))
        else:
            self.model[service_id] = ModelService(definition, self.clock(), definition.service.policy)

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
                record(self.node, service_id, verdict)
            return
        record(self.node, service_id, verdict, at_s=now_s - age_s)
        self.model[service_id].events.append((now_s, Evidence(verdict=verdict, at_s=now_s - age_s)))

    @rule(by_s=seconds)
    def advance_clock(self, by_s: float) -> None:
        self.clock.advance(by_s)

    @rule(issue=st.sampled_from(["skew", "disk"]), is_set=st.booleans())
    def issue(self, issue: str, is_set: bool) -> None:
        others = tuple(one for one in self.condition.issues if one != issue)
        if not is_set:
            self.node.overrides.clear_issue(issue)
            self.condition = self.condition._replace(issues=others)
        elif issue not in self.condition.issues:
            self.node.overrides.set_issue(issue)
            self.condition = self.condition._replace(issues=(*others, issue))

    @precondition(lambda self: self.condition.starting)
    @rule()
    def started(self) -> None:
        self.node.overrides.started()
        self.condition = self.condition._replace(starting=False)

    # A rule, not an invariant: the result must not depend on reads between the other steps.
    @rule()
    def read(self) -> None:
        now_s = self.clock()
        expected = [(one.definition.service, one.state_at(now_s)) for one in self.model.values()]
        assert list(self.node) == expected
        total = state_machine.tally((service.impact, state.status) for service, state in expected)
        assert self.node._states.tally == total
        assert self.node.health is state_machine.node_health(total, self.condition)
        assert len(self.node) == len(self.model)
        assert self.node.condition == self.condition
        self.assert_responses(expected)
        self.assert_changes(expected)

    def assert_responses(self, listed: list[tuple[Service, ServiceState]]) -> None:
        """The list and the health of each service agree, and a revision has only one response."""
        codes = {"Up": 200, "Initializing": 206, "Down": 503}
        body = respond(self.node, Request("GET", b"/svc/node/services")).body
        for service, state in listed:
            encoded = service.id.replace("/", "%2F").replace("é", "%C3%A9")
            path = f"/svc/node/services/{encoded}/health".encode()
            assert respond(self.node, Request("GET", path)).code == codes[state.status.value]
        read = (body, self.node.health)
        if self.node.revision == self.last_read_revision:
            assert read == self.last_read
        self.last_read, self.last_read_revision = read, self.node.revision

    def assert_changes(self, listed: list[tuple[Service, ServiceState]]) -> None:
        """The changes add up to the states that are read."""
        statuses: dict[str, Status] = {}
        health = Health.PARTIAL
        for change in self.changes:
            assert change.health_before is health
            health = change.health
            if change.service_id is not None:
                before = None if change.before is None else change.before.status
                assert statuses.pop(change.service_id, None) is before
                if change.after is not None:
                    statuses[change.service_id] = change.after.status
        assert statuses == {service.id: state.status for service, state in listed}
        assert health is self.node.health
        assert len(self.changes) <= self.node.revision

    @invariant()
    def next_expiry_is_never_too_late(self) -> None:
        expiries_s = [
            state_machine.expires_at_s(entry.state, entry.service.policy)
            for entry in self.node._states.entries.values()
        ]
        assert self.node.next_expiry_at_s <= min(expiries_s, default=math.inf)

    @invariant()
    def summary_agrees_with_the_services(self) -> None:
        tally, not_up = self.node.summary()
        services = list(self.node)
        assert sorted(service.id for service, _ in not_up) == sorted(
            service.id for service, state in services if state.status is not Status.UP
        )
        assert tally.registered == len(services)
        assert tally.relevant == sum(service.affects_health for service, _ in services)


TestNodeAgainstModel = NodeAgainstModel.TestCase
TestNodeAgainstModel.settings = settings(max_examples=50, stateful_step_count=30)


@pytest.mark.parametrize("reason", [None, b"\xff\n", "x" * 60_000])
def test_any_object_can_be_the_reason_of_a_report(reason: Any) -> None:
    node = make_node("node", version="v1")
    service = node.register("db")
    for report in (service.up, service.initializing, service.down, lambda given: service.report(Verdict.failed(given))):
        report(reason)
        assert type(service.state.reason) is str
        assert service.state.reason.isprintable()
        assert len(service.state.reason) <= MAX_REASON_CHARS
    assert service.state.status is Status.DOWN


# ---- maintenance


def maintenance(ends_at_s: float, source: str = "control") -> Maintenance:
    return Maintenance(source, ends_at_s, "alice", "new disk")


def test_a_service_is_in_maintenance_until_the_end(node: NodeState, clock: VirtualClock) -> None:
    node.register("db")
    node.register("cache")
    node.maintenance.set(maintenance(160.0), "db")
    assert node.maintenance.current("db") == maintenance(160.0)
    assert node.maintenance.current("cache") is None
    assert node.maintenance.current() is None
    clock.now_s = 160.0
    assert node.maintenance.current("db") is None
    node.maintenance.set(maintenance(170.0))
    assert node.maintenance.current("db") == node.maintenance.current() == maintenance(170.0), (
        "of the node is of each service"
    )
    node.maintenance.end(source="control")
    assert node.maintenance.current("db") is None


def test_a_source_ends_only_its_own_maintenance(node: NodeState) -> None:
    node.maintenance.set(maintenance(160.0), "db")
    node.maintenance.set(maintenance(150.0, "schedule"), "db")
    assert node.maintenance.current("db") == maintenance(160.0)
    node.maintenance.end("db", source="control")
    assert node.maintenance.current("db") == maintenance(150.0, "schedule")
    node.maintenance.set(maintenance(140.0, "schedule"), "db")
    assert node.maintenance.current("db") == maintenance(140.0, "schedule")


def test_maintenance_is_published_with_its_end(node: NodeState, clock: VirtualClock) -> None:
    node.register("db").down()
    changes: list[Change] = []
    node.subscribe(changes.append)
    node.maintenance.set(maintenance(160.0), "db")
    node.maintenance.end("cache", source="control")  # there is none
    assert node.next_expiry_at_s == 160.0
    clock.now_s = 161.0
    node.expire_stale()
    assert [(change.kind, change.service_id, change.maintenance) for change in changes] == [
        (ChangeKind.MAINTENANCE, "db", maintenance(160.0)),
        (ChangeKind.MAINTENANCE_ENDED, "db", None),
    ]
    assert node.next_expiry_at_s == math.inf


@pytest.mark.parametrize("lowered", ["partial", "none"])
def test_the_impact_is_lowered_for_the_time(node: NodeState, clock: VirtualClock, lowered: LoweredImpactName) -> None:
    node.register("cache").up()
    node.register("db", impact="critical", maintenance_impact=lowered).down()
    before = node.health
    node.maintenance.set(maintenance(160.0))
    assert (before, node.health) == (Health.UNHEALTHY, Health.PARTIAL)
    node.replace(define("db", impact="critical", maintenance_impact=lowered, description="new"))
    assert (node.health, node.status("db")) == (Health.PARTIAL, Status.DOWN)
    clock.now_s = 160.0
    assert node.health is Health.UNHEALTHY


def test_a_service_may_be_registered_during_its_maintenance(node: NodeState) -> None:
    node.register("cache").up()
    node.maintenance.set(maintenance(160.0), "db")
    node.register("db", impact="critical", maintenance_impact="none").down()
    during = node.health
    node.maintenance.end("db", source="control")
    assert (during, node.health) == (Health.PARTIAL, Health.UNHEALTHY)


@pytest.mark.parametrize("impact", ["critical", "partial"])
def test_maintenance_makes_no_node_healthy_whose_service_is_not_up(node: NodeState, impact: ImpactName) -> None:
    db = node.register("db", impact=impact, maintenance_impact="none")
    db.down()
    before = node.health
    node.maintenance.set(maintenance(math.inf))
    healths = [before, node.health]
    for report in (db.initializing, db.up, db.down):
        report()
        healths.append(node.health)
    assert healths == [503, 206, 206, 200, 206]


def test_the_text_of_a_maintenance_has_the_wall_clock(node: NodeState) -> None:
    text = node.maintenance.text(maintenance(160.0))
    assert re.fullmatch(r"until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC, by alice: new disk", text)


def test_a_replacement_by_an_equal_definition_changes_nothing() -> None:
    node = make_node("n", version="v1")
    node.register("db", name="Ledger")
    changes: list[Change] = []
    node.subscribe(changes.append)
    node.replace(define("db", name="Ledger")._replace(options={"status": "Up"}))
    assert changes == []


def test_the_summary_has_what_is_not_up_in_the_order_of_failure_and_agrees_with_a_count_of_all() -> None:
    clock = VirtualClock()
    node = make_node(clock=clock)
    a, b, c, d = (node.register(one, impact="critical" if one == "c" else "partial") for one in "abcd")
    for handle in (a, b, c, d):
        handle.up()

    def not_up() -> list[str]:
        tally, found = node.summary()
        everything = [(service, state.status) for service, state in node]
        services = [(service, state.status) for service, state in found]
        expected, _ = state_machine.node_health_with_reason(everything, node.condition)
        assert state_machine.health_with_reason(tally, services, node.condition)[0] is expected is node.health
        assert (tally.registered, tally.up) == (len(node), len(node) - len(found))
        return [service.id for service, _ in services]

    assert not_up() == []
    c.down()
    a.initializing()
    assert not_up() == ["c", "a"]
    c.initializing()
    assert not_up() == ["c", "a"], "still not Up"
    node.replace(define("c", impact="none", probe=UnusedProbe()))
    d.down()
    assert [one for one in not_up() if one != "c"] == ["a", "d"]
    a.up()
    d.deregister()
    node.deregister("c")
    assert not_up() == []
    node.register("a2").down()
    assert not_up() == ["a2"]


# ---- announcements, and what was known before a restart


def test_an_announcement_reaches_every_listener_with_its_author_and_changes_nothing() -> None:
    node = make_node()
    node.register("db").up()
    changes: list[Change] = []
    node.subscribe(changes.append)
    with changes_by("ops"):
        node.announce(ChangeKind.NOTE, "deployed v1.4.3")
        node.announce(ChangeKind.NOTE, "rebuilt", "db")
    assert [(one.kind, one.reason, one.service_id, one.by) for one in changes] == [
        (ChangeKind.NOTE, "deployed v1.4.3", None, "ops"),
        (ChangeKind.NOTE, "rebuilt", "db", "ops"),
    ]
    assert (changes[1].before, node.health) == (changes[1].after, Health.HEALTHY)
    with pytest.raises(UnknownServiceError):
        node.announce(ChangeKind.NOTE, "rebuilt", "gone")


@pytest.mark.parametrize("known_status", [Status.UP, Status.DOWN])
def test_the_end_of_what_was_known_before_a_restart_is_a_change_of_status(known_status: Status) -> None:
    node = make_node()
    handle = node.register("db")
    changes: list[Change] = []
    node.subscribe(changes.append)
    revision = node.revision
    node.remember(
        {
            "db": KnownBefore(known_status, -720.0, "refused", "timeout"),
            "gone": KnownBefore(known_status, 0.0, "", "timeout"),
        }
    )
    assert (changes, node.revision > revision) == ([], True)
    handle.initializing("loading")
    (change,) = changes
    assert change.before is not None
    assert change.after is not None
    assert (change.kind, change.before.status, change.after.status) == (
        ChangeKind.STATUS,
        known_status,
        Status.INITIALIZING,
    )
