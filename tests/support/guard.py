"""Nothing of a test run outlives it, however it ends: no process, no mounted file system, no temporary folder.

A killed process cannot clean up, and its servers run in sessions of their own. So `guard` splits the process that
calls it into three:

    the first process     waits; passes a SIGINT on; ends as the run did
     └─ the guard         adopts every orphan below it, because it is a "child subreaper"
         └─ the run       all that follows the call: pytest, its workers, servers, their children

When the run ends, or the first process, or the `make` above it, the guard kills all its descendants and removes the
folder; it lets an `apt-get` finish first. If the guard itself is killed, the first process does so. The guard has its
own session and another command line, so that a signal for all processes of pytest does not reach it.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD}
_KILL_TIMEOUT_S = 30.0


def guard(folder: Path) -> None:
    """Returns in the run. The guard removes the folder at the end."""
    if not sys.platform.startswith("linux"):
        return
    first_is_alive, first = os.pipe()  # of which only the first process has the second end
    make = _make_above()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    _adopt_orphans()
    if guard_pid := os.fork():
        code = 1
        try:
            os.close(first_is_alive)
            code = _wait_for(guard_pid, first, folder)
        finally:
            os._exit(code)
    os.close(first)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    _adopt_orphans()
    if run := os.fork():
        try:
            os.setsid()
            os.set_inheritable(first_is_alive, True)
            arguments = map(str, (__file__, first_is_alive, run, make, folder))
            os.execv(sys.executable, [sys.executable, "-I", *arguments])
        finally:
            os._exit(1)
    os.close(first_is_alive)


def _adopt_orphans() -> None:
    """A child of this process that is forked later does not inherit this; a program that it executes does."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _make_above() -> int:
    """The process id of the `make` that runs the tests, or 0. There may be a shell between the two."""
    pid = os.getpid() if "MAKELEVEL" in os.environ else 0
    while pid > 1:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
        if name in {"make", "gmake"}:
            return pid
        pid = int(rest.split()[1])
    return 0


# ---- the first process


def _wait_for(guard_pid: int, first: int, folder: Path) -> int:
    """Returns the exit code of the run. Dies of the signal that ended it."""
    ended_by = 0
    status = None
    while status is None:
        received = signal.sigwaitinfo(_SIGNALS)
        if received.si_signo == signal.SIGCHLD:
            status = _reap().get(guard_pid)
        elif ended_by:
            pass
        elif received.si_signo != signal.SIGINT:
            ended_by = received.si_signo
            os.close(first)
        elif received.si_code <= 0:  # sent by a process; from a terminal the run receives it too
            with suppress(BrokenPipeError):
                os.write(first, b"i")
    if os.WIFSIGNALED(status):
        _end_all(folder)
    if ended_by:
        signal.signal(ended_by, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.kill(os.getpid(), ended_by)
    return _exit_code(status)


def _exit_code(status: int) -> int:
    """As a shell counts."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


# ---- the guard


def _watch(first_is_alive: int, run: int, make: int, folder: Path) -> int:
    """Returns the exit code of the run."""
    _close_all_but(first_is_alive)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    poll = select.poll()
    ends = {first_is_alive}
    with suppress(ProcessLookupError):  # it has ended already
        ends |= {os.pidfd_open(pid) for pid in (run, make) if pid}
    for descriptor in ends:
        poll.register(descriptor, select.POLLIN)
    statuses: dict[int, int] = {}
    signal.signal(signal.SIGCHLD, lambda *_: statuses.update(_reap()))
    while len(ends) > 1 and poll.poll()[0][0] == first_is_alive and os.read(first_is_alive, 1):
        os.kill(run, signal.SIGINT)
    statuses |= _end_all(folder)
    return _exit_code(statuses.get(run, signal.SIGKILL))


def _close_all_but(kept: int) -> None:
    """Who reads the output of the run waits until nothing has it open."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def _reap() -> dict[int, int]:
    """The exit statuses of children that have ended."""
    statuses = {}
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[ended[0]] = ended[1]
    return statuses


def _end_all(folder: Path) -> dict[int, int]:
    """Returns the exit statuses of children."""
    statuses = _reap()
    deadline_s = time.monotonic() + _KILL_TIMEOUT_S
    while (left := _descendants(os.getpid())) and time.monotonic() < deadline_s:
        # A dpkg that is killed leaves packages half installed, and then no run can install any.
        installing = {pid for pid in left if _name(pid) == "apt-get"}
        installing |= {child for pid in installing for child in _descendants(pid)}
        if installing:
            deadline_s = time.monotonic() + _KILL_TIMEOUT_S
        for pid in left - installing:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _unmount(folder)  # a process that writes to a frozen file system cannot be killed
        statuses |= _reap()
        time.sleep(0.01)
    _unmount(folder)
    shutil.rmtree(folder, ignore_errors=True)
    return statuses


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return ""


def _descendants(root: int) -> set[int]:
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text(errors="replace").rpartition(")")[2].split()[1])
    family = {root}
    while found := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= found
    return family - {root}


def _unmount(folder: Path) -> None:
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for path in reversed([path for path in mounted if path.startswith(f"{folder}/")]):
        for command in (["fsfreeze", "--unfreeze", path], ["umount", "--lazy", path]):
            subprocess.run(command, stderr=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
    descriptor, run, make = map(int, sys.argv[1:4])
    sys.exit(_watch(descriptor, run, make, Path(sys.argv[4])))
