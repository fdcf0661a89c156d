"""Check faulty servers with every kind of probe that connects, many at a time, and measure time, bytes and memory.

`python -m tests.stress.hostile_backends` runs the faults of the contract suite (tests/contract) in one process. There,
each check is judged by itself; here, no check may be late, none may read without a limit, and after all of them no
connection, task, thread, descriptor or memory is left.
"""

# ruff: noqa: T201  a command-line program

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from svcnode.core.model import Outcome
from svcnode.probes import make_probe
from svcnode.probes.run import run_check
from tests.contract.faults import CLOSED, FAULTS, HANDSHAKE_FAULTS, IN_TIME, PLAIN_FAULTS, Fault, FaultyServer, bomb
from tests.contract.kinds import PLAIN_KINDS, TLS_KINDS, Kind
from tests.stress.campaigns import campaign_folder, memory_bytes
from tests.support.backends import Backend, open_file_count, server_tls
from tests.support.certificates import Certificate, make_certificate

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from svcnode.core.model import Verdict

TIMEOUT_S = 3.0  # on a busy machine, reading up to a limit takes time
LATE_S = 4.0  # on a busy machine, beyond the deadline
MAX_SENT_BYTES = 64 * 1024**2  # the limits of the probes and the buffers of the kernel are far below
MAX_GROWTH_BYTES = 96 * 1024**2


@dataclass(frozen=True)
class Run:
    kind: Kind
    name: str
    fault: Fault

    def server(self, certificate: Certificate) -> FaultyServer:
        is_encrypted = self.kind.uses_tls and self.fault not in HANDSHAKE_FAULTS.values()
        return FaultyServer(self.kind, self.fault, server_tls(certificate) if is_encrypted else None)


@dataclass(frozen=True, kw_only=True)
class Result:
    run: Run
    verdict: Verdict
    error: BaseException | None
    late_s: float
    sent_bytes: int

    @property
    def problem(self) -> str | None:
        if self.verdict.outcome is Outcome.READY:
            return "judged ready"
        if self.error is not None:
            return f"raised {self.error!r}"
        if self.late_s > LATE_S:
            return f"{self.late_s:.1f} s after the deadline"
        if self.sent_bytes > MAX_SENT_BYTES:
            return f"read {self.sent_bytes / 1024**2:.0f} MiB"
        codes = self.run.fault.codes | (IN_TIME | CLOSED if self.run.kind.uses_tls else frozenset())
        if self.verdict.code not in codes:
            return f"{self.verdict.code}: {self.verdict.reason[:150]}"
        return None


async def check(run: Run, certificate: Certificate) -> Result:
    options: dict[str, Any] = {"ca": str(certificate.certificate)} if run.kind.uses_tls else {}
    server = run.server(certificate)
    backend = Backend(server)
    await asyncio.to_thread(backend.__enter__)
    try:
        probe = make_probe(run.kind.config(backend.address, **options))
        started_s = time.monotonic()
        verdict, error = await run_check(probe, TIMEOUT_S)
        late_s = time.monotonic() - started_s - TIMEOUT_S
    finally:
        await asyncio.to_thread(backend.__exit__)  # fails if a connection is left open
    return Result(run=run, verdict=verdict, error=error, late_s=late_s, sent_bytes=server.sent_bytes)


def all_runs(schemes: Iterable[str], faults: Iterable[str]) -> Iterator[Run]:
    for kind in (*PLAIN_KINDS, *TLS_KINDS):
        for name, fault in {**FAULTS, **(HANDSHAKE_FAULTS if kind.uses_tls else PLAIN_FAULTS)}.items():
            if kind.scheme in schemes and name in faults and fault.concerns(kind):
                yield Run(kind, name, fault)


async def run_campaign(folder: Path, runs: Iterable[Run], concurrent: int = 4) -> list[Result]:
    certificate = make_certificate(folder)
    for times in (1, 2):
        bomb(times)  # takes a second
    limit = asyncio.Semaphore(concurrent)

    async def limited(run: Run) -> Result:
        async with limit:
            return await check(run, certificate)

    results = await asyncio.gather(*(limited(run) for run in runs))
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not left, f"tasks are left: {left}"
    return results


def main() -> int:
    schemes = sorted({kind.scheme for kind in (*PLAIN_KINDS, *TLS_KINDS)})
    names = [*FAULTS, *PLAIN_FAULTS, *HANDSHAKE_FAULTS]
    parser = argparse.ArgumentParser(prog="python -m tests.stress.hostile_backends", description=__doc__)
    parser.add_argument("--kinds", nargs="*", default=schemes)
    parser.add_argument("--faults", nargs="*", default=names)
    arguments = parser.parse_args()
    own_pid, started_s = "self", time.monotonic()
    with campaign_folder() as folder:
        # Load the drivers before anything is counted.
        asyncio.run(run_campaign(folder, all_runs(arguments.kinds, ["reset after the first byte"])))
        before_bytes, files, threads = memory_bytes(own_pid, "VmRSS"), open_file_count(), threading.active_count()
        results = asyncio.run(run_campaign(folder, all_runs(arguments.kinds, arguments.faults)))
    growth_bytes = memory_bytes(own_pid, "VmRSS") - before_bytes
    problems = [result for result in results if result.problem]
    for result in problems:
        print(f"{result.run.kind}, {result.run.name}: {result.problem}")
    left = (open_file_count() - files, threading.active_count() - threads)
    print(f"checks: {len(results)} of {len(arguments.kinds)} kinds, in {time.monotonic() - started_s:.0f} s")
    print(f"latest verdict: {max(result.late_s for result in results):.2f} s after the deadline of {TIMEOUT_S:g} s")
    print(f"most bytes read: {max(result.sent_bytes for result in results) / 1024**2:.1f} MiB")
    print(f"memory after all checks: {growth_bytes / 1024**2:.0f} MiB more; descriptors, threads left: {left}")
    print(f"wrong, late, unbounded or failed checks: {len(problems)}")
    return 1 if problems or growth_bytes > MAX_GROWTH_BYTES or any(count > 0 for count in left) else 0


if __name__ == "__main__":
    sys.exit(main())
