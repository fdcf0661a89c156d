"""On a thread of its own; the time is real here, so every wait is for something that comes at once."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from svcnode.core.model import Change, Status, Verdict
from svcnode.node import Node
from svcnode.scheduler.thread import SchedulerThread
from tests.support.scheduling import READY

if TYPE_CHECKING:
    import pytest


class WaitedFor:
    """A probe on another thread that can be waited for, and a listener that can."""

    def __init__(self) -> None:
        self.was_looked = threading.Event()
        self.threads: set[str] = set()

    async def check(self) -> Verdict:
        self.threads.add(threading.current_thread().name)
        self.was_looked.set()
        return READY


def is_up(node: Node, service_id: str) -> threading.Event:
    came_up = threading.Event()

    def listener(change: Change) -> None:
        if change.service_id == service_id and change.after is not None and change.after.status is Status.UP:
            came_up.set()

    node.subscribe(listener)
    return came_up


def test_a_program_without_a_loop_is_looked_for_on_a_thread() -> None:
    node, probe = Node("validator-7", version="v1"), WaitedFor()
    node.register("db-1", probe=probe, interval="60s")
    came_up = is_up(node, "db-1")
    node.start()
    try:
        assert came_up.wait(10.0)
        assert node.health == 200
        assert probe.threads == {"svcnode scheduler"}
    finally:
        node.stop()
    assert "svcnode scheduler" not in {thread.name for thread in threading.enumerate()}


def test_a_service_registered_from_another_thread_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")  # a loop that is called from the wrong thread says so
    node, first, second = Node("validator-7", version="v1"), WaitedFor(), WaitedFor()
    node.register("db-1", probe=first, interval="60s")
    node.start()
    try:
        assert first.was_looked.wait(10.0)  # the loop runs
        node.register("db-2", probe=second, interval="60s")
        assert second.was_looked.wait(10.0)
    finally:
        node.stop()


def test_starting_twice_is_once_and_stopping_twice_is_once() -> None:
    node = Node("validator-7", version="v1")
    node.start()
    node.start()
    try:
        assert [thread.name for thread in threading.enumerate()].count("svcnode scheduler") == 1
    finally:
        node.stop()
        node.stop()


def test_what_was_stopped_can_be_started_again() -> None:
    node, probe = Node("validator-7", version="v1"), WaitedFor()
    node.start()
    node.stop()
    node.register("db-1", probe=probe, interval="60s")
    node.start()
    try:
        assert probe.was_looked.wait(10.0)
    finally:
        node.stop()


def test_stopping_a_thread_that_has_ended_is_nothing() -> None:
    thread = SchedulerThread(Node("validator-7", version="v1"))
    thread.stop()
    assert not thread.is_alive
    thread.stop()


def test_looking_that_ends_unasked_is_told_and_can_be_begun_again(caplog: pytest.LogCaptureFixture) -> None:
    node, probe = Node("validator-7", version="v1"), WaitedFor()
    left = threading.Event()

    @node.check("db-1", interval="60s")
    async def check() -> None:
        async def leave() -> None:
            if not left.is_set():
                left.set()
                sys.exit("enough\nof it")

        await asyncio.create_task(leave())  # beyond our reach: the loop itself ends on it

    node.start()
    assert left.wait(10.0)
    for thread in threading.enumerate():
        if thread.name == "svcnode scheduler":  # it may be over by now
            thread.join(10.0)
    assert caplog.messages == [
        r"nobody looks at the services any more, node.start() begins it again: SystemExit: enough\nof it"
    ]
    node.register("db-2", probe=probe, interval="60s")
    node.start()
    try:
        assert probe.was_looked.wait(10.0)
    finally:
        node.stop()


def test_stopping_does_not_wait_for_ever_for_what_a_check_began(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("svcnode.scheduler.thread.JOIN_TIMEOUT_S", 0.0)
    node, probe, may_end = Node("validator-7", version="v1"), WaitedFor(), threading.Event()

    @node.check("db-1", interval="60s")
    async def check() -> None:
        began.append(asyncio.create_task(is_deaf()))

    async def is_deaf() -> None:
        probe.was_looked.set()
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    began: list[asyncio.Task[None]] = []
    node.start()
    [looking] = [thread for thread in threading.enumerate() if thread.name == "svcnode scheduler"]
    assert probe.was_looked.wait(10.0)
    node.stop()
    assert caplog.messages == ["the looking did not end within 0 s: a check does not hear that it is over"]
    may_end.set()
    looking.join(10.0)
    assert not looking.is_alive()
