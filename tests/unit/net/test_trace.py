"""The diary of a look."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from svcnode.net.trace import Step, interrupted_step, record_steps, step
from tests.support.virtual_time import in_virtual_time


def told(steps: list[Step]) -> list[tuple[str, str, bool]]:
    return [(one.name, one.detail, one.is_done) for one in steps]


def fail(name: str) -> None:
    with step(name):
        raise OSError("refused")


def test_steps_are_noted_in_the_order_in_which_they_ended() -> None:
    with record_steps() as steps:
        with step("resolve", "db"):
            pass
        with step("outer"), step("inner"):
            pass
    assert told(steps) == [("resolve", "db", True), ("inner", "", True), ("outer", "", True)]
    assert all(one.duration_s >= 0 for one in steps)


def test_a_step_that_fails_is_noted_as_the_one_that_was_not_done() -> None:
    with record_steps() as steps, suppress(OSError):
        fail("connect")
    assert told(steps) == [("connect", "", False)]


def test_a_step_hides_no_failure() -> None:
    with pytest.raises(OSError, match="refused"):
        fail("connect")


def test_what_is_done_outside_is_not_noted() -> None:
    with step("before"):
        pass
    with record_steps() as steps:
        pass
    with step("after"):
        pass
    assert steps == []


def test_whoever_records_inside_has_a_list_of_their_own() -> None:
    with record_steps() as outer:
        with record_steps() as inner, step("one"):
            pass
        with step("two"):
            pass
    assert [one.name for one in inner] == ["one"]
    assert [one.name for one in outer] == ["two"]


@in_virtual_time
async def test_looks_at_the_same_time_do_not_mix_their_steps() -> None:
    async def look(name: str) -> list[Step]:
        with record_steps() as steps:
            for _ in range(3):
                with step(name):
                    await asyncio.sleep(1)
        return steps

    one, two = await asyncio.gather(look("one"), look("two"))
    assert [each.name for each in one] == ["one"] * 3
    assert [each.name for each in two] == ["two"] * 3


async def cut_short(timeout_s: float) -> str | None:
    try:
        async with asyncio.timeout(timeout_s):
            with step("look"):
                with step("connect"):
                    await asyncio.sleep(1)
                with step("exchange"):
                    await asyncio.sleep(1)
    except TimeoutError as exc:
        return interrupted_step(exc.__cause__)
    return None


@in_virtual_time
async def test_the_innermost_step_that_was_going_on_at_the_deadline_is_known_even_if_nobody_records() -> None:
    assert await cut_short(0.5) == "connect"
    assert await cut_short(1.5) == "exchange"
    assert await cut_short(2.5) is None


def test_what_was_not_cancelled_in_a_step_names_none() -> None:
    assert interrupted_step(None) is None
    assert interrupted_step(OSError()) is None
    assert interrupted_step(asyncio.CancelledError()) is None
