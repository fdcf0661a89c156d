"""`svcnode run`: run a command, send heartbeats of its service while it runs, and report how it ended.

The command does not wait for the node, or the registry. If it is away, the command runs, and heartbeats begin when it
is there.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from svcnode.cli._args import add_control_options, positive_duration_s, service_client, utf8_text
from svcnode.core.errors import ConfigError, ControlError, InvalidValueError, SvcnodeError
from svcnode.core.text import one_line, os_error_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from svcnode.cli._args import CommandParser
    from svcnode.cli._registry_args import BlockingRegistryClient
    from svcnode.control.client import ControlClient
    from svcnode.control.types import ReportedStatus

BEATS_PER_TTL = 3
RETRY_S = 1.0  # after a heartbeat that failed
_PASSED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
EXIT_NOT_FOUND, EXIT_NOT_EXECUTABLE = 127, 126  # as a shell
NOT_FOUND, CONFLICT = 404, 409
INVALID = (400, 405, 413, 422)


def configure(parser: CommandParser) -> None:
    parser.description = (
        "Register a service, run a command, and send heartbeats while the command runs. "
        "When the command ends, the service is Down with its exit status. "
        "If the node or the registry is away, the command runs, and heartbeats begin as soon as it is there. "
        "Signals are passed on. Exit code: that of the command."
    )
    add_control_options(parser, with_registry=True)
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
    options = {
        "ttl": arguments.ttl,
        "name": arguments.name or arguments.service,
        "description": arguments.description,
        "impact": arguments.impact,
    }
    with _passed_signals() as signals, service_client(arguments) as client:
        reporter = Reporter(client, arguments.service, options)
        code = _run(arguments.command, signals, reporter, interval_s)
        if arguments.remove and code == 0:
            reporter.deregister()
        else:
            reporter.report_end(code)
    return code if code >= 0 else 128 - code


class Reporter:
    """Reports the service, and prints why if it cannot."""

    def __init__(
        self, client: ControlClient | BlockingRegistryClient, service_id: str, options: dict[str, Any]
    ) -> None:
        self._client = client
        self._service_id = service_id
        self._options = options
        self._is_registered = False
        self._problem = ""  # of the last heartbeat; it is printed once
        self.is_rejected = False  # whatever is reported will be rejected

    def beat(self) -> bool:
        try:
            self._report("up")
        except SvcnodeError as exc:
            self.is_rejected = _is_final(exc)
            if self.is_rejected:
                _print(f"no heartbeat: {exc}; the command runs without heartbeats")
            elif str(exc) != self._problem:
                _print(f"no heartbeat: {exc}; the command runs, and heartbeats are repeated")
            self._problem = str(exc)
            return False
        if self._problem:
            _print("the heartbeats are received now")
        self._problem = ""
        return True

    def report_end(self, code: int) -> None:
        if self.is_rejected:
            return
        text = f"ended with exit status {code}" if code >= 0 else f"ended by {_signal_name(-code)}"
        try:
            self._report("down", text)
        except SvcnodeError as exc:
            _print(f"the end is not reported: {exc}")

    def deregister(self) -> None:
        try:
            self._client.deregister(self._service_id)
        except SvcnodeError as exc:
            _print(f"the service is not deregistered: {exc}")

    def _report(self, status: ReportedStatus, reason: str = "") -> None:
        refusal = None if self._is_registered else self._register()
        try:
            self._client.beat(self._service_id, status, reason)
        except ControlError as exc:
            self._is_registered = False  # another program may have deregistered it
            if refusal is not None and exc.status == NOT_FOUND:
                raise refusal from None
            raise
        self._is_registered = True

    def _register(self) -> ControlError | None:
        """A service of the file cannot be registered, but may be reported."""
        try:
            self._client.register(self._service_id, **self._options)
        except ControlError as exc:
            if exc.status == CONFLICT:
                return exc
            raise
        return None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # most real-time signals have no name
        return f"signal {number}"


def _is_final(error: SvcnodeError) -> bool:
    """Whether the same request will be rejected again: it is invalid, whatever the node does."""
    if isinstance(error, ControlError):
        return error.status in INVALID
    return isinstance(error, InvalidValueError | ConfigError)


def _run(command: list[str], signals: PassedSignals, reporter: Reporter, interval_s: float) -> int:
    """The exit status of the command; the negative number of the signal that ended it."""
    try:
        process = subprocess.Popen(command)  # noqa: S603  the user gave it
    except OSError as exc:
        _print(f"cannot run {command[0]}: {os_error_text(exc)}")
        return EXIT_NOT_FOUND if isinstance(exc, FileNotFoundError) else EXIT_NOT_EXECUTABLE
    signals.pass_to(process)
    has_ended = threading.Event()
    beats = threading.Thread(target=_beat, args=(reporter, interval_s, has_ended), daemon=True)
    beats.start()
    code = process.wait()
    has_ended.set()
    beats.join()
    return code


class PassedSignals:
    """Passes signals to a process, also those that arrive before it has started."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting: list[int] = []

    def receive(self, number: int, _: object = None) -> None:
        if self._process is None:
            self._waiting.append(number)
        else:  # with a terminal, Ctrl-C reaches the command too; a second signal does no harm
            self._process.send_signal(number)

    def pass_to(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        for number in self._waiting:
            self.receive(number)


@contextmanager
def _passed_signals() -> Iterator[PassedSignals]:
    """A signal that is ignored, as SIGHUP with nohup, stays ignored: the command inherits it."""
    signals = PassedSignals()
    replaced = {number: signal.getsignal(number) for number in _PASSED_SIGNALS}
    replaced = {number: handler for number, handler in replaced.items() if handler is not signal.SIG_IGN}
    for number in replaced:
        signal.signal(number, signals.receive)
    try:
        yield signals
    finally:
        for number, handler in replaced.items():
            signal.signal(number, handler)


def _beat(reporter: Reporter, interval_s: float, has_ended: threading.Event) -> None:
    is_reported = reporter.beat()
    while not reporter.is_rejected and not has_ended.wait(interval_s if is_reported else min(interval_s, RETRY_S)):
        is_reported = reporter.beat()


def _print(text: str) -> None:
    print(f"svcnode: {one_line(text)}", file=sys.stderr, flush=True)  # noqa: T201
