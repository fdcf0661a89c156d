"""`/`: the node and its services on one page.

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
from string import Template
from time import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from svcnode.core import rules
from svcnode.core.model import Health, Outcome, Status
from svcnode.core.times import iso_time
from svcnode.core.wording import one_line
from svcnode.history.records import HOURS
from svcnode.journal import FIXED
from svcnode.web.operator.answering import typed_answer
from svcnode.web.operator.details import node_details, services_details
from svcnode.web.operator.static import FILES, read_static

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from svcnode.history.records import Bar
    from svcnode.spec import Answer
    from svcnode.web.operator.desk import Desk
    from svcnode.web.operator.details import ServiceDetails
    from svcnode.web.visits import Visit

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
HEALTHS = {
    Health.HEALTHY: ("healthy", "Healthy", "●"),
    Health.PARTIAL: ("partial", "Partially healthy", "◐"),
    Health.UNHEALTHY: ("unhealthy", "Unhealthy", "✖"),
}
TROUBLE_FIRST = {Status.DOWN.value: 0, Status.INITIALIZING.value: 1, Status.UP.value: 2}
NOTHING = "\N{EN DASH}"
NO_EVIDENCE = rules.first_state(0.0).reason
ROWS_PER_CHUNK = 20  # as static/rows.js has it
SHORT_NAME = 20  # characters, for which there is room in a line everywhere
# Or else a browser learns of each part of the script only when it has read the one that needs it.
_PRELOADS = "\n".join(
    f'<link rel="modulepreload" href="static/{file}">' for file in FILES if file.endswith(".js") and file != "page.js"
)


async def page(desk: Desk, visit: Visit, name: str) -> Answer:
    loop = asyncio.get_running_loop()
    body = await desk.shared.get("page", lambda: _page_of(desk, loop))
    return typed_answer(body, "text/html; charset=utf-8", *_HEADERS)


def _page_of(desk: Desk, loop: asyncio.AbstractEventLoop) -> bytes:
    """In a thread, beside the loop."""
    about_node = node_details(desk)
    services = list(services_details(desk.node, desk.journal))
    asking = asyncio.run_coroutine_threadsafe(desk.history.bars([service["id"] for service in services], HOURS), loop)
    return rendered(about_node, services, asking.result(), time())


def rendered(
    about_node: Mapping[str, Any], services: Sequence[ServiceDetails], bars: Mapping[str, Sequence[Bar]], now_s: float
) -> bytes:
    name, word, sign = HEALTHS[Health(about_node["health"])]
    counts = Counter(service["status"] for service in services)
    rows = sorted(enumerate(services), key=lambda numbered: TROUBLE_FIRST[numbered[1]["status"]])
    words = {
        "code": about_node["health"],
        "health": name,
        "health_word": word,
        "title": f"{sign} {about_node['name']}: {word.lower()}",
        "why": in_brief(one_line(about_node["health_reason"])),
        "name": about_node["name"],
        "version": about_node["version"],
        "spec_version": about_node["spec_version"],
        "svcnode": about_node["svcnode"],
        "started": about_node["started"],
        "uptime": duration_in_words(about_node["uptime_s"]),
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
        "rows": _chunks([_row(order, service, bars.get(service["id"], ())) for order, service in rows]),
        "none_hidden": " hidden" if services else "",
    }
    return _template().substitute({key: text_in(str(value)) for key, value in words.items()}, **markup).encode()


@cache
def _template() -> Template:
    return Template(read_static("page.html").decode())


def _notices(about_node: Mapping[str, Any]) -> Iterable[str]:
    for key, begin in (
        ("history_problem", "History"),
        ("reload_problem", "The configuration was not reloaded, the old one is in force"),
    ):
        if about_node[key]:
            yield f'<p class="notice" dir="auto">{begin}: {text_in(about_node[key])}</p>'


def _chunks(rows: Sequence[str]) -> str:
    """What is out of sight is laid out chunk by chunk, and not at all before it comes into sight."""
    begins = range(0, len(rows), ROWS_PER_CHUNK)
    return "".join(
        f'<tbody role="rowgroup" class="chunk">\n{"".join(rows[begin : begin + ROWS_PER_CHUNK])}</tbody>\n'
        for begin in begins
    )


def _row(order: int, service: ServiceDetails, bars: Sequence[Bar]) -> str:
    """One service. The roles are said although they go without saying: rows are laid out as grids."""
    name, service_id, status = one_line(service["name"]), service["id"], service["status"]
    link = escape(quote(service_id, safe=""))
    kind = ' class="word"' if len(name) <= SHORT_NAME and " " not in name else ""
    evidence = service["evidence"] or {}
    fixed = " data-fixed" if service["kind"] == FIXED else ""
    return (
        f'<tr role="row" data-id="{escape(service_id)}" data-order="{order}" data-status="{status}"{fixed}>'
        f'<th role="rowheader" scope="row"><a href="details?attempts=1&amp;id={link}" dir="auto"{kind}>'
        f'{escape(name)}</a><code dir="auto">{text_in(service_id)}</code></th>'
        f'<td role="cell"><span class="status">{status}</span></td>'
        f'<td role="cell">{_time(service["since"], duration_in_words(service["since_s"]))}</td>'
        f'<td role="cell"><span class="reason" dir="auto">{text_in(reason_of(service))}</span></td>'
        f'<td role="cell">{_time(evidence.get("at"), ago_in_words(evidence.get("age_s")))}</td>'
        f'<td role="cell">{_latency(service)}</td>'
        f'<td role="cell">{_availability(() if fixed else bars)}</td></tr>\n'
    )


def text_in(text: str) -> str:
    """As it stands in the page: what would be unseen, or turn around what stands beside it, is shown as in the log."""
    return escape(text if text.isprintable() else one_line(text))


def reason_of(service: ServiceDetails) -> str:
    """Why it is so. Where nothing has counted yet, what kept the newest look from counting says more."""
    evidence = service["evidence"]
    if service["reason"] != NO_EVIDENCE or not evidence or evidence["verdict"] != Outcome.UNKNOWN.value:
        return service["reason"]
    return evidence["reason"] or NO_EVIDENCE


def in_brief(text: str) -> str:
    """Without the rest of words that would fill the headline; what parts one from the next stays."""
    return re.sub(r"(\S{48})\S{16,}(?:([,;:])|\S)", r"\1…\2", text)


def _time(iso: str | None, words: str) -> str:
    return NOTHING if iso is None else f'<time datetime="{iso}">{words}</time>'


def _latency(service: ServiceDetails) -> str:
    """Of the newest look; what is reported takes no time."""
    if service["schedule"] is None or service["evidence"] is None:
        return f'<data value="">{NOTHING}</data>'
    took_ms = service["evidence"]["duration_ms"]
    return f'<data value="{took_ms}">{latency_in_words(took_ms)}</data>'


def _availability(bars: Iterable[Bar]) -> str:
    share = availability(bars)
    if share is None:
        return f'<data value="">{NOTHING}</data>'
    return f'<data value="{share:.6f}">{percent_in_words(share)}</data>'


def availability(bars: Iterable[Bar]) -> float | None:
    """The share of the time that somebody was there to know, in which the service was up."""
    bars = list(bars)
    up_s = sum(bar.up_s for bar in bars)
    known_s = up_s + sum(bar.initializing_s + bar.down_s for bar in bars)
    return up_s / known_s if known_s > 0 else None


# ---- in words, as static/words.js has them


def duration_in_words(seconds: float) -> str:
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86_400)
    if minutes < 1:
        return f"{int(seconds)} s"
    if hours < 1:
        return f"{minutes} min"
    if days < 1:
        return f"{hours} h" + (f" {minutes % 60} min" if minutes % 60 else "")
    return f"{days} d" + (f" {hours % 24} h" if hours % 24 else "")


def ago_in_words(seconds: float | None) -> str:
    return NOTHING if seconds is None else f"{duration_in_words(seconds)} ago"


def latency_in_words(milliseconds: float) -> str:
    if milliseconds < 9.95:
        return f"{milliseconds:.1f} ms"
    return f"{milliseconds:.0f} ms" if milliseconds < 999.5 else f"{milliseconds / 1000:.1f} s"


def percent_in_words(share: float) -> str:
    """Rounded down: what was down for a second was not up for 100 % of the time."""
    if share <= 0:
        return "0 %"
    return "100 %" if share >= 1 else f"{math.floor(share * 10_000) / 100:.2f} %"
