"""One check of a kind against a faulty server, with everything that holds for every check."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from svcnode.core.model import Outcome, Verdict
from svcnode.core.text import MAX_REASON_CHARS
from svcnode.probes import make_probe
from svcnode.probes.options import public_options
from svcnode.probes.run import close_probe, run_check
from tests.contract.faults import Fault, FaultyServer
from tests.contract.kinds import ALLOWED, PASSWORD, Kind
from tests.support.backends import Backend
from tests.support.http_server import WAIT_TIMEOUT_S
from tests.support.probe_assertions import TIMEOUTS_S, assert_nothing_is_left

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator

    from tests.support.check_runner import CheckRunner

MAX_SENT_BYTES = 64 * 1024**2  # the limits of the probes and the buffers of the kernel are far below


@contextmanager
def listening(kind: Kind, server: FaultyServer) -> Iterator[Backend]:
    """On a port, or on a Unix socket if the kind uses one."""
    with TemporaryDirectory() as folder, Backend(server, path=Path(folder) / "s" if kind.is_unix else None) as backend:
        yield backend


def judge(check: CheckRunner, config: dict[str, Any], port: int, timeout_s: float = WAIT_TIMEOUT_S) -> Verdict:
    """The verdict of a check that raises nothing, shows no secret and leaves no connection, task or thread."""
    probe = make_probe(config, allowed=ALLOWED)

    async def main() -> Verdict:
        before = asyncio.all_tasks()
        verdict, error = await run_check(probe, timeout_s)
        close_probe(probe)
        await assert_nothing_is_left(port, before)
        assert error is None, f"raised {error!r}"
        return verdict

    verdict = check.run(main())
    assert verdict.reason.isprintable()
    assert len(verdict.reason) <= MAX_REASON_CHARS
    for shown in (verdict.reason, repr(probe), probe.display_url, str(public_options(probe))):
        assert PASSWORD not in (shown or "")
    return verdict


def assert_failed(
    check: CheckRunner, kind: Kind, fault: Fault, tls: ssl.SSLContext | None = None, **options: Any
) -> None:
    """The check is failed with a code of the fault, in time and without reading without a limit."""
    server = FaultyServer(kind, fault, tls)
    with listening(kind, server) as backend:
        # On a busy machine, a check with a short deadline may not get as far as the fault.
        for timeout_s in TIMEOUTS_S if fault.hangs else (WAIT_TIMEOUT_S,):
            verdict = judge(check, kind.config(backend.address, **options), backend.port, timeout_s)
            if verdict.code in fault.codes:
                break
    assert (verdict.outcome, verdict.code in fault.codes) == (Outcome.FAILED, True), verdict
    assert server.sent_bytes <= MAX_SENT_BYTES
