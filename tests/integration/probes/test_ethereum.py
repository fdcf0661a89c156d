"""ethereum+http:// against a real test client (ganache) and against scripted servers."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome
from svcnode.probes.base import MAX_CLOCK_SKEW_S
from tests.support.backends import ReceivedRequest, http_response
from tests.support.probe_assertions import KeepAliveBackend, assert_reused
from tests.support.servers.base import module_server
from tests.support.servers.ganache import CHAIN_ID, GanacheServer
from tests.support.verdicts import READY, failed, not_ready, unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.check_runner import CheckRunner

SYNCING = not_ready(ReasonCode.SYNCING)
WRONG_CHAIN = failed(ReasonCode.WRONG_CHAIN)


server = module_server(GanacheServer)


def test_a_client_in_sync_is_ready_and_its_connection_can_be_reused(check: CheckRunner, server: GanacheServer) -> None:
    server.mine()
    assert check(f"ethereum+http://localhost:{server.port}/", chain_id=CHAIN_ID, min_peers=0) == READY
    assert check(server.url) == check(server.url, min_peers=1) == not_ready(ReasonCode.TOO_FEW_PEERS)
    assert_reused(check, server.url, server.port, chain_id=CHAIN_ID, min_peers=0)


def test_an_old_newest_block_is_not_ready_until_there_is_a_newer_one(check: CheckRunner, server: GanacheServer) -> None:
    server.mine(age_s=300)
    for options in ({}, {"max_block_age": "120s"}):
        assert check(server.url, min_peers=0, **options) == not_ready(ReasonCode.LAGGING)
    for limit in ("1h", "off"):
        assert check(server.url, min_peers=0, max_block_age=limit) == READY
    server.mine()
    assert check(server.url, min_peers=0) == READY


# ---- scripted clients


HEALTHY: dict[str, Any] = {
    "eth_chainId": "0x1",
    "eth_syncing": False,
    "net_peerCount": "0x19",
}
ALL = {"chain_id": 1, "max_block_age": "1d", "min_peers": 5}


def responding(**answers: Any) -> Callable[[ReceivedRequest], bytes]:
    """Each answer is the result of a method, or the bytes of a whole response."""

    def respond(request: ReceivedRequest) -> bytes:
        call = json.loads(request.body)
        block = {"number": "0x10", "timestamp": hex(int(time.time()))}
        result = {**HEALTHY, "eth_getBlockByNumber": block, **answers}[call["method"]]
        if isinstance(result, bytes):
            return result
        body = json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": result})
        return http_response(200, body, Content_Type="application/json")

    return respond


def node(**answers: Any) -> KeepAliveBackend:
    return KeepAliveBackend(responding(**answers))


def error(code: int, message: str) -> bytes:
    return http_response(200, json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": message}}))


def test_methods_are_called_one_after_the_other(check: CheckRunner) -> None:
    """Some clients reject batches, and providers charge for them."""
    with node() as backend:
        assert check(f"ethereum+http://{backend.address}/v3/key?x=y", bearer="swordfish", **ALL) == READY
        calls = [json.loads(request.body) for request in backend.requests]
        assert [call["method"] for call in calls] == [
            "eth_chainId",
            "eth_syncing",
            "eth_getBlockByNumber",
            "net_peerCount",
        ]
        assert [call["params"] for call in calls] == [[], [], ["latest", False], []]
        assert {call["jsonrpc"] for call in calls} == {"2.0"}
        assert {(request.method, request.target) for request in backend.requests} == {("POST", "/v3/key?x=y")}
        assert {request.headers["authorization"] for request in backend.requests} == {"Bearer swordfish"}
    assert backend.requests_per_connection == [4]


def test_a_block_from_the_future_is_not_ready_beyond_a_small_clock_skew(check: CheckRunner) -> None:
    with node(eth_getBlockByNumber={"timestamp": hex(int(time.time() + 3600))}) as backend:
        url = f"ethereum+http://{backend.address}"
        assert check(url) == not_ready(ReasonCode.CLOCK_SKEW)
        assert check(url, max_block_age="60s") == not_ready(ReasonCode.CLOCK_SKEW)
        assert check(url, max_block_age="off") == READY
    near = hex(int(time.time() + MAX_CLOCK_SKEW_S / 2))
    with node(eth_getBlockByNumber={"timestamp": near}, net_peerCount="0x5") as backend:
        assert check(f"ethereum+http://{backend.address}", max_block_age="1s", min_peers=5) == READY
        assert check(f"ethereum+http://{backend.address}", min_peers=6) == not_ready(ReasonCode.TOO_FEW_PEERS)


def test_a_key_in_the_path_is_sent_and_not_shown(check: CheckRunner) -> None:
    key = "9aa3d95b3bc440fa88ea12eaa4456161"
    with node(eth_syncing=error(-32002, f"rejected due to project ID settings of {key}")) as backend:
        url = f"ethereum+http://{backend.address}/v3"
        verdict = check(f"{url}/{key}")
        assert verdict == failed(ReasonCode.SERVER_ERROR)
        assert verdict.reason.endswith(f"{url}/***")
        assert key not in verdict.reason
        assert {request.target for request in backend.requests} == {f"/v3/{key}"}


@pytest.mark.parametrize(("chain_id", "limit_s"), [(1, 120), (8453, 60), (999_999, 120)])
def test_the_chain_says_how_old_its_newest_block_may_be(check: CheckRunner, chain_id: int, limit_s: int) -> None:
    for age_s, expected in ((limit_s - 20, READY), (limit_s + 20, not_ready(ReasonCode.LAGGING))):
        block = {"timestamp": hex(int(time.time() - age_s))}
        with node(eth_chainId=hex(chain_id), eth_getBlockByNumber=block) as backend:
            assert check(f"ethereum+http://{backend.address}") == expected


def test_a_method_that_the_client_does_not_have_says_nothing_about_it(check: CheckRunner) -> None:
    missing = error(-32601, "the method does not exist")
    for method in ("eth_chainId", "eth_syncing", "eth_getBlockByNumber"):
        with node(**{method: missing}) as backend:
            verdict = check(f"ethereum+http://{backend.address}")
            assert verdict == unknown(ReasonCode.NOT_SUPPORTED)
            assert method in verdict.reason
    with node(net_peerCount=missing) as backend:
        assert check(f"ethereum+http://{backend.address}") == READY
        assert check(f"ethereum+http://{backend.address}", min_peers=1) == unknown(ReasonCode.NOT_SUPPORTED)
    for refused in (error(-32004, "unsupported"), error(-32600, "unsupported"), http_response(403), http_response(400)):
        with node(net_peerCount=refused) as backend:
            assert check(f"ethereum+http://{backend.address}") == READY
            assert check(f"ethereum+http://{backend.address}", min_peers=1).outcome is not Outcome.READY


def test_a_client_that_has_all_blocks_and_builds_an_index_is_judged_by_its_newest_block(check: CheckRunner) -> None:
    with node(eth_syncing={"currentBlock": "0x10", "highestBlock": "0x10", "txIndexRemainingBlocks": "0x5"}) as backend:
        assert check(f"ethereum+http://{backend.address}") == READY
        assert check(f"ethereum+http://{backend.address}", max_block_age="off") == SYNCING


@pytest.mark.parametrize(
    ("progress", "numbers"),
    [
        ({"currentBlock": "0x10", "highestBlock": "0x0"}, ["16"]),
        ({"startingBlock": "0x0", "currentBlock": "0x64", "highestBlock": "0xfa"}, ["100", "250"]),
        ({"stages": []}, []),
        (True, []),
    ],
)
def test_a_client_that_is_syncing_is_not_ready(check: CheckRunner, progress: object, numbers: list[str]) -> None:
    with node(eth_syncing=progress) as backend:
        url = f"ethereum+http://{backend.address}"
        verdict = check(url, **ALL)
    assert verdict == SYNCING
    assert re.findall("[0-9]+", verdict.reason.removesuffix(url)) == numbers


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ({"eth_chainId": "0xaa36a7"}, ReasonCode.WRONG_CHAIN),
        ({"eth_chainId": 1}, ReasonCode.UNEXPECTED_RESPONSE),
        ({"eth_syncing": None}, ReasonCode.UNEXPECTED_RESPONSE),
        ({"eth_syncing": "false"}, ReasonCode.UNEXPECTED_RESPONSE),
        ({"net_peerCount": None}, ReasonCode.UNEXPECTED_RESPONSE),
        ({"net_peerCount": "0x"}, ReasonCode.UNEXPECTED_RESPONSE),
        ({"eth_getBlockByNumber": None}, ReasonCode.UNEXPECTED_RESPONSE),
        ({"eth_getBlockByNumber": {}}, ReasonCode.UNEXPECTED_RESPONSE),
        ({"net_peerCount": error(-32000, "overloaded")}, ReasonCode.SERVER_ERROR),
        ({"eth_syncing": http_response(401, "no token")}, ReasonCode.AUTH_REQUIRED),
        (
            {"eth_syncing": http_response(200, '{"id": 1, "result": {"currentBlock": "0x1"}, "result": false}')},
            ReasonCode.PROTOCOL_ERROR,
        ),
    ],
)
def test_an_invalid_response_is_failed(check: CheckRunner, answers: dict[str, Any], code: ReasonCode) -> None:
    with node(**answers) as backend:
        assert check(f"ethereum+http://{backend.address}", **ALL) == failed(code)
