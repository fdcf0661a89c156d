"""The timeline of the page: the health of the node as a band, outages as bars, events as marks, and all of it as a
list.

`/` has that of the last 24 hours, and `/page/timeline` that of any period or around a moment, as HTML: so it is the
same with and without JavaScript, and there is one renderer. A page with JavaScript takes the section out of that
document; without, it is what the links to a service's history lead to. What is drawn and listed is bounded, however
much has happened.

    from, to, id   as for `/history`
    t              the id of an item that is listed in any case; without `from`, the period is one that has it
"""

from __future__ import annotations

import math
import re
import time
from collections import defaultdict
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from svcnode.core.errors import InvalidValueError
from svcnode.core.model import ChangeKind, Health, Impact, Status
from svcnode.core.moments import service_of, what_text
from svcnode.core.text import excerpt
from svcnode.core.units import format_duration, iso_time, utc_text
from svcnode.history.timeline import CLOCK_SET, NEW_FILE, STARTED, STOOD_STILL, STOPPED, Period
from svcnode.net.threads import call_in_pool
from svcnode.operator.history_api import DEFAULT_PERIOD_S, is_about, item_document, parse_timeline_query
from svcnode.operator.markup import escape_text, history_link, time_element
from svcnode.operator.query import parse_single
from svcnode.operator.static_files import static_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from svcnode.core.model import Service
    from svcnode.history import History
    from svcnode.history.timeline import TimelineItem
    from svcnode.operator.context import OperatorContext

    Find = Callable[[str], Service | None]  # by id; None: it is no longer registered

PARAMETERS = ("id", "from", "to", "t")
STYLES = ("page.css", "timeline.css")
MAX_PAGES = 3  # of the history
MAX_TRANSITIONS = 2000  # the newest ones, if a period up to now has more pages
MAX_LISTED = 50
MAX_LISTED_OUTAGES = 20  # the longest
MAX_LISTED_EVENTS = 15  # the most telling; the rest of the list is what is newest
MAX_LANES = 6  # services with outages of their own line
COLUMNS = 400  # of what is drawn
MARK_COLUMNS = 18
MIN_LINK_PERCENT = 0.8
_ITEM_ID = re.compile(r"[oehk]([0-9]{1,18})(?:-[0-9a-f]{8})?", re.ASCII)

# The symbols of events, the most telling first.
MARKS = {
    ChangeKind.NOTE.value: "✎",
    STOPPED: "■",
    STARTED: "▲",
    CLOCK_SET: "◷",
    STOOD_STILL: "‖",
    NEW_FILE: "▤",
    ChangeKind.RELOAD_FAILED.value: "✗",
    ChangeKind.MESSAGE_FAILED.value: "✗",
    ChangeKind.NODE.value: "◆",
    ChangeKind.MAINTENANCE.value: "⚒",
    ChangeKind.RELOADED.value: "↻",
    ChangeKind.ACKNOWLEDGED.value: "✓",
    ChangeKind.MESSAGE_SENT.value: "✉",
}
OTHER_MARK = "•"
_MARK_ORDER = {kind: position for position, kind in enumerate(MARKS)}


class Moments(NamedTuple):
    """What happened in a period, as far as it is read; the oldest first."""

    from_s: float
    to_s: float
    items: list[TimelineItem]
    known_from_s: float  # before it there is no history
    is_complete: bool  # otherwise the period was longer
    service_ids: tuple[str, ...] = ()  # empty: everything
    selected: str = ""  # the id of an item
    now_s: float = math.inf

    @property
    def known_to_s(self) -> float:
        """The period may end in the future."""
        return min(self.to_s, self.now_s)


# ---- the requests


async def timeline_document(context: OperatorContext, query: Mapping[str, list[str]]) -> bytes:
    """The answer to `/page/timeline`, for these of PARAMETERS."""
    now_s, selected = time.time(), parse_single(query, "t") or ""
    values = {name: texts for name, texts in query.items() if name != "t"}
    if selected and "from" not in values:
        values |= _period_around(selected, now_s)
    params = parse_timeline_query(values, now_s)
    moments = await read_moments(context.history, params.period, ends_now="to" not in values)
    moments = moments._replace(service_ids=params.service_ids, selected=selected)
    return await call_in_pool(partial(_render_document, moments, partial(_find, context)))


def _render_document(moments: Moments, find: Find) -> bytes:
    """Runs in a thread."""
    facts = f'data-from="{iso_time(moments.from_s)}" data-to="{iso_time(moments.to_s)}"'
    styles = "".join(f'<link rel="stylesheet" href="../static/{static_name(name)}">' for name in STYLES)
    names = escape_text(", ".join(_name(find, one) for one in moments.service_ids) or "all services")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Timeline of {names}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" type="image/svg+xml" href="../static/{static_name("unknown.svg")}">{styles}'
        f'<main><h1 dir="auto">Timeline of {names}</h1>'
        f'<section id="timeline" {facts}>{render_timeline(moments, find)}</section></main>'
    ).encode()


def _period_around(item_id: str, now_s: float) -> dict[str, list[str]]:
    """The last 24 hours if they have it; otherwise as much around it. An id has its time in microseconds."""
    match = _ITEM_ID.fullmatch(item_id)
    if match is None:
        raise InvalidValueError(f't must be the id of an item of /history, not "{excerpt(item_id)}"')
    at_s = int(match[1]) / 1e6
    if at_s > now_s - DEFAULT_PERIOD_S:
        return {}
    return {"from": [iso_time(max(0.0, at_s - DEFAULT_PERIOD_S / 2))], "to": [iso_time(at_s + DEFAULT_PERIOD_S / 2)]}


async def latest_timeline(context: OperatorContext) -> str:
    """As HTML, of the last 24 hours."""
    now_s = time.time()
    moments = await read_moments(context.history, Period(now_s - DEFAULT_PERIOD_S, now_s), ends_now=True)
    return await call_in_pool(partial(render_timeline, moments, partial(_find, context)))


def _find(context: OperatorContext, service_id: str) -> Service | None:
    found = context.node.find(service_id)
    return None if found is None else found[0]


def _name(find: Find, service_id: str) -> str:
    service = find(service_id)
    return service_id if service is None else service.name or service_id


async def read_moments(history: History, period: Period, *, ends_now: bool) -> Moments:
    """A period up to now with too many changes begins later, and another one ends earlier."""
    items, read_until_s = await _read_pages(history, period)
    is_complete = read_until_s is None
    if not is_complete and ends_now:
        newest = await history.latest(limit=MAX_TRANSITIONS)
        begin_s = min((one.at_s for one in newest), default=period.from_s)
        period = period._replace(from_s=max(period.from_s, begin_s))
        items, read_until_s = await _read_pages(history, period)
    if read_until_s is not None:
        period = period._replace(to_s=min(period.to_s, max(period.from_s + 1.0, read_until_s)))
    known_from_s = await _known_from_s(history, period, items)
    return Moments(period.from_s, period.to_s, items, known_from_s, is_complete, now_s=time.time())


async def _read_pages(history: History, period: Period) -> tuple[list[TimelineItem], float | None]:
    """The items, and how far they go if not to the end of the period."""
    items: list[TimelineItem] = []
    for _ in range(MAX_PAGES):
        page = await history.timeline(period)
        items += page.items
        if page.next_after_id is None:
            return sorted(items, key=_begin), None
        period = period._replace(after_id=page.next_after_id)
    return sorted(items, key=_begin), max((item.until_s or item.from_s for item in items), default=period.from_s)


def _begin(item: TimelineItem) -> float:
    return item.from_s


async def _known_from_s(history: History, period: Period, items: Sequence[TimelineItem]) -> float:
    """When the history begins, if that is in the period."""
    if any(item.from_s < period.from_s for item in items):
        return period.from_s
    first = next((item for item in items if item.type == "event" and item.kind in (STARTED, STOPPED)), None)
    if first is not None:
        is_first_start = first.kind == STARTED and first.code is None
        return first.from_s if is_first_start else period.from_s
    before = await history.timeline(Period(0.0, period.from_s))
    return period.from_s if before.items or before.next_after_id else period.to_s


# ---- as HTML


def render_timeline(moments: Moments, find: Find) -> str:
    """Runs in a thread."""
    ids = moments.service_ids
    items = [item for item in moments.items if not ids or is_about(item, ids) or item.id == moments.selected]
    listed = select(items, moments)
    documents = {item.id: item_document(item, moments.known_to_s) for item in listed}
    strip = _Strip(moments, items, documents, find)
    left = len(items) - len(listed)
    entries = _list(documents.values(), left, find, has_links=not ids)
    return f"{''.join(_notes(moments, items, find))}{strip.render()}{entries}"


def select(items: Sequence[TimelineItem], moments: Moments) -> list[TimelineItem]:
    """What is listed, the newest first: what is chosen, the longest outages, the most telling events, and the newest of
    the others.
    """

    def weight(item: TimelineItem) -> tuple[bool, float]:
        begin_s, end_s = _clip(item, moments)
        return item.is_open, end_s - begin_s

    lasting = sorted((item for item in items if item.type != "event"), key=weight, reverse=True)
    events = sorted((item for item in items if item.type == "event"), key=_telling)
    chosen = (item for item in items if item.id == moments.selected)
    candidates = (*chosen, *lasting[:MAX_LISTED_OUTAGES], *events[:MAX_LISTED_EVENTS], *reversed(items))
    listed = {item.id: item for item in candidates}
    return sorted(islice(listed.values(), MAX_LISTED), key=_begin, reverse=True)


def _telling(item: TimelineItem) -> tuple[int, float]:
    """The order of events: the most telling kind first, then the newest."""
    return _MARK_ORDER.get(item.kind, len(MARKS)), -item.from_s


def _clip(item: TimelineItem, moments: Moments) -> tuple[float, float]:
    """The part of an item that is in the period."""
    until_s = moments.known_to_s if item.is_open else item.until_s or item.from_s
    return max(moments.from_s, item.from_s), min(moments.to_s, max(item.from_s, until_s))


def _notes(moments: Moments, items: Sequence[TimelineItem], find: Find) -> Iterator[str]:
    if moments.service_ids:
        names = ", ".join(_name(find, one) for one in moments.service_ids)
        yield f'<p class="scope" dir="auto">Only {escape_text(names)}. <a href="../" data-all>All services</a></p>'
    if not moments.is_complete:
        times = f"from {_time(iso_time(moments.from_s))} to {_time(iso_time(moments.to_s))}"
        yield f'<p class="scope">Too much has happened to show the whole period. It is shown {times}.</p>'
    if moments.selected and all(item.id != moments.selected for item in items):
        yield '<p class="scope">The entry that this link names is not in this period, or no longer in the history.</p>'


class _Strip:
    """Lanes over one axis of time: health, the services with the longest outages, events."""

    def __init__(
        self,
        moments: Moments,
        items: Sequence[TimelineItem],
        documents: Mapping[str, Mapping[str, Any]],
        find: Find,
    ) -> None:
        self._moments = moments
        self._items = items
        self._documents = documents  # of what is listed: only that can be linked to
        self._find = find

    def render(self) -> str:
        lanes = f"{self._health_lane()}{''.join(self._outage_lanes())}{self._event_lane()}"
        moments = self._moments
        axis = "".join(
            _time(iso_time(moments.from_s + share * (moments.to_s - moments.from_s))) for share in (0.0, 0.5, 1.0)
        )
        return f'<div class="strip" role="group" aria-label="Timeline">{lanes}<div class="axis">{axis}</div></div>'

    def _health_lane(self) -> str:
        if self._moments.service_ids:
            return ""
        items = [item for item in self._items if item.type == "health"]
        begin, end = self._percent(self._moments.known_from_s), self._percent(self._moments.known_to_s)
        base = f'<rect class="up" x="{begin:.2f}%" width="{max(0.0, end - begin):.2f}%" height="14" y="4"/>'
        layers = {  # the worst on top: a short restart must not hide an outage
            "unknown": [item for item in items if item.health is None],
            "initializing": [item for item in items if item.health == Health.PARTIAL],
            "down": [item for item in items if item.health == Health.UNHEALTHY],
        }
        return self._lane("health", "Health", base + self._drawn(layers) + self._links(items))

    def _outage_lanes(self) -> Iterator[str]:
        by_service: defaultdict[str, list[TimelineItem]] = defaultdict(list)
        for item in self._items:
            if item.type == "outage" and item.service_id is not None:
                by_service[item.service_id].append(item)
        worst = sorted(by_service, key=lambda one: self._badness(one, by_service[one]), reverse=True)
        for service_id in worst[:MAX_LANES]:
            items = by_service[service_id]
            label = f'<span dir="auto">{escape_text(_name(self._find, service_id))}</span>'
            if not self._moments.service_ids:
                label = f'<a href="{history_link(service_id)}">{label}</a>'
            yield self._lane("outages", label, self._drawn(_by_status(items)) + self._links(items))
        if rest := [item for service_id in worst[MAX_LANES:] for item in by_service[service_id]]:
            label = f"+{len(worst) - MAX_LANES} more"
            yield self._lane("outages", label, self._drawn(_by_status(rest)) + self._links(rest))

    def _badness(self, service_id: str, items: Iterable[TimelineItem]) -> tuple[bool, bool, float, float]:
        """Critical services first, then what is Down now, then by the time that it was Down."""
        service = self._find(service_id)
        is_critical = service is not None and service.impact is Impact.CRITICAL
        seconds: defaultdict[str | None, float] = defaultdict(float)
        is_down = False
        for item in items:
            begin_s, end_s = _clip(item, self._moments)
            seconds[item.status] += end_s - begin_s
            is_down |= item.is_open and item.status == Status.DOWN.value
        return is_critical, is_down, seconds[Status.DOWN.value], seconds[Status.INITIALIZING.value]

    def _event_lane(self) -> str:
        columns: defaultdict[int, list[TimelineItem]] = defaultdict(list)
        for item in self._items:
            if item.type == "event" and item.id in self._documents:
                columns[int(self._percent(item.from_s) * (MARK_COLUMNS - 1) / 100)].append(item)
        return self._lane("events", "Events", "".join(map(self._mark, columns.values()))) if columns else ""

    def _mark(self, items: list[TimelineItem]) -> str:
        """Of events that are close to each other, the most telling one."""
        first = min(items, key=_telling)
        label = self._label(first) + (f", and {len(items) - 1} more" if len(items) > 1 else "")
        count = f'<tspan class="count" dy="-4">{len(items)}</tspan>' if len(items) > 1 else ""
        text = f'<text x="{self._percent(first.from_s):.2f}%" y="16">{MARKS.get(first.kind, OTHER_MARK)}{count}</text>'
        return _svg_link(first, label, text)

    def _lane(self, kind: str, label: str, content: str) -> str:
        return (
            f'<div class="lane {kind}"><span class="label">{label}</span>'
            f'<svg class="track" height="22" width="100%">{content}</svg></div>'
        )

    def _drawn(self, layers: Mapping[str, Sequence[TimelineItem]]) -> str:
        """Each layer is one path of whole columns, over the one before."""
        paths = "".join(
            f'<path class="{name}" d="{path}"/>' for name, items in layers.items() if (path := self._path(items))
        )
        return f'<svg viewBox="0 0 {COLUMNS} 22" preserveAspectRatio="none" aria-hidden="true">{paths}</svg>'

    def _path(self, items: Iterable[TimelineItem]) -> str:
        columns: set[int] = set()
        for item in items:
            begin_s, end_s = _clip(item, self._moments)
            begin = min(COLUMNS - 1, self._column(begin_s))
            columns.update(range(begin, max(begin + 1, self._column(end_s))))
        return "".join(f"M{begin} 4h{end - begin}v14h-{end - begin}z" for begin, end in _runs(sorted(columns)))

    def _links(self, items: Iterable[TimelineItem]) -> str:
        return "".join(self._bar(item) for item in items if item.id in self._documents)

    def _bar(self, item: TimelineItem) -> str:
        begin, end = (self._percent(at_s) for at_s in _clip(item, self._moments))
        width = max(end - begin, MIN_LINK_PERCENT)
        x = min(begin, 100 - width)
        return _svg_link(
            item, self._label(item), f'<rect class="bar" x="{x:.2f}%" width="{width:.2f}%" y="2" height="18" rx="2"/>'
        )

    def _label(self, item: TimelineItem) -> str:
        document = self._documents[item.id]
        parts = (_subject(document, self._find), what_text(document), _lasted(document), utc_text(document["from"]))
        return ", ".join(filter(None, parts))

    def _column(self, at_s: float) -> int:
        return int(self._percent(at_s) * COLUMNS / 100)

    def _percent(self, at_s: float) -> float:
        moments = self._moments
        return min(100.0, max(0.0, 100 * (at_s - moments.from_s) / (moments.to_s - moments.from_s)))


def _by_status(items: Sequence[TimelineItem]) -> dict[str, list[TimelineItem]]:
    return {
        status.value.lower(): [item for item in items if item.status == status.value]
        for status in (Status.INITIALIZING, Status.DOWN)
    }


def _runs(columns: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Columns beside each other, as begin and end."""
    begin = end = -1
    for column in columns:
        if column != end:
            if end > begin:
                yield begin, end
            begin = column
        end = column + 1
    if end > begin:
        yield begin, end


def _svg_link(item: TimelineItem, label: str, shape: str) -> str:
    return f'<a href="#t={item.id}"><title>{escape_text(label)}</title>{shape}</a>'


def _list(documents: Iterable[Mapping[str, Any]], left: int, find: Find, *, has_links: bool) -> str:
    """`has_links`: to the history of a service alone."""
    items = [_list_item(document, find, has_links=has_links) for document in documents]
    if not items:
        return '<p class="none">Nothing happened in this period.</p>'
    more = f"<p>and {left} more; choose a shorter period to see them</p>" if left else ""
    count = f"{len(items)} {'entry' if len(items) == 1 else 'entries'}, the newest first"
    return f'<details id="timeline-list"><summary>{count}</summary><ol>{"".join(items)}</ol>{more}</details>'


def _list_item(document: Mapping[str, Any], find: Find, *, has_links: bool) -> str:
    status = document["status"] if document["type"] == "outage" else ""
    health = "" if document["type"] != "health" else f' data-health="{document["health"] or "none"}"'
    lasted = f'<span class="lasted">{_lasted(document)}</span>' if document["duration_s"] is not None else ""
    return (
        f'<li id="t={document["id"]}" data-status="{status}" data-type="{document["type"]}"{health}>'
        f'<a class="moment" href="#t={document["id"]}">{_time(document["from"])}</a> {lasted} '
        f'<b dir="auto">{escape_text(_subject(document, find))}</b> '
        f'<span class="what" dir="auto">{escape_text(what_text(document))}</span>'
        f"{_details(document, has_links=has_links)}</li>"
    )


def _details(document: Mapping[str, Any], *, has_links: bool) -> str:
    """Shown of the one that is chosen."""
    service = document["service"]
    facts = {
        "At" if document["duration_s"] is None else "From": _time(document["from"]),
        "Until": _time(document["until"]) if document["until"] else "ongoing" if document["open"] else "",
        "Duration": "" if document["duration_s"] is None else format_duration(document["duration_s"]),
        "Reason": escape_text(document["reason"]),
        "Code": f"<code>{escape_text(document['code'])}</code>" if document["code"] else "",
        "Service": "" if service is None else _service_text(service, has_link=has_links),
    }
    rows = "".join(f'<div><dt>{term}</dt><dd dir="auto">{value}</dd></div>' for term, value in facts.items() if value)
    return f'<dl class="details">{rows}</dl>'


def _service_text(service_id: str, *, has_link: bool) -> str:
    text = escape_text(service_id)
    return f'<a href="{history_link(service_id)}">{text}</a>' if has_link else text


def _subject(document: Mapping[str, Any], find: Find) -> str:
    service_id = service_of(document)
    return "Node" if service_id is None else _name(find, service_id)


def _lasted(document: Mapping[str, Any]) -> str:
    if document["duration_s"] is None:
        return ""
    return f"{format_duration(document['duration_s'])}{', ongoing' if document['open'] else ''}"


def _time(iso: str) -> str:
    return time_element(iso, utc_text(iso))
