"""Where connections wait, and how long each may.

A connection is in one room at a time. All in a room have the same time limit, so the order of entering is the order
of expiring, and no connection needs a timer of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from svcnode.web.connection import Connection


class Room:
    """Connections in one phase, longest there first."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._entered_at_s: dict[Connection, float] = {}

    def __len__(self) -> int:
        return len(self._entered_at_s)

    def all(self) -> list[Connection]:
        return list(self._entered_at_s)

    def enter(self, connection: Connection, now_s: float) -> None:
        connection.room.leave(connection)
        connection.room = self
        self._entered_at_s[connection] = now_s

    def leave(self, connection: Connection) -> None:
        self._entered_at_s.pop(connection, None)

    def longest_idle(self) -> Connection:
        return min(self._entered_at_s, key=lambda connection: connection.active_at_s)

    def silent(self, now_s: float) -> list[Connection]:
        """Those that have sent nothing for as long as the limit, whenever they came in."""
        return [connection for connection in self._entered_at_s if now_s - connection.active_at_s >= self.limit_s]

    def overdue(self, now_s: float) -> list[Connection]:
        found = []
        for connection, entered_at_s in self._entered_at_s.items():
            if now_s - entered_at_s < self.limit_s:
                break
            found.append(connection)
        return found
