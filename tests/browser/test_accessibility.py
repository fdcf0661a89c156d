"""The page for everyone's eyes and hands: keyboard, contrast, forced colours, wide screens, paper, axe."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from tests.browser import axe
from tests.browser.page_object import STANDARD_MEDIA
from tests.browser.situations import ALL_DOWN, OUTAGE, begin, node_with_past
from tests.support.page_node import PageNode, page_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.browser.page_object import NodePage

    OpenPage = Callable[..., NodePage]

REFUSED = "connection refused"
CONTRAST = {"contrast": "more"}
MAX_PAGES = 8
WIDE = 3840
# The two of a row: the triangle of a sorted column, and what is before the word of a status.
PSEUDO = "(element, part) => getComputedStyle(element, part).content"


@pytest.fixture(scope="module")
def module_node() -> Iterator[PageNode]:
    with page_node(12) as node:
        yield node


@pytest.fixture
def node(module_node: PageNode) -> Iterator[PageNode]:
    """Healthy, with the services `svc-0` to `svc-11`."""
    yield module_node
    for handle in module_node.handles:
        handle.up()
    for service_id in module_node.statuses.keys() - {handle.id for handle in module_node.handles}:
        module_node.node.deregister(service_id)


@pytest.fixture(scope="module")
def empty_node() -> Iterator[PageNode]:
    with page_node(0) as node:
        yield node


@pytest.fixture
def troubled(node: PageNode) -> PageNode:
    """`svc-5` and `svc-6` are Down, and `svc-7` is Initializing."""
    for number in (5, 6):
        node.handles[number].down(REFUSED)
    node.handles[7].initializing("warming up")
    return node


def violations(node_page: NodePage, run: str = axe.RUN) -> list[str]:
    node_page.page.evaluate(axe.source())
    found: list[str] = node_page.page.evaluate(run)
    return found


def lose(node_page: NodePage) -> None:
    """The node does not answer any more."""
    node_page.allow_disconnect()
    node_page.page.route("**/page/*", lambda route: route.abort())
    node_page.break_stream()
    node_page.expect_connection("lost")


# ---- axe

LIGHT: dict[str, Any] = {}
DARK = {"color_scheme": "dark"}


@pytest.mark.parametrize("media", [LIGHT, DARK, CONTRAST, DARK | CONTRAST], ids=["light", "dark", "more", "dark-more"])
def test_axe_finds_nothing_in_any_state(
    node: PageNode, empty_node: PageNode, open_page: OpenPage, media: dict[str, str]
) -> None:
    runs = [axe.RUN, axe.RUN_ENHANCED] if "contrast" in media else [axe.RUN]
    node_page = open_page(empty_node.url)
    page = node_page.page
    page.emulate_media(**(STANDARD_MEDIA | media))
    found = {"no services": [violations(node_page, run) for run in runs]}
    page.goto(node.url)
    node_page.wait_for_bars("svc-0")
    found["healthy"] = [violations(node_page, run) for run in runs]
    for number in (5, 6):
        node.handles[number].down(REFUSED)
    node.handles[7].initializing("warming up")
    node_page.expect_status("svc-7", "Initializing")
    expect(page.locator("#problems .title")).to_have_count(3)
    found["problems"] = [violations(node_page, run) for run in runs]
    node_page.row("svc-5").get_by_role("button").click()
    expect(node_page.panel("svc-5").locator("section")).to_have_count(3)
    found["expanded"] = [violations(node_page, run) for run in runs]
    lose(node_page)
    found["lost"] = [violations(node_page, run) for run in runs]
    assert found == {state: [[] for _ in runs] for state in found}


# ---- keyboard


def focused(node_page: NodePage) -> tuple[str | None, str]:
    """The row, and the part of it."""
    read = """() => {
      const { activeElement: element } = document;
      const row = element.closest("tr");
      return [row?.dataset.id ?? row?.dataset.group ?? null, element.getAttribute("role") ?? element.className];
    }"""
    row, part = node_page.page.evaluate(read)
    return row, part


def test_the_skip_link_leads_to_the_table_and_keeps_the_view(troubled: PageNode, open_page: OpenPage) -> None:
    node_page = open_page(f"{troubled.url}#q=svc")
    page = node_page.page
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the services")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("#services")).to_be_focused()
    assert page.url.endswith("#q=svc")
    static = open_page(troubled.url, has_script=False)
    static.page.keyboard.press("Tab")
    static.page.keyboard.press("Enter")
    expect(static.page).to_have_url(f"{troubled.url}#services")


def test_each_row_is_one_tab_stop_and_arrow_keys_move_in_the_table(node: PageNode, open_page: OpenPage) -> None:
    tagged = node.node.register("tagged", tags=["eu", "tier-1"], group="search")
    tagged.up()
    node_page = open_page(node.url)
    page = node_page.page
    node_page.wait_for_bars("svc-1")
    press = page.keyboard.press
    page.get_by_role("button", name="Available").focus()
    for row in ("svc-0", "svc-1", "svc-2"):
        press("Tab")
        assert focused(node_page) == (row, "button")
    press("ArrowUp")
    assert focused(node_page) == ("svc-1", "button")
    press("ArrowRight")
    assert focused(node_page) == ("svc-1", "slider")
    press("ArrowLeft")  # moves the cursor of the bars
    assert focused(node_page) == ("svc-1", "slider")
    expect(node_page.tooltip).to_be_visible()
    press("ArrowDown")
    assert focused(node_page) == ("svc-2", "slider")
    press("Escape")
    assert focused(node_page) == ("svc-2", "button")
    press("End")
    assert focused(node_page) == ("tagged", "button")
    for part in ("tag", "tag", "slider"):
        press("ArrowRight")
        assert focused(node_page) == ("tagged", part)
    press("Shift+Tab")
    assert focused(node_page)[0] == "search"
    press("Tab")
    assert focused(node_page) == ("tagged", "slider")  # where it was
    press("Home")
    press("Escape")
    press("Home")
    assert focused(node_page) == ("svc-0", "button")


def test_a_list_of_an_expanded_row_keeps_the_focus_while_it_is_painted_again(
    troubled: PageNode, open_page: OpenPage
) -> None:
    node_page = open_page(troubled.url)
    node_page.row("svc-5").get_by_role("button").click()
    changes = node_page.panel("svc-5").get_by_role("group", name="Status changes")
    changes.focus()
    before = changes.get_by_role("listitem").count()
    troubled.handles[5].initializing("warming up")
    expect(changes.get_by_role("listitem")).to_have_count(before + 1)
    expect(changes).to_be_focused()


# ---- order


@pytest.mark.parametrize("by", ["pointer", "focus"])
def test_rows_stay_in_place_while_pointer_or_focus_is_on_them(node: PageNode, open_page: OpenPage, by: str) -> None:
    node_page = open_page(node.url)
    note = node_page.page.locator("#order-note")
    before = node_page.service_ids
    if by == "pointer":
        node_page.cell("svc-7", 2).hover()  # the problems that come above push the rows down
    else:
        node_page.row("svc-2").get_by_role("button").focus()
    node.handles[9].down(REFUSED)
    node_page.expect_status("svc-9", "Down")
    expect(note).to_be_visible()
    assert node_page.service_ids == before

    new = node.node.register("new")
    new.down(REFUSED)
    node_page.expect_ids(*before, "new")
    node_page.leave_table()
    node_page.expect_ids("svc-9", "new", *(one for one in before if one != "svc-9"))
    expect(note).to_be_hidden()


def test_the_reader_can_sort_while_rows_stay_in_place(node: PageNode, open_page: OpenPage) -> None:
    node_page = open_page(node.url)
    node_page.row("svc-2").get_by_role("button").focus()
    node.handles[9].down(REFUSED)
    expect(node_page.page.locator("#order-note")).to_be_visible()
    for _ in range(2):
        node_page.page.get_by_role("columnheader", name="Status").get_by_role("button").click()
    expect(node_page.page.locator(".chunk tr").first).to_have_attribute("data-id", "svc-9")
    expect(node_page.page.locator("#order-note")).to_be_hidden()


def test_a_changed_row_keeps_its_name_and_its_tags(node: PageNode, open_page: OpenPage) -> None:
    tagged = node.node.register("tagged", tags=["eu", "tier-1"])
    tagged.up()
    node_page = open_page(node.url)
    tagged.down(REFUSED)
    node_page.expect_status("tagged", "Down")
    expect(node_page.row("tagged").get_by_role("button")).to_have_text("tagged")
    expect(node_page.row("tagged").locator(".tag")).to_have_text(["eu", "tier-1"])


# ---- screens


def test_the_notice_of_a_lost_node_stays_in_view_above_the_heads(troubled: PageNode, open_page: OpenPage) -> None:
    node_page = open_page(troubled.url)
    lose(node_page)
    node_page.page.evaluate("scrollTo(0, 500)")
    assert node_page.page.evaluate("scrollY") > 300
    notice = node_page.page.locator("#connection-lost").bounding_box()
    toolbar = node_page.page.locator(".toolbar").bounding_box()
    assert notice is not None
    assert toolbar is not None
    assert notice["y"] == 0
    assert notice["height"] <= toolbar["y"]


def test_a_very_wide_screen_is_used(troubled: PageNode, open_page: OpenPage) -> None:
    node_page = open_page(troubled.url, width=WIDE)
    table = node_page.page.locator("#services").bounding_box()
    assert table is not None
    assert table["width"] > 0.9 * WIDE
    assert not node_page.overflows_viewport


def test_forced_colours_show_state_selection_and_order(troubled: PageNode, open_page: OpenPage) -> None:
    node_page = open_page(troubled.url)
    page = node_page.page
    page.emulate_media(**(STANDARD_MEDIA | {"forced_colors": "active"}))
    marks = {
        status: page.locator(f".chunk [data-status={status}] .status").first.evaluate(PSEUDO, "::before")
        for status in ("Up", "Initializing", "Down")
    }
    assert [mark[1] for mark in marks.values()] == ["●", "◐", "✖"]
    order = page.locator("[aria-sort] button")
    assert "▲" in order.evaluate(PSEUDO, "::after")
    order.click()
    assert "▼" in order.evaluate(PSEUDO, "::after")
    grounds = page.locator("#statuses span").evaluate_all(
        "all => all.map(one => getComputedStyle(one).backgroundColor)"
    )
    assert grounds.count(grounds[0]) == 1  # that of the selected one


# ---- paper


@pytest.mark.parametrize("situation", [OUTAGE, ALL_DOWN])
def test_two_hundred_services_are_a_table_on_at_most_eight_pages(
    open_page: OpenPage, tmp_path: Path, situation: str
) -> None:
    with node_with_past(200, tmp_path / "history.db") as node:
        begin(situation, node)
        node_page = open_page(node.url)
        page = node_page.page
        for shown in (node_page, open_page(node.url, has_script=False)):
            shown.page.emulate_media(media="print", color_scheme="dark")
            pdf = shown.page.pdf(format="A4")
            assert len(re.findall(rb"/Type\s*/Page\b", pdf)) <= MAX_PAGES
        expect(page.locator(".toolbar")).to_be_hidden()
        expect(page.locator(".bars").first).to_be_hidden()
        expect(page.locator("#state-at")).to_have_text(re.compile(r"\b20\d\d\b.*\d\d:\d\d:\d\d"))
        assert page.evaluate("getComputedStyle(document.querySelector('.chunk tr')).display") == "table-row"
        heads = page.locator("thead button").evaluate_all("all => all.map((one) => getComputedStyle(one).display)")
        assert set(heads) == {"contents"}  # Chromium repeats the head on each page, but leaves out buttons
        mark = page.locator(".chunk [data-status=Down] .status").first.evaluate(PSEUDO, "::before")
        assert mark[1] == "✖"
        node_page.leave()
