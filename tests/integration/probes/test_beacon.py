"""beacon+http:// against the Beacon API of a node that keeps up, and of nodes that do not."""

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
from tests.support.servers.beacon import BeaconServer
from tests.support.verdicts import EXPIRES_SOON, NO_DESCRIPTORS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.probes.conftest import CheckRunner
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


def test_a_node_that_keeps_up_is_ready(check: CheckRunner, server: BeaconServer) -> None:
    assert check(server.url) == READY
    assert check.steps(server.url) == [("connect", "127.0.0.1", True), EXCHANGE]


def test_a_node_that_is_syncing_is_not_ready(check: CheckRunner, server: BeaconServer) -> None:
    server.set(is_syncing=True, sync_distance=300)
    for options in ({}, {"max_slot_lag": 1000}):
        assert check(server.url, **options) == Verdict.not_ready(f"syncing: {server.url}")


def test_a_node_in_trouble_is_failed(check: CheckRunner, server: BeaconServer) -> None:
    server.set(is_initialised=False)
    for options in ({}, {"max_slot_lag": 1000}):
        assert check(server.url, **options) == Verdict.failed(f"not initialized, or in trouble: {server.url}")


@pytest.mark.parametrize("status", [204, 301, 400, 401, 404, 429, 500])
def test_any_other_answer_is_failed(check: CheckRunner, server: BeaconServer, status: int) -> None:
    server.set(health=status)
    assert check(server.url) == Verdict.failed(f"answered {status}, which is no answer of a beacon node: {server.url}")


def test_a_node_that_is_behind_is_not_ready(check: CheckRunner, server: BeaconServer) -> None:
    server.set(sync_distance=3)
    assert check(server.url, max_slot_lag=3) == READY
    assert check(server.url, max_slot_lag=2) == Verdict.not_ready(f"3 slots behind, max_slot_lag is 2: {server.url}")
    assert check(server.url, max_slot_lag=0) == Verdict.not_ready(f"3 slots behind, max_slot_lag is 0: {server.url}")
    assert check(server.url) == READY


def test_both_are_asked_on_one_connection(check: CheckRunner, server: BeaconServer) -> None:
    assert check.steps(server.url, max_slot_lag=0) == [("connect", "127.0.0.1", True), EXCHANGE, EXCHANGE]


def test_nothing_is_left_of_a_check(check: CheckRunner, server: BeaconServer) -> None:
    for options in ({}, {"max_slot_lag": 3}):
        assert assert_no_leaks(check, server.url, server.port, **options) == READY
    assert becomes_true(lambda: not client_count(server.port))


def test_a_frozen_node_is_failed_at_the_deadline(check: CheckRunner, server: BeaconServer) -> None:
    server.freeze()
    try:
        assert_times_out(check, server.url, server.port, "exchange")
        assert_times_out(check, server.url, server.port, "exchange", max_slot_lag=3)
    finally:
        server.thaw()


# ---- reuse


@pytest.mark.parametrize("options", [{}, {"max_slot_lag": 3}])
def test_a_connection_can_be_kept(check: CheckRunner, server: BeaconServer, options: dict[str, int]) -> None:
    assert_reused(check, server.url, server.port, **options)


def test_a_reused_connection_outlives_restarts_of_the_node(check: CheckRunner, server: BeaconServer) -> None:
    assert_survives_restarts(check, server)


def test_a_reused_connection_sees_what_changes(check: CheckRunner, server: BeaconServer) -> None:
    async def story() -> None:
        with reusing(server.url) as probe:
            assert (await check_with_steps(probe))[0] == READY
            server.set(is_syncing=True)
            assert await check_with_steps(probe) == (Verdict.not_ready(f"syncing: {server.url}"), [REUSED, EXCHANGE])

    check.run(story())


# ---- answers that are not as they should be


def node(syncing: bytes) -> Callable[[ReceivedRequest], bytes]:
    return lambda request: http_response(200) if request.target.endswith("/health") else syncing


@pytest.mark.parametrize(
    "answer",
    [
        http_response(404, '{"code": 404}'),
        http_response(200, "<html>"),
        http_response(200, '{"data": {}}'),
        http_response(200, '{"data": {"sync_distance": null}}'),
        http_response(200, '{"data": {"sync_distance": "many"}}'),
        http_response(200, '{"data": {"sync_distance": "-1"}}'),
        http_response(200, '{"data": [{"sync_distance": "0"}]}'),
        http_response(200, '{"data": {"sync_distance": "99", "sync_distance": "0"}}'),
        http_response(200, "[" * 100_000),
        http_response(200, '{"data": {"sync_distance": "' + "9" * 5000 + '"}}'),
    ],
)
def test_a_node_that_does_not_tell_how_far_behind_it_is_is_failed(check: CheckRunner, answer: bytes) -> None:
    with KeepAliveBackend(node(answer)) as backend:
        url = f"beacon+http://{backend.address}"
        assert check(url, max_slot_lag=3) == Verdict.failed(f"it does not tell how far behind it is: {url}")
        assert check(url) == READY


def test_what_stands_before_the_paths_and_who_asks_are_said(check: CheckRunner) -> None:
    lag = http_response(200, json.dumps({"data": {"sync_distance": "0"}}))
    with KeepAliveBackend(node(lag)) as backend:
        assert check(f"beacon+http://{backend.address}/key/", max_slot_lag=0, bearer="swordfish") == READY
        assert [(one.method, one.target) for one in backend.requests] == [
            ("GET", "/key/eth/v1/node/health"),
            ("GET", "/key/eth/v1/node/syncing"),
        ]
        assert {one.headers["authorization"] for one in backend.requests} == {"Bearer swordfish"}
    assert backend.requests_per_connection == [2]


def test_a_certificate_that_ends_soon_is_not_ready(check: CheckRunner, certificate: Certificate) -> None:
    lag = http_response(200, json.dumps({"data": {"sync_distance": "0"}}))
    with KeepAliveBackend(node(lag), tls=server_tls(certificate)) as backend:
        url, ca = f"beacon+https://{backend.address}", str(certificate.certificate)
        for options in ({}, {"max_slot_lag": 3}):
            assert check(url, ca=ca, **options) == READY
            assert check(url, ca=ca, min_cert_days=1, **options) == EXPIRES_SOON
            assert check(url, **options) == Verdict.failed(
                f"its certificate is not valid: self-signed certificate: {url}"
            )


# ---- what is no node


def test_a_port_that_refuses_is_failed(check: CheckRunner) -> None:
    with closed_port() as port:
        url = f"beacon+http://127.0.0.1:{port}"
        assert check(url) == Verdict.failed(f"connection refused: {url}")


def test_a_mute_port_is_failed_at_the_deadline(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert_times_out(check, f"beacon+http://{backend.address}", backend.port, "exchange")


def test_a_connection_that_is_closed_or_reset_is_failed(check: CheckRunner) -> None:
    assert_disconnect_is_failed(check, "beacon+http")


@few_examples
@given(answers=garbage(b"HTTP/1.1 ", b"HTTP/1.1 404 ", b"HTTP/1.1 404 Not Found\r\n\r\n"))
def test_no_bytes_make_more_than_a_failure(check: CheckRunner, answers: list[bytes]) -> None:
    assert_all_failed(check, answers, lambda backend: f"beacon+http://{backend.address}")


def test_running_out_of_file_descriptors_is_our_own_fault(check: CheckRunner, server: BeaconServer) -> None:
    assert check.without_descriptors(server.url) == (NO_DESCRIPTORS, READY)
