"""When the states of services expire.

A heap holds the earliest time at which a state can expire. Reports do not change it: an item whose service has reported
since is queued again when its time comes, so a service costs one heap operation per stale period, not per report.
"""

from __future__ import annotations

import heapq
import math
from itertools import count
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Expiring(Protocol):
    expires_at_s: float
    queued_at_s: float  # its time in the queue, maybe an earlier one; infinite: it is not queued


E = TypeVar("E", bound=Expiring)


class ExpiryQueue(Generic[E]):
    """`is_kept` says whether an entry still counts. Not thread-safe."""

    def __init__(self, is_kept: Callable[[E], bool]) -> None:
        self._is_kept = is_kept
        self._heap: list[tuple[float, int, E]] = []
        self._tiebreaker = count()  # keeps the heap from comparing entries

    @property
    def next_at_s(self) -> float:
        """No entry expires before this time."""
        return self._heap[0][0] if self._heap else math.inf

    def put(self, entry: E) -> None:
        if entry.expires_at_s < math.inf:
            heapq.heappush(self._heap, (entry.expires_at_s, next(self._tiebreaker), entry))
            entry.queued_at_s = entry.expires_at_s

    def take_due(self, now_s: float) -> Iterator[E]:
        """Entries that may have expired; the caller queues those again that have not."""
        while self._heap and self._heap[0][0] <= now_s:
            item = heapq.heappop(self._heap)
            if self._is_current(item):
                item[2].queued_at_s = math.inf
                yield item[2]

    def compact(self, kept: int) -> None:
        """Drop items that are not current, which would otherwise stay until their time comes, up to a week."""
        if len(self._heap) > 2 * kept + 64:
            self._heap = [item for item in self._heap if self._is_current(item)]
            heapq.heapify(self._heap)

    def clear(self) -> None:
        self._heap = []

    def _is_current(self, item: tuple[float, int, E]) -> bool:
        """Whether an item is of an entry that counts, and not replaced by an earlier one."""
        at_s, _, entry = item
        return at_s == entry.queued_at_s and self._is_kept(entry)
