"""ipfs+http:// against the RPC interface of an IPFS daemon, and against what only stands at its port."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from svcnode.core.model import Verdict
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
from tests.support.verdicts import EXPIRES_SOON

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.probes.conftest import CheckRunner
    from tests.support.certificates import Certificate

READY = Verdict.ready()
EXCHANGE = ("exchange", "", True)
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


def test_a_daemon_that_tells_its_id_is_ready(check: CheckRunner, server: IpfsServer) -> None:
    assert check(server.url) == READY
    assert check.steps(server.url) == [("connect", "127.0.0.1", True), EXCHANGE]


def test_a_daemon_with_too_few_peers_is_not_ready(check: CheckRunner, server: IpfsServer) -> None:
    server.set(peers=3)
    assert check(server.url, min_peers=3) == READY
    assert check(server.url, min_peers=4) == Verdict.not_ready(f"3 peers, min_peers is 4: {server.url}")


def test_a_daemon_without_peers_says_null(check: CheckRunner, server: IpfsServer) -> None:
    server.set(peers=0)
    assert check(server.url) == READY
    assert check(server.url, min_peers=1) == Verdict.not_ready(f"0 peers, min_peers is 1: {server.url}")


def test_a_daemon_that_is_offline_is_failed_when_peers_are_asked_for(check: CheckRunner, server: IpfsServer) -> None:
    server.set(is_online=False)
    assert check(server.url) == READY
    assert check(server.url, min_peers=1) == Verdict.failed(f"it did not tell its peers: {server.url}")


def test_a_daemon_may_ask_who_we_are(check: CheckRunner, server: IpfsServer) -> None:
    server.set(authorization="Bearer swordfish")
    assert check(server.url, bearer="swordfish", min_peers=1) == READY
    assert check(server.url, bearer="tunafish") == Verdict.failed(f"answered 403 and did not tell its id: {server.url}")


def test_both_are_asked_on_one_connection(check: CheckRunner, server: IpfsServer) -> None:
    assert check.steps(server.url, min_peers=1) == [("connect", "127.0.0.1", True), EXCHANGE, EXCHANGE]


def test_nothing_is_left_of_a_check(check: CheckRunner, server: IpfsServer) -> None:
    assert assert_no_leaks(check, server.url, server.port, min_peers=1) == READY
    assert becomes_true(lambda: not client_count(server.port))


def test_a_frozen_daemon_is_failed_at_the_deadline(check: CheckRunner, server: IpfsServer) -> None:
    server.freeze()
    try:
        assert_times_out(check, server.url, server.port, "exchange", min_peers=1)
    finally:
        server.thaw()


# ---- reuse


def test_a_connection_can_be_kept(check: CheckRunner, server: IpfsServer) -> None:
    assert_reused(check, server.url, server.port, min_peers=1)


def test_a_reused_connection_outlives_restarts_of_the_daemon(check: CheckRunner, server: IpfsServer) -> None:
    assert_survives_restarts(check, server)


def test_a_reused_connection_sees_what_changes(check: CheckRunner, server: IpfsServer) -> None:
    async def story() -> None:
        with reusing(server.url, min_peers=1) as probe:
            assert (await check_with_steps(probe))[0] == READY
            server.set(peers=0)
            assert await check_with_steps(probe) == (
                Verdict.not_ready(f"0 peers, min_peers is 1: {server.url}"),
                [REUSED, EXCHANGE, EXCHANGE],
            )

    check.run(story())


# ---- answers that are not as they should be


def daemon(peers: bytes) -> Callable[[ReceivedRequest], bytes]:
    return lambda request: ABOUT if request.target.endswith("/id") else peers


def test_nothing_is_asked_with_get(check: CheckRunner) -> None:
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
def test_a_daemon_that_does_not_tell_its_id_is_failed(check: CheckRunner, answer: bytes) -> None:
    with KeepAliveBackend(answer) as backend:
        url = f"ipfs+http://{backend.address}"
        assert check(url) == Verdict.failed(f"answered 200 and did not tell its id: {url}")


@pytest.mark.parametrize(
    "answer",
    [
        http_response(500, "no"),
        http_response(200, "{}"),
        http_response(200, '{"Peers": 3}'),
        http_response(200, "no"),
        http_response(200, '{"Peers": [], "Peers": [{}]}'),
    ],
)
def test_a_daemon_that_does_not_tell_its_peers_is_failed(check: CheckRunner, answer: bytes) -> None:
    with KeepAliveBackend(daemon(answer)) as backend:
        url = f"ipfs+http://{backend.address}"
        assert check(url, min_peers=1) == Verdict.failed(f"it did not tell its peers: {url}")


def test_a_certificate_that_ends_soon_is_not_ready(check: CheckRunner, certificate: Certificate) -> None:
    with KeepAliveBackend(daemon(http_response(200, '{"Peers": [{}]}')), tls=server_tls(certificate)) as backend:
        url, ca = f"ipfs+https://{backend.address}", str(certificate.certificate)
        assert check(url, ca=ca, min_peers=1) == READY
        assert check(url, ca=ca, min_peers=1, min_cert_days=1) == EXPIRES_SOON
        assert check(url, ca=ca, min_peers=2, min_cert_days=1) == Verdict.not_ready(f"1 peers, min_peers is 2: {url}")
        assert check(url) == Verdict.failed(f"its certificate is not valid: self-signed certificate: {url}")


# ---- what is no daemon


def test_a_port_that_refuses_is_failed(check: CheckRunner) -> None:
    with closed_port() as port:
        url = f"ipfs+http://127.0.0.1:{port}"
        assert check(url) == Verdict.failed(f"connection refused: {url}")


def test_a_mute_port_is_failed_at_the_deadline(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert_times_out(check, f"ipfs+http://{backend.address}", backend.port, "exchange")


def test_a_connection_that_is_closed_or_reset_is_failed(check: CheckRunner) -> None:
    assert_disconnect_is_failed(check, "ipfs+http")


@few_examples
@given(answers=garbage(b"HTTP/1.1 200 OK\r\n\r\n", b'HTTP/1.1 200 OK\r\n\r\n{"ID": ', ABOUT, b"HTTP/1.1 "))
def test_no_bytes_make_more_than_a_failure(check: CheckRunner, answers: list[bytes]) -> None:
    assert_all_failed(check, answers, lambda backend: f"ipfs+http://{backend.address}", min_peers=1)
