"""Addresses that do not respond, and this machine's network down: in a namespace, with real names and routes."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.net.trace import record_steps
from svcnode.probes import make_probe
from svcnode.probes.run import close_probe, run_check
from tests.support.backends import Backend, HttpBackend, Peer, ReceivedRequest, http_response
from tests.support.http_server import WAIT_TIMEOUT_S
from tests.support.network_namespace import (
    BLACK_HOLE_IPV6,
    OWN_IPV4,
    SILENT_IPV4,
    UNROUTED_IPV4,
    UNROUTED_IPV6,
    NetworkNamespace,
    run_in_namespace,
)
from tests.support.servers.memcached import MemcachedServer
from tests.support.verdicts import READY, failed, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.check_runner import CheckRunner

    InNamespace = Callable[[Callable[[NetworkNamespace], None]], None]

CONNECT_TIMEOUT = failed(ReasonCode.CONNECT_TIMEOUT)
OWN_NETWORK_DOWN = unknown(ReasonCode.NETWORK_UNREACHABLE)


@pytest.fixture
def in_namespace(tmp_path: Path) -> InNamespace:
    return lambda scenario: run_in_namespace(tmp_path / "hosts", scenario)


@pytest.mark.parametrize("scheme", ["tcp", "http", "svc+http"])
def test_an_ipv6_address_that_does_not_respond_does_not_fail_a_healthy_ipv4_address(
    check: CheckRunner, in_namespace: InNamespace, scheme: str
) -> None:
    def scenario(namespace: NetworkNamespace) -> None:
        namespace.set_hosts(db_example=f"{BLACK_HOLE_IPV6} {OWN_IPV4}")
        with HttpBackend(http_response(200), host=OWN_IPV4) as backend:
            url = f"{scheme}://db.example:{backend.port}"
            assert check.leaks_nothing(url) == READY
            steps = check.steps(url)
        assert ("connect", OWN_IPV4, True) in steps
        assert ("connect", BLACK_HOLE_IPV6, False) in steps

    in_namespace(scenario)


@pytest.mark.parametrize("scheme", ["tcp", "http", "redis", "postgresql"])
def test_without_a_route_a_service_is_unknown(check: CheckRunner, in_namespace: InNamespace, scheme: str) -> None:
    def scenario(namespace: NetworkNamespace) -> None:
        namespace.set_hosts(one_example=UNROUTED_IPV4, two_example=f"{UNROUTED_IPV6} {UNROUTED_IPV4}")
        for host in (UNROUTED_IPV4, f"[{UNROUTED_IPV6}]", "one.example", "two.example"):
            assert check(f"{scheme}://{host}:5432") == OWN_NETWORK_DOWN

    in_namespace(scenario)


def test_a_proxy_that_cannot_be_reached_is_unknown(check: CheckRunner, in_namespace: InNamespace) -> None:
    def scenario(namespace: NetworkNamespace) -> None:
        assert check("http://10.0.0.1/", proxy=f"http://{UNROUTED_IPV4}:3128") == OWN_NETWORK_DOWN
        verdict = check("https://10.0.0.1/", proxy=f"http://{SILENT_IPV4}:3128")
        assert verdict == unknown(ReasonCode.PROXY_FAILED)

    in_namespace(scenario)


def responding_forever(peer: Peer) -> None:
    while True:
        ReceivedRequest.read(peer)
        peer.send(http_response(200, "ok"))


async def check_while_moving(url: str, move: Callable[[], None]) -> list[tuple[str, str]]:
    """The connect steps of ready checks with `reuse`: two checks, then the name moves, then until it is noticed."""
    probe = make_probe({"url": url, "reuse": True})
    try:
        with record_steps() as steps:
            for _ in range(2):
                assert (await run_check(probe, WAIT_TIMEOUT_S))[0] == READY
            move()
            deadline_s = time.monotonic() + WAIT_TIMEOUT_S
            while time.monotonic() < deadline_s and sum(step.name == "connect" for step in steps) < 2:
                assert (await run_check(probe, WAIT_TIMEOUT_S))[0] == READY
                await asyncio.sleep(0.01)
    finally:
        close_probe(probe)
    return [(step.name, step.detail) for step in steps if step.name == "connect"]


@pytest.mark.parametrize("kind", ["http", "memcached"])
def test_a_reused_connection_follows_its_name(
    check: CheckRunner, in_namespace: InNamespace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    """Both servers respond all the time."""
    monkeypatch.setattr("svcnode.net.connect.RESOLVE_INTERVAL_S", 0.0)

    @contextmanager
    def servers() -> Iterator[int]:
        if kind == "http":
            with Backend(responding_forever, host=OWN_IPV4) as old, Backend(responding_forever, port=old.port):
                yield old.port
            return
        first, second = MemcachedServer(tmp_path / "old"), MemcachedServer(tmp_path / "new")
        first.host, second.port = OWN_IPV4, first.port
        with first, second:
            yield first.port

    def scenario(namespace: NetworkNamespace) -> None:
        namespace.set_hosts(db_example=OWN_IPV4)
        with servers() as port:
            url = f"{kind}://db.example:{port}"
            connects = check.run(check_while_moving(url, lambda: namespace.set_hosts(db_example="127.0.0.1")))
        assert connects == [("connect", OWN_IPV4), ("connect", "127.0.0.1")]

    in_namespace(scenario)
