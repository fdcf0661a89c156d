"""Replicas in virtual time, on a simulated etcd."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import RegistryError, RegistryPermissionError
from svcnode.core.model import ChangeKind, Health, Status
from svcnode.net.etcd_json import Delete, Put
from svcnode.sharing.format import KeyKind, encode_key
from tests.support.replica_simulation import LEASE_S, ROOT, Options, Process, Simulation

if TYPE_CHECKING:
    from svcnode.core.model import Change

UP, INITIALIZING, DOWN = Status.UP, Status.INITIALIZING, Status.DOWN
STALE_AFTER_S = 7.0
SETTLE_S = 5.0  # until all replicas have joined, and all services are checked


def checked(backend: str, **options: Any) -> Options:
    return {
        "probe": f"sim://{backend}",
        "interval": "2s",
        "stale_after": f"{STALE_AFTER_S:g}s",
        "start_period": "0s",
        **options,
    }


def services(*ids: str, **options: Any) -> dict[str, Options]:
    return {service_id: checked(service_id, **options) for service_id in ids}


def start(simulation: Simulation, files: dict[str, dict[str, Options]], **settings: Any) -> list[Process]:
    """Replicas whose clocks differ, until they have settled."""
    processes = [
        simulation.start(name, file, clock_s=1e5 * number, **settings)
        for number, (name, file) in enumerate(files.items())
    ]
    simulation.run_for(SETTLE_S)
    return processes


def keys(simulation: Simulation, kind: KeyKind) -> set[str]:
    root = f"{ROOT}{kind}/"
    return {key.removeprefix(root) for key in simulation.etcd.kvs if key.startswith(root)}


# ---- evidence


@pytest.mark.parametrize("away_s", [4.0, 5.0, 6.0])
def test_a_status_is_not_lost_in_the_moment_in_which_newer_evidence_arrives(
    simulation: Simulation, away_s: float
) -> None:
    processes = start(simulation, {name: services(f"{name}1", f"{name}2") for name in "abc"})
    changes: list[tuple[float, str, str | None]] = []

    def follow(process: Process) -> None:
        def on_change(change: Change) -> None:
            if change.kind is ChangeKind.STATUS:
                changes.append((simulation.now_s, process.name, change.service_id))

        process.node.subscribe(on_change)

    for process in processes:
        follow(process)
    simulation.etcd.stop()
    simulation.run_for(away_s)
    simulation.etcd.start()
    simulation.run_for(10.0)
    assert len(changes) == len({*changes}), "two changes of a service in one moment"


def test_states_that_a_late_request_deletes_while_a_replica_joins_are_written_again(simulation: Simulation) -> None:
    """etcd may apply the request to delete what an earlier process has left long after it was sent."""
    (watching,) = start(simulation, {"b": {}})
    deleted: set[str] = set()

    def delete_once() -> None:
        if not deleted and keys(simulation, KeyKind.STATES):
            deleted.update(keys(simulation, KeyKind.STATES))
            simulation.write(Delete(encode_key(ROOT, KeyKind.STATES, "a", "-").removesuffix("-"), is_prefix=True))

    simulation.after_step = delete_once
    joining = simulation.start("a", services(*map(str, range(250)), checked_by=["a"]), clock_s=1e5)
    joining.client.requests.is_cut = True
    simulation.run_for(SETTLE_S)  # it checks its services before it can join
    joining.client.reconnect()
    joining.client.requests.delay_s = 0.3  # it joins in several transactions
    simulation.run_for(3 * STALE_AFTER_S)
    assert deleted
    assert set(watching.statuses().values()) == {UP}


# ---- the list


def test_all_replicas_have_the_same_list_and_statuses(simulation: Simulation) -> None:
    simulation.down.add("b1")
    simulation.define("of-a-client", probe="sim://x", interval="2s")
    processes = start(simulation, {"a": services("a1", "a2"), "b": services("b1"), "c": {}})
    for process in processes:
        assert process.ids() == processes[0].ids()
        assert process.statuses() == {"of-a-client": UP, "a1": UP, "a2": UP, "b1": DOWN}
        assert not process.replica.problem
    assert sorted(id_ for process in processes for id_ in process.checked()) == ["a1", "a2", "b1", "of-a-client"]


def test_a_change_reaches_the_others_at_once(simulation: Simulation) -> None:
    a, b = start(simulation, {"a": {}, "b": {}})
    a.add("db", **checked("db"))
    simulation.run_for(0.1)
    assert b.ids() == ["db"]
    a.redefine("db", **checked("db", name="the database"))
    simulation.run_for(0.1)
    assert [service.name for service, _ in b.node] == ["the database"]
    a.deregister("db")
    simulation.run_for(0.1)
    assert b.ids() == a.ids() == []


def test_a_node_is_starting_until_it_knows_the_services_of_the_others(simulation: Simulation) -> None:
    simulation.etcd.stop()
    (a,) = start(simulation, {"a": services("a1")})
    assert a.statuses() == {"a1": UP}
    assert a.health() is Health.PARTIAL
    simulation.etcd.start()
    simulation.run_for(10)
    assert a.health() is Health.HEALTHY
    assert not a.replica.problem


@pytest.mark.parametrize("may_write", [True, False])
def test_the_first_report_after_a_replica_has_joined_an_empty_registry_counts(
    simulation: Simulation, may_write: bool
) -> None:
    """There is nothing to compare the registry with, but the response to the range dates what is written after it."""
    simulation.etcd.denied = set() if may_write else {"write"}
    a = simulation.start("a", {})
    simulation.run_for(0.5)
    simulation.etcd.denied = set()
    simulation.define("job", ttl="30s")
    simulation.report("job")
    simulation.run_for(20)
    assert a.statuses() == {"job": UP}


def test_what_is_deleted_by_another_client_is_written_again(simulation: Simulation) -> None:
    a, b = start(simulation, {"a": services("a1"), "b": {}})
    simulation.write(Delete(f"{ROOT}services/", is_prefix=True))
    simulation.write(Delete(f"{ROOT}states/", is_prefix=True))
    simulation.run_for(1)
    assert keys(simulation, KeyKind.SERVICES) == {"a1/replica%3Aa"}
    simulation.run_for(20)
    assert a.statuses() == b.statuses() == {"a1": UP}


# ---- who checks


def test_a_replica_that_stops_hands_over_at_once(simulation: Simulation) -> None:
    a, b = start(simulation, {"a": services("a1", "a2", "a3"), "b": {}})
    a.stop()
    simulation.run_for(1)
    assert keys(simulation, KeyKind.REPLICAS) == {"b"}
    assert b.checked() == {"a1", "a2", "a3"}


def test_nothing_flaps_when_replicas_come_and_go(simulation: Simulation) -> None:
    ids = [f"s{number}" for number in range(6)]
    files = {"a": services(*ids, interval="3s", stale_after="30s"), "b": {}, "c": {}}
    a, b, c = start(simulation, files)
    seen: set[Status] = set()
    simulation.after_step = lambda: seen.update(a.statuses().values())
    b.stop()
    simulation.run_for(3)
    b.kill()
    c.kill()
    simulation.run_for(20)
    start(simulation, {"b": {}, "c": {}})
    simulation.run_for(20)
    assert seen == {UP}


# ---- etcd fails


def test_evidence_of_others_expires_when_etcd_is_away(simulation: Simulation) -> None:
    ids = [f"s{number}" for number in range(5)]
    a, b = start(simulation, {"a": services(*ids), "b": {}})
    simulation.etcd.stop()
    simulation.run_for(STALE_AFTER_S + 1)
    for process, other in ((a, b), (b, a)):
        assert "refused" in process.replica.problem
        statuses, codes = process.statuses(), process.codes()
        assert {statuses[id_] for id_ in process.checked()} == {UP}
        assert {(statuses[id_], codes[id_]) for id_ in other.checked()} == {(INITIALIZING, ReasonCode.REGISTRY_LOST)}
    simulation.etcd.start()
    simulation.run_for(15)
    for process in (a, b):
        assert not process.replica.problem
        assert set(process.statuses().values()) == {UP}


@pytest.mark.parametrize("is_restarted", [False, True])
def test_observers_that_cannot_vote_decide_for_themselves_and_say_so(
    simulation: Simulation, is_restarted: bool
) -> None:
    a, b = start(simulation, {name: services("db", observers=2) for name in ("a", "b")})
    simulation.etcd.stop()
    if is_restarted:
        a.kill()
        a = simulation.start("a", services("db", observers=2))
    simulation.run_for(3 * STALE_AFTER_S)
    for process in (a, b):
        assert process.codes() == {"db": ReasonCode.UNCONFIRMED}
        assert (process.statuses(), process.node.health) == ({"db": UP}, 206)
    simulation.etcd.start()
    simulation.run_for(15)
    for process in (a, b):
        assert (process.codes(), process.node.health) == ({"db": ReasonCode.OK}, 200)


@pytest.mark.parametrize("directions", [("requests",), ("responses",), ("requests", "responses")])
def test_a_replica_that_is_cut_off_says_nothing_old_and_returns(
    simulation: Simulation, directions: tuple[str, ...]
) -> None:
    ids = [f"s{number}" for number in range(5)]
    a, b = start(simulation, {"a": services(*ids), "b": {}})
    by_a = a.checked()
    for direction in directions:
        getattr(b.client, direction).is_cut = True
    simulation.down.update(by_a)
    simulation.run_for(STALE_AFTER_S + LEASE_S + 5)
    heard_of_it = "responses" not in directions  # before its connection was lost
    assert {b.statuses()[id_] for id_ in by_a} == {DOWN if heard_of_it else INITIALIZING}
    assert {a.statuses()[id_] for id_ in by_a} == {DOWN}
    assert a.checked() == set(ids)  # also if what b publishes still arrives: b does not know that it does
    b.client.reconnect()
    simulation.run_for(20)
    assert a.statuses() == b.statuses()
    assert (a.checked(), b.checked()) == (by_a, set(ids) - by_a)


def test_a_suspended_replica_trusts_nothing_from_before(simulation: Simulation) -> None:
    ids = [f"s{number}" for number in range(5)]
    a, b = start(simulation, {"a": services(*ids), "b": {}})
    b.suspend()
    simulation.run_for(2)
    simulation.down.update(ids)
    simulation.run_for(STALE_AFTER_S + LEASE_S)
    b.resume()
    seen: set[Status] = set()
    simulation.after_step = lambda: seen.update(b.statuses().values())
    simulation.run_for(20)
    assert UP not in seen
    assert a.statuses() == b.statuses() == dict.fromkeys(ids, DOWN)


def test_messages_that_arrive_late_are_not_fresh(simulation: Simulation) -> None:
    ids = [f"s{number}" for number in range(5)]
    a, b = start(simulation, {"a": services(*ids), "b": {}})
    by_a = a.checked()
    b.client.responses.delay_s = 1.9
    simulation.run_for(30)
    simulation.down.update(by_a)
    ended_s = simulation.now_s

    def check() -> None:
        if simulation.now_s >= ended_s + STALE_AFTER_S:
            assert UP not in {b.statuses()[id_] for id_ in by_a}

    simulation.after_step = check
    simulation.run_for(30)
    assert {b.statuses()[id_] for id_ in by_a} == {DOWN}


def test_a_restore_from_a_snapshot_loses_no_service_and_brings_none_back(simulation: Simulation) -> None:
    a, b = start(simulation, {"a": services("a1", "old", stale_after="60s"), "b": {}})
    simulation.run_for(20)
    snapshot = simulation.etcd.snapshot()
    a.deregister("old")
    b.add("new", **checked("new", stale_after="60s"))
    simulation.run_for(10)
    lists: set[tuple[str, ...]] = set()
    statuses: set[Status] = set()

    def note() -> None:
        for process in (a, b):
            lists.add(tuple(process.ids()))
            statuses.update(process.statuses().values())

    simulation.etcd.stop()
    simulation.etcd.start(snapshot)
    simulation.after_step = note
    simulation.run_for(60)
    assert lists == {("a1", "new")}
    assert statuses == {UP}
    assert keys(simulation, KeyKind.SERVICES) == {"a1/replica%3Aa", "new/replica%3Ab"}
    assert not a.replica.problem


@pytest.mark.parametrize("seed", range(3))
def test_a_range_that_arrives_with_the_news_of_a_restore_brings_no_service_back(
    simulation: Simulation, seed: int
) -> None:
    random.seed(seed)  # of the delays
    a, b = start(simulation, {"a": services("a1", "old"), "b": {}})
    snapshot = simulation.etcd.snapshot()
    a.deregister("old")
    simulation.run_for(10.1)
    lists: set[tuple[str, ...]] = set()
    simulation.after_step = lambda: lists.add(tuple(b.ids()))
    simulation.etcd.stop()
    simulation.etcd.start(snapshot)
    b.client.responses.is_cut = True
    simulation.run_for(0.3)  # b sends a fence and a range meanwhile
    b.client.responses.reconnect(keeps=True)
    simulation.run_for(12)
    assert lists == {("a1",)}


def reported_code(simulation: Simulation, process: Process, duration_s: float) -> set[str]:
    """The codes of the service `job` in this time, in which its client reports every 2 s if it can."""
    codes = set()
    end_s = simulation.now_s + duration_s
    while simulation.now_s < end_s:
        if simulation.etcd.is_running:
            simulation.report("job")
        for _ in range(4):
            simulation.run_for(0.5)
            codes.add(process.codes()["job"])
    return codes


def test_a_client_that_cannot_report_while_etcd_is_away_is_not_silent(simulation: Simulation) -> None:
    simulation.define("job", ttl="6s")
    (a,) = start(simulation, {"a": {}})
    assert reported_code(simulation, a, 20) == {ReasonCode.REPORTED}
    simulation.etcd.stop()
    assert reported_code(simulation, a, 30) == {ReasonCode.REPORTED, ReasonCode.REGISTRY_LOST}
    simulation.etcd.start()
    assert ReasonCode.TTL_EXPIRED not in reported_code(simulation, a, 10)
    assert a.statuses() == {"job": UP}
    simulation.run_for(10)
    assert a.codes() == {"job": ReasonCode.TTL_EXPIRED}


def test_a_replica_that_missed_a_restore_writes_nothing_that_is_dated_by_lost_revisions(simulation: Simulation) -> None:
    a, _ = start(simulation, {"a": services("a1"), "b": {}})
    snapshot = simulation.etcd.snapshot()
    simulation.run_for(5)
    a.client.requests.is_cut = a.client.responses.is_cut = True
    simulation.etcd.stop()
    simulation.etcd.start(snapshot)
    for number in range(100):  # beyond the revision that a knows
        simulation.write(Put("/other", str(number).encode()))
    records: dict[int, int] = {}  # the revisions by which records of a are dated, by their own

    def note() -> None:
        record = simulation.etcd.kvs.get(encode_key(ROOT, KeyKind.EVIDENCE, "a"))
        if record is not None:
            records[record.mod_revision] = json.loads(record.value)["revision"]

    note()
    simulation.after_step = note
    a.client.reconnect()
    simulation.run_for(10)
    known, *dates = records.values()
    assert len(dates) > 5
    assert set(dates) <= {0, known, *records}
    assert a.statuses() == {"a1": UP}


def test_a_record_whose_response_was_lost_is_found(simulation: Simulation) -> None:
    (a,) = start(simulation, {"a": services("a1")})
    key = encode_key(ROOT, KeyKind.REPLICAS, "a")
    joined = simulation.etcd.kvs[key]
    a.client.responses.is_cut = True
    simulation.run_for(1.5)
    a.client.responses.reconnect(keeps=False)
    simulation.run_for(10)
    assert simulation.etcd.kvs[key] == joined  # it has not joined again
    assert a.statuses() == {"a1": UP}
    assert not a.replica.problem


def test_a_compaction_leads_to_a_new_range(simulation: Simulation) -> None:
    a, b = start(simulation, {"a": services("a1"), "b": {}})
    b.client.responses.is_cut = True
    a.add("a2", **checked("a2"))
    simulation.run_for(8)
    simulation.etcd.compact()
    b.client.responses.reconnect(keeps=False)
    simulation.run_for(15)
    assert b.statuses() == {"a1": UP, "a2": UP}


@pytest.mark.parametrize("fault", ["full", "read"])
def test_a_registry_that_refuses_is_a_problem_and_no_end(simulation: Simulation, fault: str) -> None:
    a, b = start(simulation, {"a": services("a1", "a2", "a3", "a4"), "b": {}})
    if fault == "full":
        simulation.etcd.is_full = True
    else:
        simulation.etcd.denied.add(fault)
    simulation.run_for(70)
    assert a.replica.problem
    assert {a.statuses()[id_] for id_ in a.checked()} == {UP}
    simulation.etcd.is_full = False
    simulation.etcd.denied.clear()
    simulation.run_for(20)
    for process in (a, b):
        assert not process.replica.problem
        assert set(process.statuses().values()) == {UP}


def test_each_kind_of_problem_is_logged_once_until_there_is_none(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    start(simulation, {"a": services("a1")})
    caplog.set_level("INFO")
    for _ in range(2):
        caplog.clear()
        simulation.etcd.stop()
        simulation.run_for(4)
        simulation.etcd.is_full = True
        simulation.etcd.start()
        simulation.run_for(4)
        simulation.etcd.is_full = False
        simulation.run_for(5)
        records = [record.__dict__ for record in caplog.records if record.name == "svcnode.sharing"]
        assert [record.get("event") for record in records] == [
            "registry_problem",
            "registry_problem",
            "registry_recovered",
        ]
        assert 7 < records[-1]["outage_s"] < 15


REFUSALS = (
    RegistryPermissionError("etcd: permission denied"),
    RegistryError("etcd: request is too large"),
    None,  # its publisher hangs
)


@pytest.mark.parametrize("refusal", REFUSALS)
def test_others_check_the_services_of_a_replica_that_cannot_publish(
    simulation: Simulation,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    refusal: RegistryError | None,
) -> None:
    ids = {f"s{number}" for number in range(5)}
    a, b = start(simulation, {"a": services(*ids), "b": services(*ids)})
    by_a = a.checked()
    if refusal is None:
        monkeypatch.setattr(a.replica._publishing, "_write", lambda _: asyncio.Event().wait())
    else:
        a.client.refusal = refusal
    simulation.down.add(failing := min(by_a))
    simulation.run_for(LEASE_S + 1)
    assert keys(simulation, KeyKind.REPLICAS) == {"b"}
    assert b.checked() == ids
    simulation.run_for(8)
    expected = {**dict.fromkeys(ids, UP), failing: DOWN}
    assert b.statuses() == expected
    assert {id_: a.statuses()[id_] for id_ in by_a} == {id_: expected[id_] for id_ in by_a}
    simulation.run_for(40)
    assert keys(simulation, KeyKind.REPLICAS) == {"b"}, "it has joined again without being able to publish"
    assert b.statuses() == expected
    assert a.replica.problem
    lines = [record.getMessage() for record in caplog.records if record.__dict__.get("event") == "registry_problem"]
    assert len([line for line in lines if "is not renewed" in line]) == 1
    assert len(lines) == (1 if refusal is None else 2)
    if refusal is not None:
        a.client.refusal = None
        simulation.run_for(10)
        assert keys(simulation, KeyKind.REPLICAS) == {"a", "b"}
        assert (a.checked(), b.checked()) == (by_a, ids - by_a)
        assert not a.replica.problem


def test_an_idle_replica_keeps_its_lease(simulation: Simulation) -> None:
    start(simulation, {"a": {}}, lease_s=2.0)
    joined = simulation.etcd.kvs[f"{ROOT}replicas/a"]
    simulation.run_for(100)
    assert simulation.etcd.kvs[f"{ROOT}replicas/a"] == joined


def test_one_failed_renewal_does_not_lose_the_lease(simulation: Simulation) -> None:
    (a,) = start(simulation, {"a": services("a1")})
    revision = simulation.etcd.kvs[f"{ROOT}replicas/a"].mod_revision
    for _ in range(6):
        a.client.requests.is_cut = True
        simulation.run_for(4)
        a.client.requests.reconnect(keeps=False)
        simulation.run_for(4.5)
    assert simulation.etcd.kvs[f"{ROOT}replicas/a"].mod_revision == revision


# ---- one name, two processes


def test_the_last_process_that_joins_under_a_name_has_it(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    (first,) = start(simulation, {"a": services("s1")})
    simulation.processes["first"] = simulation.processes.pop("a")
    (second,) = start(simulation, {"a": services("s1")})
    simulation.run_for(30)
    assert "another process" in first.replica.problem
    assert len([record for record in caplog.records if "another process" in record.getMessage()]) == 1
    assert not second.replica.problem
    assert first.statuses() == second.statuses() == {"s1": UP}
    second.kill()
    simulation.run_for(LEASE_S + 10)
    assert not first.replica.problem
    assert keys(simulation, KeyKind.REPLICAS) == {"a"}


# ---- issues


def test_an_issue_of_one_replica_is_an_issue_of_all(simulation: Simulation) -> None:
    a, b = start(simulation, {"a": {}, "b": {}})
    a.call(lambda: a.node.overrides.set_issue("disk: full"))
    simulation.run_for(1)
    assert (b.health(), b.issues()) == (Health.UNHEALTHY, ("disk: full (a)",))
    b.call(lambda: b.node.overrides.set_issue("net"))
    simulation.run_for(1)
    assert a.issues() == ("disk: full", "net (b)")
    a.call(a.node.overrides.clear_issue)
    b.call(lambda: b.node.overrides.clear_issue("net"))
    simulation.run_for(1)
    assert a.issues() == b.issues() == ()
    assert not keys(simulation, KeyKind.ISSUES)


# ---- cost


def test_evidence_costs_one_write_per_replica_and_second(simulation: Simulation) -> None:
    start(simulation, {"a": services(*(f"s{number}" for number in range(10))), "b": {}})
    simulation.run_for(10)
    before = simulation.etcd.write_count
    simulation.run_for(20)
    assert simulation.etcd.write_count - before <= 2 * 21


def test_an_error_of_this_program_is_logged_and_the_replica_goes_on(
    simulation: Simulation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = start(simulation, {"a": {}, "b": {}})

    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(b.services, "update", fail)
        a.add("a1", **checked("a1"))
        simulation.run_for(5)
    assert "a bug" in b.replica.problem
    assert "a bug" in caplog.text
    simulation.run_for(70)
    assert b.statuses() == {"a1": UP}


# ---- the log


def sharing_events(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """The events about the registry and the replicas, each with the replicas that it names."""
    records = [record for record in caplog.records if record.name == "svcnode.sharing"]
    return [(getattr(record, "event", ""), getattr(record, "replica", "")) for record in records]


def test_replicas_that_join_and_leave_are_one_line_each(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "svcnode.sharing")
    start(simulation, {"a": services("a1")})
    assert sharing_events(caplog) == [("registry_joined", "a")]
    caplog.clear()
    b = simulation.start("b", {})
    simulation.run_for(SETTLE_S)
    assert sorted(sharing_events(caplog)) == [("registry_joined", "b"), ("replica_joined", "b")]
    caplog.clear()
    b.kill()
    simulation.run_for(2 * LEASE_S)
    assert sharing_events(caplog) == [("replica_left", "b")]
