"""A real terminal: a shell inside tmux, whose screen can be read.

The tmux server has its own socket, so it does not interfere with another tmux of the same user.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DEADLINE_S = 60.0
PROMPT = "ready>"


class Terminal:
    """Runs during its `with` block; `svcnode` is the command under test."""

    def __init__(
        self, folder: Path, *, columns: int = 80, rows: int = 24, environ: Mapping[str, str] | None = None
    ) -> None:
        self._tmux = program("tmux", "tmux")
        self._sockets = tempfile.TemporaryDirectory(prefix="svcnode-tmux-")  # the paths of sockets must be short
        commands = folder / "commands"
        commands.mkdir(exist_ok=True)
        svcnode = commands / "svcnode"
        svcnode.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -W error -m svcnode "$@"\n')
        svcnode.chmod(0o755)
        self._folder = folder
        self._started = 0  # number of commands, shown at the end of each
        self._size = ("-x", str(columns), "-y", str(rows))
        self._environ = {
            "HOME": str(folder),
            "LANG": "C.UTF-8",
            "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
            "PS1": f"{PROMPT} ",
            "SHELL": "/bin/sh",
            "TERM": "xterm-256color",
            **(environ or {}),
        }

    def __enter__(self) -> Self:
        settings = ("set-option", "-g", "status", "off", ";", "set-option", "-g", "default-terminal", "screen-256color")
        self._call(*settings, ";", "new-session", "-d", *self._size, "-c", str(self._folder), "/bin/sh")
        self.wait_for_text(PROMPT)
        return self

    def __exit__(self, *_: object) -> None:
        self._call("kill-server")
        self._sockets.cleanup()

    def _call(self, *arguments: str) -> str:
        socket = str(Path(self._sockets.name) / "tmux")
        ended = subprocess.run(
            [self._tmux, "-u", "-S", socket, "-f", "/dev/null", *arguments],
            env=self._environ,
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    # ---- input

    def type(self, text: str) -> None:
        self._call("send-keys", "-l", "--", text)

    def press(self, *keys: str) -> None:
        """With tmux' names of keys: Enter, C-c, Up."""
        self._call("send-keys", *keys)

    def run(self, command: str) -> tuple[str, int]:
        """The screen after a command, and its exit code."""
        self.start(command)
        return self.wait_for_exit()

    def start(self, command: str) -> None:
        """Without waiting for its end."""
        self._started += 1
        self.type(f'clear; {command}; echo "[end {self._started}: $?]"')
        self.press("Enter")

    def wait_for_exit(self) -> tuple[str, int]:
        """Wait for the end of the last command; returns the screen and the exit code."""
        end = rf"^\[end {self._started}: (\d+)\]\n{PROMPT}"
        output, code, _ = re.split(end, self.wait_for_text(end), maxsplit=1, flags=re.MULTILINE)
        return output.rstrip("\n"), int(code)

    def resize(self, columns: int, rows: int) -> None:
        self._call("resize-window", "-x", str(columns), "-y", str(rows))

    # ---- screen

    @property
    def lines(self) -> list[str]:
        """The screen without empty lines at its end."""
        return [line.rstrip() for line in self._call("capture-pane", "-p").rstrip().splitlines()]

    @property
    def screen(self) -> str:
        return "\n".join(self.lines)

    @property
    def styled(self) -> str:
        """The screen with its colour sequences."""
        return self._call("capture-pane", "-p", "-e").rstrip()

    def tmux_variable(self, name: str) -> str:
        """Such as cursor_flag, alternate_on, mouse_any_flag."""
        return self._call("display-message", "-p", f"#{{{name}}}").strip()

    def wait_for_text(self, pattern: str, timeout_s: float = DEADLINE_S) -> str:
        """Wait until the screen matches; ^ and $ match at lines. Returns the screen."""
        self.wait_until(lambda: bool(re.search(pattern, self.screen, re.MULTILINE)), timeout_s)
        return self.screen

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = DEADLINE_S) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s, f"the condition did not become true; the screen is\n{self.screen}"
            time.sleep(0.02)
