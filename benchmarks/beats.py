"""Heartbeats over the control socket, beside `SET` of Redis over a Unix socket.

Both servers get the same number of keep-alive connections from the same client, which sends the next request of a
connection when it has the response to the last. svcnode responds when the heartbeat is on the disk. Redis does so with
`appendfsync always`. Both write all requests that wait with one fsync, so the number of connections matters. Redis
without persistence shows what the disk costs; with many connections, the client is its limit.
"""

from __future__ import annotations

import json
import socket
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.comparison import Benchmark, Candidate, Comparison
from benchmarks.load import register_epoll
from benchmarks.processes import POLL_INTERVAL_S, START_TIMEOUT_S, Server, start, stop
from benchmarks.provision import tool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.provision import Python

WARM_UP_S = 0.1
SECOND, CPU_SECOND = "second", "second of CPU time"
_NODE_TOML = """
[node]
name = "validator-7"

[server]
listen = "unix:http.sock"
drain = "0s"

[control]
listen = "unix:{socket}"
path = "{folder}/control.db"

[[services]]
id = "indexer"
probe = "heartbeat:60s"
"""
_BODY = json.dumps({"status": "up"}).encode()
_BEAT = (
    f"PUT /v1/services/indexer/status HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(_BODY)}\r\n\r\n".encode()
    + _BODY
)
_SET = b"*3\r\n$3\r\nSET\r\n$7\r\nindexer\r\n$16\r\n" + _BODY + b"\r\n"


class Peer(NamedTuple):
    """A server on a Unix socket, one request, and how the response to it begins and ends."""

    command: Callable[[Path, Path], list[str | Path]]  # (folder, socket) -> the command line
    request: bytes
    response_start: bytes
    response_end: bytes


def _svcnode(python: Path) -> Peer:
    def command(folder: Path, path: Path) -> list[str | Path]:
        file = folder / "svcnode.toml"
        file.write_text(_NODE_TOML.format(folder=folder, socket=path))
        return [python, "-m", "svcnode", "serve", "--config", file]

    return Peer(command, _BEAT, b"HTTP/1.1 204 ", b"\r\n\r\n")


def _redis(*options: str) -> Peer:
    def command(folder: Path, path: Path) -> list[str | Path]:
        return [tool("redis-server"), "--port", "0", "--unixsocket", path, "--dir", folder, "--save", "", *options]

    return Peer(command, _SET, b"+OK", b"\r\n")


def _beats(connection_count: int, unit: str, python: Python, seconds: int) -> Benchmark:
    def candidate(name: str, peer: Peer) -> Candidate:
        return Candidate(name, lambda: _requests_per_s(peer, connection_count, seconds, is_cpu_time=unit == CPU_SECOND))

    svcnode = candidate("svcnode", _svcnode(python.path))
    fsynced = candidate("Redis SET, fsync", _redis("--appendonly", "yes", "--appendfsync", "always"))
    in_memory = candidate("Redis SET, in memory", _redis("--appendonly", "no"))
    connections = "1 connection" if connection_count == 1 else f"{connection_count} connections"
    return Benchmark(
        title=f"heartbeats on the disk, {connections}, per {unit}",
        comparisons=(Comparison(svcnode, fsynced), Comparison(svcnode, in_memory)),
    )


BENCHMARKS: dict[str, Callable[[Python, int], Benchmark]] = {
    "beats-1": partial(_beats, 1, SECOND),
    "beats-32": partial(_beats, 32, SECOND),
    "beats-32-cpu": partial(_beats, 32, CPU_SECOND),
}


# ---- one measurement


def _requests_per_s(peer: Peer, connection_count: int, seconds: int, *, is_cpu_time: bool) -> float:
    with _running(peer) as (server, path):
        _count_responses(peer, path, 1, WARM_UP_S)  # svcnode loads the API with the first request
        cpu_before_s, before_s = server.cpu_s, time.perf_counter()
        count = _count_responses(peer, path, connection_count, seconds)
        return count / (server.cpu_s - cpu_before_s if is_cpu_time else time.perf_counter() - before_s)


def _count_responses(peer: Peer, path: Path, connection_count: int, seconds: float) -> int:
    with ExitStack() as stack:
        connections = [stack.enter_context(_connected(path)) for _ in range(connection_count)]
        by_number, responses = register_epoll(connections)
        for connection in connections:
            connection.sendall(peer.request)
        count = 0
        ends_at_s = time.perf_counter() + seconds
        while time.perf_counter() < ends_at_s:
            for number, _ in responses.poll(seconds):
                response = by_number[number].recv(4096)
                if not (response.startswith(peer.response_start) and response.endswith(peer.response_end)):
                    raise RuntimeError(f"not the expected response: {response!r}")
                by_number[number].sendall(peer.request)
                count += 1
        return count


@contextmanager
def _running(peer: Peer) -> Iterator[tuple[Server, Path]]:
    """The server and its socket, which accepts connections."""
    with TemporaryDirectory(prefix="svcnode-bench-") as name:
        path, errors = Path(name) / "server.sock", Path(name) / "errors"
        process = start(peer.command(Path(name), path), errors)
        try:
            deadline_s = time.monotonic() + START_TIMEOUT_S
            while not _accepts(path):
                if time.monotonic() > deadline_s or process.poll() is not None:
                    raise RuntimeError(f"no response from {process.args!r}:\n{errors.read_text(errors='replace')}")
                time.sleep(POLL_INTERVAL_S)
            yield Server(process.pid, 0), path
        finally:
            stop(process)


def _accepts(path: Path) -> bool:
    try:
        _connected(path).close()
    except OSError:
        return False
    return True


def _connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection
