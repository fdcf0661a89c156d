"""What has been heard and is not written yet, and what is not told yet.

Any thread may come at any time, and none is kept waiting. There is an end to what is held: while the file cannot be
written, the oldest goes when there is too much. Without a file, the same holds all there is.
"""

from __future__ import annotations

import threading
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from svcnode.history.records import Bucket, ClosedMinute, Transition

if TYPE_CHECKING:
    from collections.abc import Iterator

# Ten thousand services that go down at once, and come back; about 10 MB at worst.
MAX_TRANSITIONS = 20_000
# Ninety minutes of a thousand services; about 30 MB at worst.
MAX_BUCKETS = 90_000
TRANSITIONS_PER_BATCH = 2000
BUCKETS_PER_BATCH = 2000


class Batch(NamedTuple):
    """What is written in one transaction."""

    transitions: list[Transition]
    minutes: list[ClosedMinute]
    pruned_to: int
    saved_state: str | None = None  # the newest, where it is not written yet

    @property
    def last_id(self) -> int:
        return self.transitions[-1].id if self.transitions else 0


class Backlog:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Held while something goes over into the file, so that a reader sees it here or there, and not in both.
        self.handover_lock = threading.Lock()
        self._last_sequence = 0
        self.pruned_to = 0  # the newest transition that had to go
        self._transitions: deque[Transition] = deque()
        self._unpublished: deque[Transition] = deque()
        self._minutes: deque[ClosedMinute] = deque()
        self._bucket_count = 0
        self._saved_state: str | None = None
        self._is_saved_state_written = True

    # ---- what comes in

    def add(self, draft: Transition) -> Transition:
        """Take it down; its id becomes greater than all before, whatever the clock says."""
        with self._lock:
            transition = draft._replace(id=self._next_sequence(draft.id))
            self._transitions.append(transition)
            self._unpublished.append(transition)
            if len(self._transitions) > MAX_TRANSITIONS:
                self.pruned_to = self._transitions.popleft().id
        return transition

    def add_minute(self, begin_s: int, bars: dict[str, Bucket]) -> None:
        """In parts, so that none takes long to write: transitions wait meanwhile."""
        each = iter(bars.items())
        with self._lock:
            while some := dict(islice(each, BUCKETS_PER_BATCH)):
                self._minutes.append(ClosedMinute(self._next_sequence(), begin_s, some))
            self._bucket_count += len(bars)
            while self._bucket_count > MAX_BUCKETS and len(self._minutes) > 1:
                self._bucket_count -= len(self._minutes.popleft().buckets)

    def set_saved_state(self, text: str) -> None:
        """In the place of the one before."""
        with self._lock:
            if text != self._saved_state:
                self._saved_state, self._is_saved_state_written = text, False

    def continue_after(self, number: int) -> None:
        """Number all that is here, and all that comes, above this."""
        with self._lock:
            oldest = min((items[0][0] for items in (self._transitions, self._minutes) if items), default=number + 1)
            self._last_sequence = max(self._last_sequence, number)
            if oldest <= number:  # they came before it was known how far the numbers were
                self._transitions = deque(one._replace(id=self._next_sequence()) for one in self._transitions)
                self._minutes = deque(one._replace(sequence=self._next_sequence()) for one in self._minutes)
                newest = list(self._transitions)[-len(self._unpublished) :] if self._unpublished else []
                self._unpublished = deque(newest)

    def _next_sequence(self, wanted: int = 0) -> int:
        self._last_sequence = max(self._last_sequence + 1, wanted)
        return self._last_sequence

    # ---- telling

    def take_unpublished(self, up_to_id: int, limit: int) -> list[Transition]:
        """The oldest that are not told yet, which they are from now on."""
        with self._lock:
            return list(self._pop_unpublished(up_to_id, limit))

    def is_unpublished(self, transition_id: int) -> bool:
        """Whether this one, or one before it, is not told yet."""
        with self._lock:
            return bool(self._unpublished) and self._unpublished[0].id <= transition_id

    def _pop_unpublished(self, up_to_id: int, limit: int) -> Iterator[Transition]:
        while limit and self._unpublished and self._unpublished[0].id <= up_to_id:
            limit -= 1
            yield self._unpublished.popleft()

    # ---- writing

    @property
    def last_id(self) -> int:
        """At least that of the newest transition."""
        return self._last_sequence

    def next_batch(self) -> Batch | None:
        """Some of the oldest, and a minute at a time."""
        with self._lock:
            if not self._transitions and not self._minutes and self._is_saved_state_written:
                return None
            some = min(len(self._transitions), TRANSITIONS_PER_BATCH)
            return Batch(
                [self._transitions[place] for place in range(some)],
                [self._minutes[0]] if self._minutes else [],
                self.pruned_to,
                None if self._is_saved_state_written else self._saved_state,
            )

    def mark_written(self, batch: Batch) -> None:
        """It is written."""
        with self._lock:
            while self._transitions and self._transitions[0].id <= batch.last_id:
                self._transitions.popleft()
            for minute in batch.minutes:
                if self._minutes and self._minutes[0] is minute:
                    self._bucket_count -= len(self._minutes.popleft().buckets)
            self._is_saved_state_written = self._is_saved_state_written or self._saved_state == batch.saved_state

    def mark_file_lost(self, now_us: int) -> None:
        """The file is lost: nothing is left but what is here."""
        with self._lock:
            kept_after = self._transitions[0].id - 1 if self._transitions else self._next_sequence(now_us)
            self.pruned_to = max(self.pruned_to, kept_after)
            self._is_saved_state_written = self._saved_state is None

    def __len__(self) -> int:
        return len(self._transitions) + len(self._minutes) + (not self._is_saved_state_written)

    # ---- reading

    def transitions(self) -> list[Transition]:
        with self._lock:
            return list(self._transitions)

    def minutes(self) -> list[ClosedMinute]:
        with self._lock:
            return list(self._minutes)
