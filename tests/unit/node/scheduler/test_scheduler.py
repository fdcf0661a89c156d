"""When services are checked, in virtual time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import pytest

from svcnode import Node
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Change, Evidence, ServiceState, Status, Verdict
from svcnode.net.timers import RECANCEL_AFTER_S, TICK_S
from svcnode.node.checks import Checks
from svcnode.node.definition import define
from svcnode.node.node_state import NodeState
from svcnode.node.scheduler import (
    JITTER,
    LATE_CHECKS_LOG_INTERVAL_S,
    START_SPACING_S,
    ProbeScheduler,
)
from svcnode.node.scheduler.record import should_log_late_checks
from svcnode.probes.base import Probe
from tests.support.scheduling import (
    FAILED,
    READY,
    CancelIgnoringProbe,
    ScriptedProbe,
    make_node,
    make_scheduler,
    now_s,
    register_many,
    running_checks,
)
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


# ---- intervals


@in_virtual_time
async def test_the_interval_runs_from_one_start_to_the_next() -> None:
    node, probe = make_node(), ScriptedProbe(duration_s=2.0)
    node.register("db-1", probe=probe, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(35.0)
    assert probe.started_at_s == [0.0, 10.0, 20.0, 30.0]


@pytest.mark.parametrize("count", [1, 3])
@in_virtual_time
async def test_the_first_checks_are_spread_evenly_over_two_seconds(count: int) -> None:
    node, probes = make_node(), [ScriptedProbe() for _ in range(count)]
    for number, probe in enumerate(probes):
        node.register(f"reported-{number}")  # not checked, so it takes no share of the time
        node.register(f"svc-{number}", probe=probe, interval="60s")
    async with make_scheduler(node):
        await asyncio.sleep(5.0)
    assert all(len(probe.started_at_s) == 1 for probe in probes)
    started_s = [probe.started_at_s[0] for probe in probes]
    assert started_s == pytest.approx([2.0 * number / count for number in range(count)])


@in_virtual_time
async def test_services_registered_together_while_probing_are_not_checked_at_the_same_time() -> None:
    node, probes = make_node(), [ScriptedProbe() for _ in range(100)]
    async with make_scheduler(node):
        await asyncio.sleep(1.0)
        for number, probe in enumerate(probes):
            node.register(f"svc-{number}", probe=probe, interval="60s")
        await asyncio.sleep(1.0)
    started_s = [probe.started_at_s[0] for probe in probes]
    assert started_s[0] == pytest.approx(1.0)
    assert max(map(started_s.count, started_s)) <= TICK_S / START_SPACING_S + 1  # the timers have ticks
    assert started_s[-1] <= 1.0 + 100 * START_SPACING_S + TICK_S


@pytest.mark.parametrize(("end", "share"), [(0, 1 - 0.05), (1, 1 + 0.05)])
@in_virtual_time
async def test_jitter_is_at_most_a_twentieth_of_the_wait(
    end: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.urandom", lambda count: (b"\x00", b"\xff")[end] * count)
    node, stable, pending = make_node(), ScriptedProbe(), ScriptedProbe(FAILED)
    node.register("stable", probe=stable, interval="10s")
    node.register("pending", probe=pending, interval="10s", start_period="1h")
    async with ProbeScheduler(node):
        await asyncio.sleep(100.0)
    assert stable.intervals_s == pytest.approx([10.0 * share] * len(stable.intervals_s))
    assert pending.intervals_s == pytest.approx([2.0 * share] * len(pending.intervals_s))
    assert (len(stable.intervals_s), len(pending.intervals_s)) == ((10, 52), (9, 47))[end]


# ---- evidence that another object records


class PendingRecorder:
    """Keeps the evidence, and decides that a change is pending."""

    def __init__(self, node: NodeState) -> None:
        self._node = node
        self.received: list[tuple[str, Evidence]] = []

    def record(self, checks: Mapping[str, Evidence], /) -> Mapping[str, ServiceState]:
        self.received += checks.items()
        return {service_id: self._node.state(service_id)._replace(failures_in_a_row=1) for service_id in checks}


@in_virtual_time
async def test_another_object_can_record_the_checks_and_its_states_set_their_times() -> None:
    node, probe = make_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s", transition_interval="4s")
    recorder = PendingRecorder(node)
    async with Checks(node).running(recorder=recorder):
        await asyncio.sleep(9.0)
    assert [(service_id, evidence.verdict) for service_id, evidence in recorder.received] == [("db-1", READY)] * 3
    assert probe.started_at_s == pytest.approx([0.0, 4.0, 8.0], abs=8.0 * JITTER)
    assert node.state("db-1").last_evidence_at_s is None


# ---- the transition interval


@in_virtual_time
async def test_a_service_is_checked_five_times_as_often_while_a_change_is_pending() -> None:
    node, probe = make_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s", fall=3, rise=2)
    async with make_scheduler(node):
        await asyncio.sleep(5.0)
        probe.verdict = FAILED
        await asyncio.sleep(10.0)
        assert node.status("db-1") is Status.DOWN
        assert probe.started_at_s == pytest.approx([0.0, 10.0, 12.0, 14.0])
        await asyncio.sleep(15.0)
        assert probe.started_at_s[4:] == pytest.approx([24.0])
        probe.verdict = READY
        await asyncio.sleep(10.0)
        assert node.status("db-1") is Status.UP
        await asyncio.sleep(95.0)
    # Quick until the outage, which was Down at 14 s, is 100 s ago.
    assert probe.started_at_s[5:] == pytest.approx([*range(34, 115, 2), 124.0, 134.0])


@in_virtual_time
async def test_checks_longer_than_the_transition_interval_run_one_at_a_time() -> None:
    node, probe = make_node(), ScriptedProbe(FAILED, duration_s=3.0)
    node.register("db-1", probe=probe, interval="10s", timeout="4s", transition_interval="1s", start_period=0.0)
    async with make_scheduler(node):
        await asyncio.sleep(20.0)
        assert node.status("db-1") is Status.DOWN
    assert probe.started_at_s == pytest.approx([0.0, 3.0, 6.0, 16.0])
    assert probe.concurrency.peak == 1


# ---- late checks


@in_virtual_time
async def test_late_checks_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    node = make_node()
    probes = register_many(node, 3, lambda: ScriptedProbe(duration_s=0.2), interval="500ms")
    async with make_scheduler(node, max_concurrent_checks=1):
        await asyncio.sleep(2 * LATE_CHECKS_LOG_INTERVAL_S + 1.0)
        assert len(caplog.messages) == 2
        fields = vars(caplog.records[1])
        assert fields["event"] == "late_checks"
        assert 0 < fields["late"] <= fields["checks"] == pytest.approx(300, abs=2)
        for probe in probes:
            probe.duration_s = 0.01
        await asyncio.sleep(LATE_CHECKS_LOG_INTERVAL_S)
        caplog.clear()
        await asyncio.sleep(2 * LATE_CHECKS_LOG_INTERVAL_S)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("late", "total", "is_logged"),
    [(0, 0, False), (1, 7, False), (4, 4, False), (5, 5, True), (5, 100, True), (5, 101, False), (600, 12_001, False)],
)
def test_late_checks_are_logged_from_5_per_minute_and_5_percent_on(late: int, total: int, is_logged: bool) -> None:
    assert should_log_late_checks(late, total) is is_logged


# ---- services that are registered, redefined and removed


@pytest.mark.parametrize("action", ["register", "replace", "deregister"])
@in_virtual_time
async def test_registering_redefining_or_removing_a_service_does_not_affect_others(action: str) -> None:
    node, neighbour = make_node(), ScriptedProbe(duration_s=1.0)
    node.register("neighbour", probe=neighbour, interval="10s")
    if action != "register":
        node.register("db-1", probe=ScriptedProbe(), interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(10.5)  # during a check of the neighbour
        if action == "register":
            node.register("db-1", probe=ScriptedProbe())
        elif action == "replace":
            node.replace(define("db-1", probe=ScriptedProbe(), interval="3s"))
        else:
            node.deregister("db-1")
        await asyncio.sleep(20.0)
        assert node.state("neighbour").since_s == 1.0
    assert neighbour.started_at_s == [0.0, 10.0, 20.0, 30.0]
    assert neighbour.cancelled_at_s == [30.5]


@pytest.mark.parametrize("option", ["interval", "timeout", "max_latency"])
@in_virtual_time
async def test_a_new_schedule_starts_with_a_check_at_once(option: str) -> None:
    node, probe = make_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(5.0)
        node.replace(define("db-1", probe=probe, **({"interval": "10s"} | {option: "2500ms"})))  # type: ignore[arg-type]
        await asyncio.sleep(1.0)
        assert node.status("db-1") is Status.UP
    assert probe.started_at_s == [0.0, 5.0]


@in_virtual_time
async def test_a_redefined_service_is_checked_by_its_new_probe_at_once() -> None:
    node, old, new = make_node(), ScriptedProbe(duration_s=1.0), ScriptedProbe()
    node.register("db-1", probe=old, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(10.5)
        node.replace(define("db-1", probe=new, interval="10s"))
        await asyncio.sleep(15.0)
    assert old.started_at_s == [0.0, 10.0]
    assert old.cancelled_at_s == [10.5]
    assert new.started_at_s == [10.5, 20.5]


@in_virtual_time
async def test_a_new_name_does_not_restart_the_checks() -> None:
    node, probe = make_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(5.0)
        node.replace(define("db-1", probe=probe, interval="10s", name="another name"))
        await asyncio.sleep(10.0)
    assert probe.started_at_s == [0.0, 10.0]


@dataclass(eq=False)
class CallbackProbe(Probe):
    """Calls a function during its check, and then is ready."""

    callback: Callable[[], object]

    async def check(self) -> Verdict:
        self.callback()
        return READY


@in_virtual_time
async def test_a_verdict_of_the_old_probe_is_not_recorded_for_the_new_one() -> None:
    node, new = make_node(), ScriptedProbe(verdict=FAILED)
    old = CallbackProbe(lambda: node.replace(define("db-1", probe=new, interval="10s")))
    node.register("db-1", probe=old, interval="10s")
    changes: list[Change] = []
    node.subscribe(changes.append)
    async with make_scheduler(node):
        await asyncio.sleep(1.0)
    assert new.started_at_s == [0.0]
    assert not any(change.after is not None and change.after.status is Status.UP for change in changes)


@in_virtual_time
async def test_a_service_removed_and_registered_again_during_a_check_is_checked_again() -> None:
    node = make_node()
    checks = 0

    def register_again() -> None:
        nonlocal checks
        checks += 1
        if checks == 1:
            node.deregister("db-1")
            asyncio.get_running_loop().call_soon(node.add, definition)

    definition = define("db-1", probe=CallbackProbe(register_again), interval="10s")
    node.add(definition)
    async with make_scheduler(node):
        await asyncio.sleep(25.0)
        assert node.status("db-1") is Status.UP
    assert checks >= 2


@in_virtual_time
async def test_a_service_that_is_missing_when_its_verdict_is_recorded_is_still_checked() -> None:
    class RacingNode(NodeState):
        """Removes the service before its first verdict is recorded and registers it again, like another thread."""

        has_raced = False

        def record(self, checks: Mapping[str, Evidence]) -> dict[str, ServiceState]:
            if self.has_raced:
                return super().record(checks)
            self.has_raced = True
            self.deregister("db-1")
            try:
                return super().record(checks)
            finally:
                self.add(definition)

    definition = define("db-1", probe=ScriptedProbe(), interval="10s")
    node = RacingNode(make_node().identity, clock=asyncio.get_running_loop().time)
    node.add(definition)
    async with make_scheduler(node):
        await asyncio.sleep(15.0)
        assert node.status("db-1") is Status.UP


@in_virtual_time
async def test_an_error_while_recording_does_not_stop_the_checks(caplog: pytest.LogCaptureFixture) -> None:
    class FailingNode(NodeState):
        def record(self, checks: Mapping[str, Evidence]) -> NoReturn:
            raise LookupError

    node, probe = FailingNode(make_node().identity, clock=asyncio.get_running_loop().time), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(15.0)
    assert len(probe.started_at_s) == 2
    assert [vars(record)["event"] for record in caplog.records] == ["record_failed"] * 2


@in_virtual_time
async def test_an_error_while_states_expire_does_not_stop_their_expiry(caplog: pytest.LogCaptureFixture) -> None:
    class FailingNode(NodeState):
        is_broken, calls = False, 0

        def expire_stale(self) -> None:
            self.calls += 1
            if self.is_broken:
                raise LookupError

    node = FailingNode(make_node().identity, clock=asyncio.get_running_loop().time)
    async with make_scheduler(node):
        node.is_broken = True
        await asyncio.sleep(1.5)
        node.is_broken, node.calls = False, 0
        await asyncio.sleep(3.0)
    assert node.calls == 3
    assert {vars(record)["event"] for record in caplog.records} == {"callback_failed"}


@in_virtual_time
async def test_the_checks_know_the_time_until_the_next_check() -> None:
    node = make_node()
    node.register("db-1", probe=ScriptedProbe(duration_s=2.0), interval="10s")
    node.register("reported")
    checks = Checks(node)
    assert checks.next_check_in_s("db-1") is None
    async with checks.running():
        await asyncio.sleep(1.0)
        assert checks.next_check_in_s("db-1") == 0.0
        await asyncio.sleep(4.0)
        assert checks.next_check_in_s("db-1") == pytest.approx(5.0, abs=10.0 * JITTER)
        assert checks.next_check_in_s("reported") is None
    assert checks.next_check_in_s("db-1") is None


# ---- stopping


@in_virtual_time
async def test_a_service_registered_just_before_or_after_the_end_is_not_checked() -> None:
    node, probe = make_node(), ScriptedProbe()
    async with make_scheduler(node):
        node.register("db-1", probe=probe, interval="10s")
    node.register("db-2", probe=probe, interval="10s")
    await asyncio.sleep(100.0)
    assert not running_checks()
    assert probe.started_at_s == []
    assert node.feed.has_listeners is False


@pytest.mark.parametrize("ignored_cancels", [1, 3])
@in_virtual_time
async def test_a_check_that_ignores_the_end_of_the_block_is_cancelled_again(ignored_cancels: int) -> None:
    node, probe = make_node(), CancelIgnoringProbe(ignored_cancels)
    node.register("db-1", probe=probe, interval="100s", timeout="50s")
    async with make_scheduler(node):
        await asyncio.sleep(1.0)
    assert now_s() == pytest.approx(1.0 + RECANCEL_AFTER_S * ignored_cancels)
    assert not running_checks()


@in_virtual_time
async def test_after_the_scheduler_has_stopped_a_service_does_not_stay_up() -> None:
    node, probe = make_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s", timeout="3s")
    async with make_scheduler(node):
        await asyncio.sleep(5.0)
    await asyncio.sleep(27.0)
    assert node.health == 200
    await asyncio.sleep(1.0)
    assert node.health == 206


# ---- blocks


@in_virtual_time
async def test_a_nested_block_does_not_check_twice() -> None:
    node, probe = make_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    checks = Checks(node)
    async with checks.running():
        async with checks.running():
            await asyncio.sleep(1.0)
        await asyncio.sleep(11.0)
    assert len(probe.started_at_s) == 2
    async with checks.running():
        await asyncio.sleep(1.0)
    assert len(probe.started_at_s) == 3


@in_virtual_time
async def test_listeners_are_called_for_an_expired_state_that_is_not_read() -> None:
    node = make_node()
    node.register("worker", ttl="10s").up()
    changes: list[Change] = []
    node.subscribe(changes.append)
    async with make_scheduler(node):
        await asyncio.sleep(9.75)
        assert changes == []
        await asyncio.sleep(1.0)
        assert [change.after and change.after.code for change in changes] == [ReasonCode.TTL_EXPIRED]


@in_virtual_time
async def test_lifespan_checks_the_services_like_probing() -> None:
    node, probe = Node("validator-7", version="v1", clock=asyncio.get_running_loop().time), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with node.lifespan(object()):
        await asyncio.sleep(1.0)
    assert probe.started_at_s == [0.0]
