"""What follows from the definitions of the services alone: it is computed again only after one of them has changed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.dependencies import Dependencies, find_dependencies
from svcnode.core.model import ChangeKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcnode.core.model import Change
    from svcnode.node.node_state import NodeState

_DEFINITION_CHANGES = (ChangeKind.REGISTERED, ChangeKind.REPLACED, ChangeKind.DEREGISTERED)


class Structure(NamedTuple):
    version: int
    group_totals: Mapping[str, int]  # services in each group, in the order of their first one; "": in none
    dependencies: Dependencies


class StructureCache:
    def __init__(self, node: NodeState) -> None:
        self._node = node
        self._version = 0
        self._known: Structure | None = None
        self.close = node.subscribe(self._on_change)

    def _on_change(self, change: Change) -> None:
        if change.kind in _DEFINITION_CHANGES:
            self._version += 1

    def get(self) -> Structure:
        """In any thread."""
        version, known = self._version, self._known
        if known is None or known.version != version:
            services = [service for service, _ in self._node]
            totals = Counter(service.group for service in services)
            known = self._known = Structure(version, totals, find_dependencies(services))
        return known
