"""The services that the scan knows, and how each is recognised: by a few bytes of its protocol, without its driver.

To add a service, add an entry and, if no other service has the same protocol, a matcher. A matcher of bytes returns
whether they match, or None if more bytes are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from svcnode.core.model import VERSION_PATTERN
from svcnode.core.url import Url
from svcnode.net.http1 import Http1Client
from svcnode.net.streams import open_streams
from svcnode.net.trace import step
from svcnode.probes.jsonrpc_protocol import encode_request

if TYPE_CHECKING:
    from svcnode.net.connect import TcpEndpoint
    from svcnode.net.http_response import HttpResponse

Matcher = Callable[[bytes], bool | None]
ProbeConfig = str | dict[str, object]  # a URL, or a table with its options
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
    """An HTTP response."""

    matcher: Callable[[HttpResponse], bool]
    target: str
    method: str = "GET"
    body: bytes = b""

    async def matches(self, endpoint: TcpEndpoint) -> bool:
        http = Http1Client(Url(scheme="http", host=endpoint.host, port=endpoint.port))
        request = http.build_request(
            self.target, method=self.method, body=self.body, content_type="application/json", needs="body"
        )
        return self.matcher(await http.send(request))


@dataclass(frozen=True, slots=True)
class ExceptFingerprint:
    """The fingerprint of a service, except for servers that another fingerprint also matches."""

    fingerprint: Fingerprint
    other: Fingerprint

    async def matches(self, endpoint: TcpEndpoint) -> bool:
        return await self.fingerprint.matches(endpoint) and not await self.other.matches(endpoint)


def rpc(matcher: Callable[[object], bool], method: str, *params: object) -> HttpFingerprint:
    """The response to a call of JSON-RPC."""
    return HttpFingerprint(has_json(matcher), "/", "POST", encode_request(method, [*params]))


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


# ---- matchers of HTTP responses


def has_json(
    matcher: Callable[[object], bool], *, statuses: tuple[int, ...] = (200,)
) -> Callable[[HttpResponse], bool]:
    return lambda response: response.status in statuses and matcher(response.document())


def is_mev_boost(response: HttpResponse) -> bool:
    """Commit-Boost has a header of its own. The status is 503 if no relay is available."""
    return any(f"x-{name}-version" in response.headers for name in ("mevboost", "commitboost"))


def is_bitcoin(response: HttpResponse) -> bool:
    """Bitcoin Core answers nothing without a login; a fork of it, or a proxy, may."""
    if response.status == 401:
        return 'realm="jsonrpc"' in response.headers.get("www-authenticate", "")
    match response.document():
        case {"result": {"chain": str(), "initialblockdownload": bool()}}:
            return response.status == 200
        case _:
            return False


# ---- matchers of JSON


def is_etcd(document: object) -> bool:
    return isinstance(document, dict) and isinstance(document.get("etcdserver"), str)


def is_execution_client(document: object) -> bool:
    match document:
        case {"jsonrpc": "2.0", "result": str(version)}:
            return bool(version)
        case _:
            return False


def is_op_stack(document: object) -> bool:
    """Each block of the OP stack begins with a transaction of a special type, which carries the block of L1."""
    match document:
        case {"jsonrpc": "2.0", "result": {"type": "0x7e"}}:
            return True
        case _:
            return False


def is_op_node(document: object) -> bool:
    match document:
        case {"jsonrpc": "2.0", "result": {"l2_chain_id": int(), "block_time": int()}}:
            return True
        case _:
            return False


def is_cometbft(document: object) -> bool:
    match document:
        case {"jsonrpc": "2.0", "result": {"node_info": {"network": str()}, "sync_info": {"catching_up": bool()}}}:
            return True
        case _:
            return False


def is_solana(document: object) -> bool:
    match document:
        case {"jsonrpc": "2.0", "result": {"solana-core": str()}}:
            return True
        case _:
            return False


def is_substrate(document: object) -> bool:
    match document:
        case {"jsonrpc": "2.0", "result": {"peers": int(), "isSyncing": bool(), "shouldHavePeers": bool()}}:
            return True
        case _:
            return False


def is_web3signer(document: object) -> bool:
    match document:
        case {"outcome": "UP" | "DOWN", "checks": [{"id": "default-check"}, *_]}:
            return True
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
    options: Mapping[str, object] = field(default_factory=dict)  # of the probe, if its defaults do not fit
    aliases: tuple[str, ...] = ()
    article: str = ""
    fallback: CatalogEntry | None = None  # tried at the same port if this one does not match

    @property
    def title_with_article(self) -> str:
        return f"{self.article} {self.title}".lstrip()

    def probe_at(self, endpoint: TcpEndpoint) -> ProbeConfig:
        url = self.url.replace("{address}", str(endpoint))
        return {"url": url, **self.options} if self.options else url

    def login_probe_at(self, endpoint: TcpEndpoint) -> str:
        return self.login_url.replace("{address}", str(endpoint))


_EIGEN_NODE = CatalogEntry(
    kind="node",
    title="another validator-service node, under /eigen",
    ports=(),
    fingerprint=HttpFingerprint(has_json(is_node), "/eigen/node"),
    url="svc+http://{address}/eigen/node",
)
_OP_STACK_BLOCK = rpc(is_op_stack, "eth_getTransactionByBlockNumberAndIndex", "latest", "0x0")
_OP_STACK_CLIENT = CatalogEntry(
    kind="ethereum",
    title="OP Stack execution client",
    article="an",
    ports=(),
    fingerprint=_OP_STACK_BLOCK,
    url="ethereum+http://{address}",
    options={"min_peers": 0},  # it gets its blocks from op-node
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
        fingerprint=HttpFingerprint(has_json(is_etcd), "/version"),
        url="etcd://{address}",
    ),
    CatalogEntry(
        kind="ethereum",
        title="Ethereum execution client",
        article="an",
        ports=(8545,),
        fingerprint=ExceptFingerprint(rpc(is_execution_client, "web3_clientVersion"), _OP_STACK_BLOCK),
        url="ethereum+http://{address}",
        fallback=_OP_STACK_CLIENT,
    ),
    CatalogEntry(
        kind="opnode",
        title="op-node",
        article="an",
        ports=(9545, 8547),  # its own default, and that of the compose files of several chains
        fingerprint=rpc(is_op_node, "optimism_rollupConfig"),
        url="opnode+http://{address}",
        aliases=("op-node",),
    ),
    CatalogEntry(
        kind="beacon",
        title="Ethereum beacon node",
        article="an",
        ports=(5052, 3500, 9596),  # Lighthouse, Prysm, Lodestar
        fingerprint=HttpFingerprint(has_json(is_beacon_node), "/eth/v1/node/version"),
        url="beacon+http://{address}",
    ),
    CatalogEntry(
        kind="web3signer",
        title="Web3Signer",
        article="a",
        ports=(9000,),
        fingerprint=HttpFingerprint(has_json(is_web3signer, statuses=(200, 503)), "/healthcheck"),
        url="web3signer+http://{address}",
    ),
    CatalogEntry(
        kind="mevboost",
        title="MEV-Boost",
        ports=(18550,),
        fingerprint=HttpFingerprint(is_mev_boost, "/eth/v1/builder/status"),
        url="mevboost+http://{address}",
        aliases=("mev-boost",),
    ),
    CatalogEntry(
        kind="cometbft",
        title="CometBFT node",
        article="a",
        ports=(26657,),
        fingerprint=rpc(is_cometbft, "status"),
        url="cometbft+http://{address}",
        aliases=("cosmos", "tendermint"),
    ),
    CatalogEntry(
        kind="solana",
        title="Solana node",
        article="a",
        ports=(8899,),
        fingerprint=rpc(is_solana, "getVersion"),
        url="solana+http://{address}",
    ),
    CatalogEntry(
        kind="substrate",
        title="Substrate node",
        article="a",
        ports=(9944, 9933),  # 9933: HTTP of older ones
        fingerprint=rpc(is_substrate, "system_health"),
        url="substrate+http://{address}",
        aliases=("polkadot",),
    ),
    CatalogEntry(
        kind="bitcoin",
        title="Bitcoin Core",
        ports=(8332,),
        fingerprint=HttpFingerprint(is_bitcoin, "/", "POST", encode_request("getblockchaininfo", [])),
        url="bitcoin+http://{address}",
        login_url="bitcoin+http://svcnode:${BITCOIN_PASSWORD}@{address}",
    ),
    CatalogEntry(
        kind="ipfs",
        title="IPFS node",
        article="an",
        ports=(5001,),
        fingerprint=HttpFingerprint(has_json(is_ipfs), "/api/v0/version", method="POST"),
        url="ipfs+http://{address}",
    ),
    CatalogEntry(
        kind="node",
        title="another validator-service node",
        ports=(8420,),
        fingerprint=HttpFingerprint(has_json(is_node), "/svc/node"),
        url="svc+http://{address}",
        aliases=("svc",),
        fallback=_EIGEN_NODE,
    ),
)
