"""Addresses that do not respond, and this machine's network down: in a namespace, with real names and routes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.net.trace import record_steps
from tests.support.backends import Backend, HttpBackend, Peer, ReceivedRequest, http_response
from tests.support.network_namespace import (
    BLACK_HOLE_IPV6,
    OWN_IPV4,
    SILENT_IPV4,
    UNROUTED_IPV4,
    UNROUTED_IPV6,
    NetworkNamespace,
    run_in_namespace,
)
from tests.support.probe_assertions import reusing
from tests.support.verdicts import READY, unknown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.check_runner import CheckRunner

    InNamespace = Callable[[Callable[[NetworkNamespace], None]], None]

OWN_NETWORK_DOWN = unknown(ReasonCode.NETWORK_UNREACHABLE)


@pytest.fixture
def in_namespace(tmp_path: Path) -> InNamespace:
    return lambda scenario: run_in_namespace(tmp_path / "hosts", scenario)


@pytest.mark.parametrize("scheme", ["tcp", "http"])
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
        namespace.set_hosts(two_example=f"{UNROUTED_IPV6} {UNROUTED_IPV4}")
        for host in (UNROUTED_IPV4, f"[{UNROUTED_IPV6}]", "two.example"):
            assert check(f"{scheme}://{host}:5432") == OWN_NETWORK_DOWN
        if scheme == "http":
            assert check("http://10.0.0.1/", proxy=f"http://{UNROUTED_IPV4}:3128") == OWN_NETWORK_DOWN
            verdict = check("https://10.0.0.1/", proxy=f"http://{SILENT_IPV4}:3128")
            assert verdict == unknown(ReasonCode.PROXY_FAILED)

    in_namespace(scenario)


def respond_forever(peer: Peer) -> None:
    while True:
        ReceivedRequest.read(peer)
        peer.send(http_response(200, "ok"))


def test_a_reused_connection_follows_its_name(
    check: CheckRunner, in_namespace: InNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both servers respond all the time."""
    monkeypatch.setattr("svcnode.net.connect.RESOLVE_INTERVAL_S", 0.0)

    async def check_while_it_moves(url: str, move: Callable[[], None]) -> list[str]:
        with reusing(url) as probe, record_steps() as steps:
            for _ in range(2):
                assert await probe.check() == READY
            move()
            while sum(step.name == "connect" for step in steps) < 2:
                assert await probe.check() == READY
                await asyncio.sleep(0.01)
        return [step.detail for step in steps if step.name == "connect"]

    def scenario(namespace: NetworkNamespace) -> None:
        namespace.set_hosts(db_example=OWN_IPV4)
        with Backend(respond_forever, host=OWN_IPV4) as old, Backend(respond_forever, port=old.port):
            moving = check_while_it_moves(
                f"http://db.example:{old.port}", lambda: namespace.set_hosts(db_example="127.0.0.1")
            )
            assert check.run(moving) == [OWN_IPV4, "127.0.0.1"]

    in_namespace(scenario)
