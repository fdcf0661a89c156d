"""What sharing costs as replicas are added: checks, writes, bytes, processor time, and the delay of a status change.

`python -m tests.stress.scale` runs 1, 2 and 4 `svcnode serve` processes on real etcd. All have the same file; each
service is checked once per second. After that it measures the steps whose cost grows with the size of a node, for the
extrapolation in docs/internals/scale.md. `--takeover` kills one of four replicas instead, and starts it again: how many
services change their status, and how long the views of a large node take. Prints tables. Needs `ss` of iproute2.
"""

# ruff: noqa: T201  a command-line program

from __future__ import annotations

import argparse
import asyncio
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from itertools import count, islice
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from svcnode.core.model import Status
from svcnode.net.etcd_json import Event, KeyValue
from svcnode.sharing.format import (
    KeyKind,
    ReplicaDocument,
    StateDocument,
    Written,
    encode_document,
    encode_key,
    evidence_document,
    node_root,
    service_document,
)
from svcnode.sharing.rules import choose_observers
from svcnode.sharing.shared_services import SharedServices
from svcnode.sharing.view import RegistryView, SharedService
from tests.stress.campaigns import campaign_folder, machine, memory_bytes
from tests.support.nodes import make_node
from tests.support.processes import connect_unix
from tests.support.replicas import Backends, Replicas
from tests.support.servers.base import wait_until
from tests.support.servers.etcd import EtcdServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from svcnode.sharing.format import RegistryDocument
    from svcnode.sharing.rules import ObserverChoice
    from tests.support.processes import Client
    from tests.support.replicas import Replica

# A machine that is busy with other work must not change statuses: each change is a write.
SETTINGS = (
    'lease = "20s"\n[defaults]\ninterval = "1s"\ntransition_interval = "1s"\ntimeout = "900ms"\nstale_after = "20s"\n'
    'fall = 3\nrise = 1\ntolerance = "off"\n'
)
# As short as the documentation allows: `stale_after` is the lease, an interval and 5 s.
TAKEOVER_SETTINGS = 'lease = "10s"\n[defaults]\ninterval = "5s"\ntimeout = "2s"\nstale_after = "20s"\n'
TAKEOVER_S = 90.0  # with the comparison of all keys, once per minute
RESTART_S = 8.0  # after the kill; the replica joins while others take over its services
SETTLE_S = 5.0
START_S = 300.0
CHANGE_S = 30.0
POLL_S = 0.005
SAMPLE_S = 0.5
LARGE = {"quota-backend-bytes": 4 * 1024**3}


class CountingBackends(Backends):
    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def receive_check(self, service_id: str) -> bytes:
        self.counts[service_id] += 1
        return super().receive_check(service_id)


class Bytes(NamedTuple):
    sent: int
    received: int


class ConnectionBytes:
    """What each process has exchanged with a port, by the counters of the kernel, HTTP included.

    They end with the connection, so they are read all the time: what a connection has exchanged since the last sample
    is lost when it closes. A replica opens a new one, for its watch, once per minute.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._last: dict[tuple[int, str], Bytes] = {}  # by process and local address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def total(self, pid: int) -> Bytes:
        self._sample()
        found = [each for (owner, _), each in [*self._last.items()] if owner == pid]
        return Bytes(sum(each.sent for each in found), sum(each.received for each in found))

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        command = ["ss", "-tinpHO", "state", "all", "dport", "=", f":{self._port}"]
        for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
            owner, local = re.search(r"pid=(\d+)", line), re.search(r"(\S+:\d+)\s+\S+:\d+", line)
            if owner is not None and local is not None:
                self._last[int(owner[1]), local[1]] = Bytes(
                    _counter(line, "bytes_sent"), _counter(line, "bytes_received")
                )


def _counter(line: str, name: str) -> int:
    found = re.search(rf"\b{name}:(\d+)", line)
    return 0 if found is None else int(found[1])


class Figures(NamedTuple):
    """Rates are per second, and of all replicas together."""

    replicas: int
    rates: dict[str, float]
    start_s: float  # until all replicas show all services Up
    behind_s: list[float]  # from the check that decides to the list of a replica, sorted

    def row(self) -> str:
        behind_ms = [self.behind_s[int(part * (len(self.behind_s) - 1))] * 1000 for part in (0.5, 0.9, 0.99, 1)]
        of_one = {name: rate / self.replicas for name, rate in self.rates.items()}
        cells = (
            f"{self.replicas}",
            f"{of_one['checks']:.0f}",
            f"{self.rates['received_checks']:.0f}",
            f"{self.rates['writes']:.1f}",
            f"{of_one['writes']:.2f}",
            f"{of_one['sent_bytes'] / 1000:.1f}",
            f"{of_one['received_bytes'] / 1000:.1f}",
            f"{of_one['cpu_s']:.0%}",
            f"{self.rates['etcd_cpu_s']:.1%}",
            f"{self.rates['db_bytes'] * 3600 / 1e6:.0f}",
            f"{self.start_s:.1f}",
            " / ".join(f"{each:.0f}" for each in behind_ms),
        )
        return f"| {' | '.join(cells)} |"


HEADER = (
    "| replicas | checks/s of a replica | checks/s of all | etcd writes/s of all | writes/s of a replica "
    "| sent kB/s of a replica | received kB/s of a replica | CPU of a replica | CPU of etcd | database MB/h "
    "| start s | lists behind, ms: 50 / 90 / 99 / 100 % |\n|" + "---|" * 12
)


def cpu_s(pid: int) -> float:
    """User and system time of all threads."""
    return time.clock_gettime(~pid << 3 | 2)  # the clock id of clock_getcpuclockid(3)


def measure(folder: Path, replicas: int, services: int, seconds: float, changes: int) -> Figures:
    with CountingBackends() as backends, EtcdServer(folder / "etcd", flags=LARGE) as etcd:
        file = {f"s-{number}": {"probe": backends.url(f"s-{number}")} for number in range(services)}
        started_s = time.monotonic()
        with (
            Replicas(folder, etcd.url, [file] * replicas, SETTINGS) as running,
            ConnectionBytes(etcd.port) as exchanged,
        ):
            running.wait_until_started()
            wait_until(lambda: all(replica.health() == 200 for replica in running), "all services are Up", START_S)
            start_s = time.monotonic() - started_s
            time.sleep(SETTLE_S)
            before = read_totals(running, backends, etcd, exchanged)
            time.sleep(seconds)
            after = read_totals(running, backends, etcd, exchanged)
            behind_s = [each for _ in range(changes) for each in change(running.all, backends, services)]
        elapsed_s = after["at_s"] - before["at_s"]
        rates = {name: (total - before[name]) / elapsed_s for name, total in after.items()}
        return Figures(replicas, rates, start_s, sorted(behind_s))


def read_totals(
    replicas: Replicas, backends: CountingBackends, etcd: EtcdServer, exchanged: ConnectionBytes
) -> dict[str, float]:
    """Counters at one moment."""
    assert etcd.process is not None
    checks = sum(_checks(replica) for replica in replicas)
    code, status = etcd.call("/v3/maintenance/status")
    assert code == 200, status
    totals = [exchanged.total(replica.process.pid) for replica in replicas]
    return {
        "at_s": time.monotonic(),
        "checks": checks,
        "received_checks": backends.counts.total(),  # as the backends count
        "writes": int(status["header"]["revision"]),
        "db_bytes": int(status["dbSize"]),
        "sent_bytes": sum(total.sent for total in totals),
        "received_bytes": sum(total.received for total in totals),
        "cpu_s": sum(cpu_s(replica.process.pid) for replica in replicas),
        "etcd_cpu_s": cpu_s(etcd.process.pid),
    }


def _checks(replica: Replica) -> int:
    text = replica.ask("/metrics").body.decode()
    return sum(map(int, re.findall(r"^svcnode_check_duration_seconds_count\{.*\} (\d+)", text, re.MULTILINE)))


# ---- status changes


def change(replicas: Sequence[Replica], backends: Backends, services: int) -> list[float]:
    """Let a backend fail, and work again; how long after the check that decides each replica shows it, of both."""
    service_id = f"s-{random.randrange(services)}"
    time.sleep(random.random())  # at any time in the second of the records of evidence
    backends.failing.add(service_id)
    down_s = _delays_s(replicas, backends, service_id, 503)
    backends.failing.discard(service_id)
    return down_s + _delays_s(replicas, backends, service_id, 200)


def _delays_s(replicas: Sequence[Replica], backends: Backends, service_id: str, code: int) -> list[float]:
    shown_s: list[float] = []
    threads = [threading.Thread(target=_wait_for, args=(replica, service_id, code, shown_s)) for replica in replicas]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(shown_s) == len(replicas), f"{service_id} is not {code} everywhere within {CHANGE_S:g} s"
    first_s = min(shown_s)
    decided_s = max(checked_s for checked_s in backends.checks_s[service_id] if checked_s < first_s)
    return [each - decided_s for each in shown_s]


def _wait_for(replica: Replica, service_id: str, code: int, shown_s: list[float]) -> None:
    deadline_s = time.monotonic() + CHANGE_S
    with connect_unix(replica.folder / "n.sock") as client:
        while time.monotonic() < deadline_s:
            if _code(client, service_id) == code:
                shown_s.append(time.monotonic())
                return
            time.sleep(POLL_S)


def _code(client: Client, service_id: str) -> int:
    return client.request(f"/svc/node/services/{service_id}/health").code


# ---- takeover


class Takeover(NamedTuple):
    changes: int  # of a status, on the replicas that went on
    slowest_health_s: float
    view_s: dict[str, float]  # how long an operator waits
    cpu: float  # of a replica
    etcd_cpu: float
    memory_bytes: float  # of a replica
    writes: float  # per second, of all replicas

    def row(self) -> str:
        views = " / ".join(f"{seconds:.2f}" for seconds in self.view_s.values())
        cost = f"{self.cpu:.0%} | {self.etcd_cpu:.0%} | {self.memory_bytes / 1e6:.0f} | {self.writes:.1f}"
        return f"| {self.changes} | {self.slowest_health_s * 1000:.0f} | {views} | {cost} |"


TAKEOVER_HEADER = (
    "| status changes | slowest health, ms | details / page / registry show, s | CPU of a replica | CPU of etcd "
    "| memory of a replica, MB | writes/s of all |\n|" + "---|" * 7
)


def measure_takeover(folder: Path, services: int) -> Takeover:
    """Three replicas have all services in their files, a fourth one has none, and takes its part of the checks."""
    with CountingBackends() as backends, EtcdServer(folder / "etcd", flags=LARGE) as etcd:
        file = {f"s-{number}": {"probe": backends.url(f"s-{number}")} for number in range(services)}
        with (
            Replicas(folder, etcd.url, [{}, file, file, file], TAKEOVER_SETTINGS) as running,
            ConnectionBytes(etcd.port) as exchanged,
        ):
            running.wait_until_started()
            wait_until(lambda: all(replica.health() == 200 for replica in running), "all services are Up", START_S)
            time.sleep(RESTART_S + SETTLE_S)  # until each service is checked by one replica
            before = read_totals(running, backends, etcd, exchanged)
            time.sleep(SETTLE_S)
            after = read_totals(running, backends, etcd, exchanged)
            elapsed_s = after["at_s"] - before["at_s"]
            memory = [memory_bytes(replica.process.pid, "VmRSS") for replica in running]
            view_s = {name: _duration_s(view) for name, view in _views(running[0], etcd).items()}
            lines = [len(replica.lines) for replica in running]
            slowest_s = _kill_and_restart(running)
            going_on = [0, 1, 2]
            return Takeover(
                sum(len(running[index].status_changes(lines[index])) for index in going_on),
                slowest_s,
                view_s,
                (after["cpu_s"] - before["cpu_s"]) / elapsed_s / len(running.all),
                (after["etcd_cpu_s"] - before["etcd_cpu_s"]) / elapsed_s,
                sum(memory) / len(memory),
                (after["writes"] - before["writes"]) / elapsed_s,
            )


def _views(replica: Replica, etcd: EtcdServer) -> dict[str, Callable[[], object]]:
    command = [sys.executable, "-m", "svcnode", "registry", "show", "--registry", etcd.url]
    return {
        "details": lambda: replica.ask("/details"),
        "page": lambda: replica.ask("/"),
        "registry show": lambda: subprocess.run(command, check=True, capture_output=True),
    }


def _duration_s(view: Callable[[], object]) -> float:
    started_s = time.monotonic()
    view()
    return time.monotonic() - started_s


def _kill_and_restart(running: Replicas) -> float:
    """The last one. Returns the slowest health of the others meanwhile."""
    running[3].process.kill()
    killed_s, is_started, slowest_s = time.monotonic(), False, 0.0
    while (passed_s := time.monotonic() - killed_s) < TAKEOVER_S:
        if not is_started and passed_s >= RESTART_S:
            running.start_again(3)
            is_started = True
        slowest_s = max(slowest_s, *(_duration_s(running[index].health) for index in (0, 1, 2)))
        time.sleep(0.05)
    return slowest_s


# ---- the steps whose cost grows

ROOT = node_root("/svcnode", "n")
WRITTEN = Written(1, 0.0)
COST_REPLICAS, COST_SERVICES = 100, 2_000
OPTIONS = {"probe": "http://10.0.0.7:8080/health", "interval": "1s"}


class Cost(NamedTuple):
    step: str
    seconds: float  # of one service, key or state


def step_costs() -> Iterator[Cost]:
    """In one process, without etcd."""
    ids = [f"service-{number}" for number in range(COST_SERVICES)]
    replicas = [f"host-{number}" for number in range(COST_REPLICAS)]
    document = service_document(ids[0], OPTIONS, 0)
    shared = [SharedService(service_id, document, ("replica:host-0",), (1, 0)) for service_id in ids]
    yield Cost(f"choose the observer among {COST_REPLICAS} replicas, per service", _best_s(_choose, shared, replicas))
    choices = [choose_observers(service, replicas[1:]) for service in shared]
    yield Cost("choose it again with one more replica, per service", _best_s(_choose_again, shared, replicas, choices))
    document = service_document(ids[0], {**OPTIONS, "checked_by": ["host-0"]}, 0)
    definitions = [_kv(KeyKind.SERVICES, (service_id, "replica:host-0"), document) for service_id in ids]
    yield Cost("read a definition", _best_s(_read, definitions))
    state = StateDocument(Status.UP, "", "ok", 0.5, 0.5, document.source, WRITTEN)
    states = [_kv(KeyKind.STATES, ("host-0", service_id), state) for service_id in ids]
    yield Cost("read a state", _best_s(_read, states))
    yield Cost("compose a record of evidence, per state", _best_s(_compose, ids))
    view = RegistryView(ROOT, lambda _: 0.0)
    view.replace_all([_kv(KeyKind.REPLICAS, ("host-0",), ReplicaDocument("", "", "")), *definitions, *states])
    record = _kv(KeyKind.EVIDENCE, ("host-0",), evidence_document(dict.fromkeys(ids, (Status.UP, 0.5)), WRITTEN))
    yield Cost(f"apply a record of evidence about {COST_SERVICES} states", _best_s(_renew, view, record, count(3)))
    assert view.unmatched_records == 0
    yield Cost("pass the evidence of another replica on to the node, per service", _renewal_s(view, ids))


def _kv(kind: KeyKind, names: tuple[str, ...], document: RegistryDocument) -> KeyValue:
    return KeyValue(encode_key(ROOT, kind, *names), encode_document(document), 2, 2, 1)


def _choose(shared: Sequence[SharedService], replicas: Sequence[str]) -> None:
    for service in shared:
        choose_observers(service, replicas)


def _choose_again(shared: Sequence[SharedService], replicas: Sequence[str], choices: Sequence[ObserverChoice]) -> None:
    for service, choice in zip(shared, choices, strict=True):
        choose_observers(service, replicas, choice)


def _renewal_s(view: RegistryView, ids: Sequence[str]) -> float:
    node = make_node("n", version="v1", clock=lambda: 0.0)
    services = SharedServices(node, view, "host-1", default_observers=1, on_change=lambda: None)
    asyncio.run(services.update(view.take_changes()))
    assert all(state.status is Status.UP for _, state in node), "the node has the states of the other replica"
    return _best_s(services._sync.merge, ids)


def _read(kvs: Sequence[KeyValue]) -> None:
    RegistryView(ROOT, lambda _: 0.0).replace_all(kvs)


def _compose(ids: Sequence[str]) -> None:
    encode_document(evidence_document(dict.fromkeys(ids, (Status.UP, 0.5)), WRITTEN))


def _renew(view: RegistryView, record: KeyValue, revisions: Iterator[int]) -> None:
    for revision in islice(revisions, COST_SERVICES):
        view.apply(Event(record.key, revision, record._replace(mod_revision=revision)))


def _best_s(function: Callable[..., None], *arguments: Any) -> float:
    """Processor time of one of the COST_SERVICES parts, in the best of three runs."""
    times_s = []
    for _ in range(3):
        start_s = time.process_time()
        function(*arguments)
        times_s.append(time.process_time() - start_s)
    return min(times_s) / COST_SERVICES


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.scale", description=__doc__)
    parser.add_argument("--replicas", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--services", type=int, default=2_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="a replica compares all keys once per minute")
    parser.add_argument("--changes", type=int, default=50)
    parser.add_argument("--takeover", type=int, default=0, metavar="ROUNDS", help="only this, so many times")
    arguments = parser.parse_args()
    if arguments.takeover:
        print(f"{arguments.services} services, {machine()}\n\n{TAKEOVER_HEADER}", flush=True)
        for _ in range(arguments.takeover):
            with campaign_folder() as folder:
                print(measure_takeover(folder, arguments.services).row(), flush=True)
        return 0
    print(f"{arguments.services} services, {machine()}\n\n{HEADER}", flush=True)
    with campaign_folder() as folder:
        for replicas in arguments.replicas:
            figures = measure(
                folder / str(replicas), replicas, arguments.services, arguments.seconds, arguments.changes
            )
            print(figures.row(), flush=True)
    print("\n| step | µs of processor time |\n|---|---|")
    for cost in step_costs():
        print(f"| {cost.step} | {cost.seconds * 1e6:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
