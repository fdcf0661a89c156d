"""The page in Firefox: rows, problems, keyboard, looks, paper, no JavaScript, and axe in each state."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.browser import axe
from tests.support.page_node import PageNode, page_node
from tests.support.servers.firefox import DARK, FORCED_COLOURS, MORE_CONTRAST, Firefox

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.wide

REFUSED = "connection refused"
MAX_PAGES = 8
ROWS = "[...document.querySelectorAll('.chunk tr[data-id]')]"
IDS = f"{ROWS}.map((row) => row.dataset.id)"
STATUSES = f"Object.fromEntries({ROWS}.map((row) => [row.dataset.id, row.dataset.status]))"
FOCUSED = "[document.activeElement.closest('tr')?.dataset.id, document.activeElement.getAttribute('role')]"


@pytest.fixture(scope="module", params=[{}, DARK], ids=["light", "dark"])
def firefox(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    with Firefox(tmp_path_factory.mktemp("firefox"), request.param) as firefox:
        yield firefox


@pytest.fixture
def node() -> Iterator[PageNode]:
    with page_node(12) as node:
        yield node


def row(service_id: str) -> str:
    return f"document.querySelector('tr[data-id={json.dumps(service_id)}]')"


def violations(firefox: Firefox, run: str = axe.RUN) -> list[str]:
    firefox.execute(axe.source())
    found: list[str] = firefox.evaluate(run)
    return found


def test_rows_and_problems_follow_the_node(firefox: Firefox, node: PageNode) -> None:
    firefox.open(node.url)
    assert firefox.evaluate(STATUSES) == node.statuses
    firefox.wait_for("document.querySelector('#node').dataset.connection === 'live'")
    node.handles[5].down(REFUSED)
    node.node.register("new").initializing("warming up")
    node.handles[11].deregister()
    firefox.wait_for(f"{row('svc-5')}.dataset.status === 'Down' && {row('new')} && !{row('svc-11')}")
    assert firefox.evaluate(STATUSES) == node.statuses
    firefox.wait_for(f"({IDS}).slice(0, 2).join() === 'svc-5,new'")
    titles = "[...document.querySelectorAll('#problems .title')].map((title) => title.textContent)"
    assert firefox.evaluate(titles) == ["svc-5", "new"]


def test_each_row_is_one_tab_stop_and_arrow_keys_move_in_the_table(firefox: Firefox, node: PageNode) -> None:
    firefox.open(node.url)
    firefox.wait_for(f"{row('svc-2')}.querySelector('.bars')")
    firefox.press("Tab", "Enter")
    assert firefox.evaluate("document.activeElement.id") == "services"
    firefox.execute("document.querySelector('#availability-head').focus()")
    firefox.press("Tab", "Tab")
    assert firefox.evaluate(FOCUSED) == ["svc-1", "button"]
    firefox.press("ArrowDown", "ArrowRight")
    assert firefox.evaluate(FOCUSED) == ["svc-2", "slider"]
    node.handles[9].down(REFUSED)
    firefox.wait_for("!document.querySelector('#order-note').hidden")
    assert firefox.evaluate(f"({IDS})[0]") == "svc-0"
    firefox.press("Escape", "Enter")
    firefox.wait_for("document.querySelectorAll('.panel section').length === 3")
    firefox.execute("document.activeElement.blur()")
    firefox.wait_for(f"({IDS})[0] === 'svc-9'")


def test_axe_finds_nothing_in_any_state(firefox: Firefox, node: PageNode) -> None:
    with page_node(0) as empty_node:
        firefox.open(empty_node.url)
        found = {"no services": violations(firefox)}
    firefox.open(node.url)
    firefox.wait_for(f"{row('svc-0')}.querySelector('.bars')")
    found["healthy"] = violations(firefox)
    node.handles[5].down(REFUSED)
    node.handles[7].initializing("warming up")
    firefox.wait_for("document.querySelectorAll('#problems .title').length === 2")
    firefox.execute(f"{row('svc-5')}.querySelector('a').click()")
    firefox.wait_for("document.querySelectorAll('.panel section').length === 3")
    found["problems, expanded"] = violations(firefox)
    assert found == {state: [] for state in found}


def test_a_lost_node_keeps_its_notice_in_view(firefox: Firefox) -> None:
    with page_node(12) as node:
        firefox.open(node.url)
        firefox.wait_for(f"{row('svc-0')}.querySelector('.bars')")
    firefox.wait_for("document.querySelector('#node').dataset.connection === 'lost'")
    assert violations(firefox) == []
    firefox.execute("scrollTo(0, 400)")
    firefox.wait_for("scrollY > 200")
    assert firefox.evaluate("document.querySelector('#connection-lost').getBoundingClientRect().top") == 0


# ---- looks


@pytest.fixture(scope="module")
def changeable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    """Tests change how it shows pages."""
    with Firefox(tmp_path_factory.mktemp("changeable")) as firefox:
        yield firefox


@pytest.fixture
def looks(changeable: Firefox) -> Iterator[Firefox]:
    yield changeable
    changeable.in_browser(
        "context.mediumOverride = ''; context.allowJavascript = true;"
        f"for (const name of {json.dumps([*FORCED_COLOURS, *MORE_CONTRAST])}) Services.prefs.clearUserPref(name);"
    )


@pytest.fixture
def troubled(node: PageNode) -> PageNode:
    """`svc-5` is Down, and `svc-7` is Initializing."""
    node.handles[5].down(REFUSED)
    node.handles[7].initializing("warming up")
    return node


def prefer(firefox: Firefox, preferences: dict[str, int], query: str) -> None:
    """The page follows at once."""
    lines = (f"Services.prefs.setIntPref({json.dumps(name)}, {value});" for name, value in preferences.items())
    firefox.in_browser("".join(lines))
    firefox.wait_for(f"matchMedia({json.dumps(query)}).matches")


def mark(status: str) -> str:
    element = f"document.querySelector('.chunk [data-status={status}] .status')"
    return f"getComputedStyle({element}, '::before').content"


def test_forced_colours_show_state_selection_and_order(looks: Firefox, troubled: PageNode) -> None:
    looks.open(troubled.url)
    prefer(looks, FORCED_COLOURS, "(forced-colors: active)")
    assert [looks.evaluate(mark(status))[1] for status in ("Up", "Initializing", "Down")] == ["●", "◐", "✖"]
    assert "▲" in looks.evaluate("getComputedStyle(document.querySelector('[aria-sort] button'), '::after').content")
    spans = "[...document.querySelectorAll('#statuses span')]"
    grounds = looks.evaluate(f"{spans}.map((one) => getComputedStyle(one).backgroundColor)")
    assert grounds.count(grounds[0]) == 1  # that of the selected one
    assert violations(looks) == []


def test_more_contrast_is_at_least_seven_to_one(looks: Firefox, troubled: PageNode) -> None:
    looks.open(troubled.url)
    prefer(looks, MORE_CONTRAST, "(prefers-contrast: more) and (forced-colors: none)")
    assert violations(looks) == []
    assert violations(looks, axe.RUN_ENHANCED) == []


def test_two_hundred_services_are_a_table_on_at_most_eight_pages(looks: Firefox) -> None:
    with page_node(200) as node:
        for handle in node.handles[::10]:
            handle.down("connection refused at 10.0.0.5:5432")
        looks.open(node.url)
        assert 2 <= looks.print_pages() <= MAX_PAGES
        looks.in_browser("context.mediumOverride = 'print'")
        looks.wait_for("matchMedia('print').matches")
        assert looks.evaluate("getComputedStyle(document.querySelector('.chunk tr')).display") == "table-row"
        assert looks.evaluate("getComputedStyle(document.querySelector('.toolbar')).display") == "none"
        assert looks.evaluate(mark("Down"))[1] == "✖"
        assert violations(looks) == []


def test_without_javascript_the_page_is_whole(looks: Firefox, troubled: PageNode) -> None:
    looks.in_browser("context.allowJavascript = false")
    looks.load(troubled.url)
    looks.in_browser("context.allowJavascript = true")  # for this test; the page has loaded without it
    assert not looks.evaluate("document.querySelector('main').classList.contains('enhanced')")
    assert looks.evaluate(STATUSES) == troubled.statuses
    assert looks.evaluate("document.querySelector('main > noscript p').getClientRects().length") == 1
    assert violations(looks, axe.RUN_WITHOUT_SCRIPT) == []
    looks.load(looks.evaluate("document.querySelector('#problems .to-do a').href"))
    assert looks.evaluate("document.querySelectorAll('#timeline .outages a').length") > 0
    assert violations(looks) == []
