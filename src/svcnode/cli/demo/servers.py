"""The servers of the demo. Each listens on a free port of this machine and implements the part of its protocol that a
probe uses.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, cast

from svcnode.cli.demo.scenario import FaultMode

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = "127.0.0.1"
SLOW_S = 0.3
MAX_REQUEST_BYTES = 64 * 1024
BLOCK_S = 12
BLOCK_NUMBER_OFFSET = 126_000_000  # subtracted from the slots since 1970, for block numbers like those of a real chain
BLOCKS_BEHIND = 1200
PEER_COUNT = 8


class DemoServer(ABC):
    """The port does not depend on the fault mode."""

    def __init__(self, *, slow_s: float = SLOW_S, clock: Callable[[], float] = time.time) -> None:
        self.mode = FaultMode.STOPPED
        self._slow_s = slow_s
        self._clock = clock
        # Bound, but not listening: otherwise another process could take the port while the server is stopped.
        self._reserved_socket = _bind(0)
        self.port: int = self._reserved_socket.getsockname()[1]
        self._listener: asyncio.AbstractServer | None = None
        self._connections: set[_ServerConnection] = set()

    async def set_mode(self, mode: FaultMode) -> None:
        self.mode = mode
        if mode is FaultMode.STOPPED:
            self._stop_listening()
        elif self._listener is None:
            loop = asyncio.get_running_loop()
            connect = lambda: _ServerConnection(self, self._connections)  # noqa: E731  the factory of the listener
            self._listener = await loop.create_server(connect, sock=_bind(self.port))

    def close(self) -> None:
        self._stop_listening()
        self._reserved_socket.close()

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in tuple(self._connections):
            connection.transport.abort()

    @property
    def delay_s(self) -> float | None:
        """The delay of a response; None: no response."""
        return {FaultMode.SLOW: self._slow_s, FaultMode.UNRESPONSIVE: None}.get(self.mode, 0.0)

    @abstractmethod
    def response_to(self, received: bytes) -> tuple[bytes, bytes] | None:
        """The response to the first request, and the rest of the bytes; None while the request is incomplete.

        Raises `ValueError` for an invalid request.
        """


class _ServerConnection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, server: DemoServer, connections: set[_ServerConnection]) -> None:
        self._server = server
        self._open_connections = connections
        self._received = b""
        self._is_delayed = False  # one delay per connection: a check may send several requests

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's transport does not derive from it
        self._open_connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open_connections.discard(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            while result := self._server.response_to(self._received):
                response, self._received = result
                self._send(response)
        except ValueError:
            self.transport.abort()
        if len(self._received) > MAX_REQUEST_BYTES:
            self.transport.abort()

    def _send(self, response: bytes) -> None:
        delay_s = self._server.delay_s
        if delay_s is not None:
            asyncio.get_running_loop().call_later(0.0 if self._is_delayed else delay_s, self._write, response)
            self._is_delayed = True

    def _write(self, response: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(response)


class Cache(DemoServer):
    """memcached, with the command `version` only, like some proxies."""

    def response_to(self, received: bytes) -> tuple[bytes, bytes] | None:
        line, end, rest = received.partition(b"\r\n")
        if not end:
            return None
        return (b"VERSION 1.6.38\r\n" if line == b"version" else b"ERROR\r\n"), rest


class DemoHttpServer(DemoServer):
    """The part of HTTP/1.1 that a probe uses."""

    def response_to(self, received: bytes) -> tuple[bytes, bytes] | None:
        head, end, rest = received.partition(b"\r\n\r\n")
        if not end:
            return None
        match = re.search(rb"^content-length: *(\d{1,6}) *$", head, re.IGNORECASE | re.MULTILINE)
        length = int(match[1]) if match else 0
        if len(rest) < length:
            return None
        _, target, _ = head.split(b"\r\n")[0].split(b" ")
        code, document = self.respond(target.decode("ascii"), rest[:length])
        body = json.dumps(document).encode()
        head = b"HTTP/1.1 %d -\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (code, len(body))
        return head + body, rest[length:]

    @abstractmethod
    def respond(self, target: str, body: bytes) -> tuple[int, Any]:
        """Status code and JSON document."""


class Indexer(DemoHttpServer):
    def respond(self, target: str, body: bytes) -> tuple[int, Any]:
        if target != "/status":
            return 404, {"error": "not found"}
        return 200, {"state": "syncing" if self.mode is FaultMode.NOT_READY else "ready"}


class Chain(DemoHttpServer):
    """An execution client over JSON-RPC, with a block every 12 s."""

    def respond(self, target: str, body: bytes) -> tuple[int, Any]:
        match json.loads(body):
            case {"id": number, "method": str(method)}:
                results = self._results()
                outcome = {"result": results[method]} if method in results else {"error": _METHOD_NOT_FOUND}
                return 200, {"jsonrpc": "2.0", "id": number, **outcome}
            case _:
                return 400, {"error": "not a JSON-RPC call"}

    def _results(self) -> dict[str, object]:
        slot = int(self._clock()) // BLOCK_S
        newest = slot - BLOCK_NUMBER_OFFSET
        progress = {"currentBlock": hex(newest - BLOCKS_BEHIND), "highestBlock": hex(newest)}
        return {
            "eth_chainId": "0x1",
            "eth_syncing": progress if self.mode is FaultMode.NOT_READY else False,
            "eth_getBlockByNumber": {"number": hex(newest), "timestamp": hex(slot * BLOCK_S)},
            "net_peerCount": hex(PEER_COUNT),
        }


_METHOD_NOT_FOUND = {"code": -32601, "message": "the method does not exist"}


class Storage(DemoHttpServer):
    """An IPFS daemon, which needs peers."""

    def respond(self, target: str, body: bytes) -> tuple[int, Any]:
        count = 0 if self.mode is FaultMode.NOT_READY else PEER_COUNT
        documents: dict[str, object] = {
            "/api/v0/id": {"ID": "12D3KooWDemo"},
            "/api/v0/swarm/peers": {"Peers": [{"Peer": f"12D3KooWPeer{number}"} for number in range(count)]},
        }
        return (200, documents[target]) if target in documents else (404, {"Message": "not found"})


class Peer(DemoHttpServer):
    """Another node of the same interface."""

    def respond(self, target: str, body: bytes) -> tuple[int, Any]:
        if target != "/svc/node/health":
            return 404, {"message": "Not found"}
        return (206 if self.mode is FaultMode.NOT_READY else 200), {}


def _bind(port: int) -> socket.socket:
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((HOST, port))
    except OSError:
        sock.close()
        raise
    return sock
