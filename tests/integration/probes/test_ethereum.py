"""ethereum+http:// against a real test client (ganache) and against scripted servers."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given

from svcnode.core.codes import ReasonCode
from svcnode.probes.base import MAX_CLOCK_SKEW_S
from tests.support.backends import Backend, ReceivedRequest, closed_port, http_response, server_tls, unresponsive
from tests.support.http_server import LOOPS, WAIT_TIMEOUT_S, becomes_true
from tests.support.probe_assertions import (
    REUSED,
    KeepAliveBackend,
    assert_all_failed,
    assert_disconnect_is_failed,
    assert_no_leaks,
    assert_reused,
    assert_times_out,
    check_with_steps,
    client_count,
    few_examples,
    garbage,
    reusing,
)
from tests.support.servers.ganache import CHAIN_ID, GanacheServer
from tests.support.verdicts import CONNECTION_REFUSED, EXPIRES_SOON, READY, TLS_UNTRUSTED, failed, not_ready

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from svcnode.core.model import Verdict
    from tests.support.certificates import Certificate
    from tests.support.check_runner import CheckRunner

EXCHANGE = ("exchange", "", True)
SYNCING = not_ready(ReasonCode.SYNCING)
WRONG_CHAIN = failed(ReasonCode.WRONG_CHAIN)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GanacheServer]:
    with GanacheServer(tmp_path_factory.mktemp("ganache")) as server:
        yield server


# ---- a node


def test_a_client_in_sync_is_ready(check: CheckRunner, server: GanacheServer) -> None:
    assert check(server.url) == READY
    assert check(f"ethereum+http://localhost:{server.port}/", chain_id=CHAIN_ID) == READY


def test_a_client_of_another_chain_is_failed(check: CheckRunner, server: GanacheServer) -> None:
    assert check(server.url, chain_id=1) == WRONG_CHAIN


def test_an_old_newest_block_is_not_ready_until_there_is_a_newer_one(check: CheckRunner, server: GanacheServer) -> None:
    server.mine(age_s=300)
    assert check(server.url, max_block_age="120s") == not_ready(ReasonCode.LAGGING)
    assert check(server.url, max_block_age="1h") == READY
    assert check(server.url) == READY
    server.mine()
    assert check(server.url, max_block_age="120s") == READY


def test_a_node_with_too_few_peers_is_not_ready(check: CheckRunner, server: GanacheServer) -> None:
    assert check(server.url, min_peers=0) == READY
    assert check(server.url, min_peers=1) == not_ready(ReasonCode.TOO_FEW_PEERS)


def test_all_requests_use_one_connection(check: CheckRunner, server: GanacheServer) -> None:
    server.mine()
    options = {"chain_id": CHAIN_ID, "max_block_age": "1h", "min_peers": 1}
    assert check.steps(server.url, **options) == [("connect", "127.0.0.1", True), *[EXCHANGE] * 4]


def test_a_check_leaves_nothing_open(check: CheckRunner, server: GanacheServer) -> None:
    assert assert_no_leaks(check, server.url, server.port, chain_id=CHAIN_ID) == READY
    assert becomes_true(lambda: not client_count(server.port))


def test_a_frozen_node_is_failed_at_the_deadline(check: CheckRunner, server: GanacheServer) -> None:
    server.freeze()
    try:
        assert_times_out(check, server.url, server.port, "exchange")
    finally:
        server.thaw()


# ---- reuse


def test_a_connection_can_be_reused(check: CheckRunner, server: GanacheServer) -> None:
    assert_reused(check, server.url, server.port, chain_id=CHAIN_ID)


def test_a_reused_connection_outlives_a_restart_of_the_node(server: GanacheServer) -> None:
    """On both event loops at once, because a restart takes seconds."""
    restarted = threading.Barrier(len(LOOPS), action=server.restart)

    async def main() -> list[Verdict]:
        with reusing(server.url) as probe:
            verdicts = [(await check_with_steps(probe))[0]]
            restarted.wait(12 * WAIT_TIMEOUT_S)
            return [*verdicts, (await check_with_steps(probe))[0]]

    def run(name: str) -> list[Verdict]:
        with asyncio.Runner(loop_factory=LOOPS[name]) as runner:
            return runner.run(main())

    with ThreadPoolExecutor(len(LOOPS)) as pool:
        assert list(pool.map(run, LOOPS)) == [[READY, READY]] * len(LOOPS)


# ---- scripted clients


HEALTHY: dict[str, Any] = {
    "eth_chainId": "0x1",
    "eth_syncing": False,
    "eth_getBlockByNumber": {"number": "0x10", "timestamp": hex(int(time.time()))},
    "net_peerCount": "0x19",
}
ALL = {"chain_id": 1, "max_block_age": "10m", "min_peers": 5}


def responding(**answers: Any) -> Callable[[ReceivedRequest], bytes]:
    """Each answer is the result of a method, or the bytes of a whole response."""

    def respond(request: ReceivedRequest) -> bytes:
        call = json.loads(request.body)
        result = {**HEALTHY, **answers}[call["method"]]
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


def test_methods_for_options_that_are_not_set_are_not_called(check: CheckRunner) -> None:
    with node() as backend:
        assert check(f"ethereum+http://{backend.address}") == READY
        assert [json.loads(request.body)["method"] for request in backend.requests] == ["eth_syncing"]


def test_a_block_from_the_future_is_not_ready(check: CheckRunner) -> None:
    with node(eth_getBlockByNumber={"timestamp": hex(int(time.time() + 3600))}) as backend:
        url = f"ethereum+http://{backend.address}"
        assert check(url, max_block_age="60s") == not_ready(ReasonCode.CLOCK_SKEW)
        assert check(url) == READY


def test_a_small_clock_skew_is_ready(check: CheckRunner) -> None:
    with node(eth_getBlockByNumber={"timestamp": hex(int(time.time() + MAX_CLOCK_SKEW_S / 2))}) as backend:
        assert check(f"ethereum+http://{backend.address}", max_block_age="1s") == READY


def test_a_key_in_the_path_is_sent_and_not_shown(check: CheckRunner) -> None:
    key = "9aa3d95b3bc440fa88ea12eaa4456161"
    with node(eth_syncing=error(-32002, f"rejected due to project ID settings of {key}")) as backend:
        url = f"ethereum+http://{backend.address}/v3"
        verdict = check(f"{url}/{key}")
        assert verdict == failed(ReasonCode.SERVER_ERROR)
        assert verdict.reason.endswith(f"{url}/***")
        assert key not in verdict.reason
        assert {request.target for request in backend.requests} == {f"/v3/{key}"}


@pytest.mark.parametrize(
    ("progress", "numbers"),
    [
        ({"startingBlock": "0x0", "currentBlock": "0x64", "highestBlock": "0xfa"}, ["100", "250"]),
        ({"stages": []}, []),
        (True, []),
        (None, []),
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
        ({"eth_chainId": "1"}, ReasonCode.UNEXPECTED_RESPONSE),
        ({"net_peerCount": None}, ReasonCode.UNEXPECTED_RESPONSE),
        ({"net_peerCount": 25}, ReasonCode.UNEXPECTED_RESPONSE),
        ({"net_peerCount": "0x"}, ReasonCode.UNEXPECTED_RESPONSE),
        ({"eth_getBlockByNumber": None}, ReasonCode.UNEXPECTED_RESPONSE),
        ({"eth_getBlockByNumber": {}}, ReasonCode.UNEXPECTED_RESPONSE),
        ({"eth_syncing": error(-32601, "no such method")}, ReasonCode.NOT_SUPPORTED),
        ({"eth_syncing": error(-32602, "invalid params")}, ReasonCode.BAD_REQUEST),
        ({"net_peerCount": error(-32000, "overloaded")}, ReasonCode.SERVER_ERROR),
        ({"eth_syncing": http_response(401, "no token")}, ReasonCode.AUTH_REQUIRED),
        ({"eth_syncing": http_response(200, "<html>")}, ReasonCode.PROTOCOL_ERROR),
        ({"eth_syncing": http_response(200, '{"result": false}')}, ReasonCode.PROTOCOL_ERROR),
        ({"eth_syncing": http_response(200, '[{"result": 0}]')}, ReasonCode.PROTOCOL_ERROR),
        ({"eth_syncing": http_response(200, "[" * 100_000)}, ReasonCode.PROTOCOL_ERROR),
        (
            {"eth_syncing": http_response(200, '{"id": 1, "result": {"currentBlock": "0x1"}, "result": false}')},
            ReasonCode.PROTOCOL_ERROR,
        ),
    ],
)
def test_an_invalid_response_is_failed(check: CheckRunner, answers: dict[str, Any], code: ReasonCode) -> None:
    with node(**answers) as backend:
        assert check(f"ethereum+http://{backend.address}", **ALL) == failed(code)


def test_a_client_exactly_at_the_limits_is_ready(check: CheckRunner) -> None:
    with node(net_peerCount="0x5") as backend:
        assert check(f"ethereum+http://{backend.address}", **ALL) == READY


def test_a_client_that_closes_the_connection_after_each_response_is_ready(check: CheckRunner) -> None:
    def respond(request: ReceivedRequest) -> bytes:
        return responding()(request).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)

    with KeepAliveBackend(respond) as backend:
        assert check(f"ethereum+http://{backend.address}", **ALL) == READY
    assert backend.requests_per_connection == [1, 1, 1, 1]


def test_a_change_is_found_on_a_reused_connection(check: CheckRunner) -> None:
    async def main(backend: KeepAliveBackend) -> None:
        url = f"ethereum+http://{backend.address}"
        with reusing(url, **ALL) as probe:
            assert (await check_with_steps(probe))[0] == READY
            backend.response = responding(eth_syncing=True)
            verdict, steps = await check_with_steps(probe)
            assert (verdict, steps[0]) == (SYNCING, REUSED)

    with node() as backend:
        check.run(main(backend))
    assert backend.requests_per_connection == [6]


def test_a_certificate_that_expires_soon_is_not_ready(check: CheckRunner, certificate: Certificate) -> None:
    with KeepAliveBackend(responding(), tls=server_tls(certificate)) as backend:
        url, ca = f"ethereum+https://{backend.address}", str(certificate.certificate)
        assert check(url, ca=ca, **ALL) == READY
        assert check(url, ca=ca, min_cert_days=1, **ALL) == EXPIRES_SOON
        assert check(url) == TLS_UNTRUSTED
        assert check(url, ca=ca, min_cert_days=1, **{**ALL, "chain_id": 5}) == WRONG_CHAIN


def test_no_secret_is_shown(check: CheckRunner) -> None:
    with node(eth_syncing=error(-32000, "no such key: swordfish")) as backend:
        in_url = check.with_timeout(WAIT_TIMEOUT_S, f"ethereum+http://me:swordfish@{backend.address}/?key=abc")
        in_option = check.with_timeout(WAIT_TIMEOUT_S, f"ethereum+http://{backend.address}", bearer="swordfish")
    assert in_url.reason.endswith(f"ethereum+http://me:***@{backend.address}/?***")
    for verdict in (in_url, in_option):
        assert verdict == failed(ReasonCode.SERVER_ERROR)
        assert "swordfish" not in verdict.reason


# ---- not a node


def test_a_closed_port_is_failed(check: CheckRunner) -> None:
    with closed_port() as port:
        assert check(f"ethereum+http://127.0.0.1:{port}") == CONNECTION_REFUSED


def test_an_unresponsive_port_is_failed_at_the_deadline(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert_times_out(check, f"ethereum+http://{backend.address}", backend.port, "exchange")


def test_a_connection_that_is_closed_or_reset_is_failed(check: CheckRunner) -> None:
    assert_disconnect_is_failed(check, "ethereum+http")


@few_examples
@given(answers=garbage(b"HTTP/1.1 200 OK\r\n\r\n", b'HTTP/1.1 200 OK\r\n\r\n{"id": 1, "result": "', b"HTTP/1.1 "))
def test_random_bytes_are_failed(check: CheckRunner, answers: list[bytes]) -> None:
    assert_all_failed(check, answers, lambda backend: f"ethereum+http://{backend.address}", chain_id=1)
