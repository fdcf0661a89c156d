"""memcached with a small connection limit."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING

from tests.support.servers.base import RealServer
from tests.support.servers.connection_limit import all_connections_held
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

TIMEOUT_S = 5.0
MEMORY_MB = 4
ITEM_BYTES = 1000  # of items that fill the memory
MAX_CONNECTIONS = 40  # memcached uses some of them for its threads


class MemcachedServer(RealServer):
    """With `evicts=False`, it refuses new items when its memory is full."""

    scheme = "memcached"

    def __init__(self, folder: Path, *, evicts: bool = True) -> None:
        super().__init__(folder)
        self.evicts = evicts

    def command(self) -> Sequence[str]:
        limits = [f"--memory-limit={MEMORY_MB}", f"--conn-limit={MAX_CONNECTIONS}", "--threads=2"]
        limits += [] if self.evicts else ["--disable-evictions"]
        return [program("memcached", "memcached"), f"--listen={self.host}", f"--port={self.port}", *limits]

    def user(self) -> str:
        return "memcache"

    def is_ready(self) -> bool:
        with self._client() as is_served:
            return is_served

    def exhaust(self) -> AbstractContextManager[None]:
        """Hold all connections. The next one gets an error and is closed."""
        return all_connections_held(self._client)

    @contextmanager
    def out_of_memory(self) -> Iterator[None]:
        assert not self.evicts
        items = (b"set filler-%d 0 0 %d\r\n%b\r\n" % (number, ITEM_BYTES, bytes(ITEM_BYTES)) for number in count())
        with socket.create_connection((self.host, self.port), timeout=TIMEOUT_S) as sock:
            for item in items:
                sock.sendall(item)
                if sock.recv(100) != b"STORED\r\n":
                    break
        yield
        assert self.request(b"flush_all\r\n") == b"OK\r\n"  # the items are removed when their memory is needed

    def request(self, line: bytes) -> bytes:
        """The first bytes of the response."""
        with socket.create_connection((self.host, self.port), timeout=TIMEOUT_S) as sock:
            sock.sendall(line)
            return sock.recv(100)

    @contextmanager
    def _client(self) -> Iterator[bool]:
        with socket.create_connection((self.host, self.port), timeout=TIMEOUT_S) as sock:
            yield _is_served(sock)


def _is_served(sock: socket.socket) -> bool:
    try:
        sock.sendall(b"version\r\n")
        return sock.recv(100).startswith(b"VERSION ")
    except (ConnectionResetError, BrokenPipeError):  # closed before it read the request
        return False
