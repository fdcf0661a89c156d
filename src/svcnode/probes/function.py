"""A function of the embedding program as a probe."""

from __future__ import annotations

import inspect
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from svcnode.core.model import Verdict
from svcnode.probes.threads import call_in_thread

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class FunctionProbe:
    """Returning is ready, returning False or raising is failed, and a returned verdict stands as it is.

    A plain function runs in a thread. A run that outlives its deadline cannot be stopped, so while it goes on
    no second one is begun.
    """

    function: Callable[[], Any]
    # Held while a plain function runs; taken and released by different threads, which a Lock allows.
    _is_running: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    async def look(self) -> Verdict:
        try:
            return _verdict_from(await self._result())
        except Exception as exc:  # noqa: BLE001  a check says "failed" by raising whatever it likes
            return Verdict.failed(_reason_from(exc))

    async def _result(self) -> object:
        if inspect.iscoroutinefunction(self.function):
            return await self.function()
        if not self._is_running.acquire(blocking=False):
            return Verdict.failed("its previous run has not returned yet")
        result = await call_in_thread(self._run_once, name="svcnode check")
        # A callable object or a lambda may still hand back something to await.
        return await result if inspect.isawaitable(result) else result

    def _run_once(self) -> object:
        try:
            return self.function()
        finally:
            self._is_running.release()


def _verdict_from(result: object) -> Verdict:
    if isinstance(result, Verdict):
        return result
    return Verdict.failed("the check returned False") if result is False else Verdict.ready()


def _reason_from(exc: Exception) -> str:
    text = str(exc).strip()
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__
