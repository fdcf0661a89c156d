"""What came of it: for people, as JSON, and as JUnit XML."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.conformance.check import UNSPECIFIED, Level
from svcnode.conformance.checks import GROUPS
from svcnode.conformance.interface import VERSION
from svcnode.conformance.run import MAX_COUNTED_FINDINGS, CheckOutcome
from svcnode.core.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from xml.etree.ElementTree import Element

    from svcnode.conformance.run import Report, Result

OUTCOME_TEXT = {CheckOutcome.PASSED: "ok", CheckOutcome.FAILED: "FAILED", CheckOutcome.SKIPPED: "skipped"}
OUTCOME_STYLES = {CheckOutcome.PASSED: "green", CheckOutcome.FAILED: "red", CheckOutcome.SKIPPED: "dim"}


class Segment(NamedTuple):
    text: str
    style: str = ""  # in the words of rich; for those who show no colours, nothing


Line = list[Segment]


# ---- for people


def report_lines(report: Report, level: Level, *, is_full: bool = False) -> Iterator[Line]:
    """The table, what failed and how to mend it, and a last line that says it all."""
    if not report.results:
        verb = "cannot be" if report.unreachable else "was not"
        yield [Segment(f"{report.url} {verb} judged: {report.unreachable or report.interrupted}", "red")]
        return
    yield [Segment(report.url, "bold"), Segment(f", judged by the interface {VERSION}")]
    yield []
    yield from _summary_table(report)
    if is_full:
        yield []
        yield from _all_checks(report)
    for result in sorted(report.failed(), key=_level_index):
        yield []
        yield from _failure_lines(result, is_counted=result.is_failure_at(level))
    yield []
    yield from _conclusion_lines(report, level)


def _level_index(result: Result) -> int:
    return list(Level).index(result.check.level)


def _summary_table(report: Report) -> Iterator[Line]:
    """How many of the checks that were judged passed, by subject and level."""
    yield [Segment(f"{'':14}{''.join(f'{level.value:>8}' for level in Level)}   failed", "dim")]
    by_name = {result.check.name: result for result in report.results}
    for title, checks in GROUPS.items():
        results = [by_name[check.name] for check in checks if check.name in by_name]
        cells = [_cell([result for result in results if result.check.level is level]) for level in Level]
        failed = [result.check.name for result in results if result.outcome is CheckOutcome.FAILED]
        more = f" +{len(failed) - 1}" if len(failed) > 1 else ""
        yield [Segment(f"{title:14}"), *cells, Segment(f"   {''.join(failed[:1])}{more}".rstrip(), "red")]


def _cell(results: list[Result]) -> Segment:
    counts = Counter(result.outcome for result in results)
    judged = counts[CheckOutcome.PASSED] + counts[CheckOutcome.FAILED]
    text = f"{counts[CheckOutcome.PASSED]}/{judged}" if judged else "-"
    return Segment(f"{text:>8}", "red" if counts[CheckOutcome.FAILED] else "green" if judged else "dim")


def _all_checks(report: Report) -> Iterator[Line]:
    width = max(len(result.check.name) for result in report.results)
    for result in report.results:
        check = result.check
        words = f"{OUTCOME_TEXT[result.outcome]:8} {check.level.value:7} {check.name:{width}} {check.clause:>7}"
        told = (
            f"{check.requirement.removesuffix('.')}: {result.skip_reason}" if result.skip_reason else check.requirement
        )
        yield [
            Segment(words, OUTCOME_STYLES[result.outcome]),
            Segment(f"  {told}", "dim" if result.skip_reason else ""),
        ]


def _failure_lines(result: Result, *, is_counted: bool) -> Iterator[Line]:
    yield [
        Segment(f"FAILED {result.check.name}", "bold red" if is_counted else "bold yellow"),
        Segment(f"  {level_text(result)}"),
    ]
    for name, text in result_details(result):
        yield [Segment(f"  {name:9}", "dim"), Segment(text)]


def level_text(result: Result) -> str:
    check = result.check
    place = "the interface is silent, this is our advice" if check.clause == UNSPECIFIED else f"clause {check.clause}"
    if check.clause == UNSPECIFIED and check.level is not Level.ADVICE:
        place = "not stated, but clients would break or be misled"
    return f"{check.level.value} ({place})"


def result_details(result: Result) -> Iterator[tuple[str, str]]:
    """All that it takes to see the fault again, and to mend it."""
    yield "requirement", result.check.requirement
    for finding in result.findings:
        yield "request", str(finding.request)
        yield "expected", finding.expected
        yield "actual", finding.actual
    if result.more_findings:
        yield (
            "more",
            f"and {'at least ' if result.more_findings == MAX_COUNTED_FINDINGS else ''}{result.more_findings} more like these",
        )
    for mend in result.fixes:
        yield "fix", mend


def _conclusion_lines(report: Report, level: Level) -> Iterator[Line]:
    if report.aborted:
        yield [Segment(f"Not all could be judged: {report.aborted}.", "red")]
    if report.interrupted:
        yield [Segment(f"{report.interrupted.capitalize()}.", "red")]
    counts = Counter(result.outcome for result in report.results)
    told = f"{counts[CheckOutcome.PASSED]} passed, {counts[CheckOutcome.FAILED]} failed, {counts[CheckOutcome.SKIPPED]} not judged"
    told += " (-v says why)" if counts[CheckOutcome.SKIPPED] else ""
    if report.conforms(level):
        beside = len(report.failed())
        apart = f"; {beside} failed that {'does' if beside == 1 else 'do'} not count" if beside else ""
        yield [Segment("It conforms", "bold green"), Segment(f" at level {level.value}: {told}{apart}.")]
    elif report.interrupted and not report.failed(level):
        yield [
            Segment("It is not known whether it conforms", "bold yellow"),
            Segment(f" at level {level.value}: {told}."),
        ]
    else:
        yield [Segment("It does not conform", "bold red"), Segment(f" at level {level.value}: {told}.")]
    for remark in report.remarks:
        yield [Segment(remark, "yellow")]


def plain_text(pieces: Line) -> str:
    return "".join(piece.text for piece in pieces)


# ---- for machines


def as_json(report: Report, level: Level) -> str:
    counts = Counter(result.outcome.value for result in report.results)
    document: dict[str, Any] = {
        "url": report.url,
        "interface": VERSION,
        "level": level.value,
        "conforms": report.conforms(level),
        "unreachable": report.unreachable or None,
        "aborted": report.aborted or None,
        "interrupted": report.interrupted or None,
        "remarks": report.remarks,
        "counts": {outcome.value: counts[outcome.value] for outcome in CheckOutcome},
        "checks": [_result_object(group, result) for group, result in results_by_group(report)],
    }
    return json.dumps(document, indent=2)


def _result_object(group: str, result: Result) -> dict[str, Any]:
    check = result.check
    findings = [
        {"request": str(finding.request), "expected": finding.expected, "actual": finding.actual}
        for finding in result.findings
    ]
    return {
        "name": check.name,
        "group": group,
        "level": check.level.value,
        "clause": check.clause,
        "outcome": result.outcome.value,
        "skip_reason": result.skip_reason or None,
        "requirement": check.requirement,
        "fix": " ".join(result.fixes),
        "findings": findings,
        "more_findings": result.more_findings,
        "duration_ms": round(result.duration_s * 1000, 1),
    }


def results_by_group(report: Report) -> Iterator[tuple[str, Result]]:
    groups = {check.name: title for title, checks in GROUPS.items() for check in checks}
    for result in report.results:
        yield groups[result.check.name], result


def as_junit(report: Report, level: Level) -> bytes:
    """A check that failed without counting is a skipped test with the reason: red would contradict the exit code.

    What is of no check alone has a test of its own: what stands beside the tests is not shown everywhere.
    """
    from xml.etree import ElementTree  # written, never read

    suites = ElementTree.Element("testsuites")
    counted = report.failed(level)
    why = report.unreachable or report.aborted or report.interrupted
    passed = [result for result in report.results if result.outcome is CheckOutcome.PASSED]
    suite = _add_element(
        suites,
        "testsuite",
        name=f"svcnode conform {report.url}",
        tests=str(len(report.results) + bool(why) + bool(report.remarks)),
        failures=str(len(counted)),
        errors=str(int(bool(why))),
        skipped=str(len(report.results) - len(passed) - len(counted)),
        time=f"{sum(result.duration_s for result in report.results):.3f}",
    )
    if why:
        name = "finished" if report.interrupted else "reachable"
        _add_element(_add_element(suite, "testcase", classname="conform", name=name, time="0"), "error", message=why)
    for group, result in results_by_group(report):
        _add_case(suite, group, result, is_counted=result.is_failure_at(level))
    if report.remarks:
        case = _add_element(suite, "testcase", classname="conform", name="remarks", time="0")
        _add_element(case, "system-out", "\n".join(report.remarks))
    ElementTree.indent(suites)
    written: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def _add_case(suite: Element, group: str, result: Result, *, is_counted: bool) -> None:
    time = f"{result.duration_s:.3f}"
    case = _add_element(suite, "testcase", classname=f"conform.{group}", name=result.check.name, time=time)
    text = "\n".join(f"{name}: {text}" for name, text in result_details(result))
    if is_counted:
        _add_element(case, "failure", text, message=level_text(result), type=result.check.level.value)
    elif result.outcome is CheckOutcome.FAILED:
        _add_element(case, "skipped", text, message=f"failed, and does not count: {level_text(result)}")
    elif result.outcome is CheckOutcome.SKIPPED:
        _add_element(case, "skipped", message=result.skip_reason)


def _add_element(parent: Element, tag: str, text: str = "", **attributes: str) -> Element:
    from xml.etree.ElementTree import SubElement

    element = SubElement(parent, tag, {name: _xml_safe(value) for name, value in attributes.items()})
    element.text = _xml_safe(text) or None
    return element


def _xml_safe(text: str) -> str:
    """There are characters that no XML can hold, not even as references; whatever is printable is none of them."""
    return "\n".join(map(one_line, text.split("\n")))
