"""The page in a browser: it follows the node and can be used with mouse, touch, keyboard and screen reader."""

from __future__ import annotations

import json
import re
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Page, Route, expect

from svcnode.control import Client
from svcnode.core.text import one_line
from svcnode.core.units import format_coarse_duration, format_latency
from svcnode.operator.page import EMPTY_CELL, format_percent, shorten_words
from tests.support.backends import Backend, HttpBackend, close, http_response
from tests.support.nginx_proxy import nginx_in_front_of
from tests.support.processes import Agent
from tests.support.servers.etcd import EtcdServer

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
interval = "6s"
timeout = "5s"
transition_interval = "50ms"
start_period = "0s"
stale_after = "60s"
"""


def service(service_id: str, **options: object) -> str:
    given = {"id": service_id, **options}
    lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in given.items())
    return "\n".join(["[[services]]", *lines, ""])


class SwitchableServer(HttpBackend):
    """A server that answers 200 or 500."""

    def __init__(self) -> None:
        super().__init__(lambda _: http_response(200 if self.is_healthy else 500))
        self.is_healthy = True
        self.url = f"http://{self.address}/ready"


@pytest.fixture
def server() -> Iterator[SwitchableServer]:
    with SwitchableServer() as server:
        yield server


@pytest.fixture(scope="module")
def steady_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """A node that several tests share; its services do not change."""
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


def fixed_service(status: str = "Up") -> str:
    """A reload with another status changes it at once."""
    return HEAD + service("db", name="Ledger", status=status, impact="critical")


def one_service(url: str) -> str:
    return HEAD + service("db", name="Ledger", probe=url, impact="critical", rise=1, fall=1)


# ---- updates


def test_a_change_is_shown_as_it_happens(tmp_path: Path, server: SwitchableServer, open_page: OpenPage) -> None:
    with Agent(tmp_path, config=one_service(server.url)) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        node_page = open_page(url_of(agent))
        node_page.expect_health("healthy")
        node_page.expect_status("db", "Up")
        node_page.expect_connection("live")
        node_page.page.evaluate("window.isSamePage = true")

        server.is_healthy = False
        node_page.expect_health("unhealthy")
        node_page.expect_status("db", "Down")
        node_page.expect_code("db", "server_error")
        expect(node_page.cell("db", 3)).to_contain_text("500")
        expect(node_page.page.locator("#health-reason")).to_contain_text("db")
        expect(node_page.page.get_by_label("Down 1")).to_be_attached()
        expect(node_page.page.locator("#announcement")).to_contain_text("unhealthy")

        server.is_healthy = True
        node_page.expect_health("healthy")
        node_page.expect_status("db", "Up")
        assert node_page.page.evaluate("window.isSamePage")
        assert sum(url.endswith(f":{agent.port}/") for url in node_page.requests) == 1


def test_services_are_added_and_removed_on_the_page(tmp_path: Path, open_page: OpenPage) -> None:
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


def test_a_failed_reload_is_shown_until_one_succeeds(tmp_path: Path, open_page: OpenPage) -> None:
    def reload_problem(agent: Agent) -> object:
        return agent.request("/details?id=").json["node"]["reload_problem"]

    config = HEAD + service("a", status="Up")
    with Agent(tmp_path, config=config) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        node_page = open_page(url_of(agent), clock=True)
        agent.config_file.write_text(config + 'colour = "blue"\n')
        agent.signal(signal.SIGHUP)
        agent.wait_until(lambda: reload_problem(agent) is not None)
        notices = node_page.page.locator("#notices .notice")
        node_page.run_clock_until(lambda: notices.count() == 1)
        agent.reload(config)
        agent.wait_until(lambda: reload_problem(agent) is None)
        node_page.run_clock_until(lambda: notices.count() == 0)


# ---- never a better health than is known


def test_the_page_of_a_stopped_node_turns_grey_and_recovers_by_itself(tmp_path: Path, open_page: OpenPage) -> None:
    with Agent(tmp_path, config=fixed_service()) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        port = agent.port
        node_page = open_page(url_of(agent), clock=True)
        node_page.expect_health("healthy")
        node_page.allow_disconnect()
        node_page.page.evaluate("window.isSamePage = true")
    node_page.page.clock.run_for(1000)
    node_page.expect_health("unknown")
    node_page.expect_connection("lost")
    expect(node_page.page.locator("#connection-lost")).to_be_visible()
    expect(node_page.page.locator("#announcement")).to_contain_text("unknown")
    assert node_page.page.evaluate("getComputedStyle(document.querySelector('tbody')).filter") == "grayscale(1)"

    with Agent(tmp_path, "--listen", f"127.0.0.1:{port}", config=fixed_service("Down")) as agent:
        agent.wait_until(lambda: agent.health() == 503)
        node_page.run_clock_until_health("unhealthy")
        node_page.expect_status("db", "Down")
        expect(node_page.page.locator("#connection-lost")).to_be_hidden()
        node_page.expect_connection("live")
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
TRIGGER_POLL = "document.dispatchEvent(new Event('visibilitychange'))"  # a page that becomes visible polls at once


@pytest.mark.parametrize("is_hidden", [False, True], ids=["visible", "hidden"])
def test_the_page_of_a_killed_node_turns_grey_at_once(is_hidden: bool, tmp_path: Path, open_page: OpenPage) -> None:
    with Agent(tmp_path, config=fixed_service()) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        node_page = open_page(url_of(agent), clock=True)
        node_page.expect_health("healthy")
        node_page.expect_connection("live")
        if is_hidden:
            node_page.page.evaluate(HIDE)
        node_page.allow_disconnect()
        agent.signal(signal.SIGKILL)
        node_page.expect_health("unknown")
        node_page.expect_connection("lost")
        expect(node_page.page.locator("#connection-lost")).to_be_visible()
        expect(node_page.page.locator("#health-code")).to_have_text(EMPTY_CELL)
        clocks = node_page.page.locator("#uptime"), node_page.cell("db", 2), node_page.cell("db", 4)
        texts = [clock.text_content() for clock in clocks]
        node_page.page.clock.run_for(8000)
        assert [clock.text_content() for clock in clocks] == texts


def test_a_failed_request_beside_an_open_stream_changes_nothing(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent))
    node_page.expect_health("partial")
    node_page.expect_connection("live")
    node_page.page.evaluate(RECORD_HEALTHS)
    node_page.allow_disconnect()
    node_page.page.route("**/details?*", lambda route: route.abort())
    with node_page.page.expect_event("requestfailed"):
        node_page.page.evaluate(TRIGGER_POLL)
    node_page.page.unroute_all()
    with node_page.page.expect_response("**/details?*"):
        node_page.page.evaluate(TRIGGER_POLL)
    assert node_page.page.evaluate("window.healths") == ["partial"]
    node_page.expect_connection("live")


def test_an_interrupted_stream_changes_nothing_while_the_node_answers(steady_agent: Agent, open_page: OpenPage) -> None:
    """As in a quick restart: the requests of that moment fail together with the stream."""
    node_page = open_page(url_of(steady_agent))
    node_page.page.add_init_script(KEEP_STREAM)
    node_page.page.reload()
    node_page.expect_connection("live")
    node_page.expect_health("partial")
    node_page.wait_for_bars("ledger")  # then its first requests are done
    node_page.page.evaluate(RECORD_HEALTHS)
    node_page.allow_disconnect()
    held: list[Route] = []

    def hold_first(route: Route) -> None:
        held.append(route)
        if len(held) > 1:
            route.continue_()

    node_page.page.route("**/details?*", hold_first)
    with node_page.page.expect_request("**/details?*"):
        node_page.page.evaluate(TRIGGER_POLL)
    node_page.page.evaluate(BREAK_STREAM)
    node_page.expect_connection("retrying")
    with node_page.page.expect_event("requestfailed"):
        held[0].abort()
    with node_page.page.expect_response("**/details?*"):
        node_page.page.evaluate(TRIGGER_POLL)
    node_page.expect_connection("polling")
    assert node_page.page.evaluate("window.healths") == ["partial"]


def test_without_a_stream_the_first_failed_request_turns_the_page_grey(
    steady_agent: Agent, open_page: OpenPage
) -> None:
    node_page = open_page(url_of(steady_agent), clock=True)
    node_page.page.add_init_script(KEEP_STREAM)
    node_page.page.reload()
    node_page.expect_connection("live")
    node_page.allow_disconnect()
    node_page.page.route("**/details?*", lambda route: route.abort())
    node_page.page.evaluate(BREAK_STREAM)
    node_page.page.clock.run_for(1000)
    node_page.expect_health("unknown")
    node_page.page.unroute_all()
    node_page.run_clock_until_health("partial")


def test_after_sleep_the_page_is_grey_until_a_request_succeeds(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent), clock=True)
    node_page.expect_health("partial")
    node_page.expect_connection("live")  # otherwise it loads the whole page
    node_page.allow_disconnect()
    node_page.page.route("**/details?*", lambda route: route.abort())
    node_page.suspend_for_an_hour()
    node_page.expect_health("unknown")
    node_page.page.unroute_all()
    node_page.run_clock_until_health("partial")


def test_a_response_from_before_the_sleep_is_ignored(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent), clock=True)
    node_page.expect_health("partial")
    node_page.expect_connection("live")  # otherwise it loads the whole page
    node_page.allow_disconnect()
    # The timeouts of a browser do not count the time of sleep.
    node_page.page.evaluate("AbortSignal.timeout = () => new AbortController().signal")
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    node_page.page.route("**/details?*", hold)
    while not held:
        node_page.page.clock.run_for(1000)
    node_page.suspend_for_an_hour()
    node_page.expect_health("unknown")
    with node_page.page.expect_response("**/details?*"):
        held[0].continue_()
    node_page.page.wait_for_timeout(200)
    node_page.expect_health("unknown")


def test_a_response_from_before_the_last_change_is_ignored(tmp_path: Path, open_page: OpenPage) -> None:
    with Agent(tmp_path, config=fixed_service()) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        old = agent.request("/details?id=db").body
        node_page = open_page(url_of(agent))
        node_page.page.route("**/details?*", lambda route: route.fulfill(body=old))
        with node_page.page.expect_request("**/details?*"):
            agent.reload(fixed_service("Down"))
            node_page.expect_status("db", "Down")
        with node_page.page.expect_response("**/details?*"):
            pass
        node_page.page.wait_for_timeout(200)
        node_page.expect_status("db", "Down")
        node_page.expect_health("unhealthy")


def test_without_events_the_page_follows_by_polling(tmp_path: Path, open_page: OpenPage) -> None:
    def refuse(route: Route) -> None:
        route.fulfill(status=503)

    with Agent(tmp_path, config=fixed_service()) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        node_page = open_page(url_of(agent), clock=True)
        node_page.allow_disconnect()
        node_page.page.route("**/events?*", refuse)
        node_page.page.reload()
        expect(node_page.page.locator("#node")).not_to_have_attribute("data-connection", "live")
        agent.reload(fixed_service("Down"))
        agent.wait_until(lambda: agent.health() == 503)
        node_page.run_clock_until_health("unhealthy")
        node_page.expect_status("db", "Down")


def test_a_hidden_page_closes_its_stream_when_another_page_is_visible(tmp_path: Path, open_page: OpenPage) -> None:
    with Agent(tmp_path, config=fixed_service()) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        node_page = open_page(url_of(agent), clock=True)
        node_page.expect_connection("live")
        ended: list[str] = []
        node_page.page.on("requestfailed", lambda request: ended.append(request.url))
        node_page.page.evaluate(HIDE)
        other = node_page.page.context.new_page()
        other.goto(url_of(agent))
        expect(other.locator("#node")).to_have_attribute("data-connection", "live")
        expect(node_page.page.locator("#node")).not_to_have_attribute("data-connection", "live")
        assert [url for url in ended if "/events" in url]

        # It still polls the health, and nothing else.
        agent.reload(fixed_service("Down"))
        agent.wait_until(lambda: agent.health() == 503)
        del node_page.requests[:]
        for _ in range(3):
            sent = len(node_page.requests)
            with node_page.page.expect_response("**/details?*"):
                while len(node_page.requests) == sent:  # in small steps: the clock must not pass the request's timeout
                    node_page.page.clock.run_for(1_000)
            node_page.expect_health("unhealthy")
        assert {url.partition(f":{agent.port}/")[2] for url in node_page.requests} <= {
            "details?recent_checks=0&id=",
            "static/unhealthy.svg",
        }

        node_page.page.evaluate("window.isHidden = false; document.dispatchEvent(new Event('visibilitychange'))")
        node_page.expect_connection("live")
        node_page.expect_status("db", "Down")


# ---- filter and order


def test_the_filter_matches_name_id_reason_and_code_and_is_saved_in_the_url(
    steady_agent: Agent, open_page: OpenPage
) -> None:
    node_page = open_page(url_of(steady_agent))
    page, box = node_page.page, node_page.page.get_by_role("searchbox", name="Filter by")
    node_page.expect_ids("chain", "queue", "ledger", "cache", "indexer")
    page.keyboard.press("/")
    expect(box).to_be_focused()
    page.keyboard.type("Database")
    node_page.expect_ids("ledger")
    expect(page.locator("#match-count")).to_have_text("1 of 5")
    assert page.url.endswith("#q=Database")
    box.fill("connection_refused")
    node_page.expect_ids("chain")
    box.fill("CACHE 1")
    node_page.expect_ids("cache")
    box.fill("nothing like it")
    node_page.expect_ids()
    expect(page.locator("#no-match")).to_be_visible()
    page.locator("#show-all").click()
    node_page.expect_ids("chain", "queue", "ledger", "cache", "indexer")
    box.fill("queue")
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
    "Reason": ("ascending", None),
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
    node_page.expect_ids("ledger", "cache", "indexer", "queue", "chain")  # equal rows keep the order of the node


def test_the_order_is_saved_in_the_url(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent, "#sort=-name"))
    node_page.expect_ids(*reversed(SORTED["Service"][1] or []))
    expect(node_page.page.get_by_role("columnheader", name="Service")).to_have_attribute("aria-sort", "descending")


def test_sorting_loads_the_values_of_all_rows(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent))
    with node_page.page.expect_response(lambda response: response.url.endswith("/details")):
        node_page.page.get_by_role("button", name="Latency").click()
    expect(node_page.page.locator(".chunk tr[data-id]").last).to_have_attribute("data-id", re.compile("indexer|queue"))


# ---- history


def test_history_is_shown_by_minute_hour_or_day(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent))
    for options, unit, many in (("24 h", "hour", 24), ("90 d", "day", 90), ("90 min", "minute", 90)):
        node_page.page.get_by_role("radio", name=options).check()
        expect(node_page.bars("ledger")).to_have_attribute(
            "aria-label", f"Availability of Ledger database in the last {options}, by {unit}"
        )
        expect(node_page.bars("ledger")).to_have_attribute("aria-valuemax", str(many - 1))
        expect(node_page.page.get_by_role("columnheader", name=f"Available, {options}")).to_be_visible()
    expect(node_page.cell("ledger", 6)).to_contain_text(re.compile(r"\d %"))


def test_the_mouse_shows_the_tooltip_of_a_bar(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent))
    box = node_page.bars("chain").bounding_box()
    assert box is not None
    details = node_page.tooltip.locator("[class='']")  # checks and latency
    while details.count() != 2:  # a minute that has just begun has no checks yet
        node_page.page.mouse.move(5, 5)
        node_page.page.mouse.move(box["x"] + box["width"] - 1, box["y"] + 5)
        node_page.page.wait_for_timeout(100)
    expect(node_page.tooltip.locator(".down")).to_have_text(re.compile(r"\d+ s"))
    node_page.page.mouse.move(box["x"] + 1, box["y"] + 5)
    expect(node_page.tooltip.locator(".unknown")).to_contain_text("1 min")
    node_page.page.mouse.move(5, 5)
    expect(node_page.tooltip).to_be_hidden()


def test_touch_shows_the_tooltip_of_a_bar(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent), has_touch=True, viewport={"width": 360, "height": 740})
    box = node_page.bars("chain").bounding_box()
    assert box is not None
    node_page.page.touchscreen.tap(box["x"] + box["width"] - 1, box["y"] + 5)
    expect(node_page.tooltip.locator(".down")).to_have_text(re.compile(r"\d+ s"))
    assert not node_page.overflows_viewport
    node_page.page.touchscreen.tap(20, 20)
    expect(node_page.tooltip).to_be_hidden()


def test_arrow_keys_move_between_bars(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent))
    bars = node_page.bars("chain")
    bars.focus()
    expect(node_page.tooltip).to_contain_text("Down")
    expect(bars).to_have_attribute("aria-valuetext", re.compile(r"\d\d:\d\d .* \d\d:\d\d, .*Down \d+ s"))
    node_page.page.keyboard.press("Home")
    expect(bars).to_have_attribute("aria-valuenow", "0")
    expect(bars).to_have_attribute("aria-valuetext", re.compile(r"\b1 min"))
    node_page.page.keyboard.press("ArrowRight")
    expect(bars).to_have_attribute("aria-valuenow", "1")
    node_page.page.keyboard.press("Escape")
    expect(node_page.tooltip).to_be_hidden()


# ---- groups


def grouped_services(status_of_a: str = "Up", names: tuple[str, ...] = ("a", "b")) -> str:
    payments = (
        service(f"pay/{name}", name=f"host {name}", group="payments", status=status_of_a if name == "a" else "Up")
        for name in names
    )
    search = service("find/a", group="search", status="Initializing")
    return HEAD + "".join(payments) + search + service("db", status="Up")


GROUPED = ["db", "search", "find/a", "payments", "pay/a", "pay/b"]


def test_groups_have_headings_with_counts_that_follow_the_node(tmp_path: Path, open_page: OpenPage) -> None:
    with Agent(tmp_path, config=grouped_services()) as agent:
        agent.wait_until(lambda: agent.statuses()["find/a"] == "Initializing")
        node_page = open_page(url_of(agent))
        payments = node_page.group("payments")
        assert node_page.rows == GROUPED
        expect(payments).to_contain_text("2 Up")
        expect(payments.get_by_text("0 Down")).to_be_hidden()

        agent.reload(grouped_services("Down"))
        expect(payments.get_by_text("1 Down")).to_be_visible()
        expect(payments).to_contain_text("1 Up")
        expect(node_page.page.locator(".chunk tr.group").first).to_have_attribute("data-group", "payments")

        agent.reload(grouped_services("Down", ("a", "b", "c")))
        expect(payments).to_contain_text("2 Up")
        assert node_page.rows == ["db", "payments", "pay/a", "pay/b", "pay/c", "search", "find/a"]


def test_groups_collapse_one_by_one_and_together_until_a_filter_shows_all_matches(
    tmp_path: Path, open_page: OpenPage
) -> None:
    with Agent(tmp_path, config=grouped_services()) as agent:
        agent.wait_until(lambda: agent.statuses()["find/a"] == "Initializing")
        node_page = open_page(url_of(agent))
        button = node_page.group("payments").get_by_role("button")
        button.click()
        expect(button).to_have_attribute("aria-expanded", "false")
        assert node_page.rows == ["db", "search", "find/a", "payments"]

        agent.reload(grouped_services("Up", ("a", "b", "c")))  # the table is replaced; the view stays
        expect(node_page.group("payments")).to_contain_text("3 Up")
        assert node_page.rows == ["db", "search", "find/a", "payments"]

        node_page.page.get_by_role("button", name="Collapse groups").click()
        assert node_page.rows == ["db", "search", "payments"]
        assert node_page.page.url.endswith("groups=collapsed")

        node_page.page.locator("#filter").fill("payments")
        assert node_page.rows == ["payments", "pay/a", "pay/b", "pay/c"]
        expect(button).to_be_disabled()

        node_page.page.locator("#filter").fill("")
        node_page.page.get_by_role("button", name="Expand groups").click()
        expect(button).to_have_attribute("aria-expanded", "true")
        assert node_page.rows == ["db", "search", "find/a", "payments", "pay/a", "pay/b", "pay/c"]


def test_without_groups_nothing_of_them_is_shown(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent))
    expect(node_page.page.locator("#toggle-groups")).to_be_hidden()
    expect(node_page.page.locator("tr.group")).to_have_count(0)


def test_nodes_of_a_fleet_appear_in_the_group_of_their_node(tmp_path: Path, open_page: OpenPage) -> None:
    nodes = tmp_path / "nodes.txt"
    nodes.write_text("127.0.0.1:1 ledger\n127.0.0.1:2 ledger\n127.0.0.1:3 search\n")
    fleet = f'[fleet]\nfile = "{nodes}"\nrefresh_interval = "1s"\nfall = 1\n'
    with Agent(tmp_path, config=HEAD + fleet) as agent:
        agent.wait_until(lambda: list(agent.statuses().values()).count("Down") == 3)
        node_page = open_page(url_of(agent))
        expect(node_page.group("ledger")).to_contain_text("2 Down")
        assert node_page.rows == [
            *("fleet", "ledger", "ledger/127.0.0.1:1", "ledger/127.0.0.1:2"),
            *("search", "search/127.0.0.1:3"),
        ]
        nodes.write_text("127.0.0.1:2 ledger\n127.0.0.1:3 search\n127.0.0.1:4 cart\n")
        expect(node_page.group("cart")).to_contain_text("1 Down")
        expect(node_page.group("ledger")).to_contain_text("1 Down")
        expect(node_page.row("ledger/127.0.0.1:1")).to_have_count(0)


@pytest.mark.parametrize("width", [1280, 390])
def test_groups_fit_the_viewport_without_javascript_too(width: int, tmp_path: Path, open_page: OpenPage) -> None:
    with Agent(tmp_path, config=grouped_services() + service("long", group="g" * 80, status="Down")) as agent:
        agent.wait_until(lambda: agent.statuses()["long"] == "Down")
        for has_script in (True, False):
            viewport = {"width": width, "height": 900}
            node_page = open_page(url_of(agent), java_script_enabled=has_script, viewport=viewport)
            expect(node_page.group("g" * 80)).to_contain_text("1 Down")
            assert not node_page.overflows_viewport


# ---- the expanded row


def test_a_row_expands_to_all_details(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent))
    button = node_page.row("chain").get_by_role("button")
    expect(button).to_have_attribute("aria-expanded", "false")
    button.focus()
    node_page.page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "true")
    panel = node_page.page.locator(".panel")
    expect(panel).to_contain_text("Follows <the> chain")
    expect(panel).to_contain_text("tcp://127.0.0.1:1")
    expect(panel.locator("dd code")).to_have_text("connection_refused")
    details = steady_agent.request("/details/chain").json
    since, first_failure = panel.locator("dd time").nth(0), panel.locator("dd time").nth(1)
    expect(since).to_have_attribute("datetime", details["since"])
    expect(first_failure).to_have_attribute("datetime", details["first_failure"]["at"])
    expect(panel).to_contain_text("more than 4 failures among 10 checks")
    expect(panel).to_contain_text(f"svcnode explain http://127.0.0.1:{steady_agent.port} --service chain")
    expect(panel.locator("section").nth(1).locator("code").first).to_have_text("connection_refused")
    expect(panel.locator(".transitions code").first).to_have_text("connection_refused")
    assert node_page.service_ids == ["chain", "queue", "ledger", "cache", "indexer"]
    node_page.page.keyboard.press("Space")
    expect(panel).to_have_count(0)
    expect(button).to_have_attribute("aria-expanded", "false")
    node_page.cell("chain", 2).click()
    expect(panel).to_have_count(1)


def test_a_fixed_status_is_not_shown_as_a_check_result(tmp_path: Path, open_page: OpenPage) -> None:
    config = HEAD + service("indexer", name="Indexer", status="Down") + service("other", status="Up")
    with Agent(tmp_path, config=config) as agent:
        agent.wait_until(lambda: agent.health() == 206)
        for has_script in (False, True):
            node_page = open_page(url_of(agent), java_script_enabled=has_script)
            if has_script:
                node_page.wait_for_bars("indexer")
            for column in (4, 5, 6):
                expect(node_page.cell("indexer", column)).to_have_text(EMPTY_CELL)
        node_page.row("indexer").get_by_role("button").click()
        _, checks, transitions = (node_page.panel("indexer").locator("section").nth(index) for index in range(3))
        expect(node_page.panel("indexer").locator("dd code")).to_have_text("fixed")
        expect(checks.locator(".none")).to_be_visible()
        expect(transitions.locator(".none")).to_be_visible()

        agent.reload(HEAD + service("indexer", name="Indexer", status="Up") + service("other", status="Up"))
        node_page.expect_status("indexer", "Up")
        expect(transitions.get_by_role("listitem")).to_have_count(1)
        expect(transitions.locator("code")).to_have_text("fixed")
        expect(node_page.cell("indexer", 6)).to_have_text(EMPTY_CELL)
        node_page.allow_disconnect()


# ---- devices, accessibility and odd text


def test_without_javascript_the_page_is_a_plain_table(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent), java_script_enabled=False)
    page = node_page.page
    node_page.expect_health("partial")
    assert node_page.service_ids == ["chain", "queue", "ledger", "cache", "indexer"]
    for service_id, status in {"chain": "Down", "queue": "Initializing", "ledger": "Up"}.items():
        node_page.expect_status(service_id, status)
    node_page.expect_code("chain", "connection_refused")
    expect(node_page.cell("chain", 3)).not_to_be_empty()
    expect(node_page.cell("ledger", 4)).to_have_text(re.compile(r"^\d+ s ago$"))
    expect(node_page.cell("ledger", 5)).to_have_text(re.compile(r"^[\d.]+ ms$"))
    expect(node_page.cell("ledger", 6)).to_have_text(re.compile(r"^[\d.]+ %$"))
    expect(page.locator("noscript .notice")).to_contain_text(re.compile(r"\d\d:\d\d:\d\d UTC"))
    expect(page.get_by_role("searchbox")).to_be_hidden()
    expect(page.get_by_role("button", name="Service")).to_be_disabled()
    page.locator("noscript .notice a").click()
    node_page.expect_health("partial")
    node_page.allow_disconnect()  # there is no icon for JSON
    page.get_by_role("link", name="Ledger database").click()
    assert '"id":"ledger"' in page.content()


@pytest.mark.parametrize("has_script", [True, False], ids=["with JavaScript", "without"])
def test_on_a_phone_no_cell_is_clipped(has_script: bool, steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent), viewport={"width": 360, "height": 740}, java_script_enabled=has_script)
    assert node_page.page.evaluate("innerWidth") == 360 if has_script else True
    for service_id in ("chain", "ledger"):
        for column in range(7):
            box = node_page.cell(service_id, column).bounding_box()
            assert box is None or (box["x"] >= 0 and box["x"] + box["width"] <= 360)
    if has_script:
        node_page.row("chain").get_by_role("button").click()
        expect(node_page.page.locator(".panel section")).to_have_count(3)
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
  const texts = [...document.querySelectorAll("main *")].filter((element) => element.checkVisibility()
    && [...element.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim()));
  return texts.map((element) => {
    const lights = [light(rgba(getComputedStyle(element).color)), light(ground(element))];
    const contrast = (Math.max(...lights) + 0.05) / (Math.min(...lights) + 0.05);
    return [`${element.tagName} ${element.className} ${element.textContent.slice(0, 30)}`, contrast];
  });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(scheme: str, steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent), color_scheme=scheme)
    node_page.row("chain").get_by_role("button").click()
    expect(node_page.page.locator(".panel section")).to_have_count(3)
    measured = node_page.page.evaluate(CONTRASTS)
    assert len(measured) > 80
    assert [(what, contrast) for what, contrast in measured if contrast < 4.5] == []
    ground = node_page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (int(re.findall(r"\d+", ground)[0]) < 64) == (scheme == "dark")


def test_reduced_motion_disables_animations(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent), reduced_motion="reduce")
    assert node_page.page.evaluate("document.getAnimations().length") == 0


def test_the_table_has_the_roles_and_names_for_screen_readers(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent))
    page = node_page.page
    table = page.get_by_role("table", name="Services of validator-7")
    expect(table.get_by_role("columnheader")).to_have_count(7)
    expect(table.get_by_role("rowheader")).to_have_count(5)
    expect(table.get_by_role("row")).to_have_count(6)
    expect(table.get_by_role("cell")).to_have_count(5 * 6)
    expect(node_page.row("ledger").get_by_role("button", name="Ledger database")).to_be_visible()
    expect(node_page.row("ledger").get_by_role("slider", name="Availability of Ledger database")).to_be_visible()
    expect(page.get_by_role("group", name="Filter by status").get_by_role("radio")).to_have_count(4)
    expect(page.get_by_role("group", name="History period").get_by_role("radio")).to_have_count(3)
    expect(page.locator("#announcement")).to_have_attribute("role", "status")
    page.keyboard.press("Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement.nextElementSibling).outlineStyle")
    assert outline == "solid"


def test_markup_in_names_and_reasons_stays_text(tmp_path: Path, open_page: OpenPage) -> None:
    hostile = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
    ids = [hostile, "\N{MAN}\N{GIRL} \N{FIRE}", "قاعدة البيانات", "a/b?c=d&e#f %2F ..", "..."]
    script = f"{hostile} in the body"
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
                expect(node_page.bars(one)).to_have_attribute("aria-label", re.compile(re.escape(one)))
            expect(node_page.page.get_by_role("heading", level=1)).to_contain_text(hostile)
            assert hostile in node_page.page.title()
            assert node_page.page.locator("img").count() == 0
            node_page.page.get_by_role("searchbox").fill("<script>alert(1)")
            node_page.expect_ids(hostile)
            node_page.allow_disconnect()


ALLOW_EXEC = "[security]\nallow_exec = true\n"
SLOW_SCHEDULE = {"interval": "6s", "transition_interval": "1s", "timeout": "5s"}
INVISIBLE_TEXT, ESCAPED_TEXT = "a\u202eb\u200bc\U000e0041", r"a\u202eb\u200bc\U000e0041"


def test_invisible_characters_are_shown_as_escapes(tmp_path: Path, open_page: OpenPage) -> None:
    service_id, program = "it\u202es", tmp_path / "check"
    program.write_text(f"#!/bin/sh\ntest -e {tmp_path}/up || {{ printf '{INVISIBLE_TEXT}\\a!\\n'; exit 1; }}\n")
    program.chmod(0o755)
    (tmp_path / "up").touch()
    options = {
        "name": INVISIBLE_TEXT,
        "description": INVISIBLE_TEXT,
        "impact": "critical",
        "rise": 1,
        "fall": 1,
        **SLOW_SCHEDULE,
    }
    head = HEAD.replace("validator-7", INVISIBLE_TEXT) + ALLOW_EXEC
    with Agent(tmp_path, config=head + service(service_id, probe=f"exec:{program}", **options)) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        node_page = open_page(url_of(agent))
        node_page.expect_health("healthy", ESCAPED_TEXT)
        (tmp_path / "up").unlink()
        node_page.expect_health("unhealthy", ESCAPED_TEXT)
        node_page.row(service_id).get_by_role("button").click()
        panel = node_page.panel(service_id)
        expect(panel.locator(".description")).to_have_text(ESCAPED_TEXT)
        expect(panel.locator(".list").first).to_contain_text(ESCAPED_TEXT + r"\x07!")
        expect(panel.locator(".transitions")).to_contain_text(ESCAPED_TEXT + r"\x07!")
        expect(panel).to_contain_text(r"$'it\u202es'")
        expect(node_page.cell(service_id, 3)).to_contain_text(f"{ESCAPED_TEXT}\\x07!")
        node_page.expect_code(service_id, "exit_status")
        expect(node_page.page.locator("#health-reason")).to_contain_text(r"it\u202es")
        reload_problem = node_page.page.evaluate("document.title + document.body.innerText")
        assert not ({*INVISIBLE_TEXT} - {*"abc"}) & {*reload_problem}
        assert sum(url.endswith(f":{agent.port}/") for url in node_page.requests) == 1
        node_page.allow_disconnect()


FORMAT = """async ([name, values]) => {
    const format = await import("./static/format.js");
    return values.map((value) => format[name](value));
}"""
LONG_ID = "x" * 80


def test_the_scripts_format_as_the_server_does(steady_agent: Agent, open_page: OpenPage) -> None:
    page = open_page(url_of(steady_agent)).page
    cases: list[tuple[str, Callable[[Any], str], list[Any]]] = [
        ("duration", format_coarse_duration, [0, 0.9, 59.99, 60, 3599, 3600, 5400, 86_399, 86_400, 200_000, 1e7]),
        ("latency", format_latency, [0.04, 9.94, 9.96, 12.4, 999.4, 999.6, 12_345]),
        ("percent", format_percent, [0, 0.00001, 0.5, 0.999999, 1]),
        ("escapeInvisible", one_line, ["a b", "a\tb\r\n", "\x00\x9b\xa0", INVISIBLE_TEXT]),
        ("shortenWords", shorten_words, ["a b", LONG_ID, f"{LONG_ID}, b", f"a {LONG_ID}: b {LONG_ID}"]),
    ]
    for name, function, values in cases:
        assert page.evaluate(FORMAT, [name, values]) == [function(value) for value in values]


def test_the_reason_of_a_check_that_cannot_run_is_shown(tmp_path: Path, open_page: OpenPage) -> None:
    with Agent(
        tmp_path, config=HEAD + ALLOW_EXEC + service("job", probe="exec:/nonexistent/prog", **SLOW_SCHEDULE)
    ) as agent:
        agent.wait_until(lambda: agent.request("/details?id=job").json["services"][0]["evidence"] is not None)
        for has_script in (True, False):
            node_page = open_page(url_of(agent), java_script_enabled=has_script)
            node_page.expect_code("job", "command_not_started")
            expect(node_page.cell("job", 3)).to_contain_text("/nonexistent/prog")
            if has_script:
                node_page.wait_for_bars("job")
                expect(node_page.cell("job", 3)).to_contain_text("/nonexistent/prog")
                node_page.row("job").get_by_role("button").click()
                expect(node_page.panel("job").locator("dl")).to_contain_text("/nonexistent/prog")
                node_page.allow_disconnect()


def test_the_latency_line_of_a_new_node_shows_its_last_checks(
    tmp_path: Path, server: SwitchableServer, open_page: OpenPage
) -> None:
    def points() -> int:
        path = node_page.row("db").locator(".line .stroke").get_attribute("d") or ""
        return len(re.findall("[ML]", path))

    with Agent(tmp_path, config=one_service(server.url) + 'interval = "200ms"\ntimeout = "190ms"\n') as agent:
        agent.wait_until(lambda: agent.request("/details?id=db").json["services"][0]["checks"]["ready"] > 10)
        node_page = open_page(url_of(agent, "#resolution=minutes"))
        expect(node_page.row("db").locator(".line.checks")).to_be_attached()
        agent.wait_until(lambda: points() >= 10)
        node_page.page.get_by_label("24 h").check()
        expect(node_page.row("db").locator(".line.checks")).to_have_count(0)
        node_page.allow_disconnect()


def test_a_very_long_id_is_truncated_in_the_headline_of_a_phone(tmp_path: Path, open_page: OpenPage) -> None:
    with Agent(tmp_path, config=HEAD + service("x" * 256, status="Down", impact="critical")) as agent:
        agent.wait_until(lambda: agent.health() == 503)
        node_page = open_page(url_of(agent), viewport={"width": 360, "height": 740})
        node_page.expect_health("unhealthy")
        node_page.wait_for_bars("x" * 256)
        box = node_page.page.locator("#health-reason").bounding_box()
        assert box is not None
        assert box["height"] < 120
        assert not node_page.overflows_viewport
        node_page.allow_disconnect()


def test_punctuation_after_a_truncated_id_stays(tmp_path: Path, open_page: OpenPage) -> None:
    ids = ("x" * 256, "y" * 64, "z")
    with Agent(tmp_path, config=HEAD + "".join(service(one, status="Down", impact="critical") for one in ids)) as agent:
        agent.wait_until(lambda: agent.health() == 503)
        node_page = open_page(url_of(agent), java_script_enabled=False)
        expect(node_page.page.locator("#health-reason")).to_contain_text(re.compile("x{48}…, y{64}\\W.*\\bz\\b"))
        node_page = open_page(url_of(agent), clock=True)
        with node_page.page.expect_response("**/details?*"):
            node_page.page.clock.run_for(6000)
        node_page.page.clock.run_for(1000)
        expect(node_page.page.locator("#health-reason")).to_contain_text(re.compile("x{48}…, y{64}\\W.*\\bz\\b"))
        node_page.allow_disconnect()


# ---- token and proxy

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


def test_with_a_token_every_path_needs_it_and_a_browser_can_send_it(tmp_path: Path, open_page: OpenPage) -> None:
    token = "a-token-of-some-length"
    config = (
        HEAD.replace("127.0.0.1:0", "0.0.0.0:0")
        + f'[security]\noperator_token = "{token}"\n'
        + service("db", status="Up")
    )
    with Agent(tmp_path, config=config) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        url = url_of(agent)
        node_page = open_page(url, http_credentials={"username": "operator", "password": token})
        node_page.expect_health("healthy")
        node_page.expect_connection("live")
        expect(node_page.bars("db")).to_be_visible()
        assert _codes(node_page.page, url) == dict.fromkeys([*PATHS, *MORE_PATHS], 401)


def test_behind_a_proxy_the_page_works_below_another_path(tmp_path: Path, open_page: OpenPage) -> None:
    """The example of docs/operate.md."""
    text = (Path(__file__).parents[2] / "docs" / "operate.md").read_text()
    _, location = re.findall(r"^```nginx\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    for old, new in (("location /", "location /validator-7/"), ("127.0.0.1:8420;", "127.0.0.1:8420/;")):
        assert old in location
        assert new in text
        location = location.replace(old, new)
    token = "a-token-of-some-length"
    security = f'[security]\noperator_token = "{token}"\n'
    with Agent(tmp_path, config=fixed_service() + security) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        with nginx_in_front_of(agent, location) as port:
            assert agent.request("/validator-7/", port).code == 401
            node_page = open_page(
                f"http://127.0.0.1:{port}/validator-7/",
                http_credentials={"username": "operator", "password": token},
            )
            node_page.expect_health("healthy")
            node_page.expect_connection("live")
            node_page.wait_for_bars("db")
            agent.reload(fixed_service("Down") + security)
            node_page.expect_health("unhealthy")
            node_page.page.close()


def _codes(page: Page, url: str) -> dict[str, int]:
    """Status codes without the token."""
    browser = page.context.browser
    assert browser is not None
    context = browser.new_context()
    try:
        return {path: context.request.get(url + path).status for path in [*PATHS, *MORE_PATHS]}
    finally:
        context.close()


# ---- many services


@pytest.fixture(scope="module")
def large_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    config = HEAD + "".join(service(f"svc-{number}", status="Up") for number in range(1998))
    config += service("last", name="The last one", status="Down") + service("probed", probe="tcp://127.0.0.1:1")
    with Agent(tmp_path_factory.mktemp("large_agent"), config=config) as agent:
        agent.wait_until(lambda: agent.statuses()["probed"] == "Down")
        yield agent


def test_two_thousand_services_are_found_and_sorted(large_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(large_agent))
    assert len(node_page.service_ids) == 2000
    assert node_page.service_ids[:3] == ["last", "probed", "svc-0"]
    assert node_page.page.locator("#statuses label").first.text_content() == "All 2000"
    node_page.page.locator("#filter").fill("svc-199")
    assert node_page.service_ids == ["svc-199", *(f"svc-{number}" for number in range(1990, 1998))]
    node_page.page.locator("#filter").fill("")
    node_page.page.locator("[data-sort=name]").click()
    assert node_page.service_ids == ["probed", *(f"svc-{number}" for number in range(1998)), "last"]


def test_only_visible_rows_are_requested(large_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(large_agent))
    node_page.wait_for_bars("probed")
    assert node_page.bars("svc-1990").count() == 0
    held = [url for url in node_page.requests if "/history" in url or "/details" in url]
    assert held
    assert max(url.count("id=") for url in held) <= 60
    node_page.page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    node_page.wait_for_bars("svc-1990")


def test_rows_out_of_view_are_not_laid_out(large_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(large_agent))
    node_page.wait_for_bars("probed")
    chunks = node_page.page.evaluate(
        """[...document.querySelectorAll(".chunk")].map((chunk) => [
            getComputedStyle(chunk).contentVisibility, chunk.rows[0].checkVisibility({ contentVisibilityAuto: true }),
        ])"""
    )
    assert len(chunks) == 100
    assert {visibility for visibility, _ in chunks} == {"auto"}
    assert 1 <= sum(is_laid_out for _, is_laid_out in chunks) <= 10


# ---- maintenance


def test_maintenance_is_shown_with_its_end_who_and_why(tmp_path: Path, open_page: OpenPage) -> None:
    control = f'[control]\nlisten = "unix:{tmp_path}/c.sock"\npath = "{tmp_path}/c.db"\n'
    services = (
        '[[services]]\nid = "db"\nname = "Ledger"\nprobe = "tcp://127.0.0.1:1"\nstart_period = "0s"\nfall = 1\n'
        '[[services]]\nid = "cache"\nstatus = "Up"\n'
    )
    with (
        Agent(tmp_path, "--listen", "127.0.0.1:0", "--name", "validator-7", config=control + services) as agent,
        Client(tmp_path / "c.sock") as client,
    ):
        agent.wait_until(lambda: agent.statuses() == {"db": "Down", "cache": "Up"})
        node_page = open_page(f"http://127.0.0.1:{agent.port}/")
        client.maintain("db", "2h", by="alice", reason="new disk")
        badge = node_page.row("db").locator(".status + .maintenance")
        expect(badge).to_have_text("Maintenance")
        expect(badge).to_have_attribute("title", re.compile(r"In maintenance until .* UTC, by alice: new disk"))
        expect(node_page.row("cache").locator(".status + .maintenance")).to_have_count(0)
        node_page.row("db").locator("a").click()
        expect(node_page.panel("db")).to_contain_text("by alice: new disk; messages are held")
        agent.wait_until(lambda: agent.request("/history?id=db").json["services"]["db"][-1][8] > 0)
        other_page = open_page(f"http://127.0.0.1:{agent.port}/")
        bars = other_page.row("db").locator(".bars")
        expect(bars).to_have_attribute("aria-valuetext", re.compile("Maintenance "))
        expect(bars.locator(".maintenance")).to_have_attribute("d", re.compile("^M"))
        expect(other_page.row("db").locator("td").last.locator("data")).to_have_text("0 % without maintenance")
        client.maintain(None, "1h", reason="kernel update")
        expect(node_page.page.locator("#notices .notice")).to_contain_text("The node is in maintenance: until ")
        expect(node_page.row("cache").locator(".status + .maintenance")).to_have_count(1)
        client.end_maintenance()
        client.end_maintenance("db")
        expect(badge).to_have_count(0)
        expect(node_page.page.locator("#notices .notice")).to_have_count(0)


# ---- a node on several machines


def test_replicas_and_the_loss_of_the_registry_are_shown(tmp_path: Path, open_page: OpenPage) -> None:
    with EtcdServer(tmp_path / "etcd") as etcd, ExitStack() as stack:

        def start(name: str, services: str) -> Agent:
            sharing = f'[sharing]\nregistry = "{etcd.url}"\nreplica = "{name}"\nlease = "2s"\n'
            folder = tmp_path / name
            folder.mkdir()
            options = ("--listen", "127.0.0.1:0", "--name", "ledger")
            return stack.enter_context(Agent(folder, *options, config=sharing + services))

        refused = service("db", probe="tcp://127.0.0.1:1", start_period="0s", fall=1, interval="1s", checked_by=["two"])
        one = start("one", refused)
        one.wait_until(lambda: one.statuses() == {"db": "Initializing"})
        node_page = open_page(f"http://127.0.0.1:{one.port}/")
        replicas = node_page.page.locator("#replica-list li")
        expect(replicas).to_have_text([re.compile("one.*checks 0 services.*this one")])
        start("two", "")
        expect(replicas).to_have_text([re.compile("one.*checks 0 services"), re.compile("two.*checks 1 service")])
        expect(node_page.row("db")).to_have_attribute("data-status", "Down")
        node_page.row("db").locator("a").click()
        expect(node_page.panel("db").locator(".observers li")).to_have_text(re.compile("two.*Down.*connection_refused"))
        expect(node_page.panel("db")).to_contain_text("Checked by")
        static_page = open_page(f"http://127.0.0.1:{one.port}/", java_script_enabled=False)
        expect(static_page.page.locator("#replica-list li")).to_have_count(2)
        etcd.kill()
        expect(node_page.page.locator("#notices .notice")).to_contain_text("Registry problem")
        etcd.start()
        expect(node_page.page.locator("#notices .notice")).to_have_count(0)
