"""The clock by which evidence is dated. It never goes back, and it goes on while the machine is asleep.

`time.monotonic` stands still meanwhile on Linux and on macOS: whoever opens a laptop would be told that a success of
last night is fresh.
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
    if hasattr(time, "CLOCK_MONOTONIC"):  # as the system means it; on macOS that is not what time.monotonic reads
        return partial(time.clock_gettime, time.CLOCK_MONOTONIC)
    return time.monotonic


monotonic_s = _select_clock()
