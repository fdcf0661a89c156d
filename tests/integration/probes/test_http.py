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
from svcnode.look import look_once
from svcnode.probes import make_probe
from svcnode.probes.tools.http_answer import MAX_BODY_BYTES, MAX_HEAD_BYTES
from tests.support.agents import has_ipv6
from tests.support.backends import (
    CONTINUE,
    Backend,
    HttpBackend,
    Peer,
    Received,
    close,
    full_backlog,
    mute,
    refusing,
    reissued,
    reply,
    reset,
    saying,
    server_tls,
)
from tests.support.certificates import Certificate, make_certificate
from tests.support.looks import NOT_WHOLE, OUT_OF_FILES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.integration.probes.conftest import Look

READY = Verdict.ready()


def as_json(document: object) -> bytes:
    return reply(200, json.dumps(document), Content_Type="application/json")


# ---- what is asked


def test_a_server_that_answers_200_is_ready(look: Look) -> None:
    with HttpBackend(reply(200)) as backend:
        assert look(f"http://{backend.place}/health?deep=1&x=%20") == READY
        assert (backend.last.method, backend.last.target) == ("GET", "/health?deep=1&x=%20")
        assert backend.last.headers == {
            "host": backend.place,
            "user-agent": "svcnode",
            "accept": "*/*",
            "connection": "close",
        }
        assert backend.last.body == b""


def test_a_url_without_a_path_asks_for_the_root(look: Look) -> None:
    with HttpBackend(reply(200)) as backend:
        look(f"http://{backend.place}")
        look(f"http://{backend.place}?x=y")
        assert [request.target for request in backend.requests] == ["/", "/?x=y"]


def test_what_no_request_can_hold_as_it_is_goes_in_its_percent_form(look: Look) -> None:
    with HttpBackend(reply(200)) as backend:
        assert look(f"http://{backend.place}/a b/ü%20?q=日") == READY
        assert backend.last.target == "/a%20b/%C3%BC%20?q=%E6%97%A5"


def test_a_name_is_told_to_the_server_as_it_was_written(look: Look) -> None:
    with HttpBackend(reply(200)) as backend:
        assert look(f"http://localhost:{backend.port}") == READY
        assert backend.last.headers["host"] == f"localhost:{backend.port}"


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_an_ipv6_address_stands_in_brackets(look: Look) -> None:
    with HttpBackend(reply(200), host="::1") as backend:
        assert look(f"http://[::1]:{backend.port}") == READY
        assert backend.last.headers["host"] == f"[::1]:{backend.port}"


def test_the_method_the_headers_and_the_body_may_be_chosen(look: Look) -> None:
    with HttpBackend(reply(200)) as backend:
        options = {"method": "PUT", "headers": {"X-Api-Key": "k1", "Content-Type": "text/plain"}, "body": "grüß dich"}
        assert look(f"http://{backend.place}", **options) == READY
        assert backend.last.method == "PUT"
        assert backend.last.headers["x-api-key"] == "k1"
        assert backend.last.headers["content-type"] == "text/plain"
        assert backend.last.body == "grüß dich".encode()


def test_a_body_may_be_any_bytes(look: Look) -> None:
    with HttpBackend(reply(200)) as backend:
        assert look(f"http://{backend.place}", method="POST", body={"hex": "00 ff"}) == READY
        assert backend.last.body == b"\x00\xff"


def test_a_header_of_the_operator_takes_the_place_of_ours(look: Look) -> None:
    with HttpBackend(reply(200)) as backend:
        assert look(f"http://{backend.place}", headers={"host": "shop.example", "USER-AGENT": "me"}) == READY
        assert backend.last.headers["host"] == "shop.example"
        assert backend.last.headers["user-agent"] == "me"


def test_a_user_of_the_url_is_sent_as_basic_authorization(look: Look) -> None:
    with HttpBackend(reply(200)) as backend:
        assert look(f"http://reader:p%40ss:w%C3%B6rd@{backend.place}/") == READY
        kind, _, token = backend.last.headers["authorization"].partition(" ")
        assert (kind, base64.b64decode(token).decode()) == ("Basic", "reader:p@ss:wörd")
        assert backend.last.headers["host"] == backend.place


def test_a_bearer_token_is_sent(look: Look) -> None:
    with HttpBackend(reply(200)) as backend:
        assert look(f"http://{backend.place}", bearer="swordfish") == READY
        assert backend.last.headers["authorization"] == "Bearer swordfish"


def test_no_reason_holds_a_password_or_what_stands_in_the_query(look: Look) -> None:
    with HttpBackend(reply(500)) as backend:
        assert look(f"http://reader:swordfish@{backend.place}/x?key=hush") == Verdict.failed(
            f"answered 500: http://reader:***@{backend.place}/x?***"
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
def test_the_status_decides(look: Look, status: Any, answered: int, outcome: Outcome) -> None:
    options = {} if status is None else {"status": status}
    with HttpBackend(reply(answered)) as backend:
        verdict = look(f"http://{backend.place}", **options)
    assert verdict.outcome is outcome
    assert outcome is Outcome.READY or verdict.reason.startswith(f"answered {answered}")


def test_a_status_of_starting_is_not_ready(look: Look) -> None:
    with HttpBackend(reply(503)) as backend:
        assert look(f"http://{backend.place}/", starting_status=[503, "4xx"]) == Verdict.not_ready(
            f"answered 503, so it is starting: http://{backend.place}/"
        )


def test_a_status_of_starting_needs_no_body(look: Look) -> None:
    with HttpBackend(reply(503, "wait")) as backend:
        verdict = look(f"http://{backend.place}/", starting_status=503, contains="ready")
    assert verdict.outcome is Outcome.NOT_READY


def test_a_body_that_says_that_it_is_starting_is_not_ready(look: Look) -> None:
    options = {"json": {"/synced": True}, "starting_json": {"/synced": False, "/health": "healthy"}}
    with HttpBackend(reply(200, '{"synced": false, "health": "healthy"}')) as backend:
        assert look(f"http://{backend.place}/", **options) == Verdict.not_ready(
            f"answered 200, and says that it is starting: http://{backend.place}/"
        )


@pytest.mark.parametrize("body", ['{"synced": false, "health": "failed"}', '{"synced": false}', "[]", "no JSON"])
def test_a_body_that_says_only_half_of_it_has_failed(look: Look, body: str) -> None:
    options = {"json": {"/synced": True}, "starting_json": {"/synced": False, "/health": "healthy"}}
    with HttpBackend(reply(200, body)) as backend:
        assert look(f"http://{backend.place}/", **options).outcome is Outcome.FAILED


def test_a_body_that_does_not_say_that_it_is_starting_is_judged_as_any(look: Look) -> None:
    with HttpBackend(reply(200, '{"status": "ok"}')) as backend:
        assert look(f"http://{backend.place}/", starting_json={"/status": "syncing"}) == READY


# ---- the body


def test_the_body_may_have_to_hold_something(look: Look) -> None:
    with HttpBackend(reply(200, "grüß dich, all is well")) as backend:
        assert look(f"http://{backend.place}/", contains="grüß") == READY
        assert look(f"http://{backend.place}/", contains="All") == Verdict.failed(
            f'answered 200, but its body does not hold "All": http://{backend.place}/'
        )


def test_the_body_may_have_to_match_a_pattern(look: Look) -> None:
    with HttpBackend(reply(200, "lag: 17 blocks")) as backend:
        assert look(f"http://{backend.place}/", matches=r"lag: \d{1,2} ") == READY
        assert look(f"http://{backend.place}/", matches=r"^lag: \d ") == Verdict.failed(
            rf'answered 200, but its body does not match "^lag: \d ": http://{backend.place}/'
        )


def test_a_body_that_is_no_text_is_searched_all_the_same(look: Look) -> None:
    with HttpBackend(reply(200, b"\xff\xfe ok \x00")) as backend:
        assert look(f"http://{backend.place}/", contains=" ok ") == READY


def test_the_body_may_have_to_hold_values_at_json_pointers(look: Look) -> None:
    document = {"status": "ok", "peers": [{"id": 7}], "a/b": {"~": None}, "lag": 1.0, "": True}
    with HttpBackend(as_json(document)) as backend:
        url = f"http://{backend.place}/"
        assert look(url, json={"/status": "ok", "/peers/0/id": 7, "/lag": 1, "/": True}) == READY
        assert look(url, json={"/a~1b": {"~": None}, "/a~1b/~0": None}) == READY
        assert look(url, json={"": document}) == READY


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
def test_another_value_at_a_json_pointer_is_failed(look: Look, expected: dict[str, Any], fault: str) -> None:
    with HttpBackend(as_json({"status": "ok", "flag": True, "peers": [7]})) as backend:
        assert look(f"http://{backend.place}/", json=expected) == Verdict.failed(
            f"answered 200, but {fault}: http://{backend.place}/"
        )


@pytest.mark.parametrize("body", [b"", b"ok", b"\xff", b"9" * 5000, b"NaN"])
def test_a_body_that_is_not_json_is_failed(look: Look, body: bytes) -> None:
    with HttpBackend(reply(200, body)) as backend:
        assert look(f"http://{backend.place}/", json={"/x": 1}) == Verdict.failed(
            f"answered 200, but its body is not JSON: http://{backend.place}/"
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
def test_a_body_that_could_be_read_in_two_ways_is_failed(look: Look, body: bytes, why: str, option: str) -> None:
    with HttpBackend(reply(200, body)) as backend:
        assert look(f"http://{backend.place}/", **{option: {"/x": 1}}) == Verdict.failed(
            f"answered 200, but its body is not JSON: {why}: http://{backend.place}/"
        )


def test_where_json_only_says_that_it_is_starting_a_body_of_words_is_judged_as_any(look: Look) -> None:
    with HttpBackend(reply(200, "all is well")) as backend:
        assert look(f"http://{backend.place}/", starting_json={"/status": "syncing"}) == READY


def test_a_body_of_any_depth_gives_a_verdict(look: Look) -> None:
    # Where the limit lies depends on the interpreter; just below it, a body can be read but hardly be shown.
    bodies = {f"/{depth}": b'{"x": %s%s}' % (b"[" * depth, b"]" * depth) for depth in (*range(850, 1000), 9000, 99000)}

    async def story(url: str) -> set[Outcome]:
        return {(await make_probe({"url": url + target, "json": {"/x": 1}}).look()).outcome for target in bodies}

    with HttpBackend(lambda request: reply(200, bodies[request.target])) as backend:
        assert look.run(story(f"http://{backend.place}")) == {Outcome.FAILED}


def test_all_that_is_asked_of_a_body_must_hold(look: Look) -> None:
    with HttpBackend(as_json({"a": 1})) as backend:
        url = f"http://{backend.place}/"
        assert look(url, contains="a", matches="1", json={"/a": 1}) == READY
        assert look(url, contains="b", matches="1", json={"/a": 1}).outcome is Outcome.FAILED
        assert look(url, contains="a", matches="2", json={"/a": 1}).outcome is Outcome.FAILED
        assert look(url, contains="a", matches="1", json={"/a": 2}).outcome is Outcome.FAILED


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
def test_a_whole_answer_is_understood_in_each_of_its_forms(look: Look, answer: bytes) -> None:
    with HttpBackend(answer) as backend:
        assert look(f"http://{backend.place}", matches="hello") == READY
        assert look(f"http://{backend.place}") == READY


def test_an_answer_may_come_byte_by_byte(look: Look) -> None:
    def dribbles(peer: Peer) -> None:
        Received.read(peer)
        for byte in WELL_FORMED["after a 100"]:
            peer.say(bytes([byte]))

    with Backend(dribbles) as backend:
        assert look(f"http://{backend.place}", contains="hello") == READY


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 304 Same\r\nContent-Length: 5\r\n\r\n"]
)
def test_an_answer_that_has_no_body_is_whole_with_its_head(look: Look, answer: bytes) -> None:
    def stays(peer: Peer) -> None:
        Received.read(peer)
        peer.say(answer)

    with Backend(stays) as backend:
        assert look(f"http://{backend.place}", status="2xx" if b"204" in answer else 304, matches="^$") == READY


def test_the_answer_to_head_has_no_body_whatever_length_it_names(look: Look) -> None:
    with HttpBackend(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n") as backend:
        assert look(f"http://{backend.place}", method="HEAD") == READY
        assert backend.last.method == "HEAD"


def test_a_body_that_nobody_asks_about_is_not_waited_for(look: Look) -> None:
    def never_ends(peer: Peer) -> None:
        Received.read(peer)
        peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\nhel")

    with Backend(never_ends) as backend:
        assert look(f"http://{backend.place}") == READY
        assert look.within(0.3, f"http://{backend.place}", contains="hello") == Verdict.failed(
            "no answer within 0.3 s, in its step exchange"
        )


def test_a_server_that_switches_protocols_has_not_answered_as_asked(look: Look) -> None:
    with HttpBackend(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x00") as backend:
        assert look(f"http://{backend.place}/") == Verdict.failed(f"answered 101: http://{backend.place}/")


BROKEN = {
    "nothing": (b"", NOT_WHOLE),
    "half a head": (b"HTTP/1.1 200 OK\r\nContent-Le", NOT_WHOLE),
    "only a 100": (CONTINUE, NOT_WHOLE),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.6\r\n", "what came back is not HTTP"),
    "HTML": (b"<html>hello</html>\n", "what came back is not HTTP"),
    "no number": (b"HTTP/1.1 OK\r\n\r\n", "what came back is not HTTP"),
    "two lengths": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "what came back is not HTTP",
    ),
}
BROKEN_BODIES = {
    "short body": (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello", NOT_WHOLE),
    "short chunk": (CHUNKED + b"ff\r\nhello", NOT_WHOLE),
    "no last chunk": (CHUNKED + b"5\r\nhello\r\n", NOT_WHOLE),
    "bad chunk": (CHUNKED + b"5\r\nhello\r\nzz\r\n", "what came back is not HTTP"),
}


@pytest.mark.parametrize(("answer", "words"), BROKEN.values(), ids=BROKEN)
def test_what_is_no_answer_is_failed(look: Look, answer: bytes, words: str) -> None:
    with HttpBackend(answer) as backend:
        assert look(f"http://{backend.place}/") == Verdict.failed(f"{words}: http://{backend.place}/")


@pytest.mark.parametrize(("answer", "words"), BROKEN_BODIES.values(), ids=BROKEN_BODIES)
def test_a_body_that_is_not_whole_is_failed_where_it_counts(look: Look, answer: bytes, words: str) -> None:
    with HttpBackend(answer) as backend:
        url = f"http://{backend.place}/"
        assert look(url, contains="hello") == Verdict.failed(f"{words}: {url}")
        assert look(url) == READY


def head_of(size: int) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX: %s\r\n\r\n"
    return head % (b"x" * (size - len(head % b""))) + b"hello"


def test_a_head_is_read_up_to_the_limit(look: Look) -> None:
    with HttpBackend(head_of(MAX_HEAD_BYTES)) as backend:
        assert look(f"http://{backend.place}/", contains="hello") == READY


@pytest.mark.parametrize("size", [MAX_HEAD_BYTES + 1, 4 * 1024 * 1024])
@pytest.mark.parametrize("options", [{}, {"contains": "hello"}])
def test_a_larger_head_is_failed(look: Look, size: int, options: dict[str, str]) -> None:
    with HttpBackend(head_of(size)) as backend:
        assert look(f"http://{backend.place}/", **options) == Verdict.failed(
            f"the head of its answer is larger than 64 KiB: http://{backend.place}/"
        )


def test_a_head_that_never_ends_is_failed(look: Look) -> None:
    def never_ends(peer: Peer) -> None:
        while True:
            peer.say(CONTINUE * 100)

    with Backend(never_ends) as backend:
        assert look(f"http://{backend.place}/") == Verdict.failed(
            f"the head of its answer is larger than 64 KiB: http://{backend.place}/"
        )


def test_a_body_is_read_up_to_the_limit(look: Look) -> None:
    with HttpBackend(reply(200, b"x" * (MAX_BODY_BYTES - 5) + b"hello")) as backend:
        assert look(f"http://{backend.place}/", contains="hello") == READY


def test_a_larger_body_is_failed_where_it_counts(look: Look) -> None:
    with HttpBackend(reply(200, b"hello" + b"x" * MAX_BODY_BYTES)) as backend:
        url = f"http://{backend.place}/"
        assert look(url, contains="hello") == Verdict.failed(f"the body of its answer is larger than 1024 KiB: {url}")
        assert look(url) == READY


@pytest.mark.parametrize("head", [CHUNKED, b"HTTP/1.0 200 OK\r\n\r\n"], ids=["chunked", "up to the end"])
def test_a_body_that_never_ends_is_failed(look: Look, head: bytes) -> None:
    def never_ends(peer: Peer) -> None:
        Received.read(peer)
        peer.say(head)
        while True:
            peer.say(b"5\r\nhello\r\n" * 1000)

    with Backend(never_ends) as backend:
        url = f"http://{backend.place}/"
        assert look(url, contains="hello") == Verdict.failed(f"the body of its answer is larger than 1024 KiB: {url}")


# ---- no connection


def test_a_port_that_refuses_is_failed(look: Look) -> None:
    with refusing() as port:
        url = f"http://127.0.0.1:{port}/"
        assert look(url) == Verdict.failed(f"connection refused: {url}")


def test_a_connection_that_is_reset_is_failed(look: Look) -> None:
    def breaks_off(peer: Peer) -> None:
        Received.read(peer)
        peer.say(b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello")
        peer.reset()

    with Backend(breaks_off) as backend:
        url = f"http://{backend.place}/"
        assert look(url, contains="hello") == Verdict.failed(f"connection reset by peer: {url}")


@pytest.mark.parametrize("script", [close, reset])
def test_a_server_that_says_nothing_and_goes_is_failed(look: Look, script: Callable[[Peer], None]) -> None:
    with Backend(script) as backend:
        assert look(f"http://{backend.place}").outcome is Outcome.FAILED


def test_a_mute_server_is_failed_at_the_deadline(look: Look) -> None:
    with Backend(mute) as backend:
        assert look.within(0.3, f"http://{backend.place}") == Verdict.failed(
            "no answer within 0.3 s, in its step exchange"
        )


def test_running_out_of_file_descriptors_is_our_own_fault(look: Look) -> None:
    with HttpBackend(reply(200)) as backend:
        assert look.without_files(f"http://{backend.place}") == (OUT_OF_FILES, READY)


def test_running_out_of_file_descriptors_does_not_make_us_forget_whom_to_trust(
    look: Look, certificate: Certificate
) -> None:
    # The authorities of the machine are read from files as well.
    with HttpBackend(reply(200), tls=server_tls(certificate)) as backend:
        url, trusted = f"https://{backend.place}", str(certificate.certificate)
        assert look.without_files(url, SSL_CERT_FILE=trusted) == (OUT_OF_FILES, READY)


# ---- redirects


def redirecting(pages: dict[str, str], *, status: int = 302) -> Callable[[Received], bytes]:
    def answer(request: Received) -> bytes:
        if request.target in pages:
            return reply(status, Location=pages[request.target])
        return reply(200, f"this is {request.target}")

    return answer


def test_a_redirect_is_not_followed_unasked(look: Look) -> None:
    with HttpBackend(redirecting({"/": "/there"})) as backend:
        assert look(f"http://{backend.place}/") == Verdict.failed(
            f"answered 302, a redirect to http://{backend.place}/there: http://{backend.place}/"
        )
        assert look(f"http://{backend.place}/", status="3xx", redirects=5) == READY
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
def test_where_a_redirect_leads_is_told_without_what_may_be_a_secret(look: Look, location: str, told: str) -> None:
    with HttpBackend(redirecting({"/": location})) as backend:
        assert look(f"http://{backend.place}/") == Verdict.failed(
            f"answered 302, a redirect{told}: http://{backend.place}/"
        )


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed_up_to_their_limit(look: Look, status: int) -> None:
    with HttpBackend(redirecting({"/1": "/2", "/2": "/3", "/3": "/4"}, status=status)) as backend:
        assert look(f"http://{backend.place}/1", redirects=3, contains="this is /4") == READY
        assert look(f"http://{backend.place}/1", redirects=2) == Verdict.failed(
            f"answered {status}, a redirect past the limit, to http://{backend.place}/4: http://{backend.place}/3"
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
def test_a_redirect_may_be_relative(look: Look, location: str, target: str) -> None:
    with HttpBackend(redirecting({"/a/b": location})) as backend:
        assert look(f"http://{backend.place}/a/b", redirects=1) == READY
        assert backend.last.target == target


def test_a_loop_of_redirects_ends_at_the_limit(look: Look) -> None:
    with HttpBackend(redirecting({"/1": "/2", "/2": "/1"})) as backend:
        assert look(f"http://{backend.place}/1", redirects=7) == Verdict.failed(
            f"answered 302, a redirect past the limit, to http://{backend.place}/1: http://{backend.place}/2"
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
def test_a_redirect_to_what_is_no_http_url_is_failed(look: Look, location: str) -> None:
    with HttpBackend(redirecting({"/1": location})) as backend:
        assert look(f"http://{backend.place}/1", redirects=1) == Verdict.failed(
            f"it redirects to what is no http URL: http://{backend.place}/1"
        )


def test_a_redirect_that_names_no_place_is_the_answer(look: Look) -> None:
    with HttpBackend(reply(302)) as backend:
        assert look(f"http://{backend.place}/", redirects=3) == Verdict.failed(
            f"answered 302, a redirect that names no place: http://{backend.place}/"
        )
        assert len(backend.requests) == 1


SECRETS: dict[str, Any] = {"method": "POST", "headers": {"X-Api-Key": "hush"}, "bearer": "swordfish", "body": "secret"}


def test_a_redirect_at_home_keeps_what_was_to_be_sent(look: Look) -> None:
    with HttpBackend(redirecting({"/": "/there"}, status=307)) as backend:
        assert look(f"http://{backend.place}/", redirects=1, **SECRETS) == READY
        assert backend.last.target == "/there"
        assert backend.last.headers["x-api-key"] == "hush"
        assert backend.last.headers["authorization"] == "Bearer swordfish"
        assert backend.last.body == b"secret"


@pytest.mark.parametrize("status", [301, 302, 303])
def test_a_redirect_after_a_post_is_gone_to_with_a_get(look: Look, status: int) -> None:
    with HttpBackend(redirecting({"/": "/there"}, status=status)) as backend:
        assert look(f"http://{backend.place}/", redirects=1, **SECRETS) == READY
        assert (backend.last.method, backend.last.target, backend.last.body) == ("GET", "/there", b"")
        assert backend.last.headers["authorization"] == "Bearer swordfish"


@pytest.mark.parametrize(("status", "method"), [(303, "HEAD"), (301, "HEAD"), (302, "PUT"), (308, "POST")])
def test_other_redirects_keep_the_method(look: Look, status: int, method: str) -> None:
    with HttpBackend(redirecting({"/": "/there"}, status=status)) as backend:
        assert look(f"http://{backend.place}/", redirects=1, method=method) == READY
        assert (backend.last.method, backend.last.target) == (method, "/there")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_redirect_to_another_origin_loses_what_only_home_may_see(look: Look, host: str) -> None:
    # Another port of the same host, or another name of it, is another origin.
    with (
        HttpBackend(reply(200)) as stranger,
        HttpBackend(redirecting({"/": f"http://{host}:{stranger.port}/there"})) as home,
    ):
        assert look(f"http://{home.place}/", redirects=1, **SECRETS) == READY
        assert home.last.headers["authorization"] == "Bearer swordfish"
        assert stranger.last.target == "/there"
        assert stranger.last.headers == {
            "host": f"{host}:{stranger.port}",
            "user-agent": "svcnode",
            "accept": "*/*",
            "connection": "close",
        }
        assert stranger.last.body == b""


def test_a_user_of_the_url_is_not_shown_to_another_origin(look: Look) -> None:
    with (
        HttpBackend(reply(200)) as stranger,
        HttpBackend(redirecting({"/": f"http://{stranger.place}/there"})) as home,
    ):
        assert look(f"http://reader:swordfish@{home.place}/", redirects=1) == READY
        assert "authorization" in home.last.headers
        assert "authorization" not in stranger.last.headers


def test_a_user_in_a_redirect_is_not_sent_and_is_no_secret_of_ours(look: Look) -> None:
    with (
        HttpBackend(reply(500)) as stranger,
        HttpBackend(redirecting({"/": f"http://me:answered@{stranger.place}/there"})) as home,
    ):
        verdict = look(f"http://{home.place}/", redirects=1)
        assert "authorization" not in stranger.last.headers
        assert verdict.reason.startswith("answered 500: ")
        assert look.within(1.0, f"http://{stranger.place}/") == Verdict.failed(
            f"answered 500: http://{stranger.place}/"
        )


def test_what_only_home_may_see_is_shown_again_when_a_redirect_leads_back(look: Look) -> None:
    pages: dict[str, str] = {}
    with HttpBackend(redirecting(pages)) as stranger, HttpBackend(redirecting(pages)) as home:
        pages.update({"/": f"http://{stranger.place}/away", "/away": f"http://{home.place}/there"})
        assert look(f"http://{home.place}/", redirects=2, **SECRETS) == READY
        assert "authorization" not in stranger.last.headers
        assert home.last.target == "/there"
        assert home.last.headers["authorization"] == "Bearer swordfish"


def test_a_redirect_may_lead_to_https(look: Look, certificate: Certificate) -> None:
    with (
        HttpBackend(reply(200), tls=server_tls(certificate)) as encrypted,
        HttpBackend(redirecting({"/": f"https://{encrypted.place}/"})) as plain,
    ):
        assert look(f"http://{plain.place}/", redirects=1) == Verdict.failed(
            f"its certificate is not valid: self-signed certificate: https://{encrypted.place}/"
        )


def test_another_origin_sees_neither_the_certificate_nor_the_server_name_that_are_for_home(
    look: Look, certificate: Certificate, tmp_path: Path
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
        peer.say(redirecting(pages)(Received.read(peer)))

    options = {"ca": str(certificate.certificate), "server_name": "localhost"}
    options |= {"client_certificate": str(known.certificate), "client_key": str(known.key)}
    with Backend(answer, tls=tls, host="127.0.0.2") as home, Backend(answer, tls=tls) as stranger:
        pages["/"] = f"https://{stranger.place}/there"
        assert look(f"https://{home.place}/", redirects=1, **options) == READY
    assert shown == [True, False]
    assert names == ["localhost", None]  # an address is no name


# ---- TLS


def test_https_is_ready_when_the_certificate_is_trusted(look: Look, certificate: Certificate) -> None:
    with HttpBackend(reply(200, "hello"), tls=server_tls(certificate)) as backend:
        url, ca = f"https://{backend.place}/", str(certificate.certificate)
        assert look(url, ca=ca, contains="hello") == READY
        assert look(url) == Verdict.failed(f"its certificate is not valid: self-signed certificate: {url}")


def test_https_is_failed_when_the_certificate_is_over_or_for_another_name(
    look: Look, certificate: Certificate, tmp_path: Path
) -> None:
    over = reissued(certificate, tmp_path, days_left=-0.01)
    with HttpBackend(reply(200), tls=server_tls(over)) as backend:
        verdict = look(f"https://{backend.place}/", ca=str(over.certificate))
        assert verdict.reason.startswith("its certificate is not valid: certificate has expired")
    with HttpBackend(reply(200), tls=server_tls(certificate)) as backend:
        verdict = look(f"https://{backend.place}/", ca=str(certificate.certificate), server_name="other.example")
        assert "certificate is not valid for 'other.example'" in verdict.reason


def test_a_certificate_that_ends_soon_makes_a_good_answer_not_ready(look: Look, certificate: Certificate) -> None:
    with HttpBackend(lambda request: reply(int(request.target[1:])), tls=server_tls(certificate)) as backend:
        url, ca = f"https://{backend.place}", str(certificate.certificate)
        assert look(f"{url}/200", ca=ca, min_cert_days=1) == Verdict.not_ready(
            "its certificate expires in 0.0 days, before min_cert_days is reached"
        )
        assert look(f"{url}/500", ca=ca, min_cert_days=1) == Verdict.failed(f"answered 500: {url}/500")


def test_a_server_that_wants_to_know_its_clients_is_shown_a_certificate(
    look: Look, certificate: Certificate, tmp_path: Path
) -> None:
    known = make_certificate(tmp_path, "known")
    with HttpBackend(reply(200), tls=server_tls(certificate, clients=known.certificate)) as backend:
        url, ca = f"https://{backend.place}/", str(certificate.certificate)
        assert look(url, ca=ca, client_certificate=str(known.certificate), client_key=str(known.key)) == READY
        assert look(url, ca=ca).outcome is Outcome.FAILED


def test_an_encrypted_body_may_end_with_the_connection(look: Look, certificate: Certificate) -> None:
    with HttpBackend(b"HTTP/1.0 200 OK\r\n\r\nhello", tls=server_tls(certificate)) as backend:
        assert look(f"https://{backend.place}/", ca=str(certificate.certificate), contains="hello") == READY


@pytest.mark.parametrize("script", [saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"), close, reset])
def test_https_is_failed_where_tls_is_not_spoken(look: Look, script: Callable[[Peer], None]) -> None:
    with Backend(script) as backend:
        assert look(f"https://{backend.place}").outcome is Outcome.FAILED


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


def test_an_exchange_is_a_step(look: Look) -> None:
    with HttpBackend(reply(200)) as backend:
        assert look.steps(f"http://{backend.place}") == [("connect", "127.0.0.1", True), ("exchange", "", True)]


@pytest.mark.usefixtures("resolver")
def test_all_steps_of_https_by_name(look: Look, certificate: Certificate) -> None:
    with HttpBackend(reply(200), tls=server_tls(certificate)) as backend:
        assert look.steps(f"https://localhost:{backend.port}", ca=str(certificate.certificate)) == [
            ("resolve", "localhost", True),
            ("connect", "127.0.0.1", True),
            ("handshake", "localhost", True),
            ("exchange", "", True),
        ]


def test_each_redirect_has_steps_of_its_own(look: Look) -> None:
    with HttpBackend(redirecting({"/": "/there"})) as backend:
        steps = look.steps(f"http://{backend.place}/", redirects=1)
        assert [name for name, _, _ in steps] == ["connect", "exchange"] * 2


def test_the_step_that_a_look_got_no_further_than_is_marked(look: Look) -> None:
    with Backend(mute) as backend:
        assert look.steps_when_cut_off(f"http://{backend.place}")[-1] == ("exchange", "", False)
        assert look.steps_when_cut_off(f"https://{backend.place}")[-1] == ("handshake", "127.0.0.1", False)
    with HttpBackend(b"nonsense") as backend:
        assert look.steps(f"http://{backend.place}")[-1] == ("exchange", "", False)
    with refusing() as port:
        assert look.steps(f"http://127.0.0.1:{port}") == [("connect", "127.0.0.1", False)]


def test_a_look_that_is_cut_off_leaves_nothing_open(look: Look, certificate: Certificate) -> None:
    with full_backlog() as port:
        assert look.cut_off(f"http://127.0.0.1:{port}").reason.endswith("in its step connect")
    with Backend(mute) as backend:
        assert look.cut_off(f"http://{backend.place}").reason.endswith("in its step exchange")
        assert look.cut_off(f"https://{backend.place}").reason.endswith("in its step handshake")
    with Backend(mute, tls=server_tls(certificate)) as backend:
        verdict = look.cut_off(f"https://{backend.place}", ca=str(certificate.certificate))
        assert verdict.reason.endswith("in its step exchange")


def test_looks_that_come_to_their_end_leave_nothing_open(look: Look, certificate: Certificate) -> None:
    with HttpBackend(reply(200, "hello")) as plain, HttpBackend(reply(200), tls=server_tls(certificate)) as encrypted:
        look.leaves_nothing_open(f"http://{plain.place}")
        look.leaves_nothing_open(f"http://{plain.place}", contains="bye")
        look.leaves_nothing_open(f"https://{encrypted.place}")
        look.leaves_nothing_open(f"https://{encrypted.place}", ca=str(certificate.certificate))


# ---- patterns that take for ever


def test_a_pattern_that_takes_for_ever_is_given_up_and_holds_up_nobody(look: Look) -> None:
    async def story(place: str) -> tuple[Verdict, int]:
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.01)
                turns += 1

        counting = asyncio.create_task(count_turns())
        verdict, _ = await look_once(make_probe({"url": f"http://{place}/", "matches": EVIL_PATTERN}), 10.0)
        counting.cancel()
        return verdict, turns

    with HttpBackend(reply(200, "a" * 40)) as backend:
        verdict, turns = look.run(story(backend.place))
        assert verdict == Verdict.failed(
            f'answered 200, but its body cannot be held against "{EVIL_PATTERN}" within 0.5 s: http://{backend.place}/'
        )
        assert turns > 10, "the loop went on meanwhile"


EVIL_PATTERN = "(a|a)*b|(a|a)*c"
