"""Scripted probes that record their checks, and a scheduler without jitter for virtual time."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from svcnode.core.codes import ReasonCode
from svcnode.core.model import Verdict
from svcnode.node.scheduler import JITTER, ProbeScheduler
from svcnode.probes.base import Probe
from tests.support import nodes
from tests.support.virtual_time import VirtualTimeLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    from svcnode.node.node_state import NodeState


READY = Verdict.ready()
FAILED = Verdict.failed("refused", code=ReasonCode.CONNECTION_REFUSED)
HUNG_S = 3600.0


def no_jitter() -> float:
    """An interval has exactly its length."""
    return 0.0


def seeded_jitter(seed: int) -> Callable[[], float]:
    return partial(random.Random(seed).uniform, -JITTER, JITTER)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def block_loop(duration_s: float) -> None:
    """Advance the time without running any other callback, as a blocking call does."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.clock.advance(duration_s)


@dataclass(eq=False)
class ConcurrencyCounter:
    """How many checks run now, and the largest number so far."""

    running: int = 0
    peak: int = 0

    def add(self) -> None:
        self.running += 1
        self.peak = max(self.peak, self.running)

    def remove(self) -> None:
        self.running -= 1


@dataclass(eq=False)
class ScriptedProbe(Probe):
    """Returns the given verdict, or raises the given error, after the given time."""

    verdict: Verdict = READY
    duration_s: float = 0.0
    error: BaseException | None = None
    started_at_s: list[float] = field(default_factory=list)
    cancelled_at_s: list[float] = field(default_factory=list)
    concurrency: ConcurrencyCounter = field(default_factory=ConcurrencyCounter)  # may be shared

    async def check(self) -> Verdict:
        self.started_at_s.append(now_s())
        self.concurrency.add()
        try:
            await asyncio.sleep(self.duration_s)
            if self.error is not None:
                raise self.error
        except asyncio.CancelledError:
            self.cancelled_at_s.append(now_s())
            raise
        finally:
            self.concurrency.remove()
        return self.verdict

    @property
    def intervals_s(self) -> list[float]:
        return [after - before for before, after in pairwise(self.started_at_s)]


@dataclass(eq=False)
class CancelSwallowingProbe(Probe):
    """Calls `on_cancel` instead of ending when it is cancelled."""

    on_cancel: Callable[[], Verdict]

    async def check(self) -> Verdict:
        try:
            await asyncio.sleep(4.0)
        except asyncio.CancelledError:
            return self.on_cancel()
        return READY


@dataclass(eq=False)
class CancelIgnoringProbe(Probe):
    """Ignores the first cancellations, like drivers that lose one."""

    ignored_cancels: int
    ended_at_s: list[float] = field(default_factory=list)

    async def check(self) -> Verdict:
        for _ in range(self.ignored_cancels):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(HUNG_S)
        try:
            await asyncio.sleep(HUNG_S)
        finally:
            self.ended_at_s.append(now_s())
        return READY


def make_node() -> NodeState:
    return nodes.make_node(clock=asyncio.get_running_loop().time)


def make_scheduler(node: NodeState, *, max_concurrent_checks: int = 1024) -> ProbeScheduler:
    return ProbeScheduler(node, no_jitter, max_concurrent_checks=max_concurrent_checks)


def register_many(
    node: NodeState, count: int, make_probe: Callable[[], ScriptedProbe], **options: Any
) -> list[ScriptedProbe]:
    probes = [make_probe() for _ in range(count)]
    for probe in probes:
        node.register(f"svc-{len(node)}", probe=probe, **options)
    return probes


def running_checks() -> set[asyncio.Task[Any]]:
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}
