"""When which node is asked, in virtual time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress

import pytest

from svcnode.client import Health
from svcnode.core.errors import UnreachableError
from svcnode.terminal.snapshot import NodeSnapshot, OverallHealth
from svcnode.terminal.watch.app import Poller, effective_interval_s
from svcnode.terminal.watch.model import Severity, WatchModel
from tests.support.virtual_time import in_virtual_time


class Polled:
    """Nodes that take as long as they like; when each was asked is kept."""

    def __init__(self, *takes_s: float, interval_s: float = 2.0) -> None:
        self.duration_s = list(takes_s)
        self.requested_s: dict[int, list[float]] = defaultdict(list)
        self.news = 0
        self.watch = WatchModel([f"http://n{number}" for number in range(len(takes_s))], interval_s)
        self.polling = Poller(self.watch, self._look, self._count)

    def _count(self) -> None:
        self.news += 1

    async def _look(self, number: int) -> NodeSnapshot:
        self.requested_s[number].append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.duration_s[number])
        if self.duration_s[number] >= 10:
            return NodeSnapshot(url="", errors=(UnreachableError("no whole answer"),))
        return NodeSnapshot(url="", health=Health.HEALTHY)

    async def run(self, for_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(for_s):
                await self.polling.run()


@in_virtual_time
async def test_all_are_asked_right_away_and_then_spread_over_the_interval() -> None:
    polled = Polled(0, 0, 0, 0)
    await polled.run(5.9)
    assert polled.requested_s == {0: [0, 2, 4], 1: [0.004, 2.5, 4.5], 2: [0.008, 3, 5], 3: [0.012, 3.5, 5.5]}
    assert polled.news == 12


@in_virtual_time
async def test_one_that_hangs_holds_up_nobody() -> None:
    polled = Polled(10, 0.5)
    await polled.run(21)
    assert polled.requested_s[0] == [0, 10, 20]
    assert polled.requested_s[1] == [0.004, *range(3, 21, 2)]
    assert [node.snapshot.overall_health for node in polled.watch.nodes if node.snapshot] == [
        OverallHealth.UNKNOWN,
        OverallHealth.HEALTHY,
    ]


@in_virtual_time
async def test_one_that_takes_longer_than_the_interval_is_not_asked_twice_at_a_time() -> None:
    polled = Polled(3)
    await polled.run(9)
    assert polled.requested_s[0] == [0, 4, 8]


@in_virtual_time
async def test_that_a_question_is_open_can_be_seen() -> None:
    polled = Polled(5)
    await polled.run(3)
    assert polled.watch.nodes[0].waiting_s(3, polled.watch.wait_notice_s) == 3


@in_virtual_time
async def test_a_look_that_was_interrupted_counts_for_nothing_and_is_made_again() -> None:
    polled = Polled(10)
    loop = asyncio.get_running_loop()
    loop.call_later(5, polled.polling.mark_resumed)
    loop.call_later(10, polled.duration_s.__setitem__, 0, 0.0)  # after the end of the first look
    await polled.run(11)
    assert polled.requested_s[0][:2] == [0, 10]
    assert polled.watch.nodes[0].tracker is not None
    assert polled.watch.nodes[0].tracker.first_s == 10
    assert polled.watch.nodes[0].tracker.history.last(2, 10) == [Severity.NO_DATA, Severity.OK]


@in_virtual_time
async def test_what_goes_wrong_inside_is_not_hidden() -> None:
    polled = Polled(0)
    polled.duration_s.clear()
    with pytest.raises(ExceptionGroup):
        await polled.run(1)


@pytest.mark.parametrize(
    ("interval_s", "count", "affordable_s"), [(2, 1, 2), (2, 200, 2), (2, 1000, 10), (0.001, 1, 0.01)]
)
def test_there_are_never_more_than_a_hundred_looks_in_a_second(
    interval_s: float, count: int, affordable_s: float
) -> None:
    assert effective_interval_s(interval_s, count) == affordable_s
