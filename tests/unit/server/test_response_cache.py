"""Encoded responses: when they expire, and how many are stored. The test sets both clocks."""

from __future__ import annotations

import errno
import os
import re
from email.utils import formatdate
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcnode.api.spec import Request, Response, make_response
from svcnode.core.model import SPEC_VERSION, Identity
from svcnode.node.node_state import NodeState
from svcnode.server import response_cache
from svcnode.server.response_cache import MEMFD_MIN_BYTES, MemfdResponse, ResolvedRequest, ResponseCache, http_date
from tests.support.virtual_time import VirtualClock

if TYPE_CHECKING:
    from svcnode.core.model import Health

RAW = b"GET /svc/node/health HTTP/1.1\r\nHost: node.example\r\n\r\n"
NOW_S = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT, the start of a second


class Clocks:
    """A monotonic clock and a wall clock that advance together."""

    def __init__(self) -> None:
        self.monotonic = VirtualClock(5000.0)
        self.wall = VirtualClock(NOW_S)

    def advance(self, by_s: float) -> None:
        self.monotonic.advance(by_s)
        self.wall.advance(by_s)


IDENTITY = Identity(node_name="validator-7", spec_version=SPEC_VERSION, node_version="v1")


class CountingNode(NodeState):
    """Counts the reads of its health: one per response that is made."""

    reads = 0

    @property
    def health(self) -> Health:
        self.reads += 1
        return super().health


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def node(clocks: Clocks) -> CountingNode:
    return CountingNode(IDENTITY, clock=clocks.monotonic)


@pytest.fixture
def cache(node: NodeState, clocks: Clocks) -> ResponseCache:
    return ResponseCache(node, ("/svc",), clocks.monotonic, clocks.wall)


def get(cache: ResponseCache, clocks: Clocks, raw: bytes = RAW) -> bytes:
    response = cache.get(raw, clocks.monotonic())
    assert response is not None
    return response


def code_of(response: bytes) -> int:
    return int(response.split(b" ")[1])


def date_of(response: bytes) -> str:
    found = re.search(rb"\r\nDate: ([^\r]+)\r\n", response)
    assert found is not None
    return found[1].decode()


@pytest.fixture
def warm_cache(cache: ResponseCache) -> ResponseCache:
    cache.put(RAW, cache.resolve(Request("GET", b"/svc/node/health")))
    return cache


def test_a_response_is_made_once(warm_cache: ResponseCache, node: CountingNode, clocks: Clocks) -> None:
    responses = {get(warm_cache, clocks) for _ in range(100)}
    assert len(responses) == 1
    assert node.reads == 1


def test_a_change_of_the_node_expires_every_response(
    warm_cache: ResponseCache, node: NodeState, clocks: Clocks
) -> None:
    assert code_of(get(warm_cache, clocks)) == 200
    node.overrides.set_issue("clock skew")
    assert code_of(get(warm_cache, clocks)) == 503
    node.overrides.clear_issue()
    assert code_of(get(warm_cache, clocks)) == 200


def test_a_new_second_changes_the_date_without_reading_the_node(
    warm_cache: ResponseCache, node: CountingNode, clocks: Clocks
) -> None:
    for step_s, second in ((0.5, 20), (0.375, 20), (0.125, 21), (0.875, 21), (0.125, 22)):
        clocks.advance(step_s)  # the first response is made in the middle of a second
        assert date_of(get(warm_cache, clocks)) == f"Tue, 14 Nov 2023 22:13:{second} GMT"
    assert node.reads == 1


def test_stale_evidence_expires_every_response(warm_cache: ResponseCache, node: NodeState, clocks: Clocks) -> None:
    node.register("worker", ttl=0.25).up()
    assert code_of(get(warm_cache, clocks)) == 200
    clocks.advance(0.1875)
    assert code_of(get(warm_cache, clocks)) == 200
    clocks.advance(0.0625)
    assert code_of(get(warm_cache, clocks)) == 503


def test_a_change_between_a_response_and_its_encoding_expires_it(clocks: Clocks) -> None:
    class DrainsAfterRead(NodeState):
        """Between the response and its encoding the second changes, and another thread drains the node."""

        @property
        def health(self) -> Health:
            health = super().health
            clocks.advance(1.0)
            self.overrides.drain()
            return health

    node = DrainsAfterRead(IDENTITY, clock=clocks.monotonic)
    cache = ResponseCache(node, ("/svc",), clocks.monotonic, clocks.wall)
    cache.put(RAW, cache.resolve(Request("GET", b"/svc/node/health")))
    assert code_of(get(cache, clocks)) == 200
    assert code_of(get(cache, clocks)) == 503


def test_a_wall_clock_that_is_set_back_delays_expiry_by_at_most_a_second(
    warm_cache: ResponseCache, clocks: Clocks
) -> None:
    get(warm_cache, clocks)
    clocks.wall.advance(-3600.0)
    clocks.monotonic.advance(1.0)
    assert date_of(get(warm_cache, clocks)) == "Tue, 14 Nov 2023 21:13:20 GMT"


@given(st.floats(min_value=0.0, max_value=4e9))
def test_a_date_has_the_format_of_http(wall_s: float) -> None:
    assert http_date(wall_s) == formatdate(int(wall_s), usegmt=True)


def test_a_long_request_is_not_stored(cache: ResponseCache, clocks: Clocks) -> None:
    request = cache.resolve(Request("GET", b"/svc/node"))
    longest = b"x" * response_cache.MAX_CACHED_REQUEST_BYTES
    assert cache.get(longest, clocks.monotonic()) is None
    cache.put(longest, request)
    cache.put(longest + b"x", request)
    assert cache.get(longest, clocks.monotonic()) is not None
    assert cache.get(longest + b"x", clocks.monotonic()) is None


def test_ever_new_requests_do_not_fill_the_memory(
    cache: ResponseCache, clocks: Clocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_cache, "MAX_ENTRIES", 20)
    for number in range(3 * response_cache.MAX_ENTRIES + 5):
        raw = b"request %d" % number
        cache.put(raw, cache.resolve(Request("GET", b"/svc/node/services/%d/health" % number)))
        assert cache.get(raw, clocks.monotonic()) is not None
    for entries in (cache._requests, cache._by_raw, cache._resolved, cache._by_handler, cache._by_request):
        assert 0 < len(entries) <= response_cache.MAX_ENTRIES


def test_equal_requests_share_one_response(cache: ResponseCache, node: CountingNode, clocks: Clocks) -> None:
    for raw, query in ((b"first", b""), (b"second", b"version=v0.0.1"), (b"third", b"version=0.0.1&n=3")):
        cache.put(raw, cache.resolve(Request("GET", b"/svc/node/health", query)))
    responses = [cache.get(raw, clocks.monotonic()) for raw in (b"first", b"second", b"third")]
    assert responses[0] is responses[1] is responses[2]
    assert node.reads == 1


def test_a_large_response_has_a_memory_file_that_closes_with_it(cache: ResponseCache, node: NodeState) -> None:
    for number in range(1000):
        node.register(f"svc-{number}", description="x" * 64)
    response = cache.encoded_response(cache.resolve(Request("GET", b"/svc/node/services")))
    assert isinstance(response, MemfdResponse)
    fd = response.fd
    assert os.pread(fd, 2 * len(response), 0) == response
    node.overrides.drain()
    cache.current_response(cache.resolve(Request("GET", b"/svc/node/health")))
    del response
    with pytest.raises(OSError) as raised:
        os.fstat(fd)
    assert raised.value.errno == errno.EBADF


@pytest.mark.parametrize("call", ["memfd_create", "write"], ids=["too many files", "disk full"])
def test_a_large_response_is_complete_without_its_memory_file(
    cache: ResponseCache, node: NodeState, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    node.register("db-1", description="x" * MEMFD_MIN_BYTES)
    response = cache.encoded_response(cache.resolve(Request("GET", b"/svc/node/services")))
    monkeypatch.undo()
    assert b"x" * MEMFD_MIN_BYTES in response
    assert isinstance(response, MemfdResponse) is (call == "write")


def test_new_prefixes_replace_everything_stored(warm_cache: ResponseCache, clocks: Clocks) -> None:
    assert code_of(get(warm_cache, clocks)) == 200
    warm_cache.set_routing(("/eigen",), None)
    assert warm_cache.get(RAW, clocks.monotonic()) is None
    for prefix, code in ((b"/svc", 404), (b"/eigen", 200)):
        assert warm_cache.current_response(warm_cache.resolve(Request("GET", prefix + b"/node/health"))).code == code


def test_a_response_is_a_status_line_headers_and_a_body_and_head_gets_no_body(cache: ResponseCache) -> None:
    assert cache.encoded_response(cache.resolve(Request("GET", b"/nowhere"))) == (
        b"HTTP/1.1 404 Not Found\r\n"
        b"Content-Type: application/json\r\n"
        b"Cache-Control: no-store\r\n"
        b"X-Content-Type-Options: nosniff\r\n"
        b"Content-Length: 23\r\n"
        b"Date: Tue, 14 Nov 2023 22:13:20 GMT\r\n"
        b"\r\n"
        b'{"message":"Not found"}'
    )
    assert cache.encode(make_response(299)).startswith(b"HTTP/1.1 299 \r\n"), "a code without a standard phrase"
    head = cache.encoded_response(cache.resolve(Request("HEAD", b"/svc/node")))
    assert head.endswith(b"\r\n\r\n")
    assert cache.encoded_response(cache.resolve(Request("GET", b"/svc/node"))).startswith(head)


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_the_connection_header_is_sent_only_if_needed(cache: ResponseCache, connection: str) -> None:
    request = cache.resolve(Request("GET", b"/svc/node"))
    response = cache.current_response(request)
    assert f"\r\nConnection: {connection}\r\n".encode() in cache.encode(response, connection=connection)
    assert b"Connection" not in cache.encoded_response(request)


def test_the_cause_of_an_internal_error_is_logged_and_not_sent(
    cache: ResponseCache, caplog: pytest.LogCaptureFixture
) -> None:
    cause = RuntimeError("secret")
    request = ResolvedRequest(lambda _: Response(503, cause=cause), is_head=False)
    assert b"secret" not in cache.encoded_response(request)
    [record] = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is cause
