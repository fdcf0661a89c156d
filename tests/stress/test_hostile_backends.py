"""A short run of hostile_backends: each kind judges hostile servers in time and in bounds and leaves nothing behind."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from svcnode.probes import KINDS
from tests.stress.hostile_backends import LOCAL, SCHEMES, all_runs, run_campaign
from tests.support.backends import open_file_count

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.wide

BEHAVIOURS = (
    "endless zeros",
    "a length that is a lie, endless",
    "a length that is a lie, closed",
    "deep nesting",
    "HTTP 400",
    "stops in the handshake",
    "redirects to itself",
)


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_every_kind_judges_a_hostile_server_in_time(tmp_path: Path, behaviour: str) -> None:
    files = open_file_count()
    runs = asyncio.run(run_campaign(tmp_path, all_runs(SCHEMES, [behaviour]), concurrent=8))
    assert [f"{run.scheme}: {run.problem}" for run in runs if run.problem] == []
    assert open_file_count() <= files


def test_every_kind_that_connects_is_tested() -> None:
    assert {*SCHEMES, *LOCAL} == KINDS.keys()
