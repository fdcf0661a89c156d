"""The kinds of the campaign: server, probe options and faults of each.

A fault says how it is injected, the expected status, and the bound. It lasts as long as its block.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from tests.support import backends
from tests.support.backends import Backend
from tests.support.disks import LoopDisk
from tests.support.network_namespace import BLACK_HOLE_IPV6
from tests.support.servers.base import wait_until
from tests.support.servers.beacon import SLOT_S, BeaconServer
from tests.support.servers.chains import METHODS, StubChain
from tests.support.servers.etcd import EtcdServer
from tests.support.servers.ethereum_heads import EthereumHeads
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
from tests.support.servers.signers import MevBoostServer, Web3SignerServer
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
    from pathlib import Path

    from tests.support.servers.base import RealServer
    from tests.support.servers.fake_http import FakeHttpServer

    Injector = Callable[[Any], AbstractContextManager[None]]  # the argument is the server
    Make = Callable[[Path, ExitStack], RealServer]

Server = TypeVar("Server", bound="RealServer")

# The replicas drop a primary that sends nothing after 2 or 3 s, and check about once a second. Before that they do not
# know that they are disconnected.
REPLICATION_TIMEOUT_S = 5.0
# By default they drop it after 60 s.
DEFAULT_REPLICATION_TIMEOUT_S = 62.0
DEFAULT_REDIS_PING_S = 10.0  # an idle primary of Redis sends something this often
MAX_LAG_S = 20.0  # of a Redis replica with default settings; it must be longer than that

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
CONTRADICTS, SILENT = "contradicts itself", "connected, silent"


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


def with_state(**state: object) -> Injector:
    """For scripted servers."""

    @contextmanager
    def inject(server: Any) -> Iterator[None]:
        before = {name: server.state[name] for name in state}
        server.set(**state)
        yield
        server.set(**before)

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


def other_members(fault: Injector, wait_until_noticed: Callable[[Any], None]) -> Injector:
    """The other two of three members are killed or frozen."""

    @contextmanager
    def inject(member: Any) -> Iterator[None]:
        with ExitStack() as stack:
            for other in member.other_members:
                stack.enter_context(fault(other))
            wait_until_noticed(member)
            yield

    return inject


@contextmanager
def quorum_of_queue_lost(broker: Any) -> Iterator[None]:
    """One of the two members of a quorum queue is left."""
    with killed(broker.joins):
        yield
    broker.joins.wait_until_ready()


@contextmanager
def other_killed(server: Any) -> Iterator[None]:
    """The server that a scripted one depends on."""
    with killed(server.other):
        yield
    server.other.wait_until_ready()


def leaderless(member: Any) -> None:
    member.wait_until_leaderless()


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
PRIMARY_FROZEN_BY_DEFAULT = replace(PRIMARY_FROZEN, bound_s=DEFAULT_REPLICATION_TIMEOUT_S + NOT_READY_S)
# The probe asks the primary itself.
PRIMARY_SILENT = replace(PRIMARY_FROZEN, bound_s=NOT_READY_S)
# The probe reads for how long the replica has heard nothing. Afterwards, it hears something with the next ping.
PRIMARY_UNHEARD = replace(
    PRIMARY_FROZEN, bound_s=MAX_LAG_S + 1 + NOT_READY_S, recovery_bound_s=DEFAULT_REDIS_PING_S + 1 + READY_S
)
WITHOUT_QUORUM = tuple(
    replace(REPLICA_DISCONNECTED, inject=other_members(each, leaderless)) for each in (killed, frozen)
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
CLUSTER_LOST = tuple(
    Fault(QUORUM_LOST, other_members(each, cluster_is_down), INITIALIZING, NOT_READY_S) for each in (killed, frozen)
)
RECOVERING = starting(between("start_stalled_recovery", "finish_recovery"), state_after=RESTARTED)
LOADING = starting(between("start_stalled_loading", "finish_loading"), state_after=RESTARTED)
SYNCING = starting(with_state(is_syncing=True))
EXECUTION_OFFLINE = starting(with_state(el_offline=True))
WITHOUT_PEERS = starting(with_state(peers=0))
NOT_SERVING = starting(with_state(status="NOT_SERVING"))
STALE_BLOCK = starting(stale_block)
WITHOUT_KEYS = starting(with_state(keys=[]))
WITHOUT_RELAYS = starting(with_state(available_relays=0))
WITHOUT_DATABASE = Fault(ALARM, with_state(database="DOWN"), DOWN, REFUSED_S)


def contradicting(**state: object) -> Fault:
    """One answer says that all is well, and another one that it is not."""
    return starting(with_state(**state), CONTRADICTS)


def method_missing(*names: str) -> Fault:
    """The outcome is unknown, so that the service is never Down for it."""
    return replace(starting(with_state(missing=names), METHOD_MISSING), bound_s=STALE_S)


def cached(bound_s: float, **state: object) -> Fault:
    """With this state, the newest block is so old that it is too old after that time."""

    def inject(server: Any) -> AbstractContextManager[None]:
        return with_state(cached_at=time.time(), **state)(server)

    return replace(starting(inject, CACHED), bound_s=bound_s + NOT_READY_S)


LEFT_S = 5  # until a block is too old


def nearly_too_old(max_block_age_s: int) -> dict[str, object]:
    """The state of a chain that is not behind others."""
    return {"age_s": max_block_age_s - LEFT_S, "behind": -max_block_age_s - 1000}


def silent(max_block_age_s: int, expected: str, bound_s: float) -> Fault:
    """The last head that is delivered is too old some seconds later, and the client has newer blocks."""

    @contextmanager
    def inject(server: Any) -> Iterator[None]:
        with with_state(**nearly_too_old(max_block_age_s))(server):
            time.sleep(1)
            with with_state(is_silent=True)(server):
                yield

    return Fault(SILENT, inject, expected, LEFT_S + bound_s)


CHAIN_STANDS_STILL = starting(with_state(age_s=100_000), STILL)
CHAIN_BEHIND = starting(with_state(behind=1000), BEHIND)
CHAIN_CLOCK_WRONG = starting(with_state(ahead_s=10_000), CLOCK_WRONG)
BEACON_STANDS_STILL = starting(with_state(missed_slots=50), STILL)
BEACON_CLOCK_WRONG = starting(with_state(missed_slots=-50), CLOCK_WRONG)
# The age of a head that has missed 8 slots, which is allowed, is nearly 9 slots at the end of the next one.
BEACON_CACHED = cached(SLOT_S, missed_slots=8)


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
CHAIN_FAULTS = (STILL, BEHIND, CLOCK_WRONG, METHOD_MISSING, CACHED, CONTRADICTS, SILENT)


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
    has_connection: bool = True  # the probe has the option `reuse`, which is off by default
    is_named: bool = False  # the probe uses a name, and everything runs in a network namespace


COMMON_FAULTS = (KILLED, FROZEN, UNRESPONSIVE, RESETS)
FAKE_SERVER_NOTE = "no package: a scripted server that follows the documentation of the protocol"


def standalone(make_server: Callable[[Path], RealServer]) -> Make:
    return lambda folder, _: make_server(folder)


def by_default(server: Server) -> Server:
    """Without the settings with which it would notice sooner that others are gone."""
    server.quick_settings = {}
    return server


def with_other(make_server: Callable[[Path], Any], make_other: Callable[[Path], Any] | None = None) -> Make:
    """A scripted server, and another one that runs until the stack ends."""

    def make(folder: Path, stack: ExitStack) -> RealServer:
        server: FakeHttpServer = make_server(folder)
        server.other = stack.enter_context((make_other or make_server)(folder.with_name("other")))
        return server

    return make


def url_of_other(server: FakeHttpServer) -> list[str]:
    return [f"http://127.0.0.1:{server.other.port}"]


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
        for each in map(by_default, (self, *self.other_members)):
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
        others = [by_default(RedisMember(folder / name)) for name in ("m1", "m2")]
        self.other_members = [stack.enter_context(other) for other in others]
        by_default(self)

    def set_up(self) -> None:
        form_cluster((self, *self.other_members))


def _redis_sentinel(folder: Path, stack: ExitStack) -> RealServer:
    master = stack.enter_context(RedisServer(folder / "master", password="let-me-in"))
    return RedisSentinel(folder / "sentinel", master)


def default_replica(name: str, make_primary: Callable[[Path], Any], *faults: Fault, **options: Any) -> Kind:
    return Kind(name, replica_of(lambda folder: by_default(make_primary(folder))), faults, options=options)


def url_of_primary(replica: Any) -> str:
    url: str = replica.primary.url
    return url


def scripted_chain(name: str, kind: str, max_block_age_s: int, *contradictions: Fault) -> Kind:
    """With default options, besides the reference: a block may be that old."""
    faults = (
        *COMMON_FAULTS,
        SYNCING,
        CHAIN_STANDS_STILL,
        CHAIN_BEHIND,
        CHAIN_CLOCK_WRONG,
        method_missing(next(iter(METHODS[kind]))),  # the first one that the probe calls
        cached(LEFT_S, **nearly_too_old(max_block_age_s)),
        *contradictions,
    )
    make = with_other(partial(StubChain, kind=kind))
    return Kind(name, make, faults, options={"reference": url_of_other}, note=FAKE_SERVER_NOTE)


def ethereum_heads(name: str, *faults: Fault, **options: Any) -> Kind:
    return Kind(
        name,
        with_other(EthereumHeads, partial(StubChain, kind="ethereum")),
        faults,
        options={"reference": url_of_other, **options},
        has_connection=False,  # the probe keeps its connection by default
        note=FAKE_SERVER_NOTE,
    )


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
    Kind(
        "Galera member",
        standalone(lambda folder: by_default(GaleraMember(folder))),
        (*COMMON_FAULTS, GALERA_QUORUM_LOST),
    ),
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
    Kind("Redis Cluster member", RedisClusterMember, (*COMMON_FAULTS, *CLUSTER_LOST), options={"write": True}),
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
    default_replica(
        "PostgreSQL replica, defaults",
        PostgresServer,
        REPLICA_DISCONNECTED,
        PRIMARY_FROZEN_BY_DEFAULT,
        max_lag="1s",
    ),
    default_replica(
        "PostgreSQL replica with primary, defaults",
        PostgresServer,
        PRIMARY_SILENT,
        max_lag="1s",
        primary=url_of_primary,
    ),
    default_replica(
        "MariaDB replica, defaults", MariaDbServer, REPLICA_DISCONNECTED, PRIMARY_FROZEN_BY_DEFAULT, max_lag="5s"
    ),
    default_replica(
        "MariaDB replica with primary, defaults", MariaDbServer, PRIMARY_SILENT, max_lag="5s", primary=url_of_primary
    ),
    default_replica("Redis replica, defaults", RedisServer, REPLICA_DISCONNECTED, PRIMARY_FROZEN_BY_DEFAULT),
    default_replica("Redis replica with max_lag, defaults", RedisServer, PRIMARY_UNHEARD, max_lag=f"{MAX_LAG_S:g}s"),
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
    Kind("etcd member", _etcd_member, (*COMMON_FAULTS, *WITHOUT_QUORUM)),
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
            EXECUTION_OFFLINE,
            BEACON_STANDS_STILL,
            BEACON_CLOCK_WRONG,
            BEACON_CACHED,
            contradicting(is_syncing=True, health=200),
            contradicting(sync_distance=300),
            contradicting(is_optimistic=True),
            contradicting(peers=0),
        ),
        note=FAKE_SERVER_NOTE,
    ),
    Kind(
        "beacon with max_slot_lag",
        standalone(BeaconServer),
        (KILLED, BEACON_STANDS_STILL, method_missing("/eth/v1/node/syncing")),
        options={"max_slot_lag": 8},
        note=FAKE_SERVER_NOTE,
    ),
    scripted_chain("Ethereum client", "ethereum", 120, contradicting(peers=0)),
    scripted_chain("CometBFT", "cometbft", 60, contradicting(peers=0)),
    scripted_chain("Solana", "solana", 60),  # the kind reads nothing else that could contradict its health
    scripted_chain("Substrate", "substrate", 60, contradicting(peers=0), contradicting(finalized_age_s=100_000)),
    scripted_chain("Bitcoin", "bitcoin", 7200, contradicting(peers=0), contradicting(missing_blocks=1000)),
    scripted_chain("op-node", "opnode", 60, contradicting(l1_age_s=100_000)),
    ethereum_heads(
        "Ethereum heads",
        KILLED,
        silent(120, INITIALIZING, NOT_READY_S),  # a new subscription has as long as a block to deliver a head
        cached(LEFT_S, **nearly_too_old(120)),
    ),
    ethereum_heads(
        "Ethereum heads with max_block_age",
        *COMMON_FAULTS,
        SYNCING,
        CHAIN_STANDS_STILL,
        CHAIN_BEHIND,
        CHAIN_CLOCK_WRONG,
        replace(method_missing("eth_subscribe"), bound_s=1 + STALE_S),  # the connection ends within that second
        cached(LEFT_S, **nearly_too_old(LEFT_S)),
        replace(contradicting(head_age_s=100_000), expected=DOWN, bound_s=HUNG_S),
        silent(LEFT_S, DOWN, HUNG_S),
        max_block_age=f"{LEFT_S}s",
    ),
    Kind(
        "Web3Signer",
        standalone(Web3SignerServer),
        (
            *COMMON_FAULTS,
            WITHOUT_DATABASE,
            WITHOUT_KEYS,
            method_missing("/healthcheck"),
            Fault(CONTRADICTS, with_state(database="DOWN", claim="UP"), DOWN, REFUSED_S),
        ),
        note=FAKE_SERVER_NOTE,
    ),
    Kind("MEV-Boost", standalone(MevBoostServer), (*COMMON_FAULTS, WITHOUT_RELAYS), note=FAKE_SERVER_NOTE),
    Kind(
        "MEV-Boost with relays",
        with_other(MevBoostServer),
        (KILLED, starting(other_killed, CONTRADICTS)),
        options={"relays": url_of_other},
        note=FAKE_SERVER_NOTE,
    ),
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
