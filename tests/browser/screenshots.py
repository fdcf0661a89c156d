"""Pictures of the page for people to look at, in every width, colour scheme and size of a node: `make screenshots`.

    python -m tests.browser.screenshots FOLDER [PATTERN]

A pattern such as "*-360-*" makes only those pictures. Each shows the first screens, or everything if it is short.
`outage` is the one of README, and `page` that of docs/see.md, which takes five minutes:

    python -m tests.browser.screenshots docs/images outage
    python -m tests.browser.screenshots docs/images page
"""

from __future__ import annotations

import os
import subprocess
import sys
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playwright.sync_api import sync_playwright

from tests.browser.conftest import CHROMIUM_ARGS
from tests.browser.page_object import STANDARD_MEDIA
from tests.support.page_node import PageNode, page_node
from tests.support.ports import free_port
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Iterable

    from playwright.sync_api import Browser, FloatRect, Page

COUNTS = (12, 200, 1000)
WIDTHS = {360: 740, 1024: 768, 1440: 900, 3840: 2160}
MAX_SCREENS = 3
LOOKS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "forced": {"forced_colors": "active"},
    "contrast": {"contrast": "more"},
    "contrast-dark": {"contrast": "more", "color_scheme": "dark"},
}


def add_trouble(node: PageNode, count: int) -> None:
    """Some of everything: groups, tags, long texts, a cause with effects, and many that fail alike."""
    options: dict[str, Any] = {
        "group": "storage",
        "tags": ["eu", "tier-1"],
        "runbook": "https://wiki.example.com/ledger",
    }
    ledger = node.node.register("ledger", name="Ledger database", impact="critical", **options)
    api = node.node.register("api", name="Block API", group="chain", depends_on=["ledger"], impact="critical")
    ledger.down("connection refused by 10.0.0.5:5432")
    api.down("HTTP 500: the query of the newest block took longer than its deadline of five seconds")
    node.node.register("queue", name="Queue between the regions", group="chain").initializing("6,120 behind")
    for handle in node.handles[:: max(4, count // 50)]:
        handle.down("HTTP 503")


def look_at(page: Page, folder: Path, names: Iterable[tuple[str, int, dict[str, Any]]]) -> None:
    for name, width, media in names:
        page.emulate_media(**(STANDARD_MEDIA | media))
        page.set_viewport_size({"width": width, "height": WIDTHS[width]})
        page.wait_for_timeout(300)
        height = min(page.evaluate("document.documentElement.scrollHeight"), MAX_SCREENS * WIDTHS[width])
        page.set_viewport_size({"width": width, "height": height})
        page.screenshot(path=folder / f"{name}.png")


# Of each picture of the demo: the width, the last thing that it shows, and how often the critical service has stopped.
DEMO_PICTURES = {"outage": (1000, "#problems", 1), "page": (1200, "body", 5)}


def make_demo_picture(browser: Browser, folder: Path, name: str) -> None:
    """Of the demo while its critical service is Down: health and problems of the node, and for `page` all the rest."""
    width, last, stops = DEMO_PICTURES[name]
    port = free_port()
    command = [sys.executable, "-m", "svcnode", "demo", "--speed", "1", "--listen", f"127.0.0.1:{port}"]
    environ = {**os.environ, "SVCNODE_NODE_NAME": "validator-7", "SVCNODE_NODE_VERSION": "v1.4.2"}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as demo:
        assert demo.stdout is not None
        try:
            next(islice((line for line in demo.stdout if "chain stops" in line), stops - 1, None))
            page = browser.new_page(viewport={"width": width, "height": 800})
            page.goto(f"http://127.0.0.1:{port}/")
            page.wait_for_selector("text=Unhealthy")
            box = page.locator(last).bounding_box()
            assert box is not None
            height = box["y"] + box["height"] + 8
            clip: FloatRect = {"x": 0, "y": 0, "width": width, "height": height}
            page.screenshot(path=folder / f"{name}.png", clip=clip, full_page=True)
            page.close()
        finally:
            demo.terminate()


def make_pictures(folder: Path, pattern: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program("chromium", "chromium"), args=CHROMIUM_ARGS)
        for name in DEMO_PICTURES:
            if fnmatch(name, pattern):
                make_demo_picture(browser, folder, name)
        for count in COUNTS:
            names = [(f"{count}-{width}-{look}", width, media) for width in WIDTHS for look, media in LOOKS.items()]
            chosen = [name for name in names if fnmatch(name[0], pattern)]
            if not chosen and not fnmatch(f"{count}-print", pattern):
                continue
            with page_node(count) as node:
                add_trouble(node, count)
                page = browser.new_page()
                page.goto(node.url)
                page.wait_for_selector(".bars")
                look_at(page, folder, chosen)
                page.emulate_media(media="print")
                page.pdf(path=folder / f"{count}-print.pdf", format="A4")
                page.close()
        browser.close()


if __name__ == "__main__":
    make_pictures(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "*")
