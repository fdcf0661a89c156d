"""`mysql://user:password@host:port/database`, `mariadb://…`: a MySQL or MariaDB server that answers a query.

ready      the server answers a query; the write of `write` is committed; `query` returns TRUE, or what `require` says
not ready  the server is read-only, and `role` is "primary" or it is not a replica; `role` is "replica" and it is not a
           replica; it is a Galera member without a quorum, or not synced; it is a replica that is further behind than
           `max_lag`, whose replication has stopped, or whose `primary` is offline; the server refuses a statement
           because it is read-only or has no space or memory left; a condition of `starting` holds; a value that must
           advance has not yet; the certificate expires within `min_cert_days`
failed     any other error, such as wrong credentials or too many connections; the write does not end in time; `query`
           does not return TRUE, or what `require` says; connection refused, host unreachable, certificate not trusted
unknown    no file descriptors or ports left on this machine; the resolver does not answer
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import struct
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from asyncmy.cursors import Cursor
from asyncmy.errors import InternalError, MySQLError, ProgrammingError

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Outcome, Verdict
from svcnode.core.url import UrlForm
from svcnode.net.clock import monotonic_s
from svcnode.net.trace import step
from svcnode.probes.base import CheckError, time_left_s
from svcnode.probes.mysql_connection import MysqlConnection
from svcnode.probes.replication import (
    NOT_READY_CODES,
    RETRY_PAUSES_S,
    KnownPositions,
    ReplicatedProbe,
    write_code,
)
from svcnode.probes.session import driver_error_text
from svcnode.probes.sql import Row

if TYPE_CHECKING:
    from svcnode.core.url import Url

ER_PARSE_ERROR = 1064
ER_UNKNOWN_SYSTEM_VARIABLE = 1193
ER_SPECIFIC_ACCESS_DENIED = 1227
_READ_ONLY_QUERY = "SELECT @@global.read_only AS read_only, @@global.innodb_read_only AS innodb_read_only"
# Needs no privilege. A server without Galera has no provider; MySQL has none of these names.
_STATUS_QUERY = """\
SHOW STATUS WHERE Variable_name IN
('wsrep_provider_name', 'wsrep_cluster_status', 'wsrep_ready', 'wsrep_local_state', 'Slaves_running')"""
GALERA_JOINING, GALERA_JOINED = "1", "3"  # wsrep_local_state
# The statements that list all sources of a replica: MariaDB, MySQL, and MySQL before 8.0.22. MariaDB also accepts the
# second, but lists only one source then, so its own statement comes first.
REPLICA_STATUS = ("SHOW ALL SLAVES STATUS", "SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
_ACCESS_DENIED = 1045
_USER_LIMIT = 1226  # ER_USER_LIMIT_REACHED: of connections at the same time, or of something per hour
# The resource that the text names: max_queries_per_hour, which MySQL calls max_questions, and so on.
_PER_HOUR = re.compile(r"'max_(?:questions|updates|\w+_per_hour)'")
# MariaDB executes the first comment, MySQL the second.
_PRIMARY_QUERY = "SELECT /*M! @@global.gtid_binlog_pos */ /*!50700 @@global.gtid_executed */ AS position"
_APPLIED_QUERY = "SELECT /*M! @@global.gtid_slave_pos */ /*!50700 @@global.gtid_executed */ AS position"
# By MySQL and MariaDB error number. Numbers from 2000 to 2999 are errors of the client.
_NUMBERS = {
    # Wrong password, protocol, plugin not loaded, no password, password expired (2), plugin the driver lacks.
    ReasonCode.AUTH_FAILED: (_ACCESS_DENIED, 1251, 1524, 1698, 1820, 1862, 2059),
    # Unknown column; syntax; no such function; the query writes.
    ReasonCode.BAD_REQUEST: (1054, ER_PARSE_ERROR, 1305, 1792),
    ReasonCode.CLIENT_BLOCKED: (1129,),
    ReasonCode.CLIENT_NOT_ALLOWED: (1130,),
    ReasonCode.CONNECTION_CLOSED: (1152, 1184, 1927, 2006, 2013),
    ReasonCode.CONNECTIONS_DISABLED: (3032,),  # offline mode
    ReasonCode.NO_QUORUM: (1047,),  # a Galera member that is not ready
    ReasonCode.NOT_FOUND: (1049, 1146),  # database, table
    ReasonCode.OUT_OF_MEMORY: (1037, 1041),
    # Database, table, column, a privilege, function.
    ReasonCode.PERMISSION_DENIED: (1044, 1142, 1143, ER_SPECIFIC_ACCESS_DENIED, 1370),
    ReasonCode.READ_ONLY: (1036, 1290, 1836, 1874),  # table, server, server, innodb_read_only
    ReasonCode.SHUTTING_DOWN: (1053,),
    ReasonCode.STORAGE_FULL: (1021, 1114),  # disk, table
    # A limit for locks; max_statement_time of MariaDB; max_execution_time of MySQL.
    ReasonCode.TIMEOUT: (1205, 1969, 3024),
    ReasonCode.TLS_FAILED: (2026,),
    ReasonCode.TLS_REQUIRED: (3159,),
    ReasonCode.TOO_MANY_CONNECTIONS: (1040, 1203, _USER_LIMIT),  # of the server, of all users, of this user
    ReasonCode.USER_DISABLED: (3118, 4151),  # MySQL, MariaDB: account locked
}
_CODES = {number: code for code, numbers in _NUMBERS.items() for number in numbers}
# What a write is refused with, where that differs.
_WRITE_CODES = {
    1205: ReasonCode.WRITE_TIMEOUT,
    1317: ReasonCode.WRITE_TIMEOUT,  # interrupted
    1792: ReasonCode.READ_ONLY,  # transaction_read_only
    1969: ReasonCode.WRITE_TIMEOUT,
    3024: ReasonCode.WRITE_TIMEOUT,
}
# The number of the system's error is only in the text: "Errcode: 28", "Got error 28 from storage engine".
_NO_SPACE = re.compile(r"\b(?:Errcode: |error )(?:28|122)\b")
# A deadlock, or a conflict with a write on another Galera member; a record that has changed since it was read.
_CONFLICTS = (1213, 1020)
_RETRY_S = 0.02
_MAX_NAME_CHARS = 64
# A check writes to one of these rows, chosen at random: several nodes rarely conflict, and the table stays small.
_WRITE_ROWS = 256


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MysqlProbe(ReplicatedProbe[MysqlConnection]):
    tls: bool = False
    # By the name of a source, or None for `primary`.
    _positions: dict[str | None, KnownPositions[Position]] = field(init=False, compare=False, default_factory=dict)
    # The sessions whose write did not end before the deadline, and the start of the write.
    _unfinished_writes: dict[int, float] = field(init=False, compare=False, default_factory=dict)

    default_port: ClassVar = 3306
    has_booleans: ClassVar = False
    tls_enabled_by: ClassVar = "tls = true"
    primary_schemes: ClassVar = ("mysql", "mariadb")
    primary_example: ClassVar = "mariadb://10.0.0.5"
    url_form: ClassVar = UrlForm(query="")

    def __post_init__(self) -> None:
        if self.url.query:
            raise ProbeError("the URL has a query; set options in the probe table instead")
        self.database_name()
        user, _ = self.credentials()
        if not user:
            raise OptionError("username", f"is missing; write {self.url.scheme}://user@host/database")
        self.validate_connection()
        if self.write:
            self._validate_table()
        self.validate_replication()

    @property
    def uses_tls(self) -> bool:
        return self.tls

    def primary_tls_options(self, url: Url) -> dict[str, Any]:
        return {"tls": self.tls}

    def _validate_table(self) -> None:
        parts = self.write.split(".")
        if len(parts) > 2 or not all(0 < len(part) <= _MAX_NAME_CHARS and part.isprintable() for part in parts):
            raise OptionError("write", 'must be a table, or a database and a table, such as "monitoring.svcnode_write"')
        if len(parts) == 1 and not self.database_name():
            raise OptionError("write", f'the URL names no database; set "database.{self.write}"')

    async def open(self) -> MysqlConnection:
        endpoint = self.endpoint()
        tls = (await self.tls_context(), self.server_name or endpoint.host) if self.tls else None
        user, password = self.credentials()
        database = self.database_name() or None
        # The driver encodes a password that is a str as latin-1.
        connection = MysqlConnection(tls, user=user, password=password.encode(), database=database)
        with self.abort_on_error(connection):
            await connection.connect_to(endpoint)
        return connection

    async def check_connection(self, connection: MysqlConnection) -> Verdict | None:
        verdict = await self._state_verdict(connection)
        if verdict is None and (self.query or self.write):
            await _prepare_session(connection, in_utc=bool(self.require or self.starting))
        if verdict is None and self.write:
            with step("write"):
                verdict = await self._write_verdict(connection)
        if verdict is None and self.query:
            verdict = await self._query_verdict(connection)
        return verdict

    async def _state_verdict(self, connection: MysqlConnection) -> Verdict | None:
        """By what the server says about itself."""
        read_only, is_reader = await _read_only_variables(connection)
        if self.role == "primary" and read_only:
            return self.not_ready('the server is read-only, but role is "primary"', ReasonCode.READ_ONLY)
        if self.write and read_only:
            return self.not_ready("the server is read-only, and write is set", ReasonCode.READ_ONLY)
        status = {
            str(row.get("Variable_name")): str(row.get("Value")) for row in await _rows(connection, _STATUS_QUERY)
        }
        if (verdict := self._galera_verdict(status)) is not None:
            return verdict
        if self.role == "replica" or self.max_lag is not None:
            sources = await _replica_sources(connection)
            if (verdict := await self._replica_verdict(connection, sources, is_reader=is_reader)) is not None:
                return verdict
            why_not = "" if sources else _NO_REPLICA
        else:
            why_not = await _why_no_replica(connection, status) if read_only else ""
        if read_only and not self.role and why_not:
            return self.not_ready(f"the server is read-only, and {why_not}", ReasonCode.READ_ONLY)
        return None

    def _galera_verdict(self, status: dict[str, str]) -> Verdict | None:
        if not status.get("wsrep_provider_name"):
            return None
        if (cluster := status.get("wsrep_cluster_status")) != "Primary":
            text = f"the Galera member is not in the primary component (wsrep_cluster_status is {cluster})"
            return self.not_ready(driver_error_text(text), ReasonCode.NO_QUORUM)
        state, ready = status.get("wsrep_local_state"), status.get("wsrep_ready")
        if ready != "ON" or state in (GALERA_JOINING, GALERA_JOINED):
            text = f"the Galera member is not synced (wsrep_local_state is {state}, wsrep_ready is {ready})"
            return self.not_ready(driver_error_text(text), ReasonCode.SYNCING)
        return None

    async def _query_verdict(self, connection: MysqlConnection) -> Verdict | None:
        # Not START TRANSACTION READ ONLY: MariaDB ends that transaction before it runs a statement such as DROP TABLE.
        await _rows(connection, "SET SESSION TRANSACTION READ ONLY")
        row = await _query_row(connection, self.query)
        await _rows(connection, "SET SESSION TRANSACTION READ WRITE")
        return await self.row_verdict(row)

    async def _write_verdict(self, connection: MysqlConnection) -> Verdict | None:
        if (verdict := await self._unfinished_write_verdict(connection)) is not None:
            return verdict
        started_s = time.monotonic()
        try:
            return await self._insert_verdict(connection)
        except BaseException:  # at the deadline too
            self._unfinished_writes[connection.thread_id()] = started_s
            raise

    async def _unfinished_write_verdict(self, connection: MysqlConnection) -> Verdict | None:
        """A server with a full or frozen disk cannot end a write. Another one would only take another connection."""
        for session_id, started_s in list(self._unfinished_writes.items()):
            waiting_s = math.floor(time.monotonic() - started_s)
            row = await _first_row(
                connection,
                "SELECT STATE AS state FROM information_schema.PROCESSLIST "  # noqa: S608  whole numbers
                f"WHERE ID = {session_id} AND COMMAND IN ('Query', 'Killed') AND TIME + 1 >= {waiting_s}",
            )
            if row is not None:
                text = f"the write of an earlier check has not ended for {waiting_s} s; its state: {row.get('state')}"
                return self.failed(driver_error_text(text), ReasonCode.WRITE_TIMEOUT)
            self._unfinished_writes.pop(session_id, None)
        return None

    async def _insert_verdict(self, connection: MysqlConnection) -> Verdict | None:
        """Write one row, and again after a conflict with another writer."""
        table = _quoted_table(self.write)
        while True:
            row = random.randrange(_WRITE_ROWS)  # noqa: S311  no secret
            try:
                await _rows(
                    connection,
                    f"INSERT INTO {table} (id, written_at) VALUES ({row}, NOW(6)) "  # noqa: S608  a quoted name
                    "ON DUPLICATE KEY UPDATE written_at = NOW(6)",
                )
            except MySQLError as exc:
                if exc.args[0] not in _CONFLICTS:
                    return self._write_error_verdict(exc)
            else:
                return None
            await asyncio.sleep(_RETRY_S)

    def _write_error_verdict(self, exc: MySQLError) -> Verdict:
        number, message = exc.args
        code = _WRITE_CODES.get(number) or write_code(self._reason_code(number, message))
        text = _server_error_text(number, message)
        if code in (ReasonCode.NOT_FOUND, ReasonCode.PERMISSION_DENIED, ReasonCode.WRITE_FAILED):
            text += f"; needed: SELECT, INSERT and UPDATE on the table, created by: {_create_table(self.write)}"
        return self.write_error_verdict(text, code)

    # ---- the lag of a replica

    async def _replica_verdict(
        self, connection: MysqlConnection, sources: list[dict[str, Any]], *, is_reader: bool
    ) -> Verdict | None:
        if not sources:
            if self.role != "replica" or is_reader:
                return None
            return self.not_ready('the server is not a replica, but role is "replica"', ReasonCode.WRONG_ROLE)
        for source in sources:
            if not _is_running(source):
                return self.not_ready(f"replication{_from(source)} is not running", ReasonCode.REPLICATION_STOPPED)
        if self.max_lag is None:
            return None
        if self._primary is not None:
            return await self._primary_lag_verdict(connection, self._primary, sources, self.max_lag)
        return self._lag_verdict(sources, self.max_lag)

    def _lag_verdict(self, sources: list[dict[str, Any]], max_lag_s: float) -> Verdict | None:
        """By the source with the largest lag."""
        now_s = monotonic_s()
        lags = [(self._source_lag_s(source, now_s, max_lag_s), source) for source in sources]
        lag_s, worst = max(lags, key=lambda lag: lag[0])
        if lag_s <= max_lag_s:
            return None
        text = f"replication{_from(worst)} is {lag_s:.1f} s behind, but max_lag is {max_lag_s:g} s"
        return self.not_ready(text, ReasonCode.LAGGING)

    def _source_lag_s(self, source: dict[str, Any], now_s: float, max_lag_s: float) -> float:
        """At most this far behind what was received.

        The server reports the age of the event that it applies. That is more than the lag if the transaction was open
        for a long time on the source.
        """
        received, applied = _received_position(source), _applied_position(source)
        if not received or not applied:
            return _reported_lag_s(source)
        known = self._positions.setdefault(_source_name(source), KnownPositions())
        known.record(now_s, received, max_lag_s)
        return min(_reported_lag_s(source), known.lag_s(now_s, partial(_has_reached, applied)))

    async def _primary_lag_verdict(
        self, connection: MysqlConnection, primary: MysqlProbe, sources: list[dict[str, Any]], max_lag_s: float
    ) -> Verdict | None:
        asked_s = monotonic_s()
        position = await self.ask_primary(primary, partial(_position, query=_PRIMARY_QUERY))
        if isinstance(position, Verdict):
            return position
        if not position:
            text = f"the lag is not known, because the primary has no GTIDs in its binary log ({primary.url})"
            return self.not_ready(text, ReasonCode.NOT_SUPPORTED)
        known = self._positions.setdefault(None, KnownPositions())
        known.record(asked_s, position, max_lag_s)
        # While a replica applies nothing, it reports 0 s, also if its source is behind the primary.
        reported_s = max((_reported_lag_s(source) for source in sources if _is_applying(source)), default=math.inf)
        for pause_s in (0.0, *RETRY_PAUSES_S):
            await asyncio.sleep(pause_s)
            applied = await _position(connection, query=_APPLIED_QUERY)
            lag_s = min(reported_s, known.lag_s(asked_s, partial(_has_reached, applied)))
            if lag_s <= max_lag_s:
                return None
        behind = "" if lag_s == math.inf else f" by {lag_s:.1f} s"
        text = f"the replica is behind the primary{behind}, but max_lag is {max_lag_s:g} s"
        return self.not_ready(text, ReasonCode.LAGGING)

    async def disconnect(self, connection: MysqlConnection) -> None:
        connection.log_out()
        await asyncio.sleep(0)  # uvloop sends at the end of the iteration

    def reset_byte_count(self, connection: MysqlConnection) -> None:
        connection.reset_byte_count()

    def transport(self, connection: MysqlConnection) -> asyncio.Transport:
        return connection.transport

    def abort(self, connection: MysqlConnection) -> None:
        connection.close()

    def verdict_for_driver_error(self, exc: Exception) -> Verdict:
        if isinstance(exc, MySQLError) and len(exc.args) == 2:
            number, message = exc.args
            code = self._reason_code(number, message)
            outcome = Outcome.NOT_READY if code in NOT_READY_CODES else Outcome.FAILED
            return CheckError(_server_error_text(number, message), code, outcome).verdict(self.url)
        if isinstance(exc, InternalError | IndexError | ValueError | struct.error):
            return self.failed("the response is not MySQL", ReasonCode.PROTOCOL_ERROR)
        return super(MysqlProbe, self).verdict_for_driver_error(exc)

    def _reason_code(self, number: object, message: object) -> ReasonCode:
        if number == _ACCESS_DENIED and not self.credentials()[1]:
            return ReasonCode.AUTH_REQUIRED
        if _NO_SPACE.search(str(message)):
            return ReasonCode.STORAGE_FULL
        if number == _USER_LIMIT and _PER_HOUR.search(str(message)):
            return ReasonCode.RATE_LIMITED
        return _CODES.get(number, ReasonCode.SERVER_ERROR) if isinstance(number, int) else ReasonCode.SERVER_ERROR


def _server_error_text(number: object, message: object) -> str:
    return f"{driver_error_text(message)} ({number})"


async def _read_only_variables(connection: MysqlConnection) -> tuple[bool, bool]:
    """Whether the server is read-only, and whether its storage engine is, as that of a reader of Aurora is."""
    try:
        row = await _first_row(connection, _READ_ONLY_QUERY)
    except MySQLError as exc:
        if exc.args[0] != ER_UNKNOWN_SYSTEM_VARIABLE:
            raise
        row = {"read_only": 0} if await _first_row(connection, "SELECT 1") else None
    if row is None or "read_only" not in row:
        raise CheckError("the query of read_only returned no row", ReasonCode.UNEXPECTED_RESPONSE)
    is_reader = _is_on(row.get("innodb_read_only", 0))
    return is_reader or _is_on(row["read_only"]), is_reader


def _is_on(value: object) -> bool:
    return str(value).upper() not in ("0", "OFF")


_NO_REPLICA = "is not a replica"


async def _why_no_replica(connection: MysqlConnection, status: dict[str, str]) -> str:
    """Empty for a replica.

    Without the privilege to list the sources, by the number of replications that run, which only MariaDB reports.
    """
    try:
        return "" if await _replica_sources(connection) else _NO_REPLICA
    except MySQLError as exc:
        if exc.args[0] != ER_SPECIFIC_ACCESS_DENIED:
            raise
        if status.get("Slaves_running", "0") != "0":
            return ""
        return "this user may not see whether it is a replica; grant SLAVE MONITOR, or on MySQL REPLICATION CLIENT"


async def _prepare_session(connection: MysqlConnection, *, in_utc: bool) -> None:
    """Let the server end a statement at the deadline itself: it often does not notice that its client has gone.

    MariaDB executes the first comment, MySQL the second.
    """
    settings = "autocommit = 1" + (", time_zone = '+00:00'" if in_utc else "")
    if (limit_s := time_left_s()) < math.inf:
        whole_s = max(1, math.ceil(limit_s))
        settings += (
            f", lock_wait_timeout = {whole_s}, innodb_lock_wait_timeout = {whole_s}"
            f" /*M!, max_statement_time = {max(limit_s, 0.001):.3f} */"
            f" /*!50708, max_execution_time = {max(1, math.ceil(limit_s * 1000))} */"
        )
    await _rows(connection, f"SET SESSION {settings}")


def _quoted_table(name: str) -> str:
    return ".".join(f"`{part.replace('`', '``')}`" for part in name.split("."))


def _create_table(name: str) -> str:
    columns = "id TINYINT UNSIGNED PRIMARY KEY, written_at TIMESTAMP(6) NOT NULL"
    return f"CREATE TABLE {_quoted_table(name)} ({columns}) ENGINE = InnoDB"


async def _replica_sources(connection: MysqlConnection) -> list[dict[str, Any]]:
    """One row for each source of a replica; none if the server is not a replica."""
    *newer, oldest = REPLICA_STATUS
    for query in newer:
        try:
            return await _rows(connection, query)
        except ProgrammingError as exc:
            if exc.args[0] != ER_PARSE_ERROR:
                raise
    return await _rows(connection, oldest)


def _column(source: dict[str, Any], name: str) -> Any:  # noqa: ANN401  the driver's
    """By its name in MySQL, or its older name, which MariaDB has."""
    older = name.replace("Replica_", "Slave_").replace("Source", "Master")
    return source.get(name, source.get(older))


def _is_running(source: dict[str, Any]) -> bool:
    return _column(source, "Seconds_Behind_Source") is not None and _column(source, "Replica_IO_Running") == "Yes"


def _reported_lag_s(source: dict[str, Any]) -> float:
    return float(_column(source, "Seconds_Behind_Source"))


def _is_applying(source: dict[str, Any]) -> bool:
    return not _has_reached(_applied_position(source), _received_position(source))


def _received_position(source: dict[str, Any]) -> Position:
    return _log_position(_column(source, "Source_Log_File"), _column(source, "Read_Source_Log_Pos"))


def _applied_position(source: dict[str, Any]) -> Position:
    return _log_position(_column(source, "Relay_Source_Log_File"), _column(source, "Exec_Source_Log_Pos"))


def _source_name(source: dict[str, Any]) -> str:
    """The name of the channel; "" for the default channel."""
    return str(source.get("Channel_Name", source.get("Connection_name")) or "")


def _from(source: dict[str, Any]) -> str:
    name = _source_name(source)
    return f' from "{driver_error_text(name)}"' if name else ""


# Which transactions a server has: by GTID domain, server or name of a log file, the last number. Later ones are larger.
Position = dict[str, tuple[int, ...]]


def _has_reached(applied: Position, position: Position) -> bool:
    return all(applied.get(key, ()) >= number for key, number in position.items())


def _log_position(file: object, offset: object) -> Position:
    """Empty if there is none yet."""
    name, _, number = str(file).rpartition(".")
    return {name: (int(number), int(str(offset)))} if number.isdecimal() and str(offset).isdecimal() else {}


def _gtid_position(text: str) -> Position:
    """Of MariaDB: `0-1-100,7-2-5`, which are domain, server and number. Of MySQL: `uuid:1-100:105,uuid:1-7`."""
    position: Position = {}
    for part in filter(None, re.sub(r"\s", "", text).split(",")):
        if ":" in part:
            key, last = part.partition(":")[0], re.split("[:-]", part)[-1]
        else:
            key, _, last = part.split("-")
        position[key] = (int(last),)
    return position


async def _position(connection: MysqlConnection, *, query: str) -> Position:
    row = await _first_row(connection, query)
    if row is None or "position" not in row:
        raise CheckError("the query of the GTIDs returned no row", ReasonCode.UNEXPECTED_RESPONSE)
    return _gtid_position(str(row["position"] or ""))


async def _first_row(connection: MysqlConnection, query: str) -> dict[str, Any] | None:
    return next(iter(await _rows(connection, query)), None)


async def _query_row(connection: MysqlConnection, query: str) -> Row:
    """With the names of its columns as they are: as a dictionary, it could not have one twice."""
    async with connection.cursor(Cursor) as cursor:
        await cursor.execute(query)
        row = await cursor.fetchone()
        return Row() if row is None else Row.of([name for name, *_ in cursor.description], row)


async def _rows(connection: MysqlConnection, query: str) -> list[dict[str, Any]]:
    async with connection.cursor() as cursor:
        await cursor.execute(query)
        return list(await cursor.fetchall())
