"""Recording the steps of a check."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from svcnode.net.trace import Step, interrupted_step, record_steps, step
from tests.support.virtual_time import in_virtual_time


def as_tuples(steps: list[Step]) -> list[tuple[str, str, bool]]:
    return [(step.name, step.detail, step.is_done) for step in steps]


def test_steps_are_recorded_in_the_order_in_which_they_end_and_whether_they_are_done() -> None:
    with record_steps() as steps:
        with step("resolve", "db"):
            pass
        with step("outer"), step("inner"):
            pass
        with suppress(OSError), step("connect"):
            raise OSError("refused")
    assert as_tuples(steps) == [
        ("resolve", "db", True),
        ("inner", "", True),
        ("outer", "", True),
        ("connect", "", False),
    ]
    assert all(recorded.duration_s >= 0 for recorded in steps)


@in_virtual_time
async def test_concurrent_checks_record_into_their_own_lists() -> None:
    async def check(name: str) -> list[Step]:
        with record_steps() as steps:
            for _ in range(3):
                with step(name):
                    await asyncio.sleep(1)
        return steps

    one, two = await asyncio.gather(check("one"), check("two"))
    assert [recorded.name for recorded in one] == ["one"] * 3
    assert [recorded.name for recorded in two] == ["two"] * 3


async def cancelled_step(timeout_s: float) -> str | None:
    try:
        async with asyncio.timeout(timeout_s):
            with step("check"):
                with step("connect"):
                    await asyncio.sleep(1)
                with step("exchange"):
                    await asyncio.sleep(1)
    except TimeoutError as exc:
        return interrupted_step(exc.__cause__)
    return None


@in_virtual_time
async def test_the_innermost_step_at_the_deadline_is_known_without_recording() -> None:
    assert await cancelled_step(0.5) == "connect"
    assert await cancelled_step(1.5) == "exchange"
    assert await cancelled_step(2.5) is None
