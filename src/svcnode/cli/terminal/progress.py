"""A progress bar and the handling of Ctrl-C, for commands that take longer than a moment."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Progress

SHOW_AFTER_S = 1.0


class ProgressBar:
    """On stderr, so that stdout can be piped. Shown only on a terminal, after one second, and removed at the end."""

    def __init__(self, description: str, total: int, loop: asyncio.AbstractEventLoop) -> None:
        self._description = description
        self._total = total
        self._done = 0
        self._progress: Progress | None = None
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._timer = loop.call_later(SHOW_AFTER_S, self._show) if self._is_terminal else None

    def advance(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=self._done)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._progress.add_task(self._description, total=self._total, completed=self._done)
        self._progress.start()

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._hide()

    def interrupt(self) -> None:
        """Remove the bar. Without a bar, end the line in which the terminal shows ^C."""
        if self._is_terminal and self._progress is None:
            print(file=sys.stderr, flush=True)  # noqa: T201  a line feed
        self._hide()

    def _hide(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._progress is not None:
            self._progress.stop()


@contextmanager
def handle_sigint(on_interrupt: Callable[[], object]) -> Iterator[asyncio.Future[None]]:
    """A future that the first Ctrl-C completes, after `on_interrupt` has cleaned up the terminal.

    The second Ctrl-C has its default effect: it ends the process at once.
    """
    loop = asyncio.get_running_loop()
    interrupted: asyncio.Future[None] = loop.create_future()

    def on_sigint() -> None:
        with suppress(OSError):  # the terminal may be closed
            on_interrupt()
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        interrupted.set_result(None)

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a shell ignores it for background jobs
        loop.add_signal_handler(signal.SIGINT, on_sigint)
    try:
        yield interrupted
    finally:
        if not interrupted.done():
            loop.remove_signal_handler(signal.SIGINT)
