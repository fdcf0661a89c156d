from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.fake_nodes import FakeNode, FakeNodes

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["uvloop", pytest.param("asyncio", marks=pytest.mark.wide)])
def loop_name(request: pytest.FixtureRequest) -> str:
    """Whatever asks for it runs on each event loop that we serve on, in `make test` on uvloop only."""
    return str(request.param)


@pytest.fixture
def default_sigint() -> Iterator[None]:
    """Shells ignore SIGINT in background jobs; child processes inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def fake_nodes() -> Iterator[FakeNodes]:
    """One node for each health."""
    nodes = {
        "well": FakeNode(),
        "half": FakeNode(health=206, services={"db": "Up", "indexer": "Initializing"}),
        "ill": FakeNode(health=503, services={"db": "Down"}),
    }
    with FakeNodes(nodes) as running:
        yield running
