"""The resources of the control socket: requests change documents, and the documents change the node.

    request ─► check ─► store ─► apply to the node ─► response

What may be changed, and what a document means, is in documents.py and service_documents.py. All requests that wait
share one transaction of the store. After it is on the disk, each document is applied to the node, as at the start. So a
change is never half applied, and a restart leads to the same node.

While the store cannot be written, a change that makes the node worse, such as a report of Down, is applied anyway, and
is stored together with the next change that can be stored. Every other change is refused.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.control.changes import (
    ChangeRequest,
    Precondition,
    Transaction,
    ack_path,
    issue_path,
    service_path,
    status_path,
)
from svcnode.control.documents import Documents
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import ControlError, StoreError
from svcnode.core.model import ChangeKind
from svcnode.core.redaction import redacted
from svcnode.core.units import iso_time
from svcnode.net.clock import next_tick_s
from svcnode.net.os_errors import ThreadStartError
from svcnode.net.tasks import log_failure
from svcnode.net.threads import DaemonCall
from svcnode.node.feed import changes_by
from svcnode.node.standstill import TICK_S
from svcnode.probes import is_loaded, load_kinds, scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from svcnode.control.service_documents import Define, ServiceDocuments
    from svcnode.control.store import ControlStore, Document, StoredDocuments
    from svcnode.core.model import Change
    from svcnode.node.definition import ServiceList
    from svcnode.node.node_state import NodeState

log = logging.getLogger("svcnode.control")

STORE_ISSUE = "the control store cannot be read"
STORE_TIMEOUT_S = 5.0  # to open and to close it: its mount may hang


class Applied(NamedTuple):
    document: Document | None
    is_new: bool = False


class Resources:
    """Not thread-safe: used on the event loop of the agent."""

    def __init__(
        self, node: NodeState, store: ControlStore, define_service: Define, service_list: ServiceList | None = None
    ) -> None:
        """`service_list` registers the services; by default, the node does."""
        self._node = node
        self._store = store
        self._documents: dict[str, Document] = {}  # by path
        self._kinds = Documents(node, node if service_list is None else service_list, define_service, self._delete_soon)
        self._kinds.services.report_of = lambda service_id: self._documents.get(status_path(service_id))
        self._revision = 0
        self._is_loaded = False
        self._problem = ""  # of the store; it is logged once
        self._is_stopping = False
        self._waiting: list[tuple[ChangeRequest, asyncio.Future[Applied]]] = []
        self._unstored: dict[str, Document] = {}  # documents that are in effect and not on the disk
        self._is_write_due = False  # without a request
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unsubscribe = node.subscribe(self._on_change)
        self._thread = DaemonCall("control store")
        self._writer: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None  # for the next tick
        self._removing: set[str] = set()  # services whose removal waits
        self.on_registration: Callable[[], None] = lambda: None  # after services were registered, replaced or removed

    @property
    def revision(self) -> int:
        return self._revision

    @property
    def services_by_program(self) -> ServiceDocuments:
        return self._kinds.services

    # ---- start, reload, stop

    async def start(self) -> None:
        """Read the store and apply it. If it cannot be read, the node is unhealthy: services may be missing."""
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(STORE_TIMEOUT_S):
                stored = self._known(await self._thread.call_in_turn(self._store.load))
                if not stored.is_same_boot:
                    stored = self._after_boot(stored)
                    # Before anything else is stored: that would make the old times look like times since this boot.
                    await self._thread.call_in_turn(partial(self._store.write, stored.documents, stored.revision))
        except TimeoutError:
            self._set_problem(f"cannot read the control store: no response within {STORE_TIMEOUT_S:g} s")
        except (StoreError, ThreadStartError) as exc:
            self._set_problem(str(exc))
        else:
            services = self._kinds.registered(stored.documents.items())
            await self._load_kinds(services.values())
            self._is_loaded = True
            self._documents, self._revision = stored.documents, stored.revision
            for service_id, options in services.items():
                self._kinds.services.load(service_id, options)
            self.apply_all()
            self._node.overrides.clear_issue(STORE_ISSUE)
            if self._timer is None:
                self._set_timer()
            return
        self._node.overrides.set_issue(STORE_ISSUE)

    def _set_problem(self, problem: str) -> None:
        if problem and problem != self._problem:
            log.error("%s", problem, extra={"event": "control_store_failed"})
        self._problem = problem

    def set_configured(self, services: Mapping[str, bool]) -> None:
        """Before the services of the file are applied: a document with the same id steps back.

        `services` says of each id whether the service reports by itself.
        """
        self._kinds.services.set_configured(services)

    def apply_all(self) -> None:
        """At the start, and after the services of the file are applied: what the node does not have yet."""
        for path in self._documents:
            kind, name = self._kinds.kind_of(path)
            if kind.is_missing(name):
                self._apply(path)

    def redefine_all(self) -> None:
        """After a change of the settings that definitions depend on."""
        self._kinds.services.redefine(self._documents)

    def stop(self) -> None:
        """From now on, the node stays drained: it is stopping."""
        self._kinds.drain.is_stopping = self._is_stopping = True

    async def close(self) -> None:
        self._unsubscribe()
        if self._timer is not None:
            self._timer.cancel()
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
        kind, name = self._kinds.kind_of(path)
        return None if document is None or kind.has_ended(name, document.value) else document

    def public_fields(self, document: Document) -> dict[str, Any]:
        """Times are of the wall clock. The end of maintenance is given as this clock is now."""
        value = document.value
        fields = {key: field for key, field in value.items() if not key.endswith("_s")}
        if "ends_at_s" in value:
            fields["until"] = self._iso(value["ends_at_s"])
        else:
            times = {"from": "from_s", "at": "made_s", "until": "until_s"}
            fields |= {name: iso_time(value[key]) for name, key in times.items() if key in value}
        return {**fields, "revision": document.revision}

    def services(self) -> list[dict[str, Any]]:
        return [self._service_fields(service.id) for service, _ in self._node]

    def service(self, service_id: str, document: Document | None = None) -> dict[str, Any] | None:
        """None if there is none with this id. With a document, its options and revision: a later one may exist."""
        return None if self._node.find(service_id) is None else self._service_fields(service_id, document)

    def issues(self) -> dict[str, Document]:
        return {name: self._documents[issue_path(name)] for name in self._kinds.issues}

    def maintenance(self, service_id: str | None = None) -> dict[str, Any] | None:
        """Of a service or of the node, now, also by the schedule."""
        maintenance = self._node.maintenance.current(service_id)
        if maintenance is None:
            return None
        until = self._iso(maintenance.ends_at_s)
        return {"until": until, "by": maintenance.by, "reason": maintenance.reason, "source": maintenance.source}

    def planned_maintenance(self, service_id: str | None = None) -> dict[str, Any] | None:
        """The next one of a service or of the node that has not begun."""
        planned = self._node.maintenance.next_planned(service_id)
        if planned is None:
            return None
        times = {"from": iso_time(planned.from_s), "until": iso_time(planned.until_s)}
        return {**times, "by": planned.by, "reason": planned.reason}

    def acknowledged(self, service_id: str | None = None) -> dict[str, Any] | None:
        """By whom a problem of a service or of the node is acknowledged, now."""
        made = self._node.acknowledgements.find(service_id)
        if made is None:
            return None
        until = None if made.until_s is None else iso_time(made.until_s)
        return {"at": iso_time(made.made_s), "until": until, "by": made.by, "reason": made.reason}

    def _iso(self, at_s: float) -> str:
        return iso_time(self._node.wall_time_s(at_s))

    def _service_fields(self, service_id: str, document: Document | None = None) -> dict[str, Any]:
        found = self._node.find(service_id)
        assert found is not None
        service, state = found
        is_configured = service_id in self._kinds.services.configured
        fields: dict[str, Any] = {
            "id": service_id,
            "source": "file" if is_configured else "control",
            "name": service.name,
            "description": service.description,
            "impact": service.impact.value,
            "status": state.status.value,
            "reason": state.reason,
            "code": state.code,
            "maintenance": self.maintenance(service_id),
            "planned_maintenance": self.planned_maintenance(service_id),
            "acknowledged": self.acknowledged(service_id),
        }
        document = document or self._documents.get(service_path(service_id))
        if document is not None and not is_configured:
            fields |= {"options": _redacted(document.value["options"]), "revision": document.revision}
        return fields

    # ---- changing

    async def change(self, change: ChangeRequest) -> Applied:
        """Returns when the change is on the disk and applied. Raises `ControlError`, which says if it has an effect."""
        future: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()
        self._enqueue(change._replace(sent_at_s=self._kinds.standstill.sent_at_s()), future)
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
                        _resolve(future, ControlError(500, "internal error; the log of the node has the details"))
        finally:
            self._writer = None

    async def _write(self, waiting: list[tuple[ChangeRequest, asyncio.Future[Applied]]]) -> None:
        if not self._is_loaded:
            await self.start()
        if not self._is_loaded:
            for _, future in waiting:
                _resolve(future, ControlError(503, f"{self._problem}; nothing has changed"))
            return
        await self._load_kinds(
            change.value
            for change, _ in waiting
            if change.value and self._kinds.kind_of(change.path)[0] is self._kinds.services
        )
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
        effect = (
            "the change is in effect, but could not be stored: a restart may undo it"
            if is_in_effect
            else "nothing has changed"
        )
        return ControlError(503, f"{self._problem}; {effect}")

    def _apply_unstored(self, transaction: Transaction) -> None:
        """Apply the changes that cannot be stored, if they make the node worse: the better state is not true."""
        for path, document in transaction.changes.items():
            kind, name = self._kinds.kind_of(path)
            if document is not None and kind.is_worse(name, document.value):
                self._documents[path] = self._unstored[path] = document
                self._revision = max(self._revision, document.revision)
                self._apply(path, transaction.authors.get(path, ""))

    def _on_change(self, change: Change) -> None:
        if change.kind is ChangeKind.ACKNOWLEDGEMENT_ENDED and self._loop is not None:
            self._loop.call_soon_threadsafe(self._kinds.acks.delete_ended)
        self._store_expiry(change)
        for service_id in {change.service_id, None}:
            self._store_better(service_id)

    def _store_expiry(self, change: Change) -> None:
        state, service_id = change.after, change.service_id
        if state is None or service_id is None or state.code != ReasonCode.TTL_EXPIRED:
            return
        path = status_path(service_id)
        report = self._documents.get(path)
        expired = None if report is None else self._kinds.statuses.expired(report, state)
        if expired is not None:
            self._store_changed(path, expired)

    def _store_better(self, service_id: str | None) -> None:
        """What is acknowledged has got better: after a restart, it must not cover what is worse again."""
        document = self._documents.get(path := ack_path(service_id))
        made = self._node.acknowledgements.find(service_id)
        if document is not None and made is not None and made.health < document.value["health"]:
            self._store_changed(path, document._replace(value={**document.value, "health": int(made.health)}))

    def _store_changed(self, path: str, document: Document) -> None:
        self._documents[path] = self._unstored[path] = document
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._write_soon)

    def _checked_changes(
        self, transaction: Transaction, waiting: list[tuple[ChangeRequest, asyncio.Future[Applied]]]
    ) -> list[tuple[Applied, asyncio.Future[Applied]]]:
        """Add the changes that are allowed to the transaction, and refuse the others.

        A change counts if its client has disconnected, too: what it has reported is no less true.
        """
        accepted: list[tuple[Applied, asyncio.Future[Applied]]] = []
        for index, (change, future) in enumerate(waiting):
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
        self._kinds.services.commit(transaction)
        for path, document in transaction.changes.items():
            if document is None:
                self._documents.pop(path, None)
            else:
                self._documents[path] = document
        for path in transaction.changes:
            self._apply(path, transaction.authors.get(path, ""))
        if any(self._kinds.kind_of(path)[0] is self._kinds.services for path in transaction.changes):
            self.on_registration()

    def _add_to(self, transaction: Transaction, change: ChangeRequest) -> Applied:
        """Check a change against the result of the ones before it, and add it."""
        path, old = change.path, transaction.get(change.path)
        kind, name = self._kinds.kind_of(path)
        kind.check(transaction, name, change)  # first: without their service, a report and maintenance are 404, not 412
        change.precondition.check(old)
        transaction.authors[path] = change.author
        if change.value is None:
            kind.delete(transaction, path)
            return Applied(None)
        value = kind.value(transaction, name, change.value, change.sent_at_s)
        if old is not None and old.value == value:
            return Applied(old)
        return Applied(transaction.put(path, value), is_new=old is None)

    def _apply(self, path: str, author: str = "") -> None:
        kind, name = self._kinds.kind_of(path)
        with changes_by(author):
            kind.apply(name, self._documents.get(path))

    def _delete_soon(self, path: str, revision: int) -> None:
        """Delete a document, unless it has changed or the store cannot be written."""
        self._request_soon(ChangeRequest(path, None, Precondition(revision)))

    def _request_soon(self, change: ChangeRequest) -> asyncio.Future[Applied] | None:
        """A change that nobody waits for."""
        if self._is_stopping:
            return None
        future: asyncio.Future[Applied] = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.exception())
        self._enqueue(change, future)
        return future

    def _set_timer(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_at(next_tick_s(loop.time(), TICK_S), self._tick)

    def _tick(self) -> None:
        self._set_timer()
        self._kinds.standstill.tick()
        for service_id in self._kinds.services.silent.tick():
            path = service_path(service_id)
            if path in self._removing:
                continue
            after = self._documents[path].value["options"]["deregister_after"]
            author = f"svcnode: no report for {after}"
            future = self._request_soon(ChangeRequest(path, None, if_silent=True, author=author))
            if future is not None:
                self._removing.add(path)
                future.add_done_callback(partial(self._removed, path))

    def _removed(self, path: str, _: object) -> None:
        self._removing.discard(path)

    async def _load_kinds(self, services: Iterable[Mapping[str, Any]]) -> None:
        """Import the kinds of their probes in a thread: a driver may take a second."""
        schemes = {scheme_of(options["probe"]) for options in services if "probe" in options}
        missing = [scheme for scheme in schemes if not is_loaded(scheme)]
        if missing:
            with suppress(ThreadStartError):  # then they are imported when the probes are made
                await self._thread.call_in_turn(partial(load_kinds, missing))

    def _known(self, stored: StoredDocuments) -> StoredDocuments:
        documents = {path: document for path, document in stored.documents.items() if self._kinds.knows(path)}
        return stored._replace(documents=documents)

    def _after_boot(self, stored: StoredDocuments) -> StoredDocuments:
        documents = {
            path: document._replace(value=self._kinds.kind_of(path)[0].after_boot(document.value))
            for path, document in stored.documents.items()
        }
        return stored._replace(documents=documents)


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
