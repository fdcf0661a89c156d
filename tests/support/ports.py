"""Free ports for the servers of tests. No two servers, workers or runs on one machine get the same one.

A socket that is bound to port 0 and closed again does not do: its port may be taken before the server starts, also by
an outgoing connection. So each process claims a block of ports that the kernel uses for no outgoing connection, until
it ends, by keeping the first port of the block bound. It hands out the others in turn.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from functools import cache
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_FIRST, _END = 10_000, 65_536
_BLOCK_SIZE = 256
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A port that nothing listens on, at any address; not one of the last ones that were returned."""
    return _own_block(os.getpid()).next_free()


@cache
def _own_block(_pid: int) -> PortBlock:
    """A process that was forked claims its own."""
    return PortBlock(blocks(_ephemeral_ports()))


def _ephemeral_ports() -> range:
    with suppress(OSError):
        first, last = _EPHEMERAL.read_text().split()
        return range(int(first), int(last) + 1)
    return range(32_768, _END)


def blocks(ephemeral: range) -> list[range]:
    """The blocks without an ephemeral port; all blocks if each of them has one."""
    every = [range(first, first + _BLOCK_SIZE) for first in range(_FIRST, _END - _BLOCK_SIZE, _BLOCK_SIZE)]
    return [each for each in every if each[-1] not in ephemeral and each[0] not in ephemeral] or every


class PortBlock:
    """The first of the candidates that is not claimed; claimed until the end of its `with` block or of the process."""

    def __init__(self, candidates: Iterable[Sequence[int]]) -> None:
        for ports in candidates:
            claim = socket.socket()
            try:
                claim.bind(("127.0.0.1", ports[0]))
            except OSError:
                claim.close()
                continue
            self._claim = claim.detach()
            self.ports = ports[1:]
            self._in_turn = cycle(self.ports)
            return
        raise RuntimeError("all blocks of ports are claimed: do that many test runs use this machine?")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._claim)

    def next_free(self) -> int:
        for port in islice(self._in_turn, len(self.ports)):
            if is_free(port):
                return port
        raise RuntimeError(f"none of the ports {self.ports[0]} to {self.ports[-1]} is free")


def is_free(port: int) -> bool:
    """Whether a server can listen on any address. Connections that wait for their last packets occupy a port too."""
    dual = socket.has_dualstack_ipv6()
    with socket.socket(socket.AF_INET6 if dual else socket.AF_INET) as sock, suppress(OSError):
        if dual:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind(("::" if dual else "0.0.0.0", port))
        return True
    return False
