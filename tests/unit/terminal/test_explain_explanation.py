"""Explanations of services and nodes, in virtual time. tests/wording/test_explain.py pins their texts."""

from __future__ import annotations

import json
import string
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Health, Impact, Outcome, Status, Verdict
from svcnode.operator.details import all_details
from svcnode.terminal.explain.explanation import (
    ALERT,
    MAX_GROUPS,
    NOT_UP,
    PROBLEMS,
    WHAT_CHANGES_IT,
    WHY,
    explain_node,
    explain_service,
    format_time,
)
from svcnode.terminal.render import Symbols, render_explanation
from tests.support.operator_context import OperatorHarness
from tests.support.service_scenario import LOADING, NO_FILES, PROBE, READY, REFUSED, ServiceScenario, resolving, up

FALL, RISE, START_PERIOD = "(fall = 3)", "(rise = 2)", '(start_period = "30s")'
TOLERANCE = '(tolerance = "4/10")'
STALE_AFTER, TTL = '(stale_after = "33s")', '(ttl = "30s")'


# ---- a service, by its status, the end of its reasons and the begin of its changes

MANY_NO_FILES = [NO_FILES] * 3


@pytest.mark.parametrize(
    ("service", "status", "why", "change"),
    [
        (ServiceScenario().wait(0.2), Status.INITIALIZING, "", START_PERIOD),
        (ServiceScenario().record(*[REFUSED] * 4), Status.INITIALIZING, START_PERIOD, "22 s"),
        (ServiceScenario().record(*[REFUSED] * 20), Status.DOWN, START_PERIOD, RISE),
        (up().record(REFUSED), Status.UP, TOLERANCE, STALE_AFTER),
        (up().record(*[REFUSED] * 7), Status.DOWN, FALL, RISE),
        (up().record(*[REFUSED] * 3).record(READY), Status.DOWN, RISE, "1 more "),
        (up().record(*[REFUSED, READY] * 4, REFUSED), Status.INITIALIZING, TOLERANCE, FALL),
        (up().record(*[REFUSED, READY] * 5, *[REFUSED] * 3, READY), Status.DOWN, RISE, TOLERANCE),
        (up().record(LOADING, REFUSED), Status.INITIALIZING, FALL, "2 more "),
        (up().record(NO_FILES), Status.UP, NO_FILES.reason, STALE_AFTER),
        (up().record(*MANY_NO_FILES, interval_s=10), Status.INITIALIZING, STALE_AFTER, ""),
        (ServiceScenario().record(*[REFUSED] * 18).record(*[NO_FILES] * 20), Status.DOWN, STALE_AFTER, ""),
        (up(rise=1, fall=1).record(REFUSED), Status.DOWN, "(fall = 1)", "1 "),
        (ServiceScenario(probe=None).record(Verdict.failed("out of disk")), Status.DOWN, "out of disk", "Up"),
        (ServiceScenario(probe=None, ttl="30s").record(READY, interval_s=6), Status.UP, TTL, "24 s"),
        (ServiceScenario(probe=None, ttl="30s").record(READY, READY).wait(60), Status.DOWN, TTL, ""),
    ],
)
def test_a_service_is_explained_by_the_rule_that_decided(
    service: ServiceScenario, status: Status, why: str, change: str
) -> None:
    """tests/wording has the whole texts."""
    assert service.explain().status is status
    assert why in "\n".join(service.why)
    assert change in "\n".join(service.changes)


def test_the_start_period_is_no_reason_long_after_its_end() -> None:
    assert "start_period" not in up().record(LOADING, interval_s=100).record(*[REFUSED] * 3).why[-1]


def test_a_service_that_is_down_and_cannot_be_checked_stays_down() -> None:
    service = ServiceScenario().record(*[REFUSED] * 18).record(*[NO_FILES] * 20)
    assert not any("Initializing" in line for line in service.changes)


def test_the_previous_status_is_named_only_if_the_attempts_show_it() -> None:
    assert "Up" in up().record(*[REFUSED] * 3).why[-1]
    assert "Up" not in up().record(*[REFUSED] * 40).why[-1]
    assert "Initializing" in ServiceScenario().record(LOADING, READY).why[-1]


def test_reasons_that_differ_in_numbers_only_are_one_line_and_do_not_repeat_the_url() -> None:
    url = "ethereum+http://127.0.0.1:8545"
    syncing = [Verdict.not_ready(f"at block {block} of 100: {url}", code=ReasonCode.SYNCING) for block in range(5)]
    service = up(probe=url).record(*syncing, interval_s=10)
    assert "at block 4 of 100." in service.why[0]
    assert "at block 3" not in "\n".join(service.why)
    assert "5 " in service.why[0]
    assert url not in "\n".join(service.why)
    assert service.explain().about[0].startswith(f"probe   {url}, ")


def test_the_same_text_with_another_code_is_another_line() -> None:
    other = Verdict.failed(REFUSED.reason, code=ReasonCode.CONNECT_TIMEOUT)
    assert len(up().record(REFUSED, other).why) == len(up().record(REFUSED, REFUSED).why) + 1


def test_a_node_without_the_rule_can_be_explained() -> None:
    """An older node."""
    document = up().record(REFUSED, READY).details()
    for key in ("tolerance", "window_s"):
        del document["policy"][key]
    for key in ("recent_failures", "repeated_failures"):
        del document["counters"][key]
    del document["unreliable"], document["first_failure"]
    assert explain_service(document, UTC).status is Status.UP


@pytest.mark.parametrize(
    ("service", "codes"),
    [
        (ServiceScenario().record(NO_FILES), [ReasonCode.NO_EVIDENCE, ReasonCode.RESOURCE_EXHAUSTED]),
        (up().record(NO_FILES), [ReasonCode.RESOURCE_EXHAUSTED]),
        (up().record(*MANY_NO_FILES, interval_s=10), [ReasonCode.STALE, ReasonCode.RESOURCE_EXHAUSTED]),
        (ServiceScenario().wait(0.2), [ReasonCode.NO_EVIDENCE]),
        (up().record(*[REFUSED] * 3), [ReasonCode.CONNECTION_REFUSED]),
        (up(fall=1).record(Verdict.failed("text", code="x_ledger_full")), ["x_ledger_full"]),
        (up(), []),
    ],
)
def test_the_codes_are_shown_also_that_of_a_check_that_could_not_run(
    service: ServiceScenario, codes: list[str]
) -> None:
    lines = [line for line in service.explain().about if line.startswith("code ")]
    assert [line.split()[1] for line in lines] == [f"{code}:" for code in codes]


def test_only_the_newest_kinds_of_results_are_shown() -> None:
    failures = [Verdict.failed(f"{letter} is wrong") for letter in string.ascii_lowercase[:6]]
    why = up().record(*failures).why
    assert [line[-11:] for line in why[:MAX_GROUPS]] == ["f is wrong.", "e is wrong.", "d is wrong.", "c is wrong."]
    assert why[MAX_GROUPS].startswith("6 ")


def test_a_missing_report_differs_from_an_expired_one() -> None:
    missing = ServiceScenario(probe=None, ttl="30s").wait(31).why
    expired = ServiceScenario(probe=None, ttl="30s").record(READY).wait(31).why
    assert len(missing) == 1
    assert missing[-1] != expired[-1]


@pytest.mark.parametrize(("impact", "health"), [("critical", "(503)"), ("partial", "(206)"), ("none", "")])
def test_the_impact_on_the_node_is_shown(impact: str, health: str) -> None:
    line = up(impact=impact).explain().about[-1]
    assert line.startswith(f"impact  {impact}: ")
    assert health in line


def test_name_and_description_are_shown_if_there_are_any() -> None:
    assert up(name="Ledger", description="PostgreSQL").explain().about[0] == "Ledger: PostgreSQL"
    assert up(name="Ledger").explain().about[0] == "Ledger"
    assert up().explain().about[0].startswith("probe ")


def test_lines_are_headline_about_and_sections() -> None:
    explanation = up().explain()
    assert explanation.lines[: 1 + len(explanation.about)] == [
        explanation.headline,
        *(f"  {line}" for line in explanation.about),
    ]
    assert [title for title, _ in explanation.sections] == [WHY, WHAT_CHANGES_IT]


# ---- any details


def _odd_text() -> st.SearchStrategy[str]:
    known = ["connection refused: db:5432", "{address}", "{", "%s", "refused: tcp://[", "", "\x1b[31mred", "a\nb"]
    return st.sampled_from(known) | st.text(max_size=30)


_CODES: st.SearchStrategy[str] = st.sampled_from([*ReasonCode, "x_own", "nonsense"])
_OUTCOMES = st.builds(Verdict, st.sampled_from(Outcome), _odd_text(), _CODES)
_EVENTS = st.lists(st.tuples(_OUTCOMES | st.none(), st.floats(0, 200), st.floats(0, 20)), max_size=30)
_OPTIONS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.fixed_dictionaries(
        {
            "probe": st.sampled_from(
                [PROBE, "tcp://db:1", "http://me:word@[::1]:80/x?y=z", "redis://h", "file:/run/x", "disk:/"]
            ),
            "rise": st.integers(1, 5),
            "fall": st.integers(1, 5),
            "start_period": st.sampled_from([0, 0.5, 30, 1e6]),
            "interval": st.sampled_from([1, 10, 86_400]),
        }
    ),
    st.fixed_dictionaries({"ttl": st.sampled_from([0.001, 5, 1e7])}),
    st.just({}),
)


@settings(max_examples=60, deadline=None)
@given(
    options=_OPTIONS,
    impact=st.sampled_from(Impact),
    name=_odd_text().filter(lambda text: text.isascii() and text.isprintable()),
    events=_EVENTS,
    next_check_in_s=st.none() | st.floats(0, 1e6),
)
def test_any_details_are_explained(
    options: dict[str, Any],
    impact: Impact,
    name: str,
    events: list[tuple[Verdict | None, float, float]],
    next_check_in_s: float | None,
) -> None:
    harness = OperatorHarness()
    harness.node.register("db", impact=impact, name=name, **options)
    for verdict, wait_s, duration_s in events:
        if verdict is not None:
            harness.record("db", verdict, duration_s=duration_s)
        harness.clock.advance(wait_s)
    details = harness.details("db") | {"next_check_in_s": next_check_in_s}
    explanation = explain_service(details, UTC)
    assert explanation.status is Status(details["status"])
    assert explanation.headline.startswith(f"db is {details['status']} since ")
    assert set(dict(explanation.sections)) >= {WHY, WHAT_CHANGES_IT} or details["status"] == "Up"
    assert all(line.isprintable() for line in explanation.lines)
    sentences = [line for _, lines in explanation.sections for line in lines if " svcnode probe " not in line]
    assert all(line.endswith((".", "?", ")")) for line in sentences)


# ---- an alert


def test_a_recovery_whose_message_waits_is_shown_with_the_time_unless_it_has_no_message_of_its_own() -> None:
    (text,) = dict(resolving(impact="critical").explain().sections)[ALERT]
    assert "Down" in text
    assert "4 min 50 s" in text
    assert "resolve_delay" in text
    (text,) = dict(resolving().explain().sections)[ALERT]
    assert "resolve_delay" not in text


@pytest.mark.parametrize("alert", [None, {"state": "firing", "notified_health": 503, "message_in_s": None}])
def test_other_states_of_an_alert_are_not_shown(alert: object) -> None:
    assert ALERT not in dict(explain_service(up().details() | {"alert": alert}).sections)
    older = {key: value for key, value in up().details().items() if key != "alert"}
    assert ALERT not in dict(explain_service(older).sections)


# ---- a node


def node_details(harness: OperatorHarness) -> Any:
    return json.loads(harness.request(all_details).body)


@pytest.fixture
def harness() -> OperatorHarness:
    made = OperatorHarness()
    made.node.register("db", impact="critical").up()
    made.node.register("cache").up()
    return made


def test_a_healthy_node_needs_two_lines(harness: OperatorHarness) -> None:
    explanation = explain_node(node_details(harness))
    assert explanation.status is Health.HEALTHY
    assert len(explanation.lines) == 2


def test_services_that_are_not_up_are_listed_worst_first(harness: OperatorHarness) -> None:
    harness.node.register("chain").initializing("syncing")
    harness.node.register("old disk", impact="none").down("full")
    harness.node.handle("db").down("connection refused: db:5432")
    harness.node.register("silent")
    harness.clock.advance(252)
    explanation = explain_node(node_details(harness))
    assert explanation.status is Health.UNHEALTHY
    *lines, command = dict(explanation.sections)[NOT_UP]
    assert [line.partition(" is ")[0] for line in lines] == ["db", "old disk", "chain", "silent"]
    assert lines[0].endswith(": connection refused: db:5432")
    assert "critical" in lines[0]
    assert "none" in lines[1]
    assert all("4 min 12 s" in line for line in lines)
    assert command.endswith(": svcnode explain --service db")


def test_a_check_that_cannot_run_is_named_before_the_last_reason(harness: OperatorHarness) -> None:
    harness.node.register("chain", probe="tcp://db:1", start_period=0)
    harness.record("chain", *[Verdict.failed("refused")] * 3, Verdict.unknown("no resolver"))
    assert dict(explain_node(node_details(harness)).sections)[NOT_UP][0].endswith(": no resolver (refused)")


def test_problems_of_the_node_itself_are_listed(harness: OperatorHarness) -> None:
    harness.process_stats.record_reload("services.db: invalid (svcnode.toml:3)")
    harness.history.problem = "disk full"
    reload, history = dict(explain_node(node_details(harness)).sections)[PROBLEMS]
    assert reload.endswith(": services.db: invalid (svcnode.toml:3)")
    assert history.endswith(": disk full")


def test_control_characters_of_a_reason_are_escaped(harness: OperatorHarness) -> None:
    harness.record("db", Verdict.failed("\x1b[2Jgone\n"))
    assert all(line.isprintable() for line in explain_node(node_details(harness)).lines)


@pytest.mark.parametrize("document", [{}, {"node": {}, "services": []}, {"node": {"health": 418}, "services": []}])
def test_json_of_another_version_is_an_error(document: Any) -> None:
    with pytest.raises((KeyError, ValueError)):
        explain_node(document)


def test_a_terminal_shows_the_same_text(harness: OperatorHarness) -> None:
    harness.node.handle("cache").down("gone")
    explanation = explain_node(node_details(harness))
    lines = [line.plain for line in render_explanation(explanation, Symbols())]
    assert lines == [f"◐ {explanation.headline}", *explanation.lines[1:]]


def test_a_time_is_in_the_requested_zone_and_has_a_date_if_it_was_not_today() -> None:
    at = datetime(2027, 1, 15, 23, 30, tzinfo=UTC)
    assert format_time(at, at, UTC) == "23:30:00"
    assert format_time(at, at, timezone(timedelta(hours=2))) == "01:30:00"
    assert format_time(at, at + timedelta(hours=1), UTC) == "2027-01-15 23:30:00"
