"""What is done to a server, what the node is to say of it then, and by when. A fault lasts as long as its block."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tests.support import backends
from tests.support.backends import Backend
from tests.support.servers.base import wait_until
from tests.truth.bounds import HUNG_S, NOT_READY_S, REFUSED_S
from tests.truth.judge import DOWN, INITIALIZING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tests.support.servers.base import RealServer

    Infliction = Callable[[Any], AbstractContextManager[None]]  # on a server that can be hurt so

# The replicas are told to give a silent primary up after 2 or 3 s, and see to it once a second or so. Before that, they
# do not know themselves that they are cut off.
SILENCE_S = 5.0

READY, RESTARTED = "ready", "restarted"
NOT_STARTED, WRONG_CREDENTIALS = "not started yet", "wrong credentials"


@dataclass(frozen=True, slots=True)
class Fault:
    name: str
    inflict: Infliction
    expected: str
    bound_s: float
    then: str = READY  # what the server is when it is over


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
def mute(server: RealServer) -> Iterator[None]:
    server.kill()
    with Backend(backends.mute, port=server.port):
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
    server.start_held_in_recovery()
    yield
    server.let_recovery_end()


@contextmanager
def loading(server: Any) -> Iterator[None]:
    server.start_held_loading()
    yield
    server.let_loading_end()


def saying(what: Mapping[str, object], usually: Mapping[str, object]) -> Infliction:
    """Of servers that say of themselves what they are told to."""

    @contextmanager
    def told(server: Any) -> Iterator[None]:
        server.set(**what)
        yield
        server.set(**usually)

    return told


@contextmanager
def behind(server: Any) -> Iterator[None]:
    """Its newest block is one of two hours ago, as while it catches up with its chain."""
    server.mine(age_s=7200)
    yield
    server.mine()


@contextmanager
def cut_off(replica: Any) -> Iterator[None]:
    replica.primary.kill()
    yield
    replica.primary.start()
    replica.primary.wait_until_ready()
    wait_until(replica.is_following, "following its primary")


@contextmanager
def silenced(replica: Any) -> Iterator[None]:
    """Nothing comes from its primary any more, not even the end of their connection."""
    replica.primary.freeze()
    yield
    replica.primary.thaw()
    wait_until(replica.is_following, "following its primary")


@contextmanager
def outvoted(member: Any) -> Iterator[None]:
    """Of three members one is left. It takes an election that nobody wins until it knows."""
    for other in member.others:
        other.kill()
    member.wait_until_leaderless()
    yield
    for other in member.others:
        other.start()


def starting(inflict: Infliction, then: str = READY) -> Fault:
    return Fault("starting", inflict, INITIALIZING, NOT_READY_S, then)


KILLED = Fault("killed", killed, DOWN, REFUSED_S, RESTARTED)
FROZEN = Fault("frozen", frozen, DOWN, HUNG_S)
MUTE = Fault("port open but mute", mute, DOWN, HUNG_S, RESTARTED)
RESETS = Fault("accepts and resets", resetting, DOWN, REFUSED_S, RESTARTED)
EXHAUSTED = Fault("out of connections", exhausted, DOWN, HUNG_S)
CUT_OFF = Fault("replica cut off", cut_off, INITIALIZING, NOT_READY_S)
SILENCED = replace(CUT_OFF, inflict=silenced, bound_s=NOT_READY_S + SILENCE_S)
OUTVOTED = replace(CUT_OFF, inflict=outvoted)
RECOVERING = starting(recovering, RESTARTED)
LOADING = starting(loading, RESTARTED)
SYNCING = starting(saying({"is_syncing": True}, {"is_syncing": False}))
WITHOUT_PEERS = starting(saying({"peers": 0}, {"peers": 3}))
NOT_SERVING = starting(saying({"status": "NOT_SERVING"}, {"status": "SERVING"}))
BEHIND = starting(behind)

# Beside the wrong credentials, which cost no time.
SHORT_FAULTS = (KILLED, FROZEN)

# The columns of the matrix.
NAMES = (
    NOT_STARTED,
    RECOVERING.name,
    READY,
    KILLED.name,
    FROZEN.name,
    MUTE.name,
    RESETS.name,
    WRONG_CREDENTIALS,
    EXHAUSTED.name,
    RESTARTED,
    CUT_OFF.name,
)
