"""beacon+http:// against the Beacon API of a node that keeps up, and of nodes that do not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from svcnode.core.model import Verdict
from tests.support.backends import Backend, Received, mute, refusing, reply, server_tls
from tests.support.looks import (
    ENDS_SOON,
    OUT_OF_FILES,
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
from tests.support.servers.beacon import BeaconServer
from tests.support.wire import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.probes.conftest import Look
    from tests.support.certificates import Certificate

READY = Verdict.ready()
EXCHANGE = ("exchange", "", True)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BeaconServer]:
    with BeaconServer(tmp_path_factory.mktemp("beacon")) as server:
        yield server


@pytest.fixture
def server(running: BeaconServer) -> Iterator[BeaconServer]:
    yield running
    running.reset()


# ---- a node


def test_a_node_that_keeps_up_is_ready(look: Look, server: BeaconServer) -> None:
    assert look(server.url) == READY
    assert look.steps(server.url) == [("connect", "127.0.0.1", True), EXCHANGE]


def test_a_node_that_is_syncing_is_not_ready(look: Look, server: BeaconServer) -> None:
    server.set(is_syncing=True, sync_distance=300)
    for options in ({}, {"max_slot_lag": 1000}):
        assert look(server.url, **options) == Verdict.not_ready(f"syncing: {server.url}")


def test_a_node_in_trouble_is_failed(look: Look, server: BeaconServer) -> None:
    server.set(is_initialised=False)
    for options in ({}, {"max_slot_lag": 1000}):
        assert look(server.url, **options) == Verdict.failed(f"not initialized, or in trouble: {server.url}")


@pytest.mark.parametrize("status", [204, 301, 400, 401, 404, 429, 500])
def test_any_other_answer_is_failed(look: Look, server: BeaconServer, status: int) -> None:
    server.set(health=status)
    assert look(server.url) == Verdict.failed(f"answered {status}, which is no answer of a beacon node: {server.url}")


def test_a_node_that_is_behind_is_not_ready(look: Look, server: BeaconServer) -> None:
    server.set(sync_distance=3)
    assert look(server.url, max_slot_lag=3) == READY
    assert look(server.url, max_slot_lag=2) == Verdict.not_ready(f"3 slots behind, max_slot_lag is 2: {server.url}")
    assert look(server.url, max_slot_lag=0) == Verdict.not_ready(f"3 slots behind, max_slot_lag is 0: {server.url}")
    assert look(server.url) == READY


def test_both_are_asked_on_one_connection(look: Look, server: BeaconServer) -> None:
    assert look.steps(server.url, max_slot_lag=0) == [("connect", "127.0.0.1", True), EXCHANGE, EXCHANGE]


def test_nothing_is_left_of_a_look(look: Look, server: BeaconServer) -> None:
    for options in ({}, {"max_slot_lag": 3}):
        assert assert_leaves_nothing(look, server.url, server.port, **options) == READY
    assert until(lambda: not clients_of(server.port))


def test_a_frozen_node_is_failed_at_the_deadline(look: Look, server: BeaconServer) -> None:
    server.freeze()
    try:
        assert_cut_off(look, server.url, server.port, "exchange")
        assert_cut_off(look, server.url, server.port, "exchange", max_slot_lag=3)
    finally:
        server.thaw()


# ---- reuse


@pytest.mark.parametrize("options", [{}, {"max_slot_lag": 3}])
def test_a_connection_can_be_kept(look: Look, server: BeaconServer, options: dict[str, int]) -> None:
    assert_reused(look, server.url, server.port, **options)


def test_a_kept_connection_outlives_restarts_of_the_node(look: Look, server: BeaconServer) -> None:
    assert_outlives_restarts(look, server)


def test_a_kept_connection_sees_what_changes(look: Look, server: BeaconServer) -> None:
    async def story() -> None:
        with keeping(server.url) as probe:
            assert (await steps_of(probe))[0] == READY
            server.set(is_syncing=True)
            assert await steps_of(probe) == (Verdict.not_ready(f"syncing: {server.url}"), [REUSED, EXCHANGE])

    look.run(story())


# ---- answers that are not as they should be


def node(syncing: bytes) -> Callable[[Received], bytes]:
    return lambda request: reply(200) if request.target.endswith("/health") else syncing


@pytest.mark.parametrize(
    "answer",
    [
        reply(404, '{"code": 404}'),
        reply(200, "<html>"),
        reply(200, '{"data": {}}'),
        reply(200, '{"data": {"sync_distance": null}}'),
        reply(200, '{"data": {"sync_distance": "many"}}'),
        reply(200, '{"data": {"sync_distance": "-1"}}'),
        reply(200, '{"data": [{"sync_distance": "0"}]}'),
        reply(200, '{"data": {"sync_distance": "99", "sync_distance": "0"}}'),
        reply(200, "[" * 100_000),
        reply(200, '{"data": {"sync_distance": "' + "9" * 5000 + '"}}'),
    ],
)
def test_a_node_that_does_not_tell_how_far_behind_it_is_is_failed(look: Look, answer: bytes) -> None:
    with TalkingBackend(node(answer)) as backend:
        url = f"beacon+http://{backend.place}"
        assert look(url, max_slot_lag=3) == Verdict.failed(f"it does not tell how far behind it is: {url}")
        assert look(url) == READY


def test_what_stands_before_the_paths_and_who_asks_are_said(look: Look) -> None:
    lag = reply(200, json.dumps({"data": {"sync_distance": "0"}}))
    with TalkingBackend(node(lag)) as backend:
        assert look(f"beacon+http://{backend.place}/key/", max_slot_lag=0, bearer="swordfish") == READY
        assert [(one.method, one.target) for one in backend.requests] == [
            ("GET", "/key/eth/v1/node/health"),
            ("GET", "/key/eth/v1/node/syncing"),
        ]
        assert {one.headers["authorization"] for one in backend.requests} == {"Bearer swordfish"}
    assert backend.by_connection == [2]


def test_a_certificate_that_ends_soon_is_not_ready(look: Look, certificate: Certificate) -> None:
    lag = reply(200, json.dumps({"data": {"sync_distance": "0"}}))
    with TalkingBackend(node(lag), tls=server_tls(certificate)) as backend:
        url, ca = f"beacon+https://{backend.place}", str(certificate.certificate)
        for options in ({}, {"max_slot_lag": 3}):
            assert look(url, ca=ca, **options) == READY
            assert look(url, ca=ca, min_cert_days=1, **options) == ENDS_SOON
            assert look(url, **options) == Verdict.failed(
                f"its certificate is not valid: self-signed certificate: {url}"
            )


# ---- what is no node


def test_a_port_that_refuses_is_failed(look: Look) -> None:
    with refusing() as port:
        url = f"beacon+http://127.0.0.1:{port}"
        assert look(url) == Verdict.failed(f"connection refused: {url}")


def test_a_mute_port_is_failed_at_the_deadline(look: Look) -> None:
    with Backend(mute) as backend:
        assert_cut_off(look, f"beacon+http://{backend.place}", backend.port, "exchange")


def test_a_connection_that_is_closed_or_reset_is_failed(look: Look) -> None:
    assert_lost_is_failed(look, "beacon+http")


@generating
@given(answers=garbage(b"HTTP/1.1 ", b"HTTP/1.1 404 ", b"HTTP/1.1 404 Not Found\r\n\r\n"))
def test_no_bytes_make_more_than_a_failure(look: Look, answers: list[bytes]) -> None:
    assert_all_failed(look, answers, lambda backend: f"beacon+http://{backend.place}")


def test_running_out_of_file_descriptors_is_our_own_fault(look: Look, server: BeaconServer) -> None:
    assert look.without_files(server.url) == (OUT_OF_FILES, READY)
