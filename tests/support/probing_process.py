"""A node in its own process that runs the given probes and counts its tasks, threads and files."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import uvloop

from svcnode import Node, Verdict
from svcnode.probes import make_probe
from svcnode.probes.base import Probe
from svcnode.probes.run import close_probe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

ROOT = Path(__file__).parents[2]
LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
READY_TIMEOUT_S = 60.0
SETTLE_TIMEOUT_S = 10.0
EXIT_TIMEOUT_S = 30.0
TICK_S = 0.02
SAMPLE_INTERVAL_S = 0.1
STABLE_TICKS = 10


class ProbingProcess:
    """Runs the checks from the start of its `with` block until `result` returns."""

    def __init__(self, loop_name: str, probes: Mapping[str, Any], schedule: Mapping[str, Any]) -> None:
        plan = {"loop": loop_name, "probes": dict(probes), "schedule": dict(schedule)}
        self._stderr_file = tempfile.TemporaryFile()  # noqa: SIM115  closed with the block
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", __name__, json.dumps(plan)],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr_file,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._stderr_file.close()

    def wait_until_ready(self, ids: Collection[str]) -> None:
        """Wait until each of these services was ready twice."""
        self._send(list(ids))
        missing = self._receive()
        assert not missing, missing

    def probe_for(self, wait_s: float) -> None:
        """Continue for this time, then stop; `result` waits for it."""
        self._send(wait_s)

    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = self._receive()
        return result

    def wait_for_exit(self) -> None:
        """The process exits by itself with code 0 and an empty stderr."""
        code = self._process.wait(EXIT_TIMEOUT_S)
        assert (code, self._stderr_text()) == (0, "")

    def _send(self, value: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()

    def _receive(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._stderr_text()
        return json.loads(line)

    def _stderr_text(self) -> str:
        self._stderr_file.seek(0)
        return self._stderr_file.read().decode()


# ---- in the process


class RecordingProbe(Probe):
    """Runs another probe and records its checks."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self.checks: list[tuple[float, float, str]] = []  # start, end and outcome

    async def check(self) -> Verdict:
        began_s, outcome = time.monotonic(), "cancelled"
        try:
            verdict = await self._probe.check()
            outcome = f"{verdict.outcome.value} {verdict.reason}"
            return verdict
        finally:
            self.checks.append((began_s, time.monotonic(), outcome))

    def close(self) -> None:
        close_probe(self._probe)

    @property
    def ready_count(self) -> int:
        return sum(outcome.startswith("ready") for _, _, outcome in self.checks)


def resource_counts() -> dict[str, int]:
    """Threads, files and children as counted by the kernel, tasks as counted by asyncio."""
    files = [_link_target(file) for file in Path("/proc/self/fd").iterdir()]
    return {
        "tasks": len(asyncio.all_tasks()),
        "threads": len([*Path("/proc/self/task").iterdir()]),
        "sockets": sum(file.startswith("socket:") for file in files),
        "files": len(files),
        "children": len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
    }


def increases(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    return {name: count - before[name] for name, count in now.items() if count > before[name]}


def _link_target(file: Path) -> str:
    try:
        return str(file.readlink())
    except OSError:  # the descriptor that lists the folder
        return ""


def memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def read_command() -> Any:
    """The next command, read without a thread, which would be counted."""
    loop, is_readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), is_readable.set)
    await is_readable.wait()
    loop.remove_reader(sys.stdin.fileno())
    return json.loads(sys.stdin.readline())


async def run_probes(plan: dict[str, Any]) -> None:
    errors: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(str(context)))
    node = Node("validator-7", version="v1")
    probes = {
        name: RecordingProbe(make_probe(options, allowed={"allow_exec"})) for name, options in plan["probes"].items()
    }
    for service_id, probe in probes.items():
        node.register(service_id, probe=probe, **plan["schedule"])
    await make_probe("exec:true", allowed={"allow_exec"}).check()  # the loop opens files on first use
    before = await stable_counts()
    peak = dict.fromkeys(before, 0)
    async with node.probing():
        await wait_until_ready({name: probes[name] for name in await read_command()})
        wait_s: float = await read_command()
        began_s = time.monotonic()
        memory = [memory_bytes()]
        for part in (0.25, 1.0):
            await sample_until(began_s + part * wait_s, peak)
            memory.append(memory_bytes())
        checks = {name: [check for check in probe.checks if check[0] >= began_s] for name, probe in probes.items()}
    after = await counts_after_close(before)
    send_json(
        {
            "before": before,
            "peak": peak,
            "after": after,
            "errors": errors,
            "checks": checks,
            "memory_bytes": memory,
        }
    )


async def wait_until_ready(probes: dict[str, RecordingProbe]) -> None:
    def missing() -> list[str]:
        return [name for name, probe in probes.items() if probe.ready_count < 2]

    await wait_until(lambda: not missing(), READY_TIMEOUT_S)
    send_json([f"{name}: {probes[name].checks[-3:]}" for name in missing()])


async def sample_until(at_s: float, peak: dict[str, int]) -> None:
    """Update the largest counts until this time."""
    while time.monotonic() < at_s:
        for name, number in resource_counts().items():
            peak[name] = max(peak[name], number)
        await asyncio.sleep(SAMPLE_INTERVAL_S)


async def stable_counts() -> dict[str, int]:
    """The counts when they no longer change: asyncio may still wait for a child on a thread."""
    counts: deque[dict[str, int]] = deque(maxlen=STABLE_TICKS)

    def is_stable() -> bool:
        counts.append(resource_counts())
        return len(counts) == STABLE_TICKS and all(count == counts[-1] for count in counts)

    await wait_until(lambda: is_stable() and threading.active_count() == 1, SETTLE_TIMEOUT_S)
    return counts[-1]


async def counts_after_close(before: dict[str, int]) -> dict[str, int]:
    """Closed connections need a few iterations of the loop."""
    await wait_until(lambda: not increases(before, resource_counts()), SETTLE_TIMEOUT_S)
    return resource_counts()


async def wait_until(condition: Callable[[], bool], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            return
        await asyncio.sleep(TICK_S)


def send_json(value: object) -> None:
    print(json.dumps(value), flush=True)  # noqa: T201  read by the parent process


if __name__ == "__main__":
    logging.getLogger().addHandler(logging.NullHandler())  # drivers log, too
    logging.getLogger("asyncio").addHandler(logging.StreamHandler())
    given = json.loads(sys.argv[1])
    with asyncio.Runner(loop_factory=LOOPS[given["loop"]]) as runner:
        runner.run(run_probes(given))
