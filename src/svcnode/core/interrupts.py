"""A Ctrl-C, told from what somebody's code raised."""

from __future__ import annotations

import threading


def is_ctrl_c(exc: BaseException) -> bool:
    """That of a person reaches the main thread only; anywhere else somebody's code has raised it."""
    return isinstance(exc, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
