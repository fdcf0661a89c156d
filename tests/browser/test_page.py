"""The page in a browser: it comes to life, follows the node, and is used with mouse, finger, keyboard and ears."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Page, Route, expect

from svcnode.operator.page import EMPTY_CELL
from tests.support.backends import Backend, HttpBackend, close, http_response
from tests.support.nginx_proxy import nginx_in_front_of
from tests.support.processes import Agent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.browser.page_object import NodePage

    OpenPage = Callable[..., NodePage]

HEAD = """
[node]
name = "validator-7"
version = "v1.4.2"
[server]
listen = ["127.0.0.1:0"]
[defaults]
interval = "200ms"
transition_interval = "50ms"
start_period = "0s"
stale_after = "60s"
"""


def service(service_id: str, **words: object) -> str:
    given = {"id": service_id, **words}
    lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in given.items())
    return "\n".join(["[[services]]", *lines, ""])


class SwitchableServer(HttpBackend):
    """A server that is well or not, as it is told."""

    def __init__(self) -> None:
        super().__init__(lambda _: http_response(200 if self.is_healthy else 500))
        self.is_healthy = True
        self.url = f"http://{self.address}/ready"


@pytest.fixture
def switch() -> Iterator[SwitchableServer]:
    with SwitchableServer() as switch:
        yield switch


@pytest.fixture(scope="module")
def steady_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """A node that some tests share: what it looks at does not change."""
    with Backend(close) as backend:
        config = HEAD + "".join(
            (
                service("ledger", name="Ledger database", probe=f"tcp://{backend.address}", impact="critical"),
                service("chain", name="Execution client", description="Follows <the> chain", probe="tcp://127.0.0.1:1"),
                service("cache", name="cache 10", probe=f"tcp://{backend.address}"),
                service("queue", name="cache 9", status="Initializing"),
                service("indexer", name="Indexer", status="Up"),
            )
        )
        with Agent(tmp_path_factory.mktemp("steady_agent"), config=config) as agent:
            agent.wait_until(lambda: sorted(agent.statuses().values()) == ["Down", "Initializing", "Up", "Up", "Up"])
            yield agent


def url_of(agent: Agent, fragment: str = "") -> str:
    return f"http://127.0.0.1:{agent.port}/{fragment}"


def one_service(url: str) -> str:
    return HEAD + service("db", name="Ledger", probe=url, impact="critical", rise=1, fall=1)


# ---- following the node


def test_a_change_is_shown_as_it_happens(tmp_path: Path, switch: SwitchableServer, open_page: OpenPage) -> None:
    with Agent(tmp_path, config=one_service(switch.url)) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        node_page = open_page(url_of(agent))
        node_page.expect_health("healthy")
        node_page.expect_status("db", "Up")
        expect(node_page.page.locator("#live")).to_have_text("live")
        node_page.page.evaluate("window.isSamePage = true")

        switch.is_healthy = False
        node_page.expect_health("unhealthy")
        node_page.expect_status("db", "Down")
        expect(node_page.cell("db", 3)).to_contain_text("answered 500")
        expect(node_page.page.locator("#reason")).to_have_text(re.compile("db is Down"))
        expect(node_page.page.get_by_label("Down 1")).to_be_attached()
        expect(node_page.page.locator("#told")).to_contain_text("validator-7 is unhealthy")

        switch.is_healthy = True
        node_page.expect_health("healthy")
        node_page.expect_status("db", "Up")
        assert node_page.page.evaluate("window.isSamePage")
        assert sum(url.endswith(f":{agent.port}/") for url in node_page.requests) == 1


def test_services_that_come_and_go_do_so_on_the_page(tmp_path: Path, open_page: OpenPage) -> None:
    with Agent(tmp_path, config=HEAD + service("a", status="Up") + service("b", status="Up")) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        node_page = open_page(url_of(agent))
        node_page.expect_ids("a", "b")
        node_page.row("a").get_by_role("button").click()
        agent.reload(HEAD + service("a", status="Up") + service("c", name="New", status="Down"))
        node_page.expect_ids("c", "a")
        node_page.expect_health("partial")
        expect(node_page.row("a").get_by_role("button")).to_have_attribute("aria-expanded", "true")
        expect(node_page.page.get_by_label("All 2")).to_be_attached()


def test_a_reload_that_failed_is_told_until_it_succeeds(tmp_path: Path, open_page: OpenPage) -> None:
    def told(agent: Agent) -> object:
        return agent.request("/details?id=").json["node"]["reload_problem"]

    config = HEAD + service("a", status="Up")
    with Agent(tmp_path, config=config) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        node_page = open_page(url_of(agent), clock=True)
        agent.config_file.write_text(config + 'colour = "blue"\n')
        agent.signal(signal.SIGHUP)
        agent.wait_until(lambda: told(agent) is not None)
        node_page.page.clock.run_for(6000)
        expect(node_page.page.locator("#notices")).to_contain_text("The configuration was not reloaded")
        agent.reload(config)
        agent.wait_until(lambda: told(agent) is None)
        node_page.page.clock.run_for(6000)
        expect(node_page.page.locator("#notices")).to_be_empty()


# ---- never greener than the truth


def test_a_node_that_is_gone_turns_grey_and_comes_back_by_itself(
    tmp_path: Path, switch: SwitchableServer, open_page: OpenPage
) -> None:
    with Agent(tmp_path, config=one_service(switch.url)) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        port = agent.port
        node_page = open_page(url_of(agent), clock=True)
        node_page.expect_health("healthy")
        node_page.allow_disconnect()
        node_page.page.evaluate("window.isSamePage = true")
    node_page.page.clock.run_for(1000)
    node_page.expect_health("unknown")
    expect(node_page.page.locator("#lost")).to_contain_text("Connection lost: what stands here is as of")
    expect(node_page.page.locator("#told")).to_contain_text("validator-7 is unknown")
    assert node_page.page.evaluate("getComputedStyle(document.querySelector('tbody')).filter") == "grayscale(1)"

    switch.is_healthy = False
    with Agent(tmp_path, "--listen", f"127.0.0.1:{port}", config=one_service(switch.url)) as agent:
        agent.wait_until(lambda: agent.health() == 503)
        for _ in range(10):
            node_page.page.clock.run_for(1000)
        node_page.expect_health("unhealthy")
        node_page.expect_status("db", "Down")
        expect(node_page.page.locator("#lost")).to_be_hidden()
        expect(node_page.page.locator("#live")).to_have_text("live")
        assert node_page.page.evaluate("window.isSamePage")


HIDE = """() => {
  Object.defineProperty(document, 'hidden', { get: () => window.isHidden, configurable: true });
  window.isHidden = true;
}"""
RECORD_HEALTHS = """() => {
  const node = document.getElementById("node");
  window.healths = [node.dataset.health];
  const note = () => window.healths.at(-1) === node.dataset.health || window.healths.push(node.dataset.health);
  new MutationObserver(note).observe(node, { attributeFilter: ["data-health"] });
}"""
KEEP_STREAM = """window.EventSource = class extends EventSource {
  constructor(url) { super(url); window.stream = this; }
}"""
BREAK_STREAM = "window.stream.dispatchEvent(new Event('error'))"
TRIGGER_POLL = "document.dispatchEvent(new Event('visibilitychange'))"  # a page that comes into view asks at once


@pytest.mark.parametrize("is_hidden", [False, True], ids=["in node_page", "hidden"])
def test_a_node_that_was_killed_is_not_green_for_another_moment(
    is_hidden: bool, tmp_path: Path, switch: SwitchableServer, open_page: OpenPage
) -> None:
    with Agent(tmp_path, config=one_service(switch.url)) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        node_page = open_page(url_of(agent), clock=True)
        node_page.expect_health("healthy")
        expect(node_page.page.locator("#live")).to_have_text("live")
        if is_hidden:
            node_page.page.evaluate(HIDE)
        node_page.allow_disconnect()
        agent.signal(signal.SIGKILL)
        node_page.expect_health("unknown")
        expect(node_page.page.locator("#lost")).to_contain_text("Connection lost: what stands here is as of")
        expect(node_page.page.locator("#code")).to_have_text(EMPTY_CELL)
        clocks = node_page.page.locator("#uptime"), node_page.cell("db", 2), node_page.cell("db", 4)
        said = [clock.text_content() for clock in clocks]
        node_page.page.clock.run_for(8000)
        assert [clock.text_content() for clock in clocks] == said


def test_a_question_in_vain_beside_a_stream_that_stands_changes_nothing(
    steady_agent: Agent, open_page: OpenPage
) -> None:
    node_page = open_page(url_of(steady_agent))
    node_page.expect_health("partial")
    expect(node_page.page.locator("#live")).to_have_text("live")
    node_page.page.evaluate(RECORD_HEALTHS)
    node_page.allow_disconnect()
    node_page.page.route("**/details?*", lambda route: route.abort())
    with node_page.page.expect_event("requestfailed"):
        node_page.page.evaluate(TRIGGER_POLL)
    node_page.page.unroute_all()
    with node_page.page.expect_response("**/details?*"):
        node_page.page.evaluate(TRIGGER_POLL)
    assert node_page.page.evaluate("window.healths") == ["partial"]
    expect(node_page.page.locator("#live")).to_have_text("live")


def test_a_stream_that_breaks_while_the_node_still_answers_changes_nothing(
    steady_agent: Agent, open_page: OpenPage
) -> None:
    """As when it is started anew within a moment: what was asked until then is cut off with the stream."""
    node_page = open_page(url_of(steady_agent))
    node_page.page.add_init_script(KEEP_STREAM)
    node_page.page.reload()
    expect(node_page.page.locator("#live")).to_have_text("live")
    node_page.expect_health("partial")
    node_page.wait_for_bars("ledger")  # then it has asked all that it asks at first
    node_page.page.evaluate(RECORD_HEALTHS)
    node_page.allow_disconnect()
    asked: list[Route] = []

    def hold_the_first(route: Route) -> None:
        asked.append(route)
        if len(asked) > 1:
            route.continue_()

    node_page.page.route("**/details?*", hold_the_first)
    with node_page.page.expect_request("**/details?*"):
        node_page.page.evaluate(TRIGGER_POLL)
    node_page.page.evaluate(BREAK_STREAM)
    expect(node_page.page.locator("#live")).to_have_text("trying again")
    with node_page.page.expect_event("requestfailed"):
        asked[0].abort()
    with node_page.page.expect_response("**/details?*"):
        node_page.page.evaluate(TRIGGER_POLL)
    expect(node_page.page.locator("#live")).to_have_text("every few seconds")
    assert node_page.page.evaluate("window.healths") == ["partial"]


def test_without_a_stream_the_first_question_in_vain_turns_all_grey(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent), clock=True)
    node_page.page.add_init_script(KEEP_STREAM)
    node_page.page.reload()
    expect(node_page.page.locator("#live")).to_have_text("live")
    node_page.allow_disconnect()
    node_page.page.route("**/details?*", lambda route: route.abort())
    node_page.page.evaluate(BREAK_STREAM)
    node_page.page.clock.run_for(1000)
    node_page.expect_health("unknown")
    node_page.page.unroute_all()
    node_page.page.clock.run_for(6000)
    node_page.expect_health("partial")


def test_a_computer_that_slept_shows_nothing_green_before_it_has_asked(
    steady_agent: Agent, open_page: OpenPage
) -> None:
    node_page = open_page(url_of(steady_agent), clock=True)
    node_page.expect_health("partial")
    expect(node_page.page.locator("#live")).to_have_text("live")  # or it would ask for the whole page
    node_page.allow_disconnect()
    node_page.page.route("**/details?*", lambda route: route.abort())
    node_page.suspend_for_an_hour()
    node_page.expect_health("unknown")
    node_page.page.unroute_all()
    node_page.page.clock.run_for(6000)
    node_page.expect_health("partial")


def test_an_answer_from_before_the_sleep_brings_no_old_green_back(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent), clock=True)
    node_page.expect_health("partial")
    expect(node_page.page.locator("#live")).to_have_text("live")  # or it would ask for the whole page
    node_page.allow_disconnect()
    # A browser's own limits do not count the time that its computer sleeps.
    node_page.page.evaluate("AbortSignal.timeout = () => new AbortController().signal")
    asked: list[Route] = []

    def hold(route: Route) -> None:
        asked.append(route)

    node_page.page.route("**/details?*", hold)
    while not asked:
        node_page.page.clock.run_for(1000)
    node_page.suspend_for_an_hour()
    node_page.expect_health("unknown")
    with node_page.page.expect_response("**/details?*"):
        asked[0].continue_()
    node_page.page.wait_for_timeout(200)
    node_page.expect_health("unknown")


def test_an_answer_from_before_the_last_change_brings_no_old_green_back(
    tmp_path: Path, switch: SwitchableServer, open_page: OpenPage
) -> None:
    with Agent(tmp_path, config=one_service(switch.url)) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        old = agent.request("/details?id=db").body
        node_page = open_page(url_of(agent))
        node_page.page.route("**/details?*", lambda route: route.fulfill(body=old))
        with node_page.page.expect_request("**/details?*"):
            switch.is_healthy = False
            node_page.expect_status("db", "Down")
        with node_page.page.expect_response("**/details?*"):
            pass
        node_page.page.wait_for_timeout(200)
        node_page.expect_status("db", "Down")
        node_page.expect_health("unhealthy")


def test_without_events_it_still_follows_only_later(
    tmp_path: Path, switch: SwitchableServer, open_page: OpenPage
) -> None:
    def refuse(route: Route) -> None:
        route.fulfill(status=503)

    with Agent(tmp_path, config=one_service(switch.url)) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        node_page = open_page(url_of(agent), clock=True)
        node_page.allow_disconnect()
        node_page.page.route("**/events?*", refuse)
        node_page.page.reload()
        expect(node_page.page.locator("#live")).not_to_have_text("live")
        switch.is_healthy = False
        agent.wait_until(lambda: agent.health() == 503)
        node_page.page.clock.run_for(6000)
        node_page.expect_health("unhealthy")
        node_page.expect_status("db", "Down")


def test_a_page_that_nobody_sees_gives_its_connection_to_one_that_somebody_does(
    tmp_path: Path, switch: SwitchableServer, open_page: OpenPage
) -> None:
    with Agent(tmp_path, config=one_service(switch.url)) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        node_page = open_page(url_of(agent), clock=True)
        expect(node_page.page.locator("#live")).to_have_text("live")
        ended: list[str] = []
        node_page.page.on("requestfailed", lambda request: ended.append(request.url))
        node_page.page.evaluate(HIDE)
        other = node_page.page.context.new_page()
        other.goto(url_of(agent))
        expect(other.locator("#live")).to_have_text("live")
        expect(node_page.page.locator("#live")).not_to_have_text("live")
        assert [url for url in ended if "/events" in url]

        # It still follows the health, and asks for nothing else.
        switch.is_healthy = False
        agent.wait_until(lambda: agent.health() == 503)
        del node_page.requests[:]
        for _ in range(3):
            with node_page.page.expect_response(
                "**/details?*"
            ):  # or time would run past what the page waits for an answer
                node_page.page.clock.run_for(16_000)
            node_page.expect_health("unhealthy")
        assert {url.partition(f":{agent.port}/")[2] for url in node_page.requests} <= {
            "details?attempts=0&id=",
            "static/unhealthy.svg",
        }

        node_page.page.evaluate("window.isHidden = false; document.dispatchEvent(new Event('visibilitychange'))")
        expect(node_page.page.locator("#live")).to_have_text("live")
        node_page.expect_status("db", "Down")


# ---- finding


def test_the_filter_finds_by_name_id_and_reason_and_is_kept_in_the_address(
    steady_agent: Agent, open_page: OpenPage
) -> None:
    node_page = open_page(url_of(steady_agent))
    page, box = node_page.page, node_page.page.get_by_role("searchbox", name="Filter by name, id or reason")
    node_page.expect_ids("chain", "queue", "ledger", "cache", "indexer")
    page.keyboard.press("/")
    expect(box).to_be_focused()
    page.keyboard.type("Database")
    node_page.expect_ids("ledger")
    expect(page.locator("#shown")).to_have_text("1 of 5")
    assert page.url.endswith("#q=Database")
    box.write_body("refused")
    node_page.expect_ids("chain")
    box.write_body("CACHE 1")
    node_page.expect_ids("cache")
    box.write_body("nothing like it")
    node_page.expect_ids()
    expect(page.get_by_text("No service matches.")).to_be_visible()
    page.get_by_role("button", name="Show all").click()
    node_page.expect_ids("chain", "queue", "ledger", "cache", "indexer")
    box.write_body("queue")
    box.press("Escape")
    expect(box).to_have_value("")
    node_page.expect_ids("chain", "queue", "ledger", "cache", "indexer")


def test_the_counts_are_filters(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent))
    node_page.page.get_by_role("radio", name="Down 1").check()
    node_page.expect_ids("chain")
    node_page.page.keyboard.press("ArrowRight")
    node_page.expect_ids("queue")
    expect(node_page.page.get_by_role("radio", name="Initializing 1")).to_be_checked()
    node_page.page.get_by_role("radio", name="Up 3").check()
    node_page.expect_ids("ledger", "cache", "indexer")
    assert node_page.page.url.endswith("#status=Up")
    node_page.page.reload()
    node_page.expect_ids("ledger", "cache", "indexer")
    expect(node_page.page.get_by_role("radio", name="Up 3")).to_be_checked()


SORTED = {
    "Service": ("ascending", ["queue", "cache", "chain", "indexer", "ledger"]),  # 9 before 10
    "Reason": ("ascending", ["chain", "queue", "indexer", "ledger", "cache"]),  # those without one come last
    "For": ("ascending", None),
    "Last check": ("descending", None),
    "Latency": ("descending", None),
    "Available": ("ascending", None),
    "Status": ("ascending", ["chain", "queue", "ledger", "cache", "indexer"]),
}
OPPOSITE = {"ascending": "descending", "descending": "ascending"}


def test_every_column_sorts_both_ways(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent))
    expect(node_page.page.get_by_role("columnheader", name="Status")).to_have_attribute("aria-sort", "ascending")
    for column, (first, order) in SORTED.items():
        head = node_page.page.get_by_role("columnheader", name=column)
        head.get_by_role("button").click()
        expect(head).to_have_attribute("aria-sort", first)
        expect(node_page.page.locator("[aria-sort]")).to_have_count(1)
        if order is not None:
            node_page.expect_ids(*order)
        head.get_by_role("button").click()
        expect(head).to_have_attribute("aria-sort", OPPOSITE[first])
    node_page.expect_ids("ledger", "cache", "indexer", "queue", "chain")  # what is equal stays in the node's order


def test_the_order_is_kept_in_the_address(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent, "#sort=-name"))
    node_page.expect_ids(*reversed(SORTED["Service"][1] or []))
    expect(node_page.page.get_by_role("columnheader", name="Service")).to_have_attribute("aria-sort", "descending")


def test_what_is_known_only_of_rows_in_sight_is_asked_for_before_it_is_sorted_by(
    steady_agent: Agent, open_page: OpenPage
) -> None:
    node_page = open_page(url_of(steady_agent))
    with node_page.page.expect_response(lambda response: response.url.endswith("/details")):
        node_page.page.get_by_role("button", name="Latency").click()
    expect(node_page.page.locator(".chunk tr[data-id]").last).to_have_attribute("data-id", re.compile("indexer|queue"))


# ---- the past


def test_the_past_is_shown_by_minute_hour_or_day(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent))
    for words, unit, many in (("24 h", "hour", 24), ("90 d", "day", 90), ("90 min", "minute", 90)):
        node_page.page.get_by_role("radio", name=words).check()
        expect(node_page.buckets("ledger")).to_have_attribute(
            "aria-label", f"Availability of Ledger database in the last {words}, by {unit}"
        )
        expect(node_page.buckets("ledger")).to_have_attribute("aria-valuemax", str(many - 1))
        expect(node_page.page.get_by_role("columnheader", name=f"Available, {words}")).to_be_visible()
    expect(node_page.cell("ledger", 6)).to_contain_text(re.compile(r"\d %"))


def test_a_bar_tells_its_detail_under_the_mouse(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent))
    box = node_page.buckets("chain").bounding_box()
    assert box is not None
    node_page.page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 5)
    expect(node_page.tooltip).to_contain_text(re.compile(r"Down \d+ s"))
    expect(node_page.tooltip).to_contain_text(re.compile(r"\d+ looks?, \d+ failed"))
    expect(node_page.tooltip).to_contain_text(re.compile("Latency .* on average, .* at most"))
    node_page.page.mouse.move(box["x"] + 1, box["y"] + 5)
    expect(node_page.tooltip).to_contain_text("Unknown 1 min")
    node_page.page.mouse.move(5, 5)
    expect(node_page.tooltip).to_be_hidden()


def test_a_bar_tells_its_detail_under_the_finger(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent), has_touch=True, viewport={"width": 360, "height": 740})
    box = node_page.buckets("chain").bounding_box()
    assert box is not None
    node_page.page.touchscreen.tap(box["x"] + box["width"] - 1, box["y"] + 5)
    expect(node_page.tooltip).to_contain_text(re.compile(r"Down \d+ s"))
    assert not node_page.overflows_viewport
    node_page.page.touchscreen.tap(20, 20)
    expect(node_page.tooltip).to_be_hidden()


def test_bars_are_walked_through_with_the_arrow_keys(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent))
    bars = node_page.buckets("chain")
    bars.focus()
    expect(node_page.tooltip).to_contain_text("Down")
    expect(bars).to_have_attribute("aria-valuetext", re.compile(r"\d\d:\d\d to \d\d:\d\d, .*Down \d+ s.*\d+ failed"))
    node_page.page.keyboard.press("Home")
    expect(bars).to_have_attribute("aria-valuenow", "0")
    expect(bars).to_have_attribute("aria-valuetext", re.compile("Unknown 1 min"))
    node_page.page.keyboard.press("ArrowRight")
    expect(bars).to_have_attribute("aria-valuenow", "1")
    node_page.page.keyboard.press("Escape")
    expect(node_page.tooltip).to_be_hidden()


# ---- one service in detail


def test_a_row_unfolds_to_all_that_is_known(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent))
    button = node_page.row("chain").get_by_role("button")
    expect(button).to_have_attribute("aria-expanded", "false")
    button.focus()
    node_page.page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "true")
    panel = node_page.page.locator(".panel")
    expect(panel).to_contain_text("Follows <the> chain")
    expect(panel).to_contain_text("tcp://127.0.0.1:1")
    expect(panel).to_contain_text("partial: while it is not Up, the node is partially healthy at best")
    expect(panel).to_contain_text(re.compile(r"3 failures in a row; now \d+"))
    expect(panel).to_contain_text(f"svcnode explain --url http://127.0.0.1:{steady_agent.port} chain")
    expect(panel.locator("section").nth(1).get_by_role("listitem")).to_have_count(20)
    expect(panel.locator("section").nth(2)).to_contain_text("was Initializing: connection refused")
    assert node_page.service_ids == ["chain", "queue", "ledger", "cache", "indexer"]
    node_page.page.keyboard.press("Space")
    expect(panel).to_have_count(0)
    expect(button).to_have_attribute("aria-expanded", "false")
    node_page.cell("chain", 2).click()
    expect(panel).to_have_count(1)


def test_a_status_that_is_set_in_the_configuration_is_not_shown_as_a_check_result(
    tmp_path: Path, open_page: OpenPage
) -> None:
    config = HEAD + service("indexer", name="Indexer", status="Down") + service("other", status="Up")
    with Agent(tmp_path, config=config) as agent:
        agent.wait_until(lambda: agent.health() == 206)
        for is_alive in (False, True):
            node_page = open_page(url_of(agent), java_script_enabled=is_alive)
            if is_alive:
                node_page.wait_for_bars("indexer")  # it has asked meanwhile
            for column in (4, 5, 6):
                expect(node_page.cell("indexer", column)).to_have_text(EMPTY_CELL)
        node_page.row("indexer").get_by_role("button").click()
        about, attempts, changes = (node_page.panel("indexer").locator("section").nth(place) for place in range(3))
        expect(about.locator("dl")).to_contain_text("Probenone, the status is set in the configuration")
        expect(about.locator("dl")).to_contain_text("So far0 changes of status")
        expect(about.locator("dl")).not_to_contain_text("Last success")
        expect(attempts).to_have_text("Last attemptsNone: nobody looks at it.")
        expect(changes).to_have_text("Last changesNone yet.")

        agent.reload(HEAD + service("indexer", name="Indexer", status="Up") + service("other", status="Up"))
        node_page.expect_status("indexer", "Up")
        expect(about.locator("dl")).to_contain_text("So far1 change of status")
        expect(changes).to_contain_text("was Down: set in the configuration")
        expect(node_page.cell("indexer", 6)).to_have_text(EMPTY_CELL)
        node_page.allow_disconnect()


# ---- who is on the other side


def test_without_javascript_it_is_a_plain_table_as_of_then(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent), java_script_enabled=False)
    page = node_page.page
    node_page.expect_health("partial")
    assert node_page.service_ids == ["chain", "queue", "ledger", "cache", "indexer"]
    for service_id, status in {"chain": "Down", "queue": "Initializing", "ledger": "Up"}.items():
        node_page.expect_status(service_id, status)
    expect(node_page.cell("chain", 3)).to_have_text(re.compile("connection refused"))
    expect(node_page.cell("ledger", 4)).to_have_text(re.compile(r"^\d+ s ago$"))
    expect(node_page.cell("ledger", 5)).to_have_text(re.compile(r"^[\d.]+ ms$"))
    expect(node_page.cell("ledger", 6)).to_have_text(re.compile(r"^[\d.]+ %$"))
    expect(page.get_by_text(re.compile(r"it is as of \d\d:\d\d:\d\d UTC"))).to_be_visible()
    expect(page.get_by_role("searchbox")).to_be_hidden()
    expect(page.get_by_role("button", name="Service")).to_be_disabled()
    page.get_by_role("link", name="load it now").click()
    node_page.expect_health("partial")
    node_page.allow_disconnect()  # there is no icon for JSON
    page.get_by_role("link", name="Ledger database").click()
    assert '"id":"ledger"' in page.content()


@pytest.mark.parametrize("is_alive", [True, False], ids=["with JavaScript", "without"])
def test_on_a_phone_nothing_is_clipped(is_alive: bool, steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent), viewport={"width": 360, "height": 740}, java_script_enabled=is_alive)
    assert node_page.page.evaluate("innerWidth") == 360 if is_alive else True
    for service_id in ("chain", "ledger"):
        for column in range(7):
            box = node_page.cell(service_id, column).bounding_box()
            assert box is None or (box["x"] >= 0 and box["x"] + box["width"] <= 360)
    if is_alive:
        node_page.row("chain").get_by_role("button").click()
        expect(node_page.page.locator(".panel")).to_contain_text("Last attempts")
        assert not node_page.overflows_viewport


CONTRASTS = """() => {
  const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const paper = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    paper.clearRect(0, 0, 1, 1); paper.fillStyle = color; paper.fillRect(0, 0, 1, 1);
    return [...paper.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = rgba(getComputedStyle(at).backgroundColor);
      if (color[3] === 255) return color;
    }
    return [255, 255, 255];
  };
  const said = [...document.querySelectorAll("main *")].filter((element) => element.checkVisibility()
    && [...element.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim()));
  return said.map((element) => {
    const lights = [light(rgba(getComputedStyle(element).color)), light(ground(element))];
    const contrast = (Math.max(...lights) + 0.05) / (Math.min(...lights) + 0.05);
    return [`${element.tagName} ${element.className} ${element.textContent.slice(0, 30)}`, contrast];
  });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_contrast_enough_in_light_and_in_dark(
    scheme: str, steady_agent: Agent, open_page: OpenPage
) -> None:
    node_page = open_page(url_of(steady_agent), color_scheme=scheme)
    node_page.row("chain").get_by_role("button").click()
    expect(node_page.page.locator(".panel")).to_contain_text("Last attempts")
    measured = node_page.page.evaluate(CONTRASTS)
    assert len(measured) > 80
    assert [(what, contrast) for what, contrast in measured if contrast < 4.5] == []
    ground = node_page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(re.findall(r"\d+", ground)[0]) < 64) == (scheme == "dark")


def test_nothing_moves_for_those_who_want_no_motion(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent), reduced_motion="reduce")
    assert node_page.page.evaluate("document.getAnimations().length") == 0


def test_a_screen_reader_finds_a_table_with_heads_and_names(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent))
    page = node_page.page
    table = page.get_by_role("table", name="Backing services of validator-7")
    expect(table.get_by_role("columnheader")).to_have_count(7)
    expect(table.get_by_role("rowheader")).to_have_count(5)
    expect(table.get_by_role("row")).to_have_count(6)
    expect(table.get_by_role("cell")).to_have_count(5 * 6)
    expect(node_page.row("ledger").get_by_role("button", name="Ledger database")).to_be_visible()
    expect(node_page.row("ledger").get_by_role("slider", name="Availability of Ledger database")).to_be_visible()
    expect(page.get_by_role("group", name="Show services by status").get_by_role("radio")).to_have_count(4)
    expect(page.get_by_role("group", name="Show history of").get_by_role("radio")).to_have_count(3)
    expect(page.locator("#told")).to_have_attribute("role", "status")
    page.keyboard.press("Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement.nextElementSibling).outlineStyle")
    assert outline == "solid"


def test_what_somebody_else_wrote_stays_text(tmp_path: Path, open_page: OpenPage) -> None:
    hostile = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
    ids = [hostile, "\N{MAN}\N{GIRL} \N{FIRE}", "قاعدة البيانات", "a/b?c=d&e#f %2F ..", "..."]
    script = f"{hostile} is what it says"
    with HttpBackend(http_response(500, hostile)) as backend:
        config = HEAD.replace('name = "validator-7"', f"name = {json.dumps(hostile)}") + "".join(
            service(one, name=one, description=one, probe={"url": f"http://{backend.address}/", "contains": script})
            for one in ids
        ).replace('{"url": ', "{ url = ").replace('"contains": ', "contains = ")
        with Agent(tmp_path, config=config) as agent:
            agent.wait_until(lambda: agent.health() == 503)
            node_page = open_page(url_of(agent))
            for one in ids:
                button = node_page.row(one).get_by_role("button")
                expect(button).to_have_text(one)
                button.click()
                expect(node_page.panel(one)).to_contain_text("svcnode explain")
                expect(node_page.panel(one).locator(".description")).to_have_text(one)
                expect(node_page.buckets(one)).to_have_attribute("aria-label", re.compile(re.escape(one)))
            expect(node_page.page.get_by_role("heading", level=1)).to_contain_text(hostile)
            assert hostile in node_page.page.title()
            assert node_page.page.locator("img").count() == 0
            node_page.page.get_by_role("searchbox").write_body("<script>alert(1)")
            node_page.expect_ids(hostile)
            node_page.allow_disconnect()


ALLOW_EXEC = "[security]\nallow_exec = true\n"
SLOW_SCHEDULE = {"interval": "1s", "transition_interval": "1s", "timeout": "900ms"}  # to start a program takes its time
INVISIBLE_TEXT, ESCAPED_TEXT = "a\u202eb\u200bc\U000e0041", r"a\u202eb\u200bc\U000e0041"


def test_what_hides_or_turns_text_around_is_shown_instead(tmp_path: Path, open_page: OpenPage) -> None:
    service_id, program = "it\u202es", tmp_path / "check"
    program.write_text(f"#!/bin/sh\ntest -e {tmp_path}/up || {{ printf '{INVISIBLE_TEXT}\\a!\\n'; exit 1; }}\n")
    program.chmod(0o755)
    (tmp_path / "up").touch()
    words = {
        "name": INVISIBLE_TEXT,
        "description": INVISIBLE_TEXT,
        "impact": "critical",
        "rise": 1,
        "fall": 1,
        **SLOW_SCHEDULE,
    }
    head = HEAD.replace("validator-7", INVISIBLE_TEXT) + ALLOW_EXEC
    with Agent(tmp_path, config=head + service(service_id, probe=f"exec:{program}", **words)) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        node_page = open_page(url_of(agent))
        node_page.expect_health("healthy", ESCAPED_TEXT)
        (tmp_path / "up").unlink()
        node_page.expect_health("unhealthy", ESCAPED_TEXT)
        node_page.row(service_id).get_by_role("button").click()
        panel = node_page.panel(service_id)
        expect(panel.locator(".description")).to_have_text(ESCAPED_TEXT)
        expect(panel.locator(".list").first).to_contain_text(ESCAPED_TEXT + r"\x07!")
        expect(panel.locator(".changes")).to_contain_text(ESCAPED_TEXT + r"\x07!")
        expect(panel).to_contain_text(r"$'it\u202es'")
        expect(node_page.cell(service_id, 3)).to_have_text(f"exit 1: {ESCAPED_TEXT}\\x07!")
        expect(node_page.page.locator("#reason")).to_contain_text(r"it\u202es is Down")
        told = node_page.page.evaluate("document.title + document.body.innerText")
        assert not ({*INVISIBLE_TEXT} - {*"abc"}) & {*told}
        assert sum(url.endswith(f":{agent.port}/") for url in node_page.requests) == 1, (
            "it is the same node all the time"
        )
        node_page.allow_disconnect()


def test_what_keeps_checks_from_counting_is_shown_as_the_reason(tmp_path: Path, open_page: OpenPage) -> None:
    with Agent(
        tmp_path, config=HEAD + ALLOW_EXEC + service("job", probe="exec:/nonexistent/prog", **SLOW_SCHEDULE)
    ) as agent:
        agent.wait_until(lambda: agent.request("/details?id=job").json["services"][0]["evidence"] is not None)
        for is_alive in (True, False):
            node_page = open_page(url_of(agent), java_script_enabled=is_alive)
            expect(node_page.cell("job", 3)).to_contain_text("cannot run /nonexistent/prog")
            if is_alive:
                node_page.wait_for_bars("job")  # it has asked meanwhile
                expect(node_page.cell("job", 3)).to_contain_text("cannot run /nonexistent/prog")
                node_page.row("job").get_by_role("button").click()
                expect(node_page.panel("job").locator("dl")).to_contain_text("cannot run /nonexistent/prog")
                node_page.allow_disconnect()


def test_a_node_that_was_just_started_draws_latency_from_its_last_checks(
    tmp_path: Path, switch: SwitchableServer, open_page: OpenPage
) -> None:
    def points() -> int:
        path = node_page.row("db").locator(".line .stroke").get_attribute("d") or ""
        return len(re.findall("[ML]", path))

    with Agent(tmp_path, config=one_service(switch.url)) as agent:
        agent.wait_until(lambda: agent.request("/details?id=db").json["services"][0]["checks"]["ready"] > 10)
        node_page = open_page(url_of(agent, "#resolution=minutes"))
        expect(node_page.row("db").locator(".line.checks")).to_be_attached()
        agent.wait_until(lambda: points() >= 10)
        node_page.page.get_by_label("24 h").check()
        expect(node_page.row("db").locator(".line.checks")).to_have_count(0)
        node_page.allow_disconnect()


def test_a_very_long_id_does_not_fill_the_headline_of_a_phone(tmp_path: Path, open_page: OpenPage) -> None:
    with Agent(tmp_path, config=HEAD + service("x" * 256, status="Down", impact="critical")) as agent:
        agent.wait_until(lambda: agent.health() == 503)
        node_page = open_page(url_of(agent), viewport={"width": 360, "height": 740})
        node_page.expect_health("unhealthy")
        node_page.wait_for_bars("x" * 256)
        box = node_page.page.locator("#reason").bounding_box()
        assert box is not None
        assert box["height"] < 120
        assert not node_page.overflows_viewport
        node_page.allow_disconnect()


def test_a_long_id_is_shortened_in_the_headline_and_what_parts_it_from_the_next_stays(
    tmp_path: Path, open_page: OpenPage
) -> None:
    ids = ("x" * 256, "y" * 64, "z")
    with Agent(tmp_path, config=HEAD + "".join(service(one, status="Down", impact="critical") for one in ids)) as agent:
        agent.wait_until(lambda: agent.health() == 503)
        node_page = open_page(url_of(agent), java_script_enabled=False)
        expect(node_page.page.locator("#reason")).to_have_text(f"{'x' * 48}…, {'y' * 64} and z are Down, and critical")
        node_page = open_page(url_of(agent), clock=True)
        with node_page.page.expect_response("**/details?*"):
            node_page.page.clock.run_for(6000)
        node_page.page.clock.run_for(1000)
        expect(node_page.page.locator("#reason")).to_have_text(f"{'x' * 48}…, {'y' * 64} and z are Down, and critical")
        node_page.allow_disconnect()


# ---- from elsewhere

PATHS = [
    "",
    "static/page.js",
    "static/page.css",
    "static/healthy.svg",
    "static/none",
    "events",
    "details",
    "details/db",
]
MORE_PATHS = ["history?id=db", "metrics", "badge/node.svg", "badge/db.svg"]


def test_with_a_token_all_of_it_is_asked_for_and_a_browser_can_give_it(tmp_path: Path, open_page: OpenPage) -> None:
    token = "a-token-that-nobody-guesses"
    config = (
        HEAD.replace("127.0.0.1:0", "0.0.0.0:0")
        + f'[security]\noperator_token = "{token}"\n'
        + service("db", status="Up")
    )
    with Agent(tmp_path, config=config) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        url = url_of(agent)
        node_page = open_page(url, http_credentials={"username": "anybody", "password": token})
        node_page.expect_health("healthy")
        expect(node_page.page.locator("#live")).to_have_text("live")
        expect(node_page.buckets("db")).to_be_visible()
        assert _codes(node_page.page, url) == dict.fromkeys([*PATHS, *MORE_PATHS], 401)


def test_behind_a_proxy_it_works_below_a_path_of_its_own(
    tmp_path: Path, switch: SwitchableServer, open_page: OpenPage
) -> None:
    """As the page about it shows."""
    text = (Path(__file__).parents[2] / "docs" / "page.md").read_text()
    (location,) = re.findall(r"^```nginx\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    token = "a-token-that-nobody-guesses"
    config = one_service(switch.url) + f'[security]\noperator_token = "{token}"\n'
    with Agent(tmp_path, config=config) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        with nginx_in_front_of(agent, location) as port:
            assert agent.request("/validator-7/", port).code == 401
            node_page = open_page(
                f"http://127.0.0.1:{port}/validator-7/",
                http_credentials={"username": "anybody", "password": token},
            )
            node_page.expect_health("healthy")
            expect(node_page.page.locator("#live")).to_have_text("live")
            node_page.wait_for_bars("db")
            switch.is_healthy = False
            node_page.expect_health("unhealthy")
            node_page.page.close()


def _codes(page: Page, url: str) -> dict[str, int]:
    """What those get who bring no token."""
    browser = page.context.browser
    assert browser is not None
    context = browser.new_context()
    try:
        return {path: context.request.get(url + path).status for path in [*PATHS, *MORE_PATHS]}
    finally:
        context.close()


# ---- many


SCROLL = """async (step) => {
  const frames = [];
  let last = performance.now();
  for (let left = 250; left; left -= 1) {
    scrollBy(0, step);
    await new Promise(requestAnimationFrame);
    frames.push(performance.now() - last);
    last = performance.now();
  }
  return frames;
}"""


@pytest.fixture(scope="module")
def large_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    config = HEAD + "".join(service(f"svc-{number}", status="Up") for number in range(1998))
    config += service("last", name="The last one", status="Down") + service("looked-at", probe="tcp://127.0.0.1:1")
    with Agent(tmp_path_factory.mktemp("large_agent"), config=config) as agent:
        agent.wait_until(lambda: agent.statuses()["looked-at"] == "Down")
        yield agent


def test_two_thousand_services_are_found_and_sorted(large_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(large_agent))
    assert len(node_page.service_ids) == 2000
    assert node_page.service_ids[:3] == ["last", "looked-at", "svc-0"]
    assert node_page.page.locator("#statuses label").first.text_content() == "All 2000"
    node_page.page.locator("#filter").write_body("svc-199")
    assert node_page.service_ids == ["svc-199", *(f"svc-{number}" for number in range(1990, 1998))]
    node_page.page.locator("#filter").write_body("")
    node_page.page.locator("[data-sort=name]").click()
    assert node_page.service_ids == ["looked-at", *(f"svc-{number}" for number in range(1998)), "last"]


def test_only_rows_in_sight_are_asked_about(large_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(large_agent))
    node_page.wait_for_bars("looked-at")
    assert node_page.buckets("svc-1990").count() == 0
    asked = [url for url in node_page.requests if "/history" in url or "/details" in url]
    assert asked
    assert max(url.count("id=") for url in asked) <= 60
    node_page.page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    node_page.wait_for_bars("svc-1990")


@pytest.mark.serial
def test_two_thousand_services_scroll_smoothly(large_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(large_agent))
    node_page.wait_for_bars("looked-at")
    frames = node_page.page.evaluate(SCROLL, 200)
    slow = [frame_ms for frame_ms in frames if frame_ms > 50]
    assert node_page.page.evaluate("scrollY") > 40_000
    assert len(slow) / len(frames) < 0.1, sorted(slow)
