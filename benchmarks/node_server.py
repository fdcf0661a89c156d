"""A node whose program reports the status of many services; half of them are Up, half Down.

`python -m benchmarks.node_server PORT SERVICES REPORTS_PER_SECOND`
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from itertools import count, cycle
from typing import TYPE_CHECKING

import uvloop

from benchmarks.payloads import service_fields
from svcnode.agent.embed.node import Node, internals_of
from svcnode.server.server import HttpServer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from svcnode.node.node_state import Handle


async def serve(port: int, service_count: int, reports_per_s: int) -> None:
    node = Node("validator-7", version="v1.4.2")
    handles = [_register(node, number) for number in range(service_count)]
    changes = _changes(handles)
    for _ in handles:
        next(changes)()
    await HttpServer(internals_of(node).state, ("/svc",)).listen(socket.create_server(("127.0.0.1", port)))
    await _report(changes, reports_per_s)


def _register(node: Node, number: int) -> Handle:
    fields = service_fields(number)
    return node.register(fields["id"], name=fields["name"], description=fields["description"])


def _changes(handles: list[Handle]) -> Iterator[Callable[[], None]]:
    """Reports in a loop, each a change of state."""
    for is_even_round in cycle((True, False)):
        for number, handle in enumerate(handles):
            is_even = number % 2 == 0
            yield handle.up if is_even is is_even_round else handle.down


async def _report(changes: Iterator[Callable[[], None]], reports_per_s: int) -> None:
    """Report at even intervals; a late report delays no other."""
    if not reports_per_s:
        await asyncio.Event().wait()
    started_at_s = time.monotonic()
    for number in count():
        await asyncio.sleep(started_at_s + number / reports_per_s - time.monotonic())
        next(changes)()


if __name__ == "__main__":
    uvloop.run(serve(*map(int, sys.argv[1:4])))
