"""ethereum+http:// against a real node for tests, and against servers that answer as nodes in trouble do."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given

from svcnode.core.model import Outcome, Verdict
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
from tests.support.verdicts import EXPIRES_SOON

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.probes.conftest import CheckRunner
    from tests.support.certificates import Certificate

READY = Verdict.ready()
EXCHANGE = ("exchange", "", True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GanacheServer]:
    with GanacheServer(tmp_path_factory.mktemp("ganache")) as server:
        yield server


# ---- a node


def test_a_node_that_is_in_step_is_ready(check: CheckRunner, server: GanacheServer) -> None:
    assert check(server.url) == READY
    assert check(f"ethereum+http://localhost:{server.port}/", chain_id=CHAIN_ID) == READY


def test_a_node_of_another_chain_is_failed(check: CheckRunner, server: GanacheServer) -> None:
    assert check(server.url, chain_id=1) == Verdict.failed(f"it follows chain {CHAIN_ID}, not 1: {server.url}")


def test_a_node_whose_newest_block_is_old_is_not_ready_until_it_has_a_newer_one(
    check: CheckRunner, server: GanacheServer
) -> None:
    server.mine(age_s=300)
    verdict = check(server.url, max_block_age="120s")
    assert verdict.outcome is Outcome.NOT_READY
    words, _, rest = verdict.reason.removeprefix("its newest block is ").partition(" s old, ")
    assert 300 <= int(words) < 310
    assert rest == f"max_block_age is 120 s: {server.url}"
    assert check(server.url, max_block_age="1h") == READY
    assert check(server.url) == READY
    server.mine()
    assert check(server.url, max_block_age="120s") == READY


def test_a_node_with_too_few_peers_is_not_ready(check: CheckRunner, server: GanacheServer) -> None:
    assert check(server.url, min_peers=0) == READY
    assert check(server.url, min_peers=1) == Verdict.not_ready(f"0 peers, min_peers is 1: {server.url}")


def test_all_is_asked_on_one_connection(check: CheckRunner, server: GanacheServer) -> None:
    server.mine()
    asked = {"chain_id": CHAIN_ID, "max_block_age": "120s", "min_peers": 1}
    assert check.steps(server.url, **asked) == [("connect", "127.0.0.1", True), *[EXCHANGE] * 4]


def test_nothing_is_left_of_a_check(check: CheckRunner, server: GanacheServer) -> None:
    assert assert_no_leaks(check, server.url, server.port, chain_id=CHAIN_ID) == READY
    assert becomes_true(lambda: not client_count(server.port))


def test_a_frozen_node_is_failed_at_the_deadline(check: CheckRunner, server: GanacheServer) -> None:
    server.freeze()
    try:
        assert_times_out(check, server.url, server.port, "exchange")
    finally:
        server.thaw()


# ---- reuse


def test_a_connection_can_be_kept(check: CheckRunner, server: GanacheServer) -> None:
    assert_reused(check, server.url, server.port, chain_id=CHAIN_ID)


def test_a_reused_connection_outlives_a_restart_of_the_node(server: GanacheServer) -> None:
    """On both loops at once, since it takes seconds."""
    restarted = threading.Barrier(len(LOOPS), action=server.restart)

    async def story() -> list[Verdict]:
        with reusing(server.url) as probe:
            verdicts = [(await check_with_steps(probe))[0]]
            restarted.wait(12 * WAIT_TIMEOUT_S)
            return [*verdicts, (await check_with_steps(probe))[0]]

    def run(name: str) -> list[Verdict]:
        with asyncio.Runner(loop_factory=LOOPS[name]) as runner:
            return runner.run(story())

    with ThreadPoolExecutor(len(LOOPS)) as pool:
        assert list(pool.map(run, LOOPS)) == [[READY, READY]] * len(LOOPS)


# ---- nodes in trouble


HEALTHY: dict[str, Any] = {
    "eth_chainId": "0x1",
    "eth_syncing": False,
    "eth_getBlockByNumber": {"number": "0x10", "timestamp": hex(int(time.time()))},
    "net_peerCount": "0x19",
}
ALL = {"chain_id": 1, "max_block_age": "10m", "min_peers": 5}


def answering(**answers: Any) -> Callable[[ReceivedRequest], bytes]:
    """Every method with a result, or with bytes of its own."""

    def answer(request: ReceivedRequest) -> bytes:
        call = json.loads(request.body)
        result = {**HEALTHY, **answers}[call["method"]]
        if isinstance(result, bytes):
            return result
        body = json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": result})
        return http_response(200, body, Content_Type="application/json")

    return answer


def node(**answers: Any) -> KeepAliveBackend:
    return KeepAliveBackend(answering(**answers))


def error(code: int, message: str) -> bytes:
    return http_response(200, json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": message}}))


def test_methods_are_called_one_after_the_other(check: CheckRunner) -> None:
    """Batches are refused by some nodes, and metered by others."""
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


def test_only_what_is_asked_for_is_asked(check: CheckRunner) -> None:
    with node() as backend:
        assert check(f"ethereum+http://{backend.address}") == READY
        assert [json.loads(request.body)["method"] for request in backend.requests] == ["eth_syncing"]


def test_a_block_from_the_future_is_not_ready_or_it_would_stay_young_for_as_long(check: CheckRunner) -> None:
    dated = time.time() + 3600
    with node(eth_getBlockByNumber={"timestamp": hex(int(dated))}) as backend:
        url = f"ethereum+http://{backend.address}"
        verdict = check(url, max_block_age="60s")
        assert check(url) == READY  # nobody asked
    assert verdict.outcome is Outcome.NOT_READY
    words, _, rest = verdict.reason.removeprefix("its newest block is dated ").partition(" s in the future, ")
    assert 3540 < int(words) <= 3600
    assert rest == f"so the clocks disagree and its age is not known: {url}"


def test_the_clocks_of_a_node_may_differ_a_little_from_ours(check: CheckRunner) -> None:
    with node(eth_getBlockByNumber={"timestamp": hex(int(time.time() + MAX_CLOCK_SKEW_S / 2))}) as backend:
        assert check(f"ethereum+http://{backend.address}", max_block_age="1s") == READY


def test_a_key_in_the_path_is_sent_and_shown_nowhere(check: CheckRunner) -> None:
    key = "9aa3d95b3bc440fa88ea12eaa4456161"
    with node(eth_syncing=error(-32002, f"rejected due to project ID settings of {key}")) as backend:
        url = f"ethereum+http://{backend.address}/v3"
        assert check(f"{url}/{key}") == Verdict.failed(
            f"eth_syncing: error -32002: rejected due to project ID settings of ***: {url}/***"
        )
        assert {request.target for request in backend.requests} == {f"/v3/{key}"}


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        ({"startingBlock": "0x0", "currentBlock": "0x64", "highestBlock": "0xfa"}, "syncing, at block 100 of 250"),
        ({"stages": []}, "syncing"),
        (True, "syncing"),
        (None, "syncing"),
    ],
)
def test_a_node_that_is_syncing_is_not_ready(check: CheckRunner, progress: object, words: str) -> None:
    with node(eth_syncing=progress) as backend:
        url = f"ethereum+http://{backend.address}"
        assert check(url, **ALL) == Verdict.not_ready(f"{words}: {url}")


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"eth_chainId": "0xaa36a7"}, "it follows chain 11155111, not 1"),
        ({"eth_chainId": 1}, "what should be a number is '1'"),
        ({"eth_chainId": "1"}, "what should be a number is '1'"),
        ({"net_peerCount": None}, "what should be a number is 'None'"),
        ({"net_peerCount": 25}, "what should be a number is '25'"),
        ({"net_peerCount": "0x"}, "what should be a number is '0x'"),
        ({"eth_getBlockByNumber": None}, "eth_getBlockByNumber: there is no newest block"),
        ({"eth_getBlockByNumber": {}}, "what should be a number is 'None'"),
        ({"eth_syncing": error(-32601, "no such method")}, "eth_syncing: error -32601: no such method"),
        ({"net_peerCount": error(-32000, "overloaded")}, "net_peerCount: error -32000: overloaded"),
        (
            {"eth_syncing": http_response(401, "who are you?")},
            "eth_syncing: answered 401 with what is no JSON-RPC reply",
        ),
        ({"eth_syncing": http_response(200, "<html>")}, "eth_syncing: answered 200 with what is no JSON-RPC reply"),
        (
            {"eth_syncing": http_response(200, '{"result": false}')},
            "eth_syncing: answered 200 with what is no JSON-RPC reply",
        ),
        (
            {"eth_syncing": http_response(200, '[{"result": 0}]')},
            "eth_syncing: answered 200 with what is no JSON-RPC reply",
        ),
        (
            {"eth_syncing": http_response(200, "[" * 100_000)},
            "eth_syncing: answered 200 with what is no JSON-RPC reply: it is nested too deeply",
        ),
        (
            {"eth_syncing": http_response(200, '{"id": 1, "result": {"currentBlock": "0x1"}, "result": false}')},
            "eth_syncing: answered 200 with what is no JSON-RPC reply: the field result stands there twice",
        ),
    ],
)
def test_an_answer_that_is_not_as_it_should_be_is_failed(
    check: CheckRunner, answers: dict[str, Any], words: str
) -> None:
    with node(**answers) as backend:
        url = f"ethereum+http://{backend.address}"
        assert check(url, **ALL) == Verdict.failed(f"{words}: {url}")


def test_a_node_that_is_at_its_limits_is_ready(check: CheckRunner) -> None:
    with node(net_peerCount="0x5") as backend:
        assert check(f"ethereum+http://{backend.address}", **ALL) == READY


def test_a_node_that_ends_the_connection_after_each_answer_is_asked_on_others(check: CheckRunner) -> None:
    def answer(request: ReceivedRequest) -> bytes:
        return answering()(request).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)

    with KeepAliveBackend(answer) as backend:
        assert check(f"ethereum+http://{backend.address}", **ALL) == READY
    assert backend.requests_per_connection == [1, 1, 1, 1]


def test_a_reused_connection_sees_what_changes(check: CheckRunner) -> None:
    async def story(backend: KeepAliveBackend) -> None:
        url = f"ethereum+http://{backend.address}"
        with reusing(url, **ALL) as probe:
            assert (await check_with_steps(probe))[0] == READY
            backend.response = answering(eth_syncing=True)
            verdict, steps = await check_with_steps(probe)
            assert (verdict, steps[0]) == (Verdict.not_ready(f"syncing: {url}"), REUSED)

    with node() as backend:
        check.run(story(backend))
    assert backend.requests_per_connection == [6]


def test_a_certificate_that_ends_soon_is_not_ready(check: CheckRunner, certificate: Certificate) -> None:
    with KeepAliveBackend(answering(), tls=server_tls(certificate)) as backend:
        url, ca = f"ethereum+https://{backend.address}", str(certificate.certificate)
        assert check(url, ca=ca, **ALL) == READY
        assert check(url, ca=ca, min_cert_days=1, **ALL) == EXPIRES_SOON
        assert check(url) == Verdict.failed(f"its certificate is not valid: self-signed certificate: {url}")
        chain = {**ALL, "chain_id": 5}
        assert check(url, ca=ca, min_cert_days=1, **chain) == Verdict.failed(f"it follows chain 1, not 5: {url}")


def test_no_secret_is_shown(check: CheckRunner) -> None:
    with node(eth_syncing=error(-32000, "no such key: swordfish")) as backend:
        words = "eth_syncing: error -32000: no such key: ***"
        verdict = check.with_timeout(WAIT_TIMEOUT_S, f"ethereum+http://me:swordfish@{backend.address}/?key=abc")
        assert verdict == Verdict.failed(f"{words}: ethereum+http://me:***@{backend.address}/?***")
        verdict = check.with_timeout(WAIT_TIMEOUT_S, f"ethereum+http://{backend.address}", bearer="swordfish")
        assert verdict == Verdict.failed(f"{words}: ethereum+http://{backend.address}")


# ---- what is no node


def test_a_port_that_refuses_is_failed(check: CheckRunner) -> None:
    with closed_port() as port:
        url = f"ethereum+http://127.0.0.1:{port}"
        assert check(url) == Verdict.failed(f"connection refused: {url}")


def test_a_mute_port_is_failed_at_the_deadline(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert_times_out(check, f"ethereum+http://{backend.address}", backend.port, "exchange")


def test_a_connection_that_is_closed_or_reset_is_failed(check: CheckRunner) -> None:
    assert_disconnect_is_failed(check, "ethereum+http")


@few_examples
@given(answers=garbage(b"HTTP/1.1 200 OK\r\n\r\n", b'HTTP/1.1 200 OK\r\n\r\n{"id": 1, "result": "', b"HTTP/1.1 "))
def test_no_bytes_make_more_than_a_failure(check: CheckRunner, answers: list[bytes]) -> None:
    assert_all_failed(check, answers, lambda backend: f"ethereum+http://{backend.address}", chain_id=1)
