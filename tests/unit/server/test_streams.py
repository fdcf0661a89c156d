"""An event stream: when it waits for the client, and how it ends."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, cast

import uvloop

from svcnode.api.app import Mount, StreamingResponse
from svcnode.api.spec import Response
from svcnode.server.streams import EventStream
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    import pytest

    from svcnode.api.app import StreamWriter


def make_stream() -> EventStream:
    return EventStream(cast("asyncio.Transport", None), lambda: None)


@in_virtual_time
async def test_drain_waits_until_the_client_reads() -> None:
    stream = make_stream()
    await stream.drain()
    stream.pause()
    draining = asyncio.ensure_future(stream.drain())
    await asyncio.sleep(1.0)
    assert not draining.done()
    stream.resume()
    await draining


@in_virtual_time
async def test_a_mount_has_a_stream_until_its_body_is_written() -> None:
    mount, stream = Mount(), make_stream()

    async def write_body(writer: StreamWriter) -> None:
        assert writer is stream
        assert mount.open_streams == {stream}

    await stream.run(StreamingResponse(Response(200), write_body), mount)
    assert mount.open_streams == set()


@in_virtual_time
async def test_an_error_ends_the_stream_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    mount = Mount()

    async def write_body(writer: StreamWriter) -> None:
        raise RuntimeError

    await make_stream().run(StreamingResponse(Response(200), write_body), mount)
    (record,) = (vars(record) for record in caplog.records)
    assert (record["event"], mount.open_streams) == ("internal_error", set())


def test_writing_after_the_client_has_disconnected_is_no_error() -> None:
    async def scenario() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
        stream = EventStream(transport, transport.close)
        theirs.close()
        transport.abort()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        stream.write(b"data")  # uvloop's transport raises RuntimeError

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
