"""One HTTP answer as it comes, in pieces or at once: what each client waits for, and what is too much for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from svcnode.net.http_response import (
    INVALID_JSON,
    MAX_BODY_BYTES,
    MAX_HEAD_BYTES,
    MAX_TRAILERS,
    PROTOCOLS,
    BodyProtocol,
    HttpProtocolError,
    HttpResponse,
    InvalidJson,
    StatusProtocol,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.net.http_response import Needs

HEAD = b"HTTP/1.1 200 OK\r\nX-Api: v1\r\nContent-Length: 2\r\n\r\n"
OPEN = b"HTTP/1.1 200 OK\r\n\r\n"  # its body ends with the connection
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HEADERS = {"x-api": "v1", "content-length": "2"}


def played(needs: Needs, play: Callable[[StatusProtocol], None]) -> StatusProtocol:
    """A client that waits for so much, after all that happens to it."""

    async def story() -> StatusProtocol:
        client = PROTOCOLS[needs]()
        client.collects_body = needs == "body"
        play(client)
        return client

    return asyncio.run(story())


def heard(needs: Needs, *pieces: bytes, is_end: bool = False) -> StatusProtocol:
    def play(client: StatusProtocol) -> None:
        for piece in pieces:
            client.data_received(piece)
        if is_end:
            client.connection_lost(None)

    return played(needs, play)


# ---- what is waited for


def test_a_client_answers_as_soon_as_it_has_heard_what_it_needs() -> None:
    assert heard("status", HEAD).response.result() == HttpResponse(200, {}, b"")
    assert heard("head", HEAD).response.result() == HttpResponse(200, HEADERS, b"")
    assert not heard("body", HEAD, b"o").response.done()
    assert heard("body", HEAD, b"ok").response.result() == HttpResponse(200, HEADERS, b"ok")


@pytest.mark.parametrize("needs", PROTOCOLS)
def test_half_a_head_is_no_answer(needs: Needs) -> None:
    assert not heard(needs, HEAD[:-2]).response.done()


@pytest.mark.parametrize("needs", PROTOCOLS)
def test_it_makes_no_difference_in_which_pieces_an_answer_comes(needs: Needs) -> None:
    whole = HEAD + b"ok"
    by_byte = heard(needs, *(whole[at : at + 1] for at in range(len(whole))))
    assert by_byte.response.result() == heard(needs, whole).response.result()


def test_an_interim_answer_is_passed_over_with_its_headers() -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n"
    assert heard("head", interim + HEAD).response.result() == HttpResponse(200, HEADERS, b"")


def test_a_body_may_end_with_the_connection_if_it_does_not_say_where_it_ends() -> None:
    assert heard("body", OPEN, b"o", b"k", is_end=True).response.result() == HttpResponse(200, {}, b"ok")
    for cut_off in (HEAD + b"o", CHUNKED + b"2\r\no", HEAD[:20], b""):
        with pytest.raises(HttpProtocolError, match="closed the connection before its answer was whole"):
            heard("body", cut_off, is_end=True).response.result()


def test_a_connection_that_breaks_gives_its_own_reason() -> None:
    broken = ConnectionResetError("reset")
    assert played("status", lambda client: client.connection_lost(broken)).response.exception() is broken


# ---- what is too much


@pytest.mark.parametrize("needs", PROTOCOLS)
def test_what_is_not_http_is_refused(needs: Needs) -> None:
    with pytest.raises(HttpProtocolError, match="what came back is not HTTP"):
        heard(needs, b"220 mail.example ESMTP\r\n").response.result()


def test_a_head_has_a_limit() -> None:
    endless = b"HTTP/1.1 200 OK\r\n" + b"X-More: and more\r\n" * (MAX_HEAD_BYTES // 16)
    with pytest.raises(HttpProtocolError, match="the head of its answer is larger than 64 KiB"):
        heard("status", endless).response.result()


def test_a_body_that_is_gathered_has_a_limit() -> None:
    full = b"x" * MAX_BODY_BYTES
    assert heard("body", OPEN, full, is_end=True).response.result().body == full
    with pytest.raises(HttpProtocolError, match="the body of its answer is larger than 1024 KiB"):
        heard("body", OPEN, full, b"x").response.result()


def test_trailers_have_a_limit() -> None:
    body = CHUNKED + b"2\r\nok\r\n0\r\n"
    assert heard("body", body + b"X: 1\r\n" * MAX_TRAILERS + b"\r\n").response.result().body == b"ok"
    with pytest.raises(HttpProtocolError, match="what follows the body of its answer has no end"):
        heard("body", body + b"X: 1\r\n" * (MAX_TRAILERS + 2)).response.result()


# ---- the next answer on the same connection


def test_a_connection_carries_another_request_only_when_its_answer_was_whole_and_it_stays() -> None:
    assert heard("body", HEAD, b"ok").is_idle
    assert not heard("body", HEAD, b"o").is_idle
    assert not heard("body", HEAD, b"ok", HEAD).is_idle, "it says more than it was asked"
    assert not heard("body", HEAD.replace(b"X-Api: v1", b"Connection: close"), b"ok").is_idle
    assert not heard("body", HEAD, b"ok", is_end=True).is_idle


def test_the_next_answer_is_heard_anew() -> None:
    def play(client: StatusProtocol) -> None:
        client.data_received(HEAD + b"ok")
        assert client.begin_next_request()
        assert not client.has_received
        assert not client.begin_next_request(), "an answer is still to come"
        client.data_received(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")

    assert played("body", play).response.result() == HttpResponse(503, {"content-length": "0"}, b"")


def test_a_body_that_nobody_needs_is_read_and_thrown_away() -> None:
    async def story() -> tuple[BodyProtocol, HttpResponse]:
        client = BodyProtocol()
        client.data_received(HEAD + b"ok")
        return client, await client.response

    client, answer = asyncio.run(story())
    assert (answer.body, client.is_idle) == (b"", True)


# ---- JSON


@pytest.mark.parametrize(
    ("body", "document"),
    [(b"null", None), (b'{"a": 1}', {"a": 1}), (b"", INVALID_JSON), (b"ok", INVALID_JSON), (b"NaN", INVALID_JSON)],
)
def test_a_body_is_json_or_is_not(body: bytes, document: object) -> None:
    assert HttpResponse(200, {}, body).document() == document


def test_a_body_that_is_nested_without_an_end_is_no_json() -> None:
    assert HttpResponse(200, {}, b"[" * 100_000).document() == InvalidJson("it is nested too deeply")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"status": "down", "status": "ok"}', "the field status stands there twice"),
        (b'{"lag": NaN}', "NaN is not of JSON"),
    ],
)
def test_a_body_that_could_be_read_in_two_ways_is_no_json_and_says_why(body: bytes, why: str) -> None:
    document = HttpResponse(200, {}, body).document()
    assert document == InvalidJson(why)
    assert document.tail == f": {why}"
    assert INVALID_JSON.suffix == ""
