"""`svcnode notify-test`: send a test message to the notification targets, and a heartbeat."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from svcnode.cli._args import add_config_option
from svcnode.cli.output import show
from svcnode.config import find_node_file, load_notify, load_service
from svcnode.core.errors import ConfigError, InvalidValueError
from svcnode.core.model import Impact
from svcnode.core.text import sanitize
from svcnode.core.units import format_short_duration
from svcnode.notify.alertmanager import build_test_alert
from svcnode.notify.delivery import DELIVERY_TIMEOUT_S, attempt, try_deliver
from svcnode.notify.heartbeat import Heartbeat
from svcnode.notify.message import build_test_message
from svcnode.notify.subjects import NODE, Key, Severity, Subject

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from svcnode.cli._args import CommandParser
    from svcnode.core.model import Identity, Service
    from svcnode.notify.notifier import NotifySettings
    from svcnode.notify.routes import AlertPolicy, RouteSettings
    from svcnode.notify.targets import Message, NotificationTarget

    Target = NotificationTarget | Heartbeat

_EPILOG = """\
exit codes:
  0  all messages were accepted
  1  a message was not accepted
  2  no targets are configured, or invalid arguments or configuration

examples:
  svcnode notify-test
  svcnode notify-test --to 2
  svcnode notify-test --severity warning --service db-1 --dry-run
"""


def configure(parser: CommandParser) -> None:
    parser.description = (
        "Find out whether alerts arrive: send a message that is marked as a test to all targets of [notify], or to one "
        "of them, and a heartbeat to the dead man's switch, which is the last target. With --dry-run, only show who "
        "would get an alert, and why."
    )
    parser.epilog = _EPILOG
    add_config_option(parser)
    parser.add_argument(
        "--to", type=int, metavar="N", help="send only to the Nth target of the configuration, counted from 1"
    )
    parser.add_argument(
        "--severity", choices=["critical", "warning"], help="send only to targets that get problems of this severity"
    )
    parser.add_argument("--service", metavar="ID", help="the problem is one of this service (default: of the node)")
    parser.add_argument("--dry-run", action="store_true", help="show who would get the message, and why; send nothing")


def run_command(arguments: argparse.Namespace) -> int:
    file = find_node_file(arguments.config)
    identity, notify = load_notify(file, os.environ)
    if arguments.severity is None and arguments.service is None and not arguments.dry_run:
        return send_test_messages(identity, notify, arguments.to)
    service = None
    if arguments.service is not None:
        service = load_service(file, os.environ, arguments.service).definition.service
    return show_routes(identity, notify, arguments, service)


def show_routes(
    identity: Identity, notify: NotifySettings | None, arguments: argparse.Namespace, service: Service | None
) -> int:
    """Shows for each target whether it would get such a problem, and why; sends it a test message if it would."""
    severity = Severity(arguments.severity or "critical")
    subject = Subject(NODE if service is None else Key("service", service.id), 0.0, service)
    problem = f"{severity.value} problem of {'the node' if service is None else service.id}"
    selected = _selected_targets(notify, arguments.to)
    getting: list[int] = []
    for number, route in enumerate(() if notify is None else notify.routes, start=1):
        if number in selected:
            why_not = _why_not(route, notify.policy, subject, severity) if notify else ""
            answer = f"no: {why_not}" if why_not else f"yes{_when(route, severity)}"
            show(f"{number}  {route.name}  {problem}: {answer}", sys.stdout)
            getting += [] if why_not else [number]
    if arguments.dry_run:
        return 0
    return max([send_test_messages(identity, notify, number) for number in getting], default=0)


def _why_not(route: RouteSettings, policy: AlertPolicy, subject: Subject, severity: Severity) -> str:
    service = subject.service
    if service is not None and severity is Severity.CRITICAL and service.impact is not Impact.CRITICAL:
        return "a problem of this service is a warning, because its impact is not critical"
    if why_not := route.why_not(subject, severity):
        return why_not
    if service is not None and not route.is_selective and not policy.causes_messages(service):
        return f'[notify] services = "{policy.services}"; it is listed when the health of the node changes'
    return ""


def _when(route: RouteSettings, severity: Severity) -> str:
    texts = []
    if route.escalate_after_s:
        texts.append(f"if it is still open after {format_short_duration(route.escalate_after_s)}")
    if route.quiet_hours is not None and severity is Severity.WARNING:
        begin, end, zone = route.quiet_hours
        texts.append(f"from {begin:%H:%M} to {end:%H:%M} ({zone}) at the end of that time")
    return "".join(f", {text}" for text in texts)


def send_test_messages(identity: Identity, notify: NotifySettings | None, target_number: int | None) -> int:
    """Sends one message, or a heartbeat, to each target; returns the exit code."""
    targets = _selected_targets(notify, target_number)
    now_s = time.time()
    page_url = "" if notify is None else notify.page_url
    message = build_test_message(identity, os.urandom(8).hex(), now_s, page_url)
    message = replace(message, alerts=(build_test_alert(identity, now_s, page_url),))
    results = asyncio.run(_send_all([target for _, target in targets.values()], message))
    width = max(len(name) for name, _ in targets.values())
    for (number, (name, target)), (error, duration_s) in zip(targets.items(), results, strict=True):
        what = "heartbeat " if isinstance(target, Heartbeat) else ""
        result = f"{what}sent" if error is None else f"{what}failed: {sanitize(error)}"
        show(f"{number}  {name:{width}}  {result} ({duration_s:.1f} s)", sys.stdout)
    return int(any(error is not None for error, _ in results))


def _selected_targets(notify: NotifySettings | None, target_number: int | None) -> dict[int, tuple[str, Target]]:
    """The chosen targets: from the number to the name and the target."""
    targets: list[tuple[str, Target]] = [] if notify is None else [(one.name, one.target) for one in notify.routes]
    if notify is not None and notify.heartbeat is not None:
        targets.append((notify.heartbeat.name, notify.heartbeat))
    numbered = dict(enumerate(targets, start=1))
    if not numbered:
        keys = 'webhook = "https://…", alertmanager = "http://…" or apprise = ["…"]'
        raise ConfigError(f"no notification targets: set {keys} in [notify]")
    if target_number is None:
        return numbered
    if target_number not in numbered:
        raise InvalidValueError(f"--to: no target {target_number}; number of targets: {len(numbered)}")
    return {target_number: numbered[target_number]}


async def _send_all(targets: Sequence[Target], message: Message) -> list[tuple[str | None, float]]:
    return await asyncio.gather(*(_timed_send(target, message) for target in targets))


async def _timed_send(target: Target, message: Message) -> tuple[str | None, float]:
    started_s = time.perf_counter()
    if isinstance(target, Heartbeat):
        error = await attempt(target.send(), DELIVERY_TIMEOUT_S)
    else:
        error = await try_deliver(target, message)
    return None if error is None else error.reason, time.perf_counter() - started_s
