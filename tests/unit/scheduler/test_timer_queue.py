"""What is due is done on time, told in virtual time through the looks that it begins and cuts off."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svcnode.core.model import Status
from svcnode.scheduler import FIRST_CHECKS_WITHIN_S, ProbeScheduler
from svcnode.scheduler.timer_queue import TIMER_RESOLUTION_S
from tests.support.scheduling import HUNG_S, ScriptedProbe, make_node, make_scheduler
from tests.support.virtual_time import in_virtual_time, run_in_virtual_time


@in_virtual_time
async def test_a_service_may_be_looked_at_ten_times_a_second() -> None:
    node, probe = make_node(), ScriptedProbe(duration_s=0.01)
    node.register("db-1", probe=probe, interval="100ms")
    async with make_scheduler(node):
        await asyncio.sleep(60.05)
        assert node.status("db-1") is Status.UP
    assert len(probe.started_at_s) == 601
    assert probe.intervals_s == pytest.approx([0.1] * 600)


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(), interval_ms=st.integers(100, 60_000))
def test_whatever_chance_brings_a_look_is_never_far_from_its_interval(seed: int, interval_ms: int) -> None:
    probe, interval_s = ScriptedProbe(), interval_ms / 1000

    async def watch_for_a_while() -> None:
        node = make_node()
        node.register("db-1", probe=probe, interval=interval_s)
        async with ProbeScheduler(node, random.Random(seed)):
            await asyncio.sleep(50 * interval_s)

    run_in_virtual_time(watch_for_a_while())
    assert len(probe.intervals_s) >= 46
    grain_s = 2 * TIMER_RESOLUTION_S
    assert all(0.95 * interval_s - grain_s <= gap_s <= 1.05 * interval_s + grain_s for gap_s in probe.intervals_s)


@in_virtual_time
async def test_deadlines_within_a_millisecond_of_each_other_are_all_kept() -> None:
    node, probes = make_node(), [ScriptedProbe(duration_s=HUNG_S) for _ in range(3)]
    for place, (probe, deadline_s) in enumerate(zip(probes, (4.9995, 5.0001, 5.0008), strict=True)):
        begins_s = FIRST_CHECKS_WITHIN_S * place / 3
        node.register(f"svc-{place}", probe=probe, interval="100s", timeout=deadline_s - begins_s)
    async with make_scheduler(node):
        await asyncio.sleep(10.0)
    assert [probe.cancelled_at_s for probe in probes] == [[pytest.approx(5.0, abs=0.003)]] * 3


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(min_value=2.5, max_value=2.51), min_size=1, max_size=40))
def test_whatever_hangs_is_cut_short_when_its_time_is_up(timeouts_s: list[float]) -> None:
    probes = [ScriptedProbe(duration_s=HUNG_S) for _ in timeouts_s]

    async def watch_for_a_while() -> None:
        node = make_node()
        for place, (probe, timeout_s) in enumerate(zip(probes, timeouts_s, strict=True)):
            node.register(f"svc-{place}", probe=probe, interval=3.0, timeout=timeout_s)
        async with ProbeScheduler(node, random.Random(7)):
            await asyncio.sleep(60.0)
            for probe, timeout_s in zip(probes, timeouts_s, strict=True):
                lasted_s = [end - begin for begin, end in zip(probe.started_at_s, probe.cancelled_at_s, strict=False)]
                assert len(lasted_s) >= 15
                assert lasted_s == pytest.approx([timeout_s] * len(lasted_s), abs=3 * TIMER_RESOLUTION_S)

    run_in_virtual_time(watch_for_a_while())
