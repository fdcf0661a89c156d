"""`/problems`: the problems of the node's services, with causes, past outages and advice; bounded."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Acknowledgement, Health, Maintenance, Verdict
from svcnode.core.problems import MAX_MEMBERS, document_from_details
from svcnode.core.redaction import register_secret
from svcnode.history.records import Transition
from svcnode.operator.details import all_details
from svcnode.operator.outages import RecentOutages
from svcnode.operator.problems import problems
from tests.support.operator_context import STARTED_AT_S, OperatorHarness
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable

REFUSED = Verdict.failed("connection refused: tcp://db:5432", code=ReasonCode.CONNECTION_REFUSED)
LOST = Verdict.failed("no answer", code=ReasonCode.TIMEOUT)


@pytest.fixture
def harness() -> OperatorHarness:
    """The ledger is Down and two services with it."""
    harness = OperatorHarness()
    register = harness.node.register
    register("db", name="Ledger", group="storage", runbook="https://wiki/db", probe="tcp://db:5432", start_period=0.0)
    register("api", name="Block API", impact="critical", depends_on=["storage"])
    register("web", depends_on=["api"])
    register("cache", group="storage")
    harness.record("cache", Verdict.ready())
    harness.record("db", REFUSED, REFUSED, REFUSED, interval_s=1.0)
    harness.record("api", LOST)
    harness.clock.advance(2.0)
    harness.record("web", LOST)
    return harness


def document(harness: OperatorHarness) -> Any:
    response = harness.request(problems)
    assert response.code == 200
    return json.loads(response.body)


def test_a_cause_has_its_effects_and_what_to_do(harness: OperatorHarness) -> None:
    found = document(harness)
    (problem,) = found["problems"]
    assert (problem["id"], problem["status"], problem["impact"], problem["code"]) == (
        "db",
        "Down",
        "partial",
        "connection_refused",
    )
    assert (problem["since"], problem["reason"]) == ("2027-01-15T08:00:00.000Z", "connection refused")
    assert [(one["id"], one["impact"], one["offset_s"]) for one in problem["effects"]] == [
        ("api", "critical", 3.0),
        ("web", "partial", 5.0),
    ]
    assert "db:5432" in problem["advice"]
    assert problem["runbook"] == "https://wiki/db"
    assert found["groups"] == [{"name": "storage", "total": 2, "up": 1, "down": 1}]
    assert found["counts"] == {"Up": 1, "Down": 3}
    assert found["node"]["health"] == 503


@pytest.mark.parametrize("set_by_s", [7200.0, -7200.0])
def test_ages_are_what_really_elapsed_if_the_clock_is_set(harness: OperatorHarness, set_by_s: float) -> None:
    harness.wall.advance(set_by_s)
    harness.record("web", LOST)
    (problem,) = document(harness)["problems"]
    assert problem["since_s"] == 5.0
    assert [one["offset_s"] for one in problem["effects"]] == [3.0, 5.0]


def test_it_is_what_the_details_say(harness: OperatorHarness) -> None:
    details = json.loads(harness.request(all_details).body)
    from_details, found = document_from_details(details), document(harness)
    assert from_details["problems"] == found["problems"]
    assert from_details["groups"] == found["groups"]


def test_who_has_acknowledged_it_and_its_maintenance(harness: OperatorHarness) -> None:
    made = Acknowledgement(Health.UNHEALTHY, 1_800_000_000.0, by="ops")
    harness.node.acknowledgements.make(made, "db")
    harness.node.acknowledgements.make(made, "web")
    harness.node.maintenance.set(Maintenance("control", harness.clock.now_s + 60, by="eve"), "db")
    found = document(harness)
    (problem,) = found["problems"]
    assert (problem["acknowledged"]["by"], problem["maintenance"]["by"]) == ("ops", "eve")
    assert {name: one["by"] for name, one in found["acknowledged"].items()} == {"db": "ops", "web": "ops"}


def test_texts_have_no_secrets(harness: OperatorHarness) -> None:
    register_secret("hunter-2-hunter")
    harness.record("db", Verdict.failed("login hunter-2-hunter refused"))
    assert b"hunter-2-hunter" not in harness.request(problems).body


def test_the_answer_is_bounded_with_5000_services_down() -> None:
    harness = OperatorHarness()
    for number in range(5000):
        harness.node.register(f"s{number}", group=f"group {number % 40}")
        harness.node.report(f"s{number}", Verdict.failed(f"status {number}", code=ReasonCode.TIMEOUT))
        harness.clock.advance(1.0)
    response = harness.request(problems)
    found = json.loads(response.body)
    assert {problem["count"] for problem in found["problems"]} == {125}
    assert {len(problem["members"]) for problem in found["problems"]} == {MAX_MEMBERS}
    assert len(response.body) < 200_000


# ---- how often


class FakeHistory:
    def __init__(self, *past: Transition) -> None:
        self.past = list(past)
        self.loaded = asyncio.Event()
        self.listener: Callable[[Transition], None] = lambda _: None

    def subscribe(self, listener: Callable[[Transition], None]) -> None:
        self.listener = listener

    async def load_latest(self, limit: int) -> list[Transition]:
        await self.loaded.wait()
        return self.past


def transition(number: int, after: str) -> Transition:
    at_s = STARTED_AT_S + number
    return Transition(number, at_s, "status", "db", None, after, "", None, 200, 200)


@in_virtual_time
async def test_outages_are_those_of_the_history_and_those_since() -> None:
    past = [transition(1, "Down"), transition(2, "Up"), transition(3, "Down"), transition(4, "Up")]
    history = FakeHistory(*past)
    outages = RecentOutages(cast("Any", history))
    loading = asyncio.create_task(outages.load(STARTED_AT_S + 5))
    await asyncio.sleep(1)
    for one in (*past[-2:], transition(5, "Down")):
        history.listener(one)
    assert outages.find("db", STARTED_AT_S + 5) is None  # not known yet
    history.loaded.set()
    await loading
    history.listener(transition(6, "Up"))
    history.listener(transition(7, "Down"))
    found = outages.find("db", STARTED_AT_S + 40 * 60)
    assert found is not None
    assert (found["count"], found["period_s"]) == (4, 40 * 60 - 1)
    assert outages.find("other", STARTED_AT_S) is None


def test_a_problem_says_how_often_it_happened(harness: OperatorHarness) -> None:
    often = {"count": 4, "period_s": 2_592_000, "text": "4th time in 30 days"}
    fake = SimpleNamespace(
        find=lambda service_id, _: often if service_id == "db" else None, ready=harness.context.outages.ready
    )
    harness.context = harness.context._replace(outages=cast("Any", fake))
    assert document(harness)["problems"][0]["outages"] == often
