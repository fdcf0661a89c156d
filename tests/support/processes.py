"""`svcnode serve` in its own process, used through signals, its log and HTTP; commands that run to their end."""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

DEADLINE_S = 60.0
RELOAD_DONE = r"\breload(ed| failed)\b"
_COMMAND = (sys.executable, "-W", "error", "-m", "svcnode")
# Replaces itself by a command that gets the socket as systemd passes it.
_PASS_SOCKET = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
environ = {**os.environ, "LISTEN_FDS": "1", "LISTEN_PID": str(os.getpid()), "LISTEN_FDNAMES": "svcnode.socket"}
os.execvpe(sys.argv[2], sys.argv[2:], environ)
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Response:
    code: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One connection that stays open."""

    def __init__(self, sock: socket.socket) -> None:
        self._connection = http.client.HTTPConnection("localhost", timeout=DEADLINE_S)
        self._connection.sock = self.sock = sock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def request(self, path: str) -> Response:
        assert self._connection.sock is self.sock, "the server closed the connection"
        self._connection.request("GET", path)
        response = self._connection.getresponse()
        return Response(response.status, response.read())


class Agent:
    """Runs during its `with` block; `lines` are the lines of its stderr."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        config: str | None = None,
        environ: Mapping[str, str] | None = None,
        on_terminal: bool = False,
        terminal: str | None = None,
        under_nohup: bool = False,
        prefix: Sequence[str] = (),
        passed: socket.socket | None = None,
    ) -> None:
        """`on_terminal`: its stderr is a terminal. `terminal`: the device of its controlling terminal.

        `prefix`: a command that runs it, such as prlimit. `passed`: a listening socket, passed as systemd does.
        """
        self.config_file = folder / "svcnode.toml"
        if config is not None:
            self.config_file.write_text(config)
        self.lines: list[str] = []
        self._log_changed = threading.Condition()
        self._closes_after_next = self._log_ended = False
        self._may_read = threading.Event()
        self._may_read.set()
        self._stderr, child_stderr = pty.openpty() if on_terminal else os.pipe()
        self.process = subprocess.Popen(
            [*_shell_prefix(terminal, under_nohup), *_passing(passed), *prefix, *_COMMAND, "serve", *arguments],
            start_new_session=terminal is not None,
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=child_stderr,
            pass_fds=() if passed is None else (passed.fileno(),),
        )
        os.close(child_stderr)
        self._log_thread = threading.Thread(target=self._read_log, daemon=True)
        self._log_thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._may_read.set()
        self._log_thread.join()

    # ---- the log

    def _read_log(self) -> None:
        unfinished = b""
        while not self._closes_after_next and self._may_read.wait() and (data := _read(self._stderr)):
            *lines, unfinished = (unfinished + data).split(b"\n")
            with self._log_changed:
                self.lines += [line.decode().rstrip("\r") for line in lines]
                self._log_changed.notify_all()
        os.close(self._stderr)
        with self._log_changed:
            self._log_ended = True
            self._log_changed.notify_all()

    def wait_for_log(self, pattern: str, *, times: int = 1) -> re.Match[str]:
        """Wait until this many lines match; returns the last match."""
        return self._wait_for(lambda line: re.search(pattern, line), times, pattern)

    def wait_for_event(self, event: str, *, times: int = 1, **fields: object) -> dict[str, Any]:
        """Wait until this many JSON lines have the event and the fields; returns the last of them."""
        wanted = {"event": event, **fields}

        def match(line: str) -> dict[str, Any] | None:
            entry: dict[str, Any] = json.loads(line) if line.startswith("{") else {}
            return entry if wanted.items() <= entry.items() else None

        return self._wait_for(match, times, wanted)

    def _wait_for(self, match: Callable[[str], T | None], times: int, wanted: object) -> T:
        def matches() -> list[T]:
            return [found for line in self.lines if (found := match(line))]

        with self._log_changed:
            self._log_changed.wait_for(lambda: self._log_ended or len(matches()) >= times, DEADLINE_S)
            assert len(matches()) >= times, f"no {wanted!r} in\n" + "\n".join(self.lines)
            return matches()[-1]

    @property
    def log_entries(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    def events(self, event: str) -> list[dict[str, Any]]:
        return [entry for entry in self.log_entries if entry.get("event") == event]

    @property
    def messages(self) -> list[str]:
        return [entry["message"] for entry in self.log_entries]

    def close_stderr(self) -> None:
        """Read one more line, then close the pipe, as a log collector that crashes does."""
        self._closes_after_next = True

    def stop_reading(self) -> None:
        """Let the pipe fill up, or hold the terminal with Ctrl-S."""
        self._may_read.clear()
        if os.isatty(self._stderr):
            os.write(self._stderr, b"\x13")
        else:
            fcntl.fcntl(self._stderr, fcntl.F_SETPIPE_SZ, 4096)

    def resume_reading(self) -> None:
        self._may_read.set()

    # ---- signals

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def reload(self, config: str | None = None) -> None:
        """Send SIGHUP, and wait until the reload has succeeded or failed."""
        self.wait_for_log("started: node")  # before, the signal is ignored
        done = sum(bool(re.search(RELOAD_DONE, line)) for line in self.lines)
        if config is not None:
            self.config_file.write_text(config)
        self.signal(signal.SIGHUP)
        self.wait_for_log(RELOAD_DONE, times=done + 1)

    def wait_for_exit(self) -> int:
        """Returns the exit code."""
        code = self.process.wait(DEADLINE_S)
        self._log_thread.join(DEADLINE_S)
        return code

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait_for_exit()

    # ---- requests

    @property
    def port(self) -> int:
        """The port of the last listener that was started."""
        return int(self.wait_for_log(r"listening on https?://.*:(\d+)/").group(1))

    def connect(self, port: int | None = None, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Client:
        sock = socket.create_connection((host, self.port if port is None else port), DEADLINE_S)
        return Client(sock if tls is None else tls.wrap_socket(sock, server_hostname="localhost"))

    def request(self, path: str, port: int | None = None) -> Response:
        """On a new connection."""
        with self.connect(port) as client:
            return client.request(path)

    def statuses(self) -> dict[str, str]:
        return {service["id"]: service["status"] for service in self.request("/svc/node/services").json["services"]}

    def health(self) -> int:
        return self.request("/svc/node/health").code

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert self.process.poll() is None, "the agent ended\n" + "\n".join(self.lines)
            assert time.monotonic() < deadline_s, "the condition did not become true\n" + "\n".join(self.lines)
            time.sleep(0.02)


def _shell_prefix(terminal: str | None, under_nohup: bool) -> list[str]:
    """A session leader that opens a terminal makes it the controlling terminal."""
    opened = "" if terminal is None else f"<{terminal}"
    ignoring = "trap '' HUP; " if under_nohup else ""
    return ["/bin/sh", "-c", f'{ignoring}exec "$@" {opened}', "sh"] if opened or ignoring else []


def _passing(sock: socket.socket | None) -> list[str]:
    return [] if sock is None else [sys.executable, "-c", _PASS_SOCKET, str(sock.fileno())]


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the end of a terminal
        return b""


def connect_unix(path: Path) -> Client:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(DEADLINE_S)
    try:
        sock.connect(str(path))
    except OSError:
        sock.close()
        raise
    return Client(sock)


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), DEADLINE_S).close()
    except ConnectionRefusedError:
        return False
    return True


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def run_command(command: Sequence[str], folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run with the folder as HOME and working directory, and without the environment of the tests."""
    return subprocess.run(
        command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **environ},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=DEADLINE_S,
        check=False,
    )
