"""A short run of chaos: after kills, stops, clock steps, disk errors and reloads no 200 is false, nothing is lost."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.stress.chaos import SCENARIOS, run_scenario

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_node_stays_truthful_and_loses_nothing(tmp_path: Path, name: str) -> None:
    report = run_scenario(tmp_path / "node", name, SCENARIOS[name].short_size, random.Random())
    assert report.problems == []
    assert report.samples
