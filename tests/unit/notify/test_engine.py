"""Which changes are notified, and what a notification contains."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Health, Impact
from svcnode.core.state_machine import service_health
from svcnode.node.definition import define
from svcnode.notify.alert import SETTLED_AFTER_S, AlertPolicy, ChangeType
from svcnode.notify.engine import MAX_LISTED_SERVICES, Notification
from tests.unit.notify.harness import (
    GROUP_WAIT_S,
    RESOLVE_DELAY_S,
    Harness,
    ImpactName,
    change_of,
    change_types,
    definition_with_a_new_probe,
)

DISK_FULL = "disk full"

# ---- one notification


def test_a_critical_service_and_the_node_are_one_notification() -> None:
    harness = Harness().add("db").down("db", reason="connection refused").wait(60)
    (notification,) = harness.notifications
    assert change_types(notification) == {None: ChangeType.WORSE, "db": ChangeType.WORSE}
    change = change_of(notification, "db")
    assert (notification.health, change.reason, change.code) == (
        Health.UNHEALTHY,
        "connection refused",
        ReasonCode.REPORTED,
    )
    assert change_of(notification, "db").before is Health.HEALTHY


def test_changes_within_group_wait_are_one_notification_at_its_end_and_later_ones_another() -> None:
    harness = Harness().add("db", "queue", "cache").down("db").wait(4).down("queue").wait(GROUP_WAIT_S - 4.1)
    assert not harness.notifications
    harness.wait(0.2).down("cache").wait(60)
    assert [set(change_types(one)) for one in harness.notifications] == [{None, "db", "queue"}, {"cache"}]


def test_many_services_that_go_down_together_are_one_notification_that_lists_some() -> None:
    ids = [f"s{number}" for number in range(MAX_LISTED_SERVICES + 1)]
    harness = Harness(AlertPolicy(services="all")).add(*ids).down(*ids).wait(60).up(*ids).wait(600)
    assert [(len(one.services), one.truncated_services) for one in harness.notifications] == [
        (MAX_LISTED_SERVICES, 1)
    ] * 2


def test_services_are_listed_by_severity() -> None:
    harness = Harness(AlertPolicy(services="all")).add("a", "b", "c", "d").add("e", impact="partial")
    harness.add("f", impact="partial").starting("a").down("e", "d", "b").wait(60)
    assert list(change_types(harness.last)) == [None, "b", "d", "e", "a"]


# ---- which services


def test_a_service_that_is_not_critical_is_listed_if_the_node_changes_and_causes_no_notification_itself() -> None:
    harness = Harness().add("a", "b", "c", impact="partial").add("extra", impact="none").down("a", "extra").wait(60)
    assert change_types(harness.last) == {None: ChangeType.WORSE, "a": ChangeType.WORSE}
    assert harness.last.health is Health.PARTIAL
    harness.down("b").wait(3600)
    assert len(harness.notifications) == 1
    harness.up("a", "b").wait(3600)
    assert change_types(harness.last) == {None: ChangeType.RECOVERED, "a": ChangeType.RECOVERED}, (
        "b was never notified as Down"
    )


def test_a_transient_change_without_a_notification_is_discarded() -> None:
    harness = Harness().add("db").add("cache", impact="none").add("a", "b", impact="partial").down("a")
    harness.wait(3600).down("b").up("b").wait(3600).down("db").wait(60)
    assert set(change_types(harness.last)) == {None, "db"}


def test_services_all_gives_every_service_its_own_notifications() -> None:
    harness = Harness(AlertPolicy(services="all")).add("a", "b", impact="partial").add("extra", impact="none")
    harness.down("extra").wait(60)
    assert change_types(harness.last) == {"extra": ChangeType.WORSE}
    harness.down("a").wait(60).down("extra", "b").wait(60)
    assert change_types(harness.last) == {None: ChangeType.WORSE, "b": ChangeType.WORSE}


def test_services_none_notifies_the_node_only_and_lists_the_cause() -> None:
    harness = Harness(AlertPolicy(services="none")).add("db", "queue").down("db").wait(60)
    assert change_types(harness.last) == {None: ChangeType.WORSE, "db": ChangeType.WORSE}
    harness.down("queue").wait(3600)
    assert len(harness.notifications) == 1, "the health of the node is unchanged"


def test_a_notified_problem_ends_with_a_notification_also_if_the_service_is_no_longer_counted() -> None:
    harness = Harness().add("db", "api").down("db").wait(GROUP_WAIT_S)
    harness.node.replace(define("db", name="db", impact="none"))
    harness.wait(RESOLVE_DELAY_S + GROUP_WAIT_S)
    assert change_types(harness.last) == {None: ChangeType.RECOVERED}
    harness.up("db").wait(RESOLVE_DELAY_S + GROUP_WAIT_S)
    assert change_types(harness.last) == {"db": ChangeType.RECOVERED}
    harness.down("db").wait(RESOLVE_DELAY_S + GROUP_WAIT_S)
    assert change_types(harness.last) == {"db": ChangeType.RECOVERED}, "no further notification"


def test_a_notification_lists_unchanged_services_that_are_not_up() -> None:
    harness = Harness().add("db").add("cache", impact="partial").down("cache").wait(60).down("db").wait(60)
    assert [service.id for service in harness.last.not_up] == ["cache"]


# ---- the node itself


def test_an_issue_is_part_of_the_notification() -> None:
    harness = Harness().add("db")
    harness.node.overrides.set_issue(DISK_FULL)
    harness.wait(400)
    assert (change_types(harness.last), harness.last.issues) == ({None: ChangeType.WORSE}, (DISK_FULL,))
    harness.node.overrides.clear_issue()
    harness.wait(60)
    assert (change_types(harness.last), harness.last.issues) == ({None: ChangeType.RECOVERED}, ())


# ---- shutdown


def test_draining_is_not_notified() -> None:
    harness = Harness().add("db")
    harness.node.overrides.drain()
    harness.wait(3600)
    assert harness.node.health is Health.UNHEALTHY
    assert not harness.notifications


def test_waiting_changes_are_notified_at_shutdown() -> None:
    harness = Harness().add("db").down("db").wait(60).stop()
    assert len(harness.notifications) == 1, "nothing waits"
    harness.up("db").stop()
    assert change_types(harness.last) == {None: ChangeType.RECOVERED, "db": ChangeType.RECOVERED}


def test_a_problem_that_began_before_the_engine_is_notified_also_if_the_service_is_initializing() -> None:
    """As after the end of another worker, which has not sent it."""
    harness = Harness().add("db").starting("db").restart(is_confirmed=True).wait(GROUP_WAIT_S)
    assert [one.services[0].health for one in harness.notifications] == [Health.PARTIAL]


# ---- removed services


def test_a_removed_service_with_an_open_incident_is_notified_as_removed() -> None:
    harness = Harness().add("db", "queue").down("db").wait(400)
    harness.node.deregister("db")
    harness.wait(60)
    assert change_types(harness.last) == {None: ChangeType.RECOVERED, "db": ChangeType.REMOVED}
    harness.add("db").wait(3600)
    assert len(harness.notifications) == 2


def test_a_removed_service_without_an_incident_is_not_notified() -> None:
    harness = Harness().add("db", "queue")
    harness.node.deregister("db")
    harness.down("queue")
    harness.node.deregister("queue")
    harness.wait(3600)
    assert [change_types(notification) for notification in harness.notifications] == [{None: ChangeType.TRANSIENT}]


# ---- reminders


REMINDING = AlertPolicy(repeat_interval_s=3600)


def test_a_problem_is_repeated_after_each_repeat_interval_until_it_ends() -> None:
    harness = Harness(REMINDING).add("db").down("db", reason="refused").wait(GROUP_WAIT_S + 2 * 3600)
    assert [change_types(notification)["db"] for notification in harness.notifications] == [
        ChangeType.WORSE,
        ChangeType.REMINDER,
        ChangeType.REMINDER,
    ]
    assert change_types(harness.last) == {None: ChangeType.REMINDER, "db": ChangeType.REMINDER}
    change = change_of(harness.last, "db")
    assert (change.health, change.before, change.reason) == (Health.UNHEALTHY, Health.UNHEALTHY, "refused")
    assert change.duration_s == GROUP_WAIT_S + 2 * 3600
    harness.up("db").wait(86_400)
    assert change_types(harness.last) == {None: ChangeType.RECOVERED, "db": ChangeType.RECOVERED}
    assert len(harness.notifications) == 4


def test_every_notification_restarts_the_repeat_interval_and_one_reminder_has_all_problems() -> None:
    harness = Harness(REMINDING).add("db", "queue").add("cache", impact="partial").down("db", "cache")
    harness.wait(1800).down("queue").wait(3000)
    assert len(harness.notifications) == 2
    harness.wait(1000)
    assert change_types(harness.last) == dict.fromkeys([None, "db", "queue", "cache"], ChangeType.REMINDER)
    assert not harness.last.not_up


def test_a_reminder_contains_changes_that_wait() -> None:
    harness = Harness(AlertPolicy(repeat_interval_s=60, resolve_delay_s=3600)).add("db", "queue")
    harness.down("db", "queue").wait(30).up("db").wait(60)
    assert change_types(harness.last) == {
        None: ChangeType.REMINDER,
        "queue": ChangeType.REMINDER,
        "db": ChangeType.RECOVERED,
    }


def test_a_problem_that_returns_while_its_end_waits_is_repeated_at_once() -> None:
    harness = Harness(AlertPolicy(repeat_interval_s=60)).add("db").down("db").wait(10).up("db").wait(100)
    assert len(harness.notifications) == 1
    harness.down("db").wait(0)
    assert change_types(harness.last)["db"] is ChangeType.REMINDER


def test_after_a_restart_the_repeat_interval_starts_again_and_waits_for_the_first_check() -> None:
    harness = Harness(REMINDING).add("db").down("db").wait(60)
    incidents = harness.engine.incidents().values()
    harness = Harness(REMINDING).add("db", up=False)
    harness.engine.set_policy(replace(REMINDING, start_limit_s=86_400.0), harness.clock.now_s)
    harness.engine.restore(incidents, harness.clock.now_s)
    harness.wait(7200)
    assert not harness.notifications
    harness.down("db").wait(0)
    assert change_types(harness.last) == {None: ChangeType.REMINDER, "db": ChangeType.REMINDER}


def test_without_a_repeat_interval_there_are_no_reminders_and_a_new_policy_can_start_and_stop_them() -> None:
    harness = Harness().add("db").down("db").wait(30 * 86_400)
    assert len(harness.notifications) == 1
    assert harness.engine.due_at_s == math.inf
    harness.engine.set_policy(REMINDING, harness.clock.now_s)
    harness.wait(0)
    assert change_types(harness.last)["db"] is ChangeType.REMINDER
    harness.engine.set_policy(AlertPolicy(), harness.clock.now_s)
    harness.wait(86_400)
    assert len(harness.notifications) == 2


# ---- new policies


def test_a_new_policy_applies_to_pending_changes() -> None:
    harness = Harness().add("db").down("db").wait(60).add("cache", impact="none").down("cache")
    harness.engine.set_policy(AlertPolicy(services="all"), harness.clock.now_s)
    harness.wait(GROUP_WAIT_S)
    assert change_types(harness.last) == {"cache": ChangeType.WORSE}


# ---- properties


ACTIONS = ["up", "up", "down", "down", "starting", "remove", "replace", "issue"]


def steps_of(*actions: str) -> st.SearchStrategy[list[tuple[float, str, str]]]:
    waits_s = st.sampled_from([0.0, 0.5, 2.0, 4.9, 20.0, 70.0, 310.0, 1000.0])
    return st.lists(st.tuples(waits_s, st.sampled_from("abcd"), st.sampled_from(actions)), max_size=60)


STEPS = steps_of(*ACTIONS)
IMPACTS: dict[str, ImpactName] = {"a": "critical", "b": "critical", "c": "partial", "d": "none"}
ANY_POLICY = st.builds(
    AlertPolicy,
    services=st.sampled_from(["critical", "all", "none"]),
    group_wait_s=st.sampled_from([0.0, GROUP_WAIT_S, 60.0]),
    resolve_delay_s=st.sampled_from([0.0, 60.0, RESOLVE_DELAY_S, 3600.0]),
    repeat_interval_s=st.sampled_from([0.0, 0.0, 600.0]),
)


class NotifiedState:
    """The state according to the notifications."""

    def __init__(self) -> None:
        self.health: dict[str | None, Health] = {}

    def read(self, notification: Notification) -> None:
        self.health[None] = notification.health
        for one in (*([notification.node] if notification.node else []), *notification.services):
            key = one.service.id if one.service else None
            if one.change_type is ChangeType.REMOVED:
                self.health.pop(key, None)
            elif one.service:
                self.health[key] = one.health


Steps = list[tuple[float, str, str]]


def run_steps(steps: Steps, policy: AlertPolicy) -> Harness:
    harness = Harness(policy)
    for wait_s, service_id, action in steps:
        if service_id not in harness.node:
            harness.add(service_id, impact=IMPACTS[service_id], up=False)
        match action:
            case "up":
                harness.up(service_id)
            case "down":
                harness.down(service_id)
            case "starting":
                harness.starting(service_id)
            case "remove":
                harness.node.deregister(service_id)
            case "replace":
                harness.node.replace(definition_with_a_new_probe(service_id, IMPACTS[service_id]))
            case "restart" | "restart, unconfirmed":
                harness.restart(is_confirmed=action == "restart")
            case _:
                is_set = "full" in harness.node.condition.issues
                (harness.node.overrides.clear_issue if is_set else harness.node.overrides.set_issue)("full")
        harness.wait(wait_s)
    return harness


@settings(max_examples=120, deadline=None)
@given(STEPS | steps_of(*ACTIONS, "restart", "restart, unconfirmed"), ANY_POLICY)
def test_after_everything_has_settled_the_notified_state_is_the_true_state(steps: Steps, policy: AlertPolicy) -> None:
    harness = run_steps(steps, policy)
    harness.wait(2 * (policy.resolve_delay_s + SETTLED_AFTER_S + policy.group_wait_s))
    assert harness.engine.due_at_s == math.inf or policy.repeat_interval_s
    notified = NotifiedState()
    is_one_process = not any(action.startswith("restart") for *_, action in steps)
    for notification in harness.notifications:
        assert change_types(notification), "an empty message"
        for service_id, change_type in change_types(notification).items():
            if change_type is ChangeType.RECOVERED and is_one_process:
                assert notified.health[service_id] > Health.HEALTHY, "a recovery without a problem"
        notified.read(notification)
    keys = (None, *(service.id for service, _ in harness.node))
    # Nothing known since a restart does not improve what was notified before.
    still_down = {key for key in keys if (alert := harness.engine.find(key)) and alert.was_down_before_restart}
    for service, state in harness.node:
        has_own_alert = policy.services == "all" or (
            policy.services == "critical" and service.impact is Impact.CRITICAL
        )
        if has_own_alert and service.id not in still_down:
            assert notified.health.get(service.id, Health.HEALTHY) is service_health(state.status), service.id
    if None not in still_down:
        assert notified.health.get(None, Health.HEALTHY) is harness.node.health


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_one_service_causes_at_most_three_notifications_within_the_resolve_delay(steps: Steps) -> None:
    """A transient problem, its return, and the delayed recovery."""
    only_db = [(wait_s, "a", action) for wait_s, _, action in steps if action in ("up", "down")]
    harness = run_steps(only_db, AlertPolicy(resolve_delay_s=RESOLVE_DELAY_S))
    times_s = [notification.at_s for notification in harness.notifications]
    assert all(later - earlier >= GROUP_WAIT_S for earlier, later in pairwise(times_s))
    for index, at_s in enumerate(times_s):
        within = [other for other in times_s[index:] if other - at_s < RESOLVE_DELAY_S]
        assert len(within) <= 3


# ---- maintenance


@pytest.mark.parametrize("service_id", ["db", None])
def test_nothing_is_notified_during_maintenance_and_what_is_wrong_at_its_end_is(service_id: str | None) -> None:
    harness = Harness().add("db").maintain(service_id, 3600).down("db").wait(3599)
    assert not harness.notifications
    harness.wait(60)
    (notification,) = harness.notifications
    assert change_types(notification) == {None: ChangeType.WORSE, "db": ChangeType.WORSE}
    assert notification.health is Health.UNHEALTHY


def test_what_is_right_again_at_the_end_of_maintenance_is_not_notified() -> None:
    harness = Harness().add("db").maintain("db", 3600).flap(times=10).wait(7200)
    assert not harness.notifications


def test_a_recovery_during_maintenance_is_notified_at_its_end_with_the_time_of_the_recovery() -> None:
    harness = Harness(AlertPolicy(repeat_interval_s=600.0)).add("db", "queue").down("db").wait(60)
    harness.maintain("db", 3600).wait(3000).up("db").wait(599)
    assert len(harness.notifications) == 1  # neither reminders nor the recovery
    harness.wait(7200)
    assert len(harness.notifications) == 2
    assert change_types(harness.last) == {None: ChangeType.RECOVERED, "db": ChangeType.RECOVERED}
    assert change_of(harness.last, "db").duration_s == 3060.0


@pytest.mark.parametrize("service_id", ["db", None])
def test_a_problem_that_waits_when_maintenance_begins_is_notified_at_the_end_only_if_it_lasts(
    service_id: str | None,
) -> None:
    for is_over in (True, False):
        harness = Harness().add("db").down("db").maintain(service_id, 3600).wait(60)
        if is_over:
            harness.up("db")
        harness.wait(7200)
        expected = [] if is_over else [{None: ChangeType.WORSE, "db": ChangeType.WORSE}]
        assert list(map(change_types, harness.notifications)) == expected


def test_a_node_whose_health_recovers_only_because_maintenance_lowers_an_impact_has_not_recovered() -> None:
    harness = Harness().add("queue")
    harness.node.add(define("db", impact="critical", maintenance_impact="none"))
    harness.down("db").wait(60).maintain("db", 3600)
    assert harness.node.health is Health.PARTIAL
    harness.wait(7200)
    assert len(harness.notifications) == 1
    harness.down("queue").wait(60)
    assert change_types(harness.last) == {"queue": ChangeType.WORSE}


def test_a_notification_has_the_last_notified_health_of_the_node_while_its_recovery_is_held() -> None:
    harness = Harness(AlertPolicy(services="all")).add("db").add("cache", impact="none").down("db").wait(60)
    harness.maintain("db", 3600).up("db").down("cache").wait(60)
    assert change_types(harness.last) == {"cache": ChangeType.WORSE}
    assert (harness.last.health, harness.last.held_before) == (Health.HEALTHY, Health.UNHEALTHY)
    harness.wait(7200)
    assert change_types(harness.last) == {None: ChangeType.RECOVERED, "db": ChangeType.RECOVERED}
    assert harness.last.held_before is None


def test_a_node_that_gets_worse_is_notified_while_a_problem_from_before_is_held() -> None:
    harness = Harness().add("db", "cache", impact="partial").add("queue").down("db").wait(60)
    harness.maintain("db", 3600).up("db").down("queue").wait(60)
    assert change_types(harness.last) == {None: ChangeType.WORSE, "queue": ChangeType.WORSE}


def test_flapping_from_before_maintenance_is_not_notified_after_it() -> None:
    harness = Harness(AlertPolicy(services="all", group_wait_s=100.0)).add("db").flap(times=3, every_s=10.0)
    harness.maintain(None, 3600).wait(7200)
    assert not harness.notifications


def test_other_services_are_notified_with_the_health_of_the_node() -> None:
    harness = Harness(AlertPolicy(services="all")).add("db").add("logs", impact="none").maintain("db", 3600)
    harness.down("db").down("logs").wait(60)
    (notification,) = harness.notifications
    assert change_types(notification) == {"logs": ChangeType.WORSE}
    assert (notification.health, notification.not_up) == (Health.UNHEALTHY, ())


def test_the_node_is_notified_if_another_service_is_not_up() -> None:
    harness = Harness().add("db", "queue").maintain("db", 3600).down("db", "queue").wait(60)
    assert change_types(harness.last) == {None: ChangeType.WORSE, "queue": ChangeType.WORSE}


def test_a_pending_message_is_held_when_maintenance_begins_also_after_a_restart() -> None:
    harness = Harness().add("db").down("db").maintain("db", 3600).wait(600).restart(is_confirmed=True)
    harness.wait(600).stop()
    assert not harness.notifications


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["up", "down", "starting", "maintain", "end"]), st.floats(0, 900)), max_size=20
    ),
    of=st.sampled_from(["db", None]),
)
@settings(max_examples=60, deadline=None)
def test_no_notification_names_a_service_in_maintenance_and_the_last_one_is_true(
    steps: list[tuple[str, float]], of: str | None
) -> None:
    harness = Harness(AlertPolicy(repeat_interval_s=900.0)).add("db")
    for step, wait_s in steps:
        match step:
            case "up":
                harness.up("db")
            case "down":
                harness.down("db")
            case "starting":
                harness.starting("db")
            case "maintain":
                harness.maintain(of, 600.0)
            case _:
                harness.node.maintenance.end(of, source="control")
        before, in_maintenance = len(harness.notifications), harness.node.maintenance.current("db") is not None
        harness.wait(min(wait_s, 599.0) if in_maintenance else wait_s)
        if in_maintenance and harness.node.maintenance.current("db") is not None:
            assert not [one for one in harness.notifications[before:] if "db" in change_types(one)]
    harness.node.maintenance.end(of, source="control")
    harness.wait(10_000)
    status = harness.node.status("db")
    assert status is not None
    notified = [change_of(one, "db").health for one in harness.notifications if "db" in change_types(one)]
    assert (notified or [Health.HEALTHY])[-1] is service_health(status)
