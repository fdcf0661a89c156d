"""memcached:// against a real memcached, and against what only stands at its port."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from svcnode.core.model import Verdict
from tests.support.backends import Backend, Peer, mute, refusing, saying
from tests.support.looks import (
    OUT_OF_FILES,
    assert_all_failed,
    assert_cut_off,
    assert_leaves_nothing,
    assert_lost_is_failed,
    assert_outlives_restarts,
    assert_reused,
    clients_of,
    garbage,
    generating,
    keeping,
    steps_of,
)
from tests.support.servers.memcached import MemcachedServer
from tests.support.wire import PATIENCE_S, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.probes.conftest import Look

READY = Verdict.ready()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MemcachedServer]:
    with MemcachedServer(tmp_path_factory.mktemp("memcached")) as server:
        yield server


def test_a_server_that_tells_its_version_is_ready(look: Look, server: MemcachedServer) -> None:
    assert look(server.url) == READY
    assert look.steps(server.url) == [("connect", "127.0.0.1", True), ("exchange", "", True)]


def test_nothing_is_left_of_a_look(look: Look, server: MemcachedServer) -> None:
    assert assert_leaves_nothing(look, server.url, server.port) == READY
    assert until(lambda: not clients_of(server.port))


def test_a_server_without_a_connection_to_spare_is_failed_in_its_own_words(look: Look, server: MemcachedServer) -> None:
    with server.exhaust():
        verdict = look(server.url)
    assert until(lambda: look(server.url) == READY)
    words = {"ERROR Too many open connections", "connection reset by peer"}  # it hangs up at once, and may be too fast
    assert verdict in {Verdict.failed(f"{one}: {server.url}") for one in words}


def test_a_frozen_server_is_failed_at_the_deadline(look: Look, server: MemcachedServer) -> None:
    server.freeze()
    try:
        assert_cut_off(look, server.url, server.port, "exchange")
    finally:
        server.thaw()


# ---- what is no memcached


def test_a_port_that_refuses_is_failed(look: Look) -> None:
    with refusing() as port:
        url = f"memcached://127.0.0.1:{port}"
        assert look(url) == Verdict.failed(f"connection refused: {url}")


def test_a_mute_port_is_failed_at_the_deadline(look: Look) -> None:
    with Backend(mute) as backend:
        assert_cut_off(look, f"memcached://{backend.place}", backend.port, "exchange")


def test_a_connection_that_is_closed_or_reset_is_failed(look: Look) -> None:
    assert_lost_is_failed(look, "memcached", closed="it closed the connection before it had answered")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"-ERR unknown command\r\n", "it did not tell its version"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it did not tell its version"),
        (b"VERSION", "it closed the connection before it had answered"),
        (b"SERVER_ERROR out of memory\x1b[2J\r\n", "SERVER_ERROR out of memory [2J"),
    ],
)
def test_another_answer_is_failed(look: Look, answer: bytes, words: str) -> None:
    def script(peer: Peer) -> None:
        peer.read_until(b"\r\n")
        peer.say(answer)
        peer.finish()

    with Backend(script) as backend:
        assert look(f"memcached://{backend.place}") == Verdict.failed(f"{words}: memcached://{backend.place}")


@generating
@given(answers=garbage(b"ERROR ", b"version "))
def test_no_bytes_make_more_than_a_failure(look: Look, answers: list[bytes]) -> None:
    assert_all_failed(look, answers, lambda backend: f"memcached://{backend.place}")


def test_a_line_without_an_end_is_failed_and_not_listened_to_for_ever(look: Look) -> None:
    def chatters(peer: Peer) -> None:
        while True:
            peer.say(b"VERSION " * 1000)

    with Backend(chatters) as backend:
        began_s = time.monotonic()
        verdict = look(f"memcached://{backend.place}")
        assert time.monotonic() - began_s < PATIENCE_S
    assert verdict.outcome.value == "failed"


def test_what_is_said_unasked_is_no_answer(look: Look) -> None:
    with Backend(saying(b"ERROR Too many open connections\r\n")) as full, Backend(saying(b"220 mail\r\n")) as mail:
        url = f"memcached://{full.place}"
        assert look(url) == Verdict.failed(f"ERROR Too many open connections: {url}")
        url = f"memcached://{mail.place}"
        assert look(url) == Verdict.failed(f"it did not tell its version: {url}")


# ---- reuse


def test_a_connection_can_be_kept(look: Look, server: MemcachedServer) -> None:
    assert_reused(look, server.url, server.port)


def test_a_kept_connection_outlives_restarts_of_the_server(look: Look, server: MemcachedServer) -> None:
    assert_outlives_restarts(look, server)


def test_what_came_late_is_not_taken_for_an_answer(look: Look) -> None:
    """It says twice what it is asked once, and then nothing any more."""

    def says_too_much(peer: Peer) -> None:
        peer.read_until(b"\r\n")
        peer.say(b"VERSION 1.6\r\nVERSION 1.6\r\n")

    async def story(url: str) -> list[tuple[str, str, bool]]:
        with keeping(url) as probe:
            assert (await steps_of(probe))[0] == READY
            verdict, steps = await steps_of(probe)
            assert verdict == READY
        return steps

    with Backend(says_too_much) as backend:
        steps = look.run(story(f"memcached://{backend.place}"))
    assert ("connect", "127.0.0.1", True) in steps


# ---- our own faults


def test_running_out_of_file_descriptors_is_our_own_fault(look: Look, server: MemcachedServer) -> None:
    assert look.without_files(server.url) == (OUT_OF_FILES, READY)
