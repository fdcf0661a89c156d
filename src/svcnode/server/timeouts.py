"""Where connections wait, and how long each may.

A connection is in one room at a time. All in a room have the same time limit, so the order of entering is the order
of expiring, and no connection needs a timer of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from svcnode.server.connection import Connection


class TimeoutList:
    """Connections in one phase, longest there first."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._added_at_s: dict[Connection, float] = {}

    def __len__(self) -> int:
        return len(self._added_at_s)

    def connections(self) -> list[Connection]:
        return list(self._added_at_s)

    def add(self, connection: Connection, now_s: float) -> None:
        connection.timeout_list.remove(connection)
        connection.timeout_list = self
        self._added_at_s[connection] = now_s

    def remove(self, connection: Connection) -> None:
        self._added_at_s.pop(connection, None)

    def least_recently_active(self) -> Connection:
        return min(self._added_at_s, key=lambda connection: connection.active_at_s)

    def inactive(self, now_s: float) -> list[Connection]:
        """Those that have sent nothing for as long as the limit, whenever they came in."""
        return [connection for connection in self._added_at_s if now_s - connection.active_at_s >= self.timeout_s]

    def expired(self, now_s: float) -> list[Connection]:
        found = []
        for connection, entered_at_s in self._added_at_s.items():
            if now_s - entered_at_s < self.timeout_s:
                break
            found.append(connection)
        return found
