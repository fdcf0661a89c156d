"""What is measured, beside what, and the bar that each figure is held to."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from functools import partial
from operator import truediv
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from benchmarks import peers
from benchmarks.answers import HEALTH, SERVICES, services_body
from benchmarks.cores import OtherWork
from benchmarks.load import large_answers_per_s, latencies_s, requests_per_s

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.peers import Command
    from benchmarks.provision import Python

    Load = Callable[[int, str, int], float]  # of a port and a path for some seconds, to answers per second

STEADY_RATE_PER_S = 5_000
REPORTS_PER_S = 1_000
MANY_SERVICES = 10_000
SETTLE_S = 0.5
MUCH_OTHER_WORK = 0.05


@dataclass(frozen=True, slots=True)
class Bar:
    limit: float
    is_floor: bool = True

    def is_met_by(self, value: float) -> bool:
        return value >= self.limit if self.is_floor else value <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.is_floor else '<='} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Entrant:
    name: str
    measure: Callable[[], float]
    bar: Bar | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    title: str
    baseline: Entrant | None = None
    entrants: tuple[Entrant, ...]
    turns_per_round: int = 1


class Measured(NamedTuple):
    other_work: float  # the share of the two cores that it took meanwhile
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one entrant did turn by turn, and the baseline in the same turns."""

    title: str
    entrant: Entrant
    measured: list[Measured]
    baseline: Entrant | None
    baseline_measured: list[Measured]

    @property
    def values(self) -> list[float]:
        return [one.value for one in self.measured]

    @property
    def baseline_values(self) -> list[float]:
        return [one.value for one in self.baseline_measured]

    @property
    def judged(self) -> list[float]:
        """What the bar is about: the ratio to the baseline, turn by turn, or the value where there is none."""
        if self.baseline is None:
            return self.values
        return list(map(truediv, self.values, self.baseline_values))

    @property
    def other_work(self) -> float:
        return statistics.mean(one.other_work for one in (*self.measured, *self.baseline_measured))


def take(figure: Figure, rounds: int) -> list[Outcome]:
    """Measure everybody once in each turn, so that whatever else the machine does meets all of them alike."""
    baseline = figure.baseline
    everybody = [*([baseline] if baseline else []), *figure.entrants]
    measured: dict[str, list[Measured]] = {one.name: [] for one in everybody}
    for _ in range(rounds * figure.turns_per_round):
        for one in everybody:
            measured[one.name].append(_measure(one))
    return [
        Outcome(
            title=figure.title,
            entrant=one,
            measured=measured[one.name],
            baseline=baseline,
            baseline_measured=measured[baseline.name] if baseline else [],
        )
        for one in figure.entrants
    ]


def _measure(entrant: Entrant) -> Measured:
    """What one attempt gives, or the less disturbed of two when other work took much of the cores."""
    first = _attempt(entrant)
    return first if first.other_work < MUCH_OTHER_WORK else min(first, _attempt(entrant))


def _attempt(entrant: Entrant) -> Measured:
    watch = OtherWork()
    value = entrant.measure()
    return Measured(watch.share(), value)


# ---- the figures


def _health(python: Python, seconds: int) -> Figure:
    def entrant(name: str, command: Command, bar: Bar | None = None) -> Entrant:
        return Entrant(name, lambda: _throughput(command, requests_per_s, HEALTH, b"", seconds), bar)

    path = python.path
    return Figure(
        title="node health, requests/s",
        baseline=entrant("nginx", peers.nginx()),
        entrants=(
            entrant("svcnode", peers.svcnode(path), Bar(1.1 if python.version == "3.11" else 1.2)),
            entrant("uvicorn", peers.uvicorn(path, "benchmarks.apps:bare")),
            entrant("granian", peers.granian(path, "benchmarks.apps:bare")),
            entrant("FastAPI", peers.uvicorn(path, "benchmarks.apps:fastapi", "--factory")),
        ),
    )


def _list(service_count: int, load: Load, bar: Bar, python: Python, seconds: int) -> Figure:
    body = services_body(service_count)

    def entrant(name: str, command: Command, bar: Bar | None = None) -> Entrant:
        return Entrant(name, lambda: _throughput(command, load, SERVICES, body, seconds), bar)

    return Figure(
        title=f"list of {service_count:,} services, requests/s",
        baseline=entrant("nginx", peers.nginx(service_count)),
        entrants=(entrant("svcnode", peers.svcnode(python.path, service_count), bar),),
    )


def _under_reports(python: Python, seconds: int) -> Figure:
    def entrant(name: str, reports_per_s: int, bar: Bar | None = None) -> Entrant:
        command = peers.reporting_node(python.path, MANY_SERVICES, reports_per_s)
        return Entrant(name, lambda: _throughput(command, requests_per_s, HEALTH, b"", seconds), bar)

    return Figure(
        title=f"node health of {MANY_SERVICES:,} services, requests/s",
        baseline=entrant("idle", 0),
        entrants=(entrant(f"{REPORTS_PER_S:,} reports/s", REPORTS_PER_S, Bar(0.85)),),
    )


def _steady(python: Python, seconds: int) -> Figure:
    def entrant(name: str, reports_per_s: int, bar: Bar | None = None) -> Entrant:
        command = peers.reporting_node(python.path, MANY_SERVICES, reports_per_s)
        return Entrant(name, lambda: _p99_us(command, seconds), bar)

    return Figure(
        title=f"node health of {MANY_SERVICES:,} services at {STEADY_RATE_PER_S:,} requests/s, p99, µs",
        baseline=entrant("idle", 0),
        entrants=(entrant(f"{REPORTS_PER_S:,} reports/s", REPORTS_PER_S, Bar(2, is_floor=False)),),
        turns_per_round=2,  # 20 ms of other work on the core make the percentile of a turn worthless
    )


def _cold_start(python: Python, seconds: int) -> Figure:
    command = peers.svcnode(python.path, service_count=1)
    return Figure(
        title="process start to first answer, ms",
        baseline=Entrant('python -c "import asyncio"', lambda: _asyncio_import_ms(python.path)),
        entrants=(Entrant("svcnode", lambda: _cold_start_ms(command), Bar(2.5, is_floor=False)),),
        turns_per_round=6,
    )


def _memory(python: Python, seconds: int) -> Figure:
    command = peers.svcnode(python.path)
    return Figure(
        title="resident memory, idle, MB",
        entrants=(Entrant("svcnode", lambda: _resident_mb(command), Bar(40, is_floor=False)),),
    )


FIGURES: dict[str, Callable[[Python, int], Figure]] = {
    "health": _health,
    "list-3": partial(_list, 3, requests_per_s, Bar(1.1)),
    "list-1000": partial(_list, 1000, large_answers_per_s, Bar(1.2)),
    "reports": _under_reports,
    "p99": _steady,
    "cold-start": _cold_start,
    "memory": _memory,
}


# ---- one measurement each


def _throughput(command: Command, load: Load, path: str, body: bytes, seconds: int) -> float:
    with peers.running(command) as server:
        _, answered = server.get(path)
        if answered != body:
            raise RuntimeError(f"{path}: not the {len(body)} bytes that all answer, but {answered[:200]!r}")
        return load(server.port, path, seconds)


def _p99_us(command: Command, seconds: int) -> float:
    with peers.running(command) as server:
        taken_s = latencies_s(server.port, HEALTH, STEADY_RATE_PER_S, seconds)
    return 1e6 * statistics.quantiles(taken_s, n=100)[98]


def _cold_start_ms(command: Command) -> float:
    started_at_s = time.perf_counter()
    with peers.running(command):
        return 1e3 * (time.perf_counter() - started_at_s)


def _asyncio_import_ms(python: Path) -> float:
    with TemporaryDirectory(prefix="svcnode-bench-") as folder:
        started_at_s = time.perf_counter()
        peers.start([python, "-c", "import asyncio"], Path(folder) / "errors").wait()
        return 1e3 * (time.perf_counter() - started_at_s)


def _resident_mb(command: Command) -> float:
    with peers.running(command) as server:
        time.sleep(SETTLE_S)
        status = Path(f"/proc/{server.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024 / 1e6
