"""The scheduler in a background thread, for programs without an event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from svcnode.core.text import error_text, one_line
from svcnode.net.threads import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

# Cancelled checks end within about a second, but a check may have started tasks that never end.
JOIN_TIMEOUT_S = 5.0

log = logging.getLogger("svcnode.scheduler")

_after_fork: list[Callable[[], None]] = []  # what uWSGI calls in each worker


def threads_problem() -> str | None:
    """Why a thread would not run in this process, and what to do; None if it runs.

    uWSGI without --enable-threads runs a thread only while it handles a request.
    """
    uwsgi = sys.modules.get("uwsgi")  # only in a process of uWSGI
    if uwsgi is None or getattr(uwsgi, "has_threads", True):
        return None
    return "uWSGI runs without threads; start it with --enable-threads"


def starts_after_fork(start: Callable[[], None]) -> bool:
    """Whether uWSGI loads the program before it forks its workers; then it calls `start` in each of them.

    uWSGI forks without the lock of the interpreter. If a thread has it in that moment, the worker waits for ever.
    """
    uwsgi: Any = sys.modules.get("uwsgi")
    if uwsgi is None or uwsgi.worker_id() or uwsgi.mule_id() or uwsgi.i_am_the_spooler():
        return False
    if start not in _after_fork:
        _after_fork.append(start)
        uwsgi.post_fork_hook = partial(_call_after_fork, getattr(uwsgi, "post_fork_hook", None), start)
    return True


def _call_after_fork(before: Callable[[], None] | None, start: Callable[[], None]) -> None:
    if before is not None:
        before()
    start()


class SchedulerThread:
    def __init__(self, probing: Callable[[], AbstractAsyncContextManager[object]]) -> None:
        """`probing` returns the context manager that checks the services."""
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._stop_requested = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(probing,), name="svcnode scheduler", daemon=True)
        try:
            start_thread(self._thread)
        except BaseException:
            self._loop.close()
            raise

    @property
    def is_alive(self) -> bool:
        # After a fork, the thread does not run in the child. If a C program forks, `Thread` does not notice it.
        return self._pid == os.getpid() and self._thread.is_alive()

    def stop(self) -> None:
        if self.is_alive:
            self._loop.call_soon_threadsafe(self._stop_requested.set)
            self._thread.join(JOIN_TIMEOUT_S)
        if self.is_alive:
            log.warning(
                "the checks did not stop within %g s: one of them ignores its cancellation",
                JOIN_TIMEOUT_S,
                extra={"event": "probing_not_stopped"},
            )

    def _run(self, probing: Callable[[], AbstractAsyncContextManager[object]]) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._run_until_stopped(probing()))
        except BaseException as exc:  # otherwise the thread ends without a message
            log.error(  # noqa: TRY400  SystemExit of a task needs no traceback
                "the checks have stopped; call node.start() to start them again: %s",
                one_line(error_text(exc)),
                exc_info=exc if isinstance(exc, Exception) else None,
                extra={"event": "probing_stopped"},
            )

    async def _run_until_stopped(self, probing: AbstractAsyncContextManager[object]) -> None:
        async with probing:
            await self._stop_requested.wait()
