"""One HTTP answer as it comes, in pieces or at once: what each client waits for, and what is too much for it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from svcnode.probes.tools.http_answer import (
    CLIENTS,
    MAX_BODY_BYTES,
    MAX_HEAD_BYTES,
    MAX_TRAILERS,
    NO_JSON,
    BodyClient,
    ExchangeError,
    HttpAnswer,
    NoJson,
    StatusClient,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.probes.tools.http_answer import Needs

HEAD = b"HTTP/1.1 200 OK\r\nX-Api: v1\r\nContent-Length: 2\r\n\r\n"
OPEN = b"HTTP/1.1 200 OK\r\n\r\n"  # its body ends with the connection
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
HEADERS = {"x-api": "v1", "content-length": "2"}


def played(needs: Needs, play: Callable[[StatusClient], None]) -> StatusClient:
    """A client that waits for so much, after all that happens to it."""

    async def story() -> StatusClient:
        client = CLIENTS[needs]()
        client.gathers_body = needs == "body"
        play(client)
        return client

    return asyncio.run(story())


def heard(needs: Needs, *pieces: bytes, is_end: bool = False) -> StatusClient:
    def play(client: StatusClient) -> None:
        for piece in pieces:
            client.data_received(piece)
        if is_end:
            client.connection_lost(None)

    return played(needs, play)


# ---- what is waited for


def test_a_client_answers_as_soon_as_it_has_heard_what_it_needs() -> None:
    assert heard("status", HEAD).answer.result() == HttpAnswer(200, {}, b"")
    assert heard("head", HEAD).answer.result() == HttpAnswer(200, HEADERS, b"")
    assert not heard("body", HEAD, b"o").answer.done()
    assert heard("body", HEAD, b"ok").answer.result() == HttpAnswer(200, HEADERS, b"ok")


@pytest.mark.parametrize("needs", CLIENTS)
def test_half_a_head_is_no_answer(needs: Needs) -> None:
    assert not heard(needs, HEAD[:-2]).answer.done()


@pytest.mark.parametrize("needs", CLIENTS)
def test_it_makes_no_difference_in_which_pieces_an_answer_comes(needs: Needs) -> None:
    whole = HEAD + b"ok"
    by_byte = heard(needs, *(whole[at : at + 1] for at in range(len(whole))))
    assert by_byte.answer.result() == heard(needs, whole).answer.result()


def test_an_interim_answer_is_passed_over_with_its_headers() -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n"
    assert heard("head", interim + HEAD).answer.result() == HttpAnswer(200, HEADERS, b"")


def test_a_body_may_end_with_the_connection_if_it_does_not_say_where_it_ends() -> None:
    assert heard("body", OPEN, b"o", b"k", is_end=True).answer.result() == HttpAnswer(200, {}, b"ok")
    for cut_off in (HEAD + b"o", CHUNKED + b"2\r\no", HEAD[:20], b""):
        with pytest.raises(ExchangeError, match="closed the connection before its answer was whole"):
            heard("body", cut_off, is_end=True).answer.result()


def test_a_connection_that_breaks_gives_its_own_reason() -> None:
    broken = ConnectionResetError("reset")
    assert played("status", lambda client: client.connection_lost(broken)).answer.exception() is broken


# ---- what is too much


@pytest.mark.parametrize("needs", CLIENTS)
def test_what_is_not_http_is_refused(needs: Needs) -> None:
    with pytest.raises(ExchangeError, match="what came back is not HTTP"):
        heard(needs, b"220 mail.example ESMTP\r\n").answer.result()


def test_a_head_has_a_limit() -> None:
    endless = b"HTTP/1.1 200 OK\r\n" + b"X-More: and more\r\n" * (MAX_HEAD_BYTES // 16)
    with pytest.raises(ExchangeError, match="the head of its answer is larger than 64 KiB"):
        heard("status", endless).answer.result()


def test_a_body_that_is_gathered_has_a_limit() -> None:
    full = b"x" * MAX_BODY_BYTES
    assert heard("body", OPEN, full, is_end=True).answer.result().body == full
    with pytest.raises(ExchangeError, match="the body of its answer is larger than 1024 KiB"):
        heard("body", OPEN, full, b"x").answer.result()


def test_trailers_have_a_limit() -> None:
    body = CHUNKED + b"2\r\nok\r\n0\r\n"
    assert heard("body", body + b"X: 1\r\n" * MAX_TRAILERS + b"\r\n").answer.result().body == b"ok"
    with pytest.raises(ExchangeError, match="what follows the body of its answer has no end"):
        heard("body", body + b"X: 1\r\n" * (MAX_TRAILERS + 2)).answer.result()


# ---- the next answer on the same connection


def test_a_connection_carries_another_request_only_when_its_answer_was_whole_and_it_stays() -> None:
    assert heard("body", HEAD, b"ok").is_idle
    assert not heard("body", HEAD, b"o").is_idle
    assert not heard("body", HEAD, b"ok", HEAD).is_idle, "it says more than it was asked"
    assert not heard("body", HEAD.replace(b"X-Api: v1", b"Connection: close"), b"ok").is_idle
    assert not heard("body", HEAD, b"ok", is_end=True).is_idle


def test_the_next_answer_is_heard_anew() -> None:
    def play(client: StatusClient) -> None:
        client.data_received(HEAD + b"ok")
        assert client.begin_next()
        assert not client.has_heard
        assert not client.begin_next(), "an answer is still to come"
        client.data_received(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")

    assert played("body", play).answer.result() == HttpAnswer(503, {"content-length": "0"}, b"")


def test_a_body_that_nobody_needs_is_read_and_thrown_away() -> None:
    async def story() -> tuple[BodyClient, HttpAnswer]:
        client = BodyClient()
        client.data_received(HEAD + b"ok")
        return client, await client.answer

    client, answer = asyncio.run(story())
    assert (answer.body, client.is_idle) == (b"", True)


# ---- JSON


@pytest.mark.parametrize(
    ("body", "document"),
    [(b"null", None), (b'{"a": 1}', {"a": 1}), (b"", NO_JSON), (b"ok", NO_JSON), (b"NaN", NO_JSON)],
)
def test_a_body_is_json_or_is_not(body: bytes, document: object) -> None:
    assert HttpAnswer(200, {}, body).document() == document


def test_a_body_that_is_nested_without_an_end_is_no_json() -> None:
    assert HttpAnswer(200, {}, b"[" * 100_000).document() == NoJson("it is nested too deeply")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"status": "down", "status": "ok"}', "the field status stands there twice"),
        (b'{"lag": NaN}', "NaN is not of JSON"),
    ],
)
def test_a_body_that_could_be_read_in_two_ways_is_no_json_and_says_why(body: bytes, why: str) -> None:
    document = HttpAnswer(200, {}, body).document()
    assert document == NoJson(why)
    assert document.tail == f": {why}"
    assert NO_JSON.tail == ""
