"""Who is in maintenance, and until when; and what is planned."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from svcnode.core.model import ChangeKind, Maintenance
from svcnode.core.units import utc_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from svcnode.core.maintenance import PlannedMaintenance


class MaintenanceRecords:
    """Maintenance by service id, one of each source; `None` stands for the node. A service need not be registered yet.

    It is never changed, so other threads read it without a lock.
    """

    def __init__(self, records: Mapping[str | None, tuple[Maintenance, ...]] | None = None) -> None:
        self._records = {key: found for key, found in (records or {}).items() if found}
        ends = (record.ends_at_s for found in self._records.values() for record in found)
        self.first_end_s = min(ends, default=math.inf)

    def at(self, service_id: str | None, now_s: float) -> Maintenance | None:
        """The one that ends last. That of the node is one of each service, too."""
        found = self._records.get(None, ())
        if service_id is not None:
            found += self._records.get(service_id, ())
        current = (record for record in found if now_s < record.ends_at_s)
        return max(current, key=lambda record: record.ends_at_s, default=None)

    def with_one(self, service_id: str | None, maintenance: Maintenance) -> MaintenanceRecords:
        """It replaces an earlier one of the same source."""
        return self._with(service_id, (*self._others(service_id, maintenance.source), maintenance))

    def without(self, service_id: str | None, source: str) -> MaintenanceRecords:
        return self._with(service_id, self._others(service_id, source))

    def without_ended(self, now_s: float) -> MaintenanceRecords:
        return MaintenanceRecords(
            {key: tuple(one for one in found if now_s < one.ends_at_s) for key, found in self._records.items()}
        )

    def items(self) -> Iterable[tuple[str | None, tuple[Maintenance, ...]]]:
        return self._records.items()

    def changed_from(self, before: MaintenanceRecords) -> list[str | None]:
        """The services, or the node, whose records differ."""
        keys = dict.fromkeys((*before._records, *self._records))
        return [key for key in keys if self._records.get(key) != before._records.get(key)]

    def _others(self, service_id: str | None, source: str) -> tuple[Maintenance, ...]:
        return tuple(record for record in self._records.get(service_id, ()) if record.source != source)

    def _with(self, service_id: str | None, found: tuple[Maintenance, ...]) -> MaintenanceRecords:
        return MaintenanceRecords({**self._records, service_id: found})


class MaintenanceWindows:
    """The maintenance of the node and of its services. Thread-safe."""

    def __init__(
        self,
        changing: Callable[[], AbstractContextManager[float]],
        on_change: Callable[[str | None, float], None],
        on_plan: Callable[[ChangeKind, str | None, float, str], None],
        *,
        clock: Callable[[], float],
        wall_time_s: Callable[[float], float],
    ) -> None:
        """`changing` holds the lock of the node, and gives the time. `on_change`: of a service, or of the node.

        `on_plan`: the kind of the change, the service or the node, the time, and what is or was planned.
        """
        self._changing = changing
        self._on_change = on_change
        self._on_plan = on_plan
        self._clock = clock
        self._wall_time_s = wall_time_s
        self._records = MaintenanceRecords()
        self._planned: dict[tuple[str | None, str], PlannedMaintenance] = {}  # by service and source

    def current(self, service_id: str | None = None) -> Maintenance | None:
        """Of a service or of the node, now: the one that ends last. That of the node is one of each service, too."""
        return self.at(service_id, self._clock())

    def at(self, service_id: str | None, now_s: float) -> Maintenance | None:
        return self._records.at(service_id, now_s)

    def set(self, maintenance: Maintenance, service_id: str | None = None) -> None:
        """Of a service, or of the node with all of its services. It replaces an earlier one of the same source."""
        with self._changing() as now_s:
            self._replace(self._records.with_one(service_id, maintenance), now_s)

    def end(self, service_id: str | None = None, *, source: str) -> None:
        with self._changing() as now_s:
            self._replace(self._records.without(service_id, source), now_s)

    def plan(self, planned: PlannedMaintenance | None, service_id: str | None = None, *, source: str) -> None:
        """What is shown as planned. It changes nothing else: whoever plans it begins and ends it."""
        with self._changing() as now_s:
            others = {key: other for key, other in self._planned.items() if key != (service_id, source)}
            before = self._planned.get((service_id, source))
            self._planned = others if planned is None else {**others, (service_id, source): planned}
            told, kind = planned, ChangeKind.MAINTENANCE_PLANNED
            if planned is None:
                told, kind = before, ChangeKind.MAINTENANCE_CANCELLED
            if told is not None and planned != before and self._wall_time_s(now_s) < told.from_s:
                self._on_plan(kind, service_id, now_s, planned_text(told))

    def next_planned(self, service_id: str | None = None) -> PlannedMaintenance | None:
        """Of a service or of the node: the one that begins first. That of the node is one of each service, too."""
        wall_s = self._wall_time_s(self._clock())
        found = (planned for (key, _), planned in self._planned.items() if key in (None, service_id))
        coming = (planned for planned in found if wall_s < planned.from_s)
        return min(coming, key=lambda planned: planned.from_s, default=None)

    def all_current(self) -> list[tuple[str | None, Maintenance]]:
        """Of the node (None) and of services, of every source."""
        now_s = self._clock()
        return [(key, one) for key, found in self._records.items() for one in found if now_s < one.ends_at_s]

    def all_planned(self) -> list[tuple[str | None, str, PlannedMaintenance]]:
        """With their services, None for the node, and their sources; those that have not begun."""
        wall_s = self._wall_time_s(self._clock())
        return [(key, source, one) for (key, source), one in self._planned.items() if wall_s < one.from_s]

    @property
    def first_end_s(self) -> float:
        return self._records.first_end_s

    def expire(self, now_s: float) -> None:
        """The caller holds the lock."""
        if now_s >= self._records.first_end_s:
            self._replace(self._records.without_ended(now_s), now_s)

    def text(self, maintenance: Maintenance) -> str:
        return maintenance.text(utc_text(self._wall_time_s(maintenance.ends_at_s)))

    def _replace(self, records: MaintenanceRecords, now_s: float) -> None:
        before, self._records = self._records, records
        for service_id in records.changed_from(before):
            self._on_change(service_id, now_s)


def planned_text(planned: PlannedMaintenance) -> str:
    maintenance = Maintenance("planned", math.inf, planned.by, planned.reason)
    return f"from {utc_text(planned.from_s)} {maintenance.text(utc_text(planned.until_s))}"
