"""A process whose log is not read, whose streams are closed, or whose terminal is closed."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from tests.support.ports import free_port
from tests.support.processes import DEADLINE_S, Agent, is_listening, run_command
from tests.support.servers.base import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ANYWHERE = ("--listen", "127.0.0.1:0")
FIXED = '[[services]]\nid = "db"\nstatus = "Up"\n'


def many(round_: int) -> str:
    """Every service changes its status in every round, which logs about 400 bytes per service."""
    status = ("Up", "Down")[round_ % 2]
    services = "".join(f'[[services]]\nid = "{number:0200}"\nstatus = "{status}"\n' for number in range(50))
    return f'[node]\nname = "round-{round_}"\n[log]\nlevel = "debug"\n{services}'


# ---- an unread log


@pytest.mark.parametrize("on_terminal", [False, True], ids=["pipe", "paused terminal"])
def test_a_node_serves_and_stops_although_its_log_is_not_read(tmp_path: Path, *, on_terminal: bool) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", "60s", config=FIXED, on_terminal=on_terminal) as agent:
        port = agent.port
        agent.wait_for_log("started")
        agent.stop_reading()
        for round_ in (1, 2):  # more than a pipe or a terminal holds
            agent.config_file.write_text(many(round_))
            agent.signal(signal.SIGHUP)
            agent.wait_until(lambda: agent.request("/svc/node", port).json["node_name"] == f"round-{round_}")  # noqa: B023
        agent.wait_until(lambda: agent.request("/svc/node/health", port).code == 200)  # all services are applied
        agent.signal(signal.SIGTERM)
        agent.wait_until(lambda: agent.request("/svc/node/health", port).code == 503)
        agent.signal(signal.SIGTERM)
        assert agent.process.wait(DEADLINE_S) == 128 + signal.SIGTERM


def test_many_last_log_lines_are_written(tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", "0s", config=many(0)) as agent:
        agent.reload(many(1))
        assert agent.stop() == 0
        assert agent.log_entries[-1]["event"] == "stopped"
        assert sum(entry["status"] == "Down" for entry in agent.events("service_status")) == 50


# ---- closed streams


@pytest.fixture
def port() -> int:
    return free_port()


def command(closed: str, *arguments: str) -> list[str]:
    return ["/bin/sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "svcnode", *arguments]


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
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
        wait_until(lambda: is_listening(port) or process.poll() is not None, "listening", DEADLINE_S)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
        assert out == ""
        assert ("stopped" in err) == ("2>&-" not in closed)


def test_an_error_is_not_written_to_stdout_if_stderr_is_closed(tmp_path: Path) -> None:
    completed = run_command(command("2>&-", "serve", "-c", "none"), tmp_path)
    assert (completed.returncode, completed.stdout, completed.stderr) == (2, "", "")


# ---- a closed terminal


class PseudoTerminal:
    """A terminal to start a process from."""

    def __init__(self) -> None:
        self._ends = list(pty.openpty())
        self.device = os.ttyname(self._ends[1])

    def close(self) -> None:
        while self._ends:
            os.close(self._ends.pop())


@pytest.fixture
def terminal() -> Iterator[PseudoTerminal]:
    with closing(PseudoTerminal()) as made:
        yield made


@pytest.fixture
def _default_sighup() -> Iterator[None]:
    """A run of the tests under nohup ignores SIGHUP. Child processes inherit that, and then the node ignores it too."""
    before = signal.signal(signal.SIGHUP, lambda *_: None)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_default_sighup")
def test_a_node_stops_when_its_terminal_is_closed(terminal: PseudoTerminal, tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, "--drain", "10ms", config=FIXED, terminal=terminal.device) as agent:
        agent.reload()  # SIGHUP means reload while the terminal is open
        assert agent.log_entries[-1]["event"] == "reloaded"
        terminal.close()
        agent.wait_for_event("terminal_closed")
        assert agent.wait_for_exit() == 0
        assert agent.log_entries[-1]["event"] == "stopped"


def test_a_node_under_nohup_keeps_running_when_its_terminal_is_closed(terminal: PseudoTerminal, tmp_path: Path) -> None:
    with Agent(tmp_path, *ANYWHERE, config=FIXED, terminal=terminal.device, under_nohup=True) as agent:
        agent.wait_for_event("started")
        terminal.close()
        agent.wait_for_event("reloaded")  # a closed terminal sends SIGHUP, too
        agent.reload('[node]\nname = "new"\n' + FIXED)
        assert agent.request("/svc/node").json["node_name"] == "new"
