"""Signals: SIGTERM and SIGINT stop the agent, a second one immediately; SIGHUP reloads; SIGUSR1 logs the state."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# When a terminal is closed, its shell sends SIGHUP shortly before the terminal becomes unusable.
TERMINAL_CLOSE_GRACE_S = 0.05

log = logging.getLogger("svcnode")


class Signals:
    def __init__(self, *, ignore_hangup: bool, log_state: Callable[[], None]) -> None:
        self.stop_requested = asyncio.Event()
        self.reload_requested = asyncio.Event()
        self.forced_by: signal.Signals | None = None  # the second stop signal, which cancelled the task
        self._log_state = log_state
        self._stop_on_terminal_close = not ignore_hangup and has_terminal()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Install the handlers for the block; the second stop signal cancels the current task.

        Afterwards, each signal has its former handler: one that did not end the process must not end it while it exits.
        """
        loop = asyncio.get_running_loop()
        serve_task = asyncio.current_task()
        assert serve_task is not None, "installed() needs a running task"
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
        former = {number: signal.getsignal(number) for number in numbers}
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop_signal, number, serve_task)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        loop.add_signal_handler(signal.SIGUSR1, self._log_state)
        try:
            yield
        finally:
            for number, handler in former.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    def _on_stop_signal(self, number: signal.Signals, serve_task: asyncio.Task[int]) -> None:
        if self.stop_requested.is_set():
            self.forced_by = number
            serve_task.cancel()
        self.stop_requested.set()

    def _on_hangup(self) -> None:
        """SIGHUP means a reload, or that the terminal was closed: then the terminal cannot be opened any more."""
        if self._stop_on_terminal_close:
            asyncio.get_running_loop().call_later(TERMINAL_CLOSE_GRACE_S, self._reload_or_stop)
        else:
            self.reload_requested.set()

    def _reload_or_stop(self) -> None:
        if has_terminal():
            self.reload_requested.set()
        elif not self.stop_requested.is_set():  # the shell may send SIGHUP again; that is not a second stop signal
            log.info("terminal closed, stopping", extra={"event": "terminal_closed"})
            self.stop_requested.set()


def has_terminal() -> bool:
    """Whether the process has a controlling terminal, which would send SIGHUP when it closes."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY))
    except OSError:
        return False
    return True
