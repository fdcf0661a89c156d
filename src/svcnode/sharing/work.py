"""Drains and maintenance of a node on several machines.

What is asked of all replicas is one document per drain or maintenance, with the scope `all`. Anybody may write and end
it; every replica that reads it obeys it. What is asked of one replica only is a document under the lease of this
replica, with its owner as the scope: the others show it, and do not obey it.

    WorkClient  asks all replicas for a drain or maintenance, and ends it; for a replica or any other client
    NodeWork    makes the node equal to what is asked of all replicas, and says what is asked of this one
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.core.errors import ControlError
from svcnode.core.maintenance import PlannedMaintenance, check_window, parse_time_s
from svcnode.core.model import Maintenance
from svcnode.core.text import with_author
from svcnode.core.units import iso_time, utc_text
from svcnode.net.etcd_json import Compare, Put
from svcnode.node import overrides
from svcnode.node.scheduled_maintenance import TOLERANCE_S, ScheduledMaintenance
from svcnode.sharing.format import (
    ALL_REPLICAS,
    Ignored,
    IgnoredKind,
    KeyKind,
    WorkDocument,
    encode_document,
    encode_key,
    parse_entry,
    replica_of,
    replica_owner,
    work_key,
)
from svcnode.sharing.view import SharedWork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Set
    from contextlib import AbstractAsyncContextManager

    from svcnode.node.node_state import NodeState
    from svcnode.sharing.etcd import EtcdClient

SOURCE = overrides.ALL_REPLICAS  # of the drain and the maintenance, at the node
NOT_FOUND, CONFLICT = 404, 409  # as over the control socket
MAX_OWN = 100  # drains and maintenances of one replica that the others show, those of the node first
LEASE_MARGIN_S = 3600  # clocks differ: a maintenance stays in the registry at least until its end on every machine


class WorkName(NamedTuple):
    """Which drain or maintenance of the node it is."""

    kind: KeyKind
    service_id: str | None = None  # None: of the node


class WorkClient:
    """Raises `RegistryError`, or `ControlError` with the status that the control socket has for the same error.

    Each call has a connection of its own: a replica must not miss what its other connection shows, such as a restore.
    """

    def __init__(
        self,
        connect: Callable[[], AbstractAsyncContextManager[EtcdClient]],
        root: str,
        via: str,
        wall_clock: Callable[[], float] = time.time,
        node_work: NodeWork | None = None,
    ) -> None:
        """`via` is the owner that is this replica or client. A replica also has its `node_work`."""
        self._connect = connect
        self._root = root
        self._via = via
        self._wall_clock = wall_clock
        self._node_work = node_work

    async def get(self, name: WorkName) -> WorkDocument | None:
        """None if there is none, or if it has ended. A replica may know of one that etcd has lost."""
        async with self._connect() as etcd:
            found = await self._read(etcd, name)
        return self._node_work.asked(name) if found is None and self._node_work is not None else found

    async def drain(self, by: str = "", reason: str = "") -> WorkDocument:
        document = WorkDocument(by, self._via, reason, _rounded_s(self._wall_clock()))
        async with self._connect() as etcd:
            await etcd.put(self._key(WorkName(KeyKind.DRAINS)), encode_document(document))
        return document

    async def maintain(
        self, service_id: str | None, duration_s: float, *, by: str = "", reason: str = ""
    ) -> WorkDocument:
        """From now on."""
        now_s = self._wall_clock()
        return await self._put_window(
            WorkName(KeyKind.MAINTENANCE, service_id), now_s, now_s + duration_s, by=by, reason=reason
        )

    async def plan(
        self, service_id: str | None, from_s: float, until_s: float, *, by: str = "", reason: str = ""
    ) -> WorkDocument:
        name = WorkName(KeyKind.PLANNED_MAINTENANCE, service_id)
        return await self._put_window(name, from_s, until_s, by=by, reason=reason)

    async def end(self, name: WorkName) -> None:
        """Also if there is none, so that it can be repeated."""
        async with self._connect() as etcd:
            await etcd.delete(self._key(name))
            if self._node_work is not None and self._node_work.forget(name):
                await etcd.delete(self._key(name))  # the replica may have written it again just before

    async def _put_window(self, name: WorkName, from_s: float, until_s: float, *, by: str, reason: str) -> WorkDocument:
        """Under a lease, which removes it some time after its end: nobody has to."""
        now_s = self._wall_clock()
        check_window(from_s, until_s, now_s)
        times = map(_rounded_s, (now_s, from_s, until_s))
        document = WorkDocument(by, self._via, reason, *times)
        async with self._connect() as etcd:
            await self._check_service(etcd, name.service_id)
            lease_id = await _grant_lease(etcd, until_s - now_s)
            await etcd.put(self._key(name), encode_document(document), lease_id=lease_id)
        return document

    async def _check_service(self, etcd: EtcdClient, service_id: str | None) -> None:
        if service_id is None:
            return
        prefix = encode_key(self._root, KeyKind.SERVICES, service_id, "-").removesuffix("-")
        if not await etcd.keys(prefix, limit=1):
            raise ControlError(NOT_FOUND, f"the registry has no service {service_id!r}")

    async def _read(self, etcd: EtcdClient, name: WorkName) -> WorkDocument | None:
        kv = await etcd.get(self._key(name))
        if kv is None:
            return None
        entry = parse_entry(self._root, kv.key, kv.value, has_lease=kv.lease_id != 0)
        if isinstance(entry, Ignored):
            if entry.kind is IgnoredKind.NEWER_VERSION:
                text = f"a newer version of svcnode has written it ({entry.reason}); use that one"
                raise ControlError(CONFLICT, text)
            return None
        assert isinstance(entry.document, WorkDocument)
        until_s = entry.document.until_s
        return None if until_s is not None and until_s <= self._wall_clock() else entry.document

    def _key(self, name: WorkName) -> str:
        return _key(self._root, name)


class NodeWork:
    """Not thread-safe, except for `shown`. `on_asked` is called when something else is asked of all replicas."""

    def __init__(self, node: NodeState, replica: str, on_asked: Callable[[], None] = lambda: None) -> None:
        self._node = node
        self._on_asked = on_asked
        self._owner = replica_owner(replica)
        self._maintenance = ScheduledMaintenance(node, SOURCE)
        self._planned: Set[str | None] = frozenset()  # services, and None for the node
        self._asked: dict[WorkName, WorkDocument] = {}  # of all replicas, as last known
        self._lost: dict[WorkName, WorkDocument] = {}  # those of them that etcd had before it was restored
        self._in_view: tuple[SharedWork, ...] = ()
        self._known: tuple[SharedWork, ...] = ()  # with what etcd has lost
        self.own: Mapping[WorkName, WorkDocument] = {}  # what is asked of this replica only

    def shown(self) -> tuple[SharedWork, ...]:
        """All that is known, of this replica also without the registry. May be called in any thread."""
        own = (SharedWork(kind, self._owner, id_, document) for (kind, id_), document in self.own.items())
        return (*(one for one in self._known if one.scope != self._owner), *own)

    def stop(self) -> None:
        self._maintenance.stop()

    # ---- what is asked of all replicas

    def apply(self, work: tuple[SharedWork, ...]) -> None:
        """Make the node equal to it, and to what etcd has lost."""
        self._in_view, before = work, self._asked
        found = {WorkName(one.kind, one.service_id): one.document for one in work if one.scope == ALL_REPLICAS}
        self._lost = {name: document for name, document in self._lost.items() if name not in found}
        self._asked = found | self._lost
        lost = (SharedWork(kind, ALL_REPLICAS, id_, document) for (kind, id_), document in self._lost.items())
        self._known = (*lost, *work)
        self._apply_drain(self._asked.get(WorkName(KeyKind.DRAINS)))
        windows = {name: _window(name, one) for name, one in self._asked.items() if name.kind is not KeyKind.DRAINS}
        self._maintenance.apply([*windows.values()])
        planned = {id_: window for (kind, id_), window in windows.items() if kind is KeyKind.PLANNED_MAINTENANCE}
        for service_id in self._planned | planned.keys():
            self._node.maintenance.plan(planned.get(service_id), service_id, source=SOURCE)
        self._planned = planned.keys()
        if self._asked != before:
            self._on_asked()

    def _apply_drain(self, drain: WorkDocument | None) -> None:
        text = None if drain is None else drain_text(drain)
        if text == self._node.overrides.drains.get(SOURCE):
            return
        if text is None:
            self._node.overrides.undrain(source=SOURCE)
        else:
            self._node.overrides.drain(text, source=SOURCE)

    def asked(self, name: WorkName) -> WorkDocument | None:
        """Of all replicas, as the node has it; None if there is none, or if it has ended."""
        document = self._asked.get(name)
        return None if document is None or self._left_s(document) <= 0 else document

    def set_restored(self) -> None:
        """etcd has other data than before, maybe older: what was asked since is not in it."""
        self._lost = {**self._asked}

    def forget(self, name: WorkName) -> bool:
        """Somebody has ended it. Whether etcd had lost it: then it does not say so."""
        if self._lost.pop(name, None) is not None:
            self.apply(self._in_view)
            return True
        self._asked.pop(name, None)  # if etcd was restored and it is not known yet, this is not lost
        return False

    async def write_lost(self, client: EtcdClient, root: str) -> None:
        """What etcd has lost and has not ended, unless somebody was faster."""
        for name, document in [*self._lost.items()]:
            left_s = self._left_s(document)
            if left_s <= 0:
                continue
            lease_id = 0 if math.isinf(left_s) else await _grant_lease(client, left_s)
            if name not in self._lost:  # ended meanwhile
                continue
            key = _key(root, name)
            result = await client.txn([Put(key, encode_document(document), lease_id)], [Compare(key, 0)])
            if lease_id and not result.succeeded:
                await client.revoke(lease_id)

    def _left_s(self, document: WorkDocument) -> float:
        """Until its end; a drain has none."""
        now_s = self._node.wall_time_s(self._node.now_s())
        return math.inf if document.until_s is None else document.until_s - now_s

    # ---- what is asked of this replica only

    def update_own(self) -> None:
        """A document stays as it is while only the measured difference of the clocks changes its times."""
        found = sorted(dict(self._own_documents()).items(), key=lambda item: (item[0].service_id or "", item[0].kind))
        before, own = self.own, dict(found[:MAX_OWN])
        for name in own.keys() & before.keys():
            if name.kind is KeyKind.MAINTENANCE and _is_same(before[name], own[name]):
                own[name] = before[name]
        self.own = own

    def _own_documents(self) -> Iterator[tuple[WorkName, WorkDocument]]:
        """Of each service and of the node, the maintenance that ends last."""
        node = self._node
        now_s = node.wall_time_s(node.now_s())
        if (reason := node.overrides.drains.get(overrides.OWN)) is not None:
            yield WorkName(KeyKind.DRAINS), WorkDocument("", self._owner, reason)
        current = [(id_, one) for id_, one in node.maintenance.all_current() if one.source != SOURCE]
        for service_id, one in sorted(current, key=lambda item: item[1].ends_at_s):
            window = _rounded_s(now_s), _rounded_s(node.wall_time_s(one.ends_at_s))
            if window[0] < window[1]:
                document = WorkDocument(one.by, self._owner, one.reason, None, *window)
                yield WorkName(KeyKind.MAINTENANCE, service_id), document
        for service_id, source, planned in node.maintenance.all_planned():
            if source != SOURCE:
                window = _rounded_s(planned.from_s), _rounded_s(planned.until_s)
                document = WorkDocument(planned.by, self._owner, planned.reason, None, *window)
                yield WorkName(KeyKind.PLANNED_MAINTENANCE, service_id), document


def work_fields(work: Iterable[SharedWork], now_s: float) -> list[dict[str, Any]]:
    """For people and programs: who drains and who is in maintenance by the wall clock, without what has ended."""
    return [_fields(one, now_s) for one in work if one.document.until_s is None or now_s < one.document.until_s]


def _fields(work: SharedWork, now_s: float) -> dict[str, Any]:
    document = work.document
    times = {"at": document.at_s, "from": document.from_s, "until": document.until_s}
    return {
        "replica": replica_of(work.scope),  # None: all of them
        "kind": {KeyKind.DRAINS: "drain"}.get(work.kind, work.kind.value),
        "service_id": work.service_id,
        "by": document.by,
        "via": document.via,
        "reason": document.reason,
        **{name: None if wall_s is None else iso_time(wall_s) for name, wall_s in times.items()},
        "text": _text(work, now_s),
    }


def _text(work: SharedWork, now_s: float) -> str:
    document = work.document
    who = asked_by(document) if work.scope == ALL_REPLICAS else document.by
    if document.from_s is None or document.until_s is None:
        since = f" since {utc_text(document.at_s)}" if document.at_s is not None else ""
        text = with_author(document.reason, who)
        return f"draining{since}: {text}" if text else f"draining{since}"
    subject = "" if work.service_id is None else f"{work.service_id} "
    until = Maintenance(work.kind, document.until_s, who, document.reason).text(utc_text(document.until_s))
    if now_s < document.from_s:
        return f"{subject}maintenance is planned from {utc_text(document.from_s)} {until}"
    return f"{subject}in maintenance {until}"


def drain_text(drain: WorkDocument) -> str:
    """The reason of a drain of all replicas, with who has asked for it and where."""
    text = with_author(drain.reason, asked_by(drain))
    return f"all replicas: {text}" if text else "all replicas"


def asked_by(document: WorkDocument) -> str:
    """Who has asked for it, and at which replica or client."""
    where = replica_of(document.via) or document.via
    return f"{document.by} on {where}" if document.by and where else document.by or where


def _key(root: str, name: WorkName) -> str:
    """Of what is asked of all replicas."""
    key = work_key(name.kind, ALL_REPLICAS, name.service_id)
    return encode_key(root, key.kind, *key.names)


async def _grant_lease(etcd: EtcdClient, left_s: float) -> int:
    """For a maintenance that ends then."""
    return (await etcd.grant_lease(math.ceil(left_s) + LEASE_MARGIN_S)).id


def _window(name: WorkName, document: WorkDocument) -> PlannedMaintenance:
    assert document.from_s is not None, "a maintenance has a begin"
    assert document.until_s is not None, "a maintenance has an end"
    return PlannedMaintenance(
        service_ids=() if name.service_id is None else (name.service_id,),
        by=asked_by(document),
        reason=document.reason,
        from_s=document.from_s,
        until_s=document.until_s,
    )


def _is_same(before: WorkDocument, after: WorkDocument) -> bool:
    """Whether two documents of the current maintenance are about one: its begin is only when it was first seen."""
    if before.until_s is None or after.until_s is None or abs(before.until_s - after.until_s) >= TOLERANCE_S:
        return False
    return before._replace(from_s=after.from_s, until_s=after.until_s) == after


def _rounded_s(wall_s: float) -> float:
    """As a document has it."""
    return parse_time_s(iso_time(wall_s))
