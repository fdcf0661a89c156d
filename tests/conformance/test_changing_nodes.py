"""A node whose services come and go while it is judged is not blamed for it, and one that lies is."""

from __future__ import annotations

import itertools
import threading

import pytest

from svcnode.conformance.report import result_details
from svcnode.conformance.run import MAX_COUNTED_FINDINGS, MAX_FINDINGS, CheckOutcome, Report, check_node
from tests.conformance.conforming_node import CODES, ConformingNode, NodeServer, Request, Response, service, with_json


def run_conformance(node: ConformingNode) -> Report:
    with NodeServer(node.respond) as server:
        return check_node(server.url, timeout_s=10.0)


def outcome(report: Report, name: str) -> tuple[CheckOutcome, str]:
    (result,) = (result for result in report.results if result.check.name == name)
    return result.outcome, result.skip_reason


class Flapping(ConformingNode):
    """Honest, but one service changes with every request that has to do with its status."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses_cycle = itertools.cycle(["Up", "Down", "Initializing", "Down"])
        self._lock = threading.Lock()

    def endpoint(self, asked: Request) -> Response:
        with self._lock:
            self.services[0] = service("db", next(self.statuses_cycle))
            return super().endpoint(asked)


@pytest.mark.parametrize("turns", range(4))
def test_a_service_that_never_holds_still_is_not_held_against_the_node(turns: int) -> None:
    """Wherever in its turns it is when the first question comes."""
    node = Flapping()
    for _ in range(turns):
        next(node.statuses_cycle)
    assert [result.check.name for result in run_conformance(node).failed()] == []


class ChangesOnce(ConformingNode):
    """Healthy when the list is read, and not any more when its health is."""

    def __init__(self) -> None:
        super().__init__()
        self.services = [service("db", "Up")]
        self.health = 200
        self._lists = 0

    def endpoint(self, asked: Request) -> Response:
        if asked.path == "/svc/node/services":
            self._lists += 1
        if self._lists == 4:
            self.services = [service("db", "Down")]
            self.health = 503
        return super().endpoint(asked)


def test_a_change_between_two_reads_is_not_held_against_the_node() -> None:
    assert run_conformance(ChangesOnce()).failed() == []


class DropsAService(ConformingNode):
    """Deregisters one between the list and its health."""

    def endpoint(self, asked: Request) -> Response:
        reply = super().endpoint(asked)
        if asked.path == "/svc/node/services":
            self.services = [one for one in self.services if one["id"] != "indexer"]
        return reply


def test_a_service_that_is_gone_by_the_time_it_is_asked_for_is_not_missed() -> None:
    assert run_conformance(DropsAService()).failed() == []


class MostlyWrong(ConformingNode):
    """The health of a service that is down says 200 in two of three answers."""

    def __init__(self) -> None:
        super().__init__()
        self._codes = itertools.cycle([200, 200, 503])
        self._cycle = threading.Lock()

    def endpoint(self, asked: Request) -> Response:
        reply = super().endpoint(asked)
        if asked.is_service_health and reply.code == CODES["Down"]:
            with self._cycle:
                return Response(code=next(self._codes), headers=reply.headers)
        return reply


def test_a_lie_that_is_told_most_of_the_time_is_a_lie() -> None:
    assert "service-health-agrees" in [result.check.name for result in run_conformance(MostlyWrong()).failed()]


class OmitsStatuses(ConformingNode):
    """Leaves the status out, which it may, and is healthy beside services that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.health = 200

    def endpoint(self, asked: Request) -> Response:
        reply = super().endpoint(asked)
        if asked.path != "/svc/node/services":
            return reply
        bare = [{name: one[name] for name in ("id", "name", "description")} for one in self.services]
        return with_json(reply, {"services": bare})


def test_where_the_list_has_no_statuses_the_health_of_the_services_is_asked_for() -> None:
    report = run_conformance(OmitsStatuses())
    failed = {result.check.name: result for result in report.failed()}
    assert set(failed) == {"services-status-present", "health-reflects-services"}
    (finding,) = failed["health-reflects-services"].findings
    assert finding.actual == '200 with no body, beside "indexer" whose health is 206 and "storage" whose health is 503'
    assert outcome(report, "service-health-agrees") == (
        CheckOutcome.SKIPPED,
        "no service has a status in the list that holds still",
    )


class HasNoServices(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.services = []
        self.health = 200


def test_a_node_without_services_conforms_and_says_what_could_not_be_judged() -> None:
    report = run_conformance(HasNoServices())
    assert report.failed() == []
    assert report.remarks == ("No service is listed, so nothing about the health of services could be seen.",)
    assert outcome(report, "service-health-agrees") == (CheckOutcome.SKIPPED, "no service is registered")
    assert outcome(report, "version-unsupported-on-service-health") == (
        CheckOutcome.SKIPPED,
        "no service is registered whose health could be asked for",
    )
    assert outcome(report, "version-unsupported-on-health") == (CheckOutcome.PASSED, "")


class HasManyServices(ConformingNode):
    def __init__(self) -> None:
        super().__init__()
        self.services += [service(f"s-{number}", "Up") for number in range(400)]


def test_of_a_long_list_only_the_first_hundred_are_asked_for() -> None:
    node = HasManyServices()
    with NodeServer(node.respond) as server:
        report = check_node(server.url, timeout_s=10.0)
        asked = {request.path for request in server.requests if request.is_service_health and not request.query}
    assert report.failed() == []
    assert len(asked) == 101  # and the one that does not exist


def test_nothing_but_get_and_head_is_sent_when_told_so() -> None:
    node = ConformingNode()
    with NodeServer(node.respond) as server:
        report = check_node(server.url, timeout_s=10.0, other_methods=False)
        methods = {request.method for request in server.requests}
    assert methods == {"GET", "HEAD"}
    assert outcome(report, "methods-refused") == (CheckOutcome.SKIPPED, "other methods were not to be sent")
    assert report.conforms()


def test_other_methods_are_sent_to_the_four_endpoints_alone() -> None:
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


# ---- ids that nobody can tell from others


class DecodesNothing(ConformingNode):
    """Looks ids up as they stand in the path; what it does not find is to it like a service in this status."""

    def __init__(self, status: str, odd_status: str) -> None:
        super().__init__()
        self.status = status
        self.services[-1] = service("a/b c%", odd_status)

    def status_of(self, segment: str) -> str | None:
        statuses: dict[str, str] = {one["id"]: one["status"] for one in self.services}
        return statuses.get(segment, self.status)


OTHERS = [("Down", "Up"), ("Up", "Down"), ("Initializing", "Up")]


@pytest.mark.parametrize(("status", "other"), OTHERS)
def test_an_odd_id_that_is_answered_like_an_unknown_one_is_not_judged_and_said_how_to(status: str, other: str) -> None:
    why = f'an id that is not registered gets the same answer as "a/b c%" ({CODES[status]})'
    report = run_conformance(DecodesNothing(status, odd_status=status))
    assert outcome(report, "service-id-encoded") == (
        CheckOutcome.SKIPPED,
        f"{why}: make that service {other} to have it judged",
    )


@pytest.mark.parametrize(("status", "other"), OTHERS)
def test_told_so_and_done_it_is_judged(status: str, other: str) -> None:
    report = run_conformance(DecodesNothing(status, odd_status=other))
    (failed,) = (result for result in report.failed() if result.check.name == "service-id-encoded")
    (finding,) = failed.findings
    assert finding.expected == f'{CODES[other]}, since the list says that "a/b c%" is {other}'
    assert finding.actual == f"{CODES[status]} with no body, as for an id that is not registered"


class DecodesOnlyItsOddId(DecodesNothing):
    def status_of(self, segment: str) -> str | None:
        return ConformingNode.status_of(self, segment) or self.status


def test_an_odd_id_that_is_answered_otherwise_than_an_unknown_one_is_judged() -> None:
    assert outcome(run_conformance(DecodesOnlyItsOddId("Down", odd_status="Up")), "service-id-encoded") == (
        CheckOutcome.PASSED,
        "",
    )


class AnswersAlways200(ConformingNode):
    def status_of(self, segment: str) -> str | None:
        return "Up"


def test_where_every_id_gets_the_same_answer_the_odd_ones_are_not_to_blame() -> None:
    node = AnswersAlways200()
    node.services[-1] = service("a/b c%", "Down")
    why = 'an id that is not registered gets the same answer as "a/b c%" (200)'
    assert outcome(run_conformance(node), "service-id-encoded") == (CheckOutcome.SKIPPED, why)


# ---- more findings than are shown


class DescribesNothing(ConformingNode):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.services = [{"id": f"s-{number}", "name": "", "status": "Up"} for number in range(count)]
        self.health = 200


@pytest.mark.parametrize(
    ("count", "shown", "more"),
    [(3, 3, 0), (MAX_FINDINGS, MAX_FINDINGS, 0), (40, MAX_FINDINGS, 30), (5000, MAX_FINDINGS, MAX_COUNTED_FINDINGS)],
)
def test_findings_beyond_those_that_are_shown_are_counted(count: int, shown: int, more: int) -> None:
    (failed,) = run_conformance(DescribesNothing(count)).failed()
    assert (failed.check.name, len(failed.findings), failed.more_findings) == ("services-fields", shown, more)
    told = [text for word, text in result_details(failed) if word == "more"]
    assert told == {0: [], 30: ["and 30 more like these"]}.get(more, ["and at least 1000 more like these"])
