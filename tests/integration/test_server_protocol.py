"""What the server server makes of the bytes of HTTP/1: over real sockets, under both event loops."""

from __future__ import annotations

import json
import random
import re
import socket
import time
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import pytest

from svcnode import Node, Verdict
from svcnode.server.connection import Connection
from svcnode.server.response_cache import ResponseCache
from svcnode.server.server import ServerLimits
from tests.support.http_server import (
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


def message_of(answer: RawResponse) -> str:
    assert answer.header("Content-Type") == "application/json"
    body = json.loads(answer.body)
    assert list(body) == ["message"]
    return str(body["message"])


# ---- one connection, many requests


def test_a_connection_is_kept_for_the_next_request(server: RunningServer) -> None:
    with server.connect() as client:
        answers = [client.request(one) for one in (DB, INDEXER, STORAGE, UNKNOWN_PATH, POST, DB)]
    assert [answer.code for answer in answers] == [200, 503, 206, 404, 405, 200]
    assert not any(answer.header("Connection") for answer in answers)


def test_requests_in_one_segment_are_answered_in_order(server: RunningServer) -> None:
    asked = [DB, INDEXER, STORAGE, UNKNOWN_PATH, POST, CHUNKED] * 50
    with server.connect() as client:
        client.send(b"".join(asked))
        codes = [client.read().code for _ in asked]
    assert codes == [200, 503, 206, 404, 405, 405] * 50


def test_however_many_requests_came_before_it_half_a_request_is_waited_for(server: RunningServer) -> None:
    with server.connect() as client:
        client.request(DB)
        server.loop.call_soon_threadsafe(time.sleep, 0.05)  # so that all of it is there when the server reads on
        client.send(DB * 700 + STORAGE[:20])
        assert {client.read().code for _ in range(700)} == {200}
        assert client.request(STORAGE[20:]).code == 206


def test_it_does_not_matter_where_the_bytes_are_split(server: RunningServer) -> None:
    asked = DB + POST + INDEXER + CHUNKED + STORAGE + DB
    clients = [server.connect() for _ in range(1, len(asked))]
    for split, client in enumerate(clients, start=1):
        client.send(asked[:split])
    server.wait_for_reads()
    for split, client in enumerate(clients, start=1):
        client.send(asked[split:])
    for client in clients:
        with client:
            assert [client.read().code for _ in range(6)] == [200, 405, 503, 405, 206, 200]


def test_it_does_not_matter_how_small_the_pieces_are(server: RunningServer) -> None:
    with server.connect() as client:
        for byte in DB + CHUNKED + INDEXER:
            client.send(bytes([byte]))
        assert [client.read().code for _ in range(3)] == [200, 405, 503]


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


def test_a_client_that_does_not_read_is_not_read_from_and_loses_nothing(loop_name: str) -> None:
    node = Node("validator-7", version="v1.4.2")
    for number in range(600):
        node.register(f"service-{number}", description="d" * 100)
    listener = loopback_socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
    asked = request("/svc/node/services", f"X-Padding: {'p' * 4000}")

    with running_server(node, loop_name, listener=listener) as server:
        expected = server.request(LIST).body
        with server.connect(receive_buffer=16 * 1024, send_buffer=16 * 1024) as client:
            client.sock.settimeout(0.2)
            count = sendable_count(client, asked)
            assert count < 200, "the server goes on reading although nobody reads its answers"

            (connection,) = server.call(server.server.sending.connections)
            queued_bytes = server.call(connection._transport.get_write_buffer_size)
            assert queued_bytes < 2 * len(expected) + 64 * 1024
            assert server.call(lambda: len(connection._pending)) <= count

            client.sock.settimeout(5.0)
            for _ in range(count):
                assert client.read().body == expected
    assert count > 4, "too few answers to have filled anything"


def test_a_client_that_asks_very_much_at_once_keeps_nobody_waiting(server: RunningServer) -> None:
    """Between two turns of one client, every other one has its own."""
    turns: list[str] = []
    parse = Connection._parse

    def noted(connection: Connection, data: bytes) -> None:
        turns.append("greedy" if b"greedy" in data else "modest")
        parse(connection, data)

    with server.connect() as greedy, server.connect() as modest, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connection, "_parse", noted)
        patch.setattr(server.server.cache, "recall", lambda *_: None)
        greedy.send(request("/svc/node/health", "X-Who: greedy") * 3000)
        modest.send(DB)
        assert modest.read().code == 200
        assert [greedy.read().code for _ in range(3000)] == [206] * 3000
    assert len(turns) > 40, "a turn was longer than it may be"
    assert turns.index("modest") < len(turns) - 20


def test_a_large_answer_that_is_remembered_arrives_whole_at_any_pace(loop_name: str) -> None:
    node = Node("validator-7", version="v1.4.2")
    for number in range(600):
        node.register(f"service-{number}", description="d" * 100)
    listener = loopback_socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
    with (
        running_server(node, loop_name, listener=listener) as server,
        server.connect(receive_buffer=16 * 1024) as slow,
        server.connect() as quick,
    ):
        expected = server.request(LIST).body
        for _ in range(3):
            slow.send(LIST)
            server.wait_for_reads()  # the answer fills all that there is to fill, and waits
            assert quick.request(LIST).body == expected
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
        asked_for_the_head = client.request(request(target, method="HEAD"), is_head=True)
        again = client.request(request(target))  # a body sent along would be taken for this answer
    assert (asked_for_the_head.code, asked_for_the_head.without_date.headers) == (got.code, got.without_date.headers)
    assert again.without_date == got.without_date


def test_http_1_0_closes_after_the_answer(server: RunningServer) -> None:
    with server.connect() as client:
        answer = client.request(b"GET /svc/node/health HTTP/1.0\r\n\r\n")
        assert (answer.code, answer.header("Connection")) == (206, "close")
        assert client.is_closed()


def test_http_1_0_is_kept_and_told_so_when_it_asks(server: RunningServer) -> None:
    asked = b"GET /svc/node/health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    with server.connect() as client:
        for _ in range(3):
            answer = client.request(asked)
            assert (answer.code, answer.header("Connection")) == (206, "keep-alive")


def test_connection_close_is_said_and_done(server: RunningServer) -> None:
    for _ in range(3):
        with server.connect() as client:
            answer = client.request(request("/svc/node", "Connection: close"))
            assert (answer.code, answer.header("Connection")) == (200, "close")
            assert client.is_closed()


def test_what_follows_connection_close_is_not_answered(server: RunningServer) -> None:
    with server.connect() as client:
        client.send(DB + request("/svc/node/services/indexer/health", "Connection: close") + STORAGE + b"\0garbage")
        assert [client.read().code, client.read().code] == [200, 503]
        assert client.is_closed()


def test_a_client_that_closes_its_half_gets_all_its_answers(server: RunningServer) -> None:
    with server.connect() as client:
        client.send(DB + INDEXER + LIST)
        client.sock.shutdown(socket.SHUT_WR)
        assert [client.read().code, client.read().code, client.read().code] == [200, 503, 200]
        assert client.is_closed()


def test_a_client_that_closes_its_half_in_the_middle_of_a_request_gets_nothing(server: RunningServer) -> None:
    with server.connect() as client:
        client.send(DB[:-1])
        client.sock.shutdown(socket.SHUT_WR)
        assert client.is_closed()
    assert becomes_true(lambda: server.count() == 0)


# ---- bodies


@pytest.mark.parametrize(
    "asked",
    [
        POST,
        CHUNKED,
        request("/svc/node", method="POST", body=b"x" * 65_536),
        request("/svc/node", "Transfer-Encoding: chunked", method="POST", body=b"1\r\nx\r\n" * 3000 + b"0\r\n\r\n"),
    ],
    ids=["content-length", "chunked", "64 KiB", "many small chunks"],
)
def test_a_body_is_read_away_and_the_next_request_is_answered(server: RunningServer, asked: bytes) -> None:
    with server.connect() as client:
        client.send(asked + STORAGE)
        assert [client.read().code, client.read().code] == [405, 206]


def test_a_get_may_have_a_body_that_changes_nothing(server: RunningServer) -> None:
    with server.connect() as client:
        client.send(request("/svc/node/health", body=b"GET /svc/node") + INDEXER)
        assert [client.read().code, client.read().code] == [206, 503]


def test_a_trailer_says_nothing_to_us(server: RunningServer) -> None:
    trailers = b"0\r\nHost: other\r\nExpect: 100-continue\r\nX: y\r\n"
    with server.connect() as client:
        client.send(request("/svc/node", "Transfer-Encoding: chunked", body=trailers))
        assert client.receives_nothing()
        client.send(b"\r\n" + STORAGE)
        assert [client.read().code, client.read().code] == [200, 206]


def test_a_client_that_asks_first_is_invited_to_send_its_body(server: RunningServer) -> None:
    head = request("/svc/node", "Expect: 100-continue", "Content-Length: 5", method="POST")
    with server.connect() as client:
        client.send(head[:-1])
        assert client.receives_nothing()
        assert client.request(head[-1:]).code == 100
        client.send(b"he")
        assert client.receives_nothing(), "one invitation is enough"
        assert client.request(b"llo").code == 405
        assert client.request(STORAGE).code == 206


def test_a_body_that_came_along_needs_no_invitation(server: RunningServer) -> None:
    with server.connect() as client:
        assert client.request(request("/svc/node", "Expect: 100-continue", method="POST", body=b"hello")).code == 405


def test_http_1_0_knows_no_invitation(server: RunningServer) -> None:
    with server.connect() as client:
        client.send(
            request("/svc/node", "Expect: 100-continue", "Content-Length: 5", method="POST", version="HTTP/1.0")
        )
        assert client.receives_nothing()
        assert client.request(b"hello").code == 405


# ---- targets, and protocols that are not spoken here


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
def test_absolute_targets_are_understood(server: RunningServer, target: str, code: int) -> None:
    assert server.request(request(target)).code == code


def test_options_of_the_server_itself_is_no_success(server: RunningServer) -> None:
    with server.connect() as client:
        assert client.request(request("*", method="OPTIONS")).code == 404
        assert client.request(DB).code == 200


def test_connect_is_refused_and_the_line_closed(server: RunningServer) -> None:
    with server.connect() as client:
        answer = client.request(request("node.example:443", method="CONNECT") + b"\x16\x03\x01 not HTTP any more")
        assert (answer.code, answer.header("Connection")) == (404, "close")
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
def test_an_upgrade_is_not_taken_up(server: RunningServer, headers: tuple[str, ...]) -> None:
    for _ in range(2):
        with server.connect() as client:
            answer = client.request(request("/svc/node", *headers) + b"\x81\x85 a frame")
            assert (answer.code, answer.header("Connection")) == (200, "close")
            assert json.loads(answer.body)["node_name"] == "validator-7"
            assert client.is_closed()


@pytest.mark.parametrize("method", ["BREW", "get", "X-1!"])
def test_a_method_nobody_has_heard_of_is_not_allowed(server: RunningServer, method: str) -> None:
    with server.connect() as client:
        answer = client.request(request("/svc/node", method=method))
        assert (answer.code, answer.header("Allow")) == (405, "GET, HEAD")
        assert answer.header("Connection") == "close"
        assert message_of(answer)
        assert client.is_closed()


def test_the_version_is_judged_before_a_method_nobody_has_heard_of(server: RunningServer) -> None:
    assert message_of(server.request(request("/svc/node?version=v9", method="BREW"))) == "API version not found"


def test_a_strange_method_behind_another_request_is_not_answered_with_that_ones_answer(server: RunningServer) -> None:
    with server.connect() as client:
        client.send(DB + request("/svc/node", method="BREW"))
        assert client.read().code == 200
        second = client.read()
        assert second.code == 400
        assert message_of(second)
        assert client.is_closed()


# ---- what is not HTTP


HOST = b"Host: node.example\r\n"
MALFORMED = {
    "no request line": b"\xff\xfe\r\n\r\n",
    "a word": b"hello\r\n\r\n",
    "no target": b"GET HTTP/1.1\r\n" + HOST + b"\r\n",
    "a relative target": b"GET svc/node HTTP/1.1\r\n" + HOST + b"\r\n",
    "a space in the target": b"GET /svc/no de HTTP/1.1\r\n" + HOST + b"\r\n",
    "no version of HTTP": b"GET /svc/node FTP/1.1\r\n" + HOST + b"\r\n",
    "a header without a colon": b"GET /svc/node HTTP/1.1\r\n" + HOST + b"nonsense\r\n\r\n",
    "a space in a header's name": b"GET /svc/node HTTP/1.1\r\n" + HOST + b"X Y: z\r\n\r\n",
    "a header without a name": b"GET /svc/node HTTP/1.1\r\n" + HOST + b": z\r\n\r\n",
    "a folded header": b"GET /svc/node HTTP/1.1\r\n" + HOST + b"X: a\r\n b\r\n\r\n",
    "NUL in the target": b"GET /svc/node\0 HTTP/1.1\r\n" + HOST + b"\r\n",
    "NUL in a header's name": b"GET /svc/node HTTP/1.1\r\n" + HOST + b"X\0: z\r\n\r\n",
    "NUL in a header": b"GET /svc/node HTTP/1.1\r\n" + HOST + b"X: \0\r\n\r\n",
    "a bare CR in a header": b"GET /svc/node HTTP/1.1\r\n" + HOST + b"X: a\rb\r\n\r\n",
    "no Host": b"GET /svc/node HTTP/1.1\r\n\r\n",
    "two Hosts": b"GET /svc/node HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
    "a Host that is none": b"GET /svc/node HTTP/1.1\r\nHost: a b/@\r\n\r\n",
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
    "no length in the length": request("/svc/node", "Content-Length:", method="POST"),
    "a length that no number holds": request("/svc/node", f"Content-Length: {'9' * 40}", method="POST"),
    "an encoding that does not end in chunks": request("/svc/node", "Transfer-Encoding: gzip", method="POST"),
    "a chunk without a size": request("/svc/node", "Transfer-Encoding: chunked", method="POST", body=b"zz\r\n"),
    "a chunk longer than it says": request(
        "/svc/node", "Transfer-Encoding: chunked", method="POST", body=b"1\r\nabc\r\n0\r\n\r\n"
    ),
    "a TLS handshake": bytes.fromhex("16030100c2010000be0303") + bytes(range(64)),
}


@pytest.mark.parametrize("malformed", list(MALFORMED.values()), ids=list(MALFORMED))
def test_what_is_not_http_is_a_bad_request_and_ends_the_connection(
    server: RunningServer, malformed: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with server.connect() as client:
        answer = client.request(malformed)
        assert (answer.code, answer.header("Connection")) == (400, "close")
        assert message_of(answer).startswith("Bad request")
        assert client.is_closed()
    assert not caplog.records, "a stranger's nonsense is no fault of ours"


@pytest.mark.parametrize(
    "host",
    ["", "node", "node.example:8420", "127.0.0.1:80", "[::1]:8420", "[fe80::1%25eth0]", "under_score", "%C3%BC:"],
)
def test_whatever_can_name_a_host_may_stand_in_the_header_for_it(server: RunningServer, host: str) -> None:
    with server.connect() as client:
        assert client.request(f"GET /svc/node HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()).code == 200


@pytest.mark.parametrize(
    "refused",
    [
        b"HEAD /svc/node HTTP/1.1\r\n\r\n",
        b"HEAD /svc/node HTTP/1.1\r\n" + HOST + b"X Y: z\r\n\r\n",
        request("/svc/node", "Content-Length: 1000000", method="HEAD"),
        request("/svc/node", version="HTTP/2.0", method="HEAD"),
    ],
)
def test_who_asks_for_a_head_alone_is_refused_with_a_head_alone(server: RunningServer, refused: bytes) -> None:
    with server.connect() as client:
        answer = client.request(refused, is_head=True)
        assert answer.code in (400, 413, 505)
        assert answer.header("Content-Length") != "0"
        assert client.is_closed()


def test_a_length_with_many_zeros_is_a_length(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    with server.connect() as client:
        client.send(request("/svc/node", f"Content-Length: {'0' * 5000}5", method="POST", body=b"hello") + STORAGE)
        assert [client.read().code, client.read().code] == [405, 206]
    assert not caplog.records


def test_a_bad_request_behind_good_ones_does_not_spoil_their_answers(server: RunningServer) -> None:
    with server.connect() as client:
        client.send(DB + LIST + b"GET /\0 HTTP/1.1\r\n\r\n" + DB)
        assert [client.read().code, client.read().code, client.read().code] == [200, 200, 400]
        assert client.is_closed()


@pytest.mark.parametrize(
    "asked",
    [
        b"GET /svc/node\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        *[request("/svc/node", version=f"HTTP/{version}") for version in ("1.2", "2.0", "2.1", "3.0", "9.9")],
    ],
)
def test_other_versions_of_http_are_named_as_such(server: RunningServer, asked: bytes) -> None:
    with server.connect() as client:
        answer = client.request(asked)
        assert (answer.code, answer.header("Connection")) == (505, "close")
        assert message_of(answer).startswith("HTTP version not supported")
        assert client.is_closed()


# ---- remembered requests


def cached(server: RunningServer) -> set[bytes]:
    return server.call(lambda: set(server.server.cache._requests))


def test_a_request_is_remembered_by_its_bytes(server: RunningServer) -> None:
    with server.connect() as client:
        first = client.request(IDENTITY)
        assert cached(server) == {IDENTITY}
        assert [client.request(IDENTITY).without_date for _ in range(3)] == [first.without_date] * 3


ALL_SORTS = [
    DB,
    INDEXER,
    STORAGE,
    UNKNOWN_PATH,
    IDENTITY,
    LIST,
    POST,
    CHUNKED,
    request("/svc/node", method="OPTIONS"),
    request("/svc/node?version=v9"),
    request("/svc/node/health?partial_status=503"),
    request("/svc/node/health?partial_status=nonsense"),
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


def test_remembered_requests_are_answered_as_a_fresh_parser_would(
    server: RunningServer, node: Node, loop_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(7)
    asked = [chance.choice(ALL_SORTS) for _ in range(300)]
    with_memory = responses_to(server, asked)
    assert len(cached(server)) > 10
    monkeypatch.setattr(ResponseCache, "remember", lambda *_: None)
    with running_server(node, loop_name) as without_memory:
        assert responses_to(without_memory, asked) == with_memory
        assert not cached(without_memory)


def test_a_body_that_looks_like_a_cached_request_is_a_body(server: RunningServer) -> None:
    with server.connect() as client:
        client.request(DB)
        assert DB in cached(server)
        client.send(request("/svc/node", f"Content-Length: {2 * len(DB)}", method="POST"))
        for _ in range(2):
            assert client.receives_nothing()
            client.send(DB)
        assert client.read().code == 405
        assert client.request(STORAGE).code == 206, "a body was taken for a request"


def test_a_chunk_that_looks_like_a_cached_request_is_a_chunk(server: RunningServer) -> None:
    with server.connect() as client:
        client.request(DB)
        client.send(request("/svc/node", "Transfer-Encoding: chunked", body=b"%x\r\n" % len(DB)))
        server.wait_for_reads()
        client.send(DB)
        assert client.receives_nothing()
        assert json.loads(client.request(b"\r\n0\r\n\r\n").body)["node_name"] == "validator-7"
        assert client.request(STORAGE).code == 206


def test_a_head_whose_second_half_looks_like_a_cached_request_is_one_request(server: RunningServer) -> None:
    plain = b"GET /svc/node/health HTTP/1.1\r\nX: y\r\nHost: node.example\r\n\r\n"
    with server.connect() as client:
        assert client.request(plain).code == 206
        assert plain in cached(server)
        client.send(b"GET /svc/node/services/indexer/health HTTP/1.1\r\nX-Quoted: ")
        server.wait_for_reads()
        assert client.request(plain).code == 503
        assert client.request(STORAGE).code == 206


def test_half_a_request_is_never_remembered(server: RunningServer) -> None:
    """The second halves of these would be requests to a server that had remembered them alone."""
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
        (CHUNKED, [405]),
        (request("/svc/node/health", "Connection: keep-alive", version="HTTP/1.0"), [206]),
        (request("/svc/node/health", f"X-Padding: {'p' * 2048}"), [206]),
    ],
    ids=["two requests", "a body", "a chunked body", "HTTP/1.0", "a long one"],
)
def test_only_short_single_bodiless_requests_are_remembered(
    server: RunningServer, segment: bytes, codes: list[int]
) -> None:
    with server.connect() as client:
        for _ in range(2):
            client.send(segment)
            assert [client.read().code for _ in codes] == codes
    assert segment not in cached(server)


def test_a_request_that_asks_to_close_is_not_remembered(server: RunningServer) -> None:
    asked = request("/svc/node/health", "Connection: close")
    server.request(asked)
    assert asked not in cached(server)


def test_what_is_remembered_is_bounded(server: RunningServer) -> None:
    with server.connect() as client:
        for number in range(2500):
            assert client.request(request(f"/svc/node/services/{number}/health")).code == 404
        assert len(cached(server)) <= 1024
        assert server.call(lambda: len(server.server.cache._resolved)) <= 1024
        assert server.call(lambda: len(server.server.cache._by_raw)) <= 1024
        assert client.request(DB).code == 200


def test_a_cached_request_sees_every_change_of_the_node_at_once(server: RunningServer, node: Node) -> None:
    health, services = request("/svc/node/health"), LIST
    with server.connect() as client:

        def seen() -> tuple[int, list[str]]:
            listed = json.loads(client.request(services).body)["services"]
            return client.request(health).code, [one["status"] for one in listed]

        assert seen() == (206, ["Up", "Down", "Initializing"])
        for _ in range(20):
            node.report("indexer", Verdict.ready())
            node.report("storage", Verdict.ready())
            assert seen() == (200, ["Up", "Up", "Up"])
            node.report("storage", Verdict.failed("broken"))
            assert seen() == (206, ["Up", "Up", "Down"])
        node.set_issue("disk full")
        assert seen()[0] == 503
        node.clear_issue()
        node.deregister("storage")
        assert seen() == (200, ["Up", "Up"])
        node.set_identity(name="other", version="v2")
        assert json.loads(client.request(IDENTITY).body)["node_name"] == "other"
        node.set_identity(name="yet another", version="v2")
        assert json.loads(client.request(IDENTITY).body)["node_name"] == "yet another"
        node.drain()
        assert seen()[0] == 503


def test_a_cached_request_returns_503_as_soon_as_the_ttl_expires(loop_name: str) -> None:
    node = Node("validator-7", version="v1.4.2")
    heart = node.register("heart", ttl="200ms")
    asked = request("/svc/node/services/heart/health")
    with running_server(node, loop_name) as server, server.connect() as client:
        heart.up()
        beat_at_s = time.monotonic()
        codes: dict[bool, set[int]] = {False: set(), True: set()}
        while (now_s := time.monotonic()) < beat_at_s + 0.3:
            code = client.request(asked).code
            if time.monotonic() < beat_at_s + 0.19:
                codes[False].add(code)
            elif now_s > beat_at_s + 0.2:
                codes[True].add(code)
        heart.up()
        assert client.request(asked).code == 200
    assert codes == {False: {200}, True: {503}}


def test_the_date_moves_on_with_the_second(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    second_turns_at_s = time.time() + 0.3
    to_full_seconds_s = 1.0 - second_turns_at_s % 1.0
    monkeypatch.setattr(server.server.cache, "_wall_clock", lambda: time.time() + to_full_seconds_s)
    with server.connect() as client:
        first = parsedate_to_datetime(date_of(client.request(DB)))
        assert parsedate_to_datetime(date_of(client.request(DB))) == first
        assert DB in cached(server)
        time.sleep(max(0.0, second_turns_at_s + 0.01 - time.time()))
        assert (parsedate_to_datetime(date_of(client.request(DB))) - first).total_seconds() == 1


def test_an_answer_made_as_time_runs_out_is_not_kept_beyond_it() -> None:
    """Silence begins to count between the making of an answer and its encoding, where the second turns, too."""
    now_s = 100.0
    node = Node("validator-7", version="v1.4.2", clock=lambda: now_s)
    node.register("heart", ttl="5s").up()

    class SlowTable(ResponseCache):
        def answer(self, target: ResolvedRequest) -> Response:
            nonlocal now_s
            answer = super().answer(target)
            now_s = 105.5
            return answer

    table = SlowTable(node, ("/svc",), clock=lambda: now_s, wall_clock=lambda: now_s)
    now_s = 104.9
    assert table.get(b"bytes", now_s) is None
    table.put(b"bytes", table.resolve("GET", b"/svc/node/health", b""))
    made_before, made_after = table.get(b"bytes", now_s), table.get(b"bytes", now_s)
    assert made_before is not None
    assert made_after is not None
    assert (made_before[:13], made_after[:13]) == (b"HTTP/1.1 200 ", b"HTTP/1.1 503 ")


# ---- headers


@pytest.mark.parametrize(
    ("asked", "code", "content_type"),
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
        (b"nonsense\r\n\r\n", 400, "application/json"),
        (request("/" + "x" * 9000), 414, "application/json"),
        (request("/livez"), 200, None),
        (request("/readyz?strict"), 503, None),
    ],
)
def test_headers_that_every_answer_has(
    server: RunningServer, asked: bytes, code: int, content_type: str | None
) -> None:
    answer = server.request(asked)
    assert answer.code == code
    assert answer.version == "HTTP/1.1"
    assert answer.header("Content-Type") == content_type
    assert answer.header("Content-Length") == str(len(answer.body))
    assert (len(answer.body) > 0) == (content_type is not None)
    assert answer.header("Cache-Control") == "no-store"
    assert answer.header("X-Content-Type-Options") == "nosniff"
    assert re.fullmatch(r"(Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT", date_of(answer))
    assert abs(parsedate_to_datetime(date_of(answer)).timestamp() - time.time()) < 2
    assert answer.get_all("Server") == []


def date_of(answer: RawResponse) -> str:
    date = answer.header("Date")
    assert date is not None
    return date


def test_an_answer_without_content_does_not_speak_of_a_length(server: RunningServer) -> None:
    with server.connect() as client:
        for _ in range(2):
            answer = client.request(request("/svc/node/health?partial_status=204"))
            assert (answer.code, answer.header("Content-Length")) == (204, None)
            assert answer.header("Cache-Control") == "no-store"
            assert date_of(answer)


def test_two_prefixes_are_served_and_can_be_exchanged(node: Node, loop_name: str) -> None:
    with running_server(node, loop_name, prefixes=("/svc", "/eigen")) as server, server.connect() as client:
        asked = [request("/svc/node/health"), request("/eigen/node/health"), request("/other/node/health")]
        assert [client.request(one).code for one in asked * 2] == [206, 206, 404] * 2
        server.call(lambda: server.server.set_prefixes(("/other",)))
        assert [client.request(one).code for one in asked * 2] == [404, 404, 206] * 2


def test_limits_have_sensible_defaults() -> None:
    limits = ServerLimits()
    assert (limits.request_line_bytes, limits.head_bytes, limits.body_bytes) == (8192, 32768, 65536)
    assert limits.headers == 100
