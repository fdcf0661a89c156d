"""The services that the scan knows, and how each is recognised: by a few bytes of its protocol, without its driver.

To add a service, add an entry and, if no other service has the same protocol, a matcher. A matcher of bytes returns
whether they match, or None if more bytes are needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from svcnode.core.model import VERSION_PATTERN
from svcnode.core.url import Url
from svcnode.net.http1 import Http1Client
from svcnode.net.streams import open_streams
from svcnode.net.trace import step

if TYPE_CHECKING:
    from svcnode.net.connect import TcpEndpoint

Matcher = Callable[[bytes], bool | None]
MAX_BANNER_BYTES = 4096  # all protocols here need far fewer

POSTGRESQL_SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
REDIS_PING = b"*1\r\n$4\r\nPING\r\n"
SENTINEL_MASTERS = b"*2\r\n$8\r\nSENTINEL\r\n$7\r\nMASTERS\r\n"
MEMCACHED_VERSION = b"version\r\n"
AMQP_PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"


class EmptyResponseError(OSError):
    """The server closed the connection without sending anything."""


class Fingerprint(Protocol):
    async def matches(self, endpoint: TcpEndpoint) -> bool:
        """Whether the service answers at the endpoint; raises `OSError`. The caller sets the deadline."""


@dataclass(frozen=True, slots=True)
class BannerFingerprint:
    """The first bytes that a service sends, unprompted or after a request."""

    matcher: Matcher
    request: bytes = b""

    async def matches(self, endpoint: TcpEndpoint) -> bool:
        streams = await open_streams(endpoint)
        try:
            with step("exchange"):
                streams.writer.write(self.request)
                received = b""
                while (is_match := self.matcher(received)) is None and len(received) < MAX_BANNER_BYTES:
                    if not (more := await streams.reader.read(MAX_BANNER_BYTES)):
                        break
                    received += more
            if not received:
                raise EmptyResponseError
            return bool(is_match)
        finally:
            streams.abort()


@dataclass(frozen=True, slots=True)
class HttpFingerprint:
    """The JSON of an HTTP response."""

    matcher: Callable[[object], bool]
    target: str
    method: str = "GET"
    body: bytes = b""

    async def matches(self, endpoint: TcpEndpoint) -> bool:
        http = Http1Client(Url(scheme="http", host=endpoint.host, port=endpoint.port))
        request = http.build_request(
            self.target, method=self.method, body=self.body, content_type="application/json", needs="body"
        )
        response = await http.send(request)
        return response.status == 200 and self.matcher(response.document())


# ---- matchers of bytes


def begins_with(*prefixes: bytes) -> Matcher:
    def match(received: bytes) -> bool | None:
        if received.startswith(prefixes):
            return True
        return None if any(prefix.startswith(received) for prefix in prefixes) else False

    return match


def is_postgresql(received: bytes) -> bool | None:
    """One byte, for TLS or no TLS, and nothing after it. An SSH banner also begins with S, but is longer."""
    return received in (b"S", b"N") if received else None


# Any reply to PING, errors included: their prefixes are specific to Redis.
is_redis = begins_with(
    b"+PONG\r\n",
    b"-NOAUTH ",
    b"-NOPERM ",
    b"-LOADING ",
    b"-DENIED ",
    b"-MASTERDOWN ",
    b"-MISCONF ",
    b"-BUSY ",
    b"-ERR max number of clients",
    b"-ERR operation not permitted",
)
# A list of masters, which another Redis server refuses: it does not know the command.
is_sentinel = begins_with(b"*")
is_memcached = begins_with(b"VERSION ")
is_nats = begins_with(b"INFO {")


def is_mysql(received: bytes) -> bool | None:
    """The first packet of a connection: a handshake with a version, or an error."""
    if len(received) < 7:
        return None if received[3:4] in (b"", b"\x00") and received[4:5] in (b"", b"\x0a", b"\xff") else False
    is_first_packet = received[3] == 0
    is_handshake = received[4] == 10 and received[5:6].isdigit()
    is_error = received[4] == 0xFF and 1000 <= int.from_bytes(received[5:7], "little") < 10_000
    return is_first_packet and (is_handshake or is_error)


def is_amqp(received: bytes) -> bool | None:
    """The first frame of a broker: method connection.start (class 10, method 10) on channel 0."""
    if len(received) < 11:
        return None if b"\x01\x00\x00".startswith(received[:3]) else False
    return received[:3] == b"\x01\x00\x00" and received[7:11] == b"\x00\x0a\x00\x0a"


# ---- matchers of JSON


def is_etcd(document: object) -> bool:
    return isinstance(document, dict) and isinstance(document.get("etcdserver"), str)


def is_execution_client(document: object) -> bool:
    match document:
        case {"jsonrpc": "2.0", "result": str(version)}:
            return bool(version)
        case _:
            return False


def is_beacon_node(document: object) -> bool:
    data = document.get("data") if isinstance(document, dict) else None
    return isinstance(data, dict) and isinstance(data.get("version"), str)


def is_ipfs(document: object) -> bool:
    return isinstance(document, dict) and isinstance(document.get("Version"), str)


def is_node(document: object) -> bool:
    match document:
        case {"node_name": str(), "spec_version": str(spec), "node_version": str(version)}:
            return all(VERSION_PATTERN.fullmatch(text) for text in (spec, version))
        case _:
            return False


# ---- the catalog


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
