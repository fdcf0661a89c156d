"""Who is in maintenance, and until when. Values only: a change gives a new record."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcnode.core.model import Maintenance


class MaintenanceRecords:
    """By service id; None: the node. One of each source. A service need not be registered yet.

    Never changed: other threads read it without a lock.
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

    def changed_from(self, before: MaintenanceRecords) -> list[str | None]:
        """The services, or the node, whose records differ."""
        keys = dict.fromkeys((*before._records, *self._records))
        return [key for key in keys if self._records.get(key) != before._records.get(key)]

    def _others(self, service_id: str | None, source: str) -> tuple[Maintenance, ...]:
        return tuple(record for record in self._records.get(service_id, ()) if record.source != source)

    def _with(self, service_id: str | None, found: tuple[Maintenance, ...]) -> MaintenanceRecords:
        return MaintenanceRecords({**self._records, service_id: found})
