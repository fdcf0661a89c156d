"""The reason of the node's health names every cause that is sufficient by itself, and the services."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcnode.core.model import Condition, Health, Impact, Service, Status
from svcnode.core.state_machine import health_with_reason, node_health, node_health_with_reason, tally

UP, INITIALIZING, DOWN = Status
CRITICAL, PARTIAL, NONE = Impact
NO_CONDITION = Condition()
STARTING = Condition(starting=True)


def health_and_reason(*services: tuple[str, Impact, Status], condition: Condition = NO_CONDITION) -> tuple[Health, str]:
    return node_health_with_reason(
        [(Service(id=name, name=name, description="", impact=impact), status) for name, impact, status in services],
        condition,
    )


REASONS: list[tuple[list[tuple[str, Impact, Status]], Condition, str]] = [
    # healthy
    ([], NO_CONDITION, "no services are registered"),
    ([("s1", NONE, DOWN)], NO_CONDITION, "no service is counted (every impact is none)"),
    ([("s1", PARTIAL, UP)], NO_CONDITION, "the only service is Up"),
    ([("s1", PARTIAL, UP), ("s2", NONE, INITIALIZING)], NO_CONDITION, "the only service that counts is Up"),
    ([("s1", PARTIAL, UP), ("s2", CRITICAL, UP)], NO_CONDITION, "all 2 services are Up"),
    (
        [("s1", PARTIAL, UP), ("s2", CRITICAL, UP), ("s3", NONE, DOWN)],
        NO_CONDITION,
        "all services that count are Up (2 of 3)",
    ),
    # partially healthy
    ([("s1", PARTIAL, UP), ("s2", PARTIAL, DOWN)], STARTING, "the node is starting; service Down: s2"),
    (
        [("s1", PARTIAL, INITIALIZING), ("s2", PARTIAL, DOWN), ("s3", CRITICAL, INITIALIZING), ("s4", PARTIAL, UP)],
        NO_CONDITION,
        "service Down: s2; services Initializing: s1 and s3",
    ),
    (
        [("up", PARTIAL, UP), *((f"s{number}", PARTIAL, DOWN) for number in range(5))],
        NO_CONDITION,
        "services Down: s0, s1, s2, s3 and s4",
    ),
    (
        [("up", PARTIAL, UP), *((f"s{number}", PARTIAL, DOWN) for number in range(7))],
        NO_CONDITION,
        "services Down: s0, s1, s2, s3, s4 and 2 more",
    ),
    # unhealthy
    ([("s1", PARTIAL, UP)], Condition(draining=True), "the node is draining"),
    ([], Condition(draining=True, drain_reason="kernel update"), "the node is draining: kernel update"),
    ([], Condition(issues=("out of disk", "no key")), "issue: out of disk; issue: no key"),
    ([("s1", PARTIAL, UP)], Condition(caveats=("seen by one replica",)), "seen by one replica"),
    ([("s1", CRITICAL, DOWN), ("s2", PARTIAL, DOWN), ("s3", PARTIAL, UP)], STARTING, "critical service Down: s1"),
    ([("s1", CRITICAL, DOWN), ("s2", CRITICAL, DOWN)], NO_CONDITION, "critical services Down: s1 and s2"),
    ([("s1", PARTIAL, DOWN), ("s2", NONE, UP)], NO_CONDITION, "every service that counts is Down: s1"),
    (
        [("s1", CRITICAL, DOWN), ("s2", PARTIAL, DOWN)],
        NO_CONDITION,
        "critical service Down: s1; every service that counts is Down: s1 and s2",
    ),
]


@pytest.mark.parametrize(("services", "condition", "reason"), REASONS, ids=[reason for *_, reason in REASONS])
def test_every_cause_is_named(services: list[tuple[str, Impact, Status]], condition: Condition, reason: str) -> None:
    assert health_and_reason(*services, condition=condition)[1] == reason


DB = Service(id="db", name="db", description="", impact=CRITICAL, maintenance_impact=NONE).during_maintenance()
CACHE = Service(id="cache", name="cache", description="")


def test_a_service_that_is_not_counted_because_of_maintenance_is_named_while_it_is_not_up() -> None:
    others: list[tuple[Service, Status]]
    for others in ([], [(CACHE, UP)]):
        for status in (DOWN, INITIALIZING):
            health, reason = node_health_with_reason([(DB, status), *others], NO_CONDITION)
            assert (health, status.value in reason, "db" in reason) == (Health.PARTIAL, True, True)
        health, reason = node_health_with_reason([(DB, UP), *others], NO_CONDITION)
        assert (health, "Up" in reason) == (Health.HEALTHY, True)
    health, _ = node_health_with_reason([(DB, DOWN), (CACHE, DOWN)], NO_CONDITION)
    assert health is Health.UNHEALTHY, "it does not hide that every counted service is Down"


@given(
    st.lists(st.tuples(st.sampled_from(Impact), st.sampled_from(Status)), max_size=8),
    st.builds(Condition, starting=st.booleans(), draining=st.booleans(), issues=st.sampled_from([(), ("no key",)])),
)
def test_the_health_is_that_of_node_health(pairs: list[tuple[Impact, Status]], condition: Condition) -> None:
    services = [(f"s{number}", impact, status) for number, (impact, status) in enumerate(pairs)]
    assert health_and_reason(*services, condition=condition)[0] is node_health(tally(pairs), condition)


def test_a_fault_of_this_machine_is_said_once_with_the_services_that_it_keeps_from_being_up() -> None:
    fault = "this host stood still for 2 h"
    service = Service(id="db", name="db", description="", impact=CRITICAL)
    assert node_health_with_reason([(service, INITIALIZING)], NO_CONDITION, fault)[1].startswith(f"{fault}; ")
    assert node_health_with_reason([(service, DOWN)], NO_CONDITION, fault)[1].endswith(f"; {fault}")


@pytest.mark.parametrize(
    ("services", "expected"),
    [
        ([("s1", PARTIAL, UP), ("s2", PARTIAL, DOWN), ("s3", PARTIAL, DOWN)], "2 services Down"),
        ([("s1", PARTIAL, DOWN), ("s2", CRITICAL, INITIALIZING)], "1 service Down; 1 service Initializing"),
        ([("s1", CRITICAL, DOWN), ("s2", CRITICAL, DOWN), ("s3", PARTIAL, UP)], "2 critical services Down"),
        ([("s1", PARTIAL, DOWN), ("s2", PARTIAL, DOWN)], "every service that counts is Down"),
    ],
)
def test_a_summary_counts_services_and_names_none(services: list[tuple[str, Impact, Status]], expected: str) -> None:
    found = [
        (Service(id=name, name=name, description="", impact=impact), status)
        for name, impact, status in services
        if status is not UP
    ]
    total = tally((impact, status) for _, impact, status in services)
    assert health_with_reason(total, found, NO_CONDITION, with_ids=False)[1] == expected
