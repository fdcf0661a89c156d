"""The services of the configuration: what a change of it does to the node, and what is said of that."""

from __future__ import annotations

import logging

import pytest

from svcnode.agent.services import ConfiguredServices
from svcnode.config import ServiceSettings
from svcnode.core.model import Change, ChangeKind, Status, Verdict
from svcnode.definition import define
from svcnode.node import Node


class World:
    def __init__(self) -> None:
        self.node = Node("validator-7", version="v1")
        self.services = ConfiguredServices(self.node)
        self.changes: list[tuple[ChangeKind, str | None]] = []
        self.node.subscribe(self._heard)

    def _heard(self, change: Change) -> None:
        self.changes.append((change.kind, change.service_id))

    @property
    def statuses(self) -> dict[str, Status]:
        return {service.id: state.status for service, state in self.node}


@pytest.fixture
def world() -> World:
    return World()


def probed(service_id: str, name: str = "") -> ServiceSettings:
    return ServiceSettings(definition=define(service_id, name=name, probe="tcp://127.0.0.1:1"))


def fixed(service_id: str, status: Status = Status.UP) -> ServiceSettings:
    return ServiceSettings(definition=define(service_id), status=status)


def test_services_come_change_and_go(world: World) -> None:
    world.services.apply([probed("a"), probed("b")])
    world.changes.clear()
    world.services.apply([probed("b", "Ledger"), fixed("c", Status.DOWN)])
    assert world.statuses == {"b": Status.INITIALIZING, "c": Status.DOWN}
    assert world.changes == [
        (ChangeKind.REPLACED, "b"),
        (ChangeKind.REGISTERED, "c"),
        (ChangeKind.STATUS, "c"),
        (ChangeKind.DEREGISTERED, "a"),
    ]


def test_what_has_not_changed_is_left_alone(world: World) -> None:
    services = [probed("a"), fixed("b")]
    world.services.apply(services)
    world.changes.clear()
    world.services.apply(services)
    assert not world.changes


def test_what_a_change_came_to_is_told_by_id(world: World) -> None:
    first = world.services.apply([probed("a"), probed("b"), fixed("c"), fixed("d")])
    assert str(first) == "added a, b, c, d"
    second = world.services.apply([probed("b", "Ledger"), fixed("c", Status.DOWN), fixed("d"), probed("e")])
    assert str(second) == "removed a; added e; changed b, c"
    assert second.counts == {"removed": 1, "added": 1, "changed": 2}


def test_that_no_service_has_changed_is_told_as_well(world: World) -> None:
    services = [probed("a"), fixed("b")]
    world.services.apply(services)
    assert str(world.services.apply(reversed(services))) == "no service changed"


def test_of_many_services_a_few_are_named_and_the_others_counted(world: World) -> None:
    world.services.apply([fixed(f"s{number}") for number in range(5)])
    changed = world.services.apply([fixed(f"t{number}") for number in range(1000)])
    assert str(changed) == "removed s0, s1, s2, s3, s4; added t0, t1, t2, t3, t4 and 995 more"
    assert changed.counts == {"removed": 5, "added": 1000, "changed": 0}


def test_a_change_that_failed_half_way_is_taken_up_where_it_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.services.apply([probed("old")])
    wanted = [probed("a"), fixed("b"), probed("c")]
    with monkeypatch.context() as patched:
        patched.setattr(world.node, "report", _fail)
        with pytest.raises(MemoryError):
            world.services.apply(wanted)
    assert world.statuses.keys() == {"old", "a", "b"}
    world.services.apply(wanted)
    assert world.statuses == {"a": Status.INITIALIZING, "b": Status.UP, "c": Status.INITIALIZING}


def _fail(*_: object) -> None:
    raise MemoryError


def test_services_of_fixed_status_are_told_together_and_when_they_change(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "svcnode")
    for services in (
        [fixed("a"), fixed("b"), fixed("c", Status.DOWN)],
        [fixed("a"), fixed("b"), fixed("c", Status.DOWN), probed("d")],
        [fixed("a")],
        [],
    ):
        world.services.apply(services)
    told = [message for message in caplog.messages if "set in the configuration" in message]
    assert told == [
        "3 services have a status that is set in the configuration: 2 Up, 1 Down",
        "1 service has a status that is set in the configuration: 1 Up",
        "no services have a status that is set in the configuration",
    ]


def test_a_service_that_goes_down_is_a_warning(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.services.apply([probed("db")])
    caplog.set_level(logging.INFO, "svcnode")
    world.node.record("db", Verdict.ready())
    for _ in range(3):
        world.node.record("db", Verdict.failed("refused"))
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "service db is Up, was Initializing"),
        ("INFO", "node health is 200, was 206"),
        ("WARNING", "service db is Down, was Up: refused"),
        ("INFO", "node health is 503, was 200"),
    ]
