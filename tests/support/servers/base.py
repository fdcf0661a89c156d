"""The base class of real servers: start, wait until ready, kill, freeze, clean up."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Generic, Self, TypeVar

import pytest

from tests.support.ports import free_port, is_free

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from tests.support.certificates import Certificate

READY_TIMEOUT_S = 300.0  # a busy machine is many times slower
STARTS = 3  # on other ports each time
# In the words of every server: of most of them, Node.js, gunicorn, gRPC and RabbitMQ.
_PORT_TAKEN = re.compile(
    "address (is )?already in use|eaddrinuse|connection in use|failed to bind|port_already_used", re.IGNORECASE
)


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


class OwnPort:
    """A port of a server, chosen when it is first read. A port that is assigned instead is never replaced."""

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, server: RealServer, _owner: type) -> int:
        if self._name not in server.own_ports:
            server.own_ports[self._name] = free_port()
        return server.own_ports[self._name]


class PortTakenError(AssertionError):
    """A server ended because another program listens on its port."""


def start_on_free_ports(servers: Sequence[RealServer], start: Callable[[], None]) -> None:
    """`start` starts the servers for the first time, and waits until they are ready.

    A port that was taken since it was chosen is replaced. If a server meets a taken port nevertheless, all of them are
    killed and started again on other ports. After any other error they are killed.
    """
    given = {file for server in servers for file in server.folder.iterdir()}
    for server in servers:
        server.own_ports = {name: port for name, port in server.own_ports.items() if is_free(port)}
    for starts_left in reversed(range(STARTS)):
        try:
            return start()
        except BaseException as exc:
            for server in servers:
                server.kill()
            if not (isinstance(exc, PortTakenError) and starts_left):
                raise
        for server in servers:
            server.own_ports.clear()
            _remove(file for file in server.folder.iterdir() if file not in given)  # they may name the old ports
    return None


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        shutil.rmtree(file) if file.is_dir() else file.unlink()


class RealServer(ABC):
    """A server with all its files in `folder`. `with` starts it, waits until it is ready, and kills it.

    Its port is known, and does not change any more, when the `with` block has started. A killed server can be started
    again on the same port and with the same data.
    """

    host = "127.0.0.1"
    port = OwnPort()
    scheme = "http"
    quick_settings: Mapping[str, object] = {}  # it notices sooner that others are gone; without them as by default

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.own_ports: dict[str, int] = {}
        self.log_file = folder / "server.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """A probe URL with valid credentials."""
        return f"{self.scheme}://{self.host}:{self.port}"

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
        """Runs before the first start; again if it is started again on other ports."""

    def set_up(self) -> None:  # noqa: B027  optional
        """Runs once, when the server is ready for the first time."""

    # ---- start and stop

    def __enter__(self) -> Self:
        start_on_free_ports([self], self._start_first)
        return self

    def _start_first(self) -> None:
        self.prepare()
        self.start()
        self.wait_until_ready()
        self.set_up()

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
        while True:
            is_ready = self._is_ready()
            assert self.process is not None, "not started"
            if self.process.poll() is not None:  # also if ready: another server answers at a taken port
                error = PortTakenError if _PORT_TAKEN.search(self._log()) else AssertionError
                raise error(f"exited: {self.log_tail()}")
            if is_ready:
                return
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
        return self._log()[-2000:]

    def _log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

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

    def copy_certificate(self, certificate: Certificate, folder: Path) -> tuple[Path, Path]:
        """The paths of copies of the certificate and its key that only the user of the server can read."""
        copies = folder / "server.pem", folder / "server.key"
        for source, copy in zip((certificate.certificate, certificate.key), copies, strict=True):
            shutil.copyfile(source, copy)
            copy.chmod(0o600)
            self.chown(copy)
        return copies

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


Server = TypeVar("Server", bound=RealServer)


def as_flags(options: Mapping[str, object]) -> list[str]:
    """Of a command line."""
    return [f"--{name}={value}" for name, value in options.items()]


class PythonServer(RealServer):
    """Runs the module of its class as a program."""

    def command(self) -> Sequence[str]:
        return [sys.executable, "-m", type(self).__module__, *self.arguments()]

    @abstractmethod
    def arguments(self) -> Sequence[str]: ...

    def environ(self) -> Mapping[str, str]:
        return {"PYTHONPATH": str(Path(__file__).parents[3])}


class Cluster(Generic[Server]):
    """Tests may kill its `members`; the end of the block kills all that run."""

    def __init__(self, members: Sequence[Server]) -> None:
        self.members = members

    def __enter__(self) -> Self:
        start_on_free_ports(self.members, self.start)
        return self

    def start(self) -> None:
        """Also again after `kill`, with the same data."""
        for member in self.members:
            member.start()
        for member in self.members:
            member.wait_until_ready()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        for member in self.members:
            member.kill()


class PasswordServer(RealServer):
    """A server that requires a password."""

    password: str

    @property
    def url(self) -> str:
        return self.url_with(self.password)

    @property
    def bad_credentials_url(self) -> str:
        return self.url_with("not-the-password")

    @abstractmethod
    def url_with(self, password: str) -> str: ...


def module_server(
    make: Callable[..., AbstractContextManager[Any]], *, of: str = "", tls: bool = False, **options: Any
) -> Any:
    """A fixture of a test module: a running server.

    With `of` it is a replica (or the like) of the server of that fixture; with `tls` it has the tests' certificate.
    """

    @pytest.fixture(scope="module")
    def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Any]:
        others = [request.getfixturevalue(of)] if of else []
        certificate = {"certificate": request.getfixturevalue("certificate")} if tls else {}
        with make(tmp_path_factory.mktemp(make.__name__), *others, **certificate, **options) as started:
            yield started

    return server
