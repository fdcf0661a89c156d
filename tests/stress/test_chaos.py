"""A short run of chaos: after kills, stops, clock steps, disk errors and reloads no 200 is false, nothing is lost."""

from __future__ import annotations

import random
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.stress.chaos import SCENARIOS, ChaosReport, run_scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.wide

Reports = dict[str, "Future[ChaosReport]"]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reports]:
    """All scenarios at the same time: they mostly wait."""
    folder = tmp_path_factory.mktemp("chaos")
    with ThreadPoolExecutor(len(SCENARIOS)) as pool:
        yield {
            name: pool.submit(run_scenario, folder / str(number), name, scenario.short_size, random.Random())
            for number, (name, scenario) in enumerate(SCENARIOS.items())
        }


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_node_stays_truthful_and_loses_nothing(reports: Reports, name: str) -> None:
    report = reports[name].result()
    assert report.problems == []
    assert report.samples
