"""The server and the control socket against their own OpenAPI documents, tested by Schemathesis.

Schemathesis sends requests that match the document and requests that do not, and checks every response: codes, content
types, headers, bodies, methods and links.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import svcnode
from svcnode.control import ControlClient
from svcnode.control.api import ROUTES
from tests.support.http_server import running_server
from tests.support.node_cases import worked_example
from tests.support.processes import Agent
from tests.support.servers.provision import npm_package, tool

if TYPE_CHECKING:
    from collections.abc import Iterator

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


# ---- the control socket


NODE = """
[node]
name = "validator-7"

[[services]]
id = "in-the-file"
status = "Up"
"""

# A valid request may name a document that does not exist, that is at another revision or that is not to be changed.
# Whether options of a service are valid together is more than a schema says, so 400 is expected there.
CONTROL_CONFIG = """
hooks = "hooks.py"
seed = 20240229

[generation]
max-examples = {examples}
database = "none"

[phases.stateful.generation]
max-examples = 3

[checks]
positive_data_acceptance.expected-statuses = ["2xx", "404", "409", "412"]

# A failed precondition refuses an invalid request as well.
[checks.negative_data_rejection]
expected-statuses = ["400", "404", "405", "409", "412"]

[[operations]]
include-operation-id = "register"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "404", "409", "412"]

# Whether a time exists and is in the future is more than a schema says, too.
[[operations]]
include-operation-id = ["planNodeMaintenance", "planServiceMaintenance", "acknowledgeNode", "acknowledgeService"]
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "404", "409", "412", "422"]
checks.negative_data_rejection.expected-statuses = ["400", "404", "405", "409", "412", "422"]
"""

# The coverage phase of Schemathesis allows only letters and digits in headers, so its valid If-Match is 0, which is not
# an ETag. With quotes it is one, and no case is left out.
CONTROL_HOOKS = """
import schemathesis


@schemathesis.hook
def map_case(context, case):
    revision = (case.headers or {}).get("If-Match", "")
    if str(revision).isdecimal():
        case.headers["If-Match"] = f'"{revision}"'
    return case
"""


@contextmanager
def on_tcp(path: Path) -> Iterator[int]:
    """The port of a forwarder to the socket on the loopback interface: Schemathesis has no Unix sockets."""
    loop = asyncio.new_event_loop()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        from_node, to_node = await asyncio.open_unix_connection(path)
        await asyncio.gather(copy(reader, to_node), copy(from_node, writer))

    server = loop.run_until_complete(asyncio.start_server(forward, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


@each_number_of_examples
@pytest.mark.timeout(400)
def test_the_control_socket_conforms_to_its_openapi_document(tmp_path: Path, examples: int) -> None:
    socket = tmp_path / "control.sock"
    environ = {"STATE_DIRECTORY": str(tmp_path / "state"), "SVCNODE_CONTROL_LISTEN": f"unix:{socket}"}
    with Agent(tmp_path, "--listen", "127.0.0.1:0", config=NODE, environ=environ) as agent:
        agent.wait_for_event("control_socket")
        with on_tcp(socket) as port:
            url = f"http://127.0.0.1:{port}/v1/openapi.json"
            report = run_schemathesis(tmp_path, url, config=CONTROL_CONFIG, hooks=CONTROL_HOOKS, examples=examples)
        operations = sum(map(len, ROUTES.values())) - 1  # Schemathesis leaves out the path of the document
        assert f"{operations} selected / {operations} total" in report
        with ControlClient(socket) as client:
            assert client.service("in-the-file")["status"] == "Up"


# ---- the documents


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
