"""The services that are looked for: a new one is a new row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from svcnode.discovery.speech import (
    AMQP_0_9_1,
    MEMCACHED_VERSION,
    POSTGRESQL_ASKS_FOR_TLS,
    REDIS_PING,
    Document,
    Speech,
    Words,
    is_amqp,
    is_beacon_node,
    is_etcd,
    is_execution_client,
    is_ipfs,
    is_memcached,
    is_mysql,
    is_nats,
    is_node,
    is_postgresql,
    is_redis,
)

if TYPE_CHECKING:
    from svcnode.probes.tools.connect import Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    kind: str  # what `--port` calls it, and the id of the service
    title: str
    ports: tuple[int, ...]
    speech: Speech
    # Probe URLs, with {place} for host and port: one that needs nobody's password, and one with a place for it.
    url: str
    login_url: str = ""
    aliases: tuple[str, ...] = ()
    article: str = ""

    @property
    def spoken(self) -> str:
        return f"{self.article} {self.title}".lstrip()

    def probe_at(self, endpoint: Endpoint) -> str:
        return self.url.replace("{place}", str(endpoint))

    def login_probe_at(self, endpoint: Endpoint) -> str:
        return self.login_url.replace("{place}", str(endpoint))


KNOWN = (
    Known(
        kind="postgresql",
        title="PostgreSQL",
        ports=(5432,),
        speech=Words(is_postgresql, POSTGRESQL_ASKS_FOR_TLS),
        url="postgresql://postgres@{place}/postgres",
        login_url="postgresql://svcnode:${POSTGRESQL_PASSWORD}@{place}/postgres",
    ),
    Known(
        kind="mysql",
        title="MySQL or MariaDB",
        ports=(3306,),
        speech=Words(is_mysql),
        url="mysql://root@{place}",
        login_url="mysql://svcnode:${MYSQL_PASSWORD}@{place}",
        aliases=("mariadb",),
    ),
    Known(
        kind="redis",
        title="Redis or Valkey",
        ports=(6379,),
        speech=Words(is_redis, REDIS_PING),
        url="redis://{place}",
        login_url="redis://:${REDIS_PASSWORD}@{place}",
        aliases=("valkey",),
    ),
    Known(
        kind="memcached",
        title="memcached",
        ports=(11211,),
        speech=Words(is_memcached, MEMCACHED_VERSION),
        url="memcached://{place}",
    ),
    Known(
        kind="amqp",
        title="AMQP broker",
        article="an",
        ports=(5672,),
        speech=Words(is_amqp, AMQP_0_9_1),
        url="amqp://{place}",
        login_url="amqp://svcnode:${AMQP_PASSWORD}@{place}",
        aliases=("rabbitmq",),
    ),
    Known(
        kind="nats",
        title="NATS",
        ports=(4222,),
        speech=Words(is_nats),
        url="nats://{place}",
        login_url="nats://svcnode:${NATS_PASSWORD}@{place}",
    ),
    Known(
        kind="etcd",
        title="etcd",
        ports=(2379,),
        speech=Document(is_etcd, "/version"),
        url="etcd://{place}",
    ),
    Known(
        kind="ethereum",
        title="Ethereum execution client",
        article="an",
        ports=(8545,),
        speech=Document(
            is_execution_client,
            "/",
            method="POST",
            body=b'{"jsonrpc":"2.0","id":1,"method":"web3_clientVersion","params":[]}',
        ),
        url="ethereum+http://{place}",
    ),
    Known(
        kind="beacon",
        title="Ethereum beacon node",
        article="an",
        ports=(5052, 3500, 9596),  # Lighthouse, Prysm, Lodestar
        speech=Document(is_beacon_node, "/eth/v1/node/version"),
        url="beacon+http://{place}",
    ),
    Known(
        kind="ipfs",
        title="IPFS node",
        article="an",
        ports=(5001,),
        speech=Document(is_ipfs, "/api/v0/version", method="POST"),
        url="ipfs+http://{place}",
    ),
    Known(
        kind="node",
        title="node of this interface",
        article="a",
        ports=(8420,),
        speech=Document(is_node, "/svc/node"),
        url="svc+http://{place}",
        aliases=("svc",),
    ),
)
