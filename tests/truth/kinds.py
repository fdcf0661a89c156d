"""The table of kinds: how the server of each is made, how it is looked at, and what can be done to it."""

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
from tests.support.servers.nats import NatsServer
from tests.support.servers.nginx import NginxServer
from tests.support.servers.postgresql import PostgresServer
from tests.support.servers.rabbitmq import RabbitServer
from tests.support.servers.redis import RedisServer
from tests.truth.faults import (
    BEHIND,
    CUT_OFF,
    EXHAUSTED,
    FROZEN,
    KILLED,
    LOADING,
    MUTE,
    NOT_SERVING,
    OUTVOTED,
    RECOVERING,
    RESETS,
    SILENCED,
    SYNCING,
    WITHOUT_PEERS,
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
    make: Make  # not started; what it needs beside itself runs until the stack ends
    faults: tuple[Fault, ...]  # in this order
    has_credentials: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)  # of its probe
    note: str = ""


EVERY = (KILLED, FROZEN, MUTE, RESETS)
OF_OUR_OWN = "no server to be had: a test server written from the protocol's documentation"


def alone(made_by: Callable[[Path], RealServer]) -> Make:
    return lambda folder, _: made_by(folder)


def following(made_by: Callable[[Path], Any]) -> Make:
    """A replica, whose primary runs."""

    def make(folder: Path, stack: ExitStack) -> RealServer:
        primary = stack.enter_context(made_by(folder / "primary"))
        replica: RealServer = primary.replica(folder / "replica")
        return replica

    return make


class EtcdMember(EtcdServer):
    """One of three."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "m1", member="m1")
        self.others = [EtcdServer(folder / member, member=member) for member in ("m2", "m3")]
        cluster = ",".join(each.cluster for each in (self, *self.others))
        for each in (self, *self.others):
            each.cluster = cluster


def _etcd_member(folder: Path, stack: ExitStack) -> RealServer:
    member = EtcdMember(folder)
    for other in member.others:
        stack.callback(other.kill)
        other.start()
    return member


_ALL = (
    Kind(
        name="PostgreSQL",
        make=alone(PostgresServer),
        faults=(*EVERY, EXHAUSTED, RECOVERING),
        has_credentials=True,
    ),
    Kind(
        name="PostgreSQL replica",
        make=following(PostgresServer),
        faults=(*EVERY, CUT_OFF, SILENCED),
        has_credentials=True,
        options={"max_lag": "1s"},
    ),
    Kind(name="RabbitMQ", make=alone(RabbitServer), faults=(*EVERY, EXHAUSTED), has_credentials=True),
    Kind(name="MariaDB", make=alone(MariaDbServer), faults=(*EVERY, EXHAUSTED), has_credentials=True),
    Kind(
        name="MariaDB replica",
        make=following(MariaDbServer),
        faults=(*EVERY, CUT_OFF, SILENCED),
        has_credentials=True,
        options={"max_lag": "1s"},
    ),
    Kind(
        name="Redis",
        make=alone(lambda folder: RedisServer(folder, password="let-me-in")),
        faults=(*EVERY, EXHAUSTED, LOADING),
        has_credentials=True,
    ),
    Kind(
        name="Redis replica",
        make=following(lambda folder: RedisServer(folder, password="let-me-in")),
        faults=(*EVERY, CUT_OFF, SILENCED),
        has_credentials=True,
    ),
    Kind(name="memcached", make=alone(MemcachedServer), faults=(*EVERY, EXHAUSTED)),
    Kind(name="NATS", make=alone(NatsServer), faults=(*EVERY, EXHAUSTED), has_credentials=True),
    Kind(
        name="etcd",
        make=alone(lambda folder: EtcdServer(folder, is_guarded=True)),
        faults=EVERY,
        has_credentials=True,
    ),
    Kind(name="etcd member", make=_etcd_member, faults=(*EVERY, OUTVOTED)),
    Kind(name="nginx", make=alone(NginxServer), faults=(*EVERY, EXHAUSTED), has_credentials=True),
    Kind(
        name="gRPC health",
        make=alone(GrpcHealthServer),
        faults=(*EVERY, NOT_SERVING),
        options={"starting_status": "NOT_SERVING"},
    ),
    Kind(
        name="Ethereum",
        make=alone(GanacheServer),
        faults=(*EVERY, BEHIND),
        options={"max_block_age": "1h"},
        note="ganache",
    ),
    Kind(name="beacon", make=alone(BeaconServer), faults=(*EVERY, SYNCING), note=OF_OUR_OWN),
    Kind(
        name="IPFS",
        make=alone(IpfsServer),
        faults=(*EVERY, WITHOUT_PEERS),
        options={"min_peers": 1},
        note=OF_OUR_OWN,
    ),
)
KINDS = {kind.name: kind for kind in _ALL}
SHORT_KINDS = ("PostgreSQL", "Redis", "nginx")
