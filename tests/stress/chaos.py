"""Kill, stop and reload a fully configured node, and change its clock and its disk: no false 200, and nothing is lost.

`python -m tests.stress.chaos` runs `svcnode serve` with services of several kinds, history, notifications and an event
stream. The critical service is a file: while it does not exist, 200 is false. Every transition that the event stream
has delivered is acknowledged and must be in the database afterwards. Scenarios: 200 kills at random times; SIGSTOP for
a minute; the wall clock set back and forward; a full disk; a read-only disk; 1,000 reloads under load, with good and
bad files.
"""

from __future__ import annotations

import http.client
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.stress.campaigns import MIB, ScenarioReport, main_of_scenarios, memory_bytes
from tests.stress.history_kills import verify
from tests.stress.memory_limits import CONFIG, FALSE_AFTER_S, ask
from tests.support.backends import HttpBackend, http_response
from tests.support.disks import MemoryDisk
from tests.support.event_streams import EventReader
from tests.support.processes import Agent

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Mapping

HEALTH = "/svc/node/health"
POLL_S = 0.01
HEALTHY_S = 60.0
MAX_GROWTH_BYTES = 16 * MIB  # of 900 reloads
CLOCK_STEPS_S = (3600, -86_400, 30 * 86_400, -3600, 0)
BAD_FILES = ("[node\n", '[[services]]\nid = "file"\nprobe = "nothing://x"\n', '[defaults]\ninterval = "never"\n')


@dataclass
class ChaosReport(ScenarioReport):
    acknowledged: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)

    @property
    def errors(self) -> list[str]:
        return self.problems


class Subject:
    """A node with a critical service that works or not, a poller and a reader of its events."""

    def __init__(self, folder: Path, report: ChaosReport, hook: int, state: Path | None = None) -> None:
        self.folder = folder
        self.report = report
        self.flag = folder / "flag"
        self.database = (state or folder) / "history.db"
        self.config = f'{self._base(hook)}\n[history]\npath = "{self.database}"\n'
        self._failed_s: float | None = time.monotonic() - 60
        self._may_fail = False
        with closing(sqlite3.connect(folder / "ledger.db")) as database:
            database.execute("CREATE TABLE IF NOT EXISTS ledger (entry)")

    def _base(self, hook: int) -> str:
        config = CONFIG.format(port=0, hook=hook, folder=self.folder)
        # A busy machine must not make a working service Down.
        return config.replace('interval = "200ms"', 'interval = "300ms"').replace('"190ms"', '"290ms"')

    def work(self) -> None:
        self._failed_s = None
        self.flag.touch()

    def fail(self) -> None:
        self.flag.unlink(missing_ok=True)
        self._failed_s = time.monotonic()

    @contextmanager
    def running(self, environ: Mapping[str, str] | None = None) -> Iterator[Agent]:
        """The node, polled and read until the end of the block."""
        stop = threading.Event()
        with Agent(self.folder, config=self.config, environ=environ) as agent:
            port = agent.port
            threads = [threading.Thread(target=each, args=(port, stop)) for each in (self._poll, self._read_events)]
            for thread in threads:
                thread.start()
            try:
                yield agent
            finally:
                stop.set()
                agent.process.kill()  # ends the stream
                for thread in threads:
                    thread.join()

    def _poll(self, port: int, stop: threading.Event) -> None:
        while not stop.is_set():
            asked_s, failed_s = time.monotonic(), self._failed_s
            code = ask(port, HEALTH)
            self.report.samples += code is not None
            if code == 200 and failed_s is not None and asked_s > failed_s + FALSE_AFTER_S:
                self.report.problems.append(f"200 {asked_s - failed_s:.1f} s after the failure")
            time.sleep(POLL_S)

    def _read_events(self, port: int, stop: threading.Event) -> None:
        with suppress(OSError, EOFError), EventReader(("127.0.0.1", port), after=0) as reader:
            while not stop.is_set():
                event = reader.read()
                if event.id is not None:
                    self.report.acknowledged.add(event.id)

    def wait_until_healthy(self, agent: Agent) -> None:
        agent.wait_until(lambda: agent.health() == 200)


# ---- the scenarios


def kill(subject: Subject, size: int, rng: random.Random) -> None:
    """`size` kills, every fifth during the start."""
    for number in range(size):
        (subject.work if rng.random() < 0.7 else subject.fail)()
        if number % 5 == 4:
            with Agent(subject.folder, config=subject.config):
                time.sleep(rng.uniform(0, 0.5))
        else:
            with subject.running():
                for _ in range(rng.randrange(1, 4)):
                    time.sleep(rng.uniform(0, 0.5))
                    (subject.work if rng.random() < 0.5 else subject.fail)()
        verify(subject.database, subject.report)
    subject.work()
    with subject.running() as agent:
        subject.wait_until_healthy(agent)
    subject.report.figures = f"{size} kills, {len(subject.report.acknowledged)} transitions acknowledged"


def stop(subject: Subject, size: int, rng: random.Random) -> None:
    """SIGSTOP for `size` seconds, while the service fails. From the first answer on, 200 is false."""
    subject.work()
    with subject.running() as agent:
        subject.wait_until_healthy(agent)
        agent.signal(signal.SIGSTOP)
        subject.fail()
        time.sleep(size)
        agent.signal(signal.SIGCONT)
        codes = [agent.health() for _ in range(20)]
        if 200 in codes:
            subject.report.problems.append(f"after {size} s of SIGSTOP: {codes}")
        subject.work()
        subject.wait_until_healthy(agent)
    verify(subject.database, subject.report)
    subject.report.figures = f"stopped for {size} s; the first answers: {codes[:3]}"


def set_clock(subject: Subject, size: int, rng: random.Random) -> None:
    """Set the wall clock of the node `size` times: while the service works, the node stays or becomes healthy."""
    library, offset = subject.folder / "wall_clock.so", subject.folder / "offset"
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("not installed: cc")
    source = Path(__file__).with_name("wall_clock.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
    write_offset(offset, 0)
    environ = {"LD_PRELOAD": str(library), "WALL_CLOCK_OFFSET": str(offset)}
    subject.work()
    codes: Counter[int] = Counter()
    with subject.running(environ) as agent:
        subject.wait_until_healthy(agent)
        for number in range(size):
            offset_s = CLOCK_STEPS_S[number % len(CLOCK_STEPS_S)]
            write_offset(offset, offset_s)
            for _ in range(20):
                codes[agent.health()] += 1
                time.sleep(0.05)
            subject.wait_until_healthy(agent)
        date = request_health(agent.port).getheader("Date")
        subject.fail()
        agent.wait_until(lambda: agent.health() == 503)
    verify(subject.database, subject.report)
    subject.report.figures = f"the wall clock set {size} times, at last {date}; health {dict(codes)}"


def request_health(port: int) -> http.client.HTTPResponse:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=HEALTHY_S)) as connection:
        connection.request("GET", HEALTH)
        response = connection.getresponse()
        response.read()
        return response


def write_offset(path: Path, offset_s: int) -> None:
    """In place: the node has mapped the file."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.write(struct.pack("l", offset_s))


def fill_disk(subject: Subject, size: int, rng: random.Random) -> None:
    """Fill the disk of the database `size` times, change the service meanwhile, and free the disk again."""
    disk = MemoryDisk(subject.database.parent)
    subject.work()
    with subject.running() as agent:
        subject.wait_until_healthy(agent)
        for _ in range(size):
            with disk.full():
                subject.fail()
                agent.wait_until(lambda: agent.health() == 503)
                subject.work()
                subject.wait_until_healthy(agent)
        subject.fail()
        agent.wait_until(lambda: agent.health() == 503)
        before = len(subject.report.acknowledged)
        agent.wait_until(lambda: transition_count(subject.database) >= before)
        if (code := agent.stop()) != 0:
            subject.report.problems.append(f"exit code {code}")
    verify(subject.database, subject.report)
    subject.report.figures = f"full {size} times, {len(subject.report.acknowledged)} transitions acknowledged"


def start_read_only(subject: Subject, size: int, rng: random.Random) -> None:
    """Start on a read-only disk: the node answers truthfully. It cannot acknowledge what it cannot store."""
    subject.work()
    with MemoryDisk(subject.database.parent).read_only(), subject.running() as agent:
        subject.wait_until_healthy(agent)
        subject.fail()
        agent.wait_until(lambda: agent.health() == 503)
        if subject.database.exists():
            subject.report.problems.append("the database exists on a read-only disk")
        subject.report.acknowledged.clear()  # kept in memory, as the log says
        if not any("history" in line for line in agent.lines):
            subject.report.problems.append("the log does not say that history is not stored")
    subject.report.figures = "a node without a place for its state answers"


def reload(subject: Subject, size: int, rng: random.Random) -> None:
    """`size` reloads under load, a third of them with a bad file: no answer is lost, and memory stays flat."""
    subject.work()
    done = threading.Event()
    more = '\n[[services]]\nid = "more-{}"\nprobe = "file:{}"\nimpact = "none"\n'
    with subject.running() as agent:
        subject.wait_until_healthy(agent)
        codes = [Counter[int](), Counter[int]()]
        threads = [threading.Thread(target=load, args=(agent.port, done, subject.report, each)) for each in codes]
        for thread in threads:
            thread.start()
        pid, before_bytes = agent.process.pid, 0
        for number in range(size):
            config = subject.config + more.format(number % 7, subject.flag)
            agent.reload(rng.choice(BAD_FILES) if number % 3 == 2 else config)
            if number == size // 10:
                before_bytes = memory_bytes(pid, "VmRSS")
        after_bytes = memory_bytes(pid, "VmRSS")
        done.set()
        for thread in threads:
            thread.join()
        subject.fail()
        agent.wait_until(lambda: agent.health() == 503)
        if after_bytes - before_bytes > MAX_GROWTH_BYTES:
            subject.report.problems.append(f"memory grew by {(after_bytes - before_bytes) / MIB:.1f} MiB")
    verify(subject.database, subject.report)
    sizes = f"{before_bytes / MIB:.1f} MiB after {size // 10}, {after_bytes / MIB:.1f} MiB after {size}"
    subject.report.figures = f"{size} reloads; memory {sizes}; health {dict(codes[0] + codes[1])}"


def load(port: int, done: threading.Event, report: ChaosReport, codes: Counter[int]) -> None:
    """Each request, on a new connection, is answered."""
    while not done.is_set():
        try:
            codes[request_health(port).status] += 1
        except (OSError, http.client.HTTPException) as exc:
            report.problems.append(f"during reloads: {type(exc).__name__}: {exc}")
        time.sleep(0.005)
    report.samples += codes.total()


def transition_count(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        count: int = database.execute("SELECT count(*) FROM transitions").fetchone()[0]
    return count


@dataclass(frozen=True)
class Scenario:
    run: Callable[[Subject, int, random.Random], None]
    size: int
    short_size: int
    disk_bytes: int = 0  # the state is on a small disk of its own


SCENARIOS = {
    "kills": Scenario(kill, 200, 2),
    "SIGSTOP": Scenario(stop, 60, 2),
    "wall clock": Scenario(set_clock, 10, 1),
    "full disk": Scenario(fill_disk, 5, 1, disk_bytes=2 * MIB),
    "read-only state": Scenario(start_read_only, 1, 1, disk_bytes=2 * MIB),
    "reloads": Scenario(reload, 1000, 6),
}


def run_scenario(folder: Path, name: str, rng: random.Random, is_short: bool) -> ChaosReport:
    scenario, report = SCENARIOS[name], ChaosReport()
    folder.mkdir()
    with ExitStack() as stack:
        state = None
        if scenario.disk_bytes:
            disk = stack.enter_context(MemoryDisk(folder / "state", size_bytes=scenario.disk_bytes))
            state = disk.path
        hook = stack.enter_context(HttpBackend(http_response(200)))
        subject = Subject(folder, report, hook.port, state)
        scenario.run(subject, scenario.short_size if is_short else scenario.size, rng)
    report.expect(not report.lost, f"lost transitions: {sorted(report.lost)[:10]}")
    return report


if __name__ == "__main__":
    counted = "false 200s, lost transitions and errors"
    sys.exit(main_of_scenarios("chaos", __doc__, SCENARIOS, run_scenario, counted))
