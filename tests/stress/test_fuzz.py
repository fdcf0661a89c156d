"""A short run of fuzz: no crash, no hang, no unexplained 5xx, and no answer that depends on segments or the cache."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.stress.fuzz import run_campaign

if TYPE_CHECKING:
    from pathlib import Path


def test_answers_to_random_requests_are_explained_and_do_not_depend_on_segments_or_the_cache(tmp_path: Path) -> None:
    report = run_campaign(tmp_path, random.randrange(10**6), requests=400, socket_requests=60)
    assert report.problems == [], f"seed {report.seed}"
