"""Forks while other threads run: the child has the node, but none of the threads and none of their locks."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from svcnode.agent.embed.node import Node, internals_of
from svcnode.core import state_machine
from svcnode.core.model import Health, Status, Tally
from svcnode.node.scheduler import thread as scheduler_thread
from tests.support.servers.base import wait_until
from tests.support.virtual_time import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from svcnode.core.model import Change, Policy, ServiceState

WAIT_TIMEOUT_S = 30

# Python 3.12 and later warn of forks in a process with threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def child_output(function: Callable[[], object]) -> str:
    """The text of the result in a forked process; empty if it fails or hangs."""
    reads, writes = os.pipe()
    if (child := os.fork()) == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(WAIT_TIMEOUT_S)
            os.write(writes, str(function()).encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as reader:
        output = reader.read()
    os.waitpid(child, 0)
    return output


class PausePoint:
    """Pauses every thread except that of the test."""

    def __init__(self) -> None:
        self._is_reached, self._may_continue = threading.Event(), threading.Event()
        self._test_thread = threading.current_thread()

    def __call__(self) -> None:
        if threading.current_thread() is not self._test_thread:
            self._is_reached.set()
            assert self._may_continue.wait(WAIT_TIMEOUT_S)

    @contextmanager
    def reached_by(self, work: Callable[[], object]) -> Iterator[None]:
        worker = threading.Thread(target=work)
        worker.start()
        assert self._is_reached.wait(WAIT_TIMEOUT_S)
        try:
            yield
        finally:
            self._may_continue.set()
            worker.join(WAIT_TIMEOUT_S)


@pytest.fixture
def pause_point() -> PausePoint:
    return PausePoint()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(100.0)


def test_a_child_forked_while_another_thread_reports_can_report_and_read(pause_point: PausePoint) -> None:
    def clock() -> float:
        pause_point()
        return 100.0

    node = Node("validator-7", version="v1", clock=clock)
    db = node.register("db", impact="critical")

    def in_child() -> Health:
        db.down("gone")
        return node.health

    with pause_point.reached_by(db.up):
        assert child_output(in_child) == str(Health.UNHEALTHY)


def test_a_state_that_was_set_and_not_yet_counted_is_counted_in_the_child(
    pause_point: PausePoint, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node("validator-7", version="v1", clock=clock)
    db, other = (node.register(one, impact="critical") for one in ("db", "other"))
    db.up()
    other.up()
    states = internals_of(node).state._states
    update_tally = states._count

    def pausing_update(before: Tally, after: Tally) -> None:
        pause_point()
        update_tally(before, after)

    monkeypatch.setattr(states, "_count", pausing_update)
    healths: list[Health] = []
    node.subscribe(lambda change: healths.append(change.health))

    def in_child() -> list[int]:
        before = [int(node.health)]
        other.up("again")  # not a change, but it delivers the missed one
        db.up()
        return [*before, int(node.health), *map(int, healths)]

    with pause_point.reached_by(lambda: db.down("gone")):
        assert child_output(in_child) == "[503, 200, 503, 200]"
    assert node.health is Health.UNHEALTHY


def test_a_state_that_was_set_expires_in_the_child_at_its_own_time(
    pause_point: PausePoint, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node("validator-7", version="v1", clock=clock)
    db = node.register("db", impact="critical", ttl="30s")
    db.down("gone")
    expires_at_s = state_machine.expires_at_s

    def pausing(state: ServiceState, policy: Policy) -> float:
        pause_point()
        return expires_at_s(state, policy)

    monkeypatch.setattr(state_machine, "expires_at_s", pausing)

    def in_child() -> list[int]:
        before = int(node.health)
        clock.advance(31.0)
        return [before, int(node.health)]

    with pause_point.reached_by(db.up):
        assert child_output(in_child) == "[200, 503]"


def test_a_child_forked_while_a_listener_runs_delivers_its_own_changes(
    pause_point: PausePoint, clock: VirtualClock
) -> None:
    node, received = Node("validator-7", version="v1", clock=clock), list[Status]()
    db = node.register("db")

    def listener(change: Change) -> None:
        pause_point()
        assert change.after is not None
        received.append(change.after.status)

    node.subscribe(listener)

    def in_child() -> list[str]:
        db.down("gone")
        node.subscribe(listener)()
        return [status.value for status in received]

    with pause_point.reached_by(db.up):
        assert child_output(in_child) == "['Down']"
    assert received == [Status.UP]


def test_a_child_forked_by_a_listener_delivers_the_remaining_changes(clock: VirtualClock) -> None:
    node, received = Node("validator-7", version="v1", clock=clock), list[str]()
    db = node.register("db")

    def daemonize(change: Change) -> None:
        if not received and os.fork():
            os._exit(0)

    def in_child() -> list[str]:
        node.subscribe(daemonize)
        node.subscribe(lambda change: received.append(node.state("db").status.value))
        db.down("gone")
        db.up()
        return received

    assert child_output(in_child) == "['Down', 'Up']"


def test_a_child_forked_while_probing_is_started_can_start_its_own(
    pause_point: PausePoint, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PausingThread:
        def __init__(self, probing: object) -> None:
            pause_point()

        def stop(self) -> None: ...

    monkeypatch.setattr(scheduler_thread, "SchedulerThread", PausingThread)
    node = Node("validator-7", version="v1", clock=clock)

    def in_child() -> str:
        node.start()
        node.stop()
        return "started"

    with pause_point.reached_by(node.start):
        assert child_output(in_child) == "started"


def test_a_child_does_not_take_the_scheduler_of_its_parent_for_its_own() -> None:
    node = Node("validator-7", version="v1")
    node.check("cache", interval="1s")(lambda: None)

    def in_child() -> list[object]:
        before = node.is_probing, internals_of(node).checks.next_check_in_s("cache")
        node.start()
        is_probing = node.is_probing
        node.stop()
        return [*before, is_probing]

    node.start()
    try:
        wait_until(lambda: internals_of(node).checks.next_check_in_s("cache") is not None, "probing")
        assert child_output(in_child) == "[False, None, True]"
        assert node.is_probing
    finally:
        node.stop()


def test_a_fork_that_python_does_not_notice_leaves_neither_a_thread_nor_a_lock_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As that of uWSGI: `Thread.is_alive` is true in the child, and no lock is replaced."""
    node = Node("validator-7", version="v1")
    node.start()
    thread_of_the_parent = internals_of(node).checks._thread
    assert thread_of_the_parent is not None
    # The thread asks for its process when it begins.
    wait_until(lambda: internals_of(node).checks._running_scheduler is not None, "probing")
    try:
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: -1)
            is_probing = [node.is_probing]
            internals_of(node).state._lock.acquire()  # by a thread that does not exist in the child
            node.start()
            is_probing.append(node.is_probing)
            assert is_probing == [False, True]
            assert node.register("db").state.status is Status.INITIALIZING
            node.stop()
    finally:
        thread_of_the_parent.stop()


def test_a_child_does_not_hold_the_lock_of_an_elected_worker_and_is_a_worker_of_its_own(tmp_path: Path) -> None:
    node = Node("validator-7", version="v1")
    node.share_states(tmp_path / "workers")
    indexer = node.register("indexer")

    def in_child() -> list[object]:
        own_descriptors = [path for path in Path("/proc/self/fd").iterdir() if "workers" in str(path.resolve())]
        has_lock = any(path.resolve().suffix == ".lock" for path in own_descriptors)
        node.start()
        indexer.down("in the child")
        node.stop()
        return [has_lock, node.is_probing]

    node.start()
    try:
        wait_until(lambda: node.is_probing, "probing")
        assert child_output(in_child) == "[False, False]"
        assert node.state("indexer").reason == "in the child"
    finally:
        node.stop()
