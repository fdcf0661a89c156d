"""The pytest plugin in the test suite of another project, in its own process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from svcnode.conformance.checks import CHECKS
from tests.conformance.conforming_node import ConformingNode, NodeServer
from tests.conformance.nonconforming_nodes import HealthIsStatic, NodeNameIsEmpty
from tests.support.backends import closed_port

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 60.0
IMPORTED = """
from svcnode.conformance.pytest import conform

test_node = conform({url!r}{options})
"""
BY_FIXTURE = """
import pytest

@pytest.fixture(scope="session")
def node_url():
    return {url!r}

def test_node(conform, node_url):
    conform(node_url{options})
"""


def run_pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def outcomes(ended: subprocess.CompletedProcess[str]) -> dict[str, str]:
    return dict(re.findall(r"::test_node\[([a-z0-9-]+)\] (\w+)", ended.stdout))


STYLES = {"imported": (IMPORTED, ()), "by fixture": (BY_FIXTURE, ("-p", "svcnode.conformance.pytest"))}


@pytest.mark.parametrize("style", STYLES)
def test_a_node_that_conforms_passes_one_test_per_check(style: str, tmp_path: Path) -> None:
    text, arguments = STYLES[style]
    with NodeServer(ConformingNode().respond) as server:
        (tmp_path / "test_mine.py").write_text(text.format(url=server.url, options=""))
        ended = run_pytest(tmp_path, "-v", *arguments)
        request_count = len(server.requests)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert outcomes(ended) == {check.name: "PASSED" for check in CHECKS}
    assert request_count < 500, "one run for all tests"


@pytest.mark.parametrize("style", STYLES)
def test_a_failed_check_is_one_failed_test_with_details_and_no_traceback(style: str, tmp_path: Path) -> None:
    text, arguments = STYLES[style]
    with NodeServer(HealthIsStatic().respond) as server:
        (tmp_path / "test_mine.py").write_text(text.format(url=server.url, options=""))
        ended = run_pytest(tmp_path, "-v", *arguments)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert {name for name, outcome in outcomes(ended).items() if outcome == "FAILED"} == {"health-reflects-services"}
    labels = re.findall(r"^  (\w+) +\S", ended.stdout, re.MULTILINE)
    assert labels == ["requirement", "request", "expected", "actual", "fix"]
    assert "GET /svc/node/health" in ended.stdout
    assert "Traceback" not in ended.stdout
    assert "def test" not in ended.stdout


def test_a_conftest_can_load_the_plugin(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["svcnode.conformance.pytest"]\n')
    with NodeServer(ConformingNode().respond) as server:
        (tmp_path / "test_mine.py").write_text(BY_FIXTURE.format(url=server.url, options=""))
        ended = run_pytest(tmp_path, "-v", "-k", "identity-fields")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert outcomes(ended) == {"identity-fields": "PASSED"}


def test_advice_counts_only_at_level_advice(tmp_path: Path) -> None:
    with NodeServer(NodeNameIsEmpty().respond) as server:
        (tmp_path / "test_mine.py").write_text(IMPORTED.format(url=server.url, options=""))
        ended = run_pytest(tmp_path, "-v")
        (tmp_path / "test_mine.py").write_text(IMPORTED.format(url=server.url, options=', level="advice"'))
        strict = run_pytest(tmp_path, "-v")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert outcomes(ended)["identity-name-not-empty"] == "XFAIL"
    assert strict.returncode == 1
    assert outcomes(strict)["identity-name-not-empty"] == "FAILED"


def test_the_url_may_be_a_function_that_is_called_when_the_tests_run(tmp_path: Path) -> None:
    with NodeServer(ConformingNode().respond) as server:
        script = (
            "from svcnode.conformance.pytest import conform\n"
            "started = []\n"
            "def setup_module(): started.append(True)\n"
            f"test_node = conform(lambda: started and {server.url!r}, other_methods=False)\n"
        )
        (tmp_path / "test_mine.py").write_text(script)
        ended = run_pytest(tmp_path, "-v")
        methods = {request.method for request in server.requests}
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert outcomes(ended)["methods-refused"] == "SKIPPED"
    assert methods == {"GET", "HEAD"}


@pytest.mark.parametrize("style", STYLES)
def test_an_unreachable_node_fails_one_test_and_the_others_are_skipped(style: str, tmp_path: Path) -> None:
    text, arguments = STYLES[style]
    with closed_port() as port:
        (tmp_path / "test_mine.py").write_text(text.format(url=f"http://127.0.0.1:{port}", options=""))
        ended = run_pytest(tmp_path, "-v", *arguments)
    assert ended.returncode == 1
    first, *others = outcomes(ended).values()
    assert (first, set(others), len(others)) == ("FAILED", {"SKIPPED"}, len(CHECKS) - 1)
    assert f"http://127.0.0.1:{port}/svc" in ended.stdout


def test_a_wrong_url_fails_one_test_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(IMPORTED.format(url="ftp://x", options=""))
    ended = run_pytest(tmp_path, "-v", "-k", "identity-json or services-list")
    assert outcomes(ended) == {"identity-json": "FAILED", "services-list": "SKIPPED"}
    assert "ftp://x" in ended.stdout
    assert "Traceback" not in ended.stdout
