"""What a page gets depends on its cursor alone, and signals are few however many changes there are."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from svcnode.operator import page_feed, streams
from svcnode.operator.page_feed import SIGNAL_INTERVAL_S, PageFeed
from tests.support.nodes import make_node
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from svcnode.node.node_state import NodeState


class Writer:
    max_live_s: float | None = None

    def __init__(self) -> None:
        self.text = ""
        self.buffered_bytes = 0

    def write(self, data: bytes) -> None:
        self.text += data.decode()

    async def drain(self) -> None: ...

    @property
    def cursors(self) -> list[str]:
        return [line.removeprefix("id: ") for line in self.text.splitlines() if line.startswith("id: ")]


@asynccontextmanager
async def following(node: NodeState) -> AsyncIterator[PageFeed]:
    feed = PageFeed(node)
    with feed.following():
        yield feed


async def settle() -> None:
    await asyncio.sleep(2 * SIGNAL_INTERVAL_S)


@in_virtual_time
async def test_changes_come_in_order_once_per_service_and_with_removals() -> None:
    node = make_node()
    a, b, c = (node.register(one) for one in "abc")
    async with following(node) as feed:
        start = feed.cursor
        for handle in (a, b, a, c, a):
            handle.up()
            handle.down()
        b.deregister()
        await settle()
        changes = feed.changes_after(start)
        assert changes.service_ids == ("c", "a", "b")
        assert not changes.is_complete
        assert feed.changes_after(changes.cursor).service_ids == ()
        c.up()
        await settle()
        assert feed.changes_after(changes.cursor).service_ids == ("c",)
        assert feed.changes_after(start).service_ids == ("a", "b", "c")


@in_virtual_time
@pytest.mark.parametrize(("cost_s", "signals"), [(0.0, 8), (0.03, 8), (0.13, 2), (5.0, 2)])
async def test_signals_are_fewer_the_more_an_answer_costs_but_one_a_second(cost_s: float, signals: int) -> None:
    node = make_node()
    service = node.register("a")
    async with following(node) as feed:
        feed.set_sections({}, cost_s)
        seen = set()
        for number in range(100):
            service.up() if number % 2 else service.down()
            await asyncio.sleep(0.02)
            seen.add(feed.signalled)
    assert signals <= len(seen) <= signals + 1


@in_virtual_time
async def test_a_cursor_of_another_process_or_of_the_future_gets_everything() -> None:
    node = make_node()
    node.register("a")
    async with following(node) as feed, following(node) as other:
        feed.set_sections({"notices": "x"})
        process = feed.cursor.partition("-")[0]
        for cursor in (
            "",
            "x",
            other.cursor,
            f"{process}-99",
            f"{process}--1",
            f"{process}-",
            f"{process}-x",
            f"{process}-{'9' * 8000}",
        ):
            changes = feed.changes_after(cursor)
            assert changes.is_complete, cursor
            assert changes.service_ids == ("a",)
            assert changes.sections == {"notices": "x"}


@in_virtual_time
async def test_only_so_many_removed_services_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_feed, "MAX_REMOVED", 3)
    node = make_node()
    handles = [node.register(str(number)) for number in range(5)]
    async with following(node) as feed:
        cursors = []
        for handle in handles:
            handle.deregister()
            await settle()
            cursors.append(feed.cursor)
        assert feed.changes_after(cursors[1]).service_ids == ("2", "3", "4")
        assert feed.changes_after(cursors[0]).is_complete


@in_virtual_time
async def test_a_section_is_sent_when_it_has_changed() -> None:
    async with following(make_node()) as feed:
        feed.set_sections({"headline": "a", "notices": ""})
        first = feed.changes_after(feed.cursor)
        assert first.sections == {}
        feed.set_sections({"headline": "b", "notices": ""})
        assert feed.changes_after(first.cursor).sections == {"headline": "b"}


@in_virtual_time
async def test_rows_have_the_order_of_the_node_also_after_it_has_changed() -> None:
    node = make_node()
    for one in "abc":
        node.register(one)
    async with following(node) as feed:

        def shown() -> list[str]:
            return sorted(node.ids, key=feed.position)

        assert shown() == ["a", "b", "c"]
        node.deregister("a")
        for one in "da":
            node.register(one)
        await settle()
        assert shown() == ["b", "c", "d", "a"] == list(node.ids)
        before = feed.cursor
        node.reorder("adcb")
        await settle()
        assert shown() == ["a", "d", "c", "b"]
        assert feed.changes_after(before).service_ids == ("a", "d", "c", "b")


@in_virtual_time
async def test_a_stream_is_told_at_once_and_then_a_few_times_per_second() -> None:
    node = make_node()
    handle = node.register("a")
    async with following(node) as feed:
        writer = Writer()
        task = asyncio.create_task(feed.stream_to(writer))
        await asyncio.sleep(0)
        assert writer.cursors == [feed.cursor]
        handle.up()
        await asyncio.sleep(0.001)
        assert writer.cursors[1:] == [feed.cursor]
        for _ in range(100):
            handle.down()
            handle.up()
            await asyncio.sleep(0.01)
        assert 3 <= len(writer.cursors[2:]) <= 5
        await settle()
        assert writer.cursors[-1] == feed.cursor
        count = len(writer.cursors)
        feed.set_sections({"notices": "3 s ago"})
        await settle()
        assert len(writer.cursors) == count, "pages get it when they ask the next time"
        task.cancel()


@in_virtual_time
async def test_a_stream_that_the_server_limits_ends_with_the_cursor() -> None:
    node = make_node()
    async with following(node) as feed:
        writer = Writer()
        writer.max_live_s = 10.0
        await feed.stream_to(writer)
        assert "event: end" in writer.text
        assert writer.cursors[-1] == feed.cursor
        assert feed.stream_count == 0


@in_virtual_time
async def test_an_idle_stream_gets_heartbeats() -> None:
    async with following(make_node()) as feed:
        writer = Writer()
        task = asyncio.create_task(feed.stream_to(writer))
        await asyncio.sleep(streams.HEARTBEAT_S * 2.5)
        assert writer.text.count(streams.HEARTBEAT.decode()) == 2
        task.cancel()
