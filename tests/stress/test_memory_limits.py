"""A short run of memory_limits: a node without memory neither hangs nor answers falsely."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.stress.memory_limits import MIB, Limit, run_campaign

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.wide


def test_a_node_without_memory_answers_truthfully_or_ends_with_a_line(tmp_path: Path) -> None:
    limits = [Limit(bytes=more, at_start=False) for more in (0, 64 * 1024, 9 * MIB)]
    runs = run_campaign(tmp_path, [*limits, Limit(bytes=75 * MIB, at_start=True)])
    assert [f"{run.limit}: {run.problem}: {run.last_line}" for run in runs if run.problem] == []
