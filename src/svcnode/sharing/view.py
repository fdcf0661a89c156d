"""The keys of a node in the registry as last known, and what they mean. No I/O.

A range or the events of a watch change the view. It dates evidence when it is received: `written_after_s(revision)`
is a time of the local clock before which the revision did not exist, or None if that is not known. So evidence is
never dated later than it was, whatever was delayed, suspended or set to another time.

The record `evidence/{replica}` renews all states of a replica. It costs no work per service: the age of a state is
read from the last record when the state is asked for.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from svcnode.sharing.format import (
    ALL_REPLICAS,
    REPORTS,
    EvidenceDocument,
    Ignored,
    IgnoredKind,
    IssueDocument,
    KeyKind,
    ParsedEntry,
    RegistryKey,
    ReplicaDocument,
    ReportDocument,
    SenderDocument,
    ServiceDocument,
    StateDocument,
    ToldDocument,
    WorkDocument,
    Written,
    decode_age_s,
    encode_key,
    is_lost,
    parse_entry,
    parse_key,
    replica_of,
    states_digest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from svcnode.core.model import Status
    from svcnode.net.etcd_json import Event, KeyValue

V = TypeVar("V")

DURABLE = (KeyKind.SERVICES, KeyKind.ISSUES)  # what is registered; the rest is what replicas and clients say of it
WORK = (KeyKind.DRAINS, KeyKind.MAINTENANCE, KeyKind.PLANNED_MAINTENANCE)  # of all replicas, it is durable, too


class SharedService(NamedTuple):
    id: str
    definition: ServiceDocument  # of the owner that wrote last, among those that have not lost it
    owners: tuple[str, ...]
    rank: tuple[int, int]  # its place in the list: the oldest create_revision, and the position at that owner

    @property
    def is_lost(self) -> bool:
        """Whether the registry has lost it, and nobody has registered it again."""
        return all(map(is_lost, self.owners))

    @property
    def owner_replicas(self) -> frozenset[str]:
        return frozenset(replica for owner in self.owners if (replica := replica_of(owner)) is not None)


class ObservedState(NamedTuple):
    """The state of a service as one replica observes it, or as one client reports it."""

    observer: str  # the replica or, of a report, the owner
    status: Status
    reason: str
    code: str
    evidence_at_s: float | None  # None: unknown, so it does not count
    since_s: float | None
    mod_revision: int
    known_at_s: float | None = None  # when the observer still had this state, at the earliest; None: unknown
    source: str = ""  # of the definition by which the service was observed; empty for a report
    latest_s: float | None = None  # when the evidence was obtained, at the latest; None: at `evidence_at_s`


class SharedIssue(NamedTuple):
    name: str
    owner: str
    reason: str


class SharedWork(NamedTuple):
    """A drain or a maintenance."""

    kind: KeyKind
    scope: str  # `ALL_REPLICAS`, or the owner that is a replica
    service_id: str | None  # None: of the node
    document: WorkDocument


class TargetSender(NamedTuple):
    """Who sends the notifications to a target."""

    document: SenderDocument
    mod_revision: int


class TargetTold(NamedTuple):
    """What a notification target was told."""

    document: ToldDocument
    mod_revision: int


class ViewChanges(NamedTuple):
    """What has changed since the last call of `take_changes`."""

    services: frozenset[str] = frozenset()  # definitions, by id
    states: frozenset[str] = frozenset()  # states and reports, by service id
    renewed: frozenset[str] = frozenset()  # replicas with a new record of evidence
    replicas: bool = False
    issues: bool = False
    targets: frozenset[str] = frozenset()  # of notifications: who sends, or what they were told
    work: bool = False  # drains and maintenance
    unmatched: frozenset[str] = frozenset()  # replicas whose record is about other states than the registry has


class _Version(NamedTuple):
    """Of a key. After a restore of etcd, a revision may have been used twice."""

    mod_revision: int
    content_hash: int


class _OwnedDefinition(NamedTuple):
    document: ServiceDocument
    create_revision: int
    mod_revision: int


class _EvidenceRecord(NamedTuple):
    composed_at_s: float  # at the earliest
    ages: bytes
    positions: Mapping[str, int]  # of the ids in `ages`
    mod_revision: int


class _ReplicaStates:
    """The states of one replica, and the last record that renews them."""

    def __init__(self) -> None:
        self.states: dict[str, ObservedState] = {}
        self._record: _EvidenceRecord | None = None
        self._positions: dict[str, int] | None = None  # of the sorted ids; None: not known
        self._digest: str | None = None

    def put(self, service_id: str, state: ObservedState) -> None:
        if service_id not in self.states:
            self._positions = None
        self._digest = None
        self.states[service_id] = state

    def delete(self, service_id: str) -> None:
        self._positions = self._digest = None
        self.states.pop(service_id, None)

    def renew(self, document: EvidenceDocument, composed_at_s: float | None, mod_revision: int) -> bool:
        """False if the record is about other states than these."""
        if self._positions is None:
            self._positions = {service_id: position for position, service_id in enumerate(sorted(self.states))}
        if self._digest is None:
            self._digest = states_digest((id_, self.states[id_].status) for id_ in self._positions)
        if (document.state_count, document.digest) != (len(self._positions), self._digest):
            return False
        if composed_at_s is not None:
            self._record = _EvidenceRecord(composed_at_s, document.ages, self._positions, mod_revision)
        return True

    def get(self, service_id: str) -> ObservedState | None:
        state, record = self.states.get(service_id), self._record
        if state is None or record is None or record.mod_revision < state.mod_revision:
            return state
        position = record.positions.get(service_id)
        age_s = None if position is None else decode_age_s(record.ages[position])
        if age_s is None:
            return state
        renewed_at_s = record.composed_at_s - age_s
        at_s = state.evidence_at_s
        at_s = renewed_at_s if at_s is None else max(at_s, renewed_at_s)
        return state._replace(evidence_at_s=at_s, known_at_s=record.composed_at_s)


class RegistryView:
    """Not thread-safe."""

    def __init__(self, root: str, written_after_s: Callable[[int], float | None]) -> None:
        self._root = root
        work_roots = (f"{root}{kind}/{ALL_REPLICAS}" for kind in WORK)
        self._durable_roots = (*(f"{root}{kind}/" for kind in DURABLE), *work_roots)
        self._written_after_s = written_after_s
        self._versions: dict[str, _Version] = {}  # of all keys
        self._durable: dict[str, KeyValue] = {}  # as read
        self._lost_keys: set[RegistryKey] = set()
        self._ignored: dict[str, Ignored] = {}
        self._replicas: dict[str, ReplicaDocument] = {}
        self._definitions: dict[str, dict[str, _OwnedDefinition]] = {}  # by id and owner
        self._services: dict[str, SharedService] = {}
        self._ordered: tuple[SharedService, ...] | None = None
        self._issues: dict[tuple[str, ...], str] = {}
        self._states: dict[str, _ReplicaStates] = {}
        self._reports: dict[str, dict[str, ObservedState]] = {}  # by id and owner
        self._ended_reports: dict[str, ObservedState] = {}  # the newest one by id
        self._senders: dict[str, TargetSender] = {}  # by target
        self._told: dict[str, TargetTold] = {}  # by target
        self._work: dict[RegistryKey, WorkDocument] = {}
        self._forget_changes()
        self.is_restored = False  # whether the last range was of another history than the keys before it
        self.is_cached = False  # from the disk: nothing was read from the registry so far
        self.unmatched_records = 0  # records of evidence about other states than the replica has

    # ---- reading

    @property
    def replicas(self) -> Mapping[str, ReplicaDocument]:
        """The live replicas."""
        return self._replicas

    def services(self) -> tuple[SharedService, ...]:
        """In the order of the list."""
        if self._ordered is None:
            self._ordered = tuple(sorted(self._services.values(), key=lambda service: (service.rank, service.id)))
        return self._ordered

    def service(self, service_id: str) -> SharedService | None:
        return self._services.get(service_id)

    def definitions(self, owner: str) -> dict[str, ServiceDocument]:
        """What an owner has in the registry, by service id."""
        return {id_: owners[owner].document for id_, owners in self._definitions.items() if owner in owners}

    def definition(self, service_id: str, owner: str) -> ServiceDocument | None:
        definition = self._definitions.get(service_id, {}).get(owner)
        return None if definition is None else definition.document

    def definition_items(self) -> dict[RegistryKey, ServiceDocument]:
        """By all owners, in the order of the list."""
        return {
            RegistryKey(KeyKind.SERVICES, (service.id, owner)): self._definitions[service.id][owner].document
            for service in self.services()
            for owner in service.owners
        }

    def durable(self) -> list[KeyValue]:
        """The keys of services and issues, and of what is asked of all replicas, as they were read."""
        return [*self._durable.values()]

    def lost_keys(self) -> list[RegistryKey]:
        """Of what the registry has lost, and a replica has written again."""
        return sorted(self._lost_keys)

    def has_lost(self, key: RegistryKey) -> bool:
        return key in self._lost_keys

    def replica_revision(self, replica: str) -> int:
        """Of the key of a live replica; 0 if it is not live."""
        return self._mod_revision(encode_key(self._root, KeyKind.REPLICAS, replica))

    def newest_key(self) -> str | None:
        """The one that was written last; None if there is none."""
        return max(self._versions, key=self._mod_revision, default=None)

    def has(self, kv: KeyValue | None) -> bool:
        """Whether the view has this key, with this value."""
        return kv is not None and _version(kv) == self._versions.get(kv.key)

    def issues(self) -> tuple[SharedIssue, ...]:
        return tuple(SharedIssue(name, owner, reason) for (name, owner), reason in sorted(self._issues.items()))

    def observed(self, replica: str, service_id: str) -> ObservedState | None:
        states = self._states.get(replica)
        return None if states is None else states.get(service_id)

    def observed_by_all(self, service_id: str) -> tuple[ObservedState, ...]:
        """By every replica that publishes a state of the service, whether it should or not."""
        found = (self.observed(replica, service_id) for replica in sorted(self._states))
        return tuple(state for state in found if state is not None)

    def observed_statuses(self, replica: str) -> dict[str, Status]:
        """Of the services of which the replica publishes a state."""
        states = self._states.get(replica)
        return {} if states is None else {id_: state.status for id_, state in states.states.items()}

    def reports(self, service_id: str) -> tuple[ObservedState, ...]:
        """Of clients without a replica."""
        return tuple(report for _, report in sorted(self._reports.get(service_id, {}).items()))

    def ended_report(self, service_id: str) -> ObservedState | None:
        """The newest one to a replica that no longer publishes it: it may be lost, but the report was made."""
        return self._ended_reports.get(service_id)

    def sender(self, target: str) -> TargetSender | None:
        """None if no live replica sends to it."""
        return self._senders.get(target)

    def told(self, target: str) -> TargetTold | None:
        return self._told.get(target)

    def work(self) -> tuple[SharedWork, ...]:
        """Drains and maintenance: those of all replicas first, then those of each."""
        ordered = sorted(self._work.items(), key=lambda item: (item[0].names[0] != ALL_REPLICAS, *reversed(item[0])))
        return tuple(
            SharedWork(kind, names[0], names[1] if len(names) > 1 else None, document)
            for (kind, names), document in ordered
        )

    @property
    def ignored(self) -> Mapping[str, Ignored]:
        """The keys that this version does not understand."""
        return self._ignored

    def ignored_counts(self) -> dict[IgnoredKind, int]:
        """May be called in any thread."""
        counts = Counter(ignored.kind for ignored in list(self._ignored.values()))
        return {kind: counts[kind] for kind in IgnoredKind}

    def changed_probes(self) -> list[object]:
        """As written, of the services that `take_changes` will give."""
        found = (self._services.get(service_id) for service_id in self._changed_services)
        return [service.definition.options.get("probe") for service in found if service is not None]

    def take_changes(self) -> ViewChanges:
        changes = ViewChanges(
            frozenset(self._changed_services),
            frozenset(self._changed_states),
            frozenset(self._renewed),
            self._has_changed_replicas,
            self._has_changed_issues,
            frozenset(self._changed_targets),
            self._has_changed_work,
            frozenset(self._unmatched),
        )
        self._forget_changes()
        return changes

    def _forget_changes(self) -> None:
        self._changed_services: set[str] = set()
        self._changed_states: set[str] = set()
        self._renewed: set[str] = set()
        self._unmatched: set[str] = set()
        self._changed_targets: set[str] = set()
        self._has_changed_replicas = self._has_changed_issues = self._has_changed_work = False

    # ---- changing

    def replace_all(self, kvs: Iterable[KeyValue]) -> None:
        """Make the view equal to a range. Keys that have not changed keep their dates.

        If a key has a lower revision than before, or the same one with another value, etcd was restored from a
        snapshot, and nothing of before counts.
        """
        evidence_root = f"{self._root}{KeyKind.EVIDENCE}/"
        # Records of evidence last: they are about the states.
        ordered = sorted(kvs, key=lambda kv: (kv.key.startswith(evidence_root), kv.mod_revision))
        known = self._versions
        is_restored = any(_is_before(kv, known.get(kv.key)) for kv in ordered)
        self.is_restored = is_restored
        for key in [*known] if is_restored else known.keys() - {kv.key for kv in ordered}:
            self._remove(key)
        for kv in ordered:
            if _version(kv) != known.get(kv.key):
                self._put(kv)

    def apply(self, event: Event) -> None:
        """Events are applied in the order of their revisions; one that is known already changes nothing."""
        if event.put is not None:
            if event.mod_revision > self._mod_revision(event.key):
                self._put(event.put)
        elif event.key in self._versions and event.mod_revision > self._mod_revision(event.key):
            self._remove(event.key)

    def _mod_revision(self, key: str) -> int:
        version = self._versions.get(key)
        return 0 if version is None else version.mod_revision

    def _put(self, kv: KeyValue) -> None:
        parsed = self._same_definition(kv) or parse_entry(self._root, kv.key, kv.value, has_lease=kv.lease_id != 0)
        if isinstance(parsed, Ignored) or kv.key in self._ignored:
            self._remove(kv.key)
        self._versions[kv.key] = _version(kv)
        if kv.key.startswith(self._durable_roots):
            self._durable[kv.key] = kv
        if isinstance(parsed, Ignored):
            self._ignored[kv.key] = parsed
            return
        if parsed.key.kind in DURABLE and is_lost(parsed.key.names[1]):
            self._lost_keys.add(parsed.key)
        self._apply_entry(parsed, kv.create_revision, kv.mod_revision)

    def _same_definition(self, kv: KeyValue) -> ParsedEntry | None:
        """As another replica has written it, if one has: with one file on all machines, that is most of the keys."""
        key = parse_key(self._root, kv.key) if kv.key.startswith(self._durable_roots) else None
        if key is None or key.kind is not KeyKind.SERVICES or replica_of(key.names[1]) is None:
            return None
        for owner, definition in self._definitions.get(key.names[0], {}).items():
            known = self._durable[encode_key(self._root, KeyKind.SERVICES, key.names[0], owner)]
            if known.value == kv.value and replica_of(owner) is not None:
                return ParsedEntry(key, definition.document)
        return None

    def _apply_entry(self, entry: ParsedEntry, create_revision: int, mod_revision: int) -> None:
        names = entry.key.names
        match entry.document:
            case ReplicaDocument() as replica:
                self._replicas[names[0]] = replica
                self._has_changed_replicas = True
            case ServiceDocument() as document:
                definition = _OwnedDefinition(document, create_revision, mod_revision)
                self._definitions.setdefault(names[0], {})[names[1]] = definition
                self._update_service(names[0])
            case IssueDocument(reason):
                self._issues[names] = reason
                self._has_changed_issues = True
            case StateDocument() as document:
                state = self._observed_state(names[0], document, mod_revision)
                self._states.setdefault(names[0], _ReplicaStates()).put(names[1], state)
                self._changed_states.add(names[1])
            case EvidenceDocument() as document:
                self._renew(names[0], document, mod_revision)
            case ReportDocument(status, reason, code):
                at_s = self._written_after_s(mod_revision)
                report = ObservedState(names[1], status, reason, code, at_s, at_s, mod_revision)
                self._reports.setdefault(names[0], {})[names[1]] = report
                self._changed_states.add(names[0])
            case SenderDocument() as sender:
                self._senders[names[0]] = TargetSender(sender, mod_revision)
                self._changed_targets.add(names[0])
            case ToldDocument() as told:
                self._told[names[0]] = TargetTold(told, mod_revision)
                self._changed_targets.add(names[0])
            case WorkDocument() as work:
                self._work[entry.key] = work
                self._has_changed_work = True

    def _remove(self, key: str) -> None:
        known = self._versions.pop(key, None) is not None
        self._durable.pop(key, None)
        if self._ignored.pop(key, None) is not None or not known:
            return
        parsed = parse_key(self._root, key)
        assert parsed is not None
        self._remove_entry(parsed)

    def _remove_entry(self, key: RegistryKey) -> None:
        names = key.names
        self._lost_keys.discard(key)
        match key.kind:
            case KeyKind.REPLICAS:
                del self._replicas[names[0]]
                self._has_changed_replicas = True
            case KeyKind.SERVICES:
                _delete_inner(self._definitions, names)
                self._update_service(names[0])
            case KeyKind.ISSUES:
                del self._issues[names]
                self._has_changed_issues = True
            case KeyKind.STATES:
                self._keep_report(self.observed(*names), names[1])
                self._states[names[0]].delete(names[1])
                if not self._states[names[0]].states:
                    del self._states[names[0]]
                self._changed_states.add(names[1])
            case KeyKind.EVIDENCE:
                pass  # the last record is still true; it is only not renewed
            case KeyKind.REPORTS:
                _delete_inner(self._reports, names)
                self._changed_states.add(names[0])
            case KeyKind.SENDERS | KeyKind.TOLD:
                del (self._senders if key.kind is KeyKind.SENDERS else self._told)[names[0]]
                self._changed_targets.add(names[0])
            case KeyKind.DRAINS | KeyKind.MAINTENANCE | KeyKind.PLANNED_MAINTENANCE:
                del self._work[key]
                self._has_changed_work = True

    def _keep_report(self, report: ObservedState | None, service_id: str) -> None:
        if report is None or report.source != REPORTS or report.evidence_at_s is None:
            return
        known = self._ended_reports.get(service_id)
        if known is None or (known.evidence_at_s or 0.0) <= report.evidence_at_s:
            self._ended_reports[service_id] = report

    def _update_service(self, service_id: str) -> None:
        self._ordered = None
        self._changed_services.add(service_id)
        owners = self._definitions.get(service_id)
        if owners is None:
            del self._services[service_id]
            return
        _, shown = max(owners.items(), key=lambda item: (not is_lost(item[0]), item[1].mod_revision, item[0]))
        rank = min((definition.create_revision, definition.document.position) for definition in owners.values())
        self._services[service_id] = SharedService(service_id, shown.document, tuple(sorted(owners)), rank)

    def _observed_state(self, replica: str, document: StateDocument, mod_revision: int) -> ObservedState:
        composed_at_s = self._composed_at_s(document.written, mod_revision)
        evidence_at_s = since_s = None
        if composed_at_s is not None:
            evidence_at_s, since_s = composed_at_s - document.age_s, composed_at_s - document.since_age_s
        return ObservedState(
            replica,
            document.status,
            document.reason,
            document.code,
            evidence_at_s,
            since_s,
            mod_revision,
            composed_at_s,
            document.source,
        )

    def _renew(self, replica: str, document: EvidenceDocument, mod_revision: int) -> None:
        states = self._states.get(replica, _ReplicaStates())
        if states.renew(document, self._composed_at_s(document.written, mod_revision), mod_revision):
            self._renewed.add(replica)
        else:
            self._unmatched.add(replica)
            self.unmatched_records += 1

    def _composed_at_s(self, written: Written, mod_revision: int) -> float | None:
        """A time before which the document was not composed; None if that is not known."""
        if written.revision >= mod_revision:  # of another history, before etcd was restored
            return None
        at_s = self._written_after_s(written.revision)
        return None if at_s is None else at_s + written.elapsed_s


def _version(kv: KeyValue) -> _Version:
    return _Version(kv.mod_revision, hash((kv.value, kv.create_revision, kv.lease_id)))


def _is_before(kv: KeyValue, known: _Version | None) -> bool:
    """Whether the key is of another history than the known one."""
    return known is not None and kv.mod_revision <= known.mod_revision and _version(kv) != known


def _delete_inner(outer: dict[str, dict[str, V]], names: tuple[str, ...]) -> None:
    inner = outer[names[0]]
    del inner[names[1]]
    if not inner:
        del outer[names[0]]
