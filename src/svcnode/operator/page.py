"""`/`: the node and its services as an HTML page. `/page/changes` and `/page/events` keep an open page up to date, and
`/page/timeline` is its timeline of another period.

The server renders the whole table, so the page is complete without JavaScript. A page with JavaScript asks for the rows
and sections that have changed, as an HTML document, and puts them in place (static/live.js). Names, reasons and other
text from outside are escaped, and invisible characters are shown as escape sequences.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import cache, partial
from html import escape
from string import Template
from time import thread_time, time
from typing import TYPE_CHECKING, Any

from svcnode.api.app import StreamingResponse
from svcnode.api.spec import Response, error_response, make_response, parse_known_query, parse_query
from svcnode.core.errors import InvalidValueError
from svcnode.core.model import Health, Status
from svcnode.core.strict_json import compact_json
from svcnode.core.units import format_coarse_duration, iso_time, utc_text
from svcnode.history.records import HOURS
from svcnode.net.threads import call_in_pool
from svcnode.operator.details import node_details, services_details
from svcnode.operator.markup import EMPTY_CELL, escape_text
from svcnode.operator.page_rows import (
    ROWS_PER_CHUNK,
    STATUS_SORT_ORDER,
    chunks,
    group_row,
    grouped_rows,
    removed_row,
    row,
)
from svcnode.operator.page_sections import HEALTH_DISPLAY, render_sections
from svcnode.operator.page_timeline import PARAMETERS, latest_timeline, timeline_document
from svcnode.operator.static_files import STATIC_FILES, read_static, static_hash, static_name
from svcnode.operator.streams import STREAM_HEAD, TOO_MANY_STREAMS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from svcnode.api.spec import Request
    from svcnode.operator.context import OperatorContext
    from svcnode.operator.page_feed import Changes

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
        "trusted-types 'none'",
    )
)
HTML_HEADERS = (("Content-Security-Policy", CONTENT_POLICY), ("Referrer-Policy", "no-referrer"))


# ---- the page


async def page(context: OperatorContext, request: Request, name: str) -> Response:
    loop = asyncio.get_running_loop()
    await context.outages.ready()
    body = await context.shared("page", lambda: _render_page(context, loop))
    return _html_response(body)


def _html_response(body: bytes) -> Response:
    return make_response(200, body, *HTML_HEADERS, content_type="text/html; charset=utf-8")


def _render_page(context: OperatorContext, loop: asyncio.AbstractEventLoop) -> bytes:
    """Runs in a thread."""
    feed = context.page_feed
    cursor = feed.cursor  # read first: a page that follows the changes after it misses none
    node = node_details(context)
    services = list(services_details(context, with_causes=False))
    query = context.history.buckets([service["id"] for service in services], HOURS)
    buckets = asyncio.run_coroutine_threadsafe(query, loop).result()
    timeline = asyncio.run_coroutine_threadsafe(latest_timeline(context), loop).result()
    rows = grouped_rows(services, buckets, feed.position)
    counts = Counter(service["status"] for service in services)
    sections = {**render_sections(context, node), "timeline": timeline}
    return render(node | {"cursor": cursor, "signalled": cursor}, counts, rows, sections, time())


def render(
    node: Mapping[str, Any], counts: Counter[str], rows: Sequence[str], sections: Mapping[str, str], now_s: float
) -> bytes:
    """`counts`: the number of services by status."""
    health, label, symbol = HEALTH_DISPLAY[Health(node["health"])]
    text = {
        "health_code": node["health"],
        "health": health,
        "title": f"{symbol} {node['name']}: {label.lower()}",
        "name": node["name"],
        "version": node["version"],
        "spec_version": node["spec_version"],
        "svcnode": node["svcnode"],
        "started": node["started"],
        "uptime": format_coarse_duration(node["uptime_s"]),
        "now": iso_time(now_s),
        "now_date": utc_text(now_s),
        "now_time": utc_text(now_s, now_s),
        "all": counts.total(),
        **{f"count_{status.value}": counts[status.value] for status in Status},
    }
    markup = {
        "facts": _facts(node, now_s),
        "icon": static_name(f"{health}.svg"),
        "style": static_name("page.css"),
        "problems_style": static_name("problems.css"),
        "timeline_style": static_name("timeline.css"),
        "script": static_name("page.js"),
        "preloads": _preloads(),
        "shared": _shared(),
        "group_template": group_row("", {}),
        "rows": chunks(rows),
        "none_hidden": " hidden" if counts else "",
        **sections,
    }
    return _template().substitute({key: escape_text(str(value)) for key, value in text.items()}, **markup).encode()


def _facts(node: Mapping[str, Any], now_s: float) -> str:
    """What the script reads of the node, and where its changes continue: attributes of the page and of each answer."""
    keys = ("name", "version", "svcnode", "started", "cursor", "signalled")
    facts = {**{key: node[key] for key in keys}, "now": round(now_s * 1000)}
    return " ".join(f'data-{key}="{escape_text(str(value))}"' for key, value in facts.items())


@cache
def _shared() -> str:
    """What the scripts show too. They read it from the page, so it is written once."""
    shared = {
        "healths": {health: (label, symbol) for health, label, symbol in HEALTH_DISPLAY.values()},
        "status_order": STATUS_SORT_ORDER,
        "empty_cell": EMPTY_CELL,
        "rows_per_chunk": ROWS_PER_CHUNK,
        "static_hash": static_hash(),
    }
    return escape(compact_json(shared))


@cache
def _preloads() -> str:
    """Without preloading, the browser finds each module only after it has loaded the one that imports it."""
    scripts = (name for name in STATIC_FILES if name.endswith(".js") and name != "page.js")
    return "\n".join(f'<link rel="modulepreload" href="static/{static_name(name)}">' for name in scripts)


@cache
def _template() -> Template:
    return Template(read_static("page.html").decode())


# ---- its changes


async def page_events(context: OperatorContext, request: Request, name: str) -> Response | StreamingResponse:
    """Tells an open page when to ask for changes."""
    if context.page_feed.is_full:
        return TOO_MANY_STREAMS
    return StreamingResponse(STREAM_HEAD, context.page_feed.stream_to)


async def page_changes(context: OperatorContext, request: Request, name: str) -> Response:
    """What has changed after the cursor `after`, and the rows `id` as they are now, as an HTML document.

    Pages that are up to date ask after the same cursor at the same time, so they share one answer.
    """
    query = parse_query(request.query)
    after, ids = query.get("after", [""])[0], tuple(dict.fromkeys(query.get("id", ())))
    context.node.expire_stale()
    if ids:
        return await _changes(context, after, ids)
    signalled = context.page_feed.signalled
    return await context.single_flight.get_async(
        ("changes", after), lambda: _changes(context, after), version=signalled
    )


async def _changes(context: OperatorContext, after: str, ids: tuple[str, ...] = ()) -> Response:
    feed = context.page_feed
    await context.outages.ready()
    node, sections, cost_s = await context.single_flight.get(
        "sections", lambda: _node_and_sections(context), version=feed.signalled
    )
    feed.set_sections(sections, cost_s)
    changes = feed.changes_after(after)
    node = node | {"cursor": changes.cursor, "signalled": feed.signalled}
    return await call_in_pool(partial(_render_changes, context, node, changes, ids))


def _node_and_sections(context: OperatorContext) -> tuple[dict[str, Any], dict[str, str], float]:
    """Runs in a thread. With the time of the processor that it took."""
    begin_s = thread_time()
    node = node_details(context)
    sections = render_sections(context, node)
    return node, sections, thread_time() - begin_s


def _render_changes(
    context: OperatorContext, node: Mapping[str, Any], changes: Changes, ids: Iterable[str]
) -> Response:
    """Runs in a thread."""
    complete = " data-complete" if changes.is_complete else ""
    rows = "".join(_rows(context, dict.fromkeys((*changes.service_ids, *ids))))
    sections = "".join(f'<div data-section="{name}">{html}</div>' for name, html in changes.sections.items())
    return _html_response(
        f'<!doctype html><meta charset="utf-8"><main {_facts(node, time())}{complete}>'
        f"<table><tbody>\n{rows}</tbody></table>{sections}</main>".encode()
    )


def _rows(context: OperatorContext, ids: Iterable[str]) -> Iterable[str]:
    """Without availability, which takes a query of the history: a page keeps what it has, or asks for it."""
    found = {service["id"]: service for service in services_details(context, ids, with_causes=False)}
    position: Callable[[str], int] = context.page_feed.position
    return (row(position(one), found[one]) if one in found else removed_row(one) for one in ids)


# ---- its timeline


async def page_timeline(context: OperatorContext, request: Request, name: str) -> Response:
    """Open pages ask at the same time, and again if something has changed in the last second: they share one answer."""
    try:
        query = parse_known_query(request.query, PARAMETERS)
        body = await context.history_single_flight.get_async(
            ("timeline", request.query), lambda: timeline_document(context, query)
        )
    except InvalidValueError as exc:
        return error_response(400, str(exc))
    return _html_response(body)
