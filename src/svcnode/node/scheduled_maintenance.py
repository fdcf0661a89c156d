"""Maintenance that begins and ends by the wall clock: by the schedule in the configuration, or once, as planned."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from svcnode.core.model import Maintenance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcnode.core.maintenance import MaintenanceTimes
    from svcnode.node.node_state import NodeState

SCHEDULE, PLANNED = "schedule", "planned"  # the sources
MAX_WAIT_S = 30.0  # the wall clock may be set
TOLERANCE_S = 1.0  # an end that differs by less is the same: the difference of the clocks is measured


class ScheduledMaintenance:
    """Not thread-safe: used on the event loop of the agent."""

    def __init__(self, node: NodeState, source: str = SCHEDULE) -> None:
        self._node = node
        self._source = source
        self._schedules: Sequence[MaintenanceTimes] = ()
        self._current: dict[str | None, Maintenance] = {}  # by service id; None: the node
        self._timer: asyncio.TimerHandle | None = None

    def apply(self, schedules: Sequence[MaintenanceTimes]) -> None:
        self._schedules = schedules
        self.update()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def update(self) -> None:
        """Begin and end what the schedules say now, and set the time of the next update."""
        self.stop()
        now_s = self._node.now_s()
        wall_s = self._node.wall_time_s(now_s)
        scheduled = self._scheduled(now_s, wall_s)
        for service_id in self._current.keys() - scheduled.keys():
            self._node.maintenance.end(service_id, source=self._source)
        for service_id, maintenance in scheduled.items():
            if not _is_same(self._current.get(service_id), maintenance):
                self._node.maintenance.set(maintenance, service_id)
            else:
                scheduled[service_id] = self._current[service_id]
        self._current = scheduled
        if self._schedules:
            next_s = min(schedule.next_begin_s(wall_s) for schedule in self._schedules) - wall_s
            self._timer = asyncio.get_running_loop().call_later(min(next_s, MAX_WAIT_S), self.update)

    def _scheduled(self, now_s: float, wall_s: float) -> dict[str | None, Maintenance]:
        """Of each service, the one that ends last."""
        scheduled: dict[str | None, Maintenance] = {}
        for schedule in self._schedules:
            end_s = schedule.end_s(wall_s)
            if end_s is None:
                continue
            maintenance = Maintenance(self._source, now_s + end_s - wall_s, schedule.by, schedule.reason)
            for service_id in schedule.service_ids or (None,):
                other = scheduled.get(service_id)
                if other is None or other.ends_at_s < maintenance.ends_at_s:
                    scheduled[service_id] = maintenance
        return scheduled


def _is_same(current: Maintenance | None, new: Maintenance) -> bool:
    return (
        current is not None
        and current._replace(ends_at_s=new.ends_at_s) == new
        and abs(current.ends_at_s - new.ends_at_s) < TOLERANCE_S
    )
