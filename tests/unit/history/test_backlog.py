"""What waits to be written and told: numbered, in order, and never without end."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from svcnode.history import backlog as module
from svcnode.history.backlog import MAX_BUCKETS, MAX_TRANSITIONS, TRANSITIONS_PER_BATCH, Backlog, Batch
from svcnode.history.records import Bucket, Transition

BAR = Bucket(0, up_s=60.0)


def draft(at_us: int, reason: str = "") -> Transition:
    return Transition(at_us, at_us / 1e6, "status", "db", "Up", "Down", reason, 200, 503)


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


def test_an_id_is_the_time_or_one_more_than_the_last() -> None:
    assert ids(filled(100, 100, 50, 200).transitions()) == [100, 101, 102, 200]


@given(st.lists(st.one_of(st.integers(0, 2**52), st.tuples(st.integers(0, 2**52))), max_size=50))
def test_ids_grow_whatever_the_clock_does_and_however_far_others_had_come(steps: list[int | tuple[int]]) -> None:
    made, told = Backlog(), []
    for step in steps:
        if isinstance(step, tuple):  # a file was opened, in which the numbers had come so far
            made.continue_after(step[0])
        else:
            told.append(made.add(draft(step)).id)
    assert all(before < after for before, after in pairwise(told))
    kept = ids(made.transitions())
    assert all(before < after for before, after in pairwise(kept))


def test_what_came_before_the_file_was_open_is_numbered_above_what_is_in_it() -> None:
    made = filled(100, 101)
    made.add_minute(60, {"db": BAR})
    made.continue_after(5000)
    made.add(draft(102))
    assert ids(made.transitions()) == [5001, 5002, 5004]
    assert [minute.sequence for minute in made.minutes()] == [5003]
    assert ids(made.take_unpublished(9999, 10)) == [5001, 5002, 5004]


def test_what_is_numbered_above_already_is_left_as_it_is() -> None:
    made = filled(100, 101)
    made.continue_after(99)
    assert ids(made.transitions()) == [100, 101]


def test_each_is_told_once_and_in_order_as_far_as_is_said() -> None:
    made = filled(1, 2, 3, 4, 5)
    assert ids(made.take_unpublished(3, 2)) == [1, 2]
    assert ids(made.take_unpublished(3, 2)) == [3]
    assert made.take_unpublished(3, 2) == []
    assert not made.is_unpublished(3)
    assert made.is_unpublished(4)


def test_what_is_told_is_still_to_be_written() -> None:
    made = filled(1, 2)
    made.take_unpublished(2, 10)
    assert ids(batch_of(made).transitions) == [1, 2]


def test_nothing_goes_before_it_is_said_to_be_written() -> None:
    made = filled(1, 2)
    made.add_minute(60, {"db": BAR})
    assert batch_of(made) == batch_of(made)
    made.mark_written(batch_of(made))
    assert made.next_batch() is None
    assert len(made) == 0


def test_what_comes_while_a_batch_is_written_stays() -> None:
    made = filled(1, 2)
    batch = batch_of(made)
    made.add(draft(3))
    made.add_minute(60, {"db": BAR})
    made.mark_written(batch)
    assert ids(made.transitions()) == [3]
    assert len(made.minutes()) == 1


def test_much_is_written_in_several_batches() -> None:
    made = filled(*range(TRANSITIONS_PER_BATCH + 1))
    first = batch_of(made)
    made.mark_written(first)
    assert (len(first.transitions), len(batch_of(made).transitions)) == (TRANSITIONS_PER_BATCH, 1)


def test_a_minute_of_many_services_is_written_in_parts() -> None:
    made = Backlog()
    bars = {str(number): BAR for number in range(2 * module.BUCKETS_PER_BATCH + 1)}
    made.add_minute(60, bars)
    parts = []
    while (batch := made.next_batch()) is not None:
        parts += batch.minutes
        made.mark_written(batch)
    assert [len(part.buckets) for part in parts] == [module.BUCKETS_PER_BATCH, module.BUCKETS_PER_BATCH, 1]
    assert {service_id: bar for part in parts for service_id, bar in part.buckets.items()} == bars
    assert {part.begin_s for part in parts} == {60}


def test_when_there_is_too_much_the_oldest_transitions_go_and_that_is_known() -> None:
    made = filled(*range(1, MAX_TRANSITIONS + 11))
    assert ids(made.transitions())[0] == 11
    assert made.pruned_to == 10
    assert batch_of(made).pruned_to == 10


def test_when_there_is_too_much_the_oldest_minutes_go() -> None:
    made = Backlog()
    bars = {str(number): BAR for number in range(1000)}
    for minute in range(MAX_BUCKETS // 1000 + 5):
        made.add_minute(60 * minute, bars)
    assert made.minutes()[0].begin_s == 300
    assert sum(len(minute.buckets) for minute in made.minutes()) == MAX_BUCKETS


def test_a_batch_of_which_something_had_to_go_meanwhile_takes_nothing_else_along() -> None:
    made = filled(*range(1, MAX_TRANSITIONS + 1))
    made.add_minute(60, {"db": BAR})
    batch = batch_of(made)
    for at_us in range(TRANSITIONS_PER_BATCH + 10):
        made.add(draft(at_us))
    made.mark_written(batch)
    assert len(made.transitions()) == MAX_TRANSITIONS
    assert made.minutes() == []


def test_when_the_file_is_lost_only_what_is_here_is_left() -> None:
    made = filled(1, 2, 3)
    made.mark_written(Batch(made.transitions()[:2], [], 0))
    made.mark_file_lost(now_us=100)
    assert made.pruned_to == 2


def test_when_the_file_is_lost_and_nothing_waits_all_before_now_is_gone() -> None:
    made = filled(1)
    made.mark_written(batch_of(made))
    made.mark_file_lost(now_us=100)
    assert made.pruned_to == 100
    assert made.add(draft(50)).id == 101


def test_of_notes_only_the_newest_is_written_and_only_once() -> None:
    made = Backlog()
    assert made.next_batch() is None
    made.set_saved_state("first")
    made.set_saved_state("second")
    batch = batch_of(made)
    assert (batch.saved_state, len(made)) == ("second", 1)
    made.mark_written(batch)
    made.set_saved_state("second")
    assert (made.next_batch(), len(made)) == (None, 0)


def test_a_note_that_comes_while_another_is_written_is_written_next() -> None:
    made = Backlog()
    made.set_saved_state("first")
    batch = batch_of(made)
    made.set_saved_state("second")
    made.mark_written(batch)
    assert batch_of(made).saved_state == "second"


def test_when_the_file_is_lost_the_note_is_written_into_the_next_one() -> None:
    made = Backlog()
    made.set_saved_state("first")
    made.mark_written(batch_of(made))
    made.mark_file_lost(0)
    assert batch_of(made).saved_state == "first"
