"""The short form of the kill campaign: a few kills, and nothing that was acknowledged is lost."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.stress.history_kills import campaign

if TYPE_CHECKING:
    from pathlib import Path


def test_nothing_that_was_acknowledged_is_lost_when_the_process_is_killed(tmp_path: Path) -> None:
    tally = campaign(tmp_path / "history.db", kills=5, acknowledged=1000, rng=random.Random())
    assert tally.errors == []
    assert tally.lost == set()
    assert tally.kills >= 5
    assert len(tally.acknowledged) >= 1000
