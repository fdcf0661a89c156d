"""Which responses are compressed, and that readers of the same response share the work."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from typing import TYPE_CHECKING

import pytest

from svcnode.api.spec import Request, make_response
from svcnode.operator.compression import MIN_BYTES, accepts_gzip, compressed
from tests.support.nodes import make_node
from tests.support.operator_context import operator_context
from tests.support.real_time import in_real_time

if TYPE_CHECKING:
    from svcnode.operator.context import OperatorContext

LARGE = make_response(200, b"x" * MIN_BYTES)
GZIP = Request("GET", b"/", headers={b"accept-encoding": b"gzip, deflate, br"})
PLAIN = Request("GET", b"/")


def context() -> OperatorContext:
    return operator_context(make_node())


@in_real_time
async def test_a_large_response_is_compressed_if_the_client_accepts_it() -> None:
    response = await compressed(context(), GZIP, LARGE)
    headers = dict(response.headers)
    assert gzip.decompress(response.body) == LARGE.body
    assert headers["Content-Encoding"] == "gzip"
    assert headers["Vary"] == "Accept-Encoding"
    assert headers["Content-Length"] == str(len(response.body))
    assert headers["Content-Type"] == "application/json"


@in_real_time
async def test_other_clients_get_it_as_it_is_and_caches_know_that_it_differs() -> None:
    response = await compressed(context(), PLAIN, LARGE)
    assert response.body == LARGE.body
    assert response.headers == (*LARGE.headers, ("Vary", "Accept-Encoding"))


@in_real_time
async def test_a_small_response_is_not_compressed() -> None:
    small = make_response(200, b"x" * (MIN_BYTES - 1))
    assert await compressed(context(), GZIP, small) is small


@in_real_time
async def test_readers_of_the_same_response_share_the_compressed_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def compress(body: bytes, *_: object, **__: object) -> bytes:
        calls.append(body)
        return b"compressed"

    monkeypatch.setattr(zlib, "compress", compress)
    shared = context()
    responses = await asyncio.gather(*(compressed(shared, GZIP, LARGE) for _ in range(50)))
    assert {response.body for response in responses} == {b"compressed"}
    assert len(calls) == 1


@pytest.mark.parametrize("value", [b"gzip", b"GZIP", b"br, gzip;q=0.5", b"x-gzip", b"gzip ; q=1"])
def test_gzip_is_accepted_in_every_way_to_write_it(value: bytes) -> None:
    assert accepts_gzip(value)


@pytest.mark.parametrize("value", [b"", b"br", b"gzip;q=0", b"gzip; q=0.000", b"*", b"identity", b"gzipped"])
def test_without_gzip_in_the_header_it_is_not_accepted(value: bytes) -> None:
    assert not accepts_gzip(value)
