"""The public page and the badges. The page is complete without scripts, of which it has none."""

from __future__ import annotations

from functools import cache, lru_cache
from importlib import resources
from string import Template
from typing import TYPE_CHECKING

from svcnode.core.units import format_duration, iso_time, utc_text
from svcnode.operator.badges import svg
from svcnode.operator.markup import escape_text, format_percent
from svcnode.operator.public.statuspage import outage_uuid
from svcnode.operator.public.view import Day, Overall, PublicStatus
from svcnode.operator.static_files import read_static

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcnode.operator.public.outages import Outage
    from svcnode.operator.public.view import Days, PublicService, PublicView, Window

STYLE, ICON, BADGE, BADGES, BADGE_SUFFIX = "public.css", "icon.svg", "badge.svg", "badge", ".svg"
MAX_SHOWN_OUTAGES = 100
MINUTE_S = 60

# Dark enough for white text.
_GREEN, _AMBER, _RED, _BLUE = "#1a7f37", "#9a6700", "#cf222e", "#0b5cad"
# For each: its class, its colour on a badge, and its icon among those of the operator page.
_OVERALL = {
    Overall.OPERATIONAL: ("operational", _GREEN, "healthy"),
    Overall.MAINTENANCE: ("maintenance", _BLUE, "partial"),
    Overall.CHECKING: ("checking", _AMBER, "unknown"),
    Overall.UNKNOWN: ("checking", _AMBER, "unknown"),
    Overall.PARTIAL_OUTAGE: ("outage", _RED, "unhealthy"),
    Overall.OUTAGE: ("outage", _RED, "unhealthy"),
}
_STATUSES = {
    PublicStatus.OPERATIONAL: ("operational", _GREEN),
    PublicStatus.MAINTENANCE: ("maintenance", _BLUE),
    PublicStatus.CHECKING: ("checking", _AMBER),
    PublicStatus.OUTAGE: ("outage", _RED),
}
# The y of the top of the bar of a day: an outage is also the tallest.
_BAR_TOPS = {Day.UNKNOWN: 18, Day.OPERATIONAL: 6, Day.CHECKING: 3, Day.OUTAGE: 0}
_BAR_STEP, _BAR_BOTTOM = 4, 20


# ---- icon and badges


def render_icon(view: PublicView) -> bytes:
    return read_static(f"{_OVERALL[view.overall][2]}.svg")


def render_badge(view: PublicView) -> bytes:
    return svg(view.title, view.overall.value, _OVERALL[view.overall][1]).encode()


def service_badge(service: PublicService) -> bytes:
    return svg(service.name, service.status.value, _STATUSES[service.status][1]).encode()


# ---- the page


def render(view: PublicView) -> bytes:
    going_on = [outage for outage in view.outages if outage.end_s is None]
    text = {"title": view.title, "overall": view.overall.value, "as_of": utc_text(view.as_of_s)}
    markup = {
        "class": _OVERALL[view.overall][0],
        "as_of_iso": iso_time(view.as_of_s),
        "canonical": f'<link rel="canonical" href="{escape_text(view.url)}/">' if "://" in view.url else "",
        "now": _now(view, going_on),
        "services": _services(view.services),
        "maintenance": _maintenance(view, [window for window in view.maintenance if not window.is_current]),
        "outages": _outages(view),
    }
    return _template().substitute({key: escape_text(value) for key, value in text.items()}, **markup).encode()


@cache
def _template() -> Template:
    return Template(read_file("public.html").decode())


@cache
def read_file(name: str) -> bytes:
    return resources.files(__package__).joinpath(name).read_bytes()


def _now(view: PublicView, going_on: Sequence[Outage]) -> str:
    items = [
        f'<li class="outage"><b dir="auto">{escape_text(view.names[outage.service_id])}</b> has not been available '
        f"since {_time(outage.begin_s)} <span>({_duration(view.as_of_s - outage.begin_s)})</span></li>"
        for outage in going_on
    ]
    items += [
        f'<li class="maintenance">Maintenance of {_names(view, window)} until {_time(window.end_s)}</li>'
        for window in view.maintenance
        if window.is_current
    ]
    return f'<ul class="now">{"".join(items)}</ul>' if items else ""


def _services(services: Sequence[PublicService]) -> str:
    groups: dict[str, list[PublicService]] = {}
    for service in services:
        groups.setdefault(service.group, []).append(service)
    if not groups:
        return '<p class="none">No service is known at the moment.</p>'
    return "".join(
        (f'<h3 dir="auto">{escape_text(group)}</h3>' if group else "")
        + f'<ul class="services">{"".join(map(_service, members))}</ul>'
        for group, members in groups.items()
    )


def _service(service: PublicService) -> str:
    name = _STATUSES[service.status][0]
    return (
        f'<li><b class="name" dir="auto">{escape_text(service.name)}</b>'
        f'<span class="status {name}">{service.status.value}</span>'
        f'{_bars(service.days.days)}<span class="share">{_share(service.days)}</span></li>'
    )


def _share(days: Days) -> str:
    since_s = days.known_since_s
    if days.availability is None or since_s is None:
        return "Not measured yet"
    period = f"in {len(days.days)} days" if since_s == days.begin_s else f"since {_day(since_s)}"
    return f"{format_percent(days.availability)} available {period}"


@lru_cache(maxsize=1024)
def _bars(days: str) -> str:
    """One path for each kind of day: a page of many services stays small."""
    if not days:
        return '<span class="bars"></span>'
    bad_days = days.count(Day.OUTAGE)
    label = (
        f"Last {len(days)} days: outages on {bad_days}" if bad_days else f"Last {len(days)} days: no outages are known"
    )
    paths = "".join(
        f'<path class="{kind.name.lower()}" d="{"".join(bars)}"/>'
        for kind, top in _BAR_TOPS.items()
        if (bars := [f"M{_BAR_STEP * n + 2} {top}V{_BAR_BOTTOM}" for n, day in enumerate(days) if day == kind])
    )
    return (
        f'<svg class="bars" viewBox="0 0 {_BAR_STEP * len(days)} {_BAR_BOTTOM}" preserveAspectRatio="none" role="img" '
        f'aria-label="{label}">{paths}</svg>'
    )


def _maintenance(view: PublicView, windows: Sequence[Window]) -> str:
    if not windows:
        return '<p class="none">No maintenance is planned.</p>'
    items = "".join(
        f"<li>{_time(window.begin_s)} to {_time(window.end_s)}: {_names(view, window)}</li>" for window in windows
    )
    return f'<ul class="windows">{items}</ul>'


def _names(view: PublicView, window: Window) -> str:
    if len(window.service_ids) == len(view.services):
        return "all services"
    return ", ".join(f"<bdi>{escape_text(view.names[service_id])}</bdi>" for service_id in window.service_ids)


def _outages(view: PublicView) -> str:
    if not view.outages:
        return f'<p class="none">{_no_outages(view.services)}</p>'
    items = "".join(_outage(view, outage) for outage in view.outages[:MAX_SHOWN_OUTAGES])
    more = len(view.outages) - MAX_SHOWN_OUTAGES
    note = f'<p class="none">{more} older ones are not shown.</p>' if more > 0 else ""
    return f'<ul class="outages">{items}</ul>{note}'


def _no_outages(services: Sequence[PublicService]) -> str:
    """Only what was measured is said."""
    known = {since_s: service.days for service in services if (since_s := service.days.known_since_s) is not None}
    if not known:
        return "Nothing is measured yet."
    since_s, days = min(known.items())
    return f"No outages in {len(days.days)} days." if since_s == days.begin_s else f"No outages since {_day(since_s)}."


def _outage(view: PublicView, outage: Outage) -> str:
    is_over = outage.end_s is not None
    end_s = view.as_of_s if outage.end_s is None else outage.end_s
    times = f"{_time(outage.begin_s)} to {_time(end_s)}" if is_over else f"since {_time(outage.begin_s)}, ongoing"
    return (
        f'<li id="{outage_uuid(outage).hex[:12]}"><b class="name" dir="auto">'
        f"{escape_text(view.names[outage.service_id])}</b><span>{times}</span>"
        f'<span class="share">{_duration(end_s - outage.begin_s)}</span></li>'
    )


def _time(wall_s: float) -> str:
    date, clock = utc_text(wall_s).split(" ", 1)
    return f'<time datetime="{iso_time(wall_s)}"><span>{date}</span> <span>{clock}</span></time>'


def _day(wall_s: float) -> str:
    date = iso_time(wall_s)[: len("2026-01-01")]
    return f'<time datetime="{date}"><span>{date}</span></time>'


def _duration(seconds: float) -> str:
    return "less than 1 min" if seconds < MINUTE_S else format_duration(seconds // MINUTE_S * MINUTE_S)
