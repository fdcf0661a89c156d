"""Receiving one HTTP response: the parts that each protocol waits for, and the limits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
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


def drive(needs: Needs, events: Callable[[StatusProtocol], None]) -> StatusProtocol:
    """The protocol after these events."""

    async def scenario() -> StatusProtocol:
        protocol = PROTOCOLS[needs]()
        protocol.collects_body = needs == "body"
        events(protocol)
        return protocol

    return asyncio.run(scenario())


def receive(needs: Needs, *parts: bytes, is_end: bool = False) -> StatusProtocol:
    def events(protocol: StatusProtocol) -> None:
        for part in parts:
            protocol.data_received(part)
        if is_end:
            protocol.connection_lost(None)

    return drive(needs, events)


def error_code(protocol: StatusProtocol) -> ReasonCode:
    error = protocol.response.exception()
    assert isinstance(error, HttpProtocolError)
    return error.code


# ---- parts


def test_each_protocol_is_done_as_soon_as_it_has_the_parts_it_needs() -> None:
    assert receive("status", HEAD).response.result() == HttpResponse(200, {}, b"")
    assert receive("head", HEAD).response.result() == HttpResponse(200, HEADERS, b"")
    assert not receive("body", HEAD, b"o").response.done()
    assert receive("body", HEAD, b"ok").response.result() == HttpResponse(200, HEADERS, b"ok")


@pytest.mark.parametrize("needs", PROTOCOLS)
def test_half_a_head_is_not_a_response(needs: Needs) -> None:
    assert not receive(needs, HEAD[:-2]).response.done()


@pytest.mark.parametrize("needs", PROTOCOLS)
def test_a_response_may_arrive_in_any_parts(needs: Needs) -> None:
    whole = HEAD + b"ok"
    by_byte = receive(needs, *(whole[at : at + 1] for at in range(len(whole))))
    assert by_byte.response.result() == receive(needs, whole).response.result()


def test_an_informational_response_is_ignored_with_its_headers() -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n"
    assert receive("head", interim + HEAD).response.result() == HttpResponse(200, HEADERS, b"")


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    assert receive("body", OPEN, b"o", b"k", is_end=True).response.result() == HttpResponse(200, {}, b"ok")
    for incomplete in (HEAD + b"o", CHUNKED + b"2\r\no", HEAD[:20], b""):
        assert error_code(receive("body", incomplete, is_end=True)) is ReasonCode.CONNECTION_CLOSED


def test_a_connection_error_is_passed_on() -> None:
    error = ConnectionResetError("reset")
    assert drive("status", lambda protocol: protocol.connection_lost(error)).response.exception() is error


# ---- limits


@pytest.mark.parametrize("needs", PROTOCOLS)
def test_another_protocol_is_a_protocol_error(needs: Needs) -> None:
    assert error_code(receive(needs, b"220 mail.example ESMTP\r\n")) is ReasonCode.PROTOCOL_ERROR


def test_the_size_of_the_head_is_limited() -> None:
    endless = b"HTTP/1.1 200 OK\r\n" + b"X-More: and more\r\n" * (MAX_HEAD_BYTES // 16)
    assert error_code(receive("status", endless)) is ReasonCode.UNEXPECTED_RESPONSE


def test_the_size_of_the_body_is_limited() -> None:
    full = b"x" * MAX_BODY_BYTES
    assert receive("body", OPEN, full, is_end=True).response.result().body == full
    assert error_code(receive("body", OPEN, full, b"x")) is ReasonCode.UNEXPECTED_RESPONSE


def test_the_number_of_trailers_is_limited() -> None:
    body = CHUNKED + b"2\r\nok\r\n0\r\n"
    assert receive("body", body + b"X: 1\r\n" * MAX_TRAILERS + b"\r\n").response.result().body == b"ok"
    assert error_code(receive("body", body + b"X: 1\r\n" * (MAX_TRAILERS + 2))) is ReasonCode.UNEXPECTED_RESPONSE


# ---- the next response on the same connection


def test_a_connection_is_idle_only_after_a_complete_response_that_keeps_it_open() -> None:
    assert receive("body", HEAD, b"ok").is_idle
    assert not receive("body", HEAD, b"o").is_idle
    assert not receive("body", HEAD, b"ok", HEAD).is_idle, "a second response without a request"
    assert not receive("body", HEAD.replace(b"X-Api: v1", b"Connection: close"), b"ok").is_idle
    assert not receive("body", HEAD, b"ok", is_end=True).is_idle


def test_the_next_response_starts_from_an_empty_state() -> None:
    def events(protocol: StatusProtocol) -> None:
        protocol.data_received(HEAD + b"ok")
        assert protocol.begin_next_request()
        assert not protocol.has_received
        assert not protocol.begin_next_request(), "a response is pending"
        protocol.data_received(b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n")

    assert drive("body", events).response.result() == HttpResponse(503, {"content-length": "0"}, b"")


def test_an_unneeded_body_is_read_and_dropped() -> None:
    async def scenario() -> tuple[BodyProtocol, HttpResponse]:
        protocol = BodyProtocol()
        protocol.data_received(HEAD + b"ok")
        return protocol, await protocol.response

    protocol, response = asyncio.run(scenario())
    assert (response.body, protocol.is_idle) == (b"", True)


# ---- JSON


@pytest.mark.parametrize(
    ("body", "document"),
    [(b"null", None), (b'{"a": 1}', {"a": 1}), (b"", INVALID_JSON), (b"ok", INVALID_JSON), (b"NaN", INVALID_JSON)],
)
def test_a_body_is_parsed_as_json(body: bytes, document: object) -> None:
    assert HttpResponse(200, {}, body).document() == document


def test_a_body_that_is_nested_too_deeply_is_invalid_json() -> None:
    assert isinstance(HttpResponse(200, {}, b"[" * 100_000).document(), InvalidJson)


@pytest.mark.parametrize(
    ("body", "name"), [(b'{"status": "down", "status": "ok"}', "status"), (b'{"lag": NaN}', "NaN")]
)
def test_the_reason_names_the_invalid_part_if_the_body_looks_like_json(body: bytes, name: str) -> None:
    document = HttpResponse(200, {}, body).document()
    assert isinstance(document, InvalidJson)
    assert name in document.reason
    assert document.suffix == f": {document.reason}"
    assert INVALID_JSON.suffix == ""
