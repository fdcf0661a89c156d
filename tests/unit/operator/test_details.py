"""What `/details` says: the whole truth of a service at one moment, without a secret in it."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.api.app import OperatorRequest
from svcnode.api.spec import SERVICE_NOT_FOUND
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome, Verdict
from svcnode.core.redaction import register_secret
from svcnode.operator import details
from svcnode.operator.details import Now, all_details, details_of_one, node_details, services_details
from svcnode.version import __version__
from tests.support.operator_context import STARTED_AT_S, OperatorHarness

if TYPE_CHECKING:
    from svcnode.api.spec import Response

READY = Verdict.ready()
REFUSED = Verdict.failed("connection refused: db:5432")

FIELDS = [
    *("id", "name", "description", "impact", "kind", "probe", "status", "health", "reason", "since", "since_s"),
    *("counters", "policy", "schedule", "evidence", "last_ready", "expires_in_s", "next_check_in_s", "registered_s"),
    *("checks", "transitions", "attempts"),
]
NODE_FIELDS = [
    *("name", "version", "spec_version", "svcnode", "health", "health_reason", "starting", "draining", "issues"),
    *("started", "uptime_s", "last_event_id", "history_problem", "reload_problem"),
]


@pytest.fixture
def scene() -> OperatorHarness:
    made = OperatorHarness()
    made.node.register(
        "db",
        name="Ledger",
        description="Holds the ledger",
        probe="tcp://db:5432",
        impact="critical",
        max_latency="2s",
    )
    made.node.register("indexer")
    return made


def asked(scene: OperatorHarness, query: str = "") -> Any:
    answer = scene.request(all_details, query=query)
    assert answer.code == 200
    assert dict(answer.headers)["Content-Type"] == "application/json"
    return json.loads(answer.body)


# ---- one service


def test_a_service_that_was_just_registered(scene: OperatorHarness) -> None:
    scene.clock.advance(0.5)
    assert scene.details("db") == {
        "id": "db",
        "name": "Ledger",
        "description": "Holds the ledger",
        "impact": "critical",
        "kind": "tcp",
        "probe": "tcp://db:5432",
        "status": "Initializing",
        "health": 206,
        "reason": "no evidence yet",
        "since": "2027-01-15T08:00:00.000Z",
        "since_s": 0.5,
        "counters": {"ready_in_a_row": 0, "failures_in_a_row": 0},
        "policy": {"rise": 2, "fall": 3, "start_period_s": 30.0, "stale_after_s": 33.0, "ttl_s": None},
        "schedule": {"interval_s": 10.0, "timeout_s": 3.0, "transition_interval_s": 2.0, "max_latency_s": 2.0},
        "evidence": None,
        "last_ready": None,
        "expires_in_s": None,
        "next_check_in_s": None,
        "registered_s": 0.5,
        "checks": {"ready": 0, "not_ready": 0, "failed": 0, "unknown": 0},
        "transitions": 0,
        "attempts": [],
    }


def test_the_fields_stand_in_an_order_that_can_be_read(scene: OperatorHarness) -> None:
    assert list(scene.details("db")) == FIELDS
    assert list(asked(scene)["services"][0]) == FIELDS[:-1]
    assert list(asked(scene)["node"]) == NODE_FIELDS


def test_what_was_seen_is_told_with_its_time_and_what_it_took(scene: OperatorHarness) -> None:
    scene.record("db", READY, interval_s=10, duration_s=0.0021)
    scene.record("db", REFUSED, interval_s=2, duration_s=0.0005)
    details = scene.details("db")
    assert details["status"] == "Up"
    assert details["counters"] == {"ready_in_a_row": 0, "failures_in_a_row": 1}
    assert details["evidence"] == {
        "verdict": "failed",
        "reason": "connection refused: db:5432",
        "at": "2027-01-15T08:00:10.000Z",
        "age_s": 2.0,
        "duration_ms": 0.5,
    }
    assert details["last_ready"] == {"at": "2027-01-15T08:00:00.000Z", "age_s": 12.0}
    assert details["expires_in_s"] == 21.0
    assert details["checks"] == {"ready": 1, "not_ready": 0, "failed": 1, "unknown": 0}
    assert details["transitions"] == 1
    assert [(one["verdict"], one["age_s"], one["status"]) for one in details["attempts"]] == [
        ("failed", 2.0, "Up"),
        ("ready", 12.0, "Up"),
    ]


def test_what_told_nothing_is_the_newest_evidence_as_well(scene: OperatorHarness) -> None:
    scene.record("db", READY, Verdict.unknown("no files left"), interval_s=1)
    details = scene.details("db")
    assert details["evidence"]["verdict"] == "unknown"
    assert details["last_ready"]["age_s"] == 2.0


def test_twenty_attempts_are_told_the_newest_first(scene: OperatorHarness) -> None:
    scene.record("db", *[READY] * 25, interval_s=1)
    ages = [one["age_s"] for one in scene.details("db")["attempts"]]
    assert ages == [float(age) for age in range(1, 21)]


def test_silence_is_judged_at_the_moment_of_asking(scene: OperatorHarness) -> None:
    scene.record("db", READY, interval_s=40)
    details = scene.details("db")
    assert (details["status"], details["health"]) == ("Initializing", 206)
    assert details["reason"] == "no fresh success for 33 s"
    assert details["since_s"] == 7.0


def test_a_service_that_a_program_reports_for_has_no_schedule(scene: OperatorHarness) -> None:
    scene.record("indexer", Verdict.failed("out of disk"))
    details = scene.details("indexer")
    assert (details["kind"], details["probe"], details["schedule"]) == ("reported", None, None)
    assert (details["status"], details["reason"]) == ("Down", "out of disk")


def test_of_a_fixed_status_nothing_is_told_as_if_somebody_had_looked(scene: OperatorHarness) -> None:
    scene.record("indexer", Verdict.ready("set in the configuration", code=ReasonCode.FIXED), interval_s=5)
    details = scene.details("indexer")
    assert (details["kind"], details["probe"], details["schedule"]) == ("fixed", None, None)
    assert (details["status"], details["reason"]) == ("Up", "set in the configuration")
    assert (details["evidence"], details["last_ready"], details["attempts"]) == (None, None, [])
    assert (sum(details["checks"].values()), details["transitions"]) == (0, 0)


def test_a_service_that_a_function_looks_at_has_no_url(scene: OperatorHarness) -> None:
    scene.node.check("cache")(lambda: None)
    details = scene.details("cache")
    assert (details["kind"], details["probe"]) == ("function", None)
    assert details["schedule"]["interval_s"] == 10.0


def test_an_unknown_id_is_not_found(scene: OperatorHarness) -> None:
    assert scene.request(details_of_one, "nothing") is SERVICE_NOT_FOUND


def test_one_service_is_answered_as_json(scene: OperatorHarness) -> None:
    answer = scene.request(details_of_one, "db")
    assert answer.code == 200
    assert json.loads(answer.body)["attempts"] == []
    assert dict(answer.headers)["Cache-Control"] == "no-store"


# ---- all of them


def test_the_node_is_told_with_all_its_services(scene: OperatorHarness) -> None:
    scene.record("db", *[REFUSED] * 20, interval_s=2)
    told = asked(scene)
    assert [service["id"] for service in told["services"]] == ["db", "indexer"]
    node = told["node"]
    assert (node["name"], node["version"], node["spec_version"]) == ("validator-7", "v1.4.2", "v0.0.1")
    assert node["svcnode"] == __version__
    assert (node["health"], node["health_reason"]) == (503, "db is Down, and critical")
    assert (node["history_problem"], node["reload_problem"]) == (None, None)


@pytest.mark.parametrize("jitter_s", [0.0, 0.0021, -1.0])
def test_the_start_is_told_as_one_and_the_same_moment(
    jitter_s: float, scene: OperatorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.clock.advance(90.0)
    monkeypatch.setattr(details, "time", lambda: STARTED_AT_S + 90.0 + jitter_s)
    node = node_details(scene.context)
    assert (node["started"], node["uptime_s"]) == ("2027-01-15T08:00:00.000Z", 90.0)


@pytest.mark.parametrize(
    ("set_by_s", "started"), [(3600.0, "2027-01-15T09:00:00.000Z"), (-86_400.0, "2027-01-14T08:00:00.000Z")]
)
def test_a_clock_on_the_wall_that_is_set_changes_when_the_node_began_and_not_for_how_long_it_runs(
    set_by_s: float, started: str, scene: OperatorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.clock.advance(90.0)
    monkeypatch.setattr(details, "time", lambda: STARTED_AT_S + 90.0 + set_by_s)
    node = node_details(scene.context)
    assert (node["started"], node["uptime_s"]) == (started, 90.0)


def test_what_the_program_says_of_the_node_is_told() -> None:
    scene = OperatorHarness(starting=True)
    scene.node.set_issue("no key")
    scene.node.drain()
    node = asked(scene)["node"]
    assert (node["starting"], node["draining"], node["issues"]) == (True, True, ["no key"])
    assert node["health_reason"] == "it is draining, to shut down; its program reports an issue: no key"


def test_what_is_wrong_with_the_node_itself_is_told(scene: OperatorHarness) -> None:
    scene.history.problem = "the disk is full"
    scene.process_stats.record_reload("services.db: what?")
    node = asked(scene)["node"]
    assert (node["history_problem"], node["reload_problem"]) == ("the disk is full", "services.db: what?")


@pytest.mark.parametrize("query", [b"", b"id=db"])
def test_a_reload_that_failed_is_told_at_once(scene: OperatorHarness, query: bytes) -> None:
    async def story() -> list[str | None]:
        visit = OperatorRequest("GET", b"/details", query)
        told = [await all_details(scene.context, visit, "")]
        for problem in ("services.db: what?", ""):
            scene.process_stats.record_reload(problem)
            told.append(await all_details(scene.context, visit, ""))
        return [json.loads(answer.body)["node"]["reload_problem"] for answer in told]

    assert asyncio.run(story()) == [None, "services.db: what?", None]


def test_the_last_event_is_named_for_those_who_follow(scene: OperatorHarness) -> None:
    scene.history.last_id = 17
    assert asked(scene)["node"]["last_event_id"] == 17


def test_some_can_be_asked_for_and_unknown_ones_are_left_out(scene: OperatorHarness) -> None:
    told = asked(scene, "id=indexer&id=nothing&id=db&id=db")
    assert [service["id"] for service in told["services"]] == ["indexer", "db"]
    assert told["node"]["name"] == "validator-7"


@pytest.mark.parametrize("selection", ["", "id=db&"])
@pytest.mark.parametrize(("value", "is_wanted"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_attempts_are_told_on_demand(scene: OperatorHarness, selection: str, value: str, *, is_wanted: bool) -> None:
    assert ("attempts" in asked(scene, f"{selection}attempts={value}")["services"][0]) is is_wanted


def test_a_node_without_services_has_none() -> None:
    assert asked(OperatorHarness())["services"] == []


def test_some_that_are_asked_for_come_with_the_health_of_now(scene: OperatorHarness) -> None:
    """Whoever was just told of a change by an event must not be told of what was before it."""

    async def story() -> list[int]:
        visit = OperatorRequest("GET", b"/details", b"id=db")
        told = [await all_details(scene.context, visit, "")]
        scene.node.set_issue("no key")
        told.append(await all_details(scene.context, visit, ""))
        return [json.loads(answer.body)["node"]["health"] for answer in told]

    assert asyncio.run(story()) == [206, 503]


def test_all_of_them_are_made_once_for_those_who_ask_within_a_second(scene: OperatorHarness) -> None:
    async def story() -> tuple[Response, Response]:
        visit = OperatorRequest("GET", b"/details")
        return await all_details(scene.context, visit, ""), await all_details(scene.context, visit, "")

    first, second = asyncio.run(story())
    assert first is second


# ---- whatever is said, and whoever comes and goes


def test_secrets_are_told_nowhere(scene: OperatorHarness) -> None:
    register_secret("hunter2-hunter2")
    scene.node.register("pg", probe="tcp://db:1")
    scene.node.register("web", probe="http://me:hunter2-hunter2@db/?key=hunter2-hunter2")
    scene.record("web", Verdict.failed("no: hunter2-hunter2"))
    scene.record("pg", Verdict.unknown("no: hunter2-hunter2"))
    scene.node.set_issue("lost hunter2-hunter2")
    scene.process_stats.record_reload("bad: hunter2-hunter2")
    scene.history.problem = "bad: hunter2-hunter2"
    for query in ("", "attempts=1", "id=web&id=pg&attempts=1"):
        assert b"hunter2" not in scene.request(all_details, query=query).body
    assert b"hunter2" not in scene.request(details_of_one, "web").body
    assert scene.details("web")["probe"] == "http://me:***@db/?***"
    assert scene.details("web")["reason"] == "no: ***"


def test_half_a_character_in_a_reason_does_not_spoil_the_answer(scene: OperatorHarness) -> None:
    scene.record("indexer", Verdict.failed("caf\udce9"))
    assert json.loads(scene.request(details_of_one, "indexer").body)["reason"] == "caf?"
    assert asked(scene)["services"][1]["reason"] == "caf?"


def test_services_that_go_while_one_is_reading_break_nothing(scene: OperatorHarness) -> None:
    reading = services_details(scene.node, scene.check_stats, with_attempts=True)
    assert next(reading)["id"] == "db"
    scene.node.deregister("indexer")
    assert [service["id"] for service in reading] == ["indexer"]  # as of the moment when the reading began
    assert list(services_details(scene.node, scene.check_stats, ["indexer"])) == []


def test_reports_that_come_from_other_threads_meanwhile_break_nothing() -> None:
    scene = OperatorHarness()
    scene.node.register("db", probe="tcp://db:1")
    is_over = threading.Event()

    def churn() -> None:
        while not is_over.is_set():
            scene.node.record("db", READY)
            scene.node.register("passing", probe="tcp://db:2")
            scene.node.record("passing", REFUSED)
            scene.node.deregister("passing")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(300):
            for service in services_details(scene.node, scene.check_stats, with_attempts=True):
                assert len(service["attempts"]) <= 20
    finally:
        is_over.set()
        thread.join()


def test_a_clock_that_was_set_back_makes_no_negative_ages(scene: OperatorHarness) -> None:
    scene.record("db", READY)
    (details, _) = services_details(scene.node, scene.check_stats, now=Now(-5.0, 0.0))
    assert details["since_s"] == details["registered_s"] == 0.0


def test_every_verdict_has_a_count(scene: OperatorHarness) -> None:
    assert set(scene.details("db")["checks"]) == {outcome.value for outcome in Outcome}
