"""The rules of the state machine, one short test each; then the properties that always hold."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import groupby, pairwise, product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from svcnode.core.codes import ReasonCode
from svcnode.core.model import (
    REPORTED_POLICY,
    Condition,
    Evidence,
    Health,
    Impact,
    KnownBefore,
    Outcome,
    Policy,
    ServiceState,
    Status,
    Verdict,
)
from svcnode.core.state_machine import (
    add_tallies,
    after_start,
    as_of,
    common_fault,
    expires_at_s,
    initial_state,
    is_change_pending,
    next_state,
    node_health,
    service_health,
    service_tally,
    subtract_tallies,
    tally,
    with_memory,
)
from svcnode.core.text import MAX_REASON_CHARS

POLICY = Policy(rise=2, fall=3, start_period_s=30.0, stale_after_s=33.0)
HEARTBEAT = Policy(rise=1, fall=1, start_period_s=0.0, ttl_s=10.0)
JOB = Policy(rise=1, fall=1, start_period_s=0.0, ttl_s=110.0, grace_s=10.0)

READY = Verdict.ready("answered")
LOADING = Verdict.not_ready("loading", code=ReasonCode.STARTING)
FAILED = Verdict.failed("refused", code=ReasonCode.CONNECTION_REFUSED)
NO_ROUTE = Verdict.failed("no route", code=ReasonCode.NETWORK_UNREACHABLE)
UNKNOWN = Verdict.unknown("no descriptors", code=ReasonCode.RESOURCE_EXHAUSTED)


def state_after(*verdicts: tuple[float, Verdict], policy: Policy = POLICY) -> ServiceState:
    """The state of a service registered at 0 after these verdicts."""
    state = initial_state(0.0)
    for at_s, verdict in verdicts:
        state = next_state(state, Evidence(verdict=verdict, at_s=at_s), policy)
    return state


UP = ((0.0, READY),)
DOWN = ((40.0, FAILED), (50.0, FAILED), (60.0, FAILED))


# ---- one service

LETTERS = {"R": READY, "L": LOADING, "F": FAILED, "N": NO_ROUTE, "U": UNKNOWN}


def history_of(text: str) -> list[tuple[float, Verdict]]:
    """The verdicts of "0R 10F": ready at 0 s, failed at 10 s."""
    return [(float(word[:-1]), LETTERS[word[-1]]) for word in text.split()]


@pytest.mark.parametrize(
    ("history", "status", "cause", "since_s"),
    [
        # One ready brings a new service up; fall failures in a row take it down, also of the same time.
        ("5R", Status.UP, READY, 5.0),
        ("5R 15R", Status.UP, READY, 5.0),
        ("0R 1F 2F", Status.UP, READY, 0.0),
        ("0R 10F 20F 30F", Status.DOWN, FAILED, 30.0),
        ("0R 5F 5F 5F", Status.DOWN, FAILED, 5.0),
        ("0R 1F 2F 3U 4F", Status.DOWN, FAILED, 4.0),
        # In its start period a failure is only the reason; the first one after it counts as one of fall.
        ("1F", Status.INITIALIZING, FAILED, 0.0),
        ("1F 2F 3F 4F 29.9F", Status.INITIALIZING, FAILED, 0.0),
        ("10F 20F 30F", Status.DOWN, FAILED, 30.0),
        ("40F 50F", Status.INITIALIZING, FAILED, 0.0),
        ("1R 2F 3F 4F", Status.DOWN, FAILED, 4.0),
        ("1R 1.5L 2F 3F 4F", Status.DOWN, FAILED, 4.0),
        # A service that is not ready is initializing at once, and its failures are counted anew.
        ("40F 50F 60L 70F 80F", Status.INITIALIZING, FAILED, 0.0),
        ("0R 10L", Status.INITIALIZING, LOADING, 10.0),
        ("40F 50F 60F 70L", Status.INITIALIZING, LOADING, 70.0),
        # Rise ready in a row bring a down service up; until then it has the newest failure as reason.
        ("40F 50F 60F 70R", Status.DOWN, FAILED, 60.0),
        ("40F 50F 60F 70R 80R", Status.UP, READY, 80.0),
        ("40F 50F 60F 70R 80F 90R", Status.DOWN, FAILED, 60.0),
        ("40F 50F 60F 70N", Status.DOWN, NO_ROUTE, 60.0),
    ],
)
def test_verdicts_change_the_status(history: str, status: Status, cause: Verdict, since_s: float) -> None:
    state = state_after(*history_of(history))
    assert (state.status, state.reason, state.code, state.since_s) == (status, cause.reason, cause.code, since_s)


def test_a_service_is_initializing_until_its_first_verdict_after_its_registration() -> None:
    state = initial_state(7.0)
    assert (state.status, state.code) == (Status.INITIALIZING, ReasonCode.NO_EVIDENCE)
    assert (state.since_s, state.registered_at_s) == (7.0, 7.0)
    assert (state.last_ready_at_s, state.last_evidence_at_s) == (None, None)
    assert next_state(state, Evidence(verdict=READY, at_s=6.0), POLICY) is state


def test_a_stale_service_that_was_up_has_no_start_period() -> None:
    patient = replace(POLICY, start_period_s=1000.0)
    failures = ((100.0, FAILED), (110.0, FAILED), (120.0, FAILED))
    assert state_after((1.0, READY), *failures, policy=patient).status is Status.DOWN


def test_an_up_service_without_a_fresh_success_is_stale() -> None:
    state = as_of(state_after(*UP), 33.0, POLICY)
    assert (state.status, state.code, state.since_s) == (Status.INITIALIZING, ReasonCode.STALE, 33.0)
    assert "no success for 33 s" in state.reason
    coded = state_after((0.0, Verdict.ready(code=ReasonCode.STALE)))
    assert as_of(coded, 33.0, POLICY).status is Status.INITIALIZING, "whatever code its probe gives"


def test_a_down_service_without_fresh_evidence_stays_down_with_both_facts_as_reason() -> None:
    down = state_after(*DOWN)
    state = as_of(down, 93.0, POLICY)
    assert (state.status, state.code, state.since_s) == (Status.DOWN, ReasonCode.STALE, down.since_s)
    assert "no evidence for 33 s" in state.reason
    assert FAILED.reason in state.reason
    assert as_of(state, 1e6, POLICY) is state


@pytest.mark.parametrize(("reason", "length"), [("x" * MAX_REASON_CHARS, MAX_REASON_CHARS), ("", 27)])
def test_the_reason_of_a_stale_down_service_has_a_limit_and_may_be_one_fact(reason: str, length: int) -> None:
    failed = Verdict.failed(reason)
    state = as_of(state_after((40.0, failed), (50.0, failed), (60.0, failed)), 93.0, POLICY)
    assert state.reason.startswith("stale: no evidence for 33 s")
    assert len(state.reason) == length


@pytest.mark.parametrize("verdicts", [UP, DOWN])
def test_the_policy_sets_the_code_of_a_stale_service(verdicts: tuple[tuple[float, Verdict], ...]) -> None:
    policy = replace(POLICY, stale_code=ReasonCode.REGISTRY_LOST)
    state = as_of(state_after(*verdicts), 93.0, policy)
    assert (state.status is Status.UP, state.code) == (False, ReasonCode.REGISTRY_LOST)
    assert "more than 33 s" in state.reason
    assert as_of(state, 1e6, policy) is state


@pytest.mark.parametrize(("is_shared", "status"), [(True, Status.INITIALIZING), (False, Status.DOWN)])
def test_reports_that_this_machine_could_not_receive_from_others_are_not_missing(
    is_shared: bool, status: Status
) -> None:
    policy = replace(HEARTBEAT, stale_code=ReasonCode.REGISTRY_LOST if is_shared else ReasonCode.STALE)
    up = next_state(initial_state(0.0), Evidence(READY, 5.0), policy)
    state = as_of(up, 60.0, policy, standstill_s=50.0)
    assert state.status is status
    assert as_of(state, 1e6, policy) is state
    assert as_of(up, 60.0, policy).code == ReasonCode.TTL_EXPIRED, "without a standstill"


def test_evidence_that_this_machine_could_not_renew_says_so_in_the_same_words_for_all() -> None:
    exhausted = Verdict.unknown("check not run: too many open files", code=ReasonCode.RESOURCE_EXHAUSTED)
    unresolved = Verdict.unknown("DNS resolver failed: http://db", code=ReasonCode.RESOLVER_FAILED)
    for before, status in ((UP, Status.INITIALIZING), (DOWN, Status.DOWN)):
        for verdict, text in ((exhausted, "too many open files"), (unresolved, "the DNS resolver does not answer")):
            state = as_of(state_after(*before, (before[-1][0] + 10.0, verdict)), 93.0, POLICY)
            assert (state.status, state.code) == (status, ReasonCode.CANNOT_CHECK)
            assert state.reason.startswith(f"this host cannot check ({text}): no ")
            assert common_fault([state]) == f"this host cannot check ({text})"
            assert (FAILED.reason in state.reason) is (before is DOWN), "both facts"
            assert as_of(state, 1e6, POLICY) is state
            assert next_state(state, Evidence(READY, 95.0), POLICY).host_fault == ""


def test_a_machine_that_cannot_check_says_so_before_the_first_evidence() -> None:
    exhausted = Verdict.unknown("check not run: too many open files", code=ReasonCode.RESOURCE_EXHAUSTED)
    state = state_after((1.0, exhausted))
    assert (state.status, state.code, state.since_s) == (Status.INITIALIZING, ReasonCode.CANNOT_CHECK, 0.0)
    assert state_after((1.0, exhausted), (2.0, READY)).status is Status.UP
    again = state_after((1.0, exhausted), (2.0, Verdict.unknown("the probe failed", code=ReasonCode.PROBE_ERROR)))
    assert again.host_fault == "", "it can, but this probe does not work"


def test_a_machine_that_stood_still_is_the_reason_of_what_expired_meanwhile() -> None:
    for before, status in ((UP, Status.INITIALIZING), (DOWN, Status.DOWN)):
        state = as_of(state_after(*before), 7300.0, POLICY, standstill_s=7200.0)
        assert (state.status, state.code) == (status, ReasonCode.CANNOT_CHECK)
        assert state.reason.startswith("this host stood still for 2 h: no ")
    assert common_fault([state_after(*UP)]) == ""


def test_failures_do_not_extend_an_old_success() -> None:
    tolerant = Policy(fall=100, stale_after_s=33.0)
    assert state_after(*UP, (20.0, FAILED), (34.0, FAILED), policy=tolerant).status is Status.INITIALIZING


def test_successes_before_the_expiry_do_not_count_towards_rise() -> None:
    assert as_of(state_after(*DOWN, (70.0, READY)), 200.0, POLICY).ready_in_a_row == 0
    assert state_after(*DOWN, (70.0, READY), (200.0, READY)).status is Status.DOWN
    assert state_after(*DOWN, (70.0, READY), (200.0, READY), (210.0, READY)).status is Status.UP


def test_a_report_of_the_program_is_valid_until_the_next_one() -> None:
    for verdict, status in ((READY, Status.UP), (LOADING, Status.INITIALIZING), (FAILED, Status.DOWN)):
        assert as_of(state_after((0.0, verdict), policy=REPORTED_POLICY), 1e9, REPORTED_POLICY).status is status


@pytest.mark.parametrize("verdicts", [(), ((0.0, READY),), ((0.0, LOADING),)], ids=["none", "ready", "not ready"])
def test_a_heartbeat_service_is_down_after_its_ttl_and_up_with_the_next_heartbeat(
    verdicts: tuple[tuple[float, Verdict], ...],
) -> None:
    state = state_after(*verdicts, policy=HEARTBEAT)
    assert as_of(state, 9.9, HEARTBEAT) is state
    expired = as_of(state, 10.0, HEARTBEAT)
    assert (expired.status, expired.code, expired.since_s) == (Status.DOWN, ReasonCode.TTL_EXPIRED, 10.0)
    assert "ttl of 10 s" in expired.reason
    assert next_state(expired, Evidence(verdict=READY, at_s=50.0), HEARTBEAT).status is Status.UP


def test_a_job_without_a_success_within_its_period_and_grace_is_down_whatever_else_it_reports() -> None:
    state = state_after((0.0, READY), (105.0, LOADING), policy=JOB)
    assert as_of(state, 109.9, JOB).status is Status.INITIALIZING
    overdue = as_of(state, 110.0, JOB)
    assert (overdue.status, overdue.code, overdue.since_s) == (Status.DOWN, ReasonCode.TTL_EXPIRED, 110.0)
    assert "period and grace of 110 s" in overdue.reason


def test_a_run_of_a_job_that_does_not_end_within_grace_is_down() -> None:
    state = after_start(after_start(state_after((0.0, READY), policy=JOB), 50.0), 55.0)
    assert as_of(state, 59.9, JOB).status is Status.UP
    overdue = as_of(state, 60.0, JOB)
    assert (overdue.status, overdue.code, overdue.since_s) == (Status.DOWN, ReasonCode.TTL_EXPIRED, 60.0)
    assert "the grace of 10 s" in overdue.reason


@pytest.mark.parametrize(("end", "status"), [(READY, Status.UP), (FAILED, Status.DOWN)])
def test_a_report_ends_the_run_of_a_job(end: Verdict, status: Status) -> None:
    started = after_start(initial_state(0.0), 50.0)
    ended = next_state(started, Evidence(verdict=end, at_s=55.0), JOB)
    assert as_of(ended, 100.0, JOB).status is status


# ---- when a status was decided


def checked(*checks: tuple[float, float, Verdict]) -> ServiceState:
    """The state after checks that began at a time and took some time."""
    state = initial_state(0.0)
    for at_s, duration_s, verdict in checks:
        state = next_state(state, Evidence(verdict, at_s, duration_s), POLICY)
    return state


SLOW_OUTAGE = ((0.0, 0.1, READY), (10.0, 3.0, FAILED), (13.0, 3.0, FAILED), (16.0, 3.0, FAILED))


def test_a_status_is_dated_by_the_end_of_the_check_that_decided_it() -> None:
    assert checked(SLOW_OUTAGE[0]).since_s == 0.1
    assert checked(*SLOW_OUTAGE).since_s == 19.0
    expired_meanwhile = checked((0.0, 0.0, READY), (32.0, 2.0, READY))
    assert (expired_meanwhile.status, expired_meanwhile.since_s) == (Status.UP, 34.0)


def test_evidence_is_as_old_as_the_start_of_its_check() -> None:
    state = checked((5.0, 2.0, READY))
    assert (state.last_ready_at_s, state.last_evidence_at_s) == (5.0, 5.0)
    assert expires_at_s(state, POLICY) == 38.0


def test_the_first_failure_is_known_from_the_first_one_to_the_end_of_the_outage() -> None:
    assert [checked(*SLOW_OUTAGE[:count]).first_failure_at_s for count in (1, 2, 3, 4)] == [None, 13.0, 13.0, 13.0]
    state = checked(*SLOW_OUTAGE, (20.0, 0.0, READY), (30.0, 0.0, FAILED), (40.0, 0.0, READY))
    assert (state.status, state.first_failure_at_s) == (Status.DOWN, 13.0)
    for last in ((READY, READY), (LOADING,)):
        assert checked(*SLOW_OUTAGE, *((20.0, 0.0, verdict) for verdict in last)).first_failure_at_s is None


# ---- pending changes


@pytest.mark.parametrize(
    ("history", "is_pending"),
    [
        ("", False),
        ("0R", False),
        ("0R 1F", True),
        ("0R 1F" + 9 * " 2R", True),
        ("0R 1F" + 10 * " 2R", False),
        ("0F", True),
        ("0F 1L", False),
        ("40F 50F 60F", False),
        ("40F 50F 60F 70R", True),
        ("40F 50F 60F 70R 71F", False),
        ("40F 50F 60F 70R 71R", False),
    ],
)
def test_a_change_is_pending_while_results_are_counted_towards_another_status(history: str, is_pending: bool) -> None:
    assert is_change_pending(state_after(*history_of(history))) is is_pending


# ---- status and health


def test_each_status_has_its_health() -> None:
    assert [service_health(status) for status in (Status.UP, Status.INITIALIZING, Status.DOWN)] == [200, 206, 503]


def test_the_health_of_the_node_follows_from_the_states() -> None:
    """With all combinations of up to two services and all conditions."""
    kinds = list(product(Impact, Status))
    lists = [[], *([kind] for kind in kinds), *product(kinds, kinds)]
    conditions = [
        Condition(starting=starting, draining=draining, issues=issues, caveats=caveats)
        for starting, draining, issues, caveats in product(
            (False, True), (False, True), ((), ("clock skew",)), ((), ("nothing is known of others",))
        )
    ]
    for services, condition in product(lists, conditions):
        counted = [(impact, status) for impact, status in services if impact is not Impact.NONE]
        is_every_one_down = bool(counted) and all(status is Status.DOWN for _, status in counted)
        if condition.draining or condition.issues or (Impact.CRITICAL, Status.DOWN) in counted or is_every_one_down:
            expected = Health.UNHEALTHY
        elif condition.starting or condition.caveats or any(status is not Status.UP for _, status in counted):
            expected = Health.PARTIAL
        else:
            expected = Health.HEALTHY
        assert node_health(tally(services), condition) is expected


def test_a_tally_without_a_service_is_that_of_the_others() -> None:
    for one, other in product(product(Impact, Status), repeat=2):
        both = add_tallies(service_tally(*one), service_tally(*other))
        assert both == tally([one, other])
        assert subtract_tallies(both, service_tally(*one)) == service_tally(*other)


# ---- properties

# Many of these tests overlap, so each has fewer examples.
brief = settings(max_examples=60)

# Halves are exact in binary, and so are their sums.
seconds = st.integers(min_value=0, max_value=120).map(lambda halves: halves / 2)
some_seconds = st.integers(min_value=1, max_value=120).map(lambda halves: halves / 2)
verdicts = st.sampled_from([READY, LOADING, FAILED, UNKNOWN])


LIMITS = ("none", "stale_after", "ttl")


@st.composite
def policies(draw: st.DrawFn, limits: tuple[str, ...]) -> Policy:
    limit = draw(st.sampled_from(limits))
    window = draw(st.sampled_from([0, 2, 5, 10]))
    max_failures = draw(st.integers(0, max(0, min(window - 1, 4))))
    return Policy(
        rise=draw(st.integers(1, 4)),
        fall=draw(st.integers(1, 4)),
        start_period_s=draw(seconds),
        window=window,
        max_failures=max_failures,
        recovery_failures=draw(st.integers(0, max_failures)),
        window_s=draw(seconds),
        stale_after_s=draw(some_seconds) if limit == "stale_after" else None,
        ttl_s=draw(some_seconds) if limit == "ttl" else None,
    )


@dataclass(frozen=True)
class History:
    """The evidence of a service registered at 0, and every state."""

    policy: Policy
    evidence: list[Evidence]
    states: list[ServiceState]  # the initial one, and one after each evidence

    @property
    def last(self) -> ServiceState:
        return self.states[-1]

    @property
    def now_s(self) -> float:
        return self.evidence[-1].at_s if self.evidence else 0.0

    def counted_outcomes(self, end: int) -> list[Outcome]:
        outcomes = [evidence.verdict.outcome for evidence in self.evidence[:end]]
        return [outcome for outcome in outcomes if outcome is not Outcome.UNKNOWN]


@st.composite
def histories(draw: st.DrawFn, limits: tuple[str, ...] = LIMITS, *, has_window: bool = True) -> History:
    policy = draw(policies(limits))
    if not has_window:
        policy = replace(policy, window=0)
    now_s, evidence, states = 0.0, [], [initial_state(0.0)]
    for gap_s, verdict in draw(st.lists(st.tuples(seconds, verdicts), max_size=15)):
        now_s += gap_s
        evidence.append(Evidence(verdict=verdict, at_s=now_s))
        states.append(next_state(states[-1], evidence[-1], policy))
    return History(policy, evidence, states)


@brief
@given(histories(("stale_after",)), seconds)
def test_no_service_is_up_without_a_success_newer_than_stale_after(history: History, later_s: float) -> None:
    now_s = history.now_s + later_s
    if as_of(history.last, now_s, history.policy).status is Status.UP:
        successes = [one.at_s for one in history.evidence if one.verdict.outcome is Outcome.READY]
        assert history.policy.stale_after_s is not None
        assert now_s - max(successes) < history.policy.stale_after_s


@settings(max_examples=150)
@given(histories())
def test_every_change_of_the_status_has_its_cause_and_its_time(history: History) -> None:
    policy = history.policy
    for number, (before, after) in enumerate(pairwise(history.states)):
        evidence, outcomes = history.evidence[number], history.counted_outcomes(number + 1)
        current = as_of(before, evidence.at_s, policy)  # Down only by its ttl, if it was not before
        assert service_health(current.status) >= service_health(before.status)
        if (current.status is Status.DOWN) > (before.status is Status.DOWN):
            assert policy.ttl_s is not None
        if (after.status is Status.DOWN) > (current.status is Status.DOWN):
            assert outcomes[-policy.fall :] == [Outcome.FAILED] * policy.fall
        if current.status is Status.DOWN and after.status is Status.UP:
            assert outcomes[-policy.rise :] == [Outcome.READY] * policy.rise
        assert after.since_s == (current.since_s if after.status is current.status else evidence.at_s)
        assert after.since_s >= before.since_s
        assert after.registered_at_s == 0.0


@brief
@given(histories())
def test_the_counts_in_a_row_are_those_of_the_last_outcomes(history: History) -> None:
    for number, state in enumerate(history.states):
        *_, last = [(None, 0), *((one, len(list(many))) for one, many in groupby(history.counted_outcomes(number)))]
        outcome, length = last
        assert state.failures_in_a_row == (length if outcome is Outcome.FAILED else 0)
        assert state.ready_in_a_row <= (length if outcome is Outcome.READY else 0)


@brief
@given(histories(), seconds)
def test_an_unknown_verdict_has_no_effect_but_expiry_and_why_there_is_no_evidence(
    history: History, later_s: float
) -> None:
    now_s = history.now_s + later_s
    state = next_state(history.last, Evidence(verdict=UNKNOWN, at_s=now_s), history.policy)
    expired = as_of(history.last, now_s, history.policy)
    why = expired.reason, expired.code, expired.host_fault
    assert state._replace(reason=why[0], code=why[1], host_fault=why[2]) == expired


@brief
@given(histories(), verdicts, some_seconds)
def test_late_evidence_is_ignored(history: History, verdict: Verdict, earlier_s: float) -> None:
    assume(history.last.last_evidence_at_s is not None)
    assert history.last.last_evidence_at_s is not None
    late = Evidence(verdict=verdict, at_s=history.last.last_evidence_at_s - earlier_s)
    assert next_state(history.last, late, history.policy) is history.last


@brief
@given(histories(), seconds, seconds, verdicts)
def test_a_read_changes_neither_later_reads_nor_the_effect_of_a_verdict(
    history: History, read_in_s: float, then_s: float, verdict: Verdict
) -> None:
    policy, read_at_s = history.policy, history.now_s + read_in_s
    read = as_of(history.last, read_at_s, policy)
    assert as_of(read, read_at_s, policy) == read
    assert as_of(read, read_at_s + then_s, policy) == as_of(history.last, read_at_s + then_s, policy)
    evidence = Evidence(verdict=verdict, at_s=read_at_s + then_s)
    assert next_state(read, evidence, policy) == next_state(history.last, evidence, policy)


@brief
@given(histories())
def test_a_state_expires_exactly_at_its_expiry_time(history: History) -> None:
    expiry_s = expires_at_s(history.last, history.policy)
    if expiry_s == math.inf:
        assert as_of(history.last, 1e12, history.policy) is history.last
        return
    assert as_of(history.last, math.nextafter(expiry_s, -math.inf), history.policy) is history.last
    expired = as_of(history.last, expiry_s, history.policy)
    is_worse = expired.status is not history.last.status
    assert is_worse or expired.status is Status.DOWN
    assert expired.since_s == (expiry_s if is_worse else history.last.since_s)
    assert expires_at_s(expired, history.policy) == math.inf


@brief
@given(histories(("none",), has_window=False))
def test_a_change_is_pending_exactly_when_more_of_the_same_results_would_cause_it(history: History) -> None:
    counted = [one.verdict for one in history.evidence if one.verdict.outcome is not Outcome.UNKNOWN]
    state, later_s = history.last, history.now_s + history.policy.start_period_s
    for _ in range(max(history.policy.rise, history.policy.fall) if counted else 0):
        state = next_state(state, Evidence(verdict=counted[-1], at_s=later_s), history.policy)
    assert is_change_pending(history.last) == (state.status is not history.last.status)


# ---- what was known before a restart

WAS_DOWN = KnownBefore(Status.DOWN, -720.0, "refused", ReasonCode.CONNECTION_REFUSED)
WAS_UP = WAS_DOWN._replace(status=Status.UP)


def remembered(known: KnownBefore, *verdicts: tuple[float, Verdict], policy: Policy = POLICY) -> ServiceState:
    state = with_memory(initial_state(0.0), known)
    for at_s, verdict in verdicts:
        state = next_state(state, Evidence(verdict=verdict, at_s=at_s), policy)
    return state


@pytest.mark.parametrize("known", [WAS_DOWN, WAS_UP])
def test_what_was_known_before_a_restart_is_shown_and_decides_nothing(known: KnownBefore) -> None:
    for state in (remembered(known), remembered(known, (1.0, UNKNOWN))):
        assert (state.status, state.since_s, state.known_before) == (Status.INITIALIZING, 0.0, known)


def test_one_failure_confirms_that_a_service_is_down_since_before_the_restart() -> None:
    state = remembered(WAS_DOWN, (1.0, FAILED))
    assert (state.status, state.reason, state.known_before) == (Status.DOWN, "refused", None)
    assert (state.since_s, state.first_failure_at_s) == (-720.0, -720.0)
    assert remembered(WAS_DOWN, (1.0, FAILED), (2.0, READY)).status is Status.DOWN, "rise counts as always"


@pytest.mark.parametrize(("verdict", "status"), [(READY, Status.UP), (LOADING, Status.INITIALIZING)])
def test_other_evidence_after_a_restart_ends_what_was_known(verdict: Verdict, status: Status) -> None:
    state = remembered(WAS_DOWN, (1.0, verdict))
    assert (state.status, state.known_before) == (status, None)
    later = next_state(state, Evidence(verdict=FAILED, at_s=2.0), POLICY)
    assert later.status is status, "one failure is not enough any more"


def test_a_service_that_was_up_before_the_restart_is_down_after_the_failures_of_any_new_one() -> None:
    assert remembered(WAS_UP, (40.0, FAILED)).known_before == WAS_UP
    state = remembered(WAS_UP, *DOWN)
    assert (state.status, state.since_s, state.known_before) == (Status.DOWN, 60.0, None)


def test_a_heartbeat_that_stays_away_confirms_that_a_service_is_down_since_before_the_restart() -> None:
    state = as_of(remembered(WAS_DOWN, policy=HEARTBEAT), 10.0, HEARTBEAT)
    assert (state.status, state.since_s, state.known_before) == (Status.DOWN, -720.0, None)
    assert as_of(remembered(WAS_UP, policy=HEARTBEAT), 10.0, HEARTBEAT).since_s == 10.0


def test_memory_that_comes_late_is_used_only_if_nothing_is_decided_yet() -> None:
    assert with_memory(state_after((1.0, FAILED)), WAS_DOWN).known_before == WAS_DOWN
    for verdicts in (UP, DOWN, ((1.0, LOADING),), ((1.0, READY), (2.0, LOADING), (3.0, FAILED))):
        assert with_memory(state_after(*verdicts), WAS_DOWN).known_before is None
