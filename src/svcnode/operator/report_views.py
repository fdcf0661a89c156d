"""A report as CSV, and as a page to print. Both are made from the JSON document, whoever made that."""

from __future__ import annotations

import csv
import io
import math
from html import escape
from typing import TYPE_CHECKING, Any

from svcnode.core.text import one_line
from svcnode.core.units import format_duration, format_latency, utc_text
from svcnode.operator.static_files import static_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Document = Mapping[str, Any]

CSV_COLUMNS = (
    "id",
    "name",
    "registered",
    "availability",
    "known_s",
    "up_s",
    "maintenance_s",
    "outages",
    "outage_open",
    "longest_outage_s",
    "mean_recovery_s",
    "p50_ms",
    "p95_ms",
    "p99_ms",
    "slo_percent",
    "budget_s",
    "budget_left_s",
    "budget_left_percent",
)
NONE = "\N{EN DASH}"
# By what has become of the objective: a symbol, and a word. A symbol survives where colours do not.
OBJECTIVES = {
    "kept": ("✔", "kept"),
    "risk": ("▲", "at risk"),
    "missed": ("✖", "missed"),
    "none": (NONE, "no objective"),
}
RISK_PERCENT = 25.0  # with less of the budget left, an objective is at risk
_HEADINGS = (
    "Service",
    "Objective",
    "Availability",
    "Outages",
    "Longest",
    "Mean recovery",
    "p50",
    "p95",
    "p99",
    "Budget left",
)


def csv_text(document: Document) -> str:
    """One row per service. Numbers have no units; the names of the columns have them."""
    file = io.StringIO()
    writer = csv.DictWriter(file, CSV_COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for service in document["services"]:
        flags = {key: str(service[key]).lower() for key in ("registered", "outage_open")}
        slo = service["slo"]
        writer.writerow({**service, **flags, "slo_percent": "" if slo is None else slo.removesuffix("%")})
    return file.getvalue()


def html_page(document: Document, style: str = "") -> str:
    """`style` is the style sheet, if it is not one of a server."""
    title = f"Report of {one_line(document['node'])}"
    sheet = f"<style>{style}</style>" if style else f'<link rel="stylesheet" href="static/{static_name("report.css")}">'
    rows = "\n".join((_node_row(document), *map(_service_row, document["services"])))
    headings = "".join(f'<th scope="col">{heading}</th>' for heading in _HEADINGS)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{escape(title)}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="robots" content="noindex">
{sheet}
</head>
<body>
<main>
<h1 dir="auto">{escape(title)}</h1>
{"".join(f"<p>{escape(line)}</p>" for line in head_lines(document))}
<div class="table" tabindex="0" role="region" aria-label="Report">
<table>
<thead><tr>{headings}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>
<p class="key">{" · ".join(f"{symbol} {word}" for symbol, word in OBJECTIVES.values())} · ▶ an outage that is not over.
Availability is the share of the known time in which a service was Up, without maintenance.</p>
</main>
</body>
</html>
"""


def head_lines(document: Document) -> Iterator[str]:
    """The period, when the report was made, and what it has no data of."""
    yield f"Period: {utc_text(document['from'])} to {utc_text(document['to'])}"
    yield f"Created: {utc_text(document['created'])}, services: {len(document['services'])}"
    if document["data_from"] is None:
        yield "There is no data for this period."
        return
    if document["data_from"] > document["from"]:
        yield f"The data begins at {utc_text(document['data_from'])}."
    if document["outages_from"] and document["outages_from"] > document["data_from"]:
        yield f"Outages before {utc_text(document['outages_from'])} are not known."


def objective_of(service: Document) -> str:
    """A key of OBJECTIVES."""
    left = service.get("budget_left_percent")
    if left is None:
        return "none"
    return "missed" if left < 0 else "risk" if left < RISK_PERCENT else "kept"


def _node_row(document: Document) -> str:
    healthy = format_share(document["health"]["healthy"])
    label = f"<b>The node</b> <small>answered 200 or 206; 200 alone: {healthy}</small>"
    return (
        f'<tr class="node"><th scope="row">{label}</th><td>{NONE}</td>{_cells(document["health"])}<td>{NONE}</td></tr>'
    )


def _service_row(service: Document) -> str:
    objective = objective_of(service)
    symbol, word = OBJECTIVES[objective]
    name, service_id = one_line(service["name"]), one_line(service["id"])
    label = f'<b dir="auto">{escape(name)}</b>'
    if service_id != name:
        label += f' <code dir="auto">{escape(service_id)}</code>'
    if not service["registered"]:
        label += " <small>removed</small>"
    slo = f"{symbol} {service['slo']} {word}" if service["slo"] else NONE
    return (
        f'<tr data-objective="{objective}"><th scope="row">{label}</th><td class="objective">{slo}</td>'
        f"{_cells(service)}<td>{budget_text(service)}</td></tr>"
    )


def _cells(one: Document) -> str:
    return "".join(f"<td>{text}</td>" for text in cell_texts(one))


def cell_texts(one: Document) -> list[str]:
    """Availability, outages, longest, mean time to recover, and latencies."""
    longest, mean = one["longest_outage_s"], one["mean_recovery_s"]
    return [
        format_share(one["availability"]),
        f"{one['outages']}{' ▶' if one['outage_open'] else ''}",
        NONE if longest is None else format_duration(longest),
        NONE if mean is None else format_duration(mean),
        *(NONE if one[key] is None else format_latency(one[key]) for key in ("p50_ms", "p95_ms", "p99_ms")),
    ]


def budget_text(service: Document) -> str:
    left_s, percent = service["budget_left_s"], service["budget_left_percent"]
    if left_s is None or percent is None:
        return NONE
    sign = "-" if left_s < 0 else ""
    return f"{sign}{format_duration(abs(left_s))} ({sign}{abs(percent):.0f} %)"


def format_share(share: float | None) -> str:
    """Rounded down to three decimals, so that a second of downtime in a month does not show as 100 %."""
    if share is None:
        return NONE
    return "100 %" if share >= 1 else f"{math.floor(share * 100_000) / 1000:.3f} %"
