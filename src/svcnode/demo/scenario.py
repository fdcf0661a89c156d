"""What happens in the demo, and when. It is data, so that it can be read, and tested without waiting for it."""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator


class FaultMode(Enum):
    """How a server of the demo is."""

    NONE = auto()
    NOT_READY = auto()  # answers, and says itself that it is not ready
    SLOW = auto()  # answers rightly, but late
    UNRESPONSIVE = auto()  # takes connections and says nothing
    STOPPED = auto()  # nobody listens: connections are refused


class ScenarioStep(NamedTuple):
    at_s: float
    server: str
    mode: FaultMode
    text: str


INITIAL_MODES = {
    "cache": FaultMode.NONE,
    "peer": FaultMode.NONE,
    "storage": FaultMode.NOT_READY,
    "chain": FaultMode.NOT_READY,
    "indexer": FaultMode.NOT_READY,
}

# Played once.
STARTUP_S = 12.0
STARTUP_STEPS = (
    ScenarioStep(4, "storage", FaultMode.NONE, "the storage daemon has found its peers: it goes Up"),
    ScenarioStep(7, "chain", FaultMode.NONE, "the execution client has caught up with its chain: it goes Up"),
    ScenarioStep(
        10, "indexer", FaultMode.NONE, "the indexer has read all blocks: everything is Up, and the node healthy (200)"
    ),
)

# Played again and again; each trouble is over at the end. With the opening, it makes a minute.
LOOP_S = 48.0
LOOP_STEPS = (
    ScenarioStep(4, "cache", FaultMode.SLOW, "the cache becomes slow: it answers, but later than max_latency allows"),
    ScenarioStep(9, "cache", FaultMode.NONE, "the cache is quick again"),
    ScenarioStep(
        13,
        "indexer",
        FaultMode.STOPPED,
        "the indexer stops answering: watch it go Down after 3 failures, the node to 206",
    ),
    ScenarioStep(
        16, "storage", FaultMode.NOT_READY, "the storage daemon loses its peers: it says so itself, and is Initializing"
    ),
    ScenarioStep(
        20, "indexer", FaultMode.NOT_READY, "the indexer is back, and reads the blocks that it missed: Initializing"
    ),
    ScenarioStep(22, "storage", FaultMode.NONE, "the storage daemon has peers again"),
    ScenarioStep(24, "indexer", FaultMode.NONE, "the indexer has caught up"),
    ScenarioStep(
        27,
        "peer",
        FaultMode.UNRESPONSIVE,
        "the peer hangs: it takes connections and says nothing, and looks end at their timeout",
    ),
    ScenarioStep(32, "peer", FaultMode.NONE, "the peer answers again: 2 successes in a row bring it back Up"),
    ScenarioStep(
        35,
        "chain",
        FaultMode.STOPPED,
        "the execution client stops. It is critical, so the node itself becomes unhealthy: 503",
    ),
    ScenarioStep(41, "chain", FaultMode.NOT_READY, "the execution client is back, and syncs"),
    ScenarioStep(
        45, "chain", FaultMode.NONE, "the execution client has caught up: all is well, and the script begins again"
    ),
)


def scenario_steps() -> Iterator[ScenarioStep]:
    """All of them, for ever; their times count from the beginning of the demo."""
    yield from STARTUP_STEPS
    for round_number in count():
        began_s = STARTUP_S + round_number * LOOP_S
        for act in LOOP_STEPS:
            yield act._replace(at_s=began_s + act.at_s)


async def run_scenario(perform: Callable[[ScenarioStep], Awaitable[None]], *, speed: float = 1.0) -> None:
    """Each act at its time; until cancelled."""
    clock = asyncio.get_running_loop().time
    began_s = clock()
    for act in scenario_steps():
        await asyncio.sleep(began_s + act.at_s / speed - clock())
        await perform(act)
