"""Resolving host names: existing and missing ones, and a resolver that fails or hangs."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.net.dns import is_ip_address
from svcnode.probes import KINDS, make_probe
from svcnode.probes.run import run_check
from tests.support.backends import Backend, HttpBackend, closed_port, http_response, server_tls, unresponsive
from tests.support.http_server import becomes_true
from tests.support.verdicts import CONNECTION_REFUSED, NO_DESCRIPTORS, READY, failed, unknown

if TYPE_CHECKING:
    from svcnode.core.model import Verdict
    from tests.support.certificates import Certificate
    from tests.support.check_runner import CheckRunner, FakeResolver

HOST_NOT_FOUND = failed(ReasonCode.HOST_NOT_FOUND)
RESOLVER_FAILED = unknown(ReasonCode.RESOLVER_FAILED)
LOCAL_KINDS = {"disk", "exec", "file", "heartbeat", "sqlite"}


# ---- names


def test_a_name_is_resolved_by_the_real_resolver(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        assert check(f"http://localhost:{backend.port}") == READY
        assert check(f"tcp://localhost:{backend.port}") == READY


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_an_unknown_host_is_failed(check: CheckRunner, scheme: str) -> None:
    assert check(f"{scheme}://nothing.invalid:80") == HOST_NOT_FOUND


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize("scheme", ["http", "https", "svc+http", "jsonrpc+http"])
def test_an_unknown_host_is_failed_over_http_too(check: CheckRunner, scheme: str) -> None:
    url, options = f"{scheme}://nothing.invalid", {"method": "getHealth"} if scheme == "jsonrpc+http" else {}
    assert check(url, **options) == HOST_NOT_FOUND


def test_an_address_is_not_resolved(check: CheckRunner, resolver: FakeResolver, certificate: Certificate) -> None:
    with Backend(unresponsive, tls=server_tls(certificate)) as backend:
        assert check(f"tcp://{backend.address}") == READY
        assert check(f"tls://{backend.address}", ca=str(certificate.certificate)) == READY
    assert resolver.queries == []


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


# ---- a name with several addresses


def test_a_host_is_ready_if_one_of_its_addresses_accepts(
    check: CheckRunner, resolver: FakeResolver, certificate: Certificate
) -> None:
    resolver.addresses["localhost"] = ["127.0.0.3", "127.0.0.2", "127.0.0.1"]
    with Backend(unresponsive, tls=server_tls(certificate), host="127.0.0.2") as backend:
        assert check(f"tcp://localhost:{backend.port}") == READY
        assert check(f"tls://localhost:{backend.port}", ca=str(certificate.certificate)) == READY
        assert check.steps(f"tcp://localhost:{backend.port}") == [
            ("resolve", "localhost", True),
            ("connect", "127.0.0.3", False),
            ("connect", "127.0.0.2", True),
        ]


def test_a_host_is_failed_if_none_of_its_addresses_accepts(check: CheckRunner, resolver: FakeResolver) -> None:
    resolver.addresses["db.example"] = ["127.0.0.2", "127.0.0.1"]
    with closed_port() as port:
        for scheme in ("tcp", "tls"):
            assert check(f"{scheme}://db.example:{port}") == CONNECTION_REFUSED


def test_a_duplicate_address_is_tried_once(check: CheckRunner, resolver: FakeResolver) -> None:
    resolver.addresses["db.example"] = ["127.0.0.1", "127.0.0.1"]
    with closed_port() as port:
        assert check.steps(f"tcp://db.example:{port}") == [
            ("resolve", "db.example", True),
            ("connect", "127.0.0.1", False),
        ]


# ---- a resolver that fails


@pytest.mark.parametrize("number", [socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_SYSTEM])
def test_a_resolver_that_fails_is_unknown(check: CheckRunner, resolver: FakeResolver, number: int) -> None:
    resolver.error = socket.gaierror(number, "")
    assert check("tcp://db.example:80") == RESOLVER_FAILED


@pytest.mark.parametrize("scheme", sorted(KINDS.keys() - LOCAL_KINDS))
def test_a_lookup_without_a_thread_is_unknown_for_every_kind(
    check: CheckRunner, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    def fail_to_start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    options: dict[str, str] = {"method": "getHealth"} if scheme.startswith("jsonrpc") else {}
    if scheme in ("mysql", "mariadb"):
        options = {"username": "me"}
    monkeypatch.setattr(threading.Thread, "start", fail_to_start)
    path = "/mymaster" if scheme == "redis+sentinel" else ""
    assert check(f"{scheme}://db.example:80{path}", **options) == NO_DESCRIPTORS


def test_a_resolver_that_hangs_is_unknown(check: CheckRunner, resolver: FakeResolver) -> None:
    for url in ("tcp://slow.example:80", "tls://slow.example:80", "http://slow.example/"):
        assert check.with_timeout(0.1, url) == RESOLVER_FAILED
    assert not resolver.may_answer.is_set()


def test_the_step_of_a_resolver_that_hangs_is_marked(check: CheckRunner, resolver: FakeResolver) -> None:
    assert check.steps_until_timeout("tcp://slow.example:80") == [("resolve", "slow.example", False)]
    assert resolver.queries == ["slow.example"]


def test_a_check_that_times_out_while_it_resolves_leaves_nothing_open(
    check: CheckRunner, resolver: FakeResolver
) -> None:
    assert check.times_out("https://slow.example/") == RESOLVER_FAILED
    assert resolver.queries == ["slow.example"]


def test_hanging_lookups_do_not_delay_others(check: CheckRunner, resolver: FakeResolver) -> None:
    async def scenario(url: str) -> None:
        hanging = [asyncio.create_task(make_probe(f"tcp://slow-{n}.example:80").check()) for n in range(100)]
        while len(resolver.queries) < len(hanging):  # noqa: ASYNC110  set by other threads
            await asyncio.sleep(0)
        assert await make_probe(url).check() == READY
        assert not any(task.done() for task in hanging)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)

    with Backend(unresponsive) as backend:
        check.run(scenario(f"tcp://localhost:{backend.port}"))


def test_a_lookup_without_free_descriptors_is_not_an_unknown_host(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        for scheme in ("tcp", "http"):
            without, after = check.without_descriptors(f"{scheme}://localhost:{backend.port}")
            assert without == NO_DESCRIPTORS
            assert after == READY


# ---- concurrent checks of one name


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


def test_checks_of_one_name_share_its_failure(check: CheckRunner, resolver: FakeResolver) -> None:
    async def scenario() -> list[Verdict]:
        checks = [asyncio.create_task(make_probe("tcp://slow.invalid:80").check()) for _ in range(5)]
        assert await asyncio.to_thread(becomes_true, lambda: bool(resolver.queries))
        resolver.may_answer.set()
        return await asyncio.gather(*checks)

    assert check.run(scenario()) == [HOST_NOT_FOUND] * 5
    assert resolver.queries == ["slow.invalid"]


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


def test_a_hanging_lookup_uses_one_thread_for_all_checks(check: CheckRunner, resolver: FakeResolver) -> None:
    async def scenario() -> None:
        probe = make_probe("tcp://slow.example:80")
        for _ in range(5):
            await run_check(probe, 0.02)
        assert resolver.queries == ["slow.example"]
        assert resolver.thread_count() == 1

    check.run(scenario())


def test_a_name_is_resolved_again_in_the_next_check(check: CheckRunner, resolver: FakeResolver) -> None:
    async def scenario(port: int) -> None:
        probe = make_probe(f"tcp://db.example:{port}")
        assert await probe.check() == READY
        resolver.addresses["db.example"] = ["127.0.0.2"]
        assert await probe.check() == CONNECTION_REFUSED

    resolver.addresses["db.example"] = ["127.0.0.1"]
    with Backend(unresponsive) as backend:
        check.run(scenario(backend.port))
    assert resolver.queries == ["db.example"] * 2


def test_a_late_result_of_a_lookup_causes_no_error(check: CheckRunner, resolver: FakeResolver) -> None:
    async def scenario() -> None:
        await run_check(make_probe("tcp://slow.invalid:80"), 0.02)
        resolver.may_answer.set()
        assert await asyncio.to_thread(becomes_true, lambda: not resolver.thread_count())

    check.run(scenario())


def test_the_end_of_a_loop_does_not_wait_for_a_lookup(check: CheckRunner, resolver: FakeResolver) -> None:
    check.with_timeout(0.02, "tcp://slow.example:80")
    assert resolver.thread_count() == 1
    assert not resolver.may_answer.is_set()
