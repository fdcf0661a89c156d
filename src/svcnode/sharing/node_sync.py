"""Makes the services of the node and their states equal to what follows from the records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.core import state_machine
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError, SvcnodeError
from svcnode.core.model import ServiceState, Status
from svcnode.node.definition import Definition, define
from svcnode.probes import make_probe
from svcnode.sharing.record import (
    NOT_SHARED,
    MadeFrom,
    Observer,
    OwnCheck,
    ServiceRecord,
    from_registry,
    with_shared_reports,
)
from svcnode.sharing.rules import choose_observers, continued_down, known_down, observers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from svcnode.core.model import Service
    from svcnode.node.definition import ProbeConfig
    from svcnode.node.node_state import NodeState
    from svcnode.sharing.format import ServiceDocument
    from svcnode.sharing.lost import Losses
    from svcnode.sharing.view import SharedService


class NodeSync:
    """`on_new_state` is called with the id of a service whose own state is to be published, or no longer."""

    def __init__(
        self, node: NodeState, observer: Observer, losses: Losses, on_new_state: Callable[[str], None]
    ) -> None:
        self._node = node
        self._losses = losses
        self._on_new_state = on_new_state
        self.records: dict[str, ServiceRecord] = {}  # by service id
        self.observer = observer
        self._has_unconfirmed = False

    def record(self, service_id: str) -> ServiceRecord:
        """The one that is kept; a new one if there is none yet."""
        if service_id not in self.records:
            self.records[service_id] = ServiceRecord(service_id)
        return self.records[service_id]

    # ---- definitions

    def sync_one(self, service_id: str) -> bool:
        """False if there is no such service."""
        record = self.records.get(service_id) or ServiceRecord(service_id)
        shared = self.observer.shared(record)
        is_frozen, is_in_node = self._losses.is_frozen(self._node.now_s()), service_id in self._node
        if shared is not None and (record.own is not None or is_in_node or not is_frozen):
            record = self.record(service_id)
            self._sync_shared(record, shared)
            if record.is_new and not self.observer.view.is_cached:
                record.is_new = False
                self._begin(record)
        elif record.own is not None:
            self._sync_unpublished(record, record.own.definition)
        else:
            return is_in_node and (is_frozen or self._losses.keeps(service_id))
        return True

    def _sync_shared(self, record: ServiceRecord, shared: SharedService) -> None:
        document, replica = shared.definition, self.observer.replica
        self._choose_observers(record, shared)
        self._set_source(record, document.source)
        made_from = MadeFrom(document, record.own, replica in record.observers, record.observers != (replica,))
        if not document.is_checked:
            self._sync_reporting(record, shared)
        elif record.made_from is not None and record.made_from.is_same(made_from):
            return
        elif made_from.is_observer:
            self._sync_checked(record, made_from)
        else:
            self._apply(record, Definition(from_registry(document.service, document.valid_s)))
        record.made_from = made_from

    def _begin(self, record: ServiceRecord) -> None:
        """With the state of the node: a service that is Down there is Down here, whatever this process has not seen."""
        states, (service, state) = self.observer.published(record), self._known(record)
        known, record.is_unknown = known_down(states), not states
        if known is None:
            return
        own = state if record.check is None else record.check.state
        down = continued_down(known, own, service.policy, self._node.now_s())
        if down is not None:
            if record.check is not None:
                self._set_check(record, down)
            self._node.set_decided_states({record.id: down})

    def _choose_observers(self, record: ServiceRecord, shared: SharedService) -> None:
        """As long as only the cache is known, nobody knows which replicas are live, and who checks what."""
        view = self.observer.view
        replicas = frozenset[str]() if view.is_cached else {*view.replicas, self.observer.replica}
        if shared.definition.is_checked:
            record.choice = choose_observers(shared, replicas, record.choice)
            record.observers = record.choice.observers
        else:
            record.observers = observers(shared, replicas)

    def _sync_reporting(self, record: ServiceRecord, shared: SharedService) -> None:
        """Who receives the reports applies the ttl. Others notice only that no report comes from the registry."""
        document, found, now_s = shared.definition, self._node.peek(record.id), self._node.now_s()
        state = state_machine.initial_state(now_s) if found is None else found[1]
        self.observer.note_reporter(record, now_s)
        if document.fixed_status is not None or self.observer.is_alone(record, shared):
            service = document.service
        elif self.observer.is_silence_received(record, shared, state, now_s):
            service = with_shared_reports(document.service)
        else:
            service = from_registry(document.service, document.valid_s)
        self._apply(record, Definition(service))

    def _sync_checked(self, record: ServiceRecord, made_from: MadeFrom) -> None:
        """This replica checks the service, with its own probe if it has the same one, or if the probe is restricted."""
        document, own = made_from.document, made_from.own
        probe_config = None if own is None else own.definition.probe_config
        is_same = own is not None and own.document is not None and own.document.options == document.options
        try:
            if probe_config is None or not (is_same or document.restricted):
                probe_config = _probe_config(record.id, document)
        except SvcnodeError as exc:
            reason = f"{self.observer.replica} cannot check it: {exc}"
            self._apply(record, Definition(document.service), unchecked_reason=reason)
        else:
            service = document.service
            service = from_registry(service, document.valid_s) if made_from.has_others else service
            self._apply(record, Definition(service, probe_config))

    def _sync_unpublished(self, record: ServiceRecord, definition: Definition) -> None:
        """This replica checks its own service until the registry says which one does."""
        replica, checked_by = self.observer.replica, (definition.options or {}).get("checked_by")
        is_observer = not checked_by or replica in checked_by
        record.observers = (replica,) if is_observer else ()
        self._set_source(record, NOT_SHARED if record.document is None else record.document.source)
        record.made_from = None
        if record.reports_here and record.document is not None:
            self.observer.note_reporter(record, self._node.now_s())
            if not self.observer.receives_itself(record):  # others may, as long as the registry does not say who
                service = from_registry(definition.service, record.document.valid_s)
                definition = definition._replace(service=service)
        self._apply(record, definition if is_observer else definition._replace(probe_config=None))

    def _set_source(self, record: ServiceRecord, source: str) -> None:
        if record.source not in (None, source):
            self._set_check(record, self._initial_state())
            self._node.set_decided_states({record.id: self._initial_state()})
            record.reporter = None
        record.source = source

    def _apply(self, record: ServiceRecord, definition: Definition, unchecked_reason: str = "") -> None:
        """With a reason, this replica ought to check the service, and cannot: by its vote, the service is not Up."""
        probe_config, found = definition.probe_config, self._node.peek(record.id)
        if found is None:
            self._node.add(definition)
        else:
            old_config = self._node.probe_config(record.id)
            if (found[0], old_config) != (definition.service, probe_config):
                self._node.replace(definition, keeps_state=True)
                if record.check is not None:
                    record.check = record.check._replace(is_redefined=True)
            if probe_config is not None and old_config is not None and probe_config.probe != old_config.probe:
                self._set_check(record, self._initial_state())
        if unchecked_reason:
            self._set_unchecked(record, unchecked_reason)
        elif probe_config is None:
            self._end_check(record)
        elif record.check is None:
            self._begin_check(record)

    def _begin_check(self, record: ServiceRecord) -> None:
        """From the state of the node. Down is published at once: a replica that starts now must find it."""
        state = self._known(record)[1]
        record.check = OwnCheck(state, has_vote=state.status is Status.DOWN)
        if record.check.has_vote:
            self._on_new_state(record.id)

    def _end_check(self, record: ServiceRecord) -> None:
        if record.check is not None:
            record.check = None
            self._on_new_state(record.id)

    def _set_check(self, record: ServiceRecord, state: ServiceState) -> None:
        """A state that is published without own evidence: the service is not Up."""
        record.check = OwnCheck(state, has_vote=True)
        self._on_new_state(record.id)
        self.merge([record.id])

    def _set_unchecked(self, record: ServiceRecord, reason: str) -> None:
        if record.check is None or not record.check.state.reason.startswith(reason):
            known = self._known(record)[1]
            before = known if known.status is Status.DOWN else self._initial_state()
            code, now_s = ReasonCode.DRIVER_MISSING, self._node.now_s()
            self._set_check(record, state_machine.without_evidence(before, reason, code, now_s))

    def _known(self, record: ServiceRecord) -> tuple[Service, ServiceState]:
        found = self._node.peek(record.id)
        assert found is not None, "it was added before"
        return found

    def _initial_state(self) -> ServiceState:
        return state_machine.initial_state(self._node.now_s())

    def remove(self, service_id: str) -> None:
        record = self.records.pop(service_id, None)
        if record is not None:
            self._end_check(record)
            if record.reported is not None:
                self._on_new_state(service_id)
        if service_id in self._node:
            self._node.deregister(service_id)

    # ---- states

    def note_reporters(self) -> None:
        """Before the view is replaced: the reports in it are still the newest ones."""
        now_s = self._node.now_s()
        for record in self.records.values():
            if not record.is_checked:
                self.observer.note_reporter(record, now_s)

    def merge(self, ids: Collection[str]) -> None:
        """Set the states that follow from what is observed."""
        now_s = self._node.now_s()
        states: dict[str, ServiceState] = {}
        for service_id in ids:
            record = self.records.get(service_id)
            if record is not None and not record.is_checked and self.observer.note_reporter(record, now_s):
                self.sync_one(service_id)
            found = self._node.peek(service_id)
            if record is None or found is None:
                continue
            service, before = found
            self.note_run(record, before)
            state = self.observer.decide(record, before, now_s)
            if state is not None:
                states[service_id] = state
            self.observer.set_renewal(record, service.policy, state or before, now_s, is_decided=state is not None)
        if not self._has_unconfirmed and any(state.code == ReasonCode.UNCONFIRMED for state in states.values()):
            self._has_unconfirmed = True
            replica = self.observer.replica
            text = f"the registry is unreachable: what several replicas ought to check is seen by {replica} alone"
            self._node.overrides.set_caveat("unconfirmed", text)  # first: the node must not be 200 in between
        if states:
            self._node.set_decided_states(states)
        for service_id in ids:
            self._publish_newest(service_id, now_s)

    def note_run(self, record: ServiceRecord, state: ServiceState) -> None:
        """Remember the start of a job: the state that others know does not have it."""
        if state.job_started_at_s is not None:
            record.run_started_at_s = state.job_started_at_s

    def _publish_newest(self, service_id: str, now_s: float) -> None:
        """A report to this replica is withdrawn if a newer one says something else, so that a replica which starts now
        cannot take it for the newest. A Down whose receiver is lost is published here, so that it finds that.
        """
        record, found = self.records.get(service_id), self._node.peek(service_id)
        if record is None or found is None:
            return
        if self.observer.is_outdated(record, now_s):
            record.reported = None
            self._on_new_state(service_id)
        is_known = record.reported is not None and record.reported.status is Status.DOWN
        if not is_known and found[1].status is Status.DOWN and self.observer.lost_down(record):
            record.reported = found[1]
            self._on_new_state(service_id)

    def end_caveat(self) -> None:
        """When each service is confirmed again by its other observers."""
        if self._has_unconfirmed and all(state.code != ReasonCode.UNCONFIRMED for _, state in self._node):
            self._has_unconfirmed = False
            self._node.overrides.set_caveat("unconfirmed", "")


def _probe_config(service_id: str, document: ServiceDocument) -> ProbeConfig | None:
    if document.restricted:
        raise InvalidValueError("its probe is not in the registry, and not in the configuration of this replica")
    options = {name: value for name, value in document.options.items() if name not in ("observers", "checked_by")}
    return define(service_id, **{**options, "probe": make_probe(options["probe"], environ={})}).probe_config
