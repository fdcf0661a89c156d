"""What takes its time is made once for all who ask within a second, and off the loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from svcnode.operator.single_flight import MAX_IN_FLIGHT, MAX_RESULTS, RESULT_TTL_S, OverloadedError, SingleFlight


class Maker:
    """Counts how often it is asked to make something; makes it when it may."""

    def __init__(self, *, at_once: bool = True) -> None:
        self.made = 0
        self.threads: set[int] = set()
        self.may = threading.Event()
        self.begun = threading.Event()
        if at_once:
            self.may.set()

    def __call__(self) -> int:
        self.begun.set()
        self.may.wait(10)
        self.threads.add(threading.get_ident())
        self.made += 1
        return self.made


class Clock:
    """The loop's own, to which a test may add."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        loop = asyncio.get_running_loop()
        real, self.added_s = loop.time, 0.0
        monkeypatch.setattr(loop, "time", lambda: real() + self.added_s)


def test_it_is_made_once_for_those_who_ask_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        clock, shared, make = Clock(monkeypatch), SingleFlight(), Maker()
        assert [await shared.get("all", make) for _ in range(3)] == [1, 1, 1]
        clock.added_s += RESULT_TTL_S
        assert await shared.get("all", make) == 2

    asyncio.run(story())


def test_it_is_made_on_another_thread() -> None:
    make = Maker()
    asyncio.run(SingleFlight().get("all", make))
    assert threading.get_ident() not in make.threads


def test_those_who_ask_while_it_is_made_wait_for_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        clock, shared, make = Clock(monkeypatch), SingleFlight(), Maker(at_once=False)
        first = asyncio.ensure_future(shared.get("all", make))
        await asyncio.to_thread(make.begun.wait, 10)
        clock.added_s += 10 * RESULT_TTL_S  # however long that takes
        second = asyncio.ensure_future(shared.get("all", make))
        await asyncio.sleep(0)
        make.may.set()
        assert [await first, await second] == [1, 1]

    asyncio.run(story())


def test_different_things_are_made_each_for_itself() -> None:
    async def story() -> None:
        shared = SingleFlight()
        assert await shared.get("one", Maker()) == await shared.get("other", Maker()) == 1

    asyncio.run(story())


def test_one_who_leaves_does_not_end_it_for_the_others() -> None:
    async def story() -> None:
        shared, make = SingleFlight(), Maker(at_once=False)
        leaving = asyncio.ensure_future(shared.get("all", make))
        staying = asyncio.ensure_future(shared.get("all", make))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.sleep(0)
        make.may.set()
        assert await staying == 1

    asyncio.run(story())


def test_what_failed_is_tried_anew_at_once() -> None:
    def fail() -> int:
        raise OSError("not now")

    async def story() -> None:
        shared = SingleFlight()
        with pytest.raises(OSError, match="not now"):
            await shared.get("all", fail)
        assert await shared.get("all", Maker()) == 1

    asyncio.run(story())


def test_another_version_is_made_at_once() -> None:
    async def story() -> None:
        shared, make = SingleFlight(), Maker()
        assert [await shared.get("all", make, version=version) for version in (1, 1, 2, 2)] == [1, 1, 2, 2]

    asyncio.run(story())


# ---- what is awaited, and its bounds


class Disk:
    """Reads when it may, and counts how often it is asked to."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.queries = 0
        self.may = asyncio.Event()
        if not hangs:
            self.may.set()

    async def read(self) -> int:
        self.queries += 1
        number = self.queries
        await self.may.wait()
        return number


async def leave_soon(shared: SingleFlight, key: object, disk: Disk, version: object = None) -> None:
    """Ask, wait until it is under way, and give up."""
    visitor = asyncio.ensure_future(shared.get_async(key, disk.read, version=version))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    visitor.cancel()
    await asyncio.wait([visitor])
    assert visitor.cancelled()


def test_what_is_awaited_is_shared_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        clock, shared, disk = Clock(monkeypatch), SingleFlight(), Disk()
        assert await asyncio.gather(*(shared.get_async("all", disk.read) for _ in range(3))) == [1, 1, 1]
        clock.added_s += RESULT_TTL_S
        assert await shared.get_async("all", disk.read) == 2

    asyncio.run(story())


@pytest.mark.parametrize("is_changing", [False, True])
def test_while_a_disk_hangs_only_so_much_waits_for_it_however_many_have_come_and_left(is_changing: bool) -> None:
    async def story() -> None:
        shared, disk = SingleFlight(), Disk(hangs=True)
        for number in range(MAX_IN_FLIGHT):
            await leave_soon(shared, *("all", disk, number) if is_changing else (number, disk))
        more = asyncio.ensure_future(shared.get_async("more", disk.read))
        await asyncio.sleep(0)
        assert more.done(), "and does not wait as well"
        assert isinstance(more.exception(), OverloadedError)
        assert disk.queries == MAX_IN_FLIGHT
        disk.may.set()

    asyncio.run(story())


def test_who_asks_for_what_is_under_way_waits_with_the_others_in_any_crowd() -> None:
    async def story() -> None:
        shared, disk = SingleFlight(), Disk(hangs=True)
        for number in range(MAX_IN_FLIGHT):
            await leave_soon(shared, number, disk)
        joining = asyncio.ensure_future(shared.get_async(0, disk.read))
        await asyncio.sleep(0)
        disk.may.set()
        assert await joining == 1

    asyncio.run(story())


def test_when_the_disk_is_well_again_so_are_the_answers() -> None:
    async def story() -> None:
        shared, disk = SingleFlight(), Disk(hangs=True)
        for number in range(MAX_IN_FLIGHT):
            await leave_soon(shared, number, disk)
        disk.may.set()
        await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()})
        assert await shared.get_async("more", disk.read) == MAX_IN_FLIGHT + 1

    asyncio.run(story())


def test_however_many_different_things_are_asked_for_few_are_kept() -> None:
    async def story() -> None:
        shared, disk = SingleFlight(), Disk()
        for _ in range(2):
            for number in range(MAX_RESULTS + 20):
                await shared.get_async(number, disk.read)
        assert disk.queries == MAX_RESULTS + 20 + 20

    asyncio.run(story())


def test_what_is_kept_makes_room_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        clock, shared, disk = Clock(monkeypatch), SingleFlight(), Disk()
        for number in range(MAX_RESULTS):
            await shared.get_async(number, disk.read)
        clock.added_s += RESULT_TTL_S
        assert await shared.get_async("new", disk.read) == await shared.get_async("new", disk.read)

    asyncio.run(story())
