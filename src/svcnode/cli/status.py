"""`svcnode status URL…`: one look at nodes, ours or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from svcnode.cli.parsers import CommandParser, Commands

EXIT_UNCLEAR = 3


def add_to(commands: Commands) -> CommandParser:
    parser = commands.add_parser(
        "status",
        allow_abbrev=False,
        help="ask nodes how they are, once",
        description="Ask nodes once who they are, how they are, and which services they have; all at the same time. "
        "Exit 0 healthy, 1 partially healthy, 2 unhealthy, 3 unreachable, no such node, or not asked; of many nodes, "
        "the worst. Ended by Ctrl-C 130, with what is known by then (at once by a second one), by SIGTERM 143.",
    )
    parser.exit_after_misuse = EXIT_UNCLEAR  # 2 would say that a node is unhealthy
    add_node_arguments(parser)
    add = parser.add_argument
    add("--all", action="store_true", help="of many nodes, list every service, not only those that are not Up")
    add("--json", action="store_true", help="one JSON object per node and line, in the order given")
    return parser


def add_node_arguments(parser: CommandParser) -> None:
    """Which nodes, and how to ask them."""
    add = parser.add_argument
    add("urls", nargs="*", metavar="URL", help="a node: host:port, a URL, or unix:/path; without a scheme it is http")
    add("--from", dest="file", metavar="FILE", help='more of them, one per line, "#" for remarks; "-" is stdin')
    add("--prefix", default="/svc", metavar="PREFIX", help="path prefix of the interface (default: /svc)")
    add("--version", metavar="VERSION", help="ask for this version of the interface")
    add("--timeout", default="10s", metavar="DURATION", help="how long a node may take in all (default: 10s)")
    add("--ca", metavar="FILE", help="trust this PEM file instead of what this machine trusts")


def run(arguments: argparse.Namespace) -> int:
    from svcnode.cli.status_run import show_status

    return show_status(arguments)
