"""The timer queue, observed in virtual time through the checks that it starts and cancels."""

from __future__ import annotations

import asyncio
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svcnode.net.timers import MAX_RUN_S, TICK_S, TIMER_RESOLUTION_S, TimerQueue
from svcnode.node.scheduler import ProbeScheduler
from tests.support.scheduling import HUNG_S, ScriptedProbe, block_loop, make_node, make_scheduler, seeded_jitter
from tests.support.virtual_time import in_virtual_time, run_in_virtual_time


@in_virtual_time
async def test_a_deadline_is_not_early_if_another_timer_is_due_before_it() -> None:
    node, hung = make_node(), ScriptedProbe(duration_s=HUNG_S)
    node.register("hung", probe=hung, interval="100s", timeout=5.0045)
    scheduler = make_scheduler(node)
    async with scheduler:
        scheduler._timers.add(5.0001, lambda: None)
        await asyncio.sleep(10.0)
    assert hung.cancelled_at_s == [pytest.approx(5.0045, abs=TIMER_RESOLUTION_S)]


@in_virtual_time
async def test_other_callbacks_run_between_many_that_are_due_and_take_long() -> None:
    timers, order = TimerQueue(asyncio.get_running_loop()), list[str]()

    def take_long() -> None:
        order.append("due")
        block_loop(MAX_RUN_S * 0.4)

    for number in range(6):
        timers.add(1.0 + number * 2 * TICK_S, take_long)
    await asyncio.sleep(0.9)
    block_loop(0.5)
    while order.count("due") < 6:
        order.append("request")
        await asyncio.sleep(0)
    runs = [len(list(group)) for name, group in groupby(order) if name == "due"]
    assert runs == [3, 3]


@settings(max_examples=10)
@given(st.lists(st.floats(min_value=2.5, max_value=2.51), min_size=1, max_size=15))
def test_every_hung_check_is_cancelled_at_its_deadline(timeouts_s: list[float]) -> None:
    probes = [ScriptedProbe(duration_s=HUNG_S) for _ in timeouts_s]

    async def run_scheduler() -> None:
        node = make_node()
        for number, (probe, timeout_s) in enumerate(zip(probes, timeouts_s, strict=True)):
            node.register(f"svc-{number}", probe=probe, interval=3.0, timeout=timeout_s)
        async with ProbeScheduler(node, seeded_jitter(7)):
            await asyncio.sleep(20.0)
            for probe, timeout_s in zip(probes, timeouts_s, strict=True):
                durations_s = [
                    end - begin for begin, end in zip(probe.started_at_s, probe.cancelled_at_s, strict=False)
                ]
                assert len(durations_s) >= 5
                assert min(durations_s) >= timeout_s - 2 * TIMER_RESOLUTION_S
                assert max(durations_s) <= timeout_s + TICK_S + 2 * TIMER_RESOLUTION_S

    run_in_virtual_time(run_scheduler())


@in_virtual_time
async def test_a_callback_that_raises_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []
    timers = TimerQueue(asyncio.get_running_loop())
    timers.add(1.0, lambda: calls.append("first"))
    timers.add(1.0, lambda: calls.remove("missing"))
    timers.add(1.0, lambda: calls.append("second"))
    timers.add(2.0, lambda: calls.append("third"))
    await asyncio.sleep(3.0)
    assert calls == ["first", "second", "third"]
    assert [vars(record)["event"] for record in caplog.records] == ["callback_failed"]


@in_virtual_time
async def test_a_cancelled_callback_does_not_run_and_wakes_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    timers = TimerQueue(asyncio.get_running_loop())
    first, second = (lambda: calls.append("first")), (lambda: calls.append("second"))
    for at_s in (1.0, 2.0, 3.0):
        timers.add(at_s, first)
    timers.add(2.0, second)
    timers.cancel(1.0, first)  # the next one
    timers.cancel(2.0, first)  # one of two
    timers.cancel(3.0, first)  # a later one
    timers.cancel(3.0, first)  # not added any more
    woken_at_s = wake_times(timers, monkeypatch)
    timers.add(4.0, first)
    await asyncio.sleep(10.0)
    assert calls == ["second", "first"]
    assert woken_at_s == [2.0, 4.0]


def wake_times(timers: TimerQueue, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The times at which the queue wakes the loop up from now on."""
    loop, times_s = asyncio.get_running_loop(), list[float]()
    run_due = timers._run_due

    def record_and_run() -> None:
        times_s.append(loop.time())
        run_due()

    monkeypatch.setattr(timers, "_run_due", record_and_run)
    timers._set_next_timer()
    return times_s


@in_virtual_time
async def test_a_check_that_has_ended_leaves_no_timer_for_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    node, probe = make_node(), ScriptedProbe(duration_s=0.01)
    node.register("db-1", probe=probe, interval="10s", timeout="2500ms")
    async with make_scheduler(node) as scheduler:
        woken_at_s = wake_times(scheduler._timers, monkeypatch)
        await asyncio.sleep(60.05)
    started_s = set(map(round, probe.started_at_s))
    assert len(started_s) == 7
    assert {at_s for at_s in woken_at_s if round(at_s, 3) % 1.0} == set(), "only whole seconds, as the checks"
    assert len(woken_at_s) <= 70
