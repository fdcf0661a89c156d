"""Names: those that exist, those that do not, and a resolver that does not answer."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from svcnode.core.model import Outcome, Verdict
from svcnode.look import look_once
from svcnode.probes import KINDS, make_probe
from svcnode.probes.tools.resolve import is_address
from tests.support.backends import Backend, HttpBackend, mute, refusing, reply, server_tls
from tests.support.looks import OUT_OF_FILES
from tests.support.wire import until

if TYPE_CHECKING:
    from tests.integration.probes.conftest import Look, Resolver
    from tests.support.certificates import Certificate

READY = Verdict.ready()


# ---- names


def test_a_name_is_resolved_by_the_real_resolver(look: Look) -> None:
    with HttpBackend(reply(200)) as backend:
        assert look(f"http://localhost:{backend.port}") == READY
        assert look(f"tcp://localhost:{backend.port}") == READY


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_a_name_that_does_not_exist_is_failed(look: Look, scheme: str) -> None:
    assert look(f"{scheme}://nothing.invalid:80") == Verdict.failed("no such host: nothing.invalid:80")


@pytest.mark.usefixtures("resolver")
@pytest.mark.parametrize("scheme", ["http", "https", "svc+http", "jsonrpc+http"])
def test_a_name_that_does_not_exist_is_failed_over_http_too(look: Look, scheme: str) -> None:
    url, options = f"{scheme}://nothing.invalid", {"method": "getHealth"} if scheme == "jsonrpc+http" else {}
    assert look(url, **options) == Verdict.failed(f"no such host: {url}")


def test_an_address_is_not_resolved(look: Look, resolver: Resolver, certificate: Certificate) -> None:
    with Backend(mute, tls=server_tls(certificate)) as backend:
        assert look(f"tcp://{backend.place}") == READY
        assert look(f"tls://{backend.place}", ca=str(certificate.certificate)) == READY
    assert resolver.asked == []


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
    assert is_address(host) is expected


# ---- a name with several addresses


def test_a_host_is_there_when_one_of_its_addresses_answers(
    look: Look, resolver: Resolver, certificate: Certificate
) -> None:
    resolver.addresses["localhost"] = ["127.0.0.3", "127.0.0.2", "127.0.0.1"]
    with Backend(mute, tls=server_tls(certificate), host="127.0.0.2") as backend:
        assert look(f"tcp://localhost:{backend.port}") == READY
        assert look(f"tls://localhost:{backend.port}", ca=str(certificate.certificate)) == READY
        assert look.steps(f"tcp://localhost:{backend.port}") == [
            ("resolve", "localhost", True),
            ("connect", "127.0.0.3", False),
            ("connect", "127.0.0.2", True),
        ]


def test_a_host_is_failed_when_none_of_its_addresses_answers(look: Look, resolver: Resolver) -> None:
    resolver.addresses["db.example"] = ["127.0.0.2", "127.0.0.1"]
    with refusing() as port:
        for scheme in ("tcp", "tls"):
            assert look(f"{scheme}://db.example:{port}") == Verdict.failed(f"connection refused: db.example:{port}")


def test_an_address_that_is_named_twice_is_tried_once(look: Look, resolver: Resolver) -> None:
    resolver.addresses["db.example"] = ["127.0.0.1", "127.0.0.1"]
    with refusing() as port:
        assert look.steps(f"tcp://db.example:{port}") == [
            ("resolve", "db.example", True),
            ("connect", "127.0.0.1", False),
        ]


# ---- a resolver that does not work


@pytest.mark.parametrize("number", [socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_SYSTEM])
def test_a_resolver_that_fails_is_our_own_fault(look: Look, resolver: Resolver, number: int) -> None:
    resolver.fault = socket.gaierror(number, "whatever")
    assert look("tcp://db.example:80") == Verdict.unknown("the resolver failed: db.example:80")


OF_ONE_MACHINE = {"disk", "exec", "file", "heartbeat", "sqlite"}


@pytest.mark.parametrize("scheme", sorted(KINDS.keys() - OF_ONE_MACHINE))
def test_a_name_for_which_no_thread_is_left_is_our_own_fault_whatever_looks(
    look: Look, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    def refuses(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    options: dict[str, str] = {"method": "getHealth"} if scheme.startswith("jsonrpc") else {}
    if scheme in ("mysql", "mariadb"):
        options = {"username": "me"}
    monkeypatch.setattr(threading.Thread, "start", refuses)
    assert look(f"{scheme}://db.example:80", **options) == Verdict.unknown("this machine cannot look: no threads left")


def test_a_resolver_that_hangs_is_our_own_fault(look: Look, resolver: Resolver) -> None:
    for url in ("tcp://slow.example:80", "tls://slow.example:80", "http://slow.example/"):
        assert look.within(0.1, url) == Verdict.unknown("the resolver did not answer within 0.1 s")
    assert not resolver.may_answer.is_set()


def test_the_step_of_a_resolver_that_hangs_is_marked(look: Look, resolver: Resolver) -> None:
    assert look.steps_when_cut_off("tcp://slow.example:80") == [("resolve", "slow.example", False)]
    assert resolver.asked == ["slow.example"]


def test_a_look_that_is_cut_off_while_it_resolves_leaves_nothing_open(look: Look, resolver: Resolver) -> None:
    assert look.cut_off("https://slow.example/").outcome is Outcome.UNKNOWN
    assert resolver.asked == ["slow.example"]


def test_names_that_hang_hold_up_no_others(look: Look, resolver: Resolver) -> None:
    async def story(url: str) -> None:
        hanging = [asyncio.create_task(make_probe(f"tcp://slow-{n}.example:80").look()) for n in range(100)]
        while len(resolver.asked) < len(hanging):  # noqa: ASYNC110  the others run on threads
            await asyncio.sleep(0)
        assert await make_probe(url).look() == READY
        assert not any(task.done() for task in hanging)
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)

    with Backend(mute) as backend:
        look.run(story(f"tcp://localhost:{backend.port}"))


def test_running_out_of_file_descriptors_is_not_taken_for_a_name_that_does_not_exist(look: Look) -> None:
    with HttpBackend(reply(200)) as backend:
        for scheme in ("tcp", "http"):
            without, afterwards = look.without_files(f"{scheme}://localhost:{backend.port}")
            assert without == OUT_OF_FILES
            assert afterwards == READY


# ---- looks that need the same name at the same time


def test_looks_at_one_name_share_one_answer(look: Look, resolver: Resolver) -> None:
    async def story(*urls: str) -> list[Verdict]:
        looks = [asyncio.create_task(make_probe(url).look()) for url in urls * 20]
        await asyncio.sleep(0.05)
        assert resolver.asked == ["slow.example"]
        assert resolver.thread_count() == 1
        resolver.may_answer.set()
        return await asyncio.gather(*looks)

    resolver.addresses["slow.example"] = ["127.0.0.1"]
    with HttpBackend(reply(200)) as one, Backend(mute) as other:
        urls = (f"http://slow.example:{one.port}", f"tcp://slow.example:{other.port}")
        assert set(look.run(story(*urls))) == {READY}
    assert resolver.asked == ["slow.example"]


def test_looks_at_one_name_share_its_failure(look: Look, resolver: Resolver) -> None:
    async def story() -> list[Verdict]:
        looks = [asyncio.create_task(make_probe("tcp://slow.invalid:80").look()) for _ in range(5)]
        await asyncio.sleep(0.05)
        resolver.may_answer.set()
        return await asyncio.gather(*looks)

    assert set(look.run(story())) == {Verdict.failed("no such host: slow.invalid:80")}
    assert resolver.asked == ["slow.invalid"]


def test_a_look_that_is_cut_off_takes_the_answer_from_no_other(look: Look, resolver: Resolver) -> None:
    async def story(url: str) -> None:
        patient = asyncio.create_task(make_probe(url).look())
        verdict, _ = await look_once(make_probe(url), 0.05)
        assert verdict.outcome is Outcome.UNKNOWN
        resolver.may_answer.set()
        assert await patient == READY

    resolver.addresses["slow.example"] = ["127.0.0.1"]
    with Backend(mute) as backend:
        look.run(story(f"tcp://slow.example:{backend.port}"))


def test_a_name_that_hangs_costs_one_thread_however_often_it_is_looked_at(look: Look, resolver: Resolver) -> None:
    async def story() -> None:
        probe = make_probe("tcp://slow.example:80")
        for _ in range(5):
            await look_once(probe, 0.02)
        assert resolver.asked == ["slow.example"]
        assert resolver.thread_count() == 1

    look.run(story())


def test_a_name_is_asked_for_anew_when_the_answer_has_come(look: Look, resolver: Resolver) -> None:
    async def story(port: int) -> None:
        probe = make_probe(f"tcp://db.example:{port}")
        assert await probe.look() == READY
        resolver.addresses["db.example"] = ["127.0.0.2"]
        assert (await probe.look()).outcome is Outcome.FAILED

    resolver.addresses["db.example"] = ["127.0.0.1"]
    with Backend(mute) as backend:
        look.run(story(backend.port))
    assert resolver.asked == ["db.example"] * 2


def test_an_answer_that_comes_when_nobody_waits_any_more_disturbs_nobody(look: Look, resolver: Resolver) -> None:
    async def story() -> None:
        await look_once(make_probe("tcp://slow.invalid:80"), 0.02)
        resolver.may_answer.set()
        assert await asyncio.to_thread(until, lambda: not resolver.thread_count())

    look.run(story())


def test_the_end_of_a_loop_does_not_wait_for_a_name(look: Look, resolver: Resolver) -> None:
    look.within(0.02, "tcp://slow.example:80")
    assert resolver.thread_count() == 1
    assert not resolver.may_answer.is_set()
