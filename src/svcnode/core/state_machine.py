"""The state machine: evidence changes the state of a service, states determine the health of the node.

Pure functions; the time is a parameter. These rules hold everywhere:

* Only `as_of` expires evidence. It runs before new evidence is applied and whenever a state is read, so clients see
  the same state that the next verdict changes.
* A service is Up only if its last success is newer than `stale_after_s`. Failures that are still below `fall` do not
  extend this.
* Missing evidence never improves anything: an Up service becomes Initializing, a Down one stays Down.
* A service that fails too often, although not `fall` times in a row, or that is Down again and again, is not Up: it is
  unreliable (`RecentFailures`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from operator import add, sub
from typing import TYPE_CHECKING, assert_never

from svcnode.core.codes import ReasonCode
from svcnode.core.model import (
    MAX_STALE_AFTER_S,
    NO_FAILURES,
    Condition,
    Evidence,
    Health,
    Impact,
    KnownBefore,
    Outcome,
    Policy,
    RecentFailures,
    Service,
    ServiceState,
    Status,
    Tally,
    Verdict,
)
from svcnode.core.text import MAX_REASON_CHARS, truncate
from svcnode.core.units import format_duration, format_limit, utc_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


def initial_state(now_s: float) -> ServiceState:
    return ServiceState(
        status=Status.INITIALIZING,
        reason="no evidence yet",
        code=ReasonCode.NO_EVIDENCE,
        since_s=now_s,
        registered_at_s=now_s,
    )


def with_memory(state: ServiceState, known: KnownBefore) -> ServiceState:
    """The state of a service of which something was known before the restart. It is not evidence: the status stays.

    If the service was Down, the next failure confirms it, and it has been Down since then. Memory that comes after a
    check has succeeded, or has decided the status, is not used.
    """
    is_undecided = state.code in _WITHOUT_EVIDENCE or state.failures_in_a_row > 0
    is_new = state.status is Status.INITIALIZING and state.last_ready_at_s is None and is_undecided
    return state._replace(known_before=known) if is_new else state


def _known_down_since_s(state: ServiceState) -> float | None:
    """Since when it was Down before the restart, if nothing has been known since then."""
    known = state.known_before
    return known.since_s if known is not None and known.status is Status.DOWN else None


_WITHOUT_EVIDENCE = frozenset({ReasonCode.NO_EVIDENCE, ReasonCode.CANNOT_CHECK})


def next_state(state: ServiceState, evidence: Evidence, policy: Policy) -> ServiceState:
    """The state after this evidence. Evidence older than the last evidence or than the registration is ignored."""
    known_at_s = evidence.at_s + evidence.duration_s
    return apply_evidence(as_of(state, known_at_s, policy), evidence, policy, known_at_s)


def apply_evidence(state: ServiceState, evidence: Evidence, policy: Policy, now_s: float) -> ServiceState:
    """As `next_state`, for a state to which `as_of(now_s)` has been applied. A new status is dated `now_s`."""
    if evidence.at_s < _last_seen_at_s(state):
        return state
    match evidence.verdict.outcome:
        case Outcome.READY:
            return _after_ready(state, evidence, policy, now_s)
        case Outcome.UNKNOWN:
            return _after_unknown(state, evidence.verdict)
        case Outcome.NOT_READY:
            return _after_not_ready(state, evidence, policy, now_s)
        case Outcome.FAILED:
            return _after_failure(state, evidence, policy, now_s)
        case outcome:
            assert_never(outcome)


def _after_ready(state: ServiceState, evidence: Evidence, policy: Policy, now_s: float) -> ServiceState:
    ready_in_a_row = state.ready_in_a_row + 1
    if state.status is Status.DOWN and ready_in_a_row < policy.rise:
        return state._replace(
            ready_in_a_row=ready_in_a_row,
            failures_in_a_row=0,
            last_ready_at_s=evidence.at_s,
            last_evidence_at_s=evidence.at_s,
            host_fault="",
        )
    recent = _after_success(state.recent_failures, evidence, policy)
    if recent.is_unreliable:
        status, cause = Status.INITIALIZING, _unreliable_verdict(recent, policy)
    else:
        status, cause = Status.UP, evidence.verdict
    # Positional: every check runs this, and keywords take twice as long.
    return ServiceState(
        status,
        cause.reason,
        cause.code,
        state.since_s if status is state.status else now_s,
        state.registered_at_s,
        ready_in_a_row,
        0,
        evidence.at_s,
        evidence.at_s,
        None,
        recent,
    )


def _after_not_ready(state: ServiceState, evidence: Evidence, policy: Policy, now_s: float) -> ServiceState:
    return ServiceState(
        Status.INITIALIZING,
        evidence.verdict.reason,
        evidence.verdict.code,
        state.since_s if state.status is Status.INITIALIZING else now_s,
        state.registered_at_s,
        last_ready_at_s=state.last_ready_at_s,
        last_evidence_at_s=evidence.at_s,
        recent_failures=_after_success(state.recent_failures, evidence, policy),
    )


def _after_failure(state: ServiceState, evidence: Evidence, policy: Policy, now_s: float) -> ServiceState:
    failures_in_a_row = state.failures_in_a_row + 1
    before_run = state.failures_before_run if state.failures_in_a_row else state.recent_failures
    is_counted = _counts_failures(state, before_run, policy)
    known_down_s = _known_down_since_s(state)
    is_outage = failures_in_a_row >= policy.fall and not _is_in_start_period(state, evidence.at_s, policy)
    if is_outage or known_down_s is not None:
        status = Status.DOWN
        recent = before_run = _after_outage(before_run, evidence, policy, is_new=is_counted)
    else:
        uncounted = state.recent_failures if policy.window else NO_FAILURES
        recent = _after_counted_failure(state, evidence, policy) if is_counted else uncounted
        status = Status.INITIALIZING if recent.is_unreliable and state.status is Status.UP else state.status
    if status is Status.UP:
        cause: ServiceState | Verdict = state  # a service that is still Up keeps its reason
    elif status is Status.INITIALIZING and recent.is_unreliable:
        cause = _unreliable_verdict(recent, policy, evidence.verdict)
    else:
        cause = evidence.verdict
    begun_s = now_s if known_down_s is None else known_down_s
    return ServiceState(
        status,
        cause.reason,
        cause.code,
        state.since_s if status is state.status else begun_s,
        state.registered_at_s,
        0,
        failures_in_a_row,
        state.last_ready_at_s,
        evidence.at_s,
        begun_s if state.first_failure_at_s is None else min(begun_s, state.first_failure_at_s),
        recent,
        before_run,
        known_before=state.known_before if status is Status.INITIALIZING else None,
    )


# The fault is on this machine: every check that needs the same has it.
_HOST_FAULTS = {
    ReasonCode.RESOURCE_EXHAUSTED: "",  # the reason says what there is too little of
    ReasonCode.RESOLVER_FAILED: "the DNS resolver does not answer",
    ReasonCode.NETWORK_UNREACHABLE: "it has no route",
}
_NOT_RUN = "check not run: "


def host_fault(verdict: Verdict) -> str:
    """What keeps this machine from checking, in the same words for all services; "" if it is not to blame."""
    if verdict.outcome is not Outcome.UNKNOWN or verdict.code not in _HOST_FAULTS:
        return ""
    text = _HOST_FAULTS[ReasonCode(verdict.code)] or verdict.reason.removeprefix(_NOT_RUN)
    return f"this host cannot check ({text})"


def _after_unknown(state: ServiceState, verdict: Verdict) -> ServiceState:
    """It says nothing about the service. If the evidence expires, or there was none, it says why."""
    fault = host_fault(verdict)
    if fault and state.code == ReasonCode.NO_EVIDENCE:
        return state._replace(reason=f"{fault}: {state.reason}", code=ReasonCode.CANNOT_CHECK, host_fault=fault)
    return state if fault == state.host_fault else state._replace(host_fault=fault)


def after_start(state: ServiceState, at_s: float) -> ServiceState:
    """A job has started. The status stays; the next evidence ends the run. Further starts do not extend its time."""
    return state if state.job_started_at_s is not None else state._replace(job_started_at_s=at_s)


def _is_in_start_period(state: ServiceState, now_s: float, policy: Policy) -> bool:
    was_never_up = state.status is Status.INITIALIZING and state.last_ready_at_s is None
    return was_never_up and now_s - state.registered_at_s < policy.start_period_s


# ---- failures that are not in a row


def _after_success(recent: RecentFailures, evidence: Evidence, policy: Policy) -> RecentFailures:
    """After a check that did not fail."""
    if recent is NO_FAILURES or not policy.window:
        return NO_FAILURES
    failures = recent.failures << 1 & ((1 << policy.window) - 1)
    repeated_at_s = _within_window(recent.repeated_at_s, evidence.at_s, policy)
    count = max(failures.bit_count(), len(repeated_at_s))
    if not count:
        return NO_FAILURES
    return RecentFailures(failures, repeated_at_s, recent.is_unreliable and count > policy.recovery_failures)


def _counts_failures(state: ServiceState, before_run: RecentFailures, policy: Policy) -> bool:
    """Failures count from the first success on, not while the service is Down, and not before the next success."""
    if not policy.window or state.last_ready_at_s is None or state.status is Status.DOWN:
        return False
    return not before_run.repeated_at_s or state.last_ready_at_s > before_run.repeated_at_s[-1]


def _after_counted_failure(state: ServiceState, evidence: Evidence, policy: Policy) -> RecentFailures:
    recent = state.recent_failures
    failures = (recent.failures << 1 | 1) & ((1 << policy.window) - 1)
    repeated_at_s = recent.repeated_at_s
    if state.failures_in_a_row:
        assert state.last_evidence_at_s is not None, "it was a failure"
        first_at_s = (state.last_evidence_at_s,) if state.failures_in_a_row == 1 else ()
        repeated_at_s = (*repeated_at_s, *first_at_s, evidence.at_s)
    repeated_at_s = _within_window(repeated_at_s, evidence.at_s, policy)
    is_too_often = max(failures.bit_count(), len(repeated_at_s)) > policy.max_failures
    return RecentFailures(failures, repeated_at_s, recent.is_unreliable or is_too_often)


def _after_outage(before_run: RecentFailures, evidence: Evidence, policy: Policy, *, is_new: bool) -> RecentFailures:
    """An outage that ends in Down counts once, however long it is, and one alone does not make a service unreliable.

    It is one failed check, and half of the repeated failures that are allowed.
    """
    if not policy.window:
        return NO_FAILURES
    failures, repeated_at_s, is_unreliable = before_run
    if is_new:
        failures = (failures << 1 | 1) & ((1 << policy.window) - 1)
        repeated_at_s += (evidence.at_s,) * policy.outage_failures
    repeated_at_s = _within_window(repeated_at_s, evidence.at_s, policy)
    count = max(failures.bit_count(), len(repeated_at_s))
    limit = policy.recovery_failures if is_unreliable else max(1, policy.max_failures)
    return RecentFailures(failures, repeated_at_s, (is_unreliable or is_new) and count > limit)


def _within_window(repeated_at_s: tuple[float, ...], now_s: float, policy: Policy) -> tuple[float, ...]:
    return tuple(at_s for at_s in repeated_at_s if now_s - at_s < policy.window_s)[-policy.max_failures - 1 :]


def _unreliable_verdict(recent: RecentFailures, policy: Policy, failure: Verdict | None = None) -> Verdict:
    if recent.failure_count >= len(recent.repeated_at_s):
        reason = f"unreliable: {recent.failure_count} of the last {policy.window} checks failed"
    else:
        reason = f"unreliable: repeated outages in the last {policy.window_s:g} s"
    if failure is not None and failure.reason:
        reason += f"; latest: {failure.reason}"
    return Verdict(Outcome.NOT_READY, reason, ReasonCode.UNRELIABLE)


def as_of(state: ServiceState, now_s: float, policy: Policy, standstill_s: float = 0.0) -> ServiceState:
    """The state at `now_s`, with what follows if its evidence has expired: it is stale, or Down by its ttl.

    `standstill_s`: for how long this machine stood still when the evidence expired. Reports to other machines, which it
    could not receive then, may have continued.
    """
    expiry_s = expires_at_s(state, policy)
    if now_s < expiry_s:
        return state
    is_shared = policy.stale_code == ReasonCode.REGISTRY_LOST
    stood_still = f"this host stood still for {format_duration(standstill_s)}" if standstill_s else ""
    if policy.ttl_s is not None and is_shared and stood_still:
        return without_evidence(state, f"{stood_still}: no report was received", ReasonCode.CANNOT_CHECK, expiry_s)
    if policy.ttl_s is not None:
        reason, known_down_s = _overdue_reason(state, expiry_s, policy), _known_down_since_s(state)
        return state._replace(
            status=Status.DOWN,
            reason=reason,
            code=ReasonCode.TTL_EXPIRED,
            since_s=expiry_s if known_down_s is None else known_down_s,
            ready_in_a_row=0,
            known_before=None,
        )
    missing = "success" if state.status is Status.UP else "evidence"
    if is_shared:  # after a standstill, say, it may be younger than can be known
        reason = f"lost: the last {missing} from the registry may be more than {policy.stale_after_s:g} s old"
        return without_evidence(state, reason, policy.stale_code, expiry_s)
    fault = stood_still or state.host_fault
    reason = f"{fault or 'stale'}: no {missing} for {policy.stale_after_s:g} s"
    return without_evidence(state, reason, ReasonCode.CANNOT_CHECK if fault else policy.stale_code, expiry_s)


def without_evidence(state: ServiceState, reason: str, code: str, at_s: float) -> ServiceState:
    """The state from `at_s` on, when no evidence says any more whether it still holds: Down stays Down."""
    if state.status is not Status.DOWN:
        return state._replace(status=Status.INITIALIZING, reason=reason, code=code, since_s=at_s, ready_in_a_row=0)
    if state.reason:
        reason = truncate(f"{reason}; before that: {state.reason}", MAX_REASON_CHARS)
    return state._replace(reason=reason, code=code, ready_in_a_row=0)


def is_stale(state: ServiceState) -> bool:
    return state.code in (ReasonCode.STALE, ReasonCode.CANNOT_CHECK, ReasonCode.REGISTRY_LOST)


def expires_at_s(state: ServiceState, policy: Policy) -> float:
    """The time from which the state changes without new evidence; infinity if it never does."""
    if policy.ttl_s is not None:
        is_decided = state.status is Status.DOWN or state.code == ReasonCode.CANNOT_CHECK
        return math.inf if is_decided else _overdue_at_s(state, policy.ttl_s, policy.grace_s)
    is_stale_already = state.status is Status.INITIALIZING or (state.status is Status.DOWN and is_stale(state))
    if policy.stale_after_s is None or is_stale_already:
        return math.inf
    valid_from_s = state.last_ready_at_s if state.status is Status.UP else _last_seen_at_s(state)
    assert valid_from_s is not None, "a service is Up only after a success"
    return valid_from_s + policy.stale_after_s


def _overdue_at_s(state: ServiceState, ttl_s: float, grace_s: float | None) -> float:
    if grace_s is None:
        return _last_seen_at_s(state) + ttl_s
    success_due_s = _succeeded_at_s(state) + ttl_s
    return success_due_s if state.job_started_at_s is None else min(success_due_s, state.job_started_at_s + grace_s)


def with_deadline(policy: Policy, state: ServiceState, wall_offset_s: float) -> Policy:
    """The policy of a job that runs by a schedule, for a state: a success is valid until the next run and `grace_s`.

    `wall_offset_s` is added to a time of the state to get that of the wall clock. The clocks of two machines differ a
    little, so a success within the second before a run is one of that run.
    """
    if policy.run_times is None:
        return policy
    assert policy.grace_s is not None
    succeeded_s = _succeeded_at_s(state) + wall_offset_s
    next_run_s = policy.run_times.next_s(math.ceil(succeeded_s))
    valid_s = next_run_s + policy.grace_s - succeeded_s
    if policy.ttl_s is None:  # another replica receives the reports: this one only knows how long they are valid
        return replace(policy, stale_after_s=min(valid_s, MAX_STALE_AFTER_S), next_run_s=next_run_s)
    return replace(policy, ttl_s=valid_s, next_run_s=next_run_s)


def _succeeded_at_s(state: ServiceState) -> float:
    """The time of the last success, or of the registration."""
    return state.registered_at_s if state.last_ready_at_s is None else state.last_ready_at_s


def _overdue_reason(state: ServiceState, expiry_s: float, policy: Policy) -> str:
    assert policy.ttl_s is not None
    if policy.grace_s is None:
        return f"no heartbeat within the ttl of {format_limit(policy.ttl_s)}"
    if state.job_started_at_s is not None and expiry_s == state.job_started_at_s + policy.grace_s:
        return f"started, and not ended within the grace of {format_limit(policy.grace_s)}"
    if policy.run_times is not None and policy.next_run_s is not None:
        run = utc_text(policy.next_run_s)
        return f"no success of the run at {run} within the grace of {format_limit(policy.grace_s)}"
    return f"no success within the period and grace of {format_limit(policy.ttl_s)}"


def _last_seen_at_s(state: ServiceState) -> float:
    """The time of the last evidence, or of the registration."""
    return state.registered_at_s if state.last_evidence_at_s is None else state.last_evidence_at_s


def is_change_pending(state: ServiceState) -> bool:
    """Whether results are being counted towards another status.

    After a failure that is until `window` checks have not failed, and after an outage for `window_s`: only quick checks
    notice that outages follow each other.
    """
    match state.status:
        case Status.UP | Status.INITIALIZING:
            recent = state.recent_failures
            return state.failures_in_a_row > 0 or recent.failures > 0 or bool(recent.repeated_at_s)
        case Status.DOWN:
            return state.ready_in_a_row > 0
        case _:
            assert_never(state.status)


def service_health(status: Status) -> Health:
    match status:
        case Status.UP:
            return Health.HEALTHY
        case Status.INITIALIZING:
            return Health.PARTIAL
        case Status.DOWN:
            return Health.UNHEALTHY
        case _:
            assert_never(status)


def tally(services: Iterable[tuple[Impact, Status]]) -> Tally:
    total = Tally()
    for impact, status in services:
        total = add_tallies(total, service_tally(impact, status))
    return total


def service_tally(impact: Impact, status: Status, *, is_impact_lowered: bool = False) -> Tally:
    """The tally of one service."""
    if impact is Impact.NONE:
        uncounted_not_up = int(is_impact_lowered and status is not Status.UP)
        return Tally(uncounted_not_up=uncounted_not_up, registered=1, relevant=int(is_impact_lowered))
    is_down = status is Status.DOWN
    return Tally(
        counted=1,
        up=int(status is Status.UP),
        down=int(is_down),
        critical_down=int(is_down and impact is Impact.CRITICAL),
        registered=1,
        relevant=1,
    )


def add_tallies(left: Tally, right: Tally) -> Tally:
    return Tally(*map(add, left, right))


def subtract_tallies(left: Tally, right: Tally) -> Tally:
    return Tally(*map(sub, left, right))


def node_health(services: Tally, condition: Condition) -> Health:
    every_service_is_down = services.counted > 0 and services.down == services.counted
    if condition.draining or condition.issues or services.critical_down or every_service_is_down:
        return Health.UNHEALTHY
    if condition.starting or condition.caveats or services.up < services.counted or services.uncounted_not_up:
        return Health.PARTIAL
    return Health.HEALTHY


# ---- reasons

_MAX_NAMED_IDS = 5


def common_fault(states: Iterable[ServiceState]) -> str:
    """What keeps this machine from checking, if that is why there is no evidence of a service."""
    return next((state.reason.partition(": ")[0] for state in states if state.code == ReasonCode.CANNOT_CHECK), "")


def node_health_with_reason(
    services: Sequence[tuple[Service, Status]], condition: Condition, fault: str = ""
) -> tuple[Health, str]:
    """As `health_with_reason`, from all services."""
    total = Tally()
    for service, status in services:
        one = service_tally(service.impact, status, is_impact_lowered=service.is_impact_lowered)
        total = add_tallies(total, one)
    not_up = [(service, status) for service, status in services if status is not Status.UP]
    return health_with_reason(total, not_up, condition, fault)


def health_with_reason(
    total: Tally,
    not_up: Iterable[tuple[Service, Status]],
    condition: Condition,
    fault: str = "",
    *,
    with_ids: bool = True,
) -> tuple[Health, str]:
    """The health, and every cause that is sufficient for it by itself. `fault` is `common_fault` of the states.

    `total` is the tally of all services, so the cost does not depend on how many are Up. Without the ids, services are
    counted: for a place that names them elsewhere.
    """
    relevant = [(service, status) for service, status in not_up if service.affects_health]
    match health := node_health(total, condition):
        case Health.UNHEALTHY:
            reason = "; ".join(filter(None, (*_causes_of_unhealthy(total, relevant, condition, with_ids), fault)))
        case Health.PARTIAL:
            reason = "; ".join(filter(None, (fault, *_causes_of_partial(relevant, condition, with_ids))))
        case Health.HEALTHY:
            reason = _healthy_reason(total.registered, total.relevant)
        case _:
            assert_never(health)
    return health, reason


def _causes_of_unhealthy(
    total: Tally, relevant: Sequence[tuple[Service, Status]], condition: Condition, with_ids: bool
) -> Iterator[str]:
    if condition.draining:
        yield f"the node is draining: {condition.drain_reason}" if condition.drain_reason else "the node is draining"
    for issue in condition.issues:
        yield f"issue: {issue}"
    down = [service for service, status in relevant if status is Status.DOWN and service.impact is not Impact.NONE]
    if total.critical_down:
        critical = [service.id for service in down if service.impact is Impact.CRITICAL]
        yield _listed(f"critical {_services(critical)} Down", critical, with_ids)
    if total.critical_down < total.down == total.counted:
        ids = f": {_join_ids([service.id for service in down])}" if with_ids else ""
        yield f"every service that counts is Down{ids}"


def _causes_of_partial(
    relevant: Sequence[tuple[Service, Status]], condition: Condition, with_ids: bool
) -> Iterator[str]:
    if condition.starting:
        yield "the node is starting"
    yield from condition.caveats
    for bad_status in (Status.DOWN, Status.INITIALIZING):
        if ids := [service.id for service, status in relevant if status is bad_status]:
            yield _listed(f"{_services(ids)} {bad_status.value}", ids, with_ids)


def _healthy_reason(services: int, counted: int) -> str:
    if not services:
        return "no services are registered"
    if not counted:
        return "no service is counted (every impact is none)"
    if counted == 1:
        return f"the only service{'' if services == 1 else ' that counts'} is Up"
    if counted < services:
        return f"all services that count are Up ({counted} of {services})"
    return f"all {services} services are Up"


def _listed(what: str, ids: Sequence[str], with_ids: bool) -> str:
    return f"{what}: {_join_ids(ids)}" if with_ids else f"{len(ids)} {what}"


def _join_ids(ids: Sequence[str]) -> str:
    parts = list(ids[:_MAX_NAMED_IDS])
    if len(ids) > _MAX_NAMED_IDS:
        parts.append(f"{len(ids) - _MAX_NAMED_IDS} more")
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _services(ids: Sequence[str]) -> str:
    return "service" if len(ids) == 1 else "services"
