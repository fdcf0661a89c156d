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
from svcnode.net.trace import record_steps
from svcnode.probes import make_probe
from svcnode.probes.base import Probe
from svcnode.probes.run import close_probe, run_check
from tests.support.backends import Backend, Peer, ReceivedRequest, close, reset, sending
from tests.support.http_server import WAIT_TIMEOUT_S

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Sequence

    from tests.integration.probes.conftest import CheckRunner
    from tests.support.certificates import Certificate
    from tests.support.servers.base import RealServer

CHECK_TIMEOUT_S = 0.2  # long enough to reach the step that never ends
REUSED = ("reuse", "the connection of an earlier check", True)
EXPIRES_SOON = Verdict.not_ready("its certificate expires in 0.0 days, before min_cert_days is reached")
NO_DESCRIPTORS = Verdict.unknown("this machine cannot check: too many open files")
INCOMPLETE_RESPONSE = "it closed the connection before its answer was whole"

_ESTABLISHED, _CLOSE_WAIT = "01", "08"

# Each example is some byte strings, so a few are enough; the assertion says which it was, without a search for less.
few_examples = settings(
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


def client_count(port: int) -> int:
    """How many are connected, as the server's end has it."""
    return sum(row.local == port and row.state in (_ESTABLISHED, _CLOSE_WAIT) for row in _connections_with(port))


def own_connection_count(port: int) -> int:
    """Sockets that this process has open to it, whatever the other end makes of them."""
    return sum(_peer_port(int(number)) == port for number in os.listdir("/proc/self/fd"))  # noqa: PTH208  numbers


def _peer_port(file: int) -> int | None:
    with suppress(OSError):  # not connected, or closed since
        if stat.S_ISSOCK(os.fstat(file).st_mode):
            with socket.socket(fileno=os.dup(file)) as sock:
                peer = sock.getpeername()
                return int(peer[1]) if isinstance(peer, tuple) else None
    return None


class _SocketRow:
    def __init__(self, line: str) -> None:
        words = line.split()
        self.local = int(words[1].rpartition(":")[2], 16)
        self.state = words[3]


def _connections_with(port: int) -> list[_SocketRow]:
    """Chosen by the text first: there may be thousands of others."""
    lines = [line for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    return [_SocketRow(line) for line in lines if f":{port:04X} " in line]


def check_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith(("svcnode", "asyncio"))]


async def _becomes_true(is_so: Callable[[], bool]) -> bool:
    """Without a thread of its own, which would be one that is left."""
    for _ in range(int(WAIT_TIMEOUT_S / 0.005)):
        if is_so():
            return True
        await asyncio.sleep(0.005)
    return is_so()


async def _assert_no_leaks(port: int, before: set[asyncio.Task[Any]]) -> None:
    assert await _becomes_true(lambda: asyncio.all_tasks() <= before), asyncio.all_tasks() - before
    assert await _becomes_true(lambda: not own_connection_count(port))
    assert not check_threads()
    gc.collect(1)  # the young ones: a task whose fault nobody took says so when it is collected


def assert_times_out(
    check: CheckRunner, url: str, port: int, step: str, *, timeout_s: float = CHECK_TIMEOUT_S, **options: Any
) -> None:
    """It ends at its deadline, says in which step, and leaves no task, no thread and no connection."""

    async def story() -> None:
        before = asyncio.all_tasks()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        found = await run_check(make_probe({"url": url, **options}), timeout_s)
        assert found == (Verdict.failed(f"no answer within {timeout_s:g} s, in its step {step}"), None)
        assert loop.time() - began_s < timeout_s + WAIT_TIMEOUT_S
        await _assert_no_leaks(port, before)

    check.run(story())


def assert_no_leaks(check: CheckRunner, url: str, port: int, **options: Any) -> Verdict:
    """The verdict of a check that opens a connection of its own, and of which nothing remains."""

    async def story() -> Verdict:
        before = asyncio.all_tasks()
        verdict, fault = await run_check(make_probe({"url": url, **options}), WAIT_TIMEOUT_S)
        assert fault is None
        await _assert_no_leaks(port, before)
        return verdict

    return check.run(story())


def assert_no_leaks_when_cancelled(check: CheckRunner, url: str, **options: Any) -> None:
    """Cut off after each tenth of the time that it takes, it leaves nothing open."""
    began_s = time.monotonic()
    check(url, **options)
    whole_s = time.monotonic() - began_s
    for tenth in range(1, 10):
        check.leaks_nothing(url, deadline_s=whole_s * tenth / 10, **options)


def assert_all_failed(
    check: CheckRunner, answers: Sequence[bytes], url_of: Callable[[Backend], str], **options: Any
) -> list[str]:
    """Whatever it says to a connection, that is failed, soon, and nothing is left; the reasons."""
    left = iter(answers)

    def script(peer: Peer) -> None:
        sending(next(left, answers[-1]))(peer)  # some looks open more than one connection

    async def story(backend: Backend) -> list[str]:
        before, reasons = asyncio.all_tasks(), []
        probe = make_probe({"url": url_of(backend), **options})
        for answer in answers:
            verdict, fault = await run_check(probe, WAIT_TIMEOUT_S)
            assert fault is None, f"{fault!r} on {answer!r}"
            assert verdict.outcome is Outcome.FAILED, f"{verdict} on {answer!r}"
            assert "no answer within" not in verdict.reason, f"{verdict} on {answer!r}"
            reasons.append(verdict.reason)
        await _assert_no_leaks(backend.port, before)
        return reasons

    with Backend(script) as backend:
        return check.run(story(backend))


def assert_disconnect_is_failed(check: CheckRunner, scheme: str, *, closed: str = INCOMPLETE_RESPONSE) -> None:
    """A connection that the server closes, or resets, before it has said anything."""
    with Backend(close) as closing, Backend(reset) as resetting:
        url = f"{scheme}://{closing.address}"
        assert check(url) == Verdict.failed(f"{closed}: {url}")
        url = f"{scheme}://{resetting.address}"
        assert check(url) == Verdict.failed(f"connection reset by peer: {url}")


# ---- our own faults


def assert_missing_ca_is_unknown(
    check: CheckRunner, url: str, ca: Path, certificate: Certificate, **options: Any
) -> None:
    """An authority that is there when the probe is made, and gone when it looks."""
    ca.write_bytes(certificate.certificate.read_bytes())
    probe = make_probe({"url": url, "ca": str(ca), **options})
    ca.unlink()
    verdict, _ = check.run(run_check(probe, 1.0))
    assert verdict.outcome is Outcome.UNKNOWN
    assert f"cannot use {ca}: no such file or directory" in verdict.reason


@contextmanager
def no_free_descriptors() -> Iterator[None]:
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
def reusing(url: str, **options: Any) -> Iterator[Probe]:
    """A probe that keeps its connection until the end of the block."""
    probe = make_probe({"url": url, "reuse": True, **options})
    try:
        yield probe
    finally:
        close_probe(probe)


async def check_with_steps(probe: Probe) -> tuple[Verdict, list[tuple[str, str, bool]]]:
    """A verdict, and the name and the detail of each step towards it, and whether it was done."""
    with record_steps() as steps:
        verdict, fault = await run_check(probe, WAIT_TIMEOUT_S)
    assert fault is None
    return verdict, [(step.name, step.detail, step.is_done) for step in steps]


def assert_reused(check: CheckRunner, url: str, port: int, **options: Any) -> None:
    """Later looks use the connection of the first, and after `let_go` the server has lost a client."""

    async def story() -> None:
        before = asyncio.all_tasks()
        with reusing(url, **options) as probe:
            verdict, steps = await check_with_steps(probe)
            assert (verdict, steps[0]) == (Verdict.ready(), ("connect", "127.0.0.1", True))
            for _ in range(3):
                verdict, steps = await check_with_steps(probe)
                assert (verdict, steps[0]) == (Verdict.ready(), REUSED)
                assert "connect" not in {name for name, _, _ in steps}
                assert own_connection_count(port) == 1
            others = client_count(port) - 1  # some servers are their own clients
        assert await _becomes_true(lambda: client_count(port) <= others)
        await _assert_no_leaks(port, before)

    check.run(story())


def assert_survives_restarts(check: CheckRunner, server: RealServer, **options: Any) -> None:
    """A connection that was kept and has died since does not count against a server that is back."""

    async def story() -> None:
        before = asyncio.all_tasks()
        with reusing(server.url, **options) as probe:
            assert (await probe.check()) == Verdict.ready()
            server.kill()
            verdict = await probe.check()
            assert (verdict.outcome, verdict.reason.partition(": ")[0]) == (Outcome.FAILED, "connection refused")
            server.start()
            server.wait_until_ready()
            assert (await probe.check()) == Verdict.ready()
            server.restart()
            assert (await probe.check()) == Verdict.ready(), "its end was not noticed before the check"
        await _assert_no_leaks(server.port, before)

    check.run(story())


def assert_not_reused_after_timeout(check: CheckRunner, server: RealServer) -> None:
    """A kept connection of which an answer is still to come is not used again."""

    async def story() -> None:
        with reusing(server.url) as probe:
            assert (await check_with_steps(probe))[0] == Verdict.ready()
            server.freeze()
            try:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(probe.check(), CHECK_TIMEOUT_S)
            finally:
                server.thaw()
            verdict, steps = await check_with_steps(probe)
            assert (verdict, steps[0][0]) == (Verdict.ready(), "connect"), "what came late is not heard"

    check.run(story())


def assert_reconnects_after_timeout(check: CheckRunner, server: RealServer, opening: list[str]) -> None:
    """A kept connection on which a check has met its deadline is closed; `opening` are the steps on a fresh one."""
    assert check.sequence(server.url, server.freeze, server.thaw, reuse=True) == [
        (Verdict.ready(), opening),
        (Verdict.failed("no answer within 1 s, in its step exchange"), ["reuse", "exchange"]),
        (Verdict.ready(), opening),
    ]


# ---- HTTP on connections that stay


class KeepAliveBackend(Backend):
    """Answers every request of a connection until the other end closes it."""

    def __init__(
        self, answer: bytes | Callable[[ReceivedRequest], bytes], *, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(self._respond_forever, tls=tls)
        self.response = answer
        self.requests: list[ReceivedRequest] = []
        self.requests_per_connection: list[int] = []  # how many requests came on each

    def _respond_forever(self, peer: Peer) -> None:
        number = len(self.requests_per_connection)
        self.requests_per_connection.append(0)
        while True:
            request = ReceivedRequest.read(peer)
            self.requests.append(request)
            self.requests_per_connection[number] += 1
            peer.send(self.response if isinstance(self.response, bytes) else self.response(request))
