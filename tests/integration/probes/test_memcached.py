"""memcached:// against a real memcached and against scripted servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from tests.support.backends import Backend, Peer, sending
from tests.support.probe_assertions import assert_reused, check_with_steps, reusing
from tests.support.servers.base import module_server
from tests.support.servers.memcached import MemcachedServer
from tests.support.verdicts import PROTOCOL_ERROR, READY, failed, not_ready

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.check_runner import CheckRunner


TOO_MANY_CONNECTIONS = failed(ReasonCode.TOO_MANY_CONNECTIONS)
OUT_OF_MEMORY = not_ready(ReasonCode.OUT_OF_MEMORY)
SETTINGS = b"STAT maxbytes 2000\r\nSTAT evictions off\r\nEND\r\n"


# ---- memory and writes


server = module_server(MemcachedServer)


def test_a_server_that_returns_its_version_is_ready_and_its_connection_can_be_reused(
    check: CheckRunner, server: MemcachedServer
) -> None:
    assert check.steps(server.url) == [("connect", "127.0.0.1", True), ("exchange", "", True)]
    assert_reused(check, server.url, server.port)


def test_a_server_that_evicts_nothing_is_not_ready_while_its_memory_is_full(check: CheckRunner, tmp_path: Path) -> None:
    with MemcachedServer(tmp_path, evicts=False) as server:
        assert check(server.url, write=True) == READY
        with server.out_of_memory():
            assert check(server.url) == OUT_OF_MEMORY
            assert check(server.url, write=True) == OUT_OF_MEMORY
            assert server.request(b"get filler-0\r\n").startswith(b"VALUE ")
        # All classes are as full as before, but the items in them have expired.
        assert check(server.url) == READY


def test_a_write_stores_an_item(check: CheckRunner, server: MemcachedServer) -> None:
    for write, key in ((True, b"svcnode_write"), ("ledger:check", b"ledger:check")):
        assert check(server.url, write=write) == READY
        assert server.request(b"get %b\r\n" % key) == b"VALUE %b 0 7\r\nsvcnode\r\nEND\r\n" % key
    assert check.steps(server.url, write=True)[-2:] == [("write", "", True), ("exchange", "", True)]
    assert_reused(check, server.url, server.port, write=True)


def answering(*answers: bytes) -> Callable[[Peer], None]:
    """Answers one line after the other."""

    def script(peer: Peer) -> None:
        for answer in answers:
            peer.read_until(b"\r\n")
            peer.send(answer)

    return script


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (b"STORED\r\n", READY),
        (b"SERVER_ERROR object too large for cache\r\n", failed(ReasonCode.SERVER_ERROR)),
    ],
)
def test_a_refused_write_has_the_code_of_its_reason(check: CheckRunner, answer: bytes, verdict: object) -> None:
    with Backend(answering(b"VERSION 1.6\r\n", b"END\r\n", answer)) as backend:
        assert check(f"memcached://{backend.address}", write=True) == verdict


@pytest.mark.parametrize("answer", [b"ERROR\r\n", b"CLIENT_ERROR usage: stats\r\n", b"END\r\n", b""])
def test_a_proxy_without_statistics_is_ready(check: CheckRunner, answer: bytes) -> None:
    def script(peer: Peer) -> None:
        answering(b"VERSION 1.6\r\n", answer)(peer)
        peer.shutdown_write()

    with Backend(script) as backend:
        assert check(f"memcached://{backend.address}") == READY


@pytest.mark.parametrize(
    "answers",
    [
        [b"VERSION 1.6\r\n"],
        [b"STAT evictions off\r\nEND\r\n", b"END\r\n"],
        [SETTINGS, b"STAT 1:chunk_size 96\r\nEND\r\n"],
        [SETTINGS, b"STAT 1:chunk_size x\r\nSTAT 1:free_chunks 0\r\nEND\r\n"],
    ],
)
def test_statistics_that_cannot_be_read_are_failed(check: CheckRunner, answers: list[bytes]) -> None:
    with Backend(answering(b"VERSION 1.6\r\n", *answers)) as backend:
        verdict = check(f"memcached://{backend.address}")
    assert verdict in (PROTOCOL_ERROR, failed(ReasonCode.UNEXPECTED_RESPONSE))


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"-ERR unknown command\r\n", ReasonCode.PROTOCOL_ERROR),
        (b"VERSION", ReasonCode.CONNECTION_CLOSED),
        (b"SERVER_ERROR out of order\x1b[2J\r\n", ReasonCode.SERVER_ERROR),
        (b"CLIENT_ERROR unauthenticated\r\n", ReasonCode.AUTH_REQUIRED),
    ],
)
def test_any_other_response_is_failed(check: CheckRunner, answer: bytes, code: ReasonCode) -> None:
    def script(peer: Peer) -> None:
        peer.read_until(b"\r\n")
        peer.send(answer)
        peer.shutdown_write()

    with Backend(script) as backend:
        verdict = check(f"memcached://{backend.address}")
    assert verdict == failed(code)
    assert verdict.reason.isprintable()


def test_a_line_before_the_request_is_not_its_response(check: CheckRunner) -> None:
    with Backend(sending(b"ERROR Too many open connections\r\n")) as full, Backend(sending(b"220 mail\r\n")) as mail:
        assert check(f"memcached://{full.address}") == TOO_MANY_CONNECTIONS
        assert check(f"memcached://{mail.address}") == PROTOCOL_ERROR


def test_a_late_line_is_not_the_response_of_the_next_check(check: CheckRunner) -> None:
    def respond_twice(peer: Peer) -> None:
        peer.read_until(b"\r\n")
        peer.send(b"VERSION 1.6\r\n")
        peer.read_until(b"\r\n")
        peer.send(b"END\r\nVERSION 1.6\r\n")

    async def main(url: str) -> list[tuple[str, str, bool]]:
        with reusing(url) as probe:
            assert (await check_with_steps(probe))[0] == READY
            verdict, steps = await check_with_steps(probe)
            assert verdict == READY
        return steps

    with Backend(respond_twice) as backend:
        steps = check.run(main(f"memcached://{backend.address}"))
    assert ("connect", "127.0.0.1", True) in steps
