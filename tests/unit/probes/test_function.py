"""A function of the program as a probe: what it returns, what it raises, and what it costs the loop."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.model import Verdict
from svcnode.probes.function import FunctionProbe

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 10.0


def verdict_of(function: Callable[[], Any]) -> Verdict:
    return asyncio.run(FunctionProbe(function).look())


def as_coroutine(function: Callable[[], Any]) -> Callable[[], Any]:
    async def check() -> object:
        return function()

    return check


def call(function: Callable[[], Any]) -> object:
    return function()


@pytest.fixture(params=["plain", "coroutine", "plain that hands back a coroutine"])
def style(request: pytest.FixtureRequest) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """The ways to write a check."""
    match request.param:
        case "plain":
            return lambda function: function
        case "coroutine":
            return as_coroutine
        case _:
            return lambda function: functools.partial(call, as_coroutine(function))


# ---- what it says


@pytest.mark.parametrize("result", [None, True, 0, "", [], "anything"])
def test_returning_is_ready(style: Any, result: object) -> None:
    assert verdict_of(style(lambda: result)) == Verdict.ready()


def test_returning_false_is_failed(style: Any) -> None:
    assert verdict_of(style(lambda: False)) == Verdict.failed("the check returned False")


@pytest.mark.parametrize(
    "verdict", [Verdict.ready("warm"), Verdict.not_ready("syncing"), Verdict.failed("full"), Verdict.unknown("no key")]
)
def test_a_returned_verdict_stands_as_it_is(style: Any, verdict: Verdict) -> None:
    assert verdict_of(style(lambda: verdict)) is verdict


def test_raising_is_failed_with_what_was_raised(style: Any) -> None:
    def check() -> None:
        raise ConnectionRefusedError("port 5432")

    assert verdict_of(style(check)) == Verdict.failed("ConnectionRefusedError: port 5432")


def test_a_plain_function_that_would_end_the_program_is_failed() -> None:
    assert verdict_of(lambda: sys.exit("enough")) == Verdict.failed("SystemExit: enough")


def test_an_error_without_words_is_named_by_its_kind(style: Any) -> None:
    def check() -> None:
        raise TimeoutError

    assert verdict_of(style(check)) == Verdict.failed("TimeoutError")


def test_a_callable_object_is_a_check() -> None:
    class Check:
        async def __call__(self) -> Verdict:
            return Verdict.not_ready("loading")

    assert verdict_of(Check()) == Verdict.not_ready("loading")


def test_a_bound_coroutine_with_its_arguments_is_a_check() -> None:
    async def check(word: str) -> Verdict:
        return Verdict.not_ready(word)

    assert verdict_of(functools.partial(check, "loading")) == Verdict.not_ready("loading")


# ---- where it runs


def refuses(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_plain_function_runs_beside_the_loop() -> None:
    ran_on: list[threading.Thread] = []
    verdict_of(lambda: ran_on.append(threading.current_thread()))
    assert ran_on[0] is not threading.current_thread()
    assert ran_on[0].name == "svcnode check"


def test_a_coroutine_runs_on_the_loop_and_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", refuses)
    ran_on: list[threading.Thread] = []
    verdict_of(as_coroutine(lambda: ran_on.append(threading.current_thread())))
    assert ran_on == [threading.current_thread()]


def test_a_run_that_has_not_returned_is_not_begun_again_beside_itself() -> None:
    begun, may_return = threading.Semaphore(0), threading.Event()
    runs: list[None] = []

    def check() -> None:
        runs.append(None)
        begun.release()
        assert may_return.wait(PATIENCE_S)

    async def story() -> None:
        probe = FunctionProbe(check)
        first = asyncio.create_task(probe.look())
        await asyncio.to_thread(begun.acquire, timeout=PATIENCE_S)
        assert await probe.look() == Verdict.failed("its previous run has not returned yet")
        assert len(runs) == 1
        may_return.set()
        assert await first == Verdict.ready()
        assert await probe.look() == Verdict.ready()
        assert len(runs) == 2

    asyncio.run(story())


def test_a_run_that_was_given_up_is_waited_for_before_the_next_one() -> None:
    begun, may_return = threading.Semaphore(0), threading.Event()

    def check() -> None:
        begun.release()
        assert may_return.wait(PATIENCE_S)

    async def story() -> None:
        probe = FunctionProbe(check)
        first = asyncio.create_task(probe.look())
        await asyncio.to_thread(begun.acquire, timeout=PATIENCE_S)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await probe.look() == Verdict.failed("its previous run has not returned yet")
        [thread] = [one for one in threading.enumerate() if one.name == "svcnode check"]
        may_return.set()
        await asyncio.to_thread(thread.join, PATIENCE_S)
        assert await probe.look() == Verdict.ready()

    asyncio.run(story())


def test_a_check_that_failed_can_run_again() -> None:
    results = iter([ValueError("first"), None])

    def check() -> None:
        error = next(results)
        if error is not None:
            raise error

    async def story() -> None:
        probe = FunctionProbe(check)
        assert await probe.look() == Verdict.failed("ValueError: first")
        assert await probe.look() == Verdict.ready()

    asyncio.run(story())


def test_a_thread_that_does_not_start_is_our_own_fault_and_only_this_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        probe = FunctionProbe(lambda: None)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuses)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                await probe.look()
        assert await probe.look() == Verdict.ready()

    asyncio.run(story())


def test_probes_of_one_function_are_equal() -> None:
    def check() -> None: ...

    assert FunctionProbe(check) == FunctionProbe(check)
    assert FunctionProbe(check) != FunctionProbe(lambda: None)
