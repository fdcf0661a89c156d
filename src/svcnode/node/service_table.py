"""The service table: services and their states, thread-safe.

Every public method may be called from any thread. A report costs the same with 10 services and with 10,000, and a read
is correct at the time of the read:

* The health of the node comes from a running tally, not from a loop over the services.
* Stale evidence expires on read (expiry.py); a read before the earliest time at which a state can expire costs one
  comparison.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, Unpack
from weakref import WeakSet
from zlib import crc32

from svcnode.core import state_machine
from svcnode.core.codes import ReasonCode, known_code
from svcnode.core.errors import DuplicateServiceError, InvalidValueError, UnknownServiceError
from svcnode.core.model import (
    Change,
    ChangeKind,
    Condition,
    Evidence,
    Health,
    Identity,
    Maintenance,
    Outcome,
    Service,
    ServiceState,
    Status,
    Tally,
    Verdict,
)
from svcnode.core.text import MAX_REASON_CHARS, safe_reason, truncate, visible_text
from svcnode.core.units import iso_time
from svcnode.net.clock import WallTimes
from svcnode.node.definition import CheckOptions, define, validate_option_names
from svcnode.node.expiry import ExpiryQueue
from svcnode.node.feed import ChangeFeed
from svcnode.node.maintenance import MaintenanceRecords

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from svcnode.node.definition import Definition, ProbeConfig, ServiceOptions
    from svcnode.node.feed import OnChange, OnEvidence
    from svcnode.probes.base import Probe

F = TypeVar("F", bound="Callable[[], Any]")

_instances: WeakSet[ServiceTable] = WeakSet()


class ServiceList(Protocol):
    """Registers services in a node: the node itself, or an object that combines several sources of services.

    After `add`, the node has the service. After `deregister`, it may still have it, from another source.
    """

    def __contains__(self, service_id: object, /) -> bool: ...
    def add(self, definition: Definition, /, *, registered_at_s: float | None = None) -> object: ...
    def replace(self, definition: Definition, /) -> None: ...
    def deregister(self, service_id: str, /) -> None: ...


class Handle:
    """A registered service, for the program that reports its status."""

    __slots__ = ("_table", "id")

    def __init__(self, table: ServiceTable, service_id: str) -> None:
        self._table = table
        self.id = service_id

    def up(self, reason: object = "", *, code: str = ReasonCode.REPORTED) -> None:
        self.report(Verdict.ready(safe_reason(reason), code=code))

    def initializing(self, reason: object = "", *, code: str = ReasonCode.REPORTED) -> None:
        self.report(Verdict.not_ready(safe_reason(reason), code=code))

    def down(self, reason: object = "", *, code: str = ReasonCode.REPORTED) -> None:
        self.report(Verdict.failed(safe_reason(reason), code=code))

    def report(self, verdict: Verdict) -> None:
        self._table.report(self.id, verdict)

    def deregister(self) -> None:
        self._table.deregister(self.id)

    @property
    def state(self) -> ServiceState:
        return self._table.state(self.id)

    def __repr__(self) -> str:
        return f"<Handle {self.id!r}>"


class _Entry:
    """A registered service and its state. `queued_at_s`: its time in the expiry heap, maybe an earlier one."""

    __slots__ = ("_defined", "expires_at_s", "probe_config", "queued_at_s", "service", "state")

    def __init__(self, definition: Definition, state: ServiceState, *, in_maintenance: bool) -> None:
        self._defined = definition.service
        self.probe_config = definition.probe_config
        self.queued_at_s = math.inf
        self.set_maintenance(in_maintenance)
        self.set_state(state)

    def set_maintenance(self, in_maintenance: bool) -> None:
        self.service = self._defined.during_maintenance() if in_maintenance else self._defined

    def set_state(self, state: ServiceState) -> None:
        self.state = state
        self.expires_at_s = state_machine.expires_at_s(state, self.service.policy)

    @property
    def tally(self) -> Tally:
        return self.tally_of(self.state.status)

    def tally_of(self, status: Status) -> Tally:
        service = self.service
        return state_machine.service_tally(service.impact, status, is_impact_lowered=service.is_impact_lowered)


class SharedStates(Protocol):
    """The states that this process shares with others."""

    def sync(self) -> None:
        """Take over what the others have recorded; calls `take_over_states`."""

    def publish(self, states: Mapping[str, ServiceState], checks: Mapping[str, Evidence]) -> None:
        """New states, and the evidence that led to them."""

    def set_issue(self, issue: str, *, is_set: bool) -> None: ...


class ServiceTable:
    """The identity of a node, its backing services and their states. `Node` adds the checks."""

    def __init__(
        self, identity: Identity, *, starting: bool, clock: Callable[[], float], wall_clock: Callable[[], float]
    ) -> None:
        self._identity = identity
        self._clock = clock
        self._wall_times = WallTimes(clock, wall_clock)
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._tally = Tally()
        self._condition = Condition(starting=starting)
        self._health = state_machine.node_health(self._tally, self._condition)
        # Grows with every change that a client can see. Expiry is a change, too: call `expire_stale` before comparing.
        self.revision = 0
        self._expiry = ExpiryQueue[_Entry](lambda entry: self._entries.get(entry.service.id) is entry)
        self.next_expiry_at_s = math.inf  # no state expires before this time
        self._maintenance = MaintenanceRecords()
        self._feed = ChangeFeed()
        self._pid = os.getpid()
        self._shared: SharedStates | None = None
        self._adopted: deque[tuple[str, Evidence, ServiceState]] = deque()  # evidence that is not yet delivered
        _instances.add(self)

    # ---- registration

    def register(self, service_id: str, **options: Unpack[ServiceOptions]) -> Handle:
        """Register a service. With a probe, the service is checked; without one, the program reports its status.

        The options are those of a [[services]] table: name, description, impact, probe, interval, timeout, rise, fall,
        start_period, stale_after and others; those about checks need a probe. Without a probe, the last report is valid
        until the next one. With a `ttl`, a report is valid for this time; after it, the service is Down.
        """
        return self.add(define(service_id, **options))

    def check(self, service_id: str, **options: Unpack[CheckOptions]) -> Callable[[F], F]:
        """Register a service whose probe is the decorated function.

        The function returns nothing or True (ready), returns False (failed), a `Verdict`, an `Outcome` or a `Status`,
        or raises (failed); any other result is unknown. A plain function runs in a thread and cannot block the event
        loop. A generator function is rejected: calling it runs none of its code.
        """
        from svcnode.probes.function import FunctionProbe

        if callable(service_id):
            raise InvalidValueError('@node.check needs the id of the service: @node.check("cache")')
        validate_option_names(options, CheckOptions)

        def register(function: F) -> F:
            self.register(service_id, probe=FunctionProbe(function), **options)
            return function

        return register

    def handle(self, service_id: str) -> Handle:
        return Handle(self, self._entry(service_id).service.id)

    def add(self, definition: Definition, *, registered_at_s: float | None = None) -> Handle:
        """`registered_at_s`: the service was registered before this process started."""
        service_id = definition.service.id
        with self._change() as now_s:
            if service_id in self._entries:
                raise DuplicateServiceError(service_id)
            since_s = now_s if registered_at_s is None else min(registered_at_s, now_s)
            entry = self._new_entry(definition, state_machine.initial_state(since_s), now_s)
            self._queue_expiry(entry)
            self._update_tally(Tally(), entry.tally)
            self._publish(ChangeKind.REGISTERED, now_s, service_id, after=entry.state)
        return Handle(self, service_id)

    def set_registered_at(self, service_id: str, registered_at_s: float) -> None:
        """The service exists for longer than this process: evidence since then counts."""
        with self._change():
            entry = self._entry(service_id)
            if registered_at_s < entry.state.registered_at_s:
                entry.set_state(entry.state._replace(registered_at_s=registered_at_s))
                self._queue_expiry(entry)  # it expires earlier than it was queued for

    def replace(self, definition: Definition, *, keeps_state: bool = False) -> None:
        """Redefine a registered service. Its position in the list does not change.

        The state is kept and follows the new policy, unless the evidence now has another source: another probe, or
        heartbeats instead of reports. Then the service starts again without evidence, except with `keeps_state`: the
        same service is only checked elsewhere. An equal definition, however it was written, changes nothing.
        """
        service_id = definition.service.id
        with self._change() as now_s:
            old = self._entry(service_id)
            if (old.service, old.probe_config) == (definition.service, definition.probe_config):
                return
            if keeps_state or _evidence_source(definition) == _evidence_source(old):
                state = state_machine.as_of(old.state, now_s, old.service.policy)
                state = state_machine.as_of(state, now_s, definition.service.policy)
            else:
                state = state_machine.initial_state(now_s)
            entry = self._new_entry(definition, state, now_s)
            self._queue_expiry(entry)
            self._compact_expiry()
            self._update_tally(old.tally, entry.tally)
            self._publish(ChangeKind.REPLACED, now_s, service_id, before=old.state, after=state)

    def deregister(self, service_id: str) -> None:
        with self._change() as now_s:
            entry = self._entry(service_id)
            del self._entries[service_id]
            self._compact_expiry()
            self._update_tally(entry.tally, Tally())
            self._publish(ChangeKind.DEREGISTERED, now_s, service_id, before=entry.state)

    def reorder(self, ids: Iterable[str]) -> None:
        """Set the order of the list. Services that are not named follow in their old order."""
        with self._change() as now_s:
            old = self._entries
            order = dict.fromkeys((*(service_id for service_id in ids if service_id in old), *old))
            if list(order) != list(old):
                self._entries = {service_id: old[service_id] for service_id in order}
                self._publish(ChangeKind.NODE, now_s)

    # ---- evidence

    def report(self, service_id: str, verdict: Verdict) -> ServiceState:
        """Record a report of the program; returns the new state.

        The program cannot report `ready` for a service that has a probe: only a check is evidence of that.
        """
        if verdict.outcome is Outcome.READY and self.probe_config(service_id) is not None:
            raise InvalidValueError(
                f"cannot report service {service_id!r} as up: it has a probe, and only its checks do that; "
                "remove the report, or register the service without a probe"
            )
        code = known_code(verdict.code)
        return self.record(service_id, verdict if code == verdict.code else verdict._replace(code=code))

    def record(
        self, service_id: str, verdict: Verdict, *, duration_s: float = 0.0, at_s: float | None = None
    ) -> ServiceState:
        """Record the verdict of a check that began now, or earlier, at `at_s`; returns the new state.

        For what runs checks, and for tests. A program uses `report`, which rejects `ready` for a service with a probe.
        """
        reason = safe_reason(verdict.reason)
        if reason is not verdict.reason:
            verdict = verdict._replace(reason=reason)
        self._sync()
        with self._lock:
            entry = self._entry(service_id)
            now_s = self._clock()
            evidence = Evidence(verdict, now_s if at_s is None else min(at_s, now_s), duration_s)
            state = self._apply_evidence(entry, evidence, now_s)
        self._publish_evidence({service_id: state}, {service_id: evidence})
        return state

    def record_start(self, service_id: str, *, at_s: float) -> None:
        """Record that a job has started, now or before this process did; the next report is the end of its run."""
        self.set_registered_at(service_id, at_s)
        with self._change() as now_s:
            entry = self._entry(service_id)
            self._set_state(entry, state_machine.after_start(self._as_of(entry, now_s), min(at_s, now_s)), now_s)
            self._compact_expiry()
            self.revision += 1  # the status may expire earlier than readers have seen in `next_expiry_at_s`

    def record_checks(self, checks: Mapping[str, Evidence]) -> dict[str, ServiceState]:
        """Record the evidence of checks, by service id; returns the new states of the services that are registered."""
        states: dict[str, ServiceState] = {}
        self._sync()
        with self._lock:
            now_s = self._clock()
            for service_id, evidence in checks.items():
                entry = self._entries.get(service_id)
                if entry is not None:
                    states[service_id] = self._apply_evidence(entry, evidence, now_s)
        self._publish_evidence(states, checks)
        return states

    def _publish_evidence(self, states: Mapping[str, ServiceState], checks: Mapping[str, Evidence]) -> None:
        if self._shared is not None:
            self._shared.publish(states, checks)
        for service_id, state in states.items():
            self._feed.publish_evidence(service_id, checks[service_id], state)
        self._feed.deliver()

    def set_decided_states(self, states: Mapping[str, ServiceState]) -> None:
        """Set states that were decided elsewhere, by service id. They expire as all others; unknown ids are ignored."""
        with self._change() as now_s:
            for service_id, state in states.items():
                entry = self._entries.get(service_id)
                if entry is not None:
                    self._set_state(entry, state, now_s)
            self._compact_expiry()

    def publish_evidence(self, service_id: str, evidence: Evidence, state: ServiceState) -> None:
        """Call the evidence listeners for a check whose state `set_decided_states` sets."""
        self._feed.publish_evidence(service_id, evidence, state)

    def beat(self, service_id: str) -> None:
        """Record a heartbeat of a service registered with a `ttl`."""
        self.report(service_id, Verdict.ready(code=ReasonCode.REPORTED))

    def set_issue(self, issue: object) -> None:
        """The health is 503 until this issue is cleared. It may be any object, as a reason may."""
        issue = _issue_text(issue)
        if self._shared is not None:
            self._shared.set_issue(issue, is_set=True)
        with self._change() as now_s:
            if issue not in self._condition.issues:
                self._set_condition(now_s, issues=(*self._condition.issues, issue))

    def clear_issue(self, issue: object = None) -> None:
        """Clear one issue, or all of them."""
        self._sync()
        cleared = self._condition.issues if issue is None else (_issue_text(issue),)
        if self._shared is not None:
            for one in cleared:
                self._shared.set_issue(one, is_set=False)
        with self._change() as now_s:
            self._set_condition(now_s, issues=tuple(other for other in self._condition.issues if other not in cleared))

    def started(self) -> None:
        with self._change() as now_s:
            self._set_condition(now_s, starting=False)

    def drain(self, reason: object = "") -> None:
        """Set the health to 503, so that load balancers stop sending requests. Operators see the reason."""
        with self._change() as now_s:
            self._set_condition(now_s, draining=True, drain_reason=safe_reason(reason))

    def undrain(self) -> None:
        with self._change() as now_s:
            self._set_condition(now_s, draining=False, drain_reason="")

    def set_maintenance(self, maintenance: Maintenance, service_id: str | None = None) -> None:
        """Of a service, or of the node with all of its services. It replaces an earlier one of the same source."""
        with self._change() as now_s:
            self._set_maintenance(self._maintenance.with_one(service_id, maintenance), now_s)

    def end_maintenance(self, service_id: str | None = None, *, source: str) -> None:
        with self._change() as now_s:
            self._set_maintenance(self._maintenance.without(service_id, source), now_s)

    def set_identity(self, *, name: str, version: str) -> None:
        with self._change() as now_s:
            self._identity = replace(self._identity, node_name=name, node_version=version)
            self._publish(ChangeKind.NODE, now_s)

    # ---- states of other processes

    def _sync(self) -> None:
        if self._shared is not None:
            self._shared.sync()

    def take_over_states(self, states: Mapping[str, tuple[ServiceState, Evidence]], issues: tuple[str, ...]) -> None:
        """Take over states with the evidence that led to them, unless there is newer evidence here, and all issues.

        Then call `deliver_changes`, without any lock.
        """
        adopted: list[tuple[str, Evidence, ServiceState]] = []
        with self._lock:
            now_s = self._clock()
            for service_id, (state, evidence) in states.items():
                entry = self._entries.get(service_id)
                if entry is not None and _last_evidence_s(state) >= _last_evidence_s(entry.state):
                    expired_at_s = entry.expires_at_s
                    self._set_state(entry, state, now_s)
                    if entry.expires_at_s < expired_at_s:
                        self._queue_expiry(entry)
                    adopted.append((service_id, evidence, entry.state))
            self._set_condition(now_s, issues=issues)
        self._adopted.extend(adopted)

    def deliver_changes(self) -> None:
        while self._adopted:
            self._feed.publish_evidence(*self._adopted.popleft())
        self._feed.deliver()

    @contextmanager
    def _change(self) -> Iterator[float]:
        """Hold the lock, and deliver the changes after it. Gives the time. Evidence, being frequent, does without."""
        with self._lock:
            yield self._clock()
        self._feed.deliver()

    # ---- reading

    @property
    def identity(self) -> Identity:
        return self._identity

    @property
    def condition(self) -> Condition:
        return self._condition

    def now_s(self) -> float:
        """The time of the clock that evidence is dated with."""
        return self._clock()

    def wall_time_s(self, at_s: float) -> float:
        """A time of that clock as seconds since 1970. The same time gives the same result, to the millisecond."""
        return self._wall_times.wall_s(at_s)

    def expire_stale(self) -> None:
        """Expire every state whose evidence is too old. Every read does this; the scheduler does it once a second."""
        self._sync()
        if self._clock() < self.next_expiry_at_s:
            return
        with self._change() as now_s:
            for entry in self._expiry.take_due(now_s):
                self._set_state(entry, entry.state, now_s)
            if now_s >= self._maintenance.first_end_s:
                self._set_maintenance(self._maintenance.without_ended(now_s), now_s)
            self._update_next_expiry()

    def maintenance(self, service_id: str | None = None) -> Maintenance | None:
        """Of a service or of the node, now: the one that ends last. That of the node is one of each service, too."""
        return self._maintenance.at(service_id, self._clock())

    def maintenance_text(self, maintenance: Maintenance) -> str:
        until = iso_time(self.wall_time_s(maintenance.ends_at_s))[: len("2026-01-01T12:00:00")]
        return maintenance.text(f"{until.replace('T', ' ')} UTC")

    @property
    def health(self) -> Health:
        self.expire_stale()
        return self._health

    def state(self, service_id: str) -> ServiceState:
        self.expire_stale()
        return self._read_state(self._entry(service_id))

    def status(self, service_id: str) -> Status | None:
        """The published status; None if the service is not registered."""
        self.expire_stale()
        entry = self._entries.get(service_id)
        return None if entry is None else entry.state.status

    def find(self, service_id: str) -> tuple[Service, ServiceState] | None:
        """A service and its state; None if it is not registered."""
        self.expire_stale()
        entry = self._entries.get(service_id)
        return None if entry is None else (entry.service, self._read_state(entry))

    def __iter__(self) -> Iterator[tuple[Service, ServiceState]]:
        """Services and their states in the order of registration, all as of the same time."""
        self.expire_stale()
        with self._lock:
            return iter([(entry.service, self._read_state(entry)) for entry in self._entries.values()])

    def _read_state(self, entry: _Entry) -> ServiceState:
        """The state as readers see it. A node adds to the reason if it runs no checks."""
        return entry.state

    def __len__(self) -> int:
        return len(self._entries)

    def __bool__(self) -> bool:
        return True  # also without services

    def __contains__(self, service_id: object) -> bool:
        return service_id in self._entries

    def probe_config(self, service_id: str) -> ProbeConfig | None:
        """How a service is checked; None if it has no probe or is not registered."""
        entry = self._entries.get(service_id)
        return None if entry is None else entry.probe_config

    def subscribe(
        self, on_change: OnChange | None = None, *, on_evidence: OnEvidence | None = None
    ) -> Callable[[], None]:
        """Follow the node from now on; returns a function that ends the subscription.

        `on_change` is called once for every change, in order. `on_evidence` is called for every recorded verdict, with
        the service id, the evidence and the new state, before `on_change` for the change that it causes. Both run on
        the thread that recorded the verdict, so they must return quickly. An exception of a listener is logged; the
        other listeners are still called.
        """
        return self._feed.subscribe(on_change, on_evidence=on_evidence)

    # ---- private; the caller holds the lock

    def _entry(self, service_id: str) -> _Entry:
        try:
            return self._entries[service_id]
        except KeyError:
            raise UnknownServiceError(service_id) from None

    def _new_entry(self, definition: Definition, state: ServiceState, now_s: float) -> _Entry:
        service_id = definition.service.id
        in_maintenance = self._maintenance.at(service_id, now_s) is not None
        entry = self._entries[service_id] = _Entry(definition, state, in_maintenance=in_maintenance)
        return entry

    def _set_maintenance(self, maintenance: MaintenanceRecords, now_s: float) -> None:
        before, self._maintenance = self._maintenance, maintenance
        self._update_next_expiry()
        for service_id in maintenance.changed_from(before):
            self._apply_maintenance(service_id, now_s)

    def _apply_maintenance(self, service_id: str | None, now_s: float) -> None:
        maintenance = self._maintenance.at(service_id, now_s)
        for entry in self._entries.values() if service_id is None else filter(None, [self._entries.get(service_id)]):
            before = entry.tally
            entry.set_maintenance(self._maintenance.at(entry.service.id, now_s) is not None)
            self._update_tally(before, entry.tally)
        entry_or_none = None if service_id is None else self._entries.get(service_id)
        state = None if entry_or_none is None else entry_or_none.state
        kind = ChangeKind.MAINTENANCE_ENDED if maintenance is None else ChangeKind.MAINTENANCE
        self._publish(kind, now_s, service_id, before=state, after=state, maintenance=maintenance)

    def _apply_evidence(self, entry: _Entry, evidence: Evidence, now_s: float) -> ServiceState:
        # Expire first, so that the result does not depend on whether the state was read in between.
        before = self._as_of(entry, now_s)
        after = state_machine.apply_evidence(before, evidence, entry.service.policy, now_s)
        self._set_state(entry, after, now_s)
        return entry.state

    def _as_of(self, entry: _Entry, now_s: float) -> ServiceState:
        if now_s < entry.expires_at_s:
            return entry.state
        return state_machine.as_of(entry.state, now_s, entry.service.policy)

    def _set_state(self, entry: _Entry, state: ServiceState, now_s: float) -> None:
        before = entry.state
        entry.set_state(state)
        if now_s >= entry.expires_at_s:  # late evidence may have expired already
            state = self._as_of(entry, now_s)
            entry.set_state(state)
        if entry.expires_at_s < entry.queued_at_s:
            self._queue_expiry(entry)
        if state.status is not before.status:
            self._update_tally(entry.tally_of(before.status), entry.tally)
            self._publish(ChangeKind.STATUS, now_s, entry.service.id, before=before, after=state)

    def _queue_expiry(self, entry: _Entry) -> None:
        self._expiry.put(entry)
        self._update_next_expiry()

    def _compact_expiry(self) -> None:
        self._expiry.compact(len(self._entries))
        self._update_next_expiry()

    def _update_next_expiry(self) -> None:
        self.next_expiry_at_s = min(self._expiry.next_at_s, self._maintenance.first_end_s)

    def _after_fork(self) -> None:
        """Replace the locks: in the child, the threads that held them do not exist."""
        self._pid = os.getpid()
        was_changing = self._lock.locked()
        self._lock = threading.Lock()  # in any case: a thread may have locked it without having returned from `acquire`
        self._feed.after_fork()
        if was_changing:
            self._rebuild()

    def _rebuild(self) -> None:
        """Compute everything that follows from the states again: the fork may have interrupted a change."""
        self._tally = Tally()
        self._expiry.clear()
        for entry in self._entries.values():
            entry.set_state(entry.state)
            entry.queued_at_s = math.inf
            self._queue_expiry(entry)
            self._update_tally(Tally(), entry.tally)
        self._update_next_expiry()
        self._publish(ChangeKind.NODE, self._clock())

    def _set_condition(self, now_s: float, **changes: Any) -> None:  # noqa: ANN401  fields of Condition
        condition = self._condition._replace(**changes)
        if condition != self._condition:
            self._condition = condition
            self._publish(ChangeKind.NODE, now_s)

    def _update_tally(self, before: Tally, after: Tally) -> None:
        self._tally = state_machine.add_tallies(state_machine.subtract_tallies(self._tally, before), after)

    def _publish(  # noqa: PLR0913  each is a field of the change
        self,
        kind: ChangeKind,
        now_s: float,
        service_id: str | None = None,
        *,
        before: ServiceState | None = None,
        after: ServiceState | None = None,
        maintenance: Maintenance | None = None,
    ) -> None:
        health_before, self._health = self._health, state_machine.node_health(self._tally, self._condition)
        self.revision += 1
        if self._feed.has_listeners:
            change = Change(
                kind=kind,
                at_s=now_s,
                service_id=service_id,
                before=before,
                after=after,
                health_before=health_before,
                health=self._health,
                maintenance=maintenance,
            )
            self._feed.append(change)


def _issue_text(issue: object) -> str:
    """The text by which an issue is known and cleared. Long ones that begin alike stay apart: one may be cleared."""
    if type(issue) is str and 0 < len(issue) <= MAX_REASON_CHARS and issue.isprintable():
        return issue  # as it is: what is known as a secret may change before it is cleared
    text = visible_text(issue) or "an issue without a text"
    if len(text) <= MAX_REASON_CHARS:
        return text
    return f"{truncate(text, MAX_REASON_CHARS - 9)} {crc32(text.encode()):08x}"


def _last_evidence_s(state: ServiceState) -> float:
    return -math.inf if state.last_evidence_at_s is None else state.last_evidence_at_s


def _evidence_source(definition: Definition | _Entry) -> tuple[Probe | None, bool]:
    """The source of the evidence: the probe, and whether heartbeats are expected."""
    probe = None if definition.probe_config is None else definition.probe_config.probe
    return probe, definition.service.policy.ttl_s is not None


def _after_fork() -> None:
    for table in _instances:
        table._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
