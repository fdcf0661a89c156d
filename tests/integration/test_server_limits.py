"""Every limit of the server, from both sides, over real sockets, under both event loops."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import threading
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from svcnode import Node
from svcnode.api.app import Mount
from svcnode.server import state as state_module
from svcnode.server.connection import Connection
from tests.support.http_server import (
    LONG_LIMITS,
    LONG_S,
    WAIT_TIMEOUT_S,
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
    monkeypatch.setattr(state_module, "TICK_S", 0.02)


@pytest.fixture
def serve(loop_name: str) -> Serve:
    """The worked example, with long limits except for the given ones."""

    def start(
        node: Node | None = None, *, listener: socket.socket | None = None, **limits: Any
    ) -> AbstractContextManager[RunningServer]:
        return running_server(
            node or worked_example(), loop_name, limits=LONG_LIMITS._replace(**limits), listener=listener
        )

    return start


@pytest.fixture
def server(serve: Serve) -> Iterator[RunningServer]:
    """Long time limits, default size limits."""
    with serve() as running:
        yield running


def error_code(response: RawResponse) -> int:
    """The code of a complete error response."""
    assert response.header("Connection") == "close"
    assert response.header("Content-Type") == "application/json"
    assert response.header("Cache-Control") == "no-store"
    body = json.loads(response.body)
    assert list(body) == ["message"]
    assert body["message"]
    return response.code


class Stopwatch:
    """Checks only the lower bound. The upper bound holds because the other limits exceed the timeout of a test."""

    def __init__(self) -> None:
        self._started_s = time.monotonic()

    def has_passed(self, expected_s: float) -> bool:
        return time.monotonic() - self._started_s > expected_s - 0.02


def send_slowly(client: RawClient, data: bytes, every_s: float, stop: threading.Event) -> threading.Thread:
    """Send one byte at a time until `stop` is set."""

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


# ---- receive_s


HALF_BODY = request("/svc/node", "Content-Length: 500", method="POST") + b"x"
HALF_CHUNK = request("/svc/node", "Transfer-Encoding: chunked", method="POST", body=b"fff\r\nx")


@pytest.mark.parametrize("half", [DB[:1], DB[:-1], HALF_BODY, HALF_CHUNK], ids=["byte", "head", "body", "chunk"])
def test_an_incomplete_request_is_answered_with_408(serve: Serve, half: bytes) -> None:
    with serve(receive_s=SHORT_S) as server, server.connect() as client:
        watch = Stopwatch()
        client.send(half)
        assert error_code(client.read()) == 408
        assert watch.has_passed(SHORT_S)
        assert client.is_closed()


@pytest.mark.parametrize("whole", [DB + b"x" * 99, HALF_BODY + b"x" * 99], ids=["head", "body"])
def test_single_bytes_do_not_extend_the_limit(serve: Serve, whole: bytes) -> None:
    stop = threading.Event()
    with serve(receive_s=SHORT_S) as server, server.connect() as client:
        watch = Stopwatch()
        sending = send_slowly(client, whole, 0.01, stop)
        try:
            assert error_code(client.read()) == 408
            assert watch.has_passed(SHORT_S)
        finally:
            stop.set()
            sending.join()


def test_the_limit_of_a_later_request_starts_with_its_first_byte(serve: Serve) -> None:
    with serve(receive_s=SHORT_S) as server, server.connect() as client:
        client.request(DB)
        time.sleep(2 * SHORT_S)
        watch = Stopwatch()
        client.send(DB[:5])
        assert error_code(client.read()) == 408
        assert watch.has_passed(SHORT_S)


@pytest.mark.parametrize("requests_before", [0, 1], ids=["first", "later"])
def test_an_incomplete_pipelined_request_has_the_same_limit(serve: Serve, requests_before: int) -> None:
    with serve(receive_s=SHORT_S) as server, server.connect() as client:
        for _ in range(requests_before):
            client.request(DB)
        watch = Stopwatch()
        client.send(STORAGE + DB[:5])
        assert client.read().code == 206
        assert error_code(client.read()) == 408
        assert watch.has_passed(SHORT_S)


def test_each_request_of_a_busy_client_has_its_own_limit(server: RunningServer) -> None:
    with server.connect() as client:
        client.send(STORAGE[:20])
        assert becomes_true(lambda: server.call(lambda: len(server.state.receiving)) == 1)
        starts_s = set()
        for _ in range(3):
            starts_s.add(server.call(lambda: next(iter(server.state.receiving._added_at_s.values()))))
            client.send(STORAGE[20:] + STORAGE[:20])
            assert client.read().code == 206
    assert len(starts_s) == 3


def test_a_silent_connection_is_closed_without_a_response(serve: Serve) -> None:
    with serve(receive_s=SHORT_S) as server, server.connect() as client:
        watch = Stopwatch()
        assert client.is_closed()
        assert watch.has_passed(SHORT_S)
        assert becomes_true(lambda: server.count() == 0)


# ---- idle_s


@pytest.mark.parametrize("times", [1, 2], ids=["parsed", "cached"])
def test_a_keep_alive_connection_is_closed_when_idle(serve: Serve, times: int) -> None:
    with serve(idle_s=SHORT_S) as server, server.connect() as client:
        for _ in range(times):
            client.request(DB)
        watch = Stopwatch()
        assert client.is_closed()
        assert watch.has_passed(SHORT_S)
        assert becomes_true(lambda: server.count() == 0)


@pytest.mark.parametrize("times", [1, 2], ids=["parsed", "cached"])
def test_every_request_renews_the_idle_limit_of_its_own_connection(server: RunningServer, times: int) -> None:
    with server.connect() as client, server.connect() as other:
        for one in (client, other):
            assert one.request(DB).code == 200
        before_s = time.monotonic()
        for _ in range(times):
            client.request(DB)
        active_at_s = server.call(lambda: [one.active_at_s for one in server.state.idle.connections()])
    assert sorted(active_s > before_s for active_s in active_at_s) == [False, True]


# ---- sizes


def in_one_piece(client: RawClient, data: bytes) -> None:
    client.send(data)


def in_small_pieces(client: RawClient, data: bytes) -> None:
    try:
        for at in range(0, len(data), 997):
            client.send(data[at : at + 997])
    except (BrokenPipeError, ConnectionResetError):
        pass  # the response can still be read


def pipelined(client: RawClient, data: bytes) -> None:
    client.send(DB + data)
    assert client.read().code == 200


each_way = pytest.mark.parametrize("send", [in_one_piece, in_small_pieces, pipelined])


def with_line_of(size: int) -> bytes:
    target = "/svc/node?x=" + "y" * (size - len("GET /svc/node?x= HTTP/1.1"))
    return request(target)


@each_way
def test_a_request_line_of_more_than_8_kib_is_414(
    server: RunningServer, send: Callable[[RawClient, bytes], None]
) -> None:
    assert with_line_of(8192).index(b"\r\n") == 8192
    with server.connect() as client:
        send(client, with_line_of(8192))
        assert client.read().code == 200
    with server.connect() as client:
        send(client, with_line_of(8193))
        assert error_code(client.read()) == 414


def with_head_of(size: int) -> bytes:
    empty = request("/svc/node", "X-Padding: ")
    whole = request("/svc/node", "X-Padding: " + "x" * (size - len(empty)))
    assert len(whole) == size
    return whole


@each_way
def test_a_head_of_more_than_32_kib_is_431(server: RunningServer, send: Callable[[RawClient, bytes], None]) -> None:
    with server.connect() as client:
        send(client, with_head_of(32 * 1024))
        assert client.read().code == 200
    with server.connect() as client:
        send(client, with_head_of(32 * 1024 + 1))
        assert error_code(client.read()) == 431


@each_way
def test_more_than_100_headers_are_431(server: RunningServer, send: Callable[[RawClient, bytes], None]) -> None:
    headers = [f"X-{number}: {number}" for number in range(100)]  # beside Host
    with server.connect() as client:
        send(client, request("/svc/node", *headers[1:]))
        assert client.read().code == 200
    with server.connect() as client:
        send(client, request("/svc/node", *headers))
        assert error_code(client.read()) == 431


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
        "header after a request",
        "trailer",
        "trailers",
        "chunk extension",
        "chunk size",
    ],
)
def test_endless_input_is_rejected_before_it_fills_the_memory(
    serve: Serve, endless: bytes, piece: bytes, code: int
) -> None:
    with serve(body_bytes=4096) as server, server.connect() as client:
        client.send(endless)
        if endless.startswith(DB):
            assert client.read().code == 200
        client.sock.settimeout(0.0)
        sent, is_answered = 0, False
        while not is_answered and sent < 4_000_000:
            readable, writable, _ = select.select([client.sock], [client.sock], [], WAIT_TIMEOUT_S)
            is_answered = bool(readable)
            if writable:
                sent += client.sock.send(piece * (1000 // len(piece)))
        client.sock.settimeout(WAIT_TIMEOUT_S)
        assert error_code(client.read()) == code


def test_a_body_of_more_than_64_kib_is_413(server: RunningServer) -> None:
    with server.connect() as client:
        assert client.request(request("/svc/node", body=b"x" * 65_536)).code == 200
        assert error_code(client.request(request("/svc/node", "Content-Length: 65537"))) == 413
        assert client.is_closed()


def test_a_chunked_body_of_more_than_64_kib_is_413(server: RunningServer) -> None:
    chunks = b"8000\r\n" + b"x" * 32_768 + b"\r\n"
    with server.connect() as client:
        client.send(request("/svc/node", "Transfer-Encoding: chunked", body=2 * chunks + b"0\r\n\r\n"))
        assert client.read().code == 200
    with server.connect() as client:
        client.send(request("/svc/node", "Transfer-Encoding: chunked", body=2 * chunks + b"1\r\nx"))
        assert error_code(client.read()) == 413


def test_chunks_of_one_byte_count_only_their_data(server: RunningServer) -> None:
    chunks = b"1\r\nx\r\n" * 65_536
    with server.connect() as client:
        client.send(request("/svc/node", "Transfer-Encoding: chunked", body=chunks + b"0\r\n\r\n"))
        assert client.read().code == 200


def test_a_body_announced_as_too_large_gets_413_instead_of_100(server: RunningServer) -> None:
    with server.connect() as client:
        head = request("/svc/node", "Expect: 100-continue", "Content-Length: 65537", method="POST")
        assert error_code(client.request(head)) == 413


# ---- error responses


@pytest.mark.parametrize("rejected", [b"\0invalid\r\n\r\n", request("/svc/node", "Content-Length: 99999999")])
def test_a_client_that_is_still_sending_can_read_the_error(server: RunningServer, rejected: bytes) -> None:
    with server.connect() as client:
        client.send(rejected)
        server.wait_for_reads()
        for _ in range(50):
            client.send(b"x" * 100_000)  # a reset would fail this and discard the response
        assert error_code(client.read()) in (400, 413)
        assert client.is_closed()
    assert becomes_true(lambda: server.count() == 0)


def test_a_client_that_keeps_sending_after_an_error_is_disconnected(serve: Serve) -> None:
    stop = threading.Event()
    with serve(linger_s=SHORT_S) as server, server.connect() as client:
        assert error_code(client.request(b"\0invalid\r\n\r\n")) == 400
        sending = send_slowly(client, b"x" * 100_000, 0.01, stop)
        try:
            assert becomes_true(lambda: server.count() == 0)
        finally:
            stop.set()
            sending.join()


def test_requests_after_an_error_are_not_answered(server: RunningServer) -> None:
    with server.connect() as client:
        client.request(DB)
        assert client.request(b"\0invalid\r\n\r\n").code == 400
        client.send(DB)
        assert client.is_closed()


# ---- the limit of connections


def test_a_full_server_closes_the_longest_idle_connection(serve: Serve) -> None:
    with serve(connections=3) as server:
        first, second, third = (server.connect() for _ in range(3))
        for client in (first, second, third, first):  # the second is now the longest idle
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


def test_a_full_server_closes_connections_that_never_sent_anything_first(serve: Serve) -> None:
    with serve(connections=4) as server:
        polite = server.connect()
        assert polite.request(DB).code == 200
        others = [server.connect() for _ in range(20)]
        assert becomes_true(lambda: server.count() == 4)
        assert polite.request(DB).code == 200
        for client in (polite, *others):
            client.sock.close()


def test_a_full_server_lets_a_new_client_send_its_request(serve: Serve) -> None:
    with serve(connections=8) as server:
        idle = [server.connect() for _ in range(8)]
        for client in idle:
            assert client.request(DB).code == 200
        new = [server.connect() for _ in range(3)]
        assert becomes_true(lambda: len(server.state.silent) == 3)
        assert [client.request(DB).code for client in new] == [200] * 3
        assert all(client.is_closed() for client in idle[:3])
        for client in (*idle, *new):
            client.sock.close()


def test_a_full_server_closes_idle_connections_before_busy_ones(serve: Serve) -> None:
    with serve(connections=2) as server:
        busy, idle = server.connect(), server.connect()
        busy.send(DB[:20])
        assert idle.request(DB).code == 200
        with server.connect() as new:
            assert new.request(DB).code == 200
            assert idle.is_closed()
            assert busy.request(DB[20:]).code == 200
        busy.sock.close()
        idle.sock.close()


def test_silent_connections_do_not_block_others(serve: Serve) -> None:
    with serve(connections=3) as server:
        silent = [server.connect() for _ in range(20)]
        assert server.request(DB).code == 200
        assert server.count() <= 3
        for client in silent[:17]:
            assert client.is_closed()
        for client in silent:
            client.sock.close()


def test_a_full_server_closes_a_connection_that_does_not_read(serve: Serve) -> None:
    with serve(big_node(), listener=small_buffers(), connections=1) as server:
        complete = server.request(LIST).body
        with server.connect(receive_buffer=8192) as client:
            client.send(LIST)
            assert becomes_true(lambda: len(server.state.sending) == 1)
            assert server.request(request("/svc/node/health")).code == 206
            assert len(client.read_to_end()) < len(complete), "the buffer was sent before the connection was closed"


# ---- send_s


def big_node(list_bytes: int = 600_000) -> Node:
    node = Node("validator-7", version="v1.4.2")
    node.register("big", description="d" * list_bytes)
    return node


def small_buffers() -> socket.socket:
    """A listener whose connections have small send buffers."""
    listener = loopback_socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    return listener


@pytest.mark.parametrize("times_read", [0, 1], ids=["parsed", "cached"])
def test_a_client_that_does_not_read_its_response_is_disconnected(serve: Serve, times_read: int) -> None:
    with (
        serve(big_node(), listener=small_buffers(), send_s=SHORT_S) as server,
        server.connect(receive_buffer=8192) as client,
    ):
        for _ in range(times_read):
            client.request(LIST)
        watch = Stopwatch()
        client.send(LIST)
        assert becomes_true(lambda: len(server.state.sending) == 1)
        assert becomes_true(lambda: server.count() == 0)
        assert watch.has_passed(SHORT_S)


def test_a_slow_client_gets_the_complete_response(serve: Serve) -> None:
    with (
        serve(big_node(), listener=small_buffers(), send_s=WAIT_TIMEOUT_S) as server,
        server.connect(receive_buffer=8192) as slow,
    ):
        for _ in range(2):
            slow.send(LIST)
            assert becomes_true(lambda: len(server.state.sending) == 1)
            assert len(json.loads(slow.read().body)["services"][0]["description"]) == 600_000
        assert slow.request(request("/svc/node/health")).code == 206


def test_a_client_that_reads_slowly_but_steadily_is_not_disconnected(serve: Serve) -> None:
    with (
        serve(big_node(), listener=small_buffers(), send_s=SHORT_S) as server,
        server.connect(receive_buffer=8192) as slow,
    ):
        watch = Stopwatch()
        slow.send(LIST)
        received = 0
        while received < 600_000:
            received += len(slow.sock.recv(8192))
            time.sleep(SHORT_S / 20)
        assert watch.has_passed(2 * SHORT_S)


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/1.0"])
def test_clients_that_do_not_read_share_one_copy_of_a_large_body(serve: Serve, loop_name: str, version: str) -> None:
    if loop_name != "uvloop":
        pytest.skip("the transport of asyncio copies what it cannot send at once")
    size = 8_000_000
    sent = request("/svc/node/services", "Connection: keep-alive", version=version)
    with serve(big_node(size), listener=small_buffers(), unread_bytes=100 * size) as server:
        tracemalloc.start()
        try:
            clients = [server.connect(receive_buffer=8192) for _ in range(20)]
            for client in clients:
                client.send(sent)
            assert becomes_true(lambda: len(server.state.sending) == len(clients))
            used_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        for client in clients:
            client.sock.close()
    assert used_bytes < len(clients) / 2 * size  # on a busy machine, one copy per second


def test_the_client_with_the_most_unread_bytes_is_disconnected_first(serve: Serve) -> None:
    node = big_node(3_000_000)
    with serve(node, listener=small_buffers(), unread_bytes=8_000_000) as server:
        greedy, *others = (server.connect(receive_buffer=8192) for _ in range(3))
        for client in (greedy, *others):
            client.send(LIST)
        assert becomes_true(lambda: len(server.state.sending) == 3 or server.count() == 2)
        server.call(server.state.enforce_unread_limit)
        assert becomes_true(lambda: server.count() == 2)
        for client in (greedy, *others):
            client.sock.close()


def test_a_client_that_closed_its_sending_side_gets_a_large_response(serve: Serve) -> None:
    with serve(big_node(), listener=small_buffers()) as server, server.connect(receive_buffer=8192) as slow:
        slow.send(LIST + STORAGE)
        slow.sock.shutdown(socket.SHUT_WR)
        assert becomes_true(lambda: len(server.state.sending) == 1)
        assert len(slow.read().body) > 600_000
        assert slow.read().code == 404
        assert slow.is_closed()


def bytes_in_flight(serve: Serve) -> int:
    """The bytes of a response that the kernel buffers while the client does not read."""
    with serve(big_node(), listener=small_buffers()) as server, server.connect(receive_buffer=8192) as client:
        client.send(LIST)
        assert becomes_true(lambda: len(server.state.sending) == 1)
        (connection,) = server.state.sending.connections()
        assert isinstance(connection, Connection)
        return 600_000 - server.call(connection._transport.get_write_buffer_size)


@pytest.mark.parametrize("headers", [("Connection: close",), ()], ids=["closing", "idle"])
def test_a_client_that_leaves_a_few_bytes_unread_is_disconnected(serve: Serve, headers: tuple[str, ...]) -> None:
    """So few that the transport never paused writing."""
    node = big_node(bytes_in_flight(serve) + 30_000)
    with (
        serve(node, listener=small_buffers(), send_s=SHORT_S, idle_s=SHORT_S) as server,
        server.connect(receive_buffer=8192) as client,
    ):
        client.send(request("/svc/node/services", *headers))
        assert becomes_true(lambda: server.count() == 1)
        assert becomes_true(lambda: server.count() == 0)


# ---- shutdown


def close_in_background(server: RunningServer, grace_s: float = LONG_S) -> Callable[[], None]:
    """Start to close. The returned function waits for the end, which must not use up a long grace time."""
    closing = asyncio.run_coroutine_threadsafe(server.server.close(grace_s), server.loop)
    assert becomes_true(lambda: server.state.is_closing)
    return lambda: closing.result(WAIT_TIMEOUT_S)


def test_shutdown_closes_idle_connections_at_once(server: RunningServer) -> None:
    with server.connect() as fresh, server.connect() as idle:
        idle.request(DB)
        assert becomes_true(lambda: server.count() == 2)
        close_in_background(server)()
        assert fresh.is_closed()
        assert idle.is_closed()


def test_shutdown_waits_for_requests_in_progress(server: RunningServer) -> None:
    with server.connect() as client, server.connect() as second:
        client.request(DB)
        second.request(STORAGE)
        client.send(DB[:20])
        second.send(request("/svc/node", "Content-Length: 5", method="POST"))
        server.wait_for_reads()
        wait = close_in_background(server)
        response = client.request(DB[20:] + STORAGE)
        assert (response.code, response.header("Connection")) == (200, "close")
        assert client.is_closed(), "the next request is not started"
        response = second.request(b"hello")
        assert (response.code, response.header("Connection")) == (405, "close")
        assert second.is_closed()
        wait()


def test_shutdown_waits_until_a_response_is_read(serve: Serve) -> None:
    with serve(big_node(), listener=small_buffers()) as server, server.connect(receive_buffer=8192) as slow:
        slow.request(LIST)
        slow.send(LIST)
        assert becomes_true(lambda: len(server.state.sending) == 1)
        wait = close_in_background(server)
        assert len(slow.read().body) > 600_000
        assert slow.is_closed()
        wait()


def test_shutdown_answers_pending_requests_of_a_slow_client(serve: Serve) -> None:
    with serve(big_node(), listener=small_buffers()) as server, server.connect(receive_buffer=8192) as slow:
        slow.send(3 * LIST)
        assert becomes_true(lambda: len(server.state.sending) == 1)
        wait = close_in_background(server)
        assert slow.read().header("Connection") is None, "encoded before the shutdown"
        last = slow.read()
        assert (len(last.body) > 600_000, last.header("Connection")) == (True, "close")
        assert slow.is_closed()
        wait()


def test_shutdown_aborts_connections_after_the_grace_time(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    with server.connect() as client:
        client.send(DB[:20])
        server.wait_for_reads()
        watch = Stopwatch()
        close_in_background(server, grace_s=SHORT_S)()
        assert watch.has_passed(SHORT_S)
        assert client.is_closed()
    (record,) = (vars(record) for record in caplog.records)
    assert (record["event"], record["connections"]) == ("connections_aborted", 1)


def test_a_closed_server_refuses_connections(server: RunningServer) -> None:
    server.close()
    with pytest.raises(ConnectionRefusedError):
        server.connect()


def test_shutdown_leaves_no_task_timer_or_socket(server: RunningServer) -> None:
    clients = [server.connect() for _ in range(50)]
    assert becomes_true(lambda: server.count() == 50)
    for number, client in enumerate(clients):
        client.send((b"", DB, DB[:20], b"\0invalid", LIST)[number % 5])

    async def close() -> int:
        await server.server.close(0.0)
        return server.state.connection_count

    assert asyncio.run_coroutine_threadsafe(close(), server.loop).result(WAIT_TIMEOUT_S) == 0
    assert server.tasks() == set()
    assert server.state._next_tick is None
    for client in clients:
        client.read_to_end()
        client.sock.close()
    assert becomes_true(lambda: server.listener.fileno() == -1)


def test_a_connection_accepted_during_shutdown_is_aborted(server: RunningServer) -> None:
    ours, theirs = socket.socketpair()
    server.close()
    accepting = server.loop.connect_accepted_socket(lambda: Connection(server.state, Mount()), theirs)
    asyncio.run_coroutine_threadsafe(accepting, server.loop).result(WAIT_TIMEOUT_S)
    with RawClient(ours) as client:
        assert client.is_closed()
    assert becomes_true(lambda: server.count() == 0)


def test_closing_a_listener_keeps_its_connections(server: RunningServer) -> None:
    with server.connect() as client:
        client.request(DB)
        server.call(lambda: server.server.stop_listening(server.listener))
        with pytest.raises(ConnectionRefusedError):
            server.connect()
        assert client.request(DB).code == 200
