"""A node in a process of its own that looks as it is told to, and counts what it holds."""

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
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import uvloop

from svcnode import Node, Verdict
from svcnode.probes import make_probe
from svcnode.probes.run import close_probe

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from svcnode.probes.base import Probe

ROOT = Path(__file__).parents[2]
LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
READY_TIMEOUT_S = 60.0
SETTLE_TIMEOUT_S = 3.0
EXIT_TIMEOUT_S = 10.0
TICK_S = 0.02
TICKS_PER_COUNT = 5
STABLE_TICKS = 10


class ProbingProcess:
    """Looks from the beginning of its `with` block until `result` tells what came of it."""

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
        """Every one of these services has been seen ready twice."""
        self._send(list(ids))
        missing = self._receive()
        assert not missing, missing

    def probe_for(self, wait_s: float) -> None:
        """Go on for so long, and then stop looking; `result` waits for it."""
        self._send(wait_s)

    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = self._receive()
        return result

    def wait_for_exit(self) -> None:
        """It ends by itself, and has nothing to complain about."""
        code = self._process.wait(EXIT_TIMEOUT_S)
        assert (code, self._stderr_text()) == (0, "")

    def _send(self, what: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
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


class RecordingProbe:
    """A probe, and a diary of its looks."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self.checks: list[tuple[float, float, str]] = []  # when each began and ended, and what it saw

    async def check(self) -> Verdict:
        began_s, saw = time.monotonic(), "cancelled"
        try:
            verdict = await self._probe.check()
            saw = f"{verdict.outcome.value} {verdict.reason}"
            return verdict
        finally:
            self.checks.append((began_s, time.monotonic(), saw))

    def close(self) -> None:
        close_probe(self._probe)

    @property
    def ready_count(self) -> int:
        return sum(saw.startswith("ready") for _, _, saw in self.checks)


def resource_counts() -> dict[str, int]:
    """As the kernel counts threads and files, and asyncio its tasks."""
    files = [_link_target(file) for file in Path("/proc/self/fd").iterdir()]
    return {
        "tasks": len(asyncio.all_tasks()),
        "threads": len([*Path("/proc/self/task").iterdir()]),
        "sockets": sum(file.startswith("socket:") for file in files),
        "files": len(files),
        "children": len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
    }


def increases(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """What there is more of now, and how much more."""
    return {what: number - before[what] for what, number in now.items() if number > before[what]}


def _link_target(file: Path) -> str:
    try:
        return str(file.readlink())
    except OSError:  # what listed the folder
        return ""


def memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def read_command() -> Any:
    """The next line that we are told; a thread that waited for it would be counted."""
    loop, is_there = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), is_there.set)
    await is_there.wait()
    loop.remove_reader(sys.stdin.fileno())
    return json.loads(sys.stdin.readline())


async def run_probes(plan: dict[str, Any]) -> None:
    complaints: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(str(context)))
    node = Node("lookout", version="v1")
    watched = {
        each: RecordingProbe(make_probe(words, allowed={"allow_exec"})) for each, words in plan["probes"].items()
    }
    for service_id, probe in watched.items():
        node.register(service_id, probe=probe, **plan["schedule"])
    await make_probe("exec:true", allowed={"allow_exec"}).check()  # a loop opens some files for itself when first used
    before = await stable_counts()
    stalls: list[tuple[float, float]] = []
    most = dict.fromkeys(before, 0)
    async with node.probing():
        await wait_until_ready({each: watched[each] for each in await read_command()})
        wait_s: float = await read_command()
        began_s = time.monotonic()
        memory = [memory_bytes()]
        for part in (0.25, 1.0):
            await sample_until(began_s + part * wait_s, most, stalls)
            memory.append(memory_bytes())
        looks = {each: [look for look in probe.checks if look[0] >= began_s] for each, probe in watched.items()}
    after = await counts_after_close(before)
    send_json(
        {
            "before": before,
            "peak": most,
            "after": after,
            "errors": complaints,
            "checks": looks,
            "stalls": stalls,
            "memory_bytes": memory,
        }
    )


async def wait_until_ready(watched: dict[str, RecordingProbe]) -> None:
    def missing() -> list[str]:
        return [each for each in watched if watched[each].ready_count < 2]

    await wait_until(lambda: not missing(), READY_TIMEOUT_S)
    send_json([f"{each}: {watched[each].checks[-3:]}" for each in missing()])


async def sample_until(at_s: float, most: dict[str, int], stalls: list[tuple[float, float]]) -> None:
    """The most that was held at any moment, and every time that this process was held up."""
    ticks = count()
    while (began_s := time.monotonic()) < at_s:
        if next(ticks) % TICKS_PER_COUNT == 0:
            for what, number in resource_counts().items():
                most[what] = max(most[what], number)
        await asyncio.sleep(TICK_S)
        if (late_s := time.monotonic() - began_s - TICK_S) > TICK_S / 2:
            stalls.append((began_s, late_s))


async def stable_counts() -> dict[str, int]:
    """What is held once nothing is ending any more: asyncio itself may wait for a child on a thread."""
    counts: deque[dict[str, int]] = deque(maxlen=STABLE_TICKS)

    def is_steady() -> bool:
        counts.append(resource_counts())
        return len(counts) == STABLE_TICKS and all(each == counts[-1] for each in counts)

    await wait_until(lambda: is_steady() and threading.active_count() == 1, SETTLE_TIMEOUT_S)
    return counts[-1]


async def counts_after_close(before: dict[str, int]) -> dict[str, int]:
    """Closed connections need a few turns of the loop."""
    await wait_until(lambda: not increases(before, resource_counts()), SETTLE_TIMEOUT_S)
    return resource_counts()


async def wait_until(is_so: Callable[[], bool], within_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > deadline_s:
            return
        await asyncio.sleep(TICK_S)


def send_json(what: object) -> None:
    print(json.dumps(what), flush=True)  # noqa: T201  whoever started us reads it


if __name__ == "__main__":
    logging.getLogger().addHandler(logging.NullHandler())  # what drivers say to themselves
    logging.getLogger("asyncio").addHandler(logging.StreamHandler())
    given = json.loads(sys.argv[1])
    with asyncio.Runner(loop_factory=LOOPS[given["loop"]]) as runner:
        runner.run(run_probes(given))
