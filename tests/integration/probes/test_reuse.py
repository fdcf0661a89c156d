"""`reuse` of the HTTP kinds: one connection for many checks, and no check gets the response of another."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
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
from tests.support.verdicts import CONNECTION_CLOSED, READY, UNEXPECTED_RESPONSE, failed

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
    ("http://{address}/health", {"contains": "ok"}),
    ("http://{address}/health", {"method": "POST", "body": "hello"}),
    ("svc+http://{address}", {}),
    ("svc+http://{address}", {"service": "db-1"}),
    ("jsonrpc+http://{address}", {"method": "getHealth"}),
]
every_kind = pytest.mark.parametrize(("url", "options"), KINDS)
some_kinds = pytest.mark.parametrize(("url", "options"), [KINDS[0], KINDS[3], KINDS[5]], ids=["http", "svc", "jsonrpc"])


async def run_checks(url: str, count: int, **options: Any) -> list[tuple[Verdict, list[str]]]:
    """The verdicts of one probe, with the names of their steps."""
    found = []
    with reusing(url, **options) as probe:
        for _ in range(count):
            verdict, steps = await check_with_steps(probe)
            found.append((verdict, [name for name, _, _ in steps]))
    return found


@every_kind
def test_many_checks_share_one_connection(check: CheckRunner, url: str, options: dict[str, Any]) -> None:
    with KeepAliveBackend(RESULT) as backend:
        found = check.run(run_checks(url.format(address=backend.address), 4, **options))
    assert found == [(READY, ["connect", "exchange"]), *[(READY, ["reuse", "exchange"])] * 3]
    assert backend.requests_per_connection == [4]
    assert not any("connection" in request.headers for request in backend.requests)


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


def test_a_connection_is_reused_after_a_failure(check: CheckRunner) -> None:
    with KeepAliveBackend(http_response(503, "down")) as backend:
        url = f"http://{backend.address}"
        found = check.run(run_checks(url, 2))
    assert found == [(SERVER_ERROR, ["connect", "exchange"]), (SERVER_ERROR, ["reuse", "exchange"])]


# ---- connections that end


def closing_after_each(request: ReceivedRequest) -> bytes:
    return RESULT.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)


@pytest.mark.parametrize(
    "respond",
    [
        closing_after_each,
        lambda _: RESULT.replace(b"HTTP/1.1", b"HTTP/1.0"),
    ],
    ids=["Connection: close", "HTTP/1.0"],
)
@some_kinds
def test_a_connection_is_closed_if_the_server_requests_it(
    check: CheckRunner, respond: Callable[[ReceivedRequest], bytes], url: str, options: dict[str, Any]
) -> None:
    with KeepAliveBackend(respond) as backend:
        found = check.run(run_checks(url.format(address=backend.address), 3, **options))
    assert found == [(READY, ["connect", "exchange"])] * 3
    assert backend.requests_per_connection == [1, 1, 1]


@pytest.mark.parametrize("end", [Peer.shutdown_write, Peer.reset], ids=["closed", "reset"])
@some_kinds
def test_a_server_that_closes_idle_connections_is_ready(
    check: CheckRunner, end: Callable[[Peer], None], url: str, options: dict[str, Any]
) -> None:
    def respond_once(peer: Peer) -> None:
        ReceivedRequest.read(peer)
        peer.send(RESULT)
        end(peer)

    with Backend(respond_once) as backend:
        found = check.run(run_checks(url.format(address=backend.address), 3, **options))
    assert [verdict for verdict, _ in found] == [READY] * 3
    assert backend.connection_count == 3


@pytest.mark.parametrize("end", [Peer.shutdown_write, Peer.reset], ids=["closed", "reset"])
@some_kinds
def test_a_server_that_closes_the_connection_at_the_second_request_is_ready(
    check: CheckRunner, end: Callable[[Peer], None], url: str, options: dict[str, Any]
) -> None:
    def close_at_the_second_request(peer: Peer) -> None:
        ReceivedRequest.read(peer)
        peer.send(RESULT)
        ReceivedRequest.read(peer)
        end(peer)

    with Backend(close_at_the_second_request) as backend:
        found = check.run(run_checks(url.format(address=backend.address), 2, **options))
    assert [verdict for verdict, _ in found] == [READY, READY]
    assert found[1][1] == ["reuse", "exchange", "connect", "exchange"]
    assert backend.connection_count == 2


def test_an_incomplete_response_on_a_reused_connection_is_failed(check: CheckRunner) -> None:
    def respond_partly(peer: Peer) -> None:
        ReceivedRequest.read(peer)
        peer.send(RESULT)
        ReceivedRequest.read(peer)
        peer.send(RESULT[:20])
        peer.shutdown_write()

    with Backend(respond_partly) as backend:
        url = f"http://{backend.address}"
        found = check.run(run_checks(url, 3))
    assert [verdict for verdict, _ in found] == [
        READY,
        CONNECTION_CLOSED,
        READY,
    ]


@some_kinds
def test_a_check_that_times_out_on_a_reused_connection_aborts_it(
    check: CheckRunner, url: str, options: dict[str, Any]
) -> None:
    may_respond = threading.Event()

    def respond_late(peer: Peer) -> None:
        ReceivedRequest.read(peer)
        peer.send(RESULT)
        ReceivedRequest.read(peer)
        may_respond.wait(WAIT_TIMEOUT_S)
        peer.send(http_response(500, "late"))

    async def scenario(backend: Backend) -> None:
        with reusing(url.format(address=backend.address), **options) as probe:
            assert (await run_check(probe, WAIT_TIMEOUT_S))[0] == READY
            verdict, _ = await run_check(probe, 1.0)
            assert verdict == TIMEOUT
            assert await becomes_true(lambda: not own_connection_count(backend.port))
            may_respond.set()
            verdict, steps = await check_with_steps(probe)
            assert (verdict, steps) == (READY, [CONNECT, EXCHANGE])

    with Backend(respond_late) as backend:
        check.run(scenario(backend))


@pytest.mark.parametrize(
    "extra",
    [
        http_response(500, "of another request"),
        http_response(500, "of another request")[:20],
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"invalid",
        b"\x00",
    ],
    ids=["a response", "half a response", "100", "invalid bytes", "a byte"],
)
@pytest.mark.parametrize("is_late", [False, True], ids=["at once", "later"])
@some_kinds
def test_a_connection_with_extra_data_is_not_reused(
    check: CheckRunner, extra: bytes, is_late: bool, url: str, options: dict[str, Any]
) -> None:
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
        with reusing(url, **options) as probe:
            for _ in range(2):
                verdict, steps = await check_with_steps(probe)
                assert (verdict, steps[-2:]) == (READY, [CONNECT, EXCHANGE])
                connection = probe._connections._connection  # type: ignore[attr-defined]
                is_checked.set()
                assert await becomes_true(lambda: connection is None or not connection.protocol.is_idle)  # noqa: B023

    with Backend(send_more) as backend:
        check.run(scenario(url.format(address=backend.address)))
    assert backend.connection_count == 2


def chunked(*parts: bytes) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body


LARGE = b"x" * (2 * 1024 * 1024)


@pytest.mark.parametrize(
    "response",
    [
        http_response(200, LARGE),
        chunked(b"some", b"of", b"it"),
        chunked(LARGE[:1_000_000], LARGE[:1_000_000]),
        chunked(),
        http_response(204).replace(b"Content-Length: 0\r\n", b""),
        http_response(200),
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + RESULT,
    ],
    ids=["large", "chunked", "large and chunked", "chunked and empty", "204", "empty", "after a hint"],
)
def test_an_unneeded_body_is_read_to_its_end(check: CheckRunner, response: bytes) -> None:
    with KeepAliveBackend(response) as backend:
        found = check.run(run_checks(f"http://{backend.address}", 3))
    assert [verdict for verdict, _ in found] == [READY] * 3
    assert backend.requests_per_connection == [3]


def test_a_needed_body_that_is_too_large_is_failed_and_its_connection_is_not_reused(check: CheckRunner) -> None:
    with KeepAliveBackend(http_response(200, LARGE)) as backend:
        url = f"http://{backend.address}"
        found = check.run(run_checks(url, 2, contains="y"))
    assert [verdict for verdict, _ in found] == [UNEXPECTED_RESPONSE] * 2
    assert backend.requests_per_connection == [1, 1]


def test_each_response_is_checked_by_itself(check: CheckRunner) -> None:
    """No status, header or body of an earlier response is used in the next one."""
    responses = iter(
        [
            http_response(200, "one"),
            http_response(302, "", Location="/two"),
            http_response(200, "two"),
            http_response(200, "thr"),
            http_response(500),
        ]
    )

    async def scenario(url: str) -> list[Verdict]:
        with reusing(url, contains="o", redirects=1) as probe:
            return [(await check_with_steps(probe))[0] for _ in range(4)]

    with KeepAliveBackend(lambda _: next(responses)) as backend:
        url = f"http://{backend.address}"
        assert check.run(scenario(url)) == [
            READY,
            READY,
            UNEXPECTED_RESPONSE,
            SERVER_ERROR,
        ]
    assert backend.requests_per_connection == [5]


def test_head_cannot_be_combined_with_reuse() -> None:
    with pytest.raises(OptionError) as caught:
        make_probe({"url": "http://127.0.0.1", "method": "HEAD", "reuse": True})
    assert caught.value.option == "reuse"
