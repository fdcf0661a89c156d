"""Clients that hold all connections of a server inside a block."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from tests.support.servers.base import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

RETRY_DELAY_S = 0.2
TIMEOUT_S = 5.0


@contextmanager
def all_connections_held(client: Callable[[], AbstractContextManager[bool]]) -> Iterator[None]:
    """`client` yields whether the server accepted it."""
    with ExitStack() as held:
        for _ in range(2):  # a client that left in the first round freed a connection
            while held.enter_context(client()):
                pass
            time.sleep(RETRY_DELAY_S)
        yield


@contextmanager
def connections_held(count: int, socket_file: Path, is_accepted: Callable[[socket.socket], bool]) -> Iterator[None]:
    """Hold that many connections to a Unix socket; waits until other clients have left."""
    with ExitStack() as stack:
        held: list[socket.socket] = []

        def hold_all() -> bool:
            while len(held) < count:
                sock = stack.enter_context(socket.socket(socket.AF_UNIX))
                sock.settimeout(TIMEOUT_S)
                sock.connect(str(socket_file))
                if not is_accepted(sock):
                    sock.close()
                    return False
                held.append(sock)
            return True

        wait_until(hold_all, "all connections held")
        yield
