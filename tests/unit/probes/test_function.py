"""Check functions as probes: results, errors, and blocking the loop."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError
from svcnode.core.model import Outcome, Status, Verdict
from svcnode.probes.function import FunctionProbe
from tests.support.verdicts import READY, failed, unknown

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

WAIT_TIMEOUT_S = 60.0
FAILED = failed(ReasonCode.CHECK_FAILED)
BAD_RETURN = unknown(ReasonCode.BAD_RETURN)
STILL_RUNNING = failed(ReasonCode.STILL_RUNNING)


def verdict_of(function: Callable[[], Any]) -> Verdict:
    return asyncio.run(FunctionProbe(function).check())


def as_coroutine(function: Callable[[], Any]) -> Callable[[], Any]:
    async def check() -> object:
        return function()

    return check


def call(function: Callable[[], Any]) -> object:
    return function()


@pytest.fixture(params=["plain", "coroutine", "plain that returns a coroutine"])
def style(request: pytest.FixtureRequest) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """The ways to write a check."""
    match request.param:
        case "plain":
            return lambda function: function
        case "coroutine":
            return as_coroutine
        case _:
            return lambda function: functools.partial(call, as_coroutine(function))


@pytest.mark.parametrize(
    ("result", "outcome", "code"),
    [
        (None, Outcome.READY, ReasonCode.OK),
        (True, Outcome.READY, ReasonCode.OK),
        (Outcome.READY, Outcome.READY, ReasonCode.OK),
        (Outcome.NOT_READY, Outcome.NOT_READY, ReasonCode.REPORTED),
        (Outcome.FAILED, Outcome.FAILED, ReasonCode.CHECK_FAILED),
        (Outcome.UNKNOWN, Outcome.UNKNOWN, ReasonCode.REPORTED),
        (Status.UP, Outcome.READY, ReasonCode.OK),
        (Status.INITIALIZING, Outcome.NOT_READY, ReasonCode.REPORTED),
        (Status.DOWN, Outcome.FAILED, ReasonCode.CHECK_FAILED),
    ],
    ids=str,
)
def test_nothing_true_an_outcome_or_a_status_is_the_verdict(
    style: Any, result: object, outcome: Outcome, code: ReasonCode
) -> None:
    verdict = verdict_of(style(lambda: result))
    assert (verdict.outcome, verdict.code) == (outcome, code)


def result_of_numpy(name: str, *, value: bool) -> object:
    """As a comparison of NumPy returns it. Its type is `bool_` in old versions and `bool` in new ones."""
    return type(name, (), {"__bool__": lambda _: value})()


@pytest.mark.parametrize("name", ["bool", "bool_"])
def test_returning_the_false_of_numpy_is_failed(style: Any, name: str) -> None:
    false, true = (result_of_numpy(name, value=value) for value in (False, True))
    assert verdict_of(style(lambda: false)) == FAILED
    assert verdict_of(style(lambda: true)) == READY


@pytest.mark.parametrize(
    "verdict", [Verdict.ready("warm"), Verdict.not_ready("syncing"), Verdict.failed("full"), Verdict.unknown("no key")]
)
def test_a_returned_verdict_is_used_as_it_is(style: Any, verdict: Verdict) -> None:
    assert verdict_of(style(lambda: verdict)) is verdict


def test_raising_is_failed_and_the_reason_has_the_error(style: Any) -> None:
    def check() -> None:
        raise ConnectionRefusedError("port 5432")

    verdict = verdict_of(style(check))
    assert verdict == FAILED
    assert "ConnectionRefusedError" in verdict.reason
    assert "port 5432" in verdict.reason


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, BaseException])
def test_any_error_of_a_plain_function_is_failed(error: type[BaseException]) -> None:
    def check() -> None:
        raise error

    assert verdict_of(check) == FAILED


def test_a_keyboard_interrupt_of_a_coroutine_ends_the_program_only_in_the_main_thread() -> None:
    verdicts: list[Verdict] = []
    thread = threading.Thread(target=lambda: verdicts.append(verdict_of(as_coroutine(interrupt))))
    thread.start()
    thread.join(WAIT_TIMEOUT_S)
    assert verdicts == [FAILED]
    with pytest.raises(KeyboardInterrupt):
        verdict_of(as_coroutine(interrupt))


@pytest.mark.parametrize("style", [as_coroutine, lambda check: functools.partial(call, as_coroutine(check))])
def test_a_cancellation_from_inside_is_failed(style: Any) -> None:
    def check() -> None:
        raise asyncio.CancelledError

    assert verdict_of(style(check)) == FAILED


def a_generator() -> Generator[None]:
    1 / 0  # noqa: B018  never runs
    yield


async def an_async_generator() -> AsyncGenerator[None]:
    1 / 0  # noqa: B018  never runs
    yield


class Generators:
    async def method(self) -> AsyncGenerator[None]:
        yield

    def __call__(self) -> Generator[None]:
        yield


YIELDING: dict[str, Callable[[], Any]] = {
    "a_generator": a_generator,
    "an_async_generator": an_async_generator,
    "Generators.method": functools.partial(functools.partial(Generators().method)),
    "Generators.__call__": Generators(),
}


@pytest.mark.parametrize("name", YIELDING)
def test_a_generator_function_is_rejected(name: str) -> None:
    with pytest.raises(InvalidValueError, match=name):
        FunctionProbe(YIELDING[name])


def test_a_returned_generator_that_was_started_is_closed() -> None:
    ended: list[str] = []

    def pages() -> Generator[str]:
        try:
            yield "first"
        finally:
            ended.append("closed")
            raise ValueError

    def check() -> object:
        started = pages()
        next(started)
        return started

    assert verdict_of(check) == BAD_RETURN
    assert ended == ["closed"]


def test_a_coroutine_that_is_returned_by_a_coroutine_is_not_a_result() -> None:
    assert verdict_of(as_coroutine(as_coroutine(lambda: 1 / 0))) == BAD_RETURN


@pytest.mark.parametrize(
    "result",
    [
        0,
        "ok",
        (False, "no connection"),
        HTTPStatus.SERVICE_UNAVAILABLE,
        Future[bool](),
        map(int, ["x"]),
        filter(None, ["x"]),
        zip(["x"], ["y"], strict=True),
        as_coroutine,
        a_generator(),
        an_async_generator(),
        contextmanager(a_generator)(),
        asynccontextmanager(an_async_generator)(),
    ],
    ids=lambda result: type(result).__name__,
)
def test_any_other_result_is_neither_ready_nor_failed(style: Any, result: object) -> None:
    assert verdict_of(style(lambda: result)) == BAD_RETURN


def fail_to_start(thread: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_plain_function_runs_in_a_thread_and_a_coroutine_on_the_loop_without_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran_on: list[threading.Thread] = []
    verdict_of(lambda: ran_on.append(threading.current_thread()))
    monkeypatch.setattr(threading.Thread, "start", fail_to_start)
    verdict_of(as_coroutine(lambda: ran_on.append(threading.current_thread())))
    in_thread, on_loop = ran_on
    assert (in_thread.name, in_thread is on_loop) == ("svcnode check", False)
    assert on_loop is threading.current_thread()


def test_a_cancelled_call_that_still_runs_blocks_the_next_one() -> None:
    started, may_return = threading.Semaphore(0), threading.Event()

    def check() -> None:
        started.release()
        assert may_return.wait(WAIT_TIMEOUT_S)

    async def scenario() -> None:
        probe = FunctionProbe(check)
        others = set(threading.enumerate())  # of earlier tests
        first = asyncio.create_task(probe.check())
        await asyncio.to_thread(started.acquire, timeout=WAIT_TIMEOUT_S)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await probe.check() == STILL_RUNNING
        [thread] = [thread for thread in set(threading.enumerate()) - others if thread.name == "svcnode check"]
        may_return.set()
        await asyncio.to_thread(thread.join, WAIT_TIMEOUT_S)
        assert await probe.check() == READY

    asyncio.run(scenario())


def test_a_check_without_a_thread_is_unknown_and_the_next_one_works(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        probe = FunctionProbe(lambda: None)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fail_to_start)
            assert await probe.check() == unknown(ReasonCode.RESOURCE_EXHAUSTED)
        assert await probe.check() == READY

    asyncio.run(scenario())


def test_the_blocked_time_is_that_of_the_last_check() -> None:
    async def blocks() -> None:
        time.sleep(0.01)  # noqa: ASYNC251  blocks on purpose

    results = iter([blocks(), None])

    async def scenario() -> None:
        probe = FunctionProbe(lambda: next(results))
        assert await probe.check() == READY
        assert probe.loop_blocked_s >= 0.01
        assert await probe.check() == READY
        assert probe.loop_blocked_s == 0.0

    asyncio.run(scenario())


def test_probes_of_one_function_are_equal() -> None:
    def check() -> None: ...

    assert FunctionProbe(check) == FunctionProbe(check)
    assert FunctionProbe(check) != FunctionProbe(lambda: None)
