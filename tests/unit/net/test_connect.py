"""A connection that is kept from look to look, and the event loop that it belongs to."""

from __future__ import annotations

import asyncio

import pytest

from svcnode.net.connect import ConnectionSlot


async def put(kept: ConnectionSlot[str], connection: str) -> None:
    kept.put(connection)


async def take(kept: ConnectionSlot[str]) -> str | None:
    return kept.take()


async def let_go(kept: ConnectionSlot[str]) -> list[str]:
    dropped: list[str] = []
    kept.close(dropped.append)
    return dropped


def test_what_was_put_is_taken_once() -> None:
    kept: ConnectionSlot[str] = ConnectionSlot()
    with asyncio.Runner() as runner:
        assert runner.run(take(kept)) is None
        runner.run(put(kept, "a"))
        assert runner.run(take(kept)) == "a"
        assert runner.run(take(kept)) is None


def test_what_is_kept_is_let_go_of_once() -> None:
    kept: ConnectionSlot[str] = ConnectionSlot()
    with asyncio.Runner() as runner:
        assert runner.run(let_go(kept)) == []
        runner.run(put(kept, "a"))
        assert runner.run(let_go(kept)) == ["a"]
        assert runner.run(let_go(kept)) == []
        assert runner.run(take(kept)) is None


def test_what_belongs_to_another_loop_is_neither_taken_nor_dropped() -> None:
    kept: ConnectionSlot[str] = ConnectionSlot()
    asyncio.run(put(kept, "a"))
    assert asyncio.run(take(kept)) is None
    asyncio.run(put(kept, "b"))
    assert asyncio.run(let_go(kept)) == []
    with asyncio.Runner() as runner:  # and it is not in the way of the next one
        runner.run(put(kept, "c"))
        assert runner.run(take(kept)) == "c"


def test_a_connection_belongs_to_a_loop() -> None:
    kept: ConnectionSlot[str] = ConnectionSlot()
    with pytest.raises(RuntimeError, match="no running event loop"):
        kept.put("a")
    assert asyncio.run(take(kept)) is None
