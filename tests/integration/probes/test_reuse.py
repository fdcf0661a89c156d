"""`reuse` of the HTTP kinds: one connection for many checks, and no check gets the response of another."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.probes import make_probe
from svcnode.probes.run import close_probe, run_check
from tests.support.backends import Backend, Peer, ReceivedRequest, http_response
from tests.support.http_server import WAIT_TIMEOUT_S
from tests.support.probe_assertions import (
    KeepAliveBackend,
    becomes_true,
    check_with_steps,
    client_count,
    own_connection_count,
    reusing,
)
from tests.support.verdicts import CONNECTION_CLOSED, READY, failed

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.core.model import Verdict
    from tests.support.check_runner import CheckRunner

TIMEOUT = failed(ReasonCode.TIMEOUT)
SERVER_ERROR = failed(ReasonCode.SERVER_ERROR)
CONNECT = ("connect", "127.0.0.1", True)
EXCHANGE = ("exchange", "", True)
RESULT = http_response(200, json.dumps({"jsonrpc": "2.0", "id": 1, "result": "ok"}))


KINDS: list[tuple[str, dict[str, Any]]] = [
    ("http://{address}/health", {}),
    ("http://{address}/health", {"method": "POST", "body": "hello", "contains": "ok"}),
    ("svc+http://{address}", {"service": "db-1"}),
    ("jsonrpc+http://{address}", {"method": "getHealth"}),
]
OPENED, REUSED = ["connect", "exchange"], ["reuse", "exchange"]


async def run_checks(url: str, count: int, **options: Any) -> list[tuple[Verdict, list[str]]]:
    """The verdicts of one probe, with the names of their steps."""
    found = []
    with reusing(url, **options) as probe:
        for _ in range(count):
            verdict, steps = await check_with_steps(probe)
            found.append((verdict, [name for name, _, _ in steps]))
    return found


@pytest.mark.parametrize(("url", "options"), KINDS)
def test_many_checks_share_one_connection_until_the_server_ends_it(
    check: CheckRunner, url: str, options: dict[str, Any]
) -> None:
    with KeepAliveBackend(RESULT) as backend:
        found = check.run(run_checks(url.format(address=backend.address), 3, **options))
        assert found == [(READY, OPENED), (READY, REUSED), (READY, REUSED)]
        assert backend.requests_per_connection == [3]
        assert not any("connection" in request.headers for request in backend.requests)
    closing = RESULT.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
    for response in (closing, RESULT.replace(b"HTTP/1.1", b"HTTP/1.0")):
        with KeepAliveBackend(response) as backend:
            assert check.run(run_checks(url.format(address=backend.address), 2, **options)) == [(READY, OPENED)] * 2


def test_a_connection_is_reused_after_a_failure(check: CheckRunner) -> None:
    with KeepAliveBackend(http_response(503, "down")) as backend:
        found = check.run(run_checks(f"http://{backend.address}", 2))
    assert found == [(SERVER_ERROR, OPENED), (SERVER_ERROR, REUSED)]


@pytest.mark.parametrize(
    ("requests", "partly", "second"),
    [
        (1, b"", (READY, [])),  # an idle connection may end after it was taken
        (2, b"", (READY, [*REUSED, *OPENED])),
        (2, RESULT[:20], (CONNECTION_CLOSED, REUSED)),
    ],
    ids=["idle", "at the second request", "in the second response"],
)
@pytest.mark.parametrize("end", [Peer.shutdown_write, Peer.reset], ids=["closed", "reset"])
def test_a_server_that_closes_the_connection_is_failed_only_within_a_response(
    check: CheckRunner, end: Callable[[Peer], None], requests: int, partly: bytes, second: tuple[Verdict, list[str]]
) -> None:
    def close_after(peer: Peer) -> None:
        ReceivedRequest.read(peer)
        peer.send(RESULT)
        if requests > 1:
            ReceivedRequest.read(peer)
            peer.send(partly)
        end(peer)

    with Backend(close_after) as backend:
        found = check.run(run_checks(f"http://{backend.address}", 2))
    verdict, steps = second
    assert [each for each, _ in found] == [READY, verdict]
    assert not steps or found[1][1] == steps


def test_a_reused_connection_is_closed_when_probing_stops(check: CheckRunner) -> None:
    async def scenario(backend: Backend) -> None:
        probe = make_probe({"url": f"http://{backend.address}", "reuse": True})
        assert (await check_with_steps(probe))[0] == READY
        assert (own_connection_count(backend.port), client_count(backend.port)) == (1, 1)
        close_probe(probe)
        assert await becomes_true(lambda: not own_connection_count(backend.port) and not client_count(backend.port))
        close_probe(probe)  # allowed again
        assert await check_with_steps(probe) == (READY, [CONNECT, EXCHANGE])
        close_probe(probe)

    with KeepAliveBackend(RESULT) as backend:
        check.run(scenario(backend))


def test_a_check_that_times_out_on_a_reused_connection_aborts_it(check: CheckRunner) -> None:
    may_respond = threading.Event()

    def respond_late(peer: Peer) -> None:
        ReceivedRequest.read(peer)
        peer.send(RESULT)
        ReceivedRequest.read(peer)
        may_respond.wait(WAIT_TIMEOUT_S)
        peer.send(http_response(500, "late"))

    async def scenario(backend: Backend) -> None:
        with reusing(f"http://{backend.address}") as probe:
            assert (await run_check(probe, WAIT_TIMEOUT_S))[0] == READY
            verdict, _ = await run_check(probe, 1.0)
            assert verdict == TIMEOUT
            assert await becomes_true(lambda: not own_connection_count(backend.port))
            may_respond.set()
            verdict, steps = await check_with_steps(probe)
            assert (verdict, steps) == (READY, [CONNECT, EXCHANGE])

    with Backend(respond_late) as backend:
        check.run(scenario(backend))


@pytest.mark.parametrize("is_late", [False, True], ids=["at once", "later"])
def test_a_connection_with_extra_data_is_not_reused(check: CheckRunner, is_late: bool) -> None:
    extra = http_response(500, "of another request")
    is_checked = threading.Event()

    def send_more(peer: Peer) -> None:
        while True:
            ReceivedRequest.read(peer)
            if is_late:
                peer.send(RESULT)
                is_checked.wait(WAIT_TIMEOUT_S)
                peer.send(extra)
            else:
                peer.send(RESULT + extra)

    async def scenario(url: str) -> None:
        with reusing(url) as probe:
            for _ in range(2):
                verdict, steps = await check_with_steps(probe)
                assert (verdict, steps[-2:]) == (READY, [CONNECT, EXCHANGE])
                connection = probe._connections._connection  # type: ignore[attr-defined]
                is_checked.set()
                assert await becomes_true(lambda: connection is None or not connection.protocol.is_idle)  # noqa: B023

    with Backend(send_more) as backend:
        check.run(scenario(f"http://{backend.address}"))
    assert backend.connection_count == 2
