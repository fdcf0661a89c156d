"""Resolving host names: existing and missing ones, and a resolver that fails or hangs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.net.dns import is_ip_address
from svcnode.probes import make_probe
from svcnode.probes.run import run_check
from tests.support.backends import Backend, HttpBackend, http_response, server_tls, unresponsive
from tests.support.http_server import becomes_true
from tests.support.verdicts import NO_DESCRIPTORS, READY, failed, unknown

if TYPE_CHECKING:
    from svcnode.core.model import Verdict
    from tests.support.certificates import Certificate
    from tests.support.check_runner import CheckRunner, FakeResolver

HOST_NOT_FOUND = failed(ReasonCode.HOST_NOT_FOUND)
RESOLVER_FAILED = unknown(ReasonCode.RESOLVER_FAILED)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("fe80::1", True),
        ("127.1", False),
        ("127.0.0.1.", False),
        ("localhost", False),
        ("", False),
        ("a\0b", False),
        ("１", False),  # noqa: RUF001  a digit, but not ASCII
    ],
)
def test_an_ip_address_is_recognised(host: str, expected: bool) -> None:
    assert is_ip_address(host) is expected


def test_a_host_is_ready_if_one_of_its_addresses_accepts(
    check: CheckRunner, resolver: FakeResolver, certificate: Certificate
) -> None:
    resolver.addresses["localhost"] = ["127.0.0.3", "127.0.0.2"]
    with Backend(unresponsive, tls=server_tls(certificate), host="127.0.0.2") as backend:
        assert check(f"tcp://localhost:{backend.port}") == READY
        assert check(f"tls://localhost:{backend.port}", ca=str(certificate.certificate)) == READY
        assert check.steps(f"tcp://localhost:{backend.port}") == [
            ("resolve", "localhost", True),
            ("connect", "127.0.0.3", False),
            ("connect", "127.0.0.2", True),
        ]


def test_a_lookup_without_free_descriptors_is_not_an_unknown_host(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        assert check.without_descriptors(f"http://localhost:{backend.port}") == (NO_DESCRIPTORS, READY)


def test_checks_of_one_name_share_one_lookup(check: CheckRunner, resolver: FakeResolver) -> None:
    async def scenario(*urls: str) -> list[Verdict]:
        checks = [asyncio.create_task(make_probe(url).check()) for url in urls * 20]
        assert await asyncio.to_thread(becomes_true, lambda: bool(resolver.queries))
        assert resolver.queries == ["slow.example"]
        assert resolver.thread_count() == 1
        resolver.may_answer.set()
        return await asyncio.gather(*checks)

    resolver.addresses["slow.example"] = ["127.0.0.1"]
    with HttpBackend(http_response(200)) as one, Backend(unresponsive) as other:
        urls = (f"http://slow.example:{one.port}", f"tcp://slow.example:{other.port}")
        assert all(verdict == READY for verdict in check.run(scenario(*urls)))
    assert resolver.queries == ["slow.example"]


def test_a_check_that_times_out_does_not_cancel_the_lookup_of_others(
    check: CheckRunner, resolver: FakeResolver
) -> None:
    async def scenario(url: str) -> None:
        waiting = asyncio.create_task(make_probe(url).check())
        verdict, _ = await run_check(make_probe(url), 0.05)
        assert verdict == RESOLVER_FAILED
        resolver.may_answer.set()
        assert await waiting == READY

    resolver.addresses["slow.example"] = ["127.0.0.1"]
    with Backend(unresponsive) as backend:
        check.run(scenario(f"tcp://slow.example:{backend.port}"))
