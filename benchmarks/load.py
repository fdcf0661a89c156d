"""Generates load on the other core: as much as the server can serve, or at a constant rate.

wrk does the first for small responses. With 84 KB each, wrk itself is the limit: it used 0.99 of its core while nginx
used 0.85 of the other. So large responses are discarded in the kernel, unread.

The constant rate is our own code and never sleeps. Of Debian's tools, hey lets the rate drop, and h2load keeps it but
counts a delayed request from when it was sent, not from when it was due. With nginx stopped for 0.3 s of 3 s, so that
one request in ten had to wait, h2load's log gave a 99th percentile of 7 ms, and this one 277 ms. Undisturbed, the
median was 0.3 ms with h2load, which sends in bursts, and 0.024 ms here.
"""

from __future__ import annotations

import gc
import re
import select
import socket
import statistics
import subprocess
import time
from collections import deque
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from benchmarks.provision import tool

if TYPE_CHECKING:
    from collections.abc import Iterator

CONNECTIONS = 32
RESPONSE_TIMEOUT_S = 10.0
# With Host, which wrk adds, seven headers.
HEADERS = {
    "User-Agent": (
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36"
    ),
    "Accept": "application/json, text/plain, */*",
    "Accept-Language": "en-US,en;q=0.9",
    "Accept-Encoding": "gzip, deflate, br, zstd",
    "Connection": "keep-alive",
    "Cache-Control": "no-cache",
}

_HEADER_LINES = [f"{name}: {value}" for name, value in HEADERS.items()]


def requests_per_s(port: int, path: str, seconds: int) -> float:
    """The throughput that wrk measures with all connections busy."""
    headers = [word for line in _HEADER_LINES for word in ("-H", line)]
    load = [tool("wrk"), "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", *headers, f"http://127.0.0.1:{port}{path}"]
    said = subprocess.run(load, capture_output=True, text=True, check=True).stdout
    found = re.search(r"Requests/sec:\s+([\d.]+)", said)
    if found is None or "Non-2xx" in said or "Socket errors" in said:
        raise RuntimeError(f"wrk was not answered well:\n{said}")
    return float(found[1])


def large_responses_per_s(port: int, path: str, seconds: int) -> float:
    """The same for large responses of one size."""
    request = _request(port, path)
    with open_connections(port) as connections:
        answer_bytes = _response_bytes(connections[0], request)
        for connection in connections:
            connection.sendall(request)
        return _count_responses(connections, request, answer_bytes, seconds) / seconds


def _count_responses(connections: list[socket.socket], request: bytes, answer_bytes: int, seconds: int) -> int:
    by_number, answers = register_epoll(connections)
    missing_bytes = dict.fromkeys(by_number, answer_bytes)
    unused = bytearray(answer_bytes)
    count = 0
    ends_at_s = time.perf_counter() + seconds
    while time.perf_counter() < ends_at_s:
        for number, _ in answers.poll(seconds):
            connection = by_number[number]
            thrown_away_bytes = connection.recv_into(unused, missing_bytes[number], socket.MSG_TRUNC)
            missing_bytes[number] -= thrown_away_bytes
            if not thrown_away_bytes:
                raise RuntimeError("the server closed the connection before the response was complete")
            if not missing_bytes[number]:
                missing_bytes[number] = answer_bytes
                connection.sendall(request)
                count += 1
    return count


def _response_bytes(connection: socket.socket, request: bytes) -> int:
    """The size of a response with its head, measured with one request."""
    connection.sendall(request)
    head, blank_line, _ = connection.recv(4096, socket.MSG_PEEK).partition(b"\r\n\r\n")
    body_bytes = re.search(rb"(?i)\ncontent-length: *(\d+)", head)
    if body_bytes is None:
        raise RuntimeError(f"no length in the head of an answer: {head!r}")
    size = len(head + blank_line) + int(body_bytes[1])
    connection.recv(size, socket.MSG_WAITALL)
    return size


def p99_us(port: int, path: str, rate_per_s: int, seconds: int) -> float:
    """The 99th percentile of latency, from the time each request was due."""
    return 1e6 * statistics.quantiles(_latencies_s(port, path, rate_per_s, seconds), n=100)[98]


def _latencies_s(port: int, path: str, rate_per_s: int, seconds: int) -> list[float]:
    with open_connections(port) as connections:
        gc.disable()
        try:
            return _ConstantRateLoad(connections, _request(port, path), rate_per_s).run(rate_per_s * seconds)
        finally:
            gc.enable()


class _ConstantRateLoad:
    """Requests due at even intervals. If all connections are busy, a request waits, and the wait counts."""

    def __init__(self, connections: list[socket.socket], request: bytes, rate_per_s: int) -> None:
        self._request = request
        self._interval_s = 1 / rate_per_s
        self._connections, self._epoll = register_epoll(connections)
        self._free = deque(self._connections)
        self._due_at_s: dict[int, float] = {}  # of the request that each busy connection carries
        self._latencies_s: list[float] = []

    def run(self, request_count: int) -> list[float]:
        started_at_s = time.perf_counter()
        sent_count = 0
        while len(self._latencies_s) < request_count:
            due_at_s = started_at_s + sent_count * self._interval_s
            if self._free and sent_count < request_count and due_at_s <= time.perf_counter():
                self._send(due_at_s)
                sent_count += 1
            self._receive()
            if time.perf_counter() > due_at_s + RESPONSE_TIMEOUT_S:
                raise RuntimeError(f"{request_count - len(self._latencies_s)} requests were never answered")
        return self._latencies_s

    def _send(self, due_at_s: float) -> None:
        number = self._free.popleft()
        self._connections[number].sendall(self._request)
        self._due_at_s[number] = due_at_s

    def _receive(self) -> None:
        for number, _ in self._epoll.poll(0):
            answer = self._connections[number].recv(4096)
            self._latencies_s.append(time.perf_counter() - self._due_at_s.pop(number))
            if not answer.endswith(b"\r\n\r\n"):
                raise RuntimeError(f"not one whole answer without a body: {answer!r}")
            self._free.append(number)


def _request(port: int, path: str) -> bytes:
    lines = [f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", *_HEADER_LINES, "", ""]
    return "\r\n".join(lines).encode()


@contextmanager
def open_connections(port: int) -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        address = ("127.0.0.1", port)
        yield [stack.enter_context(socket.create_connection(address)) for _ in range(CONNECTIONS)]


def register_epoll(connections: list[socket.socket]) -> tuple[dict[int, socket.socket], select.epoll]:
    """The connections by number, and a selector of the readable ones."""
    by_number = {connection.fileno(): connection for connection in connections}
    answers = select.epoll()
    for number in by_number:
        answers.register(number, select.EPOLLIN)
    return by_number, answers
