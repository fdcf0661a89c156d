"""OperatorContext: the objects that every operator handler gets. ProcessStats: figures about the process itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from time import monotonic, time
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from svcnode.net.clock import next_tick_s

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator
    from pathlib import Path

    from svcnode.history import History
    from svcnode.node.node_state import NodeState
    from svcnode.node.stats import CheckStats
    from svcnode.notify import NotifyStatus
    from svcnode.operator.event_hub import EventHub
    from svcnode.operator.outages import RecentOutages
    from svcnode.operator.page_feed import PageFeed
    from svcnode.operator.single_flight import SingleFlight
    from svcnode.operator.structure import StructureCache
    from svcnode.sharing.replica import Replica

T = TypeVar("T")

CLOCK_STEP_S = 2.0  # smaller differences between the clocks have other causes, such as a leap second
LAG_SAMPLE_INTERVAL_S = 1.0
LAG_WINDOW_S = 60.0
PUSH_REFUSALS = ("content", "method", "path", "rate", "service", "store", "token")  # the causes


class ProcessStats:
    """Figures about the process; the agent keeps them up to date."""

    reloaded_at_s: float | None = None  # the last successful reload, wall clock
    last_reload_ok = True
    reload_problem = ""
    reloads_succeeded = 0
    reloads_failed = 0
    loop_lag_s = 0.0  # the longest delay of the event loop in the last one to two minutes

    def __init__(self, started_at_s: float, started_monotonic_s: float) -> None:
        self.refused_pushes: Counter[str] = Counter(dict.fromkeys(PUSH_REFUSALS, 0))  # by cause
        self.started_at_s = started_at_s  # wall clock
        self.started_monotonic_s = started_monotonic_s  # the same moment by the node's clock

    def adjust_start_time(self, now_s: float, wall_s: float) -> None:
        """Correct `started_at_s` after the wall clock was set.

        Otherwise the value stays the same to the millisecond: clients recognise the process by it.
        """
        started_at_s = wall_s - (now_s - self.started_monotonic_s)
        if abs(started_at_s - self.started_at_s) > CLOCK_STEP_S:
            self.started_at_s = started_at_s

    def record_reload(self, problem: str = "") -> None:
        self.last_reload_ok, self.reload_problem = not problem, problem
        if problem:
            self.reloads_failed += 1
        else:
            self.reloads_succeeded += 1
            self.reloaded_at_s = time()


class OperatorContext(NamedTuple):
    node: NodeState
    next_check_in_s: Callable[[str], float | None]  # by the id of a service; None: it is not being checked
    check_stats: CheckStats
    history: History
    events: EventHub
    page_feed: PageFeed
    process_stats: ProcessStats
    notify_status: NotifyStatus
    single_flight: SingleFlight
    # Separate, so that requests that wait for a hanging disk do not use up the limit of the others.
    history_single_flight: SingleFlight
    outages: RecentOutages
    structure: StructureCache
    config_file_of: Callable[[str], Path | None] = lambda _: None  # by the id of a service
    replica: Replica | None = None  # None: the node is on one machine

    async def shared(self, key: Hashable, make: Callable[[], T]) -> T:
        """`make()`, run in a thread. Its result is shared for a second, but only until something changes."""
        self.node.expire_stale()
        version = self.node.revision, self.process_stats.reload_problem
        return await self.single_flight.get(key, make, version=version)


class LoopLagMeter:
    """Measures how late the event loop wakes up, once a second.

    The maximum covers the current window and the one before it, so a scrape once a minute misses no measured delay.
    """

    def __init__(self, process_stats: ProcessStats, clock: Callable[[], float] = monotonic) -> None:
        self._process_stats = process_stats
        self._clock = clock  # not the loop's: uvloop reads it once per iteration
        self._previous_max_s = self._max_s = 0.0
        self._window_ends_at_s = clock() + LAG_WINDOW_S

    @contextmanager
    def running(self) -> Iterator[None]:
        self._loop = asyncio.get_running_loop()
        self._schedule()
        try:
            yield
        finally:
            self._timer.cancel()

    def _schedule(self) -> None:
        self._due_at_s = next_tick_s(self._loop.time(), LAG_SAMPLE_INTERVAL_S)
        self._timer = self._loop.call_at(self._due_at_s, self._measure)

    def _measure(self) -> None:
        now_s = self._clock()
        self._max_s = max(self._max_s, now_s - self._due_at_s)
        self._process_stats.loop_lag_s = max(self._previous_max_s, self._max_s)
        if now_s >= self._window_ends_at_s:
            self._previous_max_s, self._max_s = self._max_s, 0.0
            self._window_ends_at_s = now_s + LAG_WINDOW_S
        self._schedule()
