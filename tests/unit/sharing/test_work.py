"""Drains and maintenance of a node on several machines, in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, cast

import pytest

from svcnode.core.errors import ControlError, RegistryPermissionError
from svcnode.core.model import Health, Maintenance
from svcnode.net.etcd_json import Delete, KeyValue, Lease, Put
from svcnode.node.overrides import ALL_REPLICAS, OWN
from svcnode.sharing.format import KeyKind, WorkDocument, encode_document, encode_key
from svcnode.sharing.view import SharedWork
from svcnode.sharing.work import LEASE_MARGIN_S, MAX_OWN, WorkClient, WorkName, work_fields
from tests.support.registry_keys import ROOT as KEYS_ROOT
from tests.support.registry_keys import RegistryKeys
from tests.support.replica_simulation import LEASE_S, ROOT, MemoryCache, Process, Simulation

if TYPE_CHECKING:
    from svcnode.sharing.etcd import EtcdClient

WALL_S = 1.6e9  # when the simulation begins
SETTLE_S = 5.0
DRAIN = WorkName(KeyKind.DRAINS)
DRAIN_KEY = encode_key(ROOT, KeyKind.DRAINS, "all")
DRAIN_DOCUMENT = WorkDocument("alice", "replica:a", "kernel update", WALL_S)


def wall_s(simulation: Simulation) -> float:
    return WALL_S + simulation.now_s


def start(simulation: Simulation, *names: str) -> list[Process]:
    """Replicas whose monotonic clocks differ, until they have settled."""
    processes = [
        simulation.start(name, clock_s=1000.0 * index, wall_clock=lambda: wall_s(simulation))
        for index, name in enumerate(names)
    ]
    simulation.run_for(SETTLE_S)
    return processes


def drain(simulation: Simulation) -> None:
    simulation.write(Put(DRAIN_KEY, encode_document(DRAIN_DOCUMENT)))


def plan(simulation: Simulation, from_s: float, until_s: float, *names: str, kind: KeyKind) -> None:
    """From and until are seconds from now."""
    times = [wall_s(simulation) + from_s, wall_s(simulation) + until_s]
    document = encode_document(WorkDocument("bob", "client", "upgrade", wall_s(simulation), *times))
    simulation.write(Put(encode_key(ROOT, kind, "all", *names), document))


def healths(*processes: Process) -> list[Health]:
    return [process.health() for process in processes]


def shown(process: Process) -> list[tuple[str | None, str, str | None]]:
    """Who, what, and of which service."""
    fields = work_fields(process.replica.work.shown(), wall_s(process.simulation))
    return [(one["replica"], one["kind"], one["service_id"]) for one in fields]


HEALTHY, PARTIAL, UNHEALTHY = Health.HEALTHY, Health.PARTIAL, Health.UNHEALTHY


# ---- a drain of all replicas


def test_a_drain_of_all_replicas_holds_on_each_until_it_is_ended(simulation: Simulation) -> None:
    a, b = start(simulation, "a", "b")
    drain(simulation)
    simulation.run_for(1)
    assert healths(a, b) == [UNHEALTHY, UNHEALTHY]
    for process in (a, b):
        reason = process.node.condition.drain_reason
        assert all(part in reason for part in ("kernel update", "alice", "a"))
        assert shown(process) == [(None, "drain", None)]
    simulation.write(Delete(DRAIN_KEY))
    simulation.run_for(1)
    assert healths(a, b) == [HEALTHY, HEALTHY]
    assert shown(a) == []


def test_neither_drain_ends_the_other(simulation: Simulation) -> None:
    a, b = start(simulation, "a", "b")
    a.call(lambda: a.node.overrides.drain("disk"))
    drain(simulation)
    simulation.run_for(1)
    assert {*a.node.overrides.drains} == {OWN, ALL_REPLICAS}
    b.call(b.node.overrides.undrain)  # that of b only, which has none
    simulation.run_for(1)
    assert healths(a, b) == [UNHEALTHY, UNHEALTHY]
    simulation.write(Delete(DRAIN_KEY))
    simulation.run_for(1)
    assert healths(a, b) == [UNHEALTHY, HEALTHY]
    assert a.node.condition.drain_reason == "disk"


def test_a_replica_that_joins_later_drains_before_it_has_started(simulation: Simulation) -> None:
    start(simulation, "a")
    drain(simulation)
    late = simulation.start("late")
    seen: set[Health] = set()
    simulation.after_step = lambda: seen.add(late.health())
    simulation.run_for(SETTLE_S)
    assert late.health() is UNHEALTHY
    assert HEALTHY not in seen


def test_a_replica_that_has_lost_etcd_drains_by_its_last_view(simulation: Simulation) -> None:
    a, b = start(simulation, "a", "b")
    drain(simulation)
    simulation.run_for(1)
    simulation.etcd.stop()
    simulation.run_for(10 * LEASE_S)
    assert healths(a, b) == [UNHEALTHY, UNHEALTHY]
    simulation.etcd.start()
    simulation.run_for(SETTLE_S)
    b.client.requests.is_cut = b.client.responses.is_cut = True
    simulation.write(Delete(DRAIN_KEY))
    simulation.run_for(10 * LEASE_S)
    assert healths(a, b) == [HEALTHY, UNHEALTHY]
    b.client.reconnect()
    simulation.run_for(SETTLE_S)
    assert b.health() is HEALTHY


def test_a_replica_that_is_suspended_follows_when_it_goes_on(simulation: Simulation) -> None:
    a, b = start(simulation, "a", "b")
    b.suspend()
    drain(simulation)
    simulation.run_for(60)
    b.resume()
    simulation.run_for(SETTLE_S)
    assert healths(a, b) == [UNHEALTHY, UNHEALTHY]


def test_a_drain_that_a_restore_of_etcd_has_lost_is_written_again(simulation: Simulation) -> None:
    a, b = start(simulation, "a", "b")
    snapshot = simulation.etcd.snapshot()
    drain(simulation)
    simulation.run_for(30)
    seen: set[Health] = set()
    simulation.after_step = lambda: seen.update(healths(a, b))
    simulation.etcd.stop()
    simulation.etcd.start(snapshot)
    simulation.run_for(60)
    assert seen == {UNHEALTHY}
    assert DRAIN_KEY in simulation.etcd.kvs
    simulation.after_step = lambda: None
    simulation.write(Delete(DRAIN_KEY))
    simulation.run_for(SETTLE_S)
    assert healths(a, b) == [HEALTHY, HEALTHY]


# ---- restarts


def start_cached(simulation: Simulation, caches: dict[str, MemoryCache]) -> list[Process]:
    """Replicas with what an earlier process has left on their disks."""
    return [
        simulation.start(name, clock_s=1000.0 * index, wall_clock=lambda: wall_s(simulation), cache=cache)
        for index, (name, cache) in enumerate(caches.items())
    ]


def kill_all(simulation: Simulation) -> None:
    for process in simulation.processes.values():
        process.kill()
    simulation.etcd.stop()


@pytest.fixture
def caches() -> dict[str, MemoryCache]:
    return {"a": MemoryCache(), "b": MemoryCache()}


@pytest.mark.parametrize("is_wiped", [False, True])
def test_what_is_asked_of_all_survives_a_restart_of_all_together_with_a_restore(
    simulation: Simulation, caches: dict[str, MemoryCache], is_wiped: bool
) -> None:
    start_cached(simulation, caches)
    simulation.run_for(SETTLE_S)
    snapshot = simulation.etcd.snapshot()
    simulation.run_for(60)
    drain(simulation)
    plan(simulation, 0, 1000, kind=KeyKind.MAINTENANCE)
    plan(simulation, 500, 1000, "db", kind=KeyKind.PLANNED_MAINTENANCE)
    simulation.run_for(0.1)
    asked = {key: kv.value for key, kv in simulation.etcd.kvs.items() if "/all" in key}
    kill_all(simulation)
    if is_wiped:
        simulation.etcd.wipe()
    else:
        simulation.etcd.start(snapshot)
    a, b = start_cached(simulation, caches)
    seen: set[Health] = set()
    simulation.after_step = lambda: seen.update(healths(a, b))
    simulation.run_for(60)
    assert {key: simulation.etcd.kvs[key].value for key in asked} == asked
    assert len(asked) == 3
    assert [bool(simulation.etcd.kvs[key].lease_id) for key in sorted(asked)] == [False, True, True]
    assert HEALTHY not in seen
    assert healths(a, b) == [UNHEALTHY, UNHEALTHY]
    for process in (a, b):
        assert process.node.maintenance.current() is not None
        assert process.node.maintenance.next_planned("db") is not None
        assert len(shown(process)) == 3
    simulation.write(*(Delete(key) for key in asked))
    simulation.run_for(SETTLE_S)
    assert healths(a, b) == [HEALTHY, HEALTHY]
    assert a.node.maintenance.current() is None
    assert not any("/all" in key for key in simulation.etcd.kvs)


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_drain_that_was_ended_while_a_replica_was_off_does_not_come_back(
    simulation: Simulation, caches: dict[str, MemoryCache], is_compacted: bool
) -> None:
    a, b = start_cached(simulation, caches)
    simulation.run_for(SETTLE_S)
    drain(simulation)
    simulation.run_for(SETTLE_S)
    b.kill()
    simulation.write(Delete(DRAIN_KEY))
    simulation.run_for(30)
    if is_compacted:
        simulation.etcd.compact()
    b = start_cached(simulation, {"b": caches["b"]})[0]
    simulation.run_for(60)
    assert DRAIN_KEY not in simulation.etcd.kvs
    assert healths(a, b) == [HEALTHY, HEALTHY]


def test_without_etcd_a_replica_starts_with_what_was_asked_last(
    simulation: Simulation, caches: dict[str, MemoryCache]
) -> None:
    start_cached(simulation, caches)
    simulation.run_for(SETTLE_S)
    drain(simulation)
    plan(simulation, 0, 100, kind=KeyKind.MAINTENANCE)
    simulation.run_for(0.1)
    kill_all(simulation)
    a, b = start_cached(simulation, caches)
    simulation.run_for(10 * LEASE_S - 10)
    for process in (a, b):
        assert process.health() is UNHEALTHY
        assert process.node.maintenance.current() is not None
    simulation.run_for(20)
    assert (a.health(), a.node.maintenance.current()) == (UNHEALTHY, None)
    simulation.etcd.start()
    simulation.write(Delete(DRAIN_KEY))
    simulation.run_for(SETTLE_S)
    assert healths(a, b) == [HEALTHY, HEALTHY]
    kill_all(simulation)
    a, b = start_cached(simulation, caches)
    simulation.run_for(SETTLE_S)
    assert healths(a, b) == [PARTIAL, PARTIAL], "what has ended is forgotten"


def test_what_etcd_has_lost_and_cannot_store_again_is_found_and_ended_at_a_replica(simulation: Simulation) -> None:
    caches = {"a": MemoryCache()}
    (a,) = start_cached(simulation, caches)
    simulation.run_for(SETTLE_S)
    snapshot = simulation.etcd.snapshot()
    drain(simulation)
    simulation.run_for(30)
    simulation.etcd.stop()
    simulation.etcd.start(snapshot)
    simulation.etcd.is_full = True
    simulation.run_for(30)
    assert (a.health(), shown(a)) == (UNHEALTHY, [(None, "drain", None)])
    assert DRAIN_KEY not in simulation.etcd.kvs
    client = WorkClient(lambda: nullcontext(a.client), ROOT, "replica:a", node_work=a.replica.work)
    calls: list[asyncio.Task[WorkDocument | None]] = []

    def get() -> WorkDocument | None:
        a.call(lambda: calls.append(a.loop.create_task(client.get(DRAIN))))
        simulation.run_for(1)
        return calls[-1].result()

    assert get() == DRAIN_DOCUMENT
    ends: list[asyncio.Task[None]] = []
    a.call(lambda: ends.append(a.loop.create_task(client.end(DRAIN))))
    simulation.run_for(1)
    assert (ends[0].result(), get(), shown(a)) == (None, None, [])
    simulation.etcd.is_full = False
    a.kill()
    (a,) = start_cached(simulation, caches)
    simulation.run_for(60)
    assert (a.health(), DRAIN_KEY in simulation.etcd.kvs) == (HEALTHY, False)


# ---- maintenance of all replicas


def test_maintenance_of_all_replicas_begins_and_ends_by_the_wall_clock(simulation: Simulation) -> None:
    a, b = start(simulation, "a", "b")
    plan(simulation, 100, 200, kind=KeyKind.PLANNED_MAINTENANCE)
    plan(simulation, 0, 50, "db", kind=KeyKind.MAINTENANCE)
    simulation.run_for(1)
    for process in (a, b):
        maintenance = process.node.maintenance
        assert maintenance.current() is None
        found = maintenance.current("db")
        assert found is not None
        assert found.source == ALL_REPLICAS
        assert "bob" in found.by
        assert maintenance.next_planned() is not None
        assert shown(process) == [(None, "planned_maintenance", None), (None, "maintenance", "db")]
    simulation.run_for(100)
    for process in (a, b):
        found = process.node.maintenance.current("db")
        assert found == process.node.maintenance.current()
        assert shown(process) == [(None, "planned_maintenance", None)]
    simulation.etcd.stop()  # it ends without the registry, too
    simulation.run_for(100)
    assert [process.node.maintenance.current() for process in (a, b)] == [None, None]
    assert shown(a) == []


def test_maintenance_of_all_replicas_is_ended_early_and_beside_that_of_one(simulation: Simulation) -> None:
    (a,) = start(simulation, "a")
    a.call(lambda: a.node.maintenance.set(Maintenance("control", a.node.now_s() + 500, "carol")))
    plan(simulation, 0, 1000, kind=KeyKind.MAINTENANCE)
    simulation.run_for(1)
    assert (found := a.node.maintenance.current()) is not None
    assert found.source == ALL_REPLICAS
    simulation.write(Delete(encode_key(ROOT, KeyKind.MAINTENANCE, "all")))
    simulation.run_for(1)
    assert (found := a.node.maintenance.current()) is not None
    assert found.source == "control"


# ---- what is of one replica, and shown by the others


def test_the_others_show_the_drain_and_the_maintenance_of_one_replica_and_do_not_obey(simulation: Simulation) -> None:
    a, b = start(simulation, "a", "b")
    a.call(lambda: a.node.overrides.drain("disk (by alice)"))
    a.call(lambda: a.node.maintenance.set(Maintenance("control", a.node.now_s() + 100, "alice", "disk"), "db"))
    simulation.run_for(1)
    expected = [("a", "drain", None), ("a", "maintenance", "db")]
    assert shown(a) == shown(b) == expected
    assert healths(a, b) == [UNHEALTHY, HEALTHY]
    assert b.node.maintenance.current("db") is None
    written = {key: kv for key, kv in simulation.etcd.kvs.items() if "/drains/" in key or "/maintenance/" in key}
    assert len(written) == 2
    assert all(kv.lease_id for kv in written.values())
    simulation.run_for(150)  # longer than the time between two comparisons with a range
    again = {key: kv for key, kv in simulation.etcd.kvs.items() if "/drains/" in key}
    assert again.items() <= written.items(), "written again without a change"
    assert shown(b) == expected[:1]
    a.call(a.node.overrides.undrain)
    simulation.run_for(1)
    assert shown(b) == []


def test_of_hundreds_of_maintenances_the_others_show_some_and_that_of_the_node_first(simulation: Simulation) -> None:
    a, b = start(simulation, "a", "b")

    def maintain() -> None:
        for number in range(300):
            a.node.maintenance.set(Maintenance("schedule", a.node.now_s() + 100), f"s{number:04}")
        a.node.maintenance.set(Maintenance("control", a.node.now_s() + 100))

    a.call(maintain)
    simulation.run_for(2)
    assert len(shown(b)) == MAX_OWN
    assert ("a", "maintenance", None) in shown(b)
    assert ("a", "maintenance", "s0000") in shown(b)


def test_a_replica_that_is_lost_is_no_longer_shown_as_drained_and_writes_it_again_when_it_is_back(
    simulation: Simulation,
) -> None:
    a, b = start(simulation, "a", "b")
    a.call(lambda: a.node.overrides.drain("disk"))
    simulation.run_for(1)
    a.client.requests.is_cut = a.client.responses.is_cut = True
    simulation.run_for(2 * LEASE_S)
    assert shown(b) == []
    assert shown(a) == [("a", "drain", None)]  # it knows without the registry
    a.client.reconnect()
    simulation.run_for(SETTLE_S + LEASE_S)
    assert shown(b) == [("a", "drain", None)]


def test_a_replica_that_may_not_write_still_obeys(simulation: Simulation) -> None:
    (a,) = start(simulation, "a")
    a.client.refusal = RegistryPermissionError("denied")
    drain(simulation)
    simulation.run_for(5)
    assert a.health() is UNHEALTHY


def test_the_text_says_who_asked_where_why_and_until_when() -> None:
    window = WorkDocument("bob", "host-9-client", "upgrade", 0.0, 100.0, 4000.0)
    works = [
        SharedWork(KeyKind.DRAINS, "all", None, DRAIN_DOCUMENT),
        SharedWork(KeyKind.PLANNED_MAINTENANCE, "all", None, window),
        SharedWork(KeyKind.MAINTENANCE, "replica:a", "db", window._replace(via="replica:a")),
    ]
    drained, planned, current = (one["text"] for one in work_fields(works, 50.0))
    assert all(part in drained for part in ("draining", "2020-09-13 12:26:40 UTC", "kernel update", "alice", "a"))
    assert all(part in planned for part in ("planned", "00:01:40", "01:06:40", "bob", "host-9-client", "upgrade"))
    assert current.startswith("db")
    later = [one["text"] for one in work_fields(works, 200.0)]
    assert "planned" not in later[1]
    assert len(work_fields(works, 4000.0)) == 1


# ---- the client


class WorkKeys:
    """An `EtcdClient` of a registry in memory."""

    def __init__(self) -> None:
        self.registry = RegistryKeys()
        self.leases: list[int] = []

    async def get(self, key: str) -> KeyValue | None:
        return next((kv for kv in self.registry.range() if kv.key == key), None)

    async def keys(self, prefix: str, *, limit: int) -> list[str]:
        return [kv.key for kv in self.registry.range() if kv.key.startswith(prefix)][:limit]

    async def put(self, key: str, value: bytes, *, lease_id: int = 0) -> None:
        self.registry.put_raw(key, value)

    async def delete(self, key: str) -> None:
        if await self.get(key) is not None:
            self.registry.delete(key)

    async def grant_lease(self, ttl_s: int) -> Lease:
        self.leases.append(ttl_s)
        return Lease(len(self.leases), ttl_s)


class Client:
    def __init__(self) -> None:
        self.keys, self.now_s = WorkKeys(), WALL_S
        etcd = cast("EtcdClient", self.keys)
        self._client = WorkClient(lambda: nullcontext(etcd), KEYS_ROOT, "replica:a", lambda: self.now_s)

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        return asyncio.run(getattr(self._client, name)(*arguments, **options))

    def status_of(self, name: str, *arguments: Any) -> int:
        with pytest.raises(ControlError) as caught:
            self.call(name, *arguments)
        return caught.value.status


@pytest.fixture
def client() -> Client:
    return Client()


def test_a_drain_is_read_as_it_was_asked_for_and_ended_by_anybody(client: Client) -> None:
    assert client.call("get", DRAIN) is None
    client.call("drain", "alice", "kernel update")
    assert client.call("get", DRAIN) == WorkDocument("alice", "replica:a", "kernel update", WALL_S)
    client.call("end", DRAIN)
    client.call("end", DRAIN)
    assert client.call("get", DRAIN) is None


def test_a_maintenance_has_a_lease_that_outlives_it_and_is_not_found_after_its_end(client: Client) -> None:
    made = client.call("maintain", None, 600.0, by="alice")
    assert made.until_s == WALL_S + 600
    assert client.keys.leases == [600 + LEASE_MARGIN_S]
    name = WorkName(KeyKind.MAINTENANCE)
    client.now_s += 599
    assert client.call("get", name) == made
    client.now_s += 1
    assert client.call("get", name) is None


def test_what_is_planned_is_beside_what_is_now(client: Client) -> None:
    client.call("maintain", None, 600.0)
    client.call("plan", None, WALL_S + 1000, WALL_S + 2000)
    client.call("end", WorkName(KeyKind.MAINTENANCE))
    assert client.call("get", WorkName(KeyKind.PLANNED_MAINTENANCE)) is not None


def test_times_and_services_that_cannot_be_are_refused(client: Client) -> None:
    assert client.status_of("plan", None, WALL_S, WALL_S - 1) == 422
    assert client.status_of("plan", None, WALL_S + 9, WALL_S + 8) == 422
    assert client.status_of("maintain", "db", 600.0) == 404
    client.keys.registry.put(KeyKind.SERVICES, ("db", "x"), {"version": 1, "position": 0, "options": {"ttl": "9s"}})
    client.call("maintain", "db", 600.0)
    assert client.call("get", WorkName(KeyKind.MAINTENANCE, "db")) is not None


def test_what_a_newer_version_has_written_is_said_and_what_is_invalid_is_not_there(client: Client) -> None:
    key = encode_key(KEYS_ROOT, KeyKind.DRAINS, "all")
    client.keys.registry.put_raw(key, b'{"version": 2}')
    assert client.status_of("get", DRAIN) == 409
    client.keys.registry.put_raw(key, b"?")
    assert client.call("get", DRAIN) is None
