"""postgresql:// against a real PostgreSQL: as it should be, hurt in every way it can be, and what only pretends."""

from __future__ import annotations

import re
import ssl
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Outcome, Verdict
from svcnode.net.url import Url
from svcnode.probes import make_probe, postgresql
from svcnode.probes.postgresql import PostgresqlError, PostgresqlProbe
from tests.support.backends import Backend, Peer, close, closed_port, full_backlog, reset, sending, unresponsive
from tests.support.certificates import Certificate, make_certificate
from tests.support.http_server import becomes_true
from tests.support.probe_assertions import (
    assert_missing_ca_is_unknown,
    assert_no_leaks_when_cancelled,
    assert_reconnects_after_timeout,
)
from tests.support.servers.base import wait_until
from tests.support.servers.postgresql import DATABASE, PASSWORD, USER, PostgresServer, PostgresStandby
from tests.support.verdicts import NO_DESCRIPTORS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.integration.probes.conftest import CheckRunner, FakeResolver

READY = Verdict.ready()
OPENING = ["connect", "log in", "exchange"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with PostgresServer(tmp_path_factory.mktemp("postgresql")) as server:
        yield server


@pytest.fixture(scope="module")
def replica(server: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresStandby]:
    with server.replica(tmp_path_factory.mktemp("postgresql-replica")) as replica:
        yield replica


@pytest.fixture(scope="module")
def starting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with PostgresServer(tmp_path_factory.mktemp("postgresql-starting")) as server:
        server.start_stalled_recovery()
        yield server


@pytest.fixture(scope="module")
def recovering(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    with PostgresServer(tmp_path_factory.mktemp("postgresql-recovering")) as server:
        server.start_stalled_recovery(is_replaying=True)
        yield server


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, certificate: Certificate) -> Iterator[PostgresServer]:
    with PostgresServer(tmp_path_factory.mktemp("postgresql-tls"), certificate=certificate) as server:
        yield server


def shown(server: PostgresServer) -> str:
    return server.url.replace(PASSWORD, "***")


def clients(server: PostgresServer) -> list[str]:
    return server.psql(f"SELECT pid FROM pg_stat_activity WHERE usename = '{USER}'").splitlines()


# ---- ready


def test_a_server_that_answers_is_ready(check: CheckRunner, server: PostgresServer) -> None:
    assert check(server.url) == READY
    assert check(server.url.replace("postgresql:", "postgres:")) == READY
    assert check(f"postgresql://127.0.0.1:{server.port}/{DATABASE}", username=USER, password=PASSWORD) == READY


def test_a_check_has_its_steps(check: CheckRunner, server: PostgresServer) -> None:
    assert check.steps(server.url) == [("connect", "127.0.0.1", True), ("log in", "", True), ("exchange", "", True)]


@pytest.mark.parametrize("addresses", [["::1", "127.0.0.1"], ["127.0.0.1", "::1"]], ids=str)
def test_a_name_is_resolved_by_us_and_one_of_its_addresses_is_enough(
    check: CheckRunner, server: PostgresServer, resolver: FakeResolver, addresses: list[str]
) -> None:
    resolver.addresses["db.example"] = addresses
    assert check.steps(server.url.replace("127.0.0.1", "db.example")) == [
        ("resolve", "db.example", True),
        ("connect", ",".join(addresses), True),
        ("log in", "", True),
        ("exchange", "", True),
    ]
    assert resolver.queries == ["db.example"]


def test_a_name_that_does_not_exist_is_failed(check: CheckRunner, resolver: FakeResolver) -> None:
    assert check("postgresql://me@gone.example/ledger") == Verdict.failed(
        "no such host: postgresql://me@gone.example/ledger"
    )
    assert resolver.queries == ["gone.example"]


def test_a_unix_socket_is_named_in_the_query(check: CheckRunner, server: PostgresServer) -> None:
    url = f"postgresql://{USER}:{PASSWORD}@:{server.port}/{DATABASE}?host={server.folder}"
    assert check(url) == READY
    assert check(url.replace(str(server.port), "1")) == Verdict.failed(
        f'connection to server on socket "{server.folder}/.s.PGSQL.1" failed: no such file or directory: '
        f"postgresql:/{DATABASE}"
    )


def test_the_client_name_is_sent_to_the_server(check: CheckRunner, server: PostgresServer) -> None:
    query = "SELECT application_name = 'svcnode' FROM pg_stat_activity WHERE pid = pg_backend_pid()"
    assert check(server.url, query=query) == READY
    assert check(f"{server.url}?application_name=watch&options=-c%20lock_timeout%3D5s", query=query) == Verdict.failed(
        f"its query did not return true: {shown(server)}?***"
    )


def test_passwords_are_sent_as_utf_8(check: CheckRunner, server: PostgresServer) -> None:
    server.psql("DROP ROLE IF EXISTS umlaut")
    server.psql("CREATE ROLE umlaut LOGIN PASSWORD 'pä€ß word'")
    assert check(f"postgresql://umlaut@127.0.0.1:{server.port}/postgres", password="pä€ß word") == READY


def test_checks_that_are_answered_leave_no_trace_on_the_server(
    check: CheckRunner, server: PostgresServer, encrypted: PostgresServer, certificate: Certificate
) -> None:
    for target, tls in ((server, {}), (encrypted, {"ca": str(certificate.certificate)})):
        assert becomes_true(lambda target=target: not clients(target))  # type: ignore[misc]
        before = target.log_file.read_text()
        for options in ({}, {"query": "SELECT true"}, {"role": "primary"}, {"role": "replica"}):
            check(target.url, **tls, **options)
        assert becomes_true(lambda target=target: not clients(target))  # type: ignore[misc]
        assert target.log_file.read_text() == before


def test_nothing_is_left_open_after_a_check(check: CheckRunner, server: PostgresServer) -> None:
    for url in (server.url, server.bad_credentials_url):
        check.leaks_nothing(url)
    check.leaks_nothing(server.url, query="SELECT")


# ---- refusals


def test_a_wrong_password_is_failed_and_not_shown(check: CheckRunner, server: PostgresServer) -> None:
    assert check(server.bad_credentials_url) == Verdict.failed(
        f'password authentication failed for user "svcnode": {shown(server)}'
    )


def test_no_password_is_failed_where_one_is_needed(
    check: CheckRunner, server: PostgresServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    url = f"postgresql://{USER}@127.0.0.1:{server.port}/{DATABASE}"
    assert check(url) == Verdict.failed(f"fe_sendauth: no password supplied: {url}")


def test_an_unknown_user_is_failed(check: CheckRunner, server: PostgresServer) -> None:
    place = f"127.0.0.1:{server.port}/{DATABASE}"
    assert check(f"postgresql://nobody:{PASSWORD}@{place}") == Verdict.failed(
        f'password authentication failed for user "nobody": postgresql://nobody:***@{place}'
    )


def test_an_unknown_database_is_failed(check: CheckRunner, server: PostgresServer) -> None:
    assert check(server.url.replace(f"/{DATABASE}", "/gone")) == Verdict.failed(
        f'database "gone" does not exist: {shown(server).replace(f"/{DATABASE}", "/gone")}'
    )


def test_a_server_without_connections_left_is_failed(check: CheckRunner, server: PostgresServer) -> None:
    with server.exhaust():
        assert check(server.url) == Verdict.failed(f"sorry, too many clients already: {shown(server)}")


def test_a_server_that_is_starting_up_is_not_ready(check: CheckRunner, starting: PostgresServer) -> None:
    assert check(starting.url) == Verdict.not_ready(f"the database system is starting up: {shown(starting)}")


def test_a_server_that_recovers_is_not_ready(check: CheckRunner, recovering: PostgresServer) -> None:
    verdict = check(recovering.url)
    assert verdict.outcome is Outcome.NOT_READY
    assert verdict.reason.startswith("the database system is not yet accepting connections")
    assert verdict.reason.endswith(f": {shown(recovering)}")


def test_a_server_that_does_not_run_is_failed(check: CheckRunner) -> None:
    with closed_port() as port:
        assert check(f"postgresql://me:{PASSWORD}@127.0.0.1:{port}/ledger") == Verdict.failed(
            f"connection refused: postgresql://me:***@127.0.0.1:{port}/ledger"
        )


def test_every_address_that_refused_is_told_of(check: CheckRunner, resolver: FakeResolver) -> None:
    resolver.addresses["db.example"] = ["127.0.0.1", "127.0.0.2"]
    with closed_port() as port:
        assert check(f"postgresql://me@db.example:{port}/ledger") == Verdict.failed(
            f'connection refused; connection to server at "127.0.0.2", port {port} failed: '
            f"connection refused: postgresql://me@db.example:{port}/ledger"
        )


def test_a_server_that_hangs_is_failed_at_the_deadline_and_nothing_is_left(
    check: CheckRunner, server: PostgresServer
) -> None:
    server.freeze()
    try:
        assert check.times_out(server.url) == Verdict.failed("no answer within 0.2 s, in its step log in")
    finally:
        server.thaw()


def test_a_query_that_never_ends_times_out_and_nothing_is_left(check: CheckRunner, server: PostgresServer) -> None:
    options = "?options=-c%20client_connection_check_interval%3D50"  # or it would find out when it has slept
    assert check.times_out(f"{server.url}{options}", query="SELECT pg_sleep(30) IS NOT NULL") == Verdict.failed(
        "no answer within 0.2 s, in its step exchange"
    )
    assert becomes_true(lambda: not clients(server))


# ---- roles


def test_the_role_that_it_should_have_is_ready(
    check: CheckRunner, server: PostgresServer, replica: PostgresStandby
) -> None:
    assert check(server.url, role="primary", max_lag="0s") == READY  # of a server that is no replica nothing is asked
    assert check(replica.url, role="replica") == READY
    assert check(replica.url) == READY


def test_another_role_than_it_should_have_is_not_ready(
    check: CheckRunner, server: PostgresServer, replica: PostgresStandby
) -> None:
    assert check(server.url, role="replica") == Verdict.not_ready(
        f"not in recovery, so it is no replica: {shown(server)}"
    )
    assert check(replica.url, role="primary") == Verdict.not_ready(
        f"in recovery, so it is not the primary: {shown(replica)}"
    )


def test_a_replica_that_is_in_step_is_ready_however_long_nothing_was_written(
    check: CheckRunner, server: PostgresServer, replica: PostgresStandby
) -> None:
    write(server, replica)
    time.sleep(0.3)
    assert server.psql(f"SELECT pg_has_role('{USER}', 'pg_monitor', 'member')") == "f"
    assert check(replica.url, role="replica", max_lag="200ms") == READY


def test_a_replica_that_does_not_replay_is_not_ready_when_it_is_too_far_behind(
    check: CheckRunner, server: PostgresServer, replica: PostgresStandby
) -> None:
    write(server, replica)
    replica.psql("SELECT pg_wal_replay_pause()")
    try:
        wait_until(lambda: replica.psql("SELECT pg_get_wal_replay_pause_state()") == "paused", "paused")
        server.psql("INSERT INTO written VALUES (2)")
        wait_until(lambda: replica.psql(RECEIVED_MORE) == "t", "it has received more than it has replayed")
        assert check(replica.url, max_lag="1h") == READY
        assert is_behind(check, replica)
    finally:
        replica.psql("SELECT pg_wal_replay_resume()")
    wait_until(lambda: check(replica.url, max_lag="200ms") == READY, "in step again", 10)


def test_a_replica_disconnected_from_its_primary_is_not_ready_when_it_is_too_far_behind(
    check: CheckRunner, server: PostgresServer, replica: PostgresStandby
) -> None:
    write(server, replica)
    server.kill()
    try:
        assert check(replica.url, max_lag="1h") == READY
        assert check(replica.url, role="replica") == READY
        assert is_behind(check, replica)
    finally:
        server.start()
        server.wait_until_ready()
        wait_until(replica.is_following, "following again")
    wait_until(lambda: check(replica.url, max_lag="200ms") == READY, "in step again", 10)


def test_a_replica_whose_clock_is_behind_is_not_ready_where_its_lag_is_told_by_it(
    check: CheckRunner, server: PostgresServer, replica: PostgresStandby, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_clock = postgresql._REPLICATION_QUERY.replace("clock_timestamp()", "(clock_timestamp() - interval '1 hour')")
    monkeypatch.setattr(postgresql, "_REPLICATION_QUERY", slow_clock)
    write(server, replica)
    assert check(replica.url, max_lag="1s") == READY  # it is in step, whatever the clocks say
    server.kill()
    try:
        wait_until(lambda: not replica.is_following(), "it has noticed")
        verdict = check(replica.url, max_lag="1s")
    finally:
        server.start()
        server.wait_until_ready()
        wait_until(replica.is_following, "following again")
    form = (
        r"what it replayed last is dated 3[56]\d\d s in its future, so the clocks disagree and its lag is not known: "
    )
    assert verdict.outcome is Outcome.NOT_READY
    assert re.fullmatch(form + re.escape(shown(replica)), verdict.reason)


RECEIVED_MORE = "SELECT pg_last_wal_receive_lsn() > pg_last_wal_replay_lsn()"


def write(server: PostgresServer, replica: PostgresStandby) -> None:
    """Something, and wait until the replica has it: then it knows when it was last in step."""
    server.psql("CREATE TABLE IF NOT EXISTS written (x INT); INSERT INTO written VALUES (1)")
    written = server.psql("SELECT pg_current_wal_lsn()")
    wait_until(lambda: replica.psql(f"SELECT pg_last_wal_replay_lsn() >= '{written}'") == "t", "in step")


def is_behind(check: CheckRunner, replica: PostgresStandby) -> bool:
    """By more than 0.2 s, sooner or later, and says so."""

    def is_told() -> bool:
        verdict = check(replica.url, max_lag="200ms")
        form = r"a replica \d+\.\d s behind, max_lag is 0\.2 s: " + re.escape(shown(replica))
        return verdict.outcome is Outcome.NOT_READY and re.fullmatch(form, verdict.reason) is not None

    return becomes_true(is_told)


# ---- query


def test_a_query_that_returns_true_is_ready(check: CheckRunner, server: PostgresServer) -> None:
    assert check(server.url, query="SELECT true") == READY
    assert check(server.url, query="SELECT count(*) >= 0, 'more' FROM pg_class;") == READY
    assert check(server.url, query="SELECT current_setting('transaction_read_only')::boolean") == READY


@pytest.mark.parametrize(
    "query", ["SELECT false", "SELECT NULL::boolean", "SELECT 1", "SELECT 't'", "VALUES (false), (true)"]
)
def test_a_query_that_returns_anything_else_is_failed(check: CheckRunner, server: PostgresServer, query: str) -> None:
    assert check(server.url, query=query) == Verdict.failed(f"its query did not return true: {shown(server)}")


@pytest.mark.parametrize(
    "query", ["SELECT true WHERE false", "SELECT", ";", "-- nothing", "COMMIT", "COPY (SELECT true) TO STDOUT"]
)
def test_a_query_that_returns_nothing_is_failed(check: CheckRunner, server: PostgresServer, query: str) -> None:
    assert check(server.url, query=query) == Verdict.failed(f"its query returned nothing: {shown(server)}")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELEC true", 'syntax error at or near "SELEC"; LINE 1: SELEC true'),
        ("SELECT 1/0", "division by zero"),
        ("SELECT true FROM gone", 'relation "gone" does not exist; LINE 1: SELECT true FROM gone'),
        ("CREATE TABLE written_by_us (x INT)", "cannot execute CREATE TABLE in a read-only transaction"),
        ("SELECT true; COMMIT", "cannot insert multiple commands into a prepared statement"),
        (
            "SELECT set_config('transaction_read_only', 'off', false) = 'off'",
            "transaction read-write mode must be set before any query",
        ),
    ],
    ids=["syntax", "division", "no table", "write", "two", "read-write"],
)
def test_a_query_that_cannot_be_run_is_failed(
    check: CheckRunner, server: PostgresServer, query: str, words: str
) -> None:
    assert check(server.url, query=query) == Verdict.failed(f"{words}: {shown(server)}")


def test_a_query_cannot_write(check: CheckRunner, server: PostgresServer) -> None:
    server.psql(f"CREATE TABLE IF NOT EXISTS notes (x INT); ALTER TABLE notes OWNER TO {USER}", database=DATABASE)
    query = "WITH added AS (INSERT INTO notes VALUES (1) RETURNING true AS is_in) SELECT is_in FROM added"
    assert check(server.url, query=query) == Verdict.failed(
        f"cannot execute SELECT in a read-only transaction: {shown(server)}"
    )
    assert server.psql("SELECT count(*) FROM notes", database=DATABASE) == "0"


# ---- TLS


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


def test_a_server_is_found_by_its_name_and_its_certificate_is_for_that(
    check: CheckRunner, encrypted: PostgresServer, certificate: Certificate, resolver: FakeResolver
) -> None:
    resolver.addresses["localhost"] = ["::1", "127.0.0.1"]
    assert check(encrypted.url.replace("127.0.0.1", "localhost"), ca=str(certificate.certificate)) == READY
    assert resolver.queries == ["localhost"]


def test_a_certificate_that_cannot_be_trusted_is_failed(
    check: CheckRunner, encrypted: PostgresServer, certificate: Certificate, tmp_path: Path
) -> None:
    other = make_certificate(tmp_path, "other")
    unknown = Verdict.failed(f"SSL error: certificate verify failed: {shown(encrypted)}")
    assert check(encrypted.url, sslmode="verify-full") == unknown
    assert check(encrypted.url, ca=str(other.certificate)) == unknown
    assert check(encrypted.url, ca=str(certificate.certificate), server_name="other.example") == Verdict.failed(
        'server certificate for "localhost" (and 1 other name) does not match host name "other.example": '
        f"{shown(encrypted)}"
    )


def test_without_a_ca_those_are_trusted_whom_this_machine_trusts(
    check: CheckRunner, encrypted: PostgresServer, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = ssl.get_default_verify_paths()
    ours = usual._replace(cafile=str(certificate.certificate))
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: ours)
    assert check(encrypted.url, sslmode="verify-full") == READY


def test_a_wrong_password_is_failed_under_tls_too(
    check: CheckRunner, encrypted: PostgresServer, certificate: Certificate
) -> None:
    assert check(encrypted.bad_credentials_url, ca=str(certificate.certificate)) == Verdict.failed(
        f'password authentication failed for user "svcnode": {shown(encrypted)}'
    )


def test_a_server_without_tls_is_failed_where_tls_is_asked_for(
    check: CheckRunner, server: PostgresServer, certificate: Certificate
) -> None:
    refused = Verdict.failed(f"server does not support SSL, but SSL was required: {shown(server)}")
    assert check(server.url, sslmode="require") == refused
    assert check(server.url, ca=str(certificate.certificate)) == refused


def test_a_server_that_wants_tls_is_failed_without_it(check: CheckRunner, encrypted: PostgresServer) -> None:
    assert check(encrypted.url, sslmode="disable") == Verdict.failed(
        'no pg_hba.conf entry for host "127.0.0.1", user "svcnode", database "ledger", no encryption: '
        f"{shown(encrypted)}"
    )


def test_a_server_that_hangs_in_its_handshake_leaves_nothing(check: CheckRunner) -> None:
    with Backend(lambda peer: peer.send(b"S")) as backend:
        verdict = check.times_out(f"postgresql://me:{PASSWORD}@{backend.address}/ledger", sslmode="require")
    assert verdict == Verdict.failed("no answer within 0.2 s, in its step log in")


# ---- reuse


def test_a_connection_that_is_reused_is_the_same_one_and_is_closed_at_the_end(
    check: CheckRunner, server: PostgresServer
) -> None:
    assert becomes_true(lambda: not clients(server))
    seen: list[list[str]] = []
    noting = [lambda: seen.append(clients(server))] * 3
    looks = check.sequence(server.url, *noting, reuse=True, role="primary", query="SELECT true")
    assert looks == [(READY, OPENING), *[(READY, ["reuse", "exchange"])] * 3]
    assert len(seen[0]) == 1
    assert seen == [seen[0]] * 3
    assert becomes_true(lambda: not clients(server))


def test_a_connection_that_waits_holds_no_transaction(check: CheckRunner, server: PostgresServer) -> None:
    states: list[str] = []
    note = f"SELECT state FROM pg_stat_activity WHERE usename = '{USER}'"
    check.sequence(server.url, lambda: states.append(server.psql(note)), reuse=True, query="SELECT true")
    assert states == ["idle"]


def test_a_server_that_was_restarted_meanwhile_gets_a_fresh_connection(
    check: CheckRunner, encrypted: PostgresServer, certificate: Certificate
) -> None:
    looks = check.sequence(encrypted.url, encrypted.restart, ca=str(certificate.certificate), reuse=True)
    assert looks == [(READY, OPENING), (READY, ["reuse", "exchange", *OPENING])]


def test_a_server_that_hangs_meanwhile_is_failed_and_its_connection_not_kept(
    check: CheckRunner, server: PostgresServer
) -> None:
    assert_reconnects_after_timeout(check, server, OPENING)
    assert becomes_true(lambda: not clients(server))


def test_a_connection_is_not_kept_when_the_check_was_not_ready(check: CheckRunner, server: PostgresServer) -> None:
    gone: list[bool] = []
    looks = check.sequence(
        server.url, lambda: gone.append(becomes_true(lambda: not clients(server))), reuse=True, role="replica"
    )
    assert [verdict.outcome for verdict, _ in looks] == [Outcome.NOT_READY] * 2
    assert [steps for _, steps in looks] == [OPENING] * 2
    assert gone == [True]


# ---- what is no PostgreSQL


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (close, "server closed the connection unexpectedly"),
        (sending(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "received invalid response to SSL negotiation: H"),
    ],
    ids=["close", "http"],
)
def test_what_is_no_postgresql_is_failed(check: CheckRunner, script: Callable[[Peer], None], words: str) -> None:
    with Backend(script) as backend:
        assert check.leaks_nothing(f"postgresql://me:{PASSWORD}@{backend.address}/ledger") == Verdict.failed(
            f"{words}: postgresql://me:***@{backend.address}/ledger"
        )


def test_a_port_that_resets_is_failed_whenever_it_does_so(check: CheckRunner) -> None:
    with Backend(reset) as backend:
        verdict = check.leaks_nothing(f"postgresql://me:{PASSWORD}@{backend.address}/ledger")
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.startswith(("server closed the connection unexpectedly: ", "connection reset by peer: "))


@dataclass
class RecordingServer:
    """Asks for the password in clear, over a plain connection, and keeps what it hears."""

    received: bytes = b""

    def __call__(self, peer: Peer) -> None:
        while True:
            length = int.from_bytes(peer.read_exactly(4))
            self.received += (hello := peer.read_exactly(length - 4))
            if hello[:4] == b"\x00\x03\x00\x00":  # version 3.0 of the protocol: who wants to come in
                break
            peer.send(b"N")  # to the question for TLS
        peer.send(message(b"R", struct.pack(">I", 3)))
        self.received += peer.read_to_end()


@pytest.mark.parametrize(
    "options", [{}, {"sslmode": "disable"}, {"sslmode": "allow"}], ids=["prefer", "disable", "allow"]
)
def test_a_server_does_not_get_the_password_in_clear_by_asking_for_it(
    check: CheckRunner, options: dict[str, str]
) -> None:
    curious = RecordingServer()
    with Backend(curious) as backend:
        verdict = check(f"postgresql://me:{PASSWORD}@{backend.address}/ledger", **options)
    assert verdict.outcome is Outcome.FAILED
    assert "cleartext password" in verdict.reason
    assert b"me" in curious.received
    assert PASSWORD.encode() not in curious.received


def test_a_port_that_lets_nobody_in_is_told_from_one_that_is_mute(check: CheckRunner) -> None:
    with full_backlog() as port:
        verdict = check.with_timeout(0.2, f"postgresql://me@127.0.0.1:{port}/ledger")
    assert verdict == Verdict.failed("no answer within 0.2 s, in its step connect")


def test_a_mute_port_is_failed_at_the_deadline_and_nothing_is_left(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        verdict = check.times_out(f"postgresql://me:{PASSWORD}@{backend.address}/ledger")
    assert verdict == Verdict.failed("no answer within 0.2 s, in its step log in")


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">I", len(body) + 4) + body


AUTH_OK = message(b"R", bytes(4)) + message(b"Z", b"I")
JUNK = st.binary(max_size=100)
NO_POSTGRESQL = st.one_of(
    JUNK,
    JUNK.map(lambda junk: b"\x00" + junk),
    st.tuples(st.sampled_from([b"R", b"E", b"Z", b"S", b"K", b"v", b"T"]), JUNK).map(lambda words: message(*words)),
    JUNK.map(lambda junk: AUTH_OK + junk),
    st.lists(st.tuples(st.sampled_from([b"1", b"2", b"T", b"D", b"C", b"I", b"Z", b"G", b"H", b"W"]), JUNK)).map(
        lambda many: AUTH_OK + b"".join(message(kind, junk) for kind, junk in many)
    ),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(junk=AUTH_OK)
@example(junk=AUTH_OK + message(b"Z", b"I"))
@example(junk=message(b"E", b"SFATAL\0C57P03\0M\x1b[31mred\0\0"))
@given(junk=NO_POSTGRESQL)
def test_whatever_answers_that_is_no_postgresql_is_failed(check: CheckRunner, junk: bytes) -> None:
    with Backend(sending(junk)) as backend:
        verdict = check(f"postgresql://me:{PASSWORD}@{backend.address}/ledger", sslmode="disable")
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason.isprintable()
    assert PASSWORD not in verdict.reason


# ---- around the deadline


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_checks_that_are_cut_off_anywhere_leave_nothing_on_either_side(
    check: CheckRunner, server: PostgresServer, encrypted: PostgresServer, certificate: Certificate, is_encrypted: bool
) -> None:
    target = encrypted if is_encrypted else server
    options = {"ca": str(certificate.certificate)} if is_encrypted else {}
    assert_no_leaks_when_cancelled(check, target.url, **options)
    assert becomes_true(lambda: not clients(target))


# ---- our own faults


def test_running_out_of_file_descriptors_is_our_own_fault(check: CheckRunner, server: PostgresServer) -> None:
    without, afterwards = check.without_descriptors(server.url)
    assert without == NO_DESCRIPTORS
    assert afterwards == READY


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        ("could not create socket: Too many open files", "too many open files"),
        ("Cannot assign requested address", "cannot assign requested address"),
        (
            'Connection refused\nconnection to server at "::1", port 1 failed: Cannot assign requested address',
            "cannot assign requested address",
        ),
        (
            'could not read root certificate file "/ca.pem": \ufffd\x13',
            'could not read root certificate file "/ca.pem"',
        ),
    ],
)
def test_what_libpq_says_of_this_machine_is_our_own_fault(words: str, ours: str) -> None:
    probe = PostgresqlProbe(Url.parse("postgresql://me@127.0.0.1/ledger"))
    assert probe.verdict_for_driver_error(PostgresqlError(words)) == Verdict.unknown(
        f"this machine cannot check: {ours}"
    )


@pytest.mark.parametrize(
    "words",
    ['could not open file "base/1": Too many open files', "could not fork new process: Cannot allocate memory"],
)
def test_a_server_that_has_run_out_of_the_same_things_is_failed(check: CheckRunner, words: str) -> None:
    refusal = message(b"E", b"SFATAL\0C53000\0M" + words.encode() + b"\0\0")
    with Backend(sending(refusal)) as backend:
        verdict = check(f"postgresql://me@{backend.address}/ledger", sslmode="disable")
    assert verdict == Verdict.failed(f"{words}: postgresql://me@{backend.address}/ledger")


def test_an_authority_that_is_gone_is_our_own_fault(
    check: CheckRunner, encrypted: PostgresServer, certificate: Certificate, tmp_path: Path
) -> None:
    assert_missing_ca_is_unknown(check, encrypted.url, tmp_path / "ca.pem", certificate)


# ---- what is refused at once


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("postgresql:///ledger", "names no host; write postgresql://host:port"),
        ("postgresql://db/ledger?hots=/run", '"hots" in its query is unknown here; did you mean "host"?'),
        (
            "postgresql:///ledger?host=db.example",
            '"host" in its query is for the folder of a Unix socket, such as /run/postgresql',
        ),
    ],
)
def test_what_libpq_would_take_but_we_do_not_is_refused(url: str, words: str) -> None:
    with pytest.raises(ProbeError, match=f"^{re.escape(words)}$"):
        make_probe(url)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_cert_days": 3}, "min_cert_days: cannot be judged here: libpq does not show the server's certificate"),
        ({"sslmode": "verify-ca"}, 'ca: is missing, and sslmode "verify-ca" needs it; or take "verify-full"'),
        (
            {"ca": "ca.pem", "sslmode": "require"},
            'ca: is not looked at with sslmode "require"; take "verify-full" or "verify-ca"',
        ),
    ],
)
def test_options_of_tls_that_could_not_be_used_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(OptionError, match=f"^{re.escape(words)}$"):
        make_probe({"url": "postgresql://me@127.0.0.1/ledger", **options})


def test_an_sslmode_stands_in_one_place() -> None:
    with pytest.raises(OptionError, match=r"^sslmode: stands in the URL as well; only one of the two can count$"):
        make_probe({"url": "postgresql://me@127.0.0.1/ledger?sslmode=require", "sslmode": "require"})
