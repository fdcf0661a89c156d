"""ipfs+http:// against the RPC API of an IPFS daemon and against scripted servers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from svcnode.core.codes import ReasonCode
from tests.support.backends import Backend, ReceivedRequest, closed_port, http_response, server_tls, unresponsive
from tests.support.http_server import becomes_true
from tests.support.probe_assertions import (
    REUSED,
    KeepAliveBackend,
    assert_all_failed,
    assert_disconnect_is_failed,
    assert_no_leaks,
    assert_reused,
    assert_survives_restarts,
    assert_times_out,
    check_with_steps,
    client_count,
    few_examples,
    garbage,
    reusing,
)
from tests.support.servers.ipfs import IpfsServer
from tests.support.verdicts import (
    CONNECTION_REFUSED,
    EXPIRES_SOON,
    READY,
    TLS_UNTRUSTED,
    UNEXPECTED_RESPONSE,
    failed,
    not_ready,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.certificates import Certificate
    from tests.support.check_runner import CheckRunner

EXCHANGE = ("exchange", "", True)
TOO_FEW_PEERS = not_ready(ReasonCode.TOO_FEW_PEERS)
ABOUT = http_response(200, json.dumps({"ID": "12D3KooWNode"}))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IpfsServer]:
    with IpfsServer(tmp_path_factory.mktemp("ipfs")) as server:
        yield server


@pytest.fixture
def server(running: IpfsServer) -> Iterator[IpfsServer]:
    yield running
    running.reset()


# ---- a daemon


def test_a_daemon_with_an_id_is_ready(check: CheckRunner, server: IpfsServer) -> None:
    assert check(server.url) == READY
    assert check.steps(server.url) == [("connect", "127.0.0.1", True), EXCHANGE]


def test_a_daemon_with_too_few_peers_is_not_ready(check: CheckRunner, server: IpfsServer) -> None:
    server.set(peers=3)
    assert check(server.url, min_peers=3) == READY
    assert check(server.url, min_peers=4) == TOO_FEW_PEERS


def test_null_means_no_peers(check: CheckRunner, server: IpfsServer) -> None:
    server.set(peers=0)
    assert check(server.url) == READY
    assert check(server.url, min_peers=1) == TOO_FEW_PEERS


def test_an_offline_daemon_is_failed_if_peers_are_required(check: CheckRunner, server: IpfsServer) -> None:
    server.set(is_online=False)
    assert check(server.url) == READY
    assert check(server.url, min_peers=1) == failed(ReasonCode.SERVER_ERROR)


def test_a_daemon_may_require_a_token(check: CheckRunner, server: IpfsServer) -> None:
    server.set(authorization="Bearer swordfish")
    assert check(server.url, bearer="swordfish", min_peers=1) == READY
    assert check(server.url, bearer="tunafish") == failed(ReasonCode.PERMISSION_DENIED)


def test_both_requests_use_one_connection(check: CheckRunner, server: IpfsServer) -> None:
    assert check.steps(server.url, min_peers=1) == [("connect", "127.0.0.1", True), EXCHANGE, EXCHANGE]


def test_a_check_leaves_nothing_open(check: CheckRunner, server: IpfsServer) -> None:
    assert assert_no_leaks(check, server.url, server.port, min_peers=1) == READY
    assert becomes_true(lambda: not client_count(server.port))


def test_a_frozen_daemon_is_failed_at_the_deadline(check: CheckRunner, server: IpfsServer) -> None:
    server.freeze()
    try:
        assert_times_out(check, server.url, server.port, "exchange", min_peers=1)
    finally:
        server.thaw()


# ---- reuse


def test_a_connection_can_be_reused(check: CheckRunner, server: IpfsServer) -> None:
    assert_reused(check, server.url, server.port, min_peers=1)


def test_a_reused_connection_outlives_restarts_of_the_daemon(check: CheckRunner, server: IpfsServer) -> None:
    assert_survives_restarts(check, server)


def test_a_change_is_found_on_a_reused_connection(check: CheckRunner, server: IpfsServer) -> None:
    async def main() -> None:
        with reusing(server.url, min_peers=1) as probe:
            assert (await check_with_steps(probe))[0] == READY
            server.set(peers=0)
            assert await check_with_steps(probe) == (TOO_FEW_PEERS, [REUSED, EXCHANGE, EXCHANGE])

    check.run(main())


# ---- invalid responses


def daemon(peers: bytes) -> Callable[[ReceivedRequest], bytes]:
    return lambda request: ABOUT if request.target.endswith("/id") else peers


def test_every_request_is_a_post(check: CheckRunner) -> None:
    with KeepAliveBackend(daemon(http_response(200, '{"Peers": [{}]}'))) as backend:
        assert check(f"ipfs+http://{backend.address}/key/", min_peers=1) == READY
        assert [(one.method, one.target, one.body) for one in backend.requests] == [
            ("POST", "/key/api/v0/id", b""),
            ("POST", "/key/api/v0/swarm/peers", b""),
        ]
    assert backend.requests_per_connection == [2]


@pytest.mark.parametrize(
    "answer",
    [
        http_response(200, "<html>"),
        http_response(200, "{}"),
        http_response(200, '{"ID": 12}'),
        http_response(200, '["ID"]'),
        http_response(200, '{"ID": "a", "ID": "b"}'),
        http_response(200, "[" * 100_000),
        http_response(200, b"\xff"),
    ],
)
def test_a_daemon_without_an_id_is_failed(check: CheckRunner, answer: bytes) -> None:
    with KeepAliveBackend(answer) as backend:
        assert check(f"ipfs+http://{backend.address}") == UNEXPECTED_RESPONSE


@pytest.mark.parametrize(
    "answer",
    [
        http_response(200, "{}"),
        http_response(200, '{"Peers": 3}'),
        http_response(200, "no"),
        http_response(200, '{"Peers": [], "Peers": [{}]}'),
    ],
)
def test_a_daemon_without_a_list_of_peers_is_failed(check: CheckRunner, answer: bytes) -> None:
    with KeepAliveBackend(daemon(answer)) as backend:
        assert check(f"ipfs+http://{backend.address}", min_peers=1) == UNEXPECTED_RESPONSE


def test_a_certificate_that_expires_soon_is_not_ready(check: CheckRunner, certificate: Certificate) -> None:
    with KeepAliveBackend(daemon(http_response(200, '{"Peers": [{}]}')), tls=server_tls(certificate)) as backend:
        url, ca = f"ipfs+https://{backend.address}", str(certificate.certificate)
        assert check(url, ca=ca, min_peers=1) == READY
        assert check(url, ca=ca, min_peers=1, min_cert_days=1) == EXPIRES_SOON
        assert check(url, ca=ca, min_peers=2, min_cert_days=1) == TOO_FEW_PEERS
        assert check(url) == TLS_UNTRUSTED


# ---- not a daemon


def test_a_closed_port_is_failed(check: CheckRunner) -> None:
    with closed_port() as port:
        assert check(f"ipfs+http://127.0.0.1:{port}") == CONNECTION_REFUSED


def test_an_unresponsive_port_is_failed_at_the_deadline(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert_times_out(check, f"ipfs+http://{backend.address}", backend.port, "exchange")


def test_a_connection_that_is_closed_or_reset_is_failed(check: CheckRunner) -> None:
    assert_disconnect_is_failed(check, "ipfs+http")


@few_examples
@given(answers=garbage(b"HTTP/1.1 200 OK\r\n\r\n", b'HTTP/1.1 200 OK\r\n\r\n{"ID": ', ABOUT, b"HTTP/1.1 "))
def test_random_bytes_are_failed(check: CheckRunner, answers: list[bytes]) -> None:
    assert_all_failed(check, answers, lambda backend: f"ipfs+http://{backend.address}", min_peers=1)
