"""Replicas as real processes on real etcd: short forms of `python -m tests.stress.sharing`."""

from __future__ import annotations

import random
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from tests.stress.sharing import SCENARIOS, SharingReport, run_scenario

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.wide

AT_ONCE = 4  # they mostly wait


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[SharingReport]]]:
    """All scenarios, several at the same time."""
    folder = tmp_path_factory.mktemp("sharing")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {
            name: pool.submit(run_scenario, folder / str(number), name, is_short=True, rng=random.Random())
            for number, name in enumerate(SCENARIOS)
        }
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_replica_reports_what_is_not_true(runs: dict[str, Future[SharingReport]], name: str) -> None:
    report = runs[name].result()
    assert report.problems == []
    assert report.samples
