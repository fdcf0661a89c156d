"""Time limits for connections.

A connection is in one list at a time. All connections of a list have the same limit, so the order of adding is the
order of expiry, and no connection needs its own timer.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace
from typing import Protocol


class ServerConnection(Protocol):
    active_at_s: float
    timeout_list: TimeoutList

    @property
    def buffered_bytes(self) -> int: ...

    def is_reading_slowly(self) -> bool: ...

    def shutdown(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...

    def handle_timeout(self) -> None: ...

    def answer_queued(self, deadline_s: float) -> bool: ...


class TimeoutList:
    """The connections in one phase, oldest entry first."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._added_at_s: dict[ServerConnection, float] = {}
        self._by_activity: list[tuple[float, int, ServerConnection]] = []  # a heap; may have removed connections
        self._ordered_to_s = 0.0

    def __len__(self) -> int:
        return len(self._added_at_s)

    def connections(self) -> list[ServerConnection]:
        return list(self._added_at_s)

    def add(self, connection: ServerConnection, now_s: float) -> None:
        """Move the connection here from its current list."""
        connection.timeout_list.remove(connection)
        connection.timeout_list = self
        self._added_at_s[connection] = now_s

    def remove(self, connection: ServerConnection) -> None:
        self._added_at_s.pop(connection, None)

    def least_recently_active(self) -> ServerConnection:
        """Usually the oldest entry. A cached response updates `active_at_s`, but not the list; then a heap is used.

        The heap is made again only after connections were active, so the cost per request is constant.
        """
        oldest, added_at_s = next(iter(self._added_at_s.items()))
        if oldest.active_at_s <= added_at_s:
            return oldest
        while True:
            if not self._by_activity or self._by_activity[0][0] > self._ordered_to_s:
                self._order_by_activity()
            active_at_s, number, connection = self._by_activity[0]
            if connection not in self._added_at_s:
                heappop(self._by_activity)
            elif connection.active_at_s <= active_at_s:
                return connection
            else:
                heapreplace(self._by_activity, (connection.active_at_s, number, connection))

    def _order_by_activity(self) -> None:
        """Connections that are added later are more recently active than `_ordered_to_s`."""
        self._by_activity = [(each.active_at_s, number, each) for number, each in enumerate(self._added_at_s)]
        heapify(self._by_activity)
        self._ordered_to_s = max(active_at_s for active_at_s, _, _ in self._by_activity)

    def inactive(self, now_s: float) -> list[ServerConnection]:
        """Connections that sent nothing for `timeout_s`, regardless of when they were added."""
        return [connection for connection in self._added_at_s if now_s - connection.active_at_s >= self.timeout_s]

    def expired(self, now_s: float) -> list[ServerConnection]:
        """Connections that were added at least `timeout_s` ago."""
        expired = []
        for connection, added_at_s in self._added_at_s.items():
            if now_s - added_at_s < self.timeout_s:
                break
            expired.append(connection)
        return expired
