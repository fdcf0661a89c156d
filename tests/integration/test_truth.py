"""The short form of the truth campaign: three real servers, three faults, and not one untrue answer."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.servers.provision import skip_or_fail

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

pytestmark = pytest.mark.serial
ROOT = Path(__file__).parents[2]
WITHIN_S = 150  # it takes half a minute, and longer where servers must be installed first


def campaign(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.truth", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WITHIN_S, check=False)


def skip_if_not_installed(done: subprocess.CompletedProcess[str]) -> None:
    if absent := re.search(r"not judged: (.* is not installed: .*)", done.stdout):
        skip_or_fail(absent.group(1))


def totals(done: subprocess.CompletedProcess[str]) -> tuple[int, ...]:
    found = re.search(r"said 200 past the bound: (\d+)\nfalse Downs while healthy: (\d+)\n\Z", done.stdout)
    assert found, done.stdout + done.stderr
    return tuple(int(number) for number in found.groups())


@pytest.mark.timeout(WITHIN_S + 10)
@pytest.mark.usefixtures("lying_campaign")
def test_a_node_says_nothing_untrue_of_real_servers_that_are_killed_frozen_or_locked(tmp_path: Path) -> None:
    done = campaign("--short", "--output", str(tmp_path / "matrix.md"))
    skip_if_not_installed(done)
    assert done.returncode == 0, done.stdout + done.stderr
    assert totals(done) == (0, 0)
    kinds = [line.split("|")[1].strip() for line in (tmp_path / "matrix.md").read_text().splitlines() if "| Up" in line]
    assert kinds == ["PostgreSQL", "Redis", "nginx"]


# ---- the campaign can fail


class LyingNode(BaseHTTPRequestHandler):
    """Its list says that all is Down, and its healths that all is well; one of them is a lie at any time."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        services = [{"id": "nginx", "name": "nginx", "description": "", "status": "Down"}]
        body = b"" if self.path.endswith("/health") else json.dumps({"services": services}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def lying_node_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), LyingNode) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def lying_campaign(lying_node_url: str) -> Iterator[Future[subprocess.CompletedProcess[str]]]:
    """A campaign against the lying_node_url, beside the one against our node: both mostly wait, and this one has no node."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit(campaign, "--short", "--only", "nginx", "--node", lying_node_url)


@pytest.mark.timeout(WITHIN_S + 10)
def test_a_node_that_lies_about_a_real_server_is_found_out_in_both_ways(
    lying_campaign: Future[subprocess.CompletedProcess[str]],
) -> None:
    done = lying_campaign.result()
    skip_if_not_installed(done)
    assert "not judged" not in done.stdout, done.stdout
    assert done.returncode == 1
    false_200s, false_downs = totals(done)
    assert false_200s > 0
    assert false_downs > 0
    assert "list and health disagree" in done.stdout
