"""Runs a command of svcnode in this process: what it prints, and its exit code."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import subprocess
from typing import TYPE_CHECKING
from unittest import mock

from svcnode.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any, TextIO


@contextlib.contextmanager
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def svcnode(
    *arguments: str,
    folder: Path | None = None,
    stdin: str = "",
    stdout: TextIO | None = None,
    encoding: str = "utf-8",
    **environ: Any,
) -> subprocess.CompletedProcess[str]:
    """With the folder as HOME and working directory, and without the environment of the tests.

    For what needs a process of its own (signals, a closed pipe, a terminal, imports), there is `processes.run_command`.
    """
    streams = [io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict") for _ in range(2)]
    home = {} if folder is None else {"HOME": str(folder)}
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(os.environ, {"PATH": os.environ["PATH"], **home, **environ}, clear=True))
        stack.enter_context(mock.patch("sys.stdin", io.StringIO(stdin)))
        stack.enter_context(contextlib.redirect_stdout(streams[0] if stdout is None else stdout))
        stack.enter_context(contextlib.redirect_stderr(streams[1]))
        if folder is not None:
            stack.enter_context(contextlib.chdir(folder))
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):  # serve changes them, and children inherit that
            stack.callback(signal.signal, number, signal.getsignal(number))
        stack.enter_context(restored_logging())
        if "serve" in arguments:  # it watches until the process ends, and would end this one
            stack.enter_context(mock.patch("svcnode.agent.agent.Watchdog.start"))
        try:
            code = main(arguments)
        except SystemExit as ended:  # of argparse
            code = int(ended.code or 0)
    out, err = (stream.buffer.getvalue().decode(encoding) for stream in streams)
    return subprocess.CompletedProcess(arguments, code, out, err)
