"""`reuse` of every kind that speaks HTTP: one connection for many looks, and no check that hears another's answer."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.errors import OptionError
from svcnode.core.model import Outcome, Verdict
from svcnode.net.connect import ConnectionSlot
from svcnode.probes import make_probe
from svcnode.probes.run import close_probe, run_check
from tests.support.backends import Backend, HttpBackend, Peer, ProxyBackend, ReceivedRequest, http_response, server_tls
from tests.support.http_server import WAIT_TIMEOUT_S, becomes_true
from tests.support.probe_assertions import (
    REUSED,
    KeepAliveBackend,
    check_with_steps,
    client_count,
    own_connection_count,
    reusing,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.probes.conftest import CheckRunner
    from tests.support.certificates import Certificate

READY = Verdict.ready()
CONNECT = ("connect", "127.0.0.1", True)
EXCHANGE = ("exchange", "", True)
RESULT = http_response(200, json.dumps({"jsonrpc": "2.0", "id": 1, "result": "ok"}))

KINDS: list[tuple[str, dict[str, Any]]] = [
    ("http://{place}/health", {}),
    ("http://{place}/health", {"contains": "ok"}),
    ("http://{place}/health", {"method": "POST", "body": "hello"}),
    ("svc+http://{place}", {}),
    ("svc+http://{place}", {"service": "db-1"}),
    ("jsonrpc+http://{place}", {"method": "getHealth"}),
]
every_kind = pytest.mark.parametrize(("url", "options"), KINDS)
some_kinds = pytest.mark.parametrize(("url", "options"), [KINDS[0], KINDS[3], KINDS[5]], ids=["http", "svc", "jsonrpc"])


async def run_checks(url: str, count: int, between_s: float = 0.0, **options: Any) -> list[tuple[Verdict, list[str]]]:
    """Of one probe, with its steps by their names."""
    found = []
    with reusing(url, **options) as probe:
        for _ in range(count):
            verdict, steps = await check_with_steps(probe)
            found.append((verdict, [name for name, _, _ in steps]))
            await asyncio.sleep(between_s)
    return found


# ---- one connection


@every_kind
def test_many_checks_share_one_connection(check: CheckRunner, url: str, options: dict[str, Any]) -> None:
    with KeepAliveBackend(RESULT) as backend:
        found = check.run(run_checks(url.format(place=backend.address), 4, **options))
    assert found == [(READY, ["connect", "exchange"]), *[(READY, ["reuse", "exchange"])] * 3]
    assert backend.requests_per_connection == [4]
    assert not any("connection" in request.headers for request in backend.requests)


@every_kind
def test_without_it_every_check_has_a_connection_of_its_own(
    check: CheckRunner, url: str, options: dict[str, Any]
) -> None:
    async def story(url: str) -> list[Verdict]:
        probe = make_probe({"url": url, **options})
        return [(await check_with_steps(probe))[0] for _ in range(3)]

    with KeepAliveBackend(RESULT) as backend:
        assert check.run(story(url.format(place=backend.address))) == [READY] * 3
        assert becomes_true(lambda: not client_count(backend.port))
    assert backend.requests_per_connection == [1, 1, 1]
    assert {request.headers["connection"] for request in backend.requests} == {"close"}


def test_a_connection_that_was_kept_is_closed_when_probing_stops(check: CheckRunner) -> None:
    async def story(backend: Backend) -> None:
        probe = make_probe({"url": f"http://{backend.address}", "reuse": True})
        assert (await check_with_steps(probe))[0] == READY
        assert (own_connection_count(backend.port), client_count(backend.port)) == (1, 1)
        close_probe(probe)
        await asyncio.sleep(0.05)
        assert (own_connection_count(backend.port), client_count(backend.port)) == (0, 0)
        close_probe(probe)  # which does no harm
        assert await check_with_steps(probe) == (READY, [CONNECT, EXCHANGE])
        close_probe(probe)

    with KeepAliveBackend(RESULT) as backend:
        check.run(story(backend))


def test_a_failure_says_nothing_against_the_connection(check: CheckRunner) -> None:
    with KeepAliveBackend(http_response(503, "down")) as backend:
        url = f"http://{backend.address}"
        failed = Verdict.failed(f"answered 503: {url}")
        assert check.run(run_checks(url, 2)) == [(failed, ["connect", "exchange"]), (failed, ["reuse", "exchange"])]


def test_a_connection_under_tls_can_be_kept(check: CheckRunner, certificate: Certificate) -> None:
    with KeepAliveBackend(RESULT, tls=server_tls(certificate)) as backend:
        found = check.run(run_checks(f"https://{backend.address}", 3, ca=str(certificate.certificate)))
    assert found == [(READY, ["connect", "handshake", "exchange"]), *[(READY, ["reuse", "exchange"])] * 2]
    assert backend.requests_per_connection == [3]


def test_a_certificate_that_ends_soon_is_noticed_on_a_reused_connection(
    check: CheckRunner, certificate: Certificate
) -> None:
    with KeepAliveBackend(RESULT, tls=server_tls(certificate)) as backend:
        options: dict[str, Any] = {"ca": str(certificate.certificate), "min_cert_days": 1}
        found = check.run(run_checks(f"https://{backend.address}", 2, **options))
    assert [verdict.outcome for verdict, _ in found] == [Outcome.NOT_READY, Outcome.NOT_READY]


def test_a_connection_to_a_proxy_can_be_kept(check: CheckRunner, certificate: Certificate) -> None:
    with KeepAliveBackend(RESULT, tls=server_tls(certificate)) as backend, ProxyBackend() as proxy:
        options: dict[str, Any] = {"ca": str(certificate.certificate), "proxy": f"http://{proxy.address}"}
        found = check.run(run_checks(f"https://{backend.address}", 3, **options))
    assert [verdict for verdict, _ in found] == [READY] * 3
    assert proxy.connection_count == 1


# ---- connections that end


def closing_after_each(request: ReceivedRequest) -> bytes:
    return RESULT.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)


@pytest.mark.parametrize(
    "answer",
    [
        closing_after_each,
        lambda _: RESULT.replace(b"HTTP/1.1", b"HTTP/1.0"),
    ],
    ids=["Connection: close", "HTTP/1.0"],
)
@some_kinds
def test_a_server_that_wants_it_closed_is_heeded(
    check: CheckRunner, answer: Callable[[ReceivedRequest], bytes], url: str, options: dict[str, Any]
) -> None:
    with KeepAliveBackend(answer) as backend:
        found = check.run(run_checks(url.format(place=backend.address), 3, **options))
    assert found == [(READY, ["connect", "exchange"])] * 3
    assert backend.requests_per_connection == [1, 1, 1]


@pytest.mark.parametrize("end", [Peer.shutdown_write, Peer.reset], ids=["closed", "reset"])
@some_kinds
def test_a_server_that_ends_idle_connections_is_not_failed(
    check: CheckRunner, end: Callable[[Peer], None], url: str, options: dict[str, Any]
) -> None:
    """Without a word, and after its answer."""

    def answers_once(peer: Peer) -> None:
        ReceivedRequest.read(peer)
        peer.send(RESULT)
        end(peer)

    with Backend(answers_once) as backend:
        found = check.run(run_checks(url.format(place=backend.address), 3, between_s=0.02, **options))
    assert [verdict for verdict, _ in found] == [READY] * 3
    assert backend.connection_count == 3


@pytest.mark.parametrize("end", [Peer.shutdown_write, Peer.reset], ids=["closed", "reset"])
@some_kinds
def test_a_server_that_ends_the_connection_when_it_is_asked_again_is_not_failed(
    check: CheckRunner, end: Callable[[Peer], None], url: str, options: dict[str, Any]
) -> None:
    """It had ended it before, as far as it knows."""

    def hears_twice(peer: Peer) -> None:
        ReceivedRequest.read(peer)
        peer.send(RESULT)
        ReceivedRequest.read(peer)
        end(peer)

    with Backend(hears_twice) as backend:
        found = check.run(run_checks(url.format(place=backend.address), 2, **options))
    assert [verdict for verdict, _ in found] == [READY, READY]
    assert found[1][1] == ["reuse", "exchange", "connect", "exchange"]
    assert backend.connection_count == 2


def test_a_server_that_breaks_off_its_answer_is_failed_on_a_reused_connection_too(check: CheckRunner) -> None:
    """What has begun to answer has not been idle."""

    def breaks_off(peer: Peer) -> None:
        ReceivedRequest.read(peer)
        peer.send(RESULT)
        ReceivedRequest.read(peer)
        peer.send(RESULT[:20])
        peer.shutdown_write()

    with Backend(breaks_off) as backend:
        url = f"http://{backend.address}"
        found = check.run(run_checks(url, 3))
    assert [verdict for verdict, _ in found] == [
        READY,
        Verdict.failed(f"it closed the connection before its answer was whole: {url}"),
        READY,
    ]


def test_a_server_that_is_gone_is_failed(check: CheckRunner) -> None:
    async def story() -> tuple[Verdict, str]:
        with HttpBackend(RESULT) as backend:
            url = f"http://{backend.address}"
            with reusing(url) as probe:
                assert (await check_with_steps(probe))[0] == READY
                await asyncio.sleep(0.02)
        return (await check_with_steps(probe))[0], url

    verdict, url = check.run(story())
    assert verdict == Verdict.failed(f"connection refused: {url}")


# ---- deadlines


@some_kinds
def test_a_check_that_hangs_on_a_reused_connection_ends_at_its_deadline_and_drops_it(
    check: CheckRunner, url: str, options: dict[str, Any]
) -> None:
    may_answer = threading.Event()

    def answers_late(peer: Peer) -> None:
        ReceivedRequest.read(peer)
        peer.send(RESULT)
        ReceivedRequest.read(peer)
        may_answer.wait(WAIT_TIMEOUT_S)
        peer.send(http_response(500, "late"))

    async def story(backend: Backend) -> None:
        with reusing(url.format(place=backend.address), **options) as probe:
            assert (await run_check(probe, WAIT_TIMEOUT_S))[0] == READY
            verdict, _ = await run_check(probe, 0.1)
            assert verdict == Verdict.failed("no answer within 0.1 s, in its step exchange")
            await asyncio.sleep(0)
            assert not own_connection_count(backend.port)
            may_answer.set()
            verdict, steps = await check_with_steps(probe)
            assert (verdict, steps) == (READY, [CONNECT, EXCHANGE])

    with Backend(answers_late) as backend:
        check.run(story(backend))


# ---- whose answer it is


@pytest.mark.parametrize(
    "extra",
    [
        http_response(500, "for somebody else"),
        http_response(500, "for somebody else")[:20],
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"junk",
        b"\x00",
    ],
    ids=["an answer", "half an answer", "100", "junk", "a byte"],
)
@pytest.mark.parametrize("is_late", [False, True], ids=["at once", "later"])
@some_kinds
def test_a_connection_on_which_more_came_than_was_asked_for_is_not_used_again(
    check: CheckRunner, extra: bytes, is_late: bool, url: str, options: dict[str, Any]
) -> None:
    said = threading.Event()

    def says_more(peer: Peer) -> None:
        while True:
            ReceivedRequest.read(peer)
            if is_late:
                peer.send(RESULT)
                said.wait(WAIT_TIMEOUT_S)
                peer.send(extra)
            else:
                peer.send(RESULT + extra)

    async def story(url: str) -> None:
        with reusing(url, **options) as probe:
            for _ in range(2):
                verdict, steps = await check_with_steps(probe)
                assert (verdict, steps[-2:]) == (READY, [CONNECT, EXCHANGE])
                said.set()
                await asyncio.sleep(0.03)

    with Backend(says_more) as backend:
        check.run(story(url.format(place=backend.address)))
    assert backend.connection_count == 2


# ---- bodies


def chunked(*parts: bytes) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body


LARGE = b"x" * (2 * 1024 * 1024)


@pytest.mark.parametrize(
    "answer",
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
def test_a_body_that_nobody_needs_is_read_to_its_end(check: CheckRunner, answer: bytes) -> None:
    with KeepAliveBackend(answer) as backend:
        found = check.run(run_checks(f"http://{backend.address}", 3))
    assert [verdict for verdict, _ in found] == [READY] * 3
    assert backend.requests_per_connection == [3]


def test_a_body_that_ends_with_its_connection_is_ready(check: CheckRunner) -> None:
    with HttpBackend(b"HTTP/1.1 200 OK\r\n\r\nand so on") as backend:
        assert check.run(run_checks(f"http://{backend.address}", 2)) == [(READY, ["connect", "exchange"])] * 2


def test_a_body_that_is_needed_may_come_in_chunks(check: CheckRunner) -> None:
    with KeepAliveBackend(chunked(b"all is ", b"well")) as backend:
        assert [
            verdict for verdict, _ in check.run(run_checks(f"http://{backend.address}", 3, contains="is well"))
        ] == [READY] * 3
    assert backend.requests_per_connection == [3]


def test_a_body_that_is_needed_and_too_large_is_failed_and_its_connection_not_used_again(check: CheckRunner) -> None:
    with KeepAliveBackend(http_response(200, LARGE)) as backend:
        url = f"http://{backend.address}"
        found = check.run(run_checks(url, 2, contains="y"))
    failed = Verdict.failed(f"the body of its answer is larger than 1024 KiB: {url}")
    assert [verdict for verdict, _ in found] == [failed, failed]
    assert backend.requests_per_connection == [1, 1]


def test_a_body_without_an_end_is_failed_at_the_deadline(check: CheckRunner) -> None:
    """Without reuse, the head would be enough."""
    with KeepAliveBackend(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome") as backend:
        url = f"http://{backend.address}"
        assert check(url) == READY
        assert check.with_timeout(0.3, url, reuse=True) == Verdict.failed(
            "no answer within 0.3 s, in its step exchange"
        )


def test_answers_are_judged_one_by_one(check: CheckRunner) -> None:
    """Nothing of an earlier answer is left in the next: no status, no header, no body."""
    answers = iter(
        [
            http_response(200, "one"),
            http_response(302, "", Location="/two"),
            http_response(200, "two"),
            http_response(200, "thr"),
            http_response(500),
        ]
    )

    async def story(url: str) -> list[Verdict]:
        with reusing(url, contains="o", redirects=1) as probe:
            return [(await check_with_steps(probe))[0] for _ in range(4)]

    with KeepAliveBackend(lambda _: next(answers)) as backend:
        url = f"http://{backend.address}"
        assert check.run(story(url)) == [
            READY,
            READY,
            Verdict.failed(f'answered 200, but its body does not hold "o": {url}'),
            Verdict.failed(f"answered 500: {url}"),
        ]
    assert backend.requests_per_connection == [5]


def test_a_redirect_to_elsewhere_is_followed_on_a_connection_of_its_own(check: CheckRunner) -> None:
    with KeepAliveBackend(RESULT) as other:
        redirect = http_response(302, "", Location=f"http://{other.address}/")
        with KeepAliveBackend(redirect) as backend:
            found = check.run(run_checks(f"http://{backend.address}", 3, redirects=1))
    assert found == [
        (READY, ["connect", "exchange", "connect", "exchange"]),
        *[(READY, ["reuse", "exchange", "connect", "exchange"])] * 2,
    ]
    assert (backend.requests_per_connection, other.requests_per_connection) == ([3], [1, 1, 1])


# ---- words


def test_head_cannot_be_asked_on_a_reused_connection() -> None:
    with pytest.raises(OptionError, match="reuse: a connection cannot be kept over HEAD"):
        make_probe({"url": "http://127.0.0.1", "method": "HEAD", "reuse": True})


def test_two_concurrent_checks_lose_no_connection(check: CheckRunner) -> None:
    async def story(backend: Backend) -> None:
        with reusing(f"http://{backend.address}") as probe:
            for _ in range(3):
                assert await asyncio.gather(*(probe.check() for _ in range(3))) == [READY] * 3
            await asyncio.sleep(0.02)
            assert own_connection_count(backend.port) == 1
            assert (await check_with_steps(probe))[1][0] == REUSED
        await asyncio.sleep(0.02)
        assert own_connection_count(backend.port) == 0

    with KeepAliveBackend(RESULT) as backend:
        check.run(story(backend))


def test_what_was_kept_on_a_loop_that_is_gone_is_not_used(check: CheckRunner) -> None:
    """As after a fork, or when a program runs one loop after another."""
    kept: ConnectionSlot[str] = ConnectionSlot()

    async def put() -> str | None:
        kept.put("a connection")
        assert kept.take() == "a connection"
        kept.put("another")
        return None

    async def take() -> str | None:
        return kept.take()

    assert [check.run(put()), check.run(take())] == [None, None]
