"""A node whose services come and go while it is judged is not blamed for it, and one that lies is."""

from __future__ import annotations

import itertools
import threading

from svcnode.conformance.run import Outcome, Report, judge
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
        self._statuses = itertools.cycle(["Up", "Down", "Initializing", "Down"])
        self._turning = threading.Lock()

    def endpoint(self, asked: Asked) -> Reply:
        with self._turning:
            self.services[0] = service("db", next(self._statuses))
            return super().endpoint(asked)


def test_a_service_that_never_holds_still_is_not_held_against_the_node() -> None:
    report = judged(Flapping())
    assert [result.check.name for result in report.failed()] == []


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
