"""A process that follows the history of another one, as two histories of one file."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from svcnode.core.model import Verdict
from svcnode.history import History, Transition
from svcnode.history.errors import HistoryProblem
from svcnode.history.follower import HistoryFollower, read_report, read_timeline
from svcnode.history.records import HOURS
from svcnode.history.timeline import Period
from tests.support.nodes import make_node
from tests.support.real_time import in_real_time
from tests.unit.history.test_history import NOON, Harness, eventually, harness
from tests.unit.history.test_timeline import health, outages

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from svcnode.node.node_state import NodeState

__all__ = ["harness"]  # the fixture

DEADLINE_S = 30.0


@pytest.fixture
def node() -> NodeState:
    node = make_node("validator-7", version="v1")
    node.register("db").up()
    return node


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_true():  # noqa: ASYNC110  another thread writes
            await asyncio.sleep(0.02)


@in_real_time
async def test_it_publishes_what_the_other_process_writes_each_once(node: NodeState, path: Path) -> None:
    async with History(node, path) as written:
        published: list[Transition] = []
        written.subscribe(published.append)
        node.report("db", Verdict.failed("before"))
        await until(lambda: "before" in [one.reason for one in published])
        async with HistoryFollower(node, path) as followed:
            await until(lambda: followed.last_id == written.last_id)
            received: list[Transition] = []
            followed.subscribe(received.append)
            node.report("db", Verdict.ready("again"))
            node.report("db", Verdict.failed("after"))
            await until(lambda: len(received) > 1)
            assert [(one.after, one.reason) for one in received] == [("Up", "again"), ("Down", "after")]
            assert await followed.latest("db") == await written.latest("db")
            assert await followed.after(received[0].id) == received[1:]
            assert followed.last_id == written.last_id
            assert (followed.problem, followed.is_healthy, followed.pruned_to) == (None, True, written.pruned_to)


@in_real_time
async def test_a_file_that_takes_long_to_read_at_the_start_is_followed_from_where_it_was_then(
    node: NodeState, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with History(node, path) as written:
        published: list[Transition] = []
        written.subscribe(published.append)
        node.report("db", Verdict.failed("before"))
        await until(lambda: "before" in [one.reason for one in published])
    ahead_us = 3_600_000_000  # the clock was an hour ahead when the file was written
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE transitions SET id = id + ?", (ahead_us,))
        database.commit()
        (end_id,) = database.execute("SELECT max(id) FROM transitions").fetchone()
    monkeypatch.setattr("svcnode.history.follower.OPEN_TIMEOUT_S", 0.0)
    async with HistoryFollower(node, path) as followed:
        received: list[Transition] = []
        followed.subscribe(received.append)
        await until(lambda: followed.is_healthy)
        await until(lambda: followed.last_id == end_id)
        assert received == []


@in_real_time
async def test_it_records_nothing_itself_and_its_buckets_are_those_of_the_file(node: NodeState, path: Path) -> None:
    async with History(node, path):
        node.report("db", Verdict.failed("before"))
        await asyncio.sleep(0.05)
    async with HistoryFollower(node, path) as followed:
        assert followed.last_id > 0
        buckets = await followed.buckets(["db"], HOURS)
        assert buckets["db"][-1].down_s + buckets["db"][-2].down_s > 0
        assert await followed.known_ids(["db", "other"]) == {"db"}
        node.report("db", Verdict.ready())
        followed.save_state("a state")
    async with History(node, path) as written:
        assert await written.load_state() is None
    with closing(sqlite3.connect(path)) as database:
        kinds = [kind for (kind,) in database.execute("SELECT kind FROM transitions ORDER BY id")]
    assert kinds == ["started", "status", "stopped", "started", "stopped"]


@in_real_time
async def test_a_file_that_is_missing_is_a_problem_until_it_is_there_and_one_of_another_node_is_not_read(
    node: NodeState, path: Path
) -> None:
    async with HistoryFollower(node, path) as followed:
        assert (followed.problem_code, followed.is_healthy) == (HistoryProblem.UNUSABLE, False)
        assert await followed.latest() == []
        received: list[Transition] = []
        followed.subscribe(received.append)
        async with History(node, path):
            await until(lambda: bool(received))
        assert received[0].kind == "started"
        assert followed.problem is None
    async with HistoryFollower(make_node("other", version="v1"), path) as followed:
        assert not followed.is_healthy
        assert await followed.latest() == []


@pytest.mark.parametrize(("later_s", "is_known"), [(60.0, True), (3600.0, False)])
@in_real_time
async def test_after_a_kill_the_file_says_nothing_beyond_its_last_record(
    harness: Harness, tmp_path: Path, later_s: float, is_known: bool
) -> None:
    """A node that does not answer may have written a moment ago."""
    copy = tmp_path / "history.db"
    async with harness.history() as (history, follower):
        harness.node.register("db", impact="critical").down("refused")
        harness.wait(130, history)
        await follower.until_received(2)
        await eventually(lambda: harness.rows("SELECT end_s FROM runs") == [(NOON + 120.0,)])
        with closing(sqlite3.connect(harness.path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
    until_s = NOON + 120.0 + later_s
    items = (await read_timeline(copy, Period(NOON - 60.0, until_s))).items
    assert outages(items) == [("db", "Down", 0.0, None if is_known else 2.0, is_known)]
    assert health(items)[-1] == ((503, 0.0, None, True) if is_known else (None, 2.0, None, True))
    within = (await read_timeline(copy, Period(NOON - 60.0, NOON + 90.0))).items
    assert outages(within) == [("db", "Down", 0.0, None, True)]
    after = (await read_timeline(copy, Period(NOON + 600.0, NOON + 700.0))).items
    assert (outages(after), health(after)) == ([], [(None, 2.0, None, True)])
    report, _ = await read_report(copy, NOON - 60.0, until_s, until_s)
    (outage,) = report.services["db"].outages
    assert (outage.is_open, outage.length_s) == (is_known, 120.0)


@in_real_time
async def test_a_file_of_a_node_that_has_stopped_says_so(harness: Harness) -> None:
    async with harness.history() as (history, _):
        harness.node.register("db").up()
        harness.wait(130, history)
    items = (await read_timeline(harness.path, Period(NOON - 60.0, NOON + 3600.0))).items
    assert health(items)[-1] == (None, pytest.approx(130 / 60), None, True)
    assert items[-1].kind == "stopped"
