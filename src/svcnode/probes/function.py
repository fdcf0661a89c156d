"""A function of the embedding program as a probe."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from svcnode.core.model import Verdict
from svcnode.probes.tools.threads import OwnThread

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class FunctionProbe:
    """Returning is ready, returning False or raising is failed, and a returned verdict stands as it is.

    A plain function runs in a thread. A run that outlives its deadline cannot be stopped, so while it goes on
    no second one is begun.
    """

    function: Callable[[], Any]
    _thread: OwnThread = field(default_factory=lambda: OwnThread("check"), repr=False, compare=False)

    async def look(self) -> Verdict:
        if inspect.iscoroutinefunction(self.function):
            result = self.function()
        elif self._thread.is_busy:
            return Verdict.failed("its previous run has not returned yet")
        else:
            result = await self._thread.call(self._run)
        try:
            # A callable object or a lambda may still hand back something to await.
            return _verdict_from(await result if inspect.isawaitable(result) else result)
        except Exception as exc:  # noqa: BLE001  a check says "failed" by raising whatever it likes
            return Verdict.failed(_reason_from(exc))

    def _run(self) -> object:
        try:
            return self.function()
        except (Exception, SystemExit) as exc:  # noqa: BLE001  as above, and a check may not end the program
            return Verdict.failed(_reason_from(exc))


def _verdict_from(result: object) -> Verdict:
    if isinstance(result, Verdict):
        return result
    return Verdict.failed("the check returned False") if result is False else Verdict.ready()


def _reason_from(exc: BaseException) -> str:
    text = str(exc).strip()
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__
