from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.fleets import Fleet, FleetNode
from tests.support.wire import LOOPS

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=list(LOOPS))
def loop_name(request: pytest.FixtureRequest) -> str:
    """Whatever asks for it runs once on every event loop that we serve on."""
    return str(request.param)


@pytest.fixture
def heeding_ctrl_c() -> Iterator[None]:
    """Whoever runs the tests in the background of a shell runs them, and what they start, deaf to it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """One node for each health."""
    nodes = {
        "well": FleetNode(),
        "half": FleetNode(health=206, services={"db": "Up", "indexer": "Initializing"}),
        "ill": FleetNode(health=503, services={"db": "Down"}),
    }
    with Fleet(nodes) as running:
        yield running
