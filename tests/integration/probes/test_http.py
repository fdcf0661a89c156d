"""HTTP probes against real servers: requests, responses, redirects, TLS."""

from __future__ import annotations

import asyncio
import base64
import gzip
import re
import ssl
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import OptionError
from svcnode.core.model import Outcome, Verdict
from svcnode.net.http_response import MAX_BODY_BYTES, MAX_HEAD_BYTES
from svcnode.probes import make_probe
from svcnode.probes.run import run_check
from tests.support.backends import (
    CONTINUE,
    Backend,
    HttpBackend,
    Peer,
    ReceivedRequest,
    closed_port,
    http_response,
    server_tls,
)
from tests.support.certificates import Certificate, make_certificate
from tests.support.http_server import WAIT_TIMEOUT_S
from tests.support.nginx_proxy import nginx_cache
from tests.support.probe_assertions import INCOMPLETE_RESPONSE
from tests.support.servers.http_request import http_request
from tests.support.verdicts import (
    EXPIRES_SOON,
    PROTOCOL_ERROR,
    READY,
    TLS_UNTRUSTED,
    UNEXPECTED_RESPONSE,
    ExpectedVerdict,
    failed,
    not_ready,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.check_runner import CheckRunner

STARTING = not_ready(ReasonCode.STARTING)
TIMEOUT = failed(ReasonCode.TIMEOUT)
REDIRECTED = failed(ReasonCode.REDIRECTED)
SERVER_ERROR = failed(ReasonCode.SERVER_ERROR)


# ---- requests


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


def test_special_characters_in_the_url_are_percent_encoded(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        assert check(f"http://{backend.address}/a b/ü%20?q=日") == READY
        assert backend.last_request.target == "/a%20b/%C3%BC%20?q=%E6%97%A5"


def test_method_headers_and_body_are_options(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        options = {"method": "PUT", "headers": {"X-Api-Key": "k1", "Content-Type": "text/plain"}, "body": "grüß dich"}
        assert check(f"http://{backend.address}", **options) == READY
        assert backend.last_request.method == "PUT"
        assert backend.last_request.headers["x-api-key"] == "k1"
        assert backend.last_request.headers["content-type"] == "text/plain"
        assert backend.last_request.body == "grüß dich".encode()


def test_a_configured_header_replaces_the_default(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        assert check(f"http://{backend.address}", headers={"host": "shop.example", "USER-AGENT": "me"}) == READY
        assert backend.last_request.headers["host"] == "shop.example"
        assert backend.last_request.headers["user-agent"] == "me"


def test_the_user_of_the_url_is_sent_as_basic_authorization(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        assert check(f"http://reader:p%40ss:w%C3%B6rd@{backend.address}/") == READY
        kind, _, token = backend.last_request.headers["authorization"].partition(" ")
        assert (kind, base64.b64decode(token).decode()) == ("Basic", "reader:p@ss:wörd")
        assert backend.last_request.headers["host"] == backend.address


# ---- status


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


def test_a_starting_status_is_not_ready(check: CheckRunner) -> None:
    with HttpBackend(http_response(503)) as backend:
        assert check(f"http://{backend.address}/", starting_status=[503, "4xx"]) == STARTING


def test_a_body_that_matches_starting_json_is_not_ready(check: CheckRunner) -> None:
    options = {"json": {"/synced": True}, "starting_json": {"/synced": False, "/health": "healthy"}}
    with HttpBackend(http_response(200, '{"synced": false, "health": "healthy"}')) as backend:
        assert check(f"http://{backend.address}/", **options) == STARTING


def test_a_body_that_does_not_match_starting_json_is_ready(check: CheckRunner) -> None:
    with HttpBackend(http_response(200, '{"status": "ok"}')) as backend:
        assert check(f"http://{backend.address}/", starting_json={"/status": "syncing"}) == READY


def test_the_body_must_match_the_pattern(check: CheckRunner) -> None:
    with HttpBackend(http_response(200, "lag: 17 blocks")) as backend:
        assert check(f"http://{backend.address}/", matches=r"lag: \d{1,2} ") == READY
        assert check(f"http://{backend.address}/", matches=r"^lag: \d ") == UNEXPECTED_RESPONSE


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"x": 0, "x": 1}', "x"),
        (b'{"x": 1, "y": [{"z": 0, "z": 0}]}', "z"),
        (b'{"x": 1, "y": NaN}', "NaN"),
        (b'{"x": 1, "y": Infinity}', "Infinity"),
        (b'{"x": 1, "y": "\xff"}', "byte 15"),
        (b'{"x": 1} {}', "(char 9)"),
        (b"[" * 200_000, "nested"),
    ],
)
@pytest.mark.parametrize("option", ["json", "starting_json"])
def test_ambiguous_json_is_failed(check: CheckRunner, body: bytes, detail: str, option: str) -> None:
    with HttpBackend(http_response(200, body)) as backend:
        verdict = check(f"http://{backend.address}/", **{option: {"/x": 1}})
    assert verdict == UNEXPECTED_RESPONSE
    assert detail in verdict.reason


def test_a_body_of_any_depth_gives_a_verdict(check: CheckRunner) -> None:
    # The limit depends on the interpreter. Just below it, a body can be parsed but not formatted.
    depths = (*range(850, 1000, 5), 9000, 99000)
    bodies = {f"/{depth}": b'{"x": %s%s}' % (b"[" * depth, b"]" * depth) for depth in depths}

    async def scenario(url: str) -> set[Outcome]:
        return {(await make_probe({"url": url + target, "json": {"/x": 1}}).check()).outcome for target in bodies}

    with HttpBackend(lambda request: http_response(200, bodies[request.target])) as backend:
        assert check.run(scenario(f"http://{backend.address}")) == {Outcome.FAILED}


# ---- forms of a response


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
WELL_FORMED = {
    "content-length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "chunked": CHUNKED + b"2\r\nhe\r\n3;ext=1\r\nllo\r\n0\r\nTrailer: x\r\n\r\n",
    "until EOF": b"HTTP/1.1 200 OK\r\n\r\nhello",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\n\r\nhello",
    "after a 100": CONTINUE + b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "after a 100 and a 103": CONTINUE
    + b"HTTP/1.1 103 Early Hints\r\nContent-Length: 99\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\n\r\nhello",
    "without a reason phrase": b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello",
    "with extra data": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello, and more",
    "LF only": b"HTTP/1.1 200 OK\nContent-Length: 5\n\nhello",
    "one length twice": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "gzip": http_response(200, gzip.compress(b"hello"), Content_Encoding="gzip"),
}


@pytest.mark.parametrize("response", WELL_FORMED.values(), ids=WELL_FORMED)
def test_a_complete_response_is_parsed_in_each_form(check: CheckRunner, response: bytes) -> None:
    with HttpBackend(response) as backend:
        assert check(f"http://{backend.address}", matches="hello") == READY
        assert check(f"http://{backend.address}") == READY


@pytest.mark.parametrize(
    "response", [b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 304 Same\r\nContent-Length: 5\r\n\r\n"]
)
def test_a_response_without_a_body_is_complete_after_its_head(check: CheckRunner, response: bytes) -> None:
    def keep_open(peer: Peer) -> None:
        ReceivedRequest.read(peer)
        peer.send(response)

    with Backend(keep_open) as backend:
        assert check(f"http://{backend.address}", status="2xx" if b"204" in response else 304, matches="^$") == READY


def test_the_response_to_head_has_no_body_with_any_content_length(check: CheckRunner) -> None:
    with HttpBackend(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n") as backend:
        assert check(f"http://{backend.address}", method="HEAD") == READY
        assert backend.last_request.method == "HEAD"


def test_a_check_does_not_wait_for_an_unneeded_body(check: CheckRunner) -> None:
    def send_endlessly(peer: Peer) -> None:
        ReceivedRequest.read(peer)
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\nhel")

    with Backend(send_endlessly) as backend:
        assert check(f"http://{backend.address}") == READY
        assert check.times_out(f"http://{backend.address}", "exchange", contains="hello") == TIMEOUT


def test_a_server_that_switches_protocols_is_failed(check: CheckRunner) -> None:
    with HttpBackend(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x00") as backend:
        assert check(f"http://{backend.address}/") == UNEXPECTED_RESPONSE


BROKEN = {
    "nothing": (b"", INCOMPLETE_RESPONSE),
    "half a head": (b"HTTP/1.1 200 OK\r\nContent-Le", INCOMPLETE_RESPONSE),
    "only a 100": (CONTINUE, INCOMPLETE_RESPONSE),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n", PROTOCOL_ERROR),
    "HTML": (b"<html>hello</html>\n", PROTOCOL_ERROR),
    "no number": (b"HTTP/1.1 OK\r\n\r\n", PROTOCOL_ERROR),
    "two lengths": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        PROTOCOL_ERROR,
    ),
}
BROKEN_BODIES = {
    "short body": (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello", INCOMPLETE_RESPONSE),
    "short chunk": (CHUNKED + b"ff\r\nhello", INCOMPLETE_RESPONSE),
    "no last chunk": (CHUNKED + b"5\r\nhello\r\n", INCOMPLETE_RESPONSE),
    "bad chunk": (CHUNKED + b"5\r\nhello\r\nzz\r\n", PROTOCOL_ERROR),
}


@pytest.mark.parametrize(("response", "verdict"), BROKEN.values(), ids=BROKEN)
def test_an_invalid_response_is_failed(check: CheckRunner, response: bytes, verdict: ExpectedVerdict) -> None:
    with HttpBackend(response) as backend:
        assert check(f"http://{backend.address}/") == verdict


@pytest.mark.parametrize(("response", "verdict"), BROKEN_BODIES.values(), ids=BROKEN_BODIES)
def test_an_incomplete_body_is_failed_if_it_is_needed(
    check: CheckRunner, response: bytes, verdict: ExpectedVerdict
) -> None:
    with HttpBackend(response) as backend:
        url = f"http://{backend.address}/"
        assert check(url, contains="hello") == verdict
        assert check(url) == READY


def head_of(size: int) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: %s\r\n\r\n"
    return head % (b"x" * (size - len(head % b""))) + b"hello"


@pytest.mark.parametrize("size", [MAX_HEAD_BYTES + 1, 4 * 1024 * 1024])
@pytest.mark.parametrize("options", [{}, {"contains": "hello"}])
def test_a_larger_head_is_failed(check: CheckRunner, size: int, options: dict[str, str]) -> None:
    with HttpBackend(head_of(size)) as backend:
        assert check(f"http://{backend.address}/", **options) == UNEXPECTED_RESPONSE


def test_a_body_is_read_up_to_the_limit(check: CheckRunner) -> None:
    with HttpBackend(http_response(200, b"x" * (MAX_BODY_BYTES - 5) + b"hello")) as backend:
        assert check(f"http://{backend.address}/", contains="hello") == READY


def test_a_larger_body_is_failed_if_it_is_needed(check: CheckRunner) -> None:
    with HttpBackend(http_response(200, b"hello" + b"x" * MAX_BODY_BYTES)) as backend:
        url = f"http://{backend.address}/"
        assert check(url, contains="hello") == UNEXPECTED_RESPONSE
        assert check(url) == READY


# ---- redirects


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


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed_up_to_their_limit(check: CheckRunner, status: int) -> None:
    with HttpBackend(redirecting({"/1": "/2", "/2": "/3", "/3": "/4"}, status=status)) as backend:
        assert check(f"http://{backend.address}/1", redirects=3, contains="page /4") == READY
        verdict = check(f"http://{backend.address}/1", redirects=2)
    assert verdict == REDIRECTED
    assert f"http://{backend.address}/4" in verdict.reason


@pytest.mark.parametrize(
    ("location", "target"),
    [
        ("/there", "/there"),
        ("there?x=y", "/a/there?x=y"),
        ("../there", "/there"),
        ("?x=y", "/a/b?x=y"),
        ("/there#part", "/there"),
        ("/th%65re", "/th%65re"),
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
        "http://[::1/",
        "http://127.0.0.1:99999/",
        "http://a..b/",
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


def test_a_redirect_to_the_same_origin_keeps_headers_and_body(check: CheckRunner) -> None:
    with HttpBackend(redirecting({"/": "/there"}, status=307)) as backend:
        assert check(f"http://{backend.address}/", redirects=1, **SECRETS) == READY
        assert backend.last_request.target == "/there"
        assert backend.last_request.headers["x-api-key"] == "hidden"
        assert backend.last_request.headers["authorization"] == "Bearer swordfish"
        assert backend.last_request.body == b"secret"


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_redirect_after_a_post_is_followed_with_a_get(check: CheckRunner, status: int) -> None:
    with HttpBackend(redirecting({"/": "/there"}, status=status)) as backend:
        assert check(f"http://{backend.address}/", redirects=1, **SECRETS) == READY
        assert (backend.last_request.method, backend.last_request.target, backend.last_request.body) == (
            "GET",
            "/there",
            b"",
        )
        assert backend.last_request.headers["authorization"] == "Bearer swordfish"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_redirect_to_another_origin_has_no_credentials(check: CheckRunner, host: str) -> None:
    # Another port of the same host, or another name of it, is another origin.
    with (
        HttpBackend(http_response(200)) as other,
        HttpBackend(redirecting({"/": f"http://{host}:{other.port}/there"})) as home,
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


def test_a_user_in_a_redirect_is_neither_sent_nor_a_secret(check: CheckRunner) -> None:
    with (
        HttpBackend(http_response(500)) as other,
        HttpBackend(redirecting({"/": f"http://me:status@{other.address}/there"})) as home,
    ):
        verdict = check(f"http://{home.address}/", redirects=1)
        assert "authorization" not in other.last_request.headers
        assert verdict == SERVER_ERROR
        verdict = check.with_timeout(WAIT_TIMEOUT_S, f"http://{other.address}/")  # redacts the secrets
        assert "status" in verdict.reason


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


def test_https_with_a_trusted_certificate_is_ready(check: CheckRunner, certificate: Certificate) -> None:
    with HttpBackend(http_response(200, "hello"), tls=server_tls(certificate)) as backend:
        url, ca = f"https://{backend.address}/", str(certificate.certificate)
        assert check(url, ca=ca, contains="hello") == READY
        assert check(url) == TLS_UNTRUSTED


def test_a_certificate_that_expires_soon_is_not_ready(check: CheckRunner, certificate: Certificate) -> None:
    with HttpBackend(lambda request: http_response(int(request.target[1:])), tls=server_tls(certificate)) as backend:
        url, ca = f"https://{backend.address}", str(certificate.certificate)
        assert check(f"{url}/200", ca=ca, min_cert_days=1) == EXPIRES_SOON
        assert check(f"{url}/500", ca=ca, min_cert_days=1) == SERVER_ERROR


@pytest.mark.parametrize("status", [99, 600, True, "6xx", "2x", "20", "200-", "204-200", "abc", 200.0, {}, [200, "x"]])
def test_an_invalid_status_is_rejected(status: Any) -> None:
    with pytest.raises(OptionError) as caught:
        make_probe({"url": "http://127.0.0.1/", "status": status})
    assert caught.value.option == "status"


@pytest.mark.parametrize(
    "options",
    [
        {"method": "get"},
        {"method": "HEAD", "contains": "x"},
        {"starting_status": 200},
        {"headers": {"a b": "x"}},
        {"headers": {"A": "x\r\nB: y"}},
        {"headers": {"A": "日"}},
        {"bearer": "x\ny"},
        {"json": {"status": "ok"}},
        {"ca": "ca.pem"},
    ],
)
def test_an_invalid_option_is_named(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError) as caught:
        make_probe({"url": "http://127.0.0.1/", **options})
    assert caught.value.option == next(iter(options))


def test_a_slow_pattern_times_out_and_does_not_block_the_loop(check: CheckRunner) -> None:
    async def scenario(url: str) -> tuple[Verdict, int]:
        iterations = 0

        async def count_iterations() -> None:
            nonlocal iterations
            while True:
                await asyncio.sleep(0.01)
                iterations += 1

        counting = asyncio.create_task(count_iterations())
        verdict, _ = await run_check(make_probe({"url": url, "matches": SLOW_PATTERN}), WAIT_TIMEOUT_S)
        counting.cancel()
        return verdict, iterations

    with HttpBackend(http_response(200, "a" * 40)) as backend:
        verdict, iterations = check.run(scenario(f"http://{backend.address}/"))
    assert verdict == UNEXPECTED_RESPONSE
    assert SLOW_PATTERN in verdict.reason
    assert iterations, "the event loop was blocked"


SLOW_PATTERN = "(a|a)*b|(a|a)*c"


OUTDATED = failed(ReasonCode.OUTDATED_RESPONSE)


@contextmanager
def dead_origin_behind_a_cache(folder: Path, **options: str) -> Iterator[str]:
    """The URL at nginx, which has cached one response. The origin refuses connections since."""
    with closed_port() as origin_port:
        pass
    with nginx_cache(folder, origin_port, **options) as port:
        with Backend(respond_once, port=origin_port):
            assert http_request(port, "/health") == (200, "ok")
        yield f"http://127.0.0.1:{port}/health"


def respond_once(peer: Peer) -> None:
    ReceivedRequest.read(peer)
    peer.send(http_response(200, "ok"))
    peer.shutdown_write()


def test_a_server_with_http2_only_is_failed_with_the_option_for_it(check: CheckRunner) -> None:
    settings = bytes.fromhex("000006 04 00 00000000 0003 00000064")
    with HttpBackend(settings) as backend:
        verdict = check(f"http://{backend.address}")
    assert verdict == PROTOCOL_ERROR
    assert "http2 = true" in verdict.reason


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
        ("Cache-Status", "edge; hit", OUTDATED),
        ("Cache-Status", "origin; fwd=miss, edge; hit; ttl=30", OUTDATED),
        ("Cache-Status", "edge; fwd=uri-miss; stored", READY),
        ("X-Cache", "HIT", OUTDATED),
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
