"""`svcnode conform` in a process of its own, against nodes on loopback."""

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
from tests.conformance.conforming_node import ConformingNode, NodeServer, Request, Response, error
from tests.conformance.nonconforming_nodes import (
    AnyIdIsHealthy,
    HealthIsStatic,
    IdentityMisspeltAField,
    NodeNameIsEmpty,
)
from tests.support.backends import Backend, HttpBackend, closed_port, http_response, server_tls, unresponsive
from tests.support.certificates import make_certificate
from tests.support.terminals import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.backends import ReceivedRequest

DEADLINE_S = 30.0
COMMAND = [sys.executable, "-W", "error", "-m", "svcnode", "conform"]
CONFORMS, FAILS, NOT_JUDGED = 0, 1, 3
OTHER_USER = base64.b64encode(b"bob:s3cr3t-word").decode()


def conform(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        env={"PATH": os.environ["PATH"], "HOME": "/nonexistent"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@pytest.fixture
def conforming_node() -> Iterator[NodeServer]:
    with NodeServer(ConformingNode().respond) as server:
        yield server


def test_a_node_that_conforms_is_told_so_in_one_glance(conforming_node: NodeServer) -> None:
    ended = conform(conforming_node.url)
    assert (ended.returncode, ended.stderr) == (CONFORMS, "")
    lines = ended.stdout.splitlines()
    assert lines[0] == f"{conforming_node.url}/svc, judged by the interface v0.0.1"
    assert lines[2].split() == ["must", "should", "advice", "failed"]
    assert lines[3].split() == ["identity", "6/6", "-", "2/2"]
    assert lines[-1] == f"It conforms at level should: {len(CHECKS)} passed, 0 failed, 0 not judged."
    assert len(lines) < 24, "it is to fit a small terminal"
    assert "\x1b" not in ended.stdout


def test_the_scheme_may_be_left_out(conforming_node: NodeServer) -> None:
    assert conform(conforming_node.url.removeprefix("http://")).returncode == CONFORMS


def test_what_fails_is_shown_with_all_that_it_takes_to_fix_it() -> None:
    with NodeServer(IdentityMisspeltAField().respond) as server:
        ended = conform(server.url)
    assert ended.returncode == FAILS
    assert (
        "FAILED identity-fields  must (clause 2.1)\n"
        "  demand   The identity has the fields node_name, spec_version and node_version, and each is a string.\n"
        "  request  GET /svc/node\n"
        "  expected the field spec_version\n"
        "  came     only node_name, spec_verdsion and node_version\n"
        "  mend     Send all three fields under exactly these names, each as a JSON string: "
        '{"node_name":"my-node","spec_version":"v0.0.1","node_version":"v1.0.0"}.\n'
    ) in ended.stdout
    assert re.search(r"^identity +4/5 +- +1/1 +identity-fields$", ended.stdout, re.MULTILINE)
    assert ended.stdout.splitlines()[-1].startswith("It does not conform at level should: ")


def test_the_gravest_faults_come_first() -> None:
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
def test_the_level_says_what_counts_and_all_is_shown(node: type[ConformingNode], codes: dict[str, int]) -> None:
    with NodeServer(node().respond) as server:
        ended = {level: conform(server.url, "--level", level) for level in codes}
    assert {level: one.returncode for level, one in ended.items()} == codes
    for one in ended.values():
        assert "\nFAILED " in one.stdout
    if codes["should"] == CONFORMS:
        assert ended["should"].stdout.splitlines()[-1].endswith("; 1 failed that does not count.")


def test_every_check_is_shown_when_asked_for() -> None:
    node = ConformingNode()
    node.services, node.health = [], 200
    with NodeServer(node.respond) as server:
        ended = conform(server.url, "--verbose")
    rows = re.findall(
        r"^(ok|FAILED|skipped) +(must|should|advice) +([a-z0-9-]+) +(\S+)  (.+)$", ended.stdout, re.MULTILINE
    )
    assert [(name, level, clause) for _, level, name, clause, _ in rows] == [
        (check.name, check.level.value, check.clause) for check in CHECKS
    ]
    why = {name: text for outcome, _, name, _, text in rows if outcome == "skipped"}
    assert why["service-health-code"].endswith("for every id in the list: no service is registered")
    *_, conclusion, last = ended.stdout.splitlines()
    assert conclusion.endswith("(-v says why).")
    assert last == "No service is listed, so nothing about the health of services could be seen."


@pytest.mark.parametrize("path", ["/svc", "/svc/node", "/svc/node/health"])
def test_a_url_may_end_in_an_endpoint_as_it_may_for_status(path: str, conforming_node: NodeServer) -> None:
    ended = conform(f"{conforming_node.url}{path}")
    assert (ended.returncode, ended.stdout.splitlines()[0]) == (
        CONFORMS,
        f"{conforming_node.url}/svc, judged by the interface v0.0.1",
    )


def test_a_wrong_prefix_is_told_once_at_the_top(conforming_node: NodeServer) -> None:
    ended = conform(conforming_node.url, "--prefix", "/eigen")
    remark = f"No endpoint is found below {conforming_node.url}/eigen: where the node has another prefix, name it with --prefix."
    assert ended.stdout.splitlines()[-1] == remark
    assert ended.stdout.count("--prefix") == 1
    assert json.loads(conform(conforming_node.url, "--prefix", "/eigen", "--json").stdout)["remarks"] == [remark]


def test_another_prefix_is_asked_for() -> None:
    node = ConformingNode()
    answer = lambda asked: node.respond(asked._replace(path=asked.path.replace("/eigen/", "/svc/", 1)))  # noqa: E731
    with NodeServer(answer) as server:
        assert conform(server.url, "--prefix", "/eigen").returncode == CONFORMS
        assert {request.path.split("/")[1] for request in server.requests} == {"eigen"}


# ---- for machines


def test_json_holds_all_of_it() -> None:
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
    assert document["counts"] == {"passed": len(CHECKS) - 1, "failed": 1, "skipped": 0}
    assert [check["name"] for check in document["checks"]] == [check.name for check in CHECKS]
    (failed,) = (check for check in document["checks"] if check["outcome"] == "failed")
    assert failed.pop("duration_ms") > 0
    assert failed.pop("fix").startswith("Answer 206 ")
    assert failed == {
        "name": "health-reflects-services",
        "group": "health",
        "level": "should",
        "clause": "3",
        "outcome": "failed",
        "skip_reason": None,
        "requirement": "The node does not answer 200 while one of its backing services is not Up.",
        "findings": [
            {
                "request": "GET /svc/node/health",
                "expected": "206 or 503",
                "actual": '200 with no body, beside "indexer" which is Initializing and "storage" which is Down',
            }
        ],
        "more_findings": 0,
    }


class HostileNode(ConformingNode):
    """What XML cannot hold, and what would end it."""

    def respond(self, asked: Request) -> Response:
        reply = super().answer(asked)
        is_identity = asked.path == "/svc/node" and reply.code == 200
        return error(500, "\x00\x1b]]></failure>&\ud800") if is_identity else reply


def test_junit_holds_one_test_per_check_and_can_be_read(tmp_path: Path) -> None:
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
    assert (failure.get("type"), failure.get("message")) == ("must", "must (clause 4.1)")
    assert "request: GET /svc/node\nexpected: 200\ncame: 500 with the body " in (failure.text or "")
    skipped = [case.get("name") for case in cases if case.find("skipped") is not None]
    assert "identity-fields" in skipped
    assert suite.get("skipped") == str(len(skipped))


def test_junit_is_no_redder_than_the_exit_code(tmp_path: Path) -> None:
    file = tmp_path / "conform.xml"
    with NodeServer(NodeNameIsEmpty().respond) as server:
        assert conform(server.url, "--junit", str(file)).returncode == CONFORMS
    (suite,) = ElementTree.parse(file).getroot()
    assert suite.get("failures") == "0"
    (advice,) = suite.findall("testcase[@name='identity-name-not-empty']/skipped")
    assert str(advice.get("message")).startswith("failed, and does not count: advice")


def test_junit_on_stdout_is_all_that_is_there(conforming_node: NodeServer) -> None:
    ended = conform(conforming_node.url, "--junit", "-")
    (suite,) = ElementTree.fromstring(ended.stdout)
    assert (ended.returncode, suite.get("tests")) == (CONFORMS, str(len(CHECKS)))


def test_junit_has_the_remarks_that_people_are_shown(tmp_path: Path) -> None:
    file = tmp_path / "conform.xml"
    node = ConformingNode()
    node.services, node.health = [], 200
    with NodeServer(node.respond) as server:
        ended = conform(server.url, "--junit", str(file))
    (suite,) = ElementTree.parse(file).getroot()
    (remarks,) = suite.findall("testcase[@name='remarks']/system-out")
    assert remarks.text == ended.stdout.splitlines()[-1]
    assert remarks.text == "No service is listed, so nothing about the health of services could be seen."
    assert suite.get("tests") == str(len(CHECKS) + 1)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-16"])
def test_junit_on_stdout_can_be_read_whatever_the_terminal_can_spell(encoding: str) -> None:
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


def test_a_login_is_sent_with_every_request_and_never_shown() -> None:
    logins = []

    def answer(received: ReceivedRequest) -> bytes:
        logins.append(received.headers.get("authorization"))
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
    assert set(logins) == {f"Basic {OTHER_USER}"}


def test_equal_refusals_of_many_requests_are_one_finding() -> None:
    class Forbidding(ConformingNode):
        def answer(self, asked: Request) -> Response:
            return super().answer(asked) if asked.method in ("GET", "HEAD") else error(403, "Forbidden")

    with NodeServer(Forbidding().answer) as server:
        document = json.loads(conform(server.url, "--json").stdout)
    (found,) = (check["findings"] for check in document["checks"] if check["name"] == "methods-405")
    assert [finding["actual"] for finding in found] == [
        (
            '403 with the body {"message": "Forbidden"}; the same for PUT /svc/node, PATCH /svc/node, DELETE /svc/node '
            "and 16 more"
        )
    ]


def test_an_unreachable_node_is_an_error_in_junit_and_null_results_in_json(tmp_path: Path) -> None:
    file = tmp_path / "conform.xml"
    with closed_port() as port:
        ended = conform(f"http://127.0.0.1:{port}", "--json", "--junit", str(file))
    assert ended.returncode == NOT_JUDGED
    document = json.loads(ended.stdout)
    assert (document["unreachable"], document["conforms"], document["checks"]) == ("connection refused", False, [])
    (suite,) = ElementTree.parse(file).getroot()
    (found,) = suite.findall("testcase/error")
    assert (found.get("message"), suite.get("errors"), suite.get("tests")) == ("connection refused", "1", "1")


# ---- nothing to judge


def test_a_node_that_is_not_there_is_told_in_one_line() -> None:
    with closed_port() as port:
        ended = conform(f"http://127.0.0.1:{port}")
    message = f"http://127.0.0.1:{port}/svc cannot be judged: connection refused\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (NOT_JUDGED, "", message)


def test_a_node_that_hangs_is_given_up_after_the_timeout() -> None:
    with Backend(unresponsive) as backend:
        ended = conform(f"http://{backend.address}", "--timeout", "300ms")
    assert ended.returncode == NOT_JUDGED
    assert ended.stderr == f"http://{backend.address}/svc cannot be judged: no whole answer within 0.3 s\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "the following arguments are required: URL"),
        (["http://x", "--level", "shall"], "argument --level: invalid choice: 'shall'"),
        (["http://x", "--colour"], "unrecognized arguments: --colour"),
        (["ftp://127.0.0.1"], '"ftp://127.0.0.1" is not the base URL of a node; write it like http://127.0.0.1:8420'),
        (["http://127.0.0.1:99999"], '"http://127.0.0.1:99999" is not the base URL of a node'),
        (
            ["http://127.0.0.1/?token=x"],
            "svcnode: the base URL of a node ends before a ? or a #; write it like http://",
        ),
        (["http://127.0.0.1:1", "--prefix", "svc"], '"svc" is not a prefix; write it like /svc'),
        (["http://127.0.0.1:1", "--timeout", "5"], '--timeout: "5" is not a duration'),
        (["http://127.0.0.1:1", "--timeout", "0"], '--timeout: must be more than 0, such as "5s", not "0"'),
        (["http://127.0.0.1:1", "--timeout", "0s"], '--timeout: must be more than 0, such as "5s", not "0s"'),
        (["http://127.0.0.1:1", "--ca", ""], "svcnode: --ca: names no file"),
        (["http://127.0.0.1:1", "--json", "--junit", "-"], "--json and --junit - cannot both go to stdout"),
        (["http://127.0.0.1:1", "--ca", "ca.pem"], "an authority (CA) is for https, and the URL says http"),
        (["https://127.0.0.1:1", "--ca", "/nonexistent"], "/nonexistent cannot be used as an authority (CA): no such"),
    ],
)
def test_a_wrong_command_line_is_refused_with_what_to_write_instead(arguments: list[str], complaint: str) -> None:
    ended = conform(*arguments)
    assert (ended.returncode, ended.stdout) == (NOT_JUDGED, "")
    assert complaint in ended.stderr


def test_a_report_that_cannot_be_written_is_a_complaint(conforming_node: NodeServer, tmp_path: Path) -> None:
    ended = conform(conforming_node.url, "--junit", str(tmp_path))
    assert ended.returncode == NOT_JUDGED
    assert ended.stderr == f"svcnode: --junit: cannot write {tmp_path}: is a directory\n"


# ---- TLS


def test_tls_needs_an_authority_that_is_trusted(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    with NodeServer(ConformingNode().respond, tls=server_tls(made)) as server:
        ended = conform(server.url)
        assert ended.returncode == NOT_JUDGED
        assert "its certificate is not trusted: self-signed certificate; name its authority with --ca" in ended.stderr
        trusted = conform(server.url, "--ca", str(made.certificate))
        assert (trusted.returncode, trusted.stderr) == (CONFORMS, "")


def test_what_is_wrong_with_a_certificate_is_told_with_advice_that_helps(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    made, other = make_certificate(tmp_path), make_certificate(tmp_path / "other")
    with HttpBackend(http_response(), tls=server_tls(made), host="127.0.0.2") as server:
        named = conform(f"https://{server.address}", "--ca", str(made.certificate))
        signed = conform(f"https://{server.address}", "--ca", str(other.certificate))
    mismatch = "IP address mismatch, certificate is not valid for '127.0.0.2'"
    assert named.stderr.endswith(f" cannot be judged: its certificate is not trusted: {mismatch}\n")
    assert signed.stderr.endswith(": self-signed certificate; what --ca names is not its authority\n")


def test_http_where_https_is_meant_and_the_reverse_is_told(conforming_node: NodeServer, tmp_path: Path) -> None:
    with NodeServer(ConformingNode().respond, tls=server_tls(make_certificate(tmp_path))) as server:
        plain = conform(server.url.replace("https", "http"))
    encrypted = conform(conforming_node.url.replace("http", "https"))
    assert (plain.returncode, encrypted.returncode) == (NOT_JUDGED, NOT_JUDGED)
    assert "cannot be judged" in plain.stderr
    assert "is it http:// rather than https://?" in encrypted.stderr


# ---- on a terminal


def on_terminal(*arguments: str) -> tuple[int, str]:
    """Stdout and stderr on one terminal; returns the exit code and all that was written there."""
    ours, theirs = pty.openpty()
    environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    process = subprocess.Popen([*COMMAND, *arguments], env=environ, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(ours, 65536):
                written.append(data)
        except OSError:  # so ends a terminal
            pass

    reader = threading.Thread(target=read)
    reader.start()
    code = process.wait(DEADLINE_S)
    reader.join()
    os.close(ours)
    return code, b"".join(written).decode()


def test_on_a_terminal_there_are_colours_and_a_bar_that_goes_away() -> None:
    with NodeServer(IdentityMisspeltAField().respond) as server:
        code, text = on_terminal(server.url)
    assert code == FAILS
    assert f"/{len(CHECKS)}" in text, "the bar counts"
    assert re.search(r"\x1b\[1;31mFAILED identity-fields\x1b\[0m", text)
    assert "\x1b[2K" in text, "the bar is wiped away"
    assert text.rstrip().endswith("\x1b[?25h") or "\x1b[?25h" in text, "the cursor is back"


def test_on_a_terminal_nothing_that_a_node_sends_steers_it() -> None:
    class Steering(ConformingNode):
        def answer(self, asked: Request) -> Response:
            reply = super().answer(asked)
            is_identity = asked.path == "/svc/node" and reply.code == 200
            return Response(headers=reply.headers, body=b"\x1b]0;gotcha\x07[bold]x[/nothing]") if is_identity else reply

    with NodeServer(Steering().answer) as server:
        code, text = on_terminal(server.url)
    assert code == FAILS
    assert "\x1b]0;" not in text
    assert r"\x1b]0;gotcha\x07[bold]x[/nothing]" in text


# ---- ended by Ctrl-C

INTERRUPTED = 128 + signal.SIGINT
FIRST_OF_VERSIONS = next(place for place, check in enumerate(CHECKS) if check.name.startswith("version-"))
NOT_MADE = len(CHECKS) - FIRST_OF_VERSIONS
INTERRUPTED_REPORT = f"stopped with {NOT_MADE} of {len(CHECKS)} checks not made"


@contextmanager
def stalling(node: ConformingNode, *, from_the_first: bool = False) -> Iterator[tuple[str, threading.Event]]:
    """Its URL, and when it stalls: from the first request, or from the first for a version, when others are judged."""
    is_stalled, is_over = threading.Event(), threading.Event()

    def answer(asked: Request) -> Response:
        if asked.query or from_the_first:
            is_stalled.set()
            is_over.wait(2 * DEADLINE_S)
        return node.respond(asked)

    with NodeServer(answer) as server:
        try:
            yield server.url, is_stalled
        finally:
            is_over.set()


@contextmanager
def run_until_interrupt(
    node: ConformingNode, *arguments: str, from_the_first: bool = False, stdout: int = subprocess.PIPE
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """From when the node stalls, which would be waited for much longer than a test is."""
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
    """What it shows at Ctrl-C."""
    process.send_signal(signal.SIGINT)
    shown, complaint = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, complaint) == (INTERRUPTED, "")
    return shown


@pytest.mark.usefixtures("default_sigint")
def test_ctrl_c_shows_what_was_judged_and_how_much_was_not() -> None:
    with run_until_interrupt(ConformingNode()) as (url, process):
        lines = interrupted(process).splitlines()
    assert lines[0] == f"{url}/svc, judged by the interface v0.0.1"
    assert lines[3].split() == ["identity", "6/6", "-", "2/2"]
    assert lines[7].split() == ["versions", "-", "-", "-"]
    assert lines[-2:] == [
        f"{INTERRUPTED_REPORT.capitalize()}.",
        (
            f"It is not known whether it conforms at level should: {FIRST_OF_VERSIONS} passed, 0 failed, "
            f"{NOT_MADE} not judged (-v says why)."
        ),
    ]


@pytest.mark.usefixtures("default_sigint")
def test_a_fault_that_was_seen_before_ctrl_c_is_told_and_enough_to_say_that_the_node_does_not_conform() -> None:
    with run_until_interrupt(IdentityMisspeltAField()) as (_, process):
        shown = interrupted(process)
    assert "\nFAILED identity-fields  must (clause 2.1)\n" in shown
    assert shown.splitlines()[-2] == f"{INTERRUPTED_REPORT.capitalize()}."
    assert shown.splitlines()[-1].startswith("It does not conform at level should: ")


@pytest.mark.usefixtures("default_sigint")
def test_ctrl_c_leaves_every_check_that_was_not_made_among_those_that_are_shown_when_asked_for() -> None:
    with run_until_interrupt(ConformingNode(), "--verbose") as (_, process):
        shown = interrupted(process)
    skipped = re.findall(r"^skipped .*: stopped before it was judged$", shown, re.MULTILINE)
    assert len(skipped) == NOT_MADE
    assert len(re.findall(r"^ok ", shown, re.MULTILINE)) == FIRST_OF_VERSIONS


@pytest.mark.usefixtures("default_sigint")
def test_ctrl_c_leaves_json_that_is_whole_and_says_that_the_judgement_is_not() -> None:
    with run_until_interrupt(ConformingNode(), "--json") as (_, process):
        document = json.loads(interrupted(process))
    assert (document["conforms"], document["interrupted"]) == (False, INTERRUPTED_REPORT)
    assert (document["unreachable"], document["aborted"]) == (None, None), "it is no fault of the node's"
    assert document["counts"] == {"passed": FIRST_OF_VERSIONS, "failed": 0, "skipped": NOT_MADE}
    assert [check["name"] for check in document["checks"]] == [check.name for check in CHECKS]
    assert {check["skip_reason"] for check in document["checks"][FIRST_OF_VERSIONS:]} == {
        "stopped before it was judged"
    }


@pytest.mark.usefixtures("default_sigint")
@pytest.mark.parametrize("is_file", [True, False])
def test_ctrl_c_leaves_junit_with_an_error(tmp_path: Path, *, is_file: bool) -> None:
    file = tmp_path / "conform.xml"
    with run_until_interrupt(ConformingNode(), "--junit", str(file) if is_file else "-") as (_, process):
        shown = interrupted(process)
    (suite,) = ElementTree.fromstring(file.read_text() if is_file else shown)
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": str(len(CHECKS) + 1), "failures": "0", "errors": "1", "skipped": str(NOT_MADE)}
    (found,) = suite.findall("testcase[@name='finished']/error")
    assert found.get("message") == INTERRUPTED_REPORT
    assert len(suite.findall("testcase/skipped")) == NOT_MADE


@pytest.mark.usefixtures("default_sigint")
@pytest.mark.parametrize("flags", [[], ["--json"], ["--junit", "-"]])
def test_ctrl_c_before_anything_was_judged_says_so_and_no_more(flags: list[str]) -> None:
    interrupted = f"stopped with {len(CHECKS)} of {len(CHECKS)} checks not made"
    with run_until_interrupt(ConformingNode(), *flags, from_the_first=True) as (url, process):
        process.send_signal(signal.SIGINT)
        shown, told = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == INTERRUPTED
    if not flags:
        assert (shown, told) == ("", f"{url}/svc was not judged: {interrupted}\n")
    elif flags == ["--json"]:
        document = json.loads(shown)
        assert (document["conforms"], document["interrupted"], document["checks"]) == (False, interrupted, [])
    else:
        (suite,) = ElementTree.fromstring(shown)
        (found,) = suite.findall("testcase/error")
        assert (found.get("message"), suite.get("errors"), suite.get("tests")) == (interrupted, "1", "1")


@pytest.mark.usefixtures("default_sigint")
def test_a_second_ctrl_c_ends_it_at_once_even_when_nobody_reads_what_it_shows() -> None:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)  # it does not take what there is to show
    try:
        with run_until_interrupt(ConformingNode(), "--json", stdout=writing) as (_, process):
            process.send_signal(signal.SIGINT)
            assert select.select([reading], [], [], DEADLINE_S)[0], "it shows what was judged"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=DEADLINE_S)
    finally:
        os.close(reading)
        os.close(writing)
    assert (process.returncode, told) == (-signal.SIGINT, ""), "which is 130 in a shell"


def test_in_the_background_of_a_shell_it_is_deaf_to_ctrl_c(default_sigint: None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the fixture puts it back
    with run_until_interrupt(ConformingNode()) as (_, process):
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)


def test_ctrl_c_takes_the_bar_away_and_leaves_the_terminal_clean(tmp_path: Path) -> None:
    with stalling(ConformingNode()) as (url, _), Terminal(tmp_path, columns=120) as terminal:
        terminal.start(f"svcnode conform {url} --timeout 10m")
        terminal.wait_for_text(f" {FIRST_OF_VERSIONS + 1}/{len(CHECKS)} version-")
        terminal.press("C-c")
        screen, code = terminal.wait_for_exit()
        assert code == INTERRUPTED
        assert terminal.tmux_variable("cursor_flag") == "1"
    lines = screen.splitlines()
    assert lines[0] == f"{url}/svc, judged by the interface v0.0.1"
    assert lines[-2] == f"{INTERRUPTED_REPORT.capitalize()}."
    assert "^C" not in screen


# ---- nobody reads


def test_a_reader_that_left_is_no_fault(conforming_node: NodeServer) -> None:
    process = subprocess.Popen([*COMMAND, conforming_node.url], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    complaint = process.stderr.read()
    process.stderr.close()
    assert (process.wait(DEADLINE_S), complaint) == (CONFORMS, b"")


# ---- help


def test_the_help_says_what_is_sent_what_counts_and_what_the_codes_mean() -> None:
    text = conform("--help").stdout
    for word in (
        "must",
        "should",
        "advice",
        "POST, PUT, PATCH, DELETE and OPTIONS",
        "--read-only",
        "exit codes",
        "can be\n     read as HTTP",
        "130  ended by Ctrl-C, with what was judged by then",
        "basic authentication and never shown",
    ):
        assert word in text
    assert max(map(len, text.splitlines())) <= 80


# ---- what it loads

LOADED = """
import json, sys
from svcnode.cli import main
main(sys.argv[1:])
print(json.dumps(sorted(sys.modules)))
"""


def test_judging_loads_neither_what_serves_nor_what_asks_nor_what_it_does_not_show(conforming_node: NodeServer) -> None:
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
