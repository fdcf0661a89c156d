"""Queries: the SQL statements, and the merge of the file with the records in memory.

Queries run beside the event loop, one at a time, so that a slow query delays neither the event loop nor the writer.
Each query opens its own connection, so it never reads a quarantined file and finds a file that was restored. If the
file cannot be read, the result contains the records in memory only.
"""

# ruff: noqa: S608  only constants are formatted into statements; values are parameters

from __future__ import annotations

import asyncio
import json
import logging
import math
from contextlib import closing, contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from urllib.parse import quote

from svcnode.core.model import MAINTENANCE_CHANGES, STATUS_CHANGES, ChangeKind, Health, Status
from svcnode.history.errors import CorruptionError, history_error_from
from svcnode.history.latencies import add_to
from svcnode.history.records import Bucket, Stretch, Transition, merge_buckets
from svcnode.history.report import Move, OutageFinder, Times, make_report
from svcnode.history.timeline import (
    BEGINS,
    ENDS,
    SAYS_STATUS,
    STARTED,
    Opening,
    PageOfTransitions,
    explains_start,
    says_status,
)
from svcnode.net.threads import DaemonCall

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from svcnode.history.aggregator import MinuteAggregator
    from svcnode.history.backlog import Backlog
    from svcnode.history.latencies import Histogram
    from svcnode.history.records import Resolution
    from svcnode.history.report import PeriodReport, ReportPeriod
    from svcnode.history.timeline import Period

T = TypeVar("T")
M = TypeVar("M")

HANDOVER_TIMEOUT_S = 1.0  # if a write takes longer, a query may miss the last minute or count it twice
BUCKETS_PER_STATEMENT = 3000  # parsing their JSON holds the GIL for about a millisecond

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
# "+" keeps SQLite from reading every row in the order of the ids: few rows are of these services.
_SELECT_OF_SERVICES = _SELECT_TRANSITIONS.format(
    condition="""+transitions.id <= ? AND +transitions.at_us >= ? AND (transitions.service IS NULL
        OR transitions.service IN (SELECT number FROM services WHERE id IN (SELECT value FROM json_each(?))))""",
    order="DESC",
)
_IS_PROCESS = f"service IS NULL AND kind IN {(*BEGINS, *ENDS)}"
# What the processes after the period have recorded begins here.
_SELECT_END_ID = f"""
    SELECT min(id) FROM transitions WHERE {_IS_PROCESS} AND id <= ?1 AND id > coalesce(
        (SELECT max(id) FROM transitions WHERE {_IS_PROCESS} AND id <= ?1 AND at_us < ?2), 0)
"""
# "+" lets SQLite find the period in the index of times: an old file has far more ids.
_SELECT_FIRST_ID = "SELECT min(+id) FROM transitions WHERE at_us >= ? AND at_us < ? AND +id > ? AND +id <= ?"
# A page of the timeline, and what is before it, by the order of recording: what is recorded late is dated earlier.
_SELECT_PAGE = _SELECT_TRANSITIONS.format(
    condition="transitions.id > ? AND transitions.id <= ? AND +transitions.at_us < ?", order=""
)
_BEFORE_PAGE = "transitions.id <= ? AND +transitions.at_us < ?"
_SELECT_STATUSES_BEFORE = f"""
    SELECT json_group_array(json_array({_TRANSITION_COLUMNS})) FROM (
        SELECT newest.*, services.id AS service_id
        FROM {{services}} CROSS JOIN transitions AS newest ON newest.id = (
            SELECT transitions.id FROM transitions
            WHERE service = services.number AND {SAYS_STATUS} AND {_BEFORE_PAGE}
            ORDER BY transitions.id DESC LIMIT 1
        )
        WHERE newest.after IN ('Down', 'Initializing')
    )
"""
_SELECT_ALL_STATUSES_BEFORE = _SELECT_STATUSES_BEFORE.format(services="services")
_SELECT_SOME_STATUSES_BEFORE = _SELECT_STATUSES_BEFORE.format(
    services="json_each(?) AS ids CROSS JOIN services ON services.id = ids.value"
)
_SELECT_HEALTH_BEFORE = _SELECT_TRANSITIONS.format(
    condition=f"health <> health_before AND {_BEFORE_PAGE}", order="DESC"
)
# As `explains_start`.
_SELECT_EXPLANATION = _SELECT_TRANSITIONS.format(
    condition=f"""transitions.id > ? AND kind = '{ChangeKind.STATUS.value}' AND after = '{Status.DOWN.value}'
        AND health = health_before AND health <> {int(Health.HEALTHY)} AND {_BEFORE_PAGE}""",
    order="",
)
# The newest start and stop, and what has ended the process that has recorded each of these transitions.
_SELECT_PROCESS_BEFORE = _SELECT_TRANSITIONS.format(
    condition=f"""transitions.id IN (
        SELECT id FROM (SELECT id FROM transitions WHERE {_IS_PROCESS} AND {_BEFORE_PAGE} ORDER BY id DESC LIMIT 2)
        UNION SELECT (SELECT min(id) FROM transitions WHERE {_IS_PROCESS} AND id > value AND {_BEFORE_PAGE})
        FROM json_each(?))""",
    order="",
)
# Of these starts without a stop before, by their ids: when the process before was last known to run.
_SELECT_LAST_KNOWN = """
    SELECT json_group_array(json_array(ids.value, max(previous.at_us / 1e6, coalesce({run}, 0))))
    FROM json_each(?) AS ids
    CROSS JOIN transitions AS start ON start.id = ids.value
    CROSS JOIN transitions AS previous ON previous.id = (SELECT max(id) FROM transitions WHERE id < start.id)
    WHERE previous.kind <> 'stopped'
"""
# A process runs for a moment before it records its start, so its own run begins before that, but ends later.
_SELECT_RUN_BEFORE = """(
    SELECT end_s FROM runs WHERE begin_s < start.at_us / 1e6 AND end_s <= start.at_us / 1e6
    ORDER BY begin_s DESC LIMIT 1)"""
_SELECT_KNOWN_IDS = "SELECT json_group_array(id) FROM services WHERE id IN (SELECT value FROM json_each(?))"
_SELECT_END = """
    SELECT coalesce((SELECT max(id) FROM transitions), 0),
        coalesce((SELECT value FROM watermarks WHERE name = 'pruned_to'), 0),
        (SELECT text FROM saved_state WHERE name = 'node'),
        (SELECT kind FROM transitions ORDER BY id DESC LIMIT 1),
        max(coalesce((SELECT at_us / 1e6 FROM transitions ORDER BY id DESC LIMIT 1), 0), coalesce({run}, 0))
"""
_SELECT_LAST_RUN = "(SELECT end_s FROM runs ORDER BY begin_s DESC LIMIT 1)"
# CROSS JOIN fixes the order of the joins, so that each step finds its rows by primary key.
_SELECT_BUCKETS = f"""
    SELECT json_group_array(json_array(ids.key, {", ".join(Bucket._fields)}))
    FROM json_each(?) AS ids
    CROSS JOIN services ON services.id = ids.value
    CROSS JOIN json_each(?) AS begin_times
    CROSS JOIN {{table}} AS buckets ON buckets.begin_s = begin_times.value AND buckets.service = services.number
"""

_KINDS_OF_REPORT = ", ".join(
    f"'{kind}'" for kind in (*BEGINS, *ENDS, *(kind.value for kind in (*STATUS_CHANGES, *MAINTENANCE_CHANGES)))
)
_SELECT_MOVES = f"""
    SELECT json_group_array(json_array(transitions.id, at_us, kind, services.id, before, after, health_before, health))
    FROM (
        SELECT * FROM transitions
        WHERE id > ? AND (at_us < ? OR kind IN {BEGINS})
            AND (kind IN ({_KINDS_OF_REPORT}) OR health != health_before)
        ORDER BY id LIMIT ?
    ) AS transitions LEFT JOIN services ON services.number = transitions.service
"""
_SELECT_RUNS = "SELECT json_group_array(json_array(begin_s, end_s)) FROM runs WHERE end_s > ? AND begin_s < ?"
_END_OF_TIME_S = 1e12
_SELECT_TIMES = """
    SELECT json_group_array(json_array(services.id, up_s, initializing_s, down_s, maintenance_s, first_s)) FROM (
        SELECT service, sum(up_s) AS up_s, sum(initializing_s) AS initializing_s, sum(down_s) AS down_s,
            sum(maintenance_s) AS maintenance_s, min(begin_s) AS first_s
        FROM {table} WHERE begin_s >= ? AND begin_s < ? AND service > ? AND service <= ? GROUP BY service
    ) AS times JOIN services ON services.number = times.service
"""
_SELECT_LATENCIES = """
    SELECT json_group_array(json_array(services.id, bucket, checks)) FROM (
        SELECT service, bucket, sum(checks) AS checks
        FROM {table} WHERE begin_s >= ? AND begin_s < ? AND service > ? AND service <= ? GROUP BY service, bucket
    ) AS latencies JOIN services ON services.number = latencies.service
"""
SERVICES_PER_STATEMENT = 200  # with some ten buckets of latencies each

log = logging.getLogger("svcnode.history")


class HistoryFile(Protocol):
    """The file that queries read; the writer is one."""

    @property
    def path(self) -> Path: ...
    @property
    def is_readable(self) -> bool: ...
    @property
    def generation(self) -> int:
        """Increases whenever the file is replaced."""

    def report_corruption(self, error: CorruptionError, generation: int) -> None: ...


class EndOfFile(NamedTuple):
    last_id: int  # of the newest transition
    pruned_to: int  # the newest transition that was deleted
    node_name: str | None  # of the node that the file belongs to
    last_kind: str | None  # of the newest transition
    last_known_s: float  # the time of the newest transition, or of the last minute that was written


class HistoryQuery:
    def __init__(self, backlog: Backlog, aggregator: MinuteAggregator, file: HistoryFile | None) -> None:
        self._backlog = backlog
        self._aggregator = aggregator
        self._file = file
        self._thread = DaemonCall("history reader")
        self._turn = asyncio.Lock()

    async def after(self, after_id: int, up_to: int, limit: int) -> list[Transition]:
        """The oldest transitions in this range, in order."""

        def is_match(transition: Transition) -> bool:
            return after_id < transition.id <= up_to

        return (await self._transitions(is_match, _SELECT_AFTER, after_id, up_to, limit))[:limit]

    async def latest(self, service_id: str | None, up_to: int, limit: int) -> list[Transition]:
        """The newest transitions first, of one service or of all."""

        def is_match(transition: Transition) -> bool:
            return transition.id <= up_to and service_id in (None, transition.service_id)

        if service_id is None:
            found = await self._transitions(is_match, _SELECT_LATEST, up_to, limit)
        else:
            found = await self._transitions(is_match, _SELECT_LATEST_OF_SERVICE, up_to, service_id, limit)
        return found[::-1][:limit]

    async def of_services(self, service_ids: Sequence[str], from_s: float, up_to: int, limit: int) -> list[Transition]:
        """In order: the newest transitions of these services, and of the node itself."""
        wanted = {*service_ids, None}

        def is_match(transition: Transition) -> bool:
            return transition.id <= up_to and transition.at_s >= from_s and transition.service_id in wanted

        values = (up_to, int(from_s * 1e6), json.dumps(list(service_ids)), limit)
        return (await self._transitions(is_match, _SELECT_OF_SERVICES, *values))[-limit:]

    async def runs(self, from_s: float) -> list[Stretch]:
        """The times in which the node ran since this time."""

        def read() -> list[Stretch]:
            rows, unwritten = self._read(
                lambda connection: _rows(connection, _SELECT_RUNS, from_s, _END_OF_TIME_S),
                self._aggregator.unwritten_stretches,
            )
            return [*(Stretch(*row) for row in rows or ()), *unwritten]

        return await self._run(read)

    async def buckets(
        self, service_ids: Sequence[str], resolution: Resolution, now_s: float
    ) -> dict[str, list[Bucket]]:
        last_s, count = resolution.begin_s(now_s), resolution.bucket_count
        empty = [Bucket(last_s - age * resolution.length_s) for age in reversed(range(count))]

        def read() -> dict[str, list[Bucket]]:
            written, unwritten = self._read(
                lambda connection: _read_buckets(connection, service_ids, resolution, empty),
                lambda: self._aggregator.unwritten_buckets(service_ids),
            )
            return {
                service_id: _fill_buckets(empty, written[service_id] if written else (), buckets, resolution)
                for service_id, buckets in unwritten.items()
            }

        return await self._run(read)

    async def page(self, period: Period, up_to: int, limit: int) -> PageOfTransitions:
        """Transitions of a period, and what was so before the first of them."""

        def read() -> PageOfTransitions:
            written, unwritten = self._read(
                lambda connection: _read_page(connection, period, up_to, limit), self._backlog.transitions
            )
            in_file = written or _PageInFile()
            published = [one for one in unwritten if one.id <= up_to]
            recorded = [one for one in published if period.is_before_end(one)]
            first = (one.id for one in recorded if one.at_s >= period.from_s)
            before_id = period.after_id or in_file.before_id or next(first, up_to + 1) - 1
            by_id = {one.id: one for one in (*in_file.transitions, *recorded) if one.id > before_id}
            page = [by_id[transition_id] for transition_id in sorted(by_id)]
            end_id = period.end_id(in_file.end_id, published)
            opening = _opening(in_file.opening, [one for one in recorded if one.id <= before_id], end_id)
            return PageOfTransitions(opening, page[:limit], len(page) <= limit, end_id, in_file.last_known_s)

        return await self._run(read)

    async def known_ids(self, service_ids: Sequence[str]) -> set[str]:
        """The ids that have records."""

        def read() -> set[str]:
            written, unwritten = self._read(
                lambda connection: _rows(connection, _SELECT_KNOWN_IDS, json.dumps(list(service_ids))),
                self._backlog.service_ids,
            )
            return set(service_ids) & unwritten.union(written or ())

        return await self._run(read)

    async def report(self, period: ReportPeriod, pruned_to: int) -> PeriodReport:
        """`pruned_to`: older transitions are deleted, and some of the file may be older."""

        def read() -> PeriodReport:
            written, unwritten = self._read(
                lambda connection: _read_report_data(connection, period), lambda: self._unwritten_report_data(period)
            )
            return _make_report(period, pruned_to, written or _NO_DATA, unwritten)

        return await self._run(read)

    def _unwritten_report_data(self, period: ReportPeriod) -> _ReportData:
        aggregator, resolution = self._aggregator, period.latency_resolution
        times: dict[str, Times] = {}
        first_s = math.inf
        for service_id, buckets in aggregator.unwritten_buckets(aggregator.service_ids()).items():
            for bucket in buckets:
                if period.from_s <= bucket.begin_s < period.to_s:  # also of a service that has just been registered
                    counted = Times(bucket.up_s, bucket.initializing_s, bucket.down_s, bucket.maintenance_s)
                    times[service_id] = times.get(service_id, Times()).plus(counted)
                    first_s = min(first_s, bucket.begin_s if bucket.observed_s else math.inf)
        moves = [
            Move(one.id / 1e6, one.at_s, one.kind, *one[3:6], one.health_before, one.health)
            for one in self._backlog.transitions()
            if one.at_s < period.to_s or one.kind in BEGINS
        ]
        latencies = aggregator.unwritten_latencies(resolution, *period.latency_range)
        return _ReportData(times, first_s, aggregator.unwritten_stretches(), moves, latencies)

    async def end_of(self, path: Path) -> EndOfFile | None:
        """None if the file cannot be read."""

        def read() -> EndOfFile | None:
            try:
                with closing(open_read_only(path)) as connection:
                    run = _SELECT_LAST_RUN if _has_runs(connection) else "NULL"
                    return EndOfFile(*connection.execute(_SELECT_END.format(run=run)).fetchone())
            except Exception as exc:  # noqa: BLE001  it may be missing, corrupt or that of another program
                log.debug("reading history failed: %s", history_error_from(exc, path))
                return None

        return await self._run(read)

    async def _transitions(
        self, is_match: Callable[[Transition], bool], statement: str, *values: int | str
    ) -> list[Transition]:
        """By id. The statement selects from the file what `is_match` selects from memory."""

        def read() -> list[Transition]:
            rows, unwritten = self._read(
                lambda connection: _rows(connection, statement, *values), self._backlog.transitions
            )
            by_id = {row[0]: _transition(row) for row in rows or ()}
            by_id.update((transition.id, transition) for transition in unwritten if is_match(transition))
            return [by_id[transition_id] for transition_id in sorted(by_id)]

        return await self._run(read)

    async def _run(self, query: Callable[[], T]) -> T:
        async with self._turn:
            return await self._thread.call_in_turn(query)

    # ---- in a thread

    def _read(self, read_file: Callable[[sqlite3.Connection], T], read_memory: Callable[[], M]) -> tuple[T | None, M]:
        """The results from the file and from memory at one point in time; None if the file cannot be read."""
        file = self._file
        if file is None or not file.is_readable:
            return None, read_memory()
        generation = file.generation
        try:
            with closing(open_read_only(file.path)) as connection:
                with self._handover_paused():
                    # Start a read transaction: all later reads see the file as it is now.
                    connection.execute("BEGIN")
                    connection.execute("SELECT count(*) FROM watermarks").fetchone()
                    memory_result = read_memory()
                return read_file(connection), memory_result
        except Exception as exc:  # noqa: BLE001  the records in memory can still be returned
            error = history_error_from(exc, file.path)
            if isinstance(error, CorruptionError):
                file.report_corruption(error, generation)
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


class _ReportData(NamedTuple):
    """What a report is made of, from the file or from memory."""

    times: dict[str, Times]
    first_s: float  # of the buckets
    stretches: list[Stretch]
    moves: list[Move]
    latencies: dict[str, Histogram]


_NO_DATA = _ReportData({}, math.inf, [], [], {})


def _make_report(period: ReportPeriod, pruned_to: int, written: _ReportData, unwritten: _ReportData) -> PeriodReport:
    moves = [*written.moves, *unwritten.moves]
    # After a clock was ahead, ids stay ahead; and after it was set back, what follows is dated before what is first.
    begins_s = (move.at_s for move in moves if move is moves[0] or move.kind in BEGINS)
    known_from_s = min((pruned_to / 1e6, *begins_s))
    stretches = sorted([*written.stretches, *unwritten.stretches])
    outages = OutageFinder(period, known_from_s, stretches)
    for move in moves:
        outages.add(move)
    times, latencies = dict(written.times), written.latencies
    for service_id, one in unwritten.times.items():
        times[service_id] = times.get(service_id, Times()).plus(one)
    for service_id, histogram in unwritten.latencies.items():
        add_to(latencies.setdefault(service_id, {}), histogram)
    first_s = min(written.first_s, unwritten.first_s)
    data_from_s = None if first_s == math.inf else max(first_s, stretches[0].begin_s)
    return make_report(period, data_from_s, outages, times, latencies)


def _read_report_data(connection: sqlite3.Connection, period: ReportPeriod) -> _ReportData:
    times: dict[str, Times] = {}
    latencies: dict[str, Histogram] = {}
    first_s = math.inf
    statement = _SELECT_TIMES.format(table=period.resolution.name)
    for service_id, *values, begin_s in _rows_by_service(connection, statement, period.from_s, period.to_s):
        times[service_id] = Times(*values)
        first_s = min(first_s, begin_s)
    statement = _SELECT_LATENCIES.format(table=period.latency_resolution.name)
    for service_id, bucket, checks in _rows_by_service(connection, statement, *period.latency_range):
        latencies.setdefault(service_id, {})[bucket] = checks
    stretches = [Stretch(*row) for row in _rows(connection, _SELECT_RUNS, period.from_s, period.to_s)]
    return _ReportData(times, first_s, stretches, list(_read_moves(connection, period.to_s)), latencies)


def _rows_by_service(
    connection: sqlite3.Connection, statement: str, begin_s: float, end_s: float
) -> Iterator[list[Any]]:
    (last,) = connection.execute("SELECT coalesce(max(number), 0) FROM services").fetchone()
    for first in range(0, last, SERVICES_PER_STATEMENT):
        yield from _rows(connection, statement, begin_s, end_s, first, first + SERVICES_PER_STATEMENT)


def _read_moves(connection: sqlite3.Connection, to_s: float) -> Iterator[Move]:
    last_id = 0
    while rows := _rows(connection, _SELECT_MOVES, last_id, int(to_s * 1e6), BUCKETS_PER_STATEMENT):
        last_id = rows[-1][0]
        for transition_id, at_us, *others in rows:
            yield Move(transition_id / 1e6, at_us / 1e6, *others)


def open_read_only(path: Path) -> sqlite3.Connection:
    import sqlite3  # loaded late: most nodes are never queried

    return sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=1.0, isolation_level=None)


def _read_buckets(
    connection: sqlite3.Connection, service_ids: Sequence[str], resolution: Resolution, wanted: Sequence[Bucket]
) -> dict[str, list[Bucket]]:
    """The stored buckets of each service, unordered."""
    buckets: dict[str, list[Bucket]] = {service_id: [] for service_id in service_ids}
    statement = _SELECT_BUCKETS.format(table=resolution.name)
    begin_times = json.dumps([bucket.begin_s for bucket in wanted])
    ids_per_statement = max(1, BUCKETS_PER_STATEMENT // len(wanted))
    for first in range(0, len(service_ids), ids_per_statement):
        chunk = service_ids[first : first + ids_per_statement]
        for index, *columns in _rows(connection, statement, json.dumps(chunk), begin_times):
            buckets[chunk[index]].append(Bucket._make(columns))
    return buckets


class _PageInFile(NamedTuple):
    transitions: Sequence[Transition] = ()  # at most one more than the limit
    opening: Opening = Opening()
    before_id: int | None = None  # the page begins after it; None if the file has nothing of the period
    end_id: int | None = None
    last_known_s: Mapping[int, float] = MappingProxyType({})


def _read_page(connection: sqlite3.Connection, period: Period, up_to: int, limit: int) -> _PageInFile:
    """If there is another page, what was before is of the services on this page only."""

    def read(statement: str, *values: int | str) -> list[Transition]:
        return sorted(map(_transition, _rows(connection, statement, *values)), key=lambda one: one.id)

    (end_id,) = connection.execute(_SELECT_END_ID, (up_to, period.to_us)).fetchone()
    times = (period.from_us, period.to_us)
    (first_id,) = connection.execute(_SELECT_FIRST_ID, (*times, period.after_id, up_to)).fetchone()
    before_id = period.after_id or (None if first_id is None else first_id - 1)
    before = (up_to if before_id is None else before_id, period.to_us)
    page = [] if before_id is None else read(_SELECT_PAGE, before_id, up_to, period.to_us, limit + 1)
    if len(page) > limit:
        ids = {one.service_id for one in page if one.service_id is not None}
        statuses = read(_SELECT_SOME_STATUSES_BEFORE, json.dumps(sorted(ids)), *before)
    else:
        statuses = read(_SELECT_ALL_STATUSES_BEFORE, *before)
    recorded = json.dumps([one.id for one in statuses])
    process = read(_SELECT_PROCESS_BEFORE, *before, *before, recorded, -1)
    last_health_id = before[0] if end_id is None else min(before[0], end_id - 1)
    health = read(_SELECT_HEALTH_BEFORE, last_health_id, period.to_us, 1)
    started = [one for one in process[-1:] if one.kind in BEGINS and one.health != Health.HEALTHY]
    if started and not (health and health[0].id > started[0].id):  # it still is as after the start
        health += read(_SELECT_EXPLANATION, started[0].id, last_health_id, period.to_us, 1)
    last_known_s = _read_last_known(connection, [one.id for one in (*process, *page) if one.kind == STARTED])
    return _PageInFile(page, Opening(statuses, health, process), before_id, end_id, last_known_s)


def _read_last_known(connection: sqlite3.Connection, start_ids: Sequence[int]) -> dict[int, float]:
    run = _SELECT_RUN_BEFORE if _has_runs(connection) else "NULL"
    return dict(_rows(connection, _SELECT_LAST_KNOWN.format(run=run), json.dumps(start_ids)))


def _has_runs(connection: sqlite3.Connection) -> bool:
    """False for a file of an older format that no process has opened since."""
    return connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'runs'").fetchone() is not None


def _rows(connection: sqlite3.Connection, statement: str, *values: float | str) -> list[Any]:
    (text,) = connection.execute(statement, values).fetchone()
    rows: list[Any] = json.loads(text)
    return rows


def _transition(row: Sequence[Any]) -> Transition:
    return Transition(row[0], row[1] / 1e6, *row[2:])


def _opening(written: Opening, unwritten: Sequence[Transition], end_id: int | None) -> Opening:
    """With what is only in memory, which is newer."""
    statuses = {one.service_id: one for one in (*written.statuses, *unwritten) if says_status(one)}
    changes = (one for one in unwritten if one.health != one.health_before or explains_start(one))
    health = [*written.health, *(one for one in changes if end_id is None or one.id < end_id)]
    process = [*written.process, *(one for one in unwritten if one.kind in (*BEGINS, *ENDS))]
    return Opening([*statuses.values()], health, process)


def _fill_buckets(
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
