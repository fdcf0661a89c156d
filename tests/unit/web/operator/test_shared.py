"""What takes its time is made once for all who ask within a second, and off the loop."""

from __future__ import annotations

import asyncio
import threading

import pytest

from svcnode.web.operator.shared import KEPT_S, Shared


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
        clock, shared, make = Clock(monkeypatch), Shared(), Maker()
        assert [await shared.get("all", make) for _ in range(3)] == [1, 1, 1]
        clock.added_s += KEPT_S
        assert await shared.get("all", make) == 2

    asyncio.run(story())


def test_it_is_made_on_another_thread() -> None:
    make = Maker()
    asyncio.run(Shared().get("all", make))
    assert threading.get_ident() not in make.threads


def test_those_who_ask_while_it_is_made_wait_for_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        clock, shared, make = Clock(monkeypatch), Shared(), Maker(at_once=False)
        first = asyncio.ensure_future(shared.get("all", make))
        await asyncio.to_thread(make.begun.wait, 10)
        clock.added_s += 10 * KEPT_S  # however long that takes
        second = asyncio.ensure_future(shared.get("all", make))
        await asyncio.sleep(0)
        make.may.set()
        assert [await first, await second] == [1, 1]

    asyncio.run(story())


def test_different_things_are_made_each_for_itself() -> None:
    async def story() -> None:
        shared = Shared()
        assert await shared.get("one", Maker()) == await shared.get("other", Maker()) == 1

    asyncio.run(story())


def test_one_who_leaves_does_not_end_it_for_the_others() -> None:
    async def story() -> None:
        shared, make = Shared(), Maker(at_once=False)
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
        shared = Shared()
        with pytest.raises(OSError, match="not now"):
            await shared.get("all", fail)
        assert await shared.get("all", Maker()) == 1

    asyncio.run(story())


def test_another_version_is_made_at_once() -> None:
    async def story() -> None:
        shared, make = Shared(), Maker()
        assert [await shared.get("all", make, version=version) for version in (1, 1, 2, 2)] == [1, 1, 2, 2]

    asyncio.run(story())
