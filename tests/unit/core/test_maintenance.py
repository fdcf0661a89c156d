"""When scheduled maintenance begins and ends."""

from __future__ import annotations

import math
import zoneinfo
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcnode.core.errors import ControlError, InvalidValueError
from svcnode.core.maintenance import (
    WEEKDAYS,
    MaintenanceSchedule,
    MaintenanceStart,
    PlannedMaintenance,
    check_window,
    parse_shown_time_s,
    parse_start,
    parse_time_s,
    parse_timezone,
)

BERLIN = ZoneInfo("Europe/Berlin")


def schedule(start: str, hours: float, timezone: str = "UTC") -> MaintenanceSchedule:
    return MaintenanceSchedule(
        service_ids=(), start=parse_start(start), duration_s=hours * 3600, timezone=parse_timezone(timezone)
    )


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_a_start_is_a_time_of_day_with_or_without_a_weekday() -> None:
    assert parse_start("02:00") == MaintenanceStart(weekday=None, hour=2, minute=0)
    assert parse_start("Sun 23:59") == MaintenanceStart(weekday=6, hour=23, minute=59)
    assert (parse_start("02:00").period_s, parse_start("Sun 02:00").period_s) == (86_400.0, 604_800.0)


@pytest.mark.parametrize(
    "text", ["", "2:00", "24:00", "02:60", "Son 02:00", "sun 02:00", "Sun  02:00", "02:00 ", "\u0660\u0662:00"]
)
def test_another_start_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match="must be a time of day"):
        parse_start(text)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Europe/Berlim", 'did you mean "Europe/Berlin"'),
        ("", 'write "UTC"'),
        ("../etc/passwd", "write"),
        ("Europe", ""),
    ],
)
def test_an_unknown_time_zone_is_refused(name: str, hint: str) -> None:
    with pytest.raises(InvalidValueError, match="there is no time zone") as caught:
        parse_timezone(name)
    assert hint in str(caught.value)


def test_a_maintenance_is_on_from_its_start_for_its_duration() -> None:
    weekly = schedule("Sun 02:00", 2)
    assert weekly.end_s(at("2026-11-15T01:59:59+00:00")) is None
    assert weekly.end_s(at("2026-11-15T02:00:00+00:00")) == at("2026-11-15T04:00:00+00:00")
    assert weekly.end_s(at("2026-11-15T03:59:59+00:00")) == at("2026-11-15T04:00:00+00:00")
    assert weekly.end_s(at("2026-11-15T04:00:00+00:00")) is None
    assert weekly.next_begin_s(at("2026-11-15T02:00:00+00:00")) == at("2026-11-22T02:00:00+00:00")
    long = schedule("Mon 00:00", 167)
    assert long.end_s(at("2026-11-15T22:00:00+00:00")) == at("2026-11-15T23:00:00+00:00"), "days after its start"
    daily = schedule("23:00", 3)
    assert daily.end_s(at("2026-11-16T01:30:00+00:00")) == at("2026-11-16T02:00:00+00:00"), "on the next day"


def test_a_start_that_summer_time_skips_is_later_and_one_that_comes_twice_begins_with_the_first() -> None:
    skipped = schedule("02:30", 1, "Europe/Berlin")
    assert skipped.next_begin_s(at("2026-03-29T00:00:00+01:00")) == at("2026-03-29T03:30:00+02:00")
    twice = schedule("Sun 02:30", 1, "Europe/Berlin")
    assert twice.end_s(at("2026-10-25T02:30:00+02:00")) == at("2026-10-25T02:30:00+01:00")
    assert twice.end_s(at("2026-10-25T02:30:00+01:00")) is None


@given(
    now_s=st.floats(min_value=0, max_value=4e9),
    weekday=st.sampled_from([None, *range(7)]),
    hour=st.integers(0, 23),
    minute=st.integers(0, 59),
    share=st.floats(min_value=0.001, max_value=0.95),
    timezone=st.sampled_from([UTC, BERLIN, ZoneInfo("Pacific/Chatham"), ZoneInfo("America/St_Johns")]),
)
def test_a_maintenance_is_never_longer_than_its_duration(
    *, now_s: float, weekday: int | None, hour: int, minute: int, share: float, timezone: ZoneInfo
) -> None:
    start = MaintenanceStart(weekday=weekday, hour=hour, minute=minute)
    one = MaintenanceSchedule(service_ids=(), start=start, duration_s=share * start.period_s, timezone=timezone)
    end_s = one.end_s(now_s)
    assert end_s is None or now_s < end_s <= now_s + one.duration_s
    next_s = one.next_begin_s(now_s)
    assert now_s < next_s <= now_s + start.period_s + 2 * 3600  # a day in which clocks are set is longer
    assert one.end_s(next_s) == next_s + one.duration_s
    local = datetime.fromtimestamp(next_s, timezone)
    is_skipped = (local.hour, local.minute) != (hour, minute)
    assert weekday in (None, local.weekday()) or is_skipped
    assert not is_skipped or (local - timedelta(hours=3)).utcoffset() != local.utcoffset()


def test_the_weekdays_are_those_of_python() -> None:
    assert [datetime(2026, 11, 16 + day, tzinfo=UTC).strftime("%a") for day in range(7)] == list(WEEKDAYS)


def test_a_machine_without_time_zones_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoneinfo, "available_timezones", set)
    with pytest.raises(InvalidValueError, match="tzdata"):
        parse_timezone("Europe/Nowhere")
    assert parse_timezone("UTC") is UTC


# ---- once, as planned


def test_planned_maintenance_is_on_from_its_begin_to_its_end() -> None:
    planned = PlannedMaintenance(service_ids=(), from_s=100.0, until_s=200.0)
    assert [planned.end_s(now_s) for now_s in (99.9, 100.0, 199.9, 200.0)] == [None, 200.0, 200.0, None]
    assert [planned.next_begin_s(now_s) for now_s in (99.9, 100.0, 200.0)] == [100.0, math.inf, math.inf]


def test_a_time_has_a_zone_and_that_of_a_person_is_otherwise_in_utc(local_time: None) -> None:
    expected = at("2026-12-01T22:00:00+00:00")
    for text in ("2026-12-01T22:00:00Z", "2026-12-01T23:00:00.000+01:00", "2026-12-01 22:00Z"):
        assert parse_time_s(text) == parse_shown_time_s(text) == expected
    for text in ("2026-12-01 22:00", "2026-12-01T22:00:00", "2026-12-01 22:00:00 UTC"):
        assert parse_shown_time_s(text) == expected
        with pytest.raises(InvalidValueError):
            parse_time_s(text)
    for text in (
        "",
        "22:00",
        "2026-12-01",
        "2026-02-30T22:00Z",
        "20261201T220000Z",
        "2026-12-01T24:01Z",
        "0001-01-01 00:00",
    ):
        with pytest.raises(InvalidValueError):
            parse_time_s(text)


@pytest.mark.parametrize(
    ("begin_d", "end_d", "pointer"),
    [
        (-2, -1, "/until"),
        (2, 2, "/until"),
        (1, 31.01, "/until"),
        (366.1, 367, "/from"),
        (0, 30, None),
        (366, 367, None),
    ],
)
def test_a_window_ends_later_than_it_begins_and_is_neither_past_nor_long_nor_far_away(
    begin_d: float, end_d: float, pointer: str | None
) -> None:
    now_s = 1e9
    window = now_s + begin_d * 86_400, now_s + end_d * 86_400, now_s
    if pointer is None:
        check_window(*window)
        return
    with pytest.raises(ControlError) as caught:
        check_window(*window)
    assert (caught.value.status, caught.value.pointer) == (422, pointer)
