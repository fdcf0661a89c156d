"""The limit on concurrent checks: hung services delay neither the others nor each other.

The bounds are those of docs/operate.md, "Timing".
"""

from __future__ import annotations

import asyncio
import math

import pytest

from svcnode.core.model import Status
from svcnode.net.timers import TICK_S, TIMER_RESOLUTION_S
from svcnode.node.definition import define
from svcnode.node.scheduler import JITTER, MAX_CONCURRENT_CHECKS, ProbeScheduler
from svcnode.node.scheduler.limiter import slots_for_slow
from tests.support.scheduling import (
    HUNG_S,
    ConcurrencyCounter,
    ScriptedProbe,
    make_node,
    make_scheduler,
    register_many,
    running_checks,
    seeded_jitter,
)
from tests.support.virtual_time import in_virtual_time


@pytest.mark.parametrize("max_concurrent_checks", [1, 3])
@in_virtual_time
async def test_never_more_checks_run_than_the_limit_allows(max_concurrent_checks: int) -> None:
    node, counter = make_node(), ConcurrencyCounter()
    probes = register_many(node, 20, lambda: ScriptedProbe(duration_s=0.2, concurrency=counter), interval="1s")
    async with make_scheduler(node, max_concurrent_checks=max_concurrent_checks):
        await asyncio.sleep(30.0)
    assert counter.peak == max_concurrent_checks
    assert sum(len(probe.started_at_s) for probe in probes) == pytest.approx(30.0 / 0.2 * max_concurrent_checks, abs=20)
    counts = [len(probe.started_at_s) for probe in probes]
    assert min(counts) > 0.8 * max(counts), "every service is checked"


@in_virtual_time
async def test_slow_checks_leave_a_quarter_of_the_slots_to_quick_ones() -> None:
    node, counter = make_node(), ConcurrencyCounter()
    probes = register_many(node, 40, lambda: ScriptedProbe(duration_s=1.0, concurrency=counter), interval="3s")
    async with make_scheduler(node, max_concurrent_checks=8):
        await asyncio.sleep(10.0)  # the first check shows that a service is slow
        counter.peak = 0
        await asyncio.sleep(100.0)
    assert counter.peak == 6
    assert all(len(probe.started_at_s) > 5 for probe in probes), "every service is checked"


@in_virtual_time
async def test_a_single_slot_is_for_slow_checks_too() -> None:
    node, counter = make_node(), ConcurrencyCounter()
    probes = register_many(node, 2, lambda: ScriptedProbe(duration_s=1.0, concurrency=counter), interval="3s")
    async with make_scheduler(node, max_concurrent_checks=1):
        await asyncio.sleep(30.0)
    assert counter.peak == 1
    assert all(len(probe.started_at_s) > 8 for probe in probes)


@in_virtual_time
async def test_any_number_of_hung_services_do_not_delay_the_others() -> None:
    node, counter = make_node(), ConcurrencyCounter()
    hung = register_many(
        node, 60, lambda: ScriptedProbe(duration_s=HUNG_S, concurrency=counter), interval="10s", timeout="3s"
    )
    quick = register_many(node, 10, lambda: ScriptedProbe(duration_s=0.05, concurrency=counter), interval="1s")
    async with make_scheduler(node, max_concurrent_checks=20):
        await asyncio.sleep(60.0)  # until the scheduler knows the hung ones
        for probe in quick:
            probe.started_at_s.clear()
        await asyncio.sleep(120.0)
    assert counter.peak == 20
    for probe in quick:
        assert len(probe.started_at_s) == 120
        assert probe.intervals_s == pytest.approx([1.0] * 119)
    assert all(len(probe.started_at_s) > 2 for probe in hung), "hung services are still checked"


@in_virtual_time
async def test_a_service_that_is_quick_again_does_not_wait_with_the_slow_ones() -> None:
    node = make_node()
    register_many(node, 60, lambda: ScriptedProbe(duration_s=HUNG_S), interval="10s", timeout="3s")
    [recovered] = register_many(node, 1, lambda: ScriptedProbe(duration_s=HUNG_S), interval="4s", timeout="3s")
    async with make_scheduler(node, max_concurrent_checks=8):
        await asyncio.sleep(300.0)
        assert max(recovered.intervals_s) > 20.0
        recovered.duration_s = 0.1
        await asyncio.sleep(60.0)
        recovered.started_at_s.clear()
        await asyncio.sleep(100.0)
    assert recovered.intervals_s == pytest.approx([4.0] * 24)


@pytest.mark.parametrize("action", ["removed", "redefined"])
@in_virtual_time
async def test_services_that_waited_for_a_slot_release_it(action: str) -> None:
    node = make_node()
    *going, staying = register_many(node, 12, lambda: ScriptedProbe(duration_s=2.0), interval="5s", timeout="3s")
    async with make_scheduler(node, max_concurrent_checks=3):
        await asyncio.sleep(60.0)
        assert max(staying.intervals_s) > 10.0, "services wait for each other"
        for number in range(len(going)):
            if action == "removed":
                node.deregister(f"svc-{number}")
            else:
                node.replace(define(f"svc-{number}", probe=ScriptedProbe(), interval="5s"))
        await asyncio.sleep(20.0)
        others = register_many(node, 1, lambda: ScriptedProbe(duration_s=2.0), interval="5s", timeout="3s")
        staying.started_at_s.clear()
        await asyncio.sleep(100.0)
    for probe in (staying, *others):
        assert probe.intervals_s == pytest.approx([5.0] * len(probe.intervals_s)), "two slots are for slow checks"
        assert len(probe.intervals_s) >= 18


@pytest.mark.parametrize("action", ["removed", "left"])
@in_virtual_time
async def test_any_number_of_services_may_be_removed_while_they_wait_for_a_slot(action: str) -> None:
    node, counter = make_node(), ConcurrencyCounter()
    register_many(
        node, 1200, lambda: ScriptedProbe(duration_s=HUNG_S, concurrency=counter), interval="10s", timeout="3s"
    )
    async with make_scheduler(node, max_concurrent_checks=4):  # more of them than calls that may be nested
        await asyncio.sleep(10.0)
        if action == "removed":
            for service, _ in node:
                node.deregister(service.id)
            [late] = register_many(node, 1, ScriptedProbe, interval="10s")
            await asyncio.sleep(25.0)
            assert late.started_at_s == pytest.approx([10.0, 20.0, 30.0], abs=2 * TIMER_RESOLUTION_S)
    assert counter.running == 0
    assert not running_checks()


@in_virtual_time
async def test_a_check_that_is_cancelled_before_its_first_step_releases_its_slot() -> None:
    node, probe = make_node(), ScriptedProbe()

    def redefine() -> None:
        node.replace(define("db-1", probe=ScriptedProbe(), interval="10s"))

    node.register("db-1", probe=ScriptedProbe(), interval="10s")
    node.register("other", probe=probe, interval="10s")
    async with make_scheduler(node, max_concurrent_checks=1):
        await asyncio.sleep(1.5)
        # In the same iteration of the loop in which the next check starts, just before it.
        asyncio.get_running_loop().call_at(math.nextafter(10.0, 0.0), redefine)
        await asyncio.sleep(20.0)
    assert probe.started_at_s == pytest.approx([1.0, 11.0, 21.0])


@in_virtual_time
async def test_a_service_that_was_slow_once_does_not_wait_behind_those_that_hang() -> None:
    node, healthy = make_node(), ScriptedProbe()
    for number in range(40):
        node.register(f"hung-{number}", probe=ScriptedProbe(duration_s=1000.0), interval="10s", timeout="3s")
    node.register("healthy", probe=healthy, interval="10s", timeout="3s")
    async with make_scheduler(node, max_concurrent_checks=16):
        await asyncio.sleep(60.0)  # until the scheduler knows the hung ones
        healthy.duration_s = 0.4
        await asyncio.sleep(10.0)
        healthy.duration_s = 0.0
        slow_at_s = healthy.started_at_s[-1]
        await asyncio.sleep(20.0)
    assert next(one for one in healthy.started_at_s if one > slow_at_s) - slow_at_s < 13.1


INTERVAL_S, TRANSITION_S, TIMEOUT_S, FALL, RISE = 10.0, 2.0, 3.0, 3, 2  # the defaults


@pytest.mark.parametrize(
    ("count", "slots"),
    [(1, MAX_CONCURRENT_CHECKS), (100, MAX_CONCURRENT_CHECKS), (1000, MAX_CONCURRENT_CHECKS), (100, 40)],
)
@in_virtual_time
async def test_any_number_of_services_that_hang_at_once_are_down_and_up_again_in_time(count: int, slots: int) -> None:
    node = make_node()
    hanging = register_many(node, count, ScriptedProbe)
    good = register_many(node, 100, lambda: ScriptedProbe(duration_s=0.01))
    rounds = math.ceil(count / slots_for_slow(slots))
    tolerance_s = JITTER * (INTERVAL_S + TRANSITION_S) + FALL * TICK_S

    async def wait_for(status: Status, limit_s: float) -> None:
        await asyncio.sleep(limit_s + tolerance_s)
        statuses = [state.status for _, state in node]
        assert set(statuses[:count]) == {status}
        assert set(statuses[count:]) == {Status.UP}

    async with ProbeScheduler(node, seeded_jitter(7), max_concurrent_checks=slots):
        await wait_for(Status.UP, INTERVAL_S)
        for probe in hanging:
            probe.duration_s = HUNG_S
        await wait_for(Status.DOWN, INTERVAL_S + FALL * TIMEOUT_S * rounds)
        late_s = TICK_S if rounds == 1 else TIMEOUT_S * rounds
        for probe in good:
            assert max(probe.intervals_s) <= INTERVAL_S * (1 + JITTER) + late_s, "the good ones are checked as before"
        await asyncio.sleep(INTERVAL_S)
        for probe in hanging:
            probe.duration_s = 0.0
        await wait_for(Status.UP, INTERVAL_S + (RISE - 1) * TRANSITION_S + TIMEOUT_S * (rounds - 1))
