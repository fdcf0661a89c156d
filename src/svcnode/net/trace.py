"""The steps of a check (resolve, connect, handshake, exchange, write) with their durations.

They are recorded only inside `record_steps()`; otherwise a step costs next to nothing.
"""

from __future__ import annotations

import time
from asyncio import CancelledError
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

READ_FILES_STEP = "read files"  # of options, such as a certificate; not recorded
TIME_SERVER_STEP = "ask time server"


class Step(NamedTuple):
    name: str  # "resolve", "connect", "handshake", "exchange"; "write" inside "exchange"
    detail: str
    duration_s: float
    is_done: bool  # False if the step failed or was cancelled


_recorder: ContextVar[list[Step] | None] = ContextVar("svcnode_steps", default=None)


@contextmanager
def record_steps() -> Iterator[list[Step]]:
    """The list receives the steps inside the block, in the order in which they end."""
    steps: list[Step] = []
    token = _recorder.set(steps)
    try:
        yield steps
    finally:
        _recorder.reset(token)


class step:  # noqa: N801  used as a statement: `with step("connect", "127.0.0.1:80"):`
    """One step of a check. A step that fails is recorded too."""

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
            exc.__dict__.setdefault("step", self._name)  # for interrupted_step()


@contextmanager
def interrupts(name: str) -> Iterator[None]:
    """If the block is cancelled, this step was interrupted. For steps that run and are recorded in other tasks."""
    try:
        yield
    except CancelledError as exc:
        exc.__dict__.setdefault("step", name)
        raise


@contextmanager
def attach_progress(progress: Callable[[], str]) -> Iterator[None]:
    """If the block is cancelled, attach a text about its progress to the exception, for the reason of the verdict."""
    try:
        yield
    except CancelledError as exc:
        if text := progress():
            exc.__dict__.setdefault("progress", text)
        raise


@contextmanager
def attach_detail(detail: Callable[[], str]) -> Iterator[None]:
    """If the block is cancelled, attach a text about it, such as an address; the step is in the reason too."""
    try:
        yield
    except CancelledError as exc:
        if text := detail():
            exc.__dict__.setdefault("details", []).append(text)
        raise


def details_of(exc: BaseException | None) -> list[str]:
    return getattr(exc, "details", [])


def progress_of(exc: BaseException | None) -> str | None:
    return getattr(exc, "progress", None)


def interrupted_step(exc: BaseException | None) -> str | None:
    """The name of the step that the cancellation interrupted."""
    return getattr(exc, "step", None)
