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
from svcnode.config import find_node_file, load_notify
from svcnode.core.errors import ConfigError, InvalidValueError
from svcnode.core.text import sanitize
from svcnode.notify.alertmanager import build_test_alert
from svcnode.notify.delivery import DELIVERY_TIMEOUT_S, attempt, try_deliver
from svcnode.notify.heartbeat import Heartbeat
from svcnode.notify.message import build_test_message

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from svcnode.cli._args import CommandParser
    from svcnode.core.model import Identity
    from svcnode.notify.notifier import NotifySettings
    from svcnode.notify.targets import Message, NotificationTarget

    Target = NotificationTarget | Heartbeat


def configure(parser: CommandParser) -> None:
    parser.description = (
        "Send a message that is marked as a test to all targets of [notify], or to one, and a heartbeat to its dead "
        "man's switch, which is the last target. "
        "Exit code: 0 all messages were accepted, 1 a message was not, 2 no targets are configured, or invalid "
        "arguments or configuration."
    )
    add_config_option(parser)
    parser.add_argument("--to", type=int, metavar="N", help="send only to target number N, counted from 1")


def run_command(arguments: argparse.Namespace) -> int:
    identity, notify = load_notify(find_node_file(arguments.config), os.environ)
    return send_test_messages(identity, notify, arguments.to)


def send_test_messages(identity: Identity, notify: NotifySettings | None, target_number: int | None) -> int:
    """Sends one message, or a heartbeat, to each target; returns the exit code."""
    targets = _selected_targets(notify, target_number)
    now_s = time.time()
    message = build_test_message(identity, os.urandom(8).hex(), now_s)
    message = replace(message, alerts=(build_test_alert(identity, now_s),))
    results = asyncio.run(_send_all(list(targets.values()), message))
    width = max(len(target.name) for target in targets.values())
    for (number, target), (error, duration_s) in zip(targets.items(), results, strict=True):
        what = "heartbeat " if isinstance(target, Heartbeat) else ""
        result = f"{what}sent" if error is None else f"{what}failed: {sanitize(error)}"
        show(f"{number}  {target.name:{width}}  {result} ({duration_s:.1f} s)", sys.stdout)
    return int(any(error is not None for error, _ in results))


def _selected_targets(notify: NotifySettings | None, target_number: int | None) -> dict[int, Target]:
    targets: list[Target] = [] if notify is None else [*notify.targets]
    if notify is not None and notify.heartbeat is not None:
        targets.append(notify.heartbeat)
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
