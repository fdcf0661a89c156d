"""The node probes within a block, or from start to stop. tests/unit/scheduler/ has the checks."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from svcnode.node import Node

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager


@pytest.fixture
def node() -> Node:
    return Node("validator-7", version="v1")


def test_a_node_probes_within_a_block(node: Node) -> None:
    async def probe() -> tuple[bool, bool]:
        async with node.probing():
            async with node.probing():
                nested = node.is_probing
            return nested, node.is_probing

    assert not node.is_probing
    assert asyncio.run(probe()) == (True, True)
    assert not node.is_probing


def test_a_node_probes_from_start_to_stop(node: Node) -> None:
    node.start()
    assert node.is_probing, "also before the thread has begun"
    node.stop()
    assert not node.is_probing


def test_a_ping_is_answered_by_the_scheduler_or_at_once_without_it(node: Node) -> None:
    async def ping() -> list[bool]:
        answered = asyncio.Event()
        node.ping_scheduler(answered.set)
        is_answered = [answered.is_set()]
        async with node.probing():
            answered.clear()
            node.ping_scheduler(answered.set)
            is_answered.append(answered.is_set())
            await answered.wait()
        return is_answered

    assert asyncio.run(ping()) == [True, False]


class FakeCompanion:
    def __init__(self, node: Node) -> None:
        self.may_start = asyncio.Event()
        self.states: list[tuple[str, bool]] = []
        self._node = node

    @asynccontextmanager
    async def running(self, workers: object = None) -> AsyncIterator[None]:
        self.states.append(("starting", self._node.is_probing))
        await self.may_start.wait()
        yield
        self.states.append(("stopping", self._node.is_probing))

    def waiting(self) -> AbstractAsyncContextManager[None]:
        raise NotImplementedError


def test_the_companion_of_a_node_runs_around_its_checks(node: Node) -> None:
    companion = node.embedded_work = FakeCompanion(node)

    async def probe() -> None:
        async with node.probing():
            assert node._running_scheduler is not None

    companion.may_start.set()
    asyncio.run(probe())
    asyncio.run(probe())
    assert companion.states == 2 * [("starting", True), ("stopping", False)]


def test_a_second_block_during_the_start_of_the_companion_starts_nothing(node: Node) -> None:
    companion = node.embedded_work = FakeCompanion(node)

    async def probe() -> None:
        async with node.probing():
            await asyncio.sleep(0)

    async def probe_twice() -> None:
        first = asyncio.create_task(probe())
        await asyncio.sleep(0)
        await probe()
        companion.may_start.set()
        await first

    asyncio.run(probe_twice())
    assert companion.states == [("starting", True), ("stopping", False)]


def test_a_companion_that_fails_leaves_the_node_startable(node: Node) -> None:
    class Failing:
        @asynccontextmanager
        async def running(self, workers: object = None) -> AsyncIterator[None]:
            if node.is_probing:
                raise ValueError("not today")
            yield

        def waiting(self) -> AbstractAsyncContextManager[None]:
            raise NotImplementedError

    async def probe() -> None:
        async with node.probing():
            pass

    node.embedded_work = Failing()
    with pytest.raises(ValueError, match="not today"):
        asyncio.run(probe())
    assert not node.is_probing
    node.embedded_work = None
    asyncio.run(probe())
