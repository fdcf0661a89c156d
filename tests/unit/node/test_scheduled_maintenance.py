"""Scheduled maintenance begins and ends by the wall clock."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from svcnode.config import load
from svcnode.core.maintenance import MaintenanceSchedule, PlannedMaintenance, parse_start
from svcnode.core.model import ChangeKind
from svcnode.node.scheduled_maintenance import PLANNED, ScheduledMaintenance
from tests.support import nodes
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from pathlib import Path

    from svcnode.core.model import Change
    from svcnode.node.node_state import NodeState

SUNDAY_S = datetime(2026, 11, 15, tzinfo=UTC).timestamp()


def schedule(start: str, hours: float, *service_ids: str, reason: str = "") -> MaintenanceSchedule:
    return MaintenanceSchedule(
        service_ids=service_ids, start=parse_start(start), duration_s=hours * 3600, timezone=UTC, reason=reason
    )


def make_node(starts_s: float = SUNDAY_S, steps_s: list[float] | None = None) -> NodeState:
    """`steps_s`: by how much the wall clock was set since the start."""
    loop = asyncio.get_running_loop()
    node = nodes.make_node(clock=loop.time, wall_clock=lambda: starts_s + loop.time() + sum(steps_s or ()))
    node.register("db")
    return node


@in_virtual_time
async def test_schedules_begin_and_end_on_their_day() -> None:
    node, changes = make_node(SUNDAY_S + 22 * 3600), list[tuple[ChangeKind, str | None, float]]()

    def on_change(change: Change) -> None:
        changes.append((change.kind, change.service_id, round(change.at_s / 3600, 2)))

    node.subscribe(on_change)
    scheduled = ScheduledMaintenance(node)
    scheduled.apply([schedule("Mon 02:00", 2, "db"), schedule("Sun 23:30", 1)])
    for _ in range(16):
        await asyncio.sleep(1800)
        node.expire_stale()
    scheduled.stop()
    assert changes == [
        (ChangeKind.MAINTENANCE, None, 1.5),
        (ChangeKind.MAINTENANCE_ENDED, None, 2.5),
        (ChangeKind.MAINTENANCE, "db", 4.0),
        (ChangeKind.MAINTENANCE_ENDED, "db", 6.0),
    ]


@in_virtual_time
async def test_of_two_schedules_the_one_that_ends_last_counts_and_a_reload_ends_it() -> None:
    node = make_node()
    scheduled = ScheduledMaintenance(node)
    scheduled.apply([schedule("00:00", 1, "db", reason="short"), schedule("00:00", 2, "db", reason="long")])
    maintenance = node.maintenance.current("db")
    assert maintenance is not None
    assert maintenance.reason == "long"
    changes: list[Change] = []
    node.subscribe(changes.append)
    await asyncio.sleep(300)
    scheduled.update()
    assert changes == []
    scheduled.apply([])
    assert node.maintenance.current("db") is None


@in_virtual_time
async def test_a_schedule_follows_a_wall_clock_that_is_set() -> None:
    steps_s: list[float] = []
    node = make_node(steps_s=steps_s)
    scheduled = ScheduledMaintenance(node)
    scheduled.apply([schedule("00:00", 2, "db")])
    await asyncio.sleep(600)
    assert left_s(node) == pytest.approx(6600)
    steps_s.append(3600)
    await asyncio.sleep(60)
    assert left_s(node) == pytest.approx(2940)
    steps_s.append(-1800)
    await asyncio.sleep(60)
    assert left_s(node) == pytest.approx(4680)
    steps_s.append(5 * 3600)
    await asyncio.sleep(60)
    assert left_s(node) is None
    scheduled.stop()


@in_virtual_time
async def test_planned_maintenance_is_beside_that_of_the_schedule_and_follows_a_wall_clock_that_is_set() -> None:
    steps_s: list[float] = []
    node = make_node(steps_s=steps_s)
    scheduled, planned = ScheduledMaintenance(node), ScheduledMaintenance(node, PLANNED)
    scheduled.apply([schedule("00:00", 1, "db", reason="backup")])
    times = PlannedMaintenance(service_ids=("db",), from_s=SUNDAY_S + 1800, until_s=SUNDAY_S + 7200, by="alice")
    planned.apply([times])
    sources = []
    for _ in range(5):
        maintenance = node.maintenance.current("db")
        sources.append(None if maintenance is None else (maintenance.source, maintenance.by))
        await asyncio.sleep(1800)
    assert sources == [("schedule", ""), *[("planned", "alice")] * 3, None]
    steps_s.append(-3 * 3600)
    await asyncio.sleep(60)
    assert left_s(node) is None, "it has not begun by this clock"
    steps_s.append(5400)
    await asyncio.sleep(60)
    assert left_s(node) is not None
    planned.apply([])
    scheduled.apply([])
    assert left_s(node) is None


def left_s(node: NodeState) -> float | None:
    maintenance = node.maintenance.current("db")
    return None if maintenance is None else maintenance.ends_at_s - node.now_s()


def test_a_schedule_of_the_file_has_its_time_zone(tmp_path: Path) -> None:
    file = tmp_path / "svcnode.toml"
    file.write_text('[[maintenance]]\nstart = "02:30"\nduration = "1h"\ntimezone = "Europe/Berlin"\n')
    (one,) = load(file, {"HOME": str(tmp_path)}).maintenance
    assert one.next_begin_s(SUNDAY_S) == SUNDAY_S + 1.5 * 3600
