"""Event streams: responses of unknown length. The connection closes when the application ends the stream."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.api.app import Mount, StreamingResponse

log = logging.getLogger("svcnode.server")


class EventStream:
    """The `StreamWriter` of one connection."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self._transport = transport
        self.close = close
        self._writable = asyncio.Event()
        self._writable.set()

    max_live_s = None

    @property
    def buffered_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        # A client may disconnect before the application knows of it. The transport of uvloop then raises, and the
        # other streams of the same event would not get it.
        if not self._transport.is_closing():
            self._transport.write(data)

    async def drain(self) -> None:
        await asyncio.sleep(0)  # let other tasks run, and let the transport report a closed connection
        await self._writable.wait()

    def pause(self) -> None:
        """The client does not read."""
        self._writable.clear()

    def resume(self) -> None:
        self._writable.set()

    async def run(self, response: StreamingResponse, mount: Mount) -> None:
        """Write the body until the application ends it. An application that is replaced closes the connection."""
        mount.open_streams.add(self)
        try:
            await response.write_body(self)
        except Exception:
            log.exception("internal error in an event stream; connection closed", extra={"event": "internal_error"})
        finally:
            mount.open_streams.discard(self)
