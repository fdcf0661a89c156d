"""Looks that are cut off at any moment: nothing stays open, and no error is left that nobody takes."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from svcnode.probes import KINDS, make_probe
from tests.support.backends import Backend, HttpBackend, http_response, open_file_count, server_tls, unresponsive
from tests.support.certificates import Certificate, make_certificate
from tests.support.http_server import LOOPS, becomes_true

TURNS = 40  # of the loop: enough for a connection, a handshake and a question
ALONE = {"disk", "exec", "file", "heartbeat", "sqlite"}  # those look at no server
UNDER_TLS = {scheme for scheme in KINDS if scheme.endswith("s") and scheme[:-1] in KINDS} | {"tls"}
OPTIONS: dict[str, dict[str, Any]] = {
    "jsonrpc+http": {"method": "ping"},
    "jsonrpc+https": {"method": "ping"},
    "mariadb": {"username": "me"},
    "mysql": {"username": "me"},
    "tcp": {"send": "hello", "expect": "hello"},
}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("cut-off"))


@pytest.fixture(params=list(LOOPS))
def loop_name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def cut_off_after(turns: int, words: dict[str, Any]) -> None:
    look = asyncio.create_task(make_probe(words).check())
    for _ in range(turns):
        await asyncio.sleep(0)
    look.cancel()
    await asyncio.wait([look])
    for _ in range(5):  # what was closed is told so in the next turns
        await asyncio.sleep(0)


def cut_off_at_every_turn(loop_name: str, words: dict[str, Any]) -> None:
    faults: list[dict[str, Any]] = []

    async def story() -> None:
        await cut_off_after(TURNS, words)
        before = await asyncio.to_thread(open_file_count)
        for turns in range(TURNS):
            await cut_off_after(turns, words)
        gc.collect()  # an error that nobody took is told when it is collected
        # The loop goes on meanwhile: it may have kept a connection that the server has ended since.
        assert await asyncio.to_thread(becomes_true, lambda: open_file_count() <= before), (
            f"{before} before: {open_file_count()}"
        )

    with asyncio.Runner(loop_factory=LOOPS[loop_name]) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: faults.append(context))
        runner.run(story())
    assert faults == []


@pytest.mark.parametrize("scheme", sorted(KINDS.keys() - ALONE))
def test_whatever_the_moment_and_the_kind_nothing_is_left(
    scheme: str, loop_name: str, certificate: Certificate
) -> None:
    is_encrypted = scheme in UNDER_TLS
    words = {"ca": str(certificate.certificate)} if is_encrypted else {}
    with Backend(unresponsive, tls=server_tls(certificate) if is_encrypted else None) as backend:
        cut_off_at_every_turn(loop_name, words | {"url": f"{scheme}://{backend.address}", **OPTIONS.get(scheme, {})})


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("reuse", [False, True])
def test_nor_where_an_answer_comes_at_that_moment(
    scheme: str, loop_name: str, certificate: Certificate, *, reuse: bool
) -> None:
    words = {"ca": str(certificate.certificate)} if scheme == "https" else {}
    with HttpBackend(http_response(200), tls=server_tls(certificate) if words else None) as backend:
        cut_off_at_every_turn(loop_name, words | {"url": f"{scheme}://{backend.address}", "reuse": reuse})
