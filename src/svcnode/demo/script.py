"""What happens in the demo, and when. It is data, so that it can be read, and tested without waiting for it."""

from __future__ import annotations

import asyncio
from enum import Enum, auto
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator


class Mood(Enum):
    """How a server of the demo is."""

    WELL = auto()
    STARTING = auto()  # answers, and says itself that it is not ready
    SLOW = auto()  # answers rightly, but late
    MUTE = auto()  # takes connections and says nothing
    GONE = auto()  # nobody listens: connections are refused


class Act(NamedTuple):
    at_s: float
    server: str
    mood: Mood
    words: str


AT_FIRST = {
    "cache": Mood.WELL,
    "peer": Mood.WELL,
    "storage": Mood.STARTING,
    "chain": Mood.STARTING,
    "indexer": Mood.STARTING,
}

# Played once.
OPENING_S = 12.0
OPENING = (
    Act(4, "storage", Mood.WELL, "the storage daemon has found its peers: it goes Up"),
    Act(7, "chain", Mood.WELL, "the execution client has caught up with its chain: it goes Up"),
    Act(10, "indexer", Mood.WELL, "the indexer has read all blocks: everything is Up, and the node healthy (200)"),
)

# Played again and again; each trouble is over at the end. With the opening, it makes a minute.
ROUND_S = 48.0
ROUND = (
    Act(4, "cache", Mood.SLOW, "the cache becomes slow: it answers, but later than max_latency allows"),
    Act(9, "cache", Mood.WELL, "the cache is quick again"),
    Act(13, "indexer", Mood.GONE, "the indexer stops answering: watch it go Down after 3 failures, the node to 206"),
    Act(16, "storage", Mood.STARTING, "the storage daemon loses its peers: it says so itself, and is Initializing"),
    Act(20, "indexer", Mood.STARTING, "the indexer is back, and reads the blocks that it missed: Initializing"),
    Act(22, "storage", Mood.WELL, "the storage daemon has peers again"),
    Act(24, "indexer", Mood.WELL, "the indexer has caught up"),
    Act(27, "peer", Mood.MUTE, "the peer hangs: it takes connections and says nothing, and looks end at their timeout"),
    Act(32, "peer", Mood.WELL, "the peer answers again: 2 successes in a row bring it back Up"),
    Act(
        35, "chain", Mood.GONE, "the execution client stops. It is critical, so the node itself becomes unhealthy: 503"
    ),
    Act(41, "chain", Mood.STARTING, "the execution client is back, and syncs"),
    Act(45, "chain", Mood.WELL, "the execution client has caught up: all is well, and the script begins again"),
)


def acts() -> Iterator[Act]:
    """All of them, for ever; their times count from the beginning of the demo."""
    yield from OPENING
    for round_number in count():
        began_s = OPENING_S + round_number * ROUND_S
        for act in ROUND:
            yield act._replace(at_s=began_s + act.at_s)


async def play(perform: Callable[[Act], Awaitable[None]], *, speed: float = 1.0) -> None:
    """Each act at its time; until cancelled."""
    clock = asyncio.get_running_loop().time
    began_s = clock()
    for act in acts():
        await asyncio.sleep(began_s + act.at_s / speed - clock())
        await perform(act)
