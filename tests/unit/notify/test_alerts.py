"""What is told about a node and its services, and when: the stories of docs/alerts.md, in virtual time."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from svcnode.core.model import Health, Verdict
from svcnode.node.definition import Definition
from svcnode.notify.routes import AlertPolicy, RouteSettings
from svcnode.notify.rule import Kind
from svcnode.sharing.record import from_registry
from tests.support.nodes import record
from tests.unit.notify.harness import (
    GROUP_WAIT_S,
    RESOLVE_DELAY_S,
    START_LIMIT_S,
    FakeAlertmanager,
    FakeTarget,
    Harness,
    definition_with_a_new_probe,
    entry_of,
)

if TYPE_CHECKING:
    from svcnode.notify.routes import Report

WORSE, BETTER, RECOVERED, TRANSIENT, RECURRED, REMOVED, REMINDER = Kind
SETTLED_S = RESOLVE_DELAY_S + GROUP_WAIT_S

# ---- one message


def test_what_changes_within_the_group_wait_is_one_message_and_later_changes_are_another() -> None:
    harness = Harness().add("db", "queue", "cache").down("db").wait(4).down("queue").wait(GROUP_WAIT_S - 4)
    assert harness.kinds == [{"node": WORSE, "db": WORSE, "queue": WORSE}]
    entry = entry_of(harness.last, "db")
    assert (entry.health, entry.before, entry.reason, entry.code) == (503, 200, "refused", "reported")
    harness.down("cache").wait(60)
    assert harness.kinds[1:] == [{"cache": WORSE}]


def test_a_message_has_the_most_severe_services_first() -> None:
    harness = Harness(AlertPolicy(services="all")).add("a", impact="partial").add("b", "c").down("a", "b", "c").wait(60)
    (report,) = harness.reports
    assert [entry.service.id for entry in report.services] == ["b", "c", "a"]
    harness.up("a", "b", "c").wait(SETTLED_S)
    assert len(harness.reports) == 2, "all were told, so all recover"


def test_a_message_shows_what_is_true_when_it_is_sent() -> None:
    harness = Harness().add("db").down("db", reason="refused").wait(2).down("db", reason="timeout").wait(60)
    assert entry_of(harness.last, "db").reason == "timeout"
    assert "db" in entry_of(harness.last, "node").reason


# ---- the stories


def test_a_critical_service_that_changed_six_times_and_is_down_for_good_is_told_as_down() -> None:
    harness = Harness(None, FakeTarget(), FakeAlertmanager("alertmanager")).add("db").flap(times=3, every_s=100.0)
    harness.down("db").wait(GROUP_WAIT_S)
    assert harness.alerts.find("db").told is Health.UNHEALTHY
    harness.wait(3600)
    assert entry_of(harness.last, "db").health is Health.UNHEALTHY
    (db,) = (entry for entry in harness.targets[1].reports[-1].open if entry.subject.key.name == "db")
    assert (db.worst, db.health, db.reason) == (Health.UNHEALTHY, Health.UNHEALTHY, "refused")


def test_a_node_that_flaps_and_is_mostly_down_is_told_as_down_until_it_has_been_well() -> None:
    harness = Harness().add("db")
    for _ in range(26):
        harness.down("db").wait(25.5).up("db").wait(4.5)
    assert harness.kinds == [{"node": WORSE, "db": WORSE}]
    harness.wait(SETTLED_S)
    assert harness.kinds[1:] == [{"node": RECOVERED, "db": RECOVERED}]
    assert entry_of(harness.last, "db").changes == 52


@pytest.mark.parametrize(
    "verdict",
    [None, Verdict.unknown("no resolver"), Verdict.not_ready("read-only"), Verdict.not_ready("syncing")],
)
@pytest.mark.parametrize("was_up", [False, True])
def test_a_service_that_is_never_up_is_told_at_the_start_limit_also_after_a_restart(
    verdict: Verdict | None, was_up: bool
) -> None:
    harness = Harness()
    if was_up:
        harness.add("db").wait(60).restart()
    harness.add("db", up=False)
    if verdict is not None:
        record(harness.node, "db", verdict)
    harness.wait(START_LIMIT_S)
    assert not harness.reports
    harness.wait(GROUP_WAIT_S)
    assert harness.kinds == [{"node": WORSE, "db": WORSE}]
    assert entry_of(harness.last, "db").health is Health.PARTIAL
    harness.up("db").wait(SETTLED_S)
    assert harness.kinds[1:] == [{"node": RECOVERED, "db": RECOVERED}]


def test_a_short_problem_is_told_as_over_and_if_it_returns_as_open_until_it_has_been_well() -> None:
    harness = Harness().add("db").down("db").wait(3).up("db").wait(60)
    assert harness.kinds == [{"node": TRANSIENT, "db": TRANSIENT}]
    entry = entry_of(harness.last, "db")
    assert (entry.health, entry.worst, entry.duration_s, entry.reason) == (200, 503, 3, "refused")
    harness.down("db").wait(3).up("db").wait(60)
    assert harness.kinds[1:] == [{"node": RECURRED, "db": RECURRED}]
    assert harness.alerts.find("db").told is Health.UNHEALTHY
    harness.flap(times=3, every_s=3).wait(SETTLED_S)
    assert harness.kinds[2:] == [{"node": RECOVERED, "db": RECOVERED}]
    assert entry_of(harness.last, "db").changes == 8


# ---- which services


def test_a_service_that_is_not_critical_is_told_with_the_node_and_causes_no_message_itself() -> None:
    harness = Harness().add("a", "b", "c", impact="partial").add("extra", impact="none").down("a", "extra").wait(60)
    assert harness.kinds == [{"node": WORSE, "a": WORSE}]
    harness.down("b").up("b").wait(60).down("b").wait(3600)
    assert len(harness.reports) == 1
    harness.up("a", "b").wait(SETTLED_S)
    assert harness.kinds[1:] == [{"node": RECOVERED, "a": RECOVERED}], "b was never told"


def test_services_all_and_none() -> None:
    harness = Harness(AlertPolicy(services="all")).add("a", impact="partial").add("extra", impact="none")
    assert harness.down("extra").wait(60).kinds == [{"extra": WORSE}]
    harness = Harness(AlertPolicy(services="none")).add("db", "queue").down("db").wait(60).down("queue").wait(3600)
    assert harness.kinds == [{"node": WORSE, "db": WORSE}]


def test_what_was_told_ends_with_a_message_also_if_the_service_no_longer_counts() -> None:
    harness = Harness().add("db", "api").down("db").wait(60)
    harness.node.replace(definition_with_a_new_probe("db", "none"))
    record(harness.node, "db", Verdict.failed("refused"))
    harness.wait(SETTLED_S)
    assert harness.kinds[1:] == [{"node": RECOVERED}]
    harness.up("db").wait(SETTLED_S).down("db").wait(SETTLED_S)
    assert harness.kinds[2:] == [{"db": RECOVERED}]


def test_an_issue_is_told_and_cleared() -> None:
    harness = Harness().add("db")
    harness.node.overrides.set_issue("disk full")
    harness.wait(60)
    assert harness.kinds == [{"node": WORSE, "disk full": WORSE}]
    assert "disk full" in entry_of(harness.last, "node").reason
    harness.node.overrides.clear_issue()
    harness.wait(SETTLED_S)
    assert harness.kinds[1:] == [{"node": RECOVERED, "disk full": RECOVERED}]


def test_an_issue_with_another_text_is_the_same_one() -> None:
    harness = Harness(AlertPolicy(repeat_interval_s=3600.0)).add("db").down("db").wait(60)
    overrides = harness.node.overrides
    overrides.set_issue("lag: 812 behind")
    harness.wait(60)
    assert harness.kinds[1:] == [{"lag": WORSE}]
    overrides.set_issue("lag: 815 behind", instead_of="lag: 812 behind")
    harness.wait(3500)
    assert len(harness.reports) == 2
    overrides.set_issue("lag: of another kind")
    harness.wait(60)
    assert harness.kinds[2:] == [{"lag (2)": WORSE}]
    overrides.clear_issue("lag: 815 behind")
    harness.wait(SETTLED_S)
    assert harness.kinds[3:] == [{"lag": RECOVERED}]
    assert entry_of(harness.last, "lag").reason == "lag: 815 behind"


def test_the_duration_of_a_problem_is_that_of_the_service_whoever_is_told_when() -> None:
    harness = Harness().add("db").maintain("db", 20).down("db").wait(24).up("db").wait(SETTLED_S)
    assert entry_of(harness.last, "db").duration_s == 24.0
    harness = Harness().add("db").down("db").wait(10).maintain("db", 1000).wait(5).up("db").wait(2000)
    assert entry_of(harness.last, "db").duration_s == 15.0
    harness = Harness().add("db").down("db").wait(600)
    new = FakeTarget("new")
    harness.targets = (*harness.targets, new)
    harness.alerts.apply([RouteSettings(target=one) for one in harness.targets], harness.policy, harness.clock.now_s)
    harness.wait(60).up("db").wait(SETTLED_S)
    assert [entry_of(report, "db").duration_s for report in new.reports] == [600.0 + GROUP_WAIT_S, 660.0]
    harness = Harness().add("db").starting("db").wait(3600).down("db").wait(3).starting("db").wait(60)
    assert entry_of(harness.last, "db").duration_s == 3.0, "of Down, not of all that was wrong"


def test_a_problem_that_could_not_be_told_and_is_over_after_a_restart_is_told_as_over() -> None:
    harness = Harness().add("db")
    harness.targets[0].is_failing = True
    harness.down("db").wait(60)
    harness.targets[0].is_failing = False
    harness.restart("db").up("db").wait(60)
    assert harness.kinds == [{"node": TRANSIENT, "db": TRANSIENT}]
    assert 0 < entry_of(harness.last, "db").duration_s < 3600
    assert entry_of(harness.last, "db").duration_is_upper_bound


def test_an_issue_is_told_while_the_node_is_unhealthy_and_also_after_a_restart() -> None:
    harness = Harness().add("db").down("db").wait(60)
    harness.node.overrides.set_issue("disk full")
    harness.wait(GROUP_WAIT_S)
    assert harness.kinds[1:] == [{"disk full": WORSE}]
    harness.restart("db").down("db").wait(SETTLED_S)
    assert harness.kinds[2:] == [{"disk full": RECOVERED}], "the issue was not reported again"
    assert entry_of(harness.last, "disk full").reason == "disk full"
    harness.node.overrides.set_issue("raid degraded")
    harness.wait(60).node.overrides.clear_issue()
    harness.wait(SETTLED_S)
    assert harness.kinds[3:] == [{"raid degraded": WORSE}, {"raid degraded": RECOVERED}]


# ---- starts, drains, maintenance, removal


def test_a_start_is_not_told_but_a_service_that_is_down_in_it_is() -> None:
    harness = Harness().add("db", up=False).wait(60).starting("db").wait(60).up("db").wait(3600)
    assert not harness.reports
    harness = Harness().add("db", up=False).down("db").wait(60)
    assert harness.kinds == [{"node": WORSE, "db": WORSE}]
    assert entry_of(harness.last, "db").before is None, "it was never Up"


def test_a_new_probe_is_a_start_with_its_own_limit_and_hides_no_recovery() -> None:
    harness = Harness().add("db").wait(3600)
    harness.node.replace(definition_with_a_new_probe("db"))
    harness.wait(START_LIMIT_S - 1)
    assert not harness.reports
    harness.wait(60)
    assert harness.kinds == [{"node": WORSE, "db": WORSE}]
    harness.node.replace(definition_with_a_new_probe("db"))
    harness.up("db").wait(SETTLED_S)
    assert harness.kinds[1:] == [{"node": RECOVERED, "db": RECOVERED}]


def test_during_a_drain_nothing_is_told_and_after_it_what_is_wrong_and_what_is_over() -> None:
    harness = Harness().add("db")
    harness.node.overrides.drain()
    harness.down("db").wait(3600)
    assert not harness.reports
    harness.node.overrides.undrain()
    harness.wait(GROUP_WAIT_S)
    assert harness.kinds == [{"node": WORSE, "db": WORSE}]
    harness.node.overrides.drain()
    harness.up("db").wait(3600)
    assert len(harness.reports) == 1
    harness.node.overrides.undrain()
    harness.wait(SETTLED_S)
    assert harness.kinds[1:] == [{"node": RECOVERED, "db": RECOVERED}]


@pytest.mark.parametrize("of", ["db", None])
def test_maintenance_holds_all_and_its_end_tells_what_is_wrong_and_what_is_over(of: str | None) -> None:
    harness = Harness().add("db", "api").down("db").maintain(of, 600).wait(599)
    assert not harness.reports
    harness.wait(1 + GROUP_WAIT_S)
    assert harness.kinds == [{"node": WORSE, "db": WORSE}]
    harness.maintain(of, 600).up("db").wait(100).down("db").wait(100).up("db").wait(400 + SETTLED_S)
    assert harness.kinds[1:] == [{"node": RECOVERED, "db": RECOVERED}]


def test_the_node_is_told_if_another_service_than_the_one_in_maintenance_fails() -> None:
    harness = Harness().add("db", "queue").maintain("db", 3600).down("db").wait(60)
    assert not harness.reports
    assert harness.down("queue").wait(60).kinds == [{"node": WORSE, "queue": WORSE}]


def test_a_removed_service_ends_what_was_told_about_it() -> None:
    harness = Harness().add("db", "queue").down("db").wait(60).remove("db").wait(RESOLVE_DELAY_S - 1)
    assert len(harness.reports) == 1
    harness.wait(1)
    assert harness.kinds[1:] == [{"node": RECOVERED, "db": REMOVED}]
    harness.add("db").wait(3600).down("queue").wait(2).remove("queue").wait(3600)
    assert harness.kinds[2:] == [{"node": TRANSIENT}], "nobody had heard of queue"


def test_a_node_gets_better_although_another_service_is_starting_unless_that_one_may_be_down() -> None:
    harness = Harness(AlertPolicy(resolve_delay_s=60)).add("db").down("db").wait(60)
    harness.add("new", impact="partial", up=False).up("db").wait(60)
    assert harness.kinds[1:] == [{"node": BETTER, "db": RECOVERED}]
    harness = Harness().add("db", "queue").down("db").wait(60).restart("db", "queue").up("queue").wait(60)
    assert harness.alerts.find(None).told is Health.UNHEALTHY
    harness.up("db").wait(SETTLED_S)
    assert harness.kinds[1:] == [{"node": RECOVERED, "db": RECOVERED}]


# ---- reminders


def test_a_reminder_has_all_that_is_open_and_every_message_restarts_its_time() -> None:
    harness = Harness(AlertPolicy(repeat_interval_s=3600)).add("db", "queue").add("cache", impact="partial")
    harness.down("db", "cache").wait(1800).down("queue").wait(3700)
    assert harness.kinds[2:] == [dict.fromkeys(["node", "db", "queue", "cache"], REMINDER)]
    assert entry_of(harness.last, "db").duration_s == harness.last.at_s - 1000
    harness.up("db", "queue", "cache").wait(86_400)
    assert len(harness.reports) == 4


def test_after_a_restart_a_reminder_comes_an_interval_after_that() -> None:
    harness = Harness(AlertPolicy(repeat_interval_s=3600)).add("db").down("db").wait(1800).restart("db").down("db")
    assert len(harness.wait(3599).reports) == 1
    assert harness.wait(1).kinds[1:] == [{"node": REMINDER, "db": REMINDER}]


# ---- restarts


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_restart_forgets_nothing_that_was_told(is_killed: bool) -> None:
    harness = Harness().add("db").down("db").wait(60).restart(is_killed=is_killed).add("db", up=False)
    harness.wait(2 * START_LIMIT_S)
    assert harness.alerts.find("db").told is Health.UNHEALTHY, "no evidence is not better"
    harness.down("db").wait(3600)
    assert len(harness.reports) == 1, "it lasts"
    harness.restart(is_killed=is_killed).add("db").wait(SETTLED_S)
    assert harness.kinds[1:] == [{"node": RECOVERED, "db": RECOVERED}]
    assert entry_of(harness.last, "db").duration_is_upper_bound
    harness.restart(is_killed=is_killed).wait(3600)
    assert len(harness.reports) == 2


def test_a_problem_of_a_service_that_is_gone_after_a_restart_ends_as_no_longer_monitored() -> None:
    harness = Harness().add("db").down("db").wait(60).restart().wait(SETTLED_S)
    assert harness.kinds[1:] == [{"node": RECOVERED, "db": REMOVED}]
    assert entry_of(harness.last, "db").service.name == "db"


def test_what_waits_for_the_group_wait_is_told_before_a_stop() -> None:
    harness = Harness().add("db").down("db").wait(1).restart(is_killed=False)
    assert harness.kinds == [{"node": WORSE, "db": WORSE}]


def test_a_problem_of_a_process_that_was_killed_within_the_group_wait_is_told_if_it_lasts() -> None:
    harness = Harness().add("db", "queue").down("db", "queue").wait(GROUP_WAIT_S - 1).restart("db", "queue")
    harness.up("queue").down("db").wait(SETTLED_S)
    assert harness.kinds == [{"node": WORSE, "db": WORSE}]


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", '{"incidents": [], "lost": []}', '{"targets": [{"target": "chat", "told": 1}]}'],
)
def test_an_invalid_or_older_saved_state_is_ignored_with_a_warning(text: str, caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness().add("db").down("db").wait(60)
    harness.saved = text
    with caplog.at_level(logging.WARNING, logger="svcnode.notify"):
        harness.restart().add("db").down("db").wait(60)
    assert [getattr(one, "event", None) for one in caplog.records] == ["notification_state_invalid"]
    assert harness.kinds[1:] == [{"node": WORSE, "db": WORSE}]


# ---- targets


def test_a_target_that_was_away_gets_the_present_and_what_is_over_by_then() -> None:
    away, other = FakeTarget("away"), FakeTarget("other")
    harness = Harness(None, away, other).add("db", "queue")
    away.is_failing = True
    harness.flap(times=2, every_s=600).down("queue").wait(3600)
    away.is_failing = False
    harness.wait(60)
    assert harness.kinds == [{"node": WORSE, "db": TRANSIENT, "queue": WORSE}]
    assert entry_of(harness.last, "db").changes == 4
    assert len(other.reports) == 5


def test_what_a_target_was_not_told_before_a_kill_is_told_after_it() -> None:
    harness = Harness().add("db", "queue")
    harness.targets[0].is_failing = True
    harness.down("db", "queue").wait(60).restart("db", "queue").up("db")
    harness.targets[0].is_failing = False
    harness.wait(60)
    assert harness.kinds == [{"db": TRANSIENT}], "it was Down before the restart"
    assert harness.down("queue").wait(60).kinds[1:] == [{"node": WORSE, "queue": WORSE}]


def test_alertmanager_gets_all_that_is_open_with_each_change_and_every_minute() -> None:
    harness = Harness(None, FakeAlertmanager()).add("db").add("cache", impact="partial").down("db").wait(600)

    def open_now(report: Report) -> dict[str, tuple[Health, Health]]:
        return {entry.subject.key.name or "node": (entry.worst, entry.health) for entry in report.open}

    down = (Health.UNHEALTHY, Health.UNHEALTHY)
    assert [open_now(report) for report in harness.reports] == [{"node": down, "db": down}] * 10
    harness.starting("db", "loading").wait(0)
    better = (Health.UNHEALTHY, Health.PARTIAL)
    assert open_now(harness.last) == {"node": better, "db": better}, "still open, and the reason is the current one"
    assert entry_of_open(harness.last, "db") == "loading"
    harness.up("db").wait(RESOLVE_DELAY_S - 1)
    assert harness.last.open
    harness.wait(1)
    assert open_now(harness.last) == {}
    count = len(harness.reports)
    harness.wait(3600)
    assert len(harness.reports) == count
    harness.down("db").wait(3).up("db").wait(60)
    assert open_now(harness.last).keys() == {"node", "db"}, "a short problem is an alert, too"


def entry_of_open(report: Report, name: str) -> str:
    return next(entry.reason for entry in report.open if entry.subject.key.name == name)


# ---- evidence from other replicas


def shared_harness() -> Harness:
    """The evidence of db is valid for 10 s."""
    harness = Harness()
    definition = definition_with_a_new_probe("db")
    harness.node.add(Definition(from_registry(definition.service, 10.0), definition.probe_config))
    return harness.up("db")


def test_evidence_of_others_that_was_missing_for_a_moment_is_no_message() -> None:
    harness = shared_harness()
    for _ in range(3):
        harness.wait(10.0 + GROUP_WAIT_S / 2)
        assert harness.node.health is Health.PARTIAL
        harness.up("db")
    harness.wait(9.0)
    assert harness.kinds == []


def test_evidence_of_others_that_stays_away_is_told() -> None:
    harness = shared_harness().wait(10.0 + GROUP_WAIT_S)
    assert harness.kinds == [{"node": WORSE, "db": WORSE}]


@pytest.mark.parametrize("verdict", [Verdict.failed("refused"), Verdict.not_ready("loading")])
def test_a_short_problem_is_told_although_its_evidence_was_missing_before(verdict: Verdict) -> None:
    harness = shared_harness().wait(11.0)
    record(harness.node, "db", verdict)
    harness.wait(1.0).up("db").wait(GROUP_WAIT_S)
    assert harness.kinds == [{"node": TRANSIENT, "db": TRANSIENT}]
    assert entry_of(harness.last, "db").reason == verdict.reason
