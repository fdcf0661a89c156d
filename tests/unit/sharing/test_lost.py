"""Nothing is forgotten in silence: what the registry loses by a restore or a wipe, in virtual time."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from svcnode.core.model import Health, Status
from svcnode.net.etcd_json import Delete, Put
from svcnode.sharing.format import MAX_NAME_CHARS, KeyKind, encode_key, is_lost, lost_owner, original_owner
from tests.support.replica_simulation import (
    LEASE_S,
    ROOT,
    MemoryCache,
    Options,
    Process,
    Simulation,
)

UP, INITIALIZING, DOWN = Status.UP, Status.INITIALIZING, Status.DOWN
SETTLE_S = 5.0
RESTORED_S = 20.0  # the list is frozen for less


def checked(backend: str, **options: Any) -> Options:
    return {"probe": f"sim://{backend}", "interval": "2s", "stale_after": "60s", "start_period": "0s", **options}


def start(simulation: Simulation, names: str = "ab", **settings: Any) -> list[Process]:
    """Replicas with a service each, and a service of a client."""
    simulation.define("web", **checked("web"))
    processes = [
        simulation.start(name, {f"of-{name}": checked(name)}, clock_s=1e5 * number, **settings)
        for number, name in enumerate(names)
    ]
    simulation.run_for(SETTLE_S)
    return processes


def keys(simulation: Simulation, kind: KeyKind) -> set[str]:
    root = f"{ROOT}{kind}/"
    return {key.removeprefix(root) for key in simulation.etcd.kvs if key.startswith(root)}


def note_lists(simulation: Simulation, *processes: Process) -> set[frozenset[str]]:
    lists: set[frozenset[str]] = set()
    simulation.after_step = lambda: lists.update(
        frozenset(each.ids()) for each in processes if each.is_alive and each.node.condition.starting is False
    )
    return lists


# ---- the login


@pytest.mark.parametrize("away_s", [0.0, 30.0])
def test_tokens_that_are_younger_than_a_restored_snapshot_are_replaced_by_one_login_each(
    simulation: Simulation, away_s: float
) -> None:
    """etcd does not answer a request with such a token."""
    simulation.etcd.requires_auth = True
    a, b = start(simulation)
    snapshot = simulation.etcd.snapshot()
    simulation.define("young", **checked("young"))
    simulation.run_for(60)
    simulation.etcd.stop()
    simulation.etcd.start()
    simulation.run_for(SETTLE_S)
    login_count = simulation.etcd.login_count
    simulation.etcd.stop()
    simulation.run_for(away_s)
    simulation.etcd.start(snapshot)
    simulation.run_for(SETTLE_S)
    assert [process.replica.is_connected for process in (a, b)] == [True, True]
    assert simulation.etcd.login_count == login_count + 2
    simulation.run_for(RESTORED_S)
    assert [process.replica.lost for process in (a, b)] == [(("young",), ())] * 2
    assert simulation.etcd.login_count == login_count + 2


# ---- services


@pytest.mark.parametrize("is_other_cluster", [False, True])
def test_a_service_that_a_wiped_registry_has_lost_stays_in_the_list_and_is_marked(
    simulation: Simulation, caplog: pytest.LogCaptureFixture, is_other_cluster: bool
) -> None:
    a, b = start(simulation)
    assert {a.health(), b.health()} == {Health.HEALTHY}
    lists = note_lists(simulation, a, b)
    simulation.etcd.wipe(is_other_cluster=is_other_cluster)
    with caplog.at_level(logging.WARNING, "svcnode.sharing"):
        simulation.run_for(RESTORED_S)
    assert lists == {frozenset({"of-a", "of-b", "web"})}
    assert keys(simulation, KeyKind.SERVICES) == {"of-a/replica%3Aa", "of-b/replica%3Ab", "web/lost%3Aclient"}
    for process in (a, b):
        assert process.statuses() == dict.fromkeys(("of-a", "of-b", "web"), UP)
        assert process.replica.lost == (("web",), ())
        assert process.health() is Health.PARTIAL
        assert len(process.node.condition.caveats) == 1
        assert process.issues() == ()
    logged = [record for record in caplog.records if getattr(record, "event", "") == "registry_entries_lost"]
    assert len(logged) == 2
    assert all("web" in record.getMessage() for record in logged)


def test_bad_news_of_a_lost_service_still_arrives(simulation: Simulation) -> None:
    a, b = start(simulation)
    simulation.etcd.wipe()
    simulation.run_for(RESTORED_S)
    simulation.down.add("web")
    simulation.run_for(10)
    assert a.statuses()["web"] is b.statuses()["web"] is DOWN


def test_a_service_that_is_registered_again_is_no_longer_lost(simulation: Simulation) -> None:
    a, b = start(simulation)
    simulation.etcd.wipe()
    simulation.run_for(RESTORED_S)
    simulation.define("web", **checked("web", name="registered again"))
    simulation.run_for(SETTLE_S)
    assert keys(simulation, KeyKind.SERVICES) == {"of-a/replica%3Aa", "of-b/replica%3Ab", "web/client"}
    assert {a.health(), b.health()} == {Health.HEALTHY}
    assert a.replica.lost == b.replica.lost == ((), ())
    assert {service.name for service, _ in b.node if service.id == "web"} == {"registered again"}


def test_a_lost_service_goes_when_its_key_is_deleted(simulation: Simulation) -> None:
    a, b = start(simulation)
    simulation.etcd.wipe()
    simulation.run_for(RESTORED_S)
    simulation.undefine("web", "lost:client")
    simulation.run_for(SETTLE_S)
    assert set(a.ids()) == set(b.ids()) == {"of-a", "of-b"}
    assert {a.health(), b.health()} == {Health.HEALTHY}
    simulation.run_for(120)  # with new ranges
    assert set(a.ids()) == {"of-a", "of-b"}


def test_a_registration_is_not_lost_because_another_owner_has_the_service_too(simulation: Simulation) -> None:
    a, b = start(simulation)
    simulation.define("of-b", **checked("b"))
    simulation.run_for(1)
    simulation.etcd.wipe()
    simulation.run_for(RESTORED_S)
    assert {"of-b/replica%3Ab", "of-b/lost%3Aclient"} <= keys(simulation, KeyKind.SERVICES)
    assert a.replica.lost == (("web",), ()), "it is in the list, by its other owner"
    b.deregister("of-b")
    simulation.run_for(1)
    assert set(a.ids()) == set(b.ids()) == {"of-a", "of-b", "web"}
    assert a.replica.lost == b.replica.lost == (("of-b", "web"), ())


def test_the_order_of_lost_services_is_kept(simulation: Simulation) -> None:
    for service_id in ("z", "m", "a1"):
        simulation.define(service_id, **checked(service_id))
    (a,) = start(simulation, "a")
    assert [id_ for id_ in a.ids() if id_ != "of-a"] == ["z", "m", "a1", "web"]
    simulation.etcd.wipe()
    simulation.run_for(RESTORED_S)
    assert [id_ for id_ in a.ids() if id_ != "of-a"] == ["z", "m", "a1", "web"]


def test_a_new_replica_knows_what_is_lost(simulation: Simulation) -> None:
    start(simulation)
    simulation.etcd.wipe()
    simulation.run_for(RESTORED_S)
    c = simulation.start("c")
    simulation.run_for(SETTLE_S)
    assert (c.replica.lost, c.health()) == ((("web",), ()), Health.PARTIAL)


def test_what_a_replica_that_is_away_has_registered_is_lost_until_it_is_back(simulation: Simulation) -> None:
    a, b = start(simulation)
    b.client.requests.is_cut = b.client.responses.is_cut = True
    simulation.etcd.wipe()
    simulation.run_for(RESTORED_S)
    assert a.replica.lost == (("of-b", "web"), ())
    b.client.reconnect()
    simulation.run_for(RESTORED_S)
    assert "of-b/replica%3Ab" in keys(simulation, KeyKind.SERVICES)
    assert a.replica.lost == b.replica.lost == (("web",), ())


def test_what_a_replica_has_deregistered_meanwhile_is_not_lost(simulation: Simulation) -> None:
    a, b = start(simulation)
    b.client.requests.is_cut = b.client.responses.is_cut = True
    simulation.etcd.wipe()
    simulation.run_for(RESTORED_S)
    b.deregister("of-b")
    b.client.reconnect()
    simulation.run_for(RESTORED_S)
    assert set(a.ids()) == set(b.ids()) == {"of-a", "web"}


def test_what_a_replica_has_deregistered_while_etcd_was_wiped_is_not_lost(simulation: Simulation) -> None:
    """It may be marked for a moment, until it is known that this replica has written all that it has."""
    a, b = start(simulation)
    simulation.etcd.stop()
    b.deregister("of-b")
    simulation.etcd.wipe()
    simulation.run_for(RESTORED_S)
    assert set(a.ids()) == {"of-a", "web"}
    assert a.replica.lost == b.replica.lost == (("web",), ())


def test_a_restored_registry_that_is_away_again_at_once_makes_no_service_go(simulation: Simulation) -> None:
    """The replicas have seen that it has other data, and none of the data."""
    a, b = start(simulation)
    lists = note_lists(simulation, a, b)
    simulation.etcd.wipe()
    simulation.etcd.denied.add("read")
    simulation.run_for(2)
    simulation.etcd.stop()
    simulation.run_for(60)
    lost = [*a.replica.lost, *b.replica.lost]
    assert not any(lost), "nobody has read what it still has"
    simulation.etcd.denied.clear()
    simulation.etcd.start()
    simulation.run_for(RESTORED_S)
    assert lists == {frozenset({"of-a", "of-b", "web"})}
    assert a.replica.lost == (("web",), ())


def test_a_second_wipe_loses_no_more(simulation: Simulation) -> None:
    a, b = start(simulation)
    lists = note_lists(simulation, a, b)
    simulation.etcd.wipe()
    simulation.run_for(4)
    simulation.etcd.wipe()
    simulation.run_for(RESTORED_S)
    simulation.etcd.wipe()
    simulation.run_for(RESTORED_S)
    assert lists == {frozenset({"of-a", "of-b", "web"})}
    assert "web/lost%3Aclient" in keys(simulation, KeyKind.SERVICES)
    assert a.replica.lost == b.replica.lost == (("web",), ())


def test_a_replica_notices_a_restore_that_has_passed_its_revision(simulation: Simulation) -> None:
    """No response has a lower revision, and no key has another one: the service was never there at that revision."""
    (a,) = start(simulation, "a")
    snapshot = simulation.etcd.snapshot()
    simulation.define("late", **checked("late"))
    simulation.run_for(SETTLE_S)
    a.suspend()
    simulation.etcd.stop()
    simulation.etcd.start(snapshot)
    for number in range(100):
        simulation.write(Put("/other", str(number).encode()))
    a.resume()
    simulation.run_for(RESTORED_S)
    assert "late" in a.ids()
    assert a.replica.lost == (("late",), ())


@pytest.mark.parametrize("may_write", [True, False])
def test_a_wiped_registry_that_is_restored_later_to_a_higher_revision_dates_nothing_new(
    simulation: Simulation, may_write: bool
) -> None:
    """By its revision alone, an old report would be younger than the wipe.

    A replica that may not write to the wiped registry has nothing to compare the restored one with.
    """
    simulation.define("job", ttl="30s")
    (a,) = start(simulation, "a")
    for number in range(200):
        simulation.write(Put("/other", str(number).encode()))
    simulation.report("job")
    simulation.run_for(1)
    snapshot = simulation.etcd.snapshot()
    simulation.run_for(40)
    assert a.statuses()["job"] is DOWN
    simulation.etcd.wipe()
    simulation.etcd.denied = set() if may_write else {"write"}
    simulation.run_for(RESTORED_S)
    seen: set[Status] = set()
    simulation.after_step = lambda: seen.add(a.statuses()["job"])
    simulation.etcd.stop()
    simulation.etcd.denied = set()
    simulation.etcd.start(snapshot)
    simulation.run_for(60)
    assert seen == {DOWN}
    assert a.replica.lost == ((), ()), "the snapshot has all"


def test_a_service_that_was_deregistered_while_a_replica_could_not_see_it_is_not_lost(simulation: Simulation) -> None:
    (a,) = start(simulation, "a")
    a.client.requests.is_cut = a.client.responses.is_cut = True
    simulation.undefine("web")
    simulation.run_for(30)
    a.client.reconnect()
    simulation.run_for(RESTORED_S)
    assert (a.ids(), a.replica.lost) == (["of-a"], ((), ()))


def test_a_deletion_of_all_keys_deregisters_what_clients_have_registered(simulation: Simulation) -> None:
    a, b = start(simulation)
    simulation.write(Delete(ROOT, is_prefix=True))
    simulation.run_for(RESTORED_S)
    for process in (a, b):
        assert process.statuses() == {"of-a": UP, "of-b": UP}
        assert process.replica.lost == ((), ())


def test_a_reported_down_does_not_get_better_by_the_loss(simulation: Simulation) -> None:
    simulation.define("job", ttl="30s")
    a, b = start(simulation)
    simulation.report("job", status=DOWN)
    simulation.run_for(1)
    assert a.statuses()["job"] is DOWN
    seen: set[Status] = set()
    simulation.after_step = lambda: seen.update((a.statuses()["job"], b.statuses()["job"]))
    simulation.etcd.wipe()
    simulation.run_for(60)
    assert seen == {DOWN}


# ---- issues


def test_an_issue_that_the_registry_has_lost_stays(simulation: Simulation) -> None:
    a, b = start(simulation)
    simulation.set_issue("no key")
    simulation.run_for(1)
    seen: set[Health] = set()
    simulation.after_step = lambda: seen.update((a.health(), b.health()))
    before = a.issues()
    simulation.etcd.wipe()
    simulation.run_for(RESTORED_S)
    assert seen == {Health.UNHEALTHY}
    assert a.issues() == b.issues() == before
    assert a.replica.lost == (("web",), ("no key",))
    simulation.after_step = lambda: None
    simulation.write(Delete(encode_key(ROOT, KeyKind.ISSUES, "no key", "lost:client")))
    simulation.run_for(1)
    assert a.issues() == b.issues() == ()


def test_an_issue_of_a_replica_goes_when_the_replica_does_not_have_it_any_more(simulation: Simulation) -> None:
    a, b = start(simulation)
    b.call(lambda: b.node.overrides.set_issue("no key"))
    simulation.run_for(1)
    b.client.requests.is_cut = b.client.responses.is_cut = True
    simulation.etcd.wipe()
    simulation.run_for(RESTORED_S)
    assert (len(a.issues()), a.replica.lost.issues) == (1, ("no key",))
    b.call(lambda: b.node.overrides.clear_issue("no key"))
    b.client.reconnect()
    simulation.run_for(RESTORED_S)
    assert a.issues() == b.issues() == ()


def test_an_issue_that_is_set_again_is_no_longer_lost(simulation: Simulation) -> None:
    (a,) = start(simulation, "a")
    simulation.set_issue("no key")
    simulation.run_for(1)
    simulation.etcd.wipe()
    simulation.run_for(RESTORED_S)
    simulation.set_issue("no key")
    simulation.run_for(1)
    assert keys(simulation, KeyKind.ISSUES) == {"no%20key/client"}
    assert (len(a.issues()), a.replica.lost.issues) == (1, ())


# ---- the cache


def start_again(simulation: Simulation, process: Process, cache: MemoryCache) -> Process:
    process.kill()
    return simulation.start(process.name, {f"of-{process.name}": checked(process.name)}, cache=cache)


def test_a_replica_that_starts_without_etcd_shows_the_whole_list_and_nothing_of_it_is_up(
    simulation: Simulation,
) -> None:
    cache = MemoryCache()
    simulation.set_issue("no key")
    (a,) = start(simulation, "a", cache=cache)
    simulation.run_for(SETTLE_S)
    before, issues = a.ids(), a.issues()
    simulation.etcd.stop()
    a = start_again(simulation, a, cache)
    simulation.run_for(0)
    assert (a.ids(), a.issues()) == (before, issues)
    assert a.statuses() == dict.fromkeys(before, INITIALIZING)
    simulation.run_for(120)
    assert a.statuses() == {"of-a": UP, "web": INITIALIZING}, "its own service is checked, as ever"
    assert a.checked() == {"of-a"}
    assert a.node.condition.starting
    simulation.etcd.start()
    simulation.run_for(SETTLE_S)
    assert a.statuses() == {"of-a": UP, "web": UP}
    assert not a.node.condition.starting


def test_a_start_without_a_cache_and_without_etcd_is_not_healthy(simulation: Simulation) -> None:
    simulation.etcd.stop()
    a = simulation.start("a", {"of-a": checked("a")}, cache=MemoryCache())
    simulation.run_for(60)
    assert (a.statuses(), a.health()) == ({"of-a": UP}, Health.PARTIAL)


def test_what_was_deregistered_meanwhile_goes_with_the_first_range(simulation: Simulation) -> None:
    cache = MemoryCache()
    (a,) = start(simulation, "a", cache=cache)
    simulation.run_for(SETTLE_S)
    a.kill()
    simulation.undefine("web")
    a = start_again(simulation, a, cache)
    simulation.run_for(0)
    assert set(a.ids()) == {"of-a", "web"}
    simulation.run_for(1)
    assert (a.ids(), a.replica.lost) == (["of-a"], ((), ()))


@pytest.mark.parametrize("is_other_cluster", [False, True])
def test_a_replica_notices_that_the_registry_was_wiped_while_it_was_stopped(
    simulation: Simulation, is_other_cluster: bool
) -> None:
    cache = MemoryCache()
    (a,) = start(simulation, "a", cache=cache)
    simulation.run_for(SETTLE_S)
    a.kill()
    simulation.etcd.wipe(is_other_cluster=is_other_cluster)
    a = start_again(simulation, a, cache)
    lists = note_lists(simulation, a)
    simulation.run_for(RESTORED_S)
    assert lists == {frozenset({"of-a", "web"})}
    assert a.replica.lost == (("web",), ())
    assert a.health() is Health.PARTIAL


def test_another_cluster_is_noticed_after_a_start_even_if_its_history_is_compacted(simulation: Simulation) -> None:
    cache = MemoryCache()
    (a,) = start(simulation, "a", cache=cache)
    simulation.run_for(SETTLE_S)
    a.kill()
    simulation.etcd.wipe(is_other_cluster=True)
    for number in range(200):
        simulation.write(Put("/other", str(number).encode()))
    simulation.etcd.compact()
    a = start_again(simulation, a, cache)
    simulation.run_for(RESTORED_S)
    assert a.replica.lost == (("web",), ())


def test_a_replica_that_is_killed_after_a_wipe_still_knows_what_is_lost(simulation: Simulation) -> None:
    """Nobody has written it so far: the cache is of the time before."""
    cache = MemoryCache()
    (a,) = start(simulation, "a", cache=cache)
    simulation.run_for(SETTLE_S)
    simulation.etcd.wipe()
    simulation.run_for(LEASE_S / 2)
    a = start_again(simulation, a, cache)
    simulation.run_for(RESTORED_S)
    assert a.replica.lost == (("web",), ())


def test_the_view_is_saved_at_a_stop(simulation: Simulation) -> None:
    cache = MemoryCache()
    (a,) = start(simulation, "a", cache=cache)
    simulation.run_for(60)
    simulation.define("late", **checked("late"))
    simulation.run_for(0.1)
    a.stop()
    simulation.run_for(1)
    assert cache.ids == {"of-a", "web", "late"}


# ---- the owner


@pytest.mark.parametrize("owner", ["client", "replica:a", "lost:client"])
def test_a_lost_owner_has_one_name(owner: str) -> None:
    lost = lost_owner(owner)
    assert is_lost(lost)
    assert lost_owner(lost) == lost
    assert original_owner(lost) == original_owner(owner)


def test_a_long_owner_still_makes_a_key() -> None:
    assert len(lost_owner("x" * MAX_NAME_CHARS)) == MAX_NAME_CHARS
