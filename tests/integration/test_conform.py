"""`svcnode conform` against nodes on loopback."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from svcnode.conformance.checks import CHECKS
from svcnode.conformance.run import STOPPED_REASON
from tests.conformance.conforming_node import ConformingNode, NodeServer, Request, Response, error
from tests.conformance.nonconforming_nodes import (
    AnyIdIsHealthy,
    HealthIsStatic,
    IdentityMisspeltAField,
    NodeNameIsEmpty,
)
from tests.support.backends import Backend, HttpBackend, closed_port, http_response, server_tls, unresponsive
from tests.support.certificates import make_certificate
from tests.support.commands import svcnode
from tests.support.terminals import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.backends import ReceivedRequest

DEADLINE_S = 30.0
COMMAND = [sys.executable, "-W", "error", "-m", "svcnode", "conform"]
CONFORMS, FAILS, USAGE, NOT_CHECKED = 0, 1, 2, 4
OTHER_USER = base64.b64encode(b"bob:s3cr3t-word").decode()


def conform(*arguments: str, encoding: str = "utf-8") -> subprocess.CompletedProcess[str]:
    return svcnode("conform", *arguments, encoding=encoding)


@pytest.fixture
def conforming_node() -> Iterator[NodeServer]:
    with NodeServer(ConformingNode().respond) as server:
        yield server


def test_the_report_of_a_conforming_node_is_short_and_plain(conforming_node: NodeServer) -> None:
    ended = conform(conforming_node.url)
    assert (ended.returncode, ended.stderr) == (CONFORMS, "")
    lines = ended.stdout.splitlines()
    assert lines[0].startswith(f"{conforming_node.url}/svc, ")
    assert lines[2].split() == ["must", "should", "advice", "failed"]
    assert lines[3].split() == ["identity", "6/6", "-", "2/2"]
    assert re.findall(r"\d+", lines[-1]) == [str(len(CHECKS)), "0", "0"]
    assert len(lines) < 24, "it fits a small terminal"
    assert "\x1b" not in ended.stdout


def test_the_scheme_is_optional(conforming_node: NodeServer) -> None:
    assert conform(conforming_node.url.removeprefix("http://")).returncode == CONFORMS


def test_a_failure_is_shown_with_its_details() -> None:
    with NodeServer(IdentityMisspeltAField().respond) as server:
        ended = conform(server.url)
    assert ended.returncode == FAILS
    assert re.findall(r"^FAILED (\S+)  (\w+)", ended.stdout, re.MULTILINE) == [("identity-fields", "must")]
    labels = re.findall(r"^  (\w+) +\S", ended.stdout, re.MULTILINE)
    assert labels == ["requirement", "request", "expected", "actual", "fix"]
    assert "spec_verdsion" in ended.stdout
    assert re.search(r"^identity +4/5 +- +1/1 +identity-fields$", ended.stdout, re.MULTILINE)


def test_the_most_important_failures_come_first() -> None:
    class Wrong(AnyIdIsHealthy):
        def __init__(self) -> None:
            super().__init__()
            self.identity |= {"node_name": "", "node_version": "1"}

    with NodeServer(Wrong().respond) as server:
        ended = conform(server.url)
    assert re.findall(r"^FAILED ([a-z-]+)", ended.stdout, re.MULTILINE) == [
        "identity-node-version-form",
        "service-unknown-refused",
        "identity-name-not-empty",
    ]


@pytest.mark.parametrize(
    ("node", "codes"),
    [
        (IdentityMisspeltAField, {"must": FAILS, "should": FAILS, "advice": FAILS}),
        (HealthIsStatic, {"must": CONFORMS, "should": FAILS, "advice": FAILS}),
        (NodeNameIsEmpty, {"must": CONFORMS, "should": CONFORMS, "advice": FAILS}),
    ],
)
def test_the_level_selects_what_counts_and_every_failure_is_shown(
    node: type[ConformingNode], codes: dict[str, int]
) -> None:
    with NodeServer(node().respond) as server:
        ended = {level: conform(server.url, "--level", level) for level in codes}
    assert {level: one.returncode for level, one in ended.items()} == codes
    for one in ended.values():
        assert "\nFAILED " in one.stdout


def test_verbose_shows_every_check_and_why_it_was_skipped() -> None:
    node = ConformingNode()
    node.services, node.health = [], 200
    with NodeServer(node.respond) as server:
        ended = conform(server.url, "--verbose")
    rows = re.findall(
        r"^(ok|FAILED|skipped) +(must|should|advice) +([a-z0-9-]+) +([\d.]+(?: and [\d.]+)?)  (.+)$",
        ended.stdout,
        re.MULTILINE,
    )
    assert [(name, level, clause) for _, level, name, clause, _ in rows] == [
        (check.name, check.level.value, check.clause) for check in CHECKS
    ]
    assert "service-health-code" in {name for outcome, _, name, _, _ in rows if outcome == "skipped"}


@pytest.mark.parametrize("path", ["/svc", "/svc/node", "/svc/node/health"])
def test_a_url_may_end_in_an_endpoint(path: str, conforming_node: NodeServer) -> None:
    ended = conform(f"{conforming_node.url}{path}")
    assert ended.returncode == CONFORMS
    assert ended.stdout.startswith(f"{conforming_node.url}/svc, ")


def test_a_wrong_prefix_gives_one_remark(conforming_node: NodeServer) -> None:
    ended = conform(conforming_node.url, "--prefix", "/eigen")
    (remark,) = json.loads(conform(conforming_node.url, "--prefix", "/eigen", "--json").stdout)["remarks"]
    assert ended.stdout.splitlines()[-1] == remark
    assert f"{conforming_node.url}/eigen" in remark
    assert ended.stdout.count("--prefix") == 1


def test_another_prefix_is_used() -> None:
    node = ConformingNode()
    respond = lambda request: node.respond(request._replace(path=request.path.replace("/eigen/", "/svc/", 1)))  # noqa: E731
    with NodeServer(respond) as server:
        assert conform(server.url, "--prefix", "/eigen").returncode == CONFORMS
        assert {request.path.split("/")[1] for request in server.requests} == {"eigen"}


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


class HostileNode(ConformingNode):
    """Sends characters that XML cannot hold, and a closing tag."""

    def respond(self, request: Request) -> Response:
        response = super().respond(request)
        is_identity = request.path == "/svc/node" and response.code == 200
        return error(500, "\x00\x1b]]></failure>&\ud800") if is_identity else response


def test_junit_has_one_test_per_check_and_is_well_formed(tmp_path: Path) -> None:
    file = tmp_path / "conform.xml"
    with NodeServer(HostileNode().respond) as server:
        ended = conform(server.url, "--junit", str(file))
    assert ended.returncode == FAILS
    (suite,) = ElementTree.parse(file).getroot()
    assert suite.get("name") == f"svcnode conform {server.url}/svc"
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == [check.name for check in CHECKS]
    assert suite.get("tests") == str(len(CHECKS))
    assert (suite.get("failures"), suite.get("errors")) == ("1", "0")
    (failed,) = (case for case in cases if case.find("failure") is not None)
    failure = failed.find("failure")
    assert failure is not None
    assert (failed.get("classname"), failed.get("name")) == ("conform.identity", "identity-answers")
    assert failure.get("type") == "must"
    assert "request: GET /svc/node\nexpected: 200\nactual: 500 " in (failure.text or "")
    skipped = [case.get("name") for case in cases if case.find("skipped") is not None]
    assert "identity-fields" in skipped
    assert suite.get("skipped") == str(len(skipped))


def test_junit_agrees_with_the_exit_code(tmp_path: Path) -> None:
    file = tmp_path / "conform.xml"
    with NodeServer(NodeNameIsEmpty().respond) as server:
        assert conform(server.url, "--junit", str(file)).returncode == CONFORMS
    (suite,) = ElementTree.parse(file).getroot()
    assert suite.get("failures") == "0"
    (advice,) = suite.findall("testcase[@name='identity-name-not-empty']/skipped")
    assert "advice" in str(advice.text)


def test_junit_on_stdout_is_the_only_output(conforming_node: NodeServer) -> None:
    ended = conform(conforming_node.url, "--junit", "-")
    (suite,) = ElementTree.fromstring(ended.stdout)
    assert (ended.returncode, suite.get("tests")) == (CONFORMS, str(len(CHECKS)))


def test_junit_has_the_remarks(tmp_path: Path) -> None:
    file = tmp_path / "conform.xml"
    node = ConformingNode()
    node.services, node.health = [], 200
    with NodeServer(node.respond) as server:
        ended = conform(server.url, "--junit", str(file))
    (suite,) = ElementTree.parse(file).getroot()
    (remarks,) = suite.findall("testcase[@name='remarks']/system-out")
    assert remarks.text == ended.stdout.splitlines()[-1]
    assert suite.get("tests") == str(len(CHECKS) + 1)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16"])
def test_junit_on_stdout_does_not_depend_on_the_encoding_of_the_terminal(encoding: str) -> None:
    class Foreign(ConformingNode):
        def __init__(self) -> None:
            super().__init__()
            self.identity |= {"node_version": "größer"}

    with NodeServer(Foreign().respond) as server:
        ended = subprocess.run(
            [*COMMAND, server.url, "--junit", "-"],
            env={"PATH": os.environ["PATH"], "PYTHONIOENCODING": encoding},
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


def test_equal_error_responses_are_one_finding() -> None:
    class Forbidding(ConformingNode):
        def respond(self, request: Request) -> Response:
            return super().respond(request) if request.method in ("GET", "HEAD") else error(403, "Forbidden")

    with NodeServer(Forbidding().respond) as server:
        document = json.loads(conform(server.url, "--json").stdout)
    (found,) = (check["findings"] for check in document["checks"] if check["name"] == "methods-405")
    (finding,) = found
    assert finding["actual"].startswith("403 ")
    assert "PUT /svc/node, PATCH /svc/node, DELETE /svc/node and 16 more" in finding["actual"]


def test_an_unreachable_node_is_an_error_in_junit_and_null_results_in_json(tmp_path: Path) -> None:
    file = tmp_path / "conform.xml"
    with closed_port() as port:
        ended = conform(f"http://127.0.0.1:{port}", "--json", "--junit", str(file))
    assert ended.returncode == NOT_CHECKED
    document = json.loads(ended.stdout)
    assert (document["unreachable"], document["conforms"], document["checks"]) == ("connection refused", False, [])
    (suite,) = ElementTree.parse(file).getroot()
    (found,) = suite.findall("testcase/error")
    assert (found.get("message"), suite.get("errors"), suite.get("tests")) == ("connection refused", "1", "1")


# ---- nothing to check


def test_an_unreachable_node_is_one_line_on_stderr() -> None:
    with closed_port() as port:
        ended = conform(f"http://127.0.0.1:{port}")
    assert (ended.returncode, ended.stdout) == (NOT_CHECKED, "")
    assert ended.stderr.count("\n") == 1
    assert f"http://127.0.0.1:{port}/svc" in ended.stderr


def test_a_node_that_hangs_is_not_checked() -> None:
    with Backend(unresponsive) as backend:
        ended = conform(f"http://{backend.address}", "--timeout", "300ms")
    assert ended.returncode == NOT_CHECKED
    assert "0.3 s" in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "URL"),
        (["http://x", "--level", "shall"], "'shall'"),
        (["http://x", "--colour"], "--colour"),
        (["ftp://127.0.0.1"], "https://host:port"),
        (["http://127.0.0.1:99999"], "'http://127.0.0.1:99999'"),
        (["http://127.0.0.1/?token=x"], "?"),
        (["http://127.0.0.1:1", "--prefix", "svc"], '"/svc"'),
        (["http://127.0.0.1:1", "--timeout", "5"], "--timeout"),
        (["http://127.0.0.1:1", "--timeout", "0"], "--timeout"),
        (["http://127.0.0.1:1", "--timeout", "0s"], "--timeout"),
        (["http://127.0.0.1:1", "--ca", ""], "--ca"),
        (["http://127.0.0.1:1", "--json", "--junit", "-"], "--junit -"),
        (["http://127.0.0.1:1", "--ca", "ca.pem"], "https"),
        (["https://127.0.0.1:1", "--ca", "/nonexistent"], "/nonexistent"),
    ],
)
def test_a_wrong_command_line_is_rejected(arguments: list[str], named: str) -> None:
    ended = conform(*arguments)
    assert (ended.returncode, ended.stdout) == (USAGE, "")
    assert named in ended.stderr


def test_a_report_that_cannot_be_written_is_an_error(conforming_node: NodeServer, tmp_path: Path) -> None:
    ended = conform(conforming_node.url, "--junit", str(tmp_path))
    assert ended.returncode == NOT_CHECKED
    assert ended.stderr.startswith("svcnode: --junit: ")
    assert str(tmp_path) in ended.stderr


# ---- TLS


def test_tls_needs_a_trusted_ca(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    with NodeServer(ConformingNode().respond, tls=server_tls(made)) as server:
        ended = conform(server.url)
        assert ended.returncode == NOT_CHECKED
        assert "--ca" in ended.stderr
        trusted = conform(server.url, "--ca", str(made.certificate))
        assert (trusted.returncode, trusted.stderr) == (CONFORMS, "")


def test_a_certificate_error_names_its_cause(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    made, other = make_certificate(tmp_path), make_certificate(tmp_path / "other")
    with HttpBackend(http_response(), tls=server_tls(made), host="127.0.0.2") as server:
        named = conform(f"https://{server.address}", "--ca", str(made.certificate))
        signed = conform(f"https://{server.address}", "--ca", str(other.certificate))
    assert "'127.0.0.2'" in named.stderr
    assert "--ca" not in named.stderr
    assert "--ca" in signed.stderr


def test_a_wrong_scheme_is_named(conforming_node: NodeServer, tmp_path: Path) -> None:
    with NodeServer(ConformingNode().respond, tls=server_tls(make_certificate(tmp_path))) as server:
        plain = conform(server.url.replace("https", "http"))
    encrypted = conform(conforming_node.url.replace("http", "https"))
    assert (plain.returncode, encrypted.returncode) == (NOT_CHECKED, NOT_CHECKED)
    assert "https://" in plain.stderr
    assert "use http://" in encrypted.stderr


# ---- on a terminal


def on_terminal(*arguments: str) -> tuple[int, str]:
    """Runs with stdout and stderr on one terminal; returns the exit code and the output."""
    ours, theirs = pty.openpty()
    environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    process = subprocess.Popen([*COMMAND, *arguments], env=environ, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(ours, 65536):
                written.append(data)
        except OSError:  # the terminal is closed
            pass

    reader = threading.Thread(target=read)
    reader.start()
    code = process.wait(DEADLINE_S)
    reader.join()
    os.close(ours)
    return code, b"".join(written).decode()


def test_a_terminal_gets_colours_and_a_progress_bar() -> None:
    with NodeServer(IdentityMisspeltAField().respond) as server:
        code, text = on_terminal(server.url)
    assert code == FAILS
    assert f"/{len(CHECKS)}" in text, "the bar counts"
    assert re.search(r"\x1b\[1;31mFAILED identity-fields\x1b\[0m", text)
    assert "\x1b[2K" in text, "the bar is erased"
    assert text.rstrip().endswith("\x1b[?25h") or "\x1b[?25h" in text, "the cursor is visible"


def test_control_characters_of_a_node_do_not_reach_the_terminal() -> None:
    class Steering(ConformingNode):
        def respond(self, request: Request) -> Response:
            response = super().respond(request)
            is_identity = request.path == "/svc/node" and response.code == 200
            return (
                Response(headers=response.headers, body=b"\x1b]0;gotcha\x07[bold]x[/nothing]")
                if is_identity
                else response
            )

    with NodeServer(Steering().respond) as server:
        code, text = on_terminal(server.url)
    assert code == FAILS
    assert "\x1b]0;" not in text
    assert r"\x1b]0;gotcha\x07[bold]x[/nothing]" in text


# ---- Ctrl-C

INTERRUPTED = 128 + signal.SIGINT
FIRST_OF_VERSIONS = next(index for index, check in enumerate(CHECKS) if check.name.startswith("version-"))
NOT_RUN = len(CHECKS) - FIRST_OF_VERSIONS


@contextmanager
def stalling(node: ConformingNode, *, from_the_first: bool = False) -> Iterator[tuple[str, threading.Event]]:
    """The URL of a node that stalls at its first request, or at its first request with a version."""
    is_stalled, released = threading.Event(), threading.Event()

    def respond(request: Request) -> Response:
        if request.query or from_the_first:
            is_stalled.set()
            released.wait(2 * DEADLINE_S)
        return node.respond(request)

    with NodeServer(respond) as server:
        try:
            yield server.url, is_stalled
        finally:
            released.set()


@contextmanager
def run_until_interrupt(
    node: ConformingNode, *arguments: str, from_the_first: bool = False, stdout: int = subprocess.PIPE
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Runs the command until the node stalls; its timeout is longer than the test."""
    with stalling(node, from_the_first=from_the_first) as (url, is_stalled):
        command = [*COMMAND, url, "--timeout", "10m", *arguments]
        environ = {"PATH": os.environ["PATH"]}
        with subprocess.Popen(command, env=environ, stdout=stdout, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert is_stalled.wait(DEADLINE_S)
                yield url, process
            finally:
                process.kill()


def interrupted(process: subprocess.Popen[str]) -> str:
    """The output after Ctrl-C."""
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, stderr) == (INTERRUPTED, "")
    return stdout


@pytest.mark.usefixtures("default_sigint")
def test_ctrl_c_shows_the_results_so_far() -> None:
    with run_until_interrupt(ConformingNode()) as (url, process):
        lines = interrupted(process).splitlines()
    assert lines[0].startswith(f"{url}/svc, ")
    assert lines[3].split() == ["identity", "6/6", "-", "2/2"]
    assert lines[7].split() == ["versions", "-", "-", "-"]
    assert re.findall(r"\d+", lines[-2]) == [str(NOT_RUN), str(len(CHECKS))]
    assert re.findall(r"\d+", lines[-1]) == [str(FIRST_OF_VERSIONS), "0", str(NOT_RUN)]


@pytest.mark.usefixtures("default_sigint")
def test_a_failure_before_ctrl_c_is_shown() -> None:
    with run_until_interrupt(IdentityMisspeltAField()) as (_, process):
        shown = interrupted(process)
    assert re.findall(r"^FAILED (\S+)", shown, re.MULTILINE) == ["identity-fields"]


@pytest.mark.usefixtures("default_sigint")
def test_after_ctrl_c_verbose_shows_the_remaining_checks_as_skipped() -> None:
    with run_until_interrupt(ConformingNode(), "--verbose") as (_, process):
        shown = interrupted(process)
    skipped = re.findall(rf"^skipped .*: {STOPPED_REASON}$", shown, re.MULTILINE)
    assert len(skipped) == NOT_RUN
    assert len(re.findall(r"^ok ", shown, re.MULTILINE)) == FIRST_OF_VERSIONS


@pytest.mark.usefixtures("default_sigint")
def test_after_ctrl_c_json_is_complete_and_says_interrupted() -> None:
    with run_until_interrupt(ConformingNode(), "--json") as (_, process):
        document = json.loads(interrupted(process))
    assert document["conforms"] is False
    assert re.findall(r"\d+", document["interrupted"]) == [str(NOT_RUN), str(len(CHECKS))]
    assert (document["unreachable"], document["aborted"]) == (None, None)
    assert document["counts"] == {"passed": FIRST_OF_VERSIONS, "failed": 0, "failed_below_level": 0, "skipped": NOT_RUN}
    assert [check["name"] for check in document["checks"]] == [check.name for check in CHECKS]
    assert {check["skip_reason"] for check in document["checks"][FIRST_OF_VERSIONS:]} == {STOPPED_REASON}


@pytest.mark.usefixtures("default_sigint")
@pytest.mark.parametrize("is_file", [True, False])
def test_after_ctrl_c_junit_has_an_error(tmp_path: Path, *, is_file: bool) -> None:
    file = tmp_path / "conform.xml"
    with run_until_interrupt(ConformingNode(), "--junit", str(file) if is_file else "-") as (_, process):
        shown = interrupted(process)
    (suite,) = ElementTree.fromstring(file.read_text() if is_file else shown)
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": str(len(CHECKS) + 1), "failures": "0", "errors": "1", "skipped": str(NOT_RUN)}
    assert len(suite.findall("testcase[@name='finished']/error")) == 1
    assert len(suite.findall("testcase/skipped")) == NOT_RUN


@pytest.mark.usefixtures("default_sigint")
@pytest.mark.parametrize("flags", [[], ["--json"], ["--junit", "-"]])
def test_ctrl_c_before_the_first_result_gives_no_results(flags: list[str]) -> None:
    with run_until_interrupt(ConformingNode(), *flags, from_the_first=True) as (url, process):
        process.send_signal(signal.SIGINT)
        shown, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == INTERRUPTED
    if not flags:
        assert shown == ""
        assert f"{url}/svc" in errors
    elif flags == ["--json"]:
        document = json.loads(shown)
        assert (document["conforms"], bool(document["interrupted"]), document["checks"]) == (False, True, [])
    else:
        (suite,) = ElementTree.fromstring(shown)
        assert len(suite.findall("testcase/error")) == 1
        assert (suite.get("errors"), suite.get("tests")) == ("1", "1")


@pytest.mark.usefixtures("default_sigint")
def test_a_second_ctrl_c_ends_the_command_although_its_output_is_not_read() -> None:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)  # too small for the report
    try:
        with run_until_interrupt(ConformingNode(), "--json", stdout=writing) as (_, process):
            process.send_signal(signal.SIGINT)
            assert select.select([reading], [], [], DEADLINE_S)[0], "the report is being written"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=DEADLINE_S)
    finally:
        os.close(reading)
        os.close(writing)
    assert (process.returncode, errors) == (-signal.SIGINT, "")


def test_in_the_background_of_a_shell_sigint_stays_ignored(default_sigint: None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the fixture restores it
    with run_until_interrupt(ConformingNode()) as (_, process):
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)


def test_ctrl_c_erases_the_progress_bar(tmp_path: Path) -> None:
    with stalling(ConformingNode()) as (url, _), Terminal(tmp_path, columns=120) as terminal:
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


# ---- closed stdout


def test_a_closed_stdout_is_not_an_error(conforming_node: NodeServer) -> None:
    process = subprocess.Popen([*COMMAND, conforming_node.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(DEADLINE_S), errors) == (CONFORMS, b"")


# ---- help


def test_the_help_fits_80_columns_and_names_the_options() -> None:
    text = conform("--help").stdout
    for name in ("must", "should", "advice", "--read-only", "--junit", "--json", "130"):
        assert name in text
    assert max(map(len, text.splitlines())) <= 80


# ---- imports

LOADED = """
import json, sys
from svcnode.cli import main
main(sys.argv[1:])
print(json.dumps(sorted(sys.modules)))
"""


def test_conform_loads_neither_server_nor_client_nor_rich(conforming_node: NodeServer) -> None:
    command = [sys.executable, "-c", LOADED, "conform", conforming_node.url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    loaded = set(json.loads(ended.stdout.splitlines()[-1]))
    assert "svcnode.conformance.run" in loaded
    for module in (
        "svcnode.agent",
        "svcnode.server.server",
        "svcnode.client",
        "httpx2",
        "httptools",
        "rich",
        "xml.etree",
    ):
        assert module not in loaded
