"""`svcnode serve` in a process of its own, spoken to as operators and clients do: signals, its log, and HTTP."""

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
    from collections.abc import Callable, Mapping
    from pathlib import Path

DEADLINE_S = 10.0
_COMMAND = (sys.executable, "-W", "error", "-m", "svcnode")


@dataclass(frozen=True, slots=True)
class Answer:
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

    def ask(self, path: str) -> Answer:
        assert self._connection.sock is self.sock, "the server has closed the connection"
        self._connection.request("GET", path)
        response = self._connection.getresponse()
        return Answer(response.status, response.read())


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
        self._heard = threading.Condition()
        self._is_deaf = self._has_ended = False
        self._may_read = threading.Event()
        self._may_read.set()
        self._ours, theirs = pty.openpty() if on_terminal else os.pipe()
        self.process = subprocess.Popen(
            [*_started_from(terminal, under_nohup), *_COMMAND, "serve", *arguments],
            start_new_session=terminal is not None,
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=theirs,
        )
        os.close(theirs)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._may_read.set()
        self._listener.join()

    # ---- what it says

    def _listen(self) -> None:
        unfinished = b""
        while not self._is_deaf and self._may_read.wait() and (data := _read(self._ours)):
            *lines, unfinished = (unfinished + data).split(b"\n")
            with self._heard:
                self.lines += [line.decode().rstrip("\r") for line in lines]
                self._heard.notify_all()
        os.close(self._ours)
        with self._heard:
            self._has_ended = True
            self._heard.notify_all()

    def hears(self, pattern: str, *, times: int = 1) -> re.Match[str]:
        """Wait until so many lines hold the pattern; returns the last of the matches."""

        def found() -> list[re.Match[str]]:
            return [match for line in self.lines if (match := re.search(pattern, line))]

        with self._heard:
            self._heard.wait_for(lambda: self._has_ended or len(found()) >= times, DEADLINE_S)
            assert len(found()) >= times, f"no {pattern!r} in\n" + "\n".join(self.lines)
            return found()[-1]

    @property
    def messages(self) -> list[str]:
        return [json.loads(line)["message"] for line in self.lines]

    def deafen(self) -> None:
        """Hear one more line and close our end of its stderr, as a log collector that dies does."""
        self._is_deaf = True

    def stop_reading(self) -> None:
        """But for what is read already: a pipe that is full soon, or a terminal that is held with Ctrl-S."""
        self._may_read.clear()
        if os.isatty(self._ours):
            os.write(self._ours, b"\x13")
        else:
            fcntl.fcntl(self._ours, fcntl.F_SETPIPE_SZ, 4096)

    def read_on(self) -> None:
        self._may_read.set()

    # ---- telling it

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def reload(self, config: str | None = None) -> None:
        """Tell it to read its configuration again, and wait until it has."""
        self.hears("answers for")  # until then, the signal would end it
        done = sum("reloaded" in line for line in self.lines)
        if config is not None:
            self.config_file.write_text(config)
        self.signal(signal.SIGHUP)
        self.hears("reloaded", times=done + 1)

    def ends(self) -> int:
        """Wait for its end; returns the exit code."""
        code = self.process.wait(DEADLINE_S)
        self._listener.join(DEADLINE_S)
        return code

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.ends()

    # ---- asking it

    @property
    def port(self) -> int:
        """Where it last began to listen."""
        return int(self.hears(r"listening on https?://.*:(\d+)/").group(1))

    def connect(self, port: int | None = None, *, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> Client:
        sock = socket.create_connection((host, self.port if port is None else port), DEADLINE_S)
        return Client(sock if tls is None else tls.wrap_socket(sock, server_hostname="localhost"))

    def ask(self, path: str, port: int | None = None) -> Answer:
        """On a connection of its own."""
        with self.connect(port) as client:
            return client.ask(path)

    def statuses(self) -> dict[str, str]:
        return {service["id"]: service["status"] for service in self.ask("/svc/node/services").json["services"]}

    def health(self) -> int:
        return self.ask("/svc/node/health").code

    def eventually(self, is_so: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not is_so():
            assert self.process.poll() is None, "it has ended\n" + "\n".join(self.lines)
            assert time.monotonic() < deadline_s, "it did not come to pass\n" + "\n".join(self.lines)
            time.sleep(0.02)


def _started_from(terminal: str | None, under_nohup: bool) -> list[str]:
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


def is_listened_on(port: int) -> bool:
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
