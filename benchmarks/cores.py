"""One core for the measured server, one for the load generator, and the load of other processes on both."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

CORES = sorted(os.sched_getaffinity(0))
SERVER_CORE, LOAD_CORE = CORES[0], CORES[-1]
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def pin_to_load_core() -> None:
    """Run this process, and those it starts, on the load generator's core."""
    os.sched_setaffinity(0, {LOAD_CORE})


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Processes started in the block run on that core."""
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, {LOAD_CORE})


class BackgroundLoad:
    """The share of the two cores used by processes other than this one and its finished children."""

    def __init__(self) -> None:
        self._started_at_s = time.monotonic()
        self._foreign_before_s = _foreign_s()

    def share(self) -> float:
        available_s = 2 * (time.monotonic() - self._started_at_s)
        return max(0.0, _foreign_s() - self._foreign_before_s) / available_s


def _foreign_s() -> float:
    ours = os.times()
    return _busy_s() - (ours.user + ours.system + ours.children_user + ours.children_system)


def _busy_s() -> float:
    """Busy time of the two cores, including time stolen by the hypervisor."""
    busy_ticks = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name in (f"cpu{SERVER_CORE}", f"cpu{LOAD_CORE}"):
            user, nice, system, _idle, _iowait, _irq, _softirq, steal, *_ = map(int, ticks)
            busy_ticks += user + nice + system + steal
    return busy_ticks / TICKS_PER_S
