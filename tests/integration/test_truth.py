"""The truth campaign finds a node that reports false statuses. `make truth` runs it against svcnode itself."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300  # it takes half a minute, and longer if nginx must be installed


class LyingNode(BaseHTTPRequestHandler):
    """Its list reports Down and its health reports Up, so one of them is always false."""

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


@pytest.fixture
def lying_node_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), LyingNode) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.wide
@pytest.mark.timeout(TIMEOUT_S + 10)
def test_false_200s_and_false_downs_of_a_lying_node_are_found(lying_node_url: str, tmp_path: Path) -> None:
    program("nginx", "nginx-light")
    summary_file = tmp_path / "summary.json"
    arguments = ["--short", "--only", "nginx", "--node", lying_node_url, "--json", str(summary_file)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.truth", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    summary = json.loads(summary_file.read_text())
    assert (summary["tested"], summary["not_tested"]) == (["nginx"], [])
    assert summary["false_200s"] > 0
    assert summary["false_downs"] > 0
    assert summary["disagreements"] > 0
