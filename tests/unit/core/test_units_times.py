from __future__ import annotations

import pytest

from svcnode.core.units import iso_time


@pytest.mark.parametrize(
    ("wall_s", "text"),
    [
        (0.0, "1970-01-01T00:00:00.000Z"),
        (1_767_268_800, "2026-01-01T12:00:00.000Z"),
        (1_767_268_800.0625, "2026-01-01T12:00:00.062Z"),
    ],
)
def test_a_time_is_told_in_utc_and_to_the_millisecond(
    wall_s: float, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert iso_time(wall_s) == text
