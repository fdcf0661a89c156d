"""The documents of the control socket: what each kind accepts, what is stored of it, and what it means for the node.

    path                         class               while it exists
    services/{id}                ServiceDocuments    the service is registered
    services/{id}/status         StatusDocuments     the last report of the service
    services/{id}/run            RunDocuments        runs of a job have started and not ended
    services/{id}/maintenance    MaintenanceDocuments
    maintenance                  MaintenanceDocuments, of the node
    services/{id}/planned_maintenance, planned_maintenance
                                 PlannedMaintenanceDocuments
    services/{id}/ack, ack       AckDocuments        its problem, or that of the node, is acknowledged
    issues/{name}                IssueDocuments      the node is unhealthy
    drain                        DrainDocuments      the node drains

A kind is added with one class, here or for a service in service_documents.py, and one row in `Documents`.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from svcnode.control.changes import (
    ChangeRequest,
    Transaction,
    ack_path,
    issue_path,
    maintenance_path,
    planned_maintenance_path,
)
from svcnode.control.document_kind import FREE_TEXTS, DocumentKind, author_of, with_safe_texts
from svcnode.control.service_documents import RunDocuments, ServiceDocuments, StatusDocuments, service_not_found
from svcnode.core.errors import ControlError
from svcnode.core.maintenance import DAY_S, MAX_DAYS_AHEAD, PlannedMaintenance, check_window, parse_time_s
from svcnode.core.model import Acknowledgement, Health, Maintenance
from svcnode.core.text import with_author
from svcnode.core.units import parse_duration_s, utc_text
from svcnode.node.feed import current_author
from svcnode.node.overrides import OWN
from svcnode.node.scheduled_maintenance import MAX_WAIT_S, PLANNED, ScheduledMaintenance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from svcnode.control.service_documents import Define
    from svcnode.control.store import Document
    from svcnode.node.definition import ServiceList
    from svcnode.node.node_state import NodeState

log = logging.getLogger("svcnode.control")

MAX_ISSUES = 100
RETRY_S = 60.0  # after a document could not be deleted
UNKNOWN_AFTER_S = 600.0  # from the start: until then, a service may be found in a registry


class MaintenanceDocuments(DocumentKind):
    """Maintenance of a service, or of the node if the name is "".

    `end` deletes a document, unless its revision has changed.
    """

    def __init__(self, node: NodeState, services: ServiceDocuments, end: Callable[[str, int], None]) -> None:
        super().__init__(node)
        self._services = services
        self._end = end
        self._applied: set[str] = set()

    def check(self, transaction: Transaction, name: str, change: ChangeRequest) -> None:
        if name and change.value is not None:
            self._services.check_exists(transaction, name)

    def value(self, transaction: Transaction, name: str, given: dict[str, Any], sent_at_s: float) -> dict[str, Any]:
        ends_at_s = self._node.now_s() + parse_duration_s(given["duration"])
        # After a restart of the machine, only the time of the wall clock is left.
        return {**with_safe_texts(given), "ends_at_s": ends_at_s, "until_s": self._node.wall_time_s(ends_at_s)}

    def is_missing(self, name: str) -> bool:
        return name not in self._applied

    def apply(self, name: str, document: Document | None) -> None:
        self._applied.discard(name)
        if document is None:
            self._node.maintenance.end(name or None, source="control")
            return
        value, now_s = document.value, self._node.now_s()
        ends_at_s = value["ends_at_s"]
        self._applied.add(name)
        if ends_at_s > now_s:
            maintenance = Maintenance("control", ends_at_s, author_of(value), value.get("reason", ""))
            self._node.maintenance.set(maintenance, name or None)
        loop = asyncio.get_running_loop()
        loop.call_later(max(0.0, ends_at_s - now_s), self._end, maintenance_path(name or None), document.revision)

    def after_boot(self, value: dict[str, Any]) -> dict[str, Any]:
        now_s = self._node.now_s()
        left_s = min(value["until_s"] - self._node.wall_time_s(now_s), parse_duration_s(value["duration"]))
        return {**value, "ends_at_s": now_s + left_s}

    def has_ended(self, name: str, value: Mapping[str, Any]) -> bool:
        ends_at_s: float = value["ends_at_s"]
        return ends_at_s <= self._node.now_s()


class PlannedMaintenanceDocuments(DocumentKind):
    """Planned maintenance of a service, or of the node if the name is "". It begins and ends by the wall clock.

    `end` deletes a document. Planned maintenance and maintenance that begins now have paths of their own, so that
    neither replaces the other.
    """

    def __init__(self, node: NodeState, services: ServiceDocuments, end: Callable[[str, int], None]) -> None:
        super().__init__(node)
        self._services = services
        self._end = end
        self._applied: dict[str, tuple[int, ScheduledMaintenance]] = {}  # by name; with the revision

    def check(self, transaction: Transaction, name: str, change: ChangeRequest) -> None:
        if name and change.value is not None:
            self._services.check_exists(transaction, name)

    def value(self, transaction: Transaction, name: str, given: dict[str, Any], sent_at_s: float) -> dict[str, Any]:
        now_s, from_s, until_s = self._wall_s(), parse_time_s(given["from"]), parse_time_s(given["until"])
        check_window(from_s, until_s, now_s)
        texts = {key: text for key, text in with_safe_texts(given).items() if key in FREE_TEXTS}
        return {**texts, "from_s": from_s, "until_s": until_s}

    def is_missing(self, name: str) -> bool:
        return name not in self._applied

    def apply(self, name: str, document: Document | None) -> None:
        _, schedule = self._applied.pop(name, (0, ScheduledMaintenance(self._node, PLANNED)))
        planned = None if document is None else _planned(name, document.value)
        schedule.apply([] if planned is None else [planned])
        self._node.maintenance.plan(planned, name or None, source=PLANNED)
        if document is not None:
            self._applied[name] = document.revision, schedule
            self._delete_at_end(name, document)

    def has_ended(self, name: str, value: Mapping[str, Any]) -> bool:
        until_s: float = value["until_s"]
        return until_s <= self._wall_s()

    def _delete_at_end(self, name: str, document: Document) -> None:
        if self._applied.get(name, (0,))[0] != document.revision:
            return
        if self.has_ended(name, document.value):
            self._end(planned_maintenance_path(name or None), document.revision)
        left_s = document.value["until_s"] - self._wall_s()
        wait_s = min(left_s, MAX_WAIT_S) if left_s > 0 else MAX_WAIT_S  # again, if it cannot be deleted
        asyncio.get_running_loop().call_later(wait_s, self._delete_at_end, name, document)

    def _wall_s(self) -> float:
        return self._node.wall_time_s(self._node.now_s())


def _planned(name: str, value: Mapping[str, Any]) -> PlannedMaintenance:
    return PlannedMaintenance(
        service_ids=(name,) if name else (),
        by=author_of(value),
        reason=value.get("reason", ""),
        from_s=value["from_s"],
        until_s=value["until_s"],
    )


class AckDocuments(DocumentKind):
    """Acknowledgements of a service, or of the node if the name is "".

    The node ends an acknowledgement by itself, and then its document is deleted. `end` deletes a document, unless its
    revision has changed. All times are of the wall clock.
    """

    def __init__(self, node: NodeState, end: Callable[[str, int], None]) -> None:
        super().__init__(node)
        self._end = end
        self._applied: dict[str, int] = {}  # by name: the revision

    def check(self, transaction: Transaction, name: str, change: ChangeRequest) -> None:
        if change.value is not None and self._health(name) is Health.HEALTHY:
            drained = " and drained" if self._node.condition.draining else ""
            subject = f"service {name} is Up" if name else f"the node is healthy{drained}"
            raise ControlError(409, f"{subject}: there is nothing to acknowledge")

    def value(self, transaction: Transaction, name: str, given: dict[str, Any], sent_at_s: float) -> dict[str, Any]:
        now_s = self._node.wall_time_s(self._node.now_s())
        value = {**with_safe_texts(given), "health": int(self._health(name)), "made_s": now_s}
        if "until" in value:
            value["until_s"] = parse_time_s(value.pop("until"))
            if value["until_s"] <= now_s:
                raise ControlError(422, f"until is in the past: it is {utc_text(now_s)} now", pointer="/until")
            if value["until_s"] - now_s > MAX_DAYS_AHEAD * DAY_S:
                raise ControlError(422, f"until must be within the next {MAX_DAYS_AHEAD} days", pointer="/until")
        return value

    def _health(self, name: str) -> Health:
        self._node.expire_stale()
        health = self._node.acknowledgements.health_of(name or None)
        if health is None:
            raise service_not_found(name)
        return health

    def is_missing(self, name: str) -> bool:
        return name not in self._applied

    def apply(self, name: str, document: Document | None) -> None:
        self._applied.pop(name, None)
        if document is None:
            self._node.acknowledgements.end(name or None, "" if current_author() else "the problem has cleared")
            return
        self._applied[name] = document.revision
        value = document.value
        until_s = value.get("until_s")
        if until_s is None or until_s > self._node.wall_time_s(self._node.now_s()):
            texts = author_of(value), value.get("reason", "")
            made = Acknowledgement(Health(value["health"]), value["made_s"], until_s, *texts)
            self._node.acknowledgements.make(made, name or None)
        loop = asyncio.get_running_loop()
        loop.call_soon(self.delete_ended)  # the problem may have cleared while the document was stored
        if name and name not in self._node:
            loop.call_later(UNKNOWN_AFTER_S, self._forget_unknown, name)

    def _forget_unknown(self, name: str) -> None:
        """The service was removed while the node did not run."""
        if name in self._applied and name not in self._node:
            self._node.acknowledgements.end(name, "the service is no longer registered")

    def delete_ended(self) -> None:
        """The documents of acknowledgements that have ended."""
        ended = [name for name in self._applied if self.has_ended(name, {})]
        for name in ended:
            self._end(ack_path(name or None), self._applied[name])
        if ended:
            asyncio.get_running_loop().call_later(RETRY_S, self.delete_ended)

    def has_ended(self, name: str, value: Mapping[str, Any]) -> bool:
        return self._node.acknowledgements.find(name or None) is None


class IssueDocuments(DocumentKind):
    def __init__(self, node: NodeState) -> None:
        super().__init__(node)
        self._texts: dict[str, str] = {}  # at the node, by name

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def value(self, transaction: Transaction, name: str, given: dict[str, Any], sent_at_s: float) -> dict[str, Any]:
        if transaction.get(issue_path(name)) is None:
            paths = {issue_path(name) for name in self._texts}
            new = sum(path.startswith("issues/") and path not in paths for path in transaction.changes)
            if len(paths) + new >= MAX_ISSUES:
                raise ControlError(409, f"the node has {MAX_ISSUES} issues already")
        return with_safe_texts(given)

    def is_missing(self, name: str) -> bool:
        return name not in self._texts

    def apply(self, name: str, document: Document | None) -> None:
        """A new text takes the place of the old one, so that the node is not healthy in between."""
        old = self._texts.pop(name, None)
        unused = None if old in self._texts.values() else old
        if document is not None:
            reason = document.value.get("reason", "")
            text = f"{name}: {reason}" if reason else name
            self._texts[name] = with_author(text, author_of(document.value))
            is_same = unused == self._texts[name]
            self._node.overrides.set_issue(self._texts[name], instead_of=None if is_same else unused)
        elif unused is not None:
            self._node.overrides.clear_issue(unused)

    def is_worse(self, name: str, value: Mapping[str, Any]) -> bool:
        return True


class DrainDocuments(DocumentKind):
    is_stopping = False  # from then on, the node stays drained

    def value(self, transaction: Transaction, name: str, given: dict[str, Any], sent_at_s: float) -> dict[str, Any]:
        return with_safe_texts(given)

    def is_missing(self, name: str) -> bool:
        return OWN not in self._node.overrides.drains

    def apply(self, name: str, document: Document | None) -> None:
        if self.is_stopping:
            return
        if document is not None:
            reason = document.value.get("reason", "")
            self._node.overrides.drain(with_author(reason, author_of(document.value)))
        else:
            self._node.overrides.undrain()

    def is_worse(self, name: str, value: Mapping[str, Any]) -> bool:
        return True


class Documents:
    """All kinds, by path."""

    def __init__(
        self,
        node: NodeState,
        service_list: ServiceList,
        define_service: Define,
        end: Callable[[str, int], None],
    ) -> None:
        """`end` deletes a document that has ended, unless its revision has changed."""
        self.standstill = node.standstill
        self.standstill.start()
        self.services = ServiceDocuments(node, self.standstill, service_list, define_service)
        self.statuses = StatusDocuments(node, self.services)
        self.issues = IssueDocuments(node)
        self.drain = DrainDocuments(node)
        self.acks = AckDocuments(node, end)
        maintenance = MaintenanceDocuments(node, self.services, end)
        planned = PlannedMaintenanceDocuments(node, self.services, end)
        self._kinds: dict[tuple[str, ...], DocumentKind] = {
            ("services",): self.services,
            ("services", "status"): self.statuses,
            ("services", "run"): RunDocuments(node, self.services),
            ("services", "maintenance"): maintenance,
            ("maintenance",): maintenance,
            ("services", "planned_maintenance"): planned,
            ("planned_maintenance",): planned,
            ("services", "ack"): self.acks,
            ("ack",): self.acks,
            ("issues",): self.issues,
            ("drain",): self.drain,
        }

    def knows(self, path: str) -> bool:
        """Whether this version has the kind. Another one may have stored others."""
        first, *rest = path.split("/")
        return (first, *rest[1:]) in self._kinds

    def kind_of(self, path: str) -> tuple[DocumentKind, str]:
        """The kind of a document, and its name."""
        first, *rest = path.split("/")
        return self._kinds[first, *rest[1:]], unquote(rest[0]) if rest else ""

    def registered(self, documents: Iterable[tuple[str, Document | None]]) -> dict[str, Mapping[str, Any]]:
        """The options of the services among the documents, by id."""
        return {
            name: document.value["options"]
            for path, document in documents
            for kind, name in [self.kind_of(path)]
            if kind is self.services and document is not None
        }
