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

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from svcnode.probes.base import Probe

T = TypeVar("T")

CHECK_TIMEOUT_S = 0.2  # long enough to reach the step that never ends

# Looks on the loop and at the URL of its arguments by a process that has no file descriptor left, and then has some.
# It has never resolved a name before, which is when the system's resolver is most likely to blame the name.
CHECK_WITHOUT_DESCRIPTORS = """
import asyncio, json, os, resource, sys
import uvloop
from svcnode.probes.run import look_once
from svcnode.probes import make_probe

async def looks(probe):
    taken = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        yield await look_once(probe, 5.0)
    for file in taken:
        os.close(file)
    yield await look_once(probe, 0.5)

async def check(probe):
    return [(verdict.outcome.value, verdict.reason) async for verdict, _ in looks(probe)]

probe = make_probe(sys.argv[2])
"localhost".encode("idna")  # or else the import of that would be the first to fail
with asyncio.Runner(loop_factory={"uvloop": uvloop, "asyncio": asyncio}[sys.argv[1]].new_event_loop) as runner:
    print(json.dumps(runner.run(check(probe))))
"""


class CheckRunner:
    """Looks once, on an event loop that must have nothing to complain about."""

    def __init__(self, loop_name: str) -> None:
        self.loop_name = loop_name

    def __call__(self, url: str, **options: Any) -> Verdict:
        return self.run(make_probe({"url": url, **options}).check())

    def with_timeout(self, timeout_s: float, url: str, **options: Any) -> Verdict:
        """As the supervisor looks: with a deadline."""
        verdict, fault = self.run(run_check(make_probe({"url": url, **options}), timeout_s))
        assert fault is None
        return verdict

    def steps(self, url: str, **options: Any) -> list[tuple[str, str, bool]]:
        """Name and detail of each, and whether it was done."""
        return self._steps_with_timeout(WAIT_TIMEOUT_S, url, options)

    def steps_until_timeout(self, url: str, **options: Any) -> list[tuple[str, str, bool]]:
        """Those of a check that never ends."""
        return self._steps_with_timeout(CHECK_TIMEOUT_S, url, options)

    def _steps_with_timeout(self, timeout_s: float, url: str, options: dict[str, Any]) -> list[tuple[str, str, bool]]:
        with record_steps() as steps:
            self.with_timeout(timeout_s, url, **options)
        return [(step.name, step.detail, step.is_done) for step in steps]

    def times_out(self, url: str, **options: Any) -> Verdict:
        """Looks that never end, cut off at their deadline, must leave nothing open."""
        return self.leaks_nothing(url, deadline_s=CHECK_TIMEOUT_S, **options)

    def leaks_nothing(self, url: str, *, deadline_s: float = WAIT_TIMEOUT_S, **options: Any) -> Verdict:
        """After some looks, no more files are open than after the first: a loop opens some for itself."""
        probe = make_probe({"url": url, **options})

        async def story() -> Verdict:
            verdict, _ = await run_check(probe, deadline_s)
            await asyncio.to_thread(open_file_count)
            before, tasks, thread_count = open_file_count(), asyncio.all_tasks(), _thread_count()
            for _ in range(2):
                await run_check(probe, deadline_s)
            assert await asyncio.to_thread(becomes_true, lambda: open_file_count() <= before), (
                f"{before} before: {open_file_count()}"
            )
            assert asyncio.all_tasks() <= tasks, "a task is left"
            assert await asyncio.to_thread(becomes_true, lambda: _thread_count() <= thread_count), "a thread is left"
            return verdict

        return self.run(story())

    def sequence(self, url: str, *between: Callable[[], object], **options: Any) -> list[tuple[Verdict, list[str]]]:
        """One probe looks, again after each thing that happens, and is let go; its verdicts, and its steps by name."""
        probe = make_probe({"url": url, **options})

        async def story() -> list[tuple[Verdict, list[str]]]:
            seen = [await self._check_and_steps(probe)]
            for happen in between:
                await asyncio.to_thread(happen)
                seen.append(await self._check_and_steps(probe))
            close_probe(probe)
            return seen

        return self.run(story())

    async def _check_and_steps(self, probe: Probe) -> tuple[Verdict, list[str]]:
        with record_steps() as steps:
            verdict, fault = await run_check(probe, 1.0)
        assert fault is None
        return verdict, [step.name for step in steps]

    def without_descriptors(self, url: str, **environ: str) -> tuple[Verdict, Verdict]:
        """By a process that has no file descriptor left, and by the same process when it has some."""
        done = subprocess.run(
            [sys.executable, "-c", CHECK_WITHOUT_DESCRIPTORS, self.loop_name, url],
            env={**os.environ, **environ},
            capture_output=True,
            text=True,
            timeout=4 * WAIT_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        without, afterwards = (Verdict(Outcome(outcome), reason) for outcome, reason in json.loads(done.stdout))
        return without, afterwards

    def run(self, story: Coroutine[Any, Any, T], within_s: float = 3 * WAIT_TIMEOUT_S) -> T:
        faults: list[dict[str, Any]] = []
        with asyncio.Runner(loop_factory=LOOPS[self.loop_name]) as runner:
            runner.get_loop().set_exception_handler(lambda _, context: faults.append(context))
            result = runner.run(_with_extra_iteration(asyncio.wait_for(story, within_s)))
        assert not faults, f"the loop complains: {faults}"
        return result


def _thread_count() -> int:
    """Without the threads that the loops have for `to_thread`: they may have more or fewer, and keep them."""
    return sum(not thread.name.startswith(("asyncio_", "uvloop_")) for thread in threading.enumerate())


async def _with_extra_iteration(story: Coroutine[Any, Any, T]) -> T:
    """What was cancelled is closed in the next turns of the loop; a loop that is closed has none."""
    try:
        return await story
    finally:
        await asyncio.sleep(0.01)


@pytest.fixture
def check(loop_name: str) -> CheckRunner:
    return CheckRunner(loop_name)


class FakeResolver:
    """In the place of the real one, which neither hangs on demand nor knows the same names on every machine.

    It knows the addresses it is given, hangs on names that begin with "slow", and knows no others.
    """

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
    """For localhost and 127.0.0.1, good for an hour."""
    return make_certificate(tmp_path_factory.mktemp("probes-tls"), "backend")
