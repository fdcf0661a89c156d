"""A refused client gets the refusal, also if it has not read earlier responses: the connection is not reset."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

import pytest

from svcnode.api.app import Mount
from svcnode.node import Node
from svcnode.server.connection import Connection
from svcnode.server.server import HttpServer
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from svcnode.server.timeouts import TimeoutList

INVALID_REQUEST = b"\0invalid\r\n\r\n"


class FakeTransport:
    """Its buffer is full from the first write on, until the client reads."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.buffer = b""
        self.has_eof = self.is_closed = False
        self.is_reading = True

    def get_extra_info(self, _name: str) -> FakeTransport:
        return self

    def fileno(self) -> int:
        return -1

    def write(self, data: bytes) -> None:
        self.buffer += data
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


class Setup:
    def __init__(self) -> None:
        self.server = HttpServer(Node("node", version="v1"), ("/svc",))
        self.state = self.server.state
        self.connection = Connection(self.state, Mount())
        self.transport = FakeTransport(self.connection)
        self.connection.connection_made(cast("asyncio.Transport", self.transport))
        self.connection.data_received(INVALID_REQUEST)
        self.now_s = self.connection.active_at_s

    def pass_time(self, phase: TimeoutList) -> None:
        self.now_s += 2 * phase.timeout_s
        self.state._enforce_time_limits(self.now_s)


@pytest.fixture
def no_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("svcnode.server.state.ServerState._schedule_tick", lambda _: None)


@pytest.mark.usefixtures("no_ticks")
@in_virtual_time
async def test_a_refused_client_that_reads_late_gets_the_refusal_and_a_clean_end() -> None:
    setup = Setup()
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


@pytest.mark.usefixtures("no_ticks")
@in_virtual_time
async def test_a_refusal_that_is_not_sent_yet_is_not_discarded_when_the_time_to_linger_ends() -> None:
    setup = Setup()
    setup.state.lingering.add(setup.connection, setup.connection.active_at_s)
    setup.pass_time(setup.state.lingering)
    assert not setup.transport.is_closed
    setup.pass_time(setup.state.sending)  # the client does not read
    assert setup.transport.is_closed
