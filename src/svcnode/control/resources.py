"""The resources behind the control socket, and how a change of one becomes a change of the node.

    request ─► check ─► store ─► apply to the node ─► response

A resource is a document at a path: `services/{id}`, `services/{id}/status`, `services/{id}/run` (a job has started and
not ended), `services/{id}/maintenance`, `issues/{name}`, `drain`, `maintenance` (of the node). A request is checked
against the documents. All requests that wait share one transaction of the store. After it is on the disk, `_apply`
makes the node equal to the documents, as it does at the start. So a change is never half applied, and a restart leads
to the same node. A report that has expired is stored as Down, so that a longer ttl does not make it valid again.

If the store cannot be written, a change that makes the node worse, such as a report of Down, is applied nevertheless,
and stored with the next change that can be. Every other change is refused.

A service of the configuration file takes precedence over a document with the same id, which then waits until the file
no longer has it. The heartbeats of a service of the file are documents too.
"""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

from svcnode.control.store import Document
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import ControlError, StoreError, SvcnodeError
from svcnode.core.model import Maintenance, Outcome, Status, Verdict
from svcnode.core.redaction import SecretScope, redacted
from svcnode.core.text import safe_reason
from svcnode.core.units import iso_time, parse_duration_s
from svcnode.definition import define
from svcnode.net.os_errors import ThreadStartError
from svcnode.net.tasks import log_failure
from svcnode.net.threads import DaemonCall
from svcnode.probes import is_loaded, load_kinds, scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from svcnode.control.store import ControlStore, StoredDocuments
    from svcnode.core.model import Change
    from svcnode.definition import Definition
    from svcnode.node import Node
    from svcnode.registry import Registrar

    Define = Callable[[str, Mapping[str, Any]], Definition]

log = logging.getLogger("svcnode.control")

MAX_SERVICES = 20_000
MAX_ISSUES = 100
DRAIN = "drain"
MAINTENANCE = "maintenance"  # of the node
STORE_ISSUE = "the control store cannot be read"
STORE_TIMEOUT_S = 5.0  # to open and to close it: its mount may hang
SECRETS_KEPT_S = 600.0  # after a change: a check that began before may show the old secrets
OUTCOMES = {"up": Outcome.READY, "initializing": Outcome.NOT_READY, "down": Outcome.FAILED}
_EVIDENCE = ("status", "run")
_FREE_TEXTS = ("reason", "by")  # they are shown, and may be anything
_CHILDREN = (*_EVIDENCE, "maintenance")  # of a service; they are deleted with it
_CONFIGURED = "this service is in the configuration file; change it there and reload"


class Precondition(NamedTuple):
    """The headers If-Match and If-None-Match."""

    revision: int | None = None  # that the document must have
    must_exist: bool = False
    must_not_exist: bool = False

    def check(self, document: Document | None) -> None:
        if self.must_not_exist and document is not None:
            raise ControlError(412, f"it exists already, at revision {document.revision}")
        if (self.must_exist or self.revision is not None) and document is None:
            raise ControlError(412, "it does not exist")
        if self.revision is not None and document is not None and document.revision != self.revision:
            raise ControlError(412, f"it is at revision {document.revision}, not {self.revision}; read it again")


class ChangeRequest(NamedTuple):
    """A request to change one resource; a value of None deletes it."""

    path: str
    value: dict[str, Any] | None
    precondition: Precondition = Precondition()
    unless_down: bool = False  # refused if the last report of the service is Down already


class Applied(NamedTuple):
    document: Document | None
    is_new: bool = False


class Registration(NamedTuple):
    definition: Definition
    secrets: SecretScope
    is_accepted: bool = True

    @property
    def reports(self) -> bool:
        """Whether the service reports its status by itself."""
        return self.is_accepted and self.definition.probe_config is None


def service_path(service_id: str) -> str:
    return f"services/{quote(service_id, safe='')}"


def status_path(service_id: str) -> str:
    return f"{service_path(service_id)}/status"


def run_path(service_id: str) -> str:
    return f"{service_path(service_id)}/run"


def maintenance_path(service_id: str | None) -> str:
    return MAINTENANCE if service_id is None else f"{service_path(service_id)}/maintenance"


def issue_path(name: str) -> str:
    return f"issues/{quote(name, safe='')}"


class Transaction:
    """Changes that are not stored yet, on top of the documents."""

    def __init__(self, documents: Mapping[str, Document], revision: int) -> None:
        self._documents = documents
        self.revision = revision
        self.changes: dict[str, Document | None] = {}
        self.registrations: dict[str, Registration] = {}

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

    def deletes(self, path: str) -> bool:
        return path in self.changes and self.changes[path] is None

    def delete(self, path: str) -> None:
        if self.get(path) is not None:
            self.revision += 1
            self.changes[path] = None


class Resources:
    """Not thread-safe: used on the event loop of the agent."""

    def __init__(
        self, node: Node, store: ControlStore, define_service: Define, registrar: Registrar | None = None
    ) -> None:
        """`registrar` registers the services; by default, the node does."""
        self._node = node
        self._registrar: Registrar = node if registrar is None else registrar
        self._store = store
        self._define = define_service
        self._documents: dict[str, Document] = {}
        self._registrations: dict[str, Registration] = {}  # of the services with a document, by id
        self._issues: dict[str, str] = {}  # the texts at the node, by name
        self._maintenance: set[str] = set()  # the paths of those that were applied
        self._configured: Mapping[str, bool] = {}  # the services of the file: whether they report by themselves
        self._revision = 0
        self._is_loaded = False
        self._problem = ""  # of the store; it is logged once
        self._is_stopping = False
        self._waiting: list[tuple[ChangeRequest, asyncio.Future[Applied]]] = []
        self._unstored: dict[str, Document] = {}  # documents that are in effect and not on the disk
        self._is_write_due = False  # without a request
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unsubscribe = node.subscribe(self._store_expiry)
        self._thread = DaemonCall("control store")
        self._writer: asyncio.Task[None] | None = None

    @property
    def revision(self) -> int:
        return self._revision

    # ---- start, reload, stop

    async def start(self) -> None:
        """Read the store and apply it. If it cannot be read, the node is unhealthy: services may be missing."""
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                stored = await self._thread.call_in_turn(self._store.load)
                if not stored.is_same_boot:
                    stored = self._without_times(stored)
                    # Before anything else is stored: that would make the old times look like times since this boot.
                    await self._thread.call_in_turn(partial(self._store.write, stored.documents, stored.revision))
        except TimeoutError:
            self._set_problem(f"cannot read the control store: no response within {STORE_TIMEOUT_S:g} s")
        except (StoreError, ThreadStartError) as exc:
            self._set_problem(str(exc))
        else:
            services = {
                _id_of(path): document.value["options"]
                for path, document in stored.documents.items()
                if _is_service(path)
            }
            await self._load_kinds(services.values())
            self._is_loaded = True
            self._documents, self._revision = stored.documents, stored.revision
            for service_id, options in services.items():
                self._registrations[service_id] = self._register_stored(service_id, options)
            self.apply_all()
            self._node.clear_issue(STORE_ISSUE)
            return
        self._node.set_issue(STORE_ISSUE)

    def _set_problem(self, problem: str) -> None:
        if problem and problem != self._problem:
            log.error("%s", problem, extra={"event": "control_store_failed"})
        self._problem = problem

    def set_configured(self, services: Mapping[str, bool]) -> None:
        """Before the services of the file are applied: a document with the same id steps back.

        `services` says of each id whether the service reports by itself.
        """
        self._configured = services
        for service_id in self._registrations.keys() & services.keys():
            if service_id in self._registrar:
                self._registrar.deregister(service_id)

    def apply_all(self) -> None:
        """At the start, and after the services of the file are applied: what the node does not have yet."""
        for path in self._documents:
            if self._is_missing(path):
                self._apply(path)

    def redefine_all(self) -> None:
        """After a change of the settings that definitions depend on."""
        for service_id, old in self._registrations.items():
            options = self._documents[service_path(service_id)].value["options"]
            self._registrations[service_id] = new = self._register_stored(service_id, options)
            self._release_later(old)
            if new.definition != old.definition and service_id not in self._configured:
                self._registrar.replace(new.definition)

    def stop(self) -> None:
        """From now on, the node stays drained: it is stopping."""
        self._is_stopping = True

    async def close(self) -> None:
        self._unsubscribe()
        with suppress(TimeoutError):
            async with asyncio.timeout(STORE_TIMEOUT_S):
                if self._unstored:
                    self._write_soon()
                if self._writer is not None:
                    await asyncio.wait([self._writer])
                await self._thread.call_in_turn(self._store.close)

    # ---- reading

    def get(self, path: str) -> Document | None:
        document = self._documents.get(path)
        return None if document is None or self._has_ended(document) else document

    def _has_ended(self, document: Document) -> bool:
        """A maintenance that has ended is deleted soon after."""
        ends_at_s: float = document.value.get("ends_at_s", math.inf)
        return ends_at_s <= self._node.now_s()

    def public_fields(self, document: Document) -> dict[str, Any]:
        """Without times of the monotonic clock. The end of maintenance is given as the wall clock is now."""
        fields = {key: value for key, value in document.value.items() if not key.endswith("_s")}
        if "ends_at_s" in document.value:
            fields["until"] = self._iso(document.value["ends_at_s"])
        return {**fields, "revision": document.revision}

    def services(self) -> list[dict[str, Any]]:
        return [self._service_fields(service.id) for service, _ in self._node]

    def service(self, service_id: str, document: Document | None = None) -> dict[str, Any] | None:
        """None if there is none with this id. With a document, its options and revision: a later one may exist."""
        return self._service_fields(service_id, document) if self._is_registered(service_id) else None

    def issues(self) -> dict[str, Document]:
        return {name: self._documents[issue_path(name)] for name in self._issues}

    def maintenance(self, service_id: str | None = None) -> dict[str, Any] | None:
        """Of a service or of the node, now, also by the schedule."""
        maintenance = self._node.maintenance(service_id)
        if maintenance is None:
            return None
        until = self._iso(maintenance.ends_at_s)
        return {"until": until, "by": maintenance.by, "reason": maintenance.reason, "source": maintenance.source}

    def _iso(self, at_s: float) -> str:
        return iso_time(self._node.wall_time_s(at_s))

    def _service_fields(self, service_id: str, document: Document | None = None) -> dict[str, Any]:
        found = self._node.find(service_id)
        assert found is not None
        service, state = found
        fields: dict[str, Any] = {
            "id": service_id,
            "source": "file" if service_id in self._configured else "control",
            "name": service.name,
            "description": service.description,
            "impact": service.impact.value,
            "status": state.status.value,
            "reason": state.reason,
            "code": state.code,
            "maintenance": self.maintenance(service_id),
        }
        document = document or self._documents.get(service_path(service_id))
        if document is not None and service_id not in self._configured:
            fields |= {"options": _redacted(document.value["options"]), "revision": document.revision}
        return fields

    # ---- changing

    async def change(self, change: ChangeRequest) -> Applied:
        """Returns when the change is on the disk and applied. Raises `ControlError`, which says if it has an effect."""
        future: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()
        self._enqueue(change, future)
        return await future

    def _enqueue(self, change: ChangeRequest, future: asyncio.Future[Applied]) -> None:
        self._waiting.append((change, future))
        self._start_writer()

    def _write_soon(self) -> None:
        """What is not stored yet. If that fails, it is stored with the next change."""
        self._is_write_due = True
        self._start_writer()

    def _start_writer(self) -> None:
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_waiting(), name="control")
            self._writer.add_done_callback(log_failure)

    async def _write_waiting(self) -> None:
        try:
            while self._waiting or self._is_write_due:
                waiting, self._waiting = self._waiting, []
                self._is_write_due = False
                try:
                    await self._write(waiting)
                except Exception:
                    log.exception("internal error in a control request", extra={"event": "control_error"})
                    for _, future in waiting:
                        _resolve(future, ControlError(500, "internal error, which is in the log"))
        finally:
            self._writer = None

    async def _write(self, waiting: list[tuple[ChangeRequest, asyncio.Future[Applied]]]) -> None:
        if not self._is_loaded:
            await self.start()
        if not self._is_loaded:
            for _, future in waiting:
                _resolve(future, ControlError(503, f"{self._problem}; nothing has changed"))
            return
        await self._load_kinds(change.value for change, _ in waiting if change.value and _is_service(change.path))
        transaction = Transaction(self._documents, self._revision)
        accepted = self._checked_changes(transaction, waiting)
        changes = {**self._unstored, **transaction.changes}
        try:
            if changes:
                await self._thread.call_in_turn(partial(self._store.write, changes, transaction.revision))
        except (StoreError, ThreadStartError) as exc:
            self._set_problem(str(exc))
            transaction.release()
            self._apply_unstored(transaction)
            for applied, future in accepted:
                _resolve(future, self._not_stored(applied))
            return
        self._set_problem("")
        self._commit(transaction, changes)
        for applied, future in accepted:
            _resolve(future, applied)

    def _not_stored(self, applied: Applied) -> ControlError:
        is_in_effect = any(document is applied.document for document in self._unstored.values())
        effect = "it is not stored, and in effect until a restart" if is_in_effect else "nothing has changed"
        return ControlError(503, f"{self._problem}; {effect}")

    def _apply_unstored(self, transaction: Transaction) -> None:
        """Apply the changes that cannot be stored, if they make the node worse: the better state is not true."""
        for path, document in transaction.changes.items():
            if document is not None and self._is_worse(path, document.value):
                self._documents[path] = self._unstored[path] = document
                self._revision = max(self._revision, document.revision)
                self._apply(path)

    def _is_worse(self, path: str, value: Mapping[str, Any]) -> bool:
        if path == DRAIN or path.startswith("issues/"):
            return True
        service_id = _id_of(path) if _is_child(path, "status") else ""
        if not service_id or not self._reports(service_id):
            return False
        is_up = self._node.state(service_id).status is Status.UP
        return value["status"] == "down" or (value["status"] == "initializing" and is_up)

    def _store_expiry(self, change: Change) -> None:
        """A report that has expired becomes one of Down. Its revision stays: no request has changed it."""
        state, service_id = change.after, change.service_id
        if state is None or service_id is None or state.code != ReasonCode.TTL_EXPIRED:
            return
        path = status_path(service_id)
        document = self._documents.get(path)
        if document is None or document.value["status"] == "down" or state.last_evidence_at_s is None:
            return
        if state.last_evidence_at_s < (document.value["at_s"] or 0.0):
            return  # an earlier report has expired; this one is about to be applied
        value = {"status": "down", "reason": state.reason, "code": str(state.code), "at_s": state.since_s}
        self._documents[path] = self._unstored[path] = Document(value, document.revision)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._write_soon)

    def _checked_changes(
        self, transaction: Transaction, waiting: list[tuple[ChangeRequest, asyncio.Future[Applied]]]
    ) -> list[tuple[Applied, asyncio.Future[Applied]]]:
        """Add the changes that are allowed to the transaction, and refuse the others."""
        accepted: list[tuple[Applied, asyncio.Future[Applied]]] = []
        for index, (change, future) in enumerate(waiting):
            if future.done():  # the client has disconnected
                continue
            if transaction.deletes(change.path):  # a service that is registered again starts without evidence
                self._waiting[:0] = waiting[index:]
                break
            try:
                accepted.append((self._add_to(transaction, change), future))
            except ControlError as exc:
                _resolve(future, exc)
        return accepted

    def _commit(self, transaction: Transaction, stored: Mapping[str, Document | None]) -> None:
        self._revision = transaction.revision
        for path, document in stored.items():
            if path in transaction.changes or self._unstored.get(path) is document:
                self._unstored.pop(path, None)
        for service_id, registration in transaction.registrations.items():
            if service_id in self._registrations:
                self._release_later(self._registrations[service_id])
            self._registrations[service_id] = registration
        for path, document in transaction.changes.items():
            if document is not None:
                self._documents[path] = document
            else:
                self._documents.pop(path, None)
                if _is_service(path):
                    self._release_later(self._registrations.pop(_id_of(path)))
        for path in transaction.changes:
            self._apply(path)

    def _add_to(self, transaction: Transaction, change: ChangeRequest) -> Applied:
        """Check a change against the result of the ones before it, and add it."""
        path, old = change.path, transaction.get(change.path)
        if _is_service(path) and _id_of(path) in self._configured:
            raise ControlError(409, _CONFIGURED)
        # Before the precondition: without their service, a report and maintenance are 404 and not 412.
        if _is_child(path, *_EVIDENCE):
            self._check_reports(transaction, _id_of(path))
            if change.unless_down and old is not None and old.value["status"] == "down":
                raise ControlError(429, "this service is reported as Down already")
        elif _is_child(path, "maintenance") and change.value is not None:
            self._check_service(transaction, _id_of(path))
        change.precondition.check(old)
        if change.value is None:
            transaction.delete(path)
            self._delete_children(transaction, path, _CHILDREN)
            return Applied(None)
        value = self._checked(transaction, path, change.value)
        if old is not None and old.value == value:
            return Applied(old)
        return Applied(transaction.put(path, value), is_new=old is None)

    def _checked(self, transaction: Transaction, path: str, value: dict[str, Any]) -> dict[str, Any]:
        """The document to store. Raises `ControlError` if the change is not allowed."""
        if not _is_service(path):
            value = {key: safe_reason(text) if key in _FREE_TEXTS else text for key, text in value.items()}
        if _is_child(path, "status"):
            transaction.delete(run_path(_id_of(path)))  # a report is the end of a run
            return {**value, "at_s": self._node.now_s()}
        if _is_child(path, "run"):
            run = transaction.get(path)
            return {"at_s": self._node.now_s()} if run is None else run.value
        if _is_maintenance(path):
            ends_at_s = self._node.now_s() + parse_duration_s(value["duration"])
            # After a restart of the machine, only the time of the wall clock is left.
            return {**value, "ends_at_s": ends_at_s, "until_s": self._node.wall_time_s(ends_at_s)}
        if _is_service(path):
            return self._checked_service(transaction, path, value)
        if path != DRAIN and transaction.get(path) is None and self._issue_count(transaction) >= MAX_ISSUES:
            raise ControlError(409, f"the node has {MAX_ISSUES} issues already")
        return value

    def _checked_service(self, transaction: Transaction, path: str, options: dict[str, Any]) -> dict[str, Any]:
        service_id, old = _id_of(path), transaction.get(path)
        if old is None and len(self._registrations) + len(transaction.registrations) >= MAX_SERVICES:
            raise ControlError(409, f"{MAX_SERVICES} services are registered already")
        before = transaction.registrations.get(service_id) or self._registrations.get(service_id)
        registration = self._register(service_id, options)
        transaction.register(service_id, registration)
        if old is not None and before is not None and before.reports == registration.reports:
            return {"options": options, "registered_at_s": old.value["registered_at_s"]}
        # It starts without evidence: an earlier report is not one of this service.
        self._delete_children(transaction, path, _EVIDENCE)
        return {"options": options, "registered_at_s": self._node.now_s()}

    def _delete_children(self, transaction: Transaction, path: str, children: Iterable[str]) -> None:
        for child in children:
            transaction.delete(f"{path}/{child}")

    def _issue_count(self, transaction: Transaction) -> int:
        new = sum(path.startswith("issues/") and path not in self._documents for path in transaction.changes)
        return len(self._issues) + new

    def _check_service(self, transaction: Transaction, service_id: str) -> None:
        if service_id not in self._configured and transaction.get(service_path(service_id)) is None:
            raise ControlError(404, "Service not found")

    def _check_reports(self, transaction: Transaction, service_id: str) -> None:
        """A service reports its status if it has neither a probe nor a fixed status."""
        self._check_service(transaction, service_id)
        if service_id in self._configured:
            reports = self._configured[service_id]
        else:
            reports = (transaction.registrations.get(service_id) or self._registrations[service_id]).reports
        if not reports:
            raise ControlError(409, "this service has a probe or a fixed status, which alone sets its status")

    # ---- applying documents to the node

    def _is_missing(self, path: str) -> bool:
        """Whether the node does not have a document yet. A report that it has is not recorded again."""
        if path == DRAIN:
            return not self._node.condition.draining
        if _is_maintenance(path):
            return path not in self._maintenance
        if _is_child(path, *_EVIDENCE):
            found = self._node.find(_id_of(path))
            if _is_child(path, "run"):
                return found is not None and found[1].job_started_at_s is None
            return found is not None and found[1].last_evidence_at_s is None
        if _is_service(path):
            return _id_of(path) not in self._registrar
        return _issue_of(path) not in self._issues

    def _apply(self, path: str) -> None:
        document = self._documents.get(path)
        if path == DRAIN:
            self._apply_drain(document)
        elif _is_maintenance(path):
            self._apply_maintenance(path, document)
        elif _is_child(path, *_EVIDENCE):
            if document is not None and self._reports(_id_of(path)):
                apply = self._apply_status if _is_child(path, "status") else self._apply_run
                apply(_id_of(path), document.value)
        elif _is_service(path):
            self._apply_service(_id_of(path), document)
        else:
            self._apply_issue(_issue_of(path), document)

    def _apply_drain(self, document: Document | None) -> None:
        if self._is_stopping:
            return
        if document is not None:
            self._node.drain(document.value.get("reason", ""))
        else:
            self._node.undrain()

    def _apply_service(self, service_id: str, document: Document | None) -> None:
        if service_id in self._configured:
            return
        if document is None:
            if service_id in self._registrar:
                self._registrar.deregister(service_id)
        elif service_id in self._registrar:
            self._registrar.replace(self._registrations[service_id].definition)
        else:
            definition = self._registrations[service_id].definition
            self._registrar.add(definition, registered_at_s=document.value["registered_at_s"])

    def _apply_status(self, service_id: str, value: Mapping[str, Any]) -> None:
        outcome, at_s = OUTCOMES[value["status"]], value["at_s"]
        if outcome is Outcome.READY and (at_s is None or at_s > self._node.now_s()):
            return  # it is of the time before the machine was restarted
        if at_s is not None:  # a service of the file is registered at every start
            self._node.set_registered_at(service_id, at_s)
        verdict = Verdict(outcome, value.get("reason", ""), value.get("code", ReasonCode.REPORTED))
        self._node.record(service_id, verdict, at_s=at_s)

    def _apply_run(self, service_id: str, value: Mapping[str, Any]) -> None:
        self._node.record_start(service_id, at_s=value["at_s"])

    def _apply_maintenance(self, path: str, document: Document | None) -> None:
        service_id = None if path == MAINTENANCE else _id_of(path)
        self._maintenance.discard(path)
        if document is None:
            self._node.end_maintenance(service_id, source="control")
            return
        value, now_s = document.value, self._node.now_s()
        ends_at_s = value["ends_at_s"]
        self._maintenance.add(path)
        if ends_at_s > now_s:
            maintenance = Maintenance("control", ends_at_s, value.get("by", ""), value.get("reason", ""))
            self._node.set_maintenance(maintenance, service_id)
        loop = asyncio.get_running_loop()
        loop.call_later(max(0.0, ends_at_s - now_s), self._delete_soon, path, document.revision)

    def _delete_soon(self, path: str, revision: int) -> None:
        """Delete a document, unless it has changed or the store cannot be written."""
        if self._is_stopping:
            return
        future: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.exception())
        self._enqueue(ChangeRequest(path, None, Precondition(revision)), future)

    def _apply_issue(self, name: str, document: Document | None) -> None:
        """The new text is set before the old one is cleared, so that the node is not healthy in between."""
        old = self._issues.pop(name, None)
        if document is not None:
            reason = document.value.get("reason", "")
            self._issues[name] = f"{name}: {reason}" if reason else name
            self._node.set_issue(self._issues[name])
        if old is not None and old not in self._issues.values():
            self._node.clear_issue(old)

    # ---- definitions

    def _is_registered(self, service_id: str) -> bool:
        return self._node.find(service_id) is not None

    def _reports(self, service_id: str) -> bool:
        return self._is_registered(service_id) and self._node.probe_config(service_id) is None

    async def _load_kinds(self, services: Iterable[Mapping[str, Any]]) -> None:
        """Import the kinds of their probes in a thread: a driver may take a second."""
        schemes = {scheme_of(options["probe"]) for options in services if "probe" in options}
        missing = [scheme for scheme in schemes if not is_loaded(scheme)]
        if missing:
            with suppress(ThreadStartError):  # then they are imported when the probes are made
                await self._thread.call_in_turn(partial(load_kinds, missing))

    def _register(self, service_id: str, options: Mapping[str, Any]) -> Registration:
        with SecretScope() as secrets:
            return Registration(self._define(service_id, options), secrets)

    def _register_stored(self, service_id: str, options: Mapping[str, Any]) -> Registration:
        """A stored definition that is no longer accepted, as without its driver, is a service that is never Up."""
        try:
            return self._register(service_id, options)
        except SvcnodeError as exc:
            log.error(  # noqa: TRY400  the text is enough
                "service %s, registered through the control socket, is not accepted any more: %s",
                service_id,
                exc,
                extra={"event": "control_service_rejected", "service": service_id},
            )
            rejected = define(service_id, name=options.get("name"), ttl=1)
            return Registration(rejected, SecretScope(), is_accepted=False)

    def _release_later(self, registration: Registration) -> None:
        asyncio.get_running_loop().call_later(SECRETS_KEPT_S, registration.secrets.release)

    def _without_times(self, stored: StoredDocuments) -> StoredDocuments:
        """The machine was restarted, and its clock with it: a service has been silent for an unknown time."""
        documents = {}
        for path, document in stored.documents.items():
            value = document.value
            if _is_child(path, "status"):
                value = {**value, "at_s": None}
            elif _is_maintenance(path):
                now_s = self._node.now_s()
                left_s = min(value["until_s"] - self._node.wall_time_s(now_s), parse_duration_s(value["duration"]))
                value = {**value, "ends_at_s": now_s + left_s}
            elif _is_child(path, "run"):
                value = {"at_s": self._node.now_s()}
            elif _is_service(path):
                value = {**value, "registered_at_s": self._node.now_s()}
            documents[path] = document._replace(value=value)
        return stored._replace(documents=documents)


def _is_service(path: str) -> bool:
    return path.startswith("services/") and path.count("/") == 1


def _is_child(path: str, *names: str) -> bool:
    """Whether it is a document of a service with one of these names. An issue or a service may have any name."""
    return path.startswith("services/") and path.count("/") == 2 and path.rpartition("/")[2] in names


def _is_maintenance(path: str) -> bool:
    return path == MAINTENANCE or _is_child(path, "maintenance")


def _id_of(path: str) -> str:
    return unquote(path.split("/")[1])


def _issue_of(path: str) -> str:
    return unquote(path.removeprefix("issues/"))


def _redacted(value: Any) -> Any:  # noqa: ANN401  any JSON value
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, list):
        return [_redacted(item) for item in value]
    return {key: _redacted(item) for key, item in value.items()} if isinstance(value, dict) else value


def _resolve(future: asyncio.Future[Applied], result: Applied | ControlError) -> None:
    if future.done():  # the client has disconnected
        return
    if isinstance(result, ControlError):
        future.set_exception(result)
    else:
        future.set_result(result)
