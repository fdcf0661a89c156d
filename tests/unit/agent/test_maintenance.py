"""Scheduled maintenance begins and ends by the wall clock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from svcnode.agent.maintenance import ScheduledMaintenance
from svcnode.core.maintenance import MaintenanceSchedule, parse_start
from svcnode.core.model import ChangeKind
from svcnode.node import Node
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from svcnode.core.model import Change

SUNDAY_S = datetime(2026, 11, 15, tzinfo=UTC).timestamp()


def schedule(start: str, hours: float, *service_ids: str, reason: str = "") -> MaintenanceSchedule:
    return MaintenanceSchedule(
        service_ids=service_ids, start=parse_start(start), duration_s=hours * 3600, timezone=UTC, reason=reason
    )


def make_node() -> Node:
    loop = asyncio.get_running_loop()
    node = Node("validator-7", version="v1", clock=loop.time, wall_clock=lambda: SUNDAY_S + loop.time())
    node.register("db")
    return node


@in_virtual_time
async def test_a_week_of_schedules() -> None:
    node, changes = make_node(), list[tuple[ChangeKind, str | None, float]]()

    def on_change(change: Change) -> None:
        changes.append((change.kind, change.service_id, round(change.at_s / 3600, 2)))

    node.subscribe(on_change)
    scheduled = ScheduledMaintenance(node)
    scheduled.apply([schedule("Mon 02:00", 2, "db"), schedule("Sun 23:30", 1)])
    for _ in range(7 * 24 * 60):
        await asyncio.sleep(60)
        node.expire_stale()
    scheduled.stop()
    assert changes == [
        (ChangeKind.MAINTENANCE, None, 23.5),
        (ChangeKind.MAINTENANCE_ENDED, None, 24.5),
        (ChangeKind.MAINTENANCE, "db", 26.0),
        (ChangeKind.MAINTENANCE_ENDED, "db", 28.0),
    ]


@in_virtual_time
async def test_of_two_schedules_the_one_that_ends_last_counts_and_a_reload_ends_it() -> None:
    node = make_node()
    scheduled = ScheduledMaintenance(node)
    scheduled.apply([schedule("00:00", 1, "db", reason="short"), schedule("00:00", 2, "db", reason="long")])
    maintenance = node.maintenance("db")
    assert maintenance is not None
    assert maintenance.reason == "long"
    changes: list[Change] = []
    node.subscribe(changes.append)
    await asyncio.sleep(300)
    scheduled.update()
    assert changes == []
    scheduled.apply([])
    assert node.maintenance("db") is None
