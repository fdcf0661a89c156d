"""An idle node: how often it wakes up and how much CPU time it uses, beside other monitors with the same checks."""

from __future__ import annotations

import re
import time
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import peers
from benchmarks.blackbox import READY_PATH, blackbox
from benchmarks.comparison import Benchmark, Candidate, Comparison, Threshold
from benchmarks.payloads import HEALTH, service_fields
from benchmarks.processes import running
from benchmarks.provision import tool
from benchmarks.targets import counting_target, urls

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.processes import Command, Server
    from benchmarks.provision import Python
    from benchmarks.targets import Target

    Figure = Callable[[Server], float]

SERVICES, INTERVAL_S = 10, 10
SETTLE_S = 6.0  # the first checks, and what a start leaves to do
WORK = f"{SERVICES} TCP services every {INTERVAL_S} s"

_MONIT = """
set daemon {interval}
set idfile {folder}/id
set statefile {folder}/state
set pidfile {folder}/pid
set httpd port {port} and use address 127.0.0.1
  allow 127.0.0.1
"""
_MONIT_HOST = "check host s{number} with address 127.0.0.1\n  if failed port {port} type tcp then alert\n"
_PROMETHEUS = """
scrape_configs:
- job_name: tcp
  scrape_interval: {interval}s
  metrics_path: /probe
  params: {{ module: [tcp] }}
  static_configs: [{{ targets: [{targets}] }}]
  relabel_configs:
  - {{ source_labels: [__address__], target_label: __param_target }}
  - {{ source_labels: [__address__], target_label: instance }}
  - {{ target_label: __address__, replacement: "127.0.0.1:{exporter}" }}
"""


def _benchmark(title: str, figure: Figure, limit: float, python: Python, seconds: int) -> Benchmark:
    return Benchmark(
        title=f"idle, {WORK}: {title}",
        comparisons=(
            Comparison(
                Candidate("svcnode", lambda: _svcnode(python.path, figure)), threshold=Threshold(limit, is_floor=False)
            ),
            Comparison(Candidate("monit", lambda: _monit(figure))),
            Comparison(Candidate("blackbox exporter + Prometheus", lambda: _prometheus(figure))),
        ),
    )


BENCHMARKS: dict[str, Callable[[Python, int], Benchmark]] = {
    "idle-wake-ups": partial(_benchmark, "wake-ups/s", lambda server: server.wake_ups, 4.0),
    "idle-cpu": partial(_benchmark, "% of a core", lambda server: 100 * server.cpu_s, 0.1),
}


# ---- one measurement each


def _svcnode(python: Path, figure: Figure) -> float:
    with counting_target() as target:
        fields = {"interval": f"{INTERVAL_S}s"}
        services = [
            {**service_fields(number), **fields, "probe": url}
            for number, url in enumerate(urls("tcp", target.port, SERVICES))
        ]
        return _rate(figure, target, (peers.svcnode_with(python, services), HEALTH))


def _monit(figure: Figure) -> float:
    with counting_target() as target:
        return _rate(figure, target, (_monit_command(target.port), "/"))


def _prometheus(figure: Figure) -> float:
    with counting_target() as target, running(blackbox, path=READY_PATH) as exporter:
        command = _prometheus_command(target.port, exporter.port)
        return _rate(figure, target, (command, READY_PATH), exporter)


def _rate(figure: Figure, target: Target, command: tuple[Command, str], *others: Server) -> float:
    """The growth per second of the figure of all processes, over one interval."""
    with ExitStack() as stack:
        servers = (stack.enter_context(running(command[0], path=command[1])), *others)
        time.sleep(SETTLE_S)
        before, checks, started_s = sum(map(figure, servers)), target.accepted(), time.monotonic()
        time.sleep(INTERVAL_S)
        rate = (sum(map(figure, servers)) - before) / (time.monotonic() - started_s)
        if not 0.7 * SERVICES <= target.accepted() - checks <= 1.3 * SERVICES:
            raise RuntimeError(f"{target.accepted() - checks} checks in one interval, expected about {SERVICES}")
        return rate


# ---- peers


def _monit_command(target_port: int) -> Command:
    def command(port: int, folder: Path) -> list[str | Path]:
        hosts = [_MONIT_HOST.format(number=number, port=target_port) for number in range(SERVICES)]
        file = folder / "monitrc"
        file.write_text(_MONIT.format(interval=INTERVAL_S, folder=folder, port=port) + "".join(hosts))
        file.chmod(0o600)
        return [tool("monit"), "-I", "-c", file]

    return command


def _prometheus_command(target_port: int, exporter_port: int) -> Command:
    def command(port: int, folder: Path) -> list[str | Path]:
        targets = ", ".join(f'"{re.sub("^tcp://", "", url)}"' for url in urls("tcp", target_port, SERVICES))
        file = folder / "prometheus.yml"
        file.write_text(_PROMETHEUS.format(interval=INTERVAL_S, targets=targets, exporter=exporter_port))
        options = [f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
        return ["env", "GOMAXPROCS=1", tool("prometheus"), f"--config.file={file}", *options]

    return command
