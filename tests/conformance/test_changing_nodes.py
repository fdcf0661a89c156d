"""Statuses may change during a run: only persistent mismatches are findings."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from svcnode.conformance.node_under_test import MAX_SERVICES
from svcnode.conformance.report import result_details
from svcnode.conformance.run import MAX_COUNTED_FINDINGS, MAX_FINDINGS, CheckOutcome, Report, Result
from tests.conformance.conforming_node import CODES, ConformingNode, Request, Response, service, with_json
from tests.conformance.in_memory import report_of, run_in_memory


def outcome(report: Report, name: str) -> CheckOutcome:
    (result,) = (result for result in report.results if result.check.name == name)
    assert bool(result.skip_reason) is (result.outcome is CheckOutcome.SKIPPED)
    return result.outcome


def node_with(*services: dict[str, Any]) -> ConformingNode:
    node = ConformingNode()
    node.services, node.health = [*services], 200
    return node


class Flapping(ConformingNode):
    """Conforms, but the status of one service changes with every request."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses_cycle = itertools.cycle(["Up", "Down", "Initializing", "Down"])

    def endpoint(self, request: Request) -> Response:
        self.services[0] = service("db", next(self.statuses_cycle))
        return super().endpoint(request)


class ChangesOnce(ConformingNode):
    """Healthy in the list, unhealthy in the next request."""

    def __init__(self) -> None:
        super().__init__()
        self.services, self.health = [service("db", "Up")], 200
        self._lists = 0

    def endpoint(self, request: Request) -> Response:
        if request.path == "/svc/node/services":
            self._lists += 1
        if self._lists == 4:
            self.services = [service("db", "Down")]
            self.health = 503
        return super().endpoint(request)


class DropsAService(ConformingNode):
    """Deregisters a service between the list and its health."""

    def endpoint(self, request: Request) -> Response:
        reply = super().endpoint(request)
        if request.path == "/svc/node/services":
            self.services = [one for one in self.services if one["id"] != "indexer"]
        return reply


@pytest.mark.parametrize("node", [Flapping, ChangesOnce, DropsAService])
def test_a_change_between_two_requests_is_not_a_finding(node: type[ConformingNode]) -> None:
    assert report_of(node()).failed() == []


class MostlyWrong(ConformingNode):
    """The health of a service that is Down is 200 in two of three responses."""

    def __init__(self) -> None:
        super().__init__()
        self._codes = itertools.cycle([200, 200, 503])

    def endpoint(self, request: Request) -> Response:
        reply = super().endpoint(request)
        if request.is_service_health and reply.code == CODES["Down"]:
            return Response(code=next(self._codes), headers=reply.headers)
        return reply


def test_a_mismatch_in_most_rounds_is_a_finding() -> None:
    assert "service-health-agrees" in [result.check.name for result in report_of(MostlyWrong()).failed()]


class OmitsStatuses(ConformingNode):
    """Omits the optional status, and is 200 while services are not healthy."""

    def __init__(self) -> None:
        super().__init__()
        self.health = 200

    def endpoint(self, request: Request) -> Response:
        reply = super().endpoint(request)
        if request.path != "/svc/node/services":
            return reply
        bare = [{name: one[name] for name in ("id", "name", "description")} for one in self.services]
        return with_json(reply, {"services": bare})


def test_without_statuses_in_the_list_the_health_of_services_is_requested() -> None:
    report = report_of(OmitsStatuses())
    failed = {result.check.name: result for result in report.failed()}
    assert set(failed) == {"services-status-present", "health-reflects-services"}
    (finding,) = failed["health-reflects-services"].findings
    assert re.findall(r'200|"\w+"|206|503', finding.actual) == ["200", '"indexer"', "206", '"storage"', "503"]
    assert outcome(report, "service-health-agrees") is CheckOutcome.SKIPPED


def test_a_node_without_services_conforms_and_the_report_has_a_remark() -> None:
    report = report_of(node_with())
    assert report.failed() == []
    assert len(report.remarks) == 1
    assert outcome(report, "service-health-agrees") is CheckOutcome.SKIPPED
    assert outcome(report, "version-unsupported-on-service-health") is CheckOutcome.SKIPPED
    assert outcome(report, "version-unsupported-on-health") is CheckOutcome.PASSED


def test_of_a_long_list_only_the_first_services_are_requested() -> None:
    node = ConformingNode()
    node.services += [service(f"s-{number}", "Up") for number in range(MAX_SERVICES)]
    report, server = run_in_memory(node)
    requested = {request.path for request in server.requests if request.is_service_health and not request.query}
    assert report.failed() == []
    assert len(requested) == 101  # and one unknown id


def test_other_methods_are_sent_to_the_four_endpoints_only_and_not_at_all_on_request() -> None:
    report, server = run_in_memory(ConformingNode(), other_methods=False)
    assert {request.method for request in server.requests} == {"GET", "HEAD"}
    assert outcome(report, "methods-refused") is CheckOutcome.SKIPPED
    assert report.conforms()
    _, server = run_in_memory(ConformingNode())
    others = {request for request in server.requests if request.method not in ("GET", "HEAD")}
    assert {request.method for request in others} == {"POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
    assert {request.path for request in others} == {
        "/svc/node",
        "/svc/node/health",
        "/svc/node/services",
        "/svc/node/services/db/health",
    }


# ---- encoded ids


class DecodesNothing(ConformingNode):
    """Does not decode ids, and answers an unknown id like a service with `status`."""

    def __init__(self, status: str, odd_status: str) -> None:
        super().__init__()
        self.status = status
        self.services[-1] = service("a/b c%", odd_status)

    def status_of(self, segment: str) -> str | None:
        statuses: dict[str, str] = {one["id"]: one["status"] for one in self.services}
        return statuses.get(segment, self.status)


@pytest.mark.parametrize(("status", "other"), [("Down", "Up"), ("Up", "Down"), ("Initializing", "Up")])
def test_an_encoded_id_answered_like_an_unknown_one_is_a_finding_if_its_status_differs(status: str, other: str) -> None:
    skipped = encoded_id_result(DecodesNothing(status, odd_status=status))
    assert skipped.outcome is CheckOutcome.SKIPPED
    assert str(CODES[status]) in skipped.skip_reason
    assert skipped.skip_reason.split().count(other) == 1, "the status to set"
    (finding,) = encoded_id_result(DecodesNothing(status, odd_status=other)).findings
    assert finding.expected.startswith(str(CODES[other]))
    assert finding.actual.startswith(str(CODES[status]))


def encoded_id_result(node: ConformingNode) -> Result:
    (result,) = (result for result in report_of(node).results if result.check.name == "service-id-encoded")
    return result


class DecodesOnlyItsOddId(DecodesNothing):
    def status_of(self, segment: str) -> str | None:
        return ConformingNode.status_of(self, segment) or self.status


def test_an_encoded_id_answered_unlike_an_unknown_one_passes() -> None:
    assert encoded_id_result(DecodesOnlyItsOddId("Down", odd_status="Up")).outcome is CheckOutcome.PASSED


class AnswersAlways200(ConformingNode):
    def status_of(self, segment: str) -> str | None:
        return "Up"


def test_if_every_id_gets_the_same_response_encoded_ids_are_skipped() -> None:
    node = AnswersAlways200()
    node.services[-1] = service("a/b c%", "Down")
    assert encoded_id_result(node).outcome is CheckOutcome.SKIPPED


# ---- many findings


def describing_nothing(count: int) -> ConformingNode:
    return node_with(*({"id": f"s-{number}", "name": "", "status": "Up"} for number in range(count)))


@pytest.mark.parametrize(
    ("count", "shown", "more"),
    [
        (MAX_FINDINGS, MAX_FINDINGS, 0),
        (MAX_FINDINGS + 1, MAX_FINDINGS, 1),
        (MAX_FINDINGS + MAX_COUNTED_FINDINGS + 1, MAX_FINDINGS, MAX_COUNTED_FINDINGS),
    ],
)
def test_findings_beyond_the_limit_are_counted(count: int, shown: int, more: int) -> None:
    (failed,) = report_of(describing_nothing(count)).failed()
    assert (failed.check.name, len(failed.findings), failed.more_findings) == ("services-fields", shown, more)
    assert bool([text for name, text in result_details(failed) if name == "more"]) is bool(more)


# ---- remarks


class TwoWorkers(ConformingNode):
    """Two processes behind one port, each with a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._workers = itertools.cycle(["Up", "Down"])

    def endpoint(self, request: Request) -> Response:
        if request.path == "/svc/node/services":
            self.services[0] = service("db", next(self._workers))
        return super().endpoint(request)


def test_responses_that_alternate_are_a_remark() -> None:
    (remark,) = report_of(TwoWorkers()).remarks
    assert " /node/services " in remark


class ChangesDuringTheRun(ConformingNode):
    """The list changes once and stays."""

    def __init__(self) -> None:
        super().__init__()
        self._responses = itertools.count()

    def endpoint(self, request: Request) -> Response:
        if request.path == "/svc/node/services" and next(self._responses) == 4:
            self.services.append(service("cache", "Up"))
        return super().endpoint(request)


def test_a_single_change_is_not_a_remark() -> None:
    assert report_of(ChangesDuringTheRun()).remarks == ()


class OlderDraft(ConformingNode):
    """Has /node/version and /node/spec-version instead of /node."""

    def has(self, path: str) -> bool:
        return path != "/svc/node" and super().has(path)


def test_a_node_without_identity_may_be_of_an_older_draft() -> None:
    report = report_of(OlderDraft())
    assert [result.check.name for result in report.failed()] == ["identity-answers"]
    assert len(report.remarks) == 1
