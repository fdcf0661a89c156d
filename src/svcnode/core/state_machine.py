"""How evidence becomes a state, and states become the health of the node.

Pure functions: time is passed in, nothing is remembered here. Two ideas carry the rules.

* `as_of` is the only place where silence is judged. It is applied both before new evidence is weighed and
  whenever a state is read, so what a client sees and what the next verdict builds on are the same belief.
* Whatever is Up must have a success behind it that is newer than `stale_after_s`; failures that are still being
  counted do not keep a green light on for longer than that.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, assert_never

from svcnode.core.codes import ReasonCode
from svcnode.core.model import (
    Condition,
    Evidence,
    Health,
    Impact,
    Outcome,
    Policy,
    Service,
    ServiceState,
    Status,
    Tally,
    Verdict,
)

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


def next_state(state: ServiceState, evidence: Evidence, policy: Policy) -> ServiceState:
    """The state after this evidence; evidence older than what is already counted, or than the service, is nothing."""
    return apply_evidence(as_of(state, evidence.at_s, policy), evidence, policy)


def apply_evidence(state: ServiceState, evidence: Evidence, policy: Policy) -> ServiceState:
    """As `next_state`, for a state in which silence has been judged already."""
    if evidence.at_s < _last_seen_at_s(state):
        return state
    match evidence.verdict.outcome:
        case Outcome.READY:
            return _after_ready(state, evidence, policy)
        case Outcome.UNKNOWN:
            return state
        case Outcome.NOT_READY:
            return _after_not_ready(state, evidence)
        case Outcome.FAILED:
            return _after_failure(state, evidence, policy)
        case outcome:
            assert_never(outcome)


def _after_ready(state: ServiceState, evidence: Evidence, policy: Policy) -> ServiceState:
    ready_in_a_row = state.ready_in_a_row + 1
    is_still_down = state.status is Status.DOWN and ready_in_a_row < policy.rise
    return _with_evidence(
        state,
        evidence,
        status=Status.DOWN if is_still_down else Status.UP,
        cause=state if is_still_down else evidence.verdict,
        ready_in_a_row=ready_in_a_row,
        last_ready_at_s=evidence.at_s,
    )


def _after_not_ready(state: ServiceState, evidence: Evidence) -> ServiceState:
    return _with_evidence(state, evidence, status=Status.INITIALIZING, cause=evidence.verdict)


def _after_failure(state: ServiceState, evidence: Evidence, policy: Policy) -> ServiceState:
    failures_in_a_row = state.failures_in_a_row + 1
    is_enough = failures_in_a_row >= policy.fall and not _is_in_start_period(state, evidence.at_s, policy)
    status = Status.DOWN if is_enough else state.status
    return _with_evidence(
        state,
        evidence,
        status=status,
        # A service that is still Up keeps its reason; otherwise the failure is the reason.
        cause=state if status is Status.UP else evidence.verdict,
        failures_in_a_row=failures_in_a_row,
    )


def _is_in_start_period(state: ServiceState, now_s: float, policy: Policy) -> bool:
    return state.status is Status.INITIALIZING and now_s - state.registered_at_s < policy.start_period_s


def _with_evidence(  # noqa: PLR0913  each is a field
    state: ServiceState,
    evidence: Evidence,
    *,
    status: Status,
    cause: ServiceState | Verdict,
    ready_in_a_row: int = 0,
    failures_in_a_row: int = 0,
    last_ready_at_s: float | None = None,
) -> ServiceState:
    """By position, since every check ends here and names take twice as long."""
    return ServiceState(
        status,
        cause.reason,
        cause.code,
        state.since_s if status is state.status else evidence.at_s,
        state.registered_at_s,
        ready_in_a_row,
        failures_in_a_row,
        state.last_ready_at_s if last_ready_at_s is None else last_ready_at_s,
        evidence.at_s,
    )


def as_of(state: ServiceState, now_s: float, policy: Policy) -> ServiceState:
    """The state as it must be believed at `now_s`: evidence that has gone stale no longer carries it."""
    expiry_s = expires_at_s(state, policy)
    if now_s < expiry_s:
        return state
    if policy.ttl_s is not None:
        status, code, reason = Status.DOWN, ReasonCode.TTL_EXPIRED, f"no heartbeat within the ttl of {policy.ttl_s:g} s"
    else:
        missing = "success" if state.status is Status.UP else "evidence"
        status, code = Status.INITIALIZING, ReasonCode.STALE
        reason = f"stale: no {missing} for {policy.stale_after_s:g} s"
    return state._replace(status=status, reason=reason, code=code, since_s=expiry_s, ready_in_a_row=0)


def expires_at_s(state: ServiceState, policy: Policy) -> float:
    """The moment from which silence alone changes the status; infinity when it never will."""
    if policy.ttl_s is not None:
        return math.inf if state.status is Status.DOWN else _last_seen_at_s(state) + policy.ttl_s
    # Initializing has nothing less certain to fall back to.
    if policy.stale_after_s is None or state.status is Status.INITIALIZING:
        return math.inf
    carried_by_s = state.last_ready_at_s if state.status is Status.UP else state.last_evidence_at_s
    assert carried_by_s is not None, "a service is Up only after a success, and Down only after a failure"
    return carried_by_s + policy.stale_after_s


def _last_seen_at_s(state: ServiceState) -> float:
    """When the service last gave a sign of life, the first being that it was registered."""
    return state.registered_at_s if state.last_evidence_at_s is None else state.last_evidence_at_s


def is_change_pending(state: ServiceState) -> bool:
    """Whether checks in a row are being counted that may end in another status."""
    match state.status:
        case Status.UP | Status.INITIALIZING:
            return state.failures_in_a_row > 0
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


def service_tally(impact: Impact, status: Status) -> Tally:
    """What one service adds to the tally."""
    if impact is Impact.NONE:
        return Tally()
    is_down = status is Status.DOWN
    return Tally(
        counted=1,
        up=int(status is Status.UP),
        down=int(is_down),
        critical_down=int(is_down and impact is Impact.CRITICAL),
    )


def add_tallies(left: Tally, right: Tally) -> Tally:
    return Tally(
        left.counted + right.counted,
        left.up + right.up,
        left.down + right.down,
        left.critical_down + right.critical_down,
    )


def subtract_tallies(left: Tally, right: Tally) -> Tally:
    return Tally(
        left.counted - right.counted,
        left.up - right.up,
        left.down - right.down,
        left.critical_down - right.critical_down,
    )


def node_health(services: Tally, condition: Condition) -> Health:
    every_service_is_down = services.counted > 0 and services.down == services.counted
    if condition.draining or condition.issues or services.critical_down or every_service_is_down:
        return Health.UNHEALTHY
    if condition.starting or services.up < services.counted:
        return Health.PARTIAL
    return Health.HEALTHY


# ---- the same in words

_MAX_NAMED_IDS = 5


def node_health_with_reason(services: Sequence[tuple[Service, Status]], condition: Condition) -> tuple[Health, str]:
    """The same as `node_health`, and everything that alone would be enough for it."""
    counted = [(service, status) for service, status in services if service.impact is not Impact.NONE]
    down = [service for service, status in counted if status is Status.DOWN]
    if causes := [*_causes_of_unhealthy(len(counted), down, condition)]:
        return Health.UNHEALTHY, "; ".join(causes)
    if causes := [*_causes_of_partial(counted, condition)]:
        return Health.PARTIAL, "; ".join(causes)
    return Health.HEALTHY, _healthy_reason(len(services), len(counted))


def _causes_of_unhealthy(counted: int, down: Sequence[Service], condition: Condition) -> Iterator[str]:
    if condition.draining:
        yield "it is draining, to shut down"
    for issue in condition.issues:
        yield f"its program reports an issue: {issue}"
    if critical := [service.id for service in down if service.impact is Impact.CRITICAL]:
        yield f"{_join_ids(critical)} {_is_or_are(critical)} Down, and critical"
    if down and len(down) == counted and len(critical) < counted:
        ids = [service.id for service in down]
        yield f"{_join_ids(ids)} {_is_or_are(ids)} Down, and no other service counts"


def _causes_of_partial(counted: Sequence[tuple[Service, Status]], condition: Condition) -> Iterator[str]:
    if condition.starting:
        yield "it is still starting"
    for wanted in (Status.DOWN, Status.INITIALIZING):
        if ids := [service.id for service, status in counted if status is wanted]:
            yield f"{_join_ids(ids)} {_is_or_are(ids)} {wanted.value}"


def _healthy_reason(services: int, counted: int) -> str:
    if not services:
        return "no services are registered"
    if not counted:
        return "none of its services count (their impact is none)"
    if counted == 1:
        return f"the one service{'' if services == 1 else ' that counts'} is Up"
    return f"all {counted} services{'' if counted == services else ' that count'} are Up"


def _join_ids(ids: Sequence[str]) -> str:
    named = list(ids[:_MAX_NAMED_IDS])
    if len(ids) > _MAX_NAMED_IDS:
        named.append(f"{len(ids) - _MAX_NAMED_IDS} more")
    return named[0] if len(named) == 1 else f"{', '.join(named[:-1])} and {named[-1]}"


def _is_or_are(ids: Sequence[str]) -> str:
    return "is" if len(ids) == 1 else "are"
