"""Replicas as real processes on real etcd: short forms of `python -m tests.stress.sharing`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.stress.campaigns import Reports, short_runs
from tests.stress.sharing import SCENARIOS, run_scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.wide


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reports]:
    with short_runs(tmp_path_factory.mktemp("sharing"), SCENARIOS, run_scenario, at_once=4) as runs:
        yield runs


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_replica_reports_what_is_not_true(reports: Reports, name: str) -> None:
    report = reports[name].result()
    assert report.problems == []
    assert report.samples
