"""LiveStreams: open event streams that all get the same data, with heartbeats, limits and a planned end.

A slow client delays only itself. What differs between the streams for programs and those for pages is what they send.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from svcnode.api.spec import Response, error_response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from svcnode.api.app import StreamWriter

MAX_STREAMS = 512
MAX_BUFFERED_BYTES = 256 * 1024  # per stream; beyond it the stream is closed, and the client may reconnect
HEARTBEAT_S = 15.0
RECONNECT_MS = 2000
RECONNECT_AFTER_END_MS = 500

PREAMBLE = f"retry: {RECONNECT_MS}\n\n".encode()
HEARTBEAT = b": heartbeat\n\n"
TOO_MANY_STREAMS = error_response(503, "Too many event streams; retry in 10 seconds", ("Retry-After", "10"))
STREAM_HEAD = Response(
    200,
    headers=(
        ("Content-Type", "text/event-stream"),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
        ("X-Accel-Buffering", "no"),  # nginx buffers the stream otherwise
    ),
)


class LiveStreams:
    """Used on the thread of the event loop only."""

    def __init__(self, last_id: Callable[[], object]) -> None:
        """`last_id` is what a client continues from if it connects again now."""
        self._last_id = last_id
        self._live: dict[StreamWriter, asyncio.Future[None]] = {}
        self.stream_count = 0  # with those that are not live yet
        self._heartbeat: asyncio.TimerHandle | None = None

    @property
    def is_full(self) -> bool:
        return self.stream_count >= MAX_STREAMS

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Around everything that is sent to one client."""
        self.stream_count += 1
        self._heartbeat = self._heartbeat or asyncio.get_running_loop().call_later(HEARTBEAT_S, self._send_heartbeats)
        try:
            yield
        finally:
            self.stream_count -= 1

    async def _stream_live(self, writer: StreamWriter) -> None:
        """Until the task is cancelled, the client is too far behind, or the server limits the stream."""
        overflow = self._live[writer] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(writer.max_live_s) as limit:
                await overflow
        except TimeoutError:
            if not limit.expired():
                raise
            retry_ms = RECONNECT_AFTER_END_MS if writer.max_live_s else RECONNECT_MS
            writer.write(_end_event(self._last_id(), retry_ms))
        finally:
            del self._live[writer]

    def _broadcast(self, data: bytes) -> None:
        for writer, overflow in self._live.items():
            if writer.buffered_bytes <= MAX_BUFFERED_BYTES:
                writer.write(data)
            elif not overflow.done():
                overflow.set_result(None)

    def _send_heartbeats(self) -> None:
        self._heartbeat = None
        if self.stream_count:
            self._broadcast(HEARTBEAT)
            self._heartbeat = asyncio.get_running_loop().call_later(HEARTBEAT_S, self._send_heartbeats)


def _end_event(last_id: object, retry_ms: int) -> bytes:
    """The server ends the stream as planned: the client connects again, and misses nothing after this id."""
    return f"id: {last_id}\nretry: {retry_ms}\nevent: end\ndata: {{}}\n\n".encode()
