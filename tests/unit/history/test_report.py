"""The report of a period. What it says is compared with a recomputation, second by second, from the raw transitions."""

from __future__ import annotations

import random
import sqlite3
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from svcnode.core.model import Maintenance
from svcnode.history import History
from svcnode.history.backlog import Backlog
from svcnode.history.follower import read_report
from svcnode.history.records import DAYS, HOURS, MINUTES, Stretch
from svcnode.history.report import Budget, Move, OutageFinder, ReportPeriod, Runs, SubjectReport, Times
from tests.support.nodes import make_node
from tests.support.real_time import in_real_time
from tests.support.virtual_time import VirtualClock
from tests.unit.history.test_history import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from svcnode.history.records import Resolution
    from svcnode.history.report import PeriodReport
    from svcnode.node.node_state import Handle, NodeState

NOON = 1_767_268_800
IDS = ("a", "b", "c")


class Life:
    """A node that does random things for some hours, at whole seconds of its clocks."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, self.random = path, random.Random(seed)
        self.wall, self.clock = VirtualClock(float(NOON)), VirtualClock(1000.0)
        self.ran: list[tuple[int, int]] = []  # from, to
        self.registered = set(IDS[:2])

    async def live(self, processes: int, *, kill: bool = False) -> None:
        for _ in range(processes):
            node, handles = self._make_node()
            async with History(node, self.path, wall_clock=self.wall) as history:
                self.ran.append((int(self.wall.now_s), 0))
                for _ in range(self.random.randrange(3, 25)):
                    self._act(node, handles)
                    self._pass_time(history)
                if kill:
                    await self._be_killed(node, handles, history)
                else:
                    self._stop()
            self._advance(self.random.randrange(0, 900))

    async def _be_killed(self, node: NodeState, handles: dict[str, Handle], history: History) -> None:
        """Some minutes are not written any more, but all transitions are. The next process finds a copy of that."""
        written_to_s = MINUTES.begin_s(self.wall.now_s)
        await eventually(lambda: not len(history._backlog))
        history._aggregator._backlog = Backlog()
        for _ in range(self.random.randrange(5)):
            self._act(node, handles)
            self._pass_time(history, [1, 2, 7, 20])
        if self.random.randrange(2):
            self._act(node, handles)
        await eventually(lambda: not len(history._backlog))
        killed = self.path.with_name(f"killed-{len(self.ran)}.db")
        with closing(sqlite3.connect(self.path)) as source, closing(sqlite3.connect(killed)) as target:
            source.backup(target)
            (last_us,) = target.execute("SELECT max(id) FROM transitions").fetchone()
        self.path = killed
        begun_s, _ = self.ran[-1]
        self.ran[-1] = begun_s, max(begun_s, written_to_s, last_us // 10**6)

    async def report(self, from_s: float, to_s: float, later_s: float = 0.0) -> PeriodReport:
        """As asked from the next process, so much later."""
        self._advance(int(later_s))
        async with History(make_node(clock=self.clock), self.path, wall_clock=self.wall) as history:
            self.ran.append((int(self.wall.now_s), int(self.wall.now_s)))
            await history.load_state()  # waits until the file can be read
            return await history.report(from_s, to_s)

    def _make_node(self) -> tuple[NodeState, dict[str, Handle]]:
        node = make_node(clock=self.clock)
        return node, {
            one: node.register(one, impact="critical" if one == "a" else "partial") for one in self.registered
        }

    def _act(self, node: NodeState, handles: dict[str, Handle]) -> None:
        service_id = self.random.choice(IDS)
        handle = handles.get(service_id)
        match self.random.randrange(12):
            case 0 if handle is not None:
                handles.pop(service_id).deregister()
            case 1 if not node.maintenance.all_current():  # of a service within that of the node, there is no record
                maintenance = Maintenance("control", self.clock.now_s + 1e6)
                node.maintenance.set(maintenance, self.random.choice([service_id, None]))
            case 2 | 3:
                for key, _ in node.maintenance.all_current():
                    node.maintenance.end(key, source="control")
            case _ if handle is None:
                handles[service_id] = node.register(service_id)
            case 4 if node.find(service_id)[1].last_evidence_at_s is not None:  # type: ignore[index]
                handle.initializing("syncing")
            case number:
                handle.up() if number % 2 else handle.down("refused")
        self.registered = set(handles)

    def _pass_time(self, history: History, lengths_s: Sequence[int] = (1, 2, 7, 59, 60, 200)) -> None:
        if not self.random.randrange(8) and 200 in lengths_s:
            self._sleep(self.random.randrange(10, 300), history)
        for _ in range(self.random.choice(lengths_s)):
            self._advance(1)
            self._tick(history)

    def _sleep(self, seconds: int, history: History) -> None:
        """The machine stands still."""
        self._stop()
        self._advance(seconds)
        self._tick(history)
        self.ran.append((int(self.wall.now_s), 0))

    def _stop(self) -> None:
        self.ran[-1] = (self.ran[-1][0], int(self.wall.now_s))

    def _tick(self, history: History) -> None:
        history._notice_breaks()
        history._aggregator.tick(self.wall.now_s)
        while history._aggregator.close_some(1000):
            pass

    def _advance(self, seconds: int) -> None:
        self.wall.advance(float(seconds))
        self.clock.advance(float(seconds))


class Second(NamedTuple):
    status: str | None  # None: unknown
    is_held: bool
    is_running: bool
    has_end: bool  # of an outage
    is_paused: bool


class Oracle:
    """Every second by itself, from the rows of the file and the times in which the node ran."""

    def __init__(self, life: Life) -> None:
        with closing(sqlite3.connect(life.path)) as reader:
            self.rows = reader.execute(
                "SELECT iif(kind = 'paused', at_us, transitions.id) / 1000000, "
                "at_us / 1000000, kind, services.id, after, code, 0, health "
                "FROM transitions LEFT JOIN services ON services.number = service ORDER BY transitions.id"
            ).fetchall()
        self.running = {second for begin, end in life.ran for second in range(begin, end)}
        self.last_moments = {end for begin, end in life.ran if end > begin}  # what is recorded then is known, too

    def seconds(self, service_id: str | None, begin: int, end: int) -> list[Second]:
        """Of a service, or of the node."""
        found: list[Second] = []
        held: dict[str | None, bool] = {}
        status, is_paused, number = None, False, 0
        for second in range(min(begin, NOON), end):
            has_end = False
            while number < len(self.rows) and self.rows[number][0] <= second:
                _, _, kind, row_id, after, code, _, health = self.rows[number]
                number += 1
                if kind in ("paused", "stood_still"):
                    is_paused = kind == "paused"
                    continue
                if kind in ("started", "stopped"):
                    held, status = {}, None
                if kind == "stopped":
                    continue
                if kind in ("maintenance", "maintenance_ended"):
                    held[row_id] = kind == "maintenance"
                if service_id is None:
                    status = {200: "Up", 206: "Initializing", 503: "Down"}[health]
                    has_end = has_end or status != "Down"
                elif row_id == service_id and kind in ("registered", "replaced", "deregistered", "status"):
                    status = None if code == "no_evidence" else after
                    has_end = has_end or status == "Up" or kind == "deregistered"
            is_held = held.get(None, False) or (service_id is not None and held.get(service_id, False))
            if second >= begin:
                found.append(Second(status, is_held, second in self.running, has_end, is_paused))
        return found

    def times(self, service_id: str | None, period: ReportPeriod) -> Counter[str]:
        seconds = self.seconds(service_id, int(period.from_s), int(period.to_s))
        known = [one for one in seconds if one.status is not None and one.is_running]
        return Counter("held" if one.is_held else str(one.status) for one in known)

    def outages(self, service_id: str | None, period: ReportPeriod) -> list[tuple[Any, ...]]:
        """From, to, length, whether it began before the period, is open."""
        begin, end = int(period.from_s), int(period.to_s)
        found: list[tuple[Any, ...]] = []
        begun, length, known_to, is_known = None, 0, 0, False
        for second, one in enumerate(self.seconds(service_id, NOON, end), start=NOON):
            if one.has_end and begun is not None:
                found.append((begun, max(begun, known_to), length))
                begun, length = None, 0
            if one.status == "Down" and not one.is_held and begun is None:
                begun = second
            is_known = one.status is not None and not one.is_paused
            if is_known and second in self.last_moments:
                known_to = second
            if is_known and one.is_running:
                known_to = second + 1
                length += begun is not None and not one.is_held and second >= begin
        result = [(max(a, begin), b, n, a < begin, False) for a, b, n in found if n or a >= begin]
        if begun is not None and (length or begun >= begin):
            is_open = is_known and end - known_to < 120
            result.append((max(begun, begin), end if is_open else max(begun, known_to), length, begun < begin, is_open))
        return result


# In 28, a service is removed after a restart that has not confirmed its outage.
SEEDS = (0, 1, 2, 3, 28)


@pytest.mark.parametrize(
    "seed",
    [*SEEDS, *(pytest.param(one, marks=pytest.mark.wide) for one in range(40) if one not in SEEDS)],
)
@in_real_time
async def test_the_report_equals_a_recomputation_from_the_raw_transitions(tmp_path: Path, seed: int) -> None:
    life = Life(tmp_path / "history.db", seed)
    await life.live(processes=4)
    end_s = life.wall.now_s
    for later_s, resolution in ((0, MINUTES), (7 * 3600, HOURS), (9 * 86_400, DAYS)):
        from_s = NOON + life.random.random() * (end_s - NOON) / 2
        to_s = from_s + life.random.random() * (end_s - from_s)
        report = await life.report(from_s, to_s, later_s)
        assert report.period.resolution is resolution
        check(report, Oracle(life))


@pytest.mark.parametrize("seed", [*range(5), *(pytest.param(one, marks=pytest.mark.wide) for one in range(5, 60))])
@in_real_time
async def test_a_kill_neither_removes_nor_shortens_what_was_recorded(tmp_path: Path, seed: int) -> None:
    life = Life(tmp_path / "history.db", seed)
    await life.live(processes=4, kill=True)
    end_s = life.wall.now_s
    report, _ = await read_report(life.path, NOON, end_s, end_s)  # before the next start
    check(report, Oracle(life))
    for later_s in (0, 7 * 3600, 9 * 86_400):
        check(await life.report(NOON, end_s, later_s), Oracle(life))


def check(report: PeriodReport, oracle: Oracle) -> None:
    for service_id in IDS:
        expected = oracle.times(service_id, report.period)
        found = report.services.get(service_id, SubjectReport(Times(), 0.0, (), {}))
        by_status = expected["Up"], expected["Initializing"], expected["Down"]
        assert found.times[:3] == pytest.approx(by_status, abs=1e-3), (service_id, report.period)
        check_outages(found, oracle.outages(service_id, report.period))
        known_s = expected["Up"] + expected["Initializing"] + expected["Down"]
        assert found.availability == (pytest.approx(expected["Up"] / known_s, abs=1e-6) if known_s else None)
    expected = oracle.times(None, report.period)
    assert report.node.times == pytest.approx(
        (expected["Up"], expected["Initializing"], expected["Down"], expected["held"]), abs=1e-3
    )
    check_outages(report.node, oracle.outages(None, report.period))


def check_outages(found: SubjectReport, expected: list[tuple[Any, ...]]) -> None:
    assert [one[:5] for one in found.outages] == [pytest.approx(one, abs=1e-3) for one in expected]
    assert found.longest_s == (pytest.approx(max(one[2] for one in expected)) if expected else None)


# ---- single rules


def outages_of(*moves: Move, to_s: float = 1000.0) -> OutageFinder:
    """Of a node that runs all the time."""
    period = ReportPeriod(0.0, to_s, MINUTES)
    finder = OutageFinder(period, 0.0, [Stretch(0.0, to_s)])
    for move in moves:
        finder.add(move)
    return finder


def move(at_s: float, kind: str, service_id: str | None = None, after: str | None = None, health: int = 200) -> Move:
    return Move(at_s, at_s, kind, service_id, None, after, health, health)


def test_a_removed_service_has_an_outage_that_is_neither_open_nor_recovered() -> None:
    finder = outages_of(move(10, "status", "db", "Down"), move(60, "deregistered", "db"))
    (outage,) = finder.of_services()["db"]
    assert (outage.begin_s, outage.end_s, outage.is_open, outage.is_recovered) == (10, 60, False, False)


def test_maintenance_begins_no_outage_and_is_no_part_of_one() -> None:
    finder = outages_of(
        move(0, "maintenance", "a", "Up"),
        move(10, "status", "a", "Down"),
        move(60, "maintenance_ended", "a", "Down"),
        move(70, "maintenance", None),
        move(90, "maintenance_ended", None),
        move(100, "status", "a", "Up"),
    )
    (outage,) = finder.of_services()["a"]
    assert (outage.begin_s, outage.end_s, outage.length_s) == (60, 100, 20)


def test_a_service_that_was_down_when_the_oldest_transitions_were_deleted_has_an_outage_since_then() -> None:
    finder = outages_of(Move(30, 30, "status", "db", "Down", "Up", 503, 200))
    (outage,) = finder.of_services()["db"]
    assert (outage.begin_s, outage.end_s) == (0, 30)


def test_the_drain_of_a_node_before_it_stops_is_no_outage_and_counts_for_nothing() -> None:
    drain = Move(500, 500, "node", None, None, None, 200, 503)
    times, outages = outages_of(move(0, "started"), drain, move(505, "stopped", health=503)).of_node()
    assert outages == ()
    assert (times.up_s, times.down_s) == (500, 0)
    times, outages = outages_of(move(0, "started"), drain).of_node()
    assert ([outage.is_open for outage in outages], times.down_s) == ([True], 500)


def test_a_restart_in_an_outage_counts_for_nothing() -> None:
    period = ReportPeriod(0.0, 1000.0, MINUTES)
    finder = OutageFinder(period, 0.0, [Stretch(0.0, 100.0), Stretch(400.0, 1000.0)])
    confirmed = Move(410, 50, "status", "db", "Initializing", "Down", 206, 503)
    for one in (move(50, "status", "db", "Down"), move(400, "started"), confirmed, move(500, "status", "db", "Up")):
        finder.add(one)
    (outage,) = finder.of_services()["db"]
    assert (outage.begin_s, outage.end_s, outage.length_s, outage.is_recovered) == (50, 500, 50 + 90, True)


def test_after_the_clock_was_ahead_once_the_node_has_its_times_and_outages() -> None:
    """Ids stay ahead until the clock reaches them."""
    day_s = 86_400.0
    started = Move(day_s + 1, 100, "started", None, None, None, 200, 200)
    assert outages_of(started).of_node()[0].up_s == 900
    finder = outages_of(
        move(day_s, "started"),
        started,
        Move(day_s + 2, 200, "status", "db", "Up", "Down", 200, 503),
        Move(day_s + 3, 208, "status", "db", "Down", "Up", 503, 200),
        Move(day_s + 4, 300, "started", None, None, None, 206, 206),
        Move(day_s + 5, 150, "status", "api", "Initializing", "Down", 206, 206),
    )
    times, (outage,) = finder.of_node()
    assert (outage.begin_s, outage.end_s, outage.is_recovered) == (200, 208, True)
    assert (times.up_s, times.initializing_s, times.down_s) == (192, 700, 8)
    services = finder.of_services()
    assert [(one.begin_s, one.end_s) for one in services["db"]] == [(200, 208)]
    assert [(one.begin_s, one.is_open) for one in services["api"]] == [(300, True)]


@pytest.mark.parametrize(
    ("up_s", "down_s", "slo", "budget"),
    [(1000, 0, 99.9, Budget(1.0, 1.0)), (999, 1, 99.9, Budget(1.0, 0.0)), (900, 100, 99.0, Budget(10.0, -90.0))],
)
def test_the_budget_is_spent_by_time_that_is_not_up(up_s: float, down_s: float, slo: float, budget: Budget) -> None:
    found = SubjectReport(Times(up_s, 0.0, down_s), up_s, (), {}).budget(slo)
    assert found == pytest.approx(budget)
    assert found.left_share == pytest.approx(budget.left_s / budget.allowed_s)


def test_without_known_time_there_is_no_availability_and_no_budget() -> None:
    nothing = SubjectReport(Times(), 0.0, (), {})
    assert (nothing.availability, nothing.budget(99.9).left_share, nothing.longest_s) == (None, None, None)
    assert (nothing.mean_recovery_s, nothing.percentiles_s) == (None, (None, None, None))


def test_runs_that_overlap_count_once() -> None:
    runs = Runs([Stretch(50, 90), Stretch(0, 60), Stretch(200, 300)], 10, 250)
    assert (runs.first_s, runs.length_s(0, 1000), runs.length_s(80, 210)) == (10, 80 + 50, 20)
    assert (runs.last_s(5), runs.last_s(100), runs.last_s(230)) == (5, 90, 230)


@pytest.mark.parametrize(("age_s", "resolution"), [(3600, MINUTES), (5 * 86_400, HOURS), (30 * 86_400, DAYS)])
def test_a_period_begins_with_a_bucket_and_ends_with_one_or_now(age_s: float, resolution: Resolution) -> None:
    now_s = NOON + 12_345.6
    period = ReportPeriod.around(now_s - age_s, now_s, now_s)
    assert (period.resolution, period.to_s, period.from_s % resolution.length_s) == (resolution, now_s, 0)
    assert abs(period.from_s - (now_s - age_s)) <= resolution.length_s / 2
    past = ReportPeriod.around(now_s - age_s, now_s - age_s + 1, now_s)
    assert past.to_s - past.from_s == resolution.length_s


def test_a_period_until_the_request_for_it_ends_now_also_early_in_the_day() -> None:
    now_s = NOON - 43_200 + 600.0
    assert ReportPeriod.around(now_s - 30 * 86_400, now_s - 0.01, now_s).to_s == now_s
