"""Small nodes on common frameworks: careful ones conform, naive ones fail exactly where they mislead a client."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from svcnode.conformance.check import Level
from svcnode.conformance.run import Report, check_node
from tests.support.servers.base import RealServer
from tests.support.servers.http_request import http_request
from tests.support.servers.provision import npm_package, tool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SOURCES = Path(__file__).parent / "idiomatic_nodes"
EXPRESS_VERSION = "5.1.0"


def python_command(script: str) -> Callable[[Path], Sequence[str]]:
    return lambda _: [sys.executable, str(SOURCES / script)]


def express_command(folder: Path) -> Sequence[str]:
    """Node.js searches packages in the folders above a module, so the module is copied into the folder of npm."""
    home = npm_package("express", EXPRESS_VERSION).parents[1]
    script = Path(shutil.copy(SOURCES / "express.mjs", home))
    return [tool("node"), str(script)]


class Framework(NamedTuple):
    name: str
    command: Callable[[Path], Sequence[str]]
    failures_if_naive: dict[str, Level]  # at the default level


FRAMEWORKS = [
    Framework(
        "express",
        express_command,
        {f"version-unsupported-on-{endpoint}": Level.MUST for endpoint in ("identity", "health", "services")}
        | {"version-unsupported-on-service-health": Level.MUST},
    ),
    Framework(
        "flask",
        python_command("flask_node.py"),
        {"service-health-no-body": Level.SHOULD, "version-empty": Level.SHOULD},
    ),
]


# The first test of a framework installs it.
pytestmark = [pytest.mark.wide, pytest.mark.timeout(600)]


class IdiomaticNode(RealServer):
    def __init__(self, folder: Path, framework: Framework, *arguments: str) -> None:
        super().__init__(folder)
        self._command = framework.command(folder)
        self._arguments = arguments

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def command(self) -> Sequence[str]:
        return [*self._command, str(self.port), *self._arguments]

    def is_ready(self) -> bool:
        return http_request(self.port, "/svc/node")[0] == 200


def run_conformance(folder: Path, framework: Framework, *arguments: str) -> Report:
    with IdiomaticNode(folder, framework, *arguments) as node:
        return check_node(node.url, timeout_s=20.0)


def failed(report: Report) -> dict[str, Level]:
    return {result.check.name: result.check.level for result in report.failed(Level.SHOULD)}


@pytest.fixture(params=FRAMEWORKS, ids=lambda framework: framework.name, scope="module")
def framework(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_careful_node_conforms(framework: Framework, tmp_path: Path) -> None:
    report = run_conformance(tmp_path, framework)
    assert failed(report) == {}, report.failed(Level.SHOULD)
    assert report.conforms()
    assert report.remarks == ()


def test_a_naive_node_fails_where_it_breaks_the_document_or_misleads(framework: Framework, tmp_path: Path) -> None:
    report = run_conformance(tmp_path, framework, "naive")
    assert failed(report) == framework.failures_if_naive
    assert not report.conforms()
