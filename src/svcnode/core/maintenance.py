"""When maintenance begins and ends: every day or every week at a time of day, in a time zone; or once, as planned."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from svcnode.core.errors import ControlError, InvalidValueError
from svcnode.core.text import closest_match, excerpt
from svcnode.core.units import utc_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import tzinfo

WEEKDAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
DAY_S, WEEK_S = 86_400.0, 7 * 86_400.0
MAX_MAINTENANCE_DAYS = 30
MAX_DAYS_AHEAD = 366  # a year that is misspelled is noticed
_START = re.compile(r"(?:([A-Z][a-z]{2}) )?([01][0-9]|2[0-3]):([0-5][0-9])", re.ASCII)
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:\.[0-9]{1,6})?)?(Z|[+-][0-9]{2}:[0-9]{2})",
    re.ASCII,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceTimes(ABC):
    """When some services, or the node, are in maintenance. Times are seconds of the wall clock."""

    service_ids: tuple[str, ...]  # none: the node
    by: str = ""
    reason: str = ""

    @abstractmethod
    def end_s(self, now_s: float) -> float | None:
        """The end of the maintenance that is on at this time, if any."""

    @abstractmethod
    def next_begin_s(self, now_s: float) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedMaintenance(MaintenanceTimes):
    """Once."""

    from_s: float
    until_s: float

    def end_s(self, now_s: float) -> float | None:
        return self.until_s if self.from_s <= now_s < self.until_s else None

    def next_begin_s(self, now_s: float) -> float:
        return self.from_s if now_s < self.from_s else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceStart:
    weekday: int | None  # Monday is 0; None: every day
    hour: int
    minute: int

    @property
    def period_s(self) -> float:
        return DAY_S if self.weekday is None else WEEK_S


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceSchedule(MaintenanceTimes):
    start: MaintenanceStart
    duration_s: float  # less than the period of the start
    timezone: tzinfo

    def end_s(self, now_s: float) -> float | None:
        begins_s = (begin_s for begin_s in self._begins_s(now_s) if begin_s <= now_s < begin_s + self.duration_s)
        begin_s = max(begins_s, default=None)
        return None if begin_s is None else begin_s + self.duration_s

    def next_begin_s(self, now_s: float) -> float:
        return min(begin_s for begin_s in self._begins_s(now_s) if begin_s > now_s)

    def _begins_s(self, now_s: float) -> Iterator[float]:
        """All from a week before a time to a week after it.

        A time of day that is skipped when clocks are set forward begins as much later; one that comes twice begins with
        the first.
        """
        today = datetime.fromtimestamp(now_s, self.timezone)
        for days in range(-8, 9):
            day = today.date() + timedelta(days)
            if self.start.weekday in (None, day.weekday()):
                begin = datetime(day.year, day.month, day.day, self.start.hour, self.start.minute, tzinfo=self.timezone)
                yield begin.timestamp()


def parse_start(text: str) -> MaintenanceStart:
    """From "02:00", which is every day, or "Sun 02:00"."""
    match = _START.fullmatch(text)
    if match is None or (match[1] and match[1] not in WEEKDAYS):
        raise InvalidValueError(
            f'must be a time of day such as "02:00", or a day of the week with it such as "Sun 02:00", not "{text}"'
        )
    weekday = WEEKDAYS.index(match[1]) if match[1] else None
    return MaintenanceStart(weekday=weekday, hour=int(match[2]), minute=int(match[3]))


def parse_timezone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC
    import zoneinfo  # loaded late: few nodes need it

    try:
        return zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # OSError: the name of a folder
        known = zoneinfo.available_timezones()
        if not known:
            raise InvalidValueError(
                f'the time zone "{name}" needs a list of time zones, and this machine has none; install the package '
                'tzdata of the system or of Python, or write "UTC"'
            ) from None
        near = closest_match(name, known)
        hint = f'did you mean "{near}"?' if near else 'write "UTC" or a name such as "Europe/Berlin"'
        raise InvalidValueError(f'there is no time zone "{name}" on this machine; {hint}') from None


def parse_time_s(text: str) -> float:
    """Seconds of the wall clock from "2026-12-01T22:00:00Z"."""
    with suppress(ValueError, OverflowError):  # such as 30 February
        if _TIME.fullmatch(text):
            return datetime.fromisoformat(text).timestamp()
    raise InvalidValueError(
        'must be a date and a time with its time zone such as "2026-12-01T22:00:00Z" or "2026-12-01T22:00:00+01:00", '
        f'not "{excerpt(text)}"'
    )


def parse_shown_time_s(text: str) -> float:
    """As a person writes it, or copies it from where it is shown: without a zone, or with " UTC", it is in UTC."""
    with suppress(InvalidValueError):
        return parse_time_s(f"{text.removesuffix(' UTC')}Z")
    return parse_time_s(text)


def check_window(from_s: float, until_s: float, now_s: float) -> None:
    """Of a maintenance that is asked for. Raises `ControlError`."""
    if until_s <= now_s:
        raise ControlError(422, f"until is in the past: it is {utc_text(now_s)} now", pointer="/until")
    if until_s <= from_s:
        raise ControlError(422, "until must be later than from", pointer="/until")
    if until_s - from_s > MAX_MAINTENANCE_DAYS * DAY_S:
        text = f"until must be at most {MAX_MAINTENANCE_DAYS} days later than from"
        raise ControlError(422, text, pointer="/until")
    if from_s - now_s > MAX_DAYS_AHEAD * DAY_S:
        raise ControlError(422, f"from must be within the next {MAX_DAYS_AHEAD} days", pointer="/from")
