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
    ReceivedRequest,
    closed_port,
    http_response,
    reset,
    server_tls,
    unresponsive,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.probes.conftest import CheckRunner
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
    check: CheckRunner, environ: Callable[..., None], certificate: Certificate
) -> None:
    with (
        ProxyBackend() as proxy,
        HttpBackend(http_response(200)) as plain,
        HttpBackend(http_response(200), tls=server_tls(certificate)) as encrypted,
    ):
        words = f"http://{proxy.address}"
        environ(**dict.fromkeys([*VARIABLES[:3], *map(str.upper, VARIABLES[:3])], words))
        assert check(f"http://{plain.address}/") == READY
        assert check(f"svc+http://{plain.address}/") == READY
        assert check(f"https://{encrypted.address}/", ca=str(certificate.certificate)) == READY
        assert proxy.connection_count == 0


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY"])
def test_the_proxy_of_the_environment_is_used_when_asked_for(
    check: CheckRunner, environ: Callable[..., None], variable: str
) -> None:
    with ProxyBackend() as proxy, HttpBackend(http_response(200)) as backend:
        environ(**{variable: f"http://{proxy.address}"})
        assert check(f"http://{backend.address}/x", proxy="environment") == READY
        assert [request.target for request in proxy.requests] == [f"http://{backend.address}/x"]


def test_each_scheme_has_a_proxy_of_its_own_in_the_environment(
    check: CheckRunner, environ: Callable[..., None], certificate: Certificate
) -> None:
    with (
        ProxyBackend() as proxy,
        HttpBackend(http_response(200)) as plain,
        HttpBackend(http_response(200), tls=server_tls(certificate)) as encrypted,
    ):
        environ(https_proxy=f"http://{proxy.address}")
        assert check(f"http://{plain.address}/", proxy="environment") == READY
        assert proxy.requests == []
        assert check(f"https://{encrypted.address}/", proxy="environment", ca=str(certificate.certificate)) == READY
        assert [request.method for request in proxy.requests] == ["CONNECT"]


def test_an_environment_without_a_proxy_means_none(check: CheckRunner, environ: Callable[..., None]) -> None:
    environ()
    with HttpBackend(http_response(200)) as backend:
        assert check(f"http://{backend.address}/", proxy="environment") == READY
        assert backend.last_request.target == "/"


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
def test_what_the_environment_excepts_is_checked_directly(
    check: CheckRunner, environ: Callable[..., None], variable: str, exceptions: str, is_direct: bool
) -> None:
    with ProxyBackend() as proxy, HttpBackend(http_response(200)) as backend:
        environ(http_proxy=f"http://{proxy.address}", **{variable: exceptions.format(port=backend.port)})
        assert check(f"http://{backend.address}/", proxy="environment") == READY
        assert (proxy.connection_count == 0) is is_direct


def test_what_the_environment_excepts_does_not_touch_a_proxy_that_is_named(
    check: CheckRunner, environ: Callable[..., None]
) -> None:
    with ProxyBackend() as proxy, HttpBackend(http_response(200)) as backend:
        environ(no_proxy="*")
        assert check(f"http://{backend.address}/", proxy=f"http://{proxy.address}") == READY
        assert len(proxy.requests) == 1


# ---- http


def test_a_proxy_is_asked_for_the_whole_url(check: CheckRunner) -> None:
    with ProxyBackend() as proxy, HttpBackend(http_response(200, "hello")) as backend:
        url = f"http://{backend.address}/health"
        assert check(url, proxy=f"http://{proxy.address}", contains="hello", bearer="swordfish") == READY
        assert proxy.requests[-1].target == url
        assert proxy.requests[-1].headers["host"] == backend.address
        assert backend.last_request.target == "/health"
        assert backend.last_request.headers["authorization"] == "Bearer swordfish"


def test_a_proxy_may_be_named_without_its_scheme(check: CheckRunner) -> None:
    with ProxyBackend() as proxy, HttpBackend(http_response(200)) as backend:
        assert check(f"http://{backend.address}/", proxy=proxy.address) == READY
        assert len(proxy.requests) == 1


def test_a_name_is_left_to_the_proxy_to_resolve(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as proxy:
        assert check("http://nothing.invalid/x?y=z", proxy=proxy.address) == READY
        assert proxy.last_request.target == "http://nothing.invalid/x?y=z"


def test_a_user_of_the_proxy_is_told_to_the_proxy(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as proxy:
        assert check("http://nothing.invalid/", proxy=f"http://me:p%40ss@{proxy.address}") == READY
        assert proxy.last_request.headers["proxy-authorization"] == basic("me:p@ss")


def test_other_kinds_that_speak_http_use_a_proxy_as_well(check: CheckRunner) -> None:
    def answer(request: ReceivedRequest) -> bytes:
        return http_response(200, json.dumps({"id": 1, "result": "ok"})) if request.body else http_response(206)

    with ProxyBackend() as proxy, HttpBackend(answer) as backend:
        assert check(f"svc+http://{backend.address}", proxy=proxy.address).outcome is Outcome.NOT_READY
        assert check(f"jsonrpc+http://{backend.address}", proxy=proxy.address, method="getHealth") == READY
        assert [request.target for request in proxy.requests] == [
            f"http://{backend.address}/svc/node/health",
            f"http://{backend.address}/",
        ]


def test_a_redirect_goes_through_the_proxy_as_well(check: CheckRunner) -> None:
    with (
        ProxyBackend() as proxy,
        HttpBackend(http_response(200)) as there,
        HttpBackend(http_response(302, Location=f"http://{there.address}/there")) as here,
    ):
        assert check(f"http://{here.address}/", proxy=f"http://me:hush@{proxy.address}", redirects=1) == READY
        assert [request.target for request in proxy.requests] == [
            f"http://{here.address}/",
            f"http://{there.address}/there",
        ]
        assert {request.headers["proxy-authorization"] for request in proxy.requests} == {basic("me:hush")}


@pytest.mark.parametrize("status", [407, 502])
def test_what_the_proxy_answers_by_itself_is_the_answer(check: CheckRunner, status: int) -> None:
    with HttpBackend(http_response(status)) as proxy:
        assert check("http://nothing.invalid/", proxy=proxy.address) == Verdict.failed(
            f"answered {status}: http://nothing.invalid/"
        )


# ---- https


def test_https_goes_through_a_tunnel(check: CheckRunner, certificate: Certificate) -> None:
    with ProxyBackend() as proxy, HttpBackend(http_response(200, "hello"), tls=server_tls(certificate)) as backend:
        url, ca = f"https://{backend.address}/health", str(certificate.certificate)
        assert check(url, proxy=f"http://me:hush@{proxy.address}", ca=ca, bearer="swordfish", contains="hello") == READY
        assert (proxy.requests[-1].method, proxy.requests[-1].target) == ("CONNECT", backend.address)
        assert proxy.requests[-1].headers == {"host": backend.address, "proxy-authorization": basic("me:hush")}
        assert backend.last_request.target == "/health"
        assert backend.last_request.headers["authorization"] == "Bearer swordfish"
        assert "proxy-authorization" not in backend.last_request.headers


def test_the_certificate_behind_a_tunnel_is_judged(check: CheckRunner, certificate: Certificate) -> None:
    with ProxyBackend() as proxy, HttpBackend(http_response(200), tls=server_tls(certificate)) as backend:
        url, ca = f"https://{backend.address}/", str(certificate.certificate)
        assert check(url, proxy=proxy.address) == Verdict.failed(
            f"its certificate is not valid: self-signed certificate: {url}"
        )
        assert check(url, proxy=proxy.address, ca=ca, server_name="localhost") == READY
        assert check(url, proxy=proxy.address, ca=ca, server_name="other.example").outcome is Outcome.FAILED
        assert check(url, proxy=proxy.address, ca=ca, min_cert_days=1).outcome is Outcome.NOT_READY


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
def test_a_proxy_that_opens_no_tunnel_is_told_with_its_words(check: CheckRunner, answer: bytes, shown: str) -> None:
    with HttpBackend(answer) as proxy:
        assert check("https://nothing.invalid/", proxy=proxy.address) == Verdict.failed(
            f'the proxy {proxy.address} opens no tunnel: "{shown}": https://nothing.invalid/'
        )


def test_a_proxy_that_breaks_off_is_told_by_its_name_or_as_the_end_of_the_connection(check: CheckRunner) -> None:
    with Backend(reset) as proxy:
        for scheme in ("http", "https"):  # it depends on how far the connecting was
            assert check(f"{scheme}://nothing.invalid/", proxy=proxy.address).outcome in (
                Outcome.FAILED,
                Outcome.UNKNOWN,
            )


def test_a_proxy_that_is_not_there_says_nothing_about_the_service(check: CheckRunner) -> None:
    with closed_port() as port:
        for scheme in ("http", "https"):
            verdict = check(f"{scheme}://nothing.invalid/", proxy=f"127.0.0.1:{port}")
            assert verdict.outcome is Outcome.UNKNOWN
            assert verdict.reason.startswith(f"the proxy 127.0.0.1:{port} cannot be reached: connection refused")


# ---- steps, and nothing is left open


def test_a_tunnel_is_a_step(check: CheckRunner, certificate: Certificate) -> None:
    with ProxyBackend() as proxy, HttpBackend(http_response(200), tls=server_tls(certificate)) as backend:
        steps = check.steps(f"https://{backend.address}/", proxy=proxy.address, ca=str(certificate.certificate))
        assert steps == [
            ("connect", "127.0.0.1", True),
            ("tunnel", proxy.address, True),
            ("handshake", "127.0.0.1", True),
            ("exchange", "", True),
        ]


def test_a_check_that_times_out_in_its_tunnel_leaves_nothing_open(check: CheckRunner) -> None:
    with Backend(unresponsive) as proxy:
        assert check.times_out("https://nothing.invalid/", proxy=proxy.address) == Verdict.failed(
            "no answer within 0.2 s, in its step tunnel"
        )


def test_a_check_that_times_out_behind_its_tunnel_leaves_nothing_open(check: CheckRunner) -> None:
    def opens(peer: Peer) -> None:
        ReceivedRequest.read(peer)
        peer.send(b"HTTP/1.1 200 OK\r\n\r\n")

    with Backend(opens) as proxy:
        assert check.times_out("https://nothing.invalid/", proxy=proxy.address) == Verdict.failed(
            "no answer within 0.2 s, in its step handshake"
        )


def test_a_proxy_that_opens_no_tunnel_leaves_nothing_open(check: CheckRunner) -> None:
    with HttpBackend(http_response(407)) as proxy:
        check.leaks_nothing("https://nothing.invalid/", proxy=proxy.address)


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
