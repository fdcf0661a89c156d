"""What a look did, step by step, for whoever wants to see; costs next to nothing when nobody does."""

from __future__ import annotations

import time
from asyncio import CancelledError
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True, slots=True)
class Step:
    name: str  # "resolve", "connect", "handshake", "exchange"
    detail: str
    duration_s: float
    is_done: bool  # False for the step that a look got no further than


_recorder: ContextVar[list[Step] | None] = ContextVar("svcnode_steps", default=None)


@contextmanager
def record_steps() -> Iterator[list[Step]]:
    """Steps taken inside are added to the list, in the order in which they ended."""
    steps: list[Step] = []
    token = _recorder.set(steps)
    try:
        yield steps
    finally:
        _recorder.reset(token)


class step:  # noqa: N801  it reads as a statement: `with step("connect", "127.0.0.1:80"):`
    """One step; also noted when it fails, since that is the interesting one."""

    __slots__ = ("_detail", "_name", "_started_s", "_steps")

    def __init__(self, name: str, detail: str = "") -> None:
        self._name = name
        self._detail = detail

    def __enter__(self) -> None:
        self._steps = _recorder.get()
        self._started_s = 0.0 if self._steps is None else time.perf_counter()

    def __exit__(self, kind: object, exc: BaseException | None, traceback: object) -> None:
        if self._steps is not None:
            duration_s = time.perf_counter() - self._started_s
            self._steps.append(Step(self._name, self._detail, duration_s, is_done=exc is None))
        if isinstance(exc, CancelledError):
            exc.__dict__.setdefault("step", self._name)  # for `step_cut_short`


@contextmanager
def attach_progress(progress: Callable[[], str]) -> Iterator[None]:
    """What a step that is cut short has come to, for a reason that says more than that there was no answer."""
    try:
        yield
    except CancelledError as exc:
        if text := progress():
            exc.__dict__.setdefault("progress", text)
        raise


def progress_of(exc: BaseException | None) -> str | None:
    return getattr(exc, "progress", None)


def interrupted_step(exc: BaseException | None) -> str | None:
    """The step that was going on when a look was cancelled."""
    return getattr(exc, "step", None)
