"""How long a check of a page of metrics takes, and how long the event loop waits meanwhile.

`python -m benchmarks.metrics_page`: 10 MB, 100,000 series, served by another process. The conditions are about one of
1,000 names, and about all series of one name. Beside each, the lag of the loop without a check.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
import time

import uvloop

from svcnode.probes import make_probe

SERIES = 100_000
CHECKS = 5
CASES = (
    ("1 of 1,000 names", 1000, ["sum of requests7_total >= 0", 'requests500_total{path="/api/v1/x5"} == 5500']),
    ("all series", 1, ["sum of requests0_total > 0"]),
    ("1 of all series, by a label", 1, ['requests0_total{path="/api/v1/x77"} == 77']),
)


def page(names: int) -> bytes:
    labels = (f'{{instance="10.0.{i % 256}.{i // 256}:9090",path="/api/v1/x{i}",code="200"}}' for i in range(SERIES))
    lines = [f'requests{i % names}_total{one[:-1]},job="signer"}} {i}' for i, one in enumerate(labels)]
    if names > 1:
        lines = [line.replace(f"x{i}", f"x{i // names}", 1) for i, line in enumerate(lines)]
    return ("\n".join(lines) + "\n").encode()


def serve(listener: socket.socket, body: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % len(body)
    while True:
        client, _ = listener.accept()
        with client:
            client.recv(65536)
            client.sendall(head + body)


async def lags_ms(until: asyncio.Event) -> list[float]:
    found = []
    while not until.is_set():
        began_s = time.perf_counter()
        await asyncio.sleep(0.001)
        found.append((time.perf_counter() - began_s - 0.001) * 1000)
    return sorted(found)


async def measure(name: str, url: str, require: list[str]) -> None:
    probe = make_probe({"url": url, "require": require})
    for _ in range(CHECKS):
        ended = asyncio.Event()
        lags = asyncio.create_task(lags_ms(ended))
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        verdict = await probe.check()
        wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        ended.set()
        show(name, await lags, f"{verdict.outcome.value} in {wall_s:.2f} s, {cpu_s:.2f} s of a processor")
    idle = asyncio.Event()
    lags = asyncio.create_task(lags_ms(idle))
    await asyncio.sleep(1.0)
    idle.set()
    show("no check", await lags, "")


def show(name: str, lags: list[float], text: str) -> None:
    p99 = lags[int(len(lags) * 0.99)]
    print(f"{name:28}  lag median {lags[len(lags) // 2]:.2f} ms, p99 {p99:.2f} ms, max {lags[-1]:.2f} ms  {text}")


def main() -> None:
    for name, names, require in CASES:
        body = page(names)
        print(f"{len(body) / 1e6:.1f} MB")
        with socket.create_server(("127.0.0.1", 0)) as listener:
            server = multiprocessing.Process(target=serve, args=(listener, body), daemon=True)
            server.start()
            uvloop.run(measure(name, f"metrics+http://127.0.0.1:{listener.getsockname()[1]}/metrics", require))
            server.kill()


if __name__ == "__main__":
    main()
