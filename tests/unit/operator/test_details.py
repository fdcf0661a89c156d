"""`/details` publishes state, reason, code and evidence of the services, without secrets."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from svcnode.api.spec import SERVICE_NOT_FOUND, Request
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Acknowledgement, Health, KnownBefore, Status, Verdict
from svcnode.core.redaction import register_secret
from svcnode.core.state_machine import initial_state
from svcnode.node.definition import define
from svcnode.notify import Deliveries
from svcnode.notify.heartbeat import HeartbeatResult
from svcnode.operator.details import all_details, details_of_one, node_details, services_details
from svcnode.probes.function import FunctionProbe
from svcnode.version import __version__
from tests.support.operator_context import OperatorHarness
from tests.support.real_time import in_real_time

READY = Verdict.ready()
REFUSED = Verdict.failed("connection refused: db:5432", code=ReasonCode.CONNECTION_REFUSED)

NODE_FIELDS = [
    *(
        "name",
        "version",
        "spec_version",
        "svcnode",
        "health",
        "health_reason",
        "health_summary",
        "starting",
        "draining",
        "issues",
    ),
    *("caveats", "maintenance", "planned_maintenance", "acknowledged"),
    *("started", "uptime_s", "last_event_id", "history_problem", "history_problem_code", "reload_problem", "alert"),
    *("notifications", "heartbeat", "sharing"),
]


@pytest.fixture
def harness() -> OperatorHarness:
    harness = OperatorHarness()
    harness.node.register(
        "db",
        name="Ledger",
        description="Holds the ledger",
        group="storage",
        tags=["eu"],
        runbook="https://wiki/db",
        slo="99.95%",
        probe="tcp://db:5432",
        impact="critical",
        max_latency="2s",
    )
    harness.node.register("indexer")
    return harness


def document(harness: OperatorHarness, query: str = "") -> Any:
    response = harness.request(all_details, query=query)
    assert response.code == 200
    assert dict(response.headers)["Content-Type"] == "application/json"
    return json.loads(response.body)


def test_an_acknowledgement_says_who_has_made_it_and_when(harness: OperatorHarness) -> None:
    made = Acknowledgement(Health.PARTIAL, 1_800_000_000.0, by="ops", reason="disk ordered")
    harness.node.acknowledgements.make(made, "db")
    harness.node.acknowledgements.make(made._replace(until_s=1_900_000_000.0))
    fields = {"at": "2027-01-15T08:00:00.000Z", "until": None, "by": "ops", "reason": "disk ordered"}
    assert harness.details("db")["acknowledged"] == {**fields, "text": made.text}
    assert harness.details("indexer")["acknowledged"] is None
    assert document(harness)["node"]["acknowledged"]["until"] == "2030-03-17T17:46:40.000Z"


def test_a_service_that_was_just_registered(harness: OperatorHarness) -> None:
    harness.clock.advance(0.5)
    expected: dict[str, Any] = {
        "id": "db",
        "name": "Ledger",
        "description": "Holds the ledger",
        "group": "storage",
        "tags": ["eu"],
        "runbook": "https://wiki/db",
        "slo": "99.95%",
        "depends_on": [],
        "causes": [],
        "impact": "critical",
        "maintenance": None,
        "planned_maintenance": None,
        "acknowledged": None,
        "kind": "tcp",
        "probe": "tcp://db:5432",
        "page": None,
        "status": "Initializing",
        "health": 206,
        "code": "no_evidence",
        "reason": initial_state(0.0).reason,
        "since": "2027-01-15T08:00:00.000Z",
        "since_s": 0.5,
        "since_before_restart": False,
        "before_restart": None,
        "first_failure": None,
        "counters": {"ready_in_a_row": 0, "failures_in_a_row": 0, "recent_failures": 0, "repeated_failures": 0},
        "unreliable": False,
        "policy": {
            "rise": 2,
            "fall": 3,
            "tolerance": "4/10",
            "window_s": 100.0,
            "outage_failures": 2,
            "start_period_s": 30.0,
            "stale_after_s": 33.0,
            "ttl_s": None,
            "grace_s": None,
            "run_schedule": None,
        },
        "schedule": {"interval_s": 10.0, "timeout_s": 3.0, "transition_interval_s": 2.0, "max_latency_s": 2.0},
        "checked_by": None,
        "lost": False,
        "observed": None,
        "evidence": None,
        "last_ready": None,
        "expires_in_s": None,
        "next_check_in_s": None,
        "registered_s": 0.5,
        "checks": {"ready": 0, "not_ready": 0, "failed": 0, "unknown": 0},
        "transitions": 0,
        "alert": None,
        "config_file": None,
        "options": {},
        "recent_checks": [],
    }
    details = harness.details("db")
    assert details == expected
    assert list(details) == list(expected), "the order is fixed, too"
    assert list(document(harness)["services"][0]) == list(expected)[:-3]
    assert list(document(harness)["node"]) == NODE_FIELDS


def test_what_was_known_before_the_restart_is_shown_until_a_check_confirms_it(harness: OperatorHarness) -> None:
    known = KnownBefore(Status.DOWN, harness.clock.now_s - 720.0, "refused", ReasonCode.CONNECTION_REFUSED)
    harness.node.remember({"db": known, "gone": known})
    details = harness.details("db")
    times = {"since": "2027-01-15T07:48:00.000Z", "since_s": 720.0}
    assert details["before_restart"] == {"status": "Down", "code": "connection_refused", "reason": "refused", **times}
    assert (details["status"], details["since_before_restart"]) == ("Initializing", False)
    harness.record("db", REFUSED)
    details = harness.details("db")
    assert (details["status"], details["since_before_restart"], details["before_restart"]) == ("Down", True, None)
    assert {key: details[key] for key in times} == times


def test_a_service_that_is_not_up_has_the_causes_that_are_not_up_either(harness: OperatorHarness) -> None:
    harness.node.register("api", depends_on=["storage", "gone"]).down("no ledger")
    harness.clock.advance(5)
    details = harness.details("api")
    assert details["depends_on"] == ["storage", "gone"]
    db = {"id": "db", "status": "Initializing", "since": "2027-01-15T08:00:00.000Z", "since_s": 5.0}
    assert details["causes"] == [db]
    harness.record("db", READY)
    assert harness.details("api")["causes"] == []
    harness.node.replace(define("api", depends_on=["indexer"]))
    harness.node.report("api", READY)
    assert harness.details("api")["causes"] == [], "it is Up itself"


def test_evidence_has_verdict_code_reason_time_and_duration(harness: OperatorHarness) -> None:
    harness.record("db", READY, interval_s=10, duration_s=0.0021)
    harness.record("db", REFUSED, interval_s=2, duration_s=0.0005)
    details = harness.details("db")
    assert details["status"] == "Up"
    assert details["counters"] == {
        "ready_in_a_row": 0,
        "failures_in_a_row": 1,
        "recent_failures": 1,
        "repeated_failures": 0,
    }
    assert details["first_failure"] == {"at": "2027-01-15T08:00:10.000Z", "age_s": 2.0}
    assert details["evidence"] == {
        "outcome": "failed",
        "code": "connection_refused",
        "reason": REFUSED.reason,
        "at": "2027-01-15T08:00:10.000Z",
        "age_s": 2.0,
        "duration_ms": 0.5,
    }
    assert details["last_ready"] == {"at": "2027-01-15T08:00:00.000Z", "age_s": 12.0}
    assert details["expires_in_s"] == 21.0
    assert details["checks"] == {"ready": 1, "not_ready": 0, "failed": 1, "unknown": 0}
    assert details["transitions"] == 1
    assert [(one["outcome"], one["code"], one["age_s"], one["status"]) for one in details["recent_checks"]] == [
        ("failed", "connection_refused", 2.0, "Up"),
        ("ready", "ok", 12.0, "Up"),
    ]


def test_an_unreliable_service_has_its_counts_and_at_most_twenty_attempts_the_latest_first(
    harness: OperatorHarness,
) -> None:
    harness.record("db", READY, *[REFUSED, REFUSED, READY] * 3, interval_s=2)
    details = harness.details("db")
    assert (details["status"], details["code"], details["unreliable"]) == ("Initializing", "unreliable", True)
    assert (details["counters"]["recent_failures"], details["counters"]["repeated_failures"]) == (6, 5)
    harness.record("db", *[READY] * 25, interval_s=1)
    ages = [one["age_s"] for one in harness.details("db")["recent_checks"]]
    assert ages == [float(age) for age in range(1, 21)]


def test_evidence_may_be_unknown_and_expires_at_the_moment_of_the_request(harness: OperatorHarness) -> None:
    harness.record("db", READY, Verdict.unknown("no files left"), interval_s=1)
    details = harness.details("db")
    assert (details["evidence"]["outcome"], details["last_ready"]["age_s"]) == ("unknown", 2.0)
    harness.clock.advance(38)
    details = harness.details("db")
    assert (details["status"], details["health"], details["code"]) == ("Initializing", 206, "stale")
    assert details["since_s"] == 7.0


def test_the_kind_of_a_service_decides_what_it_has(harness: OperatorHarness) -> None:
    harness.node.register("cache", probe=FunctionProbe(lambda: None))
    function = harness.details("cache")
    assert (function["kind"], function["probe"], function["schedule"]["interval_s"]) == ("function", None, 10.0)
    harness.record("indexer", Verdict.failed("out of disk"))
    reported = harness.details("indexer")
    assert (reported["kind"], reported["probe"], reported["schedule"]) == ("reported", None, None)
    assert (reported["status"], reported["reason"]) == ("Down", "out of disk")
    harness.node.register("fixed")
    harness.record("fixed", Verdict.ready("set in the configuration", code=ReasonCode.FIXED), interval_s=5)
    fixed = harness.details("fixed")
    assert (fixed["kind"], fixed["probe"], fixed["schedule"]) == ("fixed", None, None)
    assert (fixed["status"], fixed["code"]) == ("Up", "fixed")
    assert (fixed["evidence"], fixed["last_ready"], fixed["recent_checks"]) == (None, None, [])
    assert (sum(fixed["checks"].values()), fixed["transitions"]) == (0, 0)


def test_the_document_has_the_node_and_all_or_some_services(harness: OperatorHarness) -> None:
    harness.record("db", *[REFUSED] * 20, interval_s=2)
    result = document(harness)
    assert [service["id"] for service in result["services"]] == ["db", "indexer"]
    node = result["node"]
    assert (node["name"], node["version"], node["spec_version"]) == ("validator-7", "v1.4.2", "v0.0.1")
    assert (node["svcnode"], node["health"]) == (__version__, 503)
    assert "db" in node["health_reason"]
    assert (node["history_problem"], node["reload_problem"]) == (None, None)
    result = document(harness, "id=indexer&id=nothing&id=db&id=db")
    assert [service["id"] for service in result["services"]] == ["indexer", "db"]
    assert result["node"]["name"] == "validator-7"

    response = harness.request(details_of_one, "indexer")
    assert (response.code, dict(response.headers)["Cache-Control"]) == (200, "no-store")
    assert json.loads(response.body)["recent_checks"] == []
    assert harness.request(details_of_one, "nothing") is SERVICE_NOT_FOUND


@pytest.mark.parametrize(
    ("set_by_s", "started"),
    [(0.0021, "15T08:00:00"), (-1.0, "15T08:00:00"), (3600.0, "15T09:00:00"), (-86_400.0, "14T08:00:00")],
)
def test_the_start_time_changes_if_the_wall_clock_is_set_but_not_with_small_differences(
    set_by_s: float, started: str, harness: OperatorHarness
) -> None:
    harness.clock.advance(90.0)
    harness.wall.advance(set_by_s)
    node = node_details(harness.context)
    assert (node["started"], node["uptime_s"]) == (f"2027-01-{started}.000Z", 90.0)


def test_conditions_of_the_node_and_its_problems_are_published() -> None:
    harness = OperatorHarness(starting=True)
    harness.node.overrides.set_issue("no key")
    harness.node.overrides.drain()
    harness.history.problem, harness.history.problem_code = "the disk is full", "disk_full"
    harness.history.last_id = 17
    harness.process_stats.record_reload("services.db: what?")
    node = document(harness)["node"]
    assert (node["starting"], node["draining"], node["issues"]) == (True, True, ["no key"])
    assert "no key" in node["health_reason"]
    assert (node["history_problem_code"], node["last_event_id"]) == ("disk_full", 17)
    assert (node["history_problem"], node["reload_problem"]) == ("the disk is full", "services.db: what?")


@pytest.mark.parametrize("selection", ["", "id=db&"])
@pytest.mark.parametrize(("value", "is_wanted"), [("1", True), ("0", False), ("", False)])
def test_attempts_are_included_on_request(
    harness: OperatorHarness, selection: str, value: str, *, is_wanted: bool
) -> None:
    assert ("recent_checks" in document(harness, f"{selection}recent_checks={value}")["services"][0]) is is_wanted


@pytest.mark.parametrize("query", [b"", b"id=db"])
@in_real_time
async def test_requests_share_a_response_that_is_not_older_than_the_last_change(
    harness: OperatorHarness, query: bytes
) -> None:
    """A client that received an event, or had its report acknowledged, must not get an older health."""

    async def node() -> tuple[int, str | None]:
        response = await all_details(harness.context, request, "")
        if not query:
            assert await all_details(harness.context, request, "") is response
        found = json.loads(response.body)["node"]
        return found["health"], found["reload_problem"]

    request = Request("GET", b"/details", query)
    assert await node() == (206, None)
    harness.node.overrides.set_issue("no key")
    assert await node() == (503, None)
    for problem in ("services.db: what?", ""):
        harness.process_stats.record_reload(problem)
        assert await node() == (503, problem or None)


def test_secrets_are_redacted_everywhere(harness: OperatorHarness) -> None:
    register_secret("hunter2-hunter2")
    harness.node.register("pg", probe="tcp://db:1")
    harness.node.register("web", probe="http://me:hunter2-hunter2@db/?key=hunter2-hunter2")
    harness.record("web", Verdict.failed("no: hunter2-hunter2"))
    harness.record("pg", Verdict.unknown("no: hunter2-hunter2"))
    harness.node.overrides.set_issue("lost hunter2-hunter2")
    harness.process_stats.record_reload("bad: hunter2-hunter2")
    harness.history.problem = "bad: hunter2-hunter2"
    for query in ("", "recent_checks=1", "id=web&id=pg&recent_checks=1"):
        assert b"hunter2" not in harness.request(all_details, query=query).body
    assert b"hunter2" not in harness.request(details_of_one, "web").body
    assert harness.details("web")["probe"] == "http://me:***@db/?***"
    assert harness.details("web")["reason"] == "no: ***"


def test_a_lone_surrogate_in_a_reason_is_escaped_and_ages_are_never_negative(harness: OperatorHarness) -> None:
    harness.record("db", READY)
    harness.record("indexer", Verdict.failed("caf\udce9"))
    assert json.loads(harness.request(details_of_one, "indexer").body)["reason"] == "caf\\udce9"
    assert document(harness)["services"][1]["reason"] == "caf\\udce9"
    harness.clock.advance(-5.0)
    (details, _) = services_details(harness.context)
    assert details["since_s"] == details["registered_s"] == 0.0


def test_a_service_may_be_deregistered_during_iteration(harness: OperatorHarness) -> None:
    reading = services_details(harness.context, with_recent_checks=True)
    assert next(reading)["id"] == "db"
    harness.node.deregister("indexer")
    assert [service["id"] for service in reading] == ["indexer"]  # a snapshot from before
    assert list(services_details(harness.context, ["indexer"])) == []


def test_a_recovery_that_waits_for_the_resolve_delay_is_published(harness: OperatorHarness) -> None:
    harness.start_alerts()
    harness.record("db", READY)
    assert harness.details("db")["alert"] == {"state": "inactive", "notified_health": 200, "message_in_s": None}
    harness.record("db", *[REFUSED] * 3)
    assert harness.details("db")["alert"] == {"state": "pending", "notified_health": 200, "message_in_s": 5.0}
    harness.send_alerts(after_s=5.0)
    assert harness.details("db")["alert"] == {"state": "firing", "notified_health": 503, "message_in_s": None}
    harness.clock.advance(10.0)
    harness.record("db", *[READY] * 2)
    resolving = {"state": "resolving", "notified_health": 503, "message_in_s": 300.0}
    assert harness.details("db")["alert"] == resolving
    assert document(harness)["node"]["alert"] == resolving


def test_deliveries_to_each_target_are_published(harness: OperatorHarness) -> None:
    deliveries = Deliveries("https://hooks.example.com")
    harness.context.notify_status.deliveries.append(deliveries)
    deliveries.begin(0.0)
    deliveries.fail("HTTP status 500", "server_error", 0.0, retry_at_s=8.0)
    harness.clock.advance(2.0)
    time = {"at": "2027-01-15T08:00:00.000Z", "age_s": 2.0}
    assert document(harness)["node"]["notifications"] == [
        {
            "target": "https://hooks.example.com",
            "sender": None,
            "delivered": 0,
            "failed": 1,
            "last_attempt": time,
            "last_delivery": None,
            "failing": time,
            "failures_in_a_row": 1,
            "error": "HTTP status 500",
            "code": "server_error",
            "waiting": True,
            "waiting_since": time,
            "retry_in_s": 6.0,
        }
    ]


def test_the_replica_that_sends_to_a_target_is_published(harness: OperatorHarness) -> None:
    deliveries = Deliveries("https://hooks.example.com")
    deliveries.turn = cast("Any", SimpleNamespace(sender="host-2"))
    harness.context.notify_status.deliveries.append(deliveries)
    assert document(harness)["node"]["notifications"][0]["sender"] == "host-2"


def test_the_last_heartbeat_is_published_with_its_result(harness: OperatorHarness) -> None:
    assert document(harness)["node"]["heartbeat"] is None
    heartbeat = SimpleNamespace(name="https://hc.example.com", interval_s=60.0)
    sender = SimpleNamespace(heartbeat=heartbeat, result=None, reason="", sent_at_s=None)
    harness.context.notify_status.heartbeat = cast("Any", sender)
    shown = {"target": "https://hc.example.com", "interval_s": 60.0, "result": None, "reason": "", "last_sent_s": None}
    assert node_details(harness.context)["heartbeat"] == shown
    sender.result, sender.reason, sender.sent_at_s = HeartbeatResult.FAILED, "HTTP status 404", harness.clock.now_s
    harness.clock.advance(60.0)
    shown |= {"result": "failed", "reason": "HTTP status 404", "last_sent_s": 60.0}
    assert node_details(harness.context)["heartbeat"] == shown


def test_an_unknown_parameter_is_rejected_with_those_that_exist(harness: OperatorHarness) -> None:
    response = harness.request(all_details, query="recent=1")
    assert response.code == 400
    assert "id, recent_checks" in json.loads(response.body)["message"]
