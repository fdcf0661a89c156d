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
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from asyncmy.connection import Connection, _MySQLProtocol  # type: ignore[attr-defined]
from asyncmy.constants import CLIENT
from asyncmy.cursors import DictCursor
from asyncmy.errors import InternalError, MySQLError, OperationalError, ProgrammingError

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Verdict
from svcnode.net.connect import TcpEndpoint, peer_address
from svcnode.net.streams import MAX_RECEIVED_BYTES, ResponseTooLargeError
from svcnode.net.tls import upgrade_transport
from svcnode.net.trace import step
from svcnode.probes.base import CheckError
from svcnode.probes.options import Role, Seconds
from svcnode.probes.session import LoginProbe, driver_error_text

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

READY = Verdict.ready()
ER_PARSE_ERROR = 1064
# The statements that list all sources of a replica: MariaDB, MySQL, and MySQL before 8.0.22. MariaDB also accepts the
# second, but lists only one source then, so its own statement comes first.
REPLICA_STATUS = ("SHOW ALL SLAVES STATUS", "SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
_ACCESS_DENIED = 1045
# By MySQL and MariaDB error number. Numbers from 2000 to 2999 are errors of the client.
_CODES = {
    1040: ReasonCode.TOO_MANY_CONNECTIONS,
    1044: ReasonCode.PERMISSION_DENIED,  # to the database
    _ACCESS_DENIED: ReasonCode.AUTH_FAILED,
    1049: ReasonCode.NOT_FOUND,  # database
    1053: ReasonCode.SHUTTING_DOWN,
    1129: ReasonCode.CLIENT_BLOCKED,
    1130: ReasonCode.CLIENT_NOT_ALLOWED,
    1142: ReasonCode.PERMISSION_DENIED,
    1152: ReasonCode.CONNECTION_CLOSED,
    1184: ReasonCode.CONNECTION_CLOSED,
    1203: ReasonCode.TOO_MANY_CONNECTIONS,
    1226: ReasonCode.TOO_MANY_CONNECTIONS,  # max_user_connections
    1227: ReasonCode.PERMISSION_DENIED,
    1251: ReasonCode.AUTH_FAILED,  # authentication protocol
    1290: ReasonCode.READ_ONLY,
    1524: ReasonCode.AUTH_FAILED,  # authentication plugin not loaded
    1698: ReasonCode.AUTH_FAILED,
    1820: ReasonCode.AUTH_FAILED,  # password expired
    1862: ReasonCode.AUTH_FAILED,  # password expired
    1927: ReasonCode.CONNECTION_CLOSED,  # MariaDB: connection was killed
    2006: ReasonCode.CONNECTION_CLOSED,
    2013: ReasonCode.CONNECTION_CLOSED,
    2026: ReasonCode.TLS_FAILED,
    2059: ReasonCode.AUTH_FAILED,  # authentication plugin not supported by the driver
    3032: ReasonCode.CONNECTIONS_DISABLED,  # offline mode
    3118: ReasonCode.USER_DISABLED,  # account locked
    3159: ReasonCode.TLS_REQUIRED,
    4151: ReasonCode.USER_DISABLED,  # MariaDB: account locked
}
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
    _get_server_information: Callable[[], Awaitable[None]]
    _request_authentication: Callable[[], Awaitable[object]]

    def __init__(self, tls: tuple[ssl.SSLContext, str] | None, **options: Any) -> None:  # noqa: ANN401  the driver's
        super().__init__(**options)
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
    tls: bool = False
    _endpoint: TcpEndpoint = field(init=False, compare=False)

    tls_enabled_by: ClassVar = "tls = true"

    def __post_init__(self) -> None:
        if self.url.query:
            raise ProbeError("the URL has a query; set options in the probe table instead")
        self.database_name()
        user, _ = self.credentials()
        if not user:
            raise OptionError("username", f"is missing; write {self.url.scheme}://user@host/database")
        self.validate_tls_options(uses_tls=self.tls)
        object.__setattr__(self, "_endpoint", TcpEndpoint.of(self.url.require_host(), self.url.port or 3306))

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
        await connection.ping(reconnect=False)
        if self.role == "primary" and await self._is_read_only(connection):
            return Verdict.not_ready(
                f'the server is read-only; role is "primary": {self.url}', code=ReasonCode.READ_ONLY
            )
        if self.role == "replica" or self.max_lag is not None:
            verdict = self._replica_verdict(await _replica_sources(connection))
            if verdict is not None:
                return verdict
        if await _first_row(connection, "SELECT 1") is None:
            return Verdict.failed(f"SELECT 1 returned no row: {self.url}", code=ReasonCode.UNEXPECTED_RESPONSE)
        return (self.certificate_verdict(connection._transport) if self.tls else None) or READY

    async def _is_read_only(self, connection: _MysqlConnection) -> bool:
        row = await _first_row(connection, "SELECT @@global.read_only AS value")
        if row is None:
            raise CheckError("SELECT @@global.read_only returned no row", ReasonCode.UNEXPECTED_RESPONSE)
        return str(row["value"]).upper() not in ("0", "OFF")

    def _replica_verdict(self, sources: list[dict[str, Any]]) -> Verdict | None:
        """By the source with the largest lag."""
        if not sources:
            if self.role != "replica":
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
            text = f"{driver_error_text(Exception(message))} ({number})"
            return CheckError(text, self._reason_code(number)).verdict(self.url)
        if isinstance(exc, InternalError | IndexError | ValueError | struct.error):
            return CheckError("the response is not MySQL", ReasonCode.PROTOCOL_ERROR).verdict(self.url)
        return super(MysqlProbe, self).verdict_for_driver_error(exc)

    def _reason_code(self, number: object) -> ReasonCode:
        if number == _ACCESS_DENIED and not self.credentials()[1]:
            return ReasonCode.AUTH_REQUIRED
        return _CODES.get(number, ReasonCode.SERVER_ERROR) if isinstance(number, int) else ReasonCode.SERVER_ERROR


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
