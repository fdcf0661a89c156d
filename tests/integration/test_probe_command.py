"""`svcnode probe` against real servers on loopback."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.backends import Backend, HttpBackend, closed_port, http_response, server_tls, unresponsive
from tests.support.certificates import make_certificate
from tests.support.commands import svcnode
from tests.support.http_server import becomes_true
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE_S = 60.0
COMMAND = [sys.executable, "-W", "error", "-m", "svcnode", "probe"]
ENVIRON = {"PATH": os.environ["PATH"], "PYTHONIOENCODING": "utf-8"}
READY, NOT_READY, USAGE, FAILED, UNKNOWN = range(5)
LINE = re.compile(r"\d\d:\d\d:\d\d UTC  (ready|not ready|failed|unknown) +[0-9.]+ ms(?:  (.*))?\n")


def probe(*arguments: str, **environ: Any) -> subprocess.CompletedProcess[str]:
    return svcnode("probe", *arguments, **environ)


@contextmanager
def watching(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, "--watch", "--interval", "50ms", *arguments],
        env=ENVIRON,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_line(process: subprocess.Popen[str], verdict: str) -> str:
    """The next line with this verdict; returns its reason."""
    assert process.stdout is not None
    for line in process.stdout:
        match = LINE.fullmatch(line)
        assert match, line
        if match[1] == verdict:
            return match[2] or ""
    pytest.fail(f"the process ended without {verdict}")


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code and stderr."""
    _, stderr = process.communicate(timeout=DEADLINE_S)
    return process.returncode, stderr


# ---- one check


def test_the_exit_code_is_that_of_the_verdict() -> None:
    slow = ["exec:/bin/sleep 0.05", "--allow-exec", "--timeout", "1m", "--max-latency"]
    with HttpBackend(http_response(503)) as web, closed_port() as port:
        for code, text, arguments in (
            (READY, "ready\n", [f"tcp://{web.address}"]),
            (READY, "ready\n", [*slow, "1m"]),
            (NOT_READY, "not ready: slow", [*slow, "10ms"]),
            (NOT_READY, "not ready: ", [f"http://{web.address}", "-o", "starting_status=503"]),
            (FAILED, "failed: ", [f"tcp://127.0.0.1:{port}"]),
            (UNKNOWN, "unknown: ", ["heartbeat:30s"]),
        ):
            result = probe(*arguments)
            assert (result.returncode, result.stderr) == (code, "")
            assert result.stdout.startswith(text)


def test_the_steps_are_shown_in_order_below_the_verdict(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    with HttpBackend(http_response(200), tls=server_tls(made)) as web:
        result = probe(f"https://localhost:{web.port}/", "-o", f"ca={made.certificate}")
    verdict, *rows = result.stdout.splitlines()
    assert verdict == "ready"
    assert all(re.fullmatch(r"  [a-z ]{9} +[0-9]+\.[0-9] ms(  \S.*)?", row) for row in rows), rows
    assert len({row.index(" ms") for row in rows}) == 1, "the numbers are not aligned"
    # A step that was not completed has a remark in parentheses, such as another address of localhost.
    steps = [row.split()[0] for row in rows if not row.endswith(")")]
    assert steps == ["resolve", "connect", "handshake", "exchange", "total"]
    assert rows[0].endswith(" ms  localhost")
    assert rows[-1].endswith(f" ms  https://localhost:{web.port}/")


def test_the_step_that_was_not_completed_is_marked() -> None:
    with Backend(unresponsive) as silent:
        result = probe(f"http://{silent.address}", "--timeout", "200ms")
    assert result.returncode == FAILED
    verdict, connect, exchange, total = result.stdout.splitlines()
    assert re.match(r"failed: .*0\.2 s", verdict)
    assert re.fullmatch(r"  connect  .* ms  127\.0\.0\.1", connect)
    assert re.fullmatch(r"  exchange .* ms  \(.+\)", exchange)
    duration = re.fullmatch(rf"  total    +([0-9.]+) ms  http://{silent.address}", total)
    assert duration
    assert float(duration[1]) >= 200


def test_json_is_one_object_with_verdict_code_and_steps() -> None:
    with HttpBackend(http_response(404)) as web:
        document = json.loads(probe(f"http://{web.address}/x", "--json").stdout)
    assert list(document) == ["time", "url", "outcome", "code", "reason", "duration_ms", "steps"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", document["time"])
    assert (document["url"], document["outcome"], document["code"]) == (
        f"http://{web.address}/x",
        "failed",
        "not_found",
    )
    assert [list(step) for step in document["steps"]] == [["name", "detail", "duration_ms", "done"]] * 2
    assert [(step["name"], step["detail"], step["done"]) for step in document["steps"]] == [
        ("connect", "127.0.0.1", True),
        ("exchange", "", True),
    ]
    assert 0 < sum(step["duration_ms"] for step in document["steps"]) <= document["duration_ms"]


# ---- watching


@pytest.mark.usefixtures("default_sigint")
def test_watching_continues_while_the_service_stops_and_starts_until_ctrl_c() -> None:
    port = free_port()
    with watching(f"tcp://127.0.0.1:{port}") as process:
        assert wait_for_line(process, "failed").endswith(f": 127.0.0.1:{port}")
        with socket.create_server(("127.0.0.1", port), backlog=1024):
            assert wait_for_line(process, "ready") == ""
        wait_for_line(process, "failed")
        process.send_signal(signal.SIGINT)
        assert ended(process) == (FAILED, "")


@pytest.mark.usefixtures("default_sigint")
def test_ctrl_c_during_a_check_ends_the_command_without_output() -> None:
    """A check that did not finish has no verdict: exit code 4 with --watch, otherwise 130 as usual."""
    with Backend(unresponsive) as silent:
        arguments = (f"http://{silent.address}", "--timeout", "10m")
        with watching(*arguments) as process:
            assert becomes_true(lambda: silent.connection_count == 1, DEADLINE_S)
            process.send_signal(signal.SIGINT)
            assert ended(process) == (UNKNOWN, "")
        with subprocess.Popen([*COMMAND, *arguments], env=ENVIRON, stderr=subprocess.PIPE, text=True) as once:
            assert becomes_true(lambda: silent.connection_count == 2, DEADLINE_S)
            once.send_signal(signal.SIGINT)
            assert ended(once) == (128 + signal.SIGINT, "")


def test_a_closed_pipe_ends_the_watching_without_an_error() -> None:
    with closed_port() as port, watching(f"tcp://127.0.0.1:{port}", "--json") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["outcome"] == "failed"
        process.stdout.close()
        process.stdout = None
        assert ended(process) == (FAILED, "")
