"""How much memory and CPU a node needs: with 50, 500 and 5,000 services, each checked over HTTP every 10 s.

`python -m tests.stress.footprint` runs `svcnode serve` once for each number of services, until all of them are Up and
then for a minute. Prints a row each: the memory and the processor time of the node while only checks run, and its
memory after somebody has opened the page, the details, the report and the metrics. The checks are counted: on a busy
machine there may be fewer than the interval asks for, and the processor time is that of these.
"""

# ruff: noqa: T201  a command-line program

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import NamedTuple

from tests.stress.campaigns import campaign_folder, campaign_parser, machine, memory_bytes
from tests.stress.reload import backend_process
from tests.support.processes import Agent

SIZES = (50, 500, 5_000)
READ_PATHS = ("/", "/details?recent_checks=1", "/report", "/metrics")
HEAD = '[server]\nlisten = "127.0.0.1:0"\ndrain = "0s"\n[defaults]\ninterval = "{interval:g}s"\n'
SERVICE = '[[services]]\nid = "{number}"\nprobe = "http://127.0.0.1:{backend}/{number}"\n'
HEADER = "| services | checks/s | memory | CPU | memory after reading |\n|---|---|---|---|---|"


class Footprint(NamedTuple):
    services: int
    checks_per_s: float
    resident_bytes: int
    cores: float  # of processor time per second
    resident_after_reading_bytes: int

    def row(self) -> str:
        memory, after = (f"{size / 1e6:.0f} MB" for size in (self.resident_bytes, self.resident_after_reading_bytes))
        return f"| {self.services:,} | {self.checks_per_s:.0f} | {memory} | {self.cores:.1%} | {after} |"


def measure(folder: Path, services: int, *, interval_s: float, seconds: float, backend: int) -> Footprint:
    folder.mkdir()
    tables = "".join(SERVICE.format(number=number, backend=backend) for number in range(services))
    with Agent(folder, config=HEAD.format(interval=interval_s) + tables) as agent:
        agent.wait_until(lambda: set(agent.statuses().values()) == {"Up"})
        time.sleep(seconds)
        resident_bytes = memory_bytes(agent.process.pid, "VmRSS")
        checks, before_s, started_s = checks_of(agent), cpu_s(agent.process.pid), time.monotonic()
        time.sleep(seconds)
        used_s, took_s = cpu_s(agent.process.pid) - before_s, time.monotonic() - started_s
        checks_per_s = (checks_of(agent) - checks) / took_s
        codes = {path: agent.request(path).code for path in READ_PATHS}
        assert set(codes.values()) == {200}, codes
        after_bytes = memory_bytes(agent.process.pid, "VmRSS")
    return Footprint(services, checks_per_s, resident_bytes, used_s / took_s, after_bytes)


def checks_of(agent: Agent) -> int:
    """All that have ended, which the metrics count by kind of probe."""
    text = agent.request("/metrics").body.decode()
    counts = re.findall(r"^svcnode_check_duration_seconds_count.* (\S+)$", text, re.MULTILINE)
    return sum(int(float(count)) for count in counts)


def cpu_s(pid: int) -> float:
    """The processor time that a process has used, in all of its threads."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = campaign_parser("footprint", __doc__, interval=10.0, seconds=30.0)
    parser.add_argument("--services", type=int, nargs="*", default=SIZES)
    args = parser.parse_args()
    print(f"{machine()}\n\n{HEADER}", flush=True)
    with campaign_folder() as folder, backend_process() as backend:
        for count in args.services:
            options = {"interval_s": args.interval, "seconds": args.seconds}
            print(measure(folder / str(count), count, backend=backend, **options).row(), flush=True)


if __name__ == "__main__":
    main()
