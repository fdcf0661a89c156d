"""Every transition to every reader, once and in order, whenever they come and whatever they missed."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.api.app import OperatorRequest, StreamingResponse
from svcnode.history import Transition
from svcnode.operator import events as module
from svcnode.operator.events import (
    INVALID_EVENT_ID,
    MAX_RECENT_EVENTS,
    PAGE_EVENTS,
    TOO_MANY_STREAMS,
    EventHub,
    encode_event,
    events,
)
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from svcnode.api.spec import Response

HELLO = b"retry: 2000\n\n"
GAP = "gap"


def transition(number: int, **changes: Any) -> Transition:
    about: dict[str, Any] = {
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
    return Transition(**about | changes)


class FakeHistory:
    """Keeps everything, or what it is told to keep; asked for it, it takes a turn of the loop."""

    def __init__(self, *kept: int) -> None:
        self.kept = [transition(number) for number in kept]
        self.last_id = kept[-1] if kept else 0
        self.pruned_to = 0
        self.queries: list[int] = []
        self.while_asked: Callable[[], None] = lambda: None

    def subscribe(self, listener: Callable[[Transition], None]) -> None:
        self._tell = listener

    def keep(self, number: int) -> None:
        """As the writing thread does, a moment before the loop is told."""
        self.kept.append(transition(number))

    def tell(self, *numbers: int, is_kept: bool = True) -> None:
        for number in numbers:
            if is_kept and (not self.kept or self.kept[-1].id < number):
                self.keep(number)
            self.last_id = number
            self._tell(transition(number))

    async def after(self, transition_id: int, limit: int = 500) -> list[Transition]:
        self.queries.append(transition_id)
        await asyncio.sleep(0)
        self.while_asked()
        return [one for one in self.kept if one.id > transition_id][:limit]


class FakeOutlet:
    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.buffered_bytes = 0
        self.reads_on = asyncio.Event()
        self.reads_on.set()

    def send(self, data: bytes) -> None:
        self.sent.append(data)
        self.buffered_bytes += len(data)

    async def drain(self) -> None:
        await self.reads_on.wait()
        self.buffered_bytes = 0

    @property
    def events(self) -> list[int | str]:
        """The ids of what was sent, and the gaps between them."""
        return [_id_or_name(event) for event in b"".join(self.sent).split(b"\n\n") if event.startswith((b"id", b"ev"))]


def _id_or_name(event: bytes) -> int | str:
    fields = dict(line.split(": ", 1) for line in event.decode().splitlines())
    return int(fields["id"]) if "id" in fields else fields["event"]


class Listening:
    """A hub and those who read from it; all are gone at the end of the block."""

    def __init__(self, *kept: int) -> None:
        self.history = FakeHistory(*kept)
        self.hub = EventHub(self.history)  # type: ignore[arg-type]
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Listening:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        assert self.hub.stream_count == 0

    async def reader(self, after: int | None = None) -> FakeOutlet:
        """One who has caught up."""
        outlet, _ = await self.coming(after)
        assert outlet in self.hub._live
        return outlet

    async def coming(self, after: int | None = None, *, turns: int = 200) -> tuple[FakeOutlet, asyncio.Task[None]]:
        outlet = FakeOutlet()
        task = asyncio.create_task(self.hub.stream_to(outlet, after))
        self._tasks.append(task)
        for _ in range(turns):
            await asyncio.sleep(0)
        return outlet, task


# ---- what an event looks like


def test_an_event_has_its_id_and_says_everything_in_one_line_of_json() -> None:
    lines = encode_event(transition(7, at_s=1.5, reason='said "no"\nand\r\nleft', service_id="ü<script>")).decode()
    head, event, data, *end = lines.split("\n")
    assert (head, event, end) == ("id: 7", "event: transition", ["", ""])
    assert json.loads(data.removeprefix("data: ")) == {
        "id": 7,
        "at": "1970-01-01T00:00:01.500Z",
        "kind": "status",
        "service_id": "ü<script>",
        "before": "Up",
        "after": "Down",
        "reason": 'said "no"\nand\r\nleft',
        "health_before": 200,
        "health": 206,
    }


def test_a_reason_that_is_no_text_is_told_all_the_same() -> None:
    assert b"id: 7" in encode_event(transition(7, reason="half a character: \udcff"))


# ---- live


@in_virtual_time
async def test_every_reader_is_told_of_every_transition_once_and_in_order() -> None:
    async with Listening() as listening:
        first = await listening.reader()
        listening.history.tell(1, 2)
        second = await listening.reader()
        listening.history.tell(3, 4)
        assert first.events == [1, 2, 3, 4]
        assert second.events == [3, 4]
        assert first.sent[0] == second.sent[0] == HELLO


@in_virtual_time
async def test_a_reader_who_asks_for_nothing_past_is_told_of_nothing_past() -> None:
    async with Listening(1, 2, 3) as listening:
        reader = await listening.reader()
        assert reader.events == []
        assert listening.history.queries == []


@in_virtual_time
async def test_a_reader_who_leaves_is_forgotten() -> None:
    async with Listening() as listening:
        _, task = await listening.coming()
        assert listening.hub.stream_count == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert listening.hub.stream_count == 0
        listening.history.tell(1)


# ---- after an interruption


@in_virtual_time
async def test_a_reader_who_comes_back_gets_what_came_since_and_goes_on() -> None:
    async with Listening() as listening:
        listening.history.tell(1, 2, 3, 4)
        reader = await listening.reader(after=2)
        listening.history.tell(5)
        assert reader.events == [3, 4, 5]
        assert listening.history.queries == [], "all of it was at hand"


@in_virtual_time
async def test_what_was_before_the_process_comes_from_history() -> None:
    async with Listening(1, 2, 3) as listening:
        listening.history.tell(4, 5)
        reader = await listening.reader(after=1)
        assert reader.events == [2, 3, 4, 5]


@in_virtual_time
async def test_a_reader_who_missed_more_than_is_at_hand_gets_all_of_it() -> None:
    async with Listening() as listening:
        last = 3 * MAX_RECENT_EVENTS + 7
        listening.history.tell(*range(1, last + 1))
        reader = await listening.reader(after=0)
        assert reader.events == [*range(1, last + 1)]
        assert max(len(sent.split(b"\n\n")) for sent in reader.sent) == PAGE_EVENTS + 1, "a page at a time"


@pytest.mark.parametrize(
    "after",
    [
        0,
        1,
        MAX_RECENT_EVENTS - 1,
        MAX_RECENT_EVENTS,
        MAX_RECENT_EVENTS + 1,
        MAX_RECENT_EVENTS + PAGE_EVENTS,
        1999,
        2000,
    ],
)
def test_wherever_a_reader_goes_on_nothing_is_missing_and_nothing_comes_twice(after: int) -> None:
    @in_virtual_time
    async def story() -> None:
        async with Listening() as listening:
            listening.history.tell(*range(1, 2001))
            reader = await listening.reader(after=after)
            listening.history.tell(2001)
            assert reader.events == [*range(after + 1, 2002)]

    story()


@in_virtual_time
async def test_what_comes_to_pass_while_a_reader_catches_up_is_neither_lost_nor_told_twice() -> None:
    async with Listening(*range(1, 1201)) as listening:
        upcoming = iter(range(1201, 1204))

        def something_happens() -> None:
            if number := next(upcoming, None):
                listening.history.tell(number)

        listening.history.while_asked = something_happens
        reader = await listening.reader(after=0)
        listening.history.tell(1204)
        assert reader.events == [*range(1, 1205)]


@in_virtual_time
async def test_what_is_kept_a_moment_before_it_is_told_is_told_once() -> None:
    async with Listening(1, 2) as listening:
        listening.history.while_asked = lambda: listening.history.keep(3)
        reader = await listening.reader(after=0)
        assert reader.events == [1, 2]
        listening.history.tell(3)
        assert reader.events == [1, 2, 3]


@in_virtual_time
async def test_a_reader_who_catches_up_slowly_is_waited_for_while_more_comes() -> None:
    async with Listening() as listening:
        listening.history.tell(*range(1, 11))
        reader, _ = await listening.coming(after=0, turns=0)
        reader.reads_on.clear()
        await asyncio.sleep(0)
        listening.history.tell(*range(11, 2 * MAX_RECENT_EVENTS))  # so much that it is at hand no more
        reader.reads_on.set()
        await asyncio.sleep(5)
        assert reader.events == [*range(1, 2 * MAX_RECENT_EVENTS)]


# ---- many at once, from long ago


@in_virtual_time
async def test_those_who_come_together_are_read_to_from_the_same_pages() -> None:
    async with Listening(*range(1, 10 * PAGE_EVENTS + 1)) as listening:
        coming = [await listening.coming(after=0, turns=0) for _ in range(20)]
        await asyncio.sleep(1)
        assert listening.history.queries == [*range(0, 10 * PAGE_EVENTS, PAGE_EVENTS)], "each was made once"
        for reader, _ in coming:
            assert reader.events == [*range(1, 10 * PAGE_EVENTS + 1)]
        assert len(listening.hub._pages) == module.MAX_CACHED_PAGES


@in_virtual_time
async def test_one_page_is_made_at_a_time_however_many_wait_for_theirs() -> None:
    async with Listening(*range(1, 1001)) as listening:
        history, at_work = listening.history, 0

        async def slowly(transition_id: int, limit: int) -> list[Transition]:
            nonlocal at_work
            at_work += 1
            await asyncio.sleep(1)
            assert at_work == 1
            at_work -= 1
            return [one for one in history.kept if one.id > transition_id][:limit]

        history.after = slowly  # type: ignore[method-assign, assignment]
        coming = [await listening.coming(after=number, turns=0) for number in range(20)]
        await asyncio.sleep(300)
        for number, (reader, _) in enumerate(coming):
            assert reader.events == [*range(number + 1, 1001)]


@in_virtual_time
async def test_one_who_does_not_read_holds_up_nobody_else() -> None:
    async with Listening(*range(1, 10 * PAGE_EVENTS + 1)) as listening:
        slow, _ = await listening.coming(after=0, turns=0)
        slow.reads_on.clear()
        quick = await listening.reader(after=0)
        assert quick.events == [*range(1, 10 * PAGE_EVENTS + 1)]
        assert slow.events == [*range(1, PAGE_EVENTS + 1)], "a page, and no more until it is read"
        slow.reads_on.set()
        await asyncio.sleep(1)
        assert slow.events == quick.events


@in_virtual_time
async def test_one_who_leaves_while_it_is_their_turn_gives_it_to_the_next() -> None:
    async with Listening(1, 2, 3) as listening:
        never = asyncio.Event()
        listening.history.after, after = (lambda *_: never.wait()), listening.history.after  # type: ignore[assignment, method-assign]
        _, leaving = await listening.coming(after=0)
        listening.history.after = after  # type: ignore[method-assign]
        waiting, _ = await listening.coming(after=0)
        assert waiting.events == []
        leaving.cancel()
        await asyncio.sleep(1)
        assert waiting.events == [1, 2, 3]


@pytest.mark.parametrize("is_at_hand", [False, True])
def test_a_page_is_small_however_long_its_events_are(*, is_at_hand: bool) -> None:
    @in_virtual_time
    async def story() -> None:
        long = [transition(number, reason="x" * (module.PAGE_BYTES // 3)) for number in range(1, 11)]
        async with Listening(*() if is_at_hand else (10,)) as listening:
            history = listening.history
            history.kept, history.last_id = long, 10
            if is_at_hand:
                for one in long:
                    history._tell(one)
            reader = await listening.reader(after=0)
            assert reader.events == [*range(1, 11)]
            assert max(map(len, reader.sent)) <= module.PAGE_BYTES + len(encode_event(long[-1]))

    story()


@in_virtual_time
async def test_one_who_waits_for_their_turn_gets_a_sign_of_life() -> None:
    async with Listening(1, 2, 3) as listening:
        await listening.hub._replay_lock.acquire()
        waiting, _ = await listening.coming(after=0)
        waiting.buffered_bytes = 0
        unread, _ = await listening.coming(after=0)
        await asyncio.sleep(module.HEARTBEAT_S + 1)
        assert waiting.sent == [HELLO, b": still here\n\n"]
        assert unread.sent == [HELLO], "there is something to read still"
        listening.hub._replay_lock.release()
        await asyncio.sleep(1)
        assert waiting.events == unread.events == [1, 2, 3]


# ---- gaps


@in_virtual_time
async def test_what_is_forgotten_while_a_reader_reads_is_a_gap() -> None:
    async with Listening(*range(1, 3 * PAGE_EVENTS + 1)) as listening:
        reader, _ = await listening.coming(after=0, turns=0)
        reader.reads_on.clear()
        await asyncio.sleep(1)
        listening.history.pruned_to = 2 * PAGE_EVENTS
        del listening.history.kept[: 2 * PAGE_EVENTS]
        reader.reads_on.set()
        await asyncio.sleep(1)
        assert reader.events == [*range(1, PAGE_EVENTS + 1), GAP, *range(2 * PAGE_EVENTS + 1, 3 * PAGE_EVENTS + 1)]


@in_virtual_time
async def test_what_is_forgotten_and_still_at_hand_is_no_gap() -> None:
    async with Listening() as listening:
        listening.history.tell(1, 2, 3)
        listening.history.pruned_to = 2
        assert (await listening.reader(after=0)).events == [1, 2, 3]


@in_virtual_time
async def test_a_reader_whose_last_event_is_forgotten_is_told_of_the_gap() -> None:
    async with Listening(5, 6, 7) as listening:
        listening.history.pruned_to = 4
        assert (await listening.reader(after=3)).events == [GAP, 5, 6, 7]
        assert (await listening.reader(after=4)).events == [5, 6, 7]


@in_virtual_time
async def test_a_reader_who_has_seen_what_never_was_here_is_told_of_the_gap() -> None:
    async with Listening(5) as listening:
        reader = await listening.reader(after=99)
        assert reader.events == [GAP]
        listening.history.tell(6)
        assert reader.events == [GAP, 6]


@in_virtual_time
async def test_what_could_not_be_kept_and_is_no_longer_at_hand_is_a_gap() -> None:
    async with Listening(1) as listening:
        listening.history.tell(*range(2, MAX_RECENT_EVENTS + 5), is_kept=False)
        reader = await listening.reader(after=1)
        at_hand = [*range(5, MAX_RECENT_EVENTS + 5)]
        assert reader.events == [GAP, *at_hand]


@in_virtual_time
async def test_one_who_has_seen_everything_is_told_of_no_gap() -> None:
    async with Listening(1, 2) as listening:
        assert (await listening.reader(after=2)).events == []
    async with Listening() as listening:
        assert (await listening.reader(after=0)).events == []


# ---- those who are slow, those who are silent, and those who are many


@in_virtual_time
async def test_a_reader_who_is_too_far_behind_is_dropped_and_the_others_go_on() -> None:
    async with Listening() as listening:
        slow, task = await listening.coming()
        quick = await listening.reader()
        slow.buffered_bytes = module.MAX_BUFFERED_BYTES
        listening.history.tell(1)
        assert slow.events == [1], "a reader may be that far behind"
        listening.history.tell(2, 3)
        assert slow.events == [1]
        await asyncio.wait_for(task, 1)  # which ends the connection
        assert quick.events == [1, 2, 3]
        assert listening.hub.stream_count == 1


@in_virtual_time
async def test_memory_for_a_reader_who_never_reads_is_bounded() -> None:
    async with Listening() as listening:
        slow, task = await listening.coming()
        listening.history.tell(*range(1, 20 * MAX_RECENT_EVENTS))
        await asyncio.wait_for(task, 1)
        largest = max(map(len, slow.sent))
        assert sum(map(len, slow.sent)) <= module.MAX_BUFFERED_BYTES + largest


@in_virtual_time
async def test_a_silent_stream_gives_a_sign_of_life_now_and_then() -> None:
    async with Listening() as listening:
        first = await listening.reader()
        await asyncio.sleep(module.HEARTBEAT_S - 1)
        second = await listening.reader()
        await asyncio.sleep(3 * module.HEARTBEAT_S)
        assert first.sent == [HELLO, *[b": still here\n\n"] * 3]
        assert second.sent == [HELLO, *[b": still here\n\n"] * 3]


@in_virtual_time
async def test_where_nobody_listens_nothing_beats() -> None:
    async with Listening() as listening:
        _, task = await listening.coming()
        task.cancel()
        await asyncio.sleep(2 * module.HEARTBEAT_S)
        assert listening.hub._heartbeat is None
        again = await listening.reader()
        await asyncio.sleep(module.HEARTBEAT_S + 1)
        assert again.sent == [HELLO, b": still here\n\n"]


@in_virtual_time
async def test_a_reader_who_is_too_far_behind_is_dropped_by_a_sign_of_life_as_well() -> None:
    async with Listening() as listening:
        slow, task = await listening.coming()
        slow.buffered_bytes = module.MAX_BUFFERED_BYTES + 1
        await asyncio.sleep(module.HEARTBEAT_S + 1)
        assert task.done()


# ---- asking


def ask(hub: Any, query: bytes = b"", **headers: bytes) -> Response | StreamingResponse:
    desk: Any = type("Desk", (), {"events": hub})
    visit = OperatorRequest(
        "GET", b"/events", query, {name.replace("_", "-").encode(): text for name, text in headers.items()}
    )
    story: Coroutine[Any, Any, Response | StreamingResponse] = events(desk, visit, "")
    return asyncio.run(story)


class FakeHub:
    def __init__(self, *, is_full: bool = False) -> None:
        self.is_full = is_full
        self.after: int | str | None = "nobody came"

    async def stream_to(self, outlet: object, after: int | None) -> None:
        self.after = after


@pytest.mark.parametrize(
    ("query", "headers", "after"),
    [
        (b"", {}, None),
        (b"after=12", {}, 12),
        (b"", {"last_event_id": b"12"}, 12),
        (b"after=5", {"last_event_id": b"12"}, 12),
        (b"after=0", {}, 0),
        (b"x=y&after=007", {}, 7),
    ],
)
def test_a_reader_may_say_where_to_go_on(query: bytes, headers: dict[str, bytes], after: int | None) -> None:
    hub = FakeHub()
    stream = ask(hub, query, **headers)
    assert isinstance(stream, StreamingResponse)
    asyncio.run(stream.write_body(FakeOutlet()))  # type: ignore[arg-type]
    assert hub.after == after


@pytest.mark.parametrize("text", [b"", b"x", b"-1", b"1.0", b" 1", b"+1", b"1_0", b"\xff", "٣".encode(), b"9" * 20])
def test_what_is_no_id_is_refused(text: bytes) -> None:
    assert ask(FakeHub(), last_event_id=text) is INVALID_EVENT_ID
    assert INVALID_EVENT_ID.code == 400


def test_one_reader_too_many_is_asked_to_come_later() -> None:
    assert ask(FakeHub(is_full=True)) is TOO_MANY_STREAMS
    assert TOO_MANY_STREAMS.code == 503
    assert dict(TOO_MANY_STREAMS.headers)["Retry-After"]


@in_virtual_time
async def test_those_who_still_catch_up_count_as_readers() -> None:
    async with Listening(1, 2) as listening:
        reader, _ = await listening.coming(after=0, turns=0)
        reader.reads_on.clear()
        for _ in range(9):
            await asyncio.sleep(0)
        assert listening.hub._live == {}
        assert listening.hub.stream_count == 1


def test_a_hub_is_full_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_READERS", 2)

    @in_virtual_time
    async def story() -> None:
        async with Listening() as listening:
            await listening.reader()
            assert not listening.hub.is_full
            await listening.reader()
            assert listening.hub.is_full

    story()


def test_a_stream_is_held_back_and_kept_by_nobody_in_between() -> None:
    stream = ask(FakeHub())
    assert isinstance(stream, StreamingResponse)
    assert dict(stream.head.headers) == {
        "Content-Type": "text/event-stream",
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "X-Accel-Buffering": "no",
    }
