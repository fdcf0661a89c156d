"""Clients of the registry that are no replicas: they register and report services, or read all nodes.

What a client writes belongs to its owner, by default its host: `services/{id}/{owner}` and `reports/{id}/{owner}`. A
call that returns has succeeded as a transaction of etcd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from svcnode.core.codes import ReasonCode, known_code
from svcnode.core.errors import ControlError, RegistryError
from svcnode.core.text import safe_reason
from svcnode.net.etcd_json import Compare, Delete, Put, Range
from svcnode.sharing.format import (
    REPORTED_STATUS,
    Ignored,
    IgnoredKind,
    KeyKind,
    ParsedEntry,
    ReplicaDocument,
    ReportDocument,
    encode_document,
    encode_key,
    lost_owner,
    node_of,
    node_root,
    nodes_root,
    parse_entry,
    parse_key,
    replica_of,
    replica_owner,
)
from svcnode.sharing.view import RegistryView

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from svcnode.net.etcd_json import KeyValue
    from svcnode.sharing.etcd import EtcdClient
    from svcnode.sharing.format import RegistryKey, ServiceDocument
    from svcnode.sharing.view import SharedService

MAX_ATTEMPTS = 5  # of a transaction that fails because another client has changed the service
MAX_OPERATIONS = 100  # per transaction; the default limit of etcd is 128
KEYS_PER_REQUEST, NODES_PER_REQUEST = 500, MAX_OPERATIONS // 2
_AFTER_SLASH = chr(ord("/") + 1)
BAD_REQUEST, NOT_FOUND, CONFLICT = 400, 404, 409  # as over the control socket


class RegisteredService(NamedTuple):
    """A service in the registry, at the time of a request."""

    shared: SharedService | None  # None: it has no valid definition
    newest: KeyValue | None  # the definition that is shown
    own: KeyValue | None  # the definition of this owner
    own_problem: Ignored | None  # why the definition of this owner is ignored


class RegistryClient:
    """Registers and reports services of one node, for one owner.

    Raises `ControlError` with the status that the control socket has for the same error, or `RegistryError`.
    """

    def __init__(self, etcd: EtcdClient, root: str, owner: str) -> None:
        self._etcd = etcd
        self._root = root
        self._owner = owner

    async def register(self, service_id: str, document: ServiceDocument) -> int:
        """Register or replace the service; returns the revision of the registry."""

        def operations(found: RegisteredService) -> list[Put | Delete]:
            replicas = sorted(found.shared.owner_replicas) if found.shared else []
            if replicas:
                raise ControlError(CONFLICT, f"this service belongs to the replica {replicas[0]}; change it there")
            self._check_version(found)
            put = Put(self._own_key(service_id), encode_document(document))
            keeps_report = found.own is not None and not document.is_checked
            return [put] if keeps_report else [put, Delete(self._report_key(service_id))]

        return await self._change(service_id, operations)

    async def deregister(self, service_id: str) -> None:
        lost_by_this = lost_owner(self._owner)

        def operations(found: RegisteredService) -> list[Put | Delete]:
            is_lost_here = found.shared is not None and lost_by_this in found.shared.owners
            if found.own is None and not is_lost_here:
                owners = ", ".join(found.shared.owners) if found.shared else ""
                others = f"; its owners: {owners}" if owners else ""
                raise ControlError(NOT_FOUND, f"{self._owner} has not registered this service{others}")
            self._check_version(found)
            is_last = found.shared is None or {self._owner, lost_by_this}.issuperset(found.shared.owners)
            reports = Delete(self._reports_root(service_id), is_prefix=True)
            return [
                Delete(self._own_key(service_id)),
                Delete(encode_key(self._root, KeyKind.SERVICES, service_id, lost_by_this)),
                reports if is_last else Delete(self._report_key(service_id)),
            ]

        await self._change(service_id, operations)

    async def report(self, service_id: str, status: str, reason: object = "", code: str | None = None) -> None:
        """Report the status of a service that any owner has registered with a ttl."""
        if status == "up" and code is not None and known_code(code) != code:
            raise ControlError(BAD_REQUEST, "code must be a reason code, or begin with x_")
        known = ReasonCode.REPORTED if code is None else known_code(code)
        document = ReportDocument(REPORTED_STATUS[status], safe_reason(reason), known)

        def operations(found: RegisteredService) -> list[Put | Delete]:
            if found.shared is None:
                raise ControlError(NOT_FOUND, f"the registry has no service {service_id!r}: register it first")
            definition = found.shared.definition
            if definition.is_checked or definition.fixed_status is not None:
                text = "this service has a probe or a fixed status, which alone sets its status"
                raise ControlError(CONFLICT, text)
            return [Put(self._report_key(service_id), encode_document(document))]

        await self._change(service_id, operations)

    async def has_replica(self) -> bool:
        """Whether a replica of the node is live, of whatever version."""
        return any(kv.lease_id for kv in (await self._etcd.range(f"{self._root}{KeyKind.REPLICAS}/")).kvs)

    async def _change(self, service_id: str, operations: Callable[[RegisteredService], list[Put | Delete]]) -> int:
        """Nothing is written if the service has changed since it was read: then it is read again."""
        for _ in range(MAX_ATTEMPTS):
            found = await self._read(service_id)
            own_key = self._own_key(service_id)
            compares = {own_key: Compare(own_key, found.own.mod_revision if found.own else 0)}
            if found.newest is not None:
                compares[found.newest.key] = Compare(found.newest.key, found.newest.mod_revision)
            result = await self._etcd.txn(operations(found), compares.values())
            if result.succeeded:
                return result.header.revision
        raise RegistryError(f"{service_id}: other clients change this service all the time; try again")

    async def _read(self, service_id: str) -> RegisteredService:
        kvs = (await self._etcd.range(self._root_of(KeyKind.SERVICES, service_id))).kvs
        view = _view_of(self._root, kvs)
        own_key = self._own_key(service_id)
        valid = (kv for kv in kvs if kv.key not in view.ignored)
        return RegisteredService(
            shared=view.service(service_id),
            newest=max(valid, key=lambda kv: kv.mod_revision, default=None),
            own=next((kv for kv in kvs if kv.key == own_key), None),
            own_problem=view.ignored.get(own_key),
        )

    def _check_version(self, found: RegisteredService) -> None:
        if found.own_problem is not None and found.own_problem.kind is IgnoredKind.NEWER_VERSION:
            text = f"a newer version of svcnode has registered this service ({found.own_problem.reason}); use that one"
            raise ControlError(CONFLICT, text)

    def _own_key(self, service_id: str) -> str:
        return encode_key(self._root, KeyKind.SERVICES, service_id, self._owner)

    def _report_key(self, service_id: str) -> str:
        return encode_key(self._root, KeyKind.REPORTS, service_id, self._owner)

    def _reports_root(self, service_id: str) -> str:
        return self._root_of(KeyKind.REPORTS, service_id)

    def _root_of(self, kind: KeyKind, service_id: str) -> str:
        return encode_key(self._root, kind, service_id, "-").removesuffix("-")


# ---- all nodes


class RegistryContent(NamedTuple):
    """All keys of all nodes. The views date nothing: whether a state is still valid is not known."""

    nodes: dict[str, RegistryView]  # by name
    foreign_keys: list[str]  # that belong to no node
    key_count: int


async def read_nodes(etcd: EtcdClient, prefix: str, node: str | None = None) -> RegistryContent:
    """With `node`, only this one, whether it has keys or not."""
    root = nodes_root(prefix) if node is None else node_root(prefix, node)
    kvs_of: dict[str, list[KeyValue]] = {} if node is None else {node: []}
    foreign_keys = []
    kvs = (await etcd.range(root)).kvs
    for kv in kvs:
        name = node_of(prefix, kv.key)
        if name is None:
            foreign_keys.append(kv.key)
        else:
            kvs_of.setdefault(name, []).append(kv)
    views = {name: _view_of(node_root(prefix, name), found) for name, found in kvs_of.items()}
    return RegistryContent(views, foreign_keys, len(kvs))


class NodeReplicas(NamedTuple):
    live: Mapping[str, ReplicaDocument | Ignored]  # by name; a document of a newer version is ignored
    absent: frozenset[str]  # replicas that are not live and still define services
    service_count: int


async def read_replicas(etcd: EtcdClient, prefix: str) -> dict[str, NodeReplicas]:
    """By node, in the order of the names. It costs far less than all keys, for those who ask again and again."""
    names, found = await node_names(etcd, prefix), {}
    for start in range(0, len(names), NODES_PER_REQUEST):
        part = names[start : start + NODES_PER_REQUEST]
        roots = [node_root(prefix, name) for name in part]
        replicas = (Range(f"{root}{KeyKind.REPLICAS}/") for root in roots)
        services = (Range(f"{root}{KeyKind.SERVICES}/", keys_only=True) for root in roots)
        results = await etcd.ranges([*replicas, *services])
        for name, root, *kvs in zip(part, roots, results[: len(part)], results[len(part) :], strict=True):
            found[name] = _node_replicas(root, *kvs)
    return found


async def node_names(etcd: EtcdClient, prefix: str) -> list[str]:
    """Sorted. The first keys of a node name it; the others are skipped."""
    root = nodes_root(prefix)
    names: dict[str, None] = {}
    start = root
    while True:
        keys = await etcd.keys(root, start=start, limit=KEYS_PER_REQUEST)
        names |= dict.fromkeys(name for key in keys if (name := node_of(prefix, key)) is not None)
        if len(keys) < KEYS_PER_REQUEST:
            return sorted(names)
        segment, slash, _ = keys[-1].removeprefix(root).partition("/")
        start = f"{root}{segment}{_AFTER_SLASH}" if slash else f"{keys[-1]}\0"


def _node_replicas(root: str, replicas: Iterable[KeyValue], services: Iterable[KeyValue]) -> NodeReplicas:
    live: dict[str, ReplicaDocument | Ignored] = {}
    for kv in replicas:
        key, entry = parse_key(root, kv.key), parse_entry(root, kv.key, kv.value, has_lease=kv.lease_id != 0)
        if key is not None and kv.lease_id != 0:
            live[key.names[0]] = cast("ReplicaDocument", entry.document) if isinstance(entry, ParsedEntry) else entry
    keys = [key.names for kv in services if (key := parse_key(root, kv.key)) is not None]
    owners = {owner for _, owner in keys}
    defining = {replica for owner in owners if (replica := replica_of(owner)) is not None}
    return NodeReplicas(live, frozenset(defining - live.keys()), len({service_id for service_id, _ in keys}))


async def forget_replica(etcd: EtcdClient, root: str, replica: str) -> list[str]:
    """Delete what a replica that is gone has left, and return the keys. Refused while its key has a lease."""
    kvs = (await etcd.range(root)).kvs
    view, owner = _view_of(root, kvs), replica_owner(replica)
    owners = (owner, lost_owner(owner))
    services = [encode_key(root, KeyKind.SERVICES, id_, owner) for owner in owners for id_ in view.definitions(owner)]
    issues = [encode_key(root, KeyKind.ISSUES, one.name, one.owner) for one in view.issues() if one.owner in owners]
    replica_key = encode_key(root, KeyKind.REPLICAS, replica)
    without_lease = [kv for kv in kvs if kv.key == replica_key and kv.lease_id == 0]
    keys = [*services, *issues, *(kv.key for kv in without_lease)]  # the compared key last
    is_gone = Compare(replica_key, without_lease[0].mod_revision if without_lease else 0)
    for start in range(0, max(1, len(keys)), MAX_OPERATIONS):
        if not (await etcd.txn(map(Delete, keys[start : start + MAX_OPERATIONS]), [is_gone])).succeeded:
            raise RegistryError(f"the replica {replica} is live; stop it first")
    return keys


async def accept_losses(etcd: EtcdClient, root: str, names: Collection[str] = ()) -> list[RegistryKey]:
    """Delete what the registry has lost: all, or the services and issues with these names. Returns the keys."""
    view = _view_of(root, (await etcd.range(root)).kvs)
    lost = view.lost_keys()
    known = {key.names[0] for key in lost}
    if unknown := [name for name in names if name not in known]:
        raise RegistryError(f"not lost: {', '.join(unknown)}; lost are: {', '.join(sorted(known)) or 'none'}")
    keys = [key for key in lost if not names or key.names[0] in names]
    operations = [operation for key in keys for operation in _acceptance(root, view, key)]
    for start in range(0, len(operations), MAX_OPERATIONS):
        await etcd.txn(operations[start : start + MAX_OPERATIONS])
    return keys


def _acceptance(root: str, view: RegistryView, key: RegistryKey) -> Iterator[Delete]:
    """With a service that goes, what was reported of it goes, too."""
    yield Delete(encode_key(root, key.kind, *key.names))
    service = view.service(key.names[0])
    if key.kind is KeyKind.SERVICES and service is not None and service.is_lost:
        yield Delete(encode_key(root, KeyKind.REPORTS, key.names[0], "-").removesuffix("-"), is_prefix=True)


def _view_of(root: str, kvs: Iterable[KeyValue]) -> RegistryView:
    view = RegistryView(root, lambda _: None)
    view.replace_all(kvs)
    return view
