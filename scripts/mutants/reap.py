"""Runs a command, then ends all processes that it left behind: a program with a mutant may be unable to stop.

    python reap.py SECONDS COMMAND…

Exits as the command does, or with 124 if it does not end in time.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER: processes that lose their parent become children of this one
HUNG = 124


def reap(limit_s: float, command: Sequence[str]) -> int:
    ctypes.CDLL(None).prctl(SUBREAPER, 1)
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        code = HUNG
    while left := children_of(os.getpid()):
        for child in left:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(child, 0)
    return code


def children_of(process: int) -> list[int]:
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if int(file.read_text().rpartition(")")[2].split()[1]) == process:
                found.append(int(file.parent.name))
    return found


if __name__ == "__main__":
    sys.exit(reap(float(sys.argv[1]), sys.argv[2:]))
