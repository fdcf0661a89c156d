"""The page in a browser: it follows the node and can be used with mouse, touch, keyboard and screen reader.

Most tests share one of three nodes: one that never changes, one that each test gives its own services by a reload, and
one with many services.
"""

from __future__ import annotations

import json
import re
import signal
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Error, Route, expect

from svcnode.control import ControlClient
from svcnode.core.text import one_line
from svcnode.core.units import format_coarse_duration, format_latency, utc_text
from svcnode.operator.markup import EMPTY_CELL, format_percent
from svcnode.operator.static_files import static_name
from tests.browser.conftest import TOKEN
from tests.browser.page_object import ROWS
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
PHONE_WIDTH = 360


def service(service_id: str, **options: object) -> str:
    given = {"id": service_id, **options}
    lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in given.items())
    return "\n".join(["[[services]]", *lines, ""])


def critical(service_id: str, status: str = "Up", **options: object) -> str:
    return service(service_id, status=status, impact="critical", **options)


class SwitchableServer(HttpBackend):
    """A server that answers 200 or 500."""

    def __init__(self) -> None:
        super().__init__(lambda _: http_response(200 if self.is_healthy else 500))
        self.is_healthy = True
        self.url = f"http://{self.address}/ready"


@pytest.fixture(scope="module")
def steady_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """A node whose services do not change."""
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


class ChangingNode:
    """A node whose services a test replaces."""

    def __init__(self, folder: Path) -> None:
        self.control_socket = folder / "c.sock"
        self._head = f'{HEAD}[control]\nlisten = "unix:{self.control_socket}"\npath = "{folder}/c.db"\n'
        self.agent = Agent(folder, config=self._head)

    @property
    def url(self) -> str:
        return url_of(self.agent)

    def set_services(self, *services: str) -> None:
        """A fixed status is published at once."""
        self.agent.reload(self._head + "".join(services))

    def fail_reload(self) -> None:
        self.agent.reload(self._head + 'colour = "blue"\n')


@pytest.fixture(scope="module")
def changing_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChangingNode]:
    node = ChangingNode(tmp_path_factory.mktemp("changing_node"))
    with node.agent:
        yield node


def url_of(agent: Agent, fragment: str = "") -> str:
    return f"http://127.0.0.1:{agent.port}/{fragment}"


# ---- updates


def test_changes_are_shown_as_they_happen(changing_node: ChangingNode, open_page: OpenPage) -> None:
    def points() -> int:
        path = node_page.row("db").locator(".line .stroke").get_attribute("d") or ""
        return len(re.findall("[ML]", path))

    with SwitchableServer() as server:
        probed = {"probe": server.url, "rise": 1, "fall": 1, "interval": "200ms", "timeout": "190ms"}
        changing_node.set_services(service("db", name="Ledger", impact="critical", **probed))
        changing_node.agent.wait_until(lambda: changing_node.agent.health() == 200)
        node_page = open_page(changing_node.url + "#resolution=minutes")
        node_page.expect_health("healthy")
        node_page.expect_status("db", "Up")
        node_page.expect_connection("live")
        node_page.page.evaluate("window.isSamePage = true")

        server.is_healthy = False
        node_page.expect_health("unhealthy")
        node_page.expect_status("db", "Down")
        node_page.expect_code("db", "server_error")
        expect(node_page.cell("db", 3)).to_contain_text("500")
        expect(node_page.page.locator("#problems .title")).to_have_text("Ledger")
        expect(node_page.page.get_by_label("Down 1")).to_be_attached()
        expect(node_page.page.locator("#announcement")).to_contain_text("unhealthy")

        server.is_healthy = True
        node_page.expect_health("healthy")
        node_page.expect_status("db", "Up")
        assert node_page.page.evaluate("window.isSamePage")
        assert sum(url.endswith(f":{changing_node.agent.port}/") for url in node_page.requests) == 1

        # Without whole minutes, the latency line has the last checks.
        expect(node_page.row("db").locator(".line.checks")).to_be_attached()
        changing_node.agent.wait_until(lambda: points() >= 10)
        node_page.page.get_by_role("group", name="History period").get_by_label("24 h").check()
        expect(node_page.row("db").locator(".line.checks")).to_have_count(0)
        node_page.leave()
        changing_node.set_services(critical("db"))


def test_a_reload_adds_and_removes_rows_and_shows_its_failure(changing_node: ChangingNode, open_page: OpenPage) -> None:
    def reload_problem() -> object:
        return changing_node.agent.request("/details?id=").json["node"]["reload_problem"]

    changing_node.set_services(service("a", status="Up"), service("b", status="Up"))
    node_page = open_page(changing_node.url)
    node_page.expect_ids("a", "b")
    node_page.row("a").get_by_role("button").click()
    expect(node_page.panel("a").locator("section")).to_have_count(3)
    node_page.leave_table()

    changing_node.set_services(service("a", status="Up"), service("c", name="New", status="Down"))
    node_page.expect_ids("c", "a")
    node_page.expect_health("partial")
    expect(node_page.row("a").get_by_role("button")).to_have_attribute("aria-expanded", "true")
    expect(node_page.page.get_by_label("All 2")).to_be_attached()

    changing_node.set_services(service("a", status="Down"), service("c", name="New", status="Down"))
    node_page.expect_status("a", "Down")
    transition = node_page.panel("a").locator("section").nth(2).get_by_role("listitem").first
    expect(transition).to_contain_text("Down")
    expect(transition.locator("code")).to_have_text("fixed")
    expect(node_page.cell("a", 6)).to_have_text(EMPTY_CELL)

    changing_node.fail_reload()
    changing_node.agent.wait_until(lambda: reload_problem() is not None)
    notices = node_page.page.locator("#notices .notice")
    expect(notices).to_have_count(1)
    changing_node.set_services(critical("db"))
    changing_node.agent.wait_until(lambda: reload_problem() is None)
    expect(notices).to_have_count(0)


# ---- never a better health than is known

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
TRIGGER_POLL = "document.dispatchEvent(new Event('visibilitychange'))"  # a page that becomes visible polls at once


def test_the_page_of_a_killed_node_turns_grey_at_once_and_recovers_by_itself(
    tmp_path: Path, open_page: OpenPage
) -> None:
    with Agent(tmp_path, config=HEAD + critical("db")) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        port = agent.port
        pages = [open_page(url_of(agent), has_clock=True) for _ in ("visible", "hidden")]
        for node_page in pages:
            node_page.expect_health("healthy")
            node_page.expect_connection("live")
            node_page.allow_disconnect()
            node_page.page.evaluate("window.isSamePage = true")
        pages[1].page.evaluate(HIDE)
        agent.signal(signal.SIGKILL)
        for node_page in pages:
            node_page.expect_health("unknown")
            node_page.expect_connection("lost")
            expect(node_page.page.locator("#connection-lost")).to_be_visible()
            expect(node_page.page.locator("#announcement")).to_contain_text("unknown")
            expect(node_page.page.locator("#health-code")).to_have_text(EMPTY_CELL)
            clocks = node_page.page.locator("#uptime"), node_page.cell("db", 2), node_page.cell("db", 4)
            texts = [clock.text_content() for clock in clocks]
            node_page.page.clock.run_for(8000)
            assert [clock.text_content() for clock in clocks] == texts
            assert node_page.page.evaluate("getComputedStyle(document.querySelector('tbody')).filter") == "grayscale(1)"
    pages[1].page.close()

    node_page = pages[0]
    with Agent(tmp_path, "--listen", f"127.0.0.1:{port}", config=HEAD + critical("db", "Down")) as agent:
        agent.wait_until(lambda: agent.health() == 503)
        node_page.run_clock_until_health("unhealthy")
        node_page.expect_status("db", "Down")
        expect(node_page.page.locator("#connection-lost")).to_be_hidden()
        node_page.expect_connection("live")
        assert node_page.page.evaluate("window.isSamePage")


def test_a_failed_request_or_an_interrupted_stream_alone_changes_nothing_and_both_turn_the_page_grey(
    steady_agent: Agent, open_page: OpenPage
) -> None:
    """As in a quick restart: the requests of that moment fail together with the stream."""
    node_page = open_page(url_of(steady_agent))
    node_page.expect_connection("live")
    node_page.expect_health("partial")
    node_page.wait_for_bars("ledger")  # then its first requests are done
    node_page.page.evaluate(RECORD_HEALTHS)
    node_page.allow_disconnect()
    node_page.page.route("**/page/changes?*", lambda route: route.abort())
    with node_page.page.expect_event("requestfailed"):
        node_page.page.evaluate(TRIGGER_POLL)
    node_page.page.unroute_all()
    with node_page.page.expect_response("**/page/changes?*"):
        node_page.page.evaluate(TRIGGER_POLL)
    node_page.expect_connection("live")

    held: list[Route] = []

    def hold_first(route: Route) -> None:
        held.append(route)
        if len(held) > 1:
            route.continue_()

    node_page.page.route("**/page/changes?*", hold_first)
    with node_page.page.expect_request("**/page/changes?*"):
        node_page.page.evaluate(TRIGGER_POLL)
    node_page.page.route("**/page/events", lambda route: route.fulfill(status=503))
    node_page.break_stream()
    node_page.expect_connection("retrying")
    with node_page.page.expect_event("requestfailed"):
        held[0].abort()
    with node_page.page.expect_response("**/page/changes?*"):
        node_page.page.evaluate(TRIGGER_POLL)
    node_page.expect_connection("polling")
    assert node_page.page.evaluate("window.healths") == ["partial"]

    # Without a stream, the first failed request turns the page grey.
    node_page.page.unroute_all()
    node_page.page.reload()
    node_page.expect_connection("live")
    node_page.page.route("**/page/changes?*", lambda route: route.abort())
    node_page.break_stream()
    node_page.expect_health("unknown")
    node_page.page.unroute_all()
    node_page.expect_health("partial")


def test_after_sleep_the_page_is_grey_until_a_new_request_succeeds(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent), has_clock=True)
    node_page.expect_health("partial")
    node_page.expect_connection("live")  # otherwise it loads the whole page
    node_page.allow_disconnect()
    held: list[Route] = []
    node_page.page.route("**/page/changes?*", lambda route: held.append(route))  # noqa: PLW0108  Playwright wraps it
    while not held:
        node_page.page.clock.run_for(1000)
    before_sleep = list(held)
    node_page.suspend_for_an_hour()
    node_page.expect_health("unknown")
    for route in before_sleep:
        with suppress(Error):  # the page may have given it up
            route.continue_()
    node_page.page.wait_for_timeout(200)
    node_page.expect_health("unknown")
    for route in held[len(before_sleep) :]:
        route.abort()
    node_page.page.unroute_all()
    node_page.run_clock_until_health("partial")


def test_a_change_during_a_request_is_shown_after_it(changing_node: ChangingNode, open_page: OpenPage) -> None:
    """The response that arrives late is from before the change."""
    changing_node.set_services(critical("db"))
    node_page = open_page(changing_node.url)
    node_page.wait_for_bars("db")
    held: list[tuple[Route, bytes]] = []

    def hold_first(route: Route) -> None:
        if held:
            route.continue_()
        else:
            held.append((route, route.fetch().body()))

    node_page.page.route("**/page/changes?*", hold_first)
    node_page.page.evaluate(TRIGGER_POLL)
    while not held:
        node_page.page.wait_for_timeout(20)
    changing_node.set_services(critical("db", "Down"))
    ((route, body),) = held
    route.fulfill(body=body, content_type="text/html; charset=utf-8")
    node_page.expect_status("db", "Down")
    node_page.expect_health("unhealthy")


def test_without_events_the_page_follows_by_polling(changing_node: ChangingNode, open_page: OpenPage) -> None:
    changing_node.set_services(critical("db"))
    node_page = open_page(changing_node.url)
    node_page.allow_disconnect()
    node_page.page.route("**/page/events", lambda route: route.fulfill(status=503))
    node_page.page.reload()
    expect(node_page.page.locator("#node")).not_to_have_attribute("data-connection", "live")
    changing_node.set_services(critical("db", "Down"))
    node_page.expect_health("unhealthy")
    node_page.expect_status("db", "Down")


def test_a_hidden_page_closes_its_stream_when_another_page_is_visible(
    changing_node: ChangingNode, open_page: OpenPage
) -> None:
    changing_node.set_services(critical("db"))
    node_page = open_page(changing_node.url, has_clock=True)
    node_page.expect_connection("live")
    ended: list[str] = []
    node_page.page.on("requestfailed", lambda request: ended.append(request.url))
    node_page.page.evaluate(HIDE)
    other = node_page.page.context.new_page()
    other.goto(changing_node.url)
    expect(other.locator("#node")).to_have_attribute("data-connection", "live")
    expect(node_page.page.locator("#node")).not_to_have_attribute("data-connection", "live")
    assert [url for url in ended if "/events" in url]

    # It still polls the health, and nothing else.
    changing_node.set_services(critical("db", "Down"))
    del node_page.requests[:]
    for _ in range(3):
        sent = len(node_page.requests)
        with node_page.page.expect_response("**/page/changes?*"):
            while len(node_page.requests) == sent:  # in small steps: the clock must not pass the request's timeout
                node_page.page.clock.run_for(1_000)
        node_page.expect_health("unhealthy")
    urls = {url.removeprefix(changing_node.url) for url in node_page.requests}
    assert not [url for url in urls if "id=" in url]
    assert urls <= {
        *(url for url in urls if url.startswith("page/changes?after=")),
        f"static/{static_name('unhealthy.svg')}",
    }

    node_page.page.evaluate("window.isHidden = false; document.dispatchEvent(new Event('visibilitychange'))")
    node_page.expect_connection("live")
    node_page.expect_status("db", "Down")


# ---- filter and order


def test_the_filter_matches_name_reason_and_code_and_the_counts_are_filters(
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
    node_page.expect_ids("queue")
    box.press("Escape")
    expect(box).to_have_value("")
    node_page.expect_ids("chain", "queue", "ledger", "cache", "indexer")

    page.get_by_role("radio", name="Down 1").check()
    node_page.expect_ids("chain")
    page.keyboard.press("ArrowRight")
    node_page.expect_ids("queue")
    expect(page.get_by_role("radio", name="Initializing 1")).to_be_checked()
    page.get_by_role("radio", name="Up 3").check()
    node_page.expect_ids("ledger", "cache", "indexer")
    assert page.url.endswith("#status=Up")
    page.reload()
    node_page.expect_ids("ledger", "cache", "indexer")
    expect(page.get_by_role("radio", name="Up 3")).to_be_checked()


SORTED = {
    "Service": ("ascending", ["queue", "cache", "chain", "indexer", "ledger"]),  # 9 before 10
    "Reason": ("ascending", None),
    "For": ("ascending", None),
    "Last check": ("descending", None),
    "Available": ("ascending", None),
    "Status": ("ascending", ["chain", "queue", "ledger", "cache", "indexer"]),
}
OPPOSITE = {"ascending": "descending", "descending": "ascending"}


def test_every_column_sorts_both_ways_all_rows_and_the_order_is_in_the_url(
    steady_agent: Agent, open_page: OpenPage
) -> None:
    node_page = open_page(url_of(steady_agent, "#sort=-name"))
    node_page.expect_ids(*reversed(SORTED["Service"][1] or []))
    expect(node_page.page.get_by_role("columnheader", name="Service")).to_have_attribute("aria-sort", "descending")
    with node_page.page.expect_response(
        lambda response: response.url.endswith("/page/changes?")
    ):  # also of hidden rows
        node_page.page.get_by_role("button", name="Latency").click()
    expect(node_page.page.get_by_role("columnheader", name="Latency")).to_have_attribute("aria-sort", "descending")
    expect(node_page.page.locator(ROWS).last).to_have_attribute("data-id", re.compile("indexer|queue"))
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


def test_history_is_shown_by_minute_hour_or_day_and_the_tooltip_follows_mouse_and_keys(
    steady_agent: Agent, open_page: OpenPage
) -> None:
    node_page = open_page(url_of(steady_agent))
    for options, unit, many in (("24 h", "hour", 24), ("90 d", "day", 90), ("90 min", "minute", 90)):
        node_page.page.get_by_role("group", name="History period").get_by_role("radio", name=options).check()
        expect(node_page.bars("ledger")).to_have_attribute(
            "aria-label", f"Availability of Ledger database in the last {options}, by {unit}"
        )
        expect(node_page.bars("ledger")).to_have_attribute("aria-valuemax", str(many - 1))
        expect(node_page.page.get_by_role("columnheader", name=f"Available, {options}")).to_be_visible()
    expect(node_page.cell("ledger", 6)).to_contain_text(re.compile(r"\d %"))

    bars = node_page.bars("chain")
    box = bars.bounding_box()
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

    bars.focus()
    expect(node_page.tooltip).to_contain_text("Down")
    expect(bars).to_have_attribute("aria-valuetext", re.compile(r":\d\d:00 to .*:\d\d:00 UTC, .*Down \d+ s"))
    node_page.page.keyboard.press("Home")
    expect(bars).to_have_attribute("aria-valuenow", "0")
    expect(bars).to_have_attribute("aria-valuetext", re.compile(r"\b1 min"))
    node_page.page.keyboard.press("ArrowRight")
    expect(bars).to_have_attribute("aria-valuenow", "1")
    node_page.page.keyboard.press("Escape")
    expect(node_page.tooltip).to_be_hidden()


def test_groups_have_counts_and_collapse_one_by_one_and_together_until_a_filter_shows_all_matches(
    changing_node: ChangingNode, open_page: OpenPage
) -> None:
    long_group = "g" * 80

    def set_groups(status_of_a: str = "Up", names: str = "ab", more: str = "") -> None:
        payments = (
            service(f"pay/{name}", name=f"host {name}", group="payments", status=status_of_a if name == "a" else "Up")
            for name in names
        )
        search = service("find/a", group="search", status="Initializing")
        changing_node.set_services(*payments, search, service("db", status="Up"), more)

    set_groups()
    node_page = open_page(changing_node.url)
    payments = node_page.group("payments")
    button = payments.get_by_role("button")
    assert node_page.rows == ["db", "search", "find/a", "payments", "pay/a", "pay/b"]
    expect(payments).to_contain_text("2 Up")
    expect(payments.get_by_text("0 Down")).to_be_hidden()

    set_groups("Down")
    expect(payments.get_by_text("1 Down")).to_be_visible()
    expect(payments).to_contain_text("1 Up")
    expect(node_page.page.locator(".chunk tr.group").first).to_have_attribute("data-group", "payments")
    assert node_page.rows == ["db", "payments", "pay/a", "pay/b", "search", "find/a"]

    button.click()
    expect(button).to_have_attribute("aria-expanded", "false")
    assert node_page.rows == ["db", "payments", "search", "find/a"]
    set_groups("Down", "abc")  # the table is replaced; the view stays
    expect(payments).to_contain_text("2 Up")
    assert node_page.rows == ["db", "payments", "search", "find/a"]

    node_page.page.get_by_role("button", name="Collapse groups").click()
    assert node_page.rows == ["db", "payments", "search"]
    assert node_page.page.url.endswith("groups=collapsed")
    node_page.page.locator("#filter").fill("payments")
    assert node_page.rows == ["payments", "pay/a", "pay/b", "pay/c"]
    expect(button).to_be_disabled()
    node_page.page.locator("#filter").fill("")
    node_page.page.get_by_role("button", name="Expand groups").click()
    expect(button).to_have_attribute("aria-expanded", "true")
    assert node_page.rows == ["db", "payments", "pay/a", "pay/b", "pay/c", "search", "find/a"]

    set_groups(more=service("long", group=long_group, status="Down"))
    static_page = open_page(changing_node.url, has_script=False)
    for one in (node_page, static_page):
        expect(one.group(long_group)).to_contain_text("1 Down")
        for width in (1280, 390):
            one.page.set_viewport_size({"width": width, "height": 900})
            assert not one.overflows_viewport


# ---- the expanded row

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


def test_a_row_expands_to_all_details_with_enough_contrast(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent))
    page, button = node_page.page, node_page.row("chain").get_by_role("button")
    expect(button).to_have_attribute("aria-expanded", "false")
    button.focus()
    page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "true")
    panel = page.locator(".panel")
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

    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        measured = page.evaluate(CONTRASTS)
        assert len(measured) > 80
        assert [(what, contrast) for what, contrast in measured if contrast < 4.5] == []
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (int(re.findall(r"\d+", ground)[0]) < 64) == (scheme == "dark")

    page.keyboard.press("Space")
    expect(panel).to_have_count(0)
    expect(button).to_have_attribute("aria-expanded", "false")
    node_page.cell("chain", 2).click()
    expect(panel).to_have_count(1)
    node_page.cell("chain", 2).click()

    # A fixed status is not shown as the result of a check.
    node_page.row("queue").get_by_role("button").click()
    expect(panel.locator("dd code")).to_have_text("fixed")
    expect(panel.locator("section").nth(1).locator(".none")).to_be_visible()
    node_page.wait_for_bars("queue")
    for column in (4, 5, 6):
        expect(node_page.cell("queue", column)).to_have_text(EMPTY_CELL)


# ---- devices, accessibility and odd text


def test_without_javascript_the_page_is_a_plain_table(steady_agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(steady_agent), has_script=False)
    page = node_page.page
    node_page.expect_health("partial")
    assert node_page.service_ids == ["chain", "queue", "ledger", "cache", "indexer"]
    node_page.expect_status("chain", "Down")
    expect(node_page.cell("ledger", 5)).to_have_text(re.compile(r"^[\d.]+ ms$"))
    expect(page.locator("noscript .notice")).to_contain_text(re.compile(r"\d\d:\d\d:\d\d UTC"))
    expect(page.get_by_role("searchbox")).to_be_hidden()
    expect(page.get_by_role("button", name="Service")).to_be_disabled()
    expect_nothing_is_clipped_on_a_phone(node_page)
    page.locator("noscript .notice a").click()
    node_page.expect_health("partial")
    node_page.allow_disconnect()  # there is no icon for JSON
    page.get_by_role("link", name="Ledger database").click()
    assert '"id":"ledger"' in page.content()


def expect_nothing_is_clipped_on_a_phone(node_page: NodePage) -> None:
    node_page.page.set_viewport_size({"width": PHONE_WIDTH, "height": 740})
    for service_id in ("chain", "ledger"):
        for column in range(7):
            box = node_page.cell(service_id, column).bounding_box()
            assert box is None or (box["x"] >= 0 and box["x"] + box["width"] <= PHONE_WIDTH)
    assert not node_page.overflows_viewport


def test_on_a_phone_nothing_is_clipped_and_touch_shows_the_tooltip_of_a_bar(
    steady_agent: Agent, open_page: OpenPage
) -> None:
    node_page = open_page(url_of(steady_agent), width=PHONE_WIDTH)
    assert node_page.page.evaluate("innerWidth") == PHONE_WIDTH
    node_page.row("chain").scroll_into_view_if_needed()
    box = node_page.bars("chain").bounding_box()
    assert box is not None
    node_page.page.touchscreen.tap(box["x"] + box["width"] - 1, box["y"] + 5)
    expect(node_page.tooltip.locator(".down")).to_have_text(re.compile(r"\d+ s"))
    assert not node_page.overflows_viewport
    node_page.page.touchscreen.tap(20, 20)
    expect(node_page.tooltip).to_be_hidden()
    expect_nothing_is_clipped_on_a_phone(node_page)
    node_page.row("chain").get_by_role("button").click()
    expect(node_page.page.locator(".panel section")).to_have_count(3)
    assert not node_page.overflows_viewport


FORMAT = """async ([file, name, values]) => {
    const format = await import(`./static/${file}`);
    return values.map((value) => format[name](value));
}"""
INVISIBLE_TEXT, ESCAPED_TEXT = "a\u202eb\u200bc\U000e0041", r"a\u202eb\u200bc\U000e0041"


def test_the_table_has_roles_and_names_for_screen_readers_and_formats_as_the_server_does(
    steady_agent: Agent, open_page: OpenPage
) -> None:
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
    expect(page.locator("#toggle-groups")).to_be_hidden()
    expect(page.locator("tr.group")).to_have_count(0)
    page.locator("#problems a").last.focus()
    page.keyboard.press("Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement.nextElementSibling).outlineStyle")
    assert outline == "solid"

    animations = "document.getAnimations().length"
    assert page.evaluate(animations) == 0, "reduced motion"
    page.emulate_media(reduced_motion="no-preference")
    assert page.evaluate(animations) > 0

    cases: list[tuple[str, Callable[[Any], str], list[Any]]] = [
        ("duration", format_coarse_duration, [0, 0.9, 59.99, 60, 3599, 3600, 5400, 86_399, 86_400, 200_000, 1e7]),
        ("utcText", lambda ms: utc_text(ms / 1000), [0, 1_767_268_799_999, 1_767_268_800_000]),
        ("latency", format_latency, [0.04, 9.94, 9.96, 12.4, 999.4, 999.6, 12_345]),
        ("percent", format_percent, [0, 0.00001, 0.5, 0.999999, 1]),
        ("escapeInvisible", one_line, ["a b", "a\tb\r\n", "\x00\x9b\xa0", INVISIBLE_TEXT]),
    ]
    for name, function, values in cases:
        assert page.evaluate(FORMAT, [static_name("format.js"), name, values]) == [function(value) for value in values]


HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"


def test_markup_stays_text_and_invisible_characters_are_shown_as_escapes(tmp_path: Path, open_page: OpenPage) -> None:
    ids = [HOSTILE, "\N{MAN}\N{GIRL} \N{FIRE}", "قاعدة البيانات", "a/b?c=d&e#f %2F ..", "..."]
    invisible_id, program = "it\u202es", tmp_path / "check"
    program.write_text(f"#!/bin/sh\ntest -e {tmp_path}/up || {{ printf '{INVISIBLE_TEXT}\\a!\\n'; exit 1; }}\n")
    program.chmod(0o755)
    (tmp_path / "up").touch()
    schedule = {"interval": "6s", "transition_interval": "1s", "timeout": "5s", "rise": 1, "fall": 1}
    texts = {"name": INVISIBLE_TEXT, "description": INVISIBLE_TEXT, "impact": "critical"}
    node_name = f"{HOSTILE} {INVISIBLE_TEXT}"
    with HttpBackend(http_response(500, HOSTILE)) as backend:
        head = HEAD.replace('name = "validator-7"', f"name = {json.dumps(node_name, ensure_ascii=False)}")
        config = (
            head
            + "[security]\nallow_exec = true\n"
            + "".join(
                service(one, name=one, description=one, impact="none", probe=f"http://{backend.address}/", **schedule)
                for one in ids
            )
        )
        config += service(invisible_id, probe=f"exec:{program}", **texts, **schedule)
        config += service("job", probe="exec:/nonexistent/prog", impact="none", **schedule)
        with Agent(tmp_path, config=config) as agent:
            agent.wait_until(lambda: agent.health() == 200)
            agent.wait_until(lambda: agent.request("/details?id=job").json["services"][0]["evidence"] is not None)
            static_page = open_page(url_of(agent), has_script=False)
            node_page = open_page(url_of(agent))
            node_page.expect_health("healthy", f"{HOSTILE} {ESCAPED_TEXT}")
            for one in ids:
                button = node_page.row(one).get_by_role("button")
                expect(button).to_have_text(one)
                button.click()
                expect(node_page.panel(one)).to_contain_text("svcnode explain")
                expect(node_page.panel(one).locator(".description")).to_have_text(one)
                expect(node_page.bars(one)).to_have_attribute("aria-label", re.compile(re.escape(one)))
            assert node_page.page.locator("img").count() == 0

            # A check that cannot run has a reason, too.
            for page in (static_page, node_page):
                page.expect_code("job", "command_not_started")
                expect(page.cell("job", 3)).to_contain_text("/nonexistent/prog")
            node_page.row("job").get_by_role("button").click()
            expect(node_page.panel("job").locator("dl")).to_contain_text("/nonexistent/prog")

            (tmp_path / "up").unlink()
            node_page.expect_health("unhealthy", f"{HOSTILE} {ESCAPED_TEXT}")
            node_page.row(invisible_id).get_by_role("button").click()
            panel = node_page.panel(invisible_id)
            expect(panel.locator(".description")).to_have_text(ESCAPED_TEXT)
            expect(panel.locator(".list").first).to_contain_text(ESCAPED_TEXT + r"\x07!")
            expect(panel.locator(".transitions")).to_contain_text(ESCAPED_TEXT + r"\x07!")
            expect(panel).to_contain_text(r"$'it\u202es'")
            expect(node_page.cell(invisible_id, 3)).to_contain_text(f"{ESCAPED_TEXT}\\x07!")
            node_page.expect_code(invisible_id, "exit_status")
            expect(node_page.page.locator("#problems .title").first).to_have_text(ESCAPED_TEXT)
            shown = node_page.page.evaluate("document.title + document.body.innerText")
            assert not ({*INVISIBLE_TEXT} - {*"abc"}) & {*shown}
            assert sum(url.endswith(f":{agent.port}/") for url in node_page.requests) == 1

            node_page.page.get_by_role("searchbox").fill("<script>alert(1)")
            node_page.expect_ids(HOSTILE)
            node_page.allow_disconnect()


def test_very_long_ids_and_names_do_not_widen_the_problems(changing_node: ChangingNode, open_page: OpenPage) -> None:
    names = ("x" * 256, "y" * 64)
    changing_node.set_services(*(critical(one, "Down", group=one) for one in names))
    for has_script in (False, True):
        node_page = open_page(changing_node.url, width=PHONE_WIDTH, has_script=has_script)
        expect(node_page.page.locator("#problems .title")).to_have_text([*names])
        assert not has_script or not node_page.overflows_viewport


def test_with_a_token_behind_a_proxy_the_page_works_below_another_path(tmp_path: Path, open_page: OpenPage) -> None:
    """The example of docs/operate.md."""
    text = (Path(__file__).parents[2] / "docs" / "operate.md").read_text()
    _, location = re.findall(r"^```nginx\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    for old, new in (("location /", "location /validator-7/"), ("127.0.0.1:8420;", "127.0.0.1:8420/;")):
        assert old in location
        assert new in text
        location = location.replace(old, new)
    security = f'[security]\noperator_token = "{TOKEN}"\n'
    with Agent(tmp_path, config=HEAD + security + critical("db")) as agent:
        agent.wait_until(lambda: agent.health() == 200)
        with nginx_in_front_of(agent, location) as port:
            assert agent.request("/validator-7/", port).code == 401
            node_page = open_page(f"http://127.0.0.1:{port}/validator-7/")
            node_page.expect_health("healthy")
            node_page.expect_connection("live")
            node_page.wait_for_bars("db")
            agent.reload(HEAD + security + critical("db", "Down"))
            node_page.expect_health("unhealthy")
            node_page.leave()


def test_of_many_services_only_the_visible_ones_are_requested_and_laid_out(tmp_path: Path, open_page: OpenPage) -> None:
    config = HEAD + "".join(service(f"svc-{number}", status="Up") for number in range(598))
    config += service("last", name="The last one", status="Down") + service("probed", probe="tcp://127.0.0.1:1")
    with Agent(tmp_path, config=config) as agent:
        agent.wait_until(lambda: agent.statuses()["probed"] == "Down")
        node_page = open_page(url_of(agent))
        node_page.allow_disconnect()
        node_page.wait_for_bars("probed")
        assert node_page.bars("svc-590").count() == 0
        requested = [url for url in node_page.requests if "/history" in url or "/page/changes" in url]
        assert requested
        assert max(url.count("id=") for url in requested) <= 60
        chunks = node_page.page.evaluate(
            """[...document.querySelectorAll(".chunk")].map((chunk) => [
            getComputedStyle(chunk).contentVisibility, chunk.rows[0].checkVisibility({ contentVisibilityAuto: true }),
        ])"""
        )
        assert len(chunks) == 30
        assert {visibility for visibility, _ in chunks} == {"auto"}
        assert 1 <= sum(is_laid_out for _, is_laid_out in chunks) <= 10

        assert len(node_page.service_ids) == 600
        assert node_page.service_ids[:3] == ["last", "probed", "svc-0"]
        assert node_page.page.locator("#statuses label").first.text_content() == "All 600"
        node_page.page.locator("#filter").fill("svc-59")
        assert node_page.service_ids == ["svc-59", *(f"svc-{number}" for number in range(590, 598))]
        node_page.page.locator("#filter").fill("")
        node_page.page.locator("[data-sort=name]").click()
        assert node_page.service_ids == ["probed", *(f"svc-{number}" for number in range(598)), "last"]
        node_page.page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        node_page.wait_for_bars("svc-590")


def test_maintenance_is_shown_with_its_end_who_and_why(changing_node: ChangingNode, open_page: OpenPage) -> None:
    agent = changing_node.agent
    changing_node.set_services(
        service("disk", name="Ledger", probe="tcp://127.0.0.1:1", fall=1), service("cache", status="Up")
    )
    with ControlClient(changing_node.control_socket) as client:
        agent.wait_until(lambda: agent.statuses() == {"disk": "Down", "cache": "Up"})
        node_page = open_page(changing_node.url)
        client.maintain("disk", "2h", by="alice", reason="new disk")
        badge = node_page.row("disk").locator(".status + .maintenance")
        expect(badge).to_have_text("Maintenance")
        expect(badge).to_have_attribute("title", re.compile(r"In maintenance until .* UTC, by alice .*: new disk"))
        expect(node_page.row("cache").locator(".status + .maintenance")).to_have_count(0)
        node_page.row("disk").locator("a").click()
        expect(node_page.panel("disk")).to_contain_text(re.compile(r"by alice .*: new disk"))
        agent.wait_until(lambda: agent.request("/history?id=disk").json["services"]["disk"][-1][8] > 0)
        node_page.page.reload()
        bars = node_page.bars("disk")
        expect(bars).to_have_attribute("aria-valuetext", re.compile("Maintenance "))
        expect(bars.locator(".maintenance")).to_have_attribute("d", re.compile("^M"))
        expect(node_page.row("disk").locator("td").last.locator("data")).to_have_text("0 % without maintenance")
        client.maintain(None, "1h", reason="kernel update")
        expect(node_page.page.locator("#notices .notice")).to_contain_text("The node is in maintenance: until ")
        expect(node_page.row("cache").locator(".status + .maintenance")).to_have_count(1)
        client.end_maintenance()
        client.end_maintenance("disk")
        expect(badge).to_have_count(0)
        expect(node_page.page.locator("#notices .notice")).to_have_count(0)


def test_an_acknowledgement_is_shown_until_it_ends(changing_node: ChangingNode, open_page: OpenPage) -> None:
    agent = changing_node.agent
    changing_node.set_services(
        service("disk", name="Ledger", probe="tcp://127.0.0.1:1", fall=1), service("cache", status="Up")
    )
    with ControlClient(changing_node.control_socket) as client:
        agent.wait_until(lambda: agent.statuses() == {"disk": "Down", "cache": "Up"})
        node_page = open_page(changing_node.url)
        client.ack("disk", by="alice", reason="new disk")
        client.ack(by="alice")
        shown = node_page.row("disk").locator(".acknowledged")
        expect(shown).to_have_text(re.compile(r"Acknowledged by alice .* at .* UTC: new disk"))
        expect(node_page.row("disk").locator(".reason")).not_to_contain_text("new disk")
        expect(node_page.page.locator("#notices .notice")).to_contain_text("acknowledged: by alice")
        node_page.row("disk").locator("a").click()
        expect(node_page.panel("disk")).to_contain_text(re.compile(r"by alice .*: new disk; no reminders"))
        client.clear_ack("disk")
        client.clear_ack()
        expect(shown).to_have_count(0)
        expect(node_page.page.locator("#notices .notice")).to_have_count(0)


def test_deliveries_to_each_notification_target_are_shown(changing_node: ChangingNode, open_page: OpenPage) -> None:
    with SwitchableServer() as hook:
        hook.is_healthy = False
        notify = f'[notify]\nwebhook = "{hook.url}"\ngroup_wait = "0s"\n'
        changing_node.set_services(critical("db"))
        node_page = open_page(changing_node.url)
        section = node_page.page.locator("#notifications")
        expect(section).to_be_hidden()
        changing_node.set_services(critical("db"), notify)
        expect(section.locator("li")).to_have_text(re.compile(f"http://{hook.address}.*no message so far"))
        changing_node.set_services(critical("db", "Down"), notify)
        failing = re.compile(
            r"failed .* ago: HTTP status 500.*[0-9]+ failures in a row.*next attempt.*waited for.*none delivered"
        )
        expect(section.locator("li")).to_have_text(failing)
        static_page = open_page(changing_node.url, has_script=False)
        expect(static_page.page.locator("#notifications li")).to_have_text(failing)
        hook.is_healthy = True
        changing_node.set_services(critical("db", "Down"), notify)
        expect(section.locator("li")).to_have_text(re.compile("delivered .* ago$"))
        expect(section.locator(".failing")).to_have_count(0)
        changing_node.set_services(critical("db", "Down"))
        expect(section).to_be_hidden()


def test_a_runbook_is_a_link_in_the_details_of_its_service(changing_node: ChangingNode, open_page: OpenPage) -> None:
    changing_node.set_services(critical("db", "Down", runbook="https://wiki.example.com/db?a=1#start"))
    node_page = open_page(changing_node.url)
    node_page.row("db").locator("a").click()
    link = node_page.panel("db").get_by_role("link", name="https://wiki.example.com/db")
    expect(link).to_have_attribute("href", "https://wiki.example.com/db?a=1#start")
    expect(link).to_have_attribute("rel", re.compile("noopener"))


@pytest.mark.wide
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
        static_page = open_page(f"http://127.0.0.1:{one.port}/", has_script=False)
        expect(static_page.page.locator("#replica-list li")).to_have_count(2)
        etcd.kill()
        expect(node_page.page.locator("#notices .notice")).to_contain_text("Registry problem")
        etcd.start()
        expect(node_page.page.locator("#notices .notice")).to_have_count(0)


@pytest.mark.wide
def test_the_page_of_each_replica_shows_who_drains_and_who_is_in_maintenance(
    tmp_path_factory: pytest.TempPathFactory, open_page: OpenPage
) -> None:
    root = tmp_path_factory.mktemp("r")  # the path of a socket is short
    with EtcdServer(root / "etcd") as etcd, ExitStack() as stack:
        replicas: dict[str, tuple[Agent, ControlClient]] = {}
        for name in ("one", "two"):
            sharing = f'[sharing]\nregistry = "{etcd.url}"\nreplica = "{name}"\nlease = "2s"\n'
            folder = root / name
            folder.mkdir()
            control = f'[control]\nlisten = "unix:{folder}/c.sock"\npath = "{folder}/c.db"\n'
            options = ("--listen", "127.0.0.1:0", "--name", "ledger")
            config = sharing + control + service("db", status="Up")
            agent = stack.enter_context(Agent(folder, *options, config=config))
            agent.wait_for_event("control_socket")
            client = stack.enter_context(ControlClient(folder / "c.sock", by="alice"))
            replicas[name] = agent, client
        urls = [f"http://127.0.0.1:{agent.port}/" for agent, _ in replicas.values()]
        node_page = open_page(urls[0])
        expect(node_page.page.locator("#replica-list li")).to_have_count(2)
        (_, one), (_, two) = replicas.values()
        two.drain("disk")
        two.maintain("db", "1h", reason="upgrade <b>")
        one.drain("kernel update", all_replicas=True)
        rows = [
            re.compile("All replicas.*draining since.*kernel update.*alice.*on one"),
            re.compile("two.*draining.*disk.*alice"),
            re.compile("two.*db in maintenance until.*alice.*upgrade <b>"),
        ]
        expect(node_page.page.locator("#work-list li")).to_have_text(rows)
        expect(node_page.page.locator("main")).to_have_attribute("data-health", "unhealthy")
        static_page = open_page(urls[1], has_script=False)
        expect(static_page.page.locator("#work-list li")).to_have_text(rows)
        one.undrain(all_replicas=True)
        two.undrain()
        two.end_maintenance("db")
        expect(node_page.page.locator("#work-list li")).to_have_count(0)
