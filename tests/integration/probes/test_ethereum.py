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
from svcnode.probes.tools.clocks import CLOCK_SLACK_S
from tests.support.backends import Backend, Received, mute, refusing, reply, server_tls
from tests.support.looks import (
    ENDS_SOON,
    REUSED,
    TalkingBackend,
    assert_all_failed,
    assert_cut_off,
    assert_leaves_nothing,
    assert_lost_is_failed,
    assert_reused,
    clients_of,
    garbage,
    generating,
    keeping,
    steps_of,
)
from tests.support.servers.ganache import CHAIN_ID, GanacheServer
from tests.support.wire import LOOPS, PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.probes.conftest import Look
    from tests.support.certificates import Certificate

READY = Verdict.ready()
EXCHANGE = ("exchange", "", True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GanacheServer]:
    with GanacheServer(tmp_path_factory.mktemp("ganache")) as server:
        yield server


# ---- a node


def test_a_node_that_is_in_step_is_ready(look: Look, server: GanacheServer) -> None:
    assert look(server.url) == READY
    assert look(f"ethereum+http://localhost:{server.port}/", chain_id=CHAIN_ID) == READY


def test_a_node_of_another_chain_is_failed(look: Look, server: GanacheServer) -> None:
    assert look(server.url, chain_id=1) == Verdict.failed(f"it follows chain {CHAIN_ID}, not 1: {server.url}")


def test_a_node_whose_newest_block_is_old_is_not_ready_until_it_has_a_newer_one(
    look: Look, server: GanacheServer
) -> None:
    server.mine(age_s=300)
    verdict = look(server.url, max_block_age="120s")
    assert verdict.outcome is Outcome.NOT_READY
    words, _, rest = verdict.reason.removeprefix("its newest block is ").partition(" s old, ")
    assert 300 <= int(words) < 310
    assert rest == f"max_block_age is 120 s: {server.url}"
    assert look(server.url, max_block_age="1h") == READY
    assert look(server.url) == READY
    server.mine()
    assert look(server.url, max_block_age="120s") == READY


def test_a_node_with_too_few_peers_is_not_ready(look: Look, server: GanacheServer) -> None:
    assert look(server.url, min_peers=0) == READY
    assert look(server.url, min_peers=1) == Verdict.not_ready(f"0 peers, min_peers is 1: {server.url}")


def test_all_is_asked_on_one_connection(look: Look, server: GanacheServer) -> None:
    server.mine()
    asked = {"chain_id": CHAIN_ID, "max_block_age": "120s", "min_peers": 1}
    assert look.steps(server.url, **asked) == [("connect", "127.0.0.1", True), *[EXCHANGE] * 4]


def test_nothing_is_left_of_a_look(look: Look, server: GanacheServer) -> None:
    assert assert_leaves_nothing(look, server.url, server.port, chain_id=CHAIN_ID) == READY
    assert until(lambda: not clients_of(server.port))


def test_a_frozen_node_is_failed_at_the_deadline(look: Look, server: GanacheServer) -> None:
    server.freeze()
    try:
        assert_cut_off(look, server.url, server.port, "exchange")
    finally:
        server.thaw()


# ---- reuse


def test_a_connection_can_be_kept(look: Look, server: GanacheServer) -> None:
    assert_reused(look, server.url, server.port, chain_id=CHAIN_ID)


def test_a_kept_connection_outlives_a_restart_of_the_node(server: GanacheServer) -> None:
    """On both loops at once, since it takes seconds."""
    restarted = threading.Barrier(len(LOOPS), action=server.restart)

    async def story() -> list[Verdict]:
        with keeping(server.url) as probe:
            verdicts = [(await steps_of(probe))[0]]
            restarted.wait(12 * PATIENCE_S)
            return [*verdicts, (await steps_of(probe))[0]]

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


def answering(**answers: Any) -> Callable[[Received], bytes]:
    """Every method with a result, or with bytes of its own."""

    def answer(request: Received) -> bytes:
        call = json.loads(request.body)
        result = {**HEALTHY, **answers}[call["method"]]
        if isinstance(result, bytes):
            return result
        body = json.dumps({"jsonrpc": "2.0", "id": call["id"], "result": result})
        return reply(200, body, Content_Type="application/json")

    return answer


def node(**answers: Any) -> TalkingBackend:
    return TalkingBackend(answering(**answers))


def error(code: int, message: str) -> bytes:
    return reply(200, json.dumps({"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": message}}))


def test_methods_are_called_one_after_the_other(look: Look) -> None:
    """Batches are refused by some nodes, and metered by others."""
    with node() as backend:
        assert look(f"ethereum+http://{backend.place}/v3/key?x=y", bearer="swordfish", **ALL) == READY
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
    assert backend.by_connection == [4]


def test_only_what_is_asked_for_is_asked(look: Look) -> None:
    with node() as backend:
        assert look(f"ethereum+http://{backend.place}") == READY
        assert [json.loads(request.body)["method"] for request in backend.requests] == ["eth_syncing"]


def test_a_block_from_the_future_is_not_ready_or_it_would_stay_young_for_as_long(look: Look) -> None:
    dated = time.time() + 3600
    with node(eth_getBlockByNumber={"timestamp": hex(int(dated))}) as backend:
        url = f"ethereum+http://{backend.place}"
        verdict = look(url, max_block_age="60s")
        assert look(url) == READY  # nobody asked
    assert verdict.outcome is Outcome.NOT_READY
    words, _, rest = verdict.reason.removeprefix("its newest block is dated ").partition(" s in the future, ")
    assert 3540 < int(words) <= 3600
    assert rest == f"so the clocks disagree and its age is not known: {url}"


def test_the_clocks_of_a_node_may_differ_a_little_from_ours(look: Look) -> None:
    with node(eth_getBlockByNumber={"timestamp": hex(int(time.time() + CLOCK_SLACK_S / 2))}) as backend:
        assert look(f"ethereum+http://{backend.place}", max_block_age="1s") == READY


def test_a_key_in_the_path_is_sent_and_shown_nowhere(look: Look) -> None:
    key = "9aa3d95b3bc440fa88ea12eaa4456161"
    with node(eth_syncing=error(-32002, f"rejected due to project ID settings of {key}")) as backend:
        url = f"ethereum+http://{backend.place}/v3"
        assert look(f"{url}/{key}") == Verdict.failed(
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
def test_a_node_that_is_syncing_is_not_ready(look: Look, progress: object, words: str) -> None:
    with node(eth_syncing=progress) as backend:
        url = f"ethereum+http://{backend.place}"
        assert look(url, **ALL) == Verdict.not_ready(f"{words}: {url}")


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
        ({"eth_syncing": reply(401, "who are you?")}, "eth_syncing: answered 401 with what is no JSON-RPC reply"),
        ({"eth_syncing": reply(200, "<html>")}, "eth_syncing: answered 200 with what is no JSON-RPC reply"),
        ({"eth_syncing": reply(200, '{"result": false}')}, "eth_syncing: answered 200 with what is no JSON-RPC reply"),
        ({"eth_syncing": reply(200, '[{"result": 0}]')}, "eth_syncing: answered 200 with what is no JSON-RPC reply"),
        (
            {"eth_syncing": reply(200, "[" * 100_000)},
            "eth_syncing: answered 200 with what is no JSON-RPC reply: it is nested too deeply",
        ),
        (
            {"eth_syncing": reply(200, '{"id": 1, "result": {"currentBlock": "0x1"}, "result": false}')},
            "eth_syncing: answered 200 with what is no JSON-RPC reply: the field result stands there twice",
        ),
    ],
)
def test_an_answer_that_is_not_as_it_should_be_is_failed(look: Look, answers: dict[str, Any], words: str) -> None:
    with node(**answers) as backend:
        url = f"ethereum+http://{backend.place}"
        assert look(url, **ALL) == Verdict.failed(f"{words}: {url}")


def test_a_node_that_is_at_its_limits_is_ready(look: Look) -> None:
    with node(net_peerCount="0x5") as backend:
        assert look(f"ethereum+http://{backend.place}", **ALL) == READY


def test_a_node_that_ends_the_connection_after_each_answer_is_asked_on_others(look: Look) -> None:
    def answer(request: Received) -> bytes:
        return answering()(request).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)

    with TalkingBackend(answer) as backend:
        assert look(f"ethereum+http://{backend.place}", **ALL) == READY
    assert backend.by_connection == [1, 1, 1, 1]


def test_a_kept_connection_sees_what_changes(look: Look) -> None:
    async def story(backend: TalkingBackend) -> None:
        url = f"ethereum+http://{backend.place}"
        with keeping(url, **ALL) as probe:
            assert (await steps_of(probe))[0] == READY
            backend.answer = answering(eth_syncing=True)
            verdict, steps = await steps_of(probe)
            assert (verdict, steps[0]) == (Verdict.not_ready(f"syncing: {url}"), REUSED)

    with node() as backend:
        look.run(story(backend))
    assert backend.by_connection == [6]


def test_a_certificate_that_ends_soon_is_not_ready(look: Look, certificate: Certificate) -> None:
    with TalkingBackend(answering(), tls=server_tls(certificate)) as backend:
        url, ca = f"ethereum+https://{backend.place}", str(certificate.certificate)
        assert look(url, ca=ca, **ALL) == READY
        assert look(url, ca=ca, min_cert_days=1, **ALL) == ENDS_SOON
        assert look(url) == Verdict.failed(f"its certificate is not valid: self-signed certificate: {url}")
        chain = {**ALL, "chain_id": 5}
        assert look(url, ca=ca, min_cert_days=1, **chain) == Verdict.failed(f"it follows chain 1, not 5: {url}")


def test_no_secret_is_shown(look: Look) -> None:
    with node(eth_syncing=error(-32000, "no such key: swordfish")) as backend:
        words = "eth_syncing: error -32000: no such key: ***"
        verdict = look.within(PATIENCE_S, f"ethereum+http://me:swordfish@{backend.place}/?key=abc")
        assert verdict == Verdict.failed(f"{words}: ethereum+http://me:***@{backend.place}/?***")
        verdict = look.within(PATIENCE_S, f"ethereum+http://{backend.place}", bearer="swordfish")
        assert verdict == Verdict.failed(f"{words}: ethereum+http://{backend.place}")


# ---- what is no node


def test_a_port_that_refuses_is_failed(look: Look) -> None:
    with refusing() as port:
        url = f"ethereum+http://127.0.0.1:{port}"
        assert look(url) == Verdict.failed(f"connection refused: {url}")


def test_a_mute_port_is_failed_at_the_deadline(look: Look) -> None:
    with Backend(mute) as backend:
        assert_cut_off(look, f"ethereum+http://{backend.place}", backend.port, "exchange")


def test_a_connection_that_is_closed_or_reset_is_failed(look: Look) -> None:
    assert_lost_is_failed(look, "ethereum+http")


@generating
@given(answers=garbage(b"HTTP/1.1 200 OK\r\n\r\n", b'HTTP/1.1 200 OK\r\n\r\n{"id": 1, "result": "', b"HTTP/1.1 "))
def test_no_bytes_make_more_than_a_failure(look: Look, answers: list[bytes]) -> None:
    assert_all_failed(look, answers, lambda backend: f"ethereum+http://{backend.place}", chain_id=1)
