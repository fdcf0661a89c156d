"""A pytest plugin, loaded by its entry point: a node whose time a test advances.

def test_a_silent_worker_is_down(svcnode_node, svcnode_clock):
    svcnode_node.register("worker", ttl="30s").up()
    svcnode_clock.advance("31s")
    assert_status(svcnode_node, "worker", Status.DOWN)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from svcnode.agent.embed.node import Node
from svcnode.testing import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def svcnode_clock() -> FakeClock:
    """The clock of `svcnode_node`."""
    return FakeClock()


@pytest.fixture
def svcnode_node(svcnode_clock: FakeClock) -> Iterator[Node]:
    """A node without services, on a fake clock. It does not probe; a test that starts it must also stop it."""
    node = Node("under-test", version="v0", clock=svcnode_clock)
    yield node
    if node.is_probing:
        node.stop()
        pytest.fail("svcnode_node is still probing after the test; call svcnode_node.stop()", pytrace=False)
