"""postgresql:// against a real PostgreSQL in many states and against scripted servers."""

from __future__ import annotations

import asyncio
import math
import re
import ssl
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from psycopg import pq

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.url import Url
from svcnode.probes import make_probe, postgresql
from svcnode.probes.libpq import PostgresqlError
from svcnode.probes.postgresql import PostgresqlProbe
from tests.support.backends import Backend, Peer, sending
from tests.support.disks import LoopDisk
from tests.support.http_server import WAIT_TIMEOUT_S, becomes_true
from tests.support.probe_assertions import TIMEOUTS_S
from tests.support.servers.base import wait_until
from tests.support.servers.postgresql import DATABASE, PASSWORD, USER, WRITE_TABLE, PostgresServer, PostgresStandby
from tests.support.verdicts import READY, UNEXPECTED_RESPONSE, ExpectedVerdict, failed, not_ready, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from svcnode.core.model import Verdict
    from tests.support.certificates import Certificate
    from tests.support.check_runner import CheckRunner

OPENING = ["connect", "log in", "exchange"]
AUTH_FAILED = failed(ReasonCode.AUTH_FAILED)
STARTING = not_ready(ReasonCode.STARTING)
TIMEOUT = failed(ReasonCode.TIMEOUT)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with PostgresServer(tmp_path_factory.mktemp("postgresql")) as server:
        yield server


@pytest.fixture(scope="module")
def replica(server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresStandby]:
    with server.replica(tmp_path_factory.mktemp("postgresql-replica")) as replica:
        yield replica


@pytest.fixture(scope="module")
def cascade(replica: PostgresStandby, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresStandby]:
    """A replica of the replica."""
    with replica.replica(tmp_path_factory.mktemp("postgresql-cascade")) as cascade:
        yield cascade


@pytest.fixture(scope="module")
def on_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """Its database is on a disk of its own."""
    folder = tmp_path_factory.mktemp("postgresql-disk")
    with LoopDisk(folder / "disk") as disk, PostgresServer(folder / "server", disk=disk) as server:
        yield server


@pytest.fixture(scope="module")
def starting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with PostgresServer(tmp_path_factory.mktemp("postgresql-starting")) as server:
        server.start_stalled_recovery()
        yield server


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, certificate: Certificate) -> Iterator[PostgresServer]:
    with PostgresServer(tmp_path_factory.mktemp("postgresql-tls"), certificate=certificate) as server:
        yield server


def shown(server: PostgresServer) -> str:
    return server.url.replace(PASSWORD, "***")


def clients(server: PostgresServer) -> list[str]:
    return server.psql(f"SELECT pid FROM pg_stat_activity WHERE usename = '{USER}'").splitlines()


def test_a_server_that_answers_is_ready(check: CheckRunner, server: PostgresServer) -> None:
    assert check(server.url) == READY
    assert check(server.url.replace("postgresql:", "postgres:")) == READY
    assert check(f"postgresql://127.0.0.1:{server.port}/{DATABASE}", username=USER, password=PASSWORD) == READY


def test_a_unix_socket_is_named_in_the_query(check: CheckRunner, server: PostgresServer) -> None:
    url = f"postgresql://{USER}:{PASSWORD}@:{server.port}/{DATABASE}?host={server.folder}"
    assert check(url) == READY
    assert check(url.replace(str(server.port), "1")) == failed(ReasonCode.FILE_NOT_FOUND)


def test_a_wrong_password_is_failed_and_not_shown(check: CheckRunner, server: PostgresServer) -> None:
    verdict = check(server.bad_credentials_url)
    assert verdict == AUTH_FAILED
    assert verdict.reason.endswith(shown(server))


def test_a_missing_password_is_failed(
    check: CheckRunner, server: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    url = f"postgresql://{USER}@127.0.0.1:{server.port}/{DATABASE}"
    assert check(url) == failed(ReasonCode.AUTH_REQUIRED)


def test_an_unknown_database_is_failed(check: CheckRunner, server: PostgresServer) -> None:
    assert check(server.url.replace(f"/{DATABASE}", "/gone")) == failed(ReasonCode.NOT_FOUND)


# ---- roles


def test_the_expected_role_is_ready(check: CheckRunner, server: PostgresServer, replica: PostgresStandby) -> None:
    assert check(server.url, role="primary", max_lag="0s") == READY  # max_lag is for replicas only
    assert check(replica.url, role="replica") == READY
    assert check(replica.url) == READY


def test_another_role_is_not_ready(check: CheckRunner, server: PostgresServer, replica: PostgresStandby) -> None:
    assert check(server.url, role="replica") == not_ready(ReasonCode.WRONG_ROLE)
    assert check(replica.url, role="primary") == not_ready(ReasonCode.WRONG_ROLE)


def test_a_disconnected_replica_whose_clock_is_behind_is_not_ready(
    check: CheckRunner, server: PostgresServer, replica: PostgresStandby, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_clock = postgresql._REPLAY_QUERY.replace("clock_timestamp()", "(clock_timestamp() - interval '1 hour')")
    monkeypatch.setattr(postgresql, "_REPLAY_QUERY", slow_clock)
    write(server, replica)
    assert check(replica.url, max_lag="1s") == READY  # without lag the clocks do not matter
    server.kill()
    try:
        wait_until(lambda: not replica.is_following(), "disconnected")
        verdict = check(replica.url, max_lag="1s")
    finally:
        server.start()
        server.wait_until_ready()
        wait_until(replica.is_following, "following again")
    assert verdict == not_ready(ReasonCode.CLOCK_SKEW)


@pytest.mark.parametrize(
    ("position", "is_paused", "is_reached"),
    [(16384, False, True), (16383, False, False), (32767, True, False), (32768, True, True)],
)
def test_the_end_of_a_page_is_reached_two_pages_before_it_unless_the_replay_is_paused(
    position: int, is_paused: bool, is_reached: bool
) -> None:
    replay = postgresql._Replay(is_streaming=True, is_paused=is_paused, position=position, end=32768, commit_age_s=None)
    assert replay.has_reached(32768) is is_reached
    assert not replay.has_reached(32769)
    assert replay.reported_lag_s == math.inf


def test_a_replica_that_receives_less_than_its_primary_has_is_not_ready(
    check: CheckRunner, server: PostgresServer, replica: PostgresStandby, cascade: PostgresStandby
) -> None:
    """The replica in the middle receives nothing, and the next one has all that the middle has."""
    write(server, cascade)
    with replica.receiver_frozen():
        server.psql("INSERT INTO written VALUES (2)")
        assert check(cascade.url, max_lag="200ms") == READY
        assert becomes_true(
            lambda: check(cascade.url, max_lag="200ms", primary=server.url) == not_ready(ReasonCode.LAGGING)
        )
        assert check(cascade.url, max_lag="1h", primary=server.url) == READY
    write(server, cascade)
    assert check(cascade.url, max_lag="200ms", primary=server.url) == READY


def test_a_primary_that_is_not_the_primary_of_the_replica_is_noticed(
    check: CheckRunner, replica: PostgresStandby, cascade: PostgresStandby, encrypted: PostgresServer
) -> None:
    other = f"{encrypted.url}?sslmode=require"
    assert check(cascade.url, max_lag="1h", primary=other) == not_ready(ReasonCode.REPLICATION_STOPPED)
    assert check(cascade.url, max_lag="1h", primary=replica.url) == not_ready(ReasonCode.UPSTREAM_OFFLINE)
    rejected = check(cascade.url, max_lag="1h", primary=replica.bad_credentials_url)
    assert rejected == not_ready(ReasonCode.AUTH_FAILED)
    assert "not-the-password" not in rejected.reason
    assert "offline" not in rejected.reason
    unknown_user = f"postgresql://nobody:secret-word@{replica.host}:{replica.port}/{DATABASE}"
    assert check(cascade.url, max_lag="1h", primary=unknown_user).code in (
        ReasonCode.AUTH_FAILED,
        ReasonCode.USER_NOT_FOUND,
    )


COMMIT_AGE = "SELECT extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())"
RECEIVED_MORE = "SELECT pg_last_wal_receive_lsn() > pg_last_wal_replay_lsn()"


def write(server: PostgresServer, replica: PostgresStandby) -> None:
    """Write a row and wait until the replica has replayed it."""
    server.psql("CREATE TABLE IF NOT EXISTS written (x INT); INSERT INTO written VALUES (1)")
    written = server.psql("SELECT pg_current_wal_lsn()")
    wait_until(lambda: replica.psql(f"SELECT pg_last_wal_replay_lsn() >= '{written}'") == "t", "replayed")


def is_behind(check: CheckRunner, replica: PostgresStandby) -> bool:
    """Whether it becomes more than 0.2 s."""
    return becomes_true(lambda: check(replica.url, max_lag="200ms") == not_ready(ReasonCode.LAGGING))


# ---- can it take writes?


def test_a_primary_that_is_read_only_is_not_ready(check: CheckRunner, server: PostgresServer) -> None:
    with server.read_only():
        for options in ({}, {"role": "primary"}, {"query": "SELECT true"}, {"write": True}):
            assert check(server.url, **options) == not_ready(ReasonCode.READ_ONLY)
    assert check(server.url) == READY


def test_a_replica_is_read_only_by_nature(check: CheckRunner, server: PostgresServer, replica: PostgresStandby) -> None:
    assert check(replica.url) == READY
    assert check(replica.url, write=True) == not_ready(ReasonCode.READ_ONLY)
    assert check(replica.url, write=True, role="primary") == not_ready(ReasonCode.WRONG_ROLE)


@pytest.mark.parametrize(
    ("owner", "is_own"),
    [
        (f"DATABASE {DATABASE}", False),
        ("ROLE ALL", False),
        (f"ROLE {USER}", True),
        (f"ROLE {USER} IN DATABASE {DATABASE}", True),
    ],
)
def test_read_only_transactions_of_the_user_of_the_probe_only_say_nothing_about_the_server(
    check: CheckRunner, server: PostgresServer, owner: str, is_own: bool
) -> None:
    server.psql(f"ALTER {owner} SET default_transaction_read_only = on")
    try:
        assert check(server.url) == (READY if is_own else not_ready(ReasonCode.READ_ONLY))
        assert check(server.url, write=True) == not_ready(ReasonCode.READ_ONLY)
    finally:
        server.psql(f"BEGIN READ WRITE; ALTER {owner} RESET default_transaction_read_only; COMMIT")


def test_a_standby_that_is_not_synchronous_does_not_count_if_the_user_may_see_it(
    check: CheckRunner, server: PostgresServer, replica: PostgresStandby
) -> None:
    with server.synchronous("gone"):
        assert check(server.url) == READY
        with server.granted("pg_read_all_stats"):
            assert check(server.url) == not_ready(ReasonCode.TOO_FEW_REPLICAS)
        assert check.times_out(server.url, "write", write=True) == failed(ReasonCode.WRITE_TIMEOUT)
        assert becomes_true(lambda: not clients(server))


def test_a_server_that_does_not_know_the_functions_of_postgresql_is_ready(
    check: CheckRunner, server: PostgresServer
) -> None:
    """Such as one that only speaks its protocol."""
    server.psql("REVOKE EXECUTE ON FUNCTION pg_is_in_recovery() FROM PUBLIC", database=DATABASE)
    try:
        assert check(server.url) == READY
        assert check(server.url, role="primary") == failed(ReasonCode.PERMISSION_DENIED)
    finally:
        server.psql("GRANT EXECUTE ON FUNCTION pg_is_in_recovery() TO PUBLIC", database=DATABASE)


def test_a_write_is_committed_and_leaves_few_rows(check: CheckRunner, server: PostgresServer) -> None:
    server.psql(f"DELETE FROM {WRITE_TABLE}", database=DATABASE)
    for _ in range(3):
        assert check(server.url, write=True) == READY
    assert check(server.url, write=True, role="primary", query="SELECT true", reuse=True) == READY
    rows = "SELECT count(*) BETWEEN 1 AND 4, max(id) < 64, now() - max(written_at) < '1 min' FROM "
    assert server.psql(f"{rows}{WRITE_TABLE}", database=DATABASE) == "t|t|t"
    assert check.steps(server.url, write=True)[-2:] == [("write", "", True), ("exchange", "", True)]


def test_the_reason_has_the_statements_that_a_write_needs(check: CheckRunner, server: PostgresServer) -> None:
    missing = check(server.url, write="absent")
    assert missing == failed(ReasonCode.NOT_FOUND)
    create, grant = re.findall(r"((?:CREATE|GRANT) [^;]*?)(?=;|: postgresql)", missing.reason)
    server.psql(create, database=DATABASE)
    try:
        denied = check(server.url, write="absent")
        assert denied == failed(ReasonCode.PERMISSION_DENIED)
        assert grant in denied.reason
        assert "CREATE" not in denied.reason
        server.psql(grant, database=DATABASE)
        assert check(server.url, write="absent") == READY
    finally:
        server.psql("DROP TABLE absent", database=DATABASE)


@pytest.mark.parametrize(
    ("sqlstate", "expected"),
    [
        ("25006", not_ready(ReasonCode.READ_ONLY)),
        ("53100", not_ready(ReasonCode.STORAGE_FULL)),
        ("53200", not_ready(ReasonCode.OUT_OF_MEMORY)),
        ("57014", failed(ReasonCode.WRITE_TIMEOUT)),
        ("55P03", failed(ReasonCode.LOCKED)),
        ("23514", failed(ReasonCode.WRITE_FAILED)),
        ("58030", failed(ReasonCode.WRITE_FAILED)),
        ("XX001", failed(ReasonCode.CORRUPT)),
    ],
)
def test_a_refused_write_has_the_code_of_its_sqlstate(
    check: CheckRunner, server: PostgresServer, sqlstate: str, expected: ExpectedVerdict
) -> None:
    raise_error = f"BEGIN RAISE EXCEPTION 'refused by a trigger' USING ERRCODE = '{sqlstate}'; END"
    server.psql(
        f"CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ {raise_error} $$; "
        f"CREATE TRIGGER refusing BEFORE INSERT ON {WRITE_TABLE} EXECUTE FUNCTION refuse()",
        database=DATABASE,
    )
    try:
        assert check(server.url, write=True) == expected
        results = check.sequence(server.url, lambda: None, write=True, reuse=True)
        assert [verdict for verdict, _ in results] == [expected, expected]
    finally:
        server.psql(f"DROP TRIGGER refusing ON {WRITE_TABLE}", database=DATABASE)
    assert check(server.url, write=True) == READY


def test_a_write_on_a_frozen_disk_times_out_and_no_second_one_is_started(
    check: CheckRunner, on_disk: PostgresServer
) -> None:
    """The process of the server cannot be interrupted until the disk responds."""
    assert on_disk.disk is not None
    assert check(on_disk.url, write=True) == READY
    with on_disk.disk.frozen():
        for timeout_s in TIMEOUTS_S:
            hung: list[int] = []
            actions = [lambda: hung.append(len(clients(on_disk)))] * 3  # noqa: B023  used in this iteration
            timeouts_s = (timeout_s, *[WAIT_TIMEOUT_S] * 3)
            results = check.sequence(on_disk.url, *actions, timeouts_s=timeouts_s, write=True)
            if "write" in results[0][1]:
                break
        assert [verdict for verdict, _ in results] == [failed(ReasonCode.WRITE_TIMEOUT)] * 4
        assert hung == [1, 1, 1]
    assert becomes_true(lambda: not clients(on_disk))
    assert check(on_disk.url, write=True) == READY


@pytest.mark.parametrize("libpq", [None, 160000], ids=["libpq", "older libpq"])
def test_a_write_that_waits_for_a_lock_times_out_and_leaves_nothing(
    check: CheckRunner, server: PostgresServer, monkeypatch: pytest.MonkeyPatch, libpq: int | None
) -> None:
    if libpq is not None:
        monkeypatch.setattr(pq, "version", lambda: libpq)
    with server.write_lock():
        assert check.times_out(server.url, "write", write=True) == failed(ReasonCode.WRITE_TIMEOUT)
        assert becomes_true(lambda: not clients(server))
    assert check(server.url, write=True) == READY


def test_a_commit_whose_wait_for_a_standby_was_cancelled_is_not_confirmed(
    check: CheckRunner, server: PostgresServer, replica: PostgresStandby
) -> None:
    """The server reports success with a warning."""
    waiting = f"FROM pg_stat_activity WHERE usename = '{USER}' AND wait_event = 'SyncRep'"

    def cancel() -> None:
        wait_until(lambda: server.psql(f"SELECT count(*) {waiting}") == "1", "waiting")
        server.psql(f"SELECT pg_cancel_backend(pid) {waiting}")

    async def main() -> Verdict:
        canceller = asyncio.create_task(asyncio.to_thread(cancel))
        verdict = await make_probe({"url": server.url, "write": True}).check()
        await canceller
        return verdict

    with server.synchronous("*"):
        wait_until(lambda: server.psql("SELECT sync_state FROM pg_stat_replication") == "sync", "synchronous")
        replica.freeze()
        try:
            assert check.run(main()) == failed(ReasonCode.WRITE_FAILED)
        finally:
            replica.thaw()


# ---- query


def test_a_query_that_returns_true_is_ready(check: CheckRunner, server: PostgresServer) -> None:
    assert check(server.url, query="SELECT true") == READY
    assert check(server.url, query="SELECT count(*) >= 0, 'more' FROM pg_class;") == READY
    assert check(server.url, query="SELECT current_setting('transaction_read_only')::boolean") == READY


@pytest.mark.parametrize(
    "query", ["SELECT false", "SELECT NULL::boolean", "SELECT 1", "SELECT 't'", "VALUES (false), (true)"]
)
def test_a_query_that_returns_anything_else_is_failed(check: CheckRunner, server: PostgresServer, query: str) -> None:
    assert check(server.url, query=query) == UNEXPECTED_RESPONSE


@pytest.mark.parametrize(
    "query", ["SELECT true WHERE false", "SELECT", ";", "-- nothing", "COMMIT", "COPY (SELECT true) TO STDOUT"]
)
def test_a_query_that_returns_nothing_is_failed(check: CheckRunner, server: PostgresServer, query: str) -> None:
    assert check(server.url, query=query) == UNEXPECTED_RESPONSE


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("SELEC true", ReasonCode.BAD_REQUEST),
        ("SELECT 1/0", ReasonCode.BAD_REQUEST),
        ("SELECT true FROM gone", ReasonCode.NOT_FOUND),
        ("SELECT true FROM pg_authid", ReasonCode.PERMISSION_DENIED),
        ("CREATE TABLE written_by_us (x INT)", ReasonCode.BAD_REQUEST),
        ("SELECT true; COMMIT", ReasonCode.BAD_REQUEST),
        ("SELECT set_config('transaction_read_only', 'off', false) = 'off'", ReasonCode.BAD_REQUEST),
    ],
    ids=["syntax", "division", "no table", "permission", "write", "two", "read-write"],
)
def test_a_query_that_the_server_rejects_is_failed(
    check: CheckRunner, server: PostgresServer, query: str, code: ReasonCode
) -> None:
    assert check(server.url, query=query) == failed(code)


def test_a_server_whose_certificate_is_trusted_is_ready(
    check: CheckRunner, encrypted: PostgresServer, certificate: Certificate
) -> None:
    ca = str(certificate.certificate)
    is_encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
    assert check(encrypted.url, ca=ca, query=is_encrypted) == READY
    assert check(encrypted.url, ca=ca, sslmode="verify-full", query=is_encrypted) == READY
    assert check(encrypted.url, ca=ca, server_name="localhost") == READY
    assert check(encrypted.url, ca=ca, sslmode="verify-ca", server_name="other.example") == READY
    assert check(f"{encrypted.url}?sslmode=require", query=is_encrypted) == READY


def test_without_a_ca_the_authorities_of_this_machine_are_trusted(
    check: CheckRunner, encrypted: PostgresServer, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = ssl.get_default_verify_paths()
    ours = usual._replace(cafile=str(certificate.certificate))
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: ours)
    assert check(encrypted.url, sslmode="verify-full") == READY


def test_a_connection_that_is_reused_is_the_same_one_and_is_closed_at_the_end(
    check: CheckRunner, server: PostgresServer
) -> None:
    assert becomes_true(lambda: not clients(server))
    seen: list[list[str]] = []
    actions = [lambda: seen.append(clients(server))] * 3
    results = check.sequence(server.url, *actions, reuse=True, role="primary", query="SELECT true")
    assert results == [(READY, OPENING), *[(READY, ["reuse", "exchange"])] * 3]
    assert len(seen[0]) == 1
    assert seen == [seen[0]] * 3
    assert becomes_true(lambda: not clients(server))


@dataclass
class RecordingServer:
    """Requests the password in plain text over a connection without TLS."""

    received: bytes = b""

    def __call__(self, peer: Peer) -> None:
        while True:
            length = int.from_bytes(peer.read_exactly(4))
            self.received += (hello := peer.read_exactly(length - 4))
            if hello[:4] == b"\x00\x03\x00\x00":  # the startup message of protocol 3.0
                break
            peer.send(b"N")  # no TLS
        peer.send(message(b"R", struct.pack(">I", 3)))
        self.received += peer.read_to_end()


@pytest.mark.parametrize(
    "options", [{}, {"sslmode": "disable"}, {"sslmode": "allow"}], ids=["prefer", "disable", "allow"]
)
def test_a_server_that_requests_a_plain_text_password_does_not_get_it(
    check: CheckRunner, options: dict[str, str]
) -> None:
    server = RecordingServer()
    with Backend(server) as backend:
        verdict = check(f"postgresql://me:{PASSWORD}@{backend.address}/ledger", **options)
    assert verdict == failed(ReasonCode.TLS_REQUIRED)
    assert b"me" in server.received
    assert PASSWORD.encode() not in server.received


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">I", len(body) + 4) + body


AUTH_OK = message(b"R", bytes(4)) + message(b"Z", b"I")
EMPTY_RESULT = b"".join(
    message(*each) for each in ((b"1", b""), (b"2", b""), (b"T", bytes(2)), (b"C", b"SELECT 0\0"), (b"Z", b"I"))
)


def test_a_response_without_the_expected_row_is_failed(check: CheckRunner) -> None:
    def script(peer: Peer) -> None:
        peer.read_exactly(int.from_bytes(peer.read_exactly(4)) - 4)
        peer.send(AUTH_OK)
        peer.read_exactly(1)  # the query begins
        peer.send(EMPTY_RESULT)
        peer.read_to_end()

    with Backend(script) as backend:
        assert check(f"postgresql://me@{backend.address}/ledger", sslmode="disable") == UNEXPECTED_RESPONSE


# ---- faults of this machine


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("could not create socket: Too many open files", ReasonCode.RESOURCE_EXHAUSTED),
        ("Cannot assign requested address", ReasonCode.RESOURCE_EXHAUSTED),
        (
            'Connection refused\nconnection to server at "::1", port 1 failed: Cannot assign requested address',
            ReasonCode.RESOURCE_EXHAUSTED,
        ),
        ('could not read root certificate file "/ca.pem": \ufffd\x13', ReasonCode.FILE_NOT_READABLE),
    ],
)
def test_an_error_of_this_machine_is_unknown(text: str, code: ReasonCode) -> None:
    assert verdict_for(PostgresqlError(text)) == unknown(code)


def verdict_for(error: PostgresqlError) -> Verdict:
    verdict = PostgresqlProbe(Url.parse("postgresql://me@127.0.0.1/ledger")).verdict_for_driver_error(error)
    assert verdict.reason.isprintable()
    return verdict


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("the database system is shutting down", ReasonCode.SHUTTING_DOWN),
        (
            "remaining connection slots are reserved for roles with the SUPERUSER attribute",
            ReasonCode.TOO_MANY_CONNECTIONS,
        ),
        ('too many connections for role "me"', ReasonCode.TOO_MANY_CONNECTIONS),
        ('role "me" does not exist', ReasonCode.USER_NOT_FOUND),
        ('database "ledger" does not exist', ReasonCode.NOT_FOUND),
        ('Peer authentication failed for user "me"', ReasonCode.AUTH_FAILED),
        ('pg_hba.conf rejects connection for host "192.0.2.1"', ReasonCode.CLIENT_NOT_ALLOWED),
        ("SSL error: tlsv1 alert unknown ca", ReasonCode.TLS_FAILED),
        ("No route to host", ReasonCode.NETWORK_UNREACHABLE),
        ("Connection timed out", ReasonCode.CONNECT_TIMEOUT),
        ("an unknown text", ReasonCode.SERVER_ERROR),
    ],
)
def test_a_failed_connection_has_the_code_of_its_message(text: str, code: ReasonCode) -> None:
    assert verdict_for(PostgresqlError(text)) == failed(code)


@pytest.mark.parametrize(
    ("sqlstate", "code"),
    [
        ("28P01", ReasonCode.AUTH_FAILED),
        ("28000", ReasonCode.CLIENT_NOT_ALLOWED),
        ("3D000", ReasonCode.NOT_FOUND),
        ("42501", ReasonCode.PERMISSION_DENIED),
        ("53300", ReasonCode.TOO_MANY_CONNECTIONS),
        ("57014", ReasonCode.TIMEOUT),
        ("57P01", ReasonCode.SHUTTING_DOWN),
        ("XX001", ReasonCode.CORRUPT),
        ("XX000", ReasonCode.SERVER_ERROR),
        ("42804", ReasonCode.BAD_REQUEST),
    ],
)
def test_a_failed_query_has_the_code_of_its_sqlstate(sqlstate: str, code: ReasonCode) -> None:
    text = "the database system is starting up"  # the SQLSTATE decides
    assert verdict_for(PostgresqlError(text, sqlstate)) == failed(code)


@pytest.mark.parametrize(
    "text",
    ['could not open file "base/1": Too many open files', "could not fork new process: Cannot allocate memory"],
)
def test_a_server_without_resources_is_failed(check: CheckRunner, text: str) -> None:
    error = message(b"E", b"SFATAL\0C53000\0M" + text.encode() + b"\0\0")
    with Backend(sending(error)) as backend:
        verdict = check(f"postgresql://me@{backend.address}/ledger", sslmode="disable")
    assert verdict == failed(ReasonCode.SERVER_ERROR)
    assert text in verdict.reason


@pytest.mark.parametrize(
    ("url", "part"),
    [
        ("postgresql:///ledger", "host"),
        ("postgresql://db/ledger?hots=/run", '"hots"'),
        ("postgresql:///ledger?host=db.example", '"host"'),
    ],
)
def test_a_url_that_libpq_accepts_but_the_probe_does_not_is_rejected(url: str, part: str) -> None:
    with pytest.raises(ProbeError, match=part):
        make_probe(url)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"min_cert_days": 3}, "min_cert_days"),
        ({"sslmode": "verify-ca"}, "ca"),
        ({"ca": "ca.pem", "sslmode": "require"}, "ca"),
    ],
)
def test_tls_options_that_have_no_effect_are_rejected(options: dict[str, object], option: str) -> None:
    with pytest.raises(OptionError) as caught:
        make_probe({"url": "postgresql://me@127.0.0.1/ledger", **options})
    assert caught.value.option == option
