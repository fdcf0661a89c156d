"""Bodies of requests: kept where the application reads them, otherwise only counted."""

from __future__ import annotations

import pytest

from svcnode.api.spec import Response
from svcnode.server.parser import ParsedRequest, RequestParser
from svcnode.server.state import ServerLimits

HEAD = b"PUT /v1/services/a HTTP/1.1\r\nHost: a\r\n"
WHOLE = HEAD + b"Content-Length: 11\r\n\r\nhello world"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"


def parse(data: bytes, *, keeps_body: bool = True, step: int | None = None) -> list[ParsedRequest | Response]:
    """All requests in the data, which arrives in parts of `step` bytes."""
    parser = RequestParser(ServerLimits(body_bytes=100), 100 if keeps_body else 0)
    found = []
    for start in range(0, len(data), step or len(data)):
        parser.add(data[start : start + (step or len(data))])
        while (parsed := parser.next_request()) is not None:
            found.append(parsed)
            if isinstance(parsed, Response):
                return found
    return found


def bodies(found: list[ParsedRequest | Response]) -> list[bytes]:
    return [one.request.body for one in found if isinstance(one, ParsedRequest)]


@pytest.mark.parametrize("step", [None, 1, 7])
@pytest.mark.parametrize("data", [WHOLE, CHUNKED], ids=["whole", "chunked"])
def test_a_body_is_kept_however_it_arrives(data: bytes, step: int | None) -> None:
    assert bodies(parse(data, step=step)) == [b"hello world"]


def test_a_body_is_not_part_of_the_next_request_and_not_kept_if_nothing_reads_it() -> None:
    without = HEAD + b"Content-Length: 0\r\n\r\n"
    assert bodies(parse(WHOLE + without + CHUNKED)) == [b"hello world", b"", b"hello world"]
    assert bodies(parse(WHOLE, keeps_body=False)) == [b""]


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"GET", 400),
        (b"G" * 200, 414),
        (b"\x16" * 200, 400),
    ],
    ids=["too short", "too long", "too long and not HTTP"],
)
def test_a_line_without_an_end_is_too_long_only_if_it_may_be_one_of_http(line: bytes, code: int) -> None:
    parser = RequestParser(ServerLimits(request_line_bytes=100), 0)
    parser.add(line + b"\r\n\r\n")
    response = parser.next_request()
    assert isinstance(response, Response)
    assert response.code == code


def sized(size: int, *, is_chunked: bool) -> bytes:
    if is_chunked:
        return HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % size + b"x" * size + b"\r\n0\r\n\r\n"
    return HEAD + b"Content-Length: %d\r\n\r\n" % size + b"x" * size


@pytest.mark.parametrize("is_chunked", [False, True], ids=["whole", "chunked"])
def test_only_a_body_that_is_larger_than_the_limit_is_refused(is_chunked: bool) -> None:
    assert bodies(parse(sized(100, is_chunked=is_chunked))) == [b"x" * 100]
    [refused] = parse(sized(101, is_chunked=is_chunked))
    assert isinstance(refused, Response)
    assert refused.code == 413
