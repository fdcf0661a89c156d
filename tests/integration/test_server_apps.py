"""Visits to a app on connections that the interface is asked on, too: over real sockets, under both event loops."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.api.app import Mount, OperatorRequest, StreamingResponse
from svcnode.api.spec import METHOD_NOT_ALLOWED, Response, error_response, make_response
from svcnode.server import connection as connection_module
from svcnode.server import server as wire_module
from svcnode.server.server import ServerLimits
from tests.support.http_server import RawClient, RunningServer, becomes_true, loopback_socket, request, running_server
from tests.support.node_cases import worked_example

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from svcnode.api.app import StreamWriter

    Serve = Callable[..., AbstractContextManager[RunningServer]]

DB = request("/svc/node/services/db/health")  # 200
STORAGE = request("/svc/node/services/storage/health")  # 206
LIST = request("/svc/node/services")
GREETING = request("/own/hello")
HELD = request("/own/held")
STREAM = request("/own/stream")

LONG_S = 30.0
SHORT_S = 0.12
SECRET = "the password is swordfish"


class FakeApp:
    """Everything below /own, each as its name says."""

    def __init__(self, word: str = "hello") -> None:
        self.response_text = word
        self.requests: list[OperatorRequest] = []
        self.refused: Response | None = None
        self.release = asyncio.Event()
        self.is_held = 0
        self.disconnected = 0  # how often a visitor left before it was answered
        self.writers: list[StreamWriter] = []
        self.end_streams = asyncio.Event()

    def matches(self, path: bytes) -> bool:
        return path.startswith(b"/own")

    def refusal(self, visit: OperatorRequest) -> Response | None:
        self.requests.append(visit)
        if visit.method not in ("GET", "HEAD"):
            return METHOD_NOT_ALLOWED
        return self.refused

    async def answer(self, visit: OperatorRequest) -> Response | StreamingResponse:
        what = visit.path.removeprefix(b"/own/")
        if what.startswith(b"held"):
            await self._wait_for_release()
        if what == b"broken":
            raise RuntimeError(SECRET)
        streams = {
            b"stream": self._fill,
            b"held-stream": self._fill,
            b"flood": self._flood,
            b"broken-stream": self._break,
        }
        if what in streams:
            return StreamingResponse(_STREAM_HEAD, streams[what])
        bodies = {b"held": b'"held"', b"large": b"x" * 5_000_000}
        return make_response(200, bodies.get(what, f'"{self.response_text}"'.encode()))

    async def _wait_for_release(self) -> None:
        self.is_held += 1
        try:
            await self.release.wait()
        except asyncio.CancelledError:
            self.disconnected += 1
            raise

    async def _fill(self, outlet: StreamWriter) -> None:
        self.writers.append(outlet)
        outlet.write(b"first\n")
        try:
            await self.end_streams.wait()
        finally:
            self.writers.remove(outlet)

    async def _flood(self, outlet: StreamWriter) -> None:
        self.writers.append(outlet)
        try:
            while True:
                outlet.write(b"x" * 65536)
                await outlet.drain()
        finally:
            self.writers.remove(outlet)

    async def _break(self, outlet: StreamWriter) -> None:
        outlet.write(b"first\n")
        raise RuntimeError(SECRET)


_STREAM_HEAD = Response(200, headers=(("Content-Type", "text/plain"),))


@pytest.fixture(autouse=True)
def _fast_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_module, "TICK_S", 0.02)


@pytest.fixture
def app() -> FakeApp:
    return FakeApp()


@pytest.fixture
def mount(app: FakeApp) -> Mount:
    return Mount(app)


@pytest.fixture
def serve(loop_name: str, mount: Mount) -> Serve:
    def start(**limits: float) -> AbstractContextManager[RunningServer]:
        chosen: dict[str, Any] = {"receive_s": LONG_S, "idle_s": LONG_S, "send_s": LONG_S, "linger_s": LONG_S}
        return running_server(worked_example(), loop_name, limits=ServerLimits(**chosen | limits), mount=mount)

    return start


@pytest.fixture
def server(serve: Serve) -> Iterator[RunningServer]:
    with serve() as running:
        yield running


def release(server: RunningServer, app: FakeApp) -> None:
    server.call(app.release.set)


def stream_on(client: RawClient, data: bytes = STREAM) -> None:
    """Ask for a stream, and read its beginning."""
    client.send(data)
    head = client.read(is_head=True)
    assert (head.code, head.header("Connection"), head.header("Content-Length")) == (200, "close", None)
    assert client.unread == b"first\n" or not client.receives_nothing(1.0)
    assert client.unread == b"first\n"


def reset(client: RawClient) -> None:
    """Leave without a word."""
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.sock.close()


# ---- one visit


def test_an_app_request_is_answered_and_the_connection_stays(server: RunningServer) -> None:
    with server.connect() as client:
        for _ in range(3):
            answer = client.request(GREETING)
            assert (answer.code, answer.body) == (200, b'"hello"')
            assert answer.header("Date")
            assert answer.header("Connection") is None
        assert client.request(DB).code == 200


def test_head_is_answered_without_the_body(server: RunningServer) -> None:
    with server.connect() as client:
        answer = client.request(request("/own/hello", method="HEAD"), is_head=True)
        assert (answer.code, answer.header("Content-Length")) == (200, "7")
        assert client.request(DB).code == 200


def test_an_app_request_says_what_was_asked_for_and_by_whom(server: RunningServer, app: FakeApp) -> None:
    server.request(request("/own/a%2Fb?x=%31&y", "Authorization: Bearer x", "X-Own: y", "ACCEPT:  text/html "))
    (visit,) = app.requests
    assert (visit.method, visit.path, visit.query) == ("GET", b"/own/a%2Fb", b"x=%31&y")
    assert {name: value.strip() for name, value in visit.headers.items()} == {
        b"host": b"node.example",
        b"authorization": b"Bearer x",
        b"accept": b"text/html",
    }


def test_the_headers_of_one_visit_are_not_those_of_the_next(server: RunningServer, app: FakeApp) -> None:
    with server.connect() as client:
        client.request(request("/own/hello", "Authorization: Bearer x"))
        client.request(GREETING)
    assert [b"authorization" in visit.headers for visit in app.requests] == [True, False]


def test_a_target_in_absolute_form_is_an_app_request_too(server: RunningServer) -> None:
    assert server.request(request("http://node.example/own/hello")).body == b'"hello"'


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/1.0"])
@pytest.mark.parametrize("authority", ["other.example", "other.example:8420", "[::1]:8420", "me@other.example"])
def test_the_host_in_a_target_is_the_host(server: RunningServer, app: FakeApp, authority: str, version: str) -> None:
    for path in ("/own/hello", "/own/hello?x=http://third.example/"):
        server.request(request(f"http://{authority}{path}", host="localhost", version=version))
    assert [visit.headers[b"host"] for visit in app.requests] == [authority.encode()] * 2


def test_a_target_that_holds_an_address_further_on_has_no_host(server: RunningServer, app: FakeApp) -> None:
    server.request(request("/own/hello?x=http://other.example/", host="localhost"))
    assert app.requests[0].headers[b"host"] == b"localhost"


def test_a_header_that_is_there_twice_has_both_values(server: RunningServer, app: FakeApp) -> None:
    server.request(request("/own/hello", "Authorization: Bearer x", "Accept: a/b", "authorization: Bearer y"))
    (visit,) = app.requests
    assert visit.headers[b"authorization"] == b"Bearer x, Bearer y"
    assert visit.headers[b"accept"] == b"a/b"


def test_who_may_not_come_in_is_told_so_and_stays_connected(server: RunningServer, app: FakeApp) -> None:
    app.refused = error_response(401, "no")
    with server.connect() as client:
        assert client.request(GREETING).code == 401
        assert client.request(request("/own/hello", method="HEAD"), is_head=True).code == 401
        assert client.request(DB).code == 200
        app.refused = None
        assert client.request(GREETING).code == 200


@pytest.mark.parametrize("method", ["POST", "OPTIONS", "BREW"])
def test_other_methods_are_the_surfaces_to_refuse(server: RunningServer, app: FakeApp, method: str) -> None:
    answer = server.request(request("/own/hello", "Authorization: Bearer x", method=method))
    assert answer.code == 405
    assert (app.requests[-1].method, app.requests[-1].path) == (method, b"/own/hello")
    assert app.requests[-1].headers[b"authorization"] == b"Bearer x"


def test_a_strange_method_is_refused_even_before_its_headers_are_there(server: RunningServer, app: FakeApp) -> None:
    app.refused = error_response(401, "no")
    with server.connect() as client:
        client.send(b"BREW /own/hello HTTP/1.1\r\n")
        assert client.read().code == 405
        assert client.is_closed()
    assert app.requests[-1].headers == {}


def test_a_body_that_no_visit_needs_is_read_and_ignored(server: RunningServer) -> None:
    with server.connect() as client:
        assert client.request(request("/own/hello", body=b"GET /own/none HTTP/1.1\r\n\r\n")).body == b'"hello"'
        assert client.request(DB).code == 200


# ---- several requests on one connection


def test_pipelined_requests_are_answered_in_their_order_whatever_they_ask_for(
    server: RunningServer, app: FakeApp
) -> None:
    with server.connect() as client:
        client.send(DB + GREETING + STORAGE + HELD + GREETING + DB)
        assert [client.read().code, client.read().body, client.read().code] == [200, b'"hello"', 206]
        assert becomes_true(lambda: app.is_held == 1)
        assert client.receives_nothing()
        release(server, app)
        assert [client.read().body, client.read().body] == [b'"held"', b'"hello"']
        answer = client.read()
        assert (answer.code, answer.body) == (200, b"")


@pytest.mark.parametrize("is_known", [False, True], ids=["parsed", "remembered"])
def test_what_arrives_during_an_app_request_waits_for_its_turn(
    server: RunningServer, app: FakeApp, is_known: bool
) -> None:
    with server.connect() as client:
        if is_known:
            client.request(STORAGE)
        client.send(HELD)
        assert becomes_true(lambda: app.is_held == 1)
        client.send(STORAGE)
        client.send(DB)
        assert client.receives_nothing()
        release(server, app)
        assert [client.read().body, client.read().code, client.read().code] == [b'"held"', 206, 200]


def test_a_hundred_pipelined_visits_are_answered_in_their_order(server: RunningServer) -> None:
    with server.connect() as client:
        client.send((GREETING + STORAGE) * 100)
        answers = [client.read() for _ in range(200)]
    assert [answer.code for answer in answers] == [200, 206] * 100


def test_others_do_not_wait_for_an_app_request(server: RunningServer, app: FakeApp) -> None:
    with server.connect() as visitor, server.connect() as client:
        visitor.send(HELD)
        assert becomes_true(lambda: app.is_held == 1)
        for data, code in ((DB, 200), (STORAGE, 206), (GREETING, 200), (LIST, 200)):
            assert client.request(data).code == code
        assert visitor.receives_nothing()
        release(server, app)
        assert visitor.read().code == 200


@pytest.mark.parametrize("cut", [1, 20, -2])
def test_half_a_request_behind_an_app_request_is_completed_after_it(
    server: RunningServer, app: FakeApp, cut: int
) -> None:
    with server.connect() as client:
        client.send(HELD + STORAGE[:cut])
        assert becomes_true(lambda: app.is_held == 1)
        release(server, app)
        assert client.read().body == b'"held"'
        client.send(STORAGE[cut:])
        assert client.read().code == 206
        assert client.request(DB).code == 200


def test_what_completes_a_request_behind_an_app_request_is_never_taken_for_a_known_one(
    server: RunningServer, app: FakeApp
) -> None:
    with server.connect() as client:
        client.request(DB)  # so that these bytes are known
        client.send(HELD + b"GET /svc/node/services/storage/health HTTP/1.1\r\nX-Rest: ")
        assert becomes_true(lambda: app.is_held == 1)
        release(server, app)
        assert client.read().body == b'"held"'
        assert client.request(DB).code == 206, "they are the rest of a header here"


def test_half_a_request_behind_an_app_request_has_a_deadline_from_the_end_of_the_app_request(
    serve: Serve, app: FakeApp
) -> None:
    with serve(receive_s=SHORT_S) as server, server.connect() as client:
        client.send(HELD + STORAGE[:5])
        assert becomes_true(lambda: app.is_held == 1)
        assert client.receives_nothing(2 * SHORT_S)
        release(server, app)
        assert client.read().code == 200
        assert client.read().code == 408
        assert client.is_closed()


def test_a_bad_request_behind_an_app_request_is_refused_after_it(server: RunningServer, app: FakeApp) -> None:
    with server.connect() as client:
        client.send(HELD + b"nonsense\r\n\r\n")
        assert becomes_true(lambda: app.is_held == 1)
        release(server, app)
        assert [client.read().code, client.read().code] == [200, 400]
        assert client.is_closed()


def test_a_client_that_goes_on_sending_during_an_app_request_is_not_read_from(
    server: RunningServer, app: FakeApp
) -> None:
    with server.connect(send_buffer=4096) as client:
        client.send(HELD)
        assert becomes_true(lambda: app.is_held == 1)
        client.sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.send(DB * 200_000)  # 12 MB
        assert server.call(lambda: [len(one._unparsed) < 300_000 for one in server.server.handling.connections()]) == [
            True
        ]
        release(server, app)


@pytest.mark.parametrize("first", [GREETING, HELD], ids=["at once", "later"])
@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (request("/own/hello", "Connection: close"), "close"),
        (request("/own/hello", version="HTTP/1.0"), "close"),
    ],
    ids=["close", "1.0"],
)
def test_an_app_request_that_is_the_last_request_ends_the_connection(
    server: RunningServer, app: FakeApp, first: bytes, ask: bytes, says: str
) -> None:
    release(server, app)
    with server.connect() as client:
        client.send(first + ask + DB)
        assert client.read().code == 200
        answer = client.read()
        assert (answer.body, answer.header("Connection")) == (b'"hello"', says)
        assert client.is_closed()


def test_http_1_0_may_keep_the_connection(server: RunningServer) -> None:
    with server.connect() as client:
        for _ in range(2):
            answer = client.request(request("/own/hello", "Connection: keep-alive", version="HTTP/1.0"))
            assert (answer.code, answer.header("Connection")) == (200, "keep-alive")


# ---- clients that leave


@pytest.mark.parametrize("is_last", [True, False])
def test_a_client_that_has_closed_its_half_gets_its_answer(server: RunningServer, app: FakeApp, is_last: bool) -> None:
    with server.connect() as client:
        client.send(DB + HELD + (b"" if is_last else STORAGE))
        assert becomes_true(lambda: app.is_held == 1)
        client.sock.shutdown(socket.SHUT_WR)
        server.wait_for_reads()
        release(server, app)
        assert [client.read().code, client.read().body] == [200, b'"held"']
        assert is_last or client.read().code == 206
        assert client.is_closed()
    assert becomes_true(lambda: server.count() == 0)


def test_nothing_more_is_done_for_a_client_that_has_left(server: RunningServer, app: FakeApp) -> None:
    client = server.connect()
    client.send(HELD)
    assert becomes_true(lambda: app.is_held == 1)
    reset(client)
    assert becomes_true(lambda: app.disconnected == 1)
    assert becomes_true(lambda: server.count() == 0)
    assert server.request(DB).code == 200


def test_a_client_that_has_closed_and_does_not_read_is_let_go_once_it_is_answered(
    server: RunningServer, app: FakeApp
) -> None:
    client = server.connect()
    client.send(HELD)
    assert becomes_true(lambda: app.is_held == 1)
    client.sock.close()
    server.wait_for_reads()
    release(server, app)
    assert becomes_true(lambda: server.count() == 0)


def test_a_client_that_leaves_while_it_is_not_read_from_is_let_go_when_it_is_answered(
    server: RunningServer, app: FakeApp
) -> None:
    client = server.connect()
    client.send(HELD)
    assert becomes_true(lambda: app.is_held == 1)
    client.send(DB)  # from here on nothing more is read
    server.wait_for_reads()
    reset(client)
    release(server, app)
    assert becomes_true(lambda: server.count() == 0)


def test_a_client_that_leaves_in_the_middle_of_an_answer_is_let_go(server: RunningServer) -> None:
    client = server.connect(receive_buffer=4096)
    client.send(request("/own/large"))
    assert client.sock.recv(100)
    reset(client)
    assert becomes_true(lambda: server.count() == 0)


def test_a_large_answer_reaches_a_slow_reader_whole_and_the_next_one_follows(server: RunningServer) -> None:
    with server.connect(receive_buffer=4096) as client:
        client.send(request("/own/large") + STORAGE)
        time.sleep(0.1)
        assert len(client.read().body) == 5_000_000
        assert client.read().code == 206


# ---- failures


def test_an_app_request_that_fails_is_a_plain_failure_and_its_cause_is_in_the_log_alone(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    with server.connect() as client:
        answer = client.request(request("/own/broken"))
        assert (answer.code, answer.body) == (500, b'{"message":"Internal server error"}')
        assert client.request(DB).code == 200
    assert SECRET in caplog.text
    assert "answering failed; the client got 500" in caplog.text


def test_an_app_request_that_takes_too_long_is_given_up(
    server: RunningServer, app: FakeApp, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection_module, "ANSWER_WITHIN_S", SHORT_S)
    with server.connect() as client:
        answer = client.request(HELD)
        assert (answer.code, answer.body) == (503, b'{"message":"The answer could not be made in time"}')
        assert client.request(DB).code == 200
    assert app.disconnected == 1
    assert "the client got 503" in caplog.text


def test_a_stream_that_fails_in_the_middle_ends_and_the_cause_is_in_the_log_alone(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    with server.connect() as client:
        client.send(request("/own/broken-stream"))
        assert client.read(is_head=True).code == 200
        assert client.read_to_end() == b"first\n"
    assert "a stream ended in the middle" in caplog.text
    assert SECRET in caplog.text


# ---- streams


def test_a_stream_goes_on_until_it_is_ended(server: RunningServer, app: FakeApp) -> None:
    with server.connect() as client:
        stream_on(client)
        server.call(lambda: app.writers[0].write(b"second\n"))
        server.call(app.end_streams.set)
        assert client.read_to_end() == b"first\nsecond\n"
    assert becomes_true(lambda: server.count() == 0)


def test_what_is_asked_for_behind_a_stream_is_never_answered(server: RunningServer, app: FakeApp) -> None:
    with server.connect() as client:
        client.request(DB)
        stream_on(client, DB[:0] + STREAM + DB)
        client.send(DB)
        server.wait_for_reads()
        server.call(app.end_streams.set)
        assert client.read_to_end() == b"first\n"


def test_the_head_of_a_stream_has_no_stream_behind_it(server: RunningServer, app: FakeApp) -> None:
    with server.connect() as client:
        client.send(request("/own/stream", method="HEAD"))
        assert client.read(is_head=True).code == 200
        assert client.is_closed()
    assert app.writers == []


def test_http_1_0_may_read_a_stream(server: RunningServer) -> None:
    with server.connect() as client:
        stream_on(client, request("/own/stream", version="HTTP/1.0"))


@pytest.mark.parametrize("leave", [lambda client: client.sock.close(), reset], ids=["closed", "reset"])
def test_a_stream_whose_reader_leaves_is_ended(
    server: RunningServer, app: FakeApp, leave: Callable[[RawClient], None]
) -> None:
    client = server.connect()
    stream_on(client)
    leave(client)
    assert becomes_true(lambda: app.writers == [])
    assert becomes_true(lambda: server.count() == 0)


def test_a_reader_who_closes_their_half_is_taken_to_leave(server: RunningServer, app: FakeApp) -> None:
    with server.connect() as client:
        stream_on(client)
        client.sock.shutdown(socket.SHUT_WR)
        assert client.read_to_end() == b"first\n"
    assert becomes_true(lambda: app.writers == [])


def test_the_limits_of_idling_and_receiving_do_not_end_a_stream(serve: Serve, app: FakeApp) -> None:
    with (
        serve(idle_s=SHORT_S, receive_s=SHORT_S, send_s=SHORT_S, linger_s=SHORT_S) as server,
        server.connect() as client,
    ):
        stream_on(client)
        time.sleep(4 * SHORT_S)
        server.call(lambda: app.writers[0].write(b"second\n"))
        server.call(app.end_streams.set)
        assert client.read_to_end() == b"first\nsecond\n"


def test_a_reader_who_stops_reading_is_cut_like_any_other(serve: Serve, app: FakeApp) -> None:
    with serve(send_s=SHORT_S) as server, server.connect(receive_buffer=4096) as client:
        client.send(request("/own/flood"))
        assert becomes_true(lambda: server.count() == 1 and bool(app.writers))
        assert becomes_true(lambda: server.count() == 0)
        assert app.writers == []


def test_what_waits_for_a_slow_reader_is_bounded_where_the_stream_waits_for_them(serve: Serve, app: FakeApp) -> None:
    with serve() as server, server.connect(receive_buffer=4096) as client:
        client.send(request("/own/flood"))
        assert becomes_true(lambda: bool(app.writers))
        time.sleep(0.1)
        assert server.call(lambda: app.writers[0].buffered_bytes) <= 1_000_000
        read = 0
        while read < 3_000_000:
            read += len(client.sock.recv(65536))
        reset(client)
        assert becomes_true(lambda: app.writers == [])


# ---- the end of the server


@pytest.mark.parametrize("readers", [1, 20])
def test_open_streams_do_not_keep_the_server_from_ending(serve: Serve, app: FakeApp, readers: int) -> None:
    with serve() as server:
        clients = [server.connect() for _ in range(readers)]
        for client in clients:
            stream_on(client)
        began_s = time.monotonic()
        server.close(grace_s=5.0)
        assert time.monotonic() - began_s < 1.0
        for client in clients:
            assert client.read_to_end() == b"first\n"
            client.sock.close()
        assert app.writers == []


def test_an_app_request_under_way_is_answered_before_the_server_ends(serve: Serve, app: FakeApp) -> None:
    with serve() as server, server.connect() as client:
        client.send(HELD + DB)
        assert becomes_true(lambda: app.is_held == 1)
        closing = asyncio.run_coroutine_threadsafe(server.server.close(5.0), server.loop)
        server.wait_for_reads()
        release(server, app)
        answer = client.read()
        assert (answer.body, answer.header("Connection")) == (b'"held"', "close")
        assert client.is_closed()
        closing.result(1.0)


def test_an_app_request_that_does_not_end_does_not_keep_the_server_for_longer_than_its_grace(
    serve: Serve, app: FakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    with serve() as server, server.connect() as client:
        client.send(HELD)
        assert becomes_true(lambda: app.is_held == 1)
        server.close(grace_s=0.1)
        assert app.disconnected == 1
        assert client.is_closed()
    assert "1 connections did not finish" in caplog.text


def test_a_stream_that_would_begin_when_the_server_ends_does_not(serve: Serve, app: FakeApp) -> None:
    with serve() as server, server.connect() as client:
        client.send(request("/own/held-stream"))
        assert becomes_true(lambda: app.is_held == 1)
        closing = asyncio.run_coroutine_threadsafe(server.server.close(5.0), server.loop)
        server.wait_for_reads()
        release(server, app)
        closing.result(1.0)
        assert client.read(is_head=True).code == 200
        assert client.is_closed()


# ---- making place


def test_a_stream_is_closed_to_admit_a_newcomer_only_when_nobody_idles(serve: Serve, app: FakeApp) -> None:
    with serve(connections=2) as server, server.connect() as reader, server.connect() as idle:
        stream_on(reader)
        idle.request(DB)
        with server.connect() as second:
            stream_on(second)
            assert idle.is_closed()
            assert len(app.writers) == 2
            with server.connect() as third:
                assert third.request(DB).code == 200
                assert reader.read_to_end() == b"first\n"
                assert becomes_true(lambda: len(app.writers) == 1)
                server.call(lambda: app.writers[0].write(b"second\n"))
                server.call(app.end_streams.set)
                assert second.read_to_end() == b"first\nsecond\n"


# ---- a mount that is changed


def test_from_one_visit_to_the_next_a_connection_is_held_to_the_rules_of_now(
    server: RunningServer, mount: Mount, app: FakeApp
) -> None:
    with server.connect() as client:
        assert client.request(GREETING).body == b'"hello"'
        server.call(lambda: mount.set_app(FakeApp("other")))
        assert client.request(GREETING).body == b'"other"'
        server.call(lambda: mount.set_app(None))
        assert client.request(GREETING).code == 404
        assert client.request(GREETING).code == 404, "not even the second time"
        server.call(lambda: mount.set_app(app))
        assert client.request(GREETING).body == b'"hello"'


def test_a_stream_ends_when_the_rules_change_under_which_it_was_let_in(
    server: RunningServer, mount: Mount, app: FakeApp
) -> None:
    with server.connect() as client, server.connect() as bystander:
        bystander.request(DB)
        stream_on(client)
        server.call(lambda: mount.set_app(FakeApp("other")))
        assert client.read_to_end() == b"first\n"
        assert becomes_true(lambda: app.writers == [])
        assert bystander.request(DB).code == 200, "who reads no stream stays"


def test_a_stream_ends_at_once_even_if_its_reader_is_slow(server: RunningServer, mount: Mount, app: FakeApp) -> None:
    with server.connect(receive_buffer=4096) as client:
        stream_on(client)
        server.call(lambda: app.writers[0].write(b"x" * 10_000_000))
        server.call(lambda: mount.set_app(None))
        assert becomes_true(lambda: app.writers == [], within_s=1.0)
        reset(client)


def test_a_stream_that_was_let_in_under_other_rules_does_not_begin(
    server: RunningServer, mount: Mount, app: FakeApp
) -> None:
    with server.connect() as client:
        client.send(request("/own/held-stream"))
        assert becomes_true(lambda: app.is_held == 1)
        server.call(lambda: mount.set_app(None))
        release(server, app)
        assert client.read(is_head=True).code == 200
        assert client.is_closed()


def test_an_app_request_that_waits_for_its_turn_while_the_door_is_closed_is_not_found(
    server: RunningServer, mount: Mount, app: FakeApp
) -> None:
    with server.connect() as client:
        client.send(HELD + GREETING)
        assert becomes_true(lambda: app.is_held == 1)
        server.call(lambda: mount.set_app(None))
        release(server, app)
        assert client.read().body == b'"held"'
        assert client.read().code == 404


def test_what_is_not_there_at_one_door_is_there_at_another(server: RunningServer) -> None:
    """The same bytes: what is remembered of the one must not be the answer of the other."""
    listener = loopback_socket()
    asyncio.run_coroutine_threadsafe(server.server.listen(listener, None, Mount()), server.loop).result(5)
    with RawClient(socket.create_connection(listener.getsockname())) as at_the_other, server.connect() as client:
        for _ in range(3):
            assert at_the_other.request(GREETING).code == 404
            assert client.request(GREETING).code == 200
        assert at_the_other.request(DB).code == 200


def test_nothing_of_an_app_request_is_remembered(server: RunningServer, app: FakeApp, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    with server.connect() as client:
        for _ in range(4):
            client.request(GREETING)
    assert len(app.requests) == 4
    assert server.call(lambda: GREETING not in server.server.cache._requests)
