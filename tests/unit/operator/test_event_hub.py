"""Every event stream gets every transition once and in order, whenever it begins."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.history import Transition
from svcnode.operator import event_hub, streams
from svcnode.operator.event_hub import MAX_RECENT_EVENTS, PAGE_EVENTS, EventHub, encode_event
from svcnode.operator.streams import HEARTBEAT, PREAMBLE
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable

GAP = "gap"


def transition(number: int, **changes: Any) -> Transition:
    fields: dict[str, Any] = {
        "id": number,
        "at_s": float(number),
        "kind": "status",
        "service_id": "db",
        "before": "Up",
        "after": "Down",
        "reason": "refused",
        "code": "connection_refused",
        "health_before": 200,
        "health": 206,
    }
    return Transition(**fields | changes)


class FakeHistory:
    """Stores every published transition by default; a query takes one turn of the loop."""

    def __init__(self, *stored: int) -> None:
        self.stored = [transition(number) for number in stored]
        self.last_id = stored[-1] if stored else 0
        self.pruned_to = 0
        self.queries: list[int] = []
        self.during_query: Callable[[], None] = lambda: None

    def subscribe(self, listener: Callable[[Transition], None]) -> None:
        self._listener = listener

    def store(self, number: int) -> None:
        """As the writer thread does, before the loop publishes."""
        self.stored.append(transition(number))

    def publish(self, *numbers: int, is_stored: bool = True) -> None:
        for number in numbers:
            if is_stored and (not self.stored or self.stored[-1].id < number):
                self.store(number)
            self.last_id = number
            self._listener(transition(number))

    async def after(self, transition_id: int, limit: int = 500) -> list[Transition]:
        self.queries.append(transition_id)
        await asyncio.sleep(0)
        self.during_query()
        return [one for one in self.stored if one.id > transition_id][:limit]


class FakeWriter:
    max_live_s: float | None = None

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.buffered_bytes = 0
        self.is_reading = asyncio.Event()
        self.is_reading.set()

    def write(self, data: bytes) -> None:
        self.written.append(data)
        self.buffered_bytes += len(data)

    async def drain(self) -> None:
        await self.is_reading.wait()
        self.buffered_bytes = 0

    @property
    def events(self) -> list[int | str]:
        """The ids of the events, and the gaps between them."""
        return [
            _id_or_name(event) for event in b"".join(self.written).split(b"\n\n") if event.startswith((b"id", b"ev"))
        ]


def _id_or_name(event: bytes) -> int | str:
    fields = dict(line.split(": ", 1) for line in event.decode().splitlines())
    return int(fields["id"]) if "id" in fields else fields["event"]


class HubHarness:
    """A hub and its streams, which are closed at the end of the block."""

    def __init__(self, *stored: int) -> None:
        self.history = FakeHistory(*stored)
        self.hub = EventHub(self.history)  # type: ignore[arg-type]
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> HubHarness:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert self.hub.stream_count == 0

    async def reader(self, after: int | None = None) -> FakeWriter:
        """The writer of a stream that has finished its replay."""
        writer, _ = await self.connect(after)
        assert writer in self.hub._live
        return writer

    async def connect(
        self, after: int | None = None, *, loop_turns: int = 200
    ) -> tuple[FakeWriter, asyncio.Task[None]]:
        writer = FakeWriter()
        task = asyncio.create_task(self.hub.stream_to(writer, after))
        self._tasks.append(task)
        for _ in range(loop_turns):
            await asyncio.sleep(0)
        return writer, task


def test_an_event_has_its_id_and_one_line_of_json() -> None:
    lines = encode_event(transition(7, at_s=1.5, reason='a "b"\nc\r\nd', service_id="ü<script>")).decode()
    head, event, data, *end = lines.split("\n")
    assert (head, event, end) == ("id: 7", "event: transition", ["", ""])
    assert json.loads(data.removeprefix("data: ")) == {
        "id": 7,
        "at": "1970-01-01T00:00:01.500Z",
        "kind": "status",
        "service_id": "ü<script>",
        "before": "Up",
        "after": "Down",
        "reason": 'a "b"\nc\r\nd',
        "code": "connection_refused",
        "health_before": 200,
        "health": 206,
    }


@in_virtual_time
async def test_every_stream_gets_every_transition_once_and_in_order_until_it_is_closed() -> None:
    async with HubHarness(0) as harness:
        first = await harness.reader()
        harness.history.publish(1, 2)
        second, task = await harness.connect()
        assert harness.history.queries == [], "without an event id, nothing is replayed"
        harness.history.publish(3, 4)
        assert harness.hub.stream_count == 2
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert harness.hub.stream_count == 1
        harness.history.publish(5)
        assert first.events == [1, 2, 3, 4, 5]
        assert second.events == [3, 4]
        assert first.written[0] == second.written[0] == PREAMBLE


@in_virtual_time
async def test_a_reconnected_stream_gets_the_missed_events_and_then_live_ones() -> None:
    async with HubHarness() as harness:
        harness.history.publish(1, 2, 3, 4)
        reader = await harness.reader(after=2)
        harness.history.publish(5)
        assert reader.events == [3, 4, 5]
        assert harness.history.queries == []
    async with HubHarness(1, 2, 3) as harness:  # from before the process
        harness.history.publish(4, 5)
        assert (await harness.reader(after=1)).events == [2, 3, 4, 5]
        assert (await harness.reader(after=5)).events == []


LAST_EVENT = MAX_RECENT_EVENTS + 2 * PAGE_EVENTS


@pytest.mark.parametrize("after", [0, LAST_EVENT - MAX_RECENT_EVENTS - 1, LAST_EVENT - MAX_RECENT_EVENTS, LAST_EVENT])
@in_virtual_time
async def test_no_event_is_missing_or_repeated_wherever_the_replay_begins(after: int) -> None:
    async with HubHarness() as harness:
        harness.history.publish(*range(1, LAST_EVENT + 1))
        reader = await harness.reader(after=after)
        harness.history.publish(LAST_EVENT + 1)
        assert reader.events == [*range(after + 1, LAST_EVENT + 2)]
        assert max(len(written.split(b"\n\n")) for written in reader.written) <= PAGE_EVENTS + 1


@in_virtual_time
async def test_events_during_a_replay_are_neither_lost_nor_repeated() -> None:
    async with HubHarness(*range(1, 1201)) as harness:
        upcoming = iter(range(1201, 1204))

        def publish_next() -> None:
            if number := next(upcoming, None):
                harness.history.publish(number)

        harness.history.during_query = publish_next
        reader = await harness.reader(after=0)
        harness.history.publish(1204)
        assert reader.events == [*range(1, 1205)]


@in_virtual_time
async def test_an_event_that_is_stored_before_it_is_published_is_sent_once() -> None:
    async with HubHarness(1, 2) as harness:
        harness.history.during_query = lambda: harness.history.store(3)
        reader = await harness.reader(after=0)
        assert reader.events == [1, 2]
        harness.history.publish(3)
        assert reader.events == [1, 2, 3]


@in_virtual_time
async def test_a_slow_replay_gets_events_that_have_left_memory() -> None:
    async with HubHarness() as harness:
        harness.history.publish(*range(1, 11))
        reader, _ = await harness.connect(after=0, loop_turns=0)
        reader.is_reading.clear()
        await asyncio.sleep(0)
        harness.history.publish(*range(11, 2 * MAX_RECENT_EVENTS))  # beyond the events in memory
        reader.is_reading.set()
        await asyncio.sleep(5)
        assert reader.events == [*range(1, 2 * MAX_RECENT_EVENTS)]


@in_virtual_time
async def test_concurrent_replays_share_their_pages() -> None:
    async with HubHarness(*range(1, 10 * PAGE_EVENTS + 1)) as harness:
        connect = [await harness.connect(after=0, loop_turns=0) for _ in range(5)]
        await asyncio.sleep(1)
        assert harness.history.queries == [*range(0, 10 * PAGE_EVENTS, PAGE_EVENTS)]
        for reader, _ in connect:
            assert reader.events == [*range(1, 10 * PAGE_EVENTS + 1)]
        assert len(harness.hub._pages) == event_hub.MAX_CACHED_PAGES


@in_virtual_time
async def test_only_one_page_is_read_at_a_time() -> None:
    async with HubHarness(*range(1, 2 * PAGE_EVENTS + 1)) as harness:
        history, running = harness.history, 0

        async def slow_query(transition_id: int, limit: int) -> list[Transition]:
            nonlocal running
            running += 1
            await asyncio.sleep(1)
            assert running == 1
            running -= 1
            return [one for one in history.stored if one.id > transition_id][:limit]

        history.after = slow_query  # type: ignore[method-assign, assignment]
        connect = [await harness.connect(after=number, loop_turns=0) for number in range(5)]
        await asyncio.sleep(300)
        for number, (reader, _) in enumerate(connect):
            assert reader.events == [*range(number + 1, 2 * PAGE_EVENTS + 1)]


@in_virtual_time
async def test_a_client_that_does_not_read_does_not_delay_the_others() -> None:
    async with HubHarness(*range(1, 10 * PAGE_EVENTS + 1)) as harness:
        slow, _ = await harness.connect(after=0, loop_turns=0)
        slow.is_reading.clear()
        fast = await harness.reader(after=0)
        assert fast.events == [*range(1, 10 * PAGE_EVENTS + 1)]
        assert slow.events == [*range(1, PAGE_EVENTS + 1)]
        slow.is_reading.set()
        await asyncio.sleep(1)
        assert slow.events == fast.events


@in_virtual_time
async def test_a_stream_that_closes_during_its_query_frees_the_lock() -> None:
    async with HubHarness(1, 2, 3) as harness:
        never = asyncio.Event()
        harness.history.after, after = (lambda *_: never.wait()), harness.history.after  # type: ignore[assignment, method-assign]
        _, cancelled = await harness.connect(after=0)
        harness.history.after = after  # type: ignore[method-assign]
        waiting, _ = await harness.connect(after=0)
        assert waiting.events == []
        cancelled.cancel()
        await asyncio.sleep(1)
        assert waiting.events == [1, 2, 3]


@pytest.mark.parametrize("is_in_memory", [False, True])
@in_virtual_time
async def test_a_page_is_bounded_in_bytes(*, is_in_memory: bool) -> None:
    long = [transition(number, reason="x" * (event_hub.PAGE_BYTES // 3)) for number in range(1, 11)]
    async with HubHarness(*() if is_in_memory else (10,)) as harness:
        history = harness.history
        history.stored, history.last_id = long, 10
        if is_in_memory:
            for one in long:
                history._listener(one)
        reader = await harness.reader(after=0)
        assert reader.events == [*range(1, 11)]
        assert max(map(len, reader.written)) <= event_hub.PAGE_BYTES + len(encode_event(long[-1]))


@in_virtual_time
async def test_a_waiting_replay_gets_heartbeats() -> None:
    async with HubHarness(1, 2, 3) as harness:
        await harness.hub._replay_lock.acquire()
        waiting, _ = await harness.connect(after=0)
        waiting.buffered_bytes = 0
        unread, _ = await harness.connect(after=0)
        await asyncio.sleep(streams.HEARTBEAT_S + 1)
        assert waiting.written == [PREAMBLE, HEARTBEAT]
        assert unread.written == [PREAMBLE]
        harness.hub._replay_lock.release()
        await asyncio.sleep(1)
        assert waiting.events == unread.events == [1, 2, 3]


@in_virtual_time
async def test_history_pruned_during_a_replay_is_a_gap() -> None:
    async with HubHarness(*range(1, 3 * PAGE_EVENTS + 1)) as harness:
        reader, _ = await harness.connect(after=0, loop_turns=0)
        reader.is_reading.clear()
        await asyncio.sleep(1)
        harness.history.pruned_to = 2 * PAGE_EVENTS
        del harness.history.stored[: 2 * PAGE_EVENTS]
        reader.is_reading.set()
        await asyncio.sleep(1)
        assert reader.events == [*range(1, PAGE_EVENTS + 1), GAP, *range(2 * PAGE_EVENTS + 1, 3 * PAGE_EVENTS + 1)]


@in_virtual_time
async def test_a_replay_from_a_pruned_or_a_future_event_begins_with_a_gap() -> None:
    async with HubHarness(5, 6, 7) as harness:
        harness.history.pruned_to = 4
        assert (await harness.reader(after=3)).events == [GAP, 5, 6, 7]
        assert (await harness.reader(after=4)).events == [5, 6, 7]
        reader = await harness.reader(after=99)
        harness.history.publish(8)
        assert reader.events == [GAP, 8]
    async with HubHarness() as harness:
        harness.history.publish(1, 2, 3)
        harness.history.pruned_to = 2
        assert (await harness.reader(after=0)).events == [1, 2, 3], "they are in memory"


@in_virtual_time
async def test_events_neither_stored_nor_in_memory_are_a_gap() -> None:
    async with HubHarness(1) as harness:
        harness.history.publish(*range(2, MAX_RECENT_EVENTS + 5), is_stored=False)
        reader = await harness.reader(after=1)
        in_memory = [*range(5, MAX_RECENT_EVENTS + 5)]
        assert reader.events == [GAP, *in_memory]


@in_virtual_time
async def test_a_stream_with_too_much_buffered_is_closed_and_the_others_continue() -> None:
    async with HubHarness() as harness:
        slow, task = await harness.connect()
        idle, idle_task = await harness.connect()
        fast = await harness.reader()
        slow.buffered_bytes = streams.MAX_BUFFERED_BYTES
        harness.history.publish(1)
        assert slow.events == [1]
        harness.history.publish(2, 3)
        assert slow.events == [1]
        await asyncio.wait_for(task, 1)
        assert fast.events == [1, 2, 3]
        assert harness.hub.stream_count == 2
        idle.buffered_bytes = streams.MAX_BUFFERED_BYTES + 1
        await asyncio.sleep(streams.HEARTBEAT_S + 1)
        assert idle_task.done()


@in_virtual_time
async def test_an_idle_stream_gets_heartbeats_and_without_streams_there_are_none() -> None:
    async with HubHarness() as harness:
        first, first_task = await harness.connect()
        await asyncio.sleep(streams.HEARTBEAT_S - 1)
        second, second_task = await harness.connect()
        await asyncio.sleep(3 * streams.HEARTBEAT_S)
        assert first.written == second.written == [PREAMBLE, *[HEARTBEAT] * 3]
        first_task.cancel()
        second_task.cancel()
        await asyncio.sleep(2 * streams.HEARTBEAT_S)
        assert harness.hub._heartbeat is None
        again = await harness.reader()
        await asyncio.sleep(streams.HEARTBEAT_S + 1)
        assert again.written == [PREAMBLE, HEARTBEAT]


@in_virtual_time
async def test_a_stream_that_the_server_limits_ends_with_the_id_to_continue_from() -> None:
    async with HubHarness(1, 2) as harness:
        writer = FakeWriter()
        writer.max_live_s = 0.0
        await harness.hub.stream_to(writer, after=None)
        assert writer.events == [2]
        writer.max_live_s = 10.0
        writer.written.clear()
        task = asyncio.create_task(harness.hub.stream_to(writer, after=0))
        await asyncio.sleep(9)
        harness.history.publish(3)
        assert not task.done()
        await asyncio.sleep(2)
        assert task.done()
        assert writer.events == [1, 2, 3, 3]
        assert writer.written[-1].startswith(b"id: 3\n")
        assert b"event: end" in writer.written[-1]


@in_virtual_time
async def test_the_hub_is_full_at_its_limit_also_of_replaying_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "MAX_STREAMS", 2)
    async with HubHarness(1, 2) as harness:
        await harness.reader()
        assert not harness.hub.is_full
        replaying, _ = await harness.connect(after=0, loop_turns=0)
        replaying.is_reading.clear()
        for _ in range(9):
            await asyncio.sleep(0)
        assert replaying not in harness.hub._live
        assert (harness.hub.is_full, harness.hub.stream_count) == (True, 2)
