"""Responsiveness: how soon deadlines and failures come. Tests judge behaviour; these times are judged here."""

from __future__ import annotations

import random
import socket
import subprocess
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.support.backends import Backend, Peer
from tests.support.fake_nodes import FakeNode, FakeNodes

from benchmarks import peers
from benchmarks.comparison import Benchmark, Candidate, Comparison, Threshold
from benchmarks.cores import SERVER_CORE, on_core
from benchmarks.payloads import HEALTH, service_fields
from benchmarks.processes import START_TIMEOUT_S, run_figure, running
from benchmarks.provision import ROOT
from benchmarks.targets import unresponsive_target
from benchmarks.timing_script import FEW_SECRETS, MANY_SECRETS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from benchmarks.processes import Server
    from benchmarks.provision import Python

SCRIPT = "benchmarks.timing_script"
FALL, INTERVAL_S, TIMEOUT_S = 3, 1.0, 0.9
# Until the next check starts, then two more at the transition interval (a fifth of the interval), and their timeout.
MAX_DETECTION_S = INTERVAL_S + (FALL - 1) * INTERVAL_S / 5 + TIMEOUT_S
NODES, HANGING_NODES, STATUS_TIMEOUT_S = 200, 20, 3.0


def _deadline(python: Python, seconds: int) -> Benchmark:
    def candidate(name: str, figure: str) -> Candidate:
        return Candidate(name, lambda: _with_port(python.path, figure, unresponsive_target))

    return Benchmark(
        title="time from the deadline of a check to its end, ms",
        comparisons=(
            Comparison(
                candidate("svcnode", "check-overrun"),
                candidate("asyncio.timeout", "timeout-overrun"),
                Threshold(3, is_floor=False),
            ),
        ),
    )


def _endless_response(python: Python, seconds: int) -> Benchmark:
    def candidate(name: str, script: Callable[[Peer], None]) -> Candidate:
        return Candidate(name, lambda: _with_port(python.path, "loop-stall", lambda: _serving(script)))

    return Benchmark(
        title="longest stall of the event loop during a check, ms",
        comparisons=(
            Comparison(
                candidate("endless response", _send_endless_response),
                candidate("small response", _send_small_response),
                Threshold(20, is_floor=False),
            ),
        ),
    )


def _redaction(python: Python, seconds: int) -> Benchmark:
    def candidate(secrets: int) -> Candidate:
        return Candidate(f"{secrets:,} secrets", lambda: run_figure(python.path, SCRIPT, "redaction", secrets))

    return Benchmark(
        title="redaction of one text, µs",
        comparisons=(Comparison(candidate(MANY_SECRETS), candidate(FEW_SECRETS), Threshold(10, is_floor=False)),),
    )


def _detection(python: Python, seconds: int) -> Benchmark:
    svcnode = Candidate("svcnode", lambda: _detection_s(python.path))
    return Benchmark(
        title=f"server closed to status Down, fall {FALL}, interval {INTERVAL_S:g} s, s",
        comparisons=(Comparison(svcnode, threshold=Threshold(round(MAX_DETECTION_S, 1), is_floor=False)),),
        samples_per_round=3,
    )


def _hanging_nodes(python: Python, seconds: int) -> Benchmark:
    svcnode = Candidate("svcnode status", lambda: _status_overhead_s(python.path))
    return Benchmark(
        title=f"status of {NODES} nodes, {HANGING_NODES} hang: time beyond the timeout, s",
        comparisons=(Comparison(svcnode, threshold=Threshold(1, is_floor=False)),),
    )


BENCHMARKS: dict[str, Callable[[Python, int], Benchmark]] = {
    "deadline": _deadline,
    "endless-response": _endless_response,
    "redaction": _redaction,
    "detection": _detection,
    "hanging-nodes": _hanging_nodes,
}


# ---- one measurement each


def _with_port(python: Path, figure: str, target: Callable[[], AbstractContextManager[int]]) -> float:
    with target() as port:
        return run_figure(python, SCRIPT, figure, port)


@contextmanager
def _serving(script: Callable[[Peer], None]) -> Iterator[int]:
    with Backend(script) as backend:
        yield int(str(backend.address).rpartition(":")[2])


def _send_endless_response(peer: Peer) -> None:
    peer.read_until(b"\r\n\r\n")
    peer.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        peer.send(b"10000\r\n" + b"x" * 65536 + b"\r\n")


def _send_small_response(peer: Peer) -> None:
    peer.read_until(b"\r\n\r\n")
    peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


def _detection_s(python: Path) -> float:
    with socket.create_server(("127.0.0.1", 0)) as listener:  # the kernel accepts; nothing needs to read
        probe = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        table = {**service_fields(0), "probe": probe, "interval": f"{INTERVAL_S:g}s", "timeout": f"{TIMEOUT_S:g}s"}
        with running(peers.svcnode_with(python, [table])) as server:
            _wait_for(server, 200)
            time.sleep(INTERVAL_S * random.random())
            closed_s = time.monotonic()
            listener.close()
            _wait_for(server, 503)
            return time.monotonic() - closed_s


def _wait_for(server: Server, health: int) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while server.get(HEALTH)[0] != health:
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"node health did not become {health}")
        time.sleep(0.005)


def _status_overhead_s(python: Path) -> float:
    nodes = {f"n{number}": FakeNode(hangs=number < HANGING_NODES) for number in range(NODES)}
    command = [str(python), "-m", "svcnode", "status", "--from", "-", "--timeout", f"{STATUS_TIMEOUT_S:g}s"]
    environ = {"PYTHONPATH": str(ROOT / "src"), "PATH": ""}
    with FakeNodes(nodes) as serving, on_core(SERVER_CORE):
        started_s = time.monotonic()
        subprocess.run(command, input="\n".join(serving.urls), env=environ, capture_output=True, text=True, check=False)
        return time.monotonic() - started_s - STATUS_TIMEOUT_S
