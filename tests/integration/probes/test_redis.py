"""redis:// and rediss:// against a real Redis in many states and against scripted servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from tests.support.backends import Backend, Peer, reset_on_data, sending
from tests.support.http_server import becomes_true
from tests.support.servers.base import wait_until
from tests.support.servers.redis import RedisCluster, RedisMember, RedisReplica, RedisServer
from tests.support.verdicts import READY, failed, not_ready

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.certificates import Certificate
    from tests.support.check_runner import CheckRunner

PASSWORD = "ledger-password"
AUTH_FAILED = failed(ReasonCode.AUTH_FAILED)
PERMISSION_DENIED = failed(ReasonCode.PERMISSION_DENIED)
WRONG_ROLE = not_ready(ReasonCode.WRONG_ROLE)
OUT_OF_MEMORY = not_ready(ReasonCode.OUT_OF_MEMORY)
TOO_FEW_REPLICAS = not_ready(ReasonCode.TOO_FEW_REPLICAS)
CLUSTER_DOWN = not_ready(ReasonCode.CLUSTER_DOWN)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), password=PASSWORD) as server:
        yield server


@pytest.fixture(scope="module")
def replica(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisReplica]:
    with server.replica(tmp_path_factory.mktemp("redis-replica")) as replica:
        yield replica


@pytest.fixture(scope="module")
def loading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis-loading"), password=PASSWORD) as server:
        server.start_stalled_loading()
        yield server


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, certificate: Certificate) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis-tls"), password=PASSWORD, certificate=certificate) as server:
        yield server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    with RedisCluster(tmp_path_factory.mktemp("redis-cluster")) as cluster:
        yield cluster


def shown(server: RedisServer) -> str:
    return server.url.replace(PASSWORD, "***")


def clients(server: RedisServer) -> list[str]:
    """The ids of TCP connections, without those of replicas."""
    listed = server.cli("CLIENT", "LIST", "TYPE", "normal").splitlines()
    return [line.split()[0] for line in listed if " addr=127.0.0.1:" in line]


def test_a_server_that_answers_is_ready(check: CheckRunner, server: RedisServer) -> None:
    assert check(server.url) == READY
    assert check(server.url.replace("redis:", "valkey:")) == READY
    assert check(f"redis://127.0.0.1:{server.port}", password=PASSWORD) == READY
    assert check(f"redis://127.0.0.1:{server.port}", username="default", password=PASSWORD, db=3) == READY


def test_a_wrong_password_is_failed_and_not_shown(check: CheckRunner, server: RedisServer) -> None:
    verdict = check(server.bad_credentials_url)
    assert verdict == AUTH_FAILED
    assert verdict.reason.endswith(shown(server))


def test_an_unknown_database_is_failed(check: CheckRunner, server: RedisServer) -> None:
    assert check(f"redis://:{PASSWORD}@127.0.0.1:{server.port}/99") == failed(ReasonCode.NOT_FOUND)


def test_a_user_without_info_is_failed_and_the_reason_names_the_permission(
    check: CheckRunner, server: RedisServer
) -> None:
    server.cli("ACL", "SETUSER", "poor", "reset", "on", ">poor-password", "+ping")
    verdict = check(f"redis://poor:poor-password@127.0.0.1:{server.port}")
    assert verdict == PERMISSION_DENIED
    assert "+info" in verdict.reason


def test_a_replica_without_its_primary_is_not_ready(
    check: CheckRunner, server: RedisServer, replica: RedisReplica
) -> None:
    server.kill()
    try:
        wait_until(lambda: not replica.is_following(), "its link is down")
        stopped = not_ready(ReasonCode.REPLICATION_STOPPED)
        assert check(replica.url) == stopped
        assert check(replica.url, role="replica") == stopped
        replica.cli("CONFIG", "SET", "replica-serve-stale-data", "no")
        assert check(replica.url) == stopped
    finally:
        replica.cli("CONFIG", "SET", "replica-serve-stale-data", "yes")
        server.start()
        server.wait_until_ready()
        wait_until(replica.is_following, "following again")


# ---- servers that refuse writes and say so


def test_a_server_at_its_memory_limit_is_not_ready(check: CheckRunner, server: RedisServer) -> None:
    with server.out_of_memory():
        assert server.cli("SET", "new", "1").startswith("OOM")
        assert check(server.url) == OUT_OF_MEMORY
        assert check(server.url, write=True) == OUT_OF_MEMORY
    assert check(server.url) == READY


def bulk(text: str) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(text), text.encode())


@pytest.mark.parametrize(
    ("policy", "databases", "verdict"),
    [
        ("allkeys-lru", "db0:keys=1,expires=0,avg_ttl=0\r\n", READY),
        ("allkeys-lru", "", OUT_OF_MEMORY),
        ("volatile-ttl", "db0:keys=1,expires=0,avg_ttl=0\r\ndb3:keys=2,expires=1,avg_ttl=0\r\n", READY),
        ("volatile-ttl", "db0:keys=1,expires=0,avg_ttl=0\r\n", OUT_OF_MEMORY),
    ],
)
def test_a_server_that_can_evict_keys_is_ready_at_its_memory_limit(
    check: CheckRunner, policy: str, databases: str, verdict: object
) -> None:
    info = f"role:master\r\nused_memory:300\r\nmaxmemory:200\r\nmaxmemory_policy:{policy}\r\n"
    with Backend(sending(b"+PONG\r\n" + bulk(info) * 4 + bulk(databases))) as backend:
        assert check(f"redis://{backend.address}") == verdict


def test_buffers_of_replicas_do_not_count_for_the_memory_limit(check: CheckRunner) -> None:
    info = "role:master\r\nused_memory:300\r\nmem_not_counted_for_evict:100\r\nmaxmemory:200\r\n"
    with Backend(sending(b"+PONG\r\n" + bulk(info) * 4)) as backend:
        assert check(f"redis://{backend.address}") == READY


def test_a_server_with_too_few_replicas_is_not_ready(
    check: CheckRunner, server: RedisServer, replica: RedisReplica
) -> None:
    with server.setting("min-replicas-to-write", "1", "0"):
        assert check(server.url, write=True) == READY
    with server.setting("min-replicas-to-write", "2", "0"):
        assert server.cli("SET", "new", "1").startswith("NOREPLICAS")
        assert check(server.url) == TOO_FEW_REPLICAS
        assert check(server.url, write=True) == TOO_FEW_REPLICAS


def test_too_few_replicas_are_noticed_without_a_permission_if_there_are_none_or_with_a_write(
    check: CheckRunner, server: RedisServer, replica: RedisReplica
) -> None:
    server.cli("ACL", "SETUSER", "writer", "reset", "on", ">writer-pw", "+ping", "+info", "+set", "~svcnode_write")
    url = f"redis://writer:writer-pw@127.0.0.1:{server.port}"
    with server.setting("min-replicas-to-write", "2", "0"):
        assert check(url) == READY  # CONFIG GET is refused
        assert check(url, write=True) == TOO_FEW_REPLICAS
        with server.setting("min-replicas-max-lag", "1", "10"):
            replica.freeze()
            try:
                assert becomes_true(lambda: check(url) == TOO_FEW_REPLICAS)
            finally:
                replica.thaw()
                wait_until(replica.is_following, "following again")


def test_a_server_whose_disk_is_full_is_not_ready(check: CheckRunner, tmp_path: Path) -> None:
    with RedisServer(tmp_path) as server, server.storage_full():
        assert check(server.url) == not_ready(ReasonCode.STORAGE_FULL)
        assert check(server.url, write=True) == not_ready(ReasonCode.STORAGE_FULL)


# ---- writes


def test_a_write_stores_a_key_that_expires(check: CheckRunner, server: RedisServer) -> None:
    for write, key in ((True, "svcnode_write"), ("a key", "a key")):
        assert check(server.url, write=write) == READY
        assert 0 < int(server.cli("PTTL", key)) <= 60_000
    assert check(server.url, write=False) == READY
    assert check.steps(server.url, write=True)[-2:] == [("write", "", True), ("exchange", "", True)]


def test_a_read_only_replica_is_ready_unless_a_write_is_required(check: CheckRunner, replica: RedisReplica) -> None:
    assert check(replica.url) == READY
    assert check(replica.url, write=True) == not_ready(ReasonCode.READ_ONLY)
    with replica.setting("replica-read-only", "no", "yes"):
        assert check(replica.url, write=True) == READY


def test_a_user_without_the_permission_to_write_is_failed_and_the_reason_names_it(
    check: CheckRunner, server: RedisServer
) -> None:
    for permissions in (["~*"], ["+set", "~other"]):
        server.cli("ACL", "SETUSER", "reader", "reset", "on", ">reader-password", "+ping", "+info", *permissions)
        verdict = check(f"redis://reader:reader-password@127.0.0.1:{server.port}", write="mine")
        assert verdict == PERMISSION_DENIED
        assert "+set" in verdict.reason
        assert "~mine" in verdict.reason


@pytest.mark.parametrize(
    ("response", "verdict"),
    [
        (b"-OOM command not allowed\r\n", OUT_OF_MEMORY),
        (b"-NOREPLICAS Not enough good replicas to write.\r\n", TOO_FEW_REPLICAS),
        (b"-READONLY You can't write against a read only replica.\r\n", not_ready(ReasonCode.READ_ONLY)),
        (b"-CLUSTERDOWN The cluster is down\r\n", CLUSTER_DOWN),
        (b"-MISCONF Errors writing to the AOF file: Input/output error\r\n", not_ready(ReasonCode.WRITE_FAILED)),
        (b"-NEW reason of a later version\r\n", failed(ReasonCode.WRITE_FAILED)),
        (b"+QUEUED\r\n", failed(ReasonCode.UNEXPECTED_RESPONSE)),
    ],
)
def test_a_refused_write_has_the_code_of_its_reason(check: CheckRunner, response: bytes, verdict: object) -> None:
    with Backend(sending(b"+PONG\r\n" + bulk("role:master\r\n") * 4 + response)) as backend:
        assert check(f"redis://{backend.address}", write=True) == verdict


# ---- Redis Cluster


def test_each_member_of_a_cluster_stores_a_key_in_a_slot_of_its_own(check: CheckRunner, cluster: RedisCluster) -> None:
    for member in cluster.members:
        member.cli("FLUSHALL")
        assert check(member.url) == READY
        results = check.sequence(member.url, lambda: None, write=True)
        assert [verdict for verdict, _ in results] == [READY, READY]
        (key,) = member.cli("KEYS", "*").split()
        assert key.startswith("svcnode_write{")


def test_a_slot_that_moved_to_another_member_is_replaced(check: CheckRunner, cluster: RedisCluster) -> None:
    first, second, _ = cluster.members
    first.cli("FLUSHALL")

    def move_slot() -> None:
        (key,) = first.cli("KEYS", "*").split()
        first.cli("DEL", key)
        slot, source, target = (
            first.cli("CLUSTER", "KEYSLOT", key),
            first.cli("CLUSTER", "MYID"),
            second.cli("CLUSTER", "MYID"),
        )
        # Importing raises the epoch of the target. With a lower epoch than its source, it may have to return the slot.
        assert second.cli("CLUSTER", "SETSLOT", slot, "IMPORTING", source) == "OK"
        for member in (second, first):
            assert member.cli("CLUSTER", "SETSLOT", slot, "NODE", target) == "OK"

    assert [verdict for verdict, _ in check.sequence(first.url, move_slot, write=True)] == [READY, READY]
    assert first.cli("KEYS", "*").startswith("svcnode_write{")


def test_a_member_without_slots_takes_no_writes(check: CheckRunner, cluster: RedisCluster, tmp_path: Path) -> None:
    with RedisMember(tmp_path) as member:
        assert check(member.url) == CLUSTER_DOWN  # it has not joined
        cluster.members[0].cli("CLUSTER", "MEET", member.host, str(member.port), str(member.bus_port))
        wait_until(lambda: member.state() == "ok", "joined")
        assert check(member.url) == READY
        assert check(member.url, write=True) == not_ready(ReasonCode.WRITE_FAILED)
        forget = member.cli("CLUSTER", "MYID")
    for other in cluster.members:
        other.cli("CLUSTER", "FORGET", forget)


def test_a_member_of_a_cluster_that_is_down_is_not_ready(check: CheckRunner, cluster: RedisCluster) -> None:
    member, *_, killed = cluster.members
    killed.kill()
    try:
        wait_until(lambda: member.state() == "fail", "down")
        assert check(member.url) == CLUSTER_DOWN
        assert check(member.url, write=True) == CLUSTER_DOWN
        member.cli("ACL", "SETUSER", "monitor", "reset", "on", ">monitor-password", "+ping", "+info")
        url = f"redis://monitor:monitor-password@127.0.0.1:{member.port}"
        assert check(url) == READY  # CLUSTER INFO is refused
        member.cli("ACL", "SETUSER", "monitor", "+cluster|info")
        assert check(url) == CLUSTER_DOWN
    finally:
        killed.start()
        killed.wait_until_ready()
        wait_until(lambda: member.state() == "ok", "up again")


def test_a_server_whose_certificate_is_trusted_is_ready(
    check: CheckRunner, encrypted: RedisServer, certificate: Certificate
) -> None:
    ca = str(certificate.certificate)
    assert check(encrypted.url, ca=ca) == READY
    assert check(encrypted.url.replace("rediss:", "valkeys:"), ca=ca, server_name="localhost") == READY
    assert check.steps(encrypted.url, ca=ca, server_name="localhost") == [
        ("connect", "127.0.0.1", True),
        ("handshake", "localhost", True),
        ("log in", "", True),
        ("exchange", "", True),
    ]


def test_a_connection_that_is_reused_is_the_same_one_and_is_closed_at_the_end(
    check: CheckRunner, server: RedisServer
) -> None:
    assert becomes_true(lambda: not clients(server))
    seen: list[list[str]] = []
    results = check.sequence(server.url, *[lambda: seen.append(clients(server))] * 3, reuse=True)
    assert results == [(READY, ["connect", "log in", "exchange"]), *[(READY, ["reuse", "exchange"])] * 3]
    assert len(seen[0]) == 1
    assert seen == [seen[0]] * 3
    assert becomes_true(lambda: not clients(server))


@pytest.mark.parametrize(
    ("script", "code"),
    [
        (reset_on_data, ReasonCode.CONNECTION_CLOSED),
        (sending(b"HTTP/1.1 400 Bad Request\r\n\r\n"), ReasonCode.PROTOCOL_ERROR),
        (sending(b":1\r\n"), ReasonCode.PROTOCOL_ERROR),
        (sending(b"+HELLO\r\n"), ReasonCode.UNEXPECTED_RESPONSE),
        (sending(b"+PONG\r\n" * 5), ReasonCode.UNEXPECTED_RESPONSE),
        (sending(b"-ERR \x1b[31mred\x1b[0m\r\n"), ReasonCode.SERVER_ERROR),
        (sending(b"-DENIED Redis is running in protected mode\r\n"), ReasonCode.CLIENT_NOT_ALLOWED),
        (sending(b"-BUSY Redis is busy running a script\r\n"), ReasonCode.UNHEALTHY),
        (sending(b"-ERR max number of clients reached\r\n"), ReasonCode.TOO_MANY_CONNECTIONS),
        (sending(b"-ERR unknown command 'PING'\r\n"), ReasonCode.NOT_SUPPORTED),
        (sending(b"-ERR invalid password\r\n"), ReasonCode.AUTH_FAILED),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_error_or_another_protocol_is_failed(
    check: CheckRunner, script: Callable[[Peer], None], code: ReasonCode
) -> None:
    with Backend(script) as backend:
        verdict = check.leaks_nothing(f"redis://{backend.address}")
    assert verdict == failed(code)
    assert verdict.reason.isprintable()
