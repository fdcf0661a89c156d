"""mysql:// against a real MariaDB in many states and against scripted servers."""

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

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError, ProbeError
from svcnode.core.model import Outcome
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

    from tests.integration.probes.conftest import CheckRunner, FakeResolver

AUTH_FAILED = failed(ReasonCode.AUTH_FAILED)
PERMISSION_DENIED = failed(ReasonCode.PERMISSION_DENIED)
READ_ONLY = not_ready(ReasonCode.READ_ONLY)
STOPPED = not_ready(ReasonCode.REPLICATION_STOPPED)
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
        assert check(server.url) == READY
        assert check(server.url, role="primary") == READ_ONLY
    finally:
        server.set_read_only(False)


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
    with replica_locked(replica, "ledger.late"):
        server.sql("INSERT INTO ledger.late VALUES (1)")
        wait_until(lambda: check(replica.url, max_lag="500ms") == not_ready(ReasonCode.LAGGING), "behind")
        assert check(replica.url, role="replica", max_lag="1h") == READY
    catch_up(replica)
    assert check(replica.url, max_lag="500ms") == READY


@contextmanager
def replica_locked(server: MariaDbServer, table: str) -> Iterator[None]:
    def hold() -> None:
        with suppress(ToolError):  # the connection is killed
            server.sql(f"LOCK TABLES {table} WRITE; DO SLEEP(60)")

    holder = threading.Thread(target=hold)
    holder.start()
    find = "SELECT id FROM information_schema.processlist WHERE state = 'User sleep'"
    try:
        wait_until(lambda: server.sql(find) != "", "locked")
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
        wait_until(lambda: not replica.is_following(), "disconnected")
        assert check(replica.url, role="replica") == STOPPED
    finally:
        server.start()
        server.wait_until_ready()
        wait_until(replica.is_following, "following again")


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


def packet(number: int, payload: bytes) -> bytes:
    return struct.pack("<I", len(payload))[:3] + bytes([number]) + payload


def greeting(capabilities: int, plugin: bytes = b"mysql_native_password") -> bytes:
    low, high = capabilities & 0xFFFF, capabilities >> 16
    head = b"\x0a8.0.30\0" + struct.pack("<I", 7) + b"saltsalt\0" + struct.pack("<HBHHB", low, 45, 2, high, 21)
    return packet(0, head + bytes(10) + b"saltsaltsalt\0" + plugin + b"\0")


def row_of_one() -> bytes:
    """The response to SELECT 1."""
    column = b"\x03def\0\0\0\x011\0\x0c" + struct.pack("<HIBHBxx", 63, 1, 8, 1, 0)
    end = b"\xfe\x00\x00\x02\x00"
    return b"".join(packet(n, each) for n, each in enumerate([b"\x01", column, end, b"\x011", end], start=1))


def request_for_tls(peer: Peer) -> bytes:
    """Reads no byte of the TLS handshake that follows."""
    return peer.sock.recv(36, socket.MSG_WAITALL)


def send_then_hang(data: bytes) -> Callable[[Peer], None]:
    return lambda peer: peer.send(data)


@dataclass
class RogueServer:
    """Accepts any login and records all that it receives."""

    answer: bytes = field(default_factory=row_of_one)
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


def test_the_scripted_server_is_ready_without_its_attacks(check: CheckRunner) -> None:
    server = RogueServer()
    with Backend(server) as backend:
        assert check(f"mysql://me:{PASSWORD}@{backend.address}") == READY
    assert b"SELECT 1" in server.received
    assert server.received.endswith(b"\x01\x00\x00\x00\x01")  # COM_QUIT


def test_a_server_that_requests_a_local_file_does_not_get_it(check: CheckRunner, tmp_path: Path) -> None:
    wanted = tmp_path / "wanted"
    wanted.write_bytes(b"the content of the file")
    server = RogueServer(answer=packet(1, b"\xfb" + bytes(wanted)))
    with Backend(server) as backend:
        verdict = check(f"mysql://me:{PASSWORD}@{backend.address}")
    assert verdict.outcome is Outcome.FAILED
    assert b"SELECT 1" in server.received
    assert not server.received[0] & LOCAL_FILES  # the login does not offer local files
    assert b"the content" not in server.received


@pytest.mark.parametrize(
    "switch",
    [b"\xfemysql_clear_password\0", b"\xfedialog\0\x04Password: ", b"\xfemysql_old_password\0saltsalt\0"],
    ids=["clear", "dialog", "old"],
)
def test_a_server_that_requests_a_plain_text_password_without_tls_does_not_get_it(
    check: CheckRunner, switch: bytes
) -> None:
    server = RogueServer(switch=switch)
    with Backend(server) as backend:
        assert check(f"mysql://me:{PASSWORD}@{backend.address}") == failed(ReasonCode.TLS_REQUIRED)
    assert b"me" in server.received
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
        forged = [packet(3, OK), packet(1, OK), row_of_one()]
        peer.send(b"".join([greeting(CAPABILITIES | SSL), *forged]))
        request_for_tls(peer)
        with server_tls(certificate).wrap_socket(peer.sock, server_side=True) as sock:
            sock.recv(65536)

    with Backend(script) as backend:
        verdict = check(f"mysql://me:{PASSWORD}@{backend.address}", tls=True, ca=str(certificate.certificate))
    assert verdict.outcome is Outcome.FAILED


def test_a_query_without_a_result_is_failed(check: CheckRunner) -> None:
    with Backend(RogueServer(answer=packet(1, OK))) as backend:
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
