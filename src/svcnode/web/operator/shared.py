"""What takes its time is made in a thread, once for all who ask for it within a second.

Health is answered by the loop that visitors are attended on, and must not wait for thousands of services to be walked.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

T = TypeVar("T")

KEPT_S = 1.0


class _Making(NamedTuple):
    began_s: float
    version: object
    result: asyncio.Future[Any]


class Shared:
    """It lives on the thread of the event loop."""

    def __init__(self) -> None:
        self._makings: dict[Hashable, _Making] = {}

    async def get(self, key: Hashable, make: Callable[[], T], *, version: object = None) -> T:
        """What `make` returns, or returned a moment ago for the same version, or is about to.

        There must be few keys, since what was made last is kept for each.
        """
        loop = asyncio.get_running_loop()
        making = self._makings.get(key)
        if making is None or making.version != version or _is_over(making, loop.time()):
            making = self._makings[key] = _Making(loop.time(), version, loop.run_in_executor(None, make))
        result: T = await asyncio.shield(making.result)  # one who leaves does not end it for the others
        return result


def _is_over(making: _Making, now_s: float) -> bool:
    if not making.result.done():
        return False
    return making.result.cancelled() or making.result.exception() is not None or now_s - making.began_s >= KEPT_S
