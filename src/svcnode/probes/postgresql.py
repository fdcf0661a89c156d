"""`postgresql://user:password@host:port/database`: a PostgreSQL server that answers a query.

ready      the server responds to `SELECT 1`, or `query` returns true
not ready  the server is starting up or recovering; it does not have the expected `role`; it is a replica that is
           further behind than `max_lag`, or whose lag is not known because of clock skew
failed     any other error, such as wrong credentials or too many connections; `query` does not return true; connection
           refused, host unreachable, certificate not trusted
unknown    no file descriptors or ports left on this machine; the resolver does not answer
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar
from urllib.parse import parse_qsl

from psycopg import pq
from psycopg.conninfo import make_conninfo
from psycopg.pq.abc import PGconn, PGresult

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Outcome, Verdict
from svcnode.core.text import suggestion
from svcnode.net.dns import is_ip_address, resolve_host
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.net.trace import step
from svcnode.probes.base import MAX_CLOCK_SKEW_S, CheckError
from svcnode.probes.options import Role, Seconds, one_of
from svcnode.probes.session import LoginProbe, driver_error_text

READY = Verdict.ready()
BOOLEAN_OID = 16
URL_PARAMETERS = ("application_name", "host", "options", "sslmode")
PLAINTEXT_SSL_MODES = ("disable", "allow", "prefer")
SSL_MODES = (*PLAINTEXT_SSL_MODES, "require", "verify-ca", "verify-full")
_MAX_READS = 4096  # each fills the buffer of libpq at most once

# By SQLSTATE, then by its class. libpq returns the SQLSTATE of a failed query only.
_CODES = {
    "25006": ReasonCode.BAD_REQUEST,  # the query writes
    "28000": ReasonCode.CLIENT_NOT_ALLOWED,
    "28P01": ReasonCode.AUTH_FAILED,
    "3D000": ReasonCode.NOT_FOUND,
    "42501": ReasonCode.PERMISSION_DENIED,
    "42P01": ReasonCode.NOT_FOUND,
    "53300": ReasonCode.TOO_MANY_CONNECTIONS,
    "55P03": ReasonCode.LOCKED,
    "57014": ReasonCode.TIMEOUT,  # statement_timeout
    "57P01": ReasonCode.SHUTTING_DOWN,
    "57P02": ReasonCode.SHUTTING_DOWN,
    "57P03": ReasonCode.STARTING,
    "57P04": ReasonCode.NOT_FOUND,
    "XX001": ReasonCode.CORRUPT,
    "XX002": ReasonCode.CORRUPT,
}
_CODES_BY_CLASS = {"22": ReasonCode.BAD_REQUEST, "25": ReasonCode.BAD_REQUEST, "42": ReasonCode.BAD_REQUEST}
# Of a failed connection libpq returns only a text, of the server or its own.
_CODES_BY_TEXT = (
    ("the database system is starting up", ReasonCode.STARTING),
    ("the database system is in recovery mode", ReasonCode.STARTING),
    ("the database system is not yet accepting connections", ReasonCode.STARTING),
    ("the database system is shutting down", ReasonCode.SHUTTING_DOWN),
    ("terminating connection due to administrator command", ReasonCode.SHUTTING_DOWN),
    ("too many clients already", ReasonCode.TOO_MANY_CONNECTIONS),
    ("too many connections for", ReasonCode.TOO_MANY_CONNECTIONS),
    ("connection slots are reserved", ReasonCode.TOO_MANY_CONNECTIONS),
    ("no password supplied", ReasonCode.AUTH_REQUIRED),
    ("requested a cleartext password", ReasonCode.TLS_REQUIRED),
    ("pg_hba.conf", ReasonCode.CLIENT_NOT_ALLOWED),
    ("is not permitted to log in", ReasonCode.USER_DISABLED),
    ("is not currently accepting connections", ReasonCode.CONNECTIONS_DISABLED),
    ("permission denied for", ReasonCode.PERMISSION_DENIED),
    ("authentication failed", ReasonCode.AUTH_FAILED),
    ("certificate has expired", ReasonCode.TLS_EXPIRED),
    ("certificate verify failed", ReasonCode.TLS_UNTRUSTED),
    ("does not match host name", ReasonCode.TLS_NAME_MISMATCH),
    ("server does not support SSL", ReasonCode.TLS_NOT_OFFERED),
    ("server closed the connection unexpectedly", ReasonCode.CONNECTION_CLOSED),
    ("invalid response to SSL negotiation", ReasonCode.PROTOCOL_ERROR),
    ("unexpected response", ReasonCode.PROTOCOL_ERROR),
    ("expected authentication request", ReasonCode.PROTOCOL_ERROR),
    ("lost synchronization with server", ReasonCode.PROTOCOL_ERROR),
    ("SSL error", ReasonCode.TLS_FAILED),
    ("SSL SYSCALL error", ReasonCode.TLS_FAILED),
)
_MISSING = (("database ", ReasonCode.NOT_FOUND), ("role ", ReasonCode.USER_NOT_FOUND))
_ERRNOS = {os.strerror(number): number for number in errno.errorcode}
_CLIENT_FILE_ERRORS = (
    "could not read root certificate file",
    "could not read certificate file",
    "could not load private key file",
    "private key file",
)
# A replica that streams and has replayed all that it received has no lag. Without a stream, or with more to replay, its
# lag is the age of the last transaction that it replayed. After a restart of the replica the received position may be
# smaller than the replayed one until the primary writes again, hence <=.
_REPLICATION_QUERY = """\
SELECT pg_is_in_recovery(),
       CASE WHEN EXISTS (SELECT FROM pg_stat_wal_receiver)
                 AND pg_last_wal_receive_lsn() <= pg_last_wal_replay_lsn() THEN 0
            ELSE extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()) END"""


class PostgresqlError(Exception):
    """The message of libpq or of the server, with the SQLSTATE if libpq returns it."""

    def __init__(self, message: str, sqlstate: str = "") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PostgresqlProbe(LoginProbe[PGconn]):
    role: Role = ""
    query: str = ""  # runs in a read-only transaction; its first value must be true
    max_lag: Seconds | None = None
    sslmode: Annotated[str, one_of(*SSL_MODES)] = ""
    _conninfo: dict[str, str] = field(init=False, compare=False)  # the parameters of libpq without the addresses

    tls_enabled_by: ClassVar = 'another sslmode, such as "verify-full"'

    def __post_init__(self) -> None:
        given = dict(parse_qsl(self.url.query, keep_blank_values=True))
        for name in given:
            if name not in URL_PARAMETERS:
                raise ProbeError(f'unknown parameter "{name}" in the query{suggestion(name, URL_PARAMETERS)}')
        if not given.get("host", "/").startswith("/"):
            raise ProbeError('"host" in the query must be the folder of a Unix socket, such as /run/postgresql')
        if self.sslmode and "sslmode" in given:
            raise OptionError("sslmode", "is also set in the URL; remove one of the two")
        user, password = self.credentials()
        parameters = {
            "user": user,
            "password": password,
            "dbname": self.database_name(),
            "application_name": "svcnode",
            **given,
            "host": given.get("host") or self.server_name or self.url.require_host(),
            "port": str(self.url.port or 5432),
            "client_encoding": "UTF8",
            "gssencmode": "disable",
            **self._tls_parameters(self.sslmode or given.get("sslmode", "")),
        }
        for name, value in parameters.items():
            if "\0" in value:  # libpq ignores the parameters after it, the host and sslmode included
                raise ProbeError(f"{name} contains a null character")
        object.__setattr__(self, "_conninfo", {name: value for name, value in parameters.items() if value})

    def _tls_parameters(self, mode: str) -> dict[str, str]:
        if mode and mode not in SSL_MODES:
            raise ProbeError(f'unknown sslmode "{mode}"; use one of {", ".join(SSL_MODES)}')
        if self.min_cert_days:
            raise OptionError("min_cert_days", "is not supported: libpq does not return the certificate of the server")
        mode = mode or ("verify-full" if self.ca else "prefer")
        if self.ca and not mode.startswith("verify-"):
            raise OptionError("ca", f'is ignored with sslmode "{mode}"; set "verify-full" or "verify-ca"')
        self.validate_tls_options(uses_tls=mode != "disable")
        if mode == "verify-ca" and not self.ca:
            raise OptionError("ca", 'is missing; sslmode "verify-ca" needs it, "verify-full" does not')
        trusted = self.ca or (_system_ca_file() if mode == "verify-full" else "")
        files = {"sslrootcert": trusted, "sslcert": self.client_certificate, "sslkey": self.client_key}
        # Without TLS the probe sends no plain-text password; libpq before 16 cannot prevent it.
        is_password_allowed = mode not in PLAINTEXT_SSL_MODES or pq.version() < 160000
        return {"sslmode": mode, **files, "require_auth": "" if is_password_allowed else "!password"}

    async def open(self) -> PGconn:
        parameters = dict(self._conninfo)
        if parameters["sslmode"] != "disable":
            self.tls_context()  # raises if a certificate file is missing; libpq reports that as an error of the server
        if self.url.host and not parameters["host"].startswith("/"):
            addresses = [self.url.host] if is_ip_address(self.url.host) else await resolve_host(self.url.host)
            parameters["hostaddr"] = ",".join(addresses)  # otherwise libpq resolves the name and blocks the loop
            parameters["host"] = ",".join([parameters["host"]] * len(addresses))
        return await _connect(make_conninfo(**parameters).encode(), parameters.get("hostaddr", parameters["host"]))

    async def check_connection(self, connection: PGconn) -> Verdict:
        if self.role or self.max_lag is not None:
            result = await _execute(connection, _REPLICATION_QUERY)
            is_replica = result.get_value(0, 0) == b"t"
            lag = result.get_value(0, 1)
            if (verdict := self._role_verdict(None if lag is None else float(lag), is_replica=is_replica)) is not None:
                return verdict
        if self.query:
            return await self._query_verdict(connection)
        await _execute(connection, "SELECT 1")
        return READY

    def _role_verdict(self, lag_s: float | None, *, is_replica: bool) -> Verdict | None:
        if self.role == "primary" and is_replica:
            return Verdict.not_ready(
                f'the server is a replica; role is "primary": {self.url}', code=ReasonCode.WRONG_ROLE
            )
        if self.role == "replica" and not is_replica:
            return Verdict.not_ready(
                f'the server is not a replica; role is "replica": {self.url}', code=ReasonCode.WRONG_ROLE
            )
        return self._lag_verdict(lag_s, self.max_lag) if is_replica and self.max_lag is not None else None

    def _lag_verdict(self, lag_s: float | None, max_lag_s: float) -> Verdict | None:
        if lag_s is None:
            return Verdict.not_ready(
                f"the replica has not replayed any transaction yet: {self.url}", code=ReasonCode.LAGGING
            )
        if lag_s < -MAX_CLOCK_SKEW_S:
            return Verdict.not_ready(
                f"clock skew: the last replayed transaction is dated {-lag_s:.0f} s in the future: {self.url}",
                code=ReasonCode.CLOCK_SKEW,
            )
        if lag_s > max_lag_s:
            return Verdict.not_ready(
                f"the replica is {lag_s:.1f} s behind; max_lag is {max_lag_s:g} s: {self.url}", code=ReasonCode.LAGGING
            )
        return None

    async def _query_verdict(self, connection: PGconn) -> Verdict:
        await _execute(connection, "BEGIN READ ONLY")
        result = await _execute(connection, self.query)
        await _execute(connection, "ROLLBACK")
        if not (result.ntuples and result.nfields):
            return Verdict.failed(f"the query returned no row: {self.url}", code=ReasonCode.UNEXPECTED_RESPONSE)
        if result.ftype(0) != BOOLEAN_OID or result.get_value(0, 0) != b"t":
            return Verdict.failed(f"the query did not return true: {self.url}", code=ReasonCode.UNEXPECTED_RESPONSE)
        return READY

    def abort(self, connection: PGconn) -> None:
        connection.finish()  # sends Terminate and does not wait

    def verdict_for_driver_error(self, exc: Exception) -> Verdict:
        if isinstance(exc, CheckError):
            return exc.verdict(self.url)
        text = driver_error_text(Exception(_join_lines(str(exc))))
        if isinstance(exc, PostgresqlError) and exc.sqlstate:
            return CheckError(text, _code_for_sqlstate(exc.sqlstate)).verdict(self.url)
        return self._connection_error_verdict(text)

    def _connection_error_verdict(self, text: str) -> Verdict:
        """libpq joins the errors of all addresses; the last one decides if no server responded."""
        if (code := _code_for_text(text)) is not None:
            outcome = Outcome.NOT_READY if code is ReasonCode.STARTING else Outcome.FAILED
            return CheckError(text, code, outcome).verdict(self.url)
        last = text.rpartition(" failed: ")[2]
        if last.startswith(_CLIENT_FILE_ERRORS):
            file_error = last[: last.rfind('"') + 1]  # the text after the file name may be garbage
            return CheckError(file_error, ReasonCode.FILE_NOT_READABLE, Outcome.UNKNOWN).verdict(self.url)
        number = _ERRNOS.get(last.removeprefix("could not create socket: "))
        if number is None:
            return CheckError(text, ReasonCode.SERVER_ERROR).verdict(self.url)
        verdict = verdict_for_os_error(OSError(number, os.strerror(number)), str(self.url))
        if verdict.outcome is Outcome.UNKNOWN:
            return verdict
        return replace(verdict, reason=f"{_lowercase_system_errors(text)}: {self.url}")


def _code_for_sqlstate(sqlstate: str) -> ReasonCode:
    return _CODES.get(sqlstate) or _CODES_BY_CLASS.get(sqlstate[:2], ReasonCode.SERVER_ERROR)


def _code_for_text(text: str) -> ReasonCode | None:
    for part, code in _CODES_BY_TEXT:
        if part in text:
            return code
    if "does not exist" in text:
        return next((code for part, code in _MISSING if part in text), None)
    return None


def _system_ca_file() -> str:
    """libpq of the driver's wheel has its own folder for authorities, which is empty."""
    usual = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
    found = (file for file in (ssl.get_default_verify_paths().cafile, *usual) if file and Path(file).exists())
    return next(found, "system")


def _lowercase_system_errors(text: str) -> str:
    """The errors of the system in lower case, like those of other kinds; messages of the server unchanged."""
    clauses = [clause.rpartition(" failed: ") for clause in text.split("; ")]
    return "; ".join(
        f"{where}{failed}{error.lower() if error in _ERRNOS else error}" for where, failed, error in clauses
    )


def _join_lines(message: str) -> str:
    """Without indented lines: hints, and the marker below a query."""
    return "; ".join(line for line in message.splitlines() if line and not line[0].isspace())


# The probe calls libpq itself: a connection of psycopg, when cancelled, sends a cancel request and waits for the
# server, which does not answer if it hangs.


async def _connect(conninfo: bytes, addresses: str) -> PGconn:
    connection: PGconn = pq.PGconn.connect_start(conninfo)
    try:
        if connection.status != pq.ConnStatus.BAD:  # BAD for example if a Unix socket does not exist
            connection.nonblocking = 1
        state: int = pq.PollingStatus.WRITING  # the initial state of libpq
        with step("connect", addresses):
            while connection.status == pq.ConnStatus.STARTED:
                state = await _poll_connection(connection, state)
            _raise_unless(connection, connection.status != pq.ConnStatus.BAD)
        with step("log in"):
            while state in (pq.PollingStatus.READING, pq.PollingStatus.WRITING):
                state = await _poll_connection(connection, state)
            _raise_unless(connection, connection.status == pq.ConnStatus.OK)
    except BaseException:  # on cancellation too: nothing else closes the connection
        connection.finish()
        raise
    return connection


async def _poll_connection(connection: PGconn, state: int) -> int:
    await _wait_ready(connection.socket, to_write=state == pq.PollingStatus.WRITING)
    return connection.connect_poll()


def _raise_unless(connection: PGconn, is_ok: bool) -> None:
    if is_ok:
        return
    if not connection.error_message:  # libpq has no message if it cannot create a socket; this raises the error
        socket.socket().close()
    if connection.needs_password:
        raise CheckError("the server requires a password, and the probe has none", ReasonCode.AUTH_REQUIRED)
    raise PostgresqlError(connection.get_error_message())


async def _execute(connection: PGconn, query: str) -> PGresult:
    connection.send_query_params(query.encode(), [])
    while connection.flush():
        await _wait_ready(connection.socket, to_write=True)
    last: PGresult | None = None
    while (result := await _next_result(connection)) is not None:
        if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            raise _query_error(result)
        last = result
    if last is None:
        raise PostgresqlError(connection.get_error_message())
    return last


def _query_error(result: PGresult) -> Exception:
    if not result.error_message:
        return CheckError("the query returned no result", ReasonCode.UNEXPECTED_RESPONSE)
    sqlstate = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
    return PostgresqlError(result.get_error_message(), sqlstate.decode("ascii", "replace"))


async def _next_result(connection: PGconn) -> PGresult | None:
    for _ in range(_MAX_READS):
        if not connection.is_busy():
            return connection.get_result()
        while connection.notifies() is not None:
            pass  # libpq keeps them until they are read
        await _wait_ready(connection.socket, to_write=False)
        connection.consume_input()
    raise CheckError("the response does not end", ReasonCode.UNEXPECTED_RESPONSE)


async def _wait_ready(descriptor: int, *, to_write: bool) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    add, remove = (loop.add_writer, loop.remove_writer) if to_write else (loop.add_reader, loop.remove_reader)
    add(descriptor, _wake, ready)
    try:
        await ready
    finally:
        remove(descriptor)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
