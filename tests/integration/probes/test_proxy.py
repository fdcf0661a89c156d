"""HTTP proxies: used only if the option `proxy` is set."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from tests.support.backends import (
    Backend,
    HttpBackend,
    ProxyBackend,
    http_response,
    server_tls,
    unresponsive,
)
from tests.support.verdicts import EXPIRES_SOON, READY, TLS_UNTRUSTED, failed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.certificates import Certificate
    from tests.support.check_runner import CheckRunner

PROXY_FAILED = failed(ReasonCode.PROXY_FAILED)
VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the proxy variables; all others are unset."""

    def put(**values: str) -> None:
        for name in VARIABLES:
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    put()
    return put


def basic(credentials: str) -> str:
    return f"Basic {base64.b64encode(credentials.encode()).decode()}"


def test_the_proxies_of_the_environment_are_not_used_by_default(
    check: CheckRunner, environ: Callable[..., None], certificate: Certificate
) -> None:
    with (
        ProxyBackend() as proxy,
        HttpBackend(http_response(200)) as plain,
        HttpBackend(http_response(200), tls=server_tls(certificate)) as encrypted,
    ):
        url = f"http://{proxy.address}"
        environ(**dict.fromkeys([*VARIABLES[:3], *map(str.upper, VARIABLES[:3])], url))
        assert check(f"http://{plain.address}/") == READY
        assert check(f"svc+http://{plain.address}/") == READY
        assert check(f"https://{encrypted.address}/", ca=str(certificate.certificate)) == READY
        assert proxy.connection_count == 0


@pytest.mark.parametrize(
    ("exceptions", "is_direct"),
    [
        ("*", True),
        ("127.0.0.1:{port}", True),
        ("node.example, 127.0.0.1", True),
        ("127.0.0.1:1", False),
        ("127.0.0.2", False),
        ("", False),
    ],
)
@pytest.mark.parametrize("names", [("http_proxy", "no_proxy"), ("HTTP_PROXY", "NO_PROXY")])
def test_the_proxy_of_the_environment_is_used_if_configured_except_for_hosts_in_no_proxy(
    check: CheckRunner, environ: Callable[..., None], names: tuple[str, str], exceptions: str, is_direct: bool
) -> None:
    with ProxyBackend() as proxy, HttpBackend(http_response(200)) as backend:
        environ(**dict(zip(names, (f"http://{proxy.address}", exceptions.format(port=backend.port)), strict=True)))
        assert check(f"http://{backend.address}/", proxy="environment") == READY
        assert (proxy.connection_count == 0) is is_direct


def test_a_proxy_gets_the_whole_url(check: CheckRunner) -> None:
    with ProxyBackend() as proxy, HttpBackend(http_response(200, "hello")) as backend:
        url = f"http://{backend.address}/health"
        assert check(url, proxy=f"http://{proxy.address}", contains="hello", bearer="swordfish") == READY
        assert proxy.requests[-1].target == url
        assert proxy.requests[-1].headers["host"] == backend.address
        assert backend.last_request.target == "/health"
        assert backend.last_request.headers["authorization"] == "Bearer swordfish"


def test_a_redirect_uses_the_proxy_too(check: CheckRunner) -> None:
    with (
        ProxyBackend() as proxy,
        HttpBackend(http_response(200)) as second,
        HttpBackend(http_response(302, Location=f"http://{second.address}/there")) as first,
    ):
        assert check(f"http://{first.address}/", proxy=f"http://me:hidden@{proxy.address}", redirects=1) == READY
        assert [request.target for request in proxy.requests] == [
            f"http://{first.address}/",
            f"http://{second.address}/there",
        ]
        assert {request.headers["proxy-authorization"] for request in proxy.requests} == {basic("me:hidden")}


# ---- https


@pytest.mark.parametrize(
    ("status", "code"), [(200, ReasonCode.OK), (407, ReasonCode.PROXY_FAILED), (502, ReasonCode.SERVER_ERROR)]
)
def test_the_proxy_resolves_the_name_and_its_own_response_is_that_of_the_check(
    check: CheckRunner, status: int, code: ReasonCode
) -> None:
    with HttpBackend(http_response(status)) as proxy:
        verdict = check("http://nothing.invalid/x?y=z", proxy=f"http://me:p%40ss@{proxy.address}")
        assert verdict.code is code
        assert proxy.last_request.target == "http://nothing.invalid/x?y=z"
        assert proxy.last_request.headers["proxy-authorization"] == basic("me:p@ss")
        direct = check(f"http://{proxy.address}/", status="2xx")
        assert status != 407 or direct == failed(ReasonCode.UNEXPECTED_RESPONSE)  # of the service


def test_https_uses_a_tunnel(check: CheckRunner, certificate: Certificate) -> None:
    with ProxyBackend() as proxy, HttpBackend(http_response(200, "hello"), tls=server_tls(certificate)) as backend:
        url, ca = f"https://{backend.address}/health", str(certificate.certificate)
        assert (
            check(url, proxy=f"http://me:hidden@{proxy.address}", ca=ca, bearer="swordfish", contains="hello") == READY
        )
        assert (proxy.requests[-1].method, proxy.requests[-1].target) == ("CONNECT", backend.address)
        assert proxy.requests[-1].headers == {"host": backend.address, "proxy-authorization": basic("me:hidden")}
        assert backend.last_request.target == "/health"
        assert backend.last_request.headers["authorization"] == "Bearer swordfish"
        assert "proxy-authorization" not in backend.last_request.headers


def test_the_certificate_behind_a_tunnel_is_verified(check: CheckRunner, certificate: Certificate) -> None:
    with ProxyBackend() as proxy, HttpBackend(http_response(200), tls=server_tls(certificate)) as backend:
        url, ca = f"https://{backend.address}/", str(certificate.certificate)
        assert check(url, proxy=proxy.address) == TLS_UNTRUSTED
        assert check(url, proxy=proxy.address, ca=ca, server_name="localhost") == READY
        mismatch = check(url, proxy=proxy.address, ca=ca, server_name="other.example")
        assert mismatch == failed(ReasonCode.TLS_NAME_MISMATCH)
        assert check(url, proxy=proxy.address, ca=ca, min_cert_days=1) == EXPIRES_SOON


@pytest.mark.parametrize(
    ("response", "shown"),
    [
        (b"HTTP/1.1 502 Bad Gateway\r\n\r\n", "HTTP/1.1 502 Bad Gateway"),
        (b"", ""),
        (b"x" * 100_000, "x" * 79 + "…"),
    ],
)
def test_a_proxy_that_rejects_connect_is_failed_and_the_reason_has_its_status_line(
    check: CheckRunner, response: bytes, shown: str
) -> None:
    with HttpBackend(response) as proxy:
        verdict = check("https://nothing.invalid/", proxy=proxy.address)
    assert verdict == PROXY_FAILED
    assert proxy.address in verdict.reason
    assert f'"{shown}"' in verdict.reason


def test_a_check_that_times_out_while_opening_the_tunnel_leaves_nothing_open(check: CheckRunner) -> None:
    with Backend(unresponsive) as proxy:
        verdict = check.times_out("https://nothing.invalid/", "tunnel", proxy=proxy.address)
    assert verdict == failed(ReasonCode.CONNECT_TIMEOUT)
