"""Requests beyond the interface: who is asked, what is asked, and what may come of it.

The interface is answered from ready bytes. Whatever else a listener offers is a *surface*: its answers may take a
while, or go on for ever as a stream of events. A connection waits for a visit to end before it reads on.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from svcnode.api.spec import Response

# The headers that a surface may look at; of all others nothing is kept.
PROXY_HEADERS = frozenset(
    {b"forwarded", b"via", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip"}
)
# With these a browser says on whose behalf it asks, and what for.
FETCH_METADATA_HEADERS = frozenset({b"sec-fetch-dest", b"sec-fetch-mode", b"sec-fetch-site"})
RETAINED_HEADERS = PROXY_HEADERS | FETCH_METADATA_HEADERS | {b"accept", b"authorization", b"host", b"last-event-id"}


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """A request to a surface; path and query as they stood on the wire, the names of headers in small letters.

    A header that was there more than once has all its values, with commas between. The host is that of the target,
    where the target names one.
    """

    method: str
    path: bytes
    query: bytes = b""
    headers: Mapping[bytes, bytes] = field(default_factory=dict)


class StreamWriter(Protocol):
    """Where a stream goes: the connection of the one who reads it."""

    @property
    def buffered_bytes(self) -> int:
        """How much was sent and has not left yet: the reader is slow, or gone."""

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None:
        """Wait until the reader has taken most of what was sent."""


@dataclass(frozen=True, slots=True)
class StreamingResponse:
    """An answer without an end: the head, and what fills it. When that returns, the connection is closed."""

    head: Response
    write_body: Callable[[StreamWriter], Awaitable[None]]


class App(Protocol):
    def matches(self, path: bytes) -> bool:
        """Whether a path is one of its own."""

    def rejection(self, request: OperatorRequest) -> Response | None:
        """What is said to a visitor who may not come in; None to one who may."""

    async def handle(self, request: OperatorRequest) -> Response | StreamingResponse: ...


class Closable(Protocol):
    def close(self) -> None: ...


@dataclass(slots=True)
class Mount:
    """What one listener offers beyond the interface. It may be changed while the listener listens."""

    app: App | None = None
    _streams: set[Closable] = field(default_factory=set, repr=False)

    def set_app(self, app: App | None) -> None:
        """Whoever reads a stream was let in by the rules of before, and has to come in anew."""
        self.app = app
        for reader in tuple(self._streams):
            reader.close()

    @contextmanager
    def track_stream(self, reader: Closable) -> Iterator[None]:
        self._streams.add(reader)
        try:
            yield
        finally:
            self._streams.discard(reader)
