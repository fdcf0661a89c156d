"""When services are looked at, told in virtual time: hours pass in milliseconds, and always in the same order."""

from __future__ import annotations

import asyncio
import math
import random
import re
import socket
import sys
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svcnode.core.model import Change, Outcome, ServiceState, Status, Verdict
from svcnode.definition import define
from svcnode.look import INSIST_AFTER_S
from svcnode.node import Node
from svcnode.probes.tools.steps import step
from svcnode.supervisor import (
    FIRST_LOOKS_WITHIN_S,
    JITTER,
    LATENESS_TOLD_EVERY_S,
    Supervisor,
    is_lateness_worth_telling,
)
from svcnode.supervisor.agenda import TIMER_GRAIN_S
from svcnode.supervisor.looker import is_late_by_itself
from svcnode.supervisor.thread import SupervisorThread
from tests.support.virtual_time import VirtualTimeLoop, in_virtual_time, run_in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from svcnode.probes import Probe

READY = Verdict.ready()
FAILED = Verdict.failed("refused")
HUNG_S = 3600.0


class NoChance(random.Random):
    """Every draw falls in the middle, so that an interval is exactly as long as it says."""

    def uniform(self, a: float, b: float) -> float:
        return (a + b) / 2


class OneEnd(random.Random):
    """Every draw falls at one end of what it may be: 0 for the lower, 1 for the upper."""

    def __init__(self, end: int) -> None:
        super().__init__()
        self._end = end

    def uniform(self, a: float, b: float) -> float:
        return (a, b)[self._end]


def now_s() -> float:
    return asyncio.get_running_loop().time()


@dataclass(eq=False)
class Crowd:
    """How many looks are in flight, and how many ever were at once."""

    running: int = 0
    most: int = 0

    def enter(self) -> None:
        self.running += 1
        self.most = max(self.most, self.running)

    def leave(self) -> None:
        self.running -= 1


@dataclass(eq=False)
class ScriptedProbe:
    """Sees what it is told to, takes as long as it is told to, and keeps a diary."""

    verdict: Verdict = READY
    takes_s: float = 0.0
    error: BaseException | None = None
    began_at_s: list[float] = field(default_factory=list)
    cancelled_at_s: list[float] = field(default_factory=list)
    crowd: Crowd = field(default_factory=Crowd)  # its own, or one that it shares

    async def look(self) -> Verdict:
        self.began_at_s.append(now_s())
        self.crowd.enter()
        try:
            await asyncio.sleep(self.takes_s)
            if self.error is not None:
                raise self.error
        except asyncio.CancelledError:
            self.cancelled_at_s.append(now_s())
            raise
        finally:
            self.crowd.leave()
        return self.verdict

    @property
    def gaps_s(self) -> list[float]:
        return [after - before for before, after in pairwise(self.began_at_s)]


def a_node() -> Node:
    return Node("validator-7", version="v1", clock=asyncio.get_running_loop().time)


def supervising(node: Node, *, looks_at_once: int = 1024) -> Supervisor:
    return Supervisor(node, NoChance(), looks_at_once=looks_at_once)


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


@pytest.mark.parametrize("count", [1, 3, 100])
@in_virtual_time
async def test_however_many_services_there_are_their_first_looks_are_evenly_spread_over_two_seconds(count: int) -> None:
    node, probes = a_node(), [ScriptedProbe() for _ in range(count)]
    for place, probe in enumerate(probes):
        node.register(f"reported-{place}")  # nobody looks at it, so it takes no part of the time
        node.register(f"svc-{place}", probe=probe, interval="60s")
    async with supervising(node):
        await asyncio.sleep(5.0)
    assert all(len(probe.began_at_s) == 1 for probe in probes)
    begun_s = [probe.began_at_s[0] for probe in probes]
    assert begun_s == pytest.approx([2.0 * place / count for place in range(count)])


@in_virtual_time
async def test_looks_are_spread_by_a_little_chance_around_the_interval() -> None:
    node, probe = a_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with Supervisor(node, random.Random(7)):
        await asyncio.sleep(2000.0)
    assert len(set(probe.gaps_s)) > 100
    assert all(10.0 * (1 - JITTER) <= gap_s <= 10.0 * (1 + JITTER) + 1e-6 for gap_s in probe.gaps_s)


@pytest.mark.parametrize(("end", "share"), [(0, 1 - 0.05), (1, 1 + 0.05)])
@in_virtual_time
async def test_chance_moves_a_look_by_no_more_than_a_twentieth_of_the_wait(end: int, share: float) -> None:
    node, calm, pending = a_node(), ScriptedProbe(), ScriptedProbe(FAILED)
    node.register("calm", probe=calm, interval="10s")
    node.register("pending", probe=pending, interval="10s", start_period="1h")
    async with Supervisor(node, OneEnd(end)):
        await asyncio.sleep(100.0)
    assert calm.gaps_s == pytest.approx([10.0 * share] * len(calm.gaps_s))
    assert pending.gaps_s == pytest.approx([2.0 * share] * len(pending.gaps_s))
    assert (len(calm.gaps_s), len(pending.gaps_s)) == ((10, 52), (9, 47))[end]


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(), interval_ms=st.integers(100, 60_000))
def test_whatever_chance_brings_a_look_is_never_far_from_its_interval(seed: int, interval_ms: int) -> None:
    probe, interval_s = ScriptedProbe(), interval_ms / 1000

    async def watch_for_a_while() -> None:
        node = a_node()
        node.register("db-1", probe=probe, interval=interval_s)
        async with Supervisor(node, random.Random(seed)):
            await asyncio.sleep(50 * interval_s)

    run_in_virtual_time(watch_for_a_while())
    assert len(probe.gaps_s) >= 46
    grain_s = 2 * TIMER_GRAIN_S
    assert all(0.95 * interval_s - grain_s <= gap_s <= 1.05 * interval_s + grain_s for gap_s in probe.gaps_s)


@in_virtual_time
async def test_a_service_may_be_looked_at_ten_times_a_second() -> None:
    node, probe = a_node(), ScriptedProbe(takes_s=0.01)
    node.register("db-1", probe=probe, interval="100ms")
    async with supervising(node):
        await asyncio.sleep(60.05)
        assert node.status("db-1") is Status.UP
    assert len(probe.began_at_s) == 601
    assert probe.gaps_s == pytest.approx([0.1] * 600)


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


# ---- faster while a change is pending


@in_virtual_time
async def test_a_service_is_looked_at_five_times_as_often_until_a_pending_change_is_decided() -> None:
    node, probe = a_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s", fall=3, rise=2)
    async with supervising(node):
        await asyncio.sleep(5.0)
        probe.verdict = FAILED
        await asyncio.sleep(10.0)
        assert node.status("db-1") is Status.DOWN
        assert probe.began_at_s == pytest.approx([0.0, 10.0, 12.0, 14.0])
        await asyncio.sleep(15.0)
        assert probe.began_at_s[4:] == pytest.approx([24.0])
        probe.verdict = READY
        await asyncio.sleep(20.0)
        assert node.status("db-1") is Status.UP
    assert probe.began_at_s[5:] == pytest.approx([34.0, 36.0, 46.0])


@in_virtual_time
async def test_a_starting_service_that_fails_is_looked_at_more_often_until_it_is_down() -> None:
    node, probe = a_node(), ScriptedProbe(FAILED)
    node.register("db-1", probe=probe, interval="10s", start_period="30s")
    async with supervising(node):
        await asyncio.sleep(45.0)
        assert node.status("db-1") is Status.DOWN
    assert probe.began_at_s == pytest.approx([*(2.0 * look for look in range(16)), 40.0])


@in_virtual_time
async def test_a_failure_that_was_a_slip_brings_one_early_look() -> None:
    node, probe = a_node(), ScriptedProbe(FAILED)
    node.register("db-1", probe=probe, interval="10s")
    async with supervising(node):
        await asyncio.sleep(1.0)
        probe.verdict = READY
        await asyncio.sleep(30.0)
    assert probe.began_at_s == pytest.approx([0.0, 2.0, 12.0, 22.0])


@in_virtual_time
async def test_a_look_that_taught_nothing_leaves_a_change_pending() -> None:
    node, probe = a_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s", fall=2)
    async with supervising(node):
        await asyncio.sleep(5.0)
        probe.verdict = FAILED
        await asyncio.sleep(6.0)
        probe.verdict = Verdict.unknown("no file descriptors")
        await asyncio.sleep(2.0)
        probe.verdict = FAILED
        await asyncio.sleep(20.0)
        assert node.status("db-1") is Status.DOWN
    assert probe.began_at_s == pytest.approx([0.0, 10.0, 12.0, 14.0, 24.0])


@in_virtual_time
async def test_a_service_that_says_it_is_not_ready_has_decided_and_is_not_hurried() -> None:
    node, probe = a_node(), ScriptedProbe(Verdict.not_ready("syncing"))
    node.register("db-1", probe=probe, interval="10s")
    async with supervising(node):
        await asyncio.sleep(35.0)
    assert probe.began_at_s == pytest.approx([0.0, 10.0, 20.0, 30.0])


@pytest.mark.parametrize(("words", "looks_s"), [("500ms", (0.0, 0.5, 1.0, 11.0)), ("10s", (0.0, 10.0, 20.0, 30.0))])
@in_virtual_time
async def test_how_often_it_is_looked_at_while_a_change_is_pending_can_be_set(
    words: str, looks_s: tuple[float, ...]
) -> None:
    node, probe = a_node(), ScriptedProbe(FAILED)
    node.register("db-1", probe=probe, interval="10s", transition_interval=words, start_period=0.0)
    async with supervising(node):
        await asyncio.sleep(looks_s[-1] + 0.25)
    assert probe.began_at_s == pytest.approx(looks_s)


@in_virtual_time
async def test_looks_that_take_longer_than_the_transition_interval_follow_each_other_one_at_a_time() -> None:
    node, probe = a_node(), ScriptedProbe(FAILED, takes_s=3.0)
    node.register("db-1", probe=probe, interval="10s", timeout="4s", transition_interval="1s", start_period=0.0)
    async with supervising(node):
        await asyncio.sleep(20.0)
        assert node.status("db-1") is Status.DOWN
    assert probe.began_at_s == pytest.approx([0.0, 3.0, 6.0, 16.0])
    assert probe.crowd.most == 1


@in_virtual_time
async def test_a_report_tells_what_is_believed_after_it() -> None:
    node = a_node()
    node.register("db-1", probe=ScriptedProbe(), fall=2)
    assert node.report("db-1", READY) is node.state("db-1")
    after = node.report("db-1", FAILED)
    assert (after.status, after.failures_in_a_row) == (Status.UP, 1)
    assert node.report("db-1", FAILED).status is Status.DOWN


@in_virtual_time
async def test_a_report_that_comes_too_late_tells_what_silence_has_made_of_it() -> None:
    node = a_node()
    node.register("db-1", probe=ScriptedProbe(), stale_after="20s")
    await asyncio.sleep(30.0)
    after = node.report("db-1", READY, at_s=5.0)
    assert (after.status, after.reason) == (Status.INITIALIZING, "no fresh success for 20 s")


# ---- slow, and too slow


@in_virtual_time
async def test_a_success_that_took_too_long_says_that_the_service_is_not_ready() -> None:
    node, probe = a_node(), ScriptedProbe(takes_s=2.0)
    node.register("db-1", probe=probe, interval="10s", timeout="3s", max_latency="1500ms")
    async with supervising(node):
        await asyncio.sleep(5.0)
        state = node.state("db-1")
        assert (state.status, state.reason) == (Status.INITIALIZING, "slow: it took 2 s, max_latency is 1.5 s")
        probe.takes_s = 1.5
        await asyncio.sleep(10.0)
        assert node.status("db-1") is Status.UP


async def after_a_look(probe: Probe, **words: Any) -> ServiceState:
    """What is believed after one look that would bring a change at once."""
    node = a_node()
    node.register("db-1", probe=probe, interval="10s", timeout="3s", fall=1, start_period=0.0, **words)
    async with supervising(node):
        await asyncio.sleep(4.0)
        return node.state("db-1")


@pytest.mark.parametrize(
    ("verdict", "status", "reason"),
    [
        (FAILED, Status.DOWN, "refused"),
        (Verdict.not_ready("syncing"), Status.INITIALIZING, "syncing"),
        (Verdict.unknown("no driver"), Status.INITIALIZING, "no evidence yet"),
    ],
)
@in_virtual_time
async def test_whatever_is_no_success_is_not_called_slow(verdict: Verdict, status: Status, reason: str) -> None:
    state = await after_a_look(ScriptedProbe(verdict, takes_s=2.0), max_latency="500ms")
    assert (state.status, state.reason) == (status, reason)


@in_virtual_time
async def test_without_a_max_latency_a_success_may_take_its_time() -> None:
    assert (await after_a_look(ScriptedProbe(takes_s=2.9))).status is Status.UP


@in_virtual_time
async def test_a_look_without_an_answer_is_a_failure_however_slow_a_success_may_be() -> None:
    state = await after_a_look(ScriptedProbe(takes_s=HUNG_S), max_latency="500ms")
    assert (state.status, state.reason) == (Status.DOWN, "no answer within 3 s")


@in_virtual_time
async def test_deadlines_within_a_millisecond_of_each_other_are_all_kept() -> None:
    node, probes = a_node(), [ScriptedProbe(takes_s=HUNG_S) for _ in range(3)]
    for place, (probe, deadline_s) in enumerate(zip(probes, (4.9995, 5.0001, 5.0008), strict=True)):
        begins_s = FIRST_LOOKS_WITHIN_S * place / 3
        node.register(f"svc-{place}", probe=probe, interval="100s", timeout=deadline_s - begins_s)
    async with supervising(node):
        await asyncio.sleep(10.0)
    assert [probe.cancelled_at_s for probe in probes] == [[pytest.approx(5.0, abs=0.003)]] * 3


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(min_value=2.5, max_value=2.51), min_size=1, max_size=40))
def test_whatever_hangs_is_cut_short_when_its_time_is_up(timeouts_s: list[float]) -> None:
    probes = [ScriptedProbe(takes_s=HUNG_S) for _ in timeouts_s]

    async def watch_for_a_while() -> None:
        node = a_node()
        for place, (probe, timeout_s) in enumerate(zip(probes, timeouts_s, strict=True)):
            node.register(f"svc-{place}", probe=probe, interval=3.0, timeout=timeout_s)
        async with Supervisor(node, random.Random(7)):
            await asyncio.sleep(60.0)
            for probe, timeout_s in zip(probes, timeouts_s, strict=True):
                lasted_s = [end - begin for begin, end in zip(probe.began_at_s, probe.cancelled_at_s, strict=False)]
                assert len(lasted_s) >= 15
                assert lasted_s == pytest.approx([timeout_s] * len(lasted_s), abs=3 * TIMER_GRAIN_S)

    run_in_virtual_time(watch_for_a_while())


@dataclass(eq=False)
class SteppingProbe:
    """Goes into one step after the other, and gets stuck in the last."""

    steps: tuple[str, ...]

    async def look(self) -> Verdict:
        with ExitStack() as under_way:
            for name in self.steps:
                under_way.enter_context(step(name))
            await asyncio.sleep(60.0)
        return READY


@pytest.mark.parametrize("steps", [("connect",), ("connect", "handshake"), ("resolve", "exchange")])
@in_virtual_time
async def test_a_look_that_ran_out_of_time_says_how_far_it_got(steps: tuple[str, ...]) -> None:
    state = await after_a_look(SteppingProbe(steps))
    assert (state.status, state.reason) == (Status.DOWN, f"no answer within 3 s, in its step {steps[-1]}")


@in_virtual_time
async def test_a_resolver_that_does_not_answer_is_our_own_fault(caplog: pytest.LogCaptureFixture) -> None:
    node = a_node()
    node.register("db-1", probe=SteppingProbe(("resolve",)), interval="10s", timeout="3s", fall=1, start_period=0.0)
    with caplog.at_level("INFO", logger="svcnode.supervisor"):
        async with supervising(node):
            await asyncio.sleep(100.0)
            state = node.state("db-1")
    assert (state.status, state.failures_in_a_row) == (Status.INITIALIZING, 0)
    assert caplog.messages == ["service db-1 could not be looked at: the resolver did not answer within 3 s"]


@in_virtual_time
async def test_a_probe_that_swallows_its_deadline_has_seen_nothing() -> None:
    state = await after_a_look(StubbornProbe(lambda: READY))
    assert (state.status, state.reason) == (Status.DOWN, "no answer within 3 s")


@in_virtual_time
async def test_a_probe_that_fails_while_it_is_cut_short_ran_out_of_time(caplog: pytest.LogCaptureFixture) -> None:
    state = await after_a_look(StubbornProbe(fails))
    assert (state.status, state.reason) == (Status.DOWN, "no answer within 3 s")
    assert caplog.records == []


# ---- so many at once


def register_many(node: Node, count: int, probe: Callable[[], ScriptedProbe], **words: Any) -> list[ScriptedProbe]:
    probes = [probe() for _ in range(count)]
    for one in probes:
        node.register(f"svc-{len(node)}", probe=one, **words)
    return probes


@pytest.mark.parametrize("looks_at_once", [1, 3])
@in_virtual_time
async def test_there_are_never_more_looks_in_flight_than_there_are_places(looks_at_once: int) -> None:
    node, crowd = a_node(), Crowd()
    probes = register_many(node, 20, lambda: ScriptedProbe(takes_s=0.2, crowd=crowd), interval="1s")
    async with supervising(node, looks_at_once=looks_at_once):
        await asyncio.sleep(60.0)
    assert crowd.most == looks_at_once
    assert sum(len(probe.began_at_s) for probe in probes) == pytest.approx(60.0 / 0.2 * looks_at_once, abs=20)
    counts = [len(probe.began_at_s) for probe in probes]
    assert min(counts) > 0.8 * max(counts), "each has its turn"


@in_virtual_time
async def test_slow_looks_share_a_quarter_of_the_places() -> None:
    node, crowd = a_node(), Crowd()
    probes = register_many(node, 40, lambda: ScriptedProbe(takes_s=1.0, crowd=crowd), interval="3s")
    async with supervising(node, looks_at_once=8):
        await asyncio.sleep(10.0)  # nobody knows of a service that it is slow before it was looked at
        crowd.most = 0
        await asyncio.sleep(100.0)
    assert crowd.most == 2
    assert all(len(probe.began_at_s) > 5 for probe in probes), "each has its turn"


@in_virtual_time
async def test_the_only_place_is_for_slow_looks_too() -> None:
    node, crowd = a_node(), Crowd()
    probes = register_many(node, 2, lambda: ScriptedProbe(takes_s=1.0, crowd=crowd), interval="3s")
    async with supervising(node, looks_at_once=1):
        await asyncio.sleep(30.0)
    assert crowd.most == 1
    assert all(len(probe.began_at_s) > 8 for probe in probes)


@in_virtual_time
async def test_however_many_services_hang_the_others_are_looked_at_on_time() -> None:
    node, crowd = a_node(), Crowd()
    hung = register_many(node, 100, lambda: ScriptedProbe(takes_s=HUNG_S, crowd=crowd), interval="10s", timeout="3s")
    quick = register_many(node, 10, lambda: ScriptedProbe(takes_s=0.05, crowd=crowd), interval="1s")
    async with supervising(node, looks_at_once=20):
        await asyncio.sleep(60.0)  # until it is known which ones hang
        for probe in quick:
            probe.began_at_s.clear()
        await asyncio.sleep(600.0)
    assert crowd.most == 20
    for probe in quick:
        assert len(probe.began_at_s) == 600
        assert probe.gaps_s == pytest.approx([1.0] * 599)
    assert all(len(probe.began_at_s) > 5 for probe in hung), "they are not forgotten"


@in_virtual_time
async def test_a_service_that_is_quick_again_need_not_wait_with_the_slow_ones() -> None:
    node = a_node()
    register_many(node, 20, lambda: ScriptedProbe(takes_s=HUNG_S), interval="10s", timeout="3s")
    [mended] = register_many(node, 1, lambda: ScriptedProbe(takes_s=HUNG_S), interval="4s", timeout="3s")
    async with supervising(node, looks_at_once=8):
        await asyncio.sleep(300.0)
        assert max(mended.gaps_s) > 20.0
        mended.takes_s = 0.1
        await asyncio.sleep(60.0)
        mended.began_at_s.clear()
        await asyncio.sleep(100.0)
    assert mended.gaps_s == pytest.approx([4.0] * 24)


@pytest.mark.parametrize("way", ["removed", "redefined"])
@in_virtual_time
async def test_places_are_given_back_by_services_that_were_waiting_for_them(way: str) -> None:
    node = a_node()
    *going, staying = register_many(node, 12, lambda: ScriptedProbe(takes_s=2.0), interval="5s", timeout="3s")
    async with supervising(node, looks_at_once=8):
        await asyncio.sleep(60.0)
        assert max(staying.gaps_s) > 10.0, "they wait for each other"
        for place in range(len(going)):
            if way == "removed":
                node.deregister(f"svc-{place}")
            else:
                node.replace(define(f"svc-{place}", probe=ScriptedProbe(), interval="5s"))
        await asyncio.sleep(20.0)
        others = register_many(node, 1, lambda: ScriptedProbe(takes_s=2.0), interval="5s", timeout="3s")
        staying.began_at_s.clear()
        await asyncio.sleep(100.0)
    for probe in (staying, *others):
        assert probe.gaps_s == pytest.approx([5.0] * len(probe.gaps_s)), "there are two places for slow looks"
        assert len(probe.gaps_s) >= 18


@in_virtual_time
async def test_leaving_the_block_ends_the_waiting_for_a_place() -> None:
    node, crowd = a_node(), Crowd()
    register_many(node, 20, lambda: ScriptedProbe(takes_s=HUNG_S, crowd=crowd), interval="10s", timeout="3s")
    async with supervising(node, looks_at_once=4):
        await asyncio.sleep(100.0)
        assert crowd.running == 1
    assert crowd.running == 0
    assert not looks_under_way()


@pytest.mark.parametrize("way", ["removed", "left"])
@in_virtual_time
async def test_any_number_of_services_may_go_while_they_wait_for_a_place(way: str) -> None:
    node, crowd = a_node(), Crowd()
    register_many(node, 2000, lambda: ScriptedProbe(takes_s=HUNG_S, crowd=crowd), interval="10s", timeout="3s")
    async with supervising(node, looks_at_once=4):
        await asyncio.sleep(10.0)
        if way == "removed":
            for service, _ in node:
                node.deregister(service.id)
            [late] = register_many(node, 1, ScriptedProbe, interval="10s")
            await asyncio.sleep(25.0)
            assert late.began_at_s == pytest.approx([10.0, 20.0, 30.0], abs=2 * TIMER_GRAIN_S)
    assert crowd.running == 0
    assert not looks_under_way()


@in_virtual_time
async def test_a_place_is_given_back_by_a_look_that_is_ended_before_its_first_step() -> None:
    node, probe = a_node(), ScriptedProbe()

    def redefine() -> None:
        node.replace(define("db-1", probe=ScriptedProbe(), interval="10s"))

    node.register("db-1", probe=ScriptedProbe(), interval="10s")
    node.register("other", probe=probe, interval="10s")
    async with supervising(node, looks_at_once=1):
        await asyncio.sleep(1.5)
        # In the same turn of the loop in which its next look begins, and just before that.
        asyncio.get_running_loop().call_at(math.nextafter(10.0, 0.0), redefine)
        await asyncio.sleep(20.0)
    assert probe.began_at_s == pytest.approx([1.0, 11.0, 21.0])


@in_virtual_time
async def test_looks_that_begin_late_are_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    node = a_node()
    probes = register_many(node, 3, lambda: ScriptedProbe(takes_s=0.2), interval="500ms")
    async with supervising(node, looks_at_once=1):
        await asyncio.sleep(3 * LATENESS_TOLD_EVERY_S + 1.0)
        assert len(caplog.messages) == 3
        told = re.match(r"(\d+) of (\d+) looks began more than 100 ms late: ", caplog.messages[1])
        assert told is not None
        late, looks = map(int, told.groups())
        assert 0 < late <= looks == pytest.approx(300, abs=2)
        for probe in probes:
            probe.takes_s = 0.01
        await asyncio.sleep(LATENESS_TOLD_EVERY_S)
        caplog.clear()
        await asyncio.sleep(10 * LATENESS_TOLD_EVERY_S)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("late", "looks", "is_told"),
    [(0, 0, False), (1, 7, False), (4, 4, False), (5, 5, True), (5, 100, True), (5, 101, False), (600, 12_001, False)],
)
def test_late_looks_are_told_when_they_are_several_and_a_share_that_counts(
    late: int, looks: int, is_told: bool
) -> None:
    assert is_lateness_worth_telling(late, looks) is is_told


@in_virtual_time
async def test_a_single_hiccup_is_nothing_to_tell(caplog: pytest.LogCaptureFixture) -> None:
    node = a_node()
    first, *_ = register_many(node, 3, lambda: ScriptedProbe(takes_s=0.01), interval="10s")
    async with supervising(node, looks_at_once=1):
        await asyncio.sleep(15.0)
        first.takes_s = 4.0  # and the next one waits for its place
        await asyncio.sleep(10.0)
        first.takes_s = 0.01
        await asyncio.sleep(10 * LATENESS_TOLD_EVERY_S)
    assert caplog.messages == []


@in_virtual_time
async def test_looks_that_begin_on_time_are_nothing_to_tell(caplog: pytest.LogCaptureFixture) -> None:
    node = a_node()
    register_many(node, 3, lambda: ScriptedProbe(FAILED, takes_s=0.2), interval="500ms")  # these follow each other
    async with supervising(node, looks_at_once=3):
        await asyncio.sleep(10 * LATENESS_TOLD_EVERY_S)
    assert caplog.messages == []


# ---- services that come, change and go


@pytest.mark.parametrize("what", ["comes", "changes", "goes"])
@in_virtual_time
async def test_a_service_that_comes_changes_or_goes_disturbs_no_other(what: str) -> None:
    node, neighbour = a_node(), ScriptedProbe(takes_s=1.0)
    node.register("neighbour", probe=neighbour, interval="10s")
    if what != "comes":
        node.register("db-1", probe=ScriptedProbe(), interval="10s")
    async with supervising(node):
        await asyncio.sleep(10.5)  # in the midst of a look at the neighbour
        if what == "comes":
            node.register("db-1", probe=ScriptedProbe())
        elif what == "changes":
            node.replace(define("db-1", probe=ScriptedProbe(), interval="3s"))
        else:
            node.deregister("db-1")
        await asyncio.sleep(20.0)
        assert node.state("neighbour").since_s == 0.0
    assert neighbour.began_at_s == [0.0, 10.0, 20.0, 30.0]
    assert neighbour.cancelled_at_s == [30.5]


@pytest.mark.parametrize("word", ["interval", "timeout", "transition_interval", "max_latency"])
@in_virtual_time
async def test_a_service_that_is_to_be_looked_at_in_another_rhythm_begins_it_at_once(word: str) -> None:
    node, probe = a_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with supervising(node):
        await asyncio.sleep(5.0)
        node.replace(define("db-1", probe=probe, **({"interval": "10s"} | {word: "2500ms"})))  # type: ignore[arg-type]
        await asyncio.sleep(1.0)
        assert node.status("db-1") is Status.UP
    assert probe.began_at_s == [0.0, 5.0]


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


def looks_under_way() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


@in_virtual_time
async def test_leaving_the_block_ends_every_look_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    node, probe = a_node(), ScriptedProbe(takes_s=4.0)
    node.register("db-1", probe=probe, interval="10s", timeout="5s")
    async with supervising(node):
        await asyncio.sleep(1.0)
        assert len(looks_under_way()) == 1
    assert not looks_under_way()
    assert probe.cancelled_at_s == [1.0]
    assert caplog.records == []


@in_virtual_time
async def test_a_service_registered_at_the_last_moment_leaves_no_look_behind() -> None:
    node, probe = a_node(), ScriptedProbe()
    async with supervising(node):
        node.register("db-1", probe=probe, interval="10s")
    await asyncio.sleep(100.0)
    assert not looks_under_way()
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
    answer: Callable[[], Verdict], caplog: pytest.LogCaptureFixture
) -> None:
    node = a_node()
    node.register("db-1", probe=StubbornProbe(answer), interval="10s", timeout="5s")
    async with asyncio.timeout(100.0):
        async with supervising(node):
            await asyncio.sleep(1.0)
    assert now_s() == 1.0
    assert not looks_under_way()
    assert node.state("db-1").reason == "no evidence yet"
    assert caplog.records == []


@dataclass(eq=False)
class DeafProbe:
    """Does not hear that it is cut off until it was told so often, as drivers do that lose a cancellation."""

    deaf_times: int
    ended_at_s: list[float] = field(default_factory=list)

    async def look(self) -> Verdict:
        for _ in range(self.deaf_times):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(HUNG_S)
        try:
            await asyncio.sleep(HUNG_S)
        finally:
            self.ended_at_s.append(now_s())
        return READY


@pytest.mark.parametrize("deaf_times", [1, 2, 10])
@in_virtual_time
async def test_a_look_that_does_not_hear_its_deadline_is_told_again_until_it_does(deaf_times: int) -> None:
    node, probe = a_node(), DeafProbe(deaf_times)
    node.register("db-1", probe=probe, interval="10s", timeout="2s", start_period="1h")
    async with supervising(node):
        await asyncio.sleep(16.0)
        assert probe.ended_at_s[0] == pytest.approx(2.0 + INSIST_AFTER_S * deaf_times, abs=0.01)
        assert node.state("db-1").reason == "no answer within 2 s"
        assert len(probe.ended_at_s) > 1, "and it is looked at again"


@in_virtual_time
async def test_a_look_that_is_over_in_time_is_not_told_anything() -> None:
    node, hung = a_node(), ScriptedProbe(takes_s=HUNG_S)
    node.register("db-1", probe=hung, interval="1s", timeout="500ms")
    async with supervising(node):
        await asyncio.sleep(100.0)
    assert len(hung.cancelled_at_s) == len(hung.began_at_s)
    assert all(ended_s - began_s == pytest.approx(0.5, abs=0.01) for began_s, ended_s in _finished(hung))


def _finished(probe: ScriptedProbe) -> list[tuple[float, float]]:
    return list(zip(probe.began_at_s, probe.cancelled_at_s, strict=True))[:-1]  # the last one ended with the block


@pytest.mark.parametrize("deaf_times", [1, 2, 10])
@in_virtual_time
async def test_a_look_that_does_not_hear_the_end_of_the_block_is_told_again_until_it_does(deaf_times: int) -> None:
    node, probe = a_node(), DeafProbe(deaf_times)
    node.register("db-1", probe=probe, interval="100s", timeout="50s")
    async with supervising(node):
        await asyncio.sleep(1.0)
    assert now_s() == pytest.approx(1.0 + INSIST_AFTER_S * deaf_times)
    assert not looks_under_way()


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
    assert not looks_under_way()


# ---- what a probe keeps from look to look


@dataclass(eq=False)
class KeepingProbe(ScriptedProbe):
    """Has something to let go of, and notes when it was told to, and how many of its looks were under way then."""

    let_go_at_s: list[tuple[float, int]] = field(default_factory=list)

    def let_go(self) -> None:
        self.let_go_at_s.append((now_s(), self.crowd.running))


def deregister(node: Node) -> None:
    node.deregister("db-1")


def redefine(node: Node) -> None:
    node.replace(define("db-1", probe=ScriptedProbe(), interval="10s"))


def report_instead(node: Node) -> None:
    node.replace(define("db-1"))


GOING = pytest.mark.parametrize("goes", [deregister, redefine, report_instead])


@GOING
@in_virtual_time
async def test_a_probe_lets_go_when_its_service_goes_or_is_looked_at_in_another_way(
    goes: Callable[[Node], None],
) -> None:
    node, probe, other = a_node(), KeepingProbe(), KeepingProbe()
    node.register("db-1", probe=probe, interval="10s")
    node.register("db-2", probe=other, interval="10s")
    async with supervising(node):
        await asyncio.sleep(15.0)
        assert probe.let_go_at_s == []
        goes(node)
        await asyncio.sleep(15.0)
        assert probe.let_go_at_s == [(15.0, 0)]
        assert other.let_go_at_s == []


@GOING
@in_virtual_time
async def test_a_probe_that_is_looking_lets_go_after_its_look(goes: Callable[[Node], None]) -> None:
    node, probe = a_node(), KeepingProbe(takes_s=2.0)
    node.register("db-1", probe=probe, interval="10s", timeout="5s")
    async with supervising(node):
        await asyncio.sleep(11.0)
        goes(node)
        await asyncio.sleep(15.0)
    assert probe.cancelled_at_s == [11.0]
    assert probe.let_go_at_s == [(11.0, 0)]


@in_virtual_time
async def test_new_words_about_a_service_leave_its_probe_what_it_keeps() -> None:
    node, probe = a_node(), KeepingProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with supervising(node):
        await asyncio.sleep(15.0)
        node.replace(define("db-1", name="Ledger", probe=probe, interval="10s"))
        await asyncio.sleep(15.0)
        assert probe.let_go_at_s == []


@pytest.mark.parametrize("takes_s", [0.0, 2.0], ids=["between its looks", "in the middle of one"])
@in_virtual_time
async def test_every_probe_lets_go_when_the_looking_ends(takes_s: float) -> None:
    node, probes = a_node(), [KeepingProbe(takes_s=takes_s) for _ in range(3)]
    for place, probe in enumerate(probes):
        node.register(f"svc-{place}", probe=probe, interval="10s", timeout="5s")
    async with supervising(node):
        await asyncio.sleep(11.5)
    assert [probe.let_go_at_s for probe in probes] == [[(11.5, 0)]] * 3


@in_virtual_time
async def test_a_probe_that_swallows_the_end_of_its_look_still_lets_go_after_it() -> None:
    """What it keeps then, it would keep for ever."""

    @dataclass(eq=False)
    class StubbornKeeper(StubbornProbe):
        diary: list[str] = field(default_factory=list)

        async def look(self) -> Verdict:
            verdict = await super().look()
            self.diary.append("kept")
            return verdict

        def let_go(self) -> None:
            self.diary.append("let go")

    node, probe = a_node(), StubbornKeeper(lambda: READY)
    node.register("db-1", probe=probe, interval="10s", timeout="5s")
    async with supervising(node):
        await asyncio.sleep(1.0)
    assert probe.diary == ["kept", "let go"]


@in_virtual_time
async def test_a_probe_whose_look_is_ended_before_its_first_step_lets_go_too() -> None:
    node, probe = a_node(), KeepingProbe()
    node.register("db-1", probe=probe, interval="10s")

    class EndedAtOnce(Supervisor):
        def note_begin(self, service_id: str, late_s: float) -> None:
            raise AssertionError("it should not begin")

    supervisor = EndedAtOnce(node, NoChance())
    async with supervisor:
        (looker,) = supervisor._lookers.values()
        looker._begin()  # its task is made, and has not run yet
        looker.stop()
        await asyncio.sleep(1.0)
        assert (probe.began_at_s, probe.let_go_at_s) == ([], [(0.0, 0)])


@in_virtual_time
async def test_a_probe_that_waits_for_a_place_lets_go_when_its_service_goes() -> None:
    node, waiting = a_node(), KeepingProbe()
    node.register("hung", probe=ScriptedProbe(takes_s=HUNG_S), interval="60s", timeout="50s")
    node.register("db-1", probe=waiting, interval="60s")
    async with supervising(node, looks_at_once=1):
        await asyncio.sleep(5.0)
        node.deregister("db-1")
        await asyncio.sleep(1.0)
    assert (waiting.began_at_s, waiting.let_go_at_s) == ([], [(5.0, 0)])


@in_virtual_time
async def test_a_probe_that_cannot_let_go_keeps_no_other_from_it(caplog: pytest.LogCaptureFixture) -> None:
    @dataclass(eq=False)
    class Clinging(ScriptedProbe):
        def let_go(self) -> None:
            raise RuntimeError("not today")

    node, other, hung = a_node(), KeepingProbe(), ScriptedProbe(takes_s=4.0)
    node.register("clinging", probe=Clinging(), interval="10s")
    node.register("hung", probe=hung, interval="10s", timeout="5s")
    node.register("db-1", probe=other, interval="10s")
    async with supervising(node):
        await asyncio.sleep(3.0)
    assert other.let_go_at_s == [(3.0, 0)]
    assert hung.cancelled_at_s == [3.0]
    assert not looks_under_way()
    assert [record.getMessage() for record in caplog.records] == ["a probe could not let go of what it had kept"]


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


# ---- when we are held up ourselves


@dataclass(eq=False)
class ListeningProbe:
    """Ready as soon as it hears something."""

    ear: socket.socket

    async def look(self) -> Verdict:
        await asyncio.get_running_loop().sock_recv(self.ear, 1)
        return READY


def hold_up(by_s: float) -> None:
    """As a callback does that takes so long: the time goes by, and nobody else has a turn."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.clock.advance(by_s)


@pytest.fixture
def mouth_and_ear() -> Iterator[tuple[socket.socket, socket.socket]]:
    mouth, ear = socket.socketpair()
    ear.setblocking(False)
    with mouth, ear:
        yield mouth, ear


def test_an_answer_that_came_while_we_were_held_up_past_the_deadline_counts(
    mouth_and_ear: tuple[socket.socket, socket.socket],
) -> None:
    mouth, ear = mouth_and_ear

    async def story() -> None:
        node = a_node()
        node.register("db-1", probe=ListeningProbe(ear), interval="10s", timeout="3s")
        async with supervising(node):
            await asyncio.sleep(2.9)
            mouth.send(b"!")
            hold_up(by_s=1.0)
            await asyncio.sleep(0.1)
            assert node.state("db-1").status is Status.UP

    run_in_virtual_time(story())


def test_silence_past_the_deadline_counts_even_when_we_were_held_up(
    mouth_and_ear: tuple[socket.socket, socket.socket],
) -> None:
    async def story() -> None:
        node = a_node()
        node.register("db-1", probe=ListeningProbe(mouth_and_ear[1]), interval="10s", timeout="3s")
        async with supervising(node):
            await asyncio.sleep(2.9)
            hold_up(by_s=1.0)
            await asyncio.sleep(0.1)
            assert node.state("db-1").reason == "no answer within 3 s"

    run_in_virtual_time(story())


# ---- probes of other people


@dataclass(eq=False)
class ForgetfulProbe:
    """Forgets once to say what it saw."""

    looks: int = 0

    async def look(self) -> Verdict:
        self.looks += 1
        return cast("Verdict", None) if self.looks == 2 else READY


@in_virtual_time
async def test_a_look_without_a_verdict_is_the_fault_of_the_probe_and_the_looking_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node, probe = a_node(), ForgetfulProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with supervising(node):
        await asyncio.sleep(35.0)
    assert probe.looks == 4
    assert "returned None, which is no Verdict" in caplog.text


@in_virtual_time
async def test_a_service_that_was_slow_once_does_not_wait_behind_those_that_hang() -> None:
    node, healthy = a_node(), ScriptedProbe()
    for number in range(40):
        node.register(f"hung-{number}", probe=ScriptedProbe(takes_s=1000.0), interval="10s", timeout="3s")
    node.register("healthy", probe=healthy, interval="10s", timeout="3s")
    async with supervising(node, looks_at_once=16):
        await asyncio.sleep(60.0)  # in which it is learned who hangs
        healthy.takes_s = 0.4
        await asyncio.sleep(10.0)
        healthy.takes_s = 0.0
        slow_at_s = healthy.began_at_s[-1]
        await asyncio.sleep(20.0)
    assert next(one for one in healthy.began_at_s if one > slow_at_s) - slow_at_s < 13.1


@in_virtual_time
async def test_a_probe_that_would_end_the_program_or_has_no_words_is_at_fault_and_the_looking_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class UnspeakableError(Exception):
        def __str__(self) -> str:
            raise ValueError("no words")

    node, leaving, silent = a_node(), ScriptedProbe(error=SystemExit("enough")), ScriptedProbe(error=UnspeakableError())
    node.register("leaving", probe=leaving, interval="10s")
    node.register("silent", probe=silent, interval="10s")
    seen: dict[str, str] = {}
    node.observe(lambda service_id, evidence, _: seen.update({service_id: evidence.verdict.reason}))
    async with supervising(node):
        await asyncio.sleep(35.0)
    assert (len(leaving.began_at_s), len(silent.began_at_s)) == (4, 4)
    assert seen == {
        "leaving": "the probe itself failed: SystemExit: enough",
        "silent": "the probe itself failed: UnspeakableError",
    }
    assert len(caplog.records) == 2


# ---- checks of the embedding program


@in_virtual_time
async def test_a_check_that_would_end_the_program_takes_its_service_down_and_nothing_else() -> None:
    node, other = a_node(), ScriptedProbe()
    node.register("other", probe=other, interval="10s")

    @node.check("db-1", interval="10s", fall=2, start_period=0.0)
    async def check() -> None:
        sys.exit("config lost")

    async with supervising(node):
        await asyncio.sleep(35.0)
        state = node.state("db-1")
    assert (state.status, state.reason) == (Status.DOWN, "SystemExit: config lost")
    assert len(other.began_at_s) == 4


BLOCKED = "it blocked the event loop for 1.5 s, its timeout is 0.5 s"


def holds_at_once() -> Callable[[], Coroutine[Any, Any, None]]:
    async def check() -> None:
        hold_up(by_s=1.5)

    return check


def holds_before_it_waits() -> Callable[[], Coroutine[Any, Any, None]]:
    async def check() -> None:
        hold_up(by_s=1.5)
        await asyncio.sleep(0)

    return check


def holds_and_never_answers() -> Callable[[], Coroutine[Any, Any, None]]:
    async def check() -> None:
        hold_up(by_s=1.5)
        await asyncio.sleep(HUNG_S)

    return check


def holds_at_its_last_moment() -> Callable[[], Coroutine[Any, Any, None]]:
    async def check() -> None:
        await asyncio.sleep(0.25)
        hold_up(by_s=1.5)

    return check


@pytest.mark.parametrize(
    "style", [holds_at_once, holds_before_it_waits, holds_and_never_answers, holds_at_its_last_moment]
)
@in_virtual_time
async def test_a_check_that_holds_the_loop_past_its_own_timeout_is_failed_and_told_once(
    style: Callable[[], Callable[[], Coroutine[Any, Any, None]]], caplog: pytest.LogCaptureFixture
) -> None:
    node = a_node()
    node.check("db-1", interval="2s", timeout="500ms", fall=2, start_period=0.0)(style())
    async with supervising(node):
        await asyncio.sleep(20.0)
        assert node.state("db-1").status is Status.DOWN
        assert node.state("db-1").reason == BLOCKED
    [told] = [message for message in caplog.messages if "began more than" not in message]
    assert told == (
        "the check of service 'db-1' blocked the event loop for 1.5 s, and all else in it had to wait: "
        "let it await, or make it a plain function, which runs in a thread"
    )


def test_that_one_check_held_the_loop_is_no_fault_of_the_others(
    mouth_and_ear: tuple[socket.socket, socket.socket],
) -> None:
    mouth, ear = mouth_and_ear
    seen: dict[str, list[Outcome]] = {"holds": [], "listens": []}

    async def story() -> None:
        node = a_node()
        node.observe(lambda service_id, evidence, _: seen[service_id].append(evidence.verdict.outcome))
        node.check("listens", interval="10s", timeout="2s")(listens)
        node.check("holds", interval="10s", timeout="500ms")(holds)
        async with supervising(node):
            await asyncio.sleep(9.0)

    async def listens() -> None:
        await asyncio.get_running_loop().sock_recv(ear, 1)

    async def holds() -> None:
        mouth.send(b"!")
        hold_up(by_s=5.0)

    run_in_virtual_time(story())
    assert seen["listens"][0] is Outcome.READY
    assert set(seen["holds"]) == {Outcome.FAILED}


@pytest.mark.parametrize(
    ("duration_s", "held_s", "is_late"),
    [
        (1.5, 1.5, True),
        (0.4, 0.4, False),
        (0.8, 0.4, True),  # 0.4 s of waiting would have been in time
        (1.5, 0.4, False),  # it was others who held it up
        (9.0, 0.6, True),  # others did, too
        (0.51, 0.02, False),  # a hair's breadth is for the deadline to judge
    ],
)
def test_a_look_is_late_by_itself_when_it_would_have_been_in_time_without_holding_the_loop(
    duration_s: float, held_s: float, is_late: bool
) -> None:
    assert is_late_by_itself(duration_s, held_s, 0.5) is is_late


async def hears_nothing() -> None:
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(HUNG_S)


async def waits_for_one_that_hears_nothing() -> None:
    await asyncio.gather(is_deaf_for_a_minute())


async def is_deaf_for_a_minute() -> None:
    until_s = now_s() + 60.0
    while now_s() < until_s:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(until_s - now_s())


@pytest.mark.parametrize("check", [hears_nothing, waits_for_one_that_hears_nothing])
@in_virtual_time
async def test_a_check_that_does_not_hear_its_deadline_takes_its_service_down_all_the_same(
    check: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    node = a_node()
    reasons: list[str] = []
    node.observe(lambda _, evidence, __: reasons.append(evidence.verdict.reason))
    node.check("db-1", interval="2s", timeout="500ms", fall=2, start_period=0.0)(check)
    async with supervising(node):
        await asyncio.sleep(4.0)
        assert node.state("db-1").status is Status.DOWN
        began_to_stop_s = now_s()
    assert now_s() - began_to_stop_s <= 2 * INSIST_AFTER_S
    assert reasons[:2] == ["no answer within 0.5 s", "its previous run has not returned yet"]


@in_virtual_time
async def test_a_check_that_did_not_hear_its_deadlines_is_run_again_once_it_has_ended() -> None:
    node, hang = a_node(), asyncio.Event()
    hang.set()

    @node.check("db-1", interval="2s", timeout="500ms", fall=2, rise=1, start_period=0.0)
    async def check() -> None:
        if hang.is_set():
            await waits_for_one_that_hears_nothing()

    async with supervising(node):
        await asyncio.sleep(30.0)
        hang.clear()
        assert node.status("db-1") is Status.DOWN
        await asyncio.sleep(60.0)
        assert node.status("db-1") is Status.UP


@in_virtual_time
async def test_a_check_that_lost_its_cancellation_is_told_again_at_every_look() -> None:
    node, deaf = a_node(), DeafProbe(deaf_times=3)
    node.check("db-1", interval="2s", timeout="500ms", start_period=0.0)(deaf.look)
    async with supervising(node):
        await asyncio.sleep(10.0)
    assert len(deaf.ended_at_s) > 1


@in_virtual_time
async def test_a_check_that_hears_nothing_is_gone_soon_after_the_end_of_the_block() -> None:
    node = a_node()
    node.check("db-1", interval="20s", timeout="10s")(hears_nothing)
    async with supervising(node):
        await asyncio.sleep(1.0)
    assert now_s() == pytest.approx(1.0 + INSIST_AFTER_S)
    await asyncio.sleep(0.1)
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_the_words_of_a_check_forge_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    node = a_node()

    @node.check("db-1", interval="10s")
    async def check() -> None:
        raise ValueError("gone\n12:00:00 all is well\x1b[2J")

    with caplog.at_level("INFO", logger="svcnode.supervisor"):
        async with supervising(node):
            await asyncio.sleep(1.0)
    assert caplog.messages == [r"service db-1 failed a look: ValueError: gone\n12:00:00 all is well\x1b[2J"]


def test_looking_that_ends_unasked_is_told_and_can_be_begun_again(caplog: pytest.LogCaptureFixture) -> None:
    node, probe = Node("validator-7", version="v1"), WaitedFor()
    left = threading.Event()

    @node.check("db-1", interval="60s")
    async def check() -> None:
        async def leave() -> None:
            if not left.is_set():
                left.set()
                sys.exit("enough\nof it")

        await asyncio.create_task(leave())  # beyond our reach: the loop itself ends on it

    node.start()
    assert left.wait(10.0)
    for thread in threading.enumerate():
        if thread.name == "svcnode supervisor":  # it may be over by now
            thread.join(10.0)
    assert caplog.messages == [
        r"nobody looks at the services any more, node.start() begins it again: SystemExit: enough\nof it"
    ]
    node.register("db-2", probe=probe, interval="60s")
    node.start()
    try:
        assert probe.was_looked.wait(10.0)
    finally:
        node.stop()


def test_stopping_does_not_wait_for_ever_for_what_a_check_began(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("svcnode.supervisor.thread.ENDED_WITHIN_S", 0.0)
    node, probe, may_end = Node("validator-7", version="v1"), WaitedFor(), threading.Event()

    @node.check("db-1", interval="60s")
    async def check() -> None:
        began.append(asyncio.create_task(is_deaf()))

    async def is_deaf() -> None:
        probe.was_looked.set()
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    began: list[asyncio.Task[None]] = []
    node.start()
    [looking] = [thread for thread in threading.enumerate() if thread.name == "svcnode supervisor"]
    assert probe.was_looked.wait(10.0)
    node.stop()
    assert caplog.messages == ["the looking did not end within 0 s: a check does not hear that it is over"]
    may_end.set()
    looking.join(10.0)
    assert not looking.is_alive()
