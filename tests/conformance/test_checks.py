"""Every check against a node that is right in everything but what it demands: that one fails, and no other."""

from __future__ import annotations

import pytest

from svcnode.conformance.checks import CHECKS, health
from svcnode.conformance.run import CheckOutcome, Report, check_node
from tests.conformance.conforming_node import ConformingNode, NodeServer
from tests.conformance.nonconforming_nodes import DEFECTS, Defect

TIMEOUT_S = 10.0


def run_conformance(node: ConformingNode, *, other_methods: bool = True) -> Report:
    with NodeServer(node.respond) as server:
        node.server = server  # type: ignore[attr-defined]
        return check_node(server.url, timeout_s=TIMEOUT_S, other_methods=other_methods)


def failed(report: Report) -> list[str]:
    return [result.check.name for result in report.failed()]


def test_a_node_that_is_right_in_everything_passes_every_check() -> None:
    report = run_conformance(ConformingNode())
    assert [result for result in report.results if result.outcome is not CheckOutcome.PASSED] == []
    assert [result.check for result in report.results] == list(CHECKS)
    assert report.conforms()


@pytest.mark.parametrize("breakage", [pytest.param(one, id=f"{one.check}: {one.name}") for one in DEFECTS])
def test_what_is_broken_fails_its_own_check_and_no_other(breakage: Defect, monkeypatch: pytest.MonkeyPatch) -> None:
    if breakage.check == "health-latency":
        monkeypatch.setattr(health, "QUICK_S", 0.2)
    report = run_conformance(breakage.node())
    assert failed(report) == [breakage.check], report.failed()
    (result,) = report.failed()
    for finding in result.findings:
        assert str(finding.request).split(" ")[1].startswith("/svc/")
        assert finding.expected
        assert finding.actual


def test_every_check_has_a_broken_node() -> None:
    assert {breakage.check for breakage in DEFECTS} == {check.name for check in CHECKS}
