"""What `svcnode history` shows, in the zone of the reader."""

from __future__ import annotations

import asyncio
import csv
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest

from svcnode.cli import history
from svcnode.cli._past import parse_moment_s
from svcnode.cli.history import csv_text, text_lines
from svcnode.core.errors import InvalidValueError
from svcnode.core.units import zone_text

if TYPE_CHECKING:
    from datetime import tzinfo

BERLIN = ZoneInfo("Europe/Berlin")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()


def item(number: int, **fields: Any) -> dict[str, Any]:
    at = f"2026-01-01T12:0{number}:00.000Z"
    return {
        "id": f"o{number}",
        "type": "outage",
        "kind": "status",
        "service": "db",
        "status": "Down",
        "health": None,
        "from": at,
        "until": None,
        "duration_s": 90.0,
        "open": True,
        "reason": "refused, twice",
        "code": "connection_refused",
    } | fields


@pytest.mark.parametrize(
    ("text", "zone", "expected_s"),
    [
        ("12h", None, NOON - 43_200),
        ("2026-01-01T12:30:00+01:00", UTC, NOON - 1800),
        ("2026-01-01 11:00", UTC, NOON - 3600),
        ("11:00", UTC, NOON - 3600),
        ("12:30", UTC, NOON - 84_600),  # of the day before
        ("12:30", BERLIN, NOON - 1800),
        ("100000d", UTC, 0.0),
    ],
)
def test_a_moment_is_relative_a_time_of_day_or_a_date(text: str, zone: tzinfo | None, expected_s: float) -> None:
    assert parse_moment_s("--since", text, NOON, zone) == expected_s


@pytest.mark.parametrize("text", ["", "yesterday", "25:00", "2026-13-01 10:00"])
def test_any_other_moment_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match="--since"):
        parse_moment_s("--since", text, NOON, UTC)


def test_times_are_in_the_zone_of_the_reader_which_is_named() -> None:
    head, line = text_lines([item(5)], (NOON, NOON + 3600), BERLIN)
    assert "2026-01-01 13:00:00" in head
    assert "CET, UTC+01:00" in head
    assert line.startswith("2026-01-01 13:05:00 ")
    assert zone_text(datetime.fromtimestamp(NOON, UTC)) == "UTC"


def test_over_a_change_of_summer_time_each_line_has_its_offset() -> None:
    begin_s = datetime(2026, 3, 28, 12, tzinfo=UTC).timestamp()
    head, *lines = text_lines(
        [item(0, **{"from": "2026-03-28T23:00:00.000Z"}), item(1, **{"from": "2026-03-29T10:00:00.000Z"})],
        (begin_s, begin_s + 86_400),
        BERLIN,
    )
    assert "CET, UTC+01:00" in head
    assert "CEST, UTC+02:00" in head
    assert [line.split("  ")[0] for line in lines] == ["2026-03-29 00:00:00 +01:00", "2026-03-29 12:00:00 +02:00"]


def test_a_table_has_a_header_and_quotes_commas() -> None:
    text = csv_text([item(1), item(2, type="event", service=None, duration_s=None, open=False)])
    header, *rows = csv.reader(text.splitlines())
    assert header == list(item(1))
    assert [(row[3], row[8], row[9], row[10]) for row in rows] == [
        ("db", "90.0", "true", "refused, twice"),
        ("", "", "false", "refused, twice"),
    ]


def test_a_list_that_would_end_before_the_newest_entries_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest come first: to stop at a limit would hide what happened last."""
    monkeypatch.setattr(history, "MAX_ITEMS", 3)

    async def get_json(path: str) -> dict[str, Any]:
        return {"items": [item(1), item(2)], "next": None if "after" in path else "/history?after=o2"}

    with pytest.raises(InvalidValueError, match="--since"):
        asyncio.run(history._fetch(get_json, (), 0.0, NOON))
    monkeypatch.setattr(history, "MAX_ITEMS", 4)
    assert len(asyncio.run(history._fetch(get_json, (), 0.0, NOON))) == 4
