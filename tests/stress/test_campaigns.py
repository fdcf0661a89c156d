"""Short runs of the campaigns that the other files here do not run. Times and slopes are not judged."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from tests.stress import (
    alerts,
    control_kills,
    footprint,
    history_kills,
    hung,
    memory_limits,
    reload,
    scale,
    sharing_model,
    soak,
)
from tests.stress.campaigns import MIB
from tests.stress.memory_limits import Limit

pytestmark = pytest.mark.wide


def test_no_acknowledged_transition_is_lost_if_the_process_is_killed(tmp_path: Path) -> None:
    report = history_kills.run_campaign(tmp_path / "history.db", kills=5, acknowledged=1000, rng=random.Random())
    assert report.errors == []
    assert report.lost == set()
    assert report.kills >= 5
    assert len(report.acknowledged) >= 1000


def test_nothing_acknowledged_is_lost_if_the_node_is_killed(tmp_path: Path) -> None:
    report = control_kills.run_campaign(tmp_path, kills=10, rng=random.Random())
    assert report.errors == []
    assert report.kills == 10
    assert report.acknowledged > 0


def test_alertmanager_shows_what_the_node_has_reported(tmp_path: Path) -> None:
    campaign = alerts.Campaign(tmp_path, random.Random())
    campaign.run(30.0)
    assert campaign.report.problems == []
    assert campaign.report.samples > 0


def test_services_that_hang_at_once_wait_for_nothing_and_disturb_no_others(tmp_path: Path) -> None:
    times = hung.run_campaign(tmp_path, count=1000, good=100, interval_s=5.0, timeout_s=3.0)
    assert times.most_open > 800, "each has a check of its own"
    assert times.disturbed == 0


def test_a_node_that_reloads_answers_in_between(tmp_path: Path) -> None:
    with reload.backend_process() as backend:
        measured = list(reload.measure(tmp_path / "node", Path("src"), services=200, reloads=2, backend=backend))
    assert len(measured) == 2
    assert all(len(figures.reload_s) > 1 for figures in measured)


def test_the_footprint_of_a_node_is_measured_while_all_services_are_up(tmp_path: Path) -> None:
    with reload.backend_process() as backend:
        found = footprint.measure(tmp_path / "node", services=20, interval_s=1.0, seconds=2.0, backend=backend)
    assert 0 < found.cores < 1
    assert found.checks_per_s > 0
    assert 0 < found.resident_bytes <= found.resident_after_reading_bytes + MIB
    assert found.row().count("|") == footprint.HEADER.partition("\n")[0].count("|")


def test_a_node_without_memory_answers_truthfully_or_ends_with_a_line(tmp_path: Path) -> None:
    limits = [Limit(bytes=more, at_start=False) for more in (0, 64 * 1024, 9 * MIB)]
    runs = memory_limits.run_campaign(tmp_path, [*limits, Limit(bytes=75 * MIB, at_start=True)])
    assert [f"{run.limit}: {run.problem}: {run.last_line}" for run in runs if run.problem] == []


def test_replicas_never_say_up_without_evidence_and_agree_after_faults() -> None:
    counts = sharing_model.run_campaign(random.randrange(10**6), sharing_model.ROUND_S + sharing_model.SETTLE_S)
    assert counts["rounds"] == 1
    assert counts["up"] > 1000


def test_a_node_with_faults_load_pages_and_reloads_answers_every_request(tmp_path: Path) -> None:
    report = asyncio.run(soak.run_campaign(tmp_path, 4.0, services=30, per_s=50, pages=3, seed=1))
    assert report.errors == []
    assert report.reloads
    assert not {code for code in report.codes if code >= 500} - {503}
    assert all(len(values) > 5 for values in report.samples.values())


def test_two_replicas_share_the_checks_and_write_less_than_they_check(tmp_path: Path) -> None:
    figures = scale.measure(tmp_path, replicas=2, services=40, seconds=5, changes=1)
    rates = figures.rates
    assert 0 < rates["checks"] / 2 < rates["received_checks"]
    assert 0 < rates["writes"] < rates["received_checks"] / 2
    assert rates["sent_bytes"] > 0
    assert rates["received_bytes"] > 0
    assert len(figures.behind_s) == 4  # Down and Up, on each replica
    assert figures.row().count("|") == scale.HEADER.partition("\n")[0].count("|")
    assert all(cost.seconds > 0 for cost in scale.step_costs())
