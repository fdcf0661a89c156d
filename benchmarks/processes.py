"""Starts each server on a core, waits until it responds, and stops it.

Each measurement uses a new process, alone on its core, so that the memory layout of one process does not affect all
rounds.
"""

from __future__ import annotations

import http.client
import os
import re
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.support.ports import free_port

from benchmarks.cores import SERVER_CORE, on_core
from benchmarks.payloads import HEALTH
from benchmarks.provision import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    # (port, folder for its files) -> the command line of a server
    Command = Callable[[int, Path], list[str | Path]]

START_TIMEOUT_S = 20.0
STOP_TIMEOUT_S = 10.0
POLL_INTERVAL_S = 0.0005

_ENVIRONMENT = {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}


@dataclass(frozen=True, slots=True)
class Server:
    """A running server that responds."""

    pid: int
    port: int

    def get(self, path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_TIMEOUT_S)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    @property
    def cpu_s(self) -> float:
        """User and system time of all threads, finer than the 10 ms of /proc/PID/stat."""
        return time.clock_gettime(~self.pid << 3 | 2)  # the clock id of clock_getcpuclockid(3)

    @property
    def tree_cpu_s(self) -> float:
        """Of this process and its children, such as the worker of nginx."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return self.cpu_s + sum(Server(int(child), self.port).cpu_s for child in children)

    @property
    def wake_ups(self) -> int:
        """How often a thread has waited for something so far, and was woken up."""
        statuses = [file.read_text() for file in Path(f"/proc/{self.pid}/task").glob("*/status")]
        return sum(int(re.findall(r"^voluntary_ctxt_switches:\s+(\d+)$", text, re.MULTILINE)[0]) for text in statuses)

    @property
    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024


@contextmanager
def running(command: Command, *, path: str = HEALTH, core: int = SERVER_CORE) -> Iterator[Server]:
    """Runs the server, from its first response at `path` to the end of the block."""
    with TemporaryDirectory(prefix="svcnode-bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # nginx's worker runs as another user
        port = free_port()
        process = start(command(port, folder), folder / "errors", core)
        try:
            server = Server(process.pid, port)
            _wait_for_response(process, server, path, folder / "errors")
            yield server
        finally:
            stop(process)


def run_figure(python: Path, script: str, figure: str, argument: int) -> float:
    """The number that a script of this package prints, in a process of its own."""
    with on_core(SERVER_CORE):
        command = [str(python), "-m", script, figure, str(argument)]
        done = subprocess.run(command, cwd=ROOT, env=_ENVIRONMENT, capture_output=True, text=True, check=True)
    return float(done.stdout)


def start(command: list[str | Path], errors: Path, core: int = SERVER_CORE) -> subprocess.Popen[bytes]:
    """Start a process on a core, with its output in a file."""
    with on_core(core), errors.open("wb") as file:
        environ = {**_ENVIRONMENT, "HOME": str(errors.parent)}  # svcnode writes its history there
        return subprocess.Popen(command, cwd=errors.parent, env=environ, stdout=file, stderr=file)


def _wait_for_response(process: subprocess.Popen[bytes], server: Server, path: str, errors: Path) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline_s and process.poll() is None:
        try:
            status, _ = server.get(path)
        except OSError:
            time.sleep(POLL_INTERVAL_S)
            continue
        if status in (200, 206):
            return
    raise RuntimeError(f"no response from {process.args!r}:\n{errors.read_text(errors='replace')}")


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
