"""Reports of interrupted runs, and machine-readable reports of untrusted data."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from svcnode.conformance.check import Level
from svcnode.conformance.checks import CHECKS
from svcnode.conformance.http_client import RequestLine
from svcnode.conformance.node_under_test import Finding
from svcnode.conformance.report import as_json, as_junit, plain_text, report_lines
from svcnode.conformance.run import STOPPED_REASON, CheckOutcome, Report, Result

# All that XML 1.0 can hold.
XML = re.compile("[\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]*")
MUST = next(check for check in CHECKS if check.level is Level.MUST)
ADVICE = next(check for check in CHECKS if check.level is Level.ADVICE)

any_text = st.text(st.characters(exclude_categories=()))  # halves of characters, too


def read(report: Report) -> ElementTree.Element:
    """As a strict parser does: what is not well-formed fails."""
    document = as_junit(report, Level.SHOULD)
    assert XML.fullmatch(document.decode("utf-8"))
    (suite,) = ElementTree.fromstring(document)
    return suite


def everywhere(text: str) -> Report:
    """A report with this text in every field that may hold data of the server."""
    finding = Finding(RequestLine("GET", text), text, text, text)
    results = (
        Result(MUST, CheckOutcome.FAILED, (finding,)),
        Result(ADVICE, CheckOutcome.FAILED, (finding,)),
        Result(CHECKS[-1], CheckOutcome.SKIPPED, skip_reason=text),
    )
    return Report(url=text, results=results, aborted=text, remarks=(text, text))


def interrupted(*results: Result) -> Report:
    """A run that was stopped before its last check."""
    rest = Result(CHECKS[-1], CheckOutcome.SKIPPED, skip_reason=STOPPED_REASON)
    return Report(url="u", results=(*results, rest), interrupted="interrupted")


def conclusion_style(report: Report, level: Level) -> str:
    """The colour of the conclusion: green, yellow or red."""
    *_, conclusion = report_lines(report, level)
    return conclusion[0].style.removeprefix("bold ")


@pytest.mark.parametrize("level", Level)
def test_an_interrupted_run_is_inconclusive_unless_a_failure_counts_at_its_level(level: Level) -> None:
    report = interrupted(Result(MUST, CheckOutcome.PASSED))
    assert not report.conforms(level)
    assert json.loads(as_json(report, level))["conforms"] is False
    assert conclusion_style(report, level) == "yellow"
    failed = interrupted(Result(ADVICE, CheckOutcome.FAILED))
    assert conclusion_style(failed, level) == ("red" if level is Level.ADVICE else "yellow")


def test_an_interruption_is_an_error_of_its_own_test_in_junit() -> None:
    suite = read(interrupted(Result(MUST, CheckOutcome.PASSED)))
    assert [(case.get("name"), [one.tag for one in case]) for case in suite] == [
        ("finished", ["error"]),
        (MUST.name, []),
        (CHECKS[-1].name, ["skipped"]),
    ]
    assert (suite.get("tests"), suite.get("errors"), suite.get("skipped")) == ("3", "1", "1")


@pytest.mark.parametrize("report", [Report(url="u", unreachable="problem"), Report(url="u", interrupted="problem")])
def test_a_run_without_results_is_reported_in_one_line(report: Report) -> None:
    (line,) = report_lines(report, Level.SHOULD)
    assert plain_text(line).endswith("problem")


def test_remarks_are_what_a_test_of_their_own_has_written() -> None:
    suite = read(Report(url="u", results=(Result(MUST, CheckOutcome.PASSED),), remarks=("One.", "Another.")))
    passed, remarks = suite.findall("testcase")
    assert (passed.get("name"), list(passed)) == (MUST.name, [])
    assert (remarks.get("classname"), remarks.get("name")) == ("conform", "remarks")
    assert [(one.tag, one.text) for one in remarks] == [("system-out", "One.\nAnother.")]
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "2", "failures": "0", "errors": "0", "skipped": "0"}
    suite = read(Report(url="u", aborted="too slow", remarks=("One.",)))
    assert [case.get("name") for case in suite] == ["reachable", "remarks"]
    assert (suite.get("tests"), suite.get("errors")) == ("2", "1")


@settings(max_examples=50)
@given(any_text)
@example("\x00\x08\x0b\x1b]]></system-out>&\x7f\x85\ud800\ufffe\uffff")
@example("]]>")
def test_junit_is_well_formed_with_any_text(text: str) -> None:
    suite = read(everywhere(text))
    (remarks,) = suite.findall("testcase[@name='remarks']/system-out")
    assert suite.get("tests") == str(len(suite))
    if text.isprintable():
        assert (remarks.text or "").split("\n") == [text, text]


def test_a_failure_in_junit_has_its_group_its_level_and_its_finding() -> None:
    suite = read(everywhere("x"))
    (case,) = (case for case in suite if case.find("failure") is not None)
    (failure,) = case
    assert (case.get("classname"), case.get("name"), failure.get("type")) == ("conform.identity", MUST.name, "must")
    assert "request: GET x\nexpected: x\nactual: x" in (failure.text or "")


def test_what_xml_cannot_hold_is_shown_as_an_escape() -> None:
    (remarks,) = read(everywhere("a\x00\x1b\nb\ud800")).findall("testcase[@name='remarks']/system-out")
    assert remarks.text == "\n".join([r"a\x00\x1b", r"b\ud800"] * 2)


SHOULD = next(check for check in CHECKS if check.level is Level.SHOULD)
FAILURES = Report(
    url="u", results=tuple(Result(check, CheckOutcome.FAILED) for check in (MUST, SHOULD, ADVICE, ADVICE))
)


@pytest.mark.parametrize(
    ("level", "failed", "below", "counted"),
    [
        (Level.MUST, 1, 3, "1 failed, 1 should, 2 advice"),
        (Level.SHOULD, 2, 2, "2 failed, 2 advice"),
        (Level.ADVICE, 4, 0, "4 failed"),
    ],
    ids=str,
)
def test_only_failures_at_the_level_are_counted_as_failed(level: Level, failed: int, below: int, counted: str) -> None:
    counts = json.loads(as_json(FAILURES, level))["counts"]
    assert counts == {"passed": 0, "failed": failed, "failed_below_level": below, "skipped": 0}
    *_, conclusion = report_lines(FAILURES, level)
    assert f" {counted}, 0 skipped" in plain_text(conclusion)
    failures = [case[0].get("message") for case in read(FAILURES) if case[0].tag == "failure"]
    assert failures == [MUST.requirement, SHOULD.requirement]
