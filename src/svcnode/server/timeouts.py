"""Time limits for connections.

A connection is in one list at a time. All connections of a list have the same limit, so the order of adding is the
order of expiry, and no connection needs its own timer.
"""

from __future__ import annotations

from typing import Protocol


class TimedConnection(Protocol):
    active_at_s: float
    timeout_list: TimeoutList

    def shutdown(self) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...

    def handle_timeout(self) -> None: ...


class TimeoutList:
    """The connections in one phase, oldest entry first."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._added_at_s: dict[TimedConnection, float] = {}

    def __len__(self) -> int:
        return len(self._added_at_s)

    def connections(self) -> list[TimedConnection]:
        return list(self._added_at_s)

    def add(self, connection: TimedConnection, now_s: float) -> None:
        """Move the connection here from its current list."""
        connection.timeout_list.remove(connection)
        connection.timeout_list = self
        self._added_at_s[connection] = now_s

    def remove(self, connection: TimedConnection) -> None:
        self._added_at_s.pop(connection, None)

    def least_recently_active(self) -> TimedConnection:
        return min(self._added_at_s, key=lambda connection: connection.active_at_s)

    def inactive(self, now_s: float) -> list[TimedConnection]:
        """Connections that sent nothing for `timeout_s`, regardless of when they were added."""
        return [connection for connection in self._added_at_s if now_s - connection.active_at_s >= self.timeout_s]

    def expired(self, now_s: float) -> list[TimedConnection]:
        """Connections that were added at least `timeout_s` ago."""
        expired = []
        for connection, added_at_s in self._added_at_s.items():
            if now_s - added_at_s < self.timeout_s:
                break
            expired.append(connection)
        return expired
