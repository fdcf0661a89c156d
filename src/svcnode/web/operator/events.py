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
        self._heartbeat: asyncio.TimerHandle | None = None
        history.subscribe(self._publish)

    @property
    def reader_count(self) -> int:
        return len(self._readers)

    @property
    def is_full(self) -> bool:
        return self.reader_count >= MAX_READERS

    async def follow(self, outlet: Outlet, after: int | None) -> None:
        """Send to this reader until they leave, or fall too far behind."""
        outlet.send(_HELLO)
        if after is not None:
            await self._catch_up(outlet, after)
        loop = asyncio.get_running_loop()
        gone = self._readers[outlet] = loop.create_future()
        self._heartbeat = self._heartbeat or loop.call_later(HEARTBEAT_S, self._beat)
        try:
            await gone
        finally:
            del self._readers[outlet]

    async def _catch_up(self, outlet: Outlet, after: int) -> None:
        if after < self._history.forgotten_to:
            outlet.send(_gap())
        while after < self._all_after:
            missed = await self._history.after(after, PAGE)
            if not missed:
                outlet.send(_gap())
                break
            outlet.send(b"".join(map(encoded, missed)))
            after = missed[-1].id
            await outlet.drained()
        outlet.send(b"".join(data for number, data in self._recent if number > after))

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
    return f"id: {transition.id}\nevent: transition\ndata: {data}\n\n".encode()


def _gap() -> bytes:
    """Something is missing that nobody has any more: the reader had better look at everything anew."""
    return b"event: gap\ndata: {}\n\n"
