"""What `svcnode history` and `svcnode report` have in common: a period of the past, and where it is read.

They ask the running node. If that does not answer, they read the history file of the configuration.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from svcnode.cli._args import add_config_option
from svcnode.cli.operator_url import operator_url_from
from svcnode.client.resolver_loop import DaemonResolverLoop
from svcnode.config import find_node_file, load_history
from svcnode.core.errors import InvalidValueError, SvcnodeError, UnreachableError
from svcnode.core.maintenance import parse_shown_time_s
from svcnode.core.units import parse_duration_s

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable, Coroutine
    from pathlib import Path
    from typing import Any

    from svcnode.cli.operator_requests import GetJson
    from svcnode.cli.operator_url import OperatorUrl

T = TypeVar("T")
_TIME_OF_DAY = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])(?::([0-5][0-9]))?(?: UTC)?", re.ASCII)
_TIMES = (
    'how long ago it was such as "12h", a time of day in UTC such as "22:00" (the last one), "2026-12-01 22:00 UTC", '
    'or "2026-12-01T22:00:00+01:00"'
)


class Past(NamedTuple):
    since_s: float
    until_s: float
    now_s: float


def add_end_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--until", metavar="TIME", help="the end (default: now)")


def add_node_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--url", metavar="URL", help="address of the node: host:port, a URL, or unix:/path")
    add("--token", metavar="TOKEN", help="operator token, or @FILE to read it from a file")
    add("--ca", metavar="FILE", help="PEM file of the certificate authority to trust, instead of the system's")
    add_config_option(parser)


# ---- the period


def past_from(arguments: argparse.Namespace, *, default_since: str) -> Past:
    now_s = time.time()
    until_s = now_s if arguments.until is None else parse_moment_s("--until", arguments.until, now_s)
    since_s = parse_moment_s("--since", arguments.since or default_since, now_s)
    if since_s >= until_s:
        raise InvalidValueError("--since must be earlier than --until")
    return Past(since_s, until_s, now_s)


def parse_moment_s(flag: str, text: str, now_s: float) -> float:
    """A time without a zone is in UTC, as all times are shown."""
    try:
        return max(0.0, now_s - parse_duration_s(text))
    except InvalidValueError:
        pass
    if match := _TIME_OF_DAY.fullmatch(text):
        now = datetime.fromtimestamp(now_s, UTC)
        at = now.replace(hour=int(match[1]), minute=int(match[2]), second=int(match[3] or 0), microsecond=0)
        return (at if at <= now else at - timedelta(days=1)).timestamp()
    try:
        return max(0.0, parse_shown_time_s(text))
    except InvalidValueError:
        raise InvalidValueError(f'{flag}: must be {_TIMES}, not "{text}"') from None


# ---- reading


def ask_or_read(
    arguments: argparse.Namespace,
    ask: Callable[[GetJson], Awaitable[T]],
    read: Callable[[Path], Coroutine[Any, Any, T]],
) -> tuple[T, str]:
    """What the node answers, or what its history file has; and where it comes from if not from the node."""
    try:
        with asyncio.Runner(loop_factory=DaemonResolverLoop) as runner:
            return runner.run(_ask(operator_url_from(arguments), ask)), ""
    except UnreachableError as exc:
        path = None if arguments.url is not None else load_history(find_node_file(arguments.config), os.environ).path
        if path is None or not path.is_file():
            raise
        return _read(path, read, exc), f"{path}, as the node does not answer"


async def _ask(url: OperatorUrl, ask: Callable[[GetJson], Awaitable[T]]) -> T:
    from svcnode.cli.operator_requests import operator_requests  # only if a node is asked

    async with operator_requests(url) as get_json:
        return await ask(get_json)


def _read(path: Path, read: Callable[[Path], Coroutine[Any, Any, T]], unreachable: UnreachableError) -> T:
    from svcnode.history.errors import HistoryError

    try:
        return asyncio.run(read(path))
    except HistoryError as exc:
        raise SvcnodeError(f"{unreachable}; {exc}") from exc
