"""HTTP/1.1 byte by byte, over real sockets, under both event loops."""

from __future__ import annotations

import json
import random
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import pytest

from svcnode import Node, Verdict
from svcnode.agent.embed.node import internals_of
from svcnode.api.spec import VERSION_NOT_FOUND, Request
from svcnode.server.connection import Connection
from svcnode.server.response_cache import ResponseCache
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

HOST = b"Host: node.example\r\n"
DB = request("/svc/node/services/db/health")  # 200
INDEXER = request("/svc/node/services/indexer/health")  # 503
STORAGE = request("/svc/node/services/storage/health")  # 206
UNKNOWN_PATH = request("/svc/nowhere")  # 404
IDENTITY = request("/svc/node")
LIST = request("/svc/node/services")
POST = request("/svc/node", method="POST", body=b"hello")  # 405
CHUNKED_BODY = b"5;x=y\r\nhello\r\n1\r\n!\r\n0\r\nHost: other\r\nExpect: 100-continue\r\n\r\n"
UPGRADE = request("/svc/node", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")


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
    assert response.header("Cache-Control") == "no-store"
    assert response.header("X-Content-Type-Options") == "nosniff"
    assert response.header("Date")
    body = json.loads(response.body)
    assert list(body) == ["message"]
    assert body["message"]
    return response.code


# ---- what is sent, and what is answered, however the bytes are divided into segments


class Case(NamedTuple):
    sent: bytes
    codes: list[int]
    connection: str | None = None  # the header of the last response


def get(*headers: bytes, line: bytes = b"GET /svc/node HTTP/1.1") -> bytes:
    return b"\r\n".join((line, *headers, b"", b""))


def chunked(body: bytes, version: str = "HTTP/1.1") -> bytes:
    return request("/svc/node", "Transfer-Encoding: chunked", method="POST", version=version, body=body)


def rejected(sent: bytes, code: int = 400) -> Case:
    return Case(sent + STORAGE, [code], "close")


def post(*headers: str) -> bytes:
    return request("/svc/node", *headers, method="POST")


CASES = {
    "pipelined": Case((DB + INDEXER + STORAGE + UNKNOWN_PATH + POST) * 3, [200, 503, 206, 404, 405] * 3),
    "empty lines": Case(b"\r\n\n\r\n" + DB + b"\r\n" + STORAGE, [200, 206]),
    "HTTP/1.0": Case(b"GET /svc/node/health HTTP/1.0\r\n\r\n" + DB, [206], "close"),
    "keep-alive": Case(request("/svc/node", "Connection: keep-alive", version="HTTP/1.0") * 2, [200] * 2, "keep-alive"),
    "close": Case(DB + request("/svc/node", "Connection: close") + STORAGE + b"\0garbage", [200, 200], "close"),
    "a body of a GET": Case(request("/svc/node/health", body=b"GET /svc/node") + INDEXER, [206, 503]),
    "chunks": Case(chunked(CHUNKED_BODY) + STORAGE, [405], "close"),
    "chunks in HTTP/1.0": Case(chunked(CHUNKED_BODY, "HTTP/1.0") + STORAGE, [405], "close"),
    "chunks of a GET": Case(request("/svc/node", "Transfer-Encoding: chunked", body=CHUNKED_BODY), [200], "close"),
    "spaces around a length": Case(post("Content-Length:  00\t ") + STORAGE, [405, 206]),
    "zeros before a length": Case(
        request("/svc/node", f"Content-Length: {'0' * 5000}5", method="POST", body=b"hello") + STORAGE, [405, 206]
    ),
    "Expect in HTTP/1.0": Case(
        request("/svc/node", "Expect: 100-continue", method="POST", version="HTTP/1.0", body=b"hello"), [405], "close"
    ),
    "absolute": Case(request("http://node.example:8420/svc/node/health?partial_status=299"), [299]),
    "absolute without a path": Case(request("http://node.example?version=v0.0.1"), [404]),
    "OPTIONS *": Case(request("*", method="OPTIONS") + DB, [404, 200]),
    "CONNECT": Case(request("node.example:443", method="CONNECT") + b"\x16\x03\x01 not HTTP", [404], "close"),
    "an upgrade": Case(UPGRADE + b"\x81\x85 a frame", [200], "close"),
    **{
        f"the host {host!r}": Case(get(b"Host: " + host), [200])
        for host in (b"", b"node.example:8420", b"[::1]:8420", b"[fe80::1%25eth0]", b"under_score", b"%C3%BC:")
    },
    # rejected
    "after other requests": Case(DB + LIST + b"GET /\0 HTTP/1.1\r\n\r\n" + DB, [200, 200, 400], "close"),
    "after a body": Case(POST + b"hello\r\n\r\n", [405, 400], "close"),
    "an unknown method": rejected(request("/svc/node", method="BREW"), 405),
    "a method in lower case": rejected(request("/svc/node", method="get"), 405),
    "HTTP/1.2": rejected(request("/svc/node", version="HTTP/1.2"), 505),
    "HTTP/2": rejected(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "no request line": rejected(b"\xff\xfe\r\n\r\n"),
    "a word": rejected(b"hello\r\n\r\n"),
    "no target": rejected(get(HOST[:-2], line=b"GET HTTP/1.1")),
    "no version": rejected(b"GET /svc/node\r\n\r\n"),
    "a relative target": rejected(get(HOST[:-2], line=b"GET svc/node HTTP/1.1")),
    "a space in the target": rejected(get(HOST[:-2], line=b"GET /svc/no de HTTP/1.1")),
    "another protocol": rejected(get(HOST[:-2], line=b"GET /svc/node FTP/1.1")),
    "NUL in the target": rejected(get(HOST[:-2], line=b"GET /svc/node\0 HTTP/1.1")),
    "a header without a colon": rejected(get(HOST[:-2], b"invalid")),
    "a space in a header's name": rejected(get(HOST[:-2], b"X Y: z")),
    "a header without a name": rejected(get(HOST[:-2], b": z")),
    "a folded header": rejected(get(HOST[:-2], b"X: a\r\n b")),
    "NUL in a header": rejected(get(HOST[:-2], b"X: \0")),
    "a bare CR in a header": rejected(get(HOST[:-2], b"X: a\rb")),
    "no Host": rejected(get()),
    "two Hosts": rejected(get(HOST[:-2], HOST[:-2])),
    "a Host with a space": rejected(get(b"Host: a b")),
    "a Host with a path": rejected(get(b"Host: node.example/svc")),
    "a Host with a user": rejected(get(b"Host: me@node.example")),
    "a length and chunks": rejected(post("Content-Length: 5", "Transfer-Encoding: chunked")),
    "chunks and a length": rejected(post("Transfer-Encoding: chunked", "Content-Length: 5")),
    "two lengths": rejected(post("Content-Length: 5", "Content-Length: 6")),
    "a list of lengths": rejected(post("Content-Length: 5, 6")),
    "a negative length": rejected(post("Content-Length: -1")),
    "a length with an underscore": rejected(post("Content-Length: 1_0")),
    "an empty length": rejected(post("Content-Length:")),
    "a length out of range": rejected(post(f"Content-Length: {'9' * 40}")),
    "an encoding that does not end in chunks": rejected(post("Transfer-Encoding: gzip")),
    "a chunk without a size": rejected(chunked(b"zz\r\n")),
    "a chunk longer than it says": rejected(chunked(b"1\r\nabc\r\n0\r\n\r\n")),
    "a TLS handshake": rejected(bytes.fromhex("16030100c2010000be0303") + bytes(range(64))),
}


@pytest.mark.parametrize("name", CASES)
def test_requests_are_answered_in_order_however_their_bytes_arrive(
    server: RunningServer, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent, codes, connection = CASES[name]
    server.request(DB)  # it is cached from now on
    step = max(len(sent) // 16, 3)
    clients = {split: server.connect() for split in (*range(1, len(sent), step), len(sent))}
    for split, client in clients.items():
        client.send(sent[:split])
    server.wait_for_reads()
    for split, client in clients.items():
        with suppress(BrokenPipeError, ConnectionResetError):  # a rejection can still be read
            client.send(sent[split:])
    for client in clients.values():
        with client:
            responses = [client.read() for _ in codes]
            assert [response.code for response in responses] == codes
            assert [one.header("Connection") for one in responses][-1] == connection
            if codes[-1] in (400, 405, 505):
                error_code(responses[-1])
            if connection == "close":
                assert client.is_closed()
            else:
                assert client.request(DB).code == 200
    assert not caplog.records


def test_an_unknown_method_is_not_allowed_unless_the_version_is_unknown_too(server: RunningServer) -> None:
    assert server.request(request("/svc/node", method="BREW")).header("Allow") == "GET, HEAD"
    assert server.request(request("/svc/node?version=v9", method="BREW")).body == VERSION_NOT_FOUND.body


# ---- HEAD, 100 Continue, the end of the input


def test_head_is_get_without_the_body(server: RunningServer) -> None:
    with server.connect() as client:
        for target in ("/svc/node", "/svc/node/services/x/health", "/nowhere"):
            got = client.request(request(target))
            head = client.request(request(target, method="HEAD"), is_head=True)
            again = client.request(request(target))  # a body of the HEAD response would be read as this response
            assert (head.code, head.without_date.headers) == (got.code, got.without_date.headers)
            assert again.without_date == got.without_date
        client.request(request("/nothing", method="HEAD"), is_head=True)
        assert error_code(client.request(b"\xff\r\n\r\n")) == 400, "an error after a HEAD request has a body"


@pytest.mark.parametrize(
    "sent",
    [
        b"HEAD /svc/node HTTP/1.1\r\n\r\n",
        b"HEAD /svc/\x01node HTTP/1.1\r\n" + HOST + b"\r\n",
        request("/svc/node", "Content-Length: 1000000", method="HEAD"),
        request("/svc/node", version="HTTP/2.0", method="HEAD"),
    ],
)
def test_an_error_response_to_head_has_no_body(server: RunningServer, sent: bytes) -> None:
    with server.connect() as client:
        response = client.request(sent, is_head=True)
        assert response.code in (400, 413, 505)
        assert response.header("Content-Length") != "0"
        assert client.is_closed()


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
        assert client.request(head + b"hello").code == 405, "the body is here"
        old = request("/svc/node", "Expect: 100-continue", "Content-Length: 5", method="POST", version="HTTP/1.0")
        client.send(old)
        assert client.receives_nothing()
        assert client.request(b"hello").code == 405


def test_a_client_that_closed_its_sending_side_gets_all_responses(server: RunningServer) -> None:
    for sent, codes in ((DB + INDEXER + LIST, [200, 503, 200]), (DB[:-1], [])):
        with server.connect() as client:
            client.send(sent)
            client.sock.shutdown(socket.SHUT_WR)
            assert [client.read().code for _ in codes] == codes
            assert client.is_closed()
    assert becomes_true(lambda: server.count() == 0)


def test_the_server_stops_reading_from_a_client_that_does_not_read(loop_name: str) -> None:
    node = Node("validator-7", version="v1.4.2")
    node.register("big", description="d" * 60_000)
    listener = loopback_socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * 1024)
    one = request("/svc/node/services", f"X-Padding: {'p' * 4000}")

    with running_server(node, loop_name, listener=listener) as server:
        expected = server.request(LIST).body
        with server.connect(receive_buffer=16 * 1024, send_buffer=16 * 1024) as client:
            sent_bytes = send_until_blocked(server, client, one * 1000)
            assert 4 * len(one) < sent_bytes < 200 * len(one)
            (connection,) = server.call(server.state.sending.connections)
            assert isinstance(connection, Connection)
            queued_bytes = server.call(connection._transport.get_write_buffer_size)
            assert queued_bytes < 2 * len(expected) + 64 * 1024
            assert server.call(lambda: connection._parser.unparsed_bytes) < 512 * 1024
            for _ in range(sent_bytes // len(one)):
                assert client.read().body == expected


def send_until_blocked(server: RunningServer, client: RawClient, data: bytes) -> int:
    """Send until nothing more can be sent, and the server waits for the client; returns how much was sent."""
    timeout_s = client.sock.gettimeout()
    sent_bytes = 0

    def is_blocked() -> bool:
        nonlocal sent_bytes
        try:
            while sent_bytes < len(data):
                sent_bytes += client.sock.send(data[sent_bytes : sent_bytes + 65536])
        except BlockingIOError:
            return len(server.state.sending) == 1
        return True

    client.sock.setblocking(False)
    assert becomes_true(is_blocked)
    client.sock.settimeout(timeout_s)
    return sent_bytes


# ---- cached requests


def cached(server: RunningServer) -> set[bytes]:
    return server.call(lambda: set(server.state.cache._requests))


VARIED_REQUESTS = [
    DB,
    INDEXER,
    STORAGE,
    UNKNOWN_PATH,
    IDENTITY,
    LIST,
    POST,
    request("/svc/node?version=v9"),
    request("/svc/node/health?partial_status=503"),
    request("/svc/node/health?partial_status=204"),
    request("/svc/node/services/d%62/health"),
    request("/svc/node/services/none/health"),
    request("http://node.example/svc/node"),
    request("/svc/node", "Content-Length: 0"),
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
    sent = [generator.choice(VARIED_REQUESTS) for _ in range(200)]
    with_cache = responses_to(server, sent)
    assert len(cached(server)) > 10
    monkeypatch.setattr(ResponseCache, "put", lambda *_: None)
    with running_server(node, loop_name) as uncached:
        assert responses_to(uncached, sent) == with_cache
        assert not cached(uncached)


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        (request("/svc/node", f"Content-Length: {len(DB)}", method="POST"), b"", 405),
        (request("/svc/node", "Transfer-Encoding: chunked", body=b"%x\r\n" % len(DB)), b"\r\n0\r\n\r\n", 200),
        (b"GET /svc/node/services/indexer/health HTTP/1.1\r\nX-Quoted: ", b"", 503),
    ],
    ids=["a body", "a chunk", "part of a head"],
)
def test_the_rest_of_a_request_is_not_taken_for_a_cached_one(
    server: RunningServer, before: bytes, after: bytes, code: int
) -> None:
    with server.connect() as client:
        client.request(DB)
        assert cached(server) == {DB}
        client.send(before)
        assert client.receives_nothing()
        client.send(DB)
        assert not after or client.receives_nothing()
        client.send(after)
        assert client.read().code == code
    assert DB[:20] not in cached(server)


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
    last = request("/svc/node/health", "Connection: close")
    server.request(last)
    assert cached(server).isdisjoint({segment, last})


def test_a_cached_request_sees_every_change_of_the_node_at_once(server: RunningServer, node: Node) -> None:
    health, services = request("/svc/node/health"), LIST
    with server.connect() as client:

        def current() -> tuple[int, list[str]]:
            listed = json.loads(client.request(services).body)["services"]
            return client.request(health).code, [one["status"] for one in listed]

        assert current() == (206, ["Up", "Down", "Initializing"])
        for _ in range(5):
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
        for name in ("other", "yet another"):
            internals_of(node).state.set_identity(name=name, version="v2")
            assert json.loads(client.request(IDENTITY).body)["node_name"] == name
        node.drain()
        assert current()[0] == 503


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

    cache = SlowCache(internals_of(node).state, ("/svc",), clock=lambda: now_s, wall_clock=lambda: now_s)
    now_s = 104.9
    assert cache.get(b"bytes", now_s) is None
    cache.put(b"bytes", cache.resolve(Request("GET", b"/svc/node/health")))
    first, second = cache.get(b"bytes", now_s), cache.get(b"bytes", now_s)
    assert first is not None
    assert second is not None
    assert (first[:13], second[:13]) == (b"HTTP/1.1 200 ", b"HTTP/1.1 503 ")
