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

from svcnode.api.app import StreamingResponse
from svcnode.api.spec import Response, error_response, parse_query
from svcnode.core.strict_json import compact_json
from svcnode.operator.responses import transition_document

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcnode.api.app import OperatorRequest, StreamWriter
    from svcnode.history import History, Transition
    from svcnode.operator.context import OperatorContext

MAX_RECENT_EVENTS = 1000
MAX_STREAMS = 512
MAX_BUFFERED_BYTES = 256 * 1024  # of one reader; who is further behind may come again and say where to go on
HEARTBEAT_S = 15.0
RECONNECT_MS = 2000
# A page is made in about a millisecond, and is most of what waits for one who catches up and does not read.
PAGE_EVENTS = 100
PAGE_BYTES = 32 * 1024
MAX_CACHED_PAGES = 8  # those who come together go the same way

TOO_MANY_STREAMS = error_response(503, "Too many listen already; try again later", ("Retry-After", "10"))
INVALID_EVENT_ID = error_response(400, "Last-Event-ID, or after, is the id of an event: a whole number")

_HEAD = Response(
    200,
    headers=(
        ("Content-Type", "text/event-stream"),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("X-Accel-Buffering", "no"),  # or else a proxy in between may hold events back
    ),
)
_PREAMBLE = f"retry: {RECONNECT_MS}\n\n".encode()
_HEARTBEAT = b": still here\n\n"
# Something is missing that nobody has any more: the reader had better look at everything anew.
_GAP = b"event: gap\ndata: {}\n\n"


class _Page(NamedTuple):
    data: bytes
    last_id: int


async def events(context: OperatorContext, request: OperatorRequest, name: str) -> Response | StreamingResponse:
    after = _last_event_id(request)
    if not (after is None or (after.isascii() and after.isdigit() and len(after) < 20)):
        return INVALID_EVENT_ID
    if context.events.is_full:
        return TOO_MANY_STREAMS
    return StreamingResponse(
        _HEAD, lambda outlet: context.events.stream_to(outlet, None if after is None else int(after))
    )


def _last_event_id(request: OperatorRequest) -> str | None:
    if b"last-event-id" in request.headers:
        return request.headers[b"last-event-id"].decode("latin-1")
    # A browser cannot set the header when it first connects, so the page says it in the query.
    return parse_query(request.query).get("after", [None])[0]


class EventHub:
    """Hands every transition to every reader. It lives on the thread of the event loop."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._recent: deque[tuple[int, bytes]] = deque()
        self._recent_after_id = history.last_id  # everything that came after this one is among the recent ones
        self._pages: dict[int, _Page] = {}  # the last ones from history, by the event before
        self._replay_lock = asyncio.Lock()  # of those who catch up
        self._replaying: set[StreamWriter] = set()
        self._live: dict[StreamWriter, asyncio.Future[None]] = {}
        self.stream_count = 0  # with those who still catch up
        self._heartbeat: asyncio.TimerHandle | None = None
        history.subscribe(self._publish)

    @property
    def is_full(self) -> bool:
        return self.stream_count >= MAX_STREAMS

    async def stream_to(self, writer: StreamWriter, after: int | None) -> None:
        """Send to this reader until they leave, or fall too far behind."""
        self.stream_count += 1
        self._heartbeat = self._heartbeat or asyncio.get_running_loop().call_later(HEARTBEAT_S, self._send_heartbeats)
        try:
            writer.write(_PREAMBLE)
            if after is not None:
                await self._replay(writer, after)
            await self._stream_live(writer)
        finally:
            self.stream_count -= 1

    async def _stream_live(self, writer: StreamWriter) -> None:
        gone = self._live[writer] = asyncio.get_running_loop().create_future()
        try:
            await gone
        finally:
            del self._live[writer]

    async def _replay(self, writer: StreamWriter, after: int) -> None:
        if after > self._history.last_id:
            writer.write(_GAP)
        self._replaying.add(writer)
        try:
            while after < self._history.last_id:
                data, after = await self._next_page(after)
                writer.write(data)
                await writer.drain()
        finally:
            self._replaying.discard(writer)

    async def _next_page(self, after: int) -> _Page:
        async with self._replay_lock:
            await asyncio.sleep(0)  # whoever else has something to do comes first
            # More may have been forgotten while this one waited, or read.
            if after < (gone_to := min(self._history.pruned_to, self._recent_after_id)):
                return _Page(_GAP, gone_to)
            if after >= self._recent_after_id:
                return _make_page(event for event in self._recent if event[0] > after)
            return self._pages.get(after) or await self._page_from_history(after)

    async def _page_from_history(self, after: int) -> _Page:
        told = await self._history.after(after, PAGE_EVENTS)
        # The newest may be kept already and not told yet: whoever were given them from here would get them twice.
        kept = [transition for transition in told if transition.id <= self._recent_after_id]
        if not kept:
            return _Page(_GAP, self._recent_after_id)
        page = self._pages[after] = _make_page((transition.id, encode_event(transition)) for transition in kept)
        if len(self._pages) > MAX_CACHED_PAGES:
            del self._pages[next(iter(self._pages))]
        return page

    def _publish(self, transition: Transition) -> None:
        data = encode_event(transition)
        self._recent.append((transition.id, data))
        if len(self._recent) > MAX_RECENT_EVENTS:
            self._recent_after_id, _ = self._recent.popleft()
        self._broadcast(data)

    def _broadcast(self, data: bytes) -> None:
        for outlet, gone in self._live.items():
            if outlet.buffered_bytes <= MAX_BUFFERED_BYTES:
                outlet.write(data)
            elif not gone.done():
                gone.set_result(None)

    def _send_heartbeats(self) -> None:
        self._heartbeat = None
        if self.stream_count:
            self._broadcast(_HEARTBEAT)
            for outlet in self._replaying:
                if not outlet.buffered_bytes:  # or else there is something to read
                    outlet.write(_HEARTBEAT)
            self._heartbeat = asyncio.get_running_loop().call_later(HEARTBEAT_S, self._send_heartbeats)


def encode_event(transition: Transition) -> bytes:
    data = compact_json(transition_document(transition))
    return f"id: {transition.id}\nevent: transition\ndata: {data}\n\n".encode(errors="replace")


def _make_page(events: Iterable[tuple[int, bytes]]) -> _Page:
    """The first of them, as many as fit; one at least."""
    data, last_id = bytearray(), 0
    for event_id, event in islice(events, PAGE_EVENTS):
        data += event
        last_id = event_id
        if len(data) >= PAGE_BYTES:
            break
    return _Page(bytes(data), last_id)
