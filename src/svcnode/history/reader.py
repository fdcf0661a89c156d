"""The one thread that reads, so that a long question delays neither the event loop nor what is being written."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

_Question = tuple[Callable[[], Any], asyncio.Future[Any], asyncio.AbstractEventLoop]


class Reader:
    def __init__(self) -> None:
        self._questions: SimpleQueue[_Question | None] = SimpleQueue()
        self._thread: threading.Thread | None = None  # from the first question on

    async def ask(self, question: Callable[[], T]) -> T:
        """What the question returns on the thread, after those that were asked before."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="svcnode history reader", daemon=True)
            thread.start()
            self._thread = thread
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._questions.put((question, answer, loop))
        return await answer

    def close(self) -> None:
        """Answer what was asked, and end; nobody waits for that."""
        self._questions.put(None)

    def _run(self) -> None:
        while (asked := self._questions.get()) is not None:
            question, answer, loop = asked
            if answer.cancelled():  # who asked has left meanwhile
                continue
            try:
                result = question()
            except Exception as exc:  # noqa: BLE001  it is handed to the one who waits
                _deliver(loop, _fail, answer, exc)
            else:
                _deliver(loop, _succeed, answer, result)


def _deliver(loop: asyncio.AbstractEventLoop, finish: Callable[..., None], *args: object) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(finish, *args)


def _succeed(answer: asyncio.Future[T], result: T) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)
