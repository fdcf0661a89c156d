"""DaemonCall: blocking calls in threads of their own."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import SvcnodeError
from svcnode.core.model import Outcome, Verdict
from svcnode.net import threads
from svcnode.net.threads import (
    DaemonCall,
    LoopStoppedError,
    ThreadRefusedError,
    call_with_timeout,
    result_of,
    start_thread,
)

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT_TIMEOUT_S = 60.0
START_FUNCTION = "_start_joinable_thread" if sys.version_info >= (3, 13) else "_start_new_thread"


class Blocking:
    """A call that blocks until `may_end` is set."""

    def __init__(self, end: Callable[[], object] = lambda: "done") -> None:
        self.has_started = threading.Event()
        self.may_end = threading.Event()
        self.thread: threading.Thread | None = None
        self._end = end

    def __call__(self) -> object:
        self.thread = threading.current_thread()
        self.has_started.set()
        assert self.may_end.wait(WAIT_TIMEOUT_S)
        return self._end()

    async def start(self, daemon_call: DaemonCall) -> asyncio.Task[object]:
        waiting = asyncio.create_task(daemon_call.call(self))
        assert await asyncio.to_thread(self.has_started.wait, WAIT_TIMEOUT_S)
        return waiting

    def finish(self) -> None:
        self.may_end.set()
        assert self.thread is not None
        self.thread.join(WAIT_TIMEOUT_S)
        assert not self.thread.is_alive()


def fails() -> None:
    raise ValueError("not today")


def test_a_call_runs_in_a_daemon_thread_with_its_name() -> None:
    thread = asyncio.run(DaemonCall("sqlite").call(threading.current_thread))
    assert thread is not threading.current_thread()
    assert (thread.name, thread.daemon) == ("svcnode sqlite", True)


# sys.exit ends a thread silently in Python; pytest warns about it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("end", [lambda: None, fails, sys.exit], ids=["returns", "raises", "ends its thread"])
def test_it_stays_busy_after_a_cancellation_until_the_call_ends(end: Callable[[], object]) -> None:
    async def scenario() -> None:
        daemon_call, call = DaemonCall("check"), Blocking(end)
        waiting = await call.start(daemon_call)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert daemon_call.is_busy
        await asyncio.to_thread(call.finish)
        assert not daemon_call.is_busy

    asyncio.run(scenario())


@pytest.mark.parametrize("end", [lambda: None, fails], ids=["returns", "raises"])
def test_a_call_that_ends_after_its_loop_causes_no_error(
    end: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[object] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    call = Blocking(end)

    async def scenario() -> None:
        await call.start(DaemonCall("check"))

    asyncio.run(scenario())
    call.finish()
    assert errors == []


def refuses(*_: object, **__: object) -> None:
    raise RuntimeError("can't start new thread")


def test_a_check_without_a_thread_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    daemon_call = DaemonCall("check")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuses)
        verdict = asyncio.run(daemon_call.check(Verdict.ready))
    assert (verdict.outcome, verdict.code) == (Outcome.UNKNOWN, ReasonCode.RESOURCE_EXHAUSTED)
    assert asyncio.run(daemon_call.check(Verdict.ready)) == Verdict.ready()


def test_it_is_not_busy_in_a_forked_process(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        daemon_call, call = DaemonCall("check"), Blocking()
        waiting = await call.start(daemon_call)
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)  # as in the child process
            is_busy_in_child = daemon_call.is_busy
        assert (is_busy_in_child, daemon_call.is_busy) == (False, True)
        call.may_end.set()
        await waiting

    asyncio.run(scenario())


def test_a_thread_that_dies_before_its_first_step_does_not_block_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(threads, "START_TIMEOUT_S", 0.01)
        patched.setattr(threading, START_FUNCTION, lambda *_, **__: None)
        with pytest.raises(MemoryError):
            start_thread(threading.Thread(daemon=True))
        daemon_call = DaemonCall("check")
        with pytest.raises(MemoryError):
            asyncio.run(daemon_call.call(lambda: 1))
    assert not daemon_call.is_busy
    assert asyncio.run(daemon_call.call(lambda: 42)) == 42


def test_a_refused_thread_is_an_error_of_the_program_and_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, START_FUNCTION, refuses)
    with pytest.raises(ThreadRefusedError) as caught:
        start_thread(threading.Thread(daemon=True))
    assert isinstance(caught.value, RuntimeError)
    assert isinstance(caught.value, SvcnodeError)


def test_a_call_returns_its_result_or_raises_its_error_or_a_timeout_while_it_runs_on() -> None:
    assert call_with_timeout(lambda: 42, WAIT_TIMEOUT_S) == 42
    with pytest.raises(ValueError, match="not today"):
        call_with_timeout(fails, WAIT_TIMEOUT_S)
    blocking = Blocking()
    with pytest.raises(TimeoutError):
        call_with_timeout(blocking, 0.01)
    assert blocking.has_started.wait(WAIT_TIMEOUT_S)
    blocking.finish()


def test_calls_in_turn_wait_for_the_thread_of_an_earlier_call() -> None:
    async def scenario() -> None:
        daemon_call, blocking = DaemonCall("question"), Blocking()
        (await blocking.start(daemon_call)).cancel()
        waiting = asyncio.create_task(daemon_call.call_in_turn(lambda: 42))
        await asyncio.sleep(0)
        assert not waiting.done()
        blocking.finish()
        assert await waiting == 42

    asyncio.run(scenario())


def test_cancelling_the_caller_cancels_the_call_and_a_call_whose_loop_stops_is_another_error() -> None:
    async def run() -> None:
        stopped, call = Future[None](), Future[None]()
        stopped.cancel()
        with pytest.raises(LoopStoppedError):
            await result_of(stopped)
        waiting = asyncio.create_task(result_of(call))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert call.cancelled()

    asyncio.run(run())
