"""The HTML page from the server is complete and escaped without JavaScript."""

from __future__ import annotations

import asyncio
import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.api.spec import Request
from svcnode.core.codes import ReasonCode
from svcnode.core.maintenance import PlannedMaintenance
from svcnode.core.model import Acknowledgement, Health, Maintenance, Verdict
from svcnode.core.state_machine import initial_state
from svcnode.history.records import HOURS, Bucket
from svcnode.operator import markup, page, page_rows
from svcnode.operator.page_feed import SIGNAL_INTERVAL_S
from svcnode.operator.single_flight import SingleFlight
from svcnode.operator.static_files import STATIC_FILES, static_name
from tests.support.operator_context import OperatorHarness
from tests.support.real_time import in_real_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from svcnode.operator.details import ServiceDetails

READY = Verdict.ready()
SCRIPT = "<script>alert(1)</script>"
HOSTILE = f"""{SCRIPT}"'&amp;\N{GRINNING FACE}\N{ARABIC LETTER AIN}$name ${{name}}"""


class ParsedPage(HTMLParser):
    """The parts of the page that the tests check."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.text = ""
        self._is_in_body = self._is_in_cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tbody":
            self._is_in_body = True
        elif self._is_in_body and tag == "tr":
            self.rows.append([])
        elif self._is_in_body and tag in ("th", "td"):
            self.rows[-1].append("")
            self._is_in_cell = True
        elif self._is_in_body and tag == "code":
            self.rows[-1][-1] += " "

    def handle_endtag(self, tag: str) -> None:
        if tag in ("th", "td"):
            self._is_in_cell = False

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._is_in_cell:
            self.rows[-1][-1] += data

    def attributes(self, tag: str, name: str) -> list[str | None]:
        return [attributes[name] for found, attributes in self.tags if found == tag and name in attributes]


class PageHarness(OperatorHarness):
    """With a fake history."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.buckets: dict[str, list[Bucket]] = {}
        self.history_queries: list[tuple[list[str], str]] = []
        self.history.buckets = self._buckets

    async def _buckets(self, service_ids: Sequence[str], resolution: Any) -> dict[str, list[Bucket]]:
        self.history_queries.append((list(service_ids), resolution.name))
        return {service_id: self.buckets.get(service_id, []) for service_id in service_ids}

    @property
    def page(self) -> str:
        """Rendered for every call, without the shared result."""
        self.context = self.context._replace(single_flight=SingleFlight())
        return self.request(page.page).body.decode()

    def parse(self) -> ParsedPage:
        return ParsedPage(self.page)


@pytest.fixture
def harness() -> PageHarness:
    return PageHarness()


def test_each_service_is_a_row_with_what_its_kind_has(harness: PageHarness) -> None:
    assert '<p id="no-services" class="empty">' in harness.page
    for service_id in ("db", "new"):
        harness.node.register(service_id, name="Ledger", probe="tcp://db:5432")
    harness.record("db", Verdict.ready("accepts"), duration_s=0.0042)
    harness.buckets["db"] = [Bucket(0, up_s=3590.0, down_s=10.0), Bucket(3600, up_s=1800.0)]
    harness.clock.advance(75)
    harness.node.register("reported").up("warm")
    harness.node.register("fixed").report(Verdict.ready("fixed", code=ReasonCode.FIXED))
    harness.buckets["fixed"] = [Bucket(0, up_s=3600.0)]
    _, state = harness.node.find("db") or pytest.fail("not registered")
    harness.history_queries.clear()
    parsed = harness.parse()
    assert parsed.rows == [
        ["Ledger db", "Initializing", "42 s", state.reason, "1 min ago", "4.2 ms", "99.81 %"],
        ["Ledger new", "Initializing", "1 min", initial_state(0.0).reason, *3 * [markup.EMPTY_CELL]],
        ["reported reported", "Up", "0 s", "warm", "0 s ago", markup.EMPTY_CELL, markup.EMPTY_CELL],
        ["fixed fixed", "Up", "0 s", "fixed", *3 * [markup.EMPTY_CELL]],
    ]
    assert [attributes["data-id"] for tag, attributes in parsed.tags if "data-fixed" in attributes] == ["fixed"]
    assert harness.history_queries == [(["db", "new", "reported", "fixed"], HOURS.name)]
    assert '<p id="no-services" class="empty" hidden>' in harness.page


def test_rows_are_sorted_by_status_and_then_by_the_order_of_the_node(harness: PageHarness) -> None:
    verdicts = (READY, Verdict.failed("no"), READY, Verdict.not_ready("soon"), Verdict.failed("no"))
    for name, verdict in zip("abcde", verdicts, strict=True):
        harness.node.register(name).report(verdict)
    assert [row[0].split()[0] for row in harness.parse().rows] == ["b", "e", "d", "a", "c"]
    counts = re.findall(r'value="(\w*)"[^>]*><span>\w+ <b>(\d+)</b>', harness.page)
    assert counts == [("", "5"), ("Down", "2"), ("Initializing", "1"), ("Up", "2")]


def test_services_of_a_group_are_under_its_heading_with_counts_by_status(harness: PageHarness) -> None:
    for service_id, group, verdict in (
        ("pay-a", "payments", READY),
        ("find-a", "search", Verdict.failed("no")),
        ("pay-b", "payments", Verdict.not_ready("soon")),
        ("find-b", "search", READY),
        ("db", "", READY),
    ):
        harness.node.register(service_id, group=group).report(verdict)

    parsed = harness.parse()

    names = ["db", "search1", "find-a", "find-b", "payments0", "pay-b", "pay-a"]
    assert [row[0].split()[0] for row in parsed.rows] == names
    assert [row[0] for row in parsed.rows if len(row) == 1] == [
        "search1 Down 0 Initializing 1 Up",
        "payments0 Down 1 Initializing 1 Up",
    ]
    hidden = [attributes["data-status"] for tag, attributes in parsed.tags if tag == "span" and "hidden" in attributes]
    assert hidden[3:] == ["Initializing", "Down"]


def test_the_cursor_is_read_before_the_services(harness: PageHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a page could miss a change: one that its cursor includes, but its rows do not."""
    harness.node.register("db")
    feed = harness.context.page_feed
    before = feed.cursor
    probe_config = harness.node.probe_config

    def change_during_rendering(service_id: str) -> Any:
        feed.set_sections({"notices": "changed"})
        return probe_config(service_id)

    monkeypatch.setattr(harness.node, "probe_config", change_during_rendering)  # called while the rows are rendered
    assert harness.parse().attributes("main", "data-cursor") == [before]
    assert feed.cursor != before


@pytest.mark.parametrize(
    ("verdict", "code", "name", "headline"),
    [
        (READY, "200", "healthy", "● Healthy"),
        (Verdict.not_ready("soon"), "206", "partial", "◐ Partially healthy"),
        (Verdict.failed("no"), "503", "unhealthy", "✖ Unhealthy"),
    ],
)
def test_title_icon_and_headline_show_the_health(
    verdict: Verdict, code: str, name: str, headline: str, harness: PageHarness
) -> None:
    symbol, label = headline.split(" ", 1)
    harness.node.register("db").report(verdict)
    text, parsed = harness.page, harness.parse()
    assert f"<title>{symbol} validator-7: {label.lower()}</title>" in text
    assert parsed.attributes("main", "data-health") == [name]
    assert f'<span id="health-label" data-health="{name}" data-code="{code}">{label}</span>' in text
    assert f"static/{static_name(f'{name}.svg')}" in parsed.attributes("link", "href")
    assert text.index("<h1>") < text.index("<table")


def test_problems_of_history_and_reload_are_notices(harness: PageHarness) -> None:
    assert 'class="notice" dir' not in harness.page
    harness.history.problem = f"the disk is full {SCRIPT}"
    harness.process_stats.record_reload("services.db: what?")
    text = harness.page
    notices = re.findall(r'<p class="notice" dir="auto">(.*?)</p>', text)
    assert len(notices) == 2
    assert "the disk is full &lt;script&gt;" in notices[0]
    assert notices[1].endswith(": services.db: what?")


def test_planned_maintenance_of_the_node_is_a_notice_until_it_begins(harness: PageHarness) -> None:
    wall_s = harness.node.wall_time_s(harness.node.now_s())
    for from_s, count in ((wall_s + 60, 1), (wall_s, 0)):
        planned = PlannedMaintenance(service_ids=(), from_s=from_s, until_s=wall_s + 120, reason=SCRIPT)
        harness.node.maintenance.plan(planned, source="planned")
        assert harness.page.count('class="notice" dir') == count
        assert SCRIPT not in harness.page


def test_acknowledgements_are_shown_in_the_row_and_as_a_notice(harness: PageHarness) -> None:
    harness.node.register("db").down("refused")
    assert "Acknowledged" not in harness.parse().rows[0][3]
    made = Acknowledgement(Health.UNHEALTHY, 0.0, by="ops", reason=SCRIPT)
    harness.node.acknowledgements.make(made, "db")
    harness.node.acknowledgements.make(made)
    assert harness.parse().rows[0][3] == f"refusedAcknowledged by ops at 1970-01-01 00:00:00 UTC: {SCRIPT}"
    assert harness.page.count('class="notice" dir') == 1
    assert SCRIPT not in harness.page


INVISIBLE_TEXT, ESCAPED_TEXT = "a\u202eb\u200bc\xa0\U000e0041", r"a\u202eb\u200bc\xa0\U000e0041"


@pytest.mark.parametrize(("text", "shown"), [(HOSTILE, HOSTILE), (INVISIBLE_TEXT, ESCAPED_TEXT)])
def test_markup_from_outside_stays_text_and_invisible_characters_are_shown_as_escapes(
    harness: PageHarness, text: str, shown: str
) -> None:
    harness.node.set_identity(name=text, version="v1")
    harness.node.register(text, name=text, description=text, group=text).down(f"{text}\x1b\n")
    harness.node.overrides.set_issue(text)
    harness.history.problem = text
    assert harness.page.count("<script") == 1  # the page's own
    parsed = harness.parse()
    group, row = parsed.rows
    assert group[0].startswith(f"{shown}1 Down")
    assert (row[0], row[3]) == (f"{shown} {shown}", shown + r"\x1b\n")
    assert parsed.attributes("tr", "data-group") == ["", text, text]  # the first is the template of a heading
    assert parsed.attributes("tr", "data-id") == [text]
    assert parsed.attributes("main", "data-name") == [shown]
    assert f"✖ {shown}: unhealthy" in parsed.text
    assert f": {shown}" in parsed.text
    assert not {"\u202e", "\u200b", "\x1b", "\xa0", "\U000e0041"} & set(parsed.text)


def test_before_the_first_evidence_the_reason_is_that_of_a_check_that_could_not_run(harness: PageHarness) -> None:
    not_started = Verdict.unknown("cannot run /nonexistent/prog", code=ReasonCode.COMMAND_NOT_STARTED)
    syncing = Verdict.not_ready("syncing", code=ReasonCode.SYNCING)
    for name in ("a", "b", "c"):
        harness.node.register(name, probe="tcp://db:5432")
    harness.record("a", not_started)
    harness.record("b", syncing, not_started)
    harness.record("c", Verdict.unknown("", code=ReasonCode.PROBE_ERROR))
    parsed = harness.parse()
    assert [row[3] for row in parsed.rows] == [not_started.reason, syncing.reason, initial_state(0.0).reason]
    assert parsed.attributes("tr", "data-code") == ["command_not_started", "syncing", "no_evidence"]


@pytest.mark.parametrize(
    ("text", "formatted"),
    [
        ("x" * 64, "x" * 64),
        ("x" * 65, f"{'x' * 48}…"),
        (f"{'x' * 64}, b", f"{'x' * 48}…, b"),
        (f"{'x' * 256}, {'y' * 256}; z", f"{'x' * 48}…, {'y' * 48}…; z"),
        ("," * 256, f"{',' * 48}…,"),
    ],
)
def test_punctuation_after_a_truncated_word_stays(text: str, formatted: str) -> None:
    assert markup.shorten_words(text) == formatted


def test_a_short_id_is_not_broken_at_its_hyphens_and_percent_encoded_in_its_link(harness: PageHarness) -> None:
    for name in ("db-1-replica", "a b-c", "much-too-long-for-one-line", "a/b?c=d&e#f %2F.."):
        harness.node.register(name)
    assert re.findall(r'class="nowrap">([^<]*)<', harness.page) == ["db-1-replica"]
    *_, link = [href for href in harness.parse().attributes("a", "href") if href and href.startswith("details?")]
    assert link == "details?recent_checks=1&id=a%2Fb%3Fc%3Dd%26e%23f%20%252F.."


def test_the_policy_forbids_other_origins_and_inline_code(harness: PageHarness) -> None:
    headers = dict(harness.request(page.page).headers)
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    policy = headers["Content-Security-Policy"].split("; ")
    assert policy[0] == "default-src 'none'"
    assert {"frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'", "script-src 'self'"} < set(policy)
    assert not any(word in " ".join(policy) for word in ("unsafe", "*", "data:", "http"))
    assert {"require-trusted-types-for 'script'", "trusted-types 'none'"} < set(policy)
    parsed = harness.parse()
    assert not [tag for tag, attributes in parsed.tags if any(name.startswith(("on", "style")) for name in attributes)]
    assert not [tag for tag, _ in parsed.tags if tag in ("style", "iframe", "object", "embed", "base", "form")]


def test_all_links_are_relative(harness: PageHarness) -> None:
    """A proxy may serve the page below another path."""
    parsed = harness.parse()
    urls = [*parsed.attributes("link", "href"), *parsed.attributes("script", "src"), *parsed.attributes("a", "href")]
    assert not [one for one in urls if one is None or one.startswith("/") or ":" in one]
    served = {static_name(name) for name in STATIC_FILES}
    assert {one.removeprefix("static/") for one in urls if one and one.startswith("static/")} <= served


@in_real_time
async def test_requests_within_a_second_share_one_page(harness: PageHarness) -> None:
    harness.node.register("db")
    responses = await asyncio.gather(*(page.page(harness.context, Request("GET", b"/"), "") for _ in range(50)))
    found = {response.body for response in responses}
    assert len(found) == 1
    assert len(harness.history_queries) == 1


@pytest.mark.parametrize(
    ("share", "formatted"), [(1.0, "100 %"), (0.999999, "99.99 %"), (0.5, "50.00 %"), (0.00001, "0.00 %"), (0.0, "0 %")]
)
def test_a_percentage_is_rounded_down(share: float, formatted: str) -> None:
    assert markup.format_percent(share) == formatted


def test_unknown_time_and_maintenance_are_left_out_of_availability() -> None:
    assert page_rows.availability([Bucket(0), Bucket(3600, up_s=30.0, initializing_s=10.0)]) == 0.75
    assert page_rows.availability([Bucket(0), Bucket(3600)]) is page_rows.availability([]) is None
    worked_on = [Bucket(0, up_s=30.0, down_s=10.0, maintenance_s=3560.0), Bucket(3600, maintenance_s=3600.0)]
    assert page_rows.availability(worked_on) == 0.75
    assert page_rows.availability(worked_on[1:]) is None
    assert markup.format_availability(0.75, has_maintenance=True) == "75.00 % without maintenance"
    assert markup.format_availability(None, has_maintenance=True) == "only maintenance"
    assert markup.format_availability(None, has_maintenance=False) == markup.EMPTY_CELL


# ---- changes


class ParsedChanges(ParsedPage):
    @property
    def ids(self) -> dict[str, bool]:
        """The ids of the rows in order, and whether the service is still there."""
        rows = [attributes for tag, attributes in self.tags if tag == "tr" and "data-id" in attributes]
        return {row["data-id"] or "": "data-removed" not in row for row in rows}

    @property
    def sections(self) -> list[str | None]:
        return self.attributes("div", "data-section")

    @property
    def cursor(self) -> str:
        (cursor,) = self.attributes("main", "data-cursor")
        return cursor or ""

    @property
    def is_complete(self) -> bool:
        return bool(self.attributes("main", "data-complete"))


class FollowingPage(PageHarness):
    """An open page: it asks for changes."""

    async def changes(self, after: str = "", *ids: str) -> ParsedChanges:
        await asyncio.sleep(2 * SIGNAL_INTERVAL_S)  # then they are signalled, and an answer has all of them
        query = "&".join((f"after={after}", *(f"id={one}" for one in ids)))
        request = Request("GET", b"/page/changes", query.encode())
        response = await page.page_changes(self.context, request, "")
        assert dict(response.headers)["Content-Security-Policy"] == page.CONTENT_POLICY
        return ParsedChanges(response.body.decode())


@in_real_time
async def test_a_page_gets_the_rows_and_sections_that_have_changed_and_no_others() -> None:
    harness = FollowingPage()
    with harness.context.page_feed.following():
        for service_id in ("a", "b", "c"):
            harness.node.register(service_id).up()
        first = await harness.changes()
        assert first.is_complete
        assert first.ids == {"a": True, "b": True, "c": True}
        assert first.sections == ["headline", "notices", "problems", "replicas", "notifications"]

        nothing = await harness.changes(first.cursor)
        assert (nothing.ids, nothing.sections, nothing.is_complete) == ({}, [], False)

        harness.node.report("b", Verdict.failed("refused"))
        harness.node.deregister("c")
        harness.node.register("d", name=SCRIPT).up()
        changed = await harness.changes(first.cursor)
        assert changed.ids == {"b": True, "c": False, "d": True}
        assert changed.sections == ["headline", "problems"]
        assert changed.rows[0][1:4:2] == ["Down", "refused"]
        assert SCRIPT in changed.rows[2][0]
        assert not changed.is_complete

        again = await harness.changes(changed.cursor, "a", "none")
        assert again.ids == {"a": True, "none": False}


@in_real_time
async def test_pages_that_are_up_to_date_share_one_answer_and_one_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[str] = []

    def row(position: int, service: ServiceDetails) -> str:
        rendered.append(service["id"])
        return page_rows.row(position, service)

    monkeypatch.setattr(page, "row", row)
    harness = FollowingPage()
    with harness.context.page_feed.following():
        services = [harness.node.register(service_id) for service_id in ("a", "b")]
        cursor = (await harness.changes()).cursor
        rendered.clear()
        services[0].down("no")
        pages = await asyncio.gather(*(harness.changes(cursor) for _ in range(50)))
        assert {tuple(one.ids) for one in pages} == {("a",)}
        assert rendered == ["a"]


@in_real_time
async def test_a_change_of_the_whole_node_is_in_its_headline_and_maintenance_of_it_in_every_row() -> None:
    harness = FollowingPage()
    with harness.context.page_feed.following():
        for service_id in ("a", "b"):
            harness.node.register(service_id).up()
        first = await harness.changes()
        harness.node.overrides.set_issue("disk")
        changed = await harness.changes(first.cursor)
        assert (changed.ids, changed.sections) == ({}, ["headline"])
        harness.node.maintenance.set(Maintenance("control", harness.node.now_s() + 120))
        maintained = await harness.changes(changed.cursor)
        assert maintained.ids == {"a": True, "b": True}
        assert "notices" in maintained.sections
