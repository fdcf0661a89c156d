"""The state of a node: its identity, its services and their states, and its health. Thread-safe.

Every public method may be called from any thread, and a read is correct at the time of the read: stale evidence expires
on read. A read before the earliest time at which a state can expire costs one comparison.
"""

from __future__ import annotations

import math
import os
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, Unpack
from weakref import WeakSet

from svcnode.core import state_machine
from svcnode.core.codes import ReasonCode, known_code
from svcnode.core.dependencies import reject_cycle
from svcnode.core.errors import DuplicateServiceError, InvalidValueError, UnknownServiceError
from svcnode.core.model import Change, ChangeKind, Condition, Evidence, Health, Identity, Outcome, Status, Verdict
from svcnode.core.text import safe_reason
from svcnode.net.clock import WallTimes, monotonic_s
from svcnode.node.acknowledgements import Acknowledgements
from svcnode.node.definition import define
from svcnode.node.feed import ChangeFeed
from svcnode.node.maintenance import MaintenanceWindows
from svcnode.node.overrides import HealthOverrides, SharedIssues
from svcnode.node.service_states import ServiceStates
from svcnode.node.standstill import Standstill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from svcnode.core.model import Acknowledgement, KnownBefore, Maintenance, Service, ServiceState, Tally
    from svcnode.node.definition import Definition, ProbeConfig, ServiceOptions
    from svcnode.node.expiry import Entry
    from svcnode.node.feed import OnChange, OnEvidence
    from svcnode.probes.base import Probe

_instances: WeakSet[NodeState] = WeakSet()


class Handle:
    """A registered service, for the program that reports its status."""

    __slots__ = ("_node", "id")

    def __init__(self, node: NodeState, service_id: str) -> None:
        self._node = node
        self.id = service_id

    def up(self, reason: object = "", *, code: str = ReasonCode.REPORTED) -> None:
        self.report(Verdict.ready(safe_reason(reason), code=code))

    def initializing(self, reason: object = "", *, code: str = ReasonCode.REPORTED) -> None:
        self.report(Verdict.not_ready(safe_reason(reason), code=code))

    def down(self, reason: object = "", *, code: str = ReasonCode.REPORTED) -> None:
        self.report(Verdict.failed(safe_reason(reason), code=code))

    def report(self, verdict: Verdict) -> None:
        self._node.report(self.id, verdict)

    def deregister(self) -> None:
        self._node.deregister(self.id)

    @property
    def state(self) -> ServiceState:
        return self._node.state(self.id)

    def __repr__(self) -> str:
        return f"<Handle {self.id!r}>"


class SharedStates(SharedIssues, Protocol):
    """The states that this process shares with other workers of the program. `Workers` implements it.

    `sync` calls `take_over` with what the others have recorded.
    """

    def publish(self, states: Mapping[str, ServiceState], checks: Mapping[str, Evidence], /) -> None:
        """New states, and the evidence that led to them."""


class NodeState:
    """What every part of the program reads, and where all evidence is recorded."""

    def __init__(
        self,
        identity: Identity,
        *,
        starting: bool = False,
        clock: Callable[[], float] = monotonic_s,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """With `starting`, the health is at best 206 until `overrides.started()` is called."""
        self._identity = identity
        self._clock = clock
        self._wall_times = WallTimes(clock, wall_clock)
        self._lock = threading.Lock()
        self.standstill = Standstill(clock)
        self._states = ServiceStates(self._on_status, self._wall_times.offset_s, self.standstill)
        self.overrides = HealthOverrides(self._changing, self._publish_node, starting=starting)
        self.maintenance = MaintenanceWindows(
            self._changing, self._on_maintenance, self._on_plan, clock=clock, wall_time_s=self.wall_time_s
        )
        self.acknowledgements = Acknowledgements(
            self._changing, self._on_acknowledgement, health_of=self._problem_health, wall_time_s=self.wall_time_s
        )
        self._health = state_machine.node_health(self._states.tally, self.condition)
        # A response may be kept until the revision grows or this time comes, at which a state may expire.
        self.revision = 0
        self.next_expiry_at_s = math.inf
        self.feed = ChangeFeed()
        self._shared: SharedStates | None = None
        self.why_unchecked: Callable[[], str] = str  # why no checks run; empty: they do, or nothing is known about it
        _instances.add(self)

    # ---- registration

    def register(self, service_id: str, **options: Unpack[ServiceOptions]) -> Handle:
        """The options are those of a [[services]] table."""
        definition = define(service_id, **options)
        if definition.service.depends_on:
            reject_cycle(definition.service, (service for service, _ in self))
        self.add(definition)
        return Handle(self, service_id)

    def add(self, definition: Definition, *, registered_at_s: float | None = None) -> None:
        """`registered_at_s`: the service was registered before this process started."""
        service_id = definition.service.id
        with self._changing() as now_s:
            if service_id in self._states.entries:
                raise DuplicateServiceError(service_id)
            since_s = now_s if registered_at_s is None else min(registered_at_s, now_s)
            state = state_machine.initial_state(since_s)
            self._put(definition, state, now_s)
            self._publish(ChangeKind.REGISTERED, now_s, service_id, after=state)

    def set_registered_at(self, service_id: str, registered_at_s: float) -> None:
        """The service exists for longer than this process: evidence since then counts."""
        with self._changing():
            entry = self._states.entry(service_id)
            if registered_at_s < entry.state.registered_at_s:
                self._states.set_registered_at(entry, registered_at_s)

    def replace(self, definition: Definition, *, keeps_state: bool = False) -> None:
        """Redefine a registered service. Its position in the list does not change.

        The state is kept and follows the new policy, unless the evidence now has another source: another probe, or
        heartbeats instead of reports. Then the service starts again without evidence, except with `keeps_state`: the
        same service is only checked elsewhere. An equal definition, however it was written, changes nothing.
        """
        service_id = definition.service.id
        with self._changing() as now_s:
            old = self._states.entry(service_id)
            if (old.defined, old.probe_config) == (definition.service, definition.probe_config):
                return
            definition = _with_probe_of(old, definition)
            if keeps_state or _evidence_source(definition) == _evidence_source(old):
                state = old.as_of(now_s)
                policy = state_machine.with_deadline(definition.service.policy, state, self._wall_times.offset_s())
                state = state_machine.as_of(state, now_s, policy)
                by_policy = state_machine.as_of(old.state, now_s, policy)
                if keeps_state and state.status is by_policy.status is Status.INITIALIZING:
                    state = old.state  # the next read says if it has expired, unless newer evidence comes before
            else:
                state = state_machine.initial_state(now_s)
            self._put(definition, state, now_s)
            self._publish(ChangeKind.REPLACED, now_s, service_id, before=old.state, after=state)

    def deregister(self, service_id: str) -> None:
        with self._changing() as now_s:
            entry = self._states.remove(service_id)
            self._publish(ChangeKind.DEREGISTERED, now_s, service_id, before=entry.state)
            self.acknowledgements.remove(service_id, now_s, "the service is no longer registered")

    def announce(self, kind: ChangeKind, text: str, service_id: str | None = None) -> None:
        """Let every listener know of something that changes neither a status nor the health: one of ANNOUNCEMENTS."""
        with self._changing() as now_s:
            state = None if service_id is None else self._states.entry(service_id).state
            self._publish(kind, now_s, service_id, before=state, after=state, reason=text)

    def reorder(self, ids: Iterable[str]) -> None:
        """Set the order of the list. Services that are not named follow in their old order."""
        with self._changing() as now_s:
            if self._states.reorder(ids):
                self._publish_node(now_s)

    def set_identity(self, *, name: str, version: str) -> None:
        with self._changing() as now_s:
            self._identity = replace(self._identity, node_name=name, node_version=version)
            self._publish_node(now_s)

    # ---- evidence

    def report(
        self, service_id: str, verdict: Verdict, *, at_s: float | None = None, duration_s: float = 0.0
    ) -> ServiceState:
        """Record a report of the program, made now or earlier; returns the new state. `duration_s`: of the run before.

        The program cannot report `ready` for a service that has a probe: only a check is evidence of that.
        """
        if verdict.outcome is Outcome.READY and self.probe_config(service_id) is not None:
            raise InvalidValueError(
                f"cannot report service {service_id!r} as up: it has a probe, and only its checks can say that; "
                "remove the report, or register the service without a probe"
            )
        verdict = verdict._replace(reason=safe_reason(verdict.reason), code=known_code(verdict.code))
        states = self.record({service_id: Evidence(verdict, math.inf if at_s is None else at_s, duration_s)})
        if service_id not in states:
            raise UnknownServiceError(service_id)
        return states[service_id]

    def restore(self, service_id: str, evidence: Evidence, *, since_s: float) -> None:
        """Before the last evidence is recorded again after a restart: the service has had its status since then."""
        with self._changing() as now_s:
            entry = self._states.entry(service_id)
            state = state_machine.next_state(entry.state, evidence, entry.service.policy)
            first_failure_at_s = None if state.first_failure_at_s is None else since_s
            state = state._replace(since_s=since_s, first_failure_at_s=first_failure_at_s)
            # The evidence itself follows, and is counted then.
            self._states.set_state(entry, state._replace(ready_in_a_row=0, failures_in_a_row=0), now_s)

    def remember(self, known: Mapping[str, KnownBefore]) -> None:
        """What the previous process knew of services, by id. It is shown until a check decides, and is no evidence."""
        with self._changing():
            for service_id, one in known.items():
                entry = self._states.entries.get(service_id)
                if entry is not None:
                    self._states.remember(entry, one)
            self.revision += 1

    def record(self, checks: Mapping[str, Evidence]) -> dict[str, ServiceState]:
        """Record evidence, by service id; returns the new states of the services that are registered.

        Evidence from the future is dated now, under the lock: so it is never older than what is recorded already.
        """
        states: dict[str, ServiceState] = {}
        recorded: dict[str, Evidence] = {}
        self._sync()
        with self._lock:
            now_s = self._clock()
            try:
                for service_id, evidence in checks.items():
                    entry = self._states.entries.get(service_id)
                    if entry is not None:
                        dated = evidence if evidence.at_s <= now_s else evidence._replace(at_s=now_s)
                        recorded[service_id] = dated
                        states[service_id] = self._states.apply_evidence(entry, dated, now_s)
            finally:
                self._update_next_expiry()
        if self._shared is not None:
            self._shared.publish(states, recorded)
        for service_id, state in states.items():
            self.feed.publish_evidence(service_id, recorded[service_id], state)
        self.feed.deliver()
        return states

    def record_start(self, service_id: str, *, at_s: float) -> None:
        """Record that a job has started, now or before this process did; the next report is the end of its run."""
        self.set_registered_at(service_id, at_s)
        with self._changing() as now_s:
            entry = self._states.entry(service_id)
            state = state_machine.after_start(entry.as_of(now_s), min(at_s, now_s))
            self._states.set_state(entry, state, now_s)
            self._states.compact()

    def set_decided_states(self, states: Mapping[str, ServiceState]) -> None:
        """Set states that were decided elsewhere, by service id. They expire as all others; unknown ids are ignored."""
        with self._changing() as now_s:
            for service_id, state in states.items():
                entry = self._states.entries.get(service_id)
                if entry is not None:
                    self._states.set_state(entry, state, now_s)
            self._states.compact()

    # ---- other processes of the program

    def share_with(self, shared: SharedStates) -> None:
        """From now on, every read takes over what the other workers have recorded."""
        self._shared = self.overrides.shared = shared

    def take_over(
        self,
        states: Mapping[str, tuple[ServiceState, Evidence]],
        issues: tuple[str, ...],
        claims: Mapping[str, ServiceState] | None = None,
    ) -> set[str]:
        """Take over states with the evidence that led to them, unless there is newer evidence here, and all issues.

        A state that is still the one in `claims` gives way to older evidence too, unless it is worse. Returns the ids
        of the services whose states were taken over. Then call `feed.deliver`, without any lock.
        """
        taken = set()
        with self._lock:
            now_s = self._clock()
            try:
                for service_id, (state, evidence) in states.items():
                    entry = self._states.entries.get(service_id)
                    if entry is not None and _gives_way(entry, state, (claims or {}).get(service_id), now_s):
                        self.feed.append_evidence(service_id, evidence, state)
                        self._states.set_state(entry, state, now_s)
                        taken.add(service_id)
                self.overrides.take_over_issues(issues, now_s)
            finally:
                self._update_next_expiry()
        return taken

    def _sync(self) -> None:
        if self._shared is not None:
            self._shared.sync()

    # ---- reading

    @property
    def identity(self) -> Identity:
        return self._identity

    @property
    def condition(self) -> Condition:
        return self.overrides.condition

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
        with self._changing() as now_s:
            self._states.expire(now_s)
            self.maintenance.expire(now_s)
            self.acknowledgements.expire(now_s)

    @property
    def health(self) -> Health:
        self.expire_stale()
        return self._health

    def state(self, service_id: str) -> ServiceState:
        self.expire_stale()
        return self._read_state(self._states.entry(service_id))

    def status(self, service_id: str) -> Status | None:
        """The published status; None if the service is not registered."""
        self.expire_stale()
        entry = self._states.entries.get(service_id)
        return None if entry is None else entry.state.status

    def find(self, service_id: str) -> tuple[Service, ServiceState] | None:
        """A service and its state; None if it is not registered."""
        self.expire_stale()
        entry = self._states.entries.get(service_id)
        return None if entry is None else (entry.service, self._read_state(entry))

    def peek(self, service_id: str) -> tuple[Service, ServiceState] | None:
        """As `find`, for a caller that may set a newer state at once: that a state has expired is not published yet."""
        entry = self._states.entries.get(service_id)
        return None if entry is None else (entry.service, entry.as_of(self._clock()))

    def __iter__(self) -> Iterator[tuple[Service, ServiceState]]:
        """Services and their states in the order of registration, all as of the same time."""
        self.expire_stale()
        with self._lock:
            return iter([(entry.service, self._read_state(entry)) for entry in self._states.entries.values()])

    def summary(self) -> tuple[Tally, list[tuple[Service, ServiceState]]]:
        """The tally of all services, and those that are not Up, the first to fail first; all as of the same time.

        The cost does not depend on how many services are Up.
        """
        self.expire_stale()
        with self._lock:
            not_up = self._states.not_up.values()
            return self._states.tally, [(entry.service, self._read_state(entry)) for entry in not_up]

    @property
    def ids(self) -> tuple[str, ...]:
        """In the order of registration."""
        with self._lock:
            return tuple(self._states.entries)

    def __len__(self) -> int:
        return len(self._states.entries)

    def __bool__(self) -> bool:
        return True  # also without services

    def __contains__(self, service_id: object) -> bool:
        return service_id in self._states.entries

    def probe_config(self, service_id: str) -> ProbeConfig | None:
        """How a service is checked; None if it has no probe or is not registered."""
        entry = self._states.entries.get(service_id)
        return None if entry is None else entry.probe_config

    def subscribe(
        self, on_change: OnChange | None = None, *, on_evidence: OnEvidence | None = None
    ) -> Callable[[], None]:
        """Follow the node from now on; returns a function that ends the subscription. As `Node.subscribe`."""
        return self.feed.subscribe(on_change, on_evidence=on_evidence)

    def _read_state(self, entry: Entry) -> ServiceState:
        """The state as readers see it: without evidence, or with stale evidence, it says if no checks run."""
        state = entry.state
        if entry.probe_config is None or state.code not in _UNCHECKED_CODES or not (reason := self.why_unchecked()):
            return state
        if state.code == ReasonCode.NO_EVIDENCE:
            return state._replace(reason=reason, code=ReasonCode.NOT_STARTED)
        return state._replace(reason=f"{state.reason}; {reason}")

    # ---- changes; the caller holds the lock

    @contextmanager
    def _changing(self) -> Iterator[float]:
        """Hold the lock, and deliver the changes after it. Gives the time. Evidence, being frequent, does without."""
        with self._lock:
            try:
                yield self._clock()
            finally:
                self._update_next_expiry()
        self.feed.deliver()

    def _put(self, definition: Definition, state: ServiceState, now_s: float) -> None:
        in_maintenance = self.maintenance.at(definition.service.id, now_s) is not None
        self._states.put(definition, state, in_maintenance=in_maintenance)

    def _update_next_expiry(self) -> None:
        next_at_s = min(
            self._states.next_expiry_at_s, self.maintenance.first_end_s, self.acknowledgements.next_check_at_s
        )
        is_earlier = next_at_s < self.next_expiry_at_s
        self.next_expiry_at_s = next_at_s
        if is_earlier:  # than readers have seen; they read the revision first
            self.revision += 1

    def _on_status(self, now_s: float, entry: Entry, before: ServiceState) -> None:
        self._publish(ChangeKind.STATUS, now_s, entry.service.id, before=before, after=entry.state)

    def _on_maintenance(self, service_id: str | None, now_s: float) -> None:
        entries = self._states.entries
        for entry in entries.values() if service_id is None else filter(None, [entries.get(service_id)]):
            self._states.set_maintenance(entry, self.maintenance.at(entry.service.id, now_s) is not None)
        maintenance = self.maintenance.at(service_id, now_s)
        state = entries[service_id].state if service_id is not None and service_id in entries else None
        kind = ChangeKind.MAINTENANCE_ENDED if maintenance is None else ChangeKind.MAINTENANCE
        self._publish(kind, now_s, service_id, before=state, after=state, maintenance=maintenance)

    def _on_plan(self, kind: ChangeKind, service_id: str | None, now_s: float, text: str) -> None:
        entry = None if service_id is None else self._states.entries.get(service_id)
        state = None if entry is None else entry.state
        self._publish(kind, now_s, service_id, before=state, after=state, reason=text)

    def _problem_health(self, service_id: str | None) -> Health | None:
        """Of a service, or of the node, where a drain is no problem. None if there is no such service."""
        if service_id is None:
            return state_machine.node_health(self._states.tally, self.condition._replace(draining=False))
        entry = self._states.entries.get(service_id)
        return None if entry is None else state_machine.service_health(entry.state.status)

    def _on_acknowledgement(
        self, service_id: str | None, now_s: float, made: Acknowledgement | None, reason: str
    ) -> None:
        entry = None if service_id is None else self._states.entries.get(service_id)
        state = None if entry is None else entry.state
        kind = ChangeKind.ACKNOWLEDGEMENT_ENDED if made is None else ChangeKind.ACKNOWLEDGED
        self._publish(kind, now_s, service_id, before=state, after=state, acknowledgement=made, reason=reason)

    def _publish_node(self, now_s: float, reason: str = "") -> None:
        self._publish(ChangeKind.NODE, now_s, reason=reason)

    def _publish(  # noqa: PLR0913  each is a field of the change
        self,
        kind: ChangeKind,
        now_s: float,
        service_id: str | None = None,
        *,
        before: ServiceState | None = None,
        after: ServiceState | None = None,
        maintenance: Maintenance | None = None,
        acknowledgement: Acknowledgement | None = None,
        reason: str = "",
    ) -> None:
        health_before, self._health = self._health, state_machine.node_health(self._states.tally, self.condition)
        self.revision += 1
        if self.feed.has_listeners:
            change = Change(
                kind=kind,
                at_s=now_s,
                service_id=service_id,
                before=before,
                after=after,
                health_before=health_before,
                health=self._health,
                maintenance=maintenance,
                reason=reason,
                acknowledgement=acknowledgement,
            )
            self.feed.append(change)
        self.acknowledgements.check(service_id, now_s)

    def after_fork(self) -> None:
        """Replace the locks: in the child, the threads that held them do not exist."""
        was_changing = self._lock.locked()
        self._lock = threading.Lock()  # in any case: a thread may have locked it without having returned from `acquire`
        self.feed.after_fork()
        self.standstill.stop()
        if was_changing:
            self._states.rebuild()
            self._publish_node(self._clock())
            self._update_next_expiry()


_UNCHECKED_CODES = frozenset({ReasonCode.NO_EVIDENCE, ReasonCode.STALE})


def _gives_way(entry: Entry, state: ServiceState, claim: ServiceState | None, now_s: float) -> bool:
    if _last_evidence_s(state) >= _last_evidence_s(entry.state):
        return True
    as_of_now = state_machine.as_of(state, now_s, entry.policy_for(state))
    return entry.state is claim and not is_worse(entry.state, as_of_now)


def is_worse(state: ServiceState, other: ServiceState) -> bool:
    statuses = list(Status)  # from the best to the worst
    return statuses.index(state.status) > statuses.index(other.status)


def _last_evidence_s(state: ServiceState) -> float:
    return -math.inf if state.last_evidence_at_s is None else state.last_evidence_at_s


def _evidence_source(definition: Definition | Entry) -> tuple[Probe | None, bool]:
    """The source of the evidence: the probe, and whether heartbeats are expected."""
    probe = None if definition.probe_config is None else definition.probe_config.probe
    return probe, definition.service.policy.ttl_s is not None


def _with_probe_of(old: Entry, definition: Definition) -> Definition:
    """With the same object if the probe is an equal one: it remembers values of earlier checks."""
    before, now = old.probe_config, definition.probe_config
    if before is None or now is None or before.probe != now.probe:
        return definition
    return definition._replace(probe_config=now._replace(probe=before.probe))


def _after_fork() -> None:
    for node in _instances:
        node.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
