"""What becomes of a process when its log is not read, its streams are closed, or its terminal goes."""

from __future__ import annotations

import os
import pty
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.support.processes import DEADLINE_S, Agent, is_listening, run_command
from tests.support.terminals import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ANYWHERE = ("--listen", "127.0.0.1:0")
FIXED = '[[services]]\nid = "db"\nstatus = "Up"\n'
IMMEDIATE_S = 0.8  # what is in a hurry waits less than for the last lines


def many(round_: int) -> str:
    """Another status for each service in each round, and hence some 400 bytes to log about each."""
    status = ("Up", "Down")[round_ % 2]
    services = "".join(f'[[services]]\nid = "{number:0200}"\nstatus = "{status}"\n' for number in range(1000))
    return f'[node]\nname = "round-{round_}"\n[log]\nlevel = "debug"\n{services}'


def unread_pipe(agent: Agent) -> int:
    """Its port; from here on nobody reads its log."""
    port = agent.port
    agent.wait_for_event("started")
    agent.stop_reading()
    return port


def run_demo(agent: Agent, port: int, rounds: range) -> None:
    """Let it log a lot, without reading any of it."""
    for round_ in rounds:
        agent.config_file.write_text(many(round_))
        agent.signal(signal.SIGHUP)
        agent.wait_until(lambda: agent.request("/svc/node", port).json["node_name"] == f"round-{round_}")  # noqa: B023


# ---- a log that nobody reads


def test_a_node_answers_and_ends_though_its_log_is_not_read(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", "0s", config=many(0)) as agent:
        port = unread_pipe(agent)
        run_demo(agent, port, range(1, 3))
        assert agent.request("/svc/node/health", port).code == 200
        agent.signal(signal.SIGTERM)
        assert agent.process.wait(DEADLINE_S) == 0


@pytest.mark.serial
def test_a_second_signal_ends_it_at_once_though_its_log_is_not_read(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", "60s", config=many(0)) as agent:
        port = unread_pipe(agent)
        run_demo(agent, port, range(1, 3))
        agent.signal(signal.SIGTERM)
        agent.wait_until(lambda: agent.request("/svc/node/health", port).code == 503)
        agent.signal(signal.SIGTERM)
        began_s = time.monotonic()
        assert agent.process.wait(DEADLINE_S) == 128 + signal.SIGTERM
        assert time.monotonic() - began_s < IMMEDIATE_S


def test_who_reads_again_is_told_how_much_was_lost(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", "0s", config=many(0)) as agent:
        port = unread_pipe(agent)
        run_demo(agent, port, range(1, 15))
        agent.resume_reading()
        lost = int(agent.wait_for_log(r'"(\d+) lines were lost here: the log could not be written').group(1))
        assert lost > 1000
        agent.config_file.write_text(FIXED)
        agent.signal(signal.SIGHUP)
        agent.wait_for_event("fixed_status", services=1)
        assert agent.stop() == 0
        assert agent.messages[-1] == "stopped"
        messages = agent.messages
        assert sum("lost here" in message for message in messages) == 1
        changes = [message for message in messages if re.match(r"service 0+1 is ", message)]
        assert changes[:3] == [
            f"service {1:0200} is {now}, was {before}: set in the configuration"
            for now, before in (("Up", "Initializing"), ("Down", "Up"), ("Up", "Down"))
        ]


def test_a_terminal_that_is_held_holds_nothing_else(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, config=FIXED, on_terminal=True) as agent:
        port = unread_pipe(agent)
        run_demo(agent, port, range(1, 3))
        assert agent.request("/svc/node/health", port).code == 200
        agent.signal(signal.SIGINT)
        assert agent.process.wait(DEADLINE_S) == 0


def test_the_last_lines_come_out_though_they_are_many(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", "0s", config=many(0)) as agent:
        agent.wait_for_event("started")
        agent.config_file.write_text(many(1))
        agent.signal(signal.SIGHUP)
        agent.wait_for_log("is Down, was Up")
        assert agent.stop() == 0
        assert agent.messages[-1] == "stopped"


# ---- streams that are closed


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def command(closed: str, *arguments: str) -> list[str]:
    return ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "svcnode", *arguments]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_node_serves_and_stops_whatever_stream_is_closed(closed: str, port: int, tmp_path: Path) -> None:
    (tmp_path / "svcnode.toml").write_text(FIXED)
    process = subprocess.Popen(
        command(closed, "serve", "--listen", f"127.0.0.1:{port}", "--drain", "0s"),
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        deadline_s = time.monotonic() + DEADLINE_S
        while not is_listening(port):
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
        assert out == ""
        assert ("stopped" in err) == ("2>&-" not in closed)


@pytest.mark.parametrize("arguments", [("explain", "nope"), ("serve", "--no-such-option"), ("serve", "-c", "none")])
def test_an_error_goes_nowhere_else_where_stderr_is_closed(arguments: tuple[str, ...], tmp_path: Path) -> None:
    ended = run_command(command("2>&-", *arguments), tmp_path)
    assert ended.returncode in (2, 3)
    assert (ended.stdout, ended.stderr) == ("", "")


def test_a_list_of_nodes_from_a_closed_stdin_is_still_refused(tmp_path: Path) -> None:
    ended = run_command(command("<&-", "status", "--from", "-"), tmp_path)
    assert "--from: stdin is closed" in ended.stderr


# ---- a terminal that goes


def test_a_node_started_by_a_shell_leaves_the_port_when_the_terminal_is_closed(port: int, tmp_path: Path) -> None:
    (tmp_path / "svcnode.toml").write_text(FIXED)
    with Terminal(tmp_path, columns=120) as terminal:
        terminal.start(f"svcnode serve --listen 127.0.0.1:{port}")
        terminal.wait_for_text("started: node")
        assert is_listening(port)
    terminal.wait_until(lambda: not is_listening(port))


class PseudoTerminal:
    """A terminal that a process can be started from."""

    def __init__(self) -> None:
        self._ends = list(pty.openpty())
        self.fd = os.ttyname(self._ends[1])

    def close(self) -> None:
        while self._ends:
            os.close(self._ends.pop())


@pytest.fixture
def terminal() -> Iterator[PseudoTerminal]:
    with closing(PseudoTerminal()) as made:
        yield made


@pytest.mark.parametrize("drain", ["0s", "1s"])
def test_a_node_ends_with_the_terminal_that_it_was_started_from(
    drain: str, terminal: PseudoTerminal, tmp_path: Path
) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", drain, config=FIXED, terminal=terminal.fd) as agent:
        agent.reload()  # as long as it is there, that is what the signal means
        assert agent.messages[-1] == "reloaded: no service changed"
        terminal.close()
        agent.wait_for_event("terminal_closed")
        assert agent.wait_for_exit() == 0
        assert agent.messages[-1] == "stopped"


def test_a_node_under_nohup_outlives_its_terminal_and_reloads_on(terminal: PseudoTerminal, tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, config=FIXED, terminal=terminal.fd, under_nohup=True) as agent:
        agent.wait_for_event("started")
        terminal.close()
        agent.wait_for_log("reloaded")  # for that, too, is told by the signal
        agent.reload('[node]\nname = "new"\n' + FIXED)
        assert agent.request("/svc/node").json["node_name"] == "new"
