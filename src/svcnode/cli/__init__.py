"""The command line: one file per command, loaded only when its command is chosen.

argparse, because importing click alone takes longer than importing asyncio, and `serve` is started often.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from svcnode.cli._args import EXIT_USAGE, CommandParser
from svcnode.core.errors import ConfigError, InvalidValueError, ProbeError, SvcnodeError, error_lines
from svcnode.core.text import one_line
from svcnode.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    _SubParsers = argparse._SubParsersAction[CommandParser]
else:
    _SubParsers = argparse._SubParsersAction


_USAGE_ERRORS = (InvalidValueError, ConfigError, ProbeError)


class Command(NamedTuple):
    name: str
    help: str
    file: str = ""  # if several commands share one

    @property
    def module(self) -> str:
        """Has configure(parser) and run_command(arguments), which returns the exit code."""
        return f"svcnode.cli.{self.file or self.name.replace('-', '_')}"


COMMANDS = (
    Command("serve", "check the services and serve the node's health over HTTP"),
    Command("demo", "see a node at work, with five small servers that fail and recover"),
    Command("init", "find services on this machine and write svcnode.toml for them"),
    Command("check-config", "validate a configuration file"),
    Command("notify-test", "send a test alert, or show who would get one"),
    Command("probe", "check one service now and show each step"),
    Command("status", "show the health of nodes once"),
    Command("watch", "show the health of nodes live in the terminal"),
    Command("ping", "tell whether a node answers, whatever its health"),
    Command("explain", "say why a service or the node is as it is, and how to fix it"),
    Command("history", "show what happened: outages, the health of the node, and events around them"),
    Command("report", "show availability, outages and error budgets of a period"),
    Command("register", "add a service to the running node", "control"),
    Command("deregister", "remove a service that was registered", "control"),
    Command("beat", "send one heartbeat of a service", "control"),
    Command("run", "run a program and send heartbeats while it runs"),
    Command("issue", "report an issue of the node (health 503), or clear it", "control"),
    Command("drain", "take the node out of rotation (health 503), or put it back", "control"),
    Command("maintain", "hold alerts during maintenance of a service or the node", "control"),
    Command("ack", "take on a problem: no reminders or escalation until it clears", "control"),
    Command("note", "write down what has happened, such as a deployment", "control"),
    Command("reload", "make the running node read its configuration again", "control"),
    Command("registry", "check, show or repair the registry of a node on several machines"),
    Command("conform", "test any node, in any language, against the interface"),
    Command("completion", "print a script that completes svcnode commands in your shell"),
)

_EPILOG = """\
first steps:
  svcnode demo                    see a node whose services fail and recover
  svcnode init                    write svcnode.toml for the services on this machine
  svcnode check-config --check    validate it, and check each service once
  svcnode serve                   run the node
  svcnode status                  ask the node for its health
  svcnode explain                 find out why it is not healthy

exit codes:
  0  good
  1  failed; partial, if the command reports a health or an outcome
  2  invalid arguments or configuration
  3  bad, if the command reports a health or an outcome
  4  unknown, if the command reports a health or an outcome
"""


def main(argv: Sequence[str] | None = None) -> int:
    _reopen_closed_fds()
    try:
        return _run(argv)
    except BrokenPipeError:
        return 1
    except MemoryError:
        os.write(2, b"svcnode: out of memory\n")
        return 1
    except KeyboardInterrupt:  # before the agent installs its signal handlers, or in a command that has none
        return 128 + signal.SIGINT
    finally:
        _flush_or_discard()


def _run(argv: Sequence[str] | None) -> int:
    command_line = sys.argv[1:] if argv is None else argv
    arguments, unknown = build_parser(command_line).parse_known_args(command_line)
    if unknown:  # reported by the command's own parser, which knows its options
        arguments.parser.reject_unknown(unknown)
    run_command: Callable[[argparse.Namespace], int] = arguments.run_command
    try:
        return run_command(arguments)
    except SvcnodeError as exc:
        for line in error_lines(exc):
            print(f"svcnode: {one_line(line)}", file=sys.stderr)  # noqa: T201  the only output of a failed command
        return EXIT_USAGE if isinstance(exc, _USAGE_ERRORS) else int(arguments.parser.failure_exit_code)


def build_parser(command_line: Sequence[str] = ()) -> argparse.ArgumentParser:
    """Knows only the command that the command line begins with, since each one costs time and memory; otherwise all."""
    parser = CommandParser(
        prog="svcnode",
        allow_abbrev=False,
        description="Check the services behind a validator-service node, and serve its true health over HTTP. "
        "svcnode COMMAND --help explains a command and gives examples.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--version", action=_ShowVersion, nargs=0, help="show the versions of svcnode, the interface and Python"
    )
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=CommandParser, action=_LoadCommand
    )
    named = [command for command in COMMANDS if command.name == command_line[0]] if command_line else []
    for command in named or COMMANDS:
        commands.add_parser(command.name, help=command.help, allow_abbrev=False)
    return parser


class _ShowVersion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import platform  # loaded late, as the model

        from svcnode.core.model import SPEC_VERSION

        python = f"{platform.python_implementation()} {platform.python_version()}"
        text = f"svcnode {__version__} (interface {SPEC_VERSION}, {python}, {sys.platform})\n"
        parser._print_message(text, sys.stdout)  # as argparse prints its own version
        parser.exit()


class _LoadCommand(_SubParsers):
    """Loads the module of a command when the command line names it."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> None:
        name = str(values[0]) if values else ""  # argparse has checked that it is a command
        load_command(name, self.choices[name])
        super().__call__(parser, namespace, values, option_string)


def load_command(name: str, parser: CommandParser) -> None:
    """Adds the options of a command to its parser; once per parser."""
    module = import_module(next(command.module for command in COMMANDS if command.name == name))
    module.configure(parser)
    parser.set_defaults(run_command=module.run_command, parser=parser)


def _reopen_closed_fds() -> None:
    """Opens /dev/null for each of stdin, stdout and stderr that is closed; otherwise the next file or socket gets its
    number. `sys.stdin` and `sys.stdout` stay None, by which commands know that the stream is closed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # gets the lowest free number: this one
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115  it stays open


def _flush_or_discard() -> None:
    """Output that cannot be delivered must not cause a traceback or another exit code at exit."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # a stream that was closed at start is None
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
