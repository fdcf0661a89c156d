"""The `/events` handler: where a stream begins, and which requests are rejected."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from svcnode.api.app import StreamingResponse
from svcnode.api.spec import Request, Response
from svcnode.operator.events import INVALID_EVENT_ID, events
from svcnode.operator.streams import TOO_MANY_STREAMS


class FakeHub:
    def __init__(self, *, is_full: bool = False) -> None:
        self.is_full = is_full
        self.calls: list[int | None] = []

    async def stream_to(self, writer: object, after: int | None) -> None:
        self.calls.append(after)


def get(hub: FakeHub, query: bytes = b"", **headers: bytes) -> Response | StreamingResponse:
    context: Any = type("Context", (), {"events": hub})
    encoded = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    return asyncio.run(events(context, Request("GET", b"/events", query, encoded), ""))


@pytest.mark.parametrize(
    ("query", "headers", "after"),
    [
        (b"", {}, None),
        (b"after=12", {}, 12),
        (b"", {"last_event_id": b"12"}, 12),
        (b"after=5", {"last_event_id": b"12"}, 12),
        (b"after=0", {}, 0),
        (b"after=007", {}, 7),
    ],
)
def test_the_last_event_id_comes_from_header_or_query_and_a_stream_is_neither_cached_nor_buffered(
    query: bytes, headers: dict[str, bytes], after: int | None
) -> None:
    hub = FakeHub()
    stream = get(hub, query, **headers)
    assert isinstance(stream, StreamingResponse)
    asyncio.run(_run(stream))
    assert hub.calls == [after]
    assert dict(stream.head.headers) == {
        "Content-Type": "text/event-stream",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "X-Accel-Buffering": "no",
    }


async def _run(stream: StreamingResponse) -> None:
    writer: Any = object()
    await stream.write_body(writer)


@pytest.mark.parametrize("text", [b"", b"x", b"-1", b"1.0", b" 1", b"+1", b"1_0", b"\xff", "٣".encode(), b"9" * 20])
def test_an_invalid_event_id_is_rejected(text: bytes) -> None:
    assert get(FakeHub(), last_event_id=text) is INVALID_EVENT_ID
    assert INVALID_EVENT_ID.code == 400


def test_a_stream_beyond_the_limit_is_rejected_with_retry_after() -> None:
    assert get(FakeHub(is_full=True)) is TOO_MANY_STREAMS
    assert TOO_MANY_STREAMS.code == 503
    assert dict(TOO_MANY_STREAMS.headers)["Retry-After"]


def test_an_unknown_parameter_is_rejected_with_the_one_that_exists() -> None:
    response = get(FakeHub(), b"since=12", last_event_id=b"12")
    assert isinstance(response, Response)
    assert (response.code, "after" in json.loads(response.body)["message"]) == (400, True)
