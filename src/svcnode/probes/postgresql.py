"""`postgresql://user:password@host:port/database`: a PostgreSQL server that answers a query.

ready      the server responds; `query`, if set, returns true, or what `require` says; the write of `write`, if set, is
           committed
not ready  the server is starting up or recovering; it does not have the expected `role`; it is a primary that is
           read-only, or that waits for more synchronous standbys than are connected, or whose standbys the user may
           not see; it is a replica that is further
           behind than `max_lag`, or whose lag is not known because of clock skew or because `primary` is offline; the
           server refuses the write because it is read-only or has no disk space or memory left; a condition of
           `starting` holds; a value that must advance has not yet
failed     any other error, such as wrong credentials or too many connections; `query` does not return true, or what
           `require` says; the write does not finish or is refused for another reason; connection refused, host
           unreachable, certificate not trusted
unknown    no file descriptors or ports left on this machine; the resolver does not answer
"""

from __future__ import annotations

import asyncio
import math
import re
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar
from urllib.parse import parse_qsl

from psycopg import pq
from psycopg.adapt import Transformer
from psycopg.pq.abc import PGconn, PGresult

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Outcome, Verdict
from svcnode.core.option_types import one_of
from svcnode.core.text import suggestion
from svcnode.core.url import UrlForm
from svcnode.net.clock import monotonic_s
from svcnode.net.connect import race_addresses
from svcnode.net.dns import is_ip_address, resolve_host
from svcnode.net.os_errors import verdict_for_os_error
from svcnode.net.trace import step
from svcnode.probes import libpq
from svcnode.probes.base import MAX_CLOCK_SKEW_S, CheckError, time_left_s
from svcnode.probes.libpq import PostgresqlError
from svcnode.probes.replication import RETRY_PAUSES_S, KnownPositions, ReplicatedProbe, write_code
from svcnode.probes.session import driver_error_text
from svcnode.probes.sql import Row

if TYPE_CHECKING:
    from svcnode.core.url import Url

URL_PARAMETERS = ("application_name", "host", "options", "sslmode")
PLAINTEXT_SSL_MODES = ("disable", "allow", "prefer")
SSL_MODES = (*PLAINTEXT_SSL_MODES, "require", "verify-ca", "verify-full")
_PARAMETER_PATTERN = f"((application_name|host|options)=[^&#]*|sslmode=({'|'.join(SSL_MODES)}))"
_QUERY_PATTERN = f"({_PARAMETER_PATTERN}(&{_PARAMETER_PATTERN})*)?"

# By SQLSTATE, then by its class. libpq returns the SQLSTATE of a failed query only.
_CODES = {
    "25006": ReasonCode.BAD_REQUEST,  # the query writes
    "28000": ReasonCode.CLIENT_NOT_ALLOWED,
    "28P01": ReasonCode.AUTH_FAILED,
    "3D000": ReasonCode.NOT_FOUND,
    "42501": ReasonCode.PERMISSION_DENIED,
    "42P01": ReasonCode.NOT_FOUND,
    "53100": ReasonCode.STORAGE_FULL,
    "53200": ReasonCode.OUT_OF_MEMORY,
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
    ("unknown authentication type", ReasonCode.PROTOCOL_ERROR),
    ("invalid authentication request", ReasonCode.PROTOCOL_ERROR),
    ("unexpected eof while reading", ReasonCode.CONNECTION_CLOSED),
    ("SSL error", ReasonCode.TLS_FAILED),
    ("SSL SYSCALL error", ReasonCode.TLS_FAILED),
)
_MISSING = (("database ", ReasonCode.NOT_FOUND), ("role ", ReasonCode.USER_NOT_FOUND))
_CLIENT_FILE_ERRORS = (
    "could not read root certificate file",
    "could not read certificate file",
    "could not load private key file",
    "private key file",
)
# Of the write; other errors have the codes above, and WRITE_FAILED instead of a general one.
_WRITE_CODES = {
    "25006": ReasonCode.READ_ONLY,
    "57014": ReasonCode.WRITE_TIMEOUT,  # statement_timeout
}
_INSUFFICIENT_PRIVILEGE = "42501"
_WARNING, _ADMIN_SHUTDOWN = b"01000", b"57P01"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_TABLE_NAME = re.compile(r"(?:[a-z_][a-z0-9_]{0,62}\.)?[a-z_][a-z0-9_]{0,62}")
_CREATE_TABLE = "CREATE TABLE {table} (id integer PRIMARY KEY, written_at timestamptz NOT NULL); "
_GRANT = "GRANT SELECT, INSERT, UPDATE ON {table} TO {user}"
_GRANT_SCHEMA = "GRANT USAGE ON SCHEMA {schema} TO {user}; "
# One transaction, sent as one message: between its statements the server waits for nothing of this side, so a node that
# stops keeps no lock. The result of the SELECT is larger than work_mem: the server writes it to a temporary file in
# the tablespace of the database, which needs free disk space, as new data does; an UPDATE alone often needs none. The
# rows are few, and nodes that write at the same time rarely wait for each other.
_WRITE = """\
SET LOCAL statement_timeout = {timeout_ms};
SET LOCAL work_mem = '64kB';
SELECT count(*) FROM generate_series(1, 5000);
INSERT INTO {table} (id, written_at) VALUES (pg_backend_pid() % 64, now())
ON CONFLICT (id) DO UPDATE SET written_at = excluded.written_at"""
_BEGIN = "BEGIN READ ONLY"
# Times have one form, and those without a zone are UTC.
_BEGIN_FOR_CONDITIONS = f"{_BEGIN}; SET LOCAL datestyle = 'ISO'; SET LOCAL timezone = 'UTC'"
_RUNNING_QUERY = "SELECT FROM pg_stat_activity WHERE pid IN ({pids}) AND usename = current_user AND state <> 'idle'"

_STATE_QUERY = """\
SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only', true),
       current_setting('synchronous_standby_names', true), current_setting('synchronous_commit', true)"""
# Servers that only speak the protocol of PostgreSQL lack some functions.
_NOT_SUPPORTED_CLASSES = ("0A", "42")
_SOURCE_QUERY = "SELECT source FROM pg_settings WHERE name = 'default_transaction_read_only'"
# Settings of this user or this session do not say anything about the server.
_OWN_SOURCES = (b"user", b"database user", b"client", b"session")
# Without the privilege to see it, sync_state is NULL.
_SYNC_STANDBY_QUERY = """\
SELECT count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')), count(*) FILTER (WHERE sync_state IS NULL)
FROM pg_stat_replication"""
_STANDBY_COUNT = re.compile(rb"\s*(?:first\s|any\s)?\s*(\d+)\s*\(", re.IGNORECASE)

# Positions are bytes since the beginning of the WAL. After a restart of the replica, the received position may be less
# than the replayed one. latest_end_lsn is the position of the server that sends; it needs pg_read_all_stats.
_REPLAY_QUERY = """\
SELECT EXISTS (SELECT FROM pg_stat_wal_receiver), CASE WHEN pg_is_in_recovery() THEN pg_is_wal_replay_paused() END,
       pg_last_wal_replay_lsn() - '0/0'::pg_lsn,
       greatest(pg_last_wal_receive_lsn(), (SELECT latest_end_lsn FROM pg_stat_wal_receiver)) - '0/0'::pg_lsn,
       extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())"""
_SYSTEM_QUERY = """\
SELECT system_identifier, CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_current_wal_flush_lsn() - '0/0'::pg_lsn END
FROM pg_control_system()"""
MAX_ROW_BYTES = 256 * 1024  # converting its values blocks the event loop
_MAX_WRITE_S = 3600.0  # of a check without a deadline
_WAL_PAGE_BYTES = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class _Replay:
    """How far a replica has replayed the WAL."""

    is_streaming: bool
    is_paused: bool
    position: int
    end: int  # the last position that the replica knows of
    commit_age_s: float | None  # of the last transaction that it replayed

    @property
    def reported_lag_s(self) -> float:
        """At most this far behind; infinite if it is not known."""
        age_s = self.commit_age_s
        return math.inf if age_s is None or age_s < -MAX_CLOCK_SKEW_S else age_s

    def has_reached(self, end: int) -> bool:
        """While a transaction is open, the primary sends whole pages.

        The last page often ends in the middle of a record, which can be replayed only when the rest has come.
        """
        if end % _WAL_PAGE_BYTES == 0 and not self.is_paused:
            end -= 2 * _WAL_PAGE_BYTES  # a record usually has less than a page
        return self.position >= end


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PostgresqlProbe(ReplicatedProbe[PGconn]):
    sslmode: Annotated[str, one_of(*SSL_MODES)] = ""
    _conninfo: dict[str, str] = field(init=False, compare=False)  # the parameters of libpq without the addresses
    _ends: KnownPositions[int] = field(init=False, compare=False, default_factory=KnownPositions)  # of the WAL
    _pids_of_hung_writes: set[int] = field(init=False, compare=False, default_factory=set)

    tls_enabled_by: ClassVar = 'another sslmode, such as "verify-full"'
    primary_schemes: ClassVar = ("postgresql", "postgres")
    primary_example: ClassVar = "postgresql://10.0.0.5/ledger"
    url_form: ClassVar = UrlForm(host="optional", query=_QUERY_PATTERN)

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
        if self.write and not _TABLE_NAME.fullmatch(self.write):
            text = 'must be a table, or a schema and a table, in lower case, such as "monitoring.svcnode_write"'
            raise OptionError("write", text)
        self.validate_replication()

    def primary_tls_options(self, url: Url) -> dict[str, Any]:
        return {} if "sslmode=" in url.query else {"sslmode": self._conninfo["sslmode"]}

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
            await self.tls_context()  # raises if a file is missing, which libpq reports as an error of the server
        if self.url.host and not parameters["host"].startswith("/"):
            addresses = [self.url.host] if is_ip_address(self.url.host) else await resolve_host(self.url.host)
            # libpq would resolve the name and block the loop, and try one address after the other.
            connection = await race_addresses(
                addresses, lambda address: libpq.connect({**parameters, "hostaddr": address}, address), PGconn.finish
            )
        else:
            connection = await libpq.connect(parameters, parameters["host"])
        with step("log in"), self.abort_on_error(connection):
            await libpq.log_in(connection)
        return connection

    async def check_connection(self, connection: PGconn) -> Verdict | None:
        verdict = await self._state_verdict(connection)
        if verdict is None and self.query:
            verdict = await self._query_verdict(connection)
        if verdict is None and self.write:
            verdict = await self._write_verdict(connection)
        return verdict

    # ---- the state of the server

    async def _state_verdict(self, connection: PGconn) -> Verdict | None:
        try:
            row = await libpq.execute_for_row(connection, _STATE_QUERY, 4)
        except PostgresqlError as exc:
            if self.role or self.max_lag is not None or self.write:
                raise
            if exc.sqlstate[:2] not in _NOT_SUPPORTED_CLASSES:
                raise
            await libpq.execute(connection, "SELECT 1")
            return None
        is_in_recovery, read_only, standby_names, synchronous_commit = row
        if is_in_recovery == b"t":
            return await self._replica_verdict(connection)
        if self.role == "replica":
            return self.not_ready('the server is not a replica, but role is "replica"', ReasonCode.WRONG_ROLE)
        if read_only == b"on" and (verdict := await self._read_only_verdict(connection)) is not None:
            return verdict
        if standby_names and synchronous_commit not in (b"off", b"local"):
            return await self._standby_verdict(connection, standby_names)
        return None

    async def _replica_verdict(self, connection: PGconn) -> Verdict | None:
        if self.role == "primary":
            return self.not_ready('the server is a replica, but role is "primary"', ReasonCode.WRONG_ROLE)
        if self.write:
            return self.not_ready("the server is a replica, which accepts no writes", ReasonCode.READ_ONLY)
        return None if self.max_lag is None else await self._lag_verdict(connection, self.max_lag)

    async def _read_only_verdict(self, connection: PGconn) -> Verdict | None:
        (source,) = await libpq.execute_for_row(connection, _SOURCE_QUERY, 1)
        if source not in _OWN_SOURCES:
            return self.not_ready("the server is read-only: default_transaction_read_only is on", ReasonCode.READ_ONLY)
        if not self.write:
            return None
        text = f"the check cannot write: default_transaction_read_only is on for the user {_user_name(connection)}"
        return self.not_ready(text, ReasonCode.READ_ONLY)

    async def _standby_verdict(self, connection: PGconn, names: bytes) -> Verdict | None:
        found = _STANDBY_COUNT.match(names)
        required = int(found[1]) if found else 1
        connected, hidden = [
            int(count or 0) for count in await libpq.execute_for_row(connection, _SYNC_STANDBY_QUERY, 2)
        ]
        if connected >= required:
            return None
        if connected + hidden < required:
            text = f"every commit waits: {connected + hidden} of {required} synchronous standbys connected"
            return self.not_ready(text, ReasonCode.TOO_FEW_REPLICAS)
        if self.write:  # it shows whether a commit waits
            return None
        text = "it is not known whether every commit waits, because the user may not see which standbys are synchronous"
        hint = f"GRANT pg_read_all_stats TO {_quoted(_user_name(connection))}"
        return self.not_ready(f"{text}; missing privilege: {hint}", ReasonCode.PERMISSION_DENIED)

    # ---- the lag of a replica

    async def _lag_verdict(self, connection: PGconn, max_lag_s: float) -> Verdict | None:
        asked_s = monotonic_s()
        primary_end = await self._primary_end(connection)
        if isinstance(primary_end, Verdict):
            return primary_end
        replay = await _read_replay(connection)
        if primary_end is None and not replay.is_streaming:
            return self._verdict_for_lag(replay.reported_lag_s, replay.commit_age_s, max_lag_s)
        end = max(primary_end or 0, replay.end)
        lag_s = self._lag_s(replay, end)
        for pause_s in RETRY_PAUSES_S:
            if lag_s <= max_lag_s:
                break
            await asyncio.sleep(pause_s)
            replay = await _read_replay(connection)
            lag_s = self._lag_s(replay, end)
        self._ends.record(asked_s, min(end, replay.position) if lag_s == 0 else end, max_lag_s)
        return self._verdict_for_lag(lag_s, replay.commit_age_s, max_lag_s)

    def _lag_s(self, replay: _Replay, end: int) -> float:
        if replay.has_reached(end):
            return 0.0
        return min(replay.reported_lag_s, self._ends.lag_s(monotonic_s(), replay.has_reached))

    def _verdict_for_lag(self, lag_s: float, commit_age_s: float | None, max_lag_s: float) -> Verdict | None:
        if lag_s <= max_lag_s:
            return None
        if lag_s < math.inf:
            text = f"the replica is {lag_s:.1f} s behind, but max_lag is {max_lag_s:g} s"
            return self.not_ready(text, ReasonCode.LAGGING)
        if commit_age_s is None:
            return self.not_ready("the replica has not replayed any transaction yet", ReasonCode.LAGGING)
        text = f"clock skew: the last replayed transaction is dated {-commit_age_s:.0f} s in the future"
        return self.not_ready(text, ReasonCode.CLOCK_SKEW)

    async def _primary_end(self, connection: PGconn) -> int | Verdict | None:
        """The end of the WAL of the primary, or why it is not known; None without the option."""
        if self._primary is None:
            return None
        own_system, _ = await _read_system(connection)
        response = await self.ask_primary(self._primary, _read_system)
        if isinstance(response, Verdict):
            return response
        system, end = response
        if system != own_system:
            text = f"the server is not a replica of {self._primary.url}: they belong to different clusters"
            return self.not_ready(text, ReasonCode.REPLICATION_STOPPED)
        if end is None:
            text = f"the lag is not known, because the server of primary is a replica ({self._primary.url})"
            return self.not_ready(text, ReasonCode.UPSTREAM_OFFLINE)
        return int(end)

    # ---- query and write

    async def _query_verdict(self, connection: PGconn) -> Verdict | None:
        begin = _BEGIN_FOR_CONDITIONS if self.require or self.starting else _BEGIN
        await libpq.execute(connection, begin, is_script=True)
        result = await libpq.execute_or_cancel(connection, self.query)
        await libpq.execute(connection, "ROLLBACK")
        return await self.row_verdict(_first_row(result))

    async def _write_verdict(self, connection: PGconn) -> Verdict | None:
        if await self._is_write_running(connection):
            return self.failed("the write of an earlier check has not finished", ReasonCode.WRITE_TIMEOUT)
        are_waits_cancelled: list[bool] = []
        connection.notice_handler = lambda notice: are_waits_cancelled.append(_is_wait_cancelled(notice))
        try:
            with step("write"):
                await libpq.execute_or_cancel(connection, _write_script(self.write), is_script=True)
        except asyncio.CancelledError:
            self._pids_of_hung_writes.add(connection.backend_pid)
            raise
        except PostgresqlError as exc:
            if connection.status != pq.ConnStatus.OK:
                raise  # the connection failed, not the write
            return self._write_error_verdict(exc, connection)
        finally:
            connection.notice_handler = None
        if any(are_waits_cancelled):
            text = "the write is not confirmed: its wait for a synchronous standby was cancelled"
            return self.failed(text, ReasonCode.WRITE_FAILED)
        return None

    async def _is_write_running(self, connection: PGconn) -> bool:
        """Whether a write that was cancelled still hangs, as on a disk that does not respond.

        Another write would hang too. Without this, each check would add a process to the server.
        """
        if not self._pids_of_hung_writes:
            return False
        pids = ", ".join(map(str, self._pids_of_hung_writes))
        if (await libpq.execute(connection, _RUNNING_QUERY.format(pids=pids))).ntuples:
            return True
        self._pids_of_hung_writes.clear()
        return False

    def _write_error_verdict(self, exc: PostgresqlError, connection: PGconn) -> Verdict:
        code = _WRITE_CODES.get(exc.sqlstate) or write_code(_code_for_sqlstate(exc.sqlstate))
        text = driver_error_text(libpq.join_lines(str(exc)))
        if exc.sqlstate.startswith("42"):  # no such table, one with other columns, or no privilege
            text += f"; {_write_hint(exc.sqlstate, self.write, _user_name(connection))}"
        return self.write_error_verdict(text, code)

    def peer_address(self, connection: PGconn) -> str:
        return connection.hostaddr.decode("ascii")  # "" for a Unix socket

    def abort(self, connection: PGconn) -> None:
        connection.finish()  # sends Terminate and does not wait

    def verdict_for_driver_error(self, exc: Exception) -> Verdict:
        if isinstance(exc, CheckError):
            return exc.verdict(self.url)
        text = driver_error_text(libpq.join_lines(str(exc)))
        if isinstance(exc, PostgresqlError) and exc.sqlstate:
            return self.failed(text, _code_for_sqlstate(exc.sqlstate))
        return self._connection_error_verdict(text)

    def _connection_error_verdict(self, text: str) -> Verdict:
        """The last one of several attempts decides if no server responded."""
        if (code := _code_for_text(text)) is not None:
            outcome = Outcome.NOT_READY if code is ReasonCode.STARTING else Outcome.FAILED
            return CheckError(text, code, outcome).verdict(self.url)
        last = libpq.last_error(text)
        if last.startswith(_CLIENT_FILE_ERRORS):
            file_error = last[: last.rfind('"') + 1]  # the text after the file name may be garbage
            return CheckError(file_error, ReasonCode.FILE_NOT_READABLE, Outcome.UNKNOWN).verdict(self.url)
        error = libpq.system_error(text)
        if error is None:
            return self.failed(text, ReasonCode.SERVER_ERROR)
        verdict = verdict_for_os_error(error, str(self.url))
        if verdict.outcome is Outcome.UNKNOWN:
            return verdict
        return verdict._replace(reason=f"{libpq.lowercase_system_errors(text)}: {self.url}")


def _first_row(result: PGresult) -> Row:
    if not (result.ntuples and result.nfields):
        return Row()
    if sum(len(result.get_value(0, column) or b"") for column in range(result.nfields)) > MAX_ROW_BYTES:
        text = f"the first row is larger than {MAX_ROW_BYTES // 1024} KiB; select only what the conditions need"
        raise CheckError(text, ReasonCode.UNEXPECTED_RESPONSE)
    names = [(result.fname(column) or b"").decode(errors="replace") for column in range(result.nfields)]
    loader = Transformer()
    loader.set_pgresult(result)
    try:
        return Row.of(names, loader.load_row(0, tuple) or ())
    except Exception as exc:  # a time beyond the year 9999, or broken JSON
        text = f"the result cannot be read: {driver_error_text(exc)}"
        raise CheckError(text, ReasonCode.UNEXPECTED_RESPONSE) from exc


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


def _user_name(connection: PGconn) -> str:
    return driver_error_text(connection.user.decode(errors="replace"))


def _is_wait_cancelled(notice: PGresult) -> bool:
    """Whether only this server has the data: it reports success, and warns that it did not wait for a standby.

    The SQLSTATE is that of the cancellation, or of any warning; the function of the server that warns is then the only
    sign (syncrep.c). What a trigger raises is no error of the write. libpq frees the notice when its handler returns.
    """
    sqlstate, function = (
        notice.error_field(field) for field in (pq.DiagnosticField.SQLSTATE, pq.DiagnosticField.SOURCE_FUNCTION)
    )
    return sqlstate == _ADMIN_SHUTDOWN or (sqlstate == _WARNING and function == b"SyncRepWaitForLSN")


def _quoted(name: str) -> str:
    return name if _NAME.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def _write_hint(sqlstate: str, table: str, user: str) -> str:
    """The statements that are missing."""
    user = _quoted(user)
    schema = table.rpartition(".")[0]
    grant = (_GRANT_SCHEMA if schema else "") + _GRANT
    if sqlstate == _INSUFFICIENT_PRIVILEGE:
        return "missing privilege: " + grant.format(table=table, schema=schema, user=user)
    return "the table is created by: " + (_CREATE_TABLE + grant).format(table=table, schema=schema, user=user)


def _write_script(table: str) -> str:
    """The server itself ends it a second after the deadline, in case that this process is killed."""
    return _WRITE.format(table=table, timeout_ms=int(1000 * (min(time_left_s(), _MAX_WRITE_S) + 1)))


async def _read_system(connection: PGconn) -> list[bytes | None]:
    """The cluster and its end of the WAL."""
    return await libpq.execute_for_row(connection, _SYSTEM_QUERY, 2)


async def _read_replay(connection: PGconn) -> _Replay:
    is_streaming, is_paused, position, end, commit_age_s = await libpq.execute_for_row(connection, _REPLAY_QUERY, 5)
    return _Replay(
        is_streaming=is_streaming == b"t",
        is_paused=is_paused == b"t",
        position=int(position or 0),
        end=int(end or 0),
        commit_age_s=None if commit_age_s is None else float(commit_age_s),
    )
