"""EventHub: sends every transition to every open event stream.

An event is encoded once for all streams. A client that names the last event it received gets everything after it: first
from history, then from the recent events in memory. Nothing is awaited between the last recent event and the first live
one, so no event is lost.

Replaying must not delay health responses, which use the same event loop: all streams together replay one page of events
at a time. A slow client delays only itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.core.strict_json import compact_json
from svcnode.core.units import iso_time
from svcnode.operator.streams import HEARTBEAT, PREAMBLE, LiveStreams

if TYPE_CHECKING:
    from collections.abc import Iterable

    from svcnode.api.app import StreamWriter
    from svcnode.history import History, Transition

MAX_RECENT_EVENTS = 1000
# A page takes about a millisecond to encode. It also bounds the buffer of a client that replays and does not read.
PAGE_EVENTS = 100
PAGE_BYTES = 32 * 1024
MAX_CACHED_PAGES = 8  # clients that connect at the same time replay the same pages

# Some events are no longer available: the client should load the current state again.
GAP = b"event: gap\ndata: {}\n\n"


class _EventPage(NamedTuple):
    data: bytes
    last_id: int


class EventHub(LiveStreams):
    """Used on the thread of the event loop only."""

    def __init__(self, history: History) -> None:
        super().__init__(lambda: history.last_id)
        self._history = history
        self._recent: deque[tuple[int, bytes]] = deque()
        self._recent_after_id = history.last_id  # every event with a greater id is in _recent
        self._pages: dict[int, _EventPage] = {}  # pages from history, by the id of the event before the page
        self._replay_lock = asyncio.Lock()
        self._replaying: set[StreamWriter] = set()
        history.subscribe(self._publish)

    async def stream_to(self, writer: StreamWriter, after: int | None) -> None:
        """Send events until the task is cancelled, the client is too far behind, or the server limits the stream."""
        with self._counted():
            writer.write(PREAMBLE)
            if after is not None:
                await self._replay(writer, after)
            await self._stream_live(writer)

    async def _replay(self, writer: StreamWriter, after: int) -> None:
        if after > self._history.last_id:
            writer.write(GAP)
        self._replaying.add(writer)
        try:
            while after < self._history.last_id:
                data, after = await self._next_page(after)
                writer.write(data)
                await writer.drain()
        finally:
            self._replaying.discard(writer)

    async def _next_page(self, after: int) -> _EventPage:
        async with self._replay_lock:
            await asyncio.sleep(0)  # let other callbacks run between two pages
            # History may have been pruned while this stream waited for the lock.
            if after < (pruned_to := min(self._history.pruned_to, self._recent_after_id)):
                return _EventPage(GAP, pruned_to)
            if after >= self._recent_after_id:
                return _make_page(event for event in self._recent if event[0] > after)
            return self._pages.get(after) or await self._page_from_history(after)

    async def _page_from_history(self, after: int) -> _EventPage:
        transitions = await self._history.after(after, PAGE_EVENTS)
        # The newest ones may be stored but not yet published; sent from here, they would arrive twice.
        published = [transition for transition in transitions if transition.id <= self._recent_after_id]
        if not published:
            return _EventPage(GAP, self._recent_after_id)
        page = self._pages[after] = _make_page((transition.id, encode_event(transition)) for transition in published)
        if len(self._pages) > MAX_CACHED_PAGES:
            del self._pages[next(iter(self._pages))]
        return page

    def _publish(self, transition: Transition) -> None:
        data = encode_event(transition)
        self._recent.append((transition.id, data))
        if len(self._recent) > MAX_RECENT_EVENTS:
            self._recent_after_id, _ = self._recent.popleft()
        self._broadcast(data)

    def _send_heartbeats(self) -> None:
        super()._send_heartbeats()
        for writer in self._replaying:
            if not writer.buffered_bytes:
                writer.write(HEARTBEAT)


def transition_document(transition: Transition) -> dict[str, Any]:
    """The form of a transition in `/events` and `/history`."""
    document = {"id": transition.id, "at": iso_time(transition.at_s), **transition._asdict()}
    del document["at_s"]
    return document


def encode_event(transition: Transition) -> bytes:
    data = compact_json(transition_document(transition))
    return f"id: {transition.id}\nevent: transition\ndata: {data}\n\n".encode(errors="replace")


def _make_page(events: Iterable[tuple[int, bytes]]) -> _EventPage:
    """The first events that fit into a page, at least one."""
    data, last_id = bytearray(), 0
    for event_id, event in islice(events, PAGE_EVENTS):
        data += event
        last_id = event_id
        if len(data) >= PAGE_BYTES:
            break
    return _EventPage(bytes(data), last_id)
