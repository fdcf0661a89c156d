"""Looking for programs that have no event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

from svcnode.core.wording import error_words, one_line

if TYPE_CHECKING:
    from svcnode.node import Node

# Looks that are cut off end within a second or so, but a check may have begun tasks that never do.
ENDED_WITHIN_S = 5.0

log = logging.getLogger("svcnode.supervisor")


class SupervisorThread:
    """A supervisor on an event loop and a thread of its own, for programs that have no loop."""

    def __init__(self, node: Node) -> None:
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(node,), name="svcnode supervisor", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        if self.is_alive:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(ENDED_WITHIN_S)
        if self.is_alive:
            log.warning("the looking did not end within %g s: a check does not hear that it is over", ENDED_WITHIN_S)

    def _run(self, node: Node) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._look_until_stopped(node))
        except BaseException as exc:  # the last chance to say so
            log.error(  # noqa: TRY400  a task that a check began and that exits is no fault to trace
                "nobody looks at the services any more, node.start() begins it again: %s",
                one_line(error_words(exc)),
                exc_info=exc if isinstance(exc, Exception) else None,
            )

    async def _look_until_stopped(self, node: Node) -> None:
        async with node.supervised():
            await self._stopping.wait()
