"""`svcnode history [ID]` shows what happened: outages, changes of the node's health, and events around them.

It asks the running node. If that does not answer, it reads the history file of the configuration.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from svcnode.cli._args import EXIT_UNKNOWN
from svcnode.cli._past import add_end_options, add_node_options, ask_or_read, past_from
from svcnode.cli.output import show
from svcnode.core.errors import InvalidValueError, ServiceNotFoundError, UnexpectedResponseError
from svcnode.core.moments import service_of, what_text
from svcnode.core.text import one_line
from svcnode.core.units import format_duration, iso_time, utc_text
from svcnode.version import __version__

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from svcnode.cli._args import CommandParser
    from svcnode.cli.operator_requests import GetJson

    Item = Mapping[str, Any]

DEFAULT_SINCE = "24h"
MAX_ITEMS = 100_000
MAX_SUBJECT_CHARS = 24
_COLUMNS = (
    "id",
    "type",
    "kind",
    "service",
    "status",
    "health",
    "from",
    "until",
    "duration_s",
    "open",
    "reason",
    "code",
)
_EPILOG = """\
times:
  A TIME is how long ago it was ("12h", "7d"), a time of day ("22:00": the last
  one), or a date and a time ("2026-12-01 22:00"). Times are in UTC, unless you
  write another zone ("2026-12-01T22:00:00+01:00"). They are shown in UTC.

exit codes:
  0  shown
  2  invalid arguments or configuration
  4  the node does not answer and its history file cannot be read, or there is no such service

examples:
  svcnode history                       the last 24 hours
  svcnode history --since 22:00         since 22:00 UTC: what happened last night
  svcnode history db-1 --since 30d      the outages of one service
  svcnode history --since 7d --csv > week.csv
"""


def configure(parser: CommandParser) -> None:
    parser.description = (
        "Show what happened, one line for each outage and each event, in the order of time: "
        "outages with their durations, the health of the node, restarts, reloads, drains, "
        "issues, maintenance, acknowledgements, messages, and notes (svcnode note)."
    )
    parser.epilog = _EPILOG
    parser.failure_exit_code = EXIT_UNKNOWN
    add = parser.add_argument
    add("id", nargs="?", metavar="ID", help="id of a service (default: the node and all services)")
    add("--service", metavar="ID", help="same as ID")
    add(
        "--since",
        default=DEFAULT_SINCE,
        metavar="TIME",
        help=f"show what happened from this time on (default: {DEFAULT_SINCE} ago)",
    )
    add_end_options(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print a table as CSV")
    form.add_argument("--json", action="store_true", help="print one JSON object")
    add_node_options(parser)


def run_command(arguments: argparse.Namespace) -> int:
    if arguments.id is not None and arguments.service is not None:
        raise InvalidValueError("--service: the id of the service is given already; remove one of the two")
    past = past_from(arguments, default_since=DEFAULT_SINCE)
    period = (past.since_s, past.until_s)
    items, source = _read(arguments, *period)
    if arguments.json:
        document = {"from": iso_time(past.since_s), "to": iso_time(past.until_s), "items": items}
        show(json.dumps(document), sys.stdout)
    elif arguments.csv:
        show(csv_text(items), sys.stdout)
    else:
        show("\n".join(map(one_line, text_lines(items, period, source))), sys.stdout)
    return 0


# ---- reading


def _read(arguments: argparse.Namespace, since_s: float, until_s: float) -> tuple[list[Item], str]:
    """The items in the order of time, and where they come from if not from the node."""
    ids = tuple(filter(None, (arguments.id, arguments.service)))
    items, source = ask_or_read(
        arguments,
        lambda get_json: _fetch(get_json, ids, since_s, until_s),
        lambda path: _read_file(path, ids, since_s, until_s),
    )
    try:
        return sorted(items, key=lambda item: (item["from"], item["id"])), source
    except (KeyError, TypeError) as exc:
        raise UnexpectedResponseError(
            f"cannot read /history; the node may run another version than this svcnode ({__version__})"
        ) from exc


async def _fetch(get_json: GetJson, ids: Sequence[str], since_s: float, until_s: float) -> list[Item]:
    times = {"from": iso_time(since_s), "to": iso_time(until_s)}
    following = f"/history?{urlencode([('id', one) for one in ids] + [*times.items()])}"
    items: list[Item] = []
    while following:
        page = await get_json(following)
        _check_known(page.get("unknown", ()))
        items += page.get("items", ())
        _check_count(items)
        following = page.get("next") or ""
    return items


async def _read_file(path: Path, ids: Sequence[str], since_s: float, until_s: float) -> list[Item]:
    from svcnode.history.follower import read_known_ids, read_timeline
    from svcnode.history.timeline import Period
    from svcnode.operator.history_api import is_about, item_document

    _check_known(set(ids) - await read_known_ids(path, ids))
    items: list[Item] = []
    period: Period | None = Period(since_s, until_s)
    while period is not None:
        page = await read_timeline(path, period)
        items += [item_document(item, until_s) for item in page.items if not ids or is_about(item, ids)]
        _check_count(items)
        period = None if page.next_after_id is None else period._replace(after_id=page.next_after_id)
    return items


def _check_known(unknown: Iterable[str]) -> None:
    """Rejects an unknown id: a misspelled one must not look like a service to which nothing happened."""
    for one in unknown:
        raise ServiceNotFoundError(f'service not found: "{one}" is not registered, and the history does not have it')


def _check_count(items: Sequence[Item]) -> None:
    """Rejects a long list: it begins with the oldest items, so if it were cut, it would hide what happened last."""
    if len(items) > MAX_ITEMS:
        raise InvalidValueError(
            f"more than {MAX_ITEMS:,} entries in this period; give a later --since, an earlier --until, or the id of a "
            "service"
        )


# ---- output


def csv_text(items: Iterable[Item]) -> str:
    file = io.StringIO()
    writer = csv.DictWriter(file, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows({**item, "open": json.dumps(item["open"])} for item in items)
    return file.getvalue().removesuffix("\n")


def text_lines(items: Sequence[Item], period: tuple[float, float], source: str = "") -> Iterator[str]:
    """The period, then one line for each item."""
    yield " to ".join(map(utc_text, period)) + (f", from {source}" if source else "")
    durations = max((len(_duration(item)) for item in items), default=0)
    subjects = min(MAX_SUBJECT_CHARS, max((len(_subject(item)) for item in items), default=0))
    for item in items:
        columns = f"{_duration(item):<{durations}}  {_subject(item):<{subjects}}"
        yield f"{utc_text(item['from'])}  {columns}  {what_text(item)}"
    if not items:
        yield "nothing happened"


def _subject(item: Item) -> str:
    return service_of(item) or "(node)"


def _duration(item: Item) -> str:
    if item["duration_s"] is None:
        return ""
    return f"{format_duration(item['duration_s'])}{', ongoing' if item['open'] else ''}"
