"""`svcnode explain [ID]`: why a service, or the node, is what it is."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from svcnode.cli.configuration import add_config_option

if TYPE_CHECKING:
    from svcnode.cli.parsers import CommandParser, Commands

EXIT_NOT_ASKED = 3

_EPILOG = """\
where it asks:
  the address that the configuration listens on for operators, as svcnode serve
  would, or the one that --url names. Beyond this machine, and on it where
  trust_loopback is false, the node wants its operator token: --token,
  SVCNODE_SECURITY_OPERATOR_TOKEN, or, without --url, the one in the
  configuration.

exit codes:
  0  the service is Up, the node healthy
  1  the service is Initializing, the node partially healthy
  2  the service is Down, the node unhealthy
  3  nobody could be asked, or there is no such service

examples:
  svcnode explain
  svcnode explain db-1
  svcnode explain db-1 --url https://node.example.com:8420 --token @token.txt
"""


def add_to(commands: Commands) -> CommandParser:
    parser = commands.add_parser(
        "explain",
        allow_abbrev=False,
        help="say why a service, or the node, is what it is",
        description="Ask a running svcnode why a service is Up, Initializing or Down: what was seen, which\n"
        "rule made that its status, what would change it, and what to mend. Without an\n"
        "id: the node itself, and the services that are not Up.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.exit_after_misuse = EXIT_NOT_ASKED  # 2 would say that the service is Down
    add = parser.add_argument
    add("id", nargs="?", metavar="ID", help="the id of a service")
    add("--url", metavar="URL", help="where the node is: host:port, a URL, or unix:/path")
    add("--token", metavar="TOKEN", help="the operator token, or @FILE that holds it")
    add("--ca", metavar="FILE", help="trust this PEM file instead of what this machine trusts")
    add("--json", action="store_true", help="what the node tells, as one JSON object")
    add_config_option(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    from svcnode.cli.explain_run import show_explanation

    return show_explanation(arguments)
