"""The bytes on a connection before a response."""

from __future__ import annotations

import pytest

from svcnode.client.response_guard import MAX_HEAD_BYTES, ResponseGuard
from svcnode.core.codes import ReasonCode
from svcnode.core.errors import UnexpectedResponseError

URL = "http://node.example"


def error(*chunks: bytes) -> UnexpectedResponseError:
    guard = ResponseGuard(URL)
    with pytest.raises(UnexpectedResponseError) as caught:
        list(map(guard.receive, chunks))
    return caught.value


@pytest.mark.parametrize(
    ("chunk", "code", "shown"),
    [
        (b"\x00\x1b[2J\xff", ReasonCode.PROTOCOL_ERROR, r": \x00\x1b[2J\xff: "),
        (b"\x15\x03\x01\x00\x02\x02\x46", ReasonCode.TLS_REQUIRED, "https://"),
    ],
)
def test_bytes_that_are_not_http_are_an_error_at_once(chunk: bytes, code: ReasonCode, shown: str) -> None:
    caught = error(chunk)
    assert (caught.code, caught.url) == (code, URL)
    assert shown in str(caught)


def test_the_number_of_interim_responses_is_limited() -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\n\r\n"
    ResponseGuard(URL).receive(interim * 10)
    caught = error(*[interim] * (MAX_HEAD_BYTES // len(interim) + 1))
    assert caught.code is ReasonCode.PROTOCOL_ERROR
    assert " 256 KiB " in str(caught)


def test_a_response_may_arrive_byte_by_byte_and_its_body_is_not_checked() -> None:
    guard = ResponseGuard(URL)
    for byte in b"HTTP/1.1 200 OK":
        guard.receive(bytes([byte]))
    guard.receive(b"")
    guard.has_response = True
    guard.receive(b"SSH-2.0" * MAX_HEAD_BYTES)
