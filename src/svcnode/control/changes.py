"""A change of a document, and several of them that are stored together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from svcnode.control.store import Document
from svcnode.core.errors import ControlError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcnode.core.redaction import SecretScope
    from svcnode.node.definition import Definition, RegisteredService

DRAIN = "drain"
MAINTENANCE = "maintenance"  # of the node
PLANNED_MAINTENANCE = "planned_maintenance"  # of the node
ACK = "ack"  # of the node


def service_path(service_id: str) -> str:
    return f"services/{quote(service_id, safe='')}"


def status_path(service_id: str) -> str:
    return f"{service_path(service_id)}/status"


def run_path(service_id: str) -> str:
    return f"{service_path(service_id)}/run"


def maintenance_path(service_id: str | None) -> str:
    return MAINTENANCE if service_id is None else f"{service_path(service_id)}/maintenance"


def planned_maintenance_path(service_id: str | None) -> str:
    return PLANNED_MAINTENANCE if service_id is None else f"{service_path(service_id)}/planned_maintenance"


def ack_path(service_id: str | None) -> str:
    return ACK if service_id is None else f"{service_path(service_id)}/ack"


def issue_path(name: str) -> str:
    return f"issues/{quote(name, safe='')}"


class Precondition(NamedTuple):
    """The headers If-Match and If-None-Match."""

    revision: int | None = None  # that the document must have
    must_exist: bool = False
    must_not_exist: bool = False

    def check(self, document: Document | None) -> None:
        if self.must_not_exist and document is not None:
            raise ControlError(412, f"the document already exists, at revision {document.revision}")
        if (self.must_exist or self.revision is not None) and document is None:
            raise ControlError(412, "the document does not exist")
        if self.revision is not None and document is not None and document.revision != self.revision:
            raise ControlError(
                412, f"the document is at revision {document.revision}, not {self.revision}; read it again"
            )


class ChangeRequest(NamedTuple):
    """A request to change one document; a value of None deletes it."""

    path: str
    value: dict[str, Any] | None
    precondition: Precondition = Precondition()
    unless_down: bool = False  # refused if the last report of the service is Down already
    if_silent: bool = False  # refused unless the service is silent for its `deregister_after`
    sent_at_s: float = math.inf  # at the earliest; set by `Resources`
    author: str = ""  # who has requested it, and maybe why; empty: the document says it, or nobody has


class Registration(NamedTuple):
    service: RegisteredService
    secrets: SecretScope
    is_accepted: bool = True

    @property
    def definition(self) -> Definition:
        return self.service.definition

    @property
    def reports(self) -> bool:
        """Whether the service reports its status by itself."""
        return self.is_accepted and self.definition.probe_config is None


class Transaction:
    """Changes that are not stored yet, on top of the documents."""

    def __init__(self, documents: Mapping[str, Document], revision: int) -> None:
        self._documents = documents
        self.revision = revision
        self.changes: dict[str, Document | None] = {}
        self.registrations: dict[str, Registration] = {}
        self.authors: dict[str, str] = {}  # by path

    def get(self, path: str) -> Document | None:
        return self.changes[path] if path in self.changes else self._documents.get(path)

    def put(self, path: str, value: dict[str, Any]) -> Document:
        self.revision += 1
        document = self.changes[path] = Document(value, self.revision)
        return document

    def register(self, service_id: str, registration: Registration) -> None:
        if service_id in self.registrations:
            self.registrations[service_id].secrets.release()
        self.registrations[service_id] = registration

    def release(self) -> None:
        for registration in self.registrations.values():
            registration.secrets.release()

    def has_changed(self, path: str) -> bool:
        return path in self.changes

    def deletes(self, path: str) -> bool:
        return path in self.changes and self.changes[path] is None

    def delete(self, path: str) -> None:
        if self.get(path) is not None:
            self.revision += 1
            self.changes[path] = None
