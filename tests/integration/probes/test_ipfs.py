"""ipfs+http:// against the RPC API of an IPFS daemon and against scripted servers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from tests.support.backends import ReceivedRequest, http_response
from tests.support.probe_assertions import KeepAliveBackend, assert_reused
from tests.support.servers.base import module_server
from tests.support.servers.ipfs import IpfsServer
from tests.support.verdicts import READY, UNEXPECTED_RESPONSE, failed, not_ready

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.check_runner import CheckRunner

TOO_FEW_PEERS = not_ready(ReasonCode.TOO_FEW_PEERS)
ABOUT = http_response(200, json.dumps({"ID": "12D3KooWNode"}))


running = module_server(IpfsServer)


@pytest.fixture
def server(running: IpfsServer) -> Iterator[IpfsServer]:
    yield running
    running.reset()


@pytest.mark.parametrize(
    ("state", "options", "expected"),
    [
        ({"peers": 3}, {"min_peers": 3}, READY),
        ({"peers": 3}, {"min_peers": 4}, TOO_FEW_PEERS),
        ({"peers": 0}, {}, READY),
        ({"peers": 0}, {"min_peers": 1}, TOO_FEW_PEERS),
        ({"is_online": False}, {}, READY),
        ({"is_online": False}, {"min_peers": 1}, failed(ReasonCode.SERVER_ERROR)),
        ({"authorization": "Bearer swordfish"}, {"bearer": "swordfish", "min_peers": 1}, READY),
        ({"authorization": "Bearer swordfish"}, {"bearer": "tunafish"}, failed(ReasonCode.PERMISSION_DENIED)),
    ],
)
def test_a_daemon_with_an_id_is_ready_if_it_has_enough_peers(
    check: CheckRunner, server: IpfsServer, state: dict[str, Any], options: dict[str, Any], expected: object
) -> None:
    server.set(**state)
    assert check(server.url, **options) == expected


def test_a_connection_can_be_reused(check: CheckRunner, server: IpfsServer) -> None:
    assert_reused(check, server.url, server.port, min_peers=1)


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


@pytest.mark.parametrize("answer", ["<html>", "{}", '{"ID": 12}', '["ID"]', '{"ID": "a", "ID": "b"}', "[" * 100_000])
def test_a_daemon_without_an_id_is_failed(check: CheckRunner, answer: str) -> None:
    with KeepAliveBackend(http_response(200, answer)) as backend:
        assert check(f"ipfs+http://{backend.address}") == UNEXPECTED_RESPONSE


@pytest.mark.parametrize("answer", ["{}", '{"Peers": 3}', "no", '{"Peers": [], "Peers": [{}]}'])
def test_a_daemon_without_a_list_of_peers_is_failed(check: CheckRunner, answer: str) -> None:
    with KeepAliveBackend(daemon(http_response(200, answer))) as backend:
        assert check(f"ipfs+http://{backend.address}", min_peers=1) == UNEXPECTED_RESPONSE
