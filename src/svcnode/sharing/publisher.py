"""The keys of this replica: what it has to write, and what it has written. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from svcnode.sharing.etcd_json import Delete, Put
from svcnode.sharing.format import (
    IgnoredKind,
    IssueDocument,
    KeyKind,
    ReplicaDocument,
    ServiceDocument,
    StateDocument,
    encode_document,
    encode_key,
    evidence_document,
    replica_owner,
)
from svcnode.sharing.services import evidence_at_s

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from svcnode.core.model import ServiceState, Status
    from svcnode.sharing.format import RegistryDocument, Written
    from svcnode.sharing.services import SharedServices
    from svcnode.sharing.view import RegistryView


class Write(NamedTuple):
    """One operation, and what is published after it; None: deleted."""

    operation: Put | Delete
    kind: KeyKind
    name: str = ""  # of the service or the issue
    document: RegistryDocument | None = None


class Publisher:
    """`take_writes` gives the operations in order; each must be committed or put back."""

    def __init__(self, root: str, replica: str, identity: ReplicaDocument, services: SharedServices) -> None:
        self._root = root
        self._replica = replica
        self._owner = replica_owner(replica)
        self._identity = identity
        self._services = services
        self._definitions: dict[str, ServiceDocument] = {}  # in the registry
        self._issues: set[str] = set()  # in the registry
        self._states: dict[str, Status] = {}  # in the registry, under the lease
        self._own_issues: frozenset[str] = frozenset()
        self._kept_keys: frozenset[str] = frozenset()  # of a newer version of this software
        self.has_joined = False

    def compare(self, view: RegistryView) -> None:
        """After a range: what the registry has of this replica, and should not have, or not like this."""
        self._definitions = view.definitions(self._owner)
        self._issues = {issue.name for issue in view.issues() if issue.owner == self._owner}
        self._kept_keys = frozenset(
            key for key, ignored in view.ignored.items() if ignored.kind is IgnoredKind.NEWER_VERSION
        )
        self._services.changed_definitions.update(self._definitions, self._services.own_ids())
        if self.has_joined:
            published = view.observed_ids(self._replica)
            self._services.changed_states.update(published ^ self._states.keys())
            self._states = {id_: status for id_, status in self._states.items() if id_ in published}

    @property
    def states_root(self) -> str:
        """What an earlier process has left below it must be deleted before this one joins."""
        return encode_key(self._root, KeyKind.STATES, self._replica, "-").removesuffix("-")

    def leave(self) -> None:
        """The lease is over, and the keys under it are deleted."""
        self.has_joined = False
        self._states.clear()

    def set_issues(self, issues: Iterable[str]) -> None:
        self._own_issues = frozenset(issues)

    def take_writes(self, now_s: float, lease_id: int, written: Written, *, with_evidence: bool) -> list[Write]:
        if not self.has_joined:
            self._services.changed_states.update(self._services.published_ids())
        states = dict(self._state_documents(now_s, written))
        writes = [*self._join(lease_id), *self._definition_writes(), *self._issue_writes()]
        writes += (self._write(KeyKind.STATES, id_, document, lease_id) for id_, document in states.items())
        if with_evidence:
            writes.append(self._evidence_write(states, now_s, lease_id, written))
        return writes

    def commit(self, write: Write) -> None:
        match write.kind, write.document:
            case KeyKind.REPLICAS, _:
                self.has_joined = True
            case KeyKind.SERVICES, ServiceDocument() as document:
                self._definitions[write.name] = document
            case KeyKind.SERVICES, _:
                self._definitions.pop(write.name, None)
            case KeyKind.ISSUES, None:
                self._issues.discard(write.name)
            case KeyKind.ISSUES, _:
                self._issues.add(write.name)
            case KeyKind.STATES, StateDocument() as document:
                self._states[write.name] = document.status
            case KeyKind.STATES, _:
                self._states.pop(write.name, None)
            case _:
                pass  # evidence, of which only the last record counts

    def put_back(self, writes: Iterable[Write]) -> None:
        for write in writes:
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
                if write.operation.key not in self._kept_keys:
                    yield write

    def _issue_writes(self) -> Iterator[Write]:
        for name in sorted(self._own_issues ^ self._issues):
            yield self._write(KeyKind.ISSUES, name, IssueDocument("") if name in self._own_issues else None)

    def _state_documents(self, now_s: float, written: Written) -> Iterator[tuple[str, StateDocument | None]]:
        changed, self._services.changed_states = self._services.changed_states, set()
        for service_id in sorted(changed):
            state = self._services.published(service_id)
            if state is not None:
                yield service_id, _state_document(state, now_s, written)
            elif service_id in self._states:
                yield service_id, None

    def _evidence_write(
        self, changed: dict[str, StateDocument | None], now_s: float, lease_id: int, written: Written
    ) -> Write:
        """About the states that the registry has after the other writes."""
        statuses = {**self._states, **{id_: document.status for id_, document in changed.items() if document}}
        ages_s = {
            id_: (status, now_s - evidence_at_s(state))
            for id_, status in statuses.items()
            if not (id_ in changed and changed[id_] is None) and (state := self._services.published(id_)) is not None
        }
        return self._write(KeyKind.EVIDENCE, "", evidence_document(ages_s, written), lease_id)

    def _write(self, kind: KeyKind, name: str, document: RegistryDocument | None, lease_id: int = 0) -> Write:
        match kind:
            case KeyKind.REPLICAS | KeyKind.EVIDENCE:
                names: tuple[str, ...] = (self._replica,)
            case KeyKind.STATES:
                names = (self._replica, name)
            case KeyKind.SERVICES | KeyKind.ISSUES | KeyKind.REPORTS:
                names = (name, self._owner)
        key = encode_key(self._root, kind, *names)
        operation = Delete(key) if document is None else Put(key, encode_document(document), lease_id)
        return Write(operation, kind, name, document)


def _state_document(state: ServiceState, now_s: float, written: Written) -> StateDocument:
    return StateDocument(
        status=state.status,
        reason=state.reason,
        code=state.code,
        age_s=max(0.0, now_s - evidence_at_s(state)),
        since_age_s=max(0.0, now_s - state.since_s),
        written=written,
    )
