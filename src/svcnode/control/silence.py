"""`deregister_after`: which registered services have been silent for so long that they are removed.

A worker with its own id may end and never come back. Removing it makes the node better, so only silence that the node
has listened to counts. Time in which the node did not run or stood still does not count, and neither does maintenance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from svcnode.node.node_state import NodeState
    from svcnode.node.standstill import Standstill


class SilentServices:
    """`limits` says after how many seconds of silence each service is removed. Call `tick` often."""

    def __init__(self, node: NodeState, standstill: Standstill, limits: Callable[[], Mapping[str, float]]) -> None:
        self._node = node
        self._standstill = standstill
        self._limits = limits
        self._maintained_until_s: dict[str, float] = {}

    def tick(self) -> list[str]:
        """The services to remove now."""
        now_s, limits = self._standstill.tick(), self._limits()
        maintained = {name: now_s for name in limits if self._node.maintenance.current(name) is not None}
        ended = {name: until_s for name, until_s in self._maintained_until_s.items() if name in limits}
        self._maintained_until_s = ended | maintained
        return [name for name in limits if self.is_due(name)]

    def is_due(self, service_id: str) -> bool:
        limit_s, found = self._limits().get(service_id), self._node.find(service_id)
        if limit_s is None or found is None:
            return False
        state = found[1]
        heard_at_s = max(
            self._standstill.ended_at_s,
            self._maintained_until_s.get(service_id, 0.0),
            state.registered_at_s,
            state.last_evidence_at_s or 0.0,
            state.job_started_at_s or 0.0,
        )
        return self._node.now_s() - heard_at_s >= limit_s
