"""`svcnode init`: look for known services on this host, and write a configuration that looks at them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from svcnode.cli.parsers import CommandParser, Commands


def add_to(commands: Commands) -> CommandParser:
    parser = commands.add_parser(
        "init",
        allow_abbrev=False,
        help="look for known services on this host, and write svcnode.toml",
        description="Look for known services on this host, confirm each by speaking its protocol, and write a "
        "configuration that is ready to serve. A file that exists is never overwritten. Exit 0 or 2.",
    )
    add = parser.add_argument
    add("file", nargs="?", type=_file, metavar="FILE", help="where to write it (default: svcnode.toml in this folder)")
    add("--stdout", action="store_true", help="print it instead; what was found is told on stderr")
    add(
        "--port",
        action="append",
        default=[],
        metavar="KIND=PORT",
        dest="ports",
        help="look for a kind, such as postgresql, at this port instead of its usual one; may be repeated",
    )
    return parser


def _file(text: str) -> Path:
    if not text:  # as a path, that is the folder
        raise argparse.ArgumentTypeError("a file name is needed, such as svcnode.toml")
    return Path(text)


def run(arguments: argparse.Namespace) -> int:
    from svcnode.cli.init_run import initialize

    return initialize(arguments.file, arguments.ports, prints=arguments.stdout)
