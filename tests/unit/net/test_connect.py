"""ConnectionCache: a connection that is kept between checks belongs to one event loop."""

from __future__ import annotations

import asyncio

import pytest

from svcnode.net.connect import ConnectionCache


async def put(slot: ConnectionCache[str], connection: str) -> None:
    slot.put(connection)


async def take(slot: ConnectionCache[str]) -> str | None:
    return slot.take()


async def close(slot: ConnectionCache[str]) -> list[str]:
    aborted: list[str] = []
    slot.close(aborted.append)
    return aborted


def test_a_connection_is_taken_once() -> None:
    slot: ConnectionCache[str] = ConnectionCache()
    with asyncio.Runner() as runner:
        assert runner.run(take(slot)) is None
        runner.run(put(slot, "a"))
        assert runner.run(take(slot)) == "a"
        assert runner.run(take(slot)) is None


def test_a_connection_is_closed_once() -> None:
    slot: ConnectionCache[str] = ConnectionCache()
    with asyncio.Runner() as runner:
        assert runner.run(close(slot)) == []
        runner.run(put(slot, "a"))
        assert runner.run(close(slot)) == ["a"]
        assert runner.run(close(slot)) == []
        assert runner.run(take(slot)) is None


def test_a_connection_of_another_loop_is_neither_taken_nor_aborted() -> None:
    slot: ConnectionCache[str] = ConnectionCache()
    asyncio.run(put(slot, "a"))
    assert asyncio.run(take(slot)) is None
    asyncio.run(put(slot, "b"))
    assert asyncio.run(close(slot)) == []
    with asyncio.Runner() as runner:  # the slot is usable again
        runner.run(put(slot, "c"))
        assert runner.run(take(slot)) == "c"


def test_a_connection_is_put_only_inside_a_loop() -> None:
    slot: ConnectionCache[str] = ConnectionCache()
    with pytest.raises(RuntimeError):
        slot.put("a")
    assert asyncio.run(take(slot)) is None
