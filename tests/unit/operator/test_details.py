"""`/details` publishes state, reason, code and evidence of the services, without secrets."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.api.spec import SERVICE_NOT_FOUND, Request
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome, Verdict
from svcnode.core.redaction import register_secret
from svcnode.core.state_machine import initial_state
from svcnode.operator.details import all_details, details_of_one, node_details, services_details
from svcnode.version import __version__
from tests.support.operator_context import OperatorHarness

if TYPE_CHECKING:
    from svcnode.api.spec import Response

READY = Verdict.ready()
REFUSED = Verdict.failed("connection refused: db:5432", code=ReasonCode.CONNECTION_REFUSED)

FIELDS = [
    *(
        "id",
        "name",
        "description",
        "group",
        "impact",
        "maintenance",
        "kind",
        "probe",
        "status",
        "health",
        "code",
        "reason",
    ),
    *(
        "since",
        "since_s",
        "first_failure",
        "counters",
        "unreliable",
        "policy",
        "schedule",
        "checked_by",
        "observed",
        "evidence",
        "last_ready",
        "expires_in_s",
        "next_check_in_s",
        "registered_s",
    ),
    *("checks", "transitions", "alert", "config_file", "options", "recent_checks"),
]
NODE_FIELDS = [
    *("name", "version", "spec_version", "svcnode", "health", "health_reason", "starting", "draining", "issues"),
    *("maintenance",),
    *("started", "uptime_s", "last_event_id", "history_problem", "history_problem_code", "reload_problem", "alert"),
    *("sharing",),
]


@pytest.fixture
def harness() -> OperatorHarness:
    harness = OperatorHarness()
    harness.node.register(
        "db",
        name="Ledger",
        description="Holds the ledger",
        group="storage",
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


# ---- one service


def test_a_service_that_was_just_registered(harness: OperatorHarness) -> None:
    harness.clock.advance(0.5)
    assert harness.details("db") == {
        "id": "db",
        "name": "Ledger",
        "description": "Holds the ledger",
        "group": "storage",
        "impact": "critical",
        "maintenance": None,
        "kind": "tcp",
        "probe": "tcp://db:5432",
        "status": "Initializing",
        "health": 206,
        "code": "no_evidence",
        "reason": initial_state(0.0).reason,
        "since": "2027-01-15T08:00:00.000Z",
        "since_s": 0.5,
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
        },
        "schedule": {"interval_s": 10.0, "timeout_s": 3.0, "transition_interval_s": 2.0, "max_latency_s": 2.0},
        "checked_by": None,
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


def test_the_order_of_the_fields_is_fixed(harness: OperatorHarness) -> None:
    assert list(harness.details("db")) == FIELDS
    assert list(document(harness)["services"][0]) == FIELDS[:-3]
    assert list(document(harness)["node"]) == NODE_FIELDS


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


def test_an_unreliable_service_has_its_counts(harness: OperatorHarness) -> None:
    harness.record("db", READY, *[REFUSED, REFUSED, READY] * 3, interval_s=2)
    details = harness.details("db")
    assert (details["status"], details["code"], details["unreliable"]) == ("Initializing", "unreliable", True)
    assert (details["counters"]["recent_failures"], details["counters"]["repeated_failures"]) == (6, 5)


def test_an_unknown_verdict_is_the_latest_evidence_as_well(harness: OperatorHarness) -> None:
    harness.record("db", READY, Verdict.unknown("no files left"), interval_s=1)
    details = harness.details("db")
    assert details["evidence"]["outcome"] == "unknown"
    assert details["last_ready"]["age_s"] == 2.0


def test_there_are_twenty_attempts_the_latest_first(harness: OperatorHarness) -> None:
    harness.record("db", *[READY] * 25, interval_s=1)
    ages = [one["age_s"] for one in harness.details("db")["recent_checks"]]
    assert ages == [float(age) for age in range(1, 21)]


def test_evidence_expires_at_the_moment_of_the_request(harness: OperatorHarness) -> None:
    harness.record("db", READY, interval_s=40)
    details = harness.details("db")
    assert (details["status"], details["health"]) == ("Initializing", 206)
    assert details["code"] == "stale"
    assert details["since_s"] == 7.0


def test_a_service_that_a_program_reports_for_has_no_schedule(harness: OperatorHarness) -> None:
    harness.record("indexer", Verdict.failed("out of disk"))
    details = harness.details("indexer")
    assert (details["kind"], details["probe"], details["schedule"]) == ("reported", None, None)
    assert (details["status"], details["reason"]) == ("Down", "out of disk")


def test_a_fixed_status_has_no_evidence_and_no_checks(harness: OperatorHarness) -> None:
    harness.record("indexer", Verdict.ready("set in the configuration", code=ReasonCode.FIXED), interval_s=5)
    details = harness.details("indexer")
    assert (details["kind"], details["probe"], details["schedule"]) == ("fixed", None, None)
    assert (details["status"], details["code"]) == ("Up", "fixed")
    assert (details["evidence"], details["last_ready"], details["recent_checks"]) == (None, None, [])
    assert (sum(details["checks"].values()), details["transitions"]) == (0, 0)


def test_a_function_probe_has_no_url(harness: OperatorHarness) -> None:
    harness.node.check("cache")(lambda: None)
    details = harness.details("cache")
    assert (details["kind"], details["probe"]) == ("function", None)
    assert details["schedule"]["interval_s"] == 10.0


def test_an_unknown_id_is_not_found(harness: OperatorHarness) -> None:
    assert harness.request(details_of_one, "nothing") is SERVICE_NOT_FOUND


def test_one_service_is_returned_as_json(harness: OperatorHarness) -> None:
    response = harness.request(details_of_one, "db")
    assert response.code == 200
    assert json.loads(response.body)["recent_checks"] == []
    assert dict(response.headers)["Cache-Control"] == "no-store"


# ---- all of them


def test_the_document_has_the_node_and_all_services(harness: OperatorHarness) -> None:
    harness.record("db", *[REFUSED] * 20, interval_s=2)
    result = document(harness)
    assert [service["id"] for service in result["services"]] == ["db", "indexer"]
    node = result["node"]
    assert (node["name"], node["version"], node["spec_version"]) == ("validator-7", "v1.4.2", "v0.0.1")
    assert node["svcnode"] == __version__
    assert node["health"] == 503
    assert "db" in node["health_reason"]
    assert (node["history_problem"], node["reload_problem"]) == (None, None)


@pytest.mark.parametrize("jitter_s", [0.0, 0.0021, -1.0])
def test_the_start_time_does_not_change_with_small_clock_differences(jitter_s: float, harness: OperatorHarness) -> None:
    harness.clock.advance(90.0)
    harness.wall.advance(jitter_s)
    node = node_details(harness.context)
    assert (node["started"], node["uptime_s"]) == ("2027-01-15T08:00:00.000Z", 90.0)


@pytest.mark.parametrize(
    ("set_by_s", "started"), [(3600.0, "2027-01-15T09:00:00.000Z"), (-86_400.0, "2027-01-14T08:00:00.000Z")]
)
def test_setting_the_wall_clock_changes_the_start_time_but_not_the_uptime(
    set_by_s: float, started: str, harness: OperatorHarness
) -> None:
    harness.clock.advance(90.0)
    harness.wall.advance(set_by_s)
    node = node_details(harness.context)
    assert (node["started"], node["uptime_s"]) == (started, 90.0)


def test_conditions_of_the_node_are_published() -> None:
    harness = OperatorHarness(starting=True)
    harness.node.set_issue("no key")
    harness.node.drain()
    node = document(harness)["node"]
    assert (node["starting"], node["draining"], node["issues"]) == (True, True, ["no key"])
    assert "no key" in node["health_reason"]


def test_problems_of_history_and_reload_are_published(harness: OperatorHarness) -> None:
    harness.history.problem, harness.history.problem_code = "the disk is full", "disk_full"
    harness.process_stats.record_reload("services.db: what?")
    node = document(harness)["node"]
    assert node["history_problem_code"] == "disk_full"
    assert (node["history_problem"], node["reload_problem"]) == ("the disk is full", "services.db: what?")


@pytest.mark.parametrize("query", [b"", b"id=db"])
def test_a_failed_reload_is_published_at_once(harness: OperatorHarness, query: bytes) -> None:
    async def scenario() -> list[str | None]:
        request = Request("GET", b"/details", query)
        result = [await all_details(harness.context, request, "")]
        for problem in ("services.db: what?", ""):
            harness.process_stats.record_reload(problem)
            result.append(await all_details(harness.context, request, ""))
        return [json.loads(response.body)["node"]["reload_problem"] for response in result]

    assert asyncio.run(scenario()) == [None, "services.db: what?", None]


def test_the_id_of_the_last_event_is_published(harness: OperatorHarness) -> None:
    harness.history.last_id = 17
    assert document(harness)["node"]["last_event_id"] == 17


def test_services_can_be_selected_by_id(harness: OperatorHarness) -> None:
    result = document(harness, "id=indexer&id=nothing&id=db&id=db")
    assert [service["id"] for service in result["services"]] == ["indexer", "db"]
    assert result["node"]["name"] == "validator-7"


@pytest.mark.parametrize("selection", ["", "id=db&"])
@pytest.mark.parametrize(("value", "is_wanted"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_attempts_are_included_on_request(
    harness: OperatorHarness, selection: str, value: str, *, is_wanted: bool
) -> None:
    assert ("recent_checks" in document(harness, f"{selection}recent_checks={value}")["services"][0]) is is_wanted


def test_a_node_without_services_has_none() -> None:
    assert document(OperatorHarness())["services"] == []


@pytest.mark.parametrize("query", [b"", b"id=db"])
def test_a_response_is_not_older_than_the_last_change(harness: OperatorHarness, query: bytes) -> None:
    """A client that received an event, or had its report acknowledged, must not get an older health."""

    async def scenario() -> list[int]:
        request = Request("GET", b"/details", query)
        result = [await all_details(harness.context, request, "")]
        harness.node.set_issue("no key")
        result.append(await all_details(harness.context, request, ""))
        return [json.loads(response.body)["node"]["health"] for response in result]

    assert asyncio.run(scenario()) == [206, 503]


def test_requests_within_a_second_share_one_response(harness: OperatorHarness) -> None:
    async def scenario() -> tuple[Response, Response]:
        request = Request("GET", b"/details")
        return await all_details(harness.context, request, ""), await all_details(harness.context, request, "")

    first, second = asyncio.run(scenario())
    assert first is second


# ---- secrets, odd text and concurrency


def test_secrets_are_redacted_everywhere(harness: OperatorHarness) -> None:
    register_secret("hunter2-hunter2")
    harness.node.register("pg", probe="tcp://db:1")
    harness.node.register("web", probe="http://me:hunter2-hunter2@db/?key=hunter2-hunter2")
    harness.record("web", Verdict.failed("no: hunter2-hunter2"))
    harness.record("pg", Verdict.unknown("no: hunter2-hunter2"))
    harness.node.set_issue("lost hunter2-hunter2")
    harness.process_stats.record_reload("bad: hunter2-hunter2")
    harness.history.problem = "bad: hunter2-hunter2"
    for query in ("", "recent_checks=1", "id=web&id=pg&recent_checks=1"):
        assert b"hunter2" not in harness.request(all_details, query=query).body
    assert b"hunter2" not in harness.request(details_of_one, "web").body
    assert harness.details("web")["probe"] == "http://me:***@db/?***"
    assert harness.details("web")["reason"] == "no: ***"


def test_a_lone_surrogate_in_a_reason_is_escaped(harness: OperatorHarness) -> None:
    harness.record("indexer", Verdict.failed("caf\udce9"))
    assert json.loads(harness.request(details_of_one, "indexer").body)["reason"] == "caf\\udce9"
    assert document(harness)["services"][1]["reason"] == "caf\\udce9"


def test_a_service_may_be_deregistered_during_iteration(harness: OperatorHarness) -> None:
    reading = services_details(harness.context, with_recent_checks=True)
    assert next(reading)["id"] == "db"
    harness.node.deregister("indexer")
    assert [service["id"] for service in reading] == ["indexer"]  # a snapshot from before
    assert list(services_details(harness.context, ["indexer"])) == []


def test_reports_from_other_threads_do_not_break_a_reader() -> None:
    harness = OperatorHarness()
    harness.node.register("db", probe="tcp://db:1")
    is_done = threading.Event()

    def churn() -> None:
        while not is_done.is_set():
            harness.node.record("db", READY)
            harness.node.register("passing", probe="tcp://db:2")
            harness.node.record("passing", REFUSED)
            harness.node.deregister("passing")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(300):
            for service in services_details(harness.context, with_recent_checks=True):
                assert len(service["recent_checks"]) <= 20
    finally:
        is_done.set()
        thread.join()


def test_ages_are_never_negative(harness: OperatorHarness) -> None:
    harness.record("db", READY)
    harness.clock.advance(-5.0)
    (details, _) = services_details(harness.context)
    assert details["since_s"] == details["registered_s"] == 0.0


# ---- alerts


def test_without_notification_targets_there_is_no_alert(harness: OperatorHarness) -> None:
    assert (harness.details("db")["alert"], document(harness)["node"]["alert"]) == (None, None)


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
    resolving = {"state": "resolving", "notified_health": 503, "message_in_s": 290.0}
    assert harness.details("db")["alert"] == resolving
    assert document(harness)["node"]["alert"] == resolving


def test_every_verdict_has_a_count(harness: OperatorHarness) -> None:
    assert set(harness.details("db")["checks"]) == {outcome.value for outcome in Outcome}
