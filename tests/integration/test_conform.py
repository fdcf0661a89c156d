"""`svcnode conform` against nodes on loopback."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING
from unittest import mock
from xml.etree import ElementTree

import pytest

from svcnode.conformance.checks import CHECKS
from svcnode.conformance.run import STOPPED_REASON
from tests.conformance.conforming_node import ConformingNode, NodeServer, Request, Response
from tests.conformance.in_memory import MemoryServer
from tests.conformance.nonconforming_nodes import (
    AnyIdIsHealthy,
    HealthIsStatic,
    NodeNameIsEmpty,
)
from tests.support.backends import Backend, HttpBackend, closed_port, http_response, sending, server_tls
from tests.support.certificates import make_certificate
from tests.support.commands import svcnode
from tests.support.terminals import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.backends import ReceivedRequest

DEADLINE_S = 60.0
COMMAND = [sys.executable, "-W", "error", "-m", "svcnode", "conform"]
CONFORMS, FAILS, USAGE, NOT_CHECKED = 0, 1, 2, 4
OTHER_USER = base64.b64encode(b"bob:s3cr3t-word").decode()


def conform(*arguments: str) -> subprocess.CompletedProcess[str]:
    return svcnode("conform", "--timeout", "60s", *arguments)


def conform_in_memory(node: ConformingNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    with mock.patch("asyncio.open_connection", MemoryServer(node).connect):
        return conform("http://node.example", *arguments)


@pytest.fixture
def conforming_node() -> Iterator[NodeServer]:
    with NodeServer(ConformingNode().respond) as server:
        yield server


@pytest.mark.parametrize("path", ["", "/svc/node/health"])
def test_the_report_of_a_conforming_node_is_short_and_plain(path: str, conforming_node: NodeServer) -> None:
    ended = conform(f"{conforming_node.url}{path}".removeprefix("http://"))
    assert (ended.returncode, ended.stderr) == (CONFORMS, "")
    lines = ended.stdout.splitlines()
    assert lines[0].startswith(f"{conforming_node.url}/svc, ")
    assert lines[3].split() == ["identity", "6/6", "-", "2/2"]
    assert re.findall(r"\d+", lines[-1]) == [str(len(CHECKS)), "0", "0"]
    assert len(lines) < 24, "it fits a small terminal"
    assert "\x1b" not in ended.stdout


def test_a_failure_is_shown_with_its_details_and_the_most_important_comes_first() -> None:
    class Wrong(AnyIdIsHealthy):
        def __init__(self) -> None:
            super().__init__()
            self.identity |= {"node_name": "", "node_version": "1"}

    ended = conform_in_memory(Wrong())
    assert ended.returncode == FAILS
    assert re.findall(r"^FAILED ([a-z-]+)  (\w+)", ended.stdout, re.MULTILINE) == [
        ("identity-node-version-form", "must"),
        ("service-unknown-refused", "should"),
        ("identity-name-not-empty", "advice"),
    ]
    labels = re.findall(r"^  (\w+) +\S", ended.stdout, re.MULTILINE)
    assert labels[:5] == ["requirement", "request", "expected", "actual", "fix"]
    ended = conform_in_memory(NodeNameIsEmpty(), "--level", "advice")
    assert (ended.returncode, "\nFAILED " in ended.stdout) == (FAILS, True)


def test_another_prefix_is_used_and_a_wrong_one_gives_one_remark() -> None:
    node = ConformingNode()
    respond = lambda request: node.respond(request._replace(path=request.path.replace("/eigen/", "/svc/", 1)))  # noqa: E731
    with NodeServer(respond) as server:
        assert conform(server.url, "--prefix", "/eigen").returncode == CONFORMS
        assert {request.path.split("/")[1] for request in server.requests} == {"eigen"}
        ended = conform(server.url, "--prefix", "/other", "--json")
    (remark,) = json.loads(ended.stdout)["remarks"]
    assert f"{server.url}/other" in remark


# ---- JSON and JUnit


def test_json_has_every_check_and_finding() -> None:
    with NodeServer(HealthIsStatic().respond) as server:
        ended = conform(server.url, "--json")
    assert (ended.returncode, ended.stderr) == (FAILS, "")
    document = json.loads(ended.stdout)
    assert document["url"] == f"{server.url}/svc"
    assert document["interface"] == "v0.0.1"
    assert document["level"] == "should"
    assert document["conforms"] is False
    assert document["unreachable"] is None
    assert document["remarks"] == []
    assert document["counts"] == {"passed": len(CHECKS) - 1, "failed": 1, "failed_below_level": 0, "skipped": 0}
    assert [check["name"] for check in document["checks"]] == [check.name for check in CHECKS]
    (failed,) = (check for check in document["checks"] if check["outcome"] == "failed")
    assert failed.pop("duration_ms") > 0
    (check,) = (check for check in CHECKS if check.name == "health-reflects-services")
    (finding,) = failed.pop("findings")
    assert (finding["request"], finding["expected"]) == ("GET /svc/node/health", "206 or 503")
    assert finding["actual"].startswith("200 ")
    assert failed == {
        "name": "health-reflects-services",
        "group": "health",
        "level": "should",
        "clause": "3.2",
        "outcome": "failed",
        "skip_reason": None,
        "requirement": check.requirement,
        "fix": check.fix,
        "more_findings": 0,
    }


def test_junit_agrees_with_the_exit_code(tmp_path: Path) -> None:
    file = tmp_path / "conform.xml"
    assert conform_in_memory(NodeNameIsEmpty(), "--junit", str(file)).returncode == CONFORMS
    (suite,) = ElementTree.parse(file).getroot()
    assert suite.get("failures") == "0"
    (advice,) = suite.findall("testcase[@name='identity-name-not-empty']/skipped")
    assert "advice" in str(advice.text)


def test_junit_on_stdout_is_the_only_output_and_does_not_depend_on_the_encoding() -> None:
    class Foreign(ConformingNode):
        def __init__(self) -> None:
            super().__init__()
            self.identity |= {"node_version": "größer"}

    with NodeServer(Foreign().respond) as server:
        ended = subprocess.run(
            [*COMMAND, server.url, "--junit", "-"],
            env={"PATH": os.environ["PATH"], "PYTHONIOENCODING": "utf-16"},
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
    (suite,) = ElementTree.fromstring(ended.stdout)
    (failure,) = suite.findall("testcase/failure")
    assert "größer" in str(failure.text)


def test_credentials_are_sent_with_every_request_and_never_shown() -> None:
    headers = []

    def answer(received: ReceivedRequest) -> bytes:
        headers.append(received.headers.get("authorization"))
        return http_response(
            401, f"not {received.headers['authorization']} and not s3cr3t-word", WWW_Authenticate="Basic"
        )

    with HttpBackend(answer) as backend:
        for flags in ([], ["--json"], ["--junit", "-"]):
            ended = conform(f"bob:s3cr3t-word@{backend.address}", *flags)
            assert ended.returncode == FAILS
            assert "***" in ended.stdout
            assert "s3cr3t" not in ended.stdout + ended.stderr
            assert OTHER_USER not in ended.stdout + ended.stderr
    assert set(headers) == {f"Basic {OTHER_USER}"}


# ---- nothing to check


def test_an_unreachable_node_is_one_line_on_stderr_and_an_error_in_junit(tmp_path: Path) -> None:
    file = tmp_path / "conform.xml"
    with closed_port() as port:
        ended = conform(f"http://127.0.0.1:{port}")
        for_machines = conform(f"http://127.0.0.1:{port}", "--json", "--junit", str(file))
    assert (ended.returncode, ended.stdout) == (NOT_CHECKED, "")
    assert ended.stderr.count("\n") == 1
    assert f"http://127.0.0.1:{port}/svc" in ended.stderr
    assert for_machines.returncode == NOT_CHECKED
    document = json.loads(for_machines.stdout)
    assert (document["unreachable"], document["conforms"], document["checks"]) == ("connection refused", False, [])
    (suite,) = ElementTree.parse(file).getroot()
    (found,) = suite.findall("testcase/error")
    assert (found.get("message"), suite.get("errors"), suite.get("tests")) == ("connection refused", "1", "1")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["http://127.0.0.1:1", "--timeout", "0s"], "--timeout"),
        (["http://127.0.0.1:1", "--ca", "ca.pem"], "https"),
        (["https://127.0.0.1:1", "--ca", "/nonexistent"], "/nonexistent"),
    ],
)
def test_a_wrong_command_line_is_rejected(arguments: list[str], named: str) -> None:
    """tests/wording has the others."""
    ended = conform(*arguments)
    assert (ended.returncode, ended.stdout) == (USAGE, "")
    assert named in ended.stderr


def test_a_report_that_cannot_be_written_is_an_error(conforming_node: NodeServer, tmp_path: Path) -> None:
    ended = conform(conforming_node.url, "--junit", str(tmp_path))
    assert ended.returncode == NOT_CHECKED
    assert ended.stderr.startswith("svcnode: --junit: ")
    assert str(tmp_path) in ended.stderr


# ---- TLS


def test_tls_needs_a_trusted_ca_and_the_right_scheme(tmp_path: Path) -> None:
    made, other = make_certificate(tmp_path), make_certificate(tmp_path, "other")
    with NodeServer(ConformingNode().respond, tls=server_tls(made)) as server:
        untrusted = conform(server.url)
        signed = conform(server.url, "--ca", str(other.certificate))
        trusted = conform(server.url, "--ca", str(made.certificate))
        plain = conform(server.url.replace("https", "http"))
    assert (trusted.returncode, trusted.stderr) == (CONFORMS, "")
    assert {one.returncode for one in (untrusted, signed, plain)} == {NOT_CHECKED}
    assert "--ca" in untrusted.stderr
    assert "--ca" in signed.stderr
    assert "https://" in plain.stderr
    with Backend(sending(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as backend:
        assert "use http://" in conform(f"https://{backend.address}").stderr
    with HttpBackend(http_response(), tls=server_tls(made), host="127.0.0.2") as other_name:
        named = conform(f"https://{other_name.address}", "--ca", str(made.certificate))
    assert "'127.0.0.2'" in named.stderr
    assert "--ca" not in named.stderr


# ---- Ctrl-C, and on a terminal

INTERRUPTED = 128 + signal.SIGINT
FIRST_OF_VERSIONS = next(index for index, check in enumerate(CHECKS) if check.name.startswith("version-"))
NOT_RUN = len(CHECKS) - FIRST_OF_VERSIONS


@contextmanager
def stalling() -> Iterator[tuple[str, threading.Event]]:
    """The URL of a node that stalls at its first request with a version."""
    node, is_stalled, released = ConformingNode(), threading.Event(), threading.Event()

    def respond(request: Request) -> Response:
        if request.query:
            is_stalled.set()
            released.wait(2 * DEADLINE_S)
        return node.respond(request)

    with NodeServer(respond) as server:
        try:
            yield server.url, is_stalled
        finally:
            released.set()


@pytest.mark.usefixtures("default_sigint")
def test_after_ctrl_c_the_results_so_far_are_complete_json_and_junit_has_an_error(tmp_path: Path) -> None:
    file = tmp_path / "conform.xml"
    with stalling() as (url, is_stalled):
        command = [*COMMAND, url, "--timeout", "10m", "--json", "--junit", str(file)]
        environ = {"PATH": os.environ["PATH"]}
        with subprocess.Popen(
            command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                assert is_stalled.wait(DEADLINE_S)
                process.send_signal(signal.SIGINT)
                shown, errors = process.communicate(timeout=DEADLINE_S)
            finally:
                process.kill()
    assert (process.returncode, errors) == (INTERRUPTED, "")
    document = json.loads(shown)
    assert document["conforms"] is False
    assert re.findall(r"\d+", document["interrupted"]) == [str(NOT_RUN), str(len(CHECKS))]
    assert (document["unreachable"], document["aborted"]) == (None, None)
    assert document["counts"] == {"passed": FIRST_OF_VERSIONS, "failed": 0, "failed_below_level": 0, "skipped": NOT_RUN}
    assert {check["skip_reason"] for check in document["checks"][FIRST_OF_VERSIONS:]} == {STOPPED_REASON}
    (suite,) = ElementTree.parse(file).getroot()
    assert len(suite.findall("testcase[@name='finished']/error")) == 1


def test_ctrl_c_erases_the_progress_bar(tmp_path: Path) -> None:
    with stalling() as (url, _), Terminal(tmp_path, columns=120) as terminal:
        terminal.start(f"svcnode conform {url} --timeout 10m")
        terminal.wait_for_text(f" {FIRST_OF_VERSIONS + 1}/{len(CHECKS)} version-")
        terminal.press("C-c")
        screen, code = terminal.wait_for_exit()
        assert code == INTERRUPTED
        assert terminal.tmux_variable("cursor_flag") == "1"
    lines = screen.splitlines()
    assert lines[0].startswith(f"{url}/svc, ")
    assert re.findall(r"\d+", lines[-2]) == [str(NOT_RUN), str(len(CHECKS))]
    assert "^C" not in screen


def test_a_terminal_gets_colours_and_no_control_characters_of_the_node(tmp_path: Path) -> None:
    class Steering(ConformingNode):
        def respond(self, request: Request) -> Response:
            response = super().respond(request)
            is_identity = request.path == "/svc/node" and response.code == 200
            body = b"\x1b]0;gotcha\x07[bold]x[/nothing]"
            return Response(headers=response.headers, body=body) if is_identity else response

    with NodeServer(Steering().respond) as server, Terminal(tmp_path, columns=120, rows=50) as terminal:
        screen, code = terminal.run(f"svcnode conform {server.url}")
        assert "\x1b[1m\x1b[31mFAILED identity-json" in terminal.styled
        assert terminal.tmux_variable("cursor_flag") == "1"
    assert code == FAILS
    assert r"\x1b]0;gotcha\x07[bold]x[/nothing]" in screen
