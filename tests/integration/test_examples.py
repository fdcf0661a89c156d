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
from tests.support.transports import SERVICE_NOT_FOUND, VERSION_NOT_FOUND

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


def endpoints(example: Example) -> tuple[str, ...]:
    return ("/node", "/node/health", "/node/services", slash_path(example))


def test_every_example_is_run() -> None:
    assert {example.file for example in ALL_EXAMPLES} == {
        file.name for file in EXAMPLES.glob("*.py") if not file.name.startswith("test_")
    }, "tests/integration/test_testing.py runs the tests"


def test_the_identity_of_the_node(running: RunningExample) -> None:
    response = running.request_node("/node")
    assert (response.code, response.headers["Content-Type"]) == (200, "application/json")
    identity = json.loads(response.body)
    assert list(identity) == ["node_name", "spec_version", "node_version"]
    assert identity["spec_version"] == "v0.0.1"


def test_health_is_a_code_without_a_body(running: RunningExample) -> None:
    for endpoint in ("/node/health", slash_path(running.example)):
        response = running.request_node(endpoint)
        assert (response.code, response.body, response.headers["Content-Length"]) == (200, b"", "0")


def test_every_listed_service_is_up_and_its_health_agrees(running: RunningExample) -> None:
    services = json.loads(running.request_node("/node/services").body)["services"]
    assert running.example.slash_id in {service["id"] for service in services}
    for service in services:
        assert service["status"] == "Up"
        assert running.request_node(f"/node/services/{quote(service['id'], safe='')}/health").code == 200


def test_head_has_the_code_and_headers_of_get(running: RunningExample) -> None:
    for endpoint in endpoints(running.example):
        head, get = running.request_node(endpoint, method="HEAD"), running.request_node(endpoint)
        assert (head.code, head.body) == (get.code, b"")
        for name in ("Content-Type", "Content-Length", "Cache-Control"):
            assert head.headers[name] == get.headers[name]


def test_an_unsupported_version_is_not_found_on_any_endpoint(running: RunningExample) -> None:
    for endpoint in endpoints(running.example):
        assert running.request_node(f"{endpoint}?version=v0.0.1").code == 200
        response = running.request_node(f"{endpoint}?version=v9")
        assert (response.code, json.loads(response.body)) == VERSION_NOT_FOUND


def test_other_methods_are_not_allowed(running: RunningExample) -> None:
    response = running.request_node("/node/health", method="OPTIONS")
    assert (response.code, response.headers["Allow"]) == (405, "GET, HEAD")


def test_an_unknown_service_is_not_found(running: RunningExample) -> None:
    response = running.request_node("/node/services/not%2Fregistered/health")
    assert (response.code, json.loads(response.body)) == SERVICE_NOT_FOUND


def test_every_response_has_a_date_and_is_not_cached(running: RunningExample) -> None:
    for endpoint in (*endpoints(running.example), "/nowhere"):
        response = running.request_node(endpoint)
        assert len(response.headers.get_all("Date", [])) == 1
        assert response.headers.get_all("Cache-Control") == ["no-store"]


def test_the_routes_of_the_application_still_work(running: RunningExample) -> None:
    for path in running.example.own_paths:
        assert running.request(path).code == 200, path


def test_other_paths_get_the_404_of_the_application(running: RunningExample) -> None:
    for path in ("/nowhere", "/svcs/node", "//[svc/node"):
        response = running.request(path)
        is_of_node = response.body == b'{"message":"Not found"}'
        assert (response.code, is_of_node) == (404, not running.example.has_own_404), path


def test_every_prefix_is_served(running: RunningExample) -> None:
    for prefix in running.example.prefixes:
        assert running.request(f"{prefix}/node/health").code == 200, prefix


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
        [sys.executable, "-X", "dev", "-W", "error", "-c", "\n".join(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (completed.returncode, completed.stderr) == (0, "")
