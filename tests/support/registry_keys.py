"""A registry in memory: it assigns revisions as etcd does, and has the events and the range of its keys."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from svcnode.core.model import Status
from svcnode.net.etcd_json import Event, KeyValue
from svcnode.sharing.format import (
    KeyKind,
    ReplicaDocument,
    StateDocument,
    Written,
    encode_document,
    encode_key,
    evidence_document,
    node_root,
    service_document,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcnode.sharing.format import RegistryDocument

ROOT = node_root("/svcnode", "n")


class RegistryKeys:
    """A revision is written at the second of the same number: revision 7 at 7 s."""

    def __init__(self) -> None:
        self.revision = 0
        self.events: list[Event] = []
        self._kvs: dict[str, KeyValue] = {}
        self._sources: dict[str, str] = {}  # of the last definition, by service id

    def range(self) -> list[KeyValue]:
        return sorted(self._kvs.values())

    def put_raw(self, key: str, value: bytes, lease_id: int = 0) -> Event:
        self.revision += 1
        known = self._kvs.get(key)
        create_revision = self.revision if known is None else known.create_revision
        kv = self._kvs[key] = KeyValue(key, value, create_revision, self.revision, lease_id)
        return self._append(Event(key, self.revision, kv))

    def put(
        self, kind: KeyKind, names: tuple[str, ...], document: RegistryDocument | Mapping[str, Any], lease_id: int = 0
    ) -> Event:
        value = encode_document(document) if isinstance(document, tuple) else json.dumps(document).encode()
        return self.put_raw(encode_key(ROOT, kind, *names), value, lease_id)

    def delete(self, key: str) -> Event | None:
        if self._kvs.pop(key, None) is None:
            return None
        self.revision += 1
        return self._append(Event(key, self.revision, None))

    def delete_key(self, kind: KeyKind, *names: str) -> Event | None:
        return self.delete(encode_key(ROOT, kind, *names))

    def delete_prefix(self, kind: KeyKind, name: str) -> None:
        root = f"{ROOT}{kind}/{name}/"
        for key in [key for key in self._kvs if f"{key}/".startswith(root)]:
            self.delete(key)

    def _append(self, event: Event) -> Event:
        self.events.append(event)
        return event

    # ---- as replicas write

    def join(self, replica: str, url: str = "", lease_id: int = 1) -> Event:
        return self.put(KeyKind.REPLICAS, (replica,), ReplicaDocument("1", url, "test"), lease_id)

    def leave(self, replica: str) -> None:
        for kind in (KeyKind.REPLICAS, KeyKind.STATES, KeyKind.EVIDENCE):
            self.delete_prefix(kind, replica)

    def define(self, service_id: str, owner: str = "client", position: int = 0, **options: Any) -> Event:
        if not options.keys() & {"probe", "ttl", "status"}:
            options["probe"] = "tcp://a:1"
        document = service_document(service_id, options, position)
        self._sources[service_id] = document.source
        return self.put(KeyKind.SERVICES, (service_id, owner), document)

    def written(self, elapsed_s: float = 0.0) -> Written:
        """Composed now: at the newest revision, or later."""
        return Written(self.revision, elapsed_s)

    def publish(
        self, replica: str, service_id: str, status: Status = Status.UP, age_s: float = 0.0, source: str | None = None
    ) -> Event:
        """By the last definition, or another source of evidence."""
        source = self._sources.get(service_id, "") if source is None else source
        document = StateDocument(status, f"by {replica}", "other", age_s, age_s, source, self.written())
        return self.put(KeyKind.STATES, (replica, service_id), document)

    def renew(self, replica: str, age_s: float = 0.0) -> Event:
        """A record about the states that the replica has."""
        root = f"{ROOT}{KeyKind.STATES}/{replica}/"
        statuses = {
            key.removeprefix(root): (Status(json.loads(kv.value)["status"]), age_s)
            for key, kv in self._kvs.items()
            if key.startswith(root)
        }
        return self.put(KeyKind.EVIDENCE, (replica,), evidence_document(statuses, self.written()))
