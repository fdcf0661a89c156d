"""The backlog: transitions and minutes that are not written yet, and transitions that are not published yet.

It is thread-safe and no call blocks for long. It is bounded: while the file cannot be written, the oldest records are
dropped. Without a file, the backlog is the whole history.
"""

from __future__ import annotations

import threading
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from svcnode.history.records import NO_LATENCIES, Bucket, ClosedMinute, Transition

if TYPE_CHECKING:
    from collections.abc import Mapping

    from svcnode.history.latencies import Histogram
    from svcnode.history.records import Stretch

# 10,000 services that go down at the same time and recover; at most about 10 MB.
MAX_TRANSITIONS = 20_000
# 90 minutes of 1,000 services; at most about 30 MB.
MAX_BUCKETS = 90_000
TRANSITIONS_PER_BATCH = 2000
BUCKETS_PER_BATCH = 2000
SERVICES_WITH_LATENCIES_PER_BATCH = 250  # each has some forty rows, once an hour


class Batch(NamedTuple):
    """The records of one transaction."""

    transitions: list[Transition]
    minutes: list[ClosedMinute]
    pruned_to: int
    saved_state: str | None = None  # None if the newest state is already written

    @property
    def last_id(self) -> int:
        return self.transitions[-1].id if self.transitions else 0


class Backlog:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.wake_writer = threading.Event()  # set if there is something to write
        # Held while a batch moves into the file, so that a reader finds each record in one of them, not in both.
        self.handover_lock = threading.Lock()
        self._last_sequence = 0
        self.pruned_to = 0  # the newest transition that was dropped
        self._transitions: deque[Transition] = deque()
        self._unpublished: deque[Transition] = deque()
        self._minutes: deque[ClosedMinute] = deque()
        self._bucket_count = 0
        self._saved_state: str | None = None
        self._is_saved_state_written = True

    # ---- adding

    def add(self, draft: Transition) -> Transition:
        """Add a transition; its id becomes greater than all previous ids, also if the clock was set back."""
        with self._lock:
            transition = draft._replace(id=self._next_sequence(draft.id))
            self._transitions.append(transition)
            self._unpublished.append(transition)
            if len(self._transitions) > MAX_TRANSITIONS:
                self.pruned_to = self._transitions.popleft().id
        self.wake_writer.set()
        return transition

    def add_minute(
        self,
        begin_s: int,
        buckets: dict[str, Bucket],
        observed: Stretch | None = None,
        latencies: Mapping[str, Histogram] = NO_LATENCIES,
    ) -> None:
        """Add a minute in parts, so that no transaction takes long: transitions wait for it."""
        remaining, size = iter(buckets.items()), SERVICES_WITH_LATENCIES_PER_BATCH if latencies else BUCKETS_PER_BATCH
        part = dict(islice(remaining, size))
        with self._lock:
            while True:
                counted = {one: latencies[one] for one in part if one in latencies}
                self._minutes.append(ClosedMinute(self._next_sequence(), begin_s, part, observed, counted))
                part = dict(islice(remaining, size))
                if not part:
                    break
            self._bucket_count += len(buckets)
            while self._bucket_count > MAX_BUCKETS and len(self._minutes) > 1:
                self._bucket_count -= len(self._minutes.popleft().buckets)
        self.wake_writer.set()

    def set_saved_state(self, text: str) -> None:
        """Replace the state to save."""
        with self._lock:
            if text != self._saved_state:
                self._saved_state, self._is_saved_state_written = text, False
        self.wake_writer.set()

    def continue_after(self, sequence: int) -> None:
        """Number all present and future records above this sequence number."""
        with self._lock:
            oldest = min((items[0][0] for items in (self._transitions, self._minutes) if items), default=sequence + 1)
            self._last_sequence = max(self._last_sequence, sequence)
            if oldest <= sequence:  # they were added before the file was open
                self._transitions = deque(
                    transition._replace(id=self._next_sequence()) for transition in self._transitions
                )
                self._minutes = deque(minute._replace(sequence=self._next_sequence()) for minute in self._minutes)
                newest = list(self._transitions)[-len(self._unpublished) :] if self._unpublished else []
                self._unpublished = deque(newest)

    def _next_sequence(self, minimum: int = 0) -> int:
        self._last_sequence = max(self._last_sequence + 1, minimum)
        return self._last_sequence

    # ---- publishing

    def take_unpublished(self, up_to_id: int, limit: int) -> list[Transition]:
        """Remove and return the oldest unpublished transitions."""
        taken: list[Transition] = []
        with self._lock:
            while len(taken) < limit and self._unpublished and self._unpublished[0].id <= up_to_id:
                taken.append(self._unpublished.popleft())
        return taken

    def is_unpublished(self, transition_id: int) -> bool:
        """Whether this transition, or an older one, is not published yet."""
        with self._lock:
            return bool(self._unpublished) and self._unpublished[0].id <= transition_id

    # ---- writing

    @property
    def last_id(self) -> int:
        """The id of the newest transition, or a greater number."""
        return self._last_sequence

    def next_batch(self) -> Batch | None:
        """The oldest transitions and at most one minute; they stay in the backlog until `mark_written`."""
        with self._lock:
            if not self._transitions and not self._minutes and self._is_saved_state_written:
                return None
            count = min(len(self._transitions), TRANSITIONS_PER_BATCH)
            return Batch(
                [self._transitions[index] for index in range(count)],
                [self._minutes[0]] if self._minutes else [],
                self.pruned_to,
                None if self._is_saved_state_written else self._saved_state,
            )

    def mark_written(self, batch: Batch) -> None:
        with self._lock:
            while self._transitions and self._transitions[0].id <= batch.last_id:
                self._transitions.popleft()
            for minute in batch.minutes:
                if self._minutes and self._minutes[0] is minute:
                    self._bucket_count -= len(self._minutes.popleft().buckets)
            self._is_saved_state_written = self._is_saved_state_written or self._saved_state == batch.saved_state

    def mark_file_lost(self, now_us: int) -> None:
        """The file is lost: the history starts with the oldest record here, and the state must be written again."""
        with self._lock:
            pruned_to = self._transitions[0].id - 1 if self._transitions else self._next_sequence(now_us)
            self.pruned_to = max(self.pruned_to, pruned_to)
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

    def service_ids(self) -> set[str]:
        """The services that have records here."""
        with self._lock:
            ids = {transition.service_id for transition in self._transitions if transition.service_id is not None}
            return ids.union(*(minute.buckets for minute in self._minutes))
