"""How often each service was Down in the last 30 days: the history is read once, at the start, and then followed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from svcnode.notify.outages import MAX_TRANSITIONS, OutageLog

if TYPE_CHECKING:
    from svcnode.history import History
    from svcnode.history.records import Transition


class RecentOutages:
    def __init__(self, history: History) -> None:
        self._history = history
        self._log = OutageLog()
        self._unread: list[Transition] | None = []  # what happens while the history is read; None: it has been read

    async def load(self, now_s: float) -> None:
        """Until it has ended, nothing is known: a disk may hang. Times are those of the wall clock."""
        self._history.subscribe(self._follow)
        past = await self._history.load_latest(MAX_TRANSITIONS)
        last_id = past[-1].id if past else 0
        unread, self._unread = self._unread or [], None
        self._log.start(now_s, past, lambda at_s: at_s)
        for one in unread:
            if one.id > last_id:
                self._follow(one)

    def _follow(self, transition: Transition) -> None:
        if self._unread is None:
            self._log.follow(transition, transition.at_s)
        elif len(self._unread) < MAX_TRANSITIONS:
            self._unread.append(transition)

    def find(self, service_id: str, now_s: float) -> dict[str, Any] | None:
        """None: nothing is known. The text is empty if that says nothing, as on the first day."""
        outages = None if self._unread is not None else self._log.find(service_id, now_s)
        if outages is None:
            return None
        from svcnode.notify.content import how_often  # loaded late: most nodes have no problem

        return {"count": outages.number, "period_s": round(outages.period_s), "text": how_often(outages)}
