"""What `svcnode watch` does: sees to it that there is a terminal and what to watch, and watches."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from svcnode.cli.durations import positive_s
from svcnode.cli.nodes import clients_from, timeout_from
from svcnode.client.loops import PromptLoop
from svcnode.terminal.watch.live import Live
from svcnode.terminal.watch.screen import Screen

if TYPE_CHECKING:
    import argparse


def watch_nodes(arguments: argparse.Namespace) -> int:
    interval_s = positive_s("--interval", arguments.interval)
    with asyncio.Runner(loop_factory=PromptLoop) as runner:
        return runner.run(_watch(arguments, interval_s))


async def _watch(arguments: argparse.Namespace, interval_s: float) -> int:
    clients = clients_from(arguments)
    return await Live(Screen(), clients, interval_s, timeout_from(arguments)).run()
