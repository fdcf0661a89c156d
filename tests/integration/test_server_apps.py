"""Requests to a mounted application, over real sockets, under both event loops."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.api import app as app_module
from svcnode.api.app import Mount, StreamingResponse
from svcnode.api.spec import INTERNAL_ERROR, METHOD_NOT_ALLOWED, Request, Response, error_response, make_response
from svcnode.server import state as state_module
from tests.support.http_server import (
    LONG_LIMITS,
    LONG_S,
    WAIT_TIMEOUT_S,
    RawClient,
    RunningServer,
    becomes_true,
    loopback_socket,
    request,
    running_server,
)
from tests.support.node_cases import worked_example

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from svcnode.api.app import StreamWriter

    Serve = Callable[..., AbstractContextManager[RunningServer]]

DB = request("/svc/node/services/db/health")  # 200
STORAGE = request("/svc/node/services/storage/health")  # 206
GREETING = request("/own/hello")
HELD = request("/own/held")
STREAM = request("/own/stream")

SHORT_S = 0.12  # a limit that a test waits for
SECRET = "swordfish"


class FakeApp:
    """Handles all paths below /own."""

    def __init__(self, response_text: str = "hello") -> None:
        self.response_text = response_text
        self.requests: list[Request] = []
        self.rejection_response: Response | None = None
        self.release = asyncio.Event()
        self.held_count = 0
        self.cancelled_count = 0
        self.writers: list[StreamWriter] = []
        self.end_streams = asyncio.Event()

    def matches(self, path: bytes) -> bool:
        return path.startswith(b"/own")

    def rejection(self, request: Request) -> Response | None:
        self.requests.append(request)
        if request.method not in ("GET", "HEAD"):
            return METHOD_NOT_ALLOWED
        return self.rejection_response

    async def handle(self, request: Request) -> Response | StreamingResponse:
        name = request.path.removeprefix(b"/own/")
        if name.startswith(b"held"):
            await self._wait_for_release()
        if name == b"broken":
            raise RuntimeError(SECRET)
        streams = {
            b"stream": self._write_and_wait,
            b"held-stream": self._write_and_wait,
            b"flood": self._write_forever,
        }
        if name in streams:
            return StreamingResponse(_STREAM_HEAD, streams[name])
        bodies = {b"held": b'"held"', b"large": b"x" * 5_000_000}
        return make_response(200, bodies.get(name, f'"{self.response_text}"'.encode()))

    async def _wait_for_release(self) -> None:
        self.held_count += 1
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled_count += 1
            raise

    async def _write_and_wait(self, writer: StreamWriter) -> None:
        self.writers.append(writer)
        writer.write(b"first\n")
        try:
            await self.end_streams.wait()
        finally:
            self.writers.remove(writer)

    async def _write_forever(self, writer: StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while True:
                writer.write(b"x" * 65536)
                await writer.drain()
        finally:
            self.writers.remove(writer)


_STREAM_HEAD = Response(200, headers=(("Content-Type", "text/plain"),))


@pytest.fixture(autouse=True)
def _fast_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "TICK_S", 0.02)


@pytest.fixture
def app() -> FakeApp:
    return FakeApp()


@pytest.fixture
def mount(app: FakeApp) -> Mount:
    return Mount(app)


@pytest.fixture
def serve(loop_name: str, mount: Mount) -> Serve:
    def start(**changed: Any) -> AbstractContextManager[RunningServer]:
        return running_server(worked_example(), loop_name, limits=LONG_LIMITS._replace(**changed), mount=mount)

    return start


@pytest.fixture
def server(serve: Serve) -> Iterator[RunningServer]:
    with serve() as running:
        yield running


def release(server: RunningServer, app: FakeApp) -> None:
    server.call(app.release.set)


def open_stream(client: RawClient, data: bytes = STREAM) -> None:
    """Request a stream and read its first line."""
    client.send(data)
    head = client.read(is_head=True)
    assert (head.code, head.header("Connection"), head.header("Content-Length")) == (200, "close", None)
    assert client.unread == b"first\n" or not client.receives_nothing(WAIT_TIMEOUT_S)
    assert client.unread == b"first\n"


def logged_errors(caplog: pytest.LogCaptureFixture) -> list[tuple[str, int | None, str]]:
    """Event, status code and cause of each log record."""
    records = (vars(record) for record in caplog.records)
    return [(record["event"], record.get("http_status"), str(record["exc_info"][1])) for record in records]


def reset(client: RawClient) -> None:
    """Close with a reset instead of a FIN."""
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.sock.close()


# ---- one request


def test_an_app_gets_raw_path_query_and_the_retained_headers_of_each_request(
    server: RunningServer, app: FakeApp
) -> None:
    with server.connect() as client:
        client.request(request("/own/a%2Fb?x=%31&y", "Authorization: Bearer x", "X-Own: y", "ACCEPT:  text/html "))
        client.request(request("/own/hello", "Authorization: Bearer x", "authorization: Bearer y"))
        client.request(GREETING)
    first, second, third = app.requests
    assert (first.method, first.path, first.query) == ("GET", b"/own/a%2Fb", b"x=%31&y")
    assert {name: value.strip() for name, value in first.headers.items()} == {
        b"host": b"node.example",
        b"authorization": b"Bearer x",
        b"accept": b"text/html",
    }
    assert second.headers[b"authorization"] == b"Bearer x, Bearer y"
    assert b"authorization" not in third.headers


def test_the_authority_of_an_absolute_target_replaces_the_host_header(server: RunningServer, app: FakeApp) -> None:
    for target, host in (
        ("/own/hello?x=http://other.example/", b"localhost"),
        ("http://[::1]:8420/own/hello?x=http://third.example/", b"[::1]:8420"),
        ("http://me@other.example/own/hello", b"me@other.example"),
    ):
        for version in ("HTTP/1.1", "HTTP/1.0"):
            assert server.request(request(target, host="localhost", version=version)).body == b'"hello"'
            assert app.requests[-1].headers[b"host"] == host


def test_an_app_request_is_answered_and_never_cached(server: RunningServer, app: FakeApp) -> None:
    with server.connect() as client:
        for _ in range(2):
            response = client.request(GREETING)
            assert (response.code, response.body, response.header("Connection")) == (200, b'"hello"', None)
            assert response.header("Date")
        head = client.request(request("/own/hello", method="HEAD"), is_head=True)
        assert (head.code, head.header("Content-Length")) == (200, "7")
        assert client.request(request("/own/hello", body=b"GET /own/none HTTP/1.1\r\n\r\n")).body == b'"hello"'
        kept = client.request(request("/own/hello", "Connection: keep-alive", version="HTTP/1.0"))
        assert (kept.code, kept.header("Connection")) == (200, "keep-alive")
        assert client.request(DB).code == 200
        client.send(request("/own/stream", method="HEAD"))
        assert client.read(is_head=True).code == 200, "a stream without a body"
        assert client.is_closed()
    assert len(app.requests) == 6
    assert app.writers == []
    assert server.call(lambda: GREETING not in server.state.cache._requests)


def test_a_rejected_request_keeps_the_connection_open(server: RunningServer, app: FakeApp) -> None:
    app.rejection_response = error_response(401, "denied")
    with server.connect() as client:
        assert client.request(GREETING).code == 401
        assert client.request(request("/own/hello", method="HEAD"), is_head=True).code == 401
        app.rejection_response = None
        assert client.request(request("/own/hello", "Authorization: x", method="OPTIONS")).code == 405
        assert client.request(GREETING).code == 200
    assert (app.requests[2].method, app.requests[2].headers[b"authorization"]) == ("OPTIONS", b"x")


def test_an_unknown_method_is_rejected_before_its_headers_arrive(server: RunningServer, app: FakeApp) -> None:
    app.rejection_response = error_response(401, "denied")
    with server.connect() as client:
        client.send(b"BREW /own/hello HTTP/1.1\r\n")
        assert client.read().code == 405
        assert client.is_closed()
    assert app.requests == []


# ---- several requests on one connection


@pytest.mark.parametrize("cut", [1, 20, -2])
def test_a_split_request_after_an_app_request_can_be_completed(server: RunningServer, app: FakeApp, cut: int) -> None:
    split = b"GET /svc/node/services/storage/health HTTP/1.1\r\nX-Value: "
    with server.connect() as client, server.connect() as other:
        client.request(DB)  # now in the cache
        client.send(HELD + split[:cut])
        assert becomes_true(lambda: app.held_count == 1)
        client.send(split[cut:])
        assert client.receives_nothing()
        assert [other.request(one).code for one in (DB, GREETING)] == [200, 200], "other connections do not wait"
        release(server, app)
        assert client.read().body == b'"held"'
        assert client.request(DB).code == 206, "these bytes are the rest of a header"


def test_the_receive_limit_of_a_split_request_starts_when_the_app_request_ends(serve: Serve, app: FakeApp) -> None:
    with serve(receive_s=SHORT_S) as server, server.connect() as client:
        client.send(HELD + STORAGE[:5])
        assert becomes_true(lambda: app.held_count == 1)
        assert client.receives_nothing(2 * SHORT_S)
        release(server, app)
        assert [client.read().code, client.read().code] == [200, 408]
        assert client.is_closed()


@pytest.mark.parametrize("first", [GREETING, HELD], ids=["at once", "later"])
def test_the_last_app_request_closes_the_connection(server: RunningServer, app: FakeApp, first: bytes) -> None:
    release(server, app)
    for data, code in (
        (request("/own/hello", "Connection: close"), 200),
        (request("/own/hello", version="HTTP/1.0"), 200),
        (b"invalid\r\n\r\n", 400),
    ):
        with server.connect() as client:
            client.send(first + data + DB)
            assert client.read().code == 200
            response = client.read()
            assert (response.code, response.header("Connection")) == (code, "close")
            assert client.is_closed()


def test_pipelined_requests_to_interface_and_app_are_answered_in_order(server: RunningServer, app: FakeApp) -> None:
    with server.connect() as client:
        client.send(DB + GREETING + STORAGE + HELD + GREETING + DB)
        assert [client.read().code, client.read().body, client.read().code] == [200, b'"hello"', 206]
        assert becomes_true(lambda: app.held_count == 1)
        assert client.receives_nothing()
        release(server, app)
        assert [client.read().body, client.read().body] == [b'"held"', b'"hello"']
        response = client.read()
        assert (response.code, response.body) == (200, b"")


# ---- clients that disconnect


def test_a_client_that_closed_its_sending_side_gets_its_responses(server: RunningServer, app: FakeApp) -> None:
    with server.connect() as client:
        client.send(DB + HELD + STORAGE)
        assert becomes_true(lambda: app.held_count == 1)
        client.sock.shutdown(socket.SHUT_WR)
        server.wait_for_reads()
        release(server, app)
        assert [client.read().code, client.read().body, client.read().code] == [200, b'"held"', 206]
        assert client.is_closed()
    assert becomes_true(lambda: server.count() == 0)


@pytest.mark.parametrize("more", [b"", DB], ids=["reading", "not reading"])
def test_the_handler_ends_when_the_client_disconnects(server: RunningServer, app: FakeApp, more: bytes) -> None:
    with server.connect() as client, server.connect(receive_buffer=4096) as other:
        client.send(HELD)
        assert becomes_true(lambda: app.held_count == 1)
        client.send(more)  # the server now stops reading
        server.wait_for_reads()
        other.send(request("/own/large"))
        assert other.sock.recv(100)
        reset(client)
        reset(other)
        if more:
            release(server, app)
        else:
            assert becomes_true(lambda: app.cancelled_count == 1)
        assert becomes_true(lambda: server.count() == 0)


# ---- errors


def test_the_cause_of_an_internal_error_is_logged_and_not_sent(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    with server.connect() as client:
        response = client.request(request("/own/broken"))
        assert (response.code, response.body) == (500, INTERNAL_ERROR.body)
        assert client.request(DB).code == 200
    assert logged_errors(caplog) == [("internal_error", 500, SECRET)]


def test_an_app_request_over_the_time_limit_is_cancelled(
    server: RunningServer, app: FakeApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(app_module, "HANDLER_TIMEOUT_S", SHORT_S)
    with server.connect() as client:
        response = client.request(HELD)
        assert (response.code, response.body) == (503, app_module.HANDLER_TIMED_OUT.body)
        assert client.request(DB).code == 200
    assert app.cancelled_count == 1
    assert logged_errors(caplog) == [("internal_error", 503, "")]


# ---- streams


def test_a_stream_stays_open_until_the_app_ends_it(serve: Serve, app: FakeApp) -> None:
    with (
        serve(idle_s=SHORT_S, receive_s=SHORT_S, send_s=SHORT_S, linger_s=SHORT_S) as server,
        server.connect() as client,
    ):
        open_stream(client, STREAM + DB)
        client.send(DB)
        server.wait_for_reads()
        server.enforce_time_limits(LONG_S)
        server.call(lambda: app.writers[0].write(b"second\n"))
        server.call(app.end_streams.set)
        assert client.read_to_end() == b"first\nsecond\n", "no other request is answered"
        assert becomes_true(lambda: server.count() == 0)


def shut_down(client: RawClient) -> None:
    client.sock.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("disconnect", [lambda client: client.sock.close(), reset, shut_down])
@pytest.mark.parametrize("data", [STREAM, STREAM + DB, request("/own/stream", version="HTTP/1.0")])
def test_a_stream_ends_when_the_client_disconnects(
    server: RunningServer, app: FakeApp, disconnect: Callable[[RawClient], None], data: bytes
) -> None:
    with server.connect() as client:
        open_stream(client, data)
        disconnect(client)
        assert becomes_true(lambda: app.writers == [])
        assert becomes_true(lambda: server.count() == 0)


def test_a_stream_ends_when_the_client_stops_reading(serve: Serve, app: FakeApp) -> None:
    with serve(send_s=SHORT_S) as server, server.connect(receive_buffer=4096) as client:
        client.send(request("/own/flood"))
        assert becomes_true(lambda: server.count() == 1 and bool(app.writers))
        assert becomes_true(lambda: server.count() == 0)
        assert app.writers == []


def test_drain_bounds_the_buffer_of_a_slow_client(serve: Serve, app: FakeApp) -> None:
    with serve() as server, server.connect(receive_buffer=4096) as client:
        client.send(request("/own/flood"))
        assert becomes_true(lambda: bool(app.writers))
        assert becomes_true(lambda: server.call(lambda: len(server.state.sending)) == 1)
        assert server.call(lambda: app.writers[0].buffered_bytes) <= 1_000_000
        read = 0
        while read < 3_000_000:
            read += len(client.sock.recv(65536))
        reset(client)
        assert becomes_true(lambda: app.writers == [])


# ---- shutdown


def test_open_streams_do_not_delay_shutdown(serve: Serve, app: FakeApp) -> None:
    with serve() as server:
        clients = [server.connect() for _ in range(3)]
        for client in clients:
            open_stream(client)
        server.close(grace_s=LONG_S)  # longer than the timeout of the test
        for client in clients:
            assert client.read_to_end() == b"first\n"
            client.sock.close()
        assert app.writers == []


def test_an_app_request_in_progress_is_answered_before_shutdown(serve: Serve, app: FakeApp) -> None:
    with serve() as server, server.connect() as client:
        client.send(HELD + DB)
        assert becomes_true(lambda: app.held_count == 1)
        closing = asyncio.run_coroutine_threadsafe(server.server.close(WAIT_TIMEOUT_S), server.loop)
        server.wait_for_reads()
        release(server, app)
        response = client.read()
        assert (response.body, response.header("Connection")) == (b'"held"', "close")
        assert client.is_closed()
        closing.result(WAIT_TIMEOUT_S)


def test_an_app_request_is_cancelled_after_the_grace_time(
    serve: Serve, app: FakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    with serve() as server, server.connect() as client:
        client.send(HELD)
        assert becomes_true(lambda: app.held_count == 1)
        server.close(grace_s=0.1)
        assert app.cancelled_count == 1
        assert client.is_closed()
    assert [(record.event, record.connections) for record in caplog.records] == [("connections_aborted", 1)]  # type: ignore[attr-defined]


# ---- the limit of connections


def test_a_full_server_closes_idle_connections_before_streams(serve: Serve, app: FakeApp) -> None:
    with serve(connections=2) as server, server.connect() as first, server.connect() as idle:
        open_stream(first)
        idle.request(DB)
        with server.connect() as second:
            open_stream(second)
            assert idle.is_closed()
            assert len(app.writers) == 2
            with server.connect() as third:
                assert third.request(DB).code == 200
                assert first.read_to_end() == b"first\n"
                assert becomes_true(lambda: len(app.writers) == 1)
                server.call(lambda: app.writers[0].write(b"second\n"))
                server.call(app.end_streams.set)
                assert second.read_to_end() == b"first\nsecond\n"


# ---- replacing the application


def test_a_new_app_serves_the_next_request_of_an_open_connection(
    server: RunningServer, mount: Mount, app: FakeApp
) -> None:
    with server.connect() as client:
        assert client.request(GREETING).body == b'"hello"'
        server.call(lambda: mount.set_app(FakeApp("other")))
        assert client.request(GREETING).body == b'"other"'
        server.call(lambda: mount.set_app(None))
        assert client.request(GREETING).code == 404
        assert client.request(GREETING).code == 404, "404 is not cached"
        server.call(lambda: mount.set_app(app))
        assert client.request(GREETING).body == b'"hello"'


@pytest.mark.parametrize("end", ["shutdown", "a new app"])
def test_a_stream_that_was_requested_before_the_end_does_not_start(
    server: RunningServer, mount: Mount, app: FakeApp, end: str
) -> None:
    with server.connect() as client:
        client.send(request("/own/held-stream"))
        assert becomes_true(lambda: app.held_count == 1)
        if end == "shutdown":
            asyncio.run_coroutine_threadsafe(server.server.close(WAIT_TIMEOUT_S), server.loop)
            assert becomes_true(lambda: server.state.is_closing)
        else:
            server.call(lambda: mount.set_app(None))
        release(server, app)
        assert client.read(is_head=True).code == 200
        assert client.is_closed()


def test_a_new_app_closes_open_streams_and_gets_the_pending_requests(
    server: RunningServer, mount: Mount, app: FakeApp
) -> None:
    with server.connect() as client, server.connect(receive_buffer=4096) as slow, server.connect() as pending:
        pending.send(HELD + GREETING)
        assert becomes_true(lambda: app.held_count == 1)
        open_stream(client)
        open_stream(slow)
        server.call(lambda: app.writers[1].write(b"x" * 10_000_000))
        server.call(lambda: mount.set_app(None))
        assert client.read_to_end() == b"first\n"
        assert becomes_true(lambda: app.writers == [])
        reset(slow)
        release(server, app)
        assert pending.read().body == b'"held"'
        assert pending.read().code == 404
        assert pending.request(DB).code == 200


def test_listeners_with_different_apps_do_not_share_responses(server: RunningServer) -> None:
    """Both listeners get the same bytes and share one cache."""
    listener = loopback_socket()
    asyncio.run_coroutine_threadsafe(server.server.listen(listener, None, Mount()), server.loop).result(WAIT_TIMEOUT_S)
    with RawClient(socket.create_connection(listener.getsockname())) as other, server.connect() as client:
        for _ in range(3):
            assert other.request(GREETING).code == 404
            assert client.request(GREETING).code == 200
        assert other.request(DB).code == 200
