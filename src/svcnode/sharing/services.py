"""Keeps the services of the node equal to what this replica and the registry define, and their states equal to what
their observers see.

    file, control socket ──► own definitions ─┐
                                              ├─► services of the node, their order, the probes that run here
    registry ──────────────► RegistryView ────┤
                                              ├─► states of the node
    checks of this replica ─► own states ─────┘

A replica that checks a service has a state machine of its own for it, which continues from the state of the node. Its
result is the state of the node if this replica is the only observer, and one vote of several otherwise.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from dataclasses import replace
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core import state_machine
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import DuplicateServiceError, InvalidValueError, SvcnodeError
from svcnode.core.model import MAX_STALE_AFTER_S, Outcome, Policy, ServiceState, Status
from svcnode.definition import Definition, define
from svcnode.probes import make_probe
from svcnode.sharing.format import replica_of, replica_owner, service_document
from svcnode.sharing.rules import (
    choose_observers,
    merged_state,
    observers,
    renewal_due_at_s,
    report_order,
    service_state,
)
from svcnode.sharing.view import ObservedState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from svcnode.core.model import Change, Evidence, Service
    from svcnode.definition import ProbeConfig
    from svcnode.node import Node
    from svcnode.probes.base import Probe
    from svcnode.sharing.format import ServiceDocument
    from svcnode.sharing.rules import Choice, MergedState
    from svcnode.sharing.view import RegistryView, SharedService, ViewChanges

NOT_SHARED = ""  # the source of evidence for a service that only this replica has
CHUNK = 200  # services that are compared or merged at once, on the event loop

log = logging.getLogger("svcnode.sharing")


class _OwnService(NamedTuple):
    definition: Definition
    position: int
    document: ServiceDocument | None  # to publish; None: other replicas could not read it


class _SyncedFrom(NamedTuple):
    """What the service in the node was last made from."""

    document: ServiceDocument
    own: _OwnService | None
    is_observer: bool
    has_others: bool  # whether there are other observers

    def is_same(self, other: _SyncedFrom) -> bool:
        """By identity: a comparison of documents takes long."""
        return self.document is other.document and self.own is other.own and self[2:] == other[2:]


class _Checked(NamedTuple):
    """A service that this replica checks."""

    state: ServiceState
    has_vote: bool  # whether the state is from evidence of this replica
    is_redefined: bool = False  # since the last check: by the new definition, its evidence may have expired for others


class SharedServices:
    """Registers the services of this replica (`Registrar`), and records its checks (`CheckRecorder`).

    Not thread-safe, except for the methods for operators: used on the event loop of the agent. `on_change` is called
    when there is something to publish.
    """

    def __init__(
        self, node: Node, view: RegistryView, replica: str, *, default_observers: int, on_change: Callable[[], None]
    ) -> None:
        self._node = node
        self._view = view
        self._replica = replica
        self._owner = replica_owner(replica)
        self._default_observers = default_observers
        self._on_change = on_change
        self._own: dict[str, _OwnService] = {}
        self._positions = count()
        self._observers: dict[str, tuple[str, ...]] = {}
        self._choices: dict[str, Choice] = {}  # of the services that are checked
        self._sources: dict[str, str] = {}
        self._checked: dict[str, _Checked] = {}
        self._reported: dict[str, ServiceState] = {}  # of the services that report to this replica
        self._renewal_due_at_s: dict[str, float] = {}  # of the services that others observe
        self._undecided: set[str] = set()  # that are Initializing until there is newer evidence
        self._has_newer_evidence = self._is_sync_due = False
        self._applied: dict[str, _SyncedFrom] = {}  # of the services that are checked
        self._frozen_until_s = -math.inf
        # Reports by the registry are received between these times: since it was connected, until it was lost.
        self._received_since_s, self._received_until_s = math.inf, -math.inf
        self._silence_due_at_s: dict[str, float] = {}  # of services whose reports may have been missed
        self.changed_definitions: set[str] = set()  # to be published
        self.changed_states: set[str] = set()  # to be published
        node.subscribe(self._on_node_change, on_evidence=self._on_evidence)

    # ---- services of this replica

    def __contains__(self, service_id: object) -> bool:
        return service_id in self._own

    def add(self, definition: Definition, *, registered_at_s: float | None = None) -> None:
        service_id = definition.service.id
        if service_id in self._own:
            raise DuplicateServiceError(service_id)
        self._set_own(definition, next(self._positions))
        self._apply_own(service_id)
        if registered_at_s is not None:
            self._node.set_registered_at(service_id, registered_at_s)

    def replace(self, definition: Definition) -> None:
        service_id = definition.service.id
        self._set_own(definition, self._own[service_id].position)
        self._apply_own(service_id)

    def deregister(self, service_id: str) -> None:
        del self._own[service_id]
        if self._reported.pop(service_id, None) is not None:
            self.changed_states.add(service_id)
        self._apply_own(service_id)

    def set_default_observers(self, default_observers: int) -> None:
        if default_observers == self._default_observers:
            return
        self._default_observers = default_observers
        for definition, position, _ in list(self._own.values()):
            self._set_own(definition, position)
        self._sync(self._own)
        self.changed_definitions.update(self._own)
        self._on_change()

    def own_ids(self) -> frozenset[str]:
        return frozenset(self._own)

    def document(self, service_id: str) -> ServiceDocument | None:
        """The own definition to publish; None if there is none."""
        own = self._own.get(service_id)
        return None if own is None else own.document

    def _set_own(self, definition: Definition, position: int) -> None:
        self._own[definition.service.id] = _OwnService(definition, position, self._make_document(definition, position))

    def _make_document(self, definition: Definition, position: int) -> ServiceDocument | None:
        if definition.options is None:
            return None
        service_id, options = definition.service.id, dict(definition.options)
        if definition.probe_config is not None:
            options.setdefault("observers", self._default_observers)
        try:
            return service_document(service_id, options, position)
        except SvcnodeError as exc:
            extra = {"event": "service_not_shared", "service": service_id}
            log.warning("service %s cannot be shared with the other replicas: %s", service_id, exc, extra=extra)
            return None

    def _apply_own(self, service_id: str) -> None:
        self._sync([service_id])
        self.changed_definitions.add(service_id)
        self._on_change()

    # ---- the registry

    def set_view(self, view: RegistryView, *, frozen_until_s: float) -> None:
        """After a restore of old data. Until then, the list is not changed: the replicas write their services again."""
        self._view = view
        self._frozen_until_s = frozen_until_s

    def compare(self) -> None:
        """After a range: the next update compares all services, whatever has changed."""
        self._is_sync_due = True

    async def update(self, changes: ViewChanges) -> None:
        """After a change of the view. If it is cancelled, the next call does the rest."""
        self._has_newer_evidence |= bool(changes.renewed)
        self._is_sync_due |= changes.replicas or len(changes.services) > CHUNK
        if self._is_sync_due:
            await self._sync_all()
        elif changes.services:
            self._sync(changes.services)
            self._reorder()
        self._sync(service_id for service_id in changes.states - changes.services if self._is_reported(service_id))
        self._merge(changes.services | changes.states)

    async def set_connected(self) -> None:
        self._received_since_s, self._received_until_s = self._node.now_s(), math.inf
        await self._sync_reported()

    async def set_lost(self, received_until_s: float) -> None:
        """All reports by the registry up to this time are known."""
        self._received_until_s = received_until_s
        seemed_silent = [
            service.id
            for service, state in self._node
            if state.code == ReasonCode.TTL_EXPIRED and state.since_s > received_until_s
        ]
        await self._sync_reported()
        self._retract_silence(service_id for service_id in seemed_silent if self._is_from_registry(service_id))

    def _retract_silence(self, ids: Iterable[str]) -> None:
        """These services may have reported: there was no evidence that they are Down."""
        reason, code, now_s = "lost: no report from the registry", ReasonCode.REGISTRY_LOST, self._node.now_s()
        states = ((service_id, self._node.state(service_id)) for service_id in ids)
        self._node.mirror(
            {
                service_id: state._replace(status=Status.INITIALIZING, reason=reason, code=code, since_s=now_s)
                for service_id, state in states
            }
        )

    async def _sync_reported(self) -> None:
        reported = [service.id for service in self._view.services() if not service.definition.is_checked]
        await self._in_chunks(reported, self._sync)

    async def tick(self) -> None:
        """Twice a second: pass on evidence that is newer than that of the node."""
        now_s = self._node.now_s()
        if self._frozen_until_s != -math.inf and now_s >= self._frozen_until_s:
            self._frozen_until_s = -math.inf
            self._is_sync_due = True
        if self._is_sync_due:
            await self._sync_all()
        silent = [service_id for service_id, due_at_s in self._silence_due_at_s.items() if due_at_s <= now_s]
        for service_id in silent:
            del self._silence_due_at_s[service_id]
        await self._in_chunks(silent, self._sync)
        due = [service_id for service_id, due_at_s in self._renewal_due_at_s.items() if due_at_s <= now_s]
        if self._has_newer_evidence:
            self._has_newer_evidence = False
            due += self._undecided
        await self._in_chunks(due, self._merge)

    # ---- for operators; may be called in any thread

    def observers_of(self, service_id: str) -> tuple[str, ...]:
        return self._observers.get(service_id, ())

    def checked_counts(self) -> Counter[str]:
        """How many services each replica checks now."""
        checked = (names for id_, names in list(self._observers.items()) if self._is_checked(id_))
        return Counter(name for names in checked for name in names)

    def _is_checked(self, service_id: str) -> bool:
        """By this replica or another one."""
        applied = self._applied.get(service_id)
        return service_id in self._checked or (applied is not None and applied.document.is_checked)

    def definition(self, service_id: str) -> ServiceDocument | None:
        """The definition that all replicas show; None if the registry has none."""
        shared = self._shared(service_id)
        return None if shared is None else shared.definition

    def own_probe(self, service_id: str) -> Probe | None:
        """The probe in the configuration of this replica, also if another one checks the service."""
        own = self._own.get(service_id)
        return None if own is None or own.definition.probe_config is None else own.definition.probe_config.probe

    def observed(self, service_id: str) -> tuple[ObservedState, ...]:
        """The states of a service by all who publish one, this replica included."""
        own = self._own_observation(service_id)
        others = (state for state in self._view.observed_by_all(service_id) if state.observer != self._replica)
        return (*(() if own is None else (own,)), *others, *self._view.reports(service_id))

    # ---- checks of this replica, and reports to it

    def record_checks(self, checks: Mapping[str, Evidence]) -> dict[str, ServiceState]:
        """Apply evidence to the own states; returns them. They decide when the next checks run."""
        now_s = self._node.now_s()
        states: dict[str, ServiceState] = {}
        for service_id, evidence in checks.items():
            checked, found = self._checked.get(service_id), self._node.find(service_id)
            if checked is None or found is None:
                continue
            policy = found[0].policy
            before = state_machine.as_of(checked.state, now_s, policy)
            states[service_id] = after = state_machine.apply_evidence(before, evidence, policy, now_s)
            has_vote = checked.has_vote or evidence.verdict.outcome is not Outcome.UNKNOWN
            self._checked[service_id] = _Checked(after, has_vote)
            is_new = checked.is_redefined or not checked.has_vote
            if has_vote and (is_new or _shown(after) != _shown(checked.state)):
                self.changed_states.add(service_id)
            self._node.publish_evidence(service_id, evidence, after)
        self._merge(states)
        if self.changed_states:
            self._on_change()
        return states

    def published_ids(self) -> frozenset[str]:
        """The services of which this replica publishes a state."""
        voted = (service_id for service_id, checked in self._checked.items() if checked.has_vote)
        return frozenset((*voted, *self._reported))

    def published(self, service_id: str) -> ServiceState | None:
        """The state to publish; None if there is none."""
        checked = self._checked.get(service_id)
        if checked is None:
            return self._reported.get(service_id)
        return checked.state if checked.has_vote else None

    def source(self, service_id: str) -> str:
        """Where the evidence of the state to publish comes from."""
        return self._sources.get(service_id, NOT_SHARED)

    def _on_evidence(self, service_id: str, evidence: Evidence, state: ServiceState) -> None:
        """A report, of which there is one per heartbeat, or a check, which is recorded already."""
        if self._reports_here(service_id) and evidence.verdict.code != ReasonCode.FIXED:
            self._set_reported(service_id, state)

    def _on_node_change(self, change: Change) -> None:
        """A service that reports to this replica is silent: the other replicas do not apply its ttl."""
        service_id, after = change.service_id, change.after
        if service_id is None or after is None or after.code != ReasonCode.TTL_EXPIRED:
            return
        if self._reports_here(service_id) and self._node_policy(service_id).ttl_s is not None:
            self._set_reported(service_id, after)

    def _set_reported(self, service_id: str, state: ServiceState) -> None:
        before = self._reported.get(service_id)
        self._reported[service_id] = state
        if self._is_from_registry(service_id):
            self._sync([service_id])  # from now on, this replica applies the ttl
        if before is None or _shown(before) != _shown(state):
            self.changed_states.add(service_id)
            self._on_change()

    def _node_policy(self, service_id: str) -> Policy:
        found = self._node.find(service_id)
        return Policy() if found is None else found[0].policy

    def _is_from_registry(self, service_id: str) -> bool:
        return self._node_policy(service_id).stale_code == ReasonCode.REGISTRY_LOST

    def _reports_here(self, service_id: str) -> bool:
        own = self._own.get(service_id)
        return own is not None and own.definition.probe_config is None

    # ---- definitions

    async def _sync_all(self) -> None:
        in_node = (service.id for service, _ in self._node)
        ids = dict.fromkeys((*(service.id for service in self._view.services()), *self._own, *in_node))
        removed: list[str] = []

        def sync(chunk: Sequence[str]) -> None:
            removed.extend(service_id for service_id in chunk if not self._sync_one(service_id))
            self._merge(chunk)

        await self._in_chunks([*ids], sync)
        self._sync(removed)
        self._reorder()
        self._is_sync_due = False

    async def _in_chunks(self, ids: Sequence[str], function: Callable[[Sequence[str]], None]) -> None:
        """Without blocking the event loop: requests are answered in between."""
        for start in range(0, len(ids), CHUNK):
            function(ids[start : start + CHUNK])
            if len(ids) > CHUNK:
                await asyncio.sleep(0)

    def _sync(self, ids: Iterable[str]) -> None:
        """Make the services of the node equal to their definitions.

        Services are removed last: otherwise the node may be healthy for a moment, without its failed service.
        """
        removed = [service_id for service_id in ids if not self._sync_one(service_id)]
        for service_id in removed:
            self._remove(service_id)

    def _sync_one(self, service_id: str) -> bool:
        """False if there is no such service."""
        shared, own = self._shared(service_id), self._own.get(service_id)
        is_frozen = self._node.now_s() < self._frozen_until_s
        if shared is not None and (own is not None or service_id in self._node or not is_frozen):
            self._sync_shared(shared, own)
        elif own is not None:
            self._sync_unpublished(service_id, own.definition)
        else:
            return is_frozen and service_id in self._node
        return True

    def _shared(self, service_id: str) -> SharedService | None:
        """A service as in the registry after the next writes of this replica: etcd may be away for long."""
        shared, document = self._view.service(service_id), self.document(service_id)
        if shared is None:
            return None
        if document is None:
            owners = tuple(owner for owner in shared.owners if owner != self._owner)
            return shared._replace(owners=owners) if owners else None
        if document != self._view.definition(service_id, self._owner):
            owners = tuple(sorted({*shared.owners, self._owner}))
            return shared._replace(definition=document, owners=owners)
        return shared

    def _sync_shared(self, shared: SharedService, own: _OwnService | None) -> None:
        service_id, document = shared.id, shared.definition
        self._observers[service_id] = names = self._choose_observers(shared)
        self._set_source(service_id, document.source)
        applied = _SyncedFrom(document, own, self._replica in names, names != (self._replica,))
        known = self._applied.get(service_id)
        if not document.is_checked:
            self._apply(Definition(self._reported_service(shared)))
        elif known is not None and known.is_same(applied):
            return
        elif not applied.is_observer:
            self._apply(Definition(_from_registry(document.service, document.valid_s)))
        else:
            self._sync_checked(service_id, applied)
        self._applied[service_id] = applied

    def _choose_observers(self, shared: SharedService) -> tuple[str, ...]:
        replicas = {*self._view.replicas, self._replica}
        if not shared.definition.is_checked:
            return observers(shared, replicas)
        choice = self._choices[shared.id] = choose_observers(shared, replicas, self._choices.get(shared.id))
        return choice.observers

    def _sync_checked(self, service_id: str, applied: _SyncedFrom) -> None:
        """This replica checks the service, with its own probe if it has the same one, or if the probe is restricted."""
        document, own = applied.document, applied.own
        probe_config = None if own is None else own.definition.probe_config
        is_same = own is not None and own.document is not None and own.document.options == document.options
        try:
            if probe_config is None or not (is_same or document.restricted):
                probe_config = _probe_config(service_id, document)
        except SvcnodeError as exc:
            reason = f"{self._replica} cannot check it: {exc}"
            self._apply(Definition(document.service), unchecked_reason=reason)
        else:
            service = document.service
            service = _from_registry(service, document.valid_s) if applied.has_others else service
            self._apply(Definition(service, probe_config))

    def _sync_unpublished(self, service_id: str, definition: Definition) -> None:
        """This replica checks its own service until the registry says which one does."""
        checked_by = (definition.options or {}).get("checked_by")
        is_observer = not checked_by or self._replica in checked_by
        self._observers[service_id] = (self._replica,) if is_observer else ()
        document = self.document(service_id)
        self._set_source(service_id, NOT_SHARED if document is None else document.source)
        self._applied.pop(service_id, None)
        self._apply(definition if is_observer else definition._replace(probe_config=None))

    def _set_source(self, service_id: str, source: str) -> None:
        if self._sources.get(service_id, source) != source:
            self._set_checked(service_id, self._initial_state())
            self._node.mirror({service_id: self._initial_state()})
        self._sources[service_id] = source

    def _reported_service(self, shared: SharedService) -> Service:
        """Who receives the reports applies the ttl. Others notice only that no report comes from the registry."""
        document = shared.definition
        if document.fixed_status is not None:
            return document.service
        newest = max(self.observed(shared.id), key=report_order, default=None)
        if newest is None:
            reporters = {replica_of(owner) for owner in shared.owners}
        else:
            reporters = {None if newest in self._view.reports(shared.id) else newest.observer}
        is_received = self._replica in reporters or (None in reporters and self._is_silence_known(shared, newest))
        return document.service if is_received else _from_registry(document.service, document.valid_s)

    def _is_silence_known(self, shared: SharedService, newest: ObservedState | None) -> bool:
        """Whether no report of a client can have been missed since the newest one, or for a whole ttl.

        While the registry is lost, and for a ttl after it, a service that does not report may not be able to.
        """
        found, now_s = self._node.find(shared.id), self._node.now_s()
        state = self._initial_state() if found is None else found[1]
        if state.code == ReasonCode.TTL_EXPIRED and state.since_s <= self._received_until_s:
            return True
        if self._received_until_s < math.inf:
            return False
        at_s = -math.inf if newest is None else report_order(newest)[0]
        due_at_s = self._received_since_s + shared.definition.valid_s
        if max(state.registered_at_s, at_s) >= self._received_since_s or now_s >= due_at_s:
            return True
        self._silence_due_at_s[shared.id] = due_at_s
        return False

    def _apply(self, definition: Definition, unchecked_reason: str = "") -> None:
        """With a reason, this replica ought to check the service, and cannot: by its vote, the service is not Up."""
        service_id, probe_config = definition.service.id, definition.probe_config
        found = self._node.find(service_id)
        if found is None:
            self._node.add(definition)
        else:
            old_config = self._node.probe_config(service_id)
            if (found[0], old_config) != (definition.service, probe_config):
                self._node.replace(definition, keeps_state=True)
                if (checked := self._checked.get(service_id)) is not None:
                    self._checked[service_id] = checked._replace(is_redefined=True)
            if probe_config is not None and old_config is not None and probe_config.probe != old_config.probe:
                self._set_checked(service_id, self._initial_state())
        if unchecked_reason:
            self._set_unchecked(service_id, unchecked_reason)
        else:
            self._update_checked(service_id, is_checked=probe_config is not None)

    def _update_checked(self, service_id: str, *, is_checked: bool) -> None:
        if not is_checked:
            if self._checked.pop(service_id, None) is not None:
                self.changed_states.add(service_id)
                self._on_change()
        elif service_id not in self._checked:
            self._checked[service_id] = _Checked(self._node.state(service_id), has_vote=False)

    def _set_checked(self, service_id: str, state: ServiceState) -> None:
        """A state that is published without evidence: the service is not Up."""
        self._checked[service_id] = _Checked(state, has_vote=True)
        self.changed_states.add(service_id)
        self._on_change()
        self._merge([service_id])

    def _set_unchecked(self, service_id: str, reason: str) -> None:
        checked = self._checked.get(service_id)
        if checked is None or not checked.state.reason.startswith(reason):
            known = self._node.state(service_id)
            before = known if known.status is Status.DOWN else self._initial_state()
            code, now_s = ReasonCode.DRIVER_MISSING, self._node.now_s()
            self._set_checked(service_id, state_machine.without_evidence(before, reason, code, now_s))

    def _initial_state(self) -> ServiceState:
        return state_machine.initial_state(self._node.now_s())

    def _remove(self, service_id: str) -> None:
        self._observers.pop(service_id, None)
        self._choices.pop(service_id, None)
        self._applied.pop(service_id, None)
        self._sources.pop(service_id, None)
        self._silence_due_at_s.pop(service_id, None)
        self._forget_renewal(service_id)
        self._update_checked(service_id, is_checked=False)
        if service_id in self._node:
            self._node.deregister(service_id)

    def _reorder(self) -> None:
        self._node.reorder([service.id for service in self._view.services()])

    def _is_reported(self, service_id: str) -> bool:
        shared = self._view.service(service_id)
        return shared is not None and not shared.definition.is_checked

    # ---- states

    def _merge(self, ids: Iterable[str]) -> None:
        """Set the states that follow from what is observed."""
        now_s = self._node.now_s()
        states: dict[str, ServiceState] = {}
        for service_id in ids:
            found = self._node.find(service_id)
            if found is None:
                continue
            service, before = found
            state = self._decide(service_id, before, now_s)
            if state is not None:
                states[service_id] = state
            self._set_renewal_due(service, state or before, is_decided=state is not None)
        if states:
            self._node.mirror(states)

    def _decide(self, service_id: str, before: ServiceState, now_s: float) -> ServiceState | None:
        """None: the node keeps its state."""
        checked = self._checked.get(service_id)
        if self._observers.get(service_id) == (self._replica,) and checked is not None:
            return checked.state if checked.has_vote else None
        shared = self._shared(service_id)
        merged = None if shared is None else self._merged(shared, now_s)
        return None if merged is None else service_state(merged, before, now_s)

    def _merged(self, shared: SharedService, now_s: float) -> MergedState | None:
        names = self._observers[shared.id]
        if shared.definition.is_checked:
            observations = [self._observation(name, shared.id) for name in names]
            source = shared.definition.source
            states = [state for state in observations if state is not None and state.source == source]
        else:
            states = [*self.observed(shared.id)]
        return merged_state(shared, states, len(names), now_s)

    def _observation(self, replica: str, service_id: str) -> ObservedState | None:
        is_own = replica == self._replica
        return self._own_observation(service_id) if is_own else self._view.observed(replica, service_id)

    def _own_observation(self, service_id: str) -> ObservedState | None:
        """As the others see it, but without delay."""
        state = self.published(service_id)
        if state is None:
            return None
        at_s, now_s, source = evidence_at_s(state), self._node.now_s(), self.source(service_id)
        return ObservedState(
            self._replica, state.status, state.reason, state.code, at_s, state.since_s, 0, now_s, source
        )

    def _set_renewal_due(self, service: Service, state: ServiceState, *, is_decided: bool) -> None:
        valid_s = service.policy.stale_after_s or service.policy.ttl_s
        self._forget_renewal(service.id)
        if valid_s is None or self._observers.get(service.id) == (self._replica,):
            return
        if not is_decided and (state.status is Status.INITIALIZING or state_machine.is_stale(state)):
            self._undecided.add(service.id)
        else:
            at_s = self._node.now_s() if state.status is Status.INITIALIZING else evidence_at_s(state)
            self._renewal_due_at_s[service.id] = renewal_due_at_s(at_s, valid_s)

    def _forget_renewal(self, service_id: str) -> None:
        self._renewal_due_at_s.pop(service_id, None)
        self._undecided.discard(service_id)


def evidence_at_s(state: ServiceState) -> float:
    """From when the state is valid: the last success if Up, the last evidence otherwise, or the registration."""
    at_s = state.last_ready_at_s if state.status is Status.UP else state.last_evidence_at_s
    return state.registered_at_s if at_s is None else at_s


def _shown(state: ServiceState) -> tuple[Status, str]:
    """What is published at once. A reason may change with every check, and a write per check is too much."""
    return state.status, state.code


def _probe_config(service_id: str, document: ServiceDocument) -> ProbeConfig | None:
    if document.restricted:
        raise InvalidValueError("its probe is not in the registry, and not in the configuration of this replica")
    options = {name: value for name, value in document.options.items() if name not in ("observers", "checked_by")}
    return define(service_id, **{**options, "probe": make_probe(options["probe"], environ={})}).probe_config


def _from_registry(service: Service, valid_s: float) -> Service:
    """A service whose evidence comes from the registry, or most of it."""
    return replace(service, policy=_registry_policy(service.policy, min(valid_s, MAX_STALE_AFTER_S)))


@lru_cache(maxsize=256)
def _registry_policy(policy: Policy, valid_s: float) -> Policy:
    return replace(policy, ttl_s=None, grace_s=None, stale_after_s=valid_s, stale_code=ReasonCode.REGISTRY_LOST)
