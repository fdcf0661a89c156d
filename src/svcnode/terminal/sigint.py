"""Ctrl-C, for those who have something to say before they end."""

from __future__ import annotations

import asyncio
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def handle_sigint(on_interrupt: Callable[[], object]) -> Iterator[asyncio.Future[None]]:
    """Done with the first Ctrl-C, once `on_interrupt` has cleaned up the terminal.

    From then on nothing of ours heeds another: the system ends the process at once, whatever it is busy with.
    """
    loop = asyncio.get_running_loop()
    interrupted: asyncio.Future[None] = loop.create_future()

    def heed() -> None:
        with suppress(OSError):  # a terminal that is gone needs no cleaning
            on_interrupt()
        loop.remove_signal_handler(signal.SIGINT)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        interrupted.set_result(None)

    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as it is in the background of a shell
        loop.add_signal_handler(signal.SIGINT, heed)
    try:
        yield interrupted
    finally:
        if not interrupted.done():
            loop.remove_signal_handler(signal.SIGINT)
