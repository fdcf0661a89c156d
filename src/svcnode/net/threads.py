"""Calls that block, run beside the event loop.

Each call has a daemon thread of its own instead of a place in a pool: a call that never returns must neither keep
others waiting for its place nor hold up the end of the process.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from svcnode.core.model import Verdict
from svcnode.net.os_errors import ThreadStartError, verdict_for_os_error

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class DaemonCall:
    """Runs one call at a time; a call that outlives the wait for it keeps the place until it returns."""

    def __init__(self, name: str) -> None:
        self._name = f"svcnode {name}"
        self._busy_in_pid: int | None = None

    @property
    def is_busy(self) -> bool:
        return self._busy_in_pid == os.getpid()  # a fork copies the mark, but not the thread

    async def check(self, function: Callable[[], Verdict]) -> Verdict:
        """A look that blocks; while one that outlived its deadline goes on, no second one is begun."""
        if self.is_busy:
            return Verdict.failed("the previous look has not returned yet")
        try:
            return await self.call(function)
        except ThreadStartError as exc:
            return verdict_for_os_error(exc, self._name)

    async def call(self, function: Callable[[], T]) -> T:
        """When cancelled, the wait ends at once; the thread is left to finish by itself.

        Raises `ThreadStartError` when there is none to be had. That is our own fault, and must not look like an error
        of whatever is looked at.
        """
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            try:
                deliver = partial(_succeed, outcome, function())
            except Exception as exc:  # noqa: BLE001  it is handed to the one who waits
                deliver = partial(_fail, outcome, exc)
            finally:  # also where the call ends its thread
                self._busy_in_pid = None
            # The loop may have been closed while the call ran: then nobody waits any more.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(deliver)

        self._busy_in_pid = os.getpid()
        try:
            threading.Thread(target=run, name=self._name, daemon=True).start()
        except RuntimeError as exc:
            self._busy_in_pid = None
            raise ThreadStartError("no threads left") from exc
        return await outcome


def _succeed(outcome: asyncio.Future[T], result: T) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _fail(outcome: asyncio.Future[T], error: Exception) -> None:
    if not outcome.done():
        outcome.set_exception(error)
