"""`svcnode demo`: a node with five small real servers that fail and recover in a fixed scenario.

scenario.py  the steps and their times
servers.py   the five servers: real listeners, real protocols, and fault modes
checks.py    how the node checks each of them
runner.py    runs the servers, the scenario and the agent
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from svcnode.agent import agent
from svcnode.cli.demo.runner import run_demo
from svcnode.cli.output import show
from svcnode.core.address import parse_address
from svcnode.core.errors import InvalidValueError

if TYPE_CHECKING:
    from svcnode.cli._args import CommandParser

DEFAULT_LISTEN = "127.0.0.1:8420"
LISTEN_VARIABLE = "SVCNODE_SERVER_LISTEN"
MAX_SPEED = 20.0
_EPILOG = """\
exit codes:
  0  stopped by a signal
  1  cannot start or go on, for example because the address is in use
  2  invalid arguments or variables

examples:
  svcnode demo
  svcnode demo --speed 4
"""


def configure(parser: CommandParser) -> None:
    parser.description = (
        "See what a node does when its services fail. The demo runs a node with five small real servers, which start, "
        "become slow, fail and recover in a scenario of one minute that repeats. It prints the addresses to open, and "
        "writes nothing to the disk. It reads the same environment variables as serve, such as "
        "SVCNODE_SERVER_LISTEN, but no configuration file."
    )
    parser.epilog = _EPILOG
    parser.add_argument(
        "--listen",
        metavar="ADDRESS",
        help=f"where the node listens (default: {LISTEN_VARIABLE}, then {DEFAULT_LISTEN} or the next free port)",
    )
    parser.add_argument(
        "--speed",
        type=_speed,
        default=1.0,
        metavar="N",
        help=f"run the scenario and the checks N times as fast, 0.1 to {MAX_SPEED:g} (default: 1)",
    )


def run_command(arguments: argparse.Namespace) -> int:
    given = arguments.listen or os.environ.get(LISTEN_VARIABLE)
    listen = parse_address(given or DEFAULT_LISTEN, has_tls=False)
    if listen.scheme == "unix":
        origin = "--listen" if arguments.listen else LISTEN_VARIABLE
        raise InvalidValueError(f"{origin}: a browser cannot open {listen}; use host:port, such as {DEFAULT_LISTEN}")
    return agent.run_until_complete(
        run_demo(listen, _print_line, is_port_given=given is not None, speed=arguments.speed, environ=os.environ)
    )


def _print_line(text: str) -> None:
    show(text, sys.stdout)


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0.1 <= speed <= MAX_SPEED:
        raise argparse.ArgumentTypeError(f"must be a number from 0.1 to {MAX_SPEED:g}, not {text!r}")
    return speed
