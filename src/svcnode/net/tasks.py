"""Tasks: runs coroutines of the embedding program in its event loop, without trusting them.

`GuardedTask` drives the coroutine step by step. So it can measure how long the coroutine blocks the loop, and can close
a coroutine that ignores its cancellation; otherwise the loop could not end.
"""

from __future__ import annotations

import asyncio
import logging
import types
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

T = TypeVar("T")


log = logging.getLogger("svcnode")


def log_failure(task: asyncio.Task[Any]) -> None:
    """A done callback: a background task that ends by an exception would end unnoticed."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("%s ended by an exception", task.get_name(), exc_info=error, extra={"event": "internal_error"})


class SelfCancelledError(Exception):
    """A coroutine raised CancelledError although it was not cancelled."""


class GuardedTask:
    """Runs a coroutine in a task. After one cancellation it may clean up; after a second one it is abandoned."""

    def __init__(self) -> None:
        self.loop_blocked_s = 0.0  # sum over all steps of the last coroutine
        self._abandoned: asyncio.Task[Any] | None = None
        self._is_aborted = False

    @property
    def is_busy(self) -> bool:
        """Whether an abandoned coroutine is still running in this loop."""
        task = self._abandoned
        return task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop()

    async def call(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Raises `SelfCancelledError` for a cancellation that is not the caller's own.

        For example, the coroutine awaited a task that was cancelled. The caller could not tell it from its own
        cancellation.
        """
        self.loop_blocked_s, self._is_aborted = 0.0, False
        task = asyncio.get_running_loop().create_task(self._run(start))
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await self._wait_for_cleanup(task)
            if task.cancelled():
                task.result()  # raises the CancelledError of the coroutine, which may carry its progress
            task.exception()  # marks it as retrieved
            raise
        if task.cancelled():
            raise SelfCancelledError
        return task.result()

    def cancel_again(self) -> None:
        """Cancel the abandoned coroutine once more: drivers sometimes lose a cancellation."""
        if self._abandoned is not None:
            self._abandoned.cancel()

    def abort(self) -> None:
        """End the abandoned coroutine, even if it ignores its cancellation."""
        task = self._abandoned
        if task is not None and not task.done() and not task.get_loop().is_closed():
            self._is_aborted = True
            task.cancel()

    async def _wait_for_cleanup(self, task: asyncio.Task[Any]) -> None:
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            self._abandoned = task
            raise

    async def _run(self, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self._drive(start())

    @types.coroutine
    def _drive(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """The same as `await work`, but measures the time that each step takes."""
        clock = asyncio.get_running_loop().time
        resume: Callable[[Any], Any] = work.send
        value: BaseException | None = None
        while True:
            started_s = clock()
            try:
                awaited = resume(value)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self.loop_blocked_s += clock() - started_s
            try:
                yield awaited
            except GeneratorExit:
                work.close()
                raise
            except BaseException as exc:  # thrown into the coroutine
                if self._is_aborted:
                    with suppress(RuntimeError):  # the coroutine ignored GeneratorExit
                        work.close()
                    raise
                resume, value = work.throw, exc
            else:
                resume, value = work.send, None
