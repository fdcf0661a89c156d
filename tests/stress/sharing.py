"""Replicas of a node on real etcd, under changes, kills, outages, wipes and cuts: no false 200, nothing forgotten.

`python -m tests.stress.sharing` runs three `svcnode serve` processes, which share their services through etcd. A
sampler asks each of them all the time. The backends know when they have answered a check: a service that is Up, or a
node that is healthy, needs a check within `stale_after`. Prints a table; the scenarios with cuts need root.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from svcnode.core.units import parse_duration_s
from svcnode.sharing.replica import CACHE_DELAY_S, CACHE_INTERVAL_S, RESTORE_S
from tests.stress.campaigns import ScenarioReport, main_of_scenarios
from tests.support.network_namespace import run_in_namespace
from tests.support.processes import run_command
from tests.support.replica_network import HOST, ReplicaNetwork
from tests.support.replicas import NODE, PREFIX, SERVICES, Backends, RegistryKeys, Replicas, Sampler
from tests.support.servers.base import wait_until
from tests.support.servers.etcd import EtcdCluster, EtcdServer

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from svcnode.control.types import ReportedStatus
    from tests.support.network_namespace import NetworkNamespace
    from tests.support.processes import Response
    from tests.support.replicas import Options, Replica, StatusChange

NAMES = ("host-1", "host-2", "host-3")
CHANGE_S = 1.0  # within which all replicas show a change
TAKEOVER_S = 2.0  # after the end of a lease
VALID_S = 6.0  # how long evidence is valid; a busy machine checks late
LONG_VALID_S = 30.0  # longer than a takeover takes
SLOW_S = 10  # how long etcd is stopped
CACHE_S = CACHE_DELAY_S + CACHE_INTERVAL_S + 1  # after which a change is in the cache, also of a replica that is killed
LARGE = {"quota-backend-bytes": 256 * 1024**2}  # each write leaves an old revision
UP, DOWN, INITIALIZING = "Up", "Down", "Initializing"
LOST, STALE, DISAGREE = "registry_lost", "stale", "observers_disagree"  # stale: taken over, and not checked yet
Statuses = dict[str, str]


class SharingReport(ScenarioReport):
    def expect_no_flaps(self, changes: Sequence[StatusChange], *, may_be_lost: bool) -> None:
        """No status of a healthy service changes, except while its evidence cannot come."""
        for change in changes:
            is_lost = change.status == INITIALIZING and change.code in (LOST, STALE)
            is_back = change.status == UP and change.previous == INITIALIZING
            self.expect(may_be_lost and (is_lost or is_back), f"flapped: {change}")


@dataclass(frozen=True)
class Run:
    """One scenario: `size` is the number of its rounds, or of seconds; `is_short` in the tests."""

    folder: Path
    report: SharingReport
    size: int
    is_short: bool
    rng: random.Random


@dataclass(frozen=True)
class Stage:
    """Three replicas on etcd, whose services are Up, and who asks them."""

    report: SharingReport
    backends: Backends
    etcd: EtcdServer
    keys: RegistryKeys
    replicas: Replicas
    sampler: Sampler
    up: Statuses

    def others(self, replica: Replica) -> list[Replica]:
        return [each for each in self.replicas if each is not replica]

    def checked_by(self, replica: Replica) -> list[str]:
        """The services that it checks, once each service is checked by one replica."""
        self.wait_until_shared()
        return sorted(self.keys.states(replica.name))

    def wait_until_shared(self) -> None:
        def states() -> list[str]:
            found = [self.keys.states(name) for name in NAMES]
            return sorted(id_ for each in found for id_ in each) if all(found) else []

        wait_until(lambda: states() == sorted(self.up), "each service is checked by one replica")

    def wait_until_lost(self) -> None:
        """Each service is Up for the replica that checks it, and not known to the others."""

        def is_lost() -> bool:
            found = [replica.statuses() for replica in self.replicas]
            return all(sorted(each[id_] for each in found) == [INITIALIZING, INITIALIZING, UP] for id_ in self.up)

        wait_until(is_lost, "states of others are lost")


def make_settings(lease_s: float, *, interval_s: float = 1) -> str:
    return (
        f'lease = "{lease_s}s"\n'
        f'[defaults]\ninterval = "{interval_s}s"\ntimeout = "{interval_s * 900:g}ms"\nstale_after = "{VALID_S}s"\n'
    )


def make_files(backends: Backends, count: int, **options: object) -> list[dict[str, Options]]:
    """The services of each replica: `count` in all."""
    files: list[dict[str, Options]] = [{} for _ in NAMES]
    for number in range(count):
        service_id = f"s-{number}"
        files[number % len(NAMES)][service_id] = {"probe": backends.url(service_id), **options}
    return files


@contextmanager
def started(
    run: Run,
    backends: Backends,
    etcd: EtcdServer,
    files: Sequence[Mapping[str, Options]],
    settings: str,
    *,
    registry: str = "",
    prefixes: Sequence[Sequence[str]] = (),
) -> Iterator[Stage]:
    """The end of the block adds what the sampler has found."""
    up = {service_id: UP for services in files for service_id in services}
    valid_s = {
        service_id: parse_duration_s(options.get("stale_after", VALID_S))
        for services in files
        for service_id, options in services.items()
    }
    with Replicas(run.folder, registry or etcd.url, files, settings, prefixes=prefixes) as replicas:
        replicas.wait_for(up)
        with Sampler(replicas, backends, valid_s) as sampler:
            yield Stage(run.report, backends, etcd, RegistryKeys(etcd), replicas, sampler, up)
    run.report.samples += sampler.samples
    run.report.problems += sampler.problems
    run.report.figures += f"; slowest answer {sampler.max_latency_s * 1000:.0f} ms"


@contextmanager
def on_one_etcd(run: Run, count: int, lease_s: float) -> Iterator[Stage]:
    """`count` services on an etcd of one member."""
    with Backends() as backends, EtcdServer(run.folder / "etcd", flags=LARGE) as etcd:
        files = make_files(backends, count)
        with started(run, backends, etcd, files, make_settings(lease_s)) as stage:
            yield stage


# ---- equal lists


class Change(NamedTuple):
    """What the lists must show of a service after it; None: the service is not there."""

    service_id: str
    field_name: str
    value: str | None
    is_seen_later: bool = False  # with the next check

    def is_shown(self, services: Sequence[Mapping[str, Any]]) -> bool:
        shown = (service[self.field_name] for service in services if service["id"] == self.service_id)
        return next(shown, None) == self.value


def _differences(lists: Sequence[Response]) -> list[Any]:
    """The services that are not the same in all lists."""
    services = [{service["id"]: service for service in each.json["services"]} for each in lists]
    ids = dict.fromkeys(service_id for each in services for service_id in each)
    found = [[each.get(service_id) for each in services] for service_id in ids]
    different = [each for each in found if each.count(each[0]) != len(each)]
    return different or [[*each] for each in services if [*each] != [*services[0]]]


class RandomChanges:
    """Makes changes of random kinds at random places, and waits until all replicas show each."""

    KINDS: Mapping[str, int] = {"file": 2, "control": 4, "etcd": 3, "report": 2, "backend": 1}

    def __init__(self, stage: Stage, rng: random.Random) -> None:
        self._stage, self._rng = stage, rng
        self._number = 0
        self.descriptions = dict.fromkeys(stage.up, "")  # that the lists must have
        self.delays_s: list[tuple[float, str]] = []  # with the kind

    def make(self) -> None:
        self._number += 1
        kind = self._rng.choices([*self.KINDS], [*self.KINDS.values()])[0]
        change: Change = getattr(self, f"_{kind}")()
        self.delays_s.append((self._wait(change), kind))

    def _wait(self, change: Change) -> float:
        """How long it took. A change of a backend counts from the first replica that shows it."""
        made_s, deadline_s = time.monotonic(), time.monotonic() + 30
        while True:
            lists = [replica.ask(SERVICES) for replica in self._stage.replicas]
            shown = [change.is_shown(each.json["services"]) for each in lists]
            now_s = time.monotonic()
            if all(shown) and len({each.body for each in lists}) == 1:
                return now_s - made_s
            if change.is_seen_later and not any(shown):
                made_s = now_s
            assert now_s < deadline_s, f"{change}: shown by {shown}; different: {_differences(lists)}"
            time.sleep(0.01)

    def _toggle(self, service_id: str) -> Options | None:
        """The new options of a service; half of the time, one that is there is deleted instead."""
        if service_id in self.descriptions and self._rng.random() < 0.5:
            del self.descriptions[service_id]
            return None
        self.descriptions[service_id] = f"change {self._number}"
        return {"probe": self._stage.backends.url(service_id), "description": self.descriptions[service_id]}

    def _described(self, service_id: str) -> Change:
        return Change(service_id, "description", self.descriptions.get(service_id))

    def _file(self) -> Change:
        replica = self._rng.choice(self._stage.replicas.all)
        service_id = f"file-{replica.name}-{self._rng.randrange(3)}"
        options = self._toggle(service_id)
        replica.services.pop(service_id, None)
        replica.services |= {} if options is None else {service_id: options}
        replica.reload(replica.config())
        return self._described(service_id)

    def _control(self) -> Change:
        replica = self._rng.choice(self._stage.replicas.all)
        service_id = f"control-{replica.name}-{self._rng.randrange(4)}"
        options = self._toggle(service_id)
        with replica.control() as client:
            client.deregister(service_id) if options is None else client.register(service_id, **options)
        return self._described(service_id)

    def _etcd(self) -> Change:
        service_id = f"etcd-{self._rng.randrange(12)}"
        options = self._toggle(service_id)
        if options is None:
            self._stage.keys.delete_service(service_id)
        else:
            self._stage.keys.put_service(service_id, options)
        return self._described(service_id)

    def _report(self) -> Change:
        replica = self._rng.choice(self._stage.replicas.all)
        service_id, status = f"job-{replica.name}", self._rng.choice((UP, INITIALIZING, DOWN))
        with replica.control() as client:
            if service_id not in self.descriptions:
                self.descriptions[service_id] = ""
                client.register(service_id, ttl="1h")
            client.beat(service_id, cast("ReportedStatus", status.lower()))
        return Change(service_id, "status", status)

    def _backend(self) -> Change:
        service_id, failing = f"s-{self._rng.randrange(50)}", self._stage.backends.failing
        failing ^= {service_id}
        return Change(service_id, "status", DOWN if service_id in failing else UP, is_seen_later=True)


def change(run: Run) -> None:
    """`size` random changes of 300 services: all three lists are equal soon after each, and identical at the end."""
    report = run.report
    with Backends() as backends, EtcdServer(run.folder / "etcd", flags=LARGE) as etcd:
        files = make_files(backends, 300, stale_after="12s")
        with started(run, backends, etcd, files, make_settings(4, interval_s=3)) as stage:
            changes = RandomChanges(stage, run.rng)
            for _ in range(run.size):
                changes.make()
            backends.failing.clear()
            wait_until(lambda: stage.up.items() <= stage.replicas[0].statuses().items(), "all work again")
            wait_until(stage.replicas.are_equal, "identical lists")
            shown = {id_: service["description"] for id_, service in stage.replicas[0].shown().items()}
            report.expect(shown == changes.descriptions, "services are lost, or were not removed")
    delays_s = sorted(changes.delays_s)
    late = [f"{kind} {delay_s:.1f} s" for delay_s, kind in delays_s if delay_s > CHANGE_S]
    report.expect(run.is_short or not late, f"changes took longer than {CHANGE_S:g} s: {late}")
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(kind for _, kind in delays_s).items()))
    median_ms, longest_ms = delays_s[len(delays_s) // 2][0] * 1000, delays_s[-1][0] * 1000
    times = f"equal after {median_ms:.0f} ms (median), {longest_ms:.0f} ms (longest)"
    report.figures = f"{run.size} changes ({kinds}); {times}{report.figures}"


# ---- replicas that end, or stop


def kill(run: Run) -> None:
    """kill -9 of a replica `size` times: others check its services after its lease, and none is Up for too long.

    Half of the services have evidence that ends before the lease. A quarter of the backends fails with the replica.
    """
    lease_s = 8.0
    takeovers_s: list[float] = []
    with Backends() as backends, EtcdServer(run.folder / "etcd", flags=LARGE) as etcd:
        files = make_files(backends, 60)
        for services in files:
            for options in [*services.values()][::2]:
                options["stale_after"] = f"{LONG_VALID_S}s"
        with started(run, backends, etcd, files, make_settings(lease_s)) as stage:
            for number in range(run.size):
                takeovers_s += kill_one(stage, number % len(NAMES))
    longest_s = max(takeovers_s)
    allowed_s = lease_s + TAKEOVER_S + (lease_s if run.is_short else 0.0)  # tests share the machine with others
    run.report.expect(longest_s <= allowed_s, f"checked again only after {longest_s:.1f} s")
    taken = f"{len(takeovers_s)} services checked again after at most {longest_s:.1f} s, with a lease of {lease_s:g} s"
    run.report.figures = f"{run.size} kills, {taken}{run.report.figures}"


def kill_one(stage: Stage, index: int) -> list[float]:
    """How long after the kill each of its services was checked again."""
    victim, backends = stage.replicas[index], stage.backends
    others = stage.others(victim)
    ids = stage.checked_by(victim)
    failing = set(ids[::4])
    expected = {**stage.up, **dict.fromkeys(failing, DOWN)}
    starts = dict(zip(NAMES, stage.replicas.log_lengths(), strict=True))
    with stage.sampler.without(victim):
        backends.failing |= failing
        victim.process.kill()
        victim.process.wait()
        killed_s = time.monotonic() + 0.1  # until then, its last checks may arrive
        wait_until(lambda: all(backends.checked_after(killed_s, id_) for id_ in ids), "checked again")
        takeovers_s = [min(backends.checked_after(killed_s, id_)) - killed_s + 0.1 for id_ in ids]
        for other in others:
            other.wait_for(expected)
        stage.replicas.start_again(index)
        stage.replicas.wait_for(expected)
    changes = [each for other in others for each in other.status_changes(starts[other.name])]
    healthy = [each for each in changes if each.service not in failing]
    long_ids = {id_ for replica in stage.replicas for id_, options in replica.services.items() if len(options) > 1}
    stage.report.expect_no_flaps([each for each in healthy if each.service in long_ids], may_be_lost=False)
    stage.report.expect_no_flaps(healthy, may_be_lost=True)
    backends.failing.clear()
    stage.replicas.wait_for(stage.up)
    return takeovers_s


def stop(run: Run) -> None:
    """SIGSTOP of a replica for longer than its lease, `size` times. All backends fail meanwhile."""
    first: Counter[int] = Counter()
    with on_one_etcd(run, 30, lease_s=2) as stage:
        for number in range(run.size):
            stopped = stage.replicas[number % len(NAMES)]
            with stage.sampler.without(stopped):
                stopped.signal(signal.SIGSTOP)
                stage.backends.failing |= stage.up.keys()
                for other in stage.others(stopped):
                    other.wait_for(dict.fromkeys(stage.up, DOWN))
                time.sleep(VALID_S)
                stage.report.expect(stopped.name not in stage.keys.replicas(), "the lease of the replica is not over")
                stopped.signal(signal.SIGCONT)
                answers = [(stopped.health(), Counter(stopped.statuses().values())[UP]) for _ in range(20)]
            first[answers[0][0]] += 1
            run.report.expect(all(code != 200 and not ups for code, ups in answers), f"after SIGSTOP: {answers}")
            stage.replicas.wait_for(dict.fromkeys(stage.up, DOWN))
            stage.backends.failing.clear()
            stage.replicas.wait_for(stage.up)
    run.report.figures = f"{run.size} stops; the first answers afterwards: {dict(first)}{run.report.figures}"


# ---- etcd that fails


def lose_members(run: Run) -> None:
    """A member of etcd killed, its leader killed, all away for `size` seconds, and restored from an old snapshot.

    The snapshot has two services that are deregistered later, and does not have two that are registered later: one on
    a replica, which writes it again, and one by a client, which is lost.
    """
    cluster = EtcdCluster(run.folder / "etcd")
    for member in cluster.members:
        member.flags = LARGE
    snapshot = run.folder / "old.db"
    with Backends() as backends, cluster:
        registry = "etcd://" + ",".join(f"{member.host}:{member.port}" for member in cluster.members)
        files = make_files(backends, 60)
        files[0]["removed-file"] = {"probe": backends.url("removed-file")}
        with started(run, backends, cluster.members[0], files, make_settings(4), registry=registry) as stage:
            with stage.replicas[1].control() as client:
                client.register("removed-control", probe=backends.url("removed-control"))
            stage.replicas.wait_for({**stage.up, "removed-control": UP})
            cluster.members[0].save_snapshot(snapshot)
            change_services(stage)
            for member in (cluster.followers()[0], cluster.leader()):
                lose_member(stage, member)
            lost = lose_all(stage, cluster, run.size)
            starts = stage.replicas.log_lengths()
            cluster.restore_snapshot(snapshot)
            expect_restored(stage)
            expect_lost(stage, {"late-client"})
            run.report.expect_no_flaps(stage.replicas.status_changes(starts), may_be_lost=True)
    run.report.figures = f"etcd was away for {run.size} s: {lost} states were {LOST}{run.report.figures}"


def change_services(stage: Stage) -> None:
    """So the snapshot is old."""
    with stage.replicas[1].control() as client:
        client.deregister("removed-control")
    del stage.replicas[0].services["removed-file"], stage.up["removed-file"]
    stage.replicas[0].reload(stage.replicas[0].config())
    with stage.replicas[2].control() as client:
        client.register("late", probe=stage.backends.url("late"))
    put_client_service(stage, "late-client")
    stage.up.update({"late": UP, "late-client": UP})
    stage.replicas.wait_for(stage.up)


def lose_member(stage: Stage, member: EtcdServer) -> None:
    starts = stage.replicas.log_lengths()
    member.kill()
    time.sleep(VALID_S + 1)
    stage.report.expect_no_flaps(stage.replicas.status_changes(starts), may_be_lost=False)
    member.start()
    member.wait_until_ready()


def lose_all(stage: Stage, cluster: EtcdCluster, for_s: int) -> int:
    """Returns how many states of others were lost meanwhile."""
    starts = stage.replicas.log_lengths()
    cluster.kill()
    time.sleep(for_s)
    stage.wait_until_lost()
    stage.report.expect(all(replica.health() == 206 for replica in stage.replicas), "without etcd, a node is not 206")
    cluster.start()
    stage.replicas.wait_for(stage.up)
    changes = stage.replicas.status_changes(starts)
    stage.report.expect_no_flaps(changes, may_be_lost=True)
    return sum(each.code == LOST for each in changes)


def expect_restored(stage: Stage) -> None:
    """From the restore on, for longer than the lists stay as they are, all services are there, and no other."""
    end_s = time.monotonic() + RESTORE_S + 4
    while time.monotonic() < end_s:
        for replica in stage.replicas:
            ids = replica.statuses().keys()
            stage.report.expect(ids >= stage.up.keys(), f"{replica.name} has lost {[*(stage.up.keys() - ids)][:3]}")
            stage.report.expect(ids <= stage.up.keys(), f"{replica.name} has again {[*(ids - stage.up.keys())][:3]}")
        time.sleep(0.2)
    stage.replicas.wait_for(stage.up)
    wait_until(stage.replicas.are_equal, "identical lists")


# ---- nothing is forgotten

CLIENT_SERVICES = 20


def forget(run: Run) -> None:
    """etcd is wiped, `size` times: while the replicas run, and while they are stopped. A replica starts without etcd.

    What a client has registered stays in all lists, marked, until it is registered again or accepted.
    """
    with on_one_etcd(run, 12, lease_s=4) as stage:
        ids = [f"client-{number}" for number in range(CLIENT_SERVICES)]
        for service_id in ids:
            put_client_service(stage, service_id)
        stage.up.update(dict.fromkeys(ids, UP))
        stage.replicas.wait_for(stage.up)
        time.sleep(CACHE_S)
        for number in range(run.size):
            stage.etcd.wipe()
            expect_restored(stage)
            expect_lost(stage, {*ids})
            register_or_accept(stage, ids, accepted=ids[number::7])
            start_without_etcd(stage, number % len(NAMES))
            wipe_while_stopped(stage)
            expect_lost(stage, {*ids})
            register_or_accept(stage, ids, accepted=[])
    figures = (
        f"{2 * run.size} wipes of {CLIENT_SERVICES} services of clients, {run.size} starts without etcd; 0 forgotten"
    )
    run.report.figures = f"{figures}{run.report.figures}"


def put_client_service(stage: Stage, service_id: str) -> None:
    definition = {"probe": stage.backends.url(service_id), "interval": "1s", "stale_after": f"{VALID_S}s"}
    stage.keys.put_service(service_id, definition)


def expect_lost(stage: Stage, ids: set[str]) -> None:
    """All replicas say so, and none is healthy."""
    for replica in stage.replicas:
        sharing = replica.ask("/details").json["node"]["sharing"]
        stage.report.expect({*sharing["lost_services"]} == ids, f"{replica.name}: lost {sharing['lost_services']}")
        stage.report.expect(
            replica.health() == 206, f"{replica.name} is {replica.health()} without {len(ids)} services"
        )
        stage.report.expect(
            any('"registry_entries_lost"' in line for line in replica.lines), f"{replica.name} has not logged the loss"
        )


def register_or_accept(stage: Stage, ids: Sequence[str], accepted: Sequence[str]) -> None:
    """Then nothing is lost any more; what was accepted is registered at the end, for the next round."""
    for service_id in ids:
        if service_id not in accepted:
            put_client_service(stage, service_id)
    if accepted:
        wait_until(lambda: lost_ids(stage) == {*accepted}, "registered again")
        accept = [sys.executable, "-m", "svcnode", "registry", "accept", "--registry", stage.etcd.url, "--node", NODE]
        ended = run_command([*accept, *accepted[1:]], stage.replicas[0].folder)
        stage.report.expect(ended.returncode == bool(not accepted[1:]), f"accept: {ended.stderr}")
        run_command(accept, stage.replicas[0].folder)
        stage.replicas.wait_for({id_: UP for id_ in stage.up if id_ not in accepted})
    wait_until(lambda: not lost_ids(stage), "nothing is lost")
    wait_until(lambda: all(replica.health() == 200 for replica in stage.replicas), "all are healthy")
    for service_id in accepted:
        put_client_service(stage, service_id)
    stage.replicas.wait_for(stage.up)
    time.sleep(CACHE_S)


def lost_ids(stage: Stage) -> set[str]:
    found = (replica.ask("/details").json["node"]["sharing"]["lost_services"] for replica in stage.replicas)
    return {service_id for ids in found for service_id in ids}


def start_without_etcd(stage: Stage, index: int) -> None:
    """The first answer of the new process has the whole list, and only what it checks itself becomes Up."""
    replica = stage.replicas[index]
    own = {*replica.services}
    stage.etcd.kill()
    with stage.sampler.without(replica):
        replica.process.kill()
        replica.process.wait()
        stage.replicas.start_again(index)
        replica = stage.replicas[index]
        expect_first_list(stage, replica)
        wait_until(lambda: all(replica.statuses()[id_] == UP for id_ in own), "its own services are checked")
        others = {status for id_, status in replica.statuses().items() if id_ not in own}
        stage.report.expect(others == {INITIALIZING}, f"{replica.name}, without etcd: {others}")
        codes = (replica.health(), replica.ask("/readyz").code)
        stage.report.expect(codes == (206, 503), f"{replica.name}, without etcd: {codes}")
        stage.etcd.start()
        stage.etcd.wait_until_ready()
        stage.replicas.wait_for(stage.up)
    wait_until(lambda: replica.ask("/readyz").code == 200, "ready")


def expect_first_list(stage: Stage, replica: Replica) -> None:
    found: dict[str, str] = {}

    def has_answered() -> bool:
        nonlocal found
        with suppress(OSError):
            found = replica.statuses()
            return True
        return False

    wait_until(has_answered, "the first answer")
    missing = stage.up.keys() - found.keys()
    stage.report.expect(not missing, f"the first list of {replica.name} does not have {sorted(missing)[:3]}")


def wipe_while_stopped(stage: Stage) -> None:
    """All replicas know what was registered only by their caches."""
    for replica in stage.replicas:
        stage.sampler.pause(replica)
        replica.process.kill()
        replica.process.wait()
    stage.etcd.wipe()
    for index in range(len(NAMES)):
        stage.replicas.start_again(index)
    for replica in stage.replicas:
        expect_first_list(stage, replica)
    stage.replicas.wait_until_started()
    for replica in stage.replicas:
        stage.sampler.resume(replica)
    expect_restored(stage)


def withdraw(run: Run) -> None:
    """One replica after another may only read, `size` times: others check its services as if it were killed.

    The replica itself goes on as before, and takes its part again when it may write.
    """
    lease_s = 8.0
    takeovers_s: list[float] = []
    with Backends() as backends, EtcdServer(run.folder / "etcd", flags=LARGE, requires_auth=True) as etcd:
        for name in NAMES:
            registry = etcd.add_user(name, PREFIX).replace(name, "NAME")
        files, settings = make_files(backends, 30), make_settings(lease_s)
        with started(run, backends, etcd, files, settings, registry=registry) as stage:
            for number in range(run.size):
                starts = stage.replicas.log_lengths()
                takeovers_s.append(withdraw_one(stage, stage.replicas[number % len(NAMES)]))
                run.report.expect_no_flaps(stage.replicas.status_changes(starts), may_be_lost=True)
    longest_s, allowed_s = max(takeovers_s), lease_s + TAKEOVER_S + (lease_s if run.is_short else 0.0)
    run.report.expect(longest_s <= allowed_s, f"checked by others only after {longest_s:.1f} s")
    text = f"{run.size} times without permission, checked by others after at most {longest_s:.1f} s"
    run.report.figures = f"{text}, with a lease of {lease_s:g} s{run.report.figures}"


def withdraw_one(stage: Stage, replica: Replica) -> float:
    """How long it takes until others check its services."""

    def are_taken_over() -> bool:
        return checked <= {service_id for each in stage.others(replica) for service_id in stage.keys.states(each.name)}

    checked, began_s = set(stage.checked_by(replica)), time.monotonic()
    stage.etcd.grant(PREFIX, "READ", role=replica.name)
    wait_until(are_taken_over, "others check its services")
    taken_over_s = time.monotonic() - began_s
    replica.wait_for_log("registry problem: .*is not renewed")
    stage.replicas.wait_for(stage.up)
    stage.etcd.grant(PREFIX, role=replica.name)
    stage.wait_until_shared()
    stage.replicas.wait_for(stage.up)
    return taken_over_s


def fail_etcd(run: Run) -> None:
    """Compaction during a watch, a full and a slow etcd, `size` times: right answers, no restart is needed."""
    with Backends() as backends, EtcdServer(run.folder / "etcd") as etcd:
        files = make_files(backends, 30)
        with started(run, backends, etcd, files, make_settings(4)) as stage:
            for number in range(run.size):
                starts = stage.replicas.log_lengths()
                compact(stage)
                with etcd.storage_full():
                    wait_until(lambda: not stage.keys.replicas(), "all leases are over")
                    stage.replicas.wait_for(stage.up)  # each replica checks all services
                    for replica in stage.replicas:
                        replica.wait_for_log("registry problem: .*space exceeded", times=number + 1)
                stage.replicas.wait_for(stage.up)
                stage.wait_until_shared()
                etcd.freeze()
                time.sleep(0 if run.is_short else SLOW_S)
                stage.wait_until_lost()
                etcd.thaw()
                stage.replicas.wait_for(stage.up)
                changes = [each for each in stage.replicas.status_changes(starts) if each.service != "direct"]
                run.report.expect_no_flaps(changes, may_be_lost=True)
            for replica in stage.replicas:
                replica.wait_for_event("registry_recovered")
    run.report.figures = f"{run.size} rounds of compaction, no space and SIGSTOP of etcd{run.report.figures}"


def compact(stage: Stage) -> None:
    """While the replicas cannot follow, a service goes, and so do the revisions from which they would go on."""
    stage.keys.put_service("direct", {"probe": stage.backends.url("direct"), "interval": "1s"})
    stage.replicas.wait_for({**stage.up, "direct": UP})
    for replica in stage.replicas:
        stage.sampler.pause(replica)
        replica.signal(signal.SIGSTOP)
    stage.etcd.restart()
    stage.keys.delete_service("direct")
    stage.etcd.compact()
    for replica in stage.replicas:
        replica.signal(signal.SIGCONT)
        stage.sampler.resume(replica)
    stage.replicas.wait_for(stage.up)


# ---- networks that are cut

DIRECTIONS = ({"sent": True, "received": True}, {"sent": False, "received": True}, {"sent": True, "received": False})


@contextmanager
def in_networks(
    run: Run, network: ReplicaNetwork, files: Callable[[Backends], list[dict[str, Options]]], lease_s: float
) -> Iterator[Stage]:
    """Each replica has a network of its own; etcd and the backends are in another one."""
    prefixes = [network.prefix(index) for index in range(len(NAMES))]
    etcd = EtcdServer(run.folder / "etcd")
    etcd.flags = {**LARGE, "listen-client-urls": f"http://0.0.0.0:{etcd.port}"}
    registry = f"etcd://{HOST}:{etcd.port}"
    with (
        Backends(HOST) as backends,
        etcd,
        started(
            run, backends, etcd, files(backends), make_settings(lease_s), registry=registry, prefixes=prefixes
        ) as stage,
    ):
        yield stage


def with_networks(scenario: Callable[[Run, ReplicaNetwork], None]) -> Callable[[Run], None]:
    def run_scenario(run: Run) -> None:
        def run_here(namespace: NetworkNamespace) -> None:
            with ReplicaNetwork(namespace, len(NAMES)) as network:
                scenario(run, network)

        run_in_namespace(run.folder / "hosts", run_here)

    return run_scenario


@with_networks
def cut_from_etcd(run: Run, network: ReplicaNetwork) -> None:
    """A replica is cut off from etcd, in both directions and in each: it checks what it checked, others take over."""
    with in_networks(run, network, lambda backends: make_files(backends, 30), lease_s=2) as stage:
        replica, *others = stage.replicas
        for number in range(run.size):
            starts = stage.replicas.log_lengths()
            ids = stage.checked_by(replica)
            failing = ids[0]
            alone = {**{id_: UP if id_ in ids else INITIALIZING for id_ in stage.up}, failing: DOWN}
            with network.cut(0, stage.etcd.port, **DIRECTIONS[number % 3]):
                stage.backends.failing.add(failing)
                replica.wait_for(alone)
                for other in others:
                    other.wait_for({**stage.up, failing: DOWN})
                codes = [each.health() for each in stage.replicas]
                run.report.expect(codes == [206, 206, 206], f"a service is Down, and health is {codes}")
                run.report.expect(replica.name not in stage.keys.replicas(), "the lease of the replica is not over")
                replica.wait_for_log("registry problem: .*no response", times=number + 1)
            stage.backends.failing.clear()
            stage.replicas.wait_for(stage.up)
            replica.wait_for_log("registry: connected again", times=number + 1)
            changes = [each for each in stage.replicas.status_changes(starts) if each.service != failing]
            run.report.expect_no_flaps(changes, may_be_lost=True)
    run.report.figures = f"{run.size} cuts{run.report.figures}"


@with_networks
def cut_from_backends(run: Run, network: ReplicaNetwork) -> None:
    """A replica is cut off from the backends, in both directions and in each: the majority of three is right.

    If two are cut off, the services are Down. A service with two observers, of which one is cut off, is not decided,
    and stays Down if it was.
    """

    def files(backends: Backends) -> list[dict[str, Options]]:
        made = make_files(backends, 12, observers=3)
        made[0]["pair"] = {"probe": backends.url("pair"), "checked_by": [*NAMES[:2]], "observers": 2, "impact": "none"}
        return made

    with in_networks(run, network, files, lease_s=4) as stage:
        disagreed = {**stage.up, "pair": INITIALIZING}
        for number in range(run.size):
            starts = stage.replicas.log_lengths()
            with network.cut(0, stage.backends.port, **DIRECTIONS[number % 3]):
                wait_until(lambda: votes(stage, NAMES[0]) == {DOWN}, "the replica sees all Down")
                stage.replicas.wait_for(disagreed)
                run.report.expect(votes(stage, NAMES[1]) == {UP}, "the others do not see all Up")
                codes = [replica.health() for replica in stage.replicas]
                run.report.expect(codes == [200, 200, 200], f"one broken network is an outage: {codes}")
                changes = stage.replicas.status_changes(starts)
                run.report.expect_no_flaps([each for each in changes if each.service != "pair"], may_be_lost=False)
                run.report.expect({each.code for each in changes} == {DISAGREE}, f"not only {DISAGREE}: {changes}")
                with network.cut(1, stage.backends.port):
                    stage.replicas.wait_for(dict.fromkeys(stage.up, DOWN))
                stage.replicas.wait_for({**stage.up, "pair": DOWN})
            stage.replicas.wait_for(stage.up)
    run.report.figures = f"{run.size} cuts{run.report.figures}"


def votes(stage: Stage, replica: str) -> set[str]:
    return {state["status"] for state in stage.keys.states(replica).values()}


# ---- all


@dataclass(frozen=True)
class Scenario:
    run: Callable[[Run], None]
    size: int
    short_size: int


SCENARIOS = {
    "changes": Scenario(change, 1000, 40),
    "kills": Scenario(kill, 3, 1),
    "SIGSTOP": Scenario(stop, 3, 1),
    "etcd members": Scenario(lose_members, 60, 7),
    "etcd wiped": Scenario(forget, 3, 1),
    "may not write": Scenario(withdraw, 3, 1),
    "etcd faults": Scenario(fail_etcd, 3, 1),
    "cut from etcd": Scenario(cut_from_etcd, 3, 1),
    "cut from backends": Scenario(cut_from_backends, 3, 1),
}


def run_scenario(folder: Path, name: str, rng: random.Random, is_short: bool) -> SharingReport:
    scenario, report = SCENARIOS[name], SharingReport()
    folder.mkdir()
    scenario.run(Run(folder, report, scenario.short_size if is_short else scenario.size, is_short, rng))
    return report


if __name__ == "__main__":
    counted = "false answers, lost services, flaps, late changes and failed requests"
    sys.exit(main_of_scenarios("sharing", __doc__, SCENARIOS, run_scenario, counted))
