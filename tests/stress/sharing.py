"""Replicas of a node on real etcd, under changes, kills, outages, clock differences and cuts: no false 200, none lost.

`python -m tests.stress.sharing` runs three `svcnode serve` processes, which share their services through etcd. A sampler
asks each of them all the time. The backends know when they have answered a check: a service that is Up, or a node that
is healthy, needs a check within `stale_after`. Prints a table; the scenarios of cuts need root.
"""

# ruff: noqa: T201  a command-line program

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.network_namespace import run_in_namespace
from tests.support.replica_network import HOST, ReplicaNetwork
from tests.support.replicas import PREFIX, Backends, RegistryKeys, Replicas, Sampler
from tests.support.servers.base import wait_until
from tests.support.servers.etcd import PASSWORD, EtcdCluster, EtcdServer
from tests.support.servers.provision import install

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tests.support.network_namespace import NetworkNamespace
    from tests.support.replicas import Options, StatusChange

NAMES = ("host-1", "host-2", "host-3")
CHANGE_S = 1.0  # within which all replicas show a change
TAKEOVER_S = 2.0  # after the end of a lease
LARGE = {"quota-backend-bytes": 256 * 1024**2}  # each write leaves an old revision
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
UP, DOWN, INITIALIZING = "Up", "Down", "Initializing"
LOST = "registry_lost"


@dataclass
class SharingReport:
    """What one scenario found."""

    name: str
    samples: int = 0
    figures: str = ""
    problems: list[str] = field(default_factory=list)

    def expect(self, condition: object, problem: str) -> None:
        if not condition:
            self.problems.append(problem)

    def add_samples(self, sampler: Sampler) -> None:
        self.samples += sampler.samples
        self.problems += sampler.problems
        self.figures += f"; slowest answer {sampler.max_latency_s * 1000:.0f} ms"

    def expect_no_flaps(self, changes: Sequence[StatusChange], *, may_be_lost: bool) -> None:
        """No status of a healthy service changes, except while its evidence cannot come."""
        for change in changes:
            is_lost = change.status == INITIALIZING and change.code == LOST
            is_back = change.status == UP and change.previous == INITIALIZING
            self.expect(may_be_lost and (is_lost or is_back), f"flapped: {change}")


def settings(*, lease_s: float = 3, interval_s: float = 1, stale_after_s: float = 3, observers: int = 1) -> str:
    return (
        f'lease = "{lease_s}s"\nobservers = {observers}\n'
        f'[defaults]\ninterval = "{interval_s}s"\ntimeout = "{interval_s * 900:g}ms"\nstale_after = "{stale_after_s}s"\n'
    )


def make_files(backends: Backends, count: int, replicas: int = 3, **options: object) -> list[dict[str, Options]]:
    """The services of each replica: `count` in all."""
    files: list[dict[str, Options]] = [{} for _ in range(replicas)]
    for number in range(count):
        service_id = f"s-{number}"
        files[number % replicas][service_id] = {"probe": backends.url(service_id), **options}
    return files


def statuses_of(files: Sequence[Mapping[str, Options]], status: str = UP) -> dict[str, str]:
    return {service_id: status for services in files for service_id in services}


# ---- equal lists


class Model:
    """What the lists must have: the description of each service, by its owners."""

    def __init__(self) -> None:
        self.owners: dict[str, dict[str, str]] = {}  # descriptions by id and owner; the newest last

    def put(self, service_id: str, owner: str, description: str) -> None:
        owners = self.owners.setdefault(service_id, {})
        owners.pop(owner, None)
        owners[owner] = description

    def delete(self, service_id: str, owner: str) -> None:
        del self.owners[service_id][owner]
        if not self.owners[service_id]:
            del self.owners[service_id]

    def expected(self, service_id: str) -> str | None:
        owners = self.owners.get(service_id)
        return None if owners is None else [*owners.values()][-1]


class RandomChanges:
    """Changes a service of a random kind at a random place, and waits until all replicas show it."""

    def __init__(
        self, replicas: Replicas, keys: RegistryKeys, backends: Backends, model: Model, rng: random.Random
    ) -> None:
        self._replicas, self._keys, self._backends, self._model, self._rng = replicas, keys, backends, model, rng
        self._controls = [replica.control() for replica in replicas]
        self._number = 0
        self.kinds: Counter[str] = Counter()
        self.delays_s: list[float] = []

    def make(self) -> None:
        self._number += 1
        kinds = {"file": 2, "control": 4, "etcd": 3, "report": 2, "backend": 1}
        kind = self._rng.choices([*kinds], [*kinds.values()])[0]
        self.kinds[kind] += 1
        service_id, field_name, expected = getattr(self, f"_{kind}")()
        self._wait(service_id, field_name, expected, is_seen_later=kind == "backend")

    def _wait(self, service_id: str, field_name: str, expected: str | None, *, is_seen_later: bool) -> None:
        """A change of a backend counts from the first replica that shows it."""
        made_s, deadline_s = time.monotonic(), time.monotonic() + 30
        while True:
            lists = [replica.ask("/svc/node/services") for replica in self._replicas]
            shown = [_shown(each.json["services"], service_id, field_name) == expected for each in lists]
            now_s = time.monotonic()
            if all(shown) and len({each.body for each in lists}) == 1:
                self.delays_s.append(now_s - made_s)
                return
            if is_seen_later and not any(shown):
                made_s = now_s
            assert now_s < deadline_s, f"{service_id}: {field_name} {expected!r} is shown by {shown}"
            time.sleep(0.01)

    def _description(self) -> str:
        return f"change {self._number}"

    def _options(self, service_id: str) -> Options:
        return {"probe": self._backends.url(service_id), "description": self._description()}

    def _file(self) -> tuple[str, str, str | None]:
        replica, service_id = self._rng.choice(self._replicas.all), f"file-{self._rng.randrange(8)}"
        if service_id in replica.services and self._rng.random() < 0.5:
            del replica.services[service_id]
            self._model.delete(service_id, replica.name)
        else:
            replica.services[service_id] = self._options(service_id)
            self._model.put(service_id, replica.name, self._description())
        replica.reload(replica.config())
        return service_id, "description", self._model.expected(service_id)

    def _control(self) -> tuple[str, str, str | None]:
        index, service_id = self._rng.randrange(len(self._controls)), f"any-{self._rng.randrange(12)}"
        name = self._replicas[index].name
        if name in self._model.owners.get(service_id, {}) and self._rng.random() < 0.5:
            self._controls[index].deregister(service_id)
            self._model.delete(service_id, name)
        else:
            self._controls[index].register(service_id, **self._options(service_id))
            self._model.put(service_id, name, self._description())
        return service_id, "description", self._model.expected(service_id)

    def _etcd(self) -> tuple[str, str, str | None]:
        service_id = f"any-{self._rng.randrange(12)}"
        if "client" in self._model.owners.get(service_id, {}) and self._rng.random() < 0.5:
            self._keys.delete_service(service_id)
            self._model.delete(service_id, "client")
        else:
            self._keys.put_service(service_id, self._options(service_id))
            self._model.put(service_id, "client", self._description())
        return service_id, "description", self._model.expected(service_id)

    def _report(self) -> tuple[str, str, str | None]:
        index = self._rng.randrange(len(self._controls))
        service_id, name = f"job-{index}", self._replicas[index].name
        if service_id not in self._model.owners:
            self._controls[index].register(service_id, ttl="1h", description=self._description())
            self._model.put(service_id, name, self._description())
        status = self._rng.choice((UP, INITIALIZING, DOWN))
        self._controls[index].beat(service_id, status.lower())
        return service_id, "status", status

    def _backend(self) -> tuple[str, str, str | None]:
        service_id = f"s-{self._rng.randrange(50)}"
        if service_id in self._backends.failing:
            self._backends.failing.remove(service_id)
            return service_id, "status", UP
        self._backends.failing.add(service_id)
        return service_id, "status", DOWN


def _shown(services: Sequence[Mapping[str, Any]], service_id: str, field_name: str) -> str | None:
    return next((service[field_name] for service in services if service["id"] == service_id), None)


def change(folder: Path, report: SharingReport, size: int, rng: random.Random) -> None:
    """`size` random changes of 300 services: all three lists are equal soon after each, and identical at the end."""
    with Backends() as backends, EtcdServer(folder / "etcd", flags=LARGE) as etcd:
        files = make_files(backends, 300)
        options = settings(interval_s=3, stale_after_s=12)
        with Replicas(folder, [etcd.url], files, options) as replicas:
            replicas.wait_for(statuses_of(files))
            model = Model()
            for replica, services in zip(replicas, files, strict=True):
                for service_id in services:
                    model.put(service_id, replica.name, "")
            valid_s = dict.fromkeys(statuses_of(files), 12.0)
            with Sampler(replicas, backends, valid_s) as sampler:
                changes = RandomChanges(replicas, RegistryKeys(etcd), backends, model, rng)
                for _ in range(size):
                    changes.make()
            backends.failing.clear()
            wait_until(lambda: DOWN not in {replica.statuses()[f"s-{n}"] for replica in replicas for n in range(50)}, "up")
            wait_until(replicas.are_equal, "identical lists")
            shown = {id_: service["description"] for id_, service in replicas[0].shown().items()}
            report.expect(shown == {id_: model.expected(id_) for id_ in model.owners}, "services are lost, or are ghosts")
            delays_s = sorted(changes.delays_s)
            late = sum(delay_s > CHANGE_S for delay_s in delays_s)
            if size >= 100:  # of a few changes on a busy machine, the time says nothing
                report.expect(not late, f"{late} changes took longer than {CHANGE_S:g} s")
            report.figures = (
                f"{size} changes ({', '.join(f'{count} {kind}' for kind, count in sorted(changes.kinds.items()))}); equal "
                f"after {statistics.median(delays_s) * 1000:.0f} ms (median), {delays_s[-1] * 1000:.0f} ms (longest)"
            )
            report.add_samples(sampler)


# ---- replicas that end, or stop


def kill(folder: Path, report: SharingReport, size: int, rng: random.Random) -> None:
    """kill -9 of a replica `size` times: its services are checked by others after its lease; none is Up for too long.

    The evidence of half of the services ends before the lease, and a quarter of the backends fails with the replica.
    """
    lease_s, short_s, long_s = 5.0, 3.0, 20.0
    takeovers_s: list[float] = []
    with Backends() as backends, EtcdServer(folder / "etcd", flags=LARGE) as etcd:
        keys = RegistryKeys(etcd)
        files = make_files(backends, 60)
        valid_s = {}
        for services in files:
            for number, (service_id, options) in enumerate(services.items()):
                valid_s[service_id] = short_s if number % 2 else long_s
                options["stale_after"] = f"{valid_s[service_id]}s"
        with Replicas(folder, [etcd.url], files, settings(lease_s=lease_s)) as replicas:
            replicas.wait_for(statuses_of(files))
            with Sampler(replicas, backends, valid_s) as sampler:
                for number in range(size):
                    victim = replicas[number % 3]
                    ids = sorted(keys.states(victim.name))
                    failing = set(ids[::4])
                    starts = replicas.log_lengths()
                    with sampler.without(victim):
                        backends.failing |= failing
                        victim.process.kill()
                        victim.process.wait()
                        takeovers_s += _takeovers_s(backends, ids, time.monotonic())
                        others = [replica for replica in replicas if replica is not victim]
                        expected = {**statuses_of(files), **dict.fromkeys(failing, DOWN)}
                        wait_until(lambda: all(other.statuses() == expected for other in others), "taken over")
                        replicas.start_again(number % 3)
                        starts[number % 3] = 0
                        replicas.wait_for(expected)
                    changes = [
                        each
                        for each in replicas.status_changes(starts)
                        if each.service not in failing and each.replica != victim.name
                    ]
                    report.expect_no_flaps([each for each in changes if valid_s[each.service] == long_s], may_be_lost=False)
                    report.expect_no_flaps(changes, may_be_lost=True)
                    backends.failing.clear()
                    replicas.wait_for(statuses_of(files))
    longest_s = max(takeovers_s)
    tolerance_s = 0.0 if size > 1 else lease_s  # a short run shares the machine with other tests
    report.expect(longest_s <= lease_s + TAKEOVER_S + tolerance_s, f"checked again only after {longest_s:.1f} s")
    report.figures = (
        f"{size} kills, {len(takeovers_s)} services taken over, after at most {longest_s:.1f} s with a lease of {lease_s:g} s"
    )
    report.add_samples(sampler)


def _takeovers_s(backends: Backends, ids: Sequence[str], killed_s: float) -> Iterator[float]:
    """How long after the kill each service was checked again. The last checks of the victim may still arrive."""
    for service_id in ids:

        def later(service_id: str = service_id) -> list[float]:
            return [at_s for at_s in [*backends.checks_s[service_id]] if at_s > killed_s + 0.1]

        wait_until(lambda: bool(later()), f"{service_id} is checked again")  # noqa: B023  used at once
        yield later()[0] - killed_s


def stop(folder: Path, report: SharingReport, size: int, rng: random.Random) -> None:
    """SIGSTOP of a replica for longer than its lease, `size` times. All backends fail meanwhile."""
    with Backends() as backends, EtcdServer(folder / "etcd", flags=LARGE) as etcd:
        files = make_files(backends, 30)
        up, down = statuses_of(files), statuses_of(files, DOWN)
        first: list[int] = []
        with Replicas(folder, [etcd.url], files, settings(lease_s=2)) as replicas:
            replicas.wait_for(up)
            with Sampler(replicas, backends, dict.fromkeys(up, 3.0)) as sampler:
                for number in range(size):
                    stopped = replicas[number % 3]
                    with sampler.without(stopped):
                        stopped.signal(signal.SIGSTOP)
                        backends.failing |= up.keys()
                        wait_until(lambda: RegistryKeys(etcd).replicas() == {*NAMES} - {stopped.name}, "the end of its lease")  # noqa: B023
                        time.sleep(3.5)
                        stopped.signal(signal.SIGCONT)
                        answers = [(stopped.health(), Counter(stopped.statuses().values())[UP]) for _ in range(20)]
                        first.append(answers[0][0])
                        report.expect(all(code != 200 and not ups for code, ups in answers), f"after SIGSTOP: {answers}")
                    replicas.wait_for(down)
                    backends.failing.clear()
                    replicas.wait_for(up)
        report.figures = f"{size} stops; the first answers afterwards: {sorted(Counter(first).items())}"
        report.add_samples(sampler)


def set_clocks(folder: Path, report: SharingReport, size: int, rng: random.Random) -> None:
    """Wall clocks that differ by up to 22 hours, with libfaketime: backends fail and work `size` times."""
    if not FAKETIME.exists() and os.geteuid() == 0:
        install("libfaketime")
    if not FAKETIME.exists():
        pytest.skip("not installed: libfaketime")
    offsets = ("+15h", "-7h", "+0")
    environs = [
        {"LD_PRELOAD": str(FAKETIME), "FAKETIME": offset, "FAKETIME_DONT_FAKE_MONOTONIC": "1"} for offset in offsets
    ]
    with Backends() as backends, EtcdServer(folder / "etcd", flags=LARGE) as etcd:
        files = make_files(backends, 30)
        up, down = statuses_of(files), statuses_of(files, DOWN)
        with Replicas(folder, [etcd.url], files, settings(), environs=environs) as replicas:
            replicas.wait_for(up)
            with Sampler(replicas, backends, dict.fromkeys(up, 3.0)) as sampler:
                for number in range(size):
                    starts = replicas.log_lengths()
                    time.sleep(4)  # longer than evidence is valid
                    report.expect_no_flaps(replicas.status_changes(starts), may_be_lost=False)
                    backends.failing |= up.keys()
                    replicas.wait_for(down)
                    killed = replicas[number % 3]
                    with sampler.without(killed):
                        killed.process.kill()
                        backends.failing.clear()
                        wait_until(lambda: all(each.statuses() == up for each in replicas if each is not killed), "up")  # noqa: B023
                        replicas.start_again(number % 3)
                        replicas.wait_for(up)
            hours = sorted({replica.log_entries[-1]["time"][:13] for replica in replicas})
        report.figures = f"{size} rounds; hours of the three clocks: {', '.join(hours)}"
        report.add_samples(sampler)


# ---- etcd that fails


def lose_members(folder: Path, report: SharingReport, size: int, rng: random.Random) -> None:
    """A member of etcd killed, its leader killed, all stopped for `size` seconds, and restored from an old snapshot."""
    cluster = EtcdCluster(folder / "etcd")
    for member in cluster.members:
        member.flags = LARGE
    with Backends() as backends, cluster:
        registry = "etcd://" + ",".join(f"{member.host}:{member.port}" for member in cluster.members)
        files = make_files(backends, 60)
        files[0]["ghost-file"] = {"probe": backends.url("ghost-file")}
        up = statuses_of(files)
        options = settings(lease_s=4, stale_after_s=5)
        with Replicas(folder, [registry], files, options) as replicas:
            replicas.wait_for(up)
            with replicas[1].control() as client:
                client.register("ghost-control", probe=backends.url("ghost-control"))
            replicas.wait_for({**up, "ghost-control": UP})
            cluster.members[0].save_snapshot(folder / "old.db")
            _drop_ghosts(replicas)
            del up["ghost-file"]
            up["late"] = UP
            with replicas[2].control() as client:
                client.register("late", probe=backends.url("late"))
            replicas.wait_for(up)
            with Sampler(replicas, backends, dict.fromkeys(up, 5.0)) as sampler:
                for member in (cluster.followers()[0], cluster.leader()):
                    starts = replicas.log_lengths()
                    member.kill()
                    time.sleep(6)  # longer than evidence is valid
                    report.expect_no_flaps(replicas.status_changes(starts), may_be_lost=False)
                    report.expect(replicas.have(up), "a service is not Up without one member")
                    member.start()
                    member.wait_until_ready()
                lost = _stop_all(cluster, replicas, up, report, size)
                starts = replicas.log_lengths()
                cluster.restore_snapshot(folder / "old.db")
                replicas.wait_for(up)
                end_s = time.monotonic() + 8  # longer than a lease
                while time.monotonic() < end_s:
                    report.expect(replicas.have(up), "a ghost, or a lost service, after the restore")
                    time.sleep(0.2)
                report.expect_no_flaps(replicas.status_changes(starts), may_be_lost=True)
                report.expect(replicas.are_equal(), "lists differ after the restore")
        report.figures = f"etcd was away for {size} s: {lost} states were {LOST}"
        report.add_samples(sampler)


def _drop_ghosts(replicas: Replicas) -> None:
    """What the snapshot has, and the replicas do not have any more."""
    with replicas[1].control() as client:
        client.deregister("ghost-control")
    del replicas[0].services["ghost-file"]
    replicas[0].reload(replicas[0].config())


def _stop_all(cluster: EtcdCluster, replicas: Replicas, up: Mapping[str, str], report: SharingReport, for_s: int) -> int:
    """Returns how many states of others were lost meanwhile. Each service is still Up where it is checked."""
    starts = replicas.log_lengths()
    cluster.kill()
    time.sleep(for_s)
    statuses = [replica.statuses() for replica in replicas]
    for service_id in up:
        found = sorted(each[service_id] for each in statuses)
        report.expect(found == [INITIALIZING, INITIALIZING, UP], f"without etcd, {service_id} is {found}")
    report.expect(all(replica.health() == 206 for replica in replicas), "without etcd, a node is not 206")
    with cluster:
        replicas.wait_for(up)
        changes = replicas.status_changes(starts)
        report.expect_no_flaps(changes, may_be_lost=True)
        for member in cluster.members:
            member.wait_until_ready()
    return sum(each.code == LOST for each in changes)


def fail_etcd(folder: Path, report: SharingReport, size: int, rng: random.Random) -> None:
    """Compaction during a watch, a full and a slow etcd, `size` times: right answers, and recovery without a restart."""
    with Backends() as backends, EtcdServer(folder / "etcd") as etcd:
        keys = RegistryKeys(etcd)
        files = make_files(backends, 30)
        up = statuses_of(files)
        with Replicas(folder, [etcd.url], files, settings(lease_s=4)) as replicas:
            replicas.wait_for(up)
            with Sampler(replicas, backends, dict.fromkeys(up, 3.0)) as sampler:
                for number in range(size):
                    starts = replicas.log_lengths()
                    _compact(etcd, keys, replicas, sampler, up, backends.url("direct"))
                    with etcd.storage_full():
                        _expect_lost(replicas, up)
                        for replica in replicas:
                            replica.wait_for_log(r"registry: .*no space|registry: .*full", times=number + 1)
                    replicas.wait_for(up)
                    etcd.freeze()
                    _expect_lost(replicas, up)
                    time.sleep(10 if size > 1 else 0)
                    etcd.thaw()
                    replicas.wait_for(up)
                    changes = [each for each in replicas.status_changes(starts) if each.service != "direct"]
                    report.expect_no_flaps(changes, may_be_lost=True)
                for replica in replicas:
                    replica.wait_for_event("registry_recovered")
        report.figures = f"{size} rounds of compaction, no space and SIGSTOP of etcd"
        report.add_samples(sampler)


def _compact(
    etcd: EtcdServer, keys: RegistryKeys, replicas: Replicas, sampler: Sampler, up: Mapping[str, str], probe: str
) -> None:
    """While the replicas cannot follow, services come and go, and the revisions from which they would go on too."""
    keys.put_service("direct", {"probe": probe, "interval": "1s"})
    replicas.wait_for({**up, "direct": UP})
    for replica in replicas:
        sampler.pause(replica)
        replica.signal(signal.SIGSTOP)
    etcd.restart()
    keys.delete_service("direct")
    etcd.compact()
    for replica in replicas:
        replica.signal(signal.SIGCONT)
        sampler.resume(replica)
    replicas.wait_for(up)


def _expect_lost(replicas: Replicas, up: Mapping[str, str]) -> None:
    """Each service is Up for the replica that checks it, and not known to the others."""

    def is_lost() -> bool:
        found = [replica.statuses() for replica in replicas]
        return all(sorted(each[id_] for each in found) == [INITIALIZING, INITIALIZING, UP] for id_ in up)

    wait_until(is_lost, "states of others are lost")


def refuse(folder: Path, report: SharingReport, size: int, rng: random.Random) -> None:
    """A wrong password of one replica, and permissions withdrawn from all, `size` times."""
    with Backends() as backends, EtcdServer(folder / "etcd", requires_auth=True, flags=LARGE) as etcd:
        etcd.grant(PREFIX)
        files = make_files(backends, 30)
        own = {id_: UP for id_ in files[2]}
        up = statuses_of(files)
        registries = [etcd.url, etcd.url, etcd.bad_credentials_url]
        with Replicas(folder, registries, files, settings(lease_s=3)) as replicas:
            wait_until(lambda: replicas[0].statuses() == {**statuses_of(files[:2])}, "the other two share")
            replicas[2].wait_for_event("registry_problem")
            wait_until(lambda: replicas[2].statuses() == own, "its own services")
            report.expect(replicas[2].health() == 206, "a node that has not read the registry is not 206")
            lines = "\n".join(line for replica in replicas for line in replica.lines)
            report.expect("not-the-password" not in lines and PASSWORD not in lines, "a password is in a log")
            etcd.set_password("not-the-password")  # the others stay logged in, or log in again in vain
            replicas[2].wait_for_event("registry_joined")
            etcd.set_password(PASSWORD)
            replicas.wait_for(up)
            with Sampler(replicas, backends, dict.fromkeys(up, 3.0)) as sampler:
                for _ in range(size):
                    starts = replicas.log_lengths()
                    etcd.withdraw(PREFIX)
                    _expect_lost(replicas, up)
                    for replica, start in zip(replicas, starts, strict=True):
                        text = "\n".join(replica.lines[start:])
                        report.expect("permission" in text, f"{replica.name} does not log the permission: {text[-500:]}")
                    etcd.grant(PREFIX)
                    replicas.wait_for(up)
                    report.expect_no_flaps(replicas.status_changes(starts), may_be_lost=True)
        report.figures = f"{size} times without permission"
        report.add_samples(sampler)


# ---- networks that are cut

DIRECTIONS = ({"sent": True, "received": True}, {"sent": False, "received": True}, {"sent": True, "received": False})


def in_networks(
    scenario: Callable[[ReplicaNetwork, Path, SharingReport, int], None],
) -> Callable[[Path, SharingReport, int, random.Random], None]:
    """Each replica has a network of its own."""

    def run(folder: Path, report: SharingReport, size: int, _: random.Random) -> None:
        def run_here(namespace: NetworkNamespace) -> None:
            with ReplicaNetwork(namespace, len(NAMES)) as network:
                scenario(network, folder, report, size)

        run_in_namespace(folder / "hosts", run_here)

    return run


def etcd_of_networks(folder: Path) -> EtcdServer:
    etcd = EtcdServer(folder / "etcd")
    etcd.flags = {**LARGE, "listen-client-urls": f"http://0.0.0.0:{etcd.port}"}
    return etcd


@in_networks
def cut_from_etcd(network: ReplicaNetwork, folder: Path, report: SharingReport, size: int) -> None:
    """A replica is cut off from etcd, in both directions and in each: it checks what it checked, others take over."""
    with Backends(HOST) as backends, etcd_of_networks(folder) as etcd:
        keys = RegistryKeys(etcd)
        files = make_files(backends, 30)
        up = statuses_of(files)
        prefixes = [network.prefix(index) for index in range(3)]
        registry = f"etcd://{HOST}:{etcd.port}"
        with Replicas(folder, [registry], files, settings(lease_s=2), prefixes=prefixes) as replicas:
            replicas.wait_for(up)
            with Sampler(replicas, backends, dict.fromkeys(up, 3.0)) as sampler:
                for number in range(size):
                    starts = replicas.log_lengths()
                    ids = sorted(keys.states(NAMES[0]))
                    failing = ids[0]
                    with network.cut(0, etcd.port, **DIRECTIONS[number % 3]):
                        backends.failing.add(failing)
                        alone = {id_: UP if id_ in ids else INITIALIZING for id_ in up} | {failing: DOWN}
                        wait_until(lambda: replicas[0].statuses() == alone, "what the replica sees alone")  # noqa: B023
                        taken = {**up, failing: DOWN}
                        wait_until(lambda: all(replicas[i].statuses() == taken for i in (1, 2)), "taken over")  # noqa: B023
                        report.expect(keys.replicas() == {*NAMES[1:]}, "the lease of the replica is not over")
                        replicas[0].wait_for_log("registry: .*no response", times=number + 1)
                    backends.failing.clear()
                    replicas.wait_for(up)
                    changes = [each for each in replicas.status_changes(starts) if each.service != failing]
                    report.expect_no_flaps(changes, may_be_lost=True)
        report.figures = f"{size} cuts"
        report.add_samples(sampler)


@in_networks
def cut_from_backends(network: ReplicaNetwork, folder: Path, report: SharingReport, size: int) -> None:
    """A replica is cut off from the backends, in both directions and in each: the majority of three is right.

    If two are cut off, the services are Down. A service with two observers, of which one is cut off, is not decided.
    """
    with Backends(HOST) as backends, etcd_of_networks(folder) as etcd:
        keys = RegistryKeys(etcd)
        files = make_files(backends, 12, observers=3)
        pair = {"probe": backends.url("pair"), "observers": 2, "checked_by": [*NAMES[:2]], "impact": "none"}
        files[0]["pair"] = pair
        up = statuses_of(files)
        disagreed = {**up, "pair": INITIALIZING}
        prefixes = [network.prefix(index) for index in range(3)]
        registry = f"etcd://{HOST}:{etcd.port}"
        with Replicas(folder, [registry], files, settings(lease_s=4), prefixes=prefixes) as replicas:
            replicas.wait_for(up)
            with Sampler(replicas, backends, dict.fromkeys(up, 3.0)) as sampler:
                for number in range(size):
                    starts = replicas.log_lengths()
                    with network.cut(0, backends.port, **DIRECTIONS[number % 3]):
                        wait_until(lambda: _votes(keys, NAMES[0]) == {DOWN}, "the replica sees all Down")
                        replicas.wait_for(disagreed)
                        report.expect(_votes(keys, NAMES[1]) == {UP}, "the others do not see all Up")
                        report.expect(all(replica.health() == 200 for replica in replicas), "one broken network is an outage")
                        changes = replicas.status_changes(starts)
                        report.expect_no_flaps([each for each in changes if each.service != "pair"], may_be_lost=False)
                        codes = {each.code for each in changes}
                        report.expect(codes == {"observers_disagree"}, f"the codes of a disagreement are {codes}")
                        with network.cut(1, backends.port):
                            replicas.wait_for(dict.fromkeys(up, DOWN))
                        replicas.wait_for(disagreed)
                    replicas.wait_for(up)
        report.figures = f"{size} cuts"
        report.add_samples(sampler)


def _votes(keys: RegistryKeys, replica: str) -> set[str]:
    return {state["status"] for state in keys.states(replica).values()}


# ---- all


@dataclass(frozen=True)
class Scenario:
    run: Callable[[Path, SharingReport, int, random.Random], None]
    size: int
    short_size: int


SCENARIOS = {
    "changes": Scenario(change, 1000, 40),
    "kills": Scenario(kill, 6, 1),
    "SIGSTOP": Scenario(stop, 6, 1),
    "clocks": Scenario(set_clocks, 6, 1),
    "etcd members": Scenario(lose_members, 60, 7),
    "etcd faults": Scenario(fail_etcd, 3, 1),
    "etcd users": Scenario(refuse, 3, 1),
    "cut from etcd": Scenario(cut_from_etcd, 6, 1),
    "cut from backends": Scenario(cut_from_backends, 6, 1),
}


def run_scenario(folder: Path, name: str, size: int, rng: random.Random) -> SharingReport:
    """Raises `pytest.skip.Exception` if this machine cannot run it."""
    report = SharingReport(name)
    folder.mkdir()
    SCENARIOS[name].run(folder, report, size, rng)
    return report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.sharing", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--short", action="store_true", help="as the tests do")
    parser.add_argument("--seed", type=int, default=None)
    arguments = parser.parse_args()
    seed = random.randrange(10**6) if arguments.seed is None else arguments.seed
    print(f"seed {seed}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.2f}\n")
    print("| scenario | figures | answers | problems |\n|---|---|---|---|", flush=True)
    problems: list[str] = []
    with tempfile.TemporaryDirectory(prefix="svcnode-sharing-") as folder:
        for number, name in enumerate(arguments.only):
            scenario = SCENARIOS[name]
            size = scenario.short_size if arguments.short else scenario.size
            try:
                report = run_scenario(Path(folder) / str(number), name, size, random.Random(seed))
            except pytest.skip.Exception as exc:
                print(f"| {name} | skipped: {exc} | | |", flush=True)
                continue
            print(f"| {name} | {report.figures} | {report.samples} | {len(report.problems)} |", flush=True)
            problems += report.problems
    print("".join(f"\n{problem}" for problem in problems[:20]))
    print(f"false answers, lost services, ghosts, flaps and failed requests: {len(problems)}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
