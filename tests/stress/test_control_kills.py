"""A short run of control_kills: nothing that the control socket acknowledged is lost."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.stress.control_kills import run_campaign

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.wide


def test_nothing_acknowledged_is_lost_if_the_node_is_killed(tmp_path: Path) -> None:
    report = run_campaign(tmp_path, kills=10, rng=random.Random())
    assert report.errors == []
    assert report.kills == 10
    assert report.acknowledged > 0
