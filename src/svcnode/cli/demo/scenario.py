"""The scenario of the demo as data: the steps and their times."""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator


class FaultMode(Enum):
    """The fault that a server of the demo simulates."""

    NONE = auto()
    NOT_READY = auto()  # responds, and reports that it is not ready
    SLOW = auto()  # responds correctly, but late
    UNRESPONSIVE = auto()  # accepts connections and does not respond
    STOPPED = auto()  # refuses connections


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

# Run once.
STARTUP_S = 12.0
STARTUP_STEPS = (
    ScenarioStep(4, "storage", FaultMode.NONE, "storage has found its peers: it becomes Up"),
    ScenarioStep(7, "chain", FaultMode.NONE, "chain has finished syncing: it becomes Up"),
    ScenarioStep(
        10, "indexer", FaultMode.NONE, "indexer has read all blocks: all services are Up, the node is healthy (200)"
    ),
)

# Repeated; all faults are over at the end. With the startup it takes one minute.
LOOP_S = 48.0
LOOP_STEPS = (
    ScenarioStep(4, "cache", FaultMode.SLOW, "cache becomes slow: its responses take longer than max_latency"),
    ScenarioStep(9, "cache", FaultMode.NONE, "cache is fast again"),
    ScenarioStep(
        13,
        "indexer",
        FaultMode.STOPPED,
        "indexer stops: Down after 3 failures, the node is partially healthy (206)",
    ),
    ScenarioStep(16, "storage", FaultMode.NOT_READY, "storage loses its peers and reports it: Initializing"),
    ScenarioStep(
        20, "indexer", FaultMode.NOT_READY, "indexer is back and reads the blocks that it missed: Initializing"
    ),
    ScenarioStep(22, "storage", FaultMode.NONE, "storage has peers again"),
    ScenarioStep(24, "indexer", FaultMode.NONE, "indexer has read all blocks"),
    ScenarioStep(
        27,
        "peer",
        FaultMode.UNRESPONSIVE,
        "peer hangs: it accepts connections and does not respond, so its checks time out",
    ),
    ScenarioStep(32, "peer", FaultMode.NONE, "peer responds again: Up after 2 successes in a row"),
    ScenarioStep(
        35,
        "chain",
        FaultMode.STOPPED,
        "chain stops: it is critical, so the node is unhealthy (503)",
    ),
    ScenarioStep(41, "chain", FaultMode.NOT_READY, "chain is back and syncs"),
    ScenarioStep(45, "chain", FaultMode.NONE, "chain has finished syncing: all services are Up; the scenario repeats"),
)


def scenario_steps() -> Iterator[ScenarioStep]:
    """An endless iterator; times are seconds since the start of the demo."""
    yield from STARTUP_STEPS
    for round_number in count():
        started_s = STARTUP_S + round_number * LOOP_S
        for step in LOOP_STEPS:
            yield step._replace(at_s=started_s + step.at_s)


async def run_scenario(apply_step: Callable[[ScenarioStep], Awaitable[None]], *, speed: float = 1.0) -> None:
    """Applies each step at its time, until cancelled."""
    clock = asyncio.get_running_loop().time
    started_s = clock()
    for step in scenario_steps():
        await asyncio.sleep(started_s + step.at_s / speed - clock())
        await apply_step(step)
