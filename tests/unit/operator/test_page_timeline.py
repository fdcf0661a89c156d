"""The timeline of the page: what happened in a period, drawn and listed by the server, and bounded."""

from __future__ import annotations

import asyncio
import re
import time
from html import unescape
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from svcnode.core.model import Impact
from svcnode.history.timeline import STARTED, Period, TimelineItem, TimelinePage
from svcnode.operator.history_api import DEFAULT_PERIOD_S
from svcnode.operator.page import page
from svcnode.operator.page import page_timeline as timeline_endpoint
from svcnode.operator.page_timeline import (
    COLUMNS,
    MAX_LANES,
    MAX_LISTED,
    MAX_PAGES,
    Moments,
    read_moments,
    render_timeline,
)
from tests.support.operator_context import OperatorHarness

if TYPE_CHECKING:
    from collections.abc import Sequence

NOON = 1_767_268_800.0
HOUR = 3600.0
EVENT = TimelineItem("e1", "event", "note", None, None, 200, NOON + 60, None, False, "deployed v1", None)
OUTAGE = TimelineItem(
    "o1-00000000",
    "outage",
    "status",
    "db",
    "Down",
    None,
    NOON + 600,
    NOON + 900,
    False,
    "refused",
    "connection_refused",
)
HEALTH = TimelineItem("h1", "health", "status", "db", "Down", 503, NOON + 600, NOON + 900, False, "refused", None)
START = EVENT._replace(id="e0", kind=STARTED, from_s=NOON + 30)


def moments(*items: TimelineItem, **fields: Any) -> Moments:
    ordered = sorted(items, key=lambda item: item.from_s)
    return Moments(NOON, NOON + HOUR, ordered, NOON, is_complete=True)._replace(**fields)


def render(*items: TimelineItem, names: dict[str, Any] | None = None, **fields: Any) -> str:
    return render_timeline(moments(*items, **fields), (names or {}).get)


def listed(html: str) -> list[str]:
    return re.findall(r'<li id="t=([^"]+)"', html)


def lanes(html: str) -> list[str]:
    return [unescape(re.sub("<[^>]+>", "", label)) for label in re.findall(r'class="label">(.*?)</span>', html)]


def service(name: str, impact: Impact = Impact.PARTIAL) -> Any:
    return SimpleNamespace(name=name, impact=impact)


def test_items_are_listed_newest_first_with_their_details_and_linked_from_their_lane() -> None:
    html = render(EVENT, OUTAGE, HEALTH, names={"db": service("Ledger")})
    assert listed(html)[-1] == "e1"
    assert set(listed(html)) == {"e1", "o1-00000000", "h1"}
    assert lanes(html) == ["Health", "Ledger", "Events"]
    for item in (EVENT, OUTAGE, HEALTH):
        assert html.count(f'href="#t={item.id}"') == 2  # on the strip and in the list
    details = html.partition('id="t=o1-00000000"')[2].partition("</li>")[0]
    for text in (
        "2026-01-01 12:10:00 UTC",
        "2026-01-01 12:15:00 UTC",
        "5 min",
        "refused",
        "connection_refused",
        "Ledger",
    ):
        assert text in details
    assert 'x="16.67%" width="8.33%"' in html


def test_texts_are_escaped_and_nothing_has_a_style() -> None:
    evil = '<script>"\u202e'
    html = render(EVENT._replace(reason=evil), OUTAGE._replace(service_id=evil, reason=evil), service_ids=(evil,))
    assert "<script" not in html
    assert "\u202e" not in html
    assert "style=" not in html


def test_what_is_drawn_and_listed_is_bounded_and_the_longest_outage_is_listed() -> None:
    longest = OUTAGE._replace(id="o2-00000000", service_id="s0", from_s=NOON - 10, until_s=NOON + 1800)
    outages = [
        OUTAGE._replace(
            id=f"o{number}-11111111", service_id=f"s{number % 40}", from_s=NOON + number, until_s=NOON + number + 1
        )
        for number in range(3000)
    ]
    html = render(longest, *outages, *(EVENT._replace(id=f"e{number}") for number in range(100, 1000)))
    assert len(listed(html)) == MAX_LISTED
    assert longest.id in listed(html)
    assert len(lanes(html)) == MAX_LANES + 3
    assert lanes(html)[1] == "s0"
    assert lanes(html)[MAX_LANES + 1].startswith(f"+{40 - MAX_LANES}")
    assert len(html) < 100_000


def test_critical_services_have_the_first_lanes() -> None:
    longer = OUTAGE._replace(id="o2-00000000", service_id="web", until_s=None, is_open=True)
    html = render(OUTAGE, longer, names={"db": service("Ledger", Impact.CRITICAL), "web": service("Web")})
    assert lanes(html) == ["Health", "Ledger", "Web"]


def test_a_short_outage_at_the_end_is_drawn_inside() -> None:
    html = render(OUTAGE._replace(from_s=NOON + HOUR, until_s=None, is_open=True))
    assert f"M{COLUMNS - 1} 4h1v14" in html
    assert 'x="99.20%" width="0.80%"' in html


def test_the_future_is_not_drawn() -> None:
    lasting = (one._replace(until_s=None, is_open=True) for one in (OUTAGE, HEALTH))
    html = render(*lasting, now_s=NOON + HOUR / 2)
    assert 'class="up" x="0.00%" width="50.00%"' in html
    assert html.count('x="16.67%" width="33.33%"') == 2
    assert f"M{COLUMNS // 6} 4h{COLUMNS // 2 - COLUMNS // 6}" in html


def test_one_service_has_no_health_of_the_node_and_the_events_of_everyone() -> None:
    other = OUTAGE._replace(id="o3-00000000", service_id="web")
    assert set(listed(render(EVENT, OUTAGE, HEALTH, other, service_ids=("db",)))) == {"e1", "o1-00000000"}
    assert "h1" in listed(render(EVENT, HEALTH, service_ids=("db",), selected="h1"))


class FakeHistory:
    """Its pages; a page for each of these lists of items."""

    def __init__(self, *pages: Sequence[TimelineItem], before: Sequence[TimelineItem] = ()) -> None:
        self.pages = pages
        self.before = before
        self.periods: list[Period] = []

    async def timeline(self, period: Period) -> TimelinePage:
        self.periods.append(period)
        if period.from_s == 0.0:
            return TimelinePage(list(self.before), None)
        is_last = period.after_id == len(self.pages) - 1
        return TimelinePage(list(self.pages[period.after_id]), None if is_last else period.after_id + 1)

    async def latest(self, limit: int) -> list[Any]:
        self.pages = self.pages[-1:]
        return [SimpleNamespace(at_s=NOON + 3000 - number) for number in range(limit)]


def read(history: FakeHistory, *, ends_now: bool = True) -> Moments:
    return asyncio.run(read_moments(cast("Any", history), Period(NOON, NOON + HOUR), ends_now=ends_now))


def test_all_pages_of_a_period_are_read() -> None:
    found = read(FakeHistory([OUTAGE], [EVENT]))
    assert [item.id for item in found.items] == ["e1", "o1-00000000"]
    assert found.is_complete


def test_of_too_many_changes_up_to_now_the_newest_are_read() -> None:
    found = read(FakeHistory(*[[]] * MAX_PAGES, [OUTAGE._replace(from_s=NOON + 1700)]))
    assert found.items
    assert not found.is_complete
    assert NOON < found.from_s < found.to_s == NOON + HOUR


def test_of_too_many_changes_in_the_past_the_oldest_are_read_and_the_period_ends_there() -> None:
    found = read(FakeHistory([OUTAGE], *[[]] * MAX_PAGES), ends_now=False)
    assert not found.is_complete
    assert (found.from_s, found.to_s) == (NOON, OUTAGE.until_s)


@pytest.mark.parametrize(
    ("items", "before", "known_from_s"),
    [
        ([START, EVENT], [], START.from_s),  # the first start
        ([START._replace(code="unclean_shutdown")], [], NOON),
        ([START, OUTAGE._replace(from_s=NOON - 5)], [], NOON),
        ([EVENT], [START], NOON),
        ([], [], NOON + HOUR),  # there was no node
    ],
)
def test_health_is_shown_for_the_time_of_which_there_is_a_history(
    items: list[TimelineItem], before: list[TimelineItem], known_from_s: float
) -> None:
    assert read(FakeHistory(items, before=before)).known_from_s == known_from_s


@pytest.fixture
def harness() -> OperatorHarness:
    harness = OperatorHarness()
    cast("Any", harness.context.history).timeline = FakeHistory([EVENT]).timeline
    return harness


def test_the_page_has_the_time_line_of_the_last_day(harness: OperatorHarness) -> None:
    history = FakeHistory([EVENT._replace(from_s=time.time() - 60)])
    cast("Any", harness.context.history).timeline = history.timeline
    assert listed(harness.request(page).body.decode()) == ["e1"]
    assert history.periods[0].to_s - history.periods[0].from_s == pytest.approx(DEFAULT_PERIOD_S)


def test_a_link_to_a_moment_shows_the_period_around_it(harness: OperatorHarness) -> None:
    at_us = round(NOON * 1e6)
    body = harness.request(timeline_endpoint, query=f"t=e{at_us}").body.decode()
    assert 'data-from="2026-01-01T00:00:00.000Z" data-to="2026-01-02T00:00:00.000Z"' in body
    recent = harness.request(timeline_endpoint, query=f"t=e{round(time.time() * 1e6)}").body.decode()
    assert 'data-from="2026-01-01T00:00:00.000Z"' not in recent


@pytest.mark.parametrize("query", ["t=x", "t=e1&t=e2", "from=yesterday", "colour=blue", "from=1h&to=2h"])
def test_an_invalid_query_is_refused(harness: OperatorHarness, query: str) -> None:
    assert harness.request(timeline_endpoint, query=query).code == 400


def test_a_short_restart_does_not_hide_that_the_node_was_unhealthy() -> None:
    stopped = HEALTH._replace(id="h2", kind="stopped", health=None, from_s=NOON + 900, until_s=NOON + 901)
    html = render(HEALTH, stopped)
    assert html.index('<path class="unknown"') < html.index('<path class="down"')
