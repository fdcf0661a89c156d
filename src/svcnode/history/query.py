"""The one thread that reads, so that a long question delays neither the event loop nor what is being written.

What is asked of the file. Answers come as JSON, hundreds of rows with each step: see database.py.

Remembers: from the file and from memory, as one.

Each question is asked on a connection of its own: what was set aside is never read by mistake, and a file that comes
back is found. Where the file does not answer, memory has to do.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, contextmanager, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from svcnode.history.errors import CorruptionError, history_error_from
from svcnode.history.records import Bucket, Transition, merge_buckets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from svcnode.history.aggregator import MinuteAggregator
    from svcnode.history.backlog import Backlog
    from svcnode.history.records import Resolution
    from svcnode.history.writer import Writer

T = TypeVar("T")
M = TypeVar("M")

_Job = tuple[Callable[[], Any], asyncio.Future[Any], asyncio.AbstractEventLoop]


class QueryThread:
    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None  # from the first question on

    async def run(self, question: Callable[[], T]) -> T:
        """What the question returns on the thread, after those that were asked before."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="svcnode history reader", daemon=True)
            thread.start()
            self._thread = thread
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._jobs.put((question, answer, loop))
        return await answer

    def close(self) -> None:
        """Answer what was asked, and end; nobody waits for that."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (asked := self._jobs.get()) is not None:
            question, answer, loop = asked
            if answer.cancelled():  # who asked has left meanwhile
                continue
            try:
                result = question()
            except Exception as exc:  # noqa: BLE001  it is handed to the one who waits
                _call_on_loop(loop, _set_exception, answer, exc)
            else:
                _call_on_loop(loop, _set_result, answer, result)


def _call_on_loop(loop: asyncio.AbstractEventLoop, finish: Callable[..., None], *args: object) -> None:
    with suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(finish, *args)


def _set_result(answer: asyncio.Future[T], result: T) -> None:
    if not answer.done():
        answer.set_result(result)


def _set_exception(answer: asyncio.Future[Any], error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


# ruff: noqa: S608  what stands in the statements are names of ours; values are given beside them


BUCKETS_PER_QUERY = 3000  # bars that are made from one text, while every other thread waits: about a millisecond

_TRANSITION_COLUMNS = "id, at_us, kind, service_id, before, after, reason, health_before, health"
_SELECT_TRANSITIONS = f"""
    SELECT json_group_array(json_array({_TRANSITION_COLUMNS})) FROM (
        SELECT transitions.*, services.id AS service_id
        FROM transitions LEFT JOIN services ON services.number = transitions.service
        WHERE {{condition}} ORDER BY transitions.id {{order}} LIMIT ?
    )
"""
_SELECT_AFTER = _SELECT_TRANSITIONS.format(condition="transitions.id > ? AND transitions.id <= ?", order="")
_SELECT_LATEST = _SELECT_TRANSITIONS.format(condition="transitions.id <= ?", order="DESC")
_SELECT_LATEST_OF_SERVICE = _SELECT_TRANSITIONS.format(
    condition="transitions.id <= ? AND transitions.service = (SELECT number FROM services WHERE id = ?)", order="DESC"
)
_SELECT_KNOWN_IDS = "SELECT json_group_array(id) FROM services WHERE id IN (SELECT value FROM json_each(?))"
# In this order, and in no other: each step finds its rows by their key.
_SELECT_BUCKETS = f"""
    SELECT json_group_array(json_array(wanted.key, {", ".join(Bucket._fields)}))
    FROM json_each(?) AS wanted
    CROSS JOIN services ON services.id = wanted.value
    CROSS JOIN json_each(?) AS begins
    CROSS JOIN {{table}} AS bars ON bars.begin_s = begins.value AND bars.service = services.number
"""


def open_read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=1.0, isolation_level=None)


def begin_snapshot(connection: sqlite3.Connection) -> None:
    """From here on, the file is seen as it is now."""
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM watermarks").fetchone()


def transitions_after(connection: sqlite3.Connection, after: int, up_to: int, limit: int) -> list[Transition]:
    return _transitions(connection, _SELECT_AFTER, after, up_to, limit)


def latest_transitions(
    connection: sqlite3.Connection, service_id: str | None, up_to: int, limit: int
) -> list[Transition]:
    if service_id is None:
        return _transitions(connection, _SELECT_LATEST, up_to, limit)
    return _transitions(connection, _SELECT_LATEST_OF_SERVICE, up_to, service_id, limit)


def _transitions(connection: sqlite3.Connection, query: str, *values: int | str) -> list[Transition]:
    rows = _rows(connection, query, *values)
    return [Transition(number, at_us / 1e6, *rest) for number, at_us, *rest in rows]


def read_buckets(
    connection: sqlite3.Connection, service_ids: Sequence[str], span: Resolution, begins_s: Sequence[int]
) -> dict[str, list[Bucket]]:
    """Those that there are, in no order."""
    found: dict[str, list[Bucket]] = {service_id: [] for service_id in service_ids}
    query, begins = _SELECT_BUCKETS.format(table=span.name), json.dumps(list(begins_s))
    at_once = max(1, BUCKETS_PER_QUERY // len(begins_s))
    for first in range(0, len(service_ids), at_once):
        some = service_ids[first : first + at_once]
        for place, *cells in _rows(connection, query, json.dumps(some), begins):
            found[some[place]].append(Bucket._make(cells))
    return found


def known_ids(connection: sqlite3.Connection, service_ids: Sequence[str]) -> set[str]:
    return set(_rows(connection, _SELECT_KNOWN_IDS, json.dumps(list(service_ids))))


def _rows(connection: sqlite3.Connection, query: str, *values: int | str) -> list[Any]:
    (text,) = connection.execute(query, values).fetchone()
    rows: list[Any] = json.loads(text)
    return rows


HANDOVER_TIMEOUT_S = 1.0  # a disk that hangs is not waited for; at worst, the last minute is missing or there twice
SERVICES_PER_LOCK = 200  # of which the lock of the minutes is held, for less than a millisecond

log = logging.getLogger("svcnode.history")


class HistoryQuery:
    """Its methods may take their time, and are called on the thread that reads."""

    def __init__(
        self, backlog: Backlog, minutes: MinuteAggregator, minutes_lock: threading.Lock, writer: Writer | None
    ) -> None:
        self._backlog = backlog
        self._aggregator = minutes
        self._aggregator_lock = minutes_lock
        self._writer = writer

    def after(self, transition_id: int, up_to: int, limit: int) -> list[Transition]:
        def ask(connection: sqlite3.Connection) -> list[Transition]:

            return transitions_after(connection, transition_id, up_to, limit)

        kept, unwritten = self._read(ask, self._backlog.transitions)
        fitting = [one for one in unwritten if transition_id < one.id <= up_to]
        return _sorted_by_id([*(kept or ()), *fitting])[:limit]

    def latest(self, service_id: str | None, up_to: int, limit: int) -> list[Transition]:
        def ask(connection: sqlite3.Connection) -> list[Transition]:

            return latest_transitions(connection, service_id, up_to, limit)

        kept, unwritten = self._read(ask, self._backlog.transitions)
        fitting = [one for one in unwritten if one.id <= up_to and service_id in (None, one.service_id)]
        return _sorted_by_id([*(kept or ()), *fitting])[::-1][:limit]

    def buckets(self, service_ids: Sequence[str], span: Resolution, now_s: float) -> dict[str, list[Bucket]]:
        last_s = span.begin_s(now_s)
        empty = [Bucket(last_s - place * span.length_s) for place in reversed(range(span.bucket_count))]

        def ask(connection: sqlite3.Connection) -> Mapping[str, list[Bucket]]:

            return read_buckets(connection, service_ids, span, [bar.begin_s for bar in empty])

        kept, unwritten = self._read(ask, lambda: self._unwritten_buckets(service_ids))
        return {
            service_id: fill_buckets(empty, kept[service_id] if kept else (), more, span)
            for service_id, more in unwritten.items()
        }

    def known_ids(self, service_ids: Sequence[str]) -> set[str]:
        def ask(connection: sqlite3.Connection) -> set[str]:

            return known_ids(connection, service_ids)

        kept, unwritten = self._read(ask, self._unwritten_ids)
        return set(service_ids) & (unwritten | (kept or set()))

    def _unwritten_ids(self) -> set[str | None]:
        return {
            *(one.service_id for one in self._backlog.transitions()),
            *(service_id for minute in self._backlog.minutes() for service_id in minute.buckets),
        }

    def _unwritten_buckets(self, service_ids: Sequence[str]) -> dict[str, list[Bucket]]:
        found = {}
        for first in range(0, len(service_ids), SERVICES_PER_LOCK):
            with self._aggregator_lock:  # when a minute is over, its bars go from one to the other
                minutes = self._backlog.minutes()
                for service_id in service_ids[first : first + SERVICES_PER_LOCK]:
                    over = [minute.buckets[service_id] for minute in minutes if service_id in minute.buckets]
                    found[service_id] = [*over, *self._aggregator.open_buckets(service_id)]
        return found

    def _read(self, ask: Callable[[sqlite3.Connection], T], remember: Callable[[], M]) -> tuple[T | None, M]:
        """What the file says, if it says anything, and what memory adds to it, both as of one moment."""
        if self._writer is None or not self._writer.is_readable:
            return None, remember()
        generation = self._writer.generation
        try:
            with closing(open_read_only(self._writer.path)) as connection:
                with self._handover_paused():
                    begin_snapshot(connection)
                    memory = remember()
                return ask(connection), memory
        except Exception as exc:  # noqa: BLE001  whatever it is, memory is left
            fault = history_error_from(exc, self._writer.path)
            if isinstance(fault, CorruptionError):
                self._writer.report_corruption(fault, generation)
            log.debug("history could not be read: %s", fault)
            return None, remember()

    @contextmanager
    def _handover_paused(self) -> Iterator[None]:
        is_held = self._backlog.handover_lock.acquire(timeout=HANDOVER_TIMEOUT_S)
        try:
            yield
        finally:
            if is_held:
                self._backlog.handover_lock.release()


def _sorted_by_id(transitions: Iterable[Transition]) -> list[Transition]:
    return [one for _, one in sorted({one.id: one for one in transitions}.items())]


def fill_buckets(
    empty: Sequence[Bucket], kept: Iterable[Bucket], more: Iterable[Bucket], span: Resolution
) -> list[Bucket]:
    """One bar for each that is empty: the one that is kept, and whatever else falls into it."""
    bars = list(empty)
    first_s = empty[0].begin_s
    for bar in kept:
        bars[(bar.begin_s - first_s) // span.length_s] = bar
    for bar in more:
        place = (bar.begin_s - first_s) // span.length_s
        if 0 <= place < len(bars):
            bars[place] = merge_buckets(bars[place], bar, span.length_s)
    return bars
