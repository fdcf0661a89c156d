"""`svcnode status` against nodes on loopback, on a real terminal, and interrupted."""

from __future__ import annotations

import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.backends import HttpBackend, closed_port, http_response
from tests.support.certificates import make_certificate, make_chain
from tests.support.commands import svcnode
from tests.support.fake_nodes import FakeNode, FakeNodes
from tests.support.http_server import becomes_true, running_server
from tests.support.node_cases import worked_example
from tests.support.ports import free_port
from tests.support.processes import Agent
from tests.support.terminals import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


WAIT_TIMEOUT_S = 60.0


def status(*arguments: str, **environ: Any) -> subprocess.CompletedProcess[str]:
    return svcnode("status", *arguments, **environ)


def documents(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in status(*arguments, "--json").stdout.splitlines()]


# ---- in a pipe


def test_the_exit_code_is_that_of_the_worst_node_and_a_pipe_gets_neither_symbols_nor_colours(
    fake_nodes: FakeNodes,
) -> None:
    for names, code in {"well": 0, "half": 1, "ill": 3, "well half": 1, "ill half well": 3}.items():
        done = status(*map(fake_nodes.url, names.split()), TERM="xterm-256color", COLORTERM="truecolor")
        assert (done.returncode, done.stderr) == (code, "")
        assert done.stdout.isascii()
        assert "\x1b" not in done.stdout
    with closed_port() as port:
        done = status(fake_nodes.url("ill"), f"127.0.0.1:{port}")
        (found,) = documents(f"127.0.0.1:{port}")
    assert (done.returncode, done.stdout.endswith(": 1 unhealthy, 1 unreachable\n")) == (4, True)
    assert (found["overall_health"], found["health"], found["services"]) == ("unknown", None, None)
    (error,) = found["errors"]
    assert error.pop("message").endswith(f": http://127.0.0.1:{port}")
    assert error == {"kind": "UnreachableError", "code": "connection_refused"}


def test_without_a_url_a_node_with_tls_is_known_by_its_own_certificate(tmp_path: Path) -> None:
    """Also if the system does not trust its authority, and at an address that is not in the certificate."""
    made, _ = make_chain(tmp_path)
    port = free_port()
    config = (
        f'[server]\nlisten = "127.0.0.2:{port}"\ntls = {{ certificate = "{made.certificate}", key = "{made.key}" }}\n'
        '[[services]]\nid = "db"\nstatus = "Down"\n'
    )
    with Agent(tmp_path, config=config) as agent:
        agent.wait_for_event("started")
        (document,) = documents("--config", str(agent.config_file))
        made_later = make_certificate(tmp_path, "other").certificate
        (untrusted,) = documents("--config", str(agent.config_file), "--ca", str(made_later))
        made.certificate.unlink()
        done = status("--config", str(agent.config_file))
    assert (document["url"], document["health"]) == (f"https://127.0.0.2:{port}", 503)
    assert [error["code"] for error in untrusted["errors"]] == ["tls_untrusted"]
    assert (done.returncode, "--ca" in done.stderr) == (2, True)


def test_a_node_on_a_unix_socket(tmp_path: Path) -> None:
    config = '[server]\nlisten = "unix:node.sock"\n[[services]]\nid = "db"\nstatus = "Initializing"\n'
    with Agent(tmp_path, config=config) as agent:
        agent.wait_for_event("started")
        found, missing = documents(f"unix:{tmp_path}/node.sock", f"unix:{tmp_path}/none.sock")
    assert (found["url"], found["overall_health"], found["health"]) == (f"unix:{tmp_path}/node.sock", "partial", 206)
    assert [service["id"] for service in found["services"]] == ["db"]
    (error,) = missing["errors"]
    assert (error["kind"], error["code"]) == ("UnreachableError", "file_not_found")
    assert error["message"].endswith(f": unix:{tmp_path}/none.sock")


def test_a_server_that_answers_200_to_everything_is_not_healthy() -> None:
    with HttpBackend(http_response(200, "<html>Welcome</html>", Content_Type="text/html")) as web:
        done = status(web.address)
    assert done.returncode == 4
    assert done.stdout.startswith("not a node ")
    assert " text/html: <html>Welcome</html>: " in done.stdout
    assert " 200 (healthy)\n" in done.stdout


def test_a_node_that_ignores_the_version_is_of_another_version(fake_nodes: FakeNodes) -> None:
    done = status(fake_nodes.url("well"), "--version", "v9.9.9")
    assert (done.returncode, done.stdout.startswith("other version ")) == (4, True)
    (found,) = documents(fake_nodes.url("well"), "--version", "v9.9.9")
    assert ([error["kind"] for error in found["errors"]], found["health"]) == (["VersionIgnoredError"], None)
    fake_nodes.nodes["well"].prefix = "eigen"
    assert status(fake_nodes.url("well"), "--version", "v9.9.9").stdout.startswith("other version ")
    assert status(fake_nodes.url("well"), "--version", "v0.0.1").returncode == 0
    assert status(fake_nodes.url("well"), "--prefix", "/svc").returncode == 4
    with FakeNodes({"n": FakeNode(has_identity=False)}) as nodes:
        (found,) = documents(nodes.url("n"), "--version", "v0.0.1")
    assert (found["health"], found["overall_health"]) == (None, "unknown"), "the version of its answer is not known"


def test_json_has_all_responses_of_a_node(fake_nodes: FakeNodes) -> None:
    (found,) = documents(fake_nodes.url("half"))
    assert found.pop("duration_ms") > 0
    assert found == {
        "url": f"http://{fake_nodes.url('half')}",
        "overall_health": "partial",
        "health": 206,
        "acknowledged": None,
        "identity": {"node_name": "half", "spec_version": "v0.0.1", "node_version": "v1.4.2"},
        "services": [
            {"id": "db", "name": "Db", "description": "", "status": "Up", "acknowledged": None},
            {
                "id": "indexer",
                "name": "Indexer",
                "description": "",
                "status": "Initializing",
                "acknowledged": None,
            },
        ],
        "errors": [],
        "interrupted": None,
        "problems": None,
        "remarks": [],
        "deviations": [],
    }


def test_a_closed_pipe_is_not_an_error(fake_nodes: FakeNodes) -> None:
    command = f"{sys.executable} -m svcnode status {' '.join(fake_nodes.urls * 30)} --all --json | head -1"
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, timeout=WAIT_TIMEOUT_S, check=False
    )
    assert json.loads(done.stdout)["overall_health"] == "healthy"
    assert done.stderr == ""


# ---- on a terminal


def test_a_terminal_has_symbols_and_colours_and_no_progress_bar_for_a_short_command(tmp_path: Path) -> None:
    with running_server(worked_example()) as running, Terminal(tmp_path) as terminal:
        address = "{}:{}".format(*running.address)
        screen, code = terminal.run(f"svcnode status {address} 2>errors")
        styled = terminal.styled
        without_colours, _ = terminal.run(f"NO_COLOR=1 PYTHONIOENCODING=ascii svcnode status {address}")
        assert not any(f"\x1b[{colour}m" in terminal.styled for colour in range(30, 38))
    assert screen.splitlines()[3:] == [
        "  ✖ Down          indexer  Indexer          Follows the chain",
        "  ◐ Initializing  storage  Storage daemon   Keeps the blobs",
        "  ● Up            db       Ledger database  Holds the ledger",
    ]
    assert (code, (tmp_path / "errors").read_text()) == (1, "")
    for coloured in ("\x1b[33m◐ partial", "\x1b[32m● Up", "\x1b[31m✖ Down"):
        assert coloured in styled
    assert without_colours.startswith("~ partial  validator-7 ")


# ---- Ctrl-C


@contextmanager
def hanging_status(
    fake_nodes: FakeNodes, *arguments: str, stdout: int = subprocess.PIPE
) -> Iterator[subprocess.Popen[str]]:
    """A status command for which all nodes have answered but those that hang."""
    hung = sum(node.hangs for node in fake_nodes.nodes.values())
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "svcnode", "status", "--from", "-", "--timeout", "10m", *arguments],
        env={"PATH": os.environ["PATH"]},
        stdin=subprocess.PIPE,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stdin is not None
            process.stdin.write("\n".join(fake_nodes.urls))
            process.stdin.close()
            process.stdin = None  # communicate() would flush it
            responses = 3 * (len(fake_nodes.nodes) - hung)
            assert becomes_true(
                lambda: fake_nodes.response_count == responses and fake_nodes.open_count == hung, WAIT_TIMEOUT_S
            )
            yield process
        finally:
            process.kill()


def many(*, of_which_hang: int) -> dict[str, FakeNode]:
    return {f"n{number}": FakeNode(hangs=number < of_which_hang) for number in range(60)}


@pytest.mark.usefixtures("default_sigint")
def test_ctrl_c_shows_the_results_so_far_and_marks_interrupted_nodes() -> None:
    with FakeNodes(many(of_which_hang=20)) as fake_nodes, hanging_status(fake_nodes, "--json") as process:
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=WAIT_TIMEOUT_S)
    assert (process.returncode, errors) == (130, "")
    found = [json.loads(line) for line in output.splitlines()]
    assert [one["url"] for one in found] == [f"http://{url}" for url in fake_nodes.urls]
    assert [one["overall_health"] for one in found] == ["unknown"] * 20 + ["healthy"] * 40
    assert [bool(one["interrupted"]) for one in found] == [True] * 20 + [False] * 40
    assert [one["errors"] for one in found] == [[]] * 60, "an interrupt is not an error of a node"


@pytest.mark.usefixtures("default_sigint")
def test_a_second_ctrl_c_ends_at_once_even_if_the_output_blocks() -> None:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)  # smaller than the output
    try:
        with (
            FakeNodes(many(of_which_hang=20)) as fake_nodes,
            hanging_status(fake_nodes, "--json", stdout=writing) as process,
        ):
            process.send_signal(signal.SIGINT)
            assert select.select([reading], [], [], WAIT_TIMEOUT_S)[0], "it writes the results so far"
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=WAIT_TIMEOUT_S)
    finally:
        os.close(reading)
        os.close(writing)
    assert (process.returncode, errors) == (-signal.SIGINT, ""), "130 in a shell"


def test_a_background_job_of_a_shell_ignores_ctrl_c(fake_nodes: FakeNodes, default_sigint: None) -> None:
    fake_nodes.nodes["ill"].hangs = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the fixture restores it
    with hanging_status(fake_nodes) as process:
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)


def test_ctrl_c_removes_the_progress_bar(fake_nodes: FakeNodes, tmp_path: Path) -> None:
    fake_nodes.nodes["ill"].hangs = True
    with Terminal(tmp_path) as terminal:
        terminal.start(f"svcnode status {' '.join(fake_nodes.urls)} --timeout 60s")
        terminal.wait_for_text(r"^\S.* 2/3 ")
        terminal.press("C-c")
        screen, code = terminal.wait_for_exit()
        assert code == 130
        assert terminal.tmux_variable("cursor_flag") == "1"
    address = f"http://127.0.0.1:{fake_nodes.port}"
    first, interrupted, *lines, _, summary = screen.splitlines()
    assert [first, *lines] == [
        f"○ interrupted  -     -       -       {address}/ill",
        f"◐ partial      half  v1.4.2  1/2 up  {address}/half",
        "    ◐ Initializing  indexer  Indexer",
        f"● healthy      well  v1.4.2  1/1 up  {address}/well",
    ]
    assert re.match(r"    ○ .* \d+\.\d s", interrupted)
    assert summary.endswith(": 1 healthy, 1 partial, 1 interrupted")


@pytest.mark.wide
def test_ctrl_c_without_a_progress_bar_starts_a_new_line(fake_nodes: FakeNodes, tmp_path: Path) -> None:
    """The terminal writes ^C where the cursor is."""
    fake_nodes.nodes["ill"].hangs = True
    script = tmp_path / "without_bar.py"
    script.write_text(
        "import sys\n"
        "from svcnode.cli import main\n"
        "from svcnode.cli.terminal import progress\n"
        "progress.SHOW_AFTER_S = 600.0\n"
        "sys.exit(main(['status', *sys.argv[1:]]))\n"
    )
    with Terminal(tmp_path) as terminal:
        terminal.start(f"{sys.executable} {script} {' '.join(fake_nodes.urls)} --timeout 60s")
        terminal.wait_until(lambda: fake_nodes.response_count == 6 and fake_nodes.open_count == 1)
        terminal.press("C-c")
        screen, code = terminal.wait_for_exit()
    assert code == 130
    first, second, *_ = screen.splitlines()
    assert (first, second.split()[1]) == ("^C", "interrupted")
