"""The control socket of a running node against its OpenAPI document, tested by Schemathesis."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from svcnode.control import Client
from svcnode.control.api import ROUTES
from tests.integration.test_openapi import each_number_of_examples, run_schemathesis
from tests.support.processes import Agent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NODE = """
[node]
name = "validator-7"

[[services]]
id = "in-the-file"
status = "Up"
"""

# A valid request may name a document that does not exist, that is at another revision or that is not to be changed.
# Whether options of a service are valid together is more than a schema says, so 400 is expected there.
CONFIG = """
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
"""

# The coverage phase of Schemathesis allows only letters and digits in headers, so its valid If-Match is 0, which is not
# an ETag. With quotes it is one, and no case is left out.
HOOKS = """
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
            report = run_schemathesis(tmp_path, url, config=CONFIG, hooks=HOOKS, examples=examples)
        operations = sum(map(len, ROUTES.values())) - 1  # Schemathesis leaves out the path of the document
        assert f"{operations} selected / {operations} total" in report
        with Client(socket) as client:
            assert client.service("in-the-file")["status"] == "Up"
