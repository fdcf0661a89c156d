"""Problems come first on the page: causes with effects, equal ones folded, groups as tiles; also without JavaScript."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.browser.test_page import HEAD, PHONE_WIDTH, SwitchableServer, service, url_of
from tests.support.processes import Agent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.browser.page_object import NodePage

    OpenPage = Callable[..., NodePage]

REFUSED = "tcp://127.0.0.1:1"
RUNBOOK = "https://wiki.example.com/ledger"
EVIL = "<b>&\u202eevil"


@pytest.fixture(scope="module")
def server() -> Iterator[SwitchableServer]:
    with SwitchableServer() as server:
        server.is_healthy = False
        yield server


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory, server: SwitchableServer) -> Iterator[Agent]:
    shards = [service(f"shard-{number}", name=f"Shard {number}", group="search", probe=REFUSED) for number in range(4)]
    ledger = {"probe": server.url, "rise": 1, "fall": 1, "interval": "200ms", "timeout": "190ms"}
    services = (
        service("api", name="Block API", group="chain", impact="critical", depends_on=["db"], probe=REFUSED),
        service("db", name="Ledger", group="storage", runbook=RUNBOOK, **ledger),
        service("evil", name=EVIL, group=EVIL, status="Initializing"),
        *shards,
        service("core", name="Core", group="core", tags=["eu", "tier-1"], status="Up"),
        service("disk", name="Disk", group="storage", status="Up"),
    )
    with Agent(tmp_path_factory.mktemp("problems"), config=HEAD + "".join(services)) as agent:
        agent.wait_until(lambda: sorted(agent.statuses().values()).count("Down") == 6)
        yield agent


def in_view(node_page: NodePage, selector: str) -> bool:
    box = node_page.page.locator(selector).first.bounding_box()
    assert box is not None
    size = node_page.page.viewport_size
    assert size is not None
    return box["y"] + box["height"] <= size["height"] and box["x"] + box["width"] <= size["width"]


def top(node_page: NodePage, selector: str) -> float:
    box = node_page.page.locator(selector).bounding_box()
    assert box is not None
    return box["y"]


@pytest.mark.parametrize("has_script", [True, False])
def test_problems_are_above_the_table_with_what_to_do(agent: Agent, open_page: OpenPage, has_script: bool) -> None:
    node_page = open_page(url_of(agent), has_script=has_script)
    problems = node_page.page.locator("#problems > ul:not(.tiles) > li")
    titles = problems.locator(".title")
    expect(titles).to_have_text(["Ledger", "4 in search", r"<b>&\u202eevil"])
    expect(problems.first).to_contain_text("affects Block API (critical) +")
    expect(problems.first.get_by_role("link", name="runbook")).to_have_attribute("href", RUNBOOK)
    members = problems.nth(1).locator("details")
    expect(members.get_by_role("link", name="Shard 3")).to_be_hidden()
    members.locator("summary").click()
    expect(members.get_by_role("link", name="Shard 3")).to_be_visible()
    assert top(node_page, "#problems") < top(node_page, "table")
    expect(node_page.page.locator("#health-reason")).not_to_contain_text("api")
    node_page.page.locator("#green-groups summary").click()
    expect(node_page.page.locator("#green-groups .tiles")).to_have_text("core 1/1")


def test_on_a_phone_the_first_problem_is_on_the_first_screen(agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(agent), width=PHONE_WIDTH)
    assert in_view(node_page, "#problems .title")
    assert in_view(node_page, "#problems .effects")
    assert node_page.page.evaluate("document.documentElement.scrollWidth") == PHONE_WIDTH


def test_a_tile_filters_the_table(agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(agent))
    tile = node_page.page.locator("#problems .tiles").first.get_by_role("link", name="search")
    expect(tile).to_have_text("search 0/4")
    tile.click()
    node_page.expect_ids("shard-0", "shard-1", "shard-2", "shard-3")


@pytest.mark.parametrize("has_script", [True, False])
def test_a_problem_and_a_tile_lead_to_rows(agent: Agent, open_page: OpenPage, has_script: bool) -> None:
    node_page = open_page(url_of(agent), has_script=has_script)
    node_page.page.set_viewport_size({"width": PHONE_WIDTH, "height": 740})
    for link, row in (
        (node_page.page.locator("#problems .title", has_text="Ledger"), node_page.row("db")),
        (
            node_page.page.locator("#problems .tiles").first.get_by_role("link", name="search"),
            node_page.group("search"),
        ),
    ):
        link.click()
        expect(row).to_be_in_viewport(ratio=1)
    expect(node_page.panel("db")).to_have_count(1 if has_script else 0)


def test_problems_follow_the_node_and_what_is_open_stays_open(
    agent: Agent, open_page: OpenPage, server: SwitchableServer
) -> None:
    node_page = open_page(url_of(agent))
    titles = node_page.page.locator("#problems .title")
    node_page.page.locator("#problems > ul details summary").click()
    server.is_healthy = True
    expect(titles).to_have_text(["Block API", "4 in search", r"<b>&\u202eevil"])
    expect(node_page.page.get_by_role("link", name="Shard 3").first).to_be_visible()
    server.is_healthy = False
    expect(titles).to_have_text(["Ledger", "4 in search", r"<b>&\u202eevil"])


def test_a_click_on_a_tag_filters_the_table_and_does_not_open_the_row(agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(agent))
    node_page.row("core").get_by_role("link", name="tier-1").click()
    node_page.expect_ids("core")
    expect(node_page.page.locator("#filter")).to_have_value("tier-1")
    expect(node_page.panel("core")).to_have_count(0)
