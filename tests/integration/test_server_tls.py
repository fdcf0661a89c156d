"""TLS, IPv6 and Unix sockets: the same server behind other listeners, under both event loops."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import ssl
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from svcnode import Node
from svcnode.server import server as wire_module
from svcnode.server.sockets import tls_context
from tests.support.certificates import Certificate, make_certificate
from tests.support.http_server import (
    LONG_LIMITS,
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
    from pathlib import Path

    Serve = Callable[..., AbstractContextManager[RunningServer]]

DB = request("/svc/node/services/db/health")  # 200
STORAGE = request("/svc/node/services/storage/health")  # 206
LIST = request("/svc/node/services")


@pytest.fixture(autouse=True)
def _fast_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_module, "TICK_S", 0.02)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def serve(loop_name: str, certificate: Certificate) -> Serve:
    def start(
        node: Node | None = None, *, listener: socket.socket | None = None, **limits: Any
    ) -> AbstractContextManager[RunningServer]:
        return running_server(
            node or worked_example(),
            loop_name,
            limits=replace(LONG_LIMITS, **limits),
            tls=tls_context(certificate.certificate, certificate.key),
            listener=listener,
        )

    return start


@pytest.fixture
def server(serve: Serve) -> Iterator[RunningServer]:
    with serve() as running:
        yield running


@pytest.fixture
def trusting(certificate: Certificate) -> ssl.SSLContext:
    """What a client needs that trusts the node's certificate."""
    return ssl.create_default_context(cafile=str(certificate.certificate))


def connect(server: RunningServer, tls: ssl.SSLContext, **buffers: int) -> RawClient:
    plain = server.connect(**buffers)
    try:
        return RawClient(tls.wrap_socket(plain.sock, server_hostname="localhost"))
    except OSError:
        plain.sock.close()
        raise


# ---- TLS


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_are_answered_over_tls(
    server: RunningServer, trusting: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    trusting.minimum_version = trusting.maximum_version = version
    with connect(server, trusting) as client:
        assert [client.request(one).code for one in (DB, STORAGE, DB, STORAGE)] == [200, 206, 200, 206]
        client.send(DB + LIST + STORAGE)
        assert [client.read().code for _ in range(3)] == [200, 200, 206]
        answer = client.request(request("/svc/node", "Connection: close"))
        assert json.loads(answer.body)["node_name"] == "validator-7"
        assert client.sock.recv(1) == b"", "the end is said in TLS, too"
    assert becomes_true(lambda: server.count() == 0)


class RawTls:
    """The client's side of TLS without a socket of its own, to choose what travels together."""

    def __init__(self, context: ssl.SSLContext, client: RawClient) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self._client = client

    def handshake_without_last_flight(self) -> bytes:
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                self._client.send(self._outgoing.read())
                self._incoming.write(self._client.sock.recv(65536))
            else:
                return self._outgoing.read()

    def encrypt(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self._outgoing.read()

    def read_until(self, end: bytes) -> bytes:
        data = b""
        while end not in data:
            try:
                data += self.tls.read()
            except ssl.SSLWantReadError:
                self._incoming.write(self._client.sock.recv(65536))
        return data


def test_a_request_that_travels_with_the_end_of_the_handshake_is_answered_in_secret(
    server: RunningServer, trusting: ssl.SSLContext
) -> None:
    trusting.minimum_version = ssl.TLSVersion.TLSv1_3  # there the client has the last word
    with server.connect() as client:
        raw = RawTls(trusting, client)
        last_flight = raw.handshake_without_last_flight()
        client.send(last_flight + raw.encrypt(STORAGE + DB[:9]))
        assert raw.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 206 ")
        client.send(raw.encrypt(DB[9:]))
        assert raw.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")


def test_an_answer_of_any_size_arrives_whole(serve: Serve, trusting: ssl.SSLContext) -> None:
    node = Node("validator-7", version="v1.4.2")
    node.register("big", description="d" * 1_000_000)
    with serve(node) as server, connect(server, trusting, receive_buffer=8192) as slow:
        for _ in range(3):
            slow.send(LIST)
            time.sleep(0.05)
            assert len(json.loads(slow.read().body)["services"][0]["description"]) == 1_000_000


def test_a_client_that_speaks_plain_text_learns_nothing(
    server: RunningServer, trusting: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    with server.connect() as client:
        client.send(DB)
        assert b"HTTP" not in client.read_to_end()
    assert becomes_true(lambda: server.count() == 0)
    assert not caplog.records, "a stranger's mistake is no fault of ours"
    with connect(server, trusting) as client:
        assert client.request(DB).code == 200


def test_a_client_that_does_not_trust_us_leaves_nothing_behind(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(server, ssl.create_default_context())
    assert becomes_true(lambda: server.count() == 0)
    assert becomes_true(lambda: not server.tasks())
    assert not caplog.records


@pytest.mark.parametrize("begun", [b"", bytes.fromhex("1603010200010001fc0303")], ids=["nothing", "half a hello"])
def test_a_handshake_that_never_ends_counts_and_is_cut(serve: Serve, begun: bytes) -> None:
    with serve(receive_s=0.2) as server, server.connect() as client:
        began_s = time.monotonic()
        client.send(begun)
        assert becomes_true(lambda: server.count() == 1)
        assert client.is_closed()
        assert 0.18 < time.monotonic() - began_s < 0.7
        assert becomes_true(lambda: server.count() == 0)
        assert becomes_true(lambda: not server.tasks())


def test_who_leaves_in_the_middle_of_a_handshake_is_gone(server: RunningServer) -> None:
    for begun in (b"", bytes.fromhex("1603010200010001fc0303")):
        with server.connect() as client:
            client.send(begun)
            assert becomes_true(lambda: server.count() == 1)
            assert becomes_true(lambda: len(server.tasks()) == 1)
        assert becomes_true(lambda: server.count() == 0)
        assert becomes_true(lambda: not server.tasks())


def test_unfinished_handshakes_cannot_keep_others_out(serve: Serve, trusting: ssl.SSLContext) -> None:
    with serve(connections=3) as server:
        silent = [server.connect() for _ in range(20)]
        with connect(server, trusting) as client:
            assert client.request(DB).code == 200
            assert server.count() <= 3
        for one in silent:
            one.sock.close()


def test_a_refusal_can_be_read_over_tls_by_a_client_that_is_still_sending(
    server: RunningServer, trusting: ssl.SSLContext
) -> None:
    with connect(server, trusting) as client:
        client.send(request("/svc/node", "Content-Length: 99999999", method="POST"))
        server.wait_for_reads()
        for _ in range(20):
            client.send(b"x" * 100_000)
        answer = client.read()
        assert (answer.code, answer.header("Connection")) == (413, "close")


def test_a_refused_client_is_not_listened_to_for_ever_over_tls(serve: Serve, trusting: ssl.SSLContext) -> None:
    with serve(linger_s=0.2) as server, connect(server, trusting) as client:
        assert client.request(b"\0nonsense\r\n\r\n").code == 400
        assert becomes_true(lambda: server.count() == 0, within_s=1.0)


def test_an_idle_connection_is_closed_although_the_client_says_no_goodbye(
    serve: Serve, trusting: ssl.SSLContext
) -> None:
    with serve(idle_s=0.1, send_s=0.1, linger_s=0.1) as server, connect(server, trusting) as client:
        client.request(DB)
        assert becomes_true(lambda: server.count() == 0, within_s=1.0)


def test_a_client_that_does_not_take_its_answer_is_cut_over_tls(serve: Serve, trusting: ssl.SSLContext) -> None:
    node = Node("validator-7", version="v1.4.2")
    node.register("big", description="d" * 1_000_000)
    listener = loopback_socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    with serve(node, send_s=0.2, listener=listener) as server, connect(server, trusting, receive_buffer=8192) as deaf:
        deaf.send(3 * LIST)  # since TLS has buffers of its own
        assert becomes_true(lambda: len(server.server.sending) == 1)
        assert becomes_true(lambda: server.count() == 0, within_s=1.0)


def test_closing_leaves_nothing_behind_over_tls(
    server: RunningServer, trusting: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    silent, unfinished, busy = server.connect(), server.connect(), connect(server, trusting)
    idle = [connect(server, trusting) for _ in range(3)]
    unfinished.send(bytes.fromhex("1603010200010001fc0303"))
    busy.send(DB[:9])
    for client in idle:
        client.request(DB)
    assert becomes_true(lambda: server.count() == 6)
    server.close(grace_s=0.2)
    assert server.count() == 0
    assert becomes_true(lambda: not server.tasks())
    for client in (silent, unfinished, busy, *idle):
        client.read_to_end()
        client.sock.close()
    assert "asyncio" not in {record.name for record in caplog.records}


def test_a_tls_listener_can_be_given_up_while_its_clients_stay(server: RunningServer, trusting: ssl.SSLContext) -> None:
    with connect(server, trusting) as client:
        client.request(DB)
        server.call(lambda: server.server.stop_listening(server.listener))
        with pytest.raises(ConnectionRefusedError):
            server.connect()
        assert client.request(DB).code == 200


class FailingSocket(socket.socket):
    """Has no file descriptor left for the first who comes."""

    is_failing = True

    def accept(self) -> tuple[socket.socket, object]:
        if self.is_failing:
            self.is_failing = False
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_a_server_out_of_file_descriptors_says_so_and_tries_again(
    serve: Serve, trusting: ssl.SSLContext, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire_module, "ACCEPT_AGAIN_S", 0.05)
    listener = FailingSocket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    with serve(listener=listener) as server, connect(server, trusting) as client:
        assert client.request(DB).code == 200
    (record,) = caplog.records
    assert record.getMessage() == "cannot accept a connection, trying again in 0.05 s: too many open files"


# ---- IPv6 and Unix sockets


def test_ipv6_is_served(loop_name: str) -> None:
    try:
        listener = loopback_socket(socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with running_server(worked_example(), loop_name, listener=listener) as server, server.connect() as client:
        assert server.address[0] == "::1"
        assert [client.request(one).code for one in (DB, STORAGE, DB)] == [200, 206, 200]


def unix_listener(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(path))
    return sock


def test_a_unix_socket_is_served(loop_name: str, tmp_path: Path) -> None:
    listener = unix_listener(tmp_path / "node.sock")
    with running_server(worked_example(), loop_name, listener=listener) as server:
        with server.connect() as client:
            assert [client.request(one).code for one in (DB, STORAGE, DB)] == [200, 206, 200]
            client.send(DB + LIST)
            client.sock.shutdown(socket.SHUT_WR)
            assert [client.read().code, client.read().code] == [200, 200]
            assert client.is_closed()
        with server.connect() as client:
            assert client.request(b"\0nonsense\r\n\r\n").code == 400
            assert client.is_closed()


def test_several_listeners_show_one_node(loop_name: str, certificate: Certificate, tmp_path: Path) -> None:
    node = worked_example()
    plain, local = loopback_socket(), unix_listener(tmp_path / "node.sock")
    place = plain.getsockname()
    with running_server(node, loop_name, listener=local) as server:
        asyncio.run_coroutine_threadsafe(server.server.listen(plain), server.loop).result(WAIT_TIMEOUT_S)
        with server.connect() as first, RawClient(socket.create_connection(place, WAIT_TIMEOUT_S)) as second:
            assert (first.request(STORAGE).code, second.request(STORAGE).code) == (206, 206)
            node.deregister("storage")
            assert (first.request(STORAGE).code, second.request(STORAGE).code) == (404, 404)
            assert server.count() == 2
