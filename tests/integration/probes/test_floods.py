"""Servers that never stop talking: they may keep neither the memory nor the event loop."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from svcnode.core.model import Outcome, Verdict
from svcnode.probes import make_probe
from svcnode.probes.run import run_check
from tests.support.backends import Backend, Peer
from tests.support.http_server import LOOPS

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT_S = 5.0
STALL_S = 1.0  # on a busy machine; without a limit it is many times as much


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def flooding(first: bytes, then: bytes, *, hears_first: bool = True) -> Callable[[Peer], None]:
    def flood(peer: Peer) -> None:
        if hears_first:
            peer.sock.recv(65536)
        try:
            peer.sock.sendall(first)
            while True:
                peer.sock.sendall(then)
        except OSError:
            pass  # it was cut off

    return flood


SETTINGS = frame(4, 0, 0, b"")
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
REPLY = b'{"jsonrpc":"2.0","id":1,"result":false}'
NATS_INFO = b'INFO {"server_id":"x","version":"2.9.10","max_payload":1048576}\r\n'
FLOODS = {
    "redis-bulk": ("redis", flooding(b"$999999999999\r\n", b"x" * 65536)),
    "redis-array": ("redis", flooding(b"*999999999\r\n", b":1\r\n" * 16384)),
    "memcached": ("memcached", flooding(b"VERSION ", b"x" * 65536)),
    "amqp": ("amqp", flooding(b"\x01\x00\x00\x7f\xff\xff\xff", b"x" * 65536)),
    "nats-info": ("nats", flooding(b"INFO {", b"x" * 65536, hears_first=False)),
    "nats-messages": ("nats", flooding(NATS_INFO + b"PONG\r\n", b"MSG a 1 0\r\n\r\n" * 4096, hears_first=False)),
    "nats-pings": ("nats", flooding(NATS_INFO + b"PONG\r\n", b"PING\r\n" * 8192, hears_first=False)),
    "mysql": ("mysql", flooding(b"\xff\xff\xff\x00", b"x" * 65536, hears_first=False)),
    "grpc-pings": ("grpc", flooding(SETTINGS, frame(6, 0, 0, b"12345678") * 20000)),
    "grpc-settings": ("grpc", flooding(SETTINGS, SETTINGS * 20000)),
    "grpc-data": ("grpc", flooding(SETTINGS, frame(0, 0, 1, b"") * 20000)),
    "grpc-unknown": ("grpc", flooding(SETTINGS, frame(200, 0, 0, b"") * 20000)),
    "trailers": ("ethereum+http", flooding(CHUNKED + b"27\r\n" + REPLY + b"\r\n0\r\n", b"X: y\r\n" * 16384)),
    "chunks": ("ethereum+http", flooding(CHUNKED, b"1\r\nx\r\n" * 16384)),
    "extensions": ("ethereum+http", flooding(CHUNKED + b"1;", b"x" * 65536)),
    "body": ("ethereum+http", flooding(CHUNKED, b"10000\r\n" + b"x" * 65536 + b"\r\n")),
}


async def run_check(url: str) -> tuple[Verdict, float, float]:
    """And how long it took, and how long nobody else got a turn."""
    stall_s = 0.0

    async def keep_turning() -> None:
        nonlocal stall_s
        while True:
            began_s = time.perf_counter()
            await asyncio.sleep(0)
            stall_s = max(stall_s, time.perf_counter() - began_s)

    turning = asyncio.create_task(keep_turning())
    await asyncio.sleep(0)
    began_s = time.perf_counter()
    verdict, _ = await run_check(make_probe(url), TIMEOUT_S)
    took_s = time.perf_counter() - began_s
    turning.cancel()
    return verdict, took_s, stall_s


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(("scheme", "flood"), FLOODS.values(), ids=FLOODS)
def test_a_server_that_never_stops_talking_is_failed_before_the_deadline_and_holds_nobody_up(
    loop: str, scheme: str, flood: Callable[[Peer], None]
) -> None:
    user = "me@" if scheme == "mysql" else ""
    with Backend(flood) as backend, asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        make_probe(f"{scheme}://{user}{backend.address}")  # loads its driver, which takes its time
        verdict, took_s, stall_s = runner.run(run_check(f"{scheme}://{user}{backend.address}"))
    assert verdict.outcome is Outcome.FAILED
    assert "no answer within" not in verdict.reason
    assert took_s < TIMEOUT_S / 2
    assert stall_s < STALL_S
