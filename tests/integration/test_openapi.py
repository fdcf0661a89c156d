"""The server against its own OpenAPI document, tested by Schemathesis.

Schemathesis sends requests that match the document and requests that do not, and checks every response: codes, content
types, headers, bodies, methods and links.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import svcnode
from tests.support.http_server import running_server
from tests.support.node_cases import worked_example
from tests.support.servers.provision import npm_package, tool

# How many requests of each kind are made; a few in `make test`.
each_number_of_examples = pytest.mark.parametrize("examples", [2, pytest.param(30, marks=pytest.mark.wide)])

# As partial_status these codes have no body, as errors they have one. A document can describe only one of the two, so
# Schemathesis does not use them as partial_status.
ERROR_CODES = (400, 404, 405, 500)

PARTIAL_STATUSES = [str(code) for code in range(200, 600) if code not in ERROR_CODES]

CONFIG = f"""
hooks = "hooks.py"
seed = 20240229

[generation]
max-examples = {{examples}}
database = "none"

[phases.stateful.generation]
max-examples = 5

[checks]
# 503 is a valid health, and partial_status may be any other code. 500 is an error.
not_a_server_error.expected-statuses = {[*PARTIAL_STATUSES, "400", "404", "405"]}
# A valid request may name an unknown service, but is never a bad request.
positive_data_acceptance.expected-statuses = {[*PARTIAL_STATUSES, "404"]}
"""

PHASES = "examples,coverage,fuzzing,stateful"
HOOKS = f"""
import schemathesis


@schemathesis.hook
def filter_query(context, query):
    return str((query or {{}}).get("partial_status")) not in {set(map(str, ERROR_CODES))}
"""


def run_schemathesis(folder: Path, url: str, *, config: str, hooks: str, examples: int) -> str:
    """Test the server of an OpenAPI document; returns the report. A few examples take fewer phases."""
    (folder / "schemathesis.toml").write_text(config.format(examples=examples))
    (folder / "hooks.py").write_text(hooks)
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file=schemathesis.toml", "run", "--checks=all"]
    run = subprocess.run(
        [*command, f"--phases={PHASES if examples > 2 else 'examples,fuzzing'}", "--no-color", url],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@each_number_of_examples
@pytest.mark.timeout(400)
def test_the_server_conforms_to_its_openapi_document(tmp_path: Path, examples: int) -> None:
    with running_server(worked_example()) as server:
        host, port = server.address
        url = f"http://{host}:{port}/openapi.json"
        report = run_schemathesis(tmp_path, url, config=CONFIG, hooks=HOOKS, examples=examples)
    assert "4 selected / 4 total" in report
    assert examples == 2 or "1 covered / 1 selected / 1 total" in report


DOCUMENTS = [Path(svcnode.__file__).parent / package / "openapi.json" for package in ("api", "control")]
REDOCLY_VERSION, SPECTRAL_VERSION = "2.73.0", "6.16.3"


def lint(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true", "REDOCLY_TELEMETRY": "off"}
    return subprocess.run(
        [tool("node"), *command], cwd=folder, env=environ, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.wide
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.parent.name)
def test_redocly_and_spectral_find_no_error_in_an_openapi_document(document: Path, tmp_path: Path) -> None:
    redocly = npm_package("@redocly/cli", REDOCLY_VERSION) / "bin" / "cli.js"
    spectral = npm_package("@stoplight/spectral-cli", SPECTRAL_VERSION) / "dist" / "index.js"
    shutil.copy(document, tmp_path)
    (tmp_path / ".spectral.yaml").write_text('extends: ["spectral:oas"]')
    for program in (redocly, spectral):
        done = lint(str(program), "lint", "openapi.json", folder=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
