"""TLS, IPv6 and Unix sockets, under both event loops."""

from __future__ import annotations

import errno
import json
import socket
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from svcnode import Node
from svcnode.server import server as server_module
from svcnode.server import state as state_module
from svcnode.server.sockets import tls_context
from tests.support.certificates import Certificate, make_certificate
from tests.support.http_server import (
    LONG_LIMITS,
    LONG_S,
    RawClient,
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
HALF_A_HELLO = bytes.fromhex("1603010200010001fc0303")


@pytest.fixture(autouse=True)
def _fast_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "TICK_S", 0.02)


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
            limits=LONG_LIMITS._replace(**limits),
            tls=tls_context(certificate.certificate, certificate.key),
            listener=listener,
        )

    return start


@pytest.fixture
def server(serve: Serve) -> Iterator[RunningServer]:
    with serve() as running:
        yield running


@pytest.fixture
def client_tls(certificate: Certificate) -> ssl.SSLContext:
    """A client context that trusts the node's certificate."""
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
    server: RunningServer, client_tls: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    client_tls.minimum_version = client_tls.maximum_version = version
    with connect(server, client_tls) as client:
        assert [client.request(one).code for one in (DB, STORAGE, DB, STORAGE)] == [200, 206, 200, 206]
        client.send(DB + LIST + STORAGE)
        assert [client.read().code for _ in range(3)] == [200, 200, 206]
        response = client.request(request("/svc/node", "Connection: close"))
        assert json.loads(response.body)["node_name"] == "validator-7"
        assert client.sock.recv(1) == b"", "close_notify is sent"
    assert becomes_true(lambda: server.count() == 0)


class RawTls:
    """The client side of TLS without a socket, to choose which bytes are sent together."""

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


def test_a_request_sent_with_the_end_of_the_handshake_is_answered_encrypted(
    server: RunningServer, client_tls: ssl.SSLContext
) -> None:
    client_tls.minimum_version = ssl.TLSVersion.TLSv1_3  # there the client sends the last flight
    with server.connect() as client:
        raw = RawTls(client_tls, client)
        last_flight = raw.handshake_without_last_flight()
        client.send(last_flight + raw.encrypt(STORAGE + DB[:9]))
        assert raw.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 206 ")
        client.send(raw.encrypt(DB[9:]))
        assert raw.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 200 ")


def test_handshakes_that_fail_leave_no_connection_or_task(
    server: RunningServer, client_tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    with server.connect() as client:
        client.send(DB)
        assert b"HTTP" not in client.read_to_end()
    with pytest.raises(ssl.SSLCertVerificationError):
        connect(server, ssl.create_default_context())
    for sent in (b"", HALF_A_HELLO):
        with server.connect() as client:
            client.send(sent)
            assert becomes_true(lambda: server.count() == 1)
            assert becomes_true(lambda: len(server.tasks()) == 1)
        assert becomes_true(lambda: server.count() == 0)
        assert becomes_true(lambda: not server.tasks())
    assert not caplog.records
    with connect(server, client_tls) as client:
        assert client.request(DB).code == 200


@pytest.mark.parametrize("sent", [b"", HALF_A_HELLO], ids=["nothing", "half a hello"])
def test_an_endless_handshake_counts_as_a_connection_and_is_aborted(server: RunningServer, sent: bytes) -> None:
    with server.connect() as client:
        client.send(sent)
        assert becomes_true(lambda: server.count() == 1)
        server.enforce_time_limits(LONG_S - 60)
        assert server.count() == 1
        server.enforce_time_limits(LONG_S)
        assert client.is_closed()
        assert becomes_true(lambda: server.count() == 0)
        assert becomes_true(lambda: not server.tasks())


def test_unfinished_handshakes_do_not_block_others(serve: Serve, client_tls: ssl.SSLContext) -> None:
    with serve(connections=3) as server:
        silent = [server.connect() for _ in range(20)]
        with connect(server, client_tls) as client:
            assert client.request(DB).code == 200
            assert server.count() <= 3
        for one in silent:
            one.sock.close()


def test_a_refused_client_can_read_the_error_and_is_disconnected(serve: Serve, client_tls: ssl.SSLContext) -> None:
    with serve(linger_s=1.5) as server, connect(server, client_tls) as client:
        client.send(request("/svc/node", "Content-Length: 99999999", method="POST"))
        server.wait_for_reads()
        for _ in range(20):
            client.send(b"x" * 10_000)
        response = client.read()
        assert (response.code, response.header("Connection")) == (413, "close")
        assert becomes_true(lambda: server.count() == 0)


def test_an_idle_connection_is_closed_without_close_notify_of_the_client(
    serve: Serve, client_tls: ssl.SSLContext
) -> None:
    with serve(idle_s=0.1, send_s=0.1, linger_s=0.1) as server, connect(server, client_tls) as client:
        client.request(DB)
        assert becomes_true(lambda: server.count() == 0)


def test_a_slow_client_gets_everything_and_one_that_does_not_read_is_disconnected(
    serve: Serve, client_tls: ssl.SSLContext
) -> None:
    node = Node("validator-7", version="v1.4.2")
    node.register("big", description="d" * 400_000)
    with (
        serve(node, listener=small_send_buffers()) as server,
        connect(server, client_tls, receive_buffer=8192) as client,
    ):
        for _ in range(2):
            client.send(4 * LIST)  # TLS has its own buffers
            assert becomes_true(lambda: len(server.state.sending) == 1)
            for _ in range(4):
                assert len(json.loads(client.read().body)["services"][0]["description"]) == 400_000
        client.send(4 * LIST)
        assert becomes_true(lambda: len(server.state.sending) == 1)
        server.enforce_time_limits(LONG_S)
        server.enforce_time_limits(2 * LONG_S)
        assert becomes_true(lambda: server.count() == 0)


def test_shutdown_leaves_no_connection_or_task_over_tls(
    server: RunningServer, client_tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    silent, unfinished, busy = server.connect(), server.connect(), connect(server, client_tls)
    idle = [connect(server, client_tls) for _ in range(3)]
    unfinished.send(HALF_A_HELLO)
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


class FailingSocket(socket.socket):
    """The first accept fails: no file descriptors left."""

    is_failing = True

    def accept(self) -> tuple[socket.socket, object]:
        if self.is_failing:
            self.is_failing = False
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_a_failed_accept_is_logged_and_retried(
    serve: Serve, client_tls: ssl.SSLContext, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "ACCEPT_RETRY_S", 0.05)
    listener = FailingSocket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    with serve(listener=listener) as server, connect(server, client_tls) as client:
        assert client.request(DB).code == 200
    (record,) = (vars(record) for record in caplog.records)
    assert (record["event"], record["errno"]) == ("accept_failed", errno.EMFILE)
