"""What is notified of the node and of each service, and when."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Health
from svcnode.notify.alert import (
    FLAP_THRESHOLD,
    SETTLED_AFTER_S,
    Alert,
    AlertPolicy,
    AlertState,
    ChangeType,
    Observation,
)
from svcnode.notify.engine import AlertEngine
from svcnode.notify.incidents import Incident
from tests.unit.notify.harness import (
    GROUP_WAIT_S,
    POLICY,
    RESOLVE_DELAY_S,
    Harness,
    change_of,
    change_types,
    definition_with_a_new_probe,
    flap,
)

if TYPE_CHECKING:
    from collections.abc import Callable

UP, STARTING, DOWN = Health.HEALTHY, Health.PARTIAL, Health.UNHEALTHY

# ---- the states


class Machine:
    """One alert in virtual time, and the states that it was in. `is_confirmed` of an incident before a restart."""

    def __init__(self, *, is_confirmed: bool | None = None) -> None:
        self.now_s = 1000.0
        self.alert = Alert(None, self.now_s)
        self.states = [self.alert.state]
        if is_confirmed is not None:
            self.alert.observe(Observation(STARTING, self.now_s, is_starting=True))
            self.restore(is_confirmed=is_confirmed)

    def restore(self, *, is_confirmed: bool) -> Machine:
        self.alert.restore(Incident(service=None, notified_health=DOWN, since_s=0.0, is_confirmed=is_confirmed))
        self.update()
        return self

    def update(self) -> None:
        self.alert.update_state(POLICY, self.now_s, is_other_due=False)
        self.states.append(self.alert.state)

    def observe(self, *healths: Health, every_s: float = 10.0, is_removed: bool = False) -> Machine:
        """Without a notification in between, even if one is due."""
        for health in healths:
            self.now_s += every_s
            self.alert.observe(Observation(health, self.now_s, is_removed=is_removed))
            self.update()
        return self

    def notify(self) -> Machine:
        assert self.alert.due_at_s < math.inf
        self.now_s = max(self.now_s, self.alert.due_at_s)
        self.alert.mark_notified(self.now_s)
        self.states.append(self.alert.state)
        return self

    def remove(self) -> Machine:
        return self.observe(Health.HEALTHY, is_removed=True)

    @property
    def transitions(self) -> list[tuple[AlertState, AlertState]]:
        return [(before, after) for before, after in pairwise(self.states) if before is not after]


def flapping() -> Machine:
    return Machine().observe(DOWN, UP, DOWN, UP, DOWN, UP)


# Every transition of the diagram in alert.py, as the last one of an example.
TRANSITIONS: dict[tuple[AlertState, AlertState], Callable[[], Machine]] = {
    (AlertState.INACTIVE, AlertState.PENDING): lambda: Machine().observe(DOWN),
    (AlertState.PENDING, AlertState.FIRING): lambda: Machine().observe(DOWN).notify(),
    (AlertState.PENDING, AlertState.INACTIVE): lambda: Machine().observe(DOWN, UP).notify(),
    (AlertState.FIRING, AlertState.PENDING): lambda: Machine().observe(STARTING).notify().observe(DOWN),
    (AlertState.FIRING, AlertState.RESOLVING): lambda: Machine().observe(DOWN).notify().observe(UP),
    (AlertState.RESOLVING, AlertState.INACTIVE): lambda: Machine().observe(DOWN).notify().observe(UP).notify(),
    (AlertState.RESOLVING, AlertState.FIRING): lambda: Machine().observe(DOWN).notify().observe(UP, DOWN),
    (AlertState.RESOLVING, AlertState.PENDING): lambda: Machine().observe(STARTING).notify().observe(UP, DOWN),
    # after a restart
    (AlertState.INACTIVE, AlertState.FIRING): lambda: Machine(is_confirmed=True),
    (AlertState.INACTIVE, AlertState.RESOLVING): lambda: Machine().restore(is_confirmed=True),
    (AlertState.PENDING, AlertState.RESOLVING): lambda: Machine(is_confirmed=False).observe(DOWN, UP),
    # flapping
    (AlertState.INACTIVE, AlertState.FLAPPING): lambda: (
        Machine().observe(STARTING, DOWN, UP, DOWN, UP).notify().observe(DOWN)
    ),
    (AlertState.PENDING, AlertState.FLAPPING): lambda: Machine().observe(DOWN, UP, DOWN, UP, DOWN, UP),
    (AlertState.FIRING, AlertState.FLAPPING): lambda: (
        Machine().observe(DOWN).notify().observe(UP, DOWN, UP, DOWN).observe(UP)
    ),
    (AlertState.RESOLVING, AlertState.FLAPPING): lambda: (
        Machine().observe(DOWN).notify().observe(UP, DOWN, UP, STARTING, UP)
    ),
    (AlertState.FLAPPING, AlertState.SETTLING): lambda: flapping().notify(),
    (AlertState.SETTLING, AlertState.INACTIVE): lambda: flapping().notify().notify(),
    (AlertState.SETTLING, AlertState.FIRING): lambda: flapping().notify().observe(DOWN).notify(),
    # a removed service
    (AlertState.FLAPPING, AlertState.RESOLVING): lambda: (
        Machine().observe(DOWN).notify().observe(UP, DOWN, UP, DOWN, UP).remove()
    ),
    (AlertState.FLAPPING, AlertState.PENDING): lambda: (
        Machine().observe(STARTING).notify().observe(DOWN, STARTING, DOWN, STARTING, DOWN).remove()
    ),
    (AlertState.SETTLING, AlertState.RESOLVING): lambda: flapping().notify().remove(),
    (AlertState.SETTLING, AlertState.PENDING): lambda: flapping().notify().observe(DOWN).remove(),
}


@pytest.mark.parametrize(
    "transition", TRANSITIONS, ids=lambda transition: f"{transition[0].name} to {transition[1].name}"
)
def test_each_transition_of_the_diagram_has_an_example(transition: tuple[AlertState, AlertState]) -> None:
    assert TRANSITIONS[transition]().transitions[-1] == transition


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from([UP, STARTING, DOWN, "notify", "remove"]), max_size=40),
    st.sampled_from([None, True, False]),
    st.sampled_from([1.0, 10.0, 100.0, 400.0]),
)
def test_there_is_no_transition_beside_the_diagram(
    steps: list[Health | str], is_confirmed: bool | None, every_s: float
) -> None:
    machine = Machine(is_confirmed=is_confirmed)
    for step in steps:
        if isinstance(step, Health):
            machine.observe(step, every_s=every_s)
        elif step == "remove":
            if machine.alert.incident is not None:  # otherwise there is nothing to notify
                machine.remove()
        elif machine.alert.due_at_s < math.inf:
            machine.notify()
        assert (machine.alert.due_at_s < math.inf) is machine.alert.is_waiting
    assert set(machine.transitions) <= set(TRANSITIONS)


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
    engine = AlertEngine(POLICY, harness.node, harness.clock.now_s)
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


# ---- flapping


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
