"""A short run of control_model: control requests agree with a plain dict."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.stress.control_model import run_campaign

if TYPE_CHECKING:
    from pathlib import Path


def test_random_control_requests_agree_with_a_plain_dict(tmp_path: Path) -> None:
    codes = run_campaign(tmp_path, 3000, random.Random())
    assert codes.total() >= 3000
    assert max(codes) < 500
    assert {200, 201, 204, 400, 404, 409, 412} <= set(codes)
