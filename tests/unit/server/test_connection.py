"""The phases of a connection.

A refused client gets the refusal, also if it has not read earlier responses: the connection is not reset.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from svcnode.api.app import Mount, StreamingResponse
from svcnode.api.spec import Response, make_response
from svcnode.server.connection import Connection, Phase
from svcnode.server.server import HttpServer
from tests.support.nodes import make_node
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from svcnode.api.app import StreamWriter
    from svcnode.api.spec import Request
    from svcnode.server.timeouts import TimeoutList

HEALTH = b"GET /svc/node/health HTTP/1.1\r\nHost: a\r\n\r\n"
OWN = b"GET /own HTTP/1.1\r\nHost: a\r\n\r\n"
INVALID_REQUEST = b"\0invalid\r\n\r\n"


class FakeTransport:
    """Unless the client reads at once, the buffer is full from the first write on."""

    def __init__(self, connection: Connection, *, client_reads_at_once: bool) -> None:
        self._connection = connection
        self._client_reads_at_once = client_reads_at_once
        self.buffer = b""
        self.has_eof = self.is_closed = False
        self.is_reading = True

    def get_extra_info(self, _name: str) -> FakeTransport:
        return self

    def fileno(self) -> int:
        return -1

    def write(self, data: bytes) -> None:
        self.buffer += data
        if not self._client_reads_at_once:
            self._connection.pause_writing()

    def get_write_buffer_size(self) -> int:
        return len(self.buffer)

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_eof = True

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_closed = True
        self._connection.connection_lost(None)

    def client_reads(self) -> bytes:
        received, self.buffer = self.buffer, b""
        self._connection.resume_writing()
        return received


class FakeApp:
    """Handles all paths below /own, each of which waits for `release`."""

    def __init__(self) -> None:
        self.release = asyncio.Event()

    def matches(self, path: bytes) -> bool:
        return path.startswith(b"/own")

    def rejection(self, request: Request) -> Response | None:
        return None

    async def handle(self, request: Request) -> Response | StreamingResponse:
        if request.path == b"/own/stream":
            return StreamingResponse(Response(200), self._write_body)
        await self.release.wait()
        return make_response(200)

    async def _write_body(self, writer: StreamWriter) -> None:
        await self.release.wait()


class Setup:
    def __init__(self, mount: Mount | None = None, *, client_reads_at_once: bool = True) -> None:
        self.app = FakeApp()
        self.state = HttpServer(make_node("node", version="v1"), ("/svc",)).state
        self.connection = Connection(self.state, mount or Mount(self.app))
        self.transport = FakeTransport(self.connection, client_reads_at_once=client_reads_at_once)
        self.connection.connection_made(cast("asyncio.Transport", self.transport))
        self.now_s = self.connection.active_at_s

    def phase_after(self, data: bytes) -> Phase:
        self.connection.data_received(data)
        return self.connection.phase

    def is_reading(self) -> bool:
        return self.transport.is_reading

    def pass_time(self, phase: TimeoutList) -> None:
        self.now_s += 2 * phase.timeout_s
        self.state._enforce_time_limits(self.now_s)

    async def settled_phase(self) -> Phase:
        for _ in range(5):
            await asyncio.sleep(0)
        return self.connection.phase


@pytest.fixture(autouse=True)
def no_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("svcnode.server.state.ServerState._schedule_tick", lambda _: None)


@in_virtual_time
async def test_a_connection_is_idle_between_requests_and_receiving_within_one() -> None:
    setup = Setup()
    assert setup.connection.phase is Phase.IDLE
    assert setup.phase_after(b"\r\n") is Phase.IDLE
    assert setup.connection.timeout_list is setup.state.silent
    assert setup.phase_after(HEALTH) is Phase.IDLE
    assert setup.connection.timeout_list is setup.state.idle
    assert setup.phase_after(HEALTH[:30]) is Phase.RECEIVING
    assert setup.phase_after(HEALTH[30:]) is Phase.IDLE
    assert setup.phase_after(b"\r\n") is Phase.IDLE
    assert setup.phase_after(b"POST /svc/node HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n") is Phase.RECEIVING
    assert setup.phase_after(b"abc") is Phase.IDLE


@in_virtual_time
async def test_pipelined_requests_are_queued_and_not_read_further() -> None:
    setup = Setup()
    assert setup.phase_after(HEALTH + HEALTH + HEALTH[:30]) is Phase.QUEUED
    assert not setup.is_reading()
    assert await setup.settled_phase() is Phase.RECEIVING
    assert setup.is_reading()
    assert setup.transport.buffer.count(b"HTTP/1.1 200") == 2


@in_virtual_time
async def test_a_request_to_the_application_is_handled_and_then_the_next_one_is_answered() -> None:
    setup = Setup()
    assert setup.phase_after(OWN) is Phase.HANDLING
    assert setup.is_reading()
    assert setup.phase_after(HEALTH) is Phase.HANDLING
    assert not setup.is_reading()
    setup.app.release.set()
    assert await setup.settled_phase() is Phase.IDLE
    assert setup.is_reading()


class PushedApp(FakeApp):
    """Records the bodies of the requests that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[bytes] = []

    async def handle(self, request: Request) -> Response:
        self.bodies.append(request.body)
        return make_response(204)


@in_virtual_time
async def test_a_push_is_never_cached_and_gets_as_much_of_its_body_as_is_kept() -> None:
    push = PushedApp()
    setup = Setup(Mount(push=push, kept_body_bytes=4))
    empty = b"POST /own HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n"
    for data in (OWN, empty, empty, empty, empty.replace(b" 0", b" 6") + b"abcdef", OWN):
        setup.connection.data_received(data)
        assert await setup.settled_phase() is Phase.IDLE
    assert push.bodies == [b"", b"", b"", b"", b"abcd", b""]
    assert setup.transport.buffer.count(b"HTTP/1.1 204") == 6


@in_virtual_time
async def test_a_client_that_closed_its_sending_side_gets_the_response_of_the_application() -> None:
    setup = Setup()
    assert setup.phase_after(OWN) is Phase.HANDLING
    assert setup.connection.eof_received()
    setup.app.release.set()
    assert await setup.settled_phase() is Phase.CLOSING
    assert (setup.transport.buffer.count(b"HTTP/1.1 200"), setup.transport.is_closed) == (1, True)


@in_virtual_time
async def test_a_connection_closes_when_its_stream_ends() -> None:
    setup = Setup()
    assert setup.phase_after(OWN.replace(b"/own", b"/own/stream")) is Phase.HANDLING
    assert await setup.settled_phase() is Phase.STREAMING
    setup.app.release.set()
    assert await setup.settled_phase() is Phase.CLOSING
    setup.connection.connection_lost(None)
    setup.connection.close()
    assert setup.connection.phase is Phase.CLOSED
    assert setup.state.connection_count == 0


@in_virtual_time
async def test_the_last_response_closes_the_connection() -> None:
    setup = Setup()
    assert setup.phase_after(HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + HEALTH) is Phase.QUEUED
    assert await setup.settled_phase() is Phase.CLOSING
    assert setup.transport.buffer.count(b"HTTP/1.1 200") == 1


def refused_setup() -> Setup:
    setup = Setup(client_reads_at_once=False)
    setup.connection.data_received(INVALID_REQUEST)
    return setup


@in_virtual_time
async def test_a_refused_client_that_reads_late_gets_the_refusal_and_a_clean_end() -> None:
    setup = refused_setup()
    transport = setup.transport
    assert transport.is_reading  # what the client still sends is discarded; left unread, it would cause a reset
    assert setup.connection.timeout_list is setup.state.sending
    assert transport.client_reads().startswith(b"HTTP/1.1 400")
    await asyncio.sleep(0)
    assert (transport.has_eof, transport.is_closed, transport.is_reading) == (True, False, True)
    assert setup.connection.timeout_list is setup.state.lingering
    setup.connection.data_received(b"more")
    setup.pass_time(setup.state.lingering)
    assert transport.is_closed


@in_virtual_time
async def test_a_refusal_that_is_not_sent_yet_is_not_discarded_when_the_time_to_linger_ends() -> None:
    setup = refused_setup()
    setup.state.lingering.add(setup.connection, setup.connection.active_at_s)
    setup.pass_time(setup.state.lingering)
    assert not setup.transport.is_closed
    setup.pass_time(setup.state.sending)  # the client does not read
    assert setup.transport.is_closed
