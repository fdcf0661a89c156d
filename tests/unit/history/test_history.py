"""History with a real node, real threads and a real file."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import threading
from contextlib import asynccontextmanager, closing
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Health, Maintenance, Status, Verdict
from svcnode.core.redaction import register_secret
from svcnode.history import History, Transition, writer
from svcnode.history.database import Database
from svcnode.history.errors import FORGET_NODE_NAME, CorruptionError, HistoryError, HistoryProblem
from svcnode.history.files import FileLock, quarantine
from svcnode.history.records import DAYS, HOURS, MINUTES, Bucket
from svcnode.history.timeline import Period
from svcnode.node.definition import define
from svcnode.node.node_state import Handle, NodeState
from svcnode.probes.function import FunctionProbe
from tests.support.disks import MemoryDisk
from tests.support.nodes import beat, make_node, record
from tests.support.real_time import in_real_time
from tests.support.virtual_time import VirtualClock, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

NOON = 1_767_268_800
DEADLINE_S = 30.0


class Follower:
    """Collects all published transitions."""

    def __init__(self, history: History) -> None:
        self.received: list[Transition] = []
        self._event = asyncio.Event()
        history.subscribe(self._on_transition)

    def _on_transition(self, transition: Transition) -> None:
        self.received.append(transition)
        self._event.set()

    async def until(self, is_enough: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not is_enough():
                self._event.clear()
                await self._event.wait()

    async def until_received(self, count: int) -> list[Transition]:
        await self.until(lambda: len(self.received) >= count)
        return self.received

    @property
    def kinds(self) -> list[str]:
        return [transition.kind for transition in self.received]


class Harness:
    """A node with a monotonic clock and a wall clock that the test advances together."""

    def __init__(self, folder: Path, name: str = "validator-7") -> None:
        self.path = folder / "state" / "history.db"
        self.clock = VirtualClock(1000.0)
        self.wall = VirtualClock(float(NOON))
        self.node = make_node(name, version="v1.4.2", clock=self.clock)

    @asynccontextmanager
    async def history(self, *, has_file: bool = True, **options: Any) -> AsyncIterator[tuple[History, Follower]]:
        async with History(self.node, self.path if has_file else None, wall_clock=self.wall, **options) as history:
            yield history, Follower(history)

    def wait(self, seconds: float, history: History) -> None:
        """Advance the clocks second by second, as the loop does."""
        for _ in range(int(seconds)):
            self.clock.advance(1.0)
            self.wall.advance(1.0)
            history._notice_breaks()
            history._aggregator.tick(self.wall.now_s)
            history._close_minute()
            while history._aggregator.close_some(1000):
                pass

    def rows(self, statement: str) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as reader:
            return reader.execute(statement).fetchall()


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


async def eventually(is_so: Callable[[], bool]) -> None:
    """Poll for an effect of another thread."""
    async with asyncio.timeout(DEADLINE_S):
        while not is_so():  # noqa: ASYNC110  the condition sets no event
            await asyncio.sleep(0.005)


@pytest.fixture
def fast_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry at once."""
    monkeypatch.setattr(writer, "MIN_BACKOFF_S", 0.01)
    monkeypatch.setattr(writer, "MAX_BACKOFF_S", 0.01)


@in_real_time
async def test_a_transition_is_in_the_file_when_it_is_published(harness: Harness) -> None:
    found: list[bool] = []
    async with harness.history() as (history, follower):
        history.subscribe(
            lambda one: found.append(bool(harness.rows(f"SELECT 1 FROM transitions WHERE id = {one.id}")))
        )
        database = harness.node.register("db")
        for _ in range(20):
            database.up()
            database.down("out of disk")
        await follower.until_received(41)
    assert found == [True] * len(follower.received)


@in_real_time
async def test_every_change_is_published_once_in_order_with_its_code_and_without_secrets(harness: Harness) -> None:
    register_secret("hunter2-hunter2")
    async with harness.history() as (history, follower):
        database = harness.node.register("db", impact="critical")
        database.up()
        database.down("password hunter2-hunter2 refused \ud800\0")
        database.deregister()
        harness.node.overrides.drain()
        await follower.until(lambda: "node" in follower.kinds)
        assert await history.known_ids(["db", "zzz"]) == {"db"}
    received = follower.received
    assert [(one.kind, one.service_id, one.before, one.after, one.code) for one in received] == [
        ("started", None, None, None, None),
        ("registered", "db", None, "Initializing", ReasonCode.NO_EVIDENCE),
        ("status", "db", "Initializing", "Up", ReasonCode.REPORTED),
        ("status", "db", "Up", "Down", ReasonCode.REPORTED),
        ("deregistered", "db", "Down", None, None),
        ("node", None, None, None, None),
        ("stopped", None, None, None, None),
    ]
    assert received[3].reason == "password *** refused \\ud800\\x00"
    assert harness.rows("SELECT reason FROM transitions WHERE after = 'Down'") == [(received[3].reason,)]
    assert b"hunter2" not in harness.path.read_bytes()
    assert [(one.health_before, one.health) for one in received[2:4]] == [(206, 200), (200, 503)]
    assert [one.id for one in received] == sorted({one.id for one in received})


@in_real_time
async def test_an_expired_ttl_is_dated_when_it_expired_not_when_it_was_noticed(harness: Harness) -> None:
    harness.node.register("db", ttl="30s")
    async with harness.history() as (history, follower):
        beat(harness.node, "db")
        harness.wait(45, history)
        harness.node.expire_stale()
        await follower.until(lambda: any(one.after == "Down" for one in follower.received))
        buckets = await history.buckets(["db"], MINUTES)
    transition, bucket = follower.received[-2], buckets["db"][-1]
    assert (transition.after, transition.at_s) == ("Down", NOON + 30)
    assert (bucket.up_s, bucket.down_s) == (30.0, 15.0)


@in_real_time
async def test_a_service_whose_ttl_expires_at_the_start_of_history_causes_no_deadlock(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.node.register("db", ttl="30s")
    beat(harness.node, "db")
    harness.clock.advance(60)
    monkeypatch.setattr(NodeState, "health", Health.HEALTHY)  # reading the real health would expire the service
    async with harness.history() as (_, follower):
        await follower.until_received(2)
    received = follower.received
    assert [(one.kind, one.after) for one in received[:2]] == [("started", None), ("status", "Down")]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
@in_real_time
async def test_a_listener_that_raises_does_not_affect_other_listeners(
    harness: Harness, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(transition: Transition) -> None:
        raise error(transition.kind)

    async with History(harness.node, harness.path) as history:
        history.subscribe(fail)
        follower = Follower(history)
        harness.node.overrides.drain()
        found = len(await follower.until_received(1))
    assert found
    assert {record.exc_info[0] for record in caplog.records if record.exc_info} == {error}


@in_real_time
async def test_new_limits_apply_while_running(harness: Harness) -> None:
    async with harness.history() as (history, follower):
        harness.node.register("db").up()
        await follower.until_received(2)
        harness.clock.advance(86_400.0)
        harness.wall.advance(86_400.0)
        history.reconfigure(harness.path, max_age_s=3600.0)
        await eventually(lambda: harness.rows("SELECT count(*) FROM transitions") == [(0,)])
        assert history.problem is None


@pytest.mark.parametrize("has_file", [True, False])
@in_real_time
async def test_a_new_path_is_a_problem_until_it_is_reverted(
    harness: Harness, caplog: pytest.LogCaptureFixture, has_file: bool
) -> None:
    current, configured = (harness.path, None) if has_file else (None, harness.path)
    async with harness.history(has_file=has_file) as (history, _):
        limits = history._writer and history._writer.config.limits
        history.reconfigure(configured, max_age_s=3600.0)
        assert (history.problem_code, history.is_healthy) == (HistoryProblem.RESTART_REQUIRED, True)
        assert (history._writer and history._writer.config.limits) == limits, "the new limits are for another file"
        history.reconfigure(current)
        assert history.problem is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]


# ---- the node that the file belongs to


def is_unlocked(path: Path) -> bool:
    try:
        FileLock(path).release()
    except HistoryError:  # the moment of a retry
        return False
    return True


async def record_one(harness: Harness) -> None:
    async with harness.history() as (history, follower):
        history.save_state("incidents of " + harness.node.identity.node_name)
        harness.node.register("db").up()
        await follower.until_received(2)


@pytest.mark.usefixtures("fast_retry")
@in_real_time
async def test_the_file_of_another_node_is_not_used_until_it_is_given_up(harness: Harness, tmp_path: Path) -> None:
    other = Harness(tmp_path, "validator-8")
    await record_one(harness)
    before = harness.path.read_bytes()
    async with other.history() as (history, follower):
        assert (history.problem_code, history.is_healthy) == (HistoryProblem.OTHER_NODE, False)
        other.node.register("cache").up()
        await follower.until_received(2)
        assert {one.service_id for one in await history.latest()} == {None, "cache"}
        assert not await history.known_ids(["db"])
        assert harness.path.read_bytes() == before
        await eventually(lambda: is_unlocked(harness.path))
        assert history._writer is not None
        assert not history._writer.saved_state.done()
        with closing(sqlite3.connect(harness.path)) as database, database:
            database.execute(FORGET_NODE_NAME)
        await eventually(lambda: history.problem is None)
        assert await history.known_ids(["db", "cache"]) == {"db", "cache"}
    async with harness.history() as (history, _):
        assert history.problem_code == HistoryProblem.OTHER_NODE


@in_real_time
async def test_a_file_of_another_node_that_replaces_the_file_is_not_written(harness: Harness, tmp_path: Path) -> None:
    other = Harness(tmp_path / "other", "validator-8")
    await record_one(other)
    before = other.path.read_bytes()
    async with harness.history() as (history, follower):
        await follower.until_received(1)
        shutil.copy(other.path, tmp_path / "copy.db")
        for suffix in ("-wal", "-shm"):
            harness.path.with_name(harness.path.name + suffix).unlink()
        (tmp_path / "copy.db").replace(harness.path)
        harness.node.register("cache").up()
        await eventually(lambda: history.problem_code == HistoryProblem.OTHER_NODE)
        assert not await history.known_ids(["db"])
    assert harness.path.read_bytes() == before


@pytest.mark.parametrize("is_default_path", [True, False])
@in_real_time
async def test_the_file_of_a_renamed_node_keeps_its_records(
    harness: Harness, tmp_path: Path, is_default_path: bool
) -> None:
    new_path = tmp_path / "validator-8" / "history.db" if is_default_path else harness.path
    old_path = harness.path
    async with harness.history() as (history, follower):
        history.save_state("incidents")
        harness.node.register("db").up()
        await follower.until_received(2)
        harness.node.set_identity(name="validator-8", version="v1.4.2")
        history.reconfigure(new_path, moved_from=old_path if is_default_path else None)
        harness.path = new_path
        await eventually(new_path.exists)
        harness.node.register("cache").up()
        await follower.until(lambda: follower.kinds.count("registered") == 2)
        assert await history.known_ids(["db", "cache"]) == {"db", "cache"}
        assert history.problem is None
    assert harness.rows("SELECT text FROM saved_state ORDER BY name") == [("validator-8",), ("incidents",)]
    assert old_path.parent.exists() is not is_default_path
    async with harness.history() as (history, _):
        assert history.problem is None


@pytest.mark.usefixtures("fast_retry")
@in_real_time
async def test_the_file_of_a_renamed_node_does_not_replace_that_of_another(harness: Harness, tmp_path: Path) -> None:
    other = Harness(tmp_path / "other", "validator-8")
    await record_one(other)
    before = other.path.read_bytes()
    async with harness.history() as (history, follower):
        await follower.until_received(1)
        harness.node.set_identity(name="validator-8", version="v1.4.2")
        history.reconfigure(other.path, moved_from=harness.path)
        await eventually(lambda: history.problem_code == HistoryProblem.OTHER_NODE)
        assert other.path.read_bytes() == before
        other.path.rename(tmp_path / "away.db")
        await eventually(lambda: history.problem is None)
    assert not harness.path.exists()
    assert other.rows("SELECT text FROM saved_state") == [("validator-8",)]


@pytest.mark.usefixtures("fast_retry")
@in_real_time
async def test_a_renamed_node_does_not_move_a_file_that_is_not_its_own(harness: Harness, tmp_path: Path) -> None:
    other, new_path = Harness(tmp_path, "validator-8"), tmp_path / "validator-9" / "history.db"
    await record_one(harness)
    before = harness.path.read_bytes()
    async with other.history() as (history, _):
        assert history.problem_code == HistoryProblem.OTHER_NODE
        other.node.set_identity(name="validator-9", version="v1.4.2")
        history.reconfigure(new_path, moved_from=harness.path)
        await eventually(lambda: history.problem is None)
        assert not await history.known_ids(["db"])
    assert harness.path.read_bytes() == before
    assert new_path.exists()


@in_real_time
async def test_a_missing_folder_is_a_problem_until_the_history_is_disabled(
    harness: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    async with harness.history(has_file=False) as (history, _):
        for _ in range(2):
            history.set_has_folder(False)
            assert history.problem_code == HistoryProblem.NO_FOLDER
        history.set_has_folder(True)
        assert history.problem is None
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.usefixtures("fast_retry")
@in_real_time
async def test_saved_state_is_loaded_by_the_next_process_once_the_previous_one_has_released_the_file(
    harness: Harness,
) -> None:
    for text, before in (("first", None), ("second", "first")):
        async with harness.history() as (history, _):
            assert await history.load_state() == before
            history.save_state(text)
            assert await history.load_state() == before, "the state of the previous process"
    lock = FileLock(harness.path)
    async with harness.history() as (history, _):
        loading = asyncio.create_task(history.load_state())
        loading_latest = asyncio.create_task(history.load_latest(3))
        await eventually(lambda: history.problem is not None)
        assert not loading.done()
        assert not loading_latest.done()
        lock.release()
        async with asyncio.timeout(DEADLINE_S):
            assert await loading == "second"
            latest = await loading_latest
    assert [transition.id for transition in latest] == sorted(transition.id for transition in latest)
    assert "stopped" in [transition.kind for transition in latest], "of the previous process"


@pytest.mark.usefixtures("fast_retry")
@in_real_time
async def test_a_file_that_is_opened_late_and_whose_ids_are_ahead_of_the_clock_is_loaded(harness: Harness) -> None:
    await record_one(harness)
    lock = FileLock(harness.path)
    harness.wall.advance(-3600.0)
    async with harness.history() as (history, _):
        loading = asyncio.create_task(history.load_latest(50))
        await eventually(lambda: history.problem is not None)
        lock.release()
        async with asyncio.timeout(DEADLINE_S):
            latest = await loading
    assert "stopped" in [transition.kind for transition in latest]


@in_real_time
async def test_many_transitions_are_published_in_steps(harness: Harness) -> None:
    async with harness.history() as (_, follower):
        await follower.until_received(1)
        database = harness.node.register("db")
        with closing(sqlite3.connect(harness.path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")  # so that the writer gets all of them in one or two batches
            for _ in range(200):
                database.up()
                database.down()
            other.execute("COMMIT")
        seen: list[int] = []
        while len(follower.received) < 402:
            await asyncio.sleep(0)
            seen.append(len(follower.received))
    assert max(after - before for before, after in pairwise(seen)) <= 100, "at most two steps in one turn"


# ---- across restarts


@in_real_time
async def test_a_client_continues_across_a_restart_although_the_clock_is_set_back(harness: Harness) -> None:
    async with harness.history() as (_, first):
        harness.node.overrides.drain()
        await first.until_received(2)
    harness.wall.advance(-86_400)
    harness.node = make_node("validator-7", version="v1.4.2", clock=harness.clock)
    async with harness.history() as (history, second):
        assert history.last_id == first.received[-1].id
        await second.until_received(2)
        assert second.kinds == ["started", "clock_set"]
        assert await history.after(0) == [*first.received, *second.received]
        assert (second.received[0].id, second.received[0].at_s) == (first.received[-1].id + 1, NOON - 86_400)


def test_an_unclean_shutdown_is_recorded_at_the_next_start(harness: Harness, tmp_path: Path) -> None:
    async def code_at_start() -> str | None:
        async with harness.history() as (_, follower):
            code = (await follower.until_received(1))[0].code
            if not (tmp_path / "killed").exists():
                shutil.copytree(harness.path.parent, tmp_path / "killed")
        return code

    assert asyncio.run(code_at_start()) is None
    assert asyncio.run(code_at_start()) is None
    harness.path = tmp_path / "killed" / "history.db"
    assert asyncio.run(code_at_start()) == ReasonCode.UNCLEAN_SHUTDOWN


@in_real_time
async def test_time_between_two_processes_counts_for_no_status(harness: Harness) -> None:
    harness.node.register("db").up()
    for _ in range(2):
        async with harness.history() as (history, _):
            harness.wait(10, history)
            buckets = (await history.buckets(["db"], HOURS))["db"]
        harness.wall.advance(600)
    assert buckets[-1] == Bucket(NOON, up_s=20.0)


def probed(harness: Harness, **options: Any) -> NodeState:
    """A node with one service that is checked, as after a start."""
    harness.node = make_node("validator-7", version="v1.4.2", clock=harness.clock)
    harness.node.register("db", probe=FunctionProbe(lambda: None), start_period="30s", fall=3, **options)
    return harness.node


def fail_three_times(node: NodeState) -> None:
    for _ in range(3):
        record(node, "db", Verdict.failed("refused"))


async def down_before_a_restart(harness: Harness) -> float:
    """The service goes Down, and 12 minutes later the process ends; returns since when it is Down, wall clock."""
    node = probed(harness)
    async with harness.history() as (history, follower):
        harness.wait(60, history)
        fail_three_times(node)
        down = next(one for one in await follower.until_received(2) if one.kind == "status")
        harness.wait(720, history)
    harness.clock.advance(5)
    harness.wall.advance(5)
    return down.at_s


@in_real_time
async def test_one_check_confirms_after_a_restart_that_a_service_is_down_since_before(harness: Harness) -> None:
    since_s = await down_before_a_restart(harness)
    for _ in range(2):  # also over one more restart
        node = probed(harness)
        async with harness.history() as (_, follower):
            state = node.state("db")
            assert (state.status, state.since_s) == (Status.INITIALIZING, harness.clock.now_s)
            assert state.known_before is not None
            assert (state.known_before.status, state.known_before.reason) == (Status.DOWN, "refused")
            record(node, "db", Verdict.failed("refused"))
            state = node.state("db")
            assert (state.status, state.reason) == (Status.DOWN, "refused")
            assert node.wall_time_s(node.now_s()) - node.wall_time_s(state.since_s) == pytest.approx(
                harness.wall.now_s - since_s, abs=0.01
            )
            transition = (await follower.until_received(2))[-1]
            assert (transition.kind, transition.after, transition.at_s) == ("status", "Down", since_s)
        harness.clock.advance(30)
        harness.wall.advance(30)


@in_real_time
async def test_a_new_definition_does_not_change_since_when_a_service_is_down(harness: Harness) -> None:
    node = probed(harness)
    async with harness.history() as (history, follower):
        harness.wait(60, history)
        fail_three_times(node)
        since_s = (await follower.until_received(2))[-1].at_s
        harness.wait(60, history)
        node.replace(define("db", name="Ledger", probe=node.probe_config("db").probe))  # type: ignore[union-attr]
        assert (await follower.until_received(3))[-1].kind == "replaced"
    node = probed(harness)
    async with harness.history():
        known = node.state("db").known_before
        assert known is not None
        assert harness.wall.now_s - (node.now_s() - known.since_s) == pytest.approx(since_s, abs=0.01)


@in_real_time
async def test_what_was_known_before_a_restart_makes_no_service_down_without_a_check(harness: Harness) -> None:
    await down_before_a_restart(harness)
    node = probed(harness)
    async with harness.history() as (history, follower):
        harness.wait(60, history)
        record(node, "db", Verdict.unknown("no descriptors"))
        assert node.status("db") is Status.INITIALIZING
        record(node, "db", Verdict.not_ready("loading"))  # it starts: that is the end of what was known
        received = await follower.until_received(2)
        assert [(one.kind, one.before, one.after) for one in received[1:]] == [("status", "Down", "Initializing")]
    node = probed(harness)
    async with harness.history():
        assert node.state("db").known_before is None


@in_real_time
async def test_without_a_file_nothing_is_known_after_a_restart(harness: Harness) -> None:
    node = probed(harness)
    async with harness.history(has_file=False):
        fail_three_times(node)
    node = probed(harness)
    async with harness.history(has_file=False):
        assert node.state("db").known_before is None


@in_real_time
async def test_a_restart_lowers_the_availability_of_no_service(harness: Harness) -> None:
    node = probed(harness)
    async with harness.history() as (history, _):
        record(node, "db", Verdict.ready())
        harness.wait(100, history)
    node = probed(harness)
    async with harness.history() as (history, _):
        harness.wait(20, history)  # before the first check
        record(node, "db", Verdict.ready())
        harness.wait(50, history)
        (*_, hour) = (await history.buckets(["db"], HOURS))["db"]
    assert (hour.up_s, hour.initializing_s, hour.down_s, hour.checks) == (150.0, 0.0, 0.0, 2)


@in_real_time
async def test_after_a_start_no_time_counts_before_the_first_success(harness: Harness) -> None:
    """Changes are dated in whole milliseconds, which may be later than the evidence, and recorded after it."""

    def take_time(*_: object) -> None:
        harness.wall.advance(0.0004)
        harness.clock.advance(0.0004)

    harness.wall.advance(0.0007)
    node = probed(harness)
    async with harness.history() as (history, _):
        node.subscribe(on_evidence=take_time)
        harness.wait(10, history)
        record(node, "db", Verdict.ready())
        harness.wait(50, history)
        report = await history.report(NOON - 60.0, harness.wall.now_s)
    assert report.services["db"].availability == 1.0
    assert report.services["db"].times.known_s == pytest.approx(50, abs=0.01)


@in_real_time
async def test_evidence_that_does_not_change_the_status_of_a_new_service_begins_its_known_time(
    harness: Harness,
) -> None:
    node = probed(harness)
    async with harness.history() as (history, _):
        harness.wait(70, history)
        record(node, "db", Verdict.failed("refused"))
        harness.wait(10, history)
        (*_, hour) = (await history.buckets(["db"], HOURS))["db"]
    assert (hour.initializing_s, hour.known_s) == (10.0, 10.0)


@in_real_time
async def test_buckets_have_no_gaps_and_the_current_one_comes_last(harness: Harness) -> None:
    harness.node.register("db").up()
    async with harness.history() as (history, _):
        harness.wait(150, history)
        for resolution in (MINUTES, HOURS, DAYS):
            buckets = (await history.buckets(["db", "unknown"], resolution))["db"]
            last_s = resolution.begin_s(harness.wall.now_s)
            begin_times_s = [last_s - age * resolution.length_s for age in reversed(range(resolution.bucket_count))]
            assert [bucket.begin_s for bucket in buckets] == begin_times_s
            assert sum(bucket.up_s for bucket in buckets) == 150
            assert sum(bucket.known_s for bucket in buckets) == 150
        minutes = (await history.buckets(["db", "unknown"], MINUTES))["db"]
        assert [bucket.up_s for bucket in minutes[-4:]] == [0, 60, 60, 30]
        assert (await history.buckets(["unknown"], MINUTES))["unknown"][-1] == Bucket(NOON + 120)


@in_real_time
async def test_no_minute_is_missing_or_counted_twice_while_it_is_written(harness: Harness) -> None:
    harness.node.register("db").up()
    async with harness.history() as (history, _):
        for minute in range(1, 20):
            harness.wait(60, history)
            for _ in range(5):
                buckets = (await history.buckets(["db"], MINUTES))["db"]
                assert sum(bucket.up_s for bucket in buckets) == 60 * minute


@in_real_time
async def test_checks_are_counted_and_reports_are_not(harness: Harness) -> None:
    harness.node.register("checked", probe=FunctionProbe(lambda: None))
    harness.node.register("reported").up()
    async with harness.history() as (history, _):
        for verdict in (Verdict.ready(), Verdict.not_ready("syncing"), Verdict.failed("no"), Verdict.unknown("?")):
            record(harness.node, "checked", verdict, duration_s=0.25)
        record(harness.node, "reported", Verdict.failed("no"))
        buckets = await history.buckets(["checked", "reported"], MINUTES)
    checked = buckets["checked"][-1]
    assert (checked.checks, checked.failures, checked.latency_sum_s) == (3, 1, 0.75)
    assert buckets["reported"][-1].checks == 0


@in_real_time
async def test_a_minute_of_many_services_is_closed_in_steps(harness: Harness) -> None:
    for number in range(1000):
        harness.node.register(f"s{number}").up()
    async with harness.history() as (history, _):
        for _ in range(60):
            harness.wall.advance(1.0)
            history._aggregator.tick(harness.wall.now_s)
        history._close_minute()
        closed = [0]
        while (closing := history._aggregator._closing) is not None:
            closed.append(len(closing.buckets))
            await asyncio.sleep(0)
    assert closed[-1] == 1000
    assert max(after - before for before, after in pairwise(closed)) <= 200


@in_real_time
async def test_without_a_file_history_is_in_memory_and_no_state_is_saved(harness: Harness) -> None:
    async with harness.history(has_file=False) as (history, follower):
        before = history.last_id
        harness.node.register("db").up("ready")
        await follower.until_received(3)
        assert history.pruned_to == before < follower.received[0].id
        assert await history.after(before) == follower.received
        assert await history.latest("db", 1) == follower.received[:-2:-1]
        harness.wait(70, history)
        assert [bucket.up_s for bucket in (await history.buckets(["db"], MINUTES))["db"][-2:]] == [60, 10]
        harness.node.register("removed").deregister()
        await follower.until_received(5)
        assert await history.known_ids(["db", "removed", "zzz"]) == {"db", "removed"}
        assert (history.problem, history.is_healthy) == (None, True)
        history.save_state("first")
        assert await history.load_state() is None
    assert not harness.path.parent.exists()


# ---- when the file cannot be written


@pytest.mark.usefixtures("fast_retry")
@in_real_time
async def test_while_another_program_locks_the_file_transitions_are_published_and_written_later(
    harness: Harness,
) -> None:
    async with harness.history() as (history, follower):
        await follower.until_received(1)
        with closing(sqlite3.connect(harness.path, isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            database = harness.node.register("db")
            database.up()
            await follower.until_received(3)
            assert (history.problem_code, history.is_healthy) == (HistoryProblem.LOCKED, False)
            assert await history.after(follower.received[0].id) == follower.received[1:3]
            other.execute("COMMIT")
        await eventually(lambda: history.is_healthy)
        assert history.problem is None
        database.down()
        await follower.until_received(4)
    received = follower.received
    assert [row[0] for row in harness.rows("SELECT id FROM transitions ORDER BY id")] == [one.id for one in received]


@pytest.mark.usefixtures("fast_retry")
@in_real_time
async def test_a_file_in_use_by_another_svcnode_is_neither_written_nor_read(harness: Harness) -> None:
    async with harness.history():
        pass
    lock = FileLock(harness.path)
    before = harness.path.read_bytes()
    async with harness.history() as (history, follower):
        await follower.until_received(1)
        assert history.problem_code == HistoryProblem.IN_USE
        assert await history.after(0) == follower.received
        assert harness.path.read_bytes() == before
        lock.release()
        await eventually(lambda: history.is_healthy)
        assert len(harness.rows("SELECT id FROM transitions")) == 3


@in_real_time
async def test_a_file_of_another_program_is_not_changed(harness: Harness) -> None:
    harness.path.parent.mkdir()
    harness.rows("CREATE TABLE ledger (entry)")
    before = harness.path.read_bytes()
    async with harness.history() as (history, follower):
        await follower.until_received(1)
        assert history.problem_code == HistoryProblem.FOREIGN_DATABASE
    assert harness.path.read_bytes() == before
    assert [one.name for one in harness.path.parent.iterdir()] == ["history.db"]


def corrupt(path: Path, *, is_header_intact: bool = True) -> None:
    size = path.stat().st_size
    first = 2 * 4096 if is_header_intact else 0
    with path.open("r+b") as file:
        file.seek(first)
        file.write(b"\xa5" * (size - first))


@pytest.mark.parametrize("damage", ["pages", "header"])
@in_real_time
async def test_a_corrupt_file_is_quarantined_at_the_start(
    harness: Harness, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    async with harness.history():
        pass
    corrupt(harness.path, is_header_intact=damage == "pages")
    before = harness.path.read_bytes()
    async with harness.history() as (history, follower):
        await follower.until_received(1)
        assert history.is_healthy
        assert history.problem_code == HistoryProblem.CORRUPT
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert harness.path.with_name("history.db.corrupt-20260101T120000Z").read_bytes() == before
    assert [kind for (kind,) in harness.rows("SELECT kind FROM transitions ORDER BY id")] == ["started", "stopped"]


@in_real_time
async def test_a_file_corrupted_while_in_use_is_quarantined_when_a_query_fails(harness: Harness) -> None:
    async with harness.history() as (history, follower):
        database = harness.node.register("db")
        for _ in range(50):
            database.up()
            database.down("a long reason " * 100)
        await follower.until_received(102)
        with closing(sqlite3.connect(harness.path)) as other:
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        corrupt(harness.path)
        before = history.last_id
        await history.after(0)  # reports the corruption to the writer
        await eventually(lambda: history.problem_code == HistoryProblem.CORRUPT)
        await follower.until(lambda: follower.kinds[-2:] == ["new_file", "status"])
        database.up()
        await follower.until_received(105)
        assert history.is_healthy
        assert await history.after(0) == follower.received[-3:]
        assert history.pruned_to >= before
    kinds = [kind for (kind,) in harness.rows("SELECT kind FROM transitions ORDER BY id")]
    assert kinds == ["new_file", "status", "status", "stopped"]


@pytest.mark.usefixtures("fast_retry")
@in_real_time
async def test_a_second_corrupt_file_within_a_minute_is_not_quarantined(harness: Harness) -> None:
    async with harness.history() as (history, follower):
        await follower.until_received(1)
        writer = history._writer
        assert writer is not None
        writer.report_corruption(CorruptionError("corrupt"), generation=0)
        await eventually(lambda: writer.generation == 1 and writer.is_readable)
        writer.report_corruption(CorruptionError("corrupt"), generation=1)
        await eventually(lambda: not history.is_healthy)
        assert history.problem_code == HistoryProblem.CORRUPT
        writer.report_corruption(CorruptionError("corrupt"), generation=0)  # about the first file
    assert len([one for one in harness.path.parent.iterdir() if ".corrupt-" in one.name]) == 1


@in_real_time
async def test_a_late_report_about_a_quarantined_file_does_not_affect_the_new_file(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with harness.history() as (history, follower):
        await follower.until_received(1)
        used = history._writer
        assert used is not None

        def report_again(path: Path, now_s: float) -> Path:
            used.report_corruption(CorruptionError("corrupt"), generation=0)
            return quarantine(path, now_s)

        monkeypatch.setattr(writer, "quarantine", report_again)
        used.report_corruption(CorruptionError("corrupt"), generation=0)
        await eventually(lambda: used.generation == 1)
        await follower.until_received(2)
        harness.node.overrides.drain()
        await follower.until_received(3)
        assert history.is_healthy
    assert harness.rows("SELECT kind FROM transitions ORDER BY id") == [("new_file",), ("node",), ("stopped",)]


@in_real_time
async def test_a_file_removed_while_in_use_is_created_again(harness: Harness, caplog: pytest.LogCaptureFixture) -> None:
    async with harness.history() as (history, follower):
        await follower.until_received(1)
        shutil.rmtree(harness.path.parent)
        harness.node.overrides.drain()
        await follower.until(lambda: {"node", "new_file"} <= set(follower.kinds))
        assert history.pruned_to >= follower.received[0].id
        assert history.is_healthy
        assert history.problem_code == HistoryProblem.FILE_REPLACED
    ids = [one.id for one in follower.received[1:]]
    assert [number for (number,) in harness.rows("SELECT id FROM transitions ORDER BY id")] == ids
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@in_real_time
async def test_after_a_lazy_unmount_new_transitions_are_in_the_file_at_the_path(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LOCK_CHECK_INTERVAL_S", 0.01)
    folder = harness.path.parent
    with MemoryDisk(folder) as disk:
        async with harness.history() as (history, follower):
            await follower.until_received(1)
            disk.unmount()
            await follower.until_received(2)  # also without a change
            assert history.problem_code == HistoryProblem.FILE_REPLACED
            harness.node.overrides.drain()
            await follower.until_received(3)
            assert harness.rows("SELECT kind FROM transitions") == [("new_file",), ("node",)]
            with MemoryDisk(folder):  # and a disk that is mounted over it
                harness.node.overrides.undrain()
                await follower.until_received(5)
                in_file = harness.rows("SELECT kind, health FROM transitions ORDER BY id")
                assert sorted(in_file) == [("new_file", 200), ("node", 200)]


@in_real_time
async def test_a_removed_lock_file_is_created_again(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(writer, "LOCK_CHECK_INTERVAL_S", 0.01)  # it is noticed without a write
    lock = harness.path.with_name("history.db-lock")
    async with harness.history() as (history, follower):
        await follower.until_received(1)
        lock.unlink()
        await eventually(lock.exists)
        await eventually(lambda: lock.read_text() != "")
        with pytest.raises(HistoryError) as caught:
            FileLock(harness.path)
        assert caught.value.code is HistoryProblem.IN_USE
        harness.node.overrides.drain()
        await follower.until_received(2)
        assert history.is_healthy
        assert await history.after(0) == follower.received
    assert [record.args for record in caplog.records] == [(lock,)]


@pytest.mark.usefixtures("fast_retry")
@in_real_time
async def test_after_the_lock_file_was_removed_another_svcnode_can_take_the_file(harness: Harness) -> None:
    async with harness.history() as (history, follower):
        await follower.until_received(1)
        harness.path.with_name("history.db-lock").unlink()
        other = FileLock(harness.path)
        harness.node.overrides.drain()
        await follower.until_received(2)
        await eventually(lambda: history.problem_code == HistoryProblem.IN_USE)
        assert len(harness.rows("SELECT id FROM transitions")) == 1
        assert await history.after(0) == follower.received[1:], "the file belongs to the other process"
        assert history.pruned_to >= follower.received[0].id, "clients see that older records are gone"
        other.release()
        await eventually(lambda: history.is_healthy)
        assert len(harness.rows("SELECT id FROM transitions")) == 2


@pytest.mark.usefixtures("fast_retry")
@in_real_time
async def test_an_unexpected_exception_stops_neither_the_thread_nor_publishing(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with harness.history() as (history, follower):
        await follower.until_received(1)
        with monkeypatch.context() as broken:
            broken.setattr(Database, "write", lambda *_: 1 // 0)
            harness.node.overrides.drain()
            await follower.until_received(2)
            assert not history.is_healthy
        await eventually(lambda: history.is_healthy)
    assert ZeroDivisionError in [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert len(harness.rows("SELECT id FROM transitions")) == 3


@in_virtual_time
async def test_without_a_writer_thread_transitions_are_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    harness = Harness(tmp_path)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    async with harness.history() as (history, follower):
        harness.node.overrides.drain()
        await follower.until_received(2)
        assert (history.problem_code, history.is_healthy) == (HistoryProblem.NO_THREAD, False)
    assert follower.kinds == ["started", "node", "stopped"]


class HangingDisk:
    """A call blocks until `is_free` is set, and then fails."""

    def __init__(self) -> None:
        self.is_free = threading.Event()

    def __call__(self, *_: object, **__: object) -> None:
        self.is_free.wait(DEADLINE_S)
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize("method", ["write", "__init__"])
def test_while_the_disk_hangs_the_start_is_hardly_delayed_and_transitions_are_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    harness, disk = Harness(tmp_path), HangingDisk()
    monkeypatch.setattr(Database, method, disk)

    @in_virtual_time
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with harness.history() as (history, follower):
            assert method == "write" or loop.time() == pytest.approx(0.2)
            assert method == "write" or history.last_id == NOON * 10**6
            harness.node.overrides.drain()
            started_s = loop.time()
            await follower.until_received(2)
            assert 1.0 <= loop.time() - started_s <= 3.0
            assert (history.problem_code, history.is_healthy) == (HistoryProblem.SLOW_DISK, False)
            closing_s = loop.time()
        assert loop.time() - closing_s == 2.0
        assert follower.kinds == ["started", "node", "stopped"]

    scenario()
    disk.is_free.set()


@in_real_time
async def test_a_forward_jump_of_the_wall_clock_and_back_does_not_purge_the_history(harness: Harness) -> None:
    def statuses() -> list[str]:
        return [after for (after,) in harness.rows("SELECT after FROM transitions WHERE kind = 'status' ORDER BY id")]

    async with harness.history(max_age_s=DAYS.length_s) as (history, _):
        handle = harness.node.register("db")
        handle.up()
        await eventually(lambda: statuses() == ["Up"])
        harness.wall.advance(1e9)
        handle.down("refused")
        await eventually(lambda: statuses() == ["Up", "Down"])
        harness.wall.advance(-1e9)
        handle.up()
        await eventually(lambda: statuses() == ["Up", "Down", "Down", "Up"])  # again after the clock was set back
        assert history.pruned_to == 0


@pytest.mark.parametrize("service_id", ["db", None])
@in_real_time
async def test_maintenance_is_recorded_as_transitions_and_as_time_of_its_own(
    harness: Harness, service_id: str | None
) -> None:
    async with harness.history() as (history, follower):
        harness.node.register("db").up()
        harness.wait(10, history)
        ends_at_s = harness.clock.now_s + 15
        harness.node.maintenance.set(Maintenance("control", ends_at_s, "alice", "new disk"), service_id)
        harness.wait(5, history)
        Handle(harness.node, "db").down("stopped")
        harness.wait(10, history)
        harness.node.expire_stale()
        harness.wait(20, history)
        await follower.until(lambda: "maintenance_ended" in follower.kinds)
        buckets = await history.buckets(["db"], HOURS)
        transitions, bucket = follower.received, buckets["db"][-1]
    marks = [one for one in transitions if "maintenance" in one.kind]
    assert [(one.kind, one.service_id) for one in marks] == [
        ("maintenance", service_id),
        ("maintenance_ended", service_id),
    ]
    assert marks[0].reason.endswith("UTC, by alice: new disk")
    assert (bucket.up_s, bucket.down_s, bucket.maintenance_s) == (10.0, 20.0, 15.0)


@pytest.mark.parametrize("service_id", ["db", None])
@in_real_time
async def test_maintenance_that_lasts_over_a_restart_is_told_once(harness: Harness, service_id: str | None) -> None:
    ends_at_s = harness.clock.now_s + 7200
    alices = Maintenance("control", ends_at_s, "alice", "new disk")
    for number in range(3):
        harness.node = make_node("validator-7", clock=harness.clock, wall_clock=harness.wall)
        async with harness.history() as (history, follower):
            harness.node.register("db").up()
            harness.wait(60, history)
            harness.node.maintenance.set(alices._replace(reason="new rack") if number == 2 else alices, service_id)
            harness.wait(60, history)
            await follower.until(lambda: "maintenance" in follower.kinds)
            items = (await history.timeline(Period(NOON - 60.0, NOON + 3600.0))).items
        marks = [(item.kind, item.from_s - NOON) for item in items if "maintenance" in item.kind]
        assert marks == [("maintenance", 60.0), ("maintenance", 300.0)][: 2 if number == 2 else 1]
