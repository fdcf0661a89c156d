"""The clock is set, or the process stands still, while the history records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from svcnode.core.model import Maintenance, Verdict
from svcnode.history import writer
from svcnode.history.breaks import BreakFinder
from svcnode.history.timeline import CLOCK_SET, STOOD_STILL, Period
from tests.support.nodes import record
from tests.support.real_time import in_real_time
from tests.support.virtual_time import VirtualClock
from tests.unit.history.test_history import (
    NOON,
    Harness,
    down_before_a_restart,
    eventually,
    fail_three_times,
    harness,
    probed,
)
from tests.unit.history.test_timeline import health, of_type, outages

if TYPE_CHECKING:
    from svcnode.history import History
    from svcnode.history.report import PeriodReport
    from svcnode.history.timeline import TimelineItem

__all__ = ["harness"]  # the fixture

HOUR_S = 3600.0


async def items_of(history: History, first_s: float = -60.0, last_s: float = 5 * HOUR_S) -> list[TimelineItem]:
    newest = history._backlog.last_id
    await eventually(lambda: history.last_id >= newest or not history._backlog.is_unpublished(newest))
    return (await history.timeline(Period(NOON + first_s, NOON + last_s))).items


def events(items: list[TimelineItem]) -> list[tuple[str, float]]:
    return [(item.kind, (item.from_s - NOON) / 60) for item in of_type(items, "event") if item.kind != "registered"]


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.__dict__["event"] for record in caplog.records]


async def report_of(history: History, harness: Harness) -> PeriodReport:
    return await history.report(NOON - 4 * HOUR_S, harness.wall.now_s)


def test_a_clock_that_is_set_is_told_from_a_process_that_stands_still() -> None:
    clock, wall = VirtualClock(100.0), VirtualClock(1000.0)
    finder = BreakFinder(clock, wall)

    def breaks(elapsed_s: float, set_by_s: float) -> list[tuple[str, float, float]]:
        clock.advance(elapsed_s)
        wall.advance(elapsed_s + set_by_s)
        return [(one.kind, one.paused_s, one.resumed_s) for one in finder.find()]

    assert breaks(1.0, 0.0) == breaks(1.0, 2.0) == breaks(1.0, -2.0) == breaks(3.0, 0.0) == []
    at_s = wall.now_s
    assert breaks(1.0, 100.0) == [(CLOCK_SET, at_s + 1, at_s + 101)]
    at_s = wall.now_s
    assert breaks(1.0, -100.0) == [(CLOCK_SET, at_s + 1, at_s - 99)]
    at_s = wall.now_s
    assert breaks(50.0, 0.0) == [(STOOD_STILL, at_s, at_s + 50)]
    at_s = wall.now_s
    assert breaks(50.0, 10.0) == [(STOOD_STILL, at_s, at_s + 50), (CLOCK_SET, at_s + 50, at_s + 60)]


def test_a_standstill_between_two_readings_of_the_clocks_is_no_set_clock() -> None:
    clock, wall = VirtualClock(100.0), VirtualClock(1000.0)
    stops = iter((0.0, 500.0))

    def stopping_wall() -> float:
        stopped_s = next(stops, 0.0)
        clock.advance(stopped_s)
        wall.advance(stopped_s)
        return wall.now_s

    finder = BreakFinder(clock, stopping_wall)
    assert finder.find() == []
    assert [one.kind for one in finder.find()] == [STOOD_STILL]


@pytest.mark.parametrize("has_file", [True, False])
@pytest.mark.parametrize("set_by_s", [2 * HOUR_S, -2 * HOUR_S])
@in_real_time
async def test_durations_are_what_really_elapsed_if_the_clock_is_set(
    harness: Harness, has_file: bool, set_by_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten minutes of an outage are before, and ten after."""
    async with harness.history(has_file=has_file) as (history, _):
        database = harness.node.register("db", impact="critical")
        database.up()
        harness.wait(600, history)
        database.down("refused")
        harness.wait(600, history)
        harness.wall.advance(set_by_s)
        harness.wait(600, history)
        database.up()
        harness.wait(600, history)
        items = await items_of(history, -3 * HOUR_S)
        report = await report_of(history, harness)
    moved = set_by_s / 60
    resumed = 20 + 1 / 60 + moved
    assert [at for kind, at in events(items) if kind == "clock_set"] == [pytest.approx(resumed)]
    assert logged(caplog) == ["clock_set"]
    expected = [("db", "Down", 10.0, 20 + 1 / 60, False), ("db", "Down", resumed, 30 + moved, False)]
    assert sorted(outages(items)) == [pytest.approx(one) for one in sorted(expected)]
    unknown = [one for one in health(items) if one[0] is None]
    assert unknown == ([(None, pytest.approx(20 + 1 / 60), pytest.approx(resumed), False)] if set_by_s > 0 else [])
    bad = [(one[1], one[2]) for one in health(items) if one[0] == 503]
    assert (pytest.approx(resumed), pytest.approx(30 + moved)) in bad, "for the same reason as before"
    found = report.services["db"].outages
    counted_s = sum(outage.length_s for outage in found)
    if set_by_s > 0:
        assert [outage.is_recovered for outage in found] == [False, True]
        assert counted_s == pytest.approx(1200, abs=2)
        assert report.services["db"].times.down_s == pytest.approx(1200, abs=2)
    else:  # what was before has times in the future
        assert [outage.is_recovered for outage in found] == [True]
        assert counted_s == pytest.approx(600, abs=2)
        assert report.node.times.down_s == pytest.approx(600, abs=2)


@in_real_time
async def test_a_period_after_the_clock_was_set_back_has_both_parts_of_an_outage(harness: Harness) -> None:
    async with harness.history() as (history, _):
        database = harness.node.register("db")
        database.up()
        harness.wait(1200, history)
        database.down("refused")
        harness.wait(300, history)
        harness.wall.advance(-900)
        harness.wait(300, history)
        database.up()
        harness.wait(900, history)
        report = await report_of(history, harness)
    found = report.services["db"].outages
    assert [round(outage.length_s) for outage in found] == pytest.approx([300, 300], abs=2)


@in_real_time
async def test_while_the_machine_sleeps_nothing_is_known(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    """What has expired meanwhile was not so during the sleep, as far as anybody knows."""
    node = probed(harness)
    async with harness.history() as (history, _):
        record(node, "db", Verdict.ready())
        harness.wait(60, history)
        record(node, "db", Verdict.ready())
        harness.clock.advance(2 * HOUR_S)
        harness.wall.advance(2 * HOUR_S)
        node.expire_stale()
        harness.wait(2, history)
        record(node, "db", Verdict.ready())
        harness.wait(60, history)
        items = await items_of(history)
        report = await report_of(history, harness)
    woken = 1 + 120.0
    assert ("stood_still", woken) in events(items)
    assert logged(caplog) == ["stood_still"]
    assert [one for one in health(items) if one[0] is None] == [(None, 1.0, woken, False)]
    assert outages(items) == [("db", "Initializing", woken, pytest.approx(woken + 2 / 60), False)]
    assert report.services["db"].times.known_s == pytest.approx(122, abs=2)


@pytest.mark.parametrize("is_still_down", [True, False])
@in_real_time
async def test_an_outage_lasts_over_a_sleep_if_the_first_check_after_it_confirms_it(
    harness: Harness, is_still_down: bool
) -> None:
    node = probed(harness)
    async with harness.history() as (history, _):
        harness.wait(60, history)
        fail_three_times(node)
        harness.wait(60, history)
        harness.clock.advance(HOUR_S)
        harness.wall.advance(HOUR_S)
        harness.wait(3, history)
        record(node, "db", Verdict.failed("refused") if is_still_down else Verdict.ready())
        harness.wait(3, history)
        record(node, "db", Verdict.ready())
        record(node, "db", Verdict.ready())
        items = await items_of(history)
        later = await items_of(history, HOUR_S, 2 * HOUR_S)
        report = await report_of(history, harness)
    ended = 2.0 if not is_still_down else 62 + 6 / 60
    assert outages(items)[-1] == ("db", "Down", 1.0, pytest.approx(ended), False)
    assert len(outages(later)) == is_still_down
    (outage,) = report.services["db"].outages
    assert 60 <= outage.length_s < 70


@in_real_time
async def test_a_reported_outage_lasts_over_a_sleep_until_something_else_is_reported(harness: Harness) -> None:
    async with harness.history() as (history, _):
        database = harness.node.register("db")
        database.down("refused")
        harness.wait(60, history)
        harness.clock.advance(HOUR_S)
        harness.wall.advance(HOUR_S)
        harness.wait(60, history)
        items = await items_of(history)
        after = await items_of(history, HOUR_S + 90, 2 * HOUR_S)
    assert outages(items)[-1] == ("db", "Down", 0.0, None, True)
    assert outages(after) == outages(items)[-1:]


@in_real_time
async def test_an_outage_over_a_restart_begins_with_it_if_the_clock_was_set_back(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    await down_before_a_restart(harness)
    harness.wall.advance(-HOUR_S)
    node = probed(harness, impact="critical")
    started_s = harness.wall.now_s
    async with harness.history() as (history, follower):
        await follower.until(lambda: "clock_set" in follower.kinds)
        harness.wait(10, history)
        record(node, "db", Verdict.failed("refused"))
        assert node.now_s() - node.state("db").since_s == pytest.approx(730), "without the unknown time in between"
        harness.wait(290, history)
        items = await items_of(history, -HOUR_S, harness.wall.now_s - NOON)
        report = await report_of(history, harness)
    started = (started_s - NOON) / 60
    assert outages(items) == [("db", "Down", pytest.approx(started), None, True)]
    assert (503, pytest.approx(started), None, True) in health(items)
    assert ("clock_set", started) in events(items)
    assert logged(caplog) == ["clock_set"]
    (outage,) = report.services["db"].outages
    assert outage.is_open
    assert outage.length_s == pytest.approx(300, abs=2)


@in_real_time
async def test_a_clock_that_was_set_back_is_told_once(harness: Harness) -> None:
    await down_before_a_restart(harness)
    harness.wall.advance(-HOUR_S)
    for expected in (["started", "clock_set"], ["started"]):
        async with harness.history() as (history, follower):
            harness.wait(60, history)
            await items_of(history)
            assert follower.kinds == expected


@in_real_time
async def test_what_goes_on_is_in_a_new_file_too(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "LOCK_CHECK_INTERVAL_S", 0.01)
    async with harness.history() as (history, follower):
        cache = harness.node.register("cache")
        cache.down("evicted")
        api = harness.node.register("api", impact="critical")
        api.up()
        ledger = harness.node.register("ledger")
        harness.node.maintenance.set(Maintenance("control", harness.clock.now_s + 7200, "alice", "new disk"), "ledger")
        ledger.down("stopped")
        harness.wait(60, history)
        api.down("refused")
        harness.wait(60, history)
        await items_of(history)  # they are written
        harness.path.parent.rename(harness.path.parent.with_name("away"))
        await follower.until(lambda: "new_file" in follower.kinds)
        harness.wait(60, history)
        items = await items_of(history)
        report = await report_of(history, harness)
        api.up()
        harness.wait(60, history)
        after = await items_of(history)
    assert ("api", "Down", 1.0, None, True) in outages(items)
    assert {(item.service_id, item.status) for item in of_type(items, "outage")} == {
        ("api", "Down"),
        ("cache", "Down"),
        ("ledger", "Down"),
    }
    assert [(item.health, item.service_id) for item in of_type(items, "health")] == [(503, "api")]
    found = {service_id: len(one.outages) for service_id, one in report.services.items()}
    assert found == {"api": 1, "cache": 1, "ledger": 0}
    assert len(report.node.outages) == 1
    assert ("api", "Down", 1.0, 3.0, False) in outages(after)
    assert [(item.health, item.service_id) for item in of_type(after, "health")] == [(503, "api"), (206, "cache")]
