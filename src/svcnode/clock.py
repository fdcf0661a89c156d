"""The monotonic clock that evidence is dated with. It also counts the time that the machine sleeps.

`time.monotonic` stops during sleep on Linux and macOS: after a laptop wakes up, a success from the night before would
count as fresh.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def _select_clock() -> Callable[[], float]:
    if hasattr(time, "CLOCK_BOOTTIME"):
        return partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_MONOTONIC"):  # on macOS, time.monotonic reads another clock
        return partial(time.clock_gettime, time.CLOCK_MONOTONIC)
    return time.monotonic


monotonic_s = _select_clock()
