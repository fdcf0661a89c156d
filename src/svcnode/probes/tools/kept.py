"""A connection that is kept from one look to the next, for those who ask for it with `reuse`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

C = TypeVar("C")

REUSED = "the connection of an earlier look"  # what a step of such a look says


class Kept(Generic[C]):
    """At most one connection that waits for its next use."""

    __slots__ = ("_connection", "_loop")

    def __init__(self) -> None:
        self._connection: C | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def put(self, connection: C) -> None:
        self._connection, self._loop = connection, asyncio.get_running_loop()

    def take(self) -> C | None:
        """None as well when it belongs to an event loop that is gone, as after a fork."""
        connection = self._connection if self._loop is asyncio.get_running_loop() else None
        self._connection = self._loop = None
        return connection

    def let_go(self, drop: Callable[[C], None]) -> None:
        connection = self.take()
        if connection is not None:
            drop(connection)
