"""The page while much changes, on a slow connection, and across restarts: rows are right, nothing is loaded again."""

from __future__ import annotations

import itertools
import random
import string
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Route, expect

from tests.support.page_node import Changes, PageNode, page_node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.browser.page_object import NodePage

    OpenPage = Callable[..., NodePage]

CHANGES_PER_S = 50
SLOW_BYTES_PER_S = 400_000 // 8
READ_STATUSES = "rows => Object.fromEntries(rows.map(row => [row.dataset.id, row.dataset.status]))"


@pytest.fixture(scope="module")
def busy_node() -> Iterator[PageNode]:
    with page_node(200) as node:
        yield node


def shown_statuses(node_page: NodePage) -> dict[str, str]:
    found: dict[str, str] = node_page.page.eval_on_selector_all("tr[data-id]", READ_STATUSES)
    return found


def open_once(open_page: OpenPage, node: PageNode) -> NodePage:
    node_page = open_page(node.url)
    node_page.expect_connection("live")
    node_page.page.evaluate("window.isSamePage = true")
    return node_page


def expect_was_loaded_once(node_page: NodePage, node: PageNode) -> None:
    assert node_page.page.evaluate("window.isSamePage")
    assert node_page.requests.count(node.url) == 1


def test_a_new_service_gets_its_row_while_others_change_many_times_a_second(
    busy_node: PageNode, open_page: OpenPage
) -> None:
    node_page = open_once(open_page, busy_node)
    with Changes(busy_node.handles, CHANGES_PER_S):
        node_page.page.wait_for_timeout(1000)
        handle = busy_node.node.register("ledger", name="Ledger database", impact="critical")
        handle.down("connection refused")
        node_page.row("ledger").wait_for()
        node_page.expect_status("ledger", "Down")
        node_page.expect_health("unhealthy")
        expect(node_page.page.locator("#problems .title").first).to_have_text("Ledger database")
        node_page.expect_connection("live")
        handle.deregister()
        node_page.row("ledger").wait_for(state="detached")
    statuses = busy_node.statuses
    node_page.page.wait_for_function(
        f"expected => {{ const shown = ({READ_STATUSES})([...document.querySelectorAll('tr[data-id]')]);"
        " return Object.keys(expected).every(id => shown[id] === expected[id]); }",
        arg=statuses,
    )
    assert shown_statuses(node_page) == statuses
    down = sum(status == "Down" for status in statuses.values())
    expect(node_page.page.get_by_label(f"Down {down}")).to_be_attached()
    expect_was_loaded_once(node_page, busy_node)


def test_on_a_slow_connection_the_page_says_that_it_is_behind_and_catches_up(open_page: OpenPage) -> None:
    chance = random.Random(1)
    with page_node(1000) as node:
        node_page = open_once(open_page, node)
        session = node_page.page.context.new_cdp_session(node_page.page)
        slow = {"offline": False, "latency": 200, "downloadThroughput": SLOW_BYTES_PER_S, "uploadThroughput": -1}
        session.send("Network.enable")
        session.send("Network.emulateNetworkConditions", slow)
        for handle in node.handles:
            handle.down("".join(chance.choices(string.ascii_letters, k=400)))
        node_page.expect_connection("behind")
        expect(node_page.page.locator("#connection-behind")).to_be_visible()
        node_page.page.wait_for_function("() => document.querySelectorAll('tr[data-status=Down]').length === 1000")
        node_page.expect_connection("live")
        expect(node_page.page.locator("#connection-behind")).to_be_hidden()
        node_page.expect_health("unhealthy")
        expect(node_page.page.get_by_label("Down 1000")).to_be_attached()
        expect_was_loaded_once(node_page, node)
        session.detach()
        node_page.leave()


def test_after_a_restart_of_the_node_rows_that_are_gone_go_and_new_ones_come(open_page: OpenPage) -> None:
    with page_node(3, prefix="old") as node:
        node_page = open_once(open_page, node)
        node_page.allow_disconnect()
        node_page.expect_ids("old-0", "old-1", "old-2")
        node_page.row("old-1").get_by_role("button").click()
        expect(node_page.panel("old-1").locator("section")).to_have_count(3)
        node_page.leave_table()
        port = node.port
    node_page.expect_health("unknown")
    with page_node(2, prefix="old", port=port) as node:
        node.node.register("new").down("refused")
        node_page.expect_health("partial")
        node_page.expect_ids("new", "old-0", "old-1")
        expect(node_page.row("old-1").get_by_role("button")).to_have_attribute("aria-expanded", "true")
        node_page.expect_connection("live")
        expect_was_loaded_once(node_page, node)
        node_page.leave()


def test_services_and_groups_come_and_go_one_by_one(busy_node: PageNode, open_page: OpenPage) -> None:
    node_page = open_once(open_page, busy_node)
    node_page.page.locator("#filter").fill("shard")
    node_page.expect_ids()
    handles = []
    for number in range(3):
        handles.append(busy_node.node.register(f"shard-{number}", group=f"Region <{number % 2}>"))
        node_page.row(f"shard-{number}").wait_for()
    assert node_page.rows == ["Region <0>", "shard-0", "shard-2", "Region <1>", "shard-1"]
    expect(node_page.group("Region <0>")).to_contain_text("2 Initializing")
    handles[1].deregister()
    node_page.row("shard-1").wait_for(state="detached")
    expect(node_page.group("Region <1>")).to_have_count(0)
    assert node_page.rows == ["Region <0>", "shard-0", "shard-2"]
    for handle in (handles[0], handles[2]):
        handle.deregister()
    node_page.expect_ids()
    expect(node_page.page.locator("#toggle-groups")).to_be_hidden()
    expect_was_loaded_once(node_page, busy_node)


def test_focus_and_selected_text_stay_while_rows_and_sections_change(busy_node: PageNode, open_page: OpenPage) -> None:
    node_page = open_once(open_page, busy_node)
    busy_node.node.overrides.set_issue("disk")
    expect(node_page.page.locator("#health-reason")).to_contain_text("disk")
    node_page.page.locator("#filter").fill("svc-7")
    link = node_page.row("svc-7").get_by_role("button")
    link.focus()
    handle = busy_node.handles[7]
    for report, status in ((handle.down, "Down"), (handle.up, "Up")):
        report("for a test")
        node_page.expect_status("svc-7", status)
        expect(link).to_be_focused()
    select = "getSelection().selectAllChildren(document.getElementById('health-reason'))"
    node_page.page.evaluate(select)
    busy_node.node.overrides.set_issue("memory")
    handle.down("now")
    node_page.expect_status("svc-7", "Down")
    assert "disk" in node_page.page.evaluate("getSelection().toString()")
    node_page.page.evaluate("getSelection().removeAllRanges()")
    expect(node_page.page.locator("#health-reason")).to_contain_text("memory")
    handle.up()
    for issue in ("disk", "memory"):
        busy_node.node.overrides.clear_issue(issue)
    expect(node_page.page.locator("#health-reason")).not_to_contain_text("memory")


def test_failed_requests_are_repeated_at_growing_intervals_and_the_page_is_not_live_meanwhile(
    busy_node: PageNode, open_page: OpenPage
) -> None:
    node_page = open_page(busy_node.url, has_clock=True)
    node_page.expect_connection("live")
    node_page.allow_disconnect()
    node_page.page.evaluate("Math.random = () => 0.5")  # no jitter
    attempts_s: list[int] = []
    second = 0

    def refuse(route: Route) -> None:
        attempts_s.append(second)
        route.fulfill(status=503)

    node_page.page.route("**/page/changes?*", refuse)
    node_page.page.clock.pause_at(node_page.page.evaluate("Date.now()") + 1000)
    for second in range(45):  # noqa: B007  `refuse` reads it
        node_page.page.clock.run_for(1000)
        node_page.page.wait_for_timeout(50)  # for the response
    waits_s = [after - before for before, after in itertools.pairwise(attempts_s)]
    assert waits_s == sorted(waits_s)
    assert waits_s[0] < 4
    assert waits_s[-1] >= 8
    expect(node_page.page.locator("#node")).not_to_have_attribute("data-connection", "live")
    node_page.page.unroute_all()
    node_page.page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    node_page.expect_connection("live")
