"""A short run of chaos: after kills, stops, clock steps, disk errors and reloads no 200 is false, nothing is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.stress.campaigns import Reports, short_runs
from tests.stress.chaos import SCENARIOS, run_scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.wide


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reports]:
    with short_runs(tmp_path_factory.mktemp("chaos"), SCENARIOS, run_scenario, len(SCENARIOS)) as runs:
        yield runs


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_node_stays_truthful_and_loses_nothing(reports: Reports, name: str) -> None:
    report = reports[name].result()
    assert report.problems == []
    assert report.samples
