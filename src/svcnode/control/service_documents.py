"""The documents of a service: that it is registered, its last report, and the runs of its job."""

from __future__ import annotations

import asyncio
import logging
import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from svcnode.control.changes import (
    ChangeRequest,
    Registration,
    Transaction,
    ack_path,
    run_path,
    service_path,
    status_path,
)
from svcnode.control.document_kind import DocumentKind, author_of, with_safe_texts
from svcnode.control.silence import SilentServices
from svcnode.control.store import Document
from svcnode.core.codes import ReasonCode
from svcnode.core.dependencies import reject_cycle
from svcnode.core.errors import ControlError, InvalidValueError, SvcnodeError
from svcnode.core.model import REPORTED_POLICY, Evidence, Outcome, Status, Verdict
from svcnode.core.redaction import SecretScope
from svcnode.core.text import with_author
from svcnode.node.definition import RegisteredService, define

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from svcnode.core.model import Policy, ServiceState
    from svcnode.node.definition import PushAccess, ServiceList
    from svcnode.node.node_state import NodeState
    from svcnode.node.standstill import Standstill

    Define = Callable[[str, Mapping[str, Any]], RegisteredService]

log = logging.getLogger("svcnode.control")

MAX_SERVICES = 20_000
MAX_RUNS = 8  # of a job at the same time
SECRETS_KEPT_S = 600.0  # after a change: a check that began before may show the old secrets
OUTCOMES = {"up": Outcome.READY, "initializing": Outcome.NOT_READY, "down": Outcome.FAILED}
_BADNESS = {status: badness for badness, status in enumerate(OUTCOMES)}
_EVIDENCE = ("status", "run")  # of a service
_CONFIGURED = "this service is in the configuration file; change it there and reload"


def service_not_found(service_id: str) -> ControlError:
    return ControlError(404, f"there is no service {service_id!r}: register it first, or look for its id in the list")


class ServiceDocuments(DocumentKind):
    """Services that programs have registered.

    If the configuration file has a service with the same id, that one takes precedence. The registered service waits
    until the file no longer has it.
    """

    def __init__(
        self, node: NodeState, standstill: Standstill, service_list: ServiceList, define_service: Define
    ) -> None:
        super().__init__(node)
        self._service_list = service_list  # registers the services
        self._define = define_service
        self._registrations: dict[str, Registration] = {}  # by id
        self.configured: Mapping[str, bool] = {}  # the services of the file: whether they report by themselves
        self.silent = SilentServices(node, standstill, self._silence_limits)
        self.report_of: Callable[[str], Document | None] = lambda _: None  # the last one of a service

    # ---- the rules of a document

    def check(self, transaction: Transaction, name: str, change: ChangeRequest) -> None:
        if name in self.configured:
            raise ControlError(409, _CONFIGURED)
        path = service_path(name)
        has_news = any(transaction.has_changed(one) for one in (path, *(f"{path}/{child}" for child in _EVIDENCE)))
        if change.if_silent and (has_news or not self.silent.is_due(name)):
            raise ControlError(409, "this service is not silent any more")

    def value(self, transaction: Transaction, name: str, given: dict[str, Any], sent_at_s: float) -> dict[str, Any]:
        path = service_path(name)
        old, before = transaction.get(path), self._registration(transaction, name)
        if old is None and len(self._registrations) + len(transaction.registrations) >= MAX_SERVICES:
            raise ControlError(409, f"{MAX_SERVICES} services are registered already")
        registration = self._register(name, given)
        self._check_cycle(transaction, registration)
        transaction.register(name, registration)
        if old is not None and before is not None and before.reports == registration.reports:
            return {"options": given, "registered_at_s": old.value["registered_at_s"]}
        # It starts without evidence: an earlier report is not one of this service.
        for child in _EVIDENCE:
            transaction.delete(f"{path}/{child}")
        return {"options": given, "registered_at_s": self._node.now_s()}

    def delete(self, transaction: Transaction, path: str) -> None:
        transaction.delete(path)
        for child in (*_EVIDENCE, "maintenance", "planned_maintenance", "ack"):
            transaction.delete(f"{path}/{child}")

    def is_missing(self, name: str) -> bool:
        return name not in self._service_list

    def apply(self, name: str, document: Document | None) -> None:
        if document is None and name in self._registrations:
            self._release_later(self._registrations.pop(name))
        if name in self.configured:
            return
        if document is None:
            if name in self._service_list:
                self._service_list.deregister(name)
        elif name in self._service_list:
            self._service_list.replace(self._registrations[name].definition)
        else:
            self._service_list.add(
                self._registrations[name].definition, registered_at_s=self._heard_at_s(name, document)
            )

    def _heard_at_s(self, name: str, document: Document) -> float:
        """Its registration, or its last report, which is applied next: until then it must not count as silent."""
        registered_at_s: float = document.value["registered_at_s"]
        report = self.report_of(name)
        return max(registered_at_s, (report is not None and report.value["at_s"]) or registered_at_s)

    def after_boot(self, value: dict[str, Any]) -> dict[str, Any]:
        return {**value, "registered_at_s": self._node.now_s()}

    def _check_cycle(self, transaction: Transaction, registration: Registration) -> None:
        """What a service depends on may be registered later, so only a cycle is wrong."""
        service = registration.definition.service
        if not service.depends_on:
            return
        pending = [one.definition.service for one in transaction.registrations.values()]
        try:
            reject_cycle(service, (*(other for other, _ in self._node), *pending))
        except InvalidValueError as exc:
            raise ControlError(409, str(exc)) from exc

    # ---- what the other documents of a service ask

    def check_exists(self, transaction: Transaction, service_id: str) -> None:
        if service_id not in self.configured and transaction.get(service_path(service_id)) is None:
            raise service_not_found(service_id)

    def check_reports(self, transaction: Transaction, service_id: str) -> None:
        """A service reports its status if it has neither a probe nor a fixed status."""
        self.check_exists(transaction, service_id)
        registration = self._registration(transaction, service_id)
        if not self.configured.get(service_id, registration is not None and registration.reports):
            raise ControlError(409, "this service has a probe or a fixed status, which alone sets its status")

    # ---- registrations

    def load(self, service_id: str, options: Mapping[str, Any]) -> None:
        """From the store. Without its driver, say, a definition is no longer accepted: the service is never Up."""
        try:
            registration = self._register(service_id, options)
        except SvcnodeError as exc:
            log.error(  # noqa: TRY400  the text is enough
                "service %s, which was registered through the control socket, is no longer valid: %s",
                service_id,
                exc,
                extra={"event": "control_service_rejected", "service": service_id},
            )
            rejected = RegisteredService(define(service_id, name=options.get("name"), ttl=1))
            registration = Registration(rejected, SecretScope(), is_accepted=False)
        self._keep(service_id, registration)

    def commit(self, transaction: Transaction) -> None:
        for service_id, registration in transaction.registrations.items():
            self._keep(service_id, registration)

    def set_configured(self, services: Mapping[str, bool]) -> None:
        self.configured = services
        for service_id in self._registrations.keys() & services.keys():
            if service_id in self._service_list:
                self._service_list.deregister(service_id)

    def redefine(self, documents: Mapping[str, Document]) -> None:
        """After a change of the settings that definitions depend on."""
        for service_id, old in list(self._registrations.items()):
            self.load(service_id, documents[service_path(service_id)].value["options"])
            new = self._registrations[service_id].definition
            if new != old.definition and service_id not in self.configured:
                self._service_list.replace(new)

    def _registration(self, transaction: Transaction, service_id: str) -> Registration | None:
        return transaction.registrations.get(service_id) or self._registrations.get(service_id)

    def _register(self, service_id: str, options: Mapping[str, Any]) -> Registration:
        with SecretScope() as secrets:
            return Registration(self._define(service_id, options), secrets)

    def _silence_limits(self) -> dict[str, float]:
        return {
            service_id: registration.service.deregister_after_s
            for service_id, registration in self._registrations.items()
            if registration.service.deregister_after_s is not None and service_id not in self.configured
        }

    def push_access(self, service_id: str) -> PushAccess | None:
        registration = self._registrations.get(service_id)
        return None if registration is None or service_id in self.configured else registration.service.push

    @property
    def receives_pushes(self) -> bool:
        return any(registration.service.push is not None for registration in self._registrations.values())

    def _keep(self, service_id: str, registration: Registration) -> None:
        if service_id in self._registrations:
            self._release_later(self._registrations[service_id])
        self._registrations[service_id] = registration

    def _release_later(self, registration: Registration) -> None:
        asyncio.get_running_loop().call_later(SECRETS_KEPT_S, registration.secrets.release)


class _EvidenceDocuments(DocumentKind):
    """Reports of a service that has no probe."""

    def __init__(self, node: NodeState, services: ServiceDocuments) -> None:
        super().__init__(node)
        self._services = services

    def check(self, transaction: Transaction, name: str, change: ChangeRequest) -> None:
        self._services.check_reports(transaction, name)
        report = transaction.get(change.path)
        if change.unless_down and report is not None and report.value["status"] == "down":
            raise ControlError(429, "this service has already been reported as Down")

    def is_missing(self, name: str) -> bool:
        found = self._node.find(name)
        return found is not None and not self._is_known(found[1])

    def apply(self, name: str, document: Document | None) -> None:
        if document is not None and self._reports(name):
            self._record(name, document.value)

    def _reports(self, service_id: str) -> bool:
        return self._node.find(service_id) is not None and self._node.probe_config(service_id) is None

    @abstractmethod
    def _is_known(self, state: ServiceState) -> bool:
        """Whether the node has such evidence of the service."""

    @abstractmethod
    def _record(self, service_id: str, value: Mapping[str, Any]) -> None: ...


class StatusDocuments(_EvidenceDocuments):
    """A report with a run id (`rid`) ends that run; a report without one ends all runs."""

    def value(self, transaction: Transaction, name: str, given: dict[str, Any], sent_at_s: float) -> dict[str, Any]:
        before, now_s = transaction.get(status_path(name)), self._node.now_s()
        at_s = _reported_at_s(given["status"], before, sent_at_s, now_s)
        if given["status"] == "up" and now_s < at_s + (self._policy(name).ttl_s or math.inf):
            transaction.delete(ack_path(name))  # here, so that a kill cannot leave it for the next problem
        report = {key: value for key, value in given.items() if key != "rid"}
        value = {**with_safe_texts(report), "at_s": at_s, "since_s": _since_s(given["status"], before, at_s)}
        runs, rid = _runs(transaction, name), given.get("rid", "")
        if rid in runs:
            value["duration_s"] = max(0.0, at_s - runs[rid])
        overdue_s = now_s - self._max_run_s(name)  # a run that was killed never ends; that it did not is reported once
        others = {other: at_s for other, at_s in runs.items() if rid and other != rid and at_s > overdue_s}
        if others:
            transaction.put(run_path(name), {"runs": others})
            value["running_since_s"] = min(others.values())
        else:
            transaction.delete(run_path(name))
        return value

    def is_worse(self, name: str, value: Mapping[str, Any]) -> bool:
        if not self._reports(name):
            return False
        is_up = self._node.state(name).status is Status.UP
        return value["status"] == "down" or (value["status"] == "initializing" and is_up)

    def after_boot(self, value: dict[str, Any]) -> dict[str, Any]:
        value = {key: field for key, field in value.items() if key != "since_s"}
        running = {"running_since_s": self._node.now_s()} if "running_since_s" in value else {}
        return {**value, "at_s": None, **running}

    def expired(self, document: Document, state: ServiceState) -> Document | None:
        """A report that has expired becomes one of Down, so that a longer ttl does not make it valid again.

        Its revision stays: no request has changed it.
        """
        if document.value["status"] == "down" or state.last_evidence_at_s is None:
            return None
        if state.last_evidence_at_s < (document.value["at_s"] or 0.0):
            return None  # an earlier report has expired; this one is about to be applied
        times = {"at_s": state.since_s, "since_s": state.since_s}
        value = {"status": "down", "reason": state.reason, "code": str(state.code), **times}
        return Document(value, document.revision)

    def _max_run_s(self, service_id: str) -> float:
        policy = self._policy(service_id)
        return policy.grace_s or policy.ttl_s or math.inf

    def _policy(self, service_id: str) -> Policy:
        found = self._node.find(service_id)
        return REPORTED_POLICY if found is None else found[0].policy

    def _is_known(self, state: ServiceState) -> bool:
        return state.last_evidence_at_s is not None

    def _record(self, service_id: str, value: Mapping[str, Any]) -> None:
        outcome, at_s = OUTCOMES[value["status"]], value["at_s"]
        if outcome is Outcome.READY and (at_s is None or at_s > self._node.now_s()):
            return  # it is of the time before the machine was restarted
        if at_s is not None:  # a service of the file is registered at every start
            self._node.set_registered_at(service_id, at_s)
        reason = with_author(value.get("reason", ""), author_of(value))
        verdict = Verdict(outcome, reason, value.get("code", ReasonCode.REPORTED))
        if "since_s" in value and self.is_missing(service_id):
            self._node.restore(service_id, Evidence(verdict, at_s), since_s=value["since_s"])
        self._node.report(service_id, verdict, at_s=at_s, duration_s=value.get("duration_s", 0.0))
        if "running_since_s" in value:
            self._node.record_start(service_id, at_s=value["running_since_s"])


def _reported_at_s(status: str, before: Document | None, sent_at_s: float, now_s: float) -> float:
    """Bad news counts from now on. Better news counts from when it was sent, and not against newer bad news."""
    if before is None:
        return now_s if status == "down" else min(sent_at_s, now_s)
    status_before, at_s = before.value["status"], before.value["at_s"] or 0.0
    if _BADNESS[status] > _BADNESS[status_before] or status == "down":
        return now_s
    if before.value.get("code") == ReasonCode.TTL_EXPIRED:  # that was no report
        return min(sent_at_s, now_s)
    if sent_at_s < at_s and status != status_before:
        raise ControlError(
            503,
            "nothing has changed: this may have been sent before the node stood still, and the report of "
            f"{status_before} may be newer; try again",
        )
    return max(min(sent_at_s, now_s), at_s)


def _since_s(status: str, before: Document | None, at_s: float) -> float:
    if before is None or before.value["status"] != status:
        return at_s
    since_s: float = before.value.get("since_s", at_s)
    return since_s


class RunDocuments(_EvidenceDocuments):
    """Maps the id of each run, or "" if it has none, to its start. A run that starts again does not get more time."""

    def value(self, transaction: Transaction, name: str, given: dict[str, Any], sent_at_s: float) -> dict[str, Any]:
        runs = _runs(transaction, name)
        if len(runs) < MAX_RUNS:  # the oldest have to end first
            runs = {given.get("rid", ""): min(sent_at_s, self._node.now_s()), **runs}
        return {"runs": runs}

    def after_boot(self, value: dict[str, Any]) -> dict[str, Any]:
        return {"runs": dict.fromkeys(_starts(value), self._node.now_s())}

    def _is_known(self, state: ServiceState) -> bool:
        return state.job_started_at_s is not None

    def _record(self, service_id: str, value: Mapping[str, Any]) -> None:
        self._node.record_start(service_id, at_s=min(_starts(value).values()))


def _runs(transaction: Transaction, service_id: str) -> dict[str, float]:
    document = transaction.get(run_path(service_id))
    return {} if document is None else _starts(document.value)


def _starts(value: Mapping[str, Any]) -> dict[str, float]:
    """By run id. Earlier versions stored one start, without an id."""
    starts: dict[str, float] = value["runs"] if "runs" in value else {"": value["at_s"]}
    return starts
