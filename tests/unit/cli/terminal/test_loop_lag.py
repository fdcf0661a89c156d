"""Deadlines while our own loop lags, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from svcnode.cli.terminal.loop_lag import GRACE_S, LAG_THRESHOLD_S, MAX_EXTENSION_S, TICK_S, LoopLagMonitor
from tests.support.scheduling import block_loop
from tests.support.virtual_time import in_virtual_time


async def wait_ended_s(due_s: float) -> float:
    """When the wait for a task that never ends is over."""
    task = asyncio.create_task(asyncio.Event().wait())
    with LoopLagMonitor() as lag_monitor:
        await lag_monitor.wait([task], due_s)
    task.cancel()
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize(
    ("block_at_s", "ended_s"),
    [(99.0, 3.0), (1.0, 3.0), (2.9, 3.9 + GRACE_S)],
    ids=["without lag", "lag long before the deadline", "a deadline that passed during lag is extended"],
)
@in_virtual_time
async def test_a_deadline_is_extended_only_by_lag_at_its_time(block_at_s: float, ended_s: float) -> None:
    asyncio.get_running_loop().call_later(block_at_s, block_loop, 1.0)
    assert await wait_ended_s(3.0) == pytest.approx(ended_s, abs=TICK_S)


@in_virtual_time
async def test_a_deadline_is_extended_as_long_as_the_loop_lags() -> None:
    for number in range(10):
        asyncio.get_running_loop().call_later(2.5 + 0.2 * number, block_loop, LAG_THRESHOLD_S + TICK_S)
    assert await wait_ended_s(3.0) == pytest.approx(4.3 + LAG_THRESHOLD_S + TICK_S + GRACE_S, abs=2 * TICK_S)


@in_virtual_time
async def test_the_extension_is_limited() -> None:
    for number in range(1000):
        asyncio.get_running_loop().call_later(0.15 * number, block_loop, LAG_THRESHOLD_S + TICK_S)
    assert await wait_ended_s(3.0) == pytest.approx(3.0 + MAX_EXTENSION_S, abs=0.2)


@in_virtual_time
async def test_the_wait_ends_when_all_tasks_are_done() -> None:
    with LoopLagMonitor() as lag_monitor:
        await lag_monitor.wait([asyncio.create_task(asyncio.sleep(number)) for number in range(3)], 10.0)
    assert asyncio.get_running_loop().time() == 2.0
