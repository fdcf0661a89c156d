"""The decisions of the house, one short test each, and then what must hold whatever happens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby, pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from svcnode.core.model import (
    REPORTED_POLICY,
    Condition,
    Evidence,
    Health,
    Impact,
    Outcome,
    Policy,
    ServiceState,
    Status,
    Tally,
    Verdict,
)
from svcnode.core.state_machine import (
    add_tallies,
    as_of,
    expires_at_s,
    initial_state,
    is_change_pending,
    next_state,
    node_health,
    service_health,
    service_tally,
    subtract_tallies,
    tally,
)

POLICY = Policy(rise=2, fall=3, start_period_s=30.0, stale_after_s=33.0)
HEARTBEAT = Policy(rise=1, fall=1, start_period_s=0.0, ttl_s=10.0)

READY = Verdict.ready("answered")
LOADING = Verdict.not_ready("replaying its log")
FAILED = Verdict.failed("connection refused")
UNKNOWN = Verdict.unknown("no file descriptors left")


def believed(*seen: tuple[float, Verdict], policy: Policy = POLICY) -> ServiceState:
    """What is believed of a service registered at 0 after all of this was seen."""
    state = initial_state(0.0)
    for at_s, verdict in seen:
        state = next_state(state, Evidence(verdict=verdict, at_s=at_s), policy)
    return state


UP = ((0.0, READY),)
DOWN = ((40.0, FAILED), (50.0, FAILED), (60.0, FAILED))


# ---- one service, row by row


def test_a_service_is_initializing_until_its_first_verdict() -> None:
    assert initial_state(7.0) == ServiceState(
        status=Status.INITIALIZING, reason="no evidence yet", since_s=7.0, registered_at_s=7.0
    )


def test_a_service_that_was_never_looked_at_stays_initializing_however_long_it_takes() -> None:
    assert as_of(initial_state(0.0), 1e9, POLICY) == initial_state(0.0)


def test_one_ready_brings_a_new_service_up() -> None:
    state = believed((5.0, READY))
    assert (state.status, state.reason, state.since_s) == (Status.UP, "answered", 5.0)


def test_one_failure_does_not_take_a_service_down() -> None:
    assert believed((0.0, READY), (10.0, FAILED)).status is Status.UP


def test_a_service_that_is_still_up_shows_no_failure_as_its_reason() -> None:
    assert believed((0.0, READY), (10.0, FAILED)).reason == "answered"


def test_fall_failures_in_a_row_take_a_service_down() -> None:
    state = believed((0.0, READY), (10.0, FAILED), (20.0, FAILED), (30.0, FAILED))
    assert (state.status, state.reason, state.since_s) == (Status.DOWN, "connection refused", 30.0)


def test_a_success_between_failures_begins_the_count_again() -> None:
    seen = ((0.0, READY), (10.0, FAILED), (20.0, FAILED), (25.0, READY), (30.0, FAILED), (40.0, FAILED))
    assert believed(*seen).status is Status.UP


def test_not_being_ready_begins_the_count_of_failures_again() -> None:
    seen = ((40.0, FAILED), (50.0, FAILED), (60.0, LOADING), (70.0, FAILED), (80.0, FAILED))
    assert believed(*seen).status is Status.INITIALIZING


def test_a_starting_service_does_not_go_down_within_its_start_period() -> None:
    assert believed(*((at_s, FAILED) for at_s in (1.0, 2.0, 3.0, 4.0, 29.9))).status is Status.INITIALIZING


def test_a_starting_service_that_fails_shows_why() -> None:
    assert believed((1.0, FAILED)).reason == "connection refused"


def test_a_starting_service_goes_down_with_the_first_failure_after_its_start_period() -> None:
    assert believed((10.0, FAILED), (20.0, FAILED), (30.0, FAILED)).status is Status.DOWN


def test_a_start_period_that_is_over_does_not_shorten_the_count() -> None:
    assert believed((40.0, FAILED), (50.0, FAILED)).status is Status.INITIALIZING


def test_a_service_that_was_up_has_no_start_period_left_to_hide_in() -> None:
    assert believed((1.0, READY), (2.0, FAILED), (3.0, FAILED), (4.0, FAILED)).status is Status.DOWN


def test_an_up_service_that_says_it_is_not_ready_is_initializing_at_once() -> None:
    state = believed(*UP, (10.0, LOADING))
    assert (state.status, state.reason, state.since_s) == (Status.INITIALIZING, "replaying its log", 10.0)


def test_a_down_service_that_says_it_is_not_ready_is_initializing_at_once() -> None:
    assert believed(*DOWN, (70.0, LOADING)).status is Status.INITIALIZING


def test_one_ready_does_not_bring_a_down_service_up() -> None:
    assert believed(*DOWN, (70.0, READY)).status is Status.DOWN


def test_rise_ready_in_a_row_bring_a_down_service_up() -> None:
    state = believed(*DOWN, (70.0, READY), (80.0, READY))
    assert (state.status, state.since_s) == (Status.UP, 80.0)


def test_a_failure_between_two_ready_begins_the_count_of_successes_again() -> None:
    assert believed(*DOWN, (70.0, READY), (80.0, FAILED), (90.0, READY)).status is Status.DOWN


def test_a_service_that_stays_up_keeps_the_moment_it_came_up() -> None:
    assert believed((5.0, READY), (15.0, READY)).since_s == 5.0


def test_a_down_service_shows_its_newest_failure_and_keeps_the_moment_it_went_down() -> None:
    state = believed(*DOWN, (70.0, Verdict.failed("no route to host")))
    assert (state.reason, state.since_s) == ("no route to host", 60.0)


def test_an_up_service_without_fresh_evidence_is_initializing_with_the_reason() -> None:
    state = as_of(believed(*UP), 33.0, POLICY)
    assert (state.status, state.reason, state.since_s) == (Status.INITIALIZING, "no fresh success for 33 s", 33.0)


def test_a_down_service_without_fresh_evidence_is_initializing_with_the_reason() -> None:
    state = as_of(believed(*DOWN), 93.0, POLICY)
    assert (state.status, state.reason, state.since_s) == (Status.INITIALIZING, "no fresh evidence for 33 s", 93.0)


def test_evidence_counts_until_the_very_moment_it_is_stale() -> None:
    assert as_of(believed(*UP), math.nextafter(33.0, 0.0), POLICY).status is Status.UP


def test_failures_do_not_keep_an_old_success_alive() -> None:
    patient = Policy(fall=100, stale_after_s=33.0)
    assert believed(*UP, (20.0, FAILED), (34.0, FAILED), policy=patient).status is Status.INITIALIZING


def test_a_stale_service_that_was_down_comes_up_with_one_ready() -> None:
    assert believed(*DOWN, (100.0, READY)).status is Status.UP


def test_a_success_before_the_silence_does_not_count_towards_the_rise() -> None:
    assert as_of(believed(*DOWN, (70.0, READY)), 200.0, POLICY).ready_in_a_row == 0


def test_what_a_program_reports_counts_until_it_says_otherwise() -> None:
    for verdict, status in ((READY, Status.UP), (LOADING, Status.INITIALIZING), (FAILED, Status.DOWN)):
        assert as_of(believed((0.0, verdict), policy=REPORTED_POLICY), 1e9, REPORTED_POLICY).status is status


def test_unknown_verdicts_are_not_counted_against_a_service() -> None:
    assert believed(*UP, (5.0, UNKNOWN), (10.0, UNKNOWN), (15.0, UNKNOWN), (20.0, UNKNOWN)) == believed(*UP)


def test_unknown_verdicts_let_the_evidence_grow_stale() -> None:
    state = believed(*UP, (20.0, UNKNOWN), (33.0, UNKNOWN))
    assert (state.status, state.reason) == (Status.INITIALIZING, "no fresh success for 33 s")


def test_unknown_verdicts_do_not_break_a_row_of_failures() -> None:
    assert believed(*UP, (1.0, FAILED), (2.0, FAILED), (3.0, UNKNOWN), (4.0, FAILED)).status is Status.DOWN


def test_a_heartbeat_service_is_up_while_it_beats() -> None:
    beats = [(float(at_s), READY) for at_s in range(0, 60, 9)]
    assert as_of(believed(*beats, policy=HEARTBEAT), 63.9, HEARTBEAT).status is Status.UP


def test_a_heartbeat_service_that_falls_silent_is_down() -> None:
    state = as_of(believed(*UP, policy=HEARTBEAT), 10.0, HEARTBEAT)
    assert (state.status, state.reason, state.since_s) == (Status.DOWN, "no report within its ttl of 10 s", 10.0)


def test_a_heartbeat_service_that_never_beats_is_initializing_for_its_ttl_and_then_down() -> None:
    assert as_of(initial_state(100.0), 109.9, HEARTBEAT).status is Status.INITIALIZING
    assert as_of(initial_state(100.0), 110.0, HEARTBEAT).status is Status.DOWN


def test_a_heartbeat_service_that_falls_silent_while_it_starts_is_down() -> None:
    assert as_of(believed((3.0, LOADING), policy=HEARTBEAT), 13.0, HEARTBEAT).status is Status.DOWN


def test_one_beat_brings_a_silent_service_back() -> None:
    assert believed(*UP, (50.0, READY), policy=HEARTBEAT).status is Status.UP


def test_evidence_older_than_what_is_counted_changes_nothing() -> None:
    state = believed((0.0, READY), (10.0, READY))
    assert next_state(state, Evidence(verdict=FAILED, at_s=9.0), POLICY) is state


def test_evidence_older_than_the_service_changes_nothing() -> None:
    state = initial_state(100.0)
    assert next_state(state, Evidence(verdict=READY, at_s=99.0), POLICY) is state


def test_two_verdicts_of_the_same_moment_both_count() -> None:
    assert believed((0.0, READY), (5.0, FAILED), (5.0, FAILED), (5.0, FAILED)).status is Status.DOWN


# ---- what is being counted


@pytest.mark.parametrize(
    ("seen", "is_pending"),
    [
        ((), False),
        (((0.0, READY),), False),
        (((0.0, READY), (1.0, FAILED)), True),
        (((0.0, READY), (1.0, FAILED), (2.0, UNKNOWN)), True),
        (((0.0, READY), (1.0, FAILED), (2.0, READY)), False),
        (((0.0, READY), (1.0, LOADING)), False),
        (((0.0, FAILED),), True),
        (((0.0, LOADING), (1.0, FAILED)), True),
        (((0.0, FAILED), (1.0, LOADING)), False),
        (DOWN, False),
        ((*DOWN, (70.0, READY)), True),
        ((*DOWN, (70.0, READY), (71.0, FAILED)), False),
        ((*DOWN, (70.0, READY), (71.0, READY)), False),
    ],
)
def test_a_change_is_pending_while_looks_that_speak_against_the_status_are_counted(
    seen: tuple[tuple[float, Verdict], ...], is_pending: bool
) -> None:
    assert is_change_pending(believed(*seen)) is is_pending


def test_a_success_that_silence_has_taken_back_is_counted_no_more() -> None:
    waiting = believed(*DOWN, (70.0, READY))
    assert is_change_pending(waiting)
    assert not is_change_pending(as_of(believed(*UP), 33.0, POLICY))
    assert as_of(waiting, 103.0, POLICY).ready_in_a_row == 0


# ---- status and code


@pytest.mark.parametrize(
    ("status", "code"), [(Status.UP, 200), (Status.INITIALIZING, 206), (Status.DOWN, 503)], ids=str
)
def test_each_status_has_its_code(status: Status, code: int) -> None:
    assert service_health(status) == code


# ---- the node, row by row

CRITICAL, PARTIAL, NONE = Impact.CRITICAL, Impact.PARTIAL, Impact.NONE


def health_of(*services: tuple[Impact, Status], condition: Condition | None = None) -> Health:
    return node_health(tally(services), condition or Condition())


def test_a_node_without_services_is_healthy() -> None:
    assert health_of() is Health.HEALTHY


def test_a_node_whose_services_are_all_up_is_healthy() -> None:
    assert health_of((CRITICAL, Status.UP), (PARTIAL, Status.UP)) is Health.HEALTHY


@pytest.mark.parametrize("status", [Status.INITIALIZING, Status.DOWN])
def test_one_service_that_is_not_up_makes_the_node_partially_healthy(status: Status) -> None:
    assert health_of((PARTIAL, Status.UP), (PARTIAL, status)) is Health.PARTIAL


def test_a_critical_service_that_is_initializing_makes_the_node_partially_healthy() -> None:
    assert health_of((CRITICAL, Status.INITIALIZING), (PARTIAL, Status.UP)) is Health.PARTIAL


def test_a_critical_service_that_is_down_makes_the_node_unhealthy() -> None:
    assert health_of((CRITICAL, Status.DOWN), (PARTIAL, Status.UP)) is Health.UNHEALTHY


def test_a_node_whose_counted_services_are_all_down_is_unhealthy() -> None:
    assert health_of((PARTIAL, Status.DOWN), (PARTIAL, Status.DOWN), (NONE, Status.UP)) is Health.UNHEALTHY


def test_a_node_whose_services_are_down_or_initializing_is_partially_healthy() -> None:
    assert health_of((PARTIAL, Status.DOWN), (PARTIAL, Status.INITIALIZING)) is Health.PARTIAL


@pytest.mark.parametrize("status", list(Status))
def test_a_service_without_impact_is_not_counted(status: Status) -> None:
    assert health_of((NONE, status)) is Health.HEALTHY


def test_a_starting_node_is_partially_healthy() -> None:
    assert health_of((PARTIAL, Status.UP), condition=Condition(starting=True)) is Health.PARTIAL


def test_a_draining_node_is_unhealthy() -> None:
    assert health_of((PARTIAL, Status.UP), condition=Condition(draining=True)) is Health.UNHEALTHY


def test_a_node_with_a_reported_issue_is_unhealthy() -> None:
    assert health_of((PARTIAL, Status.UP), condition=Condition(issues=("clock skew",))) is Health.UNHEALTHY


def test_an_issue_outweighs_starting() -> None:
    assert health_of(condition=Condition(starting=True, issues=("clock skew",))) is Health.UNHEALTHY


# ---- what holds whatever happens

# How fast the machine is today is no property of the rules; many tests below overlap, so each may be brief.
unhurried = settings(deadline=None, max_examples=60)

# Halves are exact in binary, so that sums of times are, too.
seconds = st.integers(min_value=0, max_value=120).map(lambda halves: halves / 2)
some_seconds = st.integers(min_value=1, max_value=120).map(lambda halves: halves / 2)
verdicts = st.sampled_from([READY, LOADING, FAILED, UNKNOWN])


LIMITS = ("none", "stale_after", "ttl")


@st.composite
def policies(draw: st.DrawFn, limits: tuple[str, ...]) -> Policy:
    limit = draw(st.sampled_from(limits))
    return Policy(
        rise=draw(st.integers(1, 4)),
        fall=draw(st.integers(1, 4)),
        start_period_s=draw(seconds),
        stale_after_s=draw(some_seconds) if limit == "stale_after" else None,
        ttl_s=draw(some_seconds) if limit == "ttl" else None,
    )


@dataclass(frozen=True)
class History:
    """What was seen of a service registered at 0, and every state that came of it."""

    policy: Policy
    observed: list[Evidence]
    states: list[ServiceState]  # one more than was seen

    @property
    def last(self) -> ServiceState:
        return self.states[-1]

    @property
    def now_s(self) -> float:
        return self.observed[-1].at_s if self.observed else 0.0

    def counted_until(self, place: int) -> list[Outcome]:
        outcomes = [evidence.verdict.outcome for evidence in self.observed[:place]]
        return [outcome for outcome in outcomes if outcome is not Outcome.UNKNOWN]


@st.composite
def histories(draw: st.DrawFn, limits: tuple[str, ...] = LIMITS) -> History:
    policy = draw(policies(limits))
    now_s, seen, states = 0.0, [], [initial_state(0.0)]
    for gap_s, verdict in draw(st.lists(st.tuples(seconds, verdicts), max_size=15)):
        now_s += gap_s
        seen.append(Evidence(verdict=verdict, at_s=now_s))
        states.append(next_state(states[-1], seen[-1], policy))
    return History(policy, seen, states)


@unhurried
@given(histories(("stale_after",)), seconds)
def test_nothing_is_up_without_a_success_newer_than_stale_after(history: History, later_s: float) -> None:
    now_s = history.now_s + later_s
    if as_of(history.last, now_s, history.policy).status is Status.UP:
        successes = [one.at_s for one in history.observed if one.verdict.outcome is Outcome.READY]
        assert history.policy.stale_after_s is not None
        assert now_s - max(successes) < history.policy.stale_after_s


@unhurried
@given(histories(("ttl",)), seconds)
def test_a_heartbeat_service_is_not_down_only_while_it_was_heard_within_its_ttl(
    history: History, later_s: float
) -> None:
    now_s = history.now_s + later_s
    heard = [0.0, *(one.at_s for one in history.observed if one.verdict.outcome is not Outcome.UNKNOWN)]
    assert history.policy.ttl_s is not None
    if now_s - max(heard) >= history.policy.ttl_s:
        assert as_of(history.last, now_s, history.policy).status is Status.DOWN


@unhurried
@given(histories())
def test_nothing_goes_down_but_by_fall_failures_in_a_row_or_by_its_ttl(history: History) -> None:
    for place, (before, after) in enumerate(pairwise(history.states)):
        evidence = history.observed[place]
        ran_out = as_of(before, evidence.at_s, history.policy).status is Status.DOWN
        if after.status is Status.DOWN and before.status is not Status.DOWN and not ran_out:
            fall = history.policy.fall
            assert history.counted_until(place + 1)[-fall:] == [Outcome.FAILED] * fall
    if history.policy.ttl_s is None:
        assert as_of(history.last, history.now_s + 1e6, history.policy).status is not Status.DOWN or (
            history.last.status is Status.DOWN
        )


@unhurried
@given(histories(("none", "stale_after")))
def test_no_new_service_goes_down_by_failures_within_its_start_period(history: History) -> None:
    for place, after in enumerate(history.states[1:], start=1):
        is_new = Outcome.READY not in history.counted_until(place)
        if is_new and history.observed[place - 1].at_s < history.policy.start_period_s:
            assert after.status is Status.INITIALIZING


@unhurried
@given(histories())
def test_what_is_down_comes_up_only_by_rise_ready_in_a_row(history: History) -> None:
    for place, after in enumerate(history.states[1:]):
        evidence = history.observed[place]
        before = as_of(history.states[place], evidence.at_s, history.policy)
        if before.status is Status.DOWN and after.status is Status.UP:
            rise = history.policy.rise
            assert history.counted_until(place + 1)[-rise:] == [Outcome.READY] * rise


@unhurried
@given(histories())
def test_the_newest_verdict_and_the_status_never_contradict_each_other(history: History) -> None:
    for evidence, after in zip(history.observed, history.states[1:], strict=True):
        match evidence.verdict.outcome:
            case Outcome.READY:
                assert after.status is not Status.INITIALIZING
            case Outcome.NOT_READY:
                assert after.status is Status.INITIALIZING
            case Outcome.FAILED | Outcome.UNKNOWN:
                pass


@unhurried
@given(histories(), seconds)
def test_an_unknown_verdict_does_nothing_but_let_time_pass(history: History, later_s: float) -> None:
    now_s = history.now_s + later_s
    unknown = Evidence(verdict=UNKNOWN, at_s=now_s)
    assert next_state(history.last, unknown, history.policy) == as_of(history.last, now_s, history.policy)


@unhurried
@given(histories(), verdicts, some_seconds)
def test_late_evidence_changes_nothing(history: History, verdict: Verdict, earlier_s: float) -> None:
    assume(history.last.last_evidence_at_s is not None)
    assert history.last.last_evidence_at_s is not None
    late = Evidence(verdict=verdict, at_s=history.last.last_evidence_at_s - earlier_s)
    assert next_state(history.last, late, history.policy) is history.last


@unhurried
@given(histories(), seconds, seconds)
def test_reading_twice_is_reading_once(history: History, first_s: float, second_s: float) -> None:
    read_at_s, again_at_s = history.now_s + first_s, history.now_s + first_s + second_s
    read = as_of(history.last, read_at_s, history.policy)
    assert as_of(read, read_at_s, history.policy) == read
    assert as_of(read, again_at_s, history.policy) == as_of(history.last, again_at_s, history.policy)


@unhurried
@given(histories(), seconds, seconds, verdicts)
def test_whether_somebody_read_before_it_makes_no_difference_to_a_verdict(
    history: History, read_in_s: float, then_s: float, verdict: Verdict
) -> None:
    policy, read_at_s = history.policy, history.now_s + read_in_s
    evidence = Evidence(verdict=verdict, at_s=read_at_s + then_s)
    assert next_state(as_of(history.last, read_at_s, policy), evidence, policy) == next_state(
        history.last, evidence, policy
    )


@unhurried
@given(histories(), seconds)
def test_silence_brings_nothing_up(history: History, later_s: float) -> None:
    after = as_of(history.last, history.now_s + later_s, history.policy)
    assert after.status is not Status.UP or history.last.status is Status.UP


@unhurried
@given(histories())
def test_silence_changes_the_status_at_the_moment_it_was_foretold_and_not_before(history: History) -> None:
    lapse_at_s = expires_at_s(history.last, history.policy)
    if lapse_at_s == math.inf:
        assert as_of(history.last, 1e12, history.policy) is history.last
        return
    assert as_of(history.last, math.nextafter(lapse_at_s, -math.inf), history.policy) is history.last
    lapsed = as_of(history.last, lapse_at_s, history.policy)
    assert lapsed.status is not history.last.status
    assert lapsed.since_s == lapse_at_s
    assert expires_at_s(lapsed, history.policy) == math.inf


@unhurried
@given(histories())
def test_since_moves_when_the_status_does_and_never_backwards(history: History) -> None:
    for evidence, before, after in zip(history.observed, history.states, history.states[1:], strict=False):
        settled = as_of(before, evidence.at_s, history.policy)
        assert after.since_s == (settled.since_s if after.status is settled.status else evidence.at_s)
        assert after.since_s >= before.since_s


@unhurried
@given(histories())
def test_what_is_counted_in_a_row_is_in_a_row(history: History) -> None:
    for place, state in enumerate(history.states):
        *_, last = [(None, 0), *((one, len(list(many))) for one, many in groupby(history.counted_until(place)))]
        outcome, length = last
        assert state.failures_in_a_row == (length if outcome is Outcome.FAILED else 0)
        assert state.ready_in_a_row <= (length if outcome is Outcome.READY else 0)


@unhurried
@given(histories(("none",)))
def test_a_change_is_pending_exactly_when_more_of_the_same_would_bring_one(history: History) -> None:
    counted = [one.verdict for one in history.observed if one.verdict.outcome is not Outcome.UNKNOWN]
    state, later_s = history.last, history.now_s + history.policy.start_period_s
    for _ in range(max(history.policy.rise, history.policy.fall) if counted else 0):
        state = next_state(state, Evidence(verdict=counted[-1], at_s=later_s), history.policy)
    assert is_change_pending(history.last) == (state.status is not history.last.status)


@unhurried
@given(histories())
def test_a_change_is_pending_exactly_when_something_is_counted_against_the_status(history: History) -> None:
    for state in history.states:
        against = state.ready_in_a_row if state.status is Status.DOWN else state.failures_in_a_row
        assert is_change_pending(state) == (against > 0)


@unhurried
@given(histories(("none", "stale_after")), verdicts)
def test_a_counted_change_is_decided_only_from_pending_unless_one_look_is_enough(
    history: History, verdict: Verdict
) -> None:
    before, policy = history.last, history.policy
    after = next_state(before, Evidence(verdict=verdict, at_s=history.now_s), policy)
    if {before.status, after.status} == {Status.UP, Status.DOWN}:
        needed = policy.fall if after.status is Status.DOWN else policy.rise
        assert is_change_pending(before) or needed == 1


@unhurried
@given(histories())
def test_when_a_service_was_registered_is_never_forgotten(history: History) -> None:
    assert {state.registered_at_s for state in history.states} == {0.0}


listed = st.lists(st.tuples(st.sampled_from(Impact), st.sampled_from(Status)), max_size=12)
conditions = st.builds(
    Condition,
    starting=st.booleans(),
    draining=st.booleans(),
    issues=st.lists(st.text(max_size=3), max_size=2).map(tuple),
)


@unhurried
@given(listed, conditions)
def test_the_health_of_the_node_is_what_the_states_say(
    services: list[tuple[Impact, Status]], condition: Condition
) -> None:
    counted = [(impact, status) for impact, status in services if impact is not Impact.NONE]
    if (
        condition.draining
        or condition.issues
        or (Impact.CRITICAL, Status.DOWN) in counted
        or (counted and all(status is Status.DOWN for _, status in counted))
    ):
        expected = Health.UNHEALTHY
    elif condition.starting or any(status is not Status.UP for _, status in counted):
        expected = Health.PARTIAL
    else:
        expected = Health.HEALTHY
    assert node_health(tally(services), condition) is expected


@unhurried
@given(listed, st.permutations(range(12)))
def test_the_order_of_the_services_is_nothing_to_the_tally(
    services: list[tuple[Impact, Status]], order: list[int]
) -> None:
    shuffled = [services[place] for place in order if place < len(services)]
    assert tally(shuffled) == tally(services)


@unhurried
@given(listed, st.lists(st.tuples(st.integers(0, 11), st.sampled_from(Impact), st.sampled_from(Status)), max_size=30))
def test_a_tally_that_is_kept_up_equals_one_taken_anew(
    services: list[tuple[Impact, Status]], moves: list[tuple[int, Impact, Status]]
) -> None:
    services, kept = list(services), tally(services)
    for place, impact, status in moves:
        if place < len(services):
            kept = add_tallies(subtract_tallies(kept, service_tally(*services[place])), service_tally(impact, status))
            services[place] = (impact, status)
            assert kept == tally(services)


def test_taking_everything_away_leaves_an_empty_tally() -> None:
    total = tally([(CRITICAL, Status.DOWN), (PARTIAL, Status.UP)])
    assert (
        subtract_tallies(
            subtract_tallies(total, service_tally(CRITICAL, Status.DOWN)), service_tally(PARTIAL, Status.UP)
        )
        == Tally()
    )
