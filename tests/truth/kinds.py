"""The kinds of the campaign: server, probe options and faults of each."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.disks import LoopDisk
from tests.support.servers.beacon import BeaconServer
from tests.support.servers.etcd import EtcdServer
from tests.support.servers.ganache import GanacheServer
from tests.support.servers.grpc_health import GrpcHealthServer
from tests.support.servers.haproxy import HaproxyServer
from tests.support.servers.ipfs import IpfsServer
from tests.support.servers.mariadb import GaleraMember, MariaDbServer
from tests.support.servers.memcached import MemcachedServer
from tests.support.servers.nats import JetStream, NatsServer
from tests.support.servers.nginx import NginxServer
from tests.support.servers.postgresql import PostgresServer
from tests.support.servers.rabbitmq import QUORUM_QUEUE, RabbitServer
from tests.support.servers.redis import RedisMember, RedisSentinel, RedisServer, form_cluster
from tests.support.servers.storage import MountedDisk, SqliteOnDisk, SqliteWithWriter
from tests.truth.faults import (
    APPLYING_LONG_TRANSACTION,
    BROKER_ALARM,
    CLUSTER_LOST,
    CRASHING,
    DATABASE_DISK_FROZEN,
    DATABASE_DISK_FULL,
    DATABASE_READ_ONLY,
    DISK_FULL,
    DISK_READ_ONLY,
    EXECUTION_OFFLINE,
    EXHAUSTED,
    FILE_READ_ONLY,
    FROZEN,
    GALERA_QUORUM_LOST,
    IPV6_UNREACHABLE,
    KILLED,
    LOADING,
    MEMORY_LIMIT_REACHED,
    NOT_SERVING,
    ONE_BACKEND_BROKEN,
    PRIMARY_FROZEN,
    PRIMARY_OF_PRIMARY_FROZEN,
    PRIMARY_OF_PRIMARY_KILLED,
    QUORUM_OF_QUEUE_LOST,
    RECOVERING,
    REPLAYING_LONG_TRANSACTION,
    REPLICA_DISCONNECTED,
    RESETS,
    SERVER_DISK_FULL,
    STALE_BLOCK,
    STANDBY_FROZEN,
    STANDBY_LOST,
    STORE_FULL,
    SYNCING,
    TABLE_LOCKED,
    TOO_FEW_REPLICAS,
    UNRESPONSIVE,
    WITHOUT_INODES,
    WITHOUT_PEERS,
    WITHOUT_QUORUM,
    WRITE_LOCK_HELD,
    WRITES_PAUSED,
    Fault,
)
from tests.truth.timing import CRASH_LOOP_FALL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import ExitStack
    from pathlib import Path

    from tests.support.servers.base import RealServer

    Make = Callable[[Path, ExitStack], RealServer]


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    make: Make  # not started; other servers that it needs run until the stack ends
    faults: tuple[Fault, ...]  # in this order
    _: KW_ONLY
    has_credentials: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)  # of its probe; a function of the server, or a value
    service_options: Mapping[str, Any] = field(default_factory=dict)  # beside its probe
    note: str = ""
    has_connection: bool = True  # the probe has the option `reuse`
    is_named: bool = False  # the probe uses a name, and everything runs in a network namespace


COMMON_FAULTS = (KILLED, FROZEN, UNRESPONSIVE, RESETS)
FAKE_SERVER_NOTE = "no package: a scripted server that follows the documentation of the protocol"


def standalone(make_server: Callable[[Path], RealServer]) -> Make:
    return lambda folder, _: make_server(folder)


def replica_of(make_primary: Callable[[Path], Any]) -> Make:
    """A replica of a running primary."""

    def make(folder: Path, stack: ExitStack) -> RealServer:
        primary = stack.enter_context(make_primary(folder / "primary"))
        replica: RealServer = primary.replica(folder / "replica")
        return replica

    return make


class EtcdMember(EtcdServer):
    """One of three members."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "m1", member="m1")
        self.other_members = [EtcdServer(folder / member, member=member) for member in ("m2", "m3")]
        for each in (self, *self.other_members):
            each.cluster_members = (self, *self.other_members)
            each.peer_port = each.peer_port  # the others start with it


def _etcd_member(folder: Path, stack: ExitStack) -> RealServer:
    member = EtcdMember(folder)
    for other in member.other_members:
        stack.callback(other.kill)
        other.start()
    return member


def _rabbitmq_member(folder: Path, stack: ExitStack) -> RealServer:
    """One of two members."""
    other = stack.enter_context(RabbitServer(folder / "other"))
    return RabbitServer(folder / "member", joins=other)


class PostgresPrimary(PostgresServer):
    """With a standby that runs until the stack ends."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        super().__init__(folder)
        self._stack = stack
        self.standby = self.replica(folder.with_name("standby"))

    def set_up(self) -> None:
        super().set_up()
        self._stack.enter_context(self.standby)


def on_disk(server: Callable[..., RealServer], **disk_options: int) -> Make:
    """A server whose data is on a small disk of its own, if this machine can mount one."""

    def make(folder: Path, stack: ExitStack) -> RealServer:
        disk = None
        with suppress(pytest.skip.Exception):
            disk = stack.enter_context(LoopDisk(folder / "disk", **disk_options))
        return server(folder / "server", disk=disk)

    return make


def cascade_of(make_primary: Callable[[Path], Any]) -> Make:
    """A replica of a replica."""

    def make(folder: Path, stack: ExitStack) -> RealServer:
        primary = stack.enter_context(make_primary(folder / "primary"))
        middle = stack.enter_context(primary.replica(folder / "middle"))
        replica: RealServer = middle.replica(folder / "replica")
        return replica

    return make


class RedisClusterMember(RedisMember):
    """One of three members; the others run until the stack ends."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        super().__init__(folder / "m0")
        self.other_members = [stack.enter_context(RedisMember(folder / name)) for name in ("m1", "m2")]

    def set_up(self) -> None:
        form_cluster((self, *self.other_members))


def _redis_sentinel(folder: Path, stack: ExitStack) -> RealServer:
    master = stack.enter_context(RedisServer(folder / "master", password="let-me-in"))
    return RedisSentinel(folder / "sentinel", master)


_ALL = (
    Kind(
        "PostgreSQL",
        standalone(PostgresServer),
        (*COMMON_FAULTS, EXHAUSTED, RECOVERING, DATABASE_READ_ONLY, STANDBY_LOST),
        has_credentials=True,
    ),
    Kind(
        "PostgreSQL with write",
        on_disk(PostgresServer),
        (KILLED, FROZEN, DATABASE_READ_ONLY, DATABASE_DISK_FULL, DATABASE_DISK_FROZEN, TABLE_LOCKED),
        options={"write": True},
    ),
    Kind(
        "PostgreSQL with standby",
        lambda folder, stack: PostgresPrimary(folder / "server", stack),
        (STANDBY_FROZEN,),
        options={"write": True},
    ),
    Kind(
        "PostgreSQL replica",
        replica_of(PostgresServer),
        (*COMMON_FAULTS, REPLICA_DISCONNECTED, PRIMARY_FROZEN, REPLAYING_LONG_TRANSACTION),
        has_credentials=True,
        options={"max_lag": "1s"},
    ),
    Kind(
        "PostgreSQL cascade",
        cascade_of(PostgresServer),
        (KILLED, PRIMARY_OF_PRIMARY_KILLED, PRIMARY_OF_PRIMARY_FROZEN),
        options={"max_lag": "1s", "primary": lambda replica: replica.primary.primary.url},
    ),
    Kind("RabbitMQ", standalone(RabbitServer), (*COMMON_FAULTS, EXHAUSTED), has_credentials=True),
    Kind("RabbitMQ with write", standalone(RabbitServer), (KILLED, FROZEN, BROKER_ALARM), options={"write": True}),
    Kind("RabbitMQ quorum queue", _rabbitmq_member, (QUORUM_OF_QUEUE_LOST,), options={"write": QUORUM_QUEUE}),
    Kind("MariaDB", standalone(MariaDbServer), (*COMMON_FAULTS, EXHAUSTED, DATABASE_READ_ONLY), has_credentials=True),
    Kind(
        "MariaDB with write",
        on_disk(MariaDbServer, size_bytes=96 * 1024**2),
        (KILLED, FROZEN, DATABASE_READ_ONLY, DATABASE_DISK_FROZEN, TABLE_LOCKED, SERVER_DISK_FULL),
        options={"write": True},
    ),
    Kind("Galera member", standalone(GaleraMember), (*COMMON_FAULTS, GALERA_QUORUM_LOST)),
    Kind(
        "MariaDB replica",
        replica_of(MariaDbServer),
        (*COMMON_FAULTS, REPLICA_DISCONNECTED, PRIMARY_FROZEN, APPLYING_LONG_TRANSACTION),
        has_credentials=True,
        options={"max_lag": "5s"},
    ),
    Kind(
        "MariaDB cascade",
        cascade_of(MariaDbServer),
        (KILLED, PRIMARY_OF_PRIMARY_KILLED, PRIMARY_OF_PRIMARY_FROZEN),
        options={"max_lag": "5s", "primary": lambda replica: replica.primary.primary.url},
    ),
    Kind(
        "Redis",
        standalone(lambda folder: RedisServer(folder, password="let-me-in")),
        (*COMMON_FAULTS, EXHAUSTED, LOADING, MEMORY_LIMIT_REACHED, TOO_FEW_REPLICAS, STORE_FULL),
        has_credentials=True,
    ),
    Kind(
        "Redis with write",
        standalone(RedisServer),
        (KILLED, FROZEN, WRITES_PAUSED, MEMORY_LIMIT_REACHED, TOO_FEW_REPLICAS, STORE_FULL),
        options={"write": True},
    ),
    Kind("Redis Cluster member", RedisClusterMember, (*COMMON_FAULTS, CLUSTER_LOST), options={"write": True}),
    Kind(
        "Redis by Sentinel",
        _redis_sentinel,
        (*COMMON_FAULTS, MEMORY_LIMIT_REACHED, WRITES_PAUSED),
        has_credentials=True,
        options={"write": True},
    ),
    Kind(
        "Redis replica",
        replica_of(lambda folder: RedisServer(folder, password="let-me-in")),
        (*COMMON_FAULTS, REPLICA_DISCONNECTED, PRIMARY_FROZEN),
        has_credentials=True,
    ),
    Kind("memcached", standalone(MemcachedServer), (*COMMON_FAULTS, EXHAUSTED)),
    Kind(
        "memcached without evictions",
        standalone(lambda folder: MemcachedServer(folder, evicts=False)),
        (KILLED, FROZEN, MEMORY_LIMIT_REACHED),
        options={"write": True},
    ),
    Kind("NATS", standalone(NatsServer), (*COMMON_FAULTS, EXHAUSTED), has_credentials=True),
    Kind(
        "NATS with write",
        standalone(lambda folder: NatsServer(folder, jetstream=JetStream.ON)),
        (KILLED, FROZEN, STORE_FULL),
        options={"write": True},
    ),
    Kind(
        "etcd", standalone(lambda folder: EtcdServer(folder, requires_auth=True)), COMMON_FAULTS, has_credentials=True
    ),
    Kind("etcd with write", standalone(EtcdServer), (*COMMON_FAULTS, STORE_FULL), options={"write": True}),
    Kind("etcd member", _etcd_member, (*COMMON_FAULTS, WITHOUT_QUORUM)),
    Kind("nginx", standalone(NginxServer), (*COMMON_FAULTS, EXHAUSTED), has_credentials=True),
    Kind("nginx by name", standalone(NginxServer), (KILLED, IPV6_UNREACHABLE), is_named=True),
    Kind("PostgreSQL by name", standalone(PostgresServer), (KILLED, IPV6_UNREACHABLE), is_named=True),
    Kind("nginx in a crash loop", standalone(NginxServer), (CRASHING,), service_options={"fall": CRASH_LOOP_FALL}),
    Kind("HAProxy, two backends", standalone(HaproxyServer), (KILLED, ONE_BACKEND_BROKEN)),
    Kind(
        "gRPC health",
        standalone(GrpcHealthServer),
        (*COMMON_FAULTS, NOT_SERVING),
        options={"starting_status": "NOT_SERVING"},
    ),
    Kind(
        "Ethereum",
        standalone(GanacheServer),
        (*COMMON_FAULTS, STALE_BLOCK),
        options={"max_block_age": "1h"},
        note="ganache",
    ),
    Kind("beacon", standalone(BeaconServer), (*COMMON_FAULTS, SYNCING, EXECUTION_OFFLINE), note=FAKE_SERVER_NOTE),
    Kind(
        "IPFS", standalone(IpfsServer), (*COMMON_FAULTS, WITHOUT_PEERS), options={"min_peers": 1}, note=FAKE_SERVER_NOTE
    ),
)
# No processes: they are not killed and not frozen.
_STORAGE = (
    Kind(
        "disk",
        standalone(MountedDisk),
        (DISK_READ_ONLY, DISK_FULL, WITHOUT_INODES),
        has_connection=False,
        note="ext4 on a loop device",
    ),
    Kind(
        "disk with write",
        standalone(MountedDisk),
        (DISK_READ_ONLY, DISK_FULL, DATABASE_DISK_FROZEN),
        options={"write": True, "min_free": "0B"},
        has_connection=False,
        note="ext4 on a loop device",
    ),
    Kind(
        "SQLite",
        standalone(SqliteWithWriter),
        (WRITE_LOCK_HELD,),
        has_connection=False,
        note="with an application that writes all the time",
    ),
    Kind(
        "SQLite with write",
        standalone(SqliteOnDisk),
        (WRITE_LOCK_HELD, FILE_READ_ONLY, DATABASE_DISK_FULL, DATABASE_DISK_FROZEN),
        options={"write": True},
        has_connection=False,
    ),
)
KINDS = {kind.name: kind for kind in (*_ALL, *_STORAGE)}
SHORT_KINDS = ("PostgreSQL", "Redis", "nginx")
