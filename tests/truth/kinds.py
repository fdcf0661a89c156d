"""The kinds of the campaign: server, probe options and faults of each."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
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
    STREAM_STORAGE_FULL,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    name: str
    make: Make  # not started; other servers that it needs run until the stack ends
    faults: tuple[Fault, ...]  # in this order
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


def _postgresql_on_disk(folder: Path, stack: ExitStack) -> RealServer:
    disk = None
    with suppress(pytest.skip.Exception):
        disk = stack.enter_context(LoopDisk(folder / "disk"))
    return PostgresServer(folder / "server", disk=disk)


def _mariadb_on_disk(folder: Path, stack: ExitStack) -> RealServer:
    disk = None
    with suppress(pytest.skip.Exception):
        disk = stack.enter_context(LoopDisk(folder / "disk", size_bytes=96 * 1024**2))
    return MariaDbServer(folder / "server", disk=disk)


def _mariadb_cascade(folder: Path, stack: ExitStack) -> RealServer:
    """A replica of a replica."""
    primary = stack.enter_context(MariaDbServer(folder / "primary"))
    middle = stack.enter_context(primary.replica(folder / "middle"))
    return middle.replica(folder / "replica")


def _postgresql_cascade(folder: Path, stack: ExitStack) -> RealServer:
    """A replica of a replica."""
    primary = stack.enter_context(PostgresServer(folder / "primary"))
    middle = stack.enter_context(primary.replica(folder / "middle"))
    return middle.replica(folder / "replica")


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
        name="PostgreSQL",
        make=standalone(PostgresServer),
        faults=(*COMMON_FAULTS, EXHAUSTED, RECOVERING, DATABASE_READ_ONLY, STANDBY_LOST),
        has_credentials=True,
    ),
    Kind(
        name="PostgreSQL with write",
        make=_postgresql_on_disk,
        faults=(KILLED, FROZEN, DATABASE_READ_ONLY, DATABASE_DISK_FULL, DATABASE_DISK_FROZEN, TABLE_LOCKED),
        options={"write": True},
    ),
    Kind(
        name="PostgreSQL with standby",
        make=lambda folder, stack: PostgresPrimary(folder / "server", stack),
        faults=(STANDBY_FROZEN,),
        options={"write": True},
    ),
    Kind(
        name="PostgreSQL replica",
        make=replica_of(PostgresServer),
        faults=(*COMMON_FAULTS, REPLICA_DISCONNECTED, PRIMARY_FROZEN, REPLAYING_LONG_TRANSACTION),
        has_credentials=True,
        options={"max_lag": "1s"},
    ),
    Kind(
        name="PostgreSQL cascade",
        make=_postgresql_cascade,
        faults=(KILLED, PRIMARY_OF_PRIMARY_KILLED, PRIMARY_OF_PRIMARY_FROZEN),
        options={"max_lag": "1s", "primary": lambda replica: replica.primary.primary.url},
    ),
    Kind(name="RabbitMQ", make=standalone(RabbitServer), faults=(*COMMON_FAULTS, EXHAUSTED), has_credentials=True),
    Kind(
        name="RabbitMQ with write",
        make=standalone(RabbitServer),
        faults=(KILLED, FROZEN, BROKER_ALARM),
        options={"write": True},
    ),
    Kind(
        name="RabbitMQ quorum queue",
        make=_rabbitmq_member,
        faults=(QUORUM_OF_QUEUE_LOST,),
        options={"write": QUORUM_QUEUE},
    ),
    Kind(
        name="MariaDB",
        make=standalone(MariaDbServer),
        faults=(*COMMON_FAULTS, EXHAUSTED, DATABASE_READ_ONLY),
        has_credentials=True,
    ),
    Kind(
        name="MariaDB with write",
        make=_mariadb_on_disk,
        faults=(KILLED, FROZEN, DATABASE_READ_ONLY, DATABASE_DISK_FROZEN, TABLE_LOCKED, SERVER_DISK_FULL),
        options={"write": True},
    ),
    Kind(name="Galera member", make=standalone(GaleraMember), faults=(*COMMON_FAULTS, GALERA_QUORUM_LOST)),
    Kind(
        name="MariaDB replica",
        make=replica_of(MariaDbServer),
        faults=(*COMMON_FAULTS, REPLICA_DISCONNECTED, PRIMARY_FROZEN, APPLYING_LONG_TRANSACTION),
        has_credentials=True,
        options={"max_lag": "5s"},
    ),
    Kind(
        name="MariaDB cascade",
        make=_mariadb_cascade,
        faults=(KILLED, PRIMARY_OF_PRIMARY_KILLED, PRIMARY_OF_PRIMARY_FROZEN),
        options={"max_lag": "5s", "primary": lambda replica: replica.primary.primary.url},
    ),
    Kind(
        name="Redis",
        make=standalone(lambda folder: RedisServer(folder, password="let-me-in")),
        faults=(*COMMON_FAULTS, EXHAUSTED, LOADING, MEMORY_LIMIT_REACHED, TOO_FEW_REPLICAS, STORE_FULL),
        has_credentials=True,
    ),
    Kind(
        name="Redis with write",
        make=standalone(RedisServer),
        faults=(KILLED, FROZEN, WRITES_PAUSED, MEMORY_LIMIT_REACHED, TOO_FEW_REPLICAS, STORE_FULL),
        options={"write": True},
    ),
    Kind(
        name="Redis Cluster member",
        make=RedisClusterMember,
        faults=(*COMMON_FAULTS, CLUSTER_LOST),
        options={"write": True},
    ),
    Kind(
        name="Redis by Sentinel",
        make=_redis_sentinel,
        faults=(*COMMON_FAULTS, MEMORY_LIMIT_REACHED, WRITES_PAUSED),
        has_credentials=True,
        options={"write": True},
    ),
    Kind(
        name="Redis replica",
        make=replica_of(lambda folder: RedisServer(folder, password="let-me-in")),
        faults=(*COMMON_FAULTS, REPLICA_DISCONNECTED, PRIMARY_FROZEN),
        has_credentials=True,
    ),
    Kind(name="memcached", make=standalone(MemcachedServer), faults=(*COMMON_FAULTS, EXHAUSTED)),
    Kind(
        name="memcached without evictions",
        make=standalone(lambda folder: MemcachedServer(folder, evicts=False)),
        faults=(KILLED, FROZEN, MEMORY_LIMIT_REACHED),
        options={"write": True},
    ),
    Kind(name="NATS", make=standalone(NatsServer), faults=(*COMMON_FAULTS, EXHAUSTED), has_credentials=True),
    Kind(
        name="NATS with write",
        make=standalone(lambda folder: NatsServer(folder, jetstream=JetStream.ON)),
        faults=(KILLED, FROZEN, STREAM_STORAGE_FULL),
        options={"write": True},
    ),
    Kind(
        name="etcd",
        make=standalone(lambda folder: EtcdServer(folder, requires_auth=True)),
        faults=COMMON_FAULTS,
        has_credentials=True,
    ),
    Kind(
        name="etcd with write",
        make=standalone(EtcdServer),
        faults=(*COMMON_FAULTS, STORE_FULL),
        options={"write": True},
    ),
    Kind(name="etcd member", make=_etcd_member, faults=(*COMMON_FAULTS, WITHOUT_QUORUM)),
    Kind(name="nginx", make=standalone(NginxServer), faults=(*COMMON_FAULTS, EXHAUSTED), has_credentials=True),
    Kind(name="nginx by name", make=standalone(NginxServer), faults=(KILLED, IPV6_UNREACHABLE), is_named=True),
    Kind(name="PostgreSQL by name", make=standalone(PostgresServer), faults=(KILLED, IPV6_UNREACHABLE), is_named=True),
    Kind(
        name="nginx in a crash loop",
        make=standalone(NginxServer),
        faults=(CRASHING,),
        service_options={"fall": CRASH_LOOP_FALL},
    ),
    Kind(name="HAProxy, two backends", make=standalone(HaproxyServer), faults=(KILLED, ONE_BACKEND_BROKEN)),
    Kind(
        name="gRPC health",
        make=standalone(GrpcHealthServer),
        faults=(*COMMON_FAULTS, NOT_SERVING),
        options={"starting_status": "NOT_SERVING"},
    ),
    Kind(
        name="Ethereum",
        make=standalone(GanacheServer),
        faults=(*COMMON_FAULTS, STALE_BLOCK),
        options={"max_block_age": "1h"},
        note="ganache",
    ),
    Kind(
        name="beacon",
        make=standalone(BeaconServer),
        faults=(*COMMON_FAULTS, SYNCING, EXECUTION_OFFLINE),
        note=FAKE_SERVER_NOTE,
    ),
    Kind(
        name="IPFS",
        make=standalone(IpfsServer),
        faults=(*COMMON_FAULTS, WITHOUT_PEERS),
        options={"min_peers": 1},
        note=FAKE_SERVER_NOTE,
    ),
)
# No processes: they are not killed and not frozen.
_STORAGE = (
    Kind(
        name="disk",
        make=standalone(MountedDisk),
        faults=(DISK_READ_ONLY, DISK_FULL, WITHOUT_INODES),
        has_connection=False,
        note="ext4 on a loop device",
    ),
    Kind(
        name="disk with write",
        make=standalone(MountedDisk),
        faults=(DISK_READ_ONLY, DISK_FULL, DATABASE_DISK_FROZEN),
        options={"write": True, "min_free": "0B"},
        has_connection=False,
        note="ext4 on a loop device",
    ),
    Kind(
        name="SQLite",
        make=standalone(SqliteWithWriter),
        faults=(WRITE_LOCK_HELD,),
        has_connection=False,
        note="with an application that writes all the time",
    ),
    Kind(
        name="SQLite with write",
        make=standalone(SqliteOnDisk),
        faults=(WRITE_LOCK_HELD, FILE_READ_ONLY, DATABASE_DISK_FULL, DATABASE_DISK_FROZEN),
        options={"write": True},
        has_connection=False,
    ),
)
KINDS = {kind.name: kind for kind in (*_ALL, *_STORAGE)}
SHORT_KINDS = ("PostgreSQL", "Redis", "nginx")
