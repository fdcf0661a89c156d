"""Checks run within a block, or from start to stop. scheduler/ has the checks themselves."""

from __future__ import annotations

import asyncio
import resource
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from svcnode.node.checks import Checks
from tests.support.nodes import make_node
from tests.support.scheduling import ConcurrencyCounter, ScriptedProbe, register_many
from tests.support.virtual_time import run_in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
def checks() -> Checks:
    return Checks(make_node())


def test_checks_run_within_a_block(checks: Checks) -> None:
    async def probe() -> tuple[bool, bool]:
        async with checks.running():
            async with checks.running():
                nested = checks.are_running
            return nested, checks.are_running

    assert not checks.are_running
    assert asyncio.run(probe()) == (True, True)
    assert not checks.are_running


def test_checks_run_from_start_to_stop(checks: Checks) -> None:
    checks.start()
    assert checks.are_running, "also before the thread has begun"
    checks.stop()
    assert not checks.are_running


def test_a_ping_is_answered_only_by_a_scheduler_that_runs(checks: Checks) -> None:
    async def ping() -> list[bool]:
        answered = asyncio.Event()
        is_running = [checks.ping(answered.set)]
        async with checks.running():
            is_running.append(checks.ping(answered.set))
            assert not answered.is_set(), "it does not answer itself"
            await answered.wait()
        answered.clear()
        is_running.append(checks.ping(answered.set))
        await asyncio.sleep(0.01)
        assert not answered.is_set()
        return is_running

    assert asyncio.run(ping()) == [False, True, False]


@pytest.mark.parametrize(("limit", "most"), [(8, 4), (1, 1)])
def test_checks_leave_half_of_the_file_descriptors_to_the_program(
    monkeypatch: pytest.MonkeyPatch, limit: int, most: int
) -> None:
    node, counter = make_node(), ConcurrencyCounter()
    checks = Checks(node)
    register_many(node, 20, lambda: ScriptedProbe(duration_s=0.2, concurrency=counter), interval="1s")

    async def probe() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(resource, "getrlimit", lambda _: (limit, limit))
            running = checks.running()
            await running.__aenter__()
        await asyncio.sleep(5)
        await running.__aexit__(None, None, None)

    run_in_virtual_time(probe())
    assert counter.peak == most


class FakeHistory:
    def __init__(self, checks: Checks) -> None:
        self.may_start = asyncio.Event()
        self.states: list[tuple[str, bool]] = []
        self._checks = checks
        checks.while_running = self._running

    @asynccontextmanager
    async def _running(self, workers: object) -> AsyncIterator[None]:
        self.states.append(("starting", self._checks.are_running))
        await self.may_start.wait()
        yield
        self.states.append(("stopping", self._checks.are_running))


def test_what_runs_with_the_checks_runs_around_them(checks: Checks) -> None:
    history = FakeHistory(checks)

    async def probe() -> None:
        async with checks.running():
            assert checks._running_scheduler is not None

    history.may_start.set()
    asyncio.run(probe())
    asyncio.run(probe())
    assert history.states == 2 * [("starting", True), ("stopping", False)]


def test_a_second_block_during_the_start_of_what_runs_with_the_checks_starts_nothing(checks: Checks) -> None:
    history = FakeHistory(checks)

    async def probe() -> None:
        async with checks.running():
            await asyncio.sleep(0)

    async def probe_twice() -> None:
        first = asyncio.create_task(probe())
        await asyncio.sleep(0)
        await probe()
        history.may_start.set()
        await first

    asyncio.run(probe_twice())
    assert history.states == [("starting", True), ("stopping", False)]


def test_a_failure_of_what_runs_with_the_checks_leaves_them_startable(checks: Checks) -> None:
    @asynccontextmanager
    async def failing(workers: object) -> AsyncIterator[None]:
        if checks.are_running:
            raise ValueError("not today")
        yield

    async def run() -> None:
        async with checks.running():
            pass

    checks.while_running, usual = failing, checks.while_running
    with pytest.raises(ValueError, match="not today"):
        asyncio.run(run())
    assert not checks.are_running
    checks.while_running = usual
    asyncio.run(run())
