"""How late the event loop is. Whatever holds it holds up health, too."""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.web.operator.desk import Vitals

PERIOD_S = 0.1
# The worst is remembered until the next window ends, so who asks once a minute misses nothing.
WINDOW_S = 60.0


async def measure_lag(vitals: Vitals, clock: Callable[[], float] = monotonic) -> None:
    """Sleep for a moment, see by how much it became longer, and so on, until cancelled."""
    worst_before_s = worst_s = 0.0
    window_ends_at_s = clock() + WINDOW_S
    while True:
        due_at_s = clock() + PERIOD_S
        await asyncio.sleep(PERIOD_S)
        now_s = clock()
        worst_s = max(worst_s, now_s - due_at_s)
        vitals.loop_lag_s = max(worst_before_s, worst_s)
        if now_s >= window_ends_at_s:
            worst_before_s, worst_s = worst_s, 0.0
            window_ends_at_s = now_s + WINDOW_S
