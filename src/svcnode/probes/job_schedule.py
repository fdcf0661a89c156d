"""When a job runs: a cron expression, or an OnCalendar expression of systemd, in a time zone.

The libraries decide, also when the clocks change. As Debian's cron does it, a run at a fixed time that is skipped in
spring is due right after the change, and one that occurs twice in autumn is due once; with `*` in the minutes or hours,
a job runs by the time that passes. As systemd does it, a time that is skipped has no run, and one that occurs twice has
one, the first.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING

from svcnode.core.errors import InvalidValueError
from svcnode.version import install_command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import tzinfo

CRON_FIELDS, MAX_ON_CALENDAR_FIELDS = 5, 3
_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FORMS = 'must be a cron expression such as "0 3 * * *", or one of OnCalendar such as "Mon..Fri 03:00"'
# The same result at any time: a schedule must still run then. It is a Friday: the weekend follows.
_SAMPLED_FROM = datetime(2100, 1, 1, 16)  # noqa: DTZ001  in the zone of the schedule
_SAMPLED_RUNS, _SAMPLED_S = 200, 32 * 86_400.0


@dataclass(frozen=True, slots=True)
class JobSchedule:
    """Times are seconds of the wall clock."""

    expression: str
    timezone: tzinfo

    def next_s(self, after_s: float) -> float:
        """The first run after a time."""
        start = datetime.fromtimestamp(after_s, self.timezone)
        # In the hour that occurs twice, a library may begin with a run of the first one, which is over.
        runs_s = (run.timestamp() for run in self.runs(start))
        return next((run_s for run_s in runs_s if run_s > after_s), after_s + self.longest_gap_s)

    def runs(self, start: datetime) -> Iterator[datetime]:
        if len(self.expression.split()) >= CRON_FIELDS:
            from cronsim import CronSim

            return CronSim(self.expression, start)
        from oncalendar import BaseIterator

        return BaseIterator(self.expression, start)

    @property
    def longest_gap_s(self) -> float:
        """Between two of the runs in a month; at least the time of one gap."""
        return _longest_gap_s(self)

    def __str__(self) -> str:
        return f"{self.expression} ({self.timezone})"


@lru_cache(maxsize=256)
def _longest_gap_s(schedule: JobSchedule) -> float:
    gaps_s: list[float] = []
    runs = schedule.runs(_SAMPLED_FROM.replace(tzinfo=schedule.timezone))
    first_s = last_s = next(runs).timestamp()
    for run in runs:
        gaps_s.append(run.timestamp() - last_s)
        last_s = run.timestamp()
        if len(gaps_s) >= _SAMPLED_RUNS or last_s - first_s > _SAMPLED_S:
            break
    return max(gaps_s)


def parse_job_schedule(expression: str, timezone: tzinfo) -> JobSchedule:
    """Raises `InvalidValueError`."""
    fields = _NICKNAMES.get(expression.strip(), expression).split()
    if 1 < len(fields) < CRON_FIELDS and fields[-1][0].isalpha():
        raise InvalidValueError(f'"{fields[-1]}" is not part of it; set timezone = "{fields[-1]}" beside it')
    if len(fields) > MAX_ON_CALENDAR_FIELDS and len(fields) != CRON_FIELDS:
        raise InvalidValueError(f"{_FORMS}; a cron expression has {CRON_FIELDS} fields, not {len(fields)}")
    schedule = JobSchedule(" ".join(fields), timezone)
    try:
        _ = schedule.longest_gap_s
    except ModuleNotFoundError as exc:
        raise InvalidValueError(f"needs a library: {install_command('schedules')}") from exc
    except StopIteration:
        if next(schedule.runs(datetime(1970, 1, 1, tzinfo=timezone)), None) is None:
            raise InvalidValueError(f'"{expression}" never runs: no date matches it') from None
        raise InvalidValueError(
            f'"{expression}" has a last run, and a schedule must go on; write * for the year'
        ) from None
    except Exception as exc:  # each library has an error of its own, and asserts
        part = str(exc).removeprefix("Bad ") if str(exc).startswith("Bad ") else "form"
        or_never = ", or no month in it has this day" if part == "day-of-month" else ""
        raise InvalidValueError(f'{_FORMS}; the {part} of "{expression}" is wrong{or_never}') from exc
    return schedule
