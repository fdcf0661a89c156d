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


class Runs:
    """All scenarios, several at the same time."""

    def __init__(self, runs: dict[str, Future[SharingReport]]) -> None:
        self._runs = runs

    def verify(self, name: str) -> None:
        report = self._runs[name].result()
        assert report.problems == []
        assert report.samples


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("sharing")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield Runs(
            {
                name: pool.submit(run_scenario, folder / str(number), name, is_short=True, rng=random.Random())
                for number, name in enumerate(SCENARIOS)
            }
        )
        pool.shutdown(cancel_futures=True)


def test_all_replicas_show_each_change_and_their_lists_are_identical(runs: Runs) -> None:
    runs.verify("changes")


def test_services_of_a_killed_replica_are_checked_by_others_and_none_is_up_past_its_evidence(runs: Runs) -> None:
    runs.verify("kills")


def test_a_replica_that_was_stopped_for_longer_than_its_lease_trusts_nothing_from_before(runs: Runs) -> None:
    runs.verify("SIGSTOP")


def test_replicas_whose_clocks_differ_by_hours_agree(runs: Runs) -> None:
    runs.verify("clocks")


def test_the_loss_and_the_restore_of_etcd_lose_no_service_and_fail_no_request(runs: Runs) -> None:
    runs.verify("etcd members")


def test_a_compacted_a_full_and_a_slow_etcd_need_no_restart(runs: Runs) -> None:
    runs.verify("etcd faults")


def test_wrong_credentials_and_withdrawn_permissions_need_no_restart(runs: Runs) -> None:
    runs.verify("etcd users")


def test_the_services_of_a_replica_that_is_cut_off_from_etcd_are_checked_by_others(runs: Runs) -> None:
    runs.verify("cut from etcd")


def test_the_majority_outvotes_a_replica_that_is_cut_off_from_the_backends(runs: Runs) -> None:
    runs.verify("cut from backends")
