"""`svcnode run`: run a command, send heartbeats of its service while it runs, and report how it ended.

The command does not wait for the node, or the registry. If that is unreachable, the command runs, and heartbeats begin
as soon as it can be reached. What the command says of itself with sd_notify(3) is received in one thread and reported
in another: only the newest state is reported, so no bad news waits behind good news that is outdated.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.cli._args import add_control_options, positive_duration_s, service_client, utf8_text
from svcnode.cli._notifications import Notified, Phase, notification_socket
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import ConfigError, ControlError, InvalidValueError, SvcnodeError
from svcnode.core.text import one_line, os_error_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from svcnode.cli._args import CommandParser
    from svcnode.cli._notifications import Report
    from svcnode.cli._registry_args import BlockingRegistryClient
    from svcnode.control.client import ControlClient
    from svcnode.control.types import ReportedStatus

BEATS_PER_TTL = 3
RETRY_S = 1.0  # after a heartbeat that failed
MIN_TEXT_INTERVAL_S = 1.0  # of reports that differ only in their reasons
_PASSED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
EXIT_NOT_FOUND, EXIT_NOT_EXECUTABLE = 127, 126  # as a shell
NOT_FOUND, CONFLICT = 404, 409
INVALID = (400, 405, 413, 422)
_EPILOG = """\
exit codes:
  that of the command, whether the node accepts the service or not
  2    invalid arguments or configuration
  126  the command cannot be executed
  127  the command is not found

examples:
  svcnode run --service indexer -- /usr/local/bin/indexer --port 9000
  svcnode run --service signer --impact critical --notify -- /usr/local/bin/signer
"""


def configure(parser: CommandParser) -> None:
    parser.description = (
        "Let the node watch a program that sends no heartbeats itself: register it as a service, run it, and send "
        "heartbeats while it runs. When it ends, the service is Down, and the reason has the exit status. "
        "While the node or the registry is unreachable, the program runs anyway, and heartbeats begin later. "
        "Signals are passed on to the program."
    )
    parser.epilog = _EPILOG
    add_control_options(parser, with_registry=True, with_owner=True)
    parser.add_argument("--service", type=utf8_text, required=True, metavar="ID", help="id of the service")
    parser.add_argument(
        "--ttl", default="15s", metavar="DURATION", help="it is Down without a heartbeat for this long (default: 15s)"
    )
    parser.add_argument("--name", type=utf8_text, help="its name for people (default: the id)")
    parser.add_argument("--description", type=utf8_text, default="", help="what it is; everybody can read it")
    parser.add_argument(
        "--impact",
        choices=("critical", "partial", "none"),
        default="partial",
        help="how much it matters for the node (default: partial)",
    )
    parser.add_argument(
        "--notify",
        action="store_true",
        help="the service is Initializing until the command says READY=1 (sd_notify), as with Type=notify of systemd",
    )
    parser.add_argument(
        "--watchdog",
        metavar="DURATION",
        help="the service is Down if the command does not say WATCHDOG=1 (sd_notify) for this long, as with "
        "WatchdogSec= of systemd",
    )
    parser.add_argument(
        "--remove", action="store_true", help="remove the service if the command ends with exit status 0"
    )
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="after --: the command and its arguments")


def run_command(arguments: argparse.Namespace) -> int:
    interval_s = positive_duration_s("--ttl", arguments.ttl) / BEATS_PER_TTL
    watchdog_s = math.inf if arguments.watchdog is None else positive_duration_s("--watchdog", arguments.watchdog)
    options = {
        "ttl": arguments.ttl,
        "name": arguments.name or arguments.service,
        "description": arguments.description,
        "impact": arguments.impact,
    }
    with _passed_signals() as signals, service_client(arguments) as client:
        reporter = Reporter(client, arguments.service, options)
        phase = Phase.STARTING if arguments.notify else Phase.READY
        notified = Notified(phase=phase, watchdog_s=watchdog_s, alive_at_s=time.monotonic())
        heartbeats = Heartbeats(reporter, notified, interval_s)
        receives = arguments.notify or arguments.watchdog is not None
        code = _run(arguments.command, signals, heartbeats, receives=receives)
        if arguments.remove and code == 0:
            reporter.deregister()
        else:
            reporter.report_end(code, heartbeats.notified)
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

    def report(self, report: Report) -> bool:
        try:
            self._report(*report)
        except SvcnodeError as exc:
            self.is_rejected = _is_final(exc)
            if self.is_rejected:
                _print(f"cannot send heartbeats: {exc}; the command runs without heartbeats")
            elif str(exc) != self._problem:
                _print(f"cannot send heartbeats: {exc}; the command runs, and svcnode keeps trying")
            self._problem = str(exc)
            return False
        if self._problem:
            _print("heartbeats are received now")
        self._problem = ""
        return True

    def report_end(self, code: int, notified: Notified) -> None:
        if self.is_rejected:
            return
        text = f"ended with exit status {code}" if code >= 0 else f"ended by {_signal_name(-code)}"
        try:
            self._report("down", notified.text(text), ReasonCode.EXIT_STATUS if code else None)
        except SvcnodeError as exc:
            _print(f"cannot report that the command has ended: {exc}")

    def deregister(self) -> None:
        try:
            self._client.deregister(self._service_id)
        except SvcnodeError as exc:
            _print(f"cannot remove the service: {exc}")

    def _report(self, status: ReportedStatus, reason: str, code: ReasonCode | None = None) -> None:
        refusal = None if self._is_registered else self._register()
        try:
            self._client.beat(self._service_id, status, reason, code=code)
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


class Sent(NamedTuple):
    report: Report
    at_s: float
    is_received: bool


class Heartbeats:
    """Reports the newest state of the command: a new status at once, and the same again before the ttl is over."""

    def __init__(self, reporter: Reporter, notified: Notified, interval_s: float) -> None:
        self._reporter = reporter
        self.notified = notified
        self._interval_s = interval_s
        self._changed = threading.Condition()
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def receive(self, message: bytes) -> None:
        with self._changed:
            self.notified = self.notified.after(message, time.monotonic())
            self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._has_ended = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        sent = None
        while not self._reporter.is_rejected and (report := self._next(sent)) is not None:
            is_received = self._reporter.report(report)
            sent = Sent(report, time.monotonic(), is_received)

    def _next(self, sent: Sent | None) -> Report | None:
        """Wait until a report is due; None: the command has ended."""
        with self._changed:
            while sent is None or not self._has_ended:
                now_s = time.monotonic()
                report = self.notified.report(now_s)
                left_s = due_s(report, sent, self._interval_s) - now_s
                if left_s <= 0:
                    return report
                expires_s = self.notified.expires_at_s - now_s
                self._changed.wait(min(left_s, expires_s) if expires_s > 0 else left_s)
        return None


def due_s(report: Report, sent: Sent | None, interval_s: float) -> float:
    if sent is None or report.status != sent.report.status:
        return -math.inf
    if not sent.is_received:
        return sent.at_s + min(interval_s, RETRY_S)
    if report != sent.report:  # a program may say what it does with each request
        return sent.at_s + min(interval_s, MIN_TEXT_INTERVAL_S)
    return sent.at_s + interval_s


def _run(command: list[str], signals: PassedSignals, heartbeats: Heartbeats, *, receives: bool) -> int:
    """The exit status of the command; the negative number of the signal that ended it."""
    with _receiving(heartbeats) if receives else nullcontext() as environ:
        try:
            process = subprocess.Popen(command, env=environ)  # noqa: S603  the user gave it
        except OSError as exc:
            _print(f"cannot run {command[0]}: {os_error_text(exc)}")
            return EXIT_NOT_FOUND if isinstance(exc, FileNotFoundError) else EXIT_NOT_EXECUTABLE
        signals.pass_to(process)
        heartbeats.start()
        code = process.wait()
    heartbeats.end()
    return code


@contextmanager
def _receiving(heartbeats: Heartbeats) -> Iterator[dict[str, str]]:
    """The environment of a command whose messages are received, and passed on to systemd if it has started this one."""
    from svcnode.agent.systemd import ServiceManager  # loaded late: most commands say nothing

    environ = dict(os.environ)
    with ExitStack() as stack:
        manager = ServiceManager(environ)
        stack.callback(manager.close)
        try:
            socket_ = notification_socket(manager, heartbeats.receive, _print_stranger)
            environ["NOTIFY_SOCKET"] = stack.enter_context(socket_)
        except OSError as exc:
            _print(f"cannot receive what the command says with sd_notify: {os_error_text(exc)}")
            yield dict(os.environ)
            return
        # Without WATCHDOG_PID: then it is for every process of the command, such as one that a shell script starts.
        watchdog_s = min(heartbeats.notified.watchdog_s, manager.watchdog_s or math.inf)
        if watchdog_s < math.inf:
            environ["WATCHDOG_USEC"] = str(int(watchdog_s * 1_000_000))
        yield environ


def _print_stranger(user_id: int) -> None:
    _print(f"ignoring sd_notify messages of another user (uid {user_id}): only this user and root may send them")


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


def _print(text: str) -> None:
    print(f"svcnode: {one_line(text)}", file=sys.stderr, flush=True)  # noqa: T201
