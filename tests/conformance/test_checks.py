"""Each check fails on the node that violates its requirement, and no other check fails there."""

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


def test_a_conforming_node_passes_every_check() -> None:
    report = run_conformance(ConformingNode())
    assert [result for result in report.results if result.outcome is not CheckOutcome.PASSED] == []
    assert [result.check for result in report.results] == list(CHECKS)
    assert report.conforms()


@pytest.mark.parametrize("defect", [pytest.param(one, id=f"{one.check}: {one.name}") for one in DEFECTS])
def test_a_defect_fails_its_own_check_and_no_other(defect: Defect, monkeypatch: pytest.MonkeyPatch) -> None:
    if defect.check == "health-latency":
        monkeypatch.setattr(health, "MAX_LATENCY_S", 0.2)
    report = run_conformance(defect.node())
    assert failed(report) == [defect.check], report.failed()
    (result,) = report.failed()
    for finding in result.findings:
        assert str(finding.request).split(" ")[1].startswith("/svc/")
        assert finding.expected
        assert finding.actual


def test_every_check_has_a_nonconforming_node() -> None:
    assert {defect.check for defect in DEFECTS} == {check.name for check in CHECKS}
