"""For how long a service had which status: every second counts once, in its own minute, or not at all."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcnode.core.model import Status
from svcnode.history.aggregator import MAX_GAP_S, MinuteAggregator
from svcnode.history.records import Bucket

UP, INITIALIZING, DOWN = Status.UP, Status.INITIALIZING, Status.DOWN
NOON = 1_767_268_800.0


class Story:
    """Begins at noon; somebody is there every second."""

    def __init__(self) -> None:
        self.over: list[tuple[int, dict[str, Bucket]]] = []
        self.minutes = MinuteAggregator(NOON, lambda begin_s, bars: self.over.append((begin_s, bars)))
        self.now_s = NOON

    def status(self, status: Status | None, service_id: str = "db", since_s: float | None = None) -> None:
        self.minutes.set_status(service_id, status, self.now_s if since_s is None else since_s, self.now_s)

    def wait(self, seconds: float) -> None:
        """Without closing anything."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s = min(until_s, self.now_s + 1)
            self.minutes.tick(self.now_s)

    def close(self) -> None:
        while self.minutes.close_some(1):
            pass

    def buckets(self, service_id: str = "db") -> list[Bucket]:
        self.close()
        return [bars[service_id] for _, bars in self.over if service_id in bars]


def test_a_service_that_is_up_all_the_time_is_up_for_every_second() -> None:
    story = Story()
    story.status(UP)
    story.wait(120)
    assert story.buckets() == [Bucket(int(NOON), up_s=60.0), Bucket(int(NOON) + 60, up_s=60.0)]


def test_a_minute_is_split_where_the_status_changes() -> None:
    story = Story()
    story.status(INITIALIZING)
    story.wait(10)
    story.status(UP)
    story.wait(20.5)
    story.status(DOWN)
    story.wait(40)
    assert story.buckets() == [Bucket(int(NOON), initializing_s=10.0, up_s=20.5, down_s=29.5)]


def test_what_came_to_pass_before_it_was_noticed_counts_from_then() -> None:
    story = Story()
    story.status(UP)
    story.wait(30)
    story.status(DOWN, since_s=NOON + 20)
    story.wait(30)
    assert story.buckets() == [Bucket(int(NOON), up_s=20.0, down_s=40.0)]


def test_a_minute_that_is_closed_stays_as_it_is() -> None:
    story = Story()
    story.status(UP)
    story.wait(70)
    story.status(DOWN, since_s=NOON + 50)
    story.wait(50)
    assert story.buckets() == [Bucket(int(NOON), up_s=60.0), Bucket(int(NOON) + 60, down_s=60.0)]


def test_a_change_right_after_the_turn_belongs_to_the_new_minute() -> None:
    story = Story()
    story.status(UP)
    story.wait(59.5)
    story.now_s = NOON + 60.25  # and nobody has ticked since
    story.status(DOWN)
    story.wait(59.75)
    assert story.buckets() == [Bucket(int(NOON), up_s=60.0), Bucket(int(NOON) + 60, up_s=0.25, down_s=59.75)]


def test_what_happens_while_a_minute_is_being_closed_counts_in_the_new_one() -> None:
    story = Story()
    for service_id in ("a", "b", "c"):
        story.status(UP, service_id)
    story.wait(60)
    assert story.minutes.close_some(1)
    story.wait(5)
    story.minutes.add_check("c", 0.5, is_failure=True)
    story.status(DOWN, "c")
    story.wait(55)
    first, second = story.buckets("c")
    assert (first.up_s, first.checks) == (60.0, 0)
    assert (second.up_s, second.down_s, second.checks, second.failures) == (5.0, 55.0, 1, 1)


def test_a_minute_is_handed_over_once_and_whole_however_slowly_it_is_closed() -> None:
    story = Story()
    for service_id in "abcdefg":
        story.status(UP, service_id)
    story.wait(60)
    steps = 0
    while story.minutes.close_some(2):
        assert not story.over
        steps += 1
    assert steps == 4
    assert [sorted(bars) for _, bars in story.over] == [list("abcdefg")]


def test_one_that_nobody_closed_is_closed_before_the_next() -> None:
    story = Story()
    story.status(UP)
    story.wait(180)
    assert [begin_s for begin_s, _ in story.over] == [int(NOON), int(NOON) + 60]


def test_looks_are_counted_with_how_long_they_took() -> None:
    story = Story()
    story.status(UP)
    for duration_s in (0.25, 0.5, 0.125):
        story.minutes.add_check("db", duration_s, is_failure=duration_s == 0.5)
    story.wait(60)
    (bar,) = story.buckets()
    assert (bar.checks, bar.failures, bar.latency_sum_s, bar.latency_max_s) == (3, 1, 0.875, 0.5)


def test_a_look_at_a_service_that_nobody_knows_is_nothing() -> None:
    story = Story()
    story.minutes.add_check("db", 0.1, is_failure=False)
    story.wait(60)
    assert story.buckets() == []


def test_time_in_which_nobody_was_there_is_nobodys() -> None:
    story = Story()
    story.status(UP)
    story.wait(10)
    story.now_s += 600
    story.minutes.tick(story.now_s)
    story.wait(50)
    assert story.buckets() == [Bucket(int(NOON), up_s=10.0), Bucket(int(NOON) + 600, up_s=50.0)]


def test_a_change_that_came_to_pass_while_nobody_was_there_counts_from_when_somebody_was() -> None:
    story = Story()
    story.status(UP)
    story.wait(10)
    story.now_s += 600
    story.status(DOWN, since_s=NOON + 300)
    story.wait(50)
    assert story.buckets() == [Bucket(int(NOON), up_s=10.0), Bucket(int(NOON) + 600, down_s=50.0)]


def test_a_loop_that_was_held_for_a_moment_has_missed_nothing() -> None:
    story = Story()
    story.status(UP)
    story.wait(58)
    story.now_s += MAX_GAP_S
    story.minutes.tick(story.now_s)
    story.wait(57)
    assert story.buckets() == [Bucket(int(NOON), up_s=60.0), Bucket(int(NOON) + 60, up_s=60.0)]


def test_a_clock_that_was_set_back_begins_anew_from_there() -> None:
    story = Story()
    story.status(UP)
    story.wait(30)
    story.now_s -= 3600
    story.minutes.tick(story.now_s)
    story.wait(30)
    assert story.buckets() == [Bucket(int(NOON), up_s=30.0), Bucket(int(NOON) - 3600, up_s=30.0)]


def test_a_clock_that_is_adjusted_a_little_is_waited_for() -> None:
    story = Story()
    story.status(UP)
    story.wait(30)
    story.now_s -= 0.5
    story.minutes.tick(story.now_s)
    story.wait(30.5)
    assert story.buckets() == [Bucket(int(NOON), up_s=60.0)]


def test_a_service_that_leaves_has_what_it_had() -> None:
    story = Story()
    story.status(UP)
    story.wait(10)
    story.status(None)
    story.wait(170)
    assert story.buckets() == [Bucket(int(NOON), up_s=10.0)]


def test_a_service_that_comes_back_in_the_same_minute_goes_on() -> None:
    story = Story()
    story.status(UP)
    story.wait(10)
    story.status(None)
    story.wait(20)
    story.status(INITIALIZING)
    story.wait(30)
    assert story.buckets() == [Bucket(int(NOON), up_s=10.0, initializing_s=30.0)]


def test_a_service_that_comes_back_later_begins_anew() -> None:
    story = Story()
    story.status(UP)
    story.wait(10)
    story.status(None)
    story.wait(60)
    story.status(UP)
    story.wait(50)
    assert story.buckets() == [Bucket(int(NOON), up_s=10.0), Bucket(int(NOON) + 60, up_s=50.0)]


def test_one_who_never_came_cannot_leave() -> None:
    story = Story()
    story.status(None)
    story.wait(60)
    assert story.buckets() == []


def test_what_is_running_is_told_up_to_now() -> None:
    story = Story()
    story.status(UP)
    story.wait(12)
    assert story.minutes.open_buckets("db") == [Bucket(int(NOON), up_s=12.0)]
    story.wait(3)
    assert story.minutes.open_buckets("db") == [Bucket(int(NOON), up_s=15.0)]
    assert story.minutes.open_buckets("nobody") == []


def test_what_is_running_is_told_with_the_minute_that_is_being_closed() -> None:
    story = Story()
    story.status(UP)
    story.wait(62)
    assert story.minutes.open_buckets("db") == [Bucket(int(NOON), up_s=60.0), Bucket(int(NOON) + 60, up_s=2.0)]
    story.close()
    assert story.minutes.open_buckets("db") == [Bucket(int(NOON) + 60, up_s=2.0)]


def test_at_the_end_the_minute_that_is_running_is_handed_over_as_far_as_it_went() -> None:
    story = Story()
    story.status(UP)
    story.wait(60.5)
    story.minutes.finish(story.now_s + 0.5)
    assert story.over == [
        (int(NOON), {"db": Bucket(int(NOON), up_s=60.0)}),
        (int(NOON) + 60, {"db": Bucket(int(NOON) + 60, up_s=1.0)}),
    ]


_services = st.sampled_from(["a", "b", "c"])
_steps = st.one_of(
    st.tuples(st.just("wait"), st.floats(0, MAX_GAP_S)),
    st.tuples(st.just("jump"), st.floats(-500, 500)),
    st.tuples(st.just("status"), _services, st.sampled_from([UP, INITIALIZING, DOWN, None]), st.floats(0, 100)),
    st.tuples(st.just("look"), _services, st.floats(0, 3)),
    st.tuples(st.just("close"), st.integers(1, 3)),
    st.tuples(st.just("running"), _services),
)


def play(story: Story, steps: list[tuple[Any, ...]], *, jumps: bool) -> None:
    for step in steps:
        match step:
            case ("wait", seconds):
                story.now_s += seconds
                story.minutes.tick(story.now_s)
            case ("jump", seconds) if jumps:
                story.now_s += seconds
            case ("status", service_id, status, ago_s):
                story.status(status, service_id, since_s=story.now_s - ago_s)
            case ("look", service_id, duration_s):
                story.minutes.add_check(service_id, duration_s, is_failure=False)
            case ("close", count):
                story.minutes.close_some(count)
            case ("running", service_id):
                story.minutes.open_buckets(service_id)
            case _:
                pass
    story.minutes.finish(story.now_s)


@given(st.lists(_steps, max_size=60))
def test_no_bar_ever_holds_more_than_a_minute(steps: list[tuple[Any, ...]]) -> None:
    story = Story()
    play(story, steps, jumps=True)
    for _, bars in story.over:
        for bar in bars.values():
            assert 0 <= bar.known_s <= 60 + 1e-6
            assert min(bar.up_s, bar.initializing_s, bar.down_s) >= 0


@given(st.lists(_steps, max_size=60))
def test_no_second_is_counted_twice_while_the_clock_runs_on(steps: list[tuple[Any, ...]]) -> None:
    story = Story()
    play(story, steps, jumps=False)
    known_s: dict[tuple[str, int], float] = defaultdict(float)
    for begin_s, bars in story.over:
        for service_id, bar in bars.items():
            known_s[service_id, begin_s] += bar.known_s
    assert all(seconds <= 60 + 1e-6 for seconds in known_s.values())


@given(st.lists(_steps.filter(lambda step: step[0] != "status" or step[2] is not None), max_size=60))
def test_a_service_that_stays_is_known_for_all_the_time_that_passes(steps: list[tuple[Any, ...]]) -> None:
    story = Story()
    story.status(UP, "a")
    play(story, steps, jumps=False)
    known_s = sum(bars["a"].known_s for _, bars in story.over if "a" in bars)
    assert known_s == pytest.approx(story.now_s - NOON, abs=1e-4)
