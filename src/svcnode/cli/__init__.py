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
    Command("serve", "probe the services and serve the node's health over HTTP"),
    Command("demo", "run an example node with five small servers"),
    Command("init", "find known services on this host and write svcnode.toml"),
    Command("check-config", "validate a configuration file"),
    Command("notify-test", "send a test message to the notification targets"),
    Command("probe", "check a service once"),
    Command("status", "show the health of nodes once"),
    Command("watch", "show the health of nodes live on the terminal"),
    Command("ping", "check whether a node answers"),
    Command("explain", "explain the status of a service or the health of a node"),
    Command("history", "show what happened: outages, the health of the node, and events around them"),
    Command("report", "show availability, outages and error budgets of a period"),
    Command("register", "register a service at the running node", "control"),
    Command("deregister", "remove a registered service", "control"),
    Command("beat", "send a heartbeat of a service", "control"),
    Command("run", "run a command and send heartbeats while it runs"),
    Command("issue", "set or clear an issue of the running node", "control"),
    Command("drain", "make the health of the running node 503", "control"),
    Command("maintain", "hold the messages about a service or the node for a time", "control"),
    Command("ack", "acknowledge a problem: no reminders and no escalation until it has cleared", "control"),
    Command("note", "write down what has happened, such as a deployment", "control"),
    Command("reload", "let the running node read its configuration again", "control"),
    Command("registry", "check or show the registry of a node on several machines"),
    Command("conform", "test any node against the interface"),
    Command("completion", "print a script that completes commands in a shell"),
)


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
    """Of the command that begins the command line only, or else of all commands: each takes time and memory."""
    parser = CommandParser(
        prog="svcnode",
        allow_abbrev=False,
        description="Check the services of a validator-service node and serve its health over HTTP.",
        epilog="Exit codes: 0 good, 1 failed, 2 invalid arguments or configuration. Commands that report a health or "
        "an outcome: 0 good, 1 partial, 2 invalid arguments or configuration, 3 bad, 4 not known. "
        "svcnode COMMAND --help says more.",
    )
    parser.add_argument(
        "--version", action=_ShowVersion, nargs=0, help="show the versions of svcnode, of the interface and of Python"
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
