"""What comes on a connection before an answer."""

from __future__ import annotations

import pytest

from svcnode.client.stream_guard import MAX_HEAD_BYTES, StreamGuard
from svcnode.core.errors import UnexpectedResponseError

URL = "http://node.example"


def refusal(*chunks: bytes) -> str:
    connection = StreamGuard(URL)
    with pytest.raises(UnexpectedResponseError) as refused:
        list(map(connection.receive, chunks))
    return str(refused.value)


@pytest.mark.parametrize(
    ("chunk", "what"),
    [
        (b"SSH-2.0-OpenSSH_9.9\r\n", "something else: SSH-2.0-OpenSSH_9.9"),
        (b"-ERR unknown command", "something else: -ERR unknown command"),
        (b"\x00\x1b[2J\xff", r"something else: \x00\x1b[2J\xff"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "TLS (is it https://?)"),
    ],
)
def test_what_does_not_begin_as_http_does_is_shown_at_once(chunk: bytes, what: str) -> None:
    assert refusal(chunk) == f"expected HTTP, got {what} at {URL}"


def test_interim_answers_may_come_but_not_for_ever() -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\n\r\n"
    StreamGuard(URL).receive(interim * 10)
    text = refusal(*[interim] * (MAX_HEAD_BYTES // len(interim) + 1))
    assert text == f"expected HTTP, got 256 KiB without an answer at {URL}"


def test_an_answer_may_come_byte_by_byte_and_its_body_is_not_listened_to() -> None:
    connection = StreamGuard(URL)
    for byte in b"HTTP/1.1 200 OK":
        connection.receive(bytes([byte]))
    connection.receive(b"")
    connection.has_response = True
    connection.receive(b"SSH-2.0" * MAX_HEAD_BYTES)
