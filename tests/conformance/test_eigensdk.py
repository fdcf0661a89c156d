"""The package eigensdk 0.0.3, run for real, and what there is to say of it, finding by finding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from svcnode.conformance.check import Level
from svcnode.conformance.run import CheckOutcome, Report, check_node
from tests.conformance.eigensdk import AS_SHIPPED, MOUNTED, EigenNode

if TYPE_CHECKING:
    from pathlib import Path


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


def test_as_shipped_none_of_its_endpoints_is_there(as_shipped: Report) -> None:
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


def test_as_shipped_nothing_is_said_of_what_cannot_be_seen(as_shipped: Report) -> None:
    judged = {result.check.name for result in as_shipped.results if result.outcome is not CheckOutcome.SKIPPED}
    assert judged == {*failed(as_shipped), "path-unknown-refused", "path-trailing-slash"}
    assert as_shipped.results[1].skip_reason == "identity-answers failed"


def test_mounted_its_faults_are_exactly_these(mounted: Report) -> None:
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
    expected = '503, since the list says that "storage" is Down'
    assert (storage, expected, "200") in finding_text(mounted, "service-health-agrees")
    body = '200 with the body {"service_id":"storage","status":"Down"}'
    assert (storage, "200 with no body", body) in finding_text(mounted, "service-health-no-body")


def test_mounted_the_node_is_healthy_beside_services_that_are_not(mounted: Report) -> None:
    came = '200 with no body, beside "indexer" which is Initializing and "storage" which is Down'
    assert finding_text(mounted, "health-reflects-services") == [("GET /eigen/node/health", "206 or 503", came)]


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
    ((request, expected, came),) = finding_text(mounted, f"version-unsupported-on-{endpoint}")
    assert (request, expected) == (f"GET /eigen{path}?version=v999.0.0", "404")
    assert came.startswith("200 with ")


def test_mounted_the_lesser_faults_are_told_too(mounted: Report) -> None:
    ((request, expected, came),) = finding_text(mounted, "service-unknown-404")
    assert request.startswith("GET /eigen/node/services/svcnode-conform-")
    assert expected == '404, application/json, {"message":"…"}'
    assert came == '404 with the body {"detail":"Service not found"}, without a string field message'
    assert ("HEAD /eigen/node/health", "the code that GET answers", "405") in finding_text(mounted, "head-answered")
    place = mounted.url.removesuffix("/eigen")
    slash = ("GET /eigen/node/health/", "404", f"307 with no body, Location: {place}/eigen/node/health")
    assert slash in finding_text(mounted, "path-trailing-slash")
    assert ("GET /eigen/node", "Cache-Control: no-store", "no Cache-Control") in finding_text(mounted, "not-cached")
    assert [came for _, _, came in finding_text(mounted, "path-unknown-404")] == [
        '404 with the body {"detail":"Not Found"}, without a string field message'
    ] * 2


def test_mounted_what_it_does_right_is_told_as_well(mounted: Report) -> None:
    passed = {result.check.name for result in mounted.results if result.outcome is CheckOutcome.PASSED}
    assert {"identity-fields", "services-fields", "service-unknown-refused", "methods-refused"} <= passed
