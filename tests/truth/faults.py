"""Faults: how each is injected, the expected status, and the bound. A fault lasts as long as its block."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tests.support import backends
from tests.support.backends import Backend
from tests.support.servers.base import wait_until
from tests.truth.evaluate import DOWN, INITIALIZING
from tests.truth.timing import HUNG_S, NOT_READY_S, REFUSED_S

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


@contextmanager
def killed(server: RealServer) -> Iterator[None]:
    server.kill()
    yield
    server.start()


@contextmanager
def frozen(server: RealServer) -> Iterator[None]:
    server.freeze()
    yield
    server.thaw()


@contextmanager
def unresponsive(server: RealServer) -> Iterator[None]:
    server.kill()
    with Backend(backends.unresponsive, port=server.port):
        yield
    server.start()


@contextmanager
def resetting(server: RealServer) -> Iterator[None]:
    server.kill()
    with Backend(backends.reset, port=server.port):
        yield
    server.start()


@contextmanager
def exhausted(server: Any) -> Iterator[None]:
    with server.exhaust():
        yield


@contextmanager
def recovering(server: Any) -> Iterator[None]:
    server.start_stalled_recovery()
    yield
    server.finish_recovery()


@contextmanager
def loading(server: Any) -> Iterator[None]:
    server.start_stalled_loading()
    yield
    server.finish_loading()


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
    replica.primary.kill()
    yield
    replica.primary.start()
    replica.primary.wait_until_ready()
    wait_until(replica.is_following, "following its primary")


@contextmanager
def primary_frozen(replica: Any) -> Iterator[None]:
    """The primary sends nothing, and the connection stays open."""
    replica.primary.freeze()
    yield
    replica.primary.thaw()
    wait_until(replica.is_following, "following its primary")


@contextmanager
def without_quorum(member: Any) -> Iterator[None]:
    """One of three members is left. It notices after an election without a winner."""
    for other in member.other_members:
        other.kill()
    member.wait_until_leaderless()
    yield
    for other in member.other_members:
        other.start()


@contextmanager
def broker_alarm(broker: Any) -> Iterator[None]:
    with broker.disk_alarm():
        yield


@contextmanager
def stream_storage_full(server: Any) -> Iterator[None]:
    with server.storage_full():
        yield


@contextmanager
def quorum_of_queue_lost(broker: Any) -> Iterator[None]:
    """One of the two members of a quorum queue is left."""
    broker.joins.kill()
    yield
    broker.joins.start()
    broker.joins.wait_until_ready()


def starting(inject: Injector, state_after: str = READY) -> Fault:
    return Fault("starting", inject, INITIALIZING, NOT_READY_S, state_after)


KILLED = Fault("killed", killed, DOWN, REFUSED_S, RESTARTED)
FROZEN = Fault("frozen", frozen, DOWN, HUNG_S)
UNRESPONSIVE = Fault("port open, no response", unresponsive, DOWN, HUNG_S, RESTARTED)
RESETS = Fault("accepts and resets", resetting, DOWN, REFUSED_S, RESTARTED)
EXHAUSTED = Fault("out of connections", exhausted, DOWN, HUNG_S)
REPLICA_DISCONNECTED = Fault("replica disconnected", primary_killed, INITIALIZING, NOT_READY_S)
PRIMARY_FROZEN = replace(REPLICA_DISCONNECTED, inject=primary_frozen, bound_s=NOT_READY_S + REPLICATION_TIMEOUT_S)
WITHOUT_QUORUM = replace(REPLICA_DISCONNECTED, inject=without_quorum)
BROKER_ALARM = Fault(ALARM, broker_alarm, INITIALIZING, NOT_READY_S)
STREAM_STORAGE_FULL = Fault(STORAGE_FULL, stream_storage_full, INITIALIZING, NOT_READY_S)
# RabbitMQ rejects the message, or does not confirm it.
QUORUM_OF_QUEUE_LOST = Fault(QUORUM_LOST, quorum_of_queue_lost, DOWN, HUNG_S)
RECOVERING = starting(recovering, RESTARTED)
LOADING = starting(loading, RESTARTED)
SYNCING = starting(with_state({"is_syncing": True}, {"is_syncing": False}))
EXECUTION_OFFLINE = starting(with_state({"el_offline": True}, {"el_offline": False}))
WITHOUT_PEERS = starting(with_state({"peers": 0}, {"peers": 3}))
NOT_SERVING = starting(with_state({"status": "NOT_SERVING"}, {"status": "SERVING"}))
STALE_BLOCK = starting(stale_block)

# Wrong credentials are tested too, at the same time.
SHORT_FAULTS = (KILLED, FROZEN)

# The columns of the matrix.
FAULT_NAMES = (
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
