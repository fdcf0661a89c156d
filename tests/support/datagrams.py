"""Small real servers that answer datagrams."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_NTP_EPOCH_S = 2_208_988_800


class UdpBackend:
    """Sends what the function returns for a datagram, each to its sender."""

    def __init__(self, answer: Callable[[bytes], Iterable[bytes]]) -> None:
        self._answer = answer
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.request_count = 0
        self._end = os.urandom(16)
        self._thread = threading.Thread(target=self._serve, name=f"udp backend {self.port}", daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(self._end, ("127.0.0.1", self.port))
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            data, sender = self._socket.recvfrom(65536)
            if data == self._end:
                return
            self.request_count += 1
            for answer in self._answer(data):
                self._socket.sendto(answer, sender)


def sntp_answer(
    request: bytes,
    *,
    ahead_s: float = 0.0,
    leap: int = 0,
    mode: int = 4,
    stratum: int = 2,
    reference: bytes = b"",
    origin: bytes | None = None,
) -> bytes:
    """Of a server whose clock is that much ahead."""
    now = int((time.time() + ahead_s + _NTP_EPOCH_S) * 2**32) & (2**64 - 1)
    head = struct.pack("!BBBbII4s", leap << 6 | 4 << 3 | mode, stratum, 6, -20, 0, 0, reference)
    return head + struct.pack("!Q", now) + (request[40:48] if origin is None else origin) + struct.pack("!QQ", now, now)
