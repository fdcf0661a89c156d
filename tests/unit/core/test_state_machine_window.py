"""The rule about failures that are not in a row: short tests, properties, and services that work some of the time."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svcnode.core.codes import ReasonCode
from svcnode.core.model import NO_FAILURES, Evidence, Policy, Schedule, ServiceState, Status, Verdict
from svcnode.core.state_machine import initial_state, is_change_pending, next_state

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEDULE = Schedule()
# The default policy of a service with a probe.
POLICY = Policy(stale_after_s=SCHEDULE.default_stale_after_s, window_s=10 * SCHEDULE.interval_s)

READY = Verdict.ready()
LOADING = Verdict.not_ready("loading", code=ReasonCode.STARTING)
FAILED = Verdict.failed("refused", code=ReasonCode.CONNECTION_REFUSED)
UNKNOWN = Verdict.unknown("no descriptors", code=ReasonCode.RESOURCE_EXHAUSTED)
LETTERS = {"S": READY, "F": FAILED, "L": LOADING, "U": UNKNOWN, " ": None}


def after(
    results: str, policy: Policy = POLICY, state: ServiceState | None = None, step_s: float = 10.0
) -> ServiceState:
    """The state after these results: success, failure, loading, unknown."""
    state = initial_state(0.0) if state is None else state
    now_s = state.last_evidence_at_s or 0.0
    for letter in results:
        if verdict := LETTERS[letter]:
            now_s += step_s
            state = next_state(state, Evidence(verdict, now_s), policy)
    return state


def is_unreliable(state: ServiceState) -> bool:
    return (state.status, state.code) == (Status.INITIALIZING, ReasonCode.UNRELIABLE)


# ---- the rule

# What the defaults make of results at intervals of some seconds: "Up", "Down" or "unreliable".
CASES = [
    # Four failures among ten checks are allowed, a fifth is not.
    ("S FS FS FS FS", 10.0, "Up"),
    ("S FS FS FS FS F", 10.0, "unreliable"),
    ("S FS FS FS FS SSS F", 10.0, "Up"),
    ("S FFS FFS F", 10.0, "unreliable"),
    # One failure among ten checks is few enough to be Up again.
    ("S FS FS FS FS F SSSSSSS", 10.0, "unreliable"),
    ("S FS FS FS FS F SSSSSSSS", 10.0, "Up"),
    # Not ready is a check that did not fail; its reason is shown also of a service that is unreliable.
    ("S FL FL FL FL S", 10.0, "Up"),
    ("S FL FL FL FL F", 10.0, "unreliable"),
    ("S FS FS FS FS F L", 10.0, "starting"),
    ("S FS FS FS FS F L S", 10.0, "unreliable"),
    # One outage of any length is over after `rise` successes.
    ("SSSS FFF SS", 10.0, "Up"),
    ("SSSS FFFFFFFFFFFFFFF SS", 10.0, "Up"),
    # A third one within ten intervals makes a service unreliable, and so do shorter ones with those that ended in Down.
    ("S FFFSS FFFSS", 2.0, "Up"),
    ("S FFFSS FFFSS FFF", 2.0, "Down"),
    ("S FFFSS FFFSS FFFSS", 2.0, "unreliable"),
    ("S FFFSS FFS FFSS", 2.0, "unreliable"),
    ("S FFFSS FFFSS FFFSS FFFSS", 10.0, "Up"),
    # Failures before an outage still count after it.
    ("S FS FS FS FFF SS", 10.0, "Up"),
    ("S FS FS FS FFF SS F", 10.0, "unreliable"),
    ("S FS FS FS FS FFF SS", 10.0, "unreliable"),
    ("S FS FS FS FS FS FFF SS", 10.0, "unreliable"),
    # An unreliable service has no start period.
    ("S FS FS FS FS FFF", 1.0, "Down"),
]


@pytest.mark.parametrize(("results", "step_s", "expected"), CASES)
def test_too_many_failures_make_a_service_unreliable(results: str, step_s: float, expected: str) -> None:
    state = after(results, step_s=step_s)
    assert expected == (state.code if state.status is Status.INITIALIZING else state.status.value)


def test_an_unreliable_service_has_the_latest_failure_as_reason_and_keeps_its_since() -> None:
    state = after("S FS FS FS FS F")
    assert (state.recent_failures.failure_count, state.since_s) == (5, state.last_evidence_at_s)
    assert FAILED.reason in state.reason
    assert after("SFS", state=state).since_s == state.since_s


def test_failures_before_the_first_success_and_unknown_do_not_count() -> None:
    state = after("FF FF FF FF S", step_s=1.0)
    assert (state.status, state.recent_failures) == (Status.UP, NO_FAILURES)
    assert after("S FS FS FS FS UUUUU S").recent_failures == after("S FS FS FS FS S").recent_failures


# ---- outages


def test_an_outage_that_ended_in_down_counts_once() -> None:
    state = after("S FFFFFF SS", step_s=2.0)
    assert (state.recent_failures.failure_count, len(state.recent_failures.repeated_at_s)) == (1, 2)
    assert after("SSSSSSSSSS", state=state).recent_failures == NO_FAILURES


def test_a_service_that_was_down_again_and_again_is_up_after_ten_intervals_without_an_outage() -> None:
    state = after("S FFFSS FFFSS FFFSS", step_s=2.0)
    state = after("SSSSSSSSS", state=state)
    assert is_unreliable(state)
    assert after("S", state=state).status is Status.UP


def test_outages_before_a_long_outage_are_forgotten_after_ten_checks() -> None:
    state = after("FFFFFFFFFFF", state=after("S FFFSS FFFSS FFF", step_s=2.0))
    assert (state.status, state.recent_failures.repeated_at_s) == (Status.DOWN, ())
    assert after("SS SSSSSSSS", state=state, step_s=2.0).status is Status.UP


def test_a_start_that_fails_between_responses_that_are_not_ready_is_one_outage() -> None:
    state = after("FFFL FFFL FFL FFFL", state=after("SSSS"), step_s=2.0)
    assert len(state.recent_failures.repeated_at_s) == POLICY.outage_failures
    assert after("S", state=state, step_s=2.0).status is Status.UP


def test_the_checks_stay_quick_for_ten_intervals_after_an_outage() -> None:
    state = after("S FFFSS", step_s=2.0)
    assert is_change_pending(state)
    state = after("S" * 47, state=state, step_s=2.0)
    assert is_change_pending(state)
    assert not is_change_pending(after("S", state=state, step_s=2.0))


def test_a_long_count_of_failures_makes_a_service_unreliable_and_then_down_and_then_up() -> None:
    tolerant = Policy(fall=8)
    state = after("S FFFFF", tolerant)
    assert is_unreliable(state)
    state = after("FFF", tolerant, state)
    assert state.status is Status.DOWN
    assert after("SS", tolerant, state).status is Status.UP


# ---- failures that the next check repeats


def test_repeated_failures_count_for_ten_intervals_however_many_checks_follow() -> None:
    state = after("S FFSSSSSSSSSS FFSSSSSSSSSS", step_s=2.0)
    recent = state.recent_failures
    assert (state.status, recent.failure_count, len(recent.repeated_at_s)) == (Status.UP, 0, 4)
    assert after("SSSSSSSSSS", state=state).recent_failures == NO_FAILURES
    state = after("FF", state=state, step_s=2.0)
    assert is_unreliable(state)
    assert len(state.recent_failures.repeated_at_s) == 5  # more need not be known


def test_an_unreliable_service_is_up_again_when_its_short_outages_are_ten_intervals_ago() -> None:
    state = after("S FFS FFS FF", step_s=2.0)
    state = after("SSSSSSSSS", state=state)
    assert is_unreliable(state)  # no failure among the last nine checks, but the outages are 90 s ago
    assert after("SS", state=state).status is Status.UP


# ---- other policies


def test_without_a_window_the_rule_is_off_and_a_smaller_one_counts_only_its_own_checks() -> None:
    off = Policy(window=0)
    assert after("S" + "FS" * 50, off).status is Status.UP
    assert after("S" + "FS" * 50, off).recent_failures is NO_FAILURES
    state = after("S FS FS FS FS F")
    assert after("F", off, state).recent_failures is NO_FAILURES
    assert after("S", off, state).status is Status.UP
    assert after("S", Policy(window=5), after("S FS FS FS FS")).recent_failures.failure_count == 2


# ---- properties

brief = settings(max_examples=80)
results = st.lists(st.sampled_from("SSFFLU"), max_size=40).map("".join)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    window = draw(st.integers(1, 12))
    max_failures = draw(st.integers(0, window - 1))
    return Policy(
        rise=draw(st.integers(1, 3)),
        fall=draw(st.integers(1, 4)),
        start_period_s=0.0,
        window=window,
        max_failures=max_failures,
        recovery_failures=draw(st.integers(0, max_failures)),
        window_s=draw(st.sampled_from([0.0, 35.0, 100.0])),
    )


def states_of(letters: str, policy: Policy) -> list[ServiceState]:
    states = [initial_state(0.0)]
    for letter in letters:
        states.append(after(letter, policy, states[-1]))
    return states


@brief
@given(results, policies())
def test_the_failures_are_those_of_the_last_checks_with_each_outage_as_one(letters: str, policy: Policy) -> None:
    """The same from the whole list of results: a run of failures that ends in Down is one failure."""
    window = max(2, policy.window)
    policy = replace(policy, window=window, max_failures=window - 1, recovery_failures=0, window_s=math.inf)
    counted: list[bool] = []
    before_run: list[bool] = []
    has_been_ready = is_counted = False  # since the last outage; in this run
    for letter, (before, state) in zip(letters, pairwise(states_of(letters, policy)), strict=True):
        has_been_ready = has_been_ready or letter == "S"
        if letter == "F" and not before.failures_in_a_row:
            before_run, is_counted = list(counted), has_been_ready
        if letter == "F" and is_counted and before.status is not Status.DOWN:
            counted.append(True)
            has_been_ready = has_been_ready and not before.failures_in_a_row
        elif letter == "L" or (letter == "S" and state.status is not Status.DOWN):
            counted.append(False)
        if letter == "F" and state.status is Status.DOWN:
            counted = list(before_run)
            if before.status is not Status.DOWN and is_counted:
                counted.append(True)
                has_been_ready = False
            before_run = list(counted)
        bits = counted[-policy.window :]
        assert state.recent_failures.failure_count == sum(bits)
        assert state.recent_failures.failures == sum(1 << place for place, bit in enumerate(reversed(bits)) if bit)


@brief
@given(results, policies())
def test_no_service_is_up_with_more_failures_than_allowed_or_than_it_recovers_with(
    letters: str, policy: Policy
) -> None:
    for before, state in pairwise(states_of(letters, policy)):
        recent = state.recent_failures
        if before.recent_failures.is_unreliable and not recent.is_unreliable and state.status is not Status.DOWN:
            assert max(recent.failure_count, len(recent.repeated_at_s)) <= policy.recovery_failures
        assert recent.failures < 1 << policy.window
        assert len(recent.repeated_at_s) <= policy.max_failures + 1
        if state.status is Status.UP:
            assert not recent.is_unreliable
            # One outage is always allowed.
            assert max(recent.failure_count, len(recent.repeated_at_s)) <= max(1, policy.max_failures)
        if state.code == ReasonCode.UNRELIABLE:
            assert recent.is_unreliable


@brief
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(12, 15)), max_size=5), policies())
def test_a_service_with_outages_that_are_far_apart_is_up_after_each_of_them(
    outages: list[tuple[int, int]], policy: Policy
) -> None:
    state = after("S", policy)
    for longer, successes in outages:
        state = after("F" * (policy.fall + longer), policy, state)
        assert state.status is Status.DOWN
        state = after("S" * policy.rise, policy, state)
        assert state.status is Status.UP
        state = after("S" * successes, policy, state)
        assert (state.status, state.recent_failures) == (Status.UP, NO_FAILURES)


@brief
@given(results, policies())
def test_enough_successes_bring_every_service_up(letters: str, policy: Policy) -> None:
    steps = policy.window + policy.rise + math.ceil(policy.window_s / 10.0)
    state = after("S" * steps, policy, states_of(letters, policy)[-1])
    assert (state.status, state.recent_failures) == (Status.UP, NO_FAILURES)


# ---- services that work some of the time, checked with the schedule and the policy of the defaults

JITTER = 0.05


def share_up(fails_at: Callable[[float], bool], seed: int, *, hours: float = 1.0) -> float:
    """The share of the time in which the service is Up. A check takes no time."""
    rng = random.Random(seed)
    now_s, up_s = rng.uniform(0.0, SCHEDULE.interval_s), 0.0
    state = next_state(initial_state(0.0), Evidence(READY, now_s), POLICY)
    began_s, end_s = now_s, now_s + hours * 3600
    while now_s < end_s:
        wait_s = SCHEDULE.wait_s(is_change_pending=is_change_pending(state)) * (1 + rng.uniform(-JITTER, JITTER))
        if state.status is Status.UP:
            up_s += wait_s
        now_s += wait_s
        state = next_state(state, Evidence(FAILED if fails_at(now_s) else READY, now_s), POLICY)
    return up_s / (now_s - began_s)


def mean_share_up(make: Callable[[random.Random], Callable[[float], bool]], *, runs: int, hours: float = 1.0) -> float:
    return sum(share_up(make(random.Random(seed)), seed, hours=hours) for seed in range(runs)) / runs


def crash_loop(up_s: float, down_s: float) -> Callable[[random.Random], Callable[[float], bool]]:
    """A server that runs for a time, crashes, and is restarted; from any phase."""

    def make(rng: random.Random) -> Callable[[float], bool]:
        phase_s = rng.uniform(0.0, up_s + down_s)
        return lambda now_s: (now_s + phase_s) % (up_s + down_s) >= up_s

    return make


def test_a_crash_loop_of_12_s_up_and_3_s_down_is_not_up() -> None:
    """Up only until it is noticed: no three checks in a row fail, and only some of the first checks meet the 3 s."""
    assert mean_share_up(crash_loop(12.0, 3.0), runs=12) < 0.12


@pytest.mark.parametrize(("up_s", "down_s"), [(6.0, 3.0), (12.0, 6.0), (40.0, 8.0)])
def test_a_crash_loop_is_not_up(up_s: float, down_s: float) -> None:
    """With outages that are too short for Down, and with longer ones."""
    assert mean_share_up(crash_loop(up_s, down_s), runs=8) < 0.08
