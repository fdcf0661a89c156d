"""When which node is asked. Each has a task of its own, so that one that hangs holds up nobody."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from svcnode.terminal.looking import Look
    from svcnode.terminal.watch.seen import Watch

# A look costs a few milliseconds; more of them in a second would take all of a core, and keys would be heeded late.
LOOKS_PER_S = 100.0
# As fast as they can be made: all of them at once would be late together, and those with a short timeout lost.
FIRST_LOOKS_PER_S = 250.0


def affordable_interval_s(interval_s: float, node_count: int) -> float:
    return max(interval_s, node_count / LOOKS_PER_S)


class Polling:
    """One right after the other at first; then each at its own time within the interval."""

    def __init__(self, watch: Watch, look: Callable[[int], Awaitable[Look]], on_look: Callable[[], object]) -> None:
        self._watch = watch
        self._look = look
        self._on_look = on_look
        self._interrupted_s = -math.inf

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for number in range(len(self._watch.nodes)):
                group.create_task(self._poll(number))

    def was_interrupted(self) -> None:
        """The process stood still: what comes of looks that began before says nothing of the nodes."""
        self._interrupted_s = asyncio.get_running_loop().time()

    async def _poll(self, number: int) -> None:
        clock = asyncio.get_running_loop().time
        interval_s = self._watch.interval_s
        due_s = clock() + interval_s * number / len(self._watch.nodes)
        await asyncio.sleep(number / FIRST_LOOKS_PER_S)
        while True:
            began_s = clock()
            self._watch.ask(number, began_s)
            look = await self._look(number)
            if began_s < self._interrupted_s:
                continue
            self._watch.see(number, look, clock())
            self._on_look()
            due_s += interval_s * max(1, math.ceil((clock() - due_s) / interval_s))
            await asyncio.sleep(due_s - clock())
