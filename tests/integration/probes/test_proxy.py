"""Proxies: used by those who ask for one, and by nobody else."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING

import pytest

from svcnode.core.errors import OptionError
from svcnode.core.model import Outcome, Verdict
from svcnode.probes import make_probe
from tests.support.backends import (
    Backend,
    HttpBackend,
    Peer,
    ProxyBackend,
    Received,
    mute,
    refusing,
    reply,
    reset,
    server_tls,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.probes.conftest import Look
    from tests.support.certificates import Certificate

READY = Verdict.ready()
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the variables of proxies; those that are not named are not set."""

    def put(**values: str) -> None:
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    put()
    return put


def basic(words: str) -> str:
    return f"Basic {base64.b64encode(words.encode()).decode()}"


# ---- the environment


def test_the_proxies_of_the_environment_are_not_used_unasked(
    look: Look, environ: Callable[..., None], certificate: Certificate
) -> None:
    with (
        ProxyBackend() as proxy,
        HttpBackend(reply(200)) as plain,
        HttpBackend(reply(200), tls=server_tls(certificate)) as encrypted,
    ):
        words = f"http://{proxy.place}"
        environ(**dict.fromkeys([*VARIABLES[:3], *map(str.upper, VARIABLES[:3])], words))
        assert look(f"http://{plain.place}/") == READY
        assert look(f"svc+http://{plain.place}/") == READY
        assert look(f"https://{encrypted.place}/", ca=str(certificate.certificate)) == READY
        assert proxy.connection_count == 0


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY"])
def test_the_proxy_of_the_environment_is_used_when_asked_for(
    look: Look, environ: Callable[..., None], variable: str
) -> None:
    with ProxyBackend() as proxy, HttpBackend(reply(200)) as backend:
        environ(**{variable: f"http://{proxy.place}"})
        assert look(f"http://{backend.place}/x", proxy="environment") == READY
        assert [request.target for request in proxy.requests] == [f"http://{backend.place}/x"]


def test_each_scheme_has_a_proxy_of_its_own_in_the_environment(
    look: Look, environ: Callable[..., None], certificate: Certificate
) -> None:
    with (
        ProxyBackend() as proxy,
        HttpBackend(reply(200)) as plain,
        HttpBackend(reply(200), tls=server_tls(certificate)) as encrypted,
    ):
        environ(https_proxy=f"http://{proxy.place}")
        assert look(f"http://{plain.place}/", proxy="environment") == READY
        assert proxy.requests == []
        assert look(f"https://{encrypted.place}/", proxy="environment", ca=str(certificate.certificate)) == READY
        assert [request.method for request in proxy.requests] == ["CONNECT"]


def test_an_environment_without_a_proxy_means_none(look: Look, environ: Callable[..., None]) -> None:
    environ()
    with HttpBackend(reply(200)) as backend:
        assert look(f"http://{backend.place}/", proxy="environment") == READY
        assert backend.last.target == "/"


@pytest.mark.parametrize(
    ("exceptions", "is_direct"),
    [
        ("*", True),
        ("127.0.0.1", True),
        ("127.0.0.1:{port}", True),
        ("node.example, 127.0.0.1", True),
        ("127.0.0.1:1", False),
        ("127.0.0.2", False),
        ("node.example", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("variable", ["no_proxy", "NO_PROXY"])
def test_what_the_environment_excepts_is_looked_at_directly(
    look: Look, environ: Callable[..., None], variable: str, exceptions: str, is_direct: bool
) -> None:
    with ProxyBackend() as proxy, HttpBackend(reply(200)) as backend:
        environ(http_proxy=f"http://{proxy.place}", **{variable: exceptions.format(port=backend.port)})
        assert look(f"http://{backend.place}/", proxy="environment") == READY
        assert (proxy.connection_count == 0) is is_direct


def test_what_the_environment_excepts_does_not_touch_a_proxy_that_is_named(
    look: Look, environ: Callable[..., None]
) -> None:
    with ProxyBackend() as proxy, HttpBackend(reply(200)) as backend:
        environ(no_proxy="*")
        assert look(f"http://{backend.place}/", proxy=f"http://{proxy.place}") == READY
        assert len(proxy.requests) == 1


# ---- http


def test_a_proxy_is_asked_for_the_whole_url(look: Look) -> None:
    with ProxyBackend() as proxy, HttpBackend(reply(200, "hello")) as backend:
        url = f"http://{backend.place}/health"
        assert look(url, proxy=f"http://{proxy.place}", contains="hello", bearer="swordfish") == READY
        assert proxy.requests[-1].target == url
        assert proxy.requests[-1].headers["host"] == backend.place
        assert backend.last.target == "/health"
        assert backend.last.headers["authorization"] == "Bearer swordfish"


def test_a_proxy_may_be_named_without_its_scheme(look: Look) -> None:
    with ProxyBackend() as proxy, HttpBackend(reply(200)) as backend:
        assert look(f"http://{backend.place}/", proxy=proxy.place) == READY
        assert len(proxy.requests) == 1


def test_a_name_is_left_to_the_proxy_to_resolve(look: Look) -> None:
    with HttpBackend(reply(200)) as proxy:
        assert look("http://nothing.invalid/x?y=z", proxy=proxy.place) == READY
        assert proxy.last.target == "http://nothing.invalid/x?y=z"


def test_a_user_of_the_proxy_is_told_to_the_proxy(look: Look) -> None:
    with HttpBackend(reply(200)) as proxy:
        assert look("http://nothing.invalid/", proxy=f"http://me:p%40ss@{proxy.place}") == READY
        assert proxy.last.headers["proxy-authorization"] == basic("me:p@ss")


def test_other_kinds_that_speak_http_use_a_proxy_as_well(look: Look) -> None:
    def answer(request: Received) -> bytes:
        return reply(200, json.dumps({"id": 1, "result": "ok"})) if request.body else reply(206)

    with ProxyBackend() as proxy, HttpBackend(answer) as backend:
        assert look(f"svc+http://{backend.place}", proxy=proxy.place).outcome is Outcome.NOT_READY
        assert look(f"jsonrpc+http://{backend.place}", proxy=proxy.place, method="getHealth") == READY
        assert [request.target for request in proxy.requests] == [
            f"http://{backend.place}/svc/node/health",
            f"http://{backend.place}/",
        ]


def test_a_redirect_goes_through_the_proxy_as_well(look: Look) -> None:
    with (
        ProxyBackend() as proxy,
        HttpBackend(reply(200)) as there,
        HttpBackend(reply(302, Location=f"http://{there.place}/there")) as here,
    ):
        assert look(f"http://{here.place}/", proxy=f"http://me:hush@{proxy.place}", redirects=1) == READY
        assert [request.target for request in proxy.requests] == [
            f"http://{here.place}/",
            f"http://{there.place}/there",
        ]
        assert {request.headers["proxy-authorization"] for request in proxy.requests} == {basic("me:hush")}


@pytest.mark.parametrize("status", [407, 502])
def test_what_the_proxy_answers_by_itself_is_the_answer(look: Look, status: int) -> None:
    with HttpBackend(reply(status)) as proxy:
        assert look("http://nothing.invalid/", proxy=proxy.place) == Verdict.failed(
            f"answered {status}: http://nothing.invalid/"
        )


# ---- https


def test_https_goes_through_a_tunnel(look: Look, certificate: Certificate) -> None:
    with ProxyBackend() as proxy, HttpBackend(reply(200, "hello"), tls=server_tls(certificate)) as backend:
        url, ca = f"https://{backend.place}/health", str(certificate.certificate)
        assert look(url, proxy=f"http://me:hush@{proxy.place}", ca=ca, bearer="swordfish", contains="hello") == READY
        assert (proxy.requests[-1].method, proxy.requests[-1].target) == ("CONNECT", backend.place)
        assert proxy.requests[-1].headers == {"host": backend.place, "proxy-authorization": basic("me:hush")}
        assert backend.last.target == "/health"
        assert backend.last.headers["authorization"] == "Bearer swordfish"
        assert "proxy-authorization" not in backend.last.headers


def test_the_certificate_behind_a_tunnel_is_judged(look: Look, certificate: Certificate) -> None:
    with ProxyBackend() as proxy, HttpBackend(reply(200), tls=server_tls(certificate)) as backend:
        url, ca = f"https://{backend.place}/", str(certificate.certificate)
        assert look(url, proxy=proxy.place) == Verdict.failed(
            f"its certificate is not valid: self-signed certificate: {url}"
        )
        assert look(url, proxy=proxy.place, ca=ca, server_name="localhost") == READY
        assert look(url, proxy=proxy.place, ca=ca, server_name="other.example").outcome is Outcome.FAILED
        assert look(url, proxy=proxy.place, ca=ca, min_cert_days=1).outcome is Outcome.NOT_READY


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "HTTP/1.1 407 Proxy Authentication Required"),
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "HTTP/1.1 502 Bad Gateway"),
        (b"SSH-2.0-OpenSSH\r\n", "SSH-2.0-OpenSSH"),
        (b"", ""),
        (b"x" * 100_000, "x" * 80),
    ],
)
def test_a_proxy_that_opens_no_tunnel_is_told_with_its_words(look: Look, answer: bytes, shown: str) -> None:
    with HttpBackend(answer) as proxy:
        assert look("https://nothing.invalid/", proxy=proxy.place) == Verdict.failed(
            f'the proxy {proxy.place} opens no tunnel: "{shown}": https://nothing.invalid/'
        )


def test_a_proxy_that_breaks_off_is_told_by_its_name_or_as_the_end_of_the_connection(look: Look) -> None:
    with Backend(reset) as proxy:
        for scheme in ("http", "https"):  # it depends on how far the connecting was
            assert look(f"{scheme}://nothing.invalid/", proxy=proxy.place).outcome in (Outcome.FAILED, Outcome.UNKNOWN)


def test_a_proxy_that_is_not_there_says_nothing_about_the_service(look: Look) -> None:
    with refusing() as port:
        for scheme in ("http", "https"):
            verdict = look(f"{scheme}://nothing.invalid/", proxy=f"127.0.0.1:{port}")
            assert verdict.outcome is Outcome.UNKNOWN
            assert verdict.reason.startswith(f"the proxy 127.0.0.1:{port} cannot be reached: connection refused")


# ---- steps, and nothing is left open


def test_a_tunnel_is_a_step(look: Look, certificate: Certificate) -> None:
    with ProxyBackend() as proxy, HttpBackend(reply(200), tls=server_tls(certificate)) as backend:
        steps = look.steps(f"https://{backend.place}/", proxy=proxy.place, ca=str(certificate.certificate))
        assert steps == [
            ("connect", "127.0.0.1", True),
            ("tunnel", proxy.place, True),
            ("handshake", "127.0.0.1", True),
            ("exchange", "", True),
        ]


def test_a_look_that_is_cut_off_in_its_tunnel_leaves_nothing_open(look: Look) -> None:
    with Backend(mute) as proxy:
        assert look.cut_off("https://nothing.invalid/", proxy=proxy.place) == Verdict.failed(
            "no answer within 0.2 s, in its step tunnel"
        )


def test_a_look_that_is_cut_off_behind_its_tunnel_leaves_nothing_open(look: Look) -> None:
    def opens(peer: Peer) -> None:
        Received.read(peer)
        peer.say(b"HTTP/1.1 200 OK\r\n\r\n")

    with Backend(opens) as proxy:
        assert look.cut_off("https://nothing.invalid/", proxy=proxy.place) == Verdict.failed(
            "no answer within 0.2 s, in its step handshake"
        )


def test_a_proxy_that_opens_no_tunnel_leaves_nothing_open(look: Look) -> None:
    with HttpBackend(reply(407)) as proxy:
        look.leaves_nothing_open("https://nothing.invalid/", proxy=proxy.place)


# ---- what is refused at once


@pytest.mark.parametrize(
    ("proxy", "words"),
    [
        ("https://127.0.0.1:3128", "only http:// proxies can be spoken to, not https://"),
        ("socks5://127.0.0.1:1080", "only http:// proxies can be spoken to, not socks5://"),
        ("http://", "names no host"),
        ("127.0.0.1:http", "a port is a number from 1 to 65535"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_refused(environ: Callable[..., None], proxy: str, words: str) -> None:
    with pytest.raises(OptionError, match=f"^proxy: {re.escape(words)}"):
        make_probe({"url": "http://127.0.0.1/", "proxy": proxy})
    environ(http_proxy=proxy)
    with pytest.raises(OptionError, match=f"^proxy: {re.escape(words)}"):
        make_probe({"url": "http://127.0.0.1/", "proxy": "environment"})
