"""A real browser opens the pages of real nodes. Every error or warning of the browser fails the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import ViewportSize, expect, sync_playwright

from tests.browser.page_object import NodePage
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser

TOKEN = "a-token-of-some-length"
TIMEOUT_MS = 60_000
VIEWPORT: ViewportSize = {"width": 1280, "height": 900}
CHROMIUM_ARGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]


# Not for the session: while Playwright runs, its event loop is running in this thread, and other tests cannot run one.
@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    path = program("chromium", "chromium")
    expect.set_options(timeout=TIMEOUT_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=CHROMIUM_ARGS)
        yield browser
        browser.close()


# Motion takes much time.
CONTEXT_OPTIONS: dict[str, Any] = {
    "viewport": VIEWPORT,
    "locale": "en-GB",
    "timezone_id": "Asia/Tokyo",  # that of the reader changes no time
    "reduced_motion": "reduce",
    "has_touch": True,
    "http_credentials": {"username": "operator", "password": TOKEN},
}


@pytest.fixture(scope="package")
def shared_pages(browser: Browser) -> dict[bool, NodePage]:
    """With JavaScript, and without. A new page takes twice the time of a visit, and a new context four times."""
    return {
        has_script: NodePage(browser.new_context(**CONTEXT_OPTIONS, java_script_enabled=has_script).new_page())
        for has_script in (True, False)
    }


@pytest.fixture
def open_page(browser: Browser, shared_pages: dict[bool, NodePage]) -> Iterator[Callable[..., NodePage]]:
    """Opens the page of a node. `has_clock`: the test runs its clock; such pages are in a context of the test.

    Otherwise a test can open one page with JavaScript and one without.
    """
    own: list[NodePage] = []
    shared: list[NodePage] = []

    def open_page(url: str, *, has_script: bool = True, has_clock: bool = False, width: int | None = None) -> NodePage:
        if has_clock:
            context = own[0].page.context if own else browser.new_context(**CONTEXT_OPTIONS)
            if not own:
                context.clock.install()
            node_page = NodePage(context.new_page())
            own.append(node_page)
        else:
            node_page = shared_pages[has_script]
            assert node_page not in shared, "it is open already"
            shared.append(node_page)
        page = node_page.page
        page.context.set_default_timeout(TIMEOUT_MS)
        if width is not None:
            page.set_viewport_size({"width": width, "height": 740})
        page.goto(url)
        if has_script:
            page.wait_for_selector("main.enhanced")
        return node_page

    yield open_page
    for node_page in own[:1]:
        node_page.page.context.close()
    errors = [error for node_page in own for error in node_page.errors]
    for node_page in shared:
        errors += node_page.reset(VIEWPORT)
    assert errors == []
