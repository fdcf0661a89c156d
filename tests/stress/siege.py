"""Attack a node with bad clients, and measure a good one: its times, its errors, and the memory of the node.

`python -m tests.stress.siege` starts `svcnode serve` for each load, and the bad clients in a process of their own. The
good client asks for the health of the node every 10 ms, on new connections and on one that it keeps. It does so before
the attack (idle) and during it. Everything is on loopback. The times are only meaningful on a quiet machine.
"""

# ruff: noqa: T201  a command-line program

from __future__ import annotations

import argparse
import asyncio
import resource
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tests.stress.campaigns import MIB, machine, memory_bytes
from tests.support.certificates import make_certificate
from tests.support.processes import Agent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

ROOT = Path(__file__).parents[2]
HEALTH = b"GET /svc/node/health HTTP/1.1\r\nHost: n\r\nUser-Agent: siege\r\n\r\n"
LIST = b"GET /svc/node/services HTTP/1.1\r\nHost: n\r\n\r\n"
PIPELINE = HEALTH * (4096 // len(HEALTH))
CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(32)  # its beginning
BAR_MS = 20.0  # p99 of a new connection under load over p99 idle
ANSWER_S = 30.0
EVERY_S = 0.01
MAX_GROWTH_BYTES = 96 * MIB  # the limit of unread bytes is 64 MiB
REOPEN_S = 1.0
SETTLE_S = 3.0  # between the start of the attack and the measurement


# ---- the bad clients, in a process of their own


class Attack:
    """Opens connections and prints "ready" when all of them are open."""

    def __init__(self, port: int, connections: int) -> None:
        self.port = port
        self.connections = connections
        self._opened = 0

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        pair = await asyncio.open_connection("127.0.0.1", self.port)
        self.count()
        return pair

    def count(self) -> None:
        self._opened += 1
        if self._opened == self.connections:
            print("ready", flush=True)

    async def run(self, client: Callable[[Self], Awaitable[None]], opened_per_s: int) -> None:
        """Run all clients without end. A client that is disconnected begins again."""

        async def repeat() -> None:
            while True:
                with suppress(OSError, asyncio.IncompleteReadError):
                    await client(self)
                await asyncio.sleep(REOPEN_S)

        async with asyncio.TaskGroup() as group:
            for number in range(self.connections):
                group.create_task(repeat())
                if number % (opened_per_s // 50) == 0:
                    await asyncio.sleep(0.02)

    async def churn(self, per_s: float, sent: bytes) -> None:
        """Beside the others: connections that end soon."""
        while True:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(sent)
                await asyncio.sleep(0)
                writer.transport.abort()
            await asyncio.sleep(1 / per_s)


async def read_all(reader: asyncio.StreamReader) -> None:
    while await reader.read(65536):
        pass


async def closing_after(writer: asyncio.StreamWriter, work: Awaitable[object]) -> None:
    try:
        await work
    finally:
        writer.transport.abort()


async def send_slowly(attack: Attack) -> None:
    reader, writer = await attack.connect()

    async def send() -> None:
        for byte in HEALTH[:-4] + b"\r\nX: " + b"y" * 10_000:
            writer.write(bytes([byte]))
            await asyncio.sleep(0.5)
            if reader.at_eof():
                return

    await closing_after(writer, send())


async def read_nothing(attack: Attack) -> None:
    loop = asyncio.get_running_loop()
    with closing(socket.socket()) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", attack.port))
        attack.count()
        await loop.sock_sendall(sock, LIST * 10)
        await asyncio.sleep(60)


async def stay_idle(attack: Attack) -> None:
    reader, writer = await attack.connect()
    writer.write(HEALTH)
    await closing_after(writer, read_all(reader))


async def stay_silent(attack: Attack) -> None:
    reader, writer = await attack.connect()
    await closing_after(writer, read_all(reader))


async def half_close(attack: Attack) -> None:
    reader, writer = await attack.connect()
    writer.write(PIPELINE)
    writer.write_eof()
    await asyncio.sleep(0.5)
    await closing_after(writer, read_all(reader))


async def send_pipelines(attack: Attack, pause_s: float) -> None:
    reader, writer = await attack.connect()
    reading = asyncio.ensure_future(read_all(reader))
    try:
        while not reading.done():
            writer.write(PIPELINE)
            await writer.drain()
            await asyncio.sleep(pause_s)
    finally:
        reading.cancel()
        writer.transport.abort()


async def flood(attack: Attack) -> None:
    await send_pipelines(attack, 0.0)


async def send_4_kb_every_2_s(attack: Attack) -> None:
    await send_pipelines(attack, 2.0)


async def abandon_handshake(attack: Attack) -> None:
    reader, writer = await attack.connect()
    writer.write(CLIENT_HELLO)
    await closing_after(writer, read_all(reader))


@dataclass(frozen=True, kw_only=True)
class Load:
    client: Callable[[Attack], Awaitable[None]]
    connections: int
    opened_per_s: int = 5000
    churn_per_s: float = 0.0
    churn_sent: bytes = b""
    services: int = 3
    open_files: int | None = None
    tls: bool = False
    has_bar: bool = False


LOADS = {
    "1,000 connections sending 4 KB every 2 s": Load(client=send_4_kb_every_2_s, connections=1000, has_bar=True),
    "400 connections pipelining without pause": Load(client=flood, connections=400, has_bar=True),
    "1,000 slow senders, 2 bytes/s": Load(client=send_slowly, connections=1000),
    "300 non-readers, 10 lists each": Load(client=read_nothing, connections=300, services=2000),
    "4,096 idle and 50 new a second": Load(client=stay_idle, connections=4096, churn_per_s=50, churn_sent=HEALTH),
    "4,200 silent and 20 new a second": Load(client=stay_silent, connections=4200, churn_per_s=20),
    "500 half-closed with a pipeline": Load(client=half_close, connections=500),
    "1,000 abandoned TLS handshakes and 50 new a second": Load(
        client=abandon_handshake, connections=1000, churn_per_s=50, churn_sent=CLIENT_HELLO, tls=True
    ),
    "300 connections, 256 descriptors": Load(
        client=stay_idle, connections=300, opened_per_s=100, churn_per_s=20, open_files=256
    ),
    "100 unread lists of 20,000 services": Load(client=read_nothing, connections=100, services=20_000),
}


async def run_attack(load: Load, port: int, connections: int) -> None:
    attack = Attack(port, connections)
    async with asyncio.TaskGroup() as group:
        group.create_task(attack.run(load.client, load.opened_per_s))
        if load.churn_per_s:
            group.create_task(attack.churn(load.churn_per_s, load.churn_sent))


@contextmanager
def attacking(name: str, port: int, connections: int) -> Iterator[Callable[[], bool]]:
    """Yields whether all connections are open."""
    arguments = ["--attack", name, "--port", str(port), "--connections", str(connections)]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.stress.siege", *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            reading = threading.Thread(target=process.stdout.readline)
            reading.start()
            yield lambda: not reading.is_alive()
            assert process.poll() is None, "the attack ended"
        finally:
            process.kill()


# ---- the good client


@dataclass
class Samples:
    new_s: list[float] = field(default_factory=list)  # with a connection of their own
    kept_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class GoodClient:
    def __init__(self, port: int, tls: ssl.SSLContext | None) -> None:
        self._port = port
        self._tls = tls
        self._kept: socket.socket | None = None

    def measure(self, for_s: float) -> Samples:
        samples = Samples()
        kept = threading.Thread(target=self._repeat, args=(for_s, samples.kept_s, samples.errors, self._ask_on_kept))
        kept.start()
        self._repeat(for_s, samples.new_s, samples.errors, self._ask_on_new)
        kept.join()
        return samples

    def _repeat(self, for_s: float, times_s: list[float], errors: list[str], ask: Callable[[], bytes]) -> None:
        end_s = time.monotonic() + for_s
        while time.monotonic() < end_s:
            self._time(times_s, errors, ask)
            time.sleep(EVERY_S)

    def _time(self, times_s: list[float], errors: list[str], ask: Callable[[], bytes]) -> None:
        started_s = time.perf_counter()
        try:
            answer = ask()
        except OSError as exc:
            errors.append(f"{ask.__name__}: {type(exc).__name__}: {exc}")
            return
        times_s.append(time.perf_counter() - started_s)
        if not answer.startswith(b"HTTP/1.1 200 "):
            errors.append(f"{ask.__name__}: {answer[:60]!r}")

    def _connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self._port), ANSWER_S)
        return sock if self._tls is None else self._tls.wrap_socket(sock, server_hostname="localhost")

    def _ask_on_new(self) -> bytes:
        with self._connect() as sock:
            sock.sendall(HEALTH)
            return sock.recv(4096)

    def _ask_on_kept(self) -> bytes:
        if self._kept is None:
            self._kept = self._connect()
        try:
            self._kept.sendall(HEALTH)
            if not (answer := self._kept.recv(4096)):
                raise ConnectionResetError("the server closed the connection")
        except OSError:
            self.close()
            raise
        return answer

    def close(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None


# ---- the campaign


@dataclass(frozen=True, kw_only=True)
class SiegeResult:
    name: str
    load: Load
    idle: Samples
    attacked: Samples
    before_bytes: int
    peak_bytes: int
    after_bytes: int

    @property
    def errors(self) -> list[str]:
        return self.idle.errors + self.attacked.errors

    @property
    def over_idle_ms(self) -> float:
        return percentile_ms(self.attacked.new_s, 99) - percentile_ms(self.idle.new_s, 99)

    @property
    def problem(self) -> str | None:
        if self.errors:
            return f"{len(self.errors)} errors, the first: {self.errors[0]}"
        if self.after_bytes - self.before_bytes > MAX_GROWTH_BYTES:
            return f"memory grew by {(self.after_bytes - self.before_bytes) / MIB:.0f} MiB"
        return None


def percentile_ms(times_s: list[float], percent: int) -> float:
    ordered = sorted(times_s)
    return 1000 * ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] if ordered else float("nan")


def config(folder: Path, load: Load) -> str:
    listen = "http://127.0.0.1:0"
    lines = []
    if load.tls:
        pair = make_certificate(folder)
        lines = [f'[server.tls]\ncertificate = "{pair.certificate}"\nkey = "{pair.key}"']
        listen = "https://127.0.0.1:0"
    lines.insert(0, f'[server]\nlisten = "{listen}"\ndrain = "0s"')
    description = "A service that makes the list longer"
    lines += [
        f'[[services]]\nid = "service-{number}"\nstatus = "Up"\ndescription = "{description}"'
        for number in range(load.services)
    ]
    return "\n".join(lines)


def run_load(folder: Path, name: str, *, scale: float, measure_s: float, settle_s: float = SETTLE_S) -> SiegeResult:
    load = LOADS[name]
    folder.mkdir()
    prefix = () if load.open_files is None else ("prlimit", f"--nofile={load.open_files}")
    with Agent(folder, config=config(folder, load), prefix=prefix) as agent:
        pid, port = agent.process.pid, agent.port
        agent_tls = ssl.create_default_context(cafile=folder / "node.pem") if load.tls else None
        client = GoodClient(port, agent_tls)
        try:
            client.measure(measure_s / 4)  # warm up
            before_bytes = memory_bytes(pid, "VmRSS")
            idle = client.measure(measure_s)
            with attacking(name, port, max(2, round(load.connections * scale))) as is_ready:
                errors = []
                while not is_ready():
                    errors += client.measure(0.1).errors
                errors += client.measure(settle_s).errors
                attacked = client.measure(measure_s)
            attacked.errors += errors + client.measure(settle_s).errors
        finally:
            client.close()
        return SiegeResult(
            name=name,
            load=load,
            idle=idle,
            attacked=attacked,
            before_bytes=before_bytes,
            peak_bytes=memory_bytes(pid, "VmHWM"),
            after_bytes=memory_bytes(pid, "VmRSS"),
        )


def table(results: list[SiegeResult]) -> str:
    times = "p50, p99 idle | under load"
    lines = [f"| load | new: {times} | kept: {times} | errors | memory before, peak, after |", "|---" * 7 + "|"]
    for result in results:
        cells = [
            f"{percentile_ms(times_s, 50):.1f}, {percentile_ms(times_s, 99):.1f} ms"
            for times_s in (result.idle.new_s, result.attacked.new_s, result.idle.kept_s, result.attacked.kept_s)
        ]
        memory = ", ".join(f"{size / MIB:.0f}" for size in (result.before_bytes, result.peak_bytes, result.after_bytes))
        lines.append(f"| {result.name} | {' | '.join(cells)} | {len(result.errors)} | {memory} MiB |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.stress.siege", description=__doc__)
    parser.add_argument("--only", nargs="*", help="loads whose name contains one of these texts")
    parser.add_argument("--seconds", type=float, default=10.0, help="to measure, idle and under load")
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--connections", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if arguments.attack is not None:
        asyncio.run(run_attack(LOADS[arguments.attack], arguments.port, arguments.connections))
    names = [name for name in LOADS if not arguments.only or any(part in name for part in arguments.only)]
    before = machine()
    results = []
    with tempfile.TemporaryDirectory(prefix="svcnode-siege-") as folder:
        for number, name in enumerate(names):
            results.append(run_load(Path(folder) / str(number), name, scale=1.0, measure_s=arguments.seconds))
    print(table(results))
    print(f"\n{before} before the campaign")
    is_met = True
    for result in (each for each in results if each.load.has_bar):
        is_met &= result.over_idle_ms <= BAR_MS
        print(f"{result.name}: p99 of a new connection {result.over_idle_ms:.1f} ms over idle; bar {BAR_MS:.0f} ms")
    problems = [f"{result.name}: {result.problem}" for result in results if result.problem]
    print("\n".join(problems))
    print(f"errors: {sum(len(result.errors) for result in results)}")
    return 1 if problems or not is_met else 0


if __name__ == "__main__":
    sys.exit(main())
