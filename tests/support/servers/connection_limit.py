"""Servers that are full: clients that hold every place there is, for as long as a block runs."""

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
    """By clients, each of which says whether it was let in, until one was not."""
    with ExitStack() as held:
        for _ in range(2):  # whoever was served meanwhile, and went, has left a place
            while held.enter_context(client()):
                pass
            time.sleep(RETRY_DELAY_S)
        yield


@contextmanager
def connections_held(count: int, socket_file: Path, is_let_in: Callable[[socket.socket], bool]) -> Iterator[None]:
    """By so many clients at a Unix socket; waits for those who had one of these places before."""
    with ExitStack() as stack:
        taken: list[socket.socket] = []

        def take_all() -> bool:
            while len(taken) < count:
                sock = stack.enter_context(socket.socket(socket.AF_UNIX))
                sock.settimeout(TIMEOUT_S)
                sock.connect(str(socket_file))
                if not is_let_in(sock):
                    sock.close()
                    return False
                taken.append(sock)
            return True

        wait_until(take_all, "all connections taken")
        yield
