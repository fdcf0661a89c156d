"""The node probes within a block, or from start to stop. tests/unit/scheduler/ has the checks."""

from __future__ import annotations

import asyncio

import pytest

from svcnode.node import Node


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
