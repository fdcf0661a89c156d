"""The kinds of the campaign: server, probe options and faults of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.support.servers.beacon import BeaconServer
from tests.support.servers.etcd import EtcdServer
from tests.support.servers.ganache import GanacheServer
from tests.support.servers.grpc_health import GrpcHealthServer
from tests.support.servers.ipfs import IpfsServer
from tests.support.servers.mariadb import MariaDbServer
from tests.support.servers.memcached import MemcachedServer
from tests.support.servers.nats import JetStream, NatsServer
from tests.support.servers.nginx import NginxServer
from tests.support.servers.postgresql import PostgresServer
from tests.support.servers.rabbitmq import QUORUM_QUEUE, RabbitServer
from tests.support.servers.redis import RedisServer
from tests.truth.faults import (
    BROKER_ALARM,
    EXECUTION_OFFLINE,
    EXHAUSTED,
    FROZEN,
    KILLED,
    LOADING,
    NOT_SERVING,
    PRIMARY_FROZEN,
    QUORUM_OF_QUEUE_LOST,
    RECOVERING,
    REPLICA_DISCONNECTED,
    RESETS,
    STALE_BLOCK,
    STREAM_STORAGE_FULL,
    SYNCING,
    UNRESPONSIVE,
    WITHOUT_PEERS,
    WITHOUT_QUORUM,
    Fault,
)

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
    options: Mapping[str, Any] = field(default_factory=dict)  # of its probe
    note: str = ""


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
        cluster = ",".join(each.cluster for each in (self, *self.other_members))
        for each in (self, *self.other_members):
            each.cluster = cluster


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


_ALL = (
    Kind(
        name="PostgreSQL",
        make=standalone(PostgresServer),
        faults=(*COMMON_FAULTS, EXHAUSTED, RECOVERING),
        has_credentials=True,
    ),
    Kind(
        name="PostgreSQL replica",
        make=replica_of(PostgresServer),
        faults=(*COMMON_FAULTS, REPLICA_DISCONNECTED, PRIMARY_FROZEN),
        has_credentials=True,
        options={"max_lag": "1s"},
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
    Kind(name="MariaDB", make=standalone(MariaDbServer), faults=(*COMMON_FAULTS, EXHAUSTED), has_credentials=True),
    Kind(
        name="MariaDB replica",
        make=replica_of(MariaDbServer),
        faults=(*COMMON_FAULTS, REPLICA_DISCONNECTED, PRIMARY_FROZEN),
        has_credentials=True,
        options={"max_lag": "1s"},
    ),
    Kind(
        name="Redis",
        make=standalone(lambda folder: RedisServer(folder, password="let-me-in")),
        faults=(*COMMON_FAULTS, EXHAUSTED, LOADING),
        has_credentials=True,
    ),
    Kind(
        name="Redis replica",
        make=replica_of(lambda folder: RedisServer(folder, password="let-me-in")),
        faults=(*COMMON_FAULTS, REPLICA_DISCONNECTED, PRIMARY_FROZEN),
        has_credentials=True,
    ),
    Kind(name="memcached", make=standalone(MemcachedServer), faults=(*COMMON_FAULTS, EXHAUSTED)),
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
    Kind(name="etcd member", make=_etcd_member, faults=(*COMMON_FAULTS, WITHOUT_QUORUM)),
    Kind(name="nginx", make=standalone(NginxServer), faults=(*COMMON_FAULTS, EXHAUSTED), has_credentials=True),
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
KINDS = {kind.name: kind for kind in _ALL}
SHORT_KINDS = ("PostgreSQL", "Redis", "nginx")
