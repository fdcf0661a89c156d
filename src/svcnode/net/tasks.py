"""Coroutines of the embedding program, run in its event loop without depending on how well they behave.

They are stepped through by us, since only so it can be told who it was that held the loop; and a coroutine that does
not hear that it is cut off can be dropped where it stands, or the loop that it is in would never come to its end.
"""

from __future__ import annotations

import asyncio
import types
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

T = TypeVar("T")


class SelfCancelledError(Exception):
    """A coroutine ended as one that is cut off does, and nobody had cut it off."""


class GuardedTask:
    """Runs a coroutine in a task of its own. When cut off it may clean up; when cut off again it is left behind."""

    def __init__(self) -> None:
        self.loop_blocked_s = 0.0  # how long the last one held the loop, all of its steps together
        self._abandoned: asyncio.Task[Any] | None = None
        self._is_aborted = False

    @property
    def is_busy(self) -> bool:
        """Whether one that was left behind still goes on; a loop that was closed took its own with it."""
        left = self._abandoned
        return left is not None and not left.done() and left.get_loop() is asyncio.get_running_loop()

    async def call(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Raises `SelfCancelledError` for a cancellation that is not the caller's own.

        As a rule, the coroutine awaited a task that had been cancelled. To the caller it would look like its own end.
        """
        self.loop_blocked_s, self._is_aborted = 0.0, False
        task = asyncio.get_running_loop().create_task(self._run(begin))
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await self._wait_for_cleanup(task)
            if task.cancelled():
                task.result()  # raises what it was cut off with, which may say how far it got
            task.exception()  # it was not left unheard; but what counts is that we are cut off
            raise
        if task.cancelled():
            raise SelfCancelledError
        return task.result()

    def cancel_again(self) -> None:
        """What was left behind may have lost its cancellation, as drivers do now and then."""
        if self._abandoned is not None:
            self._abandoned.cancel()

    def abort(self) -> None:
        """End what was left behind, wherever it stands."""
        left = self._abandoned
        if left is not None and not left.done() and not left.get_loop().is_closed():
            self._is_aborted = True
            left.cancel()

    async def _wait_for_cleanup(self, task: asyncio.Task[Any]) -> None:
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            self._abandoned = task
            raise

    async def _run(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self._drive(begin())

    @types.coroutine
    def _drive(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """As `await work` does it, but with an eye on the clock."""
        clock = asyncio.get_running_loop().time
        step: Callable[[Any], Any] = work.send
        told: BaseException | None = None
        while True:
            began_s = clock()
            try:
                waits_for = step(told)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self.loop_blocked_s += clock() - began_s
            try:
                yield waits_for
            except GeneratorExit:
                work.close()
                raise
            except BaseException as exc:  # it is handed on
                if self._is_aborted:
                    with suppress(RuntimeError):  # not even that was heard
                        work.close()
                    raise
                step, told = work.throw, exc
            else:
                step, told = work.send, None
