"""Measures one figure of the page inside a process of the interpreter under test and prints it.

`python -m benchmarks.page_figures FIGURE SERVICES`, one of the functions in FIGURES.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from typing import TYPE_CHECKING, Any, cast

from tests.support.operator_context import OperatorHarness

from svcnode import operator
from svcnode.api.spec import Request
from svcnode.core.model import Evidence, Verdict
from svcnode.history.records import Bucket
from svcnode.operator.page_feed import SIGNAL_INTERVAL_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from svcnode.operator.context import OperatorContext

KINDS = ("Ledger database", "Block API", "Validator", "Gateway", "Cache", "Queue", "Indexer", "Search")
GROUPS = 20
DOWN_SHARE = 0.03
CHANGES = 2000
CHANGES_PER_FRAME = 12  # 50 per second, four times a second
GZIP = {b"accept-encoding": b"gzip"}


def make_context(services: int) -> OperatorContext:
    """Services with probes, groups, times, latencies and availabilities that all differ; a few are Down."""
    chance = random.Random(1)
    harness = OperatorHarness()
    for number in range(services):
        kind = chance.choice(KINDS)
        options: dict[str, Any] = {"group": f"region-{number % GROUPS}", "rise": 1, "fall": 1, "stale_after": "7d"}
        service_id, probe = f"{kind.lower().replace(' ', '-')}-{number}", f"tcp://{_host(number)}:5432"
        harness.node.register(service_id, name=f"{kind} {number}", probe=probe, **options)
    is_down = {service_id: chance.random() < DOWN_SHARE for service_id in harness.node.ids}
    for mean_s in (
        86_400 / services,
        10 / services,
    ):  # since some time of the last day, checked in the last ten seconds
        for number, service_id in enumerate(harness.node.ids):
            harness.clock.advance(chance.expovariate(1.0 / mean_s))
            refused = Verdict.failed(f"connection refused: tcp://{_host(number)}:5432", code="connection_refused")
            verdict = refused if is_down[service_id] else Verdict.ready("connected")
            harness.record(service_id, verdict, duration_s=chance.lognormvariate(-6.0, 1.0))
    harness.history.buckets = _buckets
    return harness.context


def _host(number: int) -> str:
    return f"10.{number // 62_500}.{number // 250 % 250}.{number % 250}"


async def _buckets(ids: Sequence[str], *_: object) -> dict[str, list[Bucket]]:
    chance = random.Random(1)
    return {one: [Bucket(0, up_s=86_400 * chance.uniform(0.98, 1.0), down_s=chance.uniform(0, 200))] for one in ids}


def wire_kb(services: int) -> float:
    """The page as a browser receives it."""
    context = make_context(services)

    async def get() -> int:
        with context.page_feed.following():
            response = cast("Any", await operator.handle(context, Request("GET", b"/", headers=GZIP)))
        assert ("Content-Encoding", "gzip") in response.headers
        return len(response.body)

    return asyncio.run(get()) / 1000


def change_us(services: int) -> float:
    """Processor time of one change, from its record to the compressed answer to a page that asks for it."""
    context = make_context(services)

    async def run() -> float:
        with context.page_feed.following():
            ids = context.node.ids[:10]
            cursor = await _cursor_after(context, "")
            began_s = time.process_time()
            for first in range(0, CHANGES, CHANGES_PER_FRAME):
                for number in range(first, first + CHANGES_PER_FRAME):
                    verdict = Verdict.failed("refused") if number // len(ids) % 2 else Verdict.ready()
                    context.node.record({ids[number % len(ids)]: Evidence(verdict, context.node.now_s(), 0.001)})
                await asyncio.sleep(SIGNAL_INTERVAL_S / 100)
                cast("Any", context.page_feed)._send_signal()
                cursor = await _cursor_after(context, cursor)
            return (time.process_time() - began_s) / CHANGES

    return asyncio.run(run()) * 1e6


async def _cursor_after(context: OperatorContext, cursor: str) -> str:
    request = Request("GET", b"/page/changes", f"after={cursor}".encode(), GZIP)
    await operator.handle(context, request)
    return context.page_feed.cursor


FIGURES: dict[str, Callable[[int], float]] = {"wire": wire_kb, "change": change_us}


if __name__ == "__main__":
    print(FIGURES[sys.argv[1]](int(sys.argv[2])))
