"""Measures one duration inside a process of the interpreter under test and prints it.

`python -m benchmarks.timing_script FIGURE [PORT]`, one of the functions in FIGURES.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from typing import TYPE_CHECKING

import uvloop

from svcnode.core.redaction import redacted, register_secret
from svcnode.probes import make_probe
from svcnode.probes.run import run_check

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

OVERRUN_CHECKS = 40
OVERRUN_TIMEOUT_S = 0.05
STALL_TIMEOUT_S = 1.0
REDACTED_TEXTS = 2000
MANY_SECRETS, FEW_SECRETS = 5000, 50


def check_overrun_ms(port: int) -> float:
    """How long after its deadline a check of an unresponsive server ends, median."""
    probe = make_probe(f"http://127.0.0.1:{port}/")

    async def overrun_s() -> float:
        started_s = time.perf_counter()
        await run_check(probe, OVERRUN_TIMEOUT_S)
        return time.perf_counter() - started_s - OVERRUN_TIMEOUT_S

    return _median_ms(overrun_s)


def timeout_overrun_ms(port: int) -> float:
    """The same for a bare `asyncio.timeout`."""

    async def overrun_s() -> float:
        started_s = time.perf_counter()
        try:
            async with asyncio.timeout(OVERRUN_TIMEOUT_S):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                await reader.read()
        except TimeoutError:
            writer.close()
        return time.perf_counter() - started_s - OVERRUN_TIMEOUT_S

    return _median_ms(overrun_s)


def _median_ms(overrun_s: Callable[[], Awaitable[float]]) -> float:
    async def run() -> float:
        return statistics.median([await overrun_s() for _ in range(OVERRUN_CHECKS)])

    return 1e3 * uvloop.run(run())


def loop_stall_ms(port: int) -> float:
    """The longest time in which the event loop runs nothing else during one check."""

    async def run() -> float:
        longest_s = 0.0
        probe = make_probe({"url": f"http://127.0.0.1:{port}/", "contains": "never"})
        check = asyncio.create_task(run_check(probe, STALL_TIMEOUT_S))
        while not check.done():
            started_s = time.perf_counter()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.perf_counter() - started_s)
        return 1e3 * longest_s

    return uvloop.run(run())


def redaction_us(secrets: int) -> float:
    """Time to redact one text while this number of secrets is registered."""
    for number in range(secrets):
        register_secret(f"secret/{number:06}")
    text = "response 401 for secret/000007"
    started_s = time.perf_counter()
    for _ in range(REDACTED_TEXTS):
        redacted(text)
    return 1e6 * (time.perf_counter() - started_s) / REDACTED_TEXTS


FIGURES = {
    "check-overrun": check_overrun_ms,
    "timeout-overrun": timeout_overrun_ms,
    "loop-stall": loop_stall_ms,
    "redaction": redaction_us,
}

if __name__ == "__main__":
    print(FIGURES[sys.argv[1]](int(sys.argv[2])))
