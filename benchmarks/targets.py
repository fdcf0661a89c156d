"""Targets of checks: an nginx that counts requests, and a listener that accepts and never responds.

Checks are counted at the target, not by the checker. HAProxy's TCP checks never become connections: it withholds the
last packet of the handshake and resets. The kernel counts those as half-open connections that were reset.
"""

from __future__ import annotations

import http.client
import socket
import threading
from collections import deque
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from benchmarks import nginx_config as any_nginx
from benchmarks.cores import LOAD_CORE
from benchmarks.processes import running

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind = Literal["tcp", "http"]  # of a check

BACKLOG = 4096
MAX_HELD_CONNECTIONS = 2000  # connections without a response

_STATUS_PATH = "/status"


def hosts(count: int) -> list[str]:
    """Different addresses, each of them this machine."""
    return list(islice((f"127.0.{high}.{low}" for high in range(256) for low in range(1, 255)), count))


def urls(kind: Kind, port: int, count: int) -> list[str]:
    path = {"tcp": "", "http": "/"}[kind]
    return [f"{kind}://{host}:{port}{path}" for host in hosts(count)]


class Target:
    def __init__(self, port: int) -> None:
        self.port = port
        # One connection for all questions, so that they do not count.
        self._connection = http.client.HTTPConnection("127.0.0.1", port)

    def accepted(self) -> int:
        self._connection.request("GET", _STATUS_PATH)
        counts = self._connection.getresponse().read().decode().splitlines()[2]
        return int(counts.split()[0])

    def accepted_or_reset(self) -> int:
        return self.accepted() + _half_open_resets()

    def close(self) -> None:
        self._connection.close()


@contextmanager
def counting_target() -> Iterator[Target]:
    """nginx on every address of this machine; it answers 200 and a small body."""
    with running(_counting_nginx, path="/", core=LOAD_CORE) as server:
        target = Target(server.port)
        try:
            target.accepted()  # from here on, this connection is among those before
            yield target
        finally:
            target.close()


def _counting_nginx(port: int, folder: Path) -> list[str | Path]:
    answers = f"location = / {{ return 200 'ok'; }} location = {_STATUS_PATH} {{ stub_status; }}"
    return any_nginx.command(folder, f"listen 0.0.0.0:{port} backlog={BACKLOG}; {answers}")


def _half_open_resets() -> int:
    names, values = (
        line.split() for line in Path("/proc/net/netstat").read_text().splitlines() if line.startswith("TcpExt:")
    )
    return int(values[names.index("EmbryonicRsts")])


@contextmanager
def unresponsive_target() -> Iterator[int]:
    """The port of a listener on every address of this machine that accepts, and never says a word."""
    with socket.create_server(("0.0.0.0", 0), backlog=BACKLOG) as listener:
        accepting = threading.Thread(target=_accept_and_hold, args=(listener,))
        accepting.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
            accepting.join()


def _accept_and_hold(listener: socket.socket) -> None:
    kept: deque[socket.socket] = deque()
    try:
        while True:
            kept.append(listener.accept()[0])
            if len(kept) > MAX_HELD_CONNECTIONS:
                kept.popleft().close()
    except OSError:  # the end
        for connection in kept:
            connection.close()
