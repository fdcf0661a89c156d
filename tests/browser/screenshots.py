"""Pictures of the page for people to look at: `make screenshots`.

    python -m tests.browser.screenshots FOLDER [PATTERN]

Of widths, looks, sizes of the node and situations, every two come together in at least one picture. A pattern such as
"*-360-*" makes only those pictures. Each shows the first screens, or everything if it is short.
`demo` makes the two of the documentation, from the demo: `make images` writes them into docs/images.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from fnmatch import fnmatch
from itertools import combinations, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from playwright.sync_api import sync_playwright

from tests.browser.conftest import CHROMIUM_ARGS
from tests.browser.page_object import STANDARD_MEDIA
from tests.browser.situations import ALL_DOWN, SITUATIONS, begin, node_with_past
from tests.support.ports import free_port
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from playwright.sync_api import Browser, Page

COUNTS = (12, 200, 1000, 5000)
WIDTHS = {360: 740, 1024: 768, 1440: 900, 3840: 2160}
MAX_SCREENS = 3
PRINT, NO_SCRIPT = "print", "no-script"
LOOKS: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "forced": {"forced_colors": "active"},
    "contrast": {"contrast": "more"},
    "contrast-dark": {"contrast": "more", "color_scheme": "dark"},
    PRINT: {"media": "print"},
    NO_SCRIPT: {},
}


class Picture(NamedTuple):
    services: int
    situation: str
    width: int
    look: str

    @property
    def name(self) -> str:
        return "-".join(map(str, self))

    @property
    def pairs(self) -> set[tuple[object, ...]]:
        return set(combinations(enumerate(self), 2))


# What nobody else sees every day.
WORST = [Picture(max(COUNTS), ALL_DOWN, 360, "light"), Picture(max(COUNTS), ALL_DOWN, 1440, "dark")]


def pictures() -> Iterator[Picture]:
    """Each has as many pairs as possible that none before it has."""
    possible = list(map(Picture._make, product(COUNTS, SITUATIONS, WIDTHS, LOOKS)))
    missing = set().union(*(one.pairs for one in possible))
    worst = iter(WORST)
    while missing:
        best = next(worst, None) or max(possible, key=lambda one: len(one.pairs & missing))
        missing -= best.pairs
        yield best


def make_demo_pictures(browser: Browser, folder: Path) -> None:
    """Of the demo while its critical service is Down: what is wrong, for README, and a round later the whole page."""
    with _running_demo() as (url, story):
        _wait_for_outage(story)
        _take_demo(browser, url, folder / "outage.png", width=1000, last="#problems")
        _wait_for_outage(story)
        _take_demo(browser, url, folder / "page.png", width=1200, last="footer")


@contextmanager
def _running_demo() -> Iterator[tuple[str, Iterator[str]]]:
    """Yields its address, and the lines that tell its story."""
    port = free_port()
    command = [sys.executable, "-m", "svcnode", "demo", "--listen", f"127.0.0.1:{port}"]
    environ = {**os.environ, "SVCNODE_NODE_NAME": "validator-7", "SVCNODE_NODE_VERSION": "v1.4.2"}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as demo:
        assert demo.stdout is not None
        try:
            yield f"http://127.0.0.1:{port}/", iter(demo.stdout)
        finally:
            demo.terminate()


def _wait_for_outage(story: Iterator[str]) -> None:
    next(line for line in story if "chain stops" in line)


def _take_demo(browser: Browser, url: str, file: Path, *, width: int, last: str) -> None:
    """From the top of the page to the end of the last element."""
    page = browser.new_page(viewport={"width": width, "height": 800}, locale="en-GB")
    page.goto(url)
    page.wait_for_selector("text=Unhealthy")
    page.wait_for_timeout(1500)  # until the row that has changed is not highlighted any more
    box = page.locator(last).bounding_box()
    assert box is not None
    height = box["y"] + box["height"] + 8
    page.screenshot(path=file, full_page=True, clip={"x": 0, "y": 0, "width": width, "height": height})
    page.close()


def make_pictures(folder: Path, pattern: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [one for one in pictures() if fnmatch(one.name, pattern)]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program("chromium", "chromium"), args=CHROMIUM_ARGS)
        if pattern == "demo":
            make_demo_pictures(browser, folder)
        for count in COUNTS:
            of_count = [one for one in chosen if one.services == count]
            if of_count:
                _take_all(browser, of_count, folder)
        browser.close()


def _take_all(browser: Browser, chosen: Sequence[Picture], folder: Path) -> None:
    """They are of nodes of one size."""
    with tempfile.TemporaryDirectory() as home, node_with_past(chosen[0].services, Path(home) / "h.db") as node:
        for situation in SITUATIONS:
            begin(situation, node)
            for picture in chosen:
                if picture.situation == situation:
                    page = browser.new_page(java_script_enabled=picture.look != NO_SCRIPT, locale="en-GB")
                    page.goto(node.url)
                    _take(page, picture, folder)
                    page.close()


def _take(page: Page, picture: Picture, folder: Path) -> None:
    width, height = picture.width, WIDTHS[picture.width]
    page.emulate_media(**(STANDARD_MEDIA | LOOKS[picture.look]))
    page.set_viewport_size({"width": width, "height": height})
    page.wait_for_timeout(1500)  # until the visible rows have their charts
    if picture.look == PRINT:
        page.pdf(path=folder / f"{picture.name}.pdf", format="A4")
        return
    page.screenshot(path=folder / f"{picture.name}-first.png")
    height = min(page.evaluate("document.documentElement.scrollHeight"), MAX_SCREENS * height)
    page.set_viewport_size({"width": width, "height": height})
    page.wait_for_timeout(500)
    page.screenshot(path=folder / f"{picture.name}.png")


if __name__ == "__main__":
    make_pictures(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "*")
