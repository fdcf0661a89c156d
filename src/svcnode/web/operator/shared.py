"""What takes its time is made in a thread, once for all who ask for it within a second.

Health is answered by the loop that visitors are attended on, and must not wait for thousands of services to be walked.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")

KEPT_S = 1.0


class Shared:
    """It lives on the thread of the event loop."""

    def __init__(self) -> None:
        self._made: dict[Hashable, tuple[float, asyncio.Future[Any]]] = {}

    async def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returns, or returned a moment ago, or is about to. There must be few keys: each is kept."""
        loop = asyncio.get_running_loop()
        began_s, making = self._made.get(key, (-KEPT_S, None))
        if making is None or (making.done() and (_failed(making) or loop.time() - began_s >= KEPT_S)):
            making = loop.run_in_executor(None, make)
            self._made[key] = (loop.time(), making)
        result: T = await asyncio.shield(making)  # one who leaves does not end it for the others
        return result


def _failed(making: asyncio.Future[Any]) -> bool:
    return making.cancelled() or making.exception() is not None
