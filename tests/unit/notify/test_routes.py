"""What each target gets: by severity, service and group, at which hours, and after how long."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

from svcnode.notify.routes import AlertPolicy, QuietHours
from svcnode.notify.rule import Kind
from svcnode.notify.subjects import Severity
from tests.unit.notify.harness import GROUP_WAIT_S, RESOLVE_DELAY_S, FakeTarget, Harness, entry_of

WORSE, RECOVERED = Kind.WORSE, Kind.RECOVERED
SETTLED_S = RESOLVE_DELAY_S + GROUP_WAIT_S


def test_a_target_for_critical_problems_gets_only_503_and_critical_services_that_are_down() -> None:
    harness = Harness(AlertPolicy(services="all"), min_severity=Severity.CRITICAL).add("db").add("a", impact="partial")
    harness.down("a").starting("db").wait(SETTLED_S)
    assert not harness.reports
    harness.down("db").wait(60)
    assert harness.kinds == [{"node": WORSE, "db": WORSE}]
    harness.starting("db").wait(SETTLED_S)
    assert harness.kinds[1:] == [{"node": RECOVERED, "db": RECOVERED}], "no longer critical"


def test_a_target_for_critical_problems_gets_issues() -> None:
    harness = Harness(min_severity=Severity.CRITICAL).add("db").down("db").wait(60)
    harness.node.overrides.set_issue("disk full")
    harness.wait(60)
    assert harness.kinds[1:] == [{"disk full": WORSE}]


def test_a_target_with_services_groups_or_tags_gets_these_and_not_the_node() -> None:
    harness = Harness(None, services=frozenset({"a"}), groups=frozenset({"storage"}), tags=frozenset({"eu", "us"}))
    harness.add("a", impact="partial").add("disk", impact="none", group="storage").add("db", tags=["asia"])
    harness.add("api", tags=["chain", "eu"])
    harness.down("a").wait(60).down("disk", "db").wait(60).down("api").wait(60)
    assert harness.kinds == [{"a": WORSE}, {"disk": WORSE}, {"api": WORSE}]


def test_in_quiet_hours_warnings_wait_for_one_summary_and_critical_problems_do_not() -> None:
    quiet = QuietHours(time(0), time(7), UTC)  # the virtual time starts at midnight
    harness = Harness(AlertPolicy(services="all"), quiet_hours=quiet).add("db").add("a", "b", impact="partial")
    harness.down("a").wait(600).up("a").wait(600).down("b").wait(600)
    assert not harness.reports
    harness.down("db").wait(600)
    assert harness.kinds == [{"node": WORSE, "db": WORSE}]
    harness.wait(7 * 3600)
    assert harness.kinds[1:] == [{"a": Kind.TRANSIENT, "b": WORSE}]


@pytest.mark.parametrize(
    ("at", "end"),
    [("2026-03-28T21:59", None), ("2026-03-28T22:00", "2026-03-29T07:00"), ("2026-03-29T06:59", "2026-03-29T07:00"),
     ("2026-03-29T07:00", None), ("2026-10-25T01:00", "2026-10-25T07:00")],
)  # fmt: skip
def test_quiet_hours_end_at_a_local_time_also_when_clocks_change(at: str, end: str | None) -> None:
    zone = ZoneInfo("Europe/Berlin")
    at_s = datetime.fromisoformat(at).replace(tzinfo=zone).timestamp()
    end_s = at_s if end is None else datetime.fromisoformat(end).replace(tzinfo=zone).timestamp()
    assert QuietHours(time(22), time(7), zone).end_s(at_s) == end_s


def test_a_target_may_have_its_own_interval_of_reminders() -> None:
    harness = Harness(AlertPolicy(repeat_interval_s=60), repeat_interval_s=3600).add("db").down("db").wait(7200)
    assert harness.kinds == [{"node": WORSE, "db": WORSE}, {"node": Kind.REMINDER, "db": Kind.REMINDER}]


def test_what_failed_together_is_escalated_in_one_message() -> None:
    harness = Harness(None, escalate_after_s=900.0).add("db").add("api", depends_on=("db",))
    harness.down("api").wait(3).down("db").wait(1000)
    assert harness.kinds == [{"node": WORSE, "db": WORSE, "api": WORSE}]


def test_an_escalation_counts_the_time_before_restarts() -> None:
    harness = Harness(None, FakeTarget("pager"), FakeTarget("chat"), escalate_after_s=900.0).add("db").down("db")
    for _ in range(3):
        harness.wait(280)
        harness.saved = harness.alerts.to_json(harness.clock.now_s)
        harness.restart("db").wait(5).down("db")
    assert not harness.reports
    harness.wait(60)
    assert harness.kinds == [{"node": WORSE, "db": WORSE}]


def test_a_warning_that_waits_for_the_end_of_quiet_hours_makes_no_later_problem_longer_or_earlier() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)  # the start of the virtual time
    quiet = QuietHours(now.time(), (now + timedelta(hours=8)).time(), UTC)
    harness = Harness(AlertPolicy(services="all"), quiet_hours=quiet).add("db").add("cache", impact="partial")
    harness.down("cache").wait(60).up("cache").wait(3600).down("db").wait(GROUP_WAIT_S - 1)
    assert not harness.reports
    harness.wait(60).up("db").wait(600)
    assert [entry_of(report, "node").kind for report in harness.reports] == [WORSE, RECOVERED]
    assert entry_of(harness.last, "node").duration_s == GROUP_WAIT_S - 1 + 60


def test_an_escalation_gets_only_what_is_open_for_long() -> None:
    harness = Harness(None, escalate_after_s=900.0).add("db").down("db").wait(600).up("db").wait(3600)
    assert not harness.reports, "it was over before"
    for _ in range(10):
        harness.down("db").wait(80).up("db").wait(20)
    harness.down("db").wait(1)
    assert harness.kinds == [{"node": WORSE, "db": WORSE}], "it has never been well for long"
    harness.up("db").wait(SETTLED_S)
    assert harness.kinds[1:] == [{"node": RECOVERED, "db": RECOVERED}]
