"""A check function of the embedding program as a probe."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncGenerator, Coroutine, Generator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from svcnode.core.codes import ReasonCode
from svcnode.core.errors import InvalidValueError, is_user_interrupt
from svcnode.core.model import Outcome, Status, Verdict
from svcnode.core.text import error_text
from svcnode.net.os_errors import ThreadStartError, verdict_for_os_error
from svcnode.net.tasks import GuardedTask, SelfCancelledError
from svcnode.net.threads import STILL_RUNNING, DaemonCall
from svcnode.probes.base import Probe

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class FunctionProbe(Probe):
    """`ready` if the function returns None or True, `failed` if it returns False or raises.

    A returned verdict, outcome or status is used. Any other result is `unknown`: it may say that the service
    works, that it does not, or nothing at all, such as a generator that was not run.
    A plain function runs in a thread. It cannot be stopped at its deadline, so no second call starts while it runs.
    """

    function: Callable[[], Any]
    _thread: DaemonCall = field(default_factory=lambda: DaemonCall("check"), repr=False, compare=False)
    _task: GuardedTask = field(default_factory=GuardedTask, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise InvalidValueError(
                f"a check must be callable, not {self.function!r}; pass the function itself, not its result"
            )
        code = _unwrap_callable(self.function)
        if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
            raise InvalidValueError(
                f"{getattr(code, '__qualname__', code)} cannot be a check: calling a generator function does not run "
                "it; use return instead of yield"
            )

    @property
    def kind(self) -> str:
        return "function"

    async def check(self) -> Verdict:
        self._task.loop_blocked_s = 0.0
        if self._thread.is_busy:
            return STILL_RUNNING
        if self._task.is_busy:
            self._task.cancel_again()
            return STILL_RUNNING
        if inspect.iscoroutinefunction(self.function):
            return await self._run_in_task(self.function)
        try:
            result = await self._thread.call(self._run_in_thread)
        except ThreadStartError as exc:
            return verdict_for_os_error(exc, "check function")
        # A callable object or a lambda may return an awaitable.
        return result if isinstance(result, Verdict) else await self._run_in_task(lambda: result)

    @property
    def loop_blocked_s(self) -> float:
        return self._task.loop_blocked_s

    def close(self) -> None:
        self._task.abort()

    async def _run_in_task(self, start: Callable[[], Any]) -> Verdict:
        try:
            return await self._task.call(lambda: _await_verdict(start))
        except SelfCancelledError:
            return Verdict.failed("a task that the check awaited was cancelled", code=ReasonCode.CHECK_FAILED)

    def _run_in_thread(self) -> object:
        try:
            result = self.function()
            return result if inspect.isawaitable(result) else _verdict_from(result)
        except BaseException as exc:  # noqa: BLE001  a thread gets no Ctrl-C, and a check must not end the program
            return Verdict.failed(error_text(exc), code=ReasonCode.CHECK_FAILED)


async def _await_verdict(start: Callable[[], Any]) -> Verdict:
    try:
        return _verdict_from(await start())
    except asyncio.CancelledError:
        raise  # GuardedTask knows whether the check itself was cancelled
    except BaseException as exc:
        if is_user_interrupt(exc):
            raise
        return Verdict.failed(error_text(exc), code=ReasonCode.CHECK_FAILED)


def _unwrap_callable(function: Any) -> Any:  # noqa: ANN401  any callable
    """The function that a partial, a bound method or a callable object calls."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif not inspect.isroutine(function) and inspect.ismethod(getattr(function, "__call__", None)):  # noqa: B004  the method itself is needed
            function = function.__call__
        else:
            return function


_ADVICE = "return None or True if the service is ready, a Verdict otherwise, or raise an exception"


def _verdict_from(result: object) -> Verdict:
    match result:
        case Verdict():
            return result
        case None:
            return Verdict.ready()
        case Outcome():
            return _reported(result, f"the check returned {result}")
        case Status():
            return _reported(_OUTCOME_OF_STATUS[result], f"the check returned {result}")
        case _ if _is_boolean(result):
            return Verdict.ready() if result else _reported(Outcome.FAILED, "the check returned False")
        case _:
            reason = f"the check returned {_description(result)}"
            _close(result)
            return Verdict.unknown(reason, code=ReasonCode.BAD_RETURN)


_OUTCOME_OF_STATUS = {
    Status.UP: Outcome.READY,
    Status.INITIALIZING: Outcome.NOT_READY,
    Status.DOWN: Outcome.FAILED,
}
_CODES = {Outcome.READY: ReasonCode.OK, Outcome.FAILED: ReasonCode.CHECK_FAILED}


def _reported(outcome: Outcome, reason: str) -> Verdict:
    """A result without a code of its own. A success needs no reason."""
    return Verdict(outcome, "" if outcome is Outcome.READY else reason, _CODES.get(outcome, ReasonCode.REPORTED))


def _is_boolean(result: object) -> bool:
    """Also of NumPy, whose type has the name `bool` or `bool_`."""
    return type(result).__name__ in ("bool", "bool_")


def _description(result: object) -> str:
    """Names a result that is none, and says how to fix the check. Only its type: its content may be a secret."""
    kind = type(result).__name__
    match result:
        case Generator() | AsyncGenerator():
            text = "a generator that was not run: use return instead of yield"
        case map() | filter() | zip():
            text = f"a {kind} that was not run: iterate over it in the check"
        case Future():
            text = "a future that was not waited for: return its result()"
        case BaseException():
            text = f"an exception ({kind}): raise it"
        case _ if _context_generator(result) is not None:
            text = "a context manager that was not entered: use it in a with statement in the check"
        case _ if inspect.isawaitable(result):
            text = "an awaitable that was not awaited: await it in the check"
        case _ if inspect.isroutine(result) or isinstance(result, functools.partial):
            text = "a function that was not called: call it in the check"
        case _:
            text = f"a value of type {kind}: {_ADVICE}"
    return text


def _context_generator(result: object) -> object:
    """The generator inside a result of @contextmanager. Other context managers, such as connections, are results."""
    is_context = isinstance(result, AbstractContextManager | AbstractAsyncContextManager)
    inner = getattr(result, "gen", None) if is_context else None
    return inner if isinstance(inner, Generator | AsyncGenerator) else None


def _close(result: object) -> None:
    """Close a generator; close a coroutine too, to avoid the warning that it was never awaited."""
    closable = _context_generator(result) or result
    if isinstance(closable, Generator | Coroutine):  # the loop closes asynchronous generators
        with suppress(Exception):
            closable.close()
