"""A real browser opens the pages of real nodes. Every error or warning of the browser fails the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.browser.page_object import NodePage
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, BrowserContext

CHROMIUM_ARGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]


# Not for the session: while Playwright runs, its event loop is running in this thread, and other tests cannot run one.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = program("chromium", "chromium")
    expect.set_options(timeout=30_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_ARGS)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., NodePage]]:
    """Opens the page of a node in a new browser context with the given options."""
    contexts: list[BrowserContext] = []
    node_pages: list[NodePage] = []

    def open_page(url: str, *, clock: bool = False, **options: Any) -> NodePage:
        options = {"viewport": {"width": 1280, "height": 900}, "locale": "en-GB", **options}
        context = browser.new_context(**options)
        context.set_default_timeout(30_000)
        contexts.append(context)
        node_page = NodePage(context.new_page())
        node_pages.append(node_page)
        if clock:
            node_page.page.clock.install()
        node_page.page.goto(url)
        if options.get("java_script_enabled", True):
            node_page.page.wait_for_selector("main.enhanced")
        return node_page

    yield open_page
    for context in contexts:
        context.close()
    for node_page in node_pages:
        assert node_page.errors == []
