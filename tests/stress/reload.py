"""Ask a node for its health while it reloads a file in which every service has changed, and print how long that takes.

`python -m tests.stress.reload` starts `svcnode serve` with 5,000 services and asks for its health every 5 ms: first for
some seconds without a reload, then during one that changes the probe of every service. Each node reloads several times.
`--source` names the `src` folders of other clones, whose nodes run in turn, so that all of them see the same machine.
Prints a row for each folder, with times in milliseconds. "Held" is processor time, which says more on a busy machine.
"""

# ruff: noqa: T201  a command-line program

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from svcnode.control import ControlClient
from tests.stress.campaigns import campaign_folder, machine
from tests.support.ports import free_port
from tests.support.processes import Agent
from tests.support.servers.base import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

POLL_S = 0.005
IDLE_S = 5.0
START_S = 120.0
RELOAD_S = 120.0
REQUEST = b"GET /svc/node/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
CONFIG = """
[node]
name = "reloaded"
[server]
listen = "127.0.0.1:{port}"
drain = "0s"
[control]
listen = "unix:{folder}/control.sock"
path = "{folder}/control.json"
[defaults]
interval = "30s"
"""
SERVICE = """
[[services]]
id = "service-{number}"
name = "Service {number}"
description = "Version {version} of service {number}"
probe = "http://127.0.0.1:{backend}/{number}?version={version}"
"""
# In a process of its own: the answers of the node are timed in this one.
BACKEND = """
import asyncio, sys
class Respond(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
        self.transport.close()
async def main():
    server = await asyncio.get_running_loop().create_server(Respond, "127.0.0.1", int(sys.argv[1]), backlog=4096)
    await server.serve_forever()
asyncio.run(main())
"""
# In the node: the processor time for which something held its event loop, from one tick to the next. A garbage
# collection in another thread holds it too.
SITECUSTOMIZE = """
import asyncio, gc, os, threading, time

class Runner(asyncio.Runner):
    def run(self, coroutine, **options):
        loop, main, file = self.get_loop(), threading.get_ident(), open(os.environ["RELOAD_HELD"], "w", buffering=1)
        collecting_s = started_s = 0.0
        last_s = time.thread_time()

        def on_collection(phase, info):
            nonlocal collecting_s, started_s
            if phase == "start":
                started_s = time.thread_time()
            elif threading.get_ident() != main:
                collecting_s += time.thread_time() - started_s

        def tick():
            nonlocal collecting_s, last_s
            now_s = time.thread_time()
            held_s, last_s, collecting_s = now_s - last_s + collecting_s, now_s, 0.0
            if held_s > 0.001:
                file.write(f"{time.monotonic()} {held_s}\\n")
            loop.call_later(0.001, tick)

        gc.callbacks.append(on_collection)
        loop.call_soon(tick)
        return super().run(coroutine, **options)

asyncio.Runner = asyncio.runners.Runner = Runner
"""


class Poller:
    """Asks for the health on one connection; `times_s` are how long the answers took."""

    def __init__(self, port: int) -> None:
        self.times_s: list[float] = []
        self._port = port
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Poller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with socket.create_connection(("127.0.0.1", self._port)) as sock:
            while not self._stop.is_set():
                started_s = time.monotonic()
                sock.sendall(REQUEST)
                answer = sock.recv(4096)
                assert answer.startswith(b"HTTP/1.1 "), answer
                self.times_s.append(time.monotonic() - started_s)
                time.sleep(POLL_S)


class Figures(NamedTuple):
    """Of one reload, and of the time before it."""

    idle_s: list[float]
    reload_s: list[float]
    held_s: float  # the longest
    duration_s: float


def measure(folder: Path, source: Path, services: int, reloads: int, backend: int) -> Iterator[Figures]:
    """Of one node."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE)
    port, held_file = free_port(), folder / "held"

    def config(version: int) -> str:
        tables = (SERVICE.format(number=number, version=version, backend=backend) for number in range(services))
        return CONFIG.format(port=port, folder=folder) + "".join(tables)

    environ = {"PYTHONPATH": f"{source.absolute()}{os.pathsep}{folder}", "RELOAD_HELD": str(held_file)}
    with (
        Agent(folder, config=config(0), environ=environ) as agent,
        ControlClient(folder / "control.sock", timeout=f"{RELOAD_S:g}s") as client,
    ):
        agent.wait_for_log("started: node")
        for version in range(1, reloads + 1):
            agent.config_file.write_text(config(version))
            with Poller(port) as idle:
                time.sleep(IDLE_S)
            with Poller(port) as reloading:
                started_s = time.monotonic()
                text = client.reload()
                ended_s = time.monotonic()
            assert "changed" in text, text
            held_s = longest_held_s(held_file, started_s, ended_s)
            yield Figures(idle.times_s, reloading.times_s, held_s, ended_s - started_s)


def longest_held_s(file: Path, started_s: float, ended_s: float) -> float:
    ticks = [tuple(map(float, line.split())) for line in file.read_text().splitlines()[:-1]]
    return max((held_s for at_s, held_s in ticks if started_s <= at_s <= ended_s), default=0.0)


@contextmanager
def backend_process() -> Iterator[int]:
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", BACKEND, str(port)])
    try:
        wait_until(lambda: _accepts(port), "the backend listens", START_S)
        yield port
    finally:
        process.kill()
        process.wait()


def _accepts(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


HEADER = (
    "| source | reloads | reload s: median | idle: median | 99 % | longest: median | longest of all "
    "| reload: median | 99 % | longest: median | longest of all | held, longest: median | longest of all |\n|"
    + "---|"
    * 13
)


def row(source: Path, figures: Sequence[Figures]) -> str:
    cells = [str(source), str(len(figures)), f"{median(each.duration_s for each in figures):.1f}"]
    shown_s: list[float] = []
    for series in ([each.idle_s for each in figures], [each.reload_s for each in figures]):
        every_s = sorted(time_s for times_s in series for time_s in times_s)
        longest_s = [max(times_s) for times_s in series]
        shown_s += [median(every_s), every_s[int(0.99 * (len(every_s) - 1))], median(longest_s), max(longest_s)]
    held_s = [each.held_s for each in figures]
    cells += [f"{time_s * 1000:.1f}" for time_s in (*shown_s, median(held_s), max(held_s))]
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.reload", description=__doc__)
    parser.add_argument("--services", type=int, default=5_000)
    parser.add_argument("--nodes", type=int, default=3, help="for each source")
    parser.add_argument("--reloads", type=int, default=3, help="of each node")
    parser.add_argument("--source", type=Path, nargs="*", default=[Path("src")])
    arguments = parser.parse_args()
    print(f"{arguments.services} services, {machine()}\n\n{HEADER}", flush=True)
    figures: dict[Path, list[Figures]] = {source: [] for source in arguments.source}
    with campaign_folder() as folder, backend_process() as backend:
        for repetition in range(arguments.nodes):
            for number, (source, found) in enumerate(figures.items()):
                node_folder = folder / f"{repetition}-{number}"
                found.extend(measure(node_folder, source, arguments.services, arguments.reloads, backend))
    for source, found in figures.items():
        print(row(source, found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
