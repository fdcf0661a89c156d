"""Run a node for a long time with faults, load, pages and reloads, and print the slopes of its resources: all flat.

`python -m tests.stress.soak` runs `svcnode serve` for an hour (`--minutes`) with 500 services of three kinds that fail
and recover at random, 200 requests a second, 20 clients that behave like the page, and a reload each minute. Every
two seconds it reads memory, descriptors, threads, tasks and the size of the database. After a warm-up of a third of the
time, a line is fitted to each: its growth must be within the noise, or within the allowance of the resource.
"""

# ruff: noqa: T201  a command-line program

from __future__ import annotations

import asyncio
import os
import random
import statistics
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.stress.campaigns import MIB, campaign_folder, campaign_parser, machine, memory_bytes
from tests.support.processes import Agent

if TYPE_CHECKING:
    from pathlib import Path

SERVICES = 500
REQUESTS_PER_S = 200
PAGES = 20
SAMPLE_S = 2.0
RELOAD_S = 60.0
ANSWER_S = 30.0
WARM_UP_SHARE = 1 / 3
FAULTS_PER_S = 5.0
PATHS = (
    *["/svc/node/health"] * 6,
    *["/svc/node/services/service-{number}/health"] * 6,
    "/svc/node/services",
    "/svc/node",
    "/readyz",
    "/metrics",
    "/details/service-{number}",
    "/details?id=service-{number}&recent_checks=1",
    "/history?id=service-{number}&resolution=minutes",
    "/badge/service-{number}.svg",
)
# A thread in the node writes the number of its tasks to a file.
SITECUSTOMIZE = """
import asyncio, os, threading, time

class Runner(asyncio.Runner):
    def run(self, coroutine, **options):
        threading.Thread(target=report, args=(self.get_loop(),), daemon=True).start()
        return super().run(coroutine, **options)

def report(loop):
    while True:
        time.sleep(1)
        with open(os.environ["SOAK_TASKS"], "w") as file:
            file.write(str(len(asyncio.all_tasks(loop))))

asyncio.Runner = asyncio.runners.Runner = Runner
"""


# ---- the servers that are checked


class FaultyBackends:
    """One server for all services: the path selects the service, and the state of the service the response."""

    def __init__(self, folder: Path, services: int) -> None:
        self.folder = folder
        self.port = 0
        self._states = ["ok"] * services
        for number in range(services):
            self._file(number).touch()

    def _file(self, number: int) -> Path:
        return self.folder / f"file-{number}"

    def change(self, rng: random.Random) -> None:
        number = rng.randrange(len(self._states))
        state = self._states[number] = rng.choice(("ok", "ok", "ok", "error", "hang", "close", "garbage"))
        if state == "ok":
            self._file(number).touch()
        else:
            self._file(number).unlink(missing_ok=True)

    def config(self, number: int) -> str:
        kind = number % 3
        if kind == 0:
            return f"file:{self._file(number)}"
        return f"{'http' if kind == 1 else 'jsonrpc+http'}://127.0.0.1:{self.port}/{number}"

    async def serve(self) -> asyncio.Server:
        server = await asyncio.start_server(self._respond, "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        return server

    async def _respond(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, asyncio.IncompleteReadError, ValueError, IndexError):
                line = await reader.readline()
                state = self._states[int(line.split()[1][1:])]
                if state == "hang":
                    await reader.read()
                elif state == "garbage":
                    writer.write(os.urandom(2000))
                elif state != "close":
                    body = b'{"jsonrpc":"2.0","id":1,"result":true}'
                    code = b"200 OK" if state == "ok" else b"500 Error"
                    head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % (
                        code,
                        len(body),
                    )
                    writer.write(head + b"Connection: close\r\n\r\n" + body)
                await writer.drain()
        finally:
            writer.close()


# ---- the clients


@dataclass
class SoakReport:
    codes: Counter[int] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    events: int = 0
    reloads: int = 0
    times_s: list[float] = field(default_factory=list)
    samples: dict[str, list[float]] = field(default_factory=dict)

    def add(self, at_s: float, values: dict[str, float]) -> None:
        self.times_s.append(at_s)
        for name, value in values.items():
            self.samples.setdefault(name, []).append(value)


async def request(port: int, path: str) -> int:
    async with asyncio.timeout(ANSWER_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            response = await reader.read()
        finally:
            writer.close()
    return int(response[9:12])


async def send_requests(port: int, services: int, per_s: float, report: SoakReport, rng: random.Random) -> None:
    async def send(path: str) -> None:
        try:
            report.codes[await request(port, path)] += 1
        except (OSError, ValueError) as exc:
            report.errors.append(f"{path}: {type(exc).__name__}: {exc}")

    next_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        while True:
            group.create_task(send(rng.choice(PATHS).format(number=rng.randrange(services))))
            next_s += 1 / per_s
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))


async def watch_page(port: int, report: SoakReport, rng: random.Random) -> None:
    """Load the page and its data, and read events for some time; then again, as after a reload of the page."""
    while True:
        try:
            for path in ("/", "/page/changes", "/details"):
                await request(port, path)
            async with asyncio.timeout(rng.uniform(5, 30)):
                await read_events(port, report)
        except TimeoutError:
            continue
        except (OSError, ValueError) as exc:
            report.errors.append(f"page: {type(exc).__name__}: {exc}")
        await asyncio.sleep(1)


async def read_events(port: int, report: SoakReport) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while line := await reader.readline():
            report.events += line.startswith(b"id:")
    finally:
        writer.close()


# ---- the campaign


def config(folder: Path, backends: FaultyBackends, services: int, number: int) -> str:
    lines = [
        '[node]\nname = "soak"\n[server]\nlisten = "127.0.0.1:0"\ndrain = "0s"',
        f'[history]\npath = "{folder}/history.db"\nmax_size = "1MiB"',
        '[defaults]\ninterval = "2s"\ntimeout = "1s"\nstart_period = "0s"\nfall = 2\nrise = 1',
    ]
    for index in range(services):
        method = ', method = "status"' if index % 3 == 2 else ""
        probe = f'{{ url = "{backends.config(index)}"{method} }}'
        description = f"reloaded {number} times" if index % 50 == 0 else "a service"
        lines.append(f'[[services]]\nid = "service-{index}"\ndescription = "{description}"\nprobe = {probe}')
    return "\n".join(lines)


def resources(pid: int, folder: Path) -> dict[str, float]:
    threads = memory_bytes(pid, "Threads") / 1024  # the same file, without a unit
    tasks = (folder / "tasks").read_text() if (folder / "tasks").exists() else ""
    return {
        "memory, MiB": memory_bytes(pid, "VmRSS") / MIB,
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),  # noqa: PTH208  numbers, not paths
        "threads": threads,
        "tasks": float(tasks or "nan"),
        "database, MiB": sum(file.stat().st_size for file in folder.glob("history.db*")) / MIB,
    }


# Growth that is no leak: free memory of the allocator, checks and requests in progress, the log of SQLite.
ALLOWANCES = {"memory, MiB": 12.0, "descriptors": 60.0, "threads": 8.0, "tasks": 60.0, "database, MiB": 4.0}


@dataclass(frozen=True)
class Slope:
    name: str
    first: float
    last: float
    per_hour: float
    growth: float  # of the fitted line
    noise: float

    @property
    def is_flat(self) -> bool:
        return self.growth <= max(3 * self.noise, ALLOWANCES[self.name])


def slopes(report: SoakReport) -> list[Slope]:
    result = []
    for name, values in report.samples.items():
        pairs = [(at_s, value) for at_s, value in zip(report.times_s, values, strict=True) if value == value]  # noqa: PLR0124  not NaN
        pairs = pairs[int(len(pairs) * WARM_UP_SHARE) :]
        times_s, measured = zip(*pairs, strict=True)
        line = statistics.linear_regression(times_s, measured)
        noise = statistics.pstdev(value - line.slope * at_s for at_s, value in pairs)
        growth = line.slope * (times_s[-1] - times_s[0])
        result.append(Slope(name, measured[0], measured[-1], line.slope * 3600, growth, noise))
    return result


async def run_campaign(
    folder: Path,
    run_s: float,
    *,
    services: int = SERVICES,
    per_s: float = REQUESTS_PER_S,
    pages: int = PAGES,
    seed: int,
) -> SoakReport:
    report, rng = SoakReport(), random.Random(seed)
    backends = FaultyBackends(folder, services)
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    environ = {"PYTHONPATH": str(folder), "SOAK_TASKS": str(folder / "tasks")}
    async with await backends.serve():
        agent = Agent(folder, config=config(folder, backends, services, 0), environ=environ)
        with agent:
            port = await asyncio.to_thread(lambda: agent.port)
            clients = [
                asyncio.create_task(send_requests(port, services, per_s, report, rng)),
                *(asyncio.create_task(watch_page(port, report, rng)) for _ in range(pages)),
            ]
            reloading = threading.Thread(target=lambda: None)
            started_s = reloaded_s = time.monotonic()
            while (now_s := time.monotonic()) < started_s + run_s:
                for _ in range(round(FAULTS_PER_S * SAMPLE_S)):
                    backends.change(rng)
                report.add(now_s - started_s, resources(agent.process.pid, folder))
                if now_s > reloaded_s + min(RELOAD_S, run_s / 4) and not reloading.is_alive():
                    reloaded_s = now_s
                    report.reloads += 1
                    text = config(folder, backends, services, report.reloads)
                    reloading = threading.Thread(target=agent.reload, args=(text,))
                    reloading.start()
                await asyncio.sleep(min(SAMPLE_S, run_s / 20))
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
            await asyncio.to_thread(reloading.join)
            if (code := await asyncio.to_thread(agent.stop)) != 0:
                report.errors.append(f"exit code {code}")
            report.errors += [line for line in agent.lines if "Traceback" in line or "internal error" in line]
    return report


def main() -> int:
    arguments = campaign_parser("soak", __doc__, minutes=60.0).parse_args()
    print(f"seed {arguments.seed}, {machine()}", flush=True)
    with campaign_folder() as folder:
        report = asyncio.run(run_campaign(folder, arguments.minutes * 60, seed=arguments.seed))
    print("| resource | after the warm-up | at the end | slope per hour | growth of the line | noise | |")
    print("|---|---|---|---|---|---|---|")
    found = slopes(report)
    for each in found:
        cells = (each.first, each.last, each.per_hour, each.growth, each.noise)
        shown = " | ".join(f"{cell:.1f}" for cell in cells)
        print(f"| {each.name} | {shown} | {'flat' if each.is_flat else 'grows'} |")
    codes = ", ".join(f"{code}: {count}" for code, count in sorted(report.codes.items()))
    print(f"requests: {report.codes.total()} ({codes}); events: {report.events}; reloads: {report.reloads}")
    for error in report.errors[:10]:
        print(error)
    print(f"errors: {len(report.errors)}")
    return 0 if not report.errors and all(each.is_flat for each in found) else 1


if __name__ == "__main__":
    sys.exit(main())
