"""`/static/…`: what the page is made of. Only what is listed here is served, so no path can lead anywhere else.

`/`: the node and its services on one page.

The whole table is made here, so the page is complete without JavaScript, true as of the moment it was asked for. With
JavaScript the same table comes to life (static/page.js). Whatever somebody else wrote is escaped on its way in, and
what it hides or turns around is shown.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from functools import cache
from html import escape
from importlib import resources
from string import Template
from time import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from svcnode.api.spec import NOT_FOUND, Response
from svcnode.core import state_machine
from svcnode.core.model import Health, Outcome, Status
from svcnode.core.text import one_line
from svcnode.core.units import iso_time
from svcnode.history.records import HOURS
from svcnode.operator.details import node_details, services_details
from svcnode.operator.responses import typed_response
from svcnode.stats import FIXED_KIND

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from svcnode.api.app import OperatorRequest
    from svcnode.history.records import Bucket
    from svcnode.operator.context import OperatorContext
    from svcnode.operator.details import ServiceDetails

_CSS, _JS, _SVG = "text/css; charset=utf-8", "text/javascript; charset=utf-8", "image/svg+xml"
STATIC_FILES = {
    "page.css": _CSS,
    "page.js": _JS,
    "charts.js": _JS,
    "health.js": _JS,
    "live.js": _JS,
    "panel.js": _JS,
    "rows.js": _JS,
    "state.js": _JS,
    "tooltip.js": _JS,
    "format.js": _JS,
    "healthy.svg": _SVG,
    "partial.svg": _SVG,
    "unhealthy.svg": _SVG,
    "unknown.svg": _SVG,
}


async def static_file(context: OperatorContext, request: OperatorRequest, name: str) -> Response:
    return await asyncio.to_thread(_file_response, name) if name in STATIC_FILES else NOT_FOUND


@cache
def _file_response(name: str) -> Response:
    return typed_response(read_static(name), STATIC_FILES[name])


def read_static(name: str) -> bytes:
    return resources.files(__package__).joinpath("static", name).read_bytes()


# Nothing from elsewhere, nothing inline, in nobody's frame; and no string becomes markup in a script by accident.
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
_HEADERS = (("Content-Security-Policy", CONTENT_POLICY), ("Referrer-Policy", "no-referrer"))

# For each health: its name in style sheet and file names, what is said, and the sign for the title.
HEALTH_DISPLAY = {
    Health.HEALTHY: ("healthy", "Healthy", "●"),
    Health.PARTIAL: ("partial", "Partially healthy", "◐"),
    Health.UNHEALTHY: ("unhealthy", "Unhealthy", "✖"),
}
STATUS_SORT_ORDER = {Status.DOWN.value: 0, Status.INITIALIZING.value: 1, Status.UP.value: 2}
EMPTY_CELL = "\N{EN DASH}"
NO_EVIDENCE = state_machine.initial_state(0.0).reason
ROWS_PER_CHUNK = 20  # as static/rows.js has it
MAX_UNBROKEN_NAME_CHARS = 20  # characters, for which there is room in a line everywhere
# Or else a browser learns of each part of the script only when it has read the one that needs it.
_PRELOADS = "\n".join(
    f'<link rel="modulepreload" href="static/{file}">'
    for file in STATIC_FILES
    if file.endswith(".js") and file != "page.js"
)


async def page(context: OperatorContext, request: OperatorRequest, name: str) -> Response:
    loop = asyncio.get_running_loop()
    body = await context.single_flight.get("page", lambda: _render_page(context, loop))
    return typed_response(body, "text/html; charset=utf-8", *_HEADERS)


def _render_page(context: OperatorContext, loop: asyncio.AbstractEventLoop) -> bytes:
    """In a thread, beside the loop."""
    about_node = node_details(context)
    services = list(services_details(context.node, context.check_stats))
    asking = asyncio.run_coroutine_threadsafe(
        context.history.buckets([service["id"] for service in services], HOURS), loop
    )
    return render(about_node, services, asking.result(), time())


def render(
    about_node: Mapping[str, Any],
    services: Sequence[ServiceDetails],
    buckets: Mapping[str, Sequence[Bucket]],
    now_s: float,
) -> bytes:
    name, word, sign = HEALTH_DISPLAY[Health(about_node["health"])]
    counts = Counter(service["status"] for service in services)
    rows = sorted(enumerate(services), key=lambda numbered: STATUS_SORT_ORDER[numbered[1]["status"]])
    words = {
        "code": about_node["health"],
        "health": name,
        "health_word": word,
        "title": f"{sign} {about_node['name']}: {word.lower()}",
        "reason": shorten_words(one_line(about_node["health_reason"])),
        "name": about_node["name"],
        "version": about_node["version"],
        "spec_version": about_node["spec_version"],
        "svcnode": about_node["svcnode"],
        "started": about_node["started"],
        "uptime": format_duration(about_node["uptime_s"]),
        "last_event_id": about_node["last_event_id"],
        "now_ms": round(now_s * 1000),
        "now": iso_time(now_s),
        "now_words": f"{iso_time(now_s)[11:19]} UTC",
        "all": len(services),
        **{f"count_{status.value}": counts[status.value] for status in Status},
    }
    markup = {
        "preloads": _PRELOADS,
        "raw_name": escape(about_node["name"]),  # for the script to compare, and not to be seen
        "notices": "".join(_notices(about_node)),
        "rows": _chunks([_row(order, service, buckets.get(service["id"], ())) for order, service in rows]),
        "none_hidden": " hidden" if services else "",
    }
    return _template().substitute({key: escape_text(str(value)) for key, value in words.items()}, **markup).encode()


@cache
def _template() -> Template:
    return Template(read_static("page.html").decode())


def _notices(about_node: Mapping[str, Any]) -> Iterable[str]:
    for key, begin in (
        ("history_problem", "History"),
        ("reload_problem", "The configuration was not reloaded, the old one is in force"),
    ):
        if about_node[key]:
            yield f'<p class="notice" dir="auto">{begin}: {escape_text(about_node[key])}</p>'


def _chunks(rows: Sequence[str]) -> str:
    """What is out of sight is laid out chunk by chunk, and not at all before it comes into sight."""
    begins = range(0, len(rows), ROWS_PER_CHUNK)
    return "".join(
        f'<tbody role="rowgroup" class="chunk">\n{"".join(rows[begin : begin + ROWS_PER_CHUNK])}</tbody>\n'
        for begin in begins
    )


def _row(order: int, service: ServiceDetails, bars: Sequence[Bucket]) -> str:
    """One service. The roles are said although they go without saying: rows are laid out as grids."""
    name, service_id, status = one_line(service["name"]), service["id"], service["status"]
    link = escape(quote(service_id, safe=""))
    kind = ' class="nowrap"' if len(name) <= MAX_UNBROKEN_NAME_CHARS and " " not in name else ""
    evidence = service["evidence"] or {}
    fixed = " data-fixed" if service["kind"] == FIXED_KIND else ""
    return (
        f'<tr role="row" data-id="{escape(service_id)}" data-order="{order}" data-status="{status}"{fixed}>'
        f'<th role="rowheader" scope="row"><a href="details?attempts=1&amp;id={link}" dir="auto"{kind}>'
        f'{escape(name)}</a><code dir="auto">{escape_text(service_id)}</code></th>'
        f'<td role="cell"><span class="status">{status}</span></td>'
        f'<td role="cell">{_time_element(service["since"], format_duration(service["since_s"]))}</td>'
        f'<td role="cell"><span class="reason" dir="auto">{escape_text(display_reason(service))}</span></td>'
        f'<td role="cell">{_time_element(evidence.get("at"), format_age(evidence.get("age_s")))}</td>'
        f'<td role="cell">{_latency(service)}</td>'
        f'<td role="cell">{_availability(() if fixed else bars)}</td></tr>\n'
    )


def escape_text(text: str) -> str:
    """As it stands in the page: what would be unseen, or turn around what stands beside it, is shown as in the log."""
    return escape(text if text.isprintable() else one_line(text))


def display_reason(service: ServiceDetails) -> str:
    """Why it is so. Where nothing has counted yet, what kept the newest look from counting says more."""
    evidence = service["evidence"]
    if service["reason"] != NO_EVIDENCE or not evidence or evidence["verdict"] != Outcome.UNKNOWN.value:
        return service["reason"]
    return evidence["reason"] or NO_EVIDENCE


def shorten_words(text: str) -> str:
    """Without the rest of words that would fill the headline; what parts one from the next stays."""
    return re.sub(r"(\S{48})\S{16,}(?:([,;:])|\S)", r"\1…\2", text)


def _time_element(iso: str | None, text: str) -> str:
    return EMPTY_CELL if iso is None else f'<time datetime="{iso}">{text}</time>'


def _latency(service: ServiceDetails) -> str:
    """Of the newest look; what is reported takes no time."""
    if service["schedule"] is None or service["evidence"] is None:
        return f'<data value="">{EMPTY_CELL}</data>'
    took_ms = service["evidence"]["duration_ms"]
    return f'<data value="{took_ms}">{format_latency(took_ms)}</data>'


def _availability(bars: Iterable[Bucket]) -> str:
    share = availability(bars)
    if share is None:
        return f'<data value="">{EMPTY_CELL}</data>'
    return f'<data value="{share:.6f}">{format_percent(share)}</data>'


def availability(buckets: Iterable[Bucket]) -> float | None:
    """The share of the time that somebody was there to know, in which the service was up."""
    buckets = list(buckets)
    up_s = sum(bar.up_s for bar in buckets)
    known_s = up_s + sum(bar.initializing_s + bar.down_s for bar in buckets)
    return up_s / known_s if known_s > 0 else None


# ---- in words, as static/format.js has them


def format_duration(seconds: float) -> str:
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86_400)
    if minutes < 1:
        return f"{int(seconds)} s"
    if hours < 1:
        return f"{minutes} min"
    if days < 1:
        return f"{hours} h" + (f" {minutes % 60} min" if minutes % 60 else "")
    return f"{days} d" + (f" {hours % 24} h" if hours % 24 else "")


def format_age(seconds: float | None) -> str:
    return EMPTY_CELL if seconds is None else f"{format_duration(seconds)} ago"


def format_latency(milliseconds: float) -> str:
    if milliseconds < 9.95:
        return f"{milliseconds:.1f} ms"
    return f"{milliseconds:.0f} ms" if milliseconds < 999.5 else f"{milliseconds / 1000:.1f} s"


def format_percent(share: float) -> str:
    """Rounded down: what was down for a second was not up for 100 % of the time."""
    if share <= 0:
        return "0 %"
    return "100 %" if share >= 1 else f"{math.floor(share * 10_000) / 100:.2f} %"
