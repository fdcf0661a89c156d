"""What is notified of the node and of each service, and when."""

from __future__ import annotations

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Health
from svcnode.notify.engine import AlertEngine
from svcnode.notify.model import ChangeType
from svcnode.notify.settings import AlertPolicy
from tests.unit.notify.harness import (
    GROUP_WAIT_S,
    POLICY,
    RESOLVE_DELAY_S,
    Harness,
    change_of,
    change_types,
    definition_with_a_new_probe,
)

# ---- recovery


def test_a_recovery_has_the_duration_of_the_problem() -> None:
    harness = Harness()
    harness.add("db")
    harness.down("db")
    harness.wait(400)
    harness.up("db")
    harness.wait(60)
    assert change_types(harness.last) == {None: ChangeType.RECOVERED, "db": ChangeType.RECOVERED}
    assert change_of(harness.last, "db").duration_s == 400
    assert harness.last.node
    assert harness.last.node.duration_s == 400


def test_the_duration_counts_from_the_first_change_for_the_worse() -> None:
    harness = Harness()
    harness.add("db")
    harness.starting("db")
    harness.wait(100)
    harness.down("db")
    harness.wait(400)
    harness.starting("db")
    harness.wait(400)
    harness.up("db")
    harness.wait(400)
    assert [change_types(notification)["db"] for notification in harness.notifications] == [
        ChangeType.WORSE,
        ChangeType.WORSE,
        ChangeType.BETTER,
        ChangeType.RECOVERED,
    ]
    assert change_of(harness.last, "db").duration_s == 900
    assert change_of(harness.last, "db").changes == 4


def test_a_problem_that_ends_before_its_notification_is_notified_as_transient() -> None:
    harness = Harness()
    harness.add("db")
    harness.down("db", reason="reset")
    harness.wait(2)
    harness.up("db")
    harness.wait(3600)
    (notification,) = harness.notifications
    assert change_types(notification) == {None: ChangeType.TRANSIENT, "db": ChangeType.TRANSIENT}
    change = change_of(notification, "db")
    assert (change.health, change.worst, change.duration_s) == (Health.HEALTHY, Health.UNHEALTHY, 2)
    assert (change.reason, change.code) == ("reset", ReasonCode.REPORTED)


def test_a_transient_change_of_the_node_lists_the_service_that_caused_it() -> None:
    harness = Harness()
    harness.add("db")
    harness.add("cache", impact="partial")
    harness.down("cache")
    harness.wait(2)
    harness.up("cache")
    harness.wait(60)
    assert change_types(harness.last) == {None: ChangeType.TRANSIENT, "cache": ChangeType.TRANSIENT}


# ---- resolve delay


def test_a_recovery_waits_until_the_resolve_delay_is_over() -> None:
    harness = Harness()
    harness.add("db")
    harness.down("db")
    harness.wait(60)
    harness.up("db")
    harness.wait(RESOLVE_DELAY_S - 60 + GROUP_WAIT_S - 1)
    assert len(harness.notifications) == 1
    harness.wait(2)
    assert change_types(harness.last) == {None: ChangeType.RECOVERED, "db": ChangeType.RECOVERED}
    assert change_of(harness.last, "db").duration_s == 60


def test_after_the_resolve_delay_an_unchanged_state_is_not_notified() -> None:
    harness = Harness()
    harness.add("db")
    harness.down("db")
    harness.wait(60)
    harness.up("db")
    harness.wait(60)
    harness.down("db")
    harness.wait(3600)
    assert len(harness.notifications) == 1
    harness.up("db")
    harness.wait(60)
    assert change_of(harness.last, "db").changes == 4, "the changes in between are counted"


def test_after_a_notified_recovery_a_new_problem_does_not_wait() -> None:
    harness = Harness()
    harness.add("db")
    harness.down("db")
    harness.wait(60)
    harness.up("db")
    harness.wait(300)
    assert change_types(harness.last)["db"] is ChangeType.RECOVERED
    harness.down("db")
    harness.wait(GROUP_WAIT_S)
    assert change_types(harness.last) == {None: ChangeType.WORSE, "db": ChangeType.WORSE}


def test_a_worse_health_of_the_node_is_notified_during_the_resolve_delay() -> None:
    harness = Harness()
    harness.add("a", "b", impact="partial")
    harness.down("a")
    harness.wait(10)
    harness.down("b")
    harness.wait(10)
    assert [notification.health for notification in harness.notifications] == [Health.PARTIAL, Health.UNHEALTHY]


def test_a_transient_problem_during_the_resolve_delay_is_not_notified() -> None:
    harness = Harness()
    harness.add("db")
    for _ in range(3):
        harness.down("db")
        harness.wait(2)
        harness.up("db")
        harness.wait(60)
    assert len(harness.notifications) == 1


def test_a_notification_includes_changes_that_wait_for_the_resolve_delay() -> None:
    harness = Harness()
    harness.add("db", "queue")
    harness.down("db")
    harness.wait(60)
    harness.up("db")
    harness.wait(60)
    harness.down("queue")
    harness.wait(GROUP_WAIT_S)
    assert change_types(harness.last) == {"db": ChangeType.RECOVERED, "queue": ChangeType.WORSE}
    harness.wait(3600)
    assert len(harness.notifications) == 2


def test_without_a_resolve_delay_every_change_is_notified() -> None:
    harness = Harness(AlertPolicy(resolve_delay_s=0))
    harness.add("db")
    for _ in range(2):
        harness.down("db")
        harness.wait(10)
        harness.up("db")
        harness.wait(10)
    assert [change_types(notification)["db"] for notification in harness.notifications] == [
        ChangeType.WORSE,
        ChangeType.RECOVERED,
    ] * 2


# ---- starts


def test_a_start_is_not_notified() -> None:
    harness = Harness(is_starting=True)
    harness.add("db", up=False)
    harness.wait(20)
    harness.starting("db")
    harness.wait(600)
    harness.node.started()
    harness.up("db")
    harness.wait(3600)
    assert not harness.notifications


def test_a_service_that_was_never_up_and_becomes_down_is_notified() -> None:
    harness = Harness()
    harness.add("db", up=False)
    harness.wait(40)
    harness.down("db")
    harness.wait(60)
    (notification,) = harness.notifications
    assert change_types(notification) == {None: ChangeType.WORSE, "db": ChangeType.WORSE}
    assert change_of(notification, "db").before is None


def test_a_service_that_is_down_at_the_start_of_the_engine_is_notified() -> None:
    harness = Harness()
    harness.add("db")
    harness.down("db")
    engine = AlertEngine(POLICY, harness.clock.now_s)
    engine.start(harness.node, harness.node.health, (), harness.clock.now_s)
    notification = engine.take_due(harness.clock.now_s + GROUP_WAIT_S)
    assert notification
    assert change_types(notification) == {None: ChangeType.WORSE, "db": ChangeType.WORSE}


def test_a_new_service_is_not_notified_before_it_is_down() -> None:
    harness = Harness()
    harness.add("db")
    harness.add("new", up=False)
    assert harness.node.health is Health.PARTIAL
    harness.wait(60)
    assert not harness.notifications
    harness.down("new")
    harness.wait(60)
    assert change_types(harness.last) == {None: ChangeType.WORSE, "new": ChangeType.WORSE}


def test_a_replaced_probe_is_not_notified() -> None:
    harness = Harness()
    harness.add("db")
    node = harness.node
    for _ in range(10):
        node.replace(definition_with_a_new_probe("db"))
        assert node.health is Health.PARTIAL
        harness.wait(10)
        harness.up("db")
        harness.wait(10)
    assert not harness.notifications


def test_a_replaced_probe_does_not_hide_a_recovery() -> None:
    harness = Harness()
    harness.add("db")
    harness.down("db")
    harness.wait(400)
    harness.node.replace(definition_with_a_new_probe("db"))
    harness.up("db")
    harness.wait(400)
    assert change_types(harness.last) == {None: ChangeType.RECOVERED, "db": ChangeType.RECOVERED}


def test_a_start_that_was_part_of_a_notification_is_notified_when_it_ends() -> None:
    harness = Harness()
    harness.add("db")
    harness.add("new", impact="partial", up=False)
    harness.starting("db")
    harness.wait(60)
    assert harness.last.health is Health.PARTIAL
    harness.up("db")
    harness.wait(400)
    assert (change_types(harness.last), harness.last.health) == ({"db": ChangeType.RECOVERED}, Health.PARTIAL)
    harness.up("new")
    harness.wait(400)
    assert (change_types(harness.last), harness.last.health) == ({None: ChangeType.RECOVERED}, Health.HEALTHY)


def test_a_start_during_a_notification_about_another_service_is_notified_when_it_ends() -> None:
    harness = Harness(AlertPolicy(services="all"))
    harness.add("extra", impact="none")
    harness.add("new", up=False)
    harness.wait(60)
    harness.down("extra")
    harness.wait(60)
    assert (change_types(harness.last), harness.last.health) == ({"extra": ChangeType.WORSE}, Health.PARTIAL)
    harness.up("new")
    harness.wait(400)
    assert (change_types(harness.last), harness.last.health) == ({None: ChangeType.RECOVERED}, Health.HEALTHY)
    assert harness.last.node
    assert harness.last.node.duration_s == 120
