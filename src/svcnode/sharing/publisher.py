"""The keys of this replica: what it has to write, and what it has written. No I/O."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from svcnode.core.text import safe_reason, sanitize
from svcnode.net.etcd_json import Delete, Put
from svcnode.sharing.format import (
    MAX_NAME_CHARS,
    IgnoredKind,
    IssueDocument,
    KeyKind,
    ReplicaDocument,
    ServiceDocument,
    StateDocument,
    WorkDocument,
    encode_document,
    encode_key,
    evidence_document,
    replica_owner,
    work_key,
)
from svcnode.sharing.record import evidence_at_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from svcnode.core.model import ServiceState, Status
    from svcnode.sharing.format import Ignored, RegistryDocument, RegistryKey, Written
    from svcnode.sharing.shared_services import SharedServices
    from svcnode.sharing.view import RegistryView, ViewChanges
    from svcnode.sharing.work import WorkName

K = TypeVar("K")
V = TypeVar("V")


class Write(NamedTuple):
    """One operation, and what is published after it; None: deleted."""

    operation: Put | Delete
    kind: KeyKind
    name: str = ""  # of the service or the issue
    document: RegistryDocument | None = None
    lost_key: RegistryKey | None = None  # of what the registry has lost: it belongs to no replica


class Publisher:
    """`take_writes` gives the operations in order; each must be committed or put back."""

    def __init__(self, root: str, replica: str, identity: ReplicaDocument, services: SharedServices) -> None:
        self._root = root
        self._replica = replica
        self._owner = replica_owner(replica)
        self._identity = identity
        self._services = services
        self._definitions: dict[str, ServiceDocument] = {}  # in the registry
        self._issues: dict[str, str] = {}  # in the registry: the reasons by name
        self._states: dict[str, Status] = {}  # in the registry, under the lease
        self._work: dict[RegistryKey, WorkDocument] = {}  # in the registry, under the lease
        self._own_issues: dict[str, str] = {}
        self._own_work: dict[RegistryKey, WorkDocument] = {}
        self._ignored: Mapping[str, Ignored] = {}
        self.has_joined = False

    def compare(self, view: RegistryView) -> None:
        """After a range: what the registry has of this replica, and should not have, or not like this."""
        self._ignored = view.ignored
        self._definitions = view.definitions(self._owner)
        self._issues = {issue.name: issue.reason for issue in view.issues() if issue.owner == self._owner}
        self._services.changed_definitions.update(self._definitions, self._services.own_ids())
        if self.has_joined:
            self.has_joined = view.replicas.get(self._replica) == self._identity
            statuses = view.observed_statuses(self._replica)
            different = {id_ for id_, status in statuses.items() if self._states.get(id_) is not status}
            self._services.changed_states.update(different, self._states.keys() - statuses.keys())
            self._states = statuses
            self._work = {
                work_key(one.kind, one.scope, one.service_id): one.document
                for one in view.work()
                if one.scope == self._owner
            }

    def check(self, view: RegistryView, changes: ViewChanges) -> None:
        """After events: what is not as this replica has written it, or ought to write it, is written again.

        Another client may have changed it. Or it is a write of this replica that etcd received late, after a newer one.
        """
        for service_id in changes.services:
            document = view.definition(service_id, self._owner)
            if document != self._services.document(service_id):
                self._services.changed_definitions.add(service_id)
            _set(self._definitions, service_id, document)
        for service_id in changes.states if self.has_joined else ():
            observed = view.observed(self._replica, service_id)
            status = None if observed is None else observed.status
            if status is not self._states.get(service_id):
                self._services.changed_states.add(service_id)
                _set(self._states, service_id, status)

    @property
    def states_root(self) -> str:
        """What an earlier process has left below it must be deleted before this one joins."""
        return encode_key(self._root, KeyKind.STATES, self._replica, "-").removesuffix("-")

    @property
    def record_key(self) -> str:
        return encode_key(self._root, KeyKind.EVIDENCE, self._replica)

    def leave(self) -> None:
        """The lease is over, and the keys under it are deleted."""
        self.has_joined = False
        self._states.clear()
        self._work.clear()

    def set_issues(self, issues: Iterable[str]) -> bool:
        """The texts of the issues. A text that is too long for a key is the reason in the document, too."""
        before, names = self._own_issues, {sanitize(text)[:MAX_NAME_CHARS]: text for text in issues}
        self._own_issues = {name: "" if name == text else safe_reason(text) for name, text in names.items() if name}
        return self._own_issues != before

    def set_work(self, work: Mapping[WorkName, WorkDocument]) -> None:
        """The drains and maintenance of this replica alone, by kind and service. The others show them."""
        self._own_work = {work_key(kind, self._owner, id_): document for (kind, id_), document in work.items()}

    def take_writes(self, now_s: float, lease_id: int, written: Written, *, with_evidence: bool) -> list[Write]:
        if not self.has_joined:
            self._services.changed_states.update(self._services.published_ids())
        states = dict(self._state_documents(now_s, written))
        writes = [*self._definition_writes(), *self._issue_writes(), *self._lost_writes()]
        writes += (self._write(KeyKind.STATES, id_, document, lease_id) for id_, document in states.items())
        writes += self._work_writes(lease_id)
        writes += self._join(lease_id)  # after the rest: a replica that cannot write it is not live
        if with_evidence:
            writes.append(self._evidence_write(states, now_s, lease_id, written))
        return writes

    def commit(self, write: Write) -> None:
        if write.lost_key is not None:
            self._services.losses.set_written(write.lost_key)
            return
        match write.kind, write.document:
            case KeyKind.REPLICAS, _:
                self.has_joined = True
            case KeyKind.SERVICES, ServiceDocument() | None as document:
                _set(self._definitions, write.name, document)
            case KeyKind.ISSUES, IssueDocument() | None as issue:
                _set(self._issues, write.name, None if issue is None else issue.reason)
            case KeyKind.STATES, StateDocument() | None as state:
                _set(self._states, write.name, None if state is None else state.status)
            case KeyKind.DRAINS | KeyKind.MAINTENANCE | KeyKind.PLANNED_MAINTENANCE, WorkDocument() | None as work:
                _set(self._work, work_key(write.kind, self._owner, write.name or None), work)
            case _:
                pass  # evidence, of which only the last record counts

    def put_back(self, writes: Iterable[Write]) -> None:
        for write in writes:
            if write.lost_key is not None:
                continue  # it is due until it is written
            if write.kind is KeyKind.SERVICES:
                self._services.changed_definitions.add(write.name)
            elif write.kind is KeyKind.STATES:
                self._services.changed_states.add(write.name)

    def _join(self, lease_id: int) -> Iterator[Write]:
        if not self.has_joined:
            yield self._write(KeyKind.REPLICAS, "", self._identity, lease_id)

    def _definition_writes(self) -> Iterator[Write]:
        changed, self._services.changed_definitions = self._services.changed_definitions, set()
        own = {service_id: self._services.document(service_id) for service_id in changed}
        for service_id in sorted(changed, key=lambda id_: (document.position if (document := own[id_]) else -1, id_)):
            if own[service_id] != self._definitions.get(service_id):
                write = self._write(KeyKind.SERVICES, service_id, own[service_id])
                if not self._is_newer(write.operation.key):
                    yield write

    def _is_newer(self, key: str) -> bool:
        """Whether the document is of a newer version of this software, which is kept."""
        ignored = self._ignored.get(key)
        return ignored is not None and ignored.kind is IgnoredKind.NEWER_VERSION

    def _issue_writes(self) -> Iterator[Write]:
        for name in sorted(self._own_issues.keys() | self._issues.keys()):
            reason = self._own_issues.get(name)
            if reason != self._issues.get(name):
                yield self._write(KeyKind.ISSUES, name, None if reason is None else IssueDocument(reason))

    def _work_writes(self, lease_id: int) -> Iterator[Write]:
        for key in sorted(self._own_work.keys() | self._work.keys()):
            document = self._own_work.get(key)
            if document != self._work.get(key):
                name = key.names[1] if len(key.names) > 1 else ""
                yield self._write(key.kind, name, document, lease_id)

    def _lost_writes(self) -> Iterator[Write]:
        """All replicas write the same, so it does not matter which is first."""
        losses = self._services.losses
        for key, document in losses.puts().items():
            put = Put(encode_key(self._root, key.kind, *key.names), encode_document(document))
            yield Write(put, key.kind, document=document, lost_key=key)
        for key in losses.obsolete:
            yield Write(Delete(encode_key(self._root, key.kind, *key.names)), key.kind, lost_key=key)

    def _state_documents(self, now_s: float, written: Written) -> Iterator[tuple[str, StateDocument | None]]:
        changed, self._services.changed_states = self._services.changed_states, set()
        for service_id in sorted(changed):
            state = self._services.published(service_id)
            if state is not None:
                yield service_id, _state_document(state, self._services.source(service_id), now_s, written)
            elif service_id in self._states:
                yield service_id, None

    def _evidence_write(
        self, changed: dict[str, StateDocument | None], now_s: float, lease_id: int, written: Written
    ) -> Write:
        """About the states that the registry has after the other writes."""
        statuses = {**self._states}
        for service_id, document in changed.items():
            _set(statuses, service_id, None if document is None else document.status)
        states = {service_id: (status, self._age_s(service_id, now_s)) for service_id, status in statuses.items()}
        return self._write(KeyKind.EVIDENCE, "", evidence_document(states, written), lease_id)

    def _age_s(self, service_id: str, now_s: float) -> float:
        state = self._services.published(service_id)
        return math.inf if state is None else now_s - evidence_at_s(state)

    def _write(self, kind: KeyKind, name: str, document: RegistryDocument | None, lease_id: int = 0) -> Write:
        match kind:
            case KeyKind.REPLICAS | KeyKind.EVIDENCE:
                names: tuple[str, ...] = (self._replica,)
            case KeyKind.STATES:
                names = (self._replica, name)
            case KeyKind.DRAINS | KeyKind.MAINTENANCE | KeyKind.PLANNED_MAINTENANCE:
                names = work_key(kind, self._owner, name or None).names
            case _:
                names = (name, self._owner)
        key = encode_key(self._root, kind, *names)
        operation = Delete(key) if document is None else Put(key, encode_document(document), lease_id)
        return Write(operation, kind, name, document)


def _state_document(state: ServiceState, source: str, now_s: float, written: Written) -> StateDocument:
    return StateDocument(
        status=state.status,
        reason=state.reason,
        code=state.code,
        age_s=_rounded_up_s(now_s - evidence_at_s(state)),
        since_age_s=_rounded_up_s(now_s - state.since_s),
        source=source,
        written=written,
    )


def _rounded_up_s(age_s: float) -> float:
    """In milliseconds: evidence does not become younger."""
    return max(0.0, math.ceil(age_s * 1000) / 1000)


def _set(items: dict[K, V], name: K, value: V | None) -> None:
    if value is None:
        items.pop(name, None)
    else:
        items[name] = value
