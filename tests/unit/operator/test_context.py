from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import pytest

from svcnode.operator.context import LAG_SAMPLE_INTERVAL_S, LAG_WINDOW_S, LoopLagMeter, ProcessStats
from tests.support.virtual_time import VirtualClock, VirtualTimeLoop, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def virtual_clock() -> VirtualClock:
    return cast("VirtualTimeLoop", asyncio.get_running_loop()).clock


@asynccontextmanager
async def measured_lag() -> AsyncIterator[ProcessStats]:
    stats = ProcessStats(0.0, 0.0)
    with LoopLagMeter(stats, virtual_clock()).running():
        yield stats


@in_virtual_time
async def test_blocking_the_loop_makes_it_late() -> None:
    async with measured_lag() as stats:
        await asyncio.sleep(3 * LAG_WINDOW_S)
        assert stats.loop_lag_s == pytest.approx(0, abs=1e-6)
        await asyncio.sleep(LAG_SAMPLE_INTERVAL_S / 2)
        virtual_clock().advance(2.0)
        await asyncio.sleep(LAG_SAMPLE_INTERVAL_S)
        assert stats.loop_lag_s == pytest.approx(2.0 - LAG_SAMPLE_INTERVAL_S / 2)


@in_virtual_time
async def test_the_maximum_is_kept_for_one_window_and_dropped_after_two() -> None:
    async with measured_lag() as stats:
        await asyncio.sleep(LAG_WINDOW_S / 2)
        virtual_clock().advance(3)
        await asyncio.sleep(LAG_SAMPLE_INTERVAL_S)
        virtual_clock().advance(2)
        await asyncio.sleep(LAG_WINDOW_S)
        assert stats.loop_lag_s > 1
        await asyncio.sleep(LAG_WINDOW_S)
        assert stats.loop_lag_s < 0.1


@in_virtual_time
async def test_the_measurement_ends_with_its_block() -> None:
    async with measured_lag() as stats:
        await asyncio.sleep(1)
    virtual_clock().advance(30)
    await asyncio.sleep(LAG_SAMPLE_INTERVAL_S)
    assert stats.loop_lag_s < 1
