"""The page as it comes from the server: complete, true and escaped without a line of JavaScript."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.api.app import OperatorRequest
from svcnode.core.codes import ReasonCode
from svcnode.core.model import Verdict
from svcnode.history.records import HOURS, Bucket
from svcnode.operator import page
from svcnode.operator.page import STATIC_FILES, read_static
from svcnode.operator.single_flight import SingleFlight
from tests.support.operator_context import OperatorHarness

if TYPE_CHECKING:
    from collections.abc import Sequence

READY = Verdict.ready()
SCRIPT = "<script>alert(1)</script>"
HOSTILE = f"""{SCRIPT}"'&amp;\N{GRINNING FACE}\N{ARABIC LETTER AIN}$name ${{name}}"""


class Reader(HTMLParser):
    """What a browser would make of it, as far as the tests ask."""

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


class PagedScene(OperatorHarness):
    """With a history that says what it is told to say."""

    def __init__(self, **words: Any) -> None:
        super().__init__(**words)
        self.buckets: dict[str, list[Bucket]] = {}
        self.queries: list[tuple[list[str], str]] = []
        self.history.buckets = self._bars

    async def _bars(self, service_ids: Sequence[str], span: Any) -> dict[str, list[Bucket]]:
        self.queries.append((list(service_ids), span.name))
        return {service_id: self.buckets.get(service_id, []) for service_id in service_ids}

    @property
    def page(self) -> str:
        """Made anew, however soon it is asked for again."""
        self.context = replace(self.context, single_flight=SingleFlight())
        return self.request(page.page).body.decode()

    def read(self) -> Reader:
        return Reader(self.page)


@pytest.fixture
def scene() -> PagedScene:
    return PagedScene()


# ---- the services


def test_each_service_is_a_row_with_all_that_is_known_of_it(scene: PagedScene) -> None:
    scene.node.register("db", name="Ledger", probe="tcp://db:5432")
    scene.record("db", Verdict.ready("accepts"), duration_s=0.0042)
    scene.buckets["db"] = [Bucket(0, up_s=3590.0, down_s=10.0), Bucket(3600, up_s=1800.0)]
    scene.clock.advance(75)
    assert scene.read().rows == [
        ["Ledger db", "Initializing", "42 s", "no fresh success for 33 s", "1 min ago", "4.2 ms", "99.81 %"]
    ]
    assert scene.queries == [(["db"], HOURS.name)]


def test_what_nobody_looks_at_has_no_latency_and_what_was_never_seen_has_no_look(scene: PagedScene) -> None:
    scene.node.register("reported").up("said so")
    scene.node.register("new", probe="tcp://db:5432")
    new, reported = scene.read().rows
    assert reported == ["reported reported", "Up", "0 s", "said so", "0 s ago", page.EMPTY_CELL, page.EMPTY_CELL]
    assert new == ["new new", "Initializing", "0 s", "no evidence yet", *3 * [page.EMPTY_CELL]]


def test_a_fixed_status_has_no_look_and_is_neither_available_nor_not(scene: PagedScene) -> None:
    scene.node.register("fixed").report(Verdict.ready("set in the configuration", code=ReasonCode.FIXED))
    scene.buckets["fixed"] = [Bucket(0, up_s=3600.0)]
    read = scene.read()
    assert read.rows == [["fixed fixed", "Up", "0 s", "set in the configuration", *3 * [page.EMPTY_CELL]]]
    assert read.attributes("tr", "data-fixed") == [None]


def test_trouble_comes_first_and_otherwise_the_order_of_the_node(scene: PagedScene) -> None:
    for name, verdict in {
        "a": READY,
        "b": Verdict.failed("no"),
        "c": READY,
        "d": Verdict.not_ready("soon"),
        "e": Verdict.failed("no"),
    }.items():
        scene.node.register(name).report(verdict)
    assert [row[0].split()[0] for row in scene.read().rows] == ["b", "e", "d", "a", "c"]
    assert [int(order or 0) for order in scene.read().attributes("tr", "data-order")] == [1, 4, 3, 0, 2]


def test_many_services_stand_in_chunks(scene: PagedScene) -> None:
    for number in range(2 * page.ROWS_PER_CHUNK + 1):
        scene.node.register(f"svc-{number}")
    chunks = re.findall(r'<tbody role="rowgroup" class="chunk">(.*?)</tbody>', scene.page, re.DOTALL)
    assert [chunk.count("<tr") for chunk in chunks] == [page.ROWS_PER_CHUNK, page.ROWS_PER_CHUNK, 1]


def test_a_node_without_services_says_so(scene: PagedScene) -> None:
    assert '<p id="none" class="empty">No services are registered.</p>' in scene.page
    scene.node.register("db")
    assert '<p id="none" class="empty" hidden>' in scene.page


def test_whoever_follows_the_events_from_the_page_on_misses_nothing(
    scene: PagedScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id of the last event is read before the services are."""
    scene.node.register("db")
    scene.history.last_id = 41
    probe_config = scene.node.probe_config

    def change_meanwhile(service_id: str) -> Any:
        scene.history.last_id = 42
        return probe_config(service_id)

    monkeypatch.setattr(scene.node, "probe_config", change_meanwhile)  # which is called while the rows are made
    assert scene.read().attributes("main", "data-event") == ["41"]


# ---- the node


@pytest.mark.parametrize(
    ("verdict", "code", "name", "word"),
    [
        (READY, "200", "healthy", "● Healthy"),
        (Verdict.not_ready("soon"), "206", "partial", "◐ Partially healthy"),
        (Verdict.failed("no"), "503", "unhealthy", "✖ Unhealthy"),
    ],
)
def test_health_is_said_in_the_title_the_icon_and_first_of_all(
    verdict: Verdict, code: str, name: str, word: str, scene: PagedScene
) -> None:
    sign, said = word.split(" ", 1)
    scene.node.register("db").report(verdict)
    text, read = scene.page, scene.read()
    assert f"<title>{sign} validator-7: {said.lower()}</title>" in text
    assert read.attributes("main", "data-health") == [name]
    assert read.attributes("main", "data-code") == [code]
    assert f'<span id="word">{said}</span>' in text
    assert f"static/{name}.svg" in read.attributes("link", "href")
    assert text.index("<h1>") < text.index("<table")


def test_counts_by_status_are_shown(scene: PagedScene) -> None:
    scene.node.register("a").up()
    scene.node.register("b").up()
    scene.node.register("c").down("no")
    words = re.sub(r"\s+", " ", scene.read().text)
    assert "All 3 Down 1 Initializing 0 Up 2" in words


def test_trouble_with_history_and_configuration_is_shown(scene: PagedScene) -> None:
    assert 'class="notice" dir' not in scene.page
    scene.history.problem = f"the disk is full {SCRIPT}"
    scene.process_stats.record_reload("services.db: what?")
    text = scene.page
    assert '<p class="notice" dir="auto">History: the disk is full &lt;script&gt;' in text
    assert "The configuration was not reloaded, the old one is in force: services.db: what?" in text


# ---- what others wrote


def test_what_others_wrote_is_text_wherever_it_stands() -> None:
    scene = PagedScene()
    scene.node.set_identity(name=HOSTILE, version="v1")
    scene.node.register(HOSTILE, name=HOSTILE, description=HOSTILE).down(HOSTILE)
    scene.node.set_issue(HOSTILE)
    scene.history.problem = HOSTILE
    text, read = scene.page, scene.read()
    assert text.count("<script") == 1  # the page's own
    assert read.rows[0][0] == f"{HOSTILE} {HOSTILE}"
    assert read.rows[0][3] == HOSTILE
    assert read.attributes("tr", "data-id") == [HOSTILE]
    assert read.attributes("main", "data-name") == [HOSTILE]
    assert f"● {HOSTILE}: " not in text  # it is not healthy
    assert f"✖ {HOSTILE}: unhealthy" in read.text


HIDING, SEEN = "a\u202eb\u200bc\xa0\U000e0041", r"a\u202eb\u200bc\xa0\U000e0041"


def test_what_hides_or_turns_text_around_is_shown_instead() -> None:
    scene = PagedScene()
    scene.node.set_identity(name=HIDING, version="v1")
    scene.node.register(HIDING, name=HIDING).down(f"{HIDING}\x1b\n")
    scene.node.set_issue(HIDING)
    scene.history.problem = HIDING
    read = scene.read()
    assert read.rows[0][0] == f"{SEEN} {SEEN}"
    assert read.rows[0][3] == SEEN + r"\x1b\n"
    assert f"✖ {SEEN}: unhealthy" in read.text
    assert f"History: {SEEN}" in read.text
    assert not {"\u202e", "\u200b", "\x1b", "\xa0", "\U000e0041"} & set(read.text)
    assert read.attributes("tr", "data-id") == [HIDING], "what the script compares stays as it is"
    assert read.attributes("main", "data-name") == [HIDING]


def test_what_kept_looks_from_counting_is_the_reason_where_none_has_counted(scene: PagedScene) -> None:
    for name in ("a", "b", "c"):
        scene.node.register(name, probe="tcp://db:5432")
    scene.record("a", Verdict.unknown("cannot run /nonexistent/prog"))
    scene.record("b", Verdict.not_ready("syncing"), Verdict.unknown("cannot run /nonexistent/prog"))
    scene.record("c", Verdict.unknown(""))
    assert [row[3] for row in scene.read().rows] == ["cannot run /nonexistent/prog", "syncing", page.NO_EVIDENCE]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x" * 64, "x" * 64),
        ("x" * 65, f"{'x' * 48}…"),
        (f"{'x' * 64}, b", f"{'x' * 48}…, b"),
        (f"{'x' * 256}, {'y' * 256}; z", f"{'x' * 48}…, {'y' * 48}…; z"),
        ("," * 256, f"{',' * 48}…,"),
    ],
)
def test_what_parts_a_word_that_is_cut_from_the_next_stays(text: str, words: str) -> None:
    assert page.shorten_words(text) == words


def test_a_word_that_would_fill_the_headline_is_cut_there_and_nowhere_else(scene: PagedScene) -> None:
    long_id = "x" * 256
    scene.node.register(long_id, impact="critical").down("no")
    text = scene.page
    (why,) = re.findall(r'<p id="why"[^>]*>(.*?)</p>', text)
    assert f"{48 * 'x'}… is Down" in why
    assert 49 * "x" not in why
    assert scene.read().rows[0][0] == f"{long_id} {long_id}"


def test_a_short_id_is_not_broken_at_its_hyphens(scene: PagedScene) -> None:
    for name in ("db-1-replica", "a b-c", "much-too-long-for-one-line"):
        scene.node.register(name)
    assert re.findall(r'class="nowrap">([^<]*)<', scene.page) == ["db-1-replica"]


def test_an_id_in_a_link_leads_back_to_that_id(scene: PagedScene) -> None:
    scene.node.register("a/b?c=d&e#f %2F..")
    (link,) = [href for href in scene.read().attributes("a", "href") if href and href.startswith("details?")]
    assert link == "details?attempts=1&id=a%2Fb%3Fc%3Dd%26e%23f%20%252F.."


# ---- what a browser is told


def test_nothing_may_come_from_elsewhere_or_stand_inline(scene: PagedScene) -> None:
    headers = dict(scene.request(page.page).headers)
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    policy = headers["Content-Security-Policy"].split("; ")
    assert policy[0] == "default-src 'none'"
    assert {"frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'", "script-src 'self'"} < set(policy)
    assert not any(word in " ".join(policy) for word in ("unsafe", "*", "data:", "http"))
    read = scene.read()
    assert not [tag for tag, attributes in read.tags if any(name.startswith(("on", "style")) for name in attributes)]
    assert not [tag for tag, _ in read.tags if tag in ("style", "iframe", "object", "embed", "base", "form")]


def test_all_that_is_needed_is_beside_the_page_wherever_that_is(scene: PagedScene) -> None:
    """A proxy may show the page below a path of its own."""
    read = scene.read()
    named = [*read.attributes("link", "href"), *read.attributes("script", "src"), *read.attributes("a", "href")]
    assert not [one for one in named if one is None or one.startswith("/") or ":" in one]
    assert {one.removeprefix("static/") for one in named if one and one.startswith("static/")} <= set(STATIC_FILES)
    script = b"".join(read_static(name) for name in STATIC_FILES if name.endswith(".js")).decode()
    assert set(re.findall(r'from "\./(.*?)"', script)) <= set(STATIC_FILES)


def test_the_page_is_made_once_for_all_who_ask_within_a_second(scene: PagedScene) -> None:
    scene.node.register("db")

    async def ask_often() -> set[bytes]:
        answers = await asyncio.gather(*(page.page(scene.context, OperatorRequest("GET", b"/"), "") for _ in range(50)))
        return {answer.body for answer in answers}

    assert len(asyncio.run(ask_often())) == 1
    assert len(scene.queries) == 1


# ---- in words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (59.99, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (3600, "1 h"),
        (5400, "1 h 30 min"),
        (86_399, "23 h 59 min"),
        (86_400, "1 d"),
        (200_000, "2 d 7 h"),
    ],
)
def test_a_duration_has_at_most_two_units(seconds: float, words: str) -> None:
    assert page.format_duration(seconds) == words


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [(0.04, "0.0 ms"), (9.94, "9.9 ms"), (9.96, "10 ms"), (999.4, "999 ms"), (999.6, "1.0 s"), (12_345, "12.3 s")],
)
def test_a_latency_has_the_digits_that_matter(milliseconds: float, words: str) -> None:
    assert page.format_latency(milliseconds) == words


@pytest.mark.parametrize(
    ("share", "words"),
    [(1.0, "100 %"), (0.999999, "99.99 %"), (0.5, "50.00 %"), (0.00001, "0.00 %"), (0.0, "0 %")],
)
def test_what_was_down_for_a_second_was_not_up_all_the_time(share: float, words: str) -> None:
    assert page.format_percent(share) == words


def test_time_that_nobody_knows_of_is_neither_up_nor_down() -> None:
    assert page.availability([Bucket(0), Bucket(3600, up_s=30.0, initializing_s=10.0)]) == 0.75
    assert page.availability([Bucket(0), Bucket(3600)]) is None
    assert page.availability([]) is None
