"""Remembers: from the file and from memory, as one.

Each question is asked on a connection of its own: what was set aside is never read by mistake, and a file that comes
back is found. Where the file does not answer, memory has to do.
"""

from __future__ import annotations

import logging
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, TypeVar

from svcnode.history.faults import DamageError, fault_from
from svcnode.history.records import Bar, added

if TYPE_CHECKING:
    import sqlite3
    import threading
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from svcnode.history.backlog import Backlog
    from svcnode.history.minutes import Minutes
    from svcnode.history.records import Span, Transition
    from svcnode.history.writer import Writer

    T = TypeVar("T")
    M = TypeVar("M")

HAND_OVER_WITHIN_S = 1.0  # a disk that hangs is not waited for; at worst, the last minute is missing or there twice
SERVICES_AT_ONCE = 200  # of which the lock of the minutes is held, for less than a millisecond

log = logging.getLogger("svcnode.history")


class Recall:
    """Its methods may take their time, and are called on the thread that reads."""

    def __init__(self, backlog: Backlog, minutes: Minutes, minutes_lock: threading.Lock, writer: Writer | None) -> None:
        self._backlog = backlog
        self._minutes = minutes
        self._minutes_lock = minutes_lock
        self._writer = writer

    def after(self, transition_id: int, up_to: int, limit: int) -> list[Transition]:
        def ask(connection: sqlite3.Connection) -> list[Transition]:
            from svcnode.history.queries import transitions_after

            return transitions_after(connection, transition_id, up_to, limit)

        kept, unwritten = self._ask(ask, self._backlog.transitions)
        fitting = [one for one in unwritten if transition_id < one.id <= up_to]
        return _in_order([*(kept or ()), *fitting])[:limit]

    def latest(self, service_id: str | None, up_to: int, limit: int) -> list[Transition]:
        def ask(connection: sqlite3.Connection) -> list[Transition]:
            from svcnode.history.queries import latest_transitions

            return latest_transitions(connection, service_id, up_to, limit)

        kept, unwritten = self._ask(ask, self._backlog.transitions)
        fitting = [one for one in unwritten if one.id <= up_to and service_id in (None, one.service_id)]
        return _in_order([*(kept or ()), *fitting])[::-1][:limit]

    def bars(self, service_ids: Sequence[str], span: Span, now_s: float) -> dict[str, list[Bar]]:
        last_s = span.begin_s(now_s)
        empty = [Bar(last_s - place * span.length_s) for place in reversed(range(span.shown))]

        def ask(connection: sqlite3.Connection) -> Mapping[str, list[Bar]]:
            from svcnode.history.queries import read_bars

            return read_bars(connection, service_ids, span, [bar.begin_s for bar in empty])

        kept, unwritten = self._ask(ask, lambda: self._unwritten_bars(service_ids))
        return {
            service_id: laid_out(empty, kept[service_id] if kept else (), more, span)
            for service_id, more in unwritten.items()
        }

    def known(self, service_ids: Sequence[str]) -> set[str]:
        def ask(connection: sqlite3.Connection) -> set[str]:
            from svcnode.history.queries import known_ids

            return known_ids(connection, service_ids)

        kept, unwritten = self._ask(ask, self._unwritten_ids)
        return set(service_ids) & (unwritten | (kept or set()))

    def _unwritten_ids(self) -> set[str | None]:
        return {
            *(one.service_id for one in self._backlog.transitions()),
            *(service_id for minute in self._backlog.minutes() for service_id in minute.bars),
        }

    def _unwritten_bars(self, service_ids: Sequence[str]) -> dict[str, list[Bar]]:
        found = {}
        for first in range(0, len(service_ids), SERVICES_AT_ONCE):
            with self._minutes_lock:  # when a minute is over, its bars go from one to the other
                minutes = self._backlog.minutes()
                for service_id in service_ids[first : first + SERVICES_AT_ONCE]:
                    over = [minute.bars[service_id] for minute in minutes if service_id in minute.bars]
                    found[service_id] = [*over, *self._minutes.running(service_id)]
        return found

    def _ask(self, ask: Callable[[sqlite3.Connection], T], remember: Callable[[], M]) -> tuple[T | None, M]:
        """What the file says, if it says anything, and what memory adds to it, both as of one moment."""
        if self._writer is None or not self._writer.is_readable:
            return None, remember()
        generation = self._writer.generation
        try:
            from svcnode.history.queries import begin, open_to_read

            with closing(open_to_read(self._writer.path)) as connection:
                with self._nothing_handed_over():
                    begin(connection)
                    memory = remember()
                return ask(connection), memory
        except Exception as exc:  # noqa: BLE001  whatever it is, memory is left
            fault = fault_from(exc, self._writer.path)
            if isinstance(fault, DamageError):
                self._writer.suspect(fault, generation)
            log.debug("history could not be read: %s", fault)
            return None, remember()

    @contextmanager
    def _nothing_handed_over(self) -> Iterator[None]:
        is_held = self._backlog.handing_over.acquire(timeout=HAND_OVER_WITHIN_S)
        try:
            yield
        finally:
            if is_held:
                self._backlog.handing_over.release()


def _in_order(transitions: Iterable[Transition]) -> list[Transition]:
    return [one for _, one in sorted({one.id: one for one in transitions}.items())]


def laid_out(empty: Sequence[Bar], kept: Iterable[Bar], more: Iterable[Bar], span: Span) -> list[Bar]:
    """One bar for each that is empty: the one that is kept, and whatever else falls into it."""
    bars = list(empty)
    first_s = empty[0].begin_s
    for bar in kept:
        bars[(bar.begin_s - first_s) // span.length_s] = bar
    for bar in more:
        place = (bar.begin_s - first_s) // span.length_s
        if 0 <= place < len(bars):
            bars[place] = added(bars[place], bar, span.length_s)
    return bars
