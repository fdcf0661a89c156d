"""Nodes as somebody on call meets them, for pictures, for Lighthouse and for tests: quiet, in an outage, and all Down.

They have a day of history: two outages, a restart and a note.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Acknowledgement, ChangeKind, Health, Maintenance
from svcnode.history import History
from tests.support.nodes import make_node
from tests.support.page_node import NAME, PageNode, page_node
from tests.support.virtual_time import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from svcnode.node.node_state import Handle, NodeState

QUIET, OUTAGE, ALL_DOWN = SITUATIONS = ("quiet", "outage", "all-down")
RUNBOOK = "https://wiki.example.com/ledger"
REFUSED = "connection refused by 10.0.0.5:5432"
HOUR_S = 3600.0
TICK_S = 5  # a longer step is a machine that stood still
KINDS = ("Validator", "Gateway", "Cache", "Indexer", "Archive", "Relay", "Signer", "Mempool")
# By id: what a node of every size has.
NAMED: dict[str, dict[str, Any]] = {
    "ledger": {"name": "Ledger database", "group": "storage", "impact": "critical", "tags": ["eu", "tier-1"]},
    "api": {"name": "Block API", "group": "chain", "impact": "critical", "depends_on": ["ledger"]},
    "gateway": {"name": "Gateway of the partners", "group": "chain", "depends_on": ["ledger"]},
    "queue": {"name": "Queue between the regions", "group": "chain"},
    "mail": {"name": "Mail", "group": "office", "impact": "none"},
}


@contextmanager
def node_with_past(count: int, path: Path) -> Iterator[PageNode]:
    """`count` services, all Up. `path` is that of its history, which must not exist."""
    with ThreadPoolExecutor(1) as thread:  # in this one, Playwright may have an event loop
        thread.submit(asyncio.run, _live_a_day(path)).result()
    with page_node(0, history_path=path) as node:
        groups = max(1, min(20, count // 10))
        for number in range(count - len(NAMED)):
            kind, group = KINDS[number % len(KINDS)], f"region-{number % groups}"
            node.handles.append(node.node.register(f"{kind.lower()}-{number}", name=f"{kind} {number}", group=group))
        node.handles[:0] = _register(node.node).values()
        for handle in node.handles:
            handle.up()
        yield node


def _register(node: NodeState) -> dict[str, Handle]:
    options: dict[str, Any] = {"ledger": {"runbook": RUNBOOK}}
    return {key: node.register(key, **facts, **options.get(key, {})) for key, facts in NAMED.items()}


async def _live_a_day(path: Path) -> None:
    """Up to five minutes ago."""
    wall, clock = VirtualClock(time.time() - 26 * HOUR_S), VirtualClock(1000.0)
    node = make_node(NAME, clock=clock, wall_clock=wall)
    async with History(node, path, wall_clock=wall) as history:

        def wait(minutes: int) -> None:
            for _ in range(minutes * 60 // TICK_S):
                wall.advance(TICK_S)
                clock.advance(TICK_S)
                history._aggregator.tick(wall.now_s)
                while history._aggregator.close_some(1000):
                    pass

        handles = _register(node)
        for handle in handles.values():
            handle.up()
        wait(6 * 60)
        handles["ledger"].down(REFUSED, code=ReasonCode.CONNECTION_REFUSED)
        wait(1)
        handles["api"].down("HTTP 500", code=ReasonCode.SERVER_ERROR)
        wait(40)
        handles["ledger"].up()
        handles["api"].up()
        wait(8 * 60)
        handles["queue"].initializing("6,120 behind")
        wait(90)
        handles["queue"].up()
        wait(26 * 60 - (6 + 8) * 60 - 41 - 90 - 60)
        node.announce(ChangeKind.NOTE, "deployed v1.4.3", None)
        wait(55)
        while len(history._backlog):  # noqa: ASYNC110  until its thread has written everything
            await asyncio.sleep(0.05)


# ---- what happens to it


def begin(situation: str, node: PageNode) -> None:
    """From quiet to this, or from an outage to all Down."""
    if situation == OUTAGE:
        _begin_outage(node)
    elif situation == ALL_DOWN:
        for handle in node.handles:
            handle.down("no route to host", code=ReasonCode.NETWORK_UNREACHABLE)


def _begin_outage(node: PageNode) -> None:
    """A cause with effects, that somebody has; many that fail alike; long texts; maintenance."""
    named = dict(zip(NAMED, node.handles, strict=False))
    named["ledger"].down(REFUSED, code=ReasonCode.CONNECTION_REFUSED)
    text = "HTTP 500: the query of the newest block took longer than its deadline of five seconds"
    named["api"].down(text, code=ReasonCode.SERVER_ERROR)
    named["gateway"].down("HTTP 502", code=ReasonCode.SERVER_ERROR)
    named["queue"].initializing("6,120 behind")
    named["mail"].down("timed out after 5 s", code=ReasonCode.TIMEOUT)
    now_s = time.time()
    owned = Acknowledgement(Health.UNHEALTHY, now_s, by="ops", reason="on it")
    node.node.acknowledgements.make(owned, "ledger")
    node.node.maintenance.set(Maintenance("control", node.node.now_s() + HOUR_S, by="ops", reason="update"), "mail")
    others = node.handles[len(NAMED) :]
    for handle in others[:: max(4, len(others) // 50)]:
        handle.down("HTTP 503", code=ReasonCode.SERVER_ERROR)
