"""beacon+http:// against the Beacon API of a node that is in sync, and of nodes that are not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome
from tests.support.backends import ReceivedRequest, http_response, server_tls
from tests.support.probe_assertions import KeepAliveBackend, assert_reused
from tests.support.servers.beacon import BeaconServer
from tests.support.verdicts import EXPIRES_SOON, READY, TLS_UNTRUSTED, failed, not_ready

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.certificates import Certificate
    from tests.support.check_runner import CheckRunner

EXCHANGE = ("exchange", "", True)
SYNCING = not_ready(ReasonCode.SYNCING)
EXECUTION_OFFLINE = not_ready(ReasonCode.UPSTREAM_OFFLINE)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BeaconServer]:
    with BeaconServer(tmp_path_factory.mktemp("beacon")) as server:
        yield server


@pytest.fixture
def server(running: BeaconServer) -> Iterator[BeaconServer]:
    yield running
    running.reset()


# ---- a node


def test_a_node_in_sync_is_ready(check: CheckRunner, server: BeaconServer) -> None:
    assert check(server.url) == READY


def test_a_node_that_is_syncing_is_not_ready(check: CheckRunner, server: BeaconServer) -> None:
    server.set(is_syncing=True, sync_distance=300)
    for options in ({}, {"max_slot_lag": 1000}):
        assert check(server.url, **options) == SYNCING


@pytest.mark.parametrize("options", [{}, {"max_slot_lag": 1000}])
def test_a_healthy_node_without_its_execution_client_is_not_ready(
    check: CheckRunner, server: BeaconServer, options: dict[str, int]
) -> None:
    server.set(el_offline=True)
    assert check(server.url, **options) == EXECUTION_OFFLINE
    server.set(is_optimistic=True)
    assert check(server.url, **options) == EXECUTION_OFFLINE


@pytest.mark.parametrize("options", [{}, {"max_slot_lag": 1000}])
def test_a_healthy_node_with_an_optimistic_head_is_not_ready(
    check: CheckRunner, server: BeaconServer, options: dict[str, int]
) -> None:
    server.set(is_optimistic=True)
    assert check(server.url, **options) == SYNCING


def test_the_health_of_a_node_has_precedence(check: CheckRunner, server: BeaconServer) -> None:
    server.set(el_offline=True, health=503)
    assert check(server.url) == failed(ReasonCode.UNHEALTHY)
    assert check.steps(server.url) == [("connect", "127.0.0.1", True), EXCHANGE]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (204, ReasonCode.UNEXPECTED_RESPONSE),
        (301, ReasonCode.REDIRECTED),
        (400, ReasonCode.BAD_REQUEST),
        (401, ReasonCode.AUTH_REQUIRED),
        (404, ReasonCode.NOT_FOUND),
        (429, ReasonCode.RATE_LIMITED),
        (500, ReasonCode.SERVER_ERROR),
    ],
)
def test_any_other_status_is_failed(check: CheckRunner, server: BeaconServer, status: int, code: ReasonCode) -> None:
    server.set(health=status)
    assert check(server.url) == failed(code)


def test_a_node_that_is_behind_is_not_ready(check: CheckRunner, server: BeaconServer) -> None:
    server.set(sync_distance=3)
    assert check(server.url, max_slot_lag=3) == READY
    assert check(server.url, max_slot_lag=2) == not_ready(ReasonCode.LAGGING)
    assert check(server.url, max_slot_lag=0) == not_ready(ReasonCode.LAGGING)
    assert check(server.url) == READY


@pytest.mark.parametrize("options", [{}, {"max_slot_lag": 3}])
def test_a_connection_can_be_reused(check: CheckRunner, server: BeaconServer, options: dict[str, int]) -> None:
    assert_reused(check, server.url, server.port, **options)


# ---- invalid responses


def node(syncing: bytes) -> Callable[[ReceivedRequest], bytes]:
    return lambda request: http_response(200) if request.target.endswith("/health") else syncing


@pytest.mark.parametrize(
    "answer",
    [
        http_response(200, '{"data": {}}'),
        http_response(200, '{"data": {"sync_distance": null}}'),
        http_response(200, '{"data": {"sync_distance": "many"}}'),
        http_response(200, '{"data": {"sync_distance": "-1"}}'),
        http_response(200, '{"data": {"sync_distance": "' + "9" * 5000 + '"}}'),
        http_response(404, '{"code": 404}'),
        http_response(403, "only /eth/v1/node/health is open"),
    ],
)
def test_a_node_without_a_sync_status_is_failed_only_if_its_lag_is_needed(check: CheckRunner, answer: bytes) -> None:
    with KeepAliveBackend(node(answer)) as backend:
        url = f"beacon+http://{backend.address}"
        assert check(url, max_slot_lag=3).outcome is Outcome.FAILED
        assert check(url) == READY


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (http_response(200, "<html>"), ReasonCode.UNEXPECTED_RESPONSE),
        (http_response(200, '{"data": [{"sync_distance": "0"}]}'), ReasonCode.UNEXPECTED_RESPONSE),
        (
            http_response(200, '{"data": {"sync_distance": "99", "sync_distance": "0"}}'),
            ReasonCode.UNEXPECTED_RESPONSE,
        ),
        (http_response(200, "[" * 100_000), ReasonCode.UNEXPECTED_RESPONSE),
        (http_response(302, ""), ReasonCode.REDIRECTED),
        (http_response(500, '{"code": 500}'), ReasonCode.SERVER_ERROR),
    ],
)
def test_a_node_with_an_invalid_sync_status_is_failed(check: CheckRunner, answer: bytes, code: ReasonCode) -> None:
    with KeepAliveBackend(node(answer)) as backend:
        url = f"beacon+http://{backend.address}"
        assert check(url, max_slot_lag=3) == failed(code)
        assert check(url) == failed(code)


def test_the_path_of_the_url_and_the_bearer_token_are_sent(check: CheckRunner) -> None:
    lag = http_response(200, json.dumps({"data": {"sync_distance": "0"}}))
    with KeepAliveBackend(node(lag)) as backend:
        assert check(f"beacon+http://{backend.address}/key/", max_slot_lag=0, bearer="swordfish") == READY
        assert [(one.method, one.target) for one in backend.requests] == [
            ("GET", "/key/eth/v1/node/health"),
            ("GET", "/key/eth/v1/node/syncing"),
        ]
        assert {one.headers["authorization"] for one in backend.requests} == {"Bearer swordfish"}
    assert backend.requests_per_connection == [2]


def test_a_certificate_that_expires_soon_is_not_ready(check: CheckRunner, certificate: Certificate) -> None:
    lag = http_response(200, json.dumps({"data": {"sync_distance": "0"}}))
    with KeepAliveBackend(node(lag), tls=server_tls(certificate)) as backend:
        url, ca = f"beacon+https://{backend.address}", str(certificate.certificate)
        for options in ({}, {"max_slot_lag": 3}):
            assert check(url, ca=ca, **options) == READY
            assert check(url, ca=ca, min_cert_days=1, **options) == EXPIRES_SOON
            assert check(url, **options) == TLS_UNTRUSTED
