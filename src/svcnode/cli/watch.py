"""`svcnode watch URL…`: nodes live on the terminal, ours or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from svcnode.cli.status import EXIT_UNCLEAR, add_node_arguments

if TYPE_CHECKING:
    import argparse

    from svcnode.cli.parsers import CommandParser, Commands


def add_to(commands: Commands) -> CommandParser:
    parser = commands.add_parser(
        "watch",
        allow_abbrev=False,
        help="watch nodes live on the terminal",
        description="Watch nodes live on the terminal: health, services, what has changed and when, and the last "
        "minutes of each. Keys: q quit, s sort, / filter, arrows select, Enter services, ? help. "
        "Needs a terminal; elsewhere, use svcnode status. "
        "Exit 0 ended by q or Ctrl-C, 3 no terminal or not watched at all; ended by a signal, 128 + its number.",
    )
    parser.exit_after_misuse = EXIT_UNCLEAR
    add_node_arguments(parser)
    parser.add_argument(
        "--interval", default="2s", metavar="DURATION", help="from look to look at a node (default: 2s)"
    )
    return parser


def run(arguments: argparse.Namespace) -> int:
    from svcnode.cli.watch_run import watch_nodes

    return watch_nodes(arguments)
