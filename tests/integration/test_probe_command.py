"""`svcnode probe` against real servers on loopback."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.certificates import make_certificate
from tests.support.commands import svcnode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE_S = 60.0
COMMAND = [sys.executable, "-W", "error", "-m", "svcnode", "probe"]
READY, NOT_READY, USAGE, FAILED, UNKNOWN = range(5)

LINE = re.compile(r"\d\d:\d\d:\d\d  (ready|not ready|failed|unknown) +[0-9.]+ ms(?:  (.*))?\n")


class Port:
    """A reserved port on loopback, listening or not."""

    def __init__(self) -> None:
        self._reservation = socket.socket()
        self._reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reservation.bind(("127.0.0.1", 0))
        self.number: int = self._reservation.getsockname()[1]
        self._listener: socket.socket | None = None

    def open(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.number))

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def release(self) -> None:
        self.close()
        self._reservation.close()

    @contextmanager
    def during_check(self) -> Iterator[None]:
        """From the first byte of a request that gets no response."""
        assert self._listener is not None
        self._listener.settimeout(DEADLINE_S)
        connection, _ = self._listener.accept()
        with connection:
            connection.settimeout(DEADLINE_S)
            assert connection.recv(1) == b"G"
            yield

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.number}"


class Handler(BaseHTTPRequestHandler):
    """Responds with the status in the path, and with the request."""

    def do_GET(self) -> None:
        body = json.dumps({"path": self.path, "headers": dict(self.headers.items())}).encode()
        self.send_response(int(self.path.strip("/") or 200))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def port() -> Iterator[Port]:
    """Not listening yet."""
    reserved = Port()
    yield reserved
    reserved.release()


@pytest.fixture
def listening_port(port: Port) -> Port:
    port.open()
    return port


@pytest.fixture(scope="module")
def web() -> Iterator[str]:
    with serving() as number:
        yield f"http://127.0.0.1:{number}"


def environment(environ: dict[str, str] | None = None) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONIOENCODING": "utf-8", **(environ or {})}


def probe(*arguments: str, encoding: str = "utf-8", **environ: Any) -> subprocess.CompletedProcess[str]:
    return svcnode("probe", *arguments, encoding=encoding, **environ)


def as_json(*arguments: str, encoding: str = "utf-8", **environ: Any) -> dict[str, Any]:
    result = probe("--json", *arguments, encoding=encoding, **environ)
    assert result.stderr == ""
    assert result.stdout.count("\n") == 1
    document = json.loads(result.stdout)
    assert isinstance(document, dict)
    return document


@contextmanager
def watching(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, "--watch", "--interval", "50ms", *arguments],
        env=environment(),
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


# ---- exit codes


def test_ready_is_exit_0(listening_port: Port) -> None:
    result = probe(listening_port.url)
    assert (result.returncode, result.stdout.splitlines()[0], result.stderr) == (READY, "ready", "")


def test_not_ready_is_exit_1(web: str) -> None:
    result = probe(f"{web}/503", "-o", "starting_status=503")
    assert result.returncode == NOT_READY
    assert re.match(rf"not ready: .*{web}/503\n", result.stdout)


def test_failed_is_exit_3(port: Port) -> None:
    result = probe(port.url)
    assert result.returncode == FAILED
    assert re.match(rf"failed: .*127\.0\.0\.1:{port.number}\n", result.stdout)


def test_unknown_is_exit_4() -> None:
    result = probe("heartbeat:30s")
    assert result.returncode == UNKNOWN
    assert result.stdout.startswith("unknown: ")


@pytest.mark.parametrize(("limit", "exit_code", "code"), [("10ms", NOT_READY, "slow"), ("10s", READY, "ok")])
def test_a_success_that_takes_longer_than_max_latency_is_not_ready(limit: str, exit_code: int, code: str) -> None:
    result = probe("exec:/bin/sleep 0.05", "--allow-exec", "--timeout", "30s", "--max-latency", limit, "--json")
    assert (result.returncode, json.loads(result.stdout)["code"]) == (exit_code, code)


# ---- output


def test_the_steps_are_shown_in_order_below_the_verdict(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    with serving(context) as number:
        result = probe(f"https://localhost:{number}/200", "-o", f"ca={made.certificate}")
    verdict, *rows = result.stdout.splitlines()
    assert verdict == "ready"
    assert all(re.fullmatch(r"  [a-z ]{9} +[0-9]+\.[0-9] ms(  \S.*)?", row) for row in rows), rows
    assert len({row.index(" ms") for row in rows}) == 1, "the numbers are not aligned"
    # A step that was not completed has a remark in parentheses, such as another address of localhost.
    steps = [row.split()[0] for row in rows if not row.endswith(")")]
    assert steps == ["resolve", "connect", "handshake", "exchange", "total"]
    assert rows[0].endswith(" ms  localhost")
    assert rows[-1].endswith(f" ms  https://localhost:{number}/200")


def test_the_step_that_was_not_completed_is_marked(listening_port: Port, port: Port) -> None:
    silent = f"http://127.0.0.1:{listening_port.number}"
    result = probe(silent, "--timeout", "200ms")
    assert result.returncode == FAILED
    verdict, connect, exchange, total = result.stdout.splitlines()
    assert re.match(r"failed: .*0\.2 s", verdict)
    assert re.fullmatch(r"  connect  .* ms  127\.0\.0\.1", connect)
    assert re.fullmatch(r"  exchange .* ms  \(.+\)", exchange)
    duration = re.fullmatch(rf"  total    +([0-9.]+) ms  {silent}", total)
    assert duration
    assert float(duration[1]) >= 200

    port.close()
    _, connect, _ = probe(port.url).stdout.splitlines()
    assert re.fullmatch(r"  connect  .* ms  127\.0\.0\.1 \(.+\)", connect)


def test_json_is_one_object_with_verdict_code_and_steps(web: str) -> None:
    document = as_json(f"{web}/404")
    assert list(document) == ["time", "url", "outcome", "code", "reason", "duration_ms", "steps"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", document["time"])
    assert (document["url"], document["outcome"], document["code"]) == (f"{web}/404", "failed", "not_found")
    assert document["reason"].endswith(f": {web}/404")
    assert [list(step) for step in document["steps"]] == [["name", "detail", "duration_ms", "done"]] * 2
    assert [(step["name"], step["detail"], step["done"]) for step in document["steps"]] == [
        ("connect", "127.0.0.1", True),
        ("exchange", "", True),
    ]
    assert 0 < sum(step["duration_ms"] for step in document["steps"]) <= document["duration_ms"]


def test_json_marks_the_step_that_was_not_completed(port: Port) -> None:
    (step,) = as_json(port.url)["steps"]
    assert (step["name"], step["done"]) == ("connect", False)


def test_no_secret_is_shown(port: Port) -> None:
    url = f"http://user:hunter2hunter2@127.0.0.1:{port.number}/?key=swordfish"
    options = ("-o", 'headers={ X-Key = "${API_KEY}" }')
    for mode in ((), ("--json",)):
        result = probe(url, *options, *mode, API_KEY="opensesame")
        assert result.returncode == FAILED
        assert f"http://user:***@127.0.0.1:{port.number}/?***" in result.stdout
        for secret in ("hunter2hunter2", "swordfish", "opensesame"):
            assert secret not in result.stdout + result.stderr


# ---- options


@pytest.mark.parametrize(
    ("options", "verdict"),
    [
        (["status=404"], "ready"),
        (["status=[200, 404]"], "ready"),
        (['status="4xx"'], "ready"),
        (["status=4xx"], "ready"),
        (["status=200"], "failed"),
        (["status=404", "contains=/404"], "ready"),
        (["status=404", 'contains="/404"'], "ready"),
        (["status=404", "contains=no such text"], "failed"),
        (["status=404", 'json={ "/path" = "/404" }'], "ready"),
        (["status=404", 'json={ "/path" = "/405" }'], "failed"),
        (["status=404", 'headers={ X-A = "1=2" }', 'json={ "/headers/X-A" = "1=2" }'], "ready"),
        (["status=404", "bearer=${TOKEN}", 'json={ "/headers/Authorization" = "Bearer let-me-in" }'], "ready"),
        (["status=200", "status=404"], "ready"),
    ],
)
def test_an_option_is_toml_or_a_string_without_quotes(options: list[str], verdict: str, web: str) -> None:
    arguments = [word for option in options for word in ("-o", option)]
    document = as_json(f"{web}/404", *arguments, TOKEN="let-me-in")
    assert document["outcome"] == verdict, document["reason"]


# ---- watching


@pytest.mark.usefixtures("default_sigint")
def test_watching_continues_while_the_service_stops_and_starts(port: Port) -> None:
    with watching(port.url) as process:
        assert wait_for_line(process, "failed").endswith(f": 127.0.0.1:{port.number}")
        port.open()
        assert wait_for_line(process, "ready") == ""
        port.close()
        wait_for_line(process, "failed")
        port.open()
        wait_for_line(process, "ready")
        process.send_signal(signal.SIGINT)
        assert ended(process) == (READY, "")


@pytest.mark.usefixtures("default_sigint")
def test_after_ctrl_c_the_exit_code_is_that_of_the_last_check(port: Port) -> None:
    with watching(port.url) as process:
        wait_for_line(process, "failed")
        process.send_signal(signal.SIGINT)
        assert ended(process) == (FAILED, "")


@pytest.mark.usefixtures("default_sigint")
def test_ctrl_c_during_a_check_ends_the_command_without_output(listening_port: Port) -> None:
    """A check that did not finish has no verdict: exit code 4 with --watch, otherwise 130 as usual."""
    silent = f"http://127.0.0.1:{listening_port.number}"
    with watching(silent, "--timeout", "1m") as process, listening_port.during_check():
        process.send_signal(signal.SIGINT)
        assert ended(process) == (UNKNOWN, "")
    once = subprocess.Popen([*COMMAND, silent, "--timeout", "1m"], env=environment(), stderr=subprocess.PIPE, text=True)
    with once, listening_port.during_check():
        once.send_signal(signal.SIGINT)
        assert ended(once) == (128 + signal.SIGINT, "")


def test_watching_as_json_is_one_object_per_line(port: Port) -> None:
    with watching(port.url, "--json") as process:
        assert process.stdout is not None
        documents = [json.loads(process.stdout.readline()) for _ in range(2)]
        port.open()
        while documents[-1]["outcome"] != "ready":
            documents.append(json.loads(process.stdout.readline()))
    assert documents[0]["outcome"] == documents[1]["outcome"] == "failed"
    assert documents[0]["time"] < documents[1]["time"]


# ---- closed output


def test_a_closed_pipe_ends_the_watching_without_an_error(port: Port) -> None:
    with watching(port.url) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        process.stdout = None
        assert ended(process) == (FAILED, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_does_not_change_the_exit_code(unbuffered: str, port: Port) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    environ = environment({"PYTHONUNBUFFERED": unbuffered})
    result = subprocess.run(
        [*COMMAND, port.url], env=environ, stdout=write_end, stderr=subprocess.PIPE, timeout=DEADLINE_S, check=False
    )
    os.close(write_end)
    assert (result.returncode, result.stderr) == (FAILED, b"")


def test_a_closed_stdout_does_not_change_the_exit_code(port: Port) -> None:
    shell = ["/bin/sh", "-c", '"$@" >&-', "sh", *COMMAND, port.url]
    result = subprocess.run(shell, env=environment(), stderr=subprocess.PIPE, timeout=DEADLINE_S, check=False)
    assert (result.returncode, result.stderr) == (FAILED, b"")
