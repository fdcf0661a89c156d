"""What a message adds to a problem: advice, how often, links."""

from __future__ import annotations

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Verdict
from svcnode.core.remedies import REMEDIES
from svcnode.node.definition import define
from svcnode.notify.content import Help, find_help, how_often, page_link
from svcnode.notify.outages import MAX_OUTAGES, PERIOD_S, Outages
from svcnode.notify.rule import Kind
from svcnode.probes.function import FunctionProbe
from tests.support.nodes import record
from tests.unit.notify.harness import FakeTarget, Harness, entry_of

RUNBOOK = "https://wiki.example.com/db"
REFUSED = Verdict.failed("connection refused", code=ReasonCode.CONNECTION_REFUSED)


def checked(harness: Harness) -> Harness:
    """With a service that is checked, and Down."""
    harness.alerts.outages.start(harness.clock.now_s, [], lambda at_s: at_s)
    options = {"probe": "tcp://10.0.0.5:5432", "rise": 1, "fall": 1, "start_period": "0s", "stale_after": "7d"}
    harness.node.add(define("db", impact="critical", runbook=RUNBOOK, **options))  # type: ignore[arg-type]
    record(harness.node, "db", Verdict.ready())
    record(harness.node, "db", REFUSED)
    return harness.wait(5)


def help_of(harness: Harness, name: str = "db") -> Help:
    return find_help(entry_of(harness.last, name), harness.node, harness.alerts.outages)


def test_a_problem_of_a_checked_service_has_the_advice_of_its_code_and_its_runbook() -> None:
    advice = REMEDIES[ReasonCode.CONNECTION_REFUSED].advice.format(address="10.0.0.5:5432")
    harness = checked(Harness())
    assert help_of(harness) == Help(advice, Outages(1, 5.0), RUNBOOK)
    assert help_of(harness, "node") == Help()


def test_a_probe_that_cannot_say_its_url_prevents_no_message() -> None:
    class OddProbe(FunctionProbe):
        @property
        def display_url(self) -> str | None:
            raise RuntimeError

    harness = Harness()
    harness.node.add(define("db", probe=OddProbe(lambda: None), rise=1, fall=1, start_period="0s", impact="critical"))
    record(harness.node, "db", REFUSED)
    harness.wait(5)
    assert "the address of the service" in help_of(harness).advice


def test_what_is_over_needs_no_advice() -> None:
    harness = checked(Harness())
    record(harness.node, "db", Verdict.ready())
    harness.wait(300)
    assert entry_of(harness.last, "db").kind is Kind.RECOVERED
    assert help_of(harness) == Help("", Outages(1, 305.0))
    record(harness.node, "db", REFUSED)
    harness.wait(5)
    harness.remove("db").wait(300)
    assert entry_of(harness.last, "db").kind is Kind.REMOVED
    assert help_of(harness) == Help()


def test_a_program_that_reports_knows_more_than_advice_about_a_probe() -> None:
    harness = Harness().add("db").down("db").wait(5)
    assert help_of(harness) == Help(REMEDIES[ReasonCode.REPORTED].advice)


def test_only_how_often_a_service_was_down_is_counted() -> None:
    harness = checked(Harness()).up("db").wait(300)
    harness.starting("db").wait(5)
    assert help_of(harness).outages is None


def test_the_advice_about_a_target_is_to_test_it() -> None:
    harness = Harness(None, FakeTarget(), FakeTarget("mail")).add("db")
    harness.alerts.subjects.see_target("mail", "connection refused", "connection_refused", harness.clock.now_s)
    harness.wait(5)
    assert "notify-test" in help_of(harness, "mail").advice


@pytest.mark.parametrize(
    ("number", "period_s", "text"),
    [
        (1, PERIOD_S, "first time in 30 days"),
        (2, PERIOD_S, "2nd time in 30 days"),
        (3, PERIOD_S, "3rd time in 30 days"),
        (11, PERIOD_S, "11th time in 30 days"),
        (21, PERIOD_S, "21st time in 30 days"),
        (112, PERIOD_S, "112th time in 30 days"),
        (4, 7200.0, "4th time in 2h; earlier outages are not counted"),
        (1, 86_400.0, "first time in 1d; earlier outages are not counted"),
        (1, 7200.0, ""),
        (MAX_OUTAGES, PERIOD_S, "more than 999 times in 30 days"),
    ],
)
def test_how_often_is_an_ordinal_number_in_the_period_that_is_known(number: int, period_s: float, text: str) -> None:
    assert how_often(Outages(number, period_s)) == text
    lines = [*Help(outages=Outages(number, period_s)).lines()]
    assert lines == ([f"how often: {text}"] if text else [])


def test_links_lead_to_the_page_and_to_a_service_on_it() -> None:
    service = define("db 1&2").service
    assert page_link("https://a.example/status/") == "https://a.example/status/"
    assert page_link("https://a.example", service) == "https://a.example/#q=db%201%262"
    assert page_link("", service) == ""
