"""One look within its deadline, whatever the probe does, told in virtual time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.model import Verdict
from svcnode.net.trace import step
from svcnode.probes.run import RECANCEL_AFTER_S, close_probe, run_check, validate_verdict
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable

READY = Verdict.ready()
HUNG_S = 3600.0


def now_s() -> float:
    return asyncio.get_running_loop().time()


@dataclass(eq=False)
class SomeProbe:
    duration_s: float = 0.0
    ignored_cancels: int = 0  # how often it does not hear that it is cut off
    answer: Callable[[], object] = lambda: READY
    was_cut_off_at_s: list[float] = field(default_factory=list)

    async def check(self) -> Verdict:
        for _ in range(self.ignored_cancels):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(HUNG_S)
        try:
            with step("exchange"):
                await asyncio.sleep(self.duration_s)
        except asyncio.CancelledError:
            self.was_cut_off_at_s.append(now_s())
            raise
        return self.answer()  # type: ignore[return-value]  # that it may be anything is what is tested


def fails() -> Verdict:
    raise ValueError("not today")


@in_virtual_time
async def test_what_a_probe_sees_in_time_is_what_was_seen() -> None:
    assert await run_check(SomeProbe(duration_s=1.0), 2.0) == (READY, None)
    assert now_s() == 1.0


@in_virtual_time
async def test_a_look_without_an_end_is_cut_off_and_says_how_far_it_got() -> None:
    verdict, fault = await run_check(SomeProbe(duration_s=HUNG_S), 2.0)
    assert (verdict, fault) == (Verdict.failed("no answer within 2 s, in its step exchange"), None)
    assert now_s() == 2.0


@pytest.mark.parametrize("deaf_times", [1, 2, 10])
@in_virtual_time
async def test_a_look_that_does_not_hear_its_deadline_is_told_again_until_it_does(deaf_times: int) -> None:
    probe = SomeProbe(duration_s=HUNG_S, ignored_cancels=deaf_times)
    verdict, fault = await run_check(probe, 2.0)
    assert (verdict, fault) == (Verdict.failed("no answer within 2 s, in its step exchange"), None)
    assert now_s() == pytest.approx(2.0 + RECANCEL_AFTER_S * deaf_times)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0, "and whoever asked for it goes on as if nothing had been"
    await asyncio.sleep(HUNG_S)


@in_virtual_time
async def test_a_look_that_was_over_in_time_is_not_cut_off_later() -> None:
    probe = SomeProbe(duration_s=1.0)
    await run_check(probe, 2.0)
    await asyncio.sleep(HUNG_S)
    assert probe.was_cut_off_at_s == []


@in_virtual_time
async def test_whoever_asked_for_a_look_may_give_it_up() -> None:
    probe = SomeProbe(duration_s=HUNG_S)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await run_check(probe, 2.0)
    assert probe.was_cut_off_at_s == [1.0]


@in_virtual_time
async def test_a_fault_of_the_probe_is_told_as_one() -> None:
    verdict, fault = await run_check(SomeProbe(answer=fails), 2.0)
    assert verdict == Verdict.unknown("the probe itself failed: ValueError: not today")
    assert isinstance(fault, ValueError)
    verdict, fault = await run_check(SomeProbe(answer=lambda: "yes"), 2.0)
    assert verdict == Verdict.unknown("the probe itself failed: TypeError: look() returned 'yes', which is no Verdict")
    assert isinstance(fault, TypeError)


def test_a_reason_that_is_an_error_is_told_in_its_words() -> None:
    reason: Any = ValueError("no such ledger")  # as people do who have no type checker
    assert validate_verdict(Verdict.failed(reason)) == Verdict.failed("no such ledger")


def test_a_probe_that_keeps_nothing_has_nothing_to_let_go_of() -> None:
    close_probe(SomeProbe())
