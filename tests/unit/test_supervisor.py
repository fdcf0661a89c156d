"""When services are looked at, told in virtual time: hours pass in milliseconds, and always in the same order."""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.model import Change, ServiceState, Status, Verdict
from svcnode.definition import define
from svcnode.node import Node
from svcnode.supervisor import FIRST_LOOKS_WITHIN_S, JITTER, Supervisor, SupervisorThread
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable

READY = Verdict.ready()
FAILED = Verdict.failed("refused")


class NoChance(random.Random):
    """Every draw falls in the middle, so that an interval is exactly as long as it says."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


def now_s() -> float:
    return asyncio.get_running_loop().time()


@dataclass(eq=False)
class ScriptedProbe:
    """Sees what it is told to, takes as long as it is told to, and keeps a diary."""

    verdict: Verdict = READY
    takes_s: float = 0.0
    error: BaseException | None = None
    began_at_s: list[float] = field(default_factory=list)
    cancelled_at_s: list[float] = field(default_factory=list)
    running: int = 0

    async def look(self) -> Verdict:
        assert self.running == 0, "one look at a time"
        self.began_at_s.append(now_s())
        self.running += 1
        try:
            await asyncio.sleep(self.takes_s)
            if self.error is not None:
                raise self.error
        except asyncio.CancelledError:
            self.cancelled_at_s.append(now_s())
            raise
        finally:
            self.running -= 1
        return self.verdict


def a_node() -> Node:
    return Node("validator-7", version="v1", clock=asyncio.get_running_loop().time)


def supervising(node: Node) -> Supervisor:
    return Supervisor(node, NoChance())


# ---- when


@in_virtual_time
async def test_a_service_is_looked_at_on_its_interval() -> None:
    node, probe = a_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with supervising(node):
        await asyncio.sleep(35.0)
    assert probe.began_at_s == [0.0, 10.0, 20.0, 30.0]


@in_virtual_time
async def test_the_interval_runs_from_one_beginning_to_the_next() -> None:
    node, probe = a_node(), ScriptedProbe(takes_s=2.0)
    node.register("db-1", probe=probe, interval="10s")
    async with supervising(node):
        await asyncio.sleep(35.0)
    assert probe.began_at_s == [0.0, 10.0, 20.0, 30.0]


@in_virtual_time
async def test_every_service_has_an_interval_of_its_own() -> None:
    node, often, seldom = a_node(), ScriptedProbe(), ScriptedProbe()
    node.register("often", probe=often, interval="2s")
    node.register("seldom", probe=seldom, interval="20s")
    async with supervising(node):
        await asyncio.sleep(20.5)
    assert len(often.began_at_s) == 11
    assert len(seldom.began_at_s) == 1


@in_virtual_time
async def test_a_slow_service_keeps_no_other_waiting() -> None:
    node, slow, quick = a_node(), ScriptedProbe(takes_s=9.0), ScriptedProbe()
    node.register("slow", probe=slow, interval="10s", timeout="9.5s")
    node.register("quick", probe=quick, interval="1s")
    async with supervising(node):
        await asyncio.sleep(10.5)
    assert len(quick.began_at_s) == 10


@in_virtual_time
async def test_the_first_looks_are_spread_and_soon() -> None:
    node, probes = a_node(), [ScriptedProbe() for _ in range(4)]
    for place, probe in enumerate(probes):
        node.register(f"svc-{place}", probe=probe, interval="60s")
    async with supervising(node):
        await asyncio.sleep(FIRST_LOOKS_WITHIN_S)
    assert [probe.began_at_s for probe in probes] == [[0.0], [0.5], [1.0], [1.5]]


@in_virtual_time
async def test_looks_are_spread_by_a_little_chance_around_the_interval() -> None:
    node, probe = a_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with Supervisor(node, random.Random(7)):
        await asyncio.sleep(2000.0)
    gaps_s = [after - before for before, after in zip(probe.began_at_s, probe.began_at_s[1:], strict=False)]
    assert len(set(gaps_s)) > 100
    assert all(10.0 * (1 - JITTER) <= gap_s <= 10.0 * (1 + JITTER) + 1e-6 for gap_s in gaps_s)


@in_virtual_time
async def test_without_a_given_chance_the_supervisor_brings_its_own() -> None:
    node, probe = a_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with Supervisor(node):
        await asyncio.sleep(100.0)
    assert 9 <= len(probe.began_at_s) <= 11


@in_virtual_time
async def test_a_service_without_a_probe_is_left_alone() -> None:
    node = a_node()
    node.register("indexer").down("out of disk")
    async with supervising(node):
        await asyncio.sleep(3600.0)
    assert node.state("indexer").reason == "out of disk"


# ---- what comes of it


@in_virtual_time
async def test_what_a_probe_sees_is_what_is_believed() -> None:
    node, probe = a_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s", fall=2)
    async with supervising(node):
        await asyncio.sleep(1.0)
        assert node.status("db-1") is Status.UP
        probe.verdict = FAILED
        await asyncio.sleep(20.0)
        assert node.state("db-1").reason == "refused"
        probe.verdict = Verdict.not_ready("syncing")
        await asyncio.sleep(10.0)
        assert node.state("db-1").reason == "syncing"


@in_virtual_time
async def test_no_answer_within_the_timeout_is_a_failure() -> None:
    node, probe = a_node(), ScriptedProbe(takes_s=60.0)
    node.register("db-1", probe=probe, interval="10s", timeout="3s", fall=1, start_period=0.0)
    async with supervising(node):
        await asyncio.sleep(4.0)
        state = node.state("db-1")
        assert (state.status, state.reason) == (Status.DOWN, "no answer within 3 s")
    assert probe.began_at_s == [0.0]
    assert probe.cancelled_at_s == [3.0]


@in_virtual_time
async def test_a_probe_that_raises_is_our_own_fault_and_lets_the_evidence_grow_stale(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node, probe = a_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s", stale_after="25s")
    async with supervising(node):
        await asyncio.sleep(1.0)
        probe.error = RuntimeError("no file descriptors")
        await asyncio.sleep(20.0)
        assert node.status("db-1") is Status.UP
        await asyncio.sleep(5.0)
        assert node.state("db-1").reason == "no fresh success for 25 s"
        probe.error = None
        await asyncio.sleep(10.0)
        assert node.state("db-1").status is Status.UP
    [record] = caplog.records
    assert record.getMessage() == "the probe of service 'db-1' failed by itself"
    assert record.exc_info is not None


@in_virtual_time
async def test_a_probe_that_fails_by_itself_is_logged_once_per_spell(caplog: pytest.LogCaptureFixture) -> None:
    node, probe = a_node(), ScriptedProbe(error=RuntimeError("no driver"))
    node.register("db-1", probe=probe, interval="10s")
    async with supervising(node):
        await asyncio.sleep(100.0)
        assert len(caplog.records) == 1
        probe.error = None
        await asyncio.sleep(20.0)
        probe.error = RuntimeError("no driver again")
        await asyncio.sleep(100.0)
    assert len(caplog.records) == 2


@in_virtual_time
async def test_a_probe_that_times_out_by_its_own_clock_is_not_taken_for_ours(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node, probe = a_node(), ScriptedProbe(error=TimeoutError())
    node.register("db-1", probe=probe, interval="10s", fall=1, start_period=0.0)
    async with supervising(node):
        await asyncio.sleep(1.0)
    assert node.status("db-1") is Status.INITIALIZING
    assert len(caplog.records) == 1


@in_virtual_time
async def test_a_probe_whose_own_wait_was_cancelled_is_looked_through_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node, probe = a_node(), ScriptedProbe(error=asyncio.CancelledError())
    node.register("db-1", probe=probe, interval="10s")
    async with supervising(node):
        await asyncio.sleep(5.0)
        probe.error = None
        await asyncio.sleep(10.0)
        assert node.status("db-1") is Status.UP
    assert len(caplog.records) == 1


@in_virtual_time
async def test_a_dead_supervisor_leaves_no_green_light_on() -> None:
    node, probe = a_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s", timeout="3s")
    async with supervising(node):
        await asyncio.sleep(5.0)
    await asyncio.sleep(27.0)
    assert node.health == 200
    await asyncio.sleep(1.0)
    assert node.health == 206


@in_virtual_time
async def test_a_report_says_how_long_the_look_took() -> None:
    class Ledger(Node):
        durations_s: list[float]

        def report(self, service_id: str, verdict: Verdict, **when: Any) -> ServiceState:
            self.durations_s.append(when["duration_s"])
            return super().report(service_id, verdict, **when)

    node = Ledger("validator-7", version="v1", clock=asyncio.get_running_loop().time)
    node.durations_s = []
    node.register("db-1", probe=ScriptedProbe(takes_s=1.5), interval="10s")
    async with supervising(node):
        await asyncio.sleep(15.0)
    assert node.durations_s == [1.5, 1.5]


@in_virtual_time
async def test_a_success_is_as_old_as_the_look_that_saw_it() -> None:
    node = a_node()
    node.register("db-1", probe=ScriptedProbe(takes_s=2.5), interval="10s")
    began_s = now_s()
    async with supervising(node):
        await asyncio.sleep(4.0)
        assert node.state("db-1").ready_at_s == began_s


@in_virtual_time
async def test_each_change_of_what_is_seen_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    node, probe = a_node(), ScriptedProbe(verdict=FAILED)
    node.register("db-1", probe=probe, interval="10s")
    with caplog.at_level("INFO", logger="svcnode.supervisor"):
        async with supervising(node):
            await asyncio.sleep(25.0)
            probe.verdict = READY
            await asyncio.sleep(20.0)
    assert caplog.messages == [f"service db-1 failed a look: {FAILED.reason}", "service db-1 passed a look"]


# ---- services that come, change and go


@in_virtual_time
async def test_a_service_registered_meanwhile_is_looked_at_at_once() -> None:
    node, probe = a_node(), ScriptedProbe()
    async with supervising(node):
        await asyncio.sleep(100.0)
        node.register("db-1", probe=probe, interval="10s")
        await asyncio.sleep(15.0)
    assert probe.began_at_s == [100.0, 110.0]


@in_virtual_time
async def test_a_service_removed_meanwhile_is_looked_at_no_more() -> None:
    node, probe, other = a_node(), ScriptedProbe(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    node.register("other", probe=other, interval="10s")
    async with supervising(node):
        await asyncio.sleep(15.0)
        node.deregister("db-1")
        await asyncio.sleep(100.0)
    assert len(probe.began_at_s) == 2
    assert len(other.began_at_s) == 12


@in_virtual_time
async def test_a_look_that_is_under_way_ends_with_its_service() -> None:
    node, probe = a_node(), ScriptedProbe(takes_s=4.0)
    node.register("db-1", probe=probe, interval="10s", timeout="5s")
    async with supervising(node):
        await asyncio.sleep(1.0)
        node.deregister("db-1")
        await asyncio.sleep(0.5)
        assert probe.cancelled_at_s == [1.0]


@in_virtual_time
async def test_a_redefined_service_is_looked_at_in_the_new_way_at_once() -> None:
    node, old, new = a_node(), ScriptedProbe(takes_s=1.0), ScriptedProbe()
    node.register("db-1", probe=old, interval="10s")
    async with supervising(node):
        await asyncio.sleep(10.5)
        node.replace(define("db-1", probe=new, interval="10s"))
        await asyncio.sleep(15.0)
    assert old.began_at_s == [0.0, 10.0]
    assert old.cancelled_at_s == [10.5]
    assert new.began_at_s == [10.5, 20.5]


@in_virtual_time
async def test_new_words_do_not_disturb_the_looking() -> None:
    node, probe = a_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with supervising(node):
        await asyncio.sleep(5.0)
        node.replace(define("db-1", probe=probe, interval="10s", name="another name"))
        await asyncio.sleep(10.0)
    assert probe.began_at_s == [0.0, 10.0]


@in_virtual_time
async def test_a_service_that_no_longer_has_a_probe_is_left_alone() -> None:
    node, probe = a_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with supervising(node):
        await asyncio.sleep(5.0)
        node.replace(define("db-1"))
        await asyncio.sleep(100.0)
    assert probe.began_at_s == [0.0]
    assert node.status("db-1") is Status.INITIALIZING


@dataclass(eq=False)
class ProbeThatActs:
    """Does something to the node while it looks, and then is content."""

    act: Callable[[], object]

    async def look(self) -> Verdict:
        self.act()
        return READY


@in_virtual_time
async def test_what_was_seen_of_the_old_definition_is_not_believed_of_the_new_one() -> None:
    node, new = a_node(), ScriptedProbe(verdict=FAILED)
    old = ProbeThatActs(lambda: node.replace(define("db-1", probe=new, interval="10s")))
    node.register("db-1", probe=old, interval="10s")
    told: list[Change] = []
    node.subscribe(told.append)
    async with supervising(node):
        await asyncio.sleep(1.0)
    assert new.began_at_s == [0.0]
    assert not any(change.after is not None and change.after.status is Status.UP for change in told)


@in_virtual_time
async def test_a_service_that_was_removed_during_a_look_and_came_back_is_looked_at_again() -> None:
    node = a_node()
    looks = 0

    def comes_and_goes() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            node.deregister("db-1")
            asyncio.get_running_loop().call_soon(node.add, definition)

    definition = define("db-1", probe=ProbeThatActs(comes_and_goes), interval="10s")
    node.add(definition)
    async with supervising(node):
        await asyncio.sleep(25.0)
        assert node.status("db-1") is Status.UP
    assert looks >= 2


@in_virtual_time
async def test_a_service_that_is_gone_when_it_is_reported_does_not_end_its_looking() -> None:
    class LosesOneReport(Node):
        """Another thread takes the service away at the worst moment, and brings it back before anybody notices."""

        has_lost = False

        def report(self, service_id: str, verdict: Verdict, **when: Any) -> ServiceState:
            if not self.has_lost:
                self.has_lost = True
                self.deregister(service_id)
                try:
                    super().report(service_id, verdict, **when)
                finally:
                    self.add(definition)
            return super().report(service_id, verdict, **when)

    definition = define("db-1", probe=ScriptedProbe(), interval="10s")
    node = LosesOneReport("validator-7", version="v1", clock=asyncio.get_running_loop().time)
    node.add(definition)
    async with supervising(node):
        await asyncio.sleep(15.0)
        assert node.status("db-1") is Status.UP


# ---- the end of it


def looks_under_way() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("svcnode watch")]


@in_virtual_time
async def test_leaving_the_block_ends_every_look_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    node, probe = a_node(), ScriptedProbe(takes_s=4.0)
    node.register("db-1", probe=probe, interval="10s", timeout="5s")
    async with supervising(node):
        await asyncio.sleep(1.0)
        assert looks_under_way() == ["svcnode watch db-1"]
    assert looks_under_way() == []
    assert probe.cancelled_at_s == [1.0]
    assert caplog.records == []


@in_virtual_time
async def test_a_service_registered_at_the_last_moment_leaves_no_look_behind() -> None:
    node, probe = a_node(), ScriptedProbe()
    async with supervising(node):
        node.register("db-1", probe=probe, interval="10s")
    await asyncio.sleep(100.0)
    assert looks_under_way() == []
    assert probe.began_at_s == []


@in_virtual_time
async def test_after_the_block_nobody_listens_to_the_node() -> None:
    node, probe = a_node(), ScriptedProbe()
    async with supervising(node):
        pass
    assert node._feed.has_listeners is False
    node.register("db-1", probe=probe, interval="10s")
    await asyncio.sleep(100.0)
    assert probe.began_at_s == []


@dataclass(eq=False)
class StubbornProbe:
    """Answers its cancellation in its own way."""

    answer: Callable[[], Verdict]

    async def look(self) -> Verdict:
        try:
            await asyncio.sleep(4.0)
        except asyncio.CancelledError:
            return self.answer()
        return READY


def fails() -> Verdict:
    raise RuntimeError("cleaning up failed")


@pytest.mark.parametrize("answer", [lambda: READY, fails], ids=["returns", "raises"])
@in_virtual_time
async def test_a_probe_that_swallows_its_cancellation_does_not_keep_the_block_from_ending(
    answer: Callable[[], Verdict],
) -> None:
    node = a_node()
    node.register("db-1", probe=StubbornProbe(answer), interval="10s", timeout="5s")
    async with asyncio.timeout(100.0):
        async with supervising(node):
            await asyncio.sleep(1.0)
    assert now_s() == 1.0
    assert looks_under_way() == []


@in_virtual_time
async def test_an_error_inside_the_block_comes_out_of_it_and_ends_the_looking() -> None:
    node = a_node()
    node.register("db-1", probe=ScriptedProbe(takes_s=1.0), interval="10s")

    async def fails_inside() -> None:
        async with supervising(node):
            await asyncio.sleep(0.5)
            raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        await fails_inside()
    assert looks_under_way() == []


# ---- as programs use it


@in_virtual_time
async def test_a_node_can_be_supervised_for_as_long_as_a_block_runs() -> None:
    node, probe = a_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with node.supervised() as supervised:
        assert supervised is node
        await asyncio.sleep(1.0)
    await asyncio.sleep(100.0)
    assert probe.began_at_s == [0.0]


@in_virtual_time
async def test_a_node_that_is_supervised_already_is_not_looked_at_twice() -> None:
    node, probe = a_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with node.supervised():
        async with node.supervised() as inner:
            assert inner is node
            await asyncio.sleep(1.0)
        await asyncio.sleep(11.0)
    assert len(probe.began_at_s) == 2
    async with node.supervised():
        await asyncio.sleep(1.0)
    assert len(probe.began_at_s) == 3


@in_virtual_time
async def test_silence_is_told_to_those_who_listen_even_when_nobody_asks() -> None:
    node = a_node()
    node.register("worker", ttl="10s").up()
    told: list[Change] = []
    node.subscribe(told.append)
    async with supervising(node):
        await asyncio.sleep(9.75)
        assert told == []
        await asyncio.sleep(1.0)
        assert [change.after and change.after.status for change in told] == [Status.DOWN]


@in_virtual_time
async def test_a_lifespan_is_the_same_in_the_shape_that_frameworks_take() -> None:
    node, probe = a_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with node.lifespan(object()):
        await asyncio.sleep(1.0)
    assert probe.began_at_s == [0.0]


@in_virtual_time
async def test_a_coroutine_function_is_a_check() -> None:
    node, is_warm = a_node(), asyncio.Event()

    @node.check("cache", interval="10s", fall=1, start_period=0.0)
    async def cache_is_warm() -> bool:
        return is_warm.is_set()

    async with supervising(node):
        await asyncio.sleep(1.0)
        assert node.state("cache").reason == "the check returned False"
        is_warm.set()
        await asyncio.sleep(20.0)
        assert node.status("cache") is Status.UP


# ---- on a thread of its own; the time is real here, so every wait is for something that comes at once


class WaitedFor:
    """A probe on another thread that can be waited for, and a listener that can."""

    def __init__(self) -> None:
        self.was_looked = threading.Event()
        self.threads: set[str] = set()

    async def look(self) -> Verdict:
        self.threads.add(threading.current_thread().name)
        self.was_looked.set()
        return READY


def is_up(node: Node, service_id: str) -> threading.Event:
    came_up = threading.Event()

    def listener(change: Change) -> None:
        if change.service_id == service_id and change.after is not None and change.after.status is Status.UP:
            came_up.set()

    node.subscribe(listener)
    return came_up


def test_a_program_without_a_loop_is_looked_for_on_a_thread() -> None:
    node, probe = Node("validator-7", version="v1"), WaitedFor()
    node.register("db-1", probe=probe, interval="60s")
    came_up = is_up(node, "db-1")
    node.start()
    try:
        assert came_up.wait(10.0)
        assert node.health == 200
        assert probe.threads == {"svcnode supervisor"}
    finally:
        node.stop()
    assert "svcnode supervisor" not in {thread.name for thread in threading.enumerate()}


def test_a_service_registered_from_another_thread_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")  # a loop that is called from the wrong thread says so
    node, first, second = Node("validator-7", version="v1"), WaitedFor(), WaitedFor()
    node.register("db-1", probe=first, interval="60s")
    node.start()
    try:
        assert first.was_looked.wait(10.0)  # the loop runs
        node.register("db-2", probe=second, interval="60s")
        assert second.was_looked.wait(10.0)
    finally:
        node.stop()


def test_starting_twice_is_once_and_stopping_twice_is_once() -> None:
    node = Node("validator-7", version="v1")
    node.start()
    node.start()
    try:
        assert [thread.name for thread in threading.enumerate()].count("svcnode supervisor") == 1
    finally:
        node.stop()
        node.stop()


def test_what_was_stopped_can_be_started_again() -> None:
    node, probe = Node("validator-7", version="v1"), WaitedFor()
    node.start()
    node.stop()
    node.register("db-1", probe=probe, interval="60s")
    node.start()
    try:
        assert probe.was_looked.wait(10.0)
    finally:
        node.stop()


def test_stopping_a_thread_that_has_ended_is_nothing() -> None:
    thread = SupervisorThread(Node("validator-7", version="v1"))
    thread.stop()
    assert not thread.is_alive
    thread.stop()
