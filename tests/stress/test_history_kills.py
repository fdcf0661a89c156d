"""A short run of history_kills: no acknowledged transition is lost."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.stress.history_kills import run_campaign

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.wide


def test_no_acknowledged_transition_is_lost_if_the_process_is_killed(tmp_path: Path) -> None:
    report = run_campaign(tmp_path / "history.db", kills=5, acknowledged=1000, rng=random.Random())
    assert report.errors == []
    assert report.lost == set()
    assert report.kills >= 5
    assert len(report.acknowledged) >= 1000
