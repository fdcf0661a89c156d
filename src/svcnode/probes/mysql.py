"""`mysql://user:password@host:port/database`, `mariadb://…`: a MySQL or MariaDB server that answers a query.

ready      the server responds to ping and `SELECT 1`
not ready  `role` is "primary" and the server is read-only, or `role` is "replica" and the server is not a replica; the
           server is a replica that is further behind one of its sources than `max_lag`, or whose replication from one
           of them has stopped; the certificate expires within `min_cert_days`
failed     any other error, such as wrong credentials or too many connections; connection refused, host unreachable,
           certificate not trusted
unknown    no file descriptors or ports left on this machine; the resolver does not answer

The probe sends no local file if the server requests one, and no plain-text password without TLS.
"""

from __future__ import annotations

import asyncio
import math
import random
import re
import struct
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from asyncmy.connection import Connection, _MySQLProtocol  # type: ignore[attr-defined]
from asyncmy.constants import CLIENT
from asyncmy.cursors import DictCursor
from asyncmy.errors import InternalError, MySQLError, OperationalError, ProgrammingError

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Outcome, Verdict
from svcnode.net.connect import TcpEndpoint, peer_address
from svcnode.net.streams import MAX_RECEIVED_BYTES, ResponseTooLargeError
from svcnode.net.tls import upgrade_transport
from svcnode.net.trace import step
from svcnode.probes.base import CheckError, time_left_s
from svcnode.probes.options import Role, Seconds, WriteTarget
from svcnode.probes.session import LoginProbe, driver_error_text

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

READY = Verdict.ready()
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
# By MySQL and MariaDB error number. Numbers from 2000 to 2999 are errors of the client.
_CODES = {
    1021: ReasonCode.STORAGE_FULL,
    1036: ReasonCode.READ_ONLY,  # table
    1037: ReasonCode.OUT_OF_MEMORY,
    1040: ReasonCode.TOO_MANY_CONNECTIONS,
    1041: ReasonCode.OUT_OF_MEMORY,
    1044: ReasonCode.PERMISSION_DENIED,  # to the database
    _ACCESS_DENIED: ReasonCode.AUTH_FAILED,
    1049: ReasonCode.NOT_FOUND,  # database
    1047: ReasonCode.NO_QUORUM,  # a Galera member that is not ready
    1053: ReasonCode.SHUTTING_DOWN,
    1054: ReasonCode.BAD_REQUEST,  # unknown column
    ER_PARSE_ERROR: ReasonCode.BAD_REQUEST,
    1114: ReasonCode.STORAGE_FULL,  # "the table is full"
    1129: ReasonCode.CLIENT_BLOCKED,
    1130: ReasonCode.CLIENT_NOT_ALLOWED,
    1142: ReasonCode.PERMISSION_DENIED,
    1143: ReasonCode.PERMISSION_DENIED,  # to a column
    1146: ReasonCode.NOT_FOUND,  # table
    1152: ReasonCode.CONNECTION_CLOSED,
    1184: ReasonCode.CONNECTION_CLOSED,
    1203: ReasonCode.TOO_MANY_CONNECTIONS,
    1226: ReasonCode.TOO_MANY_CONNECTIONS,  # max_user_connections
    1205: ReasonCode.TIMEOUT,  # lock_wait_timeout, innodb_lock_wait_timeout
    ER_SPECIFIC_ACCESS_DENIED: ReasonCode.PERMISSION_DENIED,
    1251: ReasonCode.AUTH_FAILED,  # authentication protocol
    1290: ReasonCode.READ_ONLY,
    1305: ReasonCode.BAD_REQUEST,  # no such function
    1370: ReasonCode.PERMISSION_DENIED,  # to a function
    1524: ReasonCode.AUTH_FAILED,  # authentication plugin not loaded
    1698: ReasonCode.AUTH_FAILED,
    1792: ReasonCode.BAD_REQUEST,  # the query writes
    1820: ReasonCode.AUTH_FAILED,  # password expired
    1836: ReasonCode.READ_ONLY,
    1862: ReasonCode.AUTH_FAILED,  # password expired
    1874: ReasonCode.READ_ONLY,  # innodb_read_only
    1927: ReasonCode.CONNECTION_CLOSED,  # MariaDB: connection was killed
    1969: ReasonCode.TIMEOUT,  # MariaDB: max_statement_time
    2006: ReasonCode.CONNECTION_CLOSED,
    2013: ReasonCode.CONNECTION_CLOSED,
    2026: ReasonCode.TLS_FAILED,
    2059: ReasonCode.AUTH_FAILED,  # authentication plugin not supported by the driver
    3024: ReasonCode.TIMEOUT,  # MySQL: max_execution_time
    3032: ReasonCode.CONNECTIONS_DISABLED,  # offline mode
    3118: ReasonCode.USER_DISABLED,  # account locked
    3159: ReasonCode.TLS_REQUIRED,
    4151: ReasonCode.USER_DISABLED,  # MariaDB: account locked
}
# What a write is refused with, where that differs.
_WRITE_CODES = {
    1205: ReasonCode.WRITE_TIMEOUT,
    1317: ReasonCode.WRITE_TIMEOUT,  # interrupted
    1792: ReasonCode.READ_ONLY,  # transaction_read_only
    1969: ReasonCode.WRITE_TIMEOUT,
    3024: ReasonCode.WRITE_TIMEOUT,
}
# A server that says itself why it cannot work is not ready.
_NOT_READY_CODES = (
    ReasonCode.NO_QUORUM,
    ReasonCode.OUT_OF_MEMORY,
    ReasonCode.READ_ONLY,
    ReasonCode.STORAGE_FULL,
)
# The number of the system's error is only in the text: "Errcode: 28", "Got error 28 from storage engine".
_NO_SPACE = re.compile(r"\b(?:Errcode: |error )(?:28|122)\b")
# A deadlock, or a conflict with a write on another Galera member; a record that has changed since it was read.
_CONFLICTS = (1213, 1020)
_RETRY_S = 0.02
_MAX_NAME_CHARS = 64
# A check writes to one of these rows, chosen at random: several nodes rarely conflict, and the table stays small.
_WRITE_ROWS = 256
_MAX_PACKET_BYTES = 2**24 - 1
_UTF8MB4 = 45
_COM_QUIT = b"\x01\x00\x00\x00\x01"


class _LimitedMysqlProtocol(_MySQLProtocol):  # type: ignore[misc]
    """The driver's protocol with a size limit, and with data_received, which TlsProtocol calls."""

    received_bytes = 0

    def buffer_updated(self, nbytes: int) -> None:
        self.received_bytes += nbytes
        if self.received_bytes <= MAX_RECEIVED_BYTES:
            super().buffer_updated(nbytes)
            return
        transport = self.transport
        self.connection_lost(ResponseTooLargeError())
        if transport is not None:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        while data:
            buffer = self.get_buffer(len(data))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            self.buffer_updated(size)
            data = data[size:]


class _MysqlConnection(Connection):
    """The driver's connection, opened by `TcpEndpoint`: the driver's own connect leaks when it is cancelled."""

    # Attributes that the driver's types lack.
    server_capabilities: int
    _client_flag: int
    _loop: asyncio.AbstractEventLoop
    _proto: Any
    _transport: Any
    thread_id: Callable[[], int]
    _get_server_information: Callable[[], Awaitable[None]]
    _request_authentication: Callable[[], Awaitable[object]]

    def __init__(self, tls: tuple[ssl.SSLContext, str] | None, **options: Any) -> None:  # noqa: ANN401  the driver's
        super().__init__(**options)
        self._client_flag &= ~CLIENT.MULTI_STATEMENTS  # `query` is one statement, and cannot end its transaction
        self._tls = tls

    async def connect_to(self, endpoint: TcpEndpoint) -> None:
        self._transport, self._proto = await endpoint.connect(lambda: _LimitedMysqlProtocol(self._loop))
        self._next_seq_id = 0
        with step("log in"):
            await self._get_server_information()
            if self._tls is not None:
                await self._upgrade_to_tls(*self._tls)
            await self._request_authentication()
        self._connected = True

    async def _upgrade_to_tls(self, context: ssl.SSLContext, server_name: str) -> None:
        if not self.server_capabilities & CLIENT.SSL:
            raise CheckError("the server does not support TLS", ReasonCode.TLS_NOT_OFFERED)
        self._client_flag |= CLIENT.SSL | CLIENT.MULTI_RESULTS | (self.server_capabilities & CLIENT.DEPRECATE_EOF)
        self.write_packet(struct.pack("<IIB23x", self._client_flag, _MAX_PACKET_BYTES, _UTF8MB4))
        self._proto = _LimitedMysqlProtocol(self._loop)  # without the bytes received before TLS
        self._transport = await upgrade_transport(self._transport, self._proto, context, server_name)
        self._proto.connection_made(self._transport)
        self._ssl_context, self._secure, self._tls_established = context, True, True

    async def _fill_buffer(self, need: int) -> None:
        try:
            await super()._fill_buffer(need)  # type: ignore[misc]
        except OperationalError as exc:  # the driver hides the error of the system
            raise self._proto.exc or EOFError from exc

    def reset_byte_count(self) -> None:
        self._proto.received_bytes = 0

    def close(self) -> None:
        """Close without waiting for the server, unlike the driver."""
        if self._transport is not None:
            self._transport.abort()
        self._transport = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MysqlProbe(LoginProbe[_MysqlConnection]):
    role: Role = ""
    max_lag: Seconds | None = None
    query: str = ""  # runs in a read-only transaction; its first value must be TRUE, which is 1
    write: WriteTarget = ""  # a table
    tls: bool = False
    _endpoint: TcpEndpoint = field(init=False, compare=False)
    # The sessions whose write did not end before the deadline, and the start of the write.
    _unfinished_writes: dict[int, float] = field(init=False, compare=False, default_factory=dict)

    tls_enabled_by: ClassVar = "tls = true"

    def __post_init__(self) -> None:
        if self.url.query:
            raise ProbeError("the URL has a query; set options in the probe table instead")
        self.database_name()
        user, _ = self.credentials()
        if not user:
            raise OptionError("username", f"is missing; write {self.url.scheme}://user@host/database")
        self.validate_tls_options(uses_tls=self.tls)
        self._validate_write()
        object.__setattr__(self, "_endpoint", TcpEndpoint.of(self.url.require_host(), self.url.port or 3306))

    def _validate_write(self) -> None:
        if not self.write:
            return
        if self.role == "replica":
            raise OptionError("write", 'cannot be used with role = "replica"')
        parts = self.write.split(".")
        if len(parts) > 2 or not all(0 < len(part) <= _MAX_NAME_CHARS and part.isprintable() for part in parts):
            raise OptionError("write", 'must be a table, or a database and a table, such as "monitoring.svcnode_write"')
        if len(parts) == 1 and not self.database_name():
            raise OptionError("write", f'the URL names no database; set "database.{self.write}"')

    async def open(self) -> _MysqlConnection:
        tls = (self.tls_context(), self.server_name or self._endpoint.host) if self.tls else None
        connection = _MysqlConnection(tls, **self._driver_options())
        try:
            await connection.connect_to(self._endpoint)
        except BaseException:  # on cancellation too: nothing else closes the connection
            self.abort(connection)
            raise
        return connection

    def _driver_options(self) -> dict[str, Any]:
        user, password = self.credentials()
        return {
            "user": user,
            "password": password.encode(),  # the driver encodes a str as latin-1
            "database": self.database_name() or None,
            "program_name": "svcnode",
            "cursor_cls": DictCursor,
            "local_infile": False,
            "auth_plugin_map": {} if self.tls else dict.fromkeys(_CLEARTEXT_PLUGINS, _RejectCleartextAuth),
        }

    async def check_connection(self, connection: _MysqlConnection) -> Verdict:
        verdict = await self._state_verdict(connection)
        if verdict is None and (self.query or self.write):
            await _prepare_session(connection)
        if verdict is None and self.write:
            with step("write"):
                verdict = await self._write_verdict(connection)
        if verdict is None and self.query:
            verdict = await self._query_verdict(connection)
        return verdict or (self.certificate_verdict(connection._transport) if self.tls else None) or READY

    async def _state_verdict(self, connection: _MysqlConnection) -> Verdict | None:
        """By what the server says about itself."""
        read_only, is_reader = await _read_only_variables(connection)
        if self.role == "primary" and read_only:
            return self._read_only('role is "primary"')
        status = {
            str(row.get("Variable_name")): str(row.get("Value")) for row in await _rows(connection, _STATUS_QUERY)
        }
        if (verdict := self._galera_verdict(status)) is not None:
            return verdict
        if self.role == "replica" or self.max_lag is not None:
            sources = await _replica_sources(connection)
            if (verdict := self._replica_verdict(sources, is_reader=is_reader)) is not None:
                return verdict
            is_replica = bool(sources)
        else:
            is_replica = read_only and await _is_replica(connection, status)
        if read_only and not self.role and not is_replica:
            return self._read_only("it is not a replica")
        return None

    def _read_only(self, why: str) -> Verdict:
        return Verdict.not_ready(f"the server is read-only; {why}: {self.url}", code=ReasonCode.READ_ONLY)

    def _galera_verdict(self, status: dict[str, str]) -> Verdict | None:
        if not status.get("wsrep_provider_name"):
            return None
        if (cluster := status.get("wsrep_cluster_status")) != "Primary":
            text = f"the Galera member is not in the primary component (wsrep_cluster_status is {cluster})"
            return Verdict.not_ready(f"{driver_error_text(Exception(text))}: {self.url}", code=ReasonCode.NO_QUORUM)
        state, ready = status.get("wsrep_local_state"), status.get("wsrep_ready")
        if ready != "ON" or state in (GALERA_JOINING, GALERA_JOINED):
            text = f"the Galera member is not synced (wsrep_local_state is {state}, wsrep_ready is {ready})"
            return Verdict.not_ready(f"{driver_error_text(Exception(text))}: {self.url}", code=ReasonCode.SYNCING)
        return None

    async def _query_verdict(self, connection: _MysqlConnection) -> Verdict | None:
        # Not START TRANSACTION READ ONLY: MariaDB ends that transaction before it runs a statement such as DROP TABLE.
        await _rows(connection, "SET SESSION TRANSACTION READ ONLY")
        row = await _first_row(connection, self.query)
        await _rows(connection, "SET SESSION TRANSACTION READ WRITE")
        if not row:
            return Verdict.failed(f"the query returned no row: {self.url}", code=ReasonCode.UNEXPECTED_RESPONSE)
        value = next(iter(row.values()))
        if type(value) is not int or value != 1:
            return Verdict.failed(f"the query did not return TRUE: {self.url}", code=ReasonCode.UNEXPECTED_RESPONSE)
        return None

    async def _write_verdict(self, connection: _MysqlConnection) -> Verdict | None:
        if (verdict := await self._unfinished_write_verdict(connection)) is not None:
            return verdict
        started_s = time.monotonic()
        try:
            return await self._insert_verdict(connection)
        except BaseException:  # at the deadline too
            self._unfinished_writes[connection.thread_id()] = started_s
            raise

    async def _unfinished_write_verdict(self, connection: _MysqlConnection) -> Verdict | None:
        """A server with a full or frozen disk cannot end a write. Another one would only take another connection."""
        for session_id, started_s in list(self._unfinished_writes.items()):
            waiting_s = math.floor(time.monotonic() - started_s)
            row = await _first_row(
                connection,
                "SELECT STATE AS state FROM information_schema.PROCESSLIST "  # noqa: S608  whole numbers
                f"WHERE ID = {session_id} AND COMMAND <> 'Sleep' AND TIME + 1 >= {waiting_s}",
            )
            if row is not None:
                text = f"the write of an earlier check has not ended for {waiting_s} s; its state: {row.get('state')}"
                return CheckError(driver_error_text(Exception(text)), ReasonCode.WRITE_TIMEOUT).verdict(self.url)
            self._unfinished_writes.pop(session_id, None)
        return None

    async def _insert_verdict(self, connection: _MysqlConnection) -> Verdict | None:
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
        code = _WRITE_CODES.get(number) or self._reason_code(number, message)
        if code in (ReasonCode.SERVER_ERROR, ReasonCode.BAD_REQUEST):
            code = ReasonCode.WRITE_FAILED
        text = "the write failed: {}"
        if code in (ReasonCode.NOT_FOUND, ReasonCode.PERMISSION_DENIED, ReasonCode.WRITE_FAILED):
            text += f"; needed: SELECT, INSERT and UPDATE on the table, created by: {_create_table(self.write)}"
        return self._server_error_verdict(text, number, message, code)

    def _replica_verdict(self, sources: list[dict[str, Any]], *, is_reader: bool) -> Verdict | None:
        """By the source with the largest lag."""
        if not sources:
            if self.role != "replica" or is_reader:
                return None
            return Verdict.not_ready(
                f'the server is not a replica; role is "replica": {self.url}', code=ReasonCode.WRONG_ROLE
            )
        worst = max(sources, key=_lag_s)
        lag_s, name = _lag_s(worst), _source_name(worst)
        source = f" from {name}" if name else ""
        if lag_s == math.inf:
            return Verdict.not_ready(
                f"replication{source} is not running: {self.url}", code=ReasonCode.REPLICATION_STOPPED
            )
        if self.max_lag is not None and lag_s > self.max_lag:
            return Verdict.not_ready(
                f"replication{source} is {lag_s:g} s behind; max_lag is {self.max_lag:g} s: {self.url}",
                code=ReasonCode.LAGGING,
            )
        return None

    async def disconnect(self, connection: _MysqlConnection) -> None:
        connection._transport.write(_COM_QUIT)  # otherwise the server counts and logs an aborted client
        await asyncio.sleep(0)  # uvloop sends at the end of the iteration

    def reset_byte_count(self, connection: _MysqlConnection) -> None:
        connection.reset_byte_count()

    def peer_address(self, connection: _MysqlConnection) -> str:
        return peer_address(connection._transport)

    def abort(self, connection: _MysqlConnection) -> None:
        connection.close()

    def verdict_for_driver_error(self, exc: Exception) -> Verdict:
        if isinstance(exc, MySQLError) and len(exc.args) == 2:
            number, message = exc.args
            return self._server_error_verdict("{}", number, message, self._reason_code(number, message))
        if isinstance(exc, InternalError | IndexError | ValueError | struct.error):
            return CheckError("the response is not MySQL", ReasonCode.PROTOCOL_ERROR).verdict(self.url)
        return super(MysqlProbe, self).verdict_for_driver_error(exc)

    def _server_error_verdict(self, text: str, number: object, message: object, code: ReasonCode) -> Verdict:
        error = f"{driver_error_text(Exception(message))} ({number})"
        outcome = Outcome.NOT_READY if code in _NOT_READY_CODES else Outcome.FAILED
        return CheckError(text.replace("{}", error), code, outcome).verdict(self.url)

    def _reason_code(self, number: object, message: object) -> ReasonCode:
        if number == _ACCESS_DENIED and not self.credentials()[1]:
            return ReasonCode.AUTH_REQUIRED
        if _NO_SPACE.search(str(message)):
            return ReasonCode.STORAGE_FULL
        return _CODES.get(number, ReasonCode.SERVER_ERROR) if isinstance(number, int) else ReasonCode.SERVER_ERROR


async def _read_only_variables(connection: _MysqlConnection) -> tuple[bool, bool]:
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


async def _is_replica(connection: _MysqlConnection, status: dict[str, str]) -> bool:
    """Without the privilege to list the sources, by the number of replicas that run, which only MariaDB reports."""
    try:
        return bool(await _replica_sources(connection))
    except MySQLError as exc:
        if exc.args[0] != ER_SPECIFIC_ACCESS_DENIED:
            raise
        return status.get("Slaves_running", "0") != "0"


async def _prepare_session(connection: _MysqlConnection) -> None:
    """Let the server end a statement at the deadline itself: while it waits, it does not notice that a client has gone.

    MariaDB executes the first comment, MySQL the second.
    """
    settings = "autocommit = 1"
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


async def _replica_sources(connection: _MysqlConnection) -> list[dict[str, Any]]:
    """One row for each source of a replica; none if the server is not a replica."""
    *newer, oldest = REPLICA_STATUS
    for query in newer:
        try:
            return await _rows(connection, query)
        except ProgrammingError as exc:
            if exc.args[0] != ER_PARSE_ERROR:
                raise
    return await _rows(connection, oldest)


def _lag_s(source: dict[str, Any]) -> float:
    """Infinite if the replication does not run."""
    lag_s = source.get("Seconds_Behind_Source", source.get("Seconds_Behind_Master"))
    return math.inf if lag_s is None else float(lag_s)


def _source_name(source: dict[str, Any]) -> str:
    """The name of the channel, in quotes; "" for the default channel."""
    name = source.get("Channel_Name", source.get("Connection_name"))
    return f'"{driver_error_text(Exception(name))}"' if name else ""


async def _first_row(connection: _MysqlConnection, query: str) -> dict[str, Any] | None:
    return next(iter(await _rows(connection, query)), None)


async def _rows(connection: _MysqlConnection, query: str) -> list[dict[str, Any]]:
    async with connection.cursor() as cursor:
        await cursor.execute(query)
        return list(await cursor.fetchall())


# Authentication plugins that send the password in plain text.
_CLEARTEXT_PLUGINS = ("mysql_clear_password", "dialog", "mysql_old_password")


class _RejectCleartextAuth:
    def __init__(self, connection: _MysqlConnection) -> None:
        pass

    def authenticate(self, packet: object) -> None:
        raise CheckError(
            "the server requests the password in plain text, which is sent only over TLS; set tls = true",
            ReasonCode.TLS_REQUIRED,
        )
