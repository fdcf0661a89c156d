"""What the handlers of the operator surface have at hand.

How late the event loop is. Whatever holds it holds up health, too.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from time import monotonic, time
from typing import TYPE_CHECKING

from svcnode.clock import monotonic_s
from svcnode.operator.single_flight import SingleFlight

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.history import History
    from svcnode.node import Node
    from svcnode.notify.model import DeliveryStats
    from svcnode.operator.events import EventHub
    from svcnode.stats import CheckStats

CLOCK_STEP_S = 2.0  # by less, the clocks may differ for other reasons, such as a leap second


@dataclass(slots=True, kw_only=True)
class ProcessStats:
    """How the process itself fares; the agent keeps it up to date."""

    started_at_s: float = field(default_factory=time)  # wall clock, as all here but for one
    started_monotonic_s: float = field(
        default_factory=monotonic_s
    )  # the same moment by the node's clock, which nobody sets
    reloaded_at_s: float | None = None  # the last reload that succeeded
    last_reload_ok: bool = True  # of the last one, whenever that was
    reload_problem: str = ""
    reloads_succeeded: int = 0
    reloads_failed: int = 0
    loop_lag_s: float = 0.0  # by how much the event loop was late, at worst, in the last minute or two

    def adjust_start_time(self, now_s: float, wall_s: float) -> None:
        """The clock on the wall may have been set since the start. Where it was not, the moment stays as it was told,
        to the millisecond: readers know by it that this is the same process.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorContext:
    node: Node
    check_stats: CheckStats
    history: History
    events: EventHub
    process_stats: ProcessStats
    delivery_stats: DeliveryStats
    single_flight: SingleFlight = field(default_factory=SingleFlight)
    # Apart: those who wait for a disk that hangs must not crowd out the others.
    history_single_flight: SingleFlight = field(default_factory=SingleFlight)


LAG_SAMPLE_INTERVAL_S = 0.1
# The worst is remembered until the next window ends, so who asks once a minute misses nothing.
LAG_WINDOW_S = 60.0


async def measure_loop_lag(process_stats: ProcessStats, clock: Callable[[], float] = monotonic) -> None:
    """Sleep for a moment, see by how much it became longer, and so on, until cancelled."""
    worst_before_s = worst_s = 0.0
    window_ends_at_s = clock() + LAG_WINDOW_S
    while True:
        due_at_s = clock() + LAG_SAMPLE_INTERVAL_S
        await asyncio.sleep(LAG_SAMPLE_INTERVAL_S)
        now_s = clock()
        worst_s = max(worst_s, now_s - due_at_s)
        process_stats.loop_lag_s = max(worst_before_s, worst_s)
        if now_s >= window_ends_at_s:
            worst_before_s, worst_s = worst_s, 0.0
            window_ends_at_s = now_s + LAG_WINDOW_S
