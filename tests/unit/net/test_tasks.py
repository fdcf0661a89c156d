"""GuardedTask: how long a coroutine blocks the loop, and coroutines that ignore their cancellation."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.net.tasks import GuardedTask, SelfCancelledError, log_failure
from svcnode.net.trace import interrupted_step, step
from tests.support.scheduling import HUNG_S, block_loop, now_s
from tests.support.virtual_time import VirtualTimeLoop, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


async def wait_for_background_task(work: Coroutine[Any, Any, object], *, is_cancelled: bool = False) -> None:
    task = asyncio.create_task(work, name="restore")
    task.add_done_callback(log_failure)
    await asyncio.sleep(0)
    if is_cancelled:
        task.cancel()
    await asyncio.wait({task})


async def fails() -> None:
    await asyncio.sleep(0)
    raise MemoryError


def test_only_a_background_task_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(wait_for_background_task(asyncio.sleep(0)))
    asyncio.run(wait_for_background_task(asyncio.sleep(HUNG_S), is_cancelled=True))
    asyncio.run(wait_for_background_task(fails()))
    [record] = [record for record in caplog.records if record.name == "svcnode"]  # asyncio logs it too, much later
    assert record.exc_info is not None
    assert record.exc_info[0] is MemoryError


async def ignores_cancellation() -> None:
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(HUNG_S)


async def ignores_close() -> None:
    """Ignores cancellation and GeneratorExit, but ends when it is collected."""
    for _ in range(4):
        with suppress(BaseException):
            await asyncio.sleep(HUNG_S)


async def cancel(task: asyncio.Task[None], times: int) -> None:
    for _ in range(times):
        await asyncio.sleep(0.5)
        task.cancel()
    await asyncio.wait({task})


@in_virtual_time
async def test_the_result_or_the_error_of_the_coroutine_is_passed_on() -> None:
    async def returns() -> str:
        await asyncio.sleep(1.0)
        return "yes"

    async def fails() -> str:
        raise ValueError("no")

    assert await GuardedTask().call(returns) == "yes"
    with pytest.raises(ValueError):
        await GuardedTask().call(fails)


@in_virtual_time
async def test_only_blocking_time_is_counted_not_waiting_time() -> None:
    async def blocks() -> None:
        block_loop(0.5)
        await asyncio.sleep(2.0)
        block_loop(0.25)

    task = GuardedTask()
    await task.call(blocks)
    assert task.loop_blocked_s == 0.75
    await task.call(lambda: asyncio.sleep(2.0))
    assert task.loop_blocked_s == 0.0


@in_virtual_time
async def test_a_cancelled_coroutine_cleans_up_and_its_step_is_known() -> None:
    cleaned_up_at_s: list[float] = []

    async def cleans_up() -> None:
        try:
            with step("exchange"):
                await asyncio.sleep(HUNG_S)
        finally:
            await asyncio.sleep(0.25)
            cleaned_up_at_s.append(now_s())

    guarded = GuardedTask()
    task = asyncio.create_task(guarded.call(cleans_up))
    await cancel(task, times=1)
    assert cleaned_up_at_s == [0.75]
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert interrupted_step(caught.value) == "exchange"
    assert not guarded.is_busy


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
async def test_a_cancellation_from_inside_is_a_self_cancelled_error(
    work: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    with pytest.raises(SelfCancelledError):
        await GuardedTask().call(work)


@in_virtual_time
async def test_a_cancellation_by_the_caller_wins_over_one_from_inside() -> None:
    task = asyncio.create_task(GuardedTask().call(cancels_itself))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()


@in_virtual_time
async def test_a_coroutine_that_ignores_two_cancellations_is_abandoned_and_can_be_aborted() -> None:
    guarded = GuardedTask()
    task = asyncio.create_task(guarded.call(ignores_cancellation))
    await cancel(task, times=2)
    assert (task.cancelled(), now_s(), guarded.is_busy) == (True, 1.0, True)
    guarded.abort()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not guarded.is_busy
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_aborting_a_coroutine_that_ignores_close_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    guarded = GuardedTask()
    await cancel(asyncio.create_task(guarded.call(ignores_close)), times=2)
    guarded.abort()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert not guarded.is_busy
    del guarded
    gc.collect()
    assert caplog.records == []


@in_virtual_time
async def test_an_abandoned_coroutine_may_end_at_the_next_cancellation() -> None:
    async def ends_at_the_third_cancellation() -> None:
        for _ in range(3):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(HUNG_S)

    guarded = GuardedTask()
    guarded.cancel_again()
    await cancel(asyncio.create_task(guarded.call(ends_at_the_third_cancellation)), times=2)
    assert guarded.is_busy
    guarded.cancel_again()
    await asyncio.sleep(0.1)
    assert not guarded.is_busy


def test_an_abandoned_coroutine_of_a_closed_loop_does_not_keep_the_task_busy() -> None:
    guarded, loop = GuardedTask(), VirtualTimeLoop()
    loop.set_exception_handler(lambda *_: None)  # asyncio reports the pending task, which is intended here

    async def abandon() -> bool:
        await cancel(asyncio.create_task(guarded.call(ignores_cancellation)), times=2)
        return guarded.is_busy

    async def is_busy() -> bool:
        guarded.abort()
        return guarded.is_busy

    assert loop.run_until_complete(abandon())
    loop.close()
    assert not asyncio.run(is_busy())


@in_virtual_time
async def test_a_coroutine_that_is_cancelled_before_its_first_step_causes_no_warning() -> None:
    task = asyncio.create_task(GuardedTask().call(lambda: asyncio.sleep(HUNG_S)))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    del task
    gc.collect()  # Python would warn here about a coroutine that was never awaited
