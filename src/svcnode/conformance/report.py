"""The report: as text, as JSON and as JUnit XML."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.conformance.check import CLAUSES_PAGE, Level
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
    style: str = ""  # a rich style; ignored without colours


Line = list[Segment]


# ---- text


def report_lines(report: Report, level: Level, *, is_full: bool = False) -> Iterator[Line]:
    """The summary table, each failure with its fix, and the conclusion."""
    if not report.results:
        problem = f"cannot check {report.url}" if report.unreachable else f"{report.url} was not checked"
        yield [Segment(f"{problem}: {report.unreachable or report.interrupted}", "red")]
        return
    yield [Segment(report.url, "bold"), Segment(f", interface {VERSION} (clauses: {CLAUSES_PAGE})")]
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
    """Passed and executed checks, by group and level."""
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
    executed = counts[CheckOutcome.PASSED] + counts[CheckOutcome.FAILED]
    text = f"{counts[CheckOutcome.PASSED]}/{executed}" if executed else "-"
    return Segment(f"{text:>8}", "red" if counts[CheckOutcome.FAILED] else "green" if executed else "dim")


def _all_checks(report: Report) -> Iterator[Line]:
    width = max(len(result.check.name) for result in report.results)
    for result in report.results:
        check = result.check
        columns = f"{OUTCOME_TEXT[result.outcome]:8} {check.level.value:7} {check.name:{width}} {check.clause:>11}"
        text = (
            f"{check.requirement.removesuffix('.')}: {result.skip_reason}" if result.skip_reason else check.requirement
        )
        yield [
            Segment(columns, OUTCOME_STYLES[result.outcome]),
            Segment(f"  {text}", "dim" if result.skip_reason else ""),
        ]


def _failure_lines(result: Result, *, is_counted: bool) -> Iterator[Line]:
    yield [
        Segment(f"FAILED {result.check.name}", "bold red" if is_counted else "bold yellow"),
        Segment(f"  {level_text(result)}"),
    ]
    for name, text in result_details(result):
        yield [Segment(f"  {name:12}", "dim"), Segment(text)]


def level_text(result: Result) -> str:
    check = result.check
    clauses = f"clause{'s' if ' and ' in check.clause else ''} {check.clause}"
    if check.is_specified:
        return f"{check.level.value} ({clauses})"
    why = "recommended" if check.level is Level.ADVICE else "otherwise clients break or are misled"
    return f"{check.level.value} ({clauses}; not specified, {why})"


def result_details(result: Result) -> Iterator[tuple[str, str]]:
    """Everything needed to reproduce the failure and to fix it."""
    yield "requirement", result.check.requirement
    for finding in result.findings:
        yield "request", str(finding.request)
        yield "expected", finding.expected
        yield "actual", finding.actual
    if result.more_findings:
        at_least = "at least " if result.more_findings == MAX_COUNTED_FINDINGS else ""
        yield "more", f"{at_least}{result.more_findings} more findings"
    for fix in result.fixes:
        yield "fix", fix


def _conclusion_lines(report: Report, level: Level) -> Iterator[Line]:
    if report.aborted:
        yield [Segment(f"Aborted: {report.aborted}.", "red")]
    if report.interrupted:
        yield [Segment(f"{report.interrupted.capitalize()}.", "red")]
    totals = _totals_text(report, level)
    if report.conforms(level):
        yield [Segment("The node conforms", "bold green"), Segment(f" at level {level.value}: {totals}.")]
    elif report.interrupted and not report.failed(level):
        yield [
            Segment("It is not known whether the node conforms", "bold yellow"),
            Segment(f" at level {level.value}: {totals}."),
        ]
    else:
        yield [Segment("The node does not conform", "bold red"), Segment(f" at level {level.value}: {totals}.")]
    for remark in report.remarks:
        yield [Segment(remark, "yellow")]


def _totals_text(report: Report, level: Level) -> str:
    """Only failures at the level are called failed; the others are counted under the name of their level."""
    counts = count_results(report, level)
    below = Counter(result.check.level for result in report.failed() if not result.is_failure_at(level))
    parts = [f"{counts['passed']} passed", f"{counts['failed']} failed"]
    parts += [f"{below[other]} {other.value}" for other in Level if below[other]]
    parts += [f"{counts['skipped']} skipped{' (use -v to see why)' if counts['skipped'] else ''}"]
    return ", ".join(parts)


def count_results(report: Report, level: Level) -> dict[str, int]:
    outcomes = Counter(result.outcome for result in report.results)
    failed = len(report.failed(level))
    return {
        "passed": outcomes[CheckOutcome.PASSED],
        "failed": failed,
        "failed_below_level": outcomes[CheckOutcome.FAILED] - failed,
        "skipped": outcomes[CheckOutcome.SKIPPED],
    }


def plain_text(line: Line) -> str:
    return "".join(segment.text for segment in line)


# ---- JSON and JUnit


def as_json(report: Report, level: Level) -> str:
    document: dict[str, Any] = {
        "url": report.url,
        "interface": VERSION,
        "level": level.value,
        "conforms": report.conforms(level),
        "unreachable": report.unreachable or None,
        "aborted": report.aborted or None,
        "interrupted": report.interrupted or None,
        "remarks": report.remarks,
        "counts": count_results(report, level),
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
    """A failure below the level is a skipped test with a reason, so that the report agrees with the exit code.

    Remarks about the whole node are a separate test case: not every viewer shows text outside test cases.
    """
    from xml.etree import ElementTree  # written, never read

    suites = ElementTree.Element("testsuites")
    counted = report.failed(level)
    problem = report.unreachable or report.aborted or report.interrupted
    passed = [result for result in report.results if result.outcome is CheckOutcome.PASSED]
    suite = _add_element(
        suites,
        "testsuite",
        name=f"svcnode conform {report.url}",
        tests=str(len(report.results) + bool(problem) + bool(report.remarks)),
        failures=str(len(counted)),
        errors=str(int(bool(problem))),
        skipped=str(len(report.results) - len(passed) - len(counted)),
        time=f"{sum(result.duration_s for result in report.results):.3f}",
    )
    if problem:
        name = "finished" if report.interrupted else "reachable"
        _add_element(
            _add_element(suite, "testcase", classname="conform", name=name, time="0"), "error", message=problem
        )
    for group, result in results_by_group(report):
        _add_case(suite, group, result, is_counted=result.is_failure_at(level))
    if report.remarks:
        case = _add_element(suite, "testcase", classname="conform", name="remarks", time="0")
        _add_element(case, "system-out", "\n".join(report.remarks))
    ElementTree.indent(suites)
    xml: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return xml + b"\n"


def _add_case(suite: Element, group: str, result: Result, *, is_counted: bool) -> None:
    time = f"{result.duration_s:.3f}"
    case = _add_element(suite, "testcase", classname=f"conform.{group}", name=result.check.name, time=time)
    details = (("level", level_text(result)), *result_details(result))
    text = "\n".join(f"{name}: {text}" for name, text in details)
    if is_counted:
        _add_element(case, "failure", text, message=result.check.requirement, type=result.check.level.value)
    elif result.outcome is CheckOutcome.FAILED:
        _add_element(case, "skipped", text, message=f"failed below the level: {result.check.requirement}")
    elif result.outcome is CheckOutcome.SKIPPED:
        _add_element(case, "skipped", message=result.skip_reason)


def _add_element(parent: Element, tag: str, text: str = "", **attributes: str) -> Element:
    from xml.etree.ElementTree import SubElement

    element = SubElement(parent, tag, {name: _xml_safe(value) for name, value in attributes.items()})
    element.text = _xml_safe(text) or None
    return element


def _xml_safe(text: str) -> str:
    """XML cannot hold some control characters, not even as references; `one_line` escapes them."""
    return "\n".join(map(one_line, text.split("\n")))
