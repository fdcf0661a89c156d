"""A function of the program as a probe: what it returns, what it raises, and what it costs the loop."""

from __future__ import annotations

import asyncio
import functools
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from svcnode.core.errors import InvalidValueError
from svcnode.core.model import Outcome, Verdict
from svcnode.probes.function import FunctionProbe

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator

PATIENCE_S = 10.0


def verdict_of(function: Callable[[], Any]) -> Verdict:
    return asyncio.run(FunctionProbe(function).check())


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


def result_of_numpy(name: str, *, value: bool) -> object:
    """As a comparison returns it, and neither Python's True nor its False. Its type was `bool_`, and is `bool` now."""
    return type(name, (), {"__bool__": lambda _: value})()


@pytest.mark.parametrize("name", ["bool", "bool_"])
def test_the_false_of_numpy_is_failed_as_any_other(style: Any, name: str) -> None:
    false, true = (result_of_numpy(name, value=value) for value in (False, True))
    assert verdict_of(style(lambda: false)) == Verdict.failed("the check returned False")
    assert verdict_of(style(lambda: true)) == Verdict.ready()


@pytest.mark.parametrize(
    "verdict", [Verdict.ready("warm"), Verdict.not_ready("syncing"), Verdict.failed("full"), Verdict.unknown("no key")]
)
def test_a_returned_verdict_stands_as_it_is(style: Any, verdict: Verdict) -> None:
    assert verdict_of(style(lambda: verdict)) is verdict


def test_raising_is_failed_with_what_was_raised(style: Any) -> None:
    def check() -> None:
        raise ConnectionRefusedError("port 5432")

    assert verdict_of(style(check)) == Verdict.failed("ConnectionRefusedError: port 5432")


def test_a_check_that_would_end_the_program_is_failed(style: Any) -> None:
    assert verdict_of(style(lambda: sys.exit("config lost"))) == Verdict.failed("SystemExit: config lost")


def interrupt() -> None:
    raise KeyboardInterrupt("not by a person")


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, BaseException])
def test_whatever_a_plain_function_raises_is_failed(error: type[BaseException]) -> None:
    def check() -> None:
        raise error("not today")

    assert verdict_of(check) == Verdict.failed(f"{error.__name__}: not today")


def test_an_interrupt_that_a_coroutine_raises_where_no_ctrl_c_can_come_is_failed() -> None:
    verdicts: list[Verdict] = []
    looking = threading.Thread(target=lambda: verdicts.append(verdict_of(as_coroutine(interrupt))))
    looking.start()
    looking.join(PATIENCE_S)
    assert verdicts == [Verdict.failed("KeyboardInterrupt: not by a person")]


def test_a_ctrl_c_that_finds_a_coroutine_at_work_still_ends_the_program() -> None:
    with pytest.raises(KeyboardInterrupt):
        verdict_of(as_coroutine(interrupt))


@pytest.mark.parametrize("hands_over", [as_coroutine, lambda check: functools.partial(call, as_coroutine(check))])
def test_a_cancellation_that_nobody_asked_for_is_failed(hands_over: Any) -> None:
    def check() -> None:
        raise asyncio.CancelledError

    assert verdict_of(hands_over(check)) == Verdict.failed("what it waited for was cancelled")


@pytest.mark.parametrize("error", [GeneratorExit, BaseException])
def test_whatever_else_a_coroutine_raises_is_failed(error: type[BaseException]) -> None:
    def check() -> None:
        raise error("not today")

    assert verdict_of(as_coroutine(check)) == Verdict.failed(f"{error.__name__}: not today")


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def test_an_error_that_cannot_be_put_into_words_is_failed_with_its_kind(style: Any) -> None:
    def check() -> None:
        raise UnspeakableError

    assert verdict_of(style(check)) == Verdict.failed("UnspeakableError")


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


# ---- what a call does not run


def a_generator() -> Generator[None]:
    1 / 0  # noqa: B018  which nobody would ever hear of
    yield


async def an_async_generator() -> AsyncGenerator[None]:
    1 / 0  # noqa: B018  as above
    yield


class Generators:
    def method(self) -> Generator[None]:
        yield

    async def async_method(self) -> AsyncGenerator[None]:
        yield


class GeneratorWhenCalled:
    def __call__(self) -> Generator[None]:
        yield


class AsyncGeneratorWhenCalled:
    async def __call__(self) -> AsyncGenerator[None]:
        yield


YIELDING: dict[str, Callable[[], Any]] = {
    "a_generator": a_generator,
    "an_async_generator": an_async_generator,
    "Generators.method": Generators().method,
    "Generators.async_method": functools.partial(functools.partial(Generators().async_method)),
    "GeneratorWhenCalled.__call__": GeneratorWhenCalled(),
    "AsyncGeneratorWhenCalled.__call__": functools.partial(AsyncGeneratorWhenCalled()),
}


@pytest.mark.parametrize("name", YIELDING)
def test_what_yields_is_refused_with_what_to_write_instead(name: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        FunctionProbe(YIELDING[name])
    assert str(refused.value) == (
        f"{name} cannot be a check: it yields, so a call runs nothing of it; "
        "let it return instead, or write a function that uses it and returns"
    )


@pytest.mark.parametrize("what", [5, None, "db", Verdict.ready()])
def test_what_cannot_be_called_is_refused_with_what_to_hand_over(what: Any) -> None:
    with pytest.raises(InvalidValueError) as refused:
        FunctionProbe(what)
    assert str(refused.value) == (
        f"a check is a function, or something else that can be called, not {what!r}; "
        "hand over the function itself, not what it returns"
    )


@pytest.mark.parametrize("function", [a_generator, an_async_generator])
def test_a_generator_that_is_returned_is_failed(style: Any, function: Callable[[], Any]) -> None:
    said = "the check returned a generator, of which nobody ran anything: return instead of yield"
    assert verdict_of(style(functools.partial(call, function))) == Verdict.failed(said)


def test_a_generator_that_was_begun_and_is_returned_is_closed() -> None:
    ended: list[str] = []

    def pages() -> Generator[str]:
        try:
            yield "first"
        finally:
            ended.append("closed")
            raise ValueError("not in peace")

    def check() -> object:
        began = pages()
        next(began)
        return began

    assert "returned a generator" in verdict_of(check).reason
    assert ended == ["closed"]


@pytest.mark.parametrize("function", [contextmanager(a_generator), asynccontextmanager(an_async_generator)])
def test_a_context_that_nobody_entered_is_failed(style: Any, function: Callable[[], Any]) -> None:
    said = "the check returned a context manager that nobody entered: use it inside the check"
    assert verdict_of(style(function)) == Verdict.failed(said)
    assert verdict_of(function) == Verdict.failed(said)


def test_something_open_that_is_returned_is_evidence(style: Any) -> None:
    class Connection:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None: ...

    assert verdict_of(style(Connection)) == Verdict.ready()


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (Future[bool](), "a future that nobody waited for"),
        (map(int, ["x"]), "a map, of which nobody ran anything"),
        (filter(None, ["x"]), "a filter, of which nobody ran anything"),
        (zip(["x"], ["y"], strict=True), "a zip, of which nobody ran anything"),
        (test_returning_is_ready, "a function that nobody called"),
        ([].append, "a function that nobody called"),
        (functools.partial(int, "x"), "a function that nobody called"),
    ],
)
def test_work_that_is_returned_and_nobody_did_is_failed(style: Any, result: object, words: str) -> None:
    verdict = verdict_of(style(lambda: result))
    assert verdict.outcome is Outcome.FAILED
    assert words in verdict.reason


def test_a_coroutine_that_a_coroutine_returns_and_nobody_awaits_is_failed() -> None:
    said = "the check returned something to await, which nobody did: await it in the check"
    fails = as_coroutine(lambda: 1 / 0)
    assert verdict_of(as_coroutine(fails)) == Verdict.failed(said)


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
        first = asyncio.create_task(probe.check())
        await asyncio.to_thread(begun.acquire, timeout=PATIENCE_S)
        assert await probe.check() == Verdict.failed("its previous run has not returned yet")
        assert len(runs) == 1
        may_return.set()
        assert await first == Verdict.ready()
        assert await probe.check() == Verdict.ready()
        assert len(runs) == 2

    asyncio.run(story())


def test_a_run_that_was_given_up_is_waited_for_before_the_next_one() -> None:
    begun, may_return = threading.Semaphore(0), threading.Event()

    def check() -> None:
        begun.release()
        assert may_return.wait(PATIENCE_S)

    async def story() -> None:
        probe = FunctionProbe(check)
        first = asyncio.create_task(probe.check())
        await asyncio.to_thread(begun.acquire, timeout=PATIENCE_S)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await probe.check() == Verdict.failed("its previous run has not returned yet")
        [thread] = [one for one in threading.enumerate() if one.name == "svcnode check"]
        may_return.set()
        await asyncio.to_thread(thread.join, PATIENCE_S)
        assert await probe.check() == Verdict.ready()

    asyncio.run(story())


def test_a_check_that_failed_can_run_again() -> None:
    results = iter([ValueError("first"), None])

    def check() -> None:
        error = next(results)
        if error is not None:
            raise error

    async def story() -> None:
        probe = FunctionProbe(check)
        assert await probe.check() == Verdict.failed("ValueError: first")
        assert await probe.check() == Verdict.ready()

    asyncio.run(story())


def test_a_thread_that_does_not_start_is_our_own_fault_and_only_this_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        probe = FunctionProbe(lambda: None)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuses)
            assert await probe.check() == Verdict.unknown("this machine cannot look: no threads left")
        assert await probe.check() == Verdict.ready()

    asyncio.run(story())


def test_how_long_a_look_held_the_loop_says_nothing_of_the_next_one() -> None:
    async def holds() -> None:
        time.sleep(0.01)  # noqa: ASYNC251  that it blocks is the point

    results = iter([holds(), None])

    async def story() -> None:
        probe = FunctionProbe(lambda: next(results))
        assert await probe.check() == Verdict.ready()
        assert probe.loop_blocked_s >= 0.01
        assert await probe.check() == Verdict.ready()
        assert probe.loop_blocked_s == 0.0

    asyncio.run(story())


def test_probes_of_one_function_are_equal() -> None:
    def check() -> None: ...

    assert FunctionProbe(check) == FunctionProbe(check)
    assert FunctionProbe(check) != FunctionProbe(lambda: None)
