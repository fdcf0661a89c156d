"""ipfs+http:// against the RPC interface of an IPFS daemon, and against what only stands at its port."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from svcnode.core.model import Verdict
from tests.support.backends import Backend, Received, mute, refusing, reply, server_tls
from tests.support.looks import (
    ENDS_SOON,
    REUSED,
    TalkingBackend,
    assert_all_failed,
    assert_cut_off,
    assert_leaves_nothing,
    assert_lost_is_failed,
    assert_outlives_restarts,
    assert_reused,
    clients_of,
    garbage,
    generating,
    keeping,
    steps_of,
)
from tests.support.servers.ipfs import IpfsServer
from tests.support.wire import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.probes.conftest import Look
    from tests.support.certificates import Certificate

READY = Verdict.ready()
EXCHANGE = ("exchange", "", True)
ABOUT = reply(200, json.dumps({"ID": "12D3KooWNode"}))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IpfsServer]:
    with IpfsServer(tmp_path_factory.mktemp("ipfs")) as server:
        yield server


@pytest.fixture
def server(running: IpfsServer) -> Iterator[IpfsServer]:
    yield running
    running.reset()


# ---- a daemon


def test_a_daemon_that_tells_its_id_is_ready(look: Look, server: IpfsServer) -> None:
    assert look(server.url) == READY
    assert look.steps(server.url) == [("connect", "127.0.0.1", True), EXCHANGE]


def test_a_daemon_with_too_few_peers_is_not_ready(look: Look, server: IpfsServer) -> None:
    server.set(peers=3)
    assert look(server.url, min_peers=3) == READY
    assert look(server.url, min_peers=4) == Verdict.not_ready(f"3 peers, min_peers is 4: {server.url}")


def test_a_daemon_without_peers_says_null(look: Look, server: IpfsServer) -> None:
    server.set(peers=0)
    assert look(server.url) == READY
    assert look(server.url, min_peers=1) == Verdict.not_ready(f"0 peers, min_peers is 1: {server.url}")


def test_a_daemon_that_is_offline_is_failed_when_peers_are_asked_for(look: Look, server: IpfsServer) -> None:
    server.set(is_online=False)
    assert look(server.url) == READY
    assert look(server.url, min_peers=1) == Verdict.failed(f"it did not tell its peers: {server.url}")


def test_a_daemon_may_ask_who_we_are(look: Look, server: IpfsServer) -> None:
    server.set(authorization="Bearer swordfish")
    assert look(server.url, bearer="swordfish", min_peers=1) == READY
    assert look(server.url, bearer="tunafish") == Verdict.failed(f"answered 403 and did not tell its id: {server.url}")


def test_both_are_asked_on_one_connection(look: Look, server: IpfsServer) -> None:
    assert look.steps(server.url, min_peers=1) == [("connect", "127.0.0.1", True), EXCHANGE, EXCHANGE]


def test_nothing_is_left_of_a_look(look: Look, server: IpfsServer) -> None:
    assert assert_leaves_nothing(look, server.url, server.port, min_peers=1) == READY
    assert until(lambda: not clients_of(server.port))


def test_a_frozen_daemon_is_failed_at_the_deadline(look: Look, server: IpfsServer) -> None:
    server.freeze()
    try:
        assert_cut_off(look, server.url, server.port, "exchange", min_peers=1)
    finally:
        server.thaw()


# ---- reuse


def test_a_connection_can_be_kept(look: Look, server: IpfsServer) -> None:
    assert_reused(look, server.url, server.port, min_peers=1)


def test_a_kept_connection_outlives_restarts_of_the_daemon(look: Look, server: IpfsServer) -> None:
    assert_outlives_restarts(look, server)


def test_a_kept_connection_sees_what_changes(look: Look, server: IpfsServer) -> None:
    async def story() -> None:
        with keeping(server.url, min_peers=1) as probe:
            assert (await steps_of(probe))[0] == READY
            server.set(peers=0)
            assert await steps_of(probe) == (
                Verdict.not_ready(f"0 peers, min_peers is 1: {server.url}"),
                [REUSED, EXCHANGE, EXCHANGE],
            )

    look.run(story())


# ---- answers that are not as they should be


def daemon(peers: bytes) -> Callable[[Received], bytes]:
    return lambda request: ABOUT if request.target.endswith("/id") else peers


def test_nothing_is_asked_with_get(look: Look) -> None:
    with TalkingBackend(daemon(reply(200, '{"Peers": [{}]}'))) as backend:
        assert look(f"ipfs+http://{backend.place}/key/", min_peers=1) == READY
        assert [(one.method, one.target, one.body) for one in backend.requests] == [
            ("POST", "/key/api/v0/id", b""),
            ("POST", "/key/api/v0/swarm/peers", b""),
        ]
    assert backend.by_connection == [2]


@pytest.mark.parametrize(
    "answer",
    [
        reply(200, "<html>"),
        reply(200, "{}"),
        reply(200, '{"ID": 12}'),
        reply(200, '["ID"]'),
        reply(200, '{"ID": "a", "ID": "b"}'),
        reply(200, "[" * 100_000),
        reply(200, b"\xff"),
    ],
)
def test_a_daemon_that_does_not_tell_its_id_is_failed(look: Look, answer: bytes) -> None:
    with TalkingBackend(answer) as backend:
        url = f"ipfs+http://{backend.place}"
        assert look(url) == Verdict.failed(f"answered 200 and did not tell its id: {url}")


@pytest.mark.parametrize(
    "answer",
    [
        reply(500, "no"),
        reply(200, "{}"),
        reply(200, '{"Peers": 3}'),
        reply(200, "no"),
        reply(200, '{"Peers": [], "Peers": [{}]}'),
    ],
)
def test_a_daemon_that_does_not_tell_its_peers_is_failed(look: Look, answer: bytes) -> None:
    with TalkingBackend(daemon(answer)) as backend:
        url = f"ipfs+http://{backend.place}"
        assert look(url, min_peers=1) == Verdict.failed(f"it did not tell its peers: {url}")


def test_a_certificate_that_ends_soon_is_not_ready(look: Look, certificate: Certificate) -> None:
    with TalkingBackend(daemon(reply(200, '{"Peers": [{}]}')), tls=server_tls(certificate)) as backend:
        url, ca = f"ipfs+https://{backend.place}", str(certificate.certificate)
        assert look(url, ca=ca, min_peers=1) == READY
        assert look(url, ca=ca, min_peers=1, min_cert_days=1) == ENDS_SOON
        assert look(url, ca=ca, min_peers=2, min_cert_days=1) == Verdict.not_ready(f"1 peers, min_peers is 2: {url}")
        assert look(url) == Verdict.failed(f"its certificate is not valid: self-signed certificate: {url}")


# ---- what is no daemon


def test_a_port_that_refuses_is_failed(look: Look) -> None:
    with refusing() as port:
        url = f"ipfs+http://127.0.0.1:{port}"
        assert look(url) == Verdict.failed(f"connection refused: {url}")


def test_a_mute_port_is_failed_at_the_deadline(look: Look) -> None:
    with Backend(mute) as backend:
        assert_cut_off(look, f"ipfs+http://{backend.place}", backend.port, "exchange")


def test_a_connection_that_is_closed_or_reset_is_failed(look: Look) -> None:
    assert_lost_is_failed(look, "ipfs+http")


@generating
@given(answers=garbage(b"HTTP/1.1 200 OK\r\n\r\n", b'HTTP/1.1 200 OK\r\n\r\n{"ID": ', ABOUT, b"HTTP/1.1 "))
def test_no_bytes_make_more_than_a_failure(look: Look, answers: list[bytes]) -> None:
    assert_all_failed(look, answers, lambda backend: f"ipfs+http://{backend.place}", min_peers=1)
