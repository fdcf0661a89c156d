"""The agent as process 1 of a container: a parent that forwards signals, reaps processes, and ends with the agent.

The kernel does not deliver to process 1 any signal whose action is the default one. A SIGTERM during the start, or the
SIGPROF by which a hanging node ends itself, would do nothing. And process 1 inherits orphans, such as the children of a
program of an exec: probe: unless it waits for them, they stay as zombies. So the agent runs in a child. An init program
in the image would not do: Kubernetes replaces the entry point by the command of the manifest.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import NoReturn

_FORWARDED = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
# Set by those that start process 1, podman for example, and addressed to it.
_PROCESS_VARIABLES = ("LISTEN_PID", "WATCHDOG_PID")


def continue_in_child() -> None:
    """Returns in a child; the parent, process 1, waits for it and exits. To be called before threads start."""
    waited_for = {*_FORWARDED, signal.SIGCHLD}
    former = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)  # a signal that comes now waits for the parent
    child = os.fork()
    if child:
        _forward_and_reap(child, waited_for)
    os.setsid()  # a Ctrl-C at the terminal of the container is for the parent, which forwards it: it counts once
    signal.pthread_sigmask(signal.SIG_SETMASK, former)
    for name in _PROCESS_VARIABLES:
        if os.environ.get(name) == "1":
            os.environ[name] = str(os.getpid())


def _forward_and_reap(child: int, waited_for: set[signal.Signals]) -> NoReturn:
    while True:
        number = signal.sigwait(waited_for)
        if number == signal.SIGCHLD:
            _reap(child)
        else:
            os.kill(child, number)  # it exists at least as a zombie until it is reaped, which ends this process


def _reap(child: int) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            process, status = ended
            if process == child:
                code = os.waitstatus_to_exitcode(status)
                os._exit(code if code >= 0 else 128 - code)
