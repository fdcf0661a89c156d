"""Runs checks on an event loop, and replaces the resolver: fixtures for tests of probes."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from svcnode.core.model import Outcome, Verdict
from svcnode.net.trace import record_steps
from svcnode.probes import make_probe
from svcnode.probes.run import close_probe, run_check
from tests.support.backends import open_file_count
from tests.support.certificates import Certificate, make_certificate
from tests.support.http_server import LOOPS, WAIT_TIMEOUT_S, becomes_true
from tests.support.probe_assertions import CHECK_TIMEOUT_S, TIMEOUTS_S, interrupted_step

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Sequence


T = TypeVar("T")

# Two checks of the URL in the second argument on the event loop in the first: one without free file descriptors, one
# with. The process has not resolved a name before: in that state the system's resolver reports a wrong error.
CHECK_WITHOUT_DESCRIPTORS = """
import asyncio, json, os, resource, sys
import uvloop
from svcnode.probes.run import run_check
from svcnode.probes import make_probe

async def checks(probe):
    descriptors = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    try:
        while True:
            descriptors.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        yield await run_check(probe, 30.0)
    for descriptor in descriptors:
        os.close(descriptor)
    yield await run_check(probe, float(sys.argv[3]))

async def main(probe):
    return [(verdict.outcome.value, verdict.reason, verdict.code) async for verdict, _ in checks(probe)]

probe = make_probe(sys.argv[2])
"localhost".encode("idna")  # imports the codec, which needs a descriptor
with asyncio.Runner(loop_factory={"uvloop": uvloop, "asyncio": asyncio}[sys.argv[1]].new_event_loop) as runner:
    print(json.dumps(runner.run(main(probe))))
"""


async def _open_a_connection() -> None:
    """uvloop keeps /dev/null open from its first connection on."""
    here, there = socket.socketpair()
    with there:
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=here)
        transport.abort()


class CheckRunner:
    """Runs checks on an event loop, and fails if the loop reports an error."""

    def __init__(self, loop_name: str) -> None:
        self.loop_name = loop_name

    def __call__(self, url: str, **options: Any) -> Verdict:
        return self.run(make_probe({"url": url, **options}).check())

    def with_timeout(self, timeout_s: float, url: str, **options: Any) -> Verdict:
        verdict, error = self.run(run_check(make_probe({"url": url, **options}), timeout_s))
        assert error is None
        return verdict

    def steps(self, url: str, **options: Any) -> list[tuple[str, str, bool]]:
        """Name, detail and success of each step."""
        return self._steps_with_timeout(WAIT_TIMEOUT_S, url, options)

    def steps_until_timeout(self, url: str, **options: Any) -> list[tuple[str, str, bool]]:
        """The steps of a check that hangs."""
        return self._steps_with_timeout(CHECK_TIMEOUT_S, url, options)

    def _steps_with_timeout(self, timeout_s: float, url: str, options: dict[str, Any]) -> list[tuple[str, str, bool]]:
        with record_steps() as steps:
            self.with_timeout(timeout_s, url, **options)
        return [(step.name, step.detail, step.is_done) for step in steps]

    def times_out(self, url: str, step: str = "", **options: Any) -> Verdict:
        """The verdict of a check that hangs, in this step if one is given; nothing stays open after its deadline."""
        for timeout_s in TIMEOUTS_S:
            with record_steps() as steps:
                verdict = self.leaks_nothing(url, deadline_s=timeout_s, **options)
            if not step or interrupted_step(steps) == step:
                return verdict
        raise AssertionError(f"{step} was not reached: {steps}")

    def leaks_nothing(self, url: str, *, deadline_s: float = WAIT_TIMEOUT_S, **options: Any) -> Verdict:
        """More checks open no more files than the first one; an event loop opens some itself."""
        probe = make_probe({"url": url, **options})

        async def main() -> Verdict:
            await _open_a_connection()  # a check with a short deadline may open none
            verdict, _ = await run_check(probe, deadline_s)
            await asyncio.to_thread(open_file_count)
            files, tasks, threads = open_file_count(), asyncio.all_tasks(), _thread_count()
            for _ in range(2):
                await run_check(probe, deadline_s)
            assert await asyncio.to_thread(becomes_true, lambda: open_file_count() <= files), (
                f"{files} open files before, {open_file_count()} after"
            )
            assert asyncio.all_tasks() <= tasks
            assert await asyncio.to_thread(becomes_true, lambda: _thread_count() <= threads)
            return verdict

        return self.run(main())

    def sequence(
        self, url: str, *actions: Callable[[], object], timeouts_s: Sequence[float] = (), **options: Any
    ) -> list[tuple[Verdict, list[str]]]:
        """Verdict and step names of one probe, before the first action and after each."""
        probe = make_probe({"url": url, **options})
        timeouts = iter(timeouts_s)

        async def run_one() -> tuple[Verdict, list[str]]:
            with record_steps() as steps:
                verdict, error = await run_check(probe, next(timeouts, WAIT_TIMEOUT_S))
            assert error is None
            return verdict, [step.name for step in steps]

        async def main() -> list[tuple[Verdict, list[str]]]:
            results = [await run_one()]
            for action in actions:
                await asyncio.to_thread(action)
                results.append(await run_one())
            close_probe(probe)
            return results

        return self.run(main())

    def without_descriptors(
        self, url: str, *, timeout_s: float = WAIT_TIMEOUT_S, **environ: str
    ) -> tuple[Verdict, Verdict]:
        """The verdicts of a process without free file descriptors, and of the same process when it has some again."""
        done = subprocess.run(
            [sys.executable, "-c", CHECK_WITHOUT_DESCRIPTORS, self.loop_name, url, str(timeout_s)],
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=6 * WAIT_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        without, after = (Verdict(Outcome(outcome), *rest) for outcome, *rest in json.loads(done.stdout))
        return without, after

    def run(self, main: Coroutine[Any, Any, T], timeout_s: float = 6 * WAIT_TIMEOUT_S) -> T:
        errors: list[dict[str, Any]] = []
        with asyncio.Runner(loop_factory=LOOPS[self.loop_name]) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: errors.append(context))
            result = runner.run(_with_extra_iterations(asyncio.wait_for(main, timeout_s)))
        assert not errors
        return result


def _thread_count() -> int:
    """Without the threads of `to_thread`, which the loops start and keep."""
    return sum(not thread.name.startswith(("asyncio_", "uvloop_")) for thread in threading.enumerate())


async def _with_extra_iterations(main: Coroutine[Any, Any, T]) -> T:
    """The loop closes cancelled connections in its next iterations."""
    try:
        return await main
    finally:
        for _ in range(10):
            await asyncio.sleep(0)


@pytest.fixture
def check(loop_name: str) -> CheckRunner:
    return CheckRunner(loop_name)


class FakeResolver:
    """Replaces getaddrinfo: resolves the names in `addresses`, hangs for names that begin with "slow"."""

    def __init__(self) -> None:
        self.addresses = {"localhost": ["127.0.0.1"]}
        self.error: OSError = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        self.queries: list[str] = []
        self.may_answer = threading.Event()

    def __call__(self, host: str, *_: Any, **__: Any) -> list[Any]:
        self.queries.append(host)
        if host.startswith("slow"):
            self.may_answer.wait(4 * WAIT_TIMEOUT_S)
        if host not in self.addresses:
            raise self.error
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, 0)) for one in self.addresses[host]]

    def thread_count(self) -> int:
        return sum(thread.name == "svcnode resolve" for thread in threading.enumerate())


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeResolver]:
    fake = FakeResolver()
    monkeypatch.setattr(socket, "getaddrinfo", fake)
    yield fake
    fake.may_answer.set()
    assert becomes_true(lambda: not fake.thread_count())


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """For localhost and 127.0.0.1, valid for one hour."""
    return make_certificate(tmp_path_factory.mktemp("probes-tls"), "backend")
