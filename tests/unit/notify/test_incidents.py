"""Open incidents, also across a restart, and as JSON."""

from __future__ import annotations

import pytest

from svcnode.core.model import Health, Impact, Service
from svcnode.notify import engine
from svcnode.notify.alert import AlertPolicy, ChangeType
from svcnode.notify.incidents import Incident, LostMessages, SavedState, from_json, open_incidents, to_json
from tests.unit.notify.harness import GROUP_WAIT_S, Harness, change_of, change_types

DB = Service(id="db", name="Ledger \N{BLACK STAR}", description="", impact=Impact.CRITICAL)


def incident_before(
    harness: Harness, service_id: str | None, notified: Health = Health.UNHEALTHY, *, is_confirmed: bool = True
) -> Incident:
    """Since ten minutes ago."""
    service = None
    if service_id is not None:
        service = Service(id=service_id, name="Ledger", description="", impact=Impact.CRITICAL)
    return Incident(
        service=service, notified_health=notified, since_s=harness.clock.now_s - 600, is_confirmed=is_confirmed
    )


def restarted(*, is_confirmed: bool = True) -> Harness:
    """After a restart: a critical service and the node have open incidents, and no check has finished."""
    harness = Harness().add("db", up=False)
    before = [incident_before(harness, service_id, is_confirmed=is_confirmed) for service_id in (None, "db")]
    harness.engine.restore(before, harness.clock.now_s)
    return harness


def test_a_recovery_during_a_restart_has_the_longest_possible_duration() -> None:
    harness = restarted()
    harness.wait(30).up("db").wait(3600)
    (notification,) = harness.notifications
    assert change_types(notification) == {None: ChangeType.RECOVERED, "db": ChangeType.RECOVERED}
    assert notification.node is not None
    assert [
        (one.duration_s, one.duration_is_upper_bound) for one in (notification.node, change_of(notification, "db"))
    ] == [(630.0, True)] * 2
    assert not harness.engine.incidents()


def test_a_recovery_after_a_confirmed_failure_has_an_exact_duration() -> None:
    harness = restarted()
    harness.down("db").wait(100).up("db").wait(3600)
    (notification,) = harness.notifications
    assert change_types(notification) == {None: ChangeType.RECOVERED, "db": ChangeType.RECOVERED}
    assert (change_of(notification, "db").duration_s, change_of(notification, "db").duration_is_upper_bound) == (
        700.0,
        False,
    )


def test_an_unconfirmed_incident_is_notified_once_more() -> None:
    harness = restarted(is_confirmed=False)
    harness.wait(60)
    assert not harness.notifications, "a start is not notified"
    harness.down("db", reason="refused").wait(3600)
    (notification,) = harness.notifications
    assert change_types(notification) == {None: ChangeType.ONGOING, "db": ChangeType.ONGOING}
    assert (change_of(notification, "db").duration_s, change_of(notification, "db").reason) == (
        600 + 60 + GROUP_WAIT_S,
        "refused",
    )
    assert all(incident.is_confirmed for incident in harness.engine.incidents().values())
    harness.up("db").wait(3600)
    assert change_types(harness.last) == {None: ChangeType.RECOVERED, "db": ChangeType.RECOVERED}


def test_an_unconfirmed_incident_that_was_healthy_in_between_is_notified_as_recurred() -> None:
    harness = restarted(is_confirmed=False)
    harness.up("db").wait(1).down("db", reason="refused").wait(3600)
    (notification,) = harness.notifications
    assert change_types(notification) == {None: ChangeType.RECURRED, "db": ChangeType.RECURRED}
    assert change_of(notification, "db").duration_s == GROUP_WAIT_S - 1, "since the new problem"
    assert not any(incident.is_recurrence for incident in harness.engine.incidents().values()), "it is notified"


def test_a_worse_health_than_before_a_restart_is_notified() -> None:
    harness = Harness().add("db", up=False)
    harness.engine.restore([incident_before(harness, "db", Health.PARTIAL)], harness.clock.now_s)
    harness.down("db").wait(60)
    assert change_of(harness.last, "db").change_type is ChangeType.WORSE
    assert change_of(harness.last, "db").before is Health.PARTIAL


def test_an_incident_of_an_unregistered_service_is_notified_as_removed() -> None:
    harness = Harness().add("db")
    harness.engine.restore([incident_before(harness, "ledger")], harness.clock.now_s)
    harness.wait(60)
    (notification,) = harness.notifications
    assert change_types(notification) == {"ledger": ChangeType.REMOVED}
    assert not harness.engine.incidents()


def test_a_notification_during_the_start_has_the_current_health_of_the_node() -> None:
    harness = restarted()
    harness.add("queue", up=False).up("db").wait(60)
    assert change_types(harness.last) == {None: ChangeType.BETTER, "db": ChangeType.RECOVERED}
    assert harness.last.health is Health.PARTIAL
    harness.up("queue").wait(3600)
    assert change_types(harness.last) == {None: ChangeType.RECOVERED}


def test_incidents_restored_late_do_not_replace_newer_notifications() -> None:
    harness = Harness().add("db", "queue", up=False).down("db").wait(60).up("queue")
    before = [incident_before(harness, service_id, is_confirmed=False) for service_id in (None, "db", "queue")]
    harness.engine.restore(before, harness.clock.now_s)
    harness.wait(60)
    assert [change_types(notification) for notification in harness.notifications] == [
        {None: ChangeType.WORSE, "db": ChangeType.WORSE},
        {"queue": ChangeType.RECOVERED},
    ]


def test_an_open_incident_has_the_time_of_the_last_healthy_state() -> None:
    harness = Harness().add("db", "queue")
    started_s = harness.clock.now_s
    harness.down("db")
    assert not harness.engine.incidents()
    harness.wait(60)
    found = harness.engine.incidents()
    assert set(found) == {None, "db"}
    assert (found["db"].notified_health, found["db"].since_s, found["db"].is_confirmed) == (
        Health.UNHEALTHY,
        started_s,
        True,
    )


def test_the_number_of_incidents_is_limited_and_includes_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MAX_INCIDENTS", 3)
    harness = Harness(AlertPolicy(services="all")).add("a", "b", "c").down("a", "b", "c").wait(60)
    assert list(harness.engine.incidents()) == [None, "a", "b"]


@pytest.mark.parametrize("is_confirmed", [True, False])
@pytest.mark.parametrize("of_node", [Health.HEALTHY, Health.PARTIAL, Health.UNHEALTHY])
@pytest.mark.parametrize("of_db", [Health.HEALTHY, Health.PARTIAL, Health.UNHEALTHY])
@pytest.mark.parametrize("is_down", [True, False])
def test_after_a_restart_the_notified_state_becomes_the_true_state(
    is_down: bool, of_db: Health, of_node: Health, is_confirmed: bool
) -> None:
    harness = Harness().add("db", up=False)
    before: dict[str | None, Health] = {None: of_node, "db": of_db}
    incidents = [
        incident_before(harness, key, notified, is_confirmed=is_confirmed)
        for key, notified in before.items()
        if notified > Health.HEALTHY
    ]
    harness.engine.restore(incidents, harness.clock.now_s)
    harness.wait(60)
    assert not harness.notifications, "a start is not notified"
    (harness.down if is_down else harness.up)("db")
    harness.wait(60)
    truth = Health.UNHEALTHY if is_down else Health.HEALTHY
    known = harness.engine.incidents()
    assert {key: known[key].notified_health if key in known else Health.HEALTHY for key in before} == {
        None: truth,
        "db": truth,
    }
    is_notified = set(before.values()) != {truth} or (is_down and not is_confirmed)
    assert len(harness.notifications) == is_notified
    assert all(incident.is_confirmed for incident in known.values())


# ---- delivered and dispatched incidents


def incident(
    service: Service | None,
    notified: Health = Health.UNHEALTHY,
    *,
    since_s: float = 100.0,
    is_confirmed: bool = True,
    is_recurrence: bool = False,
) -> Incident:
    return Incident(
        service=service,
        notified_health=notified,
        since_s=since_s,
        is_confirmed=is_confirmed,
        is_recurrence=is_recurrence,
    )


def by_id(one: Incident | None) -> dict[str | None, Incident]:
    return {} if one is None else {"db": one}


def test_an_incident_is_confirmed_only_if_every_target_received_it() -> None:
    down, starting = incident(DB), incident(DB, Health.PARTIAL)

    def confirmed(dispatched: Incident | None, *delivered: Incident | None) -> list[tuple[Health, bool]]:
        return [
            (one.notified_health, one.is_confirmed)
            for one in open_incidents(by_id(dispatched), [by_id(one) for one in delivered])
        ]

    assert confirmed(down, down, down) == [(Health.UNHEALTHY, True)]
    assert confirmed(down, down, None) == [(Health.UNHEALTHY, False)]
    assert confirmed(down, starting) == [(Health.UNHEALTHY, False)]
    assert confirmed(None, None, down) == [(Health.UNHEALTHY, False)], "the recovery may not have arrived"
    assert confirmed(incident(DB, is_confirmed=False), incident(DB, is_confirmed=False)) == [(Health.UNHEALTHY, False)]
    assert confirmed(None, None, None) == []


def test_an_incident_that_is_resolved_for_some_targets_keeps_the_earliest_start() -> None:
    delivered = [by_id(incident(DB, since_s=200.0)), by_id(None), by_id(incident(DB, since_s=100.0))]
    assert [one.since_s for one in open_incidents({}, delivered)] == [100.0]


def test_a_later_problem_is_a_recurrence_until_every_target_received_it() -> None:
    def is_recurrence(dispatched: Incident, *delivered: Incident | None) -> bool:
        (one,) = open_incidents(by_id(dispatched), [by_id(one) for one in delivered])
        return one.is_recurrence

    known, later = incident(DB, since_s=100.0), incident(DB, since_s=200.0)
    assert is_recurrence(later, known)
    assert is_recurrence(later, later, known), "for one of the targets"
    assert is_recurrence(later, known, None), "the other target received nothing"
    assert not is_recurrence(incident(DB, Health.PARTIAL, since_s=100.0), known), "the same problem"
    assert not is_recurrence(later, None), "no target received the first problem"
    unsure = incident(DB, since_s=200.0, is_confirmed=False, is_recurrence=True)
    assert is_recurrence(unsure, unsure)
    assert is_recurrence(later, unsure), "the notification has not arrived"


# ---- as JSON


def test_the_format_of_the_saved_state_is_stable() -> None:
    """An upgrade keeps the open incidents."""
    text = (
        '{"incidents": [[null, "", "", 503, 1767225700.0, true, false], '
        '["db", "Ledger \\u2605", "critical", 206, 1767225700.0, false, true]], '
        '"lost": [["https://hooks.example.com", 2]]}'
    )
    state = SavedState(
        incidents=[incident(None), incident(DB, Health.PARTIAL, is_confirmed=False, is_recurrence=True)],
        lost=[LostMessages("https://hooks.example.com", 2)],
    )
    assert from_json(text, lambda at_s: at_s - 1_767_225_600.0) == state
    assert to_json(state, lambda at_s: at_s + 1_767_225_600.0) == text


@pytest.mark.parametrize(
    "text",
    [
        "not JSON",
        "1",
        "[1]",
        "{}",
        '{"incidents": [["db"]], "lost": []}',
        '{"incidents": [["db", "", "dire", 503, 1.0, true, false]], "lost": []}',
        '{"incidents": [["", "", "none", 9, 1, 1, 1]], "lost": []}',
        '{"incidents": [], "lost": [["https://hooks.example.com", "many"]]}',
    ],
)
def test_an_invalid_saved_state_is_logged_and_ignored(text: str, caplog: pytest.LogCaptureFixture) -> None:
    assert from_json(text, lambda at_s: at_s) == SavedState()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
