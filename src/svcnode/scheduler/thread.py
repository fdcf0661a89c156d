"""Looking for programs that have no event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING

from svcnode.core.text import error_text, one_line

if TYPE_CHECKING:
    from svcnode.node import Node

# Looks that are cut off end within a second or so, but a check may have begun tasks that never do.
JOIN_TIMEOUT_S = 5.0

log = logging.getLogger("svcnode.scheduler")


class SchedulerThread:
    """A scheduler on an event loop and a thread of its own, for programs that have no loop."""

    def __init__(self, node: Node) -> None:
        self._loop = asyncio.new_event_loop()
        self._stop_requested = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(node,), name="svcnode scheduler", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        if self.is_alive:
            self._loop.call_soon_threadsafe(self._stop_requested.set)
            self._thread.join(JOIN_TIMEOUT_S)
        if self.is_alive:
            log.warning("the looking did not end within %g s: a check does not hear that it is over", JOIN_TIMEOUT_S)

    def _run(self, node: Node) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._run_until_stopped(node))
        except BaseException as exc:  # the last chance to say so
            log.error(  # noqa: TRY400  a task that a check began and that exits is no fault to trace
                "nobody checks at the services any more, node.start() begins it again: %s",
                one_line(error_text(exc)),
                exc_info=exc if isinstance(exc, Exception) else None,
            )

    async def _run_until_stopped(self, node: Node) -> None:
        async with node.probing():
            await self._stop_requested.wait()
