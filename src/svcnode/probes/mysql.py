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
from svcnode.probes.tools.budget import MAX_HEARD_BYTES, too_much
from svcnode.probes.tools.connect import Endpoint
from svcnode.probes.tools.options import Role, Seconds
from svcnode.probes.tools.session import LoginProbe, told
from svcnode.probes.tools.steps import step
from svcnode.probes.tools.tls_layer import upgraded_to_tls

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable

READY = Verdict.ready()
NOT_UNDERSTOOD = 1064
# Each tells of all sources of a replica, and the others are not understood: MariaDB, MySQL, and MySQL before 8.0.22.
# MariaDB does understand the second, but tells by it of one source only, so its own comes first.
REPLICA_STATUS = ("SHOW ALL SLAVES STATUS", "SHOW REPLICA STATUS", "SHOW SLAVE STATUS")
NO_TLS = 2026  # the codes of the drivers for what they refuse themselves
NO_WAY_TO_LOG_IN = 2059
_MAX_PACKET_BYTES = 2**24 - 1
_UTF8MB4 = 45
_QUIT = b"\x01\x00\x00\x00\x01"


class _Protocol(_MySQLProtocol):  # type: ignore[misc]
    """The driver's, fed as TLS feeds whoever speaks over it, and not without end."""

    heard_bytes = 0

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_bytes += nbytes
        if self.heard_bytes <= MAX_HEARD_BYTES:
            super().buffer_updated(nbytes)
            return
        transport = self.transport
        self.connection_lost(too_much())
        if transport is not None:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        while data:
            room = self.get_buffer(len(data))
            taken = min(len(room), len(data))
            room[:taken] = data[:taken]
            self.buffer_updated(taken)
            data = data[taken:]


class _Connection(Connection):
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

    async def connect_to(self, endpoint: Endpoint) -> None:
        self._transport, self._proto = await endpoint.connect(lambda: _Protocol(self._loop))
        self._next_seq_id = 0
        with step("log in"):
            await self._get_server_information()
            if self._tls is not None:
                await self._go_on_under_tls(*self._tls)
            await self._request_authentication()
        self._connected = True

    async def _go_on_under_tls(self, context: ssl.SSLContext, server_name: str) -> None:
        if not self.server_capabilities & CLIENT.SSL:
            raise OperationalError(NO_TLS, "it does not speak TLS")
        self._client_flag |= CLIENT.SSL | CLIENT.MULTI_RESULTS | (self.server_capabilities & CLIENT.DEPRECATE_EOF)
        self.write_packet(struct.pack("<IIB23x", self._client_flag, _MAX_PACKET_BYTES, _UTF8MB4))
        self._proto = _Protocol(self._loop)  # what was sent before does not count
        self._transport = await upgraded_to_tls(self._transport, self._proto, context, server_name)
        self._proto.connection_made(self._transport)
        self._ssl_context, self._secure, self._tls_established = context, True, True

    async def _fill_buffer(self, need: int) -> None:
        try:
            await super()._fill_buffer(need)  # type: ignore[misc]
        except OperationalError as exc:  # the driver's words for it are the same whatever the system said
            raise self._proto.exc or EOFError from exc

    def renew(self) -> None:
        self._proto.heard_bytes = 0

    def close(self) -> None:
        """At once: the driver's way would wait for the other end."""
        if self._transport is not None:
            self._transport.abort()
        self._transport = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MysqlProbe(LoginProbe[_Connection]):
    role: Role = ""
    max_lag: Seconds | None = None
    tls: bool = False
    _endpoint: Endpoint = field(init=False, compare=False)

    tls_set_by: ClassVar = "tls = true"

    def __post_init__(self) -> None:
        if self.url.query:
            raise ProbeError("options stand beside the URL, not in its query")
        self.database()
        user, _ = self.credentials()
        if not user:
            raise OptionError("username", f"is missing; write {self.url.scheme}://user:password@host/database")
        self.check_tls_options(is_used=self.tls)
        object.__setattr__(self, "_endpoint", Endpoint.of(self.url.need_host(), self.url.port or 3306))

    async def open(self) -> _Connection:
        tls = (self.tls_context(), self.server_name or self._endpoint.host) if self.tls else None
        connection = _Connection(tls, **self._words())
        try:
            await connection.connect_to(self._endpoint)
        except BaseException:  # also when cancelled: nobody else knows the connection yet
            self.drop(connection)
            raise
        return connection

    def _words(self) -> dict[str, Any]:
        user, password = self.credentials()
        return {
            "user": user,
            "password": password.encode(),  # the driver would take it for latin-1
            "database": self.database() or None,
            "program_name": "svcnode",
            "cursor_cls": DictCursor,
            "local_infile": False,
            "auth_plugin_map": {} if self.tls else dict.fromkeys(_IN_CLEAR, _Refusal),
        }

    async def ask(self, connection: _Connection) -> Verdict:
        await connection.ping(reconnect=False)
        if self.role == "primary" and await self._is_read_only(connection):
            return Verdict.not_ready(f"read-only, so it is not the primary: {self.url}")
        if self.role == "replica" or self.max_lag is not None:
            verdict = self._judged_as_replica(await _sources(connection))
            if verdict is not None:
                return verdict
        if await _first_row(connection, "SELECT 1") is None:
            return Verdict.failed(f"it answered SELECT 1 with nothing: {self.url}")
        return (self.expiry_verdict(connection._transport) if self.tls else None) or READY

    async def _is_read_only(self, connection: _Connection) -> bool:
        row = await _first_row(connection, "SELECT @@global.read_only AS value")
        if row is None:
            raise ConnectionError("it answered SELECT with nothing")
        return str(row["value"]).upper() not in ("0", "OFF")

    def _judged_as_replica(self, sources: list[dict[str, Any]]) -> Verdict | None:
        """By the worst of its sources: what one of them has, no other makes up for."""
        if not sources:
            return Verdict.not_ready(f"no replica: {self.url}") if self.role == "replica" else None
        worst = max(sources, key=_behind_s)
        behind_s, name = _behind_s(worst), _name_of(worst)
        if behind_s == math.inf:
            from_it = f" from {name}" if name else ""
            return Verdict.not_ready(f"a replica whose replication{from_it} does not run: {self.url}")
        if self.max_lag is not None and behind_s > self.max_lag:
            behind = f"a replica {behind_s:g} s behind{f' {name}' if name else ''}"
            return Verdict.not_ready(f"{behind}, max_lag is {self.max_lag:g} s: {self.url}")
        return None

    async def leave(self, connection: _Connection) -> None:
        connection._transport.write(_QUIT)  # or the server would count and log a client that was lost
        await asyncio.sleep(0)  # uvloop sends at the end of its turn

    def renew(self, connection: _Connection) -> None:
        connection.renew()

    def drop(self, connection: _Connection) -> None:
        connection.close()

    def verdict_on_refusal(self, exc: Exception) -> Verdict:
        if isinstance(exc, MySQLError) and len(exc.args) == 2:
            code, message = exc.args
            return Verdict.failed(f"{told(Exception(message))} ({code}): {self.url}")
        if isinstance(exc, InternalError | IndexError | ValueError | struct.error):
            return Verdict.failed(f"what came back is not MySQL: {self.url}")
        return Verdict.failed(f"{told(exc)}: {self.url}")


async def _sources(connection: _Connection) -> list[dict[str, Any]]:
    """What a replica says of each server that it follows; of any other server, nothing."""
    *newer, oldest = REPLICA_STATUS
    for query in newer:
        try:
            return await _rows(connection, query)
        except ProgrammingError as exc:
            if exc.args[0] != NOT_UNDERSTOOD:
                raise
    return await _rows(connection, oldest)


def _behind_s(source: dict[str, Any]) -> float:
    """Without end where its replication does not run."""
    behind_s = source.get("Seconds_Behind_Source", source.get("Seconds_Behind_Master"))
    return math.inf if behind_s is None else float(behind_s)


def _name_of(source: dict[str, Any]) -> str:
    """As MySQL or MariaDB has it, in quotes; that of a replica's only source is empty, as a rule."""
    name = source.get("Channel_Name", source.get("Connection_name"))
    return f'"{told(Exception(name))}"' if name else ""


async def _first_row(connection: _Connection, query: str) -> dict[str, Any] | None:
    return next(iter(await _rows(connection, query)), None)


async def _rows(connection: _Connection, query: str) -> list[dict[str, Any]]:
    async with connection.cursor() as cursor:
        await cursor.execute(query)
        return list(await cursor.fetchall())


# Ways to log in that hand the password to whoever answers.
_IN_CLEAR = ("mysql_clear_password", "dialog", "mysql_old_password")


class _Refusal:
    """Stands where the driver looks for a way to log in."""

    def __init__(self, connection: _Connection) -> None:
        pass

    def authenticate(self, packet: object) -> None:
        raise OperationalError(
            NO_WAY_TO_LOG_IN, "it asks for the password in clear, which it gets only under TLS; set tls = true"
        )
