"""postgresql:// against a real PostgreSQL in many states and against scripted servers."""

from __future__ import annotations

import asyncio
import math
import re
import ssl
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from psycopg import pq

from svcnode.core.codes import ReasonCode
from svcnode.core.url import Url
from svcnode.probes import libpq, make_probe, postgresql
from svcnode.probes.libpq import PostgresqlError
from svcnode.probes.postgresql import PostgresqlProbe
from tests.support.backends import Backend, Peer, sending
from tests.support.http_server import WAIT_TIMEOUT_S, becomes_true
from tests.support.probe_assertions import TIMEOUTS_S, assert_reused
from tests.support.servers.base import module_server, wait_until
from tests.support.servers.postgresql import DATABASE, PASSWORD, USER, WRITE_TABLE, PostgresServer, PostgresStandby
from tests.support.verdicts import READY, UNEXPECTED_RESPONSE, ExpectedVerdict, failed, not_ready, unknown

if TYPE_CHECKING:
    from pathlib import Path

    from svcnode.core.model import Verdict
    from tests.support.certificates import Certificate
    from tests.support.check_runner import CheckRunner

AUTH_FAILED = failed(ReasonCode.AUTH_FAILED)
LAGGING = not_ready(ReasonCode.LAGGING)
READ_ONLY = not_ready(ReasonCode.READ_ONLY)
WRITE_TIMEOUT = failed(ReasonCode.WRITE_TIMEOUT)
WRONG_ROLE = not_ready(ReasonCode.WRONG_ROLE)

server = module_server(PostgresServer)
replica = module_server(PostgresStandby, of="server")
encrypted = module_server(PostgresServer, tls=True)


def clients(server: PostgresServer) -> list[str]:
    return server.psql(f"SELECT pid FROM pg_stat_activity WHERE usename = '{USER}'").splitlines()


def test_a_server_that_answers_is_ready_and_its_connection_can_be_reused(
    check: CheckRunner, server: PostgresServer
) -> None:
    assert check(server.url.replace("postgresql:", "postgres:")) == READY
    assert check(f"postgresql://127.0.0.1:{server.port}/{DATABASE}", username=USER, password=PASSWORD) == READY
    assert_reused(check, server.url, server.port, role="primary", query="SELECT true")


def test_a_unix_socket_is_named_in_the_query(check: CheckRunner, server: PostgresServer) -> None:
    url = f"postgresql://{USER}:{PASSWORD}@:{server.port}/{DATABASE}?host={server.folder}"
    assert check(url) == READY
    assert check(url.replace(str(server.port), "1")) == failed(ReasonCode.FILE_NOT_FOUND)


def test_a_refused_login_is_failed(
    check: CheckRunner, server: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    verdict = check(server.bad_credentials_url)
    assert verdict == AUTH_FAILED
    assert verdict.reason.endswith(server.url.replace(PASSWORD, "***"))
    assert check(server.url.replace(f"/{DATABASE}", "/gone")) == failed(ReasonCode.NOT_FOUND)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    url = f"postgresql://{USER}@127.0.0.1:{server.port}/{DATABASE}"
    assert check(url) == failed(ReasonCode.AUTH_REQUIRED)


# ---- replicas


def test_the_role_is_compared_with_the_expected_one(
    check: CheckRunner, server: PostgresServer, replica: PostgresStandby
) -> None:
    assert check(server.url, role="primary", max_lag="0s") == READY  # max_lag is for replicas only
    assert check(server.url, role="replica") == WRONG_ROLE
    assert check(replica.url) == check(replica.url, role="replica") == READY
    assert check(replica.url, role="primary") == WRONG_ROLE
    assert check(replica.url, write=True) == READ_ONLY
    assert check(replica.url, write=True, role="primary") == WRONG_ROLE


def test_a_disconnected_replica_is_not_ready_when_it_is_too_far_behind_or_its_clock_is(
    check: CheckRunner, server: PostgresServer, replica: PostgresStandby, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_clock = postgresql._REPLAY_QUERY.replace("clock_timestamp()", "(clock_timestamp() - interval '1 hour')")
    write(server, replica)
    with monkeypatch.context() as patch:
        patch.setattr(postgresql, "_REPLAY_QUERY", slow_clock)
        assert check(replica.url, max_lag="1s") == READY  # without lag the clocks do not matter
    server.kill()
    try:
        wait_until(lambda: not replica.is_following(), "disconnected")
        assert check(replica.url, max_lag="1h") == check(replica.url, role="replica") == READY
        assert becomes_true(lambda: check(replica.url, max_lag="200ms") == LAGGING)
        assert check(replica.url, max_lag="1h", primary=server.url) == not_ready(ReasonCode.UPSTREAM_OFFLINE)
        monkeypatch.setattr(postgresql, "_REPLAY_QUERY", slow_clock)
        assert check(replica.url, max_lag="1s") == not_ready(ReasonCode.CLOCK_SKEW)
    finally:
        server.start()
        server.wait_until_ready()
        wait_until(replica.is_following, "following again")


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


def test_a_replica_is_compared_with_its_primary(
    check: CheckRunner, server: PostgresServer, replica: PostgresStandby, encrypted: PostgresServer
) -> None:
    write(server, replica)
    without_login = f"postgresql://127.0.0.1:{server.port}/{DATABASE}"
    assert check(replica.url, role="replica", max_lag="200ms", primary=without_login) == READY
    assert check(server.url, max_lag="200ms", primary=replica.url) == READY  # a primary has no lag
    with replica.receiver_frozen():
        server.psql("INSERT INTO written VALUES (2)")
        assert check(replica.url, max_lag="200ms") == READY  # it has replayed all that it received
        assert becomes_true(lambda: check(replica.url, max_lag="200ms", primary=server.url) == LAGGING)
        assert check(replica.url, max_lag="1h", primary=server.url) == READY
    other = f"{encrypted.url}?sslmode=require"
    assert check(replica.url, max_lag="1h", primary=other) == not_ready(ReasonCode.REPLICATION_STOPPED)
    assert check(replica.url, max_lag="1h", primary=replica.url) == not_ready(ReasonCode.UPSTREAM_OFFLINE)
    rejected = check(replica.url, max_lag="1h", primary=server.bad_credentials_url)
    assert rejected == not_ready(ReasonCode.AUTH_FAILED)
    assert "not-the-password" not in rejected.reason
    assert "offline" not in rejected.reason


def write(server: PostgresServer, replica: PostgresStandby) -> None:
    """Write a row and wait until the replica has replayed it."""
    server.psql("CREATE TABLE IF NOT EXISTS written (x INT); INSERT INTO written VALUES (1)")
    written = server.psql("SELECT pg_current_wal_lsn()")
    wait_until(lambda: replica.psql(f"SELECT pg_last_wal_replay_lsn() >= '{written}'") == "t", "replayed")


# ---- can it take writes?


def test_a_primary_that_is_read_only_is_not_ready(check: CheckRunner, server: PostgresServer) -> None:
    with server.read_only():
        for options in ({}, {"role": "primary"}, {"query": "SELECT true"}, {"write": True}):
            assert check(server.url, **options) == READ_ONLY
    assert check(server.url) == READY


@pytest.mark.parametrize(
    ("owner", "is_own"), [(f"DATABASE {DATABASE}", False), (f"ROLE {USER} IN DATABASE {DATABASE}", True)]
)
def test_read_only_transactions_of_the_user_of_the_probe_only_say_nothing_about_the_server(
    check: CheckRunner, server: PostgresServer, owner: str, is_own: bool
) -> None:
    server.psql(f"ALTER {owner} SET default_transaction_read_only = on")
    try:
        assert check(server.url) == (READY if is_own else READ_ONLY)
        assert check(server.url, write=True) == READ_ONLY
    finally:
        server.psql(f"BEGIN READ WRITE; ALTER {owner} RESET default_transaction_read_only; COMMIT")


def test_a_primary_without_its_synchronous_standbys_is_not_ready(
    check: CheckRunner, server: PostgresServer, replica: PostgresStandby, encrypted: PostgresServer
) -> None:
    """A standby that is not synchronous does not count, nor one of which the user may not see whether it is."""
    with server.synchronous("gone"):
        assert check(server.url) == not_ready(ReasonCode.PERMISSION_DENIED)
        with server.granted("pg_read_all_stats"):
            assert check(server.url) == not_ready(ReasonCode.TOO_FEW_REPLICAS)
        assert check.times_out(server.url, "write", write=True) == WRITE_TIMEOUT
        assert becomes_true(lambda: not clients(server))
    url = f"{encrypted.url}?sslmode=require"
    with encrypted.synchronous("ANY 1 (gone, lost)"):
        assert check(url) == check(url, write=True) == not_ready(ReasonCode.TOO_FEW_REPLICAS)
        assert check(f"{url}&options=-c%20synchronous_commit%3Dlocal", write=True) == READY


def test_a_synchronous_standby_that_the_user_may_not_see_is_proved_by_a_write(
    check: CheckRunner, server: PostgresServer, replica: PostgresStandby
) -> None:
    with server.synchronous("*"):
        wait_until(lambda: server.psql("SELECT sync_state FROM pg_stat_replication") == "sync", "synchronous")
        assert check(server.url) == not_ready(ReasonCode.PERMISSION_DENIED)
        assert check(server.url, write=True) == READY
        with server.granted("pg_read_all_stats"):
            assert check(server.url) == READY


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


@pytest.mark.parametrize("level", ["NOTICE", "WARNING"])
def test_what_a_trigger_raises_is_no_error_of_the_write(check: CheckRunner, server: PostgresServer, level: str) -> None:
    body = f"BEGIN RAISE {level} 'the row was written'; RETURN NULL; END"
    server.psql(
        f"CREATE FUNCTION raise() RETURNS trigger LANGUAGE plpgsql AS $${body}$$;"
        f"CREATE TRIGGER raise AFTER INSERT OR UPDATE ON {WRITE_TABLE} EXECUTE FUNCTION raise()",
        database=DATABASE,
    )
    try:
        assert check(server.url, write=True) == READY
    finally:
        server.psql("DROP FUNCTION raise CASCADE", database=DATABASE)


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
    assert check(server.url, write=True, role="primary", query="SELECT true", reuse=True) == READY
    assert check.steps(server.url, write=True)[-2:] == [("write", "", True), ("exchange", "", True)]
    rows = "SELECT count(*) BETWEEN 1 AND 2, max(id) < 64, now() - max(written_at) < '10 min' FROM "
    assert server.psql(f"{rows}{WRITE_TABLE}", database=DATABASE) == "t|t|t"


def test_the_reason_has_the_statements_that_a_write_needs(check: CheckRunner, server: PostgresServer) -> None:
    missing = check(server.url, write="absent")
    assert missing == failed(ReasonCode.NOT_FOUND)
    create, grant = re.findall(r"((?:CREATE|GRANT) [^;]*?)(?=;|: postgresql)", missing.reason)
    server.psql(create, database=DATABASE)
    denied = check(server.url, write="absent")
    assert denied == failed(ReasonCode.PERMISSION_DENIED)
    assert grant in denied.reason
    assert "CREATE" not in denied.reason
    server.psql(grant, database=DATABASE)
    assert check(server.url, write="absent") == READY


def test_a_write_that_a_trigger_refuses_is_failed_and_rolled_back(check: CheckRunner, server: PostgresServer) -> None:
    refuse = "BEGIN RAISE EXCEPTION 'refused by a trigger' USING ERRCODE = '23514'; END"
    server.psql(
        f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ {refuse} $$; "
        f"CREATE TRIGGER refusing BEFORE INSERT ON {WRITE_TABLE} EXECUTE FUNCTION refuse()",
        database=DATABASE,
    )
    drop = f"DROP TRIGGER refusing ON {WRITE_TABLE}"
    results = check.sequence(
        server.url, lambda: None, lambda: server.psql(drop, database=DATABASE), write=True, reuse=True
    )
    refused = failed(ReasonCode.WRITE_FAILED)
    assert [verdict for verdict, _ in results] == [refused, refused, READY]


@pytest.mark.parametrize(
    ("sqlstate", "expected"),
    [
        ("25006", READ_ONLY),
        ("53100", not_ready(ReasonCode.STORAGE_FULL)),
        ("53200", not_ready(ReasonCode.OUT_OF_MEMORY)),
        ("57014", WRITE_TIMEOUT),
        ("55P03", failed(ReasonCode.LOCKED)),
        ("58030", failed(ReasonCode.WRITE_FAILED)),
        ("XX001", failed(ReasonCode.CORRUPT)),
    ],
)
def test_a_refused_write_has_the_code_of_its_sqlstate(sqlstate: str, expected: ExpectedVerdict) -> None:
    probe = PostgresqlProbe(Url.parse("postgresql://me@127.0.0.1/ledger"), write="t")
    assert probe._write_error_verdict(PostgresqlError("refused", sqlstate), mock.Mock(user=b"me")) == expected


@pytest.mark.parametrize("libpq_version", [170000, 160000])
def test_a_write_that_waits_for_a_lock_times_out_and_leaves_nothing(
    check: CheckRunner, server: PostgresServer, monkeypatch: pytest.MonkeyPatch, libpq_version: int
) -> None:
    if libpq_version < pq.version():
        monkeypatch.setattr(pq, "version", lambda: libpq_version)
    with server.write_lock():
        assert check.times_out(server.url, "write", write=True) == WRITE_TIMEOUT
        assert becomes_true(lambda: not clients(server))
    assert check(server.url, write=True) == READY


def test_while_a_write_cannot_be_interrupted_no_second_one_is_started(
    check: CheckRunner, server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that does not respond."""
    monkeypatch.setattr(libpq, "_send_cancel_request", mock.AsyncMock())
    monkeypatch.setattr(postgresql, "_WRITE", postgresql._WRITE.replace("{timeout_ms}", "0"))
    hung: list[int] = []
    actions = [lambda: hung.append(len(clients(server)))] * 2
    with server.write_lock():
        for timeout_s in TIMEOUTS_S:
            results = check.sequence(server.url, *actions, timeouts_s=(timeout_s, *[WAIT_TIMEOUT_S] * 2), write=True)
            if "write" in results[0][1]:
                break
        assert [verdict for verdict, _ in results] == [WRITE_TIMEOUT] * 3
        assert hung[-2:] == [1, 1]
    assert becomes_true(lambda: not clients(server))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT count(*) >= 0, 'more' FROM pg_class;", READY),
        ("SELECT current_setting('transaction_read_only')::boolean", READY),
        ("SELECT false", UNEXPECTED_RESPONSE),
        ("SELECT NULL::boolean", UNEXPECTED_RESPONSE),
        ("SELECT 't'", UNEXPECTED_RESPONSE),
        ("VALUES (false), (true)", UNEXPECTED_RESPONSE),
        ("SELECT true WHERE false", UNEXPECTED_RESPONSE),
        ("SELECT", UNEXPECTED_RESPONSE),
        (";", UNEXPECTED_RESPONSE),
        ("COPY (SELECT true) TO STDOUT", UNEXPECTED_RESPONSE),
        ("SELEC true", failed(ReasonCode.BAD_REQUEST)),
        ("SELECT true FROM gone", failed(ReasonCode.NOT_FOUND)),
        ("SELECT true FROM pg_authid", failed(ReasonCode.PERMISSION_DENIED)),
        ("CREATE TABLE written_by_us (x INT)", failed(ReasonCode.BAD_REQUEST)),
        ("SELECT true; SELECT true", failed(ReasonCode.BAD_REQUEST)),
    ],
)
def test_a_query_must_return_true(
    check: CheckRunner, server: PostgresServer, query: str, expected: ExpectedVerdict
) -> None:
    assert check(server.url, query=query) == expected


CONDITIONS_QUERY = """\
SELECT now() - interval '30 s' AS newest, now()::timestamp AS without_zone, current_date AS day, 812::bigint AS height,
       0.1::numeric AS share, 1e20::numeric AS wei, 'NaN'::float8 AS broken, true AS synced, NULL::int AS nothing,
       '\\x6f6b'::bytea AS raw, '{a,b}'::text[] AS modes, 'infinity'::date IS NULL AS never, interval '90 s' AS took,
       1 AS "Total rows", 2 AS twice, 3 AS twice, '10.0.0.1'::inet AS host, '10:00'::time AS begins,
       '0b2f0cc4-6f3f-4e1c-9a0a-7a7a7a7a7a7a'::uuid AS job, ARRAY['2026-11-17'::date] AS days,
       '{"n": [1]}'::jsonb AS doc, 'infinity'::numeric AS endless, 10::numeric ^ 200 AS huge, 1 AS "a/b c''d",
       repeat('x', 200000) AS long"""


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (["height == 812", "HEIGHT < 1000", "share == 0.1", "wei > 99999999999999999999", "synced == true"], READY),
        (["age of value <= 10m", "age of newest > 20s", "age of without_zone <= 5m", "age of day <= 25h"], READY),
        (["nothing == null", 'raw == "ok"', 'modes contains "b"', "took == 90", '"total ROWS" == 1'], READY),
        (['job matches "^0b2f"', 'host == "10.0.0.1"', 'begins == "10:00:00"', 'days contains "2026-11-17"'], READY),
        (["endless > 1e99", "\"a/b c''d\" == 1", 'long contains "xx"'], READY),
        (["age of newest <= 10s"], failed(ReasonCode.LAGGING)),
        (["age of endless <= 10s"], failed(ReasonCode.CLOCK_SKEW)),
        (["huge > 1"], UNEXPECTED_RESPONSE),
        (["doc contains 1"], UNEXPECTED_RESPONSE),
        (['long == "x"'], UNEXPECTED_RESPONSE),
        (["height advances within 1m"], not_ready(ReasonCode.STARTING)),
        (["height > 812"], UNEXPECTED_RESPONSE),
        (["broken != 0"], UNEXPECTED_RESPONSE),
        (["nothing != 0"], UNEXPECTED_RESPONSE),
        (["waiting != 0"], UNEXPECTED_RESPONSE),
        (["twice > 1"], UNEXPECTED_RESPONSE),
    ],
)
def test_conditions_judge_the_first_row(
    check: CheckRunner, server: PostgresServer, conditions: list[str], expected: ExpectedVerdict
) -> None:
    """In whatever form and zone the session shows times."""
    options = "?options=-c%20datestyle%3DGerman%20-c%20timezone%3DAsia/Tokyo"
    assert check(f"{server.url}{options}", query=CONDITIONS_QUERY, require=conditions) == expected


def test_a_row_that_is_too_large_is_not_read(check: CheckRunner, server: PostgresServer) -> None:
    for query in ("SELECT true, repeat('x', 1000000)", "SELECT true, array_agg(x) FROM generate_series(1, 100000) x"):
        assert check(server.url, query=query) == UNEXPECTED_RESPONSE


def test_without_a_row_every_value_is_missing(check: CheckRunner, server: PostgresServer) -> None:
    query = "SELECT 1 AS waiting WHERE false"
    assert check(server.url, query=query, require=["waiting < 5"]) == UNEXPECTED_RESPONSE
    assert check(server.url, query=query, require=["waiting advances within 1m"]) == not_ready(ReasonCode.STARTING)


def test_a_server_is_starting_by_its_rows_and_otherwise_the_first_value_must_be_true(
    check: CheckRunner, server: PostgresServer
) -> None:
    query = "SELECT true, 5 AS remaining"
    assert check(server.url, query=query, starting=["remaining > 5"]) == READY
    assert check(server.url, query=query, starting=["remaining > 4"]) == not_ready(ReasonCode.STARTING)
    assert check(server.url, query="SELECT false, 5 AS remaining", starting=["remaining > 5"]) == UNEXPECTED_RESPONSE
    assert check(server.url, query=query, starting=["rest > 5"]) == UNEXPECTED_RESPONSE
    assert check(server.url, query="SELECT 'infinity'::date AS day", require=["day == 1"]) == UNEXPECTED_RESPONSE
    assert check(server.url, query="CREATE TABLE written (x int)", require=["x == 1"]) == failed(ReasonCode.BAD_REQUEST)


def test_a_server_whose_certificate_is_trusted_is_ready(
    check: CheckRunner, encrypted: PostgresServer, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = str(certificate.certificate)
    is_encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
    assert check(encrypted.url, ca=ca, query=is_encrypted) == READY
    assert check(encrypted.url, ca=ca, sslmode="verify-full", query=is_encrypted) == READY
    assert check(encrypted.url, ca=ca, server_name="localhost") == READY
    assert check(encrypted.url, ca=ca, sslmode="verify-ca", server_name="other.example") == READY
    assert check(f"{encrypted.url}?sslmode=require", query=is_encrypted) == READY
    ours = ssl.get_default_verify_paths()._replace(cafile=str(certificate.certificate))
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: ours)
    assert check(encrypted.url, sslmode="verify-full") == READY  # by the authorities of this machine


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


@pytest.mark.parametrize("options", [{}, {"sslmode": "disable"}], ids=["prefer", "disable"])
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
