"""HTTP probes against real servers: requests, responses, redirects, TLS."""

from __future__ import annotations

import base64
import re
import ssl
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.core.model import Outcome
from svcnode.probes import make_probe
from tests.support.backends import (
    CONTINUE,
    Backend,
    HttpBackend,
    Peer,
    ReceivedRequest,
    http_response,
    server_tls,
)
from tests.support.certificates import Certificate, make_certificate
from tests.support.probe_assertions import INCOMPLETE_RESPONSE
from tests.support.verdicts import (
    EXPIRES_SOON,
    PROTOCOL_ERROR,
    READY,
    UNEXPECTED_RESPONSE,
    ExpectedVerdict,
    failed,
    not_ready,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.check_runner import CheckRunner

STARTING = not_ready(ReasonCode.STARTING)
TIMEOUT = failed(ReasonCode.TIMEOUT)
REDIRECTED = failed(ReasonCode.REDIRECTED)
SERVER_ERROR = failed(ReasonCode.SERVER_ERROR)


def test_a_server_that_responds_with_200_is_ready(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        assert check(f"http://{backend.address}/health?deep=1&x=%20") == READY
        assert (backend.last_request.method, backend.last_request.target) == ("GET", "/health?deep=1&x=%20")
        assert backend.last_request.headers == {
            "host": backend.address,
            "user-agent": "svcnode",
            "accept": "*/*",
            "connection": "close",
        }
        assert backend.last_request.body == b""


def test_target_method_headers_and_body_are_those_of_the_probe(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        headers = {"X-Api-Key": "k1", "host": "shop.example", "USER-AGENT": "me"}
        options = {"method": "PUT", "headers": headers, "body": "grüß dich"}
        assert check(f"http://{backend.address}/a b/ü%20?q=日", **options) == READY
        request = backend.last_request
        assert (request.method, request.target) == ("PUT", "/a%20b/%C3%BC%20?q=%E6%97%A5")
        assert request.body == "grüß dich".encode()
        sent = {"x-api-key": "k1", "host": "shop.example", "user-agent": "me"}
        assert request.headers.items() >= sent.items()
    with HttpBackend(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n") as backend:
        assert check(f"http://{backend.address}", method="HEAD") == READY


def test_the_user_of_the_url_is_sent_as_basic_authorization(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        assert check(f"http://reader:p%40ss:w%C3%B6rd@{backend.address}/") == READY
        kind, _, token = backend.last_request.headers["authorization"].partition(" ")
        assert (kind, base64.b64decode(token).decode()) == ("Basic", "reader:p@ss:wörd")
        assert backend.last_request.headers["host"] == backend.address


@pytest.mark.parametrize(
    ("expected", "status", "outcome"),
    [
        (None, 200, Outcome.READY),
        (None, 299, Outcome.READY),
        (None, 300, Outcome.FAILED),
        (401, 401, Outcome.READY),
        (401, 200, Outcome.FAILED),
        ("418", 418, Outcome.READY),
        ("4xx", 400, Outcome.READY),
        ("4xx", 500, Outcome.FAILED),
        ("200-204", 204, Outcome.READY),
        ("200-204", 205, Outcome.FAILED),
        ([200, "301-302", "4xx"], 302, Outcome.READY),
        ([200, "301-302", "4xx"], 201, Outcome.FAILED),
    ],
)
def test_the_status_is_compared_with_the_expected_ones(
    check: CheckRunner, expected: Any, status: int, outcome: Outcome
) -> None:
    options = {} if expected is None else {"status": expected}
    with HttpBackend(http_response(status)) as backend:
        verdict = check(f"http://{backend.address}", **options)
    assert verdict.outcome is outcome
    assert outcome is Outcome.READY or str(status) in verdict.reason


LAG = "lag: 17 blocks"
SYNCED = {"json": {"/synced": True}, "starting_json": {"/synced": False, "/health": "healthy"}}


@pytest.mark.parametrize(
    ("status", "body", "options", "expected"),
    [
        (503, "", {"starting_status": [503, "4xx"]}, STARTING),
        (200, '{"synced": false, "health": "healthy"}', SYNCED, STARTING),
        (200, '{"synced": false, "health": "ill"}', SYNCED, UNEXPECTED_RESPONSE),
        (200, '{"status": "ok"}', {"starting_json": {"/status": "syncing"}}, READY),
        (200, '{"x": 0, "x": 1}', {"json": {"/x": 1}}, UNEXPECTED_RESPONSE),
        (200, '{"x": 1, "y": NaN}', {"starting_json": {"/x": 2}}, UNEXPECTED_RESPONSE),
        (200, '{"lag": 17}', {"require": ["/lag < 20"], "json": {"/lag": 17}}, READY),
        (200, '{"lag": 17}', {"require": ["/lag < 10"]}, UNEXPECTED_RESPONSE),
        (200, '{"lag": 17}', {"require": ["/lag < 10"], "starting": ["/no > 1", "/lag > 10"]}, STARTING),
        (200, '{"at": "2020-01-01T00:00:00Z"}', {"require": ["age of /at < 1h"]}, failed(ReasonCode.LAGGING)),
        (200, LAG, {"require": ["/lag < 20"]}, UNEXPECTED_RESPONSE),
        (200, LAG, {"starting": ["/lag < 20"]}, READY),
        (200, LAG, {"matches": r"lag: \d{1,2} "}, READY),
        (200, LAG, {"matches": r"^lag: \d "}, UNEXPECTED_RESPONSE),
        (200, LAG, {"contains": "17"}, READY),
        (500, LAG, {"contains": "17"}, SERVER_ERROR),
    ],
)
def test_status_and_body_are_checked(
    check: CheckRunner, status: int, body: str, options: dict[str, Any], expected: ExpectedVerdict
) -> None:
    with HttpBackend(http_response(status, body)) as backend:
        assert check(f"http://{backend.address}/", **options) == expected


def test_a_body_of_any_depth_gives_a_verdict(check: CheckRunner) -> None:
    # The limit depends on the interpreter. Just below it, a body can be parsed but not formatted.
    depths = (*range(850, 1000, 10), 9000, 99000)
    bodies = {f"/{depth}": b'{"x": %s%s}' % (b"[" * depth, b"]" * depth) for depth in depths}

    async def scenario(url: str) -> set[Outcome]:
        return {(await make_probe({"url": url + target, "json": {"/x": 1}}).check()).outcome for target in bodies}

    with HttpBackend(lambda request: http_response(200, bodies[request.target])) as backend:
        assert check.run(scenario(f"http://{backend.address}")) == {Outcome.FAILED}


@pytest.mark.parametrize(
    "response", [b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 304 Same\r\nContent-Length: 5\r\n\r\n"]
)
def test_a_response_without_a_body_is_complete_after_its_head(check: CheckRunner, response: bytes) -> None:
    def keep_open(peer: Peer) -> None:
        ReceivedRequest.read(peer)
        peer.send(response)

    with Backend(keep_open) as backend:
        assert check(f"http://{backend.address}", status="2xx" if b"204" in response else 304, matches="^$") == READY


def sending_to(peer: Peer, data: bytes) -> None:
    ReceivedRequest.read(peer)
    peer.send(data)


@pytest.mark.parametrize("framing", [b"Content-Length: 5000", b"Transfer-Encoding: chunked", b"Connection: close"])
@pytest.mark.parametrize("options", [{}, {"contains": "hello"}])
def test_a_response_whose_body_does_not_come_is_failed(
    check: CheckRunner, framing: bytes, options: dict[str, str]
) -> None:
    with Backend(partial(sending_to, data=b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % framing)) as backend:
        assert check.times_out(f"http://{backend.address}", "exchange", **options) == TIMEOUT


@pytest.mark.parametrize(
    ("response", "options", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n", {"method": "HEAD"}, READY),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", {}, READY),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999999\r\n\r\n" + b"x" * 200_000, {}, READY),
        (b"HTTP/1.1 503 No\r\nContent-Length: 5000\r\n\r\n", {}, failed(ReasonCode.SERVER_ERROR)),
        (CONTINUE + b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", {}, READY),
    ],
    ids=["HEAD", "event stream", "large body", "error", "after 100"],
)
def test_a_check_does_not_wait_for_a_body_that_has_no_end_or_says_nothing_more(
    check: CheckRunner, response: bytes, options: dict[str, str], expected: ExpectedVerdict
) -> None:
    """Every server keeps the connection open after the response."""
    with Backend(partial(sending_to, data=response)) as backend:
        assert check(f"http://{backend.address}", **options) == expected
        assert check(f"http://{backend.address}", redirects=1, **options) == expected


# ---- redirects


SWITCHING = b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x00"
HTTP2_ONLY = bytes.fromhex("000006 04 00 00000000 0003 00000064")


@pytest.mark.parametrize(
    ("response", "options", "expected", "detail"),
    [
        (CONTINUE, {}, INCOMPLETE_RESPONSE, ""),
        (SWITCHING, {}, UNEXPECTED_RESPONSE, ""),
        (HTTP2_ONLY, {}, PROTOCOL_ERROR, "http2 = true"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello", {}, INCOMPLETE_RESPONSE, ""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello", {"contains": "hello"}, INCOMPLETE_RESPONSE, ""),
    ],
    ids=["only a 100", "switches", "HTTP/2 only", "short body", "short body that is compared"],
)
def test_an_incomplete_or_invalid_response_is_failed(
    check: CheckRunner, response: bytes, options: dict[str, str], expected: ExpectedVerdict, detail: str
) -> None:
    with HttpBackend(response) as backend:
        verdict = check(f"http://{backend.address}/", **options)
    assert verdict == expected
    assert detail in verdict.reason


def redirecting(pages: dict[str, str], *, status: int = 302) -> Callable[[ReceivedRequest], bytes]:
    def respond(request: ReceivedRequest) -> bytes:
        if request.target in pages:
            return http_response(status, Location=pages[request.target])
        return http_response(200, f"page {request.target}")

    return respond


def test_a_redirect_is_not_followed_by_default(check: CheckRunner) -> None:
    with HttpBackend(redirecting({"/": "/there"})) as backend:
        verdict = check(f"http://{backend.address}/")
        assert verdict == REDIRECTED
        assert f"http://{backend.address}/there" in verdict.reason
        assert check(f"http://{backend.address}/", status="3xx", redirects=5) == READY
        assert [request.target for request in backend.requests] == ["/", "/"]


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("https://me:word@login.example/in?ticket=hidden#part", "https://login.example/in"),
        (f"http://login.example/{'x' * 300}", f"http://login.example/{'x' * 178}…"),
        ("mailto:me@node.example", ""),
        ("", ""),
    ],
)
def test_the_location_of_a_redirect_is_shown_without_secrets(check: CheckRunner, location: str, shown: str) -> None:
    with HttpBackend(redirecting({"/": location})) as backend:
        verdict = check(f"http://{backend.address}/")
    assert verdict == REDIRECTED
    assert shown in verdict.reason
    assert not any(secret in verdict.reason for secret in ("word", "hidden", "me@", "x" * 180))


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/there", "/there"),
        ("../there", "/there"),
        ("?x=y", "/a/b?x=y"),
        ("/there#part", "/there"),
        ("/a b", "/a%20b"),
    ],
)
def test_a_redirect_may_be_relative(check: CheckRunner, location: str, target: str) -> None:
    with HttpBackend(redirecting({"/a/b": location})) as backend:
        assert check(f"http://{backend.address}/a/b", redirects=1) == READY
        assert backend.last_request.target == target


@pytest.mark.parametrize(
    "location",
    [
        "ftp://127.0.0.1/",
        "http://127.0.0.1:99999/",
        "http://a%0d%0aX-Evil:%201/",
        "http://" + "x" * 70 + ".example/",
    ],
)
def test_a_redirect_to_an_invalid_url_is_failed(check: CheckRunner, location: str) -> None:
    with HttpBackend(redirecting({"/1": location})) as backend:
        assert check(f"http://{backend.address}/1", redirects=1) == REDIRECTED


SECRETS: dict[str, Any] = {
    "method": "POST",
    "headers": {"X-Api-Key": "hidden"},
    "bearer": "swordfish",
    "body": "secret",
}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed_up_to_their_limit(check: CheckRunner, status: int) -> None:
    """With the headers of the probe; with its method and body only if the status says so."""
    with HttpBackend(redirecting({"/1": "/2", "/2": "/3", "/3": "/4"}, status=status)) as backend:
        assert check(f"http://{backend.address}/1", redirects=3, contains="page /4", **SECRETS) == READY
        request = backend.last_request
        assert request.headers["authorization"] == "Bearer swordfish"
        assert request.headers["x-api-key"] == "hidden"
        assert (request.method, request.body) == (("POST", b"secret") if status >= 307 else ("GET", b""))
        verdict = check(f"http://{backend.address}/1", redirects=2)
    assert verdict == REDIRECTED
    assert f"http://{backend.address}/4" in verdict.reason


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_redirect_to_another_origin_has_no_credentials(check: CheckRunner, host: str) -> None:
    # Another port of the same host, or another name of it, is another origin.
    with (
        HttpBackend(http_response(200)) as other,
        HttpBackend(redirecting({"/": f"http://me:word@{host}:{other.port}/there"})) as home,
    ):
        assert check(f"http://{home.address}/", redirects=1, **SECRETS) == READY
        assert home.last_request.headers["authorization"] == "Bearer swordfish"
        assert other.last_request.target == "/there"
        assert other.last_request.headers == {
            "host": f"{host}:{other.port}",
            "user-agent": "svcnode",
            "accept": "*/*",
            "connection": "close",
        }
        assert other.last_request.body == b""


def test_another_origin_gets_neither_the_client_certificate_nor_the_server_name(
    check: CheckRunner, certificate: Certificate, tmp_path: Path
) -> None:
    known = make_certificate(tmp_path, "known")
    names: list[str | None] = []
    has_certificate: list[bool] = []
    tls = server_tls(certificate, clients=known.certificate)
    tls.verify_mode = ssl.CERT_OPTIONAL
    tls.sni_callback = lambda _sock, name, _context: names.append(name)
    pages: dict[str, str] = {}

    def respond(peer: Peer) -> None:
        assert isinstance(peer.sock, ssl.SSLSocket)
        has_certificate.append(peer.sock.getpeercert(binary_form=True) is not None)
        peer.send(redirecting(pages)(ReceivedRequest.read(peer)))

    options = {"ca": str(certificate.certificate), "server_name": "localhost"}
    options |= {"client_certificate": str(known.certificate), "client_key": str(known.key)}
    with Backend(respond, tls=tls, host="127.0.0.2") as home, Backend(respond, tls=tls) as other:
        pages["/"] = f"https://{other.address}/there"
        assert check(f"https://{home.address}/", redirects=1, **options) == READY
    assert has_certificate == [True, False]
    assert names == ["localhost", None]  # SNI has no addresses


def test_https_with_a_trusted_certificate_is_ready_unless_it_expires_soon(
    check: CheckRunner, certificate: Certificate
) -> None:
    with HttpBackend(lambda request: http_response(int(request.target[1:])), tls=server_tls(certificate)) as backend:
        url, ca = f"https://{backend.address}", str(certificate.certificate)
        assert check(f"{url}/200", ca=ca) == READY
        assert check(f"{url}/200", ca=ca, min_cert_days=1) == EXPIRES_SOON
        assert check(f"{url}/500", ca=ca, min_cert_days=1) == SERVER_ERROR


@pytest.mark.parametrize("status", [99, 600, True, "6xx", "2x", "20", "200-", "204-200", "abc", 200.0, {}, [200, "x"]])
def test_an_invalid_status_is_rejected(status: Any) -> None:
    with pytest.raises(OptionError) as caught:
        make_probe({"url": "http://127.0.0.1/", "status": status})
    assert caught.value.option == "status"


OUTDATED = failed(ReasonCode.OUTDATED_RESPONSE)


def test_every_fresh_request_is_unique(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        for _ in range(2):
            assert check(f"http://{backend.address}/health?full=1", fresh=True) == READY
    targets = [request.target for request in backend.requests]
    assert len(set(targets)) == 2
    assert all(re.fullmatch(r"/health\?full=1&_svcnode=[0-9a-f]{16}", target) for target in targets)
    assert backend.last_request.headers["cache-control"] == "no-cache, no-store"
    assert backend.last_request.headers["pragma"] == "no-cache"


@pytest.mark.parametrize(
    ("name", "value", "verdict"),
    [
        ("Age", "3600", OUTDATED),
        ("Age", "1", READY),
        ("Age", "soon", READY),
        ("Warning", '110 varnish "Response is stale"', OUTDATED),
        ("Warning", '199 - "about 110 things"', READY),
        ("Cache-Status", "origin; fwd=miss, edge; hit; ttl=30", OUTDATED),
        ("Cache-Status", "edge; fwd=uri-miss; stored", READY),
        ("X-Cache", "Hit from cloudfront", OUTDATED),
        ("X-Cache", "RefreshHit from cloudfront", READY),
        ("X-Cache", "MISS from hit.example", READY),
        ("X-Cache", "MISS from hit.example, HIT from miss.example", OUTDATED),
        ("X-Cache", "cache-hit", OUTDATED),
        ("CF-Cache-Status", "STALE", OUTDATED),
        ("X-Cache-Status", "UPDATING", OUTDATED),
    ],
)
def test_a_response_of_a_cache_is_failed_if_fresh_is_set(
    check: CheckRunner, name: str, value: str, verdict: ExpectedVerdict
) -> None:
    with HttpBackend(f"HTTP/1.1 200 OK\r\n{name}: {value}\r\nContent-Length: 0\r\n\r\n".encode()) as backend:
        assert check(f"http://{backend.address}", fresh=True) == verdict
        assert check(f"http://{backend.address}") == READY
