"""Calls that block, run beside the event loop.

Each call has a daemon thread of its own instead of a place in a pool: a call that never returns must neither
keep others waiting for its place nor hold up the end of the process.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


async def call_in_thread(call: Callable[[], T], *, name: str) -> T:
    """The result of `call`. When cancelled, the wait ends at once; the thread is left to finish by itself."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = call()
        except Exception as exc:  # noqa: BLE001  it is handed to the one who waits
            _hand_over(loop, partial(_fail, outcome, exc))
        else:
            _hand_over(loop, partial(_succeed, outcome, result))

    threading.Thread(target=run, name=name, daemon=True).start()
    return await outcome


def _hand_over(loop: asyncio.AbstractEventLoop, deliver: Callable[[], None]) -> None:
    # The loop may have been closed while the call ran: then nobody waits any more.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(deliver)


def _succeed(outcome: asyncio.Future[T], result: T) -> None:
    if not outcome.done():
        outcome.set_result(result)


def _fail(outcome: asyncio.Future[T], error: Exception) -> None:
    if not outcome.done():
        outcome.set_exception(error)
