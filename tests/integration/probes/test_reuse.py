"""`reuse` of every kind that speaks HTTP: one connection for many looks, and no look that hears another's answer."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.errors import OptionError
from svcnode.core.model import Outcome, Verdict
from svcnode.look import let_go, look_once
from svcnode.probes import make_probe
from svcnode.probes.tools.kept import Kept
from tests.support.backends import Backend, HttpBackend, Peer, ProxyBackend, Received, reply, server_tls
from tests.support.looks import REUSED, TalkingBackend, clients_of, keeping, our_connections_to, steps_of
from tests.support.wire import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.probes.conftest import Look
    from tests.support.certificates import Certificate

READY = Verdict.ready()
CONNECT = ("connect", "127.0.0.1", True)
EXCHANGE = ("exchange", "", True)
RESULT = reply(200, json.dumps({"jsonrpc": "2.0", "id": 1, "result": "ok"}))

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


async def looks(url: str, count: int, between_s: float = 0.0, **options: Any) -> list[tuple[Verdict, list[str]]]:
    """Of one probe, with its steps by their names."""
    found = []
    with keeping(url, **options) as probe:
        for _ in range(count):
            verdict, steps = await steps_of(probe)
            found.append((verdict, [name for name, _, _ in steps]))
            await asyncio.sleep(between_s)
    return found


# ---- one connection


@every_kind
def test_many_looks_share_one_connection(look: Look, url: str, options: dict[str, Any]) -> None:
    with TalkingBackend(RESULT) as backend:
        found = look.run(looks(url.format(place=backend.place), 4, **options))
    assert found == [(READY, ["connect", "exchange"]), *[(READY, ["reuse", "exchange"])] * 3]
    assert backend.by_connection == [4]
    assert not any("connection" in request.headers for request in backend.requests)


@every_kind
def test_without_it_every_look_has_a_connection_of_its_own(look: Look, url: str, options: dict[str, Any]) -> None:
    async def story(url: str) -> list[Verdict]:
        probe = make_probe({"url": url, **options})
        return [(await steps_of(probe))[0] for _ in range(3)]

    with TalkingBackend(RESULT) as backend:
        assert look.run(story(url.format(place=backend.place))) == [READY] * 3
        assert until(lambda: not clients_of(backend.port))
    assert backend.by_connection == [1, 1, 1]
    assert {request.headers["connection"] for request in backend.requests} == {"close"}


def test_a_connection_that_was_kept_is_closed_when_nobody_looks_any_more(look: Look) -> None:
    async def story(backend: Backend) -> None:
        probe = make_probe({"url": f"http://{backend.place}", "reuse": True})
        assert (await steps_of(probe))[0] == READY
        assert (our_connections_to(backend.port), clients_of(backend.port)) == (1, 1)
        let_go(probe)
        await asyncio.sleep(0.05)
        assert (our_connections_to(backend.port), clients_of(backend.port)) == (0, 0)
        let_go(probe)  # which does no harm
        assert await steps_of(probe) == (READY, [CONNECT, EXCHANGE])
        let_go(probe)

    with TalkingBackend(RESULT) as backend:
        look.run(story(backend))


def test_a_failure_says_nothing_against_the_connection(look: Look) -> None:
    with TalkingBackend(reply(503, "down")) as backend:
        url = f"http://{backend.place}"
        failed = Verdict.failed(f"answered 503: {url}")
        assert look.run(looks(url, 2)) == [(failed, ["connect", "exchange"]), (failed, ["reuse", "exchange"])]


def test_a_connection_under_tls_can_be_kept(look: Look, certificate: Certificate) -> None:
    with TalkingBackend(RESULT, tls=server_tls(certificate)) as backend:
        found = look.run(looks(f"https://{backend.place}", 3, ca=str(certificate.certificate)))
    assert found == [(READY, ["connect", "handshake", "exchange"]), *[(READY, ["reuse", "exchange"])] * 2]
    assert backend.by_connection == [3]


def test_a_certificate_that_ends_soon_is_noticed_on_a_kept_connection(look: Look, certificate: Certificate) -> None:
    with TalkingBackend(RESULT, tls=server_tls(certificate)) as backend:
        options: dict[str, Any] = {"ca": str(certificate.certificate), "min_cert_days": 1}
        found = look.run(looks(f"https://{backend.place}", 2, **options))
    assert [verdict.outcome for verdict, _ in found] == [Outcome.NOT_READY, Outcome.NOT_READY]


def test_a_connection_to_a_proxy_can_be_kept(look: Look, certificate: Certificate) -> None:
    with TalkingBackend(RESULT, tls=server_tls(certificate)) as backend, ProxyBackend() as proxy:
        options: dict[str, Any] = {"ca": str(certificate.certificate), "proxy": f"http://{proxy.place}"}
        found = look.run(looks(f"https://{backend.place}", 3, **options))
    assert [verdict for verdict, _ in found] == [READY] * 3
    assert proxy.connection_count == 1


# ---- connections that end


def closing_after_each(request: Received) -> bytes:
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
    look: Look, answer: Callable[[Received], bytes], url: str, options: dict[str, Any]
) -> None:
    with TalkingBackend(answer) as backend:
        found = look.run(looks(url.format(place=backend.place), 3, **options))
    assert found == [(READY, ["connect", "exchange"])] * 3
    assert backend.by_connection == [1, 1, 1]


@pytest.mark.parametrize("end", [Peer.finish, Peer.reset], ids=["closed", "reset"])
@some_kinds
def test_a_server_that_ends_idle_connections_is_not_failed(
    look: Look, end: Callable[[Peer], None], url: str, options: dict[str, Any]
) -> None:
    """Without a word, and after its answer."""

    def answers_once(peer: Peer) -> None:
        Received.read(peer)
        peer.say(RESULT)
        end(peer)

    with Backend(answers_once) as backend:
        found = look.run(looks(url.format(place=backend.place), 3, between_s=0.02, **options))
    assert [verdict for verdict, _ in found] == [READY] * 3
    assert backend.connection_count == 3


@pytest.mark.parametrize("end", [Peer.finish, Peer.reset], ids=["closed", "reset"])
@some_kinds
def test_a_server_that_ends_the_connection_when_it_is_asked_again_is_not_failed(
    look: Look, end: Callable[[Peer], None], url: str, options: dict[str, Any]
) -> None:
    """It had ended it before, as far as it knows."""

    def hears_twice(peer: Peer) -> None:
        Received.read(peer)
        peer.say(RESULT)
        Received.read(peer)
        end(peer)

    with Backend(hears_twice) as backend:
        found = look.run(looks(url.format(place=backend.place), 2, **options))
    assert [verdict for verdict, _ in found] == [READY, READY]
    assert found[1][1] == ["reuse", "exchange", "connect", "exchange"]
    assert backend.connection_count == 2


def test_a_server_that_breaks_off_its_answer_is_failed_on_a_kept_connection_too(look: Look) -> None:
    """What has begun to answer has not been idle."""

    def breaks_off(peer: Peer) -> None:
        Received.read(peer)
        peer.say(RESULT)
        Received.read(peer)
        peer.say(RESULT[:20])
        peer.finish()

    with Backend(breaks_off) as backend:
        url = f"http://{backend.place}"
        found = look.run(looks(url, 3))
    assert [verdict for verdict, _ in found] == [
        READY,
        Verdict.failed(f"it closed the connection before its answer was whole: {url}"),
        READY,
    ]


def test_a_server_that_is_gone_is_failed(look: Look) -> None:
    async def story() -> tuple[Verdict, str]:
        with HttpBackend(RESULT) as backend:
            url = f"http://{backend.place}"
            with keeping(url) as probe:
                assert (await steps_of(probe))[0] == READY
                await asyncio.sleep(0.02)
        return (await steps_of(probe))[0], url

    verdict, url = look.run(story())
    assert verdict == Verdict.failed(f"connection refused: {url}")


# ---- deadlines


@some_kinds
def test_a_look_that_hangs_on_a_kept_connection_ends_at_its_deadline_and_drops_it(
    look: Look, url: str, options: dict[str, Any]
) -> None:
    may_answer = threading.Event()

    def answers_late(peer: Peer) -> None:
        Received.read(peer)
        peer.say(RESULT)
        Received.read(peer)
        may_answer.wait(PATIENCE_S)
        peer.say(reply(500, "late"))

    async def story(backend: Backend) -> None:
        with keeping(url.format(place=backend.place), **options) as probe:
            assert (await look_once(probe, PATIENCE_S))[0] == READY
            verdict, _ = await look_once(probe, 0.1)
            assert verdict == Verdict.failed("no answer within 0.1 s, in its step exchange")
            await asyncio.sleep(0)
            assert not our_connections_to(backend.port)
            may_answer.set()
            verdict, steps = await steps_of(probe)
            assert (verdict, steps) == (READY, [CONNECT, EXCHANGE])

    with Backend(answers_late) as backend:
        look.run(story(backend))


# ---- whose answer it is


@pytest.mark.parametrize(
    "extra",
    [
        reply(500, "for somebody else"),
        reply(500, "for somebody else")[:20],
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"junk",
        b"\x00",
    ],
    ids=["an answer", "half an answer", "100", "junk", "a byte"],
)
@pytest.mark.parametrize("is_late", [False, True], ids=["at once", "later"])
@some_kinds
def test_a_connection_on_which_more_came_than_was_asked_for_is_not_used_again(
    look: Look, extra: bytes, is_late: bool, url: str, options: dict[str, Any]
) -> None:
    said = threading.Event()

    def says_more(peer: Peer) -> None:
        while True:
            Received.read(peer)
            if is_late:
                peer.say(RESULT)
                said.wait(PATIENCE_S)
                peer.say(extra)
            else:
                peer.say(RESULT + extra)

    async def story(url: str) -> None:
        with keeping(url, **options) as probe:
            for _ in range(2):
                verdict, steps = await steps_of(probe)
                assert (verdict, steps[-2:]) == (READY, [CONNECT, EXCHANGE])
                said.set()
                await asyncio.sleep(0.03)

    with Backend(says_more) as backend:
        look.run(story(url.format(place=backend.place)))
    assert backend.connection_count == 2


# ---- bodies


def chunked(*parts: bytes) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body


LARGE = b"x" * (2 * 1024 * 1024)


@pytest.mark.parametrize(
    "answer",
    [
        reply(200, LARGE),
        chunked(b"some", b"of", b"it"),
        chunked(LARGE[:1_000_000], LARGE[:1_000_000]),
        chunked(),
        reply(204).replace(b"Content-Length: 0\r\n", b""),
        reply(200),
        b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + RESULT,
    ],
    ids=["large", "chunked", "large and chunked", "chunked and empty", "204", "empty", "after a hint"],
)
def test_a_body_that_nobody_needs_is_read_to_its_end(look: Look, answer: bytes) -> None:
    with TalkingBackend(answer) as backend:
        found = look.run(looks(f"http://{backend.place}", 3))
    assert [verdict for verdict, _ in found] == [READY] * 3
    assert backend.by_connection == [3]


def test_a_body_that_ends_with_its_connection_is_ready(look: Look) -> None:
    with HttpBackend(b"HTTP/1.1 200 OK\r\n\r\nand so on") as backend:
        assert look.run(looks(f"http://{backend.place}", 2)) == [(READY, ["connect", "exchange"])] * 2


def test_a_body_that_is_needed_may_come_in_chunks(look: Look) -> None:
    with TalkingBackend(chunked(b"all is ", b"well")) as backend:
        assert [verdict for verdict, _ in look.run(looks(f"http://{backend.place}", 3, contains="is well"))] == [
            READY
        ] * 3
    assert backend.by_connection == [3]


def test_a_body_that_is_needed_and_too_large_is_failed_and_its_connection_not_used_again(look: Look) -> None:
    with TalkingBackend(reply(200, LARGE)) as backend:
        url = f"http://{backend.place}"
        found = look.run(looks(url, 2, contains="y"))
    failed = Verdict.failed(f"the body of its answer is larger than 1024 KiB: {url}")
    assert [verdict for verdict, _ in found] == [failed, failed]
    assert backend.by_connection == [1, 1]


def test_a_body_without_an_end_is_failed_at_the_deadline(look: Look) -> None:
    """Without reuse, the head would be enough."""
    with TalkingBackend(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome") as backend:
        url = f"http://{backend.place}"
        assert look(url) == READY
        assert look.within(0.3, url, reuse=True) == Verdict.failed("no answer within 0.3 s, in its step exchange")


def test_answers_are_judged_one_by_one(look: Look) -> None:
    """Nothing of an earlier answer is left in the next: no status, no header, no body."""
    answers = iter(
        [reply(200, "one"), reply(302, "", Location="/two"), reply(200, "two"), reply(200, "thr"), reply(500)]
    )

    async def story(url: str) -> list[Verdict]:
        with keeping(url, contains="o", redirects=1) as probe:
            return [(await steps_of(probe))[0] for _ in range(4)]

    with TalkingBackend(lambda _: next(answers)) as backend:
        url = f"http://{backend.place}"
        assert look.run(story(url)) == [
            READY,
            READY,
            Verdict.failed(f'answered 200, but its body does not hold "o": {url}'),
            Verdict.failed(f"answered 500: {url}"),
        ]
    assert backend.by_connection == [5]


def test_a_redirect_to_elsewhere_is_followed_on_a_connection_of_its_own(look: Look) -> None:
    with TalkingBackend(RESULT) as other:
        redirect = reply(302, "", Location=f"http://{other.place}/")
        with TalkingBackend(redirect) as backend:
            found = look.run(looks(f"http://{backend.place}", 3, redirects=1))
    assert found == [
        (READY, ["connect", "exchange", "connect", "exchange"]),
        *[(READY, ["reuse", "exchange", "connect", "exchange"])] * 2,
    ]
    assert (backend.by_connection, other.by_connection) == ([3], [1, 1, 1])


# ---- words


def test_head_cannot_be_asked_on_a_kept_connection() -> None:
    with pytest.raises(OptionError, match="reuse: a connection cannot be kept over HEAD"):
        make_probe({"url": "http://127.0.0.1", "method": "HEAD", "reuse": True})


def test_two_looks_at_the_same_time_lose_no_connection(look: Look) -> None:
    async def story(backend: Backend) -> None:
        with keeping(f"http://{backend.place}") as probe:
            for _ in range(3):
                assert await asyncio.gather(*(probe.look() for _ in range(3))) == [READY] * 3
            await asyncio.sleep(0.02)
            assert our_connections_to(backend.port) == 1
            assert (await steps_of(probe))[1][0] == REUSED
        await asyncio.sleep(0.02)
        assert our_connections_to(backend.port) == 0

    with TalkingBackend(RESULT) as backend:
        look.run(story(backend))


def test_what_was_kept_on_a_loop_that_is_gone_is_not_used(look: Look) -> None:
    """As after a fork, or when a program runs one loop after another."""
    kept: Kept[str] = Kept()

    async def put() -> str | None:
        kept.put("a connection")
        assert kept.take() == "a connection"
        kept.put("another")
        return None

    async def take() -> str | None:
        return kept.take()

    assert [look.run(put()), look.run(take())] == [None, None]
