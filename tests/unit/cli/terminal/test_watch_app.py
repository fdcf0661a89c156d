"""Polling of nodes, in virtual time."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress

import pytest

from svcnode.cli.terminal.snapshot import NodeSnapshot, OverallHealth
from svcnode.cli.terminal.watch.app import Poller, effective_interval_s
from svcnode.cli.terminal.watch.model import Severity, WatchModel
from svcnode.client import Health
from svcnode.core.errors import UnreachableError
from tests.support.virtual_time import in_virtual_time


class PolledNodes:
    """Nodes that respond after a delay; records when each was polled."""

    def __init__(self, *durations_s: float, interval_s: float = 2.0) -> None:
        self.duration_s = list(durations_s)
        self.requested_s: dict[int, list[float]] = defaultdict(list)
        self.model = WatchModel([f"http://n{number}" for number in range(len(durations_s))], interval_s)
        self.poller = Poller(self.model, self._take_snapshot)

    async def _take_snapshot(self, number: int) -> NodeSnapshot:
        self.requested_s[number].append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.duration_s[number])
        if self.duration_s[number] >= 10:
            return NodeSnapshot(url="", errors=(UnreachableError("timeout"),))
        return NodeSnapshot(url="", health=Health.HEALTHY)

    async def run(self, for_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(for_s):
                await self.poller.run()


@in_virtual_time
async def test_all_nodes_are_polled_at_once_and_then_spread_over_the_interval() -> None:
    nodes = PolledNodes(0, 0, 0, 0)
    await nodes.run(5.9)
    assert nodes.requested_s == {0: [0, 2, 4], 1: [0.004, 2.5, 4.5], 2: [0.008, 3, 5], 3: [0.012, 3.5, 5.5]}


@in_virtual_time
async def test_a_node_that_hangs_does_not_delay_the_others() -> None:
    nodes = PolledNodes(10, 0.5)
    await nodes.run(21)
    assert nodes.requested_s[0] == [0, 10, 20]
    assert nodes.requested_s[1] == [0.004, *range(3, 21, 2)]
    assert [node.snapshot.overall_health for node in nodes.model.nodes if node.snapshot] == [
        OverallHealth.UNKNOWN,
        OverallHealth.HEALTHY,
    ]


@in_virtual_time
async def test_a_slow_node_is_not_polled_twice_at_the_same_time_and_its_request_has_an_age() -> None:
    nodes = PolledNodes(3)
    await nodes.run(10)
    assert nodes.requested_s[0] == [0, 4, 8]
    assert nodes.model.nodes[0].waiting_s(10, 1) == 2


@in_virtual_time
async def test_a_poll_that_was_suspended_is_discarded_and_repeated() -> None:
    nodes = PolledNodes(10)
    loop = asyncio.get_running_loop()
    loop.call_later(5, nodes.poller.mark_resumed)
    loop.call_later(10, nodes.duration_s.__setitem__, 0, 0.0)  # when the first poll ends
    await nodes.run(11)
    assert nodes.requested_s[0][:2] == [0, 10]
    assert nodes.model.nodes[0].tracker is not None
    assert nodes.model.nodes[0].tracker.first_s == 10
    assert nodes.model.nodes[0].tracker.timeline.last(2, 10) == [Severity.NO_DATA, Severity.OK]


@in_virtual_time
async def test_an_internal_error_is_raised() -> None:
    nodes = PolledNodes(0)
    nodes.duration_s.clear()
    with pytest.raises(ExceptionGroup):
        await nodes.run(1)


@pytest.mark.parametrize(
    ("interval_s", "count", "effective_s"), [(2, 1, 2), (2, 200, 2), (2, 1000, 10), (0.001, 1, 0.01)]
)
def test_there_are_at_most_100_polls_per_second(interval_s: float, count: int, effective_s: float) -> None:
    assert effective_interval_s(interval_s, count) == effective_s
