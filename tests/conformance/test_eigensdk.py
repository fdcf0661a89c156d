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


@pytest.fixture(scope="module")
def as_shipped(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return run_conformance(tmp_path_factory.mktemp("as-shipped"), AS_SHIPPED)


@pytest.fixture(scope="module")
def mounted(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return run_conformance(tmp_path_factory.mktemp("mounted"), MOUNTED)


def test_as_shipped_no_endpoint_exists(as_shipped: Report) -> None:
    assert failed(as_shipped) == {
        "identity-answers": Level.MUST,
        "health-code": Level.MUST,
        "services-answers": Level.MUST,
        "path-unknown-404": Level.ADVICE,
    }
    not_found = '404 with the body {"detail":"Not Found"}'
    assert finding_text(as_shipped, "identity-answers") == [("GET /eigen/node", "200", not_found)]
    assert finding_text(as_shipped, "health-code") == [("GET /eigen/node/health", "200, 206 or 503", not_found)]
    assert finding_text(as_shipped, "services-answers") == [("GET /eigen/node/services", "200", not_found)]
    assert not as_shipped.conforms(Level.MUST)


def test_as_shipped_the_other_checks_are_skipped(as_shipped: Report) -> None:
    executed = {result.check.name for result in as_shipped.results if result.outcome is not CheckOutcome.SKIPPED}
    assert executed == {*failed(as_shipped), "path-unknown-refused", "path-trailing-slash"}
    assert "identity-answers" in as_shipped.results[1].skip_reason


def test_mounted_its_defects_are_exactly_these(mounted: Report) -> None:
    assert failed(mounted) == {
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


def test_mounted_a_service_that_is_down_answers_200_with_a_body(mounted: Report) -> None:
    storage = "GET /eigen/node/services/storage/health"
    found = {
        request: (expected[:3], actual) for request, expected, actual in finding_text(mounted, "service-health-agrees")
    }
    assert found[storage] == ("503", "200")
    bodies = {request: actual for request, _, actual in finding_text(mounted, "service-health-no-body")}
    assert '{"service_id":"storage","status":"Down"}' in bodies[storage]


def test_mounted_the_node_is_200_while_services_are_not_up(mounted: Report) -> None:
    ((request, expected, actual),) = finding_text(mounted, "health-reflects-services")
    assert (request, expected, actual[:3]) == ("GET /eigen/node/health", "206 or 503", "200")
    assert '"indexer"' in actual
    assert '"storage"' in actual


@pytest.mark.parametrize(
    ("endpoint", "path"),
    [
        ("identity", "/node"),
        ("health", "/node/health"),
        ("services", "/node/services"),
        ("service-health", "/node/services/db/health"),
    ],
)
def test_mounted_the_version_is_ignored_everywhere(mounted: Report, endpoint: str, path: str) -> None:
    ((request, expected, actual),) = finding_text(mounted, f"version-unsupported-on-{endpoint}")
    assert (request, expected) == (f"GET /eigen{path}?version=v999.0.0", "404")
    assert actual.startswith("200")


def test_mounted_the_minor_defects_are_findings(mounted: Report) -> None:
    ((request, _, actual),) = finding_text(mounted, "service-unknown-404")
    assert request.startswith("GET /eigen/node/services/svcnode-conform-")
    assert '{"detail":"Service not found"}' in actual
    heads = {request: actual for request, _, actual in finding_text(mounted, "head-answered")}
    assert heads["HEAD /eigen/node/health"] == "405"
    slashes = {request: actual for request, _, actual in finding_text(mounted, "path-trailing-slash")}
    assert slashes["GET /eigen/node/health/"].startswith("307")
    assert slashes["GET /eigen/node/health/"].endswith(f"{mounted.url}/node/health")
    assert "GET /eigen/node" in {request for request, _, _ in finding_text(mounted, "not-cached")}
    unknown = [actual for _, _, actual in finding_text(mounted, "path-unknown-404")]
    assert ['{"detail":"Not Found"}' in one for one in unknown] == [True, True]


def test_mounted_its_correct_parts_pass(mounted: Report) -> None:
    passed = {result.check.name for result in mounted.results if result.outcome is CheckOutcome.PASSED}
    assert {"identity-fields", "services-fields", "service-unknown-refused", "methods-refused"} <= passed
