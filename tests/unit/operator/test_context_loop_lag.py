from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import pytest

from svcnode.operator.context import LAG_SAMPLE_INTERVAL_S, LAG_WINDOW_S, ProcessStats, measure_loop_lag
from tests.support.virtual_time import VirtualTimeLoop, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def measured() -> AsyncIterator[ProcessStats]:
    vitals = ProcessStats()
    measuring = asyncio.create_task(measure_loop_lag(vitals, _loop().clock))
    yield vitals
    measuring.cancel()


def _loop() -> VirtualTimeLoop:
    return cast("VirtualTimeLoop", asyncio.get_running_loop())


def hold_the_loop(for_s: float) -> None:
    """As somebody does who works on it for that long."""
    _loop().clock.advance(for_s)


@in_virtual_time
async def test_a_loop_that_nobody_holds_is_not_late() -> None:
    async with measured() as vitals:
        await asyncio.sleep(3 * LAG_WINDOW_S)
        assert vitals.loop_lag_s == pytest.approx(0, abs=1e-6)


@in_virtual_time
async def test_who_holds_the_loop_makes_it_late() -> None:
    async with measured() as vitals:
        await asyncio.sleep(LAG_SAMPLE_INTERVAL_S / 2)
        hold_the_loop(0.5)
        await asyncio.sleep(LAG_SAMPLE_INTERVAL_S)
        assert vitals.loop_lag_s == pytest.approx(0.5 - LAG_SAMPLE_INTERVAL_S / 2)


@in_virtual_time
async def test_the_worst_is_remembered_for_a_minute_and_forgotten_after_two() -> None:
    async with measured() as vitals:
        await asyncio.sleep(LAG_WINDOW_S / 2)
        hold_the_loop(2)
        await asyncio.sleep(LAG_SAMPLE_INTERVAL_S)
        hold_the_loop(1)
        await asyncio.sleep(LAG_WINDOW_S)
        assert vitals.loop_lag_s > 1
        await asyncio.sleep(LAG_WINDOW_S)
        assert vitals.loop_lag_s < 0.1


@in_virtual_time
async def test_it_ends_when_it_is_told_to() -> None:
    measuring = asyncio.create_task(measure_loop_lag(ProcessStats(), _loop().clock))
    await asyncio.sleep(1)
    measuring.cancel()
    with pytest.raises(asyncio.CancelledError):
        await measuring
