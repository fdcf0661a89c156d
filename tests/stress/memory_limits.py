"""Run nodes with too little memory: each one answers truthfully, or ends with an exit code and a line. None hangs.

`python -m tests.stress.memory_limits` runs 60 nodes whose address space is limited at the start or while they run, to
values around those at which allocations and threads begin to fail. After the limit, their critical service fails: from
then on 200 is false. At the end each node that still runs gets SIGTERM.
"""

# ruff: noqa: T201  a command-line program

from __future__ import annotations

import http.client
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.stress.campaigns import MIB, campaign_folder, campaign_parser
from tests.support.backends import HttpBackend, http_response
from tests.support.http_server import becomes_true
from tests.support.ports import free_port
from tests.support.processes import Agent

if TYPE_CHECKING:
    from collections.abc import Iterable

KIB = 1024
START_S = 60.0
RUN_S = 4.0
FALSE_AFTER_S = 3.0  # after the failure of the service: no check that succeeded is newer than `stale_after`
STOP_S = 90.0  # longer than the 30 s of the watchdog
PATHS = ("/details", "/", "/metrics", "/history?id=file&resolution=minutes")

CONFIG = """
[node]
name = "memory"
[server]
listen = "127.0.0.1:{port}"
drain = "0s"
[security]
allow_exec = true
[notify]
webhook = "http://127.0.0.1:{hook}/"
group_wait = "50ms"
resolve_delay = "0s"
services = "all"
[defaults]
interval = "200ms"
timeout = "190ms"
fall = 2
rise = 1
start_period = "0s"
stale_after = "1s"
[[services]]
id = "file"
probe = "file:{folder}/flag"
impact = "critical"
[[services]]
id = "sqlite"
probe = "sqlite:{folder}/ledger.db"
[[services]]
id = "disk"
probe = {{ url = "disk:/", min_free = "1MB" }}
[[services]]
id = "exec"
probe = "exec:/bin/true"
[[services]]
id = "name"
probe = "http://localhost:{hook}/"
"""


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Of the address space: in bytes at the start, or in bytes more than the running node uses."""

    bytes: int
    at_start: bool

    def __str__(self) -> str:
        return f"{self.bytes / MIB:.2f} MiB {'at the start' if self.at_start else 'more while running'}"


@dataclass(frozen=True, kw_only=True)
class MemoryRun:
    limit: Limit
    exit_code: int | None  # None: it did not end after SIGTERM
    ended_itself: bool
    false_answers: int
    last_line: str

    @property
    def problem(self) -> str | None:
        if self.exit_code is None:
            return "did not stop"
        if self.false_answers:
            return f"answered 200 falsely {self.false_answers} times"
        if self.ended_itself and self.exit_code == 0:
            return "ended with exit code 0"
        return None if self.last_line else "ended without a line"


def all_limits(rng: random.Random, count: int) -> list[Limit]:
    """Running: from nothing to a few stacks of threads, which are 8 MiB. At the start: from Python to a whole node."""
    limits = []
    for number in range(count):
        if number % 3 == 2:
            limits.append(Limit(bytes=rng.randrange(16 * MIB, 280 * MIB, 64 * KIB), at_start=True))
        else:
            stacks, rest = rng.choice(((0, 0), (0, MIB), (1, 2 * MIB), (2, 4 * MIB)))
            limits.append(Limit(bytes=8 * MIB * stacks + rng.randrange(0, rest + 1, 4 * KIB), at_start=False))
    return limits


def run_campaign(folder: Path, limits: Iterable[Limit], workers: int = 4) -> list[MemoryRun]:
    # The HTTP service, and the webhook.
    with HttpBackend(http_response(200)) as hook, ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda item: run_node(folder / str(item[0]), item[1], hook.port), enumerate(limits)))


def run_node(folder: Path, limit: Limit, hook: int) -> MemoryRun:
    folder.mkdir()
    port = free_port()
    (folder / "flag").touch()
    with closing(sqlite3.connect(folder / "ledger.db")) as database:
        database.execute("CREATE TABLE ledger (entry)")
    prefix = ["prlimit", f"--as={limit.bytes}"] if limit.at_start else []
    with Agent(folder, config=CONFIG.format(port=port, hook=hook, folder=folder), prefix=prefix) as agent:
        process = agent.process
        if not limit.at_start:
            agent.wait_until(lambda: ask(port, "/svc/node/health") == 200)
            size = address_space(process.pid) + limit.bytes
            resource.prlimit(process.pid, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))
        false_answers = fail_and_ask(process, port, folder / "flag")
        # A signal to a node that has not started yet would end it without a line.
        becomes_true(lambda: bool(agent.lines) or process.poll() is not None, START_S)
        ended_itself = process.poll() is not None
        process.send_signal(signal.SIGTERM)
        exit_code = wait_for_exit(process)
    return MemoryRun(
        limit=limit,
        exit_code=exit_code,
        ended_itself=ended_itself,
        false_answers=false_answers,
        last_line=agent.lines[-1] if agent.lines else "",
    )


def fail_and_ask(process: subprocess.Popen[bytes], port: int, flag: Path) -> int:
    """Returns how often the node answered 200 although its critical service has failed."""
    false_answers = 0
    flag.unlink()
    failed_s = time.monotonic()
    while time.monotonic() < failed_s + RUN_S and process.poll() is None:
        asked_s = time.monotonic()
        if ask(port, "/svc/node/health") == 200 and asked_s > failed_s + FALSE_AFTER_S:
            false_answers += 1
        for path in PATHS:
            ask(port, path)
        time.sleep(0.02)
    return false_answers


def ask(port: int, path: str) -> int | None:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=1.0)) as connection:
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
        except (OSError, http.client.HTTPException):
            return None
        return response.status


def address_space(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def wait_for_exit(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        return None


def main() -> int:
    arguments = campaign_parser("memory_limits", __doc__, runs=60).parse_args()
    started_s = time.monotonic()
    with campaign_folder() as folder:
        runs = run_campaign(folder, all_limits(random.Random(arguments.seed), arguments.runs))
    problems = [run for run in runs if run.problem]
    for run in problems:
        print(f"{run.limit}: {run.problem}; exit code {run.exit_code}; {run.last_line[:200]}")
    ended = [run for run in runs if run.ended_itself]
    crashed = sum(run.exit_code is not None and run.exit_code < 0 for run in ended)
    print(f"nodes: {len(runs)}, in {time.monotonic() - started_s:.0f} s (seed {arguments.seed})")
    print(f"went on: {len(runs) - len(ended)}; ended with an exit code and a line: {len(ended)}, {crashed} by a signal")
    print(f"hung, answered falsely, or ended without a line: {len(problems)}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
