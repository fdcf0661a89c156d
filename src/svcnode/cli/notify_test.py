"""`svcnode notify-test`: see whether messages arrive, before it matters."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from svcnode.cli.configuration import add_config_option

if TYPE_CHECKING:
    import argparse

    from svcnode.cli.parsers import CommandParser, Commands


def add_to(commands: Commands) -> CommandParser:
    parser = commands.add_parser(
        "notify-test",
        allow_abbrev=False,
        help="send a test message to everybody who would be told of a change",
        description="Send one test message, marked as such, to every target of [notify], or to one of them. "
        "Exit 0 when all took it, 1 when one did not, 2 when nobody is configured.",
    )
    add_config_option(parser)
    parser.add_argument("--to", type=int, metavar="N", help="only to the target with this number, from 1 on")
    return parser


def run(arguments: argparse.Namespace) -> int:
    from svcnode.cli.notify_test_run import show_trials
    from svcnode.config import find_file, load_notify

    identity, notify = load_notify(find_file(arguments.config), os.environ)
    return show_trials(identity, notify, arguments.to)
