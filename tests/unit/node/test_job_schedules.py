"""Jobs that run by a schedule, through a whole year of virtual time, and with a wall clock that is set."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Status, Verdict
from svcnode.node.definition import define
from svcnode.node.service_states import CLOCK_CHECK_S
from tests.support.nodes import make_node
from tests.support.virtual_time import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from svcnode.node.node_state import NodeState

BERLIN, SYDNEY = ZoneInfo("Europe/Berlin"), ZoneInfo("Australia/Sydney")  # opposite changes of summer time
GRACE_S, DELAY_S = 600.0, 90.0
UP, DOWN = Status.UP, Status.DOWN


class Job:
    """A node on clocks that the test sets. At 0, the wall clock shows the beginning of 2026 in UTC."""

    def __init__(self, schedule: str, timezone: ZoneInfo | str = "UTC") -> None:
        self.clock = VirtualClock()
        self.wall_offset_s = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
        self.node: NodeState = make_node(clock=self.clock, wall_clock=lambda: self.clock() + self.wall_offset_s)
        self.probe = {"url": "heartbeat:", "schedule": schedule, "timezone": str(timezone), "grace": "10m"}

    def register(self, *service_ids: str) -> None:
        for service_id in service_ids:
            self.node.register(service_id, probe=self.probe)

    def set_time(self, wall: datetime | float) -> None:
        """The time passes until then."""
        self.clock.now_s = (wall if isinstance(wall, float) else wall.timestamp()) - self.wall_offset_s

    def succeed(self, service_id: str = "job") -> None:
        self.node.report(service_id, Verdict.ready())

    def status(self, service_id: str = "job") -> Status:
        return self.node.state(service_id).status


def fixed_times(
    zone: ZoneInfo, times: set[time], *, weekdays: range = range(7), skips: bool = False
) -> Iterator[float]:
    """The oracle for runs at fixed times. In the hour that spring skips, they are due at its end, or not at all."""
    for day in (date(2026, 1, 1) + timedelta(days) for days in range(366)):
        for run in (datetime.combine(day, one, zone) for one in times if day.weekday() in weekdays):
            as_it_is = run.astimezone(UTC).astimezone(zone)
            if as_it_is.replace(tzinfo=None) == run.replace(tzinfo=None):
                yield run.timestamp()
            elif not skips:
                yield as_it_is.replace(minute=0).timestamp()  # both zones change by an hour, at a full hour


def every_half_hour(zone: ZoneInfo, hour: int) -> Iterator[float]:
    """The oracle for runs by the time that passes: not in the hour that spring skips, twice in the one of autumn."""
    start_s = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    for at_s in (start_s + 1800.0 * count for count in range(366 * 48)):
        if datetime.fromtimestamp(at_s, zone).hour == hour:
            yield at_s


CASES = {
    "30 2 * * *": lambda zone: fixed_times(zone, {time(2, 30)}),
    "0,30 2,3 * * *": lambda zone: fixed_times(zone, {time(2), time(2, 30), time(3), time(3, 30)}),
    "15 2 * * 1-5": lambda zone: fixed_times(zone, {time(2, 15)}, weekdays=range(5)),
    "*/30 2 * * *": lambda zone: every_half_hour(zone, 2),
    "Sat,Sun *-*-* 02:30:00": lambda zone: fixed_times(zone, {time(2, 30)}, weekdays=range(5, 7), skips=True),
}


@pytest.mark.parametrize("zone", [BERLIN, SYDNEY], ids=str)
@pytest.mark.parametrize("schedule", CASES)
def test_a_job_on_time_is_never_late_and_a_run_that_is_skipped_is_noticed_after_its_grace(
    schedule: str, zone: ZoneInfo
) -> None:
    """Through a year with both changes of summer time. Two jobs skip every second run each, so every run is skipped."""
    job = Job(schedule, zone)
    runs_s = sorted(set(CASES[schedule](zone)))
    job.set_time(runs_s[0])
    job.register("good", "even", "odd")
    job.succeed("odd")
    for index, (run_s, next_run_s) in enumerate(pairwise(runs_s)):
        succeeds, skips = ("even", "odd") if index % 2 == 0 else ("odd", "even")
        job.set_time(run_s + DELAY_S)
        if index:
            assert (job.status("good"), job.status(skips)) == (UP, UP), run_s
        job.succeed("good")
        job.succeed(succeeds)
        if index == 0:
            continue
        job.set_time(run_s + GRACE_S - 0.001)
        assert job.status(skips) is UP, run_s
        job.set_time(run_s + GRACE_S)
        assert (job.status("good"), job.status(succeeds), job.status(skips)) == (UP, UP, DOWN), run_s
        assert job.node.state(skips).code == ReasonCode.TTL_EXPIRED
        assert next_run_s > run_s + GRACE_S


@pytest.mark.parametrize("schedule", ["45 2 * * *", "02:45", "*:45"])
def test_a_success_in_the_hour_that_occurs_twice_is_not_late_at_a_run_of_the_first_one(schedule: str) -> None:
    job = Job(schedule, BERLIN)
    job.register("job")
    job.set_time(datetime(2026, 10, 25, 2, 40, tzinfo=BERLIN, fold=1))
    job.succeed()
    assert job.status() is UP
    job.clock.advance(GRACE_S + 60)
    assert job.status() is UP


def test_a_job_without_a_success_is_initializing_until_its_first_run_is_late() -> None:
    job = Job("0 3 * * *")
    job.register("job")
    job.set_time(datetime(2026, 1, 1, 3, 9, tzinfo=UTC))
    assert job.status() is Status.INITIALIZING
    job.clock.advance(60.0)
    assert job.status() is DOWN


@pytest.mark.parametrize(("early_s", "is_up"), [(0.9, True), (1.0, False)])
def test_a_success_within_the_second_before_a_run_is_one_of_this_run(early_s: float, *, is_up: bool) -> None:
    job = Job("0 3 * * *")
    job.register("job")
    job.set_time(datetime(2026, 1, 1, 3, tzinfo=UTC).timestamp() - early_s)
    job.succeed()
    job.clock.advance(GRACE_S + 1.0)
    assert (job.status() is UP) is is_up


def test_if_the_wall_clock_is_set_the_deadline_follows_from_the_new_time_within_a_minute() -> None:
    """The machine has started with a clock that is two hours ahead."""
    job = Job("0 3 * * *")
    job.register("job")
    job.set_time(datetime(2026, 1, 1, 4, tzinfo=UTC))  # it is 2:00
    job.succeed()
    assert job.status() is UP
    job.wall_offset_s -= 7200.0
    job.set_time(datetime(2026, 1, 1, 3, 9, tzinfo=UTC))
    assert job.status() is UP
    job.clock.advance(CLOCK_CHECK_S)
    assert job.status() is DOWN


def test_a_wall_clock_that_is_set_back_before_the_deadline_does_not_make_a_job_late() -> None:
    job = Job("0 3 * * *")
    job.register("job")
    job.set_time(datetime(2026, 1, 1, 2, tzinfo=UTC))
    job.succeed()
    job.set_time(datetime(2026, 1, 1, 3, 9, 59, tzinfo=UTC))
    assert job.status() is UP
    job.wall_offset_s -= 7200.0
    job.clock.advance(2.0)
    assert job.status() is UP
    job.set_time(datetime(2026, 1, 1, 3, 10, tzinfo=UTC))
    assert job.status() is DOWN


def test_a_new_schedule_applies_to_the_last_success_and_an_equal_one_changes_nothing() -> None:
    job = Job("0 3 * * *")
    job.register("job")
    job.set_time(datetime(2026, 1, 1, 5, tzinfo=UTC))
    job.succeed()
    revision = job.node.revision
    job.node.replace(define("job", probe=job.probe))
    assert job.node.revision == revision
    job.set_time(datetime(2026, 1, 1, 6, tzinfo=UTC))
    job.node.replace(define("job", probe={**job.probe, "schedule": "0 7 * * *"}))
    assert job.status() is UP
    job.set_time(datetime(2026, 1, 1, 7, 10, tzinfo=UTC))
    assert job.status() is DOWN


def test_the_nicknames_of_cron_mean_the_same_times() -> None:
    hourly, daily = Job("@hourly"), Job("@daily")
    for job in (hourly, daily):
        job.register("job")
        job.set_time(datetime(2026, 3, 2, 12, 30, tzinfo=UTC))
        job.succeed()
        job.set_time(datetime(2026, 3, 2, 13, 10, tzinfo=UTC))
    assert (hourly.status(), daily.status()) == (DOWN, UP)


@pytest.mark.parametrize(("schedule", "is_up"), [("0 6 * * *", False), ("0 6 1 * *", True)])
def test_a_success_that_is_known_from_elsewhere_is_valid_until_the_next_run_and_grace(
    schedule: str, *, is_up: bool
) -> None:
    job = Job(schedule)
    definition = define("job", probe=job.probe)
    policy = replace(definition.service.policy, ttl_s=None, stale_after_s=1e5)
    job.node.add(definition._replace(service=replace(definition.service, policy=policy)))
    job.set_time(datetime(2026, 1, 1, 6, 40, tzinfo=UTC))
    job.succeed()
    next_run_s = datetime(2026, 1, 2, 6, tzinfo=UTC).timestamp()
    job.set_time(next_run_s + GRACE_S - 1.0)
    assert job.status() is UP
    job.set_time(next_run_s + GRACE_S)
    assert job.status() is (UP if is_up else Status.INITIALIZING)
