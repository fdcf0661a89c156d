"""Every limit of the server, from both sides, over real sockets, under both event loops."""

from __future__ import annotations

import asyncio
import json
import select
import socket
import time
import tracemalloc
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from svcnode import Node
from svcnode.api.app import Mount
from svcnode.net.clock import monotonic_s
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
    request,
    running_server,
    small_send_buffers,
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
    body = json.loads(response.body)
    assert list(body) == ["message"]
    assert body["message"]
    return response.code


def wait_for_phase(server: RunningServer, name: str, count: int = 1) -> None:
    assert becomes_true(lambda: server.call(lambda: len(getattr(server.state, name))) == count)


# ---- receive_s and idle_s


HALF_BODY = request("/svc/node", "Content-Length: 500", method="POST") + b"x"
HALF_CHUNK = request("/svc/node", "Transfer-Encoding: chunked", method="POST", body=b"fff\r\nx")


@pytest.mark.parametrize("half", [DB[:1], DB[:-4], HALF_BODY, HALF_CHUNK], ids=["byte", "head", "body", "chunk"])
def test_an_incomplete_request_is_answered_with_408_although_bytes_arrive(server: RunningServer, half: bytes) -> None:
    with server.connect() as client:
        client.send(half)
        wait_for_phase(server, "receiving")
        started_s = server.call(lambda: list(server.state.receiving._added_at_s.values()))
        server.enforce_time_limits(LONG_S - 60)
        client.send(b"x")
        assert client.receives_nothing()
        assert server.call(lambda: list(server.state.receiving._added_at_s.values())) == started_s
        server.enforce_time_limits(LONG_S)
        assert error_code(client.read()) == 408
        assert client.is_closed()


def test_the_limits_are_enforced_by_themselves(serve: Serve) -> None:
    with serve(receive_s=SHORT_S) as server, server.connect() as client, server.connect() as silent:
        started_s = time.monotonic()
        client.send(DB + DB[:5])
        assert client.read().code == 200
        assert error_code(client.read()) == 408
        assert silent.is_closed(), "without a response"
        assert time.monotonic() - started_s > SHORT_S - 0.02


def test_each_request_of_a_busy_client_has_its_own_limit(server: RunningServer) -> None:
    with server.connect() as client:
        client.send(STORAGE[:20])
        wait_for_phase(server, "receiving")
        starts_s = set()
        for _ in range(3):
            starts_s.add(server.call(lambda: next(iter(server.state.receiving._added_at_s.values()))))
            client.send(STORAGE[20:] + STORAGE[:20])
            assert client.read().code == 206
    assert len(starts_s) == 3


@pytest.mark.parametrize("times", [1, 2], ids=["parsed", "cached"])
def test_a_keep_alive_connection_is_closed_when_idle_and_every_request_renews_the_limit(
    server: RunningServer, times: int
) -> None:
    with server.connect() as client, server.connect() as other:
        for one in (client, other):
            assert one.request(DB).code == 200
        before_s = monotonic_s()
        for _ in range(times):
            client.request(DB)
        active_at_s = server.call(lambda: [one.active_at_s for one in server.state.idle.connections()])
        assert sorted(active_s > before_s for active_s in active_at_s) == [False, True]
        server.enforce_time_limits(LONG_S - 60)
        assert server.count() == 2
        server.enforce_time_limits(LONG_S)
        assert client.is_closed()
        assert other.is_closed()


# ---- sizes


def in_one_piece(client: RawClient, data: bytes) -> None:
    client.send(data)


def in_small_pieces(client: RawClient, data: bytes) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # the response can still be read
        for at in range(0, len(data), 997):
            client.send(data[at : at + 997])


def pipelined(client: RawClient, data: bytes) -> None:
    client.send(DB + data)
    assert client.read().code == 200


def with_line_of(size: int) -> bytes:
    whole = request("/svc/node?x=" + "y" * (size - len("GET /svc/node?x= HTTP/1.1")))
    assert whole.index(b"\r\n") == size
    return whole


def with_head_of(size: int) -> bytes:
    empty = request("/svc/node", "X-Padding: ")
    whole = request("/svc/node", "X-Padding: " + "x" * (size - len(empty)))
    assert len(whole) == size
    return whole


def with_headers(count: int) -> bytes:
    return request("/svc/node", *(f"X-{number}: {number}" for number in range(count - len(["Host"]))))


def with_body_of(size: int) -> bytes:
    return request("/svc/node", body=b"x" * size)


def with_chunks_of(size: int) -> bytes:
    chunks = b"8000\r\n" + b"x" * 32_768 + b"\r\n" + b"%x\r\n" % (size - 32_768) + b"x" * (size - 32_768) + b"\r\n"
    return request("/svc/node", "Transfer-Encoding: chunked", body=chunks + b"0\r\n\r\n")


def with_single_bytes(size: int) -> bytes:
    return request("/svc/node", "Transfer-Encoding: chunked", body=b"1\r\nx\r\n" * size + b"0\r\n\r\n")


@pytest.mark.parametrize("send", [in_one_piece, in_small_pieces, pipelined])
@pytest.mark.parametrize(
    ("make", "largest", "code"),
    [
        (with_line_of, 8192, 414),
        (with_head_of, 32 * 1024, 431),
        (with_headers, 100, 431),
        (with_body_of, 65_536, 413),
        (with_chunks_of, 65_536, 413),
        (with_single_bytes, 65_536, 413),
    ],
)
def test_a_request_of_the_largest_size_is_answered_and_a_larger_one_rejected(
    server: RunningServer,
    make: Callable[[int], bytes],
    largest: int,
    code: int,
    send: Callable[[RawClient, bytes], None],
) -> None:
    with server.connect() as client:
        send(client, make(largest))
        assert client.read().code == 200
    with server.connect() as client:
        send(client, make(largest + 1))
        assert error_code(client.read()) == code
        assert client.is_closed()


@pytest.mark.parametrize(
    ("endless", "piece", "code"),
    [
        (b"", b"A", 414),
        (b"GET /", b"x", 414),
        (b"GET /svc/node HTTP/1.1\r\nX", b"x", 431),
        (b"GET /svc/node HTTP/1.1\r\nX:", b" ", 431),
        (request("/svc/node", "Transfer-Encoding: chunked", body=b"0\r\nX: "), b"x", 413),
        (request("/svc/node", "Transfer-Encoding: chunked", body=b"0\r\n"), b"X: y\r\n", 431),
        (request("/svc/node", "Transfer-Encoding: chunked", body=b"5;"), b"x", 413),
        (request("/svc/node", "Transfer-Encoding: chunked", body=b"0"), b"0", 413),
    ],
    ids=[
        "method",
        "target",
        "header name",
        "space before a header",
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
        client.sock.settimeout(0.0)
        sent, is_answered = 0, False
        while not is_answered and sent < 4_000_000:
            readable, writable, _ = select.select([client.sock], [client.sock], [], WAIT_TIMEOUT_S)
            is_answered = bool(readable)
            if writable:
                sent += client.sock.send(piece * (1000 // len(piece)))
        client.sock.settimeout(WAIT_TIMEOUT_S)
        assert error_code(client.read()) == code


def test_a_body_announced_as_too_large_gets_413_instead_of_100(server: RunningServer) -> None:
    head = request("/svc/node", "Expect: 100-continue", "Content-Length: 65537", method="POST")
    assert error_code(server.request(head)) == 413


# ---- error responses


@pytest.mark.parametrize("rejected", [b"\0invalid\r\n\r\n", request("/svc/node", "Content-Length: 99999999")])
def test_a_client_that_is_still_sending_can_read_the_error_until_its_time_is_over(
    server: RunningServer, rejected: bytes
) -> None:
    with server.connect() as client:
        client.send(rejected)
        wait_for_phase(server, "lingering")
        for _ in range(20):
            client.send(b"x" * 100_000)  # a reset would fail this and discard the response
        assert error_code(client.read()) in (400, 413)
        server.enforce_time_limits(LONG_S - 60)
        assert server.count() == 1
        server.enforce_time_limits(LONG_S)
        assert becomes_true(lambda: server.count() == 0)


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
        assert server.count() == 3
        for client in (first, second, third, fourth, fifth):
            client.sock.close()


def test_a_full_server_closes_connections_that_never_sent_anything_first(serve: Serve) -> None:
    with serve(connections=4) as server:
        polite = server.connect()
        assert polite.request(DB).code == 200
        silent = [server.connect() for _ in range(20)]
        assert becomes_true(lambda: server.count() == 4)
        assert polite.request(DB).code == 200
        assert server.request(DB).code == 200
        assert all(client.is_closed() for client in silent[:16])
        for client in (polite, *silent):
            client.sock.close()


def test_a_full_server_lets_a_new_client_send_its_request(serve: Serve) -> None:
    with serve(connections=8) as server:
        idle = [server.connect() for _ in range(8)]
        for client in idle:
            assert client.request(DB).code == 200
        new = [server.connect() for _ in range(3)]
        wait_for_phase(server, "silent", 3)
        assert [client.request(DB).code for client in new] == [200] * 3
        assert all(client.is_closed() for client in idle[:3])
        for client in (*idle, *new):
            client.sock.close()


def test_a_full_server_closes_idle_connections_before_busy_ones(serve: Serve) -> None:
    with serve(connections=2) as server, server.connect() as busy, server.connect() as idle:
        busy.send(DB[:20])
        assert idle.request(DB).code == 200
        with server.connect() as new:
            assert new.request(DB).code == 200
            assert idle.is_closed()
            assert busy.request(DB[20:]).code == 200


def test_a_full_server_closes_a_connection_that_does_not_read(serve: Serve) -> None:
    with serve(big_node(), listener=small_send_buffers(), connections=1) as server:
        complete = server.request(LIST).body
        with server.connect(receive_buffer=8192) as client:
            client.send(LIST)
            wait_for_phase(server, "sending")
            assert server.request(request("/svc/node/health")).code == 206
            assert len(client.read_to_end()) < len(complete), "the buffer was sent before the connection was closed"


# ---- send_s


def big_node(list_bytes: int = 600_000) -> Node:
    node = Node("validator-7", version="v1.4.2")
    node.register("big", description="d" * list_bytes)
    return node


@pytest.mark.parametrize("times_read", [0, 1], ids=["parsed", "cached"])
def test_a_client_that_reads_slowly_gets_everything_and_one_that_does_not_read_is_disconnected(
    serve: Serve, times_read: int
) -> None:
    with serve(big_node(), listener=small_send_buffers()) as server, server.connect(receive_buffer=8192) as client:
        for _ in range(times_read):
            assert len(json.loads(client.request(LIST).body)["services"][0]["description"]) == 600_000
        client.send(LIST)
        wait_for_phase(server, "sending")
        (connection,) = server.call(server.state.sending.connections)
        before = server.call(lambda: connection.buffered_bytes)
        assert becomes_true(lambda: bool(client.sock.recv(8192)) and connection.buffered_bytes < before)
        server.enforce_time_limits(LONG_S - 60)
        server.enforce_time_limits(LONG_S)
        assert server.count() == 1
        server.enforce_time_limits(2 * LONG_S - 60)
        assert server.count() == 1
        server.enforce_time_limits(2 * LONG_S)
        assert becomes_true(lambda: server.count() == 0)


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/1.0"])
def test_clients_that_do_not_read_share_one_copy_of_a_large_body(serve: Serve, loop_name: str, version: str) -> None:
    if loop_name != "uvloop":
        pytest.skip("the transport of asyncio copies what it cannot send at once")
    size = 1_000_000
    sent = request("/svc/node/services", "Connection: keep-alive", version=version)
    with serve(big_node(size), listener=small_send_buffers(), unread_bytes=100 * size) as server:
        tracemalloc.start()
        try:
            clients = [server.connect(receive_buffer=8192) for _ in range(12)]
            for client in clients:
                client.send(sent)
            wait_for_phase(server, "sending", len(clients))
            used_bytes, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        for client in clients:
            client.sock.close()
    assert used_bytes < len(clients) / 2 * size  # on a busy machine, one copy per second


def test_the_client_with_the_most_unread_bytes_is_disconnected_first(serve: Serve) -> None:
    with serve(big_node(), listener=small_send_buffers(), unread_bytes=1_500_000) as server:
        clients = [server.connect(receive_buffer=8192) for _ in range(3)]
        for client in clients:
            client.send(LIST)
        assert becomes_true(lambda: len(server.state.sending) == 3 or server.count() == 2)
        server.call(server.state.enforce_unread_limit)
        assert becomes_true(lambda: server.count() == 2)
        for client in clients:
            client.sock.close()


def test_a_client_that_closed_its_sending_side_gets_a_large_response(serve: Serve) -> None:
    with serve(big_node(), listener=small_send_buffers()) as server, server.connect(receive_buffer=8192) as slow:
        slow.send(LIST + STORAGE)
        slow.sock.shutdown(socket.SHUT_WR)
        wait_for_phase(server, "sending")
        assert len(slow.read().body) > 600_000
        assert slow.read().code == 404
        assert slow.is_closed()


def bytes_in_flight(serve: Serve) -> int:
    """The bytes of a response that the kernel buffers while the client does not read."""
    with serve(big_node(), listener=small_send_buffers()) as server, server.connect(receive_buffer=8192) as client:
        client.send(LIST)
        wait_for_phase(server, "sending")
        (connection,) = server.state.sending.connections()
        assert isinstance(connection, Connection)
        return 600_000 - server.call(connection._transport.get_write_buffer_size)


@pytest.mark.parametrize("headers", [("Connection: close",), ()], ids=["closing", "idle"])
def test_a_client_that_leaves_a_few_bytes_unread_is_disconnected(serve: Serve, headers: tuple[str, ...]) -> None:
    """So few that the transport never paused writing."""
    node = big_node(bytes_in_flight(serve) + 30_000)
    with (
        serve(node, listener=small_send_buffers(), send_s=SHORT_S, idle_s=SHORT_S) as server,
        server.connect(receive_buffer=8192) as client,
    ):
        client.send(request("/svc/node/services", *headers))
        assert client.sock.recv(1)
        assert becomes_true(lambda: server.count() == 0)


# ---- shutdown


def close_in_background(server: RunningServer, grace_s: float = LONG_S) -> Callable[[], None]:
    """Start to close. The returned function waits for the end, which must not use up a long grace time."""
    closing = asyncio.run_coroutine_threadsafe(server.server.close(grace_s), server.loop)
    assert becomes_true(lambda: server.state.is_closing)
    return lambda: closing.result(WAIT_TIMEOUT_S)


def test_shutdown_closes_idle_connections_refuses_new_ones_and_waits_for_requests_in_progress(
    server: RunningServer,
) -> None:
    with server.connect() as fresh, server.connect() as idle, server.connect() as client, server.connect() as second:
        idle.request(DB)
        client.request(DB)
        second.request(STORAGE)
        client.send(DB[:20])
        second.send(request("/svc/node", "Content-Length: 5", method="POST"))
        wait_for_phase(server, "receiving", 2)
        assert becomes_true(lambda: server.count() == 4)
        wait = close_in_background(server)
        assert fresh.is_closed()
        assert idle.is_closed()
        with pytest.raises(ConnectionRefusedError):
            server.connect()
        response = client.request(DB[20:] + STORAGE)
        assert (response.code, response.header("Connection")) == (200, "close")
        assert client.is_closed(), "the next request is not started"
        response = second.request(b"hello")
        assert (response.code, response.header("Connection")) == (405, "close")
        assert second.is_closed()
        wait()


@pytest.mark.parametrize("requests", [1, 3])
def test_shutdown_answers_the_requests_of_a_slow_client(serve: Serve, requests: int) -> None:
    with serve(big_node(), listener=small_send_buffers()) as server, server.connect(receive_buffer=8192) as slow:
        slow.request(LIST)
        slow.send(requests * LIST)
        wait_for_phase(server, "sending")
        wait = close_in_background(server)
        first = slow.read()
        assert (len(first.body) > 600_000, first.header("Connection")) == (True, None), "encoded before the shutdown"
        if requests > 1:
            last = slow.read()
            assert (len(last.body) > 600_000, last.header("Connection")) == (True, "close")
        assert slow.is_closed()
        wait()


def test_shutdown_aborts_connections_after_the_grace_time(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    with server.connect() as client:
        client.send(DB[:20])
        wait_for_phase(server, "receiving")
        started_s = time.monotonic()
        close_in_background(server, grace_s=SHORT_S)()
        assert time.monotonic() - started_s > SHORT_S - 0.02
        assert client.is_closed()
    (record,) = (vars(record) for record in caplog.records)
    assert (record["event"], record["connections"]) == ("connections_aborted", 1)


def test_shutdown_leaves_no_task_timer_or_socket(server: RunningServer) -> None:
    clients = [server.connect() for _ in range(50)]
    assert becomes_true(lambda: server.count() == 50)
    for number, client in enumerate(clients):
        client.send((b"", DB, DB[:20], b"\0invalid", LIST)[number % 5])
    server.close()
    assert server.count() == 0
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
