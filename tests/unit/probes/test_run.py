"""One check and its deadline, in virtual time."""

from __future__ import annotations

import asyncio
import math
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Outcome, Verdict
from svcnode.core.text import MAX_REASON_CHARS
from svcnode.net.timers import RECANCEL_AFTER_S
from svcnode.net.trace import step
from svcnode.probes.base import Probe, time_left_s
from svcnode.probes.run import run_check, validate_verdict
from tests.support.scheduling import CancelSwallowingProbe
from tests.support.virtual_time import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Callable

READY = Verdict.ready()
HUNG_S = 3600.0


def now_s() -> float:
    return asyncio.get_running_loop().time()


@dataclass(eq=False)
class SlowProbe(Probe):
    duration_s: float = 0.0
    ignored_cancels: int = 0  # the number of cancellations that it ignores
    result: Callable[[], object] = lambda: READY
    cancelled_at_s: list[float] = field(default_factory=list)

    async def check(self) -> Verdict:
        for _ in range(self.ignored_cancels):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(HUNG_S)
        try:
            with step("exchange"):
                await asyncio.sleep(self.duration_s)
        except asyncio.CancelledError:
            self.cancelled_at_s.append(now_s())
            raise
        return self.result()  # type: ignore[return-value]  # tests return other values, too


def raise_value_error() -> Verdict:
    raise ValueError("no ledger")


class TimedProbe(Probe):
    def __init__(self) -> None:
        self.time_left_s: list[float] = []

    async def check(self) -> Verdict:
        self.time_left_s.append(time_left_s())
        await asyncio.sleep(1.5)
        self.time_left_s.append(time_left_s())
        return READY


@in_virtual_time
async def test_a_probe_knows_the_time_until_its_deadline() -> None:
    probe = TimedProbe()
    assert await run_check(probe, 2.0) == (READY, None)
    assert await probe.check() == READY
    assert probe.time_left_s == [2.0, 0.5, math.inf, math.inf]


@in_virtual_time
async def test_a_check_that_hangs_times_out_and_names_its_step() -> None:
    verdict, error = await run_check(SlowProbe(duration_s=HUNG_S), 2.0)
    assert (verdict.outcome, verdict.code, error) == (Outcome.FAILED, ReasonCode.TIMEOUT, None)
    assert "exchange" in verdict.reason
    assert now_s() == 2.0


@dataclass(eq=False)
class SteppedProbe(Probe):
    """Hangs in the last of its nested steps."""

    steps: tuple[str, ...]

    async def check(self) -> Verdict:
        with ExitStack() as stack:
            for name in self.steps:
                stack.enter_context(step(name))
            await asyncio.sleep(HUNG_S)
        return READY


@pytest.mark.parametrize(
    ("steps", "outcome", "code"),
    [
        (("resolve",), Outcome.UNKNOWN, ReasonCode.RESOLVER_FAILED),
        (("read files",), Outcome.UNKNOWN, ReasonCode.FILE_NOT_READABLE),
        (("connect",), Outcome.FAILED, ReasonCode.CONNECT_TIMEOUT),
        (("tunnel",), Outcome.FAILED, ReasonCode.CONNECT_TIMEOUT),
        (("handshake",), Outcome.FAILED, ReasonCode.TLS_TIMEOUT),
        (("exchange", "write"), Outcome.FAILED, ReasonCode.WRITE_TIMEOUT),
        (("write", "wait for lock"), Outcome.NOT_READY, ReasonCode.LOCKED),
        (("log in",), Outcome.FAILED, ReasonCode.TIMEOUT),
        ((), Outcome.FAILED, ReasonCode.TIMEOUT),
    ],
)
@in_virtual_time
async def test_the_innermost_step_at_the_deadline_decides_the_code(
    steps: tuple[str, ...], outcome: Outcome, code: ReasonCode
) -> None:
    verdict, _ = await run_check(SteppedProbe(steps), 2.0)
    assert (verdict.outcome, verdict.code) == (outcome, code)


@pytest.mark.parametrize("ignored_cancels", [1, 2, 10])
@in_virtual_time
async def test_a_check_that_ignores_its_cancellation_is_cancelled_again(ignored_cancels: int) -> None:
    probe = SlowProbe(duration_s=HUNG_S, ignored_cancels=ignored_cancels)
    verdict, error = await run_check(probe, 2.0)
    assert (verdict.outcome, verdict.code, error) == (Outcome.FAILED, ReasonCode.TIMEOUT, None)
    assert now_s() == pytest.approx(2.0 + RECANCEL_AFTER_S * ignored_cancels)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0, "the caller is not cancelled"
    await asyncio.sleep(HUNG_S)


@in_virtual_time
async def test_a_probe_that_swallows_its_cancellation_has_timed_out() -> None:
    verdict, error = await run_check(CancelSwallowingProbe(lambda: READY), 2.0)
    assert (verdict.outcome, verdict.code, error) == (Outcome.FAILED, ReasonCode.TIMEOUT, None)


@in_virtual_time
async def test_the_caller_may_cancel_a_check() -> None:
    probe = SlowProbe(duration_s=HUNG_S)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await run_check(probe, 2.0)
    assert probe.cancelled_at_s == [1.0]


@in_virtual_time
async def test_an_exception_of_the_probe_is_returned_with_the_verdict_unknown() -> None:
    verdict, error = await run_check(SlowProbe(result=raise_value_error), 2.0)
    assert (verdict.outcome, verdict.code) == (Outcome.UNKNOWN, ReasonCode.PROBE_ERROR)
    assert "ValueError: no ledger" in verdict.reason
    assert isinstance(error, ValueError)
    verdict, error = await run_check(SlowProbe(result=lambda: "yes"), 2.0)
    assert (verdict.outcome, verdict.code) == (Outcome.UNKNOWN, ReasonCode.PROBE_ERROR)
    assert isinstance(error, TypeError)


@pytest.mark.parametrize(
    ("reason", "text"),
    [(ValueError("no\nledger"), "ValueError: no\\nledger"), (b"\xff", "\\xff"), (None, ""), ("a\ud800", "a\\ud800")],
)
@in_virtual_time
async def test_the_reason_of_a_verdict_may_be_any_object(reason: Any, text: str) -> None:
    verdict, error = await run_check(SlowProbe(result=lambda: Verdict.failed(reason)), 2.0)
    assert (verdict, error) == (Verdict.failed(text), None)


@pytest.mark.parametrize(
    ("code", "expected"), [("timeout", ReasonCode.TIMEOUT), ("x_ours", "x_ours"), ("Ours!", "other"), (None, "other")]
)
def test_a_code_that_is_neither_known_nor_custom_becomes_other(code: Any, expected: str) -> None:
    assert validate_verdict(Verdict.failed("no ledger", code=code)).code == expected


@in_virtual_time
async def test_a_success_slower_than_max_latency_means_not_ready() -> None:
    verdict, _ = await run_check(SlowProbe(), 2.0, max_latency_s=-1.0)
    assert (verdict.outcome, verdict.code) == (Outcome.NOT_READY, ReasonCode.SLOW)


@in_virtual_time
async def test_a_reason_is_bounded_wherever_it_comes_from() -> None:
    def fail() -> Verdict:
        raise ValueError("x" * 60_000)

    probes = [SlowProbe(result=lambda: Verdict.failed("x" * 60_000)), SlowProbe(result=fail)]
    reasons = [(await run_check(probe, 2.0))[0].reason for probe in probes]
    assert [len(reason) for reason in reasons] == [MAX_REASON_CHARS] * 2
