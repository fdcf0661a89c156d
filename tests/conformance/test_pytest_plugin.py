"""The pytest plugin in the test suite of another project, in its own process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from svcnode.conformance.checks import CHECKS
from tests.conformance.conforming_node import NodeServer
from tests.conformance.nonconforming_nodes import HealthIsStatic, NodeNameIsEmpty
from tests.support.backends import closed_port

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE_S = 110.0
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


@pytest.mark.parametrize("style", ["imported", pytest.param("by fixture", marks=pytest.mark.wide)])
def test_a_failed_check_is_one_failed_test_with_details_and_no_traceback(style: str, tmp_path: Path) -> None:
    text, arguments = STYLES[style]
    with NodeServer(HealthIsStatic().respond) as server:
        (tmp_path / "test_mine.py").write_text(text.format(url=server.url, options=""))
        ended = run_pytest(tmp_path, "-v", *arguments)
        request_count = len(server.requests)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    expected = {check.name: "PASSED" for check in CHECKS} | {"health-reflects-services": "FAILED"}
    assert outcomes(ended) == expected
    assert request_count < 500, "one run for all tests"
    labels = re.findall(r"^  (\w+) +\S", ended.stdout, re.MULTILINE)
    assert labels == ["requirement", "request", "expected", "actual", "fix"]
    assert "GET /svc/node/health" in ended.stdout
    assert "Traceback" not in ended.stdout
    assert "def test" not in ended.stdout


def test_advice_counts_only_at_level_advice_and_a_url_may_be_a_function_called_when_the_tests_run(
    tmp_path: Path,
) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["svcnode.conformance.pytest"]\n')
    with NodeServer(NodeNameIsEmpty().respond) as server:
        script = (
            "from svcnode.conformance.pytest import conform\n"
            "started = []\n"
            "def setup_module(): started.append(True)\n"
            f"test_lenient = conform(lambda: started and {server.url!r}, other_methods=False)\n"
            f"test_node = conform({server.url!r}, level='advice', other_methods=False)\n"
        )
        (tmp_path / "test_mine.py").write_text(script)
        ended = run_pytest(tmp_path, "-v")
        methods = {request.method for request in server.requests}
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "::test_lenient[identity-name-not-empty] XFAIL" in ended.stdout
    assert {name for name, outcome in outcomes(ended).items() if outcome == "FAILED"} == {"identity-name-not-empty"}
    assert outcomes(ended)["methods-refused"] == "SKIPPED"
    assert methods == {"GET", "HEAD"}


def test_an_unreachable_node_fails_one_test_and_the_others_are_skipped(tmp_path: Path) -> None:
    text, arguments = STYLES["by fixture"]
    with closed_port() as port:
        (tmp_path / "test_mine.py").write_text(text.format(url=f"http://127.0.0.1:{port}", options=""))
        (tmp_path / "test_wrong_url.py").write_text(IMPORTED.format(url="ftp://x", options=""))
        ended = run_pytest(tmp_path, "-v", *arguments)
    assert ended.returncode == 1
    for name in ("mine", "wrong_url"):
        first, *others = re.findall(rf"^test_{name}\.py::test_node\[[a-z0-9-]+\] (\w+)", ended.stdout, re.MULTILINE)
        assert (first, set(others), len(others)) == ("FAILED", {"SKIPPED"}, len(CHECKS) - 1)
    assert f"http://127.0.0.1:{port}/svc" in ended.stdout
    assert "ftp://x" in ended.stdout
    assert "Traceback" not in ended.stdout
