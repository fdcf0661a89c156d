"""Receiving one HTTP response: the parts that each protocol waits for, and the limits."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from typing import TYPE_CHECKING

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.net.http_response import (
    INVALID_JSON,
    MAX_BODY_BYTES,
    MAX_HEAD_BYTES,
    MAX_TRAILERS,
    PROTOCOLS,
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


def test_each_protocol_is_done_as_soon_as_it_has_the_parts_it_needs() -> None:
    assert receive("status", HEAD).response.result() == HttpResponse(200, {}, b"")
    assert receive("head", HEAD).response.result() == HttpResponse(200, HEADERS, b"")
    assert not receive("body", HEAD, b"o").response.done()
    assert receive("body", HEAD, b"ok").response.result() == HttpResponse(200, HEADERS, b"ok")


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


def test_the_sizes_of_the_head_and_the_body_and_the_number_of_trailers_are_limited() -> None:
    endless = b"HTTP/1.1 200 OK\r\n" + b"X-More: and more\r\n" * (MAX_HEAD_BYTES // 16)
    assert error_code(receive("status", endless)) is ReasonCode.UNEXPECTED_RESPONSE
    full = b"x" * MAX_BODY_BYTES
    assert receive("body", OPEN, full, is_end=True).response.result().body == full
    assert error_code(receive("body", OPEN, full, b"x")) is ReasonCode.UNEXPECTED_RESPONSE
    body = CHUNKED + b"2\r\nok\r\n0\r\n"
    assert receive("body", body + b"X: 1\r\n" * MAX_TRAILERS + b"\r\n").response.result().body == b"ok"
    assert error_code(receive("body", body + b"X: 1\r\n" * (MAX_TRAILERS + 2))) is ReasonCode.UNEXPECTED_RESPONSE


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


@pytest.mark.parametrize(
    ("body", "document"),
    [
        (b"null", None),
        ('{"a": 1}'.encode("utf-8-sig"), {"a": 1}),
        (b"", INVALID_JSON),
        (b"ok", INVALID_JSON),
        (b"NaN", INVALID_JSON),
    ],
)
def test_a_body_is_parsed_as_json(body: bytes, document: object) -> None:
    assert HttpResponse(200, {}, body).document() == document


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"status": "down", "status": "ok"}', "status"),
        (b'{"lag": NaN}', "NaN"),
        ('{"status": "up"}'.encode("utf-16-be"), "UTF-16"),
        ('{"status": "up"}'.encode("utf-32"), "UTF-32"),
    ],
)
def test_the_reason_names_the_invalid_part_or_encoding_of_what_looks_like_json(body: bytes, name: str) -> None:
    document = HttpResponse(200, {}, body).document()
    assert isinstance(document, InvalidJson)
    assert name in document.reason
    assert document.suffix == f": {document.reason}"
    assert INVALID_JSON.suffix == ""


# ---- deviations that common clients accept


LF_HEAD = b"HTTP/1.1 200 OK\nX-Api: v1\nContent-Length: 2\n\n"
IRREGULAR = {
    "LF only": LF_HEAD,
    "CRLF and LF": b"HTTP/1.1 200 OK\r\nX-Api: v1\nContent-Length: 2\r\n\n",
    "LF after a 100": b"HTTP/1.1 100 Continue\n\n" + LF_HEAD,
    "LF after a regular 100": b"HTTP/1.1 100 Continue\r\n\r\n" + LF_HEAD,
    "two lengths": b"HTTP/1.1 200 OK\r\nX-Api: v1\r\nContent-Length: 2\r\ncontent-length:  2 \r\n\r\n",
    "one length with two values": b"HTTP/1.1 200 OK\r\nX-Api: v1\r\nContent-Length: 2, 2\r\n\r\n",
}


@pytest.mark.parametrize("head", IRREGULAR.values(), ids=IRREGULAR)
def test_an_irregular_head_is_accepted_and_its_connection_not_reused(head: bytes) -> None:
    assert receive("status", head).response.result().status == 200
    assert receive("head", head).response.result() == HttpResponse(200, HEADERS, b"")
    whole, pieces = receive("body", head + b"ok"), receive("body", head[:30], head[30:], b"o", b"k")
    for protocol in (whole, pieces):
        assert protocol.response.result() == HttpResponse(200, HEADERS, b"ok")
        assert not protocol.is_idle
        assert not protocol.begin_next_request()


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2, 3\r\n\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 2\nContent-Length: 3\n\n",
        b"HTTP/1.1 200 OK\nContent-Length: 2\nTransfer-Encoding: chunked\n\n",
        b"HTTP/1.1 200 OK\nno colon\n\n",
        b"SSH-2.0-OpenSSH\n",
        b"<html>\n\n",
    ],
)
def test_other_irregular_heads_are_rejected(head: bytes) -> None:
    for needs in PROTOCOLS:
        assert error_code(receive(needs, head)) is ReasonCode.PROTOCOL_ERROR


def test_an_irregular_head_in_very_many_parts_is_rejected() -> None:
    parts = [bytes([byte]) for byte in b"HTTP/1.1 200 OK\n" + b"X: y\n" * 100]
    assert error_code(receive("head", *parts)) is ReasonCode.PROTOCOL_ERROR
    assert receive("head", *parts[:60], b"\n\n").response.result().status == 200


def encoded(encoding: str, body: bytes, status: int = 200) -> bytes:
    return f"HTTP/1.1 {status} X\r\nContent-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


RAW_DEFLATE = zlib.compressobj(wbits=-15)
COMPRESSED = {
    "gzip": encoded("gzip", gzip.compress(b"hello")),
    "x-gzip in capitals": encoded("X-Gzip", gzip.compress(b"hello")),
    "two members": encoded("gzip", gzip.compress(b"hel") + gzip.compress(b"lo")),
    "with data after it": encoded("gzip", gzip.compress(b"hello") + b"\0\0"),
    "deflate": encoded("deflate", zlib.compress(b"hello")),
    "deflate without a header": encoded("deflate", RAW_DEFLATE.compress(b"hello") + RAW_DEFLATE.flush()),
    "identity": encoded("identity", b"hello"),
}


@pytest.mark.parametrize("response", COMPRESSED.values(), ids=COMPRESSED)
def test_a_compressed_body_is_decoded(response: bytes) -> None:
    assert receive("body", response).response.result().body == b"hello"


@pytest.mark.parametrize(
    "response",
    [
        encoded("br", b"\x0b\x02\x80hello\x03"),
        encoded("zstd", b"x"),
        encoded("gzip, gzip", gzip.compress(gzip.compress(b"hello"))),
        encoded("gzip", b"not gzip"),
        encoded("gzip", gzip.compress(b"hello")[:-4]),
        encoded("deflate", b"not deflate"),
        encoded("gzip", gzip.compress(b"") * 200),
    ],
    ids=["br", "zstd", "twice", "no gzip", "incomplete", "no deflate", "many members"],
)
def test_a_body_that_cannot_be_decoded_is_an_error(response: bytes) -> None:
    assert error_code(receive("body", response)) is ReasonCode.UNEXPECTED_RESPONSE


def test_a_body_is_decoded_up_to_the_limit() -> None:
    def response(size: int) -> bytes:
        return encoded("gzip", b"".join(map(gzip.compress, (bytes(size - 1), b"x"))))

    assert len(receive("body", response(MAX_BODY_BYTES)).response.result().body) == MAX_BODY_BYTES
    assert error_code(receive("body", response(MAX_BODY_BYTES + 1))) is ReasonCode.UNEXPECTED_RESPONSE
    assert error_code(receive("body", response(3 * MAX_BODY_BYTES))) is ReasonCode.UNEXPECTED_RESPONSE


@pytest.mark.parametrize(("size", "is_read"), [(3 * MAX_BODY_BYTES, True), (3 * MAX_BODY_BYTES + 1, False)])
def test_a_request_may_allow_a_larger_body(size: int, is_read: bool) -> None:
    def events(protocol: StatusProtocol) -> None:
        protocol.max_body_bytes = 3 * MAX_BODY_BYTES
        protocol.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))

    protocol = drive("body", events)
    if is_read:
        assert len(protocol.response.result().body) == size
    else:
        assert error_code(protocol) is ReasonCode.UNEXPECTED_RESPONSE


def test_a_body_that_is_not_needed_or_of_an_error_need_not_be_decodable() -> None:
    def events(protocol: StatusProtocol) -> None:
        protocol.collects_body = False
        protocol.data_received(encoded("gzip", b"not gzip"))

    assert drive("body", events).response.result().status == 200
    assert receive("head", encoded("br", b"x")).response.result().status == 200
    assert receive("body", encoded("br", b"x", status=503)).response.result().status == 503
