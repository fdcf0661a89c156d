"""A short run of sharing_model."""

from __future__ import annotations

import random

import pytest

from tests.stress.sharing_model import ROUND_S, SETTLE_S, run_campaign

pytestmark = pytest.mark.wide


def test_replicas_never_say_up_without_evidence_and_agree_after_faults() -> None:
    counts = run_campaign(random.randrange(10**6), ROUND_S + SETTLE_S)
    assert counts["rounds"] == 1
    assert counts["up"] > 1000
