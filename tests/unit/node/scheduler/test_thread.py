"""The scheduler in a background thread, in real time: every wait is for an event."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from svcnode import Node
from svcnode.core.model import Change, Status, Verdict
from svcnode.node.scheduler.thread import SchedulerThread
from svcnode.probes.base import Probe
from tests.support.scheduling import READY

if TYPE_CHECKING:
    import pytest

WAIT_TIMEOUT_S = 30.0


class EventProbe(Probe):
    """Sets an event at every check."""

    def __init__(self) -> None:
        self.was_checked = threading.Event()
        self.threads: set[str] = set()

    async def check(self) -> Verdict:
        self.threads.add(threading.current_thread().name)
        self.was_checked.set()
        return READY


def up_event(node: Node, service_id: str) -> threading.Event:
    up = threading.Event()

    def listener(change: Change) -> None:
        if change.service_id == service_id and change.after is not None and change.after.status is Status.UP:
            up.set()

    node.subscribe(listener)
    return up


def test_a_program_without_an_event_loop_is_checked_from_a_thread() -> None:
    node, probe = Node("validator-7", version="v1"), EventProbe()
    node.register("db-1", probe=probe, interval="60s")
    up = up_event(node, "db-1")
    node.start()
    try:
        assert up.wait(WAIT_TIMEOUT_S)
        assert node.health == 200
        assert probe.threads == {"svcnode scheduler"}
    finally:
        node.stop()
    assert "svcnode scheduler" not in {thread.name for thread in threading.enumerate()}


def test_a_service_registered_from_another_thread_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")  # the loop raises if it is called from the wrong thread
    node, first, second = Node("validator-7", version="v1"), EventProbe(), EventProbe()
    node.register("db-1", probe=first, interval="60s")
    node.start()
    try:
        assert first.was_checked.wait(WAIT_TIMEOUT_S)  # the loop runs
        node.register("db-2", probe=second, interval="60s")
        assert second.was_checked.wait(WAIT_TIMEOUT_S)
    finally:
        node.stop()


def test_probing_can_be_started_again_after_stop() -> None:
    node, probe = Node("validator-7", version="v1"), EventProbe()
    node.start()
    node.stop()
    node.stop()
    node.register("db-1", probe=probe, interval="60s")
    node.start()
    node.start()
    try:
        assert probe.was_checked.wait(WAIT_TIMEOUT_S)
        assert [thread.name for thread in threading.enumerate()].count("svcnode scheduler") == 1
    finally:
        node.stop()


def test_stopping_a_thread_that_has_ended_does_nothing() -> None:
    thread = SchedulerThread(Node("validator-7", version="v1").probing)
    thread.stop()
    assert not thread.is_alive
    thread.stop()


def test_an_unexpected_end_of_probing_is_logged_and_probing_can_be_restarted(caplog: pytest.LogCaptureFixture) -> None:
    node, probe = Node("validator-7", version="v1"), EventProbe()
    exited = threading.Event()

    @node.check("db-1", interval="60s")
    async def check() -> None:
        async def exit_once() -> None:
            if not exited.is_set():
                exited.set()
                sys.exit("enough\nof it")

        await asyncio.create_task(exit_once())  # ends the event loop

    node.start()
    assert exited.wait(WAIT_TIMEOUT_S)
    for thread in threading.enumerate():
        if thread.name == "svcnode scheduler":  # it may have ended already
            thread.join(WAIT_TIMEOUT_S)
    [record] = caplog.records
    assert (vars(record)["event"], record.levelname, record.exc_info) == ("probing_stopped", "ERROR", None)
    assert record.getMessage().endswith(r"SystemExit: enough\nof it")
    node.register("db-2", probe=probe, interval="60s")
    node.start()
    try:
        assert probe.was_checked.wait(WAIT_TIMEOUT_S)
    finally:
        node.stop()


def test_stop_does_not_wait_forever_for_a_task_that_a_check_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("svcnode.node.scheduler.thread.JOIN_TIMEOUT_S", 0.0)
    node, probe, may_end = Node("validator-7", version="v1"), EventProbe(), threading.Event()

    @node.check("db-1", interval="60s")
    async def check() -> None:
        tasks.append(asyncio.create_task(ignore_cancellation()))

    async def ignore_cancellation() -> None:
        probe.was_checked.set()
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    tasks: list[asyncio.Task[None]] = []
    node.start()
    [scheduler_thread] = [thread for thread in threading.enumerate() if thread.name == "svcnode scheduler"]
    assert probe.was_checked.wait(WAIT_TIMEOUT_S)
    node.stop()
    assert [vars(record)["event"] for record in caplog.records] == ["probing_not_stopped"]
    may_end.set()
    scheduler_thread.join(WAIT_TIMEOUT_S)
    assert not scheduler_thread.is_alive()
