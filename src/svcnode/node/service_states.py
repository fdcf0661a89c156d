"""The services of a node, their states, and what follows from them: the tally, and when a state expires next.

A report costs the same with 10 services and with 10,000: the health of the node comes from the running tally, not from
a loop over the services, and a state that expires is found in a queue (expiry.py).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from svcnode.core import state_machine
from svcnode.core.errors import UnknownServiceError
from svcnode.core.model import Status, Tally
from svcnode.node.expiry import Entry, ExpiryQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from svcnode.core.model import Evidence, KnownBefore, ServiceState
    from svcnode.node.definition import Definition
    from svcnode.node.standstill import Standstill

CLOCK_CHECK_S = 60.0


class ServiceStates:
    """The services in the order of registration. Not thread-safe: `NodeState` has the lock.

    `on_status` is called with the time, the entry and its state before, when a status has changed.
    """

    def __init__(
        self,
        on_status: Callable[[float, Entry, ServiceState], None],
        wall_offset_s: Callable[[], float],
        standstill: Standstill,
    ) -> None:
        """`wall_offset_s` is the time from the clock of evidence to the wall clock, now."""
        self.entries: dict[str, Entry] = {}
        self.not_up: dict[str, Entry] = {}  # the first to fail first
        self.tally = Tally()
        self._on_status = on_status
        self._wall_offset_s = wall_offset_s
        self._standstill = standstill
        self._clock_check_at_s = math.inf  # of the wall clock, as long as there are jobs that run by a schedule
        self._expiry = ExpiryQueue(lambda entry: self.entries.get(entry.service.id) is entry)

    def entry(self, service_id: str) -> Entry:
        try:
            return self.entries[service_id]
        except KeyError:
            raise UnknownServiceError(service_id) from None

    @property
    def next_expiry_at_s(self) -> float:
        """No state expires before this time."""
        return min(self._expiry.next_at_s, self._clock_check_at_s)

    def put(self, definition: Definition, state: ServiceState, *, in_maintenance: bool) -> None:
        """Add a service, or replace one at its position."""
        service_id = definition.service.id
        old = self.entries.get(service_id)
        entry = Entry(
            definition,
            state,
            in_maintenance=in_maintenance,
            wall_offset_s=self._wall_offset_s,
            standstill=self._standstill,
        )
        self.entries[service_id] = entry
        if entry.has_schedule:
            self._clock_check_at_s = -math.inf
        self._expiry.put(entry)
        self._expiry.compact(len(self.entries))
        self._count(Tally() if old is None else old.tally, entry.tally)
        self._note_status(entry)

    def remove(self, service_id: str) -> Entry:
        entry = self.entry(service_id)
        del self.entries[service_id]
        self.not_up.pop(service_id, None)
        self._expiry.compact(len(self.entries))
        self._count(entry.tally, Tally())
        return entry

    def reorder(self, ids: Iterable[str]) -> bool:
        """Services that are not named follow in their old order. Returns whether the order has changed."""
        old = self.entries
        order = dict.fromkeys((*(service_id for service_id in ids if service_id in old), *old))
        if list(order) == list(old):
            return False
        self.entries = {service_id: old[service_id] for service_id in order}
        return True

    def apply_evidence(self, entry: Entry, evidence: Evidence, now_s: float) -> ServiceState:
        # Expire first, so that the result does not depend on whether the state was read in between.
        state = state_machine.apply_evidence(entry.as_of(now_s), evidence, entry.service.policy, now_s)
        self.set_state(entry, state, now_s)
        return entry.state

    def set_state(self, entry: Entry, state: ServiceState, now_s: float) -> None:
        before = entry.state
        entry.set_state(state)
        if now_s >= entry.expires_at_s:  # late evidence may have expired already
            state = entry.as_of(now_s)
            entry.set_state(state)
        if entry.expires_at_s < entry.queued_at_s:
            self._expiry.put(entry)
        if state.status is not before.status:
            self._count(entry.tally_of(before.status), entry.tally)
            self._note_status(entry)
            self._on_status(now_s, entry, before)
        elif (known := before.known_before) and state.known_before is None and state.last_evidence_at_s is not None:
            # Only now it is known that it has not the status any more that it had before the restart.
            self._on_status(now_s, entry, before._replace(status=known.status, since_s=known.since_s))

    def remember(self, entry: Entry, known: KnownBefore) -> None:
        """What was known before the restart. The status stays."""
        entry.set_state(state_machine.with_memory(entry.state, known))

    def set_registered_at(self, entry: Entry, registered_at_s: float) -> None:
        """So it may expire earlier, at the next read."""
        entry.set_state(entry.state._replace(registered_at_s=registered_at_s))
        if entry.expires_at_s < entry.queued_at_s:
            self._expiry.put(entry)

    def set_maintenance(self, entry: Entry, in_maintenance: bool) -> None:
        before = entry.tally
        entry.set_maintenance(in_maintenance)
        self._count(before, entry.tally)

    def expire(self, now_s: float) -> None:
        if now_s >= self._clock_check_at_s:
            self._check_wall_clock(now_s)
        for entry in self._expiry.take_due(now_s):
            self.set_state(entry, entry.state, now_s)

    def _check_wall_clock(self, now_s: float) -> None:
        """If it was set, the next run of a job is earlier or later than was thought."""
        scheduled = [entry for entry in self.entries.values() if entry.has_schedule]
        for entry in scheduled:
            self.set_state(entry, entry.state, now_s)
        self._clock_check_at_s = now_s + CLOCK_CHECK_S if scheduled else math.inf

    def compact(self) -> None:
        """After a state was set that expires earlier: what it was queued for is not current."""
        self._expiry.compact(len(self.entries))

    def rebuild(self) -> None:
        """Compute everything that follows from the states again: a fork may have interrupted a change."""
        self.tally = Tally()
        self.not_up.clear()
        self._expiry.clear()
        for entry in self.entries.values():
            entry.set_state(entry.state)
            entry.queued_at_s = math.inf
            self._expiry.put(entry)
            self._count(Tally(), entry.tally)
            self._note_status(entry)

    def _note_status(self, entry: Entry) -> None:
        if entry.state.status is Status.UP:
            self.not_up.pop(entry.service.id, None)
        else:
            self.not_up[entry.service.id] = entry

    def _count(self, before: Tally, after: Tally) -> None:
        self.tally = state_machine.add_tallies(state_machine.subtract_tallies(self.tally, before), after)
