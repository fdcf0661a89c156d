"""What was told and is not over, and what becomes of it over a restart."""

from __future__ import annotations

import pytest

from svcnode.core.model import Health, Impact, Service
from svcnode.notify.flapping import FLAP_THRESHOLD
from svcnode.notify.model import MAX_INCIDENTS, ChangeType, Incident, open_incidents
from svcnode.notify.settings import AlertPolicy
from tests.unit.notify.world import GROUP_S, World, item, turns

DB = Service(id="db", name="Ledger", description="", impact=Impact.CRITICAL)


def told_before(
    world: World, service_id: str | None, told: Health = Health.UNHEALTHY, *, is_sure: bool = True
) -> Incident:
    """Ten minutes ago."""
    service = None
    if service_id is not None:
        service = Service(id=service_id, name="Ledger", description="", impact=Impact.CRITICAL)
    return Incident(service=service, notified_health=told, since_s=world.clock.now_s - 600, is_confirmed=is_sure)


def restarted(*, is_sure: bool = True) -> World:
    """One whose critical service was told as Down, and the node with it; nobody has looked yet."""
    world = World()
    world.add("db", up=False)
    before = [told_before(world, service_id, is_confirmed=is_sure) for service_id in (None, "db")]
    world.rules.restore(before, world.clock.now_s)
    return world


def test_what_is_as_it_was_told_before_a_restart_is_not_told_again() -> None:
    world = restarted()
    world.wait(30)
    world.down("db")
    world.wait(3600)
    assert not world.told


def test_what_recovered_over_a_restart_is_told_with_the_longest_it_can_have_lasted() -> None:
    world = restarted()
    world.wait(30)
    world.up("db")
    world.wait(3600)
    (news,) = world.told
    assert turns(news) == {None: ChangeType.RECOVERED, "db": ChangeType.RECOVERED}
    assert news.node is not None
    assert [(one.duration_s, one.duration_is_upper_bound) for one in (news.node, item(news, "db"))] == [
        (630.0, True)
    ] * 2
    assert not world.rules.incidents()


def test_what_was_seen_again_after_a_restart_has_lasted_exactly_so_long() -> None:
    world = restarted()
    world.down("db")
    world.wait(100)
    world.up("db")
    world.wait(3600)
    (news,) = world.told
    assert turns(news) == {None: ChangeType.RECOVERED, "db": ChangeType.RECOVERED}
    assert (item(news, "db").duration_s, item(news, "db").duration_is_upper_bound) == (700.0, False)


def test_what_not_all_may_have_been_told_is_told_once_more() -> None:
    world = restarted(is_confirmed=False)
    world.wait(3600)
    assert not world.told, "a start is no news"
    world.down("db", why="refused")
    world.wait(3600)
    (news,) = world.told
    assert turns(news) == {None: ChangeType.ONGOING, "db": ChangeType.ONGOING}
    assert (item(news, "db").duration_s, item(news, "db").reason) == (600 + 3600 + GROUP_S, "refused")
    assert all(incident.is_confirmed for incident in world.rules.incidents().values())
    world.up("db")
    world.wait(3600)
    assert turns(world.last) == {None: ChangeType.RECOVERED, "db": ChangeType.RECOVERED}


def test_what_not_all_may_have_been_told_and_was_well_meanwhile_is_told_as_having_begun_again() -> None:
    world = restarted(is_confirmed=False)
    world.up("db")
    world.wait(1)
    world.down("db", why="refused")
    world.wait(3600)
    (news,) = world.told
    assert turns(news) == {None: ChangeType.RECURRED, "db": ChangeType.RECURRED}
    assert item(news, "db").duration_s == GROUP_S - 1, "not since what was told before the restart"
    assert not any(incident.is_recurrence for incident in world.rules.incidents().values()), "that was told"


def test_what_is_worse_than_before_a_restart_is_told() -> None:
    world = World()
    world.add("db", up=False)
    world.rules.restore([told_before(world, "db", Health.PARTIAL)], world.clock.now_s)
    world.down("db")
    world.wait(60)
    assert item(world.last, "db").change_type is ChangeType.WORSE
    assert item(world.last, "db").before is Health.PARTIAL


def test_a_service_that_is_no_longer_there_after_a_restart_is_told_as_removed() -> None:
    world = World()
    world.add("db")
    world.rules.restore([told_before(world, "ledger")], world.clock.now_s)
    world.wait(60)
    (news,) = world.told
    assert turns(news) == {"ledger": ChangeType.REMOVED}
    assert not world.rules.incidents()


def test_a_message_during_the_start_says_how_the_node_is_and_not_how_it_was_before() -> None:
    world = restarted()
    world.add("queue", up=False)
    world.up("db")
    world.wait(60)
    assert turns(world.last) == {None: ChangeType.BETTER, "db": ChangeType.RECOVERED}
    assert world.last.health is Health.PARTIAL
    world.up("queue")
    world.wait(3600)
    assert turns(world.last) == {None: ChangeType.RECOVERED}


def test_what_was_told_since_the_start_stands_when_what_was_told_before_is_known_late() -> None:
    world = World()
    world.add("db", "queue", up=False)
    world.down("db")
    world.wait(60)
    world.up("queue")
    before = [told_before(world, service_id, is_confirmed=False) for service_id in (None, "db", "queue")]
    world.rules.restore(before, world.clock.now_s)
    world.wait(60)
    assert [turns(news) for news in world.told] == [
        {None: ChangeType.WORSE, "db": ChangeType.WORSE},
        {"queue": ChangeType.RECOVERED},
    ]


def test_what_was_told_and_is_not_over_is_known_with_when_it_was_last_well() -> None:
    world = World()
    world.add("db", "queue")
    began_s = world.clock.now_s
    world.down("db")
    assert not world.rules.incidents()
    world.wait(60)
    found = world.rules.incidents()
    assert set(found) == {None, "db"}
    assert (found["db"].notified_health, found["db"].since_s, found["db"].is_confirmed) == (
        Health.UNHEALTHY,
        began_s,
        True,
    )


def test_there_is_an_end_to_what_is_known_as_not_over_and_the_node_is_part_of_it() -> None:
    world = World(AlertPolicy(services="all"))
    ids = [f"s{number}" for number in range(2 * MAX_INCIDENTS)]
    world.add(*ids)
    world.down(*ids)
    world.wait(60)
    assert list(world.rules.incidents()) == [None, *ids[: MAX_INCIDENTS - 1]]


def test_what_flaps_at_a_restart_is_told_once_more_whatever_it_is() -> None:
    world = World()
    world.add("db")
    for _ in range(FLAP_THRESHOLD):
        world.down("db")
        world.wait(10)
        world.up("db")
        world.wait(10)
    assert turns(world.last)["db"] is ChangeType.FLAPPING
    before = world.rules.incidents()["db"]
    assert (before.notified_health, before.is_confirmed) == (Health.PARTIAL, False)
    after = World()
    after.add("db", up=False)
    after.rules.restore([before], after.clock.now_s)
    after.up("db")
    after.wait(60)
    assert turns(after.last) == {"db": ChangeType.RECOVERED}


@pytest.mark.parametrize("is_sure", [True, False])
@pytest.mark.parametrize("of_node", [Health.HEALTHY, Health.PARTIAL, Health.UNHEALTHY])
@pytest.mark.parametrize("of_db", [Health.HEALTHY, Health.PARTIAL, Health.UNHEALTHY])
@pytest.mark.parametrize("is_down", [True, False])
def test_whatever_was_told_before_a_restart_what_was_told_is_the_truth_soon_after_it(
    is_down: bool, of_db: Health, of_node: Health, is_sure: bool
) -> None:
    world = World()
    world.add("db", up=False)
    before: dict[str | None, Health] = {None: of_node, "db": of_db}
    incidents = [
        told_before(world, key, told, is_confirmed=is_sure) for key, told in before.items() if told > Health.HEALTHY
    ]
    world.rules.restore(incidents, world.clock.now_s)
    world.wait(60)
    assert not world.told, "a start is no news"
    (world.down if is_down else world.up)("db")
    world.wait(60)
    truth = Health.UNHEALTHY if is_down else Health.HEALTHY
    known = world.rules.incidents()
    assert {key: known[key].notified_health if key in known else Health.HEALTHY for key in before} == {
        None: truth,
        "db": truth,
    }
    is_to_be_told = set(before.values()) != {truth} or (is_down and not is_sure)
    assert len(world.told) == is_to_be_told
    assert all(incident.is_confirmed for incident in known.values())


# ---- who took what


def incident(
    service: Service | None,
    told: Health = Health.UNHEALTHY,
    *,
    since_s: float = 100.0,
    is_sure: bool = True,
    is_again: bool = False,
) -> Incident:
    return Incident(
        service=service, notified_health=told, since_s=since_s, is_confirmed=is_sure, is_recurrence=is_again
    )


def by_id(one: Incident | None) -> dict[str | None, Incident]:
    return {} if one is None else {"db": one}


def test_sure_is_only_what_everybody_was_told_just_so() -> None:
    down, starting = incident(DB), incident(DB, Health.PARTIAL)

    def is_sure(posted: Incident | None, *taken: Incident | None) -> list[tuple[Health, bool]]:
        return [
            (one.notified_health, one.is_confirmed)
            for one in open_incidents(by_id(posted), [by_id(one) for one in taken])
        ]

    assert is_sure(down, down, down) == [(Health.UNHEALTHY, True)]
    assert is_sure(down, down, None) == [(Health.UNHEALTHY, False)]
    assert is_sure(down, starting) == [(Health.UNHEALTHY, False)]
    assert is_sure(None, None, down) == [(Health.UNHEALTHY, False)], "that it is over may not have arrived"
    assert is_sure(incident(DB, is_confirmed=False), incident(DB, is_confirmed=False)) == [(Health.UNHEALTHY, False)]
    assert is_sure(None, None, None) == []


def test_what_is_over_but_not_for_all_is_kept_with_the_longest_it_can_have_lasted() -> None:
    taken = [by_id(incident(DB, since_s=200.0)), by_id(None), by_id(incident(DB, since_s=100.0))]
    assert [one.since_s for one in open_incidents({}, taken)] == [100.0]


def test_what_began_after_what_somebody_was_told_is_known_as_that_until_all_are_told() -> None:
    def is_again(posted: Incident, *taken: Incident | None) -> bool:
        (one,) = open_incidents(by_id(posted), [by_id(one) for one in taken])
        return one.is_recurrence

    known, later = incident(DB, since_s=100.0), incident(DB, since_s=200.0)
    assert is_again(later, known)
    assert is_again(later, later, known), "it is so for one of them"
    assert is_again(later, known, None), "and nothing is, for one who was told nothing"
    assert not is_again(incident(DB, Health.PARTIAL, since_s=100.0), known), "the same trouble"
    assert not is_again(later, None), "nobody is sure to have been told of any"
    unsure = incident(DB, since_s=200.0, is_confirmed=False, is_recurrence=True)
    assert is_again(unsure, unsure)
    assert is_again(later, unsure), "it was told, and that has not arrived"
