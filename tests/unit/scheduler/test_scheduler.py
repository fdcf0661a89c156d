"""When services are looked at, told in virtual time: hours pass in milliseconds, and always in the same order."""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.model import Change, ServiceState, Status, Verdict
from svcnode.definition import define
from svcnode.node import Node
from svcnode.probes.run import RECANCEL_AFTER_S
from svcnode.scheduler import (
    FIRST_CHECKS_WITHIN_S,
    JITTER,
    LATE_CHECKS_LOG_INTERVAL_S,
    ProbeScheduler,
    should_log_late_checks,
)
from tests.support.scheduling import (
    FAILED,
    READY,
    CancelIgnoringProbe,
    CancelSwallowingProbe,
    ScriptedProbe,
    make_node,
    make_scheduler,
    now_s,
    raise_cleanup_error,
    register_many,
    running_checks,
)
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable


class OneEnd(random.Random):
    """Every draw falls at one end of what it may be: 0 for the lower, 1 for the upper."""

    def __init__(self, end: int) -> None:
        super().__init__()
        self._end = end

    def uniform(self, a: float, b: float) -> float:
        return (a, b)[self._end]


# ---- when


@in_virtual_time
async def test_a_service_is_looked_at_on_its_interval() -> None:
    node, probe = make_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(35.0)
    assert probe.started_at_s == [0.0, 10.0, 20.0, 30.0]


@in_virtual_time
async def test_the_interval_runs_from_one_beginning_to_the_next() -> None:
    node, probe = make_node(), ScriptedProbe(duration_s=2.0)
    node.register("db-1", probe=probe, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(35.0)
    assert probe.started_at_s == [0.0, 10.0, 20.0, 30.0]


@in_virtual_time
async def test_every_service_has_an_interval_of_its_own() -> None:
    node, often, seldom = make_node(), ScriptedProbe(), ScriptedProbe()
    node.register("often", probe=often, interval="2s")
    node.register("seldom", probe=seldom, interval="20s")
    async with make_scheduler(node):
        await asyncio.sleep(20.5)
    assert len(often.started_at_s) == 11
    assert len(seldom.started_at_s) == 1


@in_virtual_time
async def test_a_slow_service_keeps_no_other_waiting() -> None:
    node, slow, quick = make_node(), ScriptedProbe(duration_s=9.0), ScriptedProbe()
    node.register("slow", probe=slow, interval="10s", timeout="9.5s")
    node.register("quick", probe=quick, interval="1s")
    async with make_scheduler(node):
        await asyncio.sleep(10.5)
    assert len(quick.started_at_s) == 10


@in_virtual_time
async def test_the_first_looks_are_spread_and_soon() -> None:
    node, probes = make_node(), [ScriptedProbe() for _ in range(4)]
    for place, probe in enumerate(probes):
        node.register(f"svc-{place}", probe=probe, interval="60s")
    async with make_scheduler(node):
        await asyncio.sleep(FIRST_CHECKS_WITHIN_S)
    assert [probe.started_at_s for probe in probes] == [[0.0], [0.5], [1.0], [1.5]]


@pytest.mark.parametrize("count", [1, 3, 100])
@in_virtual_time
async def test_however_many_services_there_are_their_first_looks_are_evenly_spread_over_two_seconds(count: int) -> None:
    node, probes = make_node(), [ScriptedProbe() for _ in range(count)]
    for place, probe in enumerate(probes):
        node.register(f"reported-{place}")  # nobody looks at it, so it takes no part of the time
        node.register(f"svc-{place}", probe=probe, interval="60s")
    async with make_scheduler(node):
        await asyncio.sleep(5.0)
    assert all(len(probe.started_at_s) == 1 for probe in probes)
    begun_s = [probe.started_at_s[0] for probe in probes]
    assert begun_s == pytest.approx([2.0 * place / count for place in range(count)])


@in_virtual_time
async def test_looks_are_spread_by_a_little_chance_around_the_interval() -> None:
    node, probe = make_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with ProbeScheduler(node, random.Random(7)):
        await asyncio.sleep(2000.0)
    assert len(set(probe.intervals_s)) > 100
    assert all(10.0 * (1 - JITTER) <= gap_s <= 10.0 * (1 + JITTER) + 1e-6 for gap_s in probe.intervals_s)


@pytest.mark.parametrize(("end", "share"), [(0, 1 - 0.05), (1, 1 + 0.05)])
@in_virtual_time
async def test_chance_moves_a_look_by_no_more_than_a_twentieth_of_the_wait(end: int, share: float) -> None:
    node, calm, pending = make_node(), ScriptedProbe(), ScriptedProbe(FAILED)
    node.register("calm", probe=calm, interval="10s")
    node.register("pending", probe=pending, interval="10s", start_period="1h")
    async with ProbeScheduler(node, OneEnd(end)):
        await asyncio.sleep(100.0)
    assert calm.intervals_s == pytest.approx([10.0 * share] * len(calm.intervals_s))
    assert pending.intervals_s == pytest.approx([2.0 * share] * len(pending.intervals_s))
    assert (len(calm.intervals_s), len(pending.intervals_s)) == ((10, 52), (9, 47))[end]


@in_virtual_time
async def test_without_a_given_chance_the_supervisor_brings_its_own() -> None:
    node, probe = make_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with ProbeScheduler(node):
        await asyncio.sleep(100.0)
    assert 9 <= len(probe.started_at_s) <= 11


@in_virtual_time
async def test_a_service_without_a_probe_is_left_alone() -> None:
    node = make_node()
    node.register("indexer").down("out of disk")
    async with make_scheduler(node):
        await asyncio.sleep(3600.0)
    assert node.state("indexer").reason == "out of disk"


# ---- faster while a change is pending


@in_virtual_time
async def test_a_service_is_looked_at_five_times_as_often_until_a_pending_change_is_decided() -> None:
    node, probe = make_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s", fall=3, rise=2)
    async with make_scheduler(node):
        await asyncio.sleep(5.0)
        probe.verdict = FAILED
        await asyncio.sleep(10.0)
        assert node.status("db-1") is Status.DOWN
        assert probe.started_at_s == pytest.approx([0.0, 10.0, 12.0, 14.0])
        await asyncio.sleep(15.0)
        assert probe.started_at_s[4:] == pytest.approx([24.0])
        probe.verdict = READY
        await asyncio.sleep(20.0)
        assert node.status("db-1") is Status.UP
    assert probe.started_at_s[5:] == pytest.approx([34.0, 36.0, 46.0])


@in_virtual_time
async def test_a_starting_service_that_fails_is_looked_at_more_often_until_it_is_down() -> None:
    node, probe = make_node(), ScriptedProbe(FAILED)
    node.register("db-1", probe=probe, interval="10s", start_period="30s")
    async with make_scheduler(node):
        await asyncio.sleep(45.0)
        assert node.status("db-1") is Status.DOWN
    assert probe.started_at_s == pytest.approx([*(2.0 * look for look in range(16)), 40.0])


@in_virtual_time
async def test_a_failure_that_was_a_slip_brings_one_early_look() -> None:
    node, probe = make_node(), ScriptedProbe(FAILED)
    node.register("db-1", probe=probe, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(1.0)
        probe.verdict = READY
        await asyncio.sleep(30.0)
    assert probe.started_at_s == pytest.approx([0.0, 2.0, 12.0, 22.0])


@in_virtual_time
async def test_a_look_that_taught_nothing_leaves_a_change_pending() -> None:
    node, probe = make_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s", fall=2)
    async with make_scheduler(node):
        await asyncio.sleep(5.0)
        probe.verdict = FAILED
        await asyncio.sleep(6.0)
        probe.verdict = Verdict.unknown("no file descriptors")
        await asyncio.sleep(2.0)
        probe.verdict = FAILED
        await asyncio.sleep(20.0)
        assert node.status("db-1") is Status.DOWN
    assert probe.started_at_s == pytest.approx([0.0, 10.0, 12.0, 14.0, 24.0])


@in_virtual_time
async def test_a_service_that_says_it_is_not_ready_has_decided_and_is_not_hurried() -> None:
    node, probe = make_node(), ScriptedProbe(Verdict.not_ready("syncing"))
    node.register("db-1", probe=probe, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(35.0)
    assert probe.started_at_s == pytest.approx([0.0, 10.0, 20.0, 30.0])


@pytest.mark.parametrize(("words", "looks_s"), [("500ms", (0.0, 0.5, 1.0, 11.0)), ("10s", (0.0, 10.0, 20.0, 30.0))])
@in_virtual_time
async def test_how_often_it_is_looked_at_while_a_change_is_pending_can_be_set(
    words: str, looks_s: tuple[float, ...]
) -> None:
    node, probe = make_node(), ScriptedProbe(FAILED)
    node.register("db-1", probe=probe, interval="10s", transition_interval=words, start_period=0.0)
    async with make_scheduler(node):
        await asyncio.sleep(looks_s[-1] + 0.25)
    assert probe.started_at_s == pytest.approx(looks_s)


@in_virtual_time
async def test_looks_that_take_longer_than_the_transition_interval_follow_each_other_one_at_a_time() -> None:
    node, probe = make_node(), ScriptedProbe(FAILED, duration_s=3.0)
    node.register("db-1", probe=probe, interval="10s", timeout="4s", transition_interval="1s", start_period=0.0)
    async with make_scheduler(node):
        await asyncio.sleep(20.0)
        assert node.status("db-1") is Status.DOWN
    assert probe.started_at_s == pytest.approx([0.0, 3.0, 6.0, 16.0])
    assert probe.concurrency.peak == 1


@in_virtual_time
async def test_a_report_tells_what_is_believed_after_it() -> None:
    node = make_node()
    node.register("db-1", probe=ScriptedProbe(), fall=2)
    assert node.record("db-1", READY) is node.state("db-1")
    after = node.record("db-1", FAILED)
    assert (after.status, after.failures_in_a_row) == (Status.UP, 1)
    assert node.record("db-1", FAILED).status is Status.DOWN


@in_virtual_time
async def test_a_report_that_comes_too_late_tells_what_silence_has_made_of_it() -> None:
    node = make_node()
    node.register("db-1", probe=ScriptedProbe(), stale_after="20s")
    await asyncio.sleep(30.0)
    after = node.record("db-1", READY, at_s=5.0)
    assert (after.status, after.reason) == (Status.INITIALIZING, "no fresh success for 20 s")


# ---- later than they should be


@in_virtual_time
async def test_looks_that_begin_late_are_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    node = make_node()
    probes = register_many(node, 3, lambda: ScriptedProbe(duration_s=0.2), interval="500ms")
    async with make_scheduler(node, max_concurrent_checks=1):
        await asyncio.sleep(3 * LATE_CHECKS_LOG_INTERVAL_S + 1.0)
        assert len(caplog.messages) == 3
        told = re.match(r"(\d+) of (\d+) looks began more than 100 ms late: ", caplog.messages[1])
        assert told is not None
        late, looks = map(int, told.groups())
        assert 0 < late <= looks == pytest.approx(300, abs=2)
        for probe in probes:
            probe.duration_s = 0.01
        await asyncio.sleep(LATE_CHECKS_LOG_INTERVAL_S)
        caplog.clear()
        await asyncio.sleep(10 * LATE_CHECKS_LOG_INTERVAL_S)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("late", "looks", "is_told"),
    [(0, 0, False), (1, 7, False), (4, 4, False), (5, 5, True), (5, 100, True), (5, 101, False), (600, 12_001, False)],
)
def test_late_looks_are_told_when_they_are_several_and_a_share_that_counts(
    late: int, looks: int, is_told: bool
) -> None:
    assert should_log_late_checks(late, looks) is is_told


@in_virtual_time
async def test_a_single_hiccup_is_nothing_to_tell(caplog: pytest.LogCaptureFixture) -> None:
    node = make_node()
    first, *_ = register_many(node, 3, lambda: ScriptedProbe(duration_s=0.01), interval="10s")
    async with make_scheduler(node, max_concurrent_checks=1):
        await asyncio.sleep(15.0)
        first.duration_s = 4.0  # and the next one waits for its place
        await asyncio.sleep(10.0)
        first.duration_s = 0.01
        await asyncio.sleep(10 * LATE_CHECKS_LOG_INTERVAL_S)
    assert caplog.messages == []


@in_virtual_time
async def test_looks_that_begin_on_time_are_nothing_to_tell(caplog: pytest.LogCaptureFixture) -> None:
    node = make_node()
    register_many(node, 3, lambda: ScriptedProbe(FAILED, duration_s=0.2), interval="500ms")  # these follow each other
    async with make_scheduler(node, max_concurrent_checks=3):
        await asyncio.sleep(10 * LATE_CHECKS_LOG_INTERVAL_S)
    assert caplog.messages == []


# ---- services that come, change and go


@pytest.mark.parametrize("what", ["comes", "changes", "goes"])
@in_virtual_time
async def test_a_service_that_comes_changes_or_goes_disturbs_no_other(what: str) -> None:
    node, neighbour = make_node(), ScriptedProbe(duration_s=1.0)
    node.register("neighbour", probe=neighbour, interval="10s")
    if what != "comes":
        node.register("db-1", probe=ScriptedProbe(), interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(10.5)  # in the midst of a look at the neighbour
        if what == "comes":
            node.register("db-1", probe=ScriptedProbe())
        elif what == "changes":
            node.replace(define("db-1", probe=ScriptedProbe(), interval="3s"))
        else:
            node.deregister("db-1")
        await asyncio.sleep(20.0)
        assert node.state("neighbour").since_s == 0.0
    assert neighbour.started_at_s == [0.0, 10.0, 20.0, 30.0]
    assert neighbour.cancelled_at_s == [30.5]


@pytest.mark.parametrize("word", ["interval", "timeout", "transition_interval", "max_latency"])
@in_virtual_time
async def test_a_service_that_is_to_be_looked_at_in_another_rhythm_begins_it_at_once(word: str) -> None:
    node, probe = make_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(5.0)
        node.replace(define("db-1", probe=probe, **({"interval": "10s"} | {word: "2500ms"})))  # type: ignore[arg-type]
        await asyncio.sleep(1.0)
        assert node.status("db-1") is Status.UP
    assert probe.started_at_s == [0.0, 5.0]


@in_virtual_time
async def test_a_service_registered_meanwhile_is_looked_at_at_once() -> None:
    node, probe = make_node(), ScriptedProbe()
    async with make_scheduler(node):
        await asyncio.sleep(100.0)
        node.register("db-1", probe=probe, interval="10s")
        await asyncio.sleep(15.0)
    assert probe.started_at_s == [100.0, 110.0]


@in_virtual_time
async def test_a_service_removed_meanwhile_is_looked_at_no_more() -> None:
    node, probe, other = make_node(), ScriptedProbe(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    node.register("other", probe=other, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(15.0)
        node.deregister("db-1")
        await asyncio.sleep(100.0)
    assert len(probe.started_at_s) == 2
    assert len(other.started_at_s) == 12


@in_virtual_time
async def test_a_look_that_is_under_way_ends_with_its_service() -> None:
    node, probe = make_node(), ScriptedProbe(duration_s=4.0)
    node.register("db-1", probe=probe, interval="10s", timeout="5s")
    async with make_scheduler(node):
        await asyncio.sleep(1.0)
        node.deregister("db-1")
        await asyncio.sleep(0.5)
        assert probe.cancelled_at_s == [1.0]


@in_virtual_time
async def test_a_redefined_service_is_looked_at_in_the_new_way_at_once() -> None:
    node, old, new = make_node(), ScriptedProbe(duration_s=1.0), ScriptedProbe()
    node.register("db-1", probe=old, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(10.5)
        node.replace(define("db-1", probe=new, interval="10s"))
        await asyncio.sleep(15.0)
    assert old.started_at_s == [0.0, 10.0]
    assert old.cancelled_at_s == [10.5]
    assert new.started_at_s == [10.5, 20.5]


@in_virtual_time
async def test_new_words_do_not_disturb_the_looking() -> None:
    node, probe = make_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(5.0)
        node.replace(define("db-1", probe=probe, interval="10s", name="another name"))
        await asyncio.sleep(10.0)
    assert probe.started_at_s == [0.0, 10.0]


@in_virtual_time
async def test_a_service_that_no_longer_has_a_probe_is_left_alone() -> None:
    node, probe = make_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with make_scheduler(node):
        await asyncio.sleep(5.0)
        node.replace(define("db-1"))
        await asyncio.sleep(100.0)
    assert probe.started_at_s == [0.0]
    assert node.status("db-1") is Status.INITIALIZING


@dataclass(eq=False)
class ProbeThatActs:
    """Does something to the node while it looks, and then is content."""

    act: Callable[[], object]

    async def check(self) -> Verdict:
        self.act()
        return READY


@in_virtual_time
async def test_what_was_seen_of_the_old_definition_is_not_believed_of_the_new_one() -> None:
    node, new = make_node(), ScriptedProbe(verdict=FAILED)
    old = ProbeThatActs(lambda: node.replace(define("db-1", probe=new, interval="10s")))
    node.register("db-1", probe=old, interval="10s")
    told: list[Change] = []
    node.subscribe(told.append)
    async with make_scheduler(node):
        await asyncio.sleep(1.0)
    assert new.started_at_s == [0.0]
    assert not any(change.after is not None and change.after.status is Status.UP for change in told)


@in_virtual_time
async def test_a_service_that_was_removed_during_a_look_and_came_back_is_looked_at_again() -> None:
    node = make_node()
    looks = 0

    def comes_and_goes() -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            node.deregister("db-1")
            asyncio.get_running_loop().call_soon(node.add, definition)

    definition = define("db-1", probe=ProbeThatActs(comes_and_goes), interval="10s")
    node.add(definition)
    async with make_scheduler(node):
        await asyncio.sleep(25.0)
        assert node.status("db-1") is Status.UP
    assert looks >= 2


@in_virtual_time
async def test_a_service_that_is_gone_when_it_is_reported_does_not_end_its_looking() -> None:
    class LosesOneReport(Node):
        """Another thread takes the service away at the worst moment, and brings it back before anybody notices."""

        has_lost = False

        def report(self, service_id: str, verdict: Verdict, **when: Any) -> ServiceState:
            if not self.has_lost:
                self.has_lost = True
                self.deregister(service_id)
                try:
                    super().report(service_id, verdict, **when)
                finally:
                    self.add(definition)
            return super().report(service_id, verdict, **when)

    definition = define("db-1", probe=ScriptedProbe(), interval="10s")
    node = LosesOneReport("validator-7", version="v1", clock=asyncio.get_running_loop().time)
    node.add(definition)
    async with make_scheduler(node):
        await asyncio.sleep(15.0)
        assert node.status("db-1") is Status.UP


# ---- the end of it


@in_virtual_time
async def test_leaving_the_block_ends_every_look_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    node, probe = make_node(), ScriptedProbe(duration_s=4.0)
    node.register("db-1", probe=probe, interval="10s", timeout="5s")
    async with make_scheduler(node):
        await asyncio.sleep(1.0)
        assert len(running_checks()) == 1
    assert not running_checks()
    assert probe.cancelled_at_s == [1.0]
    assert caplog.records == []


@in_virtual_time
async def test_a_service_registered_at_the_last_moment_leaves_no_look_behind() -> None:
    node, probe = make_node(), ScriptedProbe()
    async with make_scheduler(node):
        node.register("db-1", probe=probe, interval="10s")
    await asyncio.sleep(100.0)
    assert not running_checks()
    assert probe.started_at_s == []


@in_virtual_time
async def test_after_the_block_nobody_listens_to_the_node() -> None:
    node, probe = make_node(), ScriptedProbe()
    async with make_scheduler(node):
        pass
    assert node._feed.has_listeners is False
    node.register("db-1", probe=probe, interval="10s")
    await asyncio.sleep(100.0)
    assert probe.started_at_s == []


@pytest.mark.parametrize("answer", [lambda: READY, raise_cleanup_error], ids=["returns", "raises"])
@in_virtual_time
async def test_a_probe_that_swallows_its_cancellation_does_not_keep_the_block_from_ending(
    answer: Callable[[], Verdict], caplog: pytest.LogCaptureFixture
) -> None:
    node = make_node()
    node.register("db-1", probe=CancelSwallowingProbe(answer), interval="10s", timeout="5s")
    async with asyncio.timeout(100.0):
        async with make_scheduler(node):
            await asyncio.sleep(1.0)
    assert now_s() == 1.0
    assert not running_checks()
    assert node.state("db-1").reason == "no evidence yet"
    assert caplog.records == []


@pytest.mark.parametrize("deaf_times", [1, 2, 10])
@in_virtual_time
async def test_a_look_that_does_not_hear_the_end_of_the_block_is_told_again_until_it_does(deaf_times: int) -> None:
    node, probe = make_node(), CancelIgnoringProbe(deaf_times)
    node.register("db-1", probe=probe, interval="100s", timeout="50s")
    async with make_scheduler(node):
        await asyncio.sleep(1.0)
    assert now_s() == pytest.approx(1.0 + RECANCEL_AFTER_S * deaf_times)
    assert not running_checks()


@in_virtual_time
async def test_an_error_inside_the_block_comes_out_of_it_and_ends_the_looking() -> None:
    node = make_node()
    node.register("db-1", probe=ScriptedProbe(duration_s=1.0), interval="10s")

    async def fails_inside() -> None:
        async with make_scheduler(node):
            await asyncio.sleep(0.5)
            raise ValueError("not today")

    with pytest.raises(ValueError, match="not today"):
        await fails_inside()
    assert not running_checks()


@in_virtual_time
async def test_a_dead_supervisor_leaves_no_green_light_on() -> None:
    node, probe = make_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s", timeout="3s")
    async with make_scheduler(node):
        await asyncio.sleep(5.0)
    await asyncio.sleep(27.0)
    assert node.health == 200
    await asyncio.sleep(1.0)
    assert node.health == 206


# ---- as programs use it


@in_virtual_time
async def test_a_node_can_be_supervised_for_as_long_as_a_block_runs() -> None:
    node, probe = make_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with node.probing() as supervised:
        assert supervised is node
        await asyncio.sleep(1.0)
    await asyncio.sleep(100.0)
    assert probe.started_at_s == [0.0]


@in_virtual_time
async def test_a_node_that_is_supervised_already_is_not_looked_at_twice() -> None:
    node, probe = make_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with node.probing():
        async with node.probing() as inner:
            assert inner is node
            await asyncio.sleep(1.0)
        await asyncio.sleep(11.0)
    assert len(probe.started_at_s) == 2
    async with node.probing():
        await asyncio.sleep(1.0)
    assert len(probe.started_at_s) == 3


@in_virtual_time
async def test_silence_is_told_to_those_who_listen_even_when_nobody_asks() -> None:
    node = make_node()
    node.register("worker", ttl="10s").up()
    told: list[Change] = []
    node.subscribe(told.append)
    async with make_scheduler(node):
        await asyncio.sleep(9.75)
        assert told == []
        await asyncio.sleep(1.0)
        assert [change.after and change.after.status for change in told] == [Status.DOWN]


@in_virtual_time
async def test_a_lifespan_is_the_same_in_the_shape_that_frameworks_take() -> None:
    node, probe = make_node(), ScriptedProbe()
    node.register("db-1", probe=probe, interval="10s")
    async with node.lifespan(object()):
        await asyncio.sleep(1.0)
    assert probe.started_at_s == [0.0]
