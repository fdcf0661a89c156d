"""beacon+http:// against the Beacon API of a node that is in sync, and of nodes that are not."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome
from tests.support.backends import ReceivedRequest, http_response
from tests.support.probe_assertions import KeepAliveBackend, assert_reused
from tests.support.servers.base import module_server
from tests.support.servers.beacon import BeaconServer
from tests.support.verdicts import READY, failed, not_ready, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.check_runner import CheckRunner

LAGGING = not_ready(ReasonCode.LAGGING)
TOO_FEW_PEERS = not_ready(ReasonCode.TOO_FEW_PEERS)
SYNCING = not_ready(ReasonCode.SYNCING)
EXECUTION_OFFLINE = not_ready(ReasonCode.UPSTREAM_OFFLINE)


running = module_server(BeaconServer)


@pytest.fixture
def server(running: BeaconServer) -> Iterator[BeaconServer]:
    yield running
    running.reset()


def test_a_node_in_sync_is_ready_and_its_connection_can_be_reused(check: CheckRunner, server: BeaconServer) -> None:
    for options in ({}, {"max_slot_lag": 3}):
        assert_reused(check, server.url, server.port, **options)


@pytest.mark.parametrize(
    ("state", "options", "expected"),
    [
        ({"is_syncing": True, "sync_distance": 300}, {"max_slot_lag": 1000}, SYNCING),
        ({"el_offline": True}, {}, EXECUTION_OFFLINE),
        ({"el_offline": True, "is_optimistic": True}, {"max_slot_lag": 1000}, EXECUTION_OFFLINE),
        ({"is_optimistic": True}, {}, SYNCING),
        ({"el_offline": True, "health": 503}, {}, failed(ReasonCode.UNHEALTHY)),
        ({"health": 204}, {}, failed(ReasonCode.UNEXPECTED_RESPONSE)),
        ({"health": 301}, {}, failed(ReasonCode.REDIRECTED)),
        # Some say that they are healthy while they sync, or stand still with everything that they have heard of.
        ({"is_syncing": True, "sync_distance": 50_000, "health": 200}, {}, SYNCING),
        ({"sync_distance": 9}, {}, LAGGING),
        ({"missed_slots": 20}, {}, LAGGING),
        ({"missed_slots": 20}, {"max_slot_lag": 30}, READY),
        ({"missed_slots": -20}, {}, not_ready(ReasonCode.CLOCK_SKEW)),
        ({"missed_slots": -1}, {}, READY),
        ({"peers": 0}, {}, TOO_FEW_PEERS),
        ({"peers": 0}, {"min_peers": 0}, READY),
        ({"peers": 4}, {"min_peers": 5}, TOO_FEW_PEERS),
        ({"sync_distance": 3}, {}, READY),
        ({"sync_distance": 3}, {"max_slot_lag": 3}, READY),
        ({"sync_distance": 3}, {"max_slot_lag": 2}, LAGGING),
        ({"sync_distance": 3}, {"max_slot_lag": 0}, LAGGING),
    ],
)
def test_the_health_of_a_node_counts_before_its_sync_status(
    check: CheckRunner, server: BeaconServer, state: dict[str, Any], options: dict[str, int], expected: object
) -> None:
    server.set(**state)
    assert check(server.url, **options) == expected


def node(syncing: bytes) -> Callable[[ReceivedRequest], bytes]:
    """One that offers nothing but its health and this sync status."""

    def respond(request: ReceivedRequest) -> bytes:
        pages = {"health": http_response(200), "syncing": syncing}
        return pages.get(request.target.rpartition("/")[2], http_response(404, '{"code": 404}'))

    return respond


def test_what_a_node_does_not_offer_says_nothing_about_it(check: CheckRunner) -> None:
    with KeepAliveBackend(node(http_response(404, '{"code": 404}'))) as backend:
        url = f"beacon+http://{backend.address}"
        for option in ("max_slot_lag", "min_peers"):
            assert check(url, **{option: 1}) == unknown(ReasonCode.NOT_FOUND)
        verdict = check(url)
        assert (verdict.outcome, "health" in verdict.reason) == (Outcome.READY, True)
    with KeepAliveBackend(node(http_response(401))) as backend:
        assert check(f"beacon+http://{backend.address}") == failed(ReasonCode.AUTH_REQUIRED)


def test_a_node_that_learns_the_genesis_later_is_judged_by_the_clock_from_then_on(
    check: CheckRunner, server: BeaconServer
) -> None:
    server.set(missing=["/eth/v1/beacon/genesis"], missed_slots=20)
    results = check.sequence(server.url, lambda: server.set(missing=[]))
    assert [verdict for verdict, _ in results] == [READY, LAGGING]


def test_a_chain_that_begins_again_is_judged_by_its_new_genesis(check: CheckRunner, server: BeaconServer) -> None:
    results = check.sequence(
        server.url,
        lambda: server.set(genesis_s=int(time.time()) - 600),
        lambda: server.set(missed_slots=20),
        lambda: server.set(missing=["/eth/v1/beacon/genesis"]),  # that is no good news
        lambda: server.set(missing=[], missed_slots=0),
    )
    assert [verdict for verdict, _ in results] == [READY, READY, LAGGING, LAGGING, READY]


SYNCED = {"head_slot": "9", "sync_distance": "0", "is_syncing": False, "is_optimistic": False, "el_offline": False}


@pytest.mark.parametrize(
    "changes",
    [
        *({"sync_distance": value} for value in (None, "many", "-1", "9" * 5000)),
        *({"head_slot": value} for value in (None, "abc", "-5", ["5"])),
        *({key: "true"} for key in ("is_syncing", "is_optimistic", "el_offline")),
        {"is_syncing": None},
    ],
)
def test_a_sync_status_with_an_invalid_value_is_failed(check: CheckRunner, changes: dict[str, Any]) -> None:
    with KeepAliveBackend(node(http_response(200, json.dumps({"data": SYNCED})))) as backend:
        assert check(f"beacon+http://{backend.address}") == READY
    with KeepAliveBackend(node(http_response(200, json.dumps({"data": SYNCED | changes})))) as backend:
        assert check(f"beacon+http://{backend.address}") == failed(ReasonCode.UNEXPECTED_RESPONSE)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"SECONDS_PER_SLOT": "12"}, READY),
        ({"SLOT_DURATION_MS": "12000"}, READY),
        ({"SLOT_DURATION_MS": "12000", "SECONDS_PER_SLOT": "6"}, READY),
        ({"SLOT_DURATION_MS": "6000", "SECONDS_PER_SLOT": "12"}, LAGGING),
    ],
)
def test_the_time_of_a_slot_is_that_in_milliseconds_if_there_is_one(
    check: CheckRunner, spec: dict[str, str], expected: object
) -> None:
    pages = {"health": {}, "syncing": SYNCED | {"head_slot": "100"}, "spec": spec, "peer_count": {"connected": "9"}}
    pages["genesis"] = {"genesis_time": str(int(time.time()) - 1200)}

    def respond(request: ReceivedRequest) -> bytes:
        return http_response(200, json.dumps({"data": pages[request.target.rpartition("/")[2]]}))

    with KeepAliveBackend(respond) as backend:
        assert check(f"beacon+http://{backend.address}") == expected


@pytest.mark.parametrize(
    "spec", [{}, {"SECONDS_PER_SLOT": "0"}, {"SECONDS_PER_SLOT": "twelve"}, {"SLOT_DURATION_MS": None}]
)
def test_times_of_the_chain_that_are_not_valid_are_failed(check: CheckRunner, spec: dict[str, str]) -> None:
    pages = {"health": {}, "syncing": SYNCED, "genesis": {"genesis_time": "1606824023"}, "spec": spec}

    def respond(request: ReceivedRequest) -> bytes:
        return http_response(200, json.dumps({"data": pages[request.target.rpartition("/")[2]]}))

    with KeepAliveBackend(respond) as backend:
        assert check(f"beacon+http://{backend.address}") == failed(ReasonCode.UNEXPECTED_RESPONSE)


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
    lag = http_response(200, json.dumps({"data": SYNCED}))
    with KeepAliveBackend(node(lag)) as backend:
        assert check(f"beacon+http://{backend.address}/key/", max_slot_lag=0, bearer="swordfish") == READY
        assert [(one.method, one.target) for one in backend.requests] == [
            ("GET", "/key/eth/v1/node/health"),
            ("GET", "/key/eth/v1/node/syncing"),
            ("GET", "/key/eth/v1/beacon/genesis"),
            ("GET", "/key/eth/v1/config/spec"),
            ("GET", "/key/eth/v1/node/peer_count"),
        ]
        assert {one.headers["authorization"] for one in backend.requests} == {"Bearer swordfish"}
    assert backend.requests_per_connection == [5]
