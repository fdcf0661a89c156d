"""Virtual time for tests.

`VirtualTimeLoop` is an event loop whose clock jumps to the next timer as soon as the loop is idle: an hour of checks
takes milliseconds, the order is always the same, and a sleep has exactly its length. Other threads are not included:
with a timer set, the loop does not wait for them.
"""

from __future__ import annotations

import asyncio
import selectors
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")
P = ParamSpec("P")

WAIT_TIMEOUT_S = 10.0  # real seconds to wait for another thread when there is no timer to jump to


class VirtualClock:
    """A clock that a test sets."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s

    def advance(self, by_s: float) -> None:
        self.now_s += by_s


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = VirtualClock()
        super().__init__(_JumpingSelector(self.clock))

    def time(self) -> float:
        return self.clock.now_s

    async def shutdown_default_executor(self, *_: object) -> None:
        """Without a timeout, which would pass at once: threads run in real time."""
        await super().shutdown_default_executor()


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0 if timeout is not None else WAIT_TIMEOUT_S)
        if not ready and timeout is None:
            raise RuntimeError("deadlock: every task waits, and no timer is set")
        if not ready and timeout is not None:
            self._clock.advance(timeout)
        return ready


def run_in_virtual_time(coroutine: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(coroutine)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a coroutine function as a test in virtual time, which starts at 0."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_in_virtual_time(test(*args, **kwargs))

    return run
