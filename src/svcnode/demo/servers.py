"""The servers of the demo: each listens on a free port of this machine, and speaks as much of its protocol as is asked.

There is nothing behind them. What they say is as real as what a probe can see of it.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, cast

from svcnode.demo.script import Mood

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = "127.0.0.1"
SLOW_S = 0.3
MAX_REQUEST_BYTES = 64 * 1024
BLOCK_S = 12
BLOCKS_LESS = 126_000_000  # than slots since 1970, which makes a number such as a real chain has
BLOCKS_BEHIND = 1200
PEER_COUNT = 8


class Server(ABC):
    """Where it listens stays the same whatever its mood is."""

    def __init__(self, *, slow_s: float = SLOW_S, clock: Callable[[], float] = time.time) -> None:
        self.mood = Mood.GONE
        self._slow_s = slow_s
        self._clock = clock
        # Bound, and never listened on: or else somebody could take the port while the server is gone.
        self._place = _bound(0)
        self.port: int = self._place.getsockname()[1]
        self._listener: asyncio.AbstractServer | None = None
        self._connections: set[_Connection] = set()

    async def become(self, mood: Mood) -> None:
        self.mood = mood
        if mood is Mood.GONE:
            self._stop_listening()
        elif self._listener is None:
            loop = asyncio.get_running_loop()
            connect = lambda: _Connection(self, self._connections)  # noqa: E731  what a listener asks for
            self._listener = await loop.create_server(connect, sock=_bound(self.port))

    def close(self) -> None:
        self._stop_listening()
        self._place.close()

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        for connection in tuple(self._connections):
            connection.transport.abort()

    @property
    def delay_s(self) -> float | None:
        """How long it takes to answer; None: for ever."""
        return {Mood.SLOW: self._slow_s, Mood.MUTE: None}.get(self.mood, 0.0)

    @abstractmethod
    def answer_to(self, received: bytes) -> tuple[bytes, bytes] | None:
        """The answer to the first request, and what came behind that; None while it is not whole.

        Raises `ValueError` for what is no request.
        """


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, server: Server, neighbours: set[_Connection]) -> None:
        self._server = server
        self._neighbours = neighbours
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one in deed, not by name
        self._neighbours.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._neighbours.discard(self)

    def data_received(self, data: bytes) -> None:
        self._received += data
        try:
            while found := self._server.answer_to(self._received):
                answer, self._received = found
                self._send(answer)
        except ValueError:
            self.transport.abort()
        if len(self._received) > MAX_REQUEST_BYTES:
            self.transport.abort()

    def _send(self, answer: bytes) -> None:
        delay_s = self._server.delay_s
        if delay_s is not None:
            asyncio.get_running_loop().call_later(delay_s, self.transport.write, answer)


class Cache(Server):
    """As much of memcached as tells its version."""

    def answer_to(self, received: bytes) -> tuple[bytes, bytes] | None:
        line, end, rest = received.partition(b"\r\n")
        if not end:
            return None
        return (b"VERSION 1.6.38\r\n" if line == b"version" else b"ERROR\r\n"), rest


class HttpServer(Server):
    """As much of HTTP/1.1 as a probe speaks."""

    def answer_to(self, received: bytes) -> tuple[bytes, bytes] | None:
        head, end, rest = received.partition(b"\r\n\r\n")
        if not end:
            return None
        found = re.search(rb"^content-length: *(\d{1,6}) *$", head, re.IGNORECASE | re.MULTILINE)
        length = int(found[1]) if found else 0
        if len(rest) < length:
            return None
        _, target, _ = head.split(b"\r\n")[0].split(b" ")
        code, document = self.tell(target.decode("ascii"), rest[:length])
        body = json.dumps(document).encode()
        head = b"HTTP/1.1 %d -\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (code, len(body))
        return head + body, rest[length:]

    @abstractmethod
    def tell(self, target: str, body: bytes) -> tuple[int, Any]:
        """Status code and JSON document."""


class Indexer(HttpServer):
    def tell(self, target: str, body: bytes) -> tuple[int, Any]:
        if target != "/status":
            return 404, {"error": "not found"}
        return 200, {"state": "syncing" if self.mood is Mood.STARTING else "ready"}


class Chain(HttpServer):
    """An execution client over JSON-RPC. A block comes every twelve seconds."""

    def tell(self, target: str, body: bytes) -> tuple[int, Any]:
        match json.loads(body):
            case {"id": number, "method": str(method)}:
                answers = self._answers()
                known = {"result": answers.get(method)} if method in answers else {"error": _NO_SUCH_METHOD}
                return 200, {"jsonrpc": "2.0", "id": number, **known}
            case _:
                return 400, {"error": "not a JSON-RPC call"}

    def _answers(self) -> dict[str, object]:
        slot = int(self._clock()) // BLOCK_S
        newest = slot - BLOCKS_LESS
        progress = {"currentBlock": hex(newest - BLOCKS_BEHIND), "highestBlock": hex(newest)}
        return {
            "eth_syncing": progress if self.mood is Mood.STARTING else False,
            "eth_getBlockByNumber": {"number": hex(newest), "timestamp": hex(slot * BLOCK_S)},
        }


_NO_SUCH_METHOD = {"code": -32601, "message": "the method does not exist"}


class Storage(HttpServer):
    """An IPFS daemon, which is of no use without peers."""

    def tell(self, target: str, body: bytes) -> tuple[int, Any]:
        count = 0 if self.mood is Mood.STARTING else PEER_COUNT
        documents: dict[str, object] = {
            "/api/v0/id": {"ID": "12D3KooWDemo"},
            "/api/v0/swarm/peers": {"Peers": [{"Peer": f"12D3KooWPeer{number}"} for number in range(count)]},
        }
        return (200, documents[target]) if target in documents else (404, {"Message": "not found"})


class Peer(HttpServer):
    """Another node of the same interface."""

    def tell(self, target: str, body: bytes) -> tuple[int, Any]:
        if target != "/svc/node/health":
            return 404, {"message": "Not found"}
        return (206 if self.mood is Mood.STARTING else 200), {}


def _bound(port: int) -> socket.socket:
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind((HOST, port))
    except OSError:
        sock.close()
        raise
    return sock
