"""A short run of scale. Times are not judged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.stress.scale import measure, step_costs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.wide


def test_two_replicas_share_the_checks_and_write_less_than_they_check(tmp_path: Path) -> None:
    figures = measure(tmp_path, replicas=2, services=40, seconds=5, changes=1)
    assert figures.replicas == 2
    assert 0 < figures.checks < figures.checks_of_all
    assert 0 < figures.writes_of_all < figures.checks_of_all / 2
    assert figures.sent_bytes > 0
    assert figures.received_bytes > 0
    assert len(figures.behind_s) == 4  # Down and Up, on each replica


def test_each_step_has_a_cost() -> None:
    assert all(cost.seconds > 0 for cost in step_costs())
