"""Probing: the cost of a check beside other checkers, and whether checks start on time."""

from __future__ import annotations

import json
import math
import os
import time
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from benchmarks import haproxy, peers
from benchmarks.blackbox import READY_PATH, ProbeRequests, blackbox
from benchmarks.comparison import Benchmark, Candidate, Comparison, Threshold
from benchmarks.load import open_connections, p99_us
from benchmarks.payloads import HEALTH, SERVICES, service_fields
from benchmarks.processes import START_TIMEOUT_S, running
from benchmarks.targets import Kind, counting_target, hosts, unresponsive_target, urls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from benchmarks.processes import Command, Server
    from benchmarks.provision import Python

MANY_SERVICES = 3_000  # each checked once per second
SETTLE_S = 2.0  # until jitter has spread the checks
PROBED_S = 5.0  # before memory is read
STEADY_RATE_PER_S = 1_000
HUNG_SERVICES, QUICK_SERVICES = 100, 900
WARMUP_S = 3.0  # lateness is not counted before; as in probing_server
LATENESS_WINDOWS = 5  # lateness is rare, so it is measured this many times as long
POLL_INTERVAL_S = 0.1
NEARLY_ALL = 0.99  # on a busy machine, a check may fail now and then


class Thresholds(NamedTuple):
    haproxy: Threshold
    blackbox: Threshold


class Lateness(NamedTuple):
    checks: int
    late_checks: int


def _checks(kind: Kind, thresholds: Thresholds, python: Python, seconds: int) -> Benchmark:
    svcnode = Candidate("svcnode", lambda: _svcnode_checks(python.path, kind, seconds))
    return Benchmark(
        title=f"{kind.upper()} checks of {MANY_SERVICES:,} services, per second of CPU time",
        comparisons=(
            Comparison(svcnode, Candidate("HAProxy", lambda: _haproxy_checks(kind, seconds)), thresholds.haproxy),
            Comparison(
                svcnode, Candidate("blackbox exporter", lambda: _blackbox_checks(kind, seconds)), thresholds.blackbox
            ),
        ),
    )


def _late(python: Python, seconds: int) -> Benchmark:
    return Benchmark(
        title=f"checks of {MANY_SERVICES:,} TCP services per second that start over 100 ms late, %",
        comparisons=(
            Comparison(
                Candidate("svcnode", lambda: _late_percent(python.path, seconds)),
                threshold=Threshold(0.1, is_floor=False),
            ),
        ),
    )


def _steady(python: Python, seconds: int) -> Benchmark:
    busy = Candidate("probing", lambda: _p99_us(python.path, seconds, is_probing=True))
    idle = Candidate("idle", lambda: _p99_us(python.path, seconds, is_probing=False))
    return Benchmark(
        title=f"node health at {STEADY_RATE_PER_S:,} requests/s, {MANY_SERVICES:,} TCP services each second, p99, µs",
        comparisons=(Comparison(busy, idle, Threshold(3, is_floor=False)),),
        samples_per_round=2,  # 10 ms of other work on the core spoil the percentile of a sample
    )


def _memory(python: Python, seconds: int) -> Benchmark:
    return Benchmark(
        title="resident memory per probed TCP service, KB",
        comparisons=(
            Comparison(
                Candidate("svcnode", lambda: _kilobytes_per_service(python.path)),
                threshold=Threshold(8, is_floor=False),
            ),
        ),
    )


def _hung(python: Python, seconds: int) -> Benchmark:
    return Benchmark(
        title=f"checks of {QUICK_SERVICES} HTTP services beside {HUNG_SERVICES} hanging ones, over 100 ms late",
        comparisons=(
            Comparison(
                Candidate("svcnode", lambda: _late_beside_hung(python.path, seconds)),
                threshold=Threshold(0, is_floor=False),
            ),
        ),
    )


BENCHMARKS: dict[str, Callable[[Python, int], Benchmark]] = {
    "tcp-checks": partial(_checks, "tcp", Thresholds(haproxy=Threshold(0.33), blackbox=Threshold(5))),
    "http-checks": partial(_checks, "http", Thresholds(haproxy=Threshold(0.4), blackbox=Threshold(5))),
    "checks-late": _late,
    "checks-p99": _steady,
    "checks-memory": _memory,
    "checks-hung": _hung,
}


# ---- one measurement each


def _svcnode_checks(python: Path, kind: Kind, seconds: int) -> float:
    with (
        counting_target() as target,
        running(_svcnode(python, urls(kind, target.port, MANY_SERVICES))) as server,
        _while_all_up(lambda: len(_up_ids(server)), MANY_SERVICES),
    ):
        return _checks_per_cpu_s(server, target.accepted, lambda: time.sleep(seconds))


def _haproxy_checks(kind: Kind, seconds: int) -> float:
    with counting_target() as target:
        command = haproxy.haproxy(kind, hosts(MANY_SERVICES), target.port)
        with running(command, path=haproxy.STATUS_PATH) as server:
            arrived = target.accepted_or_reset if kind == "tcp" else target.accepted
            with _while_all_up(lambda: haproxy.ups(server, kind), MANY_SERVICES):
                # Resets are counted for the whole machine, so there may be some that are not its own.
                return _checks_per_cpu_s(server, arrived, lambda: time.sleep(seconds), most_per_s=MANY_SERVICES)


def _blackbox_checks(kind: Kind, seconds: int) -> float:
    with (
        counting_target() as target,
        running(blackbox, path=READY_PATH) as server,
        open_connections(server.port) as connections,
    ):
        questions = ProbeRequests(connections, kind, urls(kind, target.port, MANY_SERVICES))
        questions.run_for(SETTLE_S)
        return _checks_per_cpu_s(server, target.accepted, lambda: questions.run_for(seconds))


def _checks_per_cpu_s(
    checker: Server, arrived: Callable[[], int], go_on: Callable[[], None], most_per_s: float = math.inf
) -> float:
    arrived_before, cpu_before_s, began_at_s = arrived(), checker.cpu_s, time.monotonic()
    go_on()
    took_s = time.monotonic() - began_at_s
    checks, cpu_s = arrived() - arrived_before, checker.cpu_s - cpu_before_s
    _ensure(checks > 0, "no check has arrived")
    return min(checks, most_per_s * took_s) / cpu_s


def _late_percent(python: Path, seconds: int) -> float:
    with counting_target() as target:
        lateness = _lateness(python, urls("tcp", target.port, MANY_SERVICES), [], seconds)
    return 100 * lateness.late_checks / lateness.checks


def _late_beside_hung(python: Path, seconds: int) -> float:
    with counting_target() as target, unresponsive_target() as mute_port:
        quick, hung = urls("http", target.port, QUICK_SERVICES), urls("http", mute_port, HUNG_SERVICES)
        return _lateness(python, quick, hung, seconds).late_checks


def _lateness(python: Path, quick: list[str], hung: list[str], seconds: int) -> Lateness:
    probes = {f"quick-{number}": url for number, url in enumerate(quick)}
    probes |= {f"hung-{number}": url for number, url in enumerate(hung)}
    with TemporaryDirectory(prefix="svcnode-bench-") as folder:
        file = Path(folder) / "lateness.json"
        with running(_probing_node(python, probes, file)) as server:
            time.sleep(WARMUP_S + LATENESS_WINDOWS * seconds)
            ups = _up_ids(server)
            _ensure(_is_nearly_all(len(ups), len(quick)), f"only {len(ups)} of {len(quick)} quick services are Up")
            _ensure(not any(id_.startswith("hung-") for id_ in ups), "a hung service is Up")
        return Lateness(*json.loads(file.read_text()))


def _p99_us(python: Path, seconds: int, *, is_probing: bool) -> float:
    with counting_target() as target:
        services = urls("tcp", target.port, MANY_SERVICES)
        probes = {f"quick-{number}": url if is_probing else None for number, url in enumerate(services)}
        with (
            running(_probing_node(python, probes, Path(os.devnull))) as server,
            _while_all_up(lambda: len(_up_ids(server)), MANY_SERVICES),
        ):
            return p99_us(server.port, HEALTH, STEADY_RATE_PER_S, seconds)


def _kilobytes_per_service(python: Path) -> float:
    many_bytes, one_bytes = (_resident_bytes(python, count) for count in (MANY_SERVICES, 1))
    return (many_bytes - one_bytes) / (MANY_SERVICES - 1) / 1e3


def _resident_bytes(python: Path, service_count: int) -> int:
    with (
        counting_target() as target,
        running(_svcnode(python, urls("tcp", target.port, service_count))) as server,
        _while_all_up(lambda: len(_up_ids(server)), service_count),
    ):
        time.sleep(PROBED_S)
        return server.resident_bytes


# ---- shared


def _svcnode(python: Path, probes: list[str]) -> Command:
    services = [
        {**service_fields(number), "probe": probe, "interval": "1s", "timeout": "900ms"}
        for number, probe in enumerate(probes)
    ]
    return peers.svcnode_with(python, services)


def _probing_node(python: Path, probes: Mapping[str, str | None], lateness_file: Path) -> Command:
    def command(port: int, folder: Path) -> list[str | Path]:
        file = folder / "services.json"
        file.write_text(json.dumps(probes))
        return [python, "-m", "benchmarks.probing_server", str(port), file, lateness_file]

    return command


def _up_ids(server: Server) -> list[str]:
    services = json.loads(server.get(SERVICES)[1])["services"]
    return [service["id"] for service in services if service["status"] == "Up"]


@contextmanager
def _while_all_up(count_ups: Callable[[], int], count: int) -> Iterator[None]:
    """Fails unless nearly all services are up before and after the block."""
    give_up_at_s = time.monotonic() + START_TIMEOUT_S
    while not _is_nearly_all(count_ups(), count) and time.monotonic() < give_up_at_s:
        time.sleep(POLL_INTERVAL_S)
    time.sleep(SETTLE_S)
    yield
    ups = count_ups()
    _ensure(_is_nearly_all(ups, count), f"only {ups} of {count} are up")


def _is_nearly_all(ups: int, count: int) -> bool:
    return ups >= NEARLY_ALL * count


def _ensure(condition: bool, message: str) -> None:
    if not condition:
        raise RuntimeError(message)
