"""What the tests of several replicas share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.replica_simulation import Simulation, simulated_probes

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def simulation() -> Iterator[Simulation]:
    with simulated_probes():
        simulation = Simulation()
        yield simulation
        simulation.close()
