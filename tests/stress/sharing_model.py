"""Random faults in a node with several replicas, in virtual time.

`python -m tests.stress.sharing_model` runs 30 minutes per seed. Replicas are killed, stopped, suspended, cut off from
etcd in one or both directions, or from the backends; etcd is slow, suspended, stopped, full, compacted, restored from
an old snapshot, or wiped, or denies access; backends go down; services are registered, changed and removed, and lost
ones are accepted. Replicas start from the cache of their last view. At every step:

* No node says that a service is Up if no check, or no report, of the last `stale_after` seconds succeeded.
* A replica that drains with all others does so until somebody ends it.

At the end of each round all faults end. Then, within `SETTLE_S`:

* All replicas have the same list, and it has every service that a replica or a client has registered, and no other.
  Nothing is forgotten: what a client has registered is there, whatever etcd has lost, as long as one replica has known
  it all the time, in memory or on its disk.
* What etcd has lost, and nobody has registered again, is marked, and no node is healthy.
* All replicas drain, or none does, as etcd says.
* All statuses are true, and each service is checked by as many replicas as it says.
* What a job has reported last to its replica is the status on all replicas, if that process has not ended since.

Then one replica is killed, stopped or suspended for a while, and nothing else fails. On all replicas that are
connected:

* What is Down, with a backend that stays down, is Down all the time.
* What reports is not Down, if another replica can receive its reports meanwhile.
"""

# ruff: noqa: T201  a command-line program

from __future__ import annotations

import logging
import random
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Health, Status, Verdict
from svcnode.net.etcd_json import Delete, Put
from svcnode.node.overrides import ALL_REPLICAS
from svcnode.sharing.format import (
    KeyKind,
    ParsedEntry,
    ServiceDocument,
    WorkDocument,
    encode_document,
    encode_key,
    is_lost,
    lost_owner,
    parse_entry,
    parse_key,
    replica_of,
)
from tests.stress.campaigns import campaign_parser
from tests.support.etcd_simulation import DELAY_S
from tests.support.replica_simulation import ROOT, MemoryCache, Options, Process, Simulation, simulated_probes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

REPLICAS = ("a", "b", "c", "d")
CHECKED_IDS = tuple(f"s{number}" for number in range(8))
REPORTED_IDS = ("h0", "h1")  # to a replica
JOB_IDS = {name: f"job-{name}" for name in REPLICAS}  # each reports to its replica, now and then
CLIENT_ID, CLIENT = "c0", "client"  # reported by a client, to etcd
DRAIN_KEY = encode_key(ROOT, KeyKind.DRAINS, "all")
ROUND_S = 90.0
SETTLE_S = 60.0
BEAT_S = 2.0
TTL_S = 8.0
JOB_TTL_S = 1e5
STALE_AFTER_S = 7.0
START_PERIOD_S = 20.0
MAX_STEP_S = 4.0
REPORTS = {
    Verdict.ready(code=ReasonCode.REPORTED): Status.UP,
    Verdict.not_ready("starting", code=ReasonCode.REPORTED): Status.INITIALIZING,
    Verdict.failed("no disk", code=ReasonCode.REPORTED): Status.DOWN,
}
MAX_AWAY_S = 15.0  # of the replica that is restarted, or suspended, while nothing else fails


class Model:
    """The replicas, and what is true of the services."""

    def __init__(self, seed: int) -> None:
        random.seed(seed)  # the delays between attempts
        self.rng = random.Random(seed)
        self.simulation = Simulation(seed)
        self.simulation.after_step = self.check_safety
        self.counts = Counter[str](lost=0, accepted=0)
        self.own: dict[str, dict[str, Options]] = {name: {} for name in REPLICAS}
        self.caches = {name: MemoryCache() for name in REPLICAS}
        self.of_client: set[str] = {CLIENT_ID}  # services that it has registered
        self.unknown: set[str] = set()  # of them, those that no replica knew at some time
        self.unread: set[str] = set()  # of them, those that no replica has read since they were registered
        self.clock_s = {name: self.rng.uniform(0, 1e6) for name in REPLICAS}
        self.silent: set[str] = set()  # services that send no reports
        self.beat_s: dict[str, float] = {}
        self.simulation.define(CLIENT_ID, CLIENT, ttl=f"{TTL_S:g}s")
        self.snapshot = self.simulation.etcd.snapshot()
        self.next_beat_s = 0.0
        self.told: dict[str, tuple[Process, Status]] = {}  # what each job has reported last, and to whom
        self.drain_reason = ""  # of the drain of all replicas that was asked for last; "" if there may be none
        self.draining: set[Process] = set()  # because of it
        self.staying_down: set[str] = set()  # services, while only one replica fails
        self.not_silent: set[str] = set()  # likewise
        for name in REPLICAS:
            self.own[name]["shared"] = self.checked_options("shared")
            self.own[name][JOB_IDS[name]] = self.options(JOB_IDS[name])
        for name in REPLICAS:
            self.start(name)
        self.faults: tuple[Callable[[], None], ...] = (
            self.kill,
            self.stop,
            self.restart,
            self.restart,
            self.suspend,
            self.resume,
            self.cut,
            self.cut,
            self.reconnect,
            self.slow,
            self.change_backend,
            self.change_backend,
            self.end_all,
            self.end_all,
            self.isolate,
            self.silence,
            self.report,
            self.report,
            self.add,
            self.add,
            self.redefine,
            self.remove,
            self.define,
            self.undefine,
            self.drain_all,
            self.change_etcd,
            self.restore,
            self.wipe,
            self.accept,
            self.compact,
        )

    # ---- the run

    def run(self, duration_s: float) -> None:
        while self.simulation.now_s < duration_s:
            end_s = self.simulation.now_s + ROUND_S
            while self.simulation.now_s < end_s:
                fault = self.rng.choice(self.faults)
                self.counts[fault.__name__] += 1
                fault()
                self.wait(self.rng.uniform(0, MAX_STEP_S))
            self.heal()
            self.wait(SETTLE_S)
            self.check_convergence()
            self.lose_one()
            self.counts["rounds"] += 1

    def wait(self, duration_s: float) -> None:
        end_s = self.simulation.now_s + duration_s
        while self.next_beat_s <= end_s:
            self.simulation.run_for(max(0.0, self.next_beat_s - self.simulation.now_s))
            self.send_beats()
            self.next_beat_s += BEAT_S
        self.simulation.run_for(end_s - self.simulation.now_s)

    def send_beats(self) -> None:
        for service_id in REPORTED_IDS:
            receivers = [process for process in self.running() if service_id in process.services]
            if receivers and service_id not in self.silent:
                self.beat_s[service_id] = self.simulation.now_s
                self.rng.choice(receivers).beat(service_id)
        etcd = self.simulation.etcd
        if etcd.is_running and not (etcd.is_suspended or etcd.is_full or etcd.denied or CLIENT_ID in self.silent):
            self.beat_s[CLIENT_ID] = self.simulation.now_s
            self.simulation.report(CLIENT_ID, CLIENT)

    def alive(self) -> list[Process]:
        return [process for process in self.simulation.processes.values() if process.is_alive]

    def running(self) -> list[Process]:
        return [process for process in self.alive() if not process.is_suspended]

    # ---- faults of replicas

    def start(self, name: str) -> None:
        self.simulation.start(name, dict(self.own[name]), clock_s=self.clock_s[name], cache=self.caches[name])

    def kill(self) -> None:
        if len(self.alive()) > 1:
            self.rng.choice(self.alive()).kill()

    def stop(self) -> None:
        if len(self.running()) > 1:
            process = self.rng.choice(self.running())
            process.stop()
            self.wait(self.rng.uniform(0, 3))
            process.kill()

    def restart(self) -> None:
        for process in list(self.simulation.processes.values()):
            if not process.is_alive:
                self.clock_s[process.name] = self.rng.uniform(0, 1e6)  # a new machine
                self.start(process.name)
                return

    def suspend(self) -> None:
        if self.running():
            self.rng.choice(self.running()).suspend()

    def resume(self) -> None:
        for process in self.alive():
            if process.is_suspended:
                process.resume()
                return

    def cut(self) -> None:
        client = self.rng.choice(self.alive()).client
        for channel in self.rng.choice([[client.requests], [client.responses], [client.requests, client.responses]]):
            channel.is_cut = True

    def reconnect(self) -> None:
        self.rng.choice(self.alive()).client.reconnect()

    def slow(self) -> None:
        """All or one; messages in one direction may take longer than the time limit of a request."""
        delay_s = self.rng.choice([DELAY_S, 0.3, 0.8, 2.5, 6.0])
        chosen = self.alive() if self.rng.random() < 0.3 else [self.rng.choice(self.alive())]
        for process in chosen:
            self.rng.choice([process.client.requests, process.client.responses]).delay_s = delay_s

    def isolate(self) -> None:
        process = self.rng.choice(self.alive())
        process.reaches_backends = not process.reaches_backends

    def lose_one(self) -> None:
        """For a while, as in an upgrade. The judge looks at what it does to the statuses."""
        self.staying_down = self.staying_down_ids()
        received_twice = [id_ for id_ in REPORTED_IDS if sum(id_ in own for own in self.own.values()) > 1]
        self.not_silent = {*received_twice, CLIENT_ID}.intersection(self.registered()) - self.silent
        process = self.rng.choice(self.alive())
        match self.rng.randrange(3):
            case 0:
                process.kill()
            case 1:
                process.stop()
                self.wait(self.rng.uniform(0, 3))
                process.kill()
            case _:
                process.suspend()
        self.wait(self.rng.uniform(0, MAX_AWAY_S))
        if process.is_alive:
            process.resume()
        else:
            self.start(process.name)
        self.wait(MAX_AWAY_S)
        self.staying_down, self.not_silent = set(), set()

    def staying_down_ids(self) -> set[str]:
        """All owners define them with the same probe: the definition of a replica that starts may be shown next."""
        probes: dict[str, set[str]] = {}
        for key, kv in self.simulation.etcd.kvs.items():
            entry = parse_entry(ROOT, key, kv.value, has_lease=kv.lease_id != 0)
            if isinstance(entry, ParsedEntry) and isinstance(entry.document, ServiceDocument):
                probes.setdefault(entry.key.names[0], set()).add(str(entry.document.options.get("probe", "")))
        down = {f"sim://{backend}" for backend in self.simulation.down}
        return {service_id for service_id, used in probes.items() if len(used) == 1 and used <= down}

    # ---- backends

    def change_backend(self) -> None:
        self.simulation.down ^= {self.rng.choice([*CHECKED_IDS, "shared"])}

    def end_all(self) -> None:
        """All backends fail together with one replica, or with its link: the others know only the last success."""
        before = set(self.simulation.down)
        self.simulation.down.update(name for service_id in (*CHECKED_IDS, "shared") for name in _backends(service_id))
        self.rng.choice([self.kill, self.suspend, self.cut, self.slow, self.restore])()
        self.wait(self.rng.uniform(0, 2 * STALE_AFTER_S))
        self.simulation.down = before

    def silence(self) -> None:
        self.silent ^= {self.rng.choice([*REPORTED_IDS, CLIENT_ID])}

    def report(self) -> None:
        if self.running():
            process, verdict = self.rng.choice(self.running()), self.rng.choice(list(REPORTS))
            service_id = JOB_IDS[process.name]
            self.told[service_id] = process, REPORTS[verdict]
            process.report(service_id, verdict)

    # ---- services

    def checked_options(self, service_id: str) -> Options:
        options: Options = {
            "probe": f"sim://{self.rng.choice(_backends(service_id))}",
            "interval": "2s",
            "stale_after": f"{STALE_AFTER_S:g}s",
            "start_period": self.rng.choice(["0s", f"{START_PERIOD_S:g}s"]),
            "tolerance": "off",
            "name": f"name {self.rng.randrange(3)}",
        }
        if self.rng.random() < 0.4:
            options["observers"] = 3
        elif self.rng.random() < 0.2:
            options["checked_by"] = self.rng.sample(REPLICAS, 2)
        return options

    def options(self, service_id: str) -> Options:
        is_reported = service_id in (*REPORTED_IDS, *JOB_IDS.values())
        return {"ttl": f"{self.valid_s(service_id):g}s"} if is_reported else self.checked_options(service_id)

    def add(self) -> None:
        """On the control socket, or in the file of a replica."""
        if self.running():
            process, service_id = self.rng.choice(self.running()), self.rng.choice([*CHECKED_IDS, *REPORTED_IDS])
            if service_id not in self.own[process.name]:
                options = self.own[process.name][service_id] = self.options(service_id)
                process.add(service_id, **options)

    def redefine(self) -> None:
        for process in self.running():
            own = self.own[process.name]
            if own:
                service_id = self.rng.choice(list(own))
                own[service_id] = self.options(service_id)
                process.redefine(service_id, **own[service_id])
                return

    def remove(self) -> None:
        for process in self.rng.sample(self.running(), len(self.running())):
            own = self.own[process.name]
            removable = [service_id for service_id in own if service_id != JOB_IDS[process.name]]
            if removable:
                service_id = self.rng.choice(removable)
                del own[service_id]
                process.deregister(service_id)
                return

    def define(self) -> None:
        etcd = self.simulation.etcd
        if etcd.is_running and not (etcd.is_full or etcd.denied):
            service_id = self.rng.choice(CHECKED_IDS)
            self.simulation.define(service_id, CLIENT, **self.checked_options(service_id))
            self.of_client.add(service_id)
            self.unknown.discard(service_id)
            self.unread.add(service_id)
            self.wait(1)  # so that replicas know it, if they can

    def undefine(self) -> None:
        etcd = self.simulation.etcd
        if etcd.is_running and not etcd.denied:
            service_id = self.rng.choice(CHECKED_IDS)
            for owner in (CLIENT, lost_owner(CLIENT)):
                self.simulation.undefine(service_id, owner)
            self.of_client.discard(service_id)

    def drain_all(self) -> None:
        """Or end it."""
        etcd = self.simulation.etcd
        if etcd.is_running and not (etcd.is_full or etcd.denied):
            is_draining, self.draining = bool(self.drain_reason), set()
            self.drain_reason = "" if is_draining else f"drain {self.simulation.now_s}"
            document = encode_document(WorkDocument("", CLIENT, self.drain_reason))
            self.simulation.write(Delete(DRAIN_KEY) if is_draining else Put(DRAIN_KEY, document))

    # ---- etcd

    def change_etcd(self) -> None:
        etcd = self.simulation.etcd
        match self.rng.randrange(5):
            case 0:
                etcd.start() if not etcd.is_running else etcd.stop()
            case 1:
                etcd.resume() if etcd.is_suspended else etcd.suspend()
            case 2:
                etcd.is_full = not etcd.is_full
            case 3:
                etcd.denied ^= {self.rng.choice(["read", "write"])}
            case _:
                self.snapshot = etcd.snapshot()

    def restore(self) -> None:
        if self.rng.random() < 0.3:
            self.simulation.etcd.stop()
            self.simulation.etcd.start(self.snapshot)
            self.drain_reason, self.draining = "", set()  # it may be lost with the replicas that knew it

    def wipe(self) -> None:
        if self.rng.random() < 0.3:
            self.simulation.etcd.wipe(is_other_cluster=self.rng.random() < 0.5)
            self.drain_reason, self.draining = "", set()  # it may be lost with the replicas that knew it

    def accept(self) -> None:
        """Of the services that are lost, one may go."""
        etcd = self.simulation.etcd
        lost = [service_id for service_id, owners in self.owners().items() if all(map(is_lost, owners))]
        if lost and etcd.is_running and not etcd.denied and self.rng.random() < 0.3:
            service_id = self.rng.choice(lost)
            for owner in self.owners()[service_id]:
                self.simulation.undefine(service_id, owner)
            self.of_client.discard(service_id)
            self.counts["accepted"] += 1

    def compact(self) -> None:
        self.simulation.etcd.compact()

    def heal(self) -> None:
        etcd = self.simulation.etcd
        if not etcd.is_running:
            etcd.start()
        etcd.is_full = False
        etcd.denied.clear()
        etcd.resume()
        for process in list(self.simulation.processes.values()):
            if not process.is_alive:
                self.start(process.name)
        for process in self.simulation.processes.values():
            process.resume()
            process.reaches_backends = True
            process.client.reconnect()
            process.client.requests.delay_s = process.client.responses.delay_s = DELAY_S

    # ---- what must be true

    def check_safety(self) -> None:
        now_s = self.simulation.now_s
        for process in self.alive():
            self.unread -= process.replica._follower.view.definitions(CLIENT).keys()
        for service_id in self.of_client - self.unknown:
            is_known = any(service_id in process.node for process in self.alive())
            if not is_known and not any(service_id in cache.ids for cache in self.caches.values()):
                self.unknown.add(service_id)
        for process in self.running():
            self.check_drain(process)
            self.check_lost_one(process)
            for service, state in process.node:
                if state.status is Status.UP:
                    self.counts["up"] += 1
                    age_s, valid_s = now_s - self.last_success_s(service.id), self.valid_s(service.id)
                    assert age_s < valid_s, f"{now_s}: {process.name} says {service.id} is Up after {age_s} s; {state}"

    def check_lost_one(self, process: Process) -> None:
        if process.replica.is_connected:
            for service_id in self.staying_down | self.not_silent:
                self.counts["kept"] += 1
                state = process.node.state(service_id)
                is_right = (state.status is Status.DOWN) is (service_id in self.staying_down)
                assert is_right, f"{self.simulation.now_s}: {process.name}: {service_id} {state}"

    def check_drain(self, process: Process) -> None:
        if self.drain_reason and self.drain_reason in process.node.overrides.drains.get(ALL_REPLICAS, ""):
            self.counts["draining"] += 1
            self.draining.add(process)
        assert process not in self.draining or process.health() is Health.UNHEALTHY, (
            f"{self.simulation.now_s}: {process.name} no longer drains"
        )

    def valid_s(self, service_id: str) -> float:
        if service_id in JOB_IDS.values():
            return JOB_TTL_S
        return TTL_S if service_id in (*REPORTED_IDS, CLIENT_ID) else STALE_AFTER_S

    def last_success_s(self, service_id: str) -> float:
        if service_id in JOB_IDS.values():
            return self.simulation.now_s  # judged by what it has reported, when all faults have ended
        if service_id in (*REPORTED_IDS, CLIENT_ID):
            return self.beat_s.get(service_id, float("-inf"))
        success_s = self.simulation.success_s
        return max(success_s.get(name, float("-inf")) for name in _backends(service_id))

    def registered(self) -> dict[str, Any]:
        """The services, by id, as etcd has them; it has all that clients have written and it has not lost."""
        found: dict[str, Any] = {}
        for key, kv in sorted(self.simulation.etcd.kvs.items(), key=lambda item: item[1].mod_revision):
            entry = parse_entry(ROOT, key, kv.value, has_lease=kv.lease_id != 0)
            if isinstance(entry, ParsedEntry) and entry.key.kind is KeyKind.SERVICES:
                if entry.key.names[0] not in found or not is_lost(entry.key.names[1]):
                    found[entry.key.names[0]] = entry.document
                owner = replica_of(entry.key.names[1])
                assert owner is None or entry.key.names[0] in self.own[owner], f"not removed: {entry.key.names}"
        own = {service_id for services in self.own.values() for service_id in services}
        assert own <= found.keys(), f"lost: {own - found.keys()}"
        return found

    def owners(self) -> dict[str, list[str]]:
        """Of the services in etcd, by id."""
        found: dict[str, list[str]] = {}
        for key in self.simulation.etcd.kvs:
            parsed = parse_key(ROOT, key)
            if parsed is not None and parsed.kind is KeyKind.SERVICES:
                found.setdefault(parsed.names[0], []).append(parsed.names[1])
        return found

    def check_nothing_forgotten(self, registered: Collection[str]) -> None:
        forgotten = self.of_client - self.unknown - self.unread - {*registered}
        assert not forgotten, f"{self.simulation.now_s}: forgotten: {forgotten}"
        self.of_client &= {*registered}
        lost = {service_id for service_id, owners in self.owners().items() if all(map(is_lost, owners))}
        self.counts["lost"] += len(lost)
        for service_id, owners in self.owners().items():
            back = {lost_owner(owner) for owner in owners if not is_lost(owner)}
            assert not back.intersection(owners), f"not lost: {service_id} {owners}"
        for process in self.alive():
            assert {*process.replica.lost.services} == lost, f"{process.name}: {process.replica.lost}; {lost}"
            assert not (lost and process.health() is Health.HEALTHY), f"{process.name}: healthy without {lost}"

    def check_convergence(self) -> None:
        registered = self.registered()
        self.check_nothing_forgotten(registered)
        processes = self.alive()
        where = f"{self.simulation.now_s}: "
        for process in processes:
            assert not process.replica.problem, f"{where}{process.name}: {process.replica.problem}"
            is_draining = ALL_REPLICAS in process.node.overrides.drains
            assert is_draining is (DRAIN_KEY in self.simulation.etcd.kvs), f"{where}{process.name}: {is_draining}"
            assert process.ids() == processes[0].ids(), f"{where}{process.name} {process.ids()}; {processes[0].ids()}"
            assert set(process.ids()) == registered.keys(), f"{where}{process.name}: {process.ids()}"
            for service, state in process.node:
                expected = self.expected_status(service.id, registered[service.id])
                assert state.status is (expected or state.status), (
                    f"{where}{process.name}: {service.id} is not {expected}; {state}"
                )
        for service_id, document in registered.items():
            checking = [process.name for process in processes if service_id in process.checked()]
            assert len(checking) == (document.observers if document.is_checked else 0), (
                f"{where}{service_id} {checking}"
            )

    def expected_status(self, service_id: str, document: Any) -> Status | None:
        """None: it may have any."""
        if service_id in JOB_IDS.values():
            process, status = self.told.get(service_id, (None, None))
            return status if process is not None and process.is_alive else None
        if service_id in (*REPORTED_IDS, CLIENT_ID):
            return Status.DOWN if service_id in self.silent else Status.UP
        backend = document.options["probe"].removeprefix("sim://")
        return Status.DOWN if backend in self.simulation.down else Status.UP


def _backends(service_id: str) -> tuple[str, str]:
    """Between which the probe of a service changes."""
    return service_id, f"{service_id}-new"


class _ErrorHandler(logging.Handler):
    """An error in the log is a failure of the run."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


def run_campaign(seed: int, duration_s: float) -> Counter[str]:
    """Raises AssertionError at the first difference."""
    handler = _ErrorHandler()
    logger = logging.getLogger("svcnode")
    logger.addHandler(handler)
    try:
        with simulated_probes():
            model = Model(seed)
            try:
                model.run(duration_s)
            finally:
                model.simulation.close()
    finally:
        logger.removeHandler(handler)
    assert not handler.texts, handler.texts[0]
    return model.counts


def main() -> int:
    parser = campaign_parser("sharing_model", __doc__, minutes=30.0, seeds=10)  # virtual minutes, per seed
    arguments = parser.parse_args()
    for seed in range(arguments.seed, arguments.seed + arguments.seeds):
        print(f"seed {seed}: ", end="", flush=True)
        started_s = time.monotonic()
        counts = run_campaign(seed, 60 * arguments.minutes)
        rounds, ups, lost, accepted = (counts.pop(name) for name in ("rounds", "up", "lost", "accepted"))
        counts.pop("draining", 0)
        counts.pop("kept", 0)
        judged = f"{rounds} rounds, {ups} Up judged, {lost} lost services marked, {accepted} accepted, 0 forgotten"
        print(f"{counts.total()} faults, {judged}, in {time.monotonic() - started_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
