"""The public page in a browser: without scripts, at every width, in every colour scheme, and by keyboard."""

from __future__ import annotations

import os
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from svcnode.control import ControlClient
from tests.support.ports import free_port
from tests.support.processes import Agent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

PHONE, DESKTOP, WALL = 360, 1280, 3840
# The ratio of two colours as in WCAG 2.2, for every text of the page and what is behind it.
LOW_CONTRAST = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((part) => part / 255)
    .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
    .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  const ground = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = parse(getComputedStyle(one).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll('body *')) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!hasText || element.classList.contains('skip')) continue;
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(ground(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < LIMIT) found.push([element.tagName, element.className, ratio]);
  }
  return found;
}"""


@contextmanager
def public_node(folder: Path) -> Iterator[str]:
    """The URL of its public page."""
    port = free_port()
    names = {"api": "Block API", "web": "Web site with a name that is rather long for a telephone", "db": "Ledger"}
    services = "".join(
        f'[[services]]\nid = "{service_id}"\nname = "{name}"\ngroup = "Chain"\nprobe = "heartbeat:1h"\n'
        for service_id, name in names.items()
    )
    config = f"""
[server]
listen = "127.0.0.1:0"
[control]
listen = "unix:{folder}/c.sock"
path = "{folder}/c.db"
[public]
services = ["queue", "mail"]
groups = ["Chain"]
title = "Status of Example"
listen = "127.0.0.1:{port}"
[[services]]
id = "queue"
name = "Queue"
status = "Up"
[[services]]
id = "mail"
name = "Mail"
status = "Initializing"
{services}
"""
    with Agent(folder, config=config) as agent:
        agent.wait_for_log("control socket")
        with ControlClient(folder / "c.sock", timeout="30s") as client:
            for service_id in names:
                client.beat(service_id, "down")
            client.beat("db", "up")
            client.maintain("web", "2h")
            begin = datetime.now(UTC) + timedelta(days=30)
            client.plan_maintenance("db", begin, begin + timedelta(hours=2))
        base = f"http://127.0.0.1:{port}"
        agent.wait_until(lambda: len(agent.request("/api/v2/incidents.json", port).json["incidents"]) == 3)
        yield base


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with public_node(tmp_path_factory.mktemp("public")) as url:
        yield url


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": DESKTOP, "height": 900}, java_script_enabled=True)
    page, errors = context.new_page(), []
    page.on("console", lambda message: errors.append(message.text))
    page.on("requestfailed", lambda request: errors.append(request.url))
    page.on("response", lambda response: errors.append(response.url) if response.status >= 400 else None)
    yield page
    context.close()
    assert errors == []


def keep_screenshot(page: Page, name: str) -> None:
    """For people who want to look: SCREENSHOTS names a folder."""
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"public-{name}.png", full_page=True)


def media(**options: Any) -> dict[str, Any]:
    return {"color_scheme": "light", "forced_colors": "none", "contrast": "no-preference", **options}


@pytest.mark.parametrize("width", [PHONE, DESKTOP, WALL])
def test_everything_is_in_view_at_every_width(page: Page, url: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(url)
    keep_screenshot(page, f"{width}")
    overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert overflow == 0
    headline = page.locator(".headline").bounding_box()
    assert headline is not None
    assert headline["y"] + headline["height"] < 800
    if width == WALL:
        box = page.locator("main").bounding_box()
        assert box is not None
        assert box["width"] > width / 2


@pytest.mark.parametrize(
    ("name", "options", "limit"),
    [
        ("light", {}, 4.5),
        ("dark", {"color_scheme": "dark"}, 4.5),
        ("contrast", {"contrast": "more"}, 7.0),
        ("forced", {"forced_colors": "active"}, 4.5),
    ],
)
def test_texts_have_enough_contrast(page: Page, url: str, name: str, options: dict[str, Any], limit: float) -> None:
    page.emulate_media(**media(**options))
    page.goto(url)
    keep_screenshot(page, name)
    assert page.evaluate(LOW_CONTRAST.replace("LIMIT", str(limit))) == []


def test_the_page_has_names_for_everything_that_needs_one(page: Page, url: str) -> None:
    page.goto(url)
    expect(page.get_by_role("heading", level=1)).to_have_text("Status of Example")
    for region in ("Now", "Services", "Planned maintenance", "Outages"):
        expect(page.get_by_role("region", name=region, exact=True)).to_be_visible()
    for level, count in ((1, 1), (2, 3), (3, 1)):
        expect(page.get_by_role("heading", level=level)).to_have_count(count)
    assert page.get_by_role("img").count() == page.locator("svg.bars").count()


def test_the_skip_link_and_the_links_are_reached_by_keyboard(page: Page, url: str) -> None:
    page.goto(url)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the services")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#services")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Atom feed")).to_be_focused()


def test_links_lead_to_the_outage_the_feed_and_the_badges(page: Page, url: str) -> None:
    page.goto(url)
    incident = page.request.get(f"{url}/api/v2/incidents.json").json()["incidents"][0]
    page.goto(f"{url}{incident['shortlink']}")
    expect(page.locator("li:target")).to_be_visible()
    for name in ("Atom feed", "JSON", "Badge"):
        link = page.get_by_role("link", name=name).get_attribute("href")
        assert page.request.get(f"{url}/{link}").ok
