from __future__ import annotations

import pytest

from tests.truth.timing import (
    DEFAULTS,
    FALL,
    HUNG_S,
    INTERVAL_S,
    NEVER_AUTHENTICATED_S,
    NEVER_STARTED_S,
    NOT_READY_S,
    READY_S,
    REFUSED_S,
    RISE,
    TIMEOUT_S,
)


def test_the_bounds_follow_from_the_settings() -> None:
    """Calculated from interval 1 s, timeout 0.8 s, fall 3, rise 2, and 0.05 s + 0.1 s per check for lateness."""
    assert (INTERVAL_S, TIMEOUT_S, FALL, RISE) == (1.0, 0.8, 3, 2)
    assert pytest.approx(1.05 + 2 * 0.21 + 0.35) == REFUSED_S
    assert pytest.approx(1.05 + 3 * 0.8 + 0.35) == HUNG_S
    assert pytest.approx(1.05 + 0.8 + 0.15) == NOT_READY_S
    assert pytest.approx(1.05 + 2 * 0.8 + 0.25) == READY_S
    assert pytest.approx(2 + REFUSED_S) == NEVER_STARTED_S
    assert pytest.approx(2 + HUNG_S) == NEVER_AUTHENTICATED_S


def test_no_bound_is_longer_than_the_documented_maximum() -> None:
    lateness_s = FALL * 0.1 + 0.05
    assert FALL * INTERVAL_S + TIMEOUT_S + lateness_s >= HUNG_S


def test_the_node_has_the_same_settings() -> None:
    for line in ('interval = "1000ms"', 'timeout = "800ms"', "fall = 3", "rise = 2", 'start_period = "2000ms"'):
        assert line in DEFAULTS
