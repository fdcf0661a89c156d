"""Blocking calls, run beside the event loop.

Each call has its own daemon thread instead of a thread of a pool: a call that never returns delays no other call, and
does not delay the exit of the process.
"""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, TypeVar

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import SvcnodeError
from svcnode.core.model import Verdict
from svcnode.net.os_errors import ThreadStartError, verdict_for_os_error

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

START_TIMEOUT_S = 5.0
_BUSY_POLL_S = 0.05
STILL_RUNNING = Verdict.failed("the previous check has not returned", code=ReasonCode.STILL_RUNNING)


class ThreadRefusedError(SvcnodeError, RuntimeError):
    """The operating system refuses a new thread; `Thread.start` raises a RuntimeError."""

    def __init__(self) -> None:
        super().__init__("cannot start a thread; raise the limit of threads or of memory")


class _StartEvent(threading.Event):
    def wait(self, timeout: float | None = None) -> bool:
        if not super().wait(START_TIMEOUT_S if timeout is None else timeout):
            raise MemoryError("a new thread has ended, or did not run within 5 s")
        return True


def start_thread(thread: threading.Thread) -> None:
    """Start a thread. Raises `ThreadRefusedError`, or MemoryError if the thread never runs.

    `Thread.start` waits until the thread runs. It never returns if there is no memory for the first step of the
    thread, which then ends before it has an exception handler.
    """
    thread._started = _StartEvent()  # type: ignore[attr-defined]  # the event that `start` waits for
    try:
        thread.start()
    except RuntimeError as exc:
        raise ThreadRefusedError from exc


def call_in_thread(function: Callable[[], T], name: str) -> Future[T]:
    """Run a blocking call in a new daemon thread, which runs on until the call returns. Raises as `start_thread`."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # a thread cannot be cancelled

    def run() -> None:
        try:
            future.set_result(function())
        except Exception as exc:  # noqa: BLE001  the caller gets it
            future.set_exception(exc)
        except BaseException as exc:  # the function ended its thread
            future.set_exception(RuntimeError(f"the thread was ended by {type(exc).__name__}"))
            raise

    start_thread(threading.Thread(target=run, name=f"svcnode {name}", daemon=True))
    return future


class LoopStoppedError(Exception):
    """The event loop that runs a call has stopped."""


async def result_of(future: Future[T]) -> T:
    """Wait for a call on another event loop, or in a thread. Cancelling the wait cancels the call."""
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise LoopStoppedError from None  # the call was cancelled, not the caller


def call_with_timeout(function: Callable[[], T], timeout_s: float) -> T:
    """Run a blocking call in a thread and wait for it. Raises TimeoutError.

    It blocks the caller, so it is not for the event loop.
    """
    future = call_in_thread(function, "call")
    if not wait([future], timeout_s).done:
        raise TimeoutError(f"no response within {timeout_s:g} s")
    return future.result()


async def call_in_pool(function: Callable[[], T]) -> T:
    """Run a short call in a thread of the event loop's pool. Raises `ThreadStartError` if there can be no thread."""
    try:
        future = asyncio.get_running_loop().run_in_executor(None, function)
    except RuntimeError as exc:
        raise ThreadStartError from exc
    return await future


class DaemonCall:
    """Runs blocking calls one at a time. It stays busy until a call returns, even after the caller was cancelled."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._busy_in_pid: int | None = None

    @property
    def is_busy(self) -> bool:
        return self._busy_in_pid == os.getpid()  # a fork copies this object but not the thread

    async def check(self, function: Callable[[], Verdict]) -> Verdict:
        """Run a blocking check; `still_running` while an earlier one has not returned."""
        if self.is_busy:
            return STILL_RUNNING
        try:
            return await self.call(function)
        except ThreadStartError as exc:
            return verdict_for_os_error(exc, self._name)

    async def call_in_turn(self, function: Callable[[], T]) -> T:
        """As `call`, after an earlier call has returned. Only one thread waits for a mount that hangs."""
        while self.is_busy:  # noqa: ASYNC110  the thread knows no event of this loop
            await asyncio.sleep(_BUSY_POLL_S)
        return await self.call(function)

    async def call(self, function: Callable[[], T]) -> T:
        """Run the function in a new thread. Cancelling ends the wait at once; the thread runs on until it returns.

        Raises `ThreadStartError` if no thread can be started.
        """
        try:
            future = call_in_thread(function, self._name)
        except ThreadRefusedError as exc:
            raise ThreadStartError from exc
        self._busy_in_pid = os.getpid()
        future.add_done_callback(self._set_idle)
        return await asyncio.wrap_future(future)

    def _set_idle(self, _: Future[Any]) -> None:
        self._busy_in_pid = None
