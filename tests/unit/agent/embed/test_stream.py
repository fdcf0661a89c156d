"""A stream is written on one event loop and read on another one, or in a thread."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from svcnode.agent.embed.stream import LoopStream
from svcnode.api.app import StreamingResponse
from svcnode.api.spec import Response

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    import pytest

    from svcnode.api.app import StreamWriter


def open_stream(write_body: Callable[[StreamWriter], Awaitable[None]]) -> LoopStream:
    return LoopStream(StreamingResponse(Response(200), write_body), max_live_s=10.0, in_thread=False)


async def collect(stream: LoopStream) -> bytes:
    return b"".join([chunk async for chunk in stream.chunks()])


async def forever(writer: StreamWriter) -> None:
    writer.write(b"first")
    await asyncio.get_running_loop().create_future()


def test_drain_waits_for_the_reader() -> None:
    async def run() -> tuple[int, bool, int]:
        drained = asyncio.Event()

        async def write(writer: StreamWriter) -> None:
            writer.write(b"data")
            await writer.drain()
            drained.set()

        stream = open_stream(write)
        for _ in range(10):
            await asyncio.sleep(0)
        before = stream.buffered_bytes, drained.is_set()
        await collect(stream)
        assert drained.is_set()
        return *before, stream.buffered_bytes

    assert asyncio.run(run()) == (4, False, 0)


def test_a_closed_stream_cancels_its_writer_and_ends() -> None:
    async def run() -> bytes:
        stream = open_stream(forever)
        await asyncio.sleep(0)
        stream.close()
        stream.close()
        received = await collect(stream)
        await asyncio.wait({stream.task})
        assert stream.task.cancelled()
        return received

    assert asyncio.run(run()) == b"first"


def test_a_stream_ends_when_its_loop_ends() -> None:
    async def start() -> LoopStream:
        stream = open_stream(forever)
        await asyncio.sleep(0)
        return stream

    stream = asyncio.run(start())
    assert list(stream.blocking_chunks()) == [b"first"]
    stream.close()


def test_an_error_of_the_writer_ends_the_stream_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def write(writer: StreamWriter) -> None:
        writer.write(b"first")
        raise ValueError("not today")

    async def run() -> bytes:
        return await collect(open_stream(write))

    assert asyncio.run(run()) == b"first"
    assert [record.__dict__["event"] for record in caplog.records] == ["internal_error"]
