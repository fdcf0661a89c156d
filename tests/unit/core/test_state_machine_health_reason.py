"""Why the node has the health that it has, in words that name whoever is to blame."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcnode.core.model import Condition, Health, Impact, Service, Status
from svcnode.core.state_machine import node_health, node_health_with_reason, tally

UP, INITIALIZING, DOWN = Status
CRITICAL, PARTIAL, NONE = Impact
CALM = Condition()


def explained(*services: tuple[str, Impact, Status], condition: Condition = CALM) -> tuple[Health, str]:
    return node_health_with_reason(
        [(Service(id=name, name=name, description="", impact=impact), status) for name, impact, status in services],
        condition,
    )


def reason(*services: tuple[str, Impact, Status], condition: Condition = CALM) -> str:
    return explained(*services, condition=condition)[1]


# ---- healthy


def test_a_node_without_services_says_so() -> None:
    assert reason() == "no services are registered"


def test_a_node_whose_services_do_not_count_says_so() -> None:
    assert reason(("a", NONE, DOWN)) == "none of its services count (their impact is none)"


def test_all_are_up() -> None:
    assert reason(("a", PARTIAL, UP), ("b", CRITICAL, UP)) == "all 2 services are Up"


def test_one_alone_is_up() -> None:
    assert reason(("a", PARTIAL, UP)) == "the one service is Up"


def test_those_that_do_not_count_are_told_apart() -> None:
    assert reason(("a", PARTIAL, UP), ("b", PARTIAL, UP), ("c", NONE, DOWN)) == "all 2 services that count are Up"
    assert reason(("a", PARTIAL, UP), ("c", NONE, DOWN)) == "the one service that counts is Up"


# ---- partly healthy


def test_a_node_that_is_starting_says_so() -> None:
    assert reason(("a", PARTIAL, UP), condition=Condition(starting=True)) == "it is still starting"


def test_whoever_is_not_up_is_named_the_worst_first() -> None:
    services = ("a", PARTIAL, INITIALIZING), ("b", PARTIAL, DOWN), ("c", CRITICAL, INITIALIZING), ("d", PARTIAL, UP)
    assert reason(*services) == "b is Down; a and c are Initializing"


def test_all_reasons_are_given() -> None:
    services = ("a", PARTIAL, UP), ("b", PARTIAL, DOWN)
    assert reason(*services, condition=Condition(starting=True)) == "it is still starting; b is Down"


def test_of_many_a_few_are_named() -> None:
    services = [(f"s{number}", PARTIAL, DOWN) for number in range(7)]
    assert reason(*services, ("up", PARTIAL, UP)) == "s0, s1, s2, s3, s4 and 2 more are Down"


# ---- unhealthy


def test_a_node_that_drains_says_so() -> None:
    assert reason(("a", PARTIAL, UP), condition=Condition(draining=True)) == "it is draining, to shut down"


def test_issues_are_told() -> None:
    condition = Condition(issues=("out of disk", "no key"))
    assert (
        reason(condition=condition) == "its program reports an issue: out of disk; its program reports an issue: no key"
    )


def test_a_critical_service_that_is_down_is_named_and_no_lesser_reason() -> None:
    services = ("a", CRITICAL, DOWN), ("b", PARTIAL, DOWN), ("c", PARTIAL, UP)
    assert reason(*services, condition=Condition(starting=True)) == "a is Down, and critical"


def test_all_that_count_are_down() -> None:
    assert reason(("a", PARTIAL, DOWN), ("b", NONE, UP)) == "a is Down, and no other service counts"
    assert reason(("a", PARTIAL, DOWN), ("b", PARTIAL, DOWN)) == "a and b are Down, and no other service counts"


def test_where_all_that_are_down_are_critical_that_is_enough_said() -> None:
    assert reason(("a", CRITICAL, DOWN), ("b", CRITICAL, DOWN)) == "a and b are Down, and critical"


def test_where_some_are_critical_and_all_are_down_both_is_said() -> None:
    expected = "a is Down, and critical; a and b are Down, and no other service counts"
    assert reason(("a", CRITICAL, DOWN), ("b", PARTIAL, DOWN)) == expected


# ---- whatever happens

_SERVICES = st.lists(st.tuples(st.sampled_from(Impact), st.sampled_from(Status)), max_size=8)
_CONDITIONS = st.builds(
    Condition,
    starting=st.booleans(),
    draining=st.booleans(),
    issues=st.sampled_from([(), ("no key",)]),
)
_SIGNS = {
    Health.UNHEALTHY: ("draining", "issue", "critical", "no other service counts"),
    Health.PARTIAL: ("starting", "Down", "Initializing"),
    Health.HEALTHY: ("Up", "no services", "none of its services"),
}


@given(_SERVICES, _CONDITIONS)
def test_the_health_is_that_of_the_rules_and_the_reason_is_one_for_it(
    seen: list[tuple[Impact, Status]], condition: Condition
) -> None:
    services = [(f"s{number}", impact, status) for number, (impact, status) in enumerate(seen)]
    health, text = explained(*services, condition=condition)
    assert health is node_health(tally(seen), condition)
    assert any(sign in text for sign in _SIGNS[health])
    if health is not Health.UNHEALTHY:
        assert not any(sign in text for sign in _SIGNS[Health.UNHEALTHY])
    if health is Health.HEALTHY:
        assert "Down" not in text


@pytest.mark.parametrize("status", [DOWN, INITIALIZING])
def test_a_service_that_does_not_count_is_never_the_reason(status: Status) -> None:
    assert "b" not in reason(("a", PARTIAL, UP), ("b", NONE, status)).split()
