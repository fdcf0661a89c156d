"""Looking for programs that have no event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from svcnode.node import Node


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
            self._thread.join()

    def _run(self, node: Node) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._look_until_stopped(node))

    async def _look_until_stopped(self, node: Node) -> None:
        async with node.supervised():
            await self._stopping.wait()
