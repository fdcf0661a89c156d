"""A registered service and its state, and when the states expire.

A heap holds the earliest time at which a state can expire. Reports do not change it: an item whose service has reported
since is queued again when its time comes, so a service costs one heap operation per stale period, not per report.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

from svcnode.core import state_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from svcnode.core.model import Policy, ServiceState, Status, Tally
    from svcnode.node.definition import Definition
    from svcnode.node.standstill import Standstill


class Entry:
    """A registered service and its state. `queued_at_s` is its time in the expiry queue, which may be too early.

    `service` is the service as it counts now: with the impact of maintenance, and the deadline of a schedule.
    """

    __slots__ = (
        "_dated_by",
        "_standstill",
        "_wall_offset_s",
        "defined",
        "expires_at_s",
        "probe_config",
        "queued_at_s",
        "service",
        "state",
    )

    def __init__(
        self,
        definition: Definition,
        state: ServiceState,
        *,
        in_maintenance: bool,
        wall_offset_s: Callable[[], float],
        standstill: Standstill,
    ) -> None:
        self.defined = self.service = definition.service
        self.probe_config = definition.probe_config
        self.queued_at_s = math.inf
        self._wall_offset_s = wall_offset_s
        self._standstill = standstill
        self._dated_by: tuple[ServiceState, float] | None = None  # what the deadline follows from
        self.set_maintenance(in_maintenance)
        self.set_state(state)

    @property
    def has_schedule(self) -> bool:
        """Whether the wall clock decides when the state expires."""
        return self.defined.policy.run_times is not None

    def set_maintenance(self, in_maintenance: bool) -> None:
        policy = self.service.policy
        service = self.defined.during_maintenance() if in_maintenance else self.defined
        self.service = service if service.policy is policy else replace(service, policy=policy)

    def set_state(self, state: ServiceState) -> None:
        self.state = state
        if self.has_schedule:
            self._set_deadline(state)
        self.expires_at_s = state_machine.expires_at_s(state, self.service.policy)

    def _set_deadline(self, state: ServiceState) -> None:
        dated_by = (state, self._wall_offset_s())
        if dated_by != self._dated_by:
            self._dated_by = dated_by
            self.service = replace(self.service, policy=self.policy_for(state))

    def policy_for(self, state: ServiceState) -> Policy:
        return state_machine.with_deadline(self.defined.policy, state, self._wall_offset_s())

    def as_of(self, now_s: float) -> ServiceState:
        if now_s < self.expires_at_s:
            return self.state
        standstill_s = self._standstill.duration_s(self.expires_at_s, now_s)
        return state_machine.as_of(self.state, now_s, self.service.policy, standstill_s)

    @property
    def tally(self) -> Tally:
        return self.tally_of(self.state.status)

    def tally_of(self, status: Status) -> Tally:
        service = self.service
        return state_machine.service_tally(service.impact, status, is_impact_lowered=service.is_impact_lowered)


class ExpiryQueue:
    """`is_kept` says whether an entry still counts. Not thread-safe."""

    def __init__(self, is_kept: Callable[[Entry], bool]) -> None:
        self._is_kept = is_kept
        self._heap: list[tuple[float, int, Entry]] = []
        self._tiebreaker = count()  # keeps the heap from comparing entries

    @property
    def next_at_s(self) -> float:
        """No entry expires before this time."""
        return self._heap[0][0] if self._heap else math.inf

    def put(self, entry: Entry) -> None:
        if entry.expires_at_s < math.inf:
            heapq.heappush(self._heap, (entry.expires_at_s, next(self._tiebreaker), entry))
            entry.queued_at_s = entry.expires_at_s

    def take_due(self, now_s: float) -> Iterator[Entry]:
        """Entries that may have expired; the caller queues those again that have not."""
        while self._heap and self._heap[0][0] <= now_s:
            item = heapq.heappop(self._heap)
            if self._is_current(item):
                item[2].queued_at_s = math.inf
                yield item[2]

    def compact(self, kept: int) -> None:
        """Drop items that are not current, which would otherwise stay until their time comes, up to a week."""
        if len(self._heap) > 2 * kept + 64:
            self._heap = [item for item in self._heap if self._is_current(item)]
            heapq.heapify(self._heap)

    def clear(self) -> None:
        self._heap = []

    def _is_current(self, item: tuple[float, int, Entry]) -> bool:
        """Whether an item is of an entry that counts, and not replaced by an earlier one."""
        at_s, _, entry = item
        return at_s == entry.queued_at_s and self._is_kept(entry)
