"""Statuses may change during a run: only persistent mismatches are findings."""

from __future__ import annotations

import itertools
import re
import threading

import pytest

from svcnode.conformance.report import result_details
from svcnode.conformance.run import MAX_COUNTED_FINDINGS, MAX_FINDINGS, CheckOutcome, Report, check_node
from tests.conformance.conforming_node import CODES, ConformingNode, NodeServer, Request, Response, service, with_json


def run_conformance(node: ConformingNode) -> Report:
    with NodeServer(node.respond) as server:
        return check_node(server.url, timeout_s=10.0)


def outcome(report: Report, name: str) -> CheckOutcome:
    (result,) = (result for result in report.results if result.check.name == name)
    assert bool(result.skip_reason) is (result.outcome is CheckOutcome.SKIPPED)
    return result.outcome


class Flapping(ConformingNode):
    """Conforms, but the status of one service changes with every request."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses_cycle = itertools.cycle(["Up", "Down", "Initializing", "Down"])
        self._lock = threading.Lock()

    def endpoint(self, request: Request) -> Response:
        with self._lock:
            self.services[0] = service("db", next(self.statuses_cycle))
            return super().endpoint(request)


@pytest.mark.parametrize("first_status", range(4))
def test_a_status_that_always_changes_is_not_a_finding(first_status: int) -> None:
    node = Flapping()
    for _ in range(first_status):
        next(node.statuses_cycle)
    assert [result.check.name for result in run_conformance(node).failed()] == []


class ChangesOnce(ConformingNode):
    """Healthy in the list, unhealthy in the next request."""

    def __init__(self) -> None:
        super().__init__()
        self.services = [service("db", "Up")]
        self.health = 200
        self._lists = 0

    def endpoint(self, request: Request) -> Response:
        if request.path == "/svc/node/services":
            self._lists += 1
        if self._lists == 4:
            self.services = [service("db", "Down")]
            self.health = 503
        return super().endpoint(request)


def test_a_change_between_two_requests_is_not_a_finding() -> None:
    assert run_conformance(ChangesOnce()).failed() == []


class DropsAService(ConformingNode):
    """Deregisters a service between the list and its health."""

    def endpoint(self, request: Request) -> Response:
        reply = super().endpoint(request)
        if request.path == "/svc/node/services":
            self.services = [one for one in self.services if one["id"] != "indexer"]
        return reply


def test_a_service_deregistered_before_its_health_is_requested_is_not_a_finding() -> None:
    assert run_conformance(DropsAService()).failed() == []


class MostlyWrong(ConformingNode):
    """The health of a service that is Down is 200 in two of three responses."""

    def __init__(self) -> None:
        super().__init__()
        self._codes = itertools.cycle([200, 200, 503])
        self._cycle = threading.Lock()

    def endpoint(self, request: Request) -> Response:
        reply = super().endpoint(request)
        if request.is_service_health and reply.code == CODES["Down"]:
            with self._cycle:
                return Response(code=next(self._codes), headers=reply.headers)
        return reply


def test_a_mismatch_in_most_rounds_is_a_finding() -> None:
    assert "service-health-agrees" in [result.check.name for result in run_conformance(MostlyWrong()).failed()]


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
    report = run_conformance(OmitsStatuses())
    failed = {result.check.name: result for result in report.failed()}
    assert set(failed) == {"services-status-present", "health-reflects-services"}
    (finding,) = failed["health-reflects-services"].findings
    assert re.findall(r'200|"\w+"|206|503', finding.actual) == ["200", '"indexer"', "206", '"storage"', "503"]
    assert outcome(report, "service-health-agrees") is CheckOutcome.SKIPPED


class HasNoServices(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.services = []
        self.health = 200


def test_a_node_without_services_conforms_and_the_report_has_a_remark() -> None:
    report = run_conformance(HasNoServices())
    assert report.failed() == []
    assert len(report.remarks) == 1
    assert outcome(report, "service-health-agrees") is CheckOutcome.SKIPPED
    assert outcome(report, "version-unsupported-on-service-health") is CheckOutcome.SKIPPED
    assert outcome(report, "version-unsupported-on-health") is CheckOutcome.PASSED


class HasManyServices(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.services += [service(f"s-{number}", "Up") for number in range(400)]


def test_of_a_long_list_only_the_first_hundred_services_are_requested() -> None:
    node = HasManyServices()
    with NodeServer(node.respond) as server:
        report = check_node(server.url, timeout_s=10.0)
        requested = {request.path for request in server.requests if request.is_service_health and not request.query}
    assert report.failed() == []
    assert len(requested) == 101  # and one unknown id


def test_without_other_methods_only_get_and_head_are_sent() -> None:
    node = ConformingNode()
    with NodeServer(node.respond) as server:
        report = check_node(server.url, timeout_s=10.0, other_methods=False)
        methods = {request.method for request in server.requests}
    assert methods == {"GET", "HEAD"}
    assert outcome(report, "methods-refused") is CheckOutcome.SKIPPED
    assert report.conforms()


def test_other_methods_are_sent_to_the_four_endpoints_only() -> None:
    node = ConformingNode()
    with NodeServer(node.respond) as server:
        check_node(server.url, timeout_s=10.0)
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


OTHERS = [("Down", "Up"), ("Up", "Down"), ("Initializing", "Up")]


@pytest.mark.parametrize(("status", "other"), OTHERS)
def test_an_encoded_id_answered_like_an_unknown_one_is_skipped(status: str, other: str) -> None:
    report = run_conformance(DecodesNothing(status, odd_status=status))
    (result,) = (result for result in report.results if result.check.name == "service-id-encoded")
    assert result.outcome is CheckOutcome.SKIPPED
    assert str(CODES[status]) in result.skip_reason
    assert result.skip_reason.split().count(other) == 1, "the status to set"


@pytest.mark.parametrize(("status", "other"), OTHERS)
def test_an_encoded_id_with_another_status_is_a_finding(status: str, other: str) -> None:
    report = run_conformance(DecodesNothing(status, odd_status=other))
    (failed,) = (result for result in report.failed() if result.check.name == "service-id-encoded")
    (finding,) = failed.findings
    assert finding.expected.startswith(str(CODES[other]))
    assert finding.actual.startswith(str(CODES[status]))


class DecodesOnlyItsOddId(DecodesNothing):
    def status_of(self, segment: str) -> str | None:
        return ConformingNode.status_of(self, segment) or self.status


def test_an_encoded_id_answered_unlike_an_unknown_one_passes() -> None:
    report = run_conformance(DecodesOnlyItsOddId("Down", odd_status="Up"))
    assert outcome(report, "service-id-encoded") is CheckOutcome.PASSED


class AnswersAlways200(ConformingNode):
    def status_of(self, segment: str) -> str | None:
        return "Up"


def test_if_every_id_gets_the_same_response_encoded_ids_are_skipped() -> None:
    node = AnswersAlways200()
    node.services[-1] = service("a/b c%", "Down")
    assert outcome(run_conformance(node), "service-id-encoded") is CheckOutcome.SKIPPED


# ---- many findings


class DescribesNothing(ConformingNode):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.services = [{"id": f"s-{number}", "name": "", "status": "Up"} for number in range(count)]
        self.health = 200


@pytest.mark.parametrize(
    ("count", "shown", "more"),
    [(3, 3, 0), (MAX_FINDINGS, MAX_FINDINGS, 0), (40, MAX_FINDINGS, 30), (5000, MAX_FINDINGS, MAX_COUNTED_FINDINGS)],
)
def test_findings_beyond_the_limit_are_counted(count: int, shown: int, more: int) -> None:
    (failed,) = run_conformance(DescribesNothing(count)).failed()
    assert (failed.check.name, len(failed.findings), failed.more_findings) == ("services-fields", shown, more)
    assert [text for name, text in result_details(failed) if name == "more"] == [] or more


# ---- remarks


class TwoWorkers(ConformingNode):
    """Two processes behind one port, each with a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._workers = itertools.cycle(["Up", "Down"])
        self._lock = threading.Lock()

    def endpoint(self, request: Request) -> Response:
        with self._lock:
            if request.path == "/svc/node/services":
                self.services[0] = service("db", next(self._workers))
            return super().endpoint(request)


def test_responses_that_alternate_are_a_remark() -> None:
    (remark,) = run_conformance(TwoWorkers()).remarks
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
    assert run_conformance(ChangesDuringTheRun()).remarks == ()


class OlderDraft(ConformingNode):
    """Has /node/version and /node/spec-version instead of /node."""

    def has(self, path: str) -> bool:
        return path != "/svc/node" and super().has(path)


def test_a_node_without_identity_may_be_of_an_older_draft() -> None:
    report = run_conformance(OlderDraft())
    assert [result.check.name for result in report.failed()] == ["identity-answers"]
    assert len(report.remarks) == 1
