"""The timeline of the page: an outage, a note and a restart are shown, linked to and filtered."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from svcnode.control import ControlClient
from tests.browser.test_page import HEAD, PHONE_WIDTH, SwitchableServer, service, url_of
from tests.support.processes import Agent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Locator

    from tests.browser.page_object import NodePage

    OpenPage = Callable[..., NodePage]

EVIL = "<b>&\u202eevil"


def items_of(agent: Agent) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = agent.request("/history?from=1h").json["items"]
    return items


def outages_of(agent: Agent, service_id: str) -> list[dict[str, Any]]:
    return [item for item in items_of(agent) if (item["type"], item["service"]) == ("outage", service_id)]


@pytest.fixture(scope="module")
def server() -> Iterator[SwitchableServer]:
    with SwitchableServer() as server:
        yield server


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory, server: SwitchableServer) -> Iterator[Agent]:
    """The ledger was Down for a moment; then somebody wrote a note, the node was restarted, and the API is Down."""
    folder = tmp_path_factory.mktemp("timeline")
    control = f'[control]\nlisten = "unix:{folder}/c.sock"\npath = "{folder}/c.db"\n'
    checked = {"probe": server.url, "rise": 1, "fall": 1, "interval": "200ms", "timeout": "190ms"}
    config = (
        HEAD
        + control
        + service("ledger", name="Ledger", impact="critical", **checked)
        + service("api", name=EVIL, probe="tcp://127.0.0.1:1")
    )
    with Agent(folder, config=config) as agent:
        agent.wait_until(lambda: agent.statuses() == {"ledger": "Up", "api": "Down"})
        server.is_healthy = False
        agent.wait_until(lambda: agent.statuses()["ledger"] == "Down")
        server.is_healthy = True
        agent.wait_until(lambda: [item["open"] for item in outages_of(agent, "ledger")] == [False])
        with ControlClient(f"unix:{folder}/c.sock") as client:
            client.note(f"deployed v1.4.3 {EVIL}")
        agent.wait_until(lambda: any(item["kind"] == "note" for item in items_of(agent)))
        assert agent.stop() == 0
    with Agent(folder, config=config) as agent:
        agent.wait_until(lambda: agent.statuses() == {"ledger": "Up", "api": "Down"})
        yield agent


def entries(node_page: NodePage) -> Locator:
    return node_page.page.locator("#timeline-list li")


def entry(node_page: NodePage, text: str) -> Locator:
    return entries(node_page).filter(has_text=text).first


@pytest.mark.parametrize("has_script", [True, False])
def test_an_outage_a_note_and_a_restart_are_on_the_strip_and_in_the_list(
    agent: Agent, open_page: OpenPage, has_script: bool
) -> None:
    node_page = open_page(url_of(agent), has_script=has_script)
    node_page.page.locator("#timeline-list summary").click()
    expect(entry(node_page, "Ledger Down")).to_be_visible()
    expect(entry(node_page, "note: deployed v1.4.3 <b>&\\u202eevil")).to_be_visible()
    for kind in ("started", "stopped"):
        expect(entry(node_page, kind)).to_be_visible()
    starts = entries(node_page).evaluate_all("all => all.map((one) => one.querySelector('time').dateTime)")
    assert starts == sorted(starts, reverse=True)
    lanes = node_page.page.locator(".lane .label")
    expect(lanes).to_have_text(["Health", "Ledger", "<b>&\\u202eevil", "Events"])
    assert not node_page.overflows_viewport


def test_a_link_on_the_strip_opens_the_details_of_its_moment_and_can_be_shared(
    agent: Agent, open_page: OpenPage
) -> None:
    outage = outages_of(agent, "ledger")[0]
    node_page = open_page(f"{url_of(agent)}#sort=-name")
    bar = node_page.page.locator(f".lane a[href='#t={outage['id']}']")
    expect(bar.locator("title")).to_have_text(re.compile("Ledger, Down"))
    bar.focus()
    node_page.page.keyboard.press("Enter")
    details = node_page.page.locator(f"[id='t={outage['id']}'] .details")
    expect(details).to_be_visible()
    expect(details).to_contain_text(outage["code"])
    expect(details.locator("time").first).to_have_text(outage["from"][:19].replace("T", " ") + " UTC")
    expect(node_page.page).to_have_url(re.compile(f"#sort=-name&t={outage['id']}$"))
    for has_script in (True, False):
        if has_script:
            node_page.leave()
            node_page.page.goto(f"{url_of(agent)}#t={outage['id']}")
        else:
            node_page = open_page(f"{url_of(agent)}#t={outage['id']}", has_script=False)
        details = node_page.page.locator(f"[id='t={outage['id']}'] .details")
        expect(details).to_be_visible()
        expect(node_page.page.locator("#timeline-list .details:visible")).to_have_count(1)


def test_the_period_can_be_chosen(agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(agent))
    page = node_page.page
    page.locator("#timeline-period").get_by_role("radio", name="90 min").check()
    expect(page).to_have_url(re.compile("period=90m"))
    axis = page.locator(".axis time")
    for _ in range(2):  # after a reload, too
        expect(axis).to_have_count(3)
        page.wait_for_function(
            "() => { const [begin, , end] = [...document.querySelectorAll('.axis time')]"
            ".map((one) => Date.parse(one.dateTime)); return Math.abs(end - begin - 5400e3) < 1000 }"
        )
        page.reload()
    page.locator("[name=from]").fill("2026-01-01T10:00:00")
    page.locator("[name=to]").fill("2026-01-01T12:00:00")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#timeline .none")).to_be_visible()
    expect(page.locator("[name=period]:checked")).to_have_count(0)
    expect(axis).to_have_text(["2026-01-01 10:00:00 UTC", "2026-01-01 11:00:00 UTC", "2026-01-01 12:00:00 UTC"])
    expect(page.locator("[name=from]")).to_have_value(re.compile("2026-01-01T10:00"))


def test_the_history_of_a_problem_is_the_time_line_of_its_service(agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(agent))
    node_page.page.locator("#problems").get_by_role("link", name="history").click()
    expect(node_page.page.locator("#timeline-content .scope")).to_contain_text("evil")
    expect(node_page.page.locator(".lane .label")).to_have_text(["<b>&\\u202eevil", "Events"])
    assert {item["service"] for item in items_of(agent)} > {"ledger"}
    expect(entries(node_page).filter(has_text="Ledger")).to_have_count(0)
    node_page.page.get_by_role("link", name="All services").click()
    expect(node_page.page.locator(".lane .label")).to_have_count(4)


def test_without_javascript_the_history_of_a_problem_is_a_page_of_its_own(agent: Agent, open_page: OpenPage) -> None:
    node_page = open_page(url_of(agent), has_script=False)
    page = node_page.page
    page.locator("#problems").get_by_role("link", name="history").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("evil")
    expect(page.locator(".lane .label")).to_have_text(["<b>&\\u202eevil", "Events"])
    page.locator("#timeline-list summary").click()
    expect(entries(node_page).filter(has_text="Ledger")).to_have_count(0)
    page.get_by_role("link", name="All services").click()
    expect(page).to_have_url(url_of(agent))
    page.locator(".lane .label").get_by_role("link", name="Ledger").click()
    expect(entries(node_page).filter(has_text="Ledger")).not_to_have_count(0)


def test_the_time_line_follows_the_node(agent: Agent, open_page: OpenPage, server: SwitchableServer) -> None:
    node_page = open_page(url_of(agent), width=PHONE_WIDTH)
    before = len(outages_of(agent, "ledger"))
    outages = entries(node_page).filter(has_text="Ledger Down")
    expect(outages).to_have_count(before)
    server.is_healthy = False
    expect(outages).to_have_count(before + 1)
    expect(outages.first).to_contain_text("ongoing")
    server.is_healthy = True
    expect(outages.first).not_to_contain_text("ongoing")
    assert not node_page.overflows_viewport
