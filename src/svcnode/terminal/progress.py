"""A bar for those who wait: on a terminal, when it takes longer than a moment, and gone when it is done."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from rich.progress import Progress

SHOW_AFTER_S = 1.0


class ProgressBar:
    """On stderr, so that what is shown of the work itself can be piped."""

    def __init__(self, what: str, total: int, loop: asyncio.AbstractEventLoop) -> None:
        self._description = what
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
        """Gone at once. Where there was none yet, the terminal's own ^C stands where the next line is to begin."""
        if self._is_terminal and self._progress is None:
            print(file=sys.stderr, flush=True)  # noqa: T201  a new line
        self._hide()

    def _hide(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._progress is not None:
            self._progress.stop()
