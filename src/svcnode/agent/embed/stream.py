"""LoopStream: the body of a streaming response, written on one event loop and read on another one or in a thread."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING

from svcnode.net.threads import result_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from svcnode.api.app import StreamingResponse

log = logging.getLogger("svcnode.operator")


class LoopStream:
    """Created, and written as a `StreamWriter`, on the event loop of the application."""

    def __init__(self, response: StreamingResponse, *, max_live_s: float, in_thread: bool) -> None:
        self.head = response.head
        self.max_live_s = max_live_s
        self.in_thread = in_thread  # the reader occupies a thread while the stream is open
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._data = bytearray()
        self._is_ended = False
        self._waiting: Future[bytes] | None = None  # the reader waits for data
        self._taken = asyncio.Event()
        self.task = asyncio.create_task(self._write_body(response), name="event stream")

    async def _write_body(self, response: StreamingResponse) -> None:
        try:
            await response.write_body(self)
        except Exception:
            log.exception("internal error in an event stream; it is closed", extra={"event": "internal_error"})
        finally:
            self._end()

    # ---- the writer

    @property
    def buffered_bytes(self) -> int:
        return len(self._data)

    def write(self, data: bytes) -> None:
        with self._lock:
            self._data += data
            self._deliver()

    async def drain(self) -> None:
        await asyncio.sleep(0)  # let other tasks run
        while self._data:
            self._taken.clear()
            await self._taken.wait()

    # ---- the reader

    async def chunks(self) -> AsyncIterator[bytes]:
        while data := await result_of(self._read()):
            yield data

    def blocking_chunks(self) -> Iterator[bytes]:
        while data := self._read().result():
            yield data

    def close(self) -> None:
        self._end()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.task.cancel)

    def _read(self) -> Future[bytes]:
        """The data written since the last read, as soon as there is some; empty at the end."""
        reader: Future[bytes] = Future()
        reader.set_running_or_notify_cancel()  # cannot be cancelled
        with self._lock:
            self._waiting = reader
            self._deliver()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._taken.set)
        return reader

    def _deliver(self) -> None:
        if self._waiting is not None and (self._data or self._is_ended):
            reader, self._waiting = self._waiting, None
            data, self._data = bytes(self._data), bytearray()
            reader.set_result(data)

    def _end(self) -> None:
        with self._lock:
            self._is_ended = True
            self._deliver()
