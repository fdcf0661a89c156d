"""What changes too often."""

from __future__ import annotations

import pytest

from svcnode.core.model import Health
from svcnode.notify.flapping import FLAP_THRESHOLD, SETTLED_AFTER_S
from svcnode.notify.model import ChangeType
from tests.unit.notify.world import GROUP_S, World, flap, item, turns


def test_what_flaps_is_told_once_as_flapping_and_once_when_it_has_settled() -> None:
    world = World()
    world.add("db")
    flap(world, times=100)
    world.wait(3600)
    assert [turns(news)["db"] for news in world.told] == [ChangeType.WORSE, ChangeType.FLAPPING, ChangeType.SETTLED]
    assert [turns(news)[None] for news in world.told] == [ChangeType.WORSE, ChangeType.FLAPPING, ChangeType.SETTLED]
    assert item(world.told[1], "db").changes == FLAP_THRESHOLD
    assert item(world.last, "db").changes == 200
    assert item(world.last, "db").health is Health.HEALTHY
    assert item(world.last, "db").duration_s == pytest.approx(SETTLED_AFTER_S)


def test_what_settles_down_is_told_to_be_down() -> None:
    world = World()
    world.add("db")
    flap(world, times=20)
    world.down("db")
    world.wait(3600)
    assert turns(world.last) == {None: ChangeType.SETTLED, "db": ChangeType.SETTLED}
    assert item(world.last, "db").health is Health.UNHEALTHY
    world.up("db")
    world.wait(60)
    assert turns(world.last)["db"] is ChangeType.RECOVERED


def test_other_services_are_told_while_one_flaps() -> None:
    world = World()
    world.add("db", "queue")
    flap(world, times=20)
    before = len(world.told)
    world.down("queue")
    world.wait(GROUP_S)
    assert turns(world.told[before]) == {"queue": ChangeType.WORSE}
    assert world.last.health is Health.UNHEALTHY


def test_slow_changes_are_not_flapping() -> None:
    world = World()
    world.add("db")
    flap(world, times=20, every_s=130)
    world.wait(3600)
    assert not {turn for news in world.told for turn in turns(news).values()} & {
        ChangeType.FLAPPING,
        ChangeType.SETTLED,
    }


def test_a_node_that_falls_and_rises_in_steps_does_not_flap() -> None:
    world = World()
    ids = [f"s{number}" for number in range(10)]
    world.add(*ids, impact="partial")
    for _ in range(2):
        world.down(*ids)
        world.wait(120)
        world.up(*ids)
        world.wait(120)
    world.wait(3600)
    assert ChangeType.FLAPPING not in {turns(news).get(None) for news in world.told}


def test_a_service_that_flaps_and_is_removed_is_told_as_removed() -> None:
    world = World()
    world.add("db")
    flap(world, times=20)
    world.node.deregister("db")
    world.wait(3600)
    assert ChangeType.REMOVED in {turns(news).get("db") for news in world.told}
