"""`svcnode probe` in a process of its own, against real servers on loopback."""

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

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DEADLINE_S = 20.0
COMMAND = [sys.executable, "-W", "error", "-m", "svcnode", "probe"]
READY, NOT_READY, FAILED, UNKNOWN = range(4)

LINE = re.compile(r"\d\d:\d\d:\d\d  (ready|not ready|failed|unknown) +[0-9.]+ ms(?:  (.*))?\n")


class Port:
    """A port on loopback that nobody else gets, whether it is listening_port on or not."""

    def __init__(self) -> None:
        self._keeper = socket.socket()
        self._keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._keeper.bind(("127.0.0.1", 0))
        self.number: int = self._keeper.getsockname()[1]
        self._listener: socket.socket | None = None

    def open(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.number))

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def release(self) -> None:
        self.close()
        self._keeper.close()

    @contextmanager
    def during_check(self) -> Iterator[None]:
        """From the first byte of a request on, which is never answered."""
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
    """Answers with the status that the path names, and what it was asked."""

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
    """Nobody listens there yet."""
    kept = Port()
    yield kept
    kept.release()


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


def probe(*arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        env=environment(environ),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def as_json(*arguments: str, environ: dict[str, str] | None = None) -> dict[str, Any]:
    looked = probe("--json", *arguments, environ=environ)
    assert looked.stderr == ""
    assert looked.stdout.count("\n") == 1
    seen = json.loads(looked.stdout)
    assert isinstance(seen, dict)
    return seen


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
        found = LINE.fullmatch(line)
        assert found, line
        if found[1] == verdict:
            return found[2] or ""
    pytest.fail(f"it ended before it said {verdict}")


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit code, and what stands on stderr."""
    _, said = process.communicate(timeout=DEADLINE_S)
    return process.returncode, said


# ---- the exit code says what was seen


def test_ready_is_exit_0(listening_port: Port) -> None:
    looked = probe(listening_port.url)
    assert (looked.returncode, looked.stdout.splitlines()[0], looked.stderr) == (READY, "ready", "")


def test_not_ready_is_exit_1(web: str) -> None:
    looked = probe(f"{web}/503", "-o", "starting_status=503")
    assert looked.returncode == NOT_READY
    assert looked.stdout.startswith(f"not ready: answered 503, so it is starting: {web}/503\n")


def test_failed_is_exit_2(port: Port) -> None:
    looked = probe(port.url)
    assert looked.returncode == FAILED
    assert looked.stdout.startswith(f"failed: connection refused: 127.0.0.1:{port.number}\n")


def test_unknown_is_exit_3() -> None:
    looked = probe("heartbeat:30s")
    assert looked.returncode == UNKNOWN
    assert looked.stdout.startswith("unknown: a heartbeat is heard by a running node, and cannot be looked for\n")


@pytest.mark.parametrize(
    ("limit", "code", "verdict"), [("10ms", NOT_READY, "not ready: slow: it took "), ("10s", READY, "ready")]
)
def test_a_success_that_takes_too_long_is_not_ready(limit: str, code: int, verdict: str) -> None:
    looked = probe("exec:/bin/sleep 0.05", "--allow-exec", "--max-latency", limit)
    assert looked.returncode == code
    assert looked.stdout.startswith(verdict)


# ---- what cannot be looked at


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["nothing"], "not a URL, which begins with a scheme and a colon, such as tcp://127.0.0.1:5432"),
        (["http://127.0.0.1", "-o", "redirect=1"], 'redirect: unknown option; did you mean "redirects"?'),
        (["file:/", "--timeout", "3"], '--timeout: "3" is not a duration; write a number and a unit, such as "3s"'),
    ],
)
@pytest.mark.parametrize("way", [[], ["--watch"]], ids=["once", "watch"])
def test_what_cannot_be_checked_is_told_in_one_line_and_is_exit_3(
    way: list[str], arguments: list[str], reason: str
) -> None:
    looked = probe(*arguments, *way)
    assert looked.returncode == UNKNOWN
    assert (looked.stdout, looked.stderr) == ("", f"svcnode: {reason}\n")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "the following arguments are required: URL"),
        (["file:/", "--watc"], "unrecognized arguments: --watc"),
        (["file:/", "file:/etc"], "unrecognized arguments: file:/etc"),
        (["file:/", "--timeout"], "argument --timeout: expected one argument"),
        (["file:/", "-o"], "argument -o/--option: expected one argument"),
    ],
)
def test_a_misused_command_is_exit_3_too_since_2_would_say_that_the_service_failed(
    arguments: list[str], reason: str
) -> None:
    looked = probe(*arguments)
    assert looked.returncode == UNKNOWN
    assert looked.stdout == ""
    usage, *_, last = looked.stderr.splitlines()
    assert usage.startswith("usage: svcnode probe ")
    assert last == f"svcnode probe: error: {reason}"


# ---- what is shown


def test_every_step_is_shown_in_its_order_under_the_verdict(tmp_path: Path) -> None:
    made = make_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made.certificate, made.key)
    with serving(context) as number:
        looked = probe(f"https://localhost:{number}/200", "-o", f"ca={made.certificate}")
    verdict, *rows = looked.stdout.splitlines()
    assert verdict == "ready"
    assert all(re.fullmatch(r"  [a-z ]{9} +[0-9]+\.[0-9] ms(  \S.*)?", row) for row in rows), rows
    assert len({row.index(" ms") for row in rows}) == 1, "the numbers do not stand in one column"
    # A machine may have another address for localhost as well, and try it first.
    steps = [row.split()[0] for row in rows if "(not done)" not in row]
    assert steps == ["resolve", "connect", "handshake", "exchange", "in"]
    assert rows[0].endswith(" ms  localhost")
    assert rows[-1].startswith("  in all ")
    assert rows[-1].endswith(f" ms  https://localhost:{number}/200")


def test_the_step_that_a_check_got_no_further_than_is_marked(listening_port: Port, port: Port) -> None:
    silent = f"http://127.0.0.1:{listening_port.number}"
    looked = probe(silent, "--timeout", "200ms")
    assert looked.returncode == FAILED
    verdict, connect, exchange, in_all = looked.stdout.splitlines()
    assert verdict == "failed: no answer within 0.2 s, in its step exchange"
    assert re.fullmatch(r"  connect  .* ms  127\.0\.0\.1", connect)
    assert re.fullmatch(r"  exchange .* ms  \(not done\)", exchange)
    took = re.fullmatch(rf"  in all    +([0-9.]+) ms  {silent}", in_all)
    assert took
    assert float(took[1]) >= 200

    port.close()
    _, connect, _ = probe(port.url).stdout.splitlines()
    assert re.fullmatch(r"  connect  .* ms  127\.0\.0\.1 \(not done\)", connect)


def test_json_is_one_object_with_all_there_is_to_see(web: str) -> None:
    seen = as_json(f"{web}/404")
    assert list(seen) == ["time", "url", "verdict", "reason", "duration_ms", "steps"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", seen["time"])
    assert (seen["url"], seen["verdict"]) == (f"{web}/404", "failed")
    assert seen["reason"] == f"answered 404: {web}/404"
    assert [list(step) for step in seen["steps"]] == [["name", "detail", "duration_ms", "done"]] * 2
    assert [(step["name"], step["detail"], step["done"]) for step in seen["steps"]] == [
        ("connect", "127.0.0.1", True),
        ("exchange", "", True),
    ]
    assert 0 < sum(step["duration_ms"] for step in seen["steps"]) <= seen["duration_ms"]


def test_json_marks_the_step_that_was_not_done(port: Port) -> None:
    (step,) = as_json(port.url)["steps"]
    assert (step["name"], step["done"]) == ("connect", False)


def test_no_secret_is_shown(port: Port) -> None:
    url = f"http://user:hunter2hunter2@127.0.0.1:{port.number}/?key=swordfish"
    options = ("-o", 'headers={ X-Key = "${API_KEY}" }')
    environ = {"API_KEY": "opensesame"}
    for way in ((), ("--json",)):
        looked = probe(url, *options, *way, environ=environ)
        assert looked.returncode == FAILED
        assert f"http://user:***@127.0.0.1:{port.number}/?***" in looked.stdout
        for secret in ("hunter2hunter2", "swordfish", "opensesame"):
            assert secret not in looked.stdout + looked.stderr


@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", "é☃"), ("ascii", "\\xe9\\u2603")])
def test_what_the_terminal_cannot_spell_is_shown_as_well_as_may_be(encoding: str, shown: str, tmp_path: Path) -> None:
    url, environ = f"file:{tmp_path}/é☃", {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "1"}
    looked = probe(url, environ=environ)
    assert (looked.returncode, looked.stderr) == (FAILED, "")
    assert looked.stdout.startswith(f"failed: no such file or directory: {tmp_path}/{shown}\n")
    assert as_json(url, environ=environ)["url"] == url


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
        (["status=404", "contains=no such words"], "failed"),
        (["status=404", 'json={ "/path" = "/404" }'], "ready"),
        (["status=404", 'json={ "/path" = "/405" }'], "failed"),
        (["status=404", 'headers={ X-A = "1=2" }', 'json={ "/headers/X-A" = "1=2" }'], "ready"),
        (["status=404", "bearer=${TOKEN}", 'json={ "/headers/Authorization" = "Bearer let-me-in" }'], "ready"),
        (["status=200", "status=404"], "ready"),
    ],
)
def test_an_option_is_written_as_in_toml_or_as_bare_words(options: list[str], verdict: str, web: str) -> None:
    arguments = [word for option in options for word in ("-o", option)]
    seen = as_json(f"{web}/404", *arguments, environ={"TOKEN": "let-me-in"})
    assert seen["verdict"] == verdict, seen["reason"]


# ---- look after look


@pytest.mark.usefixtures("default_sigint")
def test_watching_goes_on_while_the_service_comes_and_goes(port: Port) -> None:
    with watching(port.url) as process:
        assert wait_for_line(process, "failed") == f"connection refused: 127.0.0.1:{port.number}"
        port.open()
        assert wait_for_line(process, "ready") == ""
        port.close()
        wait_for_line(process, "failed")
        port.open()
        wait_for_line(process, "ready")
        process.send_signal(signal.SIGINT)
        assert ended(process) == (READY, "")


@pytest.mark.usefixtures("default_sigint")
def test_ctrl_c_ends_the_watching_with_what_the_last_check_came_to(port: Port) -> None:
    with watching(port.url) as process:
        wait_for_line(process, "failed")
        process.send_signal(signal.SIGINT)
        assert ended(process) == (FAILED, "")


@pytest.mark.usefixtures("default_sigint")
def test_ctrl_c_in_the_middle_of_a_check_ends_it_quietly(listening_port: Port) -> None:
    """A look that never ended saw nothing: 3 where looks are watched, and as programs do where there is but one."""
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
        seen = [json.loads(process.stdout.readline()) for _ in range(2)]
        port.open()
        while seen[-1]["verdict"] != "ready":
            seen.append(json.loads(process.stdout.readline()))
    assert seen[0]["verdict"] == seen[1]["verdict"] == "failed"
    assert seen[0]["time"] < seen[1]["time"]


# ---- nobody reads


def test_a_reader_that_leaves_ends_the_watching_quietly(port: Port) -> None:
    with watching(port.url) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        process.stdout = None
        assert ended(process) == (FAILED, "")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_verdict_that_nobody_reads_is_still_the_exit_code(unbuffered: str, port: Port) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    environ = environment({"PYTHONUNBUFFERED": unbuffered})
    looked = subprocess.run(
        [*COMMAND, port.url], env=environ, stdout=theirs, stderr=subprocess.PIPE, timeout=DEADLINE_S, check=False
    )
    os.close(theirs)
    assert (looked.returncode, looked.stderr) == (FAILED, b"")


def test_without_any_output_the_exit_code_still_says_it(port: Port) -> None:
    shell = ["/bin/sh", "-c", '"$@" >&-', "sh", *COMMAND, port.url]
    looked = subprocess.run(shell, env=environment(), stderr=subprocess.PIPE, timeout=DEADLINE_S, check=False)
    assert (looked.returncode, looked.stderr) == (FAILED, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this machine has no /dev/full")  # noqa: PTH110
def test_output_that_cannot_be_written_is_told_in_one_line(port: Port) -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        looked = subprocess.run(
            [*COMMAND, port.url],
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=DEADLINE_S,
            check=False,
        )
    assert looked.stderr == b"svcnode: cannot write what was seen: no space left on device\n"
    assert looked.returncode == UNKNOWN
