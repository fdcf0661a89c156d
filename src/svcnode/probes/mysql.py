"""`mysql://user:password@host:port/database`, `mariadb://…`: a MySQL or MariaDB server that answers a query.

ready      ping and `SELECT 1` are answered
not ready  it is read-only though `role` is "primary", or no replica though it is "replica"; it is a replica that is
           further behind one of its sources than `max_lag`, or whose replication from one of them does not run; the
           certificate ends within `min_cert_days`
failed     any other refusal, such as wrong credentials or no connections left; refused, unreachable, not trusted
unknown    no file descriptors or ports left here, or the resolver does not work

A server cannot have a local file by asking for it, nor the password in clear without TLS.
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

from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Verdict
from svcnode.net.connect import TcpEndpoint
from svcnode.net.streams import MAX_RECEIVED_BYTES, ResponseTooLargeError
from svcnode.net.tls import upgrade_transport
from svcnode.net.trace import step
from svcnode.probes.options import Role, Seconds
from svcnode.probes.session import LoginProbe, driver_error_text

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

READY = Verdict.ready()
ER_PARSE_ERROR = 1064
# Each tells of all sources of a replica, and the others are not understood: MariaDB, MySQL, and MySQL before 8.0.22.
# MariaDB does understand the second, but tells by it of one source only, so its own comes first.
REPLICA_STATUS = ("SHOW ALL SLAVES STATUS", "SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
CR_SSL_CONNECTION_ERROR = 2026  # the codes of the drivers for what they refuse themselves
CR_AUTH_PLUGIN_CANNOT_LOAD = 2059
_MAX_PACKET_BYTES = 2**24 - 1
_UTF8MB4 = 45
_COM_QUIT = b"\x01\x00\x00\x00\x01"


class _LimitedMysqlProtocol(_MySQLProtocol):  # type: ignore[misc]
    """The driver's, fed as TLS feeds whoever speaks over it, and not without end."""

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
            room = self.get_buffer(len(data))
            taken = min(len(room), len(data))
            room[:taken] = data[:taken]
            self.buffer_updated(taken)
            data = data[taken:]


class _MysqlConnection(Connection):
    """The driver's connection, opened as all of ours are: its own leaves something behind when it is cut off."""

    # What the driver's types do not show.
    server_capabilities: int
    _client_flag: int
    _loop: asyncio.AbstractEventLoop
    _proto: Any
    _transport: Any
    _get_server_information: Callable[[], Awaitable[None]]
    _request_authentication: Callable[[], Awaitable[object]]

    def __init__(self, tls: tuple[ssl.SSLContext, str] | None, **words: Any) -> None:  # noqa: ANN401  the driver's
        super().__init__(**words)
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
            raise OperationalError(CR_SSL_CONNECTION_ERROR, "it does not speak TLS")
        self._client_flag |= CLIENT.SSL | CLIENT.MULTI_RESULTS | (self.server_capabilities & CLIENT.DEPRECATE_EOF)
        self.write_packet(struct.pack("<IIB23x", self._client_flag, _MAX_PACKET_BYTES, _UTF8MB4))
        self._proto = _LimitedMysqlProtocol(self._loop)  # what was sent before does not count
        self._transport = await upgrade_transport(self._transport, self._proto, context, server_name)
        self._proto.connection_made(self._transport)
        self._ssl_context, self._secure, self._tls_established = context, True, True

    async def _fill_buffer(self, need: int) -> None:
        try:
            await super()._fill_buffer(need)  # type: ignore[misc]
        except OperationalError as exc:  # the driver's words for it are the same whatever the system said
            raise self._proto.exc or EOFError from exc

    def reset_byte_count(self) -> None:
        self._proto.received_bytes = 0

    def close(self) -> None:
        """At once: the driver's way would wait for the other end."""
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
            raise ProbeError("options stand beside the URL, not in its query")
        self.database_name()
        user, _ = self.credentials()
        if not user:
            raise OptionError("username", f"is missing; write {self.url.scheme}://user:password@host/database")
        self.validate_tls_options(uses_tls=self.tls)
        object.__setattr__(self, "_endpoint", TcpEndpoint.of(self.url.require_host(), self.url.port or 3306))

    async def open(self) -> _MysqlConnection:
        tls = (self.tls_context(), self.server_name or self._endpoint.host) if self.tls else None
        connection = _MysqlConnection(tls, **self._driver_options())
        try:
            await connection.connect_to(self._endpoint)
        except BaseException:  # also when cancelled: nobody else knows the connection yet
            self.abort(connection)
            raise
        return connection

    def _driver_options(self) -> dict[str, Any]:
        user, password = self.credentials()
        return {
            "user": user,
            "password": password.encode(),  # the driver would take it for latin-1
            "database": self.database_name() or None,
            "program_name": "svcnode",
            "cursor_cls": DictCursor,
            "local_infile": False,
            "auth_plugin_map": {} if self.tls else dict.fromkeys(_CLEARTEXT_PLUGINS, _RejectCleartextAuth),
        }

    async def check_connection(self, connection: _MysqlConnection) -> Verdict:
        await connection.ping(reconnect=False)
        if self.role == "primary" and await self._is_read_only(connection):
            return Verdict.not_ready(f"read-only, so it is not the primary: {self.url}")
        if self.role == "replica" or self.max_lag is not None:
            verdict = self._replica_verdict(await _replica_sources(connection))
            if verdict is not None:
                return verdict
        if await _first_row(connection, "SELECT 1") is None:
            return Verdict.failed(f"it answered SELECT 1 with nothing: {self.url}")
        return (self.certificate_verdict(connection._transport) if self.tls else None) or READY

    async def _is_read_only(self, connection: _MysqlConnection) -> bool:
        row = await _first_row(connection, "SELECT @@global.read_only AS value")
        if row is None:
            raise ConnectionError("it answered SELECT with nothing")
        return str(row["value"]).upper() not in ("0", "OFF")

    def _replica_verdict(self, sources: list[dict[str, Any]]) -> Verdict | None:
        """By the worst of its sources: what one of them has, no other makes up for."""
        if not sources:
            return Verdict.not_ready(f"no replica: {self.url}") if self.role == "replica" else None
        worst = max(sources, key=_lag_s)
        behind_s, name = _lag_s(worst), _source_name(worst)
        if behind_s == math.inf:
            from_it = f" from {name}" if name else ""
            return Verdict.not_ready(f"a replica whose replication{from_it} does not run: {self.url}")
        if self.max_lag is not None and behind_s > self.max_lag:
            behind = f"a replica {behind_s:g} s behind{f' {name}' if name else ''}"
            return Verdict.not_ready(f"{behind}, max_lag is {self.max_lag:g} s: {self.url}")
        return None

    async def disconnect(self, connection: _MysqlConnection) -> None:
        connection._transport.write(_COM_QUIT)  # or the server would count and log a client that was lost
        await asyncio.sleep(0)  # uvloop sends at the end of its turn

    def reset_byte_count(self, connection: _MysqlConnection) -> None:
        connection.reset_byte_count()

    def abort(self, connection: _MysqlConnection) -> None:
        connection.close()

    def verdict_for_driver_error(self, exc: Exception) -> Verdict:
        if isinstance(exc, MySQLError) and len(exc.args) == 2:
            code, message = exc.args
            return Verdict.failed(f"{driver_error_text(Exception(message))} ({code}): {self.url}")
        if isinstance(exc, InternalError | IndexError | ValueError | struct.error):
            return Verdict.failed(f"what came back is not MySQL: {self.url}")
        return Verdict.failed(f"{driver_error_text(exc)}: {self.url}")


async def _replica_sources(connection: _MysqlConnection) -> list[dict[str, Any]]:
    """What a replica says of each server that it follows; of any other server, nothing."""
    *newer, oldest = REPLICA_STATUS
    for query in newer:
        try:
            return await _rows(connection, query)
        except ProgrammingError as exc:
            if exc.args[0] != ER_PARSE_ERROR:
                raise
    return await _rows(connection, oldest)


def _lag_s(source: dict[str, Any]) -> float:
    """Without end where its replication does not run."""
    behind_s = source.get("Seconds_Behind_Source", source.get("Seconds_Behind_Master"))
    return math.inf if behind_s is None else float(behind_s)


def _source_name(source: dict[str, Any]) -> str:
    """As MySQL or MariaDB has it, in quotes; that of a replica's only source is empty, as a rule."""
    name = source.get("Channel_Name", source.get("Connection_name"))
    return f'"{driver_error_text(Exception(name))}"' if name else ""


async def _first_row(connection: _MysqlConnection, query: str) -> dict[str, Any] | None:
    return next(iter(await _rows(connection, query)), None)


async def _rows(connection: _MysqlConnection, query: str) -> list[dict[str, Any]]:
    async with connection.cursor() as cursor:
        await cursor.execute(query)
        return list(await cursor.fetchall())


# Ways to log in that hand the password to whoever answers.
_CLEARTEXT_PLUGINS = ("mysql_clear_password", "dialog", "mysql_old_password")


class _RejectCleartextAuth:
    """Stands where the driver looks for a way to log in."""

    def __init__(self, connection: _MysqlConnection) -> None:
        pass

    def authenticate(self, packet: object) -> None:
        raise OperationalError(
            CR_AUTH_PLUGIN_CANNOT_LOAD,
            "it asks for the password in clear, which it gets only under TLS; set tls = true",
        )
