"""memcached with a small connection limit."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.servers.base import RealServer
from tests.support.servers.connection_limit import all_connections_held
from tests.support.servers.provision import program

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

TIMEOUT_S = 5.0
MAX_CONNECTIONS = 40  # memcached uses some of them for its threads


class MemcachedServer(RealServer):
    @property
    def url(self) -> str:
        return f"memcached://{self.host}:{self.port}"

    def command(self) -> Sequence[str]:
        limits = ["--memory-limit=16", f"--conn-limit={MAX_CONNECTIONS}", "--threads=2"]
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
    def _client(self) -> Iterator[bool]:
        with socket.create_connection((self.host, self.port), timeout=TIMEOUT_S) as sock:
            yield _is_served(sock)


def _is_served(sock: socket.socket) -> bool:
    try:
        sock.sendall(b"version\r\n")
        return sock.recv(100).startswith(b"VERSION ")
    except (ConnectionResetError, BrokenPipeError):  # closed before it read the request
        return False
