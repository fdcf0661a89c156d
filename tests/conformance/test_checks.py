"""Each check fails on the node that violates its requirement, and no other check fails there."""

from __future__ import annotations

import pytest

from svcnode.conformance.checks import CHECKS
from svcnode.conformance.run import CheckOutcome
from tests.conformance.conforming_node import ConformingNode
from tests.conformance.in_memory import report_of
from tests.conformance.nonconforming_nodes import DEFECTS, Defect


def test_a_conforming_node_passes_every_check() -> None:
    report = report_of(ConformingNode())
    assert [result for result in report.results if result.outcome is not CheckOutcome.PASSED] == []
    assert [result.check for result in report.results] == list(CHECKS)
    assert report.conforms()


@pytest.mark.parametrize("defect", [pytest.param(one, id=f"{one.check}: {one.name}") for one in DEFECTS])
def test_a_defect_fails_its_own_check_and_no_other(defect: Defect) -> None:
    report = report_of(defect.node())
    assert [result.check.name for result in report.failed()] == [defect.check], report.failed()
    (result,) = report.failed()
    for finding in result.findings:
        assert str(finding.request).split(" ")[1].startswith("/svc/")
        assert finding.expected
        assert finding.actual


def test_every_check_has_a_nonconforming_node() -> None:
    assert {defect.check for defect in DEFECTS} == {check.name for check in CHECKS}
