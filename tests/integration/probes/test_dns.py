"""Names: those that exist, those that do not, and a resolver that does not answer."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from svcnode.core.model import Outcome, Verdict
from svcnode.net.dns import is_ip_address
from svcnode.probes import KINDS, make_probe
from svcnode.probes.run import run_check
from tests.support.backends import Backend, HttpBackend, closed_port, http_response, server_tls, unresponsive
from tests.support.http_server import becomes_true
from tests.support.verdicts import NO_DESCRIPTORS

if TYPE_CHECKING:
    from tests.integration.probes.conftest import CheckRunner, FakeResolver
    from tests.support.certificates import Certificate

READY = Verdict.ready()


# ---- names


def test_a_name_is_resolved_by_the_real_resolver(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        assert check(f"http://localhost:{backend.port}") == READY
        assert check(f"tcp://localhost:{backend.port}") == READY


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_a_name_that_does_not_exist_is_failed(check: CheckRunner, scheme: str) -> None:
    assert check(f"{scheme}://nothing.invalid:80") == Verdict.failed("no such host: nothing.invalid:80")


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize("scheme", ["http", "https", "svc+http", "jsonrpc+http"])
def test_a_name_that_does_not_exist_is_failed_over_http_too(check: CheckRunner, scheme: str) -> None:
    url, options = f"{scheme}://nothing.invalid", {"method": "getHealth"} if scheme == "jsonrpc+http" else {}
    assert check(url, **options) == Verdict.failed(f"no such host: {url}")


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
        ("１", False),  # noqa: RUF001  a digit, but none of an address
    ],
)
def test_what_an_address_is(host: str, expected: bool) -> None:
    assert is_ip_address(host) is expected


# ---- a name with several addresses


def test_a_host_is_there_when_one_of_its_addresses_answers(
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


def test_a_host_is_failed_when_none_of_its_addresses_answers(check: CheckRunner, resolver: FakeResolver) -> None:
    resolver.addresses["db.example"] = ["127.0.0.2", "127.0.0.1"]
    with closed_port() as port:
        for scheme in ("tcp", "tls"):
            assert check(f"{scheme}://db.example:{port}") == Verdict.failed(f"connection refused: db.example:{port}")


def test_an_address_that_is_named_twice_is_tried_once(check: CheckRunner, resolver: FakeResolver) -> None:
    resolver.addresses["db.example"] = ["127.0.0.1", "127.0.0.1"]
    with closed_port() as port:
        assert check.steps(f"tcp://db.example:{port}") == [
            ("resolve", "db.example", True),
            ("connect", "127.0.0.1", False),
        ]


# ---- a resolver that does not work


@pytest.mark.parametrize("number", [socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_SYSTEM])
def test_a_resolver_that_fails_is_our_own_fault(check: CheckRunner, resolver: FakeResolver, number: int) -> None:
    resolver.error = socket.gaierror(number, "whatever")
    assert check("tcp://db.example:80") == Verdict.unknown("the resolver failed: db.example:80")


OF_ONE_MACHINE = {"disk", "exec", "file", "heartbeat", "sqlite"}


@pytest.mark.parametrize("scheme", sorted(KINDS.keys() - OF_ONE_MACHINE))
def test_a_name_for_which_no_thread_is_left_is_our_own_fault_of_every_probe_kind(
    check: CheckRunner, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    options: dict[str, str] = {"method": "getHealth"} if scheme.startswith("jsonrpc") else {}
    if scheme in ("mysql", "mariadb"):
        options = {"username": "me"}
    monkeypatch.setattr(threading.Thread, "start", refuses)
    assert check(f"{scheme}://db.example:80", **options) == Verdict.unknown(
        "this machine cannot check: no threads left"
    )


def test_a_resolver_that_hangs_is_our_own_fault(check: CheckRunner, resolver: FakeResolver) -> None:
    for url in ("tcp://slow.example:80", "tls://slow.example:80", "http://slow.example/"):
        assert check.with_timeout(0.1, url) == Verdict.unknown("the resolver did not answer within 0.1 s")
    assert not resolver.may_answer.is_set()


def test_the_step_of_a_resolver_that_hangs_is_marked(check: CheckRunner, resolver: FakeResolver) -> None:
    assert check.steps_until_timeout("tcp://slow.example:80") == [("resolve", "slow.example", False)]
    assert resolver.queries == ["slow.example"]


def test_a_check_that_times_out_while_it_resolves_leaves_nothing_open(
    check: CheckRunner, resolver: FakeResolver
) -> None:
    assert check.times_out("https://slow.example/").outcome is Outcome.UNKNOWN
    assert resolver.queries == ["slow.example"]


def test_names_that_hang_hold_up_no_others(check: CheckRunner, resolver: FakeResolver) -> None:
    async def story(url: str) -> None:
        hanging = [asyncio.create_task(make_probe(f"tcp://slow-{n}.example:80").check()) for n in range(100)]
        while len(resolver.queries) < len(hanging):  # noqa: ASYNC110  the others run on threads
            await asyncio.sleep(0)
        assert await make_probe(url).check() == READY
        assert not any(task.done() for task in hanging)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)

    with Backend(unresponsive) as backend:
        check.run(story(f"tcp://localhost:{backend.port}"))


def test_running_out_of_file_descriptors_is_not_taken_for_a_name_that_does_not_exist(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        for scheme in ("tcp", "http"):
            without, afterwards = check.without_descriptors(f"{scheme}://localhost:{backend.port}")
            assert without == NO_DESCRIPTORS
            assert afterwards == READY


# ---- looks that need the same name at the same time


def test_checks_of_one_name_share_one_lookup(check: CheckRunner, resolver: FakeResolver) -> None:
    async def story(*urls: str) -> list[Verdict]:
        looks = [asyncio.create_task(make_probe(url).check()) for url in urls * 20]
        await asyncio.sleep(0.05)
        assert resolver.queries == ["slow.example"]
        assert resolver.thread_count() == 1
        resolver.may_answer.set()
        return await asyncio.gather(*looks)

    resolver.addresses["slow.example"] = ["127.0.0.1"]
    with HttpBackend(http_response(200)) as one, Backend(unresponsive) as other:
        urls = (f"http://slow.example:{one.port}", f"tcp://slow.example:{other.port}")
        assert set(check.run(story(*urls))) == {READY}
    assert resolver.queries == ["slow.example"]


def test_checks_of_one_name_share_its_failure(check: CheckRunner, resolver: FakeResolver) -> None:
    async def story() -> list[Verdict]:
        looks = [asyncio.create_task(make_probe("tcp://slow.invalid:80").check()) for _ in range(5)]
        await asyncio.sleep(0.05)
        resolver.may_answer.set()
        return await asyncio.gather(*looks)

    assert set(check.run(story())) == {Verdict.failed("no such host: slow.invalid:80")}
    assert resolver.queries == ["slow.invalid"]


def test_a_check_that_times_out_takes_the_answer_from_no_other(check: CheckRunner, resolver: FakeResolver) -> None:
    async def story(url: str) -> None:
        patient = asyncio.create_task(make_probe(url).check())
        verdict, _ = await run_check(make_probe(url), 0.05)
        assert verdict.outcome is Outcome.UNKNOWN
        resolver.may_answer.set()
        assert await patient == READY

    resolver.addresses["slow.example"] = ["127.0.0.1"]
    with Backend(unresponsive) as backend:
        check.run(story(f"tcp://slow.example:{backend.port}"))


def test_a_name_that_hangs_costs_one_thread_however_often_it_is_checked(
    check: CheckRunner, resolver: FakeResolver
) -> None:
    async def story() -> None:
        probe = make_probe("tcp://slow.example:80")
        for _ in range(5):
            await run_check(probe, 0.02)
        assert resolver.queries == ["slow.example"]
        assert resolver.thread_count() == 1

    check.run(story())


def test_a_name_is_asked_for_again_when_the_answer_has_come(check: CheckRunner, resolver: FakeResolver) -> None:
    async def story(port: int) -> None:
        probe = make_probe(f"tcp://db.example:{port}")
        assert await probe.check() == READY
        resolver.addresses["db.example"] = ["127.0.0.2"]
        assert (await probe.check()).outcome is Outcome.FAILED

    resolver.addresses["db.example"] = ["127.0.0.1"]
    with Backend(unresponsive) as backend:
        check.run(story(backend.port))
    assert resolver.queries == ["db.example"] * 2


def test_an_answer_that_comes_when_nobody_waits_any_more_disturbs_nobody(
    check: CheckRunner, resolver: FakeResolver
) -> None:
    async def story() -> None:
        await run_check(make_probe("tcp://slow.invalid:80"), 0.02)
        resolver.may_answer.set()
        assert await asyncio.to_thread(becomes_true, lambda: not resolver.thread_count())

    check.run(story())


def test_the_end_of_a_loop_does_not_wait_for_a_name(check: CheckRunner, resolver: FakeResolver) -> None:
    check.with_timeout(0.02, "tcp://slow.example:80")
    assert resolver.thread_count() == 1
    assert not resolver.may_answer.is_set()
