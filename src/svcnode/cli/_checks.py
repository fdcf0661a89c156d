"""Shared by the commands that run checks: a loop without the output of drivers, and results as text."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from svcnode.agent.logs import silence_drivers

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from svcnode.core.model import Verdict


def run_quietly(work: Coroutine[Any, Any, None]) -> None:
    """Like `asyncio.run`, but hides the tracebacks of drivers, including those of tasks that end with the loop.

    The verdict reports the same failure.
    """
    silence_drivers()
    with asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(lambda *_: None)
        runner.run(work)


def outcome_text(verdict: Verdict) -> str:
    return verdict.outcome.value.replace("_", " ")


def milliseconds_text(duration_s: float) -> str:
    return f"{duration_s * 1000:.1f} ms"
