"""Serving: throughput, latency, cold start and memory."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks import peers
from benchmarks.browser_pages import open_pages
from benchmarks.comparison import Benchmark, Candidate, Comparison, Threshold
from benchmarks.load import large_responses_per_s, p99_us, requests_per_s
from benchmarks.payloads import HEALTH, SERVICES, services_body
from benchmarks.processes import running, start

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.processes import Command
    from benchmarks.provision import Python

    LoadFunction = Callable[[int, str, int], float]  # (port, path, seconds) -> responses per second

PAGES = 50
PROBED_SERVICES = 100
STEADY_RATE_PER_S = 5_000
REPORTS_PER_S = 1_000
MANY_SERVICES = 10_000
SETTLE_S = 0.5
# The throughput of equal processes differs by up to a fifth for their whole life, so many are measured.
THROUGHPUT_SAMPLES = 3


def _health(python: Python, seconds: int) -> Benchmark:
    def candidate(name: str, command: Command) -> Candidate:
        return Candidate(name, lambda: _throughput(command, requests_per_s, HEALTH, b"", seconds))

    path = python.path
    nginx = candidate("nginx", peers.nginx())
    svcnode = candidate("svcnode", peers.svcnode(path))
    return Benchmark(
        title="node health, requests/s",
        comparisons=(
            Comparison(svcnode, nginx, Threshold(1.1 if python.version == "3.11" else 1.2)),
            Comparison(candidate("bare loop", peers.bare(path)), nginx),
            Comparison(candidate("uvicorn", peers.uvicorn(path, "benchmarks.apps:bare")), nginx),
            Comparison(candidate("granian", peers.granian(path, "benchmarks.apps:bare")), nginx),
            Comparison(candidate("FastAPI", peers.uvicorn(path, "benchmarks.apps:fastapi", "--factory")), nginx),
        ),
        samples_per_round=THROUGHPUT_SAMPLES,
    )


def _health_cpu(python: Python, seconds: int) -> Benchmark:
    """The time on the processor depends less on other work of the machine than the time of the clock."""

    def candidate(name: str, command: Command) -> Candidate:
        return Candidate(name, lambda: _requests_per_cpu_s(command, seconds))

    svcnode, nginx = candidate("svcnode", peers.svcnode(python.path)), candidate("nginx", peers.nginx())
    return Benchmark(
        title="node health, requests per second of CPU time",
        comparisons=(Comparison(svcnode, nginx, Threshold(1.1 if python.version == "3.11" else 1.2)),),
        samples_per_round=THROUGHPUT_SAMPLES,
    )


def _list(service_count: int, load: LoadFunction, threshold: Threshold, python: Python, seconds: int) -> Benchmark:
    body = services_body(service_count)

    def candidate(name: str, command: Command) -> Candidate:
        return Candidate(name, lambda: _throughput(command, load, SERVICES, body, seconds))

    nginx = candidate("nginx", peers.nginx(service_count))
    svcnode = candidate("svcnode", peers.svcnode(python.path, service_count))
    return Benchmark(
        title=f"list of {service_count:,} services, requests/s",
        comparisons=(Comparison(svcnode, nginx, threshold),),
        samples_per_round=THROUGHPUT_SAMPLES,
    )


def _under_reports(python: Python, seconds: int) -> Benchmark:
    def candidate(name: str, reports_per_s: int) -> Candidate:
        command = peers.reporting_node(python.path, MANY_SERVICES, reports_per_s)
        return Candidate(name, lambda: _throughput(command, requests_per_s, HEALTH, b"", seconds))

    busy = candidate(f"{REPORTS_PER_S:,} reports/s", REPORTS_PER_S)
    return Benchmark(
        title=f"node health of {MANY_SERVICES:,} services, requests/s",
        comparisons=(Comparison(busy, candidate("idle", 0), Threshold(0.85)),),
        samples_per_round=THROUGHPUT_SAMPLES,
    )


def _with_pages(python: Python, seconds: int) -> Benchmark:
    """Probed services, one of which changes all the time, so that the pages receive events."""

    def candidate(name: str, page_count: int) -> Candidate:
        command = peers.probing_node(python.path, PROBED_SERVICES)
        return Candidate(name, lambda: _throughput_with_pages(command, page_count, seconds))

    return Benchmark(
        title=f"node health of {PROBED_SERVICES} services, requests/s",
        comparisons=(Comparison(candidate(f"{PAGES} pages open", PAGES), candidate("none", 0), Threshold(0.9)),),
        samples_per_round=THROUGHPUT_SAMPLES,
    )


def _steady(python: Python, seconds: int) -> Benchmark:
    def candidate(name: str, reports_per_s: int) -> Candidate:
        command = peers.reporting_node(python.path, MANY_SERVICES, reports_per_s)
        return Candidate(name, lambda: _p99_us(command, seconds))

    busy = candidate(f"{REPORTS_PER_S:,} reports/s", REPORTS_PER_S)
    return Benchmark(
        title=f"node health of {MANY_SERVICES:,} services at {STEADY_RATE_PER_S:,} requests/s, p99, µs",
        comparisons=(Comparison(busy, candidate("idle", 0), Threshold(2, is_floor=False)),),
        samples_per_round=2,  # 20 ms of other work on the core spoil the percentile of a sample
    )


def _cold_start(python: Python, seconds: int) -> Benchmark:
    command = peers.svcnode(python.path, service_count=1)
    svcnode = Candidate("svcnode", lambda: _cold_start_ms(command))
    asyncio_import = Candidate('python -c "import asyncio"', lambda: _asyncio_import_ms(python.path))
    return Benchmark(
        title="process start to first response, ms",
        comparisons=(Comparison(svcnode, asyncio_import, Threshold(1.9, is_floor=False)),),
        samples_per_round=6,
    )


def _cold_start_cpu(python: Python, seconds: int) -> Benchmark:
    command = peers.svcnode(python.path, service_count=1)
    svcnode = Candidate("svcnode", lambda: _cold_start_cpu_ms(command))
    asyncio_import = Candidate('python -c "import asyncio"', lambda: _asyncio_import_cpu_ms(python.path))
    return Benchmark(
        title="process start to first response, ms of CPU time",
        comparisons=(Comparison(svcnode, asyncio_import, Threshold(1.9, is_floor=False)),),
        samples_per_round=2,
    )


def _memory(python: Python, seconds: int) -> Benchmark:
    command = peers.svcnode(python.path)
    svcnode = Candidate("svcnode", lambda: _resident_mb(command))
    return Benchmark(
        title="resident memory, idle, MB",
        comparisons=(Comparison(svcnode, threshold=Threshold(28, is_floor=False)),),
    )


BENCHMARKS: dict[str, Callable[[Python, int], Benchmark]] = {
    "health": _health,
    "health-cpu": _health_cpu,
    "list-3": partial(_list, 3, requests_per_s, Threshold(1.1)),
    "list-1000": partial(_list, 1000, large_responses_per_s, Threshold(1.2)),
    "reports": _under_reports,
    "pages": _with_pages,
    "p99": _steady,
    "cold-start": _cold_start,
    "cold-start-cpu": _cold_start_cpu,
    "memory": _memory,
}


# ---- one measurement each


def _throughput(command: Command, load: LoadFunction, path: str, body: bytes, seconds: int) -> float:
    with running(command) as server:
        _, received = server.get(path)
        if received != body:
            raise RuntimeError(f"{path}: expected {len(body)} bytes, got {received[:200]!r}")
        return load(server.port, path, seconds)


def _requests_per_cpu_s(command: Command, seconds: int) -> float:
    with running(command) as server:
        before_s = server.tree_cpu_s
        responses = requests_per_s(server.port, HEALTH, seconds) * seconds
        return responses / (server.tree_cpu_s - before_s)


def _throughput_with_pages(command: Command, page_count: int, seconds: int) -> float:
    with running(command) as server, open_pages(server.port, page_count):
        time.sleep(SETTLE_S)
        return requests_per_s(server.port, HEALTH, seconds)


def _p99_us(command: Command, seconds: int) -> float:
    with running(command) as server:
        return p99_us(server.port, HEALTH, STEADY_RATE_PER_S, seconds)


def _cold_start_ms(command: Command) -> float:
    started_at_s = time.perf_counter()
    with running(command):
        return 1e3 * (time.perf_counter() - started_at_s)


def _cold_start_cpu_ms(command: Command) -> float:
    with running(command) as server:
        return 1e3 * server.cpu_s


def _asyncio_import_cpu_ms(python: Path) -> float:
    script = "import asyncio, time; print(time.process_time())"
    with TemporaryDirectory(prefix="svcnode-bench-") as folder:
        output = Path(folder) / "output"
        start([python, "-c", script], output).wait()
        return 1e3 * float(output.read_text())


def _asyncio_import_ms(python: Path) -> float:
    with TemporaryDirectory(prefix="svcnode-bench-") as folder:
        started_at_s = time.perf_counter()
        start([python, "-c", "import asyncio"], Path(folder) / "errors").wait()
        return 1e3 * (time.perf_counter() - started_at_s)


def _resident_mb(command: Command) -> float:
    with running(command) as server:
        time.sleep(SETTLE_S)
        return server.resident_bytes / 1e6
