"""The time per status: every second counts once, in its own minute, or not at all."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svcnode.core.model import Status
from svcnode.history.aggregator import MAX_GAP_S, MinuteAggregator
from svcnode.history.backlog import Backlog
from svcnode.history.latencies import latency_bucket
from svcnode.history.records import HOURS, Bucket, ClosedMinute

if TYPE_CHECKING:
    from collections.abc import Callable

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

    def status(
        self, status: Status | None, service_id: str = "db", since_s: float | None = None, *, maintained: bool = False
    ) -> Self:
        since_s = self.now_s if since_s is None else since_s
        self.aggregator.set_status(service_id, status, since_s, self.now_s, in_maintenance=maintained)
        return self

    def wait(self, seconds: float) -> Self:
        """Tick every second, without closing a minute."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s = min(until_s, self.now_s + 1)
            self.aggregator.tick(self.now_s)
        return self

    def jump(self, seconds: float, *, ticks: bool = True) -> Self:
        self.now_s += seconds
        if ticks:
            self.aggregator.tick(self.now_s)
        return self

    def close(self) -> None:
        while self.aggregator.close_some(1):
            pass

    def buckets(self, service_id: str = "db") -> list[Bucket]:
        self.close()
        return [minute.buckets[service_id] for minute in self.minutes if service_id in minute.buckets]

    def unwritten(self, service_id: str = "db") -> list[Bucket]:
        return self.aggregator.unwritten_buckets([service_id])[service_id]


# By name: what happens, and the seconds per status in the minutes after noon.
SCENARIOS: dict[str, tuple[Callable[[Harness], Harness], dict[int, dict[str, Any]]]] = {
    "always Up": (lambda one: one.status(UP).wait(120), {0: {"up_s": 60}, 60: {"up_s": 60}}),
    "a minute is split where the status changes": (
        lambda one: one.status(INITIALIZING).wait(10).status(UP).wait(20.5).status(DOWN).wait(40),
        {0: {"initializing_s": 10, "up_s": 20.5, "down_s": 29.5}},
    ),
    "a change counts from its time, not from its recording": (
        lambda one: one.status(UP).wait(30).status(DOWN, since_s=NOON + 20).wait(30),
        {0: {"up_s": 20, "down_s": 40}},
    ),
    "a closed minute does not change": (
        lambda one: one.status(UP).wait(70).status(DOWN, since_s=NOON + 50).wait(50),
        {0: {"up_s": 60}, 60: {"down_s": 60}},
    ),
    "a change at the start of a minute, without a tick": (
        lambda one: one.status(UP).wait(59.5).jump(0.75, ticks=False).status(DOWN).wait(59.75),
        {0: {"up_s": 60}, 60: {"up_s": 0.25, "down_s": 59.75}},
    ),
    "time without ticks counts for no status": (
        lambda one: one.status(UP).wait(10).jump(600).wait(50),
        {0: {"up_s": 10}, 600: {"up_s": 50}},
    ),
    "a change during such a gap counts from its end": (
        lambda one: one.status(UP).wait(10).jump(600, ticks=False).status(DOWN, since_s=NOON + 300).wait(50),
        {0: {"up_s": 10}, 600: {"down_s": 50}},
    ),
    "a late tick loses no time": (
        lambda one: one.status(UP).wait(58).jump(MAX_GAP_S).wait(57),
        {0: {"up_s": 60}, 60: {"up_s": 60}},
    ),
    "if the clock is set back, counting continues there": (
        lambda one: one.status(UP).wait(30).jump(-3600).wait(30),
        {0: {"up_s": 30}, -3600: {"up_s": 30}},
    ),
    "a small step back of the clock is waited for": (
        lambda one: one.status(UP).wait(30).jump(-0.5).wait(30.5),
        {0: {"up_s": 60}},
    ),
    "a deregistered service keeps its time": (
        lambda one: one.status(UP).wait(10).status(None).wait(170),
        {0: {"up_s": 10}},
    ),
    "registered again in the same minute": (
        lambda one: one.status(UP).wait(10).status(None).wait(20).status(INITIALIZING).wait(30),
        {0: {"up_s": 10, "initializing_s": 30}},
    ),
    "registered again later": (
        lambda one: one.status(UP).wait(10).status(None).wait(60).status(UP).wait(50),
        {0: {"up_s": 10}, 60: {"up_s": 50}},
    ),
    "maintenance is counted apart from the statuses": (
        lambda one: (
            one.status(UP)
            .wait(30)
            .status(UP, maintained=True)
            .wait(10)
            .status(DOWN, maintained=True)
            .wait(90)
            .status(DOWN)
            .wait(50)
        ),
        {0: {"up_s": 30, "maintenance_s": 30}, 60: {"maintenance_s": 60}, 120: {"maintenance_s": 10, "down_s": 50}},
    ),
    "never registered": (lambda one: one.status(None).wait(60), {}),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_second_counts_once_in_its_minute(name: str) -> None:
    run, expected = SCENARIOS[name]
    assert run(Harness()).buckets() == [Bucket(int(NOON) + begin_s, **times) for begin_s, times in expected.items()]


def test_a_change_while_a_minute_is_closed_counts_in_the_next_minute() -> None:
    harness = Harness().status(UP, "a").status(UP, "b").status(UP, "c").wait(60)
    assert harness.aggregator.close_some(1)
    harness.wait(5)
    harness.aggregator.add_check("c", 0.5, is_failure=True)
    harness.status(DOWN, "c").wait(55)
    first, second = harness.buckets("c")
    assert (first.up_s, first.checks) == (60.0, 0)
    assert (second.up_s, second.down_s, second.checks, second.failures) == (5.0, 55.0, 1, 1)


def test_a_minute_that_is_closed_in_steps_is_passed_on_once_and_before_the_next_one() -> None:
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
    harness.wait(120)
    assert [minute.begin_s for minute in harness.minutes] == [int(NOON), int(NOON) + 60]


def test_checks_and_their_latency_are_counted_but_not_of_an_unknown_service() -> None:
    harness = Harness().status(UP)
    for duration_s in (0.25, 0.5, 0.125):
        harness.aggregator.add_check("db", duration_s, is_failure=duration_s == 0.5)
        harness.status(UP, maintained=True)  # its checks count, too
    harness.aggregator.add_check("unknown", 0.1, is_failure=False)
    (bucket,) = harness.wait(60).buckets()
    assert (bucket.checks, bucket.failures, bucket.latency_sum_s, bucket.latency_max_s) == (3, 1, 0.875, 0.5)
    assert harness.buckets("unknown") == []


def test_unwritten_buckets_include_the_open_minute_the_one_that_is_being_closed_and_the_backlog() -> None:
    harness = Harness().status(UP).wait(12)
    assert harness.unwritten() == [Bucket(int(NOON), up_s=12.0)]
    assert harness.unwritten("unknown") == []
    harness.wait(50)
    both = [Bucket(int(NOON), up_s=60.0), Bucket(int(NOON) + 60, up_s=2.0)]
    assert harness.unwritten() == both
    harness.close()
    assert harness.unwritten() == both
    batch = harness.backlog.next_batch()
    assert batch is not None
    harness.backlog.mark_written(batch)
    assert harness.unwritten() == both[1:]


def test_finish_closes_the_current_minute() -> None:
    harness = Harness().status(UP).wait(60.5)
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


@settings(max_examples=60, deadline=None)
@given(st.lists(_steps, max_size=60), st.booleans())
def test_no_bucket_exceeds_a_minute_and_no_second_is_counted_twice(steps: list[tuple[Any, ...]], jumps: bool) -> None:
    harness = Harness()
    run_steps(harness, steps, jumps=jumps)
    known_s: dict[tuple[str, int], float] = defaultdict(float)
    for minute in harness.minutes:
        for service_id, bucket in minute.buckets.items():
            assert 0 <= bucket.known_s <= 60 + 1e-6
            assert min(bucket.up_s, bucket.initializing_s, bucket.down_s) >= 0
            known_s[service_id, minute.begin_s] += bucket.known_s
    assert jumps or all(seconds <= 60 + 1e-6 for seconds in known_s.values())


@settings(max_examples=60, deadline=None)
@given(st.lists(_steps.filter(lambda step: step[0] != "status" or step[2] is not None), max_size=60))
def test_a_registered_service_has_a_status_for_all_the_time(steps: list[tuple[Any, ...]]) -> None:
    harness = Harness()
    harness.status(UP, "a")
    run_steps(harness, steps, jumps=False)
    known_s = sum(minute.buckets["a"].known_s for minute in harness.minutes if "a" in minute.buckets)
    assert known_s == pytest.approx(harness.now_s - NOON, abs=1e-4)


def test_latencies_are_those_of_answered_checks_of_an_hour_and_are_closed_with_it() -> None:
    one = Harness().status(UP)
    for is_failure in (False, False, True):
        one.aggregator.add_check("db", 0.1, is_failure=is_failure)
    counted = {"db": {latency_bucket(0.1): 2}}
    one.wait(120).close()
    assert [minute.latencies for minute in one.minutes] == [{}, {}]
    assert one.aggregator.unwritten_latencies(HOURS, NOON, NOON + 3600) == counted
    assert one.aggregator.unwritten_latencies(HOURS, NOON + 3600, NOON + 7200) == {}
    one.wait(3600).close()
    assert [minute.begin_s for minute in one.minutes if minute.latencies] == [NOON + 3540]
    assert one.minutes[59].latencies == counted


def test_the_latencies_of_a_removed_service_and_of_a_process_that_stops_are_not_lost() -> None:
    one = Harness().status(UP).status(UP, "api").wait(60)
    one.aggregator.add_check("db", 0.1, is_failure=False)
    one.aggregator.add_check("api", 0.1, is_failure=False)
    one.status(None).wait(60).close()
    assert [list(minute.latencies) for minute in one.minutes] == [[], ["db"]]
    one.aggregator.finish(one.now_s)
    assert [list(minute.latencies) for minute in one.minutes][2:] in ([["api"]], [[], ["api"]])


def test_the_time_in_which_the_node_ran_is_known_also_without_a_service() -> None:
    one = Harness().wait(60).jump(100).wait(30)
    one.close()
    assert [minute.observed for minute in one.minutes] == [(NOON, NOON + 60), (NOON + 160, NOON + 180)]
    assert one.aggregator.unwritten_stretches() == [
        (NOON, NOON + 60),
        (NOON + 160, NOON + 180),
        (NOON + 180, NOON + 190),
    ]
