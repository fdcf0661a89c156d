"""Checks of every kind that are cancelled at any moment leave nothing open and no unretrieved error."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.probes import make_probe
from tests.contract.checks import listening
from tests.contract.faults import FAULTS, FaultyServer
from tests.contract.kinds import ALLOWED, LOCAL_SCHEMES, PLAIN_KINDS, ROWS, TLS_KINDS, UNIX_KINDS, Kind
from tests.support.backends import HttpBackend, http_response, open_file_count, server_tls
from tests.support.http_server import becomes_true

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.certificates import Certificate
    from tests.support.check_runner import CheckRunner

ITERATIONS = 40  # of the loop: enough for a connection, a handshake and a request


async def cancel_after(iterations: int, config: dict[str, Any]) -> None:
    task = asyncio.create_task(make_probe(config, allowed=ALLOWED).check())
    for _ in range(iterations):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    for _ in range(5):  # the loop closes connections in its next iterations
        await asyncio.sleep(0)


async def open_first_stream() -> None:
    """With its first stream, uvloop opens a file that stays open."""
    server = await asyncio.get_running_loop().create_server(asyncio.Protocol, "127.0.0.1", 0)
    server.close()
    await server.wait_closed()


def cancel_at_every_iteration(check: CheckRunner, config: dict[str, Any]) -> None:
    async def scenario() -> None:
        await open_first_stream()
        await cancel_after(ITERATIONS, config)
        before = await asyncio.to_thread(open_file_count)
        for iterations in range(ITERATIONS):
            await cancel_after(iterations, config)
        gc.collect()  # asyncio reports an unretrieved error when it is collected
        # In a thread, so that the loop can close connections that the server has closed.
        assert await asyncio.to_thread(becomes_true, lambda: open_file_count() <= before), (
            f"{before} before: {open_file_count()}"
        )

    check.run(scenario())


@pytest.mark.parametrize(
    "kind", [*PLAIN_KINDS, *UNIX_KINDS, *(kind for kind in TLS_KINDS if kind.has_own_client)], ids=str
)
def test_a_cancelled_check_of_any_kind_leaves_nothing_open(
    check: CheckRunner, kind: Kind, certificate: Certificate
) -> None:
    options = {"ca": str(certificate.certificate)} if kind.uses_tls else {}
    server = FaultyServer(kind, FAULTS["silent"], server_tls(certificate) if kind.uses_tls else None)
    with listening(kind, server) as backend:
        cancel_at_every_iteration(check, kind.config(backend.address, **options))


@pytest.mark.parametrize("scheme", LOCAL_SCHEMES)
def test_a_cancelled_check_of_this_machine_leaves_nothing_open(check: CheckRunner, scheme: str, tmp_path: Path) -> None:
    target = ROWS[scheme].local
    assert target is not None
    cancel_at_every_iteration(check, target(tmp_path))


@pytest.mark.parametrize(("scheme", "reuse"), [("http", True), ("https", False)])
def test_a_check_that_is_cancelled_while_the_response_arrives_leaves_nothing_open(
    check: CheckRunner, scheme: str, certificate: Certificate, *, reuse: bool
) -> None:
    options = {"ca": str(certificate.certificate)} if scheme == "https" else {}
    with HttpBackend(http_response(200), tls=server_tls(certificate) if options else None) as backend:
        cancel_at_every_iteration(check, options | {"url": f"{scheme}://{backend.address}", "reuse": reuse})
