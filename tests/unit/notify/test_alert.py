"""What is notified of the node and of each service, and when."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Health, Impact, Maintenance, Service, Verdict
from svcnode.notify.alert import SETTLED_AFTER_S, Alert, AlertPolicy, AlertState, ChangeType, PublishedHealth
from svcnode.notify.engine import AlertEngine
from svcnode.notify.incidents import Incident
from svcnode.probes.function import FunctionProbe
from tests.support.nodes import record
from tests.unit.notify.harness import (
    GROUP_WAIT_S,
    POLICY,
    RESOLVE_DELAY_S,
    Harness,
    ImpactName,
    change_of,
    change_types,
    definition_with_a_new_probe,
)

if TYPE_CHECKING:
    from collections.abc import Callable

UP, STARTING, DOWN = Health.HEALTHY, Health.PARTIAL, Health.UNHEALTHY
START_LIMIT_S = POLICY.start_limit_s

# ---- the states


class Machine:
    """One alert in virtual time, and the states that it was in. `is_confirmed` of an incident before a restart."""

    def __init__(self, *, is_confirmed: bool | None = None) -> None:
        self.now_s = 1000.0
        self.alert = Alert(None, self.now_s)
        self.states = [self.alert.state]
        if is_confirmed is not None:
            self.alert.observe(PublishedHealth(STARTING, self.now_s, is_starting=True))
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
            self.alert.observe(PublishedHealth(health, self.now_s, is_removed=is_removed))
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
}


@pytest.mark.parametrize(
    "transition", TRANSITIONS, ids=lambda transition: f"{transition[0].name} to {transition[1].name}"
)
def test_each_transition_of_the_diagram_has_an_example(transition: tuple[AlertState, AlertState]) -> None:
    assert TRANSITIONS[transition]().transitions[-1] == transition


@settings(max_examples=150, deadline=None)
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


def test_the_duration_counts_from_the_first_change_for_the_worse() -> None:
    harness = Harness().add("db").starting("db").wait(100).down("db").wait(400).starting("db").wait(400)
    harness.up("db").wait(400)
    assert [change_types(notification)["db"] for notification in harness.notifications] == [
        ChangeType.WORSE,
        ChangeType.WORSE,
        ChangeType.BETTER,
        ChangeType.RECOVERED,
    ]
    assert change_of(harness.last, "db").duration_s == 900
    assert change_of(harness.last, "db").changes == 4


def test_a_problem_that_ends_before_its_notification_is_notified_as_transient() -> None:
    harness = Harness().add("db").down("db", reason="reset").wait(2).up("db").wait(3600)
    (notification,) = harness.notifications
    assert change_types(notification) == {None: ChangeType.TRANSIENT, "db": ChangeType.TRANSIENT}
    change = change_of(notification, "db")
    assert (change.health, change.worst, change.duration_s) == (Health.HEALTHY, Health.UNHEALTHY, 2)
    assert (change.reason, change.code) == ("reset", ReasonCode.REPORTED)


def test_a_transient_change_of_the_node_lists_the_service_that_caused_it() -> None:
    harness = Harness().add("db").add("cache", impact="partial").down("cache").wait(2).up("cache").wait(60)
    assert change_types(harness.last) == {None: ChangeType.TRANSIENT, "cache": ChangeType.TRANSIENT}


# ---- resolve delay


def test_a_recovery_waits_until_the_resolve_delay_is_over_and_a_new_problem_after_it_does_not() -> None:
    harness = Harness().add("db").down("db").wait(60).up("db").wait(RESOLVE_DELAY_S - 60 + GROUP_WAIT_S - 1)
    assert len(harness.notifications) == 1
    harness.wait(2)
    assert change_types(harness.last) == {None: ChangeType.RECOVERED, "db": ChangeType.RECOVERED}
    assert harness.last.node
    assert harness.last.node.duration_s == change_of(harness.last, "db").duration_s == 60
    harness.wait(60).down("db").wait(GROUP_WAIT_S)
    assert change_types(harness.last) == {None: ChangeType.WORSE, "db": ChangeType.WORSE}


def test_after_the_resolve_delay_an_unchanged_state_is_not_notified() -> None:
    harness = Harness().add("db").down("db").wait(60).up("db").wait(60).down("db").wait(3600)
    assert len(harness.notifications) == 1
    harness.up("db").wait(60)
    assert change_of(harness.last, "db").changes == 4, "the changes in between are counted"


def test_a_worse_health_of_the_node_is_notified_during_the_resolve_delay() -> None:
    harness = Harness().add("a", "b", impact="partial").down("a").wait(10).down("b").wait(10)
    assert [notification.health for notification in harness.notifications] == [Health.PARTIAL, Health.UNHEALTHY]


def test_a_transient_problem_during_the_resolve_delay_is_notified_only_if_it_returns() -> None:
    harness = Harness().add("db")
    changes = [ChangeType.TRANSIENT, ChangeType.TRANSIENT, ChangeType.WORSE, ChangeType.WORSE]
    for last in changes:
        harness.down("db").wait(2).up("db").wait(60)
        assert change_types(harness.last)["db"] is last
    assert len(harness.notifications) == 2


def test_a_notification_includes_changes_that_wait_for_the_resolve_delay() -> None:
    harness = Harness().add("db", "queue").down("db").wait(60).up("db").wait(60).down("queue")
    harness.wait(GROUP_WAIT_S)
    assert change_types(harness.last) == {"db": ChangeType.RECOVERED, "queue": ChangeType.WORSE}
    harness.wait(3600)
    assert len(harness.notifications) == 2


def test_without_a_resolve_delay_every_change_is_notified() -> None:
    harness = Harness(AlertPolicy(resolve_delay_s=0)).add("db")
    for _ in range(2):
        harness.down("db").wait(10).up("db").wait(10)
    assert [change_types(notification)["db"] for notification in harness.notifications] == [
        ChangeType.WORSE,
        ChangeType.RECOVERED,
    ] * 2


# ---- starts


def test_a_start_that_ends_before_the_start_limit_is_not_notified() -> None:
    harness = Harness(is_starting=True).add("db", up=False).wait(20).starting("db").wait(START_LIMIT_S - 21)
    harness.node.overrides.started()
    harness.up("db").wait(3600)
    assert not harness.notifications
    assert harness.engine.due_at_s == math.inf


def test_a_service_that_was_never_up_and_becomes_down_is_notified() -> None:
    harness = Harness().add("db", up=False).wait(40).down("db").wait(60)
    (notification,) = harness.notifications
    assert change_types(notification) == {None: ChangeType.WORSE, "db": ChangeType.WORSE}
    assert change_of(notification, "db").before is None


def test_a_service_that_is_down_at_the_start_of_the_engine_is_notified() -> None:
    harness = Harness().add("db").down("db")
    engine = AlertEngine(POLICY, harness.node, harness.clock.now_s)
    notification = engine.take_due(harness.clock.now_s + GROUP_WAIT_S)
    assert notification
    assert change_types(notification) == {None: ChangeType.WORSE, "db": ChangeType.WORSE}


def test_a_replaced_probe_is_not_notified() -> None:
    harness = Harness().add("db")
    node = harness.node
    for _ in range(10):
        node.replace(definition_with_a_new_probe("db"))
        assert node.health is Health.PARTIAL
        harness.wait(10).up("db").wait(10)
    assert not harness.notifications


def test_a_replaced_probe_does_not_hide_a_recovery() -> None:
    harness = Harness().add("db").down("db").wait(400)
    harness.node.replace(definition_with_a_new_probe("db"))
    harness.up("db").wait(400)
    assert change_types(harness.last) == {None: ChangeType.RECOVERED, "db": ChangeType.RECOVERED}


def test_a_start_that_was_part_of_a_notification_is_notified_when_it_ends() -> None:
    harness = Harness(AlertPolicy(start_limit_s=3600.0)).add("db").add("new", impact="partial", up=False)
    harness.starting("db").wait(60)
    assert harness.last.health is Health.PARTIAL
    harness.up("db").wait(400)
    assert (change_types(harness.last), harness.last.health) == ({"db": ChangeType.RECOVERED}, Health.PARTIAL)
    harness.up("new").wait(400)
    assert (change_types(harness.last), harness.last.health) == ({None: ChangeType.RECOVERED}, Health.HEALTHY)


def test_a_start_during_a_notification_about_another_service_is_notified_when_it_ends() -> None:
    harness = Harness(AlertPolicy(services="all")).add("extra", impact="none").add("new", up=False).wait(60)
    harness.down("extra").wait(60)
    assert (change_types(harness.last), harness.last.health) == ({"extra": ChangeType.WORSE}, Health.PARTIAL)
    harness.up("new").wait(400)
    assert (change_types(harness.last), harness.last.health) == ({None: ChangeType.RECOVERED}, Health.HEALTHY)
    assert harness.last.node
    assert harness.last.node.duration_s == 120


# ---- the start limit

CHECKED: dict[str, Any] = {"probe": FunctionProbe(lambda: None), "start_period": "30s", "fall": 3, "stale_after": "7d"}


@pytest.mark.parametrize("impact", ["critical", "partial"])
def test_a_service_that_is_not_up_at_the_start_limit_is_notified_without_a_change(impact: ImpactName) -> None:
    harness = Harness().add("other", impact="partial")
    harness.node.register("db", name="db", impact=impact, **CHECKED)
    record(harness.node, "db", Verdict.not_ready("syncing", code=ReasonCode.SYNCING))
    harness.wait(30 + START_LIMIT_S - 1)
    assert not harness.notifications
    harness.wait(1 + GROUP_WAIT_S)
    (notification,) = harness.notifications
    assert change_types(notification) == {None: ChangeType.WORSE, "db": ChangeType.WORSE}
    assert notification.health is Health.PARTIAL
    change = change_of(notification, "db")
    assert (change.health, change.before, change.code) == (Health.PARTIAL, None, ReasonCode.SYNCING)
    harness.wait(86_400)
    assert len(harness.notifications) == 1
    harness.up("db").wait(60)
    assert change_types(harness.last) == {None: ChangeType.RECOVERED, "db": ChangeType.RECOVERED}
    assert harness.last.node is not None
    assert harness.last.node.duration_s == change_of(harness.last, "db").duration_s, "since its registration"


def test_a_service_without_evidence_is_notified_at_the_start_limit() -> None:
    harness = Harness(is_starting=True)
    harness.node.register("db", name="db", **CHECKED)
    record(harness.node, "db", Verdict.unknown("no resolver", code=ReasonCode.RESOLVER_FAILED))
    harness.wait(30 + START_LIMIT_S + GROUP_WAIT_S)
    assert change_types(harness.last) == {None: ChangeType.WORSE, "db": ChangeType.WORSE}
    assert change_of(harness.last, "db").code == ReasonCode.NO_EVIDENCE


def test_a_service_that_is_not_counted_is_notified_at_the_start_limit_only_if_it_causes_messages() -> None:
    for policy, expected in ((POLICY, []), (AlertPolicy(services="all"), [{"extra": ChangeType.WORSE}])):
        harness = Harness(policy).add("extra", impact="none", up=False).wait(3600)
        assert list(map(change_types, harness.notifications)) == expected


def test_a_replaced_probe_has_a_start_limit_of_its_own() -> None:
    harness = Harness().add("db").wait(3600)
    harness.node.replace(definition_with_a_new_probe("db"))
    harness.wait(START_LIMIT_S - 1)
    assert not harness.notifications
    harness.wait(60)
    assert change_types(harness.last) == {None: ChangeType.WORSE, "db": ChangeType.WORSE}


def test_the_start_limit_of_a_service_that_was_registered_before_a_restart_begins_with_the_restart() -> None:
    harness = Harness()
    harness.node.add(definition_with_a_new_probe("db"), registered_at_s=harness.clock.now_s - 86_400)
    harness.wait(START_LIMIT_S - 1)
    assert not harness.notifications
    harness.wait(60)
    assert change_types(harness.last) == {None: ChangeType.WORSE, "db": ChangeType.WORSE}


def test_a_start_limit_that_ends_during_maintenance_is_notified_after_it() -> None:
    harness = Harness().add("db", up=False)
    harness.node.maintenance.set(Maintenance("control", harness.clock.now_s + 3600), "db")
    harness.wait(3599)
    assert not harness.notifications
    harness.wait(60)
    assert change_types(harness.last) == {None: ChangeType.WORSE, "db": ChangeType.WORSE}


def test_a_new_start_limit_applies_to_services_that_are_starting() -> None:
    harness = Harness().add("db", up=False).wait(60)
    harness.engine.set_policy(replace(POLICY, start_limit_s=3600.0), harness.clock.now_s)
    harness.wait(3000)
    assert not harness.notifications
    harness.engine.set_policy(POLICY, harness.clock.now_s)
    harness.wait(GROUP_WAIT_S)
    assert change_types(harness.last) == {None: ChangeType.WORSE, "db": ChangeType.WORSE}


@pytest.mark.parametrize("last_health", [Health.PARTIAL, Health.UNHEALTHY])
@pytest.mark.parametrize("is_confirmed", [True, False])
@pytest.mark.parametrize("is_known", [True, False])
def test_at_the_start_limit_after_a_restart_what_was_notified_stays_notified(
    is_known: bool, last_health: Health, is_confirmed: bool
) -> None:
    harness = Harness().add("db", up=False)
    services = (None, Service(id="db", name="db", description="", impact=Impact.CRITICAL))
    before = [
        Incident(service=one, notified_health=last_health, since_s=harness.clock.now_s - 600, is_confirmed=is_confirmed)
        for one in services
    ]
    harness.engine.restore(before, harness.clock.now_s)
    if is_known:
        harness.starting("db")
    harness.wait(START_LIMIT_S - 1)
    assert not harness.notifications
    harness.wait(3600)
    if last_health is Health.UNHEALTHY and (is_known or not is_confirmed):
        expected = [ChangeType.BETTER]
    else:
        expected = [] if is_confirmed else [ChangeType.ONGOING]
    assert [change_of(one, "db").change_type for one in harness.notifications] == expected
    known = Health.PARTIAL if expected else last_health
    assert {one.notified_health for one in harness.engine.incidents().values()} == {known}
    harness.up("db").wait(3600)
    assert change_types(harness.last) == {None: ChangeType.RECOVERED, "db": ChangeType.RECOVERED}


# ---- flapping


def notified(harness: Harness, service_id: str | None = "db") -> list[tuple[ChangeType, Health]]:
    """What the notifications said about a service or the node."""
    every = [(*([one.node] if one.node else []), *one.services) for one in harness.notifications]
    return [
        (change.change_type, change.health)
        for changes in every
        for change in changes
        if (change.service.id if change.service else None) == service_id
    ]


IS_DOWN, IS_UP = (ChangeType.WORSE, Health.UNHEALTHY), (ChangeType.RECOVERED, Health.HEALTHY)


def test_a_flapping_service_is_notified_as_down_once_and_its_recovery_when_it_has_settled() -> None:
    harness = Harness().add("db").flap(times=20)
    stopped_s = harness.clock.now_s - 30  # the last change
    harness.wait(3600)
    assert notified(harness) == notified(harness, None) == [IS_DOWN, IS_UP]
    assert harness.last.at_s == stopped_s + SETTLED_AFTER_S
    assert change_of(harness.last, "db").changes == 40
    slow = Harness().add("db").flap(times=20, every_s=130)
    assert notified(slow).count(IS_UP) > 5


@pytest.mark.parametrize("times", [2, 3, 4, 20])
def test_a_service_that_goes_down_for_good_after_flapping_is_notified_after_the_group_wait(times: int) -> None:
    harness = Harness(AlertPolicy(resolve_delay_s=0.0)).add("db").flap(times=times, every_s=50)
    harness.down("db").wait(GROUP_WAIT_S)
    assert notified(harness)[-1] == notified(harness, None)[-1] == IS_DOWN
    assert harness.engine.incidents()["db"].notified_health is Health.UNHEALTHY
    harness.wait(86_400)
    assert notified(harness)[-1] == IS_DOWN


@pytest.mark.parametrize(
    ("period_s", "resolve_delay_s", "group_wait_s"),
    [(1.0, 300.0, 60.0), (5.0, 0.0, 5.0), (20.0, 300.0, 300.0), (61.0, 0.0, 60.0), (61.0, 300.0, 5.0)],
)
def test_a_node_that_flaps_and_is_mostly_down_is_notified_as_down(
    period_s: float, resolve_delay_s: float, group_wait_s: float
) -> None:
    harness = Harness(AlertPolicy(group_wait_s=group_wait_s, resolve_delay_s=resolve_delay_s)).add("db")
    while harness.clock.now_s < 1000 + 13 * 60:
        harness.down("db").wait(0.85 * period_s).up("db").wait(0.15 * period_s)
    assert IS_DOWN in notified(harness)
    assert IS_DOWN in notified(harness, None)
    harness.wait(3600)
    assert notified(harness)[-1] == notified(harness, None)[-1] == IS_UP


def test_a_service_that_flaps_between_initializing_and_up_and_goes_down_is_notified_after_the_group_wait() -> None:
    harness = Harness().add("db")
    for _ in range(10):
        harness.starting("db").wait(20).up("db").wait(20)
    assert notified(harness) == [(ChangeType.WORSE, Health.PARTIAL)]
    harness.down("db").wait(GROUP_WAIT_S)
    assert notified(harness)[-1] == notified(harness, None)[-1] == IS_DOWN


def test_a_worse_health_during_the_group_wait_of_a_flapping_service_does_not_extend_it() -> None:
    harness = Harness(AlertPolicy(group_wait_s=100.0)).add("db")
    for _ in range(6):
        harness.starting("db").wait(8).up("db").wait(8)
    harness.down("db").wait(100 - 6 * 16)
    assert [one.at_s for one in harness.notifications] == [1100.0]
    assert notified(harness) == [IS_DOWN]


def test_a_restart_during_flapping_forgets_nothing_that_was_notified() -> None:
    for is_down in (True, False):
        harness = Harness().add("db").flap(times=10)
        if is_down:
            harness.down("db")
        harness.restart(is_confirmed=True).wait(3600)
        assert notified(harness) == ([IS_DOWN] if is_down else [IS_DOWN, IS_UP])


def test_at_shutdown_a_worse_health_is_notified_and_a_recovery_that_has_not_settled_is_not() -> None:
    harness = Harness().add("db")
    for _ in range(10):
        harness.starting("db").wait(30).up("db").wait(30)
    harness.stop()
    assert notified(harness) == [(ChangeType.WORSE, Health.PARTIAL)]
    harness.down("db").stop()
    assert notified(harness)[-1] == IS_DOWN


def test_after_maintenance_during_flapping_what_is_wrong_is_notified() -> None:
    harness = Harness().add("db").flap(times=1, every_s=2)
    harness.node.maintenance.set(Maintenance("control", harness.clock.now_s + 600), "db")
    harness.flap(times=9).down("db").wait(90)
    assert notified(harness) == [IS_DOWN]


def test_a_flapping_service_is_repeated_while_it_is_down() -> None:
    harness = Harness(AlertPolicy(repeat_interval_s=300.0)).add("db").flap(times=20)
    assert set(notified(harness)) == {IS_DOWN, (ChangeType.REMINDER, Health.UNHEALTHY)}


def test_other_services_are_notified_while_one_flaps() -> None:
    harness = Harness().add("db").add("queue", impact="partial")
    harness.engine.set_policy(AlertPolicy(services="all"), harness.clock.now_s)
    harness.flap(times=20)
    assert notified(harness) == [IS_DOWN]
    harness.down("queue").wait(GROUP_WAIT_S)
    assert change_types(harness.last) == {"queue": ChangeType.WORSE}
    assert (harness.last.health, harness.last.held_before) == (Health.PARTIAL, Health.UNHEALTHY)


def test_a_node_whose_services_change_one_after_another_does_not_flap() -> None:
    harness = Harness(AlertPolicy(resolve_delay_s=0.0))
    ids = [f"s{number}" for number in range(10)]
    harness.add(*ids, impact="partial")
    for _ in range(2):
        harness.down(*ids).wait(120).up(*ids).wait(120)
    assert notified(harness, None) == [IS_DOWN, IS_UP] * 2


def test_a_flapping_service_that_is_removed_is_notified_as_removed() -> None:
    harness = Harness().add("db").flap(times=20)
    harness.node.deregister("db")
    harness.wait(3600)
    assert ChangeType.REMOVED in {change_types(notification).get("db") for notification in harness.notifications}
