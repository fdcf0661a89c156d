"""The base class of real servers: start, wait until ready, kill, freeze, clean up."""

from __future__ import annotations

import os
import pwd
import secrets
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, ClassVar, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

READY_TIMEOUT_S = 60.0
# Below the range of the kernel for outgoing connections, so that none of them takes the port of a killed server. Each
# test worker has its own ports, because a port stays free until its server has started.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_WORKER_COUNT = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
_PORTS = range(10_000, 32_000)[_WORKER::_WORKER_COUNT]


def free_port() -> int:
    while True:
        port = secrets.choice(_PORTS)  # hypothesis seeds `random`, which would repeat ports
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return port


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = READY_TIMEOUT_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"{what}: not within {timeout_s:g} s"
        time.sleep(0.02)


class ToolError(OSError):
    """A program failed; the text is its output."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    pid: int
    parent: int
    group: int
    is_zombie: bool

    @property
    def title(self) -> str:
        with suppress(OSError):
            return Path(f"/proc/{self.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return ""


def list_processes() -> list[ProcessInfo]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            # The name before the last bracket may contain any character.
            state, parent, group = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:3]
            # A process whose first thread has ended still has its ports until its other threads have ended.
            is_zombie = state in "ZX" and len([*(folder / "task").iterdir()]) <= 1
            found.append(ProcessInfo(int(folder.name), int(parent), int(group), is_zombie))
    return found


def descendants(pid: int) -> list[ProcessInfo]:
    everything = list_processes()
    family = {pid}
    while found := {each.pid for each in everything if each.parent in family} - family:
        family |= found
    return [each for each in everything if each.pid in family - {pid}]


def is_stopped(pid: int) -> bool:
    """Whether all its threads are stopped."""
    for task in Path(f"/proc/{pid}/task").glob("*"):
        with suppress(OSError):  # the thread has ended
            if (task / "stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "TtZX":
                return False
    return True


class RealServer(ABC):
    """A server with all its files in `folder`. `with` starts it, waits until it is ready, and kills it.

    A killed server can be started again on the same port and with the same data.
    """

    host = "127.0.0.1"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self.log_file = folder / "server.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """A probe URL with valid credentials."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The command that runs it in the foreground."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Asks the server without a probe. May raise OSError if it is not ready."""

    def environ(self) -> Mapping[str, str]:
        return {}

    def user(self) -> str | None:
        """The user that runs it if the tests run as root, for servers that refuse to run as root."""
        return None

    def prepare(self) -> None:  # noqa: B027  optional
        """Runs once, before the first start."""

    def set_up(self) -> None:  # noqa: B027  optional
        """Runs once, when the server is ready for the first time."""

    # ---- start and stop

    def __enter__(self) -> Self:
        self.prepare()
        try:
            self.start()
            self.wait_until_ready()
            self.set_up()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Returns at once; `wait_until_ready` waits."""
        assert self.process is None, "already running"
        with self.log_file.open("ab") as log:
            self.process = self._launch(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _launch(
        self, command: Sequence[str], *, stdin: int, stdout: int | IO[bytes], stderr: int | IO[bytes]
    ) -> subprocess.Popen[bytes]:
        user = self.user() if os.geteuid() == 0 else None
        if user is not None:
            _make_traversable(self.folder)  # another pytest that starts removes the permission from a common parent
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "LC_ALL": "C.UTF-8", **self.environ()},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,  # its own process group, so that signals reach its children too
            user=user,
            group=None if user is None else pwd.getpwnam(user).pw_gid,
            extra_groups=None if user is None else [],
        )

    def wait_until_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not self._is_ready():
            assert self.process is not None, "not started"
            assert self.process.poll() is None, f"exited: {self.log_tail()}"
            assert time.monotonic() < deadline_s, f"not ready within {timeout_s:g} s: {self.log_tail()}"
            time.sleep(0.05)

    def _is_ready(self) -> bool:
        with suppress(OSError):
            return self.is_ready()
        return False

    def kill(self) -> None:
        """Kill all its processes; does nothing if it does not run."""
        if self.process is not None:
            groups = self._signal(signal.SIGKILL)
            self.process.wait()
            self.process = None
            wait_until(
                lambda: not any(each.group in groups and not each.is_zombie for each in list_processes()), "gone"
            )

    def freeze(self) -> None:
        groups = self._signal(signal.SIGSTOP)
        wait_until(lambda: all(is_stopped(each.pid) for each in list_processes() if each.group in groups), "frozen")

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        self.kill()
        self.start()
        self.wait_until_ready()

    def _signal(self, number: int) -> list[int]:
        assert self.process is not None, "not running"
        if number != signal.SIGCONT:
            self.process.send_signal(signal.SIGSTOP)  # so that it does not fork while its children are listed
        groups = self.groups()
        for group in groups:
            with suppress(ProcessLookupError):
                os.killpg(group, number)
        return groups

    def groups(self) -> list[int]:
        """Its process group, and those of children in other sessions."""
        assert self.process is not None
        pid = self.process.pid
        return [pid, *sorted({each.group for each in descendants(pid)} - {pid})]

    def log_tail(self) -> str:
        return self.log_file.read_text(errors="replace")[-2000:] if self.log_file.exists() else ""

    # ---- helpers

    def run(self, *command: str, text: str = "", timeout_s: float = READY_TIMEOUT_S) -> str:
        """The output of one of its tools, run as the user of the server."""
        with self._launch(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tool:
            try:
                output, errors = tool.communicate(text.encode(), timeout_s)
            except BaseException:
                tool.kill()
                raise
        if tool.returncode != 0:
            raise ToolError(f"{command[0]}: {(errors or output).decode(errors='replace').strip()}")
        return output.decode().strip()

    def chown(self, *paths: Path) -> None:
        """Give files to the user of the server."""
        user = self.user()
        if user is None or os.geteuid() != 0:
            return
        entry = pwd.getpwnam(user)
        for path in paths:
            os.chown(path, entry.pw_uid, entry.pw_gid)
            _make_traversable(path)


def _make_traversable(path: Path) -> None:
    """Other users cannot enter the folders that pytest makes."""
    for parent in [*path.parents][:-1]:
        if parent.stat().st_uid == os.geteuid() and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)


class PasswordServer(RealServer):
    """A server that requires a password."""

    password: ClassVar[str]

    @property
    def url(self) -> str:
        return self.url_with(self.password)

    @property
    def bad_credentials_url(self) -> str:
        return self.url_with("not-the-password")

    @abstractmethod
    def url_with(self, password: str) -> str: ...
