"""`svcnode watch URL…`: nodes live on the terminal, ours or not.

What `svcnode watch` does: sees to it that there is a terminal and what to watch, and watches.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from svcnode.cli._args import positive_duration_s
from svcnode.cli._node_args import clients_from, timeout_from
from svcnode.cli.status import EXIT_UNKNOWN, add_node_arguments
from svcnode.client.resolver_loop import DaemonResolverLoop
from svcnode.terminal.watch.app import WatchApp
from svcnode.terminal.watch.screen import Screen

if TYPE_CHECKING:
    import argparse

    from svcnode.cli._args import CommandParser, Commands


def configure(commands: Commands) -> CommandParser:
    parser = commands.add_parser(
        "watch",
        allow_abbrev=False,
        help="watch nodes live on the terminal",
        description="Watch nodes live on the terminal: health, services, what has changed and when, and the last "
        "minutes of each. Keys: q quit, s sort, / filter, arrows select, Enter services, ? help. "
        "Needs a terminal; elsewhere, use svcnode status. "
        "Exit 0 ended by q or Ctrl-C, 3 no terminal or not watched at all; ended by a signal, 128 + its number.",
    )
    parser.usage_exit_code = EXIT_UNKNOWN
    add_node_arguments(parser)
    parser.add_argument(
        "--interval", default="2s", metavar="DURATION", help="from look to look at a node (default: 2s)"
    )
    return parser


def run_command(arguments: argparse.Namespace) -> int:

    return watch_nodes(arguments)


def watch_nodes(arguments: argparse.Namespace) -> int:
    interval_s = positive_duration_s("--interval", arguments.interval)
    with asyncio.Runner(loop_factory=DaemonResolverLoop) as runner:
        return runner.run(_watch(arguments, interval_s))


async def _watch(arguments: argparse.Namespace, interval_s: float) -> int:
    clients = clients_from(arguments)
    return await WatchApp(Screen(), clients, interval_s, timeout_from(arguments)).run()
