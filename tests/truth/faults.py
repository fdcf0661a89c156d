"""What is done to a server, what the node is to say of it then, and by when. A fault lasts as long as its block."""

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

    Injector = Callable[[Any], AbstractContextManager[None]]  # on a server that can be hurt so

# The replicas are told to give a silent primary up after 2 or 3 s, and see to it once a second or so. Before that, they
# do not know themselves that they are cut off.
REPLICATION_TIMEOUT_S = 5.0

READY, RESTARTED = "ready", "restarted"
NOT_STARTED, WRONG_CREDENTIALS = "not started yet", "wrong credentials"


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    inject: Injector
    expected: str
    bound_s: float
    state_after: str = READY  # what the server is when it is over


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


def with_state(what: Mapping[str, object], defaults: Mapping[str, object]) -> Injector:
    """Of servers that say of themselves what they are told to."""

    @contextmanager
    def told(server: Any) -> Iterator[None]:
        server.set(**what)
        yield
        server.set(**defaults)

    return told


@contextmanager
def stale_block(server: Any) -> Iterator[None]:
    """Its newest block is one of two hours ago, as while it catches up with its chain."""
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
    """Nothing comes from its primary any more, not even the end of their connection."""
    replica.primary.freeze()
    yield
    replica.primary.thaw()
    wait_until(replica.is_following, "following its primary")


@contextmanager
def without_quorum(member: Any) -> Iterator[None]:
    """Of three members one is left. It takes an election that nobody wins until it knows."""
    for other in member.other_members:
        other.kill()
    member.wait_until_leaderless()
    yield
    for other in member.other_members:
        other.start()


def starting(inflict: Injector, then: str = READY) -> Fault:
    return Fault("starting", inflict, INITIALIZING, NOT_READY_S, then)


KILLED = Fault("killed", killed, DOWN, REFUSED_S, RESTARTED)
FROZEN = Fault("frozen", frozen, DOWN, HUNG_S)
UNRESPONSIVE = Fault("port open, no response", unresponsive, DOWN, HUNG_S, RESTARTED)
RESETS = Fault("accepts and resets", resetting, DOWN, REFUSED_S, RESTARTED)
EXHAUSTED = Fault("out of connections", exhausted, DOWN, HUNG_S)
REPLICA_DISCONNECTED = Fault("replica disconnected", primary_killed, INITIALIZING, NOT_READY_S)
PRIMARY_FROZEN = replace(REPLICA_DISCONNECTED, inject=primary_frozen, bound_s=NOT_READY_S + REPLICATION_TIMEOUT_S)
WITHOUT_QUORUM = replace(REPLICA_DISCONNECTED, inject=without_quorum)
RECOVERING = starting(recovering, RESTARTED)
LOADING = starting(loading, RESTARTED)
SYNCING = starting(with_state({"is_syncing": True}, {"is_syncing": False}))
WITHOUT_PEERS = starting(with_state({"peers": 0}, {"peers": 3}))
NOT_SERVING = starting(with_state({"status": "NOT_SERVING"}, {"status": "SERVING"}))
STALE_BLOCK = starting(stale_block)

# Beside the wrong credentials, which cost no time.
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
)
