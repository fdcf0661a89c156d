"""What the registry has lost: services and issues that it had before it was restored from a snapshot, or wiped.

    the view before ──remember──► remembered ──settle──► is in the registry again
                                      │
                                      │ decide, when all replicas have had the time to write theirs again
                                      ▼
                                    lost ──► written again with the owner `lost:OWNER`, and from then on in all views

So what its owner does not write again does not vanish: the key `lost:OWNER` stands for that of the owner, until the
owner writes its own again, which makes the replicas delete the other, or until `svcnode registry accept`. A service is
lost, and marked, as long as all its owners have lost it. No I/O.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.text import join_first
from svcnode.sharing.format import (
    IssueDocument,
    KeyKind,
    RegistryKey,
    ServiceDocument,
    lost_owner,
    original_owner,
    replica_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcnode.sharing.view import RegistryView

DurableDocument = ServiceDocument | IssueDocument


class Lost(NamedTuple):
    """What is marked as lost, by name."""

    services: tuple[str, ...] = ()
    issues: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.services or self.issues)

    def without(self, other: Lost) -> Lost:
        kept = ((name for name in names if name not in others) for names, others in zip(self, other, strict=True))
        return Lost(*map(tuple, kept))

    def names(self, count: int) -> str:
        """At most so many services, and issues."""
        texts = (
            f"{len(names)} {noun}{'' if len(names) == 1 else 's'}: {join_first(names, count)}"
            for noun, names in (("service", self.services), ("issue", self.issues))
            if names
        )
        return ", and ".join(texts)

    def text(self, count: int) -> str:
        """What to do about it; empty if nothing is lost."""
        if not self:
            return ""
        return (
            f"the registry has lost {self.names(count)}; register what is still needed again, and let the rest go "
            "with svcnode registry accept"
        )


class Losses:
    """Of the registry, as one replica sees them. `owner` is that of this replica."""

    def __init__(self, owner: str) -> None:
        self._owner = owner
        self._entries: dict[RegistryKey, DurableDocument] = {}  # that the registry had, and has not again so far
        self._kept_ids: frozenset[str] = frozenset()
        self._written: set[RegistryKey] = set()
        self._frozen_until_s = -math.inf
        self._since_revision = 0
        self.obsolete: list[RegistryKey] = []  # lost keys to delete

    @property
    def is_settled(self) -> bool:
        """Whether the registry has all that it had, or a mark for it."""
        return not self._entries and self._frozen_until_s == -math.inf

    def is_frozen(self, now_s: float) -> bool:
        """The list does not change: the replicas write their services again."""
        return now_s < self._frozen_until_s

    def keeps(self, service_id: str) -> bool:
        """Whether it stays in the list, although the registry does not have it."""
        return service_id in self._kept_ids

    def issues(self) -> list[tuple[str, str, str]]:
        """Name, owner and reason of those that stay, although the registry does not have them."""
        return [
            (key.names[0], key.names[1], document.reason)
            for key, document in self._entries.items()
            if isinstance(document, IssueDocument)
        ]

    # ---- after a restore

    def remember(self, view: RegistryView) -> None:
        """etcd has other data than this view. What belongs to this replica, it writes again itself."""
        documents: dict[RegistryKey, DurableDocument] = {**view.definition_items()}
        for issue in view.issues():
            documents[RegistryKey(KeyKind.ISSUES, (issue.name, issue.owner))] = IssueDocument(issue.reason)
        self._entries |= {
            key: document for key, document in documents.items() if original_owner(key.names[1]) != self._owner
        }
        self._written.clear()
        self._frozen_until_s = math.inf
        self._update()

    def expect_until(self, at_s: float, revision: int) -> None:
        """After each range: the first one after a restore begins the time in which the replicas write theirs again."""
        self._written.clear()
        if self._frozen_until_s == math.inf:
            self._frozen_until_s, self._since_revision = at_s, revision

    def settle(self, view: RegistryView) -> None:
        """After each change of the view: what it has is not lost."""
        present = [key for key in self._entries if _is_present(view, key)]
        for key in present:
            del self._entries[key]
        if present:
            self._update()
        self.obsolete = [key for key in view.lost_keys() if self._is_obsolete(view, key)]

    def decide(self, view: RegistryView, now_s: float) -> bool:
        """Whether the time is over now. What is missing is lost.

        A replica that has joined since has written all that it has, so what is missing of it, it has deregistered.
        """
        if self._frozen_until_s == -math.inf or now_s < self._frozen_until_s:
            return False
        self._frozen_until_s = -math.inf
        self._entries = {key: document for key, document in self._entries.items() if not self._has_joined(view, key)}
        self._update()
        return True

    def puts(self) -> Mapping[RegistryKey, DurableDocument]:
        """What is to be written, by the key with its owner. Services keep their order in the list."""
        if self._frozen_until_s != -math.inf:
            return {}
        documents = {
            key: document._replace(position=position) if isinstance(document, ServiceDocument) else document
            for position, (key, document) in enumerate(self._entries.items())
        }
        found = {_lost_key(key): document for key, document in documents.items()}
        return {key: document for key, document in found.items() if key not in self._written}

    def set_written(self, key: RegistryKey) -> None:
        """etcd has it; the view will have it soon."""
        self._written.add(key)

    def marked(self, view: RegistryView) -> Lost:
        """What is lost by the registry, and what will be as soon as it is written."""
        keys = {*view.lost_keys(), *(() if self._frozen_until_s != -math.inf else self._entries)} - {*self.obsolete}
        services = {key.names[0] for key in keys if key.kind is KeyKind.SERVICES}
        found = ((service_id, view.service(service_id)) for service_id in services)
        lost = (service_id for service_id, service in found if service is None or service.is_lost)
        issues = {key.names[0] for key in keys if key.kind is KeyKind.ISSUES}
        return Lost(tuple(sorted(lost)), tuple(sorted(issues)))

    def _update(self) -> None:
        self._kept_ids = frozenset(key.names[0] for key in self._entries if key.kind is KeyKind.SERVICES)

    def _has_joined(self, view: RegistryView, key: RegistryKey) -> bool:
        replica = replica_of(original_owner(key.names[1]))
        return replica is not None and view.replica_revision(replica) > self._since_revision

    def _is_obsolete(self, view: RegistryView, key: RegistryKey) -> bool:
        """This replica knows what it has itself; the rest is back if its owner has registered it again."""
        return original_owner(key.names[1]) == self._owner or _is_registered(view, key)


def _lost_key(key: RegistryKey) -> RegistryKey:
    return key._replace(names=(key.names[0], lost_owner(key.names[1])))


def _is_present(view: RegistryView, key: RegistryKey) -> bool:
    return _is_registered(view, key) or view.has_lost(_lost_key(key))


def _is_registered(view: RegistryView, key: RegistryKey) -> bool:
    """By the original owner."""
    name, owner = key.names[0], original_owner(key.names[1])
    if key.kind is KeyKind.SERVICES:
        return view.definition(name, owner) is not None
    return any((issue.name, issue.owner) == (name, owner) for issue in view.issues())
