"""A short run of scale. Times are not judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.stress.scale import HEADER, measure, step_costs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.wide


def test_two_replicas_share_the_checks_and_write_less_than_they_check(tmp_path: Path) -> None:
    figures = measure(tmp_path, replicas=2, services=40, seconds=5, changes=1)
    rates = figures.rates
    assert 0 < rates["checks"] / 2 < rates["received_checks"]
    assert 0 < rates["writes"] < rates["received_checks"] / 2
    assert rates["sent_bytes"] > 0
    assert rates["received_bytes"] > 0
    assert len(figures.behind_s) == 4  # Down and Up, on each replica
    assert figures.row().count("|") == HEADER.partition("\n")[0].count("|")


def test_each_step_has_a_cost() -> None:
    assert all(cost.seconds > 0 for cost in step_costs())
