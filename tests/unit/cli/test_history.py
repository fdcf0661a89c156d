"""What `svcnode history` shows, and the times that it takes."""

from __future__ import annotations

import asyncio
import csv
from datetime import UTC, datetime
from typing import Any

import pytest

from svcnode.cli import history, main
from svcnode.cli._past import parse_moment_s
from svcnode.cli.history import csv_text, text_lines
from svcnode.core.errors import InvalidValueError, ServiceNotFoundError

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
    ("text", "expected_s"),
    [
        ("12h", NOON - 43_200),
        ("2026-01-01T12:30:00+01:00", NOON - 1800),
        ("2026-01-01 11:00", NOON - 3600),
        ("2026-01-01 11:00:30 UTC", NOON - 3570),  # as it is shown
        ("11:00", NOON - 3600),
        ("11:00:30 UTC", NOON - 3570),
        ("12:30", NOON - 84_600),  # of the day before
        ("100000d", 0.0),
    ],
)
def test_a_moment_is_relative_a_time_of_day_or_a_date(text: str, expected_s: float) -> None:
    assert parse_moment_s("--since", text, NOON) == expected_s


@pytest.mark.parametrize("text", ["", "yesterday", "25:00", "2026-13-01 10:00"])
def test_any_other_moment_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match="--since"):
        parse_moment_s("--since", text, NOON)


def test_every_line_has_its_time_in_utc() -> None:
    head, line = text_lines([item(5)], (NOON, NOON + 3600))
    assert head == "2026-01-01 12:00:00 UTC to 2026-01-01 13:00:00 UTC"
    assert line.startswith("2026-01-01 12:05:00 UTC  ")


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


def test_an_id_that_nobody_knows_is_an_error_and_not_a_quiet_night() -> None:
    async def get_json(path: str) -> dict[str, Any]:
        return {"items": [], "next": None, "unknown": ["ledgr"]}

    with pytest.raises(ServiceNotFoundError, match="ledgr"):
        asyncio.run(history._fetch(get_json, ("ledgr",), 0.0, NOON))


def test_the_service_may_be_named_by_an_option_as_for_other_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    async def get_json(path: str) -> dict[str, Any]:
        asked.append(path)
        return {"items": [], "next": None}

    monkeypatch.setattr(history, "ask_or_read", lambda _, ask, __: (asyncio.run(ask(get_json)), ""))
    assert main(["history", "--service", "db"]) == main(["history", "db"]) == 0
    assert [path.partition("&")[0] for path in asked] == ["/history?id=db"] * 2
