"""What has been heard and is not written yet, and what is not told yet.

Any thread may come at any time, and none is kept waiting. There is an end to what is held: while the file cannot be
written, the oldest goes when there is too much. Without a file, the same holds all there is.
"""

from __future__ import annotations

import threading
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from svcnode.history.records import Bar, Minute, Transition

if TYPE_CHECKING:
    from collections.abc import Iterator

# Ten thousand services that go down at once, and come back; about 10 MB at worst.
MAX_TRANSITIONS = 20_000
# Ninety minutes of a thousand services; about 30 MB at worst.
MAX_BARS = 90_000
TRANSITIONS_AT_ONCE = 2000
BARS_AT_ONCE = 2000


class Batch(NamedTuple):
    """What is written in one transaction."""

    transitions: list[Transition]
    minutes: list[Minute]
    forgotten_to: int
    note: str | None = None  # the newest, where it is not written yet

    @property
    def last_id(self) -> int:
        return self.transitions[-1].id if self.transitions else 0


class Backlog:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Held while something goes over into the file, so that a reader sees it here or there, and not in both.
        self.handing_over = threading.Lock()
        self._last_number = 0
        self.forgotten_to = 0  # the newest transition that had to go
        self._transitions: deque[Transition] = deque()
        self._untold: deque[Transition] = deque()
        self._minutes: deque[Minute] = deque()
        self._bar_count = 0
        self._note: str | None = None
        self._is_note_written = True

    # ---- what comes in

    def add(self, draft: Transition) -> Transition:
        """Take it down; its id becomes greater than all before, whatever the clock says."""
        with self._lock:
            transition = draft._replace(id=self._number(draft.id))
            self._transitions.append(transition)
            self._untold.append(transition)
            if len(self._transitions) > MAX_TRANSITIONS:
                self.forgotten_to = self._transitions.popleft().id
        return transition

    def add_minute(self, begin_s: int, bars: dict[str, Bar]) -> None:
        """In parts, so that none takes long to write: transitions wait meanwhile."""
        each = iter(bars.items())
        with self._lock:
            while some := dict(islice(each, BARS_AT_ONCE)):
                self._minutes.append(Minute(self._number(), begin_s, some))
            self._bar_count += len(bars)
            while self._bar_count > MAX_BARS and len(self._minutes) > 1:
                self._bar_count -= len(self._minutes.popleft().bars)

    def set_note(self, text: str) -> None:
        """In the place of the one before."""
        with self._lock:
            if text != self._note:
                self._note, self._is_note_written = text, False

    def go_on_after(self, number: int) -> None:
        """Number all that is here, and all that comes, above this."""
        with self._lock:
            oldest = min((items[0][0] for items in (self._transitions, self._minutes) if items), default=number + 1)
            self._last_number = max(self._last_number, number)
            if oldest <= number:  # they came before it was known how far the numbers were
                self._transitions = deque(one._replace(id=self._number()) for one in self._transitions)
                self._minutes = deque(one._replace(number=self._number()) for one in self._minutes)
                newest = list(self._transitions)[-len(self._untold) :] if self._untold else []
                self._untold = deque(newest)

    def _number(self, wanted: int = 0) -> int:
        self._last_number = max(self._last_number + 1, wanted)
        return self._last_number

    # ---- telling

    def to_tell(self, up_to_id: int, limit: int) -> list[Transition]:
        """The oldest that are not told yet, which they are from now on."""
        with self._lock:
            return list(self._taken(up_to_id, limit))

    def is_untold(self, transition_id: int) -> bool:
        """Whether this one, or one before it, is not told yet."""
        with self._lock:
            return bool(self._untold) and self._untold[0].id <= transition_id

    def _taken(self, up_to_id: int, limit: int) -> Iterator[Transition]:
        while limit and self._untold and self._untold[0].id <= up_to_id:
            limit -= 1
            yield self._untold.popleft()

    # ---- writing

    @property
    def last_id(self) -> int:
        """At least that of the newest transition."""
        return self._last_number

    def batch(self) -> Batch | None:
        """Some of the oldest, and a minute at a time."""
        with self._lock:
            if not self._transitions and not self._minutes and self._is_note_written:
                return None
            some = min(len(self._transitions), TRANSITIONS_AT_ONCE)
            return Batch(
                [self._transitions[place] for place in range(some)],
                [self._minutes[0]] if self._minutes else [],
                self.forgotten_to,
                None if self._is_note_written else self._note,
            )

    def drop(self, batch: Batch) -> None:
        """It is written."""
        with self._lock:
            while self._transitions and self._transitions[0].id <= batch.last_id:
                self._transitions.popleft()
            for minute in batch.minutes:
                if self._minutes and self._minutes[0] is minute:
                    self._bar_count -= len(self._minutes.popleft().bars)
            self._is_note_written = self._is_note_written or self._note == batch.note

    def forget_what_is_written(self, now_us: int) -> None:
        """The file is lost: nothing is left but what is here."""
        with self._lock:
            kept_after = self._transitions[0].id - 1 if self._transitions else self._number(now_us)
            self.forgotten_to = max(self.forgotten_to, kept_after)
            self._is_note_written = self._note is None

    def __len__(self) -> int:
        return len(self._transitions) + len(self._minutes) + (not self._is_note_written)

    # ---- reading

    def transitions(self) -> list[Transition]:
        with self._lock:
            return list(self._transitions)

    def minutes(self) -> list[Minute]:
        with self._lock:
            return list(self._minutes)
