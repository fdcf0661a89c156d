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

from svcnode.core.errors import InvalidValueError, is_user_interrupt
from svcnode.core.model import Verdict
from svcnode.core.text import error_text
from svcnode.net.os_errors import ThreadStartError, verdict_for_os_error
from svcnode.net.tasks import GuardedTask, SelfCancelledError
from svcnode.net.threads import DaemonCall
from svcnode.probes.base import Probe

if TYPE_CHECKING:
    from collections.abc import Callable

_STILL_RUNNING = Verdict.failed("its previous run has not returned yet")


@dataclass(frozen=True, slots=True)
class FunctionProbe(Probe):
    """Returning is ready, returning False or raising is failed, and a returned verdict stands as it is.

    A plain function runs in a thread. A run that outlives its deadline cannot be stopped, so while it goes on
    no second one is begun. What a call does not run, such as a generator, is never taken for a success.
    """

    function: Callable[[], Any]
    _thread: DaemonCall = field(default_factory=lambda: DaemonCall("check"), repr=False, compare=False)
    _task: GuardedTask = field(default_factory=GuardedTask, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidValueError(
                f"a check is a function, or something else that can be called, not {self.function!r}; "
                "hand over the function itself, not what it returns"
            )
        code = _unwrap_callable(self.function)
        if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
            raise InvalidValueError(
                f"{getattr(code, '__qualname__', code)} cannot be a check: it yields, so a call runs nothing of it; "
                "let it return instead, or write a function that uses it and returns"
            )

    @property
    def kind(self) -> str:
        return "function"

    async def check(self) -> Verdict:
        self._task.loop_blocked_s = 0.0
        if self._thread.is_busy:
            return _STILL_RUNNING
        if self._task.is_busy:
            self._task.cancel_again()
            return _STILL_RUNNING
        if inspect.iscoroutinefunction(self.function):
            return await self._run_in_task(self.function)
        try:
            result = await self._thread.call(self._run_in_thread)
        except ThreadStartError as exc:
            return verdict_for_os_error(exc, "the check")
        # A callable object or a lambda may still hand back something to await.
        return result if isinstance(result, Verdict) else await self._run_in_task(lambda: result)

    @property
    def loop_blocked_s(self) -> float:
        """How long the last look held the event loop by itself."""
        return self._task.loop_blocked_s

    def close(self) -> None:
        self._task.abort()

    async def _run_in_task(self, begin: Callable[[], Any]) -> Verdict:
        try:
            return await self._task.call(lambda: _await_verdict(begin))
        except SelfCancelledError:
            return Verdict.failed("what it waited for was cancelled")

    def _run_in_thread(self) -> object:
        try:
            result = self.function()
            return result if inspect.isawaitable(result) else _verdict_from(result)
        except BaseException as exc:  # noqa: BLE001  no Ctrl-C comes to a thread, and a check may not end the program
            return Verdict.failed(error_text(exc))


async def _await_verdict(begin: Callable[[], Any]) -> Verdict:
    try:
        return _verdict_from(await begin())
    except asyncio.CancelledError:
        raise  # whose it is, `GuardedTask` can tell
    except BaseException as exc:
        if is_user_interrupt(exc):
            raise
        return Verdict.failed(error_text(exc))  # a check says "failed" by raising whatever it likes


def _unwrap_callable(function: Any) -> Any:  # noqa: ANN401  whatever can be called
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
    undone = _unfinished_work(result)
    if undone is None:
        return Verdict.ready()
    _close(result)
    return Verdict.failed(f"the check returned {undone}")


def _is_false(result: object) -> bool:
    """NumPy has a False of its own, whose type is called `bool_`, or `bool` as Python's."""
    return type(result).__name__ in ("bool", "bool_") and not result


def _unfinished_work(result: object) -> str | None:
    """The work that nobody has done yet, where that is what was returned, and what to write instead."""
    words = None
    match result:
        case Generator() | AsyncGenerator():
            words = "a generator, of which nobody ran anything: return instead of yield"
        case map() | filter() | zip():
            words = f"a {type(result).__name__}, of which nobody ran anything: go through it in the check"
        case Future():
            words = "a future that nobody waited for: return its result()"
        case _ if _context_generator(result) is not None:
            words = "a context manager that nobody entered: use it inside the check"
        case _ if inspect.isawaitable(result):
            words = "something to await, which nobody did: await it in the check"
        case _ if inspect.isroutine(result) or isinstance(result, functools.partial):
            words = "a function that nobody called: call it in the check"
        case _:
            pass
    return words


def _context_generator(result: object) -> object:
    """Of what @contextmanager or its like made; other things that can be entered, such as connections, are evidence."""
    is_context = isinstance(result, AbstractContextManager | AbstractAsyncContextManager)
    inner = getattr(result, "gen", None) if is_context else None
    return inner if isinstance(inner, Generator | AsyncGenerator) else None


def _close(undone: object) -> None:
    """What was begun is to end now; and of a coroutine, a warning would come later that nobody awaited it."""
    closable = _context_generator(undone) or undone
    if isinstance(closable, Generator | Coroutine):  # an asynchronous generator is closed by the loop, if it was begun
        with suppress(Exception):
            closable.close()
