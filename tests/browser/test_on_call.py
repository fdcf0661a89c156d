"""What somebody asks who is woken at night: each answer is on the first screen, or one click away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.browser.situations import OUTAGE, RUNBOOK, begin, node_with_past

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Locator

    from tests.browser.page_object import NodePage
    from tests.support.page_node import PageNode

    OpenPage = Callable[..., NodePage]

PHONE = 360
LAPTOP = 1280
# Of the first problem.
ON_THE_FIRST_SCREEN = {
    "what is broken": ".title",
    "since when": "time[datetime]",
    "why": ".reason",
    "cause or effect, and who else": ".effects",
    "what do I do": ".to-do",
    "where is it written": f".to-do a[href='{RUNBOOK}']",
    "has it happened before": ".often",
    "who has it": ".acknowledged",
}


@pytest.fixture(scope="module")
def outage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageNode]:
    with node_with_past(200, tmp_path_factory.mktemp("on-call") / "history.db") as node:
        begin(OUTAGE, node)
        yield node


def first_problem(node_page: NodePage) -> Locator:
    return node_page.page.locator("#problems li[data-impact]").first


@pytest.mark.parametrize("width", [PHONE, LAPTOP])
@pytest.mark.parametrize("has_script", [True, False])
def test_the_first_screen_has_the_first_problem_with_its_answers(
    outage: PageNode, open_page: OpenPage, width: int, has_script: bool
) -> None:
    node_page = open_page(outage.url, width=width, has_script=has_script)
    problem = first_problem(node_page)
    expect(problem).to_have_attribute("data-status", "Down")
    expect(problem).to_have_attribute("data-impact", "critical")
    for question, selector in ON_THE_FIRST_SCREEN.items():
        answer = problem.locator(selector)
        assert answer.inner_text(), question
        expect(answer, question).to_be_in_viewport(ratio=1)


def test_one_click_shows_what_has_changed_and_what_happened_before(outage: PageNode, open_page: OpenPage) -> None:
    node_page = open_page(outage.url)
    first_problem(node_page).get_by_role("link", name="history").click()
    expect(node_page.page.locator("#timeline .lane.events a", has_text="deployed")).to_be_in_viewport()
    expect(node_page.page.locator("#timeline .lane.outages a")).to_have_count(2)


def test_one_click_shows_whether_it_gets_better(outage: PageNode, open_page: OpenPage) -> None:
    node_page = open_page(outage.url)
    first_problem(node_page).locator(".title").click()
    node_page.expect_ids("ledger")
    expect(node_page.row("ledger")).to_be_in_viewport(ratio=1)
    expect(node_page.panel("ledger").get_by_role("group", name="Recent checks")).to_be_in_viewport()
    expect(node_page.panel("ledger").get_by_role("group", name="Status changes")).to_be_in_viewport()


def test_one_click_shows_the_services_that_fail_alike(outage: PageNode, open_page: OpenPage) -> None:
    node_page = open_page(outage.url, has_script=False)
    members = node_page.page.locator("#problems details[id^='members-']").first
    members.locator("summary").click()
    expect(members.get_by_role("link").first).to_be_in_viewport()
