"""Blocking calls, run beside the event loop.

Each call has its own daemon thread instead of a thread of a pool: a call that never returns delays no other call, and
does not delay the exit of the process.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NoReturn, TypeVar

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

    exit_code = 1

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


def call_with_timeout(function: Callable[[], T], timeout_s: float) -> T:
    """Run a blocking call in a thread and wait for it. Raises TimeoutError; the thread runs on until the call returns.

    It blocks the caller, so it is not for the event loop.
    """
    results: list[Callable[[], T]] = []
    has_ended = threading.Event()

    def run() -> None:
        try:
            results.append(partial(_return, function()))
        except Exception as exc:  # noqa: BLE001  the caller gets it
            results.append(partial(_raise, exc))
        finally:
            has_ended.set()

    start_thread(threading.Thread(target=run, name="svcnode call", daemon=True))
    if not has_ended.wait(timeout_s):
        raise TimeoutError(f"no response within {timeout_s:g} s")
    return results[0]()


def _return(result: T) -> T:
    return result


def _raise(error: Exception) -> NoReturn:
    raise error


class DaemonCall:
    """Runs blocking calls one at a time. It stays busy until a call returns, even after the caller was cancelled."""

    def __init__(self, name: str) -> None:
        self._name = f"svcnode {name}"
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
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                deliver = partial(_set_result, future, function())
            except Exception as exc:  # noqa: BLE001  the caller gets it
                deliver = partial(_set_exception, future, exc)
            finally:  # also when the function ends its thread
                self._busy_in_pid = None
            with suppress(RuntimeError):  # the loop was closed while the function ran
                loop.call_soon_threadsafe(deliver)

        self._busy_in_pid = os.getpid()
        try:
            start_thread(threading.Thread(target=run, name=self._name, daemon=True))
        except BaseException as exc:
            self._busy_in_pid = None
            future.cancel()  # a thread that runs late delivers nothing
            if isinstance(exc, ThreadRefusedError):
                raise ThreadStartError from exc
            raise
        return await future


def _set_result(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
