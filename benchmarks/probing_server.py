"""A node that checks its services and counts late checks.

`python -m benchmarks.probing_server PORT SERVICES_FILE LATENESS_FILE`. SERVICES_FILE is a JSON object from service id
to probe; a service with null has no probe and is Up. On SIGTERM it writes the number of checks of services named
quick-…, and the number of late ones.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from svcnode.agent.embed.node import Node, internals_of
from svcnode.net.timers import LATE_AFTER_S
from svcnode.node.scheduler import ProbeScheduler
from svcnode.server.server import HttpServer

if TYPE_CHECKING:
    from svcnode.core.model import ServiceState
    from svcnode.node.scheduler.runner import ProbeRunner

INTERVAL_S = 1.0
TIMEOUT_S = 0.9
WARMUP_S = 3.0  # until every service was checked once


class MeasuredScheduler(ProbeScheduler):
    def __init__(self, node: Node) -> None:
        super().__init__(internals_of(node).state)
        self._counted_from_s = time.monotonic() + WARMUP_S
        self.quick_checks = self.late_quick_checks = 0

    def _schedule_next(self, runner: ProbeRunner, state: ServiceState | None) -> None:
        if runner.service_id.startswith("quick-") and time.monotonic() > self._counted_from_s:
            self.quick_checks += 1
            self.late_quick_checks += runner.started_s - runner.due_s > LATE_AFTER_S
        super()._schedule_next(runner, state)


def main(port: int, services_file: Path, lateness_file: Path) -> None:
    lateness = uvloop.run(serve(port, json.loads(services_file.read_text())))
    lateness_file.write_text(json.dumps(lateness))


async def serve(port: int, probes: dict[str, str | None]) -> tuple[int, int]:
    node = Node("validator-7", version="v1.4.2")
    for service_id, probe in probes.items():
        _register(node, service_id, probe)
    await HttpServer(internals_of(node).state, ("/svc",)).listen(socket.create_server(("127.0.0.1", port)))
    async with MeasuredScheduler(node) as scheduler:
        await _stop_requested()
        return scheduler.quick_checks, scheduler.late_quick_checks


def _register(node: Node, service_id: str, probe: str | None) -> None:
    if probe is None:
        node.register(service_id).up()
    else:
        node.register(service_id, probe=probe, interval=INTERVAL_S, timeout=TIMEOUT_S)


async def _stop_requested() -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
