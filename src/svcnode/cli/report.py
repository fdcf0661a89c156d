"""`svcnode report` sums up a period: availability, outages, latencies and error budgets.

It asks the running node. If that does not answer, it reads the history file of the configuration.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from svcnode.cli._args import EXIT_UNKNOWN
from svcnode.cli._past import add_end_options, add_node_options, ask_or_read, past_from
from svcnode.cli.output import show
from svcnode.config import find_node_file
from svcnode.core.errors import UnexpectedResponseError
from svcnode.core.text import one_line
from svcnode.core.units import iso_time
from svcnode.operator.report_views import (
    NONE,
    OBJECTIVES,
    budget_text,
    cell_texts,
    csv_text,
    format_share,
    head_lines,
    html_page,
    objective_of,
)
from svcnode.version import __version__

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from svcnode.cli._args import CommandParser
    from svcnode.cli._past import Past
    from svcnode.cli.operator_requests import GetJson
    from svcnode.operator.report import NamedService

    Document = Mapping[str, Any]

_HEADINGS = ("", "service", "available", "outages", "longest", "mean recovery", "p50", "p95", "p99", "budget left")
MAX_NAME_CHARS = 32
_EPILOG = """\
period:
  The last 30 days, with --week the last 7 days. A TIME of --since and --until is as
  for svcnode history. A period begins and ends with an hour of UTC if it lies in
  the last 8 days, and otherwise with a day of UTC; the first line says so.

numbers:
  Availability is the share of the known time in which a service was Up. Maintenance
  and the time in which the node did not run are left out. The budget is how long a
  service may be not Up to keep its slo, and what is left of it.

exit codes:
  0  shown
  2  invalid arguments or configuration
  4  the node does not answer, and its history file cannot be read

examples:
  svcnode report --week
  svcnode report --since "2026-10-01 00:00" --until "2026-11-01 00:00" --html > october.html
  svcnode report --csv > month.csv
"""


def configure(parser: CommandParser) -> None:
    parser.description = (
        "Show what a period was like for the node and each service: availability, outages, "
        "the longest, the mean time to recover, latencies, and what is left of the error "
        "budget of its slo. The least available services come first."
    )
    parser.epilog = _EPILOG
    parser.failure_exit_code = EXIT_UNKNOWN
    period = parser.add_mutually_exclusive_group()
    period.add_argument("--week", dest="since", action="store_const", const="7d", help="the last 7 days")
    period.add_argument("--month", dest="since", action="store_const", const="30d", help="the last 30 days (default)")
    period.add_argument("--since", metavar="TIME", help="the start of the period")
    add_end_options(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print a table as CSV, one row for each service")
    form.add_argument("--json", action="store_true", help="print one JSON object")
    form.add_argument("--html", action="store_true", help="print a page that can be printed or sent")
    add_node_options(parser)


def run_command(arguments: argparse.Namespace) -> int:
    past = past_from(arguments, default_since="30d")
    is_until_now = arguments.until is None  # when the node answers
    document, source = ask_or_read(
        arguments,
        lambda get_json: _fetch(get_json, past.since_s, None if is_until_now else past.until_s),
        lambda path: _read_file(path, arguments.config, past),
    )
    try:
        show(_render(arguments, document, source), sys.stdout)
    except (AttributeError, KeyError, TypeError, ValueError) as exc:
        raise UnexpectedResponseError(
            f"cannot read /report; the node may run another version than this svcnode ({__version__})"
        ) from exc
    return 0


def _render(arguments: argparse.Namespace, document: Document, source: str) -> str:
    if arguments.json:
        return json.dumps(document)
    if arguments.csv:
        return csv_text(document).removesuffix("\n")
    if arguments.html:
        from svcnode.operator.static_files import read_static

        return html_page(document, read_static("report.css").decode()).removesuffix("\n")
    return "\n".join(map(one_line, text_lines(document, source)))


# ---- reading


async def _fetch(get_json: GetJson, since_s: float, until_s: float | None) -> Any:  # noqa: ANN401  any JSON
    until = {} if until_s is None else {"to": iso_time(until_s)}
    return await get_json(f"/report?{urlencode({'from': iso_time(since_s), **until, 'format': 'json'})}")


async def _read_file(path: Path, config: Path | None, past: Past) -> Document:
    from svcnode.history.follower import read_report
    from svcnode.operator.report import report_document

    report, node_name = await read_report(path, past.since_s, past.until_s, past.now_s)
    return report_document(report, node_name, _configured_services(config), past.now_s)


def _configured_services(config: Path | None) -> list[NamedService]:
    """Names and objectives from the file, even if it has errors in other places."""
    from svcnode.config.sources import Source
    from svcnode.core.model import parse_slo
    from svcnode.operator.report import NamedService

    data = Source(find_node_file(config), os.environ, ()).data
    default = data.get("defaults", {}).get("slo", "off")
    tables = [one for one in data.get("services", []) if "id" in one]
    return [NamedService(one["id"], one.get("name") or one["id"], parse_slo(one.get("slo", default))) for one in tables]


# ---- text


def text_lines(document: Document, source: str = "") -> Iterator[str]:
    period, *others = head_lines(document)
    yield period + (f", from {source}" if source else "")
    yield from others
    rows = [_HEADINGS, _node_row(document), *map(_service_row, document["services"])]
    widths = [max(len(row[index]) for row in rows) for index in range(len(_HEADINGS))]
    for symbol, name, *cells in rows:
        numbers = "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths[2:], strict=True))
        yield f"{symbol:<1} {name:<{widths[1]}}  {numbers}".rstrip()
    missed = sum(objective_of(service) == "missed" for service in document["services"])
    if missed:
        yield f"{missed} of {len(document['services'])} services missed their slo"


def _node_row(document: Document) -> tuple[str, ...]:
    healthy = format_share(document["health"]["healthy"])
    return ("", f"(node; healthy {healthy})", *cell_texts(document["health"]), NONE)


def _service_row(service: Document) -> tuple[str, ...]:
    objective, name = objective_of(service), str(service["id"])
    shown = name if len(name) <= MAX_NAME_CHARS else f"{name[: MAX_NAME_CHARS - 1]}…"
    symbol = OBJECTIVES[objective][0] if objective != "none" else ""
    return (symbol, shown, *cell_texts(service), budget_text(service))
