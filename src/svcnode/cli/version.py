"""`svcnode version`: the version of svcnode, of the interface and of Python."""

from __future__ import annotations

import json
import platform
import sys
from typing import TYPE_CHECKING

from svcnode.cli.output import show
from svcnode.core.model import SPEC_VERSION
from svcnode.version import __version__

if TYPE_CHECKING:
    import argparse

    from svcnode.cli._args import CommandParser


def configure(parser: CommandParser) -> None:
    parser.description = (
        "Show the version of svcnode, of the interface and of Python. Exit code: 0, 2 invalid arguments."
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")


def run_command(arguments: argparse.Namespace) -> int:
    versions = {
        "svcnode": __version__,
        "interface": SPEC_VERSION,
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "platform": sys.platform,
    }
    text = "svcnode {svcnode} (interface {interface}, {implementation} {python}, {platform})".format_map(versions)
    show(json.dumps(versions) if arguments.json else text, sys.stdout)
    return 0
