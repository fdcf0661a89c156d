"""`/events`: every transition as a server-sent event, to whoever keeps listening.

An event is encoded once for all who listen. A reader who names the last event that they saw gets all that came after
it: from history as far as that reaches back, and then from the newest events, which are kept here. Between the last
one read from here and the first one told live, nothing is awaited, so nothing is lost.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import TYPE_CHECKING

from svcnode.spec import Answer, error_answer, parse_query
from svcnode.web.operator.answering import iso_time
from svcnode.web.visits import Stream

if TYPE_CHECKING:
    from svcnode.history import History, Transition
    from svcnode.web.operator.desk import Desk
    from svcnode.web.visits import Outlet, Visit

KEPT_EVENTS = 1000
MAX_READERS = 512
MAX_WAITING_BYTES = 256 * 1024  # of one reader; who is further behind may come again and say where to go on
HEARTBEAT_S = 15.0
RECONNECT_MS = 2000
PAGE = 500

TOO_MANY = error_answer(503, "Too many listen already; try again later", ("Retry-After", "10"))
BAD_ID = error_answer(400, "Last-Event-ID, or after, is the id of an event: a whole number")

_HEAD = Answer(
    200,
    headers=(
        ("Content-Type", "text/event-stream"),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("X-Accel-Buffering", "no"),  # or else a proxy in between may hold events back
    ),
)
_HELLO = f"retry: {RECONNECT_MS}\n\n".encode()
_HEARTBEAT = b": still here\n\n"
# Something is missing that nobody has any more: the reader had better look at everything anew.
_GAP = b"event: gap\ndata: {}\n\n"


async def events(desk: Desk, visit: Visit, name: str) -> Answer | Stream:
    after = _last_seen(visit)
    if not (after is None or (after.isascii() and after.isdigit() and len(after) < 20)):
        return BAD_ID
    if desk.events.is_full:
        return TOO_MANY
    return Stream(_HEAD, lambda outlet: desk.events.follow(outlet, None if after is None else int(after)))


def _last_seen(visit: Visit) -> str | None:
    if b"last-event-id" in visit.headers:
        return visit.headers[b"last-event-id"].decode("latin-1")
    # A browser cannot set the header when it first connects, so the page says it in the query.
    return parse_query(visit.query).get("after", [None])[0]


class EventHub:
    """Hands every transition to every reader. It lives on the thread of the event loop."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._recent: deque[tuple[int, bytes]] = deque()
        self._all_after = history.last_id  # everything that came after this one is among the recent ones
        self._readers: dict[Outlet, asyncio.Future[None]] = {}
        self.reader_count = 0  # with those who still catch up
        self._heartbeat: asyncio.TimerHandle | None = None
        history.subscribe(self._publish)

    @property
    def is_full(self) -> bool:
        return self.reader_count >= MAX_READERS

    async def follow(self, outlet: Outlet, after: int | None) -> None:
        """Send to this reader until they leave, or fall too far behind."""
        self.reader_count += 1
        try:
            outlet.send(_HELLO)
            if after is not None:
                await self._catch_up(outlet, after)
            await self._listen(outlet)
        finally:
            self.reader_count -= 1

    async def _listen(self, outlet: Outlet) -> None:
        loop = asyncio.get_running_loop()
        gone = self._readers[outlet] = loop.create_future()
        self._heartbeat = self._heartbeat or loop.call_later(HEARTBEAT_S, self._beat)
        try:
            await gone
        finally:
            del self._readers[outlet]

    async def _catch_up(self, outlet: Outlet, after: int) -> None:
        if not self._history.forgotten_to <= after <= self._history.last_id:
            outlet.send(_GAP)
        while after < self._history.last_id:
            data, after = await self._page_after(after)
            outlet.send(data)
            await outlet.drained()

    async def _page_after(self, after: int) -> tuple[bytes, int]:
        """The next events, and the id of the last of them."""
        if after >= self._all_after:
            recent = [event for event in self._recent if event[0] > after][:PAGE]
            return b"".join(data for _, data in recent), recent[-1][0]
        page = await self._history.after(after, PAGE)
        # The newest may be kept already and not told yet: whoever were given them from here would get them twice.
        kept = [transition for transition in page if transition.id <= self._all_after]
        return (b"".join(map(encoded, kept)), kept[-1].id) if kept else (_GAP, self._all_after)

    def _publish(self, transition: Transition) -> None:
        data = encoded(transition)
        self._recent.append((transition.id, data))
        if len(self._recent) > KEPT_EVENTS:
            self._all_after, _ = self._recent.popleft()
        self._send(data)

    def _send(self, data: bytes) -> None:
        for outlet, gone in self._readers.items():
            if outlet.waiting_bytes <= MAX_WAITING_BYTES:
                outlet.send(data)
            elif not gone.done():
                gone.set_result(None)

    def _beat(self) -> None:
        self._heartbeat = None
        if self._readers:
            self._send(_HEARTBEAT)
            self._heartbeat = asyncio.get_running_loop().call_later(HEARTBEAT_S, self._beat)


def encoded(transition: Transition) -> bytes:
    said = {**transition._asdict(), "at": iso_time(transition.at_s)}
    del said["at_s"]
    data = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
    return f"id: {transition.id}\nevent: transition\ndata: {data}\n\n".encode(errors="replace")
