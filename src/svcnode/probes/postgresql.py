"""`postgresql://user:password@host:port/database`: a PostgreSQL server that answers a query.

ready      `SELECT 1` is answered, or `query` returns true
not ready  it is starting up or recovering; it is in recovery though `role` is "primary", or not though it is "replica";
           it is a replica that is further behind than `max_lag`, or whose clock does not tell how far
failed     any other refusal, such as wrong credentials or no connections left; `query` returns anything but true;
           refused, unreachable, not trusted
unknown    no file descriptors or ports left here, or the resolver does not work
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar
from urllib.parse import parse_qsl

from psycopg import pq
from psycopg.conninfo import make_conninfo
from psycopg.pq.abc import PGconn, PGresult

from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Verdict
from svcnode.core.text import suggestion
from svcnode.net.dns import is_ip_address, resolve_host
from svcnode.net.trace import step
from svcnode.probes.base import MAX_CLOCK_SKEW_S
from svcnode.probes.options import Role, Seconds, one_of
from svcnode.probes.session import LoginProbe, driver_error_text

READY = Verdict.ready()
BOOLEAN_OID = 16
URL_PARAMETERS = ("application_name", "host", "options", "sslmode")
PLAINTEXT_SSL_MODES = ("disable", "allow", "prefer")
SSL_MODES = (*PLAINTEXT_SSL_MODES, "require", "verify-ca", "verify-full")
_MAX_READS = 4096  # of reading what has come; with each, as much as fits into libpq's buffer

# libpq tells no code of a server that refuses a connection, only the server's words; these are never translated into
# a green light, only into "starting" instead of "down".
_STARTING_MESSAGES = (
    "the database system is starting up",
    "the database system is in recovery mode",
    "the database system is not yet accepting connections",
)
_LOCAL_ERRORS = {
    os.strerror(number)
    for number in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL, errno.EAGAIN)
}
_SYSTEM_ERRORS = frozenset(map(os.strerror, errno.errorcode))
_LOCAL_FILE_ERRORS = (
    "could not read root certificate file",
    "could not read certificate file",
    "could not load private key file",
    "private key file",
)
# A replica that has replayed all it received is as new as the stream that feeds it. Without a stream, or with more to
# replay, it is as old as the last transaction that it replayed. After its own restart it may count less as received
# than it has replayed, for as long as the primary writes nothing.
_REPLICATION_QUERY = """\
SELECT pg_is_in_recovery(),
       CASE WHEN EXISTS (SELECT FROM pg_stat_wal_receiver)
                 AND pg_last_wal_receive_lsn() <= pg_last_wal_replay_lsn() THEN 0
            ELSE extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp()) END"""


class PostgresqlError(Exception):
    """What libpq or the server said, in its words."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PostgresqlProbe(LoginProbe[PGconn]):
    role: Role = ""
    query: str = ""  # run in a transaction that cannot write; its first value must be true
    max_lag: Seconds | None = None
    sslmode: Annotated[str, one_of(*SSL_MODES)] = ""
    _conninfo: dict[str, str] = field(init=False, compare=False)  # as libpq takes them, but for the address

    tls_enabled_by: ClassVar = 'another sslmode, such as "verify-full"'

    def __post_init__(self) -> None:
        given = dict(parse_qsl(self.url.query, keep_blank_values=True))
        for name in given:
            if name not in URL_PARAMETERS:
                raise ProbeError(f'"{name}" in its query is unknown here{suggestion(name, URL_PARAMETERS)}')
        if not given.get("host", "/").startswith("/"):
            raise ProbeError('"host" in its query is for the folder of a Unix socket, such as /run/postgresql')
        if self.sslmode and "sslmode" in given:
            raise OptionError("sslmode", "stands in the URL as well; only one of the two can count")
        user, password = self.credentials()
        words = {
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
        for name, word in words.items():
            if "\0" in word:  # libpq would take all that follows for nothing, the host and the mode of TLS too
                raise ProbeError(f"{name} holds a null character")
        object.__setattr__(self, "_conninfo", {name: word for name, word in words.items() if word})

    def _tls_parameters(self, mode: str) -> dict[str, str]:
        if mode and mode not in SSL_MODES:
            raise ProbeError(f'sslmode "{mode}" is unknown; it is one of {", ".join(SSL_MODES)}')
        if self.min_cert_days:
            raise OptionError("min_cert_days", "cannot be judged here: libpq does not show the server's certificate")
        mode = mode or ("verify-full" if self.ca else "prefer")
        if self.ca and not mode.startswith("verify-"):
            raise OptionError("ca", f'is not looked at with sslmode "{mode}"; take "verify-full" or "verify-ca"')
        self.validate_tls_options(uses_tls=mode != "disable")
        if mode == "verify-ca" and not self.ca:
            raise OptionError("ca", 'is missing, and sslmode "verify-ca" needs it; or take "verify-full"')
        trusted = self.ca or (_system_ca_file() if mode == "verify-full" else "")
        words = {"sslmode": mode, "sslcert": self.client_certificate, "sslkey": self.client_key}
        # Older ones know no such word, and hand the password to whoever asks for it.
        is_given_in_clear = mode not in PLAINTEXT_SSL_MODES or pq.version() < 160000
        return {**words, "sslrootcert": trusted, "require_auth": "" if is_given_in_clear else "!password"}

    async def open(self) -> PGconn:
        words = dict(self._conninfo)
        if words["sslmode"] != "disable":
            self.tls_context()  # or libpq would blame the server for files of ours that are gone
        if self.url.host and not words["host"].startswith("/"):
            addresses = [self.url.host] if is_ip_address(self.url.host) else await resolve_host(self.url.host)
            words["hostaddr"] = ",".join(addresses)  # libpq would look names up itself, and block
            words["host"] = ",".join([words["host"]] * len(addresses))
        return await _connect(make_conninfo(**words).encode(), words.get("hostaddr", words["host"]))

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
            return Verdict.not_ready(f"in recovery, so it is not the primary: {self.url}")
        if self.role == "replica" and not is_replica:
            return Verdict.not_ready(f"not in recovery, so it is no replica: {self.url}")
        return self._lag_verdict(lag_s, self.max_lag) if is_replica and self.max_lag is not None else None

    def _lag_verdict(self, lag_s: float | None, max_lag_s: float) -> Verdict | None:
        if lag_s is None:
            return Verdict.not_ready(f"a replica that has replayed nothing yet: {self.url}")
        if lag_s < -MAX_CLOCK_SKEW_S:
            ahead = f"what it replayed last is dated {-lag_s:.0f} s in its future"
            return Verdict.not_ready(f"{ahead}, so the clocks disagree and its lag is not known: {self.url}")
        if lag_s > max_lag_s:
            return Verdict.not_ready(f"a replica {lag_s:.1f} s behind, max_lag is {max_lag_s:g} s: {self.url}")
        return None

    async def _query_verdict(self, connection: PGconn) -> Verdict:
        await _execute(connection, "BEGIN READ ONLY")
        result = await _execute(connection, self.query)
        await _execute(connection, "ROLLBACK")
        if not (result.ntuples and result.nfields):
            return Verdict.failed(f"its query returned nothing: {self.url}")
        if result.ftype(0) != BOOLEAN_OID or result.get_value(0, 0) != b"t":
            return Verdict.failed(f"its query did not return true: {self.url}")
        return READY

    def abort(self, connection: PGconn) -> None:
        connection.finish()  # says goodbye without waiting for an answer

    def verdict_for_driver_error(self, exc: Exception) -> Verdict:
        words = driver_error_text(Exception(_join_lines(str(exc))))
        if any(phrase in words for phrase in _STARTING_MESSAGES):
            return Verdict.not_ready(f"{words}: {self.url}")
        if our_fault := _local_error(words):
            return Verdict.unknown(f"this machine cannot look: {our_fault}")
        return Verdict.failed(f"{_lowercase_system_errors(words)}: {self.url}")


def _system_ca_file() -> str:
    """A file: the libpq that comes with the driver looks for the authorities in a folder of its own, which is empty."""
    usual = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
    found = (file for file in (ssl.get_default_verify_paths().cafile, *usual) if file and Path(file).exists())
    return next(found, "system")


def _local_error(words: str) -> str:
    """The last address counts. A server may have run out of the same things, but says so in a longer sentence."""
    last = words.rpartition(" failed: ")[2]
    if last.startswith(_LOCAL_FILE_ERRORS):
        return last[: last.rfind('"') + 1]  # what follows may be no text at all
    error = last.removeprefix("could not create socket: ")
    return error.lower() if error in _LOCAL_ERRORS else ""


def _lowercase_system_errors(words: str) -> str:
    """As all kinds tell the errors of this machine; what the server says is left as it is."""
    clauses = [clause.rpartition(" failed: ") for clause in words.split("; ")]
    return "; ".join(
        f"{where}{failed}{error.lower() if error in _SYSTEM_ERRORS else error}" for where, failed, error in clauses
    )


def _join_lines(message: str) -> str:
    """Without what is indented: advice, and the arrow that shows where in a query the fault is."""
    return "; ".join(line for line in message.splitlines() if line and not line[0].isspace())


# libpq is driven here call by call. psycopg's own connections, when cancelled, ask the server to cancel the query and
# wait for it to do so, which a server that hangs never does.


async def _connect(conninfo: bytes, where: str) -> PGconn:
    connection: PGconn = pq.PGconn.connect_start(conninfo)
    try:
        if connection.status != pq.ConnStatus.BAD:  # such as without the file of a Unix socket
            connection.nonblocking = 1
        state: int = pq.PollingStatus.WRITING  # as libpq has it after the start
        with step("connect", where):
            while connection.status == pq.ConnStatus.STARTED:  # at this address, or the next
                state = await _poll_connection(connection, state)
            _raise_unless(connection, connection.status != pq.ConnStatus.BAD)
        with step("log in"):
            while state in (pq.PollingStatus.READING, pq.PollingStatus.WRITING):
                state = await _poll_connection(connection, state)
            _raise_unless(connection, connection.status == pq.ConnStatus.OK)
    except BaseException:  # also when cancelled: nobody else knows the connection yet
        connection.finish()
        raise
    return connection


async def _poll_connection(connection: PGconn, state: int) -> int:
    await _wait_ready(connection.socket, to_write=state == pq.PollingStatus.WRITING)
    return connection.connect_poll()


def _raise_unless(connection: PGconn, is_well: bool) -> None:
    if not is_well:
        if not connection.error_message:  # libpq has no words for it that no socket can be made
            socket.socket().close()
        raise PostgresqlError(connection.get_error_message())


async def _execute(connection: PGconn, query: str) -> PGresult:
    """The result of one statement."""
    connection.send_query_params(query.encode(), [])
    while connection.flush():
        await _wait_ready(connection.socket, to_write=True)
    answer: PGresult | None = None
    while (result := await _next_result(connection)) is not None:
        if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            raise PostgresqlError(result.get_error_message() if result.error_message else "its query returned nothing")
        answer = result
    if answer is None:
        raise PostgresqlError(connection.get_error_message())
    return answer


async def _next_result(connection: PGconn) -> PGresult | None:
    for _ in range(_MAX_READS):
        if not connection.is_busy():
            return connection.get_result()
        while connection.notifies() is not None:
            pass  # nobody asked for them, and they would pile up
        await _wait_ready(connection.socket, to_write=False)
        connection.consume_input()
    raise PostgresqlError("its answer has no end")


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
