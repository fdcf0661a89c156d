"""Every limit of the server server, reached from both sides: over real sockets, under both event loops."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from svcnode import Node
from svcnode.api.app import Mount
from svcnode.server import server as wire_module
from svcnode.server.connection import Connection
from tests.support.http_server import (
    LONG_LIMITS,
    RawClient,
    RawResponse,
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

    Serve = Callable[..., AbstractContextManager[RunningServer]]

DB = request("/svc/node/services/db/health")  # 200
STORAGE = request("/svc/node/services/storage/health")  # 206
LIST = request("/svc/node/services")
SHORT_S = 0.12  # a limit that a test waits for


@pytest.fixture(autouse=True)
def _fast_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_module, "TICK_S", 0.02)


@pytest.fixture
def serve(loop_name: str) -> Serve:
    """The worked example under limits of which only the named ones are short."""

    def start(
        node: Node | None = None, *, listener: socket.socket | None = None, **limits: Any
    ) -> AbstractContextManager[RunningServer]:
        return running_server(
            node or worked_example(), loop_name, limits=replace(LONG_LIMITS, **limits), listener=listener
        )

    return start


@pytest.fixture
def server(serve: Serve) -> Iterator[RunningServer]:
    """The limits of time out of the way, those of size as they are by default."""
    with serve() as running:
        yield running


def refused_with(answer: RawResponse) -> int:
    """The code of a refusal that has everything a refusal should have."""
    assert answer.header("Connection") == "close"
    assert answer.header("Content-Type") == "application/json"
    assert answer.header("Cache-Control") == "no-store"
    body = json.loads(answer.body)
    assert list(body) == ["message"]
    assert body["message"]
    return answer.code


class Stopwatch:
    def __init__(self) -> None:
        self._started_s = time.monotonic()

    @property
    def passed_s(self) -> float:
        return time.monotonic() - self._started_s

    def is_about(self, expected_s: float) -> bool:
        """Not before its time; how long after depends on the machine, too."""
        return expected_s - 0.02 < self.passed_s < expected_s + 1.0


def send_slowly(client: RawClient, data: bytes, every_s: float, stop: threading.Event) -> threading.Thread:
    """Send one byte at a time until told to stop."""

    def run() -> None:
        for byte in data:
            try:
                client.sock.send(bytes([byte]))
            except OSError:
                return
            if stop.wait(every_s):
                return

    thread = threading.Thread(target=run)
    thread.start()
    return thread


# ---- time to send a request


HALF_BODY = request("/svc/node", "Content-Length: 500", method="POST") + b"x"
HALF_CHUNK = request("/svc/node", "Transfer-Encoding: chunked", method="POST", body=b"fff\r\nx")


@pytest.mark.parametrize("half", [DB[:1], DB[:-1], HALF_BODY, HALF_CHUNK], ids=["byte", "head", "body", "chunk"])
def test_a_request_that_does_not_arrive_in_time_is_given_up(serve: Serve, half: bytes) -> None:
    with serve(receive_s=SHORT_S) as server, server.connect() as client:
        watch = Stopwatch()
        client.send(half)
        assert refused_with(client.read()) == 408
        assert watch.is_about(SHORT_S)
        assert client.is_closed()


@pytest.mark.parametrize("whole", [DB + b"x" * 99, HALF_BODY + b"x" * 99], ids=["head", "body"])
def test_a_byte_now_and_then_does_not_extend_the_deadline(serve: Serve, whole: bytes) -> None:
    stop = threading.Event()
    with serve(receive_s=SHORT_S) as server, server.connect() as client:
        watch = Stopwatch()
        sending = send_slowly(client, whole, 0.01, stop)
        try:
            assert refused_with(client.read()) == 408
            assert watch.is_about(SHORT_S)
        finally:
            stop.set()
            sending.join()


def test_the_deadline_of_a_later_request_begins_with_its_first_byte(serve: Serve) -> None:
    with serve(receive_s=SHORT_S) as server, server.connect() as client:
        client.request(DB)
        time.sleep(2 * SHORT_S)
        watch = Stopwatch()
        client.send(DB[:5])
        assert refused_with(client.read()) == 408
        assert watch.is_about(SHORT_S)


@pytest.mark.parametrize("asked_before", [0, 1], ids=["first", "later"])
def test_half_a_request_behind_a_whole_one_has_the_same_deadline(serve: Serve, asked_before: int) -> None:
    with serve(receive_s=SHORT_S) as server, server.connect() as client:
        for _ in range(asked_before):
            client.request(DB)
        watch = Stopwatch()
        client.send(STORAGE + DB[:5])
        assert client.read().code == 206
        assert refused_with(client.read()) == 408
        assert watch.is_about(SHORT_S)


def test_each_request_has_its_own_deadline_even_if_the_client_never_pauses(serve: Serve) -> None:
    with serve(receive_s=0.25) as server, server.connect() as client:
        client.send(STORAGE[:20])
        for _ in range(4):
            time.sleep(0.1)
            client.send(STORAGE[20:] + STORAGE[:20])
            assert client.read().code == 206


def test_a_client_that_says_nothing_is_closed_without_a_word(serve: Serve) -> None:
    with serve(receive_s=SHORT_S) as server, server.connect() as client:
        watch = Stopwatch()
        assert client.is_closed()
        assert watch.is_about(SHORT_S)
        assert becomes_true(lambda: server.count() == 0)


# ---- time to stay without a request


@pytest.mark.parametrize("times", [1, 2], ids=["parsed", "remembered"])
def test_a_keep_alive_connection_is_closed_when_idle(serve: Serve, times: int) -> None:
    with serve(idle_s=SHORT_S) as server, server.connect() as client:
        for _ in range(times):
            client.request(DB)
        watch = Stopwatch()
        assert client.is_closed()
        assert watch.is_about(SHORT_S)
        assert becomes_true(lambda: server.count() == 0)


def test_a_busy_connection_is_kept_for_ever(serve: Serve) -> None:
    with serve(idle_s=0.2, receive_s=0.2) as server, server.connect() as client:
        watch = Stopwatch()
        while watch.passed_s < 0.5:
            assert client.request(DB).code == 200
            time.sleep(0.01)


def test_a_neighbour_that_came_later_does_not_lengthen_an_idle_life(serve: Serve) -> None:
    with serve(idle_s=0.4) as server, server.connect() as client, server.connect() as neighbour:
        client.request(DB)
        time.sleep(0.05)
        client.request(DB)
        watch = Stopwatch()
        time.sleep(0.33)
        neighbour.request(DB)
        assert client.is_closed()
        assert 0.38 < watch.passed_s < 0.68


# ---- sizes


def in_one_piece(client: RawClient, data: bytes) -> None:
    client.send(data)


def in_small_pieces(client: RawClient, data: bytes) -> None:
    try:
        for at in range(0, len(data), 997):
            client.send(data[at : at + 997])
    except (BrokenPipeError, ConnectionResetError):
        pass  # what has been answered is there to be read all the same


def pipelined(client: RawClient, data: bytes) -> None:
    client.send(DB + data)
    assert client.read().code == 200


each_way = pytest.mark.parametrize("send", [in_one_piece, in_small_pieces, pipelined])


def with_line_of(size: int) -> bytes:
    target = "/svc/node?x=" + "y" * (size - len("GET /svc/node?x= HTTP/1.1"))
    return request(target)


@each_way
def test_a_request_line_may_have_8_kib_and_no_more(
    server: RunningServer, send: Callable[[RawClient, bytes], None]
) -> None:
    assert with_line_of(8192).index(b"\r\n") == 8192
    with server.connect() as client:
        send(client, with_line_of(8192))
        assert client.read().code == 200
    with server.connect() as client:
        send(client, with_line_of(8193))
        assert refused_with(client.read()) == 414


def with_head_of(size: int) -> bytes:
    empty = request("/svc/node", "X-Padding: ")
    whole = request("/svc/node", "X-Padding: " + "x" * (size - len(empty)))
    assert len(whole) == size
    return whole


@each_way
def test_a_head_may_have_32_kib_and_no_more(server: RunningServer, send: Callable[[RawClient, bytes], None]) -> None:
    with server.connect() as client:
        send(client, with_head_of(32 * 1024))
        assert client.read().code == 200
    with server.connect() as client:
        send(client, with_head_of(32 * 1024 + 1))
        assert refused_with(client.read()) == 431


@each_way
def test_a_head_may_have_a_hundred_headers_and_no_more(
    server: RunningServer, send: Callable[[RawClient, bytes], None]
) -> None:
    headers = [f"X-{number}: {number}" for number in range(100)]  # beside Host
    with server.connect() as client:
        send(client, request("/svc/node", *headers[1:]))
        assert client.read().code == 200
    with server.connect() as client:
        send(client, request("/svc/node", *headers))
        assert refused_with(client.read()) == 431


@pytest.mark.parametrize(
    ("endless", "piece", "code"),
    [
        (b"GET /", b"x", 414),
        (b"GET /svc/node HTTP/1.1\r\nX: ", b"x", 431),
        (b"GET /svc/node HTTP/1.1\r\nX", b"x", 431),
        (b"GET /svc/node HTTP/1.1\r\nX:", b" ", 431),
        (DB + b"GET /svc/node HTTP/1.1\r\nX: ", b"x", 431),
        (request("/svc/node", "Transfer-Encoding: chunked", body=b"0\r\nX: "), b"x", 413),
        (request("/svc/node", "Transfer-Encoding: chunked", body=b"0\r\n"), b"X: y\r\n", 431),
        (request("/svc/node", "Transfer-Encoding: chunked", body=b"5;"), b"x", 413),
        (request("/svc/node", "Transfer-Encoding: chunked", body=b"0"), b"0", 413),
    ],
    ids=[
        "target",
        "header",
        "header name",
        "space before a header",
        "header behind a request",
        "trailer",
        "trailers",
        "chunk extension",
        "chunk size",
    ],
)
def test_what_never_ends_is_refused_before_it_fills_anything(
    serve: Serve, endless: bytes, piece: bytes, code: int
) -> None:
    with serve(body_bytes=4096) as server, server.connect() as client:
        client.send(endless)
        if endless.startswith(DB):
            assert client.read().code == 200
        client.sock.settimeout(0.0)
        answer, sent = b"", 0
        while not answer and sent < 4_000_000:
            try:
                sent += client.sock.send(piece * (1000 // len(piece)))
                answer = client.sock.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                time.sleep(0.0005)
        client.sock.settimeout(5.0)
        assert refused_with(client.read()) == code


def test_a_body_may_have_64_kib_and_no_more(server: RunningServer) -> None:
    with server.connect() as client:
        assert client.request(request("/svc/node", body=b"x" * 65_536)).code == 200
        assert refused_with(client.request(request("/svc/node", "Content-Length: 65537"))) == 413, (
            "asked before it is sent"
        )
        assert client.is_closed()


def test_a_chunked_body_may_have_64_kib_and_no_more(server: RunningServer) -> None:
    chunks = b"8000\r\n" + b"x" * 32_768 + b"\r\n"
    with server.connect() as client:
        client.send(request("/svc/node", "Transfer-Encoding: chunked", body=2 * chunks + b"0\r\n\r\n"))
        assert client.read().code == 200
        client.send(request("/svc/node", "Transfer-Encoding: chunked", body=2 * chunks + b"1\r\nx"))
        assert refused_with(client.read()) == 413


def test_the_smallest_chunks_do_not_make_a_body_too_large(server: RunningServer) -> None:
    chunks = b"1\r\nx\r\n" * 65_536
    with server.connect() as client:
        client.send(request("/svc/node", "Transfer-Encoding: chunked", body=chunks + b"0\r\n\r\n"))
        assert client.read().code == 200


def test_a_client_that_asks_first_is_not_invited_to_send_too_much(server: RunningServer) -> None:
    with server.connect() as client:
        asked = request("/svc/node", "Expect: 100-continue", "Content-Length: 65537", method="POST")
        assert refused_with(client.request(asked)) == 413


# ---- refusals


@pytest.mark.parametrize("refused", [b"\0nonsense\r\n\r\n", request("/svc/node", "Content-Length: 99999999")])
def test_a_client_that_is_still_sending_can_read_why_it_was_refused(server: RunningServer, refused: bytes) -> None:
    with server.connect() as client:
        client.send(refused)
        server.wait_for_reads()
        for _ in range(50):
            client.send(b"x" * 100_000)  # a reset would end this, and take the answer with it
        assert refused_with(client.read()) in (400, 413)
        assert client.is_closed()
    assert becomes_true(lambda: server.count() == 0)


def test_a_refused_client_is_not_listened_to_for_ever(serve: Serve) -> None:
    stop = threading.Event()
    with serve(linger_s=SHORT_S) as server, server.connect() as client:
        assert refused_with(client.request(b"\0nonsense\r\n\r\n")) == 400
        sending = send_slowly(client, b"x" * 500, 0.01, stop)
        watch = Stopwatch()
        try:
            assert becomes_true(lambda: server.count() == 0)
            assert watch.passed_s < 1.0
        finally:
            stop.set()
            sending.join()


def test_nothing_that_follows_a_refusal_is_answered(server: RunningServer) -> None:
    with server.connect() as client:
        client.request(DB)
        assert client.request(b"\0nonsense\r\n\r\n").code == 400
        client.send(DB)
        assert client.is_closed()


# ---- the number of connections


def test_the_longest_idle_makes_place_for_a_newcomer(serve: Serve) -> None:
    with serve(connections=3) as server:
        first, second, third = (server.connect() for _ in range(3))
        for client in (first, second, third, first):  # so the second is the longest idle now
            assert client.request(DB).code == 200
        fourth = server.connect()
        assert fourth.request(DB).code == 200
        assert second.is_closed()
        fifth = server.connect()
        assert fifth.request(DB).code == 200
        assert third.is_closed()
        assert [client.request(DB).code for client in (fourth, first, fifth)] == [200] * 3
        sixth = server.connect()
        assert sixth.request(DB).code == 200
        assert fourth.is_closed()
        assert server.count() == 3
        for client in (first, second, third, fourth, fifth, sixth):
            client.sock.close()


def test_who_is_in_the_middle_of_a_request_goes_after_all_who_idle(serve: Serve) -> None:
    with serve(connections=2) as server:
        in_the_middle, idle = server.connect(), server.connect()
        in_the_middle.send(DB[:20])
        assert idle.request(DB).code == 200
        with server.connect() as newcomer:
            assert newcomer.request(DB).code == 200
            assert idle.is_closed()
            assert in_the_middle.request(DB[20:]).code == 200
        in_the_middle.sock.close()
        idle.sock.close()


def test_silent_connections_cannot_keep_others_out(serve: Serve) -> None:
    with serve(connections=3) as server:
        silent = [server.connect() for _ in range(20)]
        assert server.request(DB).code == 200
        assert server.count() <= 3
        for client in silent[:17]:
            assert client.is_closed()
        for client in silent:
            client.sock.close()


def test_who_does_not_read_makes_place_too(serve: Serve) -> None:
    with serve(big_node(), listener=small_buffers(), connections=1) as server:
        whole = server.request(LIST).body
        with server.connect(receive_buffer=8192) as deaf:
            deaf.send(LIST)
            assert becomes_true(lambda: len(server.server.sending) == 1)
            assert server.request(request("/svc/node/health")).code == 206
            assert len(deaf.read_to_end()) < len(whole), "it was waited for after it had been sent away"


# ---- time to take an answer


def big_node(list_bytes: int = 600_000) -> Node:
    node = Node("validator-7", version="v1.4.2")
    node.register("big", description="d" * list_bytes)
    return node


def small_buffers() -> socket.socket:
    """A listener whose connections hold few bytes on their way."""
    listener = loopback_socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    return listener


@pytest.mark.parametrize("times_read", [0, 1], ids=["parsed", "remembered"])
def test_a_client_that_does_not_take_its_answer_is_cut(serve: Serve, times_read: int) -> None:
    with (
        serve(big_node(), listener=small_buffers(), send_s=SHORT_S) as server,
        server.connect(receive_buffer=8192) as deaf,
    ):
        for _ in range(times_read):
            deaf.request(LIST)
        watch = Stopwatch()
        deaf.send(LIST)
        assert becomes_true(lambda: len(server.server.sending) == 1)
        assert becomes_true(lambda: server.count() == 0)
        assert watch.is_about(SHORT_S)


def test_a_client_that_takes_its_answer_slowly_gets_it_whole(serve: Serve) -> None:
    with serve(big_node(), listener=small_buffers(), send_s=5.0) as server, server.connect(receive_buffer=8192) as slow:
        for _ in range(2):
            slow.send(LIST)
            time.sleep(0.1)
            assert len(json.loads(slow.read().body)["services"][0]["description"]) == 600_000
        assert slow.request(request("/svc/node/health")).code == 206


def test_a_client_that_closes_its_half_gets_a_large_answer_whole(serve: Serve) -> None:
    with serve(big_node(), listener=small_buffers()) as server, server.connect(receive_buffer=8192) as slow:
        slow.send(LIST + STORAGE)
        slow.sock.shutdown(socket.SHUT_WR)
        assert becomes_true(lambda: len(server.server.sending) == 1)
        assert len(slow.read().body) > 600_000
        assert slow.read().code == 404
        assert slow.is_closed()


def bytes_in_flight(serve: Serve) -> int:
    """How many bytes of an answer the system takes from the server when nobody reads them."""
    with serve(big_node(), listener=small_buffers()) as server, server.connect(receive_buffer=8192) as deaf:
        deaf.send(LIST)
        assert becomes_true(lambda: len(server.server.sending) == 1)
        (connection,) = server.server.sending.connections()
        return 600_000 - server.call(connection._transport.get_write_buffer_size)


@pytest.mark.parametrize("headers", [("Connection: close",), ()], ids=["closing", "idling"])
def test_a_client_that_leaves_a_little_unread_cannot_stay_for_ever(serve: Serve, headers: tuple[str, ...]) -> None:
    """So little that the server was never told to stop writing."""
    node = big_node(bytes_in_flight(serve) + 30_000)
    with (
        serve(node, listener=small_buffers(), send_s=SHORT_S, idle_s=SHORT_S) as server,
        server.connect(receive_buffer=8192) as deaf,
    ):
        deaf.send(request("/svc/node/services", *headers))
        assert becomes_true(lambda: server.count() == 1)
        assert becomes_true(lambda: server.count() == 0, within_s=1.5)


# ---- the end


def close_in_background(server: RunningServer, grace_s: float) -> Callable[[], float]:
    """Begin to close; the function returned waits for the end and says how long it took."""
    watch = Stopwatch()
    closing = asyncio.run_coroutine_threadsafe(server.server.close(grace_s), server.loop)
    assert becomes_true(lambda: server.server.is_closing)

    def wait() -> float:
        closing.result(grace_s + 5.0)
        return watch.passed_s

    return wait


def test_closing_ends_all_who_wait_between_requests_at_once(server: RunningServer) -> None:
    with server.connect() as fresh, server.connect() as idle:
        idle.request(DB)
        assert becomes_true(lambda: server.count() == 2)
        assert close_in_background(server, grace_s=3.0)() < 1.0
        assert fresh.is_closed()
        assert idle.is_closed()


def test_closing_lets_a_request_in_flight_finish(server: RunningServer) -> None:
    with server.connect() as client, server.connect() as second:
        client.request(DB)
        second.request(STORAGE)
        client.send(DB[:20])
        second.send(request("/svc/node", "Content-Length: 5", method="POST"))
        server.wait_for_reads()
        wait = close_in_background(server, grace_s=3.0)
        answer = client.request(DB[20:] + STORAGE)
        assert (answer.code, answer.header("Connection")) == (200, "close")
        assert client.is_closed(), "what comes behind it is not begun any more"
        answer = second.request(b"hello")
        assert (answer.code, answer.header("Connection")) == (405, "close")
        assert second.is_closed()
        assert wait() < 1.0


def test_closing_lets_an_answer_be_read_to_its_end(serve: Serve) -> None:
    with serve(big_node(), listener=small_buffers()) as server, server.connect(receive_buffer=8192) as slow:
        slow.request(LIST)
        slow.send(LIST)
        assert becomes_true(lambda: len(server.server.sending) == 1)
        wait = close_in_background(server, grace_s=3.0)
        assert len(slow.read().body) > 600_000
        assert slow.is_closed()
        assert wait() < 1.0


def test_closing_answers_what_was_asked_while_nobody_read(serve: Serve) -> None:
    with serve(big_node(), listener=small_buffers()) as server, server.connect(receive_buffer=8192) as slow:
        slow.send(3 * LIST)
        assert becomes_true(lambda: len(server.server.sending) == 1)
        wait = close_in_background(server, grace_s=3.0)
        assert slow.read().header("Connection") is None, "it was on its way already"
        last = slow.read()
        assert (len(last.body) > 600_000, last.header("Connection")) == (True, "close")
        assert slow.is_closed()
        assert wait() < 1.0


def test_closing_cuts_who_is_stuck_after_the_grace(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    with server.connect() as client:
        client.send(DB[:20])
        server.wait_for_reads()
        assert SHORT_S - 0.02 < close_in_background(server, grace_s=SHORT_S)() < SHORT_S + 1.0
        assert client.is_closed()
        assert "1 connections did not finish in 0.12 s and were cut" in caplog.text


def test_nobody_is_admitted_any_more_once_closed(server: RunningServer) -> None:
    server.close()
    with pytest.raises(ConnectionRefusedError):
        server.connect()


def test_closing_leaves_nothing_behind(server: RunningServer) -> None:
    clients = [server.connect() for _ in range(50)]
    assert becomes_true(lambda: server.count() == 50)
    for number, client in enumerate(clients):
        client.send((b"", DB, DB[:20], b"\0nonsense", LIST)[number % 5])

    async def close() -> int:
        await server.server.close(0.0)
        return server.server.connection_count

    assert asyncio.run_coroutine_threadsafe(close(), server.loop).result(5.0) == 0
    assert server.tasks() == set()
    assert server.call(server.server._next_tick.cancelled)
    for client in clients:
        client.read_to_end()
        client.sock.close()
    assert becomes_true(lambda: server.listener.fileno() == -1)


def test_who_was_being_accepted_as_the_server_closed_does_not_slip_through(server: RunningServer) -> None:
    ours, theirs = socket.socketpair()
    server.close()
    accepting = server.loop.connect_accepted_socket(lambda: Connection(server.server, Mount()), theirs)
    asyncio.run_coroutine_threadsafe(accepting, server.loop).result(5.0)
    with RawClient(ours) as client:
        assert client.is_closed()
    assert becomes_true(lambda: server.count() == 0)


def test_a_listener_can_be_given_up_while_its_clients_stay(server: RunningServer) -> None:
    with server.connect() as client:
        client.request(DB)
        server.call(lambda: server.server.stop_listening(server.listener))
        with pytest.raises(ConnectionRefusedError):
            server.connect()
        assert client.request(DB).code == 200
