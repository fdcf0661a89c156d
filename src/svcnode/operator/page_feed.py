"""PageFeed: which parts of the page have changed since a moment, and a signal to the open pages.

A page asks for what has changed after its cursor (`/page/changes`), and is told by `/page/events` when to ask again. A
change only notes the id of its service under a new version, so it costs the same with 10 services and with 10,000. What
a page gets depends on its cursor alone: one that was offline, or whose connection is slow, gets the latest row of each
service that has changed meanwhile, once.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import contextmanager, suppress
from itertools import count, takewhile
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.model import MAINTENANCE_CHANGES, ChangeKind
from svcnode.operator.streams import PREAMBLE, LiveStreams

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from svcnode.api.app import StreamWriter
    from svcnode.core.model import Change
    from svcnode.node.node_state import NodeState

# Between two signals, however many changes there are. The longer it takes to render what the pages ask for then, the
# longer the interval: with 5,000 services that are not Up, that takes about an eighth of the time of a core.
SIGNAL_INTERVAL_S, MAX_SIGNAL_INTERVAL_S = 0.25, 1.0
INTERVAL_PER_COST = 8
MAX_DIGITS = 20
MAX_REMOVED = 1000  # ids of removed services that are remembered


class Changes(NamedTuple):
    """What has changed after a cursor."""

    cursor: str  # includes all of it
    service_ids: tuple[str, ...]  # also of services that are no longer registered; the oldest change first
    is_complete: bool  # all services: the cursor is of another process, or too old
    sections: dict[str, str]  # HTML by the id of its element


class PageFeed(LiveStreams):
    """Used on the thread of the event loop only, while `following`."""

    def __init__(self, node: NodeState) -> None:
        super().__init__(lambda: self.cursor)
        self._node = node
        self._process = os.urandom(4).hex()  # cursors of another process say nothing here
        self._version = 0
        self._changed_in = 0  # the version of the last change of the node
        self._signalled = 0  # the version that the open pages were told of
        self._known_from = 0  # cursors before it are too old
        self._changed: dict[str, int] = {}  # the version of the last change by service id, the latest last
        self._sections: dict[str, tuple[str, int]] = {}  # HTML, and the version that it is new in
        self._positions: dict[str, int] = {}  # by service id; they increase in the order of the node
        self._next_position = count()
        self._timer: asyncio.TimerHandle | None = None
        self._interval_s = SIGNAL_INTERVAL_S

    @contextmanager
    def following(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def record_soon(change: Change) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._record, change.kind, change.service_id)

        unsubscribe = self._node.subscribe(record_soon)
        self._set_positions()
        try:
            yield
        finally:
            unsubscribe()
            if self._timer is not None:
                self._timer.cancel()

    @property
    def cursor(self) -> str:
        return f"{self._process}-{self._version}"

    @property
    def signalled(self) -> str:
        """The cursor that the open pages were told of; it changes a few times per second at most."""
        return f"{self._process}-{self._signalled}"

    def position(self, service_id: str) -> int:
        """Orders the rows as the node does; a service that was registered a moment ago is the last."""
        return self._positions.get(service_id, sys.maxsize)

    async def stream_to(self, writer: StreamWriter) -> None:
        """Send a signal now, and whenever something has changed."""
        with self._counted():
            writer.write(PREAMBLE + self._signal)
            await self._stream_live(writer)

    def changes_after(self, cursor: str) -> Changes:
        after = self._version_of(cursor)
        sections = {name: html for name, (html, version) in self._sections.items() if version > after}
        if after < self._known_from:
            return Changes(self.cursor, self._node.ids, True, sections)
        newest_first = takewhile(lambda item: item[1] > after, reversed(self._changed.items()))
        return Changes(self.cursor, tuple(service_id for service_id, _ in newest_first)[::-1], False, sections)

    def _version_of(self, cursor: str) -> int:
        """Before the first version if the cursor says nothing here."""
        process, _, number = cursor.partition("-")
        is_known = process == self._process and number.isdecimal() and len(number) < MAX_DIGITS
        return int(number) if is_known and int(number) <= self._version else -1

    def set_sections(self, sections: Mapping[str, str], cost_s: float = 0.0) -> None:
        """What these sections show now, and what it took to render them.

        Pages get it with their next request; it is not signalled.
        """
        self._interval_s = min(max(SIGNAL_INTERVAL_S, INTERVAL_PER_COST * cost_s), MAX_SIGNAL_INTERVAL_S)
        for name, html in sections.items():
            if name not in self._sections or self._sections[name][0] != html:
                self._version += 1
                self._sections[name] = html, self._version

    # ---- changes of the node

    def _record(self, kind: ChangeKind, service_id: str | None) -> None:
        self._version += 1
        self._changed_in = self._version
        if service_id is not None:
            self._set_position(kind, service_id)
            self._note(service_id)
        elif kind in MAINTENANCE_CHANGES:
            self._note(*self._node.ids)  # each row says so
        elif kind is ChangeKind.NODE and self._node.ids != tuple(self._positions):
            self._set_positions()
            self._note(*self._positions)
        if self._timer is None:
            self._send_signal()

    def _note(self, *service_ids: str) -> None:
        for service_id in service_ids:
            self._changed.pop(service_id, None)
            self._changed[service_id] = self._version
        while len(self._changed) > len(self._node) + MAX_REMOVED:
            oldest = next(iter(self._changed))
            self._known_from = self._changed.pop(oldest)

    def _set_position(self, kind: ChangeKind, service_id: str) -> None:
        if kind is ChangeKind.DEREGISTERED:
            self._positions.pop(service_id, None)
        else:
            self._positions.setdefault(service_id, next(self._next_position))

    def _set_positions(self) -> None:
        self._positions = dict(zip(self._node.ids, self._next_position))  # noqa: B905  there is always a next one

    # ---- signals: at once, and then at most one in each interval

    @property
    def _signal(self) -> bytes:
        return f"id: {self.cursor}\nevent: change\ndata: {{}}\n\n".encode()

    def _send_signal(self) -> None:
        self._timer = None
        if self._signalled == self._changed_in:
            return
        self._signalled = self._changed_in
        self._broadcast(self._signal)
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._send_signal)
