"""The time per status: every second counts once, in its own minute, or not at all."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcnode.core.model import Status
from svcnode.history.aggregator import MAX_GAP_S, MinuteAggregator
from svcnode.history.backlog import Backlog
from svcnode.history.records import Bucket, ClosedMinute

UP, INITIALIZING, DOWN = Status.UP, Status.INITIALIZING, Status.DOWN
NOON = 1_767_268_800.0


class Harness:
    """An aggregator that starts at noon and gets a tick per second."""

    def __init__(self) -> None:
        self.backlog = Backlog()
        self.aggregator = MinuteAggregator(NOON, self.backlog)
        self.now_s = NOON

    @property
    def minutes(self) -> list[ClosedMinute]:
        return self.backlog.minutes()

    def status(self, status: Status | None, service_id: str = "db", since_s: float | None = None) -> None:
        self.aggregator.set_status(service_id, status, self.now_s if since_s is None else since_s, self.now_s)

    def wait(self, seconds: float) -> None:
        """Tick every second, without closing a minute."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s = min(until_s, self.now_s + 1)
            self.aggregator.tick(self.now_s)

    def close(self) -> None:
        while self.aggregator.close_some(1):
            pass

    def buckets(self, service_id: str = "db") -> list[Bucket]:
        self.close()
        return [minute.buckets[service_id] for minute in self.minutes if service_id in minute.buckets]

    def unwritten(self, service_id: str = "db") -> list[Bucket]:
        return self.aggregator.unwritten_buckets([service_id])[service_id]


def test_a_service_that_is_always_up_is_up_for_every_second() -> None:
    harness = Harness()
    harness.status(UP)
    harness.wait(120)
    assert harness.buckets() == [Bucket(int(NOON), up_s=60.0), Bucket(int(NOON) + 60, up_s=60.0)]


def test_a_minute_is_split_where_the_status_changes() -> None:
    harness = Harness()
    harness.status(INITIALIZING)
    harness.wait(10)
    harness.status(UP)
    harness.wait(20.5)
    harness.status(DOWN)
    harness.wait(40)
    assert harness.buckets() == [Bucket(int(NOON), initializing_s=10.0, up_s=20.5, down_s=29.5)]


def test_a_change_counts_from_its_time_not_from_its_recording() -> None:
    harness = Harness()
    harness.status(UP)
    harness.wait(30)
    harness.status(DOWN, since_s=NOON + 20)
    harness.wait(30)
    assert harness.buckets() == [Bucket(int(NOON), up_s=20.0, down_s=40.0)]


def test_a_closed_minute_does_not_change() -> None:
    harness = Harness()
    harness.status(UP)
    harness.wait(70)
    harness.status(DOWN, since_s=NOON + 50)
    harness.wait(50)
    assert harness.buckets() == [Bucket(int(NOON), up_s=60.0), Bucket(int(NOON) + 60, down_s=60.0)]


def test_a_change_at_the_start_of_a_minute_counts_in_that_minute() -> None:
    harness = Harness()
    harness.status(UP)
    harness.wait(59.5)
    harness.now_s = NOON + 60.25  # without a tick
    harness.status(DOWN)
    harness.wait(59.75)
    assert harness.buckets() == [Bucket(int(NOON), up_s=60.0), Bucket(int(NOON) + 60, up_s=0.25, down_s=59.75)]


def test_a_change_while_a_minute_is_closed_counts_in_the_next_minute() -> None:
    harness = Harness()
    for service_id in ("a", "b", "c"):
        harness.status(UP, service_id)
    harness.wait(60)
    assert harness.aggregator.close_some(1)
    harness.wait(5)
    harness.aggregator.add_check("c", 0.5, is_failure=True)
    harness.status(DOWN, "c")
    harness.wait(55)
    first, second = harness.buckets("c")
    assert (first.up_s, first.checks) == (60.0, 0)
    assert (second.up_s, second.down_s, second.checks, second.failures) == (5.0, 55.0, 1, 1)


def test_a_minute_that_is_closed_in_steps_is_passed_on_once() -> None:
    harness = Harness()
    for service_id in "abcdefg":
        harness.status(UP, service_id)
    harness.wait(60)
    steps = 0
    while harness.aggregator.close_some(2):
        assert not harness.minutes
        steps += 1
    assert steps == 4
    assert [sorted(minute.buckets) for minute in harness.minutes] == [list("abcdefg")]


def test_an_unclosed_minute_is_closed_before_the_next_one() -> None:
    harness = Harness()
    harness.status(UP)
    harness.wait(180)
    assert [minute.begin_s for minute in harness.minutes] == [int(NOON), int(NOON) + 60]


def test_checks_and_their_latency_are_counted() -> None:
    harness = Harness()
    harness.status(UP)
    for duration_s in (0.25, 0.5, 0.125):
        harness.aggregator.add_check("db", duration_s, is_failure=duration_s == 0.5)
    harness.wait(60)
    (bucket,) = harness.buckets()
    assert (bucket.checks, bucket.failures, bucket.latency_sum_s, bucket.latency_max_s) == (3, 1, 0.875, 0.5)


def test_a_check_of_an_unknown_service_is_ignored() -> None:
    harness = Harness()
    harness.aggregator.add_check("db", 0.1, is_failure=False)
    harness.wait(60)
    assert harness.buckets() == []


def test_time_without_ticks_counts_for_no_status() -> None:
    harness = Harness()
    harness.status(UP)
    harness.wait(10)
    harness.now_s += 600
    harness.aggregator.tick(harness.now_s)
    harness.wait(50)
    assert harness.buckets() == [Bucket(int(NOON), up_s=10.0), Bucket(int(NOON) + 600, up_s=50.0)]


def test_a_change_during_a_gap_counts_from_the_end_of_the_gap() -> None:
    harness = Harness()
    harness.status(UP)
    harness.wait(10)
    harness.now_s += 600
    harness.status(DOWN, since_s=NOON + 300)
    harness.wait(50)
    assert harness.buckets() == [Bucket(int(NOON), up_s=10.0), Bucket(int(NOON) + 600, down_s=50.0)]


def test_a_late_tick_loses_no_time() -> None:
    harness = Harness()
    harness.status(UP)
    harness.wait(58)
    harness.now_s += MAX_GAP_S
    harness.aggregator.tick(harness.now_s)
    harness.wait(57)
    assert harness.buckets() == [Bucket(int(NOON), up_s=60.0), Bucket(int(NOON) + 60, up_s=60.0)]


def test_if_the_clock_is_set_back_counting_continues_there() -> None:
    harness = Harness()
    harness.status(UP)
    harness.wait(30)
    harness.now_s -= 3600
    harness.aggregator.tick(harness.now_s)
    harness.wait(30)
    assert harness.buckets() == [Bucket(int(NOON), up_s=30.0), Bucket(int(NOON) - 3600, up_s=30.0)]


def test_a_small_step_back_of_the_clock_is_waited_for() -> None:
    harness = Harness()
    harness.status(UP)
    harness.wait(30)
    harness.now_s -= 0.5
    harness.aggregator.tick(harness.now_s)
    harness.wait(30.5)
    assert harness.buckets() == [Bucket(int(NOON), up_s=60.0)]


def test_a_deregistered_service_keeps_its_time() -> None:
    harness = Harness()
    harness.status(UP)
    harness.wait(10)
    harness.status(None)
    harness.wait(170)
    assert harness.buckets() == [Bucket(int(NOON), up_s=10.0)]


def test_a_service_registered_again_in_the_same_minute_continues_its_bucket() -> None:
    harness = Harness()
    harness.status(UP)
    harness.wait(10)
    harness.status(None)
    harness.wait(20)
    harness.status(INITIALIZING)
    harness.wait(30)
    assert harness.buckets() == [Bucket(int(NOON), up_s=10.0, initializing_s=30.0)]


def test_a_service_registered_again_later_gets_a_new_bucket() -> None:
    harness = Harness()
    harness.status(UP)
    harness.wait(10)
    harness.status(None)
    harness.wait(60)
    harness.status(UP)
    harness.wait(50)
    assert harness.buckets() == [Bucket(int(NOON), up_s=10.0), Bucket(int(NOON) + 60, up_s=50.0)]


def test_deregistering_an_unknown_service_has_no_effect() -> None:
    harness = Harness()
    harness.status(None)
    harness.wait(60)
    assert harness.buckets() == []


def test_an_open_bucket_counts_up_to_now() -> None:
    harness = Harness()
    harness.status(UP)
    harness.wait(12)
    assert harness.unwritten() == [Bucket(int(NOON), up_s=12.0)]
    harness.wait(3)
    assert harness.unwritten() == [Bucket(int(NOON), up_s=15.0)]
    assert harness.unwritten("unknown") == []


def test_unwritten_buckets_include_the_minute_that_is_being_closed_and_the_backlog() -> None:
    harness = Harness()
    harness.status(UP)
    harness.wait(62)
    both = [Bucket(int(NOON), up_s=60.0), Bucket(int(NOON) + 60, up_s=2.0)]
    assert harness.unwritten() == both
    harness.close()
    assert harness.unwritten() == both
    batch = harness.backlog.next_batch()
    assert batch is not None
    harness.backlog.mark_written(batch)
    assert harness.unwritten() == both[1:]


def test_finish_closes_the_current_minute() -> None:
    harness = Harness()
    harness.status(UP)
    harness.wait(60.5)
    harness.aggregator.finish(harness.now_s + 0.5)
    assert [(minute.begin_s, minute.buckets) for minute in harness.minutes] == [
        (int(NOON), {"db": Bucket(int(NOON), up_s=60.0)}),
        (int(NOON) + 60, {"db": Bucket(int(NOON) + 60, up_s=1.0)}),
    ]


_service_ids = st.sampled_from(["a", "b", "c"])
_steps = st.one_of(
    st.tuples(st.just("wait"), st.floats(0, MAX_GAP_S)),
    st.tuples(st.just("jump"), st.floats(-500, 500)),
    st.tuples(st.just("status"), _service_ids, st.sampled_from([UP, INITIALIZING, DOWN, None]), st.floats(0, 100)),
    st.tuples(st.just("check"), _service_ids, st.floats(0, 3)),
    st.tuples(st.just("close"), st.integers(1, 3)),
    st.tuples(st.just("open"), _service_ids),
)


def run_steps(harness: Harness, steps: list[tuple[Any, ...]], *, jumps: bool) -> None:
    for step in steps:
        match step:
            case ("wait", seconds):
                harness.now_s += seconds
                harness.aggregator.tick(harness.now_s)
            case ("jump", seconds) if jumps:
                harness.now_s += seconds
            case ("status", service_id, status, ago_s):
                harness.status(status, service_id, since_s=harness.now_s - ago_s)
            case ("check", service_id, duration_s):
                harness.aggregator.add_check(service_id, duration_s, is_failure=False)
            case ("close", count):
                harness.aggregator.close_some(count)
            case ("open", service_id):
                harness.unwritten(service_id)
            case _:
                pass
    harness.aggregator.finish(harness.now_s)


@given(st.lists(_steps, max_size=60))
def test_no_bucket_exceeds_a_minute(steps: list[tuple[Any, ...]]) -> None:
    harness = Harness()
    run_steps(harness, steps, jumps=True)
    for minute in harness.minutes:
        for bucket in minute.buckets.values():
            assert 0 <= bucket.known_s <= 60 + 1e-6
            assert min(bucket.up_s, bucket.initializing_s, bucket.down_s) >= 0


@given(st.lists(_steps, max_size=60))
def test_no_second_is_counted_twice_if_the_clock_is_not_set(steps: list[tuple[Any, ...]]) -> None:
    harness = Harness()
    run_steps(harness, steps, jumps=False)
    known_s: dict[tuple[str, int], float] = defaultdict(float)
    for minute in harness.minutes:
        for service_id, bucket in minute.buckets.items():
            known_s[service_id, minute.begin_s] += bucket.known_s
    assert all(seconds <= 60 + 1e-6 for seconds in known_s.values())


@given(st.lists(_steps.filter(lambda step: step[0] != "status" or step[2] is not None), max_size=60))
def test_a_registered_service_has_a_status_for_all_the_time(steps: list[tuple[Any, ...]]) -> None:
    harness = Harness()
    harness.status(UP, "a")
    run_steps(harness, steps, jumps=False)
    known_s = sum(minute.buckets["a"].known_s for minute in harness.minutes if "a" in minute.buckets)
    assert known_s == pytest.approx(harness.now_s - NOON, abs=1e-4)


def test_time_in_maintenance_is_counted_apart_from_the_statuses_and_its_checks_are_counted() -> None:
    backlog = Backlog()
    aggregator = MinuteAggregator(0.0, backlog)
    aggregator.set_status("db", Status.UP, 0.0, 0.0)
    for second in range(1, 151):
        aggregator.tick(float(second))
        while aggregator.close_some(10):
            pass
        if second == 30:
            aggregator.set_status("db", Status.UP, 30.0, 30.0, in_maintenance=True)
        if second == 40:
            aggregator.set_status("db", Status.DOWN, 40.0, 40.0, in_maintenance=True)
            aggregator.add_check("db", 0.1, is_failure=True)
        if second == 130:
            aggregator.set_status("db", Status.DOWN, 130.0, 130.0)
    buckets = aggregator.unwritten_buckets(["db"])["db"]
    assert [(one.begin_s, one.up_s, one.down_s, one.maintenance_s, one.checks) for one in buckets] == [
        (0, 30.0, 0.0, 30.0, 1),
        (60, 0.0, 0.0, 60.0, 0),
        (120, 0.0, 20.0, 10.0, 0),
    ]
