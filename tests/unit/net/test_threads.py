"""Blocking calls beside the event loop. The time is real here; nothing is waited for that does not come at once."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from svcnode.core.model import Verdict
from svcnode.net.os_errors import ThreadStartError
from svcnode.net.threads import DaemonCall

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 10.0


class Blocking:
    """A call that goes on until it is told to end, one way or another."""

    def __init__(self, end: Callable[[], object] = lambda: "done") -> None:
        self.has_begun = threading.Event()
        self.may_end = threading.Event()
        self.thread: threading.Thread | None = None
        self._end = end

    def __call__(self) -> object:
        self.thread = threading.current_thread()
        self.has_begun.set()
        assert self.may_end.wait(PATIENCE_S)
        return self._end()

    async def begin(self, own: DaemonCall) -> asyncio.Task[object]:
        waiting = asyncio.create_task(own.call(self))
        assert await asyncio.to_thread(self.has_begun.wait, PATIENCE_S)
        return waiting

    def finish(self) -> None:
        self.may_end.set()
        assert self.thread is not None
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


def fails() -> None:
    raise ValueError("not today")


def test_the_result_comes_back_to_the_one_who_waits() -> None:
    assert asyncio.run(DaemonCall("question").call(lambda: 42)) == 42


def test_an_error_comes_back_to_the_one_who_waits() -> None:
    with pytest.raises(ValueError, match="not today"):
        asyncio.run(DaemonCall("failure").call(fails))


def test_a_call_runs_on_a_daemon_thread_under_its_name() -> None:
    thread = asyncio.run(DaemonCall("sqlite").call(threading.current_thread))
    assert thread is not threading.current_thread()
    assert (thread.name, thread.daemon) == ("svcnode sqlite", True)


def test_calls_that_never_return_keep_no_other_waiting() -> None:
    async def story() -> None:
        stuck = [Blocking() for _ in range(50)]
        waiting = [await one.begin(DaemonCall("stuck")) for one in stuck]
        assert await DaemonCall("quick").call(lambda: "quick") == "quick"
        for one in stuck:
            one.may_end.set()
        assert await asyncio.gather(*waiting) == ["done"] * 50

    asyncio.run(story())


def test_a_thread_is_busy_while_its_call_runs_and_no_longer() -> None:
    async def story() -> None:
        own, call = DaemonCall("check"), Blocking()
        before = own.is_busy
        waiting = await call.begin(own)
        meanwhile = own.is_busy
        call.may_end.set()
        await waiting
        assert (before, meanwhile, own.is_busy) == (False, True, False)

    asyncio.run(story())


# Python lets sys.exit end a thread without a word; pytest does not.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("end", [lambda: None, fails, sys.exit], ids=["returns", "raises", "ends its thread"])
def test_a_call_keeps_the_place_until_it_ends_however_it_does(end: Callable[[], object]) -> None:
    async def story() -> None:
        own, call = DaemonCall("check"), Blocking(end)
        waiting = await call.begin(own)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert own.is_busy
        await asyncio.to_thread(call.finish)
        assert not own.is_busy

    asyncio.run(story())


@pytest.mark.parametrize("end", [lambda: None, fails], ids=["returns", "raises"])
def test_what_comes_too_late_is_dropped_in_silence(end: Callable[[], object]) -> None:
    async def story() -> None:
        complaints: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        call = Blocking(end)
        waiting = await call.begin(DaemonCall("check"))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.to_thread(call.finish)
        await asyncio.sleep(0)  # what the thread has left for the loop is done by now
        assert complaints == []

    asyncio.run(story())


@pytest.mark.parametrize("end", [lambda: None, fails], ids=["returns", "raises"])
def test_a_call_that_outlives_its_loop_ends_in_silence(
    end: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints: list[object] = []
    monkeypatch.setattr(threading, "excepthook", complaints.append)
    call = Blocking(end)

    async def story() -> None:
        await call.begin(DaemonCall("check"))

    asyncio.run(story())
    call.finish()
    assert complaints == []


def refuses(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_thread_that_does_not_start_is_not_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    own = DaemonCall("check")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuses)
        with pytest.raises(ThreadStartError, match="no threads left"):
            asyncio.run(own.call(lambda: None))
    assert not own.is_busy
    assert asyncio.run(own.call(lambda: 42)) == 42


def test_a_look_for_which_no_thread_is_left_says_nothing_about_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    own = DaemonCall("check")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuses)
        assert asyncio.run(own.check(Verdict.ready)) == Verdict.unknown("this machine cannot look: no threads left")
    assert asyncio.run(own.check(Verdict.ready)) == Verdict.ready()


def test_a_process_that_was_forked_meanwhile_is_not_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        own, call = DaemonCall("check"), Blocking()
        waiting = await call.begin(own)
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)  # as the child would see it
            is_busy_in_child = own.is_busy
        assert (is_busy_in_child, own.is_busy) == (False, True)
        call.may_end.set()
        await waiting

    asyncio.run(story())
