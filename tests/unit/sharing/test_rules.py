"""Who observes a service, and when it is Up."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Policy, Status
from svcnode.core.state_machine import as_of, initial_state
from svcnode.sharing.format import service_document
from svcnode.sharing.rules import (
    MergedState,
    candidates,
    choose_observers,
    majority,
    newest_report,
    observers,
    renewal_due_at_s,
    service_state,
)
from svcnode.sharing.view import ObservedState, SharedService

UP, INITIALIZING, DOWN = Status.UP, Status.INITIALIZING, Status.DOWN
VALID_S = 10.0
REPLICAS = tuple(f"host-{number}" for number in range(5))


def service(service_id: str = "db", owners: tuple[str, ...] = ("client",), **options: Any) -> SharedService:
    options = options if options.keys() & {"probe", "ttl", "status"} else {"probe": "tcp://a:1", **options}
    return SharedService(service_id, service_document(service_id, options, 0), owners, (1, 0))


def state(observer: str, status: Status, at_s: float | None = 0.0, since_s: float | None = None) -> ObservedState:
    return ObservedState(observer, status, f"by {observer}", "other", at_s, since_s, 1)


def states(*statuses: Status, at_s: float = 0.0) -> list[ObservedState]:
    return [state(f"host-{number}", status, at_s) for number, status in enumerate(statuses)]


# ---- observers

FEW = settings(max_examples=30)
replica_sets = st.sets(st.text(min_size=1, max_size=5), max_size=8)


@FEW
@given(st.text(min_size=1, max_size=9), replica_sets, st.integers(1, 5), st.randoms())
def test_all_replicas_choose_the_same_observers(service_id: str, replicas: set[str], count: int, random: Any) -> None:
    chosen = observers(service("db", observers=count)._replace(id=service_id), replicas)
    shuffled = list(replicas)
    random.shuffle(shuffled)
    assert chosen == observers(service("db", observers=count)._replace(id=service_id), shuffled)
    assert len(chosen) == len(set(chosen)) == min(count, len(replicas))


@FEW
@given(replica_sets.filter(bool), st.integers(1, 3))
def test_a_replica_that_leaves_moves_only_its_own_services(replicas: set[str], count: int) -> None:
    leaving = min(replicas)
    for number in range(5):
        each = service(f"service-{number}", observers=count)
        before, after = observers(each, replicas), observers(each, replicas - {leaving})
        assert [name for name in before if name != leaving] == list(after[: len(before) - (leaving in before)])


@FEW
@given(st.lists(st.tuples(replica_sets, st.integers(1, 3)), min_size=2, max_size=5))
def test_a_choice_does_not_depend_on_the_choices_before(steps: list[tuple[set[str], int]]) -> None:
    choice = None
    for replicas, count in steps:
        each = service(observers=count)
        choice = choose_observers(each, replicas, choice)
        assert choice.observers == observers(each, replicas)


def test_services_are_spread_evenly_also_after_a_replica_has_left() -> None:
    services = [service(f"service-{number}") for number in range(1000)]
    for replicas in (REPLICAS, REPLICAS[1:]):
        load = Counter(observers(each, replicas)[0] for each in services)
        fair = len(services) / len(replicas)
        assert load.keys() == set(replicas)
        assert all(0.8 * fair < count < 1.2 * fair for count in load.values())


def test_only_owners_check_what_is_restricted() -> None:
    restricted = service(probe="exec:/bin/true", owners=("replica:host-1", "replica:gone", "host-2"), observers=7)
    assert observers(restricted, REPLICAS) == ("host-1",)


def test_only_the_named_replicas_check_what_is_pinned() -> None:
    assert candidates(service(checked_by=["host-1", "gone"]), REPLICAS) == {"host-1"}
    assert observers(service(checked_by=["gone"]), REPLICAS) == ()


def test_the_owners_observe_a_service_that_reports() -> None:
    owners = ("client", "replica:gone", "replica:host-2", "replica:host-1")
    assert observers(service(ttl="5s", owners=owners), REPLICAS) == ("host-1", "host-2")


# ---- majority


@pytest.mark.parametrize(
    ("votes", "count", "expected"),
    [
        ([UP], 1, UP),
        ([DOWN], 1, DOWN),
        ([], 1, None),
        ([], 0, None),
        ([UP, UP, DOWN], 3, UP),
        ([DOWN, UP, DOWN], 3, DOWN),
        ([UP, UP], 3, UP),
        ([UP, DOWN], 3, None),  # the third could decide
        ([UP], 3, None),
        ([UP, DOWN, INITIALIZING], 3, INITIALIZING),
        ([UP, DOWN], 2, INITIALIZING),
        ([UP], 2, None),
        ([UP, UP, DOWN], 4, None),
        ([UP, UP, DOWN, DOWN], 4, INITIALIZING),
        ([UP, DOWN, INITIALIZING], 4, INITIALIZING),  # no status can get three votes any more
    ],
)
def test_more_than_half_of_the_observers_decide(votes: list[Status], count: int, expected: Status | None) -> None:
    merged = majority(states(*votes), count, VALID_S, 1.0)
    assert (None if merged is None else merged.status) is expected


def test_a_disagreement_has_its_own_code_and_names_the_votes() -> None:
    merged = majority(states(UP, DOWN), 2, VALID_S, 1.0)
    assert merged is not None
    assert merged.code == ReasonCode.OBSERVERS_DISAGREE
    assert "host-0 Up, host-1 Down" in merged.reason


def test_a_majority_is_valid_as_long_as_so_many_votes_are() -> None:
    votes = [state("a", UP, 1.0), state("b", UP, 5.0), state("c", UP, 3.0)]
    merged = majority(votes, 3, VALID_S, 6.0)
    assert merged is not None
    assert merged.evidence_at_s == 3.0


def test_a_majority_holds_since_the_vote_that_made_it() -> None:
    votes = [state("a", UP, 9.0, 7.0), state("b", UP, 9.0, 2.0), state("c", UP, 9.0, 4.0)]
    merged = majority(votes, 3, VALID_S, 9.0)
    assert merged is not None
    assert (merged.since_s, merged.reason) == (4.0, "by a")


observed_states = st.lists(
    st.tuples(st.sampled_from(Status), st.none() | st.floats(-30, 30), st.none() | st.floats(-30, 30)), max_size=5
)


@given(observed_states, st.integers(0, 3), st.floats(0, 30))
def test_a_service_is_up_only_with_a_majority_of_valid_votes(votes: Any, missing: int, now_s: float) -> None:
    given_states = [state(str(number), status, at_s, since_s) for number, (status, at_s, since_s) in enumerate(votes)]
    count = len(given_states) + missing
    merged = majority(given_states, count, VALID_S, now_s)
    valid_up = [
        each.evidence_at_s
        for each in given_states
        if each.status is UP and each.evidence_at_s is not None and now_s < each.evidence_at_s + VALID_S
    ]
    assert (merged is not None and merged.status is UP) == (2 * len(valid_up) > count)
    if merged is not None and merged.status is UP:
        assert merged.evidence_at_s is not None
        # At any later time until it expires, more than half of all observers still have valid evidence.
        assert 2 * sum(at_s >= merged.evidence_at_s for at_s in valid_up) > count


@given(observed_states, st.floats(0, 30), st.floats(0, 60))
def test_a_node_shows_up_only_until_the_evidence_of_the_majority_expires(
    votes: Any, now_s: float, later_s: float
) -> None:
    given_states = [state(str(number), status, at_s, since_s) for number, (status, at_s, since_s) in enumerate(votes)]
    merged = majority(given_states, len(given_states), VALID_S, now_s)
    if merged is None:
        return
    policy = Policy(stale_after_s=VALID_S, stale_code=ReasonCode.REGISTRY_LOST)
    shown = as_of(service_state(merged, initial_state(0.0), now_s), now_s + later_s, policy)
    if shown.status is UP:
        ups = [each for each in given_states if each.status is UP and each.evidence_at_s is not None]
        valid = [each for each in ups if now_s + later_s < (each.evidence_at_s or 0.0) + VALID_S]
        assert 2 * len(valid) > len(given_states)


def test_evidence_is_passed_on_long_before_the_known_one_expires() -> None:
    assert 5.0 < renewal_due_at_s(5.0, VALID_S) < 5.0 + VALID_S / 2


# ---- reports


def test_the_newest_report_counts() -> None:
    merged = newest_report([state("a", UP, 1.0), state("b", DOWN, 2.0), state("c", UP, None)], VALID_S, 3.0)
    assert merged is not None
    assert (merged.status, merged.evidence_at_s) == (DOWN, 2.0)
    assert newest_report([], VALID_S, 3.0) is None


def test_a_report_of_unknown_time_may_say_down_but_not_up() -> None:
    assert newest_report([state("a", UP, None)], VALID_S, 3.0) is None
    merged = newest_report([state("a", DOWN, None)], VALID_S, 3.0)
    assert merged is not None
    assert (merged.status, merged.evidence_at_s) == (DOWN, None)


def test_an_up_report_of_unknown_time_is_not_replaced_by_an_older_one() -> None:
    old, new = state("a", DOWN, None), state("b", UP, None)._replace(mod_revision=2)
    assert newest_report([new, old], VALID_S, 3.0) is None


# ---- with a view


# ---- the state in the node


def test_the_node_keeps_the_time_of_the_status_while_it_does_not_change() -> None:
    first = service_state(MergedState(UP, "", "ok", 5.0, 4.0), initial_state(0.0), 6.0)
    second = service_state(MergedState(UP, "", "ok", 9.0, 8.0), first, 9.0)
    third = service_state(MergedState(DOWN, "", "other", 10.0, None), second, 11.0)
    assert [each.since_s for each in (first, second, third)] == [4.0, 4.0, 11.0]
    assert (second.last_ready_at_s, third.last_ready_at_s, third.last_evidence_at_s) == (9.0, 9.0, 10.0)


def test_a_state_is_not_dated_in_the_future() -> None:
    assert service_state(MergedState(UP, "", "ok", 5.0, 99.0), initial_state(0.0), 6.0).since_s == 6.0
