"""Page, feed, JSON and badges of a public view; pure."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from svcnode.operator.public import feed, page, statuspage
from svcnode.operator.public.outages import Outage
from svcnode.operator.public.statuspage import outage_uuid
from svcnode.operator.public.view import NO_DAYS, Day, Days, PublicService, PublicStatus, PublicView, Window
from tests.unit.operator.test_page import HOSTILE, SCRIPT, ParsedPage

if TYPE_CHECKING:
    from collections.abc import Iterator

NOON = 1_800_014_400.0  # 2027-01-15T12:00:00Z
ATOM = "{http://www.w3.org/2005/Atom}"
BEGIN_S = int(NOON) // 86_400 * 86_400 - 89 * 86_400
DAYS = Days(BEGIN_S, Day.OPERATIONAL * 90, 0.99996)
UP, CHECKING, DOWN, WORK = (
    PublicStatus.OPERATIONAL,
    PublicStatus.CHECKING,
    PublicStatus.OUTAGE,
    PublicStatus.MAINTENANCE,
)


def service(service_id: str, status: PublicStatus = UP, group: str = "", name: str = "") -> PublicService:
    return PublicService(service_id, name or service_id.title(), group, status, NOON - 600, DAYS)


def make_view(*services: PublicService, **members: Any) -> PublicView:
    given: dict[str, Any] = {
        "title": "Status of Example",
        "url": "",
        "as_of_s": NOON,
        "outages": (),
        "maintenance": (),
    } | members
    return PublicView(services=services, **given)


def document(path: str, view: PublicView) -> Any:
    return json.loads(statuspage.render(statuspage.DOCUMENTS[path], view))


def parse(view: PublicView) -> ParsedPage:
    return ParsedPage(page.render(view).decode())


ENDED, GOING_ON = Outage("db", NOON - 7200, NOON - 3600), Outage("api", NOON - 600)
PLANNED = Window(NOON + 3600, NOON + 7200, ("db",), is_current=False)
BUSY = make_view(
    service("db"),
    service("api", DOWN, "Edge"),
    service("web", CHECKING, "Edge"),
    outages=(GOING_ON, ENDED),
    maintenance=(Window(NOON - 60, NOON + 60, ("db",), is_current=True), PLANNED),
    url="https://status.example.com",
)


# ---- JSON


@pytest.mark.parametrize(
    ("statuses", "indicator"),
    [
        ([UP, UP], "none"),
        ([UP, WORK], "maintenance"),
        ([UP, CHECKING], "minor"),
        ([], "minor"),
        ([UP, DOWN], "major"),
        ([DOWN], "critical"),
    ],
)
def test_the_indicator_is_none_only_if_all_services_work(statuses: list[PublicStatus], indicator: str) -> None:
    view = make_view(*(service(f"s{number}", status) for number, status in enumerate(statuses)))
    assert document("status.json", view)["status"]["indicator"] == indicator


def test_components_have_the_fields_of_statuspage_and_groups_are_components_with_their_members() -> None:
    found = document("components.json", BUSY)["components"]
    assert [(one["id"], one["status"], one["group_id"], one["group"], one["position"]) for one in found] == [
        ("db", "operational", None, False, 1),
        ("group:Edge", "partial_outage", None, True, 2),
        ("api", "major_outage", "group:Edge", False, 3),
        ("web", "degraded_performance", "group:Edge", False, 4),
    ]
    assert found[1]["components"] == ["api", "web"]
    for one in found:
        fields = "id name status created_at updated_at position description showcase start_date group_id page_id group"
        assert {*fields.split(), "only_show_if_degraded"} <= one.keys()
        assert one["description"] is None


def test_incidents_are_outages_with_their_times_and_no_cause() -> None:
    going_on, ended = document("incidents.json", BUSY)["incidents"]
    assert [going_on] == document("incidents/unresolved.json", BUSY)["incidents"]
    assert (ended["status"], ended["started_at"], ended["resolved_at"]) == (
        *("resolved", "2027-01-15T10:00:00.000Z", "2027-01-15T11:00:00.000Z"),
    )
    assert [update["status"] for update in ended["incident_updates"]] == ["resolved", "investigating"]
    assert (going_on["status"], going_on["resolved_at"], going_on["impact"]) == ("investigating", None, "major")
    assert [one["id"] for one in going_on["components"]] == ["api"]
    assert going_on["shortlink"] == f"https://status.example.com/#{going_on['id']}"


def test_an_incident_keeps_its_id_when_it_ends_and_each_has_its_own() -> None:
    over = BUSY._replace(outages=(GOING_ON._replace(end_s=NOON), ENDED))
    before, after = ([one["id"] for one in document("incidents.json", view)["incidents"]] for view in (BUSY, over))
    assert before == after
    assert len(set(before)) == 2


def test_incidents_have_the_newest_fifty_and_unresolved_ones_all() -> None:
    view = make_view(service("db"), outages=tuple(Outage("db", NOON - number) for number in range(60)))
    assert len(document("incidents.json", view)["incidents"]) == 50
    assert len(document("incidents/unresolved.json", view)["incidents"]) == 60


def test_maintenance_says_when_and_whether_it_has_begun() -> None:
    current, planned = document("scheduled-maintenances.json", BUSY)["scheduled_maintenances"]
    assert (current["status"], planned["status"]) == ("in_progress", "scheduled")
    assert (planned["scheduled_for"], planned["scheduled_until"]) == (
        *("2027-01-15T13:00:00.000Z", "2027-01-15T14:00:00.000Z"),
    )
    assert document("scheduled-maintenances/active.json", BUSY)["scheduled_maintenances"] == [current]
    assert document("scheduled-maintenances/upcoming.json", BUSY)["scheduled_maintenances"] == [planned]


def test_the_summary_has_what_the_other_documents_have() -> None:
    summary = document("summary.json", BUSY)
    for path in ("status.json", "components.json", "incidents/unresolved.json", "scheduled-maintenances.json"):
        assert document(path, BUSY).items() <= summary.items()
    assert summary["page"]["url"] == "https://status.example.com"
    assert summary["page"]["updated_at"] == "2027-01-15T11:50:00.000Z"


# ---- the feed


def entries(view: PublicView) -> Iterator[tuple[str | None, ...]]:
    for entry in ET.fromstring(feed.render(view)).iter(f"{ATOM}entry"):
        yield tuple(entry.findtext(f"{ATOM}{name}") for name in ("id", "published", "updated"))


def test_the_feed_has_an_entry_for_each_outage_that_is_updated_when_it_ends() -> None:
    assert list(entries(BUSY)) == [
        (f"urn:uuid:{outage_uuid(GOING_ON)}", "2027-01-15T11:50:00.000Z", "2027-01-15T11:50:00.000Z"),
        (f"urn:uuid:{outage_uuid(ENDED)}", "2027-01-15T10:00:00.000Z", "2027-01-15T11:00:00.000Z"),
    ]


@pytest.mark.parametrize(
    ("url", "base"), [("", "./"), ("/public", "/public/"), ("https://s.example", "https://s.example/")]
)
def test_the_links_of_the_feed_lead_to_the_page(url: str, base: str) -> None:
    links = [link.get("href") for link in ET.fromstring(feed.render(BUSY._replace(url=url))).iter(f"{ATOM}link")]
    assert links[:3] == [f"{base}history.atom", base, f"{base}#{outage_uuid(GOING_ON).hex[:12]}"]


def test_a_feed_without_outages_is_valid() -> None:
    root = ET.fromstring(feed.render(make_view()))
    assert all(root.findtext(f"{ATOM}{name}") for name in ("id", "title", "updated"))


# ---- the page


def test_the_page_shows_services_outages_and_maintenance() -> None:
    parsed = parse(BUSY)
    assert parsed.attributes("h1", "dir") == ["auto"]
    for text in (
        "Some services are not available",
        "Edge",
        "May have problems",
        "99.99 % available",
        "2027-01-15 13:00:00 UTC",
    ):
        assert text in parsed.text
    assert [attributes["id"] for tag, attributes in parsed.tags if tag == "li" and "id" in attributes] == [
        *(outage_uuid(outage).hex[:12] for outage in (GOING_ON, ENDED))
    ]
    for text in (
        "since 2027-01-15 11:50:00 UTC, ongoing10 min",
        "2027-01-15 10:00:00 UTC to 2027-01-15 11:00:00 UTC1 h",
    ):
        assert text in parsed.text
    assert ("link", {"rel": "canonical", "href": "https://status.example.com/"}) in parsed.tags


def test_the_page_has_no_scripts_and_no_inline_styles() -> None:
    parsed = parse(BUSY)
    assert not {"script", "style"}.intersection(tag for tag, _ in parsed.tags)
    assert not [attributes for _, attributes in parsed.tags if "style" in attributes]
    assert not [name for _, attributes in parsed.tags for name in attributes if name.startswith("on")]


def test_every_link_of_the_page_is_one_that_is_served() -> None:
    from svcnode.operator.public import DOCUMENTS

    parsed = parse(BUSY._replace(url=""))
    links = {str(link) for tag in ("a", "link") for link in parsed.attributes(tag, "href")}
    assert {link for link in links if not link.startswith("#")} <= DOCUMENTS.keys()


def test_hostile_texts_are_escaped_everywhere() -> None:
    hostile = service("db", DOWN, HOSTILE, HOSTILE)
    view = make_view(hostile, title=HOSTILE, outages=(Outage("db", NOON),), maintenance=(PLANNED,), url="/a")
    assert SCRIPT in parse(view).text
    assert SCRIPT not in page.render(view).decode()
    assert ET.fromstring(feed.render(view)).findtext(f"{ATOM}entry/{ATOM}title", "").startswith(HOSTILE)
    assert document("components.json", view)["components"][1]["name"] == HOSTILE
    assert SCRIPT not in (page.render_badge(view) + page.service_badge(hostile)).decode()


def test_a_page_without_anything_says_so_and_not_that_all_works() -> None:
    parsed = parse(make_view())
    assert "may have problems" in parsed.text
    assert "working" not in parsed.text


def test_availability_says_since_when_it_is_known() -> None:
    days = DAYS._replace(days=Day.UNKNOWN * 80 + Day.OPERATIONAL * 10)
    assert "in 90 days" in parse(make_view(service("db"))).text
    assert "since 2027-01-06" in parse(make_view(service("db")._replace(days=days))).text
    assert "No outages in 90 days" in parse(make_view(service("db"))).text
    assert "No outages since 2027-01-06" in parse(make_view(service("db")._replace(days=days))).text
    assert "No outages" not in parse(make_view(service("db")._replace(days=NO_DAYS))).text
    assert "Not measured yet" in parse(make_view(service("db")._replace(days=NO_DAYS))).text


def test_each_kind_of_day_has_bars_of_its_own_height() -> None:
    days = Days(BEGIN_S, "".join(Day), 0.5)
    html = page.render(make_view(service("db")._replace(days=days))).decode()
    bars = re.findall(r'<path class="(\w+)" d="M\d+ (\d+)V20"/>', html)
    assert [kind for kind, _ in bars] == ["unknown", "operational", "checking", "outage"]
    assert len({top for _, top in bars}) == 4


def test_a_page_of_many_outages_is_bounded() -> None:
    view = make_view(service("db"), outages=tuple(Outage("db", NOON - number, NOON) for number in range(150)))
    items = [attributes for tag, attributes in parse(view).tags if tag == "li" and "id" in attributes]
    assert len(items) == page.MAX_SHOWN_OUTAGES


@pytest.mark.parametrize("status", PublicStatus)
def test_badges_and_icon_say_the_status(status: PublicStatus) -> None:
    one = service("db", status)
    assert status.value in page.service_badge(one).decode()
    assert make_view(one).overall.value in page.render_badge(make_view(one)).decode()
    assert page.render_icon(make_view(one)).startswith(b"<svg")
