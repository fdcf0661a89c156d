"""A function of the embedding program as a probe."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Coroutine, Generator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from svcnode.core.errors import InvalidValueError
from svcnode.core.interrupts import is_ctrl_c
from svcnode.core.model import Verdict
from svcnode.core.wording import error_words
from svcnode.probes.tools.faults import NoThreadError, verdict_on
from svcnode.probes.tools.tasks import CancelledByItselfError, OwnTask
from svcnode.probes.tools.threads import OwnThread

if TYPE_CHECKING:
    from collections.abc import Callable

_STILL_RUNS = Verdict.failed("its previous run has not returned yet")


@dataclass(frozen=True, slots=True)
class FunctionProbe:
    """Returning is ready, returning False or raising is failed, and a returned verdict stands as it is.

    A plain function runs in a thread. A run that outlives its deadline cannot be stopped, so while it goes on
    no second one is begun. What a call does not run, such as a generator, is never taken for a success.
    """

    function: Callable[[], Any]
    _thread: OwnThread = field(default_factory=lambda: OwnThread("check"), repr=False, compare=False)
    _task: OwnTask = field(default_factory=OwnTask, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidValueError(
                f"a check is a function, or something else that can be called, not {self.function!r}; "
                "hand over the function itself, not what it returns"
            )
        code = _code_of(self.function)
        if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
            raise InvalidValueError(
                f"{getattr(code, '__qualname__', code)} cannot be a check: it yields, so a call runs nothing of it; "
                "let it return instead, or write a function that uses it and returns"
            )

    async def look(self) -> Verdict:
        self._task.held_s = 0.0
        if self._thread.is_busy:
            return _STILL_RUNS
        if self._task.is_busy:
            self._task.tell_again()
            return _STILL_RUNS
        if inspect.iscoroutinefunction(self.function):
            return await self._in_task(self.function)
        try:
            result = await self._thread.call(self._run)
        except NoThreadError as exc:
            return verdict_on(exc, "the check")
        # A callable object or a lambda may still hand back something to await.
        return result if isinstance(result, Verdict) else await self._in_task(lambda: result)

    @property
    def held_loop_s(self) -> float:
        """How long the last look held the event loop by itself."""
        return self._task.held_s

    def let_go(self) -> None:
        self._task.drop()

    async def _in_task(self, begin: Callable[[], Any]) -> Verdict:
        try:
            return await self._task.call(lambda: _awaited(begin))
        except CancelledByItselfError:
            return Verdict.failed("what it waited for was cancelled")

    def _run(self) -> object:
        try:
            result = self.function()
            return result if inspect.isawaitable(result) else _verdict_from(result)
        except BaseException as exc:  # noqa: BLE001  no Ctrl-C comes to a thread, and a check may not end the program
            return Verdict.failed(error_words(exc))


async def _awaited(begin: Callable[[], Any]) -> Verdict:
    try:
        return _verdict_from(await begin())
    except asyncio.CancelledError:
        raise  # whose it is, `OwnTask` can tell
    except BaseException as exc:
        if is_ctrl_c(exc):
            raise
        return Verdict.failed(error_words(exc))  # a check says "failed" by raising whatever it likes


def _code_of(function: Any) -> Any:  # noqa: ANN401  whatever can be called
    """What is run in the end, without the arguments and the object that it is bound to."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif not inspect.isroutine(function) and inspect.ismethod(getattr(function, "__call__", None)):  # noqa: B004  its code is wanted
            function = function.__call__
        else:
            return function


def _verdict_from(result: object) -> Verdict:
    if isinstance(result, Verdict):
        return result
    if _is_false(result):
        return Verdict.failed("the check returned False")
    undone = _undone(result)
    if undone is None:
        return Verdict.ready()
    _close(result)
    return Verdict.failed(f"the check returned {undone}")


def _is_false(result: object) -> bool:
    """NumPy has a False of its own, whose type is called `bool_`, or `bool` as Python's."""
    return type(result).__name__ in ("bool", "bool_") and not result


def _undone(result: object) -> str | None:
    """The work that nobody has done yet, where that is what was returned, and what to write instead."""
    words = None
    match result:
        case Generator() | AsyncGenerator():
            words = "a generator, of which nobody ran anything: return instead of yield"
        case map() | filter() | zip():
            words = f"a {type(result).__name__}, of which nobody ran anything: go through it in the check"
        case Future():
            words = "a future that nobody waited for: return its result()"
        case _ if _generator_of_context(result) is not None:
            words = "a context manager that nobody entered: use it inside the check"
        case _ if inspect.isawaitable(result):
            words = "something to await, which nobody did: await it in the check"
        case _ if inspect.isroutine(result) or isinstance(result, functools.partial):
            words = "a function that nobody called: call it in the check"
        case _:
            pass
    return words


def _generator_of_context(result: object) -> object:
    """Of what @contextmanager or its like made; other things that can be entered, such as connections, are evidence."""
    is_context = isinstance(result, AbstractContextManager | AbstractAsyncContextManager)
    inner = getattr(result, "gen", None) if is_context else None
    return inner if isinstance(inner, Generator | AsyncGenerator) else None


def _close(undone: object) -> None:
    """What was begun is to end now; and of a coroutine, a warning would come later that nobody awaited it."""
    closable = _generator_of_context(undone) or undone
    if isinstance(closable, Generator | Coroutine):  # an asynchronous generator is closed by the loop, if it was begun
        with suppress(Exception):
            closable.close()
