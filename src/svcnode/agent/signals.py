"""What the process is told from outside: to stop, to stop at once, or to read its configuration anew."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# A shell that dies sends its terminal's last signal a moment before the terminal is taken from all who had it.
TERMINAL_CLOSE_GRACE_S = 0.05

log = logging.getLogger("svcnode")


class Signals:
    def __init__(self, *, ignore_hangup: bool) -> None:
        self.stop_requested = asyncio.Event()
        self.reload_requested = asyncio.Event()
        self.forced_by: signal.Signals | None = None  # the second to say stop, which has cancelled the serving
        self._stop_on_terminal_close = not ignore_hangup and has_terminal()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """For as long as the block runs, by the task that runs it."""
        loop = asyncio.get_running_loop()
        serving = asyncio.current_task()
        assert serving is not None, "signals are heeded by the task that serves"
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal, number, serving)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)

    def _on_stop_signal(self, number: signal.Signals, serving: asyncio.Task[int]) -> None:
        if self.stop_requested.is_set():
            self.forced_by = number
            serving.cancel()
        self.stop_requested.set()

    def _on_hangup(self) -> None:
        """Somebody wants a reload, or the terminal was closed: which of them, only the terminal can tell."""
        if self._stop_on_terminal_close:
            asyncio.get_running_loop().call_later(TERMINAL_CLOSE_GRACE_S, self._reload_or_stop)
        else:
            self.reload_requested.set()

    def _reload_or_stop(self) -> None:
        if has_terminal():
            self.reload_requested.set()
        elif not self.stop_requested.is_set():  # the shell may send another: nobody is in a hurry
            log.info("the terminal was closed")
            self.stop_requested.set()


def has_terminal() -> bool:
    """Whether there is a terminal whose end would be told to this process, wherever its streams go."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY))
    except OSError:
        return False
    return True
