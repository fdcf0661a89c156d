"""What `svcnode notify-test` does: sends, and shows who took it."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import TYPE_CHECKING

from svcnode.cli.showing import show
from svcnode.core.errors import ConfigError, InvalidValueError
from svcnode.core.redaction import redacted
from svcnode.core.wording import one_line
from svcnode.notify.digest import Message, trial
from svcnode.notify.sending import attempt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcnode.core.model import Identity
    from svcnode.notify.settings import NotifySettings
    from svcnode.notify.targets import Target


def show_trials(identity: Identity, notify: NotifySettings | None, wanted: int | None) -> int:
    """One message to each; returns the exit code that says whether all took it."""
    targets = _chosen(notify, wanted)
    message = trial(identity, os.urandom(8).hex(), time.time())
    results = asyncio.run(_sent(list(targets.values()), message))
    width = max(len(target.name) for target in targets.values())
    for (number, target), (fault, took_s) in zip(targets.items(), results, strict=True):
        what = "sent" if fault is None else f"failed: {one_line(redacted(fault))}"
        show(f"{number}  {target.name:{width}}  {what} ({took_s:.1f} s)", sys.stdout)
    return int(any(fault is not None for fault, _ in results))


def _chosen(notify: NotifySettings | None, wanted: int | None) -> dict[int, Target]:
    known = () if notify is None else notify.targets
    numbered = dict(enumerate(known, start=1))
    if not numbered:
        raise ConfigError('nobody is told of anything: set webhook = "https://…" or apprise = ["…"] in [notify]')
    if wanted is None:
        return numbered
    if wanted not in numbered:
        raise InvalidValueError(f"--to: there is no target {wanted}; they have the numbers 1 to {len(numbered)}")
    return {wanted: numbered[wanted]}


async def _sent(targets: Sequence[Target], message: Message) -> list[tuple[str | None, float]]:
    return await asyncio.gather(*(_tried(target, message) for target in targets))


async def _tried(target: Target, message: Message) -> tuple[str | None, float]:
    began_s = time.perf_counter()
    fault = await attempt(target, message)
    return fault, time.perf_counter() - began_s
