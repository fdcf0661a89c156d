"""Prometheus' blackbox exporter, which runs a check per request."""

from __future__ import annotations

import re
import time
from itertools import cycle
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from benchmarks.load import RESPONSE_TIMEOUT_S, register_epoll
from benchmarks.provision import tool

if TYPE_CHECKING:
    import socket
    from pathlib import Path

    from benchmarks.targets import Kind

READY_PATH = "/-/healthy"

_CONF = """
modules:
  tcp: { prober: tcp }
  http: { prober: http }
"""


def blackbox(port: int, folder: Path) -> list[str | Path]:
    file = folder / "blackbox.yml"
    file.write_text(_CONF)
    exporter = tool("prometheus-blackbox-exporter")
    return ["env", "GOMAXPROCS=1", exporter, f"--config.file={file}", f"--web.listen-address=127.0.0.1:{port}"]


class ProbeRequests:
    """On each connection, the next check is requested when the last one is done."""

    def __init__(self, connections: list[socket.socket], kind: Kind, urls: list[str]) -> None:
        self._connections, self._epoll = register_epoll(connections)
        self._requests = cycle([_request(kind, url) for url in urls])
        self._received: dict[int, bytes] = {}  # by the number of the waiting connection

    def run_for(self, seconds: float) -> None:
        """Send requests for this long, and read the last responses."""
        ends_at_s = time.monotonic() + seconds
        for number in self._connections:
            self._send(number)
        while self._received:
            for number in self._receive():
                _require_success(self._received.pop(number))
                if time.monotonic() < ends_at_s:
                    self._send(number)

    def _send(self, number: int) -> None:
        self._connections[number].sendall(next(self._requests))
        self._received[number] = b""

    def _receive(self) -> list[int]:
        ready = [number for number, _ in self._epoll.poll(RESPONSE_TIMEOUT_S)]
        if not ready:
            raise RuntimeError("the blackbox exporter does not answer")
        for number in ready:
            part = self._connections[number].recv(65536)
            if not part:
                raise RuntimeError("the blackbox exporter closed the connection")
            self._received[number] += part
        return [number for number in ready if _is_complete(self._received[number])]


def _request(kind: Kind, url: str) -> bytes:
    path = "/probe?" + urlencode({"module": kind, "target": url.removeprefix("tcp://")})
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


def _is_complete(answer: bytes) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    size = re.search(rb"(?i)\ncontent-length: *(\d+)", head)
    return body.endswith(b"\r\n0\r\n\r\n") if size is None else len(body) == int(size[1])


def _require_success(answer: bytes) -> None:
    without_chunks = re.sub(rb"\r\n[0-9a-f]+\r\n", b"", answer)
    if b"\nprobe_success 1\n" not in without_chunks:
        raise RuntimeError(f"a check of the blackbox exporter failed:\n{answer.decode(errors='replace')}")
