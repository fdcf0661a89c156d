"""`svcnode watch` on a real terminal, with keys and real sockets."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from svcnode.cli.terminal.watch.view import SortOrder
from tests.support.ports import free_port
from tests.support.processes import Agent
from tests.support.terminals import Terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.fake_nodes import FakeNodes

WAIT_TIMEOUT_S = 60.0
FAST = "--interval 200ms"
# A timeout of 5 s keeps the service Up on a busy machine; fall = 1 makes the first failure count.
AGENT = """
[node]
name = "validator-7"
version = "v1.4.2"
[defaults]
interval = "6s"
timeout = "5s"
stale_after = "60s"
start_period = "0s"
fall = 1
[[services]]
id = "db"
name = "Ledger"
description = "Holds the ledger"
probe = "tcp://127.0.0.1:{}"
[[services]]
id = "cache"
name = "Cache"
status = "Up"
"""


def watch_command(fake_nodes: FakeNodes) -> str:
    return f"svcnode watch {FAST} {' '.join(fake_nodes.urls)}"


def names(terminal: Terminal) -> list[str]:
    """The names of the nodes, from top to bottom."""
    return re.findall(
        r"^[> ][* ]\S (?:healthy|partial|unhealthy|unreachable|pending) +(\S+)", terminal.screen, re.MULTILINE
    )


def is_clean(terminal: Terminal, directory: Path) -> bool:
    """Whether the settings of the terminal are those of the shell."""
    terminal.type("stty -a >settings; mv settings stty")
    terminal.press("Enter")
    terminal.wait_until((directory / "stty").exists)
    return (
        {"echo", "icanon", "isig", "ixon"} <= set((directory / "stty").read_text().replace(";", " ").split())
        and "stty -a >settings" in terminal.screen
        and terminal.tmux_variable("alternate_on") == "0"
        and terminal.tmux_variable("cursor_flag") == "1"
        and terminal.tmux_variable("wrap_flag") == "1"
    )


# ---- states


def test_a_service_that_goes_down_is_highlighted_and_its_age_is_reset(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as backend, ExitStack() as stack:
        config = AGENT.format(backend.getsockname()[1])
        agent = stack.enter_context(Agent(tmp_path, "--listen", "127.0.0.1:0", config=config))
        agent.wait_until(lambda: agent.health() == 200)
        terminal = stack.enter_context(Terminal(tmp_path))
        terminal.start(f"svcnode watch {FAST} 127.0.0.1:{agent.port}")
        terminal.wait_for_text(r"^  ● healthy        validator-7        v1\.4\.2     2/2 +>\d+s +▇+$")
        assert terminal.lines[0].endswith("every 0.2 s")
        assert terminal.lines[23].startswith("q quit  s sort: ")
        backend.close()
        terminal.wait_for_text(
            r"^ \*◐ partial        validator-7        v1\.4\.2     1/2         \ds +▇*▄+\n"
            r" \*  ✖ Down         db                 connection refuse…     \ds +▇*▁+$"
        )
        (down,) = (line for line in terminal.styled.splitlines() if "✖ Down" in line)
        assert re.search(r"\x1b\[[0-9;]*\b7m(\x1b\[[0-9;]*m)*✖ Down\x1b", down)
        terminal.press("q")
        assert terminal.wait_for_exit() == ("", 0)


# ---- keys


def test_keys_sort_filter_and_expand(fake_nodes: FakeNodes, tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.start(watch_command(fake_nodes))
        terminal.wait_for_text(": 1 unhealthy, 1 partial, 1 healthy ")
        assert names(terminal) == ["ill", "half", "well"]
        terminal.press("s")
        terminal.wait_until(lambda: names(terminal)[0] != "ill")
        terminal.press(*"s" * (len(SortOrder) - 1))
        terminal.wait_for_text("s sort: worst first")
        assert names(terminal) == ["ill", "half", "well"]

        terminal.press("Down")
        terminal.wait_for_text("^> ✖ unhealthy +ill ")
        terminal.press("j", "j")  # below it is what is Down
        terminal.wait_for_text("^> ◐ partial +half ")
        terminal.press("Enter")
        terminal.wait_for_text(r"^> ◐ partial +half .*\n    ◐ Initializing indexer .*\n    ● Up +db ")
        terminal.press("Enter")
        terminal.wait_until(lambda: "Initializing" not in terminal.screen)
        terminal.type("/down")
        terminal.wait_for_text("^/down█ ")
        assert names(terminal) == ["ill"]
        terminal.press("Escape")
        terminal.wait_until(lambda: names(terminal) == ["ill", "half", "well"])
        terminal.resize(100, 30)
        terminal.wait_until(lambda: (len(lines := terminal.lines), len(lines[-1])) == (30, 100))
        terminal.press("q")
        assert terminal.wait_for_exit() == ("", 0)
        assert is_clean(terminal, tmp_path)


# ---- the end


def test_the_terminal_is_restored_after_a_signal(fake_nodes: FakeNodes, tmp_path: Path) -> None:
    fake_nodes.nodes["ill"].hangs = True
    with Terminal(tmp_path) as terminal:
        terminal.start(f"""sh -c 'echo $$ >pid; exec "$@"' - {watch_command(fake_nodes)}""")
        terminal.wait_for_text(": 1 partial, 1 healthy, 1 pending")
        assert terminal.tmux_variable("alternate_on") == "1"
        assert terminal.tmux_variable("cursor_flag") == "0"
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
        assert terminal.wait_for_exit() == ("", 128 + signal.SIGTERM)
        assert is_clean(terminal, tmp_path)


def test_an_internal_error_is_shown_on_the_restored_terminal(fake_nodes: FakeNodes, tmp_path: Path) -> None:
    script = tmp_path / "faulty.py"
    script.write_text(
        "import sys\n"
        "from svcnode.cli import main\n"
        "from svcnode.cli.terminal.watch import app\n"
        "render, calls = app.render_page, []\n"
        "def render_twice(*arguments):\n"
        "    calls.append(1)\n"
        "    return render(*arguments) if len(calls) < 3 else 1 / 0\n"
        "app.render_page = render_twice\n"
        "sys.exit(main(['watch', *sys.argv[1:]]))\n"
    )
    with Terminal(tmp_path, rows=50) as terminal:
        terminal.start(f"{sys.executable} {script} {FAST} {fake_nodes.url('well')}")
        screen, code = terminal.wait_for_exit()
        assert "ZeroDivisionError" in screen
        assert code == 1
        assert is_clean(terminal, tmp_path)


def test_watch_can_be_suspended_and_resumed(fake_nodes: FakeNodes, tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        terminal.start(watch_command(fake_nodes))
        terminal.wait_for_text(": 1 unhealthy, 1 partial, 1 healthy ")
        terminal.press("C-z")
        terminal.wait_for_text("Stopped")
        assert is_clean(terminal, tmp_path)
        (tmp_path / "stty").unlink()
        fake_nodes.nodes["ill"].health = 200
        terminal.start("fg")
        terminal.wait_for_text(": 1 partial, 2 healthy ")
        terminal.press("q")
        terminal.wait_for_exit()
        assert is_clean(terminal, tmp_path)


def test_watch_ends_when_its_terminal_closes(fake_nodes: FakeNodes) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "svcnode", "watch", *fake_nodes.urls],
        env={"PATH": os.environ["PATH"], "TERM": "xterm", "LANG": "C.UTF-8"},
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        start_new_session=True,  # without a controlling terminal, it gets no signal
    )
    os.close(theirs)
    try:
        output = b""
        deadline_s = time.monotonic() + WAIT_TIMEOUT_S
        while b": 1 unhealthy" not in output:
            assert select.select([ours], [], [], deadline_s - time.monotonic())[0], output
            output += os.read(ours, 65536)
        os.close(ours)
        _, errors = process.communicate(timeout=WAIT_TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, errors) == (129, b"")


@pytest.mark.wide
def test_nodes_can_come_from_stdin_while_keys_come_from_the_terminal(fake_nodes: FakeNodes, tmp_path: Path) -> None:
    with Terminal(tmp_path, environ={"NO_COLOR": "1"}) as terminal:
        (tmp_path / "nodes").write_text("\n".join(fake_nodes.urls))
        terminal.start("svcnode watch --from - < nodes")
        terminal.wait_for_text(": 1 unhealthy, 1 partial, 1 healthy ")
        assert not re.findall(r"\x1b\[[0-9;]*\b3[0-7]\b", terminal.styled)  # NO_COLOR
        terminal.press("C-c")
        assert terminal.wait_for_exit() == ("", 0)
        assert is_clean(terminal, tmp_path)
