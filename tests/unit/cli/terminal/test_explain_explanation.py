"""Explanations of services and nodes, in virtual time.

tests/wording/test_explain.py has the whole explanation of each kind of service and node; here is what it does not show.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svcnode.cli.terminal.explain.explanation import (
    ALERT,
    PROBLEMS,
    WHAT_CHANGES_IT,
    WHY,
    explain_node,
    explain_service,
)
from svcnode.cli.terminal.render import Symbols, render_explanation
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Impact, Outcome, Status, Verdict
from svcnode.node.node_state import Handle
from svcnode.operator.problems import problems
from tests.support.operator_context import OperatorHarness
from tests.support.service_scenario import LOADING, NO_FILES, PROBE, READY, REFUSED, ServiceScenario, up


def test_the_start_period_is_no_reason_long_after_its_end_and_a_service_that_cannot_be_checked_stays_down() -> None:
    assert "start_period" not in up().record(LOADING, interval_s=100).record(*[REFUSED] * 3).why[-1]
    service = ServiceScenario().record(*[REFUSED] * 18).record(*[NO_FILES] * 20)
    assert not any("Initializing" in line for line in service.changes)


def test_reasons_that_differ_in_numbers_only_are_one_line_and_do_not_repeat_the_url() -> None:
    url = "ethereum+http://127.0.0.1:8545"
    syncing = [Verdict.not_ready(f"at block {block} of 100: {url}", code=ReasonCode.SYNCING) for block in range(5)]
    service = up(probe=url).record(*syncing, interval_s=10)
    assert "at block 4 of 100." in service.why[0]
    assert "at block 3" not in "\n".join(service.why)
    assert "5 " in service.why[0]
    assert url not in "\n".join(service.why)
    assert service.explain().about[0].startswith(f"probe   {url}, ")
    other = Verdict.failed(REFUSED.reason, code=ReasonCode.CONNECT_TIMEOUT)
    assert len(up().record(REFUSED, other).why) == len(up().record(REFUSED, REFUSED).why) + 1, "another code"


def test_a_node_without_the_rule_can_be_explained() -> None:
    """An older node."""
    document = up().record(REFUSED, READY).details()
    for key in ("tolerance", "window_s"):
        del document["policy"][key]
    for key in ("recent_failures", "repeated_failures"):
        del document["counters"][key]
    del document["unreliable"], document["first_failure"]
    assert explain_service(document).status is Status.UP


def test_a_service_that_depends_on_others_says_so_and_which_of_them_are_not_up() -> None:
    document = up().record(*[REFUSED] * 3).details()
    assert not any("depends on" in line for line in explain_service(document).lines)
    document["depends_on"] = ["ledger", "storage"]
    document["causes"] = [{"id": "ledger", "status": "Down", "since": document["since"], "since_s": 90.0}]
    explanation = explain_service(document)
    assert "needs   ledger, storage" in explanation.about
    assert explanation.sections[0].title == WHY
    assert explanation.sections[0].sentences[0].startswith("It depends on ledger, which has been Down since ")


def test_lines_are_the_headline_what_the_service_is_and_the_sections() -> None:
    assert up(name="Ledger", description="PostgreSQL").explain().about[0] == "Ledger: PostgreSQL"
    assert up(name="Ledger").explain().about[0] == "Ledger"
    assert "runbook https://wiki.example.com/db" in up(runbook="https://wiki.example.com/db").explain().about
    assert not any("runbook" in line for line in up().explain().about)
    explanation = up().explain()
    assert explanation.about[0].startswith("probe ")
    about = [f"  {line}" for line in explanation.about]
    assert explanation.lines[: 1 + len(about)] == [explanation.headline, *about]
    assert [title for title, _ in explanation.sections] == [WHY, WHAT_CHANGES_IT]


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
    explanation = explain_service(details)
    assert explanation.status is Status(details["status"])
    assert explanation.headline.startswith(f"db has been {details['status']} since ")
    assert set(dict(explanation.sections)) >= {WHY, WHAT_CHANGES_IT} or details["status"] == "Up"
    assert all(line.isprintable() for line in explanation.lines)
    sentences = [line for _, lines in explanation.sections for line in lines if " svcnode probe " not in line]
    assert all(line.endswith((".", "?", ")")) for line in sentences)


@pytest.mark.parametrize("alert", [None, {"state": "firing", "notified_health": 503, "message_in_s": None}])
def test_other_states_of_an_alert_are_not_shown(alert: object) -> None:
    assert ALERT not in dict(explain_service(up().details() | {"alert": alert}).sections)
    older = {key: value for key, value in up().details().items() if key != "alert"}
    assert ALERT not in dict(explain_service(older).sections)


def node_details(harness: OperatorHarness) -> Any:
    return json.loads(harness.request(problems).body)


@pytest.fixture
def harness() -> OperatorHarness:
    made = OperatorHarness()
    made.node.register("db", impact="critical").up()
    made.node.register("cache").up()
    return made


def test_a_check_that_cannot_run_is_named_before_the_last_reason_and_escaped(harness: OperatorHarness) -> None:
    harness.node.register("chain", probe="tcp://db:1", start_period=0)
    harness.record("chain", *[Verdict.failed("refused\n")] * 3, Verdict.unknown("no\x1b[2J resolver"))
    explanation = explain_node(node_details(harness))
    assert dict(explanation.sections)[PROBLEMS][0].partition(";")[0].endswith(r": no\x1b[2J resolver (refused\n)")
    assert all(line.isprintable() for line in explanation.lines)


@pytest.mark.parametrize("document", [{}, {"node": {}, "services": []}, {"node": {"health": 418}, "services": []}])
def test_json_of_another_version_is_an_error(document: Any) -> None:
    with pytest.raises((KeyError, ValueError)):
        explain_node(document)


def test_a_terminal_shows_the_same_text(harness: OperatorHarness) -> None:
    Handle(harness.node, "cache").down("gone")
    explanation = explain_node(node_details(harness))
    lines = [line.plain for line in render_explanation(explanation, Symbols())]
    assert lines == [f"◐ {explanation.headline}", *explanation.lines[1:]]


def test_a_service_is_explained_with_the_health_of_its_node_if_that_is_not_healthy() -> None:
    """The only service of a node is partial, and Down: the node is 503."""
    harness = OperatorHarness()
    harness.node.register("store").down("gone")
    node = node_details(harness)["node"]
    assert any("(503)" in line for line in explain_service(harness.details("store"), node).about if "node  " in line)
    Handle(harness.node, "store").up()
    node = node_details(harness)["node"]
    assert not any("node  " in line for line in explain_service(harness.details("store"), node).about)


def test_suggested_commands_are_those_of_the_same_node(harness: OperatorHarness) -> None:
    Handle(harness.node, "cache").down("gone")
    explanation = explain_node(node_details(harness), "svcnode explain 10.0.0.5:8420")
    assert dict(explanation.sections)[PROBLEMS][-1].endswith(": svcnode explain 10.0.0.5:8420 --service cache")
