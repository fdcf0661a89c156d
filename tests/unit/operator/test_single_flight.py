"""Concurrent requests share one computation, and its result for one second."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.operator.single_flight import MAX_IN_FLIGHT, MAX_RESULTS, RESULT_TTL_S, OverloadedError, SingleFlight
from tests.support.real_time import in_real_time
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine


class Computation:
    """Counts its runs; waits until it is released."""

    def __init__(self, *, is_released: bool = True) -> None:
        self.count = 0
        self.threads: set[int] = set()
        self.release = threading.Event()
        self.started = threading.Event()
        if is_released:
            self.release.set()

    def __call__(self) -> int:
        self.started.set()
        self.release.wait(10)
        self.threads.add(threading.get_ident())
        self.count += 1
        return self.count


class Clock:
    """The clock of the loop plus an offset."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        real, self.offset_s = loop.time, 0.0
        monkeypatch.setattr(loop, "time", lambda: real() + self.offset_s)


@in_real_time
async def test_a_result_of_another_thread_is_reused_for_one_second_and_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, flights, compute = Clock(monkeypatch), SingleFlight(), Computation()
    assert [await flights.get("all", compute) for _ in range(3)] == [1, 1, 1]
    assert threading.get_ident() not in compute.threads
    assert await flights.get("other", Computation()) == 1
    clock.offset_s += RESULT_TTL_S
    assert await flights.get("all", compute) == 2
    assert [await flights.get("all", compute, version=version) for version in (1, 1, 2, 2)] == [3, 3, 4, 4]


@in_real_time
async def test_a_result_that_lasts_is_reused_until_the_version_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, flights, compute = Clock(monkeypatch), SingleFlight(lasts=True), Computation()
    assert await flights.get("all", compute, version=1) == 1
    clock.offset_s += 1000 * RESULT_TTL_S
    assert [await flights.get("all", compute, version=version) for version in (1, 2)] == [1, 2]


@in_real_time
async def test_calls_during_a_computation_wait_for_its_result_although_one_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, flights, compute = Clock(monkeypatch), SingleFlight(), Computation(is_released=False)
    cancelled, first = (asyncio.ensure_future(flights.get("all", compute)) for _ in range(2))
    await asyncio.to_thread(compute.started.wait, 10)
    cancelled.cancel()
    clock.offset_s += 10 * RESULT_TTL_S  # a running computation does not expire
    second = asyncio.ensure_future(flights.get("all", compute))
    await asyncio.sleep(0)
    compute.release.set()
    assert [await first, await second] == [1, 1]


@in_real_time
async def test_a_failed_computation_is_repeated_at_once() -> None:
    def fail() -> int:
        raise OSError

    flights = SingleFlight()
    with pytest.raises(OSError):
        await flights.get("all", fail)
    assert await flights.get("all", Computation()) == 1


class Disk:
    """Counts reads; they wait while the disk hangs."""

    def __init__(self, *, is_hanging: bool = False) -> None:
        self.queries = 0
        self.release = asyncio.Event()
        if not is_hanging:
            self.release.set()

    async def read(self) -> int:
        self.queries += 1
        number = self.queries
        await self.release.wait()
        return number


async def start_and_cancel(flights: SingleFlight, key: object, disk: Disk, version: object = None) -> None:
    """Cancel the call after its computation has started."""
    caller = asyncio.ensure_future(flights.get_async(key, disk.read, version=version))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()


@in_real_time
async def test_coroutines_are_shared_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, flights, disk = Clock(monkeypatch), SingleFlight(), Disk()
    assert await asyncio.gather(*(flights.get_async("all", disk.read) for _ in range(3))) == [1, 1, 1]
    clock.offset_s += RESULT_TTL_S
    assert await flights.get_async("all", disk.read) == 2


@pytest.mark.parametrize("is_changing", [False, True])
@in_real_time
async def test_the_number_of_computations_is_bounded_although_callers_leave(is_changing: bool) -> None:
    flights, disk = SingleFlight(), Disk(is_hanging=True)
    for number in range(MAX_IN_FLIGHT):
        await start_and_cancel(flights, *("all", disk, number) if is_changing else (number, disk))
    more = asyncio.ensure_future(flights.get_async("more", disk.read))
    await asyncio.sleep(0)
    assert more.done()
    assert isinstance(more.exception(), OverloadedError)
    assert disk.queries == MAX_IN_FLIGHT
    if not is_changing:
        joining = asyncio.ensure_future(flights.get_async(0, disk.read))
        await asyncio.sleep(0)
        disk.release.set()
        assert await joining == 1
    disk.release.set()
    while running := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(running)
    assert await flights.get_async("more", disk.read) == MAX_IN_FLIGHT + 1


@in_real_time
async def test_the_number_of_cached_results_is_bounded_and_expired_ones_free_their_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, flights, disk = Clock(monkeypatch), SingleFlight(), Disk()
    for _ in range(2):
        for number in range(MAX_RESULTS + 20):
            await flights.get_async(number, disk.read)
    assert disk.queries == MAX_RESULTS + 20 + 20
    clock.offset_s += RESULT_TTL_S
    assert await flights.get_async("new", disk.read) == await flights.get_async("new", disk.read)


@in_virtual_time
async def test_no_computation_is_left_after_the_close() -> None:
    flights, hang = SingleFlight(), asyncio.Event()

    async def short() -> str:
        await asyncio.sleep(0.5)
        return "done"

    async def endless() -> None:
        await hang.wait()

    async def outcome(key: str, make: Callable[[], Coroutine[Any, Any, Any]]) -> object:
        try:
            return await flights.get_async(key, make)
        except OverloadedError:
            return OverloadedError

    before = asyncio.all_tasks()
    callers = [asyncio.create_task(outcome("short", short)), asyncio.create_task(outcome("endless", endless))]
    gone = asyncio.create_task(flights.get_async("gone", endless))
    await asyncio.sleep(0.1)
    gone.cancel()
    await flights.close()
    assert await asyncio.gather(*callers) == ["done", OverloadedError]
    assert await outcome("later", short) is OverloadedError
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
