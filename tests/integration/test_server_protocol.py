"""HTTP/1.1 byte by byte, over real sockets, under both event loops."""

from __future__ import annotations

import json
import random
import re
import socket
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import pytest

from svcnode import Node, Verdict
from svcnode.api.spec import VERSION_NOT_FOUND, Request
from svcnode.server.connection import Connection
from svcnode.server.parser import RequestParser
from svcnode.server.response_cache import ResponseCache
from svcnode.server.state import ServerLimits
from tests.support.http_server import (
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
    from collections.abc import Iterator

    from svcnode.api.spec import Response
    from svcnode.server.parser import ParsedRequest
    from svcnode.server.response_cache import ResolvedRequest

DB = request("/svc/node/services/db/health")  # 200
INDEXER = request("/svc/node/services/indexer/health")  # 503
STORAGE = request("/svc/node/services/storage/health")  # 206
UNKNOWN_PATH = request("/svc/nowhere")  # 404
IDENTITY = request("/svc/node")
LIST = request("/svc/node/services")
POST = request("/svc/node", method="POST", body=b"hello")  # 405
CHUNKED = request(
    "/svc/node", "Transfer-Encoding: chunked", method="PUT", body=b"5;x=y\r\nhello\r\n1\r\n!\r\n0\r\nX-T: t\r\n\r\n"
)  # 405


@pytest.fixture
def node() -> Node:
    return worked_example()


@pytest.fixture
def server(node: Node, loop_name: str) -> Iterator[RunningServer]:
    with running_server(node, loop_name) as running:
        yield running


def error_code(response: RawResponse) -> int:
    """The code of an error with a JSON body."""
    assert response.header("Content-Type") == "application/json"
    body = json.loads(response.body)
    assert list(body) == ["message"]
    assert body["message"]
    return response.code


# ---- one connection, many requests


def test_a_connection_is_kept_for_the_next_request(server: RunningServer) -> None:
    with server.connect() as client:
        responses = [client.request(one) for one in (DB, INDEXER, STORAGE, UNKNOWN_PATH, POST, DB)]
    assert [response.code for response in responses] == [200, 503, 206, 404, 405, 200]
    assert not any(response.header("Connection") for response in responses)


def test_requests_in_one_segment_are_answered_in_order(server: RunningServer) -> None:
    sent = [DB, INDEXER, STORAGE, UNKNOWN_PATH, POST] * 50
    with server.connect() as client:
        client.send(b"".join(sent))
        codes = [client.read().code for _ in sent]
    assert codes == [200, 503, 206, 404, 405] * 50


def test_an_incomplete_request_after_many_pipelined_ones_can_be_completed(server: RunningServer) -> None:
    with server.connect() as client:
        client.request(DB)
        server.loop.call_soon_threadsafe(time.sleep, 0.05)  # so that all bytes arrive in few reads
        client.send(DB * 700 + STORAGE[:20])
        assert {client.read().code for _ in range(700)} == {200}
        assert client.request(STORAGE[20:]).code == 206


def test_requests_may_be_split_at_any_byte(server: RunningServer) -> None:
    sent = DB + POST + INDEXER + STORAGE + DB + CHUNKED
    clients = [server.connect() for _ in range(1, len(sent))]
    for split, client in enumerate(clients, start=1):
        client.send(sent[:split])
    server.wait_for_reads()
    for split, client in enumerate(clients, start=1):
        client.send(sent[split:])
    for client in clients:
        with client:
            assert [client.read().code for _ in range(6)] == [200, 405, 503, 206, 200, 405]
            assert client.is_closed()


def test_requests_may_arrive_byte_by_byte(server: RunningServer) -> None:
    with server.connect() as client:
        for byte in DB + INDEXER + CHUNKED:
            client.send(bytes([byte]))
        assert [client.read().code for _ in range(3)] == [200, 503, 405]


def test_empty_lines_before_a_request_are_skipped(server: RunningServer) -> None:
    with server.connect() as client:
        assert client.request(b"\r\n\r\n" + DB).code == 200
        assert client.request(b"\r\n" + STORAGE).code == 206


def sendable_count(client: RawClient, data: bytes) -> int:
    for count in range(5000):
        try:
            client.send(data)
        except TimeoutError:
            return count
    return 5000


def test_the_server_stops_reading_from_a_client_that_does_not_read(loop_name: str) -> None:
    node = Node("validator-7", version="v1.4.2")
    for number in range(600):
        node.register(f"service-{number}", description="d" * 100)
    listener = loopback_socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
    sent = request("/svc/node/services", f"X-Padding: {'p' * 4000}")

    with running_server(node, loop_name, listener=listener) as server:
        expected = server.request(LIST).body
        with server.connect(receive_buffer=16 * 1024, send_buffer=16 * 1024) as client:
            client.sock.settimeout(0.2)
            count = sendable_count(client, sent)
            assert count < 200, "the server did not stop reading"

            (connection,) = server.call(server.state.sending.connections)
            assert isinstance(connection, Connection)
            queued_bytes = server.call(connection._transport.get_write_buffer_size)
            assert queued_bytes < 2 * len(expected) + 64 * 1024
            assert server.call(lambda: connection._parser.unparsed_bytes) < 512 * 1024

            client.sock.settimeout(WAIT_TIMEOUT_S)
            for _ in range(count):
                assert client.read().body == expected
    assert count > 4, "too few responses to fill the buffers"


def test_a_client_with_thousands_of_requests_does_not_block_others(server: RunningServer) -> None:
    turns: list[str] = []
    feed = RequestParser._feed

    def record_turn(parser: RequestParser, data: bytes) -> ParsedRequest | Response | None:
        turns.append("greedy" if b"greedy" in data else "modest")
        return feed(parser, data)

    with server.connect() as greedy, server.connect() as modest, pytest.MonkeyPatch.context() as patch:
        patch.setattr(RequestParser, "_feed", record_turn)
        patch.setattr(server.state.cache, "get", lambda *_: None)
        greedy.send(request("/svc/node/health", "X-Client: greedy") * 3000)
        modest.send(DB)
        assert modest.read().code == 200
        assert [greedy.read().code for _ in range(3000)] == [206] * 3000
    assert len(turns) > 40, "a turn parsed too many bytes"
    assert turns.index("modest") < len(turns) - 20


def test_a_large_cached_response_is_complete_for_slow_and_fast_clients(loop_name: str) -> None:
    node = Node("validator-7", version="v1.4.2")
    for number in range(600):
        node.register(f"service-{number}", description="d" * 100)
    listener = loopback_socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
    with (
        running_server(node, loop_name, listener=listener) as server,
        server.connect(receive_buffer=16 * 1024) as slow,
        server.connect() as fast,
    ):
        expected = server.request(LIST).body
        for _ in range(3):
            slow.send(LIST)
            server.wait_for_reads()  # the response fills the buffers
            assert fast.request(LIST).body == expected
            assert slow.read().body == expected
        node.report("service-0", Verdict.ready())
        assert slow.request(LIST).body == expected.replace(b"Initializing", b"Up", 1)


# ---- methods and versions of HTTP


@pytest.mark.parametrize(
    "target",
    [
        "/svc/node",
        "/svc/node/services",
        "/svc/node/health",
        "/svc/node/services/indexer/health",
        "/svc/node/services/storage/health?partial_status=204",
        "/svc/node/services/x/health",
        "/svc/node?version=v9",
        "/nowhere",
        "/livez",
    ],
)
def test_head_is_get_without_the_body(server: RunningServer, target: str) -> None:
    with server.connect() as client:
        got = client.request(request(target))
        head = client.request(request(target, method="HEAD"), is_head=True)
        again = client.request(request(target))  # a body of the HEAD response would be read as this response
    assert (head.code, head.without_date.headers) == (got.code, got.without_date.headers)
    assert again.without_date == got.without_date


def test_http_1_0_closes_after_the_response(server: RunningServer) -> None:
    with server.connect() as client:
        response = client.request(b"GET /svc/node/health HTTP/1.0\r\n\r\n")
        assert (response.code, response.header("Connection")) == (206, "close")
        assert client.is_closed()


def test_http_1_0_with_keep_alive_stays_open(server: RunningServer) -> None:
    sent = b"GET /svc/node/health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    with server.connect() as client:
        for _ in range(3):
            response = client.request(sent)
            assert (response.code, response.header("Connection")) == (206, "keep-alive")


def test_connection_close_closes_after_the_response(server: RunningServer) -> None:
    for _ in range(3):
        with server.connect() as client:
            response = client.request(request("/svc/node", "Connection: close"))
            assert (response.code, response.header("Connection")) == (200, "close")
            assert client.is_closed()


def test_requests_after_connection_close_are_not_answered(server: RunningServer) -> None:
    with server.connect() as client:
        client.send(DB + request("/svc/node/services/indexer/health", "Connection: close") + STORAGE + b"\0garbage")
        assert [client.read().code, client.read().code] == [200, 503]
        assert client.is_closed()


def test_a_client_that_closed_its_sending_side_gets_all_responses(server: RunningServer) -> None:
    with server.connect() as client:
        client.send(DB + INDEXER + LIST)
        client.sock.shutdown(socket.SHUT_WR)
        assert [client.read().code, client.read().code, client.read().code] == [200, 503, 200]
        assert client.is_closed()


def test_an_incomplete_request_of_a_closed_client_gets_no_response(server: RunningServer) -> None:
    with server.connect() as client:
        client.send(DB[:-1])
        client.sock.shutdown(socket.SHUT_WR)
        assert client.is_closed()
    assert becomes_true(lambda: server.count() == 0)


# ---- bodies


@pytest.mark.parametrize(
    "sent",
    [
        POST,
        request("/svc/node", method="POST", body=b"x" * 65_536),
    ],
    ids=["content-length", "64 KiB"],
)
def test_a_body_is_discarded_and_the_next_request_is_answered(server: RunningServer, sent: bytes) -> None:
    with server.connect() as client:
        client.send(sent + STORAGE)
        assert [client.read().code, client.read().code] == [405, 206]


MANY_CHUNKS = request(
    "/svc/node", "Transfer-Encoding: chunked", method="POST", body=b"1\r\nx\r\n" * 3000 + b"0\r\n\r\n"
)


@pytest.mark.parametrize("sent", [CHUNKED, MANY_CHUNKS, CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0")])
def test_the_connection_closes_after_a_chunked_request(server: RunningServer, sent: bytes) -> None:
    with server.connect() as client:
        client.send(sent + STORAGE)
        response = client.read()
        assert (response.code, response.header("Connection")) == (405, "close")
        assert client.is_closed()


def test_the_body_of_a_get_is_ignored(server: RunningServer) -> None:
    with server.connect() as client:
        client.send(request("/svc/node/health", body=b"GET /svc/node") + INDEXER)
        assert [client.read().code, client.read().code] == [206, 503]


def test_trailers_are_ignored(server: RunningServer) -> None:
    trailers = b"0\r\nHost: other\r\nExpect: 100-continue\r\nX: y\r\n"
    with server.connect() as client:
        client.send(request("/svc/node", "Transfer-Encoding: chunked", body=trailers))
        assert client.receives_nothing()
        assert client.request(b"\r\n").code == 200


def test_100_continue_is_sent_once_before_the_body(server: RunningServer) -> None:
    head = request("/svc/node", "Expect: 100-continue", "Content-Length: 5", method="POST")
    with server.connect() as client:
        client.send(head[:-1])
        assert client.receives_nothing()
        assert client.request(head[-1:]).code == 100
        client.send(b"he")
        assert client.receives_nothing()
        assert client.request(b"llo").code == 405
        assert client.request(STORAGE).code == 206


def test_100_continue_is_not_sent_if_the_body_is_here(server: RunningServer) -> None:
    with server.connect() as client:
        assert client.request(request("/svc/node", "Expect: 100-continue", method="POST", body=b"hello")).code == 405


def test_100_continue_is_not_sent_to_http_1_0(server: RunningServer) -> None:
    with server.connect() as client:
        client.send(
            request("/svc/node", "Expect: 100-continue", "Content-Length: 5", method="POST", version="HTTP/1.0")
        )
        assert client.receives_nothing()
        assert client.request(b"hello").code == 405


# ---- targets and upgrades


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ("http://node.example/svc/node", 200),
        ("http://node.example:8420/svc/node/health?partial_status=299", 299),
        ("https://node.example/svc/node?version=v9", 404),
        ("HTTP://node.example/svc/node/services/a%2Fb/health", 404),
        ("http://node.example", 404),
        ("http://node.example?version=v0.0.1", 404),
    ],
)
def test_absolute_targets_are_supported(server: RunningServer, target: str, code: int) -> None:
    assert server.request(request(target)).code == code


def test_options_asterisk_is_not_found(server: RunningServer) -> None:
    with server.connect() as client:
        assert client.request(request("*", method="OPTIONS")).code == 404
        assert client.request(DB).code == 200


def test_connect_is_not_found_and_closes_the_connection(server: RunningServer) -> None:
    with server.connect() as client:
        response = client.request(request("node.example:443", method="CONNECT") + b"\x16\x03\x01 not HTTP")
        assert (response.code, response.header("Connection")) == (404, "close")
        assert client.is_closed()


@pytest.mark.parametrize(
    "headers",
    [
        ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA"),
        (
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ),
    ],
    ids=["h2c", "websocket"],
)
def test_an_upgrade_is_ignored_and_closes_the_connection(server: RunningServer, headers: tuple[str, ...]) -> None:
    for _ in range(2):
        with server.connect() as client:
            response = client.request(request("/svc/node", *headers) + b"\x81\x85 a frame")
            assert (response.code, response.header("Connection")) == (200, "close")
            assert json.loads(response.body)["node_name"] == "validator-7"
            assert client.is_closed()


@pytest.mark.parametrize("method", ["BREW", "get", "X-1!"])
def test_an_unknown_method_is_not_allowed(server: RunningServer, method: str) -> None:
    with server.connect() as client:
        response = client.request(request("/svc/node", method=method))
        assert (error_code(response), response.header("Allow")) == (405, "GET, HEAD")
        assert response.header("Connection") == "close"
        assert client.is_closed()


def test_the_version_is_checked_before_an_unknown_method(server: RunningServer) -> None:
    assert server.request(request("/svc/node?version=v9", method="BREW")).body == VERSION_NOT_FOUND.body


# Each is rejected, with this code, however the bytes are divided into segments.
REJECTED = {
    b"BREW /svc/node HTTP/1.1\r\nHost: n\r\n\r\n": 405,
    b"GET /svc/node HTTP/1.2\r\nHost: n\r\n\r\n": 505,
    b"GET /svc/node HTTP/2.0\r\nHost: n\r\n\r\n": 505,
    b"GET /svc/node\r\n\r\n": 400,
    b"GET /svc/node FTP/1.1\r\nHost: n\r\n\r\n": 400,
    b"hello\r\n\r\n": 400,
    b"GET /svc/node HTTP/1.1\r\nHost: n\r\nX Y: z\r\n\r\n": 400,
    b"GET /svc/node HTTP/1.1\r\nHost: a b\r\nX Y: z\r\n\r\n": 400,
}


@pytest.mark.parametrize("before", [b"", DB, POST], ids=["first", "after a cached request", "after a body"])
@pytest.mark.parametrize(("rejected", "code"), REJECTED.items(), ids=map(str, REJECTED))
def test_a_rejection_does_not_depend_on_segments(
    server: RunningServer, before: bytes, rejected: bytes, code: int
) -> None:
    server.request(DB)  # it is cached from now on
    splits = [*range(1, len(rejected), 3), len(rejected)]
    clients = [server.connect() for _ in splits]
    for split, client in zip(splits, clients, strict=True):
        client.send(before + rejected[:split])
    server.wait_for_reads()
    for split, client in zip(splits, clients, strict=True):
        with suppress(BrokenPipeError, ConnectionResetError):
            client.send(rejected[split:] + DB)
    for client in clients:
        with client:
            if before:
                assert client.read().code == (200 if before == DB else 405)
            assert error_code(client.read()) == code
            assert client.is_closed()


def test_the_end_of_a_line_before_a_request_may_be_split(server: RunningServer) -> None:
    with server.connect() as client:
        client.send(b"\r")
        server.wait_for_reads()
        assert client.request(b"\n" + DB).code == 200


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"A" * 9000 + b" /svc/node HTTP/1.1\r\nHost: n\r\n\r\n", 414),
        (request("/svc/node", "X:" + " " * 33_000 + "y"), 431),
        (
            request(
                "/svc/node", "Transfer-Encoding: chunked", method="POST", body=b"1;" + b"e" * 600_000 + b"\r\na\r\n"
            ),
            413,
        ),
    ],
    ids=["method", "spaces", "chunk extension"],
)
def test_a_size_limit_does_not_depend_on_segments(server: RunningServer, sent: bytes, code: int) -> None:
    with server.connect() as client:
        assert error_code(client.request(sent)) == code
    with server.connect() as client:
        with suppress(ConnectionError):
            for start in range(0, len(sent), 5000):
                client.send(sent[start : start + 5000])
                server.wait_for_reads()
        assert error_code(client.read()) == code


def test_an_error_after_a_head_request_has_a_body(server: RunningServer) -> None:
    with server.connect() as client:
        assert client.request(request("/nothing", method="HEAD"), is_head=True).code == 404
        assert error_code(client.request(b"\xff\r\n\r\n")) == 400


# ---- malformed requests


HOST = b"Host: node.example\r\n"
MALFORMED = {
    "no request line": b"\xff\xfe\r\n\r\n",
    "a word": b"hello\r\n\r\n",
    "no target": b"GET HTTP/1.1\r\n" + HOST + b"\r\n",
    "a relative target": b"GET svc/node HTTP/1.1\r\n" + HOST + b"\r\n",
    "a space in the target": b"GET /svc/no de HTTP/1.1\r\n" + HOST + b"\r\n",
    "no version of HTTP": b"GET /svc/node FTP/1.1\r\n" + HOST + b"\r\n",
    "a header without a colon": b"GET /svc/node HTTP/1.1\r\n" + HOST + b"invalid\r\n\r\n",
    "a space in a header's name": b"GET /svc/node HTTP/1.1\r\n" + HOST + b"X Y: z\r\n\r\n",
    "a header without a name": b"GET /svc/node HTTP/1.1\r\n" + HOST + b": z\r\n\r\n",
    "a folded header": b"GET /svc/node HTTP/1.1\r\n" + HOST + b"X: a\r\n b\r\n\r\n",
    "NUL in the target": b"GET /svc/node\0 HTTP/1.1\r\n" + HOST + b"\r\n",
    "NUL in a header's name": b"GET /svc/node HTTP/1.1\r\n" + HOST + b"X\0: z\r\n\r\n",
    "NUL in a header": b"GET /svc/node HTTP/1.1\r\n" + HOST + b"X: \0\r\n\r\n",
    "a bare CR in a header": b"GET /svc/node HTTP/1.1\r\n" + HOST + b"X: a\rb\r\n\r\n",
    "no Host": b"GET /svc/node HTTP/1.1\r\n\r\n",
    "two Hosts": b"GET /svc/node HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    "an invalid Host": b"GET /svc/node HTTP/1.1\r\nHost: a b/@\r\n\r\n",
    "a Host with a path": b"GET /svc/node HTTP/1.1\r\nHost: node.example/svc\r\n\r\n",
    "a Host with a user": b"GET /svc/node HTTP/1.1\r\nHost: me@node.example\r\n\r\n",
    "a length and chunks": request("/svc/node", "Content-Length: 5", "Transfer-Encoding: chunked", method="POST"),
    "chunks and a length": request("/svc/node", "Transfer-Encoding: chunked", "Content-Length: 5", method="POST"),
    "two lengths": request("/svc/node", "Content-Length: 5", "Content-Length: 6", method="POST"),
    "a list of lengths": request("/svc/node", "Content-Length: 5, 6", method="POST"),
    "a negative length": request("/svc/node", "Content-Length: -1", method="POST"),
    "a length with a sign": request("/svc/node", "Content-Length: +5", method="POST"),
    "a length in hex": request("/svc/node", "Content-Length: 0x5", method="POST"),
    "a length with an underscore": request("/svc/node", "Content-Length: 1_0", method="POST"),
    "an empty length": request("/svc/node", "Content-Length:", method="POST"),
    "a length out of range": request("/svc/node", f"Content-Length: {'9' * 40}", method="POST"),
    "an encoding that does not end in chunks": request("/svc/node", "Transfer-Encoding: gzip", method="POST"),
    "a chunk without a size": request("/svc/node", "Transfer-Encoding: chunked", method="POST", body=b"zz\r\n"),
    "a chunk longer than it says": request(
        "/svc/node", "Transfer-Encoding: chunked", method="POST", body=b"1\r\nabc\r\n0\r\n\r\n"
    ),
    "a TLS handshake": bytes.fromhex("16030100c2010000be0303") + bytes(range(64)),
}


@pytest.mark.parametrize("malformed", list(MALFORMED.values()), ids=list(MALFORMED))
def test_a_malformed_request_is_400_and_closes_the_connection(
    server: RunningServer, malformed: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with server.connect() as client:
        response = client.request(malformed)
        assert (error_code(response), response.header("Connection")) == (400, "close")
        assert client.is_closed()
    assert not caplog.records


@pytest.mark.parametrize(
    "host",
    ["", "node", "node.example:8420", "127.0.0.1:80", "[::1]:8420", "[fe80::1%25eth0]", "under_score", "%C3%BC:"],
)
def test_a_valid_host_header_is_accepted(server: RunningServer, host: str) -> None:
    with server.connect() as client:
        assert client.request(f"GET /svc/node HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()).code == 200


@pytest.mark.parametrize(
    "rejected",
    [
        b"HEAD /svc/node HTTP/1.1\r\n\r\n",
        b"HEAD /svc/node HTTP/1.1\r\n" + HOST + b"X Y: z\r\n\r\n",
        b"HEAD /svc/\x01node HTTP/1.1\r\n" + HOST + b"\r\n",
        request("/svc/node", "Content-Length: 1000000", method="HEAD"),
        request("/svc/node", version="HTTP/2.0", method="HEAD"),
    ],
)
def test_an_error_response_to_head_has_no_body(server: RunningServer, rejected: bytes) -> None:
    with server.connect() as client:
        response = client.request(rejected, is_head=True)
        assert response.code in (400, 413, 505)
        assert response.header("Content-Length") != "0"
        assert client.is_closed()


@pytest.mark.parametrize("length", ["0 ", "00\t ", " 0"])
def test_a_content_length_may_have_spaces_around_it(server: RunningServer, length: str) -> None:
    with server.connect() as client:
        client.send(request("/svc/node", f"Content-Length: {length}", method="POST") + STORAGE)
        assert [client.read().code, client.read().code] == [405, 206]


def test_a_content_length_may_have_leading_zeros(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    with server.connect() as client:
        client.send(request("/svc/node", f"Content-Length: {'0' * 5000}5", method="POST", body=b"hello") + STORAGE)
        assert [client.read().code, client.read().code] == [405, 206]
    assert not caplog.records


def test_a_bad_request_does_not_affect_earlier_responses(server: RunningServer) -> None:
    with server.connect() as client:
        client.send(DB + LIST + b"GET /\0 HTTP/1.1\r\n\r\n" + DB)
        assert [client.read().code, client.read().code, client.read().code] == [200, 200, 400]
        assert client.is_closed()


@pytest.mark.parametrize(
    "sent",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        *[request("/svc/node", version=f"HTTP/{version}") for version in ("1.2", "2.0", "2.1", "3.0", "9.9")],
    ],
)
def test_other_versions_of_http_are_505(server: RunningServer, sent: bytes) -> None:
    with server.connect() as client:
        response = client.request(sent)
        assert (error_code(response), response.header("Connection")) == (505, "close")
        assert client.is_closed()


# ---- cached requests


def cached(server: RunningServer) -> set[bytes]:
    return server.call(lambda: set(server.state.cache._requests))


def test_a_request_is_cached_by_its_bytes(server: RunningServer) -> None:
    with server.connect() as client:
        first = client.request(IDENTITY)
        assert cached(server) == {IDENTITY}
        assert [client.request(IDENTITY).without_date for _ in range(3)] == [first.without_date] * 3


VARIED_REQUESTS = [
    DB,
    INDEXER,
    STORAGE,
    UNKNOWN_PATH,
    IDENTITY,
    LIST,
    POST,
    request("/svc/node", method="OPTIONS"),
    request("/svc/node?version=v9"),
    request("/svc/node/health?partial_status=503"),
    request("/svc/node/health?partial_status=invalid"),
    request("/svc/node/services/d%62/health"),
    request("/svc/node/services/none/health"),
    request("http://node.example/svc/node"),
    request("/svc/node", "Content-Length: 0"),
    request("/svc/node", "Expect: 100-continue"),
    request("/svc/node/health", "Connection: keep-alive", version="HTTP/1.0"),
    b"\r\n" + DB,
    STORAGE + b"\r\n",
]


def responses_to(server: RunningServer, segments: list[bytes]) -> list[RawResponse]:
    with server.connect() as client:
        return [client.request(segment).without_date for segment in segments]


def test_responses_are_the_same_with_and_without_the_cache(
    server: RunningServer, node: Node, loop_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = random.Random(7)
    sent = [generator.choice(VARIED_REQUESTS) for _ in range(300)]
    with_cache = responses_to(server, sent)
    assert len(cached(server)) > 10
    monkeypatch.setattr(ResponseCache, "put", lambda *_: None)
    with running_server(node, loop_name) as uncached:
        assert responses_to(uncached, sent) == with_cache
        assert not cached(uncached)


def test_a_body_that_looks_like_a_cached_request_is_a_body(server: RunningServer) -> None:
    with server.connect() as client:
        client.request(DB)
        assert DB in cached(server)
        client.send(request("/svc/node", f"Content-Length: {2 * len(DB)}", method="POST"))
        for _ in range(2):
            assert client.receives_nothing()
            client.send(DB)
        assert client.read().code == 405
        assert client.request(STORAGE).code == 206


def test_a_chunk_that_looks_like_a_cached_request_is_a_chunk(server: RunningServer) -> None:
    with server.connect() as client:
        client.request(DB)
        client.send(request("/svc/node", "Transfer-Encoding: chunked", body=b"%x\r\n" % len(DB)))
        server.wait_for_reads()
        client.send(DB)
        assert client.receives_nothing()
        assert json.loads(client.request(b"\r\n0\r\n\r\n").body)["node_name"] == "validator-7"


def test_a_head_whose_second_half_looks_like_a_cached_request_is_one_request(server: RunningServer) -> None:
    plain = b"GET /svc/node/health HTTP/1.1\r\nX: y\r\nHost: node.example\r\n\r\n"
    with server.connect() as client:
        assert client.request(plain).code == 206
        assert plain in cached(server)
        client.send(b"GET /svc/node/services/indexer/health HTTP/1.1\r\nX-Quoted: ")
        server.wait_for_reads()
        assert client.request(plain).code == 503
        assert client.request(STORAGE).code == 206


def test_part_of_a_request_is_not_cached(server: RunningServer) -> None:
    for split in range(1, len(DB)):
        with server.connect() as client:
            client.send(DB[:split])
            if split % 16 == 0:
                server.wait_for_reads()
            assert client.request(DB[split:]).code == 200
    assert cached(server) <= {DB}
    with server.connect() as client:
        assert client.request(DB[-20:]).code == 400


@pytest.mark.parametrize(
    ("segment", "codes"),
    [
        (DB + STORAGE, [200, 206]),
        (POST, [405]),
        (request("/svc/node/health", "Connection: keep-alive", version="HTTP/1.0"), [206]),
        (request("/svc/node/health", f"X-Padding: {'p' * 2048}"), [206]),
    ],
    ids=["two requests", "a body", "HTTP/1.0", "a long one"],
)
def test_only_short_single_requests_without_body_are_cached(
    server: RunningServer, segment: bytes, codes: list[int]
) -> None:
    with server.connect() as client:
        for _ in range(2):
            client.send(segment)
            assert [client.read().code for _ in codes] == codes
    assert segment not in cached(server)


def test_a_request_with_connection_close_is_not_cached(server: RunningServer) -> None:
    sent = request("/svc/node/health", "Connection: close")
    server.request(sent)
    assert sent not in cached(server)


def test_the_cache_is_bounded(server: RunningServer) -> None:
    with server.connect() as client:
        for number in range(2500):
            assert client.request(request(f"/svc/node/services/{number}/health")).code == 404
        assert len(cached(server)) <= 1024
        assert server.call(lambda: len(server.state.cache._resolved)) <= 1024
        assert server.call(lambda: len(server.state.cache._by_raw)) <= 1024
        assert client.request(DB).code == 200


def test_a_cached_request_sees_every_change_of_the_node_at_once(server: RunningServer, node: Node) -> None:
    health, services = request("/svc/node/health"), LIST
    with server.connect() as client:

        def current() -> tuple[int, list[str]]:
            listed = json.loads(client.request(services).body)["services"]
            return client.request(health).code, [one["status"] for one in listed]

        assert current() == (206, ["Up", "Down", "Initializing"])
        for _ in range(20):
            node.report("indexer", Verdict.ready())
            node.report("storage", Verdict.ready())
            assert current() == (200, ["Up", "Up", "Up"])
            node.report("storage", Verdict.failed("broken"))
            assert current() == (206, ["Up", "Up", "Down"])
        node.set_issue("disk full")
        assert current()[0] == 503
        node.clear_issue()
        node.deregister("storage")
        assert current() == (200, ["Up", "Up"])
        node.set_identity(name="other", version="v2")
        assert json.loads(client.request(IDENTITY).body)["node_name"] == "other"
        node.set_identity(name="yet another", version="v2")
        assert json.loads(client.request(IDENTITY).body)["node_name"] == "yet another"
        node.drain()
        assert current()[0] == 503


def test_a_cached_request_returns_503_when_the_ttl_is_over(loop_name: str) -> None:
    """The unit tests of the cache check the exact time with a fake clock."""
    node = Node("validator-7", version="v1.4.2")
    worker = node.register("worker", ttl="200ms")
    sent = request("/svc/node/services/worker/health")
    with running_server(node, loop_name) as server, server.connect() as client:
        for _ in range(2):
            worker.up()
            assert becomes_true(lambda: client.request(sent).code == 503)


def test_the_date_of_a_cached_response_changes_every_second(server: RunningServer) -> None:
    with server.connect() as client:
        first = parsedate_to_datetime(date_of(client.request(DB)))
        assert DB in cached(server)
        assert becomes_true(lambda: parsedate_to_datetime(date_of(client.request(DB))) > first)


def test_a_response_that_expires_while_it_is_encoded_is_not_cached() -> None:
    """Between making and encoding the response, the ttl ends and the second changes."""
    now_s = 100.0
    node = Node("validator-7", version="v1.4.2", clock=lambda: now_s)
    node.register("worker", ttl="5s").up()

    class SlowCache(ResponseCache):
        def current_response(self, request: ResolvedRequest) -> Response:
            nonlocal now_s
            response = super().current_response(request)
            now_s = 105.5
            return response

    cache = SlowCache(node, ("/svc",), clock=lambda: now_s, wall_clock=lambda: now_s)
    now_s = 104.9
    assert cache.get(b"bytes", now_s) is None
    cache.put(b"bytes", cache.resolve(Request("GET", b"/svc/node/health")))
    first, second = cache.get(b"bytes", now_s), cache.get(b"bytes", now_s)
    assert first is not None
    assert second is not None
    assert (first[:13], second[:13]) == (b"HTTP/1.1 200 ", b"HTTP/1.1 503 ")


# ---- headers


@pytest.mark.parametrize(
    ("sent", "code", "content_type"),
    [
        (IDENTITY, 200, "application/json"),
        (LIST, 200, "application/json"),
        (DB, 200, None),
        (STORAGE, 206, None),
        (INDEXER, 503, None),
        (request("/svc/node/health?partial_status=299"), 299, None),
        (request("/svc/node/health?partial_status=x"), 400, "application/json"),
        (request("/svc/node?version=v9"), 404, "application/json"),
        (UNKNOWN_PATH, 404, "application/json"),
        (POST, 405, "application/json"),
        (request("/svc/node", method="BREW"), 405, "application/json"),
        (b"invalid\r\n\r\n", 400, "application/json"),
        (request("/" + "x" * 9000), 414, "application/json"),
        (request("/livez"), 200, None),
        (request("/readyz?strict"), 503, None),
    ],
)
def test_every_response_has_the_common_headers(
    server: RunningServer, sent: bytes, code: int, content_type: str | None
) -> None:
    response = server.request(sent)
    assert response.code == code
    assert response.version == "HTTP/1.1"
    assert response.header("Content-Type") == content_type
    assert response.header("Content-Length") == str(len(response.body))
    assert (len(response.body) > 0) == (content_type is not None)
    assert response.header("Cache-Control") == "no-store"
    assert response.header("X-Content-Type-Options") == "nosniff"
    assert re.fullmatch(
        r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT", date_of(response)
    )
    assert abs(parsedate_to_datetime(date_of(response)).timestamp() - time.time()) < WAIT_TIMEOUT_S
    assert response.get_all("Server") == []


def date_of(response: RawResponse) -> str:
    date = response.header("Date")
    assert date is not None
    return date


def test_a_204_has_no_content_length(server: RunningServer) -> None:
    with server.connect() as client:
        for _ in range(2):
            response = client.request(request("/svc/node/health?partial_status=204"))
            assert (response.code, response.header("Content-Length")) == (204, None)
            assert response.header("Cache-Control") == "no-store"
            assert date_of(response)


def test_prefixes_can_be_replaced_while_serving(node: Node, loop_name: str) -> None:
    with running_server(node, loop_name, prefixes=("/svc", "/eigen")) as server, server.connect() as client:
        sent = [request("/svc/node/health"), request("/eigen/node/health"), request("/other/node/health")]
        assert [client.request(one).code for one in sent * 2] == [206, 206, 404] * 2
        server.call(lambda: server.server.set_routing(("/other",), None))
        assert [client.request(one).code for one in sent * 2] == [404, 404, 206] * 2


def test_the_default_limits() -> None:
    limits = ServerLimits()
    assert (limits.request_line_bytes, limits.head_bytes, limits.body_bytes) == (8192, 32768, 65536)
    assert limits.headers == 100
