"""The package eigensdk 0.0.3, run for real, and its findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from svcnode.conformance.check import Level
from svcnode.conformance.run import CheckOutcome, Report, check_node
from tests.conformance.eigensdk import AS_SHIPPED, MOUNTED, EigenNode

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.wide


def finding_text(report: Report, check: str) -> list[tuple[str, str, str]]:
    (result,) = (result for result in report.failed() if result.check.name == check)
    return [(str(finding.request), finding.expected, finding.actual) for finding in result.findings]


def failed(report: Report) -> dict[str, Level]:
    return {result.check.name: result.check.level for result in report.failed()}


def run_conformance(folder: Path, script: str) -> Report:
    with EigenNode(folder, script) as node:
        return check_node(node.url, prefix="/eigen", timeout_s=20.0)


def test_as_shipped_no_endpoint_exists(tmp_path: Path) -> None:
    report = run_conformance(tmp_path, AS_SHIPPED)
    assert failed(report) == {
        "identity-answers": Level.MUST,
        "health-code": Level.MUST,
        "services-answers": Level.MUST,
        "path-unknown-404": Level.ADVICE,
    }
    not_found = '404 with the body {"detail":"Not Found"}'
    assert finding_text(report, "identity-answers") == [("GET /eigen/node", "200", not_found)]
    executed = {result.check.name for result in report.results if result.outcome is not CheckOutcome.SKIPPED}
    assert executed == {*failed(report), "path-unknown-refused", "path-trailing-slash"}
    assert not report.conforms(Level.MUST)


def test_mounted_its_defects_are_exactly_these(tmp_path: Path) -> None:
    report = run_conformance(tmp_path, MOUNTED)
    assert failed(report) == {
        "health-reflects-services": Level.SHOULD,
        "service-health-no-body": Level.SHOULD,
        "service-health-agrees": Level.MUST,
        "service-unknown-404": Level.ADVICE,
        "version-unsupported-on-identity": Level.MUST,
        "version-unsupported-on-health": Level.MUST,
        "version-unsupported-on-services": Level.MUST,
        "version-unsupported-on-service-health": Level.MUST,
        "head-answered": Level.ADVICE,
        "path-unknown-404": Level.ADVICE,
        "path-trailing-slash": Level.ADVICE,
        "not-cached": Level.ADVICE,
    }
    storage = "GET /eigen/node/services/storage/health"
    found = {
        request: (expected[:3], actual) for request, expected, actual in finding_text(report, "service-health-agrees")
    }
    assert found[storage] == ("503", "200")
    bodies = {request: actual for request, _, actual in finding_text(report, "service-health-no-body")}
    assert '{"service_id":"storage","status":"Down"}' in bodies[storage]
    slashes = {request: actual for request, _, actual in finding_text(report, "path-trailing-slash")}
    assert slashes["GET /eigen/node/health/"].endswith(f"{report.url}/node/health")
