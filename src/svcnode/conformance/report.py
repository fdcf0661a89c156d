"""What came of it: for people, as JSON, and as JUnit XML."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.conformance.check import SILENT, Level
from svcnode.conformance.checks import GROUPS
from svcnode.conformance.interface import VERSION
from svcnode.conformance.run import MAX_MORE, Outcome
from svcnode.core.wording import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from xml.etree.ElementTree import Element

    from svcnode.conformance.run import Report, Result

WORDS = {Outcome.PASSED: "ok", Outcome.FAILED: "FAILED", Outcome.SKIPPED: "skipped"}
COLOURS = {Outcome.PASSED: "green", Outcome.FAILED: "red", Outcome.SKIPPED: "dim"}


class Piece(NamedTuple):
    text: str
    style: str = ""  # in the words of rich; for those who show no colours, nothing


Line = list[Piece]


# ---- for people


def lines(report: Report, level: Level, *, is_full: bool = False) -> Iterator[Line]:
    """The table, what failed and how to mend it, and a last line that says it all."""
    if not report.results:
        verb = "cannot be" if report.unreachable else "was not"
        yield [Piece(f"{report.url} {verb} judged: {report.unreachable or report.cut_short}", "red")]
        return
    yield [Piece(report.url, "bold"), Piece(f", judged by the interface {VERSION}")]
    yield []
    yield from _table(report)
    if is_full:
        yield []
        yield from _every_check(report)
    for result in sorted(report.failed(), key=_weight):
        yield []
        yield from _failure(result, is_counted=result.counts(level))
    yield []
    yield from _conclusion(report, level)


def _weight(result: Result) -> int:
    return list(Level).index(result.check.level)


def _table(report: Report) -> Iterator[Line]:
    """How many of the checks that were judged passed, by subject and level."""
    yield [Piece(f"{'':14}{''.join(f'{level.value:>8}' for level in Level)}   failed", "dim")]
    by_name = {result.check.name: result for result in report.results}
    for title, checks in GROUPS.items():
        results = [by_name[check.name] for check in checks if check.name in by_name]
        cells = [_cell([result for result in results if result.check.level is level]) for level in Level]
        failed = [result.check.name for result in results if result.outcome is Outcome.FAILED]
        more = f" +{len(failed) - 1}" if len(failed) > 1 else ""
        yield [Piece(f"{title:14}"), *cells, Piece(f"   {''.join(failed[:1])}{more}".rstrip(), "red")]


def _cell(results: list[Result]) -> Piece:
    counts = Counter(result.outcome for result in results)
    judged = counts[Outcome.PASSED] + counts[Outcome.FAILED]
    text = f"{counts[Outcome.PASSED]}/{judged}" if judged else "-"
    return Piece(f"{text:>8}", "red" if counts[Outcome.FAILED] else "green" if judged else "dim")


def _every_check(report: Report) -> Iterator[Line]:
    width = max(len(result.check.name) for result in report.results)
    for result in report.results:
        check = result.check
        words = f"{WORDS[result.outcome]:8} {check.level.value:7} {check.name:{width}} {check.clause:>7}"
        told = f"{check.demands.removesuffix('.')}: {result.why}" if result.why else check.demands
        yield [Piece(words, COLOURS[result.outcome]), Piece(f"  {told}", "dim" if result.why else "")]


def _failure(result: Result, *, is_counted: bool) -> Iterator[Line]:
    yield [
        Piece(f"FAILED {result.check.name}", "bold red" if is_counted else "bold yellow"),
        Piece(f"  {about(result)}"),
    ]
    for name, text in explained(result):
        yield [Piece(f"  {name:9}", "dim"), Piece(text)]


def about(result: Result) -> str:
    check = result.check
    place = "the interface is silent, this is our advice" if check.clause == SILENT else f"clause {check.clause}"
    if check.clause == SILENT and check.level is not Level.ADVICE:
        place = "not stated, but clients would break or be misled"
    return f"{check.level.value} ({place})"


def explained(result: Result) -> Iterator[tuple[str, str]]:
    """All that it takes to see the fault again, and to mend it."""
    yield "demand", result.check.demands
    for finding in result.findings:
        yield "request", str(finding.request)
        yield "expected", finding.expected
        yield "came", finding.came
    if result.more:
        yield "more", f"and {'at least ' if result.more == MAX_MORE else ''}{result.more} more like these"
    for mend in result.mends:
        yield "mend", mend


def _conclusion(report: Report, level: Level) -> Iterator[Line]:
    if report.unfinished:
        yield [Piece(f"Not all could be judged: {report.unfinished}.", "red")]
    if report.cut_short:
        yield [Piece(f"{report.cut_short.capitalize()}.", "red")]
    counts = Counter(result.outcome for result in report.results)
    told = f"{counts[Outcome.PASSED]} passed, {counts[Outcome.FAILED]} failed, {counts[Outcome.SKIPPED]} not judged"
    told += " (-v says why)" if counts[Outcome.SKIPPED] else ""
    if report.conforms(level):
        beside = len(report.failed())
        apart = f"; {beside} failed that {'does' if beside == 1 else 'do'} not count" if beside else ""
        yield [Piece("It conforms", "bold green"), Piece(f" at level {level.value}: {told}{apart}.")]
    elif report.cut_short and not report.failed(level):
        yield [Piece("It is not known whether it conforms", "bold yellow"), Piece(f" at level {level.value}: {told}.")]
    else:
        yield [Piece("It does not conform", "bold red"), Piece(f" at level {level.value}: {told}.")]
    for remark in report.remarks:
        yield [Piece(remark, "yellow")]


def plain(pieces: Line) -> str:
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
        "unfinished": report.unfinished or None,
        "cut_short": report.cut_short or None,
        "remarks": report.remarks,
        "counts": {outcome.value: counts[outcome.value] for outcome in Outcome},
        "checks": [_as_object(group, result) for group, result in grouped(report)],
    }
    return json.dumps(document, indent=2)


def _as_object(group: str, result: Result) -> dict[str, Any]:
    check = result.check
    findings = [
        {"request": str(finding.request), "expected": finding.expected, "came": finding.came}
        for finding in result.findings
    ]
    return {
        "name": check.name,
        "group": group,
        "level": check.level.value,
        "clause": check.clause,
        "outcome": result.outcome.value,
        "why": result.why or None,
        "demands": check.demands,
        "mend": " ".join(result.mends),
        "findings": findings,
        "more_findings": result.more,
        "duration_ms": round(result.duration_s * 1000, 1),
    }


def grouped(report: Report) -> Iterator[tuple[str, Result]]:
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
    why = report.unreachable or report.unfinished or report.cut_short
    passed = [result for result in report.results if result.outcome is Outcome.PASSED]
    suite = _added(
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
        name = "finished" if report.cut_short else "reachable"
        _added(_added(suite, "testcase", classname="conform", name=name, time="0"), "error", message=why)
    for group, result in grouped(report):
        _add_case(suite, group, result, is_counted=result.counts(level))
    if report.remarks:
        case = _added(suite, "testcase", classname="conform", name="remarks", time="0")
        _added(case, "system-out", "\n".join(report.remarks))
    ElementTree.indent(suites)
    written: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def _add_case(suite: Element, group: str, result: Result, *, is_counted: bool) -> None:
    time = f"{result.duration_s:.3f}"
    case = _added(suite, "testcase", classname=f"conform.{group}", name=result.check.name, time=time)
    text = "\n".join(f"{name}: {text}" for name, text in explained(result))
    if is_counted:
        _added(case, "failure", text, message=about(result), type=result.check.level.value)
    elif result.outcome is Outcome.FAILED:
        _added(case, "skipped", text, message=f"failed, and does not count: {about(result)}")
    elif result.outcome is Outcome.SKIPPED:
        _added(case, "skipped", message=result.why)


def _added(parent: Element, tag: str, text: str = "", **attributes: str) -> Element:
    from xml.etree.ElementTree import SubElement

    element = SubElement(parent, tag, {name: _fit_for_xml(value) for name, value in attributes.items()})
    element.text = _fit_for_xml(text) or None
    return element


def _fit_for_xml(text: str) -> str:
    """There are characters that no XML can hold, not even as references; whatever is printable is none of them."""
    return "\n".join(map(one_line, text.split("\n")))
