"""A reader of server-sent events."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from tests.support.http_server import WAIT_TIMEOUT_S, RawClient, RawResponse, request

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Event:
    name: str  # "" for a comment
    id: int | None
    data: Any

    @property
    def summary(self) -> tuple[str, str | None, str | None]:
        """Kind, service and new state."""
        return self.data["kind"], self.data["service_id"], self.data["after"]


class EventReader:
    def __init__(self, address: Any, *, after: int | None = None, query: str = "", receive_buffer: int = 0) -> None:
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(WAIT_TIMEOUT_S)
        sock.connect(address)
        self.sock = sock
        headers = [] if after is None else [f"Last-Event-ID: {after}"]
        client = RawClient(sock)
        self.head: RawResponse = client.request(request(f"/events{query}", *headers, host="localhost"), is_head=True)
        self._received = client.unread

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def read(self) -> Event:
        """The next event or comment. `retry:` is skipped."""
        while True:
            while b"\n\n" not in self._received:
                data = self.sock.recv(65536)
                if not data:
                    raise EOFError(f"the stream ended; unread: {self._received!r}")
                self._received += data
            block, _, self._received = self._received.partition(b"\n\n")
            if not block.startswith(b"retry:"):
                return _event(block.decode())

    # A slow machine receives heartbeats in the midst of events. The following skip such comments.

    def read_event(self) -> Event:
        """The next event with an id, which a gap has not."""
        while (event := self.read()).id is None:
            pass
        return event

    def read_many(self, count: int) -> list[Event]:
        return [self.read_event() for _ in range(count)]

    def read_until(self, is_last: Callable[[Event], bool]) -> list[Event]:
        """All events up to and including the first for which `is_last` is true."""
        events: list[Event] = []
        while not events or not is_last(events[-1]):
            events += [event] if (event := self.read()).name else []
        return events

    def read_all(self) -> list[Event]:
        events = []
        with suppress(EOFError):
            while True:
                events.append(self.read_event())
        return events


def _event(block: str) -> Event:
    if block.startswith(":"):
        return Event("", None, block.removeprefix(":").strip())
    fields = dict(line.split(": ", 1) for line in block.split("\n"))
    number = int(fields["id"]) if "id" in fields else None
    return Event(fields["event"], number, json.loads(fields["data"]))
