"""`svcnode probe URL`: one look now, or one after another, and all that there is to see of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from svcnode.cli.parsers import CommandParser, Commands

EXIT_UNKNOWN = 3


def add_to(commands: Commands) -> CommandParser:
    parser = commands.add_parser(
        "probe",
        allow_abbrev=False,
        help="look at a service once, now",
        description="Look at a service once, now: the verdict, why, how long it took, and every step. "
        "Exit 0 ready, 1 not ready, 2 failed, 3 unknown or not looked at.",
    )
    parser.exit_after_misuse = EXIT_UNKNOWN  # 2 would say that the service failed
    add = parser.add_argument
    add("url", metavar="URL", help="what to look at, such as tcp://127.0.0.1:5432")
    add("-o", "--option", action="append", default=[], metavar="KEY=VALUE", help="an option of the probe, as in TOML")
    add("--timeout", default="3s", metavar="DURATION", help="how long a look may take (default: 3s)")
    add("--max-latency", metavar="DURATION", help="a success that takes longer is not ready")
    add("--allow-exec", action="store_true", help="let an exec: probe run its program")
    add("--json", action="store_true", help="one JSON object per look")
    add("--watch", action="store_true", help="go on looking until stopped with Ctrl-C")
    add("--interval", default="1s", metavar="DURATION", help="with --watch, from look to look (default: 1s)")
    return parser


def run(arguments: argparse.Namespace) -> int:
    from svcnode.cli.probe_run import show_look, show_looks

    return show_looks(arguments) if arguments.watch else show_look(arguments)
