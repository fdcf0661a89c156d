"""A process whose log is not read, whose streams are closed, or whose terminal is closed."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.support.ports import free_port
from tests.support.processes import DEADLINE_S, Agent, is_listening, run_command
from tests.support.terminals import Terminal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ANYWHERE = ("--listen", "127.0.0.1:0")
FIXED = '[[services]]\nid = "db"\nstatus = "Up"\n'


def many(round_: int) -> str:
    """Every service changes its status in every round, which logs about 400 bytes per service."""
    status = ("Up", "Down")[round_ % 2]
    services = "".join(f'[[services]]\nid = "{number:0200}"\nstatus = "{status}"\n' for number in range(1000))
    return f'[node]\nname = "round-{round_}"\n[log]\nlevel = "debug"\n{services}'


def stop_reading_log(agent: Agent) -> int:
    """Stop reading the log; returns the port."""
    port = agent.port
    agent.wait_for_log("started")  # also in the text format of a terminal
    agent.stop_reading()
    return port


def log_much(agent: Agent, port: int, rounds: range) -> None:
    """Reload with other statuses in each round, which logs much."""
    for round_ in rounds:
        agent.config_file.write_text(many(round_))
        agent.signal(signal.SIGHUP)
        agent.wait_until(lambda: agent.request("/svc/node", port).json["node_name"] == f"round-{round_}")  # noqa: B023


# ---- an unread log


def test_a_node_serves_and_stops_although_its_log_is_not_read(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", "0s", config=many(0)) as agent:
        port = stop_reading_log(agent)
        log_much(agent, port, range(1, 3))
        assert agent.request("/svc/node/health", port).code == 200
        agent.signal(signal.SIGTERM)
        assert agent.process.wait(DEADLINE_S) == 0


def test_a_second_signal_stops_a_node_although_its_log_is_not_read(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", "60s", config=many(0)) as agent:
        port = stop_reading_log(agent)
        log_much(agent, port, range(1, 3))
        agent.signal(signal.SIGTERM)
        agent.wait_until(lambda: agent.request("/svc/node/health", port).code == 503)
        agent.signal(signal.SIGTERM)
        assert agent.process.wait(DEADLINE_S) == 128 + signal.SIGTERM  # shorter than the drain of 60 s


def test_the_number_of_lost_log_lines_is_logged_when_the_log_is_read_again(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", "0s", config=many(0)) as agent:
        port = stop_reading_log(agent)
        log_much(agent, port, range(1, 15))
        agent.resume_reading()
        assert agent.wait_for_event("log_lines_lost")["lines"] > 1000
        agent.config_file.write_text(FIXED)
        agent.signal(signal.SIGHUP)
        agent.wait_for_event("fixed_status", services=1)
        assert agent.stop() == 0
        assert agent.log_entries[-1]["event"] == "stopped"
        assert len(agent.events("log_lines_lost")) == 1
        changes = [entry for entry in agent.events("service_status") if entry["service"] == f"{1:0200}"]
        assert [(entry["previous"], entry["status"], entry["code"]) for entry in changes[:3]] == [
            ("Initializing", "Up", "fixed"),
            ("Up", "Down", "fixed"),
            ("Down", "Up", "fixed"),
        ]


def test_a_paused_terminal_does_not_block_the_node(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, config=FIXED, on_terminal=True) as agent:
        port = stop_reading_log(agent)
        log_much(agent, port, range(1, 3))
        assert agent.request("/svc/node/health", port).code == 200
        agent.signal(signal.SIGINT)
        assert agent.process.wait(DEADLINE_S) == 0


def test_many_last_log_lines_are_written(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", "0s", config=many(0)) as agent:
        agent.wait_for_event("started")
        agent.config_file.write_text(many(1))
        agent.signal(signal.SIGHUP)
        agent.wait_for_event("service_status", status="Down", previous="Up")
        assert agent.stop() == 0
        assert agent.log_entries[-1]["event"] == "stopped"


# ---- closed streams


@pytest.fixture
def port() -> int:
    return free_port()


def command(closed: str, *arguments: str) -> list[str]:
    return ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "svcnode", *arguments]


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_node_serves_and_stops_with_closed_streams(closed: str, port: int, tmp_path: Path) -> None:
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
def test_an_error_is_not_written_to_stdout_if_stderr_is_closed(arguments: tuple[str, ...], tmp_path: Path) -> None:
    completed = run_command(command("2>&-", *arguments), tmp_path)
    assert completed.returncode == 2
    assert (completed.stdout, completed.stderr) == ("", "")


def test_a_list_of_nodes_from_a_closed_stdin_is_an_error(tmp_path: Path) -> None:
    completed = run_command(command("<&-", "status", "--from", "-"), tmp_path)
    assert completed.returncode == 2
    assert "--from" in completed.stderr


# ---- a closed terminal


def test_a_node_started_by_a_shell_stops_when_the_terminal_is_closed(port: int, tmp_path: Path) -> None:
    (tmp_path / "svcnode.toml").write_text(FIXED)
    with Terminal(tmp_path, columns=120) as terminal:
        terminal.start(f"svcnode serve --listen 127.0.0.1:{port}")
        terminal.wait_until(lambda: is_listening(port))
    terminal.wait_until(lambda: not is_listening(port))


class PseudoTerminal:
    """A terminal to start a process from."""

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
def test_a_node_stops_when_its_terminal_is_closed(drain: str, terminal: PseudoTerminal, tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", drain, config=FIXED, terminal=terminal.fd) as agent:
        agent.reload()  # SIGHUP means reload while the terminal is open
        assert agent.log_entries[-1]["event"] == "reloaded"
        terminal.close()
        agent.wait_for_event("terminal_closed")
        assert agent.wait_for_exit() == 0
        assert agent.log_entries[-1]["event"] == "stopped"


def test_a_node_under_nohup_keeps_running_when_its_terminal_is_closed(terminal: PseudoTerminal, tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, config=FIXED, terminal=terminal.fd, under_nohup=True) as agent:
        agent.wait_for_event("started")
        terminal.close()
        agent.wait_for_event("reloaded")  # a closed terminal sends SIGHUP, too
        agent.reload('[node]\nname = "new"\n' + FIXED)
        assert agent.request("/svc/node").json["node_name"] == "new"
