"""The rows of the page: the only renderer of a service. The first page and every change of a row come from here.

Cells are found by `data-cell`. Rows are many, so an attribute says nothing that its cell says already.
"""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote

from svcnode.core.model import Status
from svcnode.core.problems import shown_reason
from svcnode.core.text import one_line
from svcnode.core.units import format_coarse_duration, format_latency
from svcnode.node.stats import FIXED_KIND
from svcnode.operator.markup import EMPTY_CELL, escape_text, format_age, format_availability, time_element

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from svcnode.history.records import Bucket
    from svcnode.operator.details import ServiceDetails

STATUS_SORT_ORDER = {Status.DOWN.value: 0, Status.INITIALIZING.value: 1, Status.UP.value: 2}
ROWS_PER_CHUNK = 20
MAX_UNBROKEN_NAME_CHARS = 20  # fits into one line at every width


def grouped_rows(
    services: Sequence[ServiceDetails], buckets: Mapping[str, Sequence[Bucket]], position: Callable[[str], int]
) -> list[str]:
    """The rows by status, those in no group first; the groups follow in the order of their first row."""
    groups: dict[str, list[ServiceDetails]] = {"": []}
    for service in sorted(services, key=lambda service: STATUS_SORT_ORDER[service["status"]]):
        groups.setdefault(service["group"], []).append(service)
    rows: list[str] = []
    for group, members in groups.items():
        if group:
            rows.append(group_row(group, Counter(service["status"] for service in members)))
        rows += [row(position(service["id"]), service, buckets.get(service["id"], ())) for service in members]
    return rows


def group_row(group: str, counts: Mapping[str, int]) -> str:
    """The heading of a group, with the number of its services in each status."""
    totals = " ".join(
        f'<span data-status="{status}"{"" if counts.get(status) else " hidden"}>'
        f'<span class="status">{counts.get(status, 0)} {status}</span></span>'
        for status in STATUS_SORT_ORDER
    )
    return (
        f'<tr role="row" id="q={escape(group)}" class="group" data-group="{escape(group)}">'
        f'<th role="rowheader" colspan="7">'
        f'<button type="button" aria-expanded="true" disabled dir="auto">{escape_text(group)}</button>'
        f'<span class="totals">{totals}</span></th></tr>\n'
    )


def chunks(rows: Sequence[str]) -> str:
    """The browser lays out a chunk only when it is scrolled into view."""
    return "".join(
        f'<tbody role="rowgroup" class="chunk">\n{"".join(rows[first : first + ROWS_PER_CHUNK])}</tbody>\n'
        for first in range(0, len(rows), ROWS_PER_CHUNK)
    )


def removed_row(service_id: str) -> str:
    return f'<tr data-id="{escape(service_id)}" data-removed></tr>\n'


def row(position: int, service: ServiceDetails, buckets: Sequence[Bucket] = ()) -> str:
    """One service. The roles are explicit because CSS lays the rows out as grids, which removes the implicit ones."""
    name, service_id, status = one_line(service["name"]), service["id"], service["status"]
    link = escape(quote(service_id, safe=""))
    nowrap = ' class="nowrap"' if len(name) <= MAX_UNBROKEN_NAME_CHARS and " " not in name else ""
    evidence = service["evidence"] or {}
    reason, code = shown_reason(service)
    fixed = " data-fixed" if service["kind"] == FIXED_KIND else ""
    group = f' data-group="{escape(service["group"])}"' if service["group"] else ""
    target = "" if status == Status.UP.value else f' id="q={escape(service_id)}"'  # of the links of problems
    return (
        f'<tr role="row"{target} data-id="{escape(service_id)}" data-order="{position}" data-status="{status}" '
        f'data-code="{escape(code)}"{fixed}{group}>'
        f'<th role="rowheader" scope="row" data-cell="name">'
        f'<a href="details?recent_checks=1&amp;id={link}" dir="auto"{nowrap}>'
        f'{escape(name)}</a><code dir="auto">{escape_text(service_id)}</code>{_tags(service)}</th>'
        f'<td role="cell" data-cell="status"><span class="status">{status}</span>{_lost(service)}'
        f"{_maintenance(service)}</td>"
        f'<td role="cell" data-cell="since">'
        f"{_time(service['since'], format_coarse_duration(service['since_s']))}</td>"
        f'<td role="cell" data-cell="reason"><span class="reason" dir="auto">{escape_text(reason)}</span>'
        f"{_acknowledged(service)}</td>"
        f'<td role="cell" data-cell="check">{_time(evidence.get("at"), format_age(evidence.get("age_s")))}</td>'
        f'<td role="cell" data-cell="latency">{_latency(service)}</td>'
        f'<td role="cell" data-cell="availability">{_availability(() if fixed else buckets)}</td></tr>\n'
    )


def _time(iso: str | None, text: str) -> str:
    """To the second, as it is shown."""
    return time_element(iso and f"{iso[:19]}Z", text)


def _tags(service: ServiceDetails) -> str:
    """A click on one filters the table by it."""
    links = "".join(
        f'<a class="tag" href="#q={escape(quote(tag, safe=""))}" dir="auto">{escape_text(tag)}</a>'
        for tag in service["tags"]
    )
    return f'<span class="tags">{links}</span>' if links else ""


def _maintenance(service: ServiceDetails) -> str:
    maintenance = service["maintenance"]
    if maintenance is None:
        return ""
    return f'<span class="maintenance" title="In maintenance {escape_text(maintenance["text"])}">Maintenance</span>'


def _lost(service: ServiceDetails) -> str:
    if not service["lost"]:
        return ""
    title = "The registry has lost it: register it again, or run svcnode registry accept"
    return f'<span class="lost" title="{title}">Lost</span>'


def _acknowledged(service: ServiceDetails) -> str:
    acknowledged = service["acknowledged"]
    if acknowledged is None:
        return ""
    return f'<span class="acknowledged" dir="auto">Acknowledged {escape_text(acknowledged["text"])}</span>'


def _latency(service: ServiceDetails) -> str:
    """The duration of the last check; a report has none."""
    if service["schedule"] is None or service["evidence"] is None:
        return f"<data>{EMPTY_CELL}</data>"
    return f"<data>{format_latency(service['evidence']['duration_ms'])}</data>"


def _availability(buckets: Sequence[Bucket]) -> str:
    share, has_maintenance = availability(buckets), any(bucket.maintenance_s for bucket in buckets)
    maintenance = " data-maintenance" if has_maintenance else ""
    return f"<data{maintenance}>{format_availability(share, has_maintenance=has_maintenance)}</data>"


def availability(buckets: Sequence[Bucket]) -> float | None:
    """The share of the known time in which the service was Up.

    Time without a running node is not known, and time in maintenance is left out.
    """
    up_s = sum(bucket.up_s for bucket in buckets)
    known_s = sum(bucket.known_s for bucket in buckets)
    return up_s / known_s if known_s > 0 else None
