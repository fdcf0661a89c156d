"""Kill a process that writes history, again and again, and count what it had acknowledged and is lost: nothing.

`python -m tests.stress.history_kills` kills it 50 times and goes on until 10,000 transitions were acknowledged. After
each kill, the file must open, pass SQLite's integrity check, and hold every transition that was ever acknowledged.
"""

# ruff: noqa: T201  it is a program that prints

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from svcnode.core.model import Status
from svcnode.history import Bucket, History, Transition
from svcnode.history.records import RESOLUTIONS
from svcnode.node import Node

SERVICES = 50
MAX_PENDING = 300  # transitions that are not acknowledged yet: more would only wait
MINUTE_EVERY = 100  # transitions, so that minutes are written in between
# One in so many is killed at some moment of its start, before it has acknowledged anything.
START_KILL_EVERY = 5
START_S = 0.4
ROOT = Path(__file__).parents[2]


# ---- the process that is killed


async def write_forever(path: Path) -> None:
    """Changes as fast as they are acknowledged; prints each id once it is."""
    node = Node("stressed", version="v1")
    handles = [node.register(f"service-{number}") for number in range(SERVICES)]
    chance = random.Random()
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
            for _ in range(chance.randrange(1, 30)):
                handle = chance.choice(handles)
                if handle.state.status is Status.UP:
                    handle.down(f"out of luck {chance.random()}")
                else:
                    handle.up()
                made += 1
                if made % MINUTE_EVERY == 0:  # as when a minute is over, which is not waited for here
                    begin_s += 60
                    history._on_minute_closed(
                        begin_s, {one.id: Bucket(begin_s, up_s=60.0, checks=6) for one in handles}
                    )
            is_ahead = made - acknowledged > MAX_PENDING
            await asyncio.sleep(0.01 if is_ahead else chance.choice((0, 0, 0.001, 0.005)))


# ---- the one who kills


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


def campaign(path: Path, kills: int, acknowledged: int, rng: random.Random) -> KillReport:
    tally = KillReport()
    each = max(1, acknowledged // kills)
    while tally.kills < kills or len(tally.acknowledged) < acknowledged:
        at_start = tally.kills % START_KILL_EVERY == START_KILL_EVERY - 1
        wanted = 0 if at_start else rng.randrange(each // 2, 2 * each + 1)
        ids = run_and_kill(path, wanted, rng.uniform(0, START_S if at_start else 0.03))
        if len(ids) < wanted:
            tally.errors.append(f"it ended by itself after {len(ids)} acknowledged transitions")
            break
        tally.kills += 1
        tally.kills_at_start += at_start
        tally.acknowledged.update(ids)
        verify(path, tally)
    return tally


def run_and_kill(path: Path, wanted: int, moment_s: float) -> list[int]:
    """What was acknowledged by a process that is killed a moment after it has acknowledged so many."""
    command = [sys.executable, "-m", "tests.stress.history_kills", "--write", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [line for _, line in zip(range(wanted), process.stdout, strict=False)]
        time.sleep(moment_s)
        process.kill()
        lines += process.stdout.readlines()
    return [int(line) for line in lines if line.endswith("\n")]


def verify(path: Path, tally: KillReport) -> None:
    if not path.exists():  # it was killed before there was a file
        tally.lost |= tally.acknowledged
        return
    with closing(sqlite3.connect(path)) as database:
        findings = [finding for (finding,) in database.execute("PRAGMA integrity_check")]
        if findings != ["ok"]:
            tally.errors.append(f"after kill {tally.kills}: {findings}")
        if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'transitions'").fetchone():
            tally.lost |= tally.acknowledged
            return
        kept = {number for (number,) in database.execute("SELECT id FROM transitions")}
        for span in RESOLUTIONS:
            overfull = f"SELECT count(*) FROM {span.name} WHERE up_s + initializing_s + down_s > {span.length_s} + 0.01"
            if database.execute(overfull).fetchone() != (0,):
                tally.errors.append(f"after kill {tally.kills}: {span.name} hold more time than they are long")
    tally.lost |= tally.acknowledged - kept
    if aside := [one.name for one in path.parent.iterdir() if ".corrupt-" in one.name]:
        tally.errors.append(f"after kill {tally.kills}: set aside as damaged: {aside}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.history_kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--acknowledged", type=int, default=10_000, help="go on until there are so many")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--write", type=Path, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write is not None:
        asyncio.run(write_forever(arguments.write))
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="svcnode-kills-") as folder:
        tally = campaign(Path(folder) / "history.db", arguments.kills, arguments.acknowledged, random.Random(seed))
    for fault in tally.errors:
        print(fault)
    print(f"kills: {tally.kills}, {tally.kills_at_start} of them while it started (seed {seed})")
    print(f"transitions acknowledged: {len(tally.acknowledged)}, in {time.monotonic() - began_s:.0f} s")
    print(f"acknowledged and lost: {len(tally.lost)}")
    return 0 if tally.passed else 1


if __name__ == "__main__":
    sys.exit(main())
