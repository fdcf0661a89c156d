"""What looks leave behind, what they keep, what is our own fault, and servers that they talk to for long."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import resource
import socket
import stat
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from svcnode.core.model import Outcome, Verdict
from svcnode.look import let_go, look_once
from svcnode.probes import Probe, make_probe
from svcnode.probes.tools.steps import recorded
from tests.support.backends import Backend, Peer, Received, close, reset, saying
from tests.support.wire import PATIENCE_S

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Sequence

    from tests.integration.probes.conftest import Look
    from tests.support.certificates import Certificate
    from tests.support.servers.base import RealServer

CUT_OFF_S = 0.2  # long enough to reach the step that never ends
REUSED = ("reuse", "the connection of an earlier look", True)
ENDS_SOON = Verdict.not_ready("its certificate expires in 0.0 days, before min_cert_days is reached")
OUT_OF_FILES = Verdict.unknown("this machine cannot look: too many open files")
NOT_WHOLE = "it closed the connection before its answer was whole"

_ESTABLISHED, _CLOSE_WAIT = "01", "08"

# Each example is some byte strings, so a few are enough; the assertion says which it was, without a search for less.
generating = settings(
    deadline=None,
    max_examples=3,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


def garbage(*beginnings: bytes) -> st.SearchStrategy[list[bytes]]:
    """Bytes that nobody should make sense of, some of them after a beginning that is as it should be.

    Long ones are left to chance alone: hypothesis knows the words that stand in the tests, and some are good answers.
    """
    noise = st.builds(_noise, st.integers(0, 2**32), st.integers(1, 120))
    one = st.builds(bytes.__add__, st.sampled_from([b"", *beginnings]), noise | st.binary(max_size=3))
    return st.lists(one, min_size=20, max_size=20)


def _noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


# ---- what is left


def clients_of(port: int) -> int:
    """How many are connected, as the server's end has it."""
    return sum(row.local == port and row.state in (_ESTABLISHED, _CLOSE_WAIT) for row in _connections_with(port))


def our_connections_to(port: int) -> int:
    """Sockets that this process has open to it, whatever the other end makes of them."""
    return sum(_peer_port(int(number)) == port for number in os.listdir("/proc/self/fd"))  # noqa: PTH208  numbers


def _peer_port(file: int) -> int | None:
    with suppress(OSError):  # not connected, or closed since
        if stat.S_ISSOCK(os.fstat(file).st_mode):
            with socket.socket(fileno=os.dup(file)) as sock:
                peer = sock.getpeername()
                return int(peer[1]) if isinstance(peer, tuple) else None
    return None


class _Row:
    def __init__(self, line: str) -> None:
        words = line.split()
        self.local = int(words[1].rpartition(":")[2], 16)
        self.state = words[3]


def _connections_with(port: int) -> list[_Row]:
    """Chosen by the text first: there may be thousands of others."""
    lines = [line for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    return [_Row(line) for line in lines if f":{port:04X} " in line]


def threads_of_looks() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith(("svcnode", "asyncio"))]


async def _turns_until(is_so: Callable[[], bool]) -> bool:
    """Without a thread of its own, which would be one that is left."""
    for _ in range(int(PATIENCE_S / 0.005)):
        if is_so():
            return True
        await asyncio.sleep(0.005)
    return is_so()


async def _assert_nothing_is_left(port: int, before: set[asyncio.Task[Any]]) -> None:
    assert await _turns_until(lambda: asyncio.all_tasks() <= before), asyncio.all_tasks() - before
    assert await _turns_until(lambda: not our_connections_to(port))
    assert not threads_of_looks()
    gc.collect(1)  # the young ones: a task whose fault nobody took says so when it is collected


def assert_cut_off(look: Look, url: str, port: int, step: str, *, timeout_s: float = CUT_OFF_S, **options: Any) -> None:
    """It ends at its deadline, says in which step, and leaves no task, no thread and no connection."""

    async def story() -> None:
        before = asyncio.all_tasks()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        found = await look_once(make_probe({"url": url, **options}), timeout_s)
        assert found == (Verdict.failed(f"no answer within {timeout_s:g} s, in its step {step}"), None)
        assert loop.time() - began_s < timeout_s + PATIENCE_S
        await _assert_nothing_is_left(port, before)

    look.run(story())


def assert_leaves_nothing(look: Look, url: str, port: int, **options: Any) -> Verdict:
    """The verdict of a look that opens a connection of its own, and of which nothing remains."""

    async def story() -> Verdict:
        before = asyncio.all_tasks()
        verdict, fault = await look_once(make_probe({"url": url, **options}), PATIENCE_S)
        assert fault is None
        await _assert_nothing_is_left(port, before)
        return verdict

    return look.run(story())


def assert_cut_off_anywhere(look: Look, url: str, **options: Any) -> None:
    """Cut off after each tenth of the time that it takes, it leaves nothing open."""
    began_s = time.monotonic()
    look(url, **options)
    whole_s = time.monotonic() - began_s
    for tenth in range(1, 10):
        look.leaves_nothing_open(url, deadline_s=whole_s * tenth / 10, **options)


def assert_all_failed(
    look: Look, answers: Sequence[bytes], url_of: Callable[[Backend], str], **options: Any
) -> list[str]:
    """Whatever it says to a connection, that is failed, soon, and nothing is left; the reasons."""
    left = iter(answers)

    def script(peer: Peer) -> None:
        saying(next(left, answers[-1]))(peer)  # some looks open more than one connection

    async def story(backend: Backend) -> list[str]:
        before, reasons = asyncio.all_tasks(), []
        probe = make_probe({"url": url_of(backend), **options})
        for answer in answers:
            verdict, fault = await look_once(probe, PATIENCE_S)
            assert fault is None, f"{fault!r} on {answer!r}"
            assert verdict.outcome is Outcome.FAILED, f"{verdict} on {answer!r}"
            assert "no answer within" not in verdict.reason, f"{verdict} on {answer!r}"
            reasons.append(verdict.reason)
        await _assert_nothing_is_left(backend.port, before)
        return reasons

    with Backend(script) as backend:
        return look.run(story(backend))


def assert_lost_is_failed(look: Look, scheme: str, *, closed: str = NOT_WHOLE) -> None:
    """A connection that the server closes, or resets, before it has said anything."""
    with Backend(close) as closing, Backend(reset) as resetting:
        url = f"{scheme}://{closing.place}"
        assert look(url) == Verdict.failed(f"{closed}: {url}")
        url = f"{scheme}://{resetting.place}"
        assert look(url) == Verdict.failed(f"connection reset by peer: {url}")


# ---- our own faults


def assert_missing_ca_is_our_fault(look: Look, url: str, ca: Path, certificate: Certificate, **options: Any) -> None:
    """An authority that is there when the probe is made, and gone when it looks."""
    ca.write_bytes(certificate.certificate.read_bytes())
    probe = make_probe({"url": url, "ca": str(ca), **options})
    ca.unlink()
    verdict, _ = look.run(look_once(probe, 1.0))
    assert verdict.outcome is Outcome.UNKNOWN
    assert f"cannot use {ca}: no such file or directory" in verdict.reason


@contextmanager
def no_files_left() -> Iterator[None]:
    """This process can open no more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        for file in taken:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ---- what is kept


@contextmanager
def keeping(url: str, **options: Any) -> Iterator[Probe]:
    """A probe that keeps its connection until the end of the block."""
    probe = make_probe({"url": url, "reuse": True, **options})
    try:
        yield probe
    finally:
        let_go(probe)


async def steps_of(probe: Probe) -> tuple[Verdict, list[tuple[str, str, bool]]]:
    """A verdict, and the name and the detail of each step towards it, and whether it was done."""
    with recorded() as steps:
        verdict, fault = await look_once(probe, PATIENCE_S)
    assert fault is None
    return verdict, [(step.name, step.detail, step.is_done) for step in steps]


def assert_reused(look: Look, url: str, port: int, **options: Any) -> None:
    """Later looks use the connection of the first, and after `let_go` the server has lost a client."""

    async def story() -> None:
        before = asyncio.all_tasks()
        with keeping(url, **options) as probe:
            verdict, steps = await steps_of(probe)
            assert (verdict, steps[0]) == (Verdict.ready(), ("connect", "127.0.0.1", True))
            for _ in range(3):
                verdict, steps = await steps_of(probe)
                assert (verdict, steps[0]) == (Verdict.ready(), REUSED)
                assert "connect" not in {name for name, _, _ in steps}
                assert our_connections_to(port) == 1
            others = clients_of(port) - 1  # some servers are their own clients
        assert await _turns_until(lambda: clients_of(port) <= others)
        await _assert_nothing_is_left(port, before)

    look.run(story())


def assert_outlives_restarts(look: Look, server: RealServer, **options: Any) -> None:
    """A connection that was kept and has died since does not count against a server that is back."""

    async def story() -> None:
        before = asyncio.all_tasks()
        with keeping(server.url, **options) as probe:
            assert (await probe.look()) == Verdict.ready()
            server.kill()
            verdict = await probe.look()
            assert (verdict.outcome, verdict.reason.partition(": ")[0]) == (Outcome.FAILED, "connection refused")
            server.start()
            server.wait_until_ready()
            assert (await probe.look()) == Verdict.ready()
            server.restart()
            assert (await probe.look()) == Verdict.ready(), "its end was not noticed before the look"
        await _assert_nothing_is_left(server.port, before)

    look.run(story())


def assert_not_kept_when_cut_off(look: Look, server: RealServer) -> None:
    """A kept connection of which an answer is still to come is not used again."""

    async def story() -> None:
        with keeping(server.url) as probe:
            assert (await steps_of(probe))[0] == Verdict.ready()
            server.freeze()
            try:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(probe.look(), CUT_OFF_S)
            finally:
                server.thaw()
            verdict, steps = await steps_of(probe)
            assert (verdict, steps[0][0]) == (Verdict.ready(), "connect"), "what came late is not heard"

    look.run(story())


def assert_opened_again_after_a_hang(look: Look, server: RealServer, opening: list[str]) -> None:
    """A kept connection on which a look has met its deadline is closed; `opening` are the steps on a fresh one."""
    assert look.in_a_row(server.url, server.freeze, server.thaw, reuse=True) == [
        (Verdict.ready(), opening),
        (Verdict.failed("no answer within 1 s, in its step exchange"), ["reuse", "exchange"]),
        (Verdict.ready(), opening),
    ]


# ---- HTTP on connections that stay


class TalkingBackend(Backend):
    """Answers every request of a connection until the other end closes it."""

    def __init__(self, answer: bytes | Callable[[Received], bytes], *, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(self._talk, tls=tls)
        self.answer = answer
        self.requests: list[Received] = []
        self.by_connection: list[int] = []  # how many requests came on each

    def _talk(self, peer: Peer) -> None:
        number = len(self.by_connection)
        self.by_connection.append(0)
        while True:
            request = Received.read(peer)
            self.requests.append(request)
            self.by_connection[number] += 1
            peer.say(self.answer if isinstance(self.answer, bytes) else self.answer(request))
