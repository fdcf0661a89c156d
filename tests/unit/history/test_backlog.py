"""The backlog: numbered, ordered and bounded."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from svcnode.history import backlog as module
from svcnode.history.backlog import MAX_BUCKETS, TRANSITIONS_PER_BATCH, Backlog, Batch
from svcnode.history.records import Bucket, Transition

if TYPE_CHECKING:
    import pytest

BUCKET = Bucket(0, up_s=60.0)


def draft(at_us: int, reason: str = "") -> Transition:
    return Transition(at_us, at_us / 1e6, "status", "db", "Up", "Down", reason, "timeout", 200, 503)


def filled(*times_us: int) -> Backlog:
    made = Backlog()
    for at_us in times_us:
        made.add(draft(at_us))
    return made


def ids(transitions: list[Transition]) -> list[int]:
    return [transition.id for transition in transitions]


def batch_of(backlog: Backlog) -> Batch:
    batch = backlog.next_batch()
    assert batch is not None
    return batch


@settings(max_examples=50)
@given(st.lists(st.one_of(st.integers(0, 2**52), st.tuples(st.integers(0, 2**52))), max_size=50))
def test_ids_increase_if_the_clock_is_set_back_or_a_file_has_greater_ids(steps: list[int | tuple[int]]) -> None:
    made, added = Backlog(), []
    for step in steps:
        if isinstance(step, tuple):  # a file with this sequence number is opened
            made.continue_after(step[0])
        else:
            added.append(made.add(draft(step)).id)
    assert all(before < after for before, after in pairwise(added))
    stored = ids(made.transitions())
    assert all(before < after for before, after in pairwise(stored))


def test_an_id_is_the_time_or_the_previous_id_plus_1_and_above_those_of_the_file() -> None:
    made = filled(100, 100, 50, 200)
    made.add_minute(60, {"db": BUCKET})
    made.continue_after(99)
    assert ids(made.transitions()) == [100, 101, 102, 200]
    made.continue_after(5000)
    made.add(draft(102))
    assert ids(made.transitions()) == [5001, 5002, 5003, 5004, 5006]
    assert [minute.sequence for minute in made.minutes()] == [5005]
    assert ids(made.take_unpublished(9999, 10)) == [5001, 5002, 5003, 5004, 5006]


def test_each_transition_is_published_once_in_order_up_to_the_given_id() -> None:
    made = filled(1, 2, 3, 4, 5)
    assert ids(made.take_unpublished(3, 2)) == [1, 2]
    assert ids(made.take_unpublished(3, 2)) == [3]
    assert made.take_unpublished(3, 2) == []
    assert not made.is_unpublished(3)
    assert made.is_unpublished(4)


def test_records_stay_until_they_are_marked_as_written() -> None:
    made = filled(*range(1, TRANSITIONS_PER_BATCH + 3))
    made.take_unpublished(2, 10)  # published, and still to be written
    assert batch_of(made) == batch_of(made)
    first = batch_of(made)
    assert ids(first.transitions) == [*range(1, TRANSITIONS_PER_BATCH + 1)]
    made.add(draft(TRANSITIONS_PER_BATCH + 3))
    made.add_minute(60, {"db": BUCKET})
    made.mark_written(first)
    assert len(made.transitions()) == 3
    made.mark_written(batch_of(made))
    assert made.next_batch() is None
    assert len(made) == 0


def test_a_minute_of_many_services_is_written_in_parts() -> None:
    made = Backlog()
    buckets = {str(number): BUCKET for number in range(2 * module.BUCKETS_PER_BATCH + 1)}
    made.add_minute(60, buckets)
    parts = []
    while (batch := made.next_batch()) is not None:
        parts += batch.minutes
        made.mark_written(batch)
    assert [len(part.buckets) for part in parts] == [module.BUCKETS_PER_BATCH, module.BUCKETS_PER_BATCH, 1]
    assert {service_id: bucket for part in parts for service_id, bucket in part.buckets.items()} == buckets
    assert {part.begin_s for part in parts} == {60}


def test_at_the_limit_the_oldest_transitions_are_dropped_and_pruned_to_increases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_TRANSITIONS", 100)
    made = filled(*range(1, 101))
    assert (ids(made.transitions())[0], made.pruned_to) == (1, 0)
    for at_us in range(101, 111):
        made.add(draft(at_us))
    assert ids(made.transitions())[0] == 11
    assert made.pruned_to == batch_of(made).pruned_to == 10


def test_at_the_limit_the_oldest_minutes_are_dropped() -> None:
    made = Backlog()
    buckets = {str(number): BUCKET for number in range(1000)}
    for minute in range(MAX_BUCKETS // 1000 + 5):
        made.add_minute(60 * minute, buckets)
    assert made.minutes()[0].begin_s == 300
    assert sum(len(minute.buckets) for minute in made.minutes()) == MAX_BUCKETS


def test_records_dropped_during_a_write_do_not_affect_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TRANSITIONS", 100)
    made = filled(*range(1, 101))
    made.add_minute(60, {"db": BUCKET})
    batch = batch_of(made)
    for at_us in range(110):
        made.add(draft(at_us))
    made.mark_written(batch)
    assert len(made.transitions()) == 100
    assert made.minutes() == []


def test_if_the_file_is_lost_the_history_starts_with_the_backlog_or_now() -> None:
    made = filled(1, 2, 3)
    made.mark_written(Batch(made.transitions()[:2], [], 0))
    made.mark_file_lost(now_us=100)
    assert made.pruned_to == 2
    made.mark_written(batch_of(made))
    made.mark_file_lost(now_us=100)
    assert made.pruned_to == 100
    assert made.add(draft(50)).id == 101


def test_only_the_newest_saved_state_is_written_and_once_per_file() -> None:
    made = Backlog()
    assert made.next_batch() is None
    made.set_saved_state("first")
    made.set_saved_state("second")
    batch = batch_of(made)
    assert (batch.saved_state, len(made)) == ("second", 1)
    made.set_saved_state("third")  # during the write
    made.mark_written(batch)
    assert batch_of(made).saved_state == "third"
    made.mark_written(batch_of(made))
    made.set_saved_state("third")
    assert (made.next_batch(), len(made)) == (None, 0)
    made.mark_file_lost(0)
    assert batch_of(made).saved_state == "third"


def test_a_minute_with_latencies_is_written_in_smaller_parts_which_have_those_of_their_services() -> None:
    made = Backlog()
    ids = [str(number) for number in range(600)]
    made.add_minute(60, dict.fromkeys(ids, BUCKET), None, {one: {1: 1} for one in ids})
    parts = made.minutes()
    assert [len(part.buckets) for part in parts] == [250, 250, 100]
    assert all(list(part.latencies) == list(part.buckets) for part in parts)
