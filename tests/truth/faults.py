"""Faults: how each is injected, the expected status, and the bound. A fault lasts as long as its block."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import backends
from tests.support.backends import Backend
from tests.support.network_namespace import BLACK_HOLE_IPV6
from tests.support.servers.base import wait_until
from tests.truth.evaluate import DOWN, INITIALIZING, UP
from tests.truth.timing import (
    CRASH_LOOP_S,
    CRASHED_S,
    EVERY_SECOND_S,
    HUNG_S,
    NOT_READY_S,
    READY_S,
    REFUSED_S,
    RELIABLE_S,
    RUNNING_S,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.support.servers.base import RealServer

    Injector = Callable[[Any], AbstractContextManager[None]]  # the argument is the server

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


def starting(inject: Injector, state_after: str = READY) -> Fault:
    return Fault("starting", inject, INITIALIZING, NOT_READY_S, state_after)


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
RECOVERING = starting(between("start_stalled_recovery", "finish_recovery"), RESTARTED)
LOADING = starting(between("start_stalled_loading", "finish_loading"), RESTARTED)
SYNCING = starting(with_state({"is_syncing": True}, {"is_syncing": False}))
EXECUTION_OFFLINE = starting(with_state({"el_offline": True}, {"el_offline": False}))
WITHOUT_PEERS = starting(with_state({"peers": 0}, {"peers": 3}))
NOT_SERVING = starting(with_state({"status": "NOT_SERVING"}, {"status": "SERVING"}))
STALE_BLOCK = starting(stale_block)

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
FAULT_NAMES = (*AVAILABILITY_FAULTS, *WORK_FAULTS)
