"""Servers that send endless responses: a check stops reading, and fails before its deadline."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome
from svcnode.probes import make_probe
from svcnode.probes.run import run_check
from tests.support.backends import Backend, Peer
from tests.support.http_server import LOOPS, WAIT_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_SENT_BYTES = 64 * 1024 * 1024  # the limits of the probes and the buffers of the kernel are far below


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


class Flood:
    """Sends `first`, then `then` without end, and counts the bytes until the client aborts the connection."""

    def __init__(self, first: bytes, then: bytes, *, waits_for_request: bool = True) -> None:
        self._first, self._then, self._waits_for_request = first, then, waits_for_request
        self.sent_bytes = 0

    def __call__(self, peer: Peer) -> None:
        if self._waits_for_request:
            peer.sock.recv(65536)
        try:
            for data in self._data():
                peer.sock.sendall(data)
                self.sent_bytes += len(data)
        except OSError:
            pass  # the client aborted the connection

    def _data(self) -> Iterator[bytes]:
        yield self._first
        while True:
            yield self._then


SETTINGS = frame(4, 0, 0, b"")
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
RESULT = b'{"jsonrpc":"2.0","id":1,"result":false}'
NATS_INFO = b'INFO {"server_id":"x","version":"2.9.10","max_payload":1048576}\r\n'
FLOODS = {
    "redis-bulk": ("redis", b"$999999999999\r\n", b"x" * 65536),
    "redis-array": ("redis", b"*999999999\r\n", b":1\r\n" * 16384),
    "memcached": ("memcached", b"VERSION ", b"x" * 65536),
    "amqp": ("amqp", b"\x01\x00\x00\x7f\xff\xff\xff", b"x" * 65536),
    "nats-info": ("nats", b"INFO {", b"x" * 65536),
    "nats-messages": ("nats", NATS_INFO + b"PONG\r\n", b"MSG a 1 0\r\n\r\n" * 4096),
    "nats-pings": ("nats", NATS_INFO + b"PONG\r\n", b"PING\r\n" * 8192),
    "mysql": ("mysql", b"\xff\xff\xff\x00", b"x" * 65536),
    "grpc-pings": ("grpc", SETTINGS, frame(6, 0, 0, b"12345678") * 20000),
    "grpc-settings": ("grpc", SETTINGS, SETTINGS * 20000),
    "grpc-data": ("grpc", SETTINGS, frame(0, 0, 1, b"") * 20000),
    "grpc-unknown": ("grpc", SETTINGS, frame(200, 0, 0, b"") * 20000),
    "trailers": ("ethereum+http", CHUNKED + b"27\r\n" + RESULT + b"\r\n0\r\n", b"X: y\r\n" * 16384),
    "chunks": ("ethereum+http", CHUNKED, b"1\r\nx\r\n" * 16384),
    "extensions": ("ethereum+http", CHUNKED + b"1;", b"x" * 65536),
    "body": ("ethereum+http", CHUNKED, b"10000\r\n" + b"x" * 65536 + b"\r\n"),
}


@pytest.mark.parametrize("loop_name", LOOPS)
@pytest.mark.parametrize(("scheme", "first", "then"), FLOODS.values(), ids=FLOODS)
def test_an_endless_response_is_failed_before_the_deadline(
    loop_name: str, scheme: str, first: bytes, then: bytes
) -> None:
    flood = Flood(first, then, waits_for_request=scheme not in ("mysql", "nats"))
    user = "me@" if scheme == "mysql" else ""
    with Backend(flood) as backend, asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
        probe = make_probe(f"{scheme}://{user}{backend.address}")
        verdict, _ = runner.run(run_check(probe, 4 * WAIT_TIMEOUT_S))
    assert verdict.outcome is Outcome.FAILED
    assert verdict.code is not ReasonCode.TIMEOUT
    assert flood.sent_bytes < MAX_SENT_BYTES
