"""Which services depend on which."""

from __future__ import annotations

import pytest

from svcnode.core.dependencies import Dependencies, direct_causes, find_cycle, find_dependencies, reject_cycle
from svcnode.core.errors import InvalidValueError
from svcnode.core.model import Service


def service(service_id: str, *depends_on: str, group: str = "") -> Service:
    return Service(id=service_id, name="", description="", group=group, depends_on=depends_on)


def test_a_name_is_an_id_or_else_a_group_or_nothing() -> None:
    services = [
        service("a", "disks", "b", "unknown"),
        service("b", "b-group"),
        service("disk-1", "disks", group="disks"),
        service("disk-2", group="disks"),
        service("b-group"),
        service("c", group="b-group"),
    ]
    assert direct_causes(services) == {"a": {"b", "disk-1", "disk-2"}, "b": {"b-group"}, "disk-1": {"disk-2"}}
    assert direct_causes([service("a", group="x")]) == {}


def test_a_service_depends_on_the_causes_of_its_causes() -> None:
    found = find_dependencies([service("ui", "api"), service("api", "db", "cache"), service("db"), service("cache")])
    assert found.causes_of("ui") == {"api", "db", "cache"}
    assert found.dependents_of("db") == {"api", "ui"}
    assert found.causes_of("db") == found.dependents_of("ui") == Dependencies().causes_of("ui") == frozenset()


def test_services_that_depend_on_each_other_are_no_causes_of_each_other() -> None:
    found = find_dependencies([service("a", "b"), service("b", "a", "db"), service("ui", "a"), service("db")])
    assert found.causes_of("a") == found.causes_of("b") == {"db"}
    assert found.causes_of("ui") == {"a", "b", "db"}


def test_a_cycle_is_found_by_its_shortest_path() -> None:
    direct = direct_causes([service("a", "b", "c"), service("b", "c"), service("c", "a"), service("d", "a")])
    assert find_cycle("a", direct) == ["a", "c", "a"]
    assert find_cycle("d", direct) == []


def test_a_new_definition_must_not_close_a_cycle() -> None:
    others = [service("a", "b"), service("b")]
    reject_cycle(service("c", "a"), others)
    with pytest.raises(InvalidValueError, match="b -> a -> b"):
        reject_cycle(service("b", "a"), others)
