"""Whether we keep up: when a deadline is over that was due while something else kept the loop busy."""

from __future__ import annotations

import asyncio

import pytest

from svcnode.terminal.loop_lag import GRACE_S, LAG_THRESHOLD_S, MAX_EXTENSION_S, TICK_S, LoopLagMonitor
from tests.support.virtual_time import VirtualTimeLoop, in_virtual_time


def hold_up(by_s: float) -> None:
    """As if the loop had been busy with one thing for so long."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.clock.advance(by_s)


async def waited_s(due_s: float) -> float:
    """How long a task is waited for that never ends."""
    task = asyncio.create_task(asyncio.Event().wait())
    with LoopLagMonitor() as pulse:
        await pulse.wait([task], due_s)
    task.cancel()
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_a_deadline_is_kept_while_the_loop_keeps_up() -> None:
    assert await waited_s(3.0) == pytest.approx(3.0)


@in_virtual_time
async def test_a_delay_long_before_the_deadline_does_not_move_it() -> None:
    asyncio.get_running_loop().call_later(1.0, hold_up, 1.0)
    assert await waited_s(3.0) == pytest.approx(3.0)


@in_virtual_time
async def test_a_deadline_that_passed_while_the_loop_was_held_up_is_put_off() -> None:
    asyncio.get_running_loop().call_later(2.9, hold_up, 1.0)
    assert await waited_s(3.0) == pytest.approx(3.9 + GRACE_S, abs=TICK_S)


@in_virtual_time
async def test_it_is_put_off_for_as_long_as_the_loop_does_not_keep_up() -> None:
    for number in range(10):
        asyncio.get_running_loop().call_later(2.5 + 0.2 * number, hold_up, LAG_THRESHOLD_S + TICK_S)
    assert await waited_s(3.0) == pytest.approx(4.3 + LAG_THRESHOLD_S + TICK_S + GRACE_S, abs=2 * TICK_S)


@in_virtual_time
async def test_it_is_not_put_off_for_ever() -> None:
    for number in range(1000):
        asyncio.get_running_loop().call_later(0.15 * number, hold_up, LAG_THRESHOLD_S + TICK_S)
    assert await waited_s(3.0) == pytest.approx(3.0 + MAX_EXTENSION_S, abs=0.2)


@in_virtual_time
async def test_what_is_done_is_not_waited_for() -> None:
    with LoopLagMonitor() as pulse:
        await pulse.wait([asyncio.create_task(asyncio.sleep(number)) for number in range(3)], 10.0)
    assert asyncio.get_running_loop().time() == 2.0
