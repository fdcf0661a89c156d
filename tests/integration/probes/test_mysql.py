"""mysql:// against a real MariaDB: as it should be, hurt in every way it can be, and what only pretends to be one."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Outcome, Verdict
from svcnode.probes import make_probe
from tests.support.backends import Backend, Peer, close, closed_port, reset, sending, server_tls, unresponsive
from tests.support.certificates import Certificate, make_certificate
from tests.support.http_server import becomes_true
from tests.support.probe_assertions import (
    assert_missing_ca_is_unknown,
    assert_no_leaks_when_cancelled,
    assert_reconnects_after_timeout,
)
from tests.support.servers.base import ToolError, wait_until
from tests.support.servers.mariadb import (
    PASSWORD,
    REPLICATION_PASSWORD,
    REPLICATION_USER,
    USER,
    MariaDbReplica,
    MariaDbServer,
)
from tests.support.verdicts import NO_DESCRIPTORS

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tests.integration.probes.conftest import CheckRunner, FakeResolver

READY = Verdict.ready()
OPENING = ["connect", "log in", "exchange"]
OPENING_UNDER_TLS = ["connect", "handshake", "log in", "exchange"]


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
def test_a_name_is_resolved_by_us_and_one_of_its_addresses_is_enough(
    check: CheckRunner, server: MariaDbServer, resolver: FakeResolver, addresses: list[str]
) -> None:
    resolver.addresses["db.example"] = addresses
    assert check(server.url.replace("127.0.0.1", "db.example")) == READY
    assert resolver.queries == ["db.example"]


def test_checks_that_are_answered_leave_no_trace_on_the_server(
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


# ---- refusals


def test_a_wrong_password_is_failed_and_not_shown(check: CheckRunner, server: MariaDbServer) -> None:
    assert check(server.bad_credentials_url) == Verdict.failed(
        f"Access denied for user 'svcnode'@'127.0.0.1' (using password: YES) (1045): {shown(server)}"
    )


def test_an_unknown_user_is_failed(check: CheckRunner, server: MariaDbServer) -> None:
    place = f"127.0.0.1:{server.port}"
    assert check(f"mysql://nobody:{PASSWORD}@{place}") == Verdict.failed(
        f"Access denied for user 'nobody'@'127.0.0.1' (using password: YES) (1045): mysql://nobody:***@{place}"
    )


def test_an_unknown_database_is_failed(check: CheckRunner, server: MariaDbServer) -> None:
    server.sql("CREATE OR REPLACE USER sees_all IDENTIFIED BY 'sees-all-password'; GRANT SELECT ON *.* TO sees_all")
    place = f"127.0.0.1:{server.port}"
    assert check(f"mysql://sees_all:sees-all-password@{place}/gone") == Verdict.failed(
        f"Unknown database 'gone' (1049): mysql://sees_all:***@{place}/gone"
    )
    assert check(server.url.replace("/ledger", "/mysql")) == Verdict.failed(
        f"Access denied for user 'svcnode'@'%' to database 'mysql' (1044): {shown(server).replace('ledger', 'mysql')}"
    )


def test_a_server_without_connections_left_is_failed(check: CheckRunner, server: MariaDbServer) -> None:
    with server.exhaust():
        assert check(server.url) == Verdict.failed(f"Too many connections (1040): {shown(server)}")


def test_a_server_that_does_not_run_is_failed(check: CheckRunner) -> None:
    with closed_port() as port:
        assert check(f"mysql://me:{PASSWORD}@127.0.0.1:{port}") == Verdict.failed(
            f"connection refused: mysql://me:***@127.0.0.1:{port}"
        )


def test_a_server_that_hangs_is_failed_at_the_deadline_and_nothing_is_left(
    check: CheckRunner, server: MariaDbServer
) -> None:
    server.freeze()
    try:
        assert check.times_out(server.url) == Verdict.failed("no answer within 0.2 s, in its step log in")
    finally:
        server.thaw()


# ---- roles


def test_the_role_that_it_should_have_is_ready(
    check: CheckRunner, server: MariaDbServer, replica: MariaDbReplica
) -> None:
    assert check(server.url, role="primary") == READY
    assert check(server.url, max_lag="1s") == READY  # of a server that is no replica nothing is asked
    assert check(replica.url, role="replica", max_lag="5s") == READY
    assert check(replica.url, max_lag="5s") == READY


def test_another_role_than_it_should_have_is_not_ready(
    check: CheckRunner, server: MariaDbServer, replica: MariaDbReplica
) -> None:
    assert check(server.url, role="replica") == Verdict.not_ready(f"no replica: {shown(server)}")
    read_only = f"read-only, so it is not the primary: {shown(replica)}"
    assert check(replica.url, role="primary") == Verdict.not_ready(read_only)


def test_a_primary_that_was_made_read_only_is_none(check: CheckRunner, server: MariaDbServer) -> None:
    server.set_read_only(True)
    try:
        assert check(server.url) == READY
        assert check(server.url, role="primary") == Verdict.not_ready(
            f"read-only, so it is not the primary: {shown(server)}"
        )
    finally:
        server.set_read_only(False)


@pytest.mark.parametrize("what", ["SLAVE", "SLAVE IO_THREAD", "SLAVE SQL_THREAD"])
def test_a_replica_whose_replication_was_stopped_is_not_ready(
    check: CheckRunner, replica: MariaDbReplica, what: str
) -> None:
    stopped = Verdict.not_ready(f"a replica whose replication does not run: {shown(replica)}")
    replica.sql(f"STOP {what}")
    try:
        assert check(replica.url, role="replica") == stopped
        assert check(replica.url, max_lag="1h") == stopped
        assert check(replica.url) == READY  # nobody asked
    finally:
        replica.sql("START SLAVE")
        wait_until(replica.is_following, "following again")


def test_a_replica_that_is_too_far_behind_is_not_ready(
    check: CheckRunner, server: MariaDbServer, replica: MariaDbReplica
) -> None:
    server.sql("CREATE TABLE IF NOT EXISTS ledger.late (x INT)")
    catch_up(replica)
    with replica_locked(replica, "ledger.late"):
        server.sql("INSERT INTO ledger.late VALUES (1)")
        behind = "a replica 1 s behind, max_lag is 0.5 s"
        wait_until(
            lambda: check(replica.url, max_lag="500ms") == Verdict.not_ready(f"{behind}: {shown(replica)}"), behind, 10
        )
        assert check(replica.url, role="replica", max_lag="1h") == READY
    catch_up(replica)
    assert check(replica.url, max_lag="500ms") == READY


@contextmanager
def replica_locked(server: MariaDbServer, table: str) -> Iterator[None]:
    def hold() -> None:
        with suppress(ToolError):  # it is killed
            server.sql(f"LOCK TABLES {table} WRITE; DO SLEEP(60)")

    holder = threading.Thread(target=hold)
    holder.start()
    find = "SELECT id FROM information_schema.processlist WHERE state = 'User sleep'"
    try:
        wait_until(lambda: server.sql(find) != "", "it holds the lock")
        yield
    finally:
        server.sql(f"KILL {server.sql(find)}")
        holder.join()


def catch_up(replica: MariaDbReplica) -> None:
    written = replica.primary.sql("SELECT @@gtid_binlog_pos")
    assert replica.sql(f"SELECT MASTER_GTID_WAIT('{written}', 30)") == "0"


def test_a_replica_without_its_primary_is_not_ready(
    check: CheckRunner, server: MariaDbServer, replica: MariaDbReplica
) -> None:
    server.kill()
    try:
        wait_until(lambda: not replica.is_following(), "it has noticed")
        assert check(replica.url, role="replica") == Verdict.not_ready(
            f"a replica whose replication does not run: {shown(replica)}"
        )
    finally:
        server.start()
        server.wait_until_ready()
        wait_until(replica.is_following, "following again")


# ---- a replica of two


class OtherPrimary(MariaDbServer):
    def command(self) -> Sequence[str]:
        return [*super().command(), "--gtid-domain-id=7"]  # or a replica would take its transactions for the other's


@pytest.fixture(scope="module")
def multi_source_replica(server: MariaDbServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDbReplica]:
    """It follows one without a name for it, and another one that it calls east."""
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


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("SLAVE 'east'", 'a replica whose replication from "east" does not run'),
        ("SLAVE", "a replica whose replication does not run"),
    ],
)
def test_a_replica_of_two_is_not_ready_when_its_replication_from_one_of_them_was_stopped(
    check: CheckRunner, multi_source_replica: MariaDbReplica, what: str, words: str
) -> None:
    wait_until(lambda: follows_both(check, multi_source_replica), "following both")
    stopped = Verdict.not_ready(f"{words}: {shown(multi_source_replica)}")
    multi_source_replica.sql(f"STOP {what}")
    try:
        assert check(multi_source_replica.url, role="replica") == stopped
        assert check(multi_source_replica.url, max_lag="1h") == stopped
        assert check(multi_source_replica.url) == READY  # nobody asked
    finally:
        multi_source_replica.sql(f"START {what}")
        wait_until(lambda: follows_both(check, multi_source_replica), "following both again")


def test_a_replica_that_has_a_name_for_its_only_source_is_one(
    check: CheckRunner, multi_source_replica: MariaDbReplica
) -> None:
    wait_until(lambda: follows_both(check, multi_source_replica), "following both")
    multi_source_replica.sql("STOP SLAVE; RESET SLAVE ALL")
    assert check(multi_source_replica.url, role="replica", max_lag="5s") == READY
    multi_source_replica.sql("STOP SLAVE 'east'")
    try:
        stopped = f'a replica whose replication from "east" does not run: {shown(multi_source_replica)}'
        assert check(multi_source_replica.url, max_lag="1h") == Verdict.not_ready(stopped)
    finally:
        multi_source_replica.sql("START SLAVE 'east'")
        multi_source_replica.set_up()
        wait_until(lambda: follows_both(check, multi_source_replica), "following both again")


def test_a_missing_privilege_is_failed_and_named(check: CheckRunner, server: MariaDbServer) -> None:
    server.sql("CREATE OR REPLACE USER poor IDENTIFIED BY 'poor-password'")
    place = f"127.0.0.1:{server.port}"
    url = f"mysql://poor:poor-password@{place}"
    refused = Verdict.failed(
        "Access denied; you need (at least one of) the SUPER, SLAVE MONITOR privilege(s) for this operation (1227): "
        f"mysql://poor:***@{place}"
    )
    assert check(url) == check(url, role="primary") == READY
    assert check(url, role="replica") == check(url, max_lag="1s") == refused


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
    unknown = Verdict.failed(f"its certificate is not valid: self-signed certificate: {shown(encrypted)}")
    assert check(encrypted.url, tls=True) == unknown
    assert check(encrypted.url, tls=True, ca=str(other.certificate)) == unknown
    wrong_name = check(encrypted.url, tls=True, ca=str(certificate.certificate), server_name="other.example")
    assert wrong_name == Verdict.failed(
        "its certificate is not valid: Hostname mismatch, certificate is not valid for 'other.example'.: "
        f"{shown(encrypted)}"
    )


def test_a_wrong_password_is_failed_under_tls_too(
    check: CheckRunner, encrypted: MariaDbServer, certificate: Certificate
) -> None:
    assert check(encrypted.bad_credentials_url, tls=True, ca=str(certificate.certificate)) == Verdict.failed(
        f"Access denied for user 'svcnode'@'127.0.0.1' (using password: YES) (1045): {shown(encrypted)}"
    )


def test_a_certificate_that_ends_soon_is_not_ready(
    check: CheckRunner, encrypted: MariaDbServer, certificate: Certificate
) -> None:
    verdict = check(encrypted.url, tls=True, ca=str(certificate.certificate), min_cert_days=1)
    assert verdict == Verdict.not_ready("its certificate expires in 0.0 days, before min_cert_days is reached")


def test_a_server_without_tls_is_failed_where_tls_is_asked_for(check: CheckRunner, server: MariaDbServer) -> None:
    assert check.leaks_nothing(server.url, tls=True) == Verdict.failed(f"it does not speak TLS (2026): {shown(server)}")


def test_a_server_that_wants_tls_is_failed_without_it(check: CheckRunner, encrypted: MariaDbServer) -> None:
    verdict = check(encrypted.url)
    assert verdict.outcome is Outcome.FAILED
    assert PASSWORD not in verdict.reason


def test_a_server_that_hangs_in_its_handshake_leaves_nothing(check: CheckRunner) -> None:
    with Backend(send_then_hang(greeting(CAPABILITIES | SSL))) as backend:
        verdict = check.times_out(f"mysql://me:{PASSWORD}@{backend.address}", tls=True)
    assert verdict == Verdict.failed("no answer within 0.2 s, in its step handshake")


# ---- reuse


def test_a_connection_that_is_reused_is_the_same_one_and_is_closed_at_the_end(
    check: CheckRunner, server: MariaDbServer
) -> None:
    assert becomes_true(lambda: not clients(server))
    seen: list[list[str]] = []
    looks = check.sequence(server.url, *[lambda: seen.append(clients(server))] * 3, reuse=True)
    assert looks == [(READY, OPENING), *[(READY, ["reuse", "exchange"])] * 3]
    assert len(seen[0]) == 1
    assert seen == [seen[0]] * 3
    assert becomes_true(lambda: not clients(server))


def test_a_server_that_was_restarted_meanwhile_gets_a_fresh_connection(
    check: CheckRunner, encrypted: MariaDbServer, certificate: Certificate
) -> None:
    looks = check.sequence(encrypted.url, encrypted.restart, tls=True, ca=str(certificate.certificate), reuse=True)
    assert looks == [(READY, OPENING_UNDER_TLS), (READY, ["reuse", "exchange", *OPENING_UNDER_TLS])]


def test_a_server_that_hangs_meanwhile_is_failed_and_its_connection_not_kept(
    check: CheckRunner, server: MariaDbServer
) -> None:
    assert_reconnects_after_timeout(check, server, OPENING)
    assert becomes_true(lambda: not clients(server))


def test_a_connection_is_not_kept_when_the_check_was_not_ready(check: CheckRunner, server: MariaDbServer) -> None:
    gone: list[bool] = []
    looks = check.sequence(
        server.url, lambda: gone.append(becomes_true(lambda: not clients(server))), reuse=True, role="replica"
    )
    assert [verdict.outcome for verdict, _ in looks] == [Outcome.NOT_READY] * 2
    assert [steps for _, steps in looks] == [OPENING] * 2
    assert gone == [True]


# ---- servers that are after something, in as much of the protocol as it takes

LOCAL_FILES, SSL, PLUGIN_AUTH = 1 << 7, 1 << 11, 1 << 19
CAPABILITIES = 0x200 | 0x8000 | PLUGIN_AUTH  # that of 4.1, secure passwords
OK = b"\x00\x00\x00\x02\x00\x00\x00"


def packet(number: int, payload: bytes) -> bytes:
    return struct.pack("<I", len(payload))[:3] + bytes([number]) + payload


def greeting(capabilities: int, plugin: bytes = b"mysql_native_password") -> bytes:
    low, high = capabilities & 0xFFFF, capabilities >> 16
    head = b"\x0a8.0.30\0" + struct.pack("<I", 7) + b"saltsalt\0" + struct.pack("<HBHHB", low, 45, 2, high, 21)
    return packet(0, head + bytes(10) + b"saltsaltsalt\0" + plugin + b"\0")


def row_of_one() -> bytes:
    """What a server answers to SELECT 1."""
    column = b"\x03def\0\0\0\x011\0\x0c" + struct.pack("<HIBHBxx", 63, 1, 8, 1, 0)
    end = b"\xfe\x00\x00\x02\x00"
    return b"".join(packet(n, each) for n, each in enumerate([b"\x01", column, end, b"\x011", end], start=1))


def request_for_tls(peer: Peer) -> bytes:
    """No byte more: what follows it is for TLS."""
    return peer.sock.recv(36, socket.MSG_WAITALL)


def send_then_hang(data: bytes) -> Callable[[Peer], None]:
    return lambda peer: peer.send(data)


@dataclass
class RogueServer:
    """Takes anybody in, and answers a query as it was told. All that it hears it keeps."""

    answer: bytes = field(default_factory=row_of_one)
    switch: bytes = b""  # what it asks for when it was sent the name and the password
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
        self._receive(peer)
        peer.send(packet(1, OK))  # to the ping
        self._receive(peer)
        peer.send(self.answer)
        self.received += peer.read_to_end()

    def _receive(self, peer: Peer) -> int:
        """One packet, and its number."""
        head = peer.read_exactly(4)
        self.received += peer.read_exactly(int.from_bytes(head[:3], "little"))
        return head[3]


def test_a_server_that_speaks_as_it_should_is_taken_for_one(check: CheckRunner) -> None:
    """The rogues below differ from it in one thing each."""
    rogue = RogueServer()
    with Backend(rogue) as backend:
        assert check(f"mysql://me:{PASSWORD}@{backend.address}") == READY
    assert b"SELECT 1" in rogue.received
    assert rogue.received.endswith(b"\x01\x00\x00\x00\x01")  # its goodbye


def test_a_server_cannot_have_a_local_file_by_asking_for_it(check: CheckRunner, tmp_path: Path) -> None:
    wanted = tmp_path / "wanted"
    wanted.write_bytes(b"the content of the file")
    rogue = RogueServer(answer=packet(1, b"\xfb" + bytes(wanted)))
    with Backend(rogue) as backend:
        verdict = check(f"mysql://me:{PASSWORD}@{backend.address}")
    assert verdict.outcome is Outcome.FAILED
    assert b"SELECT 1" in rogue.received
    assert not rogue.received[0] & LOCAL_FILES  # it was told at the login that there is nothing to be had
    assert b"the content" not in rogue.received


@pytest.mark.parametrize(
    "switch",
    [b"\xfemysql_clear_password\0", b"\xfedialog\0\x04Password: ", b"\xfemysql_old_password\0saltsalt\0"],
    ids=["clear", "dialog", "old"],
)
def test_a_server_cannot_have_the_password_in_clear_without_tls(check: CheckRunner, switch: bytes) -> None:
    rogue = RogueServer(switch=switch)
    with Backend(rogue) as backend:
        assert check(f"mysql://me:{PASSWORD}@{backend.address}") == Verdict.failed(
            "it asks for the password in clear, which it gets only under TLS; set tls = true (2059): "
            f"mysql://me:***@{backend.address}"
        )
    assert b"me" in rogue.received
    assert PASSWORD.encode() not in rogue.received


def test_a_server_that_is_trusted_gets_the_password_in_clear_under_tls(
    check: CheckRunner, certificate: Certificate
) -> None:
    rogue = RogueServer(switch=b"\xfemysql_clear_password\0", tls=server_tls(certificate))
    with Backend(rogue) as backend:
        url = f"mysql://me:{PASSWORD}@{backend.address}"
        assert check(url, tls=True, ca=str(certificate.certificate)) == READY
    assert PASSWORD.encode() + b"\0" in rogue.received


def test_what_is_said_before_tls_does_not_count(check: CheckRunner, certificate: Certificate) -> None:
    """As by somebody between, who cannot speak as the server but can put words before its own."""

    def script(peer: Peer) -> None:
        forged = [packet(3, OK), packet(1, OK), row_of_one()]
        peer.send(b"".join([greeting(CAPABILITIES | SSL), *forged]))
        request_for_tls(peer)
        with server_tls(certificate).wrap_socket(peer.sock, server_side=True) as sock:
            sock.recv(65536)

    with Backend(script) as backend:
        verdict = check(f"mysql://me:{PASSWORD}@{backend.address}", tls=True, ca=str(certificate.certificate))
    assert verdict.outcome is Outcome.FAILED


def test_a_query_that_is_answered_with_nothing_is_failed(check: CheckRunner) -> None:
    with Backend(RogueServer(answer=packet(1, OK))) as backend:
        assert check(f"mysql://me@{backend.address}") == Verdict.failed(
            f"it answered SELECT 1 with nothing: mysql://me@{backend.address}"
        )


# ---- what is no MySQL


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (reset, "connection reset by peer"),
        (close, "it closed the connection before it had answered"),
        (sending(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "what came back is not MySQL"),
        (sending(greeting(CAPABILITIES)), "it closed the connection before it had answered"),
        (sending(packet(0, b"\xff\x10\x04#08004\x1b[31mred")), "[31mred (1040)"),
    ],
    ids=["reset", "close", "http", "greeting only", "terminal"],
)
def test_what_is_no_mysql_is_failed(check: CheckRunner, script: Callable[[Peer], None], words: str) -> None:
    with Backend(script) as backend:
        assert check.leaks_nothing(f"mysql://me:{PASSWORD}@{backend.address}") == Verdict.failed(
            f"{words}: mysql://me:***@{backend.address}"
        )


def test_a_mute_port_is_failed_at_the_deadline_and_nothing_is_left(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        verdict = check.times_out(f"mysql://me:{PASSWORD}@{backend.address}")
    assert verdict == Verdict.failed("no answer within 0.2 s, in its step log in")


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
def test_whatever_answers_that_is_no_mysql_is_failed(check: CheckRunner, junk: bytes) -> None:
    with Backend(sending(junk)) as backend:
        assert check(f"mysql://me:{PASSWORD}@{backend.address}").outcome is Outcome.FAILED


# ---- around the deadline


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_checks_that_are_cut_off_anywhere_leave_nothing_on_either_side(
    check: CheckRunner, server: MariaDbServer, encrypted: MariaDbServer, certificate: Certificate, is_encrypted: bool
) -> None:
    target = encrypted if is_encrypted else server
    options = {"tls": True, "ca": str(certificate.certificate)} if is_encrypted else {}
    assert_no_leaks_when_cancelled(check, target.url, **options)
    assert becomes_true(lambda: not clients(target))


# ---- our own faults


def test_running_out_of_file_descriptors_is_our_own_fault(check: CheckRunner, server: MariaDbServer) -> None:
    without, afterwards = check.without_descriptors(server.url)
    assert without == NO_DESCRIPTORS
    assert afterwards == READY


def test_an_authority_that_is_gone_is_our_own_fault(
    check: CheckRunner, encrypted: MariaDbServer, certificate: Certificate, tmp_path: Path
) -> None:
    assert_missing_ca_is_unknown(check, encrypted.url, tmp_path / "ca.pem", certificate, tls=True)


# ---- what is refused at once


def test_a_query_in_the_url_is_refused() -> None:
    with pytest.raises(ProbeError, match=r"^options stand beside the URL, not in its query$"):
        make_probe("mysql://me@127.0.0.1/ledger?tls=true")


def test_a_user_is_needed() -> None:
    with pytest.raises(OptionError, match=r"^username: is missing; write mysql://user:password@host/database$"):
        make_probe("mysql://127.0.0.1/ledger")


def test_options_of_tls_are_refused_without_it() -> None:
    with pytest.raises(OptionError, match=r"^min_cert_days: has no meaning without TLS; set tls = true$"):
        make_probe({"url": "mysql://me@127.0.0.1", "min_cert_days": 3})
