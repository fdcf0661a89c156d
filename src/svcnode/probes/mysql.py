"""`mysql://user:password@host:port/database`, `mariadb://…`: a MySQL or MariaDB server that answers a query.

ready      ping and `SELECT 1` are answered
not ready  it is read-only though `role` is "primary", or no replica though it is "replica"; it is a replica that is
           further behind than `max_lag`, or whose replication does not run; the certificate ends within `min_cert_days`
failed     any other refusal, such as wrong credentials or no connections left; refused, unreachable, not trusted
unknown    no file descriptors or ports left here, or the resolver does not work

A server cannot have a local file by asking for it, nor the password in clear without TLS.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from asyncmy.connection import Connection
from asyncmy.cursors import DictCursor
from asyncmy.errors import MySQLError, OperationalError, ProgrammingError

from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Verdict
from svcnode.probes.tools.connect import Endpoint
from svcnode.probes.tools.options import Role, Seconds
from svcnode.probes.tools.session import LoginProbe, told
from svcnode.probes.tools.steps import step

READY = Verdict.ready()
_NO_LIMIT_S = 86_400  # the driver wants one, but the deadline is the look's
NOT_UNDERSTOOD = 1064  # an older server does not know the newer name of a statement


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MysqlProbe(LoginProbe[Connection]):
    role: Role = ""
    max_lag: Seconds | None = None
    tls: bool = False
    _endpoint: Endpoint = field(init=False, compare=False)

    def __post_init__(self) -> None:
        if self.url.query:
            raise ProbeError("options stand beside the URL, not in its query")
        user, _ = self.credentials()
        if not user:
            raise OptionError("username", f"is missing; write {self.url.scheme}://user:password@host/database")
        self.check_tls_options(is_used=self.tls)
        object.__setattr__(self, "_endpoint", Endpoint.of(self.url.need_host(), self.url.port or 3306))

    async def open(self) -> Connection:
        if self.tls:
            return await self._endpoint.at_first_address(self._opened_under_tls)
        sock = await self._endpoint.open_socket()
        try:
            connection = Connection(sock=sock, **self._words())
        except BaseException:
            sock.close()
            raise
        return await self._logged_in(connection)

    async def _opened_under_tls(self, address: str) -> Connection:
        context = self.tls_context(always_named=self.server_name or self._endpoint.host)
        connection = Connection(host=address, port=self._endpoint.port, ssl=context, **self._words())
        try:
            return await self._logged_in(connection)
        except OperationalError as exc:
            if isinstance(exc.__cause__, OSError):
                raise exc.__cause__ from exc  # so that the next address is tried
            raise

    def _words(self) -> dict[str, Any]:
        user, password = self.credentials()
        return {
            "user": user,
            "password": password,
            "database": unquote(self.url.path.removeprefix("/")) or None,
            "connect_timeout": _NO_LIMIT_S,
            "autocommit": None,
            "program_name": "svcnode",
            "cursor_cls": DictCursor,
            "auth_plugin_map": {} if self.tls else dict.fromkeys(_IN_CLEAR, _Refusal),
        }

    async def _logged_in(self, connection: Connection) -> Connection:
        with step("log in"):
            try:
                await connection.connect()
            except BaseException:  # also when cancelled: nobody else knows the connection yet
                self.drop(connection)
                raise
        return connection

    async def ask(self, connection: Connection) -> Verdict:
        await connection.ping(reconnect=False)
        if self.role == "primary" and await self._is_read_only(connection):
            return Verdict.not_ready(f"read-only, so it is not the primary: {self.url}")
        if self.role == "replica" or self.max_lag is not None:
            verdict = self._judged_as_replica(await _replica_status(connection))
            if verdict is not None:
                return verdict
        await _first_row(connection, "SELECT 1")
        return (self.expiry_verdict(_transport_of(connection)) if self.tls else None) or READY

    async def _is_read_only(self, connection: Connection) -> bool:
        row = await _first_row(connection, "SELECT @@global.read_only AS value")
        return row is None or str(row["value"]).upper() not in ("0", "OFF")

    def _judged_as_replica(self, status: dict[str, Any] | None) -> Verdict | None:
        if status is None:
            return Verdict.not_ready(f"no replica: {self.url}") if self.role == "replica" else None
        behind_s = status.get("Seconds_Behind_Source", status.get("Seconds_Behind_Master"))
        if behind_s is None:
            return Verdict.not_ready(f"a replica whose replication does not run: {self.url}")
        if self.max_lag is not None and behind_s > self.max_lag:
            return Verdict.not_ready(f"a replica {behind_s} s behind, max_lag is {self.max_lag:g} s: {self.url}")
        return None

    async def leave(self, connection: Connection) -> None:
        await connection.ensure_closed()  # or the server would count and log a client that was lost

    def drop(self, connection: Connection) -> None:
        transport = _transport_of(connection)
        if transport is not None:
            transport.abort()  # closing it would wait for the other end
        connection.close()

    def verdict_on_refusal(self, exc: Exception) -> Verdict:
        if isinstance(exc, MySQLError) and len(exc.args) == 2:
            code, message = exc.args
            return Verdict.failed(f"{told(Exception(message))} ({code}): {self.url}")
        return Verdict.failed(f"{told(exc)}: {self.url}")


def _transport_of(connection: Connection) -> Any:  # noqa: ANN401  the driver's types do not show it
    return getattr(connection, "_transport", None)


async def _replica_status(connection: Connection) -> dict[str, Any] | None:
    try:
        return await _first_row(connection, "SHOW REPLICA STATUS")
    except ProgrammingError as exc:
        if exc.args[0] != NOT_UNDERSTOOD:
            raise
        return await _first_row(connection, "SHOW SLAVE STATUS")


async def _first_row(connection: Connection, query: str) -> dict[str, Any] | None:
    async with connection.cursor() as cursor:
        await cursor.execute(query)
        row: dict[str, Any] | None = await cursor.fetchone()
        return row


# Ways to log in that hand the password to whoever answers.
_IN_CLEAR = ("mysql_clear_password", "dialog", "mysql_old_password")


class _Refusal:
    """Stands where the driver looks for a way to log in."""

    def __init__(self, connection: Connection) -> None:
        pass

    def authenticate(self, packet: object) -> None:
        raise OperationalError(2059, "it asks for the password in clear, which it gets only under TLS; set tls = true")
