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
    HOW_TO_FIX_IT,
    MAX_GROUPS,
    NOT_UP,
    PROBLEMS,
    WHAT_CHANGES_IT,
    WHY,
    explain_node,
    explain_service,
    format_time,
)
from svcnode.terminal.explain.remedies import CUSTOM_CODE_MEANING
from svcnode.terminal.render import Symbols, render_explanation
from tests.support.operator_context import OperatorHarness
from tests.support.service_scenario import LOADING, NO_FILES, PROBE, READY, REFUSED, ServiceScenario, resolving, up

FALL, RISE, START_PERIOD = "(fall = 3)", "(rise = 2)", '(start_period = "30s")'
TOLERANCE = '(tolerance = "4/10")'
STALE_AFTER, TTL = '(stale_after = "33s")', '(ttl = "30s")'


# ---- a service with a probe


def test_a_new_service_waits_for_its_first_check() -> None:
    service = ServiceScenario().wait(0.2)
    assert service.explain().status is Status.INITIALIZING
    assert len(service.why) == 1
    assert FALL in service.changes[1]
    assert START_PERIOD in service.changes[1]


def test_failures_within_the_start_period_do_not_count() -> None:
    service = ServiceScenario().record(*[REFUSED] * 4)
    assert service.explain().status is Status.INITIALIZING
    assert REFUSED.reason in service.why[0]
    assert START_PERIOD in service.why[1]
    assert "22 s" in service.why[1]
    assert "22 s" in service.changes[1]


def test_a_service_that_is_up_needs_few_lines() -> None:
    service = up()
    assert service.explain().status is Status.UP
    assert len(service.why) == 1
    assert "08:00:00" in service.why[0]
    assert "08:00:30" in service.why[0]
    assert len(service.changes) == 2
    assert [title for title, _ in service.explain().sections] == [WHY, WHAT_CHANGES_IT]


def test_one_failure_does_not_take_a_service_down() -> None:
    service = up().record(REFUSED)
    assert service.explain().status is Status.UP
    assert FALL in service.why[-2]
    assert TOLERANCE in service.why[-1]
    assert service.changes[0].startswith("2 ")
    assert STALE_AFTER in service.changes[1]
    assert "21 s" in service.changes[1]


def test_three_failures_take_a_service_down() -> None:
    service = up().record(*[REFUSED] * 7)
    assert service.explain().status is Status.DOWN
    assert len(service.why) == 4
    assert "Up" in service.why[-1]
    assert FALL in service.why[-1]
    assert service.changes[0].startswith("2 ")
    assert RISE in service.changes[0]


def test_a_service_that_never_started_is_down_after_the_start_period() -> None:
    assert START_PERIOD in ServiceScenario().record(*[REFUSED] * 20).why[-1]


def test_the_start_period_is_no_reason_long_after_its_end() -> None:
    assert "start_period" not in up().record(LOADING, interval_s=100).record(*[REFUSED] * 3).why[-1]


def test_the_previous_status_is_named_only_if_the_attempts_show_it() -> None:
    assert "Up" in up().record(*[REFUSED] * 3).why[-1]
    assert "Up" not in up().record(*[REFUSED] * 40).why[-1]


def test_one_success_does_not_bring_a_service_back() -> None:
    service = up().record(*[REFUSED] * 3).record(READY)
    assert service.explain().status is Status.DOWN
    assert RISE in service.why[-1]
    assert service.changes[0].startswith("1 more ")


def test_a_service_that_came_back_names_the_rule() -> None:
    assert any(RISE in text for text in up().record(*[REFUSED] * 3).record(READY, READY).why)


def test_a_service_that_started_names_its_previous_status() -> None:
    assert "Initializing" in ServiceScenario().record(LOADING, READY).why[-1]


def test_reasons_that_differ_in_numbers_only_are_one_line() -> None:
    url = "ethereum+http://127.0.0.1:8545"
    syncing = [Verdict.not_ready(f"at block {block} of 100: {url}", code=ReasonCode.SYNCING) for block in range(5)]
    service = up(probe=url).record(*syncing, interval_s=10)
    assert service.explain().status is Status.INITIALIZING
    assert "at block 4 of 100." in service.why[0]
    assert "at block 3" not in "\n".join(service.why)
    assert "5 " in service.why[0]


def test_the_same_text_with_another_code_is_another_line() -> None:
    other = Verdict.failed(REFUSED.reason, code=ReasonCode.CONNECT_TIMEOUT)
    assert len(up().record(REFUSED, other).why) == len(up().record(REFUSED, REFUSED).why) + 1


def test_a_service_that_fails_now_and_then_is_unreliable_and_needs_clean_checks() -> None:
    service = up().record(*[REFUSED, READY] * 4, REFUSED)
    assert service.explain().status is Status.INITIALIZING
    assert TOLERANCE in service.why[-1]
    assert " 5 " in service.why[-1]
    assert TOLERANCE in service.changes[0]
    assert FALL in service.changes[1]
    assert service.hints[0] == service.record(READY).hints[0]
    assert len(service.hints) == 1
    assert service.wait(0).record(*[READY] * 9).explain().status is Status.UP


def test_short_outages_are_counted_for_longer_than_single_failures() -> None:
    service = up().record(*[REFUSED, REFUSED, *[READY] * 10] * 2, REFUSED, REFUSED)
    assert service.explain().status is Status.INITIALIZING
    assert "1 min 40 s" in service.why[-1]
    assert "1 min 40 s" in service.changes[1]


def test_a_service_that_was_unreliable_before_it_was_down_becomes_initializing() -> None:
    service = up().record(*[REFUSED, READY] * 5, *[REFUSED] * 3, READY)
    assert service.explain().status is Status.DOWN
    assert Status.INITIALIZING.value in service.changes[0]
    assert TOLERANCE in service.changes[1]


def test_a_node_without_the_rule_can_be_explained() -> None:
    """An older node."""
    document = up().record(REFUSED, READY).details()
    for key in ("tolerance", "window_s"):
        del document["policy"][key]
    for key in ("recent_failures", "repeated_failures"):
        del document["counters"][key]
    del document["unreliable"], document["first_failure"]
    assert explain_service(document, UTC).status is Status.UP


def test_a_failure_after_not_ready_is_counted() -> None:
    service = up().record(LOADING, REFUSED)
    assert FALL in service.why[-1]
    assert service.changes[1].startswith("2 more ")


def test_a_check_that_cannot_run_does_not_count() -> None:
    service = up().record(NO_FILES)
    assert service.explain().status is Status.UP
    assert NO_FILES.reason in service.why[0]
    assert STALE_AFTER in service.changes[1]


def test_evidence_that_is_too_old_is_not_used() -> None:
    service = up().record(*[NO_FILES] * 3, interval_s=10)
    assert service.explain().status is Status.INITIALIZING
    assert STALE_AFTER in service.why[-1]
    assert f"code    {ReasonCode.STALE}: " in service.explain().about[-2]


@pytest.mark.parametrize(
    ("service", "codes"),
    [
        (ServiceScenario().record(NO_FILES), [ReasonCode.NO_EVIDENCE, ReasonCode.RESOURCE_EXHAUSTED]),
        (up().record(NO_FILES), [ReasonCode.RESOURCE_EXHAUSTED]),
        (ServiceScenario().wait(0.2), [ReasonCode.NO_EVIDENCE]),
        (up().record(*[REFUSED] * 3), [ReasonCode.CONNECTION_REFUSED]),
    ],
)
def test_the_code_of_a_check_that_could_not_run_is_shown_too(service: ServiceScenario, codes: list[str]) -> None:
    lines = [line for line in service.explain().about if line.startswith("code ")]
    assert [line.split()[1] for line in lines] == [f"{code}:" for code in codes]


def test_a_code_of_another_package_has_a_meaning_of_its_own() -> None:
    line = up(fall=1).record(Verdict.failed("text", code="x_ledger_full")).explain().about[-1]
    assert line == f"code    x_ledger_full: {CUSTOM_CODE_MEANING}"


def test_a_service_that_is_down_and_cannot_be_checked_stays_down() -> None:
    service = ServiceScenario().record(*[REFUSED] * 18).record(*[NO_FILES] * 20)
    assert "is Down" in service.explain().headline
    assert STALE_AFTER in service.why[-1]
    assert not any("Initializing" in line for line in service.changes)


def test_thresholds_of_one_are_singular() -> None:
    service = up(rise=1, fall=1).record(REFUSED)
    assert "(fall = 1)" in service.why[-1]
    assert "in a row" not in service.why[-1]
    assert service.changes[0].startswith("1 ")
    assert "in a row" not in up(rise=1, fall=1).changes[0]


def test_the_time_until_the_next_check_is_shown() -> None:
    def next_check(in_s: float | None) -> str:
        return dict(up().explain(next_check_in_s=in_s).sections)[WHAT_CHANGES_IT][-1]

    assert " 7 s" in next_check(7.4)
    assert len({next_check(in_s) for in_s in (0.0, 0.4, 7.4, None)}) == 4


def test_only_the_newest_kinds_of_results_are_shown() -> None:
    failures = [Verdict.failed(f"{letter} is wrong") for letter in string.ascii_lowercase[:6]]
    why = up().record(*failures).why
    assert [line[-11:] for line in why[:MAX_GROUPS]] == ["f is wrong.", "e is wrong.", "d is wrong.", "c is wrong."]
    assert why[MAX_GROUPS].startswith("6 ")


def test_a_reason_does_not_repeat_the_url_of_the_probe() -> None:
    url = "redis://127.0.0.1:6379"
    service = up(probe=url).record(Verdict.failed(f"connection refused: {url}"))
    assert url not in "\n".join(service.why)
    assert service.explain().about[0].startswith(f"probe   {url}, ")


# ---- a service without a probe


def test_a_report_is_valid_until_the_next_one() -> None:
    service = ServiceScenario(probe=None).record(Verdict.failed("out of disk"), duration_s=0)
    assert service.explain().status is Status.DOWN
    assert "out of disk" in service.why[0]
    assert "Up" in service.changes[0]


def test_a_report_with_a_ttl_expires() -> None:
    service = ServiceScenario(probe=None, ttl="30s").record(READY, interval_s=6)
    assert TTL in service.why[-1]
    assert "24 s" in service.changes[-1]
    assert TTL in service.changes[-1]


def test_an_expired_report_is_explained_by_its_ttl() -> None:
    service = ServiceScenario(probe=None, ttl="30s").record(READY, READY).wait(60)
    assert service.explain().status is Status.DOWN
    assert TTL in service.why[-1]
    assert len(service.changes) == 1


def test_a_missing_report_differs_from_an_expired_one() -> None:
    missing = ServiceScenario(probe=None, ttl="30s").wait(31).why
    expired = ServiceScenario(probe=None, ttl="30s").record(READY).wait(31).why
    assert len(missing) == 1
    assert missing[-1] != expired[-1]


def test_a_fixed_status_shows_its_key() -> None:
    service = ServiceScenario(probe=None).record(Verdict.failed("text", code=ReasonCode.FIXED))
    assert '(status = "Down")' in service.why[0]
    assert len(service.why) == 1
    assert "SIGHUP" in service.changes[0]


# ---- the lines about a service


@pytest.mark.parametrize(("impact", "health"), [("critical", "(503)"), ("partial", "(206)"), ("none", "")])
def test_the_impact_on_the_node_is_shown(impact: str, health: str) -> None:
    line = up(impact=impact).explain().about[-1]
    assert line.startswith(f"impact  {impact}: ")
    assert health in line


def test_the_code_is_shown_with_its_meaning_unless_it_is_ok() -> None:
    assert up().record(*[REFUSED] * 3).explain().about[-1].startswith("code    connection_refused: ")
    assert not any(line.startswith("code ") for line in up().explain().about)


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
    assert [line for line in explanation.lines if line in (WHY, WHAT_CHANGES_IT, HOW_TO_FIX_IT)] == [
        WHY,
        WHAT_CHANGES_IT,
    ]


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


@settings(max_examples=300, deadline=None)
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


def test_a_recovery_whose_message_waits_is_shown() -> None:
    (text,) = dict(resolving(impact="critical").explain().sections)[ALERT]
    assert "Down" in text
    assert "4 min 50 s" in text
    assert "resolve_delay" in text


def test_a_recovery_without_a_message_of_its_own_has_no_time() -> None:
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


@pytest.mark.parametrize(("up", "down"), [(1, 0), (0, 1), (1, 1), (2, 1), (0, 2), (0, 0)])
def test_services_that_are_up_are_counted(up: int, down: int) -> None:
    harness = OperatorHarness()
    for number in range(up):
        harness.node.register(f"up-{number}").up()
    for number in range(down):
        harness.node.register(f"down-{number}").down("gone")
    assert explain_node(node_details(harness)).about[0].startswith(f"{up} of {up + down} service")


def test_a_check_that_cannot_run_is_named_before_the_last_reason(harness: OperatorHarness) -> None:
    harness.node.register("chain", probe="tcp://db:1", start_period=0)
    harness.record("chain", *[Verdict.failed("refused")] * 3, Verdict.unknown("no resolver"))
    assert dict(explain_node(node_details(harness)).sections)[NOT_UP][0].endswith(": no resolver (refused)")


def test_an_id_with_spaces_is_quoted_in_the_command() -> None:
    harness = OperatorHarness()
    harness.node.register("old disk").down("full")
    assert explain_node(node_details(harness)).lines[-1].endswith(": svcnode explain --service 'old disk'")


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
