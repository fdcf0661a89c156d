"""`/`: the node and its services as an HTML page. `/static/{name}`: its style sheet, scripts and icons.

The server renders the whole table, so the page is complete without JavaScript; static/page.js keeps it up to date.
Names, reasons and other text from outside are escaped, and invisible characters are shown as escape sequences.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from functools import cache, partial
from html import escape
from importlib import resources
from string import Template
from time import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from svcnode.api.spec import NOT_FOUND, Response, make_response
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Health, Outcome, Status
from svcnode.core.strict_json import compact_json
from svcnode.core.text import one_line
from svcnode.core.units import format_coarse_duration, format_latency, iso_time
from svcnode.history.records import HOURS
from svcnode.net.threads import call_in_pool
from svcnode.node.stats import FIXED_KIND
from svcnode.operator.details import node_details, services_details

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from svcnode.api.spec import Request
    from svcnode.history.records import Bucket
    from svcnode.operator.context import OperatorContext
    from svcnode.operator.details import ServiceDetails

_CSS, _JS, _SVG = "text/css; charset=utf-8", "text/javascript; charset=utf-8", "image/svg+xml"
STATIC_FILES = {
    "page.css": _CSS,
    "report.css": _CSS,
    "page.js": _JS,
    "charts.js": _JS,
    "health.js": _JS,
    "live.js": _JS,
    "notifications.js": _JS,
    "panel.js": _JS,
    "replicas.js": _JS,
    "rows.js": _JS,
    "state.js": _JS,
    "format.js": _JS,
    "healthy.svg": _SVG,
    "partial.svg": _SVG,
    "unhealthy.svg": _SVG,
    "unknown.svg": _SVG,
}
# No resources of other origins, no inline scripts or styles, no framing; scripts cannot turn strings into markup.
CONTENT_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
HTML_HEADERS = (("Content-Security-Policy", CONTENT_POLICY), ("Referrer-Policy", "no-referrer"))

# For each health: its name in CSS and file names, its label, and the symbol in the title.
HEALTH_DISPLAY = {
    health: (health.label, health.text.capitalize(), symbol)
    for health, symbol in ((Health.HEALTHY, "●"), (Health.PARTIAL, "◐"), (Health.UNHEALTHY, "✖"))
}
STATUS_SORT_ORDER = {Status.DOWN.value: 0, Status.INITIALIZING.value: 1, Status.UP.value: 2}
NOTICES = {
    "maintenance": "The node is in maintenance",
    "planned_maintenance": "Maintenance of the node is planned",
    "acknowledged": "The problem of the node is acknowledged",
    "history_problem": "History",
    "reload_problem": "The last reload failed, the previous configuration is active",
    "sharing": "Registry problem, the evidence of other replicas may be missing",
}
EMPTY_CELL = "\N{EN DASH}"
ROWS_PER_CHUNK = 20
# What the scripts show too. They read it from the page, so it is written once.
_SHARED = escape(
    compact_json(
        {
            "healths": HEALTH_DISPLAY,
            "status_order": STATUS_SORT_ORDER,
            "notices": NOTICES,
            "empty_cell": EMPTY_CELL,
            "rows_per_chunk": ROWS_PER_CHUNK,
        }
    )
)
MAX_UNBROKEN_NAME_CHARS = 20  # fits into one line at every width
# Without preloading, the browser finds each module only after it has loaded the one that imports it.
_PRELOADS = "\n".join(
    f'<link rel="modulepreload" href="static/{file}">'
    for file in STATIC_FILES
    if file.endswith(".js") and file != "page.js"
)


async def page(context: OperatorContext, request: Request, name: str) -> Response:
    loop = asyncio.get_running_loop()
    body = await context.shared("page", lambda: _render_page(context, loop))
    return make_response(200, body, *HTML_HEADERS, content_type="text/html; charset=utf-8")


def _render_page(context: OperatorContext, loop: asyncio.AbstractEventLoop) -> bytes:
    """Runs in a thread."""
    node = node_details(context)
    services = list(services_details(context))
    query = context.history.buckets([service["id"] for service in services], HOURS)
    return render(node, services, asyncio.run_coroutine_threadsafe(query, loop).result(), time())


def render(
    node: Mapping[str, Any],
    services: Sequence[ServiceDetails],
    buckets: Mapping[str, Sequence[Bucket]],
    now_s: float,
) -> bytes:
    health, label, symbol = HEALTH_DISPLAY[Health(node["health"])]
    counts = Counter(service["status"] for service in services)
    text = {
        "health_code": node["health"],
        "health": health,
        "health_label": label,
        "title": f"{symbol} {node['name']}: {label.lower()}",
        "reason": shorten_words(one_line(node["health_reason"])),
        "name": node["name"],
        "version": node["version"],
        "spec_version": node["spec_version"],
        "svcnode": node["svcnode"],
        "started": node["started"],
        "uptime": format_coarse_duration(node["uptime_s"]),
        "last_event_id": node["last_event_id"],
        "now_ms": round(now_s * 1000),
        "now": iso_time(now_s),
        "now_time": f"{iso_time(now_s)[11:19]} UTC",
        "all": len(services),
        **{f"count_{status.value}": counts[status.value] for status in Status},
    }
    markup = {
        "preloads": _PRELOADS,
        "shared": _SHARED,
        "raw_name": escape(node["name"]),  # compared by the script, not displayed
        "notices": "".join(_notices(node)),
        "rows": _chunks(_grouped(services, buckets)),
        "none_hidden": " hidden" if services else "",
        "replicas": _replicas(node["sharing"]),
        "notifications": _notifications(node["notifications"]),
    }
    return _template().substitute({key: escape_text(str(value)) for key, value in text.items()}, **markup).encode()


@cache
def _template() -> Template:
    return Template(read_static("page.html").decode())


def _notices(node: Mapping[str, Any]) -> Iterable[str]:
    for key, label in NOTICES.items():
        notice = node[key]["problem"] if key == "sharing" and node[key] else node[key]
        if notice:
            text = notice["text"] if isinstance(notice, dict) else notice
            yield f'<p class="notice" dir="auto">{label}: {escape_text(text)}</p>'


def _replicas(sharing: Mapping[str, Any] | None) -> str:
    """Who is there, who checks how many services, who drains and is in maintenance; as static/replicas.js."""
    if sharing is None:
        return ""
    items = "".join(map(_replica_item, sharing["replicas"]))
    registry = f'<code dir="auto">{escape_text(sharing["registry"])}</code>'
    work = "".join(map(_work_item, sharing["work"]))
    return (
        f'<h2>Replicas <span>in the registry {registry}</span></h2><ul id="replica-list">{items}</ul>'
        f'<ul id="work-list">{work}</ul>'
    )


def _work_item(work: Mapping[str, Any]) -> str:
    """Who drains, and who is in maintenance."""
    scope = "All replicas" if work["replica"] is None else escape_text(work["replica"])
    mark = ' class="failing"' if work["kind"] == "drain" else ""
    return f'<li><b dir="auto">{scope}</b><span{mark} dir="auto">{escape_text(work["text"])}</span></li>'


def _replica_item(replica: Mapping[str, Any]) -> str:
    name, url, count = escape_text(replica["name"]), replica["url"], replica["checks"]
    link = f'<a href="{escape(url)}">{name}</a>' if url else name
    seen = _time_element(replica["since"], format_coarse_duration(replica["since_s"]))
    return (
        f'<li><b dir="auto">{link}</b>'
        f"<span>checks {count} service{'' if count == 1 else 's'}</span><span>seen for {seen}</span>"
        f"<span>svcnode {escape_text(replica['software'])}</span>"
        f"{'<span>this one</span>' if replica['is_self'] else ''}</li>"
    )


def _notifications(targets: Sequence[Mapping[str, Any]]) -> str:
    """What was tried for each target, and the result; as static/notifications.js."""
    items = "".join(
        f'<li><b dir="auto">{escape_text(target["target"])}</b>{"".join(_target_facts(target))}</li>'
        for target in targets
    )
    return f"<h2>Notifications</h2><ul>{items}</ul>" if items else ""


def _target_facts(target: Mapping[str, Any]) -> Iterator[str]:
    attempt, delivery, waiting = target["last_attempt"], target["last_delivery"], target["waiting_since"]
    if attempt is None:
        yield "<span>no message so far</span>"
    elif not target["error"]:
        yield f"<span>delivered {_time_ago(delivery)}</span>" if delivery else "<span>first attempt under way</span>"
    else:
        failures, retry_s = target["failures_in_a_row"], target["retry_in_s"]
        yield f'<span class="failing" dir="auto">failed {_time_ago(attempt)}: {escape_text(target["error"])}</span>'
        yield f"<span>{failures} failure{'' if failures == 1 else 's'} in a row</span>"
        if retry_s is not None:
            when = f"in {format_coarse_duration(retry_s)}" if retry_s >= 1 else "now"
            yield f"<span>next attempt {when}</span>"
        if waiting:
            yield f"<span>a message has waited for {format_coarse_duration(waiting['age_s'])}</span>"
        yield f"<span>last delivery {_time_ago(delivery)}</span>" if delivery else "<span>none delivered so far</span>"


def _time_ago(time_fields: Mapping[str, Any]) -> str:
    return _time_element(time_fields["at"], format_age(time_fields["age_s"]))


def _grouped(services: Sequence[ServiceDetails], buckets: Mapping[str, Sequence[Bucket]]) -> list[str]:
    """The rows by status, those in no group first; the groups follow in the order of their first row."""
    groups: dict[str, list[tuple[int, ServiceDetails]]] = {"": []}
    for order, service in sorted(enumerate(services), key=lambda numbered: STATUS_SORT_ORDER[numbered[1]["status"]]):
        groups.setdefault(service["group"], []).append((order, service))
    rows: list[str] = []
    for group, members in groups.items():
        if group:
            rows.append(_group_row(group, Counter(service["status"] for _, service in members)))
        rows += [_row(order, service, buckets.get(service["id"], ())) for order, service in members]
    return rows


def _group_row(group: str, counts: Counter[str]) -> str:
    """The heading of a group, with the number of its services in each status."""
    totals = " ".join(
        f'<span data-status="{status}"{"" if counts[status] else " hidden"}>'
        f'<span class="status">{counts[status]} {status}</span></span>'
        for status in STATUS_SORT_ORDER
    )
    return (
        f'<tr role="row" class="group" data-group="{escape(group)}"><th role="rowheader" colspan="7">'
        f'<button type="button" aria-expanded="true" disabled dir="auto">{escape_text(group)}</button>'
        f'<span class="totals">{totals}</span></th></tr>\n'
    )


def _chunks(rows: Sequence[str]) -> str:
    """The browser lays out a chunk only when it is scrolled into view."""
    return "".join(
        f'<tbody role="rowgroup" class="chunk">\n{"".join(rows[first : first + ROWS_PER_CHUNK])}</tbody>\n'
        for first in range(0, len(rows), ROWS_PER_CHUNK)
    )


def _row(order: int, service: ServiceDetails, buckets: Sequence[Bucket]) -> str:
    """One service. The roles are explicit because CSS lays the rows out as grids, which removes the implicit ones."""
    name, service_id, status = one_line(service["name"]), service["id"], service["status"]
    link = escape(quote(service_id, safe=""))
    nowrap = ' class="nowrap"' if len(name) <= MAX_UNBROKEN_NAME_CHARS and " " not in name else ""
    evidence = service["evidence"] or {}
    reason, code = display_reason(service)
    fixed = " data-fixed" if service["kind"] == FIXED_KIND else ""
    group = f' data-group="{escape(service["group"])}"' if service["group"] else ""
    return (
        f'<tr role="row" data-id="{escape(service_id)}" data-order="{order}" data-status="{status}" '
        f'data-code="{escape(code)}"{fixed}{group}>'
        f'<th role="rowheader" scope="row"><a href="details?recent_checks=1&amp;id={link}" dir="auto"{nowrap}>'
        f'{escape(name)}</a><code dir="auto">{escape_text(service_id)}</code></th>'
        f'<td role="cell"><span class="status">{status}</span>{_lost(service)}{_maintenance(service)}</td>'
        f'<td role="cell">{_time_element(service["since"], format_coarse_duration(service["since_s"]))}</td>'
        f'<td role="cell"><span class="reason" dir="auto">{escape_text(reason)}</span>{_acknowledged(service)}</td>'
        f'<td role="cell">{_time_element(evidence.get("at"), format_age(evidence.get("age_s")))}</td>'
        f'<td role="cell">{_latency(service)}</td>'
        f'<td role="cell">{_availability(() if fixed else buckets)}</td></tr>\n'
    )


def _maintenance(service: ServiceDetails) -> str:
    maintenance = service["maintenance"]
    if maintenance is None:
        return ""
    return f'<span class="maintenance" title="In maintenance {escape_text(maintenance["text"])}">Maintenance</span>'


def _lost(service: ServiceDetails) -> str:
    if not service["lost"]:
        return ""
    return '<span class="lost" title="Lost by the registry: register it again, or svcnode registry accept">Lost</span>'


def _acknowledged(service: ServiceDetails) -> str:
    acknowledged = service["acknowledged"]
    if acknowledged is None:
        return ""
    return f'<span class="acknowledged" dir="auto">Acknowledged {escape_text(acknowledged["text"])}</span>'


def escape_text(text: str) -> str:
    """Invisible and direction-changing characters are shown as escape sequences, as in the log."""
    return escape(text if text.isprintable() else one_line(text))


def display_reason(service: ServiceDetails) -> tuple[str, str]:
    """Reason and code of the state. Before the first usable evidence: those of the last check, if it could not run."""
    evidence = service["evidence"]
    if (
        service["code"] == ReasonCode.NO_EVIDENCE
        and evidence
        and evidence["reason"]
        and evidence["outcome"] == Outcome.UNKNOWN.value
    ):
        return evidence["reason"], evidence["code"]
    return service["reason"], service["code"]


def shorten_words(text: str) -> str:
    """Truncate very long words, such as ids, in the headline; the punctuation after them stays."""
    return re.sub(r"(\S{48})\S{16,}(?:([,;:])|\S)", r"\1…\2", text)


def _time_element(iso: str | None, text: str) -> str:
    return EMPTY_CELL if iso is None else f'<time datetime="{iso}">{text}</time>'


def _latency(service: ServiceDetails) -> str:
    """The duration of the last check; a report has none."""
    if service["schedule"] is None or service["evidence"] is None:
        return f'<data value="">{EMPTY_CELL}</data>'
    duration_ms = service["evidence"]["duration_ms"]
    return f'<data value="{duration_ms}">{format_latency(duration_ms)}</data>'


def _availability(buckets: Sequence[Bucket]) -> str:
    share, has_maintenance = availability(buckets), any(bucket.maintenance_s for bucket in buckets)
    value = "" if share is None else f"{share:.6f}"
    maintenance = " data-maintenance" if has_maintenance else ""
    return f'<data value="{value}"{maintenance}>{format_availability(share, has_maintenance=has_maintenance)}</data>'


def availability(buckets: Sequence[Bucket]) -> float | None:
    """The share of the known time in which the service was Up.

    Time without a running node is not known, and time in maintenance is left out.
    """
    up_s = sum(bucket.up_s for bucket in buckets)
    known_s = sum(bucket.known_s for bucket in buckets)
    return up_s / known_s if known_s > 0 else None


# ---- static files; only the listed ones, so no path leads outside the folder


async def static_file(context: OperatorContext, request: Request, name: str) -> Response:
    return await call_in_pool(partial(_file_response, name)) if name in STATIC_FILES else NOT_FOUND


@cache
def _file_response(name: str) -> Response:
    return make_response(200, read_static(name), content_type=STATIC_FILES[name])


def read_static(name: str) -> bytes:
    return resources.files(__package__).joinpath("static", name).read_bytes()


# ---- formatting, as in static/format.js


def format_age(seconds: float | None) -> str:
    return EMPTY_CELL if seconds is None else f"{format_coarse_duration(seconds)} ago"


def format_availability(share: float | None, *, has_maintenance: bool) -> str:
    """Time in maintenance is left out of the share."""
    if share is None:
        return "only maintenance" if has_maintenance else EMPTY_CELL
    return format_percent(share) + (" without maintenance" if has_maintenance else "")


def format_percent(share: float) -> str:
    """Rounded down, so that one second of downtime does not show as 100 %."""
    if share <= 0:
        return "0 %"
    return "100 %" if share >= 1 else f"{math.floor(share * 10_000) / 100:.2f} %"
