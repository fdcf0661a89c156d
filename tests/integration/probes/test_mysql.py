"""mysql:// against a real MariaDB in many states and against scripted servers."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Outcome
from svcnode.probes import make_probe
from svcnode.probes.run import run_check
from tests.support.backends import Backend, Peer, close, closed_port, reset, sending, server_tls, unresponsive
from tests.support.certificates import Certificate, make_certificate
from tests.support.disks import MemoryDisk
from tests.support.http_server import WAIT_TIMEOUT_S, becomes_true
from tests.support.probe_assertions import (
    assert_missing_ca_is_unknown,
    assert_no_leaks_when_cancelled,
    assert_reconnects_after_timeout,
)
from tests.support.servers.base import wait_until
from tests.support.servers.mariadb import (
    PASSWORD,
    REPLICATION_PASSWORD,
    REPLICATION_USER,
    USER,
    GaleraMember,
    MariaDbReplica,
    MariaDbServer,
)
from tests.support.verdicts import (
    CONNECTION_CLOSED,
    CONNECTION_REFUSED,
    EXPIRES_SOON,
    NO_DESCRIPTORS,
    PROTOCOL_ERROR,
    READY,
    TLS_UNTRUSTED,
    UNEXPECTED_RESPONSE,
    ExpectedVerdict,
    failed,
    not_ready,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from svcnode.core.model import Verdict
    from tests.support.check_runner import CheckRunner, FakeResolver

AUTH_FAILED = failed(ReasonCode.AUTH_FAILED)
PERMISSION_DENIED = failed(ReasonCode.PERMISSION_DENIED)
NO_QUORUM = not_ready(ReasonCode.NO_QUORUM)
READ_ONLY = not_ready(ReasonCode.READ_ONLY)
STOPPED = not_ready(ReasonCode.REPLICATION_STOPPED)
LAGGING = not_ready(ReasonCode.LAGGING)
UPSTREAM_OFFLINE = not_ready(ReasonCode.UPSTREAM_OFFLINE)
STORAGE_FULL = not_ready(ReasonCode.STORAGE_FULL)
SYNCING = not_ready(ReasonCode.SYNCING)
TIMEOUT = failed(ReasonCode.TIMEOUT)
WRONG_ROLE = not_ready(ReasonCode.WRONG_ROLE)
OPENING = ["connect", "log in", "exchange"]
TLS_OPENING = ["connect", "handshake", "log in", "exchange"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDbServer]:
    with MariaDbServer(tmp_path_factory.mktemp("mariadb")) as server:
        yield server


@pytest.fixture(scope="module")
def replica(server: MariaDbServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDbReplica]:
    with server.replica(tmp_path_factory.mktemp("mariadb-replica")) as replica:
        yield replica


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, certificate: Certificate) -> Iterator[MariaDbServer]:
    with MariaDbServer(tmp_path_factory.mktemp("mariadb-tls"), certificate=certificate) as server:
        yield server


def shown(server: MariaDbServer) -> str:
    return server.url.replace(PASSWORD, "***")


def clients(server: MariaDbServer) -> list[str]:
    return server.sql(f"SELECT id FROM information_schema.processlist WHERE user = '{USER}'").splitlines()


def aborted(server: MariaDbServer) -> str:
    assert becomes_true(lambda: not clients(server))
    return server.sql("SHOW GLOBAL STATUS LIKE 'Aborted%'")


# ---- ready


def test_a_server_that_answers_is_ready(check: CheckRunner, server: MariaDbServer) -> None:
    assert check(server.url) == READY
    assert check(server.url.replace("mysql:", "mariadb:")) == READY
    assert check(f"mysql://127.0.0.1:{server.port}", username=USER, password=PASSWORD) == READY


def test_a_check_has_its_steps(check: CheckRunner, server: MariaDbServer) -> None:
    assert check.steps(server.url) == [("connect", "127.0.0.1", True), ("log in", "", True), ("exchange", "", True)]


@pytest.mark.parametrize("addresses", [["::1", "127.0.0.1"], ["127.0.0.1", "::1"]], ids=str)
def test_the_probe_resolves_the_name_and_one_address_is_enough(
    check: CheckRunner, server: MariaDbServer, resolver: FakeResolver, addresses: list[str]
) -> None:
    resolver.addresses["db.example"] = addresses
    assert check(server.url.replace("127.0.0.1", "db.example")) == READY
    assert resolver.queries == ["db.example"]


def test_a_check_is_not_counted_as_aborted_by_the_server(
    check: CheckRunner, server: MariaDbServer, encrypted: MariaDbServer, certificate: Certificate
) -> None:
    for target, tls in ((server, {}), (encrypted, {"tls": True, "ca": str(certificate.certificate)})):
        before = aborted(target)
        for _ in range(3):
            assert check(target.url, **tls) == READY
            assert check(target.url, role="replica", **tls).outcome is Outcome.NOT_READY
        assert aborted(target) == before


def test_nothing_is_left_open_after_a_check(check: CheckRunner, server: MariaDbServer) -> None:
    for url in (server.url, server.bad_credentials_url):
        check.leaks_nothing(url)


def test_passwords_are_sent_as_utf_8(check: CheckRunner, server: MariaDbServer) -> None:
    server.sql("CREATE OR REPLACE USER umlaut IDENTIFIED BY 'pä€ßword'")
    assert check(f"mysql://umlaut@127.0.0.1:{server.port}", password="pä€ßword") == READY


# ---- errors


def test_a_wrong_password_is_failed_and_not_shown(check: CheckRunner, server: MariaDbServer) -> None:
    verdict = check(server.bad_credentials_url)
    assert verdict == AUTH_FAILED
    assert verdict.reason.endswith(f"(1045): {shown(server)}")


def test_a_missing_password_is_failed(check: CheckRunner, server: MariaDbServer) -> None:
    assert check(f"mysql://{USER}@127.0.0.1:{server.port}") == failed(ReasonCode.AUTH_REQUIRED)


def test_an_unknown_user_is_failed(check: CheckRunner, server: MariaDbServer) -> None:
    assert check(f"mysql://unknown:{PASSWORD}@127.0.0.1:{server.port}") == AUTH_FAILED


def test_a_locked_user_is_failed(check: CheckRunner, server: MariaDbServer) -> None:
    server.sql(f"CREATE OR REPLACE USER locked IDENTIFIED BY '{PASSWORD}' ACCOUNT LOCK")
    assert check(f"mysql://locked:{PASSWORD}@127.0.0.1:{server.port}") == failed(ReasonCode.USER_DISABLED)


def test_a_user_at_its_connection_limit_is_failed(check: CheckRunner, server: MariaDbServer) -> None:
    user = f"limited_{check.loop_name}"  # the server counts by name
    server.sql(f"CREATE USER {user} IDENTIFIED BY '{PASSWORD}' WITH MAX_CONNECTIONS_PER_HOUR 1")
    url = f"mysql://{user}:{PASSWORD}@127.0.0.1:{server.port}"
    assert check(url) == READY
    assert check(url) == failed(ReasonCode.TOO_MANY_CONNECTIONS)


def test_an_unknown_database_is_failed(check: CheckRunner, server: MariaDbServer) -> None:
    server.sql("CREATE OR REPLACE USER reader IDENTIFIED BY 'reader-password'; GRANT SELECT ON *.* TO reader")
    url = f"mysql://reader:reader-password@127.0.0.1:{server.port}/gone"
    assert check(url) == failed(ReasonCode.NOT_FOUND)
    assert check(server.url.replace("/ledger", "/mysql")) == PERMISSION_DENIED


def test_a_server_at_its_connection_limit_is_failed(check: CheckRunner, server: MariaDbServer) -> None:
    with server.exhaust():
        assert check(server.url) == failed(ReasonCode.TOO_MANY_CONNECTIONS)


def test_a_closed_port_is_failed(check: CheckRunner) -> None:
    with closed_port() as port:
        verdict = check(f"mysql://me:{PASSWORD}@127.0.0.1:{port}")
    assert verdict == CONNECTION_REFUSED
    assert verdict.reason.endswith(f"mysql://me:***@127.0.0.1:{port}")


def test_a_server_that_hangs_is_failed_at_the_deadline(check: CheckRunner, server: MariaDbServer) -> None:
    server.freeze()
    try:
        assert check.times_out(server.url, "log in") == TIMEOUT
    finally:
        server.thaw()


# ---- roles


def test_the_expected_role_is_ready(check: CheckRunner, server: MariaDbServer, replica: MariaDbReplica) -> None:
    assert check(server.url, role="primary") == READY
    assert check(server.url, max_lag="1s") == READY  # max_lag is for replicas only
    assert check(replica.url, role="replica", max_lag="5s") == READY
    assert check(replica.url, max_lag="5s") == READY


def test_another_role_is_not_ready(check: CheckRunner, server: MariaDbServer, replica: MariaDbReplica) -> None:
    assert check(server.url, role="replica") == WRONG_ROLE
    assert check(replica.url, role="primary") == READ_ONLY


def test_a_read_only_primary_is_not_ready(check: CheckRunner, server: MariaDbServer) -> None:
    server.set_read_only(True)
    try:
        assert check(server.url) == check(server.url, max_lag="1s") == READ_ONLY
        assert check(server.url, role="primary") == READ_ONLY
        assert check(server.url, role="replica") == WRONG_ROLE
    finally:
        server.set_read_only(False)


def test_a_replica_may_be_read_only(check: CheckRunner, server: MariaDbServer, replica: MariaDbReplica) -> None:
    assert check(replica.url) == READY


def test_without_the_privilege_a_read_only_server_is_a_replica_while_its_replication_runs(
    check: CheckRunner, server: MariaDbServer, replica: MariaDbReplica
) -> None:
    server.sql("CREATE OR REPLACE USER poor IDENTIFIED BY 'poor-password'")
    catch_up(replica)
    url = f"mysql://poor:poor-password@127.0.0.1:{replica.port}"
    assert check(url) == READY
    replica.sql("STOP SLAVE")
    try:
        assert check(url) == READ_ONLY
        assert check(replica.url) == READY
    finally:
        replica.sql("START SLAVE")
        wait_until(replica.is_following, "following again")


@pytest.mark.parametrize(("role", "expected"), [("", READ_ONLY), ("primary", READ_ONLY), ("replica", READY)])
def test_a_server_whose_storage_is_read_only_can_only_be_a_replica(
    check: CheckRunner, role: str, expected: ExpectedVerdict
) -> None:
    """As a reader of Aurora, whose replication SQL does not show."""
    reader = result([b"read_only", b"innodb_read_only"], [b"0", b"1"])
    server = RogueServer(answers=[reader, NO_STATUS, result([b"Connection_name"])])
    with Backend(server) as backend:
        assert check(f"mysql://me@{backend.address}", **({"role": role} if role else {})) == expected


def test_a_server_without_these_variables_is_ready(check: CheckRunner) -> None:
    """A server that only speaks the protocol of MySQL."""
    answers = [packet(1, error(1193)), result([b"1"], [b"1"]), NO_STATUS]
    with Backend(RogueServer(answers=answers)) as backend:
        assert check(f"mysql://me@{backend.address}") == READY


@pytest.mark.parametrize("what", ["SLAVE", "SLAVE IO_THREAD", "SLAVE SQL_THREAD"])
def test_a_replica_whose_replication_was_stopped_is_not_ready(
    check: CheckRunner, replica: MariaDbReplica, what: str
) -> None:
    replica.sql(f"STOP {what}")
    try:
        assert check(replica.url, role="replica") == STOPPED
        assert check(replica.url, max_lag="1h") == STOPPED
        assert check(replica.url) == READY
    finally:
        replica.sql("START SLAVE")
        wait_until(replica.is_following, "following again")


def test_a_replica_that_is_too_far_behind_is_not_ready(
    check: CheckRunner, server: MariaDbServer, replica: MariaDbReplica
) -> None:
    server.sql("CREATE TABLE IF NOT EXISTS ledger.late (x INT)")
    catch_up(replica)
    with replica.session("LOCK TABLES ledger.late WRITE"):
        server.sql("INSERT INTO ledger.late VALUES (1)")
        wait_until(lambda: check(replica.url, max_lag="500ms") == not_ready(ReasonCode.LAGGING), "behind")
        assert check(replica.url, role="replica", max_lag="1h") == READY
    catch_up(replica)
    assert check(replica.url, max_lag="500ms") == READY


def catch_up(replica: MariaDbReplica) -> None:
    written = replica.primary.sql("SELECT @@gtid_binlog_pos")
    assert replica.sql(f"SELECT MASTER_GTID_WAIT('{written}', 30)") == "0"


def test_a_replica_without_its_primary_is_not_ready(
    check: CheckRunner, server: MariaDbServer, replica: MariaDbReplica
) -> None:
    server.kill()
    try:
        wait_until(lambda: not replica.is_following(), "disconnected")
        assert check(replica.url, role="replica") == STOPPED
    finally:
        server.start()
        server.wait_until_ready()
        wait_until(replica.is_following, "following again")


# ---- lag by positions

# As in a transaction that was open for ten minutes.
OLD_ROW = """\
SET SESSION binlog_format = ROW, timestamp = UNIX_TIMESTAMP() - 600;
INSERT INTO ledger.slow VALUES (1)"""


def test_a_transaction_that_was_open_for_a_long_time_is_not_a_lag(
    check: CheckRunner, server: MariaDbServer, replica: MariaDbReplica
) -> None:
    """The replica reports the age of the row that it applies, which was written long before the COMMIT."""
    server.sql("CREATE TABLE IF NOT EXISTS ledger.slow (x INT)")
    catch_up(replica)
    probe = make_probe({"url": replica.url, "max_lag": "10s"})

    async def main() -> None:
        assert await probe.check() == READY
        with replica.session("LOCK TABLES ledger.slow WRITE"):  # applying takes long
            server.sql(OLD_ROW)
            wait_until(lambda: replica.lag_s() >= 600, "the lag that it reports")
            assert await probe.check() == READY
            # Without an earlier check that found it up to date, the age of the row is the only measure.
            other = make_probe({"url": replica.url, "max_lag": "10s"})
            assert [await other.check() for _ in range(3)] == [LAGGING] * 3
        catch_up(replica)
        assert await probe.check() == READY

    check.run(main())


def test_a_replica_that_does_not_apply_what_it_received_lags(
    check: CheckRunner, server: MariaDbServer, replica: MariaDbReplica
) -> None:
    server.sql("CREATE TABLE IF NOT EXISTS ledger.slow (x INT)")
    catch_up(replica)
    probe = make_probe({"url": replica.url, "max_lag": "1s"})

    async def verdict() -> Verdict:
        return await probe.check()

    assert check.run(verdict()) == READY
    with replica.session("LOCK TABLES ledger.slow WRITE"):
        server.sql(OLD_ROW)
        wait_until(lambda: check.run(verdict()) == LAGGING, "behind")
    catch_up(replica)
    assert check.run(verdict()) == READY


@pytest.fixture(scope="module")
def second_replica(replica: MariaDbReplica, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDbReplica]:
    """A replica of the replica."""
    with replica.replica(tmp_path_factory.mktemp("mariadb-second-replica")) as second:
        yield second


def test_a_replica_is_compared_with_the_primary(
    check: CheckRunner, server: MariaDbServer, replica: MariaDbReplica, second_replica: MariaDbReplica
) -> None:
    options = {"max_lag": "1s", "primary": server.url}
    wait_until(lambda: check(second_replica.url, **options) == READY, "up to date")
    assert check.steps(second_replica.url, **options)[-2:] == [
        ("primary", f"127.0.0.1:{server.port}", True),
        ("exchange", "", True),
    ]
    replica.sql("STOP SLAVE")
    try:
        server.sql("CREATE OR REPLACE TABLE ledger.newer (x INT)")
        assert check(second_replica.url, max_lag="1s") == READY  # it has applied all that it received
        assert check(second_replica.url, **options) == LAGGING
    finally:
        replica.sql("START SLAVE")
        wait_until(replica.is_following, "following again")
    wait_until(lambda: check(second_replica.url, **options) == READY, "up to date again")


def test_the_primary_needs_no_privilege_and_takes_the_login_of_the_replica(
    check: CheckRunner, server: MariaDbServer, replica: MariaDbReplica
) -> None:
    server.sql("CREATE OR REPLACE USER poor IDENTIFIED BY 'poor-password'")
    catch_up(replica)
    for login in ("", "poor:poor-password@"):
        options = {"max_lag": "5s", "primary": f"mariadb://{login}127.0.0.1:{server.port}"}
        assert check(replica.url, **options) == READY


def test_a_replica_of_a_busy_primary_is_ready(
    check: CheckRunner, server: MariaDbServer, replica: MariaDbReplica
) -> None:
    server.sql("CREATE TABLE IF NOT EXISTS ledger.busy (x INT)")
    catch_up(replica)
    writer = threading.Thread(target=server.sql, args=["INSERT INTO ledger.busy VALUES (1);" * 2000])
    probe = make_probe({"url": replica.url, "max_lag": "30s", "primary": server.url})

    async def main() -> list[Verdict]:
        return [await probe.check() for _ in range(20)]

    assert check.run(main())[-1] == READY
    writer.start()
    try:
        assert check.run(main()) == [READY] * 20
    finally:
        writer.join()


def test_a_primary_that_rejects_the_login_is_not_called_offline(
    check: CheckRunner, server: MariaDbServer, second_replica: MariaDbReplica
) -> None:
    verdict = check(second_replica.url, max_lag="1h", primary=server.bad_credentials_url)
    assert verdict == not_ready(ReasonCode.AUTH_FAILED)
    assert "offline" not in verdict.reason


def test_a_replica_whose_primary_is_offline_is_not_ready(
    check: CheckRunner, server: MariaDbServer, second_replica: MariaDbReplica
) -> None:
    options = {"max_lag": "1h", "primary": server.url}
    server.freeze()
    try:
        assert check.with_timeout(2.0, second_replica.url, **options) == UPSTREAM_OFFLINE
    finally:
        server.thaw()
    server.kill()
    try:
        verdict = check(second_replica.url, **options)
        assert verdict == UPSTREAM_OFFLINE
        assert PASSWORD not in verdict.reason
        assert check(second_replica.url, max_lag="1h") == READY
    finally:
        server.start()
        server.wait_until_ready()
    wait_until(second_replica.primary.is_following, "following again")  # type: ignore[attr-defined]  # a replica
    wait_until(lambda: check(second_replica.url, **options) == READY, "up to date again")


def mysql_replica(*executed: bytes, log_file: bytes = b"binlog.000009", applied: bytes = b"900") -> RogueServer:
    """With the columns of MySQL. `executed` are its transactions each time it is asked for them."""
    columns = {
        b"Replica_IO_Running": b"Yes",
        b"Source_Log_File": b"binlog.000010",
        b"Read_Source_Log_Pos": b"700",
        b"Relay_Source_Log_File": log_file,
        b"Exec_Source_Log_Pos": applied,
        b"Seconds_Behind_Source": b"600",
    }
    status = result(list(columns), list(columns.values()), kind=VAR_STRING)
    positions = [result([b"position"], [each], kind=VAR_STRING) for each in executed]
    return RogueServer(answers=[WRITABLE, NO_STATUS, packet(1, error(1064)), status, *positions])


@pytest.mark.parametrize(
    ("log_file", "applied", "expected"),
    [
        (b"binlog.000009", b"900", LAGGING),
        (b"binlog.000010", b"699", LAGGING),
        (b"binlog.000010", b"700", READY),
        (b"other.000010", b"700", LAGGING),
        (b"", b"", LAGGING),
    ],
)
def test_the_log_positions_of_mysql(
    check: CheckRunner, log_file: bytes, applied: bytes, expected: ExpectedVerdict
) -> None:
    with Backend(mysql_replica(log_file=log_file, applied=applied)) as backend:
        assert check(f"mysql://me@{backend.address}", max_lag="5s") == expected


MYSQL_SERVER, OTHER_SERVER = b"3e11fa47-71ca-11e1-9e33-c80aa9429562", b"4350f323-7565-4e59-8763-4b1b83a0ce0e"


@pytest.mark.parametrize(
    ("written", "executed", "expected"),
    [
        (MYSQL_SERVER + b":1-5", MYSQL_SERVER + b":1-5", READY),
        (MYSQL_SERVER + b":1-5", MYSQL_SERVER + b":1-3:5-7,\n" + OTHER_SERVER + b":1", READY),
        (MYSQL_SERVER + b":1-5:9", MYSQL_SERVER + b":1-8", LAGGING),
        (OTHER_SERVER + b":1", MYSQL_SERVER + b":1-8", LAGGING),
        (b"0-1-7,5-2-9", b"0-3-7,5-2-9,8-1-1", READY),
        (b"0-1-7,5-2-9", b"0-3-7,5-2-8", LAGGING),
        (b"0-1-7", b"", LAGGING),
        (b"", b"0-1-7", not_ready(ReasonCode.NOT_SUPPORTED)),
        (b"not a position", b"0-1-7", UPSTREAM_OFFLINE),
    ],
)
def test_gtids_of_both_servers_are_compared(
    check: CheckRunner, written: bytes, executed: bytes, expected: ExpectedVerdict
) -> None:
    primary = RogueServer(answers=[result([b"position"], [written], kind=VAR_STRING)])
    with Backend(primary) as upstream, Backend(mysql_replica(*[executed] * 4)) as backend:
        options = {"max_lag": "5s", "primary": f"mysql://{upstream.address}"}
        assert check(f"mysql://me@{backend.address}", **options) == expected


def test_a_replica_gets_a_moment_to_apply_what_the_primary_has_just_written(check: CheckRunner) -> None:
    primary = RogueServer(answers=[result([b"position"], [b"0-1-7"], kind=VAR_STRING)])
    with Backend(primary) as upstream, Backend(mysql_replica(b"0-1-5", b"0-1-6", b"0-1-7")) as backend:
        options = {"max_lag": "5s", "primary": f"mysql://{upstream.address}"}
        assert check(f"mysql://me@{backend.address}", **options) == READY


# ---- a replica with two sources


class OtherPrimary(MariaDbServer):
    def command(self) -> Sequence[str]:
        return [*super().command(), "--gtid-domain-id=7"]  # otherwise the transactions of the two sources mix


@pytest.fixture(scope="module")
def multi_source_replica(server: MariaDbServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDbReplica]:
    """With the default channel and a channel "east"."""
    other = OtherPrimary(tmp_path_factory.mktemp("mariadb-east"))
    with other, server.replica(tmp_path_factory.mktemp("mariadb-of-two")) as replica:
        file, position, *_ = other.sql("SHOW MASTER STATUS").split("\t")
        replica.sql(
            f"""
            CHANGE MASTER 'east' TO MASTER_HOST = '{other.host}', MASTER_PORT = {other.port},
            MASTER_USER = '{REPLICATION_USER}', MASTER_PASSWORD = '{REPLICATION_PASSWORD}',
            MASTER_LOG_FILE = '{file}', MASTER_LOG_POS = {position}, MASTER_CONNECT_RETRY = 1;
            START SLAVE 'east';
            """
        )
        yield replica


def follows_both(check: CheckRunner, replica: MariaDbReplica) -> bool:
    return check(replica.url, role="replica", max_lag="5s") == READY


@pytest.mark.parametrize(("what", "is_named"), [("SLAVE 'east'", True), ("SLAVE", False)])
def test_a_replica_with_two_sources_is_not_ready_if_replication_from_one_has_stopped(
    check: CheckRunner, multi_source_replica: MariaDbReplica, what: str, is_named: bool
) -> None:
    wait_until(lambda: follows_both(check, multi_source_replica), "following both")
    multi_source_replica.sql(f"STOP {what}")
    try:
        verdict = check(multi_source_replica.url, role="replica")
        assert verdict == STOPPED
        assert ('"east"' in verdict.reason) is is_named
        assert check(multi_source_replica.url, max_lag="1h") == STOPPED
        assert check(multi_source_replica.url) == READY
    finally:
        multi_source_replica.sql(f"START {what}")
        wait_until(lambda: follows_both(check, multi_source_replica), "following both again")


def test_a_replica_whose_only_channel_has_a_name_is_a_replica(
    check: CheckRunner, multi_source_replica: MariaDbReplica
) -> None:
    wait_until(lambda: follows_both(check, multi_source_replica), "following both")
    multi_source_replica.sql("STOP SLAVE; RESET SLAVE ALL")
    assert check(multi_source_replica.url, role="replica", max_lag="5s") == READY
    multi_source_replica.sql("STOP SLAVE 'east'")
    try:
        assert check(multi_source_replica.url, max_lag="1h") == STOPPED
    finally:
        multi_source_replica.sql("START SLAVE 'east'")
        multi_source_replica.set_up()
        wait_until(lambda: follows_both(check, multi_source_replica), "following both again")


def test_a_missing_privilege_is_failed_and_the_reason_names_it(check: CheckRunner, server: MariaDbServer) -> None:
    server.sql("CREATE OR REPLACE USER poor IDENTIFIED BY 'poor-password'")
    url = f"mysql://poor:poor-password@127.0.0.1:{server.port}"
    assert check(url) == check(url, role="primary") == READY
    for options in ({"role": "replica"}, {"max_lag": "1s"}):
        verdict = check(url, **options)
        assert verdict == PERMISSION_DENIED
        assert "SLAVE MONITOR" in verdict.reason


# ---- query and write


def test_a_query_that_returns_true_is_ready(check: CheckRunner, server: MariaDbServer) -> None:
    for query in ("SELECT TRUE", "SELECT 2 > 1", "SELECT COUNT(*) < 100 FROM information_schema.tables WHERE 1 = 0"):
        assert check(server.url, query=query) == READY
    assert check.steps(server.url, query="SELECT 1")[-1] == ("exchange", "", True)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("SELECT FALSE", ReasonCode.UNEXPECTED_RESPONSE),
        ("SELECT NULL", ReasonCode.UNEXPECTED_RESPONSE),
        ("SELECT 2", ReasonCode.UNEXPECTED_RESPONSE),
        ("SELECT '1'", ReasonCode.UNEXPECTED_RESPONSE),
        ("SELECT 1 WHERE FALSE", ReasonCode.UNEXPECTED_RESPONSE),
        ("DO 1", ReasonCode.UNEXPECTED_RESPONSE),
        ("SELECT 1 FROM no_such_table", ReasonCode.NOT_FOUND),
        ("SELECT no_such_column", ReasonCode.BAD_REQUEST),
        ("SELECT no_such_function()", ReasonCode.BAD_REQUEST),
        ("SELECT", ReasonCode.BAD_REQUEST),
        ("SELECT 1; SELECT 1", ReasonCode.BAD_REQUEST),
        ("SELECT User FROM mysql.global_priv", ReasonCode.PERMISSION_DENIED),
    ],
)
def test_any_other_result_of_a_query_is_failed(
    check: CheckRunner, server: MariaDbServer, query: str, code: ReasonCode
) -> None:
    assert check(server.url, query=query) == failed(code)


def test_a_query_cannot_write(check: CheckRunner, server: MariaDbServer) -> None:
    server.sql("CREATE OR REPLACE TABLE ledger.precious (x INT); INSERT INTO ledger.precious VALUES (1)")
    for query in ("DELETE FROM precious", "DROP TABLE precious", "COMMIT; DELETE FROM precious"):
        assert check(server.url, query=query) == failed(ReasonCode.BAD_REQUEST)
    assert server.sql("SELECT COUNT(*) FROM ledger.precious") == "1"


def test_a_query_that_hangs_is_ended_at_the_deadline(check: CheckRunner, server: MariaDbServer) -> None:
    assert check.times_out(server.url, "exchange", query="SELECT BENCHMARK(1000000000, MD5('x')) = 0") == TIMEOUT
    assert becomes_true(lambda: not clients(server))


def test_a_write_is_committed(check: CheckRunner, server: MariaDbServer) -> None:
    server.sql("CREATE TABLE IF NOT EXISTS ledger.`own ``name` LIKE ledger.svcnode_write")
    for name in (True, "own `name", "ledger.own `name"):
        assert check(server.url, write=name) == READY
    assert server.sql("SELECT COUNT(*) > 0 FROM ledger.svcnode_write") == "1"
    assert server.sql("SELECT COUNT(*) > 0 FROM ledger.`own ``name`") == "1"
    assert check.steps(server.url, write=True)[-2:] == [("write", "", True), ("exchange", "", True)]


def test_a_write_is_committed_if_the_server_does_not_commit_automatically(
    check: CheckRunner, server: MariaDbServer
) -> None:
    server.sql("DELETE FROM ledger.svcnode_write; SET GLOBAL autocommit = 0")
    try:
        assert check(server.url, write=True) == READY
    finally:
        server.sql("SET GLOBAL autocommit = 1")
    assert server.sql("SELECT COUNT(*) FROM ledger.svcnode_write") == "1"


def test_a_write_needs_only_three_privileges(check: CheckRunner, server: MariaDbServer) -> None:
    server.sql(
        """
        CREATE OR REPLACE USER writer IDENTIFIED BY 'writer-password';
        GRANT SELECT, INSERT, UPDATE ON ledger.svcnode_write TO writer;
        """
    )
    url = f"mysql://writer:writer-password@127.0.0.1:{server.port}/ledger"
    for _ in range(3):
        assert check(url, write=True) == READY
    denied = check(url, write="elsewhere")
    assert denied == PERMISSION_DENIED
    assert "CREATE TABLE `elsewhere`" in denied.reason


def test_a_missing_table_is_failed_and_the_reason_creates_it(check: CheckRunner, server: MariaDbServer) -> None:
    server.sql("DROP TABLE IF EXISTS ledger.fresh")
    verdict = check(server.url, write="ledger.fresh")
    assert verdict == failed(ReasonCode.NOT_FOUND)
    create = verdict.reason.partition(", created by: ")[2].partition(": mysql://")[0]
    server.sql(create)
    assert check(server.url, write="ledger.fresh") == READY


def test_a_table_with_other_columns_is_failed(check: CheckRunner, server: MariaDbServer) -> None:
    server.sql("CREATE OR REPLACE TABLE ledger.other (x INT)")
    assert check(server.url, write="other") == failed(ReasonCode.WRITE_FAILED)


@pytest.mark.parametrize(
    "lock",
    [
        "FLUSH TABLES WITH READ LOCK",
        "LOCK TABLES ledger.svcnode_write READ",
        "BACKUP STAGE START; BACKUP STAGE FLUSH; BACKUP STAGE BLOCK_DDL; BACKUP STAGE BLOCK_COMMIT",
        "BEGIN; REPLACE INTO ledger.svcnode_write SELECT seq, NOW(6) FROM ledger.seq_0_to_255",
    ],
    ids=["global", "table", "commit", "rows"],
)
def test_a_write_that_hangs_is_failed_and_leaves_no_session(
    check: CheckRunner, server: MariaDbServer, lock: str
) -> None:
    with server.session(lock):
        assert check(server.url) == READY
        assert check.times_out(server.url, "write", write=True) == failed(ReasonCode.WRITE_TIMEOUT)
        assert becomes_true(lambda: not clients(server))
    assert check(server.url, write=True) == READY


def test_while_a_write_does_not_end_no_other_is_started(check: CheckRunner, server: MariaDbServer) -> None:
    """As on a frozen disk. Without a deadline the server does not end the write itself."""
    probe = make_probe({"url": server.url, "write": True})

    async def main() -> list[Verdict]:
        with server.session("LOCK TABLES ledger.svcnode_write READ"):
            task = asyncio.create_task(probe.check())
            assert await asyncio.to_thread(becomes_true, lambda: len(writers(server)) == 1)
            task.cancel()
            await asyncio.wait([task])
            verdicts = [await probe.check(), await probe.check()]
            assert len(writers(server)) == 1
        assert await asyncio.to_thread(becomes_true, lambda: not writers(server))
        return [*verdicts, await probe.check()]

    assert check.run(main()) == [failed(ReasonCode.WRITE_TIMEOUT), failed(ReasonCode.WRITE_TIMEOUT), READY]


def writers(server: MariaDbServer) -> list[str]:
    return server.sql("SELECT id FROM information_schema.processlist WHERE state LIKE 'Waiting%lock'").splitlines()


def test_a_server_whose_disk_is_full_cannot_write(check: CheckRunner, tmp_path: Path) -> None:
    """MariaDB waits until another program frees space. Of our sessions it then has only one."""
    with MemoryDisk(tmp_path / "disk", size_bytes=80 * 1024**2) as disk, MariaDbServer(tmp_path, disk=disk) as server:
        probe = make_probe({"url": server.url, "write": True})

        async def codes(timeout_s: float) -> list[str]:
            return [(await run_check(probe, timeout_s))[0].code for _ in range(3)]

        assert check.run(codes(WAIT_TIMEOUT_S)) == [ReasonCode.OK] * 3
        with server.disk_full():
            assert check.run(codes(1.0)) == [ReasonCode.WRITE_TIMEOUT] * 3
            assert server.sql("SHOW PROCESSLIST").count("INSERT INTO `svcnode_write`") == 1
            assert check(server.url) == READY


def test_with_a_write_it_does_not_matter_whether_a_read_only_server_is_a_replica(
    check: CheckRunner, server: MariaDbServer
) -> None:
    server.sql("CREATE OR REPLACE USER poor IDENTIFIED BY 'poor-password'")
    server.set_read_only(True)
    try:
        verdict = check(f"mysql://poor:poor-password@127.0.0.1:{server.port}", write="ledger.svcnode_write")
    finally:
        server.set_read_only(False)
        server.sql("DROP USER poor")
    assert verdict == READ_ONLY
    assert "SLAVE MONITOR" not in verdict.reason


def test_a_write_to_a_read_only_server_is_not_ready(check: CheckRunner, server: MariaDbServer) -> None:
    server.sql("SET GLOBAL tx_read_only = 1")
    try:
        assert check(server.url) == READY
        assert check(server.url, write=True) == READ_ONLY
    finally:
        server.sql("SET GLOBAL tx_read_only = 0")


@pytest.mark.parametrize("cause", ["interrupted", "reconnected"])
def test_a_reused_connection_writes_too(check: CheckRunner, server: MariaDbServer, cause: str) -> None:
    actions = {"interrupted": [lambda: None] * 2, "reconnected": [lambda: kill_clients(server)]}[cause]
    assert {
        verdict for verdict, _ in check.sequence(server.url, *actions, write=True, query="SELECT 1", reuse=True)
    } == {READY}


def kill_clients(server: MariaDbServer) -> None:
    for each in clients(server):
        server.sql(f"KILL {each}")


@pytest.mark.parametrize(
    ("number", "message", "expected"),
    [
        (1290, b"running with --read-only", READ_ONLY),
        (1836, b"running in read-only mode", READ_ONLY),
        (1021, b"Disk full", STORAGE_FULL),
        (1114, b"The table is full", STORAGE_FULL),
        (1026, b"Error writing file 'binlog' (Errcode: 28 \"No space left on device\")", STORAGE_FULL),
        (1030, b"Got error 28 from storage engine", STORAGE_FULL),
        (1030, b"Got error 168 from storage engine", failed(ReasonCode.WRITE_FAILED)),
        (1041, b"Out of memory", not_ready(ReasonCode.OUT_OF_MEMORY)),
        (1047, b"WSREP has not yet prepared node for application use", NO_QUORUM),
        (1205, b"Lock wait timeout exceeded", failed(ReasonCode.WRITE_TIMEOUT)),
        (1969, b"Query execution was interrupted", failed(ReasonCode.WRITE_TIMEOUT)),
        (1053, b"Server shutdown in progress", failed(ReasonCode.SHUTTING_DOWN)),
        (1180, b"Got error during COMMIT", failed(ReasonCode.WRITE_FAILED)),
    ],
)
def test_a_write_that_is_refused_has_the_code_of_its_number(
    check: CheckRunner, number: int, message: bytes, expected: ExpectedVerdict
) -> None:
    server = RogueServer(answers=[WRITABLE, NO_STATUS, packet(1, OK), packet(1, error(number, message))])
    with Backend(server) as backend:
        assert check(f"mysql://me@{backend.address}/ledger", write=True) == expected


@pytest.mark.parametrize("number", [1213, 1020])
def test_a_write_that_conflicts_with_another_writer_is_repeated(check: CheckRunner, number: int) -> None:
    conflict = packet(1, error(number))
    server = RogueServer(answers=[WRITABLE, NO_STATUS, packet(1, OK), conflict, conflict, packet(1, OK)])
    with Backend(server) as backend:
        assert check(f"mysql://me@{backend.address}/ledger", write=True) == READY
    assert server.received.count(b"INSERT INTO `svcnode_write`") == 3


def test_many_nodes_write_at_the_same_time(check: CheckRunner, server: MariaDbServer) -> None:
    probes = [make_probe({"url": server.url, "write": True}) for _ in range(5)]

    async def checks() -> list[Verdict]:
        rounds = [await asyncio.gather(*(probe.check() for probe in probes)) for _ in range(10)]
        return [verdict for verdicts in rounds for verdict in verdicts]

    assert check.run(checks()) == [READY] * 50


# ---- Galera


@pytest.fixture(scope="module")
def member(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GaleraMember]:
    with GaleraMember(tmp_path_factory.mktemp("galera")) as member:
        yield member


def test_a_synced_galera_member_is_ready(check: CheckRunner, member: GaleraMember) -> None:
    assert check(member.url) == check(member.url, role="primary", write=True) == READY


def test_a_galera_donor_is_ready(check: CheckRunner, member: GaleraMember) -> None:
    member.sql("SET GLOBAL wsrep_desync = ON")
    try:
        assert member.status("wsrep_local_state_comment") == "Donor/Desynced"
        assert check(member.url) == READY
    finally:
        member.sql("SET GLOBAL wsrep_desync = OFF")


def test_a_galera_member_without_a_quorum_is_not_ready(check: CheckRunner, member: GaleraMember) -> None:
    with member.quorum_lost():
        assert member.sql("SELECT 1") == "1"
        for options in ({}, {"role": "primary"}, {"write": True}, {"query": "SELECT TRUE"}):
            assert check(member.url, **options) == NO_QUORUM
    wait_until(lambda: check(member.url, write=True) == READY, "ready again")


@pytest.mark.parametrize(
    ("cluster", "state", "ready", "expected"),
    [
        (b"Primary", b"4", b"ON", READY),
        (b"Primary", b"2", b"ON", READY),
        (b"Primary", b"1", b"OFF", SYNCING),
        (b"Primary", b"3", b"ON", SYNCING),
        (b"Primary", b"4", b"OFF", SYNCING),
        (b"non-Primary", b"4", b"ON", NO_QUORUM),
        (b"Disconnected", b"0", b"OFF", NO_QUORUM),
    ],
)
def test_the_states_of_a_galera_member(
    check: CheckRunner, cluster: bytes, state: bytes, ready: bytes, expected: ExpectedVerdict
) -> None:
    status = {b"wsrep_provider_name": b"Galera", b"wsrep_cluster_status": cluster}
    status |= {b"wsrep_local_state": state, b"wsrep_ready": ready}
    server = RogueServer(answers=[WRITABLE, result([b"Variable_name", b"Value"], *status.items(), kind=VAR_STRING)])
    with Backend(server) as backend:
        assert check(f"mysql://me@{backend.address}") == expected


# ---- TLS


def test_a_server_whose_certificate_is_trusted_is_ready(
    check: CheckRunner, encrypted: MariaDbServer, certificate: Certificate
) -> None:
    ca = str(certificate.certificate)
    assert check(encrypted.url, tls=True, ca=ca) == READY
    assert check.steps(encrypted.url, tls=True, ca=ca, server_name="localhost") == [
        ("connect", "127.0.0.1", True),
        ("handshake", "localhost", True),
        ("log in", "", True),
        ("exchange", "", True),
    ]


def test_a_server_is_found_by_its_name_and_its_certificate_is_for_that(
    check: CheckRunner, encrypted: MariaDbServer, certificate: Certificate, resolver: FakeResolver
) -> None:
    resolver.addresses["localhost"] = ["::1", "127.0.0.1"]
    url = encrypted.url.replace("127.0.0.1", "localhost")
    assert check(url, tls=True, ca=str(certificate.certificate)) == READY
    assert resolver.queries == ["localhost"]


def test_a_certificate_that_cannot_be_trusted_is_failed(
    check: CheckRunner, encrypted: MariaDbServer, certificate: Certificate, tmp_path: Path
) -> None:
    other = make_certificate(tmp_path, "other")
    assert check(encrypted.url, tls=True) == TLS_UNTRUSTED
    assert check(encrypted.url, tls=True, ca=str(other.certificate)) == TLS_UNTRUSTED
    wrong_name = check(encrypted.url, tls=True, ca=str(certificate.certificate), server_name="other.example")
    assert wrong_name == failed(ReasonCode.TLS_NAME_MISMATCH)


def test_a_wrong_password_is_failed_under_tls_too(
    check: CheckRunner, encrypted: MariaDbServer, certificate: Certificate
) -> None:
    assert check(encrypted.bad_credentials_url, tls=True, ca=str(certificate.certificate)) == AUTH_FAILED


def test_a_certificate_that_expires_soon_is_not_ready(
    check: CheckRunner, encrypted: MariaDbServer, certificate: Certificate
) -> None:
    assert check(encrypted.url, tls=True, ca=str(certificate.certificate), min_cert_days=1) == EXPIRES_SOON


def test_a_server_without_tls_is_failed_if_tls_is_required(check: CheckRunner, server: MariaDbServer) -> None:
    assert check.leaks_nothing(server.url, tls=True) == failed(ReasonCode.TLS_NOT_OFFERED)


def test_a_server_that_requires_tls_is_failed_without_it(check: CheckRunner, encrypted: MariaDbServer) -> None:
    """MariaDB reports it as a wrong password."""
    verdict = check(encrypted.url)
    assert verdict == AUTH_FAILED
    assert PASSWORD not in verdict.reason


def test_a_server_that_hangs_in_its_handshake_leaves_nothing(check: CheckRunner) -> None:
    with Backend(send_then_hang(greeting(CAPABILITIES | SSL))) as backend:
        url = f"mysql://me:{PASSWORD}@{backend.address}"
        assert check.times_out(url, "handshake", tls=True) == failed(ReasonCode.TLS_TIMEOUT)


# ---- reuse


def test_a_connection_that_is_reused_is_the_same_one_and_is_closed_at_the_end(
    check: CheckRunner, server: MariaDbServer
) -> None:
    assert becomes_true(lambda: not clients(server))
    seen: list[list[str]] = []
    results = check.sequence(server.url, *[lambda: seen.append(clients(server))] * 3, reuse=True)
    assert results == [(READY, OPENING), *[(READY, ["reuse", "exchange"])] * 3]
    assert len(seen[0]) == 1
    assert seen == [seen[0]] * 3
    assert becomes_true(lambda: not clients(server))


def test_a_restarted_server_gets_a_new_connection(
    check: CheckRunner, encrypted: MariaDbServer, certificate: Certificate
) -> None:
    results = check.sequence(encrypted.url, encrypted.restart, tls=True, ca=str(certificate.certificate), reuse=True)
    assert results == [(READY, TLS_OPENING), (READY, ["reuse", "exchange", *TLS_OPENING])]


def test_the_connection_of_a_check_that_times_out_is_not_reused(check: CheckRunner, server: MariaDbServer) -> None:
    assert_reconnects_after_timeout(check, server, OPENING)
    assert becomes_true(lambda: not clients(server))


def test_the_connection_of_a_check_that_is_not_ready_is_not_reused(check: CheckRunner, server: MariaDbServer) -> None:
    gone: list[bool] = []
    results = check.sequence(
        server.url, lambda: gone.append(becomes_true(lambda: not clients(server))), reuse=True, role="replica"
    )
    assert results == [(WRONG_ROLE, OPENING)] * 2
    assert gone == [True]


# ---- malicious servers

LOCAL_FILES, SSL, PLUGIN_AUTH = 1 << 7, 1 << 11, 1 << 19
CAPABILITIES = 0x200 | 0x8000 | PLUGIN_AUTH  # that of 4.1, secure passwords
OK = b"\x00\x00\x00\x02\x00\x00\x00"
LONG_LONG, VAR_STRING = 8, 253  # types of columns


def packet(number: int, payload: bytes) -> bytes:
    return struct.pack("<I", len(payload))[:3] + bytes([number]) + payload


def greeting(capabilities: int, plugin: bytes = b"mysql_native_password") -> bytes:
    low, high = capabilities & 0xFFFF, capabilities >> 16
    head = b"\x0a8.0.30\0" + struct.pack("<I", 7) + b"saltsalt\0" + struct.pack("<HBHHB", low, 45, 2, high, 21)
    return packet(0, head + bytes(10) + b"saltsaltsalt\0" + plugin + b"\0")


def result(names: Sequence[bytes], *rows: Sequence[bytes], kind: int = LONG_LONG) -> bytes:
    """The response to a query; all columns have the same type."""
    info = b"\0\x0c" + struct.pack("<HIBHBxx", 45 if kind == VAR_STRING else 63, 255, kind, 0, 0)
    columns = [b"\x03def\0\0\0" + text(name) + info for name in names]
    end = b"\xfe\x00\x00\x02\x00"
    packets = [bytes([len(names)]), *columns, end, *(b"".join(map(text, row)) for row in rows), end]
    return b"".join(packet(n, each) for n, each in enumerate(packets, start=1))


def text(data: bytes) -> bytes:
    return bytes([len(data)]) + data


READ_ONLY_QUERY = b"SELECT @@global.read_only"
WRITABLE = result([b"read_only", b"innodb_read_only"], [b"0", b"0"])
NO_STATUS = result([b"Variable_name", b"Value"])


def request_for_tls(peer: Peer) -> bytes:
    """Reads no byte of the TLS handshake that follows."""
    return peer.sock.recv(36, socket.MSG_WAITALL)


def send_then_hang(data: bytes) -> Callable[[Peer], None]:
    return lambda peer: peer.send(data)


@dataclass
class RogueServer:
    """Accepts any login and records all that it receives."""

    answers: Sequence[bytes] = (WRITABLE, NO_STATUS)  # to its queries
    switch: bytes = b""  # its request for another authentication plugin
    tls: ssl.SSLContext | None = None
    received: bytes = b""

    def __call__(self, peer: Peer) -> None:
        peer.send(greeting(CAPABILITIES | (SSL if self.tls else 0)))
        if self.tls is None:
            self._serve(peer)
            return
        request_for_tls(peer)
        with self.tls.wrap_socket(peer.sock, server_side=True) as sock:
            self._serve(Peer(sock))

    def _serve(self, peer: Peer) -> None:
        number = self._receive(peer) + 1
        if self.switch:
            peer.send(packet(number, self.switch))
            number = self._receive(peer) + 1
        peer.send(packet(number, OK))
        for answer in self.answers:
            self._receive(peer)
            peer.send(answer)
        self.received += peer.read_to_end()

    def _receive(self, peer: Peer) -> int:
        """One packet, and its number."""
        head = peer.read_exactly(4)
        self.received += peer.read_exactly(int.from_bytes(head[:3], "little"))
        return head[3]


def test_the_scripted_server_is_ready_without_its_attacks(check: CheckRunner) -> None:
    server = RogueServer()
    with Backend(server) as backend:
        assert check(f"mysql://me:{PASSWORD}@{backend.address}") == READY
    assert READ_ONLY_QUERY in server.received
    assert server.received.endswith(b"\x01\x00\x00\x00\x01")  # COM_QUIT


def test_a_server_that_requests_a_local_file_does_not_get_it(check: CheckRunner, tmp_path: Path) -> None:
    wanted = tmp_path / "wanted"
    wanted.write_bytes(b"the content of the file")
    server = RogueServer(answers=[packet(1, b"\xfb" + bytes(wanted))])
    with Backend(server) as backend:
        verdict = check(f"mysql://me:{PASSWORD}@{backend.address}")
    assert verdict.outcome is Outcome.FAILED
    assert READ_ONLY_QUERY in server.received
    assert not server.received[0] & LOCAL_FILES  # the login does not offer local files
    assert b"the content" not in server.received


@pytest.mark.parametrize(
    "switch",
    [b"\xfemysql_clear_password\0", b"\xfedialog\0\x04Password: "],
    ids=["clear", "dialog"],
)
def test_a_server_that_requests_a_plain_text_password_without_tls_does_not_get_it(
    check: CheckRunner, switch: bytes
) -> None:
    server = RogueServer(switch=switch)
    with Backend(server) as backend:
        assert check(f"mysql://me:{PASSWORD}@{backend.address}") == failed(ReasonCode.TLS_REQUIRED)
    assert b"me" in server.received
    assert PASSWORD.encode() not in server.received


@pytest.mark.parametrize("is_encrypted", [True, False])
@pytest.mark.parametrize("switch", [b"\xfe", b"\xfemysql_old_password\0saltsalt\0"], ids=["legacy", "plugin"])
def test_a_server_that_requests_the_authentication_of_old_versions_is_failed(
    check: CheckRunner, certificate: Certificate, switch: bytes, is_encrypted: bool
) -> None:
    server = RogueServer(switch=switch, tls=server_tls(certificate) if is_encrypted else None)
    options = {"tls": True, "ca": str(certificate.certificate)} if is_encrypted else {}
    with Backend(server) as backend:
        assert check(f"mysql://me:{PASSWORD}@{backend.address}", **options) == failed(ReasonCode.AUTH_FAILED)
    assert PASSWORD.encode() not in server.received


def test_a_trusted_server_gets_a_plain_text_password_over_tls(check: CheckRunner, certificate: Certificate) -> None:
    server = RogueServer(switch=b"\xfemysql_clear_password\0", tls=server_tls(certificate))
    with Backend(server) as backend:
        url = f"mysql://me:{PASSWORD}@{backend.address}"
        assert check(url, tls=True, ca=str(certificate.certificate)) == READY
    assert PASSWORD.encode() + b"\0" in server.received


def test_bytes_before_the_tls_handshake_are_ignored(check: CheckRunner, certificate: Certificate) -> None:
    """An attacker on the network could insert them."""

    def script(peer: Peer) -> None:
        forged = [packet(3, OK), WRITABLE, NO_STATUS]
        peer.send(b"".join([greeting(CAPABILITIES | SSL), *forged]))
        request_for_tls(peer)
        with server_tls(certificate).wrap_socket(peer.sock, server_side=True) as sock:
            sock.recv(65536)

    with Backend(script) as backend:
        verdict = check(f"mysql://me:{PASSWORD}@{backend.address}", tls=True, ca=str(certificate.certificate))
    assert verdict.outcome is Outcome.FAILED


def test_a_query_without_a_result_is_failed(check: CheckRunner) -> None:
    with Backend(RogueServer(answers=[packet(1, OK)])) as backend:
        assert check(f"mysql://me@{backend.address}") == UNEXPECTED_RESPONSE


def error(number: int, text: bytes = b"the text of the server") -> bytes:
    return b"\xff" + struct.pack("<H", number) + b"#08004" + text


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (1040, ReasonCode.TOO_MANY_CONNECTIONS),
        (1053, ReasonCode.SHUTTING_DOWN),
        (1129, ReasonCode.CLIENT_BLOCKED),
        (1130, ReasonCode.CLIENT_NOT_ALLOWED),
        (1203, ReasonCode.TOO_MANY_CONNECTIONS),
        (3032, ReasonCode.CONNECTIONS_DISABLED),
        (3118, ReasonCode.USER_DISABLED),
        (3159, ReasonCode.TLS_REQUIRED),
        (1105, ReasonCode.SERVER_ERROR),
    ],
)
def test_an_error_has_the_code_of_its_number(check: CheckRunner, number: int, code: ReasonCode) -> None:
    with Backend(sending(packet(0, error(number)))) as backend:
        assert check(f"mysql://me:{PASSWORD}@{backend.address}") == failed(code)


# ---- not a MySQL


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (reset, CONNECTION_CLOSED),
        (close, CONNECTION_CLOSED),
        (sending(b"HTTP/1.1 400 Bad Request\r\n\r\n"), PROTOCOL_ERROR),
        (sending(greeting(CAPABILITIES)), CONNECTION_CLOSED),
        (sending(packet(0, error(1040, b"\x1b[31mred"))), failed(ReasonCode.TOO_MANY_CONNECTIONS)),
    ],
    ids=["reset", "close", "http", "greeting only", "terminal"],
)
def test_another_server_is_failed(
    check: CheckRunner, script: Callable[[Peer], None], expected: ExpectedVerdict
) -> None:
    with Backend(script) as backend:
        verdict = check.leaks_nothing(f"mysql://me:{PASSWORD}@{backend.address}")
    assert verdict == expected
    assert verdict.reason.isprintable()


def test_an_unresponsive_port_is_failed_at_the_deadline(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert check.times_out(f"mysql://me:{PASSWORD}@{backend.address}", "log in") == TIMEOUT


JUNK = st.binary(max_size=100)
NO_MYSQL = st.one_of(
    JUNK,
    JUNK.map(lambda junk: packet(0, junk)),
    JUNK.map(lambda junk: packet(0, b"\x0a" + junk)),
    JUNK.map(lambda junk: greeting(CAPABILITIES) + packet(2, junk)),
    st.lists(st.tuples(st.integers(1, 5), JUNK)).map(
        lambda many: greeting(CAPABILITIES) + packet(2, OK) + b"".join(packet(n, junk) for n, junk in many)
    ),
)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(junk=packet(0, b""))
@example(junk=greeting(CAPABILITIES, b"caching_sha2_password") + packet(2, b"\x01\x04"))
@example(junk=greeting(0))
@given(junk=NO_MYSQL)
def test_random_bytes_are_failed(check: CheckRunner, junk: bytes) -> None:
    with Backend(sending(junk)) as backend:
        assert check(f"mysql://me:{PASSWORD}@{backend.address}").outcome is Outcome.FAILED


# ---- around the deadline


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_a_check_that_is_cancelled_at_any_point_leaves_nothing(
    check: CheckRunner, server: MariaDbServer, encrypted: MariaDbServer, certificate: Certificate, is_encrypted: bool
) -> None:
    target = encrypted if is_encrypted else server
    options = {"tls": True, "ca": str(certificate.certificate)} if is_encrypted else {}
    assert_no_leaks_when_cancelled(check, target.url, **options)
    assert becomes_true(lambda: not clients(target))


# ---- faults of this machine


def test_running_out_of_file_descriptors_is_unknown(check: CheckRunner, server: MariaDbServer) -> None:
    assert check.without_descriptors(server.url) == (NO_DESCRIPTORS, READY)


def test_a_missing_authority_file_is_unknown(
    check: CheckRunner, encrypted: MariaDbServer, certificate: Certificate, tmp_path: Path
) -> None:
    assert_missing_ca_is_unknown(check, encrypted.url, tmp_path / "ca.pem", certificate, tls=True)


# ---- rejected options


def test_a_query_in_the_url_is_rejected() -> None:
    with pytest.raises(ProbeError, match="query"):
        make_probe("mysql://me@127.0.0.1/ledger?tls=true")


def test_a_url_without_a_user_is_rejected() -> None:
    with pytest.raises(OptionError) as caught:
        make_probe("mysql://127.0.0.1/ledger")
    assert caught.value.option == "username"


def test_a_tls_option_without_tls_is_rejected() -> None:
    with pytest.raises(OptionError) as caught:
        make_probe({"url": "mysql://me@127.0.0.1", "min_cert_days": 3})
    assert caught.value.option == "min_cert_days"
