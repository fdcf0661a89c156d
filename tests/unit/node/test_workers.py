"""Workers that share states, as several nodes in one process: each has its own connection and its own locks."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.agent.embed.node import Node, internals_of
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import StoreError
from svcnode.core.model import ChangeKind, Outcome, Status, Verdict
from svcnode.node.node_state import NodeState
from svcnode.node.workers import ELECTION_INTERVAL_S, RETRY_AFTER_S, STATES_FILE, Workers
from tests.support.scheduling import FAILED, READY, ScriptedProbe
from tests.support.virtual_time import VirtualClock, in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from svcnode.core.model import Change, Evidence, ServiceState

STALE_AFTER_S = 15.0


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(100.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "workers"


def make_node(clock: VirtualClock, *, probe: ScriptedProbe | None = None) -> Node:
    node = Node("validator-7", version="v1", clock=clock)
    options = {"interval": "2s", "timeout": "1s", "stale_after": f"{STALE_AFTER_S:g}s", "fall": 2}
    node.register("db", probe=probe or ScriptedProbe(), impact="critical", start_period="0s", **options)  # type: ignore[arg-type]
    node.register("indexer")
    return node


@contextmanager
def joined(*nodes: Node, folder: Path) -> Iterator[list[Workers]]:
    workers = []
    try:
        for node in nodes:
            node.share_states(folder)
            workers.append(internals_of(node).checks.join_workers())
        yield [one for one in workers if one is not None]
    finally:
        for one in workers:
            assert one is not None
            one.leave()


@pytest.fixture
def pair(clock: VirtualClock, folder: Path) -> Iterator[tuple[Node, Node]]:
    first, second = make_node(clock), make_node(clock)
    with joined(first, second, folder=folder):
        yield first, second


# ---- the election


def loop_clock() -> VirtualClock:
    return asyncio.get_running_loop().clock  # type: ignore[attr-defined,no-any-return]


@in_virtual_time
async def test_one_worker_checks_and_all_have_the_states(tmp_path: Path) -> None:
    probes = [ScriptedProbe() for _ in range(3)]
    nodes = [make_node(loop_clock(), probe=probe) for probe in probes]
    async with AsyncExitStack() as stack:
        for node in nodes:
            node.share_states(tmp_path / "workers")
            await stack.enter_async_context(node.probing())
        await asyncio.sleep(9.0)
        assert [len(probe.started_at_s) > 0 for probe in probes] == [True, False, False]
        assert [node.state("db").status for node in nodes] == [Status.UP] * 3
        assert [node.is_probing for node in nodes] == [True] * 3
        assert [internals_of(node).checks.next_check_in_s("db") is not None for node in nodes] == [True, False, False]
        probes[0].verdict = FAILED
        await asyncio.sleep(4.0)
        assert [node.health for node in nodes] == [503] * 3
        assert nodes[0].state("db") == nodes[2].state("db")
    assert not any(node.is_probing for node in nodes)


@in_virtual_time
async def test_when_the_elected_worker_ends_another_one_checks_within_a_second(tmp_path: Path) -> None:
    probes = [ScriptedProbe() for _ in range(2)]
    nodes = [make_node(loop_clock(), probe=probe) for probe in probes]
    for node in nodes:
        node.share_states(tmp_path / "workers")
    async with AsyncExitStack() as elected:
        await elected.enter_async_context(nodes[1].probing())
        await asyncio.sleep(0)
        async with nodes[0].probing():
            await asyncio.sleep(9.0)
            assert not probes[0].started_at_s
            await elected.aclose()
            await asyncio.sleep(2 * ELECTION_INTERVAL_S)
            assert probes[0].started_at_s
            assert nodes[0].state("db").status is Status.UP


@in_virtual_time
async def test_listeners_of_a_waiting_worker_are_called_without_a_read(tmp_path: Path) -> None:
    nodes = [make_node(loop_clock()) for _ in range(2)]
    changes: list[Change] = []
    evidence: list[tuple[str, Evidence, ServiceState]] = []
    async with AsyncExitStack() as stack:
        for node in nodes:
            node.share_states(tmp_path / "workers")
            await stack.enter_async_context(node.probing())
        nodes[1].subscribe(changes.append, on_evidence=lambda *one: evidence.append(one))
        await asyncio.sleep(3.0)
    assert [(change.kind, change.service_id) for change in changes] == [(ChangeKind.STATUS, "db")]
    assert {(service_id, one.verdict.outcome) for service_id, one, _ in evidence} == {("db", Outcome.READY)}
    assert len({one.at_s for _, one, _ in evidence}) == len(evidence), "each once"


# ---- what runs in one worker


class FakeCompanion:
    def __init__(self) -> None:
        self.log: list[str] = []

    def accompany(self, node: Node) -> None:
        checks = internals_of(node).checks
        checks.while_running, checks.while_waiting = self.running, self.waiting

    @asynccontextmanager
    async def running(self, workers: Workers | None) -> AsyncIterator[None]:
        assert workers is not None
        self.log.append(f"elected after {await workers.load_state()}")
        yield
        workers.save_state("the state of the elected worker")
        self.log.append("ended")

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        self.log.append("waiting")
        yield
        self.log.append("waited")


@in_virtual_time
async def test_the_companion_of_the_elected_worker_hands_its_state_to_the_next_one(tmp_path: Path) -> None:
    companions = [FakeCompanion() for _ in range(3)]
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        for companion, one in zip(companions, (first, stack, stack), strict=True):
            node = make_node(loop_clock())
            node.share_states(tmp_path / "workers")
            companion.accompany(node)
            await one.enter_async_context(node.probing())
            await asyncio.sleep(1.0)
        assert [companion.log for companion in companions] == [["elected after None"], ["waiting"], ["waiting"]]
        await first.aclose()
        await asyncio.sleep(2 * ELECTION_INTERVAL_S)
    assert sorted(companion.log for companion in companions) == [
        ["elected after None", "ended"],
        ["waiting", "waited"],
        ["waiting", "waited", "elected after the state of the elected worker", "ended"],
    ]


@in_virtual_time
async def test_a_worker_that_is_cancelled_ends_what_it_runs(tmp_path: Path) -> None:
    node, other = make_node(loop_clock()), make_node(loop_clock())
    companion = FakeCompanion()
    companion.accompany(node)

    async def probe() -> None:
        async with node.probing():
            await asyncio.sleep(100.0)

    for one in (node, other):
        one.share_states(tmp_path / "workers")
    task = asyncio.create_task(probe())
    await asyncio.sleep(1.0)
    async with other.probing():
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(2 * ELECTION_INTERVAL_S)
        assert internals_of(other).checks.next_check_in_s("db") is not None
    assert companion.log == ["elected after None"], "without the clean end"


def test_a_state_that_cannot_be_saved_is_saved_later(clock: VirtualClock, folder: Path) -> None:
    with joined(make_node(clock), make_node(clock), folder=folder) as (first, second):
        with closing(sqlite3.connect(folder / STATES_FILE, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            first.save_state("an incident")
            other.execute("ROLLBACK")
        assert asyncio.run(second.load_state()) is None
        clock.advance(RETRY_AFTER_S)
        first.sync()
        assert asyncio.run(second.load_state()) == "an incident"
    assert asyncio.run(second.load_state()) is None, "it does not take part any more"


# ---- evidence


def test_evidence_expires_in_every_worker_without_the_one_that_checks(
    clock: VirtualClock, pair: tuple[Node, Node]
) -> None:
    """As if that one was stopped: it keeps the lock and writes nothing."""
    first, second = pair
    first.record("db", READY)
    assert second.state("db").status is Status.UP
    clock.advance(STALE_AFTER_S - 0.1)
    assert second.state("db").status is Status.UP
    clock.advance(0.2)
    assert (second.state("db").status, second.state("db").code) == (Status.INITIALIZING, ReasonCode.STALE)


def test_the_last_report_of_any_worker_counts(clock: VirtualClock, pair: tuple[Node, Node]) -> None:
    first, second = pair
    first.handle("indexer").up("block 1")
    assert second.state("indexer").reason == "block 1"
    clock.advance(1.0)
    second.handle("indexer").down("out of disk")
    assert first.state("indexer") == second.state("indexer")
    assert first.state("indexer").status is Status.DOWN


def test_evidence_that_comes_late_does_not_replace_newer_evidence(clock: VirtualClock, pair: tuple[Node, Node]) -> None:
    first, second = pair
    clock.advance(5.0)
    second.record("indexer", FAILED)
    first.record("indexer", READY, at_s=clock() - 1.0)
    assert [node.state("indexer").status for node in pair] == [Status.DOWN] * 2


def test_a_worker_that_starts_later_has_the_states_at_once(clock: VirtualClock, folder: Path) -> None:
    first = make_node(clock)
    first.handle("indexer").up("at import")
    with joined(first, folder=folder):
        first.record("db", READY)
        first.set_issue("disk")
        clock.advance(3.0)
        late = make_node(clock)
        with joined(late, folder=folder):
            assert late.health == first.health == 503
            assert late.state("db") == first.state("db")
            assert late.state("indexer").reason == "at import"


def test_the_next_run_of_the_program_starts_without_the_states_of_this_one(clock: VirtualClock, folder: Path) -> None:
    first = make_node(clock)
    with joined(first, folder=folder):
        first.handle("indexer").up()
    second = make_node(clock)
    with joined(second, folder=folder):
        assert second.state("indexer").code == ReasonCode.NO_EVIDENCE


@pytest.mark.parametrize(
    ("known", "claimed", "expected"),
    [
        ("down", "up", Status.DOWN),
        ("initializing", "up", Status.INITIALIZING),
        ("up", "down", Status.DOWN),
        ("up", "up", Status.UP),
    ],
)
def test_what_a_worker_reports_before_it_joins_only_makes_things_worse(
    clock: VirtualClock, folder: Path, known: str, claimed: str, expected: Status
) -> None:
    first, restarted = make_node(clock), make_node(clock)
    with joined(first, folder=folder):
        getattr(first.handle("indexer"), known)("of a running worker")
        clock.advance(1.0)
        getattr(restarted.handle("indexer"), claimed)("at import")
        with joined(restarted, folder=folder):
            assert [node.state("indexer").status for node in (first, restarted)] == [expected] * 2
            restarted.handle("indexer").up("of a running worker, too")
            assert [node.state("indexer").status for node in (first, restarted)] == [Status.UP] * 2


def test_a_report_of_another_thread_while_a_worker_joins_is_kept(
    clock: VirtualClock, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, restarted = make_node(clock), make_node(clock)
    with joined(first, folder=folder):
        first.handle("indexer").up("of a running worker")
        clock.advance(1.0)
        indexer = restarted.handle("indexer")
        indexer.up("at import")
        take_over, reports = NodeState.take_over, ["by another thread"]

        def interrupted(node: NodeState, *arguments: Any) -> set[str]:
            if node is internals_of(restarted).state and reports:
                indexer.down(reports.pop())
            return take_over(node, *arguments)

        monkeypatch.setattr(NodeState, "take_over", interrupted)
        with joined(restarted, folder=folder):
            assert [node.state("indexer").status for node in (first, restarted)] == [Status.DOWN] * 2


def test_a_state_that_another_version_wrote_protects_the_others_and_its_own_service(
    clock: VirtualClock, folder: Path
) -> None:
    first, restarted = make_node(clock), make_node(clock)
    with joined(first, folder=folder) as [workers]:
        for node in (first, restarted):
            node.register("other")
        first.handle("indexer").down("known")
        first.handle("other").down("known")
        assert workers._database is not None
        workers._database.execute("UPDATE states SET state = '{}' WHERE service_id = 'other'")
        clock.advance(1.0)
        for service_id in ("indexer", "other"):
            restarted.handle(service_id).up("at import")
        with joined(restarted, folder=folder):
            assert restarted.health == 503
            assert [first.state(service_id).status for service_id in ("indexer", "other")] == [Status.DOWN] * 2


def test_a_service_registered_later_takes_over_its_state(clock: VirtualClock, pair: tuple[Node, Node]) -> None:
    first, second = pair
    first.register("late").up()
    assert "late" not in second
    second.register("late")
    assert second.state("late").status is Status.UP


def test_a_service_that_is_registered_again_starts_without_evidence(pair: tuple[Node, Node]) -> None:
    first, second = pair
    first.handle("indexer").up()
    first.deregister("indexer")
    second.deregister("indexer")
    for node in pair:
        node.register("indexer")
    assert [node.state("indexer").code for node in pair] == [ReasonCode.NO_EVIDENCE] * 2


def test_a_state_keeps_all_its_fields(clock: VirtualClock, pair: tuple[Node, Node]) -> None:
    first, second = pair
    for verdict in (READY, FAILED, READY, FAILED, READY, FAILED, FAILED, Verdict.unknown("no route")):
        clock.advance(1.0)
        first.record("db", verdict)
    assert first.state("db").recent_failures.repeated_at_s
    assert second.state("db") == first.state("db")
    assert type(second.state("db").code) is ReasonCode


# ---- the node as a whole


def test_an_issue_holds_in_every_worker_until_any_of_them_clears_it(pair: tuple[Node, Node]) -> None:
    first, second = pair
    first.handle("indexer").up()
    first.record("db", READY)
    first.set_issue("the key store is locked")
    assert second.health == 503
    assert second.condition.issues == ("the key store is locked",)
    second.clear_issue()
    assert [node.health for node in pair] == [200, 200]
    first.drain()
    assert [node.health for node in pair] == [503, 200], "a drain is of one worker"


# ---- failures


def test_a_folder_that_other_users_can_write_to_is_rejected(clock: VirtualClock, folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    node = make_node(clock)
    node.share_states(folder)
    with pytest.raises(StoreError, match="other users"):
        internals_of(node).checks.join_workers()
    assert list(folder.iterdir()) == []


def test_a_path_that_is_no_folder_is_rejected(clock: VirtualClock, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    node = make_node(clock)
    node.share_states(tmp_path / "file" / "folder")
    with pytest.raises(StoreError, match="file"):
        node.start()
    assert not node.is_probing


def test_a_worker_that_cannot_write_is_not_healthy_and_writes_later(
    clock: VirtualClock, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = make_node(clock), make_node(clock)
    with joined(first, second, folder=folder):
        first.record("db", READY)
        first.handle("indexer").up()
        blocking = sqlite3.connect(folder / STATES_FILE, isolation_level=None)
        blocking.execute("BEGIN IMMEDIATE")  # as a worker that was stopped while it wrote
        clock.advance(1.0)
        first.handle("indexer").initializing("replaying")
        assert first.health == 503
        assert second.health == 200, "a read does not wait"
        blocking.execute("ROLLBACK")
        blocking.close()
        assert first.health == 503, "it does not try at each read"
        clock.advance(RETRY_AFTER_S)
        assert first.health == 206
        assert second.health == 206
        assert first.condition.issues == ()
    events = [vars(record)["event"] for record in caplog.records if record.name == "svcnode.workers"]
    assert events == ["workers_failed"]


@pytest.mark.parametrize("is_whole_folder", [True, False])
def test_workers_whose_file_is_removed_are_not_healthy_also_if_a_later_one_makes_it_again(
    clock: VirtualClock, folder: Path, caplog: pytest.LogCaptureFixture, *, is_whole_folder: bool
) -> None:
    first, second, later = (make_node(clock) for _ in range(3))
    with joined(first, second, folder=folder):
        first.record("db", READY)
        first.handle("indexer").up()
        assert [first.health, second.health] == [200, 200]
        if is_whole_folder:
            shutil.rmtree(folder)
        else:
            (folder / STATES_FILE).unlink()
        assert [first.health, second.health] == [503, 503]
        with joined(later, folder=folder):
            later.handle("indexer").down()
            clock.advance(RETRY_AFTER_S)
            assert [first.health, second.health] == [503, 503]
            assert later.condition.issues == ()
    events = [vars(record)["event"] for record in caplog.records if record.name == "svcnode.workers"]
    assert set(events) == {"workers_failed"}


def test_a_node_that_shares_nothing_has_no_folder(clock: VirtualClock, tmp_path: Path) -> None:
    node = make_node(clock)
    node.share_states(tmp_path / "workers")
    node.handle("indexer").up()
    assert node.state("indexer").status is Status.UP
    assert list(tmp_path.iterdir()) == [], "nothing is shared before probing starts"


def test_a_state_that_cannot_be_read_makes_a_worker_unhealthy(clock: VirtualClock, folder: Path) -> None:
    first, second = make_node(clock), make_node(clock)
    with joined(first, second, folder=folder):
        first.handle("indexer").up()
        first.record("db", READY)
        assert second.health == 200
        with sqlite3.connect(folder / STATES_FILE) as other:  # as another version of svcnode would write it
            other.execute("UPDATE states SET version = version + 9, writer = 'other', state = '[\"Up\"]'")
        other.close()
        assert second.health == 503
        assert len(second.condition.issues) == 1
