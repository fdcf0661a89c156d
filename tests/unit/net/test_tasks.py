"""Coroutines in a task of their own: how long they held the loop, and what becomes of those that do not hear."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.net.tasks import GuardedTask, SelfCancelledError
from svcnode.net.trace import interrupted_step, step
from tests.support.virtual_time import VirtualTimeLoop, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

HUNG_S = 3600.0


def now_s() -> float:
    return asyncio.get_running_loop().time()


def hold_up(by_s: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.clock.advance(by_s)


async def is_deaf() -> None:
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(HUNG_S)


async def is_deaf_to_all() -> None:
    """Hears neither that it is cut off nor that it is closed, but that it is forgotten after that."""
    for _ in range(4):
        with suppress(BaseException):
            await asyncio.sleep(HUNG_S)


async def cut_off(task: asyncio.Task[None], times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0.5)
        task.cancel()
    await asyncio.wait({task})


@in_virtual_time
async def test_what_it_returns_or_raises_comes_out_of_it() -> None:
    async def says() -> str:
        await asyncio.sleep(1.0)
        return "yes"

    async def fails() -> str:
        raise ValueError("no")

    assert await GuardedTask().call(says) == "yes"
    with pytest.raises(ValueError, match="no"):
        await GuardedTask().call(fails)


@in_virtual_time
async def test_the_time_that_it_held_the_loop_is_told_from_the_time_that_it_waited() -> None:
    async def holds() -> None:
        hold_up(by_s=0.5)
        await asyncio.sleep(2.0)
        hold_up(by_s=0.25)

    task = GuardedTask()
    await task.call(holds)
    assert task.loop_blocked_s == 0.75
    await task.call(lambda: asyncio.sleep(2.0))
    assert task.loop_blocked_s == 0.0


@in_virtual_time
async def test_deadlines_inside_of_it_work_as_ever() -> None:
    async def tries_thrice() -> int:
        failures = 0
        for _ in range(3):
            try:
                async with asyncio.timeout(1.0):
                    await asyncio.sleep(HUNG_S)
            except TimeoutError:
                failures += 1
        return failures

    assert await GuardedTask().call(tries_thrice) == 3
    assert now_s() == 3.0


@in_virtual_time
async def test_when_cut_off_it_cleans_up_and_says_how_far_it_got() -> None:
    cleaned_up_at_s: list[float] = []

    async def cleans_up() -> None:
        try:
            with step("exchange"):
                await asyncio.sleep(HUNG_S)
        finally:
            await asyncio.sleep(0.25)
            cleaned_up_at_s.append(now_s())

    own = GuardedTask()
    task = asyncio.create_task(own.call(cleans_up))
    await cut_off(task, times=1)
    assert cleaned_up_at_s == [0.75]
    with pytest.raises(asyncio.CancelledError) as cut:
        await task
    assert interrupted_step(cut.value) == "exchange"
    assert not own.is_busy


async def awaits_what_was_cancelled() -> None:
    background = asyncio.create_task(asyncio.sleep(HUNG_S))
    background.cancel()
    await background


async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(HUNG_S)


@pytest.mark.parametrize("work", [awaits_what_was_cancelled, cancels_itself])
@in_virtual_time
async def test_a_cancellation_of_its_own_is_told_from_being_cut_off(
    work: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    with pytest.raises(SelfCancelledError):
        await GuardedTask().call(work)


@in_virtual_time
async def test_being_cut_off_in_the_moment_of_a_cancellation_of_its_own_is_being_cut_off() -> None:
    task = asyncio.create_task(GuardedTask().call(cancels_itself))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


@in_virtual_time
async def test_one_that_does_not_hear_is_left_behind_when_told_again_and_can_be_dropped() -> None:
    own = GuardedTask()
    task = asyncio.create_task(own.call(is_deaf))
    await cut_off(task, times=2)
    assert (task.cancelled(), now_s(), own.is_busy) == (True, 1.0, True)
    own.abort()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not own.is_busy
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_one_that_hears_nothing_at_all_is_dropped_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    own = GuardedTask()
    await cut_off(asyncio.create_task(own.call(is_deaf_to_all)), times=2)
    own.abort()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not own.is_busy
    del own
    gc.collect()
    assert caplog.records == []


@in_virtual_time
async def test_one_that_was_left_behind_may_hear_it_when_told_again() -> None:
    async def hears_it_at_last() -> None:
        for _ in range(3):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(HUNG_S)

    own = GuardedTask()
    own.cancel_again()
    await cut_off(asyncio.create_task(own.call(hears_it_at_last)), times=2)
    assert own.is_busy
    own.cancel_again()
    await asyncio.sleep(0.1)
    assert not own.is_busy


def test_one_that_was_left_behind_in_a_loop_that_is_closed_keeps_no_other_from_running() -> None:
    own, loop = GuardedTask(), VirtualTimeLoop()
    loop.set_exception_handler(lambda *_: None)  # it would say that a task was pending, which is the point

    async def leave_behind() -> bool:
        await cut_off(asyncio.create_task(own.call(is_deaf)), times=2)
        return own.is_busy

    async def is_busy() -> bool:
        own.abort()
        return own.is_busy

    assert loop.run_until_complete(leave_behind())
    loop.close()
    assert not asyncio.run(is_busy())


@in_virtual_time
async def test_one_that_is_cut_off_before_its_first_step_leaves_no_complaint() -> None:
    task = asyncio.create_task(GuardedTask().call(lambda: asyncio.sleep(HUNG_S)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    del task
    gc.collect()  # a coroutine that nobody awaited would be told of here


@in_virtual_time
async def test_there_is_nothing_to_drop_where_nothing_was_left_behind() -> None:
    own = GuardedTask()
    own.abort()
    await own.call(lambda: asyncio.sleep(1.0))
    own.abort()
    assert not own.is_busy
