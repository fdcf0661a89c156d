"""Keeps the services of the node equal to what this replica and the registry define, and their states equal to what
their observers see.

    file, control socket ──► own definitions ─┐
                                              ├─► services of the node, their order, the probes that run here
    registry ──────────────► RegistryView ────┤
                                              ├─► states of the node
    checks of this replica ─► own states ─────┘

What is known of a service is in its `ServiceRecord`, and what follows from it is decided in record.py.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from itertools import count
from typing import TYPE_CHECKING

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import DuplicateServiceError, SvcnodeError
from svcnode.core.model import ServiceState, Status, Verdict
from svcnode.core.units import format_limit
from svcnode.sharing.format import replica_owner, service_document
from svcnode.sharing.lost import Losses
from svcnode.sharing.node_sync import NodeSync
from svcnode.sharing.record import (
    NOT_SHARED,
    Observer,
    OwnDefinition,
    RegistryReception,
    ServiceRecord,
    evidence_at_s,
    is_from_registry,
    is_shown_otherwise,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from svcnode.core.model import Change, Evidence
    from svcnode.node.definition import Definition
    from svcnode.node.node_state import NodeState
    from svcnode.probes.base import Probe
    from svcnode.sharing.format import ServiceDocument
    from svcnode.sharing.view import ObservedState, RegistryView, ViewChanges

CHUNK = 200  # services that are compared or merged at once, on the event loop

log = logging.getLogger("svcnode.sharing")


class SharedServices:
    """Registers the services of this replica (`ServiceList`), and records its checks (`CheckRecorder`).

    Not thread-safe, except for the methods for operators: used on the event loop of the agent. `on_change` is called
    when there is something to publish.
    """

    def __init__(
        self,
        node: NodeState,
        view: RegistryView,
        replica: str,
        *,
        default_observers: int,
        on_change: Callable[[], None],
    ) -> None:
        self._node = node
        self.losses = Losses(replica_owner(replica))
        reception = RegistryReception(listening_since_s=node.now_s())
        observer = Observer(replica, replica_owner(replica), view, reception)
        self._sync = NodeSync(node, observer, self.losses, self._add_new_state)
        self._default_observers = default_observers
        self._on_change = on_change
        self._positions = count()
        self._renewed: set[str] = set()  # replicas with newer evidence that was not passed on yet
        self._is_sync_due = False
        self.changed_definitions: set[str] = set()  # to be published
        self.changed_states: set[str] = set()  # to be published
        node.subscribe(self._on_node_change, on_evidence=self._on_evidence)

    # ---- services of this replica

    def __contains__(self, service_id: object) -> bool:
        record = self._sync.records.get(service_id) if isinstance(service_id, str) else None
        return record is not None and record.own is not None

    def add(self, definition: Definition, *, registered_at_s: float | None = None) -> None:
        service_id = definition.service.id
        if service_id in self:
            raise DuplicateServiceError(service_id)
        self._set_own(self._sync.record(service_id), definition, next(self._positions))
        self._apply_own(service_id)
        if registered_at_s is not None:
            self._node.set_registered_at(service_id, registered_at_s)

    def replace(self, definition: Definition) -> None:
        record = self._sync.records[definition.service.id]
        assert record.own is not None
        self._set_own(record, definition, record.own.position)
        self._apply_own(record.id)

    def deregister(self, service_id: str) -> None:
        record = self._sync.records[service_id]
        record.own = None
        if record.reported is not None:
            record.reported = None
            self.changed_states.add(service_id)
        self._apply_own(service_id)

    def set_default_observers(self, default_observers: int) -> None:
        if default_observers == self._default_observers:
            return
        self._default_observers = default_observers
        own = self.own_ids()
        for service_id in own:
            record = self._sync.records[service_id]
            assert record.own is not None
            self._set_own(record, record.own.definition, record.own.position)
        self._sync_ids(own)
        self.changed_definitions.update(own)
        self._on_change()

    def own_ids(self) -> frozenset[str]:
        return frozenset(record.id for record in self._sync.records.values() if record.own is not None)

    def document(self, service_id: str) -> ServiceDocument | None:
        """The own definition to publish; None if there is none."""
        record = self._sync.records.get(service_id)
        return None if record is None else record.document

    def _set_own(self, record: ServiceRecord, definition: Definition, position: int) -> None:
        record.own = OwnDefinition(definition, position, self._make_document(definition, position))

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
        self._sync_ids([service_id])
        self.changed_definitions.add(service_id)
        self._on_change()

    # ---- the registry

    def set_view(self, view: RegistryView) -> None:
        """After a restore of old data. What was known before stays, until the replicas have written theirs again."""
        self.losses.remember(self._sync.observer.view)
        self._sync.note_reporters()
        self._sync.observer = self._sync.observer._replace(view=view)

    def compare(self) -> None:
        """After a range: the next update compares all services, whatever has changed."""
        self._is_sync_due = True

    async def update(self, changes: ViewChanges) -> None:
        """After a change of the view. If it is cancelled, the next call does the rest."""
        self.losses.settle(self._sync.observer.view)
        self._renewed |= changes.renewed
        self._is_sync_due |= changes.replicas or len(changes.services) > CHUNK
        if self._is_sync_due:
            await self._sync_all()
        elif changes.services:
            self._sync_ids(changes.services)
            self._reorder()
        view = self._sync.observer.view
        reported = (
            service_id
            for service_id in changes.states - changes.services
            if (shared := view.service(service_id)) is not None and not shared.definition.is_checked
        )
        self._sync_ids(reported)
        self._sync.merge(changes.services | changes.states)
        await self._pass_on_newer()

    async def set_connected(self) -> None:
        self._set_reception(since_s=self._node.now_s(), until_s=math.inf)
        await self._sync_reported()

    async def set_lost(self, received_until_s: float) -> None:
        """All reports by the registry up to this time are known."""
        self._set_reception(until_s=received_until_s)
        await self._sync_unreceived(received_until_s)

    async def _sync_unreceived(self, received_until_s: float) -> None:
        """After a time in which reports may have been missed: what followed from it is taken back."""
        seemed_silent = [
            service.id
            for service, state in self._node
            if state.code == ReasonCode.CANNOT_CHECK
            or (state.code == ReasonCode.TTL_EXPIRED and state.since_s > received_until_s)
        ]
        await self._sync_reported()
        silent = [service_id for service_id in seemed_silent if self._is_from_registry(service_id)]
        self._set_lost(silent, "lost: no report from the registry")

    def _set_reception(self, **times_s: float) -> None:
        reception = self._sync.observer.reception._replace(**times_s)
        self._sync.observer = self._sync.observer._replace(reception=reception)

    async def _follow_standstill(self) -> None:
        """This process, or its machine, may have been suspended."""
        now_s, standstill = self._node.standstill.tick(), self._node.standstill
        was_noticed = standstill.ended_at_s <= self._sync.observer.reception.listening_since_s
        if was_noticed or standstill.began_at_s == -math.inf:
            return
        self._set_reception(listening_since_s=standstill.ended_at_s)
        if not self._sync.observer.reception.is_lost:
            self._set_reception(since_s=now_s)
        await self._sync_unreceived(standstill.began_at_s)

    def _set_lost(self, ids: Iterable[str], reason: str) -> None:
        """These services may have reported something else, or at all: what they seem to be is no evidence."""
        code, now_s = ReasonCode.REGISTRY_LOST, self._node.now_s()
        states = ((service_id, self._node.state(service_id)) for service_id in ids)
        self._node.set_decided_states(
            {
                service_id: state._replace(status=Status.INITIALIZING, reason=reason, code=code, since_s=now_s)
                for service_id, state in states
            }
        )

    async def _sync_reported(self) -> None:
        services = self._sync.observer.view.services()
        await self._in_chunks([service.id for service in services if not service.definition.is_checked], self._sync_ids)

    async def tick(self) -> None:
        """Twice a second: what follows from the time alone."""
        now_s = self._node.now_s()
        await self._follow_standstill()
        if self.losses.decide(self._sync.observer.view, now_s):
            self._is_sync_due = True
            self._on_change()
        if self._is_sync_due:
            await self._sync_all()
        silent = [record for record in self._sync.records.values() if record.silence_due_at_s <= now_s]
        for record in silent:
            record.silence_due_at_s = math.inf
        await self._in_chunks([record.id for record in silent], self._sync_ids)
        for record in [*self._sync.records.values()]:
            if record.reports_here and (record.reported is None or record.reported.status is not Status.DOWN):
                self._publish_silence(record, now_s)
                self._end_run(record, now_s)
        due = [record.id for record in self._sync.records.values() if record.renewal_due_at_s <= now_s]
        await self._in_chunks(due, self._sync.merge)
        self._sync.end_caveat()

    async def _pass_on_newer(self) -> None:
        """At once, not with the next tick: the evidence of the node may have expired already."""
        renewed, now_s = frozenset(self._renewed), self._node.now_s()
        if not renewed:
            return
        due = [
            record.id
            for record in self._sync.records.values()
            if (record.is_undecided or record.renewal_due_at_s <= now_s) and not renewed.isdisjoint(record.observers)
        ]
        await self._in_chunks(due, self._sync.merge)
        self._renewed -= renewed

    def _publish_silence(self, record: ServiceRecord, now_s: float) -> None:
        """A service that reports to this replica, and is Down by what the registry said before: its status does not
        change when its ttl ends, and other replicas may not know it.
        """
        service, state = self._node.peek(record.id) or (None, None)
        if service is None or state is None or state.status is not Status.DOWN or service.policy.ttl_s is None:
            return
        reported_at_s = -math.inf if record.reported is None else evidence_at_s(record.reported)
        if now_s - max(state.since_s, state.registered_at_s, reported_at_s) >= service.policy.ttl_s:
            self._set_reported(record, state)

    def _end_run(self, record: ServiceRecord, now_s: float) -> None:
        """A run that was started here, while another replica has received the last success, and so applies its ttl."""
        found = self._node.peek(record.id)
        if found is None or not is_from_registry(found[0]):
            return
        self._sync.note_run(record, found[1])
        if self._sync.observer.is_run_overdue(record, found[0], now_s):
            record.run_started_at_s = None
            reason = f"started, and not ended within the grace of {format_limit(found[0].policy.grace_s or 0.0)}"
            self._node.report(record.id, Verdict.failed(reason, code=ReasonCode.TTL_EXPIRED))

    # ---- for operators; may be called in any thread

    def observers_of(self, service_id: str) -> tuple[str, ...]:
        record = self._sync.records.get(service_id)
        return () if record is None else record.observers

    def checked_counts(self) -> Counter[str]:
        """How many services each replica checks now."""
        checked = [record for record in list(self._sync.records.values()) if record.is_checked]
        return Counter(name for record in checked for name in record.observers)

    def definition(self, service_id: str) -> ServiceDocument | None:
        """The definition that all replicas show; None if the registry has none."""
        shared = self._sync.observer.shared(self._sync.records.get(service_id) or ServiceRecord(service_id))
        return None if shared is None else shared.definition

    def own_probe(self, service_id: str) -> Probe | None:
        """The probe in the configuration of this replica, also if another one checks the service."""
        record = self._sync.records.get(service_id)
        config = None if record is None or record.own is None else record.own.definition.probe_config
        return None if config is None else config.probe

    def observed(self, service_id: str) -> tuple[ObservedState, ...]:
        """The states of a service by all who publish one, this replica included."""
        record = self._sync.records.get(service_id) or ServiceRecord(service_id)
        return self._sync.observer.observed(record, self._node.now_s())

    # ---- checks of this replica, and reports to it

    def record(self, checks: Mapping[str, Evidence]) -> dict[str, ServiceState]:
        """Apply evidence to the own states; returns them. They decide when the next checks run."""
        now_s = self._node.now_s()
        states: dict[str, ServiceState] = {}
        for service_id, evidence in checks.items():
            record, found = self._sync.records.get(service_id), self._node.peek(service_id)
            if record is None or record.check is None or found is None:
                continue
            known = found[1].known_before if record.is_unknown else None
            before, record.check = record.check, record.check.after(evidence, found[0].policy, now_s, known)
            if record.check.is_to_publish(before):
                self.changed_states.add(service_id)
            states[service_id] = record.check.state
            self._node.feed.publish_evidence(service_id, evidence, record.check.state)
        self._sync.merge(states)
        if self.changed_states:
            self._on_change()
        return states

    def published_ids(self) -> frozenset[str]:
        """The services of which this replica publishes a state."""
        return frozenset(record.id for record in self._sync.records.values() if record.published is not None)

    def published(self, service_id: str) -> ServiceState | None:
        """The state to publish; None if there is none."""
        record = self._sync.records.get(service_id)
        return None if record is None else record.published

    def source(self, service_id: str) -> str:
        """Where the evidence of the state to publish comes from."""
        record = self._sync.records.get(service_id)
        return NOT_SHARED if record is None or record.source is None else record.source

    def _on_evidence(self, service_id: str, evidence: Evidence, state: ServiceState) -> None:
        """A report, of which there is one per heartbeat, or a check, which is recorded already."""
        record, reception = self._sync.records.get(service_id), self._sync.observer.reception
        if record is None or not record.reports_here or evidence.verdict.code == ReasonCode.FIXED:
            return
        self._set_reported(record, state)
        if state.status is Status.UP and evidence.at_s < reception.listening_since_s and reception.since_s == math.inf:
            self._set_lost([service_id], "restored from before the start: the registry may know a newer report")

    def _on_node_change(self, change: Change) -> None:
        """A service that reports to this replica is silent: the other replicas do not apply its ttl."""
        service_id, after = change.service_id, change.after
        if service_id is None or after is None or after.code != ReasonCode.TTL_EXPIRED:
            return
        record, found = self._sync.records.get(service_id), self._node.find(service_id)
        if record is not None and record.reports_here and found is not None and found[0].policy.ttl_s is not None:
            self._set_reported(record, after)

    def _set_reported(self, record: ServiceRecord, state: ServiceState) -> None:
        before, record.reported = record.reported, state
        if self._is_from_registry(record.id):
            self._sync_ids([record.id])  # from now on, this replica applies the ttl
        is_new_reason = before is not None and state.status is not Status.UP and state.reason != before.reason
        if before is None or is_new_reason or is_shown_otherwise(state, before):
            self._add_new_state(record.id)

    def _add_new_state(self, service_id: str) -> None:
        self.changed_states.add(service_id)
        self._on_change()

    def _is_from_registry(self, service_id: str) -> bool:
        found = self._node.peek(service_id)
        return found is not None and is_from_registry(found[0])

    # ---- definitions

    async def _sync_all(self) -> None:
        in_view = (service.id for service in self._sync.observer.view.services())
        ids = dict.fromkeys((*in_view, *self._sync.records, *self._node.ids))
        removed: list[str] = []

        def sync(chunk: Sequence[str]) -> None:
            removed.extend(service_id for service_id in chunk if not self._sync.sync_one(service_id))
            self._sync.merge(chunk)

        await self._in_chunks([*ids], sync)
        self._sync_ids(removed)
        self._reorder()
        self._is_sync_due = False

    async def _in_chunks(self, ids: Sequence[str], function: Callable[[Sequence[str]], None]) -> None:
        """Without blocking the event loop: requests are answered in between."""
        for start in range(0, len(ids), CHUNK):
            function(ids[start : start + CHUNK])
            if len(ids) > CHUNK:
                await asyncio.sleep(0)

    def _sync_ids(self, ids: Iterable[str]) -> None:
        """Make the services of the node equal to their definitions.

        Services are removed last: otherwise the node may be healthy for a moment, without its failed service.
        """
        removed = [service_id for service_id in ids if not self._sync.sync_one(service_id)]
        for service_id in removed:
            self._sync.remove(service_id)

    def _reorder(self) -> None:
        self._node.reorder([service.id for service in self._sync.observer.view.services()])
