"""Simulates open pages: each sends the requests of the live page at the same intervals and reads the responses.

`python -m benchmarks.browser_pages PORT COUNT` prints a line when all pages are open, and runs until it is stopped.
"""

from __future__ import annotations

import asyncio
import gzip
import re
import sys
from contextlib import contextmanager, suppress
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING

from benchmarks.provision import ROOT
from svcnode.operator.static_files import static_name

if TYPE_CHECKING:
    from collections.abc import Iterator

POLL_INTERVAL_S = 5.0  # the page polls its visible rows
SHOWN_ROWS = 30
FILES = ("/", f"/static/{static_name('page.css')}", f"/static/{static_name('page.js')}")
READY = "open"


@contextmanager
def open_pages(port: int, count: int) -> Iterator[None]:
    """Keeps `count` pages open during the block, on the core of the load generator."""
    command = [sys.executable, "-m", __name__, str(port), str(count)]
    with Popen(command, cwd=ROOT, stdout=PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() != READY:
                raise RuntimeError("the pages could not be opened")
            yield
        finally:
            process.terminate()


async def _keep_open(port: int, count: int) -> None:
    pages = [_Page(port) for _ in range(count)]
    for page in pages:
        await page.load()
    print(READY, flush=True)
    await asyncio.gather(*(page.run(POLL_INTERVAL_S * number / count) for number, page in enumerate(pages)))


class _Page:
    def __init__(self, port: int) -> None:
        self._port = port
        self._ids = [f"id=svc-{number}" for number in range(SHOWN_ROWS)]

    async def load(self) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**24)
        page, *_ = [await self._get(path) for path in FILES]
        self._cursor = _cursor_of(page)
        await self._get("/history?resolution=minutes&" + "&".join(self._ids))
        self._events, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(self._request("/page/events"))
        await self._events.readuntil(b"\r\n\r\n")

    async def run(self, begin_in_s: float) -> None:
        await asyncio.gather(self._read_events(), self._poll(begin_in_s))

    async def _read_events(self) -> None:
        while await self._events.read(65536):
            pass

    async def _poll(self, begin_in_s: float) -> None:
        await asyncio.sleep(begin_in_s)
        while True:
            body = await self._get(f"/page/changes?after={self._cursor}&" + "&".join(self._ids))
            self._cursor = _cursor_of(body)
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _get(self, path: str) -> bytes:
        self._writer.write(self._request(path))
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)\ncontent-length: *(\d+)", head)
        if length is None or b" 200 " not in head:
            raise RuntimeError(f"{path}: {head!r}")
        return await self._reader.readexactly(int(length[1]))

    def _request(self, path: str) -> bytes:
        headers = f"Host: 127.0.0.1:{self._port}\r\nAccept-Encoding: gzip"
        return f"GET {path} HTTP/1.1\r\n{headers}\r\n\r\n".encode()


def _cursor_of(body: bytes) -> str:
    text = gzip.decompress(body) if body.startswith(b"\x1f\x8b") else body
    found = re.search(rb'data-cursor="([^"]*)"', text)
    return "" if found is None else found[1].decode()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(_keep_open(*map(int, sys.argv[1:3])))
