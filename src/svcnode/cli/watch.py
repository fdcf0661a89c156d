"""`svcnode watch URL…`: the health of nodes, live on the terminal."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from svcnode.cli._args import positive_duration_s
from svcnode.cli._node_args import add_node_arguments, open_registry_nodes, sources_from, timeout_from
from svcnode.cli.terminal.watch.app import WatchApp
from svcnode.cli.terminal.watch.screen import Screen
from svcnode.client.resolver_loop import DaemonResolverLoop

if TYPE_CHECKING:
    import argparse

    from svcnode.cli._args import CommandParser
    from svcnode.cli.terminal.snapshot import NodeSnapshot

_EPILOG = """\
keys:
  q quit, s sort, / filter, arrows select, Enter services, ? help

exit codes:
  0        ended by q or Ctrl-C
  1        the registry cannot be reached
  2        no terminal, or invalid arguments or configuration
  128 + N  ended by signal N

examples:
  svcnode watch
  svcnode watch 10.0.0.5:8420 10.0.0.6:8420 --interval 5s
"""


def configure(parser: CommandParser) -> None:
    parser.description = (
        "Watch nodes live in the terminal: their health and services, what changes and when, and the last minutes of "
        "each. Without a terminal, use svcnode status."
    )
    parser.epilog = _EPILOG
    add_node_arguments(parser)
    parser.add_argument("--interval", default="2s", metavar="DURATION", help="how often to ask each node (default: 2s)")


def run_command(arguments: argparse.Namespace) -> int:
    interval_s = positive_duration_s("--interval", arguments.interval)
    with asyncio.Runner(loop_factory=DaemonResolverLoop) as runner:
        return runner.run(_watch(arguments, interval_s))


async def _watch(arguments: argparse.Namespace, interval_s: float) -> int:
    is_configured = not (arguments.urls or arguments.file or arguments.registry)
    ca, config = arguments.ca, arguments.config

    async def add_problems(snapshot: NodeSnapshot) -> NodeSnapshot:
        from svcnode.cli._problems import with_problems  # loaded late: most nodes have no problem

        (added,) = await with_problems([snapshot], ca=ca, config=config, is_configured=is_configured)
        return added

    async with open_registry_nodes(arguments) as registry:
        sources = await sources_from(arguments, registry)
        timeout_s = timeout_from(arguments)
        app = WatchApp(Screen(), sources, interval_s, timeout_s, registry, add_problems=add_problems)
        return await app.run()
