"""Visits to a surface on connections that the interface is asked on, too: over real sockets, under both event loops."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.spec import METHOD_NOT_ALLOWED, Answer, answer_with, error_answer
from svcnode.web import connection as connection_module
from svcnode.web import wire as wire_module
from svcnode.web.visits import Door, Stream, Visit
from svcnode.web.wire import Limits
from tests.support.nodes import worked_example
from tests.support.wire import Client, RunningWire, loopback, request, serving, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from svcnode.web.visits import Outlet

    Serve = Callable[..., AbstractContextManager[RunningWire]]

DB = request("/svc/node/services/db/health")  # 200
STORAGE = request("/svc/node/services/storage/health")  # 206
LIST = request("/svc/node/services")
HELLO = request("/own/hello")
HELD = request("/own/held")
STREAM = request("/own/stream")

AGES_S = 30.0
SHORT_S = 0.12
SECRET = "the password is swordfish"


class Surface:
    """Everything below /own, each as its name says."""

    def __init__(self, word: str = "hello") -> None:
        self.word = word
        self.visits: list[Visit] = []
        self.refused: Answer | None = None
        self.go_on = asyncio.Event()
        self.is_held = 0
        self.left = 0  # how often a visitor left before it was answered
        self.outlets: list[Outlet] = []
        self.end_streams = asyncio.Event()

    def takes(self, path: bytes) -> bool:
        return path.startswith(b"/own")

    def refusal(self, visit: Visit) -> Answer | None:
        self.visits.append(visit)
        if visit.method not in ("GET", "HEAD"):
            return METHOD_NOT_ALLOWED
        return self.refused

    async def answer(self, visit: Visit) -> Answer | Stream:
        what = visit.path.removeprefix(b"/own/")
        if what.startswith(b"held"):
            await self._until_let_on()
        if what == b"broken":
            raise RuntimeError(SECRET)
        streams = {
            b"stream": self._fill,
            b"held-stream": self._fill,
            b"flood": self._flood,
            b"broken-stream": self._break,
        }
        if what in streams:
            return Stream(_STREAM_HEAD, streams[what])
        bodies = {b"held": b'"held"', b"large": b"x" * 5_000_000}
        return answer_with(200, bodies.get(what, f'"{self.word}"'.encode()))

    async def _until_let_on(self) -> None:
        self.is_held += 1
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.left += 1
            raise

    async def _fill(self, outlet: Outlet) -> None:
        self.outlets.append(outlet)
        outlet.send(b"first\n")
        try:
            await self.end_streams.wait()
        finally:
            self.outlets.remove(outlet)

    async def _flood(self, outlet: Outlet) -> None:
        self.outlets.append(outlet)
        try:
            while True:
                outlet.send(b"x" * 65536)
                await outlet.drained()
        finally:
            self.outlets.remove(outlet)

    async def _break(self, outlet: Outlet) -> None:
        outlet.send(b"first\n")
        raise RuntimeError(SECRET)


_STREAM_HEAD = Answer(200, headers=(("Content-Type", "text/plain"),))


@pytest.fixture(autouse=True)
def _ticks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_module, "TICK_S", 0.02)


@pytest.fixture
def surface() -> Surface:
    return Surface()


@pytest.fixture
def door(surface: Surface) -> Door:
    return Door(surface)


@pytest.fixture
def serve(loop_name: str, door: Door) -> Serve:
    def start(**limits: float) -> AbstractContextManager[RunningWire]:
        chosen: dict[str, Any] = {"receive_s": AGES_S, "idle_s": AGES_S, "send_s": AGES_S, "linger_s": AGES_S}
        return serving(worked_example(), loop_name, limits=Limits(**chosen | limits), door=door)

    return start


@pytest.fixture
def wire(serve: Serve) -> Iterator[RunningWire]:
    with serve() as running:
        yield running


def let_on(wire: RunningWire, surface: Surface) -> None:
    wire.call(surface.go_on.set)


def stream_on(client: Client, data: bytes = STREAM) -> None:
    """Ask for a stream, and read its beginning."""
    client.send(data)
    head = client.read(is_head=True)
    assert (head.code, head.header("Connection"), head.header("Content-Length")) == (200, "close", None)
    assert client.unread == b"first\n" or not client.is_silent(1.0)
    assert client.unread == b"first\n"


def reset(client: Client) -> None:
    """Leave without a word."""
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.sock.close()


# ---- one visit


def test_a_visit_is_answered_and_the_connection_stays(wire: RunningWire) -> None:
    with wire.connect() as client:
        for _ in range(3):
            answer = client.ask(HELLO)
            assert (answer.code, answer.body) == (200, b'"hello"')
            assert answer.header("Date")
            assert answer.header("Connection") is None
        assert client.ask(DB).code == 200


def test_head_is_answered_without_the_body(wire: RunningWire) -> None:
    with wire.connect() as client:
        answer = client.ask(request("/own/hello", method="HEAD"), is_head=True)
        assert (answer.code, answer.header("Content-Length")) == (200, "7")
        assert client.ask(DB).code == 200


def test_a_visit_says_what_was_asked_for_and_by_whom(wire: RunningWire, surface: Surface) -> None:
    wire.ask(request("/own/a%2Fb?x=%31&y", "Authorization: Bearer x", "X-Own: y", "ACCEPT:  text/html "))
    (visit,) = surface.visits
    assert (visit.method, visit.path, visit.query) == ("GET", b"/own/a%2Fb", b"x=%31&y")
    assert {name: value.strip() for name, value in visit.headers.items()} == {
        b"host": b"node.example",
        b"authorization": b"Bearer x",
        b"accept": b"text/html",
    }


def test_the_headers_of_one_visit_are_not_those_of_the_next(wire: RunningWire, surface: Surface) -> None:
    with wire.connect() as client:
        client.ask(request("/own/hello", "Authorization: Bearer x"))
        client.ask(HELLO)
    assert [b"authorization" in visit.headers for visit in surface.visits] == [True, False]


def test_a_target_in_absolute_form_is_a_visit_too(wire: RunningWire) -> None:
    assert wire.ask(request("http://node.example/own/hello")).body == b'"hello"'


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/1.0"])
@pytest.mark.parametrize("authority", ["other.example", "other.example:8420", "[::1]:8420", "me@other.example"])
def test_the_host_in_a_target_is_the_host(wire: RunningWire, surface: Surface, authority: str, version: str) -> None:
    for path in ("/own/hello", "/own/hello?x=http://third.example/"):
        wire.ask(request(f"http://{authority}{path}", host="localhost", version=version))
    assert [visit.headers[b"host"] for visit in surface.visits] == [authority.encode()] * 2


def test_a_target_that_holds_an_address_further_on_has_no_host(wire: RunningWire, surface: Surface) -> None:
    wire.ask(request("/own/hello?x=http://other.example/", host="localhost"))
    assert surface.visits[0].headers[b"host"] == b"localhost"


def test_a_header_that_is_there_twice_has_both_values(wire: RunningWire, surface: Surface) -> None:
    wire.ask(request("/own/hello", "Authorization: Bearer x", "Accept: a/b", "authorization: Bearer y"))
    (visit,) = surface.visits
    assert visit.headers[b"authorization"] == b"Bearer x, Bearer y"
    assert visit.headers[b"accept"] == b"a/b"


def test_who_may_not_come_in_is_told_so_and_stays_connected(wire: RunningWire, surface: Surface) -> None:
    surface.refused = error_answer(401, "no")
    with wire.connect() as client:
        assert client.ask(HELLO).code == 401
        assert client.ask(request("/own/hello", method="HEAD"), is_head=True).code == 401
        assert client.ask(DB).code == 200
        surface.refused = None
        assert client.ask(HELLO).code == 200


@pytest.mark.parametrize("method", ["POST", "OPTIONS", "BREW"])
def test_other_methods_are_the_surfaces_to_refuse(wire: RunningWire, surface: Surface, method: str) -> None:
    answer = wire.ask(request("/own/hello", "Authorization: Bearer x", method=method))
    assert answer.code == 405
    assert (surface.visits[-1].method, surface.visits[-1].path) == (method, b"/own/hello")
    assert surface.visits[-1].headers[b"authorization"] == b"Bearer x"


def test_a_strange_method_is_refused_even_before_its_headers_are_there(wire: RunningWire, surface: Surface) -> None:
    surface.refused = error_answer(401, "no")
    with wire.connect() as client:
        client.send(b"BREW /own/hello HTTP/1.1\r\n")
        assert client.read().code == 405
        assert client.ends()
    assert surface.visits[-1].headers == {}


def test_a_body_that_no_visit_needs_is_read_and_ignored(wire: RunningWire) -> None:
    with wire.connect() as client:
        assert client.ask(request("/own/hello", body=b"GET /own/none HTTP/1.1\r\n\r\n")).body == b'"hello"'
        assert client.ask(DB).code == 200


# ---- several requests on one connection


def test_pipelined_requests_are_answered_in_their_order_whatever_they_ask_for(
    wire: RunningWire, surface: Surface
) -> None:
    with wire.connect() as client:
        client.send(DB + HELLO + STORAGE + HELD + HELLO + DB)
        assert [client.read().code, client.read().body, client.read().code] == [200, b'"hello"', 206]
        assert until(lambda: surface.is_held == 1)
        assert client.is_silent()
        let_on(wire, surface)
        assert [client.read().body, client.read().body] == [b'"held"', b'"hello"']
        answer = client.read()
        assert (answer.code, answer.body) == (200, b"")


@pytest.mark.parametrize("is_known", [False, True], ids=["parsed", "remembered"])
def test_what_arrives_during_a_visit_waits_for_its_turn(wire: RunningWire, surface: Surface, is_known: bool) -> None:
    with wire.connect() as client:
        if is_known:
            client.ask(STORAGE)
        client.send(HELD)
        assert until(lambda: surface.is_held == 1)
        client.send(STORAGE)
        client.send(DB)
        assert client.is_silent()
        let_on(wire, surface)
        assert [client.read().body, client.read().code, client.read().code] == [b'"held"', 206, 200]


def test_a_hundred_pipelined_visits_are_answered_in_their_order(wire: RunningWire) -> None:
    with wire.connect() as client:
        client.send((HELLO + STORAGE) * 100)
        answers = [client.read() for _ in range(200)]
    assert [answer.code for answer in answers] == [200, 206] * 100


def test_others_do_not_wait_for_a_visit(wire: RunningWire, surface: Surface) -> None:
    with wire.connect() as visitor, wire.connect() as client:
        visitor.send(HELD)
        assert until(lambda: surface.is_held == 1)
        for data, code in ((DB, 200), (STORAGE, 206), (HELLO, 200), (LIST, 200)):
            assert client.ask(data).code == code
        assert visitor.is_silent()
        let_on(wire, surface)
        assert visitor.read().code == 200


@pytest.mark.parametrize("cut", [1, 20, -2])
def test_half_a_request_behind_a_visit_is_completed_after_it(wire: RunningWire, surface: Surface, cut: int) -> None:
    with wire.connect() as client:
        client.send(HELD + STORAGE[:cut])
        assert until(lambda: surface.is_held == 1)
        let_on(wire, surface)
        assert client.read().body == b'"held"'
        client.send(STORAGE[cut:])
        assert client.read().code == 206
        assert client.ask(DB).code == 200


def test_what_completes_a_request_behind_a_visit_is_never_taken_for_a_known_one(
    wire: RunningWire, surface: Surface
) -> None:
    with wire.connect() as client:
        client.ask(DB)  # so that these bytes are known
        client.send(HELD + b"GET /svc/node/services/storage/health HTTP/1.1\r\nX-Rest: ")
        assert until(lambda: surface.is_held == 1)
        let_on(wire, surface)
        assert client.read().body == b'"held"'
        assert client.ask(DB).code == 206, "they are the rest of a header here"


def test_half_a_request_behind_a_visit_has_a_deadline_from_the_visits_end(serve: Serve, surface: Surface) -> None:
    with serve(receive_s=SHORT_S) as wire, wire.connect() as client:
        client.send(HELD + STORAGE[:5])
        assert until(lambda: surface.is_held == 1)
        assert client.is_silent(2 * SHORT_S)
        let_on(wire, surface)
        assert client.read().code == 200
        assert client.read().code == 408
        assert client.ends()


def test_a_bad_request_behind_a_visit_is_refused_after_it(wire: RunningWire, surface: Surface) -> None:
    with wire.connect() as client:
        client.send(HELD + b"nonsense\r\n\r\n")
        assert until(lambda: surface.is_held == 1)
        let_on(wire, surface)
        assert [client.read().code, client.read().code] == [200, 400]
        assert client.ends()


def test_a_client_that_goes_on_sending_during_a_visit_is_not_read_from(wire: RunningWire, surface: Surface) -> None:
    with wire.connect(send_buffer=4096) as client:
        client.send(HELD)
        assert until(lambda: surface.is_held == 1)
        client.sock.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.send(DB * 200_000)  # 12 MB
        assert wire.call(lambda: [len(one._unread) < 300_000 for one in wire.server.visiting.all()]) == [True]
        let_on(wire, surface)


@pytest.mark.parametrize("first", [HELLO, HELD], ids=["at once", "later"])
@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (request("/own/hello", "Connection: close"), "close"),
        (request("/own/hello", version="HTTP/1.0"), "close"),
    ],
    ids=["close", "1.0"],
)
def test_a_visit_that_is_the_last_request_ends_the_connection(
    wire: RunningWire, surface: Surface, first: bytes, ask: bytes, says: str
) -> None:
    let_on(wire, surface)
    with wire.connect() as client:
        client.send(first + ask + DB)
        assert client.read().code == 200
        answer = client.read()
        assert (answer.body, answer.header("Connection")) == (b'"hello"', says)
        assert client.ends()


def test_http_1_0_may_keep_the_connection(wire: RunningWire) -> None:
    with wire.connect() as client:
        for _ in range(2):
            answer = client.ask(request("/own/hello", "Connection: keep-alive", version="HTTP/1.0"))
            assert (answer.code, answer.header("Connection")) == (200, "keep-alive")


# ---- clients that leave


@pytest.mark.parametrize("is_last", [True, False])
def test_a_client_that_has_closed_its_half_gets_its_answer(wire: RunningWire, surface: Surface, is_last: bool) -> None:
    with wire.connect() as client:
        client.send(DB + HELD + (b"" if is_last else STORAGE))
        assert until(lambda: surface.is_held == 1)
        client.sock.shutdown(socket.SHUT_WR)
        wire.catch_up()
        let_on(wire, surface)
        assert [client.read().code, client.read().body] == [200, b'"held"']
        assert is_last or client.read().code == 206
        assert client.ends()
    assert until(lambda: wire.count() == 0)


def test_nothing_more_is_done_for_a_client_that_has_left(wire: RunningWire, surface: Surface) -> None:
    client = wire.connect()
    client.send(HELD)
    assert until(lambda: surface.is_held == 1)
    reset(client)
    assert until(lambda: surface.left == 1)
    assert until(lambda: wire.count() == 0)
    assert wire.ask(DB).code == 200


def test_a_client_that_has_closed_and_does_not_read_is_let_go_once_it_is_answered(
    wire: RunningWire, surface: Surface
) -> None:
    client = wire.connect()
    client.send(HELD)
    assert until(lambda: surface.is_held == 1)
    client.sock.close()
    wire.catch_up()
    let_on(wire, surface)
    assert until(lambda: wire.count() == 0)


def test_a_client_that_leaves_while_it_is_not_read_from_is_let_go_when_it_is_answered(
    wire: RunningWire, surface: Surface
) -> None:
    client = wire.connect()
    client.send(HELD)
    assert until(lambda: surface.is_held == 1)
    client.send(DB)  # from here on nothing more is read
    wire.catch_up()
    reset(client)
    let_on(wire, surface)
    assert until(lambda: wire.count() == 0)


def test_a_client_that_leaves_in_the_middle_of_an_answer_is_let_go(wire: RunningWire) -> None:
    client = wire.connect(receive_buffer=4096)
    client.send(request("/own/large"))
    assert client.sock.recv(100)
    reset(client)
    assert until(lambda: wire.count() == 0)


def test_a_large_answer_reaches_a_slow_reader_whole_and_the_next_one_follows(wire: RunningWire) -> None:
    with wire.connect(receive_buffer=4096) as client:
        client.send(request("/own/large") + STORAGE)
        time.sleep(0.1)
        assert len(client.read().body) == 5_000_000
        assert client.read().code == 206


# ---- failures


def test_a_visit_that_fails_is_a_plain_failure_and_its_cause_is_in_the_log_alone(
    wire: RunningWire, caplog: pytest.LogCaptureFixture
) -> None:
    with wire.connect() as client:
        answer = client.ask(request("/own/broken"))
        assert (answer.code, answer.body) == (500, b'{"message":"Internal server error"}')
        assert client.ask(DB).code == 200
    assert SECRET in caplog.text
    assert "answering failed; the client got 500" in caplog.text


def test_a_visit_that_takes_too_long_is_given_up(
    wire: RunningWire, surface: Surface, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connection_module, "ANSWER_WITHIN_S", SHORT_S)
    with wire.connect() as client:
        answer = client.ask(HELD)
        assert (answer.code, answer.body) == (503, b'{"message":"The answer could not be made in time"}')
        assert client.ask(DB).code == 200
    assert surface.left == 1
    assert "the client got 503" in caplog.text


def test_a_stream_that_fails_in_the_middle_ends_and_the_cause_is_in_the_log_alone(
    wire: RunningWire, caplog: pytest.LogCaptureFixture
) -> None:
    with wire.connect() as client:
        client.send(request("/own/broken-stream"))
        assert client.read(is_head=True).code == 200
        assert client.read_to_end() == b"first\n"
    assert "a stream ended in the middle" in caplog.text
    assert SECRET in caplog.text


# ---- streams


def test_a_stream_goes_on_until_it_is_ended(wire: RunningWire, surface: Surface) -> None:
    with wire.connect() as client:
        stream_on(client)
        wire.call(lambda: surface.outlets[0].send(b"second\n"))
        wire.call(surface.end_streams.set)
        assert client.read_to_end() == b"first\nsecond\n"
    assert until(lambda: wire.count() == 0)


def test_what_is_asked_for_behind_a_stream_is_never_answered(wire: RunningWire, surface: Surface) -> None:
    with wire.connect() as client:
        client.ask(DB)
        stream_on(client, DB[:0] + STREAM + DB)
        client.send(DB)
        wire.catch_up()
        wire.call(surface.end_streams.set)
        assert client.read_to_end() == b"first\n"


def test_the_head_of_a_stream_has_no_stream_behind_it(wire: RunningWire, surface: Surface) -> None:
    with wire.connect() as client:
        client.send(request("/own/stream", method="HEAD"))
        assert client.read(is_head=True).code == 200
        assert client.ends()
    assert surface.outlets == []


def test_http_1_0_may_read_a_stream(wire: RunningWire) -> None:
    with wire.connect() as client:
        stream_on(client, request("/own/stream", version="HTTP/1.0"))


@pytest.mark.parametrize("leave", [lambda client: client.sock.close(), reset], ids=["closed", "reset"])
def test_a_stream_whose_reader_leaves_is_ended(
    wire: RunningWire, surface: Surface, leave: Callable[[Client], None]
) -> None:
    client = wire.connect()
    stream_on(client)
    leave(client)
    assert until(lambda: surface.outlets == [])
    assert until(lambda: wire.count() == 0)


def test_a_reader_who_closes_their_half_is_taken_to_leave(wire: RunningWire, surface: Surface) -> None:
    with wire.connect() as client:
        stream_on(client)
        client.sock.shutdown(socket.SHUT_WR)
        assert client.read_to_end() == b"first\n"
    assert until(lambda: surface.outlets == [])


def test_the_limits_of_idling_and_receiving_do_not_end_a_stream(serve: Serve, surface: Surface) -> None:
    with serve(idle_s=SHORT_S, receive_s=SHORT_S, send_s=SHORT_S, linger_s=SHORT_S) as wire, wire.connect() as client:
        stream_on(client)
        time.sleep(4 * SHORT_S)
        wire.call(lambda: surface.outlets[0].send(b"second\n"))
        wire.call(surface.end_streams.set)
        assert client.read_to_end() == b"first\nsecond\n"


def test_a_reader_who_stops_reading_is_cut_like_any_other(serve: Serve, surface: Surface) -> None:
    with serve(send_s=SHORT_S) as wire, wire.connect(receive_buffer=4096) as client:
        client.send(request("/own/flood"))
        assert until(lambda: wire.count() == 1 and bool(surface.outlets))
        assert until(lambda: wire.count() == 0)
        assert surface.outlets == []


def test_what_waits_for_a_slow_reader_is_bounded_where_the_stream_waits_for_them(
    serve: Serve, surface: Surface
) -> None:
    with serve() as wire, wire.connect(receive_buffer=4096) as client:
        client.send(request("/own/flood"))
        assert until(lambda: bool(surface.outlets))
        time.sleep(0.1)
        assert wire.call(lambda: surface.outlets[0].waiting_bytes) <= 1_000_000
        read = 0
        while read < 3_000_000:
            read += len(client.sock.recv(65536))
        reset(client)
        assert until(lambda: surface.outlets == [])


# ---- the end of the server


@pytest.mark.parametrize("readers", [1, 20])
def test_open_streams_do_not_keep_the_server_from_ending(serve: Serve, surface: Surface, readers: int) -> None:
    with serve() as wire:
        clients = [wire.connect() for _ in range(readers)]
        for client in clients:
            stream_on(client)
        began_s = time.monotonic()
        wire.close(grace_s=5.0)
        assert time.monotonic() - began_s < 1.0
        for client in clients:
            assert client.read_to_end() == b"first\n"
            client.sock.close()
        assert surface.outlets == []


def test_a_visit_under_way_is_answered_before_the_server_ends(serve: Serve, surface: Surface) -> None:
    with serve() as wire, wire.connect() as client:
        client.send(HELD + DB)
        assert until(lambda: surface.is_held == 1)
        closing = asyncio.run_coroutine_threadsafe(wire.server.close(5.0), wire.loop)
        wire.catch_up()
        let_on(wire, surface)
        answer = client.read()
        assert (answer.body, answer.header("Connection")) == (b'"held"', "close")
        assert client.ends()
        closing.result(1.0)


def test_a_visit_that_does_not_end_does_not_keep_the_server_for_longer_than_its_grace(
    serve: Serve, surface: Surface, caplog: pytest.LogCaptureFixture
) -> None:
    with serve() as wire, wire.connect() as client:
        client.send(HELD)
        assert until(lambda: surface.is_held == 1)
        wire.close(grace_s=0.1)
        assert surface.left == 1
        assert client.ends()
    assert "1 connections did not finish" in caplog.text


def test_a_stream_that_would_begin_when_the_server_ends_does_not(serve: Serve, surface: Surface) -> None:
    with serve() as wire, wire.connect() as client:
        client.send(request("/own/held-stream"))
        assert until(lambda: surface.is_held == 1)
        closing = asyncio.run_coroutine_threadsafe(wire.server.close(5.0), wire.loop)
        wire.catch_up()
        let_on(wire, surface)
        closing.result(1.0)
        assert client.read(is_head=True).code == 200
        assert client.ends()


# ---- making place


def test_a_stream_is_closed_to_admit_a_newcomer_only_when_nobody_idles(serve: Serve, surface: Surface) -> None:
    with serve(connections=2) as wire, wire.connect() as reader, wire.connect() as idle:
        stream_on(reader)
        idle.ask(DB)
        with wire.connect() as second:
            stream_on(second)
            assert idle.ends()
            assert len(surface.outlets) == 2
            with wire.connect() as third:
                assert third.ask(DB).code == 200
                assert reader.read_to_end() == b"first\n"
                assert until(lambda: len(surface.outlets) == 1)
                wire.call(lambda: surface.outlets[0].send(b"second\n"))
                wire.call(surface.end_streams.set)
                assert second.read_to_end() == b"first\nsecond\n"


# ---- a door that is changed


def test_from_one_visit_to_the_next_a_connection_is_held_to_the_rules_of_now(
    wire: RunningWire, door: Door, surface: Surface
) -> None:
    with wire.connect() as client:
        assert client.ask(HELLO).body == b'"hello"'
        wire.call(lambda: door.change(Surface("other")))
        assert client.ask(HELLO).body == b'"other"'
        wire.call(lambda: door.change(None))
        assert client.ask(HELLO).code == 404
        assert client.ask(HELLO).code == 404, "not even the second time"
        wire.call(lambda: door.change(surface))
        assert client.ask(HELLO).body == b'"hello"'


def test_a_stream_ends_when_the_rules_change_under_which_it_was_let_in(
    wire: RunningWire, door: Door, surface: Surface
) -> None:
    with wire.connect() as client, wire.connect() as bystander:
        bystander.ask(DB)
        stream_on(client)
        wire.call(lambda: door.change(Surface("other")))
        assert client.read_to_end() == b"first\n"
        assert until(lambda: surface.outlets == [])
        assert bystander.ask(DB).code == 200, "who reads no stream stays"


def test_a_stream_ends_at_once_even_if_its_reader_is_slow(wire: RunningWire, door: Door, surface: Surface) -> None:
    with wire.connect(receive_buffer=4096) as client:
        stream_on(client)
        wire.call(lambda: surface.outlets[0].send(b"x" * 10_000_000))
        wire.call(lambda: door.change(None))
        assert until(lambda: surface.outlets == [], within_s=1.0)
        reset(client)


def test_a_stream_that_was_let_in_under_other_rules_does_not_begin(
    wire: RunningWire, door: Door, surface: Surface
) -> None:
    with wire.connect() as client:
        client.send(request("/own/held-stream"))
        assert until(lambda: surface.is_held == 1)
        wire.call(lambda: door.change(None))
        let_on(wire, surface)
        assert client.read(is_head=True).code == 200
        assert client.ends()


def test_a_visit_that_waits_for_its_turn_while_the_door_is_closed_is_not_found(
    wire: RunningWire, door: Door, surface: Surface
) -> None:
    with wire.connect() as client:
        client.send(HELD + HELLO)
        assert until(lambda: surface.is_held == 1)
        wire.call(lambda: door.change(None))
        let_on(wire, surface)
        assert client.read().body == b'"held"'
        assert client.read().code == 404


def test_what_is_not_there_at_one_door_is_there_at_another(wire: RunningWire) -> None:
    """The same bytes: what is remembered of the one must not be the answer of the other."""
    listener = loopback()
    asyncio.run_coroutine_threadsafe(wire.server.listen(listener, None, Door()), wire.loop).result(5)
    with Client(socket.create_connection(listener.getsockname())) as at_the_other, wire.connect() as client:
        for _ in range(3):
            assert at_the_other.ask(HELLO).code == 404
            assert client.ask(HELLO).code == 200
        assert at_the_other.ask(DB).code == 200


def test_nothing_of_a_visit_is_remembered(wire: RunningWire, surface: Surface, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    with wire.connect() as client:
        for _ in range(4):
            client.ask(HELLO)
    assert len(surface.visits) == 4
    assert wire.call(lambda: HELLO not in wire.server.answers._remembered)
