"""The worked clients of the control socket in other languages: register, beat, report down, deregister."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from svcnode.control import ControlClient
from tests.support.processes import DEADLINE_S, Agent
from tests.support.servers.provision import python_environment, skip_or_fail, tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

pytestmark = pytest.mark.wide

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "control"
GO_PINS = ROOT / "requirements" / "go.txt"
BUILD_TIMEOUT_S = 300
TTL_S = 3
CONFIG = """
[log]
format = "json"

[[services]]
id = "in-the-file"
status = "Up"
"""


def shell_command(_: Path) -> Sequence[str]:
    return [tool("sh"), str(EXAMPLES / "worker.sh")]


def node_command(_: Path) -> Sequence[str]:
    return [tool("node"), str(EXAMPLES / "worker.mjs")]


def go_command(folder: Path) -> Sequence[str]:
    environment = python_environment(GO_PINS)
    environ = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOCACHE": str(environment / "go-build")}
    go = str(environment / "bin" / "go")
    return build([go, "build", "-o", str(folder / "worker"), str(EXAMPLES / "worker.go")], environ, folder)


def rust_command(folder: Path) -> Sequence[str]:
    if shutil.which("rustc") is None:
        pytest.skip("rustc is not installed: apt-get install rustc")
    rustc = ["rustc", "--edition", "2021", "-o", str(folder / "worker"), str(EXAMPLES / "worker.rs")]
    return build(rustc, dict(os.environ), folder)


def build(command: Sequence[str], environ: dict[str, str], folder: Path) -> Sequence[str]:
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False, cwd=folder
    )
    if done.returncode:
        skip_or_fail(f"{command[0]} could not build the example: {done.stderr[-500:]}")
    return [str(folder / "worker")]


@contextmanager
def running_node(folder: Path, socket: Path) -> Iterator[Agent]:
    environ = {"STATE_DIRECTORY": str(folder / "state"), "SVCNODE_CONTROL_LISTEN": f"unix:{socket}"}
    with Agent(folder, "--listen", "127.0.0.1:0", config=CONFIG, environ=environ) as agent:
        agent.wait_for_event("control_socket")
        yield agent


@contextmanager
def running_worker(command: Sequence[str], socket: Path) -> Iterator[subprocess.Popen[bytes]]:
    environ = {**os.environ, "SVCNODE_CONTROL": str(socket)}
    process = subprocess.Popen([*command, "worker", str(TTL_S)], env=environ, stdin=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdin
        process.stdin.close()


@pytest.mark.parametrize("make_command", [shell_command, node_command, go_command], ids=["shell", "node", "go"])
def test_an_example_registers_beats_and_deregisters(
    make_command: Callable[[Path], Sequence[str]], tmp_path: Path
) -> None:
    command = make_command(tmp_path)
    socket = tmp_path / "control.sock"
    with running_node(tmp_path, socket) as agent:
        with running_worker(command, socket) as worker:
            agent.wait_until(lambda: agent.statuses().get("worker") == "Up")
            time.sleep(TTL_S + 1.0)
            assert agent.statuses()["worker"] == "Up"
            worker.send_signal(signal.SIGTERM)  # the service goes away only after it was Down
            assert worker.wait(DEADLINE_S) == 0
        assert list(agent.statuses()) == ["in-the-file"]
        assert agent.events("service_status")[-1]["reason"] == "stopped"
        with running_worker(command, socket) as worker:
            agent.wait_until(lambda: agent.statuses().get("worker") == "Up")
            worker.kill()
            agent.wait_until(lambda: agent.statuses()["worker"] == "Down")


@pytest.mark.parametrize(
    "make_command", [shell_command, node_command, go_command, rust_command], ids=["shell", "node", "go", "rust"]
)
def test_an_example_survives_a_node_that_is_away_restarted_or_does_not_know_it(
    make_command: Callable[[Path], Sequence[str]], tmp_path: Path
) -> None:
    command = make_command(tmp_path)
    socket = tmp_path / "control.sock"
    with running_worker(command, socket) as worker:
        time.sleep(1.5)  # there is no node yet
        for number in range(10):
            with running_node(tmp_path, socket) as agent:
                agent.wait_until(lambda: agent.statuses().get("worker") == "Up")
                if number % 3 == 0:
                    with ControlClient(socket) as client:
                        client.deregister("worker")
                    agent.wait_until(lambda: agent.statuses().get("worker") == "Up")
            if number % 3 == 1:
                shutil.rmtree(tmp_path / "state")
        assert worker.poll() is None


# ---- docs/report.md


PAGE = (ROOT / "docs" / "report.md").read_text() if (ROOT / "docs").exists() else ""


def shown_commands() -> Iterator[tuple[str, str]]:
    """The commands in the page with their output."""
    for block in re.findall(r"^```console\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE):
        for shown in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = shown.partition("\n")
            if "--registry" not in command:  # test_registry_commands.py tests these
                yield command.replace("15s", "1h"), output.replace("15s", "1h")  # the machine may be busy


def test_the_commands_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    socket = tmp_path / "control.sock"
    with running_node(tmp_path, socket):
        for command, output in shown_commands():
            done = subprocess.run(
                ["sh", "-c", command.replace("/run/svcnode/control.sock", str(socket)).replace("curl", "curl -sS")],
                env={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "SVCNODE_CONTROL": str(socket)},
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=False,
            )
            assert done.stderr == ""
            assert _without_times(done.stdout) == _without_times(output), command


def _without_times(output: str) -> str:
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", output.rstrip("\n"))


def test_the_python_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    socket = tmp_path / "control.sock"
    monkeypatch.setenv("SVCNODE_CONTROL", str(socket))
    with running_node(tmp_path, socket) as agent:
        program, retry = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
        exec(compile(program, "report.md", "exec"), {})
        assert list(agent.statuses()) == ["in-the-file"]
        with ControlClient() as node:
            exec(compile(retry, "report.md", "exec"), {"node": node})
        assert agent.statuses()["indexer"] == "Up"
