"""A short run of soak: under faults, load, pages and reloads every request is answered. Slopes need a longer run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.stress.soak import run_campaign

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.wide


def test_a_node_with_faults_load_pages_and_reloads_answers_every_request(tmp_path: Path) -> None:
    report = asyncio.run(run_campaign(tmp_path, 4.0, services=30, per_s=50, pages=3, seed=1))
    assert report.errors == []
    assert report.reloads
    assert report.codes.total()
    assert not {code for code in report.codes if code >= 500} - {503}
    assert all(len(values) > 5 for values in report.samples.values())
