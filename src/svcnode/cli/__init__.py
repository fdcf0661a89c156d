"""The command line: a file per command, with its options. What a command needs is imported by that command, so that
none pays for another; most have a second file for it, `…_run`, which does the work.

argparse, because importing click alone takes longer than importing asyncio, and `serve` is started often.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from svcnode.cli import check_config, conform, demo, explain, init, notify_test, probe, serve, status, watch
from svcnode.cli._args import CommandParser
from svcnode.core.errors import SvcnodeError
from svcnode.version import __version__

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence


def main(argv: Sequence[str] | None = None) -> int:
    _reopen_closed_fds()
    try:
        return _run(argv)
    except BrokenPipeError:
        return 1
    except KeyboardInterrupt:  # before the agent heeds signals, or in a command that does not
        return 128 + signal.SIGINT
    finally:
        _flush_or_discard()


def _run(argv: Sequence[str] | None) -> int:
    arguments, unknown = build_parser().parse_known_args(argv)
    if unknown:  # refused by the command that they were meant for: what its exit codes mean is its own
        arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        return command(arguments)
    except SvcnodeError as exc:
        from svcnode.core.text import one_line

        print(f"svcnode: {one_line(str(exc))}", file=sys.stderr)  # noqa: T201  all that a user gets
        return int(arguments.parser.usage_exit_code)


def _reopen_closed_fds() -> None:
    """The first file or socket would be given the number of a stream that is closed, and be taken for it.

    `sys.stdin` and `sys.stdout` stay None, by which commands know; what is said on `sys.stderr` must not go to stdout.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest number that is free: this one
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  it stays open


def _flush_or_discard() -> None:
    """What cannot be delivered any more must not become a traceback or another exit code at the very end."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # one that was closed before the start is None
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def build_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="svcnode",
        allow_abbrev=False,
        description="A validator-service node that answers for its health with evidence, not claims.",
    )
    parser.add_argument("--version", action="version", version=f"svcnode {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=CommandParser)
    for command in (serve, demo, init, check_config, notify_test, probe, status, watch, explain, conform):
        added = command.add_to(commands)
        added.set_defaults(command=command.run, parser=added)
    return parser
