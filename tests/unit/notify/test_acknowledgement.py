"""What is acknowledged has no reminders and is not escalated; all else is told as always."""

from __future__ import annotations

import pytest

from svcnode.core.model import Acknowledgement, Health
from svcnode.notify.alertmanager import to_alerts
from svcnode.notify.message import MessageContext
from svcnode.notify.routes import AlertPolicy
from svcnode.notify.rule import Kind
from tests.unit.notify.harness import (
    GROUP_WAIT_S,
    RESOLVE_DELAY_S,
    FakeAlertmanager,
    FakeTarget,
    Harness,
    entry_of,
    kinds,
)

HOUR_S, DAY_S = 3600.0, 86_400.0
REMINDING = AlertPolicy(repeat_interval_s=4 * HOUR_S, services="all")
ESCALATE_S = 900.0
WORSE, REMINDER, RECOVERED = Kind.WORSE, Kind.REMINDER, Kind.RECOVERED


@pytest.fixture
def h() -> Harness:
    """With reminders."""
    return Harness(REMINDING).add("db", "cache")


def escalating() -> Harness:
    """With a target that is told what nobody has acknowledged."""
    return Harness(None, FakeTarget(), escalate_after_s=ESCALATE_S).add("db", "cache")


# ---- reminders


def test_an_acknowledged_service_and_the_node_that_fails_by_it_alone_have_no_reminders(h: Harness) -> None:
    h.down("db").wait(60).acknowledge("db").wait(DAY_S)
    assert h.kinds == [{"node": WORSE, "db": WORSE}]
    h.up("db").wait(RESOLVE_DELAY_S)
    assert h.kinds[1:] == [{"node": RECOVERED, "db": RECOVERED}]
    assert h.node.acknowledgements.find("db") is None


def test_an_acknowledgement_of_the_node_ends_when_it_is_healthy(h: Harness) -> None:
    h.node.overrides.set_issue("disk full")
    h.wait(60).acknowledge(None).wait(DAY_S)
    assert h.kinds == [{"node": WORSE, "disk full": WORSE}]
    h.node.overrides.clear_issue()
    h.wait(RESOLVE_DELAY_S)
    assert h.kinds[1:] == [{"node": RECOVERED, "disk full": RECOVERED}]
    assert h.node.acknowledgements.find() is None


def test_a_problem_that_is_acknowledged_before_it_is_told_is_told(h: Harness) -> None:
    h.down("db").acknowledge("db").wait(GROUP_WAIT_S)
    assert h.kinds == [{"node": WORSE, "db": WORSE}]


def test_an_acknowledgement_of_one_service_leaves_the_reminders_of_another_and_of_the_node(h: Harness) -> None:
    h.down("db", "cache").wait(60).acknowledge("db").wait(4 * HOUR_S)
    assert h.kinds[1:] == [{"node": REMINDER, "cache": REMINDER}]
    h.acknowledge("cache").wait(DAY_S)
    assert len(h.reports) == 2


def test_a_service_that_fails_later_is_told_and_the_node_has_reminders_again(h: Harness) -> None:
    h.down("db").wait(60).acknowledge("db").wait(DAY_S).down("cache").wait(60)
    assert h.kinds[1:] == [{"node": REMINDER, "cache": WORSE}]
    h.wait(4 * HOUR_S)
    assert h.kinds[2:] == [{"node": REMINDER, "cache": REMINDER}]


def test_an_issue_is_not_acknowledged_with_the_services_nor_by_an_earlier_one_of_the_node(h: Harness) -> None:
    h.down("db").wait(60).acknowledge("db")
    h.node.overrides.set_issue("disk full")
    h.wait(GROUP_WAIT_S)
    assert h.kinds[1:] == [{"disk full": WORSE}], "the node was unhealthy before"
    h.wait(4 * HOUR_S)
    assert h.kinds[2:] == [{"node": REMINDER, "disk full": REMINDER}]
    h.acknowledge(None).wait(DAY_S)
    assert len(h.reports) == 3
    h.node.overrides.set_issue("raid degraded")
    h.wait(4 * HOUR_S + 60)
    assert h.kinds[3:] == [{"raid degraded": WORSE}, {"raid degraded": REMINDER}]


def test_an_acknowledgement_outlives_a_restart_after_which_the_service_is_starting() -> None:
    h = Harness(REMINDING).add("db").down("db").wait(60)
    made_s = h.node.wall_time_s(h.clock.now_s)
    h.restart("db")
    h.node.acknowledgements.make(Acknowledgement(Health.UNHEALTHY, made_s), "db")
    h.wait(1).down("db").wait(DAY_S)
    assert h.node.acknowledgements.find("db") is not None
    assert [WORSE in one.values() for one in h.kinds] == [True]


def test_reminders_go_on_after_the_end_of_the_acknowledgement(h: Harness) -> None:
    h.down("db").wait(60).acknowledge("db", for_s=6 * HOUR_S).wait(6 * HOUR_S - 1)
    assert len(h.reports) == 1
    h.wait(2)
    assert h.kinds[1:] == [{"node": REMINDER, "db": REMINDER}]
    h.acknowledge("db").wait(DAY_S).node.acknowledgements.end("db")
    h.wait(1)
    assert h.kinds[2:] == [{"node": REMINDER, "db": REMINDER}]


def test_a_service_that_gets_worse_is_told_and_has_reminders_again(h: Harness) -> None:
    h.starting("db").wait(60).acknowledge("db").wait(DAY_S)
    assert h.kinds == [{"node": WORSE, "db": WORSE}]
    h.down("db").wait(60)
    assert h.kinds[1:] == [{"node": WORSE, "db": WORSE}]
    h.wait(4 * HOUR_S)
    assert h.kinds[2:] == [{"node": REMINDER, "db": REMINDER}]


def test_an_acknowledgement_also_covers_what_is_better_but_not_what_is_worse_again(h: Harness) -> None:
    h.down("db").wait(60).acknowledge("db").starting("db").wait(DAY_S)
    assert h.kinds[1:] == [{"node": Kind.BETTER, "db": Kind.BETTER}]
    h.down("db").wait(60 + 4 * HOUR_S)
    assert h.kinds[2:] == [{"node": WORSE, "db": WORSE}, {"node": REMINDER, "db": REMINDER}]
    h.acknowledge("db").up("db").wait(DAY_S).down("db").wait(60)
    assert h.kinds[4:] == [{"node": RECOVERED, "db": RECOVERED}, {"node": WORSE, "db": WORSE}]
    h.wait(4 * HOUR_S)
    assert h.kinds[6:] == [{"node": REMINDER, "db": REMINDER}]


def test_an_acknowledgement_of_the_node_ends_when_it_is_worse_again(h: Harness) -> None:
    h.down("db").wait(60).acknowledge(None).starting("db").wait(60).down("db", reason="another").wait(4 * HOUR_S)
    assert h.kinds[-1] == {"node": REMINDER, "db": REMINDER}


def test_a_worse_health_ends_the_acknowledgement_of_the_node_and_a_drain_does_not(h: Harness) -> None:
    h.starting("db").wait(60).acknowledge(None).acknowledge("db")
    h.node.overrides.drain()
    h.node.overrides.undrain()
    h.wait(DAY_S)
    assert len(h.reports) == 1
    h.down("cache").wait(60)
    assert h.kinds[1:] == [{"node": WORSE, "cache": WORSE}]
    h.wait(4 * HOUR_S)
    assert h.kinds[2:] == [{"node": REMINDER, "cache": REMINDER}]


def test_a_restart_forgets_no_acknowledgement(h: Harness) -> None:
    h.down("db").wait(60)
    made = h.acknowledge("db").node.acknowledgements.find("db")
    assert made is not None
    h.restart("db", "cache")
    h.node.acknowledgements.make(made, "db")
    h.up("cache").down("db").wait(DAY_S)
    assert h.kinds == [{"node": WORSE, "db": WORSE}]


# ---- escalation


def test_an_acknowledged_problem_is_escalated_if_it_is_open_for_long_after_that_ended() -> None:
    h = escalating().down("db").wait(60).acknowledge("db", for_s=HOUR_S).wait(HOUR_S + ESCALATE_S - 1)
    assert h.reports == []
    h.wait(2)
    assert h.kinds == [{"node": WORSE, "db": WORSE}]


def test_an_acknowledged_problem_that_gets_worse_is_escalated() -> None:
    h = escalating().starting("db").wait(60).acknowledge("db").wait(DAY_S)
    assert h.reports == []
    h.down("db").wait(ESCALATE_S - 1)
    assert h.reports == []
    h.wait(2)
    assert h.kinds == [{"node": WORSE, "db": WORSE}]


def test_a_node_with_an_acknowledged_service_is_escalated_with_the_service_that_fails_later() -> None:
    h = escalating().down("db").wait(60).acknowledge("db").wait(DAY_S).down("cache").wait(ESCALATE_S - 1)
    assert h.reports == []
    h.wait(2)
    assert h.kinds == [{"node": WORSE, "cache": WORSE}]


def test_a_target_of_an_escalation_is_told_the_recovery_of_what_was_acknowledged_later() -> None:
    h = escalating().down("db").wait(ESCALATE_S).acknowledge("db").wait(DAY_S).up("db").wait(RESOLVE_DELAY_S)
    assert h.kinds == [{"node": WORSE, "db": WORSE}, {"node": RECOVERED, "db": RECOVERED}]


def test_a_target_of_an_escalation_is_told_nothing_of_what_was_acknowledged_until_its_end() -> None:
    h = escalating().down("db").wait(60).acknowledge("db").wait(DAY_S).up("db").wait(DAY_S)
    assert h.reports == []


# ---- what messages say


def message(h: Harness) -> tuple[dict[str, object], str]:
    """The fields of the first service of the last message, and its text."""
    built = h.message()
    return built.fields["services"][0], "\n".join((built.title, *built.lines))


def test_later_messages_say_who_has_acknowledged_the_problem(h: Harness) -> None:
    h.down("db").wait(60)
    fields, text = message(h)
    assert fields["acknowledged"] is None
    assert "acknowledged" not in text
    h.acknowledge("db", for_s=DAY_S).up("db").wait(RESOLVE_DELAY_S)
    fields, text = message(h)
    at, until = "2026-01-01T00:01:00.000Z", "2026-01-02T00:01:00.000Z"
    assert fields["acknowledged"] == {"by": "ops", "at": at, "reason": "disk ordered", "until": until}
    assert "acknowledged by ops" in text
    h.down("db").wait(60)
    assert message(h)[0]["acknowledged"] is None


def test_alertmanager_gets_the_acknowledgement_at_once_and_all_that_is_open_as_before() -> None:
    target = FakeAlertmanager()
    h = Harness(REMINDING, target).add("db").down("db").wait(6)
    h.acknowledge("db").wait(0)
    context = MessageContext(identity=h.node.identity, situation=h.alerts.situation(), to_wall=h.node.wall_time_s)
    alerts = {alert["labels"].get("service_id"): alert["annotations"] for alert in to_alerts(h.last.open, context)}
    assert alerts["db"]["acknowledged"].startswith("by ops at ")
    assert "acknowledged" not in alerts[None]
    count = len(target.reports)
    h.wait(600)
    assert len(target.reports) >= count + 10


def test_a_removed_service_is_told_as_such_with_its_acknowledgement(h: Harness) -> None:
    h.down("db").wait(60).acknowledge("db").remove("db").wait(RESOLVE_DELAY_S)
    assert kinds(h.last)["db"] is Kind.REMOVED
    assert entry_of(h.last, "db").acknowledgement is not None
    assert h.node.acknowledgements.find("db") is None
