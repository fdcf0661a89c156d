"""How a service is known by what it says: a few bytes of its protocol, and no driver for it.

A judge says yes or no of what was heard, or None as long as it has not heard enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from svcnode.core.model import VERSION_PATTERN
from svcnode.net.http1 import Http1Client
from svcnode.net.streams import open_streams
from svcnode.net.trace import step
from svcnode.net.url import Url

if TYPE_CHECKING:
    from svcnode.net.connect import TcpEndpoint

Matcher = Callable[[bytes], bool | None]
MAX_BANNER_BYTES = 4096  # every protocol here shows itself in far fewer

POSTGRESQL_SSL_REQUEST = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
REDIS_PING = b"*1\r\n$4\r\nPING\r\n"
MEMCACHED_VERSION = b"version\r\n"
AMQP_PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"


class EmptyResponseError(OSError):
    """It closed the connection, and had said nothing."""


class Fingerprint(Protocol):
    async def matches(self, endpoint: TcpEndpoint) -> bool:
        """Whether what answers there is the service; raises `OSError`. The caller sets the deadline."""


@dataclass(frozen=True, slots=True)
class BannerFingerprint:
    """The first bytes that a service says, by itself or when it is greeted."""

    matcher: Matcher
    request: bytes = b""

    async def matches(self, endpoint: TcpEndpoint) -> bool:
        streams = await open_streams(endpoint)
        try:
            with step("exchange"):
                streams.writer.write(self.request)
                heard = b""
                while (is_known := self.matcher(heard)) is None and len(heard) < MAX_BANNER_BYTES:
                    if not (more := await streams.reader.read(MAX_BANNER_BYTES)):
                        break
                    heard += more
            if not heard:
                raise EmptyResponseError
            return bool(is_known)
        finally:
            streams.abort()


@dataclass(frozen=True, slots=True)
class HttpFingerprint:
    """The JSON that a service answers with over HTTP."""

    matcher: Callable[[object], bool]
    target: str
    method: str = "GET"
    body: bytes = b""

    async def matches(self, endpoint: TcpEndpoint) -> bool:
        http = Http1Client(Url(scheme="http", host=endpoint.host, port=endpoint.port))
        request = http.build_request(
            self.target, method=self.method, body=self.body, content_type="application/json", needs="body"
        )
        answer = await http.send(request)
        return answer.status == 200 and self.matcher(answer.document())


# ---- what is said in bytes


def begins_with(*beginnings: bytes) -> Matcher:
    def judge(heard: bytes) -> bool | None:
        if heard.startswith(beginnings):
            return True
        return None if any(beginning.startswith(heard) for beginning in beginnings) else False

    return judge


def is_postgresql(heard: bytes) -> bool | None:
    """One byte, TLS or not, and then it waits; SSH begins with an S as well, but goes on."""
    return heard in (b"S", b"N") if heard else None


# Whatever keeps it from answering, only Redis and its like say it so.
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
is_memcached = begins_with(b"VERSION ")
is_nats = begins_with(b"INFO {")


def is_mysql(heard: bytes) -> bool | None:
    """The first packet of a connection: a greeting with a version, or an error that says why there is none."""
    if len(heard) < 7:
        return None if heard[3:4] in (b"", b"\x00") and heard[4:5] in (b"", b"\x0a", b"\xff") else False
    is_first_packet = heard[3] == 0
    is_greeting = heard[4] == 10 and heard[5:6].isdigit()
    is_error = heard[4] == 0xFF and 1000 <= int.from_bytes(heard[5:7], "little") < 10_000
    return is_first_packet and (is_greeting or is_error)


def is_amqp(heard: bytes) -> bool | None:
    """The frame with which a broker starts: a method, on channel 0, of class 10, number 10."""
    if len(heard) < 11:
        return None if b"\x01\x00\x00".startswith(heard[:3]) else False
    return heard[:3] == b"\x01\x00\x00" and heard[7:11] == b"\x00\x0a\x00\x0a"


# ---- what is said in JSON


def is_etcd(document: object) -> bool:
    match document:
        case {"etcdserver": str()}:
            return True
        case _:
            return False


def is_execution_client(document: object) -> bool:
    match document:
        case {"jsonrpc": "2.0", "result": str(version)}:
            return bool(version)
        case _:
            return False


def is_beacon_node(document: object) -> bool:
    match document:
        case {"data": {"version": str()}}:
            return True
        case _:
            return False


def is_ipfs(document: object) -> bool:
    match document:
        case {"Version": str()}:
            return True
        case _:
            return False


def is_node(document: object) -> bool:
    match document:
        case {"node_name": str(), "spec_version": str(spec), "node_version": str(version)}:
            return all(VERSION_PATTERN.fullmatch(text) for text in (spec, version))
        case _:
            return False
