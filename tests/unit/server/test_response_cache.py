"""Ready answers: how long each lives, and how many there may be. Both clocks are in the hands of the test."""

from __future__ import annotations

import errno
import os
import re
from email.utils import formatdate
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from svcnode.api.spec import NOT_FOUND, Response, make_response
from svcnode.node import Node
from svcnode.server import response_cache
from svcnode.server.response_cache import MEMFD_MIN_BYTES, MemfdResponse, ResolvedRequest, ResponseCache, http_date
from tests.support.virtual_time import VirtualClock

if TYPE_CHECKING:
    from svcnode.core.model import Health

RAW = b"GET /svc/node/health HTTP/1.1\r\nHost: node.example\r\n\r\n"
NOW_S = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT, at the very turn of the second


class Clocks:
    """A monotonic clock and a wall clock that pass together."""

    def __init__(self) -> None:
        self.monotonic = VirtualClock(5000.0)
        self.wall = VirtualClock(NOW_S)

    def advance(self, by_s: float) -> None:
        self.monotonic.advance(by_s)
        self.wall.advance(by_s)


class CountingNode(Node):
    """Counts how often its health is asked for, which is how often an answer is made."""

    queries = 0

    @property
    def health(self) -> Health:
        self.queries += 1
        return super().health


@pytest.fixture
def clocks() -> Clocks:
    return Clocks()


@pytest.fixture
def node(clocks: Clocks) -> CountingNode:
    return CountingNode("validator-7", version="v1", clock=clocks.monotonic)


@pytest.fixture
def table(node: Node, clocks: Clocks) -> ResponseCache:
    return ResponseCache(node, ("/svc",), clocks.monotonic, clocks.wall)


def ask(table: ResponseCache, clocks: Clocks, raw: bytes = RAW) -> bytes:
    response = table.get(raw, clocks.monotonic())
    assert response is not None
    return response


def code_of(response: bytes) -> int:
    return int(response.split(b" ")[1])


def date_of(response: bytes) -> str:
    found = re.search(rb"\r\nDate: ([^\r]+)\r\n", response)
    assert found is not None
    return found[1].decode()


@pytest.fixture
def remembering(table: ResponseCache) -> ResponseCache:
    table.put(RAW, table.resolve("GET", b"/svc/node/health", b""))
    return table


# ---- the life of a ready answer


def test_what_nobody_remembers_is_not_recalled(table: ResponseCache, clocks: Clocks) -> None:
    assert table.get(RAW, clocks.monotonic()) is None


def test_an_answer_is_made_once_and_then_only_looked_up(
    remembering: ResponseCache, node: CountingNode, clocks: Clocks
) -> None:
    responses = {ask(remembering, clocks) for _ in range(100)}
    assert len(responses) == 1
    assert node.queries == 1


def test_a_change_of_the_node_ends_every_ready_answer(remembering: ResponseCache, node: Node, clocks: Clocks) -> None:
    assert code_of(ask(remembering, clocks)) == 200
    node.set_issue("clock skew")
    assert code_of(ask(remembering, clocks)) == 503
    node.clear_issue()
    assert code_of(ask(remembering, clocks)) == 200


def test_the_turn_of_the_second_changes_the_date_and_asks_the_node_nothing(
    remembering: ResponseCache, node: CountingNode, clocks: Clocks
) -> None:
    assert date_of(ask(remembering, clocks)) == "Tue, 14 Nov 2023 22:13:20 GMT"
    clocks.advance(0.75)
    assert date_of(ask(remembering, clocks)) == "Tue, 14 Nov 2023 22:13:20 GMT"
    assert node.queries == 1
    clocks.advance(0.25)
    assert date_of(ask(remembering, clocks)) == "Tue, 14 Nov 2023 22:13:21 GMT"
    assert node.queries == 1


def test_an_answer_made_late_in_a_second_lives_only_for_the_rest_of_it(
    remembering: ResponseCache, clocks: Clocks
) -> None:
    clocks.advance(0.875)
    assert date_of(ask(remembering, clocks)) == "Tue, 14 Nov 2023 22:13:20 GMT"
    clocks.advance(0.125)
    assert date_of(ask(remembering, clocks)) == "Tue, 14 Nov 2023 22:13:21 GMT"


def test_the_moment_of_a_lapse_ends_every_ready_answer(remembering: ResponseCache, node: Node, clocks: Clocks) -> None:
    node.register("worker", ttl=0.25).up()
    assert code_of(ask(remembering, clocks)) == 200
    clocks.advance(0.1875)
    assert code_of(ask(remembering, clocks)) == 200
    clocks.advance(0.0625)
    assert code_of(ask(remembering, clocks)) == 503


def test_a_service_that_keeps_beating_keeps_its_answer(remembering: ResponseCache, node: Node, clocks: Clocks) -> None:
    node.register("worker", ttl=0.25)
    for _ in range(20):
        node.beat("worker")
        clocks.advance(0.125)
        assert code_of(ask(remembering, clocks)) == 200


def test_a_change_between_an_answer_and_its_encoding_ends_it_at_once(clocks: Clocks) -> None:
    class DrainsWhenItHasAnswered(Node):
        """Between the answer and its encoding the second turns, and another thread drains the node."""

        @property
        def health(self) -> Health:
            answered = super().health
            clocks.advance(1.0)
            self.drain()
            return answered

    node = DrainsWhenItHasAnswered("validator-7", version="v1", clock=clocks.monotonic)
    table = ResponseCache(node, ("/svc",), clocks.monotonic, clocks.wall)
    table.put(RAW, table.resolve("GET", b"/svc/node/health", b""))
    assert code_of(ask(table, clocks)) == 200
    assert code_of(ask(table, clocks)) == 503


def test_a_wall_clock_that_is_set_back_keeps_no_answer_for_longer_than_a_second(
    remembering: ResponseCache, clocks: Clocks
) -> None:
    ask(remembering, clocks)
    clocks.wall.advance(-3600.0)
    clocks.monotonic.advance(1.0)
    assert date_of(ask(remembering, clocks)) == "Tue, 14 Nov 2023 21:13:20 GMT"


@given(st.floats(min_value=0.0, max_value=4e9))
def test_a_date_is_written_as_http_wants_it(wall_s: float) -> None:
    assert http_date(wall_s) == formatdate(int(wall_s), usegmt=True)


# ---- memory


def test_a_request_is_remembered_once(remembering: ResponseCache, clocks: Clocks) -> None:
    another = remembering.resolve("GET", b"/svc/nowhere", b"")
    remembering.put(RAW, another)
    assert code_of(ask(remembering, clocks)) == 404


def test_a_long_request_is_not_remembered(table: ResponseCache, clocks: Clocks) -> None:
    target = table.resolve("GET", b"/svc/node", b"")
    longest = b"x" * response_cache.MAX_CACHED_REQUEST_BYTES
    table.put(longest, target)
    table.put(longest + b"x", target)
    assert table.get(longest, clocks.monotonic()) is not None
    assert table.get(longest + b"x", clocks.monotonic()) is None


def test_somebody_who_asks_for_ever_new_things_does_not_fill_the_memory(table: ResponseCache, clocks: Clocks) -> None:
    for number in range(3 * response_cache.MAX_ENTRIES + 5):
        raw = b"request %d" % number
        table.put(raw, table.resolve("GET", b"/svc/node/services/%d/health" % number, b""))
        assert table.get(raw, clocks.monotonic()) is not None
    for kept in (table._requests, table._by_raw, table._resolved, table._by_handler, table._by_request):
        assert 0 < len(kept) <= response_cache.MAX_ENTRIES


def test_one_answer_serves_everybody_who_asks_for_the_same(
    table: ResponseCache, node: CountingNode, clocks: Clocks
) -> None:
    for raw, query in ((b"one way", b""), (b"another", b"version=v0.0.1"), (b"a third", b"version=0.0.1&n=3")):
        table.put(raw, table.resolve("GET", b"/svc/node/health", query))
    responses = [table.get(raw, clocks.monotonic()) for raw in (b"one way", b"another", b"a third")]
    assert responses[0] is responses[1] is responses[2]
    assert node.queries == 1


def test_a_large_answer_is_also_a_file_that_ends_with_it(table: ResponseCache, node: Node) -> None:
    for number in range(1000):
        node.register(f"svc-{number}", description="x" * 64)
    response = table.encoded_response(table.resolve("GET", b"/svc/node/services", b""))
    assert isinstance(response, MemfdResponse)
    file = response.fd
    assert os.pread(file, 2 * len(response), 0) == response
    node.drain()
    table.current_response(table.resolve("GET", b"/svc/node/health", b""))
    del response
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


def test_a_large_answer_needs_no_file(table: ResponseCache, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_file(name: str) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "memfd_create", no_file)
    node.register("db-1", description="x" * MEMFD_MIN_BYTES)
    response = table.encoded_response(table.resolve("GET", b"/svc/node/services", b""))
    assert type(response) is bytes
    assert b"x" * MEMFD_MIN_BYTES in response


def test_a_large_answer_is_whole_where_its_file_is_not(
    table: ResponseCache, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(file: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", no_room)
    node.register("db-1", description="x" * MEMFD_MIN_BYTES)
    response = table.encoded_response(table.resolve("GET", b"/svc/node/services", b""))
    monkeypatch.undo()
    assert b"x" * MEMFD_MIN_BYTES in response


def test_the_same_question_has_the_same_target(table: ResponseCache) -> None:
    assert table.resolve("GET", b"/svc/node", b"") is table.resolve("GET", b"/svc/node", b"")
    assert table.resolve("GET", b"/svc/node", b"") is not table.resolve("HEAD", b"/svc/node", b"")


def test_another_query_is_another_question(table: ResponseCache) -> None:
    assert table.current_response(table.resolve("GET", b"/svc/node", b"version=v9")).code == 404
    assert table.current_response(table.resolve("GET", b"/svc/node", b"")).code == 200


# ---- the bytes


def test_a_response_is_a_status_line_headers_and_a_body(table: ResponseCache) -> None:
    assert table.encoded_response(table.resolve("GET", b"/nowhere", b"")) == (
        b"HTTP/1.1 404 Not Found\r\n"
        b"Content-Type: application/json\r\n"
        b"Cache-Control: no-store\r\n"
        b"X-Content-Type-Options: nosniff\r\n"
        b"Content-Length: 23\r\n"
        b"Date: Tue, 14 Nov 2023 22:13:20 GMT\r\n"
        b"\r\n"
        b'{"message":"Not found"}'
    )


def test_head_gets_the_head_of_what_get_gets(table: ResponseCache) -> None:
    head = table.encoded_response(table.resolve("HEAD", b"/svc/node", b""))
    assert head.endswith(b"\r\n\r\n")
    assert table.encoded_response(table.resolve("GET", b"/svc/node", b"")).startswith(head)


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_what_becomes_of_the_connection_is_said_where_it_is_needed(table: ResponseCache, connection: str) -> None:
    target = table.resolve("GET", b"/svc/node", b"")
    assert f"\r\nConnection: {connection}\r\n".encode() in table.encoded_response(target, connection)
    assert b"Connection" not in table.encoded_response(target)


def test_a_code_without_a_name_has_none(table: ResponseCache) -> None:
    assert table.encode(make_response(299)).startswith(b"HTTP/1.1 299 \r\n")


def test_an_answer_that_is_encoded_late_has_the_date_of_that_moment(table: ResponseCache, clocks: Clocks) -> None:
    table.encode(NOT_FOUND)
    clocks.advance(3600.0)
    assert date_of(table.encode(NOT_FOUND)) == "Tue, 14 Nov 2023 23:13:20 GMT"


def test_a_failure_inside_is_logged_with_its_cause_and_not_sent(
    table: ResponseCache, caplog: pytest.LogCaptureFixture
) -> None:
    cause = RuntimeError("the secret cause")
    target = ResolvedRequest(lambda _: Response(503, cause=cause), is_head=False)
    assert b"secret" not in table.encoded_response(target)
    [record] = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is cause
