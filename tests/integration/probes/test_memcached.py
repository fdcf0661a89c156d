"""memcached:// against a real memcached, and against what only stands at its port."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from svcnode.core.model import Verdict
from tests.support.backends import Backend, Peer, closed_port, sending, unresponsive
from tests.support.http_server import WAIT_TIMEOUT_S, becomes_true
from tests.support.probe_assertions import (
    assert_all_failed,
    assert_disconnect_is_failed,
    assert_no_leaks,
    assert_reused,
    assert_survives_restarts,
    assert_times_out,
    check_with_steps,
    client_count,
    few_examples,
    garbage,
    reusing,
)
from tests.support.servers.memcached import MemcachedServer
from tests.support.verdicts import NO_DESCRIPTORS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.probes.conftest import CheckRunner

READY = Verdict.ready()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemcachedServer]:
    with MemcachedServer(tmp_path_factory.mktemp("memcached")) as server:
        yield server


def test_a_server_that_tells_its_version_is_ready(check: CheckRunner, server: MemcachedServer) -> None:
    assert check(server.url) == READY
    assert check.steps(server.url) == [("connect", "127.0.0.1", True), ("exchange", "", True)]


def test_nothing_is_left_of_a_check(check: CheckRunner, server: MemcachedServer) -> None:
    assert assert_no_leaks(check, server.url, server.port) == READY
    assert becomes_true(lambda: not client_count(server.port))


def test_a_server_without_a_connection_to_spare_is_failed_in_its_own_words(
    check: CheckRunner, server: MemcachedServer
) -> None:
    with server.exhaust():
        verdict = check(server.url)
    assert becomes_true(lambda: check(server.url) == READY)
    words = {"ERROR Too many open connections", "connection reset by peer"}  # it hangs up at once, and may be too fast
    assert verdict in {Verdict.failed(f"{one}: {server.url}") for one in words}


def test_a_frozen_server_is_failed_at_the_deadline(check: CheckRunner, server: MemcachedServer) -> None:
    server.freeze()
    try:
        assert_times_out(check, server.url, server.port, "exchange")
    finally:
        server.thaw()


# ---- what is no memcached


def test_a_port_that_refuses_is_failed(check: CheckRunner) -> None:
    with closed_port() as port:
        url = f"memcached://127.0.0.1:{port}"
        assert check(url) == Verdict.failed(f"connection refused: {url}")


def test_a_mute_port_is_failed_at_the_deadline(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert_times_out(check, f"memcached://{backend.address}", backend.port, "exchange")


def test_a_connection_that_is_closed_or_reset_is_failed(check: CheckRunner) -> None:
    assert_disconnect_is_failed(check, "memcached", closed="it closed the connection before it had answered")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"-ERR unknown command\r\n", "it did not tell its version"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it did not tell its version"),
        (b"VERSION", "it closed the connection before it had answered"),
        (b"SERVER_ERROR out of memory\x1b[2J\r\n", "SERVER_ERROR out of memory [2J"),
    ],
)
def test_another_answer_is_failed(check: CheckRunner, answer: bytes, words: str) -> None:
    def script(peer: Peer) -> None:
        peer.read_until(b"\r\n")
        peer.send(answer)
        peer.shutdown_write()

    with Backend(script) as backend:
        assert check(f"memcached://{backend.address}") == Verdict.failed(f"{words}: memcached://{backend.address}")


@few_examples
@given(answers=garbage(b"ERROR ", b"version "))
def test_no_bytes_make_more_than_a_failure(check: CheckRunner, answers: list[bytes]) -> None:
    assert_all_failed(check, answers, lambda backend: f"memcached://{backend.address}")


def test_a_line_without_an_end_is_failed_and_not_listened_to_for_ever(check: CheckRunner) -> None:
    def chatters(peer: Peer) -> None:
        while True:
            peer.send(b"VERSION " * 1000)

    with Backend(chatters) as backend:
        began_s = time.monotonic()
        verdict = check(f"memcached://{backend.address}")
        assert time.monotonic() - began_s < WAIT_TIMEOUT_S
    assert verdict.outcome.value == "failed"


def test_what_is_said_unasked_is_no_answer(check: CheckRunner) -> None:
    with Backend(sending(b"ERROR Too many open connections\r\n")) as full, Backend(sending(b"220 mail\r\n")) as mail:
        url = f"memcached://{full.address}"
        assert check(url) == Verdict.failed(f"ERROR Too many open connections: {url}")
        url = f"memcached://{mail.address}"
        assert check(url) == Verdict.failed(f"it did not tell its version: {url}")


# ---- reuse


def test_a_connection_can_be_kept(check: CheckRunner, server: MemcachedServer) -> None:
    assert_reused(check, server.url, server.port)


def test_a_reused_connection_outlives_restarts_of_the_server(check: CheckRunner, server: MemcachedServer) -> None:
    assert_survives_restarts(check, server)


def test_what_came_late_is_not_taken_for_an_answer(check: CheckRunner) -> None:
    """It says twice what it is asked once, and then nothing any more."""

    def says_too_much(peer: Peer) -> None:
        peer.read_until(b"\r\n")
        peer.send(b"VERSION 1.6\r\nVERSION 1.6\r\n")

    async def story(url: str) -> list[tuple[str, str, bool]]:
        with reusing(url) as probe:
            assert (await check_with_steps(probe))[0] == READY
            verdict, steps = await check_with_steps(probe)
            assert verdict == READY
        return steps

    with Backend(says_too_much) as backend:
        steps = check.run(story(f"memcached://{backend.address}"))
    assert ("connect", "127.0.0.1", True) in steps


# ---- our own faults


def test_running_out_of_file_descriptors_is_our_own_fault(check: CheckRunner, server: MemcachedServer) -> None:
    assert check.without_descriptors(server.url) == (NO_DESCRIPTORS, READY)
