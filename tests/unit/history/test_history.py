"""History as the rest of the node sees it: a real node, real threads and a real file."""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
import threading
from contextlib import asynccontextmanager, closing
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.model import Health, Verdict
from svcnode.core.redaction import register_secret
from svcnode.history import History, Transition, writer
from svcnode.history.database import Database
from svcnode.history.errors import CorruptionError, HistoryError
from svcnode.history.files import FileLock, quarantine
from svcnode.history.records import DAYS, HOURS, MINUTES, Bucket
from svcnode.node import Node
from svcnode.probes.function import FunctionProbe
from tests.support.virtual_time import VirtualClock, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

NOON = 1_767_268_800
PATIENCE_S = 10.0


class Follower:
    """Hears all that is told."""

    def __init__(self, history: History) -> None:
        self.told: list[Transition] = []
        self._heard = asyncio.Event()
        history.subscribe(self._hear)

    def _hear(self, transition: Transition) -> None:
        self.told.append(transition)
        self._heard.set()

    async def until(self, is_enough: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_enough():
                self._heard.clear()
                await self._heard.wait()

    async def until_told(self, count: int) -> list[Transition]:
        await self.until(lambda: len(self.told) >= count)
        return self.told

    @property
    def kinds(self) -> list[str]:
        return [transition.kind for transition in self.told]


class World:
    """A node and its clocks, which run in step; time passes when a test says so."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "state" / "history.db"
        self.clock = VirtualClock(1000.0)
        self.wall = VirtualClock(float(NOON))
        self.node = Node("validator-7", version="v1.4.2", clock=self.clock)

    @asynccontextmanager
    async def history(self, *, is_kept: bool = True, **words: Any) -> AsyncIterator[tuple[History, Follower]]:
        async with History(self.node, self.path if is_kept else None, wall_clock=self.wall, **words) as history:
            yield history, Follower(history)

    def wait(self, seconds: float, history: History) -> None:
        """Second by second, as the loop would."""
        for _ in range(int(seconds)):
            self.clock.advance(1.0)
            self.wall.advance(1.0)
            history._aggregator.tick(self.wall.now_s)
            history._close_minute()
            while history._aggregator.close_some(1000):
                pass

    def rows(self, question: str) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as reader:
            return reader.execute(question).fetchall()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def eventually(is_so: Callable[[], bool]) -> None:
    """What another thread is about to do."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():  # noqa: ASYNC110  it is seen from outside, and sets no event
            await asyncio.sleep(0.005)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever tries again does so at once."""
    monkeypatch.setattr(writer, "MIN_BACKOFF_S", 0.01)
    monkeypatch.setattr(writer, "MAX_BACKOFF_S", 0.01)


# ---- what is told and kept


def test_a_transition_is_in_the_file_when_it_is_told(world: World) -> None:
    async def story() -> None:
        found: list[bool] = []
        async with world.history() as (history, follower):
            history.subscribe(
                lambda told: found.append(bool(world.rows(f"SELECT 1 FROM transitions WHERE id = {told.id}")))
            )
            database = world.node.register("db")
            for _ in range(20):
                database.up()
                database.down("out of disk")
            await follower.until_told(41)
        assert found == [True] * len(found)
        assert len(found) >= 41

    asyncio.run(story())


def test_every_change_is_told_once_and_in_order_with_its_reason(world: World) -> None:
    async def story() -> list[Transition]:
        async with world.history() as (_, follower):
            database = world.node.register("db", impact="critical")
            database.up()
            database.down("out of disk")
            database.deregister()
            world.node.drain()
            await follower.until(lambda: "node" in follower.kinds)
        return follower.told

    told = asyncio.run(story())
    assert [(one.kind, one.service_id, one.before, one.after, one.reason) for one in told] == [
        ("started", None, None, None, "svcnode 0.1.0"),
        ("registered", "db", None, "Initializing", "no evidence yet"),
        ("status", "db", "Initializing", "Up", ""),
        ("status", "db", "Up", "Down", "out of disk"),
        ("deregistered", "db", "Down", None, ""),
        ("node", None, None, None, ""),
        ("stopped", None, None, None, "svcnode 0.1.0"),
    ]
    assert [(one.health_before, one.health) for one in told[2:4]] == [(206, 200), (200, 503)]
    assert [one.id for one in told] == sorted({one.id for one in told})


def test_silence_is_dated_when_it_began_not_when_it_was_noticed(world: World) -> None:
    async def story() -> tuple[Transition, Bucket]:
        world.node.register("db", ttl="30s")
        async with world.history() as (history, follower):
            world.node.beat("db")
            world.wait(45, history)
            world.node.expire_stale()
            await follower.until(lambda: any(one.after == "Down" for one in follower.told))
            bars = await history.buckets(["db"], MINUTES)
        return follower.told[-2], bars["db"][-1]

    transition, bar = asyncio.run(story())
    assert (transition.after, transition.at_s) == ("Down", NOON + 30)
    assert (bar.up_s, bar.down_s) == (30.0, 15.0)


def test_a_service_that_falls_silent_just_as_history_begins_is_no_trap(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> list[Transition]:
        world.node.register("db", ttl="30s")
        world.node.beat("db")
        world.clock.advance(60)
        monkeypatch.setattr(Node, "health", Health.HEALTHY)  # or else it would be noticed a moment before
        async with world.history() as (_, follower):
            await follower.until_told(2)
        return follower.told

    told = asyncio.run(story())
    assert [(one.kind, one.after) for one in told[:2]] == [("started", None), ("status", "Down")]


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError, SystemExit])
def test_one_that_fails_to_listen_keeps_nobody_else_from_it(
    world: World, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(told: Transition) -> None:
        raise error(told.kind)

    async def story() -> int:
        async with History(world.node, world.path) as history:
            history.subscribe(fail)
            follower = Follower(history)
            world.node.drain()
            return len(await follower.until_told(1))

    assert asyncio.run(story())
    assert "a listener to the history failed" in caplog.text


def test_other_limits_are_taken_over_while_it_follows(world: World) -> None:
    async def story() -> None:
        async with world.history() as (history, follower):
            world.node.register("db").up()
            await follower.until_told(2)
            world.wall.advance(86_400.0)
            history.reconfigure(world.path, max_age_s=3600.0)
            await eventually(lambda: world.rows("SELECT count(*) FROM transitions") == [(0,)])
            assert history.problem is None

    asyncio.run(story())


@pytest.mark.parametrize("is_kept", [True, False])
def test_what_takes_a_restart_is_told_for_as_long_as_it_is_wanted(
    world: World, caplog: pytest.LogCaptureFixture, is_kept: bool
) -> None:
    used, wanted = (world.path, None) if is_kept else (None, world.path)

    async def story() -> str | None:
        async with world.history(is_kept=is_kept) as (history, _):
            limits = history._writer and history._writer._limits
            history.reconfigure(wanted, max_age_s=3600.0)
            told = history.problem
            assert history.is_healthy
            assert (history._writer and history._writer._limits) == limits, "those are meant for another file"
            history.reconfigure(used)
            assert history.problem is None
            return told

    told = asyncio.run(story())
    assert told == (
        f"it is kept in {world.path}, as it was at the start; the configuration now wants it not to be kept: "
        "restart the node for that"
        if is_kept
        else "none is kept in a file, as it was at the start; the configuration now wants it to be kept in "
        f"{world.path}: restart the node for that"
    )
    assert caplog.messages == [f"history: {told}"]


def test_a_note_outlives_the_process(world: World) -> None:
    async def story(note: str) -> str | None:
        async with world.history() as (history, _):
            found = await history.load_state()
            history.save_state(note)
            assert await history.load_state() == found, "it is that of the one before"
            return found

    assert asyncio.run(story("first")) is None
    assert asyncio.run(story("second")) == "first"


def test_without_a_file_no_note_is_kept_or_waited_for(world: World) -> None:
    async def story() -> str | None:
        async with world.history(is_kept=False) as (history, _):
            history.save_state("first")
            return await history.load_state()

    assert asyncio.run(story()) is None


def test_the_note_is_waited_for_while_another_has_the_file(world: World, hurried: None) -> None:
    async def story() -> str | None:
        async with world.history() as (history, _):
            history.save_state("first")
        claim = FileLock(world.path)
        async with world.history() as (history, _):
            asking = asyncio.create_task(history.load_state())
            await eventually(lambda: history.problem is not None)
            assert not asking.done()
            claim.release()
            async with asyncio.timeout(PATIENCE_S):
                return await asking

    assert asyncio.run(story()) == "first"


def test_many_are_told_in_portions_with_turns_for_others_in_between(world: World) -> None:
    async def story() -> list[int]:
        async with world.history() as (_, follower):
            database = world.node.register("db")
            for _ in range(200):
                database.up()
                database.down()
            seen: list[int] = []
            while len(follower.told) < 400:
                await asyncio.sleep(0)
                seen.append(len(follower.told))
        return seen

    seen = asyncio.run(story())
    assert max(after - before for before, after in pairwise(seen)) <= 50


def test_no_secret_and_no_half_character_reaches_the_file(world: World) -> None:
    async def story() -> str:
        register_secret("hunter2-hunter2")
        async with world.history() as (_, follower):
            world.node.register("db").down("password hunter2-hunter2 refused \ud800\0")
            await follower.until(lambda: "status" in follower.kinds)
        return follower.told[-2].reason

    assert asyncio.run(story()) == "password *** refused ?�"
    assert world.rows("SELECT reason FROM transitions WHERE kind = 'status'") == [("password *** refused ?�",)]
    assert b"hunter2" not in world.path.read_bytes()


# ---- over restarts


def test_ids_grow_over_restarts_even_when_the_clock_was_set_back(world: World) -> None:
    async def story() -> list[Transition]:
        async with world.history() as (_, follower):
            world.node.drain()
            await follower.until_told(2)
        return follower.told

    first = asyncio.run(story())
    world.wall.advance(-86_400)
    world.node = Node("validator-7", version="v1.4.2", clock=world.clock)
    second = asyncio.run(story())
    assert second[0].id == first[-1].id + 1
    assert second[0].at_s == NOON - 86_400
    assert [one.id for one in second] == sorted({one.id for one in second})


def test_who_comes_after_a_restart_can_go_on_from_what_they_saw_before(world: World) -> None:
    async def story() -> tuple[int, list[Transition], list[Transition]]:
        async with world.history() as (history, follower):
            last_id = history.last_id
            await follower.until_told(1)
            return last_id, await history.after(0), follower.told

    _, _, first = asyncio.run(story())
    last_id, after, second = asyncio.run(story())
    assert last_id == first[-1].id
    assert after == [*first, second[0]]


def test_an_end_without_a_word_is_told_at_the_next_start(world: World, tmp_path: Path) -> None:
    async def reason_at_start() -> str:
        async with world.history() as (_, follower):
            reason = (await follower.until_told(1))[0].reason
            if not (tmp_path / "killed").exists():
                shutil.copytree(world.path.parent, tmp_path / "killed")
        return reason

    assert asyncio.run(reason_at_start()) == "svcnode 0.1.0"
    assert asyncio.run(reason_at_start()) == "svcnode 0.1.0"
    world.path = tmp_path / "killed" / "history.db"
    assert "the one before it ended without a word" in asyncio.run(reason_at_start())


def test_time_between_two_processes_is_nobodys(world: World) -> None:
    async def ten_seconds() -> list[Bucket]:
        async with world.history() as (history, _):
            world.wait(10, history)
            return (await history.buckets(["db"], HOURS))["db"]

    world.node.register("db").up()
    asyncio.run(ten_seconds())
    world.wall.advance(600)
    bars = asyncio.run(ten_seconds())
    assert bars[-1] == Bucket(NOON, up_s=20.0)


# ---- bars


def test_bars_are_as_many_as_are_shown_the_one_under_way_last_with_none_left_out(world: World) -> None:
    async def story() -> None:
        world.node.register("db").up()
        async with world.history() as (history, _):
            world.wait(150, history)
            for span in (MINUTES, HOURS, DAYS):
                bars = (await history.buckets(["db", "nobody"], span))["db"]
                last_s = span.begin_s(world.wall.now_s)
                begins_s = [last_s - place * span.length_s for place in reversed(range(span.bucket_count))]
                assert [bar.begin_s for bar in bars] == begins_s
                assert sum(bar.up_s for bar in bars) == 150
                assert sum(bar.known_s for bar in bars) == 150
            minutes = (await history.buckets(["db", "nobody"], MINUTES))["db"]
            assert [bar.up_s for bar in minutes[-4:]] == [0, 60, 60, 30]
            assert (await history.buckets(["nobody"], MINUTES))["nobody"][-1] == Bucket(NOON + 120)

    asyncio.run(story())


def test_no_minute_is_missing_or_counted_twice_while_it_goes_into_the_file(world: World) -> None:
    async def story() -> None:
        world.node.register("db").up()
        async with world.history() as (history, _):
            for minute in range(1, 20):
                world.wait(60, history)
                for _ in range(5):
                    bars = (await history.buckets(["db"], MINUTES))["db"]
                    assert sum(bar.up_s for bar in bars) == 60 * minute

    asyncio.run(story())


def test_looks_are_counted_and_reports_are_not(world: World) -> None:
    async def story() -> tuple[Bucket, Bucket]:
        world.node.register("looked-at", probe=FunctionProbe(lambda: None))
        world.node.register("reported").up()
        async with world.history() as (history, _):
            for verdict in (Verdict.ready(), Verdict.not_ready("syncing"), Verdict.failed("no"), Verdict.unknown("?")):
                world.node.record("looked-at", verdict, duration_s=0.25)
            world.node.record("reported", Verdict.failed("no"))
            bars = await history.buckets(["looked-at", "reported"], MINUTES)
        return bars["looked-at"][-1], bars["reported"][-1]

    looked_at, reported = asyncio.run(story())
    assert (looked_at.checks, looked_at.failures, looked_at.latency_sum_s) == (3, 1, 0.75)
    assert reported.checks == 0


def test_a_minute_of_many_services_does_not_hold_the_loop(world: World) -> None:
    async def story() -> list[int]:
        for number in range(1000):
            world.node.register(f"s{number}")
        async with world.history() as (history, _):
            for _ in range(60):
                world.wall.advance(1.0)
                history._aggregator.tick(world.wall.now_s)
            history._close_minute()
            closed = [0]
            while (closing := history._aggregator._closing) is not None:
                closed.append(len(closing.buckets))
                await asyncio.sleep(0)
        return closed

    closed = asyncio.run(story())
    assert closed[-1] == 1000
    assert max(after - before for before, after in pairwise(closed)) <= 200


# ---- without a file


def test_without_a_file_memory_answers_for_as_long_as_the_process_runs(world: World) -> None:
    async def story() -> None:
        async with world.history(is_kept=False) as (history, follower):
            before = history.last_id
            world.node.register("db").up("ready")
            await follower.until_told(3)
            assert history.pruned_to == before < follower.told[0].id
            assert await history.after(before) == follower.told
            assert await history.latest("db", 1) == follower.told[:-2:-1]
            world.wait(70, history)
            assert [bar.up_s for bar in (await history.buckets(["db"], MINUTES))["db"][-2:]] == [60, 10]
            assert (history.problem, history.is_healthy) == (None, True)
            assert not world.path.parent.exists()

    asyncio.run(story())


# ---- when the file cannot be written


@pytest.mark.usefixtures("hurried")
def test_while_another_program_holds_the_file_all_is_told_at_once_and_written_later(world: World) -> None:
    async def story() -> list[Transition]:
        async with world.history() as (history, follower):
            await follower.until_told(1)
            with closing(sqlite3.connect(world.path, isolation_level=None)) as stranger:
                stranger.execute("BEGIN EXCLUSIVE")
                database = world.node.register("db")
                database.up()
                await follower.until_told(3)
                assert re.search("another program holds .*history.db locked", history.problem or "")
                assert not history.is_healthy
                assert await history.after(follower.told[0].id) == follower.told[1:3]
                stranger.execute("COMMIT")
            await eventually(lambda: history.is_healthy)
            assert history.problem is None
            database.down()
            await follower.until_told(4)
        return follower.told

    told = asyncio.run(story())
    assert [row[0] for row in world.rows("SELECT id FROM transitions ORDER BY id")] == [one.id for one in told]


@pytest.mark.usefixtures("hurried")
def test_a_file_of_another_svcnode_is_neither_written_nor_read(world: World) -> None:
    async def story() -> None:
        async with world.history():
            pass
        claim = FileLock(world.path)
        before = world.path.read_bytes()
        async with world.history() as (history, follower):
            await follower.until_told(1)
            assert re.search(
                r"history.db belongs to another svcnode \(process \d+\), .* \[history\] path", history.problem or ""
            )
            assert await history.after(0) == follower.told
            assert world.path.read_bytes() == before
            claim.release()
            await eventually(lambda: history.is_healthy)
            assert len(world.rows("SELECT id FROM transitions")) == 3

    asyncio.run(story())


@pytest.mark.parametrize("what", ["database", "novel"])
def test_what_belongs_to_somebody_else_is_left_as_it_is(world: World, what: str) -> None:
    world.path.parent.mkdir()
    if what == "novel":
        world.path.write_text("the only copy of a novel")
    else:
        world.rows("CREATE TABLE ledger (entry)")
    before = world.path.read_bytes()

    async def story() -> str | None:
        async with world.history() as (history, follower):
            await follower.until_told(1)
            return history.problem

    problem = asyncio.run(story())
    assert "name another file in [history] path" in (problem or "")
    assert world.path.read_bytes() == before
    assert [one.name for one in world.path.parent.iterdir()] == ["history.db"]


def damage(path: Path, *, is_beginning_spared: bool = True) -> None:
    size = path.stat().st_size
    first = 2 * 4096 if is_beginning_spared else 0
    with path.open("r+b") as file:
        file.seek(first)
        file.write(b"\xa5" * (size - first))


@pytest.mark.parametrize("is_beginning_spared", [True, False])
def test_a_damaged_file_is_set_aside_at_the_start_and_a_new_one_begun(
    world: World, caplog: pytest.LogCaptureFixture, is_beginning_spared: bool
) -> None:
    async def story() -> str | None:
        async with world.history() as (history, follower):
            await follower.until_told(1)
            assert history.is_healthy
            return history.problem

    asyncio.run(story())
    damage(world.path, is_beginning_spared=is_beginning_spared)
    problem = asyncio.run(story())
    assert problem is not None
    assert re.search(r"is damaged: .*; it was set aside as history\.db\.corrupt-20260101T120000Z, and a new", problem)
    assert problem in caplog.text
    assert world.path.with_name("history.db.corrupt-20260101T120000Z").exists()
    assert [kind for (kind,) in world.rows("SELECT kind FROM transitions ORDER BY id")] == ["started", "stopped"]


def test_a_file_that_is_damaged_while_it_is_used_is_set_aside_when_that_is_seen(world: World) -> None:
    async def story() -> None:
        async with world.history() as (history, follower):
            database = world.node.register("db")
            for _ in range(50):
                database.up()
                database.down("a long story " * 100)
            await follower.until_told(102)
            with closing(sqlite3.connect(world.path)) as other:
                other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            damage(world.path)
            before = history.last_id
            await history.after(0)  # finds out
            await eventually(lambda: "set aside" in (history.problem or ""))
            database.up()
            await follower.until_told(103)
            assert history.is_healthy
            assert await history.after(0) == [follower.told[-1]]
            assert history.pruned_to >= before

    asyncio.run(story())
    assert [kind for (kind,) in world.rows("SELECT kind FROM transitions ORDER BY id")] == ["status", "stopped"]


@pytest.mark.usefixtures("hurried")
def test_a_disk_that_damages_one_file_after_another_is_left_alone_for_a_while(world: World) -> None:
    async def story() -> None:
        async with world.history() as (history, follower):
            await follower.until_told(1)
            writer = history._writer
            assert writer is not None
            writer.report_corruption(CorruptionError("damaged"), generation=0)
            await eventually(lambda: writer.generation == 1 and writer.is_readable)
            writer.report_corruption(CorruptionError("damaged"), generation=1)
            await eventually(lambda: "is the disk sound?" in (history.problem or ""))
            writer.report_corruption(CorruptionError("damaged"), generation=0)  # by one who has read the first

    asyncio.run(story())
    assert len([one for one in world.path.parent.iterdir() if ".corrupt-" in one.name]) == 1


def test_a_new_file_is_not_suspected_for_the_one_before_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with world.history() as (history, follower):
            await follower.until_told(1)
            kept = history._writer
            assert kept is not None

            def read_meanwhile(path: Path, now_s: float) -> Path:
                kept.report_corruption(CorruptionError("damaged"), generation=0)
                return quarantine(path, now_s)

            monkeypatch.setattr(writer, "quarantine", read_meanwhile)
            kept.report_corruption(CorruptionError("damaged"), generation=0)
            await eventually(lambda: kept.generation == 1)
            world.node.drain()
            await follower.until_told(2)
            assert history.is_healthy

    asyncio.run(story())
    assert world.rows("SELECT kind FROM transitions ORDER BY id") == [("node",), ("stopped",)]


def test_a_file_that_is_removed_while_it_is_used_is_begun_anew(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> list[int]:
        async with world.history() as (history, follower):
            await follower.until_told(1)
            shutil.rmtree(world.path.parent)
            world.node.drain()
            await follower.until_told(2)
            assert history.pruned_to >= follower.told[0].id
            assert history.is_healthy
        return [one.id for one in follower.told[1:]]

    ids = asyncio.run(story())
    assert [number for (number,) in world.rows("SELECT id FROM transitions ORDER BY id")] == ids
    assert "was removed or replaced while it was in use" in caplog.text


def test_a_lock_that_is_removed_alone_is_made_anew(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer, "LOCK_CHECK_INTERVAL_S", 0.01)  # nothing has to be written for it to be noticed
    lock = world.path.with_name("history.db-lock")

    async def story() -> None:
        async with world.history() as (history, follower):
            await follower.until_told(1)
            lock.unlink()
            await eventually(lock.exists)
            await eventually(lambda: lock.read_text() != "")
            with pytest.raises(HistoryError, match="belongs to another svcnode"):
                FileLock(world.path)
            world.node.drain()
            await follower.until_told(2)
            assert history.is_healthy
            assert await history.after(0) == follower.told

    asyncio.run(story())
    assert "history.db-lock was removed while it was in use" in caplog.text


@pytest.mark.usefixtures("hurried")
def test_who_took_the_file_after_its_lock_was_removed_is_the_only_one_to_write(world: World) -> None:
    async def story() -> None:
        async with world.history() as (history, follower):
            await follower.until_told(1)
            world.path.with_name("history.db-lock").unlink()
            other = FileLock(world.path)
            world.node.drain()
            await follower.until_told(2)
            assert "belongs to another svcnode" in (history.problem or "")
            assert len(world.rows("SELECT id FROM transitions")) == 1
            assert await history.after(0) == follower.told[1:], "what stands in the file is the other's now"
            assert history.pruned_to >= follower.told[0].id, "and whoever asks for it is told so"
            other.release()
            await eventually(lambda: history.is_healthy)
            assert len(world.rows("SELECT id FROM transitions")) == 2

    asyncio.run(story())


@pytest.mark.parametrize("is_kept", [True, False])
def test_of_whom_anything_is_kept_is_known(world: World, is_kept: bool) -> None:
    async def story() -> set[str]:
        async with world.history(is_kept=is_kept) as (history, follower):
            world.node.register("gone").deregister()
            world.node.register("here")
            await follower.until_told(4)
            return await history.known_ids(["gone", "here", "zzz"])

    assert asyncio.run(story()) == {"gone", "here"}


@pytest.mark.usefixtures("hurried")
def test_a_fault_of_our_own_ends_neither_the_thread_nor_the_telling(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with world.history() as (history, follower):
            await follower.until_told(1)
            with monkeypatch.context() as broken:
                broken.setattr(Database, "write", lambda *_: 1 // 0)
                world.node.drain()
                await follower.until_told(2)
                assert not history.is_healthy
            await eventually(lambda: history.is_healthy)

    asyncio.run(story())
    assert "ZeroDivisionError" in caplog.text
    assert len(world.rows("SELECT id FROM transitions")) == 3


@in_virtual_time
async def test_without_a_thread_to_be_had_the_node_starts_and_tells_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    world = World(tmp_path)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    async with world.history() as (history, follower):
        world.node.drain()
        await follower.until_told(2)
        assert "no thread" in (history.problem or "")
        assert not history.is_healthy
    assert follower.kinds == ["started", "node", "stopped"]


class HungDisk:
    """Whatever is called there waits until it is let go."""

    def __init__(self) -> None:
        self.is_free = threading.Event()

    def __call__(self, *_: object, **__: object) -> None:
        self.is_free.wait(PATIENCE_S)
        raise OSError(5, "Input/output error")


@in_virtual_time
async def test_a_disk_that_hangs_keeps_nobody_from_being_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, disk = World(tmp_path), HungDisk()
    monkeypatch.setattr(Database, "write", disk)
    loop = asyncio.get_running_loop()
    async with world.history() as (history, follower):
        world.node.drain()
        began_s = loop.time()
        await follower.until_told(2)
        assert 1.0 <= loop.time() - began_s <= 3.0
        assert "takes long to write" in (history.problem or "")
        assert not history.is_healthy
        ending_s = loop.time()
    assert loop.time() - ending_s == 2.0
    assert follower.kinds == ["started", "node", "stopped"]
    disk.is_free.set()


@in_virtual_time
async def test_a_disk_that_hangs_delays_the_start_by_a_fifth_of_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, disk = World(tmp_path), HungDisk()
    monkeypatch.setattr(Database, "__init__", disk)
    loop = asyncio.get_running_loop()
    async with world.history() as (history, _):
        assert loop.time() == pytest.approx(0.2)
        assert history.last_id == NOON * 10**6
    disk.is_free.set()
