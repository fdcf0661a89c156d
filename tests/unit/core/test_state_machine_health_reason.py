"""The reason of the node's health names every cause that is sufficient by itself, and the services."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcnode.core.model import Condition, Health, Impact, Service, Status
from svcnode.core.state_machine import node_health, node_health_with_reason, tally

UP, INITIALIZING, DOWN = Status
CRITICAL, PARTIAL, NONE = Impact
NO_CONDITION = Condition()

# Fields, impacts and statuses that a reason may name.
_NAMED = re.compile(r"draining|issue|critical|every|starting|Down|Initializing|Up")


def health_and_reason(*services: tuple[str, Impact, Status], condition: Condition = NO_CONDITION) -> tuple[Health, str]:
    return node_health_with_reason(
        [(Service(id=name, name=name, description="", impact=impact), status) for name, impact, status in services],
        condition,
    )


def named(*services: tuple[str, Impact, Status], condition: Condition = NO_CONDITION) -> list[str]:
    """The fields, impacts, statuses and ids of the reason, in order."""
    _, reason = health_and_reason(*services, condition=condition)
    ids = "|".join(re.escape(name) for name, _, _ in services)
    pattern = rf"{_NAMED.pattern}|\b(?:{ids})\b" if ids else _NAMED.pattern
    return re.findall(pattern, reason)


# ---- healthy


def test_the_services_are_up() -> None:
    assert named(("s1", PARTIAL, UP), ("s2", CRITICAL, UP)) == ["Up"]
    assert named(("s1", PARTIAL, UP)) == ["Up"]


def test_services_that_are_not_counted_are_not_named() -> None:
    assert named(("s1", PARTIAL, UP), ("s2", PARTIAL, UP), ("s3", NONE, DOWN)) == ["Up"]
    assert named(("s1", PARTIAL, UP), ("s3", NONE, INITIALIZING)) == ["Up"]


def test_the_reason_differs_if_services_are_not_counted() -> None:
    assert health_and_reason(("s1", PARTIAL, UP)) != health_and_reason(("s1", PARTIAL, UP), ("s2", NONE, UP))
    assert health_and_reason() != health_and_reason(("s1", NONE, UP))


# ---- partially healthy


@pytest.mark.parametrize("others", [[], [(Service(id="cache", name="cache", description=""), UP)]])
def test_a_service_that_is_not_counted_because_of_maintenance_is_named_while_it_is_not_up(
    others: list[tuple[Service, Status]],
) -> None:
    db = Service(id="db", name="db", description="", impact=CRITICAL, maintenance_impact=NONE).during_maintenance()
    for status in (DOWN, INITIALIZING):
        health, reason = node_health_with_reason([(db, status), *others], NO_CONDITION)
        assert (health, status.value in reason, "db" in reason) == (Health.PARTIAL, True, True)
    health, reason = node_health_with_reason([(db, UP), *others], NO_CONDITION)
    assert (health, "Up" in reason) == (Health.HEALTHY, True)


def test_a_service_in_maintenance_does_not_hide_that_every_counted_service_is_down() -> None:
    db = Service(id="db", name="db", description="", impact=CRITICAL, maintenance_impact=NONE).during_maintenance()
    cache = Service(id="cache", name="cache", description="")
    health, _ = node_health_with_reason([(db, DOWN), (cache, DOWN)], NO_CONDITION)
    assert health is Health.UNHEALTHY


def test_a_starting_node_is_named() -> None:
    assert named(("s1", PARTIAL, UP), condition=Condition(starting=True)) == ["starting"]


def test_services_that_are_not_up_are_named_down_before_initializing() -> None:
    services = ("s1", PARTIAL, INITIALIZING), ("s2", PARTIAL, DOWN), ("s3", CRITICAL, INITIALIZING), ("s4", PARTIAL, UP)
    assert named(*services) == ["Down", "s2", "Initializing", "s1", "s3"]


def test_every_cause_is_named() -> None:
    services = ("s1", PARTIAL, UP), ("s2", PARTIAL, DOWN)
    assert named(*services, condition=Condition(starting=True)) == ["starting", "Down", "s2"]


def test_of_many_services_five_are_named_and_the_others_counted() -> None:
    services = [(f"s{number}", PARTIAL, DOWN) for number in range(7)]
    _, reason = health_and_reason(*services, ("up", PARTIAL, UP))
    assert named(*services, ("up", PARTIAL, UP)) == ["Down", "s0", "s1", "s2", "s3", "s4"]
    assert "2 more" in reason


# ---- unhealthy


def test_a_draining_node_is_named() -> None:
    assert named(("s1", PARTIAL, UP), condition=Condition(draining=True)) == ["draining"]
    _, reason = health_and_reason(condition=Condition(draining=True, drain_reason="kernel update"))
    assert reason.endswith(": kernel update")


def test_every_issue_is_named() -> None:
    _, reason = health_and_reason(condition=Condition(issues=("out of disk", "no key")))
    assert re.findall("issue|out of disk|no key", reason) == ["issue", "out of disk", "issue", "no key"]


def test_a_critical_service_that_is_down_is_named_and_no_lesser_cause() -> None:
    services = ("s1", CRITICAL, DOWN), ("s2", PARTIAL, DOWN), ("s3", PARTIAL, UP)
    assert named(*services, condition=Condition(starting=True)) == ["critical", "Down", "s1"]


def test_that_every_counted_service_is_down_is_named() -> None:
    assert named(("s1", PARTIAL, DOWN), ("s2", NONE, UP)) == ["every", "Down", "s1"]
    assert named(("s1", PARTIAL, DOWN), ("s2", PARTIAL, DOWN)) == ["every", "Down", "s1", "s2"]


def test_services_that_are_all_critical_and_down_are_named_once() -> None:
    assert named(("s1", CRITICAL, DOWN), ("s2", CRITICAL, DOWN)) == ["critical", "Down", "s1", "s2"]


def test_critical_services_are_named_beside_all_services_that_are_down() -> None:
    expected = ["critical", "Down", "s1", "every", "Down", "s1", "s2"]
    assert named(("s1", CRITICAL, DOWN), ("s2", PARTIAL, DOWN)) == expected


# ---- properties

_SERVICES = st.lists(st.tuples(st.sampled_from(Impact), st.sampled_from(Status)), max_size=8)
_CONDITIONS = st.builds(
    Condition,
    starting=st.booleans(),
    draining=st.booleans(),
    issues=st.sampled_from([(), ("no key",)]),
)
_UNHEALTHY = {"draining", "issue", "critical", "every"}
_PARTIAL = {"starting", "Down", "Initializing"}


@given(_SERVICES, _CONDITIONS)
def test_the_health_is_that_of_node_health_and_the_reason_belongs_to_it(
    pairs: list[tuple[Impact, Status]], condition: Condition
) -> None:
    services = [(f"s{number}", impact, status) for number, (impact, status) in enumerate(pairs)]
    health, reason = health_and_reason(*services, condition=condition)
    assert health is node_health(tally(pairs), condition)
    found = set(_NAMED.findall(reason))
    match health:
        case Health.UNHEALTHY:
            assert found & _UNHEALTHY
        case Health.PARTIAL:
            assert found & _PARTIAL
            assert not found & _UNHEALTHY
        case Health.HEALTHY:
            assert not found & (_UNHEALTHY | _PARTIAL) or not any(impact is not NONE for impact, _ in pairs)


@pytest.mark.parametrize("status", [DOWN, INITIALIZING])
def test_a_service_that_is_not_counted_is_never_the_cause(status: Status) -> None:
    assert "s2" not in named(("s1", PARTIAL, UP), ("s2", NONE, status))
