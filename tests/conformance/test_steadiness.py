"""A node whose services come and go while it is judged is not blamed for it, and one that lies is."""

from __future__ import annotations

import itertools
import threading

import pytest

from svcnode.conformance.report import explained
from svcnode.conformance.run import MAX_FINDINGS, MAX_MORE, Outcome, Report, judge
from tests.conformance.right import CODES, Asked, NodeServer, Reply, RightNode, service, with_json


def judged(node: RightNode) -> Report:
    with NodeServer(node.answer) as server:
        return judge(server.url, timeout_s=10.0)


def outcome(report: Report, name: str) -> tuple[Outcome, str]:
    (result,) = (result for result in report.results if result.check.name == name)
    return result.outcome, result.why


class Flapping(RightNode):
    """Honest, but one service changes with every request that has to do with its status."""

    def __init__(self) -> None:
        super().__init__()
        self.turning = itertools.cycle(["Up", "Down", "Initializing", "Down"])
        self._lock = threading.Lock()

    def endpoint(self, asked: Asked) -> Reply:
        with self._lock:
            self.services[0] = service("db", next(self.turning))
            return super().endpoint(asked)


@pytest.mark.parametrize("turns", range(4))
def test_a_service_that_never_holds_still_is_not_held_against_the_node(turns: int) -> None:
    """Wherever in its turns it is when the first question comes."""
    node = Flapping()
    for _ in range(turns):
        next(node.turning)
    assert [result.check.name for result in judged(node).failed()] == []


class ChangesOnce(RightNode):
    """Healthy when the list is read, and not any more when its health is."""

    def __init__(self) -> None:
        super().__init__()
        self.services = [service("db", "Up")]
        self.health = 200
        self._lists = 0

    def endpoint(self, asked: Asked) -> Reply:
        if asked.path == "/svc/node/services":
            self._lists += 1
        if self._lists == 4:
            self.services = [service("db", "Down")]
            self.health = 503
        return super().endpoint(asked)


def test_a_change_between_two_reads_is_not_held_against_the_node() -> None:
    assert judged(ChangesOnce()).failed() == []


class ForgetsAService(RightNode):
    """Deregisters one between the list and its health."""

    def endpoint(self, asked: Asked) -> Reply:
        reply = super().endpoint(asked)
        if asked.path == "/svc/node/services":
            self.services = [one for one in self.services if one["id"] != "indexer"]
        return reply


def test_a_service_that_is_gone_by_the_time_it_is_asked_for_is_not_missed() -> None:
    assert judged(ForgetsAService()).failed() == []


class LiesMostOfTheTime(RightNode):
    """The health of a service that is down says 200 in two of three answers."""

    def __init__(self) -> None:
        super().__init__()
        self._codes = itertools.cycle([200, 200, 503])
        self._turning = threading.Lock()

    def endpoint(self, asked: Asked) -> Reply:
        reply = super().endpoint(asked)
        if asked.is_service_health and reply.code == CODES["Down"]:
            with self._turning:
                return Reply(code=next(self._codes), headers=reply.headers)
        return reply


def test_a_lie_that_is_told_most_of_the_time_is_a_lie() -> None:
    assert "service-health-agrees" in [result.check.name for result in judged(LiesMostOfTheTime()).failed()]


class SaysNothingOfStatuses(RightNode):
    """Leaves the status out, which it may, and is healthy beside services that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.health = 200

    def endpoint(self, asked: Asked) -> Reply:
        reply = super().endpoint(asked)
        if asked.path != "/svc/node/services":
            return reply
        bare = [{name: one[name] for name in ("id", "name", "description")} for one in self.services]
        return with_json(reply, {"services": bare})


def test_where_the_list_has_no_statuses_the_health_of_the_services_is_asked_for() -> None:
    report = judged(SaysNothingOfStatuses())
    failed = {result.check.name: result for result in report.failed()}
    assert set(failed) == {"services-status-present", "health-heeds-services"}
    (finding,) = failed["health-heeds-services"].findings
    assert finding.came == '200 with no body, beside "indexer" whose health is 206 and "storage" whose health is 503'
    assert outcome(report, "service-health-agrees") == (
        Outcome.SKIPPED,
        "no service has a status in the list that holds still",
    )


class HasNoServices(RightNode):
    def __init__(self) -> None:
        super().__init__()
        self.services = []
        self.health = 200


def test_a_node_without_services_conforms_and_says_what_could_not_be_judged() -> None:
    report = judged(HasNoServices())
    assert report.failed() == []
    assert report.remarks == ("No service is listed, so nothing about the health of services could be seen.",)
    assert outcome(report, "service-health-agrees") == (Outcome.SKIPPED, "no service is registered")
    assert outcome(report, "version-unsupported-on-service-health") == (
        Outcome.SKIPPED,
        "no service is registered whose health could be asked for",
    )
    assert outcome(report, "version-unsupported-on-health") == (Outcome.PASSED, "")


class HasManyServices(RightNode):
    def __init__(self) -> None:
        super().__init__()
        self.services += [service(f"s-{number}", "Up") for number in range(400)]


def test_of_a_long_list_only_the_first_hundred_are_asked_for() -> None:
    node = HasManyServices()
    with NodeServer(node.answer) as server:
        report = judge(server.url, timeout_s=10.0)
        asked = {request.path for request in server.requests if request.is_service_health and not request.query}
    assert report.failed() == []
    assert len(asked) == 101  # and the one that does not exist


def test_nothing_but_get_and_head_is_sent_when_told_so() -> None:
    node = RightNode()
    with NodeServer(node.answer) as server:
        report = judge(server.url, timeout_s=10.0, other_methods=False)
        methods = {request.method for request in server.requests}
    assert methods == {"GET", "HEAD"}
    assert outcome(report, "methods-refused") == (Outcome.SKIPPED, "other methods were not to be sent")
    assert report.conforms()


def test_other_methods_are_sent_to_the_four_endpoints_alone() -> None:
    node = RightNode()
    with NodeServer(node.answer) as server:
        judge(server.url, timeout_s=10.0)
        others = {request for request in server.requests if request.method not in ("GET", "HEAD")}
    assert {request.method for request in others} == {"POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
    assert {request.path for request in others} == {
        "/svc/node",
        "/svc/node/health",
        "/svc/node/services",
        "/svc/node/services/db/health",
    }


# ---- ids that nobody can tell from others


class DecodesNothing(RightNode):
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
    report = judged(DecodesNothing(status, odd_status=status))
    assert outcome(report, "service-id-encoded") == (
        Outcome.SKIPPED,
        f"{why}: make that service {other} to have it judged",
    )


@pytest.mark.parametrize(("status", "other"), OTHERS)
def test_told_so_and_done_it_is_judged(status: str, other: str) -> None:
    report = judged(DecodesNothing(status, odd_status=other))
    (failed,) = (result for result in report.failed() if result.check.name == "service-id-encoded")
    (finding,) = failed.findings
    assert finding.expected == f'{CODES[other]}, since the list says that "a/b c%" is {other}'
    assert finding.came == f"{CODES[status]} with no body, as for an id that is not registered"


class KnowsItsOddId(DecodesNothing):
    def status_of(self, segment: str) -> str | None:
        return RightNode.status_of(self, segment) or self.status


def test_an_odd_id_that_is_answered_otherwise_than_an_unknown_one_is_judged() -> None:
    assert outcome(judged(KnowsItsOddId("Down", odd_status="Up")), "service-id-encoded") == (Outcome.PASSED, "")


class AnswersAlways200(RightNode):
    def status_of(self, segment: str) -> str | None:
        return "Up"


def test_where_every_id_gets_the_same_answer_the_odd_ones_are_not_to_blame() -> None:
    node = AnswersAlways200()
    node.services[-1] = service("a/b c%", "Down")
    why = 'an id that is not registered gets the same answer as "a/b c%" (200)'
    assert outcome(judged(node), "service-id-encoded") == (Outcome.SKIPPED, why)


# ---- more findings than are shown


class DescribesNothing(RightNode):
    def __init__(self, count: int) -> None:
        super().__init__()
        self.services = [{"id": f"s-{number}", "name": "", "status": "Up"} for number in range(count)]
        self.health = 200


@pytest.mark.parametrize(
    ("count", "shown", "more"),
    [(3, 3, 0), (MAX_FINDINGS, MAX_FINDINGS, 0), (40, MAX_FINDINGS, 30), (5000, MAX_FINDINGS, MAX_MORE)],
)
def test_findings_beyond_those_that_are_shown_are_counted(count: int, shown: int, more: int) -> None:
    (failed,) = judged(DescribesNothing(count)).failed()
    assert (failed.check.name, len(failed.findings), failed.more) == ("services-fields", shown, more)
    told = [text for word, text in explained(failed) if word == "more"]
    assert told == {0: [], 30: ["and 30 more like these"]}.get(more, ["and at least 1000 more like these"])
