"""Several worker processes of one program: one of them runs the checks, and all of them have the same states.

The states are in a SQLite file in a folder of the program. Every worker writes its evidence there, and every read of a
node takes over what others have written since, so two workers give the same answer to the same question. The clock of
the evidence is common to the processes of a machine, and every worker judges its age itself: a worker that is killed or
stopped leaves no service Up for longer than the evidence is valid.

A lock elects the worker that runs the checks. The kernel releases it when the process ends. The same worker writes the
history and sends the notifications; the next one continues with their saved state.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import math
import os
import sqlite3
import threading
import time
from contextlib import contextmanager, suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, Self

from svcnode.core.codes import known_code
from svcnode.core.errors import StoreError
from svcnode.core.model import ChangeKind, Evidence, Outcome, RecentFailures, ServiceState, Status, Verdict
from svcnode.core.text import os_error_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from svcnode.core.model import Change
    from svcnode.node.node_state import NodeState
    from svcnode.node.scheduler import ProbeScheduler

ELECTION_INTERVAL_S = 0.5
JOIN_TIMEOUT_S = 1.0
BUSY_TIMEOUT_S = 0.2  # a worker may have been stopped while it wrote
RETRY_AFTER_S = 1.0  # not at each read: an attempt may take the busy timeout
STATES_FILE = "states.db"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS states (
    service_id TEXT PRIMARY KEY, version INTEGER NOT NULL, writer TEXT NOT NULL, at_s REAL NOT NULL,
    state TEXT NOT NULL, evidence TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS states_by_version ON states (version);
CREATE TABLE IF NOT EXISTS issues (issue TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS saved_state (id INTEGER PRIMARY KEY CHECK (id = 0), text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS counter (id INTEGER PRIMARY KEY CHECK (id = 0), version INTEGER NOT NULL);
INSERT OR IGNORE INTO counter VALUES (0, 0);
"""
_PUBLISH = """
INSERT INTO states VALUES (?1, (SELECT version FROM counter), ?2, ?3, ?4, ?5)
ON CONFLICT DO UPDATE SET version = excluded.version, writer = excluded.writer, at_s = excluded.at_s,
    state = excluded.state, evidence = excluded.evidence
WHERE excluded.at_s >= states.at_s
"""
_STATES = "SELECT service_id, state, evidence FROM states"
_NEWS = "SELECT service_id, version, state, evidence FROM states WHERE version > ? AND writer <> ? ORDER BY version"

log = logging.getLogger("svcnode.workers")

_abandoned: list[object] = []  # connections of a parent process: closing them in a child could disturb the parent


class Workers:
    """This process as one of the workers. It takes part from `join` to `leave`."""

    def __init__(self, node: NodeState, folder: Path) -> None:
        self._node = node
        self._folder = folder
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._id = os.urandom(8).hex()
        self._database: sqlite3.Connection | None = None
        self._file_id: tuple[int, int] | None = None  # of the open file
        self._members = self._leader = -1  # descriptors of the lock files
        self._data_version = self._seen_version = -1
        self._unwritten: dict[str, tuple[ServiceState, Evidence]] = {}
        self._unwritten_issues: dict[str, bool] = {}
        self._unwritten_saved_state: str | None = None
        self._problem = ""
        self._retry_at_s = -math.inf

    def after_fork(self) -> None:
        """The child is another worker. While it has the descriptors of its parent, it would keep the parent's locks."""
        for descriptor in (self._members, self._leader):
            if descriptor >= 0:
                os.close(descriptor)
        _abandoned.append(self._database)
        self._lock = threading.Lock()
        self._reset()

    # ---- membership

    def join(self) -> None:
        """Raises `StoreError`. The first worker removes what an earlier run of the program left."""
        if self._pid != os.getpid():  # after a fork that Python did not notice, as that of uWSGI
            self.after_fork()
        claims = {service.id: state for service, state in self._node if state.last_evidence_at_s is not None}
        issues = self._node.condition.issues
        with self._lock:
            if self._database is not None:
                return
            try:
                self._open_folder()
                self._join_members()
                self._leader = _open_lock(self._folder / "leader.lock")
                self._database = self._open_database()
                self._file_id = self._file_id_at_path()
                shared, unreadable = self._shared_states(self._database)
            except (OSError, sqlite3.Error) as exc:
                self._close()
                cause = os_error_text(exc) if isinstance(exc, OSError) else exc
                raise StoreError(f"cannot share states with other workers in {self._folder}: {cause}") from exc
            except BaseException:
                self._close()
                raise
        self._unsubscribe = self._node.subscribe(self._on_change)
        for issue in issues:
            self.set_issue(issue, is_set=True)
        # What this process reported before, such as `handle.up()` at the import of a module, is no news to the others:
        # a worker that starts again would report Up what they know to be Down. Only what is worse counts.
        taken = self._node.take_over(shared, issues, claims)
        news = {service.id: state for service, state in self._node if service.id not in taken}
        news = {key: state for key, state in news.items() if _is_news(state, is_known=key in unreadable)}
        self.publish(news, {service_id: _last_report(state) for service_id, state in news.items()})
        self.sync()

    def _shared_states(self, database: sqlite3.Connection) -> tuple[dict[str, tuple[ServiceState, Evidence]], set[str]]:
        """By service id, and the ids of those that another version has written in another form."""
        shared: dict[str, tuple[ServiceState, Evidence]] = {}
        unreadable: set[str] = set()
        for service_id, state, evidence in database.execute(_STATES):
            try:
                shared[service_id] = _state(state), _evidence(evidence)
            except (TypeError, ValueError):
                unreadable.add(service_id)
        return shared, unreadable

    def leave(self) -> None:
        with self._lock:
            if self._database is not None:
                self._unsubscribe()
                self._close()

    def try_elect(self) -> bool:
        return _try_lock(self._leader, fcntl.LOCK_EX)

    def resign(self) -> None:
        fcntl.flock(self._leader, fcntl.LOCK_UN)

    def _open_folder(self) -> None:
        with suppress(FileExistsError):
            self._folder.mkdir(mode=0o700, parents=True)
        info = self._folder.lstat()
        if info.st_uid != os.geteuid() or info.st_mode & 0o022:
            raise StoreError(
                f"other users can change the states of the workers in {self._folder}; "
                "name a folder that only the user of the program can write to"
            )

    def _join_members(self) -> None:
        """A shared lock, held by all members. The first one can have it alone, and starts with an empty file."""
        self._members = _open_lock(self._folder / "members.lock")
        deadline_s = time.monotonic() + JOIN_TIMEOUT_S
        while True:
            if _try_lock(self._members, fcntl.LOCK_EX):
                for suffix in ("", "-wal", "-shm"):
                    (self._folder / f"{STATES_FILE}{suffix}").unlink(missing_ok=True)
            if _try_lock(self._members, fcntl.LOCK_SH):
                return
            if time.monotonic() > deadline_s:
                raise StoreError(f"another worker that uses {self._folder} has not finished its start")
            time.sleep(0.01)

    def _open_database(self) -> sqlite3.Connection:
        path = self._folder / STATES_FILE
        with suppress(FileExistsError):  # not opened: closing a descriptor releases all locks of SQLite on the file
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
        database = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        try:
            database.execute("PRAGMA journal_mode = WAL")  # readers never wait
            database.execute("PRAGMA synchronous = OFF")  # after a crash of the machine nothing is read
            database.executescript(_SCHEMA)
        except BaseException:
            database.close()
            raise
        return database

    def _file_id_at_path(self) -> tuple[int, int]:
        info = (self._folder / STATES_FILE).stat()
        return info.st_dev, info.st_ino

    def _check_is_at_path(self) -> None:
        """Workers that start later share another file: this one would not have what they report."""
        try:
            is_at_path = self._file_id_at_path() == self._file_id
        except OSError as exc:
            raise StoreError(f"{STATES_FILE}: {os_error_text(exc)}; restart the workers") from exc
        if not is_at_path:
            raise StoreError(f"{STATES_FILE} was replaced while in use; restart the workers")

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
        for descriptor in (self._members, self._leader):
            if descriptor >= 0:
                os.close(descriptor)
        self._reset()

    # ---- states

    def sync(self) -> None:
        """Take over what other workers have written since the last call."""
        if self._pid != os.getpid():  # a fork; this process has not joined yet
            return
        with self._lock, self._problems_reported():
            if self._database is None or self._is_waiting or not self._adopt_news(self._database):
                return
        self._node.feed.deliver()

    def _adopt_news(self, database: sqlite3.Connection) -> bool:
        self._check_is_at_path()
        self._flush()
        (data_version,) = database.execute("PRAGMA data_version").fetchone()
        if data_version == self._data_version:
            return False
        rows = database.execute(_NEWS, (self._seen_version, self._id)).fetchall()
        issues = tuple(issue for (issue,) in database.execute("SELECT issue FROM issues ORDER BY rowid"))
        self._data_version = data_version
        self._seen_version = max((self._seen_version, *(version for _, version, _, _ in rows)))
        news = {service_id: (_state(state), _evidence(evidence)) for service_id, _, state, evidence in rows}
        self._node.take_over(news, issues)
        return True

    def publish(self, states: Mapping[str, ServiceState], checks: Mapping[str, Evidence]) -> None:
        """Write the evidence that this worker has recorded. If that fails, it is repeated at the next read."""
        with self._lock, self._problems_reported():
            if self._database is not None:
                self._unwritten |= {service_id: (state, checks[service_id]) for service_id, state in states.items()}
                self._flush()

    def set_issue(self, issue: str, *, is_set: bool) -> None:
        with self._lock, self._problems_reported():
            if self._database is not None:
                self._unwritten_issues[issue] = is_set
                self._flush()

    def save_state(self, text: str) -> None:
        """Save the state of the notifications for the worker that is elected next."""
        with self._lock, self._problems_reported():
            if self._database is not None:
                self._unwritten_saved_state = text
                self._flush()

    async def load_state(self) -> str | None:
        with self._lock, self._problems_reported():
            if self._database is not None:
                row = self._database.execute("SELECT text FROM saved_state").fetchone()
                return None if row is None else str(row[0])
        return None

    @property
    def _is_waiting(self) -> bool:
        """For the next attempt after a failure."""
        return self._node.now_s() < self._retry_at_s

    def _flush(self) -> None:
        has_unwritten = self._unwritten or self._unwritten_issues or self._unwritten_saved_state is not None
        if self._database is None or self._is_waiting or not has_unwritten:
            return
        with _transaction(self._database) as database:
            database.execute("UPDATE counter SET version = version + 1")
            for service_id, (state, evidence) in self._unwritten.items():
                at_s = evidence.at_s if state.last_evidence_at_s is None else state.last_evidence_at_s
                database.execute(_PUBLISH, (service_id, self._id, at_s, _encode(state), _encode(evidence)))
            for issue, is_set in self._unwritten_issues.items():
                statement = (
                    "INSERT OR IGNORE INTO issues VALUES (?)" if is_set else "DELETE FROM issues WHERE issue = ?"
                )
                database.execute(statement, (issue,))
            if self._unwritten_saved_state is not None:
                database.execute("INSERT OR REPLACE INTO saved_state VALUES (0, ?)", (self._unwritten_saved_state,))
        self._unwritten.clear()
        self._unwritten_issues.clear()
        self._unwritten_saved_state = None

    def _on_change(self, change: Change) -> None:
        """A service that was registered takes over its state; one that starts again without evidence removes it."""
        starts_again = change.after is None or change.after.last_evidence_at_s is None
        if change.kind is ChangeKind.REGISTERED:
            self._seen_version = self._data_version = -1
        elif change.kind in (ChangeKind.DEREGISTERED, ChangeKind.REPLACED) and starts_again:
            with self._lock, self._problems_reported():
                self._unwritten.pop(change.service_id or "", None)
                if self._database is not None:
                    self._database.execute("DELETE FROM states WHERE service_id = ?", (change.service_id,))

    @contextmanager
    def _problems_reported(self) -> Iterator[None]:
        """A worker that cannot read or write the states does not know those of the others: its health is 503."""
        try:
            yield
        except (sqlite3.Error, StoreError, TypeError, ValueError) as exc:  # or another version has written a state
            problem = f"cannot share states with other workers in {self._folder}: {exc}"
            if problem != self._problem:
                log.warning("%s", problem, extra={"event": "workers_failed"})
            issues = tuple(issue for issue in self._node.condition.issues if issue != self._problem)
            self._problem, self._data_version = problem, -1  # read everything again when it works
            self._retry_at_s = self._node.now_s() + RETRY_AFTER_S
            self._node.take_over({}, (*issues, problem))
        else:
            if self._problem and not self._is_waiting:
                log.info("states are shared with other workers again", extra={"event": "workers_recovered"})
                self._problem, self._data_version = "", -1


class ElectedScheduler:
    """Runs the checks in the worker that is elected; in the others, it waits for its turn.

    The context of `waiting` is open until this worker is elected; from then on, the context of `elected` is open.
    """

    def __init__(
        self,
        node: NodeState,
        workers: Workers,
        scheduler: ProbeScheduler,
        *,
        waiting: Callable[[], AbstractAsyncContextManager[None]],
        elected: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        self._node = node
        self._workers = workers
        self._scheduler = scheduler
        self._waiting = waiting
        self._elected = elected
        self._is_elected = False
        self._stop_requested = asyncio.Event()
        self._pid = os.getpid()

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run(), name="svcnode worker")
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        self._stop_requested.set()
        if exc_type is not None:
            self._task.cancel()
        try:
            await asyncio.wait([self._task])
        except asyncio.CancelledError:
            self._task.cancel()
            raise
        self._workers.leave()

    @property
    def is_running(self) -> bool:
        """Also while another worker runs the checks."""
        return self._pid == os.getpid() and not self._task.done() and self._loop.is_running()

    def next_check_in_s(self, service_id: str) -> float | None:
        return self._scheduler.next_check_in_s(service_id) if self._is_elected else None

    def ping(self, answer: Callable[[], object]) -> bool:
        """As that of the scheduler; False also while another worker runs the checks."""
        return self._is_elected and self._scheduler.ping(answer)

    async def _run(self) -> None:
        try:
            if not await self._wait_for_election():
                return
            log.info("this worker runs the checks", extra={"event": "worker_elected"})
            try:
                await self._check_services()
            finally:
                self._workers.resign()
        except Exception:
            log.exception("the checks have stopped", extra={"event": "probing_stopped"})

    async def _wait_for_election(self) -> bool:
        """False if this worker stops before."""
        if self._workers.try_elect():
            return True
        async with self._waiting():
            while not await self._stops_within(ELECTION_INTERVAL_S):
                self._node.expire_stale()  # so that listeners are called without a read
                if self._workers.try_elect():
                    return True
        return False

    async def _stops_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop_requested.wait(), seconds)
        return self._stop_requested.is_set()

    async def _check_services(self) -> None:
        async with self._elected(), self._scheduler:
            self._is_elected = True
            try:
                await self._stop_requested.wait()
            finally:
                self._is_elected = False


def _open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    database.execute("BEGIN IMMEDIATE")
    try:
        yield database
    except BaseException:
        database.execute("ROLLBACK")
        raise
    database.execute("COMMIT")


# ---- states and evidence as JSON

_OUTCOMES = {Status.UP: Outcome.READY, Status.INITIALIZING: Outcome.NOT_READY, Status.DOWN: Outcome.FAILED}


def _last_report(state: ServiceState) -> Evidence:
    assert state.last_evidence_at_s is not None
    return Evidence(Verdict(_OUTCOMES[state.status], state.reason, state.code), state.last_evidence_at_s)


def _is_news(state: ServiceState, *, is_known: bool) -> bool:
    """What the others know of, and this worker cannot read, may be worse than anything but Down."""
    return state.last_evidence_at_s is not None and (not is_known or state.status is Status.DOWN)


def _encode(value: ServiceState | Evidence) -> str:
    return json.dumps(value, default=_enum_value)


def _enum_value(value: object) -> object:
    assert isinstance(value, Enum)
    return value.value


def _state(text: str) -> ServiceState:
    state = ServiceState(*json.loads(text))
    return state._replace(
        status=Status(state.status),
        code=known_code(state.code),
        recent_failures=_failures(state.recent_failures),
        failures_before_run=_failures(state.failures_before_run),
        known_before=None,  # there is evidence now
    )


def _failures(fields: Any) -> RecentFailures:  # noqa: ANN401  as JSON has them
    failures, repeated_at_s, is_unreliable = fields
    return RecentFailures(failures, tuple(repeated_at_s), is_unreliable)


def _evidence(text: str) -> Evidence:
    (outcome, reason, code), at_s, duration_s = json.loads(text)
    return Evidence(Verdict(Outcome(outcome), reason, known_code(code)), at_s, duration_s)
