"""The page of a node inside another program, mounted at /status."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.support.embedded_app import EmbeddingProgram, GunicornProgram
from tests.support.example_apps import ALL_EXAMPLES, RunningExample
from tests.support.nginx_proxy import nginx_with
from tests.support.processes import run_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.browser.page_object import NodePage

TOKEN = "a-token-of-some-length"
SCREENSHOTS = os.environ.get("SCREENSHOTS")  # a folder


def take_screenshot(page: NodePage, name: str) -> None:
    if SCREENSHOTS:
        page.page.screenshot(path=f"{SCREENSHOTS}/{name}.png", full_page=True)


@pytest.fixture
def example(tmp_path: Path) -> Iterator[RunningExample]:
    (status_page,) = (one for one in ALL_EXAMPLES if one.file == "status_page.py")
    with RunningExample(status_page, tmp_path) as running:
        running.wait_until(lambda: running.request_node("/node/health").code == 200)
        yield running


def test_page_metrics_and_explain_of_an_embedding_program(
    example: RunningExample, open_page: Callable[..., NodePage], tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{example.port}/status"
    page = open_page(url)
    assert page.page.url == f"{url}/"
    expect(page.page).to_have_title("● validator-7: healthy")
    page.expect_connection("live")
    page.expect_code("ledger", "ok")

    example.backing.stop()
    page.expect_code("indexer/main", "connection_refused")
    expect(page.page).to_have_title(re.compile("✖ validator-7"))
    page.row("indexer/main").locator("a").click()
    expect(page.panel("indexer/main")).to_contain_text("connection refused")
    expect(page.panel("indexer/main")).to_contain_text(f"svcnode explain {url} --service indexer/main")
    page.expect_connection("live")
    take_screenshot(page, "page")
    assert all(request.startswith(f"{url}/") for request in page.requests if request != url)
    for target in ("metrics", "/metrics"):  # of the node, and of the program
        metrics = page.page.evaluate("async (target) => (await fetch(target)).text()", target)
        assert 'svcnode_service_status{service_id="indexer/main",status="Down"} 1.0' in metrics

    explained = run_command([sys.executable, "-m", "svcnode", "explain", url, "--service", "indexer/main"], tmp_path)
    assert explained.returncode == 3
    assert "connection_refused" in explained.stdout


def test_the_page_stays_live_while_the_server_ends_and_reopens_its_streams(
    example: RunningExample, open_page: Callable[..., NodePage]
) -> None:
    page = open_page(f"http://127.0.0.1:{example.port}/status/")
    page.expect_connection("live")
    modes = "new MutationObserver(() => (window.modes ??= []).push(document.getElementById('node').dataset.connection))"
    page.page.evaluate(f"{modes}.observe(document.getElementById('node'), {{ attributeFilter: ['data-connection'] }})")
    for _ in range(2):
        page.page.wait_for_event("request", lambda request: "/status/events" in request.url)
    assert set(page.page.evaluate("window.modes ?? []")) <= {"live"}
    assert len([request for request in page.requests if request.endswith("/status/")]) == 1, "it is not loaded again"


def test_the_page_follows_changes_under_wsgi(open_page: Callable[..., NodePage], tmp_path: Path) -> None:
    with GunicornProgram(tmp_path) as program:
        page = open_page(f"{program.page_url}/")
        page.expect_connection("live")
        program.request("/report/down")
        expect(page.row("indexer")).to_have_attribute("data-status", "Down")
        page.expect_connection("live")
        take_screenshot(page, "wsgi")


def test_the_browser_asks_for_the_token_and_the_page_works_below_the_path_of_a_proxy(
    open_page: Callable[..., NodePage], tmp_path: Path
) -> None:
    with (
        GunicornProgram(tmp_path / "program", token=TOKEN) as program,
        nginx_with(tmp_path, f"location /nodes/7/ {{ proxy_pass http://127.0.0.1:{program.port}/; }}") as port,
    ):
        page = open_page(
            f"http://127.0.0.1:{port}/nodes/7/status",
            http_credentials={"username": "operator", "password": TOKEN},
        )
        assert page.page.url == f"http://127.0.0.1:{port}/nodes/7/status/"
        page.expect_connection("live")
        expect_down(program, page)


def expect_down(program: EmbeddingProgram, page: NodePage) -> None:
    program.request("/report/down")
    expect(page.row("indexer")).to_have_attribute("data-status", "Down")
