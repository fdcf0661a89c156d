"""Assertions about checks: no leaks, timeouts, reused connections, faults of this machine; an HTTP backend."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import socket
import stat
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from svcnode.net.connect import REUSE_STEP_DETAIL
from svcnode.net.trace import Step, record_steps
from svcnode.probes import make_probe
from svcnode.probes.run import close_probe, run_check
from tests.support.backends import Backend, Peer, ReceivedRequest
from tests.support.http_server import WAIT_TIMEOUT_S
from tests.support.verdicts import CONNECTION_CLOSED, READY

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Sequence

    from svcnode.core.model import Verdict
    from svcnode.probes.base import Probe
    from tests.support.check_runner import CheckRunner

CHECK_TIMEOUT_S = 0.2
# Of checks that hang in a certain step: on a busy machine the first ones are too short to reach it.
TIMEOUTS_S = (CHECK_TIMEOUT_S, 1.0, 5.0, 20.0)
REUSED = ("reuse", REUSE_STEP_DETAIL, True)
INCOMPLETE_RESPONSE = CONNECTION_CLOSED

_ESTABLISHED, _CLOSE_WAIT = "01", "08"

# ---- leaks


def client_count(port: int) -> int:
    """The number of connections at the server's end."""
    return sum(row.local == port and row.state in (_ESTABLISHED, _CLOSE_WAIT) for row in _connections_with(port))


def own_connection_count(port: int) -> int:
    """The number of sockets of this process that are connected to the port."""
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
        fields = line.split()
        self.local = int(fields[1].rpartition(":")[2], 16)
        self.state = fields[3]


def _connections_with(port: int) -> list[_SocketRow]:
    """Filters lines before parsing them: there may be thousands."""
    lines = [line for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()]
    return [_SocketRow(line) for line in lines if f":{port:04X} " in line]


def check_threads() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith(("svcnode", "asyncio"))]


async def becomes_true(condition: Callable[[], bool]) -> bool:
    """Without a thread, which `check_threads` would count."""
    for _ in range(int(3 * WAIT_TIMEOUT_S / 0.005)):
        if condition():
            return True
        await asyncio.sleep(0.005)
    return condition()


async def assert_nothing_is_left(port: int, before: set[asyncio.Task[Any]]) -> None:
    assert await becomes_true(lambda: asyncio.all_tasks() <= before), asyncio.all_tasks() - before
    assert await becomes_true(lambda: not own_connection_count(port))
    assert await becomes_true(lambda: not check_threads()), check_threads()
    gc.collect(1)  # a task whose exception was not retrieved reports it when it is collected


def interrupted_step(steps: Sequence[Step]) -> str | None:
    return next((step.name for step in steps if not step.is_done), None)


def assert_no_leaks(check: CheckRunner, url: str, port: int, **options: Any) -> Verdict:
    """The verdict of a check that leaves no task, thread or connection."""

    async def main() -> Verdict:
        before = asyncio.all_tasks()
        verdict, error = await run_check(make_probe({"url": url, **options}), WAIT_TIMEOUT_S)
        assert error is None
        await assert_nothing_is_left(port, before)
        return verdict

    return check.run(main())


# ---- faults of this machine


@contextmanager
def no_free_descriptors() -> Iterator[None]:
    """This process cannot open another file inside the block."""
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


# ---- reused connections


@contextmanager
def reusing(url: str, **options: Any) -> Iterator[Probe]:
    """A probe that reuses its connection; closed at the end of the block."""
    probe = make_probe({"url": url, "reuse": True, **options})
    try:
        yield probe
    finally:
        close_probe(probe)


async def check_with_steps(probe: Probe) -> tuple[Verdict, list[tuple[str, str, bool]]]:
    """A verdict, and name, detail and success of each step."""
    with record_steps() as steps:
        verdict, error = await run_check(probe, WAIT_TIMEOUT_S)
    assert error is None
    return verdict, [(step.name, step.detail, step.is_done) for step in steps]


def assert_reused(check: CheckRunner, url: str, port: int, **options: Any) -> None:
    """Later checks use the connection of the first, and `close` closes it."""

    async def main() -> None:
        before = asyncio.all_tasks()
        with reusing(url, **options) as probe:
            verdict, steps = await check_with_steps(probe)
            assert (verdict, steps[0]) == (READY, ("connect", "127.0.0.1", True))
            for _ in range(3):
                verdict, steps = await check_with_steps(probe)
                assert (verdict, steps[0]) == (READY, REUSED)
                assert "connect" not in {name for name, _, _ in steps}
                assert own_connection_count(port) == 1
            others = client_count(port) - 1  # some servers are their own clients
        assert await becomes_true(lambda: client_count(port) <= others)
        await assert_nothing_is_left(port, before)

    check.run(main())


# ---- HTTP with keep-alive


class KeepAliveBackend(Backend):
    """Responds to every request on a connection until the client closes it."""

    def __init__(
        self, response: bytes | Callable[[ReceivedRequest], bytes], *, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(self._respond_forever, tls=tls)
        self.response = response
        self.requests: list[ReceivedRequest] = []
        self.requests_per_connection: list[int] = []

    def _respond_forever(self, peer: Peer) -> None:
        number = len(self.requests_per_connection)
        self.requests_per_connection.append(0)
        while True:
            request = ReceivedRequest.read(peer)
            self.requests.append(request)
            self.requests_per_connection[number] += 1
            peer.send(self.response if isinstance(self.response, bytes) else self.response(request))
