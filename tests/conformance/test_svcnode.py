"""Our own servers pass everything, advice too."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import uvicorn

from svcnode import asgi
from svcnode.conformance.check import Level
from svcnode.conformance.run import CheckOutcome, Report, check_node
from tests.support.certificates import make_certificate
from tests.support.node_cases import worked_example
from tests.support.processes import Agent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TIMEOUT_S = 60.0
SERVICES = """
[node]
name = "validator-7"
version = "v1.4.2"

[[services]]
id = "db"
status = "Up"

[[services]]
id = "indexer"
status = "Initializing"

[[services]]
id = "storage"
status = "Down"

[[services]]
id = "a/b c%"
description = "an id that a path cannot hold as it is"
status = "Up"

[[services]]
id = "Größe?#&=+;,%2F\\u2603"
status = "Down"
"""


def not_passed(report: Report) -> dict[str, str]:
    assert not report.unreachable
    return {
        one.check.name: one.skip_reason or str(one.findings)
        for one in report.results
        if one.outcome is not CheckOutcome.PASSED
    }


def test_the_agent_passes_all_levels_also_under_tls_and_another_prefix(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    tls = f'[server.tls]\ncertificate = "{made.certificate}"\nkey = "{made.key}"\n'
    listen = ("--listen", "https://127.0.0.1:0", "--prefix", "/eigen", "--prefix", "/svc")
    with Agent(tmp_path, *listen, config=SERVICES + tls) as agent:
        for prefix in ("/svc", "/eigen"):
            url = f"https://localhost:{agent.port}"
            report = check_node(url, prefix=prefix, ca=made.certificate, timeout_s=TIMEOUT_S)
            assert not_passed(report) == {}
            assert report.conforms(Level.ADVICE)


@pytest.mark.wide
def test_the_agent_with_nothing_configured_fails_nothing(tmp_path: Path) -> None:
    """Its one service is Up, so some checks do not apply."""
    with Agent(tmp_path, "--listen", "127.0.0.1:0") as agent:
        agent.wait_until(lambda: agent.health() == 200)
        report = check_node(f"http://127.0.0.1:{agent.port}", timeout_s=TIMEOUT_S)
    assert report.conforms(Level.ADVICE)
    assert set(not_passed(report)) == {"service-id-encoded", "health-reflects-services"}


@contextmanager
def served_by_uvicorn() -> Iterator[str]:
    application = asgi(worked_example())
    config = uvicorn.Config(application, lifespan="off", ws="none", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def test_the_application_under_another_server_passes_all_levels() -> None:
    with served_by_uvicorn() as url:
        report = check_node(url, timeout_s=TIMEOUT_S)
    assert report.conforms(Level.ADVICE)
    assert set(not_passed(report)) == {"service-id-encoded"}
