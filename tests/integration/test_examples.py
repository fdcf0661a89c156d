"""Every example under its real server: it says the truth, leaves the application alone, and ends cleanly."""

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

from tests.support.example_apps import ALL, EXAMPLES, ROOT, Example, RunningExample

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Example, RunningExample]]:
    """All examples side by side, so that each has started by the time it is asked."""
    with ExitStack() as stack:
        yield {one: stack.enter_context(RunningExample(one, tmp_path_factory.mktemp("example"))) for one in ALL}


@pytest.fixture(scope="module", params=ALL, ids=str)
def running(request: pytest.FixtureRequest, processes: dict[Example, RunningExample]) -> RunningExample:
    """An example that has come to answer 200."""
    process = processes[request.param]
    if process.example.file == "fastapi_app.py":
        process.wait_until(lambda: process.request("/blocks/1", method="POST").code == 200)
    process.wait_until(lambda: process.request_node("/node/health").code == 200 and is_every_worker_at_200(process))
    return process


def is_every_worker_at_200(process: RunningExample) -> bool:
    """Each forked worker looks for itself, so each has to come to 200 by itself."""
    workers = process.example.workers
    return workers == 1 or len(process.workers_that_returned_200) == workers


def slash_path(example: Example) -> str:
    return f"/node/services/{quote(example.slash_id, safe='')}/health"


def endpoints(example: Example) -> tuple[str, ...]:
    return ("/node", "/node/health", "/node/services", slash_path(example))


def test_every_example_is_run() -> None:
    assert {example.file for example in ALL} == {file.name for file in EXAMPLES.glob("*.py")}


def test_the_node_says_who_it_is(running: RunningExample) -> None:
    answer = running.request_node("/node")
    assert (answer.code, answer.headers["Content-Type"]) == (200, "application/json")
    identity = json.loads(answer.body)
    assert list(identity) == ["node_name", "spec_version", "node_version"]
    assert identity["spec_version"] == "v0.0.1"


def test_health_is_a_code_without_a_body(running: RunningExample) -> None:
    for endpoint in ("/node/health", slash_path(running.example)):
        answer = running.request_node(endpoint)
        assert (answer.code, answer.body, answer.headers["Content-Length"]) == (200, b"", "0")


def test_every_listed_service_is_up_and_its_health_agrees(running: RunningExample) -> None:
    services = json.loads(running.request_node("/node/services").body)["services"]
    assert running.example.slash_id in {service["id"] for service in services}
    for service in services:
        assert service["status"] == "Up"
        assert running.request_node(f"/node/services/{quote(service['id'], safe='')}/health").code == 200


def test_every_endpoint_answers_head_as_get_without_the_body(running: RunningExample) -> None:
    for endpoint in endpoints(running.example):
        head, get = running.request_node(endpoint, method="HEAD"), running.request_node(endpoint)
        assert (head.code, head.body) == (get.code, b"")
        for name in ("Content-Type", "Content-Length", "Cache-Control"):
            assert head.headers[name] == get.headers[name]


def test_an_unsupported_version_is_not_found_on_any_endpoint(running: RunningExample) -> None:
    for endpoint in endpoints(running.example):
        assert running.request_node(f"{endpoint}?version=v0.0.1").code == 200
        answer = running.request_node(f"{endpoint}?version=v9")
        assert (answer.code, json.loads(answer.body)) == (404, {"message": "API version not found"})


def test_other_methods_are_refused(running: RunningExample) -> None:
    answer = running.request_node("/node/health", method="OPTIONS")
    assert (answer.code, answer.headers["Allow"]) == (405, "GET, HEAD")


def test_an_unknown_service_is_not_found(running: RunningExample) -> None:
    answer = running.request_node("/node/services/nobody%2Fhere/health")
    assert (answer.code, json.loads(answer.body)) == (404, {"message": "Service not found"})


def test_the_server_dates_every_answer_and_no_cache_keeps_it(running: RunningExample) -> None:
    for endpoint in (*endpoints(running.example), "/nowhere"):
        answer = running.request_node(endpoint)
        assert len(answer.headers.get_all("Date", [])) == 1
        assert answer.headers.get_all("Cache-Control") == ["no-store"]


def test_the_routes_of_the_application_still_answer(running: RunningExample) -> None:
    for path in running.example.own_paths:
        assert running.request(path).code == 200, path


def test_paths_that_are_not_the_nodes_get_the_404_of_whoever_answers_there(running: RunningExample) -> None:
    for path in ("/nowhere", "/svcs/node", "//[svc/node"):
        answer = running.request(path)
        is_ours = answer.body == b'{"message":"Not found"}'
        assert (answer.code, is_ours) == (404, not running.example.has_own_404), path


def test_every_prefix_answers(running: RunningExample) -> None:
    for prefix in running.example.prefixes:
        assert running.request(f"{prefix}/node/health").code == 200, prefix


def test_the_answer_leaves_200_when_the_backing_thing_breaks_and_returns_when_it_is_fixed(
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


def test_it_ends_cleanly_when_told_to(running: RunningExample) -> None:
    """The last of the tests, since nothing answers after it."""
    assert running.stop() in (0, -signal.SIGTERM)  # uvicorn ends by the signal it was sent, once it has cleaned up
    assert "Traceback" not in running.log


def test_the_python_blocks_of_the_embedding_page_are_parts_of_examples_or_run_as_one_program(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "embed.md").read_text()
    examples = [file.read_text() for file in EXAMPLES.glob("*.py")]
    blocks = re.findall(r"^```python\n(.*?)\n```$", page, re.DOTALL | re.MULTILINE)
    program = [block for block in blocks if not any(block in example for example in examples)]
    assert 10 < len(program) < len(blocks)
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", "\n".join(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
