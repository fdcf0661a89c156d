"""Flap detection."""

from __future__ import annotations

import pytest

from svcnode.core.model import Health
from svcnode.notify.flapping import FLAP_THRESHOLD, SETTLED_AFTER_S
from svcnode.notify.model import ChangeType
from tests.unit.notify.harness import GROUP_WAIT_S, Harness, change_of, change_types, flap


def test_flapping_is_notified_once_and_once_more_when_it_has_settled() -> None:
    harness = Harness()
    harness.add("db")
    flap(harness, times=100)
    harness.wait(3600)
    assert [change_types(notification)["db"] for notification in harness.notifications] == [
        ChangeType.WORSE,
        ChangeType.FLAPPING,
        ChangeType.SETTLED,
    ]
    assert [change_types(notification)[None] for notification in harness.notifications] == [
        ChangeType.WORSE,
        ChangeType.FLAPPING,
        ChangeType.SETTLED,
    ]
    assert change_of(harness.notifications[1], "db").changes == FLAP_THRESHOLD
    assert change_of(harness.last, "db").changes == 200
    assert change_of(harness.last, "db").health is Health.HEALTHY
    assert change_of(harness.last, "db").duration_s == pytest.approx(SETTLED_AFTER_S)


def test_a_service_that_settles_down_is_notified_as_down() -> None:
    harness = Harness()
    harness.add("db")
    flap(harness, times=20)
    harness.down("db")
    harness.wait(3600)
    assert change_types(harness.last) == {None: ChangeType.SETTLED, "db": ChangeType.SETTLED}
    assert change_of(harness.last, "db").health is Health.UNHEALTHY
    harness.up("db")
    harness.wait(60)
    assert change_types(harness.last)["db"] is ChangeType.RECOVERED


def test_other_services_are_notified_while_one_flaps() -> None:
    harness = Harness()
    harness.add("db", "queue")
    flap(harness, times=20)
    before = len(harness.notifications)
    harness.down("queue")
    harness.wait(GROUP_WAIT_S)
    assert change_types(harness.notifications[before]) == {"queue": ChangeType.WORSE}
    assert harness.last.health is Health.UNHEALTHY


def test_slow_changes_are_not_flapping() -> None:
    harness = Harness()
    harness.add("db")
    flap(harness, times=20, every_s=130)
    harness.wait(3600)
    assert not {
        change_type for notification in harness.notifications for change_type in change_types(notification).values()
    } & {
        ChangeType.FLAPPING,
        ChangeType.SETTLED,
    }


def test_a_node_whose_services_change_one_after_another_does_not_flap() -> None:
    harness = Harness()
    ids = [f"s{number}" for number in range(10)]
    harness.add(*ids, impact="partial")
    for _ in range(2):
        harness.down(*ids)
        harness.wait(120)
        harness.up(*ids)
        harness.wait(120)
    harness.wait(3600)
    assert ChangeType.FLAPPING not in {change_types(notification).get(None) for notification in harness.notifications}


def test_a_flapping_service_that_is_removed_is_notified_as_removed() -> None:
    harness = Harness()
    harness.add("db")
    flap(harness, times=20)
    harness.node.deregister("db")
    harness.wait(3600)
    assert ChangeType.REMOVED in {change_types(notification).get("db") for notification in harness.notifications}
