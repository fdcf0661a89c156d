"""`svcnode demo`: see a node at work, with nothing to set up."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from svcnode.cli._args import CommandParser, Commands

DEFAULT_LISTEN = "127.0.0.1:8420"
MAX_SPEED = 20.0


def configure(commands: Commands) -> CommandParser:
    parser = commands.add_parser(
        "demo",
        allow_abbrev=False,
        help="see a node at work, with nothing to set up",
        description="Run a node with five small real servers that start, become slow, go down and come back by a "
        "script of a minute. It says where to look. Nothing is written to the disk.",
    )
    parser.add_argument(
        "--listen",
        metavar="ADDRESS",
        help=f"where the node listens (default {DEFAULT_LISTEN}, or the next port that is free)",
    )
    parser.add_argument(
        "--speed", type=_speed, default=1.0, metavar="N", help="play the script, and look, N times as fast (default 1)"
    )
    return parser


def run_command(arguments: argparse.Namespace) -> int:
    from svcnode import agent, logs
    from svcnode.core.address import parse_address
    from svcnode.core.errors import InvalidValueError
    from svcnode.demo.runner import run_demo

    listen = parse_address(arguments.listen or DEFAULT_LISTEN, has_tls=False)
    if listen.scheme == "unix":
        raise InvalidValueError(
            f'--listen: a browser cannot open {listen}; write an address such as "{DEFAULT_LISTEN}"'
        )
    logs.configure("info", "text")
    return agent.run_until_complete(
        run_demo(listen, _print_line, is_port_given=arguments.listen is not None, speed=arguments.speed)
    )


def _print_line(text: str) -> None:
    from svcnode.cli.output import show

    show(text, sys.stdout)


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.1 <= speed <= MAX_SPEED:
        raise argparse.ArgumentTypeError(f"a number from 0.1 to {MAX_SPEED:g}, not {text!r}")
    return speed
