"""All checks in the order in which they run: a check comes after those it needs."""

from __future__ import annotations

from types import MappingProxyType

from svcnode.conformance.check import Check
from svcnode.conformance.checks import (
    health,
    identity,
    methods,
    paths,
    service_health,
    services,
    transport,
    versions,
)

# Every `Check` in the namespace of a module belongs to its group.
GROUPS = MappingProxyType(
    {
        title: tuple(value for value in vars(module).values() if isinstance(value, Check))
        for title, module in {
            "identity": identity,
            "services": services,
            "health": health,
            "service health": service_health,
            "versions": versions,
            "methods": methods,
            "paths": paths,
            "transport": transport,
        }.items()
    }
)
CHECKS = tuple(check for group in GROUPS.values() for check in group)
