"""ethereum+ws:// against real clients and scripted ones: new heads must arrive, not only answers."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome
from svcnode.net import websocket
from svcnode.probes import ethereum_ws, make_probe
from svcnode.probes.run import close_probe, run_check
from tests.support.backends import ProxyBackend, server_tls
from tests.support.http_server import WAIT_TIMEOUT_S
from tests.support.probe_assertions import (
    CHECK_TIMEOUT_S,
    REUSED,
    assert_nothing_is_left,
    becomes_true,
    check_with_steps,
)
from tests.support.servers.anvil import AnvilServer
from tests.support.servers.ganache import GanacheServer
from tests.support.verdicts import READY, failed, not_ready, unknown
from tests.support.websocket_backend import EthereumSocket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from svcnode.core.model import Verdict
    from svcnode.probes.base import Probe
    from tests.support.certificates import Certificate
    from tests.support.check_runner import CheckRunner
    from tests.support.servers.ethereum import EthereumServer

NO_HEAD_YET = not_ready(ReasonCode.STARTING)
SILENT = failed(ReasonCode.STALLED)
LAGGING = not_ready(ReasonCode.LAGGING)


class Checks:
    """Checks with one probe, which keeps its connection."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe

    async def __call__(self, timeout_s: float = WAIT_TIMEOUT_S) -> Verdict:
        verdict, error = await run_check(self.probe, timeout_s)
        assert error is None
        return verdict

    async def without_a_head(self) -> Verdict:
        """To this check no head arrives, so that it need not wait for one."""
        with mock.patch.object(ethereum_ws, "time_for_others_s", return_value=0.05):
            return await self()

    async def until(self, expected: Verdict) -> None:
        for _ in range(100):
            if (verdict := await self()) == expected:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(verdict)


async def in_thread(call: Callable[..., object], *arguments: object) -> None:
    """Not in one of the event loop, which stays until the loop is closed."""
    thread = threading.Thread(target=call, args=arguments)
    thread.start()
    assert await becomes_true(lambda: not thread.is_alive())


def run(check: CheckRunner, main: Callable[[Checks], Any], port: int, **config: Any) -> None:
    """Nothing is left when the probe is closed."""

    async def scenario() -> None:
        before = asyncio.all_tasks()
        probe = make_probe(config)
        try:
            await main(Checks(probe))
        finally:
            close_probe(probe)
        await assert_nothing_is_left(port, before)

    check.run(scenario())


def run_once(check: CheckRunner, port: int, **config: Any) -> Verdict:
    verdicts: list[Verdict] = []

    async def main(checks: Checks) -> None:
        verdicts.append(await checks())

    run(check, main, port, **config)
    return verdicts[0]


# ---- real clients


@pytest.fixture(scope="module", params=[GanacheServer, pytest.param(AnvilServer, marks=pytest.mark.wide)])
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[EthereumServer]:
    with request.param(tmp_path_factory.mktemp("client")) as started:
        started.mine(age_s=1000)  # a block is not older than the one before
        yield started


def test_a_subscription_of_a_real_client_is_ready_when_a_head_has_arrived(
    check: CheckRunner, server: EthereumServer
) -> None:
    async def main(checks: Checks) -> None:
        await in_thread(server.mine)
        assert await checks.without_a_head() == NO_HEAD_YET
        assert await checks.without_a_head() == NO_HEAD_YET  # also with the newest block that it has
        await in_thread(server.mine)
        await checks.until(READY)
        verdict, steps = await check_with_steps(checks.probe)
        assert (verdict, steps[0]) == (READY, REUSED)

    run(check, main, server.port, url=server.websocket_url, min_peers=0, chain_id=server.chain_id)


@pytest.mark.wide
def test_a_client_whose_mining_stops_is_not_ready_and_ready_again_when_it_goes_on(
    check: CheckRunner, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with AnvilServer(tmp_path_factory.mktemp("anvil")) as server:
        server.mine()

        async def main(checks: Checks) -> None:
            await in_thread(server.mine_every, 1)
            await checks.until(READY)
            await in_thread(server.mine_every, 0)
            await checks.until(LAGGING)
            await in_thread(server.mine)
            await checks.until(READY)
            server.freeze()
            assert await checks(CHECK_TIMEOUT_S) == failed(ReasonCode.TIMEOUT)
            server.thaw()
            server.kill()
            assert await checks() == failed(ReasonCode.CONNECTION_REFUSED)

        run(check, main, server.port, url=server.websocket_url, min_peers=0, max_block_age="4s")


# ---- scripted clients


@pytest.fixture
def backend() -> Iterator[EthereumSocket]:
    with EthereumSocket() as running:
        yield running


def url_of(backend: EthereumSocket) -> str:
    return f"ethereum+ws://{backend.address}"


def test_the_connection_is_kept_and_heads_arrive_between_checks(check: CheckRunner, backend: EthereumSocket) -> None:
    async def main(checks: Checks) -> None:
        for _ in range(3):
            assert await checks() == READY
        assert len(backend.requests) == 1
        assert backend.calls.count("eth_subscribe") == 1
        backend.close_all()  # as servers and gateways do from time to time
        assert await becomes_true(lambda: not backend.connections)
        backend.head_on_subscribe = False
        assert await checks() == READY  # the last head is recent
        assert len(backend.requests) == 2

    run(check, main, backend.port, url=url_of(backend))


def test_heads_arrive_also_while_another_problem_lasts(check: CheckRunner, backend: EthereumSocket) -> None:
    """Otherwise the silence of a new connection would hide the problem."""

    async def main(checks: Checks) -> None:
        for answers, expected in (
            ({"eth_getBalance": "0x0"}, failed(ReasonCode.LOW_BALANCE)),
            ({"eth_getBalance": KeyError(-32000)}, failed(ReasonCode.SERVER_ERROR)),
            ({"eth_getBalance": "0x1", "net_peerCount": "0x0"}, not_ready(ReasonCode.TOO_FEW_PEERS)),
            ({"eth_getBlockByNumber": {"timestamp": "0x1"}}, LAGGING),
        ):
            backend.answers |= answers
            assert await checks() == expected
        assert len(backend.requests) == 1

    run(check, main, backend.port, url=url_of(backend), account=f"0x{1:040}", min_balance="1 wei")


def test_without_reuse_each_check_has_its_own_connection(check: CheckRunner, backend: EthereumSocket) -> None:
    async def main(checks: Checks) -> None:
        for _ in range(2):
            assert await checks() == READY
        assert len(backend.requests) == 2

    run(check, main, backend.port, url=url_of(backend), reuse=False)


def test_a_subscription_that_is_silent_is_never_ready(
    check: CheckRunner, backend: EthereumSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the client itself has new blocks, and if it is asked to subscribe again."""
    now_s = 1000.0
    monkeypatch.setattr(ethereum_ws, "monotonic_s", lambda: now_s)
    backend.head_on_subscribe = False

    async def main(checks: Checks) -> None:
        nonlocal now_s
        assert await checks.without_a_head() == NO_HEAD_YET
        now_s += 119
        assert await checks() == NO_HEAD_YET
        now_s += 2
        assert await checks() == SILENT
        for seconds in (0, 119, 2):
            now_s += seconds
            assert await checks.without_a_head() == SILENT
        assert len(backend.requests) == 2  # a connection has its time to deliver
        backend.head_on_subscribe = True
        assert await checks() == READY

    run(check, main, backend.port, url=url_of(backend))


def test_a_subscription_that_falls_silent_is_failed(
    check: CheckRunner, backend: EthereumSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_s, now_s = time.time, 0.0
    monkeypatch.setattr(time, "time", lambda: real_s() + now_s)
    monkeypatch.setattr(ethereum_ws, "monotonic_s", lambda: now_s)

    async def main(checks: Checks) -> None:
        nonlocal now_s
        assert await checks() == READY
        backend.head_on_subscribe = False
        now_s += 61
        assert await checks() == SILENT  # the connection is closed
        assert await checks.without_a_head() == SILENT  # it is a new one, which has its time
        backend.deliver()
        await checks.until(READY)
        assert len(backend.requests) == 2

    run(check, main, backend.port, url=url_of(backend), max_block_age="60s")


def test_heads_that_are_old_or_from_the_future_do_not_count(check: CheckRunner, backend: EthereumSocket) -> None:
    async def main(checks: Checks) -> None:
        backend.head_on_subscribe = False
        assert await checks.without_a_head() == NO_HEAD_YET
        backend.deliver(age_s=1000)
        backend.send('{"jsonrpc": "2.0", "method": "keepalive"}')  # of a gateway
        assert await checks() == NO_HEAD_YET
        backend.deliver(age_s=-1000)
        assert await checks() == NO_HEAD_YET
        backend.deliver(age_s=10)
        await checks.until(READY)

    run(check, main, backend.port, url=url_of(backend))


def test_a_chain_that_makes_blocks_on_demand_needs_no_heads(check: CheckRunner, backend: EthereumSocket) -> None:
    backend.head_on_subscribe = False
    backend.answers["eth_getBlockByNumber"] = {"timestamp": "0x1"}
    url, port = url_of(backend), backend.port
    assert run_once(check, port, url=url) == LAGGING
    assert run_once(check, port, url=url, max_block_age="off") == READY
    backend.answers["eth_subscribe"] = KeyError(-32601)
    assert run_once(check, port, url=url, max_block_age="off") == unknown(ReasonCode.NOT_SUPPORTED)


@pytest.mark.parametrize(
    ("answers", "options", "expected"),
    [
        ({"eth_chainId": "0xaa"}, {"chain_id": 1}, failed(ReasonCode.WRONG_CHAIN)),
        ({"eth_syncing": {"currentBlock": "0x1", "highestBlock": "0x2"}}, {}, not_ready(ReasonCode.SYNCING)),
        ({"net_peerCount": "0x0"}, {}, not_ready(ReasonCode.TOO_FEW_PEERS)),
        ({"eth_getBlockByNumber": {"timestamp": "0x1"}}, {}, LAGGING),
        ({"eth_subscribe": KeyError(-32601)}, {}, unknown(ReasonCode.NOT_SUPPORTED)),
        ({"eth_subscribe": KeyError(-32000)}, {}, failed(ReasonCode.SERVER_ERROR)),
        ({"eth_subscribe": None}, {}, failed(ReasonCode.UNEXPECTED_RESPONSE)),
        ({"eth_getBalance": "0x1"}, {"account": f"0x{1:040}", "min_balance": "2 wei"}, failed(ReasonCode.LOW_BALANCE)),
    ],
)
def test_everything_else_is_as_over_http(
    check: CheckRunner, answers: dict[str, Any], options: dict[str, Any], expected: Verdict
) -> None:
    with EthereumSocket(answers) as backend:
        assert run_once(check, backend.port, url=url_of(backend), **options) == expected


@pytest.mark.parametrize("status", [200, 302, 401, 404, 429, 503])
def test_a_server_that_refuses_the_upgrade_says_why(check: CheckRunner, status: int) -> None:
    with EthereumSocket(status=status) as backend:
        verdict = run_once(check, backend.port, url=url_of(backend))
        assert verdict.outcome is Outcome.FAILED
        assert (
            verdict.code
            in {
                200: ReasonCode.UNEXPECTED_RESPONSE,
                302: ReasonCode.REDIRECTED,
                401: ReasonCode.AUTH_REQUIRED,
                404: ReasonCode.NOT_FOUND,
                429: ReasonCode.RATE_LIMITED,
                503: ReasonCode.SERVER_ERROR,
            }[status]
        )


def test_path_token_and_headers_are_sent(check: CheckRunner, backend: EthereumSocket) -> None:
    url = f"ethereum+ws://{backend.address}/v3/key?x=y"
    assert check(url, bearer="swordfish", headers={"X-Project": "7"}, reuse=False) == READY
    (request,) = backend.requests
    assert request.path == "/v3/key?x=y"
    assert request.headers["Authorization"] == "Bearer swordfish"
    assert request.headers["X-Project"] == "7"
    assert request.headers["Host"] == backend.address


def test_over_tls_and_through_a_proxy(check: CheckRunner, certificate: Certificate) -> None:
    ca = str(certificate.certificate)
    with EthereumSocket(tls=server_tls(certificate)) as backend, ProxyBackend() as proxy:
        url = f"ethereum+wss://{backend.address}"
        assert check(url, reuse=False) == failed(ReasonCode.TLS_UNTRUSTED)
        assert check(url, ca=ca, reuse=False) == READY
        assert check(url, ca=ca, min_cert_days=1) == not_ready(ReasonCode.TLS_EXPIRES_SOON)
        assert check(url, ca=ca, reuse=False, proxy=proxy.address) == READY
    with EthereumSocket() as backend, ProxyBackend() as proxy:
        assert check(url_of(backend), reuse=False, proxy=proxy.address) == READY
        assert [request.method for request in proxy.requests] == ["CONNECT"]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("nonsense", ReasonCode.PROTOCOL_ERROR),
        ("[]", ReasonCode.PROTOCOL_ERROR),
        ("{}", ReasonCode.PROTOCOL_ERROR),
        ('{"id": 1, "result": true}', ReasonCode.PROTOCOL_ERROR),  # to no request
        ('{"method": "eth_subscription", "params": {"result": 3}}', ReasonCode.UNEXPECTED_RESPONSE),
        ('{"method": "eth_subscription", "params": {"result": {"timestamp": 5}}}', ReasonCode.UNEXPECTED_RESPONSE),
        ("x" * (websocket.MAX_MESSAGE_BYTES + 1), ReasonCode.PROTOCOL_ERROR),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_message_of_another_form_ends_the_connection(check: CheckRunner, message: str, code: ReasonCode) -> None:
    with EthereumSocket() as backend:
        backend.head_on_subscribe = False

        async def main(checks: Checks) -> None:
            task = asyncio.create_task(checks())
            assert await becomes_true(lambda: bool(backend.connections))
            await in_thread(backend.send, message)
            assert await task == failed(code)

        run(check, main, backend.port, url=url_of(backend))


@pytest.mark.parametrize(("count", "size"), [(10, 1_000_000), (20, 1_000_000), (60, 10)])
def test_a_flood_between_checks_ends_the_connection(
    check: CheckRunner, backend: EthereumSocket, monkeypatch: pytest.MonkeyPatch, count: int, size: int
) -> None:
    monkeypatch.setattr(websocket, "MAX_FRAMES", 50)

    async def main(checks: Checks) -> None:
        assert await checks() == READY
        for _ in range(count):
            await in_thread(backend.deliver, {"timestamp": hex(int(time.time())), "extraData": "x" * size})
        assert await checks() == READY
        assert len(backend.requests) == (1 if count < 20 else 2)

    run(check, main, backend.port, url=url_of(backend))


def test_a_reference_is_asked_over_http(check: CheckRunner, backend: EthereumSocket) -> None:
    backend.answers["eth_blockNumber"] = "0x10"
    verdict = check(url_of(backend), reference=["http://127.0.0.1:1"], reuse=False)
    assert verdict.outcome is Outcome.READY
    assert "ethereum+http://127.0.0.1:1" in verdict.reason
