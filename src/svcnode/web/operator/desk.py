"""What the handlers of the operator surface have at hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import time
from typing import TYPE_CHECKING

from svcnode.clock import steady_s
from svcnode.web.operator.shared import Shared

if TYPE_CHECKING:
    from svcnode.history import History
    from svcnode.journal import Journal
    from svcnode.node import Node
    from svcnode.notify.notices import Notices
    from svcnode.web.operator.events import EventHub


WALL_CLOCK_SET_S = 2.0  # by less, the clocks may differ for other reasons, such as a leap second


@dataclass(slots=True, kw_only=True)
class Vitals:
    """How the process itself fares; the agent keeps it up to date."""

    started_at_s: float = field(default_factory=time)  # wall clock, as all here but for one
    began_s: float = field(default_factory=steady_s)  # the same moment by the node's clock, which nobody sets
    reloaded_at_s: float | None = None  # the last reload that succeeded
    is_reload_good: bool = True  # of the last one, whenever that was
    reload_problem: str = ""
    reloads_good: int = 0
    reloads_bad: int = 0
    loop_lag_s: float = 0.0  # by how much the event loop was late, at worst, in the last minute or two

    def correct(self, now_s: float, wall_s: float) -> None:
        """The clock on the wall may have been set since the start. Where it was not, the moment stays as it was told,
        to the millisecond: readers know by it that this is the same process.
        """
        started_at_s = wall_s - (now_s - self.began_s)
        if abs(started_at_s - self.started_at_s) > WALL_CLOCK_SET_S:
            self.started_at_s = started_at_s

    def note_reload(self, problem: str = "") -> None:
        self.is_reload_good, self.reload_problem = not problem, problem
        if problem:
            self.reloads_bad += 1
        else:
            self.reloads_good += 1
            self.reloaded_at_s = time()


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    node: Node
    journal: Journal
    history: History
    events: EventHub
    vitals: Vitals
    notices: Notices
    shared: Shared = field(default_factory=Shared)
    # Apart: those who wait for a disk that hangs must not crowd out the others.
    shared_bars: Shared = field(default_factory=Shared)
