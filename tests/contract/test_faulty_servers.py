"""Every kind against every fault of a server."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from svcnode.core.codes import ReasonCode as Code
from svcnode.core.model import Outcome
from svcnode.net.connect import TcpEndpoint
from svcnode.probes import KINDS, make_probe
from svcnode.probes.run import run_check
from tests.contract.checks import assert_failed, judge
from tests.contract.faults import CHUNKED, CLOSED, FAULTS, PLAIN_FAULTS, WRONG, Fault, FaultyServer, endlessly
from tests.contract.kinds import (
    ADDRESS,
    LOCAL_SCHEMES,
    NATS_INFO,
    PASSWORD,
    PLAIN_KINDS,
    TLS_KINDS,
    UNIX_KINDS,
    Kind,
    is_accepted,
)
from tests.support.backends import Backend, Peer, close, closed_port, full_backlog
from tests.support.http_server import WAIT_TIMEOUT_S
from tests.support.probe_assertions import CHECK_TIMEOUT_S, assert_nothing_is_left
from tests.support.verdicts import CONNECTION_CLOSED, CONNECTION_REFUSED, failed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.check_runner import CheckRunner

every_kind = pytest.mark.parametrize("kind", PLAIN_KINDS, ids=str)
CASES = [
    pytest.param(kind, fault, id=f"{kind}, {name}")
    for name, fault in {**FAULTS, **PLAIN_FAULTS}.items()
    for kind in [*PLAIN_KINDS, *UNIX_KINDS]
    if fault.concerns(kind)
]


def test_every_scheme_is_covered() -> None:
    covered = {kind.probe_class for kind in (*PLAIN_KINDS, *TLS_KINDS, *UNIX_KINDS)}
    assert {scheme for scheme in KINDS if Kind(scheme).probe_class not in covered} == {*LOCAL_SCHEMES}


@pytest.mark.parametrize(("kind", "fault"), CASES)
def test_a_faulty_server_is_failed(
    check: CheckRunner, kind: Kind, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    assert_failed(check, kind, fault)
    assert PASSWORD not in caplog.text


@every_kind
def test_a_closed_port_is_failed(check: CheckRunner, kind: Kind) -> None:
    with closed_port() as port:
        assert judge(check, kind.config(f"127.0.0.1:{port}"), port) == CONNECTION_REFUSED


@pytest.fixture(scope="module")
def full_port() -> Iterator[int]:
    with full_backlog() as port:
        yield port


@every_kind
def test_a_port_that_does_not_accept_is_failed_at_the_deadline(check: CheckRunner, kind: Kind, full_port: int) -> None:
    """The clients that fill its queue are connected to it, so that no port is searched for connections."""
    verdict = judge(check, kind.config(f"127.0.0.1:{full_port}"), 0, CHECK_TIMEOUT_S)
    assert verdict == failed(Code.CONNECT_TIMEOUT)


@every_kind
def test_a_connection_that_ends_before_anything_is_written_is_failed(check: CheckRunner, kind: Kind) -> None:
    """The end arrives while the client connects: writing raises."""
    connect = TcpEndpoint.connect

    async def connect_late(self: TcpEndpoint, protocol: Callable[[], Any]) -> tuple[asyncio.Transport, Any]:
        connection = await connect(self, protocol)
        await asyncio.sleep(0.05)
        return connection

    for script in (close, Peer.reset):
        with Backend(script) as backend, mock.patch.object(TcpEndpoint, "connect", connect_late):
            assert judge(check, kind.config(backend.address), backend.port) == CONNECTION_CLOSED


@every_kind
def test_random_bytes_are_failed(check: CheckRunner, kind: Kind) -> None:
    """Alone, and after the beginning of a correct answer."""
    rng = random.Random(str(kind))
    beginnings = [*kind.row.beginnings, *([b"HTTP/1.1 ", b"HTTP/1.1 404 Not Found\r\n\r\n"] if kind.is_http else [])]
    answers = [rng.choice([b"", *beginnings]) + rng.randbytes(rng.randint(1, 120)) for _ in range(20)]
    answers += [beginning[:cut] for beginning in beginnings for cut in (1, len(beginning) // 2, len(beginning))]
    remaining = iter(answers)

    def script(peer: Peer) -> None:
        peer.send(next(remaining, answers[-1]))  # some checks open more than one connection
        peer.shutdown_write()

    async def main(backend: Backend) -> None:
        before = asyncio.all_tasks()
        probe = make_probe(kind.config(backend.address))
        for answer in answers:
            verdict, error = await run_check(probe, WAIT_TIMEOUT_S)
            assert error is None, f"{error!r} on {answer!r}"
            assert verdict.outcome is Outcome.FAILED, f"{verdict} on {answer!r}"
            assert verdict.code is not Code.TIMEOUT, f"{verdict} on {answer!r}"
        await assert_nothing_is_left(backend.port, before)

    with Backend(script) as backend:
        check.run(main(backend))


def frame(number: int, stream: int, payload: bytes) -> bytes:
    """Of HTTP/2."""
    return len(payload).to_bytes(3) + bytes([number, 0]) + stream.to_bytes(4) + payload


SETTINGS = frame(4, 0, b"")
RESULT = b'{"jsonrpc":"2.0","id":1,"result":false}'
# Endless answers that are correct up to any point.
FLOODS = {
    "redis-bulk": ("redis", b"$999999999999\r\n", b"x" * 65536),
    "redis-array": ("redis", b"*999999999\r\n", b":1\r\n" * 16384),
    "nats-messages": ("nats", NATS_INFO + b"PONG\r\n", b"MSG a 1 0\r\n\r\n" * 4096),
    "nats-pings": ("nats", NATS_INFO + b"PONG\r\n", b"PING\r\n" * 8192),
    "grpc-pings": ("grpc", SETTINGS, frame(6, 0, b"12345678") * 4000),
    "grpc-settings": ("grpc", SETTINGS, SETTINGS * 4000),
    "grpc-data": ("grpc", SETTINGS, frame(0, 1, b"") * 4000),
    "grpc-unknown": ("grpc", SETTINGS, frame(200, 0, b"") * 4000),
    "trailers": ("ethereum+http", CHUNKED + b"27\r\n" + RESULT + b"\r\n0\r\n", b"X: y\r\n" * 16384),
    "chunks": ("ethereum+http", CHUNKED, b"1\r\nx\r\n" * 16384),
    "extensions": ("ethereum+http", CHUNKED + b"1;", b"x" * 65536),
}


@pytest.mark.parametrize(("scheme", "first", "then"), FLOODS.values(), ids=FLOODS)
def test_an_endless_answer_that_is_correct_is_failed(
    check: CheckRunner, scheme: str, first: bytes, then: bytes
) -> None:
    assert_failed(check, Kind(scheme), Fault(script=endlessly(first, then), codes=WRONG | CLOSED))


@every_kind
def test_secrets_in_options_are_not_shown(check: CheckRunner, kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    """The server sends back all that it receives."""
    for option in kind.option_names & {"bearer", "password", "token"}:
        login = {"username": "reader"} if option == "password" else {}
        if not is_accepted(kind.without_login(ADDRESS, **login, **{option: PASSWORD})):
            continue
        with Backend(FaultyServer(kind, FAULTS["echo"])) as backend:
            config = kind.without_login(backend.address, **login, **{option: PASSWORD})
            verdict = judge(check, config, backend.port)
        assert verdict.outcome is Outcome.FAILED
    assert PASSWORD not in caplog.text


@pytest.mark.parametrize("kind", [kind for kind in PLAIN_KINDS if "reuse" in kind.option_names], ids=str)
def test_reuse_changes_nothing_about_a_faulty_server(check: CheckRunner, kind: Kind) -> None:
    for name in ("reset after the first byte", "SSH", "silent"):
        assert_failed(check, kind, FAULTS[name], reuse=True)
