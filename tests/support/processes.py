"""`svcnode serve` in a process of its own, spoken to as operators and clients do: signals, its log, and HTTP.

Programs that run to their end.
"""

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
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

DEADLINE_S = 10.0
_COMMAND = (sys.executable, "-W", "error", "-m", "svcnode")


@dataclass(frozen=True, slots=True)
class Response:
    code: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """One connection that is kept open."""

    def __init__(self, sock: socket.socket) -> None:
        self._connection = http.client.HTTPConnection("localhost", timeout=DEADLINE_S)
        self._connection.sock = self.sock = sock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def request(self, path: str) -> Response:
        assert self._connection.sock is self.sock, "the server has closed the connection"
        self._connection.request("GET", path)
        response = self._connection.getresponse()
        return Response(response.status, response.read())


class Agent:
    """Runs for as long as its `with` block; what it says on stderr is in `lines`."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        config: str | None = None,
        environ: Mapping[str, str] | None = None,
        on_terminal: bool = False,
        terminal: str | None = None,
        under_nohup: bool = False,
    ) -> None:
        """`on_terminal` lets it speak to one; `terminal` is the file of the one that it is started from."""
        self.config_file = folder / "svcnode.toml"
        if config is not None:
            self.config_file.write_text(config)
        self.lines: list[str] = []
        self._log_changed = threading.Condition()
        self._closes_after_next = self._log_ended = False
        self._may_read = threading.Event()
        self._may_read.set()
        self._stderr, theirs = pty.openpty() if on_terminal else os.pipe()
        self.process = subprocess.Popen(
            [*_shell_prefix(terminal, under_nohup), *_COMMAND, "serve", *arguments],
            start_new_session=terminal is not None,
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=theirs,
        )
        os.close(theirs)
        self._log_thread = threading.Thread(target=self._read_log, daemon=True)
        self._log_thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._may_read.set()
        self._log_thread.join()

    # ---- what it says

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
        """Wait until so many lines hold the pattern; returns the last of the matches."""

        def found() -> list[re.Match[str]]:
            return [match for line in self.lines if (match := re.search(pattern, line))]

        with self._log_changed:
            self._log_changed.wait_for(lambda: self._log_ended or len(found()) >= times, DEADLINE_S)
            assert len(found()) >= times, f"no {pattern!r} in\n" + "\n".join(self.lines)
            return found()[-1]

    @property
    def messages(self) -> list[str]:
        return [json.loads(line)["message"] for line in self.lines]

    def close_stderr(self) -> None:
        """Hear one more line and close our end of its stderr, as a log collector that dies does."""
        self._closes_after_next = True

    def stop_reading(self) -> None:
        """But for what is read already: a pipe that is full soon, or a terminal that is held with Ctrl-S."""
        self._may_read.clear()
        if os.isatty(self._stderr):
            os.write(self._stderr, b"\x13")
        else:
            fcntl.fcntl(self._stderr, fcntl.F_SETPIPE_SZ, 4096)

    def resume_reading(self) -> None:
        self._may_read.set()

    # ---- telling it

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def reload(self, config: str | None = None) -> None:
        """Tell it to read its configuration again, and wait until it has."""
        self.wait_for_log("answers for")  # until then, the signal would end it
        done = sum("reloaded" in line for line in self.lines)
        if config is not None:
            self.config_file.write_text(config)
        self.signal(signal.SIGHUP)
        self.wait_for_log("reloaded", times=done + 1)

    def wait_for_exit(self) -> int:
        """Wait for its end; returns the exit code."""
        code = self.process.wait(DEADLINE_S)
        self._log_thread.join(DEADLINE_S)
        return code

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait_for_exit()

    # ---- asking it

    @property
    def port(self) -> int:
        """Where it last began to listen."""
        return int(self.wait_for_log(r"listening on https?://.*:(\d+)/").group(1))

    def connect(self, port: int | None = None, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Client:
        sock = socket.create_connection((host, self.port if port is None else port), DEADLINE_S)
        return Client(sock if tls is None else tls.wrap_socket(sock, server_hostname="localhost"))

    def request(self, path: str, port: int | None = None) -> Response:
        """On a connection of its own."""
        with self.connect(port) as client:
            return client.request(path)

    def statuses(self) -> dict[str, str]:
        return {service["id"]: service["status"] for service in self.request("/svc/node/services").json["services"]}

    def health(self) -> int:
        return self.request("/svc/node/health").code

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not is_so():
            assert self.process.poll() is None, "it has ended\n" + "\n".join(self.lines)
            assert time.monotonic() < deadline_s, "it did not come to pass\n" + "\n".join(self.lines)
            time.sleep(0.02)


def _shell_prefix(terminal: str | None, under_nohup: bool) -> list[str]:
    """The head of a session becomes its terminal's by opening it."""
    opened = "" if terminal is None else f"<{terminal}"
    ignoring = "trap '' HUP; " if under_nohup else ""
    return ["/bin/sh", "-c", f'{ignoring}exec "$@" {opened}', "sh"] if opened or ignoring else []


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # so ends a terminal
        return b""


def connect_unix(path: Path) -> Client:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(DEADLINE_S)
    sock.connect(str(path))
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
    """In a folder that is its home, and with nothing of our own environment that could lead it astray."""
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
