"""Which services depend on which others. `depends_on` of a service has ids of services and names of groups."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from svcnode.core.model import Service

_NONE: frozenset[str] = frozenset()


class Dependencies(NamedTuple):
    """By the id of a service, directly or through others. Services that depend on each other are in neither."""

    causes: Mapping[str, frozenset[str]] = {}
    dependents: Mapping[str, frozenset[str]] = {}

    def causes_of(self, service_id: str) -> frozenset[str]:
        return self.causes.get(service_id, _NONE)

    def dependents_of(self, service_id: str) -> frozenset[str]:
        return self.dependents.get(service_id, _NONE)


def direct_causes(services: Iterable[Service]) -> dict[str, frozenset[str]]:
    """Of the services that depend on others. A name is an id, or else a group; one that nothing has is left out."""
    by_name: dict[str, frozenset[str]] = {}
    groups: defaultdict[str, set[str]] = defaultdict(set)
    dependent = []
    for service in services:
        by_name[service.id] = frozenset((service.id,))
        groups[service.group].add(service.id)
        if service.depends_on:
            dependent.append(service)
    by_name = {name: frozenset(ids) for name, ids in groups.items() if name} | by_name if dependent else {}
    return {
        service.id: frozenset().union(*(by_name.get(name, _NONE) for name in service.depends_on)) - {service.id}
        for service in dependent
    }


def find_dependencies(services: Iterable[Service]) -> Dependencies:
    direct = direct_causes(services)
    reached = {service_id: _reach(service_id, direct) for service_id in direct}
    causes = {
        service_id: frozenset(cause for cause in found if service_id not in reached.get(cause, _NONE))
        for service_id, found in reached.items()
    }
    dependents: defaultdict[str, set[str]] = defaultdict(set)
    for service_id, found in causes.items():
        for cause in found:
            dependents[cause].add(service_id)
    return Dependencies(causes, {cause: frozenset(ids) for cause, ids in dependents.items()})


def find_cycle(service_id: str, direct: Mapping[str, frozenset[str]]) -> list[str]:
    """A shortest path from a service to itself, such as a, b, a; empty: it does not depend on itself."""
    paths = [[service_id]]
    seen: set[str] = set()
    for path in paths:  # which grows
        for cause in sorted(direct.get(path[-1], _NONE)):
            if cause == service_id:
                return [*path, cause]
            if cause not in seen:
                seen.add(cause)
                paths.append([*path, cause])
    return []


def reject_cycle(service: Service, others: Iterable[Service]) -> None:
    """Raises `InvalidValueError` if a new or redefined service would depend on itself."""
    services = {one.id: one for one in (*others, service)}
    if cycle := find_cycle(service.id, direct_causes(services.values())):
        raise InvalidValueError(f"depends_on: the service would depend on itself: {' -> '.join(cycle)}")


def _reach(service_id: str, direct: Mapping[str, frozenset[str]]) -> frozenset[str]:
    found: set[str] = set()
    waiting = [service_id]
    while waiting:
        new = direct.get(waiting.pop(), _NONE) - found
        found |= new
        waiting += new
    return frozenset(found)
