"""A real browser that looks at real nodes. Whatever it complains about fails the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import sync_playwright

from tests.browser.sights import Sight
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, BrowserContext

ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]


# Not for the session: while it runs, its event loop counts as running in this thread, and no other test may run one.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = program("chromium", "chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def look(browser: Browser) -> Iterator[Callable[..., Sight]]:
    """Open the page of a node in a context of its own; words are those of a context."""
    contexts: list[BrowserContext] = []
    sights: list[Sight] = []

    def look(url: str, *, clock: bool = False, **words: Any) -> Sight:
        words = {"viewport": {"width": 1280, "height": 900}, "locale": "en-GB", **words}
        context = browser.new_context(**words)
        context.set_default_timeout(10_000)
        contexts.append(context)
        sight = Sight(context.new_page())
        sights.append(sight)
        if clock:
            sight.page.clock.install()
        sight.page.goto(url)
        if words.get("java_script_enabled", True):
            sight.page.wait_for_selector("main.alive")
        return sight

    yield look
    for context in contexts:
        context.close()
    for sight in sights:
        assert sight.complaints == []
