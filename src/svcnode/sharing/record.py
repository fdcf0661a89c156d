"""What a replica knows of one service, and what follows from it. Nothing here changes the node or the registry.

A replica that checks a service has a state machine of its own for it (`OwnCheck`), which continues from the state of
the node. Its result is the state of the node if this replica is the only observer, and one vote of several otherwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core import state_machine
from svcnode.core.codes import ReasonCode
from svcnode.core.model import MAX_STALE_AFTER_S, Outcome, Policy, ServiceState, Status
from svcnode.core.text import MAX_REASON_CHARS, truncate
from svcnode.sharing.format import replica_of
from svcnode.sharing.rules import (
    is_outdated,
    latest_s,
    merged_state,
    renewal_due_at_s,
    report_order,
    service_state,
    still_down,
)
from svcnode.sharing.view import ObservedState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from svcnode.core.model import Evidence, KnownBefore, Service
    from svcnode.node.definition import Definition
    from svcnode.sharing.format import ServiceDocument
    from svcnode.sharing.rules import ObserverChoice
    from svcnode.sharing.view import RegistryView, SharedService

EARLY_S = 1.0  # before the votes of others expire, the own one takes their place: no moment is without evidence
NOT_SHARED = ""  # the source of evidence for a service that only this replica has


class OwnDefinition(NamedTuple):
    """As this replica defines the service, by its file or its control socket."""

    definition: Definition
    position: int
    document: ServiceDocument | None  # to publish; None: other replicas could not read it


class OwnCheck(NamedTuple):
    """The state of the service by the checks of this replica."""

    state: ServiceState
    has_vote: bool  # whether the state is from evidence of this replica
    is_redefined: bool = False  # since the last check: by the new definition, its evidence may have expired for others

    def after(self, evidence: Evidence, policy: Policy, now_s: float, known: KnownBefore | None = None) -> OwnCheck:
        """`known`: before the restart of this process, if nobody has known anything since then."""
        state = self.state if known is None else state_machine.with_memory(self.state, known)
        before = state_machine.as_of(state, now_s, policy)
        state = state_machine.apply_evidence(before, evidence, policy, now_s)
        return OwnCheck(state, self.has_vote or evidence.verdict.outcome is not Outcome.UNKNOWN)

    def is_to_publish(self, before: OwnCheck) -> bool:
        """A reason may change with every check, and a write per check is too much."""
        is_new = before.is_redefined or not before.has_vote
        return self.has_vote and (is_new or is_shown_otherwise(self.state, before.state))


class MadeFrom(NamedTuple):
    """What the service in the node was made from, if the registry has it."""

    document: ServiceDocument
    own: OwnDefinition | None
    is_observer: bool
    has_others: bool  # whether there are other observers

    def is_same(self, other: MadeFrom) -> bool:
        """By identity: a comparison of documents takes long."""
        return self.document is other.document and self.own is other.own and self[2:] == other[2:]


class Reporter(NamedTuple):
    """Where the newest report that is known has arrived."""

    report: ObservedState
    is_client: bool  # who wrote it to the registry; otherwise a replica has received it
    instance: str  # of the process of the replica, which has another one when it starts again; empty: not known
    is_forgotten: bool = False  # that replica has started again, or no longer has the service


class Received(NamedTuple):
    """A state of another replica, or a report of a client, and since when it is known here."""

    mod_revision: int
    at_s: float


class RegistryReception(NamedTuple):
    """The times between which the registry is received: since it was connected, until it was lost."""

    since_s: float = math.inf
    until_s: float = -math.inf
    listening_since_s: float = -math.inf  # since this process runs without a break, and receives reports itself

    @property
    def is_lost(self) -> bool:
        return self.until_s < math.inf


@dataclass(slots=True, eq=False)
class ServiceRecord:
    id: str
    own: OwnDefinition | None = None
    observers: tuple[str, ...] = ()
    choice: ObserverChoice | None = None  # how the observers of a checked service were chosen
    source: str | None = None  # of the evidence; None: not known yet
    made_from: MadeFrom | None = None
    is_new: bool = True  # the registry was not read since this replica knows the service
    is_unknown: bool = False  # when it was read, nobody had published a state
    check: OwnCheck | None = None  # None: not checked here
    reported: ServiceState | None = None  # by reports to this replica
    renewal_due_at_s: float = math.inf  # when newer evidence of others is passed on
    is_undecided: bool = False  # newer evidence of others may change the status, so it is passed on at once
    reporter: Reporter | None = None  # None: no report is known
    received: dict[str, Received] = field(default_factory=dict)  # the reports to others, by replica or client
    run_started_at_s: float | None = None  # by what this replica has received
    has_moved: bool = False  # reports have come to more than one place
    heard_since_s: float = -math.inf  # since when no replica is missing that may have received reports
    silence_due_at_s: float = math.inf  # when a report can no longer have been missed

    @property
    def document(self) -> ServiceDocument | None:
        """The own definition to publish; None if there is none."""
        return None if self.own is None else self.own.document

    @property
    def published(self) -> ServiceState | None:
        """The own state to publish; None if there is none."""
        if self.check is None:
            return self.reported
        return self.check.state if self.check.has_vote else None

    @property
    def reports_here(self) -> bool:
        return self.own is not None and self.own.definition.probe_config is None

    @property
    def is_checked(self) -> bool:
        """By this replica or another one."""
        return self.check is not None or (self.made_from is not None and self.made_from.document.is_checked)


class Observer(NamedTuple):
    """Reads the records as a replica sees them: its own states without delay, those of others from the registry."""

    replica: str
    owner: str
    view: RegistryView
    reception: RegistryReception = RegistryReception()

    def shared(self, record: ServiceRecord) -> SharedService | None:
        """The service as in the registry after the next writes of this replica: etcd may be away for long.

        None for an own service as long as only the cache is known: who checks it is in the registry.
        """
        shared, document = self.view.service(record.id), record.document
        if shared is None or (self.view.is_cached and record.own is not None):
            return None
        if document is None:
            owners = tuple(owner for owner in shared.owners if owner != self.owner)
            return shared._replace(owners=owners) if owners else None
        if document != self.view.definition(record.id, self.owner):
            owners = tuple(sorted({*shared.owners, self.owner}))
            return shared._replace(definition=document, owners=owners)
        return shared

    def observed(self, record: ServiceRecord, now_s: float) -> tuple[ObservedState, ...]:
        """The states by all who publish one, this replica included."""
        own = self._own_observation(record, now_s)
        return (*(() if own is None else (own,)), *self._others(record))

    def _others(self, record: ServiceRecord) -> Iterator[ObservedState]:
        for state in (*self.view.observed_by_all(record.id), *self.view.reports(record.id)):
            if state.observer != self.replica:
                known = record.received.get(state.observer)
                yield state if known is None else state._replace(latest_s=known.at_s)

    def published(self, record: ServiceRecord) -> list[ObservedState]:
        """The states in the registry, what an earlier process of this replica has left included."""
        return [state for state in self.view.observed_by_all(record.id) if state.source == record.source]

    def decide(self, record: ServiceRecord, before: ServiceState, now_s: float) -> ServiceState | None:
        """The state that follows from what is observed. None: the node keeps the state that it has."""
        if record.observers == (self.replica,) and record.check is not None:
            return self._alone(record, before, now_s) if self._has_lost_others(record, now_s) else record.published
        shared = self.shared(record)
        if shared is None:
            return None
        votes, may_be_alone = self._votes(record, shared, now_s), self.reception.is_lost and record.check is not None
        merged = merged_state(shared, votes, len(record.observers), now_s + EARLY_S if may_be_alone else now_s)
        if merged is None:
            return self._alone(record, before, now_s) if may_be_alone else None
        return service_state(merged, before, now_s)

    def _has_lost_others(self, record: ServiceRecord, now_s: float) -> bool:
        """Whether other replicas ought to check the service, too, and if one did now, it would not be known."""
        document = record.document if record.made_from is None else record.made_from.document
        if document is None or document.observers == 1:
            return False
        return now_s + EARLY_S >= self.reception.until_s + document.valid_s

    def _alone(self, record: ServiceRecord, before: ServiceState, now_s: float) -> ServiceState | None:
        """The state by the own checks, marked. What the others saw fail, and this replica did not, stays Down."""
        state = record.published
        if state is None:
            return None
        if before.status is Status.DOWN is not state.status and state.since_s <= before.since_s:
            reason = f"the registry is unreachable, and only {self.replica} sees {state.status.value}"
            return still_down(before, reason, ReasonCode.REGISTRY_LOST, now_s)
        reason = f"{state.reason} (seen by {self.replica} alone: the registry is unreachable)".lstrip()
        code = ReasonCode.UNCONFIRMED if state.status is Status.UP else state.code
        return state._replace(reason=truncate(reason, MAX_REASON_CHARS), code=code)

    # ---- reports

    def note_reporter(self, record: ServiceRecord, now_s: float) -> bool:
        """Remember where the newest report arrived. Returns whether that was elsewhere than before."""
        self._note_received(record, now_s)
        before, ended = record.reporter, self.view.ended_report(record.id)
        remembered = [
            each for each in (ended, self._missing_report(record)) if each and not self._is_replaced(record, each)
        ]
        newest = max((*self.observed(record, now_s), *remembered), key=report_order, default=None)
        if newest is None or (before is not None and newest is before.report):
            return False
        is_client = newest.observer != self.replica and not newest.source
        was_there = before is not None and before.report.observer == newest.observer
        ended_instance = before.instance if before is not None and was_there else ""
        instance = ended_instance if newest is ended else self._instance(newest.observer)
        record.reporter = Reporter(newest, is_client, instance)
        record.has_moved |= before is not None and not was_there
        return before is None or _place(before) != _place(record.reporter)

    def _note_received(self, record: ServiceRecord, now_s: float) -> None:
        for state in self._others(record):
            known = record.received.get(state.observer)
            is_same = known is not None and known.mod_revision == state.mod_revision
            if known is None or not is_same or report_order(state)[0] > known.at_s:  # another report of the same status
                record.received[state.observer] = Received(state.mod_revision, now_s)

    def is_run_overdue(self, record: ServiceRecord, service: Service, now_s: float) -> bool:
        """Whether the start of a run was told to this replica, and nobody was told of its end since."""
        started_at_s, grace_s = record.run_started_at_s, service.policy.grace_s
        if started_at_s is None or grace_s is None:
            return False
        self._note_received(record, now_s)
        if self.reception.is_lost or now_s < started_at_s + grace_s:
            return False
        return all(latest_s(report) < started_at_s for report in self.observed(record, now_s))

    def is_outdated(self, record: ServiceRecord, now_s: float) -> bool:
        """Whether the report to this replica contradicts a newer one to another."""
        own = None if record.is_checked else self._own_observation(record, now_s)
        return own is not None and is_outdated(own, self._others(record))

    def lost_down(self, record: ServiceRecord) -> bool:
        """Whether the service is Down by a report that nobody publishes any more."""
        missing = None if record.is_checked else self._missing_report(record)
        return missing is not None and missing.status is Status.DOWN

    def _missing_report(self, record: ServiceRecord) -> ObservedState | None:
        """The newest report, if nobody publishes it any more: the replica that had received it is lost."""
        reporter = record.reporter
        if reporter is None or reporter.is_client or reporter.report.observer == self.replica:
            return None
        return None if self._is_replaced(record, reporter.report) else reporter.report

    def _is_replaced(self, record: ServiceRecord, report: ObservedState) -> bool:
        """Whether the process that had received the report is live: then what it publishes is from its newest report,
        and if it publishes nothing, it has withdrawn this one.
        """
        reporter = record.reporter
        if reporter is None or reporter.report.observer != report.observer:
            return False
        return reporter.instance != "" and self._instance(report.observer) == reporter.instance

    def _instance(self, replica: str) -> str:
        """Empty if the replica is not live."""
        document = self.view.replicas.get(replica)
        return "" if document is None else document.instance

    def receives_itself(self, record: ServiceRecord) -> bool:
        """Whether the reports come to this replica, and did not stop coming only because it did not listen."""
        reporter = record.reporter
        if reporter is None or reporter.is_client or reporter.report.observer != self.replica:
            return False
        reception = self.reception
        if record.has_moved:  # a report may have come elsewhere while the registry was lost, and is not there yet
            listening_since_s = math.inf if reception.is_lost else max(reception.since_s, reception.listening_since_s)
        else:
            listening_since_s = reception.listening_since_s
        return report_order(reporter.report)[0] >= listening_since_s

    def is_alone(self, record: ServiceRecord, shared: SharedService) -> bool:
        """Whether nobody else has the service, or had it when the last report came: etcd may have lost the others."""
        reporter = record.reporter
        is_elsewhere = reporter is not None and not reporter.is_client and reporter.report.observer != self.replica
        return shared.owners == (self.owner,) and not is_elsewhere

    def is_silence_received(
        self, record: ServiceRecord, shared: SharedService, state: ServiceState, now_s: float
    ) -> bool:
        """Whether a report would be known here, wherever it had arrived, so that this replica applies the ttl.

        May set `heard_since_s` and `silence_due_at_s`.
        """
        if self.is_alone(record, shared) or self.receives_itself(record):
            return True
        self._note_return(record, shared, now_s)
        reporter, reception = record.reporter, self.reception
        has_clients = any(replica_of(owner) is None for owner in shared.owners)
        if self._is_elsewhere(reporter) or not (has_clients or self.owner in shared.owners):
            return False  # the other replica applies the ttl; while it is lost, nobody knows
        # While the registry is lost, and for a ttl after it, a service that does not report may not be able to.
        if state.code == ReasonCode.TTL_EXPIRED and state.since_s <= reception.until_s:
            return True
        if reception.is_lost:
            return False
        since_s = max(reception.since_s, record.heard_since_s)
        due_at_s = since_s + shared.definition.valid_s
        at_s = -math.inf if reporter is None else report_order(reporter.report)[0]
        if max(state.registered_at_s, at_s) >= since_s or now_s >= due_at_s:
            return True
        record.silence_due_at_s = due_at_s
        return False

    def _is_elsewhere(self, reporter: Reporter | None) -> bool:
        """Whether another replica receives the reports, or has done so and is lost."""
        if reporter is None or reporter.is_client or reporter.is_forgotten:
            return False
        return reporter.report.observer != self.replica

    def _note_return(self, record: ServiceRecord, shared: SharedService, now_s: float) -> None:
        """Of the replica that had received the newest report: the new process knows nothing of it. So all that have the
        service wait for the next report. They also do if that replica has the service no more.
        """
        reporter = record.reporter
        if reporter is None or not self._is_elsewhere(reporter):
            return
        name = reporter.report.observer
        if self._instance(name) not in ("", reporter.instance) or name not in shared.owner_replicas:
            record.reporter, record.heard_since_s = reporter._replace(is_forgotten=True), now_s

    def set_renewal(
        self, record: ServiceRecord, policy: Policy, state: ServiceState, now_s: float, *, is_decided: bool
    ) -> None:
        """When newer evidence of the others is passed on to the node next."""
        record.renewal_due_at_s, record.is_undecided = math.inf, False
        valid_s = policy.stale_after_s or policy.ttl_s
        if valid_s is None or record.observers == (self.replica,):
            return
        is_waiting = not is_decided and (state.status is Status.INITIALIZING or state_machine.is_stale(state))
        record.is_undecided = is_waiting or self._is_contradicted(record, state)
        if not is_waiting:
            at_s = now_s if state.status is Status.INITIALIZING else evidence_at_s(state)
            record.renewal_due_at_s = renewal_due_at_s(at_s, valid_s)

    def _is_contradicted(self, record: ServiceRecord, state: ServiceState) -> bool:
        """Whether others publish another status than that of the node: newer evidence for it counts at once."""
        return any(other.status is not state.status for other in self.published(record))

    def _votes(self, record: ServiceRecord, shared: SharedService, now_s: float) -> Sequence[ObservedState]:
        if not shared.definition.is_checked:
            missing = self._missing_report(record)
            return (*self.observed(record, now_s), *(() if missing is None else (missing,)))
        found = (
            self._own_observation(record, now_s) if name == self.replica else self.view.observed(name, record.id)
            for name in record.observers
        )
        return [state for state in found if state is not None and state.source == shared.definition.source]

    def _own_observation(self, record: ServiceRecord, now_s: float) -> ObservedState | None:
        """As the others see it, but without delay."""
        state = record.published
        if state is None:
            return None
        return ObservedState(
            self.replica,
            state.status,
            state.reason,
            state.code,
            evidence_at_s(state),
            state.since_s,
            0,
            now_s,
            record.source or NOT_SHARED,
        )


def _place(reporter: Reporter) -> tuple[str, bool, str]:
    return reporter.report.observer, reporter.is_client, reporter.instance


def evidence_at_s(state: ServiceState) -> float:
    """From when the state is valid: the last success if Up, the last evidence otherwise, or the registration."""
    at_s = state.last_ready_at_s if state.status is Status.UP else state.last_evidence_at_s
    return state.registered_at_s if at_s is None else at_s


def is_shown_otherwise(state: ServiceState, before: ServiceState) -> bool:
    return (state.status, state.code) != (before.status, before.code)


def from_registry(service: Service, valid_s: float) -> Service:
    """A service whose evidence comes from the registry, or most of it."""
    return replace(service, policy=_registry_policy(service.policy, min(valid_s, MAX_STALE_AFTER_S)))


def is_from_registry(service: Service) -> bool:
    return service.policy.stale_code == ReasonCode.REGISTRY_LOST and service.policy.ttl_s is None


def with_shared_reports(service: Service) -> Service:
    """A service whose ttl this replica applies, and whose reports may arrive elsewhere."""
    return replace(service, policy=_shared_policy(service.policy))


@lru_cache(maxsize=256)
def _shared_policy(policy: Policy) -> Policy:
    return replace(policy, stale_code=ReasonCode.REGISTRY_LOST)


@lru_cache(maxsize=256)
def _registry_policy(policy: Policy, valid_s: float) -> Policy:
    stale = replace(policy, ttl_s=None, next_run_s=None, stale_after_s=valid_s)
    return replace(stale, stale_code=ReasonCode.REGISTRY_LOST)
