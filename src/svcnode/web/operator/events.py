"""`/events`: every transition as a server-sent event, to whoever keeps listening.

An event is encoded once for all who listen. A reader who names the last event that they saw gets all that came after
it: from history as far as that reaches back, and then from the newest events, which are kept here. Between the last
one read from here and the first one told live, nothing is awaited, so nothing is lost.

However many want to catch up, and from however long ago, health is answered by the same loop: a page of events at a
time, and one page at a time for all of them together. Whoever is slow to read holds nobody up but themselves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.encoding import compact_json
from svcnode.spec import Answer, error_answer, parse_query
from svcnode.web.operator.answering import transition_document
from svcnode.web.visits import Stream

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcnode.history import History, Transition
    from svcnode.web.operator.desk import Desk
    from svcnode.web.visits import Outlet, Visit

KEPT_EVENTS = 1000
MAX_READERS = 512
MAX_WAITING_BYTES = 256 * 1024  # of one reader; who is further behind may come again and say where to go on
HEARTBEAT_S = 15.0
RECONNECT_MS = 2000
# A page is made in about a millisecond, and is most of what waits for one who catches up and does not read.
PAGE = 100
PAGE_BYTES = 32 * 1024
KEPT_PAGES = 8  # those who come together go the same way

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


class _Page(NamedTuple):
    data: bytes
    last_id: int


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
        self._pages: dict[int, _Page] = {}  # the last ones from history, by the event before
        self._turn = asyncio.Lock()  # of those who catch up
        self._catching_up: set[Outlet] = set()
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
        self._heartbeat = self._heartbeat or asyncio.get_running_loop().call_later(HEARTBEAT_S, self._beat)
        try:
            outlet.send(_HELLO)
            if after is not None:
                await self._catch_up(outlet, after)
            await self._listen(outlet)
        finally:
            self.reader_count -= 1

    async def _listen(self, outlet: Outlet) -> None:
        gone = self._readers[outlet] = asyncio.get_running_loop().create_future()
        try:
            await gone
        finally:
            del self._readers[outlet]

    async def _catch_up(self, outlet: Outlet, after: int) -> None:
        if after > self._history.last_id:
            outlet.send(_GAP)
        self._catching_up.add(outlet)
        try:
            while after < self._history.last_id:
                data, after = await self._next_page(after)
                outlet.send(data)
                await outlet.drained()
        finally:
            self._catching_up.discard(outlet)

    async def _next_page(self, after: int) -> _Page:
        async with self._turn:
            await asyncio.sleep(0)  # whoever else has something to do comes first
            # More may have been forgotten while this one waited, or read.
            if after < (gone_to := min(self._history.forgotten_to, self._all_after)):
                return _Page(_GAP, gone_to)
            if after >= self._all_after:
                return _page(event for event in self._recent if event[0] > after)
            return self._pages.get(after) or await self._page_from_history(after)

    async def _page_from_history(self, after: int) -> _Page:
        told = await self._history.after(after, PAGE)
        # The newest may be kept already and not told yet: whoever were given them from here would get them twice.
        kept = [transition for transition in told if transition.id <= self._all_after]
        if not kept:
            return _Page(_GAP, self._all_after)
        page = self._pages[after] = _page((transition.id, encoded(transition)) for transition in kept)
        if len(self._pages) > KEPT_PAGES:
            del self._pages[next(iter(self._pages))]
        return page

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
        if self.reader_count:
            self._send(_HEARTBEAT)
            for outlet in self._catching_up:
                if not outlet.waiting_bytes:  # or else there is something to read
                    outlet.send(_HEARTBEAT)
            self._heartbeat = asyncio.get_running_loop().call_later(HEARTBEAT_S, self._beat)


def encoded(transition: Transition) -> bytes:
    data = compact_json(transition_document(transition))
    return f"id: {transition.id}\nevent: transition\ndata: {data}\n\n".encode(errors="replace")


def _page(events: Iterable[tuple[int, bytes]]) -> _Page:
    """The first of them, as many as fit; one at least."""
    data, last_id = bytearray(), 0
    for event_id, event in islice(events, PAGE):
        data += event
        last_id = event_id
        if len(data) >= PAGE_BYTES:
            break
    return _Page(bytes(data), last_id)
