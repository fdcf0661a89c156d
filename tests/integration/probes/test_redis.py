"""redis:// and rediss:// against a real Redis in many states and against scripted servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from tests.support.backends import Backend, sending
from tests.support.http_server import becomes_true
from tests.support.probe_assertions import assert_reused
from tests.support.servers.base import module_server, wait_until
from tests.support.servers.redis import RedisCluster, RedisReplica, RedisServer
from tests.support.verdicts import READY, failed, not_ready

if TYPE_CHECKING:
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


server = module_server(RedisServer, password=PASSWORD)
replica = module_server(RedisReplica, of="server")
encrypted = module_server(RedisServer, tls=True, password=PASSWORD)
cluster = module_server(RedisCluster)


def test_a_server_that_answers_is_ready_and_its_connection_can_be_reused(
    check: CheckRunner, server: RedisServer, encrypted: RedisServer, certificate: Certificate
) -> None:
    assert check(server.url.replace("redis:", "valkey:")) == READY
    assert check(f"redis://127.0.0.1:{server.port}", username="default", password=PASSWORD, db=3) == READY
    steps = check.steps(encrypted.url, ca=str(certificate.certificate))
    assert [name for name, _, is_done in steps if is_done] == ["connect", "handshake", "log in", "exchange"]
    assert_reused(check, server.url, server.port)


def test_a_refused_login_or_command_is_failed(check: CheckRunner, server: RedisServer) -> None:
    verdict = check(server.bad_credentials_url)
    assert verdict == AUTH_FAILED
    assert verdict.reason.endswith(server.url.replace(PASSWORD, "***"))
    assert check(f"redis://:{PASSWORD}@127.0.0.1:{server.port}/99") == failed(ReasonCode.NOT_FOUND)
    server.cli("ACL", "SETUSER", "poor", "reset", "on", ">poor-password", "+ping")
    verdict = check(f"redis://poor:poor-password@127.0.0.1:{server.port}")
    assert verdict == PERMISSION_DENIED
    assert "+info" in verdict.reason
    server.cli("ACL", "SETUSER", "poor", "+info", "+set", "~other")
    verdict = check(f"redis://poor:poor-password@127.0.0.1:{server.port}", write="mine")
    assert verdict == PERMISSION_DENIED
    assert "+set" in verdict.reason
    assert "~mine" in verdict.reason


def test_the_role_is_compared_with_the_expected_one(
    check: CheckRunner, server: RedisServer, replica: RedisReplica
) -> None:
    assert check(server.url, role="primary") == READY
    assert check(server.url, role="replica") == WRONG_ROLE
    assert check(replica.url) == check(replica.url, role="replica") == READY
    assert check(replica.url, role="primary") == WRONG_ROLE
    assert check(replica.url, write=True) == not_ready(ReasonCode.READ_ONLY)
    with replica.setting("replica-read-only", "no", "yes"):
        assert check(replica.url, write=True) == READY


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


def test_a_replica_whose_primary_is_frozen_is_not_ready_after_max_lag(
    check: CheckRunner, server: RedisServer, replica: RedisReplica
) -> None:
    """Its link stays up until repl-timeout. The primary of the tests pings it each second; the default is 10 s."""
    assert check(replica.url, max_lag="30s") == check(server.url, max_lag="0s") == READY
    with replica.setting("repl-timeout", "60", "3"):
        server.freeze()
        try:
            wait_until(lambda: check(replica.url, max_lag="2s") == not_ready(ReasonCode.LAGGING), "lagging")
            assert check(replica.url) == READY
        finally:
            server.thaw()
        wait_until(lambda: check(replica.url, max_lag="2s") == READY, "heard from its primary")


def test_a_replica_that_does_not_say_when_it_heard_from_its_primary_is_not_ready_with_max_lag(
    check: CheckRunner,
) -> None:
    with Backend(sending(b"+PONG\r\n" + bulk("role:slave\r\nmaster_link_status:up\r\n") * 4)) as backend:
        verdict = check(f"redis://{backend.address}", max_lag="30s")
    assert verdict == not_ready(ReasonCode.REPLICATION_STOPPED)


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
        # Buffers of replicas do not count.
        ("noeviction\r\nmem_not_counted_for_evict:100", "", READY),
        ("noeviction\r\nmem_not_counted_for_evict:99", "", OUT_OF_MEMORY),
        ("allkeys-lru", "db0:keys=1,expires=0,avg_ttl=0\r\n", READY),
        ("allkeys-lru", "", OUT_OF_MEMORY),
        ("volatile-ttl", "db0:keys=1,expires=0,avg_ttl=0\r\ndb3:keys=2,expires=1,avg_ttl=0\r\n", READY),
        ("volatile-ttl", "db0:keys=1,expires=0,avg_ttl=0\r\n", OUT_OF_MEMORY),
    ],
)
def test_a_server_that_can_evict_keys_or_is_within_its_memory_limit_is_ready(
    check: CheckRunner, policy: str, databases: str, verdict: object
) -> None:
    info = f"role:master\r\nused_memory:300\r\nmaxmemory:200\r\nmaxmemory_policy:{policy}\r\n"
    with Backend(sending(b"+PONG\r\n" + bulk(info) * 4 + bulk(databases))) as backend:
        assert check(f"redis://{backend.address}") == verdict


def test_a_server_with_too_few_replicas_is_not_ready(
    check: CheckRunner, server: RedisServer, replica: RedisReplica
) -> None:
    server.cli("ACL", "SETUSER", "writer", "reset", "on", ">writer-pw", "+ping", "+info", "+set", "~svcnode_write")
    url = f"redis://writer:writer-pw@127.0.0.1:{server.port}"
    with server.setting("min-replicas-to-write", "1", "0"):
        assert check(server.url, write=True) == READY
    with server.setting("min-replicas-to-write", "2", "0"):
        assert check(server.url) == check(server.url, write=True) == TOO_FEW_REPLICAS
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


def test_a_write_stores_a_key_that_expires(check: CheckRunner, server: RedisServer) -> None:
    for write, key in ((True, "svcnode_write"), ("a key", "a key")):
        assert check(server.url, write=write) == READY
        assert 0 < int(server.cli("PTTL", key)) <= 60_000
    assert check(server.url, write=False) == READY
    assert check.steps(server.url, write=True)[-2:] == [("write", "", True), ("exchange", "", True)]


@pytest.mark.parametrize(
    ("response", "verdict"),
    [
        (b"-NOREPLICAS Not enough good replicas to write.\r\n", TOO_FEW_REPLICAS),
        (b"-READONLY You can't write against a read only replica.\r\n", not_ready(ReasonCode.READ_ONLY)),
        (b"-CLUSTERDOWN The cluster is down\r\n", CLUSTER_DOWN),
        (b"-MISCONF Errors writing to the AOF file: Input/output error\r\n", not_ready(ReasonCode.WRITE_FAILED)),
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


@pytest.mark.parametrize(
    ("response", "code"),
    [
        (b":1\r\n", ReasonCode.PROTOCOL_ERROR),
        (b"+PONG\r\n" * 5, ReasonCode.UNEXPECTED_RESPONSE),
        (b"-ERR \x1b[31mred\x1b[0m\r\n", ReasonCode.SERVER_ERROR),
        (b"-BUSY Redis is busy running a script\r\n", ReasonCode.UNHEALTHY),
        (b"-ERR unknown command 'PING'\r\n", ReasonCode.NOT_SUPPORTED),
        (b"-ERR invalid password\r\n", ReasonCode.AUTH_FAILED),
    ],
)
def test_an_error_or_another_protocol_is_failed(check: CheckRunner, response: bytes, code: ReasonCode) -> None:
    with Backend(sending(response)) as backend:
        verdict = check.leaks_nothing(f"redis://{backend.address}")
    assert verdict == failed(code)
    assert verdict.reason.isprintable()
