"""Who observes a service, and its state as it follows from what the observers publish. Pure functions.

All replicas apply them to the same keys, so all come to the same result. These rules hold:

* A service is Up only if more than half of its observers say so, each with evidence that is still valid. It stays Up
  only until the evidence of so many of them has expired.
* If the observers have not decided, the node keeps the state that it has, until its evidence expires.
* A service that is Down stays Down while the observers disagree: only a majority for another status is news about it.
"""

from __future__ import annotations

import math
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from svcnode.core.codes import ReasonCode
from svcnode.core.model import ServiceState, Status
from svcnode.core.state_machine import without_evidence

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from svcnode.core.model import Policy
    from svcnode.sharing.view import ObservedState, SharedService


class MergedState(NamedTuple):
    """The state of a service for all replicas."""

    status: Status
    reason: str
    code: str
    evidence_at_s: float | None  # from which the state is valid for `valid_s`; None if it does not expire
    since_s: float | None  # None: unknown


def candidates(service: SharedService, replicas: Collection[str]) -> frozenset[str]:
    """The live replicas that can check a service."""
    found = frozenset(replicas)
    if service.definition.restricted:
        found &= service.owner_replicas
    if service.definition.checked_by:
        found &= set(service.definition.checked_by)
    return found


class ObserverChoice(NamedTuple):
    """The observers of a service that is checked, and the candidates at that time."""

    wanted: int
    candidates: frozenset[str]
    observers: tuple[str, ...]


def observers(service: SharedService, replicas: Collection[str]) -> tuple[str, ...]:
    """The replicas that observe a service: those that check it, or all that receive its reports."""
    if service.definition.is_checked:
        return choose_observers(service, replicas).observers
    return tuple(sorted(service.owner_replicas.intersection(replicas)))


def choose_observers(
    service: SharedService, replicas: Collection[str], before: ObserverChoice | None = None
) -> ObserverChoice:
    """Rendezvous hashing: each service ranks the replicas in its own order. So if a replica leaves, only its services
    move, and they move to all others alike.

    The choice from before saves most of the work: as long as these observers are there, only new candidates compete.
    """
    count, found = service.definition.observers, candidates(service, replicas)
    competing = found
    if before is not None and before.wanted == count and found.issuperset(before.observers):
        competing = found - before.candidates | {*before.observers}
    ranked = sorted(competing, key=lambda replica: (_weight(replica, service.id), replica))
    return ObserverChoice(count, found, tuple(ranked[: -count - 1 : -1]))


def _weight(replica: str, service_id: str) -> bytes:
    return blake2b(f"{replica}\0{service_id}".encode(), digest_size=8).digest()


def merged_state(
    service: SharedService, states: Sequence[ObservedState], observer_count: int, now_s: float
) -> MergedState | None:
    """From the states of the observers, in their order, or from all reports. None: they have not decided."""
    definition = service.definition
    if definition.fixed_status is not None:
        return MergedState(definition.fixed_status, "set in the configuration", ReasonCode.FIXED, None, None)
    if not definition.is_checked:
        return newest_report(states, definition.valid_s, now_s)
    return majority(states, observer_count, definition.valid_s, now_s)


def renewal_due_at_s(evidence_at_s: float, valid_s: float) -> float:
    """Until then, newer evidence for the same status need not be passed on: what is known is valid for long enough."""
    return evidence_at_s + valid_s / 3


def majority(states: Sequence[ObservedState], observer_count: int, valid_s: float, now_s: float) -> MergedState | None:
    """The status that more than half of the observers have; None as long as missing ones could still decide.

    `states` are in the order of the observers, so that all replicas show the same reason.
    """
    votes = [(at_s, state) for state in states if (at_s := state.evidence_at_s) is not None and now_s < at_s + valid_s]
    needed = observer_count // 2 + 1
    most = 0
    for status in Status:
        agreeing = [(at_s, state) for at_s, state in votes if state.status is status]
        most = max(most, len(agreeing))
        if len(agreeing) >= needed:
            evidence_at_s = sorted((at_s for at_s, _ in agreeing), reverse=True)[needed - 1]
            return _merged([state for _, state in agreeing], evidence_at_s, needed)
    if not votes or most + observer_count - len(votes) >= needed:
        return None
    seen = ", ".join(f"{state.observer} {state.status.value}" for _, state in votes)
    reason = f"the observers disagree: {seen}"
    return MergedState(Status.INITIALIZING, reason, ReasonCode.OBSERVERS_DISAGREE, None, None)


def _merged(agreeing: Sequence[ObservedState], evidence_at_s: float, needed: int) -> MergedState:
    """The status holds since the observer agreed that made the majority."""
    first = agreeing[0]
    since = sorted(state.since_s for state in agreeing if state.since_s is not None)
    since_s = since[needed - 1] if len(since) >= needed else None
    return MergedState(first.status, first.reason, first.code, evidence_at_s, since_s)


def known_down(states: Sequence[ObservedState]) -> ObservedState | None:
    """What most of those say who publish a state, if it is Down, however old it is: nothing better is known."""
    down = [state for state in states if state.status is Status.DOWN]
    return down[0] if 2 * len(down) > len(states) else None


def continued_down(known: ObservedState, own: ServiceState, policy: Policy, now_s: float) -> ServiceState | None:
    """The state of a service that is Down by the registry when this replica begins to know it: its start improves
    nothing. Successes so far count towards the recovery. None if the own checks have decided otherwise.
    """
    is_not_ready = (
        own.status is Status.INITIALIZING and own.last_evidence_at_s is not None and not own.failures_in_a_row
    )
    if own.status is Status.DOWN or own.ready_in_a_row >= policy.rise or is_not_ready:
        return None
    since_s = now_s if known.since_s is None else min(known.since_s, now_s)
    return own._replace(
        status=Status.DOWN,
        reason=known.reason,
        code=known.code,
        since_s=since_s,
        first_failure_at_s=since_s,
        known_before=None,
    )


def newest_report(reports: Sequence[ObservedState], valid_s: float, now_s: float) -> MergedState | None:
    """Of a service that reports by itself. A report of unknown time is older than the others, and is never Up. A report
    of Down that may be newer than one of Up counts: nobody knows exactly when the reports to others were made.

    When a report of Up has expired, whoever has found the service Down since that report is right. The ttl is applied
    by the node, as to all states. A service that is Down, maybe because no report comes, is Down for as long as its
    observer has this state.
    """
    newest = max(reports, key=report_order, default=None)
    if newest is None:
        return None
    at_s = report_order(newest)[0]
    if newest.status is Status.UP and at_s > -math.inf:
        maybe_newer = [each for each in reports if _is_reported_down(each) and latest_s(each) >= at_s]
        if maybe_newer:
            return _reported(max(maybe_newer, key=report_order), valid_s)
    if newest.status is Status.UP and now_s >= at_s + valid_s:
        down = [each for each in reports if each.status is Status.DOWN]
        later = [each for each in down if each.since_s is not None and each.since_s >= at_s > -math.inf]
        return _reported(max(later, key=report_order), valid_s) if later else None
    return _reported(newest, valid_s)


def _is_reported_down(report: ObservedState) -> bool:
    """Not by silence, which a newer heartbeat elsewhere ends, whenever it was noticed."""
    return report.status is Status.DOWN and report.code != ReasonCode.TTL_EXPIRED


def latest_s(report: ObservedState) -> float:
    """When it was made, at the latest."""
    return report_order(report)[0] if report.latest_s is None else report.latest_s


def is_outdated(own: ObservedState, others: Iterable[ObservedState]) -> bool:
    """Whether the own report says something else than one that is newer, without doubt."""
    at_s = report_order(own)[0]
    return any(
        each.status is not own.status and each.code != ReasonCode.TTL_EXPIRED and report_order(each)[0] > at_s
        for each in others
    )


def _reported(report: ObservedState, valid_s: float) -> MergedState:
    """Down is valid for as long as its observer has it. It is dated a while before that: the next report may have been
    sent already, and a node does not take one that is older than what it knows.
    """
    at_s = report.evidence_at_s
    if report.status is Status.DOWN and report.known_at_s is not None:
        known_s = report.known_at_s - valid_s / 6
        at_s = known_s if at_s is None else max(known_s, at_s)
    return MergedState(report.status, report.reason, report.code, at_s, report.since_s)


def report_order(report: ObservedState) -> tuple[float, int]:
    """Sorts reports from the oldest to the newest."""
    at_s = report.evidence_at_s
    return (float("-inf") if at_s is None else at_s, report.mod_revision)


def still_down(before: ServiceState, reason: str, code: str, now_s: float) -> ServiceState:
    """Its reason says once why nothing better is known."""
    return before if before.code == code else without_evidence(before, reason, code, now_s)


def service_state(merged: MergedState, before: ServiceState, now_s: float) -> ServiceState:
    """The state of the service in the node of this replica, from the one that it has."""
    if merged.code == ReasonCode.OBSERVERS_DISAGREE and before.status is Status.DOWN:
        return still_down(before, merged.reason, merged.code, now_s)
    is_same = merged.status is before.status
    since_s = before.since_s if is_same else now_s if merged.since_s is None else min(merged.since_s, now_s)
    at_s = before.last_evidence_at_s if merged.evidence_at_s is None else merged.evidence_at_s
    return ServiceState(
        merged.status,
        merged.reason,
        merged.code,
        since_s,
        before.registered_at_s,
        last_ready_at_s=at_s if merged.status is Status.UP else before.last_ready_at_s,
        last_evidence_at_s=at_s,
        first_failure_at_s=since_s if merged.status is Status.DOWN else None,
    )
