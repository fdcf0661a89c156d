"""`svcnode notify-test`: see whether messages arrive, before it matters.

What `svcnode notify-test` does: sends, and shows who took it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import TYPE_CHECKING

from svcnode.cli._args import add_config_option
from svcnode.cli.output import show
from svcnode.core.errors import ConfigError, InvalidValueError
from svcnode.core.redaction import redacted
from svcnode.core.text import one_line
from svcnode.notify.dispatcher import try_deliver
from svcnode.notify.message import Message, build_test_message

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from svcnode.cli._args import CommandParser, Commands
    from svcnode.core.model import Identity
    from svcnode.notify.settings import NotifySettings
    from svcnode.notify.targets import NotificationTarget


def configure(commands: Commands) -> CommandParser:
    parser = commands.add_parser(
        "notify-test",
        allow_abbrev=False,
        help="send a test message to everybody who would be told of a change",
        description="Send one test message, marked as such, to every target of [notify], or to one of them. "
        "Exit 0 when all took it, 1 when one did not, 2 when nobody is configured.",
    )
    add_config_option(parser)
    parser.add_argument("--to", type=int, metavar="N", help="only to the target with this number, from 1 on")
    return parser


def run_command(arguments: argparse.Namespace) -> int:
    from svcnode.config import find_file, load_notify

    identity, notify = load_notify(find_file(arguments.config), os.environ)
    return send_test_messages(identity, notify, arguments.to)


def send_test_messages(identity: Identity, notify: NotifySettings | None, wanted: int | None) -> int:
    """One message to each; returns the exit code that says whether all took it."""
    targets = _selected_targets(notify, wanted)
    message = build_test_message(identity, os.urandom(8).hex(), time.time())
    results = asyncio.run(_send_all(list(targets.values()), message))
    width = max(len(target.name) for target in targets.values())
    for (number, target), (fault, took_s) in zip(targets.items(), results, strict=True):
        what = "sent" if fault is None else f"failed: {one_line(redacted(fault))}"
        show(f"{number}  {target.name:{width}}  {what} ({took_s:.1f} s)", sys.stdout)
    return int(any(fault is not None for fault, _ in results))


def _selected_targets(notify: NotifySettings | None, wanted: int | None) -> dict[int, NotificationTarget]:
    known = () if notify is None else notify.targets
    numbered = dict(enumerate(known, start=1))
    if not numbered:
        raise ConfigError('nobody is told of anything: set webhook = "https://…" or apprise = ["…"] in [notify]')
    if wanted is None:
        return numbered
    if wanted not in numbered:
        raise InvalidValueError(f"--to: there is no target {wanted}; they have the numbers 1 to {len(numbered)}")
    return {wanted: numbered[wanted]}


async def _send_all(targets: Sequence[NotificationTarget], message: Message) -> list[tuple[str | None, float]]:
    return await asyncio.gather(*(_timed_send(target, message) for target in targets))


async def _timed_send(target: NotificationTarget, message: Message) -> tuple[str | None, float]:
    began_s = time.perf_counter()
    fault = await try_deliver(target, message)
    return fault, time.perf_counter() - began_s
