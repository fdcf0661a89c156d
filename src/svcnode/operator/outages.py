"""How often each service was Down in the last 30 days: the history is read at the first request, and then followed."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from svcnode.net.tasks import log_failure

if TYPE_CHECKING:
    from svcnode.history import History
    from svcnode.history.records import Transition
    from svcnode.notify.outages import OutageLog

MAX_TRANSITIONS = 5000  # of the history; parsing them takes a few milliseconds
WAIT_S = 1.0  # of the first request; a disk may hang


class RecentOutages:
    def __init__(self, history: History) -> None:
        self._history = history
        self._log: OutageLog | None = None  # None: the history has not been read yet
        self._unread: list[Transition] = []  # what happens while it is read
        self._loading: asyncio.Task[None] | None = None

    async def ready(self) -> None:
        """Before `find`. Without an answer of the disk in time, nothing is known until it comes."""
        if self._loading is None:
            self._loading = asyncio.create_task(self.load(time.time()), name="count recent outages")
            self._loading.add_done_callback(log_failure)
            await asyncio.wait([self._loading], timeout=WAIT_S)

    def close(self) -> None:
        if self._loading is not None:
            self._loading.cancel()

    async def load(self, now_s: float) -> None:
        """Times are those of the wall clock."""
        from svcnode.notify.outages import OutageLog  # loaded late: most nodes are never asked

        self._history.subscribe(self._follow)
        past = await self._history.load_latest(MAX_TRANSITIONS)
        last_id = past[-1].id if past else 0
        log = OutageLog()
        log.start(now_s, past, lambda at_s: at_s)
        self._log = log
        for one in self._unread:
            if one.id > last_id:
                self._follow(one)
        self._unread.clear()

    def _follow(self, transition: Transition) -> None:
        if self._log is not None:
            self._log.follow(transition, transition.at_s)
        elif len(self._unread) < MAX_TRANSITIONS:
            self._unread.append(transition)

    def find(self, service_id: str, now_s: float) -> dict[str, Any] | None:
        """None: nothing is known. The text is empty if that says nothing, as on the first day."""
        outages = None if self._log is None else self._log.find(service_id, now_s)
        if outages is None:
            return None
        from svcnode.notify.content import how_often  # loaded late: most nodes have no problem

        return {"count": outages.number, "period_s": round(outages.period_s), "text": how_often(outages)}
