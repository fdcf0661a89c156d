"""The texts of `svcnode conform`: reports, findings and the requirement of each check."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

from svcnode.conformance.check import Check, Level
from svcnode.conformance.checks import CHECKS, GROUPS
from svcnode.conformance.http_client import NoResponseError
from svcnode.conformance.node_under_test import Finding, NodeUnderTest, no_response_finding
from svcnode.conformance.report import level_text, plain_text, report_lines, result_details
from svcnode.conformance.run import CheckOutcome, Report, Result, check_node
from svcnode.conformance.target import parse_target
from svcnode.core.errors import InvalidValueError
from tests.conformance.conforming_node import ConformingNode, NodeServer
from tests.conformance.nonconforming_nodes import DEFECTS
from tests.conformance.test_changing_nodes import DecodesNothing, describing_nothing, node_with
from tests.conformance.test_hostile import UNREACHABLE
from tests.conformance.test_interrupted import stopped_at
from tests.support.backends import Backend

if TYPE_CHECKING:
    from tests.wording.conftest import Snapshot


def run_conformance(node: ConformingNode, *, other_methods: bool = True) -> Report:
    with NodeServer(node.respond) as server:
        node.server = server  # type: ignore[attr-defined]
        return check_node(server.url, timeout_s=60.0, other_methods=other_methods)


def text_of(report: Report, level: Level = Level.SHOULD, *, is_full: bool = False) -> str:
    return stable("\n".join(map(plain_text, report_lines(report, level, is_full=is_full))))


def stable(text: str) -> str:
    """Without ports, random ids, counts that depend on timing, and the first of several parallel requests to fail."""
    text = re.sub(
        r"GET \S+\n  expected: .+\n  actual: \d+ of 50", r"GET PATH\n  expected: CODES\n  actual: N of 50", text
    )
    text = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT", text)
    return re.sub(r"svcnode-conform-[0-9a-f]+", "svcnode-conform-ID", text)


def test_checks(snapshot: Snapshot) -> None:
    lines = []
    for title, checks in GROUPS.items():
        lines.append(f"== {title}")
        for check in checks:
            lines += [f"{check.name} ({check.level.value}, {check.clause})", f"  {check.requirement}", f"  {check.fix}"]
    snapshot("checks", "\n".join(lines))


def test_reports(snapshot: Snapshot) -> None:
    conforming = run_conformance(ConformingNode(), other_methods=False)
    snapshot("conforming", text_of(conforming))
    snapshot("conforming-verbose", text_of(conforming, is_full=True))
    snapshot("no-services", text_of(run_conformance(node_with()), is_full=True))
    snapshot("many-findings", text_of(run_conformance(describing_nothing(40))))
    with NodeServer(ConformingNode().respond) as server:
        snapshot("interrupted", text_of(stopped_at("version-supported-on-identity", server), is_full=True))
    url = "http://127.0.0.1:8420/svc"
    problems = [Report(url=url, unreachable="connection refused"), Report(url=url, interrupted="interrupted")]
    snapshot("without-results", "\n".join(map(text_of, problems)))


async def findings_of(check: Check, node: ConformingNode) -> tuple[Finding, ...]:
    """Of this check alone, which is much faster than a whole run."""
    with NodeServer(node.respond) as server:
        node.server = server  # type: ignore[attr-defined]
        under_test = NodeUnderTest(parse_target(server.url), timeout_s=60.0)
        try:
            return tuple([finding async for finding in check.function(under_test)])
        except NoResponseError as exc:
            return (no_response_finding(exc),)


def test_findings(snapshot: Snapshot) -> None:
    lines = []
    defects = {defect.check: defect for defect in reversed(DEFECTS)}  # the first of each check
    for check in CHECKS:
        if check.name == "health-latency":
            continue  # shows a measured time
        result = Result(check, CheckOutcome.FAILED, asyncio.run(findings_of(check, defects[check.name].node())))
        lines.append(f"{check.name}: {level_text(result)}")
        lines += [f"  {name}: {text}" for name, text in result_details(result) if name not in ("requirement", "more")]
    snapshot("findings", stable("\n".join(lines)))


def test_encoded_ids_that_cannot_be_checked(snapshot: Snapshot) -> None:
    report = run_conformance(DecodesNothing("Down", odd_status="Down"))
    snapshot("encoded-ids", next(result.skip_reason for result in report.results if "encoded" in result.check.name))


TIMEOUTS = ("no response", "one byte at a time")


def test_unreachable_servers(snapshot: Snapshot) -> None:
    lines = []
    for name, script in UNREACHABLE.items():
        with Backend(script) as backend:
            report = check_node(f"http://{backend.address}", timeout_s=0.5 if name in TIMEOUTS else 60.0)
        lines.append(f"{name}: {report.unreachable}")
    snapshot("unreachable", "\n".join(lines))


def test_unusable_urls(snapshot: Snapshot) -> None:
    lines = []
    for url, prefix in [("ftp://node", "/svc"), ("me:secret/x@node", "/svc"), ("node?x=1", "/svc"), ("node", "svc")]:
        with pytest.raises(InvalidValueError) as caught:
            parse_target(url, prefix=prefix)
        lines.append(str(caught.value))
    snapshot("urls", "\n".join(lines))
