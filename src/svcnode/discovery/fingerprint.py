"""Recognises a service by a few bytes of its protocol, without its driver.

A matcher of bytes returns whether they match, or None if more bytes are needed.
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
