"""The page of a node inside another program, mounted at /status."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import TOKEN
from tests.support.embedded_app import GunicornProgram
from tests.support.example_apps import ALL_EXAMPLES, RunningExample
from tests.support.nginx_proxy import nginx_with
from tests.support.processes import run_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.browser.page_object import NodePage

RECORD_MODES = """() => {
  const node = document.getElementById("node");
  window.modes = [];
  const note = () => window.modes.push(node.dataset.connection);
  new MutationObserver(note).observe(node, { attributeFilter: ["data-connection"] });
}"""


def test_the_page_of_an_embedding_program_stays_live_while_its_server_ends_and_reopens_streams(
    open_page: Callable[..., NodePage], tmp_path: Path
) -> None:
    (status_page,) = (one for one in ALL_EXAMPLES if one.file == "status_page.py")
    with RunningExample(status_page, tmp_path) as example:
        example.wait_until(lambda: example.request_node("/node/health").code == 200)
        url = f"http://127.0.0.1:{example.port}/status"
        page = open_page(url)
        assert page.page.url == f"{url}/"
        expect(page.page).to_have_title("● validator-7: healthy")
        page.expect_connection("live")
        page.expect_code("ledger", "ok")
        page.page.evaluate(RECORD_MODES)
        for _ in range(2):
            page.page.wait_for_event("request", lambda request: "/status/page/events" in request.url)
        assert set(page.page.evaluate("window.modes")) <= {"live"}
        assert len([request for request in page.requests if request.endswith("/status/")]) == 1, "not loaded again"

        example.backing.stop()
        page.expect_code("indexer/main", "connection_refused")
        expect(page.page).to_have_title(re.compile("✖ validator-7"))
        page.row("indexer/main").locator("a").click()
        expect(page.panel("indexer/main")).to_contain_text("connection refused")
        expect(page.panel("indexer/main")).to_contain_text(f"svcnode explain {url} --service indexer/main")
        assert all(request.startswith(f"{url}/") for request in page.requests if request != url)
        for target in ("metrics", "/metrics"):  # of the node, and of the program
            metrics = page.page.evaluate("async (target) => (await fetch(target)).text()", target)
            assert 'svcnode_service_status{service_id="indexer/main",status="Down"} 1.0' in metrics
        command = [sys.executable, "-m", "svcnode", "explain", url, "--service", "indexer/main"]
        explained = run_command(command, tmp_path)
        assert explained.returncode == 3
        assert "connection_refused" in explained.stdout


@pytest.mark.wide
def test_under_wsgi_the_browser_asks_for_the_token_and_the_page_works_below_the_path_of_a_proxy(
    open_page: Callable[..., NodePage], tmp_path: Path
) -> None:
    with (
        GunicornProgram(tmp_path / "program", token=TOKEN) as program,
        nginx_with(tmp_path, f"location /nodes/7/ {{ proxy_pass http://127.0.0.1:{program.port}/; }}") as port,
    ):
        page = open_page(f"http://127.0.0.1:{port}/nodes/7/status")
        assert page.page.url == f"http://127.0.0.1:{port}/nodes/7/status/"
        page.expect_connection("live")
        program.request("/report/down")
        expect(page.row("indexer")).to_have_attribute("data-status", "Down")
        page.expect_connection("live")
