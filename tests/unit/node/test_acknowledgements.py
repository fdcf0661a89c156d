"""An acknowledgement changes no status, and ends with the problem that it was made for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from svcnode.core.model import Acknowledgement, Change, ChangeKind, Health, Status
from svcnode.node.node_state import Handle
from tests.support.nodes import make_node
from tests.support.virtual_time import VirtualClock

if TYPE_CHECKING:
    from svcnode.node.node_state import NodeState

MADE_S = 1_767_225_600.0  # the start of 2026, at the virtual time 0
DOWN = Acknowledgement(Health.UNHEALTHY, MADE_S, by="ops", reason="disk ordered")
INITIALIZING = Acknowledgement(Health.PARTIAL, MADE_S)
ENDED = ChangeKind.ACKNOWLEDGEMENT_ENDED


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(0.0)


@pytest.fixture
def wall() -> VirtualClock:
    """The time from the clock to the wall clock."""
    return VirtualClock(MADE_S)


@pytest.fixture
def node(clock: VirtualClock, wall: VirtualClock) -> NodeState:
    node = make_node("validator-7", version="v1", clock=clock, wall_clock=lambda: wall() + clock())
    node.register("db", impact="critical").down("refused")
    node.register("cache").up()
    return node


@pytest.fixture
def changes(node: NodeState) -> list[Change]:
    changes: list[Change] = []
    node.subscribe(changes.append)
    return changes


def ends(changes: list[Change]) -> list[tuple[str | None, str]]:
    return [(change.service_id, change.reason) for change in changes if change.kind is ENDED]


def test_it_changes_neither_the_status_nor_the_health(node: NodeState, changes: list[Change]) -> None:
    node.acknowledgements.make(DOWN, "db")
    node.acknowledgements.make(DOWN)
    assert (node.status("db"), node.health) == (Status.DOWN, Health.UNHEALTHY)
    assert node.acknowledgements.find("db") == node.acknowledgements.find() == DOWN
    assert [(change.kind, change.service_id, change.acknowledgement) for change in changes] == [
        (ChangeKind.ACKNOWLEDGED, "db", DOWN),
        (ChangeKind.ACKNOWLEDGED, None, DOWN),
    ]


def test_it_ends_when_the_problem_has_cleared(node: NodeState, changes: list[Change]) -> None:
    node.acknowledgements.make(DOWN, "db")
    node.acknowledgements.make(DOWN)
    Handle(node, "db").initializing("loading")
    assert ends(changes) == []
    Handle(node, "db").up()
    assert sorted(ends(changes), key=str) == [
        ("db", "the problem has cleared"),
        (None, "the problem has cleared"),
    ]
    assert node.acknowledgements.find("db") is node.acknowledgements.find() is None


def test_it_ends_when_the_problem_gets_worse(node: NodeState, changes: list[Change]) -> None:
    Handle(node, "db").initializing("loading")
    node.acknowledgements.make(INITIALIZING, "db")
    node.acknowledgements.make(INITIALIZING)
    Handle(node, "db").down("refused")
    assert {reason for _, reason in ends(changes)} == {"the problem has got worse"}
    assert node.acknowledgements.find("db") is node.acknowledgements.find() is None


def test_a_drain_does_not_end_that_of_the_node(node: NodeState) -> None:
    Handle(node, "db").initializing("loading")
    node.acknowledgements.make(INITIALIZING)
    node.overrides.drain()
    node.overrides.undrain()
    assert node.acknowledgements.find() == INITIALIZING


def test_one_that_comes_too_late_has_no_effect(node: NodeState, changes: list[Change]) -> None:
    node.acknowledgements.make(DOWN, "cache")  # it is Up again
    node.acknowledgements.make(INITIALIZING, "db")  # it is Down now
    assert changes == []


def test_it_ends_with_its_service_and_one_of_a_service_that_is_not_registered_yet_waits(
    node: NodeState, changes: list[Change]
) -> None:
    node.acknowledgements.make(DOWN, "db")
    node.deregister("db")
    assert ends(changes) == [("db", "the service is no longer registered")]
    node.acknowledgements.make(DOWN, "db")
    handle = node.register("db")
    assert node.acknowledgements.find("db") == DOWN
    handle.up()
    assert node.acknowledgements.find("db") is None


def test_it_ends_at_its_time_also_if_the_wall_clock_is_set(
    node: NodeState, changes: list[Change], clock: VirtualClock, wall: VirtualClock
) -> None:
    node.acknowledgements.make(DOWN._replace(until_s=MADE_S + 30.0), "db")
    node.acknowledgements.make(DOWN._replace(until_s=MADE_S + 86_400.0))
    clock.now_s = 29.0
    node.expire_stale()
    assert ends(changes) == []
    clock.now_s = 30.0
    node.expire_stale()
    assert ends(changes) == [("db", "it has expired")]
    wall.now_s += 86_400.0
    clock.now_s += 60.0
    node.expire_stale()
    assert ends(changes)[1:] == [(None, "it has expired")]


def test_it_is_ended_by_a_person_and_only_if_there_is_one(node: NodeState, changes: list[Change]) -> None:
    node.acknowledgements.end("db")
    node.acknowledgements.make(DOWN, "db")
    node.acknowledgements.end("db")
    assert ends(changes) == [("db", "")]


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (DOWN, "by ops at 2026-01-01 00:00:00 UTC: disk ordered"),
        (INITIALIZING, "at 2026-01-01 00:00:00 UTC"),
        (
            DOWN._replace(until_s=MADE_S + 60.0, reason=""),
            "by ops at 2026-01-01 00:00:00 UTC until 2026-01-01 00:01:00 UTC",
        ),
    ],
)
def test_its_text_says_who_when_until_when_and_why(made: Acknowledgement, text: str) -> None:
    assert made.text == text
