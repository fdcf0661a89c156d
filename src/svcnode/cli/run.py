"""`svcnode run`: run a command, send heartbeats of its service while it runs, and report how it ended."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

from svcnode.cli._args import add_control_options, control_client, positive_duration_s, utf8_text
from svcnode.core.errors import ControlError, ControlUnreachableError, SvcnodeError
from svcnode.core.text import one_line, os_error_text

if TYPE_CHECKING:
    import argparse

    from svcnode.cli._args import CommandParser
    from svcnode.control.client import Client

BEATS_PER_TTL = 3
_PASSED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
EXIT_NOT_FOUND, EXIT_NOT_EXECUTABLE = 127, 126  # as a shell


def configure(parser: CommandParser) -> None:
    parser.description = (
        "Register a service, run a command, and send heartbeats while the command runs. "
        "When the command ends, the service is Down with its exit status. "
        "Signals are passed on. Exit code: that of the command."
    )
    add_control_options(parser)
    parser.add_argument("--service", type=utf8_text, required=True, metavar="ID", help="id of the service")
    parser.add_argument(
        "--ttl", default="15s", metavar="DURATION", help="without a heartbeat for this time, it is Down (default: 15s)"
    )
    parser.add_argument("--name", type=utf8_text, help="default: the id")
    parser.add_argument("--description", type=utf8_text, default="", help="what it is; it is public, as the name")
    parser.add_argument(
        "--impact", choices=("critical", "partial", "none"), default="partial", help="on the node (default: partial)"
    )
    parser.add_argument("--remove", action="store_true", help="deregister the service after exit status 0")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="after --: the command and its arguments")


def run_command(arguments: argparse.Namespace) -> int:
    interval_s = positive_duration_s("--ttl", arguments.ttl) / BEATS_PER_TTL
    with control_client(arguments) as client:
        client.register(
            arguments.service,
            ttl=arguments.ttl,
            name=arguments.name or arguments.service,
            description=arguments.description,
            impact=arguments.impact,
        )
        code = _run(client, arguments.service, interval_s, arguments.command)
        _report_end(client, arguments.service, code, removes=arguments.remove and code == 0)
    return code if code >= 0 else 128 - code


def _run(client: Client, service_id: str, interval_s: float, command: list[str]) -> int:
    """The exit status of the command; the negative number of the signal that ended it."""
    try:
        process = subprocess.Popen(command)  # noqa: S603  the user gave it
    except OSError as exc:
        print(f"svcnode: cannot run {command[0]}: {os_error_text(exc)}", file=sys.stderr)  # noqa: T201
        return EXIT_NOT_FOUND if isinstance(exc, FileNotFoundError) else EXIT_NOT_EXECUTABLE
    for number in _PASSED_SIGNALS:
        signal.signal(number, lambda received, _: _pass_on(process, received))
    has_ended = threading.Event()
    beats = threading.Thread(target=_beat, args=(client, service_id, interval_s, has_ended), daemon=True)
    beats.start()
    code = process.wait()
    has_ended.set()
    beats.join()
    return code


def _pass_on(process: subprocess.Popen[bytes], received: int) -> None:
    # With a terminal, Ctrl-C reaches the command too; a second signal does no harm.
    if process.poll() is None:
        process.send_signal(received)


def _beat(client: Client, service_id: str, interval_s: float, has_ended: threading.Event) -> None:
    """The node may be restarted meanwhile: a heartbeat that fails is repeated at the next interval."""
    is_reached = True
    while True:
        try:
            client.beat(service_id)
            is_reached = True
        except SvcnodeError as exc:
            if is_reached:
                print(f"svcnode: no heartbeat: {one_line(str(exc))}", file=sys.stderr)  # noqa: T201
            is_reached = False
        if has_ended.wait(interval_s):
            return


def _report_end(client: Client, service_id: str, code: int, *, removes: bool) -> None:
    try:
        if removes:
            client.deregister(service_id)
        else:
            client.beat(service_id, "down", _end_text(code))
    except (ControlError, ControlUnreachableError) as exc:
        print(f"svcnode: the end is not reported: {one_line(str(exc))}", file=sys.stderr)  # noqa: T201


def _end_text(code: int) -> str:
    return f"ended with exit status {code}" if code >= 0 else f"ended by {signal.Signals(-code).name}"
