"""The services that the scan knows. To add a service, add an entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from svcnode.discovery.fingerprint import (
    AMQP_PROTOCOL_HEADER,
    MEMCACHED_VERSION,
    POSTGRESQL_SSL_REQUEST,
    REDIS_PING,
    SENTINEL_MASTERS,
    BannerFingerprint,
    Fingerprint,
    HttpFingerprint,
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
    is_sentinel,
)

if TYPE_CHECKING:
    from svcnode.net.connect import TcpEndpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    kind: str  # the name in `--port`, and the id of the service
    title: str
    ports: tuple[int, ...]
    fingerprint: Fingerprint
    # Probe URLs with {address} for host:port: without a password, and with one.
    url: str
    login_url: str = ""
    aliases: tuple[str, ...] = ()
    article: str = ""
    fallback: CatalogEntry | None = None  # tried at the same port if this one does not match

    @property
    def title_with_article(self) -> str:
        return f"{self.article} {self.title}".lstrip()

    def probe_at(self, endpoint: TcpEndpoint) -> str:
        return self.url.replace("{address}", str(endpoint))

    def login_probe_at(self, endpoint: TcpEndpoint) -> str:
        return self.login_url.replace("{address}", str(endpoint))


_EIGEN_NODE = CatalogEntry(
    kind="node",
    title="another validator-service node, under /eigen",
    ports=(),
    fingerprint=HttpFingerprint(is_node, "/eigen/node"),
    url="svc+http://{address}/eigen/node",
)

CATALOG = (
    CatalogEntry(
        kind="postgresql",
        title="PostgreSQL",
        ports=(5432,),
        fingerprint=BannerFingerprint(is_postgresql, POSTGRESQL_SSL_REQUEST),
        url="postgresql://postgres@{address}/postgres",
        login_url="postgresql://svcnode:${POSTGRESQL_PASSWORD}@{address}/postgres",
    ),
    CatalogEntry(
        kind="mysql",
        title="MySQL or MariaDB",
        ports=(3306,),
        fingerprint=BannerFingerprint(is_mysql),
        url="mysql://root@{address}",
        login_url="mysql://svcnode:${MYSQL_PASSWORD}@{address}",
        aliases=("mariadb",),
    ),
    CatalogEntry(
        kind="redis",
        title="Redis or Valkey",
        ports=(6379,),
        fingerprint=BannerFingerprint(is_redis, REDIS_PING),
        url="redis://{address}",
        login_url="redis://:${REDIS_PASSWORD}@{address}",
        aliases=("valkey",),
    ),
    CatalogEntry(
        kind="sentinel",
        title="Redis Sentinel",
        article="a",
        ports=(26379,),
        fingerprint=BannerFingerprint(is_sentinel, SENTINEL_MASTERS),
        url="redis+sentinel://{address}/mymaster",  # the name in every example
        login_url="redis+sentinel://:${REDIS_PASSWORD}@{address}/mymaster",
    ),
    CatalogEntry(
        kind="memcached",
        title="memcached",
        ports=(11211,),
        fingerprint=BannerFingerprint(is_memcached, MEMCACHED_VERSION),
        url="memcached://{address}",
    ),
    CatalogEntry(
        kind="amqp",
        title="AMQP broker",
        article="an",
        ports=(5672,),
        fingerprint=BannerFingerprint(is_amqp, AMQP_PROTOCOL_HEADER),
        url="amqp://{address}",
        login_url="amqp://svcnode:${AMQP_PASSWORD}@{address}",
        aliases=("rabbitmq",),
    ),
    CatalogEntry(
        kind="nats",
        title="NATS",
        ports=(4222,),
        fingerprint=BannerFingerprint(is_nats),
        url="nats://{address}",
        login_url="nats://svcnode:${NATS_PASSWORD}@{address}",
    ),
    CatalogEntry(
        kind="etcd",
        title="etcd",
        ports=(2379,),
        fingerprint=HttpFingerprint(is_etcd, "/version"),
        url="etcd://{address}",
    ),
    CatalogEntry(
        kind="ethereum",
        title="Ethereum execution client",
        article="an",
        ports=(8545,),
        fingerprint=HttpFingerprint(
            is_execution_client,
            "/",
            method="POST",
            body=b'{"jsonrpc":"2.0","id":1,"method":"web3_clientVersion","params":[]}',
        ),
        url="ethereum+http://{address}",
    ),
    CatalogEntry(
        kind="beacon",
        title="Ethereum beacon node",
        article="an",
        ports=(5052, 3500, 9596),  # Lighthouse, Prysm, Lodestar
        fingerprint=HttpFingerprint(is_beacon_node, "/eth/v1/node/version"),
        url="beacon+http://{address}",
    ),
    CatalogEntry(
        kind="ipfs",
        title="IPFS node",
        article="an",
        ports=(5001,),
        fingerprint=HttpFingerprint(is_ipfs, "/api/v0/version", method="POST"),
        url="ipfs+http://{address}",
    ),
    CatalogEntry(
        kind="node",
        title="another validator-service node",
        ports=(8420,),
        fingerprint=HttpFingerprint(is_node, "/svc/node"),
        url="svc+http://{address}",
        aliases=("svc",),
        fallback=_EIGEN_NODE,
    ),
)
