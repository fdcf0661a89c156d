"""mysql:// against a real MariaDB in many states and against scripted servers."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome
from svcnode.probes import make_probe
from tests.support.backends import Backend, Peer, sending, server_tls
from tests.support.http_server import becomes_true
from tests.support.probe_assertions import assert_reused
from tests.support.servers.base import module_server, wait_until
from tests.support.servers.mariadb import PASSWORD, USER, MariaDbReplica, MariaDbServer
from tests.support.verdicts import READY, UNEXPECTED_RESPONSE, ExpectedVerdict, failed, not_ready

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence
    from pathlib import Path

    from svcnode.core.model import Verdict
    from tests.support.certificates import Certificate
    from tests.support.check_runner import CheckRunner

AUTH_FAILED = failed(ReasonCode.AUTH_FAILED)
PERMISSION_DENIED = failed(ReasonCode.PERMISSION_DENIED)
NO_QUORUM = not_ready(ReasonCode.NO_QUORUM)
READ_ONLY = not_ready(ReasonCode.READ_ONLY)
LAGGING = not_ready(ReasonCode.LAGGING)
UPSTREAM_OFFLINE = not_ready(ReasonCode.UPSTREAM_OFFLINE)
STORAGE_FULL = not_ready(ReasonCode.STORAGE_FULL)
SYNCING = not_ready(ReasonCode.SYNCING)
WRONG_ROLE = not_ready(ReasonCode.WRONG_ROLE)


server = module_server(MariaDbServer)
replica = module_server(MariaDbReplica, of="server")


# ---- roles


def test_a_server_that_answers_is_ready_and_its_connection_can_be_reused(
    check: CheckRunner, server: MariaDbServer
) -> None:
    assert check(server.url.replace("mysql:", "mariadb:")) == check(server.url, role="primary", max_lag="1s") == READY
    assert check(f"mysql://127.0.0.1:{server.port}", username=USER, password=PASSWORD) == READY
    assert_reused(check, server.url, server.port)


def test_a_refused_login_is_failed(check: CheckRunner, server: MariaDbServer) -> None:
    verdict = check(server.bad_credentials_url)
    assert verdict == AUTH_FAILED
    assert verdict.reason.endswith(f"(1045): {server.url.replace(PASSWORD, '***')}")
    assert check(f"mysql://{USER}@127.0.0.1:{server.port}") == failed(ReasonCode.AUTH_REQUIRED)
    assert check.leaks_nothing(server.url, tls=True) == failed(ReasonCode.TLS_NOT_OFFERED)


def test_a_replica_is_ready_unless_it_is_behind_or_its_primary_hangs(
    check: CheckRunner, server: MariaDbServer, replica: MariaDbReplica
) -> None:
    options = {"max_lag": "500ms", "primary": server.url}
    server.sql("CREATE TABLE IF NOT EXISTS ledger.late (x INT)")
    catch_up(replica)
    assert check(replica.url, role="replica") == check(replica.url, **options) == READY
    assert check(replica.url, role="primary") == READ_ONLY
    rejected = check(replica.url, max_lag="1h", primary=server.bad_credentials_url)
    assert rejected == not_ready(ReasonCode.AUTH_FAILED)
    assert "offline" not in rejected.reason
    with replica.session("LOCK TABLES ledger.late WRITE"):
        server.sql("INSERT INTO ledger.late VALUES (1)")
        wait_until(lambda: check(replica.url, max_lag="500ms") == LAGGING, "behind")
        assert check(replica.url, **options) == LAGGING
        assert check(replica.url, role="replica", max_lag="1h") == READY
    catch_up(replica)
    server.freeze()
    try:
        verdict = check.with_timeout(2.0, replica.url, max_lag="1h", primary=server.url)
        assert verdict == UPSTREAM_OFFLINE
        assert PASSWORD not in verdict.reason
    finally:
        server.thaw()


def test_a_read_only_primary_is_not_ready(check: CheckRunner, server: MariaDbServer) -> None:
    with server.read_only():
        assert check(server.url) == check(server.url, max_lag="1s") == READ_ONLY
        assert check(server.url, role="primary") == READ_ONLY
        assert check(server.url, role="replica") == WRONG_ROLE


def test_without_the_privilege_a_read_only_server_is_a_replica_while_its_replication_runs(
    check: CheckRunner, server: MariaDbServer, replica: MariaDbReplica
) -> None:
    server.sql("CREATE OR REPLACE USER poor IDENTIFIED BY 'poor-password'")
    catch_up(replica)
    url = f"mysql://poor:poor-password@127.0.0.1:{server.port}"
    assert check(url) == check(url, role="primary") == READY
    for options in ({"role": "replica"}, {"max_lag": "1s"}):
        verdict = check(url, **options)
        assert verdict == failed(ReasonCode.PERMISSION_DENIED)
        assert "SLAVE MONITOR" in verdict.reason
    with server.read_only():
        verdict = check(url, write="ledger.svcnode_write")
        assert verdict == READ_ONLY
        assert "SLAVE MONITOR" not in verdict.reason  # with a write it does not matter
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
    with Backend(RogueServer(answers=[packet(1, OK)])) as backend:
        assert check(f"mysql://me@{backend.address}") == UNEXPECTED_RESPONSE  # without any result


def catch_up(replica: MariaDbReplica) -> None:
    written = replica.primary.sql("SELECT @@gtid_binlog_pos")
    assert replica.sql(f"SELECT MASTER_GTID_WAIT('{written}', 180)") == "0"


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


# ---- query and write


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("SELECT 2 > 1", ReasonCode.OK),
        ("SELECT FALSE", ReasonCode.UNEXPECTED_RESPONSE),
        ("SELECT NULL", ReasonCode.UNEXPECTED_RESPONSE),
        ("SELECT 2", ReasonCode.UNEXPECTED_RESPONSE),
        ("SELECT '1'", ReasonCode.UNEXPECTED_RESPONSE),
        ("SELECT 1 WHERE FALSE", ReasonCode.UNEXPECTED_RESPONSE),
        ("DO 1", ReasonCode.UNEXPECTED_RESPONSE),
        ("SELECT 1 FROM no_such_table", ReasonCode.NOT_FOUND),
        ("SELECT no_such_column", ReasonCode.BAD_REQUEST),
        ("SELECT 1; SELECT 1", ReasonCode.BAD_REQUEST),
        ("SELECT User FROM mysql.global_priv", ReasonCode.PERMISSION_DENIED),
    ],
)
def test_a_query_must_return_true(check: CheckRunner, server: MariaDbServer, query: str, code: ReasonCode) -> None:
    verdict = check(server.url, query=query)
    assert verdict == (READY if code is ReasonCode.OK else failed(code))


CONDITIONS_QUERY = """\
SELECT NOW() - INTERVAL 30 SECOND AS newest, CURDATE() AS day, 812 AS height, 0.1 AS share,
       SUM(18446744073709551615) AS wei, TRUE AS synced, NULL AS nothing,
       x'6f6b' AS raw, TIME('00:01:30') AS took, 1 AS `Total rows`, 2 AS twice, 3 AS Twice,
       CAST('0000-00-00' AS DATE) AS never"""


@pytest.mark.parametrize(
    ("conditions", "code"),
    [
        (
            ["height == 812", "HEIGHT < 1000", "share == 0.1", "wei == 18446744073709551615", "synced == 1"],
            ReasonCode.OK,
        ),
        (["age of value <= 10m", "age of newest > 20s", "age of day <= 25h"], ReasonCode.OK),
        (["nothing == null", 'raw == "ok"', "took == 90", '"total ROWS" == 1'], ReasonCode.OK),
        (["age of newest <= 10s"], ReasonCode.LAGGING),
        (["height advances within 1m"], ReasonCode.STARTING),
        (["height > 812"], ReasonCode.UNEXPECTED_RESPONSE),
        (["nothing != 0"], ReasonCode.UNEXPECTED_RESPONSE),
        (["waiting != 0"], ReasonCode.UNEXPECTED_RESPONSE),
        (["twice > 1"], ReasonCode.UNEXPECTED_RESPONSE),
        (["age of never >= 1s"], ReasonCode.UNEXPECTED_RESPONSE),
    ],
)
def test_conditions_judge_the_first_row(
    check: CheckRunner, server: MariaDbServer, conditions: list[str], code: ReasonCode
) -> None:
    """In whatever zone the server shows times."""
    server.sql("SET GLOBAL time_zone = '+09:00'")
    try:
        verdict = check(server.url, query=CONDITIONS_QUERY, require=conditions)
    finally:
        server.sql("SET GLOBAL time_zone = 'SYSTEM'")
    assert verdict.code == code


def test_a_server_is_starting_by_its_rows_and_otherwise_the_first_value_must_be_true(
    check: CheckRunner, server: MariaDbServer
) -> None:
    query = "SELECT TRUE, 5 AS remaining"
    assert check(server.url, query=query, starting=["remaining > 5"]) == READY
    assert check(server.url, query=query, starting=["remaining > 4"]) == not_ready(ReasonCode.STARTING)
    empty = check(server.url, query="SELECT 1 AS waiting WHERE FALSE", require=["waiting < 5"])
    assert empty == failed(ReasonCode.UNEXPECTED_RESPONSE)


def test_a_query_cannot_write_and_a_write_is_committed(check: CheckRunner, server: MariaDbServer) -> None:
    server.sql("CREATE OR REPLACE TABLE ledger.precious (x INT); INSERT INTO ledger.precious VALUES (1)")
    for query in ("DELETE FROM precious", "COMMIT; DELETE FROM precious"):
        assert check(server.url, query=query) == failed(ReasonCode.BAD_REQUEST)
    assert server.sql("SELECT COUNT(*) FROM ledger.precious") == "1"
    assert check.steps(server.url, write=True)[-2:] == [("write", "", True), ("exchange", "", True)]
    assert server.sql("SELECT COUNT(*) > 0 FROM ledger.svcnode_write") == "1"
    missing = check(server.url, write="ledger.own `name")
    assert missing == failed(ReasonCode.NOT_FOUND)
    server.sql(missing.reason.partition(", created by: ")[2].partition(": mysql://")[0])
    assert check(server.url, write="own `name") == check(server.url, write="ledger.own `name") == READY
    assert server.sql("SELECT COUNT(*) > 0 FROM ledger.`own ``name`") == "1"


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


@pytest.mark.parametrize(
    ("number", "message", "expected"),
    [
        (1290, b"running with --read-only", READ_ONLY),
        (1021, b"Disk full", STORAGE_FULL),
        (1026, b"Error writing file 'binlog' (Errcode: 28 \"No space left on device\")", STORAGE_FULL),
        (1030, b"Got error 28 from storage engine", STORAGE_FULL),
        (1030, b"Got error 168 from storage engine", failed(ReasonCode.WRITE_FAILED)),
        (1041, b"Out of memory", not_ready(ReasonCode.OUT_OF_MEMORY)),
        (1047, b"WSREP has not yet prepared node for application use", NO_QUORUM),
        (1205, b"Lock wait timeout exceeded", failed(ReasonCode.WRITE_TIMEOUT)),
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


@pytest.mark.parametrize(
    ("cluster", "state", "ready", "expected"),
    [
        (b"Primary", b"4", b"ON", READY),
        (b"Primary", b"2", b"ON", READY),
        (b"Primary", b"3", b"ON", SYNCING),
        (b"Primary", b"4", b"OFF", SYNCING),
        (b"non-Primary", b"4", b"ON", NO_QUORUM),
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


# ---- malicious servers

LOCAL_FILES, SSL, PLUGIN_AUTH = 1 << 7, 1 << 11, 1 << 19
CAPABILITIES = 0x200 | 0x8000 | PLUGIN_AUTH  # that of 4.1, secure passwords
OK = b"\x00\x00\x00\x02\x00\x00\x00"
LONG_LONG, VAR_STRING = 8, 253  # types of columns


def packet(number: int, payload: bytes) -> bytes:
    return struct.pack("<I", len(payload))[:3] + bytes([number]) + payload


def greeting(capabilities: int) -> bytes:
    low, high = capabilities & 0xFFFF, capabilities >> 16
    head = b"\x0a8.0.30\0" + struct.pack("<I", 7) + b"saltsalt\0" + struct.pack("<HBHHB", low, 45, 2, high, 21)
    return packet(0, head + bytes(10) + b"saltsaltsalt\0mysql_native_password\0")


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


@pytest.mark.parametrize("switch", [b"\xfe", b"\xfemysql_old_password\0saltsalt\0"], ids=["legacy", "plugin"])
def test_a_server_that_requests_the_authentication_of_old_versions_is_failed(
    check: CheckRunner, certificate: Certificate, switch: bytes
) -> None:
    for tls, options in ((None, {}), (server_tls(certificate), {"tls": True, "ca": str(certificate.certificate)})):
        server = RogueServer(switch=switch, tls=tls)
        with Backend(server) as backend:
            assert check(f"mysql://me:{PASSWORD}@{backend.address}", **options) == AUTH_FAILED
        assert PASSWORD.encode() not in server.received


def test_a_trusted_server_gets_a_plain_text_password_over_tls(check: CheckRunner, certificate: Certificate) -> None:
    server = RogueServer(switch=b"\xfemysql_clear_password\0", tls=server_tls(certificate))
    with Backend(server) as backend:
        url = f"mysql://me:{PASSWORD}@{backend.address}"
        steps = check.steps(url, tls=True, ca=str(certificate.certificate))
        assert [name for name, _, is_done in steps if is_done] == ["connect", "handshake", "log in", "exchange"]
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


def error(number: int, text: bytes = b"the text of the server") -> bytes:
    return b"\xff" + struct.pack("<H", number) + b"#08004" + text


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (1053, ReasonCode.SHUTTING_DOWN),
        (1203, ReasonCode.TOO_MANY_CONNECTIONS),
        (1226, ReasonCode.TOO_MANY_CONNECTIONS),
        (3032, ReasonCode.CONNECTIONS_DISABLED),
        (3118, ReasonCode.USER_DISABLED),
        (3159, ReasonCode.TLS_REQUIRED),
        (1105, ReasonCode.SERVER_ERROR),
    ],
)
def test_an_error_has_the_code_of_its_number(check: CheckRunner, number: int, code: ReasonCode) -> None:
    with Backend(sending(packet(0, error(number)))) as backend:
        assert check(f"mysql://me:{PASSWORD}@{backend.address}") == failed(code)


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        ("max_user_connections", ReasonCode.TOO_MANY_CONNECTIONS),
        ("max_questions", ReasonCode.RATE_LIMITED),  # MySQL
        ("max_updates", ReasonCode.RATE_LIMITED),
        ("max_connections_per_hour", ReasonCode.RATE_LIMITED),
    ],
)
def test_a_limit_of_the_user_is_one_of_connections_or_a_rate(
    check: CheckRunner, resource: str, code: ReasonCode
) -> None:
    text = f"User 'me' has exceeded the '{resource}' resource (current value: 5)".encode()
    with Backend(sending(packet(0, error(1226, text)))) as backend:
        assert check(f"mysql://me:{PASSWORD}@{backend.address}") == failed(code)


@pytest.mark.parametrize("limit", ["MAX_QUERIES_PER_HOUR", "MAX_CONNECTIONS_PER_HOUR"])
def test_a_user_with_no_queries_left_for_this_hour_is_rate_limited(
    check: CheckRunner, server: MariaDbServer, limit: str
) -> None:
    server.sql(f"CREATE OR REPLACE USER limited IDENTIFIED BY '{PASSWORD}' WITH {limit} 1")
    url = f"mariadb://limited:{PASSWORD}@127.0.0.1:{server.port}"
    try:
        check(url)
        assert check(url) == failed(ReasonCode.RATE_LIMITED)
    finally:
        server.sql("DROP USER limited")
