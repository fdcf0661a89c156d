"""Every example under its real server."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from tests.support.example_apps import ALL_EXAMPLES, EXAMPLES, ROOT, Example, RunningExample
from tests.support.transports import SERVICE_NOT_FOUND

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Example, RunningExample]]:
    """All examples start at once, which saves time."""
    with ExitStack() as stack:
        yield {
            one: stack.enter_context(RunningExample(one, tmp_path_factory.mktemp("example"))) for one in ALL_EXAMPLES
        }


@pytest.fixture(scope="module", params=ALL_EXAMPLES, ids=str)
def running(request: pytest.FixtureRequest, processes: dict[Example, RunningExample]) -> RunningExample:
    """An example whose node is healthy."""
    process = processes[request.param]
    if process.example.file == "fastapi_app.py":
        process.wait_until(lambda: process.request("/blocks/1", method="POST").code == 200)
    process.wait_until(lambda: process.request_node("/node/health").code == 200 and is_every_worker_at_200(process))
    return process


def is_every_worker_at_200(process: RunningExample) -> bool:
    """Each forked worker probes by itself, so each becomes healthy by itself."""
    workers = process.example.workers
    return workers == 1 or len(process.workers_that_returned_200) == workers


def slash_path(example: Example) -> str:
    return f"/node/services/{quote(example.slash_id, safe='')}/health"


def test_every_example_is_run() -> None:
    assert {example.file for example in ALL_EXAMPLES} == {
        file.name for file in EXAMPLES.glob("*.py") if not file.name.startswith("test_")
    }, "tests/integration/test_testing.py runs the tests"


@pytest.mark.wide
def test_the_node_and_the_application_answer(running: RunningExample) -> None:
    response = running.request_node("/node")
    assert (response.code, response.headers["Content-Type"]) == (200, "application/json")
    services = json.loads(running.request_node("/node/services").body)["services"]
    assert running.example.slash_id in {service["id"] for service in services}
    for service in services:
        assert service["status"] == "Up"
        response = running.request_node(f"/node/services/{quote(service['id'], safe='')}/health")
        assert (response.code, response.body, response.headers["Content-Length"]) == (200, b"", "0")
    assert len(response.headers.get_all("Date", [])) == 1
    assert response.headers.get_all("Cache-Control") == ["no-store"]
    response = running.request_node("/node/services/not%2Fregistered/health")
    assert (response.code, json.loads(response.body)) == SERVICE_NOT_FOUND
    for prefix in running.example.prefixes:
        assert running.request(f"{prefix}/node/health").code == 200, prefix
    for path in running.example.own_paths:
        assert running.request(path).code == 200, path


@pytest.mark.wide
def test_other_paths_get_the_404_of_the_application(running: RunningExample) -> None:
    for path in ("/nowhere", "/svcs/node", "//[svc/node"):
        response = running.request(path)
        is_of_node = response.body == b'{"message":"Not found"}'
        assert (response.code, is_of_node) == (404, not running.example.has_own_404), path


@pytest.mark.wide
def test_the_node_is_unhealthy_while_a_backing_service_is_stopped(
    running: RunningExample,
) -> None:
    example = running.example

    def statuses() -> set[str]:
        return {service["status"] for service in json.loads(running.request_node("/node/services").body)["services"]}

    def codes() -> set[int]:
        return {running.request_node(endpoint).code for endpoint in ("/node/health", slash_path(example))}

    running.backing.stop()
    running.wait_until(lambda: codes() == {503} and "Down" in statuses())
    running.backing.restore()
    running.wait_until(lambda: codes() == {200} and statuses() == {"Up"})


@pytest.mark.wide
def test_sigterm_stops_the_example_cleanly(running: RunningExample) -> None:
    """The last test of each example, because it stops the process."""
    assert running.stop() in (0, -signal.SIGTERM)  # uvicorn cleans up, then ends by the signal
    assert "Traceback" not in running.log


def test_the_lines_of_embed_md_about_a_framework_are_in_its_example() -> None:
    page = (ROOT / "docs" / "embed.md").read_text()
    rows = re.findall(r"^\| .* \| (.*) \| \[(\w+\.py)\]\(.*\) \|$", page, re.MULTILINE)
    assert len(rows) == 5
    for cell, name in rows:
        example = (EXAMPLES / name).read_text()
        first_line, *_ = re.findall(r"`([^`]+)`", cell)
        assert first_line in example, name


def test_the_python_blocks_of_embed_md_run_as_one_program(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "embed.md").read_text()
    program = re.findall(r"^```python\n(.*?)\n```$", page, re.DOTALL | re.MULTILINE)
    assert len(program) > 7
    completed = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (completed.returncode, completed.stderr) == (0, "")
