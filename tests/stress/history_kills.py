"""Kill a process that writes history, many times, and count the acknowledged transitions that are lost: none.

`python -m tests.stress.history_kills` kills it 50 times and continues until 10,000 transitions were acknowledged. After
each kill, the file must open, pass SQLite's integrity check, and contain every acknowledged transition.
"""

# ruff: noqa: T201  a command-line program

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from svcnode.core.model import Status
from svcnode.history import Bucket, History, Transition
from svcnode.history.records import RESOLUTIONS
from tests.stress.campaigns import campaign_folder, campaign_parser
from tests.support.nodes import make_node

SERVICES = 50
MAX_PENDING = 300  # transitions that are not acknowledged
MINUTE_EVERY = 100  # transitions
# Every 5th process is killed during its start.
START_KILL_EVERY = 5
START_S = 0.4
ROOT = Path(__file__).parents[2]


# ---- the writing process


async def write_forever(path: Path) -> None:
    """Make changes as fast as they are acknowledged, and print each acknowledged id."""
    node = make_node("stress", version="v1")
    handles = [node.register(f"service-{number}") for number in range(SERVICES)]
    rng = random.Random()
    begin_s = int(time.time()) // 60 * 60
    async with History(node, path) as history:
        acknowledged = made = 0

        def acknowledge(transition: Transition) -> None:
            nonlocal acknowledged
            assert history.is_healthy, history.problem
            acknowledged += 1
            os.write(1, b"%d\n" % transition.id)

        history.subscribe(acknowledge)
        while True:
            for _ in range(rng.randrange(1, 30)):
                handle = rng.choice(handles)
                if handle.state.status is Status.UP:
                    handle.down(f"failed {rng.random()}")
                else:
                    handle.up()
                made += 1
                if made % MINUTE_EVERY == 0:  # as at the end of a minute
                    begin_s += 60
                    history._backlog.add_minute(
                        begin_s, {one.id: Bucket(begin_s, up_s=60.0, checks=6) for one in handles}
                    )
            is_ahead = made - acknowledged > MAX_PENDING
            await asyncio.sleep(0.01 if is_ahead else rng.choice((0, 0, 0.001, 0.005)))


# ---- the killing process


@dataclass
class KillReport:
    kills: int = 0
    kills_at_start: int = 0
    acknowledged: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.lost and not self.errors


def run_campaign(path: Path, kills: int, acknowledged: int, rng: random.Random) -> KillReport:
    report = KillReport()
    per_kill = max(1, acknowledged // kills)
    while report.kills < kills or len(report.acknowledged) < acknowledged:
        at_start = report.kills % START_KILL_EVERY == START_KILL_EVERY - 1
        count = 0 if at_start else rng.randrange(per_kill // 2, 2 * per_kill + 1)
        ids = run_and_kill(path, count, rng.uniform(0, START_S if at_start else 0.03))
        if len(ids) < count:
            report.errors.append(f"the process ended after {len(ids)} acknowledged transitions, before it was killed")
            break
        report.kills += 1
        report.kills_at_start += at_start
        report.acknowledged.update(ids)
        verify(path, report, f"after kill {report.kills}: ")
    return report


def run_and_kill(path: Path, count: int, delay_s: float) -> list[int]:
    """Kill the process `delay_s` after it acknowledged `count` transitions; returns all acknowledged ids."""
    command = [sys.executable, "-m", "tests.stress.history_kills", "--write", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [line for _, line in zip(range(count), process.stdout, strict=False)]
        time.sleep(delay_s)
        process.kill()
        lines += process.stdout.readlines()
    return [int(line) for line in lines if line.endswith("\n")]


class Stored(Protocol):
    """A report about transitions: those that were acknowledged, and those of them that the database does not have."""

    acknowledged: set[int]
    lost: set[int]

    @property
    def errors(self) -> list[str]: ...


def verify(path: Path, report: Stored, when: str = "") -> None:
    """The database is sound and has every acknowledged transition."""
    if not path.exists():  # killed before it created the file
        report.lost |= report.acknowledged
        return
    with closing(sqlite3.connect(path)) as database:
        findings = [finding for (finding,) in database.execute("PRAGMA integrity_check")]
        if findings != ["ok"]:
            report.errors.append(f"{when}integrity check: {findings}")
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'transitions'").fetchone():
            report.lost |= report.acknowledged
            return
        stored = {transition_id for (transition_id,) in database.execute("SELECT id FROM transitions")}
        for resolution in RESOLUTIONS:
            known_s, limit_s = "up_s + initializing_s + down_s", resolution.length_s + 0.01
            overfull = f"SELECT count(*) FROM {resolution.name} WHERE {known_s} > {limit_s}"
            if database.execute(overfull).fetchone() != (0,):
                report.errors.append(f"{when}buckets in {resolution.name} exceed their length")
    report.lost |= report.acknowledged - stored
    if quarantined := [one.name for one in path.parent.iterdir() if ".corrupt-" in one.name]:
        report.errors.append(f"{when}quarantined: {quarantined}")


def main() -> int:
    parser = campaign_parser("history_kills", __doc__, kills=50, acknowledged=10_000)
    parser.add_argument("--write", type=Path, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write is not None:
        asyncio.run(write_forever(arguments.write))
    started_s = time.monotonic()
    with campaign_folder() as folder:
        rng = random.Random(arguments.seed)
        report = run_campaign(folder / "history.db", arguments.kills, arguments.acknowledged, rng)
    for error in report.errors:
        print(error)
    print(f"kills: {report.kills}, {report.kills_at_start} of them during the start (seed {arguments.seed})")
    print(f"transitions acknowledged: {len(report.acknowledged)}, in {time.monotonic() - started_s:.0f} s")
    print(f"acknowledged and lost: {len(report.lost)}")
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
