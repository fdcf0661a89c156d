"""Queries: one thread that runs them, the SQL statements, and the merge of the file with the records in memory.

Queries run in their own thread, so that a slow query delays neither the event loop nor the writer. Each query opens its
own connection, so it never reads a quarantined file and finds a file that was restored. If the file cannot be read, the
result contains the records in memory only.
"""

# ruff: noqa: S608  only constants are formatted into statements; values are parameters

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from contextlib import closing, contextmanager, suppress
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from svcnode.history.errors import CorruptionError, history_error_from
from svcnode.history.records import Bucket, Transition, merge_buckets
from svcnode.net.threads import start_thread

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from svcnode.history.aggregator import MinuteAggregator
    from svcnode.history.backlog import Backlog
    from svcnode.history.records import Resolution
    from svcnode.history.writer import Writer

T = TypeVar("T")
M = TypeVar("M")

HANDOVER_TIMEOUT_S = 1.0  # if a write takes longer, a query may miss the last minute or count it twice
SERVICES_PER_LOCK = 200  # limits how long the lock of the aggregator is held, to less than a millisecond
BUCKETS_PER_QUERY = 3000  # parsing their JSON holds the GIL for about a millisecond

log = logging.getLogger("svcnode.history")

_Job = tuple[Callable[[], Any], asyncio.Future[Any], asyncio.AbstractEventLoop]


class QueryThread:
    """Runs queries one after another. The thread starts with the first query."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(self, query: Callable[[], T]) -> T:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="svcnode history reader", daemon=True)
            start_thread(thread)
            self._thread = thread
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._jobs.put((query, future, loop))
        return await future

    def close(self) -> None:
        """End the thread after the queued queries, without waiting for it."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            query, future, loop = job
            if future.cancelled():
                continue
            try:
                result = query()
            except Exception as exc:  # noqa: BLE001  the caller of `run` gets it
                _call_on_loop(loop, _set_exception, future, exc)
            else:
                _call_on_loop(loop, _set_result, future, result)


def _call_on_loop(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: object) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(function, *args)


def _set_result(future: asyncio.Future[T], result: T) -> None:
    if not future.done():
        future.set_result(result)


def _set_exception(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


# ---- the file

_TRANSITION_COLUMNS = "id, at_us, kind, service_id, before, after, reason, code, health_before, health"
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
# CROSS JOIN fixes the order of the joins, so that each step finds its rows by primary key.
_SELECT_BUCKETS = f"""
    SELECT json_group_array(json_array(ids.key, {", ".join(Bucket._fields)}))
    FROM json_each(?) AS ids
    CROSS JOIN services ON services.id = ids.value
    CROSS JOIN json_each(?) AS begin_times
    CROSS JOIN {{table}} AS buckets ON buckets.begin_s = begin_times.value AND buckets.service = services.number
"""


def open_read_only(path: Path) -> sqlite3.Connection:
    import sqlite3  # loaded late: most nodes are never queried

    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=1.0, isolation_level=None)


def begin_snapshot(connection: sqlite3.Connection) -> None:
    """Start a read transaction: all later reads see the file as it is now."""
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


def _transitions(connection: sqlite3.Connection, statement: str, *values: int | str) -> list[Transition]:
    rows = _rows(connection, statement, *values)
    return [Transition(transition_id, at_us / 1e6, *rest) for transition_id, at_us, *rest in rows]


def read_buckets(
    connection: sqlite3.Connection, service_ids: Sequence[str], resolution: Resolution, begin_times_s: Sequence[int]
) -> dict[str, list[Bucket]]:
    """The stored buckets of each service, unordered."""
    buckets: dict[str, list[Bucket]] = {service_id: [] for service_id in service_ids}
    statement, begin_times = _SELECT_BUCKETS.format(table=resolution.name), json.dumps(list(begin_times_s))
    ids_per_query = max(1, BUCKETS_PER_QUERY // len(begin_times_s))
    for first in range(0, len(service_ids), ids_per_query):
        chunk = service_ids[first : first + ids_per_query]
        for index, *columns in _rows(connection, statement, json.dumps(chunk), begin_times):
            buckets[chunk[index]].append(Bucket._make(columns))
    return buckets


def known_ids(connection: sqlite3.Connection, service_ids: Sequence[str]) -> set[str]:
    return set(_rows(connection, _SELECT_KNOWN_IDS, json.dumps(list(service_ids))))


def _rows(connection: sqlite3.Connection, statement: str, *values: int | str) -> list[Any]:
    (text,) = connection.execute(statement, values).fetchone()
    rows: list[Any] = json.loads(text)
    return rows


# ---- the file and the memory


class HistoryQuery:
    """Blocking queries; call them in the query thread."""

    def __init__(
        self, backlog: Backlog, aggregator: MinuteAggregator, aggregator_lock: threading.Lock, writer: Writer | None
    ) -> None:
        self._backlog = backlog
        self._aggregator = aggregator
        self._aggregator_lock = aggregator_lock
        self._writer = writer

    def after(self, transition_id: int, up_to: int, limit: int) -> list[Transition]:
        written, unwritten = self._read(
            lambda connection: transitions_after(connection, transition_id, up_to, limit), self._backlog.transitions
        )
        matching = [transition for transition in unwritten if transition_id < transition.id <= up_to]
        return _sorted_by_id([*(written or ()), *matching])[:limit]

    def latest(self, service_id: str | None, up_to: int, limit: int) -> list[Transition]:
        written, unwritten = self._read(
            lambda connection: latest_transitions(connection, service_id, up_to, limit), self._backlog.transitions
        )
        matching = [
            transition
            for transition in unwritten
            if transition.id <= up_to and service_id in (None, transition.service_id)
        ]
        return _sorted_by_id([*(written or ()), *matching])[::-1][:limit]

    def buckets(self, service_ids: Sequence[str], resolution: Resolution, now_s: float) -> dict[str, list[Bucket]]:
        last_s, count = resolution.begin_s(now_s), resolution.bucket_count
        empty = [Bucket(last_s - age * resolution.length_s) for age in reversed(range(count))]
        begin_times_s = [bucket.begin_s for bucket in empty]
        written, unwritten = self._read(
            lambda connection: read_buckets(connection, service_ids, resolution, begin_times_s),
            lambda: self._unwritten_buckets(service_ids),
        )
        return {
            service_id: fill_buckets(empty, written[service_id] if written else (), buckets, resolution)
            for service_id, buckets in unwritten.items()
        }

    def known_ids(self, service_ids: Sequence[str]) -> set[str]:
        written, unwritten = self._read(lambda connection: known_ids(connection, service_ids), self._unwritten_ids)
        return set(service_ids) & (unwritten | (written or set()))

    def _unwritten_ids(self) -> set[str | None]:
        return {
            *(transition.service_id for transition in self._backlog.transitions()),
            *(service_id for minute in self._backlog.minutes() for service_id in minute.buckets),
        }

    def _unwritten_buckets(self, service_ids: Sequence[str]) -> dict[str, list[Bucket]]:
        buckets = {}
        for first in range(0, len(service_ids), SERVICES_PER_LOCK):
            with self._aggregator_lock:  # a closed minute moves from the aggregator to the backlog
                minutes = self._backlog.minutes()
                for service_id in service_ids[first : first + SERVICES_PER_LOCK]:
                    closed = [minute.buckets[service_id] for minute in minutes if service_id in minute.buckets]
                    buckets[service_id] = [*closed, *self._aggregator.open_buckets(service_id)]
        return buckets

    def _read(self, read_file: Callable[[sqlite3.Connection], T], read_memory: Callable[[], M]) -> tuple[T | None, M]:
        """The results from the file and from memory at one point in time; None if the file cannot be read."""
        if self._writer is None or not self._writer.is_readable:
            return None, read_memory()
        generation = self._writer.generation
        try:
            with closing(open_read_only(self._writer.path)) as connection:
                with self._handover_paused():
                    begin_snapshot(connection)
                    memory_result = read_memory()
                return read_file(connection), memory_result
        except Exception as exc:  # noqa: BLE001  the records in memory can still be returned
            error = history_error_from(exc, self._writer.path)
            if isinstance(error, CorruptionError):
                self._writer.report_corruption(error, generation)
            log.debug("reading history failed: %s", error)
            return None, read_memory()

    @contextmanager
    def _handover_paused(self) -> Iterator[None]:
        is_held = self._backlog.handover_lock.acquire(timeout=HANDOVER_TIMEOUT_S)
        try:
            yield
        finally:
            if is_held:
                self._backlog.handover_lock.release()


def _sorted_by_id(transitions: Iterable[Transition]) -> list[Transition]:
    by_id = {transition.id: transition for transition in transitions}
    return [transition for _, transition in sorted(by_id.items())]


def fill_buckets(
    empty: Sequence[Bucket], written: Iterable[Bucket], unwritten: Iterable[Bucket], resolution: Resolution
) -> list[Bucket]:
    """Replace empty buckets by written ones, and add the unwritten ones."""
    buckets = list(empty)
    first_s = empty[0].begin_s
    for bucket in written:
        buckets[(bucket.begin_s - first_s) // resolution.length_s] = bucket
    for bucket in unwritten:
        index = (bucket.begin_s - first_s) // resolution.length_s
        if 0 <= index < len(buckets):
            buckets[index] = merge_buckets(buckets[index], bucket, resolution.length_s)
    return buckets
