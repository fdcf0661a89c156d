"""What is published of a node, and what follows from it."""

from __future__ import annotations

from typing import Any

import pytest

from svcnode.core.maintenance import PlannedMaintenance
from svcnode.core.model import Maintenance, Verdict
from svcnode.history.records import Bucket
from svcnode.operator.public.outages import Outage, Past
from svcnode.operator.public.view import (
    Day,
    Overall,
    Publication,
    PublicService,
    PublicStatus,
    Window,
    all_outages,
    all_windows,
    current_maintenance,
    days_of,
    overall_of,
    planned_maintenance,
    published_services,
)
from tests.support.operator_context import STARTED_AT_S, OperatorHarness

UP, CHECKING, DOWN, WORK = (
    PublicStatus.OPERATIONAL,
    PublicStatus.CHECKING,
    PublicStatus.OUTAGE,
    PublicStatus.MAINTENANCE,
)


@pytest.fixture
def harness() -> OperatorHarness:
    harness = OperatorHarness()
    for service_id, name, group in (
        ("db", "Ledger", "Storage"),
        ("cache", "Cache", "Storage"),
        ("edge", "", "Edge"),
        ("queue", "Queue", "Hidden"),
    ):
        harness.node.register(service_id, name=name, description="", group=group)
    return harness


def published(harness: OperatorHarness, **options: Any) -> list[PublicService]:
    return list(published_services(harness.node, Publication(title="Status", **options)))


def test_named_services_come_first_then_groups_with_their_headings(harness: OperatorHarness) -> None:
    found = published(harness, services=("queue", "db"), groups=("Edge", "Storage"))
    assert [(service.id, service.name, service.group) for service in found] == [
        ("queue", "Queue", ""),  # the name of its group is not published
        ("edge", "edge", "Edge"),
        ("db", "Ledger", "Storage"),
        ("cache", "Cache", "Storage"),
    ]


def test_tagged_services_are_published_without_a_heading_unless_their_group_is(harness: OperatorHarness) -> None:
    harness.node.register("a", name="A", description="", group="Hidden", tags=("open", "eu"))
    harness.node.register("b", name="B", description="", group="Edge", tags=("open",))
    harness.node.register("c", name="C", description="", tags=("eu",))
    found = published(harness, tags=("open",), groups=("Edge",))
    assert [(service.id, service.group) for service in found] == [("a", ""), ("edge", "Edge"), ("b", "Edge")]


def test_a_named_service_that_is_not_registered_is_being_checked_not_left_out(harness: OperatorHarness) -> None:
    harness.record("db", Verdict.ready())
    found = published(harness, services=("db", "later"), groups=("None",))
    assert [(service.id, service.status) for service in found] == [("db", UP), ("later", CHECKING)]


def test_statuses_are_those_of_fresh_evidence(harness: OperatorHarness) -> None:
    assert [service.status for service in published(harness, services=("db",))] == [CHECKING]
    harness.record("db", Verdict.ready())
    assert [service.status for service in published(harness, services=("db",))] == [UP]
    harness.record("db", Verdict.failed("secret"))
    (service,) = published(harness, services=("db",))
    assert (service.status, service.since_s) == (DOWN, STARTED_AT_S)
    harness.node.maintenance.set(Maintenance("control", 60.0))
    assert [service.status for service in published(harness, services=("db",))] == [WORK]


@pytest.mark.parametrize(
    ("statuses", "overall"),
    [
        ([], Overall.UNKNOWN),
        ([CHECKING, CHECKING], Overall.UNKNOWN),
        ([UP, CHECKING], Overall.CHECKING),
        ([UP, UP], Overall.OPERATIONAL),
        ([UP, WORK], Overall.MAINTENANCE),
        ([WORK, CHECKING], Overall.CHECKING),
        ([UP, CHECKING, DOWN], Overall.PARTIAL_OUTAGE),
        ([DOWN, DOWN], Overall.OUTAGE),
    ],
)
def test_all_services_work_only_if_each_of_them_does(statuses: list[PublicStatus], overall: Overall) -> None:
    assert overall_of(statuses) is overall


def test_a_day_with_any_outage_is_one_and_a_restart_is_not() -> None:
    buckets = [
        Bucket(0),
        Bucket(1, up_s=100.0),
        Bucket(2, up_s=99.0, initializing_s=1.0),
        Bucket(3, up_s=50.0, initializing_s=50.0),
        Bucket(4, up_s=99.0, down_s=1.0),
        Bucket(5, maintenance_s=9.0),
    ]
    found = days_of(buckets)
    assert list(found.days) == [*(Day.UNKNOWN, Day.OPERATIONAL, Day.OPERATIONAL, Day.CHECKING, Day.OUTAGE, Day.UNKNOWN)]
    assert found.availability == pytest.approx(348 / 400)
    assert found.known_since_s == 86_400
    assert days_of([]).known_since_s is days_of([Bucket(0)]).known_since_s is None


def test_the_statuses_are_right_where_the_history_is_behind() -> None:
    services = [
        PublicService("down", "", "", DOWN, 50.0),
        PublicService("up", "", "", UP, 60.0),
        PublicService("checking", "", "", CHECKING, 70.0),
    ]
    past = Past((Outage("up", 10.0), Outage("checking", 20.0), Outage("up", 1.0, 2.0), Outage("gone", 5.0, 6.0)))
    assert all_outages(services, past) == (
        *(Outage("down", 50.0), Outage("checking", 20.0), Outage("up", 10.0, 60.0), Outage("up", 1.0, 2.0)),
    )


def test_maintenance_shows_when_it_is_for_published_services_only(harness: OperatorHarness) -> None:
    plan = PlannedMaintenance(
        service_ids=("db",), by="ann", reason="why", from_s=STARTED_AT_S + 60, until_s=STARTED_AT_S + 90
    )
    for service_id in ("db", "queue"):
        harness.node.maintenance.plan(plan, service_id, source="planned")
    harness.node.maintenance.set(Maintenance("control", 30.0, "ann", "why"), "queue")
    harness.node.maintenance.set(Maintenance("control", 40.0, "ann", "why"))
    current = current_maintenance(harness.node)
    planned = list(planned_maintenance(harness.node, Publication(title=""), STARTED_AT_S))
    assert all_windows(["db", "edge"], current, planned, {None: STARTED_AT_S - 5}, STARTED_AT_S) == (
        Window(STARTED_AT_S - 5, STARTED_AT_S + 40, ("db", "edge"), is_current=True),
        Window(STARTED_AT_S + 60, STARTED_AT_S + 90, ("db",), is_current=False),
    )
    assert all_windows([], current, planned, {}, STARTED_AT_S) == ()
