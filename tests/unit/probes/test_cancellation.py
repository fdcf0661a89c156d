"""Checks that are cancelled at any moment leave nothing open and no unretrieved error."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from svcnode.probes import KINDS, make_probe
from tests.support.backends import Backend, HttpBackend, http_response, open_file_count, server_tls, unresponsive
from tests.support.certificates import Certificate, make_certificate
from tests.support.http_server import LOOPS, becomes_true

ITERATIONS = 40  # of the loop: enough for a connection, a handshake and a request
LOCAL = {"disk", "exec", "file", "heartbeat", "sqlite"}  # without a connection
TLS_SCHEMES = {scheme for scheme in KINDS if scheme.endswith("s") and scheme[:-1] in KINDS} | {"tls"}
OPTIONS: dict[str, dict[str, Any]] = {
    "jsonrpc+http": {"method": "ping"},
    "jsonrpc+https": {"method": "ping"},
    "mariadb": {"username": "me"},
    "mysql": {"username": "me"},
    "tcp": {"send": "hello", "expect": "hello"},
}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("cancellation"))


@pytest.fixture(params=list(LOOPS))
def loop_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def cancel_after(iterations: int, config: dict[str, Any]) -> None:
    task = asyncio.create_task(make_probe(config).check())
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


def cancel_at_every_iteration(loop_name: str, config: dict[str, Any]) -> None:
    errors: list[dict[str, Any]] = []

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

    with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: errors.append(context))
        runner.run(scenario())
    assert errors == []


@pytest.mark.parametrize("scheme", sorted(KINDS.keys() - LOCAL))
def test_a_cancelled_check_of_any_kind_leaves_nothing_open(
    scheme: str, loop_name: str, certificate: Certificate
) -> None:
    is_encrypted = scheme in TLS_SCHEMES
    options = {"ca": str(certificate.certificate)} if is_encrypted else {}
    with Backend(unresponsive, tls=server_tls(certificate) if is_encrypted else None) as backend:
        path = "/mymaster" if scheme == "redis+sentinel" else ""
        cancel_at_every_iteration(
            loop_name, options | {"url": f"{scheme}://{backend.address}{path}", **OPTIONS.get(scheme, {})}
        )


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("reuse", [False, True])
def test_a_check_that_is_cancelled_while_the_response_arrives_leaves_nothing_open(
    scheme: str, loop_name: str, certificate: Certificate, *, reuse: bool
) -> None:
    options = {"ca": str(certificate.certificate)} if scheme == "https" else {}
    with HttpBackend(http_response(200), tls=server_tls(certificate) if options else None) as backend:
        cancel_at_every_iteration(loop_name, options | {"url": f"{scheme}://{backend.address}", "reuse": reuse})
