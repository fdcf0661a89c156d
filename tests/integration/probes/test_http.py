"""http:// and https:// against real servers: what counts as an answer, and what is made of it."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.errors import OptionError, ProbeError
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
    close,
    closed_port,
    full_backlog,
    http_response,
    reissued,
    reset,
    sending,
    server_tls,
    unresponsive,
)
from tests.support.certificates import Certificate, make_certificate
from tests.support.probe_assertions import INCOMPLETE_RESPONSE
from tests.support.processes import has_ipv6
from tests.support.verdicts import NO_DESCRIPTORS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.probes.conftest import CheckRunner

READY = Verdict.ready()


def as_json(document: object) -> bytes:
    return http_response(200, json.dumps(document), Content_Type="application/json")


# ---- what is asked


def test_a_server_that_answers_200_is_ready(check: CheckRunner) -> None:
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


def test_a_url_without_a_path_asks_for_the_root(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        check(f"http://{backend.address}")
        check(f"http://{backend.address}?x=y")
        assert [request.target for request in backend.requests] == ["/", "/?x=y"]


def test_what_no_request_can_hold_as_it_is_goes_in_its_percent_form(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        assert check(f"http://{backend.address}/a b/ü%20?q=日") == READY
        assert backend.last_request.target == "/a%20b/%C3%BC%20?q=%E6%97%A5"


def test_a_name_is_told_to_the_server_as_it_was_written(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        assert check(f"http://localhost:{backend.port}") == READY
        assert backend.last_request.headers["host"] == f"localhost:{backend.port}"


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_an_ipv6_address_stands_in_brackets(check: CheckRunner) -> None:
    with HttpBackend(http_response(200), host="::1") as backend:
        assert check(f"http://[::1]:{backend.port}") == READY
        assert backend.last_request.headers["host"] == f"[::1]:{backend.port}"


def test_the_method_the_headers_and_the_body_may_be_chosen(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        options = {"method": "PUT", "headers": {"X-Api-Key": "k1", "Content-Type": "text/plain"}, "body": "grüß dich"}
        assert check(f"http://{backend.address}", **options) == READY
        assert backend.last_request.method == "PUT"
        assert backend.last_request.headers["x-api-key"] == "k1"
        assert backend.last_request.headers["content-type"] == "text/plain"
        assert backend.last_request.body == "grüß dich".encode()


def test_a_body_may_be_any_bytes(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        assert check(f"http://{backend.address}", method="POST", body={"hex": "00 ff"}) == READY
        assert backend.last_request.body == b"\x00\xff"


def test_a_header_of_the_operator_takes_the_place_of_ours(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        assert check(f"http://{backend.address}", headers={"host": "shop.example", "USER-AGENT": "me"}) == READY
        assert backend.last_request.headers["host"] == "shop.example"
        assert backend.last_request.headers["user-agent"] == "me"


def test_a_user_of_the_url_is_sent_as_basic_authorization(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        assert check(f"http://reader:p%40ss:w%C3%B6rd@{backend.address}/") == READY
        kind, _, token = backend.last_request.headers["authorization"].partition(" ")
        assert (kind, base64.b64decode(token).decode()) == ("Basic", "reader:p@ss:wörd")
        assert backend.last_request.headers["host"] == backend.address


def test_a_bearer_token_is_sent(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        assert check(f"http://{backend.address}", bearer="swordfish") == READY
        assert backend.last_request.headers["authorization"] == "Bearer swordfish"


def test_no_reason_holds_a_password_or_what_stands_in_the_query(check: CheckRunner) -> None:
    with HttpBackend(http_response(500)) as backend:
        assert check(f"http://reader:swordfish@{backend.address}/x?key=hush") == Verdict.failed(
            f"answered 500: http://reader:***@{backend.address}/x?***"
        )


# ---- the status


@pytest.mark.parametrize(
    ("status", "answered", "outcome"),
    [
        (None, 200, Outcome.READY),
        (None, 204, Outcome.READY),
        (None, 299, Outcome.READY),
        (None, 300, Outcome.FAILED),
        (None, 404, Outcome.FAILED),
        (None, 503, Outcome.FAILED),
        (401, 401, Outcome.READY),
        (401, 200, Outcome.FAILED),
        ("418", 418, Outcome.READY),
        ("4xx", 400, Outcome.READY),
        ("4xx", 499, Outcome.READY),
        ("4xx", 500, Outcome.FAILED),
        ("200-204", 200, Outcome.READY),
        ("200-204", 204, Outcome.READY),
        ("200-204", 205, Outcome.FAILED),
        ([200, "301-302", "4xx"], 302, Outcome.READY),
        ([200, "301-302", "4xx"], 404, Outcome.READY),
        ([200, "301-302", "4xx"], 201, Outcome.FAILED),
    ],
)
def test_the_status_decides(check: CheckRunner, status: Any, answered: int, outcome: Outcome) -> None:
    options = {} if status is None else {"status": status}
    with HttpBackend(http_response(answered)) as backend:
        verdict = check(f"http://{backend.address}", **options)
    assert verdict.outcome is outcome
    assert outcome is Outcome.READY or verdict.reason.startswith(f"answered {answered}")


def test_a_status_of_starting_is_not_ready(check: CheckRunner) -> None:
    with HttpBackend(http_response(503)) as backend:
        assert check(f"http://{backend.address}/", starting_status=[503, "4xx"]) == Verdict.not_ready(
            f"answered 503, so it is starting: http://{backend.address}/"
        )


def test_a_status_of_starting_needs_no_body(check: CheckRunner) -> None:
    with HttpBackend(http_response(503, "wait")) as backend:
        verdict = check(f"http://{backend.address}/", starting_status=503, contains="ready")
    assert verdict.outcome is Outcome.NOT_READY


def test_a_body_that_says_that_it_is_starting_is_not_ready(check: CheckRunner) -> None:
    options = {"json": {"/synced": True}, "starting_json": {"/synced": False, "/health": "healthy"}}
    with HttpBackend(http_response(200, '{"synced": false, "health": "healthy"}')) as backend:
        assert check(f"http://{backend.address}/", **options) == Verdict.not_ready(
            f"answered 200, and says that it is starting: http://{backend.address}/"
        )


@pytest.mark.parametrize("body", ['{"synced": false, "health": "failed"}', '{"synced": false}', "[]", "no JSON"])
def test_a_body_that_says_only_half_of_it_has_failed(check: CheckRunner, body: str) -> None:
    options = {"json": {"/synced": True}, "starting_json": {"/synced": False, "/health": "healthy"}}
    with HttpBackend(http_response(200, body)) as backend:
        assert check(f"http://{backend.address}/", **options).outcome is Outcome.FAILED


def test_a_body_that_does_not_say_that_it_is_starting_is_judged_as_any(check: CheckRunner) -> None:
    with HttpBackend(http_response(200, '{"status": "ok"}')) as backend:
        assert check(f"http://{backend.address}/", starting_json={"/status": "syncing"}) == READY


# ---- the body


def test_the_body_may_have_to_hold_something(check: CheckRunner) -> None:
    with HttpBackend(http_response(200, "grüß dich, all is well")) as backend:
        assert check(f"http://{backend.address}/", contains="grüß") == READY
        assert check(f"http://{backend.address}/", contains="All") == Verdict.failed(
            f'answered 200, but its body does not hold "All": http://{backend.address}/'
        )


def test_the_body_may_have_to_match_a_pattern(check: CheckRunner) -> None:
    with HttpBackend(http_response(200, "lag: 17 blocks")) as backend:
        assert check(f"http://{backend.address}/", matches=r"lag: \d{1,2} ") == READY
        assert check(f"http://{backend.address}/", matches=r"^lag: \d ") == Verdict.failed(
            rf'answered 200, but its body does not match "^lag: \d ": http://{backend.address}/'
        )


def test_a_body_that_is_no_text_is_searched_all_the_same(check: CheckRunner) -> None:
    with HttpBackend(http_response(200, b"\xff\xfe ok \x00")) as backend:
        assert check(f"http://{backend.address}/", contains=" ok ") == READY


def test_the_body_may_have_to_hold_values_at_json_pointers(check: CheckRunner) -> None:
    document = {"status": "ok", "peers": [{"id": 7}], "a/b": {"~": None}, "lag": 1.0, "": True}
    with HttpBackend(as_json(document)) as backend:
        url = f"http://{backend.address}/"
        assert check(url, json={"/status": "ok", "/peers/0/id": 7, "/lag": 1, "/": True}) == READY
        assert check(url, json={"/a~1b": {"~": None}, "/a~1b/~0": None}) == READY
        assert check(url, json={"": document}) == READY


@pytest.mark.parametrize(
    ("expected", "fault"),
    [
        ({"/status": "down"}, '/status is "ok", expected "down"'),
        ({"/flag": 1}, "/flag is true, expected 1"),
        ({"/gone": None}, "there is no /gone"),
        ({"/peers/1": 7}, "there is no /peers/1"),
        ({"/peers/00": 7}, "there is no /peers/00"),
        ({"/peers/-1": 7}, "there is no /peers/-1"),
        ({"/status/x": 7}, "there is no /status/x"),
        ({"": []}, 'the whole is {"status": "ok", "flag": true, "peers": [7]}, expected []'),
    ],
)
def test_another_value_at_a_json_pointer_is_failed(check: CheckRunner, expected: dict[str, Any], fault: str) -> None:
    with HttpBackend(as_json({"status": "ok", "flag": True, "peers": [7]})) as backend:
        assert check(f"http://{backend.address}/", json=expected) == Verdict.failed(
            f"answered 200, but {fault}: http://{backend.address}/"
        )


@pytest.mark.parametrize("body", [b"", b"ok", b"\xff", b"9" * 5000, b"NaN"])
def test_a_body_that_is_not_json_is_failed(check: CheckRunner, body: bytes) -> None:
    with HttpBackend(http_response(200, body)) as backend:
        assert check(f"http://{backend.address}/", json={"/x": 1}) == Verdict.failed(
            f"answered 200, but its body is not JSON: http://{backend.address}/"
        )


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"x": 0, "x": 1}', "the field x stands there twice"),
        (b'{"x": 1, "y": [{"z": 0, "z": 0}]}', "the field z stands there twice"),
        (b'{"x": 1, "y": NaN}', "NaN is not of JSON"),
        (b'{"x": 1, "y": Infinity}', "Infinity is not of JSON"),
        (b'{"x": 1, "y": "\xff"}', "byte 15 is not UTF-8"),
        (b'{"x": 1} {}', "Extra data: line 1 column 10 (char 9)"),
        (b"[" * 200_000, "it is nested too deeply"),
    ],
)
@pytest.mark.parametrize("option", ["json", "starting_json"])
def test_a_body_that_could_be_read_in_two_ways_is_failed(
    check: CheckRunner, body: bytes, why: str, option: str
) -> None:
    with HttpBackend(http_response(200, body)) as backend:
        assert check(f"http://{backend.address}/", **{option: {"/x": 1}}) == Verdict.failed(
            f"answered 200, but its body is not JSON: {why}: http://{backend.address}/"
        )


def test_where_json_only_says_that_it_is_starting_a_body_of_words_is_judged_as_any(check: CheckRunner) -> None:
    with HttpBackend(http_response(200, "all is well")) as backend:
        assert check(f"http://{backend.address}/", starting_json={"/status": "syncing"}) == READY


def test_a_body_of_any_depth_gives_a_verdict(check: CheckRunner) -> None:
    # Where the limit lies depends on the interpreter; just below it, a body can be read but hardly be shown.
    bodies = {f"/{depth}": b'{"x": %s%s}' % (b"[" * depth, b"]" * depth) for depth in (*range(850, 1000), 9000, 99000)}

    async def story(url: str) -> set[Outcome]:
        return {(await make_probe({"url": url + target, "json": {"/x": 1}}).check()).outcome for target in bodies}

    with HttpBackend(lambda request: http_response(200, bodies[request.target])) as backend:
        assert check.run(story(f"http://{backend.address}")) == {Outcome.FAILED}


def test_all_that_is_asked_of_a_body_must_hold(check: CheckRunner) -> None:
    with HttpBackend(as_json({"a": 1})) as backend:
        url = f"http://{backend.address}/"
        assert check(url, contains="a", matches="1", json={"/a": 1}) == READY
        assert check(url, contains="b", matches="1", json={"/a": 1}).outcome is Outcome.FAILED
        assert check(url, contains="a", matches="2", json={"/a": 1}).outcome is Outcome.FAILED
        assert check(url, contains="a", matches="1", json={"/a": 2}).outcome is Outcome.FAILED


# ---- forms that an answer can have


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
WELL_FORMED = {
    "with its length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "chunked": CHUNKED + b"2\r\nhe\r\n3;ext=1\r\nllo\r\n0\r\nTrailer: x\r\n\r\n",
    "up to the end": b"HTTP/1.1 200 OK\r\n\r\nhello",
    "of HTTP/1.0": b"HTTP/1.0 200 OK\r\n\r\nhello",
    "after a 100": CONTINUE + b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "after a 100 and a 103": CONTINUE
    + b"HTTP/1.1 103 Early Hints\r\nContent-Length: 99\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\n\r\nhello",
    "without a reason": b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello",
    "with more behind it": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello, and more",
}


@pytest.mark.parametrize("answer", WELL_FORMED.values(), ids=WELL_FORMED)
def test_a_whole_answer_is_understood_in_each_of_its_forms(check: CheckRunner, answer: bytes) -> None:
    with HttpBackend(answer) as backend:
        assert check(f"http://{backend.address}", matches="hello") == READY
        assert check(f"http://{backend.address}") == READY


def test_an_answer_may_come_byte_by_byte(check: CheckRunner) -> None:
    def dribbles(peer: Peer) -> None:
        ReceivedRequest.read(peer)
        for byte in WELL_FORMED["after a 100"]:
            peer.send(bytes([byte]))

    with Backend(dribbles) as backend:
        assert check(f"http://{backend.address}", contains="hello") == READY


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 304 Same\r\nContent-Length: 5\r\n\r\n"]
)
def test_an_answer_that_has_no_body_is_whole_with_its_head(check: CheckRunner, answer: bytes) -> None:
    def stays(peer: Peer) -> None:
        ReceivedRequest.read(peer)
        peer.send(answer)

    with Backend(stays) as backend:
        assert check(f"http://{backend.address}", status="2xx" if b"204" in answer else 304, matches="^$") == READY


def test_the_answer_to_head_has_no_body_whatever_length_it_names(check: CheckRunner) -> None:
    with HttpBackend(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n") as backend:
        assert check(f"http://{backend.address}", method="HEAD") == READY
        assert backend.last_request.method == "HEAD"


def test_a_body_that_nobody_asks_about_is_not_waited_for(check: CheckRunner) -> None:
    def never_ends(peer: Peer) -> None:
        ReceivedRequest.read(peer)
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\nhel")

    with Backend(never_ends) as backend:
        assert check(f"http://{backend.address}") == READY
        assert check.with_timeout(0.3, f"http://{backend.address}", contains="hello") == Verdict.failed(
            "no answer within 0.3 s, in its step exchange"
        )


def test_a_server_that_switches_protocols_has_not_answered_as_asked(check: CheckRunner) -> None:
    with HttpBackend(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x00") as backend:
        assert check(f"http://{backend.address}/") == Verdict.failed(f"answered 101: http://{backend.address}/")


BROKEN = {
    "nothing": (b"", INCOMPLETE_RESPONSE),
    "half a head": (b"HTTP/1.1 200 OK\r\nContent-Le", INCOMPLETE_RESPONSE),
    "only a 100": (CONTINUE, INCOMPLETE_RESPONSE),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n", "what came back is not HTTP"),
    "HTML": (b"<html>hello</html>\n", "what came back is not HTTP"),
    "no number": (b"HTTP/1.1 OK\r\n\r\n", "what came back is not HTTP"),
    "two lengths": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "what came back is not HTTP",
    ),
}
BROKEN_BODIES = {
    "short body": (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello", INCOMPLETE_RESPONSE),
    "short chunk": (CHUNKED + b"ff\r\nhello", INCOMPLETE_RESPONSE),
    "no last chunk": (CHUNKED + b"5\r\nhello\r\n", INCOMPLETE_RESPONSE),
    "bad chunk": (CHUNKED + b"5\r\nhello\r\nzz\r\n", "what came back is not HTTP"),
}


@pytest.mark.parametrize(("answer", "words"), BROKEN.values(), ids=BROKEN)
def test_what_is_no_answer_is_failed(check: CheckRunner, answer: bytes, words: str) -> None:
    with HttpBackend(answer) as backend:
        assert check(f"http://{backend.address}/") == Verdict.failed(f"{words}: http://{backend.address}/")


@pytest.mark.parametrize(("answer", "words"), BROKEN_BODIES.values(), ids=BROKEN_BODIES)
def test_a_body_that_is_not_whole_is_failed_where_it_counts(check: CheckRunner, answer: bytes, words: str) -> None:
    with HttpBackend(answer) as backend:
        url = f"http://{backend.address}/"
        assert check(url, contains="hello") == Verdict.failed(f"{words}: {url}")
        assert check(url) == READY


def head_of(size: int) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: %s\r\n\r\n"
    return head % (b"x" * (size - len(head % b""))) + b"hello"


def test_a_head_is_read_up_to_the_limit(check: CheckRunner) -> None:
    with HttpBackend(head_of(MAX_HEAD_BYTES)) as backend:
        assert check(f"http://{backend.address}/", contains="hello") == READY


@pytest.mark.parametrize("size", [MAX_HEAD_BYTES + 1, 4 * 1024 * 1024])
@pytest.mark.parametrize("options", [{}, {"contains": "hello"}])
def test_a_larger_head_is_failed(check: CheckRunner, size: int, options: dict[str, str]) -> None:
    with HttpBackend(head_of(size)) as backend:
        assert check(f"http://{backend.address}/", **options) == Verdict.failed(
            f"the head of its answer is larger than 64 KiB: http://{backend.address}/"
        )


def test_a_head_that_never_ends_is_failed(check: CheckRunner) -> None:
    def never_ends(peer: Peer) -> None:
        while True:
            peer.send(CONTINUE * 100)

    with Backend(never_ends) as backend:
        assert check(f"http://{backend.address}/") == Verdict.failed(
            f"the head of its answer is larger than 64 KiB: http://{backend.address}/"
        )


def test_a_body_is_read_up_to_the_limit(check: CheckRunner) -> None:
    with HttpBackend(http_response(200, b"x" * (MAX_BODY_BYTES - 5) + b"hello")) as backend:
        assert check(f"http://{backend.address}/", contains="hello") == READY


def test_a_larger_body_is_failed_where_it_counts(check: CheckRunner) -> None:
    with HttpBackend(http_response(200, b"hello" + b"x" * MAX_BODY_BYTES)) as backend:
        url = f"http://{backend.address}/"
        assert check(url, contains="hello") == Verdict.failed(f"the body of its answer is larger than 1024 KiB: {url}")
        assert check(url) == READY


@pytest.mark.parametrize("head", [CHUNKED, b"HTTP/1.0 200 OK\r\n\r\n"], ids=["chunked", "up to the end"])
def test_a_body_that_never_ends_is_failed(check: CheckRunner, head: bytes) -> None:
    def never_ends(peer: Peer) -> None:
        ReceivedRequest.read(peer)
        peer.send(head)
        while True:
            peer.send(b"5\r\nhello\r\n" * 1000)

    with Backend(never_ends) as backend:
        url = f"http://{backend.address}/"
        assert check(url, contains="hello") == Verdict.failed(f"the body of its answer is larger than 1024 KiB: {url}")


# ---- no connection


def test_a_port_that_refuses_is_failed(check: CheckRunner) -> None:
    with closed_port() as port:
        url = f"http://127.0.0.1:{port}/"
        assert check(url) == Verdict.failed(f"connection refused: {url}")


def test_a_connection_that_is_reset_is_failed(check: CheckRunner) -> None:
    def breaks_off(peer: Peer) -> None:
        ReceivedRequest.read(peer)
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello")
        peer.reset()

    with Backend(breaks_off) as backend:
        url = f"http://{backend.address}/"
        assert check(url, contains="hello") == Verdict.failed(f"connection reset by peer: {url}")


@pytest.mark.parametrize("script", [close, reset])
def test_a_server_that_says_nothing_and_goes_is_failed(check: CheckRunner, script: Callable[[Peer], None]) -> None:
    with Backend(script) as backend:
        assert check(f"http://{backend.address}").outcome is Outcome.FAILED


def test_a_mute_server_is_failed_at_the_deadline(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert check.with_timeout(0.3, f"http://{backend.address}") == Verdict.failed(
            "no answer within 0.3 s, in its step exchange"
        )


def test_running_out_of_file_descriptors_is_our_own_fault(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        assert check.without_descriptors(f"http://{backend.address}") == (NO_DESCRIPTORS, READY)


def test_running_out_of_file_descriptors_does_not_make_us_forget_whom_to_trust(
    check: CheckRunner, certificate: Certificate
) -> None:
    # The authorities of the machine are read from files as well.
    with HttpBackend(http_response(200), tls=server_tls(certificate)) as backend:
        url, trusted = f"https://{backend.address}", str(certificate.certificate)
        assert check.without_descriptors(url, SSL_CERT_FILE=trusted) == (NO_DESCRIPTORS, READY)


# ---- redirects


def redirecting(pages: dict[str, str], *, status: int = 302) -> Callable[[ReceivedRequest], bytes]:
    def answer(request: ReceivedRequest) -> bytes:
        if request.target in pages:
            return http_response(status, Location=pages[request.target])
        return http_response(200, f"this is {request.target}")

    return answer


def test_a_redirect_is_not_followed_unasked(check: CheckRunner) -> None:
    with HttpBackend(redirecting({"/": "/there"})) as backend:
        assert check(f"http://{backend.address}/") == Verdict.failed(
            f"answered 302, a redirect to http://{backend.address}/there: http://{backend.address}/"
        )
        assert check(f"http://{backend.address}/", status="3xx", redirects=5) == READY
        assert [request.target for request in backend.requests] == ["/", "/"]


@pytest.mark.parametrize(
    ("location", "told"),
    [
        ("https://me:word@login.example/in?ticket=hush#part", " to https://login.example/in"),
        (f"http://login.example/{'x' * 300}", f" to http://login.example/{'x' * 179}"),
        ("mailto:me@node.example", ""),
        ("", " that names no place"),
    ],
)
def test_where_a_redirect_leads_is_told_without_what_may_be_a_secret(
    check: CheckRunner, location: str, told: str
) -> None:
    with HttpBackend(redirecting({"/": location})) as backend:
        assert check(f"http://{backend.address}/") == Verdict.failed(
            f"answered 302, a redirect{told}: http://{backend.address}/"
        )


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed_up_to_their_limit(check: CheckRunner, status: int) -> None:
    with HttpBackend(redirecting({"/1": "/2", "/2": "/3", "/3": "/4"}, status=status)) as backend:
        assert check(f"http://{backend.address}/1", redirects=3, contains="this is /4") == READY
        assert check(f"http://{backend.address}/1", redirects=2) == Verdict.failed(
            f"answered {status}, a redirect past the limit, to http://{backend.address}/4: http://{backend.address}/3"
        )


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


def test_a_loop_of_redirects_ends_at_the_limit(check: CheckRunner) -> None:
    with HttpBackend(redirecting({"/1": "/2", "/2": "/1"})) as backend:
        assert check(f"http://{backend.address}/1", redirects=7) == Verdict.failed(
            f"answered 302, a redirect past the limit, to http://{backend.address}/1: http://{backend.address}/2"
        )
        assert len(backend.requests) == 8


@pytest.mark.parametrize(
    "location",
    [
        "ftp://127.0.0.1/",
        "mailto:me@node.example",
        "file:///etc/passwd",
        "http://[::1/",
        "http://127.0.0.1:99999/",
        "http://127.0.0.1:http/",
        "http://a..b/",
        "http://a%0d%0aX-Evil:%201/",
        "http://%e6%97%a5/",
        "http://" + "x" * 70 + ".example/",
    ],
)
def test_a_redirect_to_what_is_no_http_url_is_failed(check: CheckRunner, location: str) -> None:
    with HttpBackend(redirecting({"/1": location})) as backend:
        assert check(f"http://{backend.address}/1", redirects=1) == Verdict.failed(
            f"it redirects to what is no http URL: http://{backend.address}/1"
        )


def test_a_redirect_that_names_no_place_is_the_answer(check: CheckRunner) -> None:
    with HttpBackend(http_response(302)) as backend:
        assert check(f"http://{backend.address}/", redirects=3) == Verdict.failed(
            f"answered 302, a redirect that names no place: http://{backend.address}/"
        )
        assert len(backend.requests) == 1


SECRETS: dict[str, Any] = {"method": "POST", "headers": {"X-Api-Key": "hush"}, "bearer": "swordfish", "body": "secret"}


def test_a_redirect_at_home_keeps_what_was_to_be_sent(check: CheckRunner) -> None:
    with HttpBackend(redirecting({"/": "/there"}, status=307)) as backend:
        assert check(f"http://{backend.address}/", redirects=1, **SECRETS) == READY
        assert backend.last_request.target == "/there"
        assert backend.last_request.headers["x-api-key"] == "hush"
        assert backend.last_request.headers["authorization"] == "Bearer swordfish"
        assert backend.last_request.body == b"secret"


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_redirect_after_a_post_is_gone_to_with_a_get(check: CheckRunner, status: int) -> None:
    with HttpBackend(redirecting({"/": "/there"}, status=status)) as backend:
        assert check(f"http://{backend.address}/", redirects=1, **SECRETS) == READY
        assert (backend.last_request.method, backend.last_request.target, backend.last_request.body) == (
            "GET",
            "/there",
            b"",
        )
        assert backend.last_request.headers["authorization"] == "Bearer swordfish"


@pytest.mark.parametrize(("status", "method"), [(303, "HEAD"), (301, "HEAD"), (302, "PUT"), (308, "POST")])
def test_other_redirects_keep_the_method(check: CheckRunner, status: int, method: str) -> None:
    with HttpBackend(redirecting({"/": "/there"}, status=status)) as backend:
        assert check(f"http://{backend.address}/", redirects=1, method=method) == READY
        assert (backend.last_request.method, backend.last_request.target) == (method, "/there")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_redirect_to_another_origin_loses_what_only_home_may_see(check: CheckRunner, host: str) -> None:
    # Another port of the same host, or another name of it, is another origin.
    with (
        HttpBackend(http_response(200)) as stranger,
        HttpBackend(redirecting({"/": f"http://{host}:{stranger.port}/there"})) as home,
    ):
        assert check(f"http://{home.address}/", redirects=1, **SECRETS) == READY
        assert home.last_request.headers["authorization"] == "Bearer swordfish"
        assert stranger.last_request.target == "/there"
        assert stranger.last_request.headers == {
            "host": f"{host}:{stranger.port}",
            "user-agent": "svcnode",
            "accept": "*/*",
            "connection": "close",
        }
        assert stranger.last_request.body == b""


def test_a_user_of_the_url_is_not_shown_to_another_origin(check: CheckRunner) -> None:
    with (
        HttpBackend(http_response(200)) as stranger,
        HttpBackend(redirecting({"/": f"http://{stranger.address}/there"})) as home,
    ):
        assert check(f"http://reader:swordfish@{home.address}/", redirects=1) == READY
        assert "authorization" in home.last_request.headers
        assert "authorization" not in stranger.last_request.headers


def test_a_user_in_a_redirect_is_not_sent_and_is_no_secret_of_ours(check: CheckRunner) -> None:
    with (
        HttpBackend(http_response(500)) as stranger,
        HttpBackend(redirecting({"/": f"http://me:answered@{stranger.address}/there"})) as home,
    ):
        verdict = check(f"http://{home.address}/", redirects=1)
        assert "authorization" not in stranger.last_request.headers
        assert verdict.reason.startswith("answered 500: ")
        assert check.with_timeout(1.0, f"http://{stranger.address}/") == Verdict.failed(
            f"answered 500: http://{stranger.address}/"
        )


def test_what_only_home_may_see_is_shown_again_when_a_redirect_leads_back(check: CheckRunner) -> None:
    pages: dict[str, str] = {}
    with HttpBackend(redirecting(pages)) as stranger, HttpBackend(redirecting(pages)) as home:
        pages.update({"/": f"http://{stranger.address}/away", "/away": f"http://{home.address}/there"})
        assert check(f"http://{home.address}/", redirects=2, **SECRETS) == READY
        assert "authorization" not in stranger.last_request.headers
        assert home.last_request.target == "/there"
        assert home.last_request.headers["authorization"] == "Bearer swordfish"


def test_a_redirect_may_lead_to_https(check: CheckRunner, certificate: Certificate) -> None:
    with (
        HttpBackend(http_response(200), tls=server_tls(certificate)) as encrypted,
        HttpBackend(redirecting({"/": f"https://{encrypted.address}/"})) as plain,
    ):
        assert check(f"http://{plain.address}/", redirects=1) == Verdict.failed(
            f"its certificate is not valid: self-signed certificate: https://{encrypted.address}/"
        )


def test_another_origin_sees_neither_the_certificate_nor_the_server_name_that_are_for_home(
    check: CheckRunner, certificate: Certificate, tmp_path: Path
) -> None:
    known = make_certificate(tmp_path, "known")
    names: list[str | None] = []
    shown: list[bool] = []
    tls = server_tls(certificate, clients=known.certificate)
    tls.verify_mode = ssl.CERT_OPTIONAL
    tls.sni_callback = lambda _sock, name, _context: names.append(name)
    pages: dict[str, str] = {}

    def answer(peer: Peer) -> None:
        assert isinstance(peer.sock, ssl.SSLSocket)
        shown.append(peer.sock.getpeercert(binary_form=True) is not None)
        peer.send(redirecting(pages)(ReceivedRequest.read(peer)))

    options = {"ca": str(certificate.certificate), "server_name": "localhost"}
    options |= {"client_certificate": str(known.certificate), "client_key": str(known.key)}
    with Backend(answer, tls=tls, host="127.0.0.2") as home, Backend(answer, tls=tls) as stranger:
        pages["/"] = f"https://{stranger.address}/there"
        assert check(f"https://{home.address}/", redirects=1, **options) == READY
    assert shown == [True, False]
    assert names == ["localhost", None]  # an address is no name


# ---- TLS


def test_https_is_ready_when_the_certificate_is_trusted(check: CheckRunner, certificate: Certificate) -> None:
    with HttpBackend(http_response(200, "hello"), tls=server_tls(certificate)) as backend:
        url, ca = f"https://{backend.address}/", str(certificate.certificate)
        assert check(url, ca=ca, contains="hello") == READY
        assert check(url) == Verdict.failed(f"its certificate is not valid: self-signed certificate: {url}")


def test_https_is_failed_when_the_certificate_is_over_or_for_another_name(
    check: CheckRunner, certificate: Certificate, tmp_path: Path
) -> None:
    over = reissued(certificate, tmp_path, days_left=-0.01)
    with HttpBackend(http_response(200), tls=server_tls(over)) as backend:
        verdict = check(f"https://{backend.address}/", ca=str(over.certificate))
        assert verdict.reason.startswith("its certificate is not valid: certificate has expired")
    with HttpBackend(http_response(200), tls=server_tls(certificate)) as backend:
        verdict = check(f"https://{backend.address}/", ca=str(certificate.certificate), server_name="other.example")
        assert "certificate is not valid for 'other.example'" in verdict.reason


def test_a_certificate_that_ends_soon_makes_a_good_answer_not_ready(
    check: CheckRunner, certificate: Certificate
) -> None:
    with HttpBackend(lambda request: http_response(int(request.target[1:])), tls=server_tls(certificate)) as backend:
        url, ca = f"https://{backend.address}", str(certificate.certificate)
        assert check(f"{url}/200", ca=ca, min_cert_days=1) == Verdict.not_ready(
            "its certificate expires in 0.0 days, before min_cert_days is reached"
        )
        assert check(f"{url}/500", ca=ca, min_cert_days=1) == Verdict.failed(f"answered 500: {url}/500")


def test_a_server_that_wants_to_know_its_clients_is_shown_a_certificate(
    check: CheckRunner, certificate: Certificate, tmp_path: Path
) -> None:
    known = make_certificate(tmp_path, "known")
    with HttpBackend(http_response(200), tls=server_tls(certificate, clients=known.certificate)) as backend:
        url, ca = f"https://{backend.address}/", str(certificate.certificate)
        assert check(url, ca=ca, client_certificate=str(known.certificate), client_key=str(known.key)) == READY
        assert check(url, ca=ca).outcome is Outcome.FAILED


def test_an_encrypted_body_may_end_with_the_connection(check: CheckRunner, certificate: Certificate) -> None:
    with HttpBackend(b"HTTP/1.0 200 OK\r\n\r\nhello", tls=server_tls(certificate)) as backend:
        assert check(f"https://{backend.address}/", ca=str(certificate.certificate), contains="hello") == READY


@pytest.mark.parametrize("script", [sending(b"HTTP/1.1 400 Bad Request\r\n\r\n"), close, reset])
def test_https_is_failed_where_tls_is_not_spoken(check: CheckRunner, script: Callable[[Peer], None]) -> None:
    with Backend(script) as backend:
        assert check(f"https://{backend.address}").outcome is Outcome.FAILED


# ---- what is refused at once


@pytest.mark.parametrize("status", [99, 600, True, "6xx", "2x", "20", "200-", "204-200", "abc", 200.0, {}, [200, "x"]])
def test_what_is_no_status_is_refused(status: Any) -> None:
    with pytest.raises(OptionError, match=r'^status: is made of statuses such as 200, "2xx" and "200-204", not '):
        make_probe({"url": "http://127.0.0.1/", "status": status})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "get"}, 'method: is a word in capitals such as "GET" or "HEAD", not "get"'),
        ({"method": "GET /"}, 'method: is a word in capitals such as "GET" or "HEAD", not "GET /"'),
        ({"method": "HEAD", "contains": "x"}, "method: HEAD brings no body that could be judged; take GET"),
        ({"starting_status": 200}, "starting_status: holds 200, which status holds as well"),
        ({"headers": {"a b": "x"}}, 'headers: "a b" is not the name of a header'),
        ({"headers": {"": "x"}}, 'headers: "" is not the name of a header'),
        ({"headers": {"A": "x\r\nB: y"}}, "headers: the value of A is not one line of text that a header can carry"),
        ({"headers": {"A": "日"}}, "headers: the value of A is not one line of text that a header can carry"),
        ({"headers": {"A": 1}}, "headers: the value of A is not one line of text that a header can carry"),
        ({"bearer": "x\ny"}, "bearer: is not one line of text that a header can carry"),
        ({"matches": "("}, "matches: not a regular expression: "),
        ({"json": {"status": "ok"}}, 'json: "status" is not a JSON pointer; did you mean "/status"?'),
        ({"redirects": -1}, "redirects: must be a whole number from 0 on, not -1"),
        ({"ca": "ca.pem"}, "ca: has no meaning for http, which does not speak TLS"),
        ({"stauts": 200}, "stauts: unknown option"),
    ],
)
def test_options_that_cannot_be_right_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=f"^{re.escape(words)}"):
        make_probe({"url": "http://127.0.0.1/", **options})


def test_a_bearer_beside_a_user_in_the_url_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^bearer: stands beside a user name in the URL"):
        make_probe({"url": "http://me@127.0.0.1/", "bearer": "swordfish"})


@pytest.mark.parametrize("url", ["http:///path", "http:", "https://:443"])
def test_a_url_without_a_host_is_refused(url: str) -> None:
    with pytest.raises(ProbeError, match="names no host"):
        make_probe(url)


# ---- steps, and nothing is left open


def test_an_exchange_is_a_step(check: CheckRunner) -> None:
    with HttpBackend(http_response(200)) as backend:
        assert check.steps(f"http://{backend.address}") == [("connect", "127.0.0.1", True), ("exchange", "", True)]


@pytest.mark.usefixtures("resolver")
def test_all_steps_of_https_by_name(check: CheckRunner, certificate: Certificate) -> None:
    with HttpBackend(http_response(200), tls=server_tls(certificate)) as backend:
        assert check.steps(f"https://localhost:{backend.port}", ca=str(certificate.certificate)) == [
            ("resolve", "localhost", True),
            ("connect", "127.0.0.1", True),
            ("handshake", "localhost", True),
            ("exchange", "", True),
        ]


def test_each_redirect_has_steps_of_its_own(check: CheckRunner) -> None:
    with HttpBackend(redirecting({"/": "/there"})) as backend:
        steps = check.steps(f"http://{backend.address}/", redirects=1)
        assert [name for name, _, _ in steps] == ["connect", "exchange"] * 2


def test_the_step_that_a_check_got_no_further_than_is_marked(check: CheckRunner) -> None:
    with Backend(unresponsive) as backend:
        assert check.steps_until_timeout(f"http://{backend.address}")[-1] == ("exchange", "", False)
        assert check.steps_until_timeout(f"https://{backend.address}")[-1] == ("handshake", "127.0.0.1", False)
    with HttpBackend(b"nonsense") as backend:
        assert check.steps(f"http://{backend.address}")[-1] == ("exchange", "", False)
    with closed_port() as port:
        assert check.steps(f"http://127.0.0.1:{port}") == [("connect", "127.0.0.1", False)]


def test_a_check_that_times_out_leaves_nothing_open(check: CheckRunner, certificate: Certificate) -> None:
    with full_backlog() as port:
        assert check.times_out(f"http://127.0.0.1:{port}").reason.endswith("in its step connect")
    with Backend(unresponsive) as backend:
        assert check.times_out(f"http://{backend.address}").reason.endswith("in its step exchange")
        assert check.times_out(f"https://{backend.address}").reason.endswith("in its step handshake")
    with Backend(unresponsive, tls=server_tls(certificate)) as backend:
        verdict = check.times_out(f"https://{backend.address}", ca=str(certificate.certificate))
        assert verdict.reason.endswith("in its step exchange")


def test_checks_that_come_to_their_end_leave_nothing_open(check: CheckRunner, certificate: Certificate) -> None:
    with (
        HttpBackend(http_response(200, "hello")) as plain,
        HttpBackend(http_response(200), tls=server_tls(certificate)) as encrypted,
    ):
        check.leaks_nothing(f"http://{plain.address}")
        check.leaks_nothing(f"http://{plain.address}", contains="bye")
        check.leaks_nothing(f"https://{encrypted.address}")
        check.leaks_nothing(f"https://{encrypted.address}", ca=str(certificate.certificate))


# ---- patterns that take for ever


def test_a_pattern_that_takes_for_ever_is_given_up_and_holds_up_nobody(check: CheckRunner) -> None:
    async def story(place: str) -> tuple[Verdict, int]:
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.01)
                turns += 1

        counting = asyncio.create_task(count_turns())
        verdict, _ = await run_check(make_probe({"url": f"http://{place}/", "matches": EVIL_PATTERN}), 10.0)
        counting.cancel()
        return verdict, turns

    with HttpBackend(http_response(200, "a" * 40)) as backend:
        verdict, turns = check.run(story(backend.address))
        assert verdict == Verdict.failed(
            f'answered 200, but its body cannot be held against "{EVIL_PATTERN}" within 0.5 s: http://{backend.address}/'
        )
        assert turns > 10, "the loop went on meanwhile"


EVIL_PATTERN = "(a|a)*b|(a|a)*c"
