"""One core for the server under measurement, another for the load."""

from __future__ import annotations

import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, LOAD_CORE = CORES[0], CORES[-1]
PRIORITY = -10


def raise_priority() -> None:
    """Let other work on the machine disturb less: here, and in every process that is started from here on."""
    with suppress(PermissionError):  # only root may
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Run on one core inside the block, and so does every process that is started there."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
