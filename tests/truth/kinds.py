"""The kinds of the campaign: server, probe options and faults of each.

A fault says how it is injected, the expected status, and the bound. It lasts as long as its block.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import backends
from tests.support.backends import Backend
from tests.support.disks import LoopDisk
from tests.support.network_namespace import BLACK_HOLE_IPV6
from tests.support.servers.base import wait_until
from tests.support.servers.beacon import BeaconServer
from tests.support.servers.chains import METHODS, with_reference
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
from tests.support.servers.signers import KEY, MevBoostServer, Web3SignerServer
from tests.support.servers.storage import MountedDisk, SqliteOnDisk, SqliteWithWriter
from tests.truth.evaluate import DOWN, INITIALIZING, UP
from tests.truth.timing import (
    CRASH_LOOP_FALL,
    CRASH_LOOP_S,
    CRASHED_S,
    EVERY_SECOND_S,
    HUNG_S,
    NOT_READY_S,
    READY_S,
    REFUSED_S,
    RELIABLE_S,
    RUNNING_S,
    STALE_S,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import ExitStack
    from pathlib import Path

    from tests.support.servers.base import RealServer

    Injector = Callable[[Any], AbstractContextManager[None]]  # the argument is the server
    Make = Callable[[Path, ExitStack], RealServer]

# The replicas drop a primary that sends nothing after 2 or 3 s, and check about once a second. Before that they do not
# know that they are disconnected.
REPLICATION_TIMEOUT_S = 5.0

READY, RESTARTED = "ready", "restarted"
NOT_STARTED, WRONG_CREDENTIALS = "not started yet", "wrong credentials"
# The server answers, and cannot do its work.
READ_ONLY, STORAGE_FULL, DISK_FROZEN = "read-only", "storage full", "disk frozen"
WRITE_LOCK, OUT_OF_MEMORY, QUORUM_LOST, ALARM = "write lock", "out of memory", "quorum lost", "alarm"
BACKEND_BROKEN, CRASH_LOOP = "one of two backends broken", "crash loop"
# The service works, although something else does not.
AAAA_UNREACHABLE, LONG_TRANSACTION = "AAAA unreachable", "long transaction"
CASCADE_CUT = "cascade cut"
# A client of a chain answers, and does not follow its chain, or cannot be judged.
STILL, BEHIND, CLOCK_WRONG = "claims synced, stands still", "behind the others", "clock wrong"
METHOD_MISSING, CACHED = "method missing", "answers from a cache"


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    inject: Injector
    expected: str
    bound_s: float
    state_after: str = READY  # the condition after the fault
    recovery_bound_s: float = READY_S


def between(begin: str, end: str) -> Injector:
    """These methods of the server begin and end the fault."""

    @contextmanager
    def inject(server: Any) -> Iterator[None]:
        getattr(server, begin)()
        yield
        getattr(server, end)()

    return inject


killed, frozen = between("kill", "start"), between("freeze", "thaw")


def replaced_by(behaviour: Any) -> Injector:
    """Another listener has the port."""

    @contextmanager
    def inject(server: RealServer) -> Iterator[None]:
        with killed(server), Backend(behaviour, port=server.port):
            yield

    return inject


def with_state(state: Mapping[str, object], defaults: Mapping[str, object]) -> Injector:
    """For scripted servers."""

    @contextmanager
    def inject(server: Any) -> Iterator[None]:
        server.set(**state)
        yield
        server.set(**defaults)

    return inject


@contextmanager
def stale_block(server: Any) -> Iterator[None]:
    """The newest block is two hours old, as while the client syncs."""
    server.mine(age_s=7200)
    yield
    server.mine()


@contextmanager
def primary_killed(replica: Any) -> Iterator[None]:
    with killed(replica.primary):
        yield
    replica.primary.wait_until_ready()
    wait_until(replica.is_following, "following its primary")


@contextmanager
def primary_frozen(replica: Any) -> Iterator[None]:
    """The primary sends nothing, and the connection stays open."""
    with frozen(replica.primary):
        yield
    wait_until(replica.is_following, "following its primary")


def other_members_killed(wait_until_noticed: Callable[[Any], None]) -> Injector:
    """One of three members is left."""

    @contextmanager
    def inject(member: Any) -> Iterator[None]:
        for other in member.other_members:
            other.kill()
        wait_until_noticed(member)
        yield
        for other in member.other_members:
            other.start()

    return inject


@contextmanager
def quorum_of_queue_lost(broker: Any) -> Iterator[None]:
    """One of the two members of a quorum queue is left."""
    with killed(broker.joins):
        yield
    broker.joins.wait_until_ready()


def cluster_is_down(member: Any) -> None:
    """A member of a Redis Cluster notices after the node timeout."""
    wait_until(lambda: member.state() == "fail", "the cluster is down")


def by_server(method: str) -> Injector:
    """The server injects it."""
    return lambda server: getattr(server, method)()


def on_disk_of_database(method: str) -> Injector:
    def inject(server: Any) -> AbstractContextManager[None]:
        if server.disk is None:
            pytest.skip("this machine cannot mount a disk")
        return getattr(server.disk, method)()  # type: ignore[no-any-return]

    return inject


@contextmanager
def standby_frozen(server: Any) -> Iterator[None]:
    """Transactions wait for a standby that is connected and does not respond."""
    with server.synchronous("*"):
        wait_until(lambda: server.psql("SELECT sync_state FROM pg_stat_replication") == "sync", "synchronous")
        with frozen(server.standby):
            yield


@contextmanager
def ipv6_unreachable(server: Any) -> Iterator[None]:
    """The name of the server has also an IPv6 address, whose packets are dropped."""
    server.namespace.set_hosts(server_example=f"{BLACK_HOLE_IPV6} {server.host}")
    yield
    server.namespace.set_hosts(server_example=server.host)


@contextmanager
def crashing(server: RealServer) -> Iterator[None]:
    """Its processes are killed, and started again, until the end."""
    is_over = threading.Event()

    def crash_again_and_again() -> None:
        while not is_over.is_set():
            server.kill()
            is_over.wait(CRASHED_S)
            server.start()
            server.wait_until_ready()
            is_over.wait(RUNNING_S)

    with ThreadPoolExecutor(1) as pool:
        loop = pool.submit(crash_again_and_again)
        yield
        is_over.set()
        loop.result()


def starting(inject: Injector, name: str = "starting", state_after: str = READY) -> Fault:
    return Fault(name, inject, INITIALIZING, NOT_READY_S, state_after)


KILLED = Fault("killed", killed, DOWN, REFUSED_S, RESTARTED)
FROZEN = Fault("frozen", frozen, DOWN, HUNG_S)
UNRESPONSIVE = Fault("port open, no response", replaced_by(backends.unresponsive), DOWN, HUNG_S, RESTARTED)
RESETS = Fault("accepts and resets", replaced_by(backends.reset), DOWN, REFUSED_S, RESTARTED)
EXHAUSTED = Fault("out of connections", by_server("exhaust"), DOWN, HUNG_S)
REPLICA_DISCONNECTED = Fault("replica disconnected", primary_killed, INITIALIZING, NOT_READY_S)
PRIMARY_FROZEN = replace(REPLICA_DISCONNECTED, inject=primary_frozen, bound_s=NOT_READY_S + REPLICATION_TIMEOUT_S)
WITHOUT_QUORUM = replace(
    REPLICA_DISCONNECTED, inject=other_members_killed(lambda member: member.wait_until_leaderless())
)
BROKER_ALARM = Fault(ALARM, by_server("disk_alarm"), INITIALIZING, NOT_READY_S)
# RabbitMQ rejects the message, or does not confirm it.
QUORUM_OF_QUEUE_LOST = Fault(QUORUM_LOST, quorum_of_queue_lost, DOWN, HUNG_S)
DATABASE_READ_ONLY = Fault(READ_ONLY, by_server("read_only"), INITIALIZING, NOT_READY_S)
DATABASE_DISK_FULL = Fault(STORAGE_FULL, on_disk_of_database("full"), INITIALIZING, NOT_READY_S)
DATABASE_DISK_FROZEN = Fault(DISK_FROZEN, on_disk_of_database("frozen"), DOWN, HUNG_S)
TABLE_LOCKED = Fault(WRITE_LOCK, by_server("write_lock"), DOWN, HUNG_S)
SERVER_DISK_FULL = Fault(STORAGE_FULL, by_server("disk_full"), DOWN, HUNG_S, RESTARTED)
GALERA_QUORUM_LOST = Fault(QUORUM_LOST, by_server("quorum_lost"), INITIALIZING, NOT_READY_S)
APPLYING_LONG_TRANSACTION = Fault(LONG_TRANSACTION, by_server("long_transaction"), UP, READY_S)
STANDBY_LOST = Fault(QUORUM_LOST, lambda server: server.synchronous("gone"), INITIALIZING, NOT_READY_S)
STANDBY_FROZEN = Fault(QUORUM_LOST, standby_frozen, DOWN, HUNG_S)
IPV6_UNREACHABLE = Fault(AAAA_UNREACHABLE, ipv6_unreachable, UP, HUNG_S)
REPLAYING_LONG_TRANSACTION = Fault(LONG_TRANSACTION, lambda replica: replica.primary.long_transaction(), UP, READY_S)
PRIMARY_OF_PRIMARY_KILLED = Fault(
    CASCADE_CUT, lambda replica: primary_killed(replica.primary), INITIALIZING, NOT_READY_S
)
PRIMARY_OF_PRIMARY_FROZEN = replace(PRIMARY_OF_PRIMARY_KILLED, inject=lambda replica: primary_frozen(replica.primary))
MEMORY_LIMIT_REACHED = Fault(OUT_OF_MEMORY, by_server("out_of_memory"), INITIALIZING, NOT_READY_S)
TOO_FEW_REPLICAS = Fault(READ_ONLY, by_server("without_replicas"), INITIALIZING, NOT_READY_S)
STORE_FULL = Fault(STORAGE_FULL, by_server("storage_full"), INITIALIZING, NOT_READY_S)
WRITES_PAUSED = Fault(WRITE_LOCK, by_server("writes_paused"), DOWN, HUNG_S)
DISK_READ_ONLY = Fault(READ_ONLY, on_disk_of_database("read_only"), DOWN, REFUSED_S)
DISK_FULL = Fault(STORAGE_FULL, on_disk_of_database("full"), DOWN, REFUSED_S)
WITHOUT_INODES = Fault(STORAGE_FULL, by_server("without_inodes"), DOWN, REFUSED_S)
FILE_READ_ONLY = Fault(READ_ONLY, on_disk_of_database("read_only"), INITIALIZING, NOT_READY_S)
WRITE_LOCK_HELD = Fault(WRITE_LOCK, by_server("write_lock"), INITIALIZING, NOT_READY_S)
CLUSTER_LOST = Fault(QUORUM_LOST, other_members_killed(cluster_is_down), INITIALIZING, NOT_READY_S)
RECOVERING = starting(between("start_stalled_recovery", "finish_recovery"), state_after=RESTARTED)
LOADING = starting(between("start_stalled_loading", "finish_loading"), state_after=RESTARTED)
SYNCING = starting(with_state({"is_syncing": True}, {"is_syncing": False}))
EXECUTION_OFFLINE = starting(with_state({"el_offline": True}, {"el_offline": False}))
SYNCING_UNNOTICED = starting(
    with_state({"is_syncing": True, "health": 200}, {"is_syncing": False, "health": None}), "claims to be healthy"
)
STANDS_STILL = starting(with_state({"missed_slots": 50}, {"missed_slots": 0}), STILL)
BEACON_CLOCK_WRONG = starting(with_state({"missed_slots": -50}, {"missed_slots": 0}), CLOCK_WRONG)
WITHOUT_BEACON_PEERS = starting(with_state({"peers": 0}, {"peers": 50}), "claims synced, without peers")
WITHOUT_PEERS = starting(with_state({"peers": 0}, {"peers": 3}))
NOT_SERVING = starting(with_state({"status": "NOT_SERVING"}, {"status": "SERVING"}))
STALE_BLOCK = starting(stale_block)
MAX_BLOCK_AGE_S = 5.0  # of the scripted chains
CHAIN_STANDS_STILL = starting(with_state({"age_s": 100_000}, {"age_s": 0}), STILL)
CHAIN_BEHIND = starting(with_state({"behind": 1000}, {"behind": 0}), BEHIND)
CHAIN_CLOCK_WRONG = starting(with_state({"ahead_s": 10_000}, {"ahead_s": 0}), CLOCK_WRONG)
CHAIN_CACHED = replace(
    starting(between("stop_clock", "reset_clock"), CACHED), bound_s=MAX_BLOCK_AGE_S + 1 + NOT_READY_S
)
WITHOUT_DATABASE = Fault(
    "no slashing protection", with_state({"database": "DOWN"}, {"database": "UP"}), DOWN, REFUSED_S
)
WITHOUT_KEYS = starting(with_state({"keys": []}, {"keys": [KEY]}))
WITHOUT_RELAYS = starting(with_state({"available_relays": 0}, {"available_relays": 3}))


def method_missing(kind: str) -> Fault:
    """The first method that the probe calls. The outcome is unknown, so that the service is never Down for it."""
    missing = {"missing": [next(iter(METHODS[kind]))]}
    return replace(starting(with_state(missing, {"missing": []}), METHOD_MISSING), bound_s=STALE_S)


ONE_BACKEND_BROKEN = Fault(
    BACKEND_BROKEN, by_server("broken_backends"), INITIALIZING, EVERY_SECOND_S, recovery_bound_s=RELIABLE_S
)
CRASHING = Fault(CRASH_LOOP, crashing, INITIALIZING, CRASH_LOOP_S, RESTARTED, RELIABLE_S)

# Wrong credentials are tested too, at the same time.
SHORT_FAULTS = (KILLED, FROZEN)

# The columns of the matrix: whether the server answers, and whether it can do its work although it answers.
AVAILABILITY_FAULTS = (
    NOT_STARTED,
    RECOVERING.name,
    READY,
    KILLED.name,
    FROZEN.name,
    UNRESPONSIVE.name,
    RESETS.name,
    WRONG_CREDENTIALS,
    EXHAUSTED.name,
    RESTARTED,
    REPLICA_DISCONNECTED.name,
)
WORK_FAULTS = (
    READ_ONLY,
    STORAGE_FULL,
    DISK_FROZEN,
    WRITE_LOCK,
    OUT_OF_MEMORY,
    QUORUM_LOST,
    ALARM,
    BACKEND_BROKEN,
    CRASH_LOOP,
    AAAA_UNREACHABLE,
    LONG_TRANSACTION,
    CASCADE_CUT,
)
CHAIN_FAULTS = (STILL, BEHIND, CLOCK_WRONG, METHOD_MISSING, CACHED)


# ---- the kinds


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
SCRIPTED_CHAINS = {
    "Ethereum client": "ethereum",
    "CometBFT": "cometbft",
    "Solana": "solana",
    "Substrate": "substrate",
    "Bitcoin": "bitcoin",
    "op-node": "opnode",
}
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
        options={"max_block_age": "1h", "min_peers": 0},
        note="ganache",
    ),
    Kind(
        "beacon",
        standalone(BeaconServer),
        (
            *COMMON_FAULTS,
            SYNCING,
            SYNCING_UNNOTICED,
            EXECUTION_OFFLINE,
            STANDS_STILL,
            BEACON_CLOCK_WRONG,
            WITHOUT_BEACON_PEERS,
        ),
        note=FAKE_SERVER_NOTE,
    ),
    *(
        Kind(
            name,
            partial(with_reference, kind=kind),
            (
                *COMMON_FAULTS,
                SYNCING,
                CHAIN_STANDS_STILL,
                CHAIN_BEHIND,
                CHAIN_CLOCK_WRONG,
                method_missing(kind),
                CHAIN_CACHED,
            ),
            options={
                "max_block_age": f"{MAX_BLOCK_AGE_S:g}s",
                "reference": lambda client: [f"http://127.0.0.1:{client.reference.port}"],
            },
            note=FAKE_SERVER_NOTE,
        )
        for name, kind in SCRIPTED_CHAINS.items()
    ),
    Kind(
        "Web3Signer",
        standalone(Web3SignerServer),
        (*COMMON_FAULTS, WITHOUT_DATABASE, WITHOUT_KEYS),
        note=FAKE_SERVER_NOTE,
    ),
    Kind("MEV-Boost", standalone(MevBoostServer), (*COMMON_FAULTS, WITHOUT_RELAYS), note=FAKE_SERVER_NOTE),
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
