"""A program that forks while its threads are at work: the child has the node as it was, and none of the threads."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from svcnode.core import state_machine
from svcnode.core.model import Health, Status, Tally
from svcnode.node import Node
from svcnode.scheduler import thread as looking
from tests.support.virtual_time import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from svcnode.core.model import Change, Policy, ServiceState

WAIT_TIMEOUT_S = 5

# That such forks are dangerous is what Python says of them from 3.12 on, and the point of these tests.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")


def child_output(story: Callable[[], object]) -> str:
    """What a story comes to in a forked process; nothing where it fails, or hangs."""
    reads, writes = os.pipe()
    if (child := os.fork()) == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(WAIT_TIMEOUT_S)
            os.write(writes, str(story()).encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as ear:
        said = ear.read()
    os.waitpid(child, 0)
    return said


class PausePoint:
    """Halts every thread but that of the test."""

    def __init__(self) -> None:
        self._is_reached, self._may_go_on = threading.Event(), threading.Event()
        self._passes = threading.current_thread()

    def __call__(self) -> None:
        if threading.current_thread() is not self._passes:
            self._is_reached.set()
            assert self._may_go_on.wait(WAIT_TIMEOUT_S)

    @contextmanager
    def reached_by(self, work: Callable[[], object]) -> Iterator[None]:
        worker = threading.Thread(target=work)
        worker.start()
        assert self._is_reached.wait(WAIT_TIMEOUT_S)
        try:
            yield
        finally:
            self._may_go_on.set()
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

    def story() -> Health:
        db.down("gone")
        return node.health

    with pause_point.reached_by(db.up):
        assert child_output(story) == str(Health.UNHEALTHY)


def test_what_was_believed_and_not_yet_counted_counts_in_the_child(
    pause_point: PausePoint, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node("validator-7", version="v1", clock=clock)
    db, other = (node.register(one, impact="critical") for one in ("db", "other"))
    db.up()
    other.up()
    count = node._update_tally

    def halting_count(before: Tally, after: Tally) -> None:
        pause_point()
        count(before, after)

    monkeypatch.setattr(node, "_update_tally", halting_count)
    healths: list[Health] = []
    node.subscribe(lambda change: healths.append(change.health))

    def story() -> list[int]:
        before = [int(node.health)]
        other.up("again")  # no change by itself, but what was missed is told now
        db.up()
        return [*before, int(node.health), *map(int, healths)]

    with pause_point.reached_by(lambda: db.down("gone")):
        assert child_output(story) == "[503, 200, 503, 200]"
    assert node.health is Health.UNHEALTHY


def test_what_was_believed_lapses_in_the_child_when_its_own_time_is_over(
    pause_point: PausePoint, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node("validator-7", version="v1", clock=clock)
    db = node.register("db", impact="critical", ttl="30s")
    db.down("gone")
    expires_at_s = state_machine.expires_at_s

    def halting(state: ServiceState, policy: Policy) -> float:
        pause_point()
        return expires_at_s(state, policy)

    monkeypatch.setattr(state_machine, "expires_at_s", halting)

    def story() -> list[int]:
        before = int(node.health)
        clock.advance(31.0)
        return [before, int(node.health)]

    with pause_point.reached_by(db.up):
        assert child_output(story) == "[200, 503]"


def test_a_child_forked_while_a_listener_is_told_hears_of_its_own_changes(
    pause_point: PausePoint, clock: VirtualClock
) -> None:
    node, heard = Node("validator-7", version="v1", clock=clock), list[Status]()
    db = node.register("db")

    def listener(change: Change) -> None:
        pause_point()
        assert change.after is not None
        heard.append(change.after.status)

    node.subscribe(listener)

    def story() -> list[str]:
        db.down("gone")
        node.subscribe(listener)()
        return [one.value for one in heard]

    with pause_point.reached_by(db.up):
        assert child_output(story) == "['Down']"
    assert heard == [Status.UP]


def test_a_child_forked_by_a_listener_hears_the_rest(clock: VirtualClock) -> None:
    node, heard = Node("validator-7", version="v1", clock=clock), list[str]()
    db = node.register("db")

    def goes_to_the_background(change: Change) -> None:
        if not heard and os.fork():
            os._exit(0)

    def story() -> list[str]:
        node.subscribe(goes_to_the_background)
        node.subscribe(lambda change: heard.append(node.status("db").value))  # type: ignore[union-attr]  # it is registered
        db.down("gone")
        db.up()
        return heard

    assert child_output(story) == "['Down', 'Up']"


def test_a_child_forked_while_probing_is_started_can_start_its_own(
    pause_point: PausePoint, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Looking:
        def __init__(self, node: Node) -> None:
            pause_point()

        def stop(self) -> None: ...

    monkeypatch.setattr(looking, "SchedulerThread", Looking)
    node = Node("validator-7", version="v1", clock=clock)

    def story() -> str:
        node.start()
        node.stop()
        return "started"

    with pause_point.reached_by(node.start):
        assert child_output(story) == "started"


def test_a_fork_that_finds_no_thread_at_work_changes_nothing(clock: VirtualClock) -> None:
    node = Node("validator-7", version="v1", clock=clock)
    node.register("db").up()
    assert child_output(lambda: node.revision) == str(node.revision)
